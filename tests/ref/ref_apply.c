/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins of the optimisers: one element at a time, in double precision, from the formulas in <tern/graph.h>.
 */
#include <math.h>

#include "ref/ref_ops.h"

static double learning_rate(const tn_node *n, uint64_t step)
{
	double lr = tn_node_float(n, TN_ATTR_LR, 0), end = tn_node_float(n, TN_ATTR_LR_END, lr);
	double steps = (double)tn_node_int(n, TN_ATTR_LR_STEPS, 0);

	if (steps == 0)
		return lr;
	return (double)step >= steps ? end : lr + (end - lr) * (double)step / steps;
}

static double *at(const ref_graph *r, const tn_node *n, uint32_t input, uint64_t i)
{
	return &r->values[n->in[input]].data[i];
}

/* The sum of the gradients of element i, averaged and clipped. */
static double gradient(const ref_graph *r, const tn_node *n, uint64_t i)
{
	uint32_t first = tn_apply_slots(n);
	double g = 0, limit = tn_node_float(n, TN_ATTR_CLIP_VALUE, 0), scale = 1;

	if (tn_node_int(n, TN_ATTR_CLIPPED, 0))
		scale = *at(r, n, first++, 0);
	for (uint32_t k = first; k < n->n_in; k++)
		g += *at(r, n, k, i);
	g *= tn_node_float(n, TN_ATTR_GRAD_SCALE, 1.0) * scale;
	return limit > 0 ? fmax(-limit, fmin(limit, g)) : g;
}

static double velocity(const ref_graph *r, const tn_node *n, uint32_t slot, uint64_t i, double g)
{
	double *v = at(r, n, slot, i);

	return *v = tn_node_float(n, TN_ATTR_MOMENTUM, 0) * *v + g;
}

static double average(double *a, double rho, double x)
{
	return *a = rho * *a + (1 - rho) * x;
}

static double adam(const ref_graph *r, const tn_node *n, uint64_t i, double g)
{
	double b1 = tn_node_float(n, TN_ATTR_BETA1, 0), b2 = tn_node_float(n, TN_ATTR_BETA2, 0);
	double t = *at(r, n, 3, 0), m = average(at(r, n, 1, i), b1, g),
	       v = average(at(r, n, 2, i), b2, g * g);

	return m / (1 - pow(b1, t)) / (sqrt(v / (1 - pow(b2, t))) + tn_node_float(n, TN_ATTR_EPSILON, 0));
}

/* What lr is multiplied with. */
static double direction(const ref_graph *r, const tn_node *n, uint64_t i, double g)
{
	double epsilon = tn_node_float(n, TN_ATTR_EPSILON, 0);

	switch (n->op) {
	case TN_OP_APPLY_MOMENTUM:
		return velocity(r, n, 1, i, g);
	case TN_OP_APPLY_ADAGRAD:
		*at(r, n, 1, i) += g * g;
		return g / (sqrt(*at(r, n, 1, i)) + epsilon);
	case TN_OP_APPLY_ADAM:
		return adam(r, n, i, g);
	case TN_OP_APPLY_RMSPROP:
		g /= sqrt(average(at(r, n, 1, i), tn_node_float(n, TN_ATTR_RHO, 0), g * g)) + epsilon;
		return tn_apply_slots(n) == 3 ? velocity(r, n, 2, i, g) : g;
	default:
		return g;
	}
}

void ref_apply(const ref_graph *r, const tn_node *n)
{
	double lr = learning_rate(n, r->step), decay = tn_node_float(n, TN_ATTR_WEIGHT_DECAY, 0);

	if (n->op == TN_OP_APPLY_ADAM)
		*at(r, n, 3, 0) += 1;
	for (uint64_t i = 0; i < r->values[n->in[0]].n; i++) {
		double *w = at(r, n, 0, i), g = gradient(r, n, i);

		if (n->op == TN_OP_APPLY_EMA)
			average(w, tn_node_float(n, TN_ATTR_MOMENTUM, 0), g);
		else
			*w -= lr * direction(r, n, i, g + decay * *w);
		r->values[n->out[0]].data[i] = *w;
	}
}

void ref_norm(const ref_graph *r, const tn_node *n)
{
	double sum = 0;

	for (uint32_t k = 0; k < n->n_in; k++) {
		for (uint64_t i = 0; i < r->values[n->in[k]].n; i++)
			sum += *at(r, n, k, i) * *at(r, n, k, i);
	}
	if (n->op == TN_OP_GRAD_NORM)
		sum = sqrt(sum) * tn_node_float(n, TN_ATTR_SCALE, 1.0);
	else
		sum = fmin(1.0, tn_node_float(n, TN_ATTR_CLIP_NORM, 0) / (sqrt(sum) + 1e-6));
	r->values[n->out[0]].data[0] = sum;
}

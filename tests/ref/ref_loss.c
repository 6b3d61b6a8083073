/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins of the losses, from their definitions.
 */
#include <math.h>

#include "ref/ref_ops.h"

static ref_value *in(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->in[i]];
}

static ref_value *out(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->out[i]];
}

static int counted(const tn_node *n, double label)
{
	const tn_attr *ignore = tn_node_attr(n, TN_ATTR_IGNORE_INDEX);

	return !ignore || (double)ignore->u.i != label;
}

static double rows_counted(const tn_node *n, const ref_value *labels)
{
	double rows = 0;

	for (uint64_t i = 0; i < labels->n; i++)
		rows += counted(n, labels->data[i]);
	return rows;
}

static void softmax_row(const double *x, double *y, uint64_t n)
{
	double max = x[0], sum = 0;

	for (uint64_t j = 1; j < n; j++)
		max = fmax(max, x[j]);
	for (uint64_t j = 0; j < n; j++)
		sum += y[j] = exp(x[j] - max);
	for (uint64_t j = 0; j < n; j++)
		y[j] /= sum;
}

static int is_largest(const double *x, uint64_t n, uint64_t label)
{
	for (uint64_t j = 0; j < n; j++) {
		if (x[j] > x[label] || (x[j] == x[label] && j < label))
			return 0;
	}
	return 1;
}

void ref_label_loss(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 0), *labels = in(r, n, 1);
	uint64_t cols = x->shape.dims[x->shape.rank - 1];
	double loss = 0, correct = 0;

	for (uint64_t i = 0; i < labels->n; i++) {
		const double *row = x->data + i * cols;
		uint64_t label = (uint64_t)labels->data[i];

		if (n->op == TN_OP_SOFTMAX_XENT)
			softmax_row(row, out(r, n, 2)->data + i * cols, cols);
		if (!counted(n, labels->data[i]))
			continue;
		correct += is_largest(row, cols, label);
		loss -= n->op == TN_OP_NLL ? row[label] : log(out(r, n, 2)->data[i * cols + label]);
	}
	out(r, n, 0)->data[0] = loss / fmax(1, rows_counted(n, labels));
	if (n->op == TN_OP_SOFTMAX_XENT)
		out(r, n, 1)->data[0] = correct;
}

void ref_label_loss_grad(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 1), *labels = in(r, n, 2);
	uint64_t cols = x->shape.dims[x->shape.rank - 1];
	double share = in(r, n, 0)->data[0] / fmax(1, rows_counted(n, labels));

	for (uint64_t i = 0; i < x->n; i++) {
		double label = labels->data[i / cols], hot = label == (double)(i % cols);
		double d = n->op == TN_OP_NLL_GRAD ? -hot : x->data[i] - hot;

		out(r, n, 0)->data[i] = counted(n, label) ? d * share : 0;
	}
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

void ref_pair_loss(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 0), *t = in(r, n, 1);
	double sum = 0;

	for (uint64_t i = 0; i < x->n; i++) {
		if (n->op == TN_OP_MSE)
			sum += (x->data[i] - t->data[i]) * (x->data[i] - t->data[i]);
		else
			sum -= t->data[i] * log(sigmoid(x->data[i])) +
			       (1 - t->data[i]) * log(sigmoid(-x->data[i]));
	}
	out(r, n, 0)->data[0] = x->n ? sum / (double)x->n : 0;
}

void ref_pair_loss_grad(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 1), *t = in(r, n, 2);

	for (uint64_t i = 0; i < x->n; i++) {
		double d = n->op == TN_OP_MSE_GRAD ? 2 * (x->data[i] - t->data[i])
						   : sigmoid(x->data[i]) - t->data[i];

		out(r, n, 0)->data[i] = d * in(r, n, 0)->data[0] / (double)x->n;
	}
}

void ref_matmul_rows(const ref_graph *r, const tn_node *n)
{
	const ref_value *a = in(r, n, 0), *b = in(r, n, 1);
	uint64_t rows = out(r, n, 0)->shape.dims[0], cols = out(r, n, 0)->shape.dims[1];

	for (uint64_t i = 0; i < rows * cols; i++) {
		double sum = 0;

		for (uint64_t k = 0; k * rows < a->n; k++)
			sum += a->data[k * rows + i / cols] * b->data[k * cols + i % cols];
		out(r, n, 0)->data[i] = sum;
	}
}

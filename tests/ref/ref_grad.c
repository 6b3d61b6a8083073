/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins of the unary gradients. The derivative is written down once more, in double precision; that it is the
 * derivative of the op is what the finite differences of grad_test.c say.
 */
#include <math.h>

#include "ref/ref_ops.h"

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double gelu(double x, int by_tanh)
{
	const double pi = 3.14159265358979323846;
	double c = sqrt(2 / pi), t = tanh(c * (x + 0.044715 * x * x * x));

	if (by_tanh)
		return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
	return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * pi);
}

static double number(const tn_node *n, tn_attr_key key, double dflt)
{
	return tn_node_float(n, key, dflt);
}

/* Piecewise ones, and those with attributes. NaN if the op is none of them. */
static double piecewise(const tn_node *n, double v)
{
	double alpha = number(n, TN_ATTR_ALPHA, 1), beta = number(n, TN_ATTR_BETA, 0.5);

	switch (n->op) {
	case TN_OP_ABS_GRAD:
		return (v > 0) - (v < 0);
	case TN_OP_ELU_GRAD:
		return v > 0 ? 1 : alpha * exp(v);
	case TN_OP_SELU_GRAD:
		alpha = number(n, TN_ATTR_ALPHA, 1.67326319217681884765625);
		beta = number(n, TN_ATTR_GAMMA, 1.05070102214813232421875);
		return v > 0 ? beta : beta * alpha * exp(v);
	case TN_OP_CELU_GRAD:
		return v > 0 ? 1 : exp(v / alpha);
	case TN_OP_LEAKY_RELU_GRAD:
		return v < 0 ? number(n, TN_ATTR_ALPHA, 0.01) : 1;
	case TN_OP_THRESHOLDED_RELU_GRAD:
		return v > alpha;
	case TN_OP_HARD_SIGMOID_GRAD:
		alpha = number(n, TN_ATTR_ALPHA, 0.2);
		return alpha * v + beta > 0 && alpha * v + beta < 1 ? alpha : 0;
	case TN_OP_HARD_SWISH_GRAD:
		return v <= -3 ? 0 : v >= 3 ? 1 : v / 3 + 0.5;
	case TN_OP_SHRINK_GRAD:
		return fabs(v) > number(n, TN_ATTR_ALPHA, 0.5);
	case TN_OP_CLIP_VALUES_GRAD:
		return v >= number(n, TN_ATTR_MIN, -INFINITY) && v <= number(n, TN_ATTR_MAX, INFINITY);
	case TN_OP_GELU_GRAD:
		return gelu(v, tn_node_int(n, TN_ATTR_MODE, 0) != 0);
	default:
		return NAN;
	}
}

static double smooth(tn_op op, double v)
{
	switch (op) {
	case TN_OP_EXP_GRAD:
		return v;
	case TN_OP_LOG_GRAD:
		return 1 / v;
	case TN_OP_SQRT_GRAD:
		return 1 / (2 * v);
	case TN_OP_RECIPROCAL_GRAD:
		return -v * v;
	case TN_OP_SIGMOID_GRAD:
		return v * (1 - v);
	case TN_OP_TANH_GRAD:
		return 1 - v * v;
	case TN_OP_ERF_GRAD:
		return 2 / sqrt(3.14159265358979323846) * exp(-v * v);
	case TN_OP_SOFTPLUS_GRAD:
		return sigmoid(v);
	case TN_OP_SOFTSIGN_GRAD:
		return pow(1 + fabs(v), -2);
	case TN_OP_SIN_GRAD:
		return cos(v);
	case TN_OP_COS_GRAD:
		return -sin(v);
	case TN_OP_TAN_GRAD:
		return 1 + v * v;
	case TN_OP_ASIN_GRAD:
		return 1 / sqrt(1 - v * v);
	case TN_OP_ACOS_GRAD:
		return -1 / sqrt(1 - v * v);
	case TN_OP_ATAN_GRAD:
		return 1 / (1 + v * v);
	case TN_OP_SINH_GRAD:
		return cosh(v);
	case TN_OP_COSH_GRAD:
		return sinh(v);
	case TN_OP_ASINH_GRAD:
		return 1 / sqrt(1 + v * v);
	case TN_OP_ACOSH_GRAD:
		return 1 / sqrt(v * v - 1);
	case TN_OP_ATANH_GRAD:
		return 1 / (1 - v * v);
	default:
		return NAN;
	}
}

bool ref_unary_grad(const ref_graph *r, const tn_node *n)
{
	if (n->op < TN_OP_ABS_GRAD || n->op > TN_OP_ATANH_GRAD)
		return false;
	for (uint64_t i = 0; i < r->values[n->in[0]].n; i++) {
		double v = r->values[n->in[1]].data[i], d = piecewise(n, v);

		r->values[n->out[0]].data[i] =
			r->values[n->in[0]].data[i] * (isnan(d) ? smooth(n->op, v) : d);
	}
	return true;
}

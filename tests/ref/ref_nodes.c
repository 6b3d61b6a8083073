/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Twins of what goes element by element and along axes: one formula per op, in double, by multi-dimensional
 * indices. See ref_graph.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/infer.h"
#include "ref/ref_ops.h"

static const ref_value *in(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->in[i]];
}

static ref_value *out(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->out[i]];
}

void ref_unravel(const tern_shape *s, uint64_t i, uint64_t *at)
{
	for (uint32_t d = s->rank; d-- > 0;) {
		at[d] = i % s->dims[d];
		i /= s->dims[d];
	}
}

uint64_t ref_ravel(const tern_shape *s, const uint64_t *at)
{
	uint64_t i = 0;

	for (uint32_t d = 0; d < s->rank; d++)
		i = i * s->dims[d] + at[d];
	return i;
}

/* Element i of `whole`, of a value that broadcasts to it. */
static double spread(const ref_value *v, const tern_shape *whole, uint64_t i)
{
	uint64_t at[TERN_RANK_MAX], own[TERN_RANK_MAX];

	ref_unravel(whole, i, at);
	for (uint32_t d = 0; d < v->shape.rank; d++)
		own[d] = v->shape.dims[d] == 1 ? 0 : at[whole->rank - v->shape.rank + d];
	return v->data[ref_ravel(&v->shape, own)];
}

/* ---- unary ---- */

static double attribute(const tn_node *n, tn_attr_key key, double dflt)
{
	return tn_node_float(n, key, dflt);
}

static double with_attributes(const tn_node *n, double x)
{
	double a = attribute(n, TN_ATTR_ALPHA, n->op == TN_OP_LEAKY_RELU ? 0.01 : 1.0);

	switch (n->op) {
	case TN_OP_ELU:
		return x < 0 ? a * (exp(x) - 1) : x;
	case TN_OP_SELU:
		a = attribute(n, TN_ATTR_ALPHA, 1.67326319217681884765625);
		return attribute(n, TN_ATTR_GAMMA, 1.05070102214813232421875) *
		       (x > 0 ? x : a * (exp(x) - 1));
	case TN_OP_CELU:
		return fmax(0, x) + fmin(0, a * (exp(x / a) - 1));
	case TN_OP_LEAKY_RELU:
		return x < 0 ? a * x : x;
	case TN_OP_THRESHOLDED_RELU:
		return x > a ? x : 0;
	case TN_OP_HARD_SIGMOID:
		return fmax(0,
			    fmin(1, attribute(n, TN_ATTR_ALPHA, 0.2) * x + attribute(n, TN_ATTR_BETA, 0.5)));
	case TN_OP_HARD_SWISH:
		return x * fmax(0, fmin(1, x / 6 + 0.5));
	case TN_OP_SHRINK:
		a = attribute(n, TN_ATTR_ALPHA, 0.5);
		return fabs(x) <= a ? 0 : x - copysign(attribute(n, TN_ATTR_BIAS, 0), x);
	case TN_OP_CLIP_VALUES:
		return fmin(fmax(x, attribute(n, TN_ATTR_MIN, -INFINITY)),
			    attribute(n, TN_ATTR_MAX, INFINITY));
	default:
		if (tn_node_int(n, TN_ATTR_MODE, 0))
			return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
		return x * 0.5 * erfc(-x / sqrt(2));
	}
}

typedef double (*unary_fn)(double x);

#define ONE(name, expr)              \
	static double name(double x) \
	{                            \
		return expr;         \
	}
ONE(f_relu, fmax(x, 0))
ONE(f_neg, 0 - x)
ONE(f_sign, (x > 0) - (x < 0))
ONE(f_reciprocal, 1 / x)
ONE(f_sigmoid, 1 / (1 + exp(-x)))
ONE(f_softplus, log(1 + exp(x)))
ONE(f_softsign, x / (1 + fabs(x)))
ONE(f_not, x == 0)
ONE(f_is_nan, isnan(x) != 0)
ONE(f_is_inf, isinf(x) != 0)

static const unary_fn unaries[TN_OP_COUNT] = {
	[TN_OP_RELU] = f_relu,
	[TN_OP_NEG] = f_neg,
	[TN_OP_ABS] = fabs,
	[TN_OP_SIGN] = f_sign,
	[TN_OP_EXP] = exp,
	[TN_OP_LOG] = log,
	[TN_OP_SQRT] = sqrt,
	[TN_OP_RECIPROCAL] = f_reciprocal,
	[TN_OP_SIGMOID] = f_sigmoid,
	[TN_OP_TANH] = tanh,
	[TN_OP_ERF] = erf,
	[TN_OP_FLOOR] = floor,
	[TN_OP_CEIL] = ceil,
	[TN_OP_ROUND] = nearbyint,
	[TN_OP_SOFTPLUS] = f_softplus,
	[TN_OP_SOFTSIGN] = f_softsign,
	[TN_OP_SIN] = sin,
	[TN_OP_COS] = cos,
	[TN_OP_TAN] = tan,
	[TN_OP_ASIN] = asin,
	[TN_OP_ACOS] = acos,
	[TN_OP_ATAN] = atan,
	[TN_OP_SINH] = sinh,
	[TN_OP_COSH] = cosh,
	[TN_OP_ASINH] = asinh,
	[TN_OP_ACOSH] = acosh,
	[TN_OP_ATANH] = atanh,
	[TN_OP_NOT] = f_not,
	[TN_OP_IS_NAN] = f_is_nan,
	[TN_OP_IS_INF] = f_is_inf,
};

static bool unary(const ref_graph *r, const tn_node *n)
{
	bool attrs = false;

	switch (n->op) {
	case TN_OP_ELU:
	case TN_OP_SELU:
	case TN_OP_CELU:
	case TN_OP_LEAKY_RELU:
	case TN_OP_THRESHOLDED_RELU:
	case TN_OP_HARD_SIGMOID:
	case TN_OP_HARD_SWISH:
	case TN_OP_SHRINK:
	case TN_OP_CLIP_VALUES:
	case TN_OP_GELU:
		attrs = true;
		break;
	default:
		break;
	}
	if (!attrs && !unaries[n->op])
		return false;
	for (uint64_t i = 0; i < in(r, n, 0)->n; i++) {
		double x = in(r, n, 0)->data[i];

		out(r, n, 0)->data[i] = attrs ? with_attributes(n, x) : unaries[n->op](x);
	}
	return true;
}

/* ---- binary ---- */

static double floor_mod(double x, double y)
{
	return x - floor(x / y) * y;
}

static bool two(const tn_node *n, bool whole, double x, double y, double *z)
{
	switch (n->op) {
	case TN_OP_ADD:
		return *z = x + y, true;
	case TN_OP_SUB:
		return *z = x - y, true;
	case TN_OP_MUL:
		return *z = x * y, true;
	case TN_OP_DIV:
		return *z = whole ? trunc(x / y) : x / y, true;
	case TN_OP_MINIMUM:
		return *z = isnan(x) || isnan(y) ? NAN : fmin(x, y), true;
	case TN_OP_MAXIMUM:
		return *z = isnan(x) || isnan(y) ? NAN : fmax(x, y), true;
	case TN_OP_MOD:
		return *z = tn_node_int(n, TN_ATTR_FMOD, 0) ? fmod(x, y) : floor_mod(x, y), true;
	case TN_OP_POW:
		return *z = pow(x, y), true;
	case TN_OP_PRELU:
		return *z = x < 0 ? x * y : x, true;
	case TN_OP_AND:
		return *z = x * y, true;
	case TN_OP_OR:
		return *z = fmax(x, y), true;
	case TN_OP_XOR:
		return *z = fabs(x - y), true;
	case TN_OP_BIT_SHIFT:
		return *z = tn_node_int(n, TN_ATTR_DIRECTION, 0) ? floor(x / exp2(y)) : x * exp2(y), true;
	case TN_OP_EQUAL:
		return *z = x == y, true;
	case TN_OP_LESS:
		return *z = x < y, true;
	case TN_OP_LESS_OR_EQUAL:
		return *z = x <= y, true;
	case TN_OP_GREATER:
		return *z = x > y, true;
	case TN_OP_GREATER_OR_EQUAL:
		return *z = x >= y, true;
	default:
		return false;
	}
}

static bool binary(const ref_graph *r, const tn_node *n)
{
	tern_dtype t = n->n_in == 2 ? r->graph->tensors[n->in[0]].dtype : TERN_F32;
	bool whole = TN_T_WHOLE >> t & 1;
	ref_value *z = out(r, n, 0);
	double none;

	if (n->n_in != 2 || !two(n, false, 1, 1, &none))
		return false;
	for (uint64_t i = 0; i < z->n; i++)
		two(n, whole, spread(in(r, n, 0), &z->shape, i), spread(in(r, n, 1), &z->shape, i),
		    &z->data[i]);
	return true;
}

static void where(const ref_graph *r, const tn_node *n)
{
	ref_value *z = out(r, n, 0);

	for (uint64_t i = 0; i < z->n; i++)
		z->data[i] = spread(in(r, n, spread(in(r, n, 0), &z->shape, i) != 0 ? 1 : 2), &z->shape, i);
}

/* ---- reductions: the elements of each result are collected and then reduced by the definition ---- */

static double reduce_list(tn_op op, bool whole, const double *x, uint64_t n)
{
	double acc = op == TN_OP_REDUCE_PROD  ? 1
		     : op == TN_OP_REDUCE_MAX ? -INFINITY
		     : op == TN_OP_REDUCE_MIN ? INFINITY
					      : 0;

	for (uint64_t i = 0; i < n; i++) {
		if (op == TN_OP_REDUCE_PROD)
			acc *= x[i];
		else if (op == TN_OP_REDUCE_MAX)
			acc = fmax(acc, x[i]);
		else if (op == TN_OP_REDUCE_MIN)
			acc = fmin(acc, x[i]);
		else if (op == TN_OP_REDUCE_L1)
			acc += fabs(x[i]);
		else if (op == TN_OP_REDUCE_L2 || op == TN_OP_REDUCE_SUM_SQUARE)
			acc += x[i] * x[i];
		else
			acc += op == TN_OP_REDUCE_LOG_SUM_EXP ? exp(x[i]) : x[i];
	}
	if (op == TN_OP_REDUCE_MEAN)
		acc /= (double)n;
	if (op == TN_OP_REDUCE_L2)
		acc = sqrt(acc);
	if (op == TN_OP_REDUCE_LOG_SUM || op == TN_OP_REDUCE_LOG_SUM_EXP)
		acc = log(acc);
	return whole ? trunc(acc) : acc;
}

/* Whether element i of `large` belongs to result k. */
static bool belongs(const tern_shape *large, uint32_t mask, uint64_t i, uint64_t k)
{
	uint64_t at[TERN_RANK_MAX], result = 0;

	ref_unravel(large, i, at);
	for (uint32_t d = 0; d < large->rank; d++) {
		if (!(mask >> d & 1))
			result = result * large->dims[d] + at[d];
	}
	return result == k;
}

static void reduce(const ref_graph *r, const tn_node *n)
{
	const ref_value *x = in(r, n, 0);
	ref_value *y = out(r, n, 0);
	bool whole = TN_T_WHOLE >> r->graph->tensors[n->in[0]].dtype & 1;
	double *list = calloc(x->n + 1, sizeof(*list));
	uint32_t mask = 0, lead = x->shape.rank - y->shape.rank;

	if (n->op == TN_OP_SUM_TO) {
		for (uint32_t d = 0; d < x->shape.rank; d++)
			mask |= (d < lead || y->shape.dims[d - lead] != x->shape.dims[d]) ? 1u << d : 0;
	} else {
		tn_reduce_mask(n, x->shape.rank, &mask);
	}
	for (uint64_t k = 0; k < y->n; k++) {
		uint64_t m = 0;

		for (uint64_t i = 0; i < x->n; i++) {
			if (belongs(&x->shape, mask, i, k))
				list[m++] = x->data[i];
		}
		y->data[k] = reduce_list(n->op, whole, list, m);
	}
	free(list);
}

/* ---- along an axis: columns are taken out, worked on and put back ---- */

typedef void (*column_fn)(const tn_node *n, const double *a, const double *b, uint64_t len, double *y,
			  double *z);

static double softmax_at(const double *a, uint64_t len, uint64_t i)
{
	double sum = 0;

	for (uint64_t k = 0; k < len; k++)
		sum += exp(a[k] - a[i]);
	return 1 / sum;
}

static uint64_t best_of(const double *a, uint64_t len, bool largest, bool last)
{
	uint64_t best = 0;

	for (uint64_t i = 1; i < len; i++) {
		if ((largest ? a[i] > a[best] : a[i] < a[best]) || (last && a[i] == a[best]))
			best = i;
	}
	return best;
}

static void softmax_column(const tn_node *n, const double *a, const double *b, uint64_t len, double *y,
			   double *z)
{
	double sum = 0;

	(void)z;
	for (uint64_t i = 0; i < len; i++)
		sum += n->op == TN_OP_SOFTMAX_GRAD ? a[i] * b[i] : a[i];
	for (uint64_t i = 0; i < len; i++) {
		if (n->op == TN_OP_SOFTMAX)
			y[i] = softmax_at(a, len, i);
		else if (n->op == TN_OP_LOG_SOFTMAX)
			y[i] = log(softmax_at(a, len, i));
		else if (n->op == TN_OP_HARDMAX)
			y[i] = i == best_of(a, len, true, false);
		else if (n->op == TN_OP_SOFTMAX_GRAD)
			y[i] = b[i] * (a[i] - sum);
		else
			y[i] = a[i] - exp(b[i]) * sum;
	}
}

static void cumsum_column(const tn_node *n, const double *a, const double *b, uint64_t len, double *y,
			  double *z)
{
	bool own = !tn_node_int(n, TN_ATTR_EXCLUSIVE, 0), back = tn_node_int(n, TN_ATTR_REVERSE, 0) != 0;

	(void)b;
	(void)z;
	for (uint64_t i = 0; i < len; i++) {
		y[i] = own ? a[i] : 0;
		for (uint64_t k = 0; k < len; k++)
			y[i] += (back ? k > i : k < i) ? a[k] : 0;
	}
}

static void arg_column(const tn_node *n, const double *a, const double *b, uint64_t len, double *y, double *z)
{
	(void)b;
	(void)z;
	*y = (double)best_of(a, len, n->op == TN_OP_ARG_MAX, tn_node_int(n, TN_ATTR_LAST, 0) != 0);
}

/* The rank of each element among the others says where it goes. */
static void top_column(const tn_node *n, const double *a, const double *b, uint64_t len, double *y, double *z)
{
	bool largest = tn_node_int(n, TN_ATTR_LARGEST, 1) != 0;

	(void)b;
	for (uint64_t i = 0; i < len; i++) {
		uint64_t before = 0;

		for (uint64_t k = 0; k < len; k++)
			before += a[k] == a[i] ? k < i : largest ? a[k] > a[i] : a[k] < a[i];
		if (before < (uint64_t)tn_node_int(n, TN_ATTR_K, 0)) {
			y[before] = a[i];
			z[before] = (double)i;
		}
	}
}

/* Column c of an axis of length len: element i lies at (c / inner * len + i) * inner + c % inner. */
static void columns(const ref_graph *r, const tn_node *n, int64_t dflt, uint64_t out_len, column_fn fn)
{
	const ref_value *x = in(r, n, 0);
	uint32_t axis = tn_node_axis(n, dflt, x->shape.rank);
	uint64_t len = x->shape.dims[axis], inner = 1, most = len + out_len + 1;
	double *a = calloc(4 * most, sizeof(*a)), *b = a + most, *y = b + most, *z = y + most;

	for (uint32_t d = axis + 1; d < x->shape.rank; d++)
		inner *= x->shape.dims[d];
	for (uint64_t c = 0; len > 0 && c < x->n / len; c++) {
		for (uint64_t i = 0; i < len; i++) {
			uint64_t at = (c / inner * len + i) * inner + c % inner;

			a[i] = x->data[at];
			b[i] = n->n_in > 1 ? in(r, n, 1)->data[at] : 0;
		}
		fn(n, a, b, len, y, z);
		for (uint64_t i = 0; i < out_len; i++) {
			uint64_t at = (c / inner * out_len + i) * inner + c % inner;

			out(r, n, 0)->data[at] = y[i];
			if (n->n_out > 1)
				out(r, n, 1)->data[at] = z[i];
		}
	}
	free(a);
}

static uint64_t axis_length(const ref_graph *r, const tn_node *n, int64_t dflt)
{
	const tern_shape *s = &in(r, n, 0)->shape;

	return s->dims[tn_node_axis(n, dflt, s->rank)];
}

static bool along_axis(const ref_graph *r, const tn_node *n)
{
	switch (n->op) {
	case TN_OP_SOFTMAX:
	case TN_OP_LOG_SOFTMAX:
	case TN_OP_HARDMAX:
	case TN_OP_SOFTMAX_GRAD:
	case TN_OP_LOG_SOFTMAX_GRAD:
		columns(r, n, -1, axis_length(r, n, -1), softmax_column);
		return true;
	case TN_OP_CUM_SUM:
		columns(r, n, 0, axis_length(r, n, 0), cumsum_column);
		return true;
	case TN_OP_ARG_MAX:
	case TN_OP_ARG_MIN:
		columns(r, n, 0, 1, arg_column);
		return true;
	case TN_OP_TOP_K:
		columns(r, n, -1, (uint64_t)tn_node_int(n, TN_ATTR_K, 0), top_column);
		return true;
	default:
		return false;
	}
}

static bool is_reduction(tn_op op)
{
	return op == TN_OP_SUM_TO || (op >= TN_OP_REDUCE_SUM && op <= TN_OP_REDUCE_SUM_SQUARE);
}

bool ref_nodes(const ref_graph *r, const tn_node *n)
{
	if (n->op == TN_OP_WHERE) {
		where(r, n);
		return true;
	}
	if (is_reduction(n->op)) {
		reduce(r, n);
		return true;
	}
	return unary(r, n) || binary(r, n) || along_axis(r, n) || ref_moves(r, n);
}

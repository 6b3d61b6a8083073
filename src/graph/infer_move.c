/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of ops that move elements and compute nothing: views, transposes, slices, joins, pads.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/infer.h"

tern_status tn_infer_identity(tn_infer *x)
{
	return tn_yields(x, 0);
}

/* The product of the known dims and, for each symbol, how often it occurs: equal for views of the same data. */
static bool same_elements(const tern_shape *a, const tern_shape *b)
{
	uint64_t n[2] = {1, 1};
	uint32_t count[2][TN_SYMBOLS_MAX] = {{0}};
	const tern_shape *s[2] = {a, b};

	for (uint32_t k = 0; k < 2; k++) {
		for (uint32_t i = 0; i < s[k]->rank; i++) {
			if (tn_dim_symbolic(s[k]->dims[i]))
				count[k][tn_dim_symbol(s[k]->dims[i])]++;
			else if (__builtin_mul_overflow(n[k], s[k]->dims[i], &n[k]))
				return false;
		}
	}
	return n[0] == n[1] && memcmp(count[0], count[1], sizeof(count[0])) == 0;
}

tern_status tn_infer_reshape(tn_infer *x)
{
	char from[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want;
	tern_status st = tn_infer_shape_attr(x, &want);

	if (st != TERN_OK)
		return st;
	if (!same_elements(&tn_infer_in(x, 0)->shape, &want)) {
		return tn_misfit(x, "%s cannot become %s: the number of elements differs",
				 tn_tensor_text(x, 0, from, sizeof(from)),
				 tn_shape_text(x->graph, &want, to, sizeof(to)));
	}
	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	x->shape[0] = want;
	return TERN_OK;
}

tern_status tn_infer_transpose(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	const tn_attr *a = tn_node_attr(x->node, TN_ATTR_PERM);
	uint32_t seen = 0;

	tn_yields(x, 0);
	if (a && a->u.ints.n != in->rank)
		return tn_misfit(x, "perm has %u entries for rank %u", a->u.ints.n, in->rank);
	for (uint32_t i = 0; i < in->rank; i++) {
		int64_t p = a ? a->u.ints.v[i] : (int64_t)(in->rank - 1 - i);

		if (p < 0 || p >= (int64_t)in->rank || (seen >> p & 1))
			return tn_misfit(x, "perm is no permutation of 0 to %u", in->rank - 1);
		seen |= 1u << p;
		x->shape[0].dims[i] = in->dims[p];
	}
	return TERN_OK;
}

/* ---- slices ---- */

#define FAR INT32_MAX /* an end beyond this, on either side, is "to the end" */

static uint64_t steps_between(int64_t start, int64_t end, int64_t step)
{
	if (step > 0)
		return end > start ? (uint64_t)(end - start - 1) / (uint64_t)step + 1 : 0;
	return start > end ? (uint64_t)(start - end - 1) / (uint64_t)-step + 1 : 0;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

/* A dim of known size: as ONNX and NumPy clamp. */
static void slice_known(int64_t start, int64_t end, int64_t step, int64_t dim, uint32_t d, tn_slice *s)
{
	start = start < 0 ? clamp(start, -dim - 1, 0) + dim : start;
	end = end < 0 ? clamp(end, -dim - 1, 0) + dim : end;
	s->start[d] = step > 0 ? clamp(start, 0, dim) : clamp(start, 0, dim - 1);
	end = step > 0 ? clamp(end, 0, dim) : clamp(end, -1, dim - 1);
	s->step[d] = step;
	s->len[d] = dim == 0 ? 0 : steps_between(s->start[d], end, step);
	if (s->len[d] == 0)
		s->start[d] = 0;
	if (s->len[d] <= 1) /* it may be huge otherwise, and it means nothing */
		s->step[d] = 1;
}

/*
 * A symbolic dim: all of it, or a constant number of elements counted from one of its ends. The start then
 * means nothing: kernels resolve again with the real size.
 */
static bool slice_symbolic(int64_t start, int64_t end, int64_t step, uint64_t dim, uint32_t d, tn_slice *s)
{
	s->start[d] = 0;
	s->step[d] = step;
	if ((step == 1 && start == 0 && end > FAR) || (step == -1 && start == -1 && end < -FAR)) {
		s->len[d] = dim;
		return true;
	}
	if (step > 0 && start < 0 && start > -FAR && end > FAR)
		end = 0;
	else if (step < 0 && start >= 0 && start < FAR && end < -FAR)
		end = -1;
	else if ((start < 0) != (end < 0) || start > FAR || start < -FAR || end > FAR || end < -FAR)
		return false;
	s->len[d] = steps_between(start, end, step);
	return true;
}

static tern_status slice_dim(const tn_node *node, uint32_t i, uint32_t d, uint64_t dim, tn_slice *s)
{
	const tn_attr *steps = tn_node_attr(node, TN_ATTR_STEPS);
	int64_t start = tn_node_attr(node, TN_ATTR_STARTS)->u.ints.v[i];
	int64_t end = tn_node_attr(node, TN_ATTR_ENDS)->u.ints.v[i];
	int64_t step = steps ? steps->u.ints.v[i] : 1;

	if (step == 0)
		return tn_fail(TERN_E_SHAPE, "Slice '%s': the step of dim %u is 0", node->name, d);
	step = clamp(step, -INT64_MAX, INT64_MAX);
	if (!tn_dim_symbolic(dim)) {
		slice_known(start, end, step, (int64_t)dim, d, s);
		return TERN_OK;
	}
	if (slice_symbolic(start, end, step, dim, d, s))
		return TERN_OK;
	return tn_fail(TERN_E_SHAPE,
		       "Slice '%s': how much %lld to %lld takes of dim %u is not known before it has a size",
		       node->name, (long long)start, (long long)end, d);
}

tern_status tn_slice_resolve(const tn_node *node, const tern_shape *in, tn_slice *s)
{
	const tn_attr *starts = tn_node_attr(node, TN_ATTR_STARTS), *ends = tn_node_attr(node, TN_ATTR_ENDS);
	const tn_attr *axes = tn_node_attr(node, TN_ATTR_AXES), *steps = tn_node_attr(node, TN_ATTR_STEPS);
	uint32_t n = starts->u.ints.n, seen = 0;

	if (n > in->rank || ends->u.ints.n != n || (axes && axes->u.ints.n != n) ||
	    (steps && steps->u.ints.n != n)) {
		return tn_fail(TERN_E_SHAPE,
			       "Slice '%s': starts, ends, axes and steps must be equally many, up to rank %u",
			       node->name, in->rank);
	}
	for (uint32_t d = 0; d < in->rank; d++) {
		s->start[d] = 0;
		s->step[d] = 1;
		s->len[d] = in->dims[d];
	}
	for (uint32_t i = 0; i < n; i++) {
		int64_t axis = axes ? axes->u.ints.v[i] : (int64_t)i;
		tern_status st;

		axis = axis < 0 ? axis + in->rank : axis;
		if (axis < 0 || axis >= (int64_t)in->rank || (seen >> axis & 1)) {
			return tn_fail(TERN_E_INVALID,
				       "Slice '%s': axis %lld is out of range or given twice for rank %u",
				       node->name, (long long)axes->u.ints.v[i], in->rank);
		}
		seen |= 1u << axis;
		st = slice_dim(node, i, (uint32_t)axis, in->dims[axis], s);
		if (st != TERN_OK)
			return st;
	}
	return TERN_OK;
}

static tern_status sliced_shape(const tn_infer *x, const tern_shape *in, tern_shape *out)
{
	tn_slice s;
	tern_status st = tn_slice_resolve(x->node, in, &s);

	*out = *in;
	for (uint32_t d = 0; d < in->rank && st == TERN_OK; d++)
		out->dims[d] = s.len[d];
	return st;
}

tern_status tn_infer_slice(tn_infer *x)
{
	tn_yields(x, 0);
	return sliced_shape(x, &tn_infer_in(x, 0)->shape, &x->shape[0]);
}

/* dY has the shape of a slice of `shape`. */
tern_status tn_infer_slice_grad(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want, slice;
	tern_status st = tn_want_f32(x, 0, 1);

	if (st == TERN_OK)
		st = tn_infer_shape_attr(x, &want);
	if (st == TERN_OK)
		st = sliced_shape(x, &want, &slice);
	if (st != TERN_OK)
		return st;
	if (!tn_shape_equal(&slice, &tn_infer_in(x, 0)->shape)) {
		return tn_misfit(x, "%s is not the slice, which is %s", tn_tensor_text(x, 0, a, sizeof(a)),
				 tn_shape_text(x->graph, &slice, to, sizeof(to)));
	}
	x->dtype[0] = TERN_F32;
	x->shape[0] = want;
	return TERN_OK;
}

/* ---- joins and repetitions ---- */

static tern_status add_dims(const tn_infer *x, uint64_t *sum, uint64_t dim)
{
	if (*sum == 0 || dim == 0) {
		*sum = *sum ? *sum : dim;
		return TERN_OK;
	}
	if (tn_dim_symbolic(*sum) || tn_dim_symbolic(dim))
		return tn_misfit(x, "a symbolic dim cannot be added to another: join along another axis");
	*sum += dim; /* both are below 2^48 */
	return TERN_OK;
}

tern_status tn_infer_concat(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_TENSOR_TEXT_MAX];
	uint32_t axis;
	tern_status st = tn_infer_axis(x, 0, tn_infer_in(x, 0)->shape.rank, &axis);

	tn_yields(x, 0);
	for (uint32_t i = 1; i < x->node->n_in && st == TERN_OK; i++) {
		tern_shape s = tn_infer_in(x, i)->shape;
		uint64_t dim = s.rank > axis ? s.dims[axis] : 0;

		if (s.rank > axis)
			s.dims[axis] = x->shape[0].dims[axis];
		if (!tn_shape_equal(&s, &x->shape[0]) || tn_infer_in(x, i)->dtype != x->dtype[0]) {
			return tn_misfit(x, "%s and %s must have the same type and dims but dim %u",
					 tn_tensor_text(x, 0, a, sizeof(a)),
					 tn_tensor_text(x, i, b, sizeof(b)), axis);
		}
		st = add_dims(x, &x->shape[0].dims[axis], dim);
	}
	return st;
}

tern_status tn_infer_expand(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX], to[TN_SHAPE_TEXT_MAX];
	tern_shape want;
	tern_status st = tn_infer_shape_attr(x, &want);

	if (st != TERN_OK)
		return st;
	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	if (tn_shape_broadcast(&tn_infer_in(x, 0)->shape, &want, &x->shape[0]))
		return TERN_OK;
	return tn_misfit(x, "%s does not broadcast with %s", tn_tensor_text(x, 0, a, sizeof(a)),
			 tn_shape_text(x->graph, &want, to, sizeof(to)));
}

/* A reflected pad needs as many elements besides the edge itself. */
static tern_status check_pad(const tn_infer *x, uint64_t dim, int64_t before, int64_t after, uint32_t d)
{
	int64_t mode = tn_node_int(x->node, TN_ATTR_MODE, TN_PAD_CONSTANT);
	int64_t most = (int64_t)dim - 1;

	if (tn_dim_symbolic(dim))
		return tn_misfit(x, "dim %u is symbolic and cannot be padded", d);
	if (mode < TN_PAD_CONSTANT || mode > TN_PAD_EDGE)
		return tn_misfit(x, "mode %lld is none", (long long)mode);
	if (before > (INT64_C(1) << 48) || after > (INT64_C(1) << 48) || before < -most - 1 ||
	    after < -most - 1 || before + after < -most - 1)
		return tn_misfit(x, "pads %lld and %lld do not fit dim %u of %lld", (long long)before,
				 (long long)after, d, (long long)dim);
	if ((mode == TN_PAD_REFLECT && (before > most || after > most)) || (mode == TN_PAD_EDGE && dim == 0))
		return tn_misfit(x, "pads %lld and %lld are more than dim %u of %lld has to repeat",
				 (long long)before, (long long)after, d, (long long)dim);
	return TERN_OK;
}

tern_status tn_infer_pad(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	const tn_attr *pads = tn_node_attr(x->node, TN_ATTR_PADS);
	tern_status st = TERN_OK;

	tn_yields(x, 0);
	if (pads->u.ints.n != 2 * in->rank)
		return tn_misfit(x, "rank %u needs %u pads, not %u", in->rank, 2 * in->rank, pads->u.ints.n);
	for (uint32_t d = 0; d < in->rank && st == TERN_OK; d++) {
		int64_t before = pads->u.ints.v[d], after = pads->u.ints.v[in->rank + d];

		if (before == 0 && after == 0)
			continue;
		st = check_pad(x, in->dims[d], before, after, d);
		x->shape[0].dims[d] = (uint64_t)((int64_t)in->dims[d] + before + after);
	}
	return st;
}

tern_status tn_infer_tile(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	const tn_attr *a = tn_node_attr(x->node, TN_ATTR_REPEATS);

	tn_yields(x, 0);
	if (a->u.ints.n != in->rank)
		return tn_misfit(x, "rank %u needs as many repeats, not %u", in->rank, a->u.ints.n);
	for (uint32_t d = 0; d < in->rank; d++) {
		int64_t r = a->u.ints.v[d];

		if (r == 1)
			continue;
		if (r < 0 || tn_dim_symbolic(in->dims[d]) ||
		    __builtin_mul_overflow(in->dims[d], (uint64_t)r, &x->shape[0].dims[d]) ||
		    x->shape[0].dims[d] >> 48)
			return tn_misfit(x, "dim %u cannot be repeated %lld times", d, (long long)r);
	}
	return TERN_OK;
}

/* ---- images and matrices ---- */

tern_status tn_infer_depth_to_space(tn_infer *x)
{
	int64_t b = tn_node_int(x->node, TN_ATTR_BLOCK_SIZE, 0);
	uint64_t *d = x->shape[0].dims;
	char a[TN_TENSOR_TEXT_MAX];

	tn_yields(x, 0);
	if (x->shape[0].rank != 4 || b < 1 || b > 4096 || tn_dim_symbolic(d[1]) || tn_dim_symbolic(d[2]) ||
	    tn_dim_symbolic(d[3]) || d[1] % (uint64_t)(b * b) != 0) {
		return tn_misfit(
			x, "blocksize %lld does not fit %s: needs (N,C,H,W), C a multiple of its square",
			(long long)b, tn_tensor_text(x, 0, a, sizeof(a)));
	}
	d[1] /= (uint64_t)(b * b);
	d[2] *= (uint64_t)b;
	d[3] *= (uint64_t)b;
	return TERN_OK;
}

tern_status tn_infer_space_to_depth(tn_infer *x)
{
	int64_t b = tn_node_int(x->node, TN_ATTR_BLOCK_SIZE, 0);
	uint64_t *d = x->shape[0].dims;
	char a[TN_TENSOR_TEXT_MAX];

	tn_yields(x, 0);
	if (x->shape[0].rank != 4 || b < 1 || b > 4096 || tn_dim_symbolic(d[1]) || tn_dim_symbolic(d[2]) ||
	    tn_dim_symbolic(d[3]) || d[2] % (uint64_t)b != 0 || d[3] % (uint64_t)b != 0) {
		return tn_misfit(x,
				 "blocksize %lld does not fit %s: needs (N,C,H,W), H and W multiples of it",
				 (long long)b, tn_tensor_text(x, 0, a, sizeof(a)));
	}
	d[1] *= (uint64_t)(b * b);
	d[2] /= (uint64_t)b;
	d[3] /= (uint64_t)b;
	return TERN_OK;
}

tern_status tn_infer_trilu(tn_infer *x)
{
	char a[TN_TENSOR_TEXT_MAX];

	if (tn_infer_in(x, 0)->shape.rank < 2)
		return tn_misfit(x, "needs matrices, not %s", tn_tensor_text(x, 0, a, sizeof(a)));
	return tn_yields(x, 0);
}

/* (X, lengths (batch)) */
tern_status tn_infer_reverse_sequence(tn_infer *x)
{
	int64_t b = tn_node_int(x->node, TN_ATTR_BATCH_AXIS, 1),
		t = tn_node_int(x->node, TN_ATTR_TIME_AXIS, 0);
	const tern_shape *in = &tn_infer_in(x, 0)->shape, *n = &tn_infer_in(x, 1)->shape;
	char a[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_want(x, 1, 1, TN_T_INDEX);

	if (st != TERN_OK)
		return st;
	if (in->rank < 2 || b + t != 1 || b < 0 || b > 1)
		return tn_misfit(x, "batch_axis and time_axis must be 0 and 1 of %s",
				 tn_tensor_text(x, 0, a, sizeof(a)));
	if (n->rank != 1 || n->dims[0] != in->dims[b])
		return tn_misfit(x, "needs one length for each of dim %lld, not %s", (long long)b,
				 tn_tensor_text(x, 1, a, sizeof(a)));
	return tn_yields(x, 0);
}

static tern_status check_resize_floats(const tn_infer *x, tn_attr_key key, uint32_t n)
{
	const tn_attr *a = tn_node_attr(x->node, key);

	if (a && a->u.floats.n != n)
		return tn_misfit(x, "'%s' must have %u entries, not %u", tn_attr_names[key], n,
				 a->u.floats.n);
	for (uint32_t i = 0; a && i < n && key == TN_ATTR_SCALES; i++) {
		if (!(a->u.floats.v[i] > 0.0))
			return tn_misfit(x, "scale %u is %g, not above 0", i, a->u.floats.v[i]);
	}
	return TERN_OK;
}

/* `shape` says the result's; `scales`, if given, only where its elements lie in the input. */
tern_status tn_infer_resize(tn_infer *x)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape;
	char a[TN_TENSOR_TEXT_MAX];
	tern_status st = tn_infer_shape_attr(x, &x->shape[0]);

	if (st == TERN_OK)
		st = tn_want(x, 0, 1, TN_T_NUM);
	if (st == TERN_OK)
		st = check_resize_floats(x, TN_ATTR_SCALES, in->rank);
	if (st == TERN_OK)
		st = check_resize_floats(x, TN_ATTR_ROI, 2 * in->rank);
	if (st != TERN_OK)
		return st;
	x->dtype[0] = tn_infer_in(x, 0)->dtype;
	for (uint32_t d = 0; d < in->rank; d++) {
		uint64_t to = x->shape[0].rank == in->rank ? x->shape[0].dims[d] : 0;

		if (x->shape[0].rank != in->rank || (in->dims[d] == 0) != (to == 0) ||
		    ((tn_dim_symbolic(in->dims[d]) || tn_dim_symbolic(to)) && to != in->dims[d]))
			return tn_misfit(x, "%s cannot be resized to that shape: see dim %u",
					 tn_tensor_text(x, 0, a, sizeof(a)), d);
	}
	return TERN_OK;
}

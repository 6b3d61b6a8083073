/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's ops by indices, and resizing. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include <math.h>

#include "base/fail.h"
#include "graph/onnx/import.h"

static tern_status with_attr(tn_ox *x, tn_op op, uint32_t n, const tn_attr *attrs, uint32_t n_attrs)
{
	uint32_t in[3], t;

	for (uint32_t i = 0; i < n; i++)
		TN_TRY(tn_ox_tensor(x, i, &in[i]));
	TN_TRY(tn_ox_add(x, op, in, n, attrs, n_attrs, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_gather(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0));

	return with_attr(x, TN_OP_GATHER, 2, &attr, 1);
}

tern_status tn_ox_op_gather_elements(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0));

	return with_attr(x, TN_OP_GATHER_ELEMENTS, 2, &attr, 1);
}

tern_status tn_ox_op_gather_nd(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_BATCH_DIMS, tn_ox_int(x, "batch_dims", 0));

	return with_attr(x, TN_OP_GATHER_ND, 2, &attr, 1);
}

static tern_status reduction_of(tn_ox *x, int64_t *reduction)
{
	static const char *const names[] = {[TN_SCATTER_NONE] = "none",
					    [TN_SCATTER_ADD] = "add",
					    [TN_SCATTER_MUL] = "mul",
					    [TN_SCATTER_MAX] = "max",
					    [TN_SCATTER_MIN] = "min"};

	for (*reduction = 0; *reduction < 5; (*reduction)++) {
		if (tn_ox_is(x, "reduction", "none", names[*reduction]))
			return TERN_OK;
	}
	return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not have this reduction");
}

tern_status tn_ox_op_scatter_elements(tn_ox *x)
{
	tn_attr attrs[] = {tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0)), {.key = TN_ATTR_REDUCTION}};

	TN_TRY(reduction_of(x, &attrs[1].u.i));
	return with_attr(x, TN_OP_SCATTER_ELEMENTS, 3, attrs, 2);
}

tern_status tn_ox_op_scatter_nd(tn_ox *x)
{
	tn_attr attr = {.key = TN_ATTR_REDUCTION};

	TN_TRY(reduction_of(x, &attr.u.i));
	return with_attr(x, TN_OP_SCATTER_ND, 3, &attr, 1);
}

tern_status tn_ox_op_one_hot(tn_ox *x)
{
	tn_attr attrs[] = {{.key = TN_ATTR_DEPTH},
			   tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", -1)),
			   {.key = TN_ATTR_OFF_VALUE},
			   {.key = TN_ATTR_ON_VALUE},
			   tn_attr_int(TN_ATTR_TO, tn_ox_in(x, 2)->dtype)};
	double depth, values[2];
	uint32_t t, n;

	TN_TRY(tn_ox_known_real(x, 1, 0, &depth));
	if (!(depth >= 0 && depth < 0x1p47))
		return tn_ox_fail(x, TERN_E_INVALID, "its depth is %g", depth);
	TN_TRY(tn_ox_known_reals(x, 2, values, 2, &n));
	if (n != 2)
		return tn_ox_fail(x, TERN_E_CORRUPT,
				  "it has %u values, not the one for off and the one for on", n);
	attrs[0].u.i = (int64_t)depth;
	attrs[2].u.f = values[0];
	attrs[3].u.f = values[1];
	TN_TRY(tn_ox_tensor(x, 0, &t));
	if (tn_ox_dtype_of(x, t) != TERN_I32)
		TN_TRY(tn_ox_cast(x, t, TERN_I64, &t));
	TN_TRY(tn_ox_add(x, TN_OP_ONE_HOT, &t, 1, attrs, 5, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

#define COMPRESS_MAX 4096u

/* With a known condition it is a Gather. */
tern_status tn_ox_op_compress(tn_ox *x)
{
	tn_attr attr = tn_attr_int(TN_ATTR_AXIS, tn_ox_int(x, "axis", 0));
	int64_t keep[COMPRESS_MAX];
	tern_shape shape = {.rank = 1}, flat = {.rank = 1};
	uint32_t in[2], t, n;

	TN_TRY(tn_ox_known_ints(x, 1, keep, COMPRESS_MAX, &n));
	for (uint32_t i = 0; i < n; i++) {
		if (keep[i])
			keep[shape.dims[0]++] = i;
	}
	TN_TRY(tn_ox_tensor(x, 0, &in[0]));
	if (!tn_ox_has(x, "axis")) {
		if (tn_shape_symbolic(tn_ox_shape_of(x, in[0])))
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "it flattens symbolic dims: give their sizes");
		TN_TRY(tn_shape_elements(tn_ox_shape_of(x, in[0]), &flat.dims[0]));
		TN_TRY(tn_ox_reshape(x, in[0], &flat, &in[0]));
	}
	TN_TRY(tn_ox_constant(x, TERN_I64, &shape, keep, &in[1]));
	TN_TRY(tn_ox_add(x, TN_OP_GATHER, in, 2, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

/* ---- Resize, Upsample ---- */

/* The number of a name; TERN_E_UNSUPPORTED if it is none of them. */
static tern_status one_of(tn_ox *x, const char *attr, const char *dflt, const char *const *names, int64_t *i)
{
	for (*i = 0; names[*i]; (*i)++) {
		if (tn_ox_is(x, attr, dflt, names[*i]))
			return TERN_OK;
	}
	return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not have this %s", attr);
}

typedef struct resize {
	tern_shape from;
	double scales[TERN_RANK_MAX], roi[2 * TERN_RANK_MAX];
	int64_t sizes[TERN_RANK_MAX];
	uint32_t n_scales, n_sizes, n_roi;
	int64_t mode, coords, nearest;
} resize;

/* Sizes from scales or scales from sizes. */
static tern_status settle(tn_ox *x, resize *r)
{
	if ((r->n_scales != r->from.rank || r->n_sizes) && (r->n_sizes != r->from.rank || r->n_scales))
		return tn_ox_fail(x, TERN_E_CORRUPT, "it has %u scales and %u sizes for rank %u", r->n_scales,
				  r->n_sizes, r->from.rank);
	for (uint32_t i = 0; i < r->from.rank; i++) {
		bool crops = r->coords == TN_COORDS_CROP_AND_RESIZE && r->n_roi == 2 * r->from.rank;
		double part = crops ? r->roi[i + r->from.rank] - r->roi[i] : 1.0;
		double size;

		if (tn_dim_symbolic(r->from.dims[i])) {
			if (r->n_sizes || r->scales[i] != 1.0)
				return tn_ox_fail(x, TERN_E_UNSUPPORTED,
						  "it resizes a symbolic dim: give its size");
			r->sizes[i] = (int64_t)r->from.dims[i];
			continue;
		}
		if (r->n_sizes) {
			if (r->from.dims[i] == 0 || r->sizes[i] < 0)
				return tn_ox_fail(x, TERN_E_SHAPE, "it cannot resize dim %u", i);
			r->scales[i] = (double)r->sizes[i] / (double)r->from.dims[i];
			continue;
		}
		size = floor((double)r->from.dims[i] * part * (double)(float)r->scales[i]);
		if (!(size >= 0 && size < 0x1p47))
			return tn_ox_fail(x, TERN_E_INVALID, "its scale %u is %g", i, r->scales[i]);
		r->sizes[i] = (int64_t)size;
	}
	return TERN_OK;
}

static void put_reals(tn_attr *a, tn_attr_key key, const double *v, uint32_t n)
{
	*a = (tn_attr){.key = key, .u.floats = {.n = n}};
	for (uint32_t i = 0; i < n; i++)
		a->u.floats.v[i] = v[i];
}

static tern_status build_resize(tn_ox *x, resize *r)
{
	tn_attr attrs[] = {
		tn_ox_attr_ints(TN_ATTR_SHAPE, r->sizes, r->from.rank),
		tn_attr_int(TN_ATTR_MODE, r->mode),
		tn_attr_int(TN_ATTR_COORDS, r->coords),
		tn_attr_int(TN_ATTR_NEAREST, r->nearest),
		tn_attr_float(TN_ATTR_CUBIC_COEFF, tn_ox_real(x, "cubic_coeff_a", -0.75)),
		tn_attr_int(TN_ATTR_EXCLUDE_OUTSIDE, tn_ox_int(x, "exclude_outside", 0) != 0),
		tn_attr_float(TN_ATTR_VALUE, tn_ox_real(x, "extrapolation_value", 0.0)),
		{.key = TN_ATTR_SCALES},
		{.key = TN_ATTR_ROI},
	};
	uint32_t t, n = 8;

	put_reals(&attrs[7], TN_ATTR_SCALES, r->scales, r->from.rank);
	if (r->coords == TN_COORDS_CROP_AND_RESIZE)
		put_reals(&attrs[n++], TN_ATTR_ROI, r->roi, r->n_roi);
	TN_TRY(tn_ox_tensor(x, 0, &t));
	TN_TRY(tn_ox_add(x, TN_OP_RESIZE, &t, 1, attrs, n, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

static const char *const modes[] = {"nearest", "linear", "cubic", NULL};

tern_status tn_ox_op_resize(tn_ox *x)
{
	static const char *const coords[] = {"half_pixel",
					     "asymmetric",
					     "align_corners",
					     "pytorch_half_pixel",
					     "tf_crop_and_resize",
					     "tf_half_pixel_for_nn",
					     NULL};
	static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil",
					      NULL};
	resize r = {.from = tn_ox_in(x, 0)->shape};

	TN_TRY(one_of(x, "mode", "nearest", modes, &r.mode));
	if (x->opset < 11) {
		r.coords = TN_COORDS_ASYMMETRIC;
		r.nearest = TN_NEAREST_FLOOR;
		TN_TRY(tn_ox_known_reals(x, 1, r.scales, TERN_RANK_MAX, &r.n_scales));
	} else {
		TN_TRY(one_of(x, "coordinate_transformation_mode", "half_pixel", coords, &r.coords));
		TN_TRY(one_of(x, "nearest_mode", "round_prefer_floor", nearest, &r.nearest));
		if (r.coords == TN_COORDS_CROP_AND_RESIZE && tn_ox_in(x, 1))
			TN_TRY(tn_ox_known_reals(x, 1, r.roi, 2 * TERN_RANK_MAX, &r.n_roi));
		if (tn_ox_in(x, 2))
			TN_TRY(tn_ox_known_reals(x, 2, r.scales, TERN_RANK_MAX, &r.n_scales));
		if (tn_ox_in(x, 3))
			TN_TRY(tn_ox_known_ints(x, 3, r.sizes, TERN_RANK_MAX, &r.n_sizes));
	}
	TN_TRY(settle(x, &r));
	return build_resize(x, &r);
}

tern_status tn_ox_op_upsample(tn_ox *x)
{
	resize r = {
		.from = tn_ox_in(x, 0)->shape, .coords = TN_COORDS_ASYMMETRIC, .nearest = TN_NEAREST_FLOOR};

	TN_TRY(one_of(x, "mode", "nearest", modes, &r.mode));
	if (x->opset < 9)
		TN_TRY(tn_ox_reals(x, "scales", r.scales, TERN_RANK_MAX, &r.n_scales));
	else
		TN_TRY(tn_ox_known_reals(x, 1, r.scales, TERN_RANK_MAX, &r.n_scales));
	TN_TRY(settle(x, &r));
	return build_resize(x, &r);
}

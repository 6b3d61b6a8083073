/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resize: to the nearest (any type; kern_map.c moves the elements), linear and cubic (f32) in any number of
 * dims. The latter two are separable: one pass for each dim that changes, from the last to the first, each
 * output a weighted sum of 2 or 4 inputs whose places and weights are computed once.
 *
 * Where an output lies in the input, and what the weights are, is as ONNX's operator Resize says (opset 11 to
 * 17); cubic weights: Keys, Cubic convolution interpolation for digital image processing, 1981.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_moves_test.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "graph/kern_map.h"

#define TAPS 4u

/* ---- where outputs lie ---- */

typedef struct axis_place {
	double scale, roi_start, roi_end, wide; /* wide: the output's size before it was rounded down */
	int64_t in, out, coords;
} axis_place;

static axis_place place_of(const tn_kern_desc *desc, uint32_t d)
{
	const tn_attr *scales = tn_node_attr(desc->node, TN_ATTR_SCALES);
	const tn_attr *roi = tn_node_attr(desc->node, TN_ATTR_ROI);
	uint32_t rank = desc->in[0].shape.rank;
	axis_place p = {.in = (int64_t)desc->in[0].shape.dims[d],
			.out = (int64_t)desc->out[0].shape.dims[d],
			.coords = tn_node_int(desc->node, TN_ATTR_COORDS, TN_COORDS_HALF_PIXEL)};

	p.scale = scales ? scales->u.floats.v[d] : (double)p.out / (double)p.in;
	p.wide = scales ? p.scale * (double)p.in : (double)p.out;
	p.roi_start = roi ? roi->u.floats.v[d] : 0.0;
	p.roi_end = roi ? roi->u.floats.v[rank + d] : 1.0;
	return p;
}

static double place_at(const axis_place *p, int64_t o)
{
	double x = (double)o, last = (double)p->in - 1.0;

	switch (p->coords) {
	case TN_COORDS_ASYMMETRIC:
		return x / p->scale;
	case TN_COORDS_ALIGN_CORNERS:
		return p->wide == 1.0 ? 0.0 : x * last / (p->wide - 1.0);
	case TN_COORDS_PYTORCH_HALF_PIXEL:
		return p->out > 1 ? (x + 0.5) / p->scale - 0.5 : 0.0;
	case TN_COORDS_HALF_PIXEL_FOR_NN:
		return (x + 0.5) / p->scale;
	case TN_COORDS_CROP_AND_RESIZE:
		if (p->wide == 1.0)
			return 0.5 * (p->roi_start + p->roi_end) * last;
		return p->roi_start * last + x * (p->roi_end - p->roi_start) * last / (p->wide - 1.0);
	default:
		return (x + 0.5) / p->scale - 0.5;
	}
}

static bool is_outside(const axis_place *p, double x)
{
	return p->coords == TN_COORDS_CROP_AND_RESIZE && (x < 0 || x > (double)p->in - 1.0);
}

/* ---- nearest ---- */

/* To 0 .. last; what is not a number (a region of interest without end) to 0. */
static double inside(double at, double last)
{
	return at > 0 ? at < last ? at : last : 0;
}

static double nearest(double x, int64_t mode)
{
	switch (mode) {
	case TN_NEAREST_FLOOR:
		return floor(x);
	case TN_NEAREST_CEIL:
		return ceil(x);
	case TN_NEAREST_ROUND_PREFER_CEIL:
		return floor(x + 0.5);
	default:
		return ceil(x - 0.5);
	}
}

static void nearest_map(const void *arg, uint32_t d, int64_t *map)
{
	const tn_kern_desc *desc = arg;
	int64_t mode = tn_node_int(desc->node, TN_ATTR_NEAREST, TN_NEAREST_ROUND_PREFER_FLOOR);
	axis_place p = place_of(desc, d);

	for (int64_t o = 0; o < p.out; o++) {
		double x = place_at(&p, o), n = nearest(x, mode), last = (double)p.in - 1.0;

		map[o] = is_outside(&p, x) ? TN_MAP_NONE : (int64_t)inside(n, last);
	}
}

/* ---- linear and cubic ---- */

typedef struct tap {
	uint64_t at[TAPS];
	float weight[TAPS];
	bool outside;
} tap;

typedef struct pass {
	uint64_t outer, in, out, inner;
	tap *taps;
} pass;

typedef struct resize_kern {
	tn_kern base;
	uint32_t n_passes, n_taps;
	pass passes[TERN_RANK_MAX];
	uint64_t buffer; /* floats of each of two buffers between passes */
	uint64_t n;      /* elements, if no dim changes */
	float value;     /* of what lies outside */
} resize_kern;

static void weights_of(double ratio, double a, uint32_t n_taps, double *w)
{
	double r = ratio, s = 1.0 - ratio;

	if (n_taps == 2) {
		w[0] = s;
		w[1] = r;
		return;
	}
	w[0] = ((a * (r + 1.0) - 5.0 * a) * (r + 1.0) + 8.0 * a) * (r + 1.0) - 4.0 * a;
	w[1] = ((a + 2.0) * r - (a + 3.0)) * r * r + 1.0;
	w[2] = ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0;
	w[3] = ((a * (s + 1.0) - 5.0 * a) * (s + 1.0) + 8.0 * a) * (s + 1.0) - 4.0 * a;
}

static void make_tap(const tn_node *node, const axis_place *p, int64_t o, uint32_t n_taps, tap *t)
{
	bool exclude = tn_node_int(node, TN_ATTR_EXCLUDE_OUTSIDE, 0) != 0;
	double x = place_at(p, o), low = floor(x), w[TAPS], sum = 0.0;

	t->outside = is_outside(p, x);
	weights_of(x - low, tn_node_float(node, TN_ATTR_CUBIC_COEFF, -0.75), n_taps, w);
	for (uint32_t i = 0; i < n_taps; i++) {
		double at = low + (double)i - (n_taps == 4 ? 1.0 : 0.0), last = (double)p->in - 1.0;

		if (exclude && (at < 0 || at > last))
			w[i] = 0.0;
		sum += w[i];
		t->at[i] = (uint64_t)inside(at, last);
	}
	for (uint32_t i = 0; i < n_taps; i++)
		t->weight[i] = (float)(exclude && sum != 0.0 ? w[i] / sum : w[i]);
}

/* Every output of the pass: a row of `inner` floats that is a sum of rows. */
static void run_pass(const resize_kern *k, const pass *p, const float *from, float *to)
{
	for (uint64_t o = 0; o < p->outer * p->out; o++) {
		const tap *t = &p->taps[o % p->out];
		const float *slab = from + o / p->out * p->in * p->inner;
		const float *a = slab + t->at[0] * p->inner, *b = slab + t->at[1] * p->inner;
		const float *c = slab + t->at[2] * p->inner, *d = slab + t->at[3] * p->inner;
		float *y = to + o * p->inner, w0 = t->weight[0], w1 = t->weight[1], w2 = t->weight[2],
		      w3 = t->weight[3];

		for (uint64_t j = 0; j < p->inner && t->outside; j++)
			y[j] = k->value;
		if (t->outside)
			continue;
		if (k->n_taps == 2) {
			TN_IVDEP
			for (uint64_t j = 0; j < p->inner; j++)
				y[j] = a[j] * w0 + b[j] * w1;
		} else {
			TN_IVDEP
			for (uint64_t j = 0; j < p->inner; j++)
				y[j] = a[j] * w0 + b[j] * w1 + c[j] * w2 + d[j] * w3;
		}
	}
}

static tern_status run_resize(tn_kern *kern, const tn_kern_io *io)
{
	const resize_kern *k = (const resize_kern *)kern;
	const float *from = io->in[0];

	if (k->n_passes == 0)
		memmove(io->out[0], io->in[0], k->n * sizeof(float));
	for (uint32_t i = 0; i < k->n_passes; i++) {
		float *to = i + 1 == k->n_passes ? io->out[0] : (float *)io->scratch + (i % 2) * k->buffer;

		run_pass(k, &k->passes[i], from, to);
		from = to;
	}
	return TERN_OK;
}

static void resize_destroy(tn_kern *kern)
{
	resize_kern *k = (resize_kern *)kern;

	for (uint32_t i = 0; i < k->n_passes; i++)
		free(k->passes[i].taps);
	free(k);
}

/* `dims` are those before the pass, and after it the output's in dim d. */
static bool add_pass(resize_kern *k, const tn_kern_desc *desc, uint32_t d, uint64_t *dims, uint32_t rank)
{
	axis_place place = place_of(desc, d);
	pass *p = &k->passes[k->n_passes];

	*p = (pass){.outer = tn_dims_product(dims, d),
		    .in = (uint64_t)place.in,
		    .out = (uint64_t)place.out,
		    .inner = tn_dims_product(dims + d + 1, rank - d - 1)};
	p->taps = calloc(p->out + 1, sizeof(*p->taps));
	if (!p->taps)
		return false;
	for (int64_t o = 0; o < place.out && place.in > 0; o++)
		make_tap(desc->node, &place, o, k->n_taps, &p->taps[o]);
	k->n_passes++;
	dims[d] = p->out;
	return true;
}

static bool changes(const tn_kern_desc *desc, uint32_t d)
{
	axis_place p = place_of(desc, d);

	for (int64_t o = 0; o < p.out && p.out == p.in; o++) {
		if (place_at(&p, o) != (double)o)
			return true;
	}
	return p.out != p.in;
}

static tern_status make_passes(resize_kern *k, const tn_kern_desc *desc)
{
	const tern_shape *in = &desc->in[0].shape;
	uint64_t dims[TERN_RANK_MAX], n = 0;

	memcpy(dims, in->dims, sizeof(dims));
	for (uint32_t d = in->rank; d-- > 0;) {
		if (!changes(desc, d))
			continue;
		if (k->n_passes > 0)
			n = tn_dims_product(dims, in->rank) > n ? tn_dims_product(dims, in->rank) : n;
		if (!add_pass(k, desc, d, dims, in->rank))
			return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	}
	k->buffer = (n + 15) / 16 * 16;
	k->base.scratch_bytes = 2 * k->buffer * sizeof(float);
	return TERN_OK;
}

tern_status tn_kern_resize_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	int64_t mode = tn_node_int(desc->node, TN_ATTR_MODE, TN_RESIZE_NEAREST);
	double value = tn_node_float(desc->node, TN_ATTR_VALUE, 0.0);
	resize_kern *k;
	tern_status st;

	(void)ctx;
	if (mode == TN_RESIZE_NEAREST)
		return tn_map_kern_create(desc, nearest_map, desc, value, made);
	if (desc->in[0].dtype != TERN_F32)
		return tn_kern_unsupported(desc);
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_resize, .destroy = resize_destroy};
	k->n_taps = mode == TN_RESIZE_LINEAR ? 2 : 4;
	k->value = (float)value;
	k->n = tn_operand_elements(&desc->in[0]);
	st = make_passes(k, desc);
	if (st != TERN_OK) {
		resize_destroy(&k->base);
		return st;
	}
	*made = &k->base;
	return TERN_OK;
}

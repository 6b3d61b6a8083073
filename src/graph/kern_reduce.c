/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions over axes, ExpandLike (the reverse of a sum) and SumTo (the reverse of a broadcast).
 *
 * The large operand is read in memory order, whatever the axes: as groups of adjacent dims that are either all
 * reduced or all kept, (2,3,5) over axes 0 and 1 being the groups {6 reduced, 5 kept}. A run of the last
 * group, if it is kept, is folded into as many results side by side; if it is reduced, into LANES partial
 * results that are folded at its end. So the order of every sum depends on shapes and axes alone.
 *
 * Whole numbers wrap. Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern_math.h"
#include "graph/kern_walk.h"

#define LANES 16u

/* The shape of a reduction: see above. */
typedef struct groups {
	uint32_t n;
	uint64_t size[TERN_RANK_MAX];
	bool reduced[TERN_RANK_MAX];
	uint64_t n_large, n_small, n_reduced; /* n_large = n_small * n_reduced */
} groups;

static void make_groups(groups *g, const tern_shape *large, uint32_t mask)
{
	*g = (groups){.n_small = 1, .n_reduced = 1};
	for (uint32_t i = 0; i < large->rank; i++) {
		bool r = (mask >> i & 1) != 0;

		if (r)
			g->n_reduced *= large->dims[i];
		else
			g->n_small *= large->dims[i];
		if (large->dims[i] == 1)
			continue;
		if (g->n && g->reduced[g->n - 1] == r) {
			g->size[g->n - 1] *= large->dims[i];
		} else {
			g->reduced[g->n] = r;
			g->size[g->n++] = large->dims[i];
		}
	}
	if (g->n == 0) {
		g->size[0] = 1;
		g->n = 1;
	}
	g->n_large = g->n_small * g->n_reduced;
}

/* Run r of the last group starts at element r * size of the large operand and here in the small one. */
static uint64_t small_at(const groups *g, uint64_t run)
{
	uint64_t at = 0, stride = g->reduced[g->n - 1] ? 1 : g->size[g->n - 1];

	for (uint32_t i = g->n - 1; i-- > 0;) {
		if (!g->reduced[i]) {
			at += run % g->size[i] * stride;
			stride *= g->size[i];
		}
		run /= g->size[i];
	}
	return at;
}

/* Folds n elements of x into *acc, or each into its own acc. `shift` is subtracted first by sums of exponents. */
typedef void (*fold_fn)(void *acc, const void *x, uint64_t n, const void *shift);
/* The results of a reduction over `count` elements each become what the op yields. */
typedef void (*finish_fn)(void *acc, uint64_t n, uint64_t count, const void *shift);

typedef struct fold {
	fold_fn into_one, into_each;
	finish_fn finish; /* may be NULL */
	double start;     /* of the results before anything is folded */
} fold;

typedef struct reduce_kern {
	tn_kern base;
	groups g;
	fold fold, shift; /* shift: the maximum that is found first, for sums of exponents */
	void (*fill)(void *to, uint64_t n, double x);
	uint64_t size;
	float factor; /* ExpandLike */
} reduce_kern;

#define FOLD(name, T, STEP, JOIN, first)                                                    \
	static void name##_one(void *acc, const void *from, uint64_t n, const void *shift)  \
	{                                                                                   \
		const T *p = from;                                                          \
		T lane[LANES], a = *(T *)acc, s = shift ? *(const T *)shift : 0;            \
		uint64_t i = 0;                                                             \
                                                                                            \
		(void)s;                                                                    \
		if (n >= LANES) {                                                           \
			for (uint32_t l = 0; l < LANES; l++)                                \
				lane[l] = (T)(first);                                       \
			for (; i + LANES <= n; i += LANES) {                                \
				for (uint32_t l = 0; l < LANES; l++) {                      \
					T x = p[i + l], y = lane[l];                        \
					lane[l] = (T)(STEP);                                \
				}                                                           \
			}                                                                   \
			for (uint32_t l = 0; l < LANES; l++) {                              \
				T x = lane[l], y = a;                                       \
				a = (T)(JOIN);                                              \
			}                                                                   \
		}                                                                           \
		for (; i < n; i++) {                                                        \
			T x = p[i], y = a;                                                  \
			a = (T)(STEP);                                                      \
		}                                                                           \
		*(T *)acc = a;                                                              \
	}                                                                                   \
	static void name##_each(void *acc, const void *from, uint64_t n, const void *shift) \
	{                                                                                   \
		const T *p = from, *sh = shift;                                             \
		T *to = acc;                                                                \
                                                                                            \
		TN_IVDEP                                                                    \
		for (uint64_t i = 0; i < n; i++) {                                          \
			T x = p[i], y = to[i], s = sh ? sh[i] : 0;                          \
			(void)s;                                                            \
			to[i] = (T)(STEP);                                                  \
		}                                                                           \
	}
#define FINISH(name, T, expr)                                                      \
	static void name(void *acc, uint64_t n, uint64_t count, const void *shift) \
	{                                                                          \
		T *to = acc, c = (T)count;                                         \
		const T *sh = shift;                                               \
                                                                                   \
		(void)c;                                                           \
		for (uint64_t i = 0; i < n; i++) {                                 \
			T x = to[i], s = sh ? sh[i] : 0;                           \
			(void)s;                                                   \
			to[i] = (T)(expr);                                         \
		}                                                                  \
	}
#define FILL(name, T)                                     \
	static void name(void *acc, uint64_t n, double x) \
	{                                                 \
		for (uint64_t i = 0; i < n; i++)          \
			((T *)acc)[i] = (T)x;             \
	}

/* A sum of exponents whose largest is infinite or of nothing is not shifted. */
#define REAL(suf, T, EXP, LOG, SQRT, FABS, BIG)                                         \
	FOLD(sum_##suf, T, y + x, y + x, 0)                                             \
	FOLD(abs_##suf, T, y + FABS(x), y + x, 0)                                       \
	FOLD(square_##suf, T, y + x * x, y + x, 0)                                      \
	FOLD(product_##suf, T, y *x, y *x, 1)                                           \
	FOLD(max_##suf, T, x > y || x != x ? x : y, x > y || x != x ? x : y, -INFINITY) \
	FOLD(min_##suf, T, x < y || x != x ? x : y, x < y || x != x ? x : y, INFINITY)  \
	FOLD(exp_##suf, T, y + EXP(x - (FABS(s) <= BIG ? s : 0)), y + x, 0)             \
	FINISH(mean_##suf, T, c > 0 ? x * ((T)1 / c) : x / c)                           \
	FINISH(root_##suf, T, SQRT(x))                                                  \
	FINISH(log_##suf, T, LOG(x))                                                    \
	FINISH(log_exp_##suf, T, LOG(x) + (FABS(s) <= BIG ? s : 0))                     \
	FILL(fill_##suf, T)
REAL(f32, float, tn_expf, logf, sqrtf, fabsf, FLT_MAX)
REAL(f64, double, exp, log, sqrt, fabs, DBL_MAX)

#define WHOLE(suf, T, U, LEAST, MOST)                                           \
	FOLD(sum_##suf, T, (U)y + (U)x, (U)y + (U)x, 0)                         \
	FOLD(abs_##suf, T, (U)y + (x < 1 ? (U)0 - (U)x : (U)x), (U)y + (U)x, 0) \
	FOLD(square_##suf, T, (U)y + (uint64_t)(U)x * (U)x, (U)y + (U)x, 0)     \
	FOLD(product_##suf, T, (uint64_t)(U)y *(U)x, (uint64_t)(U)y *(U)x, 1)   \
	FOLD(max_##suf, T, x > y ? x : y, x > y ? x : y, LEAST)                 \
	FOLD(min_##suf, T, x < y ? x : y, x < y ? x : y, MOST)                  \
	FINISH(mean_##suf, T, c ? x / c : 0)                                    \
	FINISH(root_##suf, T, sqrt((double)x))                                  \
	FILL(fill_##suf, T)
WHOLE(i8, int8_t, uint8_t, INT8_MIN, INT8_MAX)
WHOLE(u8, uint8_t, uint8_t, 0, UINT8_MAX)
WHOLE(i32, int32_t, uint32_t, INT32_MIN, INT32_MAX)
WHOLE(i64, int64_t, uint64_t, INT64_MIN, INT64_MAX)
WHOLE(u64, uint64_t, uint64_t, 0, UINT64_MAX)

/* ---- which fold ---- */

#define F(stem, s, fin, first) ((fold){stem##_##s##_one, stem##_##s##_each, fin, first})
#define CHOOSE(s, MAX_START, MIN_START)                  \
	static bool choose_##s(tn_op op, fold *f)        \
	{                                                \
		switch (op) {                            \
		case TN_OP_REDUCE_SUM:                   \
		case TN_OP_SUM_TO:                       \
			*f = F(sum, s, NULL, 0);         \
			return true;                     \
		case TN_OP_REDUCE_MEAN:                  \
			*f = F(sum, s, mean_##s, 0);     \
			return true;                     \
		case TN_OP_REDUCE_L1:                    \
			*f = F(abs, s, NULL, 0);         \
			return true;                     \
		case TN_OP_REDUCE_L2:                    \
			*f = F(square, s, root_##s, 0);  \
			return true;                     \
		case TN_OP_REDUCE_SUM_SQUARE:            \
			*f = F(square, s, NULL, 0);      \
			return true;                     \
		case TN_OP_REDUCE_PROD:                  \
			*f = F(product, s, NULL, 1);     \
			return true;                     \
		case TN_OP_REDUCE_MAX:                   \
			*f = F(max, s, NULL, MAX_START); \
			return true;                     \
		case TN_OP_REDUCE_MIN:                   \
			*f = F(min, s, NULL, MIN_START); \
			return true;                     \
		default:                                 \
			return false;                    \
		}                                        \
	}
CHOOSE(f32, -INFINITY, INFINITY)
CHOOSE(f64, -INFINITY, INFINITY)
CHOOSE(i8, INT8_MIN, INT8_MAX)
CHOOSE(u8, 0, UINT8_MAX)
CHOOSE(i32, INT32_MIN, INT32_MAX)
CHOOSE(i64, -0x1p63, 0x1p62) /* the start is replaced below: not every whole number is a double */
CHOOSE(u64, 0, 0x1p62)

static void fill_i64_ends(void *to, uint64_t n, double x)
{
	for (uint64_t i = 0; i < n; i++)
		((int64_t *)to)[i] = x == 0x1p62 ? INT64_MAX : (int64_t)x;
}

static void fill_u64_ends(void *to, uint64_t n, double x)
{
	for (uint64_t i = 0; i < n; i++)
		((uint64_t *)to)[i] = x == 0x1p62 ? UINT64_MAX : (uint64_t)x;
}

static bool choose_real(reduce_kern *k, tn_op op, tern_dtype t)
{
	bool f32 = t == TERN_F32;

	k->fill = f32 ? fill_f32 : fill_f64;
	if (op == TN_OP_REDUCE_LOG_SUM) {
		k->fold = f32 ? F(sum, f32, log_f32, 0) : F(sum, f64, log_f64, 0);
		return true;
	}
	if (op == TN_OP_REDUCE_LOG_SUM_EXP) {
		k->fold = f32 ? F(exp, f32, log_exp_f32, 0) : F(exp, f64, log_exp_f64, 0);
		k->shift = f32 ? F(max, f32, NULL, -INFINITY) : F(max, f64, NULL, -INFINITY);
		return true;
	}
	return f32 ? choose_f32(op, &k->fold) : choose_f64(op, &k->fold);
}

static bool choose(reduce_kern *k, tn_op op, tern_dtype t)
{
	switch (t) {
	case TERN_F32:
	case TERN_F64:
		return choose_real(k, op, t);
	case TERN_I8:
		k->fill = fill_i8;
		return choose_i8(op, &k->fold);
	case TERN_U8:
		k->fill = fill_u8;
		return choose_u8(op, &k->fold);
	case TERN_I32:
		k->fill = fill_i32;
		return choose_i32(op, &k->fold);
	case TERN_I64:
		k->fill = op == TN_OP_REDUCE_MIN ? fill_i64_ends : fill_i64;
		return choose_i64(op, &k->fold);
	case TERN_U64:
		k->fill = op == TN_OP_REDUCE_MIN ? fill_u64_ends : fill_u64;
		return choose_u64(op, &k->fold);
	default:
		return false;
	}
}

/* ---- running ---- */

static void fold_all(const reduce_kern *k, const fold *f, void *small, const void *large, const void *shift)
{
	uint64_t last = k->g.size[k->g.n - 1];
	fold_fn fn = k->g.reduced[k->g.n - 1] ? f->into_one : f->into_each;

	k->fill(small, k->g.n_small, f->start);
	for (uint64_t r = 0; r * last < k->g.n_large; r++) {
		uint64_t at = small_at(&k->g, r) * k->size;

		fn((char *)small + at, (const char *)large + r * last * k->size, last,
		   shift ? (const char *)shift + at : NULL);
	}
}

static tern_status run_reduce(tn_kern *kern, const tn_kern_io *io)
{
	const reduce_kern *k = (const reduce_kern *)kern;
	void *shift = NULL;

	if (k->shift.into_one) {
		shift = io->scratch;
		fold_all(k, &k->shift, shift, io->in[0], NULL);
	}
	fold_all(k, &k->fold, io->out[0], io->in[0], shift);
	if (k->fold.finish)
		k->fold.finish(io->out[0], k->g.n_small, k->g.n_reduced, shift);
	return TERN_OK;
}

static tern_status run_expand(tn_kern *kern, const tn_kern_io *io)
{
	const reduce_kern *k = (const reduce_kern *)kern;
	uint64_t last = k->g.size[k->g.n - 1];
	bool reduced = k->g.reduced[k->g.n - 1];

	for (uint64_t r = 0; r * last < k->g.n_large; r++) {
		const float *s = (const float *)io->in[0] + small_at(&k->g, r);
		float *to = (float *)io->out[0] + r * last;

		if (reduced) {
			float x = *s * k->factor;

			for (uint64_t j = 0; j < last; j++)
				to[j] = x;
		} else {
			TN_IVDEP
			for (uint64_t j = 0; j < last; j++)
				to[j] = s[j] * k->factor;
		}
	}
	return TERN_OK;
}

/* ---- making ---- */

static void reduce_destroy(tn_kern *kern)
{
	free(kern);
}

/* The dims over which a broadcast of `small` to `large` repeats. */
static uint32_t broadcast_mask(const tern_shape *large, const tern_shape *small)
{
	uint32_t mask = 0, lead = large->rank - small->rank;

	for (uint32_t i = 0; i < large->rank; i++) {
		if (i < lead || small->dims[i - lead] != large->dims[i])
			mask |= 1u << i;
	}
	return mask;
}

static uint32_t mask_of(const tn_kern_desc *desc, const tern_shape *large)
{
	uint32_t mask = 0;
	tern_status st;

	if (desc->node->op == TN_OP_SUM_TO)
		return broadcast_mask(large, &desc->out[0].shape);
	st = tn_reduce_mask(desc->node, large->rank, &mask);
	TN_ASSERT(st == TERN_OK); /* inferred with the same axes */
	(void)st;
	return mask;
}

tern_status tn_kern_reduce_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	bool expand = desc->node->op == TN_OP_EXPAND_LIKE;
	const tern_shape *large = expand ? &desc->out[0].shape : &desc->in[0].shape;
	reduce_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = expand ? run_expand : run_reduce, .destroy = reduce_destroy};
	k->size = tn_operand_size(&desc->in[0]);
	make_groups(&k->g, large, mask_of(desc, large));
	k->factor = 1.0f;
	if (expand && tn_node_int(desc->node, TN_ATTR_MEAN, 0) != 0 && k->g.n_reduced)
		k->factor = 1.0f / (float)k->g.n_reduced;
	if (!expand && !choose(k, desc->node->op, desc->in[0].dtype)) {
		free(k);
		return tn_kern_unsupported(desc);
	}
	if (k->shift.into_one)
		k->base.scratch_bytes = k->g.n_small * k->size;
	*made = &k->base;
	return TERN_OK;
}

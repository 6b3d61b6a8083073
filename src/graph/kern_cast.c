/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cast between all types, and Dropout.
 *
 *   float to whole   towards 0; beyond the range its end; NaN is 0
 *   whole to whole   the low bits
 *   to bool          1 unless 0 (NaN is 1)
 *   f64 to f16, bf16 by way of f32
 *
 * Compiled with -O3. Thread story: see kern.h. Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/half.h"
#include "graph/kern_walk.h"

/* By blocks through one of two wide forms: double for floats, 64-bit integers for the rest. */
#define BLOCK 512u

typedef struct cast_kern {
	tn_kern base;
	uint64_t n;
	tern_dtype from, to;
} cast_kern;

static bool is_real(tern_dtype t)
{
	return t == TERN_F32 || t == TERN_F64 || t == TERN_F16 || t == TERN_BF16;
}

#define EACH(T, X, expr)                           \
	do {                                       \
		const T *v = from;                 \
		for (uint64_t i = 0; i < n; i++) { \
			T x = v[i];                \
			to[i] = (X)(expr);         \
		}                                  \
	} while (0)

static void load_real(double *to, const void *from, uint64_t n, tern_dtype t)
{
	switch (t) {
	case TERN_F32:
		EACH(float, double, x);
		break;
	case TERN_F16:
		EACH(uint16_t, double, tn_f16_to_f32(x));
		break;
	case TERN_BF16:
		EACH(uint16_t, double, tn_bf16_to_f32(x));
		break;
	default:
		EACH(double, double, x);
		break;
	}
}

static void load_whole(int64_t *to, const void *from, uint64_t n, tern_dtype t)
{
	switch (t) {
	case TERN_I8:
		EACH(int8_t, int64_t, x);
		break;
	case TERN_I32:
		EACH(int32_t, int64_t, x);
		break;
	case TERN_BOOL:
		EACH(uint8_t, int64_t, x != 0);
		break;
	case TERN_U8:
		EACH(uint8_t, int64_t, x);
		break;
	default:
		EACH(int64_t, int64_t, x);
		break;
	}
}

#define PUT(T, expr)                             \
	do {                                     \
		T *r = to;                       \
		for (uint64_t i = 0; i < n; i++) \
			r[i] = (T)(expr);        \
	} while (0)

static int64_t clamp_whole(double x, double lo, double hi)
{
	return x <= lo ? (int64_t)lo : x >= hi ? (int64_t)hi : x != x ? 0 : (int64_t)x;
}

static int64_t whole64(double x)
{
	return x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : x != x ? 0 : (int64_t)x;
}

static uint64_t unsigned64(double x)
{
	return x >= 0x1p64 ? UINT64_MAX : !(x > 0) ? 0 : (uint64_t)x;
}

static void store_real(void *to, const double *x, uint64_t n, tern_dtype t)
{
	switch (t) {
	case TERN_F32:
		PUT(float, x[i]);
		break;
	case TERN_F64:
		PUT(double, x[i]);
		break;
	case TERN_F16:
		PUT(uint16_t, tn_f16_from_f32((float)x[i]));
		break;
	case TERN_BF16:
		PUT(uint16_t, tn_bf16_from_f32((float)x[i]));
		break;
	case TERN_I8:
		PUT(int8_t, clamp_whole(x[i], INT8_MIN, INT8_MAX));
		break;
	case TERN_U8:
		PUT(uint8_t, clamp_whole(x[i], 0, UINT8_MAX));
		break;
	case TERN_I32:
		PUT(int32_t, clamp_whole(x[i], INT32_MIN, INT32_MAX));
		break;
	case TERN_I64:
		PUT(int64_t, whole64(x[i]));
		break;
	case TERN_U64:
		PUT(uint64_t, unsigned64(x[i]));
		break;
	default:
		PUT(uint8_t, x[i] != 0);
		break;
	}
}

/* An unsigned 64-bit number is held in the bits of a signed one. */
static void store_whole(void *to, const int64_t *x, uint64_t n, tern_dtype t, bool is_unsigned)
{
	switch (t) {
	case TERN_F32:
		PUT(float, is_unsigned ? (float)(uint64_t)x[i] : (float)x[i]);
		break;
	case TERN_F64:
		PUT(double, is_unsigned ? (double)(uint64_t)x[i] : (double)x[i]);
		break;
	case TERN_F16:
		PUT(uint16_t, tn_f16_from_f32(is_unsigned ? (float)(uint64_t)x[i] : (float)x[i]));
		break;
	case TERN_BF16:
		PUT(uint16_t, tn_bf16_from_f32(is_unsigned ? (float)(uint64_t)x[i] : (float)x[i]));
		break;
	case TERN_I8:
	case TERN_U8:
		PUT(uint8_t, x[i]);
		break;
	case TERN_I32:
		PUT(uint32_t, x[i]);
		break;
	case TERN_BOOL:
		PUT(uint8_t, x[i] != 0);
		break;
	default:
		PUT(int64_t, x[i]);
		break;
	}
}

static tern_status run_cast(tn_kern *kern, const tn_kern_io *io)
{
	const cast_kern *k = (const cast_kern *)kern;
	uint64_t from_size = tern_dtype_bytes(k->from), to_size = tern_dtype_bytes(k->to);
	union {
		double real[BLOCK];
		int64_t whole[BLOCK];
	} b;

	if (k->from == k->to) {
		memmove(io->out[0], io->in[0], k->n * from_size);
		return TERN_OK;
	}
	for (uint64_t at = 0; at < k->n; at += BLOCK) {
		uint64_t m = k->n - at < BLOCK ? k->n - at : BLOCK;
		const char *from = (const char *)io->in[0] + at * from_size;
		char *to = (char *)io->out[0] + at * to_size;

		if (is_real(k->from)) {
			load_real(b.real, from, m, k->from);
			store_real(to, b.real, m, k->to);
		} else {
			load_whole(b.whole, from, m, k->from);
			store_whole(to, b.whole, m, k->to, k->from == TERN_U64);
		}
	}
	return TERN_OK;
}

static void cast_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_cast_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	cast_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_cast, .destroy = cast_destroy};
	k->n = tn_operand_elements(&desc->in[0]);
	k->from = desc->in[0].dtype;
	k->to = desc->out[0].dtype;
	*made = &k->base;
	return TERN_OK;
}

/* ---- Dropout ---- */

typedef struct dropout_kern {
	tn_kern base;
	uint64_t n, seed;
	uint32_t below; /* an element is dropped if its 32 random bits are below this */
	float scale;
} dropout_kern;

/* 64 random bits of a number: the finaliser of SplitMix64 (Steele, Lea and Flood 2014). */
static inline uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Which elements go depends on the seed, the node, its device, the step and the place, on nothing else. */
static tern_status run_dropout(tn_kern *kern, const tn_kern_io *io)
{
	const dropout_kern *k = (const dropout_kern *)kern;
	uint64_t base = mix(k->seed + io->step * UINT64_C(0x9e3779b97f4a7c15));
	const float *x = io->in[0];
	float *y = io->out[0];
	uint8_t *mask = io->out[1];

	for (uint64_t i = 0; i < k->n; i++) {
		uint8_t keep = (uint32_t)mix(base + i) >= k->below;

		mask[i] = keep;
		y[i] = keep ? x[i] * k->scale : 0.0f;
	}
	return TERN_OK;
}

static tern_status run_dropout_grad(tn_kern *kern, const tn_kern_io *io)
{
	const dropout_kern *k = (const dropout_kern *)kern;
	const float *dy = io->in[0];
	const uint8_t *mask = io->in[1];
	float *dx = io->out[0];

	TN_IVDEP
	for (uint64_t i = 0; i < k->n; i++) {
		float d = dy[i] * k->scale;

		dx[i] = mask[i] ? d : 0.0f;
	}
	return TERN_OK;
}

tern_status tn_kern_dropout_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	double ratio = tn_node_float(desc->node, TN_ATTR_RATIO, 0.5);
	dropout_kern *k = calloc(1, sizeof(*k));

	(void)ctx;
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = desc->node->op == TN_OP_DROPOUT ? run_dropout : run_dropout_grad,
			    .destroy = cast_destroy};
	k->n = tn_operand_elements(&desc->in[0]);
	k->below = (uint32_t)(ratio * 0x1p32);
	k->scale = (float)(1.0 / (1.0 - ratio));
	k->seed =
		mix((uint64_t)tn_node_int(desc->node, TN_ATTR_SEED, 0) + (uint64_t)(desc->node->device + 1));
	for (const char *c = desc->node->name; *c; c++)
		k->seed = mix(k->seed ^ (uint8_t)*c);
	*made = &k->base;
	return TERN_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two elements to one, with NumPy's broadcasting: arithmetic, comparisons, logic. One inner loop for each op
 * and type; the walk says where the runs are. f16 and bf16 go through f32 by blocks.
 *
 * Whole numbers wrap. Dividing a whole number by 0 fails the run (TERN_E_INVALID).
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/half.h"
#include "graph/kern_walk.h"

/* n results; a step of 0 repeats one element. Returns false if a whole number was divided by 0. */
typedef bool (*binary_fn)(void *out, const void *a, const void *b, uint64_t n, int64_t as, int64_t bs);

typedef struct binary_kern {
	tn_kern base;
	const char *name;
	tn_walk walk;
	binary_fn fn;
	tern_dtype in, out;
	uint64_t in_size, out_size;
	tern_dtype exponent; /* Pow */
} binary_kern;

/* The three cases that occur are written out, so that each is one vector loop. */
#define LOOP(name, T, R, expr)                                                                        \
	static bool name(void *out, const void *a, const void *b, uint64_t n, int64_t as, int64_t bs) \
	{                                                                                             \
		R *r = out;                                                                           \
		const T *p = a, *q = b;                                                               \
                                                                                                      \
		if (as == 1 && bs == 1) {                                                             \
			TN_IVDEP                                                                      \
			for (uint64_t i = 0; i < n; i++) {                                            \
				T x = p[i], y = q[i];                                                 \
				r[i] = (R)(expr);                                                     \
			}                                                                             \
		} else if (as == 1) {                                                                 \
			T y = *q;                                                                     \
			TN_IVDEP                                                                      \
			for (uint64_t i = 0; i < n; i++) {                                            \
				T x = p[i];                                                           \
				r[i] = (R)(expr);                                                     \
			}                                                                             \
		} else {                                                                              \
			T x = *p;                                                                     \
			TN_IVDEP                                                                      \
			for (uint64_t i = 0; i < n; i++) {                                            \
				T y = q[(int64_t)i * bs];                                             \
				r[i] = (R)(expr);                                                     \
			}                                                                             \
		}                                                                                     \
		return true;                                                                          \
	}

/* Min and Max hand a NaN on. */
#define FLOAT_LOOPS(s, T, CMOD, CPOW)                \
	LOOP(add_##s, T, T, x + y)                   \
	LOOP(sub_##s, T, T, x - y)                   \
	LOOP(mul_##s, T, T, x *y)                    \
	LOOP(div_##s, T, T, x / y)                   \
	LOOP(min_##s, T, T, x < y || x != x ? x : y) \
	LOOP(max_##s, T, T, x > y || x != x ? x : y) \
	LOOP(fmod_##s, T, T, CMOD(x, y))             \
	LOOP(mod_##s, T, T, floor_mod_##s(x, y))     \
	LOOP(pow_##s, T, T, CPOW(x, y))              \
	LOOP(prelu_##s, T, T, x < 0 ? x * y : x)     \
	LOOP(eq_##s, T, uint8_t, x == y)             \
	LOOP(lt_##s, T, uint8_t, x < y)              \
	LOOP(le_##s, T, uint8_t, x <= y)             \
	LOOP(gt_##s, T, uint8_t, x > y)              \
	LOOP(ge_##s, T, uint8_t, x >= y)

/* Dividing the smallest number by it overflows. */
#define MINUS_ONE(T, v) ((T)-1 < 1 && (v) == (T)-1)

/* U: the unsigned type in which T wraps. */
#define WHOLE_LOOPS(s, T, U)                                                         \
	LOOP(add_##s, T, T, (U)x + (U)y)                                             \
	LOOP(sub_##s, T, T, (U)x - (U)y)                                             \
	LOOP(mul_##s, T, T, (U)((U)x * (uint64_t)(U)y))                              \
	LOOP(div_nonzero_##s, T, T, MINUS_ONE(T, y) ? (T)((U)0 - (U)x) : (T)(x / y)) \
	LOOP(fmod_nonzero_##s, T, T, MINUS_ONE(T, y) ? 0 : x % y)                    \
	LOOP(mod_nonzero_##s, T, T, floor_mod_##s(x, y))                             \
	LOOP(min_##s, T, T, x < y ? x : y)                                           \
	LOOP(max_##s, T, T, x > y ? x : y)                                           \
	LOOP(pow_##s, T, T, power_##s(x, y))                                         \
	LOOP(prelu_##s, T, T, x < 1 && x != 0 ? (T)((U)x * (uint64_t)(U)y) : x)      \
	LOOP(eq_##s, T, uint8_t, x == y)                                             \
	LOOP(lt_##s, T, uint8_t, x < y)                                              \
	LOOP(le_##s, T, uint8_t, x <= y)                                             \
	LOOP(gt_##s, T, uint8_t, x > y)                                              \
	LOOP(ge_##s, T, uint8_t, x >= y)                                             \
	CHECKED(div_##s, T, div_nonzero_##s)                                         \
	CHECKED(fmod_##s, T, fmod_nonzero_##s)                                       \
	CHECKED(mod_##s, T, mod_nonzero_##s)

/* Looks for a zero divisor first. */
#define CHECKED(name, T, fn)                                                                          \
	static bool name(void *out, const void *a, const void *b, uint64_t n, int64_t as, int64_t bs) \
	{                                                                                             \
		const T *q = b;                                                                       \
		bool zero = false;                                                                    \
                                                                                                      \
		for (uint64_t i = 0; i < (bs ? n : 1); i++)                                           \
			zero |= q[i] == 0;                                                            \
		return !zero && fn(out, a, b, n, as, bs);                                             \
	}

/* The sign of the divisor, as in Python. */
#define FLOOR_MOD_FLOAT(s, T, CMOD)                              \
	static inline T floor_mod_##s(T x, T y)                  \
	{                                                        \
		T r = CMOD(x, y);                                \
                                                                 \
		return r != 0 && (r < 0) != (y < 0) ? r + y : r; \
	}
#define FLOOR_MOD_WHOLE(s, T)                                         \
	static inline T floor_mod_##s(T x, T y)                       \
	{                                                             \
		T r = (T)(MINUS_ONE(T, y) ? 0 : x % y);               \
                                                                      \
		return r != 0 && (r < 1) != (y < 1) ? (T)(r + y) : r; \
	}
/* x^y, wrapping. y < 0: 0 but for bases whose inverse is whole. */
#define POWER_WHOLE(s, T, U)                                                            \
	static inline T power_##s(T x, T y)                                             \
	{                                                                               \
		U r = 1, b = (U)x;                                                      \
                                                                                        \
		if (y < 1 && y != 0)                                                    \
			return x == 1 ? 1 : MINUS_ONE(T, x) ? (T)((y & 1) ? x : 1) : 0; \
		for (U e = (U)y; e; e = (U)(e >> 1)) {                                  \
			if (e & 1)                                                      \
				r = (U)(r * (uint64_t)b);                               \
			b = (U)(b * (uint64_t)b);                                       \
		}                                                                       \
		return (T)r;                                                            \
	}
FLOOR_MOD_FLOAT(f32, float, fmodf)
FLOOR_MOD_FLOAT(f64, double, fmod)
FLOOR_MOD_WHOLE(i8, int8_t)
FLOOR_MOD_WHOLE(u8, uint8_t)
FLOOR_MOD_WHOLE(i32, int32_t)
FLOOR_MOD_WHOLE(i64, int64_t)
FLOOR_MOD_WHOLE(u64, uint64_t)
POWER_WHOLE(i8, int8_t, uint8_t)
POWER_WHOLE(u8, uint8_t, uint8_t)
POWER_WHOLE(i32, int32_t, uint32_t)
POWER_WHOLE(i64, int64_t, uint64_t)
POWER_WHOLE(u64, uint64_t, uint64_t)

FLOAT_LOOPS(f32, float, fmodf, powf)
FLOAT_LOOPS(f64, double, fmod, pow)
WHOLE_LOOPS(i8, int8_t, uint8_t)
WHOLE_LOOPS(u8, uint8_t, uint8_t)
WHOLE_LOOPS(i32, int32_t, uint32_t)
WHOLE_LOOPS(i64, int64_t, uint64_t)
WHOLE_LOOPS(u64, uint64_t, uint64_t)

LOOP(and_bool, uint8_t, uint8_t, (x != 0) & (y != 0))
LOOP(or_bool, uint8_t, uint8_t, (x | y) != 0)
LOOP(xor_bool, uint8_t, uint8_t, (x != 0) ^ (y != 0))
LOOP(eq_bool, uint8_t, uint8_t, (x != 0) == (y != 0))
LOOP(left_u8, uint8_t, uint8_t, y < 8 ? x << y : 0)
LOOP(right_u8, uint8_t, uint8_t, y < 8 ? x >> y : 0)
LOOP(left_u64, uint64_t, uint64_t, y < 64 ? x << y : 0)
LOOP(right_u64, uint64_t, uint64_t, y < 64 ? x >> y : 0)

/* ---- which loop ---- */

typedef enum column { F32, F64, I8, U8, I32, I64, U64, COLUMNS } column;

#define ROW(op, stem) \
	[TN_OP_##op] = {stem##_f32, stem##_f64, stem##_i8, stem##_u8, stem##_i32, stem##_i64, stem##_u64}
static const binary_fn loops[TN_OP_COUNT][COLUMNS] = {
	ROW(ADD, add),
	ROW(SUB, sub),
	ROW(MUL, mul),
	ROW(DIV, div),
	ROW(MOD, mod),
	ROW(MINIMUM, min),
	ROW(MAXIMUM, max),
	ROW(POW, pow),
	ROW(EQUAL, eq),
	ROW(LESS, lt),
	ROW(LESS_OR_EQUAL, le),
	ROW(GREATER, gt),
	ROW(GREATER_OR_EQUAL, ge),
	ROW(PRELU, prelu),
};
static const binary_fn c_mods[COLUMNS] = {fmod_f32, fmod_f64, fmod_i8, fmod_u8, fmod_i32, fmod_i64, fmod_u64};

static int column_of(tern_dtype t)
{
	switch (t) {
	case TERN_F32:
	case TERN_F16:
	case TERN_BF16:
		return F32;
	case TERN_F64:
		return F64;
	case TERN_I8:
		return I8;
	case TERN_U8:
		return U8;
	case TERN_I32:
		return I32;
	case TERN_I64:
		return I64;
	case TERN_U64:
		return U64;
	default:
		return -1;
	}
}

static binary_fn loop_of(const tn_node *node, tern_dtype t)
{
	bool right = tn_node_int(node, TN_ATTR_DIRECTION, 0) != 0;
	int c = column_of(t);

	switch (node->op) {
	case TN_OP_AND:
		return and_bool;
	case TN_OP_OR:
		return or_bool;
	case TN_OP_XOR:
		return xor_bool;
	case TN_OP_BIT_SHIFT:
		if (t == TERN_U8)
			return right ? right_u8 : left_u8;
		return right ? right_u64 : left_u64;
	case TN_OP_EQUAL:
		return t == TERN_BOOL ? eq_bool : loops[node->op][c];
	case TN_OP_MOD:
		return tn_node_int(node, TN_ATTR_FMOD, 0) ? c_mods[c] : loops[node->op][c];
	default:
		return c < 0 ? NULL : loops[node->op][c];
	}
}

/* ---- running ---- */

static tern_status zero_divisor(const binary_kern *k)
{
	return tn_fail(TERN_E_INVALID, "'%s': a whole number is divided by 0", k->name);
}

static tern_status run_binary(tn_kern *kern, const tn_kern_io *io)
{
	const binary_kern *k = (const binary_kern *)kern;
	tn_walk_at p = {{0}, {0}};

	for (uint64_t r = 0; r < k->walk.runs; r++) {
		if (r > 0)
			tn_walk_next(&k->walk, &p);
		if (!k->fn((char *)io->out[0] + p.at[0] * (int64_t)k->out_size,
			   (const char *)io->in[0] + p.at[1] * (int64_t)k->in_size,
			   (const char *)io->in[1] + p.at[2] * (int64_t)k->in_size, k->walk.n,
			   k->walk.inner[1], k->walk.inner[2]))
			return zero_divisor(k);
	}
	return TERN_OK;
}

#define BLOCK 256u

static void widen(float *to, const uint16_t *from, uint64_t n, tern_dtype t)
{
	for (uint64_t i = 0; i < n; i++)
		to[i] = t == TERN_F16 ? tn_f16_to_f32(from[i]) : tn_bf16_to_f32(from[i]);
}

/* 16-bit floats: a block of each operand becomes f32, then the f32 loop, then back. */
static void half_run(const binary_kern *k, void *out, const uint16_t *a, const uint16_t *b, uint64_t n)
{
	int64_t as = k->walk.inner[1], bs = k->walk.inner[2];
	float x[BLOCK], y[BLOCK], z[BLOCK];

	for (uint64_t at = 0; at < n; at += BLOCK) {
		uint64_t m = n - at < BLOCK ? n - at : BLOCK;

		widen(x, a + (as ? at : 0), as ? m : 1, k->in);
		widen(y, b + (bs ? at : 0), bs ? m : 1, k->in);
		if (k->out == TERN_BOOL) {
			k->fn((uint8_t *)out + at, x, y, m, as, bs);
			continue;
		}
		k->fn(z, x, y, m, as, bs);
		for (uint64_t i = 0; i < m; i++)
			((uint16_t *)out)[at + i] =
				k->in == TERN_F16 ? tn_f16_from_f32(z[i]) : tn_bf16_from_f32(z[i]);
	}
}

static tern_status run_half(tn_kern *kern, const tn_kern_io *io)
{
	const binary_kern *k = (const binary_kern *)kern;
	tn_walk_at p = {{0}, {0}};

	for (uint64_t r = 0; r < k->walk.runs; r++) {
		if (r > 0)
			tn_walk_next(&k->walk, &p);
		half_run(k, (char *)io->out[0] + p.at[0] * (int64_t)k->out_size,
			 (const uint16_t *)io->in[0] + p.at[1], (const uint16_t *)io->in[1] + p.at[2],
			 k->walk.n);
	}
	return TERN_OK;
}

static double load(tern_dtype t, const void *p, int64_t i)
{
	switch (t) {
	case TERN_F32:
		return (double)((const float *)p)[i];
	case TERN_F64:
		return ((const double *)p)[i];
	case TERN_F16:
		return (double)tn_f16_to_f32(((const uint16_t *)p)[i]);
	case TERN_BF16:
		return (double)tn_bf16_to_f32(((const uint16_t *)p)[i]);
	case TERN_I8:
		return ((const int8_t *)p)[i];
	case TERN_U8:
		return ((const uint8_t *)p)[i];
	case TERN_I32:
		return ((const int32_t *)p)[i];
	case TERN_I64:
		return (double)((const int64_t *)p)[i];
	default:
		return (double)((const uint64_t *)p)[i];
	}
}

static int64_t to_whole(double x)
{
	return x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : x != x ? 0 : (int64_t)x;
}

static void store(tern_dtype t, void *p, int64_t i, double x)
{
	switch (t) {
	case TERN_F32:
		((float *)p)[i] = (float)x;
		break;
	case TERN_F64:
		((double *)p)[i] = x;
		break;
	case TERN_F16:
		((uint16_t *)p)[i] = tn_f16_from_f32((float)x);
		break;
	case TERN_BF16:
		((uint16_t *)p)[i] = tn_bf16_from_f32((float)x);
		break;
	case TERN_I8:
		((int8_t *)p)[i] = (int8_t)to_whole(x);
		break;
	case TERN_U8:
		((uint8_t *)p)[i] = (uint8_t)to_whole(x);
		break;
	case TERN_I32:
		((int32_t *)p)[i] = (int32_t)to_whole(x);
		break;
	case TERN_I64:
		((int64_t *)p)[i] = to_whole(x);
		break;
	default:
		((uint64_t *)p)[i] =
			x >= 0x1p63 ? (uint64_t)(x - 0x1p63) + (UINT64_C(1) << 63) : (uint64_t)to_whole(x);
		break;
	}
}

/* Pow whose exponent is of another type: in double. */
static tern_status run_mixed_pow(tn_kern *kern, const tn_kern_io *io)
{
	const binary_kern *k = (const binary_kern *)kern;
	tn_walk_at p = {{0}, {0}};

	for (uint64_t r = 0; r < k->walk.runs; r++) {
		if (r > 0)
			tn_walk_next(&k->walk, &p);
		for (int64_t i = 0; i < (int64_t)k->walk.n; i++) {
			double x = load(k->in, io->in[0], p.at[1] + i * k->walk.inner[1]);
			double y = load(k->exponent, io->in[1], p.at[2] + i * k->walk.inner[2]);

			store(k->out, io->out[0], p.at[0] + i, pow(x, y));
		}
	}
	return TERN_OK;
}

static void binary_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_kern_binary_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	const tern_shape *in[2] = {&desc->in[0].shape, &desc->in[1].shape};
	tern_dtype t = desc->in[0].dtype;
	binary_fn fn = loop_of(desc->node, t);
	binary_kern *k;

	(void)ctx;
	if (!fn)
		return tn_kern_unsupported(desc);
	k = calloc(1, sizeof(*k));
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->base = (tn_kern){.run = run_binary, .destroy = binary_destroy};
	k->name = desc->node->name;
	k->fn = fn;
	k->in = t;
	k->out = desc->out[0].dtype;
	k->in_size = tn_operand_size(&desc->in[0]);
	k->out_size = tn_operand_size(&desc->out[0]);
	k->exponent = desc->in[1].dtype;
	if (k->exponent != t)
		k->base.run = run_mixed_pow;
	else if (t == TERN_F16 || t == TERN_BF16)
		k->base.run = run_half;
	tn_walk_broadcast(&k->walk, &desc->out[0].shape, in, 2);
	*made = &k->base;
	return TERN_OK;
}

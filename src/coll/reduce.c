/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of vectors, element by element. bf16 and f16 are reduced in f32 and rounded once per step. MIN and MAX of
 * floating point let NaN win, so that it is not lost on the way. Integers wrap.
 *
 * Threads: any. Tests: tests/unit/coll/reduce_test.c.
 */
#include "base/half.h"
#include "coll/comm.h"

#define SUM(a, b)  ((a) + (b))
#define PROD(a, b) ((a) * (b))
#define MIN(a, b)  ((b) < (a) || (b) != (b) ? (b) : (a))
#define MAX(a, b)  ((b) > (a) || (b) != (b) ? (b) : (a))

/* Vectors of 32 bytes at any address; compilers without such registers split them. */
#define VECTOR(name, type) \
	typedef type name __attribute__((vector_size(32), aligned(__alignof__(type)), may_alias))
VECTOR(v_f32, float);
VECTOR(v_f64, double);
VECTOR(v_i32, uint32_t);
VECTOR(v_i64, uint64_t);
VECTOR(v_i8, uint8_t);

#define LOOP(name, type, expr)                                     \
	static void name(void *dst_, const void *src_, uint64_t n) \
	{                                                          \
		type *dst = dst_;                                  \
		const type *src = src_;                            \
                                                                   \
		for (uint64_t i = 0; i < n; i++)                   \
			dst[i] = (type)expr(dst[i], src[i]);       \
	}
/* SUM and PROD with vectors, the rest one by one. */
#define FAST(name, type, vector, expr)                                                                 \
	static void name(void *dst_, const void *src_, uint64_t n)                                     \
	{                                                                                              \
		type *dst = dst_;                                                                      \
		const type *src = src_;                                                                \
		uint64_t i = 0, each = sizeof(vector) / sizeof(type);                                  \
                                                                                                       \
		for (; i + each <= n; i += each)                                                       \
			*(vector *)(dst + i) = expr(*(vector *)(dst + i), *(const vector *)(src + i)); \
		for (; i < n; i++)                                                                     \
			dst[i] = (type)expr(dst[i], src[i]);                                           \
	}
#define HALF(name, from, to, expr)                                 \
	static void name(void *dst_, const void *src_, uint64_t n) \
	{                                                          \
		uint16_t *dst = dst_;                              \
		const uint16_t *src = src_;                        \
                                                                   \
		for (uint64_t i = 0; i < n; i++) {                 \
			float a = from(dst[i]), b = from(src[i]);  \
                                                                   \
			dst[i] = to(expr(a, b));                   \
		}                                                  \
	}

FAST(sum_f32, float, v_f32, SUM)
FAST(sum_f64, double, v_f64, SUM)
FAST(sum_i32, uint32_t, v_i32, SUM)
FAST(sum_i64, uint64_t, v_i64, SUM)
FAST(sum_i8, uint8_t, v_i8, SUM)
FAST(prod_f32, float, v_f32, PROD)
FAST(prod_f64, double, v_f64, PROD)
LOOP(prod_i32, uint32_t, PROD)
LOOP(prod_i64, uint64_t, PROD)
LOOP(prod_i8, uint8_t, PROD)
LOOP(min_f32, float, MIN)
LOOP(min_f64, double, MIN)
LOOP(min_i8, int8_t, MIN)
LOOP(min_u8, uint8_t, MIN)
LOOP(min_i32, int32_t, MIN)
LOOP(min_i64, int64_t, MIN)
LOOP(min_u64, uint64_t, MIN)
LOOP(max_f32, float, MAX)
LOOP(max_f64, double, MAX)
LOOP(max_i8, int8_t, MAX)
LOOP(max_u8, uint8_t, MAX)
LOOP(max_i32, int32_t, MAX)
LOOP(max_i64, int64_t, MAX)
LOOP(max_u64, uint64_t, MAX)
HALF(sum_f16, tn_f16_to_f32, tn_f16_from_f32, SUM)
HALF(prod_f16, tn_f16_to_f32, tn_f16_from_f32, PROD)
HALF(min_f16, tn_f16_to_f32, tn_f16_from_f32, MIN)
HALF(max_f16, tn_f16_to_f32, tn_f16_from_f32, MAX)
HALF(sum_bf16, tn_bf16_to_f32, tn_bf16_from_f32, SUM)
HALF(prod_bf16, tn_bf16_to_f32, tn_bf16_from_f32, PROD)
HALF(min_bf16, tn_bf16_to_f32, tn_bf16_from_f32, MIN)
HALF(max_bf16, tn_bf16_to_f32, tn_bf16_from_f32, MAX)

typedef void (*reduce_fn)(void *dst, const void *src, uint64_t n);

static const reduce_fn table[][4] = {
	[TERN_F32] = {sum_f32, prod_f32, min_f32, max_f32},
	[TERN_F64] = {sum_f64, prod_f64, min_f64, max_f64},
	[TERN_F16] = {sum_f16, prod_f16, min_f16, max_f16},
	[TERN_BF16] = {sum_bf16, prod_bf16, min_bf16, max_bf16},
	[TERN_I8] = {sum_i8, prod_i8, min_i8, max_i8},
	[TERN_U8] = {sum_i8, prod_i8, min_u8, max_u8},
	[TERN_I32] = {sum_i32, prod_i32, min_i32, max_i32},
	[TERN_I64] = {sum_i64, prod_i64, min_i64, max_i64},
	[TERN_U64] = {sum_i64, prod_i64, min_u64, max_u64},
};

bool tn_coll_can_reduce(tern_dtype dtype, tern_reduce reduce)
{
	bool floating = dtype == TERN_F32 || dtype == TERN_F64 || dtype == TERN_F16 || dtype == TERN_BF16;

	return tern_dtype_bytes(dtype) > 0 && (unsigned)reduce <= TERN_AVG &&
	       (reduce != TERN_AVG || floating);
}

void tn_coll_reduce(void *dst, const void *src, uint64_t count, tern_dtype dtype, tern_reduce reduce)
{
	table[dtype][reduce == TERN_AVG ? TERN_SUM : reduce](dst, src, count);
}

void tn_coll_divide(void *dst, uint64_t count, tern_dtype dtype, uint32_t n)
{
	for (uint64_t i = 0; i < count; i++) {
		if (dtype == TERN_F32)
			((float *)dst)[i] /= (float)n;
		else if (dtype == TERN_F64)
			((double *)dst)[i] /= n;
		else if (dtype == TERN_F16)
			((uint16_t *)dst)[i] =
				tn_f16_from_f32(tn_f16_to_f32(((uint16_t *)dst)[i]) / (float)n);
		else
			((uint16_t *)dst)[i] =
				tn_bf16_from_f32(tn_bf16_to_f32(((uint16_t *)dst)[i]) / (float)n);
	}
}

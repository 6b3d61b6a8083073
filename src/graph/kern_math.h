/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of f32 that a compiler can vectorise: no branch, no table, no call. The C library's are exact to
 * the last bit or two, one element at a time; these are within 4 units in the last place where the result is a
 * normal number, eight or sixteen at a time.
 *
 * Ranges are reduced as by Cody and Waite (Software Manual for the Elementary Functions, 1980); polynomials
 * are Taylor series short enough for the reduced range.
 *
 * Pure. Tests: tests/unit/graph/kern_nodes_test.c compares with double precision.
 */
#ifndef TN_GRAPH_KERN_MATH_H
#define TN_GRAPH_KERN_MATH_H

#include <stdint.h>
#include <string.h>

static inline float tn_bits_f32(int32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* 2^n for -126 <= n <= 127 */
static inline float tn_pow2(int32_t n)
{
	return tn_bits_f32((int32_t)((uint32_t)(n + 127) << 23));
}

/*
 * e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln(2) / 2; ln 2 in two parts, the first with trailing zeros, so
 * that n times it is exact. 2^n in two factors, so that the ends (denormal, infinite) come out right.
 */
static inline float tn_expf(float x)
{
	float c = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
	float shifted = c * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
	float n = shifted - 12582912.0f;
	float r = (c - n * 0.693359375f) + n * 2.12194440e-4f, p;
	int32_t i = (int32_t)n, half = i >> 1;

	p = 1.0f / 5040.0f;
	p = p * r + 1.0f / 720.0f;
	p = p * r + 1.0f / 120.0f;
	p = p * r + 1.0f / 24.0f;
	p = p * r + 1.0f / 6.0f;
	p = p * r + 0.5f;
	p = p * (r * r) + r + 1.0f;
	p = p * tn_pow2(half) * tn_pow2(i - half);
	return x == x ? p : x;
}

/*
 * tanh: x + x^3 p(x^2) near 0, where 1 - 2 / (e^2x + 1) would cancel; coefficients are those of a fit on
 * [0, 0.625] (Cody and Waite's rational form, expanded).
 */
static inline float tn_tanhf(float x)
{
	float a = x < 0 ? -x : x, far, near, s = x * x, p;

	far = 1.0f - 2.0f / (tn_expf(2.0f * a) + 1.0f);
	far = x < 0 ? -far : far;
	p = -0.00570498872745f;
	p = p * s + 0.0206390887954f;
	p = p * s - 0.0537397155531f;
	p = p * s + 0.133314422036f;
	p = p * s - 0.333332819422f;
	near = x + x * s * p;
	far = a < 0.625f ? near : far;
	return x == x ? far : x;
}

static inline float tn_sigmoidf(float x)
{
	float a = x < 0 ? -x : x, e = tn_expf(-a), s = 1.0f / (1.0f + e);

	return x < 0 ? e * s : x == x ? s : x;
}

#endif

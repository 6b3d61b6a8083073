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
 * tanh: near 0, where 1 - 2 / (e^2x + 1) would cancel, x + x^3 p(x^2), p fitted on |x| <= 0.625 for the
 * smallest relative error (1.4e-7 of x^2, so 5e-8 of tanh).
 */
static inline float tn_tanhf(float x)
{
	float a = x < 0 ? -x : x, far, near, s = x * x, p;

	far = 1.0f - 2.0f / (tn_expf(2.0f * a) + 1.0f);
	far = x < 0 ? -far : far;
	p = -6.09689891e-3f;
	p = p * s + 2.09973216e-2f;
	p = p * s - 5.38509436e-2f;
	p = p * s + 1.33327700e-1f;
	p = p * s - 3.33333290e-1f;
	near = x + x * s * p;
	far = a < 0.625f ? near : far;
	return x == x ? far : x;
}

/*
 * erf: x + x p(x^2) up to 1, p fitted as above (1.6e-8); beyond, 1 - e^q(|x|), q fitted to log(1 - erf) on
 * 0.95 to 4 (1.4e-9). From 4 on the result is 1.
 */
static inline float tn_erff(float x)
{
	float a = x < 0 ? -x : x, t = a > 4.0f ? 4.0f : a, s = x * x, p, q, far;

	p = 7.96440641e-5f;
	p = p * s - 8.03758040e-4f;
	p = p * s + 5.19059780e-3f;
	p = p * s - 2.68544493e-2f;
	p = p * s + 1.12835832e-1f;
	p = p * s - 3.76126236e-1f;
	p = p * s + 1.28379165e-1f;
	q = 1.92428792e-4f;
	q = q * t - 3.00856260e-3f;
	q = q * t + 2.20877374e-2f;
	q = q * t - 1.03640513e-1f;
	q = q * t - 6.37516805e-1f;
	q = q * t - 1.12747510f;
	q = q * t - 2.44686825e-4f;
	far = 1.0f - tn_expf(q);
	far = x < 0 ? -far : far;
	far = a <= 1.0f ? x + x * p : far;
	return x == x ? far : x;
}

static inline float tn_sigmoidf(float x)
{
	float a = x < 0 ? -x : x, e = tn_expf(-a), s = 1.0f / (1.0f + e);

	return x < 0 ? e * s : x == x ? s : x;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion of single elements by integers alone, as IEEE 754-2019 defines rounding to nearest even.
 *
 * Threads: any. Tests: tests/unit/store/rows_test.c.
 */
#include "base/half.h"

#include <string.h>

static uint32_t bits_of(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	return u;
}

static float float_of(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

uint16_t tn_bf16_from_f32(float x)
{
	uint32_t u = bits_of(x);
	uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	uint32_t nan = (u >> 16) | 0x40;

	return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

float tn_bf16_to_f32(uint16_t x)
{
	return float_of((uint32_t)x << 16);
}

uint16_t tn_f16_from_f32(float x)
{
	uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;

	if (a >= 0x47800000) /* 65536 and more, infinity, NaN */
		return (uint16_t)(sign | (a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00));
	if (a < 0x38800000) {
		/* Denormal: adding 0.5 leaves the number in the low bits, rounded by the FPU to nearest even. */
		return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000));
	}
	/* Re-bias, round to even at bit 13; a carry into the exponent is right, up to infinity. */
	return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

float tn_f16_to_f32(uint16_t x)
{
	uint32_t sign = (uint32_t)(x & 0x8000) << 16, e = (x >> 10) & 31, m = x & 0x3ff;

	if (e == 31)
		return float_of(sign | 0x7f800000 | (m ? 0x400000 | m << 13 : 0));
	if (e == 0)
		return float_of(sign | bits_of((float)m * 0x1.0p-24f));
	return float_of(sign | (e + 112) << 23 | m << 13);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows on their way: see travel.h. Plain loops that compilers turn into vectors.
 * Threads: any. Tests: tests/unit/ps/travel_test.c.
 */
#include "ps/travel.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "store/rows.h"

#define Q_MAX 127.0f

bool tn_ps_travels(unsigned dtype)
{
	return dtype == TERN_F32 || dtype == TERN_BF16 || dtype == TERN_F16 || dtype == TERN_I8;
}

uint64_t tn_ps_travel_bytes(tern_dtype dtype, uint32_t dim)
{
	return tern_dtype_bytes(dtype) * dim + (dtype == TERN_I8 ? sizeof(float) : 0);
}

static float largest(const float *x, uint32_t n)
{
	float most = 0;

	for (uint32_t i = 0; i < n; i++) {
		float a = fabsf(x[i]);

		most = a > most ? a : most; /* a NaN loses: looked for apart */
	}
	return most;
}

static void pack_i8(uint8_t *dst, const float *src, uint32_t n)
{
	bool finite = tn_rows_finite(src, n);
	float scale = finite ? largest(src, n) / Q_MAX : NAN;
	/* The smallest scales have no inverse: such rows are zeros but for a millionth of the smallest f32. */
	float times = finite && scale >= 1.2e-38f ? 1.0f / scale : 0;
	int8_t *q = (int8_t *)(dst + sizeof(scale));

	if (times == 0 && finite)
		scale = 0;
	memcpy(dst, &scale, sizeof(scale));
	for (uint32_t i = 0; i < n; i++) {
		/* 1.5 x 2^23 leaves no bits behind the point: rounds to nearest even */
		float r = (finite ? src[i] : 0) * times + 12582912.0f;
		uint32_t bits;

		memcpy(&bits, &r, sizeof(bits));
		q[i] = (int8_t)bits;
	}
}

static void unpack_i8(float *dst, const uint8_t *src, uint32_t n)
{
	const int8_t *q = (const int8_t *)(src + sizeof(float));
	float scale;

	memcpy(&scale, src, sizeof(scale));
	for (uint32_t i = 0; i < n; i++)
		dst[i] = (float)q[i] * scale;
}

void tn_ps_travel_pack(void *dst, tern_dtype dtype, const float *src, uint32_t dim)
{
	if (dtype == TERN_I8)
		pack_i8(dst, src, dim);
	else
		tn_rows_from_f32(dst, dtype, src, dim);
}

void tn_ps_travel_unpack(float *dst, const void *src, tern_dtype dtype, uint32_t dim)
{
	uint16_t half[256];
	const uint8_t *from = src;

	if (dtype == TERN_I8) {
		unpack_i8(dst, src, dim);
		return;
	}
	if (dtype == TERN_F32) {
		memcpy(dst, src, dim * sizeof(float));
		return;
	}
	for (uint32_t i = 0, n; i < dim; i += n) { /* through a piece that is aligned */
		n = TN_MIN(dim - i, TN_COUNT_OF(half));
		memcpy(half, from + i * sizeof(half[0]), n * sizeof(half[0]));
		tn_rows_to_f32(dst + i, half, dtype, n);
	}
}

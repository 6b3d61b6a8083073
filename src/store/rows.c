/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows go through the loops of loops.h.
 *
 * Threads: any. Tests: tests/unit/store/rows_test.c.
 */
#include "store/rows.h"

#include <string.h>

#include "store/optim.h"

void tn_rows_to_f32(float *dst, const void *src, tern_dtype dtype, uint32_t n)
{
	if (dtype == TERN_F32)
		memcpy(dst, src, n * sizeof(float));
	else if (dtype == TERN_BF16)
		tn_loops_get()->from_bf16(dst, src, n);
	else
		tn_loops_get()->from_f16(dst, src, n);
}

void tn_rows_from_f32(void *dst, tern_dtype dtype, const float *src, uint32_t n)
{
	if (dtype == TERN_F32)
		memcpy(dst, src, n * sizeof(float));
	else if (dtype == TERN_BF16)
		tn_loops_get()->to_bf16(dst, src, n);
	else
		tn_loops_get()->to_f16(dst, src, n);
}

bool tn_rows_finite(const float *row, uint32_t n)
{
	return tn_loops_get()->finite(row, n);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows on their way: f32, bf16, f16, or int8 with a scale of each row.
 *
 *   int8   f32 scale | dim x i8; value i = q[i] * scale, scale = max |x| / 127, q rounded to nearest (ties to even)
 *          |value - x| <= scale / 2 (and the rounding of one f32 product); a row that has a NaN or an infinity
 *          comes as NaNs; a row of zeros is exact
 *
 * Must not: know tables, messages or memory of others. Pure. Threads: any. Tests: tests/unit/ps/travel_test.c.
 */
#ifndef TN_PS_TRAVEL_H
#define TN_PS_TRAVEL_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/types.h>

/* May rows travel so? */
bool tn_ps_travels(unsigned dtype);
/* Bytes of a row on its way. */
uint64_t tn_ps_travel_bytes(tern_dtype dtype, uint32_t dim);
/* dst, src: any alignment of 4 (int8: any). */
void tn_ps_travel_pack(void *dst, tern_dtype dtype, const float *src, uint32_t dim);
/* src: any alignment. */
void tn_ps_travel_unpack(float *dst, const void *src, tern_dtype dtype, uint32_t dim);

#endif

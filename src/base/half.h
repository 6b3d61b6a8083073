/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 and f16, one element at a time.
 *
 *   bf16   the upper half of an f32; rounded to nearest, ties to even; NaN stays NaN (quiet)
 *   f16    IEEE 754 binary16; rounded to nearest even; beyond 65504 infinity; denormals kept
 *
 * Pure. Threads: any. Tests: tests/unit/store/rows_test.c.
 */
#ifndef TN_BASE_HALF_H
#define TN_BASE_HALF_H

#include <stdint.h>

uint16_t tn_bf16_from_f32(float x);
float tn_bf16_to_f32(uint16_t x);
uint16_t tn_f16_from_f32(float x);
float tn_f16_to_f32(uint16_t x);

#endif

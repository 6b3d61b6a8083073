/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of f32, bf16 and f16: conversion and the checks of numbers.
 *
 *   bf16   the upper half of an f32; rounded to nearest, ties to even; NaN stays NaN (quiet)
 *   f16    IEEE 754 binary16; rounded to nearest even; beyond 65504 infinity; denormals kept
 *
 * Pure; scalar and vector code give the same bits. Threads: any. Tests: tests/unit/store/rows_test.c.
 */
#ifndef TN_STORE_ROWS_H
#define TN_STORE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/types.h>

/* n elements; dtype F32, BF16 or F16. No overlap; any alignment of 2 (src, dst of 16 bits) or 4. */
void tn_rows_to_f32(float *dst, const void *src, tern_dtype dtype, uint32_t n);
void tn_rows_from_f32(void *dst, tern_dtype dtype, const float *src, uint32_t n);

/* Neither NaN nor infinity in n elements? */
bool tn_rows_finite(const float *row, uint32_t n);

/* One element, the plain way: the oracle of the above. */
uint16_t tn_bf16_from_f32(float x);
float tn_bf16_to_f32(uint16_t x);
uint16_t tn_f16_from_f32(float x);
float tn_f16_to_f32(uint16_t x);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of f32, bf16 and f16: conversion (as base/half.h) and the checks of numbers.
 *
 * Pure; scalar and vector code give the same bits. Threads: any. Tests: tests/unit/store/rows_test.c.
 */
#ifndef TN_STORE_ROWS_H
#define TN_STORE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/types.h>

#include "base/half.h" /* one element, the plain way: the oracle of these */

/* n elements; dtype F32, BF16 or F16. No overlap; any alignment of 2 (src, dst of 16 bits) or 4. */
void tn_rows_to_f32(float *dst, const void *src, tern_dtype dtype, uint32_t n);
void tn_rows_from_f32(void *dst, tern_dtype dtype, const float *src, uint32_t n);

/* Neither NaN nor infinity in n elements? */
bool tn_rows_finite(const float *row, uint32_t n);

#endif

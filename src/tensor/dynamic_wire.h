/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block that announces one tensor of a dynamic channel. It is the tensor of a static channel: written one-sided,
 * in the order of generations, once; so it needs no check of its own arrival. Little endian, TN_META_BYTES.
 *
 * Pure functions, bounded, trust nothing. Tests: tests/unit/tensor/wire_test.c, fuzz/tensor_meta.c.
 */
#ifndef TN_TENSOR_DYNAMIC_WIRE_H
#define TN_TENSOR_DYNAMIC_WIRE_H

#include <stdbool.h>

#include <tern/tensor.h>

#define TN_META_VERSION 1
#define TN_META_BYTES   160
#define TN_META_PREFIX  "dynamic " /* of the static channel's name */

typedef struct tn_meta {
	tern_dtype dtype;
	tern_shape shape;
	uint64_t bytes; /* always those of dtype and shape */
	uint64_t generation;
	tern_key key; /* the range begins with the tensor; zero if bytes is 0 */
} tn_meta;

void tn_meta_encode(uint8_t out[TN_META_BYTES], const tn_meta *meta);
/* false: malformed, of another version, or a size that does not follow from the shape. */
bool tn_meta_decode(const uint8_t in[TN_META_BYTES], tn_meta *meta);

#endif

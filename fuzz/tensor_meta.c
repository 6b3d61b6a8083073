/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of the blocks that announce dynamic tensors, over arbitrary bytes: what it accepts has a size that follows from
 * its shape, and encodes to what it was read from, but for what means nothing.
 *
 * Pure. Seeds: fuzz/corpus/tensor_meta. Unit tests: tests/unit/tensor/wire_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "tensor/dynamic_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t block[TN_META_BYTES] = {0}, again[TN_META_BYTES];
	tn_meta meta, same;

	memcpy(block, data, size < sizeof(block) ? size : sizeof(block));
	if (!tn_meta_decode(block, &meta))
		return 0;
	TN_ASSERT(meta.shape.rank <= TERN_RANK_MAX);
	tn_meta_encode(again, &meta);
	TN_ASSERT(tn_meta_decode(again, &same));
	TN_ASSERT(memcmp(&meta.key, &same.key, sizeof(meta.key)) == 0);
	TN_ASSERT(meta.bytes == same.bytes && meta.generation == same.generation && meta.dtype == same.dtype);
	TN_ASSERT(memcmp(meta.shape.dims, same.shape.dims, sizeof(meta.shape.dims)) == 0);
	return 0;
}

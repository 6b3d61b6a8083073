/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of receivers: of one, or of several that receive the parts of one tensor, which lie as they do in
 * it. The memory of a whole lives until its creator and the last of its receivers let it go, since a sender may
 * still write a destroyed receiver's range.
 *
 *   slot 0                      slot 1
 *   +--------+------+--------+  +--------+------+--------+
 *   | part 0 |  1   |   2    |  | part 0 |  1   |   2    |      stride: the whole, rounded up
 *   +--------+------+--------+  +--------+------+--------+
 *
 * Threads: create and release any; the count is atomic. Tests: tests/unit/tensor/tensor_test.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"
#include "tensor/part.h"
#include "tensor/tensor.h"

tern_status tn_tensor_slots_alloc(tern_ctx *ctx, uint64_t bytes, unsigned slots, uint64_t *stride,
				  uint8_t **memory)
{
	uint64_t align = bytes >= 65536 ? 4096 : 64;
	void *p;

	*stride = (TN_MAX(bytes, 1) + align - 1) & ~(align - 1);
	TN_TRY(tern_mem_alloc(tern_ctx_mem(ctx), *stride * slots, align, TERN_ACCESS_WRITE, TERN_MEM_HOST,
			      &p));
	*memory = p;
	return TERN_OK;
}

tern_status tn_tensor_whole_create(tern_ctx *ctx, uint64_t bytes, unsigned slots, tn_tensor_whole **out)
{
	tn_tensor_whole *whole;
	tern_status status;

	TN_ASSERT(bytes <= UINT64_MAX / 32 && slots <= TERN_TENSOR_SLOTS_MAX);
	whole = calloc(1, sizeof(*whole));
	if (!whole)
		return tn_fail(TERN_E_NOMEM, "no memory for a tensor that comes in parts");
	whole->ctx = ctx;
	whole->bytes = bytes;
	whole->slots = slots ? slots : 2;
	atomic_store(&whole->refs, 1);
	status = tn_tensor_slots_alloc(ctx, bytes, whole->slots, &whole->stride_bytes, &whole->memory);
	if (status != TERN_OK) {
		free(whole);
		return status;
	}
	*out = whole;
	return TERN_OK;
}

void tn_tensor_whole_release(tn_tensor_whole *whole)
{
	if (!whole || atomic_fetch_sub_explicit(&whole->refs, 1, memory_order_acq_rel) != 1)
		return;
	tern_mem_free(tern_ctx_mem(whole->ctx), whole->memory);
	free(whole);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of the tensor layer's messages over arbitrary bytes. What it accepts is within the limits that
 * its callers rely on, encodes again, and differs from what came only in the dims beyond the rank, which mean
 * nothing; neither a byte less nor a byte more is accepted in its place.
 *
 * Pure: no channel, no receiver. Seeds: fuzz/corpus/tensor_wire. Unit tests: tests/unit/tensor/wire_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "tensor/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where the dims of an OPEN lie: after the header (16), dtype, notify and rank. */
#define DIMS_AT 28u

static void bounds(const tn_tensor_msg *msg)
{
	TN_ASSERT(msg->type >= TN_TENSOR_OPEN && msg->type <= TN_TENSOR_WITHDRAW);
	TN_ASSERT(msg->shape.rank <= TERN_RANK_MAX && msg->slots <= TERN_TENSOR_SLOTS_MAX);
	TN_ASSERT(memchr(msg->text, 0, sizeof(msg->text)));
}

static void encodes_back(const uint8_t *data, uint64_t size, const tn_tensor_msg *msg)
{
	uint8_t out[TN_TENSOR_MSG_MAX], expected[TN_TENSOR_MSG_MAX];

	TN_ASSERT(size <= sizeof(expected));
	memcpy(expected, data, size);
	if (msg->type == TN_TENSOR_OPEN)
		memset(expected + DIMS_AT + 8 * msg->shape.rank, 0, 8 * (TERN_RANK_MAX - msg->shape.rank));
	TN_ASSERT(tn_tensor_encode(out, msg) == size);
	TN_ASSERT(memcmp(out, expected, size) == 0);
}

/* A byte more or less than an accepted message is none: the lengths inside are exact. */
static void neighbours(const uint8_t *data, uint64_t size)
{
	uint8_t longer[TN_TENSOR_MSG_MAX + 1];
	tn_tensor_msg msg;

	TN_ASSERT(!tn_tensor_decode(data, size - 1, &msg));
	memcpy(longer, data, size);
	longer[size] = 0;
	TN_ASSERT(!tn_tensor_decode(longer, size + 1, &msg));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	tn_tensor_msg msg;

	if (!tn_tensor_decode(data, size, &msg))
		return 0;
	bounds(&msg);
	encodes_back(data, size, &msg);
	neighbours(data, size);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of flows and hellos of ranks, over arbitrary bytes: what is accepted comes back from its own encoding.
 *
 * Pure. Seeds: fuzz/corpus/coll_wire. Unit tests: tests/unit/coll/reduce_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "coll/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t out[TN_COLL_HELLO_MAX];
	tn_coll_hello hello;
	tn_coll_head head;

	if (tn_coll_hello_read(data, size, &hello)) {
		TN_ASSERT(hello.rank < hello.size && hello.name[0]);
		TN_ASSERT(tn_coll_hello_write(out, &hello) == size);
		TN_ASSERT(memcmp(out + 4, data + 4, size - 4) == 0);
	}
	if (size >= TN_COLL_HEAD && tn_coll_head_read(data, &head)) {
		tn_coll_head_write(out, &head);
		TN_ASSERT(memcmp(out, data, TN_COLL_HEAD) == 0);
	}
	return 0;
}

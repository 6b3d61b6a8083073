/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers of what servers and their coordinator say to each other, over arbitrary bytes. Whatever is accepted is valid
 * and comes back from its own encoding; a byte less is not accepted in its place.
 *
 * Pure: no server. Seeds: fuzz/corpus/cluster_wire. Unit tests: tests/unit/cluster/map_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "cluster/map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void map(const uint8_t *msg, uint64_t size)
{
	static tn_cl_map m, again;
	static uint8_t out[TN_CL_MAP_BYTES_MAX], second[TN_CL_MAP_BYTES_MAX];
	uint64_t n;

	if (!tn_cl_map_decode(msg, size, &m))
		return;
	TN_ASSERT(tn_cl_map_valid(&m));
	n = tn_cl_map_encode(out, sizeof(out), &m);
	TN_ASSERT(n > 0 && n <= size); /* runs may have been joined */
	TN_ASSERT(tn_cl_map_decode(out, n, &again));
	TN_ASSERT(tn_cl_map_encode(second, sizeof(second), &again) == n && memcmp(out, second, n) == 0);
	TN_ASSERT(!tn_cl_map_decode(msg, size - 1, &again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	map(data, size);
	return 0;
}

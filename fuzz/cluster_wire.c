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
#include "cluster/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void map(const uint8_t *msg, uint64_t size)
{
	static tn_cl_map m, again;
	static uint8_t out[TN_CL_MAP_BYTES_MAX], second[TN_CL_MAP_BYTES_MAX];
	uint64_t n;

	if (!tn_cl_map_decode(msg, size, &m))
		return;
	TN_ASSERT(tn_cl_map_valid(&m));
	n = tn_cl_map_encode(out, sizeof(out), &m, msg[0]);
	TN_ASSERT(n > 0 && n <= size); /* runs may have been joined */
	TN_ASSERT(tn_cl_map_decode(out, n, &again));
	TN_ASSERT(tn_cl_map_encode(second, sizeof(second), &again, msg[0]) == n &&
		  memcmp(out, second, n) == 0);
	TN_ASSERT(!tn_cl_map_decode(msg, size - 1, &again));
}

static void message(const uint8_t *msg, uint64_t size)
{
	static tn_coord_fact facts[TN_CL_SLOTS];
	static tn_cl_load loads[TN_CL_SLOTS];
	static uint8_t out[TN_CL_MSG_MAX];
	tn_cl_msg m;

	if (!tn_cl_msg_decode(msg, size, &m))
		return;
	for (uint32_t i = 0; i < m.fact_count; i++)
		facts[i] = tn_cl_msg_fact(&m, i);
	for (uint32_t i = 0; i < m.load_count; i++)
		loads[i] = tn_cl_msg_load(&m, i);
	TN_ASSERT(tn_cl_msg_encode(out, sizeof(out), &m, facts, loads) == size &&
		  memcmp(out, msg, size) == 0);
}

static void answer(const uint8_t *msg, uint64_t size)
{
	uint8_t out[TN_CL_ANSWER_HEAD];
	tn_cl_answer a;

	if (!tn_cl_answer_decode(msg, size, &a))
		return;
	tn_cl_answer_encode(out, &a);
	TN_ASSERT(memcmp(out, msg, sizeof(out)) == 0);
	TN_ASSERT(size == sizeof(out) + a.map_bytes + a.load_count * 8ull);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	map(data, size);
	message(data, size);
	answer(data, size);
	return 0;
}

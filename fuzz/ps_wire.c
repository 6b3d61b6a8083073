/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers of what clients and servers of tables say to each other, over arbitrary bytes. Whatever is accepted lies
 * inside of the message, and encodes back to the same bytes; a byte less is not accepted in its place.
 *
 * Pure: no server, no table. Seeds: fuzz/corpus/ps_wire. Unit tests: tests/unit/ps/wire_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ps/round.h"
#include "ps/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void within(const uint8_t *msg, uint64_t size, const uint8_t *part, uint64_t bytes)
{
	TN_ASSERT(part >= msg && bytes <= size && (uint64_t)(part - msg) <= size - bytes);
}

static void batch(const uint8_t *msg, uint64_t size, uint64_t row_bytes)
{
	uint8_t out[TN_PS_BATCH_BYTES];
	tn_ps_batch b, shorter;

	if (!tn_ps_batch_head(msg, size, &b))
		return;
	TN_ASSERT(b.low_water <= b.seq);
	tn_ps_batch_encode(out, &b);
	TN_ASSERT(memcmp(out, msg, sizeof(out)) == 0);
	shorter = b;
	if (!tn_ps_batch_body(msg, size, row_bytes, &b))
		return;
	within(msg, size, b.keys, b.count * 8);
	if (b.places)
		within(msg, size, b.places, b.count * 4);
	if (b.grads)
		within(msg, size, b.grads, b.count * row_bytes);
	if (b.flags & TN_PS_POOLED)
		within(msg, size, b.bag_keys, (uint64_t)b.bags * 4);
	TN_ASSERT(!tn_ps_batch_body(msg, size - 1, row_bytes, &shorter));
}

static void answer(const uint8_t *msg, uint64_t size, uint64_t count, bool found, uint64_t row_bytes)
{
	uint8_t out[TN_PS_ANSWER_BYTES];
	tn_ps_answer a;

	if (!tn_ps_answer_decode(msg, size, count, found, row_bytes, &a))
		return;
	if (a.found_bits)
		within(msg, size, a.found_bits, (count + 7) / 8);
	if (a.rows)
		within(msg, size, a.rows, count * row_bytes);
	tn_ps_answer_encode(out, &a);
	TN_ASSERT(memcmp(out, msg, sizeof(out)) == 0);
}

static void schema(const uint8_t *msg, uint64_t size)
{
	uint8_t out[TN_PS_SCHEMA_BYTES];
	tern_table_schema s, again;
	uint64_t used, n;

	if (!tn_ps_schema_decode(msg, size, &s, &used))
		return;
	TN_ASSERT(used <= size && memchr(s.name, 0, sizeof(s.name)));
	n = tn_ps_schema_encode(out, sizeof(out), &s);
	TN_ASSERT(n == used && tn_ps_schema_decode(out, n, &again, &used));
	TN_ASSERT(tn_ps_schema_hash(&s) == tn_ps_schema_hash(&again));
	(void)tern_dtype_name(s.dtype);
}

/* What members of summed groups bring. */
static void round_of(const uint8_t *msg, uint64_t size)
{
	uint8_t out[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX];
	tn_ps_stage s;
	tn_ps_close c;

	if (tn_ps_stage_decode(msg, size, &s)) {
		within(msg, size, s.keys, s.count * 8);
		within(msg, size, s.rows, s.row_bytes);
		tn_ps_stage_encode(out, &s);
		TN_ASSERT(memcmp(out, msg, TN_PS_STAGE_BYTES) == 0);
	}
	if (tn_ps_close_decode(msg, size, &c))
		TN_ASSERT(tn_ps_close_encode(out, &c) == size && memcmp(out, msg, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t stats_out[TN_PS_STATS_BYTES];
	char name[TERN_TABLE_NAME_MAX];
	tern_table_stats stats;

	if (size < 4)
		return 0;
	batch(data + 3, size - 3, data[0] * (uint64_t)data[1]);
	answer(data + 3, size - 3, data[0], data[2] & 1, data[1]);
	schema(data, size);
	round_of(data, size);
	if (tn_ps_name_decode(data, size, name, sizeof(name)))
		TN_ASSERT(memchr(name, 0, sizeof(name)));
	if (tn_ps_stats_decode(data, size, &stats))
		tn_ps_stats_encode(stats_out, &stats);
	return 0;
}

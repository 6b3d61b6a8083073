/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that pulls bring, from where they came to where the caller wants them: copied to their places, unpacked, and those
 * of bags put together.
 *
 *   bags over several servers   each sums the keys that it has; a part knows its bags in ascending order, so one pass
 *                               over all bags with a place in each part adds them up, in the order of the parts. It is
 *                               done when all parts are: sums do not depend on who answers first
 *
 * Threads: as parts (client.h); combine in the thread that completes the call. Tests: tests/unit/ps/pool_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ps/client.h"
#include "ps/travel.h"

uint64_t tn_ps_part_rows(const ps_part *part)
{
	const ps_call *call = part->call;

	return !call->pool ? part->count : part->places ? part->bags : call->bags;
}

bool tn_ps_part_plain(const ps_part *part)
{
	const ps_call *call = part->call;

	return call->travel == call->dtype && !(call->pool && part->places);
}

/* ---- bags ---- */

const uint32_t *tn_ps_bags_of_keys(ps_call *call)
{
	if (!tn_ps_grow(&call->bag_of, &call->bag_of_room, call->count * sizeof(*call->bag_of)))
		return NULL;
	for (uint64_t b = 0; b < call->bags; b++)
		for (uint64_t k = call->offsets[b]; k < call->offsets[b + 1]; k++)
			call->bag_of[k] = (uint32_t)b;
	return call->bag_of;
}

bool tn_ps_part_bags(ps_part *part)
{
	uint64_t most = TN_MIN(part->count, part->call->bags);
	uint32_t *ids, *keys;

	if (!tn_ps_grow(&part->bags_buf, &part->bags_room, 2 * most * sizeof(*ids)))
		return false;
	ids = part->bags_buf;
	keys = ids + most;
	part->bags = 0;
	for (uint64_t i = 0; i < part->count; i++) {
		if (part->bags == 0 || ids[part->bags - 1] != part->places[i]) {
			ids[part->bags] = part->places[i];
			keys[part->bags++] = 0;
		}
		keys[part->bags - 1]++;
	}
	return true;
}

uint64_t tn_ps_part_put_bags(const ps_part *part, uint8_t *to)
{
	const ps_call *call = part->call;
	/* Who has only some keys of a bag can't know its mean. */
	uint32_t head[2] = {part->places ? TERN_POOL_SUM : (uint32_t)call->pool,
			    (uint32_t)tn_ps_part_rows(part)};
	uint8_t *at = to + sizeof(head);

	memcpy(to, head, sizeof(head));
	if (part->places) {
		memcpy(at, part->bags_buf + TN_MIN(part->count, call->bags), head[1] * sizeof(uint32_t));
	} else {
		for (uint32_t b = 0; b < head[1]; b++) {
			uint32_t n = (uint32_t)(call->offsets[b + 1] - call->offsets[b]);

			memcpy(at + b * sizeof(n), &n, sizeof(n));
		}
	}
	return sizeof(head) + head[1] * sizeof(uint32_t);
}

/* ---- rows ---- */

static void count_copy(const ps_call *call, uint64_t rows)
{
	TN_PS_COUNT(call->ps->counters, copies, 1);
	TN_PS_COUNT(call->ps->counters, copy_bytes, rows * call->row_bytes);
}

/* As they lie already. */
static void scatter(const ps_part *part, const uint8_t *from, uint64_t n)
{
	const ps_call *call = part->call;

	if (!part->places && call->stride == call->row_bytes) {
		memcpy(call->rows, from, n * call->row_bytes);
		return;
	}
	for (uint64_t i = 0; i < n; i++)
		memcpy(call->rows + (part->places ? part->places[i] : i) * call->stride,
		       from + i * call->row_bytes, call->row_bytes);
}

static bool sum_reserve(ps_call *call)
{
	if (tn_ps_grow(&call->sum, &call->sum_room, 2 * sizeof(float) * call->table->schema.dim))
		return true;
	tn_ps_call_fault(call, TERN_E_NOMEM, "no memory for a row of %u", call->table->schema.dim);
	return false;
}

static void unpack(const ps_part *part, const uint8_t *from, uint64_t n)
{
	ps_call *call = part->call;
	uint32_t dim = call->table->schema.dim;

	if (!sum_reserve(call))
		return;
	for (uint64_t i = 0; i < n; i++) {
		tn_ps_travel_unpack(call->sum, from + i * call->travel_bytes, call->travel, dim);
		tn_ps_travel_pack(call->rows + (part->places ? part->places[i] : i) * call->stride,
				  call->dtype, call->sum, dim);
	}
}

void tn_ps_part_take(ps_part *part, const uint8_t *rows)
{
	ps_call *call = part->call;
	uint64_t n = tn_ps_part_rows(part);

	if (call->pool && part->places) {
		part->result = rows;
		return;
	}
	call->whole = true;
	if (call->travel == call->dtype)
		scatter(part, rows, n);
	else
		unpack(part, rows, n);
	count_copy(call, n);
}

/* ---- pooled by several ---- */

/* What a part has summed of its bag number `taken`, to the sum. */
static void add_bag(ps_call *call, ps_part *part, uint64_t taken, float *row)
{
	uint32_t dim = call->table->schema.dim;

	tn_ps_travel_unpack(row, part->result + taken * call->travel_bytes, call->travel, dim);
	for (uint32_t i = 0; i < dim; i++)
		call->sum[i] += row[i];
}

static void combine_bag(ps_call *call, uint64_t bag)
{
	uint32_t dim = call->table->schema.dim;
	uint64_t keys = call->offsets[bag + 1] - call->offsets[bag];

	memset(call->sum, 0, dim * sizeof(*call->sum));
	TN_LIST_FOREACH(node, &call->parts) {
		ps_part *part = TN_LIST_ENTRY(node, ps_part, node);

		if (part->result && part->taken < part->bags && part->bags_buf[part->taken] == bag)
			add_bag(call, part, part->taken++, call->sum + dim);
	}
	for (uint32_t i = 0; call->pool == TERN_POOL_MEAN && keys > 0 && i < dim; i++)
		call->sum[i] /= (float)keys;
	tn_ps_travel_pack(call->rows + bag * call->stride, call->dtype, call->sum, dim);
}

void tn_ps_call_combine(ps_call *call)
{
	if (!call->pool || call->whole || call->bags == 0 || !sum_reserve(call))
		return;
	TN_LIST_FOREACH(node, &call->parts)
		TN_LIST_ENTRY(node, ps_part, node)->taken = 0;
	for (uint64_t b = 0; b < call->bags; b++)
		combine_bag(call, b);
	count_copy(call, call->bags);
}

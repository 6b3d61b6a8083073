/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory devices may still touch: by requests that were posted and are not over, and by what is under way.
 * Threads: none. Tests: sim-smoke, the mutants.
 */
#include <string.h>

#include "sim/device.h"

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
	const uint8_t *x = a, *y = b;

	return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

bool sim_dev_uses(sim_world *world, const void *ptr, uint64_t bytes)
{
	for (uint32_t i = 0; i < world->lane_count; i++) {
		const sim_lane *lane = world->lanes[i];

		for (uint32_t k = 0; lane && lane->live && k < lane->dev->caps.lane_wrs_max; k++) {
			const sim_wr *wr = &lane->wrs[k];

			/* What is over is not touched any more, polled or not. */
			for (int p = 0; wr->live && !wr->silent && !wr->over && p < wr->pieces; p++) {
				if (overlap(wr->iov[p].base, wr->iov[p].bytes, ptr, bytes))
					return true;
			}
		}
	}
	return false;
}

/* Where a write goes, as long as its key lets it. NULL: nowhere. */
static const uint8_t *target(const sim_node *node, const tn_key *key, uint64_t offset, uint64_t n)
{
	tern_mem *mem = node->ctx ? tern_ctx_mem(node->ctx) : NULL;
	const tn_extent *ext;
	uint64_t at;
	uint32_t index;

	if (!mem || tn_key_check(tn_mem_keys(mem), key, offset, n, TERN_ACCESS_WRITE, &index, &at) != TERN_OK)
		return NULL;
	ext = tn_mem_extent(mem, index);
	return ext ? (const uint8_t *)ext->base + at : NULL;
}

/* Memory of a node that somebody asks about. */
typedef struct region {
	const sim_node *node;
	const uint8_t *from;
	uint64_t bytes;
	bool changes; /* only what is not there already counts */
} region;

/* A write of n bytes from data. */
static bool hits(const region *r, const tn_key *key, uint64_t offset, uint64_t n, const uint8_t *data)
{
	const uint8_t *at = target(r->node, key, offset, n), *from, *end;

	if (!at || !overlap(at, n, r->from, r->bytes))
		return false;
	from = TN_MAX(at, r->from);
	end = TN_MIN(at + n, r->from + r->bytes);
	return !r->changes || memcmp(from, data + (from - at), (size_t)(end - from)) != 0;
}

static bool is_write(sim_kind kind)
{
	return kind == SIM_WRITE || kind == SIM_WRITE_IMM;
}

/* Accepted, and not taken from its queue yet. */
static bool lane_hits(sim_world *world, const sim_lane *lane, const region *r)
{
	const sim_lane *to;

	if (!lane || !lane->live || lane->state != SIM_LANE_UP)
		return false;
	to = sim_lane_get(world, lane->peer);
	if (!to || to->state != SIM_LANE_UP || to->dev->node != r->node)
		return false;
	for (uint32_t k = 0; k < lane->dev->caps.lane_wrs_max; k++) {
		const sim_wr *wr = &lane->wrs[k];

		if (wr->live && !wr->sent && is_write(wr->kind) &&
		    hits(r, &wr->key, wr->offset, wr->bytes, wr->copy ? wr->copy : wr->iov[0].base))
			return true;
	}
	return false;
}

static bool is_hit(sim_world *world, const region *r)
{
	for (const sim_item *item = world->items; item; item = item->next) {
		const sim_lane *to = sim_lane_get(world, item->to);

		if (is_write(item->kind) && to && to->state == SIM_LANE_UP && to->dev->node == r->node &&
		    hits(r, &item->key, item->offset, item->bytes, item->data))
			return true;
	}
	for (uint32_t i = 0; i < world->lane_count; i++)
		if (lane_hits(world, world->lanes[i], r))
			return true;
	return false;
}

bool sim_dev_reaches(sim_world *world, const sim_node *node, const void *ptr, uint64_t bytes)
{
	return is_hit(world, &(region){node, ptr, bytes, false});
}

bool sim_dev_changes(sim_world *world, const sim_node *node, const void *ptr, uint64_t bytes)
{
	return is_hit(world, &(region){node, ptr, bytes, true});
}

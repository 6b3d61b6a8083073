/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a context: its own and its links' ("channel.*", "link.*"), devices', memory's and those of the
 * layers above. A link that ends leaves its numbers to the context.
 * Threads: any. Tests: tests/unit/channel/test_ctx.c.
 */
#include "base/counters.h"

#include "channel/channel_impl.h"
#include "channel/shell.h"

TN_COUNTERS_NAMES(channel_names, TN_CHANNEL_COUNTERS)
TN_COUNTERS_NAMES(link_names, TN_LINK_COUNTERS)

#define CHANNEL_COUNT (sizeof(tn_channel_counters) / sizeof(tn_counter))
#define LINK_COUNT    (sizeof(tn_link_counters) / sizeof(tn_counter))

_Static_assert(sizeof(tn_link_counters) == sizeof(((tern_ctx *)0)->link_sums), "sums of link counters");

static void add(tn_counter *sums, const tn_counter *values, size_t n)
{
	for (size_t i = 0; i < n; i++)
		tn_count(&sums[i], tn_counter_read(&values[i]));
}

void tn_shell_count_link(tern_link *link)
{
	add((tn_counter *)&link->ctx->counters, (const tn_counter *)&link->counters, CHANNEL_COUNT);
	add(link->ctx->link_sums, (const tn_counter *)tn_link_get_counters(link->m), LINK_COUNT);
	tn_lock_take(&link->ctx->table_lock);
	link->counted = true;
	tn_lock_drop(&link->ctx->table_lock);
}

void tern_ctx_counters(tern_ctx *ctx, tern_counter_fn fn, void *arg)
{
	tn_channel_counters channels = {0};
	tn_link_counters links = {0};

	if (tn_ctx_enter(ctx) != TERN_OK)
		return;
	add((tn_counter *)&channels, (const tn_counter *)&ctx->counters, CHANNEL_COUNT);
	add((tn_counter *)&links, ctx->link_sums, LINK_COUNT);
	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->links) {
		tern_link *link = TN_LIST_ENTRY(node, tern_link, node);

		if (link->counted)
			continue;
		add((tn_counter *)&channels, (const tn_counter *)&link->counters, CHANNEL_COUNT);
		add((tn_counter *)&links, (const tn_counter *)tn_link_get_counters(link->m), LINK_COUNT);
	}
	tn_lock_drop(&ctx->table_lock);
	tn_counters_each(channel_names, &channels, "channel", fn, arg);
	tn_counters_each(link_names, &links, "link", fn, arg);
	fn("channel.live_bytes",
	   tn_counter_read(&channels.live) * (sizeof(tern_channel) + tn_link_channel_bytes()), arg);
	fn("link.up", tn_counter_read(&channels.links_up), arg);
	fn("link.down", tn_counter_read(&channels.links_down), arg);
	for (unsigned i = 0; i < ctx->dev_count; i++)
		ctx->devs[i].dev->ops->counters(ctx->devs[i].dev, fn, arg);
	tn_mem_counters(ctx->mem, fn, arg);
	for (int i = 0; i < TN_SLOT_COUNT; i++) {
		tn_ctx_slot *slot = tn_ctx_slot_get(ctx, (tn_ctx_slot_id)i);

		if (slot && slot->counters)
			slot->counters(slot, fn, arg);
	}
}

typedef struct lookup {
	const char *name;
	uint64_t value;
} lookup;

static void match(const char *name, uint64_t value, void *arg)
{
	lookup *look = arg;

	if (strcmp(name, look->name) == 0)
		look->value = value;
}

uint64_t tern_ctx_counter(tern_ctx *ctx, const char *name)
{
	lookup look = {.name = name};

	tern_ctx_counters(ctx, match, &look);
	return look.value;
}

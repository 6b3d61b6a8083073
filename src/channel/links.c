/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What links a context has, for people and monitors.
 * Threads: any; fn runs without locks. Tests: tests/unit/channel/test_link.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "channel/shell.h"

#define DUMP_BYTES 32768u

/* The link of the least number above `number`, with a reference; NULL: none. */
static tern_link *next_link(tern_ctx *ctx, uint64_t number)
{
	tern_link *found = NULL;

	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->links) {
		tern_link *l = TN_LIST_ENTRY(node, tern_link, node);

		if (l->number > number && !l->gone && (!found || l->number < found->number))
			found = l;
	}
	if (found)
		tn_shell_ref(found);
	tn_lock_drop(&ctx->table_lock);
	return found;
}

static void info_init(tern_link *link, tern_link_info *info, char *dump)
{
	const tn_link_counters *c = tn_link_get_counters(link->m);

	info->peer_name = tern_link_peer_name(link);
	info->peer_address = tern_link_peer_address(link);
	info->transport = tern_link_transport(link);
	info->state = tern_link_get_state(link);
	tn_lock_take(&link->lock);
	info->in_flight = tn_link_in_flight(link->m);
	TN_LIST_FOREACH(node, &link->channels)
		info->channels++;
	TN_LIST_FOREACH(node, &link->lanes)
		info->lanes++;
	info->operations = tn_counter_read(&c->ops);
	info->operations_failed = tn_counter_read(&c->ops_failed);
	info->messages_sent = tn_counter_read(&c->messages_tx);
	info->messages_received = tn_counter_read(&c->messages_rx);
	info->credit_waits = tn_counter_read(&c->credit_waits);
	info->window_waits = tn_counter_read(&c->window_waits);
	info->recoveries = tn_counter_read(&c->recoveries);
	info->fallbacks = tn_counter_read(&c->fallbacks);
	info->returns = tn_counter_read(&c->returns);
	if (dump)
		tn_link_print(link->m, dump, DUMP_BYTES);
	tn_lock_drop(&link->lock);
	info->dump = dump ? dump : "";
}

void tern_ctx_links(tern_ctx *ctx, uint32_t flags, tern_link_info_fn fn, void *arg)
{
	char *dump = flags & TERN_LINKS_DUMP ? calloc(1, DUMP_BYTES) : NULL;
	tern_link *link;
	uint64_t number = 0;

	if (tn_ctx_enter(ctx) != TERN_OK) {
		free(dump);
		return;
	}
	while ((link = next_link(ctx, number)) != NULL) {
		tern_link_info info = {0};

		number = link->number;
		info_init(link, &info, dump);
		fn(&info, arg);
		tn_shell_unref(link);
	}
	free(dump);
}

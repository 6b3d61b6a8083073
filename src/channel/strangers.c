/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes room in the backlog. A stranger keeps his place for a grace that an honest hello never needs; then,
 * if others wait, the oldest of the address that holds most goes. So whoever opens many connections and says
 * nothing (or a byte a second) competes with himself, and an honest peer waits at most for those before it in
 * the kernel's queue. A burst of honest peers loses nobody: they come in as the hellos before them end.
 *
 * Threads: the driver. Tests: tests/unit/channel/test_strangers.c.
 */
#include "channel/strangers.h"

#include <netinet/in.h>

#include "base/log.h"

#define BUCKETS 256u

void tn_strangers_load(const tern_ctx *ctx, tn_strangers_limits *limits)
{
	limits->backlog = tn_opt_u64(ctx->options, tn_ctx_option_rows, "backlog");
	limits->per_address = tn_opt_u64(ctx->options, tn_ctx_option_rows, "backlog_per_address");
	limits->grace_ns = tn_opt_u64(ctx->options, tn_ctx_option_rows, "hello_grace");
}

/* FNV-1a behind the incarnation: who shares a bucket is nothing that a stranger can choose. */
static uint32_t origin_of(const tern_ctx *ctx, const tn_addr *peer)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&peer->sa;
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)&peer->sa;
	uint8_t bytes[sizeof(ctx->incarnation) + 8] = {0};
	uint32_t hash = 2166136261u;

	memcpy(bytes, ctx->incarnation, sizeof(ctx->incarnation));
	if (peer->sa.ss_family != AF_INET6)
		memcpy(bytes + sizeof(ctx->incarnation), &in4->sin_addr, 4);
	else if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		memcpy(bytes + sizeof(ctx->incarnation), in6->sin6_addr.s6_addr + 12, 4);
	else
		memcpy(bytes + sizeof(ctx->incarnation), &in6->sin6_addr, 8);
	for (size_t i = 0; i < sizeof(bytes); i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	return hash ^ hash >> 16;
}

void tn_strangers_note(tern_link *link, const tn_addr *peer, uint64_t now_ns)
{
	link->origin = origin_of(link->ctx, peer);
	link->born_ns = now_ns;
}

/* Table lock held. Without a secret nobody can prove anything. */
static bool is_stranger(const tern_ctx *ctx, const tern_link *link)
{
	return link->counted_hello && !(link->proved && ctx->secrets.any);
}

/* The oldest stranger of the fullest bucket, with a reference. NULL: there is none. */
static tern_link *choose(tern_ctx *ctx)
{
	uint32_t counts[BUCKETS] = {0}, most = 0;
	tern_link *found = NULL;

	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->links) {
		tern_link *link = TN_LIST_ENTRY(node, tern_link, node);

		if (is_stranger(ctx, link))
			most = TN_MAX(most, ++counts[link->origin % BUCKETS]);
	}
	/* In the order of their birth. One whose hello counts still has the context's reference. */
	TN_LIST_FOREACH(node, &ctx->links) {
		tern_link *link = TN_LIST_ENTRY(node, tern_link, node);

		if (found || !is_stranger(ctx, link) || counts[link->origin % BUCKETS] < most)
			continue;
		found = link;
		tn_shell_ref(link);
	}
	tn_lock_drop(&ctx->table_lock);
	return found;
}

static void evict(tern_link *link, const tn_strangers_limits *limits, uint64_t now_ns)
{
	tern_ctx *ctx = link->ctx;

	tn_count(&ctx->counters.conns_evicted, 1);
	TN_LOG_LIMITED(
		WARN, CHANNEL, 1,
		"%llu connections in their hello (ctx.backlog): the oldest of the busiest address, %s, "
		"makes room",
		(unsigned long long)limits->backlog, link->names.peer_address);
	tn_lock_take(&link->lock);
	if (!link->gone) {
		tn_link_abort(link->m, TERN_E_LIMIT,
			      "others wait, and its hello took longer than ctx.hello_grace", now_ns);
		tn_shell_run(link, now_ns);
	}
	tn_lock_drop(&link->lock);
	tn_shell_hello_over(link);
}

bool tn_strangers_room(tern_ctx *ctx, const tn_strangers_limits *limits, bool may_evict, uint64_t *again_ns)
{
	uint64_t now = tn_ctx_now(ctx);
	tern_link *oldest;
	bool room;

	tn_lock_take(&ctx->table_lock);
	room = ctx->hello_count < limits->backlog;
	tn_lock_drop(&ctx->table_lock);
	*again_ns = now + limits->grace_ns;
	if (room || !may_evict)
		return room;
	oldest = choose(ctx);
	if (!oldest)
		return false;
	room = now - oldest->born_ns >= limits->grace_ns;
	*again_ns = oldest->born_ns + limits->grace_ns;
	if (room)
		evict(oldest, limits, now);
	tn_shell_unref(oldest);
	return room;
}

bool tn_strangers_welcome(tern_ctx *ctx, const tn_strangers_limits *limits, const tn_addr *peer)
{
	uint32_t origin = origin_of(ctx, peer);
	char text[TN_ADDRESS_MAX];
	uint64_t n = 0;

	if (!limits->per_address)
		return true;
	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->links) {
		const tern_link *link = TN_LIST_ENTRY(node, tern_link, node);

		n += is_stranger(ctx, link) && link->origin == origin;
	}
	tn_lock_drop(&ctx->table_lock);
	if (n < limits->per_address)
		return true;
	tn_addr_format(peer, text, sizeof(text));
	tn_count(&ctx->counters.conns_refused, 1);
	TN_LOG_LIMITED(
		WARN, CHANNEL, 1,
		"%llu connections in their hello from one address (ctx.backlog_per_address): one more, "
		"%s, was closed",
		(unsigned long long)n, text);
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a context's links borrow now and then (link/share.h): slabs from the C library.
 * Threads: any. Tests: tests/unit/link/store_test.c, tests/unit/channel.
 */
#include <stdlib.h>

#include "channel/ctx_impl.h"
#include "channel/devices.h"

static void *get(size_t bytes, void *arg)
{
	(void)arg;
	return aligned_alloc(TN_CACHE_LINE, bytes);
}

static void put(void *memory, size_t bytes, void *arg)
{
	(void)bytes;
	(void)arg;
	free(memory);
}

void tn_shell_store_init(tern_ctx *ctx)
{
	tn_share_lock lock = {tn_share_lock_take, tn_share_lock_drop, &ctx->store_lock};
	tn_store_source source = {.get = get, .put = put};

	tn_lock_init(&ctx->store_lock, ctx->single_owner);
	tn_link_store_init(&ctx->store, &source, &lock);
}

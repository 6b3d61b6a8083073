/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of a cluster in the test's process: a context of its own, and an end whenever the test wants. Threads: one at a
 * time.
 */
#ifndef TESTS_SUPPORT_PS_NODE_H
#define TESTS_SUPPORT_PS_NODE_H

#include <tern/ps.h>

#include "cmocka_all.h"

typedef struct ps_node {
	tern_ctx *ctx; /* NULL: it does not run */
	tern_ps_server *server;
} ps_node;

static inline void ps_node_begin(ps_node *n, const tern_ctx_params *ctx, const tern_ps_server_params *server)
{
	if (tern_ctx_create(ctx, &n->ctx) != TERN_OK)
		fail_msg("context: %s", tern_detail());
	if (tern_ps_server_open(n->ctx, server, &n->server) != TERN_OK)
		fail_msg("server %s: %s", ctx->name, tern_detail());
}

/* Nothing if it does not run. */
static inline void ps_node_end(ps_node *n)
{
	if (!n->ctx)
		return;
	tern_ps_server_close(n->server);
	tern_ctx_destroy(n->ctx);
	n->ctx = NULL;
}

#endif

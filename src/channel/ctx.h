/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context in two steps, for the composition root: between them layers above register their services,
 * so that no peer can meet a node whose services are not there yet. Options need no list: each layer
 * registers its rows with TN_OPTION_TABLE.
 *
 * Threads: one, before the context is shared. Tests: tests/unit/channel.
 */
#ifndef TN_CHANNEL_CTX_H
#define TN_CHANNEL_CTX_H

#include <tern/ctx.h>

#include "base/clock.h"

struct tn_provider;

/* Everything but: the listener is bound and does not accept yet, the helper does not run. */
tern_status tn_ctx_new(const tern_ctx_params *params, tern_ctx **ctx);
/* Accept and run the helper. On error the context is only good for tern_ctx_destroy. */
tern_status tn_ctx_start(tern_ctx *ctx);

/*
 * A world in place of the OS (sim): time, networks and devices of a single-owner context. Everything else is what
 * production runs.
 */
typedef struct tn_ctx_hooks {
	const tn_clock *clock;
	/* Looked through before the registry; NULL-terminated. */
	const struct tn_provider *const *providers;
	/* A connected stream socket to "127.0.0.1:4001"; -1 and errno if there is none. */
	int (*dial)(void *arg, const char *address);
	/* A control connection was written to, or closed: its other end has something to carry. */
	void (*wrote)(void *arg);
	/* In place of sleeping: let something happen, until then at most. Makes progress of the context as well. */
	void (*turn)(void *arg, uint64_t until_ns);
	void *arg;
} tn_ctx_hooks;

/* The hooks must live as long as the context. */
tern_status tn_ctx_new_with(const tern_ctx_params *params, const tn_ctx_hooks *hooks, tern_ctx **ctx);
/* Take over an accepted control connection from that address. */
tern_status tn_ctx_welcome(tern_ctx *ctx, int fd, const char *address);
/* Everything that can be done now, timers included. Returns when to call again if nothing comes in before. */
uint64_t tn_ctx_run(tern_ctx *ctx);

#endif

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

/* Everything but: the listener is bound and does not accept yet, the helper does not run. */
tern_status tn_ctx_new(const tern_ctx_params *params, tern_ctx **ctx);
/* Accept and run the helper. On error the context is only good for tern_ctx_destroy. */
tern_status tn_ctx_start(tern_ctx *ctx);

#endif

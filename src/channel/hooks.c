/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a world that is not the OS drives a context: see tn_ctx_hooks. Production contexts have no hooks.
 *
 * Threads: the owner's. Tests: sim.
 */
#include "base/fail.h"
#include "channel/ctx_impl.h"
#include "channel/shell.h"

tern_status tn_ctx_welcome(tern_ctx *ctx, int fd, const char *address)
{
	tn_addr peer;
	tern_status status = tn_addr_resolve(address, false, &peer);

	if (status != TERN_OK) {
		tn_os_close(&fd);
		return status;
	}
	tn_shell_welcome(ctx, fd, &peer);
	return TERN_OK;
}

uint64_t tn_ctx_run(tern_ctx *ctx)
{
	uint64_t now = tn_ctx_now(ctx);
	int n;

	TN_ASSERT(ctx->hooks && ctx->single_owner && !tn_in_dispatch());
	if (!tn_role_try(ctx))
		return TN_TIME_NEVER;
	do {
		ctx->look_at_control = true;
		n = tn_progress_round(ctx);
		n += tn_ctx_timers_run(ctx, now);
	} while (n > 0 || tn_progress_pending(ctx));
	tn_role_give(ctx);
	return TN_MIN(tn_ctx_timers_next(ctx), tn_shell_reap_wake(ctx, now));
}

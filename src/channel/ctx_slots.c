/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers above hang on a context. See ctx_slots.h; timers and deferred work: dispatch.c.
 * Threads: any. Tests: tests/unit/channel/test_ctx.c.
 */
#include "channel/ctx_slots.h"

#include "base/check.h"
#include "channel/ctx_impl.h"

tn_ctx_slot *tn_ctx_slot_get(tern_ctx *ctx, tn_ctx_slot_id id)
{
	TN_ASSERT(id < TN_SLOT_COUNT);
	return atomic_load_explicit(&ctx->slots[id], memory_order_acquire);
}

tn_ctx_slot *tn_ctx_slot_set(tern_ctx *ctx, tn_ctx_slot_id id, tn_ctx_slot *slot)
{
	tn_ctx_slot *winner = NULL;

	TN_ASSERT(id < TN_SLOT_COUNT && slot);
	if (atomic_compare_exchange_strong_explicit(&ctx->slots[id], &winner, slot, memory_order_acq_rel,
						    memory_order_acquire))
		return slot;
	return winner;
}

const tn_options *tn_ctx_options(tern_ctx *ctx)
{
	return ctx->options;
}

uint64_t tn_ctx_now(tern_ctx *ctx)
{
	return tn_clock_now(ctx->clock);
}

uint64_t tn_ctx_soon(tern_ctx *ctx, uint64_t timeout_ns, bool *exact)
{
	*exact = *exact || timeout_ns < TN_SOON_FROM_NS || ctx->clock != &tn_clock_monotonic;
	return *exact ? tn_clock_now(ctx->clock) : tn_now_coarse() + TN_SOON_NS;
}

bool tn_ctx_single_owner(const tern_ctx *ctx)
{
	return ctx->single_owner;
}

tern_status tn_ctx_usable(const tern_ctx *ctx)
{
	return tn_ctx_enter(ctx);
}

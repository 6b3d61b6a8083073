/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public functions on links.
 * Threads: any. Tests: tests/unit/channel/test_link.c.
 */
#include <sched.h>
#include <stdio.h>

#include "base/fail.h"
#include "base/os.h"
#include "channel/queue.h"
#include "channel/shell.h"

tern_status tern_link_connect(tern_ctx *ctx, const char *address, const tern_connect_params *params,
			      tern_link **out)
{
	static const tern_connect_params none = {0};
	tern_link *link;
	tn_addr target;

	*out = NULL;
	if (!params)
		params = &none;
	TN_TRY(tn_ctx_enter(ctx));
	TN_TRY(tn_addr_resolve(address, false, &target));
	TN_TRY(tn_shell_link_new(ctx, false, params->transports, &link));
	link->target = target;
	tn_addr_format(&target, link->names.peer_address, sizeof(link->names.peer_address));
	link->retry = params->retry != 0;
	link->on_down = params->on_down;
	link->on_down_arg = params->arg;
	link->on_up = params->on_up;
	link->timeout_ns = params->timeout_ns
				   ? params->timeout_ns
				   : tn_opt_u64(ctx->options, tn_link_option_rows, "connect_timeout");
	tn_shell_ref(link); /* the user's */
	*out = link;
	tn_lock_take(&link->lock);
	link->connect_deadline_ns = tn_deadline(tn_ctx_now(ctx), link->timeout_ns);
	link->errands |= TN_ERRAND_DIAL;
	tn_shell_attention(link);
	tn_shell_run(link, tn_ctx_now(ctx));
	tn_lock_drop(&link->lock);
	return TERN_OK;
}

static bool settled(void *arg)
{
	tern_link *link = arg;

	return atomic_load_explicit(&link->public_state, memory_order_acquire) != TERN_LINK_CONNECTING;
}

tern_status tern_link_wait(tern_link *link, uint64_t timeout_ns)
{
	tern_ctx *ctx = link->ctx;

	TN_TRY(tn_ctx_enter(ctx));
	TN_TRY(tn_wait_until(ctx, settled, link, tn_deadline(timeout_ns ? tn_ctx_now(ctx) : 0, timeout_ns)));
	if (tern_link_get_state(link) == TERN_LINK_UP)
		return TERN_OK;
	if (tern_link_get_state(link) == TERN_LINK_CLOSING)
		return tn_fail(TERN_E_FLUSHED, "the link was closed");
	return tn_fail(tern_link_status(link), "%s", link->down_text);
}

void tern_ctx_on_link(tern_ctx *ctx, void (*on_up)(tern_link *link, void *arg), tern_link_fn on_down,
		      void *arg)
{
	if (tn_ctx_enter(ctx) != TERN_OK)
		return;
	tn_lock_take(&ctx->table_lock);
	ctx->on_link = on_up;
	ctx->on_link_down = on_down;
	ctx->on_link_arg = arg;
	tn_lock_drop(&ctx->table_lock);
	/* The old callback may run in the driver's thread: its arg is the caller's to free when we return. */
	for (;;) {
		uint64_t thread = atomic_load_explicit(&ctx->on_link_thread, memory_order_acquire);

		if (thread == 0 || thread == tn_os_thread_id())
			break;
		sched_yield();
	}
	if (!on_up)
		return;
	if (!atomic_exchange_explicit(&ctx->report_queued, true, memory_order_acq_rel))
		tn_dispatch_push(ctx, &ctx->report_work); /* those that are up already */
}

void tn_shell_report_all(tn_work *work)
{
	tern_ctx *ctx = TN_CONTAINER_OF(work, tern_ctx, report_work);

	atomic_store_explicit(&ctx->report_queued, false, memory_order_release);
	for (uint64_t number = 0;;) {
		tern_link *next = NULL;

		tn_lock_take(&ctx->table_lock);
		TN_LIST_FOREACH(node, &ctx->links) {
			tern_link *link = TN_LIST_ENTRY(node, tern_link, node);

			/* Only the driver, this thread, takes links down: one that is up keeps its reference. */
			if (link->number > number && link->incoming &&
			    atomic_load_explicit(&link->public_state, memory_order_acquire) == TERN_LINK_UP) {
				next = link;
				break;
			}
		}
		tn_lock_drop(&ctx->table_lock);
		if (!next)
			return;
		number = next->number;
		tn_shell_report(next);
	}
}

tern_link_state tern_link_get_state(const tern_link *link)
{
	return (tern_link_state)atomic_load_explicit(&link->public_state, memory_order_acquire);
}

tern_status tern_link_status(const tern_link *link)
{
	return (tern_status)atomic_load_explicit(&link->status, memory_order_acquire);
}

static const char *final_name(const tern_link *link, const char *name)
{
	return atomic_load_explicit(&link->names_final, memory_order_acquire) ? name : "";
}

const char *tern_link_peer_name(const tern_link *link)
{
	return final_name(link, link->names.peer_name);
}

const char *tern_link_peer_address(const tern_link *link)
{
	return link->names.peer_address;
}

const char *tern_link_transport(const tern_link *link)
{
	const char *name = atomic_load_explicit(&link->transport, memory_order_acquire);

	return final_name(link, name ? name : "");
}

const char *tern_link_transport_reason(const tern_link *link)
{
	return final_name(link, link->names.reason);
}

tern_ctx *tern_link_ctx(const tern_link *link)
{
	return link->ctx;
}

uint32_t tern_link_caps(const tern_link *link)
{
	return atomic_load_explicit(&link->caps, memory_order_acquire);
}

void tern_link_close(tern_link *link)
{
	uint64_t now;
	int up = TERN_LINK_UP;

	if (tn_ctx_enter(link->ctx) != TERN_OK)
		return;
	now = tn_ctx_now(link->ctx);
	tn_lock_take(&link->lock);
	link->closed_here = true;
	if (!link->gone) {
		atomic_compare_exchange_strong_explicit(&link->public_state, &up, TERN_LINK_CLOSING,
							memory_order_acq_rel, memory_order_relaxed);
		link->connect_deadline_ns = link->redial_at_ns = TN_TIME_NEVER;
		tn_queue_drain(link);
		tn_link_close(link->m, now);
		tn_shell_run(link, now);
	}
	tn_lock_drop(&link->lock);
}

void tern_link_release(tern_link *link)
{
	if (!link || tn_ctx_enter(link->ctx) != TERN_OK)
		return;
	tern_link_close(link);
	tn_shell_unref(link);
}

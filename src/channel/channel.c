/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: opened, accepted for a service, ended, closed.
 *
 *   opened here: tern_channel_open -> (peer accepts) -> ended | closed
 *   incoming:    on_open -> accepted | refused -> ended | closed
 *   ended:  by the peer, the link, or a message that could not be kept; on_closed ran or runs; the handle
 *           is good until tern_channel_close
 *
 * Threads: any, under link->lock; callbacks from the driver. Tests: tests/unit/channel/test_messages.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/queue.h"

static tern_channel *channel_new(tern_link *link)
{
	tern_channel *channel = aligned_alloc(TN_CACHE_LINE, sizeof(*channel));
	tern_ctx *ctx = link->ctx;

	_Static_assert(sizeof(*channel) % TN_CACHE_LINE == 0, "aligned_alloc");
	if (!channel)
		return NULL;
	memset(channel, 0, sizeof(*channel));
	channel->link = link;
	channel->refs = 1;
	channel->recv_timer.run = tn_channel_recv_timer;
	channel->recv_timer_at = TN_TIME_NEVER;
	tn_list_init(&channel->recvs);
	tn_list_init(&channel->inbox);
	tn_shell_ref(link);
	tn_list_push_back(&link->channels, &channel->node);
	tn_count(&ctx->counters.live, 1);
	return channel;
}

static void set_params(tern_channel *channel, const tern_channel_params *params)
{
	const tn_options *options = channel->link->ctx->options;

	channel->on_message = params->on_message;
	channel->on_notify = params->on_notify;
	channel->on_closed = params->on_closed;
	channel->arg = params->arg;
	channel->message_bytes_max = params->message_bytes_max
					     ? params->message_bytes_max
					     : tn_opt_u64(options, tn_channel_option_rows, "message_max");
}

void tn_channel_unref(tern_channel *channel)
{
	tern_link *link = channel->link;
	tn_list *node;

	TN_ASSERT(channel->refs > 0);
	if (--channel->refs > 0)
		return;
	while ((node = tn_list_pop_front(&channel->inbox)))
		free(TN_LIST_ENTRY(node, tn_inbox_msg, node));
	free(channel->rx_msg);
	free(channel->buf);
	tn_list_remove(&channel->node);
	tn_count(&link->ctx->counters.live, (uint64_t)-1);
	free(channel);
	/* The lock is held: somebody has another reference. */
	TN_ASSERT(atomic_load_explicit(&link->refs, memory_order_relaxed) > 1);
	atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel);
}

tern_status tern_channel_open(tern_link *link, const char *service, const tern_channel_params *params,
			      tern_channel **out)
{
	static const tern_channel_params none = {0};
	tern_channel *channel;
	tern_status status;

	*out = NULL;
	TN_TRY(tn_ctx_enter(link->ctx));
	if (!service || !service[0] || strlen(service) >= TN_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "a service's name has 1 to %d bytes", TN_NAME_MAX - 1);
	tn_lock_take(&link->lock);
	if (link->gone || link->closed_here) {
		status = tern_link_status(link) != TERN_OK ? tern_link_status(link) : TERN_E_FLUSHED;
		tn_lock_drop(&link->lock);
		return tn_fail(status, "%s", link->down_text[0] ? link->down_text : "the link is closing");
	}
	channel = channel_new(link);
	if (!channel) {
		tn_lock_drop(&link->lock);
		return tn_fail(TERN_E_NOMEM, "no memory for a channel");
	}
	set_params(channel, params ? params : &none);
	status =
		tn_link_channel_open(link->m, service, channel, channel->message_bytes_max, &channel->handle);
	if (status == TERN_OK) {
		tn_shell_run(link, tn_ctx_now(link->ctx));
		*out = channel;
	} else {
		tn_channel_unref(channel);
	}
	tn_lock_drop(&link->lock);
	return status;
}

/* ---- services ---- */

tern_status tern_ctx_listen(tern_ctx *ctx, const char *service,
			    tern_status (*on_open)(tern_channel *channel, tern_channel_params *params,
						   void *arg),
			    void *arg)
{
	tn_service *row;
	bool exists = false;

	TN_TRY(tn_ctx_enter(ctx));
	if (!service || !service[0] || strlen(service) >= TN_NAME_MAX || !on_open)
		return tn_fail(TERN_E_INVALID, "a service needs on_open and a name of 1 to %d bytes",
			       TN_NAME_MAX - 1);
	row = calloc(1, sizeof(*row));
	if (!row)
		return tn_fail(TERN_E_NOMEM, "no memory for a service");
	memcpy(row->name, service, strlen(service));
	row->on_open = on_open;
	row->arg = arg;
	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->services)
		exists |= strcmp(TN_LIST_ENTRY(node, tn_service, node)->name, service) == 0;
	if (!exists)
		tn_list_push_back(&ctx->services, &row->node);
	tn_lock_drop(&ctx->table_lock);
	if (!exists)
		return TERN_OK;
	free(row);
	return tn_fail(TERN_E_EXISTS, "the service \"%s\" has an owner in this context", service);
}

/* Rows stay until the context ends. */
static const tn_service *find_service(tern_ctx *ctx, const char *name)
{
	const tn_service *found = NULL;

	tn_lock_take(&ctx->table_lock);
	TN_LIST_FOREACH(node, &ctx->services) {
		tn_service *row = TN_LIST_ENTRY(node, tn_service, node);

		if (strcmp(row->name, name) == 0)
			found = row;
	}
	tn_lock_drop(&ctx->table_lock);
	return found;
}

void tn_channel_incoming(tern_link *link, const tn_link_action *act, const char *service, uint64_t now_ns)
{
	tern_ctx *ctx = link->ctx;
	const tn_service *row = find_service(ctx, service);
	tern_channel_params params = {0};
	uint32_t handle = act->channel.channel;
	tern_channel *channel;
	tern_status status;
	char text[TN_LINK_TEXT_MAX];

	(void)now_ns;
	if (!row) {
		snprintf(text, sizeof(text), "nobody serves \"%s\" there", service);
		tn_link_channel_refuse(link->m, handle, TERN_E_NOT_FOUND, text);
		return;
	}
	channel = channel_new(link);
	if (!channel) {
		tn_link_channel_refuse(link->m, handle, TERN_E_NOMEM, "out of memory");
		return;
	}
	channel->handle = handle;
	channel->unaccepted = true;
	tn_channel_busy_begin(channel);
	tn_detail_clear();
	status = row->on_open(channel, &params, row->arg);
	snprintf(text, sizeof(text), "%s", tn_detail_get());
	tn_channel_busy_end(channel);
	channel->unaccepted = false;
	if (status == TERN_OK && !channel->closed && !link->gone) {
		void *arg = channel->arg;

		set_params(channel, &params);
		if (arg)
			channel->arg = arg; /* tern_channel_set_arg inside on_open */
		status = tn_link_channel_accept(link->m, handle, channel, channel->message_bytes_max);
		if (status == TERN_OK)
			return;
		tn_channel_end(channel, TERN_E_PEER_CLOSED,
			       "the peer gave the channel up before it was accepted");
		return;
	}
	if (!link->gone)
		tn_link_channel_refuse(link->m, handle, status == TERN_OK ? TERN_E_REFUSED : status, text);
	channel->machine_closed = true;
	if (!channel->closed) { /* the owner refused: the handle was never his */
		channel->closed = true;
		tn_channel_unref(channel);
	}
}

/* ---- ends ---- */

void tn_channel_end(tern_channel *channel, tern_status status, const char *detail)
{
	tern_link *link = channel->link;

	if (channel->ended || channel->closed)
		return;
	channel->ended = true;
	channel->status = status;
	channel->detail = tn_details_put(link->ctx, detail && detail[0] ? detail : tern_status_text(status));
	tn_channel_stop_recv(channel, status, channel->detail);
	if (!channel->on_closed)
		return;
	tn_channel_busy_begin(channel);
	tn_detail_set("%s", detail && detail[0] ? detail : tern_status_text(status));
	channel->on_closed(channel, status, channel->arg);
	tn_channel_busy_end(channel);
}

void tn_channel_ended(tern_link *link, const tn_link_action *act, const char *detail)
{
	tern_channel *channel = act->channel.user;
	char label[TN_NAME_MAX + TN_ADDRESS_MAX + 32], text[TN_DETAIL_MAX];
	tern_status status = act->channel.status;

	(void)link;
	if (!channel)
		return;
	snprintf(text, sizeof(text), "%s: %s", tn_shell_label(channel->link, label, sizeof(label)),
		 detail[0] ? detail : tern_status_text(status));
	tn_channel_end(channel, status == TERN_OK ? TERN_E_FLUSHED : status, text);
}

/* Lock held, dropped while waiting: a callback of the channel that another thread runs must end first. */
static void await_callback(tern_channel *channel)
{
	tern_link *link = channel->link;
	uint32_t busy;

	while ((busy = atomic_load_explicit(&channel->busy, memory_order_acquire)) != 0 &&
	       channel->busy_thread != tn_thread_identity()) {
		if (busy == 1)
			atomic_compare_exchange_strong_explicit(&channel->busy, &busy, 2,
								memory_order_acq_rel, memory_order_relaxed);
		tn_lock_drop(&link->lock);
		tn_os_futex_wait(&channel->busy, 2, UINT64_MAX, false);
		tn_lock_take(&link->lock);
	}
}

/* The machine speaks of it no more; what it has said, and the driver is to tell, names a channel that is about to go. */
static void forget_end(tern_link *link, const tern_channel *channel)
{
	if (link->has_stash && link->stash.type == TN_ACT_CHANNEL_CLOSED &&
	    link->stash.channel.user == channel)
		link->stash.channel.user = NULL;
}

void tern_channel_close(tern_channel *channel)
{
	tern_link *link;
	uint64_t detail;

	if (!channel)
		return;
	link = channel->link;
	if (tn_ctx_enter(link->ctx) != TERN_OK)
		return;
	tn_shell_ref(link);
	tn_lock_take(&link->lock);
	TN_ASSERT(!channel->closed);
	tn_queue_drain(link);
	channel->closed = true;
	if (!channel->machine_closed && !channel->unaccepted && !link->gone) {
		tn_link_channel_close(link->m, channel->handle, false);
		channel->machine_closed = true;
		tn_shell_run(link, tn_ctx_now(link->ctx));
	}
	detail = tn_details_put(link->ctx, "the channel was closed");
	tn_channel_stop_recv(channel, TERN_E_FLUSHED, detail);
	await_callback(channel);
	if (channel->recv_timer_used) {
		tn_lock_drop(&link->lock);
		tn_ctx_timer_cancel(link->ctx, &channel->recv_timer);
		tn_lock_take(&link->lock);
	}
	forget_end(link, channel);
	tn_channel_unref(channel);
	tn_lock_drop(&link->lock);
	tn_shell_unref(link);
}

tern_link *tern_channel_link(const tern_channel *channel)
{
	return channel->link;
}

void tern_channel_set_arg(tern_channel *channel, void *arg)
{
	tn_lock_take(&channel->link->lock);
	channel->arg = arg;
	tn_lock_drop(&channel->link->lock);
}

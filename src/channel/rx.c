/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arrives on a channel: messages to on_message or to tern_recv, notifications.
 *
 * A message in one fragment goes to on_message straight from the transport's receive buffer. A longer one is
 * put together in the channel's buffer, which is made at the first such message and kept. With tern_recv a
 * fragment goes into the posted buffer, or into an inbox message when none is posted; a full inbox pauses
 * the channel at the peer.
 *
 * Threads: the driver delivers, any thread receives; all under link->lock, dropped around callbacks.
 * Tests: tests/unit/channel/test_messages.c, test_recv.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/op.h"
#include "mem/gpu.h"

/* ---- busy ---- */

static TN_ALWAYS_INLINE void busy_begin(tern_channel *channel)
{
	TN_ASSERT(atomic_load_explicit(&channel->busy, memory_order_relaxed) == 0);
	channel->busy_thread = tn_thread_identity();
	channel->refs++;
	atomic_store_explicit(&channel->busy, 1, memory_order_relaxed);
	tn_lock_drop(&channel->link->lock);
}

void tn_channel_busy_begin(tern_channel *channel)
{
	busy_begin(channel);
}

static TN_ALWAYS_INLINE void busy_end(tern_channel *channel)
{
	tern_link *link = channel->link;

	tn_lock_take(&link->lock);
	channel->busy_thread = NULL;
	if (link->lock.off) /* nobody can wait for it */
		atomic_store_explicit(&channel->busy, 0, memory_order_relaxed);
	else if (atomic_exchange_explicit(&channel->busy, 0, memory_order_release) == 2)
		tn_os_futex_wake(&channel->busy, INT32_MAX, false);
	if (TN_LIKELY(channel->refs > 1))
		channel->refs--;
	else
		tn_channel_unref(channel);
}

void tn_channel_busy_end(tern_channel *channel)
{
	busy_end(channel);
}

static void call_on_message(tern_channel *channel, const void *msg, uint64_t bytes)
{
	busy_begin(channel);
	channel->on_message(channel, msg, bytes, channel->arg);
	busy_end(channel);
}

/* ---- posted receives ---- */

/* A whole message goes to a posted operation. */
static void finish_recv(tern_channel *channel, tern_op *op, uint64_t bytes)
{
	uint64_t capacity = tn_op_priv_of(op)->capacity;

	tn_op_finish(channel->link->ctx, op, bytes > capacity ? TERN_E_TRUNCATED : TERN_OK, bytes,
		     bytes > capacity
			     ? tn_details_put(
				       channel->link->ctx,
				       "the message is longer than the buffer of tern_recv; its rest is lost")
			     : 0);
}

static void copy_part(void *dst, uint64_t capacity, uint64_t offset, const void *src, uint64_t bytes)
{
	if (offset >= capacity || bytes == 0)
		return;
	memcpy((uint8_t *)dst + offset, src, TN_MIN(bytes, capacity - offset));
}

static tern_op *first_recv(tern_channel *channel)
{
	tn_op_priv *priv = TN_LIST_FIRST(&channel->recvs, tn_op_priv, node);

	return priv ? TN_CONTAINER_OF(priv, tern_op, priv) : NULL;
}

static tn_inbox_msg *new_msg(tern_channel *channel, uint64_t bytes)
{
	tn_inbox_msg *msg = malloc(sizeof(*msg) + bytes);

	if (!msg)
		return NULL;
	memset(&msg->node, 0, sizeof(msg->node));
	msg->bytes = bytes;
	tn_count_own(&channel->link->counters.inbox_copies, 1);
	return msg;
}

/* A whole message into the inbox; the peer is paused when that gets full. */
static void put_inbox(tern_channel *channel, tn_inbox_msg *msg)
{
	if (TN_MUTANT(14))
		tn_list_push_front(&channel->inbox, &msg->node);
	else
		tn_list_push_back(&channel->inbox, &msg->node);
	channel->inbox_bytes += msg->bytes + sizeof(*msg);
	if (channel->inbox_bytes > channel->link->inbox_bytes_max && !channel->paused) {
		channel->paused = true;
		tn_link_channel_pause(channel->link->m, channel->handle);
	}
}

/* ---- fragments ---- */

static void fail_message(tern_channel *channel, tern_status status, const char *why)
{
	channel->skipping = true;
	TN_LOG(WARN, CHANNEL, "a message of %llu bytes was dropped and its channel closed: %s",
	       (unsigned long long)channel->partial_total, why);
	/* An ordered stream with a hole is worth nothing: end it. */
	if (!channel->closed && !channel->ended) {
		tn_link_channel_close(channel->link->m, channel->handle, false);
		channel->machine_closed = true;
		tn_channel_end(channel, status, why);
	}
}

static bool begin_in_buffer(tern_channel *channel, uint64_t total)
{
	if (total <= channel->buf_bytes)
		return true;
	free(channel->buf);
	channel->buf_bytes = 0;
	channel->buf = malloc(total);
	if (!channel->buf)
		return false;
	channel->buf_bytes = total;
	return true;
}

static void begin_message(tern_channel *channel, const tn_link_rx *rx)
{
	tern_op *op = channel->on_message ? NULL : first_recv(channel);
	bool ok = true;

	channel->skipping = false;
	channel->partial_total = rx->total;
	channel->partial_got = 0;
	if (rx->total > channel->message_bytes_max) {
		fail_message(channel, TERN_E_TOO_LARGE, "longer than the channel's message_bytes_max");
		return;
	}
	if (channel->on_message) {
		ok = begin_in_buffer(channel, rx->total);
	} else if (op) {
		tn_list_remove(&tn_op_priv_of(op)->node);
		channel->rx_op = op;
	} else {
		channel->rx_msg = new_msg(channel, rx->total);
		ok = channel->rx_msg != NULL;
	}
	if (!ok)
		fail_message(channel, TERN_E_NOMEM, "out of memory");
}

static void abort_message(tern_channel *channel)
{
	channel->skipping = true;
	free(channel->rx_msg);
	channel->rx_msg = NULL;
	if (channel->rx_op)
		tn_list_push_front(&channel->recvs, &tn_op_priv_of(channel->rx_op)->node);
	channel->rx_op = NULL;
}

static void end_message(tern_channel *channel)
{
	tern_op *op = channel->rx_op;
	tn_inbox_msg *msg = channel->rx_msg;

	channel->rx_op = NULL;
	channel->rx_msg = NULL;
	if (op) {
		finish_recv(channel, op, channel->partial_total);
	} else if (msg) {
		op = first_recv(channel); /* posted while the message was coming in */
		if (op) {
			tn_list_remove(&tn_op_priv_of(op)->node);
			copy_part(tn_op_priv_of(op)->buf, tn_op_priv_of(op)->capacity, 0, msg->data,
				  msg->bytes);
			finish_recv(channel, op, msg->bytes);
			free(msg);
		} else {
			put_inbox(channel, msg);
		}
	} else {
		call_on_message(channel, channel->buf, channel->partial_total);
	}
}

static void fragment(tern_channel *channel, const tn_link_rx *rx)
{
	if (rx->first)
		begin_message(channel, rx);
	if (channel->skipping)
		return;
	tn_count_own(&channel->link->counters.reassembly_bytes, rx->bytes);
	if (channel->rx_op) {
		tn_op_priv *priv = tn_op_priv_of(channel->rx_op);

		copy_part(priv->buf, priv->capacity, rx->offset, rx->data, rx->bytes);
	} else if (channel->rx_msg) {
		copy_part(channel->rx_msg->data, channel->rx_msg->bytes, rx->offset, rx->data, rx->bytes);
	} else {
		copy_part(channel->buf, channel->partial_total, rx->offset, rx->data, rx->bytes);
	}
	channel->partial_got += rx->bytes;
	if (rx->last)
		end_message(channel);
}

/* A message in one fragment. */
static void whole(tern_channel *channel, const tn_link_rx *rx)
{
	tern_op *op;
	tn_inbox_msg *msg;

	if (TN_UNLIKELY(rx->bytes > channel->message_bytes_max)) {
		channel->partial_total = rx->bytes;
		fail_message(channel, TERN_E_TOO_LARGE, "longer than the channel's message_bytes_max");
		return;
	}
	if (TN_LIKELY(channel->on_message != NULL)) {
		call_on_message(channel, rx->data, rx->bytes);
		return;
	}
	op = first_recv(channel);
	if (op) {
		tn_list_remove(&tn_op_priv_of(op)->node);
		copy_part(tn_op_priv_of(op)->buf, tn_op_priv_of(op)->capacity, 0, rx->data, rx->bytes);
		finish_recv(channel, op, rx->bytes);
		return;
	}
	msg = new_msg(channel, rx->bytes);
	if (!msg) {
		channel->partial_total = rx->bytes;
		fail_message(channel, TERN_E_NOMEM, "out of memory");
		return;
	}
	copy_part(msg->data, msg->bytes, 0, rx->data, rx->bytes);
	put_inbox(channel, msg);
}

static TN_ALWAYS_INLINE void notified(tern_channel *channel, const tn_link_rx *rx)
{
	tn_count_own(&channel->link->counters.notifies_rx, 1);
	if (!channel->on_notify) {
		tn_count_own(&channel->link->counters.notifies_dropped, 1);
		return;
	}
	busy_begin(channel);
	channel->on_notify(channel, rx->value, rx->bytes, channel->arg);
	busy_end(channel);
}

TN_ALWAYS_INLINE void tn_channel_notified(tern_link *link, const tn_link_rx *rx)
{
	tern_channel *channel = rx->user;

	if (TN_UNLIKELY(!channel || channel->closed || channel->ended))
		return;
	if (TN_UNLIKELY(tn_gpu_on())) /* asks the pool for it, three lines away */
		tn_mem_flush_gpus(link->ctx->mem);
	notified(channel, rx);
}

static inline void count_message(tern_link *link, uint64_t bytes)
{
	tn_count_own(&link->counters.messages_rx, 1);
	tn_count_own(&link->counters.message_bytes_rx, bytes);
}

TN_ALWAYS_INLINE bool tn_channel_message(tern_link *link, const tn_link_rx *rx)
{
	tern_channel *channel = rx->user;

	if (TN_UNLIKELY(!channel || channel->closed || channel->ended || !channel->on_message ||
			rx->bytes > channel->message_bytes_max)) {
		tn_channel_deliver(link, rx);
		return false;
	}
	count_message(link, rx->bytes);
	busy_begin(channel);
	channel->on_message(channel, rx->data, rx->bytes, channel->arg);
	busy_end(channel);
	return true;
}

void tn_channel_deliver(tern_link *link, const tn_link_rx *rx)
{
	tern_channel *channel = rx->user;

	if (TN_UNLIKELY(!channel || channel->closed || channel->ended))
		return;
	switch (rx->type) {
	case TN_RX_MESSAGE:
		if (rx->last)
			count_message(link, rx->total);
		if (rx->first && rx->last)
			whole(channel, rx);
		else
			fragment(channel, rx);
		break;
	case TN_RX_ABORT:
		abort_message(channel);
		break;
	case TN_RX_NOTIFY:
		tn_channel_notified(link, rx);
		break;
	default:
		break;
	}
}

/* ---- tern_recv ---- */

static void arm_recv_timer(tern_channel *channel, uint64_t at_ns)
{
	channel->recv_timer_used = true;
	if (channel->recv_timer.node.armed && channel->recv_timer_at <= at_ns)
		return;
	channel->recv_timer_at = at_ns;
	tn_ctx_timer_set(channel->link->ctx, &channel->recv_timer, at_ns);
}

void tn_channel_recv_timer(tn_ctx_timer *timer)
{
	tern_channel *channel = TN_CONTAINER_OF(timer, tern_channel, recv_timer);
	tern_link *link = channel->link;
	uint64_t now = tn_ctx_now(link->ctx), next = TN_TIME_NEVER;

	tn_lock_take(&link->lock);
	channel->recv_timer_at = TN_TIME_NEVER;
	TN_LIST_FOREACH_SAFE(node, &channel->recvs) {
		tn_op_priv *priv = TN_LIST_ENTRY(node, tn_op_priv, node);
		tern_op *op = TN_CONTAINER_OF(priv, tern_op, priv);

		if (priv->deadline_ns > now) {
			next = TN_MIN(next, priv->deadline_ns);
			continue;
		}
		tn_list_remove(node);
		tn_op_finish(link->ctx, op, TERN_E_DEADLINE, 0,
			     tn_details_put(link->ctx, "no message came before the deadline of tern_recv"));
	}
	if (next != TN_TIME_NEVER && !channel->closed)
		arm_recv_timer(channel, next);
	tn_lock_drop(&link->lock);
}

static void resume(tern_channel *channel)
{
	if (!channel->paused || channel->inbox_bytes > channel->link->inbox_bytes_max / 2)
		return;
	channel->paused = false;
	if (channel->ended || channel->link->gone)
		return;
	tn_link_channel_resume(channel->link->m, channel->handle);
	tn_shell_run(channel->link, tn_ctx_now(channel->link->ctx));
}

static tern_status recv_locked(tern_channel *channel, void *buf, uint64_t capacity, tern_op *op)
{
	tn_inbox_msg *msg = TN_LIST_FIRST(&channel->inbox, tn_inbox_msg, node);
	tn_op_priv *priv = tn_op_priv_of(op);

	if (channel->on_message)
		return tn_fail(TERN_E_STATE, "this channel has on_message: its messages go there");
	if (channel->closed)
		return tn_fail(TERN_E_STATE, "the channel is closed");
	if (!msg && channel->ended) {
		tn_details_use(channel->link->ctx, channel->detail, channel->status);
		return channel->status;
	}
	TN_TRY(tn_op_begin(op));
	memset(&priv->node, 0, sizeof(priv->node));
	priv->buf = buf;
	priv->capacity = capacity;
	priv->handle = 0;
	priv->deadline_ns =
		op->timeout_ns ? tn_deadline(tn_ctx_now(channel->link->ctx), op->timeout_ns) : TN_TIME_NEVER;
	if (!msg) {
		tn_list_push_back(&channel->recvs, &priv->node);
		if (priv->deadline_ns != TN_TIME_NEVER)
			arm_recv_timer(channel, priv->deadline_ns);
		return TERN_OK;
	}
	tn_list_remove(&msg->node);
	channel->inbox_bytes -= msg->bytes + sizeof(*msg);
	copy_part(buf, capacity, 0, msg->data, msg->bytes);
	finish_recv(channel, op, msg->bytes);
	free(msg);
	resume(channel);
	return TERN_OK;
}

tern_status tern_recv(tern_channel *channel, void *buf, uint64_t capacity, tern_op *op)
{
	tern_link *link = channel->link;
	tern_status status;

	TN_TRY(tn_ctx_enter(link->ctx));
	if (TN_UNLIKELY(tn_gpu_owns(buf)))
		return tn_fail(
			TERN_E_UNSUPPORTED,
			"messages are not received into GPU memory: receive into host memory, or use put "
			"or get");
	tn_lock_take(&link->lock);
	status = recv_locked(channel, buf, capacity, op);
	tn_lock_drop(&link->lock);
	return status;
}

/* Lock held: the operation that fragments go into gives its part to an inbox message. */
static bool detach_rx_op(tern_channel *channel)
{
	tn_op_priv *priv = tn_op_priv_of(channel->rx_op);

	channel->rx_msg = new_msg(channel, channel->partial_total);
	if (!channel->rx_msg)
		return false;
	copy_part(channel->rx_msg->data, channel->partial_total, 0, priv->buf,
		  TN_MIN(priv->capacity, channel->partial_got));
	channel->rx_op = NULL;
	return true;
}

tern_status tn_channel_cancel_recv(tern_channel *channel, tern_op *op)
{
	TN_LIST_FOREACH(node, &channel->recvs) {
		if (TN_LIST_ENTRY(node, tn_op_priv, node) != tn_op_priv_of(op))
			continue;
		tn_list_remove(node);
		tn_op_finish(channel->link->ctx, op, TERN_E_CANCELED, 0, 0);
		return TERN_OK;
	}
	if (channel->rx_op == op) {
		/* A buffer too small for what came so far would lose bytes of the message: let it end then. */
		if (tn_op_priv_of(op)->capacity < channel->partial_got || !detach_rx_op(channel))
			return TERN_OK;
		tn_op_finish(channel->link->ctx, op, TERN_E_CANCELED, 0, 0);
		return TERN_OK;
	}
	return TERN_E_NOT_FOUND;
}

void tn_channel_stop_recv(tern_channel *channel, tern_status status, uint64_t detail)
{
	tn_list *node;

	if (channel->rx_op) {
		tn_op_finish(channel->link->ctx, channel->rx_op, status, 0, detail);
		channel->rx_op = NULL;
		channel->skipping = true;
	}
	while ((node = tn_list_pop_front(&channel->recvs))) {
		tn_op_priv *priv = TN_LIST_ENTRY(node, tn_op_priv, node);

		tn_op_finish(channel->link->ctx, TN_CONTAINER_OF(priv, tern_op, priv), status, 0, detail);
	}
}

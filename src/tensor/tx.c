/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sender's end of a static tensor channel: one one-sided write and a notification per tensor.
 *
 *   released <= sent <= released + slots: generation g goes to slot (g - 1) % slots, which the receiver
 *   gave back when it released generation g - slots.
 *
 * Threads: tensor.h. Tests: tests/unit/tensor/tensor_test.c, end_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/mutant.h"
#include "channel/op.h"
#include "tensor/part.h"
#include "tensor/tensor.h"

/* state->lock held. */
static void tx_unlink(tern_tensor_tx *tx)
{
	tern_tensor_tx **p = &tx->state->txs;

	while (*p && *p != tx)
		p = &(*p)->next;
	if (*p)
		*p = tx->next;
}

static void tx_free(tern_tensor_tx *tx)
{
	for (unsigned i = 0; i < TERN_TENSOR_SLOTS_MAX; i++)
		tn_ctx_timer_cancel(tx->state->ctx, &tx->puts[i].again);
	tn_mailbox_fini(&tx->box);
	tern_mem_free(tern_ctx_mem(tx->state->ctx), (void *)tx->credit);
	free(tx);
}

/* state->lock held: what tells the receiver that nothing follows. False: it knows, or never bound us. */
static bool last_words(const tern_tensor_tx *tx, tn_tensor_msg *msg)
{
	int bound = atomic_load(&tx->bound);

	*msg = (tn_tensor_msg){.type = tx->opened ? TN_TENSOR_CLOSE : TN_TENSOR_WITHDRAW,
			       .tx_id = tx->id,
			       .rx_id = tx->opened ? tx->rx_id : 0};
	if (tx->close_posted || !tx->asked)
		return false;
	return tx->opened ? bound == 1 : bound >= 0 || tx->unwanted;
}

/*
 * state->lock held: say CLOSE (or WITHDRAW, if nobody got the handle) when either side wants the end and no
 * put is in flight; true when a closed handle needs nothing any more: then it is out of the list and
 * tx_finish() comes after unlocking.
 */
static bool tx_settle(tern_tensor_tx *tx)
{
	tn_tensor_msg msg;

	if (tx->in_flight || !(tx->user_closed || tx->peer_closed))
		return false;
	if (last_words(tx, &msg)) {
		tx->close_posted = true;
		tn_mailbox_post(&tx->box, &msg);
	}
	if (!tx->user_closed || !tn_mailbox_idle(&tx->box))
		return false;
	tx_unlink(tx);
	return true;
}

static void tx_finish(tern_tensor_tx *tx)
{
	tn_tensor_conn *conn = tx->conn;

	tx_free(tx);
	tn_tensor_conn_unref(conn);
}

static void on_box_idle(tn_mailbox *box)
{
	tern_tensor_tx *tx = TN_CONTAINER_OF(box, tern_tensor_tx, box);
	tn_tensor_state *state = tx->state;
	bool over;

	pthread_mutex_lock(&state->lock);
	tn_mailbox_settled(box);
	over = tx_settle(tx);
	pthread_mutex_unlock(&state->lock);
	if (over)
		tx_finish(tx);
}

/*
 * A flag's put whose lane broke may have come or not, and generations have no gaps: the same bytes go again with a
 * notification, which the link delivers once. If the receiver has the tensor already it sees what it saw, and passes over
 * the notification; nothing newer can lie in the slot, because it is ours until this put is over.
 */
static tern_status say_again(tn_tensor_put *put)
{
	tern_tensor_tx *tx = put->tx;
	tern_status status = tern_put_notify(tx->conn->channel, put->data, put->bytes, &tx->slot_key,
					     (put->generation - 1) % tx->slots * tx->stride_bytes,
					     tn_tensor_value(tx->rx_id, put->generation), &put->op);

	if (status == TERN_AGAIN) {
		tn_ctx_timer_set(tx->state->ctx, &put->again,
				 tn_ctx_now(tx->state->ctx) + TN_TENSOR_RETRY_NS);
		return TERN_OK;
	}
	return status;
}

static void end_put(tn_tensor_put *put, tern_status status, uint64_t length);

static void on_again(tn_ctx_timer *timer)
{
	tn_tensor_put *put = TN_CONTAINER_OF(timer, tn_tensor_put, again);
	tern_status status = say_again(put);

	if (status != TERN_OK)
		end_put(put, status, 0);
}

static void on_put(tern_op *op, void *arg)
{
	tn_tensor_put *put = arg;
	tern_status status = op->status;
	uint64_t length = op->length;

	if (status == TERN_E_INDETERMINATE && put->tx->notify == TERN_NOTIFY_FLAG) {
		status = say_again(put);
		if (status == TERN_OK)
			return;
	}
	end_put(put, status, length);
}

static void end_put(tn_tensor_put *put, tern_status status, uint64_t length)
{
	tern_tensor_tx *tx = put->tx;
	tn_tensor_state *state = tx->state;
	tern_op *user = put->user;
	tern_status open = TERN_OK;
	bool over;

	/* A gap in the generations: nothing behind it would ever be looked at. */
	if (status != TERN_OK)
		atomic_compare_exchange_strong(&tx->closed, &open, status);
	/* From here on the slot's put may be used again; in_flight keeps tx alive through the callback. */
	__atomic_store_n(&put->user, NULL, __ATOMIC_RELEASE);
	tn_op_complete(state->ctx, user, status, length, tern_detail());
	pthread_mutex_lock(&state->lock);
	tx->in_flight--;
	over = tx_settle(tx);
	pthread_mutex_unlock(&state->lock);
	if (over)
		tx_finish(tx);
}

/* state->lock held; the caller uses it before it unlocks. */
static tern_tensor_tx *find_tx(tn_tensor_conn *conn, uint32_t id)
{
	tern_tensor_tx *tx = conn->state->txs;

	while (tx && (tx->id != id || tx->conn != conn))
		tx = tx->next;
	return tx;
}

/* state->lock held. */
static void tell_news(tern_tensor_tx *tx)
{
	if (tx->on_news)
		tx->on_news(tx->news_arg);
}

void tn_tensor_tx_watch(tern_tensor_tx *tx, void (*on_news)(void *arg), void *arg)
{
	pthread_mutex_lock(&tx->state->lock);
	tx->on_news = on_news;
	tx->news_arg = arg;
	pthread_mutex_unlock(&tx->state->lock);
}

void tn_tensor_on_opened(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tern_tensor_tx *tx;

	pthread_mutex_lock(&conn->state->lock);
	tx = find_tx(conn, msg->tx_id);
	if (tx && atomic_load(&tx->bound) == 0 && !tx->user_closed) {
		bool sane =
			msg->slots >= 1 && msg->stride_bytes >= tx->bytes && msg->rx_id < TN_TENSOR_RX_MAX;

		tx->status = msg->status != TERN_OK ? msg->status : sane ? TERN_OK : TERN_E_PROTOCOL;
		tx->unwanted = msg->status == TERN_OK && !sane;
		memcpy(tx->detail, msg->text, sizeof(tx->detail));
		tx->rx_id = msg->rx_id;
		tx->slots = msg->slots;
		tx->stride_bytes = msg->stride_bytes;
		tx->slot_key = msg->slot_key;
		tx->flag_key = msg->flag_key;
		atomic_store_explicit(&tx->bound, tx->status == TERN_OK ? 1 : -1, memory_order_release);
	}
	pthread_mutex_unlock(&conn->state->lock);
}

void tn_tensor_on_release(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tern_tensor_tx *tx;

	pthread_mutex_lock(&conn->state->lock);
	tx = find_tx(conn, msg->tx_id);
	if (tx && msg->count > atomic_load(&tx->released))
		atomic_store_explicit(&tx->released, msg->count, memory_order_release);
	if (tx)
		tell_news(tx);
	pthread_mutex_unlock(&conn->state->lock);
}

void tn_tensor_on_closed(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tern_tensor_tx *tx;

	pthread_mutex_lock(&conn->state->lock);
	tx = find_tx(conn, msg->tx_id);
	if (tx) {
		atomic_store_explicit(&tx->closed, TERN_E_PEER_CLOSED, memory_order_release);
		tx->peer_closed = true;
		tell_news(tx);
		tx_settle(tx); /* the handle is open: never the end of tx here, or it would not be found */
	}
	pthread_mutex_unlock(&conn->state->lock);
}

void tn_tensor_tx_conn_ended(tn_tensor_conn *conn, tern_status status)
{
	tn_tensor_state *state = conn->state;
	tern_tensor_tx *over = NULL;

	pthread_mutex_lock(&state->lock);
	for (tern_tensor_tx **p = &state->txs; *p;) {
		tern_tensor_tx *tx = *p;

		if (tx->conn == conn) {
			tn_mailbox_drop(&tx->box);
			if (atomic_load(&tx->bound) == 0) {
				tx->status = status;
				atomic_store_explicit(&tx->bound, -1, memory_order_release);
			}
			tell_news(tx);
			if (tx_settle(tx)) { /* unlinked: *p is the next one already */
				tx->next = over;
				over = tx;
				continue;
			}
		}
		p = &tx->next;
	}
	pthread_mutex_unlock(&state->lock);
	while (over) {
		tern_tensor_tx *tx = over;

		over = tx->next;
		tx_finish(tx);
	}
}

/* Flag mode: the word where the receiver writes how many slots it released. */
static tern_status allocate_credit(tern_tensor_tx *tx)
{
	tern_mem *mem = tern_ctx_mem(tx->state->ctx);
	void *word;

	if (tx->notify != TERN_NOTIFY_FLAG)
		return TERN_OK;
	TN_TRY(tern_mem_alloc(mem, 64, 64, TERN_ACCESS_WRITE, TERN_MEM_HOST, &word));
	tx->credit = word;
	atomic_store(tx->credit, 0);
	return tern_mem_export(mem, word, 64, TERN_ACCESS_WRITE, &tx->credit_key);
}

/*
 * Does a sender of the same name, closed already, still have something to say (WITHDRAW or CLOSE, behind its OPEN)?
 * Each has a mailbox of its own, so a newer OPEN would overtake it.
 */
static bool is_forerunner_left(tern_tensor_tx *tx)
{
	tern_tensor_tx *other;

	pthread_mutex_lock(&tx->state->lock);
	other = tx->state->txs;
	while (other && (other == tx || other->conn != tx->conn || !other->user_closed ||
			 strcmp(other->name, tx->name) != 0))
		other = other->next;
	pthread_mutex_unlock(&tx->state->lock);
	return other != NULL;
}

/* False: not before the deadline, or the channel ended. */
static bool await_forerunners(tern_tensor_tx *tx, uint64_t end)
{
	tern_ctx *ctx = tx->state->ctx;

	while (is_forerunner_left(tx)) {
		uint64_t now = tn_ctx_now(ctx);

		if (now >= end || atomic_load(&tx->conn->status) != TERN_OK)
			return false;
		tern_ctx_wait(ctx, TN_MIN(end - now, 10000000));
	}
	return true;
}

/* Send OPEN and wait for the answer, driving progress. */
static tern_status bind_to_peer(tern_tensor_tx *tx, const tern_tensor_params *params, uint64_t timeout_ns)
{
	tn_tensor_msg msg = {.type = TN_TENSOR_OPEN,
			     .tx_id = tx->id,
			     .dtype = params->dtype,
			     .shape = params->shape,
			     .notify = params->notify,
			     .flag_key = tx->credit_key};
	tern_ctx *ctx = tx->state->ctx;
	uint64_t end = timeout_ns ? tn_ctx_now(ctx) + timeout_ns : UINT64_MAX;

	memcpy(msg.text, tx->name, sizeof(tx->name));
	if (await_forerunners(tx, end)) {
		pthread_mutex_lock(&tx->state->lock);
		tx->asked = true;
		tn_mailbox_post(&tx->box, &msg);
		pthread_mutex_unlock(&tx->state->lock);
	}
	while (atomic_load_explicit(&tx->bound, memory_order_acquire) == 0) {
		uint64_t now = tn_ctx_now(ctx);
		tern_status gone = atomic_load(&tx->conn->status);

		/* If the channel ended before tx was in the list nobody told it. */
		if (gone != TERN_OK && atomic_load(&tx->bound) == 0)
			return tn_fail(gone, "%s", tern_status_text(gone));
		if (now >= end)
			return tn_fail(TERN_E_DEADLINE, "the peer published no tensor '%s' in time",
				       tx->name);
		tern_ctx_wait(ctx, TN_MIN(end - now, 10000000));
	}
	if (tx->status != TERN_OK)
		return tn_fail(tx->status, "%s", tx->detail[0] ? tx->detail : tern_status_text(tx->status));
	return TERN_OK;
}

tern_status tern_tensor_tx_open(tern_link *link, const tern_tensor_params *params, uint64_t timeout_ns,
				tern_tensor_tx **out)
{
	tn_tensor_state *state = tn_tensor_state_get(tern_link_ctx(link));
	tern_tensor_tx *tx = state ? calloc(1, sizeof(*tx)) : NULL;
	size_t name_bytes = params->name ? strlen(params->name) : 0;
	tern_status status;

	*out = NULL;
	if (!tx)
		return tn_fail(TERN_E_NOMEM, "no memory for a tensor's sender");
	if (name_bytes == 0 || name_bytes >= TERN_TENSOR_NAME_MAX) {
		free(tx);
		return tn_fail(TERN_E_INVALID, "a tensor's name has 1 to %d bytes", TERN_TENSOR_NAME_MAX - 1);
	}
	tx->state = state;
	memcpy(tx->name, params->name, name_bytes + 1);
	tx->notify = params->notify;
	tx->bytes = tern_tensor_bytes(params->dtype, &params->shape);
	status = allocate_credit(tx);
	if (status == TERN_OK)
		status = tn_tensor_conn_to(state, link, &tx->conn);
	tn_mailbox_init(&tx->box, on_box_idle);
	if (status != TERN_OK) {
		tx_free(tx);
		return status;
	}
	tn_mailbox_bind(&tx->box, tx->conn);
	pthread_mutex_lock(&state->lock);
	tx->id = ++state->next_tx_id;
	tx->next = state->txs;
	state->txs = tx;
	pthread_mutex_unlock(&state->lock);
	status = bind_to_peer(tx, params, timeout_ns);
	if (status != TERN_OK) {
		char detail[TN_DETAIL_MAX];

		snprintf(detail, sizeof(detail), "%s", tn_detail_get());
		tern_tensor_tx_close(tx);
		return tn_fail(status, "%s", detail);
	}
	pthread_mutex_lock(&state->lock);
	tx->opened = true;
	pthread_mutex_unlock(&state->lock);
	*out = tx;
	return TERN_OK;
}

static tern_status tx_refusal(tern_tensor_tx *tx)
{
	tern_status status = atomic_load_explicit(&tx->closed, memory_order_acquire);

	if (status == TERN_OK)
		status = atomic_load_explicit(&tx->conn->status, memory_order_acquire);
	if (status != TERN_OK)
		tn_fail(status, "tensor '%s': %s", tx->name, tern_status_text(status));
	return status;
}

tern_status tn_tensor_tx_status(tern_tensor_tx *tx)
{
	return tx_refusal(tx);
}

/* Put the tensor into a slot that is ours; the put's own op counts it and then completes the caller's. */
static tern_status put_slot(tern_tensor_tx *tx, const void *data, uint64_t bytes, uint64_t slot,
			    uint64_t generation, tern_op *op)
{
	tn_tensor_put *put = &tx->puts[slot];
	tern_status status;

	TN_TRY(tn_op_begin(op));
	pthread_mutex_lock(&tx->state->lock);
	if (tx->close_posted) { /* CLOSED came since we looked: no write follows our answer */
		pthread_mutex_unlock(&tx->state->lock);
		tn_op_abort(op);
		return tn_fail(TERN_E_PEER_CLOSED, "tensor '%s': the receiver ended it", tx->name);
	}
	tx->in_flight++;
	pthread_mutex_unlock(&tx->state->lock);
	put->tx = tx;
	put->user = op;
	put->data = data;
	put->bytes = bytes;
	put->generation = generation;
	put->again.run = on_again;
	tern_op_init(&put->op, on_put, put);
	put->op.timeout_ns = op->timeout_ns;
	put->op.stream = op->stream;
	if (!op->done) /* the caller's callback runs from dispatch; without one the end may come at once */
		put->op.flags = TN_OP_INLINE;
	status = TERN_E_UNSUPPORTED;
	if (tx->notify == TERN_NOTIFY_FLAG)
		status = tern_put_flag(tx->conn->channel, data, bytes, &tx->slot_key, slot * tx->stride_bytes,
				       generation, &tx->flag_key, slot * TN_TENSOR_FLAG_STRIDE, &put->op);
	if (status ==
	    TERN_E_UNSUPPORTED) /* immediate mode, or the link lost the order of writes with a provider */
		status = tern_put_notify(tx->conn->channel, data, bytes, &tx->slot_key,
					 slot * tx->stride_bytes, tn_tensor_value(tx->rx_id, generation),
					 &put->op);
	if (status == TERN_E_STALE_KEY) /* a receiver revokes its keys first, its CLOSED is on the way */
		status = tn_fail(TERN_E_PEER_CLOSED, "tensor '%s': the receiver ended it", tx->name);
	if (status != TERN_OK) {
		put->user = NULL;
		tn_op_abort(op);
		pthread_mutex_lock(&tx->state->lock);
		tx->in_flight--; /* the caller holds the handle: nothing to settle but a CLOSE that waits */
		tx_settle(tx);
		pthread_mutex_unlock(&tx->state->lock);
		return status;
	}
	tx->sent = generation;
	atomic_fetch_add_explicit(&tx->state->counters.sent, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&tx->state->counters.sent_bytes, bytes, memory_order_relaxed);
	return TERN_OK;
}

tern_status tern_tensor_tx_ready(tern_tensor_tx *tx)
{
	uint64_t released = atomic_load_explicit(&tx->released, memory_order_acquire);
	tern_status status = tx_refusal(tx);

	if (status != TERN_OK)
		return status;
	if (tx->credit) /* a RELEASE comes where flags don't work any more */
		released = TN_MAX(released, atomic_load_explicit(tx->credit, memory_order_acquire));
	/* The receiver may give a slot back before we heard that its put is complete. A count beyond what was
	   sent is the receiver's lie: it only harms its own slots. */
	if (released + tx->slots + TN_MUTANT(24) <= tx->sent ||
	    __atomic_load_n(&tx->puts[tx->sent % tx->slots].user, __ATOMIC_ACQUIRE))
		return TERN_AGAIN;
	return TERN_OK;
}

tern_status tern_tensor_send(tern_tensor_tx *tx, const void *data, tern_op *op)
{
	TN_TRY(tern_tensor_tx_ready(tx));
	return put_slot(tx, data, tx->bytes, tx->sent % tx->slots, tx->sent + 1, op);
}

tern_status tn_tensor_send_part(tern_tensor_tx *tx, const void *data, uint64_t bytes, tern_op *op)
{
	TN_ASSERT(bytes <= tx->bytes);
	TN_TRY(tern_tensor_tx_ready(tx));
	return put_slot(tx, data, bytes, tx->sent % tx->slots, tx->sent + 1, op);
}

void tern_tensor_tx_close(tern_tensor_tx *tx)
{
	tn_tensor_state *state;
	bool over;

	if (!tx)
		return;
	state = tx->state;
	pthread_mutex_lock(&state->lock);
	tx->user_closed = true;
	over = tx_settle(tx);
	pthread_mutex_unlock(&state->lock);
	if (over)
		tx_finish(tx);
}

void tn_tensor_tx_free_all(tn_tensor_state *state)
{
	while (state->txs) {
		tern_tensor_tx *tx = state->txs;

		state->txs = tx->next;
		for (unsigned i = 0; i < TERN_TENSOR_SLOTS_MAX; i++) /* it waited to be said again */
			if (tx->puts[i].user)
				tn_op_complete(state->ctx, tx->puts[i].user, TERN_E_FLUSHED, 0,
					       "its context was destroyed");
		tx_free(tx);
	}
}

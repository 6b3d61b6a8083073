/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a receiver gets its sender: OPENs that find their name and those that wait for it, answers, and senders
 * that take their OPEN back.
 *
 * Threads: from dispatch, one message at a time per channel; publishing from any. Tests:
 * tests/unit/tensor/tensor_test.c, end_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "tensor/tensor.h"

static bool same_shape(const tern_shape *a, const tern_shape *b)
{
	return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

/* state->lock held: what the sender gets to know; TERN_OK also binds it. */
static void answer_open(tern_tensor_rx *rx, tn_tensor_conn *conn, const tn_tensor_msg *open,
			tn_tensor_msg *answer)
{
	*answer = (tn_tensor_msg){.type = TN_TENSOR_OPENED, .tx_id = open->tx_id, .rx_id = rx->id};
	if (atomic_load(&conn->status) != TERN_OK) {
		/* Nobody would tell rx that this sender is gone: that has been done for those bound before. */
		answer->status = TERN_E_PEER_CLOSED;
	} else if (rx->ending) {
		answer->status = TERN_E_PEER_CLOSED;
	} else if (rx->conn) {
		answer->status = TERN_E_IN_USE;
		snprintf(answer->text, sizeof(answer->text), "another sender is bound to tensor '%.100s'",
			 rx->name);
	} else if (open->dtype != rx->dtype || !same_shape(&open->shape, &rx->shape) ||
		   open->notify != rx->notify) {
		answer->status = TERN_E_SHAPE;
		snprintf(answer->text, sizeof(answer->text),
			 "tensor '%.100s' has another dtype, shape or notification mode at the receiver (%s, "
			 "rank %u)",
			 rx->name, tern_dtype_name(rx->dtype), rx->shape.rank);
	} else {
		tn_tensor_conn_ref(conn);
		rx->conn = conn;
		rx->tx_id = open->tx_id;
		rx->credit_key = open->flag_key;
		tn_mailbox_bind(&rx->box, conn);
		answer->slots = rx->slots;
		answer->stride_bytes = rx->stride_bytes;
		answer->slot_key = rx->slot_key;
		answer->flag_key = rx->flag_key;
	}
}

/* An answer needs a mailbox that outlives refusals: one per answer, freed when it left or was given up. */
static void on_answer_idle(tn_mailbox *box)
{
	tn_tensor_conn *conn = box->conn;

	tn_mailbox_fini(box);
	free(box);
	tn_tensor_conn_unref(conn);
}

static void send_answer(tn_tensor_conn *conn, const tn_tensor_msg *answer)
{
	tn_mailbox *box = calloc(1, sizeof(*box));

	if (!box)
		return; /* the sender's deadline tells it */
	tn_mailbox_init(box, on_answer_idle);
	box->on_given_up = on_answer_idle;
	tn_tensor_conn_ref(conn); /* while it waits for room the channel may end */
	tn_mailbox_bind(box, conn);
	tn_mailbox_post(box, answer);
}

/* state->lock held. False: it cannot wait, the answer says why. */
static bool add_waiter(tn_tensor_conn *conn, const tn_tensor_msg *open, tn_tensor_msg *answer)
{
	tn_tensor_state *state = conn->state;
	tn_tensor_waiter *waiter = NULL;

	*answer = (tn_tensor_msg){.type = TN_TENSOR_OPENED, .tx_id = open->tx_id, .status = TERN_E_LIMIT};
	if (conn->waiters >= TN_TENSOR_WAITERS_MAX) {
		snprintf(answer->text, sizeof(answer->text),
			 "%u senders of this node wait already for names that are not published",
			 conn->waiters);
		return false;
	}
	if (!TN_FAULT("tensor.waiter.alloc"))
		waiter = calloc(1, sizeof(*waiter));
	if (!waiter) {
		answer->status = TERN_E_NOMEM;
		snprintf(answer->text, sizeof(answer->text),
			 "the receiver has no memory to remember a sender that waits");
		return false;
	}
	waiter->conn = conn;
	waiter->open = *open;
	waiter->next = state->waiters;
	state->waiters = waiter;
	conn->waiters++;
	return true;
}

/* state->lock held: take the waiters that match out of the list. tx_id NULL: any of the connection. */
static tn_tensor_waiter *take_waiters(tn_tensor_state *state, const char *name, const tn_tensor_conn *conn,
				      const uint32_t *tx_id)
{
	tn_tensor_waiter *found = NULL;

	for (tn_tensor_waiter **p = &state->waiters; *p;) {
		tn_tensor_waiter *w = *p;

		if ((name && strcmp(w->open.text, name) != 0) || (conn && w->conn != conn) ||
		    (tx_id && w->open.tx_id != *tx_id)) {
			p = &w->next;
			continue;
		}
		*p = w->next;
		w->next = found;
		found = w;
		w->conn->waiters--;
	}
	return found;
}

static void free_waiters(tn_tensor_waiter *list)
{
	while (list) {
		tn_tensor_waiter *w = list;

		list = w->next;
		free(w);
	}
}

void tn_tensor_on_open(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tn_tensor_state *state = conn->state;
	tn_tensor_msg answer;
	tern_tensor_rx *rx;
	bool waits = false;

	atomic_fetch_add_explicit(&state->counters.opens, 1, memory_order_relaxed);
	pthread_mutex_lock(&state->lock);
	rx = tn_tensor_rx_find(state, msg->text);
	if (rx)
		answer_open(rx, conn, msg, &answer);
	else
		waits = add_waiter(conn, msg, &answer);
	pthread_mutex_unlock(&state->lock);
	if (!waits)
		send_answer(conn, &answer);
}

void tn_tensor_answer_waiters(tern_tensor_rx *rx)
{
	tn_tensor_state *state = rx->state;
	tn_tensor_waiter *found;
	tn_tensor_msg answer;

	/* Bound under the lock that takes them: a WITHDRAW finds them here or there. Only the text is sent later. */
	pthread_mutex_lock(&state->lock);
	found = take_waiters(state, rx->name, NULL, NULL);
	for (tn_tensor_waiter *w = found; w; w = w->next) {
		tn_tensor_conn_ref(w->conn);
		answer_open(rx, w->conn, &w->open, &answer);
		w->open = answer;
	}
	pthread_mutex_unlock(&state->lock);
	for (tn_tensor_waiter *w = found; w; w = w->next) {
		send_answer(w->conn, &w->open);
		tn_tensor_conn_unref(w->conn);
	}
	free_waiters(found);
}

void tn_tensor_drop_waiters(tn_tensor_conn *conn)
{
	free_waiters(take_waiters(conn->state, NULL, conn, NULL));
}

/* ---- taking it back ---- */

/* state->lock held: the receiver that is bound to that sender. */
static tern_tensor_rx *find_bound(tn_tensor_conn *conn, uint32_t tx_id)
{
	for (uint32_t i = 0; i < conn->state->rx_end; i++) {
		tern_tensor_rx *rx = conn->state->rx_by_id[i];

		if (rx && rx->conn == conn && rx->tx_id == tx_id && !rx->quiet)
			return rx;
	}
	return NULL;
}

/* state->lock held: has a sender ever written anything, against its word? */
static bool is_used(tern_tensor_rx *rx)
{
	bool used = !tn_mailbox_idle(&rx->box);

	for (unsigned i = 0; i < rx->slots; i++) {
		used |= atomic_load(&rx->arrived[i]) != 0;
		if (rx->flags)
			used |= __atomic_load_n((uint64_t *)(void *)(rx->flags + i * TN_TENSOR_FLAG_STRIDE),
						__ATOMIC_ACQUIRE) != 0;
	}
	return used;
}

/* New keys for a receiver that loses its sender: what that one was given is void. */
static bool renew_keys(tern_tensor_rx *rx, tern_key *slot_key, tern_key *flag_key)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);

	if (!tn_tensor_rx_revoke(rx, slot_key, flag_key) || tn_tensor_rx_export(rx, slot_key) != TERN_OK)
		return false;
	return !rx->flags || tern_mem_export(mem, rx->flags, rx->slots * TN_TENSOR_FLAG_STRIDE,
					     TERN_ACCESS_WRITE, flag_key) == TERN_OK;
}

/* state->lock held: published again, as if that sender had never come. */
static void unbind(tern_tensor_rx *rx, const tern_key *slot_key, const tern_key *flag_key)
{
	pthread_mutex_lock(&rx->lock);
	rx->conn = NULL;
	rx->tx_id = 0;
	rx->slot_key = *slot_key;
	rx->flag_key = *flag_key;
	rx->credit_key = (tern_key){0};
	tn_mailbox_bind(&rx->box, NULL);
	pthread_mutex_unlock(&rx->lock);
}

/*
 * The sender gave up before it wrote anything. One that lies about that, or a receiver that is being
 * destroyed or has no keys left, is treated as if it had closed.
 *
 * The lock is free while keys are revoked: rx stays, because it is bound to this channel, whose callbacks run
 * one at a time.
 */
void tn_tensor_on_withdraw(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tn_tensor_state *state = conn->state;
	tn_tensor_conn *unref = NULL;
	tern_key slot_key, flag_key;
	tn_tensor_waiter *waiters;
	tern_tensor_rx *rx;
	bool renewed, ending;

	pthread_mutex_lock(&state->lock);
	waiters = take_waiters(state, NULL, conn, &msg->tx_id);
	rx = find_bound(conn, msg->tx_id);
	if (rx) {
		slot_key = rx->slot_key;
		flag_key = rx->flag_key;
		ending = rx->ending;
	}
	pthread_mutex_unlock(&state->lock);
	free_waiters(waiters);
	if (!rx)
		return;
	renewed = !ending && renew_keys(rx, &slot_key, &flag_key);
	pthread_mutex_lock(&state->lock);
	if (renewed && !rx->ending && !is_used(rx)) {
		unbind(rx, &slot_key, &flag_key);
		unref = conn;
	} else {
		rx->quiet = true;
		atomic_store_explicit(&rx->status, TERN_E_PEER_CLOSED, memory_order_release);
		tn_tensor_rx_try_free(rx, &unref);
	}
	pthread_mutex_unlock(&state->lock);
	if (unref)
		tn_tensor_conn_unref(unref);
}

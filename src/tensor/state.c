/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensor layer's state on a context: connections per link, messages to their handlers, counters.
 *
 * A conn is kept by its ends, its mailboxes in flight and, while the channel lives, by itself; the last
 * reference closes the channel. Threads: message handlers run from dispatch, one at a time per channel.
 * Tests: tests/unit/tensor.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "tensor/tensor.h"

void tn_tensor_conn_ref(tn_tensor_conn *conn)
{
	atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
}

void tn_tensor_conn_unref(tn_tensor_conn *conn)
{
	tn_tensor_state *state = conn->state;

	if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_lock(&state->lock);
	for (tn_tensor_conn **p = &state->conns; *p; p = &(*p)->next)
		if (*p == conn) {
			*p = conn->next;
			break;
		}
	pthread_mutex_unlock(&state->lock);
	tern_channel_close(conn->channel);
	free(conn);
}

static void on_message(tern_channel *channel, const void *bytes, uint64_t length, void *arg)
{
	tn_tensor_conn *conn = arg;
	tn_tensor_msg msg;

	(void)channel;
	if (!tn_tensor_decode(bytes, length, &msg))
		return; /* junk: whoever waits for a real answer has a deadline */
	switch (msg.type) {
	case TN_TENSOR_OPEN:
		if (!conn->opener)
			tn_tensor_on_open(conn, &msg);
		break;
	case TN_TENSOR_CLOSE:
		if (!conn->opener)
			tn_tensor_on_close(conn, &msg);
		break;
	case TN_TENSOR_WITHDRAW:
		if (!conn->opener)
			tn_tensor_on_withdraw(conn, &msg);
		break;
	case TN_TENSOR_OPENED:
		if (conn->opener)
			tn_tensor_on_opened(conn, &msg);
		break;
	case TN_TENSOR_RELEASE:
		if (conn->opener)
			tn_tensor_on_release(conn, &msg);
		break;
	case TN_TENSOR_CLOSED:
		if (conn->opener)
			tn_tensor_on_closed(conn, &msg);
		break;
	}
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	tn_tensor_conn *conn = arg;

	(void)channel;
	if (!conn->opener)
		tn_tensor_on_notify(conn, value, bytes);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	tn_tensor_conn *conn = arg;

	(void)channel;
	atomic_store(&conn->status, status);
	if (conn->opener)
		tn_tensor_tx_conn_ended(conn, status);
	else
		tn_tensor_rx_conn_ended(conn, status);
	tn_tensor_conn_unref(conn);
}

static tn_tensor_conn *conn_new(tn_tensor_state *state, bool opener)
{
	tn_tensor_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->state = state;
	conn->opener = opener;
	conn->refs = 1;
	return conn;
}

static void conn_params(tn_tensor_conn *conn, tern_channel_params *params)
{
	*params = (tern_channel_params){.on_message = on_message,
					.on_notify = on_notify,
					.on_closed = on_closed,
					.arg = conn,
					.message_bytes_max = TN_TENSOR_MSG_MAX};
}

static tern_status on_accept(tern_channel *channel, tern_channel_params *params, void *arg)
{
	tn_tensor_state *state = arg;
	tn_tensor_conn *conn = conn_new(state, false);

	if (!conn)
		return tn_fail(TERN_E_NOMEM, "no memory for a tensor connection");
	conn->channel = channel;
	conn->link = tern_channel_link(channel);
	conn_params(conn, params);
	pthread_mutex_lock(&state->lock);
	conn->next = state->conns;
	state->conns = conn;
	pthread_mutex_unlock(&state->lock);
	return TERN_OK;
}

/* state->lock held. */
static tn_tensor_conn *conn_find(tn_tensor_state *state, const tern_link *link)
{
	for (tn_tensor_conn *conn = state->conns; conn; conn = conn->next)
		if (conn->opener && conn->link == link && atomic_load(&conn->status) == TERN_OK)
			return conn;
	return NULL;
}

tern_status tn_tensor_conn_to(tn_tensor_state *state, tern_link *link, tn_tensor_conn **out)
{
	tern_status status = TERN_OK;
	tern_channel_params params;
	tn_tensor_conn *conn;

	pthread_mutex_lock(&state->lock);
	conn = conn_find(state, link);
	if (conn) {
		tn_tensor_conn_ref(conn);
	} else {
		conn = conn_new(state, true);
		if (!conn) {
			status = tn_fail(TERN_E_NOMEM, "no memory for a tensor connection");
		} else {
			conn->link = link;
			conn->refs = 2;
			conn_params(conn, &params);
			status = tern_channel_open(link, TN_TENSOR_SERVICE, &params, &conn->channel);
		}
		if (status == TERN_OK) {
			conn->next = state->conns;
			state->conns = conn;
		} else {
			free(conn);
			conn = NULL;
		}
	}
	pthread_mutex_unlock(&state->lock);
	*out = conn;
	return status;
}

/* ---- the layer's state ---- */

static void state_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	tn_tensor_counters *c = &((tn_tensor_state *)slot)->counters;

#define ROW(name) fn("tensor." #name, atomic_load_explicit(&c->name, memory_order_relaxed), arg)
	ROW(sent);
	ROW(sent_bytes);
	ROW(received);
	ROW(received_bytes);
	ROW(stale);
	ROW(releases);
	ROW(opens);
	ROW(reads);
	ROW(read_bytes);
	ROW(staged);
	ROW(grown);
#undef ROW
}

static void state_destroy(tn_ctx_slot *slot)
{
	tn_tensor_state *state = (tn_tensor_state *)slot;

	tn_dynamic_rx_free_all(state);
	tn_dynamic_tx_free_all(state);
	tn_tensor_rx_free_all(state);
	tn_tensor_tx_free_all(state);
	while (state->conns) {
		tn_tensor_conn *conn = state->conns;

		state->conns = conn->next;
		tern_channel_close(conn->channel);
		free(conn);
	}
	pthread_mutex_destroy(&state->lock);
	free(state->rx_by_id);
	free(state);
}

tn_tensor_state *tn_tensor_state_get(tern_ctx *ctx)
{
	tn_tensor_state *state = (tn_tensor_state *)tn_ctx_slot_get(ctx, TN_SLOT_TENSOR);
	tn_tensor_state *winner;

	if (state)
		return state;
	state = calloc(1, sizeof(*state));
	if (!state)
		return NULL;
	state->rx_by_id = calloc(TN_TENSOR_RX_MAX, sizeof(tern_tensor_rx *));
	if (!state->rx_by_id) {
		free(state);
		return NULL;
	}
	state->slot.destroy = state_destroy;
	state->slot.counters = state_counters;
	state->ctx = ctx;
	pthread_mutex_init(&state->lock, NULL);
	winner = (tn_tensor_state *)tn_ctx_slot_set(ctx, TN_SLOT_TENSOR, &state->slot);
	if (winner != state) {
		free(state->rx_by_id);
		pthread_mutex_destroy(&state->lock);
		free(state);
		return winner;
	}
	if (tern_ctx_listen(ctx, TN_TENSOR_SERVICE, on_accept, state) != TERN_OK)
		return NULL; /* cannot happen: the name is ours */
	return state;
}

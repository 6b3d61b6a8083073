/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's end of a static tensor channel: slots in registered memory, in-order delivery by
 * generation, releases back to the sender.
 *
 *   life:  PUBLISHED -> BOUND (a sender opened it) -> ENDED (sender closed or died)
 *                    <- (the sender took its OPEN back before it wrote anything)
 *          destroyed by the user at any time: then it waits, dead, until nobody can write its slots
 *          (the sender's CLOSE, the answer to our CLOSED), and only then the memory is freed
 *
 * If the sender's process vanished without CLOSE the slots of a destroyed receiver stay allocated until
 * the context ends: a stopped peer could still be in the middle of a copy (DESIGN 12.11).
 * Threads: tensor.h. Tests: tests/unit/tensor/tensor_test.c, end_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/mutant.h"
#include "tensor/part.h"
#include "tensor/tensor.h"

static uint32_t bucket_of(const char *name)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 16777619u;
	return h % TN_TENSOR_BUCKETS;
}

tern_tensor_rx *tn_tensor_rx_find(tn_tensor_state *state, const char *name)
{
	tern_tensor_rx *rx = state->buckets[bucket_of(name)];

	while (rx && strcmp(rx->name, name) != 0)
		rx = rx->next_in_bucket;
	return rx;
}

/* state->lock held: the name is free for others from here on. */
static void unpublish(tern_tensor_rx *rx)
{
	tern_tensor_rx **p = &rx->state->buckets[bucket_of(rx->name)];

	while (*p && *p != rx)
		p = &(*p)->next_in_bucket;
	if (*p)
		*p = rx->next_in_bucket;
}

static void rx_free(tern_tensor_rx *rx)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);

	tn_ctx_timer_cancel(rx->state->ctx, &rx->flag_timer);
	tn_mailbox_fini(&rx->box);
	pthread_mutex_destroy(&rx->lock);
	if (rx->whole)
		tn_tensor_whole_release(rx->whole);
	else
		tern_mem_free(mem, rx->memory);
	tern_mem_free(mem, rx->flags);
	free(rx);
}

void tn_tensor_rx_try_free(tern_tensor_rx *rx, tn_tensor_conn **unref)
{
	*unref = NULL;
	if (!rx->dead || !(rx->quiet || !rx->conn))
		return;
	tn_ctx_timer_cancel(rx->state->ctx, &rx->flag_timer); /* first: its run may begin a credit write */
	if (rx->flag_busy || !tn_mailbox_idle(&rx->box))
		return;
	rx->state->rx_by_id[rx->id] = NULL;
	*unref = rx->conn;
	rx_free(rx);
}

static void on_box_idle(tn_mailbox *box)
{
	tern_tensor_rx *rx = TN_CONTAINER_OF(box, tern_tensor_rx, box);
	tn_tensor_state *state = rx->state;
	tn_tensor_conn *unref;

	pthread_mutex_lock(&state->lock);
	tn_mailbox_settled(box);
	tn_tensor_rx_try_free(rx, &unref);
	pthread_mutex_unlock(&state->lock);
	if (unref)
		tn_tensor_conn_unref(unref);
}

/* ---- creation ---- */

uint64_t tern_tensor_bytes(tern_dtype dtype, const tern_shape *shape)
{
	uint64_t bytes = tern_dtype_bytes(dtype);

	for (unsigned i = 0; i < shape->rank && i < TERN_RANK_MAX; i++)
		if (__builtin_mul_overflow(bytes, shape->dims[i], &bytes))
			return UINT64_MAX;
	return bytes;
}

static tern_status check_params(const tern_tensor_params *params)
{
	size_t n = params->name ? strlen(params->name) : 0;

	if (n == 0 || n >= TERN_TENSOR_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "a tensor's name has 1 to %d bytes, not %zu",
			       TERN_TENSOR_NAME_MAX - 1, n);
	if (tern_dtype_bytes(params->dtype) == 0 || params->shape.rank > TERN_RANK_MAX)
		return tn_fail(TERN_E_INVALID, "tensor '%s': dtype %d or rank %u is none", params->name,
			       (int)params->dtype, params->shape.rank);
	if (params->slots > TERN_TENSOR_SLOTS_MAX)
		return tn_fail(TERN_E_INVALID, "tensor '%s': %u slots, at most %d", params->name,
			       params->slots, TERN_TENSOR_SLOTS_MAX);
	if (tern_tensor_bytes(params->dtype, &params->shape) > UINT64_MAX / 32)
		return tn_fail(TERN_E_TOO_LARGE, "tensor '%s': its size does not fit 64 bits", params->name);
	return TERN_OK;
}

tern_status tn_tensor_rx_export(tern_tensor_rx *rx, tern_key *key)
{
	/* A part ends with its own range of the last slot. */
	uint64_t last = rx->whole ? TN_MAX(rx->bytes, 1) : rx->stride_bytes;

	return tern_mem_export(tern_ctx_mem(rx->state->ctx), rx->memory,
			       rx->stride_bytes * (rx->slots - 1) + last, TERN_ACCESS_WRITE, key);
}

static tern_status rx_allocate(tern_tensor_rx *rx, uint64_t offset)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);
	uint64_t flag_bytes = rx->slots * TN_TENSOR_FLAG_STRIDE;
	void *flags;

	if (rx->whole) {
		TN_ASSERT(rx->slots == rx->whole->slots && offset <= rx->whole->bytes &&
			  rx->bytes <= rx->whole->bytes - offset);
		rx->stride_bytes = rx->whole->stride_bytes;
		rx->memory = rx->whole->memory + offset;
	} else {
		TN_TRY(tn_tensor_slots_alloc(rx->state->ctx, rx->bytes, rx->slots, &rx->stride_bytes,
					     &rx->memory));
	}
	TN_TRY(tn_tensor_rx_export(rx, &rx->slot_key));
	if (rx->notify != TERN_NOTIFY_FLAG)
		return TERN_OK;
	TN_TRY(tern_mem_alloc(mem, flag_bytes, 64, TERN_ACCESS_WRITE, TERN_MEM_HOST, &flags));
	rx->flags = flags;
	memset(flags, 0, flag_bytes);
	return tern_mem_export(mem, flags, flag_bytes, TERN_ACCESS_WRITE, &rx->flag_key);
}

/* Enter the tables. */
static tern_status publish(tern_tensor_rx *rx)
{
	tn_tensor_state *state = rx->state;
	tern_status status = TERN_OK;
	uint32_t n = 0;

	pthread_mutex_lock(&state->lock);
	if (tn_tensor_rx_find(state, rx->name)) {
		status = tn_fail(TERN_E_EXISTS, "tensor '%s' is published already", rx->name);
	} else {
		while (n < TN_TENSOR_RX_MAX && state->rx_by_id[(state->rx_hint + n) % TN_TENSOR_RX_MAX])
			n++;
		if (n == TN_TENSOR_RX_MAX)
			status = tn_fail(TERN_E_LIMIT, "more than %u tensors are received", TN_TENSOR_RX_MAX);
	}
	if (status == TERN_OK) {
		rx->id = (state->rx_hint + n) % TN_TENSOR_RX_MAX;
		state->rx_end = TN_MAX(state->rx_end, rx->id + 1);
		state->rx_hint = rx->id + 1; /* reuse numbers late: stale notifications hit nobody */
		state->rx_by_id[rx->id] = rx;
		rx->next_in_bucket = state->buckets[bucket_of(rx->name)];
		state->buckets[bucket_of(rx->name)] = rx;
	}
	pthread_mutex_unlock(&state->lock);
	return status;
}

static void on_flag_sent(tern_op *op, void *arg);
static void on_flag_timer(tn_ctx_timer *timer);

static tern_status rx_create(tern_ctx *ctx, const tern_tensor_params *params, bool parts,
			     tn_tensor_whole *whole, uint64_t offset, tern_tensor_rx **out)
{
	tn_tensor_state *state = tn_tensor_state_get(ctx);
	tern_tensor_rx *rx;
	tern_status status;

	*out = NULL;
	TN_TRY(check_params(params));
	rx = state ? calloc(1, sizeof(*rx)) : NULL;
	if (!rx)
		return tn_fail(TERN_E_NOMEM, "no memory for tensor '%s'", params->name);
	rx->state = state;
	memcpy(rx->name, params->name, strlen(params->name) + 1);
	rx->dtype = params->dtype;
	rx->shape = params->shape;
	rx->bytes = tern_tensor_bytes(params->dtype, &params->shape);
	rx->slots = params->slots ? params->slots : 2;
	rx->notify = params->notify;
	rx->parts = parts;
	rx->whole = whole;
	if (whole) {
		rx->slots = whole->slots;
		atomic_fetch_add_explicit(&whole->refs, 1, memory_order_relaxed);
	}
	pthread_mutex_init(&rx->lock, NULL);
	tn_mailbox_init(&rx->box, on_box_idle);
	tern_op_init(&rx->flag_op, on_flag_sent, rx);
	rx->flag_timer.run = on_flag_timer;
	status = rx_allocate(rx, offset);
	if (status == TERN_OK)
		status = publish(rx);
	if (status != TERN_OK) {
		rx_free(rx);
		return status;
	}
	tn_tensor_answer_waiters(rx);
	*out = rx;
	return TERN_OK;
}

tern_status tern_tensor_rx_create(tern_ctx *ctx, const tern_tensor_params *params, tern_tensor_rx **out)
{
	return rx_create(ctx, params, false, NULL, 0, out);
}

tern_status tn_tensor_rx_create_parts(tern_ctx *ctx, const tern_tensor_params *params, tern_tensor_rx **out)
{
	TN_ASSERT(params->notify == TERN_NOTIFY_IMM); /* a flag says nothing of lengths */
	return rx_create(ctx, params, true, NULL, 0, out);
}

tern_status tn_tensor_rx_create_in(tern_ctx *ctx, const tern_tensor_params *params, tn_tensor_whole *whole,
				   uint64_t offset, tern_tensor_rx **out)
{
	return rx_create(ctx, params, false, whole, offset, out);
}

uint64_t tn_tensor_rx_length(const tern_tensor_rx *rx)
{
	return rx->lengths[(rx->delivered - 1) % rx->slots];
}

/* ---- data ---- */

void tn_tensor_on_notify(tn_tensor_conn *conn, uint32_t value, uint64_t bytes)
{
	tn_tensor_state *state = conn->state;
	bool taken = false;
	tern_tensor_rx *rx;

	pthread_mutex_lock(&state->lock);
	rx = state->rx_by_id[value >> 8];
	/* In flag mode too: the link may go over a provider without order of writes by now. */
	if (rx && rx->conn == conn && !rx->dead && (bytes == rx->bytes || (rx->parts && bytes < rx->bytes))) {
		uint64_t base = __atomic_load_n(&rx->released, __ATOMIC_ACQUIRE) + 1;
		uint64_t generation = base + ((value - (uint32_t)base) & 0xff);
		_Atomic uint64_t *slot = &rx->arrived[(generation - 1) % rx->slots];

		/* In the window and new: otherwise stale, duplicate or a lie. */
		taken = generation < base + rx->slots && atomic_load(slot) < generation;
		if (taken) {
			rx->lengths[(generation - 1) % rx->slots] = bytes;
			atomic_store_explicit(slot, generation, memory_order_release);
		}
	}
	pthread_mutex_unlock(&state->lock);
	if (!taken)
		atomic_fetch_add_explicit(&state->counters.stale, 1, memory_order_relaxed);
}

static bool has_arrived(tern_tensor_rx *rx, uint64_t generation)
{
	uint64_t slot = (generation - 1) % rx->slots;

	if (rx->notify == TERN_NOTIFY_FLAG) {
		uint64_t *flag = (uint64_t *)(void *)(rx->flags + slot * TN_TENSOR_FLAG_STRIDE);

		if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == generation)
			return true;
	}
	return atomic_load_explicit(&rx->arrived[slot], memory_order_acquire) == generation;
}

bool tn_tensor_rx_arrived(tern_tensor_rx *rx, uint64_t generation, const void **data)
{
	*data = rx->memory + (generation - 1) % rx->slots * rx->stride_bytes;
	return has_arrived(rx, generation);
}

tn_tensor_conn *tn_tensor_rx_conn(tern_tensor_rx *rx)
{
	tn_tensor_conn *conn;

	pthread_mutex_lock(&rx->state->lock);
	conn = rx->conn;
	if (conn)
		tn_tensor_conn_ref(conn);
	pthread_mutex_unlock(&rx->state->lock);
	return conn;
}

tern_status tern_tensor_rx_poll(tern_tensor_rx *rx, const void **data)
{
	uint64_t generation = rx->released + 1;
	tern_status status;

	if (!has_arrived(rx, generation)) {
		status = atomic_load_explicit(&rx->status, memory_order_acquire);
		if (status == TERN_OK)
			return TERN_AGAIN;
		if (!has_arrived(rx, generation)) /* it may have come just before the end */
			return tn_fail(status, "the sender of tensor '%s' is gone: %s", rx->name,
				       tern_status_text(status));
	}
	if (rx->delivered < generation) {
		rx->delivered = generation;
		atomic_fetch_add_explicit(&rx->state->counters.received, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&rx->state->counters.received_bytes,
					  rx->parts ? tn_tensor_rx_length(rx) : rx->bytes,
					  memory_order_relaxed);
	}
	*data = rx->memory + (generation - 1) % rx->slots * rx->stride_bytes;
	return TERN_OK;
}

static void say_released(tern_tensor_rx *rx, uint64_t released)
{
	tn_tensor_msg msg = {
		.type = TN_TENSOR_RELEASE, .tx_id = rx->tx_id, .count = released + TN_MUTANT(12)};

	tn_mailbox_post(&rx->box, &msg);
}

/* rx->lock held. Flag mode: write the released count into the sender's credit word. */
static void push_credit(tern_tensor_rx *rx)
{
	uint64_t released = __atomic_load_n(&rx->released, __ATOMIC_ACQUIRE); /* once: the user goes on */
	tern_status status;

	/* Without a sender there is no tensor to release, but for a stranger's that guessed the flag's key. */
	if (!rx->conn || rx->flag_busy || rx->flag_sent == released ||
	    atomic_load(&rx->conn->status) != TERN_OK)
		return;
	rx->flag_busy = true;
	rx->flag_sent = released;
	status = tern_put_flag(rx->conn->channel, NULL, 0, &rx->credit_key, 0, released, &rx->credit_key, 0,
			       &rx->flag_op);
	if (status == TERN_OK)
		return;
	rx->flag_busy = false;
	if (status !=
	    TERN_AGAIN) { /* whatever the flag can't do, as without order of writes: say it in words */
		say_released(rx, released);
		return;
	}
	rx->flag_sent = UINT64_MAX;
	tn_ctx_timer_set(rx->state->ctx, &rx->flag_timer, tn_ctx_now(rx->state->ctx) + TN_TENSOR_RETRY_NS);
}

static void on_flag_timer(tn_ctx_timer *timer)
{
	tern_tensor_rx *rx = TN_CONTAINER_OF(timer, tern_tensor_rx, flag_timer);

	pthread_mutex_lock(&rx->lock);
	push_credit(rx);
	pthread_mutex_unlock(&rx->lock);
}

static void on_flag_sent(tern_op *op, void *arg)
{
	tern_tensor_rx *rx = arg;
	tn_tensor_state *state = rx->state;
	tn_tensor_conn *unref;

	/* state->lock from before flag_busy falls: nobody may free rx in between. */
	pthread_mutex_lock(&state->lock);
	pthread_mutex_lock(&rx->lock);
	rx->flag_busy = false;
	if (op->status != TERN_OK) /* it may not have come: say it in words, which may be said twice */
		say_released(rx, rx->flag_sent);
	push_credit(rx);
	pthread_mutex_unlock(&rx->lock);
	tn_tensor_rx_try_free(rx, &unref);
	pthread_mutex_unlock(&state->lock);
	if (unref)
		tn_tensor_conn_unref(unref);
}

tern_status tern_tensor_rx_release(tern_tensor_rx *rx)
{
	if (rx->delivered != rx->released + 1)
		return tn_fail(TERN_E_STATE, "tensor '%s': release without a polled tensor", rx->name);
	__atomic_store_n(&rx->released, rx->delivered, __ATOMIC_RELEASE);
	atomic_fetch_add_explicit(&rx->state->counters.releases, 1, memory_order_relaxed);
	if (rx->notify == TERN_NOTIFY_FLAG) {
		pthread_mutex_lock(&rx->lock);
		push_credit(rx);
		pthread_mutex_unlock(&rx->lock);
		return TERN_OK;
	}
	say_released(rx, rx->released);
	return TERN_OK;
}

/* ---- ends ---- */

bool tn_tensor_rx_revoke(tern_tensor_rx *rx, const tern_key *slot_key, const tern_key *flag_key)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);
	bool ended = tern_mem_revoke(mem, slot_key) != TERN_E_INDETERMINATE;

	if (rx->flags)
		ended &= tern_mem_revoke(mem, flag_key) != TERN_E_INDETERMINATE;
	return ended;
}

void tern_tensor_rx_destroy(tern_tensor_rx *rx)
{
	tn_tensor_state *state;
	tern_key slot_key, flag_key;
	tn_tensor_msg msg = {.type = TN_TENSOR_CLOSED};
	tn_tensor_conn *unref;
	bool tell;

	if (!rx)
		return;
	state = rx->state; /* rx may be freed below */
	pthread_mutex_lock(&state->lock);
	unpublish(rx);
	rx->ending = true; /* the keys stay from here on */
	slot_key = rx->slot_key;
	flag_key = rx->flag_key;
	pthread_mutex_unlock(&state->lock);
	tn_tensor_rx_revoke(rx, &slot_key, &flag_key);
	pthread_mutex_lock(&state->lock);
	rx->dead = true;
	msg.tx_id = rx->tx_id;
	tell = rx->conn && !rx->quiet && atomic_load(&rx->conn->status) == TERN_OK;
	if (tell)
		tn_mailbox_post(&rx->box, &msg);
	tn_tensor_rx_try_free(rx, &unref);
	pthread_mutex_unlock(&state->lock);
	if (unref)
		tn_tensor_conn_unref(unref);
}

void tn_tensor_on_close(tn_tensor_conn *conn, const tn_tensor_msg *msg)
{
	tn_tensor_state *state = conn->state;
	tn_tensor_conn *unref = NULL;
	tern_tensor_rx *rx;

	pthread_mutex_lock(&state->lock);
	rx = msg->rx_id < TN_TENSOR_RX_MAX ? state->rx_by_id[msg->rx_id] : NULL;
	if (rx && rx->conn == conn) {
		rx->quiet = true;
		atomic_store_explicit(&rx->status, TERN_E_PEER_CLOSED, memory_order_release);
		tn_tensor_rx_try_free(rx, &unref);
	}
	pthread_mutex_unlock(&state->lock);
	if (unref)
		tn_tensor_conn_unref(unref);
}

void tn_tensor_rx_conn_ended(tn_tensor_conn *conn, tern_status status)
{
	tn_tensor_state *state = conn->state;

	pthread_mutex_lock(&state->lock);
	tn_tensor_drop_waiters(conn);
	for (uint32_t i = 0; i < state->rx_end; i++) {
		tern_tensor_rx *rx = state->rx_by_id[i];

		if (rx && rx->conn == conn && atomic_load(&rx->status) == TERN_OK) {
			tn_mailbox_drop(&rx->box);
			atomic_store_explicit(&rx->status, status, memory_order_release);
		}
	}
	pthread_mutex_unlock(&state->lock);
}

void tn_tensor_rx_free_all(tn_tensor_state *state)
{
	for (tn_tensor_conn *conn = state->conns; conn; conn = conn->next)
		tn_tensor_drop_waiters(conn);
	for (uint32_t i = 0; i < TN_TENSOR_RX_MAX; i++) {
		tern_tensor_rx *rx = state->rx_by_id[i];

		if (!rx)
			continue;
		rx_free(rx);
	}
}

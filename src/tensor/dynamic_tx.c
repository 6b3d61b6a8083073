/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sender's end of a dynamic tensor channel: a key to the tensor for the time that it may be read, a block that
 * announces it, and the release of that block as acknowledgement.
 *
 *   over <= released <= sent <= over + slots        (over: operations that were completed)
 *
 * A send's key covers its tensor alone and is revoked before its operation completes. But a NIC checks only that memory is
 * registered, so a revoked key alone keeps nobody from reading: an operation ends when the receiver has acknowledged, has
 * said that it ended, or has no link any more, never earlier. A closed handle lives on until then.
 * Tensors in memory that peers may not read are copied into a block of this end, which is kept.
 *
 * Threads: tensor.h; operations complete from dispatch. tx->lock is above state->lock: news come under that one and only
 * queue work. Tests: tests/unit/tensor/dynamic_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "channel/op.h"
#include "tensor/dynamic_wire.h"
#include "tensor/tensor.h"

typedef struct sending {
	tern_dynamic_tx *tx;
	tern_op *user; /* NULL: free */
	tern_op op;    /* of the block */
	bool announcing;
	uint64_t bytes;
	tern_key key;
	void *staging;
	uint64_t staging_bytes;
} sending;

struct tern_dynamic_tx {
	tn_tensor_state *state;
	tern_dynamic_tx *next; /* state->lock */
	tern_tensor_tx *meta;  /* NULL at the end */
	bool closed;           /* by the user */
	char name[TERN_TENSOR_NAME_MAX];
	tern_dtype dtype;
	uint32_t rank;
	uint64_t bytes_max;
	unsigned slots;
	uint8_t *blocks; /* registered: slots x TN_META_BYTES */
	pthread_mutex_t lock;
	uint64_t sent, over;
	tern_status failed;    /* a block did not go out */
	_Atomic uint32_t refs; /* the user's, blocks under way, queued work */
	_Atomic bool queued;
	tn_work work;
	sending sendings[TERN_TENSOR_SLOTS_MAX];
};

static void tx_free(tern_dynamic_tx *tx)
{
	tern_mem *mem = tern_ctx_mem(tx->state->ctx);

	for (unsigned i = 0; i < TERN_TENSOR_SLOTS_MAX; i++)
		tern_mem_free(mem, tx->sendings[i].staging);
	tern_mem_free(mem, tx->blocks);
	pthread_mutex_destroy(&tx->lock);
	free(tx);
}

static void ref(tern_dynamic_tx *tx)
{
	atomic_fetch_add_explicit(&tx->refs, 1, memory_order_relaxed);
}

static void unref(tern_dynamic_tx *tx)
{
	tn_tensor_state *state = tx->state;

	if (atomic_fetch_sub_explicit(&tx->refs, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_lock(&state->lock);
	for (tern_dynamic_tx **p = &state->dynamic_txs; *p; p = &(*p)->next)
		if (*p == tx) {
			*p = tx->next;
			break;
		}
	pthread_mutex_unlock(&state->lock);
	tx_free(tx);
}

/* ---- completing ---- */

typedef struct finished {
	tern_op *user;
	tern_status status;
	uint64_t bytes;
	tern_key key;
} finished;

/* lock held: takes what is over out of the table. why: OK, or what ends all others too. */
static unsigned collect(tern_dynamic_tx *tx, uint64_t released, tern_status why, finished *out)
{
	unsigned n = 0;

	while (tx->over < tx->sent && (tx->over < released || why != TERN_OK)) {
		sending *s = &tx->sendings[tx->over % tx->slots];

		if (s->announcing && tx->over >= released) /* its block is still being written */
			break;
		out[n++] = (finished){.user = s->user,
				      .status = tx->over < released ? TERN_OK : why,
				      .bytes = s->bytes,
				      .key = s->key};
		s->user = NULL;
		tx->over++;
	}
	return n;
}

/* No lock held. A key that cannot be withdrawn from a peer that was stopped in its read says so. */
static void complete(tern_dynamic_tx *tx, const finished *f)
{
	tern_mem *mem = tern_ctx_mem(tx->state->ctx);
	tern_status status = f->status;
	char detail[192];

	if (f->bytes && tern_mem_revoke(mem, &f->key) == TERN_E_INDETERMINATE)
		status = TERN_E_INDETERMINATE;
	snprintf(detail, sizeof(detail), "dynamic tensor '%.120s': %s", tx->name, tern_status_text(status));
	tn_op_complete(tx->state->ctx, f->user, status, status == TERN_OK ? f->bytes : 0,
		       status == TERN_OK ? NULL : detail);
}

/* lock held: a closed handle without anything under way gives up its static end; to be closed outside of the lock. */
static tern_tensor_tx *take_end(tern_dynamic_tx *tx)
{
	tern_tensor_tx *meta = tx->closed && tx->over == tx->sent ? tx->meta : NULL;

	for (unsigned i = 0; i < tx->slots && meta; i++)
		if (tx->sendings[i].announcing)
			meta = NULL;
	if (meta)
		tx->meta = NULL;
	return meta;
}

static void unref(tern_dynamic_tx *tx);

static void settle(tern_dynamic_tx *tx)
{
	finished all[TERN_TENSOR_SLOTS_MAX];
	tern_tensor_tx *end;
	unsigned n = 0;

	pthread_mutex_lock(&tx->lock);
	if (tx->meta) {
		uint64_t released = atomic_load_explicit(&tx->meta->released, memory_order_acquire);
		tern_status why = tx->failed != TERN_OK ? tx->failed : tn_tensor_tx_status(tx->meta);

		n = collect(tx, TN_MIN(released, tx->sent), why, all);
	}
	end = take_end(tx);
	pthread_mutex_unlock(&tx->lock);
	for (unsigned i = 0; i < n; i++)
		complete(tx, &all[i]);
	if (!end)
		return;
	tn_tensor_tx_watch(end, NULL, NULL);
	tern_tensor_tx_close(end);
	unref(tx); /* the user's */
}

static void run_work(tn_work *work)
{
	tern_dynamic_tx *tx = TN_CONTAINER_OF(work, tern_dynamic_tx, work);

	atomic_store(&tx->queued, false);
	settle(tx);
	unref(tx);
}

/* state->lock held. */
static void on_news(void *arg)
{
	tern_dynamic_tx *tx = arg;

	if (atomic_exchange(&tx->queued, true))
		return;
	ref(tx);
	tn_ctx_defer(tx->state->ctx, &tx->work);
}

/* The block left, or never will. */
static void on_announced(tern_op *op, void *arg)
{
	sending *s = arg;
	tern_dynamic_tx *tx = s->tx;

	pthread_mutex_lock(&tx->lock);
	s->announcing = false;
	if (op->status != TERN_OK && tx->failed == TERN_OK)
		tx->failed = op->status;
	pthread_mutex_unlock(&tx->lock);
	settle(tx);
	unref(tx);
}

/* ---- opening ---- */

static tern_status open_meta(tern_dynamic_tx *tx, tern_link *link, uint64_t timeout_ns)
{
	tern_tensor_params meta = {.dtype = TERN_U8, .shape = {.rank = 1, .dims = {TN_META_BYTES}}};
	char name[TERN_TENSOR_NAME_MAX];
	void *blocks;

	snprintf(name, sizeof(name), "%s%.*s", TN_META_PREFIX, (int)(sizeof(name) - sizeof(TN_META_PREFIX)),
		 tx->name);
	meta.name = name;
	TN_TRY(tern_tensor_tx_open(link, &meta, timeout_ns, &tx->meta));
	tx->slots = tx->meta->slots;
	TN_TRY(tern_mem_alloc(tern_ctx_mem(tx->state->ctx), (uint64_t)tx->slots * TN_META_BYTES, 64,
			      TERN_ACCESS_NONE, TERN_MEM_HOST, &blocks));
	tx->blocks = blocks;
	return TERN_OK;
}

tern_status tern_dynamic_tx_open(tern_link *link, const tern_dynamic_params *params, uint64_t timeout_ns,
				 tern_dynamic_tx **out)
{
	tern_dynamic_tx *tx = calloc(1, sizeof(*tx));
	size_t n = params->name ? strlen(params->name) : 0;
	tern_status status;

	*out = NULL;
	if (!tx)
		return tn_fail(TERN_E_NOMEM, "no memory for a dynamic tensor's sender");
	tx->state = tn_tensor_state_get(tern_link_ctx(link));
	if (!tx->state || n == 0 || n + sizeof(TN_META_PREFIX) > TERN_TENSOR_NAME_MAX) {
		free(tx);
		return tn_fail(TERN_E_INVALID, "a dynamic tensor's name has 1 to %zu bytes",
			       TERN_TENSOR_NAME_MAX - sizeof(TN_META_PREFIX));
	}
	snprintf(tx->name, sizeof(tx->name), "%s", params->name);
	tx->dtype = params->dtype;
	tx->rank = params->rank;
	tx->bytes_max = params->bytes_max ? params->bytes_max : UINT64_MAX;
	tx->refs = 1;
	tx->work.run = run_work;
	pthread_mutex_init(&tx->lock, NULL);
	for (unsigned i = 0; i < TERN_TENSOR_SLOTS_MAX; i++) {
		tx->sendings[i].tx = tx;
		tern_op_init(&tx->sendings[i].op, on_announced, &tx->sendings[i]);
	}
	status = open_meta(tx, link, timeout_ns);
	if (status != TERN_OK) {
		char detail[TN_DETAIL_MAX];

		snprintf(detail, sizeof(detail), "%s", tn_detail_get());
		tern_tensor_tx_close(tx->meta);
		tx_free(tx);
		return tn_fail(status, "%s", detail);
	}
	pthread_mutex_lock(&tx->state->lock);
	tx->next = tx->state->dynamic_txs;
	tx->state->dynamic_txs = tx;
	pthread_mutex_unlock(&tx->state->lock);
	tn_tensor_tx_watch(tx->meta, on_news, tx);
	*out = tx;
	return TERN_OK;
}

/* ---- sending ---- */

static tern_status stage(tern_dynamic_tx *tx, sending *s, const void *data, uint64_t bytes)
{
	tern_mem *mem = tern_ctx_mem(tx->state->ctx);

	if (s->staging_bytes < bytes) {
		uint64_t want = TN_MAX(bytes, TN_MIN(s->staging_bytes + s->staging_bytes / 2, tx->bytes_max));
		void *memory;

		TN_TRY(tern_mem_alloc(mem, want, want >= 65536 ? 4096 : 64, TERN_ACCESS_READ, TERN_MEM_HOST,
				      &memory));
		tern_mem_free(mem, s->staging);
		s->staging = memory;
		s->staging_bytes = want;
	}
	memcpy(s->staging, data, bytes);
	atomic_fetch_add_explicit(&tx->state->counters.staged, 1, memory_order_relaxed);
	return tern_mem_export(mem, s->staging, bytes, TERN_ACCESS_READ, &s->key);
}

/* A key to the tensor, or to a copy of it. */
static tern_status offer(tern_dynamic_tx *tx, sending *s, const void *data, uint64_t bytes)
{
	tern_status status;

	s->bytes = bytes;
	s->key = (tern_key){0};
	if (bytes == 0)
		return TERN_OK;
	status = tern_mem_export(tern_ctx_mem(tx->state->ctx), data, bytes, TERN_ACCESS_READ, &s->key);
	return status == TERN_E_ACCESS || status == TERN_E_INVALID ? stage(tx, s, data, bytes) : status;
}

static tern_status check_tensor(const tern_dynamic_tx *tx, const tern_shape *shape, uint64_t *bytes)
{
	bool empty = false;

	if (shape->rank != tx->rank)
		return tn_fail(TERN_E_SHAPE, "dynamic tensor '%s' has rank %u, not %u", tx->name, tx->rank,
			       shape->rank);
	for (unsigned i = 0; i < shape->rank; i++)
		empty |= shape->dims[i] == 0;
	*bytes = empty ? 0 : tern_tensor_bytes(tx->dtype, shape);
	if (*bytes > tx->bytes_max)
		return tn_fail(TERN_E_TOO_LARGE, "dynamic tensor '%s': %llu bytes, at most %llu were agreed",
			       tx->name, (unsigned long long)*bytes, (unsigned long long)tx->bytes_max);
	return TERN_OK;
}

tern_status tern_dynamic_tx_ready(tern_dynamic_tx *tx)
{
	bool full;

	TN_TRY(tern_tensor_tx_ready(tx->meta));
	pthread_mutex_lock(&tx->lock);
	full = tx->sendings[tx->sent % tx->slots].user || tx->sendings[tx->sent % tx->slots].announcing;
	pthread_mutex_unlock(&tx->lock);
	return full ? TERN_AGAIN : TERN_OK;
}

/* lock held: the block goes out; a completion that came before this returns waits for the lock. */
static tern_status announce(tern_dynamic_tx *tx, sending *s, const tern_shape *shape)
{
	uint8_t *block = tx->blocks + tx->sent % tx->slots * TN_META_BYTES;
	tn_meta meta = {.dtype = tx->dtype,
			.shape = *shape,
			.bytes = s->bytes,
			.generation = tx->sent + 1,
			.key = s->key};
	tern_status status;

	tn_meta_encode(block, &meta);
	ref(tx);
	s->announcing = true;
	status = tern_tensor_send(tx->meta, block, &s->op);
	if (status == TERN_OK) {
		tx->sent++;
		return status;
	}
	s->announcing = false;
	atomic_fetch_sub(&tx->refs, 1); /* never the last: the caller has one */
	return status;
}

tern_status tern_dynamic_send(tern_dynamic_tx *tx, const void *data, const tern_shape *shape, tern_op *op)
{
	sending *s = &tx->sendings[tx->sent % tx->slots];
	tern_status status;
	uint64_t bytes = 0;

	TN_TRY(check_tensor(tx, shape, &bytes));
	TN_TRY(tern_dynamic_tx_ready(tx));
	TN_TRY(offer(tx, s, data, bytes));
	status = tn_op_begin(op);
	if (status == TERN_OK) {
		pthread_mutex_lock(&tx->lock);
		s->user = op;
		status = announce(tx, s, shape);
		if (status != TERN_OK)
			s->user = NULL;
		pthread_mutex_unlock(&tx->lock);
		if (status != TERN_OK)
			tn_op_abort(op);
	}
	if (status != TERN_OK && bytes)
		tern_mem_revoke(tern_ctx_mem(tx->state->ctx), &s->key);
	return status;
}

void tern_dynamic_tx_close(tern_dynamic_tx *tx)
{
	if (!tx)
		return;
	ref(tx);
	pthread_mutex_lock(&tx->lock);
	tx->closed = true;
	pthread_mutex_unlock(&tx->lock);
	settle(tx);
	unref(tx);
}

void tn_dynamic_tx_free_all(tn_tensor_state *state)
{
	while (state->dynamic_txs) {
		tern_dynamic_tx *tx = state->dynamic_txs;

		state->dynamic_txs = tx->next;
		for (unsigned i = 0; i < TERN_TENSOR_SLOTS_MAX; i++)
			if (tx->sendings[i].user)
				tn_op_complete(state->ctx, tx->sendings[i].user, TERN_E_FLUSHED, 0,
					       "its context was destroyed");
		tx_free(tx);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's end of a dynamic tensor channel: metadata blocks come by a static channel; each tensor is read one-sided
 * into memory of this side, which is used again for later ones, and the release of the block acknowledges.
 *
 *   released (acknowledged) <= started <= released + slots, started <= freed + slots
 *   freed <= taken <= freed + 1, taken <= released           (one tensor is looked at, at a time)
 *
 *   place of generation g = (g - 1) % slots:  idle -> reading -> read -> (taken) -> idle
 *
 * A read that its lane's death left open is repeated: reads do no harm twice.
 *
 * Threads: tensor.h; reads complete from dispatch. rx->lock is above those of the static ends, below nothing.
 * Tests: tests/unit/tensor/dynamic_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "tensor/dynamic_wire.h"
#include "tensor/tensor.h"

typedef struct place {
	tern_dynamic_rx *rx;
	tern_op op;
	void *memory;
	uint64_t capacity;
	tn_meta meta;
	tn_tensor_conn *conn; /* of the read, referenced */
	bool reading, again, read;
} place;

struct tern_dynamic_rx {
	tn_tensor_state *state;
	tern_dynamic_rx *next; /* state->lock */
	tern_tensor_rx *meta;
	bool dead; /* destroyed by the user: the sender hears of it when no read is under way any more */
	char name[TERN_TENSOR_NAME_MAX];
	tern_dtype dtype;
	uint32_t rank;
	uint64_t bytes_max;
	unsigned slots;
	pthread_mutex_t lock;
	uint64_t started, released, taken, freed;
	unsigned reads;    /* under way */
	tern_status wrong; /* what the sender did; final */
	char detail[160];
	place places[TERN_TENSOR_SLOTS_MAX];
};

static place *place_of(tern_dynamic_rx *rx, uint64_t generation)
{
	return &rx->places[(generation - 1) % rx->slots];
}

static void rx_free(tern_dynamic_rx *rx)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);

	for (unsigned i = 0; i < rx->slots; i++)
		tern_mem_free(mem, rx->places[i].memory);
	pthread_mutex_destroy(&rx->lock);
	free(rx);
}

static void unlink_rx(tern_dynamic_rx *rx)
{
	pthread_mutex_lock(&rx->state->lock);
	for (tern_dynamic_rx **p = &rx->state->dynamic_rxs; *p; p = &(*p)->next)
		if (*p == rx) {
			*p = rx->next;
			break;
		}
	pthread_mutex_unlock(&rx->state->lock);
}

static void rx_end(tern_dynamic_rx *rx)
{
	unlink_rx(rx);
	tern_tensor_rx_destroy(rx->meta);
	rx_free(rx);
}

/* ---- creation ---- */

static void on_read(tern_op *op, void *arg);

static tern_status check_params(const tern_dynamic_params *params)
{
	size_t n = params->name ? strlen(params->name) : 0;

	if (n == 0 || n + sizeof(TN_META_PREFIX) > TERN_TENSOR_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "a dynamic tensor's name has 1 to %zu bytes, not %zu",
			       TERN_TENSOR_NAME_MAX - sizeof(TN_META_PREFIX), n);
	if (tern_dtype_bytes(params->dtype) == 0 || params->rank > TERN_RANK_MAX)
		return tn_fail(TERN_E_INVALID, "dynamic tensor '%s': dtype %d or rank %u is none",
			       params->name, (int)params->dtype, params->rank);
	return TERN_OK;
}

tern_status tern_dynamic_rx_create(tern_ctx *ctx, const tern_dynamic_params *params, tern_dynamic_rx **out)
{
	tern_tensor_params meta = {.dtype = TERN_U8, .shape = {.rank = 1, .dims = {TN_META_BYTES}}};
	char name[TERN_TENSOR_NAME_MAX];
	tern_dynamic_rx *rx;
	tern_status status;

	*out = NULL;
	TN_TRY(check_params(params));
	rx = calloc(1, sizeof(*rx));
	if (!rx)
		return tn_fail(TERN_E_NOMEM, "no memory for dynamic tensor '%s'", params->name);
	snprintf(name, sizeof(name), "%s%s", TN_META_PREFIX, params->name);
	snprintf(rx->name, sizeof(rx->name), "%s", params->name);
	meta.name = name;
	meta.slots = rx->slots = params->slots ? params->slots : 2;
	status = tern_tensor_rx_create(ctx, &meta, &rx->meta);
	if (status != TERN_OK) {
		free(rx);
		return status;
	}
	rx->state = tn_tensor_state_get(ctx);
	rx->dtype = params->dtype;
	rx->rank = params->rank;
	rx->bytes_max = params->bytes_max ? params->bytes_max : UINT64_MAX;
	pthread_mutex_init(&rx->lock, NULL);
	for (unsigned i = 0; i < rx->slots; i++) {
		rx->places[i].rx = rx;
		tern_op_init(&rx->places[i].op, on_read, &rx->places[i]);
	}
	pthread_mutex_lock(&rx->state->lock);
	rx->next = rx->state->dynamic_rxs;
	rx->state->dynamic_rxs = rx;
	pthread_mutex_unlock(&rx->state->lock);
	*out = rx;
	return TERN_OK;
}

/* ---- reading: rx->lock held ---- */

/* Blocks go back in order: the sender hears how many of its sources are free. */
static void acknowledge(tern_dynamic_rx *rx)
{
	const void *block;

	while (!rx->dead && rx->released < rx->started && place_of(rx, rx->released + 1)->read) {
		if (tern_tensor_rx_poll(rx->meta, &block) != TERN_OK ||
		    tern_tensor_rx_release(rx->meta) != TERN_OK)
			return;
		rx->released++;
	}
}

static void goes_wrong(tern_dynamic_rx *rx, tern_status status, const char *what)
{
	if (rx->wrong != TERN_OK)
		return;
	rx->wrong = status;
	snprintf(rx->detail, sizeof(rx->detail), "%s", what);
}

/* Copied first: the sender could write it again while we look. */
static bool take_meta(tern_dynamic_rx *rx, uint64_t generation, const void *block, tn_meta *meta)
{
	uint8_t copy[TN_META_BYTES];

	memcpy(copy, block, sizeof(copy));
	if (!tn_meta_decode(copy, meta) || meta->generation != generation)
		goes_wrong(rx, TERN_E_PROTOCOL, "a block that announces no tensor");
	else if (meta->bytes && tern_key_length(&meta->key) < meta->bytes)
		goes_wrong(rx, TERN_E_PROTOCOL, "a block whose key does not cover its tensor");
	else if (meta->dtype != rx->dtype || meta->shape.rank != rx->rank)
		goes_wrong(rx, TERN_E_SHAPE, "the sender's tensor has another type or rank");
	else if (meta->bytes > rx->bytes_max)
		goes_wrong(rx, TERN_E_TOO_LARGE, "the sender's tensor is longer than agreed");
	return rx->wrong == TERN_OK;
}

/* Memory for a tensor: what is there, or a longer block, at least half as long again, so that lengths that creep up
   don't allocate each time. */
static tern_status make_room(tern_dynamic_rx *rx, place *p, uint64_t bytes)
{
	tern_mem *mem = tern_ctx_mem(rx->state->ctx);
	uint64_t want = TN_MAX(bytes, TN_MIN(p->capacity + p->capacity / 2, rx->bytes_max));
	void *memory = NULL;

	if (bytes <= p->capacity && p->memory)
		return TERN_OK;
	TN_TRY(tern_mem_alloc(mem, TN_MAX(want, 64), want >= 65536 ? 4096 : 64, TERN_ACCESS_NONE,
			      TERN_MEM_HOST, &memory));
	tern_mem_free(mem, p->memory);
	p->memory = memory;
	p->capacity = TN_MAX(want, 64);
	atomic_fetch_add_explicit(&rx->state->counters.grown, 1, memory_order_relaxed);
	return TERN_OK;
}

static tern_status post_read(tern_dynamic_rx *rx, place *p)
{
	tern_status status;

	p->conn = tn_tensor_rx_conn(rx->meta);
	if (!p->conn)
		return TERN_AGAIN; /* its end says why, when nothing is left to look at */
	status = tern_get(p->conn->channel, p->memory, p->meta.bytes, &p->meta.key, 0, &p->op);
	if (status != TERN_OK) {
		tn_tensor_conn_unref(p->conn);
		p->conn = NULL;
		if (status != TERN_AGAIN)
			goes_wrong(rx, status == TERN_E_STALE_KEY ? TERN_E_PEER_CLOSED : status,
				   tern_detail());
		return TERN_AGAIN; /* what went wrong is said when nothing is left to look at */
	}
	p->reading = true;
	rx->reads++;
	return TERN_OK;
}

/* Reads of what has come, as far as there are places. */
static tern_status start_reads(tern_dynamic_rx *rx)
{
	const void *block;

	while (rx->wrong == TERN_OK && rx->started < TN_MIN(rx->released, rx->freed) + rx->slots &&
	       tn_tensor_rx_arrived(rx->meta, rx->started + 1, &block)) {
		place *p = place_of(rx, rx->started + 1);

		TN_ASSERT(!p->reading);
		if (!take_meta(rx, rx->started + 1, block, &p->meta))
			break;
		TN_TRY(make_room(rx, p, p->meta.bytes));
		p->read = p->meta.bytes == 0;
		p->again = false;
		if (!p->read)
			TN_TRY(post_read(rx, p));
		rx->started++;
	}
	for (uint64_t g = rx->released + 1; g <= rx->started; g++) {
		place *p = place_of(rx, g);

		if (p->again && post_read(rx, p) == TERN_OK)
			p->again = false;
	}
	acknowledge(rx);
	return TERN_OK;
}

/* The read of a place is over, from dispatch. */
static void on_read(tern_op *op, void *arg)
{
	place *p = arg;
	tern_dynamic_rx *rx = p->rx;
	tn_tensor_conn *conn = p->conn;
	bool over;

	pthread_mutex_lock(&rx->lock);
	p->reading = false;
	p->conn = NULL;
	rx->reads--;
	if (op->status == TERN_OK) {
		p->read = true;
		atomic_fetch_add_explicit(&rx->state->counters.reads, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&rx->state->counters.read_bytes, p->meta.bytes,
					  memory_order_relaxed);
		acknowledge(rx);
	} else if (op->status == TERN_E_INDETERMINATE || op->status == TERN_E_LANE) {
		p->again = true;
	} else {
		goes_wrong(rx, op->status == TERN_E_STALE_KEY ? TERN_E_PEER_CLOSED : op->status,
			   tern_detail());
	}
	over = rx->dead && rx->reads == 0;
	pthread_mutex_unlock(&rx->lock);
	if (over)
		rx_end(rx);
	tn_tensor_conn_unref(conn);
}

/* ---- the user's calls ---- */

static tern_status ended(tern_dynamic_rx *rx)
{
	tern_status status = atomic_load_explicit(&rx->meta->status, memory_order_acquire);
	const void *block;

	/* A read under way still ends with its tensor or with the reason. */
	if (rx->wrong == TERN_OK &&
	    (rx->reads || status == TERN_OK || tn_tensor_rx_arrived(rx->meta, rx->started + 1, &block)))
		return TERN_AGAIN;
	if (rx->wrong != TERN_OK)
		return tn_fail(rx->wrong, "dynamic tensor '%s': %s", rx->name,
			       rx->detail[0] ? rx->detail : tern_status_text(rx->wrong));
	return tn_fail(status, "the sender of dynamic tensor '%s' is gone: %s", rx->name,
		       tern_status_text(status));
}

tern_status tern_dynamic_rx_poll(tern_dynamic_rx *rx, const void **data, tern_shape *shape)
{
	tern_status status;

	pthread_mutex_lock(&rx->lock);
	status = start_reads(rx);
	if (rx->taken > rx->freed || rx->taken < rx->released) {
		uint64_t generation = rx->freed + 1;
		place *p = place_of(rx, generation);

		rx->taken = generation;
		*data = p->memory;
		*shape = p->meta.shape;
		status = TERN_OK;
	} else if (status == TERN_OK || status == TERN_AGAIN) {
		status = ended(rx);
	}
	pthread_mutex_unlock(&rx->lock);
	return status;
}

tern_status tern_dynamic_rx_release(tern_dynamic_rx *rx)
{
	tern_status status = TERN_OK;

	pthread_mutex_lock(&rx->lock);
	if (rx->taken == rx->freed) {
		status = tn_fail(TERN_E_STATE, "dynamic tensor '%s': release without a polled tensor",
				 rx->name);
	} else {
		place_of(rx, rx->taken)->read = false;
		rx->freed++;
	}
	pthread_mutex_unlock(&rx->lock);
	return status;
}

void tern_dynamic_rx_destroy(tern_dynamic_rx *rx)
{
	bool over;

	if (!rx)
		return;
	pthread_mutex_lock(&rx->lock);
	rx->dead = true;
	over = rx->reads == 0;
	pthread_mutex_unlock(&rx->lock);
	if (over)
		rx_end(rx);
}

void tn_dynamic_rx_free_all(tn_tensor_state *state)
{
	while (state->dynamic_rxs) {
		tern_dynamic_rx *rx = state->dynamic_rxs;

		state->dynamic_rxs = rx->next;
		rx_free(rx); /* its blocks go with the static ends */
	}
}

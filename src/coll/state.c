/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context knows of collectives: options, communicators, and ranks that dialled and said who they are.
 *
 * Threads: arrivals come from dispatch; lists under state->lock. Tests: tests/unit/coll/coll_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/options.h"
#include "coll/comm.h"

#define ROW(name_, type_, dflt_, min_, max_, help_)                                                \
	{                                                                                          \
		.layer = "coll", .name = (name_), .type = (type_), .dflt = (dflt_), .min = (min_), \
		.max = (max_), .help = (help_)                                                     \
	}
static const tn_option_row options[] = {
	ROW("chunk", TN_OPT_BYTES, "256KiB", 16384, 64u << 20,
	    "pieces that large flows of collectives are cut into: one is reduced while the next travels"),
	ROW("slots", TN_OPT_U64, "4", 2, TERN_TENSOR_SLOTS_MAX,
	    "pieces under way between two ranks; each costs coll.chunk bytes at the receiver"),
	ROW("timeout", TN_OPT_DURATION, "300s", 1000000, 0, "longest wait of a collective for other ranks"),
	ROW("ring", TN_OPT_BYTES, "512KiB", 0, 0,
	    "all-reduce: from so many bytes on by a ring, below by halving and doubling"),
	ROW("levels", TN_OPT_BOOL, "1", 0, 0,
	    "all-reduce over several hosts goes through each host first, then between them"),
	{0},
};
#undef ROW
TN_OPTION_TABLE(coll, options)

static void state_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	tn_coll_state *state = (tn_coll_state *)slot;

	fn("coll.operations", atomic_load_explicit(&state->operations, memory_order_relaxed), arg);
	fn("coll.sent_bytes", atomic_load_explicit(&state->bytes_sent, memory_order_relaxed), arg);
	fn("coll.received_bytes", atomic_load_explicit(&state->bytes_received, memory_order_relaxed), arg);
}

static void state_free(tn_coll_state *state)
{
	while (!tn_list_empty(&state->arrivals))
		free(TN_LIST_ENTRY(tn_list_pop_front(&state->arrivals), tn_coll_arrival, node));
	pthread_mutex_destroy(&state->lock);
	free(state);
}

static void state_destroy(tn_ctx_slot *slot)
{
	state_free((tn_coll_state *)slot);
}

/* ---- arrivals ---- */

static void on_hello(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	tn_coll_arrival *arrival = arg;
	tn_coll_state *state =
		(tn_coll_state *)tn_ctx_slot_get(tern_link_ctx(tern_channel_link(channel)), TN_SLOT_COLL);
	tn_coll_hello hello;

	if (!state || !tn_coll_hello_read(msg, bytes, &hello))
		return; /* whoever waits for it says who is missing */
	pthread_mutex_lock(&state->lock);
	if (!arrival->name[0]) {
		memcpy(arrival->name, hello.name, sizeof(arrival->name));
		arrival->rank = hello.rank;
		arrival->size = hello.size;
	}
	pthread_mutex_unlock(&state->lock);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	tn_coll_arrival *arrival = arg;
	tn_coll_state *state =
		(tn_coll_state *)tn_ctx_slot_get(tern_link_ctx(tern_channel_link(channel)), TN_SLOT_COLL);

	(void)status;
	if (!state) /* the context ends */
		return;
	pthread_mutex_lock(&state->lock);
	arrival->ended = true;
	pthread_mutex_unlock(&state->lock);
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	tn_coll_state *state = arg;
	tn_coll_arrival *arrival = NULL;

	pthread_mutex_lock(&state->lock);
	if (state->arrival_count < TN_COLL_ARRIVALS_MAX)
		arrival = calloc(1, sizeof(*arrival));
	if (arrival) {
		arrival->channel = channel;
		tn_list_push_back(&state->arrivals, &arrival->node);
		state->arrival_count++;
	}
	pthread_mutex_unlock(&state->lock);
	if (!arrival)
		return TERN_E_LIMIT;
	*params = (tern_channel_params){.on_message = on_hello,
					.on_closed = on_closed,
					.arg = arrival,
					.message_bytes_max = TN_COLL_HELLO_MAX};
	return TERN_OK;
}

tn_coll_arrival *tn_coll_arrival_find(tn_coll_state *state, const tern_communicator *comm, uint32_t rank)
{
	TN_LIST_FOREACH(node, &state->arrivals) {
		tn_coll_arrival *arrival = TN_LIST_ENTRY(node, tn_coll_arrival, node);

		if (!arrival->ended && arrival->rank == rank && strcmp(arrival->name, comm->name) == 0)
			return arrival;
	}
	return NULL;
}

/* ---- life ---- */

tn_coll_state *tn_coll_state_get(tern_ctx *ctx)
{
	tn_coll_state *state = (tn_coll_state *)tn_ctx_slot_get(ctx, TN_SLOT_COLL), *winner;
	const tn_options *o = tn_ctx_options(ctx);

	if (state)
		return state;
	state = calloc(1, sizeof(*state));
	if (!state)
		return NULL;
	state->slot.destroy = state_destroy;
	state->slot.counters = state_counters;
	state->ctx = ctx;
	state->chunk = tn_opt_u64(o, options, "chunk") & ~UINT64_C(63);
	state->slots = tn_opt_u64(o, options, "slots");
	state->timeout_ns = tn_opt_u64(o, options, "timeout");
	state->ring_bytes = tn_opt_u64(o, options, "ring");
	state->levels = tn_opt_bool(o, options, "levels");
	pthread_mutex_init(&state->lock, NULL);
	tn_list_init(&state->comms);
	tn_list_init(&state->arrivals);
	winner = (tn_coll_state *)tn_ctx_slot_set(ctx, TN_SLOT_COLL, &state->slot);
	if (winner != state) {
		state_free(state);
		return winner;
	}
	if (tern_ctx_listen(ctx, TN_COLL_SERVICE, on_open, state) != TERN_OK)
		return NULL; /* can't happen: the name is ours */
	return state;
}

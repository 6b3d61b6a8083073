/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options and counters of the layer. Threads: any. Tests: tests/unit/ps.
 */
#include "ps/state.h"

#include <stdlib.h>

#include "ps/group.h"

#define ROW(row_name, row_type, row_dflt, row_min, row_max, row_help)                                \
	{                                                                                            \
		.layer = "ps", .name = row_name, .type = row_type, .dflt = row_dflt, .min = row_min, \
		.max = row_max, .help = row_help                                                     \
	}

const tn_option_row tn_ps_options[] = {
	ROW("workers", TN_OPT_U64, "1", 1, 64, "threads of a server for batches that take long"),
	ROW("inline_bytes", TN_OPT_BYTES, "1MiB", 0, 0,
	    "rows of a batch that a server works on where it came in; larger ones go to its workers"),
	ROW("staged_bytes", TN_OPT_BYTES, "1GiB", 4096, 0,
	    "gradients that a server keeps until the steps of summed groups close"),
	ROW("in_flight", TN_OPT_U64, "256", 1, 1024, "operations of one client object in flight"),
	ROW("retry", TN_OPT_DURATION, "1ms", 10000, 0,
	    "pause before a piece of an operation is sent again; doubled each time, up to 100 times as long"),
	ROW("linear", TN_OPT_BOOL, "on", 0, 0,
	    "a pull from a server with backups waits until they have what it read"),
	ROW("save_lease", TN_OPT_DURATION, "20s", 100000000, 0,
	    "after that a save or restore whose leader is silent is given up"),
	ROW("replica_patience", TN_OPT_DURATION, "1s", 1000000, 0,
	    "after that a backup that does not answer is given up, and writes go on without it"),
	ROW("lease", TN_OPT_DURATION, "2s", 1000000, 0,
	    "for how long a client may read rows where they lie after it asked (TERN_PULL_ONE_SIDED)"),
	{0},
};
#undef ROW
TN_OPTION_TABLE(ps, tn_ps_options)

static void state_counters(tn_ctx_slot *slot, tern_counter_fn fn, void *arg)
{
	tn_ps_counters *c = &((tn_ps_state *)slot)->counters;

#define ROW(name) fn("ps." #name, atomic_load_explicit(&c->name, memory_order_relaxed), arg);
	TN_PS_COUNTERS(ROW)
#undef ROW
}

static void state_waits(tn_ctx_slot *slot, void (*fn)(const tern_wait *wait, void *arg), void *arg)
{
	tn_ps_state *state = (tn_ps_state *)slot;
	tn_ps_group_waits *waits = calloc(1, sizeof(*waits));

	if (!waits)
		return;
	pthread_mutex_lock(&state->watch_lock);
	if (state->groups)
		tn_ps_groups_waits(state->groups, waits);
	pthread_mutex_unlock(&state->watch_lock);
	for (uint32_t i = 0; i < waits->n; i++)
		fn(&(tern_wait){.what = waits->row[i].text,
				.whom = "",
				.since_ns = waits->row[i].since_ns,
				.count = 1},
		   arg);
	free(waits);
}

static void state_destroy(tn_ctx_slot *slot)
{
	pthread_mutex_destroy(&((tn_ps_state *)slot)->watch_lock);
	free(slot);
}

tn_ps_state *tn_ps_state_get(tern_ctx *ctx)
{
	tn_ps_state *state = (tn_ps_state *)tn_ctx_slot_get(ctx, TN_SLOT_PS);
	tn_ps_state *winner;

	if (state)
		return state;
	state = calloc(1, sizeof(*state));
	if (!state)
		return NULL;
	pthread_mutex_init(&state->watch_lock, NULL);
	state->slot.destroy = state_destroy;
	state->slot.counters = state_counters;
	state->slot.waits = state_waits;
	winner = (tn_ps_state *)tn_ctx_slot_set(ctx, TN_SLOT_PS, &state->slot);
	if (winner != state)
		state_destroy(&state->slot);
	return winner;
}

void tn_ps_state_watch(tn_ps_state *state, tn_ps_groups *groups)
{
	pthread_mutex_lock(&state->watch_lock);
	state->groups = groups;
	pthread_mutex_unlock(&state->watch_lock);
}

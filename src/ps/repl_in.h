/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backup's side of replication: what primaries send is applied once, in their order, and only for slots that the map
 * gives to that pair.
 *
 *   peer      a primary, by its number: the stream that it sends on, the last frame of it that was applied
 *   slot      from, epoch: who began to send it, and of which epoch it was then
 *
 *   a record of slot s is taken from p  <=>  from[s] = p, and epoch[s] is, in this server's map, the epoch by which it
 *                                            gets copies: the slot's, or that of who is next
 *
 * An epoch stands for one pair of servers, so a primary that the map has deposed is refused here, slot by slot: what a
 * frame says of other slots is applied all the same, because pushes are applied once per slot anyway. One frame of a
 * peer is under way at a time; one that comes again gets the old answer.
 *
 * Pure but for the tables in `store`. Threads: apply, one at a time; a change of the map waits for it to end (the
 * caller's matter). Tests: tests/unit/ps/repl_in_test.c, tests/unit/ps/repl_sim, fuzz/ps_repl.c.
 */
#ifndef TN_PS_REPL_IN_H
#define TN_PS_REPL_IN_H

#include "cluster/map.h"
#include "ps/repl_wire.h"

struct ps_share;
struct tn_steps;

/* The tables of a server. */
typedef struct tn_repl_store {
	/* With a reference; NULL: there is none. */
	struct ps_share *(*get)(void *arg, uint64_t id);
	/* Was it dropped here, and not created again? */
	bool (*dropped)(void *arg, uint64_t id);
	/* TERN_OK too if it is there as wanted. */
	tern_status (*create)(void *arg, const tern_table_schema *schema);
	void (*drop)(void *arg, uint64_t id);
	void (*each)(void *arg, void (*fn)(struct ps_share *share, void *fn_arg), void *fn_arg);
	struct tn_steps *steps;
	void *arg;
} tn_repl_store;

#define TN_REPL_RETIRED 4u

typedef struct tn_repl_peer {
	uint64_t stream, seq;
	uint64_t retired[TN_REPL_RETIRED]; /* streams before it: a late frame of theirs changes nothing */
	tn_repl_answer last;
} tn_repl_peer;

typedef struct tn_repl_in {
	tn_repl_peer *peers[TN_CL_SERVERS_MAX];
	uint16_t from[TN_CL_SLOTS];
	uint32_t epoch[TN_CL_SLOTS];
	uint64_t frames, records, refused; /* counted */
} tn_repl_in;

void tn_repl_in_init(tn_repl_in *in);
void tn_repl_in_fini(tn_repl_in *in);
/* False: the frame can't be read; there is no answer. */
bool tn_repl_in_apply(tn_repl_in *in, const tn_repl_store *store, const tn_cl_map *map, uint16_t self,
		      const void *frame, uint64_t bytes, tn_repl_answer *answer);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of groups that are summed: servers keep what members push in a step, and apply it once, in one go, when the step
 * closes.
 *
 *   life      a group's time at its keeper: a number that the keeper draws; another life is another group
 *   staged    one push of one member in one step: (life, member, step, seq), kept as it came, slot by slot (steps.h)
 *   closing   the last step that closed, and its senders in order, as the keeper says (store/round.h). Every member
 *             brings it to every server; the first one has it applied, the others wait for that or are told at once
 *
 *   applied:  for each table all rows of sender 1, then of sender 2, ..., within a sender by seq, in one push: equal keys
 *             are summed in that order, and the optimiser runs once per key
 *   staged of steps <= closed: applied, or dropped with a member that is no sender; later ones stay
 *
 * Both may be repeated, in any pieces, to whoever has the slots by then: neither counts. The answer to a closing says in
 * which slots the step is closed; members bring it until it is so in all. With backups gradients that are staged, sums and
 * what is closed go into the streams as they are written here, and are answered when the backups have them.
 *
 * Threads: handlers run from dispatch, closings in workers. Locks: see replicas.h; none is held over the engine but a
 * table's order with backups. Tests: tests/unit/ps/round_test.c, tests/unit/ps/replicas_test.c, tests/e2e/failover.c.
 */
#ifndef TN_PS_ROUND_H
#define TN_PS_ROUND_H

#include <pthread.h>
#include <stdbool.h>

#include <tern/ps.h>
#include <tern/rpc.h>

#include "ps/repl_commit.h"
#include "ps/round_wire.h"
#include "ps/steps.h"

struct tern_ps_server;

typedef struct tn_ps_rounds {
	struct tern_ps_server *server;
	tn_steps steps;
	tn_commits commits;  /* commit_lock (replicas.h): of stagings and closings */
	uint64_t staged_max; /* bytes */
	bool open;
	bool closing; /* steps.lock */
} tn_ps_rounds;

/* What streams from primaries need. */
void tn_ps_rounds_init(tn_ps_rounds *rounds, struct tern_ps_server *server);
tern_status tn_ps_rounds_open(tn_ps_rounds *rounds);
/* Methods are not served any more; what is staged stays for closings at work. */
void tn_ps_rounds_close(tn_ps_rounds *rounds);
/* Nothing is at work. */
void tn_ps_rounds_free(tn_ps_rounds *rounds);
/* In a worker: a closing that was handed to it. */
void tn_ps_round_work(tn_ps_rounds *rounds, tern_rpc_request *request, const void *args, uint64_t bytes);

/* ---- members (round_client.c) ---- */

/* Bring a closing to all slots, and wait. */
tern_status tn_ps_round_close(tern_ps *ps, const tn_ps_close *closing);

#endif

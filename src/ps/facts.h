/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pushes a server's share of a table holds, as columns of a file beside the rows:
 *
 *   slot    I32 [n]    -1: the client's low-water mark alone
 *   client  U64 [n]
 *   low     U64 [n]
 *   seq     U64 [n]
 *   status  I32 [n]    how that push ended in that slot
 *
 * Must not: know rpc. Threads: one per object. Tests: tests/unit/ps/saver_test.c.
 */
#ifndef TN_PS_FACTS_H
#define TN_PS_FACTS_H

#include "ps/dedup.h"
#include "store/ckpt.h"

typedef struct tn_ps_facts {
	uint64_t count, capacity;
	int32_t *slot;
	uint64_t *client, *low, *seq;
	int32_t *status;
	bool failed; /* memory ran out */
} tn_ps_facts;

void tn_ps_facts_free(tn_ps_facts *facts);
/* All that d knows. TERN_E_NOMEM. */
tern_status tn_ps_facts_take(tn_ps_facts *facts, const tn_ps_dedup *d);
/* Those of slots that are `mine`, and the marks; the others are forgotten. */
void tn_ps_facts_only(tn_ps_facts *facts, const tn_ps_slots *mine);
/* Into a file of the checkpoint, with a row of the manifest ("pushes_of": table). Nothing to say: no file. */
tern_status tn_ps_facts_write(const tn_ps_facts *facts, tn_ckpt *ckpt, const char *table, uint32_t server);
/* The facts of slots that are `mine`, out of all files of the table. */
tern_status tn_ps_facts_restore(const tn_ckpt_reader *from, const char *table, const tn_ps_slots *mine,
				tn_ps_dedup *d);

#endif

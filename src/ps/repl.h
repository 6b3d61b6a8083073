/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server knows of its slots under replication, and what it writes into the streams to their backups.
 *
 *   state of a slot of which this server is primary:
 *
 *     NONE      it has no backup                                  writes are acknowledged alone
 *     WAITING   it has one that knows nothing yet                 alone; not at all if the map calls it in sync
 *     COPYING   BEGIN is in the stream; rows are being copied     each write goes into the stream, and waits for it
 *     COPIED    so is SYNCED
 *     SYNCED    the backup has said that it has it                the coordinator is told
 *
 *     NONE, WAITING -begin-> COPYING -finish-> COPIED -answer-> SYNCED -(MOVE: frozen, finish)-> COPIED -> handed over
 *     a new epoch: back to NONE or WAITING, whatever it was
 *
 *   copies   a slot may have two: of its backup, and of who is next (cluster/map.h), each with a state of its own; a write
 *            waits for both. When the map makes who was next the backup, its copy goes on as it is
 *   adopt    a backup that the map calls in sync from the beginning of an epoch has everything: it was the primary, and has let
 *            go. ADOPT instead of BEGIN, and no rows
 *   frozen   the slot is not served: its hand-over is under way, or its backup refused what this server sent, which
 *            says that a newer map is on its way. Until the epoch changes
 *   order    what is written to a table's slots, and its images put into the streams, under one lock of the table: so
 *            images are in the order of writes, and contain no write whose push is not in the stream before or with it
 *
 * Locks (the caller's): `hold` exclusively for tn_repl_map and tn_repl_begin; shared for all others that name it; the
 * stream's lock for what names a peer. Pure but for the tables. Tests: tests/unit/ps/repl_sim.
 */
#ifndef TN_PS_REPL_H
#define TN_PS_REPL_H

#include <stdatomic.h>

#include "cluster/map.h"
#include "ps/repl_in.h"
#include "ps/repl_out.h"
#include "ps/steps.h"

typedef enum tn_repl_state {
	TN_RS_NONE,
	TN_RS_WAITING,
	TN_RS_COPYING,
	TN_RS_COPIED,
	TN_RS_SYNCED,
} tn_repl_state;

typedef struct tn_repl_one {
	_Atomic uint8_t state; /* looked at by writers of other streams */
	bool adopt;
	bool refused;  /* it did not take something: another map is on its way */
	bool handed;   /* frozen, and no write at work, when SYNCED went into the stream */
	uint16_t peer; /* TN_CL_NONE */
	uint32_t epoch;
	uint64_t since; /* COPYING and later: the frame that has BEGIN */
} tn_repl_one;

#define TN_REPL_BACKUP 0u
#define TN_REPL_NEXT   1u

typedef struct tn_repl_slot {
	tn_repl_one copy[2]; /* peers differ */
	uint32_t epoch;
} tn_repl_slot;

typedef struct tn_repl {
	uint16_t self;
	uint64_t version;
	tn_repl_slot slot[TN_CL_SLOTS];
	tn_ps_slots mine; /* primary */
	tn_ps_slots kept; /* primary, backup or next */
	tn_ps_slots move; /* mine, and to be handed over to the backup */
	_Atomic uint64_t frozen[64];
	tn_repl_out *out[TN_CL_SERVERS_MAX];
	uint32_t begun[TN_CL_SERVERS_MAX]; /* slots of each stream, COPYING and later */
} tn_repl;

void tn_repl_init(tn_repl *r);
void tn_repl_fini(tn_repl *r);

/* A map (hold exclusively). *gone: slots whose rows were kept here and are not any more. *fresh: this server's from now
   on, and what it may have of them is not theirs. */
void tn_repl_map(tn_repl *r, const tn_cl_map *map, uint16_t self, tn_ps_slots *gone, tn_ps_slots *fresh);

static inline bool tn_repl_frozen(const tn_repl *r, uint32_t slot)
{
	return atomic_load_explicit(&r->frozen[slot / 64], memory_order_acquire) >> (slot % 64) & 1;
}
/* Is any of them? */
bool tn_repl_any_frozen(const tn_repl *r, const tn_ps_slots *slots);
/* May what is asked of these slots be done, or what was read of them told? lease: is it valid, now? */
bool tn_repl_serves(const tn_repl *r, const tn_ps_slots *slots, bool lease);
/* Those of a group that was copied to the peer which it is to serve then: they may be frozen before tn_repl_finish. */
void tn_repl_to_hand(const tn_repl *r, uint16_t peer, const tn_ps_slots *group, tn_ps_slots *slots);
/* Slots of this server alone; from any thread. Who wants writes at work to have ended takes hold exclusively once. */
void tn_repl_freeze(tn_repl *r, const tn_ps_slots *slots);

/* Slots that wait to be copied to one backup, at most `max`: *peer. False: none do. Hold shared. */
bool tn_repl_next(const tn_repl *r, uint32_t max, tn_ps_slots *slots, uint16_t *peer);
/* SYNCED slots that are to be handed over, not frozen yet, of one backup. */
bool tn_repl_next_move(const tn_repl *r, tn_ps_slots *slots, uint16_t *peer);

/* Their stream, begun if there is none (with the id). NULL: no memory. Hold exclusively or the only user. */
tn_repl_out *tn_repl_stream(tn_repl *r, uint16_t peer, uint64_t id);

/* Slots begin: tables, BEGIN, facts, what is closed in them (hold exclusively, steps, the stream). False: no memory, nothing
   happened. */
bool tn_repl_begin(tn_repl *r, uint16_t peer, const tn_ps_slots *slots, struct ps_share *const *shares,
		   uint32_t count, const tn_steps *steps);
/* Rows of a slot from *cursor on, at least `max` of them (tn_table_scan), if it is COPYING still. The table's order,
   the stream. */
tern_status tn_repl_copy(tn_repl *r, uint16_t peer, struct ps_share *share, uint32_t slot, uint64_t *cursor,
			 uint64_t max);
/* The next gradients of steps that have not closed, behind *cursor (0 at first; TN_SCAN_END), of slots that are COPYING.
   The steps, the stream. False: no memory. */
bool tn_repl_copy_steps(tn_repl *r, uint16_t peer, const tn_steps *steps, const tn_ps_slots *slots,
			uint64_t *cursor);
/* All that were copied, or are handed over, of these: SYNCED goes into the stream. handed: those that were frozen, and no write that
   began before is at work. False: no memory. */
bool tn_repl_finish(tn_repl *r, uint16_t peer, const tn_ps_slots *slots, const tn_ps_slots *handed);

/*
 * Keys by the stream that their images go to: keys of peer p are sorted[first[p]] .. sorted[first[p + 1] - 1]; others
 * are left out, those of two peers are there twice. Returns how many streams there are. `sorted` has room for 2 n keys, first for TN_CL_SERVERS_MAX + 1.
 */
uint32_t tn_repl_sort(const tn_repl *r, const uint64_t *keys, uint64_t n, uint64_t *sorted, uint32_t *first);
/* Images of keys into the stream, with what `e` says (PUSH, ROWS). The table's order, the stream. False: no memory,
   nothing was written. */
bool tn_repl_append(tn_repl *r, uint16_t peer, struct ps_share *share, const tn_repl_entry *e,
		    const uint64_t *keys, uint64_t n);
/* Gradients that were staged in these slots, for those of them that the peer is told of: *any. The steps, the stream. False:
   no memory, nothing was written. */
bool tn_repl_stage(tn_repl *r, uint16_t peer, const tn_ps_stage *stage, const tn_ps_slots *slots, bool *any);
/* Steps below `closed` have closed in these slots: the same. */
bool tn_repl_closed(tn_repl *r, uint16_t peer, uint64_t life, uint64_t closed, tern_status status,
		    const tn_ps_slots *slots, bool *any);
/* repl_steps.c, for tn_repl_begin. */
bool tn_repl_begin_steps(tn_repl_buf *buf, const tn_steps *steps, const tn_ps_slots *fresh);
/* An entry about the table as a whole, or a client: TABLE, DROP, BYE. */
bool tn_repl_note(tn_repl *r, uint16_t peer, const tn_repl_entry *e);

typedef struct tn_repl_told {
	uint16_t slot[TN_CL_SLOTS];
	uint32_t epoch[TN_CL_SLOTS];
	uint32_t count;
} tn_repl_told;
/*
 * The frame of the stream that is under way was answered (DONE or PARTIAL). Slots that the backup has all of now come
 * out in *synced, with those that were frozen before in *released too. *refused becomes what of it matters: slots that
 * the map gives to this pair still, as it did when the frame was written. They are frozen now.
 */
void tn_repl_answered(tn_repl *r, uint16_t peer, tn_ps_slots *refused, tn_repl_told *synced,
		      tn_repl_told *released);
/* Is it a backup of the slot, or next? */
bool tn_repl_copies_to(const tn_repl *r, uint32_t slot, uint16_t peer);
/* Slots of the stream, for a report that its backup is lost. */
void tn_repl_of_peer(const tn_repl *r, uint16_t peer, tn_repl_told *told);

#endif

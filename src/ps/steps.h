/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server keeps of steps that are summed: gradients until their step closes, and which steps have closed in which slots.
 *
 *   life      a group's time at its keeper (round.h)
 *   piece     one push of one member in one step, or what of it came here: whole slots, one copy of each
 *   closed    of a life and a slot: steps below are closed there. It belongs to the slot, as pieces and what dedup.h knows of
 *             closings do: they go where the slot goes, and are dropped with it
 *   share     of a closing: some slots, that are closed in one go
 *
 *   known     a slot of a push (life, member, seq) is in at most one piece; one that comes again is kept once
 *   step of a piece in slot s >= closed[s]; what is below is refused
 *
 *   a closing of step n, slot by slot:
 *
 *      open ----- take ----> being closed: gradients of steps <= n are refused ----- done ----> closed, its pieces are gone
 *        ^                     |                                                                     again: known
 *        '------- undo --------'  memory was short: nothing, or some tables, of it was done
 *
 *   in between each table gets the rows of the senders (tn_steps_sum) as a push of client `life` with the number of the
 *   step: what of it was done in a slot before, here or at a primary before this one, is known there (dedup.h)
 *
 *   Only the newest closing of a life is taken: what an older one has left open it closes, with its own senders.
 *
 * Pure but for tables. Threads: `lock` is the caller's to hold, but for tn_steps_sum. Tests: tests/unit/ps/steps_test.c,
 * tests/unit/ps/repl_sim.
 */
#ifndef TN_PS_STEPS_H
#define TN_PS_STEPS_H

#include <pthread.h>
#include <string.h>

#include "base/fail.h"
#include "base/list.h"
#include "ps/dedup.h"
#include "ps/round_wire.h"
#include "ps/table.h"

struct ps_share;

#define TN_PS_LIVES_MAX 64u
#define TN_STEPS_SHARE \
	(16ull << 20) /* bytes of gradients, about, that are closed in one go where others have to be told */
#define TN_STEPS_LOW_LAG 8u /* closings that dedup.h remembers: what is older nobody asks for */

typedef struct tn_piece {
	tn_list node;    /* of its life, in the order in which they came */
	uint64_t number; /* of all pieces here */
	uint64_t member, step, seq, table, schema, count, bytes, row_bytes;
	float lr_scale;
	uint8_t dtype;
	uint32_t users;              /* closings at work: it stays in memory */
	tn_ps_slots slots;           /* it counts in these; keys of others may be in it */
	_Alignas(16) uint8_t data[]; /* keys, rows */
} tn_piece;

typedef struct tn_life {
	uint64_t id, used;
	tn_list pieces;
	uint64_t newest;       /* closing that was seen: steps below it */
	tern_status status;    /* of the newest */
	bool busy;             /* round_server.c: somebody works at a closing */
	uint64_t closing;      /* not 0: between take and done steps below are being closed, in */
	tn_ps_slots taken;     /* these */
	struct ps_wait *waits; /* round_server.c: requests that wait for it */
	char detail[TN_DETAIL_MAX];
	uint64_t closed[TERN_TABLE_SLOTS];
} tn_life;

typedef struct tn_steps {
	pthread_mutex_t lock;
	tn_life *lives[TN_PS_LIVES_MAX];
	uint32_t count;
	uint64_t clock;   /* of uses */
	uint64_t numbers; /* of pieces */
	uint64_t bytes;   /* staged, of all lives */
} tn_steps;

void tn_steps_init(tn_steps *steps);
void tn_steps_fini(tn_steps *steps);

/* NULL: no memory, or all lives are at work. The life that was not used for longest makes room. */
tn_life *tn_steps_life(tn_steps *steps, uint64_t id);

/*
 * Keep what a member pushes in these slots, which are all that its keys are in; what of it is here already is not kept again.
 * *fresh: the slots that it was kept in. bytes_max: of all that is staged. TERN_E_STATE: the step is closed, TERN_E_LIMIT,
 * TERN_E_NOMEM.
 */
tern_status tn_steps_stage(tn_steps *steps, const tn_ps_stage *stage, const tn_ps_slots *slots,
			   uint64_t bytes_max, tn_ps_slots *fresh);

/* ---- closing ---- */

typedef struct tn_steps_item {
	tn_piece *piece;
	uint32_t order;    /* of its sender */
	tn_ps_slots slots; /* that are closed now */
} tn_steps_item;

typedef struct tn_steps_work {
	uint64_t life, step;
	tn_ps_slots slots;
	tn_steps_item *items; /* tables together; within one in the order of the sum */
	uint32_t count;
} tn_steps_work;

/* Is there anything to close in these slots? */
bool tn_steps_open(tn_steps *steps, const tn_ps_close *closing, const tn_ps_slots *slots);
/* Slots of `may` that are open, of about so many bytes of gradients (0: all) and at least one. TERN_OK, work->slots empty: there
   are none. TERN_E_NOMEM. The life is the caller's alone until done or undo. */
tern_status tn_steps_take(tn_steps *steps, const tn_ps_close *closing, const tn_ps_slots *may, uint64_t bytes,
			  tn_steps_work *work);
/* The items from *at on that belong to one table; false: no more. */
bool tn_steps_table(const tn_steps_work *work, uint32_t *at, uint32_t *n);
/*
 * Sum them and push the sum. keys: all that were written, once each, the caller's to free. *status: of the push, which is
 * what members are told. TERN_E_NOMEM: nothing was done. Lock not held; the table's order is where there are backups.
 */
tern_status tn_steps_sum(struct ps_share *share, const tn_steps_work *work, const tn_steps_item *items,
			 uint32_t n, uint64_t **keys, uint64_t *count, tern_status *status);
void tn_steps_done(tn_steps *steps, tn_steps_work *work, tern_status status);
void tn_steps_undo(tn_steps *steps, tn_steps_work *work);

/* What a closing says of those before it, to dedup.h. */
static inline uint64_t tn_steps_low(uint64_t step)
{
	return step > TN_STEPS_LOW_LAG ? step - TN_STEPS_LOW_LAG : 0;
}
/* Those of `slots` in which the step is closed. */
void tn_steps_closed(tn_steps *steps, uint64_t life, uint64_t step, const tn_ps_slots *slots,
		     tn_ps_slots *closed);
/* Steps below `closed` are, in these slots: a primary says so. TERN_E_NOMEM. */
tern_status tn_steps_close(tn_steps *steps, uint64_t life, uint64_t closed, const tn_ps_slots *slots,
			   tern_status status);

/* ---- slots that come and go ---- */

void tn_steps_drop_slots(tn_steps *steps, const tn_ps_slots *slots);
/* What is closed in these slots: a call for each life and number. False from fn ends it, and is returned. */
typedef bool (*tn_steps_closed_fn)(uint64_t life, uint64_t closed, tern_status status,
				   const tn_ps_slots *slots, void *arg);
bool tn_steps_each_closed(const tn_steps *steps, const tn_ps_slots *slots, tn_steps_closed_fn fn, void *arg);
/* The first piece with a number above `after` that counts in any of these slots; NULL: none. */
const tn_piece *tn_steps_next(const tn_steps *steps, uint64_t after, const tn_ps_slots *slots,
			      uint64_t *life);

/* Slots of keys as they lie in a message. */
void tn_steps_slots_of(const uint8_t *keys, uint64_t count, tn_ps_slots *slots);

/* ---- steps.c, for steps_close.c ---- */

tn_life *tn_steps_find(const tn_steps *steps, uint64_t id);
/* Unless somebody uses it: who does drops it then. */
void tn_piece_drop(tn_steps *steps, tn_piece *piece);
/* Steps below are closed in these slots: what is left of their gradients goes. */
void tn_steps_leave(tn_steps *steps, tn_life *life, uint64_t closed, const tn_ps_slots *slots);
/* How a closing ended: tn_detail says more. */
void tn_steps_note(tn_life *life, uint64_t closed, tern_status status);

/* A piece as the message that it came in; keys of slots that do not count any more are in it. */
static inline tn_ps_stage tn_piece_stage(const tn_piece *p, uint64_t life)
{
	return (tn_ps_stage){.dtype = p->dtype,
			     .lr_scale = p->lr_scale,
			     .life = life,
			     .member = p->member,
			     .step = p->step,
			     .seq = p->seq,
			     .table = p->table,
			     .schema = p->schema,
			     .count = p->count,
			     .keys = p->data,
			     .rows = p->data + p->count * 8,
			     .row_bytes = p->count * p->row_bytes};
}

static inline uint32_t tn_ps_stage_slot(const tn_ps_stage *stage, uint64_t i)
{
	uint64_t key;

	memcpy(&key, stage->keys + i * 8, sizeof(key));
	return tn_table_slot(key);
}

static inline uint64_t tn_piece_key(const tn_piece *piece, uint64_t i)
{
	uint64_t key;

	memcpy(&key, piece->data + i * 8, sizeof(key));
	return key;
}

#endif

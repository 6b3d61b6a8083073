/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pushes a server's share of a table holds already: so that one that is asked for again, over whatever
 * connection and in whatever pieces, is applied once in each slot.
 *
 *   client   64 random bits of a client object, for its life; numbers its pushes
 *   entry    one push that the client may ask for again: the slots in which it was applied
 *   low      everything of the client below it is over: entries below are forgotten
 *
 *   low <= seq of every entry < low + TN_PS_WINDOW
 *   a push is applied in slot s  <=>  seq < low, or its entry has bit s
 *   at most one copy of a push is at work: RUNNING from begin to end
 *
 * One slot's part can be given to another server (export, import, drop), because nothing here depends on which pieces a
 * push came in. Allocates for new clients and entries only, from lists of its own in steady state.
 *
 * Pure; no locks. Threads: one at a time. Tests: tests/unit/ps/dedup_test.c.
 */
#ifndef TN_PS_DEDUP_H
#define TN_PS_DEDUP_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#define TN_PS_WINDOW      4096u  /* pushes of one client that are not over */
#define TN_PS_CLIENTS_MAX 65536u /* remembered; past it those go that have been silent for the longest */

typedef struct tn_ps_slots {
	uint64_t bits[64];
} tn_ps_slots;

static inline void tn_ps_slots_add(tn_ps_slots *slots, uint32_t slot)
{
	slots->bits[slot / 64] |= 1ull << (slot % 64);
}

static inline bool tn_ps_slots_has(const tn_ps_slots *slots, uint32_t slot)
{
	return slots->bits[slot / 64] >> (slot % 64) & 1;
}

static inline bool tn_ps_slots_none(const tn_ps_slots *slots)
{
	uint64_t any = 0;

	for (unsigned w = 0; w < 64; w++)
		any |= slots->bits[w];
	return any == 0;
}

/* Have they any in common? */
static inline bool tn_ps_slots_meet(const tn_ps_slots *a, const tn_ps_slots *b)
{
	uint64_t any = 0;

	for (unsigned w = 0; w < 64; w++)
		any |= a->bits[w] & b->bits[w];
	return any != 0;
}

static inline void tn_ps_slots_without(tn_ps_slots *from, const tn_ps_slots *slots)
{
	for (unsigned w = 0; w < 64; w++)
		from->bits[w] &= ~slots->bits[w];
}

static inline void tn_ps_slots_and(tn_ps_slots *slots, const tn_ps_slots *with)
{
	for (unsigned w = 0; w < 64; w++)
		slots->bits[w] &= with->bits[w];
}

static inline void tn_ps_slots_or(tn_ps_slots *slots, const tn_ps_slots *with)
{
	for (unsigned w = 0; w < 64; w++)
		slots->bits[w] |= with->bits[w];
}

/* Is every slot of a in b? */
bool tn_ps_slots_within(const tn_ps_slots *a, const tn_ps_slots *b);

typedef struct tn_ps_dedup tn_ps_dedup;

tn_ps_dedup *tn_ps_dedup_new(void); /* NULL: no memory */
void tn_ps_dedup_free(tn_ps_dedup *d);

typedef enum tn_ps_verdict {
	TN_PS_FRESH, /* apply it in the slots of *fresh, then end(); *status: how it ended in others before */
	TN_PS_KNOWN, /* it was applied in all of them; *status: how that ended */
	TN_PS_AT_WORK, /* another copy is being applied */
	TN_PS_BEYOND,  /* seq is past the window: the client breaks the rules */
	TN_PS_NO_MEMORY,
} tn_ps_verdict;

/* want: the slots of this piece. low: the client's low-water mark, <= seq. */
tn_ps_verdict tn_ps_dedup_begin(tn_ps_dedup *d, uint64_t client, uint64_t seq, uint64_t low,
				const tn_ps_slots *want, tn_ps_slots *fresh, tern_status *status);
/* What begin called FRESH was applied (or not: then it may be tried again), with a status worth keeping. */
void tn_ps_dedup_end(tn_ps_dedup *d, uint64_t client, uint64_t seq, const tn_ps_slots *fresh, bool applied,
		     tern_status status);
/* The client is gone for good. Not while a push of its is at work: then it does nothing. */
void tn_ps_dedup_forget(tn_ps_dedup *d, uint64_t client);

/* One fact: the push was applied in the slot; or (seq == low) just the client's mark. */
typedef void (*tn_ps_fact_fn)(uint64_t client, uint64_t low, uint64_t seq, tern_status status, void *arg);
/* All facts of a slot, and the mark of each client: to be kept or given away with the slot's rows. */
void tn_ps_dedup_export(const tn_ps_dedup *d, uint32_t slot, tn_ps_fact_fn fn, void *arg);
#define TN_PS_NO_SEQ UINT64_MAX /* the fact is the mark alone */
/* TERN_E_NOMEM; TERN_E_LIMIT: seq is past the window. */
tern_status tn_ps_dedup_import(tn_ps_dedup *d, uint32_t slot, uint64_t client, uint64_t low, uint64_t seq,
			       tern_status status);
/* The same for one push and many slots: what a backup is told. */
tern_status tn_ps_dedup_applied(tn_ps_dedup *d, uint64_t client, uint64_t low, uint64_t seq,
				const tn_ps_slots *slots, tern_status status);
/* The facts of many slots: one call for each push that was applied in any of them, and the mark of each client. */
typedef void (*tn_ps_facts_fn)(uint64_t client, uint64_t low, uint64_t seq, tern_status status,
			       const tn_ps_slots *slots, void *arg);
void tn_ps_dedup_export_slots(const tn_ps_dedup *d, const tn_ps_slots *slots, tn_ps_facts_fn fn, void *arg);
/* The slot was given away. */
void tn_ps_dedup_drop(tn_ps_dedup *d, uint32_t slot);
void tn_ps_dedup_drop_slots(tn_ps_dedup *d, const tn_ps_slots *slots);

uint64_t tn_ps_dedup_clients(const tn_ps_dedup *d);
uint64_t tn_ps_dedup_entries(const tn_ps_dedup *d);
/* Invariants; TERN_CHECK 2. */
void tn_ps_dedup_check(const tn_ps_dedup *d);

#endif

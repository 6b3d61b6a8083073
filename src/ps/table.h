/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table engine: rows by key in memory, batches in and out. It does no IO, knows no rpc and no clock (the step is
 * an argument). The nouns:
 *
 *   record    key, version, metadata, row, optimiser state; at one address from birth to death
 *   slot      hash(key) >> 52, 0..4095: what is routed, moved and saved
 *   segment   a fixed piece of the index; covers a range of hashes; splits when it is full
 *   slab      where records lie; memory of env->memory
 *   cut       the table as of one moment, read while it is written
 *   tier      where rows are that the budget has no room for; a row is in memory or there, never in both
 *   changes   which records were written, made or erased since a cut: what a delta has
 *
 *   rows = created + put - erased - evicted - expired
 *   bytes = slabs + segments + directory + sketch <= budget (when there is one)
 *
 * Threads: everything from any thread at once, but for create and destroy. Readers take no lock: they copy a row
 * and look whether its version stood still. A writer holds one record. Keys and rows that a peer may change while a
 * call reads them give garbage, never a fault.
 *
 * Tests: tests/unit/ps.
 */
#ifndef TN_PS_TABLE_H
#define TN_PS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/ps.h>

#include "base/map.h"
#include "store/tier.h"

typedef struct tn_table tn_table;
typedef struct tn_cut tn_cut;

/* Public and for ever: slots are routed, saved and restored by it. */
#define TN_SLOT_SEED 0x7465726e2d707331ull /* "tern-ps1" */
static inline uint64_t tn_table_hash(uint64_t key)
{
	return tn_hash_u64(key, TN_SLOT_SEED);
}
static inline uint32_t tn_table_slot(uint64_t key)
{
	return (uint32_t)(tn_table_hash(key) >> 52);
}

/* Where slabs and segments come from: zero = malloc and huge pages where there are. */
typedef struct tn_table_memory {
	void *(*alloc)(void *arg, uint64_t bytes, uint64_t align); /* NULL: there is none. Any content */
	void (*free)(void *arg, void *ptr, uint64_t bytes);
	void *arg;
} tn_table_memory;

typedef struct tn_table_env {
	tn_table_memory memory;
	_Atomic uint64_t
		*changes; /* counts when a layout that was taken is old; NULL: nobody wants to know */
	/* NULL: none. A place for rows that don't fit into the budget: they go there instead of being evicted, and come
	   back when they are asked for. Sparse tables with a budget and eviction. The table closes it. */
	tern_status (*open_tier)(void *arg, const tern_table_schema *schema, uint64_t image_bytes,
				 tn_tier **tier);
	void *tier_arg;
} tn_table_env;

/* env NULL = defaults. The schema is checked and copied. TERN_E_INVALID, _UNSUPPORTED, _NOMEM, _BUDGET. */
tern_status tn_table_create(const tern_table_schema *schema, const tn_table_env *env, tn_table **table);
/* No call may be in it and no cut open. NULL is allowed. */
void tn_table_destroy(tn_table *table);

const tern_table_schema *tn_table_schema(const tn_table *table);
uint64_t tn_table_value_bytes(const tn_table *table); /* of a row, in the table's dtype */
uint64_t tn_table_state_bytes(const tn_table *table); /* of a record's optimiser state (store/optim.h) */

typedef struct tn_table_stats {
	uint64_t rows;
	uint64_t rows_max; /* what the budget allows; 0 = no budget */
	uint64_t bytes;    /* from the allocator, all together */
	uint64_t slab_bytes, index_bytes, sketch_bytes, cut_bytes;
	uint64_t record_bytes; /* of one record: value + state + header */
	uint64_t created, put, erased, evicted, expired;
	uint64_t not_admitted, refused;     /* creations that admission or the budget put off */
	uint64_t nonfinite;                 /* rows that the gate stopped or clipped */
	uint64_t pulled, pushed;            /* keys */
	uint64_t splits, segments, retries; /* of readers that met a writer */
	uint64_t cold_rows;                 /* of rows, those in the tier */
	uint64_t cold_bytes, cooled, warmed, tier_errors;
	uint64_t gone; /* erased keys that the next delta has */
} tn_table_stats;
void tn_table_stats_get(tn_table *table, tn_table_stats *stats);
/* Rows of a slot of a sparse table, and of those the ones in the tier. */
uint64_t tn_table_slot_rows(const tn_table *table, uint32_t slot, uint64_t *cold);

/* ---- pull ---- */
#define TN_PULL_TOUCH 1u /* counts as a use of the rows: frequency and last step (TTL, eviction) */

/* Zero it, then set what differs. */
typedef struct tn_pull {
	tern_unknown unknown;
	tern_dtype dtype; /* of the rows that are written; 0 = the table's */
	uint32_t flags;   /* TN_PULL_* */
	uint64_t stride;  /* bytes from one row of `rows` to the next; 0 = rows lie close */
	uint64_t step;
} tn_pull;

typedef struct tn_pull_result {
	uint64_t found, created, not_admitted, refused;
} tn_pull_result;

/*
 * Row of keys[i] to rows + stride * (positions ? positions[i] : i). found (may be NULL): found[i] = 1 if the key has
 * a row now (created ones too), else 0. result may be NULL. Rows of keys that have none, as `unknown` says; a key
 * that was not admitted or did not fit gives its initial value.
 * TERN_E_NOT_FOUND (unknown = ERROR), TERN_E_BUDGET or TERN_E_NOMEM (some could not be created), TERN_E_INVALID
 * (dense: a key past the last row; found = 0, its row is zeros), TERN_E_IO (the tier; those rows are as if there were
 * none); all rows were written nevertheless. TERN_E_SHAPE:
 * nothing was (dtype or stride).
 */
tern_status tn_table_pull(tn_table *table, const uint64_t *keys, uint64_t n, const tn_pull *how, void *rows,
			  const uint32_t *positions, uint8_t *found, tn_pull_result *result);

/* ---- push ---- */
#define TN_PUSH_UNIQUE   1u /* the caller knows that no key occurs twice: saves looking */
#define TN_PUSH_EXISTING 2u /* keys without a row are passed over */

/* Zero it, then set what differs. */
typedef struct tn_push {
	tern_push_mode mode;
	tern_dtype dtype; /* of grads; 0 = TERN_F32 */
	uint32_t flags;   /* TN_PUSH_* */
	float lr_scale;   /* 0 = 1 */
	uint64_t stride;  /* bytes; 0 = rows lie close */
	uint64_t step;
	const uint32_t *positions; /* row of keys[i] in grads; NULL: i */
} tn_push;

typedef struct tn_push_result {
	uint64_t keys; /* different ones */
	uint64_t applied, created, not_admitted, refused, nonfinite;
	uint64_t unknown; /* passed over: TN_PUSH_EXISTING */
} tn_push_result;

/*
 * Each key once, with the sum of its rows in the order given. result may be NULL. TERN_E_BUDGET, TERN_E_NOMEM,
 * TERN_E_INVALID (dense: a key past the last row): the other keys were applied. TERN_E_CORRUPT (nonfinite = FAIL),
 * TERN_E_SHAPE, TERN_E_TOO_LARGE (2^32-1 keys and more; no memory to sum): nothing was.
 */
tern_status tn_table_push(tn_table *table, const uint64_t *keys, const void *grads, uint64_t n,
			  const tn_push *how, tn_push_result *result);

/* Would a batch of these keys (u64, of any alignment) find all its rows in memory? If not, it may wait for the tier, or creates some. */
bool tn_table_warm(tn_table *table, const void *keys, uint64_t n);

/* *erased (may be NULL): rows that are gone now. Dense: TERN_E_STATE. */
tern_status tn_table_erase(tn_table *table, const uint64_t *keys, uint64_t n, uint64_t *erased);
/* Drop rows that no push and no touching pull used after `step - ttl_steps`. */
tern_status tn_table_expire(tn_table *table, uint64_t step, uint64_t *expired);
/* Erase all rows of a slot (it moved away). Dense: rows get their initial values again. */
tern_status tn_table_drop_slot(tn_table *table, uint32_t slot, uint64_t *erased);
/* The same for first to last: one look at the table for all of them. */
tern_status tn_table_drop_slots(tn_table *table, uint32_t first, uint32_t last, uint64_t *erased);

/* ---- whole records ---- */

/* The image of one record. Pointers are good until the callback returns. */
typedef struct tn_record {
	uint64_t key;
	uint64_t last_step; /* 0 without metadata */
	uint32_t frequency; /* 0 without metadata */
	const void *value;  /* tn_table_value_bytes */
	const void *state;  /* tn_table_state_bytes; NULL if 0. 4-byte alignment */
} tn_record;
/* Anything but TERN_OK ends the walk and is its status. May call the table. */
typedef tern_status (*tn_record_fn)(const tn_record *record, void *arg);

/*
 * Put a record as it is: restore, move, replication. Replaces what is there. state NULL: initial state. A dense
 * table's key must be one of its rows. TERN_E_BUDGET, _NOMEM, _INVALID.
 */
tern_status tn_table_put_record(tn_table *table, const tn_record *record);
/* Images of those keys that have a row, in order: what a backup is sent after a push. */
tern_status tn_table_read_records(tn_table *table, const uint64_t *keys, uint64_t n, tn_record_fn fn,
				  void *arg);

/*
 * Walk slots first .. last (inclusive), from *cursor (0: the start) until at least `max` records were given or the
 * end: *cursor = TN_SCAN_END then. Each record that is there all the time comes once, as it is at that moment; those
 * that come or go meanwhile, once or not at all.
 */
#define TN_SCAN_END UINT64_MAX
tern_status tn_table_scan(tn_table *table, uint32_t slot_first, uint32_t slot_last, uint64_t *cursor,
			  uint64_t max, tn_record_fn fn, void *arg);

/*
 * The table as of this call, while pulls and pushes go on: the first write to a record after the cut saves the old
 * image. A push under way in another thread is in the cut for some of its rows and not for others: hold pushes for
 * the moment of this call if that matters. One cut at a time: TERN_E_STATE. Memory: at most the table once more.
 */
tern_status tn_table_cut(tn_table *table, tn_cut **cut);

typedef enum tn_cut_kind {
	TN_CUT_ALONE,   /* all records; changes are none of its business */
	TN_CUT_BASE,    /* all records; from here on changes are remembered */
	TN_CUT_CHANGES, /* the records that changed, and which keys are gone */
} tn_cut_kind;
/*
 * As tn_table_cut. id names the cut (not 0) for tn_table_acknowledge. TERN_E_STATE: changes are not known
 * (tn_table_follows), or tn_table_settle was not called since the last such cut.
 */
tern_status tn_table_cut_as(tn_table *table, tn_cut_kind kind, uint64_t id, tn_cut **cut);
/* Rows in the cut, exact if no push or erase ran during tn_table_cut. */
uint64_t tn_cut_rows(const tn_cut *cut);
/*
 * Up to `max` records, less or none where it would have to look for them for long: a step of some ten microseconds. *more = false: that was
 * all. One thread at a time. TERN_E_NOMEM: an image could not be saved; the cut is of no use.
 */
tern_status tn_cut_next(tn_cut *cut, uint64_t max, tn_record_fn fn, void *arg, bool *more);
/* Keys that had a row at the cut before and have none in this one: TN_CUT_CHANGES, after the last record. */
tern_status tn_cut_gone(tn_cut *cut, tern_status (*fn)(uint64_t key, void *arg), void *arg);
/* At any time; frees it. */
void tn_cut_end(tn_cut *cut);

/* ---- changes ---- */

/*
 * A record's version has a mark of each of two sets: one is filled, the other is what the last cut gave. Nothing is
 * forgotten before somebody says that the cut is safe:
 *
 *                  mark of writes    the other set
 *   OFF            none              none                 no base was cut, or too much was erased
 *   READY          A                 empty
 *   PENDING        B                 A: given by the cut  cut -> PENDING
 *   STALE          B                 A: safe, forget it   acknowledge -> STALE
 *
 *   settle         STALE: A is cleared. PENDING: that cut came to nothing, A joins B. -> READY
 *
 * Erased keys are listed, at most TN_CHANGES_GONE_MAX of them: past it changes are not known any more, and the next
 * cut must be a base. Pulls that touch rows change them where that decides something: ttl_steps, eviction.
 */
#define TN_CHANGES_GONE_MAX (1u << 22)

/* Are all changes since the cut `id` known (and perhaps some before)? */
bool tn_table_follows(tn_table *table, uint64_t id);
/* The cut `id` is safe. Of another cut than the last: nothing. */
void tn_table_acknowledge(tn_table *table, uint64_t id);
/* Make ready for a cut of kind BASE or CHANGES: reads every record's head. Not while one is open. TERN_E_NOMEM. */
tern_status tn_table_settle(tn_table *table);
/* What is in the table now is in the cut `id` (it was restored): remember changes from here on. Nobody writes. */
void tn_table_track(tn_table *table, uint64_t id);

/* ---- read from outside ---- */

/*
 * Where segments and slabs lie, so that somebody who sees the memory (mapped elsewhere, with other addresses) can look
 * rows up as a pull does. Tables with TERN_TABLE_ONE_SIDED give no memory back, so that an old layout leads nowhere else
 * than to memory of the table; what is found there is judged by key and version.
 */
typedef struct tn_layout_slab {
	const void *base;
	uint32_t places;
} tn_layout_slab;

typedef struct tn_layout {
	uint64_t changes; /* as of before it was taken */
	uint32_t head_bytes, stride, shift;
	uint32_t depth, slabs;
	uintptr_t *dir; /* 1 << depth (none: dense): a segment's address | its pages of 4 KiB */
	tn_layout_slab *slab;
} tn_layout;
/* TERN_E_NOMEM. */
tern_status tn_table_layout(tn_table *table, tn_layout *layout);
void tn_layout_free(tn_layout *layout);

/* A reader of such memory. The layout's addresses are the reader's own; dir and slab are its own afterwards. NULL: no
   memory. The caller vouches that they are readable: 4 to 7 pages from each segment on, the places of each slab. */
typedef struct tn_mirror tn_mirror;
tn_mirror *tn_mirror_new(const tern_table_schema *schema, tn_layout *layout);
void tn_mirror_free(tn_mirror *mirror);
/*
 * Rows, in the table's dtype, as tn_table_pull with TERN_UNKNOWN_ERROR. found (may be NULL) of those that are there = 1,
 * others are not touched. Numbers of keys that were not found, in order, to left (room for n): nobody knows whether they
 * have rows. Returns how many. Threads: one at a time.
 */
uint64_t tn_mirror_pull(tn_mirror *mirror, const uint64_t *keys, uint64_t n, void *rows, uint64_t stride,
			const uint32_t *positions, uint8_t *found, uint32_t *left);

/* Whole-table invariants (TERN_CHECK 2 and tests): no call may be in it. */
void tn_table_check(tn_table *table);

#endif

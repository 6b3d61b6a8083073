/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the table engine.
 *
 *   record (with metadata)     u64 key | u32 version | u32 frequency | u64 last step | row | state | pad to 8
 *   record (TERN_TABLE_NO_META) u64 key | u32 version | row | state | pad to 4          rows: padded to 4
 *
 *   version   WRITING: bytes are changing, readers wait; LOCKED: a writer has it, readers don't care; DEAD: no record
 *             (any more); MARKS: sets of changes that it is in (table_changes.c); the rest counts changes
 *
 *   id        names a record, never 0: slab id >> shift, place id & mask. An id is, at each moment, one of: live (in
 *             the index), in a batch's hands, in limbo (dead, readers may still look at it), free, or never used yet:
 *             live + in hands = handed;  handed + limbo + free = used
 *
 *   segment   a head and buckets of one cache line each, in 4 to 7 pages; covers the hashes with its prefix of `depth`
 *             bits. One that is full is dealt anew into one page more, one of seven pages into two of four: the index
 *             grows in steps of an eighth to a quarter, and is never half empty.
 *             A key's home bucket follows from the lower half of its hash; if that is full the record is in the next
 *             with room, and each bucket that was passed counts it: a look-up ends at a bucket that nobody passed.
 *             An entry never moves within its segment, so that readers need no version of buckets; a segment that
 *             is dealt anew, or moves to other pages, is left as it is, replaced in the directory, and freed when no
 *             reader can see it.
 *             An entry of the directory is a segment's address with its number of pages in the lowest bits: a reader
 *             finds the bucket without a look at the segment's head.
 *
 * Locks, in order: a segment's, a record's, directory, ids, move, changes, cut. Readers take none. A writer of an existing record
 * takes the record's alone.
 *
 * Threads: as table.h. Tests: tests/unit/ps.
 */
#ifndef TN_PS_TABLE_IMPL_H
#define TN_PS_TABLE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/epoch.h"
#include "ps/table.h"
#include "store/optim.h"

#if defined(__SANITIZE_THREAD__)
#define TN_PS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TN_PS_TSAN 1
#endif
#endif
#ifndef TN_PS_TSAN
#define TN_PS_TSAN 0
#endif

/* ---- records ---- */

#define TN_WRITING      1u
#define TN_LOCKED       2u
#define TN_DEAD         4u
#define TN_MARK_A       8u
#define TN_MARK_B       16u
#define TN_MARKS        (TN_MARK_A | TN_MARK_B)
#define TN_VERSION_STEP 32u

typedef struct tn_head {
	uint32_t key[2]; /* low, high: NO_META records are aligned to 4 alone */
	_Atomic uint32_t version;
	/* with metadata alone, and then records are aligned to 8: */
	_Atomic uint32_t frequency;
	uint32_t last_step[2]; /* one atomic u64: tn_head_last_step() */
} tn_head;
#define TN_HEAD_BYTES         24
#define TN_HEAD_BYTES_NO_META 12
_Static_assert(sizeof(tn_head) == TN_HEAD_BYTES && _Alignof(tn_head) == 4,
	       "the overhead per key is documented");

static inline uint64_t tn_head_key(const tn_head *head)
{
	return head->key[0] | (uint64_t)head->key[1] << 32;
}

/* Only in tables with metadata. */
static inline _Atomic uint64_t *tn_head_last_step(tn_head *head)
{
	return (_Atomic uint64_t *)(void *)head->last_step;
}

/* ---- index ---- */

#define TN_BUCKET_PLACES   12
#define TN_PAGE            4096u
#define TN_PAGES_MIN       4u
#define TN_PAGES_MAX       7u
#define TN_SEGMENT_HEAD    2u /* buckets' room that the head takes */
#define TN_SEGMENT_BUCKETS (TN_PAGES_MAX * TN_PAGE / 64 - TN_SEGMENT_HEAD) /* at most */
#define TN_SEGMENT_PLACES  (TN_SEGMENT_BUCKETS * TN_BUCKET_PLACES)
#define TN_DEPTH_MAX       40

typedef struct tn_bucket {
	_Atomic uint64_t tags;      /* of places 0 .. 7; 0 = free */
	_Atomic uint64_t tags_past; /* of places 8 .. 11; bits 32 .. 47: records that passed */
	_Atomic uint32_t ids[TN_BUCKET_PLACES];
} tn_bucket;
_Static_assert(sizeof(tn_bucket) == 64, "a bucket is a cache line");

typedef struct tn_segment {
	_Alignas(64) pthread_mutex_t lock;
	uint64_t first; /* of the hashes it covers */
	uint32_t count;
	uint8_t depth, pages;
	bool retired;
	struct tn_segment *next; /* in limbo since stamp */
	uint64_t stamp;
	_Alignas(64) tn_bucket buckets[];
} tn_segment;
_Static_assert(offsetof(tn_segment, buckets) == TN_SEGMENT_HEAD * sizeof(tn_bucket), "pages are used up");

typedef struct tn_dir {
	uint32_t depth;
	uint64_t stamp; /* in limbo */
	struct tn_dir *next;
	_Atomic uintptr_t at[]; /* segment | pages */
} tn_dir;

static inline uintptr_t tn_dir_entry(const tn_dir *dir, uint64_t hash)
{
	uint64_t i = dir->depth ? hash >> (64 - dir->depth) : 0;

	return atomic_load_explicit(&dir->at[i], memory_order_acquire);
}

static inline tn_segment *tn_entry_segment(uintptr_t entry)
{
	return (tn_segment *)(entry & ~(uintptr_t)(TN_PAGE - 1));
}
static inline uint32_t tn_entry_buckets(uintptr_t entry)
{
	return (uint32_t)(entry & 7) * (TN_PAGE / 64) - TN_SEGMENT_HEAD;
}
static inline uint32_t tn_segment_buckets(const tn_segment *seg)
{
	return seg->pages * (TN_PAGE / 64) - TN_SEGMENT_HEAD;
}
static inline uint32_t tn_home(uint64_t hash, uint32_t buckets)
{
	return (uint32_t)(((hash & UINT32_MAX) * buckets) >> 32);
}
static inline const tn_bucket *tn_entry_home(uintptr_t entry, uint64_t hash)
{
	return &tn_entry_segment(entry)->buckets[tn_home(hash, tn_entry_buckets(entry))];
}

static inline uint8_t tn_tag(uint64_t hash)
{
	uint8_t tag = (uint8_t)(hash >> 8);

	return tag ? tag : 1;
}

/* ---- ids and slabs ---- */

#define TN_SLABS_MAX      65536u
#define TN_SLAB_BYTES_MIN (64ull << 10)
#define TN_SLAB_BYTES     (4ull << 20)
#define TN_HAND           32 /* ids that a batch takes at once */

typedef struct tn_slab {
	uint8_t *base;
	uint32_t places;
	bool huge;      /* in huge pages from the first touch on */
	uint64_t first; /* places of the slabs before it */
} tn_slab;

/* Dead ids, until no reader looks at them. */
typedef struct tn_limbo {
	struct tn_limbo *next;
	uint64_t stamp;
	uint32_t count;
	uint32_t ids[125];
} tn_limbo;

/* Pages for segments: from the allocator in pieces of up to 2 MiB. */
#define TN_CHUNK_PAGES 512u
typedef struct tn_chunk {
	struct tn_chunk *next;
	uint8_t *base;
	uint32_t pages, free, touched;      /* touched: the first ones, which take memory */
	uint64_t used[TN_CHUNK_PAGES / 64]; /* bits */
} tn_chunk;

/* What one call needs beside its stack; kept by the table from call to call. */
#define TN_CHUNK_KEYS  1024
#define TN_SCRATCH_MAX 16
typedef struct tn_scratch {
	float *w, *grad, *sum; /* dim each */
	float *moments;        /* state bytes */
	uint8_t *row;          /* value bytes */
	uint32_t *dedup;       /* n-dependent: table, next, tail */
	uint64_t dedup_words;
	uint16_t misses[TN_CHUNK_KEYS];
	_Alignas(64) uint8_t memory[];
} tn_scratch;

/* Which records changed: see table.h. */
typedef enum tn_changes_state {
	TN_CHANGES_OFF,
	TN_CHANGES_READY,
	TN_CHANGES_PENDING,
	TN_CHANGES_STALE
} tn_changes_state;

typedef struct tn_gone {
	uint64_t *keys;
	uint64_t n, room;
} tn_gone;

typedef struct tn_changes {
	pthread_mutex_t lock;
	tn_changes_state state;
	bool unclean;         /* OFF: records may have marks */
	uint32_t other;       /* the mark that writes don't set: of the last cut */
	uint64_t since, last; /* cuts: the last one that was acknowledged, and the last one; 0 = none */
	tn_gone now, given;   /* erased keys of the two sets */
} tn_changes;

struct tn_table {
	tern_table_schema schema;
	tn_table_memory memory;
	tn_optim optim;
	uint64_t init_seed;
	uint32_t value_bytes, value_room, state_bytes; /* room: padded to 4 */
	uint32_t head_bytes, stride;
	uint32_t shift, mask;          /* of ids */
	bool meta, dense, keep;        /* keep: no memory goes back */
	bool lazy;                     /* memory is this process's own: what was not written takes none */
	uint64_t rows_max, places_max; /* by the budget; 0 = none */

	_Alignas(64) _Atomic(tn_dir *) dir;
	tn_slab *slabs;
	_Atomic(tn_cut *) cut;
	_Atomic uint64_t *changed;   /* tn_table_env.changes */
	_Atomic uint32_t mark;       /* that writes set; 0: changes are not remembered */
	_Atomic uint32_t touch_mark; /* that touches set */
	_Alignas(64) tn_epoch epoch;

	pthread_mutex_t dir_lock; /* directory, segments' memory */
	tn_segment *limbo_segments;
	tn_dir *limbo_dirs;
	tn_chunk *chunks, *packing;
	uint64_t segments, index_pages, index_touched,
		index_used; /* pages: of chunks, written, of segments */

	pthread_mutex_t id_lock;
	uint32_t slab_count, slab_used; /* of the last slab: places that were ever used */
	uint64_t slab_counted;          /* of the last slab: bytes that are counted */
	tn_slab *slab_full;             /* the last place of it was handed out */
	uint32_t free_ids;              /* a list through the keys of free records */
	uint64_t handed, used, places;
	tn_limbo *limbo, *limbo_last;

	_Atomic uint8_t *sketch; /* lines of 64 counters */
	uint64_t sketch_lines;
	_Atomic uint64_t sketch_adds;
	_Atomic uint64_t dice;

	tn_changes changes;

	tn_tier *tier; /* NULL: none */
	pthread_rwlock_t
		move; /* shared: a record goes to the tier or comes from it; exclusive: a cut begins */
	_Atomic uint64_t warmed_begun,
		warmed_over; /* records that leave the tier, that are in the index again */
	_Atomic uint32_t settle_clear,
		settle_set; /* marks of records that move while tn_table_settle is at work */
	_Atomic(tn_scratch *) scratch[TN_SCRATCH_MAX];

	struct tn_table_counters {
		_Atomic uint64_t rows, cold_rows, slab_bytes, index_bytes, cut_bytes;
		_Atomic uint64_t cooled, warmed, tier_errors;
		_Atomic uint64_t created, put, erased, evicted, expired, not_admitted, refused, nonfinite,
			pulled, pushed, splits, retries;
	} count;
	_Atomic uint32_t slot_rows[TERN_TABLE_SLOTS], slot_cold[TERN_TABLE_SLOTS]; /* of count, by slot */
};

#define TN_COUNT(t, what, n) atomic_fetch_add_explicit(&(t)->count.what, (n), memory_order_relaxed)
/* n rows more, or fewer, of a slot: the top bits of the hash. */
static inline void tn_slot_count(_Atomic uint32_t *of, uint64_t hash, uint32_t n)
{
	atomic_fetch_add_explicit(&of[hash >> 52], n, memory_order_relaxed);
}
#define TN_GET(t, what) atomic_load_explicit(&(t)->count.what, memory_order_relaxed)

static inline tn_head *tn_head_of(const tn_table *t, uint32_t id)
{
	return (tn_head *)(void *)(t->slabs[id >> t->shift].base + (uint64_t)(id & t->mask) * t->stride);
}
static inline void *tn_value_of(const tn_table *t, tn_head *head)
{
	return (uint8_t *)head + t->head_bytes;
}
static inline void *tn_state_of(const tn_table *t, tn_head *head)
{
	return (uint8_t *)head + t->head_bytes + t->value_room;
}

/* A layout that was taken is old. */
static inline void tn_layout_changed(tn_table *t)
{
	if (t->changed)
		atomic_fetch_add_explicit(t->changed, 1, memory_order_release);
}

/* ---- seqlocked bytes ---- */

/*
 * The thread sanitizer knows no fences: there, words are atomics that carry the order. Elsewhere bytes are copied at
 * full speed between fences, and a torn copy is thrown away.
 */
static inline void tn_seq_load(void *dst, const void *src, uint64_t bytes)
{
#if TN_PS_TSAN
	for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
		uint32_t word =
			atomic_load_explicit((_Atomic uint32_t *)((uintptr_t)src + i), memory_order_acquire);

		memcpy((uint8_t *)dst + i, &word, 4);
	}
	if (bytes & 2) {
		uint16_t half = atomic_load_explicit((_Atomic uint16_t *)((uintptr_t)src + (bytes & ~3ull)),
						     memory_order_acquire);

		memcpy((uint8_t *)dst + (bytes & ~3ull), &half, 2);
	}
#else
	memcpy(dst, src, bytes);
	atomic_thread_fence(memory_order_acquire);
#endif
}

static inline void tn_seq_store(void *dst, const void *src, uint64_t bytes)
{
#if TN_PS_TSAN
	for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
		uint32_t word;

		memcpy(&word, (const uint8_t *)src + i, 4);
		atomic_store_explicit((_Atomic uint32_t *)((uintptr_t)dst + i), word, memory_order_release);
	}
	if (bytes & 2) {
		uint16_t half;

		memcpy(&half, (const uint8_t *)src + (bytes & ~3ull), 2);
		atomic_store_explicit((_Atomic uint16_t *)((uintptr_t)dst + (bytes & ~3ull)), half,
				      memory_order_release);
	}
#else
	memcpy(dst, src, bytes);
#endif
}

/* Between tn_head_lock and tn_head_unlock: from here on readers wait. */
static inline void tn_head_begin(tn_head *head, uint32_t version)
{
	atomic_store_explicit(&head->version, version | TN_LOCKED | TN_WRITING, memory_order_relaxed);
#if !TN_PS_TSAN
	atomic_thread_fence(memory_order_release);
#endif
}
static inline void tn_head_unlock(tn_head *head, uint32_t version)
{
	atomic_store_explicit(&head->version, version, memory_order_release);
}

/* table_slab.c */
tern_status tn_slab_init(tn_table *t);
void tn_slab_fini(tn_table *t);
/* A slab with all its places used: dense tables. */
tern_status tn_slab_add_full(tn_table *t, uint32_t places);
typedef struct tn_hand {
	uint32_t ids[TN_HAND];
	uint32_t count;
} tn_hand;
/* At least one id into the hand, at most want. TERN_AGAIN: ids are in limbo: leave the epoch, tn_epoch_wait, try
   again. TERN_E_BUDGET: rows_max is reached. TERN_E_NOMEM, TERN_E_LIMIT. */
tern_status tn_hand_fill(tn_table *t, tn_hand *hand, uint64_t want);
void tn_hand_return(tn_table *t, tn_hand *hand);
/* The record is dead and out of the index. */
void tn_id_retire(tn_table *t, uint32_t id);
/* The record's lock. False: it is dead, nothing is held. *version has no LOCKED. */
bool tn_head_lock(tn_head *head, uint32_t *version);
/* A copy of [head + from, + bytes) as of one moment. False: dead. */
bool tn_head_read(tn_table *t, tn_head *head, uint64_t from, void *dst, uint64_t bytes);
/* The places of all slabs in a row: for walks. False past the last. */
bool tn_slab_walk(tn_table *t, uint64_t place, uint32_t *id);
uint64_t tn_slab_places(tn_table *t);
tn_scratch *tn_scratch_take(tn_table *t);
void tn_scratch_give(tn_table *t, tn_scratch *scratch);

/* table_segment.c: holding dir_lock. NULL: no memory. */
tn_dir *tn_dir_new(tn_table *t, uint32_t depth);
tn_segment *tn_segment_new(tn_table *t, uint64_t first, uint8_t depth, uint32_t pages);
/* One that no reader saw. */
void tn_segment_free(tn_table *t, tn_segment *seg);
/* What is out of the directory, until no reader can see it. */
void tn_segment_retire(tn_table *t, tn_segment *seg);
void tn_dir_retire(tn_table *t, tn_dir *dir);
/* After one has grown: holes stay few. */
void tn_segments_pack(tn_table *t);
/* Takes dir_lock; not from inside the epoch: what grew in a batch leaves its memory to the next one. */
void tn_segments_settle(tn_table *t);
void tn_segments_fini(tn_table *t);

/* table_cold.c */
typedef struct tn_cold_keys {
	uint64_t *keys;
	uint64_t n, room;
	tern_status status; /* of the first failure */
} tn_cold_keys;
tern_status tn_cold_init(tn_table *t, const tn_table_env *env);
void tn_cold_fini(tn_table *t);
/* Read after the index: a record is counted here before it is not there any more. */
static inline bool tn_cold_any(const tn_table *t)
{
	return TN_UNLIKELY(t->tier) && atomic_load_explicit(&t->count.cold_rows, memory_order_acquire) != 0;
}
/* Is the key's record in the tier? Nothing is held: it may move at once. */
tern_status tn_cold_has(tn_table *t, uint64_t hash, bool *there);
/* Holding the segment and the record, which is dead and only in the tier afterwards, or (failed) as it was. */
tern_status tn_cold_out(tn_table *t, uint32_t id, tn_head *head, uint64_t hash, uint32_t version);
/* Holding the segment: the record of a hash out of the tier into a dead one, which is live then. */
tern_status tn_cold_in(tn_table *t, uint64_t hash, uint32_t id, bool *there);
/* Holding the segment. False: it was not there, was used after unless_after, or (counted) the tier failed. */
bool tn_cold_erase(tn_table *t, uint64_t key, uint64_t hash, uint64_t unless_after);
/* Holding the segment: see tn_index_cold_read, _remark. */
tern_status tn_cold_get(tn_table *t, uint64_t hash, void *image, bool *there);
tern_status tn_cold_remark(tn_table *t, uint64_t hash, uint32_t marks);
/* Holding the segment: keys of a range of hashes, added. */
void tn_cold_list(tn_table *t, uint64_t first, uint64_t last, tn_cold_keys *cold);
/* Records that nobody used after `last` are erased; marks of all are settled. */
tern_status tn_cold_expire(tn_table *t, uint64_t last, uint64_t *gone);
tern_status tn_cold_settle(tn_table *t, uint32_t clear);

/* table_index.c */
tern_status tn_index_init(tn_table *t);
void tn_index_fini(tn_table *t);
typedef struct tn_insert {
	bool existing; /* in: only if its record is in the tier; else *now = 0 */
	bool warm;     /* out: it came from there */
} tn_insert;
/* `now` in the directory for the hashes of `was`, or of a half of them. Holding both and dir_lock. */
void tn_index_publish(tn_table *t, tn_segment *was, tn_segment *now);
/* The id of a key's record, 0 if there is none. Inside the epoch. */
uint32_t tn_index_find(const tn_table *t, const tn_dir *dir, uint64_t key, uint64_t hash);
/* Enter a record that is filled in, dead and out of the index; it becomes live. *now: its id, or that of the record
   which was there before. TERN_E_NOMEM, TERN_E_LIMIT. */
tern_status tn_index_insert(tn_table *t, uint64_t key, uint64_t hash, uint32_t id, tn_insert *how,
			    uint32_t *now);
/* A record was found dead: until whoever ends it, or moves it, has taken it out of the index. */
void tn_index_await(tn_table *t, uint64_t hash);
/* Out of the index, dead, in limbo. A record used after `unless_after` stays. False: nothing was erased. */
bool tn_index_erase(tn_table *t, uint64_t key, uint64_t hash, uint64_t unless_after);
#define TN_ERASE_ALWAYS UINT64_MAX
/* To the tier. *gone = false: it was not there. Failures are the tier's. */
tern_status tn_index_evict(tn_table *t, uint64_t key, uint64_t hash, bool *gone);
/* The image of a key's record that is in the tier. *there = false: it is in memory, or nowhere. */
tern_status tn_index_cold_read(tn_table *t, uint64_t key, uint64_t hash, void *image, bool *there);
/* Marks of a record: those of an image in the tier are settled, and `marks` set, wherever the record is. */
tern_status tn_index_remark(tn_table *t, uint64_t key, uint64_t hash, uint32_t marks);
/* Keys of the segment that covers hash, those in [hash, last]; *end: the first hash past the segment, 0 at the end.
   Room for TN_SEGMENT_PLACES keys. cold (NULL: not wanted): those in the tier, added. Inside the epoch. */
uint32_t tn_index_keys(tn_table *t, uint64_t hash, uint64_t last, uint64_t *keys, uint64_t *end,
		       tn_cold_keys *cold);

/* table_admit.c */
tern_status tn_admit_init(tn_table *t);
void tn_admit_fini(tn_table *t);
/* Counts the request; may the key have a row? */
bool tn_admit(tn_table *t, uint64_t hash);
/* Make room for one row. *made = false: there is nothing to evict. Failures are the tier's. Inside the epoch, no lock
   held. */
tern_status tn_evict_one(tn_table *t, bool *made);

/* table_new.c */
typedef struct tn_maker {
	tn_table *t;
	tn_hand hand;
	uint64_t wanted; /* misses that are left: how many ids to take */
	unsigned epoch_slot;
	uint64_t step;
	uint64_t created, warmed, not_admitted, refused;
	tern_status status; /* of the first refusal */
	bool admit_all;
	bool existing; /* a record is not made, but it comes from the tier */
} tn_maker;
/* The record of a key, made if need be: id, or 0 if it can't be (counted). May leave and enter the epoch: ids and
   directories from before are void. scratch->w is overwritten. */
uint32_t tn_make(tn_maker *m, tn_scratch *s, uint64_t key, uint64_t hash);
void tn_maker_end(tn_maker *m);
/* These keys have no record in memory: those in the tier are read together. Leaves and enters the epoch. */
void tn_maker_expect(tn_maker *m, const uint64_t *keys, uint32_t n);
/* Value, state, key and metadata of a dead record, as new. */
void tn_record_init(tn_table *t, uint32_t id, tn_scratch *s, uint64_t key, uint64_t step);
/* Initial value of a key in the given dtype. */
void tn_row_default(tn_table *t, tn_scratch *s, uint64_t key, void *dst, tern_dtype dtype);

/* table_changes.c */
void tn_changes_init(tn_table *t);
void tn_changes_fini(tn_table *t);
/* Holding the record, which is about to die: its image to a cut, its key to the list. */
void tn_changes_erased(tn_table *t, uint32_t id, tn_head *head);
/* The same for a record that is in the tier, holding t->move shared. */
void tn_changes_erased_cold(tn_table *t, uint64_t key);
/* A touch has to mark the record. Inside the epoch. */
void tn_changes_touched(tn_table *t, tn_head *head);
/* A cut of that kind is possible; then it begins: flip the sets and publish it, in one step for erasures. */
tern_status tn_changes_may_cut(tn_table *t, tn_cut_kind kind);
void tn_changes_flip(tn_table *t, tn_cut_kind kind, uint64_t id, tn_cut *cut);
/* Version of a record after a write that ends now. Read after t->cut. */
static inline uint32_t tn_written(tn_table *t, uint32_t version)
{
	return (version + TN_VERSION_STEP) | atomic_load_explicit(&t->mark, memory_order_acquire);
}
static inline void tn_mark_touched(tn_table *t, tn_head *head)
{
	uint32_t mark = atomic_load_explicit(&t->touch_mark, memory_order_relaxed);

	if (TN_UNLIKELY(mark) && !(atomic_load_explicit(&head->version, memory_order_relaxed) & mark))
		tn_changes_touched(t, head);
}

/* table_cut.c */
void tn_cut_save(tn_cut *cut, tn_table *t, uint32_t id, tn_head *head);
void tn_cut_born(tn_cut *cut, tn_table *t, uint32_t id);
/* The records with this mark alone; before it is published. */
void tn_cut_only(tn_cut *cut, uint32_t mark);
/* Marks that an image of a record has, while tn_table_settle is at work too. */
static inline uint32_t tn_settled(tn_table *t, uint32_t marks)
{
	uint32_t clear = atomic_load(&t->settle_clear);

	marks &= TN_MARKS;
	return marks & clear ? (marks & ~clear) | atomic_load(&t->settle_set) : marks;
}
/* Holding the record: keep its image if a cut wants it. */
static inline void tn_cut_before_write(tn_table *t, uint32_t id, tn_head *head)
{
	tn_cut *cut = atomic_load_explicit(&t->cut, memory_order_acquire);

	if (TN_UNLIKELY(cut))
		tn_cut_save(cut, t, id, head);
}

/* A record at its bytes from the row on. */
static inline void tn_record_view_init(tn_record *record, const tn_table *t, uint64_t key,
				       const uint8_t *from_value)
{
	*record = (tn_record){.key = key, .value = from_value};
	if (t->state_bytes)
		record->state = from_value + t->value_room;
}

/* A record at its bytes from its head on, at 8-byte alignment. */
void tn_record_of_image(tn_record *record, const tn_table *t, const uint8_t *image);

/* Metadata of a use. */
static inline void tn_touch(const tn_table *t, tn_head *head, uint64_t step)
{
	uint32_t f;

	if (!t->meta)
		return;
	f = atomic_load_explicit(&head->frequency, memory_order_relaxed);
	if (f < UINT32_MAX)
		atomic_store_explicit(&head->frequency, f + 1, memory_order_relaxed);
	if (atomic_load_explicit(tn_head_last_step(head), memory_order_relaxed) < step)
		atomic_store_explicit(tn_head_last_step(head), step, memory_order_relaxed);
}

#endif

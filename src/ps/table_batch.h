/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline that pulls and pushes share. Each key means likely cache misses: its bucket, then its record. Several
 * keys are under way at once, so that misses of some overlap with the work on others. Steps are taken by a block of keys
 * at a time.
 *
 *   block i + 2 TN_AHEAD   hashed, their buckets asked for
 *   block i + TN_AHEAD     the buckets read; the records asked for
 *   block i                the records used; where the first record with a key's tag is another one's, or none has it,
 *                          the key is late
 *
 * The last two in turns, a record asked for and one used: a core has room for some two dozen lines that are under way, which
 * is less than the records of a block. Asked for in a row they would wait for room, with nothing to do; and while the block
 * before is used, nothing would be under way.
 *
 * Late keys (a few in a hundred) are looked up together at the end of the batch, in steps that all of them take one after
 * the other: so the straight way has one branch that may be guessed wrong, and nothing is kept for them meanwhile.
 *
 * Threads: items belong to one call. Tests: tests/unit/ps/model_test.c; bench/micro/table_bench.c.
 */
#ifndef TN_PS_TABLE_BATCH_H
#define TN_PS_TABLE_BATCH_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ps/table_impl.h"

#define TN_AHEAD 16
#define TN_BLOCK 16
#define TN_RING  64 /* items: a power of two from 2 TN_AHEAD + TN_BLOCK on */
#define TN_LATE  64 /* late keys that take a step together */
#define TN_BATCH TN_CHUNK_KEYS

typedef struct tn_item {
	uint64_t key;
	const tn_bucket *bucket;
	tn_head *head; /* may be the key's; NULL: none has its tag */
	uint32_t id;
	uint8_t tag;
} tn_item;

/* Number i of a batch: its key; and its record, to be used. False: the record died. */
typedef uint64_t (*tn_key_fn)(void *arg, uint32_t i);
typedef bool (*tn_use_fn)(void *arg, uint32_t i, uint32_t id, tn_head *head);

typedef struct tn_batch {
	const tn_table *t;
	const tn_dir *dir;
	uint32_t bytes; /* of a record that are asked for */
	bool write;
	bool outside; /* ids may be anything: table_mirror.c */
	void *arg;
} tn_batch;

/* Keys may lie in memory that a peer writes: a look-up reads its key once. */
static inline uint64_t tn_key_once(const uint64_t *key)
{
	return *(const volatile uint64_t *)key;
}

static inline uint32_t tn_bucket_match(const tn_bucket *b, uint8_t tag)
{
	uint64_t low = atomic_load_explicit(&b->tags, memory_order_acquire);
	uint64_t high = atomic_load_explicit(&b->tags_past, memory_order_acquire);
#if defined(__SSE2__)
	__m128i tags = _mm_set_epi64x((int64_t)high, (int64_t)low);

	return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag))) & 0xfff;
#else
	uint32_t mask = 0;

	for (unsigned i = 0; i < TN_BUCKET_PLACES; i++)
		mask |= (uint32_t)((uint8_t)(i < 8 ? low >> 8 * i : high >> 8 * (i - 8)) == tag) << i;
	return mask;
#endif
}

/* Did records pass it? Then a key may be in the next. */
static inline bool tn_bucket_passed(const tn_bucket *b)
{
	return atomic_load_explicit(&b->tags_past, memory_order_acquire) >> 32 & 0xffff;
}

#define TN_PREFETCH_BYTES 1024 /* of a record; the hardware goes on by itself */

static TN_ALWAYS_INLINE void tn_prefetch_line(const void *at, bool write)
{
	if (write)
		__builtin_prefetch(at, 1);
	else
		__builtin_prefetch(at);
}

/* As many steps for each record, wherever in a line it begins: a branch less to guess wrong. */
static TN_ALWAYS_INLINE void tn_prefetch(const void *at, uint32_t bytes, bool write)
{
	const uint8_t *line = at;
	uint32_t b = 0;

	for (; b + 256 <= bytes; b += 256) {
		tn_prefetch_line(line + b, write);
		tn_prefetch_line(line + b + 64, write);
		tn_prefetch_line(line + b + 128, write);
		tn_prefetch_line(line + b + 192, write);
	}
	for (; b < bytes; b += 64)
		tn_prefetch_line(line + b, write);
	tn_prefetch_line(line + bytes - 1, write);
}

/* What the steps need of table and batch, where nothing that they write can have changed it. */
typedef struct tn_view {
	const tn_slab *slabs;
	const tn_dir *dir;
	uint64_t rows; /* dense tables: a key is a place */
	uint32_t shift, mask, stride, bytes, slab_count;
	unsigned dir_shift; /* of half the hash */
	bool dense, write, outside;
} tn_view;

static TN_ALWAYS_INLINE tn_view tn_view_of(const tn_batch *b)
{
	const tn_table *t = b->t;

	return (tn_view){.slabs = t->slabs,
			 .dir = b->dir,
			 .rows = t->schema.rows,
			 .shift = t->shift,
			 .mask = t->mask,
			 .stride = t->stride,
			 .bytes = TN_MIN(b->bytes, TN_PREFETCH_BYTES),
			 .slab_count =
				 b->outside ? t->slab_count : 0, /* a table that is written to may get one */
			 .dir_shift = t->dense ? 0 : 63 - b->dir->depth,
			 .dense = t->dense,
			 .write = b->write,
			 .outside = b->outside};
}

static TN_ALWAYS_INLINE uintptr_t tn_view_entry(const tn_view *v, uint64_t hash)
{
	return atomic_load_explicit(&v->dir->at[hash >> 1 >> v->dir_shift], memory_order_acquire);
}

/* NULL: there is no such record. */
static TN_ALWAYS_INLINE tn_head *tn_view_head(const tn_view *v, uint32_t id)
{
	if (v->outside &&
	    (id >> v->shift >= v->slab_count || (id & v->mask) >= v->slabs[id >> v->shift].places))
		return NULL;
	return (tn_head *)(void *)(v->slabs[id >> v->shift].base + (uint64_t)(id & v->mask) * v->stride);
}

static TN_ALWAYS_INLINE void tn_item_ask(const tn_view *v, tn_item *item, uint64_t key)
{
	uint64_t hash;

	item->key = key;
	if (v->dense)
		return;
	hash = tn_table_hash(key);
	item->tag = tn_tag(hash);
	item->bucket = tn_entry_home(tn_view_entry(v, hash), hash);
	__builtin_prefetch(item->bucket);
}

/* The first place of the bucket with the key's tag. */
static TN_ALWAYS_INLINE void tn_item_match(const tn_view *v, tn_item *item)
{
	uint32_t id = 0, mask;

	if (v->dense) {
		id = item->key < v->rows ? (uint32_t)item->key + 1 : 0;
	} else {
		mask = tn_bucket_match(item->bucket, item->tag);
		if (TN_LIKELY(mask))
			id = atomic_load_explicit(&item->bucket->ids[__builtin_ctz(mask)],
						  memory_order_acquire);
	}
	item->id = id;
	item->head = TN_LIKELY(id) ? tn_view_head(v, id) : NULL;
}

/* ---- late keys ---- */

typedef struct tn_late {
	const tn_bucket *bucket;
	uintptr_t entry;
	uint64_t key;
	uint32_t id;
	uint8_t tag;
} tn_late;

/* Its home again, by now in a cache: heads of all that it may be are asked for, and the next bucket. */
static inline void tn_late_ask(const tn_view *v, tn_late *late, uint64_t key)
{
	uint64_t hash = tn_table_hash(key);
	uint32_t mask;

	late->key = key;
	late->id = 0;
	late->tag = tn_tag(hash);
	late->entry = tn_view_entry(v, hash);
	late->bucket = tn_entry_home(late->entry, hash);
	for (mask = tn_bucket_match(late->bucket, late->tag); mask; mask &= mask - 1) {
		uint32_t id =
			atomic_load_explicit(&late->bucket->ids[__builtin_ctz(mask)], memory_order_acquire);
		const tn_head *head = id ? tn_view_head(v, id) : NULL;

		if (head)
			__builtin_prefetch(head);
	}
	if (tn_bucket_passed(late->bucket))
		__builtin_prefetch(late->bucket + 1); /* past the last one nothing is read */
}

static inline tn_head *tn_late_find(const tn_view *v, tn_late *late)
{
	const tn_bucket *first = tn_entry_segment(late->entry)->buckets;
	uint32_t buckets = tn_entry_buckets(late->entry);

	for (uint32_t n = 0; n < buckets; n++) {
		for (uint32_t m = tn_bucket_match(late->bucket, late->tag); m; m &= m - 1) {
			tn_head *head;

			late->id = atomic_load_explicit(&late->bucket->ids[__builtin_ctz(m)],
							memory_order_acquire);
			head = late->id ? tn_view_head(v, late->id) : NULL;
			if (head && tn_head_key(head) == late->key)
				return head;
		}
		if (!tn_bucket_passed(late->bucket))
			break;
		if (++late->bucket == first + buckets)
			late->bucket = first;
	}
	late->id = 0;
	return NULL;
}

/* Numbers of late keys; those that have no record stay in the list, in order. Returns how many. */
static __attribute__((noinline)) uint32_t tn_batch_late(const tn_batch *b, tn_key_fn key, tn_use_fn use,
							uint16_t *numbers, uint32_t count)
{
	const tn_view v = tn_view_of(b);
	uint32_t missing = 0;
	tn_late late[TN_LATE];

	for (uint32_t from = 0; from < count && !v.dense; from += TN_LATE) {
		uint32_t n = TN_MIN(count - from, TN_LATE);

		for (uint32_t i = 0; i < n; i++)
			tn_late_ask(&v, &late[i], key(b->arg, numbers[from + i]));
		for (uint32_t i = 0; i < n; i++) {
			const tn_head *head = tn_late_find(&v, &late[i]);

			if (head)
				tn_prefetch(head, v.bytes, v.write);
		}
		for (uint32_t i = 0; i < n; i++) {
			uint32_t id = late[i].id;

			if (!id || !use(b->arg, numbers[from + i], id, tn_view_head(&v, id)))
				numbers[missing++] = numbers[from + i];
		}
	}
	return v.dense ? count : missing;
}

/* ---- all of them ---- */

/*
 * n <= TN_BATCH keys. Numbers of those that have no record to misses, in order; returns how many. Inside the epoch.
 * b->t, dir, bytes, write, outside and arg are filled in.
 */
static TN_ALWAYS_INLINE uint32_t tn_batch_run(const tn_batch *b, uint32_t n, tn_key_fn key, tn_use_fn use,
					      uint16_t *misses)
{
	const tn_view v = tn_view_of(b);
	uint32_t late = 0;
	tn_item ring[TN_RING];

	for (uint32_t from = 0; from < n + 2 * TN_AHEAD; from += TN_BLOCK) {
		uint32_t asked = from - TN_AHEAD, used = asked - TN_AHEAD; /* below 0 they wrap: from n on */
		tn_item *item = &ring[from % TN_RING], *next = &ring[asked % TN_RING];

		for (uint32_t i = from; i < n && i < from + TN_BLOCK; i++)
			tn_item_ask(&v, item++, key(b->arg, i));
		for (uint32_t i = asked; i < n && i < asked + TN_BLOCK; i++)
			tn_item_match(&v, next++);
		next = &ring[asked % TN_RING];
		item = &ring[used % TN_RING];
		for (uint32_t i = 0; i < TN_BLOCK; i++, next++, item++) {
			if (TN_LIKELY(asked + i < n && next->head))
				tn_prefetch(next->head, v.bytes, v.write);
			if (used + i < n && TN_UNLIKELY(!item->head || tn_head_key(item->head) != item->key ||
							!use(b->arg, used + i, item->id, item->head)))
				misses[late++] = (uint16_t)(used + i);
		}
	}
	return TN_UNLIKELY(late) ? tn_batch_late(b, key, use, misses, late) : 0;
}

#endif

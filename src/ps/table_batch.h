/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline that pulls and pushes share. Each key means likely cache misses: its bucket, then its record. Several
 * keys are under way at once, so that misses of some overlap with the work on others and requests to memory come evenly:
 *
 *   key i + 2 TN_AHEAD   hashed, its bucket asked for
 *   key i + TN_AHEAD     the bucket read, its record asked for
 *   key i                the record used; where the first record with the key's tag is another one's, or none has it,
 *                        the next that it may be is asked for, and the key waits with others like it for another turn
 *
 * Threads: items belong to one call. Tests: tests/unit/ps/model_test.c; bench/micro/table_bench.c.
 */
#ifndef TN_PS_TABLE_BATCH_H
#define TN_PS_TABLE_BATCH_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ps/table_impl.h"

#define TN_AHEAD 24
#define TN_RING  64 /* items: a power of two above 2 TN_AHEAD */
#define TN_AGAIN 32 /* keys that wait for another turn */
#define TN_BATCH TN_CHUNK_KEYS

typedef struct tn_item {
	uint64_t key, hash;
	uintptr_t entry; /* of the directory */
	const tn_bucket *bucket;
	tn_head *head; /* may be the key's; NULL: the bucket is to be read */
	uint32_t id;
	uint32_t mask;   /* places of the bucket with the key's tag that were not tried */
	uint32_t number; /* in the batch */
	uint32_t passed; /* buckets */
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
	tn_use_fn use;
	void *arg;
	uint64_t missing[TN_BATCH / 64]; /* bits */
	uint32_t again_count;
	tn_item again[TN_AGAIN];
} tn_batch;

/* Keys may lie in memory that a peer writes: each is read once. */
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

/* As many steps for each record, wherever in a line it begins: a branch less to guess wrong. */
static TN_ALWAYS_INLINE void tn_prefetch(const void *at, uint32_t bytes, bool write)
{
	const uint8_t *line = at;

	for (uint32_t b = 0; b < bytes; b += 64) {
		if (write)
			__builtin_prefetch(line + b, 1);
		else
			__builtin_prefetch(line + b);
	}
	if (write)
		__builtin_prefetch(line + bytes - 1, 1);
	else
		__builtin_prefetch(line + bytes - 1);
}

static TN_ALWAYS_INLINE void tn_item_ask(const tn_table *t, const tn_dir *dir, tn_item *item)
{
	if (t->dense)
		return;
	item->hash = tn_table_hash(item->key);
	item->entry = tn_dir_entry(dir, item->hash);
	item->bucket = tn_entry_home(item->entry, item->hash);
	__builtin_prefetch(item->bucket);
}

/* False: there is no such record. */
static TN_ALWAYS_INLINE bool tn_item_take(const tn_batch *b, tn_item *item, uint32_t id)
{
	const tn_table *t = b->t;

	item->head = NULL;
	if (b->outside &&
	    (id >> t->shift >= t->slab_count || (id & t->mask) >= t->slabs[id >> t->shift].places))
		return false;
	item->id = id;
	item->head = tn_head_of(t, id);
	tn_prefetch(item->head, b->bytes, b->write);
	return true;
}

/* The first place of the bucket with the key's tag. */
static TN_ALWAYS_INLINE void tn_item_match(const tn_batch *b, tn_item *item)
{
	const tn_table *t = b->t;
	uint32_t id = 0, mask = 0;

	if (t->dense) {
		id = item->key < t->schema.rows ? (uint32_t)item->key + 1 : 0;
	} else {
		mask = tn_bucket_match(item->bucket, tn_tag(item->hash));
		if (TN_LIKELY(mask)) {
			id = atomic_load_explicit(&item->bucket->ids[__builtin_ctz(mask)],
						  memory_order_acquire);
			mask &= mask - 1;
		}
	}
	item->mask = mask;
	item->head = NULL;
	if (TN_LIKELY(id))
		(void)tn_item_take(b, item, id);
}

/* What else it may be. False: nothing, there is no record of that key. */
static inline bool tn_item_next(const tn_batch *b, tn_item *item)
{
	uint32_t id;

	while (item->mask) {
		id = atomic_load_explicit(&item->bucket->ids[__builtin_ctz(item->mask)],
					  memory_order_acquire);
		item->mask &= item->mask - 1;
		if (id && tn_item_take(b, item, id))
			return true;
	}
	item->head = NULL;
	if (b->t->dense || !tn_bucket_passed(item->bucket) || ++item->passed == tn_entry_buckets(item->entry))
		return false;
	if (++item->bucket == &tn_entry_segment(item->entry)->buckets[tn_entry_buckets(item->entry)])
		item->bucket = tn_entry_segment(item->entry)->buckets;
	__builtin_prefetch(item->bucket);
	return true;
}

static TN_ALWAYS_INLINE bool tn_item_use(const tn_batch *b, const tn_item *item)
{
	return item->head && tn_head_key(item->head) == item->key &&
	       b->use(b->arg, item->number, item->id, item->head);
}

/* One turn for each that waits. */
static inline void tn_batch_again(tn_batch *b)
{
	uint32_t left = 0;

	for (uint32_t k = 0; k < b->again_count; k++) {
		tn_item *item = &b->again[k];
		bool more = true;

		if (!item->head) {
			tn_item_match(b, item);
			more = item->head || tn_item_next(b, item);
		} else if (tn_item_use(b, item)) {
			continue;
		} else {
			more = tn_item_next(b, item);
		}
		if (more)
			b->again[left++] = *item;
		else
			b->missing[item->number / 64] |= 1ull << (item->number & 63);
	}
	b->again_count = left;
}

static __attribute__((noinline)) void tn_batch_late(tn_batch *b, const tn_item *item)
{
	tn_item *again = &b->again[b->again_count];

	*again = *item;
	again->passed = 0;
	if (tn_item_next(b, again))
		b->again_count++;
	else
		b->missing[item->number / 64] |= 1ull << (item->number & 63);
	while (b->again_count == TN_AGAIN)
		tn_batch_again(b);
}

/*
 * n <= TN_BATCH keys. Numbers of those that have no record to misses, in order; returns how many. Inside the epoch.
 * b->t, dir, bytes, write, use and arg are filled in.
 */
static TN_ALWAYS_INLINE uint32_t tn_batch_run(tn_batch *b, uint32_t n, tn_key_fn key, tn_use_fn use,
					      uint16_t *misses)
{
	tn_item ring[TN_RING];
	uint32_t count = 0;

	b->use = use;
	b->bytes = TN_MIN(b->bytes, TN_PREFETCH_BYTES);
	b->again_count = 0;
	memset(b->missing, 0, sizeof(b->missing));
	for (uint32_t step = 0; step < n + 2 * TN_AHEAD; step++) {
		if (step < n) {
			tn_item *item = &ring[step % TN_RING];

			item->number = step;
			item->key = key(b->arg, step);
			tn_item_ask(b->t, b->dir, item);
		}
		if (step - TN_AHEAD < n) /* wraps below 0 */
			tn_item_match(b, &ring[(step - TN_AHEAD) % TN_RING]);
		if (step >= 2 * TN_AHEAD) {
			const tn_item *item = &ring[(step - 2 * TN_AHEAD) % TN_RING];

			if (TN_UNLIKELY(!item->head || tn_head_key(item->head) != item->key ||
					!use(b->arg, item->number, item->id, item->head)))
				tn_batch_late(b, item);
		}
	}
	while (b->again_count)
		tn_batch_again(b);
	for (uint32_t word = 0; word < TN_BATCH / 64; word++)
		for (uint64_t bits = b->missing[word]; bits; bits &= bits - 1)
			misses[count++] = (uint16_t)(word * 64 + (uint32_t)__builtin_ctzll(bits));
	return count;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline that pulls and pushes share. Of each key three things are asked for, each a likely cache miss: its
 * bucket, its record, the record's other lines. A window of keys is under way at once, so that the misses overlap:
 *
 *   key i + 2 AHEAD   hashed, bucket asked for
 *   key i + AHEAD     bucket read, record asked for
 *   key i             record used
 *
 * Threads: one window per call. Tests: tests/unit/ps/model_test.c.
 */
#ifndef TN_PS_TABLE_BATCH_H
#define TN_PS_TABLE_BATCH_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ps/table_impl.h"

#define TN_AHEAD  12
#define TN_WINDOW 32
_Static_assert(TN_WINDOW > 2 * TN_AHEAD, "places of the window are not reused too early");

typedef struct tn_ask {
	uint64_t key, hash;
	const tn_bucket *bucket;
	tn_head *head; /* a record with the same tag, likely the key's; NULL: none in the home bucket */
	uint32_t id;
} tn_ask;

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

static inline void tn_ask_bucket(const tn_table *t, const tn_dir *dir, tn_ask *a, uint64_t key)
{
	a->key = key;
	if (t->dense)
		return;
	a->hash = tn_table_hash(key);
	a->bucket = &tn_dir_find(dir, a->hash)->buckets[tn_home(a->hash)];
	__builtin_prefetch(a->bucket);
}

static inline void tn_prefetch(const uint8_t *line, bool write)
{
	if (write)
		__builtin_prefetch(line, 1);
	else
		__builtin_prefetch(line);
}

#define TN_PREFETCH_LINES 16 /* of a record; the hardware goes on by itself */

static inline void tn_ask_record(const tn_table *t, tn_ask *a, uint32_t bytes, bool write)
{
	const uint8_t *line;
	uint32_t mask;

	a->id = 0;
	a->head = NULL;
	if (t->dense) {
		a->id = a->key < t->schema.rows ? (uint32_t)a->key + 1 : 0;
	} else {
		mask = tn_bucket_match(a->bucket, tn_tag(a->hash));
		if (mask)
			a->id = atomic_load_explicit(&a->bucket->ids[__builtin_ctz(mask)],
						     memory_order_acquire);
	}
	if (!a->id)
		return;
	a->head = tn_head_of(t, a->id);
	line = (const uint8_t *)a->head;
	if (bytes > TN_PREFETCH_LINES * 64)
		bytes = TN_PREFETCH_LINES * 64;
	for (const uint8_t *end = line + bytes; line < end; line += 64)
		tn_prefetch(line, write);
	tn_prefetch((const uint8_t *)a->head + bytes - 1, write);
}

/* The key's record: the one that was asked for, or what a look-up finds. 0: none. */
static inline uint32_t tn_ask_answer(const tn_table *t, tn_ask *a)
{
	if (TN_LIKELY(a->head && tn_head_key(a->head) == a->key))
		return a->id;
	a->id = tn_index_find(t, atomic_load_explicit(&t->dir, memory_order_acquire), a->key, a->hash);
	a->head = a->id ? tn_head_of(t, a->id) : NULL;
	return a->id;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline that pulls and pushes share. Each key means likely cache misses: its bucket, then its record. Keys go
 * through in groups, three of them under way at once, so that the misses of one overlap with the work on the others:
 *
 *   group g + 2   hashed, buckets asked for
 *   group g + 1   buckets read, records asked for
 *   group g       records used; where the first record with the key's tag is another one's, or none has it, the key
 *                 is late: such keys are looked up in groups when all others are done
 *
 * Threads: groups belong to one call. Tests: tests/unit/ps/model_test.c; bench/micro/table_bench.c.
 */
#ifndef TN_PS_TABLE_BATCH_H
#define TN_PS_TABLE_BATCH_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ps/table_impl.h"

#define TN_GROUP 16

typedef struct tn_group {
	uint32_t n;
	uint64_t key[TN_GROUP], hash[TN_GROUP];
	const tn_bucket *bucket[TN_GROUP];
	tn_head *head[TN_GROUP]; /* likely the key's; NULL: none in the home bucket has its tag */
	uint32_t id[TN_GROUP];
} tn_group;

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

/* group->key is filled in. */
static inline void tn_group_ask(const tn_table *t, const tn_dir *dir, tn_group *g)
{
	for (uint32_t i = 0; !t->dense && i < g->n; i++) {
		uint64_t hash = tn_table_hash(g->key[i]);

		g->hash[i] = hash;
		g->bucket[i] = &tn_dir_find(dir, hash)->buckets[tn_home(hash)];
		__builtin_prefetch(g->bucket[i]);
	}
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

static TN_ALWAYS_INLINE void tn_group_match(const tn_table *t, tn_group *g, uint32_t bytes, bool write)
{
	bytes = TN_MIN(bytes, TN_PREFETCH_BYTES);
	for (uint32_t i = 0; i < g->n; i++) {
		uint32_t id = 0, mask;

		if (t->dense) {
			id = g->key[i] < t->schema.rows ? (uint32_t)g->key[i] + 1 : 0;
		} else {
			mask = tn_bucket_match(g->bucket[i], tn_tag(g->hash[i]));
			if (mask)
				id = atomic_load_explicit(&g->bucket[i]->ids[__builtin_ctz(mask)],
							  memory_order_acquire);
		}
		g->id[i] = id;
		g->head[i] = id ? tn_head_of(t, id) : NULL;
		if (id)
			tn_prefetch(g->head[i], bytes, write);
	}
}

/* Is what was matched the key's? If not, what else it may be is asked for: it is late, see tn_group_seek. */
static inline bool tn_group_there(const tn_table *t, const tn_group *g, uint32_t i)
{
	uint32_t mask;

	if (TN_LIKELY(g->head[i] && tn_head_key(g->head[i]) == g->key[i]))
		return true;
	if (t->dense)
		return false;
	mask = tn_bucket_match(g->bucket[i], tn_tag(g->hash[i]));
	for (mask &= mask - 1; mask; mask &= mask - 1) {
		uint32_t id =
			atomic_load_explicit(&g->bucket[i]->ids[__builtin_ctz(mask)], memory_order_acquire);

		if (id)
			__builtin_prefetch(tn_head_of(t, id));
	}
	__builtin_prefetch(g->bucket[i] + 1);
	return false;
}

/* A group of late keys: ids by a whole look-up each, 0 where there is none. Their misses overlap as well. */
static inline void tn_group_seek(const tn_table *t, tn_group *g, uint32_t bytes, bool write)
{
	const tn_dir *dir = atomic_load_explicit(&t->dir, memory_order_acquire);

	tn_group_ask(t, dir, g);
	for (uint32_t i = 0; !t->dense && i < g->n; i++) {
		uint32_t next = (tn_home(g->hash[i]) + 1) & (TN_SEGMENT_BUCKETS - 1);
		const tn_bucket *b = &tn_dir_find(dir, g->hash[i])->buckets[next];

		for (uint32_t mask = tn_bucket_match(b, tn_tag(g->hash[i])); mask; mask &= mask - 1) {
			uint32_t id =
				atomic_load_explicit(&b->ids[__builtin_ctz(mask)], memory_order_acquire);

			if (id)
				__builtin_prefetch(tn_head_of(t, id));
		}
	}
	bytes = TN_MIN(bytes, TN_PREFETCH_BYTES);
	for (uint32_t i = 0; i < g->n; i++) {
		g->id[i] = tn_index_find(t, dir, g->key[i], t->dense ? 0 : g->hash[i]);
		g->head[i] = g->id[i] ? tn_head_of(t, g->id[i]) : NULL;
		if (g->id[i])
			tn_prefetch(g->head[i], bytes, write);
	}
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the magazines of a cache: how many objects each may keep, and their way from slabs and back, half a magazine
 * at a time.
 *
 *   spares   [none][class 0 ... max][none][class 1 ... max][none] ...      per (cache, arena), made at the first block
 *                   first^   ^top  ^end
 *
 * A magazine starts with room for a few objects and doubles when it runs empty or full, up to MAX_BYTES, as long as
 * all of an arena fit in mem.cache; what nobody took from for a while starts again.
 *
 * Must not grow the arena or touch blocks. Threads: the arena's lock is held, the caller owns the cache or has
 * stolen it. Tests: tests/unit/mem/test_cache.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "mem/cache.h"

#define START_BYTES (16ull << 10)
#define START_MAX   64u
#define MAX_BYTES   (128ull << 10)
#define MAX_OBJECTS 512u
#define LEAST       16u /* of a full one, whatever they take */

/* Stands below and above the objects of magazines that have no room: nothing to take, nowhere to put. */
static tn_spare nowhere[2];

static inline uint32_t room_at_start(uint32_t class)
{
	return (uint32_t)TN_MIN(TN_MAX(START_BYTES / tn_classes[class].bytes, 2), START_MAX);
}

static inline uint32_t room_at_most(uint32_t class)
{
	return (uint32_t)TN_MIN(TN_MAX(MAX_BYTES / tn_classes[class].bytes, LEAST), MAX_OBJECTS);
}

static inline tn_spare *top_of(const tn_magazine *magazine)
{
	return atomic_load_explicit(&magazine->top, memory_order_relaxed);
}

static inline void set_top(tn_magazine *magazine, tn_spare *top)
{
	TN_ASSERT(top >= magazine[TN_FIRST].first && top <= magazine[TN_END].end);
	atomic_store_explicit(&magazine->top, top, memory_order_relaxed);
}

static inline uint64_t room_of(const tn_magazine *magazine)
{
	return (uint64_t)(magazine[TN_END].end - magazine[TN_FIRST].first);
}

uint64_t tn_magazine_count(const tn_magazine *magazine)
{
	return (uint64_t)(top_of(magazine) - magazine[TN_FIRST].first);
}

void tn_magazines_init(tn_cache *cache)
{
	for (uint32_t i = 0; i < TN_MAGAZINES; i++) {
		tn_magazine *magazine = &cache->magazine[i];

		magazine[TN_FIRST].first = magazine[TN_END].end = &nowhere[1];
		set_top(magazine, &nowhere[1]);
	}
}

void tn_magazines_fini(tn_cache *cache)
{
	for (uint32_t i = 0; i < TN_CACHED_ARENAS; i++) {
		free(cache->spares[i]);
		cache->spares[i] = NULL;
	}
}

/* Places for all magazines of the arena. False: no memory. */
static bool make_places(tn_cache *cache, const tn_arena *arena)
{
	uint64_t count = 0;
	tn_spare *at;

	if (cache->spares[arena->index])
		return true;
	for (uint32_t i = 0; i < TN_CLASSES; i++)
		count += 1 + room_at_most(i);
	at = TN_FAULT("mem.cache.places") ? NULL : calloc(count, sizeof(*at));
	cache->spares[arena->index] = at;
	for (uint32_t i = 0; at && i < TN_CLASSES; i++) {
		tn_magazine *magazine = tn_magazine_of(cache, arena, i);

		magazine[TN_FIRST].first = magazine[TN_END].end = at + 1;
		set_top(magazine, at + 1);
		at += 1 + room_at_most(i);
	}
	return at != NULL;
}

/* Room for some objects, or for more. */
static void widen(tn_arena *arena, tn_cache *cache, uint32_t class)
{
	tn_magazine *magazine = tn_magazine_of(cache, arena, class);
	uint64_t room = room_of(magazine);
	uint64_t more = room ? TN_MIN(room, room_at_most(class) - room) : room_at_start(class);
	uint64_t bytes = more * tn_classes[class].bytes;

	if (!make_places(cache, arena) || cache->granted[arena->index] + bytes > arena->mem->cache_bytes)
		return;
	cache->granted[arena->index] += bytes;
	magazine[TN_END].end += more;
}

/* ---- to slabs ---- */

/* Objects of one slab on their way back. */
typedef struct tn_return {
	tn_run *slab;
	uintptr_t base;
	uint64_t bytes; /* of the slab; 0 = none yet */
	uint64_t mask;
} tn_return;

static tn_return return_of(const tern_mem *mem, const void *ptr)
{
	tn_ext *ext = tn_mem_ext_of(mem, ptr);
	tn_run *slab;

	TN_ASSERT(ext != NULL);
	slab = tn_slab_of(ext,
			  (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ext->pub.base) >> TN_PAGE_SHIFT);
	TN_ASSERT(slab != NULL && slab->state == TN_RUN_SLAB);
	return (tn_return){.slab = slab,
			   .base = (uintptr_t)tn_run_base(ext, slab),
			   .bytes = (uint64_t)slab->pages << TN_PAGE_SHIFT};
}

static inline uint64_t bit_of(const tn_return *r, uint32_t class, const void *ptr)
{
	return 1ull << tn_class_object(&tn_classes[class], (uintptr_t)ptr - r->base);
}

/* How many were in the slab already: two threads freed one block at the same instant. */
static uint64_t finish(tn_arena *arena, const tn_cache *cache, const tn_return *r)
{
	return r->slab ? (uint64_t)__builtin_popcountll(tn_slab_put(arena, r->slab, r->mask, cache->id)) : 0;
}

/* The n oldest go back to their slabs. */
static void give(tn_arena *arena, tn_cache *cache, uint32_t class, uint64_t n)
{
	tn_magazine *magazine = tn_magazine_of(cache, arena, class);
	uint64_t left = tn_magazine_count(magazine) - n, twice = 0;
	tn_return r = {0};

	TN_ASSERT(n <= tn_magazine_count(magazine));
	for (uint64_t i = 0; i < n; i++) {
		const void *ptr = magazine[TN_FIRST].first[i].ptr;
		uint64_t bit;

		if ((uintptr_t)ptr - r.base >= r.bytes) {
			twice += finish(arena, cache, &r);
			r = return_of(arena->mem, ptr);
		}
		bit = bit_of(&r, class, ptr);
		twice += (r.mask & bit) != 0;
		r.mask |= bit;
	}
	twice += finish(arena, cache, &r);
	memmove(magazine[TN_FIRST].first, magazine[TN_FIRST].first + n, left * sizeof(tn_spare));
	set_top(magazine, magazine[TN_FIRST].first + left);
	if (TN_LIKELY(twice == 0))
		return;
	tn_count(&arena->mem->refused_frees, twice);
	TN_LOG(ERROR, MEM, "a block of %u bytes was freed by two threads at once", tn_classes[class].bytes);
}

void tn_cache_put(tn_arena *arena, tn_cache *cache, uint32_t class, void *ptr, tn_mark *mark)
{
	tn_magazine *magazine = tn_magazine_of(cache, arena, class);
	tn_spare *top;

	if (top_of(magazine) == magazine[TN_END].end)
		widen(arena, cache, class);
	if (room_of(magazine) == 0) {
		tn_return r = return_of(arena->mem, ptr);

		r.mask = bit_of(&r, class, ptr);
		finish(arena, cache, &r);
		return;
	}
	if (top_of(magazine) == magazine[TN_END].end)
		give(arena, cache, class, (room_of(magazine) + 1) / 2);
	top = top_of(magazine);
	*top = (tn_spare){.ptr = ptr, .mark = mark};
	set_top(magazine, top + 1);
}

void tn_cache_flush(tn_arena *arena, tn_cache *cache, bool idle)
{
	if (arena->index >= TN_CACHED_ARENAS || !cache->spares[arena->index])
		return;
	for (uint32_t class = 0; class < TN_CLASSES; class ++) {
		tn_magazine *magazine = tn_magazine_of(cache, arena, class);
		uint64_t allocs = tn_counter_read(&magazine[TN_ALLOCS].allocs);
		uint64_t *seen = &cache->allocs_seen[magazine - cache->magazine];

		if (!idle || *seen == allocs) {
			give(arena, cache, class, tn_magazine_count(magazine));
			cache->granted[arena->index] -= room_of(magazine) * tn_classes[class].bytes;
			magazine[TN_END].end = magazine[TN_FIRST].first;
		}
		*seen = allocs;
	}
}

/* ---- from slabs ---- */

void *tn_cache_refill(tn_arena *arena, tn_cache *cache, uint32_t class)
{
	tn_magazine *magazine = tn_magazine_of(cache, arena, class);
	tn_spare *top, one;
	uint32_t n;

	/* Somebody may have put some back meanwhile. */
	if (tn_magazine_count(magazine) == 0) {
		widen(arena, cache, class);
		n = (uint32_t)TN_MAX(room_of(magazine) / 2, TN_PAGE_BYTES / tn_classes[class].bytes);
		n = (uint32_t)TN_MIN(n, room_of(magazine));
		if (n == 0) {
			if (tn_slab_take(arena, class, cache->id, &one, 1) == 0)
				return NULL;
			atomic_store_explicit(one.mark, tn_arena_mark(arena, class), memory_order_relaxed);
			return one.ptr;
		}
		n = tn_slab_take(arena, class, cache->id, magazine[TN_FIRST].first, n);
		if (n == 0)
			return NULL;
		set_top(magazine, magazine[TN_FIRST].first + n);
	}
	top = top_of(magazine) - 1;
	set_top(magazine, top);
	atomic_store_explicit(top->mark, tn_arena_mark(arena, class), memory_order_relaxed);
	return top->ptr;
}

/* ---- checks ---- */

void tn_magazines_check(tn_arena *arena, tn_cache *cache, uint64_t kept[TN_CLASSES])
{
	uint64_t granted = 0;

	for (uint32_t class = 0; class < TN_CLASSES; class ++) {
		const tn_magazine *magazine = tn_magazine_of(cache, arena, class);

		TN_ASSERT(magazine[TN_FIRST].first[-1].ptr == NULL);
		TN_ASSERT(top_of(magazine) >= magazine[TN_FIRST].first &&
			  top_of(magazine) <= magazine[TN_END].end);
		TN_ASSERT(room_of(magazine) <= room_at_most(class));
		for (const tn_spare *at = magazine[TN_FIRST].first; at < top_of(magazine); at++) {
			tn_return r = return_of(arena->mem, at->ptr);
			tn_ext *ext = tn_mem_ext_of(arena->mem, at->ptr);

			TN_ASSERT(ext->arena == arena && at->mark == tn_ext_mark(ext, at->ptr));
			TN_ASSERT(*at->mark == TN_MARK_NONE && r.slab->class == class);
			TN_ASSERT(!(r.slab->free_mask & bit_of(&r, class, at->ptr)));
		}
		kept[class] += tn_magazine_count(magazine);
		granted += room_of(magazine) * tn_classes[class].bytes;
	}
	TN_ASSERT(granted == cache->granted[arena->index] && granted <= arena->mem->cache_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread keeps of a pool, and the common path of small blocks: no lock, no locked instruction, no line that
 * another thread writes.
 *
 *   cache      one per (thread, pool); outlives its thread, until another one takes it over
 *   magazine   free objects of one (arena, class), newest on top; the mark of each is at hand beside its address
 *   turn       1 while the owner is inside; a plain store of a constant: nothing waits for the one before
 *   stolen     how many others work on magazines of the cache, or wait to; and flags: the common path is closed
 *
 *   allocate   class -> mark -> magazine: pop ; *mark = its number
 *   free       address -> mark -> magazine, room? *mark = NONE ; push    (whoever took the object from its slab)
 *   none left, or no room: tn_cache_refill, tn_cache_put move half a magazine from or to slabs, under the lock
 *
 *   owner      turn = 1 ; stolen == 0 ? work without lock : wait for the arena's lock ; turn = 0
 *   any other  arena's lock ; stolen++ ; barrier in all threads ; until turn == 0 ; work ; stolen--
 *
 * The two sides are Dekker's: a store, a full barrier, a load. The owner's barrier is made by the other side
 * (membarrier), where the kernel has it; else both pay for one. So a magazine is touched by its owner inside a turn
 * with stolen == 0, or by whoever holds the arena's lock and is the owner or has stolen it.
 *
 * An extent goes only after each cache was seen outside of a turn (tn_caches_passed): marks that are looked at
 * inside a turn are there, whatever pointer was given. A second free meets the mark NONE. Two frees of one block at
 * the same instant by two threads may both pass; slabs refuse the second when it comes back to them.
 *
 * Threads: the inline functions are for the calling thread's own cache. Tests: tests/unit/mem/test_cache.c,
 * test_threads.c, test_model.c.
 */
#ifndef TN_MEM_CACHE_H
#define TN_MEM_CACHE_H

#include <stdalign.h>

#include "base/limits.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define TN_CACHED_ARENAS 4u /* those of huge pages alone go without */
#define TN_MAGAZINES     (TN_MARK_CACHED + TN_CACHED_ARENAS * TN_CLASSES)
_Static_assert(TN_MAGAZINES <= 256, "a mark says which");

/*
 * A magazine lies in columns, where one scaled address reaches all of it: m = &cache->magazine[mark] has m->top,
 * m[TN_END].end, m[TN_ALLOCS].allocs and m[TN_FIRST].first. Marks below TN_MARK_CACHED have magazines without room,
 * so that a free need not ask what kind of mark it found.
 */
typedef union tn_magazine {
	_Atomic(tn_spare *) top; /* above the newest; below `first` lies one without address */
	tn_spare *end;           /* top == end: no room */
	tn_counter allocs;       /* by the common path */
	tn_spare *first;
} tn_magazine;
_Static_assert(sizeof(tn_magazine) == 8, "the scale of an address");
#define TN_END    TN_MAGAZINES
#define TN_ALLOCS (2 * TN_MAGAZINES)
#define TN_FIRST  (3 * TN_MAGAZINES)

typedef struct tn_cache {
	alignas(TN_CACHE_LINE) _Atomic uint32_t turn;
	_Atomic uint32_t stolen; /* and TN_CLOSED_* */
	/* As in the pool, so that the common path reads no other line. */
	const uint8_t *base;
	uint64_t lines;
	const _Atomic(uintptr_t) *marks;
	uint64_t pool;            /* id */
	_Atomic(uintptr_t) owner; /* a thread's mark, 0 = none: it is empty, anybody may take it over */
	uint16_t id;
	alignas(TN_CACHE_LINE) tn_magazine magazine[4 * TN_MAGAZINES];
	/* Of each arena, under its lock. */
	tn_spare *spares[TN_CACHED_ARENAS]; /* where its magazines lie, NULL before the first block */
	uint64_t granted[TN_CACHED_ARENAS]; /* bytes of objects that fit in them, at most mem->cache_bytes */
	uint64_t allocs_seen[TN_MAGAZINES]; /* when the helper last looked */
} tn_cache;

/* A value is computed once and kept: compilers would rather do half of it again in each address. */
#define TN_ONE_REGISTER(value) __asm__("" : "+r"(value))

/* The common path is closed while ... */
#define TN_CLOSED_FENCE  (1u << 31) /* the kernel has no membarrier: who enters needs a fence */
#define TN_CLOSED_PARKED (1u << 30) /* freed blocks wait for accesses to end: look at them */
#define TN_CLOSED_GONE   (1u << 29) /* the pool was destroyed */
#define TN_STOLEN_MASK   (TN_CLOSED_GONE | (TN_CLOSED_GONE - 1))

/* The pool that the thread used last. A pool that goes leaves its caches to their threads: never dangling. */
typedef struct tn_cache_mine {
	const tern_mem
		*mem; /* TN_CACHE_NOBODY: none, and no caller says NULL by mistake and is taken for it */
	tn_cache *cache;
} tn_cache_mine;
#define TN_CACHE_NOBODY ((const tern_mem *)1)
/* initial-exec: one load; 16 bytes of the static block, so that the library can be loaded late. */
extern __thread tn_cache_mine tn_cache_mine_now __attribute__((tls_model("initial-exec")));

static inline bool tn_cache_enter_(tn_cache *cache, uint32_t mask, bool fence)
{
	TN_ASSERT(atomic_load_explicit(&cache->turn, memory_order_relaxed) == 0);
#ifdef TN_MEM_SYMMETRIC /* the thread sanitizer knows neither fences nor membarrier */
	(void)fence;
	atomic_exchange(&cache->turn, 1);
	if (TN_LIKELY((atomic_load(&cache->stolen) & mask & ~TN_CLOSED_FENCE) == 0))
		return true;
#else
	atomic_store_explicit(&cache->turn, 1, memory_order_relaxed);
	if (fence)
		atomic_thread_fence(memory_order_seq_cst);
	else
		atomic_signal_fence(memory_order_seq_cst);
	if (TN_LIKELY((atomic_load_explicit(&cache->stolen, memory_order_acquire) & mask) == 0))
		return true;
#endif
	atomic_store_explicit(&cache->turn, 0, memory_order_release);
	return false;
}

/* False: somebody works on it, take the lock. */
static inline bool tn_cache_enter(tn_cache *cache)
{
	return tn_cache_enter_(cache, TN_STOLEN_MASK, !tn_os_mem_asymmetric);
}

static inline void tn_cache_leave(tn_cache *cache)
{
	TN_ASSERT(atomic_load_explicit(&cache->turn, memory_order_relaxed) == 1);
	atomic_store_explicit(&cache->turn, 0, memory_order_release);
}

/* Inside a turn. NULL: none left. */
static inline void *tn_cache_pop(tn_cache *cache, uint64_t mark)
{
	tn_magazine *magazine = &cache->magazine[mark];
	tn_spare *top;
	void *ptr;

	TN_ASSERT(mark >= TN_MARK_CACHED && mark < TN_MAGAZINES);
	TN_ONE_REGISTER(magazine);
	top = atomic_load_explicit(&magazine->top, memory_order_relaxed);
	ptr = top[-1].ptr;
	if (TN_LIKELY(ptr != NULL)) {
		TN_ASSERT(*top[-1].mark == TN_MARK_NONE);
		atomic_store_explicit(&magazine->top, top - 1, memory_order_relaxed);
		atomic_store_explicit(top[-1].mark, (uint8_t)mark, memory_order_relaxed);
		tn_count_own(&magazine[TN_ALLOCS].allocs, 1);
	}
	return ptr;
}

/* Inside a turn. The mark of the line that starts at ptr; false: it is in no extent, or starts none. */
static inline bool tn_cache_mark(const tn_cache *cache, const void *ptr, tn_mark **mark)
{
	uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)cache->base);
	/* Rotated: what is below a line's start is too large a number too. */
	uint64_t line = offset >> TN_LINE_SHIFT | offset << (64 - TN_LINE_SHIFT);
	uintptr_t marks;

	if (TN_UNLIKELY(line >= cache->lines))
		return false;
	marks = atomic_load_explicit(&cache->marks[line >> TN_GRANULE_LINE], memory_order_acquire);
	*mark = (tn_mark *)(marks + line);
	return TN_LIKELY(marks != 0);
}

/* Inside a turn. False: nothing was done, because no block starts there that has this way, or there is no room. */
static inline bool tn_cache_push(tn_cache *cache, void *ptr)
{
	tn_magazine *magazine;
	tn_mark *mark;
	tn_spare *top;
	uint32_t of;

	if (TN_UNLIKELY(!tn_cache_mark(cache, ptr, &mark)))
		return false;
	of = atomic_load_explicit(mark, memory_order_relaxed);
	TN_ASSERT(of < TN_MAGAZINES);
	magazine = &cache->magazine[of];
	TN_ONE_REGISTER(magazine);
	top = atomic_load_explicit(&magazine->top, memory_order_relaxed);
	if (TN_UNLIKELY(top == magazine[TN_END].end))
		return false;
	atomic_store_explicit(mark, TN_MARK_NONE, memory_order_relaxed);
	*top = (tn_spare){.ptr = ptr, .mark = mark};
	atomic_store_explicit(&magazine->top, top + 1, memory_order_relaxed);
	return true;
}

/* A block of 1 to TN_SMALL_MAX bytes; access below 4. NULL: the common path won't do. */
static inline void *tn_cache_alloc(const tern_mem *mem, uint32_t access, uint64_t bytes)
{
	uint64_t mark = tn_mark_by_line[(bytes - 1) >> TN_LINE_SHIFT] + access;
	tn_cache *cache = tn_cache_mine_now.cache;
	void *ptr;

	TN_ONE_REGISTER(mark);
	if (TN_UNLIKELY(tn_cache_mine_now.mem != mem) || TN_UNLIKELY(!tn_cache_enter_(cache, ~0u, false)))
		return NULL;
	ptr = tn_cache_pop(cache, mark);
	tn_cache_leave(cache);
	return ptr;
}

/* Free a block into the cache that the thread used last. False: the common path won't do, nothing was done. */
static inline bool tn_cache_free(tn_cache *cache, void *ptr)
{
	bool done;

	if (TN_UNLIKELY(!tn_cache_enter_(cache, ~0u, false)))
		return false;
	done = tn_cache_push(cache, ptr);
	tn_cache_leave(cache);
	return done;
}

/* ---- magazine.c: arena's lock held, by the owner of the cache or by who has stolen it ---- */
/* Magazines without room, for a new cache. */
void tn_magazines_init(tn_cache *cache);
void tn_magazines_fini(tn_cache *cache);
/* One object, and more for the next calls. NULL: no page is left. */
void *tn_cache_refill(tn_arena *arena, tn_cache *cache, uint32_t class);
/* The owner frees an object. Its mark is NONE by now. */
void tn_cache_put(tn_arena *arena, tn_cache *cache, uint32_t class, void *ptr, tn_mark *mark);
/* All magazines of the arena go back to slabs; `idle`: those that nobody took from since the last such call. */
void tn_cache_flush(tn_arena *arena, tn_cache *cache, bool idle);
/* Objects that it keeps: without lock, a guess. */
uint64_t tn_magazine_count(const tn_magazine *magazine);
/* Assert its invariants; adds to kept[class]. */
void tn_magazines_check(tn_arena *arena, tn_cache *cache, uint64_t kept[TN_CLASSES]);

/* ---- cache.c ---- */
void tn_caches_init(tern_mem *mem);
/* No thread is inside; those that used the pool may live on. */
void tn_caches_destroy(tern_mem *mem);
/* The calling thread's cache, made or taken over if need be; NULL: it goes without. No lock held. */
tn_cache *tn_cache_get(tern_mem *mem);
/* The same, NULL if it has none yet. */
static inline tn_cache *tn_cache_current(const tern_mem *mem)
{
	tn_cache *cache = tn_cache_mine_now.cache;

	/* By number: a new pool may lie where one that is gone did. */
	return cache && cache->pool == mem->id ? cache : NULL;
}
/* Blocks were parked, or the last one was freed. No lock held. */
void tn_caches_parked(tern_mem *mem);
/* Arena's lock held. Take what caches keep; of magazines that nobody took from since the last such call if `idle`. */
void tn_caches_reclaim(tn_arena *arena, bool idle);
/* Bytes that tn_caches_reclaim would find; a guess. */
uint64_t tn_caches_kept(const tn_arena *arena);
/* Returns when each turn that was under way has ended. */
void tn_caches_passed(tern_mem *mem);
/* Arena's lock held: assert the invariants of caches and banks. */
void tn_caches_check(tn_arena *arena);
/* Arena's lock held. Sums over banks and caches. */
typedef struct tn_cache_sums {
	uint64_t allocs, blocks, used_bytes, kept_bytes, waste_bytes;
} tn_cache_sums;
void tn_caches_sum(const tn_arena *arena, tn_cache_sums *sums);

static inline tn_magazine *tn_magazine_of(tn_cache *cache, const tn_arena *arena, uint32_t class)
{
	TN_ASSERT(arena->index < TN_CACHED_ARENAS && class < TN_CLASSES);
	return &cache->magazine[TN_MARK_CACHED + (class << 2 | arena->index)];
}

static inline uint32_t tn_cached_mark(const tn_arena *arena, uint32_t class)
{
	TN_ASSERT(arena->index < TN_CACHED_ARENAS && class < TN_CLASSES);
	return TN_MARK_CACHED + (class << 2 | arena->index);
}

static inline bool tn_arena_cached(const tn_arena *arena)
{
	return arena->index < TN_CACHED_ARENAS && arena->mem->cache_bytes != 0;
}

/* The mark of a block that the arena's lock was taken for. */
static inline uint8_t tn_arena_mark(const tn_arena *arena, uint32_t class)
{
	return (uint8_t)(tn_arena_cached(arena) ? tn_cached_mark(arena, class) : TN_MARK_LOCKED);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread keeps of a pool, and the common path of small blocks: no lock, no locked instruction.
 *
 *   cache   one per (thread, pool); outlives its thread as an orphan, until another thread adopts it
 *   heap    the cache's part of one arena: slabs that it owns. Their free bits are its free lists, out of band
 *   turn    odd while the owner is inside; a plain store
 *   stolen  how many others work on heaps of the cache, or wait to
 *
 *   owner      turn++ (odd) ; stolen == 0 ? work without lock : wait for the arena's lock ; turn++ (even)
 *   any other  arena's lock ; stolen++ ; barrier in all threads ; until turn is even or moves ; work ; stolen--
 *
 * The two sides are Dekker's: a store, a full barrier, a load. The owner's barrier is made by the other side
 * (membarrier), where the kernel has it; else both pay for one. So a heap is touched by its owner inside a turn
 * with stolen == 0, or by whoever holds the arena's lock and is the owner, or has stolen it, or it is an orphan's
 * (adoption takes all arenas' locks).
 *
 *   free by another thread:  remote_mask |= bit ; if it was 0: push the slab on the heap's stack, once
 *   taking over:             pop all ; free_mask |= exchange(remote_mask, 0)
 *
 * An extent goes only after each cache was seen outside of a turn (tn_caches_passed): look-ups inside a turn
 * never meet freed metadata, whatever pointer they were given.
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

typedef struct tn_heap_class {
	tn_run *slab; /* allocated from, never NULL; in no list */
	uint8_t *base;
	tn_counter allocs, frees; /* blocks so far; written under the heap's rule */
	tn_counter asked_bytes;   /* of all allocs */
	tn_list room;             /* other slabs with free objects, empty ones last */
	_Atomic uint32_t slabs;   /* owned */
	uint32_t batch;           /* slabs to fetch next time */
} tn_heap_class;
_Static_assert(sizeof(tn_heap_class) == TN_CACHE_LINE, "one line per class");

typedef struct tn_heap {
	alignas(TN_CACHE_LINE) tn_heap_class class[TN_CLASSES];
	tn_counter empty_bytes; /* of slabs in `room` without live objects */
	uint32_t empty_slabs;
	uint64_t allocs_seen; /* when the helper last looked */
	alignas(TN_CACHE_LINE) _Atomic(tn_run *) remote_first;
	_Atomic uint64_t remote; /* freed by others, not taken over: blocks << 40 | bytes */
	tn_counter remote_frees;
} tn_heap;

typedef struct tn_cache {
	alignas(TN_CACHE_LINE) _Atomic uint32_t turn;
	uint16_t id;
	_Atomic(uintptr_t) owner; /* a thread's mark, 0 = orphan */
	_Atomic(tn_heap *) heaps[TN_ARENAS];
	alignas(TN_CACHE_LINE) _Atomic uint32_t stolen;
} tn_cache;

/* The pool that the thread used last. */
typedef struct tn_cache_mine {
	uint64_t pool; /* id, 0 = none */
	tn_cache *cache;
} tn_cache_mine;
/* initial-exec: one load; 16 bytes of the static block, so that the library can be loaded late. */
extern __thread tn_cache_mine tn_cache_mine_now __attribute__((tls_model("initial-exec")));

#define TN_REMOTE_ONE   (1ull << 40)
#define TN_REMOTE_BYTES (TN_REMOTE_ONE - 1)

/* The calling thread's cache, NULL if it has none or another pool came between. */
static inline tn_cache *tn_cache_current(const tern_mem *mem)
{
	return TN_LIKELY(tn_cache_mine_now.pool == mem->id) ? tn_cache_mine_now.cache : NULL;
}

/* False: somebody works on it, take the lock. */
static inline bool tn_cache_enter(tn_cache *cache)
{
	uint32_t turn = atomic_load_explicit(&cache->turn, memory_order_relaxed);

	TN_ASSERT(!(turn & 1));
#ifdef TN_MEM_SYMMETRIC /* the thread sanitizer knows neither fences nor membarrier */
	atomic_exchange(&cache->turn, turn + 1);
	if (TN_LIKELY(atomic_load(&cache->stolen) == 0))
		return true;
#else
	atomic_store_explicit(&cache->turn, turn + 1, memory_order_relaxed);
	if (TN_UNLIKELY(!tn_os_mem_asymmetric))
		atomic_thread_fence(memory_order_seq_cst);
	else
		atomic_signal_fence(memory_order_seq_cst);
	if (TN_LIKELY(atomic_load_explicit(&cache->stolen, memory_order_acquire) == 0))
		return true;
#endif
	atomic_store_explicit(&cache->turn, turn + 2, memory_order_release);
	return false;
}

static inline void tn_cache_leave(tn_cache *cache)
{
	uint32_t turn = atomic_load_explicit(&cache->turn, memory_order_relaxed);

	TN_ASSERT(turn & 1);
	atomic_store_explicit(&cache->turn, turn + 1, memory_order_release);
}

/* Inside a turn. Another slab becomes the current one, without the lock; false: there is none. */
bool tn_heap_next(tn_arena *arena, tn_heap *heap, uint32_t class);

/* One object of the current slab, which has one. */
static inline void *tn_heap_take(tn_heap_class *c, const tn_class *class, uint64_t asked)
{
	uint64_t mask = atomic_load_explicit(&c->slab->free_mask, memory_order_relaxed);

	atomic_store_explicit(&c->slab->free_mask, mask & (mask - 1), memory_order_relaxed);
	tn_count_own(&c->allocs, 1);
	tn_count_own(&c->asked_bytes, asked);
	return c->base + (uint64_t)(unsigned)__builtin_ctzll(mask) * class->bytes;
}

/* A block of the class from the thread's own slabs; NULL: take the lock. */
static inline void *tn_cache_alloc(tern_mem *mem, uint32_t arena, uint32_t class, uint64_t asked)
{
	tn_cache *cache = tn_cache_current(mem);
	void *ptr = NULL;
	tn_heap *heap;

	if (TN_UNLIKELY(!cache) || TN_UNLIKELY(!tn_cache_enter(cache)))
		return NULL;
	heap = atomic_load_explicit(&cache->heaps[arena], memory_order_relaxed);
	if (TN_LIKELY(heap != NULL)) {
		tn_heap_class *c = &heap->class[class];

		if (TN_LIKELY(atomic_load_explicit(&c->slab->free_mask, memory_order_relaxed) != 0) ||
		    tn_heap_next(&mem->arenas[arena], heap, class))
			ptr = tn_heap_take(c, &tn_classes[class], asked);
	}
	tn_cache_leave(cache);
	return ptr;
}

/* A slab that was looked up inside a turn. */
typedef struct tn_slab_ref {
	tn_ext *ext;
	tn_run *run;
	uint32_t object;
} tn_slab_ref;

/* The object of a slab that starts at ptr; false: none does. Inside a turn, or under the arena's lock. */
static inline bool tn_slab_find(const tern_mem *mem, const void *ptr, tn_slab_ref *ref)
{
	uint64_t offset;
	uint32_t page;

	ref->ext = tn_mem_ext_of(mem, ptr);
	if (TN_UNLIKELY(!ref->ext))
		return false;
	offset = (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ref->ext->pub.base);
	page = (uint32_t)(offset >> TN_PAGE_SHIFT);
	ref->run = &ref->ext->runs[ref->ext->runs[page].head];
	/* Inside a run of another kind `head` is a leftover. */
	if (ref->run->state != TN_RUN_SLAB || page - ref->run->head >= ref->run->pages)
		return false;
	offset -= (uint64_t)ref->run->head << TN_PAGE_SHIFT;
	ref->object = tn_class_object(&tn_classes[ref->run->class], offset);
	return (uint64_t)ref->object * tn_classes[ref->run->class].bytes == offset &&
	       ref->object < tn_classes[ref->run->class].objects;
}

/* Is the object live (not free, whoever freed it)? True answers hold only while the caller owns the block. */
static inline bool tn_slab_live(const tn_run *run, uint32_t object)
{
	return !((atomic_load_explicit(&run->free_mask, memory_order_relaxed) |
		  atomic_load_explicit(&run->remote_mask, memory_order_relaxed)) >>
			 object &
		 1);
}

/* Inside a turn of the owner, or with the heap stolen. The slab had no room, or has no live object now. */
void tn_heap_edge(tn_arena *arena, tn_heap *heap, tn_run *slab, uint64_t before, uint64_t after);
/* True: full up to its cap. */
bool tn_heap_over(const tern_mem *mem, const tn_heap *heap);

/* The owner, or a thief, frees an object that is live. */
static inline void tn_heap_put(tn_arena *arena, tn_heap *heap, tn_run *slab, uint32_t object)
{
	uint64_t before = atomic_load_explicit(&slab->free_mask, memory_order_relaxed);
	uint64_t after = before | 1ull << object;

	TN_ASSERT(before != after);
	atomic_store_explicit(&slab->free_mask, after, memory_order_relaxed);
	tn_count_own(&heap->class[slab->class].frees, 1);
	if (TN_UNLIKELY(before == 0) || TN_UNLIKELY(after == tn_class_full(&tn_classes[slab->class])))
		tn_heap_edge(arena, heap, slab, before, after);
}

/* What the caller hands to tn_cache_settle once it is outside: a heap that holds too much. 0 = nothing. */
static inline uint32_t tn_settle_of(uint32_t cache, const tn_arena *arena)
{
	return arena->index << 16 | cache;
}

/* A block of a slab that another cache owns. False: it was freed before. */
bool tn_cache_free_remote(tern_mem *mem, const tn_slab_ref *ref, uint32_t *settle);

/*
 * Free a block without the lock, into the thread's own cache or towards another's. False: nothing was done (it
 * has keys, is a run, is no live block, or somebody works on the cache).
 */
static inline bool tn_cache_free(tern_mem *mem, void *ptr, uint32_t *settle)
{
	tn_cache *cache = tn_cache_current(mem);
	bool done = false;
	tn_slab_ref ref;

	*settle = 0;
	if (TN_UNLIKELY(!cache) || TN_UNLIKELY(!tn_cache_enter(cache)))
		return false;
	if (TN_LIKELY(tn_slab_find(mem, ptr, &ref)) && TN_LIKELY(tn_slab_live(ref.run, ref.object)) &&
	    TN_LIKELY(!(atomic_load_explicit(&ref.run->key_mask, memory_order_relaxed) >> ref.object & 1))) {
		if (TN_LIKELY(ref.run->cache == cache->id)) {
			tn_arena *arena = ref.ext->arena;
			tn_heap *heap =
				atomic_load_explicit(&cache->heaps[arena->index], memory_order_relaxed);

			tn_heap_put(arena, heap, ref.run, ref.object);
			if (TN_UNLIKELY(heap->empty_slabs) && tn_heap_over(mem, heap))
				*settle = tn_settle_of(cache->id, arena);
			done = true;
		} else if (ref.run->cache != 0) {
			done = tn_cache_free_remote(mem, &ref, settle);
		}
	}
	tn_cache_leave(cache);
	return done;
}

/* ---- cache.c ---- */
void tn_caches_init(tern_mem *mem);
void tn_caches_destroy(tern_mem *mem);
/* The calling thread's cache, made or adopted if need be; NULL: it goes without. No lock held. */
tn_cache *tn_cache_get(tern_mem *mem);
static inline tn_cache *tn_cache_by_id(const tern_mem *mem, uint32_t id)
{
	return mem->caches[id - 1];
}
/* Arena's lock held. Slabs for the calling thread's cache, and one object of them. NULL: no page is left. */
void *tn_cache_refill(tn_arena *arena, tn_cache *cache, uint32_t class, uint64_t asked);
/* Arena's lock held. An object of a slab whose thread has ended. NULL: none. */
void *tn_cache_alloc_orphan(tn_arena *arena, uint32_t class, uint64_t asked);
/* Arena's lock held. Free an object of a cache's slab, whoever owns it. False: freed before. */
bool tn_cache_free_locked(tn_arena *arena, const tn_slab_ref *ref, uint32_t *settle);
/* No lock held. Bring a heap down to half of its cap, an orphan's to nothing. */
void tn_cache_settle(tern_mem *mem, uint32_t settle);
/*
 * Arena's lock held. Take what caches keep without need: what others freed into them, and empty slabs. Only of
 * those that did nothing since the last such call if `idle`.
 */
void tn_caches_reclaim(tn_arena *arena, bool idle);
/* Bytes that tn_caches_reclaim would find; a guess. */
uint64_t tn_caches_reclaimable(const tn_arena *arena);
/* Returns when each turn that was under way has ended. */
void tn_caches_passed(tern_mem *mem);
/* Arena's lock held: assert the heaps' invariants; add their blocks and bytes. */
void tn_caches_check(tn_arena *arena, uint64_t *blocks, uint64_t *bytes);
/* Sums over heaps of one arena. */
typedef struct tn_cache_sums {
	uint64_t allocs, blocks, used_bytes, free_bytes, waste_bytes, remote_frees;
} tn_cache_sums;
void tn_caches_sum(const tn_arena *arena, tn_cache_sums *sums);

#endif

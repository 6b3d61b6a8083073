/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread keeps of a pool, and the common path of small blocks: no lock, no locked instruction.
 *
 *   cache   one per (thread, pool); outlives its thread as an orphan, until another thread adopts it
 *   heap    the cache's part of one arena: slabs that it owns. Their free bits are its free lists, out of band
 *   turn    1 while the owner is inside; a plain store of a constant: nothing waits for the one before
 *   stolen  how many others work on heaps of the cache, or wait to
 *
 *   owner      turn = 1 ; stolen == 0 ? work without lock : wait for the arena's lock ; turn = 0
 *   any other  arena's lock ; stolen++ ; barrier in all threads ; until turn == 0 ; work ; stolen--
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
	uint64_t bytes;           /* of an object */
	tn_list room;             /* other slabs with free objects, empty ones last */
	_Atomic uint32_t slabs;   /* owned */
	uint16_t batch;           /* slabs to fetch next time */
	_Atomic uint16_t sampled;
} tn_heap_class;
_Static_assert(sizeof(tn_heap_class) == TN_CACHE_LINE, "one line per class");

typedef struct tn_heap {
	tn_heap_class *class;   /* [TN_CLASSES], in the cache */
	tn_counter empty_bytes; /* of slabs in `room` without live objects */
	uint32_t empty_slabs;
	tn_counter asked_bytes[TN_CLASSES]; /* of a sample of the allocs: those that took the lock */
	uint64_t allocs_seen;               /* when the helper last looked */
	alignas(TN_CACHE_LINE) _Atomic(tn_run *) remote_first;
	_Atomic uint64_t remote; /* freed by others, not taken over: blocks << 40 | bytes */
	tn_counter remote_frees;
} tn_heap;

typedef struct tn_cache {
	alignas(TN_CACHE_LINE) _Atomic uint32_t turn;
	uint16_t id;
	_Atomic(uintptr_t) owner; /* a thread's mark, 0 = orphan */
	_Atomic(tn_heap *) heaps[TN_ARENAS];
	alignas(TN_CACHE_LINE) _Atomic uint32_t stolen; /* or TN_STOLEN_FENCE */
	/* Here, so that the common path needs no heap. */
	alignas(TN_CACHE_LINE) tn_heap_class class[TN_ARENAS][TN_CLASSES];
} tn_cache;

/* The address is computed once and kept: where registers run out, each one saved is two instructions more. */
#define TN_ONE_REGISTER(pointer) __asm__("" : "+r"(pointer))

/* Set while the kernel has no membarrier: the common path, which has no fence, always meets a thief. */
#define TN_STOLEN_FENCE (1u << 31)

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
	TN_ASSERT(atomic_load_explicit(&cache->turn, memory_order_relaxed) == 0);
#ifdef TN_MEM_SYMMETRIC /* the thread sanitizer knows neither fences nor membarrier */
	atomic_exchange(&cache->turn, 1);
	if (TN_LIKELY((atomic_load(&cache->stolen) & ~TN_STOLEN_FENCE) == 0))
		return true;
#else
	atomic_store_explicit(&cache->turn, 1, memory_order_relaxed);
	if (TN_UNLIKELY(!tn_os_mem_asymmetric))
		atomic_thread_fence(memory_order_seq_cst);
	else
		atomic_signal_fence(memory_order_seq_cst);
	if (TN_LIKELY((atomic_load_explicit(&cache->stolen, memory_order_acquire) & ~TN_STOLEN_FENCE) == 0))
		return true;
#endif
	atomic_store_explicit(&cache->turn, 0, memory_order_release);
	return false;
}

/* The same for the common path; false too where a fence would be needed. */
static inline bool tn_cache_enter_light(tn_cache *cache)
{
#ifdef TN_MEM_SYMMETRIC
	return tn_cache_enter(cache);
#else
	TN_ASSERT(atomic_load_explicit(&cache->turn, memory_order_relaxed) == 0);
	atomic_store_explicit(&cache->turn, 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	if (TN_LIKELY(atomic_load_explicit(&cache->stolen, memory_order_acquire) == 0))
		return true;
	atomic_store_explicit(&cache->turn, 0, memory_order_release);
	return false;
#endif
}

static inline void tn_cache_leave(tn_cache *cache)
{
	TN_ASSERT(atomic_load_explicit(&cache->turn, memory_order_relaxed) == 1);
	atomic_store_explicit(&cache->turn, 0, memory_order_release);
}

/* Inside a turn. Another slab becomes the current one, without the lock; false: there is none. */
bool tn_heap_next(tn_arena *arena, tn_heap *heap, uint32_t class);

/* One object of the current slab, whose free objects are `mask`, not none. */
static inline void *tn_heap_take(tn_heap_class *c, uint64_t mask)
{
	TN_ASSERT(mask != 0);
	atomic_store_explicit(&c->slab->free_mask, mask & (mask - 1), memory_order_relaxed);
	tn_count_own(&c->allocs, 1);
	return c->base + (uint64_t)(unsigned)__builtin_ctzll(mask) * c->bytes;
}

static inline uint64_t tn_heap_mask(const tn_heap_class *c)
{
	return atomic_load_explicit(&c->slab->free_mask, memory_order_relaxed);
}

/* A block of the current slab, without a call or a list; false: tn_cache_alloc_any. */
static inline bool tn_cache_alloc(tern_mem *mem, uint32_t arena, uint32_t class, void **ptr)
{
	tn_cache *cache = tn_cache_mine_now.cache;
	tn_heap_class *c;
	uint64_t mask;

	if (TN_UNLIKELY(tn_cache_mine_now.pool != mem->id) || TN_UNLIKELY(!tn_cache_enter_light(cache)))
		return false;
	c = &cache->class[arena][class];
	TN_ONE_REGISTER(c);
	mask = tn_heap_mask(c);
	if (TN_LIKELY(mask != 0))
		*ptr = tn_heap_take(c, mask);
	tn_cache_leave(cache);
	return mask != 0;
}

/* A block of the class from the thread's own slabs; NULL: take the lock. */
static inline void *tn_cache_alloc_any(tern_mem *mem, uint32_t arena, uint32_t class)
{
	tn_cache *cache = tn_cache_current(mem);
	void *ptr = NULL;
	tn_heap *heap;

	if (TN_UNLIKELY(!cache) || TN_UNLIKELY(!tn_cache_enter(cache)))
		return NULL;
	heap = atomic_load_explicit(&cache->heaps[arena], memory_order_relaxed);
	if (TN_LIKELY(heap != NULL)) {
		tn_heap_class *c = &heap->class[class];

		if (TN_LIKELY(tn_heap_mask(c) != 0) || tn_heap_next(&mem->arenas[arena], heap, class))
			ptr = tn_heap_take(c, tn_heap_mask(c));
	}
	tn_cache_leave(cache);
	return ptr;
}

/* A slab that was looked up inside a turn. */
typedef struct tn_slab_ref {
	tn_ext *ext;
	tn_run *run;
	uint32_t object, entry; /* of slab_map */
} tn_slab_ref;

/* The object of a slab that starts at ptr; false: none does. Inside a turn, or under the arena's lock. */
static inline bool tn_slab_find(const tern_mem *mem, const void *ptr, tn_slab_ref *ref)
{
	const tn_class *class;
	uint64_t offset, page;

	ref->ext = tn_mem_ext_of(mem, ptr);
	if (TN_UNLIKELY(!ref->ext))
		return false;
	TN_ONE_REGISTER(ref->ext);
	offset = (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ref->ext->pub.base);
	page = offset >> TN_PAGE_SHIFT;
	ref->entry = ref->ext->slab_map[page];
	if (TN_UNLIKELY(ref->entry == 0))
		return false;
	page -= TN_SLAB_DISTANCE(ref->entry);
	class = &tn_classes[TN_SLAB_CLASS(ref->entry)];
	ref->run = &ref->ext->runs[page];
	/* No object's number is too large: they fill the slab's pages. */
	return tn_class_object_at(class, offset - (page << TN_PAGE_SHIFT), &ref->object);
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
void tn_heap_edge(tn_heap *heap, tn_run *slab, uint64_t before, uint64_t after);
#define TN_EMPTY_SLABS_MAX 512u
/* True: it keeps more than its cap. */
static inline bool tn_heap_over(const tern_mem *mem, const tn_heap *heap)
{
	return atomic_load_explicit(&heap->empty_bytes, memory_order_relaxed) > mem->cache_bytes ||
	       heap->empty_slabs > TN_EMPTY_SLABS_MAX;
}

/* The owner, or a thief, frees an object that is live. */
static inline void tn_heap_put(tn_heap *heap, tn_run *slab, uint32_t object)
{
	uint64_t before = atomic_load_explicit(&slab->free_mask, memory_order_relaxed);
	uint64_t after = before | 1ull << object;

	TN_ASSERT(before != after);
	atomic_store_explicit(&slab->free_mask, after, memory_order_relaxed);
	tn_count_own(&heap->class[slab->class].frees, 1);
	if (TN_UNLIKELY(before == 0) || TN_UNLIKELY(after == tn_class_full(&tn_classes[slab->class])))
		tn_heap_edge(heap, slab, before, after);
}

/* What the caller hands to tn_cache_settle once it is outside: a heap that holds too much. 0 = nothing. */
static inline uint32_t tn_settle_of(uint32_t cache, uint32_t arena)
{
	return arena << 16 | cache;
}

/* A block of a slab that another cache owns. The return value is that of tn_cache_free. */
int32_t tn_cache_free_remote(tern_mem *mem, tn_ext *ext, tn_run *run, uint32_t object);

/* An entry of slab_map has the arena's number beside the class: one index. */
static inline tn_heap_class *tn_cache_class_of(tn_cache *cache, uint32_t entry)
{
	return &cache->class[0][0] + (entry >> 6 & (TN_ARENAS * TN_CLASSES - 1));
}

typedef enum tn_light { TN_LIGHT_NOT, TN_LIGHT_DONE, TN_LIGHT_EDGE } tn_light;

static inline tn_light tn_slab_put_light(tn_cache *cache, const tn_slab_ref *ref, uint64_t *before)
{
	uint64_t mask = atomic_load_explicit(&ref->run->free_mask, memory_order_relaxed);
	uint64_t not = mask, bit = 1ull << ref->object;

	*before = mask;
	not |= atomic_load_explicit(&ref->run->remote_mask, memory_order_relaxed);
	not |= atomic_load_explicit(&ref->run->key_mask, memory_order_relaxed);
	if (TN_UNLIKELY(not &bit))
		return TN_LIGHT_NOT;
	atomic_store_explicit(&ref->run->free_mask, mask | bit, memory_order_relaxed);
	tn_count_own(&tn_cache_class_of(cache, ref->entry)->frees, 1);
	if (TN_UNLIKELY(mask == 0) ||
	    TN_UNLIKELY((mask | bit) == tn_class_full(&tn_classes[TN_SLAB_CLASS(ref->entry)])))
		return TN_LIGHT_EDGE;
	return TN_LIGHT_DONE;
}

/*
 * Free a block of the thread's own: a bit and a count. TN_LIGHT_NOT: nothing was done, tn_cache_free.
 * TN_LIGHT_EDGE: the slab had no room or has no live object now, and the turn goes on: tn_cache_free_edge.
 */
static inline tn_light tn_cache_free_own(tern_mem *mem, void *ptr, tn_slab_ref *ref, uint64_t *before)
{
	tn_cache *cache = tn_cache_mine_now.cache;
	tn_light done = TN_LIGHT_NOT;

	if (TN_UNLIKELY(tn_cache_mine_now.pool != mem->id) || TN_UNLIKELY(!tn_cache_enter_light(cache)))
		return TN_LIGHT_NOT;
	if (TN_LIKELY(tn_slab_find(mem, ptr, ref)) && TN_LIKELY(ref->run->cache == cache->id)) {
		done = tn_slab_put_light(cache, ref, before);
		if (TN_UNLIKELY(done == TN_LIGHT_EDGE))
			return done;
	}
	tn_cache_leave(cache);
	return done;
}

/* The rest of such a free; ends the turn. */
void tn_cache_free_edge(tern_mem *mem, tn_run *slab, uint32_t arena, uint64_t before);

/*
 * Free a block without the lock, into the thread's own cache or towards another's. Below 0: nothing was done (it
 * has keys, is a run, is no live block, or somebody works on the cache); above: tn_cache_settle. By value
 * throughout: nothing here lives in memory.
 */
#define TN_FREE_NOT_DONE (-1)
static inline int32_t tn_cache_free(tern_mem *mem, void *ptr)
{
	tn_cache *cache = tn_cache_current(mem);
	int32_t result = TN_FREE_NOT_DONE;
	tn_slab_ref ref;

	if (TN_UNLIKELY(!cache) || TN_UNLIKELY(!tn_cache_enter(cache)))
		return TN_FREE_NOT_DONE;
	if (TN_LIKELY(tn_slab_find(mem, ptr, &ref)) && TN_LIKELY(tn_slab_live(ref.run, ref.object)) &&
	    TN_LIKELY(!(atomic_load_explicit(&ref.run->key_mask, memory_order_relaxed) >> ref.object & 1))) {
		if (TN_LIKELY(ref.run->cache == cache->id)) {
			tn_heap *heap = atomic_load_explicit(&cache->heaps[ref.ext->arena_index],
							     memory_order_relaxed);

			tn_heap_put(heap, ref.run, ref.object);
			result = 0;
			if (TN_UNLIKELY(heap->empty_slabs) && tn_heap_over(mem, heap))
				result = (int32_t)tn_settle_of(cache->id, ref.ext->arena_index);
		} else if (ref.run->cache != 0) {
			result = tn_cache_free_remote(mem, ref.ext, ref.run, ref.object);
		}
	}
	tn_cache_leave(cache);
	return result;
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
void *tn_cache_alloc_orphan(tn_arena *arena, uint32_t class);
/* Arena's lock held. Free an object of a cache's slab, whoever owns it. As tn_cache_free. */
int32_t tn_cache_free_locked(tn_arena *arena, tn_ext *ext, tn_run *run, uint32_t object);
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

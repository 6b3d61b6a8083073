/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns thread caches: their birth, adoption and end, the exchange of slabs with the arena, and what other
 * threads do to them. The protocol and the common path are in cache.h.
 *
 *   none --first small block--> owned --thread ends--> orphan --a new thread--> owned --pool goes--> freed
 *
 * Every cache has a cap in bytes and in slabs: empty slabs beyond it go back to the arena, and whoever frees
 * more than it into the cache of a thread that does not look takes them over in its place.
 *
 * Must not grow the arena or touch blocks. Threads: each function says. Tests: tests/unit/mem/test_cache.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "mem/cache.h"

#define BATCH_MAX       16u
#define BATCH_BYTES_MAX (128ull << 10)
#define SPINS_MAX       200u
#define WAIT_STEP_NS    (20 * TN_NS_PER_US)

__thread tn_cache_mine tn_cache_mine_now;

/* Stands where a heap has no current slab: without room, owned by nobody. */
static tn_run none;

/* The caches of this thread, one per pool. */
typedef struct tn_record {
	struct tn_record *next;
	uint64_t pool;
	tn_cache *cache;
} tn_record;
static __thread tn_record *records;

static pthread_key_t ends_key;
static bool ends_key_made;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static inline uintptr_t my_mark(void)
{
	return (uintptr_t)&tn_cache_mine_now;
}

static inline uint64_t slab_bytes(uint32_t class)
{
	return (uint64_t)tn_classes[class].pages << TN_PAGE_SHIFT;
}

static inline uint64_t free_mask(const tn_run *slab)
{
	return atomic_load_explicit(&slab->free_mask, memory_order_relaxed);
}

static inline bool is_empty(const tn_run *slab)
{
	return free_mask(slab) == tn_class_full(&tn_classes[slab->class]);
}

static inline tn_heap *heap_of(const tn_cache *cache, const tn_arena *arena)
{
	return atomic_load_explicit(&cache->heaps[arena->index], memory_order_acquire);
}

/* ---- inside a turn, or with the arena's lock and the right to the heap ---- */

static void count_empty(tn_heap *heap, const tn_run *slab, bool more)
{
	uint64_t bytes = slab_bytes(slab->class);

	TN_ASSERT(more || (heap->empty_slabs > 0 && heap->empty_bytes >= bytes));
	tn_count_own(&heap->empty_bytes, more ? bytes : 0 - bytes);
	heap->empty_slabs += more ? 1u : ~0u;
}

static void room_add(tn_heap *heap, tn_run *slab)
{
	if (is_empty(slab)) {
		tn_list_push_back(&heap->class[slab->class].room, &slab->link);
		count_empty(heap, slab, true);
	} else {
		tn_list_push_front(&heap->class[slab->class].room, &slab->link);
	}
}

void tn_heap_edge(tn_heap *heap, tn_run *slab, uint64_t before, uint64_t after)
{
	TN_ASSERT(after == free_mask(slab) && after != 0);
	if (slab == heap->class[slab->class].slab)
		return;
	TN_ASSERT(tn_list_linked(&slab->link) == (before != 0));
	tn_list_remove(&slab->link);
	room_add(heap, slab);
}

/* Take over what others freed. */
static void take_over(tn_heap *heap)
{
	tn_run *slab;

	if (atomic_load_explicit(&heap->remote_first, memory_order_relaxed) == NULL)
		return;
	slab = atomic_exchange(&heap->remote_first, NULL);
	while (slab) {
		tn_run *next = slab->remote_next;
		uint64_t mask = atomic_exchange_explicit(&slab->remote_mask, 0, memory_order_acq_rel);
		uint64_t before = free_mask(slab), n = (uint64_t)__builtin_popcountll(mask);

		TN_ASSERT(mask != 0 && (before & mask) == 0);
		atomic_store_explicit(&slab->free_mask, before | mask, memory_order_relaxed);
		tn_count_own(&heap->class[slab->class].frees, n);
		tn_count_own(&heap->remote_frees, n);
		atomic_fetch_sub_explicit(&heap->remote, n * (TN_REMOTE_ONE + tn_classes[slab->class].bytes),
					  memory_order_relaxed);
		if (before == 0 || is_empty(slab))
			tn_heap_edge(heap, slab, before, before | mask);
		slab = next;
	}
}

static void set_current(tern_mem *mem, tn_heap_class *c, tn_run *slab)
{
	TN_ASSERT(!tn_list_linked(&slab->link));
	c->slab = slab;
	c->base = tn_run_base(&mem->ext[slab->slot], slab);
}

bool tn_heap_next(tn_arena *arena, tn_heap *heap, uint32_t class)
{
	tn_heap_class *c = &heap->class[class];
	tn_run *slab = TN_LIST_FIRST(&c->room, tn_run, link);

	TN_ASSERT(free_mask(c->slab) == 0);
	if (!slab || is_empty(slab)) {
		take_over(heap);
		if (free_mask(c->slab) != 0)
			return true;
		slab = TN_LIST_FIRST(&c->room, tn_run, link);
	}
	if (!slab)
		return false;
	tn_list_remove(&slab->link);
	if (is_empty(slab))
		count_empty(heap, slab, false);
	set_current(arena->mem, c, slab);
	return true;
}

/* Arena's lock held. Give empty slabs back until at most that much is kept; 0: the current ones too. */
static void give_back(tn_arena *arena, tn_heap *heap, uint64_t keep_bytes)
{
	for (uint32_t i = TN_CLASSES; i-- > 0;) {
		tn_heap_class *c = &heap->class[i];

		while (!tn_list_empty(&c->room)) {
			tn_run *slab = TN_LIST_ENTRY(c->room.prev, tn_run, link);

			if (!is_empty(slab) || (tn_counter_read(&heap->empty_bytes) <= keep_bytes &&
						heap->empty_slabs <= TN_EMPTY_SLABS_MAX / 2))
				break;
			tn_list_remove(&slab->link);
			count_empty(heap, slab, false);
			c->slabs--;
			tn_slab_give(arena, slab);
		}
		c->batch = 1;
		if (keep_bytes == 0 && c->slab != &none && is_empty(c->slab)) {
			tn_run *slab = c->slab;

			c->slab = &none;
			c->slabs--;
			tn_slab_give(arena, slab);
		}
	}
}

/* ---- other threads ---- */

static inline bool is_orphan(const tn_cache *cache)
{
	return atomic_load(&cache->owner) == 0;
}

/* Stolen, and past the barrier: the owner leaves, and is turned away when it comes again. */
static void wait_turn(const tn_cache *cache)
{
	for (uint32_t spins = 0; atomic_load(&cache->turn) != 0; spins++) {
		if (spins < SPINS_MAX)
			tn_cpu_relax();
		else
			tn_sleep_ns(WAIT_STEP_NS); /* it was preempted inside */
	}
}

static void steal(tn_cache *cache)
{
	atomic_fetch_add(&cache->stolen, 1);
	tn_os_mem_barrier();
	wait_turn(cache);
}

static void unsteal(tn_cache *cache)
{
	atomic_fetch_sub(&cache->stolen, 1);
}

static inline uint32_t cache_count(const tern_mem *mem)
{
	return atomic_load_explicit(&mem->cache_count, memory_order_acquire);
}

void tn_caches_passed(tern_mem *mem)
{
	uint32_t count = cache_count(mem);

	if (count == 0)
		return;
	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_add(&mem->caches[i]->stolen, 1);
	tn_os_mem_barrier();
	for (uint32_t i = 0; i < count; i++) {
		wait_turn(mem->caches[i]);
		unsteal(mem->caches[i]);
	}
}

static void remote_push(tn_heap *heap, tn_run *slab)
{
	tn_run *first = atomic_load_explicit(&heap->remote_first, memory_order_relaxed);

	do {
		slab->remote_next = first;
	} while (!atomic_compare_exchange_weak(&heap->remote_first, &first, slab));
}

int32_t tn_cache_free_remote(tern_mem *mem, tn_ext *ext, tn_run *run, uint32_t object)
{
	tn_cache *cache = tn_cache_by_id(mem, run->cache);
	tn_heap *heap = heap_of(cache, ext->arena);
	uint64_t bit = 1ull << object, bytes = tn_classes[run->class].bytes;
	uint64_t had = atomic_fetch_add_explicit(&heap->remote, TN_REMOTE_ONE + bytes, memory_order_relaxed);
	uint64_t before = atomic_fetch_or_explicit(&run->remote_mask, bit, memory_order_acq_rel);
	bool settle = false;

	if (before & bit) {
		atomic_fetch_sub_explicit(&heap->remote, TN_REMOTE_ONE + bytes, memory_order_relaxed);
		return TN_FREE_NOT_DONE;
	}
	had &= TN_REMOTE_BYTES;
	if (before == 0) {
		remote_push(heap, run);
		/* Either the thread that ends sees what was pushed, or its end is seen here. */
		settle = is_orphan(cache);
	}
	/* The cap is crossed: once per its size. No division, this is a common path. */
	if (had < mem->cache_bytes && had + bytes >= mem->cache_bytes)
		settle = true;
	return settle ? (int32_t)tn_settle_of(cache->id, ext->arena_index) : 0;
}

/* Arena's lock held: orphans stay orphans. */
static bool mine_or_orphan(const tn_cache *cache)
{
	uintptr_t owner = atomic_load(&cache->owner);

	return owner == 0 || owner == my_mark();
}

int32_t tn_cache_free_locked(tn_arena *arena, tn_ext *ext, tn_run *run, uint32_t object)
{
	tn_cache *cache = tn_cache_by_id(arena->mem, run->cache);
	tn_heap *heap = heap_of(cache, arena);

	if (!tn_slab_live(run, object))
		return TN_FREE_NOT_DONE;
	if (!mine_or_orphan(cache))
		return tn_cache_free_remote(arena->mem, ext, run, object);
	tn_heap_put(heap, run, object);
	if (is_orphan(cache)) {
		take_over(heap);
		give_back(arena, heap, 0);
	} else if (tn_heap_over(arena->mem, heap)) {
		give_back(arena, heap, arena->mem->cache_bytes / 2);
	}
	return 0;
}

void tn_cache_settle(tern_mem *mem, uint32_t settle)
{
	tn_cache *cache = tn_cache_by_id(mem, settle & 0xffff);
	tn_arena *arena = &mem->arenas[settle >> 16];
	tn_heap *heap = heap_of(cache, arena);
	bool mine;

	pthread_mutex_lock(&arena->lock);
	mine = mine_or_orphan(cache);
	if (!mine)
		steal(cache);
	take_over(heap);
	if (is_orphan(cache))
		give_back(arena, heap, 0);
	else if (tn_heap_over(mem, heap))
		give_back(arena, heap, mem->cache_bytes / 2);
	if (!mine)
		unsteal(cache);
	pthread_mutex_unlock(&arena->lock);
}

void tn_cache_free_edge(tern_mem *mem, tn_run *slab, uint32_t arena, uint64_t before)
{
	tn_cache *cache = tn_cache_mine_now.cache;
	tn_heap *heap = heap_of(cache, &mem->arenas[arena]);
	bool over;

	tn_heap_edge(heap, slab, before, free_mask(slab));
	over = tn_heap_over(mem, heap);
	tn_cache_leave(cache);
	if (TN_UNLIKELY(over))
		tn_cache_settle(mem, tn_settle_of(cache->id, arena));
}

static uint64_t heap_allocs(const tn_heap *heap)
{
	uint64_t allocs = 0;

	for (uint32_t i = 0; i < TN_CLASSES; i++)
		allocs += tn_counter_read(&heap->class[i].allocs);
	return allocs;
}

void tn_caches_reclaim(tn_arena *arena, bool idle)
{
	tern_mem *mem = arena->mem;
	uint32_t count = cache_count(mem);

	if (count == 0)
		return;
	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_add(&mem->caches[i]->stolen, 1);
	tn_os_mem_barrier();
	for (uint32_t i = 0; i < count; i++) {
		tn_heap *heap = heap_of(mem->caches[i], arena);
		uint64_t allocs = heap ? heap_allocs(heap) : 0;

		wait_turn(mem->caches[i]);
		if (heap && (!idle || heap->allocs_seen == allocs)) {
			take_over(heap);
			give_back(arena, heap, 0);
		}
		if (heap)
			heap->allocs_seen = allocs;
		unsteal(mem->caches[i]);
	}
}

uint64_t tn_caches_reclaimable(const tn_arena *arena)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0, count = cache_count(arena->mem); i < count; i++) {
		const tn_heap *heap = heap_of(arena->mem->caches[i], arena);

		if (heap)
			bytes +=
				tn_counter_read(&heap->empty_bytes) +
				(atomic_load_explicit(&heap->remote, memory_order_relaxed) & TN_REMOTE_BYTES);
	}
	return bytes;
}

/* ---- slabs for a heap; the arena's lock is held ---- */

static tn_heap *heap_make(tn_cache *cache, tn_arena *arena)
{
	tn_heap *heap = heap_of(cache, arena);

	if (heap)
		return heap;
	heap = TN_FAULT("mem.cache.heap") ? NULL : aligned_alloc(TN_CACHE_LINE, sizeof(*heap));
	if (!heap)
		return NULL;
	memset(heap, 0, sizeof(*heap));
	heap->class = cache->class[arena->index];
	for (uint32_t i = 0; i < TN_CLASSES; i++) {
		heap->class[i].batch = 1;
		tn_list_init(&heap->class[i].room);
	}
	atomic_store_explicit(&cache->heaps[arena->index], heap, memory_order_release);
	return heap;
}

/* What is asked for, for the estimate of waste: halved now and then, so that it follows the program. */
static void sample(tn_heap_class *c, tn_counter *asked_bytes, uint64_t asked)
{
	uint16_t n = c->sampled;

	if (n >= 1024) {
		n /= 2;
		tn_count_set(asked_bytes, tn_counter_read(asked_bytes) / 2);
	}
	c->sampled = (uint16_t)(n + 1);
	tn_count_own(asked_bytes, asked);
}

void *tn_cache_refill(tn_arena *arena, tn_cache *cache, uint32_t class, uint64_t asked)
{
	tn_heap *heap = heap_make(cache, arena);
	tn_heap_class *c;

	if (!heap)
		return NULL;
	c = &heap->class[class];
	if (free_mask(c->slab) == 0 && !tn_heap_next(arena, heap, class)) {
		tn_run *slab = tn_slab_take(arena, class, cache->id);

		if (!slab)
			return NULL;
		c->slabs++;
		set_current(arena->mem, c, slab);
		for (uint32_t i = 1; i < c->batch && (slab = tn_slab_take(arena, class, cache->id)); i++) {
			c->slabs++;
			room_add(heap, slab);
		}
		if (c->batch < BATCH_MAX && c->batch * 2 * slab_bytes(class) <= BATCH_BYTES_MAX)
			c->batch = (uint16_t)(c->batch * 2);
	}
	sample(c, &heap->asked_bytes[class], asked);
	return tn_heap_take(c, free_mask(c->slab));
}

void *tn_cache_alloc_orphan(tn_arena *arena, uint32_t class)
{
	tern_mem *mem = arena->mem;

	for (uint32_t i = 0, count = cache_count(mem); i < count && mem->orphans; i++) {
		tn_heap *heap = heap_of(mem->caches[i], arena);

		if (!heap || !is_orphan(mem->caches[i]))
			continue;
		if (free_mask(heap->class[class].slab) != 0 || tn_heap_next(arena, heap, class))
			return tn_heap_take(&heap->class[class], free_mask(heap->class[class].slab));
	}
	return NULL;
}

/* ---- birth and end ---- */

static void orphan(tern_mem *mem, tn_cache *cache)
{
	atomic_fetch_add(&mem->orphans, 1);
	atomic_store(&cache->owner, 0);
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		tn_arena *arena = &mem->arenas[i];
		tn_heap *heap = heap_of(cache, arena);

		if (!heap)
			continue;
		pthread_mutex_lock(&arena->lock);
		if (is_orphan(cache)) {
			take_over(heap);
			give_back(arena, heap, 0);
		}
		pthread_mutex_unlock(&arena->lock);
	}
}

/* A thread ends: its caches become orphans. Pools that are gone took theirs with them. */
static void thread_ends(void *arg)
{
	tn_record *record = records;

	(void)arg;
	records = NULL;
	tn_cache_mine_now = (tn_cache_mine){0};
	while (record) {
		tn_record *next = record->next;
		tern_mem *mem;

		tn_pools_lock();
		mem = tn_pools_find(record->pool);
		if (mem)
			orphan(mem, record->cache);
		tn_pools_unlock();
		free(record);
		record = next;
	}
}

static void make_key(void)
{
	ends_key_made = pthread_key_create(&ends_key, thread_ends) == 0;
}

/* The thread that forked has no cache in the child, so that the common path need not ask where it is. */
static void forget(void)
{
	tn_cache_mine_now = (tn_cache_mine){0};
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forget);
}

/* The library may be unloaded while threads live on. */
__attribute__((destructor)) static void drop_key(void)
{
	if (ends_key_made)
		pthread_key_delete(ends_key);
	ends_key_made = false;
}

/* The caches' lock is held. */
static tn_cache *adopt(tern_mem *mem)
{
	for (uint32_t i = 0, count = cache_count(mem); i < count && mem->orphans; i++) {
		tn_cache *cache = mem->caches[i];

		if (!is_orphan(cache))
			continue;
		/* Who holds an arena's lock may rely on an orphan's staying one. */
		for (uint32_t a = 0; a < TN_ARENAS; a++)
			pthread_mutex_lock(&mem->arenas[a].lock);
		atomic_store(&cache->owner, my_mark());
		atomic_fetch_sub(&mem->orphans, 1);
		for (uint32_t a = TN_ARENAS; a-- > 0;)
			pthread_mutex_unlock(&mem->arenas[a].lock);
		return cache;
	}
	return NULL;
}

static tn_cache *make(tern_mem *mem)
{
	uint32_t count = cache_count(mem);
	tn_cache *cache = NULL;

	if (count < TN_CACHES_MAX && !TN_FAULT("mem.cache.make"))
		cache = aligned_alloc(TN_CACHE_LINE, sizeof(*cache));
	if (!cache)
		return NULL;
	memset(cache, 0, sizeof(*cache));
	for (uint32_t i = 0; i < TN_ARENAS * TN_CLASSES; i++) {
		cache->class[i / TN_CLASSES][i % TN_CLASSES].slab = &none;
		cache->class[i / TN_CLASSES][i % TN_CLASSES].bytes = tn_classes[i % TN_CLASSES].bytes;
	}
	atomic_store(&cache->stolen, tn_os_mem_asymmetric ? 0 : TN_STOLEN_FENCE);
	cache->id = (uint16_t)(count + 1);
	atomic_store(&cache->owner, my_mark());
	mem->caches[count] = cache;
	atomic_store_explicit(&mem->cache_count, count + 1, memory_order_release);
	return cache;
}

/* Forget pools that are gone, so that a thread that sees many keeps few records. */
static void prune(void)
{
	tn_pools_lock();
	for (tn_record **at = &records; *at;) {
		tn_record *record = *at;

		if (tn_pools_find(record->pool)) {
			at = &record->next;
		} else {
			*at = record->next;
			free(record);
		}
	}
	tn_pools_unlock();
}

static tn_cache *enrol(tern_mem *mem)
{
	tn_record *record;
	tn_cache *cache;

	pthread_once(&once, make_key);
	prune();
	record = TN_FAULT("mem.cache.record") ? NULL : malloc(sizeof(*record));
	/* Without the call at its end, a thread's blocks would be stranded: rather no cache. */
	if (!record || !ends_key_made || pthread_setspecific(ends_key, &records) != 0) {
		free(record);
		return NULL;
	}
	pthread_mutex_lock(&mem->caches_lock);
	cache = adopt(mem);
	if (!cache)
		cache = make(mem);
	pthread_mutex_unlock(&mem->caches_lock);
	if (!cache) {
		free(record);
		return NULL;
	}
	*record = (tn_record){.next = records, .pool = mem->id, .cache = cache};
	records = record;
	return cache;
}

tn_cache *tn_cache_get(tern_mem *mem)
{
	tn_cache *cache = tn_cache_current(mem);

	if (cache || mem->cache_bytes == 0)
		return cache;
	for (const tn_record *record = records; record && !cache; record = record->next)
		cache = record->pool == mem->id ? record->cache : NULL;
	if (!cache)
		cache = enrol(mem);
	if (cache)
		tn_cache_mine_now = (tn_cache_mine){.pool = mem->id, .cache = cache};
	return cache;
}

void tn_caches_init(tern_mem *mem)
{
	pthread_mutex_init(&mem->caches_lock, NULL);
	tn_os_mem_barrier_init();
}

void tn_caches_destroy(tern_mem *mem)
{
	for (uint32_t i = 0, count = cache_count(mem); i < count; i++) {
		for (uint32_t a = 0; a < TN_ARENAS; a++)
			free(mem->caches[i]->heaps[a]);
		free(mem->caches[i]);
	}
	pthread_mutex_destroy(&mem->caches_lock);
}

/* ---- sums and checks ---- */

static void sum_class(const tn_heap *heap, uint32_t class, tn_cache_sums *sums)
{
	const tn_heap_class *c = &heap->class[class];
	uint64_t frees = tn_counter_read(&c->frees), allocs = tn_counter_read(&c->allocs);
	uint64_t asked = tn_counter_read(&heap->asked_bytes[class]), bytes = tn_classes[class].bytes;
	uint64_t live = allocs > frees ? allocs - frees : 0, sampled = c->sampled;

	sums->allocs += allocs;
	sums->blocks += live;
	sums->used_bytes += live * bytes;
	if (sampled && sampled * bytes > asked)
		sums->waste_bytes += live * (sampled * bytes - asked) / sampled;
	sums->free_bytes += atomic_load_explicit(&c->slabs, memory_order_relaxed) * slab_bytes(class);
}

void tn_caches_sum(const tn_arena *arena, tn_cache_sums *sums)
{
	*sums = (tn_cache_sums){0};
	for (uint32_t i = 0, count = cache_count(arena->mem); i < count; i++) {
		const tn_heap *heap = heap_of(arena->mem->caches[i], arena);
		uint64_t pending;

		if (!heap)
			continue;
		pending = atomic_load_explicit(&heap->remote, memory_order_relaxed);
		for (uint32_t class = 0; class < TN_CLASSES; class ++)
			sum_class(heap, class, sums);
		sums->blocks -= TN_MIN(sums->blocks, pending / TN_REMOTE_ONE);
		sums->used_bytes -= TN_MIN(sums->used_bytes, pending & TN_REMOTE_BYTES);
		sums->remote_frees += tn_counter_read(&heap->remote_frees) + pending / TN_REMOTE_ONE;
	}
	sums->free_bytes -= TN_MIN(sums->free_bytes, sums->used_bytes);
}

static void check_heap(const tn_cache *cache, tn_heap *heap)
{
	uint64_t empty_bytes = 0;
	uint32_t empty_slabs = 0;

	for (uint32_t i = 0; i < TN_CLASSES; i++) {
		const tn_heap_class *c = &heap->class[i];
		bool empties = false;

		TN_ASSERT(c->slab == &none || (c->slab->cache == cache->id && c->slab->class == i));
		TN_ASSERT(c->slab == &none || !tn_list_linked(&c->slab->link));
		TN_LIST_FOREACH(node, &c->room) {
			const tn_run *slab = TN_LIST_ENTRY(node, tn_run, link);

			TN_ASSERT(slab->state == TN_RUN_SLAB && slab->cache == cache->id && slab->class == i);
			TN_ASSERT(free_mask(slab) != 0 && slab != c->slab);
			TN_ASSERT(!empties || is_empty(slab));
			empties = is_empty(slab);
			empty_slabs += empties;
			empty_bytes += empties ? slab_bytes(i) : 0;
		}
	}
	TN_ASSERT_MSG(empty_slabs == heap->empty_slabs && empty_bytes == heap->empty_bytes,
		      "%u slabs, counted %u", empty_slabs, heap->empty_slabs);
}

void tn_caches_check(tn_arena *arena, uint64_t *blocks, uint64_t *bytes)
{
	tern_mem *mem = arena->mem;
	tn_cache_sums sums;

	for (uint32_t i = 0, count = cache_count(mem); i < count; i++) {
		tn_heap *heap = heap_of(mem->caches[i], arena);

		if (!heap)
			continue;
		steal(mem->caches[i]);
		check_heap(mem->caches[i], heap);
		unsteal(mem->caches[i]);
	}
	tn_caches_sum(arena, &sums);
	*blocks += sums.blocks;
	*bytes += sums.used_bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns thread caches: their birth, end and next owner, what other threads do to them, and sums over them. The
 * protocol and the common path are in cache.h, the way of objects in magazine.c.
 *
 *   none --first small block--> owned --thread ends--> empty, without owner --a new thread--> owned
 *   pool goes: those without owner are freed, the others by their threads, which find them GONE
 *
 * Must not grow the arena or touch blocks. Threads: each function says. Tests: tests/unit/mem/test_cache.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "mem/cache.h"

#define SPINS_MAX    200u
#define WAIT_STEP_NS (20 * TN_NS_PER_US)

__thread tn_cache_mine tn_cache_mine_now = {.mem = TN_CACHE_NOBODY};

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

static inline uint32_t cache_count(const tern_mem *mem)
{
	return atomic_load_explicit(&mem->cache_count, memory_order_acquire);
}

/* ---- other threads ---- */

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

/* All caches that there are now, with one barrier. Returns how many. */
static uint32_t steal_all(tern_mem *mem)
{
	uint32_t count = cache_count(mem);

	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_add(&mem->caches[i]->stolen, 1);
	if (count)
		tn_os_mem_barrier();
	for (uint32_t i = 0; i < count; i++)
		wait_turn(mem->caches[i]);
	return count;
}

static void unsteal_all(tern_mem *mem, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		atomic_fetch_sub(&mem->caches[i]->stolen, 1);
}

void tn_caches_passed(tern_mem *mem)
{
	unsteal_all(mem, steal_all(mem));
}

void tn_caches_reclaim(tn_arena *arena, bool idle)
{
	tern_mem *mem = arena->mem;
	uint32_t count = tn_caches_kept(arena) ? steal_all(mem) : 0;

	for (uint32_t i = 0; i < count; i++)
		tn_cache_flush(arena, mem->caches[i], idle);
	unsteal_all(mem, count);
	tn_slab_trim(arena);
}

void tn_caches_parked(tern_mem *mem)
{
	bool any;

	pthread_mutex_lock(&mem->caches_lock);
	any = atomic_load(&mem->guards.parked_count) != 0;
	for (uint32_t i = 0, count = cache_count(mem); i < count; i++) {
		if (any)
			atomic_fetch_or(&mem->caches[i]->stolen, TN_CLOSED_PARKED);
		else
			atomic_fetch_and(&mem->caches[i]->stolen, ~TN_CLOSED_PARKED);
	}
	pthread_mutex_unlock(&mem->caches_lock);
}

/* ---- birth and end ---- */

/* Its owner ends; pools' lock held. */
static void abandon(tern_mem *mem, tn_cache *cache)
{
	for (uint32_t i = 0; i < TN_CACHED_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		tn_cache_flush(&mem->arenas[i], cache, false);
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
}

/* The pool went before this thread did. */
static bool is_gone(const tn_cache *cache)
{
	return atomic_load(&cache->stolen) & TN_CLOSED_GONE;
}

/* Drop the records of pools that are gone, so that a thread that sees many keeps few. */
static void prune(void)
{
	for (tn_record **at = &records; *at;) {
		tn_record *record = *at;

		if (!is_gone(record->cache)) {
			at = &record->next;
			continue;
		}
		if (tn_cache_mine_now.cache == record->cache)
			tn_cache_mine_now = (tn_cache_mine){.mem = TN_CACHE_NOBODY};
		*at = record->next;
		free(record->cache);
		free(record);
	}
}

/* A thread ends: its caches are given back. */
static void thread_ends(void *arg)
{
	(void)arg;
	tn_cache_mine_now = (tn_cache_mine){.mem = TN_CACHE_NOBODY};
	tn_pools_lock();
	prune();
	while (records) {
		tn_record *record = records;
		tern_mem *mem = tn_pools_find(record->pool);

		if (mem)
			abandon(mem, record->cache);
		/* If the pool is on its way out, it frees what nobody owns. In a forked child nobody looks. */
		atomic_store(&record->cache->owner, 0);
		records = record->next;
		free(record);
	}
	tn_pools_unlock();
}

static void make_key(void)
{
	ends_key_made = pthread_key_create(&ends_key, thread_ends) == 0;
}

/* The thread that forked has no cache in the child, so that the common path need not ask where it is. */
static void forget(void)
{
	tn_cache_mine_now = (tn_cache_mine){.mem = TN_CACHE_NOBODY};
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
	for (uint32_t i = 0, count = cache_count(mem); i < count; i++) {
		uintptr_t none = 0;

		if (atomic_compare_exchange_strong(&mem->caches[i]->owner, &none, my_mark()))
			return mem->caches[i];
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
	cache->base = mem->base;
	cache->lines = mem->reserved >> TN_LINE_SHIFT;
	cache->marks = mem->marks;
	cache->pool = mem->id;
	cache->id = (uint16_t)(count + 1);
	cache->owner = my_mark();
	cache->stolen = (tn_os_mem_asymmetric ? 0 : TN_CLOSED_FENCE) |
			(mem->guards.parked_count ? TN_CLOSED_PARKED : 0);
	tn_magazines_init(cache);
	mem->caches[count] = cache;
	atomic_store_explicit(&mem->cache_count, count + 1, memory_order_release);
	return cache;
}

static tn_cache *enrol(tern_mem *mem)
{
	tn_record *record;
	tn_cache *cache;

	pthread_once(&once, make_key);
	prune();
	record = TN_FAULT("mem.cache.record") ? NULL : malloc(sizeof(*record));
	/* Without the call at its end, what a thread keeps would be stranded: rather no cache. */
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
		tn_cache_mine_now = (tn_cache_mine){.mem = mem, .cache = cache};
	return cache;
}

void tn_caches_init(tern_mem *mem)
{
	pthread_mutex_init(&mem->caches_lock, NULL);
	tn_os_mem_barrier_init();
}

void tn_caches_destroy(tern_mem *mem)
{
	tn_pools_lock(); /* threads that end meanwhile */
	for (uint32_t i = 0, count = cache_count(mem); i < count; i++) {
		tn_cache *cache = mem->caches[i];

		tn_magazines_fini(cache);
		if (atomic_load(&cache->owner) == 0)
			free(cache);
		else
			atomic_store(&cache->stolen,
				     TN_CLOSED_GONE); /* its thread may free it from here on */
	}
	tn_pools_unlock();
	prune();
	pthread_mutex_destroy(&mem->caches_lock);
}

/* ---- sums and checks ---- */

uint64_t tn_caches_kept(const tn_arena *arena)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0, count = cache_count(arena->mem); i < count; i++) {
		tn_cache *cache = arena->mem->caches[i];

		if (arena->index >= TN_CACHED_ARENAS || !cache->spares[arena->index])
			continue;
		for (uint32_t class = 0; class < TN_CLASSES; class ++)
			bytes += tn_classes[class].bytes *
				 tn_magazine_count(tn_magazine_of(cache, arena, class));
	}
	return bytes;
}

static void sum_class(const tn_arena *arena, uint32_t class, tn_cache_sums *sums)
{
	const tn_bank *bank = &arena->banks[class];
	uint64_t kept = 0, live, bytes = tn_classes[class].bytes;

	for (uint32_t i = 0, count = cache_count(arena->mem); i < count; i++) {
		const tn_magazine *magazine;

		if (arena->index >= TN_CACHED_ARENAS)
			break;
		magazine = tn_magazine_of(arena->mem->caches[i], arena, class);
		kept += tn_magazine_count(magazine);
		sums->allocs += tn_counter_read(&magazine[TN_ALLOCS].allocs);
	}
	live = bank->out - TN_MIN(kept, bank->out);
	sums->blocks += live;
	sums->used_bytes += live * bytes;
	sums->kept_bytes += kept * bytes;
	if (bank->sampled && bank->sampled * bytes > bank->asked_bytes)
		sums->waste_bytes += live * (bank->sampled * bytes - bank->asked_bytes) / bank->sampled;
}

void tn_caches_sum(const tn_arena *arena, tn_cache_sums *sums)
{
	*sums = (tn_cache_sums){0};
	for (uint32_t class = 0; class < TN_CLASSES; class ++)
		sum_class(arena, class, sums);
}

/* Live objects of slabs, by their marks. */
static void count_live(tn_arena *arena, uint64_t live[TN_CLASSES])
{
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		const tn_ext *ext = &arena->mem->ext[i];

		if (!ext->live || ext->arena != arena)
			continue;
		for (uint32_t page = 0; page < ext->page_count; page += ext->runs[page].pages) {
			const tn_run *run = &ext->runs[page];
			const uint8_t *base = tn_run_base(ext, run);

			if (run->state != TN_RUN_SLAB)
				continue;
			for (uint32_t object = 0; object < tn_classes[run->class].objects; object++) {
				uint64_t at = (uint64_t)object * tn_classes[run->class].bytes;
				uint32_t mark = *tn_ext_mark(ext, base + at);

				TN_ASSERT(mark == TN_MARK_NONE || !(run->free_mask >> object & 1));
				TN_ASSERT(mark < TN_MARK_CACHED || mark == tn_arena_mark(arena, run->class));
				live[run->class] += mark != TN_MARK_NONE;
			}
		}
	}
}

void tn_caches_check(tn_arena *arena)
{
	uint64_t kept[TN_CLASSES] = {0}, live[TN_CLASSES] = {0};
	uint32_t count = steal_all(arena->mem);

	if (arena->index < TN_CACHED_ARENAS) {
		for (uint32_t i = 0; i < count; i++)
			tn_magazines_check(arena, arena->mem->caches[i], kept);
	}
	count_live(arena, live);
	for (uint32_t class = 0; class < TN_CLASSES; class ++) {
		const tn_bank *bank = &arena->banks[class];
		uint32_t empties = 0;

		TN_LIST_FOREACH(node, &bank->empty)
			empties += TN_LIST_ENTRY(node, tn_run, link)->free_mask == tn_classes[class].full;
		TN_ASSERT(empties == bank->empties);
		TN_ASSERT_MSG(bank->out == live[class] + kept[class], "%llu out, %llu live, %llu kept",
			      (unsigned long long)bank->out, (unsigned long long)live[class],
			      (unsigned long long)kept[class]);
	}
	unsteal_all(arena->mem, count);
}

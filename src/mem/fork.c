/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what happens to pools in a forked child: extents are shared memory, so without help a child's writes
 * would reach the parent and its peers. In the child each extent is mapped again, private: reads work, writes
 * stay in the child, and every handle answers TERN_E_FORKED (tn_mem_here). The view is not frozen: pages that
 * the child has not written show the parent's later writes. posix_spawn and vfork run no handlers.
 *
 * Also the list of pools of this process. Caches of the parent's threads stay in the child as they were and are
 * never looked at: every call that would is answered TERN_E_FORKED first.
 *
 * Must not log or allocate in the child. Threads: a lock of its own around the list of pools.
 * Tests: tests/unit/mem/test_fork.c.
 */
#include "base/log.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_list pools = {&pools, &pools};
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Pools by address, for who has a pointer alone. `end` is written last and cleared first. */
#define RANGES_MAX 64
typedef struct range {
	_Atomic uintptr_t base, end;
	_Atomic(tern_mem *) mem;
} range;
static range ranges[RANGES_MAX];

static void before_fork(void)
{
	pthread_mutex_lock(&pools_lock);
	tn_arena_before_fork();
}

static void after_in_parent(void)
{
	tn_arena_after_fork();
	pthread_mutex_unlock(&pools_lock);
}

static void after_in_child(void)
{
	TN_LIST_FOREACH(node, &pools) {
		tern_mem *mem = TN_LIST_ENTRY(node, tern_mem, all);

		/* An extent that was in the making in another thread is nobody's yet. */
		for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
			tn_ext *ext = &mem->ext[i];

			if (atomic_load_explicit(&ext->live, memory_order_acquire))
				tn_os_mem_unshare(ext->pub.base, ext->pub.bytes, ext->pub.fd);
		}
	}
	/* The child's own pools start a list of their own; a grandchild keeps the private mappings. */
	tn_list_init(&pools);
	tn_arena_after_fork();
	pthread_mutex_unlock(&pools_lock);
}

static void install(void)
{
	pthread_atfork(before_fork, after_in_parent, after_in_child);
}

static void range_add(tern_mem *mem)
{
	for (int i = 0; i < RANGES_MAX; i++) {
		if (ranges[i].end)
			continue;
		atomic_store(&ranges[i].mem, mem);
		atomic_store(&ranges[i].base, (uintptr_t)mem->base);
		atomic_store(&ranges[i].end, (uintptr_t)mem->base + mem->reserved);
		return;
	}
	/* More pools than anybody has: their blocks are found by their handle alone. */
	TN_LOG(WARN, MEM, "more than %d contexts: tern_arena_free can't find the memory of this one",
	       RANGES_MAX);
}

static void range_remove(const tern_mem *mem)
{
	for (int i = 0; i < RANGES_MAX; i++) {
		if (ranges[i].mem != mem)
			continue;
		atomic_store(&ranges[i].end, 0);
		atomic_store(&ranges[i].mem, NULL);
	}
}

tern_mem *tn_pools_of(const void *ptr)
{
	uintptr_t at = (uintptr_t)ptr;

	for (int i = 0; i < RANGES_MAX; i++) {
		const range *r = &ranges[i];
		uintptr_t end = atomic_load_explicit(&r->end, memory_order_acquire);
		tern_mem *mem;

		if (at >= end || at < atomic_load_explicit(&r->base, memory_order_acquire))
			continue;
		mem = atomic_load_explicit(&r->mem, memory_order_acquire);
		/* The place was taken by another pool meanwhile: it was not the one of a live block. */
		if (atomic_load_explicit(&r->end, memory_order_relaxed) == end)
			return mem;
	}
	return NULL;
}

void tn_mem_fork_add(tern_mem *mem)
{
	pthread_once(&once, install);
	pthread_mutex_lock(&pools_lock);
	tn_list_push_back(&pools, &mem->all);
	range_add(mem);
	pthread_mutex_unlock(&pools_lock);
}

void tn_mem_fork_remove(tern_mem *mem)
{
	pthread_mutex_lock(&pools_lock);
	tn_list_remove(&mem->all);
	range_remove(mem);
	pthread_mutex_unlock(&pools_lock);
}

void tn_pools_lock(void)
{
	pthread_mutex_lock(&pools_lock);
}

void tn_pools_unlock(void)
{
	pthread_mutex_unlock(&pools_lock);
}

tern_mem *tn_pools_find(uint64_t id)
{
	TN_LIST_FOREACH(node, &pools) {
		tern_mem *mem = TN_LIST_ENTRY(node, tern_mem, all);

		if (mem->id == id)
			return mem;
	}
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the replacement for malloc and its kin (tern_arena_*, <tern/mem.h>): C semantics over a pool and an
 * exposure class, and free without a handle, by the address. In a forked child new blocks come from libc and
 * frees of the parent's are no-ops (DESIGN 12.14); which ones came from libc is known from a table, so that a wild
 * pointer is refused there too.
 *
 * Must not know slabs, runs or magazines: the common path is cache.h's. Threads: any. Tests: tests/unit/mem/test_arena.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "mem/cache.h"
#include "mem/pool.h"

/* Blocks of libc in a forked child: address -> bytes. */
static pthread_mutex_t child_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_map child_blocks;
static bool child_ready;

void tn_arena_before_fork(void)
{
	pthread_mutex_lock(&child_lock);
}

void tn_arena_after_fork(void)
{
	pthread_mutex_unlock(&child_lock);
}

static void *child_alloc(size_t align, size_t bytes)
{
	void *ptr = NULL;

	if (posix_memalign(&ptr, TN_MAX(align, TN_ALIGN_MIN), TN_MAX(bytes, 1)) != 0)
		return NULL;
	pthread_mutex_lock(&child_lock);
	child_ready = child_ready || tn_map_init(&child_blocks, 64, false, 0) == TERN_OK;
	if (!child_ready || tn_map_put(&child_blocks, (uintptr_t)ptr, bytes) != TERN_OK) {
		free(ptr);
		ptr = NULL;
	}
	pthread_mutex_unlock(&child_lock);
	return ptr;
}

static bool child_find(const void *ptr, bool take, size_t *bytes)
{
	uint64_t *found;

	pthread_mutex_lock(&child_lock);
	found = child_ready ? tn_map_find(&child_blocks, (uintptr_t)ptr) : NULL;
	if (found)
		*bytes = *found;
	if (found && take)
		tn_map_remove(&child_blocks, (uintptr_t)ptr, NULL);
	pthread_mutex_unlock(&child_lock);
	return found != NULL;
}

static void *fail_with(int err)
{
	errno = err;
	return NULL;
}

static void *alloc(tern_mem *mem, uint32_t access, size_t align, size_t bytes)
{
	int err = errno;
	tern_status status;
	void *ptr;

	if (!mem || (align & (align - 1)) != 0)
		return fail_with(EINVAL);
	if (tn_mem_inherited(mem))
		ptr = child_alloc(align, bytes);
	else if ((status = tern_mem_alloc(mem, bytes, align, access, TERN_MEM_HOST, &ptr)) == TERN_E_INVALID)
		return fail_with(EINVAL);
	if (!ptr)
		return fail_with(ENOMEM);
	errno = err;
	return ptr;
}

void *tern_arena_malloc(tern_mem *mem, uint32_t access, size_t bytes)
{
	if (TN_LIKELY(bytes - 1 < TN_SMALL_MAX) && TN_LIKELY(access < TN_CACHED_ARENAS)) {
		void *ptr = tn_cache_alloc(mem, access, bytes);

		if (TN_LIKELY(ptr != NULL))
			return ptr;
	}
	return alloc(mem, access, 0, bytes);
}

void *tern_arena_aligned(tern_mem *mem, uint32_t access, size_t align, size_t bytes)
{
	return alloc(mem, access, align, bytes);
}

void *tern_arena_calloc(tern_mem *mem, uint32_t access, size_t count, size_t bytes)
{
	size_t total;
	void *ptr;

	if (__builtin_mul_overflow(count, bytes, &total))
		return fail_with(ENOMEM);
	ptr = alloc(mem, access, 0, total);
	if (ptr)
		memset(ptr, 0, total);
	return ptr;
}

size_t tern_arena_usable(const void *ptr)
{
	tern_mem *mem = ptr ? tn_pools_of(ptr) : NULL;
	size_t bytes = 0;

	if (!mem)
		return ptr && child_find(ptr, false, &bytes) ? bytes : 0;
	return tn_mem_inherited(mem) ? tn_block_bytes(mem, ptr) : tern_mem_usable(mem, ptr);
}

/* Not of the pool that the thread used last, or not common. */
__attribute__((noinline)) static void free_any(void *ptr)
{
	int err = errno;
	tern_mem *mem;
	size_t bytes;

	if (!ptr)
		return;
	mem = tn_pools_of(ptr);
	if (mem) {
		tern_mem_free(mem, ptr); /* in a child nothing: the block is the parent's */
	} else if (child_find(ptr, true, &bytes)) {
		free(ptr);
	} else {
		tn_fail(TERN_E_INVALID, "tern_arena_free(%p): not memory of any context", ptr);
		TN_LOG(ERROR, MEM, "tern_arena_free(%p): not memory of any context; nothing was freed", ptr);
	}
	errno = err;
}

void tern_arena_free(void *ptr)
{
	if (TN_UNLIKELY(!tn_cache_mine_now.cache) ||
	    TN_UNLIKELY(!tn_cache_free(tn_cache_mine_now.cache, ptr)))
		free_any(ptr);
}

/* Stays where it is if it fits and does not waste half of the block. */
static bool fits(const tern_mem *mem, uint32_t access, const void *ptr, size_t have, size_t want)
{
	const tn_extent *ext = tn_mem_extent_of(mem, ptr);

	return !tn_mem_inherited(mem) && ext && ext->access == access && want <= have && want >= have / 2;
}

void *tern_arena_realloc(tern_mem *mem, uint32_t access, void *ptr, size_t bytes)
{
	size_t have;
	void *to;

	if (!ptr)
		return alloc(mem, access, 0, bytes);
	have = tern_arena_usable(ptr);
	if (!mem || have == 0)
		return fail_with(EINVAL);
	if (fits(mem, access, ptr, have, bytes))
		return ptr;
	to = alloc(mem, access, 0, bytes);
	if (!to)
		return NULL; /* the old block stays */
	memcpy(to, ptr, TN_MIN(have, bytes));
	tern_arena_free(ptr);
	return to;
}

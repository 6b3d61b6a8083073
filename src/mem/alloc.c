/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the public face of allocation: arguments, the choice of slab or run, blocks by address, free, and the
 * making of keys for blocks. A pointer that is not a live block of this pool is refused and logged, and
 * changes nothing.
 *
 * Must not touch the blocks' memory: metadata is out of band. Threads: any; one lock per arena.
 * Tests: tests/unit/mem/test_alloc.c, test_model.c, test_threads.c, test_keys.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "mem/foreign.h"
#include "mem/pool.h"

static void free_settled(tern_mem *mem);

static tern_status check_arguments(uint64_t bytes, uint64_t align, uint32_t access, tern_mem_kind kind)
{
	if (align > TN_ALIGN_MAX || (align & (align - 1)) != 0)
		return tn_fail(TERN_E_INVALID, "alignment %" PRIu64 ": 0 or a power of two up to 2 MiB",
			       align);
	if (access & ~(TERN_ACCESS_READ | TERN_ACCESS_WRITE))
		return tn_fail(TERN_E_INVALID, "access 0x%x: TERN_ACCESS_READ and TERN_ACCESS_WRITE, or none",
			       access);
	if (kind != TERN_MEM_HOST && kind != TERN_MEM_HUGE && kind != TERN_MEM_DEVICE)
		return tn_fail(TERN_E_INVALID, "memory kind %d: no such kind", (int)kind);
	if (bytes > TN_TRANSFER_BYTES_MAX)
		return tn_fail(TERN_E_NOMEM, "%" PRIu64 " bytes: more than the address space", bytes);
	return TERN_OK;
}

/* Arena's lock held. NULL: grow first. */
static void *try_alloc(tn_arena *arena, const tn_class *class, uint64_t pages, uint32_t align_pages)
{
	uint64_t bytes = class ? class->bytes : pages << TN_PAGE_SHIFT;
	void *ptr = NULL;

	if (class) {
		ptr = tn_slab_alloc(arena, class);
	} else if (pages <= UINT32_MAX) {
		tn_run *run = tn_runs_alloc(arena, (uint32_t)pages, align_pages, TN_RUN_LARGE);

		if (run)
			ptr = tn_run_base(&arena->mem->ext[run->slot], run);
	}
	if (ptr) {
		arena->blocks++;
		arena->used_bytes += bytes;
	}
	return ptr;
}

tern_status tern_mem_alloc(tern_mem *mem, uint64_t bytes, uint64_t align, uint32_t access, tern_mem_kind kind,
			   void **ptr)
{
	const tn_class *class;
	uint32_t align_pages;
	tn_arena *arena;
	uint64_t pages;

	if (!ptr)
		return tn_fail(TERN_E_INVALID, "ptr is NULL");
	*ptr = NULL;
	if (!mem)
		return tn_fail(TERN_E_INVALID, "mem is NULL");
	TN_TRY(tn_mem_here(mem));
	TN_TRY(check_arguments(bytes, align, access, kind));
	if (kind == TERN_MEM_DEVICE)
		return tn_gpu_block_alloc(mem, bytes, access, ptr);
	align = TN_MAX(align, TN_ALIGN_MIN);
	class = tn_class_for(bytes, align);
	pages = class ? class->pages : TN_MAX((bytes + TN_PAGE_BYTES - 1) >> TN_PAGE_SHIFT, 1);
	align_pages = class ? 1 : (uint32_t)TN_MAX(align >> TN_PAGE_SHIFT, 1);
	arena = &mem->arenas[access + (kind == TERN_MEM_HUGE ? 4 : 0)];

	pthread_mutex_lock(&arena->lock);
	*ptr = try_alloc(arena, class, pages, align_pages);
	while (!*ptr) {
		tern_status status;

		pthread_mutex_unlock(&arena->lock);
		free_settled(mem);
		status = tn_extent_grow(arena, pages, align_pages);
		if (status != TERN_OK)
			return status;
		*ptr = try_alloc(arena, class, pages, align_pages);
	}
	pthread_mutex_unlock(&arena->lock);
	TN_ASSERT(((uintptr_t)*ptr & (align - 1)) == 0);
	return TERN_OK;
}

bool tn_block_find(tn_ext *ext, const void *ptr, tn_block *block)
{
	uint64_t offset = (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ext->pub.base);
	tn_run *run;

	TN_ASSERT(offset < ext->pub.bytes);
	run = tn_runs_find(ext, (uint32_t)(offset >> TN_PAGE_SHIFT));
	*block = (tn_block){.ext = ext, .run = run, .base = tn_run_base(ext, run)};
	if (run->state == TN_RUN_LARGE) {
		block->bytes = (uint64_t)run->pages << TN_PAGE_SHIFT;
		return true;
	}
	if (run->state == TN_RUN_SLAB) {
		const tn_class *class = tn_class_at(run->class);

		offset -= (uint64_t)run->head << TN_PAGE_SHIFT;
		block->object = (uint32_t)(offset / class->bytes);
		block->base += (uint64_t)block->object * class->bytes;
		block->bytes = class->bytes;
		return block->object < class->objects && !(run->free_mask >> block->object & 1);
	}
	return false;
}

/*
 * The extent that ptr lies in, with its arena's lock held; NULL (and no lock) for foreign memory. Looked up
 * again under the lock: an empty extent that a wild pointer names could be on its way out.
 */
static tn_ext *lock_extent(tern_mem *mem, const void *ptr)
{
	tn_ext *ext = tn_mem_ext_of(mem, ptr);
	tn_arena *arena;

	if (!ext)
		return NULL;
	arena = ext->arena;
	pthread_mutex_lock(&arena->lock);
	if (TN_LIKELY(tn_mem_ext_of(mem, ptr) == ext && ext->arena == arena))
		return ext;
	pthread_mutex_unlock(&arena->lock);
	return NULL;
}

static void refuse_free(tern_mem *mem, const void *ptr, const char *why)
{
	tn_count(&mem->refused_frees, 1);
	tn_fail(TERN_E_INVALID, "tern_mem_free(%p): %s; nothing was freed", ptr, why);
	TN_LOG(ERROR, MEM, "tern_mem_free(%p): %s; nothing was freed", ptr, why);
}

/* Free one block; `settled`: its keys were revoked before and nobody reaches it any more. */
static void free_block(tern_mem *mem, void *ptr, bool settled)
{
	tn_arena *arena;
	tn_block block;
	tn_ext *ext;

	ext = lock_extent(mem, ptr);
	if (!ext) {
		if (!tn_gpu_block_free(mem, ptr))
			refuse_free(mem, ptr, "not memory of this context");
		return;
	}
	arena = ext->arena;
	if (!tn_block_find(ext, ptr, &block) || block.base != ptr) {
		pthread_mutex_unlock(&arena->lock);
		refuse_free(mem, ptr, "not the start of a live block (freed twice?)");
		return;
	}
	/* Keys go before the block can be given to somebody else. */
	if ((block.run->key_mask >> block.object & 1) && !settled) {
		tn_keys_revoke_block(&mem->keys, ptr);
		pthread_mutex_unlock(&arena->lock);
		if (tn_guards_park(mem, ptr))
			return;
		free_block(mem, ptr, true);
		return;
	}
	block.run->key_mask &= ~(1ull << block.object);
	TN_ASSERT(arena->blocks > 0 && arena->used_bytes >= block.bytes);
	arena->blocks--;
	arena->used_bytes -= block.bytes;
	if (block.run->state == TN_RUN_SLAB)
		tn_slab_free(arena, block.run, block.object);
	else
		tn_runs_free(arena, block.run);
	pthread_mutex_unlock(&arena->lock);
}

static void free_settled(tern_mem *mem)
{
	void *ptr;

	while ((ptr = tn_guards_next(mem)) != NULL)
		free_block(mem, ptr, true);
}

void tern_mem_free(tern_mem *mem, void *ptr)
{
	/* A child's frees are no-ops: the block is its parent's. */
	if (!ptr || !mem || tn_mem_here(mem) != TERN_OK)
		return;
	free_settled(mem);
	free_block(mem, ptr, false);
}

uint64_t tern_mem_usable(tern_mem *mem, const void *ptr)
{
	tn_block block;
	uint64_t bytes = 0;
	tn_ext *ext;

	if (!mem || !ptr || tn_mem_here(mem) != TERN_OK)
		return 0;
	ext = lock_extent(mem, ptr);
	if (!ext)
		return tn_gpu_block_usable(mem, ptr);
	if (tn_block_find(ext, ptr, &block) && block.base == ptr)
		bytes = block.bytes;
	pthread_mutex_unlock(&ext->arena->lock);
	return bytes;
}

tern_status tern_mem_export(tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access, tern_key *key)
{
	tern_status status;
	tn_block block;
	tn_ext *ext;

	if (!mem || !key)
		return tn_fail(TERN_E_INVALID, "%s is NULL", mem ? "key" : "mem");
	TN_TRY(tn_mem_here(mem));
	if (access == 0 || (access & ~(TERN_ACCESS_READ | TERN_ACCESS_WRITE)))
		return tn_fail(TERN_E_INVALID,
			       "access 0x%x of a key: TERN_ACCESS_READ, TERN_ACCESS_WRITE or both", access);
	ext = lock_extent(mem, ptr);
	if (!ext)
		return tn_region_export(mem, ptr, bytes, access, key);
	if (access & ~ext->pub.access) {
		status = tn_fail(TERN_E_ACCESS, "a key with access 0x%x to memory allocated with 0x%x",
				 access, ext->pub.access);
	} else if (!tn_block_find(ext, ptr, &block)) {
		status = tn_fail(TERN_E_INVALID, "%p lies in no live block", ptr);
	} else if (bytes > block.bytes - (uint64_t)((const uint8_t *)ptr - block.base)) {
		status = tn_fail(TERN_E_INVALID,
				 "%" PRIu64 " bytes from %p go past the block, which ends at %p", bytes, ptr,
				 (void *)(block.base + block.bytes));
	} else {
		status = tn_keys_make(&mem->keys, &ext->pub, block.base, ptr, bytes, access, key);
		if (status == TERN_OK) {
			block.run->key_mask |= 1ull << block.object;
			ext->exported = true;
		}
	}
	pthread_mutex_unlock(&ext->arena->lock);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the public face of allocation: arguments, the choice of cache, slab or run, blocks by address, free, and
 * the making of keys for blocks. A pointer that is not a live block of this pool is refused and logged, and
 * changes nothing.
 *
 * Must not touch the blocks' memory: metadata is out of band. Threads: any; one lock per arena,
 * none for small blocks from a thread's cache (cache.h).
 * Tests: tests/unit/mem/test_alloc.c, test_model.c, test_threads.c, test_keys.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "mem/foreign.h"
#include "mem/cache.h"
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

typedef struct request {
	tn_arena *arena;
	const tn_class *class; /* NULL: a run */
	uint64_t asked, pages;
	uint32_t align_pages;
} request;

/* Arena's lock held. NULL: grow first. */
static void *try_small(tn_arena *arena, tn_cache *cache, uint32_t class, uint64_t asked)
{
	tn_spare one = {0};

	if (cache) {
		one.ptr = tn_cache_refill(arena, cache, class);
	} else if (tn_slab_take(arena, class, 0, &one, 1)) {
		atomic_store_explicit(one.mark, tn_arena_mark(arena, class), memory_order_relaxed);
	}
	if (one.ptr)
		tn_bank_sample(&arena->banks[class], asked);
	return one.ptr;
}

static void *try_alloc(const request *r, tn_cache *cache)
{
	tn_arena *arena = r->arena;
	uint64_t bytes = r->pages << TN_PAGE_SHIFT;
	tn_run *run;

	if (r->class)
		return try_small(arena, cache, tn_class_index(r->class), r->asked);
	if (r->pages > UINT32_MAX)
		return NULL;
	run = tn_runs_alloc(arena, (uint32_t)r->pages, r->align_pages, TN_RUN_LARGE);
	if (!run)
		return NULL;
	arena->blocks++;
	arena->used_bytes += bytes;
	arena->asked_bytes += r->asked;
	arena->given_bytes += bytes;
	return tn_run_base(&arena->mem->ext[run->slot], run);
}

/* Small requests alone are foreseeable: after a large one the next may as well be of any size. */
static void look_ahead(const request *r)
{
	tn_arena *arena = r->arena;
	uint64_t mark = tn_arena_watermark(arena);

	if (arena->pages_free << TN_PAGE_SHIFT < mark && r->pages << TN_PAGE_SHIFT <= mark / 4)
		tn_ahead_grow(arena);
}

/* With the lock, and with growth if it must be. */
static tern_status alloc_slow(const request *r, tn_cache *cache, void **ptr)
{
	tn_arena *arena = r->arena;
	tern_mem *mem = arena->mem;

	if (r->class)
		tn_count(&mem->cache_misses, 1);
	pthread_mutex_lock(&arena->lock);
	*ptr = try_alloc(r, cache);
	/* What threads keep without need goes first, if it could be enough. */
	if (!*ptr && tn_caches_kept(arena) >= r->pages << TN_PAGE_SHIFT) {
		tn_caches_reclaim(arena, false);
		*ptr = try_alloc(r, cache);
	}
	while (!*ptr) {
		tern_status status;

		pthread_mutex_unlock(&arena->lock);
		free_settled(mem);
		status = tn_extent_grow(arena, r->pages, r->align_pages);
		if (status != TERN_OK)
			return status;
		*ptr = try_alloc(r, cache);
	}
	look_ahead(r);
	pthread_mutex_unlock(&arena->lock);
	return TERN_OK;
}

/* Whatever is not common. */
__attribute__((noinline)) static tern_status alloc_any(tern_mem *mem, uint64_t bytes, uint64_t align,
						       uint32_t access, tern_mem_kind kind, void **ptr)
{
	uint64_t asked = bytes;
	tn_cache *cache = NULL;
	request r;

	if (!ptr)
		return tn_fail(TERN_E_INVALID, "ptr is NULL");
	*ptr = NULL;
	if (!mem)
		return tn_fail(TERN_E_INVALID, "mem is NULL");
	TN_TRY(tn_mem_here(mem));
	TN_TRY(check_arguments(bytes, align, access, kind));
	if (kind == TERN_MEM_DEVICE)
		return tn_gpu_block_alloc(mem, bytes, access, ptr);
	if (TN_UNLIKELY(mem->debug))
		bytes = tn_debug_padded(bytes);
	align = TN_MAX(align, TN_ALIGN_MIN);
	r = (request){.arena = &mem->arenas[access + (kind == TERN_MEM_HUGE ? 4 : 0)],
		      .class = tn_class_for(bytes, align),
		      .asked = asked};
	r.pages = r.class ? r.class->pages : TN_MAX((bytes + TN_PAGE_BYTES - 1) >> TN_PAGE_SHIFT, 1);
	r.align_pages = r.class ? 1 : (uint32_t)TN_MAX(align >> TN_PAGE_SHIFT, 1);
	if (r.class && r.arena->index < TN_CACHED_ARENAS)
		cache = tn_cache_get(mem);
	if (cache && tn_cache_enter(cache)) {
		*ptr = tn_cache_pop(cache, tn_cached_mark(r.arena, tn_class_index(r.class)));
		tn_cache_leave(cache);
	}
	if (!*ptr)
		TN_TRY(alloc_slow(&r, cache, ptr));
	TN_ASSERT(((uintptr_t)*ptr & (align - 1)) == 0);
	if (TN_UNLIKELY(mem->debug))
		tn_debug_born(mem, *ptr, asked, r.class ? r.class->bytes : r.pages << TN_PAGE_SHIFT);
	return TERN_OK;
}

tern_status tern_mem_alloc(tern_mem *mem, uint64_t bytes, uint64_t align, uint32_t access, tern_mem_kind kind,
			   void **ptr)
{
	/*
	 * The common case, in few branches and without a call: nothing is saved. 0 and 64 say the same. A forked
	 * child's thread has no cache; in debug mode none has one.
	 */
	void *block;

	if (TN_UNLIKELY(bytes - 1 >= TN_SMALL_MAX) || TN_UNLIKELY((align & ~TN_ALIGN_MIN) | (uint32_t)kind) ||
	    TN_UNLIKELY(!ptr))
		return alloc_any(mem, bytes, align, access, kind, ptr);
	if (TN_UNLIKELY(access >= TN_CACHED_ARENAS)) /* apart: in one condition they'd be added up */
		return alloc_any(mem, bytes, align, access, kind, ptr);
	block = tn_cache_alloc(mem, access, bytes);
	if (TN_UNLIKELY(!block))
		return alloc_any(mem, bytes, 0, access, TERN_MEM_HOST, ptr); /* two registers fewer to keep */
	*ptr = block;
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
		block->object = tn_class_object(class, offset);
		block->base += (uint64_t)block->object * class->bytes;
		block->bytes = class->bytes;
		block->mark = tn_ext_mark(ext, block->base);
		return atomic_load_explicit(block->mark, memory_order_relaxed) != TN_MARK_NONE;
	}
	return false;
}

uint64_t tn_block_bytes(const tern_mem *mem, const void *ptr)
{
	tn_ext *ext = tn_mem_ext_of(mem, ptr);
	tn_block block;

	return ext && tn_block_find(ext, ptr, &block) && block.base == ptr ? block.bytes : 0;
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

void tn_free_refused(tern_mem *mem, const void *ptr, const char *why)
{
	tn_count(&mem->refused_frees, 1);
	tn_fail(TERN_E_INVALID, "tern_mem_free(%p): %s; nothing was freed", ptr, why);
	TN_LOG(ERROR, MEM, "tern_mem_free(%p): %s; nothing was freed", ptr, why);
	if (mem->debug)
		tn_debug_refused(mem, ptr);
}

static bool is_keyed(const tn_block *block)
{
	return block->mark ? *block->mark == TN_MARK_KEYED : block->run->keyed;
}

/* Arena's lock held: the block goes, into the calling thread's cache if it has one. */
static void free_locked(tn_arena *arena, const tn_block *block)
{
	tn_cache *cache;

	if (!block->mark) {
		TN_ASSERT(arena->blocks > 0 && arena->used_bytes >= block->bytes);
		arena->blocks--;
		arena->used_bytes -= block->bytes;
		block->run->keyed = false;
		tn_runs_free(arena, block->run);
		return;
	}
	cache = tn_cache_current(arena->mem);
	atomic_store_explicit(block->mark, TN_MARK_NONE, memory_order_relaxed);
	if (cache && tn_arena_cached(arena))
		tn_cache_put(arena, cache, block->run->class, block->base, block->mark);
	else
		tn_slab_put(arena, block->run, 1ull << block->object, cache ? cache->id : 0);
}

/* Free one block; `settled`: its keys were revoked before and nobody reaches it any more. */
static void free_block(tern_mem *mem, void *ptr, bool settled)
{
	bool live = false, parked = false;
	tn_block block;
	tn_ext *ext = lock_extent(mem, ptr);
	tn_arena *arena;

	if (!ext) {
		if (!tn_gpu_block_free(mem, ptr))
			tn_free_refused(mem, ptr, "not memory of this context");
		return;
	}
	arena = ext->arena;
	if (tn_block_find(ext, ptr, &block) && block.base == ptr) {
		live = true;
		/* Keys go before the block can be given to somebody else. */
		parked = is_keyed(&block) && !settled;
		if (parked)
			tn_keys_revoke_block(&mem->keys, ptr);
		else
			free_locked(arena, &block);
	}
	pthread_mutex_unlock(&arena->lock);
	if (!live)
		tn_free_refused(mem, ptr, "not the start of a live block (freed twice?)");
	else if (parked && !tn_guards_park(mem, ptr))
		free_block(mem, ptr, true);
}

static void free_settled(tern_mem *mem)
{
	void *ptr;

	while ((ptr = tn_guards_next(mem)) != NULL)
		free_block(mem, ptr, true);
}

/* Whatever is not common. */
__attribute__((noinline)) static void free_any(tern_mem *mem, void *ptr)
{
	bool done = false;
	tn_cache *cache;

	/* A child's frees are no-ops: the block is its parent's. */
	if (!ptr || !mem || tn_mem_inherited(mem))
		return;
	if (atomic_load_explicit(&mem->guards.parked_count, memory_order_relaxed) != 0)
		free_settled(mem);
	cache = tn_cache_get(
		mem); /* a thread that only frees needs one too, or it would come here each time */
	if (cache && tn_cache_enter(cache)) {
		done = tn_cache_push(cache, ptr);
		tn_cache_leave(cache);
	}
	if (done)
		return;
	if (TN_UNLIKELY(mem->debug))
		tn_debug_died(mem, ptr);
	free_block(mem, ptr, false);
}

void tern_mem_free(tern_mem *mem, void *ptr)
{
	if (TN_UNLIKELY(tn_cache_mine_now.mem != mem) ||
	    TN_UNLIKELY(!tn_cache_free(tn_cache_mine_now.cache, ptr)))
		free_any(mem, ptr);
}

/* What the owner may use: in debug mode the canary begins behind what was asked. */
static uint64_t usable_of(tern_mem *mem, const tn_block *block)
{
	uint64_t bytes;

	return TN_UNLIKELY(mem->debug) && tn_debug_bytes(mem, block->base, &bytes) ? bytes : block->bytes;
}

uint64_t tern_mem_usable(tern_mem *mem, const void *ptr)
{
	tn_cache *cache;
	tn_block block;
	uint64_t bytes = 0;
	tn_ext *ext;

	if (!mem || !ptr || tn_mem_here(mem) != TERN_OK)
		return 0;
	cache = tn_cache_current(mem);
	if (cache && tn_cache_enter(cache)) {
		tn_mark *mark;

		if (tn_cache_mark(cache, ptr, &mark) && *mark >= TN_MARK_CACHED)
			bytes = tn_classes[(*mark - TN_MARK_CACHED) >> 2].bytes;
		tn_cache_leave(cache);
	}
	if (bytes)
		return bytes;
	ext = lock_extent(mem, ptr);
	if (!ext)
		return tn_gpu_block_usable(mem, ptr);
	if (tn_block_find(ext, ptr, &block) && block.base == ptr)
		bytes = usable_of(mem, &block);
	pthread_mutex_unlock(&ext->arena->lock);
	return bytes;
}

/* Bytes of the block from ptr on. */
static uint64_t block_left(const tn_block *block, const void *ptr)
{
	uint64_t at = (uint64_t)((const uint8_t *)ptr - block->base);

	return at < block->bytes ? block->bytes - at : 0;
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
	} else if (block.bytes = usable_of(mem, &block), block_left(&block, ptr) < bytes) {
		status = tn_fail(TERN_E_INVALID,
				 "%" PRIu64 " bytes from %p go past the block, which ends at %p", bytes, ptr,
				 (void *)(block.base + block.bytes));
	} else {
		status = tn_keys_make(&mem->keys, &ext->pub, block.base, ptr, bytes, access, key);
		if (status == TERN_OK) {
			if (block.mark)
				atomic_store_explicit(block.mark, TN_MARK_KEYED, memory_order_relaxed);
			else
				block.run->keyed = true;
			ext->exported = true;
		}
	}
	pthread_mutex_unlock(&ext->arena->lock);
	return status;
}

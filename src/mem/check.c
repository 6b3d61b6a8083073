/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the whole-object check of a pool: asserts the equations at the top of pool.h. Tests call it after each
 * step; nothing does on the data path.
 *
 * Threads: any; takes all locks in order, so it sees one instant. Tests: tests/unit/mem/test_model.c.
 */
#include "mem/foreign.h"
#include "mem/cache.h"
#include "mem/pool.h"

static void check_bins(tn_arena *arena)
{
	for (uint32_t level = 0; level < TN_BIN_LEVELS; level++) {
		TN_ASSERT((arena->bin_levels >> level & 1) == (arena->bin_subs[level] != 0));
		for (uint32_t sub = 0; sub < TN_BIN_SUBS; sub++) {
			const tn_list *bin = &arena->bins[level][sub];

			TN_ASSERT((arena->bin_subs[level] >> sub & 1) == !tn_list_empty(bin));
			TN_LIST_FOREACH(node, bin) {
				const tn_run *run = TN_LIST_ENTRY(node, tn_run, link);

				TN_ASSERT(run->state == TN_RUN_FREE);
				TN_ASSERT(arena->mem->ext[run->slot].arena == arena);
			}
		}
	}
}

static void count_large(tn_ext *ext, uint64_t *blocks, uint64_t *bytes)
{
	for (uint32_t page = 0; page < ext->page_count; page += ext->runs[page].pages) {
		const tn_run *run = &ext->runs[page];

		if (run->state == TN_RUN_LARGE) {
			*blocks += 1;
			*bytes += (uint64_t)run->pages << TN_PAGE_SHIFT;
		}
	}
}

static void check_keys(tn_keys *keys)
{
	uint32_t queued = 0, live = 0;

	pthread_mutex_lock(&keys->lock);
	for (uint32_t i = keys->free_first; i != TN_KEY_NONE; i = keys->meta[i].next) {
		TN_ASSERT(!(keys->rows[i].generation & 1));
		queued++;
		TN_ASSERT((keys->meta[i].next == TN_KEY_NONE) == (i == keys->free_last));
	}
	for (uint32_t i = 0; i < TN_KEYS_MAX; i++)
		live += keys->rows[i].generation & 1;
	TN_ASSERT_MSG(live == keys->live && live + queued == TN_KEYS_MAX, "live %u, counted %u, queued %u",
		      live, keys->live, queued);
	pthread_mutex_unlock(&keys->lock);
}

void tn_mem_check(tern_mem *mem)
{
	uint64_t committed = 0;
	uint32_t extents = 0;

	pthread_mutex_lock(&mem->grow);
	for (uint32_t a = 0; a < TN_ARENAS; a++) {
		tn_arena *arena = &mem->arenas[a];
		uint64_t blocks = 0, bytes = 0, arena_committed = 0;
		uint64_t want_blocks, want_bytes, pages_used = 0, pages = 0;

		pthread_mutex_lock(&arena->lock);
		check_bins(arena);
		for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
			tn_ext *ext = &mem->ext[i];

			if (!ext->live || ext->arena != arena)
				continue;
			TN_ASSERT(ext->pub.access == arena->access);
			TN_ASSERT(tn_mem_ext_of(mem, ext->pub.base) == ext);
			TN_ASSERT(tn_mem_ext_of(mem, (uint8_t *)ext->pub.base + ext->pub.bytes - 1) == ext);
			tn_runs_check(arena, ext);
			count_large(ext, &blocks, &bytes);
			arena_committed += ext->pub.bytes;
			pages_used += ext->pages_used;
			pages += ext->page_count;
			extents++;
		}
		want_blocks = arena->blocks;
		want_bytes = arena->used_bytes;
		tn_caches_check(arena);
		TN_ASSERT_MSG(blocks == want_blocks, "%llu live, counted %llu", (unsigned long long)blocks,
			      (unsigned long long)want_blocks);
		TN_ASSERT(bytes == want_bytes);
		TN_ASSERT(pages_used == arena->pages_used && pages - pages_used == arena->pages_free);
		if (mem->making.arena == arena)
			arena_committed += mem->making.bytes;
		TN_ASSERT(arena_committed == arena->committed);
		committed += arena_committed;
		pthread_mutex_unlock(&arena->lock);
	}
	extents += mem->making.arena != NULL;
	TN_ASSERT(committed == mem->committed && extents == mem->extents);
	TN_ASSERT(!mem->limit || committed <= mem->limit);
	check_keys(&mem->keys);
	if (mem->debug)
		tn_debug_check(mem);
	tn_regions_check(mem);
	pthread_mutex_unlock(&mem->grow);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the statistics of a pool: sums over arenas and caches, and their names as counters.
 *
 * Must not stop anybody: caches are read as they are, so a snapshot is exact only while nobody allocates.
 * Threads: any; takes grow, then each arena's lock. Tests: tests/unit/mem/test_cache.c, test_model.c.
 */
#include "mem/cache.h"
#include "mem/foreign.h"
#include "mem/pool.h"

static void add_extents(const tern_mem *mem, tern_mem_stats *stats)
{
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		const tn_ext *ext = &mem->ext[i];

		if (!ext->live)
			continue;
		stats->extents_huge += ext->pub.pages == TN_PAGE_HUGE;
		stats->extents_thp += ext->pub.pages == TN_PAGE_THP;
		stats->extents_4k += ext->pub.pages == TN_PAGE_4K;
		stats->mappings++;
		if (ext->node >= 0 && ext->node < 64)
			stats->numa_nodes |= 1ull << ext->node;
	}
}

/* Arena's lock held. */
static void add_arena(tn_arena *arena, tern_mem_stats *stats)
{
	tn_cache_sums sums;

	tn_caches_sum(arena, &sums);
	stats->blocks += arena->blocks + sums.blocks;
	stats->used_bytes += arena->used_bytes + sums.used_bytes;
	stats->cache_hits += sums.allocs;
	stats->cached_bytes += sums.kept_bytes;
	stats->remote_frees += arena->remote_frees;
	stats->waste_bytes += sums.waste_bytes;
	if (arena->given_bytes)
		stats->waste_bytes += (uint64_t)((double)arena->used_bytes *
						 (double)(arena->given_bytes - arena->asked_bytes) /
						 (double)arena->given_bytes);
	stats->free_run_bytes_max =
		TN_MAX(stats->free_run_bytes_max, tn_runs_largest(arena) << TN_PAGE_SHIFT);
}

void tern_mem_stats_get(tern_mem *mem, tern_mem_stats *stats)
{
	*stats = (tern_mem_stats){0};
	if (tn_mem_here(mem) != TERN_OK)
		return;
	pthread_mutex_lock(&mem->grow);
	stats->limit_bytes = mem->limit;
	stats->committed_bytes = mem->committed;
	stats->extents = mem->extents;
	stats->registrations = mem->registrations;
	tn_regions_stats(mem, stats);
	stats->grows_ahead = mem->grows_ahead;
	stats->grows_waited = mem->grows_waited;
	stats->shrinks = mem->shrinks;
	if (mem->making.arena) { /* not there yet */
		stats->committed_bytes -= mem->making.bytes;
		stats->extents--;
	}
	/* The reservation is one mapping, cut in two by each extent at worst, and the key table. */
	stats->mappings = 2 + stats->extents;
	add_extents(mem, stats);
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		add_arena(&mem->arenas[i], stats);
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
	pthread_mutex_unlock(&mem->grow);
	stats->cache_misses = tn_counter_read(&mem->cache_misses);
	stats->free_bytes = stats->committed_bytes - TN_MIN(stats->used_bytes, stats->committed_bytes);
	stats->keys = tn_keys_live(&mem->keys);
	stats->staging_copies = tn_counter_read(&mem->staging_copies);
	stats->refused_frees = tn_counter_read(&mem->refused_frees);
	stats->damage = tn_counter_read(&mem->damage);
}

/* X(field): the counter "mem.field". */
#define STATS(X)              \
	X(limit_bytes)        \
	X(committed_bytes)    \
	X(used_bytes)         \
	X(blocks)             \
	X(extents)            \
	X(extents_huge)       \
	X(extents_thp)        \
	X(extents_4k)         \
	X(registrations)      \
	X(keys)               \
	X(cache_hits)         \
	X(staging_copies)     \
	X(cache_misses)       \
	X(cached_bytes)       \
	X(remote_frees)       \
	X(free_bytes)         \
	X(free_run_bytes_max) \
	X(waste_bytes)        \
	X(grows_ahead)        \
	X(grows_waited)       \
	X(shrinks)            \
	X(mappings)           \
	X(refused_frees)      \
	X(damage)             \
	X(numa_nodes)         \
	X(regions)            \
	X(region_bytes)

void tn_mem_counters(tern_mem *mem, void (*fn)(const char *name, uint64_t value, void *arg), void *arg)
{
	tern_mem_stats stats;

	tern_mem_stats_get(mem, &stats);
#define TELL(field) fn("mem." #field, stats.field, arg);
	STATS(TELL)
#undef TELL
}

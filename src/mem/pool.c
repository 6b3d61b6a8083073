/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a pool's birth and death, look-up by address and index, and statistics.
 *
 * Must not know sizes of blocks (alloc.c) or devices (extent.c). Threads: create and destroy in one thread,
 * the rest in any. Tests: tests/unit/mem/test_alloc.c, test_extents.c, test_fork.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "base/os.h"
#include "mem/foreign.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define RESERVE_DEFAULT_MIN (64ull << 30)
#define RESERVE_MIN         (1ull << 30)  /* what is left of it in a small sandbox */
#define RESERVE_MAX         (16ull << 40) /* page numbers have 32 bits */

/* clang-format off */
static const tn_option_row rows[] = {
	{.layer = "mem", .name = "limit", .type = TN_OPT_BYTES, .dflt = "0", .min = 0, .max = RESERVE_MAX,
	 .help = "byte budget of registered memory per context; 0 = none"},
	{.layer = "mem", .name = "reserve", .type = TN_OPT_BYTES, .dflt = "0", .min = 0, .max = RESERVE_MAX,
	 .help = "address space to reserve; 0 = four times the host's memory, at least 64 GiB"},
	{.layer = "mem", .name = "huge_pages", .type = TN_OPT_BOOL, .dflt = "on",
	 .help = "use explicit 2 MiB pages while there are free ones (vm.nr_hugepages)"},
	{.layer = "mem", .name = "extent_min", .type = TN_OPT_BYTES, .dflt = "2MiB",
	 .min = TN_MEM_EXTENT_BYTES_MIN, .max = TN_MEM_EXTENT_BYTES_MAX,
	 .help = "smallest extent: the unit of commitment and of registration"},
	{0},
};
/* clang-format on */
TN_OPTION_TABLE(mem, rows)

void tn_mem_params_load(tn_mem_params *params, const tn_options *options)
{
	*params = (tn_mem_params){
		.limit_bytes = tn_opt_u64(options, rows, "limit"),
		.reserve_bytes = tn_opt_u64(options, rows, "reserve"),
		.huge_pages = tn_opt_bool(options, rows, "huge_pages"),
		.extent_bytes_min = tn_opt_u64(options, rows, "extent_min"),
	};
}

static inline uint64_t to_granules(uint64_t bytes)
{
	return (bytes + TN_MEM_EXTENT_BYTES_MIN - 1) / TN_MEM_EXTENT_BYTES_MIN * TN_MEM_EXTENT_BYTES_MIN;
}

static uint64_t default_reserve(void)
{
	tn_os_limits limits;

	tn_os_limits_get(&limits);
	return to_granules(TN_MIN(TN_MAX(limits.memory_bytes * 4, RESERVE_DEFAULT_MIN), RESERVE_MAX));
}

static tern_status reserve(tern_mem *mem, uint64_t wanted)
{
	uint64_t bytes = wanted ? to_granules(wanted) : default_reserve();
	void *base;

	if (bytes > RESERVE_MAX)
		return tn_fail(TERN_E_INVALID, "reserve of %" PRIu64 " bytes: at most 16 TiB", wanted);
	TN_TRY(tn_os_mem_reserve(bytes, TN_MIN(bytes, RESERVE_MIN), &base, &mem->reserved));
	mem->base = base;
	mem->granule_count = mem->reserved >> TN_GRANULE_SHIFT;
	if (!TN_FAULT("mem.pool.meta"))
		mem->granules = calloc(mem->granule_count, sizeof(*mem->granules));
	if (!mem->granules) {
		tn_os_mem_unreserve(mem->base, mem->reserved);
		return tn_fail(TERN_E_NOMEM, "no memory for the table of granules");
	}
	if (mem->reserved < bytes)
		TN_LOG(INFO, MEM, "address space: %" PRIu64 " GiB wanted, %" PRIu64 " GiB granted",
		       bytes >> 30, mem->reserved >> 30);
	return TERN_OK;
}

static void arenas_init(tern_mem *mem)
{
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		tn_arena *arena = &mem->arenas[i];

		pthread_mutex_init(&arena->lock, NULL);
		arena->mem = mem;
		arena->access = i % 4;
		arena->huge_only = i >= 4;
		tn_runs_init(arena);
	}
}

static void pool_free(tern_mem *mem)
{
	for (uint32_t i = 0; i < TN_ARENAS; i++)
		pthread_mutex_destroy(&mem->arenas[i].lock);
	pthread_mutex_destroy(&mem->grow);
	tn_guards_fini(&mem->guards);
	tn_regions_fini(mem);
	free(mem);
}

tern_status tn_mem_create(const tn_mem_params *params, tern_mem **out)
{
	tn_mem_params dflt;
	tern_status status;
	tern_mem *mem;

	*out = NULL;
	if (!params) {
		tn_mem_params_load(&dflt, NULL);
		params = &dflt;
	}
	mem = TN_FAULT("mem.pool.alloc") ? NULL : calloc(1, sizeof(*mem));
	if (!mem)
		return tn_fail(TERN_E_NOMEM, "no memory for a pool");
	mem->fork_generation = tn_os_fork_generation();
	mem->limit = params->limit_bytes;
	mem->extent_min = to_granules(TN_MAX(params->extent_bytes_min, TN_MEM_EXTENT_BYTES_MIN));
	mem->extent_min = TN_MIN(mem->extent_min, TN_MEM_EXTENT_BYTES_MAX);
	mem->huge_pages = params->huge_pages;
	pthread_mutex_init(&mem->grow, NULL);
	tn_guards_init(&mem->guards);
	arenas_init(mem);
	status = reserve(mem, params->reserve_bytes);
	if (status == TERN_OK) {
		status = tn_regions_init(mem);
		if (status == TERN_OK)
			status = tn_keys_init(&mem->keys);
		if (status == TERN_OK) {
			tn_mem_fork_add(mem);
			*out = mem;
			return TERN_OK;
		}
		tn_os_mem_unreserve(mem->base, mem->reserved);
		free(mem->granules);
	}
	pool_free(mem);
	return status;
}

void tn_mem_destroy(tern_mem *mem)
{
	if (!mem || tn_mem_here(mem) != TERN_OK)
		return; /* a child leaves its parent's pool alone: exec or exit takes it */
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++)
		TN_ASSERT_MSG(!mem->devices[slot].used, "device %u is still attached", slot);
	tn_mem_fork_remove(mem);
	tn_extents_destroy(mem);
	tn_keys_fini(&mem->keys);
	tn_os_mem_unreserve(mem->base, mem->reserved);
	free(mem->granules);
	pool_free(mem);
}

tern_status tn_mem_here(const tern_mem *mem)
{
	if (TN_LIKELY(mem->fork_generation == tn_os_fork_generation()))
		return TERN_OK;
	return tn_fail(TERN_E_FORKED,
		       "this memory was made before fork() by the parent process: make a context in "
		       "the child, or call exec");
}

tn_ext *tn_mem_ext_of(const tern_mem *mem, const void *ptr)
{
	uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)mem->base);
	uint16_t slot;

	if (offset >= mem->reserved)
		return NULL;
	slot = atomic_load_explicit(&mem->granules[offset >> TN_GRANULE_SHIFT], memory_order_acquire);
	return slot ? (tn_ext *)&mem->ext[slot - 1] : NULL;
}

const tn_extent *tn_mem_extent_of(const tern_mem *mem, const void *ptr)
{
	tn_ext *ext = tn_mem_ext_of(mem, ptr);

	return ext ? &ext->pub : NULL;
}

const tn_extent *tn_mem_extent(const tern_mem *mem, uint32_t index)
{
	const tn_ext *ext = &mem->ext[index % TN_MEM_EXTENTS_MAX];

	if (TN_UNLIKELY(index & TN_MEM_REGION))
		return tn_region_extent_at(mem, index);
	if (!atomic_load_explicit(&ext->live, memory_order_acquire) || ext->pub.index != index)
		return NULL;
	return &ext->pub;
}

void tn_mem_count_staged(tern_mem *mem, uint64_t copies)
{
	tn_count(&mem->staging_copies, copies);
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
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		if (!mem->ext[i].live)
			continue;
		stats->extents_huge += mem->ext[i].pub.pages == TN_PAGE_HUGE;
		stats->extents_thp += mem->ext[i].pub.pages == TN_PAGE_THP;
		stats->extents_4k += mem->ext[i].pub.pages == TN_PAGE_4K;
	}
	pthread_mutex_unlock(&mem->grow);
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		stats->blocks += mem->arenas[i].blocks;
		stats->used_bytes += mem->arenas[i].used_bytes;
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
	stats->keys = tn_keys_live(&mem->keys);
	stats->staging_copies = tn_counter_read(&mem->staging_copies);
	stats->refused_frees = tn_counter_read(&mem->refused_frees);
	stats->free_bytes = stats->committed_bytes - TN_MIN(stats->used_bytes, stats->committed_bytes);
}

void tn_mem_counters(tern_mem *mem, void (*fn)(const char *name, uint64_t value, void *arg), void *arg)
{
	tern_mem_stats stats;

	tern_mem_stats_get(mem, &stats);
	fn("mem.limit_bytes", stats.limit_bytes, arg);
	fn("mem.committed_bytes", stats.committed_bytes, arg);
	fn("mem.used_bytes", stats.used_bytes, arg);
	fn("mem.blocks", stats.blocks, arg);
	fn("mem.extents", stats.extents, arg);
	fn("mem.extents_huge", stats.extents_huge, arg);
	fn("mem.extents_thp", stats.extents_thp, arg);
	fn("mem.extents_4k", stats.extents_4k, arg);
	fn("mem.registrations", stats.registrations, arg);
	fn("mem.keys", stats.keys, arg);
	fn("mem.cache_hits", stats.cache_hits, arg);
	fn("mem.staging_copies", stats.staging_copies, arg);
	fn("mem.cache_misses", stats.cache_misses, arg);
	fn("mem.cached_bytes", stats.cached_bytes, arg);
	fn("mem.remote_frees", stats.remote_frees, arg);
	fn("mem.free_bytes", stats.free_bytes, arg);
	fn("mem.free_run_bytes_max", stats.free_run_bytes_max, arg);
	fn("mem.waste_bytes", stats.waste_bytes, arg);
	fn("mem.grows_ahead", stats.grows_ahead, arg);
	fn("mem.grows_waited", stats.grows_waited, arg);
	fn("mem.shrinks", stats.shrinks, arg);
	fn("mem.mappings", stats.mappings, arg);
	fn("mem.refused_frees", stats.refused_frees, arg);
	fn("mem.damage", stats.damage, arg);
}

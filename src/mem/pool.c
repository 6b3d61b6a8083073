/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns a pool's birth and death, its options, and look-up by address and index.
 *
 * Must not know sizes of blocks (alloc.c) or devices (extent.c). Threads: create and destroy in one thread,
 * the rest in any. Tests: tests/unit/mem/test_alloc.c, test_extents.c, test_fork.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "base/os.h"
#include "mem/foreign.h"
#include "mem/cache.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define RESERVE_DEFAULT_MIN (64ull << 30)
#define RESERVE_MIN         (1ull << 30) /* what is left of it in a small sandbox */
#define CACHE_MAX           (256ull << 20)
#define RESERVE_MAX         (16ull << 40) /* page numbers have 32 bits */

/* clang-format off */
static const tn_option_row rows[] = {
	{.layer = "mem", .name = "limit", .type = TN_OPT_BYTES, .dflt = "0", .min = 0, .max = RESERVE_MAX,
	 .help = "byte budget of registered memory per context; 0 = none"},
	{.layer = "mem", .name = "reserve", .type = TN_OPT_BYTES, .dflt = "0", .min = 0, .max = RESERVE_MAX,
	 .help = "address space to reserve; 0 = four times the host's memory, at least 64 GiB"},
	{.layer = "mem", .name = "huge_pages", .type = TN_OPT_BOOL, .dflt = "on",
	 .help = "use explicit 2 MiB pages while there are free ones (vm.nr_hugepages), else ask for transparent "
		 "ones (Linux 6.1)"},
	{.layer = "mem", .name = "extent_min", .type = TN_OPT_BYTES, .dflt = "2MiB",
	 .min = TN_MEM_EXTENT_BYTES_MIN, .max = TN_MEM_EXTENT_BYTES_MAX,
	 .help = "smallest extent: the unit of commitment and of registration"},
	{.layer = "mem", .name = "cache", .type = TN_OPT_BYTES, .dflt = "4MiB", .min = 0, .max = CACHE_MAX,
	 .help = "free small blocks that a thread keeps per exposure class; 0 = none, each allocation locks"},
	{.layer = "mem", .name = "grow_ahead", .type = TN_OPT_BOOL, .dflt = "on",
	 .help = "a helper thread makes extents before they are needed (from 32 MiB on)"},
	{.layer = "mem", .name = "shrink_after", .type = TN_OPT_DURATION, .dflt = "10s", .min = 0,
	 .max = 86400 * TN_NS_PER_SEC,
	 .help = "extents that stayed empty for so long go back to the system; 0 = only when memory is short"},
	{.layer = "mem", .name = "numa", .type = TN_OPT_STRING, .dflt = "auto",
	 .help = "where new extents lie: auto (the node of the thread that needs them), off, or a node's number"},
	{.layer = "mem", .name = "debug", .type = TN_OPT_ENUM, .choices = "off|canary|full",
	 .help = "find misuse, slowly: canary = overruns, double frees, leaks; full = also writes after free"},
	{0},
};
/* clang-format on */
TN_OPTION_TABLE(mem, rows)

/* "auto", "off" or a node; anything else is said and means auto. */
static int numa_of(const char *text)
{
	uint64_t node;

	if (strcmp(text, "off") == 0)
		return TN_NUMA_OFF;
	if (strcmp(text, "auto") == 0)
		return TN_NUMA_AUTO;
	if (tn_parse_u64(text, &node) && node < 64 && (tn_os_numa_nodes() >> node & 1))
		return (int)node + 1;
	TN_LOG(WARN, MEM,
	       "TERN_MEM_NUMA=%s: auto, off, or a node that this process may use (bits 0x%" PRIx64
	       "); taking auto",
	       text, tn_os_numa_nodes());
	return TN_NUMA_AUTO;
}

void tn_mem_params_load(tn_mem_params *params, const tn_options *options)
{
	*params = (tn_mem_params){
		.limit_bytes = tn_opt_u64(options, rows, "limit"),
		.reserve_bytes = tn_opt_u64(options, rows, "reserve"),
		.huge_pages = tn_opt_bool(options, rows, "huge_pages"),
		.extent_bytes_min = tn_opt_u64(options, rows, "extent_min"),
		.cache_bytes = tn_opt_u64(options, rows, "cache"),
		.grow_ahead = tn_opt_bool(options, rows, "grow_ahead"),
		.shrink_ns = tn_opt_u64(options, rows, "shrink_after"),
		.numa = numa_of(tn_opt_string(options, rows, "numa")),
		.debug = tn_opt_enum(options, rows, "debug"),
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

static void unreserve(tern_mem *mem)
{
	tn_os_mem_unreserve(mem->base, mem->reserved);
	free((void *)mem->granules);
	free((void *)mem->marks);
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
	if (!TN_FAULT("mem.pool.meta")) {
		mem->granules = calloc(mem->granule_count, sizeof(*mem->granules));
		mem->marks = calloc(mem->granule_count, sizeof(*mem->marks));
	}
	if (!mem->granules || !mem->marks) {
		unreserve(mem);
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
		arena->index = i;
		arena->access = i % 4;
		arena->huge_only = i >= 4;
		tn_runs_init(arena);
	}
}

/* The helper has ended. */
static void pool_free(tern_mem *mem)
{
	tn_regions_fini(mem);
	tn_caches_destroy(mem);
	for (uint32_t i = 0; i < TN_ARENAS; i++)
		pthread_mutex_destroy(&mem->arenas[i].lock);
	pthread_cond_destroy(&mem->made);
	pthread_mutex_destroy(&mem->grow);
	tn_guards_fini(&mem->guards);
	free(mem);
}

static void take_params(tern_mem *mem, const tn_mem_params *params)
{
	static _Atomic uint64_t ids;

	mem->id = atomic_fetch_add(&ids, 1) + 1;
	mem->fork_generation = tn_os_fork_generation();
	mem->limit = params->limit_bytes;
	mem->extent_min = to_granules(TN_MAX(params->extent_bytes_min, TN_MEM_EXTENT_BYTES_MIN));
	mem->extent_min = TN_MIN(mem->extent_min, TN_MEM_EXTENT_BYTES_MAX);
	mem->huge_pages = params->huge_pages;
	mem->debug = (tn_mem_debug)params->debug;
	/* Debugging wants every block in one place. */
	mem->cache_bytes = mem->debug ? 0 : TN_MIN(params->cache_bytes, CACHE_MAX);
	mem->grow_ahead = params->grow_ahead;
	mem->shrink_ns = params->shrink_ns;
	mem->numa = params->numa;
	/* One node: nothing to prefer. */
	if (mem->numa == TN_NUMA_AUTO && (tn_os_numa_nodes() & (tn_os_numa_nodes() - 1)) == 0)
		mem->numa = TN_NUMA_OFF;
}

/* What can fail; undone by the caller's pool_free and by what is below each. */
static tern_status pool_open(tern_mem *mem, const tn_mem_params *params)
{
	tern_status status;

	TN_TRY(reserve(mem, params->reserve_bytes));
	status = tn_regions_init(mem);
	if (status == TERN_OK)
		status = tn_keys_init(&mem->keys);
	if (status == TERN_OK) {
		status = mem->debug ? tn_debug_create(mem) : TERN_OK;
		if (status == TERN_OK)
			return TERN_OK;
		tn_keys_fini(&mem->keys);
	}
	unreserve(mem);
	return status;
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
	take_params(mem, params);
	pthread_mutex_init(&mem->grow, NULL);
	pthread_cond_init(&mem->made, NULL);
	tn_ahead_init(&mem->ahead);
	tn_caches_init(mem);
	tn_guards_init(&mem->guards);
	arenas_init(mem);
	status = pool_open(mem, params);
	if (status != TERN_OK) {
		tn_ahead_fini(&mem->ahead);
		pool_free(mem);
		return status;
	}
	tn_mem_fork_add(mem);
	*out = mem;
	return TERN_OK;
}

void tn_mem_destroy(tern_mem *mem)
{
	if (!mem || tn_mem_here(mem) != TERN_OK)
		return; /* a child leaves its parent's pool alone: exec or exit takes it */
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++)
		TN_ASSERT_MSG(!mem->devices[slot].used, "device %u is still attached", slot);
	tn_mem_fork_remove(mem); /* from here on no thread's end looks at it */
	tn_ahead_fini(&mem->ahead);
	if (mem->debug)
		tn_debug_destroy(mem);
	tn_extents_destroy(mem);
	tn_keys_fini(&mem->keys);
	unreserve(mem);
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

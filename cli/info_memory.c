/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern info --memory`: which pages registered memory gets here and why not better ones, what bounds it, and the
 * statistics of a context that is opened for it: so devices have registered what they always do. Threads: main.
 */
#include "info.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <tern/ctx.h>
#include <tern/mem.h>

#include "host.h"

#define PROBE_BYTES (2ull << 20)

typedef struct stat_row {
	const char *name;
	size_t offset;
	bool bytes;
	const char *help;
} stat_row;

#define ROW(field, bytes, help)                                      \
	{                                                            \
#field, offsetof(tern_mem_stats, field), bytes, help \
	}
static const stat_row stat_rows[] = {
	ROW(committed_bytes, true, "in extents"),
	ROW(used_bytes, true, "in live blocks, rounding included"),
	ROW(free_bytes, true, "committed and in no block"),
	ROW(free_run_bytes_max, true, "the largest block that fits without growth"),
	ROW(cached_bytes, true, "free, kept by threads for their next allocations"),
	ROW(waste_bytes, true, "of used_bytes: rounding, estimated"),
	ROW(blocks, false, "live"),
	ROW(keys, false, "live"),
	ROW(extents, false, ""),
	ROW(extents_huge, false, "of explicit huge pages"),
	ROW(extents_thp, false, "transparent huge pages advised and allowed"),
	ROW(extents_4k, false, "of 4 KiB pages"),
	ROW(registrations, false, "extents x devices that register"),
	ROW(mappings, false, "of vm.max_map_count"),
	ROW(cache_hits, false, "blocks taken from a thread's own cache"),
	ROW(cache_misses, false, "small blocks that needed the lock"),
	ROW(remote_frees, false, "blocks freed by another thread"),
	ROW(grows_ahead, false, "extents made in the background"),
	ROW(grows_waited, false, "extents that an allocation waited for"),
	ROW(shrinks, false, "extents given back"),
	ROW(staging_copies, false, "transfers of memory that was not registered"),
	ROW(refused_frees, false, "freed twice, or not a block"),
	ROW(damage, false, "debug mode: blocks written past their end or after their free"),
};
#define ROWS (sizeof(stat_rows) / sizeof(stat_rows[0]))

static uint64_t stat_value(const tern_mem_stats *stats, unsigned i)
{
	uint64_t value;

	memcpy(&value, (const char *)stats + stat_rows[i].offset, sizeof(value));
	return value;
}

/* What a block of 2 MiB gets, and what stands against better. */
typedef struct pages {
	const char *kind; /* "huge", "thp", "4k" */
	char huge[256], thp[160];
} pages;

static tern_status find_pages(tern_mem *mem, pages *p)
{
	tern_mem_stats before, after;
	tern_status status;
	char mode[32];
	void *block;

	status = tern_mem_alloc(mem, PROBE_BYTES, 0, TERN_ACCESS_NONE, TERN_MEM_HUGE, &block);
	if (status == TERN_OK)
		tern_mem_free(mem, block);
	snprintf(p->huge, sizeof(p->huge), "%s", status == TERN_OK ? "available" : tern_detail());
	tern_mem_stats_get(mem, &before);
	status = tern_mem_alloc(mem, PROBE_BYTES, 0, TERN_ACCESS_READ, TERN_MEM_HOST, &block);
	if (status != TERN_OK)
		return status;
	tern_mem_stats_get(mem, &after);
	tern_mem_free(mem, block);
	p->kind = after.extents_huge > before.extents_huge ? "huge"
		  : after.extents_thp > before.extents_thp ? "thp"
		  : after.extents_4k > before.extents_4k   ? "4k"
		  : after.extents_huge                     ? "huge"
		  : after.extents_thp                      ? "thp"
							   : "4k";
	if (!host_chosen(mode, sizeof(mode), "/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
		snprintf(p->thp, sizeof(p->thp), "this kernel has no transparent_hugepage/shmem_enabled");
	else if (strcmp(mode, "never") != 0 && strcmp(mode, "deny") != 0)
		snprintf(p->thp, sizeof(p->thp), "shmem_enabled is \"%s\"", mode);
	else
		snprintf(p->thp, sizeof(p->thp), "shmem_enabled is \"%s\"%s", mode,
			 strcmp(p->kind, "4k") == 0 ? ": set it to \"advise\" for 2 MiB pages (from Linux "
						      "6.1 on \"never\" has them on request)"
						    : ": made on request");
	return TERN_OK;
}

static uint64_t hard_memlock(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_MEMLOCK, &r) != 0 || r.rlim_max == RLIM_INFINITY)
		return HOST_NO_LIMIT;
	return r.rlim_max;
}

static void limit_text(const char *name, uint64_t value, const char *note)
{
	char text[32];

	printf("  %-18s %-18s %s\n", name, host_size(value, text, sizeof(text)), note);
}

typedef struct device_walk {
	json *j;
	unsigned count;
} device_walk;

/* Devices say in their counters what they registered: "verbs.registrations.mlx5_0". */
static void on_counter(const char *name, uint64_t value, void *arg)
{
	device_walk *walk = arg;

	if (!strstr(name, ".registrations") || strncmp(name, "mem.", 4) == 0)
		return;
	walk->count++;
	if (walk->j)
		json_u64(walk->j, name, value);
	else
		printf("  %-18s %llu\n", name, (unsigned long long)value);
}

static void print_text(tern_ctx *ctx, const tern_mem_stats *stats, const pages *p, const char *nodes)
{
	uint64_t limit, used;
	device_walk walk = {0};
	char text[32];

	printf("\nmemory (of a context that was opened for this)\n");
	printf("  %-18s %s\n", "pages", p->kind);
	printf("  %-18s %s\n", "huge pages", p->huge);
	printf("  %-18s %s\n", "transparent", p->thp);
	limit_text("budget", stats->limit_bytes ? stats->limit_bytes : HOST_NO_LIMIT, "TERN_MEM_LIMIT");
	limit_text("memlock_max", hard_memlock(), "the hard limit: how far a process may raise its own");
	if (host_cgroup_memory(&limit, &used))
		printf("  %-18s %-18s %s\n", "cgroup_memory", host_size(limit, text, sizeof(text)),
		       "of this container or service");
	else
		printf("  %-18s %-18s %s\n", "cgroup_memory", "none", "no limit, or it is not visible");
	printf("  %-18s %s\n", "numa_nodes", nodes);
	for (unsigned i = 0; i < ROWS; i++) {
		uint64_t value = stat_value(stats, i);

		if (stat_rows[i].bytes)
			host_size(value, text, sizeof(text));
		else
			snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
		printf("  %-18s %-18s %s\n", stat_rows[i].name, text, stat_rows[i].help);
	}
	tern_ctx_counters(ctx, on_counter, &walk);
	if (walk.count == 0)
		printf("  %-18s %s\n", "devices", "none that needs registrations is open");
}

static void print_json(json *j, tern_ctx *ctx, const tern_mem_stats *stats, const pages *p, const char *nodes)
{
	uint64_t limit, used, hard = hard_memlock();
	device_walk walk = {.j = j};

	json_object(j, "memory");
	json_string(j, "pages", p->kind);
	json_string(j, "huge_pages", p->huge);
	json_string(j, "transparent", p->thp);
	json_u64(j, "budget", stats->limit_bytes);
	if (hard == HOST_NO_LIMIT)
		json_null(j, "memlock_max");
	else
		json_u64(j, "memlock_max", hard);
	if (host_cgroup_memory(&limit, &used))
		json_u64(j, "cgroup_memory", limit);
	else
		json_null(j, "cgroup_memory");
	json_string(j, "numa_nodes", nodes);
	for (unsigned i = 0; i < ROWS; i++)
		json_u64(j, stat_rows[i].name, stat_value(stats, i));
	json_object(j, "devices");
	tern_ctx_counters(ctx, on_counter, &walk);
	json_object_end(j);
	json_object_end(j);
}

int info_memory(json *j)
{
	const tern_ctx_params params = {.listen = "", .name = "info"};
	char may_use[64], online[64], nodes[160];
	tern_mem_stats stats;
	pages p = {0};
	tern_ctx *ctx;

	if (tern_ctx_create(&params, &ctx) != TERN_OK) {
		fprintf(stderr, "tern info: %s\n", tern_detail());
		return 1;
	}
	if (find_pages(tern_ctx_mem(ctx), &p) != TERN_OK) {
		fprintf(stderr, "tern info: %s\n", tern_detail());
		tern_ctx_destroy(ctx);
		return 1;
	}
	tern_mem_stats_get(tern_ctx_mem(ctx), &stats);
	if (!host_read(online, sizeof(online), "/sys/devices/system/node/online"))
		snprintf(online, sizeof(online), "0");
	host_keyed(may_use, sizeof(may_use), "/proc/self/status", "Mems_allowed_list");
	snprintf(nodes, sizeof(nodes), "%.60s online, this process may use %.60s", online,
		 may_use[0] ? may_use : "all");
	if (j)
		print_json(j, ctx, &stats, &p, nodes);
	else
		print_text(ctx, &stats, &p, nodes);
	tern_ctx_destroy(ctx);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern info`: version, providers and GPUs with the reason why each is usable or not, limits of this host that matter
 * to registered memory and links, options with value, default and source. Threads: main.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <tern/ctx.h>
#include <tern/mem.h>

#include "args.h"
#include "commands.h"
#include "host.h"
#include "info.h"
#include "json.h"

#define NO_LIMIT UINT64_MAX

typedef struct limit {
	const char *name;
	const char *unit;
	uint64_t value; /* NO_LIMIT */
	bool known;
	const char *note;
} limit;

static limit rlimit_row(const char *name, int which, const char *unit, const char *note)
{
	limit row = {.name = name, .unit = unit, .note = note};
	struct rlimit r;

	row.known = getrlimit((__rlimit_resource_t)which, &r) == 0;
	row.value = r.rlim_cur == RLIM_INFINITY ? NO_LIMIT : r.rlim_cur;
	return row;
}

/* A number behind a key in a /proc or /sys file ("HugePages_Free:", or the first one for key ""). */
static limit file_row(const char *name, const char *path, const char *key, uint64_t scale, const char *unit,
		      const char *note)
{
	limit row = {.name = name, .unit = unit, .note = note};
	char line[256];
	FILE *file = fopen(path, "r");

	while (file && !row.known && fgets(line, sizeof(line), file)) {
		char *end, *number = line + strlen(key);

		if (strncmp(line, key, strlen(key)) != 0)
			continue;
		row.value = strtoull(number, &end, 10) * scale;
		row.known = end != number;
	}
	if (file)
		fclose(file);
	return row;
}

static limit shm_row(void)
{
	limit row = {
		.name = "dev_shm_free", .unit = "bytes", .note = "not used: segments are nameless (memfd)"};
	struct statvfs fs;

	row.known = statvfs("/dev/shm", &fs) == 0;
	row.value = row.known ? fs.f_bavail * fs.f_frsize : 0;
	return row;
}

static unsigned find_limits(limit rows[16])
{
	unsigned n = 0;

	rows[n++] = rlimit_row("memlock", RLIMIT_MEMLOCK, "bytes",
			       "RDMA NICs pin registered memory: raise it for verbs");
	rows[n++] = rlimit_row("descriptors", RLIMIT_NOFILE, "", "one per extent, link and lane");
	rows[n++] = rlimit_row("address_space", RLIMIT_AS, "bytes", "registered memory reserves it at once");
	rows[n++] = file_row("huge_pages_free", "/proc/meminfo", "HugePages_Free:", 1, "pages",
			     "0: extents use THP or 4 KiB pages; sysctl vm.nr_hugepages");
	rows[n++] = file_row("huge_page_size", "/proc/meminfo", "Hugepagesize:", 1024, "bytes", "");
	rows[n++] =
		file_row("max_map_count", "/proc/sys/vm/max_map_count", "", 1, "mappings", "one per extent");
	rows[n++] = file_row("memory_available", "/proc/meminfo", "MemAvailable:", 1024, "bytes", "");
	rows[n++] = shm_row();
	return n;
}

static void thp_mode(char *mode, size_t bytes)
{
	if (!host_chosen(mode, bytes, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
		snprintf(mode, bytes, "unknown");
}

static void print_limit(const limit *row)
{
	char value[64];

	if (!row->known)
		snprintf(value, sizeof(value), "unknown");
	else if (row->value == NO_LIMIT)
		snprintf(value, sizeof(value), "unlimited");
	else if (strcmp(row->unit, "bytes") == 0 && row->value >= 1u << 20)
		snprintf(value, sizeof(value), "%.1f MiB", (double)row->value / 1048576);
	else
		snprintf(value, sizeof(value), "%llu %s", (unsigned long long)row->value, row->unit);
	printf("  %-18s %-18s %s\n", row->name, value, row->note);
}

static int print_options(json *j)
{
	tern_option_info o;
	tern_status status;
	unsigned i = 0;

	if (j)
		json_array(j, "options");
	else
		printf("\noptions (environment variable; value; default; source)\n");
	while ((status = tern_option_get(i++, &o)) == TERN_OK) {
		if (!j) {
			printf("  %-28s %-12s default %-12s %-11s %s\n", o.env,
			       o.value[0] ? o.value : "(none)", o.dflt[0] ? o.dflt : "(none)", o.source,
			       o.help);
			continue;
		}
		json_object(j, NULL);
		json_string(j, "name", o.name);
		json_string(j, "env", o.env);
		json_string(j, "value", o.value);
		json_string(j, "default", o.dflt);
		json_string(j, "source", o.source);
		json_string(j, "type", o.type);
		json_string(j, "help", o.help);
		json_object_end(j);
	}
	if (j)
		json_array_end(j);
	if (status != TERN_E_NOT_FOUND) {
		fprintf(stderr, "tern info: %s\n", tern_detail());
		return 1;
	}
	return 0;
}

static int print_text(const limit *limits, unsigned n, const char *thp, bool config, bool memory)
{
	int rc = 0;
	tern_provider_info p;
	tern_gpu_info gpu;

	printf("tern %s\n\nproviders\n", tern_version());
	for (unsigned i = 0; tern_provider_probe(i, &p) == TERN_OK; i++)
		printf("  %-8s %-4s %s\n", p.name, p.usable ? "yes" : "no", p.reason);
	printf("\nGPUs\n");
	for (unsigned i = 0; tern_gpu_probe(i, &gpu) == TERN_OK; i++)
		printf("  %-8s %-4s %s\n", gpu.name, gpu.usable ? "yes" : "no", gpu.reason);
	printf("\nlimits\n");
	for (unsigned i = 0; i < n; i++)
		print_limit(&limits[i]);
	printf("  %-18s %-18s %s\n", "thp_of_memfd", thp,
	       "shmem_enabled: \"advise\" or \"always\" lets extents use 2 MiB pages");
	if (memory)
		rc = info_memory(NULL);
	return rc == 0 && config ? print_options(NULL) : rc;
}

static int print_json(const limit *limits, unsigned n, const char *thp, bool config, bool memory)
{
	tern_provider_info p;
	tern_gpu_info gpu;
	int rc = 0;
	json j;

	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "version", tern_version());
	json_array(&j, "providers");
	for (unsigned i = 0; tern_provider_probe(i, &p) == TERN_OK; i++) {
		json_object(&j, NULL);
		json_string(&j, "name", p.name);
		json_bool(&j, "usable", p.usable);
		json_string(&j, "reason", p.reason);
		json_object_end(&j);
	}
	json_array_end(&j);
	json_array(&j, "gpus");
	for (unsigned i = 0; tern_gpu_probe(i, &gpu) == TERN_OK; i++) {
		json_object(&j, NULL);
		json_string(&j, "name", gpu.name);
		json_bool(&j, "usable", gpu.usable);
		json_bool(&j, "dma_buf", gpu.dma_buf);
		json_u64(&j, "bytes", gpu.bytes);
		json_string(&j, "reason", gpu.reason);
		json_object_end(&j);
	}
	json_array_end(&j);
	json_object(&j, "limits");
	for (unsigned i = 0; i < n; i++)
		if (!limits[i].known || limits[i].value == NO_LIMIT)
			json_null(&j, limits[i].name);
		else
			json_u64(&j, limits[i].name, limits[i].value);
	json_string(&j, "thp_of_memfd", thp);
	json_object_end(&j);
	if (memory)
		rc = info_memory(&j);
	if (config)
		rc |= print_options(&j);
	json_object_end(&j);
	putchar('\n');
	return rc;
}

int cmd_info(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern info",
		.summary = "version, providers, limits of this host, options",
		.synopsis = "tern info [--memory] [--config] [--json]",
	};
	bool config = false, memory = false, as_json = false;
	const arg_row rows[] = {
		{"memory", ARG_FLAG, &memory, NULL, "what registered memory gets here, and its statistics", 0,
		 0, false, NULL},
		{"config", ARG_FLAG, &config, NULL, "every option with value, default and source", 0, 0,
		 false, NULL},
		{"json", ARG_FLAG, &as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	limit limits[16];
	char thp[32];
	unsigned n;
	int rc;

	rc = args_parse(&usage, rows, argc, argv, NULL);
	if (rc >= 0)
		return rc;
	n = find_limits(limits);
	thp_mode(thp, sizeof(thp));
	rc = as_json ? print_json(limits, n, thp, config, memory)
		     : print_text(limits, n, thp, config, memory);
	return rc ? rc : fflush(stdout) == 0 ? 0 : 1;
}

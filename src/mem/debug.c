/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns debug mode (option mem.debug): who allocated each live block and how many bytes, canaries behind them,
 * poison, and the reports. Nothing is aborted: a fault is an ERROR in the log with the call sites of those
 * concerned, and counts in tern_mem_stats.damage or .refused_frees.
 *
 *   |<------ usable of the class ------>|
 *   |  asked (poison A5)  |  canary C5  |      freed: asked bytes become DF (full), watched until reused
 *
 * tern_mem_usable and keys end where the canary begins, so that neither owner nor peer has a right to it.
 * Records are out of band. Must not be used on the data path: a lock and a stack walk per call.
 * Threads: any; one lock, inside an arena's. Tests: tests/unit/mem/test_debug.c.
 */
#include <dlfcn.h>
#include <execinfo.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "mem/pool.h"

#define CANARY_BYTES 16
#define CANARY       0xc5
#define POISON_BORN  0xa5
#define POISON_DEAD  0xdf
#define DEAD_MAX     1024 /* freed blocks that are still watched */
#define SITES_MAX    16   /* call sites in a leak report */
#define TEXT_MAX     320

typedef struct tn_site {
	void *frame[TN_SITE_DEPTH];
	int depth;
} tn_site;

typedef struct tn_record {
	uint8_t *ptr;
	uint64_t bytes, usable;
	tn_site born, died;
} tn_record;

struct tn_debug {
	pthread_mutex_t lock;
	tn_map live; /* address -> tn_record * */
	tn_record dead[DEAD_MAX];
	uint32_t next; /* the oldest of dead[] */
};

/* The callers of the library's functions: what lies between them and here is skipped. */
__attribute__((noinline)) static void site_take(tn_site *site)
{
	void *all[TN_SITE_DEPTH + 3];
	int n = backtrace(all, TN_SITE_DEPTH + 3);
	int skip = TN_MIN(n, 3);

	site->depth = n - skip;
	memcpy(site->frame, all + skip, (size_t)site->depth * sizeof(all[0]));
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* "f+0x12 (libx.so) < g+0x40 (train) < ..." */
static const char *site_text(const tn_site *site, char *text, size_t size)
{
	size_t at = 0;

	snprintf(text, size, "(unknown)");
	for (int i = 0; i < site->depth && at < size; i++) {
		/* A return address may be the first byte of the next function. */
		const uint8_t *pc = (const uint8_t *)site->frame[i] - 1;
		const char *sep = i ? " < " : "";
		Dl_info info = {0};
		int n;

		if (dladdr(pc, &info) && info.dli_sname)
			n = snprintf(text + at, size - at, "%s%s+0x%tx (%s)", sep, info.dli_sname,
				     pc - (const uint8_t *)info.dli_saddr, base_name(info.dli_fname));
		else if (info.dli_fname)
			n = snprintf(text + at, size - at, "%s%s+0x%tx", sep, base_name(info.dli_fname),
				     pc - (const uint8_t *)info.dli_fbase);
		else
			n = snprintf(text + at, size - at, "%s%p", sep, site->frame[i]);
		at += n > 0 ? (size_t)n : 0;
	}
	return text;
}

tern_status tn_debug_create(tern_mem *mem)
{
	struct tn_debug *debug = TN_FAULT("mem.debug.alloc") ? NULL : calloc(1, sizeof(*debug));

	if (debug && tn_map_init(&debug->live, 1024, false, 0) != TERN_OK) {
		free(debug);
		debug = NULL;
	}
	if (!debug)
		return tn_fail(TERN_E_NOMEM, "no memory for the records of TERN_MEM_DEBUG");
	pthread_mutex_init(&debug->lock, NULL);
	mem->debugger = debug;
	return TERN_OK;
}

uint64_t tn_debug_padded(uint64_t bytes)
{
	return bytes + CANARY_BYTES;
}

/* The first byte that is not `value`, or `bytes`. */
static uint64_t first_other(const uint8_t *at, uint64_t bytes, uint8_t value)
{
	uint64_t i = 0;

	while (i < bytes && at[i] == value)
		i++;
	return i;
}

static void report(tern_mem *mem, const tn_record *record, const char *what, uint64_t offset)
{
	char born[TEXT_MAX], died[TEXT_MAX];

	tn_count(&mem->damage, 1);
	TN_LOG(ERROR, MEM, "block %p of %" PRIu64 " bytes: %s at offset %" PRIu64 "; allocated by %s%s%s",
	       (void *)record->ptr, record->bytes, what, offset, site_text(&record->born, born, sizeof(born)),
	       record->died.depth ? "; freed by " : "",
	       record->died.depth ? site_text(&record->died, died, sizeof(died)) : "");
}

static void check_canary(tern_mem *mem, const tn_record *record)
{
	uint64_t n = record->usable - record->bytes;
	uint64_t at = first_other(record->ptr + record->bytes, n, CANARY);

	if (at == n)
		return;
	report(mem, record, "written past its end", record->bytes + at);
	memset(record->ptr + record->bytes, CANARY, n); /* once is enough */
}

static void check_poison(tern_mem *mem, const tn_record *record)
{
	uint64_t at = first_other(record->ptr, record->bytes, POISON_DEAD);

	if (at < record->bytes)
		report(mem, record, "written after it was freed", at);
}

/* Lock held. Freed blocks in the range are watched no longer; `look`: their poison must be whole. */
static void dead_leave(tern_mem *mem, const uint8_t *from, uint64_t bytes, bool look)
{
	for (uint32_t i = 0; i < DEAD_MAX; i++) {
		tn_record *dead = &mem->debugger->dead[i];

		if (!dead->ptr || dead->ptr >= from + bytes || from >= dead->ptr + dead->usable)
			continue;
		if (look && mem->debug == TN_DEBUG_FULL)
			check_poison(mem, dead);
		dead->ptr = NULL;
	}
}

void tn_debug_born(tern_mem *mem, void *ptr, uint64_t bytes, uint64_t usable)
{
	struct tn_debug *debug = mem->debugger;
	tn_record *record = TN_FAULT("mem.debug.record") ? NULL : calloc(1, sizeof(*record));

	pthread_mutex_lock(&debug->lock);
	dead_leave(mem, ptr, usable, true);
	if (record) {
		*record = (tn_record){.ptr = ptr, .bytes = bytes, .usable = usable};
		site_take(&record->born);
	}
	if (!record || tn_map_put(&debug->live, (uintptr_t)ptr, (uintptr_t)record) != TERN_OK) {
		free(record);
		TN_LOG_LIMITED(WARN, MEM, 1, "no memory to watch a block");
	}
	pthread_mutex_unlock(&debug->lock);
	memset((uint8_t *)ptr + bytes, CANARY, usable - bytes);
	if (mem->debug == TN_DEBUG_FULL)
		memset(ptr, POISON_BORN, bytes);
}

void tn_debug_died(tern_mem *mem, void *ptr)
{
	struct tn_debug *debug = mem->debugger;
	uint64_t value;

	pthread_mutex_lock(&debug->lock);
	if (tn_map_remove(&debug->live, (uintptr_t)ptr, &value)) {
		tn_record *record = (tn_record *)(uintptr_t)value;

		check_canary(mem, record);
		site_take(&record->died);
		if (mem->debug == TN_DEBUG_FULL)
			memset(ptr, POISON_DEAD, record->bytes);
		debug->dead[debug->next] = *record;
		debug->next = (debug->next + 1) % DEAD_MAX;
		free(record);
	}
	pthread_mutex_unlock(&debug->lock);
}

void tn_debug_refused(tern_mem *mem, const void *ptr)
{
	struct tn_debug *debug = mem->debugger;
	char here[TEXT_MAX], born[TEXT_MAX], died[TEXT_MAX];
	tn_site site;

	site_take(&site);
	TN_LOG(ERROR, MEM, "free of %p refused: called by %s", ptr, site_text(&site, here, sizeof(here)));
	pthread_mutex_lock(&debug->lock);
	for (uint32_t i = 0; i < DEAD_MAX; i++) {
		const tn_record *dead = &debug->dead[i];

		if (dead->ptr != ptr)
			continue;
		TN_LOG(ERROR, MEM, "%p was allocated by %s; freed before by %s", ptr,
		       site_text(&dead->born, born, sizeof(born)),
		       site_text(&dead->died, died, sizeof(died)));
		break;
	}
	pthread_mutex_unlock(&debug->lock);
}

bool tn_debug_bytes(tern_mem *mem, const void *ptr, uint64_t *bytes)
{
	const tn_record *record;

	pthread_mutex_lock(&mem->debugger->lock);
	record = tn_map_ptr(&mem->debugger->live, (uintptr_t)ptr);
	if (record)
		*bytes = record->bytes;
	pthread_mutex_unlock(&mem->debugger->lock);
	return record != NULL;
}

void tn_debug_forget(tern_mem *mem, const void *from, uint64_t bytes)
{
	pthread_mutex_lock(&mem->debugger->lock);
	dead_leave(mem, from, bytes, true);
	pthread_mutex_unlock(&mem->debugger->lock);
}

void tn_debug_check(tern_mem *mem)
{
	struct tn_debug *debug = mem->debugger;
	uint64_t cursor = 0;
	tn_map_entry entry;

	pthread_mutex_lock(&debug->lock);
	while (tn_map_next(&debug->live, &cursor, &entry))
		check_canary(mem, (const tn_record *)(uintptr_t)entry.value);
	for (uint32_t i = 0; i < DEAD_MAX && mem->debug == TN_DEBUG_FULL; i++) {
		if (debug->dead[i].ptr)
			check_poison(mem, &debug->dead[i]);
	}
	pthread_mutex_unlock(&debug->lock);
}

/* ---- leaks ---- */

typedef struct leak {
	tn_site site;
	uint64_t blocks, bytes;
} leak;

static void leak_add(leak leaks[SITES_MAX], const tn_record *record, uint64_t *others)
{
	for (int i = 0; i < SITES_MAX; i++) {
		leak *l = &leaks[i];

		if (l->blocks == 0)
			l->site = record->born;
		else if (l->site.depth != record->born.depth ||
			 memcmp(l->site.frame, record->born.frame, (size_t)l->site.depth * sizeof(void *)) !=
				 0)
			continue;
		l->blocks++;
		l->bytes += record->bytes;
		return;
	}
	++*others;
}

static void report_leaks(const leak leaks[SITES_MAX], uint64_t others)
{
	char text[TEXT_MAX], bytes[32];

	for (int i = 0; i < SITES_MAX && leaks[i].blocks; i++)
		TN_LOG(ERROR, MEM, "leak: %" PRIu64 " blocks, %s, never freed; allocated by %s",
		       leaks[i].blocks, tn_format_bytes(leaks[i].bytes, bytes, sizeof(bytes)),
		       site_text(&leaks[i].site, text, sizeof(text)));
	if (others)
		TN_LOG(ERROR, MEM, "leak: %" PRIu64 " blocks of other call sites", others);
}

void tn_debug_destroy(tern_mem *mem)
{
	struct tn_debug *debug = mem->debugger;
	leak leaks[SITES_MAX] = {{{{0}, 0}, 0, 0}};
	uint64_t cursor = 0, others = 0;
	tn_map_entry entry;

	while (tn_map_next(&debug->live, &cursor, &entry)) {
		tn_record *record = (tn_record *)(uintptr_t)entry.value;

		check_canary(mem, record);
		leak_add(leaks, record, &others);
		free(record);
	}
	report_leaks(leaks, others);
	tn_map_fini(&debug->live);
	pthread_mutex_destroy(&debug->lock);
	free(debug);
	mem->debugger = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of mem share: pools with a small reservation, an allocation that must succeed, a registrar
 * that counts and refuses on schedule, and counts of descriptors and mappings of the process.
 */
#ifndef TN_TESTS_MEM_TEST_H
#define TN_TESTS_MEM_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <sys/wait.h>

#include "base/log.h"
#include "mem/pool.h"

#define MiB (1ull << 20)
#define GiB (1ull << 30)

/* A forked child of the test exits with 0. */
static inline void child_ends_well(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static inline tern_mem *make_pool(uint64_t limit)
{
	tn_mem_params params;
	tern_mem *mem = NULL;

	tn_mem_params_load(&params, NULL);
	params.limit_bytes = limit;
	params.reserve_bytes = 4 * GiB;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	assert_non_null(mem);
	return mem;
}

static inline void *get(tern_mem *mem, uint64_t bytes, uint64_t align, uint32_t access)
{
	void *ptr = NULL;
	tern_status status = tern_mem_alloc(mem, bytes, align, access, TERN_MEM_HOST, &ptr);

	if (status != TERN_OK)
		print_error("%s: %s\n", tern_status_name(status), tern_detail());
	assert_int_equal(status, TERN_OK);
	return ptr;
}

static inline tern_mem_stats stats_of(tern_mem *mem)
{
	tern_mem_stats stats;

	tern_mem_stats_get(mem, &stats);
	return stats;
}

/* A device that remembers what it registered. */
typedef struct fake_device {
	int live, total;
	int refuse_at; /* the n-th registration from now fails; 0 = none */
	uint32_t tag;
} fake_device;

static inline tern_status fake_reg(void *arg, const tn_extent *ext, void **reg, uint32_t *lkey,
				   uint32_t *rkey)
{
	fake_device *dev = arg;

	if (dev->refuse_at && --dev->refuse_at == 0)
		return TERN_E_NOMEM;
	dev->live++;
	dev->total++;
	*reg = dev;
	*lkey = dev->tag + ext->index;
	*rkey = dev->tag + 0x10000 + ext->index;
	return TERN_OK;
}

static inline void fake_dereg(void *arg, const tn_extent *ext, void *reg)
{
	fake_device *dev = arg;

	(void)ext;
	assert_ptr_equal(reg, dev);
	dev->live--;
}

static const tn_registrar fake_registrar __attribute__((unused)) = {.reg = fake_reg, .dereg = fake_dereg};

static inline int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Mappings of memfds of the process. */
static inline int count_memfd_maps(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		n += strstr(line, "memfd:tern") != NULL;
	fclose(file);
	return n;
}

/* Errors are provoked on purpose: keep them off the test's output. */
static inline int quiet(void **state)
{
	(void)state;
	tn_log_set_level(TN_LOG_C_MEM, TN_LOG_NONE);
	return 0;
}

#endif

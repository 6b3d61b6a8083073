/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA: every preference works on a machine with one node, extents lie where they may, refusals are survived. */
#include "base/fault.h"
#include "base/options.h"
#include "mem/os_mem.h"
#include "mem_test.h"

static tern_mem *pool(int numa)
{
	tn_mem_params params;
	tern_mem *mem = NULL;

	tn_mem_params_load(&params, NULL);
	params.reserve_bytes = GiB;
	params.numa = numa;
	assert_int_equal(tn_mem_create(&params, &mem), TERN_OK);
	return mem;
}

static void each_preference(void **state)
{
	uint64_t nodes = tn_os_numa_nodes();

	(void)state;
	assert_int_not_equal(nodes, 0);
	for (int numa = TN_NUMA_AUTO; numa <= 64; numa++) {
		tern_mem *mem;
		uint8_t *ptr;

		if (numa > 0 && !(nodes >> (numa - 1) & 1))
			continue;
		mem = pool(numa);
		ptr = get(mem, 3 * MiB, 0, 3);
		memset(ptr, 1, 3 * MiB);
		/* What it got is said, and is a node that there is. */
		assert_int_equal(stats_of(mem).numa_nodes & ~nodes, 0);
		if (numa > 0 && stats_of(mem).numa_nodes)
			assert_int_equal(stats_of(mem).numa_nodes, 1ull << (numa - 1));
		tn_mem_destroy(mem);
	}
}

/* A sandbox may forbid mbind: pages come from anywhere, the memory is there. */
static void refused_binding(void **state)
{
	tern_mem *mem = pool(1);

	(void)state;
	assert_int_equal(tn_fault_set("mem.numa.bind", 1, 1), TERN_OK);
	get(mem, 100, 0, 3);
	assert_int_equal(tn_fault_fired("mem.numa.bind"), 1);
	tn_fault_clear();
	assert_int_equal(stats_of(mem).extents, 1);
	assert_int_equal(tn_os_numa_prefer(mem->base, 4096, 64), 22 /* EINVAL */);
	assert_int_equal(tn_os_numa_of(NULL), -1);
	tn_mem_destroy(mem);
}

static void option(void **state)
{
	static const struct {
		const char *text;
		int numa;
	} rows[] = {{"mem.numa=auto", TN_NUMA_AUTO},
		    {"mem.numa=off", TN_NUMA_OFF},
		    {"mem.numa=0", 1},
		    {"mem.numa=63", TN_NUMA_AUTO}, /* no such node here: said, and auto */
		    {"mem.numa=left", TN_NUMA_AUTO}};

	(void)state;
	for (unsigned i = 0; i < TN_COUNT_OF(rows); i++) {
		const char *pairs[] = {rows[i].text, NULL};
		tn_options *options = NULL;
		tn_mem_params params;

		assert_int_equal(tn_options_load(pairs, &options), TERN_OK);
		tn_mem_params_load(&params, options);
		if (strcmp(rows[i].text, "mem.numa=63") != 0 || !(tn_os_numa_nodes() >> 63 & 1))
			assert_int_equal(params.numa, rows[i].numa);
		tn_options_free(options);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_preference),
		cmocka_unit_test(refused_binding),
		cmocka_unit_test(option),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}

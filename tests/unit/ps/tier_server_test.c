/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers whose tables have more rows than fit into their budgets: cold rows are pulled, pushed, erased, saved and
 * restored as all others. Left out where RocksDB is not installed.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tern/ps_save.h>

#include "ps/save.h"
#include "ps/server.h"
#include "ps_world.h"
#include "support/mem_tier.h"

#define DIM  8
#define KEYS 6000

static char tiers[64], saves[64];

static int make_dirs(void **state)
{
	(void)state;
	snprintf(tiers, sizeof(tiers), "/tmp/tern-test-cold-XXXXXX");
	snprintf(saves, sizeof(saves), "/tmp/tern-test-save-XXXXXX");
	world_tier = tiers;
	return mkdtemp(tiers) == NULL || mkdtemp(saves) == NULL;
}

/* Lock files are all that a server leaves. */
static int drop_dirs(void **state)
{
	uint64_t *sequences;
	unsigned count;
	char name[128];

	(void)state;
	world_tier = NULL;
	if (tn_ckpt_list(saves, &sequences, &count) != TERN_OK)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/ckpt-%020d", saves, (int)sequences[i]);
		if (tn_dir_remove(AT_FDCWD, name) != TERN_OK)
			return -1;
	}
	free(sequences);
	return rmdir(saves) != 0 || tn_dir_remove(AT_FDCWD, tiers) != TERN_OK;
}

static tern_table_schema schema(void)
{
	tern_table_schema s = {
		.name = "t", .dim = DIM, .budget_bytes = 300000, .eviction = TERN_EVICT_LRU, .ttl_steps = 0};

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.1f);
	s.init = (tern_row_init){TERN_ROW_UNIFORM, 1, 3};
	return s;
}

static uint64_t key_of(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15ull;
}

static void push_all(tern_table *table, float by)
{
	static float rows[300 * DIM];
	uint64_t keys[300];
	tern_table_push_params push = {.keys = keys, .count = 300, .rows = rows};

	for (unsigned i = 0; i < 300 * DIM; i++)
		rows[i] = by * (float)(i % 13);
	for (uint64_t at = 0; at < KEYS; at += 300) {
		for (uint64_t i = 0; i < 300; i++)
			keys[i] = key_of(at + i);
		assert_success(tern_table_push_wait(table, &push, 0));
	}
}

static void pull_all(tern_table *table, float *rows, uint8_t *found)
{
	static uint64_t keys[KEYS];
	tern_table_pull_params pull = {
		.keys = keys, .count = KEYS, .rows = rows, .found = found, .unknown = TERN_UNKNOWN_ZERO};

	for (uint64_t i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	assert_success(tern_table_pull_wait(table, &pull, 0));
}

static float before[KEYS * DIM], after[KEYS * DIM], plain[KEYS * DIM];
static uint8_t found[KEYS], found_after[KEYS];

/* A table without a budget is the oracle. */
static void cold_rows_are_rows(void **state)
{
	tern_table_schema s = schema(), all = schema();
	tern_table_stats stats;
	tern_table *table, *oracle;
	uint64_t gone[100];
	world w;

	(void)state;
	if (!test_tier_can(TIER_ROCKSDB))
		skip();
	world_start(&w, 2);
	snprintf(all.name, sizeof(all.name), "t2");
	all.budget_bytes = 0;
	all.eviction = TERN_EVICT_NONE;
	all.init.kind = s.init.kind = TERN_ROW_ZEROS; /* random ones follow from the table's name */
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_success(tern_table_create(w.ps, &all, &oracle));
	for (unsigned i = 1; i <= 3; i++) {
		push_all(table, (float)i);
		push_all(oracle, (float)i);
	}
	for (unsigned i = 0; i < 100; i++)
		gone[i] = key_of(i * 59);
	assert_success(tern_table_erase_wait(table, gone, 100, 0));
	assert_success(tern_table_erase_wait(oracle, gone, 100, 0));
	pull_all(table, before, found);
	pull_all(oracle, plain, found_after);
	assert_memory_equal(before, plain, sizeof(plain));
	assert_memory_equal(found, found_after, sizeof(found));
	assert_success(tern_table_get_stats(w.ps, "t", &stats));
	assert_true(stats.rows == KEYS - 100 && stats.cold_rows > KEYS / 4 && stats.cold_bytes > 0);
	assert_true(stats.evicted == 0 && stats.bytes <= 2 * s.budget_bytes);
	tern_table_close(oracle);
	tern_table_close(table);
	world_stop(&w);
}

static void saves_have_cold_rows(void **state)
{
	tern_ps_save_params params = {.dir = saves, .kind = TERN_PS_SAVE_AUTO};
	tern_table_schema s = schema();
	tern_ps_save_result result;
	tern_table *table;
	uint64_t some[3] = {key_of(1), key_of(2), key_of(3)};
	world w;

	(void)state;
	if (!test_tier_can(TIER_ROCKSDB))
		skip();
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &table));
	push_all(table, 1);
	assert_success(tern_ps_save(w.ps, &params, &result));
	assert_int_equal(result.rows, KEYS);
	assert_success(tern_table_erase_wait(table, some, 3, 0));
	push_all(table, 2);
	assert_success(tern_table_erase_wait(table, some, 2, 0));
	assert_success(tern_ps_save(w.ps, &params, &result));
	assert_true(result.base == 1 && result.rows == KEYS - 2 && result.gone == 2);
	pull_all(table, before, found);
	assert_success(
		tern_ps_save(w.ps, &params, &result)); /* pulls moved rows; touches count, with eviction */
	assert_true(result.base == 2);
	tern_table_close(table);
	world_stop(&w);
	world_start(&w, 1);
	assert_success(tern_ps_restore(w.ps, saves, 2, 0, &result));
	assert_int_equal(result.rows, KEYS - 2);
	assert_success(tern_table_open(w.ps, "t", NULL, &table));
	pull_all(table, after, found_after);
	assert_memory_equal(before, after, sizeof(before));
	assert_memory_equal(found, found_after, sizeof(found));
	tern_table_close(table);
	world_stop(&w);
}

static unsigned directories(void)
{
	DIR *entries = opendir(tiers);
	struct dirent *entry;
	unsigned n = 0;

	while ((entry = readdir(entries)) != NULL)
		n += strncmp(entry->d_name, "tern-tier.", 10) == 0 && !strstr(entry->d_name, "lock");
	closedir(entries);
	return n;
}

static void a_directory_is_one_servers_and_empty_at_first(void **state)
{
	tern_table_schema s = schema();
	tern_ctx_params ctx_params = {.name = "another"};
	tern_ps_server_params params = {.tier_dir = tiers};
	tern_ps_server *other;
	tern_table *table;
	tern_ctx *ctx;
	char stale[128];
	world w;

	(void)state;
	if (!test_tier_can(TIER_ROCKSDB))
		skip();
	snprintf(stale, sizeof(stale), "%s/tern-tier.0.77", tiers);
	assert_int_equal(mkdir(stale, 0755), 0);
	world_start(&w, 1);
	assert_int_equal(directories(), 0);
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_int_equal(directories(), 1);
	assert_success(tern_ctx_create(&ctx_params, &ctx));
	assert_status(tern_ps_server_open(ctx, &params, &other), TERN_E_IN_USE);
	assert_non_null(strstr(tern_detail(), tiers));
	params.tier_dir = "/no/such";
	assert_status(tern_ps_server_open(ctx, &params, &other), TERN_E_IO);
	tern_ctx_destroy(ctx);
	tern_table_close(table);
	assert_success(tern_table_drop(w.ps, "t"));
	world_stop(&w);
	assert_int_equal(directories(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(cold_rows_are_rows, make_dirs, drop_dirs),
		cmocka_unit_test_setup_teardown(saves_have_cold_rows, make_dirs, drop_dirs),
		cmocka_unit_test_setup_teardown(a_directory_is_one_servers_and_empty_at_first, make_dirs,
						drop_dirs),
	};

	return RUN(tests);
}

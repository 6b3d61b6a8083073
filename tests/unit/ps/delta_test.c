/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of checkpoints over several servers: a base and its deltas are the live tables, bit for bit, on any number of
 * servers; whatever save failed, died or was not acknowledged in between. DeepRec#999: a delta does not fit its base;
 * Monolith: what changed is forgotten before it is delivered; HugeCTR#481, recsys-examples#450: updates without order,
 * without deletes.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/checkpoint.h>
#include <tern/ps_save.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/map.h"
#include "ps/save.h"
#include "ps/server.h"
#include "ps_folder.h"
#include "ps_world.h"

#define DIM  3
#define KEYS 3000

/* ---- all that servers have of a table: key -> checksum of the whole record ---- */

static uint64_t mix(uint64_t sum, const void *data, uint64_t bytes)
{
	const uint8_t *at = data;

	for (uint64_t i = 0; i < bytes; i++)
		sum = tn_hash_u64(sum ^ at[i], i);
	return sum;
}

typedef struct image {
	tn_map rows;
	tn_table *t;
} image;

static tern_status add(const tn_record *r, void *arg)
{
	image *im = arg;
	uint64_t sum = mix(1, r->value, tn_table_value_bytes(im->t));

	if (r->state)
		sum = mix(sum, r->state, tn_table_state_bytes(im->t));
	sum = mix(sum, &r->last_step, sizeof(r->last_step));
	assert_null(tn_map_find(&im->rows, r->key));
	return tn_map_put(&im->rows, r->key, sum);
}

static void image_of(world *w, const char *name, image *im)
{
	assert_ok(tn_map_init(&im->rows, KEYS, false, 1));
	for (unsigned i = 0; i < w->servers; i++) {
		ps_share *share = tn_ps_share_get(w->nodes[i].server, tn_ps_table_id(name));
		uint64_t cursor = 0;

		assert_non_null(share);
		im->t = share->engine;
		while (cursor != TN_SCAN_END)
			assert_ok(tn_table_scan(im->t, 0, TERN_TABLE_SLOTS - 1, &cursor, 1000, add, im));
		tn_ps_share_put(share);
	}
}

static void assert_same(const image *a, const image *b)
{
	uint64_t cursor = 0;
	tn_map_entry entry;

	assert_int_equal(a->rows.count, b->rows.count);
	while (tn_map_next(&a->rows, &cursor, &entry)) {
		const uint64_t *other = tn_map_find(&b->rows, entry.key);

		assert_non_null(other);
		assert_int_equal(*other, entry.value);
	}
}

static void assert_restored(unsigned servers, uint64_t sequence, const char *name, const image *wanted)
{
	image got;
	world w;

	world_start(&w, servers);
	assert_success(tern_ps_restore(w.ps, dir, sequence, 0, NULL));
	image_of(&w, name, &got);
	assert_same(wanted, &got);
	tn_map_fini(&got.rows);
	world_stop(&w);
}

/* ---- work ---- */

static tern_table_schema schema_of(const char *name)
{
	tern_table_schema s = counters(name, DIM);

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAM, 0.1f);
	s.init = (tern_row_init){TERN_ROW_UNIFORM, 1, 5};
	return s;
}

static void work(tern_table *table, tn_rand *r, unsigned batches, uint64_t step)
{
	for (unsigned b = 0; b < batches; b++) {
		uint64_t keys[60];
		float rows[60 * DIM];
		tern_table_push_params push = {.keys = keys, .count = 60, .rows = rows, .step = step};

		for (unsigned i = 0; i < 60; i++)
			keys[i] = tn_rand_below(r, KEYS) * 0x9e3779b97f4a7c15ull - 1;
		for (unsigned i = 0; i < 60 * DIM; i++)
			rows[i] = (float)tn_rand_double(r) - 0.5f;
		if (tn_rand_below(r, 4))
			assert_success(tern_table_push_wait(table, &push, 0));
		else
			assert_success(tern_table_erase_wait(table, keys, 20, 0));
	}
}

static tern_ps_save_result save(world *w, tern_ps_save_kind kind, uint32_t deltas_max)
{
	tern_ps_save_params params = {.dir = dir, .kind = kind, .deltas_max = deltas_max};
	tern_ps_save_result result;

	assert_success(tern_ps_save(w->ps, &params, &result));
	return result;
}

static void verify(uint64_t sequence)
{
	tern_checkpoint *c;

	assert_ok(tern_checkpoint_open(dir, sequence, &c));
	assert_ok(tern_checkpoint_verify(c, NULL, NULL));
	tern_checkpoint_close(c);
}

static void base_and_deltas_are_the_live_tables(void **state)
{
	tern_table_schema s = schema_of("a/items"), s2 = schema_of("late");
	tern_table *table, *late;
	tern_ps_save_result result;
	image live[9], other;
	tn_rand r = {4};
	world w;

	(void)state;
	world_start(&w, 3);
	assert_success(tern_table_create(w.ps, &s, &table));
	work(table, &r, 100, 1);
	for (unsigned i = 1; i <= 8; i++) {
		result = save(&w, TERN_PS_SAVE_AUTO, 4);
		image_of(&w, "a/items", &live[i]);
		assert_int_equal(result.sequence, i);
		if (i == 1 || i == 6) /* a base, and after four deltas another one */
			assert_true(result.base == UINT64_MAX && result.rows >= live[i].rows.count);
		else
			assert_true(result.base == i - 1 && result.rows < live[i].rows.count && result.gone);
		if (i == 2)
			assert_success(tern_table_create(w.ps, &s2, &late));
		work(table, &r, 5, 1 + i);
		if (i >= 2)
			work(late, &r, 4, i);
	}
	save(&w, TERN_PS_SAVE_DELTA, 0);
	image_of(&w, "late", &other);
	for (unsigned i = 1; i <= 8; i++) {
		verify(i);
		assert_restored(1 + i % 3, i, "a/items", &live[i]);
		tn_map_fini(&live[i].rows);
	}
	assert_restored(2, 9, "late", &other);
	tn_map_fini(&other.rows);
	tern_table_close(table);
	tern_table_close(late);
	world_stop(&w);
}

/* A table that was dropped and made again is in the delta in full: what the base had of it is not. */
static void a_table_made_anew_is_saved_in_full(void **state)
{
	tern_table_schema s = schema_of("a"), s2 = schema_of("b");
	tern_checkpoint_table_info info;
	tern_checkpoint *c;
	tern_table *a, *b;
	tn_rand r = {8};
	image live;
	world w;

	(void)state;
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &a));
	assert_success(tern_table_create(w.ps, &s2, &b));
	work(a, &r, 30, 1);
	work(b, &r, 30, 1);
	save(&w, TERN_PS_SAVE_BASE, 0);
	tern_table_close(a);
	assert_success(tern_table_drop(w.ps, "a"));
	assert_success(tern_table_create(w.ps, &s, &a));
	work(a, &r, 2, 1);
	assert_int_equal(save(&w, TERN_PS_SAVE_DELTA, 0).base, 1);
	image_of(&w, "a", &live);
	assert_ok(tern_checkpoint_open(dir, 2, &c));
	assert_ok(tern_checkpoint_table(c, 0, &info));
	assert_true(info.full && info.rows == live.rows.count);
	assert_ok(tern_checkpoint_table(c, 1, &info));
	assert_true(!info.full && info.rows == 0);
	tern_checkpoint_close(c);
	assert_restored(1, 2, "a", &live);
	tn_map_fini(&live.rows);
	tern_table_close(a);
	tern_table_close(b);
	world_stop(&w);
}

/* Every write and every fsync of a save fails once, and so does the acknowledgement: no change is lost. */
static void failed_saves_lose_no_changes(void **state)
{
	static const char *const points[] = {"store.file.write", "store.file.sync", "ps.save.ack"};
	tern_ps_save_params params = {.dir = dir, .kind = TERN_PS_SAVE_DELTA};
	tern_table_schema s = schema_of("t");
	uint64_t failures = 0;
	tern_table *table;
	tn_rand r = {3};
	image live;
	world w;

	(void)state;
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &table));
	work(table, &r, 60, 1);
	save(&w, TERN_PS_SAVE_BASE, 0);
	for (unsigned i = 0; i < 3; i++) {
		for (uint64_t nth = 1; nth < 100; nth++) {
			tern_status status;

			work(table, &r, 3, nth);
			tn_fault_clear();
			assert_ok(tn_fault_set(points[i], nth, 1));
			status = tern_ps_save(w.ps, &params, NULL);
			tn_fault_clear();
			failures += status != TERN_OK;
			if (status == TERN_OK && (i < 2 || nth > 3))
				break;
			if (i < 2)
				assert_status(status, TERN_E_IO);
		}
		image_of(&w, "t", &live);
		save(&w, TERN_PS_SAVE_DELTA, 0);
		assert_restored(1 + i, UINT64_MAX, "t", &live);
		tn_map_fini(&live.rows);
	}
	assert_true(failures > 5);
	tern_table_close(table);
	world_stop(&w);
}

/* ---- what is refused ---- */

static void refused(world *w, const char *words)
{
	tern_ps_save_params params = {.dir = dir, .kind = TERN_PS_SAVE_DELTA};

	assert_status(tern_ps_save(w->ps, &params, NULL), TERN_E_STATE);
	if (!strstr(tern_detail(), words))
		fail_msg("%s", tern_detail());
}

static void deltas_that_can_not_be_are_refused_in_words(void **state)
{
	tern_table_schema s = schema_of("t");
	tern_table *table;
	tn_rand r = {3};
	image live;
	world w;

	(void)state;
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &table));
	work(table, &r, 30, 1);
	refused(&w, "holds no checkpoint");
	save(&w, TERN_PS_SAVE_ALONE, 0);
	refused(&w, "no server knows what changed");
	save(&w, TERN_PS_SAVE_BASE, 0);
	work(table, &r, 3, 2);
	save(&w, TERN_PS_SAVE_DELTA, 0);
	/* A save aside leaves the chain alone, but is the last one now. */
	save(&w, TERN_PS_SAVE_ALONE, 0);
	refused(&w, "save a base");
	assert_true(save(&w, TERN_PS_SAVE_AUTO, 0).base == UINT64_MAX);
	image_of(&w, "t", &live);
	tern_table_close(table);
	/* Servers that restart know nothing of changes, until they are restored. */
	world_stop(&w);
	world_start(&w, 3);
	assert_success(tern_table_create(w.ps, &s, &table));
	refused(&w, "no server knows");
	tern_table_close(table);
	assert_success(tern_table_drop(w.ps, "t"));
	assert_success(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, NULL));
	assert_success(tern_table_open(w.ps, "t", NULL, &table));
	work(table, &r, 3, 9);
	tn_map_fini(&live.rows);
	image_of(&w, "t", &live);
	assert_true(save(&w, TERN_PS_SAVE_DELTA, 0).rows < 180);
	assert_restored(1, UINT64_MAX, "t", &live);
	tn_map_fini(&live.rows);
	tern_table_close(table);
	world_stop(&w);
}

static void damage_anywhere_in_the_chain_is_found(void **state)
{
	tern_table_schema s = schema_of("t");
	tern_checkpoint *c;
	tern_table *table;
	tn_rand r = {3};
	char name[160];
	world w;
	int fd;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	work(table, &r, 30, 1);
	save(&w, TERN_PS_SAVE_BASE, 0);
	work(table, &r, 3, 2);
	save(&w, TERN_PS_SAVE_DELTA, 0);
	snprintf(name, sizeof(name), "%s/ckpt-%020d/t.s0000.p000000.safetensors", dir, 1);
	fd = open(name, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "x", 1, lseek(fd, 0, SEEK_END) - 20), 1);
	close(fd);
	assert_ok(tern_checkpoint_open(dir, 2, &c));
	assert_status(tern_checkpoint_verify(c, NULL, NULL), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "ckpt-00000000000000000001: t.s0000"));
	tern_checkpoint_close(c);
	tern_table_close(table);
	assert_success(tern_table_drop(w.ps, "t"));
	assert_status(tern_ps_restore(w.ps, dir, 2, 0, NULL), TERN_E_CORRUPT);
	world_stop(&w);
}

static void keeping_n_keeps_what_they_go_on_from(void **state)
{
	tern_ps_save_params params = {.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 3, .keep = 2};
	tern_table_schema s = schema_of("t");
	uint64_t *sequences;
	tern_table *table;
	tn_rand r = {3};
	unsigned count;
	world w;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	for (unsigned i = 1; i <= 10; i++) {
		work(table, &r, 3, i);
		assert_success(tern_ps_save(w.ps, &params, NULL));
		verify(i);
		assert_ok(tn_ckpt_list(dir, &sequences, &count));
		assert_true(count <= 2 + 4);
		free(sequences);
	}
	/* 9 is a base, 10 its delta: nothing else is needed. */
	assert_ok(tn_ckpt_list(dir, &sequences, &count));
	assert_int_equal(count, 2);
	free(sequences);
	tern_table_close(table);
	world_stop(&w);
}

/* ---- killed ---- */

/* Ones to all keys at once, and saves: until somebody kills us. */
static void push_and_save_for_ever(void)
{
	tern_ps_save_params params = {.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 5, .keep = 3};
	tern_table_schema s = counters("t", DIM);
	uint64_t keys[200], count;
	float rows[200 * DIM];
	tern_table *table;
	unsigned had;
	world w;

	world_start(&w, 2);
	if (tn_ckpt_list(dir, (uint64_t *[]){NULL}, &had) == TERN_OK && had)
		assert_success(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, NULL));
	assert_success(tern_table_create(w.ps, &s, &table));
	for (unsigned i = 0; i < 200; i++)
		keys[i] = i;
	for (unsigned i = 0; i < 200 * DIM; i++)
		rows[i] = 1;
	for (count = 0;; count++) {
		tern_table_push_params push = {.keys = keys, .count = 200, .rows = rows};

		assert_success(tern_table_push_wait(table, &push, 0));
		if (count % 3 == 0)
			assert_success(tern_ps_save(w.ps, &params, NULL));
	}
}

static float count_after_restore(void)
{
	tern_table_pull_params pull = {0};
	float rows[200 * DIM], first;
	uint64_t keys[200];
	tern_table *table;
	world w;

	world_start(&w, 1);
	assert_success(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, NULL));
	assert_success(tern_table_open(w.ps, "t", NULL, &table));
	for (unsigned i = 0; i < 200; i++)
		keys[i] = i;
	pull = (tern_table_pull_params){
		.keys = keys, .count = 200, .rows = rows, .unknown = TERN_UNKNOWN_ERROR};
	assert_success(tern_table_pull_wait(table, &pull, 0));
	first = rows[0];
	for (unsigned i = 0; i < 200 * DIM; i++)
		assert_true(rows[i] == first);
	tern_table_close(table);
	world_stop(&w);
	return first;
}

static void whoever_is_killed_the_last_chain_is_whole(void **state)
{
	float last = 0;

	(void)state;
	for (unsigned round = 0; round < 6; round++) {
		uint64_t *sequences, start = tn_now();
		unsigned count = 0;
		pid_t pid = fork();
		float now;

		assert_true(pid >= 0);
		if (pid == 0) {
			push_and_save_for_ever();
			_exit(0);
		}
		/* Not before there is something; then at any moment. */
		while (count == 0 && tn_now() - start < 60 * TN_NS_PER_SEC) {
			usleep(1000);
			if (tn_ckpt_list(dir, &sequences, &count) == TERN_OK)
				free(sequences);
		}
		usleep(30000 + round * 17331);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		assert_true(count > 0);
		verify(TERN_CHECKPOINT_LAST);
		now = count_after_restore();
		assert_true(now >= last);
		last = now;
	}
	assert_true(last > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(whoever_is_killed_the_last_chain_is_whole, make_dir,
						drop_dir), /* forks: before there are threads */
		cmocka_unit_test_setup_teardown(base_and_deltas_are_the_live_tables, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(a_table_made_anew_is_saved_in_full, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(failed_saves_lose_no_changes, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(deltas_that_can_not_be_are_refused_in_words, make_dir,
						drop_dir),
		cmocka_unit_test_setup_teardown(damage_anywhere_in_the_chain_is_found, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(keeping_n_keeps_what_they_go_on_from, make_dir, drop_dir),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From training to serving: followers take versions in order, deletes and all, each as a whole, and go back. HugeCTR#481,
 * recsys-examples#450: model updates without order, deletes and roll-back; Monolith: changes forgotten before delivery.
 */
#include <fcntl.h>
#include <unistd.h>

#include <tern/checkpoint.h>
#include <tern/ps_follow.h>
#include <tern/ps_save.h>

#include "base/clock.h"
#include "base/fault.h"
#include "ps/follow.h"
#include "ps/save.h"
#include "ps_folder.h"
#include "ps_world.h"

#define DIM  4
#define KEYS 600

static uint64_t key_of(unsigned i)
{
	return i * 0x9e3779b97f4a7c15ull - 1;
}

static tern_table_schema schema_of(const char *name)
{
	tern_table_schema s = counters(name, DIM);

	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAM, 0.1f);
	s.init = (tern_row_init){TERN_ROW_UNIFORM, 1, 5};
	s.ttl_steps = 1000;
	return s;
}

static void follow(world *w, uint32_t flags)
{
	for (unsigned i = 0; i < w->servers; i++) {
		char name[32];
		tern_ps_follow_params params = {.dir = dir, .name = name, .poll_ns = 5000000, .flags = flags};

		snprintf(name, sizeof(name), "follower.%u", i);
		assert_success(tern_ps_server_follow(w->nodes[i].server, &params));
	}
}

static void wait_for(world *w, uint64_t sequence)
{
	uint64_t end = tn_now() + 60 * TN_NS_PER_SEC;
	tern_ps_follow_stats stats;

	for (unsigned i = 0; i < w->servers; i++) {
		do {
			assert_success(tern_ps_followed(w->ps, i, &stats));
			if (tn_now() > end)
				fail_msg("server %u: version %d of %d: %s", i, (int)stats.sequence,
					 (int)sequence, stats.error);
			tn_sleep_ns(2 * TN_NS_PER_MS);
		} while (stats.sequence != sequence);
		assert_int_equal(stats.newest, sequence);
		assert_true(stats.behind == 0 && stats.behind_ns == 0 && stats.applied > 0);
		assert_true(stats.saved_ns > 0);
	}
}

typedef struct rows {
	float row[KEYS][DIM];
	uint8_t found[KEYS];
} rows;

static void pull(world *w, const char *name, rows *out)
{
	uint64_t keys[KEYS];
	tern_table_pull_params p = {.keys = keys,
				    .count = KEYS,
				    .rows = out->row,
				    .found = out->found,
				    .unknown = TERN_UNKNOWN_ZERO};
	tern_table *table;

	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	assert_success(tern_table_open(w->ps, name, NULL, &table));
	assert_success(tern_table_pull_wait(table, &p, 0));
	tern_table_close(table);
}

static void assert_serves(world *trainer, world *server, const char *name)
{
	static rows a, b;

	pull(trainer, name, &a);
	pull(server, name, &b);
	assert_memory_equal(&a, &b, sizeof(a));
}

static void train(tern_table *table, tn_rand *r, unsigned batches)
{
	for (unsigned b = 0; b < batches; b++) {
		uint64_t keys[40];
		float grads[40 * DIM];
		tern_table_push_params push = {.keys = keys, .count = 40, .rows = grads, .step = b};

		for (unsigned i = 0; i < 40; i++)
			keys[i] = key_of((unsigned)tn_rand_below(r, KEYS));
		for (unsigned i = 0; i < 40 * DIM; i++)
			grads[i] = (float)tn_rand_double(r) - 0.5f;
		assert_success(tern_table_push_wait(table, &push, 0));
		assert_success(tern_table_erase_wait(table, keys, 5, 0));
	}
}

static uint64_t save(world *w, uint64_t step)
{
	tern_ps_save_params p = {
		.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 4, .keep = 3, .step = step};
	tern_ps_save_result result;

	assert_success(tern_ps_save(w->ps, &p, &result));
	return result.sequence;
}

static void versions_are_served_in_order(uint32_t flags, unsigned servers)
{
	tern_table_schema s = schema_of("a/items"), s2 = schema_of("late"), served;
	tern_table *table, *late = NULL;
	tn_rand r = {9};
	world t, w;

	world_start(&t, 2);
	world_start(&w, servers);
	follow(&w, flags); /* before there is anything */
	assert_success(tern_table_create(t.ps, &s, &table));
	for (uint64_t i = 1; i <= 12; i++) {
		train(table, &r, 3);
		if (late)
			train(late, &r, 1);
		assert_int_equal(save(&t, i), i);
		wait_for(&w, i);
		assert_serves(&t, &w, "a/items");
		if (late)
			assert_serves(&t, &w, "late");
		if (i == 3)
			assert_success(tern_table_create(t.ps, &s2, &late));
		if (i == 7) {
			tern_table_close(late);
			late = NULL;
			assert_success(tern_table_drop(t.ps, "late"));
		}
	}
	assert_status(tern_table_describe(w.ps, "late", &served), TERN_E_NOT_FOUND);
	assert_success(tern_table_describe(w.ps, "a/items", &served));
	assert_true(served.optimizer.kind == TERN_OPT_NONE && (served.flags & TERN_TABLE_NO_META));
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

static void followers_serve_versions_in_order(void **state)
{
	(void)state;
	versions_are_served_in_order(0, 1);
}

static void followers_may_share_a_table(void **state)
{
	(void)state;
	versions_are_served_in_order(0, 3);
}

static void followers_may_change_in_place(void **state)
{
	(void)state;
	versions_are_served_in_order(TERN_PS_FOLLOW_IN_PLACE, 2);
}

/* ---- one version at a time ---- */

typedef struct reader {
	pthread_t thread;
	world *w;
	_Atomic bool *stop;
	bool in_place;
	uint64_t pulls, versions, mixed;
	char bad[128];
} reader;

static void *read_on(void *arg)
{
	reader *rd = arg;
	static _Thread_local rows got;
	float last = -1;
	uint64_t keys[KEYS];
	tern_table_pull_params p = {.keys = keys, .count = KEYS, .rows = got.row};
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;

	world_client(rd->w, &ctx, &ps);
	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	if (tern_table_open(ps, "t", NULL, &table) != TERN_OK)
		snprintf(rd->bad, sizeof(rd->bad), "open: %s", tern_detail());
	while (!atomic_load(rd->stop) && !rd->bad[0]) {
		if (tern_table_pull_wait(table, &p, 0) != TERN_OK)
			snprintf(rd->bad, sizeof(rd->bad), "pull: %s", tern_detail());
		for (unsigned i = 0; i < KEYS && !rd->bad[0]; i++) {
			for (unsigned d = 1; d < DIM; d++)
				if (got.row[i][d] != got.row[i][0])
					snprintf(rd->bad, sizeof(rd->bad), "a torn row");
			rd->mixed += got.row[i][0] != got.row[0][0];
		}
		if (got.row[0][0] < last)
			snprintf(rd->bad, sizeof(rd->bad), "a version after a later one");
		rd->versions += got.row[0][0] != last;
		last = got.row[0][0];
		rd->pulls++;
	}
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

/* All rows count the saves: what a pull sees of two different saves would show. */
static void pulls_see_one_version(uint32_t flags)
{
	tern_table_schema s = counters("t", DIM);
	static float ones[KEYS * DIM];
	_Atomic bool stop = false;
	uint64_t keys[KEYS];
	tern_table_push_params push = {.keys = keys, .count = KEYS, .rows = ones};
	tern_table *table;
	reader rd[2];
	world t, w;

	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	for (unsigned i = 0; i < KEYS * DIM; i++)
		ones[i] = 1;
	world_start(&t, 1);
	world_start(&w, 1);
	assert_success(tern_table_create(t.ps, &s, &table));
	assert_success(tern_table_push_wait(table, &push, 0));
	save(&t, 1);
	follow(&w, flags);
	for (unsigned i = 0; i < 2; i++) {
		rd[i] = (reader){.w = &w, .stop = &stop};
		assert_int_equal(pthread_create(&rd[i].thread, NULL, read_on, &rd[i]), 0);
	}
	for (uint64_t i = 2; i <= 25; i++) {
		assert_success(tern_table_push_wait(table, &push, 0));
		wait_for(&w, save(&t, i));
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(rd[i].thread, NULL);
		assert_string_equal(rd[i].bad, "");
		assert_true(rd[i].pulls > 0 && rd[i].versions > 1);
		if (!(flags & TERN_PS_FOLLOW_IN_PLACE))
			assert_int_equal(rd[i].mixed, 0);
	}
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

static void a_pull_sees_one_version_of_a_table(void **state)
{
	(void)state;
	pulls_see_one_version(0);
}

static void in_place_a_pull_sees_one_version_of_each_row(void **state)
{
	(void)state;
	pulls_see_one_version(TERN_PS_FOLLOW_IN_PLACE);
}

/* ---- back, and what goes wrong ---- */

static void followers_go_back_and_on_again(void **state)
{
	tern_table_schema s = schema_of("t");
	static rows seen[6], got;
	tern_ps_follow_stats stats;
	tern_table *table;
	tn_rand r = {2};
	world t, w;

	(void)state;
	world_start(&t, 1);
	world_start(&w, 2);
	assert_success(tern_table_create(t.ps, &s, &table));
	follow(&w, 0);
	for (uint64_t i = 1; i <= 5; i++) {
		tern_ps_save_params p = {
			.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 3, .step = i * 10};

		train(table, &r, 4);
		assert_success(tern_ps_save(t.ps, &p, NULL));
		wait_for(&w, i);
		pull(&w, "t", &seen[i]);
	}
	assert_success(tern_ps_follow_to(w.ps, 2, 0));
	pull(&w, "t", &got);
	assert_memory_equal(&got, &seen[2], sizeof(got));
	assert_success(tern_ps_followed(w.ps, 1, &stats));
	assert_true(stats.sequence == 2 && stats.pinned == 2 && stats.behind == 3 && stats.newest == 5 &&
		    stats.behind_steps == 30 && stats.behind_ns > 0);
	/* One that is not there: it goes on with what it had. */
	assert_status(tern_ps_follow_to(w.ps, 77, 0), TERN_E_NOT_FOUND);
	pull(&w, "t", &got);
	assert_memory_equal(&got, &seen[2], sizeof(got));
	assert_success(tern_ps_follow_to(w.ps, 4, 0));
	pull(&w, "t", &got);
	assert_memory_equal(&got, &seen[4], sizeof(got));
	assert_success(tern_ps_follow_to(w.ps, TERN_PS_FOLLOW_LAST, 0));
	pull(&w, "t", &got);
	assert_memory_equal(&got, &seen[5], sizeof(got));
	assert_status(tern_ps_followed(t.ps, 0, &stats), TERN_E_NO_METHOD);
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

static void followers_are_read_only_and_say_so(void **state)
{
	tern_ps_save_params save_params = {.dir = dir};
	tern_ps_follow_params follow_params = {.dir = dir};
	tern_table_schema s = schema_of("t"), other = schema_of("other");
	tern_table *table, *served;
	float row[DIM], initial[DIM];
	uint64_t key = 12345;
	tern_table_push_params push = {.keys = &key, .count = 1, .rows = row};
	tern_table_pull_params p = {.keys = &key, .count = 1, .rows = row};
	tern_table_stats stats;
	tn_rand r = {2};
	world t, w;

	(void)state;
	world_start(&t, 1);
	world_start(&w, 1);
	assert_success(tern_table_create(t.ps, &s, &table));
	train(table, &r, 2);
	save(&t, 1);
	follow(&w, 0);
	assert_status(tern_ps_server_follow(w.nodes[0].server, &follow_params), TERN_E_STATE);
	assert_status(tern_ps_server_follow(t.nodes[0].server, &follow_params), TERN_E_STATE);
	assert_success(tern_table_open(w.ps, "t", NULL, &served));
	assert_status(tern_table_push_wait(served, &push, 0), TERN_E_STATE);
	assert_non_null(strstr(tern_detail(), "read only"));
	assert_status(tern_table_erase_wait(served, &key, 1, 0), TERN_E_STATE);
	assert_status(tern_table_drop(w.ps, "t"), TERN_E_STATE);
	assert_status(tern_ps_save(w.ps, &save_params, NULL), TERN_E_STATE);
	assert_status(tern_ps_restore(w.ps, dir, 1, 0, NULL), TERN_E_STATE);
	/* A key without a row: its initial value, as in training, and no row comes into being. */
	assert_success(tern_table_pull_wait(served, &p, 0));
	memcpy(initial, row, sizeof(row));
	assert_success(tern_table_pull_wait(table, &p, 0));
	assert_memory_equal(initial, row, sizeof(row));
	assert_success(tern_table_get_stats(w.ps, "t", &stats));
	assert_true(stats.created == 0 && stats.record_bytes < DIM * 4 + 16);
	tern_table_close(served);
	assert_status(tern_table_create(w.ps, &other, &served), TERN_E_STATE);
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

static void change_byte(uint64_t sequence, char to)
{
	char name[160];
	int fd;

	snprintf(name, sizeof(name), "%s/ckpt-%020d/t.s0000.p000000.safetensors", dir, (int)sequence);
	fd = open(name, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &to, 1, lseek(fd, 0, SEEK_END) - 1), 1);
	close(fd);
}

/* Neither damage nor a failure half way shows: the version before is served until the next one is whole. */
static void failures_leave_the_version_before(uint32_t flags)
{
	tern_table_schema s = schema_of("t");
	tern_ps_follow_stats stats;
	tern_table *table;
	static rows before, got;
	tn_rand r = {2};
	world t, w;

	world_start(&t, 1);
	world_start(&w, 1);
	s.flags = TERN_TABLE_NO_META;
	s.ttl_steps = 0;
	assert_success(tern_table_create(t.ps, &s, &table));
	train(table, &r, 4);
	save(&t, 1);
	follow(&w, flags);
	pull(&w, "t", &before);
	assert_ok(tn_fault_set("ps.follow.apply", 1, 1));
	train(table, &r, 4);
	save(&t, 2);
	wait_for(&w, 2); /* after an attempt that failed */
	tn_fault_clear();
	assert_serves(&t, &w, "t");
	assert_success(tern_ps_followed(w.ps, 0, &stats));
	assert_true(stats.failed >= 1 && stats.error[0] == '\0');
	/* A damaged delta is never applied. */
	assert_success(tern_ps_follow_to(w.ps, 2, 0));
	pull(&w, "t", &before);
	train(table, &r, 4);
	save(&t, 3);
	change_byte(3, 'x');
	assert_status(tern_ps_follow_to(w.ps, TERN_PS_FOLLOW_LAST, 0), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "ckpt-00000000000000000003"));
	pull(&w, "t", &got);
	assert_memory_equal(&got, &before, sizeof(got));
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

static void failed_versions_are_not_seen(void **state)
{
	(void)state;
	failures_leave_the_version_before(0);
}

static int note_follower(const tern_checkpoint_follower *f, void *arg)
{
	*(tern_checkpoint_follower *)arg = *f;
	return 0;
}

/* What a follower has not acknowledged stays, whatever `keep` says; then it goes. */
static void what_is_not_acknowledged_is_kept(void **state)
{
	tern_ps_save_params p = {.dir = dir, .kind = TERN_PS_SAVE_AUTO, .deltas_max = 2, .keep = 1};
	tern_table_schema s = schema_of("t");
	tern_checkpoint_follower f = {0};
	uint64_t *sequences;
	tern_table *table;
	tn_rand r = {2};
	unsigned count;
	world t, w;

	(void)state;
	world_start(&t, 1);
	world_start(&w, 1);
	assert_success(tern_table_create(t.ps, &s, &table));
	assert_success(tern_ps_save(t.ps, &p, NULL));
	follow(&w, 0);
	assert_success(tern_ps_follow_to(w.ps, 1, 0));
	for (unsigned i = 2; i <= 8; i++) {
		train(table, &r, 1);
		assert_success(tern_ps_save(t.ps, &p, NULL));
	}
	assert_ok(tern_checkpoint_followers(dir, note_follower, &f));
	assert_string_equal(f.name, "follower.0");
	assert_int_equal(f.sequence, 1);
	assert_ok(tn_ckpt_list(dir, &sequences, &count));
	assert_int_equal(count, 8);
	free(sequences);
	assert_success(tern_ps_follow_to(w.ps, TERN_PS_FOLLOW_LAST, 0));
	assert_serves(&t, &w, "t");
	for (f.sequence = 0; f.sequence != 8;) {
		assert_ok(tern_checkpoint_followers(dir, note_follower, &f));
		tn_sleep_ns(TN_NS_PER_MS);
	}
	assert_success(tern_ps_save(t.ps, &p, NULL));
	assert_ok(tn_ckpt_list(dir, &sequences, &count));
	assert_true(count <= 3);
	free(sequences);
	tern_table_close(table);
	world_stop(&w);
	world_stop(&t);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(followers_serve_versions_in_order, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(followers_may_share_a_table, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(followers_may_change_in_place, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(a_pull_sees_one_version_of_a_table, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(in_place_a_pull_sees_one_version_of_each_row, make_dir,
						drop_dir),
		cmocka_unit_test_setup_teardown(followers_go_back_and_on_again, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(followers_are_read_only_and_say_so, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(failed_versions_are_not_seen, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(what_is_not_acknowledged_is_kept, make_dir, drop_dir),
	};

	if (argc > 1)
		world_transport(argv[1]);
	return RUN(tests);
}

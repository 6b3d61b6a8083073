/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of <tern/ps_save.h> and ps/saver.h: a cut over several servers while clients push, restored on other numbers of
 * servers; leaders that die, saves that are given up, damage. Paddle#32958: pulls fail during a save; HugeCTR#395: counts
 * differ; torchrec#2534: another number of shards can't restore.
 */
#include <fcntl.h>
#include <unistd.h>

#include <tern/checkpoint.h>
#include <tern/ps_save.h>

#include "base/clock.h"
#include "ps/client.h"
#include "ps/facts.h"
#include "ps/save.h"
#include "ps/saver.h"
#include "ps/saver_work.h"
#include "ps_folder.h"
#include "ps_world.h"

#define DIM     4
#define PUSHERS 2
#define SPAN    200 /* keys of each pusher, all in every push */

static uint64_t key_of(unsigned pusher, unsigned i)
{
	return (pusher * SPAN + i) * 0x9e3779b97f4a7c15ull - 1;
}

typedef struct pusher {
	pthread_t thread;
	world *w;
	unsigned id;
	_Atomic uint64_t begun, acknowledged;
	_Atomic bool stop;
	tern_status bad;
	char text[256];
} pusher;

/* Pushes ones, and pulls between: neither ever fails. */
static void *push_loop(void *arg)
{
	pusher *p = arg;
	uint64_t keys[SPAN];
	float rows[SPAN * DIM], got[SPAN * DIM];
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;

	world_client(p->w, &ctx, &ps);
	p->bad = tern_table_open(ps, "a/counters", NULL, &table);
	for (unsigned i = 0; i < SPAN; i++)
		keys[i] = key_of(p->id, i);
	for (unsigned i = 0; i < SPAN * DIM; i++)
		rows[i] = 1;
	while (!atomic_load(&p->stop) && p->bad == TERN_OK) {
		tern_table_push_params push = {.keys = keys, .count = SPAN, .rows = rows};
		tern_table_pull_params pull = {.keys = keys, .count = SPAN, .rows = got};

		atomic_fetch_add(&p->begun, 1);
		p->bad = tern_table_push_wait(table, &push, 0);
		if (p->bad == TERN_OK)
			atomic_fetch_add(&p->acknowledged, 1);
		if (p->bad == TERN_OK)
			p->bad = tern_table_pull_wait(table, &pull, 0);
	}
	snprintf(p->text, sizeof(p->text), "%s", tern_detail());
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void start_pushers(world *w, pusher *p)
{
	for (unsigned i = 0; i < PUSHERS; i++) {
		memset(&p[i], 0, sizeof(p[i]));
		p[i].w = w;
		p[i].id = i;
		assert_int_equal(pthread_create(&p[i].thread, NULL, push_loop, &p[i]), 0);
	}
}

static void stop_pushers(pusher *p)
{
	for (unsigned i = 0; i < PUSHERS; i++)
		atomic_store(&p[i].stop, true);
	for (unsigned i = 0; i < PUSHERS; i++) {
		pthread_join(p[i].thread, NULL);
		if (p[i].bad != TERN_OK)
			fail_msg("pusher %u: %s: %s", i, tern_status_name(p[i].bad), p[i].text);
	}
}

static void pull_counts(world *w, unsigned id, uint64_t counts[SPAN])
{
	uint64_t keys[SPAN];
	float rows[SPAN * DIM];
	tern_table_pull_params pull = {
		.keys = keys, .count = SPAN, .rows = rows, .unknown = TERN_UNKNOWN_ZERO};
	tern_table *table;

	for (unsigned i = 0; i < SPAN; i++)
		keys[i] = key_of(id, i);
	assert_success(tern_table_open(w->ps, "a/counters", NULL, &table));
	assert_success(tern_table_pull_wait(table, &pull, 0));
	for (unsigned i = 0; i < SPAN; i++) {
		counts[i] = (uint64_t)rows[i * DIM];
		for (unsigned k = 1; k < DIM; k++)
			assert_true(rows[i * DIM] == rows[i * DIM + k]);
	}
	tern_table_close(table);
}

typedef struct bounds {
	uint64_t low[PUSHERS], high[PUSHERS];
} bounds;

static void save_once(world *w, pusher *p, uint64_t sequence, bounds *b)
{
	tern_ps_save_params params = {.dir = dir, .sequence = sequence};
	tern_ps_save_result result;

	for (unsigned i = 0; i < PUSHERS; i++)
		b->low[i] = atomic_load(&p[i].acknowledged);
	assert_success(tern_ps_save(w->ps, &params, &result));
	for (unsigned i = 0; i < PUSHERS; i++)
		b->high[i] = atomic_load(&p[i].begun);
	assert_int_equal(result.sequence, sequence);
	assert_int_equal(result.rows, PUSHERS * SPAN);
	assert_true(result.held_ns <= result.total_ns);
}

/* In the cut is all that was acknowledged before, nothing that began after, and of one pusher at most one push in part. */
static void check_restored(unsigned servers, uint64_t sequence, const bounds *b,
			   uint64_t counts[PUSHERS][SPAN])
{
	tern_ps_save_result result;
	world w;

	world_start(&w, servers);
	assert_success(tern_ps_restore(w.ps, dir, sequence, 0, &result));
	assert_int_equal(result.rows, PUSHERS * SPAN);
	for (unsigned id = 0; id < PUSHERS; id++) {
		uint64_t least = UINT64_MAX, most = 0;

		pull_counts(&w, id, counts[id]);
		for (unsigned i = 0; i < SPAN; i++) {
			least = counts[id][i] < least ? counts[id][i] : least;
			most = counts[id][i] > most ? counts[id][i] : most;
		}
		assert_true(least >= b->low[id] && most <= b->high[id]);
		assert_true(most - least <= 1);
	}
	/* It is there now. */
	assert_status(tern_ps_restore(w.ps, dir, sequence, 0, NULL), TERN_E_EXISTS);
	world_stop(&w);
}

static void cuts_of_several_servers_restore_on_any_number(void **state)
{
	uint64_t counts[3][PUSHERS][SPAN];
	static pusher p[PUSHERS];
	tern_table_schema s = counters("a/counters", DIM);
	tern_table *table;
	bounds b[3];
	world w;

	(void)state;
	world_start(&w, 3);
	assert_success(tern_table_create(w.ps, &s, &table));
	start_pushers(&w, p);
	while (atomic_load(&p[0].acknowledged) < 20 || atomic_load(&p[1].acknowledged) < 20)
		tern_ctx_wait(w.ctx, 1000000);
	for (unsigned i = 0; i < 3; i++)
		save_once(&w, p, i + 1, &b[i]);
	stop_pushers(p);
	world_stop(&w);
	for (unsigned servers = 1; servers <= 3; servers++)
		check_restored(servers, 2, &b[1], counts[servers - 1]);
	assert_memory_equal(counts[0], counts[1], sizeof(counts[0]));
	assert_memory_equal(counts[0], counts[2], sizeof(counts[0]));
}

/* ---- what goes wrong ---- */

static tern_status ask(world *w, tn_ps_save_op op, uint64_t token, uint64_t number)
{
	tn_ps_save_msg msg = {.op = op, .token = token, .number = number};
	uint8_t args[TN_PS_SAVE_MAX];
	uint64_t version; /* of the map: HOLD tells it */
	tern_rpc_call_params call = {
		.method = TN_PS_SAVE, .args = args, .answer = &version, .answer_capacity = sizeof(version)};

	call.args_bytes = tn_ps_save_encode(args, &msg);
	return tern_rpc_call_wait(tn_ps_host_at(w->ps, 0)->rpc, &call, 5000000000ull, NULL);
}

static void leaders_that_die_hold_nobody_up(void **state)
{
	tern_ps_save_params params = {.dir = dir};
	static pusher p[PUSHERS];
	tern_table_schema s = counters("a/counters", DIM);
	tern_table *table;
	uint64_t before;
	world w;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	start_pushers(&w, p);
	assert_success(ask(&w, TN_SAVE_HOLD, 5, 300000000));
	assert_success(ask(&w, TN_SAVE_HOLD, 5, 300000000)); /* again: a retry */
	assert_status(tern_ps_save(w.ps, &params, NULL), TERN_E_STATE);
	assert_non_null(strstr(tern_detail(), "server 0"));
	/* Its lease ends: pushes go on. */
	before = atomic_load(&p[0].acknowledged);
	while (atomic_load(&p[0].acknowledged) < before + 3)
		tern_ctx_wait(w.ctx, 1000000);
	assert_status(ask(&w, TN_SAVE_CUT, 5, 0), TERN_E_STATE);
	/* A cut that nobody writes is given back. */
	assert_success(ask(&w, TN_SAVE_HOLD, 6, 5000000000ull));
	assert_success(ask(&w, TN_SAVE_CUT, 6, 0));
	assert_status(ask(&w, TN_SAVE_HOLD, 7, 1), TERN_E_STATE);
	assert_success(ask(&w, TN_SAVE_END, 6, 0));
	assert_success(tern_ps_save(w.ps, &params, NULL));
	stop_pushers(p);
	world_stop(&w);
}

/* A leader that is killed while its servers write, or read, holds nobody up either. */
static void leaders_that_die_while_files_are_written(void **state)
{
	static const char *const options[] = {"ps.save_lease=200ms", NULL};
	tern_ps_save_params params = {.dir = dir};
	tern_table_schema s = counters("a/counters", DIM);
	tn_ps_save_msg msg = {.op = TN_SAVE_WRITE, .token = 5, .rate = 1};
	uint8_t args[TN_PS_SAVE_MAX];
	tern_rpc_call_params call = {.method = TN_PS_SAVE, .args = args};
	tern_table *table;
	uint64_t key = 1;
	float row[DIM] = {1};
	tern_table_push_params push = {.keys = &key, .count = 1, .rows = row};
	tern_op write;
	world w;

	(void)state;
	server_options = options;
	world_start(&w, 1);
	server_options = NULL;
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_success(tern_table_push_wait(table, &push, 0));
	assert_success(ask(&w, TN_SAVE_HOLD, 5, 1000000000));
	assert_success(ask(&w, TN_SAVE_CUT, 5, 0));
	snprintf(msg.path, sizeof(msg.path), "%s", dir);
	call.args_bytes = tn_ps_save_encode(args, &msg);
	tern_op_init(&write, NULL, NULL);
	write.timeout_ns = 60000000000ull;
	assert_success(tern_rpc_call(tn_ps_host_at(w.ps, 0)->rpc, &call, &write));
	for (unsigned i = 0; i < 5; i++) { /* it is there */
		tern_ctx_wait(w.ctx, 100000000);
		assert_success(ask(&w, TN_SAVE_KEEP, 5, 0));
	}
	assert_status(ask(&w, TN_SAVE_HOLD, 6, 1), TERN_E_STATE);
	assert_status(tern_op_wait(w.ctx, &write, 0), TERN_E_CANCELED); /* and now it is not */
	assert_success(tern_ps_save(w.ps, &params, NULL));
	world_stop(&w);
}

static void saves_that_are_given_up_leave_nothing(void **state)
{
	tern_ps_save_params params = {.dir = dir, .bytes_per_second = 100, .timeout_ns = 400000000};
	tern_table_schema s = counters("a/counters", DIM);
	tern_table_push_params push = {0};
	uint64_t keys[1000], *sequences;
	float rows[1000 * DIM] = {0};
	tern_table *table;
	unsigned count;
	world w;

	(void)state;
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &table));
	for (unsigned i = 0; i < 1000; i++)
		keys[i] = i;
	push = (tern_table_push_params){.keys = keys, .count = 1000, .rows = rows};
	assert_success(tern_table_push_wait(table, &push, 0));
	assert_status(tern_ps_save(w.ps, &params, NULL), TERN_E_DEADLINE);
	assert_ok(tn_ckpt_list(dir, &sequences, &count));
	assert_int_equal(count, 0);
	free(sequences);
	params.dir = "relative";
	assert_status(tern_ps_save(w.ps, &params, NULL), TERN_E_INVALID);
	params = (tern_ps_save_params){.dir = dir, .keep = 2};
	for (unsigned i = 0; i < 4;) {
		tern_status status = tern_ps_save(w.ps, &params, NULL);

		/* Servers may still be ending the one that was given up. */
		assert_true(status == TERN_OK || (i == 0 && status == TERN_E_STATE));
		i += status == TERN_OK;
	}
	assert_ok(tn_ckpt_list(dir, &sequences, &count));
	assert_int_equal(count, 2);
	assert_int_equal(sequences[1], 4);
	free(sequences);
	world_stop(&w);
}

static void damaged_checkpoints_are_refused_whole(void **state)
{
	tern_ps_save_params params = {.dir = dir};
	tern_table_schema s = counters("b", DIM), t = counters("c", DIM), got;
	tern_table_push_params push = {0};
	uint64_t key = 7;
	float row[DIM] = {1, 2, 3, 4};
	tern_table *b, *c;
	char name[160];
	world w;
	int fd;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &b));
	assert_success(tern_table_create(w.ps, &t, &c));
	push = (tern_table_push_params){.keys = &key, .count = 1, .rows = row};
	assert_success(tern_table_push_wait(b, &push, 0));
	assert_success(tern_table_push_wait(c, &push, 0));
	assert_success(tern_ps_save(w.ps, &params, NULL));
	tern_table_close(b);
	tern_table_close(c);
	assert_success(tern_table_drop(w.ps, "b"));
	assert_success(tern_table_drop(w.ps, "c"));
	assert_status(tern_ps_restore(w.ps, dir, 9, 0, NULL), TERN_E_NOT_FOUND);
	snprintf(name, sizeof(name), "%s/ckpt-%020d/c.s0000.p000000.safetensors", dir, 1);
	fd = open(name, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "x", 1, lseek(fd, 0, SEEK_END) - 20), 1);
	close(fd);
	assert_status(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, NULL), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "c.s0000"));
	assert_status(tern_table_describe(w.ps, "b", &got), TERN_E_NOT_FOUND);
	world_stop(&w);
}

/* One server has a table of that name: the others, which had room for it, do not keep theirs. */
static void a_restore_is_at_all_servers_or_none(void **state)
{
	tern_ps_save_params params = {.dir = dir};
	tern_table_schema s = counters("b", DIM);
	uint8_t schema[TN_PS_SCHEMA_BYTES], name[TERN_TABLE_NAME_MAX + 8];
	tern_rpc_call_params create = {.method = TN_PS_CREATE, .args = schema};
	tern_rpc_call_params describe = {
		.method = TN_PS_DESCRIBE, .args = name, .answer = schema, .answer_capacity = sizeof(schema)};
	tern_table *table;
	world w;

	(void)state;
	world_start(&w, 2);
	assert_success(tern_table_create(w.ps, &s, &table));
	assert_success(tern_ps_save(w.ps, &params, NULL));
	tern_table_close(table);
	assert_success(tern_table_drop(w.ps, "b"));
	create.args_bytes = tn_ps_schema_encode(schema, sizeof(schema), &s);
	assert_success(tern_rpc_call_wait(tn_ps_host_at(w.ps, 1)->rpc, &create, 5000000000ull, NULL));
	assert_status(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, NULL), TERN_E_EXISTS);
	assert_non_null(strstr(tern_detail(), "server 1"));
	describe.args_bytes = tn_ps_name_encode(name, sizeof(name), "b");
	assert_status(tern_rpc_call_wait(tn_ps_host_at(w.ps, 0)->rpc, &describe, 5000000000ull, NULL),
		      TERN_E_NOT_FOUND);
	assert_success(tern_rpc_call_wait(tn_ps_host_at(w.ps, 1)->rpc, &describe, 5000000000ull, NULL));
	world_stop(&w);
}

/* A push that was applied before the cut is known after the restore: it is not applied twice. */
static void what_is_known_of_pushes_is_restored(void **state)
{
	tn_ps_dedup *before = tn_ps_dedup_new(), *after = tn_ps_dedup_new();
	tn_ps_slots slots = {{0}}, fresh, mine;
	tn_ckpt_reader reader;
	tn_ps_facts facts;
	tern_status status;
	tn_ckpt ckpt;

	(void)state;
	tn_ps_slots_add(&slots, 0);
	tn_ps_slots_add(&slots, 4095);
	assert_int_equal(tn_ps_dedup_begin(before, 99, 12, 10, &slots, &fresh, &status), TN_PS_FRESH);
	tn_ps_dedup_end(before, 99, 12, &fresh, true, TERN_E_BUDGET);
	assert_ok(tn_ps_facts_take(&facts, before));
	assert_ok(tn_ckpt_begin(&ckpt, dir, 1));
	assert_ok(tn_ps_facts_write(&facts, &ckpt, "t", 0));
	assert_ok(tn_ckpt_commit(&ckpt));
	tn_ps_facts_free(&facts);
	memset(&mine, 0, sizeof(mine));
	tn_ps_slots_add(&mine, 4095);
	assert_ok(tn_ckpt_open(&reader, dir, 1));
	assert_ok(tn_ps_facts_restore(&reader, "t", &mine, after));
	tn_ckpt_close(&reader);
	/* Slot 4095 holds it, slot 0 belongs to another server. */
	assert_int_equal(tn_ps_dedup_begin(after, 99, 12, 10, &slots, &fresh, &status), TN_PS_FRESH);
	assert_true(tn_ps_slots_has(&fresh, 0) && !tn_ps_slots_has(&fresh, 4095));
	tn_ps_dedup_end(after, 99, 12, &fresh, false, TERN_OK);
	assert_int_equal(tn_ps_dedup_begin(after, 99, 12, 10, &mine, &fresh, &status), TN_PS_KNOWN);
	assert_int_equal(status, TERN_E_BUDGET);
	tn_ps_dedup_free(before);
	tn_ps_dedup_free(after);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_known_of_pushes_is_restored, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(cuts_of_several_servers_restore_on_any_number, make_dir,
						drop_dir),
		cmocka_unit_test_setup_teardown(leaders_that_die_hold_nobody_up, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(leaders_that_die_while_files_are_written, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(saves_that_are_given_up_leave_nothing, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(a_restore_is_at_all_servers_or_none, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(damaged_checkpoints_are_refused_whole, make_dir, drop_dir),
	};

	return RUN(tests);
}

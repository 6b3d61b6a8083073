/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers with backups, over each transport: a coordinator made by hand, four clients that push ones into counters,
 * read them, and create rows by reading, while a server ends, loses its lease, or gives its slots away. A row must
 * count what was acknowledged for its key, and a backup must have what its primary has, bit by bit.
 *
 * FIELD-BUGS: BytePS S, acknowledged before applied.
 */
#include <tern/ps_save.h>

#include "replicas_world.h"

#define CLIENTS 4
#define SPAN    64
#define KEYS    512

/* ---- clients ---- */

static _Atomic bool stop;

typedef struct pusher {
	pthread_t thread;
	unsigned id;
	uint64_t pushed[KEYS];
	_Atomic uint64_t pushes;
	uint64_t longest_ns;
	_Atomic tern_status bad;
	char text[512];
} pusher;

static pusher pushers[CLIENTS];

static bool push_some(pusher *p, tern_table *table, tn_rand *rand, float *rows)
{
	tern_table_push_params push = {.count = 1 + tn_rand_below(rand, SPAN), .rows = rows};
	uint64_t keys[SPAN], begin = tn_ctx_now(w.ctx);
	unsigned which[SPAN];

	push.keys = keys;
	for (uint64_t i = 0; i < push.count; i++) {
		which[i] = (unsigned)tn_rand_below(rand, KEYS);
		keys[i] = key_of(which[i]);
	}
	for (unsigned i = 0; i < SPAN * DIM; i++)
		rows[i] = 1;
	p->bad = tern_table_push_wait(table, &push, 0);
	p->longest_ns = TN_MAX(p->longest_ns, tn_ctx_now(w.ctx) - begin);
	if (p->bad != TERN_OK) {
		snprintf(p->text, sizeof(p->text), "%s", tern_detail());
		return false;
	}
	for (uint64_t i = 0; i < push.count; i++)
		p->pushed[which[i]]++;
	p->pushes++;
	return true;
}

/* A read is not below what this client was told. */
static bool read_some(pusher *p, tern_table *table, tn_rand *rand, float *rows)
{
	unsigned which = (unsigned)tn_rand_below(rand, KEYS);
	uint64_t key = key_of(which);
	tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

	p->bad = tern_table_pull_wait(table, &pull, 0);
	if (p->bad == TERN_OK && rows[0] >= (float)p->pushed[which])
		return true;
	snprintf(p->text, sizeof(p->text), "key %u: %g, told were %llu: %s", which, (double)rows[0],
		 (unsigned long long)p->pushed[which], p->bad == TERN_OK ? "" : tern_detail());
	p->bad = p->bad == TERN_OK ? TERN_E_CORRUPT : p->bad;
	return false;
}

static void *push_loop(void *arg)
{
	pusher *p = arg;
	tn_rand rand = {p->id + 1};
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;
	void *memory;

	world_client(&w, &ctx, &ps);
	assert_success(tern_table_open(ps, "counters", NULL, &table));
	assert_ok(tern_mem_alloc(tern_ctx_mem(ctx), SPAN * DIM * 4, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
				 TERN_MEM_HOST, &memory));
	while (!atomic_load(&stop) && push_some(p, table, &rand, memory) &&
	       read_some(p, table, &rand, memory))
		;
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void pushers_start(void)
{
	memset(pushers, 0, sizeof(pushers));
	atomic_store(&stop, false);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pushers[i].id = i;
		assert_int_equal(pthread_create(&pushers[i].thread, NULL, push_loop, &pushers[i]), 0);
	}
}

static void pushers_end(const char *what)
{
	uint64_t total = 0, longest = 0;

	atomic_store(&stop, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(pushers[i].thread, NULL);
		if (pushers[i].bad != TERN_OK)
			fail_msg("client %u: %s: %s", i, tern_status_name(pushers[i].bad), pushers[i].text);
		total += pushers[i].pushes;
		longest = TN_MAX(longest, pushers[i].longest_ns);
	}
	printf("%s: %llu pushes, the longest took %llu ms\n", what, (unsigned long long)total,
	       (unsigned long long)(longest / TN_NS_PER_MS));
	assert_true(total > CLIENTS);
}

static void counters_right(tern_table *table)
{
	float *rows = world_rows(&w, DIM * 4);

	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t key = key_of(k), expected = 0;
		tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

		for (unsigned i = 0; i < CLIENTS; i++)
			expected += pushers[i].pushed[k];
		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (unsigned j = 0; j < DIM; j++)
			if (rows[j] != (float)expected)
				fail_msg("key %u counts %.0f, acknowledged were %llu", k, (double)rows[j],
					 (unsigned long long)expected);
	}
	tern_mem_free(w.mem, rows);
}

/* Rows are written by their primaries alone; a restore puts them at both. */
static void saved_once(const char *table, unsigned keys)
{
	char dir[] = "/tmp/tern-test-replicas-XXXXXX", command[64];
	tern_ps_save_params params = {.dir = dir};
	tern_ps_save_result saved, restored;
	unsigned rows = 0;

	assert_non_null(mkdtemp(dir));
	for (unsigned k = 0; k < keys; k++)
		rows += image_at(c.map.slot[tn_table_slot(key_of(k))].primary, table, key_of(k)).there;
	assert_success(tern_ps_save(w.ps, &params, &saved));
	assert_int_equal(saved.rows, rows);
	assert_success(tern_table_drop(w.ps, table));
	assert_success(tern_table_drop(w.ps, "late"));
	settle(true); /* on a busy host a backup may have fallen behind and come again: restores wait for none */
	assert_success(tern_ps_restore(w.ps, dir, UINT64_MAX, 0, &restored));
	assert_int_equal(restored.rows, 2 * rows);
	backups_equal(table, keys);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

/* ---- tests ---- */

/* Everything that changes a table reaches the backups: pushes, rows made by a pull, erasures, tables. */
static void all_writes(void **state)
{
	tern_table_schema s = {.name = "rows", .dim = DIM, .init = {TERN_ROW_UNIFORM, 1, 7}};
	uint64_t keys[KEYS];
	uint8_t found[KEYS];
	tern_table *table, *late;
	float *rows;

	(void)state;
	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.1f);
	cluster_start(3);
	assert_success(tern_table_create(w.ps, &s, &table));
	rows = world_rows(&w, KEYS * DIM * 4);
	for (unsigned i = 0; i < KEYS; i++)
		keys[i] = key_of(i);
	/* half before there are backups, half while they are copied or after */
	for (unsigned half = 0; half < 2; half++) {
		tern_table_pull_params pull = {
			.keys = keys + half * KEYS / 2, .count = KEYS / 2, .rows = rows, .found = found};
		tern_table_push_params push = {
			.keys = keys + half * KEYS / 4, .count = KEYS / 2, .rows = rows};

		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (unsigned i = 0; i < KEYS / 2; i++)
			assert_int_equal(found[i], 1);
		assert_success(tern_table_push_wait(table, &push, 0));
		if (half == 0) {
			choose_backups(true);
			publish();
		}
	}
	settle(true);
	snprintf(s.name, sizeof(s.name), "late");
	assert_success(tern_table_create(w.ps, &s, &late));
	assert_success(tern_table_erase_wait(table, keys, KEYS / 8, 0));
	backups_equal("rows", KEYS);
	assert_false(image_at(c.map.slot[tn_table_slot(keys[0])].backup, "rows", keys[0]).there);
	assert_true(image_at(c.map.slot[tn_table_slot(keys[KEYS - 1])].backup, "rows", keys[KEYS - 1]).there);
	saved_once("rows", KEYS);
	assert_success(tern_table_drop(w.ps, "late"));
	for (unsigned i = 0; i < w.servers; i++)
		assert_null(tn_ps_share_get(w.nodes[i].server, tn_ps_table_id("late")));
	tern_table_close(table);
	tern_table_close(late);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

static tern_table *begin_load(unsigned servers)
{
	tern_table_schema s = counters("counters", DIM);
	tern_table *table;

	cluster_start(servers);
	assert_success(tern_table_create(w.ps, &s, &table));
	settle(true);
	pushers_start();
	for (unsigned i = 0; i < CLIENTS; i++)
		while (atomic_load(&pushers[i].pushes) == 0 && pushers[i].bad == TERN_OK)
			pause_ms(1);
	pause_ms(50);
	return table;
}

static void end_load(tern_table *table, const char *what)
{
	settle(false);
	pause_ms(100);
	pushers_end(what);
	settle(false);
	counters_right(table);
	backups_equal("counters", KEYS);
	tern_table_close(table);
	world_stop(&w);
}

static void a_server_ends(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	c.dead[0] = true;
	node_stop(&w, 0);
	pause_ms(50);
	bury(0);
	end_load(table, "a server ended");
}

/* Nothing is acknowledged without a lease; what another server is primary of then is not any more. */
static void a_lease_ends(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		uint16_t victim = (uint16_t)(round % w.servers);

		atomic_store(&c.lease[victim], false);
		pause_ms(20);
		bury(victim);
		for (unsigned i = 0; i < 10; i++) {
			if (c.changed)
				publish();
			pause_ms(5);
		}
		pthread_mutex_lock(&c.lock);
		tn_cl_server_set_state(&c.map.server[victim], TN_CL_UP);
		pthread_mutex_unlock(&c.lock);
		assert_success(tn_ps_replicas_map(w.nodes[victim].server, &c.map, victim));
		atomic_store(&c.lease[victim], true);
		settle(true);
	}
	end_load(table, "leases ended");
}

/* All slots of a server go to others, and come back. */
static void slots_move(void **state)
{
	tern_table *table = begin_load(3);

	(void)state;
	for (unsigned round = 0; round < 4; round++) {
		pthread_mutex_lock(&c.lock);
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			if (c.map.slot[i].primary == round % w.servers)
				c.map.slot[i].flags |= TN_CL_MOVE;
		c.changed = true;
		pthread_mutex_unlock(&c.lock);
		settle(round % 2);
		pause_ms(20);
	}
	end_load(table, "slots moved");
}

/* A backup that does not answer is given up, and the others go on without it. */
static void a_backup_is_lost(void **state)
{
	tern_table *table = begin_load(2);

	(void)state;
	pthread_mutex_lock(&c.lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) /* all slots at one, by hand-over */
		if (c.map.slot[i].primary == 1)
			c.map.slot[i].flags |= TN_CL_MOVE;
	c.changed = true;
	pthread_mutex_unlock(&c.lock);
	settle(true);
	c.dead[1] = true;
	node_stop(&w, 1);
	for (unsigned i = 0; i < 1000 && c.lost < TN_CL_SLOTS; i++)
		pause_ms(5);
	assert_int_equal(c.lost, TN_CL_SLOTS);
	publish();
	pause_ms(50);
	pushers_end("a backup was lost");
	counters_right(table);
	tern_table_close(table);
	world_stop(&w);
}

int main(int argc, char **argv)
{
	static const char *const options[] = {"ps.replica_patience=300ms", NULL};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_writes),       cmocka_unit_test(a_server_ends),
		cmocka_unit_test(a_lease_ends),     cmocka_unit_test(slots_move),
		cmocka_unit_test(a_backup_is_lost),
	};

	server_options = options;
	world_transport(argc > 1 ? argv[1] : "shm");
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

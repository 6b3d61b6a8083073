/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows read where they lie in a server's memory, by a client: what is read so and what is asked for; while rows are
 * pushed, erased, evicted and the table grows; when maps change, tables go, leases end and servers die.
 *
 * Over shm rows are read; over other transports the same pulls are answered by the server. The program's argument: a
 * transport. Threads: one pushes, one reads; a server that is killed is a process of its own.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps_world.h"

#define DIM  17
#define STEP 65536.0f

static world w;

static uint64_t key_of(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15ull;
}

static uint64_t counted(const char *name)
{
	return tern_ctx_counter(w.ctx, name);
}

static tern_table_schema outside(const char *name)
{
	tern_table_schema s = counters(name, DIM);

	s.flags = TERN_TABLE_ONE_SIDED;
	return s;
}

/* Rows of keys first .. first + n - 1 are their numbers. */
static void fill(tern_table *table, uint64_t first, uint64_t n, float plus)
{
	uint64_t *keys = malloc(n * sizeof(*keys));
	float *rows = malloc(n * DIM * sizeof(*rows));
	tern_table_push_params push = {.keys = keys, .count = n, .rows = rows, .mode = TERN_PUSH_ASSIGN};

	for (uint64_t i = 0; i < n; i++) {
		keys[i] = key_of(first + i);
		for (unsigned d = 0; d < DIM; d++)
			rows[i * DIM + d] = (float)(first + i) + plus;
	}
	assert_success(tern_table_push_wait(table, &push, 0));
	free(keys);
	free(rows);
}

/* Pull keys first .. first + n - 1; every row is its number + plus, or (may_lack) is not there. Returns those that are. */
static uint64_t look(tern_table *table, uint64_t first, uint64_t n, float plus, bool may_lack)
{
	uint64_t *keys = malloc(n * sizeof(*keys)), there = 0;
	uint8_t *found = malloc(n);
	float *rows = world_rows(&w, n * (DIM + 1) * sizeof(*rows));
	tern_table_pull_params pull = {.keys = keys,
				       .count = n,
				       .rows = rows,
				       .stride = (DIM + 1) * sizeof(*rows),
				       .unknown = TERN_UNKNOWN_ZERO,
				       .found = found,
				       .flags = TERN_PULL_ONE_SIDED};
	tern_op op;

	for (uint64_t i = 0; i < n; i++)
		keys[i] = key_of(first + n - 1 - i);
	tern_op_init(&op, NULL, NULL);
	assert_success(tern_table_pull(table, &pull, &op));
	assert_success(tern_op_wait(w.ctx, &op, 0));
	for (uint64_t i = 0; i < n; i++) {
		float want = (float)(first + n - 1 - i) + plus;

		assert_true(found[i] <= 1);
		assert_true(found[i] || may_lack);
		for (unsigned d = 0; d < DIM; d++)
			assert_true(rows[i * (DIM + 1) + d] == (found[i] ? want : 0));
		there += found[i];
	}
	assert_int_equal(op.length, there);
	tern_mem_free(w.mem, rows);
	free(found);
	free(keys);
	return there;
}

/* Until pulls are read where they lie, all of them; over shm alone. */
static void settle_down(tern_table *table, uint64_t n, float plus)
{
	uint64_t end = tn_now() + 10000000000ull, left;

	if (strcmp(transport, "shm") != 0)
		return;
	do {
		left = counted("ps.one_sided_left");
		assert_int_equal(look(table, 0, n, plus, false), n);
		left = counted("ps.one_sided_left") - left;
		tern_ctx_wait(w.ctx, 1000000);
	} while (left && tn_now() < end);
	assert_int_equal(left, 0);
}

static void rows_are_read_where_they_lie(unsigned servers)
{
	tern_table_schema s = outside("rows");
	uint64_t batches = 0, read;
	tern_table *table;

	world_start(&w, servers);
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 3000, 0);
	assert_int_equal(look(table, 0, 3000, 0, false), 3000);
	settle_down(table, 3000, 0);
	for (unsigned i = 0; i < servers; i++)
		batches += tern_ctx_counter(w.nodes[i].ctx, "ps.batches");
	read = counted("ps.one_sided");
	for (unsigned round = 0; round < 20; round++)
		assert_int_equal(look(table, 0, 3000, 0, false), 3000);
	for (unsigned i = 0; i < servers; i++)
		batches -= tern_ctx_counter(w.nodes[i].ctx, "ps.batches");
	if (strcmp(transport, "shm") == 0) { /* no server had a part in it */
		assert_int_equal(batches, 0);
		assert_int_equal(counted("ps.one_sided") - read, 20 * 3000);
	} else {
		assert_int_equal(counted("ps.one_sided"), 0);
	}
	/* what is not there is asked for, and what came meanwhile is there */
	assert_int_equal(look(table, 2990, 20, 0, true), 10);
	fill(table, 3000, 100000, 0);
	assert_int_equal(look(table, 0, 103000, 0, false), 103000);
	settle_down(table, 103000, 0);
	tern_table_close(table);
	world_stop(&w);
}

static void one_server(void **state)
{
	(void)state;
	rows_are_read_where_they_lie(1);
}

static void three_servers(void **state)
{
	(void)state;
	rows_are_read_where_they_lie(3);
}

static void other_tables_are_as_ever(void **state)
{
	tern_table_schema s = counters("plain", DIM);
	tern_table_pull_params pull = {.count = 0, .flags = 8};
	tern_table *table;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 100, 0);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(look(table, 0, 100, 0, false), 100);
	assert_int_equal(counted("ps.one_sided"), 0);
	assert_int_equal(counted("ps.one_sided_left"), 1000);
	assert_int_equal(tern_table_pull_wait(table, &pull, 0), TERN_E_INVALID);
	world_stop(&w);
}

/* ---- while it changes ---- */

static atomic_bool stop;

/* Rows are their number plus a multiple of STEP: all of one. */
static void *pusher(void *arg)
{
	static float rows[64][DIM];
	tern_table *table;
	uint64_t keys[64];
	tn_rand r = {5};
	tern_ctx *ctx;
	tern_ps *ps;

	world_client(&w, &ctx, &ps);
	assert_success(tern_table_open(ps, arg, NULL, &table));
	while (!atomic_load(&stop)) {
		tern_table_push_params push = {
			.keys = keys, .count = 64, .rows = rows, .mode = TERN_PUSH_ASSIGN};

		for (unsigned i = 0; i < 64; i++) {
			uint64_t number = tn_rand_below(&r, 30000);

			keys[i] = key_of(number);
			rows[i][0] = (float)number + STEP * (float)tn_rand_below(&r, 64);
			for (unsigned d = 1; d < DIM; d++)
				rows[i][d] = rows[i][0];
		}
		assert_success(tern_table_push_wait(table, &push, 0));
		if (tn_rand_below(&r, 4) == 0)
			assert_success(tern_table_erase_wait(table, keys, 20, 0));
	}
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void while_it_changes(tern_table_schema *s)
{
	uint64_t keys[300], numbers[300], end;
	float *rows;
	uint8_t found[300];
	tern_table *table;
	pthread_t thread;
	tn_rand r = {29};

	world_start(&w, 1);
	rows = world_rows(&w, 300 * DIM * sizeof(*rows));
	assert_success(tern_table_create(w.ps, s, &table));
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, pusher, s->name), 0);
	end = tn_now() + 1500000000ull;
	while (tn_now() < end) {
		tern_table_pull_params pull = {.keys = keys,
					       .count = 1 + tn_rand_below(&r, 300),
					       .rows = rows,
					       .unknown = TERN_UNKNOWN_ZERO,
					       .found = found,
					       .flags = TERN_PULL_ONE_SIDED};

		for (uint64_t i = 0; i < pull.count; i++) {
			numbers[i] = tn_rand_below(&r, 30000);
			keys[i] = key_of(numbers[i]);
		}
		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (uint64_t i = 0; i < pull.count; i++) {
			const float *row = rows + i * DIM;
			float times = (row[0] - (float)numbers[i]) / STEP;

			for (unsigned d = 1; d < DIM; d++)
				assert_true(row[d] == row[0]);
			if (found[i] && row[0] != 0)
				assert_true(times == (float)(int)times && times >= 0 && times < 64);
		}
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	if (strcmp(transport, "shm") == 0)
		assert_true(counted("ps.one_sided") > 0 && counted("ps.layouts") > 1);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

static void no_row_is_torn(void **state)
{
	tern_table_schema s = outside("torn");

	(void)state;
	while_it_changes(&s);
	s.eviction = TERN_EVICT_LRU;
	s.budget_bytes = 1u << 20;
	while_it_changes(&s);
}

/* ---- what ends it ---- */

static void a_table_that_goes_is_told(void **state)
{
	tern_table_schema s = outside("gone");
	uint64_t key = key_of(1);
	float row[DIM];
	tern_table_pull_params pull = {.keys = &key,
				       .count = 1,
				       .rows = row,
				       .unknown = TERN_UNKNOWN_ZERO,
				       .flags = TERN_PULL_ONE_SIDED};
	tern_table *table, *again;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 2000, 0);
	settle_down(table, 2000, 0);
	assert_success(tern_table_drop(w.ps, "gone"));
	assert_int_equal(tern_table_pull_wait(table, &pull, 0), TERN_E_NOT_FOUND);
	/* another one of the same name and schema: never a row of the old one */
	assert_success(tern_table_create(w.ps, &s, &again));
	assert_int_equal(look(again, 0, 2000, 0, true), 0);
	assert_int_equal(look(table, 0, 2000, 0, true), 0);
	fill(again, 0, 2000, 5);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(look(table, 0, 2000, 5, false), 2000);
	settle_down(table, 2000, 5);
	world_stop(&w);
}

static void another_map_ends_it(void **state)
{
	tern_ps_server_params list = {.map_version = 7};
	tern_table_schema s = outside("moved");
	uint64_t read, version;
	tern_table *table;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 2000, 0);
	settle_down(table, 2000, 0);
	list.servers = w.addresses;
	list.count = 1;
	assert_success(tern_ps_server_remap(w.nodes[0].server, &list));
	read = counted("ps.one_sided");
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(look(table, 0, 2000, 0, false), 2000);
	(void)tern_ps_servers(w.ps, &version);
	assert_true(version == 7 ||
		    counted("ps.one_sided") == read); /* not by a map that the client does not have */
	world_stop(&w);
}

static void leases_end(void **state)
{
	static const char *const options[] = {"ps.lease=1ms", NULL};
	tern_table_schema s = outside("short");
	tern_table *table;
	uint64_t left;

	(void)state;
	server_options = options;
	world_start(&w, 1);
	server_options = NULL;
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 500, 0);
	for (unsigned i = 0; i < 20; i++) {
		(void)look(table, 0, 500, 0, false);
		tern_ctx_wait(w.ctx, 1000000);
	}
	usleep(50000);
	left = counted("ps.one_sided_left");
	assert_int_equal(look(table, 0, 500, 0, false), 500);
	assert_int_equal(counted("ps.one_sided_left") - left, 500); /* the lease was over: asked for */
	world_stop(&w);
}

static void links_that_break_are_no_matter(void **state)
{
	tern_table_schema s = outside("links");
	tern_table *table;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &s, &table));
	fill(table, 0, 2000, 0);
	for (unsigned i = 0; i < 5; i++) {
		settle_down(table, 2000, 0);
		node_cut(&w.nodes[0]);
		assert_int_equal(look(table, 0, 2000, 0, false), 2000);
	}
	world_stop(&w);
}

/* A server that is stopped is read until the lease is over, one that is killed not at all: errors are clear, in time. */
static void a_server_that_dies(void **state)
{
	char address[64];
	int pipes[2], died;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		memset(&w, 0, sizeof(w));
		w.servers = 1;
		node_start(&w, 0);
		node_serve(&w, 0);
		if (write(pipes[1], w.addresses[0], strlen(w.addresses[0]) + 1) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	assert_true(read(pipes[0], address, sizeof(address)) > 0);
	memset(&w, 0, sizeof(w));
	w.servers = 1;
	w.addresses[0] = address;
	world_client(&w, &w.ctx, &w.ps);
	w.mem = tern_ctx_mem(w.ctx);
	w.servers = 0;
	{
		tern_table_schema s = outside("killed");
		uint64_t keys[10], read, end;
		float rows[10][DIM];
		tern_table_pull_params pull = {
			.keys = keys, .count = 10, .rows = rows, .flags = TERN_PULL_ONE_SIDED};
		tern_table *table;
		tern_status status;

		for (uint64_t i = 0; i < 10; i++)
			keys[i] = key_of(i);
		assert_success(tern_table_create(w.ps, &s, &table));
		fill(table, 0, 500, 0);
		settle_down(table, 500, 0);
		kill(pid, SIGSTOP);
		read = counted("ps.one_sided");
		assert_success(tern_table_pull_wait(table, &pull, 0)); /* it still has its lease */
		if (strcmp(transport, "shm") == 0)
			assert_int_equal(counted("ps.one_sided") - read, 10);
		kill(pid, SIGKILL);
		kill(pid, SIGCONT);
		assert_int_equal(waitpid(pid, &died, 0), pid);
		end = tn_now() + 5000000000ull;
		do
			status = tern_table_pull_wait(table, &pull, 300000000);
		while (status == TERN_OK && tn_now() < end);
		assert_true(status != TERN_OK && tern_detail()[0]);
	}
	close(pipes[0]);
	close(pipes[1]);
	world_stop(&w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(one_server),
		cmocka_unit_test(three_servers),
		cmocka_unit_test(other_tables_are_as_ever),
		cmocka_unit_test(no_row_is_torn),
		cmocka_unit_test(a_table_that_goes_is_told),
		cmocka_unit_test(another_map_ends_it),
		cmocka_unit_test(leases_end),
		cmocka_unit_test(links_that_break_are_no_matter),
	};
	const struct CMUnitTest forks[] = {
		cmocka_unit_test(a_server_that_dies),
	};
	int failed = 0;

	if (argc > 1)
		world_transport(argv[1]);
	if (strcmp(transport, "shm") == 0) /* before there are threads */
		failed = cmocka_run_group_tests(forks, NULL, NULL);
	return failed + cmocka_run_group_tests(all, NULL, NULL);
}

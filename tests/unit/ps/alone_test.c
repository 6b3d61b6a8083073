/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server in a context of a single owner: one thread does all of its work, what lasts too; what needs a thread is refused
 * in words.
 */
#include <unistd.h>

#include <tern/ps_follow.h>
#include <tern/ps_save.h>

#include "ps_world.h"

#define KEYS 20000u /* far above what a server with workers does in its driver */
#define DIM  16u

typedef struct owner {
	pthread_t thread;
	char address[128];
	atomic_bool ready, stop;
} owner;

static void *own(void *arg)
{
	owner *o = arg;
	tern_ctx_params params = {.name = "owner", .transports = transport, .flags = TERN_CTX_SINGLE_OWNER};
	tern_ps_server_params join = {.join = ""};
	tern_ps_follow_params follow = {.dir = "/nowhere"};
	tern_ps_server *server;
	tern_ctx *ctx;

	assert_success(tern_ctx_create(&params, &ctx));
	assert_status(tern_ps_server_open(ctx, &join, &server), TERN_E_UNSUPPORTED);
	assert_success(tern_ps_server_open(ctx, NULL, &server));
	assert_status(tern_ps_server_follow(server, &follow), TERN_E_UNSUPPORTED);
	snprintf(o->address, sizeof(o->address), "%s", tern_ctx_address(ctx));
	atomic_store(&o->ready, true);
	while (!atomic_load(&o->stop))
		(void)tern_ctx_progress(ctx);
	tern_ps_server_close(server);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void large_batches_are_answered(void **state)
{
	static owner o;
	tern_ctx_params params = {.name = "client", .listen = "", .transports = transport};
	const char *servers[] = {o.address};
	tern_ps_params ps_params = {.servers = servers, .count = 1};
	tern_table_schema schema = counters("alone", DIM);
	uint64_t *keys = malloc(KEYS * sizeof(*keys));
	char dir[] = "/tmp/tern-test-alone-XXXXXX";
	float *rows;
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;
	void *p;

	(void)state;
	assert_int_equal(pthread_create(&o.thread, NULL, own, &o), 0);
	while (!atomic_load(&o.ready))
		sched_yield();
	assert_success(tern_ctx_create(&params, &ctx));
	assert_success(tern_ps_open(ctx, &ps_params, &ps));
	assert_success(tern_table_create(ps, &schema, &table));
	assert_success(tern_mem_alloc(tern_ctx_mem(ctx), KEYS * DIM * sizeof(float), 4096,
				      TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &p));
	rows = p;
	for (uint32_t i = 0; i < KEYS; i++)
		keys[i] = i * 7919ull;
	for (uint32_t i = 0; i < KEYS * DIM; i++)
		rows[i] = (float)(i / DIM % 1000);
	for (uint32_t n = 16; n <= KEYS; n = n < KEYS && n * 10 > KEYS ? KEYS : n * 10) {
		tern_table_push_params push = {.keys = keys, .count = n, .rows = rows};

		assert_success(tern_table_push_wait(table, &push, 0));
		if (n == KEYS)
			break;
	}
	memset(rows, 0xff, KEYS * DIM * sizeof(float));
	assert_success(tern_table_pull_wait(
		table, &(tern_table_pull_params){.keys = keys, .count = KEYS, .rows = rows}, 0));
	for (uint32_t i = 0; i < KEYS; i++) { /* added once for each batch that had the key */
		uint32_t times = 1 + (i < 16) + (i < 160) + (i < 1600) + (i < 16000);

		assert_true(rows[(uint64_t)i * DIM] == (float)(i % 1000 * times));
	}
	assert_non_null(mkdtemp(dir));
	assert_status(tern_ps_save(ps, &(tern_ps_save_params){.dir = dir}, NULL), TERN_E_UNSUPPORTED);
	assert_int_equal(rmdir(dir), 0); /* nothing is left there */
	tern_table_close(table);
	tern_mem_free(tern_ctx_mem(ctx), rows);
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	atomic_store(&o.stop, true);
	pthread_join(o.thread, NULL);
	free(keys);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(large_batches_are_answered)};

	world_transport(argc > 1 ? argv[1] : "shm");
	return cmocka_run_group_tests(tests, NULL, NULL);
}

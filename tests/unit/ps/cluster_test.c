/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers that join and leave, are drained and end without a word while clients push ones into counters and read them: no
 * client sees an error, and every row counts what was acknowledged for it, exactly.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>
#include <tern/ps.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/client.h"
#include "support/ps_node.h"

#define NODES   5
#define CLIENTS 3
#define KEYS    2000
#define DIM     4
#define BATCH   64

typedef struct client {
	pthread_t thread;
	unsigned id;
	uint64_t count[KEYS];    /* acknowledged pushes of each key */
	_Atomic uint64_t pushes; /* the main thread looks */
	uint64_t pulls, longest_ns;
	char error[600];
} client;

static ps_node nodes[NODES];
static client clients[CLIENTS];
static _Atomic bool stop;
static const char *addresses[NODES];
static const char *const options[] = {"cluster.lease=600ms", "cluster.margin=200ms", "cluster.balance=300ms",
				      "cluster.moves=256", NULL};
static const char *transport = "shm";

static void begin(unsigned i, const char *join, uint32_t replicas, uint32_t first)
{
	static unsigned number;
	char name[32];
	tern_ctx_params params = {.name = name, .transports = transport, .options = options};
	tern_ps_server_params server = {.join = join, .replicas = replicas, .first = first};

	snprintf(name, sizeof(name), "joiner%u", number++);
	ps_node_begin(&nodes[i], &params, &server);
	addresses[i] = tern_ctx_address(nodes[i].ctx);
}

static void drain(unsigned i)
{
	if (tern_ps_server_drain(nodes[i].server, 60000000000ull) != TERN_OK)
		fail_msg("drain: %s", tern_detail());
}

/* ---- clients ---- */

static tern_status open_client(unsigned id, tern_ctx **ctx, tern_ps **ps, tern_table **table)
{
	char name[32];
	tern_ctx_params params = {.name = name, .listen = "", .transports = transport};
	const char *first[] = {addresses[0]};
	tern_ps_params ps_params = {.servers = first, .count = 1};
	tern_table_schema schema = {.name = "counters", .dim = DIM};
	static atomic_uint number;

	snprintf(name, sizeof(name), "user%u-%u", id, atomic_fetch_add(&number, 1));
	if (tern_ctx_create(&params, ctx) != TERN_OK)
		return TERN_E_OS;
	if (tern_ps_open(*ctx, &ps_params, ps) != TERN_OK)
		return TERN_E_UNREACHABLE;
	return tern_table_create(*ps, &schema, table);
}

static bool one_push(client *c, tern_table *table, tn_rand *rand, float *rows)
{
	uint64_t keys[BATCH], start = tn_now(), ns;
	tern_table_push_params push = {.keys = keys, .count = BATCH, .rows = rows};

	for (unsigned i = 0; i < BATCH; i++)
		keys[i] = tn_rand_below(rand, KEYS) * 0x9e3779b97f4a7c15ull;
	if (tern_table_push_wait(table, &push, 0) != TERN_OK) {
		snprintf(c->error, sizeof(c->error), "push: %s", tern_detail());
		return false;
	}
	for (unsigned i = 0; i < BATCH; i++)
		c->count[keys[i] * 0xf1de83e19937733dull]++; /* the inverse */
	ns = tn_now() - start;
	c->longest_ns = ns > c->longest_ns ? ns : c->longest_ns;
	c->pushes++;
	return true;
}

/* What this client has counted is there, at least. */
static bool one_pull(client *c, tern_table *table, tn_rand *rand, float *rows)
{
	uint64_t keys[BATCH];
	tern_table_pull_params pull = {
		.keys = keys, .count = BATCH, .rows = rows, .unknown = TERN_UNKNOWN_ZERO};

	for (unsigned i = 0; i < BATCH; i++)
		keys[i] = tn_rand_below(rand, KEYS) * 0x9e3779b97f4a7c15ull;
	if (tern_table_pull_wait(table, &pull, 0) != TERN_OK) {
		snprintf(c->error, sizeof(c->error), "pull: %s", tern_detail());
		return false;
	}
	for (unsigned i = 0; i < BATCH; i++) {
		uint64_t id = keys[i] * 0xf1de83e19937733dull;

		if (rows[i * DIM] < (float)c->count[id]) {
			snprintf(c->error, sizeof(c->error), "key %llu: %g of %llu acknowledged pushes",
				 (unsigned long long)id, (double)rows[i * DIM],
				 (unsigned long long)c->count[id]);
			return false;
		}
	}
	c->pulls++;
	return true;
}

static void *work(void *arg)
{
	client *c = arg;
	tn_rand rand = {c->id + 77};
	tern_table *table = NULL;
	tern_ctx *ctx = NULL;
	tern_ps *ps = NULL;
	void *ones, *rows;
	bool good;

	if (open_client(c->id, &ctx, &ps, &table) != TERN_OK) {
		snprintf(c->error, sizeof(c->error), "open: %s", tern_detail());
		return NULL;
	}
	good = tern_mem_alloc(tern_ctx_mem(ctx), BATCH * DIM * 4, 0, TERN_ACCESS_READ, TERN_MEM_HOST,
			      &ones) == TERN_OK;
	good &= tern_mem_alloc(tern_ctx_mem(ctx), BATCH * DIM * 4, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST,
			       &rows) == TERN_OK;
	for (unsigned i = 0; good && i < BATCH * DIM; i++)
		((float *)ones)[i] = 1;
	while (good && !atomic_load(&stop)) {
		good = one_push(c, table, &rand, ones) && one_pull(c, table, &rand, rows);
		tn_sleep_ns(1000000);
	}
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static void clients_begin(void)
{
	atomic_store(&stop, false);
	memset(clients, 0, sizeof(clients));
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i].id = i;
		assert_int_equal(pthread_create(&clients[i].thread, NULL, work, &clients[i]), 0);
	}
}

static uint64_t pushes(void)
{
	uint64_t n = UINT64_MAX;

	for (unsigned i = 0; i < CLIENTS; i++)
		n = clients[i].pushes < n ? clients[i].pushes : n;
	return n;
}

/* Let each client do some more. */
static void let_run(uint64_t more)
{
	uint64_t until = pushes() + more;

	for (int i = 0; i < 6000 && pushes() < until; i++) {
		for (unsigned k = 0; k < CLIENTS; k++)
			if (clients[k].error[0])
				fail_msg("client %u: %s", k, clients[k].error);
		tn_sleep_ns(10000000);
	}
	if (pushes() < until)
		fail_msg("clients stand still");
}

/* Backups count no rows: there are as many as keys, as soon as no slot is on its way. */
static void rows_are(tern_ps *ps, const char *name, uint64_t want)
{
	tern_table_stats stats = {0};

	for (int i = 0; i < 6000; i++) {
		assert_ok(tern_table_get_stats(ps, name, &stats));
		if (stats.rows == want)
			return;
		tn_sleep_ns(10000000);
	}
	fail_msg("%llu rows of %llu keys", (unsigned long long)stats.rows, (unsigned long long)want);
}

/* Every key counts exactly what was acknowledged. */
static void judge(const char *what)
{
	uint64_t total = 0, longest = 0, keys = 0;
	tern_table *table;
	tern_ctx *ctx;
	tern_ps *ps;

	atomic_store(&stop, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		if (clients[i].error[0])
			fail_msg("client %u: %s", i, clients[i].error);
		total += clients[i].pushes;
		longest = clients[i].longest_ns > longest ? clients[i].longest_ns : longest;
	}
	if (open_client(99, &ctx, &ps, &table) != TERN_OK)
		fail_msg("open: %s", tern_detail());
	for (uint64_t id = 0; id < KEYS; id++) {
		uint64_t key = id * 0x9e3779b97f4a7c15ull, want = 0;
		float row[DIM];
		tern_table_pull_params pull = {
			.keys = &key, .count = 1, .rows = row, .unknown = TERN_UNKNOWN_ZERO};

		for (unsigned i = 0; i < CLIENTS; i++)
			want += clients[i].count[id];
		keys += want > 0;
		assert_ok(tern_table_pull_wait(table, &pull, 0));
		if (row[0] < (float)want || row[DIM - 1] > (float)want)
			fail_msg("key %llu: %g, %llu pushes", (unsigned long long)id, (double)row[0],
				 (unsigned long long)want);
	}
	rows_are(ps, "counters", keys);
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	printf("%s: %llu pushes, longest %.1f ms\n", what, (unsigned long long)total, (double)longest / 1e6);
}

/* ---- tests ---- */

static void join_and_drain(void **state)
{
	(void)state;
	begin(0, "", 1, 1);
	clients_begin();
	let_run(20);
	begin(1, addresses[0], 0, 0);
	let_run(20);
	begin(2, addresses[0], 0, 0);
	let_run(20);
	drain(1);
	ps_node_end(&nodes[1]);
	let_run(20);
	begin(3, addresses[0], 0, 0);
	drain(2);
	ps_node_end(&nodes[2]);
	let_run(20);
	judge("join and drain");
	ps_node_end(&nodes[3]);
	ps_node_end(&nodes[0]);
}

static void join_and_drain_with_backups(void **state)
{
	(void)state;
	begin(0, "", 2, 2);
	begin(1, addresses[0], 0, 0);
	clients_begin();
	let_run(20);
	begin(2, addresses[0], 0, 0);
	let_run(20);
	drain(1);
	ps_node_end(&nodes[1]);
	let_run(20);
	judge("join and drain with backups");
	ps_node_end(&nodes[2]);
	ps_node_end(&nodes[0]);
}

/* It does not wait for somebody who may never come. */
static void alone_it_says_so(void **state)
{
	tern_status status;

	(void)state;
	begin(0, "", 1, 1);
	do
		status = tern_ps_server_drain(nodes[0].server, 60 * TN_NS_PER_SEC);
	while (status == TERN_OK); /* no slots were given out yet */
	assert_int_equal(status, TERN_E_STATE);
	assert_string_equal(tern_detail(), "no other server is there to take the slots");
	ps_node_end(&nodes[0]);
}

static uint64_t calls_of(tern_ctx *ctx)
{
	return tern_ctx_counter(ctx, "rpc.calls");
}

static bool has_pushed_to(tern_ps *ps, uint32_t server)
{
	ps_host *host = tn_ps_host_at(ps, server);
	bool pushed = host && atomic_load(&host->pushed);

	tn_ps_host_drop(ps, host);
	return pushed;
}

/* A client that ends says so to those that are there: servers that have gone since would keep it waiting, one by one. */
static void no_good_bye_to_who_is_gone(void **state)
{
	float ones[BATCH * DIM] = {0};
	tern_table *table;
	client user = {.id = 0};
	tern_ctx *ctx;
	uint64_t calls;
	ps_route *route;
	ps_host *first;
	unsigned alive;
	tn_rand rand = {1};
	tern_ps *ps;

	(void)state;
	begin(0, "", 1, 1);
	if (open_client(0, &ctx, &ps, &table) != TERN_OK)
		fail_msg("open: %s", tern_detail());
	begin(1, addresses[0], 0, 0);
	do { /* until it has pushed to both, and one of them is gone */
		if (!one_push(&user, table, &rand, ones))
			fail_msg("%s", user.error);
		assert_ok(tn_ps_map_fetch(ps, NULL, 10 * TN_NS_PER_SEC));
	} while (!has_pushed_to(ps, 1));
	first = tn_ps_host_at(ps, 0);
	drain(1);
	ps_node_end(&nodes[1]);
	do {
		assert_ok(tn_ps_map_fetch(ps, first, 10 * TN_NS_PER_SEC));
		route = tn_ps_route_hold(ps);
		alive = 0;
		for (uint32_t i = 0; i < route->servers; i++)
			alive += route->hosts[i] != NULL;
		tn_ps_route_release(ps, route);
	} while (alive > 1);
	tn_ps_host_drop(ps, first);
	calls = calls_of(ctx);
	tern_ps_close(ps);
	assert_int_equal(calls_of(ctx), calls + 1);
	tern_ctx_destroy(ctx);
	ps_node_end(&nodes[0]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(join_and_drain), cmocka_unit_test(join_and_drain_with_backups),
		cmocka_unit_test(no_good_bye_to_who_is_gone), cmocka_unit_test(alone_it_says_so)};

	if (argc > 1)
		transport = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}

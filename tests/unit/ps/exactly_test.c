/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exactly once: four clients push ones into counters while the links of servers are cut again and again and the servers
 * change their map. A row must count what was acknowledged for its key: not less, not more.
 *
 * FIELD-BUGS: BytePS S, acknowledged before applied; NCCL#1557, a failover must not duplicate.
 *
 * Arguments: the transport, so many cuts (20 without).
 */
#include "base/fault.h"
#include "base/time.h"
#include "channel/ctx_slots.h"
#include "cluster/map.h"
#include "ps/client.h"
#include "ps_world.h"

#define DIM     4
#define CLIENTS 4
#define SPAN    96 /* keys of a push */
#define KEYS    512

static world w;
static unsigned servers, cuts = 20;
static _Atomic bool stop;

typedef struct pusher {
	pthread_t thread;
	unsigned id;
	uint64_t pushed[KEYS]; /* acknowledged, by key */
	_Atomic uint64_t pushes;
	tern_status bad;
	char text[512];
} pusher;

static uint64_t key_of(unsigned i)
{
	return i ? UINT64_MAX / i : 0;
}

static void *push_loop(void *arg)
{
	pusher *p = arg;
	tn_rand rand = {p->id + 1};
	uint64_t keys[SPAN];
	unsigned which[SPAN];
	tern_table *table;
	tern_ctx *ctx;
	float *rows;
	tern_ps *ps;
	void *memory;

	world_client(&w, &ctx, &ps);
	assert_success(tern_table_open(ps, "counters", NULL, &table));
	assert_ok(tern_mem_alloc(tern_ctx_mem(ctx), SPAN * DIM * 4, 0, TERN_ACCESS_READ, TERN_MEM_HOST,
				 &memory));
	rows = memory;
	for (unsigned i = 0; i < SPAN * DIM; i++)
		rows[i] = 1;
	while (!atomic_load(&stop)) {
		tern_table_push_params push = {
			.keys = keys, .count = 1 + tn_rand_below(&rand, SPAN), .rows = rows};
		tern_status status;

		for (uint64_t i = 0; i < push.count; i++) {
			which[i] = (unsigned)tn_rand_below(&rand, KEYS);
			keys[i] = key_of(which[i]);
		}
		status = tern_table_push_wait(table, &push, 0);
		if (status != TERN_OK) {
			p->bad = status;
			snprintf(p->text, sizeof(p->text), "%s", tern_detail());
			break;
		}
		for (uint64_t i = 0; i < push.count; i++)
			p->pushed[which[i]]++;
		p->pushes++;
	}
	tern_ps_close(ps);
	tern_ctx_destroy(ctx);
	return NULL;
}

static uint64_t duplicates_seen(void)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < servers; i++)
		n += tern_ctx_counter(w.nodes[i].ctx, "ps.duplicates");
	return n;
}

static uint64_t pushes_of(const pusher *p)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < CLIENTS; i++)
		n += atomic_load(&p[i].pushes);
	return n;
}

static void pause_ns(uint64_t ns)
{
	uint64_t end = tn_ctx_now(w.ctx) + ns;

	while (tn_ctx_now(w.ctx) < end)
		tern_ctx_wait(w.ctx, ns / 4 + 1);
}

static void cut_under_pushes(void **state)
{
	static pusher p[CLIENTS];
	tern_table_schema s = counters("counters", DIM);
	float *rows;
	tern_table *table;
	tn_rand rand = {11};
	unsigned made = 0;

	(void)state;
	world_start(&w, servers);
	assert_success(tern_table_create(w.ps, &s, &table));
	memset(p, 0, sizeof(p));
	atomic_store(&stop, false);
	for (unsigned i = 0; i < CLIENTS; i++) {
		p[i].id = i;
		assert_int_equal(pthread_create(&p[i].thread, NULL, push_loop, &p[i]), 0);
	}
	assert_ok(tn_fault_set_random("ps.answer.lost", 0.1, 7)); /* asked for again, these are known */
	/* On a host with other things to do, as many more as it takes that something was pushed, and came again. */
	for (; made < cuts || (made < 50 * cuts && (pushes_of(p) <= CLIENTS || duplicates_seen() == 0));
	     made++) {
		pause_ns(10000000 + tn_rand_below(&rand, 20000000));
		node_cut(&w.nodes[tn_rand_below(&rand, servers)]);
	}
	pause_ns(50000000);
	tn_fault_clear();
	atomic_store(&stop, true);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(p[i].thread, NULL);
		if (p[i].bad != TERN_OK)
			fail_msg("client %u: %s: %s", i, tern_status_name(p[i].bad), p[i].text);
	}
	rows = world_rows(&w, KEYS * DIM * 4);
	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t key = key_of(k), expected = 0;
		tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = rows};

		for (unsigned i = 0; i < CLIENTS; i++)
			expected += p[i].pushed[k];
		assert_success(tern_table_pull_wait(table, &pull, 0));
		for (unsigned j = 0; j < DIM; j++)
			if (rows[j] != (float)expected)
				fail_msg("key %u counts %.0f, acknowledged were %llu", k, (double)rows[j],
					 (unsigned long long)expected);
	}
	printf("%llu pushes, %u cuts, %llu came again\n", (unsigned long long)pushes_of(p), made,
	       (unsigned long long)duplicates_seen());
	assert_true(pushes_of(p) > CLIENTS && duplicates_seen() > 0);
	tern_table_close(table);
	tern_mem_free(w.mem, rows);
	world_stop(&w);
}

/* A map as a coordinator's, of the one server. */
static void give_map(uint64_t version, uint8_t state)
{
	static uint8_t bytes[TN_CL_MAP_BYTES_MAX];
	static tn_cl_map map;

	tn_cl_map_spread(&map, version, 1, 1);
	snprintf(map.server[0].address, sizeof(map.server[0].address), "%s", w.addresses[0]);
	map.server[0].incarnation = 1;
	map.server[0].state = state;
	assert_success(tn_ps_route_set(w.ps, bytes,
				       tn_cl_map_encode(bytes, sizeof(bytes), &map, TN_CL_VERSION_OLD)));
}

/* All leases ran out, the coordinator's host was slow: what is taken back then is asked for again, and no error. */
static void all_are_silent_for_a_while(void **state)
{
	tern_table_schema schema = {.name = "counters", .dim = 1};
	uint64_t key = 7, version = 1000;
	float one = 1, sum = 0;
	tern_table_push_params push = {.keys = &key, .count = 1, .rows = &one, .mode = TERN_PUSH_ADD};
	tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = &sum};
	tern_table *table;
	unsigned rounds = 300;

	(void)state;
	world_start(&w, 1);
	assert_success(tern_table_create(w.ps, &schema, &table));
	give_map(version++, TN_CL_UP);
	for (unsigned i = 0; i < rounds; i++) {
		tern_op op;

		tern_op_init(&op, NULL, NULL);
		assert_success(tern_table_push(table, &push, &op));
		give_map(version++, TN_CL_DOWN);
		assert_true(w.ps->route->managed);
		give_map(version++, TN_CL_UP);
		assert_success(tern_op_wait(w.ctx, &op, 0));
	}
	assert_success(tern_table_pull_wait(table, &pull, 0));
	assert_true(sum == (float)rounds);
	world_stop(&w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_are_silent_for_a_while),
					   cmocka_unit_test(cut_under_pushes)};
	/* The calls' own records are forgotten at once, so that pushes are executed again: tables have to know them. */
	static const char *const forgetful[] = {"rpc.keep=1ms", NULL};
	int failed = 0;

	server_options = forgetful;
	world_transport(argc > 1 ? argv[1] : "shm");
	cuts = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : cuts;
	for (servers = 1; servers <= 3; servers += 2)
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	return failed;
}

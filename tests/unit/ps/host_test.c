/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers that come and go at ever new addresses, as pods of a cluster do: a client keeps those that its map has and those
 * that somebody holds, and nothing of the others.
 *
 * FIELD-BUGS: libfabric#5864, a leak per peer that is gone.
 *
 * Maps are made here, as servers tell them; the server that is behind all of them is real.
 */
#include "cluster/map.h"
#include "ps/client.h"
#include "ps_world.h"

#define ADDRESSES 3000u /* more than a client had room for once */
#define DIM       8
#define KEYS      256

static world w;

/* Map number `version`: the real server has all slots, the others, if any, none. */
static tern_status give(uint64_t version, const char *const *others, uint32_t n)
{
	tn_cl_map *map = calloc(1, sizeof(*map));
	uint8_t *bytes = malloc(TN_CL_MAP_BYTES_MAX);
	tern_status status;

	assert_non_null(map);
	assert_non_null(bytes);
	tn_cl_map_spread(map, version, 1, 1);
	map->servers = n + 1;
	for (uint32_t i = 0; i <= n; i++) {
		map->server[i].incarnation = i + 1;
		tn_cl_server_set_state(&map->server[i], TN_CL_UP);
		snprintf(map->server[i].address, sizeof(map->server[i].address), "%s",
			 i ? others[i - 1] : w.addresses[0]);
	}
	status = tn_ps_route_set(w.ps, bytes,
				 tn_cl_map_encode(bytes, TN_CL_MAP_BYTES_MAX, map, TN_CL_VERSION));
	free(bytes);
	free(map);
	return status;
}

static uint32_t hosts(void)
{
	uint32_t n = 0;

	rpc_lock_take(&w.ps->lock);
	for (tn_list *at = w.ps->hosts.next; at != &w.ps->hosts; at = at->next)
		n++;
	rpc_lock_drop(&w.ps->lock);
	return n;
}

static tern_table *table_new(uint32_t flags)
{
	tern_table_schema s = counters("rows", DIM);
	tern_table *table;

	s.flags = flags;
	assert_success(tern_table_create(w.ps, &s, &table));
	return table;
}

/* Pushes ones to all keys and pulls them; how often they were pushed. */
static float push_and_pull(tern_table *table, uint8_t flags)
{
	float *rows = world_rows(&w, KEYS * DIM * 4), got;
	uint64_t keys[KEYS];
	tern_table_push_params push = {.keys = keys, .count = KEYS, .rows = rows};
	tern_table_pull_params pull = {.keys = keys, .count = KEYS, .rows = rows, .flags = flags};
	tern_op op;

	for (uint32_t i = 0; i < KEYS; i++)
		keys[i] = i * 7919ull;
	for (uint32_t i = 0; i < KEYS * DIM; i++)
		rows[i] = 1;
	tern_op_init(&op, NULL, NULL);
	assert_success(tern_table_push(table, &push, &op));
	assert_success(tern_op_wait(w.ctx, &op, 0));
	tern_op_init(&op, NULL, NULL);
	assert_success(tern_table_pull(table, &pull, &op));
	assert_success(tern_op_wait(w.ctx, &op, 0));
	got = rows[0];
	for (uint32_t i = 0; i < KEYS * DIM; i++)
		assert_float_equal(rows[i], got, 0);
	tern_mem_free(w.mem, rows);
	return got;
}

static void servers_at_new_addresses_for_ever(void **state)
{
	const char *other;
	char address[64];
	tern_table *table;
	float before;

	(void)state;
	transport = "tcp";
	world_start(&w, 1);
	table = table_new(0);
	before = push_and_pull(table, 0);
	other = address;
	for (uint32_t i = 0; i < ADDRESSES; i++) {
		snprintf(address, sizeof(address), "127.%u.%u.1:9", 1 + i / 200, 1 + i % 200);
		assert_success(give(1000 + i, &other, 1));
		assert_in_range(hosts(), 1,
				3); /* the real one, this one, and the last one's question perhaps */
	}
	assert_float_equal(push_and_pull(table, 0), before + 1, 0);
	assert_success(give(1000 + ADDRESSES, NULL, 0));
	assert_int_equal(hosts(), 1);
	tern_table_close(table);
	world_stop(&w);
}

/* Who is in use stays, whatever the maps say; and is the same one when a map has it again. */
static void what_is_held_stays(void **state)
{
	const char *other = "127.0.0.1:9";
	ps_host *held, *again;

	(void)state;
	transport = "tcp";
	world_start(&w, 1);
	assert_success(give(1000, &other, 1));
	held = tn_ps_host_at(w.ps, 1);
	assert_non_null(held);
	assert_success(give(1001, NULL, 0));
	assert_null(tn_ps_host_at(w.ps, 1));
	assert_int_equal(hosts(), 2);
	assert_string_equal(held->address, other);
	assert_success(give(1002, &other, 1));
	again = tn_ps_host_at(w.ps, 1);
	assert_ptr_equal(held, again);
	tn_ps_host_drop(w.ps, held);
	tn_ps_host_drop(w.ps, again);
	assert_success(give(1003, NULL, 0));
	assert_int_equal(hosts(), 1);
	world_stop(&w);
}

/* An operation in flight holds the host that it was sent to: a silent one, here, whose server left the map meanwhile. */
static void what_is_in_flight_holds(void **state)
{
	const char *other = "127.0.0.1:9";
	ps_call call = {.ps = NULL};
	ps_route *route;
	ps_part *part;

	(void)state;
	transport = "tcp";
	world_start(&w, 1);
	assert_success(give(1000, &other, 1));
	call.ps = w.ps;
	tn_list_init(&call.parts);
	route = tn_ps_route_hold(w.ps);
	part = tn_ps_part_new(&call, route, 1);
	tn_ps_route_release(w.ps, route);
	assert_non_null(part);
	assert_success(give(1001, NULL, 0));
	assert_int_equal(hosts(), 2);
	assert_string_equal(part->host->address, other);
	rpc_lock_take(&w.ps->lock);
	tn_list_remove(&part->node);
	tn_ps_part_release(w.ps, part);
	rpc_lock_drop(&w.ps->lock);
	tn_ps_hosts_reap(w.ps);
	assert_int_equal(hosts(), 1);
	world_stop(&w);
}

static uint32_t windows(void)
{
	uint32_t n = 0;

	rpc_lock_take(&w.ps->lock);
	for (tn_list *at = w.ps->tables.next; at != &w.ps->tables; at = at->next)
		n += TN_CONTAINER_OF(at, tern_table, node)->windows != NULL;
	rpc_lock_drop(&w.ps->lock);
	return n;
}

/* Windows into a server's memory go with its host, and others are made when it is back. */
static void windows_go_with_the_host(void **state)
{
	tern_ps_server_params alone = {.servers = &w.addresses[1], .count = 1};
	const char *first;
	tern_table *keep;
	float before;

	(void)state;
	transport = "shm";
	world_start(&w, 1);
	node_start(&w, 1);
	assert_success(tern_ps_server_open(w.nodes[1].ctx, &alone, &w.nodes[1].server));
	first = w.addresses[0];
	w.addresses[0] = w.addresses[1];
	assert_success(give(1000, NULL, 0)); /* the second one has all slots */
	keep = table_new(TERN_TABLE_ONE_SIDED);
	before = push_and_pull(keep, TERN_PULL_ONE_SIDED);
	assert_int_equal(windows(), 1);
	w.addresses[0] = first;
	assert_success(give(1001, NULL, 0));
	assert_int_equal(hosts(), 1);
	assert_int_equal(windows(), 0);
	w.addresses[0] = w.addresses[1];
	assert_success(give(1002, NULL, 0));
	assert_float_equal(push_and_pull(keep, TERN_PULL_ONE_SIDED), before + 1, 0);
	assert_int_equal(windows(), 1);
	w.addresses[0] = first;
	tern_table_close(keep);
	tern_ps_close(w.ps);
	tern_ctx_destroy(w.ctx);
	node_stop(&w, 1);
	node_stop(&w, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(servers_at_new_addresses_for_ever),
		cmocka_unit_test(what_is_held_stays),
		cmocka_unit_test(what_is_in_flight_holds),
		cmocka_unit_test(windows_go_with_the_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

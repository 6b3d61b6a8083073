/* SPDX-License-Identifier: Apache-2.0 */
/* Slot maps: golden bytes, what comes back of what was encoded, every cut and every changed byte, what is not valid. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cluster/map.h"
#include "cmocka_all.h"

static tn_cl_map *map, *got;
static uint8_t bytes[TN_CL_MAP_BYTES_MAX];

static int set_up(void **state)
{
	(void)state;
	map = calloc(1, sizeof(*map));
	got = calloc(1, sizeof(*got));
	return map && got ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	free(map);
	free(got);
	return 0;
}

static bool same(const tn_cl_map *a, const tn_cl_map *b)
{
	if (a->version != b->version || a->servers != b->servers)
		return false;
	for (uint32_t i = 0; i < a->servers; i++)
		if (a->server[i].incarnation != b->server[i].incarnation ||
		    a->server[i].state != b->server[i].state ||
		    strcmp(a->server[i].address, b->server[i].address) != 0)
			return false;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (a->slot[i].primary != b->slot[i].primary || a->slot[i].backup != b->slot[i].backup ||
		    a->slot[i].epoch != b->slot[i].epoch || a->slot[i].flags != b->slot[i].flags)
			return false;
	return true;
}

static void golden(void **state)
{
	static const uint8_t want[] = {
		2,    0, 2,   0,   3,    0,    0, 0, 9, 0, 0, 0, 0, 0, 0, 0, /* head */
		3,    0, 'a', ':', '1',  8,    7, 6, 5, 4, 3, 2, 1, 1,       /* server 0, up */
		3,    0, 'b', ':', '2',  1,    0, 0, 0, 0, 0, 0, 0, 3,       /* server 1, down */
		0xff, 7, 0,   0,   1,    0,    1, 0, 0, 0, 1,                /* 2048 slots */
		0,    0, 1,   0,   0xff, 0xff, 5, 0, 0, 0, 0,                /* one, alone */
		0xfe, 7, 1,   0,   0,    0,    1, 0, 0, 0, 1};

	(void)state;
	tn_cl_map_spread(map, 9, 2, 2);
	strcpy(map->server[0].address, "a:1");
	strcpy(map->server[1].address, "b:2");
	map->server[0].incarnation = 0x0102030405060708ull;
	map->server[1].incarnation = 1;
	map->server[1].state = TN_CL_DOWN;
	map->slot[2048] = (tn_cl_slot){.primary = 1, .backup = TN_CL_NONE, .next = TN_CL_NONE, .epoch = 5};
	assert_int_equal(tn_cl_map_encode(bytes, sizeof(bytes), map, TN_CL_VERSION_OLD), sizeof(want));
	assert_memory_equal(bytes, want, sizeof(want));
	assert_true(tn_cl_map_decode(bytes, sizeof(want), got));
	assert_true(same(map, got));
	for (uint64_t n = 0; n < sizeof(want); n++) {
		uint8_t *cut = malloc(n + 1);

		memcpy(cut, want, n);
		assert_false(tn_cl_map_decode(cut, n, got));
		free(cut);
	}
	assert_int_equal(tn_cl_map_encode(bytes, sizeof(want) - 1, map, TN_CL_VERSION_OLD), 0);
}

static void largest(void **state)
{
	tn_rand rand = {7};
	uint64_t n;

	(void)state;
	tn_cl_map_spread(map, UINT64_MAX, TN_CL_SERVERS_MAX, 2);
	for (uint32_t i = 0; i < TN_CL_SERVERS_MAX; i++) {
		memset(map->server[i].address, 'x', TN_ADDRESS_MAX - 1);
		map->server[i].incarnation = tn_rand_next(&rand);
		map->server[i].state = (uint8_t)(1 + i % 4);
	}
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		map->slot[i].epoch = i; /* a run for each */
	assert_true(tn_cl_map_valid(map));
	n = tn_cl_map_encode(bytes, sizeof(bytes), map, TN_CL_VERSION_OLD);
	assert_true(n > 0 && n <= TN_CL_MAP_BYTES_MAX);
	assert_true(tn_cl_map_decode(bytes, n, got));
	assert_true(same(map, got));
	for (int i = 0; i < 20000; i++) { /* a changed byte: refused, or a valid map */
		uint64_t at = tn_rand_below(&rand, i % 2 ? 64 : n);
		uint8_t old = bytes[at];

		bytes[at] ^= (uint8_t)(1 + tn_rand_below(&rand, 255));
		if (tn_cl_map_decode(bytes, n, got))
			assert_true(tn_cl_map_valid(got));
		bytes[at] = old;
	}
}

static void refuses(const tn_cl_slot *slot)
{
	tn_cl_map_spread(map, 1, 2, 2);
	map->server[2].state = TN_CL_FREE;
	map->servers = 3;
	assert_true(tn_cl_map_valid(map));
	map->slot[77] = *slot;
	assert_false(tn_cl_map_valid(map));
	assert_false(
		tn_cl_map_decode(bytes, tn_cl_map_encode(bytes, sizeof(bytes), map, TN_CL_VERSION_OLD), got));
}

static void not_valid(void **state)
{
	static const tn_cl_slot bad[] = {
		{.primary = 1, .backup = 1},
		{.primary = 3, .backup = TN_CL_NONE, .next = TN_CL_NONE},
		{.primary = 2, .backup = TN_CL_NONE, .next = TN_CL_NONE}, /* nobody's number */
		{.primary = 0, .backup = 2},
		{.primary = 0, .backup = 4000},
		{.primary = TN_CL_NONE, .backup = 1},
		{.primary = 0, .backup = TN_CL_NONE, .next = TN_CL_NONE, .flags = TN_CL_IN_SYNC},
		{.primary = 0, .backup = TN_CL_NONE, .next = TN_CL_NONE, .flags = TN_CL_MOVE},
		{.primary = TN_CL_NONE, .backup = TN_CL_NONE, .next = TN_CL_NONE, .flags = TN_CL_MOVE},
		{.primary = TN_CL_NONE, .backup = TN_CL_NONE, .next = TN_CL_NONE, .flags = TN_CL_FRESH},
		{.primary = 0, .backup = 1, .flags = 8},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refuses(&bad[i]);
}

static void spreads_and_finds(void **state)
{
	uint32_t count[TN_CL_SERVERS_MAX];

	(void)state;
	for (uint32_t n = 1; n <= TN_CL_SERVERS_MAX; n++) {
		memset(count, 0, sizeof(count));
		tn_cl_map_spread(map, 1, n, 1 + n % 2);
		assert_true(tn_cl_map_valid(map));
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			count[map->slot[i].primary]++;
		for (uint32_t i = 0; i < n; i++)
			assert_true(count[i] == TN_CL_SLOTS / n || count[i] == TN_CL_SLOTS / n + 1);
	}
	strcpy(map->server[5].address, "a:1");
	map->server[5].incarnation = 4;
	assert_int_equal(tn_cl_map_find(map, "a:1", 4), 5);
	assert_int_equal(tn_cl_map_find(map, "a:1", 5), TN_CL_NONE);
	assert_int_equal(tn_cl_map_find(map, "a:2", 4), TN_CL_NONE);
	assert_true(tn_cl_alive(map, 5));
	map->server[5].state = TN_CL_DOWN;
	assert_int_equal(tn_cl_map_find(map, "a:1", 4), 5);
	assert_false(tn_cl_alive(map, 5));
	assert_false(tn_cl_alive(map, TN_CL_NONE));
	map->server[5].state = TN_CL_GONE;
	assert_int_equal(tn_cl_map_find(map, "a:1", 4), TN_CL_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(largest),
					   cmocka_unit_test(not_valid), cmocka_unit_test(spreads_and_finds)};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}

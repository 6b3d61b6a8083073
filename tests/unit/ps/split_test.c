/* SPDX-License-Identifier: Apache-2.0 */
/* Keys split over servers: all of them, each once, in the caller's order, with their places, at their owners. */
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/split.h"
#include "ps/table.h"

static void check(const tn_ps_owners *owners, const uint64_t *keys, const uint32_t *given, uint64_t n)
{
	uint64_t counts[TN_PS_OWNERS], sum = 0;
	uint64_t *out[TN_PS_OWNERS] = {0};
	uint32_t *places[TN_PS_OWNERS] = {0};
	uint8_t *seen = calloc(n + 1, 1);

	tn_ps_split_count(owners, keys, n, counts);
	for (uint32_t s = 0; s < TN_PS_OWNERS; s++) {
		out[s] = malloc((counts[s] + 1) * sizeof(uint64_t));
		places[s] = malloc((counts[s] + 1) * sizeof(uint32_t));
		sum += counts[s];
	}
	assert_int_equal(sum, n);
	tn_ps_split_fill(owners, keys, given, n, out, places);
	for (uint32_t s = 0; s < TN_PS_OWNERS; s++) {
		for (uint64_t j = 0; j < counts[s]; j++) {
			uint64_t i = given ? (places[s][j] - 5) / 3 : places[s][j];

			assert_true(i < n && !seen[i]++);
			assert_true(out[s][j] == keys[i]);
			assert_int_equal(owners->owner[tn_table_slot(keys[i])], s);
			assert_true(j == 0 || places[s][j] > places[s][j - 1]);
		}
		free(out[s]);
		free(places[s]);
	}
	free(seen);
}

static void splits(void **state)
{
	tn_ps_owners *owners = calloc(1, sizeof(*owners));
	tn_cl_map *map = calloc(1, sizeof(*map));
	uint64_t *keys = malloc(5000 * sizeof(uint64_t));
	uint32_t *given = malloc(5000 * sizeof(uint32_t));
	tn_rand rand = {1};

	(void)state;
	for (uint32_t n = 1; n <= TN_PS_SERVERS_MAX; n = n * 3 - 1 + (n == 1)) {
		tn_cl_map_spread(map, 1, n, 1);
		if (n > 3) /* keys that nobody serves */
			tn_cl_server_set_state(&map->server[2], TN_CL_DOWN);
		map->slot[5] = TN_CL_SLOT_NONE;
		tn_ps_owners_set(owners, map);
		assert_int_equal(owners->owner[5], TN_PS_NOBODY);
		for (uint32_t i = 0; i < TN_PS_SLOTS; i++)
			if (i != 5)
				assert_int_equal(owners->owner[i], n > 3 && map->slot[i].primary == 2
									   ? TN_PS_NOBODY
									   : map->slot[i].primary);
		for (uint64_t i = 0; i < 5000; i++) {
			keys[i] = i % 3 ? tn_rand_next(&rand) : tn_rand_below(&rand, 50); /* duplicates */
			given[i] = (uint32_t)i * 3 + 5;
		}
		keys[0] = keys[17] = 0;
		keys[1] = keys[4999] = UINT64_MAX;
		check(owners, keys, NULL, 5000);
		check(owners, keys, given, 5000);
		check(owners, keys, NULL, 1);
		check(owners, keys, NULL, 0);
	}
	free(given);
	free(keys);
	free(map);
	free(owners);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(splits)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

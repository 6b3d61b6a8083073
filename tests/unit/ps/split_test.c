/* SPDX-License-Identifier: Apache-2.0 */
/* Keys split over servers: all of them, each once, in the caller's order, with their places, at their owners. */
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/split.h"
#include "ps/table.h"

static void check(const tn_ps_map *map, const uint64_t *keys, const uint32_t *given, uint64_t n)
{
	uint64_t counts[TN_PS_SERVERS_MAX], sum = 0;
	uint64_t *out[TN_PS_SERVERS_MAX] = {0};
	uint32_t *places[TN_PS_SERVERS_MAX] = {0};
	uint8_t *seen = calloc(n + 1, 1);

	tn_ps_split_count(map, keys, n, counts);
	for (uint32_t s = 0; s < map->servers; s++) {
		out[s] = malloc((counts[s] + 1) * sizeof(uint64_t));
		places[s] = malloc((counts[s] + 1) * sizeof(uint32_t));
		sum += counts[s];
	}
	assert_int_equal(sum, n);
	tn_ps_split_fill(map, keys, given, n, out, places);
	for (uint32_t s = 0; s < map->servers; s++) {
		for (uint64_t j = 0; j < counts[s]; j++) {
			uint64_t i = given ? (places[s][j] - 5) / 3 : places[s][j];

			assert_true(i < n && !seen[i]++);
			assert_true(out[s][j] == keys[i]);
			assert_int_equal(map->owner[tn_table_slot(keys[i])], s);
			assert_true(j == 0 || places[s][j] > places[s][j - 1]);
		}
		free(out[s]);
		free(places[s]);
	}
	free(seen);
}

static void splits(void **state)
{
	tn_ps_map *map = calloc(1, sizeof(*map));
	uint64_t *keys = malloc(5000 * sizeof(uint64_t));
	uint32_t *given = malloc(5000 * sizeof(uint32_t));
	tn_rand rand = {1};

	(void)state;
	for (uint32_t n = 1; n <= TN_PS_SERVERS_MAX; n = n * 3 - 1 + (n == 1)) {
		tn_ps_map_spread(map, 1, n);
		for (uint64_t i = 0; i < 5000; i++) {
			keys[i] = i % 3 ? tn_rand_next(&rand) : tn_rand_below(&rand, 50); /* duplicates */
			given[i] = (uint32_t)i * 3 + 5;
		}
		keys[0] = keys[17] = 0;
		keys[1] = keys[4999] = UINT64_MAX;
		check(map, keys, NULL, 5000);
		check(map, keys, given, 5000);
		check(map, keys, NULL, 1);
		check(map, keys, NULL, 0);
	}
	free(given);
	free(keys);
	free(map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(splits)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

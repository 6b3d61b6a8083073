/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting keys over servers in two passes, the second stable. Pure. Threads: any. Tests: tests/unit/ps/split_test.c.
 */
#include "ps/split.h"

#include "ps/table.h"

void tn_ps_split_count(const tn_ps_map *map, const uint64_t *keys, uint64_t count, uint64_t *counts)
{
	for (uint32_t s = 0; s < map->servers; s++)
		counts[s] = 0;
	for (uint64_t i = 0; i < count; i++)
		counts[map->owner[tn_table_slot(keys[i])]]++;
}

void tn_ps_split_fill(const tn_ps_map *map, const uint64_t *keys, const uint32_t *places, uint64_t count,
		      uint64_t *const *keys_out, uint32_t *const *places_out)
{
	uint64_t next[TN_PS_SERVERS_MAX] = {0};

	for (uint64_t i = 0; i < count; i++) {
		uint32_t s = map->owner[tn_table_slot(keys[i])];
		uint64_t at = next[s]++;

		keys_out[s][at] = keys[i];
		places_out[s][at] = places ? places[i] : (uint32_t)i;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splitting keys over servers in two passes, the second stable. Pure. Threads: any. Tests: tests/unit/ps/split_test.c.
 */
#include "ps/split.h"

#include <string.h>

#include "ps/table.h"

void tn_ps_owners_set(tn_ps_owners *owners, const tn_cl_map *map)
{
	for (uint32_t i = 0; i < TN_PS_SLOTS; i++) {
		uint16_t primary = map->slot[i].primary;

		owners->owner[i] = tn_cl_alive(map, primary) ? primary : TN_PS_NOBODY;
	}
}

void tn_ps_split_count(const tn_ps_owners *owners, const uint64_t *keys, uint64_t count, uint64_t *counts)
{
	memset(counts, 0, TN_PS_OWNERS * sizeof(*counts));
	for (uint64_t i = 0; i < count; i++)
		counts[owners->owner[tn_table_slot(keys[i])]]++;
}

void tn_ps_split_fill(const tn_ps_owners *owners, const uint64_t *keys, const uint32_t *places,
		      uint64_t count, uint64_t *const *keys_out, uint32_t *const *places_out)
{
	uint64_t next[TN_PS_OWNERS] = {0};

	for (uint64_t i = 0; i < count; i++) {
		uint32_t s = owners->owner[tn_table_slot(keys[i])];
		uint64_t at = next[s]++;

		keys_out[s][at] = keys[i];
		places_out[s][at] = places ? places[i] : (uint32_t)i;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of an operation, split over servers: each server's keys in the caller's order, with the place of each.
 *
 *   keys_out[s][j] = keys[i] and places_out[s][j] = places ? places[i] : i, for the j-th key i of server s
 *
 * Pure. Threads: any. Tests: tests/unit/ps/split_test.c.
 */
#ifndef TN_PS_SPLIT_H
#define TN_PS_SPLIT_H

#include "ps/wire.h"

/* How many of the keys each server of the map has. */
void tn_ps_split_count(const tn_ps_map *map, const uint64_t *keys, uint64_t count, uint64_t *counts);
/* Room for what was counted is in keys_out and places_out of each server; those without keys may be NULL. */
void tn_ps_split_fill(const tn_ps_map *map, const uint64_t *keys, const uint32_t *places, uint64_t count,
		      uint64_t *const *keys_out, uint32_t *const *places_out);

#endif

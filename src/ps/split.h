/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of an operation, split over servers: each server's keys in the caller's order, with the place of each.
 *
 *   keys_out[s][j] = keys[i] and places_out[s][j] = places ? places[i] : i, for the j-th key i of server s
 *
 * Slots that nobody serves at present are one server more, number TN_PS_NOBODY.
 *
 * Pure. Threads: any. Tests: tests/unit/ps/split_test.c.
 */
#ifndef TN_PS_SPLIT_H
#define TN_PS_SPLIT_H

#include "ps/wire.h"

#define TN_PS_NOBODY TN_PS_SERVERS_MAX
#define TN_PS_OWNERS (TN_PS_SERVERS_MAX + 1u) /* servers and nobody */

/* What of a map is looked at for every key: small enough to stay in a cache. */
typedef struct tn_ps_owners {
	uint16_t owner[TN_PS_SLOTS]; /* the primary, or TN_PS_NOBODY if it is not alive */
} tn_ps_owners;

void tn_ps_owners_set(tn_ps_owners *owners, const tn_cl_map *map);
/* How many of the keys each server has; counts has room for TN_PS_OWNERS. */
void tn_ps_split_count(const tn_ps_owners *owners, const uint64_t *keys, uint64_t count, uint64_t *counts);
/* Room for what was counted is in keys_out and places_out of each server; those without keys may be NULL. */
void tn_ps_split_fill(const tn_ps_owners *owners, const uint64_t *keys, const uint32_t *places,
		      uint64_t count, uint64_t *const *keys_out, uint32_t *const *places_out);

#endif

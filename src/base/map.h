/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from u64 to u64 (a pointer or an index): open addressing with linear probing and removal by
 * backward shift (no tombstones). All keys are ordinary, 0 and 2^64-1 too. Keys may come from a peer: the
 * hash is seeded.
 *
 *   count <= capacity * 7/8; the run from a key's home to the key has no gap
 *
 * Fixed maps never allocate after init and refuse when full; growing ones double.
 * Threads: one at a time. Tests: tests/unit/base/map_test.c.
 */
#ifndef TN_BASE_MAP_H
#define TN_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/status.h>

typedef struct tn_map_entry {
	uint64_t key;
	uint64_t value;
} tn_map_entry;

typedef struct tn_map {
	tn_map_entry *entries;
	uint8_t *used;
	uint64_t mask; /* capacity - 1 */
	uint64_t count;
	uint64_t limit; /* entries before it grows or refuses */
	uint64_t seed;
	bool fixed;
} tn_map;

/* Room for at least `entries`. fixed: never more than that many. seed: any; tn_os_random for peers' keys. */
tern_status tn_map_init(tn_map *map, uint64_t entries, bool fixed, uint64_t seed);
void tn_map_fini(tn_map *map);

/* The place of the value, good until the next put or remove; NULL if there is none. */
uint64_t *tn_map_find(const tn_map *map, uint64_t key);
/* Set or overwrite. TERN_E_LIMIT (fixed and full) or TERN_E_NOMEM: nothing changed. No detail text. */
tern_status tn_map_put(tn_map *map, uint64_t key, uint64_t value);
/* False: it was not there. `value` may be NULL. */
bool tn_map_remove(tn_map *map, uint64_t key, uint64_t *value);
/* Iterate: start with *cursor = 0. False at the end. No change meanwhile. */
bool tn_map_next(const tn_map *map, uint64_t *cursor, tn_map_entry *entry);

/* For pointers: NULL if there is none. */
static inline void *tn_map_ptr(const tn_map *map, uint64_t key)
{
	uint64_t *value = tn_map_find(map, key);

	return value ? (void *)(uintptr_t)*value : NULL;
}

/* A good mixer for other tables as well. */
static inline uint64_t tn_hash_u64(uint64_t x, uint64_t seed)
{
	x ^= seed;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

void tn_map_check(const tn_map *map);

#endif

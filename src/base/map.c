/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear probing. A key's home is hash & mask; the run from home to the key is without gaps, which removal
 * keeps by shifting later entries of the run back.
 *
 * Threads: one at a time. Tests: tests/unit/base/map_test.c (against a plain array).
 */
#include "base/map.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"

static tern_status table_init(tn_map *map, uint64_t capacity)
{
	if (!TN_FAULT("base.map.alloc")) {
		map->entries = calloc(capacity, sizeof(*map->entries));
		map->used = calloc(capacity, 1);
	}
	if (!map->entries || !map->used) {
		free(map->entries);
		free(map->used);
		map->entries = NULL;
		map->used = NULL;
		return TERN_E_NOMEM;
	}
	map->mask = capacity - 1;
	return TERN_OK;
}

tern_status tn_map_init(tn_map *map, uint64_t entries, bool fixed, uint64_t seed)
{
	uint64_t capacity = 16;

	*map = (tn_map){.fixed = fixed, .seed = seed};
	if (entries > 1ull << 40)
		return tn_fail(TERN_E_INVALID, "a map of %" PRIu64 " entries", entries);
	while (capacity - capacity / 8 < entries)
		capacity <<= 1;
	if (table_init(map, capacity) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for a map of %" PRIu64 " entries", capacity);
	map->limit = fixed ? entries : capacity - capacity / 8;
	return TERN_OK;
}

void tn_map_fini(tn_map *map)
{
	free(map->entries);
	free(map->used);
	*map = (tn_map){0};
}

/* The key's place, or the free place where it would go. */
static uint64_t probe(const tn_map *map, uint64_t key)
{
	uint64_t i = tn_hash_u64(key, map->seed) & map->mask;

	while (map->used[i] && map->entries[i].key != key)
		i = (i + 1) & map->mask;
	return i;
}

uint64_t *tn_map_find(const tn_map *map, uint64_t key)
{
	uint64_t i;

	if (map->count == 0)
		return NULL;
	i = probe(map, key);
	return map->used[i] ? &map->entries[i].value : NULL;
}

static tern_status grow(tn_map *map)
{
	tn_map old = *map;
	uint64_t capacity = (map->mask + 1) * 2;

	map->entries = NULL;
	map->used = NULL;
	if (table_init(map, capacity) != TERN_OK) {
		*map = old;
		return TERN_E_NOMEM;
	}
	map->limit = capacity - capacity / 8;
	for (uint64_t i = 0; i <= old.mask; i++) {
		uint64_t to;

		if (!old.used[i])
			continue;
		to = probe(map, old.entries[i].key);
		map->used[to] = 1;
		map->entries[to] = old.entries[i];
	}
	free(old.entries);
	free(old.used);
	return TERN_OK;
}

tern_status tn_map_put(tn_map *map, uint64_t key, uint64_t value)
{
	uint64_t i = probe(map, key);

	if (map->used[i]) {
		map->entries[i].value = value;
		return TERN_OK;
	}
	if (map->count >= map->limit) {
		if (map->fixed)
			return TERN_E_LIMIT;
		TN_TRY(grow(map));
		i = probe(map, key);
	}
	map->used[i] = 1;
	map->entries[i] = (tn_map_entry){.key = key, .value = value};
	map->count++;
	return TERN_OK;
}

bool tn_map_remove(tn_map *map, uint64_t key, uint64_t *value)
{
	uint64_t gap, i;

	if (map->count == 0)
		return false;
	gap = probe(map, key);
	if (!map->used[gap])
		return false;
	if (value)
		*value = map->entries[gap].value;
	for (i = (gap + 1) & map->mask; map->used[i]; i = (i + 1) & map->mask) {
		uint64_t home = tn_hash_u64(map->entries[i].key, map->seed) & map->mask;

		/* It may move into the gap only if its home does not lie after the gap. */
		if (((i - home) & map->mask) < ((i - gap) & map->mask))
			continue;
		map->entries[gap] = map->entries[i];
		gap = i;
	}
	map->used[gap] = 0;
	map->count--;
	return true;
}

bool tn_map_next(const tn_map *map, uint64_t *cursor, tn_map_entry *entry)
{
	if (!map->used)
		return false;
	while (*cursor <= map->mask) {
		uint64_t i = (*cursor)++;

		if (map->used[i]) {
			*entry = map->entries[i];
			return true;
		}
	}
	return false;
}

void tn_map_check(const tn_map *map)
{
	uint64_t used = 0;

	for (uint64_t i = 0; map->used && i <= map->mask; i++) {
		if (!map->used[i])
			continue;
		used++;
		TN_ASSERT(probe(map, map->entries[i].key) == i);
	}
	TN_ASSERT(used == map->count);
	TN_ASSERT(map->count <= map->limit);
	(void)used; /* release builds */
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier the slow, obvious way: images in a map, a walk is a sorted copy of it. And where a tier of a given kind comes
 * from in a test.
 * Threads: one lock around all of it.
 */
#ifndef TESTS_SUPPORT_MEM_TIER_H
#define TESTS_SUPPORT_MEM_TIER_H

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/map.h"
#include "store/file.h"
#include "store/tier.h"

typedef struct mem_tier {
	tn_tier tier;
	pthread_mutex_t lock;
	tn_map map; /* place -> image */
} mem_tier;

struct tn_tier_walk {
	uint64_t n, at, image_bytes;
	struct mem_image {
		uint64_t place;
		void *image;
	} * images;
};

static tern_status mem_put(tn_tier *tier, uint64_t place, const void *image)
{
	mem_tier *t = (mem_tier *)tier;
	void *copy = malloc(tier->image_bytes);
	uint64_t old = 0;

	if (TN_FAULT("tier.put")) {
		free(copy);
		return tn_fail(TERN_E_IO, "cold tier: injected");
	}
	memcpy(copy, image, tier->image_bytes);
	pthread_mutex_lock(&t->lock);
	tn_map_remove(&t->map, place, &old);
	tn_map_put(&t->map, place, (uint64_t)(uintptr_t)copy);
	pthread_mutex_unlock(&t->lock);
	free((void *)(uintptr_t)old);
	return TERN_OK;
}

static tern_status mem_get(tn_tier *tier, uint64_t place, void *image, bool *there)
{
	mem_tier *t = (mem_tier *)tier;
	void *found;

	*there = false;
	if (TN_FAULT("tier.get"))
		return tn_fail(TERN_E_IO, "cold tier: injected");
	pthread_mutex_lock(&t->lock);
	found = tn_map_ptr(&t->map, place);
	if (found && image)
		memcpy(image, found, tier->image_bytes);
	pthread_mutex_unlock(&t->lock);
	*there = found != NULL;
	return TERN_OK;
}

static void mem_expect(tn_tier *tier, const uint64_t *places, uint32_t n)
{
	(void)tier, (void)places, (void)n;
}

static tern_status mem_remove(tn_tier *tier, uint64_t place)
{
	mem_tier *t = (mem_tier *)tier;
	uint64_t old = 0;

	if (TN_FAULT("tier.remove"))
		return tn_fail(TERN_E_IO, "cold tier: injected");
	pthread_mutex_lock(&t->lock);
	tn_map_remove(&t->map, place, &old);
	pthread_mutex_unlock(&t->lock);
	free((void *)(uintptr_t)old);
	return TERN_OK;
}

static int mem_by_place(const void *a, const void *b)
{
	uint64_t x = ((const struct mem_image *)a)->place, y = ((const struct mem_image *)b)->place;

	return x < y ? -1 : x > y;
}

static tern_status mem_walk(tn_tier *tier, uint64_t first, uint64_t last, tn_tier_walk **out)
{
	mem_tier *t = (mem_tier *)tier;
	tn_tier_walk *w = calloc(1, sizeof(*w));
	uint64_t cursor = 0;
	tn_map_entry entry;

	pthread_mutex_lock(&t->lock);
	w->images = malloc((t->map.count + 1) * sizeof(*w->images));
	while (tn_map_next(&t->map, &cursor, &entry)) {
		if (entry.key < first || entry.key > last)
			continue;
		w->images[w->n].place = entry.key;
		w->images[w->n].image = malloc(tier->image_bytes);
		memcpy(w->images[w->n++].image, (void *)(uintptr_t)entry.value, tier->image_bytes);
	}
	pthread_mutex_unlock(&t->lock);
	if (w->n)
		qsort(w->images, w->n, sizeof(*w->images), mem_by_place);
	*out = w;
	return TERN_OK;
}

static tern_status mem_next(tn_tier_walk *w, uint64_t *place, const void **image)
{
	*image = w->at < w->n ? w->images[w->at].image : NULL;
	if (*image)
		*place = w->images[w->at++].place;
	return TERN_OK;
}

static void mem_walk_end(tn_tier_walk *w)
{
	for (uint64_t i = 0; i < w->n; i++)
		free(w->images[i].image);
	free(w->images);
	free(w);
}

static uint64_t mem_bytes(tn_tier *tier)
{
	return ((mem_tier *)tier)->map.count * tier->image_bytes;
}

static void mem_close(tn_tier *tier)
{
	mem_tier *t = (mem_tier *)tier;
	uint64_t cursor = 0;
	tn_map_entry entry;

	while (tn_map_next(&t->map, &cursor, &entry))
		free((void *)(uintptr_t)entry.value);
	tn_map_fini(&t->map);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static inline tern_status mem_tier_open(uint64_t image_bytes, tn_tier **out)
{
	static const tn_tier_ops ops = {"memory", mem_put,  mem_get,      mem_expect, mem_remove,
					mem_walk, mem_next, mem_walk_end, mem_bytes,  mem_close};
	mem_tier *t = calloc(1, sizeof(*t));

	t->tier = (tn_tier){&ops, image_bytes};
	pthread_mutex_init(&t->lock, NULL);
	*out = &t->tier;
	return tn_map_init(&t->map, 64, false, 1);
}

/* ---- for tests ---- */

typedef enum tier_kind { TIER_NONE, TIER_MEMORY, TIER_ROCKSDB } tier_kind;

static char tier_dir[64];

/* For tn_table_env.open_tier: arg is a tier_kind. */
static inline tern_status test_tier_open(void *arg, uint64_t image_bytes, tn_tier **tier)
{
	tn_tier_params params = {.dir = tier_dir, .image_bytes = image_bytes, .cache_bytes = 1u << 20};

	if (*(const tier_kind *)arg == TIER_MEMORY)
		return mem_tier_open(image_bytes, tier);
	snprintf(tier_dir, sizeof(tier_dir), "/tmp/tern-test-tier-XXXXXX");
	if (!mkdtemp(tier_dir))
		return TERN_E_IO;
	return tn_tier_open_rocksdb(&params, tier);
}

/* After it was closed. */
static inline void test_tier_gone(void)
{
	if (tier_dir[0])
		(void)tn_dir_remove(AT_FDCWD, tier_dir);
	tier_dir[0] = '\0';
}

/* Can there be one of that kind here? */
static inline bool test_tier_can(tier_kind kind)
{
	tn_tier *tier;

	if (kind != TIER_ROCKSDB)
		return true;
	if (test_tier_open(&kind, 64, &tier) != TERN_OK) {
		printf("  no RocksDB: %s\n", tn_detail_get());
		test_tier_gone();
		return false;
	}
	tier->ops->close(tier);
	test_tier_gone();
	return true;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns size classes and slabs: a slab is a run cut into up to 64 equal objects, one bit each, so that
 * allocation is a count of trailing zeros and a double free is a set bit. The objects' memory is never
 * touched: it belongs to the application and, while exported, to peers.
 *
 * Must not grow the arena. Threads: the arena's lock is held. Tests: tests/unit/mem/test_alloc.c,
 * test_model.c.
 */
#include "mem/pool.h"

#define KiB 1024u

/* {bytes, objects, pages}: objects * bytes <= pages * 4096, at least 8 objects, at most 64. */
static const tn_class classes[] = {
	{64, 64, 1},       {128, 64, 2},      {192, 64, 3},      {256, 64, 4},      {320, 64, 5},
	{384, 64, 6},      {448, 64, 7},      {512, 64, 8},      {640, 32, 5},      {768, 32, 6},
	{896, 32, 7},      {KiB, 32, 8},      {1280, 16, 5},     {1536, 16, 6},     {1792, 16, 7},
	{2 * KiB, 16, 8},  {2560, 8, 5},      {3 * KiB, 8, 6},   {3584, 8, 7},      {4 * KiB, 8, 8},
	{5 * KiB, 8, 10},  {6 * KiB, 8, 12},  {7 * KiB, 8, 14},  {8 * KiB, 8, 16},  {10 * KiB, 8, 20},
	{12 * KiB, 8, 24}, {14 * KiB, 8, 28}, {16 * KiB, 8, 32}, {20 * KiB, 8, 40}, {24 * KiB, 8, 48},
	{28 * KiB, 8, 56}, {32 * KiB, 8, 64},
};
_Static_assert(sizeof(classes) / sizeof(classes[0]) <= TN_CLASSES_MAX, "lists of the arena");

const tn_class *tn_class_at(uint32_t index)
{
	TN_ASSERT(index < TN_COUNT_OF(classes));
	return &classes[index];
}

uint32_t tn_class_index(const tn_class *class)
{
	return (uint32_t)(class - classes);
}

const tn_class *tn_class_for(uint64_t bytes, uint64_t align)
{
	uint32_t i;

	if (bytes > TN_SMALL_MAX || align > TN_PAGE_BYTES)
		return NULL;
	if (bytes <= 512) {
		i = bytes ? (uint32_t)((bytes - 1) / 64) : 0;
	} else {
		/* bytes in (2^log, 2^(log + 1)], four steps; log 9 starts at index 8. */
		uint32_t log = 31u - (uint32_t)__builtin_clz((uint32_t)(bytes - 1));

		i = 8 + (log - 9) * 4 + (uint32_t)((bytes - 1 - (1u << log)) >> (log - 2));
	}
	/* Objects lie at multiples of their size from a page's start. Powers of two are among the classes. */
	while (i < TN_COUNT_OF(classes) && (classes[i].bytes & (align - 1)) != 0)
		i++;
	TN_ASSERT(i < TN_COUNT_OF(classes) && classes[i].bytes >= bytes);
	return &classes[i];
}

static inline uint64_t full_mask(const tn_class *class)
{
	return class->objects == 64 ? ~0ull : (1ull << class->objects) - 1;
}

void *tn_slab_alloc(tn_arena *arena, const tn_class *class)
{
	uint32_t index = tn_class_index(class);
	tn_run *slab = TN_LIST_FIRST(&arena->slabs[index], tn_run, link);
	uint32_t object;

	if (!slab) {
		slab = tn_runs_alloc(arena, class->pages, 1, TN_RUN_SLAB);
		if (!slab)
			return NULL;
		slab->class = (uint8_t)index;
		slab->free_mask = full_mask(class);
		tn_list_push_front(&arena->slabs[index], &slab->link);
	}
	TN_ASSERT(slab->state == TN_RUN_SLAB && slab->class == index && slab->free_mask != 0);
	object = (uint32_t)__builtin_ctzll(slab->free_mask);
	slab->free_mask &= slab->free_mask - 1;
	if (slab->free_mask == 0)
		tn_list_remove(&slab->link);
	return tn_run_base(&arena->mem->ext[slab->slot], slab) + (uint64_t)object * class->bytes;
}

void tn_slab_free(tn_arena *arena, tn_run *slab, uint32_t object)
{
	const tn_class *class = tn_class_at(slab->class);
	tn_list *list = &arena->slabs[slab->class];

	TN_ASSERT(slab->state == TN_RUN_SLAB && object < class->objects);
	TN_ASSERT(!(slab->free_mask >> object & 1));
	if (slab->free_mask == 0)
		tn_list_push_front(list, &slab->link);
	slab->free_mask |= 1ull << object;
	/* Keep the last slab of a class: a block that comes and goes must not cut and merge runs. */
	if (slab->free_mask == full_mask(class) && list->next != list->prev) {
		tn_list_remove(&slab->link);
		tn_runs_free(arena, slab);
	}
}

void tn_slab_trim(tn_arena *arena)
{
	for (uint32_t i = 0; i < TN_COUNT_OF(classes); i++) {
		TN_LIST_FOREACH_SAFE(node, &arena->slabs[i]) {
			tn_run *slab = TN_LIST_ENTRY(node, tn_run, link);

			if (slab->free_mask != full_mask(&classes[i]))
				continue;
			tn_list_remove(&slab->link);
			tn_runs_free(arena, slab);
		}
	}
}

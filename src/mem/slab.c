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

/* Objects * bytes == pages * 4096, at least 8 objects, at most 64. */
#define C(size, count, run)                                                                     \
	{                                                                                       \
		.bytes = (size), .objects = (count), .pages = (run),                            \
		.inverse = ((1ull << 40) + (size)-1) / (size), .full = ~0ull >> (64 - (count)), \
	}
const tn_class tn_classes[] = {
	C(64, 64, 1),       C(128, 64, 2),      C(192, 64, 3),      C(256, 64, 4),      C(320, 64, 5),
	C(384, 64, 6),      C(448, 64, 7),      C(512, 64, 8),      C(640, 32, 5),      C(768, 32, 6),
	C(896, 32, 7),      C(1024, 32, 8),     C(1280, 16, 5),     C(1536, 16, 6),     C(1792, 16, 7),
	C(2048, 16, 8),     C(2560, 8, 5),      C(3072, 8, 6),      C(3584, 8, 7),      C(4096, 8, 8),
	C(5 * KiB, 8, 10),  C(6 * KiB, 8, 12),  C(7 * KiB, 8, 14),  C(8 * KiB, 8, 16),  C(10 * KiB, 8, 20),
	C(12 * KiB, 8, 24), C(14 * KiB, 8, 28), C(16 * KiB, 8, 32), C(20 * KiB, 8, 40), C(24 * KiB, 8, 48),
	C(28 * KiB, 8, 56), C(32 * KiB, 8, 64),
};
#undef C

/* A class per line of a request: from the one before's size on. */
#define UP_TO(from, to, class) [(from) / 64 ...(to) / 64 - 1] = (class)
const uint8_t tn_class_by_line[TN_SMALL_MAX / 64] = {
	UP_TO(0, 64, 0),         UP_TO(64, 128, 1),       UP_TO(128, 192, 2),      UP_TO(192, 256, 3),
	UP_TO(256, 320, 4),      UP_TO(320, 384, 5),      UP_TO(384, 448, 6),      UP_TO(448, 512, 7),
	UP_TO(512, 640, 8),      UP_TO(640, 768, 9),      UP_TO(768, 896, 10),     UP_TO(896, 1024, 11),
	UP_TO(1024, 1280, 12),   UP_TO(1280, 1536, 13),   UP_TO(1536, 1792, 14),   UP_TO(1792, 2048, 15),
	UP_TO(2048, 2560, 16),   UP_TO(2560, 3072, 17),   UP_TO(3072, 3584, 18),   UP_TO(3584, 4096, 19),
	UP_TO(4096, 5120, 20),   UP_TO(5120, 6144, 21),   UP_TO(6144, 7168, 22),   UP_TO(7168, 8192, 23),
	UP_TO(8192, 10240, 24),  UP_TO(10240, 12288, 25), UP_TO(12288, 14336, 26), UP_TO(14336, 16384, 27),
	UP_TO(16384, 20480, 28), UP_TO(20480, 24576, 29), UP_TO(24576, 28672, 30), UP_TO(28672, 32768, 31),
};
#undef UP_TO
_Static_assert(sizeof(tn_classes) / sizeof(tn_classes[0]) == TN_CLASSES, "pool.h counts them");

const tn_class *tn_class_at(uint32_t index)
{
	TN_ASSERT(index < TN_CLASSES);
	return &tn_classes[index];
}

uint32_t tn_class_index(const tn_class *class)
{
	return (uint32_t)(class - tn_classes);
}

const tn_class *tn_class_for(uint64_t bytes, uint64_t align)
{
	uint32_t i;

	if (bytes > TN_SMALL_MAX || align > TN_PAGE_BYTES)
		return NULL;
	i = tn_class_of_bytes(TN_MAX(bytes, 1));
	/* Objects lie at multiples of their size from a page's start. Powers of two are among the classes. */
	while (i < TN_CLASSES && (tn_classes[i].bytes & (align - 1)) != 0)
		i++;
	TN_ASSERT(i < TN_CLASSES && tn_classes[i].bytes >= bytes);
	return &tn_classes[i];
}

/* The masks of a slab that no cache owns change under the arena's lock alone; readers may be elsewhere. */
static inline uint64_t mask_of(const tn_run *slab)
{
	return atomic_load_explicit(&slab->free_mask, memory_order_relaxed);
}

static inline void mask_set(tn_run *slab, uint64_t mask)
{
	atomic_store_explicit(&slab->free_mask, mask, memory_order_relaxed);
}

tn_run *tn_slab_take(tn_arena *arena, uint32_t class, uint16_t cache)
{
	tn_run *slab = TN_LIST_FIRST(&arena->slabs[class], tn_run, link);

	TN_ASSERT(class < TN_CLASSES);
	if (slab) {
		tn_list_remove(&slab->link);
	} else {
		slab = tn_runs_alloc(arena, tn_classes[class].pages, 1, TN_RUN_SLAB);
		if (!slab)
			return NULL;
		slab->class = (uint8_t) class;
		tn_runs_map_slab(&arena->mem->ext[slab->slot], slab, true);
		mask_set(slab, tn_class_full(&tn_classes[class]));
	}
	TN_ASSERT(slab->state == TN_RUN_SLAB && slab->class == class && mask_of(slab) != 0);
	TN_ASSERT(slab->cache == 0 && slab->remote_mask == 0);
	slab->cache = cache;
	return slab;
}

void tn_slab_give(tn_arena *arena, tn_run *slab)
{
	TN_ASSERT(!tn_list_linked(&slab->link) && slab->remote_mask == 0);
	TN_ASSERT(mask_of(slab) == tn_class_full(&tn_classes[slab->class]));
	slab->cache = 0;
	tn_runs_map_slab(&arena->mem->ext[slab->slot], slab, false);
	tn_runs_free(arena, slab);
}

void *tn_slab_alloc(tn_arena *arena, const tn_class *class)
{
	uint32_t index = tn_class_index(class);
	tn_run *slab = tn_slab_take(arena, index, 0);
	uint32_t object;
	uint64_t mask;

	if (!slab)
		return NULL;
	mask = mask_of(slab);
	object = (uint32_t)__builtin_ctzll(mask);
	mask &= mask - 1;
	mask_set(slab, mask);
	if (mask != 0)
		tn_list_push_front(&arena->slabs[index], &slab->link);
	return tn_run_base(&arena->mem->ext[slab->slot], slab) + (uint64_t)object * class->bytes;
}

void tn_slab_free(tn_arena *arena, tn_run *slab, uint32_t object)
{
	const tn_class *class = tn_class_at(slab->class);
	tn_list *list = &arena->slabs[slab->class];
	uint64_t mask = mask_of(slab);

	TN_ASSERT(slab->state == TN_RUN_SLAB && slab->cache == 0 && object < class->objects);
	TN_ASSERT(!(mask >> object & 1));
	if (mask == 0)
		tn_list_push_front(list, &slab->link);
	mask |= 1ull << object;
	mask_set(slab, mask);
	/* Keep the last slab of a class: a block that comes and goes must not cut and merge runs. */
	if (mask == tn_class_full(class) && list->next != list->prev) {
		tn_list_remove(&slab->link);
		tn_slab_give(arena, slab);
	}
}

void tn_slab_trim(tn_arena *arena)
{
	for (uint32_t i = 0; i < TN_CLASSES; i++) {
		TN_LIST_FOREACH_SAFE(node, &arena->slabs[i]) {
			tn_run *slab = TN_LIST_ENTRY(node, tn_run, link);

			if (mask_of(slab) != tn_class_full(&tn_classes[i]))
				continue;
			tn_list_remove(&slab->link);
			tn_slab_give(arena, slab);
		}
	}
}

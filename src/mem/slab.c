/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns size classes and slabs: a slab is a run cut into up to 64 equal objects, one bit each. Objects leave and come
 * back in bulk, to and from the magazines of threads (magazine.c). Their memory is never touched: it belongs to the
 * application and, while exported, to peers.
 *
 * Must not grow the arena. Threads: the arena's lock is held. Tests: tests/unit/mem/test_alloc.c,
 * test_model.c.
 */
#include "mem/pool.h"

#define KiB      1024u
#define LOOK_MAX 4u /* slabs that are looked at for one of the own */

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
#define UP_TO(from, to, class) [(from) / 64 ...(to) / 64 - 1] = TN_MARK_CACHED + (class) * 4
const uint8_t tn_mark_by_line[TN_SMALL_MAX / 64] = {
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

static inline bool is_full(const tn_run *slab)
{
	return slab->free_mask == tn_classes[slab->class].full;
}

static tn_run *slab_make(tn_arena *arena, uint32_t class)
{
	tn_run *slab = tn_runs_alloc(arena, tn_classes[class].pages, 1, TN_RUN_SLAB);

	if (!slab)
		return NULL;
	slab->class = (uint8_t) class;
	slab->free_mask = tn_classes[class].full;
	tn_runs_map_slab(&arena->mem->ext[slab->slot], slab, true);
	return slab;
}

static void slab_unmake(tn_arena *arena, tn_run *slab)
{
	TN_ASSERT(!tn_list_linked(&slab->link) && is_full(slab));
	tn_runs_map_slab(&arena->mem->ext[slab->slot], slab, false);
	tn_runs_free(arena, slab);
}

/*
 * A slab with room, in no list: one that the cache took from before, a whole one, a new one, or what there is.
 * So marks of one line are written by one thread as long as there is memory.
 */
static tn_run *slab_pick(tn_arena *arena, uint32_t class, uint16_t cache)
{
	tn_bank *bank = &arena->banks[class];
	uint32_t seen = 0;
	tn_run *slab;

	TN_LIST_FOREACH(node, &bank->partial) {
		slab = TN_LIST_ENTRY(node, tn_run, link);
		if (slab->cache == cache) {
			tn_list_remove(&slab->link);
			return slab;
		}
		if (++seen == LOOK_MAX)
			break;
	}
	slab = TN_LIST_FIRST(&bank->empty, tn_run, link);
	if (slab) {
		tn_list_remove(&slab->link);
		bank->empties--;
		return slab;
	}
	slab = slab_make(arena, class);
	if (!slab) {
		slab = TN_LIST_FIRST(&bank->partial, tn_run, link);
		if (slab)
			tn_list_remove(&slab->link);
	}
	return slab;
}

/* At most n objects of a slab; the lowest lies on top. */
static uint32_t slab_take(tn_ext *ext, tn_run *slab, tn_spare *out, uint32_t n)
{
	uint32_t bytes = tn_classes[slab->class].bytes, got = 0;
	uint8_t *base = tn_run_base(ext, slab);
	tn_mark *marks = tn_ext_mark(ext, base);
	uint64_t mask = slab->free_mask;

	for (; mask != 0 && got < n; got++) {
		uint32_t object = 63u - (uint32_t)__builtin_clzll(mask);
		uint64_t at = (uint64_t)object * bytes;

		mask &= ~(1ull << object);
		out[got] = (tn_spare){.ptr = base + at, .mark = marks + (at >> TN_LINE_SHIFT)};
	}
	slab->free_mask = mask;
	return got;
}

uint32_t tn_slab_take(tn_arena *arena, uint32_t class, uint16_t cache, tn_spare *out, uint32_t n)
{
	tn_bank *bank = &arena->banks[class];
	uint32_t got = 0;

	TN_ASSERT(class < TN_CLASSES && n > 0);
	while (got < n) {
		tn_run *slab = slab_pick(arena, class, cache);

		if (!slab)
			break;
		TN_ASSERT(slab->state == TN_RUN_SLAB && slab->class == class && slab->free_mask != 0);
		got += slab_take(&arena->mem->ext[slab->slot], slab, out + got, n - got);
		slab->cache = cache;
		if (slab->free_mask != 0)
			tn_list_push_front(&bank->partial, &slab->link);
	}
	bank->out += got;
	return got;
}

uint64_t tn_slab_put(tn_arena *arena, tn_run *slab, uint64_t mask, uint16_t cache)
{
	tn_bank *bank = &arena->banks[slab->class];
	uint64_t twice = slab->free_mask & mask;
	uint32_t n = (uint32_t)__builtin_popcountll(mask & ~twice);

	TN_ASSERT(slab->state == TN_RUN_SLAB && mask != 0 && bank->out >= n);
	TN_ASSERT((mask & ~tn_classes[slab->class].full) == 0);
	bank->out -= n;
	if (slab->cache != cache)
		arena->remote_frees += n;
	if (n == 0)
		return twice;
	if (slab->free_mask != 0)
		tn_list_remove(&slab->link);
	slab->free_mask |= mask;
	if (!is_full(slab)) {
		tn_list_push_front(&bank->partial, &slab->link);
	} else if (bank->empties == 0 ||
		   (bank->empties + 1) * ((uint64_t)slab->pages << TN_PAGE_SHIFT) <= TN_BANK_EMPTY_BYTES) {
		/* Some are kept: a block that comes and goes must not cut and merge runs. */
		tn_list_push_front(&bank->empty, &slab->link);
		bank->empties++;
	} else {
		slab_unmake(arena, slab);
	}
	return twice;
}

void tn_slab_trim(tn_arena *arena)
{
	for (uint32_t i = 0; i < TN_CLASSES; i++) {
		TN_LIST_FOREACH_SAFE(node, &arena->banks[i].empty) {
			tn_run *slab = TN_LIST_ENTRY(node, tn_run, link);

			tn_list_remove(&slab->link);
			slab_unmake(arena, slab);
		}
		arena->banks[i].empties = 0;
	}
}

/* Halved now and then, so that it follows the program. */
void tn_bank_sample(tn_bank *bank, uint64_t asked)
{
	if (bank->sampled >= 1024) {
		bank->sampled /= 2;
		bank->asked_bytes /= 2;
	}
	bank->sampled++;
	bank->asked_bytes += asked;
}

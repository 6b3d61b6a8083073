/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns runs of pages inside extents: free runs in two-level bins (TLSF; Masmano et al., ECRTS 2004), split on
 * allocation, merged with both neighbours on free, O(1) up to the walk of one bin.
 *
 *   extent  |  SLAB 4p  | FREE 3p |      LARGE 9p       |   FREE ...
 *   heads    1 0 0 0      1 0 0     1 0 0 0 0 0 0 0 0     1 ...
 *
 * Must not touch the pages themselves. Threads: the arena's lock is held. Tests: tests/unit/mem/test_alloc.c,
 * test_model.c.
 */
#include "mem/pool.h"

/* Enough to find the run that was freed a moment ago, bounded against long bins. */
#define EXACT_BIN_WALK 32

/* A run that stops being one: merged into its neighbour, or given back. Runs are made whole (run_new). */
static void run_set_state(tn_run *run, tn_run_state state)
{
	TN_ASSERT(state == TN_RUN_NONE && run->state != TN_RUN_NONE);
	run->state = (uint8_t)state;
}

static inline uint32_t log2_floor(uint32_t x)
{
	return 31u - (uint32_t)__builtin_clz(x);
}

/* The bin that a free run of `pages` lies in. */
static void bin_of(uint32_t pages, uint32_t *level, uint32_t *sub)
{
	uint32_t log;

	TN_ASSERT(pages > 0);
	if (pages < TN_BIN_SUBS) {
		*level = 0;
		*sub = pages;
		return;
	}
	log = log2_floor(pages);
	*level = log - TN_BIN_SUB_SHIFT + 1;
	*sub = (pages >> (log - TN_BIN_SUB_SHIFT)) & (TN_BIN_SUBS - 1);
	TN_ASSERT(*level < TN_BIN_LEVELS);
}

static inline void head_set(tn_ext *ext, uint32_t page)
{
	ext->heads[page >> 6] |= 1ull << (page & 63);
}

static inline void head_clear(tn_ext *ext, uint32_t page)
{
	ext->heads[page >> 6] &= ~(1ull << (page & 63));
}

static inline bool head_test(const tn_ext *ext, uint32_t page)
{
	return ext->heads[page >> 6] >> (page & 63) & 1;
}

static void bin_put(tn_arena *arena, tn_run *run)
{
	uint32_t level, sub;

	bin_of(run->pages, &level, &sub);
	tn_list_push_front(&arena->bins[level][sub], &run->link);
	arena->bin_levels |= 1u << level;
	arena->bin_subs[level] |= (uint8_t)(1u << sub);
}

static void bin_take(tn_arena *arena, tn_run *run)
{
	uint32_t level, sub;

	TN_ASSERT(run->state == TN_RUN_FREE);
	bin_of(run->pages, &level, &sub);
	tn_list_remove(&run->link);
	if (!tn_list_empty(&arena->bins[level][sub]))
		return;
	arena->bin_subs[level] &= (uint8_t) ~(1u << sub);
	if (arena->bin_subs[level] == 0)
		arena->bin_levels &= ~(1u << level);
}

/* Write the descriptors of a run [first, first + pages). */
static tn_run *run_new(tn_ext *ext, uint32_t first, uint32_t pages, tn_run_state state)
{
	tn_run *run = &ext->runs[first];

	TN_ASSERT(pages > 0 && first + pages <= ext->page_count);
	*run = (tn_run){.pages = pages,
			.head = first,
			.slot = (uint16_t)(ext->pub.index % TN_MEM_EXTENTS_MAX),
			.state = (uint8_t)state};
	tn_list_init(&run->link);
	ext->runs[first + pages - 1].head = first;
	head_set(ext, first);
	return run;
}

void tn_runs_init(tn_arena *arena)
{
	for (uint32_t level = 0; level < TN_BIN_LEVELS; level++) {
		for (uint32_t sub = 0; sub < TN_BIN_SUBS; sub++)
			tn_list_init(&arena->bins[level][sub]);
	}
	for (uint32_t i = 0; i < TN_CLASSES_MAX; i++) {
		tn_list_init(&arena->banks[i].partial);
		tn_list_init(&arena->banks[i].empty);
	}
}

void tn_runs_add(tn_arena *arena, tn_ext *ext)
{
	arena->pages_free += ext->page_count;
	bin_put(arena, run_new(ext, 0, ext->page_count, TN_RUN_FREE));
}

void tn_runs_drop(tn_arena *arena, tn_ext *ext)
{
	TN_ASSERT(ext->pages_used == 0 && ext->runs[0].pages == ext->page_count);
	TN_ASSERT(arena->pages_free >= ext->page_count);
	arena->pages_free -= ext->page_count;
	bin_take(arena, &ext->runs[0]);
}

/* Pages to skip so that the block is aligned; extents start at multiples of the greatest alignment. */
static inline uint32_t align_skip(const tn_run *run, uint32_t align_pages)
{
	return (align_pages - (run->head & (align_pages - 1))) & (align_pages - 1);
}

static bool run_fits(const tn_run *run, uint32_t pages, uint32_t align_pages)
{
	uint32_t skip = align_skip(run, align_pages);

	return run->pages >= pages && run->pages - pages >= skip;
}

static tn_run *bin_walk(tn_arena *arena, uint32_t level, uint32_t sub, uint32_t pages, uint32_t align_pages)
{
	uint32_t seen = 0;

	TN_LIST_FOREACH(node, &arena->bins[level][sub]) {
		tn_run *run = TN_LIST_ENTRY(node, tn_run, link);

		if (run_fits(run, pages, align_pages))
			return run;
		if (++seen == EXACT_BIN_WALK)
			break;
	}
	return NULL;
}

/* The first bin above (level, sub) that has runs: each of them is long enough. */
static bool bin_above(const tn_arena *arena, uint32_t *level, uint32_t *sub)
{
	uint32_t subs =
		*sub + 1 < TN_BIN_SUBS ? (uint32_t)arena->bin_subs[*level] >> (*sub + 1) << (*sub + 1) : 0;

	if (subs == 0) {
		uint32_t levels = arena->bin_levels >> (*level + 1) << (*level + 1);

		if (levels == 0)
			return false;
		*level = (uint32_t)__builtin_ctz(levels);
		subs = arena->bin_subs[*level];
	}
	*sub = (uint32_t)__builtin_ctz(subs);
	return true;
}

static tn_run *find_fit(tn_arena *arena, uint32_t pages, uint32_t align_pages)
{
	uint32_t level, sub;

	bin_of(pages, &level, &sub);
	do {
		tn_run *run = bin_walk(arena, level, sub, pages, align_pages);

		if (run)
			return run;
	} while (bin_above(arena, &level, &sub));
	return NULL;
}

bool tn_runs_room(tn_arena *arena, uint32_t pages, uint32_t align_pages)
{
	return find_fit(arena, pages, align_pages) != NULL;
}

tn_run *tn_runs_alloc(tn_arena *arena, uint32_t pages, uint32_t align_pages, tn_run_state state)
{
	tn_run *run = find_fit(arena, pages, align_pages);
	uint32_t first, total, skip;
	tn_ext *ext;

	if (!run)
		return NULL;
	ext = &arena->mem->ext[run->slot];
	first = run->head;
	total = run->pages;
	skip = align_skip(run, align_pages);
	bin_take(arena, run);
	if (skip)
		bin_put(arena, run_new(ext, first, skip, TN_RUN_FREE));
	if (total - skip > pages)
		bin_put(arena, run_new(ext, first + skip + pages, total - skip - pages, TN_RUN_FREE));
	ext->pages_used += pages;
	ext->empty_since = 0;
	arena->pages_free -= pages;
	arena->pages_used += pages;
	return run_new(ext, first + skip, pages, state);
}

void tn_runs_free(tn_arena *arena, tn_run *run)
{
	tn_ext *ext = &arena->mem->ext[run->slot];
	uint32_t first = run->head;
	uint32_t pages = run->pages;

	TN_ASSERT(run->state == TN_RUN_LARGE || run->state == TN_RUN_SLAB);
	TN_ASSERT(!tn_list_linked(&run->link) && ext->pages_used >= pages);
	ext->pages_used -= pages;
	arena->pages_free += pages;
	arena->pages_used -= pages;
	if (ext->pages_used == 0 && !ext->exported)
		tn_ahead_emptied(arena->mem);
	head_clear(ext, first);
	run_set_state(run, TN_RUN_NONE);
	if (first + pages < ext->page_count) {
		tn_run *next = &ext->runs[first + pages];

		if (next->state == TN_RUN_FREE) {
			bin_take(arena, next);
			head_clear(ext, next->head);
			run_set_state(next, TN_RUN_NONE);
			pages += next->pages;
		}
	}
	if (first > 0) {
		tn_run *prev = &ext->runs[ext->runs[first - 1].head];

		if (prev->state == TN_RUN_FREE) {
			bin_take(arena, prev);
			first = prev->head;
			pages += prev->pages;
		}
	}
	bin_put(arena, run_new(ext, first, pages, TN_RUN_FREE));
}

tn_run *tn_runs_find(tn_ext *ext, uint32_t page)
{
	uint32_t word = page >> 6;
	uint64_t bits = ext->heads[word] & (~0ull >> (63 - (page & 63)));

	TN_ASSERT(page < ext->page_count && head_test(ext, 0));
	while (bits == 0)
		bits = ext->heads[--word];
	return &ext->runs[word * 64 + 63 - (uint32_t)__builtin_clzll(bits)];
}

void tn_runs_map_slab(tn_ext *ext, const tn_run *slab, bool map)
{
	TN_ASSERT(slab->state == TN_RUN_SLAB && slab->pages <= 64);
	for (uint32_t i = 0; i < slab->pages; i++)
		ext->slab_map[slab->head + i] = map ? (uint8_t)(i + 1) : 0;
}

uint64_t tn_runs_largest(tn_arena *arena)
{
	uint64_t largest = 0;
	uint32_t level, sub;

	if (arena->bin_levels == 0)
		return 0;
	level = log2_floor(arena->bin_levels);
	sub = log2_floor(arena->bin_subs[level]);
	TN_LIST_FOREACH(node, &arena->bins[level][sub])
		largest = TN_MAX(largest, TN_LIST_ENTRY(node, tn_run, link)->pages);
	return largest;
}

void tn_runs_check(tn_arena *arena, tn_ext *ext)
{
	uint32_t used = 0;
	bool was_free = false;

	for (uint32_t page = 0; page < ext->page_count;) {
		tn_run *run = &ext->runs[page];
		uint32_t level, sub;

		TN_ASSERT_MSG(head_test(ext, page), "page %u of extent %u", page, ext->pub.index);
		TN_ASSERT(run->head == page && run->pages > 0 && run->pages <= ext->page_count - page);
		TN_ASSERT(ext->runs[page + run->pages - 1].head == page);
		TN_ASSERT(run->state >= TN_RUN_FREE && run->state <= TN_RUN_SLAB);
		for (uint32_t inner = page + 1; inner < page + run->pages; inner++)
			TN_ASSERT(!head_test(ext, inner));
		if (run->state == TN_RUN_FREE) {
			TN_ASSERT(!was_free && tn_list_linked(&run->link));
			bin_of(run->pages, &level, &sub);
			TN_ASSERT((arena->bin_levels >> level & 1) && (arena->bin_subs[level] >> sub & 1));
		} else {
			used += run->pages;
		}
		for (uint32_t i = 0; i < run->pages; i++)
			TN_ASSERT(ext->slab_map[page + i] == (run->state == TN_RUN_SLAB ? i + 1 : 0));
		if (run->state == TN_RUN_SLAB)
			TN_ASSERT(tn_list_linked(&run->link) == (run->free_mask != 0));
		was_free = run->state == TN_RUN_FREE;
		page += run->pages;
	}
	TN_ASSERT_MSG(used == ext->pages_used, "used %u, counted %u", used, ext->pages_used);
}

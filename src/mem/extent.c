/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the coming and going of extents: how large the next one is, the byte budget, address space, and the
 * registration of every extent with every attached device, all or nothing.
 *
 * An arena grows by a quarter of what it has (at least mem.extent_min, at most 1 GiB), so that their number
 * stays in the dozens; a block larger than that gets an extent of its own size. Under pressure (budget or
 * number of extents) empty extents go back, except those that a peer may still reach through an old key.
 *
 *   slot  FREE --begin--> making --finish, publish--> live --hide, unmake--> FREE
 *
 * The helper (ahead.c) makes extents without the grow lock: `making` holds slot, address space and budget for it
 * meanwhile, and who runs out of room in the same arena waits for it rather than making one more.
 *
 * Threads: the pool's grow lock over everything here; the arena's lock inside it where runs are touched.
 * Tests: tests/unit/mem/test_extents.c, test_faults.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/options.h"
#include "base/os.h"
#include "mem/foreign.h"
#include "mem/cache.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define GRANULE         (1ull << TN_GRANULE_SHIFT)
#define AHEAD_BYTES_MAX (256ull << 20) /* made at a time while nobody waits, and kept free at most */

static inline uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* ---- address space ---- */

/* First fit from where the last search ended; false: no gap of `count` granules is left. */
static bool granules_find(tern_mem *mem, uint64_t count, uint64_t *first)
{
	uint64_t from = mem->granule_next;

	for (int round = 0; round < 2; round++) {
		uint64_t run = 0;

		for (uint64_t i = from; i < mem->granule_count; i++) {
			bool taken = atomic_load_explicit(&mem->granules[i], memory_order_relaxed) != 0 ||
				     (mem->making.arena && i - mem->making.granule < mem->making.granules);

			run = taken ? 0 : run + 1;
			if (run == count) {
				*first = i + 1 - count;
				return true;
			}
		}
		from = 0;
	}
	return false;
}

static void granules_set(tern_mem *mem, const tn_ext *ext, uint16_t value)
{
	uint64_t first = (uint64_t)((uint8_t *)ext->pub.base - mem->base) >> TN_GRANULE_SHIFT;
	uint64_t count = ext->pub.bytes >> TN_GRANULE_SHIFT;

	uintptr_t marks = value ? (uintptr_t)ext->marks - (first << TN_GRANULE_LINE) : 0;

	/* Release: who finds the slot by address sees the extent's fields, and marks that say NONE. */
	for (uint64_t i = first; i < first + count; i++) {
		atomic_store_explicit(&mem->granules[i], value, memory_order_release);
		atomic_store_explicit(&mem->marks[i], marks, memory_order_release);
	}
	mem->granule_next = value ? first + count : TN_MIN(mem->granule_next, first);
}

/* ---- devices ---- */

static void deregister(tern_mem *mem, tn_ext *ext, uint32_t slot)
{
	tn_device_slot *device = &mem->devices[slot];

	device->ops.dereg(device->dev, &ext->pub, ext->pub.reg[slot]);
	ext->pub.reg[slot] = NULL;
	ext->pub.lkey[slot] = ext->pub.rkey[slot] = 0;
	TN_ASSERT(mem->registrations > 0);
	mem->registrations--;
}

static tern_status register_with(tern_mem *mem, tn_ext *ext, uint32_t slot)
{
	tn_device_slot *device = &mem->devices[slot];

	TN_TRY(device->ops.reg(device->dev, &ext->pub, &ext->pub.reg[slot], &ext->pub.lkey[slot],
			       &ext->pub.rkey[slot]));
	mem->registrations++;
	return TERN_OK;
}

/* With every attached device or with none. */
static tern_status register_all(tern_mem *mem, tn_ext *ext)
{
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		tern_status status = mem->devices[slot].used ? register_with(mem, ext, slot) : TERN_OK;

		if (status == TERN_OK)
			continue;
		while (slot-- > 0) {
			if (mem->devices[slot].used)
				deregister(mem, ext, slot);
		}
		return status;
	}
	return TERN_OK;
}

tern_status tn_mem_attach(tern_mem *mem, const tn_registrar *ops, void *dev, uint32_t *slot)
{
	tern_status status = TERN_OK;
	uint32_t s = 0, i;

	TN_TRY(tn_mem_here(mem));
	pthread_mutex_lock(&mem->grow);
	while (s < TN_MEM_DEVICES_MAX && mem->devices[s].used)
		s++;
	if (s == TN_MEM_DEVICES_MAX) {
		pthread_mutex_unlock(&mem->grow);
		return tn_fail(TERN_E_LIMIT, "%d devices are attached to this memory already",
			       TN_MEM_DEVICES_MAX);
	}
	mem->devices[s] = (tn_device_slot){.ops = *ops, .dev = dev, .used = true};
	for (i = 0; i < TN_MEM_EXTENTS_MAX && status == TERN_OK; i++) {
		if (mem->ext[i].live)
			status = register_with(mem, &mem->ext[i], s);
	}
	if (status == TERN_OK) {
		status = tn_regions_attach(mem, s);
		i++; /* none was refused */
	}
	if (status == TERN_OK) {
		*slot = s;
	} else {
		/* i is one past the extent that was refused. */
		for (i--; i-- > 0;) {
			if (mem->ext[i].live)
				deregister(mem, &mem->ext[i], s);
		}
		mem->devices[s].used = false;
	}
	pthread_mutex_unlock(&mem->grow);
	return status;
}

void tn_mem_detach(tern_mem *mem, uint32_t slot)
{
	TN_ASSERT(slot < TN_MEM_DEVICES_MAX);
	if (tn_mem_here(mem) != TERN_OK)
		return;
	pthread_mutex_lock(&mem->grow);
	TN_ASSERT(mem->devices[slot].used);
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		if (mem->ext[i].live)
			deregister(mem, &mem->ext[i], slot);
	}
	tn_regions_detach(mem, slot);
	mem->devices[slot] = (tn_device_slot){0};
	pthread_mutex_unlock(&mem->grow);
}

/* ---- coming ---- */

static void meta_free(tn_ext *ext)
{
	free(ext->runs);
	free(ext->heads);
	free(ext->slab_map);
	free((void *)ext->marks);
	ext->runs = NULL;
	ext->heads = NULL;
	ext->slab_map = NULL;
	ext->marks = NULL;
}

static tern_status meta_alloc(tn_ext *ext, uint64_t bytes)
{
	uint64_t pages = bytes >> TN_PAGE_SHIFT;

	ext->page_count = (uint32_t)pages;
	ext->pages_used = 0;
	ext->exported = false;
	ext->empty_since = 0;
	if (!TN_FAULT("mem.extent.meta")) {
		/* calloc: large tables come as zero pages. */
		ext->runs = calloc(pages, sizeof(*ext->runs));
		ext->heads = calloc((pages + 63) / 64, sizeof(*ext->heads));
		ext->slab_map = calloc(pages, sizeof(*ext->slab_map));
		ext->marks = calloc(bytes >> TN_LINE_SHIFT, sizeof(*ext->marks));
	}
	if (ext->runs && ext->heads && ext->slab_map && ext->marks)
		return TERN_OK;
	meta_free(ext);
	return tn_fail(TERN_E_NOMEM, "no memory for the page table of an extent of %" PRIu64 " bytes", bytes);
}

/* Choose the place and fill the slot; the budget is taken from here on. On error nothing is left. */
static tern_status extent_begin(tn_arena *arena, uint32_t slot, uint64_t bytes)
{
	tern_mem *mem = arena->mem;
	tn_ext *ext = &mem->ext[slot];
	uint64_t first;

	TN_ASSERT(!ext->live);
	if (!granules_find(mem, bytes >> TN_GRANULE_SHIFT, &first))
		return tn_fail(TERN_E_NOMEM,
			       "no gap of %" PRIu64 " bytes in the %" PRIu64
			       " bytes of reserved address space: raise TERN_MEM_RESERVE",
			       bytes, mem->reserved);
	TN_TRY(meta_alloc(ext, bytes));
	ext->pub = (tn_extent){.index = (ext->uses * TN_MEM_EXTENTS_MAX + slot) & ~TN_MEM_REGION,
			       .access = arena->access,
			       .base = mem->base + (first << TN_GRANULE_SHIFT),
			       .bytes = bytes,
			       .fd = -1};
	ext->arena = arena;
	ext->arena_index = arena->index;
	mem->extents++;
	mem->committed += bytes;
	arena->committed += bytes;
	return TERN_OK;
}

/* The slot is free again. */
static void extent_forget(tern_mem *mem, tn_ext *ext)
{
	mem->extents--;
	mem->committed -= ext->pub.bytes;
	ext->arena->committed -= ext->pub.bytes;
	meta_free(ext);
}

/* The slow part. No lock is needed. */
static tern_status extent_commit(tn_ext *ext, int node)
{
	const tn_arena *arena = ext->arena;
	tn_huge_mode mode = arena->huge_only         ? TN_HUGE_ONLY
			    : arena->mem->huge_pages ? TN_HUGE_TRY
						     : TN_HUGE_NEVER;

	return tn_os_mem_commit(ext->pub.base, ext->pub.bytes, mode, node, &ext->pub.fd, &ext->pub.pages);
}

/* Somebody set huge pages aside on this host and there are not enough: worth one line. */
static void huge_pages_short(tern_mem *mem, uint64_t bytes)
{
	tn_os_limits limits;

	if (!mem->huge_pages || mem->huge_short)
		return;
	tn_os_limits_get(&limits);
	if (limits.huge_pages == 0)
		return;
	mem->huge_short = true;
	TN_LOG(WARN, MEM,
	       "%" PRIu64 " huge pages of 2 MiB wanted, %" PRIu64 " of %" PRIu64
	       " free: going on with smaller pages; raise vm.nr_hugepages (mem.huge_pages=off silences this)",
	       (uint64_t)(bytes / TN_MEM_EXTENT_BYTES_MIN), limits.huge_pages_free, limits.huge_pages);
}

/* Registered with all devices, or gone. */
static tern_status extent_finish(tern_mem *mem, tn_ext *ext)
{
	tern_status status = register_all(mem, ext);

	if (status == TERN_OK) {
		if (ext->pub.pages != TN_PAGE_HUGE)
			huge_pages_short(mem, ext->pub.bytes);
		ext->uses++;
		ext->node = tn_os_numa_of(ext->pub.base);
		TN_LOG(DEBUG, MEM, "extent %u: %" PRIu64 " MiB, access %u, %s pages, node %d", ext->pub.index,
		       ext->pub.bytes >> 20, ext->pub.access,
		       ext->pub.pages == TN_PAGE_HUGE  ? "huge"
		       : ext->pub.pages == TN_PAGE_THP ? "transparent huge"
						       : "4 KiB",
		       ext->node);
		return TERN_OK;
	}
	tn_os_mem_decommit(ext->pub.base, ext->pub.bytes, &ext->pub.fd);
	extent_forget(mem, ext);
	return status;
}

/* Make one extent of exactly `bytes` in the slot; on error nothing is left. Arena's lock is not held. */
static tern_status extent_make(tn_arena *arena, uint32_t slot, uint64_t bytes)
{
	tn_ext *ext = &arena->mem->ext[slot];
	tern_status status;

	TN_TRY(extent_begin(arena, slot, bytes));
	status = extent_commit(ext, tn_mem_node(arena->mem));
	if (status == TERN_OK)
		return extent_finish(arena->mem, ext);
	extent_forget(arena->mem, ext);
	return status;
}

int tn_mem_node(const tern_mem *mem)
{
	return mem->numa == TN_NUMA_AUTO ? tn_os_numa_here() : mem->numa - 1;
}

/* Let look-ups and allocations see it. Arena's lock held: a wild free meets all of it or nothing. */
static void extent_publish(tern_mem *mem, tn_ext *ext)
{
	tn_runs_add(ext->arena, ext);
	atomic_store_explicit(&ext->live, true, memory_order_release);
	granules_set(mem, ext, (uint16_t)(ext->pub.index % TN_MEM_EXTENTS_MAX + 1));
}

/* ---- going ---- */

/* The opposite, lock held too. */
static void extent_hide(tern_mem *mem, tn_ext *ext)
{
	granules_set(mem, ext, 0);
	atomic_store_explicit(&ext->live, false, memory_order_release);
}

/* It was hidden. The arena's lock is not held. */
static void extent_unmake(tern_mem *mem, tn_ext *ext)
{
	tn_caches_passed(mem); /* who looked it up before it was hidden is done with it */
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		if (mem->devices[slot].used)
			deregister(mem, ext, slot);
	}
	tn_os_mem_decommit(ext->pub.base, ext->pub.bytes, &ext->pub.fd);
	extent_forget(mem, ext);
}

/* Arena's lock held. Out of sight if it is empty and no peer can know it. */
static bool extent_hide_empty(tern_mem *mem, tn_ext *ext)
{
	if (ext->pages_used != 0 || ext->exported)
		return false;
	tn_runs_drop(ext->arena, ext);
	extent_hide(mem, ext);
	if (mem->debug)
		tn_debug_forget(mem, ext->pub.base, ext->pub.bytes);
	mem->shrinks++;
	return true;
}

/* Give empty extents back until `bytes` are free of the budget and a slot is free; best effort. */
static void release_empty(tern_mem *mem, uint64_t bytes)
{
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		tn_caches_reclaim(&mem->arenas[i], false);
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		tn_ext *ext = &mem->ext[i];
		bool hidden;

		if (mem->extents < TN_MEM_EXTENTS_MAX &&
		    (!mem->limit || mem->limit - mem->committed >= bytes))
			return;
		if (!ext->live)
			continue;
		pthread_mutex_lock(&ext->arena->lock);
		hidden = extent_hide_empty(mem, ext);
		pthread_mutex_unlock(&ext->arena->lock);
		if (hidden)
			extent_unmake(mem, ext);
	}
}

static tern_status over_budget(tern_mem *mem, uint64_t need)
{
	char want[32], have[32], limit[32];

	return tn_fail(TERN_E_BUDGET,
		       "an extent of %s wanted, %s of the budget of %s committed: raise TERN_MEM_LIMIT "
		       "(mem_limit_bytes of the context), or free memory of the same exposure class",
		       tn_format_bytes(need, want, sizeof(want)),
		       tn_format_bytes(mem->committed, have, sizeof(have)),
		       tn_format_bytes(mem->limit, limit, sizeof(limit)));
}

/* How large may the next extent be: `need` at least, more where budget and habit allow. */
static tern_status next_size(tn_arena *arena, uint64_t need, uint64_t *bytes)
{
	tern_mem *mem = arena->mem;
	uint64_t want = TN_MAX(mem->extent_min, round_up(arena->committed / 4, GRANULE));

	want = TN_MAX(need, TN_MIN(want, TN_MEM_EXTENT_BYTES_MAX));
	if (mem->extents == TN_MEM_EXTENTS_MAX || (mem->limit && mem->limit - mem->committed < need))
		release_empty(mem, need);
	if (mem->limit) {
		uint64_t left = (mem->limit - mem->committed) / GRANULE * GRANULE;

		if (left < need)
			return over_budget(mem, need);
		want = TN_MIN(want, left);
	}
	if (mem->extents == TN_MEM_EXTENTS_MAX)
		return tn_fail(TERN_E_LIMIT, "%d extents are in use: raise TERN_MEM_EXTENT_MIN",
			       TN_MEM_EXTENTS_MAX);
	*bytes = want;
	return TERN_OK;
}

static uint32_t slot_find(const tern_mem *mem)
{
	uint32_t slot = 0;

	TN_ASSERT(mem->extents < TN_MEM_EXTENTS_MAX);
	while (mem->ext[slot].live || (mem->making.arena && mem->making.slot == slot))
		slot++;
	return slot;
}

static tern_status grow_locked(tn_arena *arena, uint64_t pages)
{
	tern_mem *mem = arena->mem;
	uint64_t need = round_up(pages << TN_PAGE_SHIFT, GRANULE);
	uint64_t bytes = 0;
	tern_status status;
	uint32_t slot;

	TN_TRY(next_size(arena, need, &bytes));
	slot = slot_find(mem);
	status = extent_make(arena, slot, bytes);
	/* Short of memory: the habit of growing may be what is too much. */
	if (status != TERN_OK && bytes > need)
		status = extent_make(arena, slot, need);
	if (status != TERN_OK)
		return status;
	mem->grows_waited++;
	pthread_mutex_lock(&arena->lock);
	extent_publish(mem, &mem->ext[slot]);
	return TERN_OK;
}

tern_status tn_extent_grow(tn_arena *arena, uint64_t pages, uint32_t align_pages)
{
	tern_mem *mem = arena->mem;
	tern_status status = TERN_OK;

	if (pages > mem->reserved >> TN_PAGE_SHIFT)
		return tn_fail(TERN_E_NOMEM,
			       "a block of %" PRIu64 " pages of 4 KiB is larger than the %" PRIu64
			       " bytes of reserved address space: raise TERN_MEM_RESERVE",
			       pages, mem->reserved);
	pthread_mutex_lock(&mem->grow);
	while (mem->making.arena == arena && mem->making.bytes >> TN_PAGE_SHIFT >= pages)
		pthread_cond_wait(&mem->made, &mem->grow);
	pthread_mutex_lock(&arena->lock);
	if (!tn_runs_room(arena, (uint32_t)pages, align_pages)) {
		pthread_mutex_unlock(&arena->lock);
		status = grow_locked(arena, pages);
	}
	pthread_mutex_unlock(&mem->grow);
	return status;
}

/* ---- in the background ---- */

uint64_t tn_arena_watermark(const tn_arena *arena)
{
	uint64_t used = arena->pages_used << TN_PAGE_SHIFT;

	return TN_MIN(TN_MAX(arena->mem->extent_min, used / 8), AHEAD_BYTES_MAX);
}

/* Nobody waits: only from what is plainly free, and never the last eighth of a budget. */
static bool ahead_size(tn_arena *arena, uint64_t *bytes)
{
	tern_mem *mem = arena->mem;
	uint64_t left = UINT64_MAX;

	*bytes = TN_MAX(mem->extent_min, round_up(arena->committed / 4, GRANULE));
	*bytes = TN_MIN(*bytes, AHEAD_BYTES_MAX);
	if (mem->limit)
		left = mem->limit - mem->committed;
	return !mem->making.arena && mem->extents < TN_MEM_EXTENTS_MAX - TN_MEM_EXTENTS_MAX / 8 &&
	       left >= *bytes && left - *bytes >= mem->limit / 8;
}

void tn_extent_grow_ahead(tn_arena *arena, int node)
{
	tern_mem *mem = arena->mem;
	uint64_t bytes;
	tern_status status;
	uint32_t slot;
	tn_ext *ext;

	pthread_mutex_lock(&mem->grow);
	if (!ahead_size(arena, &bytes)) {
		pthread_mutex_unlock(&mem->grow);
		return;
	}
	slot = slot_find(mem);
	ext = &mem->ext[slot];
	if (extent_begin(arena, slot, bytes) != TERN_OK) {
		pthread_mutex_unlock(&mem->grow);
		return;
	}
	mem->making =
		(tn_making){.arena = arena,
			    .slot = slot,
			    .bytes = bytes,
			    .granule = (uint64_t)((uint8_t *)ext->pub.base - mem->base) >> TN_GRANULE_SHIFT,
			    .granules = bytes >> TN_GRANULE_SHIFT};
	pthread_mutex_unlock(&mem->grow);
	status = extent_commit(ext, node);
	pthread_mutex_lock(&mem->grow);
	mem->making = (tn_making){0};
	if (status != TERN_OK)
		extent_forget(mem, ext);
	else
		status = extent_finish(mem, ext);
	if (status == TERN_OK) {
		mem->grows_ahead++;
		pthread_mutex_lock(&arena->lock);
		extent_publish(mem, ext);
		pthread_mutex_unlock(&arena->lock);
	}
	pthread_cond_broadcast(&mem->made);
	pthread_mutex_unlock(&mem->grow);
}

/* Grow held, arena's lock held. True: it is empty and stays for now. */
static bool decay_one(tern_mem *mem, tn_ext *ext, uint64_t now, bool *hidden)
{
	tn_arena *arena = ext->arena;
	uint64_t left;

	*hidden = false;
	if (ext->pages_used != 0 || ext->exported)
		return false;
	if (ext->empty_since == 0)
		ext->empty_since = now;
	/* Twice the mark at which it would grow again: no coming and going. */
	left = (arena->pages_free - ext->page_count) << TN_PAGE_SHIFT;
	if (left < 2 * tn_arena_watermark(arena))
		return false;
	if (now - ext->empty_since < mem->shrink_ns)
		return true;
	*hidden = extent_hide_empty(mem, ext);
	return false;
}

bool tn_extents_decay(tern_mem *mem, uint64_t now)
{
	bool more = false, hidden;

	pthread_mutex_lock(&mem->grow);
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		tn_caches_reclaim(&mem->arenas[i], true);
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
	/* The later an extent came, the larger it is: those go first. */
	for (uint32_t i = TN_MEM_EXTENTS_MAX; i-- > 0;) {
		tn_ext *ext = &mem->ext[i];

		if (!ext->live)
			continue;
		pthread_mutex_lock(&ext->arena->lock);
		more = decay_one(mem, ext, now, &hidden) || more;
		pthread_mutex_unlock(&ext->arena->lock);
		if (hidden)
			extent_unmake(mem, ext);
	}
	pthread_mutex_unlock(&mem->grow);
	return more;
}

void tn_extents_destroy(tern_mem *mem)
{
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		if (!mem->ext[i].live)
			continue;
		extent_hide(mem, &mem->ext[i]);
		extent_unmake(mem, &mem->ext[i]);
	}
}

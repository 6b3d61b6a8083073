/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the coming and going of extents: how large the next one is, the byte budget, address space, and the
 * registration of every extent with every attached device, all or nothing.
 *
 * An arena grows by a quarter of what it has (at least mem.extent_min, at most 1 GiB), so that their number
 * stays in the dozens; a block larger than that gets an extent of its own size. Under pressure (budget or
 * number of extents) empty extents go back, except those that a peer may still reach through an old key.
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
#include "mem/foreign.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define GRANULE (1ull << TN_GRANULE_SHIFT)

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
			run = atomic_load_explicit(&mem->granules[i], memory_order_relaxed) ? 0 : run + 1;
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

	/* Release: who finds the slot by address sees the extent's fields. */
	for (uint64_t i = first; i < first + count; i++)
		atomic_store_explicit(&mem->granules[i], value, memory_order_release);
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
	ext->runs = NULL;
	ext->heads = NULL;
}

static tern_status meta_alloc(tn_ext *ext, uint64_t bytes)
{
	uint64_t pages = bytes >> TN_PAGE_SHIFT;

	ext->page_count = (uint32_t)pages;
	ext->pages_used = 0;
	ext->exported = false;
	if (!TN_FAULT("mem.extent.meta")) {
		ext->runs = calloc(pages, sizeof(*ext->runs));
		ext->heads = calloc((pages + 63) / 64, sizeof(*ext->heads));
	}
	if (ext->runs && ext->heads)
		return TERN_OK;
	meta_free(ext);
	return tn_fail(TERN_E_NOMEM, "no memory for the page table of an extent of %" PRIu64 " bytes", bytes);
}

/* Make one extent of exactly `bytes` in the slot; on error nothing is left. Arena's lock is not held. */
static tern_status extent_make(tn_arena *arena, uint32_t slot, uint64_t bytes)
{
	tern_mem *mem = arena->mem;
	tn_ext *ext = &mem->ext[slot];
	tn_huge_mode mode = arena->huge_only ? TN_HUGE_ONLY : mem->huge_pages ? TN_HUGE_TRY : TN_HUGE_NEVER;
	tern_status status;
	uint64_t first;

	if (!granules_find(mem, bytes >> TN_GRANULE_SHIFT, &first))
		return tn_fail(TERN_E_NOMEM,
			       "no gap of %" PRIu64 " bytes in the %" PRIu64
			       " bytes of reserved address space: raise TERN_MEM_RESERVE",
			       bytes, mem->reserved);
	TN_TRY(meta_alloc(ext, bytes));
	ext->pub = (tn_extent){.index = ext->uses * TN_MEM_EXTENTS_MAX + slot,
			       .access = arena->access,
			       .base = mem->base + (first << TN_GRANULE_SHIFT),
			       .bytes = bytes,
			       .fd = -1};
	status = tn_os_mem_commit(ext->pub.base, bytes, mode, &ext->pub.fd, &ext->pub.pages);
	if (status != TERN_OK) {
		meta_free(ext);
		return status;
	}
	status = register_all(mem, ext);
	if (status != TERN_OK) {
		tn_os_mem_decommit(ext->pub.base, bytes, &ext->pub.fd);
		meta_free(ext);
		return status;
	}
	ext->uses++;
	ext->arena = arena;
	mem->extents++;
	mem->committed += bytes;
	arena->committed += bytes;
	return TERN_OK;
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

static void extent_unmake(tern_mem *mem, tn_ext *ext)
{
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		if (mem->devices[slot].used)
			deregister(mem, ext, slot);
	}
	tn_os_mem_decommit(ext->pub.base, ext->pub.bytes, &ext->pub.fd);
	mem->extents--;
	mem->committed -= ext->pub.bytes;
	ext->arena->committed -= ext->pub.bytes;
	meta_free(ext);
}

/* Give empty extents back until `bytes` are free of the budget and a slot is free; best effort. */
static void release_empty(tern_mem *mem, uint64_t bytes)
{
	for (uint32_t i = 0; i < TN_ARENAS; i++) {
		pthread_mutex_lock(&mem->arenas[i].lock);
		tn_slab_trim(&mem->arenas[i]);
		pthread_mutex_unlock(&mem->arenas[i].lock);
	}
	for (uint32_t i = 0; i < TN_MEM_EXTENTS_MAX; i++) {
		tn_ext *ext = &mem->ext[i];
		bool empty;

		if (mem->extents < TN_MEM_EXTENTS_MAX &&
		    (!mem->limit || mem->limit - mem->committed >= bytes))
			return;
		if (!ext->live)
			continue;
		pthread_mutex_lock(&ext->arena->lock);
		empty = ext->pages_used == 0 && !ext->exported;
		if (empty) {
			tn_runs_drop(ext->arena, ext);
			extent_hide(mem, ext);
		}
		pthread_mutex_unlock(&ext->arena->lock);
		if (empty)
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

static tern_status grow_locked(tn_arena *arena, uint64_t pages)
{
	tern_mem *mem = arena->mem;
	uint64_t need = round_up(pages << TN_PAGE_SHIFT, GRANULE);
	uint64_t bytes = 0;
	tern_status status;
	uint32_t slot = 0;

	TN_TRY(next_size(arena, need, &bytes));
	while (mem->ext[slot].live)
		slot++;
	status = extent_make(arena, slot, bytes);
	/* Short of memory: the habit of growing may be what is too much. */
	if (status != TERN_OK && bytes > need)
		status = extent_make(arena, slot, need);
	if (status != TERN_OK)
		return status;
	TN_LOG(DEBUG, MEM, "extent %u: %" PRIu64 " MiB, access %u, %s pages", mem->ext[slot].pub.index,
	       mem->ext[slot].pub.bytes >> 20, arena->access,
	       mem->ext[slot].pub.pages == TN_PAGE_HUGE  ? "huge"
	       : mem->ext[slot].pub.pages == TN_PAGE_THP ? "transparent huge"
							 : "4 KiB");
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
	pthread_mutex_lock(&arena->lock);
	if (!tn_runs_room(arena, (uint32_t)pages, align_pages)) {
		pthread_mutex_unlock(&arena->lock);
		status = grow_locked(arena, pages);
	}
	pthread_mutex_unlock(&mem->grow);
	return status;
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

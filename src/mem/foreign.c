/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns foreign memory: registration that the caller asks for and ends, with all devices or with none, and the
 * look-up from a pointer to its region. There is no cache and nothing is registered unasked: memory that is not
 * registered is staged by the channel layer where a device needs registration.
 *
 * Must not touch the bytes, nor map or unmap them. Threads: any; see foreign.h. Tests: test_foreign.c.
 */
#include "mem/foreign.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/options.h"
#include "base/os.h"
#include "mem/gpu.h"
#include "mem/os_mem.h"

#define SLOT_NONE UINT32_MAX
/* Births that fit beside the flag: an index is used again after so many registrations in one slot. */
#define BIRTHS (TN_MEM_REGION / TN_MEM_REGIONS_MAX)

tern_status tn_regions_init(tern_mem *mem)
{
	struct tn_regions *r = TN_FAULT("mem.regions.alloc") ? NULL : calloc(1, sizeof(*r));
	tn_os_limits limits;

	if (!r)
		return tn_fail(TERN_E_NOMEM, "no memory for the table of regions");
	for (uint32_t i = 0; i < TN_MEM_REGIONS_MAX; i++)
		r->slots[i].next_free = i + 1 < TN_MEM_REGIONS_MAX ? i + 1 : SLOT_NONE;
	tn_os_limits_get(&limits);
	r->pin_limit = tn_os_mem_may_lock() ? UINT64_MAX : limits.memlock_bytes;
	mem->regions = r;
	return TERN_OK;
}

void tn_regions_fini(tern_mem *mem)
{
	struct tn_regions *r = mem->regions;

	for (uint32_t i = 0; r && i < TN_MEM_REGIONS_MAX; i++) {
		if (atomic_load(&r->slots[i].state) == TN_REGION_LIVE && r->slots[i].ext.gpu)
			tn_gpu_region_end(&r->slots[i].ext, r->slots[i].owned);
	}
	free(r);
	mem->regions = NULL;
}

/* ---- limits ---- */

tern_status tn_pin_preflight(uint64_t limit, uint64_t pinned, uint64_t bytes, uint32_t devices)
{
	char want[32], have[32], most[32];
	uint64_t wanted, sum;

	if (limit == UINT64_MAX || devices == 0)
		return TERN_OK;
	if (!__builtin_mul_overflow(bytes, (uint64_t)devices, &wanted) &&
	    !__builtin_add_overflow(wanted, pinned, &sum) && sum <= limit)
		return TERN_OK;
	return tn_fail(
		TERN_E_LIMIT,
		"registering %s with %u device%s, %s pinned already: more than RLIMIT_MEMLOCK, which is "
		"%s. Raise it with 'ulimit -l unlimited' or LimitMEMLOCK=infinity, or don't register: "
		"what is not registered is staged",
		tn_format_bytes(bytes, want, sizeof(want)), devices, devices == 1 ? "" : "s",
		tn_format_bytes(pinned, have, sizeof(have)), tn_format_bytes(limit, most, sizeof(most)));
}

static uint32_t devices_of(const tern_mem *mem)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++)
		n += mem->devices[i].used;
	return n;
}

/* ---- order ---- */

/* First place whose end lies above the address. */
static uint32_t search(const tn_region_order *order, uint32_t count, uint64_t address)
{
	uint32_t low = 0, high = count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (atomic_load_explicit(&order->at[middle].end, memory_order_acquire) > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static void place_set(tn_region_place *place, uint64_t base, uint64_t end, uint32_t slot)
{
	/* Release: who sees one of these sees the version that it does not belong to. */
	atomic_store_explicit(&place->base, base, memory_order_release);
	atomic_store_explicit(&place->end, end, memory_order_release);
	atomic_store_explicit(&place->slot, slot, memory_order_release);
}

/* Write the order of all live regions but `without`, plus `with`, and publish it. */
static void order_change(struct tn_regions *r, const tern_region *with, const tern_region *without)
{
	uint64_t version = atomic_load_explicit(&r->version, memory_order_relaxed);
	const tn_region_order *old = &r->order[version & 1];
	tn_region_order *new = &r->order[(version + 1) & 1];
	uint32_t count = atomic_load_explicit(&old->count, memory_order_relaxed), n = 0;
	const tern_region *due = with;

	for (uint32_t i = 0; i <= count; i++) {
		uint32_t slot = i < count ? atomic_load_explicit(&old->at[i].slot, memory_order_relaxed) : 0;
		const tern_region *next = i < count ? &r->slots[slot] : NULL;

		if (due && (!next || (uintptr_t)due->ext.base < (uintptr_t)next->ext.base)) {
			uint64_t base = (uintptr_t)due->ext.base;

			place_set(&new->at[n++], base, base + due->ext.bytes, (uint32_t)(due - r->slots));
			due = NULL;
		}
		if (next && next != without) {
			uint64_t base = (uintptr_t)next->ext.base;

			place_set(&new->at[n++], base, base + next->ext.bytes, slot);
		}
	}
	atomic_store_explicit(&new->count, n, memory_order_release);
	atomic_store_explicit(&r->version, version + 1, memory_order_release);
}

tern_region *tn_region_find(const tern_mem *mem, const void *ptr)
{
	struct tn_regions *r = mem->regions;
	uint64_t address = (uintptr_t)ptr, version, base;
	uint32_t count, i, slot;

	do {
		const tn_region_order *order;

		version = atomic_load_explicit(&r->version, memory_order_acquire);
		order = &r->order[version & 1];
		count = atomic_load_explicit(&order->count, memory_order_acquire);
		if (count == 0)
			return NULL;
		i = search(order, count, address);
		base = i < count ? atomic_load_explicit(&order->at[i].base, memory_order_acquire)
				 : UINT64_MAX;
		slot = i < count ? atomic_load_explicit(&order->at[i].slot, memory_order_acquire) : 0;
		/* This half is written again only after another version was published. */
	} while (TN_UNLIKELY(atomic_load_explicit(&r->version, memory_order_relaxed) != version));
	return base <= address ? &r->slots[slot] : NULL;
}

/* ---- use ---- */

static bool covers(const tern_region *region, const void *ptr, uint64_t bytes)
{
	uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)region->ext.base);

	return offset <= region->ext.bytes && bytes <= region->ext.bytes - offset;
}

tern_region *tn_region_use(const tern_mem *mem, const void *ptr, uint64_t bytes)
{
	tern_region *region;

	while ((region = tn_region_find(mem, ptr)) != NULL) {
		uint32_t state;

		atomic_fetch_add_explicit(&region->uses, 1, memory_order_seq_cst);
		state = atomic_load_explicit(&region->state, memory_order_seq_cst);
		/* LIVE with a use stays so: its fields hold still. It may be another region by now. */
		if (TN_LIKELY(state == TN_REGION_LIVE && covers(region, ptr, bytes)))
			return region;
		tn_region_unuse(region);
		if (state == TN_REGION_LIVE)
			return NULL;
		sched_yield(); /* it is being decided whether the region goes */
	}
	return NULL;
}

void tn_region_unuse(tern_region *region)
{
	uint32_t before = atomic_fetch_sub_explicit(&region->uses, 1, memory_order_release);

	TN_ASSERT(before > 0);
}

const tn_extent *tn_region_extent(const tern_region *region)
{
	return &region->ext;
}

const tn_extent *tn_region_extent_at(const tern_mem *mem, uint32_t index)
{
	const tern_region *region = &mem->regions->slots[index % TN_MEM_REGIONS_MAX];

	if (atomic_load_explicit(&region->state, memory_order_acquire) == TN_REGION_FREE ||
	    region->ext.index != index)
		return NULL;
	return &region->ext;
}

const tn_extent *tn_mem_local_of(const tern_mem *mem, const void *ptr, uint64_t bytes)
{
	const tn_extent *ext = tn_mem_extent_of(mem, ptr);
	const tern_region *region;

	if (TN_LIKELY(ext != NULL))
		return bytes <= ext->bytes - (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ext->base)
			       ? ext
			       : NULL;
	region = tn_region_find(mem, ptr);
	return region && covers(region, ptr, bytes) ? &region->ext : NULL;
}

bool tn_mem_known_to_all(const tern_mem *mem, const tn_extent *ext)
{
	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++) {
		if (mem->devices[i].used && !ext->reg[i])
			return false;
	}
	return true;
}

/* ---- devices ---- */

static void forget(tern_mem *mem, tern_region *region, uint32_t slot)
{
	tn_device_slot *device = &mem->devices[slot];

	if (!region->ext.reg[slot])
		return; /* GPU memory that this device does not reach */
	device->ops.dereg(device->dev, &region->ext, region->ext.reg[slot]);
	region->ext.reg[slot] = NULL;
	region->ext.lkey[slot] = region->ext.rkey[slot] = 0;
	TN_ASSERT(mem->registrations > 0);
	mem->registrations--;
}

static void forget_all(tern_mem *mem, tern_region *region)
{
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		if (mem->devices[slot].used)
			forget(mem, region, slot);
	}
}

/* GPU memory that a device can't reach is staged there, unless a peer is to reach it through that device. */
static tern_status tell(tern_mem *mem, tern_region *region, uint32_t slot)
{
	tn_device_slot *device = &mem->devices[slot];
	tn_extent *ext = &region->ext;
	tern_status status;

	status = device->ops.reg(device->dev, ext, &ext->reg[slot], &ext->lkey[slot], &ext->rkey[slot]);
	if (status == TERN_OK) {
		TN_ASSERT(ext->reg[slot] != NULL);
		mem->registrations++;
		return TERN_OK;
	}
	ext->reg[slot] = NULL;
	ext->lkey[slot] = ext->rkey[slot] = 0;
	if (ext->gpu && ext->access == TERN_ACCESS_NONE && status == TERN_E_UNSUPPORTED)
		return TERN_OK;
	return status;
}

static tern_status tell_all(tern_mem *mem, tern_region *region)
{
	for (uint32_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		tern_status status = mem->devices[slot].used ? tell(mem, region, slot) : TERN_OK;

		if (status == TERN_OK)
			continue;
		while (slot-- > 0) {
			if (mem->devices[slot].used)
				forget(mem, region, slot);
		}
		return status;
	}
	return TERN_OK;
}

tern_status tn_regions_attach(tern_mem *mem, uint32_t slot)
{
	struct tn_regions *r = mem->regions;

	for (uint32_t i = 0; i < TN_MEM_REGIONS_MAX; i++) {
		tern_region *region = &r->slots[i];
		tern_status status;

		if (atomic_load(&region->state) != TN_REGION_LIVE)
			continue;
		status = tell(mem, region, slot);
		if (status == TERN_OK)
			continue;
		while (i-- > 0) {
			if (atomic_load(&r->slots[i].state) == TN_REGION_LIVE)
				forget(mem, &r->slots[i], slot);
		}
		tn_detail_prefix("a region of foreign memory");
		return status;
	}
	return TERN_OK;
}

void tn_regions_detach(tern_mem *mem, uint32_t slot)
{
	for (uint32_t i = 0; i < TN_MEM_REGIONS_MAX; i++) {
		if (atomic_load(&mem->regions->slots[i].state) == TN_REGION_LIVE)
			forget(mem, &mem->regions->slots[i], slot);
	}
}

/* ---- coming and going ---- */

static bool gpu_writable(const tn_extent *ext)
{
	return ext->gpu && (ext->access & TERN_ACCESS_WRITE);
}

void tn_mem_flush_gpus(const tern_mem *mem)
{
	if (TN_UNLIKELY(atomic_load_explicit(&mem->regions->gpu_writable, memory_order_relaxed) > 0))
		tn_gpu_flush_all();
}

static tern_status check_range(const tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access)
{
	uint64_t base = (uintptr_t)ptr, own = (uintptr_t)mem->base, end;

	if (!ptr || bytes == 0 || bytes > TN_TRANSFER_BYTES_MAX || __builtin_add_overflow(base, bytes, &end))
		return tn_fail(TERN_E_INVALID, "a region of %" PRIu64 " bytes at %p", bytes, ptr);
	if (access & ~(TERN_ACCESS_READ | TERN_ACCESS_WRITE))
		return tn_fail(TERN_E_INVALID, "access 0x%x: TERN_ACCESS_READ and TERN_ACCESS_WRITE, or none",
			       access);
	if (base < own + mem->reserved && own < end)
		return tn_fail(TERN_E_INVALID,
			       "%p + %" PRIu64 " is memory of this context: registered already", ptr, bytes);
	if (access && (base % TN_PAGE_BYTES || bytes % TN_PAGE_BYTES))
		return tn_fail(TERN_E_INVALID,
			       "%" PRIu64
			       " bytes at %p are not whole pages of 4 KiB, and devices expose whole "
			       "pages to peers: align start and length (aligned_alloc, mmap), allocate with "
			       "tern_mem_alloc, or register without remote access",
			       bytes, ptr);
	return TERN_OK;
}

static bool overlaps(const struct tn_regions *r, uint64_t base, uint64_t end)
{
	const tn_region_order *order = &r->order[atomic_load_explicit(&r->version, memory_order_relaxed) & 1];
	uint32_t count = atomic_load_explicit(&order->count, memory_order_relaxed);
	uint32_t i = search(order, count, base);

	return i < count && atomic_load_explicit(&order->at[i].base, memory_order_relaxed) < end;
}

/* Grow held. */
static tern_status make(tern_mem *mem, const tn_extent *what, bool owned, tern_region **out)
{
	struct tn_regions *r = mem->regions;
	uint64_t base = (uintptr_t)what->base;
	uint32_t slot = r->free_first;
	tern_region *region;
	tern_status status;

	if (overlaps(r, base, base + what->bytes))
		return tn_fail(TERN_E_EXISTS, "[%p, +%" PRIu64 ") overlaps a region that is registered",
			       what->base, what->bytes);
	if (slot == SLOT_NONE)
		return tn_fail(TERN_E_LIMIT,
			       "%u regions are registered: register larger ranges, or allocate with "
			       "tern_mem_alloc",
			       TN_MEM_REGIONS_MAX);
	if (!what->gpu)
		TN_TRY(tn_pin_preflight(r->pin_limit, (mem->committed + r->bytes) * devices_of(mem),
					what->bytes, devices_of(mem)));
	region = &r->slots[slot];
	region->ext = *what;
	region->ext.index = TN_MEM_REGION | (region->births % BIRTHS * TN_MEM_REGIONS_MAX + slot);
	region->mem = mem;
	region->owned = owned;
	status = tell_all(mem, region);
	if (status != TERN_OK)
		return status;
	region->births++;
	r->free_first = region->next_free;
	r->count++;
	r->bytes += what->bytes;
	r->gpu_writable += gpu_writable(&region->ext);
	atomic_store_explicit(&region->state, TN_REGION_LIVE, memory_order_release);
	order_change(r, region, NULL);
	*out = region;
	return TERN_OK;
}

tern_status tn_region_make(tern_mem *mem, void *ptr, uint64_t bytes, uint32_t access, bool gpu, bool owned,
			   tern_region **out)
{
	tn_extent what = {.access = access, .base = ptr, .bytes = bytes, .fd = -1, .gpu = gpu};
	tern_status status;

	if (gpu)
		tn_gpu_region_begin(&what);
	pthread_mutex_lock(&mem->grow);
	status = make(mem, &what, owned, out);
	pthread_mutex_unlock(&mem->grow);
	if (status != TERN_OK && gpu)
		tn_gpu_region_end(&what, false);
	return status;
}

tern_status tern_mem_register(tern_mem *mem, void *ptr, uint64_t bytes, uint32_t access, tern_region **region)
{
	if (!region)
		return tn_fail(TERN_E_INVALID, "region is NULL");
	*region = NULL;
	if (!mem)
		return tn_fail(TERN_E_INVALID, "mem is NULL");
	TN_TRY(tn_mem_here(mem));
	TN_TRY(check_range(mem, ptr, bytes, access));
	(void)tn_gpu_start(true); /* it may be a GPU's, if the process uses one */
	return tn_region_make(mem, ptr, bytes, access, tn_gpu_owns(ptr), false, region);
}

/* Grow held, CLOSING: nobody begins a use now. */
static tern_status may_go(tern_mem *mem, tern_region *region)
{
	uint32_t uses = atomic_load_explicit(&region->uses, memory_order_seq_cst);

	if (uses > 0)
		return tn_fail(
			TERN_E_IN_USE,
			"%u request%s of a device use the region: wait for the operations' completions", uses,
			uses == 1 ? "" : "s");
	if (!region->owned && tn_keys_any(&mem->keys, region->ext.base))
		return tn_fail(TERN_E_IN_USE, "keys to the region are live: revoke them first");
	return TERN_OK;
}

/* Grow held. */
static tern_status unmake(tern_mem *mem, tern_region *region)
{
	struct tn_regions *r = mem->regions;
	tern_status status;

	if (atomic_load(&region->state) != TN_REGION_LIVE)
		return tn_fail(TERN_E_INVALID, "the region is not registered (unregistered twice?)");
	atomic_store_explicit(&region->state, TN_REGION_CLOSING, memory_order_seq_cst);
	status = may_go(mem, region);
	if (status != TERN_OK) {
		atomic_store_explicit(&region->state, TN_REGION_LIVE, memory_order_release);
		return status;
	}
	order_change(r, NULL, region);
	forget_all(mem, region);
	TN_ASSERT(r->count > 0 && r->bytes >= region->ext.bytes);
	r->count--;
	r->bytes -= region->ext.bytes;
	r->gpu_writable -= gpu_writable(&region->ext);
	region->next_free = r->free_first;
	r->free_first = (uint32_t)(region - r->slots);
	atomic_store_explicit(&region->state, TN_REGION_FREE, memory_order_release);
	return TERN_OK;
}

tern_status tern_mem_unregister(tern_region *region)
{
	tern_status status;
	tn_extent ended;
	tern_mem *mem;
	bool owned;

	if (!region)
		return TERN_OK;
	mem = region->mem;
	TN_TRY(tn_mem_here(mem));
	pthread_mutex_lock(&mem->grow);
	ended = region->ext;
	owned = region->owned;
	status = unmake(mem, region);
	pthread_mutex_unlock(&mem->grow);
	if (status == TERN_OK && ended.gpu)
		tn_gpu_region_end(&ended, owned);
	return status;
}

/* ---- keys ---- */

tern_status tn_region_export(tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access, tern_key *key)
{
	tern_region *region = tn_region_use(mem, ptr, bytes);
	tern_status status;

	if (!region)
		return tn_fail(TERN_E_INVALID,
			       "[%p, +%" PRIu64 ") is not memory of this context: allocate it with "
			       "tern_mem_alloc or register it with tern_mem_register",
			       ptr, bytes);
	if (access & ~region->ext.access)
		status = tn_fail(TERN_E_ACCESS, "a key with access 0x%x to memory registered with 0x%x",
				 access, region->ext.access);
	else
		status = tn_keys_make(&mem->keys, &region->ext, region->ext.base, ptr, bytes, access, key);
	tn_region_unuse(region);
	return status;
}

void tn_regions_stats(const tern_mem *mem, tern_mem_stats *stats)
{
	stats->regions = mem->regions->count;
	stats->region_bytes = mem->regions->bytes;
}

void tn_regions_check(const tern_mem *mem)
{
	const struct tn_regions *r = mem->regions;
	const tn_region_order *order = &r->order[atomic_load(&r->version) & 1];
	uint32_t count = atomic_load(&order->count);
	uint64_t bytes = 0, end = 0;

	TN_ASSERT(count == r->count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t slot = atomic_load(&order->at[i].slot);
		const tern_region *region = &r->slots[slot];

		TN_ASSERT(atomic_load(&region->state) == TN_REGION_LIVE);
		TN_ASSERT(atomic_load(&order->at[i].base) == (uintptr_t)region->ext.base);
		TN_ASSERT((uintptr_t)region->ext.base >= end);
		end = (uintptr_t)region->ext.base + region->ext.bytes;
		TN_ASSERT(atomic_load(&order->at[i].end) == end);
		TN_ASSERT(region->ext.index % TN_MEM_REGIONS_MAX == slot);
		bytes += region->ext.bytes;
	}
	TN_ASSERT(bytes == r->bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign memory that was registered: what files of mem share about it.
 *
 *   region   caller-owned bytes that every attached device knows, as tn_extent `ext` (fd -1: nobody maps it)
 *   order    regions sorted by address, twice: readers search the half that `version` names while the
 *            next change writes the other
 *   use      somebody works with the region: a device's request, counted by the channel layer
 *
 *   state    FREE -> LIVE (registered) -> CLOSING (may it go?) -> FREE, or back to LIVE
 *   regions never overlap; order[version & 1][0..count) ascends; bytes == sum of their lengths
 *
 * Locks: the pool's grow lock over every change; look-up and use take none.
 * Tests: tests/unit/mem/test_foreign.c.
 */
#ifndef TN_MEM_FOREIGN_H
#define TN_MEM_FOREIGN_H

#include "mem/pool.h"

#define TN_MEM_REGIONS_MAX 4096u

typedef enum tn_region_state { TN_REGION_FREE, TN_REGION_LIVE, TN_REGION_CLOSING } tn_region_state;

struct tern_region {
	tn_extent ext;
	tern_mem *mem;
	_Atomic uint32_t state; /* tn_region_state */
	_Atomic uint32_t uses;
	uint32_t births; /* of this slot: ext.index = TN_MEM_REGION | births * REGIONS_MAX + slot */
	uint32_t next_free;
	bool owned; /* tern_mem_alloc made it (GPU memory), tern_mem_free ends it */
};

typedef struct tn_region_place {
	_Atomic uint64_t base, end;
	_Atomic uint32_t slot;
} tn_region_place;

typedef struct tn_region_order {
	_Atomic uint32_t count;
	tn_region_place at[TN_MEM_REGIONS_MAX];
} tn_region_order;

struct tn_regions {
	_Atomic uint64_t version;
	tn_region_order order[2];
	/* guarded by grow */
	tern_region slots[TN_MEM_REGIONS_MAX];
	uint32_t free_first;
	uint32_t count;
	uint64_t bytes;
	_Atomic uint32_t gpu_writable; /* regions of GPU memory that NICs may write to */
	/* What devices may pin, UINT64_MAX = anything; from the system, but tests set it. */
	uint64_t pin_limit;
};

tern_status tn_regions_init(tern_mem *mem);
void tn_regions_fini(tern_mem *mem);

/* Grow held: the device in that slot learns of all regions, or of none. */
tern_status tn_regions_attach(tern_mem *mem, uint32_t slot);
void tn_regions_detach(tern_mem *mem, uint32_t slot);

/* The region that ptr lies in, NULL if none. No lock; good while something counts as its use. */
tern_region *tn_region_find(const tern_mem *mem, const void *ptr);
/* The region of an extent index that has TN_MEM_REGION; NULL if it is gone. */
const tn_extent *tn_region_extent_at(const tern_mem *mem, uint32_t index);
/* tern_mem_export for what is no block. */
tern_status tn_region_export(tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access, tern_key *key);
/* Register memory of one kind. Takes grow. */
tern_status tn_region_make(tern_mem *mem, void *ptr, uint64_t bytes, uint32_t access, bool gpu, bool owned,
			   tern_region **out);

/* ---- gpu_block.c: GPU memory that tern_mem_alloc gives out, each block a region of its own ---- */

tern_status tn_gpu_block_alloc(tern_mem *mem, uint64_t bytes, uint32_t access, void **ptr);
/* False: it is no such block, nothing happened. */
bool tn_gpu_block_free(tern_mem *mem, void *ptr);
/* 0: it is no such block. */
uint64_t tn_gpu_block_usable(tern_mem *mem, const void *ptr);

/*
 * Would `bytes` more, pinned by each of `devices`, fit beside what is pinned? TERN_E_LIMIT with limit, wanted,
 * have and remedy in the text.
 */
tern_status tn_pin_preflight(uint64_t limit, uint64_t pinned, uint64_t bytes, uint32_t devices);

/* Grow held: fills in what it is about regions. */
void tn_regions_stats(const tern_mem *mem, tern_mem_stats *stats);
/* Grow held: the invariants above. */
void tn_regions_check(const tern_mem *mem);

#endif

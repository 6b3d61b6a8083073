/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers above see of memory beside the public <tern/mem.h>: extents, the registration vtable that
 * transports fill, and the key table that plays the NIC's part on shm and tcp.
 *
 *   extent   one memfd, mapped once, 2 MiB..1 GiB, one exposure class, one registration per device
 *   block    what tern_mem_alloc returns; never crosses an extent
 *   key      (index, generation) of a row in the key table + the range it covers
 *
 * Threads: everything here may be called from any thread unless said otherwise.
 */
#ifndef TN_MEM_MEM_H
#define TN_MEM_MEM_H

#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <tern/mem.h>

#define TN_MEM_DEVICES_MAX      4   /* devices with registrations of their own (rails) */
#define TN_MEM_EXTENTS_MAX      512 /* DESIGN 12.13: a few hundred registrations, descriptors, mappings */
#define TN_MEM_EXTENT_BYTES_MIN (2ull << 20)
#define TN_MEM_EXTENT_BYTES_MAX (1ull << 30)

typedef enum tn_page_kind { TN_PAGE_4K, TN_PAGE_THP, TN_PAGE_HUGE } tn_page_kind;

typedef struct tn_extent {
	/* In the pool; never reused for other memory while the pool lives. Below TN_MEM_EXTENTS_MAX until an
	   extent was given back and its place taken again: index % TN_MEM_EXTENTS_MAX is the place. */
	uint32_t index;
	uint32_t access; /* exposure class */
	void *base;
	uint64_t bytes;
	int fd; /* memfd, sealed SHRINK|GROW|SEAL; offset 0 is base. A region: -1, or a dma-buf of GPU memory */
	tn_page_kind pages;
	bool gpu;           /* a region of GPU memory: no CPU may touch it */
	uint64_t fd_offset; /* of its base in the dma-buf */
	/* per device slot, filled by the registrar */
	void *reg[TN_MEM_DEVICES_MAX];
	uint32_t lkey[TN_MEM_DEVICES_MAX];
	uint32_t rkey[TN_MEM_DEVICES_MAX];
} tn_extent;

/* Filled by a transport, so that mem needs not know it. Called with the growth lock held, off the data
   path. */
typedef struct tn_registrar {
	/* Register one whole extent; fills *reg, *lkey, *rkey. May block. On error nothing was registered. */
	tern_status (*reg)(void *dev, const tn_extent *ext, void **reg, uint32_t *lkey, uint32_t *rkey);
	void (*dereg)(void *dev, const tn_extent *ext, void *reg);
} tn_registrar;

typedef struct tn_mem_params {
	uint64_t limit_bytes;      /* 0 = none */
	uint64_t reserve_bytes;    /* address space; 0 = default (option mem.reserve) */
	bool huge_pages;           /* try explicit huge pages first */
	uint64_t extent_bytes_min; /* smallest extent; 0 = 2 MiB */
	uint64_t cache_bytes;      /* per thread and arena; 0 = no caches */
	bool grow_ahead;           /* a helper thread makes extents before they are needed */
	uint64_t shrink_ns; /* an extent that was empty for so long goes back; 0 = only under pressure */
	int numa;           /* TN_NUMA_OFF, TN_NUMA_AUTO, or a node + 1 */
	unsigned debug;     /* tn_mem_debug (pool.h); not 0: slow, finds misuse */
} tn_mem_params;
#define TN_NUMA_OFF  0    /* wherever the kernel puts it */
#define TN_NUMA_AUTO (-1) /* the node of the thread that needs the memory */

struct tn_options;
/* Fill params from the options mem.*; options NULL = defaults. */
void tn_mem_params_load(tn_mem_params *params, const struct tn_options *options);

/* params NULL = defaults. TERN_E_NOMEM, TERN_E_OS, TERN_E_INVALID. May block for milliseconds. */
tern_status tn_mem_create(const tn_mem_params *params, tern_mem **mem);
/* All blocks become invalid. Devices must have been detached. */
void tn_mem_destroy(tern_mem *mem);

/*
 * Attach a device: registers all present extents and from then on each new one. All or nothing: on
 * error the device is not attached. *slot (0..TN_MEM_DEVICES_MAX-1) indexes lkey[] and rkey[].
 */
tern_status tn_mem_attach(tern_mem *mem, const tn_registrar *ops, void *dev, uint32_t *slot);
void tn_mem_detach(tern_mem *mem, uint32_t slot);

/* The extent that holds ptr, or NULL for foreign memory. O(1): address arithmetic, no lock. */
const tn_extent *tn_mem_extent_of(const tern_mem *mem, const void *ptr);

/*
 * ---- regions: foreign memory that was registered (tern_mem_register) ----
 * A region looks like an extent to devices; its index has TN_MEM_REGION and nobody on this host can map it.
 */
#define TN_MEM_REGION 0x80000000u
/* The extent or region that all of [ptr, ptr + bytes) lies in, NULL if none. No lock; O(1) for extents, O(log n)
   for regions. A region is good while it is in use (tn_region_use). */
const tn_extent *tn_mem_local_of(const tern_mem *mem, const void *ptr, uint64_t bytes);
/* Count a use of the region that all of the range lies in: it is not unregistered before the use ends. NULL if
   there is none. Any thread, no lock. */
tern_region *tn_region_use(const tern_mem *mem, const void *ptr, uint64_t bytes);
void tn_region_unuse(tern_region *region);
const tn_extent *tn_region_extent(const tern_region *region);
/* What peers wrote through NICs to GPU memory is seen by kernels that start later. One load if none can. */
void tn_mem_flush_gpus(const tern_mem *mem);
/* Do all attached devices reach the extent or region? (Some may not reach GPU memory.) */
bool tn_mem_known_to_all(const tern_mem *mem, const tn_extent *ext);

/* The link staged a transfer because its memory is foreign: counted in tern_mem_stats.staging_copies. */
void tn_mem_count_staged(tern_mem *mem, uint64_t copies);
/* Calls fn("mem.extents", value, arg) and so on for each statistic. */
void tn_mem_counters(tern_mem *mem, void (*fn)(const char *name, uint64_t value, void *arg), void *arg);

/* Extent or region by index, NULL if there is none. O(1), no lock. */
const tn_extent *tn_mem_extent(const tern_mem *mem, uint32_t index);

/*
 * A guard stands for accesses that no key check stops any more: where a peer of this host copies by itself
 * (shm), it may have passed the check just before the key was revoked. What the key reached is given to
 * nobody else until the guard says that all such accesses have ended.
 */
#define TN_MEM_GUARDS_MAX 8
typedef struct tn_guard {
	/* Are accesses under way that passed their check before now? 0: none; else a ticket for this moment.
	   Any thread; some microseconds. */
	uint64_t (*mark)(void *dev);
	/* Have all accesses of the ticket's moment ended, or their processes? Never blocks. */
	bool (*passed)(void *dev, uint64_t ticket);
} tn_guard;
/* TERN_E_LIMIT past TN_MEM_GUARDS_MAX. */
tern_status tn_mem_guard_add(tern_mem *mem, const tn_guard *ops, void *dev);
/* The device goes. Blocks that wait for accesses which have not ended by now stay allocated for good. */
void tn_mem_guard_remove(tern_mem *mem, void *dev);

/*
 * ---- keys ----
 * Wire form of tern_key (little endian, 64 bytes):
 *   u32 index | u32 generation | u32 access | u32 extent | u64 extent offset | u64 length |
 *   u64 virtual address at the owner | u32 rkey[4] (per device slot) | u32 node tag | u32 zero
 */
typedef struct tn_key {
	uint32_t index;
	uint32_t generation; /* odd while live */
	uint32_t access;
	uint32_t extent;
	uint64_t extent_offset;
	uint64_t length;
	uint64_t address;
	uint32_t rkey[TN_MEM_DEVICES_MAX];
	uint32_t node_tag; /* which pool made it: random per pool, catches keys sent to the wrong peer */
} tn_key;

/* Parse the wire form; false if it is malformed (zero generation, length overflow, junk in zero). */
bool tn_key_decode(const tern_key *wire, tn_key *key);
/* What tells a key from all others, read from the wire form alone: to find one that was decoded and checked before. */
#define TN_KEY_INDEX_AT      0u
#define TN_KEY_GENERATION_AT 4u
#define TN_KEY_NODE_TAG_AT   56u
static inline uint32_t tn_key_word(const tern_key *wire, unsigned at)
{
	uint32_t word;

	memcpy(&word, wire->bytes + at, sizeof(word));
	return le32toh(word);
}
void tn_key_encode(const tn_key *key, tern_key *wire);

/*
 * A row of the key table: lies in a memfd that peers on this host map read-only, so that an initiator
 * can check a key exactly as a NIC checks an rkey. generation is odd while the row is live; readers read
 * generation (acquire), fields, generation again.
 */
typedef struct tn_key_row {
	_Atomic uint32_t generation;
	_Atomic uint32_t access;
	_Atomic uint32_t extent;
	uint32_t pad;
	_Atomic uint64_t extent_offset;
	_Atomic uint64_t length;
} tn_key_row;
_Static_assert(sizeof(tn_key_row) == 32, "key rows are read by peers");

typedef struct tn_key_table {
	const tn_key_row *rows;
	uint32_t count;
	uint32_t node_tag;
	int fd; /* memfd of the rows; peers map it read-only */
} tn_key_table;
/* The table of this pool: valid as long as the pool. */
const tn_key_table *tn_mem_keys(const tern_mem *mem);

/*
 * Check one access against a table: node tag, generation, bounds [offset, offset + bytes), access.
 * Sets *extent and *extent_offset of the first byte. TERN_E_STALE_KEY, _BOUNDS, _ACCESS. No lock, no
 * detail text (the caller knows more). Used by tcp at the target and by shm at the initiator.
 */
tern_status tn_key_check(const tn_key_table *table, const tn_key *key, uint64_t offset, uint64_t bytes,
			 uint32_t access, uint32_t *extent, uint64_t *extent_offset);

#endif

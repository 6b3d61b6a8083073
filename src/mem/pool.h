/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of mem share. Nouns, lowest first:
 *
 *   granule   2 MiB of the pool's address space; granules[i] says which extent slot lies there (O(1) look-up)
 *   extent    granules of one memfd, of one arena, cut into 4 KiB pages; metadata is out of band (ext->runs)
 *   run       consecutive pages of one extent: FREE, LARGE (one block) or SLAB (up to 64 equal objects)
 *   mark      a byte for each 64 B of an extent: what small block begins there; with the metadata, out of band
 *   arena     all extents of one (exposure class, page demand), with its lock, free bins and banks
 *   bank      slabs of one size class of an arena
 *   cache     what one thread keeps of a pool: a magazine of free objects for each (arena, class) (cache.h)
 *   key       a row of the table; while live it hangs in the chain of its block
 *
 *   sum of run->pages over an extent  == ext->page_count; two free runs are never neighbours
 *   heads bit set at page p           == a run starts at p
 *   runs[first].head == runs[last].head == first, for each run
 *   a free run lies in exactly one bin; a slab with a free object in exactly one list of its bank
 *   an object is in its slab (bit in free_mask), in one magazine, or live; live == its mark is not NONE
 *   sum over slabs of objects not in them == bank->out == live + in magazines
 *   sum over extents of (page_count - pages_used) == arena->pages_free
 *   committed == sum of ext->pub.bytes (+ the extent in the making) <= limit (if there is one)
 *
 * Locks, in this order: pools (fork.c) -> caches (threads come and go) -> grow (extents come and go, devices
 * attach) -> arena -> keys, ahead; guards beside them, with none of the others. None is held over a callback except grow over a registrar and guards over a guard. Look-ups by address or index take none.
 * Tests: tests/unit/mem.
 */
#ifndef TN_MEM_POOL_H
#define TN_MEM_POOL_H

#include <pthread.h>

#include "base/check.h"
#include "base/counters.h"
#include "base/list.h"
#include "base/map.h"
#include "base/os.h"
#include "mem/mem.h"

#define TN_GRANULE_SHIFT 21
#define TN_PAGE_SHIFT    12
#define TN_PAGE_BYTES    (1ull << TN_PAGE_SHIFT)
#define TN_ALIGN_MAX     (2ull << 20) /* the alignment of an extent's base */
#define TN_ALIGN_MIN     64ull

/* Free runs by size: 8 bins per power of two, exact below 8 pages. 2^32 pages are 16 TiB. */
#define TN_BIN_SUB_SHIFT 3
#define TN_BIN_SUBS      (1u << TN_BIN_SUB_SHIFT)
#define TN_BIN_LEVELS    30u

/* Blocks up to this come from slabs. 4 classes per doubling: at most 25 % (of what was asked) is lost. */
#define TN_SMALL_MAX   (32ull << 10)
#define TN_CLASSES_MAX 40u

#define TN_ARENAS 8 /* exposure class (4) x any pages / huge pages only */

/* Far more than tensors of a job; 2 MiB of rows. Revoked rows wait in a queue before reuse. */
#define TN_KEYS_MAX (1u << 16)

typedef enum tn_run_state { TN_RUN_NONE, TN_RUN_FREE, TN_RUN_LARGE, TN_RUN_SLAB } tn_run_state;

/* Descriptor of one page; valid at the first page of a run, and `head` at the last one. Arena's lock. */
typedef struct tn_run {
	tn_list link;       /* FREE: in a bin; SLAB with room: in its bank */
	uint64_t free_mask; /* SLAB: bit i set = object i is in the slab */
	uint32_t pages;
	uint32_t head;
	uint16_t slot;  /* of the extent */
	uint16_t cache; /* SLAB: id of the cache that took from it last, 0 = none did */
	uint8_t state;  /* tn_run_state */
	uint8_t class;  /* SLAB */
	bool keyed;     /* LARGE: keys were made */
} tn_run;

/*
 * Marks. A block whose mark says CACHED is freed without a lock: the mark is the number of a magazine, so nothing
 * else is looked up. Who may write it: whoever owns the block, or has it in a magazine.
 */
typedef _Atomic uint8_t tn_mark;
#define TN_MARK_NONE    0u /* no live block begins here */
#define TN_MARK_LOCKED  1u /* one does; its free takes the lock */
#define TN_MARK_KEYED   2u /* as LOCKED; keys of it were made */
#define TN_MARK_CACHED  4u /* + (class << 2 | arena), from here on */
#define TN_LINE_SHIFT   6
#define TN_GRANULE_LINE (TN_GRANULE_SHIFT - TN_LINE_SHIFT) /* log of lines per granule */

typedef struct tn_arena tn_arena;

typedef struct tn_ext {
	tn_extent pub;
	_Atomic bool live;
	tn_arena *arena;
	uint32_t arena_index;
	tn_run *runs;      /* [page_count] */
	uint8_t *slab_map; /* [page_count]: page of its slab, from 1 on; 0 = no slab's */
	tn_mark *marks;    /* [lines] */
	uint64_t *heads;   /* bitmap of page_count bits */
	uint32_t page_count;
	uint32_t pages_used;  /* in LARGE and SLAB runs; guarded by the arena's lock */
	uint32_t uses;        /* of this slot so far: index = uses * TN_MEM_EXTENTS_MAX + slot */
	uint64_t empty_since; /* 0: in use, or nobody has looked yet; arena's lock */
	int node;             /* where its first page lies, -1 unknown */
	bool exported;        /* a key was ever made: a peer may reach it late, it is not given back */
	uint64_t unused[7];
} tn_ext;
_Static_assert(sizeof(tn_ext) == 256, "a power of two: found by a shift");

typedef struct tn_class {
	uint32_t bytes;
	uint32_t objects; /* per slab, at most 64 */
	uint32_t pages;   /* per slab, which the objects fill */
	uint64_t
		inverse; /* ceil(2^40 / bytes): offset * inverse >> 40 is the object, for offsets in a slab */
	uint64_t full;   /* free_mask of a slab with all its objects */
} tn_class;

/* Slabs of one class; arena's lock. */
typedef struct tn_bank {
	tn_list partial; /* some objects are in them */
	tn_list empty;   /* all: kept for a while, at most TN_BANK_EMPTY_BYTES or one */
	uint32_t empties;
	uint32_t sampled;
	uint64_t asked_bytes; /* of a sample of allocations */
	uint64_t out;         /* objects: live or in magazines */
} tn_bank;
#define TN_BANK_EMPTY_BYTES (64ull << 10)

struct tn_arena {
	pthread_mutex_t lock;
	tern_mem *mem;
	uint32_t access;
	bool huge_only;
	uint32_t index;
	uint64_t committed; /* guarded by grow */
	/* guarded by lock */
	uint32_t bin_levels;             /* bit l set: some bin of level l has runs */
	uint8_t bin_subs[TN_BIN_LEVELS]; /* bit s set: bins[l][s] has runs */
	tn_list bins[TN_BIN_LEVELS][TN_BIN_SUBS];
	tn_bank banks[TN_CLASSES_MAX];
	uint64_t blocks, used_bytes;       /* LARGE */
	uint64_t asked_bytes, given_bytes; /* of all LARGE blocks so far */
	uint64_t remote_frees;
	uint64_t pages_free, pages_used;
};

/* An extent that the helper is making: nobody's yet, but its slot, address space and budget are taken. */
typedef struct tn_making {
	tn_arena *arena; /* NULL = none */
	uint32_t slot;
	uint64_t bytes, granule, granules;
} tn_making;

/* The thread that grows ahead and shrinks (ahead.c). */
typedef struct tn_ahead {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	tn_thread thread;
	uint32_t wanted; /* bit a: arena a wants an extent, on nodes[a] */
	int nodes[TN_ARENAS];
	bool started, stop, failed, decay;
	_Atomic uint32_t asked; /* as wanted, to be read without the lock */
} tn_ahead;

#define TN_CACHES_MAX 1024 /* threads with a cache, per pool; more go without */

typedef enum tn_mem_debug { TN_DEBUG_OFF, TN_DEBUG_CANARY, TN_DEBUG_FULL } tn_mem_debug;

/* Owner-side data of a key row. */
typedef struct tn_key_meta {
	uint64_t block;      /* address of the block while live */
	uint32_t next, prev; /* live: chain of the block; free: queue. TN_KEY_NONE ends */
} tn_key_meta;
#define TN_KEY_NONE UINT32_MAX

typedef struct tn_keys {
	pthread_mutex_t lock;
	tn_key_row *rows;
	tn_key_meta *meta;
	tn_map chains; /* block address -> first key */
	uint32_t free_first, free_last;
	uint32_t live;
	tn_key_table table;
} tn_keys;

typedef struct tn_device_slot {
	tn_registrar ops;
	void *dev;
	bool used;
} tn_device_slot;

typedef struct tn_guard_slot {
	tn_guard ops;
	void *dev;   /* NULL = free */
	bool spoilt; /* parked blocks refer to a device that is gone: never used again */
} tn_guard_slot;

typedef struct tn_guards {
	pthread_mutex_t lock;
	tn_guard_slot slots[TN_MEM_GUARDS_MAX];
	tn_list parked; /* blocks that were freed and can't be reused yet */
	_Atomic uint32_t count, parked_count;
} tn_guards;

struct tern_mem {
	uint8_t *base;
	uint64_t reserved;
	_Atomic uint16_t *granules; /* slot + 1; 0 = none */
	/* Where the mark of the pool's first line would be, if those of this granule went on so far; 0 = no extent */
	_Atomic(uintptr_t) *marks;
	uint64_t granule_count;
	uint32_t fork_generation;
	uint64_t id; /* never used again in this process */
	tn_mem_debug debug;
	struct tn_debug *debugger; /* debug.c */
	uint64_t cache_bytes;      /* cap of what a cache keeps of an arena; 0 = no caches */
	int numa;                  /* as in tn_mem_params */
	bool grow_ahead;
	uint64_t shrink_ns; /* 0 = never */
	/* guarded by caches_lock */
	pthread_mutex_t caches_lock;
	struct tn_cache *caches[TN_CACHES_MAX]; /* [id - 1]; they stay until the pool goes */
	_Atomic uint32_t cache_count;
	tn_ahead ahead;
	/* guarded by grow */
	pthread_mutex_t grow;
	uint64_t limit;
	uint64_t extent_min;
	bool huge_pages;
	bool huge_short; /* said that they ran out */
	_Atomic uint64_t committed;
	tn_making making;
	pthread_cond_t made;
	uint64_t granule_next; /* where the search for address space starts */
	uint32_t extents;
	uint64_t registrations;
	uint64_t grows_ahead, grows_waited, shrinks;
	tn_device_slot devices[TN_MEM_DEVICES_MAX];
	tn_arena arenas[TN_ARENAS];
	tn_ext ext[TN_MEM_EXTENTS_MAX];
	tn_keys keys;
	tn_guards guards;
	struct tn_regions *regions; /* foreign.h */
	tn_counter refused_frees, staging_copies, cache_misses, damage;
	tn_list all; /* pools of the process, for fork */
};

/* ---- pool.c ---- */
/* TERN_OK, or TERN_E_FORKED with its text in a child of the process that made the pool. */
tern_status tn_mem_here(const tern_mem *mem);
/* As tn_mem_extent_of, with the metadata. */
static inline tn_ext *tn_mem_ext_of(const tern_mem *mem, const void *ptr)
{
	uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)mem->base);
	uint16_t slot;

	if (TN_UNLIKELY(offset >= mem->reserved))
		return NULL;
	slot = atomic_load_explicit(&mem->granules[offset >> TN_GRANULE_SHIFT], memory_order_acquire);
	return TN_LIKELY(slot != 0) ? (tn_ext *)&mem->ext[(size_t)slot - 1] : NULL;
}

/* The mark of the line that ptr lies in. */
static inline tn_mark *tn_ext_mark(const tn_ext *ext, const void *ptr)
{
	return &ext->marks[(uint64_t)((const uint8_t *)ptr - (const uint8_t *)ext->pub.base) >>
			   TN_LINE_SHIFT];
}

static inline bool tn_mem_inherited(const tern_mem *mem)
{
	return TN_UNLIKELY(mem->fork_generation != tn_os_fork_generation());
}

/* ---- fork.c: the pools of the process ---- */
void tn_mem_fork_add(tern_mem *mem);
void tn_mem_fork_remove(tern_mem *mem);
/* Keep pools from going (fork() waits too). */
void tn_pools_lock(void);
void tn_pools_unlock(void);
/* NULL: it is gone. The pools' lock is held. */
tern_mem *tn_pools_find(uint64_t id);
/* The pool whose address space holds ptr, an inherited one in a child too; NULL if none. No lock. */
tern_mem *tn_pools_of(const void *ptr);

/* ---- arena.c ---- */
void tn_arena_before_fork(void);
void tn_arena_after_fork(void);

/* ---- extent.c: takes grow, then the arena's lock ---- */
/*
 * Make room for a run of `pages` in the arena. Returns with the arena's lock held when TERN_OK, so that
 * nobody else takes the room; another thread may have made it meanwhile.
 */
tern_status tn_extent_grow(tn_arena *arena, uint64_t pages, uint32_t align_pages);
void tn_extents_destroy(tern_mem *mem);
/* For the helper: make an extent ahead of need; not under the arena's lock. */
void tn_extent_grow_ahead(tn_arena *arena, int node);
/* The node to prefer for memory that the calling thread needs, -1 = none. */
int tn_mem_node(const tern_mem *mem);
/* Give back what has been empty for long. True: there is more to look at later. */
bool tn_extents_decay(tern_mem *mem, uint64_t now);
/* Free bytes below which an arena asks for an extent ahead; it keeps at least twice as much when it shrinks. */
uint64_t tn_arena_watermark(const tn_arena *arena);

/* ---- ahead.c ---- */
void tn_ahead_init(tn_ahead *ahead);
void tn_ahead_fini(tn_ahead *ahead);
/* Ask for an extent; starts the helper if there is none. Arena's lock may be held. */
void tn_ahead_grow(tn_arena *arena);
/* An extent became empty. Arena's lock may be held. */
void tn_ahead_emptied(tern_mem *mem);

/* ---- runs.c: arena's lock held ---- */
void tn_runs_init(tn_arena *arena);
/* One free run over the whole new extent. */
void tn_runs_add(tn_arena *arena, tn_ext *ext);
/* The extent is empty: take its one run out of the bin. */
void tn_runs_drop(tn_arena *arena, tn_ext *ext);
bool tn_runs_room(tn_arena *arena, uint32_t pages, uint32_t align_pages);
/* A run of `pages` whose first page is a multiple of align_pages (power of two), NULL if there is none. */
tn_run *tn_runs_alloc(tn_arena *arena, uint32_t pages, uint32_t align_pages, tn_run_state state);
void tn_runs_free(tn_arena *arena, tn_run *run);
/* The run that page p of the extent lies in. */
tn_run *tn_runs_find(tn_ext *ext, uint32_t page);
/* The pages of a slab of the class begin, or (map false) end, to say so. */
void tn_runs_map_slab(tn_ext *ext, const tn_run *slab, bool map);
/* Pages of the largest free run. */
uint64_t tn_runs_largest(tn_arena *arena);
void tn_runs_check(tn_arena *arena, tn_ext *ext);

static inline uint8_t *tn_run_base(const tn_ext *ext, const tn_run *run)
{
	return (uint8_t *)ext->pub.base + ((uint64_t)run->head << TN_PAGE_SHIFT);
}

/* ---- slab.c: arena's lock held ---- */
extern const tn_class tn_classes[];
#define TN_CLASSES 32u
_Static_assert(TN_CLASSES <= TN_CLASSES_MAX, "banks of the arena");
/* The object that an offset of a slab lies in. */
static inline uint32_t tn_class_object(const tn_class *class, uint64_t offset)
{
	return (uint32_t)(offset * class->inverse >> 40);
}
/* The smallest class that holds `bytes` (1 .. TN_SMALL_MAX): 64 B steps, then four classes per doubling. */
static inline uint32_t tn_class_of_bytes(uint64_t bytes)
{
	uint32_t log;

	if (bytes <= 512)
		return (uint32_t)((bytes - 1) / 64);
	/* bytes in (2^log, 2^(log + 1)]; log 9 starts at index 8. */
	log = 31u - (uint32_t)__builtin_clz((uint32_t)(bytes - 1));
	return 8 + (log - 9) * 4 + (uint32_t)((bytes - 1 - (1u << log)) >> (log - 2));
}
/* TN_MARK_CACHED + class * 4, by (bytes - 1) / 64: the common path has no branch that depends on sizes. */
extern const uint8_t tn_mark_by_line[TN_SMALL_MAX / 64];
/* Class for a block, or NULL if it is not small. */
const tn_class *tn_class_for(uint64_t bytes, uint64_t align);
uint32_t tn_class_index(const tn_class *class);
const tn_class *tn_class_at(uint32_t index);
/* A free object in the hands of a thread. Its mark is NONE. */
typedef struct tn_spare {
	void *ptr; /* NULL: there is none */
	tn_mark *mark;
} tn_spare;
/*
 * Take up to n objects for a cache (0 = none) out of slabs, new ones too. Returns how many; 0: grow first.
 * Those of one page go to one cache where it can be, so that two threads don't write marks in one line.
 */
uint32_t tn_slab_take(tn_arena *arena, uint32_t class, uint16_t cache, tn_spare *out, uint32_t n);
/* Objects come back; from which cache. Returns those that were not out. */
uint64_t tn_slab_put(tn_arena *arena, tn_run *slab, uint64_t mask, uint16_t cache);
/* Give back the empty slabs that are kept. */
void tn_slab_trim(tn_arena *arena);
/* One more allocation of `asked` bytes, for the estimate of waste. */
void tn_bank_sample(tn_bank *bank, uint64_t asked);
/* The slab of a page, NULL if it is none's. */
static inline tn_run *tn_slab_of(const tn_ext *ext, uint64_t page)
{
	uint32_t distance = ext->slab_map[page];

	return distance ? &ext->runs[page + 1 - distance] : NULL;
}

/* ---- alloc.c: arena's lock held ---- */
typedef struct tn_block {
	tn_ext *ext;
	tn_run *run;
	uint32_t object; /* 0 for LARGE */
	tn_mark *mark;   /* NULL for LARGE */
	uint8_t *base;
	uint64_t bytes; /* usable */
} tn_block;
/* Bytes of the live block that starts at ptr, 0 if none does; without locks: for a forked child. */
uint64_t tn_block_bytes(const tern_mem *mem, const void *ptr);
void tn_free_refused(tern_mem *mem, const void *ptr, const char *why);
/* The live block that ptr lies in; false if there is none. */
bool tn_block_find(tn_ext *ext, const void *ptr, tn_block *block);

/* ---- debug.c: only with mem->debug ---- */
#define TN_SITE_DEPTH 6 /* return addresses that are kept */
tern_status tn_debug_create(tern_mem *mem);
/* Reports what was never freed. */
void tn_debug_destroy(tern_mem *mem);
/* Bytes to allocate so that a canary fits behind `bytes`. */
uint64_t tn_debug_padded(uint64_t bytes);
void tn_debug_born(tern_mem *mem, void *ptr, uint64_t bytes, uint64_t usable);
/* Before the block can be given to anybody. */
void tn_debug_died(tern_mem *mem, void *ptr);
/* A free that was refused: who, and who freed it first if that is known. */
void tn_debug_refused(tern_mem *mem, const void *ptr);
/* What was asked for the block; false: it is not watched. */
bool tn_debug_bytes(tern_mem *mem, const void *ptr, uint64_t *bytes);
/* The range is about to be unmapped. */
void tn_debug_forget(tern_mem *mem, const void *from, uint64_t bytes);
/* Look at all canaries. The arenas' locks are not needed. */
void tn_debug_check(tern_mem *mem);

/* ---- keys.c: takes the keys' lock ---- */
tern_status tn_keys_init(tn_keys *keys);
void tn_keys_fini(tn_keys *keys);
/* A key for [ptr, ptr + bytes) of the block at base; its arena's lock is held, or its region in use. */
tern_status tn_keys_make(tn_keys *keys, const tn_extent *ext, const void *base, const void *ptr,
			 uint64_t bytes, uint32_t access, tern_key *key);
/* Has the block with that address live keys? */
bool tn_keys_any(tn_keys *keys, const void *base);
/* All keys of the block with that address become stale. */
void tn_keys_revoke_block(tn_keys *keys, const void *base);
uint32_t tn_keys_live(tn_keys *keys);

/* ---- guard.c: no lock held ---- */
void tn_guards_init(tn_guards *guards);
void tn_guards_fini(tn_guards *guards);
/* The block's keys were revoked. True: accesses are under way, the block was parked; it is not free. */
bool tn_guards_park(tern_mem *mem, void *ptr);
/* A block whose accesses have ended: the caller frees it. NULL: none. */
void *tn_guards_next(tern_mem *mem);
/* Wait for the accesses under way. TERN_E_INDETERMINATE after a second. */
tern_status tn_guards_wait(tern_mem *mem);

/* ---- check.c ---- */
/* Assert every invariant above. Takes the locks; O(all runs). */
void tn_mem_check(tern_mem *mem);

#endif

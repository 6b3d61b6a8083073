/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. Tensors are allocated here so that devices can move them without a copy. Memory
 * comes in extents of 2 MiB to 1 GiB, each registered once per device; allocations are carved from
 * extents and cost no registration of their own.
 *
 * Exposure is a class of the extent (never, remote read, remote write): a peer can reach only memory
 * that was allocated for it, and only through a key that was handed out and not revoked.
 */
#ifndef TERN_MEM_H
#define TERN_MEM_H

#include <stddef.h>

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a peer may do with the memory. Combine READ and WRITE. */
#define TERN_ACCESS_NONE  0u
#define TERN_ACCESS_READ  1u
#define TERN_ACCESS_WRITE 2u

typedef enum tern_mem_kind {
	TERN_MEM_HOST,   /* huge pages if there are, else THP, else 4 KiB */
	TERN_MEM_HUGE,   /* huge pages or TERN_E_NOMEM */
	TERN_MEM_DEVICE, /* memory of GPU 0 (CUDA); TERN_E_UNSUPPORTED without one */
} tern_mem_kind;

/*
 * A remote key: 64 bytes that name a range of one node's memory, to be sent to peers by any means. It
 * carries no secret; the owner (or its NIC, or its key table in shared memory) checks generation, bounds
 * and access of each use. Opaque; compare and copy bytewise.
 */
typedef struct tern_key {
	uint8_t bytes[64];
} tern_key;

/*
 * Allocate. align is 0 (64 bytes) or a power of two up to 2 MiB. access: TERN_ACCESS_*. bytes 0 gives a
 * unique pointer. Any thread; may block for growth. TERN_E_BUDGET, TERN_E_NOMEM, TERN_E_INVALID.
 */
tern_status tern_mem_alloc(tern_mem *mem, uint64_t bytes, uint64_t align, uint32_t access, tern_mem_kind kind,
			   void **ptr);
/* Free; NULL is allowed. Any thread. Keys of the block are revoked. No operation may use it any more. */
void tern_mem_free(tern_mem *mem, void *ptr);
/* Usable bytes of a block at its start, at least what was asked; 0 if ptr is not a block of mem. */
uint64_t tern_mem_usable(tern_mem *mem, const void *ptr);

/*
 * Memory that the caller owns and wants to move without a copy: registered with every device of the context, or
 * with none, also with devices that come later. It stays the caller's: it must not be unmapped before
 * tern_mem_unregister returns TERN_OK. Nothing is cached or registered unasked; what is not registered is staged
 * where a device needs registration (counter mem.staging_copies).
 *
 * access 0: local use alone, any range; devices pin the whole pages that it touches. Else start and length must
 * be whole pages of 4 KiB, since devices expose whole pages; keys are made with tern_mem_export and reach their
 * exact range. Peers on this host can't map such memory: a put or get of theirs over shm ends in
 * TERN_E_UNSUPPORTED; over tcp and verbs it works.
 *
 * May block for a second per GiB. TERN_E_INVALID (not whole pages, or memory of this context), TERN_E_EXISTS
 * (overlaps a region), TERN_E_LIMIT (RLIMIT_MEMLOCK, or 4096 regions), what a device refused it with
 * (TERN_E_NOMEM, TERN_E_DEVICE). Regions end with the context. Any thread.
 */
typedef struct tern_region tern_region;
tern_status tern_mem_register(tern_mem *mem, void *ptr, uint64_t bytes, uint32_t access,
			      tern_region **region);
/*
 * End it: when it returns TERN_OK no device and no peer reaches the memory any more. TERN_E_IN_USE, and it stays
 * registered: a device works on an operation with it, or keys to it are live. Operations that still wait in a link
 * go on staged. NULL is allowed. Any thread.
 */
tern_status tern_mem_unregister(tern_region *region);

/*
 * Make a key for [ptr, ptr + bytes), which must lie in one allocation or region whose class allows the access.
 * TERN_E_INVALID, TERN_E_ACCESS, TERN_E_LIMIT (key table full).
 */
tern_status tern_mem_export(tern_mem *mem, const void *ptr, uint64_t bytes, uint32_t access, tern_key *key);
/*
 * Revoke a key: later uses fail with TERN_E_STALE_KEY. Returns when accesses that were under way have ended;
 * TERN_E_INDETERMINATE if one does not end within a second (a process on this host that was stopped in the
 * middle of it): the key is revoked all the same, but the memory must not be reused, only freed.
 * TERN_E_STALE_KEY if it was not live.
 */
tern_status tern_mem_revoke(tern_mem *mem, const tern_key *key);
/* Length in bytes that a key covers; 0 if it is malformed. Works for keys of other nodes. */
uint64_t tern_key_length(const tern_key *key);

/*
 * GPUs. Their memory (TERN_MEM_DEVICE, or foreign and registered or not) is a source and destination like any
 * other: NICs reach it where driver and NIC can (dma-buf), else it is staged through host memory and counted. A
 * peer's one-sided access to it needs such a NIC (TERN_E_UNSUPPORTED over shm and tcp); messages can be sent
 * from it, not received into it. Foreign GPU pointers are known as such if the process used CUDA before the
 * context was made, or after tern_gpu_probe.
 *
 * Operations take the stream, or with TERN_OP_EVENT the event, that makes their memory ready in op->stream: they
 * start when it has come so far, so operations submitted later may be ahead of them. At the completion of a
 * get its bytes are seen by kernels that start later; for what peers put into GPU memory through a NIC say
 * tern_gpu_flush first, unless it came with a notification.
 */
typedef struct tern_gpu_info {
	char name[64];
	int usable;
	int dma_buf; /* NICs can be given its memory */
	uint64_t bytes;
	char reason[240];
} tern_gpu_info;
/*
 * The i-th GPU; TERN_E_NOT_FOUND past the last one. Without GPU or driver there is one row, not usable, with the
 * reason. Loads the CUDA driver, if there is one: a child forked later can't use it. Milliseconds to seconds.
 */
tern_status tern_gpu_probe(unsigned i, tern_gpu_info *info);
/* What NICs wrote so far to the GPU memory at ptr is seen by kernels that start later. TERN_E_UNSUPPORTED. */
tern_status tern_gpu_flush(const void *ptr);

/*
 * ---- in place of malloc ----
 * For frameworks with a hook for their allocator: the semantics of malloc(3), over the memory of a context and an
 * exposure class. NULL and errno ENOMEM when there is none (tern_detail says why), EINVAL for bad arguments.
 * Blocks are aligned to 64 bytes. They are ordinary blocks: tern_mem_export, tern_mem_usable and tern_mem_free
 * take them as well.
 *
 * Threads: any; a block may be freed by another thread than the one that allocated it. May block for growth.
 * Fork: in a child the parent's blocks can be read and written (a private copy) and freeing them does nothing;
 * new blocks come from libc's malloc, are not registered, and are freed by the same functions. Not for signal
 * handlers. The context must outlive the blocks.
 */
void *tern_arena_malloc(tern_mem *mem, uint32_t access, size_t bytes);
/* Zeroed. */
void *tern_arena_calloc(tern_mem *mem, uint32_t access, size_t count, size_t bytes);
/* align: 0 or a power of two up to 2 MiB. */
void *tern_arena_aligned(tern_mem *mem, uint32_t access, size_t align, size_t bytes);
/*
 * ptr NULL allocates; 0 bytes keeps a block of the least size. Keys of a block that moves are revoked. On failure
 * the old block stays.
 */
void *tern_arena_realloc(tern_mem *mem, uint32_t access, void *ptr, size_t bytes);
/* NULL is allowed; errno is kept. A pointer that is no such block is refused and logged. */
void tern_arena_free(void *ptr);
/* Bytes that may be used, at least what was asked; 0 if ptr is no such block. */
size_t tern_arena_usable(const void *ptr);

typedef struct tern_mem_stats {
	uint64_t limit_bytes;     /* budget; 0 = none */
	uint64_t committed_bytes; /* in extents */
	uint64_t used_bytes;      /* in live blocks, class rounding included */
	uint64_t blocks;
	uint64_t extents;
	uint64_t extents_huge; /* backed by huge pages */
	uint64_t extents_thp;  /* transparent huge pages advised and allowed */
	uint64_t extents_4k;
	uint64_t registrations; /* (extents + regions) x devices */
	uint64_t keys;          /* live */
	uint64_t cache_hits;    /* blocks that a thread took from its own cache, without a lock */
	uint64_t staging_copies;
	uint64_t cache_misses; /* small blocks that needed the lock */
	uint64_t cached_bytes; /* free, kept by threads for their next allocations */
	uint64_t
		remote_frees; /* blocks that came back by another thread than the one that took them from their slab */
	uint64_t free_bytes;         /* committed and in no live block, cached_bytes included */
	uint64_t free_run_bytes_max; /* the largest block that fits without growth */
	uint64_t waste_bytes;        /* of used_bytes: what nobody asked for (rounding), estimated */
	uint64_t grows_ahead;        /* extents made in the background */
	uint64_t grows_waited;       /* extents that an allocation had to wait for */
	uint64_t shrinks;            /* extents given back */
	uint64_t mappings;      /* of the process that this memory needs: grows with extents, not blocks */
	uint64_t refused_frees; /* freed twice, or not a block of this memory */
	uint64_t damage;        /* debug mode: blocks written past their end or after their free */
	uint64_t numa_nodes;    /* bit i: extents lie on node i */
	uint64_t regions;       /* of foreign and GPU memory, registered */
	uint64_t region_bytes;
} tern_mem_stats;
/* The numbers as they are now; each is right, their sum may be of no single moment. Any thread. */
void tern_mem_stats_get(tern_mem *mem, tern_mem_stats *stats);

#ifdef __cplusplus
}
#endif

#endif

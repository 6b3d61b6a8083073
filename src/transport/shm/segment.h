/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: sealed memfds, the ones of our own and those that a peer passed. The only file of the provider
 * that maps memory. And the layout of a lane's segment:
 *
 *     0     +----------------------------------------------+
 *           | head: magic, sizes, probe words              |  128
 *           | ctl[0]  active -> passive   (ring.h)         |  512
 *           | ctl[1]  passive -> active                    |  512
 *           +----------------------------------------------+  page
 *           | ret[0], ret[1]: returned buffer indices      |
 *           +----------------------------------------------+  page
 *           | cells[0]: cells of 256 bytes                 |
 *           | cells[1]                                     |
 *           +----------------------------------------------+  page
 *           | buffers[0]: one per slot, touched on demand  |
 *           | buffers[1]                                   |
 *           +----------------------------------------------+
 *
 * The sizes that both use were agreed in the handshake and are kept in private memory; the head repeats
 * them for people with a debugger. Sealed against shrinking, so that no access can fault.
 *
 * Must not: map a descriptor that is not a memfd sealed against shrinking.
 * Threads: any. Tests: tests/unit/transport/test_shm_segment.c.
 */
#ifndef TN_TRANSPORT_SHM_SEGMENT_H
#define TN_TRANSPORT_SHM_SEGMENT_H

#include "transport/shm/ring.h"

#define TN_SHM_SEG_MAGIC 0x6e72657473686d31ull

/* Written once by the active side; probe[i] by side i (0 active), read by the other. */
typedef struct tn_shm_head {
	_Alignas(TN_SHM_LINE) uint64_t magic;
	uint32_t slots;
	uint32_t buf_bytes;
	_Atomic uint64_t probe[2];
} tn_shm_head;
_Static_assert(sizeof(tn_shm_head) == TN_SHM_LINE, "both sides see the same head");

/*
 * Read-only for peers: the owner's sleep word. 0 = polling; else counts how often it went to sleep. keen: after a wake-up it
 * polls for a while, so that a wake-up may come a little before what it is for.
 */
typedef struct tn_shm_page {
	_Alignas(TN_SHM_LINE) _Atomic uint32_t sleep;
	_Atomic uint32_t keen;
} tn_shm_page;

#define TN_SHM_SLOTS_MIN 16u
#define TN_SHM_SLOTS_MAX 4096u
#define TN_SHM_BUF_MIN   1024u
#define TN_SHM_BUF_MAX   (1u << 20)

/* May the two numbers be used? They come from the peer. Powers of two, within the limits. */
bool tn_shm_sizes_valid(uint32_t slots, uint32_t buf_bytes);
/* Bytes of a lane's segment. */
uint64_t tn_shm_lane_bytes(uint32_t slots, uint32_t buf_bytes);
/* Ring number `direction` (0: active -> passive) of the segment at base. */
void tn_shm_lane_ring(void *base, uint32_t slots, uint32_t buf_bytes, int direction, tn_shm_ring *ring);

typedef enum tn_shm_prot { TN_SHM_RO, TN_SHM_RW } tn_shm_prot;

/*
 * A new memfd of whole pages, mapped for writing, then sealed: SHRINK, GROW, SEAL, and with peers_read_only
 * also FUTURE_WRITE where the kernel has it. On error nothing is left.
 */
tern_status tn_shm_seg_create(const char *name, uint64_t bytes, bool peers_read_only, int *fd, void **base);
/*
 * Is this foreign descriptor a memfd that can't shrink, of at least min_bytes? *bytes = its size, *id = its
 * identity (device and inode). TERN_E_PROTOCOL if not.
 */
typedef struct tn_shm_seg_id {
	uint64_t dev, ino;
} tn_shm_seg_id;
tern_status tn_shm_seg_check(int fd, uint64_t min_bytes, uint64_t *bytes, tn_shm_seg_id *id);
/* Map the first `bytes` of a checked descriptor. TERN_E_LIMIT or TERN_E_NOMEM with the remedy. */
tern_status tn_shm_seg_map(int fd, uint64_t bytes, tn_shm_prot prot, void **base);
void tn_shm_seg_unmap(void *base, uint64_t bytes);
/*
 * Have the pages of [base, base + bytes) mapped before they are used; a hint, and a quarter of the price of
 * the faults. `fresh`: the pages don't exist yet. Pages of a peer's extent do.
 */
void tn_shm_seg_populate(void *base, uint64_t bytes, bool fresh);
/*
 * A descriptor for a peer that may only read: fd itself if it is sealed against writable mappings, else
 * opened anew read-only. The caller closes it. TERN_E_OS.
 */
tern_status tn_shm_seg_read_only(int fd, int *ro_fd);

#endif

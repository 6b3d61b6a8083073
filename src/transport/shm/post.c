/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the data path of the initiator: write, write with immediate, read, send.
 *
 * A one-sided access checks the key against the owner's table, as a NIC does, then is one memcpy. The last
 * keys of a lane are cached with their address here; what is left to check of a cached key is that its row
 * still has the generation (one load, in the cache until the owner touches the row), range and access.
 *
 *     access = odd                     tells the owner: do not reuse what this key reaches
 *     light fence                      (fence.h)
 *     stop? generation?                may I
 *     copy
 *     access = even                    release: the bytes are visible before
 *
 * Must not allocate, block, or call the kernel, but for the wake-up of a peer that sleeps and, once per
 * 2 MiB of a peer's memory, to have pages mapped in one go instead of by 512 faults. Never touches a
 * socket: an extent that is not mapped leaves a note for the poller and says TERN_AGAIN.
 * Threads: one post at a time per lane; beside poll. Tests: tests/unit/transport/test_shm_access.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/os.h"
#include "transport/shm/fence.h"
#include "transport/shm/shm.h"

#define PREFAULT_BYTES (64ull << 10)

/* ---- notes for the poller ---- */

static tern_status post_fault(tn_shm_lane *lane, tern_status status)
{
	atomic_store_explicit(&lane->fault, status, memory_order_release);
	tn_shm_attention(tn_shm_dev_of(lane));
	return tn_fail(TERN_E_LANE, "the peer wrote nonsense to its ring: the lane is given up");
}

static tern_status post_again(tn_shm_lane *lane)
{
	tn_count_own(&lane->post_counters.again, 1);
	return TERN_AGAIN;
}

static tern_status post_want(tn_shm_lane *lane, uint32_t extent)
{
	atomic_store_explicit(&lane->want, (uint64_t)extent + 1, memory_order_release);
	tn_shm_attention(tn_shm_dev_of(lane));
	return TERN_AGAIN;
}

__attribute__((cold, noinline)) static tern_status post_not_up(void)
{
	return tn_fail(TERN_E_LANE, "the lane is not up");
}

/* ---- keys and maps ---- */

/* Keep a key that was just checked, if its row is sane and still the same. */
static void cache_key(tn_shm_lane *lane, const tn_key *key, tn_shm_map *map, uint32_t extent)
{
	tn_shm_cached_key *slot = &lane->cache[key->index % TN_SHM_KEY_CACHE];
	const tn_key_row *row = &lane->peer->keys.rows[key->index];
	uint64_t offset = atomic_load_explicit(&row->extent_offset, memory_order_acquire);
	uint64_t length = atomic_load_explicit(&row->length, memory_order_acquire);
	uint32_t access = atomic_load_explicit(&row->access, memory_order_acquire);

	slot->generation = 0;
	if (atomic_load_explicit(&row->extent, memory_order_acquire) != extent || offset > map->bytes ||
	    length > map->bytes - offset)
		return;
	if (atomic_load_explicit(&row->generation, memory_order_relaxed) != key->generation)
		return;
	slot->index = key->index;
	slot->access = access & map->access;
	slot->node_tag = key->node_tag;
	slot->length = length;
	slot->base = map->base + offset;
	slot->row = row;
	slot->map = map;
	slot->generation = key->generation;
}

/* Said to one post; the next one asks again. */
static tern_status map_refused(tn_shm_map *map, uint32_t extent)
{
	tern_status status = (tern_status)atomic_load_explicit(&map->status, memory_order_relaxed);
	uint32_t refused = TN_SHM_MAP_REFUSED;

	(void)atomic_compare_exchange_strong(&map->state, &refused, TN_SHM_MAP_NONE);
	return tn_fail(
		status,
		"extent %u of the peer can't be mapped here: it is not exposed, or this process is out of "
		"mappings (vm.max_map_count)",
		extent);
}

static tern_status map_of(tn_shm_lane *lane, uint32_t extent, tn_shm_map **out)
{
	tn_shm_map *map = &lane->peer->maps[extent % TN_MEM_EXTENTS_MAX];

	*out = map;
	switch ((tn_shm_map_state)atomic_load_explicit(&map->state, memory_order_acquire)) {
	case TN_SHM_MAP_READY:
		if (TN_UNLIKELY(map->index != extent))
			return tn_fail(TERN_E_STALE_KEY,
				       "the peer's key table names extent %u in the place of %u", extent,
				       map->index);
		return TERN_OK;
	case TN_SHM_MAP_ASKED:
		return TERN_AGAIN;
	case TN_SHM_MAP_REFUSED:
		return map_refused(map, extent);
	case TN_SHM_MAP_NONE:
		break;
	}
	return post_want(lane, extent);
}

__attribute__((noinline)) static tern_status resolve_far(tn_shm_lane *lane, const tn_wr *wr, uint32_t access,
							 uint8_t **at, tn_shm_map **map_out)
{
	tn_shm_map *map = NULL;
	uint64_t offset;
	uint32_t extent;
	tern_status status =
		tn_key_check(&lane->peer->keys, &wr->key, wr->offset, wr->bytes, access, &extent, &offset);

	if (status != TERN_OK)
		return tn_fail(status,
			       "%s of [%" PRIu64 ", +%" PRIu64 ") through key %u.%u of %" PRIu64 " bytes: %s",
			       access == TERN_ACCESS_READ ? "read" : "write", wr->offset, wr->bytes,
			       wr->key.index, wr->key.generation, wr->key.length, tern_status_text(status));
	if (extent & TN_MEM_REGION)
		return tn_fail(
			TERN_E_UNSUPPORTED,
			"the key is to memory that its owner registered (tern_mem_register), which another "
			"process can't map: use memory of tern_mem_alloc, or a link over tcp");
	TN_TRY(map_of(lane, extent, &map));
	if (offset > map->bytes || wr->bytes > map->bytes - offset)
		return tn_fail(TERN_E_BOUNDS, "the peer's key table reaches past its extent %u", extent);
	if ((access & ~map->access) != 0)
		return tn_fail(TERN_E_ACCESS, "extent %u of the peer is of a class that does not allow it",
			       extent);
	cache_key(lane, &wr->key, map, extent);
	*at = map->base + offset;
	*map_out = map;
	return TERN_OK;
}

static inline tern_status resolve(tn_shm_lane *lane, const tn_wr *wr, uint32_t access, uint8_t **at,
				  tn_shm_map **map)
{
	const tn_shm_cached_key *hit = &lane->cache[wr->key.index % TN_SHM_KEY_CACHE];

	if (TN_LIKELY(hit->generation == wr->key.generation && hit->index == wr->key.index &&
		      hit->generation != 0 && hit->node_tag == wr->key.node_tag &&
		      (access & ~hit->access) == 0 && wr->offset <= hit->length &&
		      wr->bytes <= hit->length - wr->offset &&
		      atomic_load_explicit(&hit->row->generation, memory_order_acquire) == hit->generation)) {
		*at = hit->base + wr->offset;
		*map = hit->map;
		return TERN_OK;
	}
	return resolve_far(lane, wr, access, at, map);
}

/* ---- one-sided ---- */

/* While a copy runs beside posts the word is odd: an access of a post lies inside of it and ends before it. */
static TN_ALWAYS_INLINE bool access_mark(tn_shm_lane *lane, tn_shm_ctl *ctl)
{
	uint32_t mark = atomic_load_explicit(&lane->accesses, memory_order_relaxed) + 1;

	if (TN_UNLIKELY(lane->copying))
		mark--;
	TN_ASSERT(mark % 2 == 1);
	atomic_store_explicit(&lane->accesses, mark, memory_order_relaxed);
	atomic_store_explicit(&ctl->access, mark, memory_order_relaxed);
	tn_shm_fence_light(lane->light);
	return atomic_load_explicit(&ctl->stop, memory_order_relaxed) == 0;
}

static inline tern_status access_begin(tn_shm_lane *lane)
{
	return TN_LIKELY(access_mark(lane, lane->ctl_out)) ? TERN_OK : post_not_up();
}

static inline void access_end(tn_shm_lane *lane)
{
	uint32_t mark = atomic_load_explicit(&lane->accesses, memory_order_relaxed) + 1;

	if (TN_UNLIKELY(lane->copying))
		return;
	TN_ASSERT(mark % 2 == 0);
	atomic_store_explicit(&lane->ctl_out->access, mark, memory_order_release);
	atomic_store_explicit(&lane->accesses, mark, memory_order_release);
}

/* Length of the sequence of adjoining copies that this one continues: parts of one large transfer. */
static inline uint64_t run_of(tn_shm_lane *lane, const uint8_t *at, uint64_t bytes)
{
	if (bytes < 4096)
		return 0;
	lane->run_bytes = (uint64_t)(uintptr_t)at == lane->run_end ? lane->run_bytes + bytes : bytes;
	lane->run_end = (uint64_t)(uintptr_t)at + bytes;
	return lane->run_bytes;
}

/* Before the first large copy to a chunk of the peer's memory: map its pages in one call. */
static void prefault(tn_shm_map *map, const uint8_t *at, uint64_t bytes)
{
	uint64_t first = (uint64_t)(at - map->base) / TN_SHM_CHUNK_BYTES;
	uint64_t last = ((uint64_t)(at - map->base) + bytes - 1) / TN_SHM_CHUNK_BYTES;

	for (uint64_t i = first; i <= last; i++) {
		uint64_t bit = 1ull << (i % 64);
		uint64_t from = i * TN_SHM_CHUNK_BYTES;

		if (TN_LIKELY((atomic_load_explicit(&map->populated[i / 64], memory_order_relaxed) & bit) !=
			      0))
			continue;
		tn_shm_seg_populate(map->base + from, TN_MIN(TN_SHM_CHUNK_BYTES, map->bytes - from), false);
		atomic_fetch_or_explicit(&map->populated[i / 64], bit, memory_order_relaxed);
	}
}

/* The copy itself, of a range of the peer's that was checked. */
static inline void move(tn_shm_lane *lane, tn_shm_map *map, uint8_t *at, void *local, uint64_t bytes,
			bool read)
{
	const tn_shm_copier *copier = &tn_shm_dev_of(lane)->copier;
	uint64_t run = run_of(lane, at, bytes);

	if (bytes >= PREFAULT_BYTES)
		prefault(map, at, bytes);
	if (read)
		tn_shm_copy(copier, local, at, bytes, run);
	else
		tn_shm_copy(copier, at, local, bytes, run);
	tn_count_own(&lane->post_counters.copies, 1);
	tn_count_own(&lane->post_counters.copy_bytes, bytes);
}

static inline tern_status transfer(tn_shm_lane *lane, tn_wr *wr, uint32_t access)
{
	tn_shm_map *map = NULL;
	uint8_t *at = NULL;
	tern_status status;

	wr->done = false;
	if (TN_UNLIKELY(atomic_load_explicit(&lane->state, memory_order_acquire) != TN_SHM_LANE_UP))
		return post_not_up();
	status = access_begin(lane);
	if (TN_LIKELY(status == TERN_OK))
		status = resolve(lane, wr, access, &at, &map);
	if (TN_LIKELY(status == TERN_OK && wr->bytes != 0))
		move(lane, map, at, wr->local, wr->bytes, access == TERN_ACCESS_READ);
	access_end(lane);
	if (TN_UNLIKELY(status == TERN_AGAIN))
		return post_again(lane);
	wr->done = status == TERN_OK;
	return status;
}

static inline void count_write(tn_shm_lane *lane, uint64_t bytes)
{
	tn_count_own(&lane->post_counters.writes, 1);
	tn_count_own(&lane->post_counters.tx_bytes, bytes);
}

static inline void count_read(tn_shm_lane *lane, uint64_t bytes)
{
	tn_count_own(&lane->post_counters.reads, 1);
	tn_count_own(&lane->post_counters.rx_bytes, bytes);
}

/* ---- beside posts ---- */

/*
 * A transfer of known length goes past the caches from its first byte on, or not at all: the slots of a tensor adjoin each
 * other, and what goes to one of them is no longer for that.
 */
static uint64_t run_of_piece(tn_shm_lane *lane, const uint8_t *at, const tn_wr *wr)
{
	uint64_t run = run_of(lane, at, wr->bytes);

	return wr->whole > wr->bytes ? wr->whole / TN_SHM_RUN_SHARE : run;
}

tern_status tn_shm_copy_begin(tn_lane *base, const tn_wr *wr, bool read, tn_copy *copy)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tn_shm_map *map = NULL;
	uint8_t *at = NULL;
	tern_status status;

	TN_ASSERT(!lane->copying);
	if (TN_UNLIKELY(atomic_load_explicit(&lane->state, memory_order_acquire) != TN_SHM_LANE_UP))
		return post_not_up();
	status = access_begin(lane);
	if (TN_LIKELY(status == TERN_OK))
		status = resolve(lane, wr, read ? TERN_ACCESS_READ : TERN_ACCESS_WRITE, &at, &map);
	if (TN_UNLIKELY(status != TERN_OK)) {
		access_end(lane);
		return status == TERN_AGAIN ? post_again(lane) : status;
	}
	*copy = (tn_copy){.to = read ? wr->local : at,
			  .from = read ? at : wr->local,
			  .bytes = wr->bytes,
			  .run = run_of_piece(lane, at, wr),
			  .map = map,
			  .peer = lane->peer->number,
			  .read = read,
			  .last = wr->last && !read};
	lane->copying = true;
	return TERN_OK;
}

/*
 * What is left of a transfer when a peer that sleeps is woken: it takes 10 to 30 us to come round and looks for 20 us before
 * it sleeps again, and so finds what it is told behind the last byte. Only who is keen to look is woken for that: anybody
 * else would sleep again at once.
 */
#define AHEAD_BYTES (512ull << 10)

static void wake_ahead(tn_shm_lane *lane)
{
	if (atomic_load_explicit(&lane->peer->page->keen, memory_order_relaxed) != 0)
		tn_shm_lane_kick(lane);
}

void tn_shm_copy_beside(tn_lane *base, const tn_copy *copy)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	const tn_shm_copier *copier = &tn_shm_dev_of(lane)->copier;
	uint64_t before = copy->last && copy->bytes > AHEAD_BYTES ? copy->bytes - AHEAD_BYTES : 0;

	if (copy->bytes >= PREFAULT_BYTES)
		prefault(copy->map, copy->read ? copy->from : copy->to, copy->bytes);
	if (before > 0)
		tn_shm_copy(copier, copy->to, copy->from, before, copy->run);
	if (copy->last)
		wake_ahead(lane);
	tn_shm_copy(copier, (uint8_t *)copy->to + before, (const uint8_t *)copy->from + before,
		    copy->bytes - before, copy->run);
}

void tn_shm_copy_end(tn_lane *base, const tn_copy *copy)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;

	TN_ASSERT(lane->copying);
	tn_count_own(&lane->post_counters.copies, 1);
	tn_count_own(&lane->post_counters.copy_bytes, copy->bytes);
	if (copy->read)
		count_read(lane, copy->bytes);
	else
		count_write(lane, copy->bytes);
	lane->copying = false;
	access_end(lane);
}

tern_status tn_shm_write(tn_lane *base, tn_wr *wr)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tern_status status = transfer(lane, wr, TERN_ACCESS_WRITE);

	if (TN_LIKELY(status == TERN_OK))
		count_write(lane, wr->bytes);
	return status;
}

tern_status tn_shm_read(tn_lane *base, tn_wr *wr)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tern_status status = transfer(lane, wr, TERN_ACCESS_READ);

	if (TN_LIKELY(status == TERN_OK))
		count_read(lane, wr->bytes);
	return status;
}

static TN_ALWAYS_INLINE void count_access(tn_shm_lane *lane, uint64_t bytes, bool read)
{
	tn_count_own(&lane->accessed[read].count, 1);
	tn_count_own(&lane->accessed[read].bytes, bytes);
}

/* The rest of an access that may go on, of more than a cache line. */
static __attribute__((noinline)) bool access_far(tn_shm_lane *lane, const tn_shm_cached_key *hit, uint8_t *at,
						 void *local, uint64_t bytes, bool read)
{
	const tn_shm_copier *copier = &tn_shm_dev_of(lane)->copier;
	uint64_t run = run_of(lane, at, bytes);

	if (bytes >= PREFAULT_BYTES)
		prefault(hit->map, at, bytes);
	tn_shm_copy_far(copier, read ? local : at, read ? at : local, bytes, run);
	access_end(lane);
	count_access(lane, bytes, read);
	return true;
}

/*
 * The cache line is fetched to be written while the checks go on: whoever polls it at the other side has it, most
 * likely. Of an address that is none nothing comes.
 */
static TN_ALWAYS_INLINE void prefetch_own(const void *at)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" ::"m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

/*
 * A key of the cache is what it takes: it was decoded and checked when it came there. Without a call up to the copy of a
 * cache line, so that nothing is saved on the stack for it.
 */
bool tn_shm_access(tn_lane *base, const tern_key *wire, uint64_t offset, void *local, uint64_t bytes,
		   bool read)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	uint32_t index = tn_key_word(wire, TN_KEY_INDEX_AT),
		 access = read ? TERN_ACCESS_READ : TERN_ACCESS_WRITE;
	uint32_t generation = tn_key_word(wire, TN_KEY_GENERATION_AT);
	const tn_shm_cached_key *hit = &lane->cache[index % TN_SHM_KEY_CACHE];
	uint8_t *at = (uint8_t *)((uintptr_t)hit->base + offset); /* no pointer yet: it is judged below */

	if (!read)
		prefetch_own(at);
	if (TN_UNLIKELY(atomic_load_explicit(&lane->state, memory_order_acquire) != TN_SHM_LANE_UP ||
			hit->generation != generation || hit->index != index || generation == 0 ||
			hit->node_tag != tn_key_word(wire, TN_KEY_NODE_TAG_AT) || !(hit->access & access) ||
			offset > hit->length || bytes > hit->length - offset))
		return false;
	if (TN_UNLIKELY(!access_mark(lane, lane->ctl_out) ||
			atomic_load_explicit(&hit->row->generation, memory_order_acquire) != generation)) {
		access_end(lane);
		return false;
	}
	if (TN_UNLIKELY(bytes > TN_SHM_COPY_LINE))
		return access_far(lane, hit, at, local, bytes, read);
	if (!tn_shm_copy_word(read ? local : at, read ? at : local, bytes))
		tn_shm_copy_line(read ? local : at, read ? at : local, bytes);
	access_end(lane);
	count_access(lane, bytes, read);
	return true;
}

/* ---- with the ring ---- */

void tn_shm_lane_kick(tn_shm_lane *lane)
{
	uint32_t sleep = atomic_load_explicit(&lane->peer->page->sleep, memory_order_seq_cst);

	if (TN_LIKELY(sleep == 0 || sleep == atomic_load_explicit(&lane->kicked, memory_order_acquire)))
		return;
	tn_os_event_signal(lane->wake_fd);
	/* Behind the signal: a post beside a copy that sees the number relies on it. */
	atomic_store_explicit(&lane->kicked, sleep, memory_order_release);
	tn_count(&tn_shm_dev_of(lane)->counters.wakes, 1);
}

/*
 * Something was put into the ring. While more comes a sleeping peer is woken for this many messages or KiB together:
 * else it is awake before the second, takes what is there, and sleeps again before the next.
 */
#define BELL_EVERY 64u

static void ring_bell(tn_shm_lane *lane, uint64_t bytes)
{
	if (lane->base.more) {
		lane->unrung += 1 + (uint32_t)(bytes >> 10);
		if (lane->unrung < BELL_EVERY)
			return;
	}
	lane->unrung = 0;
	tn_shm_lane_kick(lane);
}

void tn_shm_flush(tn_lane *base)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;

	base->more = false;
	if (lane->unrung > 0) {
		lane->unrung = 0;
		tn_shm_lane_kick(lane);
	}
}

static tern_status ring_status(tn_shm_lane *lane, tern_status status)
{
	return status == TERN_AGAIN ? post_again(lane) : post_fault(lane, status);
}

tern_status tn_shm_write_imm(tn_lane *base, tn_wr *wr)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	tern_status status;

	wr->done = false;
	if (TN_UNLIKELY(atomic_load_explicit(&lane->state, memory_order_acquire) != TN_SHM_LANE_UP))
		return post_not_up();
	status = tn_shm_tx_room(&lane->tx);
	if (TN_UNLIKELY(status != TERN_OK))
		return ring_status(lane, status);
	status = transfer(lane, wr, TERN_ACCESS_WRITE);
	if (TN_UNLIKELY(status != TERN_OK))
		return status;
	tn_shm_tx_imm(&lane->tx, wr->imm, wr->bytes);
	ring_bell(lane, 0);
	tn_count_own(&lane->post_counters.write_imms, 1);
	tn_count_own(&lane->post_counters.tx_bytes, wr->bytes);
	return TERN_OK;
}

tern_status tn_shm_send(tn_lane *base, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	tn_shm_lane *lane = (tn_shm_lane *)base;
	uint64_t bytes = 0;
	tern_status status;

	(void)cookie; /* always done at once */
	*done = false;
	if (TN_UNLIKELY(atomic_load_explicit(&lane->state, memory_order_acquire) != TN_SHM_LANE_UP))
		return post_not_up();
	if (n < 0 || n > TN_IOV_MAX)
		return tn_fail(TERN_E_INVALID, "%d pieces in a message; at most %d", n, TN_IOV_MAX);
	for (int i = 0; i < n; i++) {
		if (iov[i].bytes > lane->tx.ring.buf_bytes - bytes)
			return tn_fail(TERN_E_TOO_LARGE, "a message of more than %u bytes (shm.send_bytes)",
				       lane->tx.ring.buf_bytes);
		bytes += iov[i].bytes;
	}
	status = tn_shm_tx_send(&lane->tx, iov, n, bytes);
	if (TN_UNLIKELY(status != TERN_OK))
		return ring_status(lane, status);
	ring_bell(lane, bytes);
	tn_count_own(&lane->post_counters.sends, 1);
	tn_count_own(&lane->post_counters.tx_bytes, bytes);
	*done = true;
	return TERN_OK;
}

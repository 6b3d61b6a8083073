/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: extendible hashing (Fagin et al. 1979) on the top bits of the hash, so that a slot is a range of the
 * directory. Growth splits one segment; the others don't notice. Segments never merge.
 *
 * A peer can choose keys that collide. In one bucket: they spill over to the next ones, and a look-up of theirs costs
 * at most the segment. In the top bits: the directory may have 64 entries for each segment there is, then creations
 * are refused (TERN_E_LIMIT).
 *
 * Threads: tn_index_find takes no lock; the others that of one segment. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"

/* ---- buckets ---- */

#define LOW_BITS  0x0101010101010101ull
#define PAST_MASK 0xffff00000000ull
#define PAST_ONE  0x000100000000ull

#if defined(__SSE2__)
#include <emmintrin.h>

/* Bit i: place i has the tag. */
static inline uint32_t match(const tn_bucket *b, uint8_t tag, uint64_t *past)
{
	uint64_t low = atomic_load_explicit(&b->tags, memory_order_acquire);
	uint64_t high = atomic_load_explicit(&b->tags_past, memory_order_acquire);
	__m128i tags = _mm_set_epi64x((int64_t)high, (int64_t)low);

	*past = high & PAST_MASK;
	return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag))) & 0xfff;
}
#else
static inline uint32_t match(const tn_bucket *b, uint8_t tag, uint64_t *past)
{
	uint64_t low = atomic_load_explicit(&b->tags, memory_order_acquire);
	uint64_t high = atomic_load_explicit(&b->tags_past, memory_order_acquire);
	uint32_t mask = 0;

	*past = high & PAST_MASK;
	for (unsigned i = 0; i < TN_BUCKET_PLACES; i++)
		mask |= (uint32_t)((uint8_t)(i < 8 ? low >> 8 * i : high >> 8 * (i - 8)) == tag) << i;
	return mask;
}
#endif

/* Holding the segment. */
static void set_tag(tn_bucket *b, unsigned place, uint8_t tag)
{
	_Atomic uint64_t *word = place < 8 ? &b->tags : &b->tags_past;
	unsigned bit = 8 * (place & 7);
	uint64_t v = atomic_load_explicit(word, memory_order_relaxed);

	v = (v & ~(0xffull << bit)) | (uint64_t)tag << bit;
	atomic_store_explicit(word, v, memory_order_release);
}

static void add_past(tn_bucket *b, int64_t n)
{
	uint64_t v = atomic_load_explicit(&b->tags_past, memory_order_relaxed);

	TN_ASSERT(n > 0 || (v & PAST_MASK));
	atomic_store_explicit(&b->tags_past, v + (uint64_t)n * PAST_ONE, memory_order_release);
}

/* Where a key is in its segment. False: it is not. */
static inline bool locate(const tn_table *t, const tn_segment *seg, uint64_t key, uint64_t hash,
			  uint32_t *bucket, unsigned *place, uint32_t *id)
{
	uint32_t b = tn_home(hash);
	uint8_t tag = tn_tag(hash);

	for (uint32_t n = 0; n < TN_SEGMENT_BUCKETS; n++, b = (b + 1) & (TN_SEGMENT_BUCKETS - 1)) {
		uint64_t past;

		for (uint32_t m = match(&seg->buckets[b], tag, &past); m; m &= m - 1) {
			unsigned i = (unsigned)__builtin_ctz(m);
			uint32_t at = atomic_load_explicit(&seg->buckets[b].ids[i], memory_order_acquire);

			if (at && tn_head_key(tn_head_of(t, at)) == key) {
				*bucket = b;
				*place = i;
				*id = at;
				return true;
			}
		}
		if (!past)
			break;
	}
	return false;
}

uint32_t tn_index_find(const tn_table *t, const tn_dir *dir, uint64_t key, uint64_t hash)
{
	uint32_t bucket, id;
	unsigned place;

	if (t->dense)
		return key < t->schema.rows ? (uint32_t)key + 1 : 0;
	return locate(t, tn_dir_find(dir, hash), key, hash, &bucket, &place, &id) ? id : 0;
}

/* Holding the segment, which has room: count < TN_SEGMENT_PLACES. */
static void enter(tn_segment *seg, uint64_t hash, uint32_t id)
{
	uint32_t b = tn_home(hash);
	uint64_t past;
	uint32_t room;

	TN_ASSERT(seg->count < TN_SEGMENT_PLACES);
	while (!(room = match(&seg->buckets[b], 0, &past))) {
		add_past(&seg->buckets[b], 1);
		b = (b + 1) & (TN_SEGMENT_BUCKETS - 1);
	}
	atomic_store_explicit(&seg->buckets[b].ids[__builtin_ctz(room)], id, memory_order_release);
	set_tag(&seg->buckets[b], (unsigned)__builtin_ctz(room), tn_tag(hash));
	seg->count++;
}

static void leave(tn_segment *seg, uint64_t hash, uint32_t bucket, unsigned place)
{
	set_tag(&seg->buckets[bucket], place, 0);
	for (uint32_t b = tn_home(hash); b != bucket; b = (b + 1) & (TN_SEGMENT_BUCKETS - 1))
		add_past(&seg->buckets[b], -1);
	TN_ASSERT(seg->count > 0);
	seg->count--;
}

/* ---- segments ---- */

/* A huge page: look-ups in a large index would miss the TLB as well. */
#define CHUNK_BYTES    (2ull << 20)
#define CHUNK_SEGMENTS 126
_Static_assert(CHUNK_SEGMENTS * sizeof(tn_segment) + 64 <= CHUNK_BYTES, "they fit");

/* More segments, a quarter of those there are. Holding dir_lock. */
static bool more_segments(tn_table *t)
{
	uint64_t n = TN_MIN(TN_MAX(t->segments / 4, 1), CHUNK_SEGMENTS);
	bool huge = n == CHUNK_SEGMENTS;
	uint64_t bytes = huge ? CHUNK_BYTES : n * sizeof(tn_segment) + 64, align = huge ? CHUNK_BYTES : 64;
	tn_chunk *chunk;

	chunk = TN_FAULT("ps.table.segment") ? NULL : aligned_alloc(align, bytes);
	if (!chunk)
		return false;
	if (huge)
		(void)madvise(chunk, bytes, MADV_HUGEPAGE);
	*chunk = (tn_chunk){.next = t->chunks, .bytes = bytes};
	t->chunks = chunk;
	TN_COUNT(t, index_bytes, bytes);
	for (uint64_t i = 0; i < n; i++) {
		tn_segment *seg = (tn_segment *)(void *)((uint8_t *)chunk + 64) + i;

		pthread_mutex_init(&seg->lock, NULL);
		seg->next = t->free_segments;
		t->free_segments = seg;
	}
	return true;
}

/* Holding dir_lock. */
static tn_segment *new_segment(tn_table *t, uint64_t first, uint8_t depth)
{
	tn_segment *seg;

	for (tn_segment **at = &t->limbo_segments; !t->free_segments && *at;) {
		seg = *at;
		if (!tn_epoch_passed(&t->epoch, seg->stamp)) {
			at = &seg->next;
			continue;
		}
		*at = seg->next;
		seg->next = t->free_segments;
		t->free_segments = seg;
	}
	if (!t->free_segments && !more_segments(t))
		return NULL;
	seg = t->free_segments;
	t->free_segments = seg->next;
	seg->first = first;
	seg->depth = depth;
	seg->count = 0;
	seg->retired = false;
	seg->next = NULL;
	memset(seg->buckets, 0, sizeof(seg->buckets));
	t->segments++;
	return seg;
}

static tn_dir *new_dir(tn_table *t, uint32_t depth)
{
	uint64_t bytes = sizeof(tn_dir) + (sizeof(_Atomic(tn_segment *)) << depth);
	tn_dir *dir = TN_FAULT("ps.table.dir") ? NULL : malloc(bytes);

	if (dir) {
		*dir = (tn_dir){.depth = depth};
		TN_COUNT(t, index_bytes, bytes);
	}
	return dir;
}

static void free_dir(tn_table *t, tn_dir *dir)
{
	TN_COUNT(t, index_bytes, -(sizeof(tn_dir) + (sizeof(_Atomic(tn_segment *)) << dir->depth)));
	free(dir);
}

tern_status tn_index_init(tn_table *t)
{
	tn_dir *dir;
	tn_segment *seg;

	if (t->dense)
		return TERN_OK;
	dir = new_dir(t, 0);
	seg = dir ? new_segment(t, 0, 0) : NULL;
	if (!seg) {
		free(dir);
		return tn_fail(TERN_E_NOMEM, "no memory for a table's index");
	}
	atomic_init(&dir->at[0], seg);
	atomic_store(&t->dir, dir);
	return TERN_OK;
}

void tn_index_fini(tn_table *t)
{
	free(atomic_load(&t->dir));
	while (t->limbo_dirs) {
		tn_dir *next = t->limbo_dirs->next;

		free(t->limbo_dirs);
		t->limbo_dirs = next;
	}
	while (t->chunks) {
		tn_chunk *next = t->chunks->next;

		free(t->chunks);
		t->chunks = next;
	}
}

/* A directory of twice the size. Holding dir_lock. */
static tern_status double_dir(tn_table *t)
{
	tn_dir *old = atomic_load(&t->dir), *dir;

	if (old->depth >= TN_DEPTH_MAX || (old->depth > 6 && (1ull << old->depth) >= 64 * t->segments))
		return tn_fail(TERN_E_LIMIT,
			       "table \"%s\": too many keys with the same leading bits of their hash; "
			       "somebody chose "
			       "them so",
			       t->schema.name);
	for (tn_dir **at = &t->limbo_dirs; *at;) {
		tn_dir *d = *at;

		if (!tn_epoch_passed(&t->epoch, d->stamp)) {
			at = &d->next;
			continue;
		}
		*at = d->next;
		free_dir(t, d);
	}
	dir = new_dir(t, old->depth + 1);
	if (!dir)
		return tn_fail(TERN_E_NOMEM, "no memory for a table's directory");
	for (uint64_t i = 0; i < 2ull << old->depth; i++)
		atomic_init(&dir->at[i], atomic_load_explicit(&old->at[i / 2], memory_order_relaxed));
	atomic_store(&t->dir, dir);
	old->stamp = tn_epoch_stamp(&t->epoch);
	old->next = t->limbo_dirs;
	t->limbo_dirs = old;
	return TERN_OK;
}

/* Both halves into the directory, the old segment out of it. Holding the old one and dir_lock. */
static void publish(tn_table *t, tn_segment *old, tn_segment *half[2])
{
	tn_dir *dir = atomic_load(&t->dir);
	uint64_t n = 1ull << (dir->depth - old->depth), first = 0;

	if (dir->depth)
		first = old->first >> (64 - dir->depth);
	for (uint64_t i = 0; i < n; i++) {
		TN_ASSERT(atomic_load(&dir->at[first + i]) == old);
		atomic_store_explicit(&dir->at[first + i], half[i >= n / 2], memory_order_release);
	}
	old->retired = true;
	old->stamp = tn_epoch_stamp(&t->epoch);
	old->next = t->limbo_segments;
	t->limbo_segments = old;
	t->segments--;
	TN_COUNT(t, splits, 1);
}

/* Deal the records of a segment to its halves by the next bit of their hashes. */
static void deal(const tn_table *t, const tn_segment *seg, tn_segment *half[2])
{
	for (uint32_t b = 0; b < TN_SEGMENT_BUCKETS; b++) {
		uint32_t ahead = (b + 2) & (TN_SEGMENT_BUCKETS - 1);

		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			uint32_t id = atomic_load_explicit(&seg->buckets[ahead].ids[i], memory_order_relaxed);

			if (id)
				__builtin_prefetch(tn_head_of(t, id));
		}
		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			const tn_bucket *at = &seg->buckets[b];
			uint64_t word = i < 8 ? at->tags : at->tags_past;

			if ((uint8_t)(word >> 8 * (i & 7))) {
				uint64_t hash = tn_table_hash(tn_head_key(tn_head_of(t, at->ids[i])));

				enter(half[(hash >> (63 - seg->depth)) & 1], hash, at->ids[i]);
			}
		}
	}
}

/* Holding the segment; it is retired afterwards. */
static tern_status split(tn_table *t, tn_segment *seg)
{
	tn_segment *half[2];
	tern_status st = TERN_OK;

	pthread_mutex_lock(&t->dir_lock);
	if (atomic_load(&t->dir)->depth == seg->depth)
		st = double_dir(t);
	if (st == TERN_OK) {
		half[0] = new_segment(t, seg->first, seg->depth + 1);
		half[1] = half[0] ? new_segment(t, seg->first | 1ull << (63 - seg->depth), seg->depth + 1)
				  : NULL;
		if (!half[1]) {
			st = tn_fail(TERN_E_NOMEM, "table \"%s\": no memory for its index", t->schema.name);
			if (half[0]) {
				half[0]->next = t->free_segments;
				t->free_segments = half[0];
				t->segments--;
			}
		}
	}
	pthread_mutex_unlock(&t->dir_lock);
	TN_TRY(st);
	deal(t, seg, half);
	TN_ASSERT(half[0]->count + half[1]->count == seg->count);
	pthread_mutex_lock(&t->dir_lock);
	publish(t, seg, half);
	pthread_mutex_unlock(&t->dir_lock);
	return TERN_OK;
}

/* The segment of a hash, locked. Inside the epoch. */
static tn_segment *lock_segment(tn_table *t, uint64_t hash)
{
	for (;;) {
		tn_segment *seg = tn_dir_find(atomic_load_explicit(&t->dir, memory_order_acquire), hash);

		pthread_mutex_lock(&seg->lock);
		if (!seg->retired)
			return seg;
		pthread_mutex_unlock(&seg->lock);
	}
}

tern_status tn_index_insert(tn_table *t, uint64_t key, uint64_t hash, uint32_t id, uint32_t *now)
{
	tern_status st = TERN_OK;
	tn_head *head = tn_head_of(t, id);

	for (;;) {
		tn_segment *seg = lock_segment(t, hash);
		uint32_t bucket;
		unsigned place;
		tn_cut *cut;

		if (locate(t, seg, key, hash, &bucket, &place, now))
			st = TERN_OK;
		else if (seg->count >= TN_SEGMENT_FULL && (st = split(t, seg)) == TERN_OK) {
			pthread_mutex_unlock(&seg->lock);
			continue;
		} else if (seg->count < TN_SEGMENT_PLACES) {
			/* It may be full and not have split for want of memory: there is some room left. */
			cut = atomic_load_explicit(&t->cut, memory_order_acquire);
			if (cut)
				tn_cut_born(cut, t, id);
			st = TERN_OK;
			atomic_store_explicit(
				&head->version,
				tn_written(t, atomic_load_explicit(&head->version, memory_order_relaxed) &
						      ~(TN_DEAD | TN_LOCKED | TN_WRITING | TN_MARKS)),
				memory_order_release);
			enter(seg, hash, id);
			TN_COUNT(t, rows, 1);
			*now = id;
		}
		pthread_mutex_unlock(&seg->lock);
		return st;
	}
}

bool tn_index_erase(tn_table *t, uint64_t key, uint64_t hash, uint64_t unless_after)
{
	tn_segment *seg = lock_segment(t, hash);
	uint32_t bucket, id, version = 0;
	unsigned place;
	bool gone = locate(t, seg, key, hash, &bucket, &place, &id);

	if (gone) {
		tn_head *head = tn_head_of(t, id);

		gone = tn_head_lock(head, &version);
		TN_ASSERT(gone);
		if (unless_after != TN_ERASE_ALWAYS &&
		    atomic_load_explicit(tn_head_last_step(head), memory_order_relaxed) > unless_after) {
			tn_head_unlock(head, version);
			gone = false;
		}
		if (gone) {
			tn_changes_erased(t, id, head);
			tn_head_unlock(head, (version + TN_VERSION_STEP) | TN_DEAD);
			leave(seg, hash, bucket, place);
			TN_COUNT(t, rows, -1ull);
		}
	}
	pthread_mutex_unlock(&seg->lock);
	if (gone)
		tn_id_retire(t, id);
	return gone;
}

uint32_t tn_index_keys(tn_table *t, uint64_t hash, uint64_t last, uint64_t *keys, uint64_t *end)
{
	tn_segment *seg = lock_segment(t, hash);
	uint32_t n = 0;

	for (uint32_t b = 0; b < TN_SEGMENT_BUCKETS; b++) {
		const tn_bucket *at = &seg->buckets[b];

		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			uint64_t word = i < 8 ? at->tags : at->tags_past, key, h;

			if (!(uint8_t)(word >> 8 * (i & 7)))
				continue;
			key = tn_head_key(tn_head_of(t, at->ids[i]));
			h = tn_table_hash(key);
			if (h >= hash && h <= last)
				keys[n++] = key;
		}
	}
	*end = seg->depth ? seg->first + (1ull << (64 - seg->depth)) : 0;
	pthread_mutex_unlock(&seg->lock);
	return n;
}

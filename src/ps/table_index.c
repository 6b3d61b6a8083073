/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: extendible hashing (Fagin et al. 1979) on the top bits of the hash, so that a slot is a range of the
 * directory. Growth deals one segment anew; the others don't notice. Segments that emptied shrink and merge; the
 * directory stays as large as it was.
 *
 * A peer can choose keys that collide. In one bucket: they spill over to the next ones, and a look-up of theirs costs
 * at most the segment. In the top bits: the directory may have 64 entries for each segment there is, then creations
 * are refused (TERN_E_LIMIT).
 *
 * Threads: tn_index_find takes no lock; the others that of one segment. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
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

static inline uint32_t after(uint32_t bucket, uint32_t buckets)
{
	return bucket + 1 == buckets ? 0 : bucket + 1;
}

/* Where a key is in its segment. False: it is not. */
static inline bool locate(const tn_table *t, uintptr_t entry, uint64_t key, uint64_t hash, uint32_t *bucket,
			  unsigned *place, uint32_t *id)
{
	uint32_t buckets = tn_entry_buckets(entry), b = tn_home(hash, buckets);
	const tn_segment *seg = tn_entry_segment(entry);
	uint8_t tag = tn_tag(hash);

	for (uint32_t n = 0; n < buckets; n++, b = after(b, buckets)) {
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
	return locate(t, tn_dir_entry(dir, hash), key, hash, &bucket, &place, &id) ? id : 0;
}

static inline uintptr_t entry_of(const tn_segment *seg)
{
	return (uintptr_t)seg | seg->pages;
}

static inline uint32_t places(const tn_segment *seg)
{
	return tn_segment_buckets(seg) * TN_BUCKET_PLACES;
}

/* Holding the segment, which has room. */
static void enter(tn_segment *seg, uint64_t hash, uint32_t id)
{
	uint32_t buckets = tn_segment_buckets(seg), b = tn_home(hash, buckets), room;
	uint64_t past;

	TN_ASSERT(seg->count < places(seg));
	while (!(room = match(&seg->buckets[b], 0, &past))) {
		add_past(&seg->buckets[b], 1);
		b = after(b, buckets);
	}
	atomic_store_explicit(&seg->buckets[b].ids[__builtin_ctz(room)], id, memory_order_release);
	set_tag(&seg->buckets[b], (unsigned)__builtin_ctz(room), tn_tag(hash));
	seg->count++;
}

static void leave(tn_segment *seg, uint64_t hash, uint32_t bucket, unsigned place)
{
	uint32_t buckets = tn_segment_buckets(seg);

	set_tag(&seg->buckets[bucket], place, 0);
	for (uint32_t b = tn_home(hash, buckets); b != bucket; b = after(b, buckets))
		add_past(&seg->buckets[b], -1);
	TN_ASSERT(seg->count > 0);
	seg->count--;
}

/* ---- growing and shrinking ---- */

tern_status tn_index_init(tn_table *t)
{
	tn_dir *dir;
	tn_segment *seg;

	if (t->dense)
		return TERN_OK;
	dir = tn_dir_new(t, 0);
	if (!dir)
		return tn_fail(TERN_E_NOMEM, "no memory for a table's directory");
	atomic_store(&t->dir, dir);
	seg = tn_segment_new(t, 0, 0, TN_PAGES_MIN);
	if (!seg)
		return tn_fail(TERN_E_NOMEM, "no memory for a table's index");
	atomic_init(&dir->at[0], entry_of(seg));
	return TERN_OK;
}

void tn_index_fini(tn_table *t)
{
	free(atomic_load(&t->dir));
	tn_segments_fini(t);
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
	dir = tn_dir_new(t, old->depth + 1);
	if (!dir)
		return tn_fail(TERN_E_NOMEM, "no memory for a table's directory");
	for (uint64_t i = 0; i < 2ull << old->depth; i++)
		atomic_init(&dir->at[i], atomic_load_explicit(&old->at[i / 2], memory_order_relaxed));
	atomic_store(&t->dir, dir);
	tn_dir_retire(t, old);
	return TERN_OK;
}

void tn_index_publish(tn_table *t, tn_segment *was, tn_segment *now)
{
	tn_dir *dir = atomic_load(&t->dir);
	uint8_t depth = TN_MAX(was->depth, now->depth);
	uint64_t n = 1ull << (dir->depth - depth);
	uint64_t hash = was->depth > now->depth ? was->first : now->first;
	uint64_t first = dir->depth ? hash >> (64 - dir->depth) : 0;

	for (uint64_t i = first; i < first + n; i++) {
		TN_ASSERT(atomic_load(&dir->at[i]) == entry_of(was));
		atomic_store_explicit(&dir->at[i], entry_of(now), memory_order_release);
	}
	tn_layout_changed(t);
}

/* fn for each record of a segment, with its hash. Holding it. */
typedef void (*each_fn)(void *arg, uint64_t hash, uint32_t id);

static inline void each(const tn_table *t, const tn_segment *seg, each_fn fn, void *arg)
{
	uint32_t buckets = tn_segment_buckets(seg);

	for (uint32_t b = 0; b < buckets; b++) {
		const tn_bucket *at = &seg->buckets[b], *ahead = &seg->buckets[b + 2 < buckets ? b + 2 : b];

		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			uint32_t id = atomic_load_explicit(&ahead->ids[i], memory_order_relaxed);

			if (id)
				__builtin_prefetch(tn_head_of(t, id));
		}
		for (unsigned i = 0; i < TN_BUCKET_PLACES; i++) {
			uint64_t word = i < 8 ? at->tags : at->tags_past;

			if ((uint8_t)(word >> 8 * (i & 7)))
				fn(arg, tn_table_hash(tn_head_key(tn_head_of(t, at->ids[i]))), at->ids[i]);
		}
	}
}

/* Records of a segment to one, or to halves by the next bit of their hashes. */
typedef struct dealing {
	tn_segment *to[2];
	uint32_t count[2];
	unsigned shift; /* of the bit; 64: there are no halves */
} dealing;

static inline unsigned half_of(const dealing *d, uint64_t hash)
{
	return d->shift < 64 ? (unsigned)(hash >> d->shift & 1) : 0;
}

static void count_one(void *arg, uint64_t hash, uint32_t id)
{
	dealing *d = arg;

	(void)id;
	d->count[half_of(d, hash)]++;
}

static void deal_one(void *arg, uint64_t hash, uint32_t id)
{
	dealing *d = arg;

	enter(d->to[half_of(d, hash)], hash, id);
}

/* Above this a segment grows: fuller ones are smaller, but more look-ups go past their home. */
static inline uint32_t full_at(uint32_t pages)
{
	return (pages * (TN_PAGE / 64) - TN_SEGMENT_HEAD) * TN_BUCKET_PLACES / 10 * 7;
}

/* Keys that somebody chose may go to one half all together. */
static uint32_t pages_for(uint32_t records)
{
	uint32_t pages = TN_PAGES_MIN;

	while (pages < TN_PAGES_MAX && records >= full_at(pages))
		pages++;
	return pages;
}

static tern_status no_memory(const tn_table *t)
{
	return tn_fail(TERN_E_NOMEM, "table \"%s\": no memory for its index", t->schema.name);
}

/* The segment's records into one of so many pages. Holding the segment; it is retired afterwards. */
static tern_status resize(tn_table *t, tn_segment *seg, uint32_t pages)
{
	tn_segment *now;

	pthread_mutex_lock(&t->dir_lock);
	now = tn_segment_new(t, seg->first, seg->depth, pages);
	pthread_mutex_unlock(&t->dir_lock);
	if (!now)
		return no_memory(t);
	each(t, seg, deal_one, &(dealing){.to = {now}, .shift = 64});
	TN_ASSERT(now->count == seg->count);
	pthread_mutex_lock(&t->dir_lock);
	tn_index_publish(t, seg, now);
	tn_segment_retire(t, seg);
	tn_segments_pack(t);
	pthread_mutex_unlock(&t->dir_lock);
	return TERN_OK;
}

/* Holding the segment; it is retired afterwards. */
static tern_status split(tn_table *t, tn_segment *seg)
{
	dealing d = {.shift = 63u - seg->depth};
	tn_segment **half = d.to;
	tern_status st = TERN_OK;

	each(t, seg, count_one, &d);
	pthread_mutex_lock(&t->dir_lock);
	if (atomic_load(&t->dir)->depth == seg->depth)
		st = double_dir(t);
	for (unsigned i = 0; i < 2 && st == TERN_OK; i++) {
		half[i] = tn_segment_new(t, seg->first | (uint64_t)i << (63 - seg->depth), seg->depth + 1,
					 pages_for(d.count[i]));
		if (!half[i])
			st = no_memory(t);
	}
	if (st != TERN_OK && half[0])
		tn_segment_free(t, half[0]);
	pthread_mutex_unlock(&t->dir_lock);
	TN_TRY(st);
	each(t, seg, deal_one, &d);
	TN_ASSERT(half[0]->count + half[1]->count == seg->count);
	pthread_mutex_lock(&t->dir_lock);
	tn_index_publish(t, seg, half[0]);
	tn_index_publish(t, seg, half[1]);
	tn_segment_retire(t, seg);
	TN_COUNT(t, splits, 1);
	tn_segments_pack(t);
	pthread_mutex_unlock(&t->dir_lock);
	return TERN_OK;
}

static tern_status grow(tn_table *t, tn_segment *seg)
{
	return seg->pages < TN_PAGES_MAX ? resize(t, seg, seg->pages + 1) : split(t, seg);
}

/* The other half of what was one before it split; it must be held to be used. */
static tn_segment *sibling(const tn_table *t, const tn_segment *seg)
{
	uint64_t hash = seg->first ^ 1ull << (64 - seg->depth);

	return tn_entry_segment(tn_dir_entry(atomic_load_explicit(&t->dir, memory_order_acquire), hash));
}

/* Both into one. Holding both; they are retired afterwards. */
static void merge(tn_table *t, tn_segment *a, tn_segment *b)
{
	tn_segment *now;

	pthread_mutex_lock(&t->dir_lock);
	now = tn_segment_new(t, a->first & b->first, a->depth - 1, TN_PAGES_MIN);
	pthread_mutex_unlock(&t->dir_lock);
	if (!now)
		return;
	each(t, a, deal_one, &(dealing){.to = {now}, .shift = 64});
	each(t, b, deal_one, &(dealing){.to = {now}, .shift = 64});
	pthread_mutex_lock(&t->dir_lock);
	tn_index_publish(t, a, now);
	tn_index_publish(t, b, now);
	tn_segment_retire(t, a);
	tn_segment_retire(t, b);
	pthread_mutex_unlock(&t->dir_lock);
}

/* A segment that lost records gives room back when it is three quarters empty. Holding it; may retire it. */
static void shrink(tn_table *t, tn_segment *seg)
{
	tn_segment *other;

	if (seg->count >= places(seg) / 4)
		return;
	if (seg->pages > TN_PAGES_MIN) {
		(void)resize(t, seg, TN_PAGES_MIN); /* for want of memory it stays */
		return;
	}
	if (seg->depth == 0 || seg->count >= places(seg) / 8)
		return;
	other = sibling(t, seg);
	if (pthread_mutex_trylock(&other->lock) != 0)
		return;
	if (!other->retired && other->depth == seg->depth && other->pages == TN_PAGES_MIN &&
	    other->count < places(seg) / 4)
		merge(t, seg, other);
	pthread_mutex_unlock(&other->lock);
}

/* The segment of a hash, locked. Inside the epoch. */
static tn_segment *lock_segment(tn_table *t, uint64_t hash)
{
	for (;;) {
		tn_segment *seg = tn_entry_segment(
			tn_dir_entry(atomic_load_explicit(&t->dir, memory_order_acquire), hash));

		pthread_mutex_lock(&seg->lock);
		if (!seg->retired)
			return seg;
		pthread_mutex_unlock(&seg->lock);
	}
}

void tn_index_await(tn_table *t, uint64_t hash)
{
	pthread_mutex_unlock(&lock_segment(t, hash)->lock);
}

/* A record that is filled in and dead becomes live. */
static void bear(tn_table *t, tn_head *head, uint32_t id)
{
	tn_cut *cut = atomic_load_explicit(&t->cut, memory_order_acquire);

	if (cut)
		tn_cut_born(cut, t, id);
	atomic_store_explicit(&head->version,
			      tn_written(t, atomic_load_explicit(&head->version, memory_order_relaxed) &
						    ~(TN_DEAD | TN_LOCKED | TN_WRITING | TN_MARKS)),
			      memory_order_release);
}

/* Holding the segment, which has room. */
static tern_status insert(tn_table *t, tn_segment *seg, uint64_t hash, uint32_t id, tn_insert *how,
			  uint32_t *now)
{
	*now = 0;
	how->warm = false;
	if (tn_cold_any(t))
		TN_TRY(tn_cold_in(t, hash, id, &how->warm));
	if (!how->warm && how->existing)
		return TERN_OK;
	if (!how->warm)
		bear(t, tn_head_of(t, id), id);
	enter(seg, hash, id);
	if (how->warm)
		atomic_fetch_add(&t->warmed_over, 1);
	TN_COUNT(t, rows, 1);
	tn_slot_count(t->slot_rows, hash, 1);
	*now = id;
	return TERN_OK;
}

tern_status tn_index_insert(tn_table *t, uint64_t key, uint64_t hash, uint32_t id, tn_insert *how,
			    uint32_t *now)
{
	tern_status st = TERN_OK;

	for (;;) {
		tn_segment *seg = lock_segment(t, hash);
		uint32_t bucket;
		unsigned place;

		if (locate(t, entry_of(seg), key, hash, &bucket, &place, now))
			st = TERN_OK;
		else if (seg->count >= full_at(seg->pages) && (st = grow(t, seg)) == TERN_OK) {
			pthread_mutex_unlock(&seg->lock);
			continue;
		} else if (seg->count < places(seg)) {
			/* It may be full and not have grown for want of memory: there is some room left. */
			st = insert(t, seg, hash, id, how, now);
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
	bool gone = locate(t, entry_of(seg), key, hash, &bucket, &place, &id);

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
			tn_slot_count(t->slot_rows, hash, -1u);
			shrink(t, seg);
		}
	} else if (tn_cold_any(t)) {
		bool erased = tn_cold_erase(t, key, hash, unless_after);

		pthread_mutex_unlock(&seg->lock);
		return erased;
	}
	pthread_mutex_unlock(&seg->lock);
	if (gone)
		tn_id_retire(t, id);
	return gone;
}

tern_status tn_index_evict(tn_table *t, uint64_t key, uint64_t hash, bool *gone)
{
	tn_segment *seg = lock_segment(t, hash);
	tern_status st = TERN_OK;
	uint32_t bucket, id = 0, version;
	unsigned place;

	*gone = locate(t, entry_of(seg), key, hash, &bucket, &place, &id);
	if (*gone) {
		tn_head *head = tn_head_of(t, id);

		*gone = tn_head_lock(head, &version);
		TN_ASSERT(*gone);
		st = tn_cold_out(t, id, head, hash, version);
		*gone = st == TERN_OK;
		if (*gone) {
			leave(seg, hash, bucket, place);
			TN_COUNT(t, rows, -1ull);
			tn_slot_count(t->slot_rows, hash, -1u);
			shrink(t, seg);
		}
	}
	pthread_mutex_unlock(&seg->lock);
	if (*gone)
		tn_id_retire(t, id);
	return st;
}

tern_status tn_index_cold_read(tn_table *t, uint64_t key, uint64_t hash, void *image, bool *there)
{
	tn_segment *seg = lock_segment(t, hash);
	tern_status st = TERN_OK;
	uint32_t bucket, id;
	unsigned place;

	*there = false;
	if (!locate(t, entry_of(seg), key, hash, &bucket, &place, &id))
		st = tn_cold_get(t, hash, image, there);
	pthread_mutex_unlock(&seg->lock);
	return st;
}

tern_status tn_index_remark(tn_table *t, uint64_t key, uint64_t hash, uint32_t marks)
{
	tn_segment *seg = lock_segment(t, hash);
	tern_status st = TERN_OK;
	uint32_t bucket, id, version;
	unsigned place;

	if (!locate(t, entry_of(seg), key, hash, &bucket, &place, &id))
		st = tn_cold_remark(t, hash, marks);
	else if (marks && tn_head_lock(tn_head_of(t, id), &version))
		tn_head_unlock(tn_head_of(t, id), version | marks);
	pthread_mutex_unlock(&seg->lock);
	return st;
}

uint32_t tn_index_keys(tn_table *t, uint64_t hash, uint64_t last, uint64_t *keys, uint64_t *end,
		       tn_cold_keys *cold)
{
	tn_segment *seg = lock_segment(t, hash);
	uint32_t n = 0;

	for (uint32_t b = 0; b < tn_segment_buckets(seg); b++) {
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
	if (cold && tn_cold_any(t))
		tn_cold_list(t, hash, TN_MIN(last, *end - 1), cold); /* end 0: up to the last one */
	pthread_mutex_unlock(&seg->lock);
	return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the index: pages from the table's allocator in chunks, segments of 4 to 7 pages in them, directories; and
 * what is out of the directory, until no reader looks at it.
 *
 *   free pages + pages of segments, in the directory and in limbo = pages of chunks
 *
 * A chunk without a segment goes back to the allocator, but of tables that are read from outside (table.h).
 *
 * Hashes are even, so all segments grow at about the same time: what one of four pages leaves is too small for those of
 * five that come. Where holes are more than a sixteenth of what is in use, segments of one chunk, which is packed, move
 * into holes of others: its own holes join, and are room for larger ones. A move is a copy: a segment of as many pages
 * has the same buckets.
 *
 * Must not know records. Threads: all under dir_lock. Tests: tests/unit/ps/model_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "mem/os_mem.h"
#include "ps/table_impl.h"

/* ---- pages ---- */

#define CHUNKS_WHOLE 1024u /* pages from which on chunks are huge pages */
#define CHUNKS_HUGE \
	16384u /* from which on they are so at once: what is not used of one is nothing to the others */

/* Pages up to `touched` take memory from now on. */
static void touch(tn_table *t, tn_chunk *chunk, uint32_t touched)
{
	uint64_t more = touched - chunk->touched;

	chunk->touched = touched;
	t->index_touched += more;
	TN_COUNT(t, index_bytes, more * TN_PAGE);
}

/* A huge page: look-ups in a large index would miss the TLB as well. Smaller ones while the index is small. */
static tn_chunk *new_chunk(tn_table *t)
{
	uint64_t pages = t->index_pages >= CHUNKS_WHOLE
				 ? TN_CHUNK_PAGES
				 : TN_MAX(t->index_pages / 8, t->lazy ? 32 : TN_PAGES_MAX);
	uint64_t bytes = pages * TN_PAGE;
	tn_chunk *chunk = malloc(sizeof(*chunk));

	if (!chunk)
		return NULL;
	*chunk = (tn_chunk){.next = t->chunks, .pages = (uint32_t)pages, .free = (uint32_t)pages};
	chunk->base =
		TN_FAULT("ps.table.segment")
			? NULL
			: t->memory.alloc(t->memory.arg, bytes, pages == TN_CHUNK_PAGES ? bytes : TN_PAGE);
	if (!chunk->base) {
		free(chunk);
		return NULL;
	}
	t->chunks = chunk;
	t->index_pages += pages;
	if (!t->lazy || t->index_pages >= CHUNKS_HUGE)
		touch(t, chunk, chunk->pages);
	if (t->lazy && t->index_pages >= CHUNKS_HUGE)
		tn_os_mem_private_huge(chunk->base, bytes);
	return chunk;
}

static void free_chunk(tn_table *t, tn_chunk *chunk)
{
	t->index_pages -= chunk->pages;
	t->index_touched -= chunk->touched;
	TN_COUNT(t, index_bytes, -(uint64_t)chunk->touched * TN_PAGE);
	if (t->packing == chunk)
		t->packing = NULL;
	t->memory.free(t->memory.arg, chunk->base, (uint64_t)chunk->pages * TN_PAGE);
	free(chunk);
}

static void mark(tn_table *t, tn_chunk *chunk, uint32_t first, uint32_t n, bool used)
{
	for (uint32_t i = first; i < first + n; i++) {
		TN_ASSERT((bool)(chunk->used[i / 64] >> (i & 63) & 1) != used);
		chunk->used[i / 64] ^= 1ull << (i & 63);
	}
	chunk->free = used ? chunk->free - n : chunk->free + n;
	t->index_used += used ? n : -(uint64_t)n;
	if (!used || first + n <= chunk->touched)
		return;
	touch(t, chunk, first + n);
	if (chunk->touched == TN_CHUNK_PAGES)
		tn_os_mem_private_filled(chunk->base, (uint64_t)TN_CHUNK_PAGES * TN_PAGE);
}

/* n free pages in a row, of the first `pages`. */
static uint8_t *pages_in(tn_table *t, tn_chunk *chunk, uint32_t n, uint32_t pages)
{
	uint32_t run = 0;

	for (uint32_t i = 0; chunk->free >= n && i < pages; i++) {
		run = chunk->used[i / 64] >> (i & 63) & 1 ? 0 : run + 1;
		if (run == n) {
			mark(t, chunk, i + 1 - n, n, true);
			return chunk->base + (uint64_t)(i + 1 - n) * TN_PAGE;
		}
	}
	return NULL;
}

/* In use already, and not in the chunk that is packed. */
static uint8_t *hole(tn_table *t, uint32_t n)
{
	uint8_t *at = NULL;

	for (tn_chunk *chunk = t->chunks; chunk && !at; chunk = chunk->next)
		if (chunk != t->packing)
			at = pages_in(t, chunk, n, chunk->touched);
	return at;
}

static uint8_t *take_pages(tn_table *t, uint32_t n)
{
	tn_chunk *chunk;
	uint8_t *at = hole(t, n);

	if (!at && t->packing)
		at = pages_in(t, t->packing, n, t->packing->pages);
	for (chunk = t->chunks; chunk && !at; chunk = chunk->next)
		at = pages_in(t, chunk, n, chunk->pages);
	if (at)
		return at;
	chunk = new_chunk(t);
	return chunk ? pages_in(t, chunk, n, chunk->pages) : NULL;
}

static void give_pages(tn_table *t, uint8_t *at, uint32_t n)
{
	for (tn_chunk **link = &t->chunks; *link; link = &(*link)->next) {
		tn_chunk *chunk = *link;

		if (at < chunk->base || at >= chunk->base + (uint64_t)chunk->pages * TN_PAGE)
			continue;
		mark(t, chunk, (uint32_t)((uint64_t)(at - chunk->base) / TN_PAGE), n, false);
		if (chunk->free == chunk->pages && !t->keep) {
			*link = chunk->next;
			free_chunk(t, chunk);
		}
		return;
	}
	TN_ASSERT(false);
}

/* ---- limbo ---- */

static uint64_t dir_bytes(const tn_dir *dir)
{
	return sizeof(tn_dir) + (sizeof(dir->at[0]) << dir->depth);
}

static void settle(tn_table *t)
{
	for (tn_segment **at = &t->limbo_segments; *at;) {
		tn_segment *seg = *at;

		if (!tn_epoch_passed(&t->epoch, seg->stamp)) {
			at = &seg->next;
			continue;
		}
		*at = seg->next;
		pthread_mutex_destroy(&seg->lock);
		give_pages(t, (uint8_t *)seg, seg->pages);
	}
	for (tn_dir **at = &t->limbo_dirs; *at;) {
		tn_dir *dir = *at;

		if (!tn_epoch_passed(&t->epoch, dir->stamp)) {
			at = &dir->next;
			continue;
		}
		*at = dir->next;
		TN_COUNT(t, index_bytes, -dir_bytes(dir));
		free(dir);
	}
}

void tn_segment_retire(tn_table *t, tn_segment *seg)
{
	seg->retired = true;
	seg->stamp = tn_epoch_stamp(&t->epoch);
	seg->next = t->limbo_segments;
	t->limbo_segments = seg;
	t->segments--;
}

void tn_dir_retire(tn_table *t, tn_dir *dir)
{
	dir->stamp = tn_epoch_stamp(&t->epoch);
	dir->next = t->limbo_dirs;
	t->limbo_dirs = dir;
}

/* ---- segments ---- */

static tn_segment *segment_at(tn_table *t, void *at, uint64_t first, uint8_t depth, uint32_t pages)
{
	tn_segment *seg = at;

	memset(seg, 0, (uint64_t)pages * TN_PAGE);
	pthread_mutex_init(&seg->lock, NULL);
	seg->first = first;
	seg->depth = depth;
	seg->pages = (uint8_t)pages;
	t->segments++;
	return seg;
}

tn_segment *tn_segment_new(tn_table *t, uint64_t first, uint8_t depth, uint32_t pages)
{
	uint8_t *at;

	settle(t);
	at = take_pages(t, pages);
	return at ? segment_at(t, at, first, depth, pages) : NULL;
}

void tn_segment_free(tn_table *t, tn_segment *seg)
{
	pthread_mutex_destroy(&seg->lock);
	t->segments--;
	give_pages(t, (uint8_t *)seg, seg->pages);
}

/* ---- packing ---- */

#define MOVES 4u /* for one that grew: a few times as many as it leaves holes */

static bool is_sparse(const tn_table *t)
{
	return t->index_touched - t->index_used > t->index_touched / 16 + TN_PAGES_MAX;
}

/* The chunk with the largest share of holes. */
static tn_chunk *emptiest(const tn_table *t)
{
	tn_chunk *best = NULL;
	uint64_t holes = 0;

	for (tn_chunk *chunk = t->chunks; chunk; chunk = chunk->next) {
		uint64_t n = chunk->touched - (chunk->pages - chunk->free);

		if (n && (!best || n * best->touched > holes * chunk->touched)) {
			best = chunk;
			holes = n;
		}
	}
	return best;
}

/* Not retired, not made just now: the directory says so. */
static bool is_live(const tn_table *t, const tn_segment *seg)
{
	return !seg->retired && tn_entry_segment(tn_dir_entry(atomic_load(&t->dir), seg->first)) == seg;
}

/* False: somebody has it, or there is no room for it elsewhere. */
static bool move_segment(tn_table *t, tn_segment *seg)
{
	tn_segment *to = NULL;

	if (!is_live(t, seg) || pthread_mutex_trylock(&seg->lock) != 0)
		return false;
	to = (tn_segment *)(void *)hole(t, seg->pages);
	if (to) {
		segment_at(t, to, seg->first, seg->depth, seg->pages);
		to->count = seg->count;
		memcpy(to->buckets, seg->buckets, tn_segment_buckets(seg) * sizeof(seg->buckets[0]));
		tn_index_publish(t, seg, to);
		tn_segment_retire(t, seg);
	}
	pthread_mutex_unlock(&seg->lock);
	return to != NULL;
}

void tn_segments_pack(tn_table *t)
{
	unsigned moved = 0;
	tn_chunk *chunk;

	if (t->keep || !is_sparse(t))
		return;
	if (!t->packing)
		t->packing = emptiest(t);
	chunk = t->packing;
	for (uint32_t i = 0; chunk && i < chunk->touched && moved < MOVES;) {
		tn_segment *seg = (tn_segment *)(void *)(chunk->base + (uint64_t)i * TN_PAGE);
		bool used = chunk->used[i / 64] >> (i & 63) & 1;

		i += used ? seg->pages : 1;
		moved += used && move_segment(t, seg);
	}
	if (moved == 0)
		t->packing = NULL; /* another one's turn */
}

void tn_segments_settle(tn_table *t)
{
	pthread_mutex_lock(&t->dir_lock);
	if (t->limbo_segments) {
		settle(t);
		tn_segments_pack(t);
		settle(t);
	}
	pthread_mutex_unlock(&t->dir_lock);
}

tn_dir *tn_dir_new(tn_table *t, uint32_t depth)
{
	uint64_t bytes = sizeof(tn_dir) + (sizeof(_Atomic uintptr_t) << depth);
	tn_dir *dir = TN_FAULT("ps.table.dir") ? NULL : malloc(bytes);

	settle(t);
	if (dir) {
		*dir = (tn_dir){.depth = depth};
		TN_COUNT(t, index_bytes, bytes);
	}
	return dir;
}

void tn_segments_fini(tn_table *t)
{
	while (t->limbo_dirs) {
		tn_dir *next = t->limbo_dirs->next;

		free(t->limbo_dirs);
		t->limbo_dirs = next;
	}
	while (t->chunks) {
		tn_chunk *next = t->chunks->next;

		free_chunk(t, t->chunks);
		t->chunks = next;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the index: pages from the table's allocator in chunks, segments of 4 to 7 pages in them, directories; and
 * what is out of the directory, until no reader looks at it.
 *
 *   free pages + pages of segments, in the directory and in limbo = pages of chunks
 *
 * A chunk without a segment goes back to the allocator, but of tables that are read from outside (table.h).
 *
 * Must not know records. Threads: all under dir_lock. Tests: tests/unit/ps/model_test.c.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_impl.h"

/* ---- pages ---- */

/* A huge page: look-ups in a large index would miss the TLB as well. Smaller ones while the index is small. */
static tn_chunk *new_chunk(tn_table *t)
{
	uint64_t pages = TN_MIN(TN_MAX(t->index_pages / 8, TN_PAGES_MAX), TN_CHUNK_PAGES);
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
	TN_COUNT(t, index_bytes, bytes);
	return chunk;
}

static void free_chunk(tn_table *t, tn_chunk *chunk)
{
	t->index_pages -= chunk->pages;
	TN_COUNT(t, index_bytes, -(uint64_t)chunk->pages * TN_PAGE);
	t->memory.free(t->memory.arg, chunk->base, (uint64_t)chunk->pages * TN_PAGE);
	free(chunk);
}

static void mark(tn_chunk *chunk, uint32_t first, uint32_t n, bool used)
{
	for (uint32_t i = first; i < first + n; i++) {
		TN_ASSERT((bool)(chunk->used[i / 64] >> (i & 63) & 1) != used);
		chunk->used[i / 64] ^= 1ull << (i & 63);
	}
	chunk->free = used ? chunk->free - n : chunk->free + n;
}

/* n free pages in a row. */
static uint8_t *pages_in(tn_chunk *chunk, uint32_t n)
{
	uint32_t run = 0;

	for (uint32_t i = 0; chunk->free >= n && i < chunk->pages; i++) {
		run = chunk->used[i / 64] >> (i & 63) & 1 ? 0 : run + 1;
		if (run == n) {
			mark(chunk, i + 1 - n, n, true);
			return chunk->base + (uint64_t)(i + 1 - n) * TN_PAGE;
		}
	}
	return NULL;
}

static uint8_t *take_pages(tn_table *t, uint32_t n)
{
	tn_chunk *chunk;

	for (chunk = t->chunks; chunk; chunk = chunk->next) {
		uint8_t *at = pages_in(chunk, n);

		if (at)
			return at;
	}
	chunk = new_chunk(t);
	return chunk ? pages_in(chunk, n) : NULL;
}

static void give_pages(tn_table *t, uint8_t *at, uint32_t n)
{
	for (tn_chunk **link = &t->chunks; *link; link = &(*link)->next) {
		tn_chunk *chunk = *link;

		if (at < chunk->base || at >= chunk->base + (uint64_t)chunk->pages * TN_PAGE)
			continue;
		mark(chunk, (uint32_t)((uint64_t)(at - chunk->base) / TN_PAGE), n, false);
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

tn_segment *tn_segment_new(tn_table *t, uint64_t first, uint8_t depth, uint32_t pages)
{
	tn_segment *seg;

	settle(t);
	seg = (tn_segment *)(void *)take_pages(t, pages);
	if (!seg)
		return NULL;
	memset(seg, 0, (uint64_t)pages * TN_PAGE);
	pthread_mutex_init(&seg->lock, NULL);
	seg->first = first;
	seg->depth = depth;
	seg->pages = (uint8_t)pages;
	t->segments++;
	return seg;
}

void tn_segment_free(tn_table *t, tn_segment *seg)
{
	pthread_mutex_destroy(&seg->lock);
	t->segments--;
	give_pages(t, (uint8_t *)seg, seg->pages);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the pool of staging chunks and the decision, for each one-sided request, whether its local memory can be
 * used as it is, is a registered region whose use is counted, or has to go through a chunk.
 *
 * Must not register memory of callers. Allocates a chunk at a time when one is first needed, up to the cap: a
 * context that never stages pays nothing. Threads: stage.h. Tests: tests/unit/channel/test_stage.c.
 */
#include "channel/stage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"
#include "channel/shell.h"

#define SMALL_BYTES (16ull << 10)
#define ALIGN       4096u

/* ---- the pool ---- */

void tn_stage_init(tn_stage *stage, tern_mem *mem, uint64_t stage_bytes, uint64_t piece_bytes, bool no_lock)
{
	tn_stage_class *small = &stage->classes[0], *large = &stage->classes[1];

	tn_lock_init(&stage->lock, no_lock);
	stage->mem = mem;
	large->bytes = TN_MIN(piece_bytes, stage_bytes / 2 / ALIGN * ALIGN);
	small->bytes = TN_MIN(SMALL_BYTES, large->bytes);
	small->most = (uint32_t)TN_MAX(stage_bytes / 8 / small->bytes, 1);
	large->most = (uint32_t)TN_MAX((stage_bytes - small->most * small->bytes) / large->bytes, 1);
}

void tn_stage_fini(tn_stage *stage)
{
	for (int i = 0; i < TN_STAGE_CLASSES; i++) {
		tn_stage_class *class = &stage->classes[i];
		tn_stage_chunk *chunk;

		while ((chunk = class->free) != NULL) {
			class->free = chunk->next;
			class->made--;
			tern_mem_free(stage->mem, chunk->memory);
			free(chunk);
		}
		TN_ASSERT(class->made == 0);
	}
}

/* Pool's lock held. */
static tern_status chunk_make(tn_stage *stage, uint32_t index, tn_stage_chunk **out)
{
	tn_stage_class *class = &stage->classes[index];
	tn_stage_chunk *chunk = TN_FAULT("channel.stage.chunk") ? NULL : malloc(sizeof(*chunk));
	void *memory = NULL;
	tern_status status;

	status = chunk ? tern_mem_alloc(stage->mem, class->bytes, ALIGN, TERN_ACCESS_NONE, TERN_MEM_HOST,
					&memory)
		       : tn_fail(TERN_E_NOMEM, "no memory for a staging chunk");
	if (status != TERN_OK) {
		free(chunk);
		/* With others in requests one comes back: fewer chunks are slower, not wrong. */
		return class->made > 0 ? TERN_AGAIN : status;
	}
	*chunk = (tn_stage_chunk){.memory = memory, .class = index};
	class->made++;
	*out = chunk;
	return TERN_OK;
}

static tern_status chunk_take(tn_stage *stage, uint64_t bytes, tn_stage_chunk **out)
{
	uint32_t index = bytes <= stage->classes[0].bytes ? 0 : 1;
	tn_stage_class *class = &stage->classes[index];
	tern_status status = TERN_OK;

	if (bytes > class->bytes)
		return tn_fail(TERN_E_TOO_LARGE,
			       "a piece of %" PRIu64 " bytes, staging takes %" PRIu64
			       ": raise TERN_CHANNEL_STAGE_BYTES",
			       bytes, class->bytes);
	tn_lock_take(&stage->lock);
	*out = class->free;
	if (*out)
		class->free = (*out)->next;
	else
		status = class->made < class->most ? chunk_make(stage, index, out) : TERN_AGAIN;
	tn_lock_drop(&stage->lock);
	return status;
}

static void chunk_give(tn_stage *stage, tn_stage_chunk *chunk)
{
	tn_stage_class *class = &stage->classes[chunk->class];

	tn_lock_take(&stage->lock);
	chunk->next = class->free;
	class->free = chunk;
	tn_lock_drop(&stage->lock);
}

/* ---- tags ---- */

/* A region's use or a chunk, in one word. Both are aligned. */
#define TAG_REGION 1ull

static uint64_t tag_of(tn_stage_chunk *chunk, tern_region *region)
{
	return chunk ? (uintptr_t)chunk : (uintptr_t)region | TAG_REGION;
}

static void tag_drop(tn_stage *stage, uint64_t tag)
{
	if (tag & TAG_REGION)
		tn_region_unuse((tern_region *)(uintptr_t)(tag & ~TAG_REGION));
	else
		chunk_give(stage, (tn_stage_chunk *)(uintptr_t)tag);
}

/* Room for every request that the link can have in flight, so that noting one never fails. */
static tern_status tags_ready(tern_link *link)
{
	tn_stage_tags *tags = &link->staged;

	if (TN_LIKELY(tags->ready))
		return TERN_OK;
	if (TN_FAULT("channel.stage.tags") ||
	    tn_map_init(&tags->map, tn_opt_u64(link->ctx->options, tn_link_option_rows, "wrs_max"), true,
			0) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for a link's staged requests");
	tags->ready = true;
	return TERN_OK;
}

void tn_stage_tags_fini(tn_stage_tags *tags)
{
	if (!tags->ready)
		return;
	TN_ASSERT(tags->map.count == 0);
	tn_map_fini(&tags->map);
	tags->ready = false;
}

/* ---- requests ---- */

/* What may go to the device as it is, a region's use included; else a chunk is needed. */
static bool direct(const tn_shell_lane *slane, const tn_wr *wr, bool read, tern_region **region)
{
	const tern_mem *mem = slane->link->ctx->mem;

	*region = NULL;
	if (wr->bytes == 0 || tn_mem_extent_of(mem, wr->local))
		return true;
	if (!read && wr->bytes <= slane->sdev->caps.inline_bytes)
		return true;
	*region = tn_region_use(mem, wr->local, wr->bytes);
	return *region != NULL;
}

static void count_staged(tern_link *link, uint64_t bytes)
{
	tn_count_own(&link->counters.staged, 1);
	tn_count_own(&link->counters.staged_bytes, bytes);
	tn_mem_count_staged(link->ctx->mem, 1);
}

/* The post is done, or will complete: note what it holds. */
static void hold(tern_link *link, const tn_wr *wr, uint64_t tag)
{
	if (wr->done) {
		tag_drop(&link->ctx->stage, tag);
		return;
	}
	/* Fixed, with room for all. */
	if (tn_map_put(&link->staged.map, wr->cookie, tag) != TERN_OK)
		TN_ASSERT_MSG(false, "more staged requests than requests");
}

static tern_status post_with(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr, uint64_t tag)
{
	tern_link *link = slane->link;
	tern_status status = tags_ready(link);

	if (status == TERN_OK)
		status = tn_shell_post_wr(slane, post->type, wr);
	if (status == TERN_OK)
		hold(link, wr, tag);
	else
		tag_drop(&link->ctx->stage, tag);
	return status;
}

static tern_status post_staged(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr)
{
	tern_link *link = slane->link;
	tn_stage_chunk *chunk = NULL;
	tern_status status = chunk_take(&link->ctx->stage, wr->bytes, &chunk);

	if (status != TERN_OK) {
		tn_count_own(&link->counters.stage_waits, status == TERN_AGAIN);
		return status;
	}
	chunk->read = post->type == TN_POST_READ;
	chunk->local = wr->local;
	chunk->bytes = wr->bytes;
	if (!chunk->read)
		memcpy(chunk->memory, wr->local, wr->bytes);
	wr->local = chunk->memory;
	status = post_with(slane, post, wr, tag_of(chunk, NULL));
	if (status == TERN_OK)
		count_staged(link, post->bytes);
	return status;
}

tern_status tn_stage_post(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr)
{
	tern_region *region;

	if (!direct(slane, wr, post->type == TN_POST_READ, &region))
		return post_staged(slane, post, wr);
	if (TN_UNLIKELY(region != NULL))
		return post_with(slane, post, wr, tag_of(NULL, region));
	return tn_shell_post_wr(slane, post->type, wr);
}

tern_status tn_stage_done(tern_link *link, uint64_t cookie, tern_status status)
{
	uint64_t tag;

	if (!tn_map_remove(&link->staged.map, cookie, &tag))
		return status;
	if (!(tag & TAG_REGION)) {
		const tn_stage_chunk *chunk = (const tn_stage_chunk *)(uintptr_t)tag;

		if (chunk->read && status == TERN_OK)
			memcpy(chunk->local, chunk->memory, chunk->bytes);
	}
	tag_drop(&link->ctx->stage, tag);
	return status;
}

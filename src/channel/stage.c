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
#include "mem/gpu.h"

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
#define TAG_FLUSH  2ull /* a NIC writes to GPU memory: kernels see it after a flush */

static uint64_t tag_of(tn_stage_chunk *chunk)
{
	return (uintptr_t)chunk;
}

static uint64_t tag_of_region(tern_region *region, bool read)
{
	return (uintptr_t)region | TAG_REGION | (read && tn_region_extent(region)->gpu ? TAG_FLUSH : 0);
}

static void tag_drop(tn_stage *stage, uint64_t tag)
{
	if (tag & TAG_REGION)
		tn_region_unuse((tern_region *)(uintptr_t)(tag & ~(TAG_REGION | TAG_FLUSH)));
	else
		chunk_give(stage, (tn_stage_chunk *)(uintptr_t)tag);
}

/* The request ended: what it read goes to its place. */
static tern_status tag_end(tn_stage *stage, uint64_t tag, tern_status status)
{
	if (status == TERN_OK && (tag & TAG_FLUSH)) {
		const tern_region *region = (const tern_region *)(uintptr_t)(tag & ~(TAG_REGION | TAG_FLUSH));

		/* A driver that has no such call needs none. */
		status = tern_gpu_flush(tn_region_extent(region)->base);
		status = status == TERN_E_UNSUPPORTED ? TERN_OK : status;
	} else if (status == TERN_OK && !(tag & TAG_REGION)) {
		const tn_stage_chunk *chunk = (const tn_stage_chunk *)(uintptr_t)tag;

		if (chunk->read && chunk->gpu)
			status = tn_gpu_copy_in(chunk->local, chunk->memory, chunk->bytes);
		else if (chunk->read)
			memcpy(chunk->local, chunk->memory, chunk->bytes);
	}
	tag_drop(stage, tag);
	return status;
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

/* Fixed, with room for all. */
static void tag_note(tern_link *link, uint64_t cookie, uint64_t tag)
{
	tern_status status = tn_map_put(&link->staged.map, cookie, tag);

	TN_ASSERT_MSG(status == TERN_OK, "more staged requests than requests");
}

/* ---- requests ---- */

typedef enum way { DIRECT, REGION, STAGED, STAGED_GPU } way;

static way way_of(const tn_shell_lane *slane, const void *ptr, uint64_t bytes, bool read,
		  tern_region **region)
{
	const tn_dev_caps *caps = &slane->sdev->caps;
	const tern_mem *mem = slane->link->ctx->mem;
	bool inlined = !read && bytes <= caps->inline_bytes;
	tern_region *known;
	bool gpu;

	if (bytes == 0 || tn_mem_extent_of(mem, ptr))
		return DIRECT;
	known = tn_region_use(mem, ptr, bytes);
	if (known) {
		gpu = tn_region_extent(known)->gpu;
		/* What is inlined is read by the CPU. */
		if (caps->needs_registered && !(gpu && inlined) &&
		    tn_mem_known_to_all(mem, tn_region_extent(known))) {
			*region = known;
			return REGION;
		}
		tn_region_unuse(known);
	} else {
		gpu = tn_gpu_owns(ptr);
	}
	if (gpu)
		return STAGED_GPU;
	return caps->needs_registered && !inlined ? STAGED : DIRECT;
}

static void count_staged(tern_link *link, uint64_t bytes)
{
	tn_count_own(&link->counters.staged, 1);
	tn_count_own(&link->counters.staged_bytes, bytes);
	tn_mem_count_staged(link->ctx->mem, 1);
}

static tern_status take(tern_link *link, uint64_t bytes, tn_stage_chunk **chunk)
{
	tern_status status = tags_ready(link);

	if (status == TERN_OK)
		status = chunk_take(&link->ctx->stage, bytes, chunk);
	tn_count_own(&link->counters.stage_waits, status == TERN_AGAIN);
	return status;
}

/* Post it; what it holds is noted, or dropped at once. */
static tern_status post_with(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr, uint64_t tag)
{
	tern_link *link = slane->link;
	tern_status status = tn_shell_post_wr(slane, post->type, wr);

	if (status != TERN_OK)
		tag_drop(&link->ctx->stage, tag);
	else if (wr->done)
		status = tag_end(&link->ctx->stage, tag, TERN_OK);
	else
		tag_note(link, wr->cookie, tag);
	return status;
}

static tern_status post_staged(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr, bool gpu)
{
	tern_link *link = slane->link;
	tn_stage_chunk *chunk = NULL;
	tern_status status;

	TN_TRY(take(link, wr->bytes, &chunk));
	chunk->read = post->type == TN_POST_READ;
	chunk->gpu = gpu;
	chunk->local = wr->local;
	chunk->bytes = wr->bytes;
	status = TERN_OK;
	if (!chunk->read && gpu)
		status = tn_gpu_copy_out(chunk->memory, wr->local, wr->bytes);
	else if (!chunk->read)
		memcpy(chunk->memory, wr->local, wr->bytes);
	if (status != TERN_OK) {
		chunk_give(&link->ctx->stage, chunk);
		return status;
	}
	wr->local = chunk->memory;
	status = post_with(slane, post, wr, tag_of(chunk));
	if (status == TERN_OK)
		count_staged(link, post->bytes);
	return status;
}

tern_status tn_stage_post(tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr)
{
	bool read = post->type == TN_POST_READ;
	tern_region *region = NULL;
	tern_status status;

	switch (way_of(slane, wr->local, wr->bytes, read, &region)) {
	case STAGED:
		return post_staged(slane, post, wr, false);
	case STAGED_GPU:
		return post_staged(slane, post, wr, true);
	case REGION:
		status = tags_ready(slane->link);
		if (status == TERN_OK)
			return post_with(slane, post, wr, tag_of_region(region, read));
		tn_region_unuse(region);
		return status;
	case DIRECT:
		break;
	}
	return tn_shell_post_wr(slane, post->type, wr);
}

tern_status tn_stage_done(tern_link *link, uint64_t cookie, tern_status status)
{
	uint64_t tag;

	if (!tn_map_remove(&link->staged.map, cookie, &tag))
		return status;
	return tag_end(&link->ctx->stage, tag, status);
}

/* ---- messages ---- */

static bool in_gpu(const tern_mem *mem, const tn_link_iov *piece)
{
	return piece->bytes > 0 && !tn_mem_extent_of(mem, piece->base) && tn_gpu_owns(piece->base);
}

static __attribute__((noinline)) tern_status copy_with_gpu(void *to, const void *from, uint64_t bytes,
							   const tern_mem *mem)
{
	if (!tn_mem_extent_of(mem, from) && tn_gpu_owns(from))
		return tn_gpu_copy_out(to, from, bytes);
	memcpy(to, from, bytes);
	return TERN_OK;
}

tern_status tn_stage_copy(void *to, const void *from, uint64_t bytes, void *arg)
{
	if (TN_UNLIKELY(tn_gpu_on()))
		return copy_with_gpu(to, from, bytes, arg);
	if (bytes == 8) /* a word needs no call */
		memcpy(to, from, 8);
	else
		memcpy(to, from, bytes);
	return TERN_OK;
}

/* The pieces behind the header, one after the other. */
static tern_status gather(const tern_mem *mem, const tn_link_post *post, tn_stage_chunk *chunk)
{
	uint8_t *at = chunk->memory;

	for (uint32_t i = 1; i < post->iov_count; i++) {
		const tn_link_iov *piece = &post->iov[i];

		if (in_gpu(mem, piece))
			TN_TRY(tn_gpu_copy_out(at, piece->base, piece->bytes));
		else if (piece->bytes > 0)
			memcpy(at, piece->base, piece->bytes);
		at += piece->bytes;
	}
	return TERN_OK;
}

tern_status tn_stage_send(tn_shell_lane *slane, const tn_link_post *post, bool *done)
{
	tern_link *link = slane->link;
	const tern_mem *mem = link->ctx->mem;
	tn_stage_chunk *chunk = NULL;
	uint64_t bytes = 0;
	bool gpu = false;
	tern_status status;
	tn_iov iov[2];

	for (uint32_t i = 1; i < post->iov_count; i++) {
		gpu = gpu || in_gpu(mem, &post->iov[i]);
		bytes += post->iov[i].bytes;
	}
	if (!gpu)
		return tn_lane_send(slane->lane, (const tn_iov *)post->iov, (int)post->iov_count,
				    post->cookie, done);
	TN_TRY(take(link, bytes, &chunk));
	chunk->read = false;
	iov[0] = (tn_iov){post->iov[0].base, post->iov[0].bytes};
	iov[1] = (tn_iov){chunk->memory, bytes};
	status = gather(mem, post, chunk);
	if (status == TERN_OK)
		status = tn_lane_send(slane->lane, iov, 2, post->cookie, done);
	if (status != TERN_OK || *done)
		chunk_give(&link->ctx->stage, chunk);
	else
		tag_note(link, post->cookie, tag_of(chunk));
	if (status == TERN_OK)
		count_staged(link, bytes);
	return status;
}

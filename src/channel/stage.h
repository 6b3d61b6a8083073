/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: how any pointer works on a device that takes registered memory alone.
 *
 *   chunk   a buffer of registered memory: a piece's bytes go through it
 *   class   chunks of one size: small ones for small pieces, large ones for pieces of link.chunk_bytes
 *   tag     what a posted request of a link holds: a chunk, or the use of a region that needs none
 *
 * GPU memory goes the same way on every device, but for NICs that reach it by themselves.
 *
 *   per class    made = free + in requests <= most
 *   both together at most option channel.stage_bytes; a link's pieces are cut so that each fits one chunk
 *
 * Puts are copied at the post, gets at the completion, before the machine hears of it, so pieces end in the
 * order that the lane completes them. When no chunk is free the post says TERN_AGAIN and the link tries again.
 *
 * Threads: posts and completions under the link's lock; the pool has a lock of its own inside it.
 * Tests: tests/unit/channel/test_stage.c.
 */
#ifndef TN_CHANNEL_STAGE_H
#define TN_CHANNEL_STAGE_H

#include "base/map.h"
#include "channel/lock.h"
#include "link/link.h"
#include "transport/transport.h"

#define TN_STAGE_CLASSES 2

typedef struct tn_stage_chunk {
	struct tn_stage_chunk *next; /* free ones */
	uint8_t *memory;
	uint32_t class;
	/* in a request */
	bool read, gpu;
	void *local;
	uint64_t bytes;
} tn_stage_chunk;

typedef struct tn_stage_class {
	uint64_t bytes; /* of a chunk */
	uint32_t made, most;
	tn_stage_chunk *free;
} tn_stage_class;

typedef struct tn_stage {
	tern_mem *mem;
	tn_lock lock; /* what follows */
	tn_stage_class classes[TN_STAGE_CLASSES];
} tn_stage;

/* A link's posted requests that hold something; zeroed at first. */
typedef struct tn_stage_tags {
	tn_map map; /* cookie -> tag */
	bool ready;
} tn_stage_tags;

/* piece_bytes: the longest piece that links cut. Allocates nothing. */
void tn_stage_init(tn_stage *stage, tern_mem *mem, uint64_t stage_bytes, uint64_t piece_bytes, bool no_lock);
/* All links are gone. */
void tn_stage_fini(tn_stage *stage);
/* The longest piece that fits a chunk. */
static inline uint64_t tn_stage_piece_max(const tn_stage *stage)
{
	return stage->classes[TN_STAGE_CLASSES - 1].bytes;
}

struct tern_link;
struct tn_shell_lane;
/* Lock held. A one-sided request of the machine, staged if it has to be; wr is what it asks for. */
tern_status tn_stage_post(struct tn_shell_lane *slane, const tn_link_post *post, tn_wr *wr);
/* Lock held. A frame of a message, whose pieces may lie in GPU memory. */
tern_status tn_stage_send(struct tn_shell_lane *slane, const tn_link_post *post, bool *done);
/* For the link: copy from memory of the program, which may lie in a GPU. arg: the pool. */
tern_status tn_stage_copy(void *to, const void *from, uint64_t bytes, void *arg);
/* Lock held. A request completed: what it held is given back, a get's bytes go to their place. */
tern_status tn_stage_done(struct tern_link *link, uint64_t cookie, tern_status status);
void tn_stage_tags_fini(tn_stage_tags *tags);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One post of the machine onto a device's lane, inline: a small put is posted from where it is submitted, without a
 * call in between. Everybody else calls tn_shell_post (shell.h).
 *
 * Threads: link->lock is held. Tests: tests/unit/channel/test_xfer.c, test_stage.c.
 */
#ifndef TN_CHANNEL_POST_H
#define TN_CHANNEL_POST_H

#include "base/fail.h"
#include "channel/shell.h"
#include "mem/gpu.h"

static TN_ALWAYS_INLINE tern_status tn_post_wr(tn_shell_lane *slane, tn_link_post_type type, tn_wr *wr)
{
	if (type == TN_POST_WRITE)
		return tn_lane_write(slane->lane, wr);
	if (type == TN_POST_WRITE_IMM)
		return tn_lane_write_imm(slane->lane, wr);
	return tn_lane_read(slane->lane, wr);
}

static TN_ALWAYS_INLINE tern_status tn_post_here(const tn_link_post *post, bool *done)
{
	tn_shell_lane *slane = post->lane_user;
	const tn_dev_caps *caps = &slane->sdev->caps;
	tn_wr wr;
	tern_status status;

	*done = false;
	if (post->type == TN_POST_SEND) {
		if (TN_UNLIKELY(tn_gpu_on()))
			return tn_stage_send(slane, post, done);
		return tn_lane_send(slane->lane, (const tn_iov *)post->iov, (int)post->iov_count,
				    post->cookie, done);
	}
	/* One by one: the key fills itself, and zeroing it first costs as much as the rest. */
	wr.cookie = post->cookie;
	wr.level = (tn_level)post->level;
	wr.local = post->local;
	wr.bytes = post->bytes;
	wr.offset = post->offset;
	wr.imm = post->imm;
	wr.signal = post->signal;
	wr.more = post->more;
	wr.whole = 0;
	wr.done = wr.last = false;
	if (!tn_key_decode(post->key, &wr.key))
		return tn_fail(TERN_E_INVALID, "this is not a key: its 64 bytes are malformed");
	/* What the device copies at the post may lie anywhere, but in a GPU. */
	if (TN_UNLIKELY(tn_gpu_on()) ||
	    (caps->needs_registered && (post->type == TN_POST_READ || post->bytes > caps->inline_bytes)))
		status = tn_stage_post(slane, post, &wr);
	else
		status = tn_post_wr(slane, post->type, &wr);
	*done = wr.done;
	return status;
}

#endif

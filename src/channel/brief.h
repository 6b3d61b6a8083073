/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over a device that has their bytes when its post returns (caps.send_done_bytes: shm): over at once. The machine gives
 * their header and counts them, and nothing is kept of them but the log's copy. Inline, for submit.c alone.
 *
 * Threads: any, under the link's lock. Tests: tests/unit/channel/test_messages.c.
 */
#ifndef TN_CHANNEL_BRIEF_H
#define TN_CHANNEL_BRIEF_H

#include "channel/channel_impl.h"
#include "mem/gpu.h"

/* May it be worth a try? Any thread, as a hint. */
static inline bool tn_brief_may(const tern_link *link, uint64_t bytes)
{
	return bytes < atomic_load_explicit(&link->brief_below, memory_order_relaxed) && !tn_gpu_on();
}

/* Lock held, the channel usable: true, it has left. False: nothing happened. */
static TN_ALWAYS_INLINE bool tn_brief_post(tern_channel *channel, const tern_iovec *iov, int count,
					   uint64_t bytes)
{
	tern_link *link = channel->link;
	tn_iov pieces[TN_LINK_IOV_MAX + 1];
	const tn_shell_lane *slane;
	tn_link_brief brief;
	bool done = false;

	if (TN_UNLIKELY(!tn_link_brief_send(link->m, channel->handle, bytes, &brief)))
		return false;
	slane = brief.lane_user;
	pieces[0] = (tn_iov){brief.header, sizeof(brief.header)};
	for (int i = 0; i < count; i++)
		pieces[1 + i] = (tn_iov){iov[i].base, iov[i].bytes};
	if (TN_UNLIKELY(bytes + sizeof(brief.header) > slane->sdev->caps.send_done_bytes ||
			tn_lane_send(slane->lane, pieces, 1 + count, 0, &done) != TERN_OK))
		return false;
	TN_ASSERT(done);
	tn_link_brief_sent(link->m, channel->handle, &brief, (const tn_link_iov *)(const void *)iov,
			   (uint32_t)count, bytes);
	tn_count_own(&link->counters.fast, 1);
	return true;
}

#endif

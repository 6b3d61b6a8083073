/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct accesses to a peer's memory: see direct.h. The machine is asked which lane a transfer of the channel would
 * take now, and is told that the device did not take it, so it knows nothing of the access; the lane is not drained
 * while one is under way, as with the copies of link_run.c.
 *
 * Threads: any; link->lock around begin and end, not between. Tests: tests/unit/channel/test_direct.c.
 */
#include "channel/direct.h"

#include "base/fail.h"
#include "channel/channel_impl.h"
#include "mem/gpu.h"

/* Lock held. The lane, or NULL with *status. */
static tn_shell_lane *find_lane(tern_channel *channel, const tn_link_xfer *xfer, tern_status *status)
{
	tern_link *link = channel->link;
	tn_link_op_params params = {.deadline_ns = TN_TIME_NEVER, .level = TN_LINK_REMOTE};
	tn_shell_lane *slane;
	tn_link_fast fast;
	uint64_t handle;

	*status = TERN_AGAIN;
	if (channel->closed || channel->ended || channel->unaccepted || link->gone || link->copying)
		return NULL;
	if (!link->copies || tn_gpu_on()) {
		*status = TERN_E_UNSUPPORTED;
		return NULL;
	}
	if (!tn_link_fast_xfer(link->m, channel->handle, xfer, &params, &fast))
		return NULL;
	slane = fast.post.lane_user;
	fast.host = true;
	(void)tn_link_fast_posted(link->m, &fast, TERN_AGAIN, false, &handle);
	if (slane->sdev->caps.copies)
		return slane;
	*status = TERN_E_UNSUPPORTED;
	return NULL;
}

tern_status tn_direct_begin(tern_channel *channel, const tern_key *key, uint64_t offset, uint64_t bytes,
			    bool read, tn_direct *direct)
{
	tern_link *link = channel->link;
	uint8_t none = 0;
	/* One byte is never bulk: the lane matters, not the machine's windows, which nothing here fills. */
	tn_link_xfer xfer = {
		.type = read ? TN_XFER_GET : TN_XFER_PUT, .local = &none, .bytes = 1, .key = key};
	tn_wr wr = {.local = &none, .bytes = bytes, .offset = offset};
	tn_shell_lane *slane;
	tern_status status;

	TN_ASSERT(bytes > 0);
	if (!tn_key_decode(key, &wr.key))
		return tn_fail(TERN_E_INVALID, "this is not a key: its 64 bytes are malformed");
	tn_lock_take(&link->lock);
	slane = find_lane(channel, &xfer, &status);
	if (slane) {
		direct->link = link;
		direct->lane = slane->lane;
		status = slane->lane->dev->ops->copy_begin(slane->lane, &wr, read, &direct->copy);
		link->copying = status == TERN_OK;
	}
	tn_lock_drop(&link->lock);
	if (status == TERN_OK)
		direct->at = read ? (uint8_t *)(uintptr_t)direct->copy.from : direct->copy.to;
	return status;
}

void tn_direct_end(tn_direct *direct)
{
	tern_link *link = direct->link;

	tn_lock_take(&link->lock);
	TN_ASSERT(link->copying);
	link->copying = false;
	direct->lane->dev->ops->copy_end(direct->lane, &direct->copy);
	tn_lock_drop(&link->lock);
}

bool tn_direct_can(tern_link *link)
{
	bool can;

	tn_lock_take(&link->lock);
	can = link->copies && !link->gone;
	tn_lock_drop(&link->lock);
	return can;
}

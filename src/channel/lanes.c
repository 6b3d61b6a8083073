/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of links on devices: creation, events, drain.
 *
 *   life: create -> connect -> (up) -> (down) -> close -> draining -> gone: destroyed, freed
 *
 * Everything here runs in the driver's thread. A lane object is freed only at the end of a round, so that
 * events of a batch that came before its close still find it.
 * Tests: tests/unit/channel.
 */
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/shell.h"

#define GRANT_MIN          8u /* what the machine needs to start with */
#define GRANT_PLENTY       64u
#define GRANT_MAX          1024u
#define DRAIN_PAUSE_MIN_NS (1 * TN_NS_PER_MS)
#define DRAIN_PAUSE_MAX_NS (100 * TN_NS_PER_MS)

/* ---- actions ---- */

static void blob_of(const uint8_t *bytes, uint16_t n, tn_blob *blob)
{
	blob->length = n <= TN_BLOB_MAX ? n : TN_BLOB_MAX;
	if (blob->length)
		memcpy(blob->bytes, bytes, blob->length);
}

/*
 * A lane's share of the device's receive slots: generous while there are plenty, little when many links
 * have come. Lane 0 carries the messages, the others need a slot for each notification only. Where each lane has
 * slots of its own (shm) it gets 1024: a sender that posts one message after the other then never waits for a grant,
 * although its receiver works off what is there in one go, sleeps, and is woken for the next. 256 carry half as many.
 */
static uint32_t grant_of(tn_shell_dev *sdev, const tn_link_action *act)
{
	uint32_t total = sdev->caps.recv_slots, left = tn_pool_left(&sdev->pool);
	uint32_t later = (act->lane.lanes - 1 - act->lane.index) * GRANT_MIN;
	uint32_t grant = left > total / 4 * 3 ? TN_MIN(TN_MAX(total / 256, GRANT_PLENTY), GRANT_MAX)
			 : left > total / 2   ? 32
			 : left > total / 8   ? 16
					      : GRANT_MIN;

	if (act->lane.index > 0)
		grant = grant / 4 < GRANT_MIN ? GRANT_MIN : grant / 4;
	grant = TN_MIN(grant, sdev->caps.lane_recv_slots);
	left -= TN_MIN(left, later);
	return grant <= left ? grant : left;
}

/* Data lanes take none of the last quarter: a link with one lane is better than one over a worse device. */
static bool has_room(tn_shell_dev *sdev, uint32_t lanes)
{
	uint32_t total = sdev->caps.recv_slots;

	return lanes < 2 || tn_pool_left(&sdev->pool) >= total / 4 + lanes * GRANT_MIN;
}

void tn_shell_reach(tern_link *link, const tn_link_action *act, uint64_t now_ns)
{
	tn_shell_dev *sdev = link->devs[act->lane.provider];
	tern_status status;
	tn_blob peer;

	blob_of(act->lane.peer_device, act->lane.peer_device_bytes, &peer);
	tn_detail_clear();
	if (act->lane.provider + 1 < link->dev_count && TN_FAULT("channel.reach"))
		status = tn_fail(TERN_E_UNREACHABLE, "fault point channel.reach");
	else if (!has_room(sdev, act->lane.lanes))
		status = tn_fail(TERN_E_LIMIT,
				 "the receive slots of %s that are left are for links' first lanes",
				 sdev->name);
	else
		status = sdev->dev->ops->reach(sdev->dev, &peer);
	tn_link_on_reach(link->m, act->lane.provider, status, status == TERN_OK ? "" : tn_detail_get(),
			 now_ns);
}

void tn_shell_lane_create(tern_link *link, const tn_link_action *act, uint64_t now_ns)
{
	tn_shell_dev *sdev = link->devs[act->lane.provider];
	tn_lane_params params = {.active = act->lane.active,
				 .bulk = act->lane.index > 0,
				 .connect_timeout_ns = act->lane.timeout_ns};
	tn_shell_lane *slane = calloc(1, sizeof(*slane));
	tn_blob addr = {0};
	tern_status status;

	if (!slane) {
		tn_link_on_lane_created(link->m, act->lane.lane, TERN_E_NOMEM, NULL, NULL, 0, 0, now_ns);
		return;
	}
	slane->link = link;
	slane->sdev = sdev;
	slane->handle = act->lane.lane;
	slane->grant = grant_of(sdev, act);
	memcpy(params.token, act->lane.token, sizeof(params.token));
	params.arg = slane;
	if (slane->grant < GRANT_MIN || !tn_pool_take(&sdev->pool, slane->grant))
		slane->grant = 0;
	if (slane->grant == 0)
		status = tn_fail(TERN_E_LIMIT,
				 "all %u receive slots of %s are granted to other links: raise its option "
				 "%s.recv_slots",
				 sdev->caps.recv_slots, sdev->name, sdev->name);
	else if (TN_FAULT("channel.lane.create"))
		status = tn_fail(TERN_E_NOMEM, "fault point channel.lane.create");
	else
		status = sdev->dev->ops->lane_create(sdev->dev, &params, &slane->lane, &addr);
	if (status != TERN_OK) {
		TN_LOG(INFO, CHANNEL, "lane on %s: %s", sdev->name, tn_detail_get());
		tn_pool_give(&sdev->pool, slane->grant);
		free(slane);
		tn_link_on_lane_created(link->m, act->lane.lane, status, NULL, NULL, 0, 0, now_ns);
		return;
	}
	sdev->lanes++;
	link->copies = sdev->caps.copies;
	link->brief_below = sdev->caps.send_done_bytes > TN_LINK_BRIEF_BYTES
				    ? sdev->caps.send_done_bytes - TN_LINK_BRIEF_BYTES + 1
				    : 0;
	tn_list_push_back(&link->lanes, &slane->node);
	tn_link_on_lane_created(link->m, act->lane.lane, TERN_OK, slane, addr.bytes, addr.length,
				slane->grant, now_ns);
}

void tn_shell_lane_connect(tern_link *link, const tn_link_action *act, uint64_t now_ns)
{
	tn_shell_lane *slane = act->lane.user;
	tn_blob peer_dev, peer_lane;
	tern_status status;

	blob_of(act->lane.peer_device, act->lane.peer_device_bytes, &peer_dev);
	blob_of(act->lane.peer_lane, act->lane.peer_lane_bytes, &peer_lane);
	status = slane->sdev->dev->ops->lane_connect(slane->lane, &peer_dev, &peer_lane);
	if (status != TERN_OK)
		tn_link_on_lane_down(link->m, slane->handle, status, tn_detail_get(), now_ns);
}

void tn_shell_lane_close(tern_link *link, const tn_link_action *act)
{
	tn_shell_lane *slane = act->lane.user;

	slane->grant += (uint32_t)act->lane.extra;
	slane->sdev->dev->ops->lane_close(slane->lane);
	tn_list_remove(&slane->node);
	tn_list_push_back(&link->ctx->draining, &slane->node);
	link->ctx->drain_pause_ns = 0;
}

/* ---- end of a round ---- */

static void lane_gone(tn_shell_lane *slane)
{
	tern_link *link = slane->link;
	uint64_t now = tn_ctx_now(link->ctx);

	slane->sdev->dev->ops->lane_destroy(slane->lane);
	TN_ASSERT(slane->sdev->lanes > 0);
	slane->sdev->lanes--;
	tn_pool_give(&slane->sdev->pool, slane->grant);
	tn_lock_take(&link->lock);
	tn_link_on_lane_gone(link->m, slane->handle, now);
	tn_shell_run(link, now);
	tn_lock_drop(&link->lock);
	free(slane);
}

void tn_shell_bury(tern_ctx *ctx, tn_conn *conn)
{
	tn_list_push_back(&ctx->buried, &conn->node);
}

void tn_shell_reap(tern_ctx *ctx)
{
	if (TN_UNLIKELY(!tn_list_empty(&ctx->draining))) {
		TN_LIST_FOREACH_SAFE(node, &ctx->draining) {
			tn_shell_lane *slane = TN_LIST_ENTRY(node, tn_shell_lane, node);

			if (!slane->sdev->dev->ops->lane_drained(slane->lane) && !TN_MUTANT(15))
				continue;
			tn_list_remove(node);
			lane_gone(slane);
			ctx->drain_pause_ns = 0;
		}
	}
	while (TN_UNLIKELY(!tn_list_empty(&ctx->buried))) {
		tn_conn *conn = TN_LIST_ENTRY(tn_list_pop_front(&ctx->buried), tn_conn, node);

		free(conn->tx);
		free(conn);
	}
}

uint64_t tn_shell_reap_wake(tern_ctx *ctx, uint64_t now_ns)
{
	if (TN_LIKELY(tn_list_empty(&ctx->draining)))
		return TN_TIME_NEVER;
	ctx->drain_pause_ns = ctx->drain_pause_ns ? TN_MIN(ctx->drain_pause_ns * 2, DRAIN_PAUSE_MAX_NS)
						  : DRAIN_PAUSE_MIN_NS;
	return now_ns + ctx->drain_pause_ns;
}

/* ---- events ---- */

void tn_shell_device_event(tn_shell_dev *sdev, const tn_event *ev)
{
	if (ev->type != TN_EV_DEVICE)
		return;
	if (ev->status != TERN_OK)
		TN_LOG(WARN, CHANNEL, "device %s: %s", sdev->name, tern_status_text(ev->status));
	/* Links to come go by what holds now. */
	tn_lock_take(&sdev->ctx->table_lock);
	sdev->dev->ops->address(sdev->dev, &sdev->address);
	tn_lock_drop(&sdev->ctx->table_lock);
}

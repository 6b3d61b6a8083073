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
 * have come. Lane 0 carries the messages, the others need a slot for each notification only.
 */
static uint32_t grant_of(const tn_shell_dev *sdev, const tn_link_action *act)
{
	uint32_t total = sdev->caps.recv_slots, left = total - sdev->granted;
	uint32_t later = (act->lane.lanes - 1 - act->lane.index) * GRANT_MIN;
	uint32_t grant = left > total / 4 * 3 ? 64
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
static bool has_room(const tn_shell_dev *sdev, uint32_t lanes)
{
	uint32_t total = sdev->caps.recv_slots;

	return lanes < 2 || total - sdev->granted >= total / 4 + lanes * GRANT_MIN;
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
	if (slane->grant < GRANT_MIN)
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
		free(slane);
		tn_link_on_lane_created(link->m, act->lane.lane, status, NULL, NULL, 0, 0, now_ns);
		return;
	}
	sdev->lanes++;
	sdev->granted += slane->grant;
	link->copies = sdev->caps.copies;
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
	TN_ASSERT(slane->sdev->lanes > 0 && slane->sdev->granted >= slane->grant);
	slane->sdev->lanes--;
	slane->sdev->granted -= slane->grant;
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

/* The clock, read for the first event of a batch that needs it: *now is 0 before that. */
static uint64_t time_of(tern_link *link, uint64_t *now)
{
	if (*now == 0)
		*now = tn_ctx_now(link->ctx);
	return *now;
}

/* Lock held. True: the machine may have more to say. */
static bool receive(tern_link *link, tn_shell_dev *sdev, const tn_event *ev, uint64_t *now)
{
	tn_shell_lane *slane = ev->lane_arg;
	bool plain = false;
	tn_link_rx rx;

	if (TN_MUTANT(19))
		sdev->dev->ops->recv_done(sdev->dev, ev);
	if (ev->type == TN_EV_RECV)
		tn_link_on_frame(link->m, slane->handle, ev->buf, ev->bytes, time_of(link, now), &rx);
	else if (!(plain = tn_link_fast_imm(link->m, slane->handle, ev->imm, ev->bytes, &rx)))
		tn_link_on_imm(link->m, slane->handle, ev->imm, ev->bytes, time_of(link, now), &rx);
	if (rx.type != TN_RX_NONE)
		tn_channel_deliver(link, &rx);
	if (ev->slot != TN_SLOT_NONE)
		sdev->dev->ops->recv_done(sdev->dev, ev);
	return tn_link_on_slot_free(link->m, slane->handle, 1) || !plain;
}

/* Lock held. True: the machine may have more to say. */
static bool handle(tern_link *link, tn_shell_dev *sdev, const tn_event *ev, uint64_t *now)
{
	tn_shell_lane *slane = ev->lane_arg;
	tern_status status;

	if (TN_FAULT("channel.lane.break") && !slane->down)
		sdev->dev->ops->lane_break(slane->lane); /* as if its path died: LANE_DOWN follows */
	switch (ev->type) {
	case TN_EV_DONE:
		status = ev->status;
		if (TN_UNLIKELY(link->staged.map.count > 0))
			status = tn_stage_done(link, ev->cookie, status);
		tn_link_on_wr_done(link->m, ev->cookie, status, time_of(link, now));
		break;
	case TN_EV_RECV:
	case TN_EV_IMM:
		return receive(link, sdev, ev, now);
	case TN_EV_LANE_UP:
		tn_link_on_lane_up(link->m, slane->handle, time_of(link, now));
		break;
	case TN_EV_LANE_DOWN:
		if (!slane->down)
			tn_link_on_lane_down(link->m, slane->handle, ev->status, tern_status_text(ev->status),
					     time_of(link, now));
		slane->down = true;
		break;
	default:
		break;
	}
	return true;
}

static void device_event(tn_shell_dev *sdev, const tn_event *ev)
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

static inline void leave(tern_link *link, bool more, uint64_t *now)
{
	if (more)
		tn_shell_settle(link, time_of(link, now));
	tn_lock_drop(&link->lock);
}

void tn_shell_events(tern_ctx *ctx, tn_shell_dev *sdev, const tn_event *events, int n)
{
	tern_link *link = NULL; /* whose lock is held: neighbours usually belong to one link */
	bool more = false;      /* its machine may have something to say */
	uint64_t now = 0;

	(void)ctx;
	tn_dispatch_depth++;
	for (int i = 0; i < n; i++) {
		const tn_event *ev = &events[i];
		tn_shell_lane *slane = ev->lane_arg;

		if (!ev->lane || !slane) {
			device_event(sdev, ev);
			continue;
		}
		if (link != slane->link) {
			if (link)
				leave(link, more, &now);
			link = slane->link;
			more = false;
			tn_lock_take(&link->lock);
		}
		more |= handle(link, sdev, ev, &now);
	}
	if (link)
		leave(link, more, &now);
	tn_dispatch_depth--;
}

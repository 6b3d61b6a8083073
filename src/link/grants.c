/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk that the receiver grants, so that many senders do not fill the network in front of it. Who gets how much is
 * the arbiter's (share.h); this is the link's part of it, on both sides. All totals are of one epoch.
 *
 *	sender                                      receiver
 *	                        <----------------   GRANT {share, total, unit}     first, and at each change
 *	standing in flight <= share: goes by itself
 *	DEMAND {wanted, done, back}  ----------->   the arbiter hands out
 *	                        <----------------   GRANT {share, total + n, unit}
 *	used + back <= total
 *
 *   A put's piece is standing or granted, and that until it completes; gets, messages and small pieces are neither.
 *   used   bytes begun under grants;  done  those completed, well or not;  back  granted and no longer needed
 *   used - done = bytes of granted wrs in flight
 *   What is granted is used at once, whatever its size; of the share a piece takes a unit or all that is left of its op.
 *   What is told as wanted covers what waits now, and is never less than what is granted.
 *
 * Threads: none but for the seat's. Tests: tests/unit/link/grants_test.c, pair_test.c.
 */
#include "link/internal.h"

#define ASK_OPS 32u /* queued ops that one DEMAND looks at */

/* ---- sender ---- */

static uint64_t unused(const tn_lk_grants *g)
{
	return g->total - g->used - g->back;
}

static void give_back(tn_link *link)
{
	tn_lk_grants *g = &link->grants;

	if (unused(g) == 0)
		return;
	tn_count_own(&link->counters.grant_bytes_back, unused(g));
	g->back = g->total - g->used;
	link->credit_due |= TN_DUE_DEMAND;
}

uint64_t tn_lk_grants_room(tn_link *link, uint64_t n)
{
	tn_lk_grants *g = &link->grants;
	uint64_t free = g->share > g->standing ? g->share - g->standing : 0;
	uint64_t least = TN_MIN(n, (uint64_t)g->unit), granted = TN_MIN(n, unused(g));

	if (granted > 0) {
		/* A crumb goes as what is small does: with it nobody waits for more while others wait for it. */
		if (!tn_lk_is_bulk(link, granted))
			give_back(link);
		return granted;
	}
	if (free >= least)
		return TN_MIN(n, free);
	tn_count_own(&link->counters.grant_waits, 1);
	/* What was asked for already does not cover it. */
	if (g->wanted < g->used + g->back + least)
		link->credit_due |= TN_DUE_DEMAND;
	return 0;
}

bool tn_lk_grants_fit(const tn_link *link, uint64_t bytes)
{
	const tn_lk_grants *g = &link->grants;

	return unused(g) >= bytes || (g->share > g->standing && g->share - g->standing >= bytes);
}

void tn_lk_grants_posted(tn_link *link, tn_lk_wr *wr)
{
	tn_lk_grants *g = &link->grants;

	wr->flow = unused(g) >= wr->bytes ? TN_FLOW_GRANTED : TN_FLOW_STANDING;
	if (wr->flow == TN_FLOW_GRANTED)
		g->used += wr->bytes;
	else
		g->standing += wr->bytes;
}

void tn_lk_grants_done(tn_link *link, tn_lk_wr *wr)
{
	tn_lk_grants *g = &link->grants;

	if (wr->flow == TN_FLOW_GRANTED) {
		g->done += wr->bytes;
		TN_ASSERT(g->done <= g->used);
		if (link->state == TN_LINK_UP)
			link->credit_due |= TN_DUE_DEMAND;
	} else if (wr->flow == TN_FLOW_STANDING) {
		TN_ASSERT(g->standing >= wr->bytes);
		g->standing -= wr->bytes;
	}
	wr->flow = TN_FLOW_NONE;
}

static bool is_put(const tn_lk_op *op)
{
	return op->kind == TN_OP_PUT || op->kind == TN_OP_PUT_NOTIFY || op->kind == TN_OP_PUT_FLAG;
}

/* Bytes of bulk that wait to be put: enough of them to ask for. */
static uint64_t backlog(const tn_link *link)
{
	uint64_t bytes = 0;
	uint32_t ops = 0;

	for (uint32_t i = 0; i < link->lane_count && ops < ASK_OPS; i++) {
		TN_LIST_FOREACH(node, &link->by_index[i]->ready[TN_CLASS_BULK]) {
			const tn_lk_chan *chan = TN_LIST_ENTRY(node, tn_lk_chan, xfer_node);

			TN_LIST_FOREACH(entry, &chan->xfers) {
				const tn_lk_op *op = TN_LIST_ENTRY(entry, tn_lk_op, node);

				if (ops++ == ASK_OPS)
					return bytes;
				if (is_put(op) && tn_lk_is_bulk(link, op->length))
					bytes += op->length - op->sent;
			}
			if (ops >= ASK_OPS)
				break;
		}
	}
	return bytes;
}

void tn_lk_grants_rest(tn_link *link)
{
	if (unused(&link->grants) > 0 && backlog(link) == 0)
		give_back(link);
}

bool tn_lk_build_demand(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_grants *g = &link->grants;
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_DEMAND, NULL, NULL, 0);
	tn_frame_demand *frame = (tn_frame_demand *)wr->header;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_DEMAND, 0);
	frame->wanted = TN_MAX(g->wanted, g->used + g->back + backlog(link));
	frame->done = g->done;
	frame->back = g->back;
	tn_lk_frame_post(link, lane, wr, sizeof(*frame), post);
	return true;
}

static const char *on_grant(tn_link *link, const tn_frame *frame)
{
	tn_lk_grants *g = &link->grants;

	if (!g->tx)
		return "GRANT that nobody waits for";
	if (frame->grant.total < g->total || frame->grant.total > g->wanted)
		return "GRANT falls or is more than was wanted";
	if (link->state != TN_LINK_UP)
		return NULL;
	g->share = frame->grant.share;
	g->total = frame->grant.total;
	g->unit = frame->grant.unit;
	tn_lk_grants_rest(link);
	return NULL;
}

/* ---- receiver ---- */

bool tn_lk_build_grant(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_grants *g = &link->grants;
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_GRANT, NULL, NULL, 0);
	tn_frame_grant *frame = (tn_frame_grant *)wr->header;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_GRANT, 0);
	tn_arbiter_read(g->arbiter, &g->seat, &frame->share, &frame->total);
	frame->unit = (uint32_t)g->arbiter->unit;
	frame->zero = 0;
	tn_lk_frame_post(link, lane, wr, sizeof(*frame), post);
	return true;
}

void tn_lk_grants_news(tn_link *link)
{
	if (link->grants.arbiter && atomic_load_explicit(&link->grants.seat.news, memory_order_acquire))
		link->credit_due |= TN_DUE_GRANT;
}

static const char *on_demand(tn_link *link, const tn_frame *frame)
{
	tn_lk_grants *g = &link->grants;

	if (!g->rx)
		return "DEMAND of what is not granted";
	if (frame->demand.done < g->peer_done || frame->demand.back < g->peer_back ||
	    frame->demand.back > UINT64_MAX - frame->demand.done)
		return "DEMAND falls";
	if (link->state != TN_LINK_UP)
		return NULL;
	g->peer_done = frame->demand.done;
	g->peer_back = frame->demand.back;
	if (!tn_arbiter_demand(g->arbiter, &g->seat, frame->demand.wanted, g->peer_done + g->peer_back))
		return "DEMAND falls, or more is done than was granted";
	tn_lk_grants_news(link);
	return NULL;
}

/* ---- both ---- */

const char *tn_lk_grants_frame(tn_link *link, const tn_frame *frame)
{
	return frame->head.type == TN_FRAME_GRANT ? on_grant(link, frame) : on_demand(link, frame);
}

void tn_lk_grants_sent(tn_link *link, const tn_lk_wr *wr)
{
	if (wr->kind == TN_WR_GRANT) {
		link->credit_due &= ~TN_DUE_GRANT;
		tn_count_own(&link->counters.grant_frames, 1);
	} else {
		link->credit_due &= ~TN_DUE_DEMAND;
		link->grants.wanted = ((const tn_frame_demand *)wr->header)->wanted;
		tn_count_own(&link->counters.demand_frames, 1);
	}
}

void tn_lk_grants_up(tn_link *link)
{
	tn_lk_grants *g = &link->grants;
	bool both = link->peer.features & TN_FEATURE_GRANTS;
	tn_arbiter_seat seat = {.wake = link->config->wake, .arg = link->budget_seat.arg};

	TN_ASSERT(!g->seat.joined && g->standing == 0 && g->used == g->done);
	*g = (tn_lk_grants){.seat = seat, .unit = TN_GRANT_UNIT_MIN};
	g->tx = both && (link->peer_setup->providers[link->peer_provider].caps & TN_LINK_CAP_GRANTS);
	g->rx = both && link->shared->providers[link->provider].arbiter;
	if (!g->rx)
		return;
	g->arbiter = link->shared->providers[link->provider].arbiter;
	tn_arbiter_join(g->arbiter, &g->seat);
	link->credit_due |= TN_DUE_GRANT;
}

void tn_lk_grants_down(tn_link *link)
{
	if (link->grants.arbiter)
		tn_arbiter_leave(link->grants.arbiter, &link->grants.seat);
	link->grants.arbiter = NULL;
	link->credit_due &= TN_DUE_LANES;
}

void tn_lk_grants_check(const tn_link *link)
{
	const tn_lk_grants *g = &link->grants;
	uint64_t standing = 0, granted = 0;

	for (uint32_t i = 0; i < link->wr_high; i++) {
		const tn_lk_wr *wr = &link->wrs[i];

		if (wr->kind == TN_WR_FREE || i == link->posting)
			continue;
		standing += wr->flow == TN_FLOW_STANDING ? wr->bytes : 0;
		granted += wr->flow == TN_FLOW_GRANTED ? wr->bytes : 0;
	}
	TN_ASSERT(standing == g->standing && granted == g->used - g->done);
	TN_ASSERT(g->used + g->back <= g->total && g->total <= g->wanted);
	TN_ASSERT(!g->seat.joined || (g->rx && g->arbiter && link->state == TN_LINK_UP));
	TN_ASSERT(!(link->credit_due & TN_DUE_DEMAND) || (g->tx && link->state == TN_LINK_UP));
	TN_ASSERT(!(link->credit_due & TN_DUE_GRANT) || g->seat.joined);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants of a link, as assertions: level 1 is O(1), level 2 recounts every table, list and ledger.
 * Tests call it after each step. Changes nothing. Threads: none. Tests: tests/unit/link/pair_test.c.
 */
#include "link/internal.h"

typedef struct recount {
	uint32_t wr_live, ops_live, chan_live, opened, xfer_ready, bulk_ready, lane_work, lanes_live, named;
	uint64_t in_flight, beside;
	uint32_t lane_wrs[TN_LANE_SLOTS], lane_frames[TN_LANE_SLOTS];
	uint32_t lane_ready[TN_LANE_SLOTS][TN_CLASSES];
} recount;

static bool at_work(const tn_lk_op *op)
{
	return op->state >= TN_LOP_QUEUED && op->state <= TN_LOP_STOPPED;
}

static void check_wrs(const tn_link *link, recount *n)
{
	for (uint32_t i = 0; i < link->wr_high; i++) {
		const tn_lk_wr *wr = &link->wrs[i];
		const tn_lk_lane *lane;

		if (wr->kind == TN_WR_FREE || i == link->posting)
			continue;
		lane = link->lanes[wr->lane];
		TN_ASSERT(lane->state == TN_LANE_UP || lane->state == TN_LANE_CLOSE ||
			  lane->state == TN_LANE_CLOSING);
		n->wr_live++;
		n->in_flight += tn_lk_wr_is_bulk(link, wr) ? wr->bytes : 0;
		n->beside += wr->beside ? wr->bytes : 0;
		n->lane_wrs[wr->lane]++;
		n->lane_frames[wr->lane] += wr->kind == TN_WR_DATA;
		TN_ASSERT(wr->op == TN_NONE || at_work(&link->ops[wr->op]));
		TN_ASSERT(wr->chan == TN_NONE || link->chans[wr->chan].state != TN_CHAN_FREE);
	}
	TN_ASSERT(n->wr_live == link->wr_live);
	TN_ASSERT(n->in_flight == link->in_flight && n->beside == link->beside);
}

/* One that is FREE has no handle any more. */
static uint32_t slot_of(const tn_link *link, const tn_lk_lane *lane)
{
	uint32_t slot = 0;

	while (slot < TN_LANE_SLOTS && link->lanes[slot] != lane)
		slot++;
	TN_ASSERT(slot < TN_LANE_SLOTS);
	return slot;
}

static void check_lane(const tn_link *link, const tn_lk_lane *lane, const recount *n)
{
	uint32_t slot = slot_of(link, lane);
	uint32_t last = lane->peer_seen;

	TN_ASSERT(lane->handle % TN_LANE_SLOTS == slot);
	TN_ASSERT(lane->wrs == n->lane_wrs[slot] && lane->frames == n->lane_frames[slot]);
	TN_ASSERT(lane->state == TN_LANE_UP || lane->state >= TN_LANE_CLOSE || lane->wrs == 0);
	if (lane->state != TN_LANE_UP)
		return;
	TN_ASSERT(tn_lk_credits(lane) <= lane->first + lane->extra); /* and so not negative */
	TN_ASSERT(lane->my_granted == lane->my_first + lane->freed);
	TN_ASSERT((int32_t)(lane->my_granted - lane->my_told) >= 0);
	TN_ASSERT(lane->received - lane->freed <= lane->my_first + lane->my_extra);
	TN_ASSERT((int32_t)(lane->tx_units - lane->peer_seen) >= 0);
	TN_ASSERT(lane->wrs <= link->lane_wrs_max || link->lane_wrs_max == 0);
	TN_LIST_FOREACH(node, &lane->acks) {
		const tn_lk_op *op = TN_LIST_ENTRY(node, tn_lk_op, ack_node);

		TN_ASSERT(op->state == TN_LOP_POSTED && op->need_ack && !op->acked);
		TN_ASSERT((int32_t)(op->ack_unit - last) > 0);
		last = op->ack_unit - 1; /* not falling */
	}
}

static void check_lanes(const tn_link *link, recount *n)
{
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++) {
		const tn_lk_lane *lane = link->lanes[i];

		if (!lane || lane->state == TN_LANE_FREE)
			continue;
		n->lanes_live++;
		n->lane_work += lane->state == TN_LANE_CREATE || lane->state == TN_LANE_CONNECT ||
				lane->state == TN_LANE_CLOSE;
		check_lane(link, lane, n);
	}
	TN_ASSERT(n->lanes_live == link->lanes_live && n->lane_work == link->lane_work);
}

static void check_op(const tn_link *link, const tn_lk_op *op)
{
	uint32_t wrs = 0;

	for (uint32_t i = 0; op->wrs && i < link->wr_high; i++)
		wrs += link->wrs[i].kind != TN_WR_FREE && i != link->posting &&
		       link->wrs[i].op == tn_lk_op_index(link, op);
	TN_ASSERT(wrs == op->wrs);
	TN_ASSERT(op->sent <= op->length);
	TN_ASSERT(op->state != TN_LOP_DONE || (op->wrs == 0 && tn_list_linked(&op->node)));
	TN_ASSERT(op->state != TN_LOP_STOPPED || op->wrs > 0);
	TN_ASSERT(op->state != TN_LOP_QUEUED || (op->sent == 0 && op->wrs == 0));
	TN_ASSERT((op->state == TN_LOP_QUEUED || op->state == TN_LOP_ACTIVE || op->state == TN_LOP_DONE) ==
		  tn_list_linked(&op->node));
	/* An op that nothing keeps must have ended. */
	TN_ASSERT(op->state != TN_LOP_POSTED || op->wrs > 0 || op->lost || op->redo ||
		  (op->need_ack && !op->acked));
}

static void check_ops(const tn_link *link, recount *n)
{
	for (uint32_t i = 0; i < link->op_high; i++) {
		const tn_lk_op *op = &link->ops[i];

		if (op->state == TN_LOP_FREE)
			continue;
		n->ops_live++;
		check_op(link, op);
	}
	TN_ASSERT(n->ops_live == link->op_live);
}

static void check_chan(const tn_link *link, const tn_lk_chan *chan)
{
	uint32_t index = tn_lk_chan_index(link, chan), ops = 0, wrs = 0, begun = 0;

	for (uint32_t i = 0; i < link->op_high; i++) {
		const tn_lk_op *op = &link->ops[i];

		if (op->chan != index || !at_work(op))
			continue;
		ops++;
		begun += op->kind != TN_OP_MESSAGE && op->lane != TN_NONE;
	}
	for (uint32_t i = 0; i < link->wr_high; i++)
		wrs += link->wrs[i].kind != TN_WR_FREE && i != link->posting && link->wrs[i].chan == index;
	TN_ASSERT(chan->ops == ops && chan->wrs == wrs && chan->xfers_out == begun);
	TN_ASSERT(chan->tx_sent <= chan->tx_window);
	TN_ASSERT(chan->rx_bytes <= chan->rx_window || chan->state == TN_CHAN_INCOMING);
	TN_ASSERT((chan->ctl != 0) == tn_list_linked(&chan->ctl_node));
	TN_ASSERT((chan->events != 0) == tn_list_linked(&chan->event_node));
	TN_ASSERT(!chan->peer_done || chan->close_received || chan->state == TN_CHAN_ENDED);
	TN_ASSERT(!tn_list_linked(&chan->msg_node) || link->state != TN_LINK_UP ||
		  chan->state == TN_CHAN_OPEN);
	TN_ASSERT(!tn_list_linked(&chan->xfer_node) || link->state != TN_LINK_UP ||
		  chan->state == TN_CHAN_OPEN);
}

/* Turns of one class in one list: nobody is ahead of the others by more than one. */
static void check_turns(const tn_link *link, const tn_lk_chan *chan, recount *n)
{
	uint32_t lane;

	TN_ASSERT(!tn_list_linked(&chan->msg_node) || chan->msg_turn > 0);
	if (!tn_list_linked(&chan->xfer_node))
		return;
	lane = slot_of(link, link->by_index[chan->ready_lane]);
	TN_ASSERT(chan->turn[chan->ready_class] > 0);
	n->xfer_ready++;
	n->bulk_ready += chan->ready_class == TN_CLASS_BULK;
	n->lane_ready[lane][chan->ready_class]++;
}

static void check_chans(const tn_link *link, recount *n)
{
	for (uint32_t i = 0; i < link->chan_high; i++) {
		const tn_lk_chan *chan = &link->chans[i];

		TN_ASSERT((chan->handle & 0xffff) == i && chan->handle >> 16);
		if (chan->state == TN_CHAN_FREE)
			continue;
		n->chan_live++;
		n->opened += chan->opener;
		n->named += chan->name != 0;
		check_turns(link, chan, n);
		check_chan(link, chan);
	}
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		for (uint32_t c = 0; c < TN_CLASSES; c++)
			TN_ASSERT((link->lanes[i] ? link->lanes[i]->ready_count[c] : 0) ==
				  n->lane_ready[i][c]);
	TN_ASSERT(n->chan_live == link->chan_live && n->opened == link->opened &&
		  n->xfer_ready == link->xfer_ready && n->bulk_ready == link->bulk_ready);
	for (uint32_t i = 0; i < link->name_high; i++)
		n->named -= link->names[i].refs;
	TN_ASSERT(n->named == 0);
}

void tn_link_check(const tn_link *link, int level)
{
	TN_ASSERT(link->state <= TN_LINK_DOWN);
	TN_ASSERT(link->wr_live <= link->config->wrs_max && link->op_live <= link->config->ops_max);
	TN_ASSERT(link->chan_live <= link->config->channels_max);
	TN_ASSERT(link->ctrl_out_bytes <= (link->ctrl_out ? TN_CTRL_OUT_BYTES : 0) &&
		  link->ctrl_in_bytes <= (link->ctrl_in ? TN_CTRL_IN_BYTES : 0));
	TN_ASSERT(link->ctrl_kept <= link->ctrl_again && link->ctrl_again <= link->ctrl_tx &&
		  link->ctrl_tx - link->ctrl_kept <= link->ctrl_log_bytes);
	TN_ASSERT(!link->settled || link->state >= TN_LINK_DRAINING);
	TN_ASSERT(link->state != TN_LINK_DOWN ||
		  (link->op_live == 0 && link->wr_live == 0 && link->lanes_live == 0));
	TN_ASSERT(link->window <= link->config->window_bytes &&
		  (!link->adaptive || link->window >= link->config->window_min_bytes));
	TN_ASSERT(link->budget_seat.queued == tn_list_linked(&link->budget_seat.node));
	TN_ASSERT(link->state == TN_LINK_UP || !link->budget_seat.queued);
	TN_ASSERT(link->quota_seat.joined == (link->quota != NULL));
	TN_ASSERT(!link->quota ||
		  (link->state == TN_LINK_UP && link->quota_seat.lanes == link->lane_count - 1));
	if (link->state == TN_LINK_UP)
		for (uint32_t i = 0; i < link->lane_count; i++)
			TN_ASSERT(tn_lk_credits(link->by_index[i]) <=
				  link->by_index[i]->first + link->by_index[i]->extra);
	if (level < 2)
		return;
	recount n = {0};

	check_wrs(link, &n);
	check_lanes(link, &n);
	check_ops(link, &n);
	check_chans(link, &n);
	if (link->resumes)
		tn_lk_journal_check(link);
	tn_lk_grants_check(link);
	tn_lk_slots_check(link);
	tn_timers_check(&link->timers);
}

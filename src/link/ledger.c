/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledgers of a link: rows of work requests, credits, bytes in flight, and what a post or a completion
 * does to the op and the channel behind it. The three ledgers (local send slots, completion room, the
 * peer's receive slots) move apart: a slot comes back with the wr's own completion, a credit only by the
 * peer's totals, whichever arrives first.
 *
 * Threads: none. Tests: tests/unit/link/op_test.c, pair_test.c.
 */
#include "link/internal.h"
#include "link/journal_rows.h"

/* ---- rows ---- */

tn_lk_wr *tn_lk_wr_peek(tn_link *link)
{
	uint32_t index = link->wr_free;
	tn_lk_wr *wr;

	TN_ASSERT(link->wr_live < link->wr_room);
	if (index != TN_NONE)
		return &link->wrs[index];
	wr = &link->wrs[link->wr_high];
	wr->generation = link->wr_generation == UINT32_MAX ? 1 : link->wr_generation + 1;
	wr->next_free = TN_NONE;
	return wr;
}

/* The peeked row becomes live. */
void tn_lk_wr_take(tn_link *link, tn_lk_wr *wr)
{
	uint32_t index = tn_lk_wr_index(link, wr);

	if (index == link->wr_high) {
		link->wr_high++;
		wr->flow = TN_FLOW_NONE;
		wr->posted_ns = 0;
	} else {
		TN_ASSERT(index == link->wr_free);
		link->wr_free = wr->next_free;
	}
	link->wr_live++;
}

void tn_lk_wr_release(tn_link *link, tn_lk_wr *wr)
{
	wr->kind = TN_WR_FREE;
	wr->generation = wr->generation == UINT32_MAX ? 1 : wr->generation + 1;
	wr->next_free = link->wr_free;
	link->wr_free = tn_lk_wr_index(link, wr);
	link->wr_live--;
}

static bool is_frame(tn_lk_wr_kind kind)
{
	return kind <= TN_WR_NOTIFY;
}

/* ---- credits ---- */

/* The peer was told these totals of a lane. */
static void told(tn_link *link, tn_lk_lane *lane, uint32_t grant, uint32_t seen)
{
	if ((int32_t)(grant - lane->my_told) > 0)
		lane->my_told = grant;
	if ((int32_t)(seen - lane->seen_told) > 0)
		lane->seen_told = seen;
	if (lane->seen_told == lane->rx_units)
		lane->ack_due = false;
	if (!lane->ack_due && lane->my_told == lane->my_granted)
		link->credit_due &= ~(1u << lane->index);
}

void tn_lk_consume(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_link_post *post, bool done)
{
	if (wr->kind == TN_WR_IMM) {
		tn_lk_consume_imm(link, lane, wr, post, done, false);
		return;
	}
	lane->tx_serial++;
	if (is_frame(wr->kind)) {
		TN_ASSERT(tn_lk_credits(lane) > 0);
		lane->consumed++;
		lane->tx_units++;
		told(link, lane, wr->told_grant, wr->told_seen);
		if (wr->kind != TN_WR_AGAIN)
			tn_lk_journal_add(link, lane, wr, post);
		tn_count_own(&link->counters.frames_tx, 1);
	} else if (wr->kind == TN_WR_READ) {
		tn_count_own(&link->counters.reads, 1);
	} else {
		tn_count_own(&link->counters.writes, 1);
	}
}

/* ---- what an accepted post means ---- */

static void await_ack(tn_lk_lane *lane, tn_lk_op *op)
{
	if (!op->need_ack)
		return;
	op->ack_unit = lane->tx_units;
	tn_list_push_back(&lane->acks, &op->ack_node);
}

/* All of the op is posted: it leaves its queue. */
static void all_posted(tn_link *link, tn_lk_lane *lane, tn_lk_op *op)
{
	tn_list_remove(&op->node);
	op->tail = false;
	tn_lk_op_set_state(link, op, TN_LOP_POSTED);
	await_ack(lane, op);
}

void tn_lk_notify_sent(tn_lk_lane *lane, tn_lk_chan *chan)
{
	chan->notifies_tx++;
	chan->notify_lane = (uint8_t)lane->index;
	chan->notify_slot = lane->consumed;
}

void tn_lk_silent_sent(tn_lk_lane *lane, tn_lk_chan *chan)
{
	chan->silent_lane = (uint8_t)lane->index;
	chan->silent_serial = lane->tx_serial;
	chan->silent_slot = lane->consumed;
}

void tn_lk_xfer_begin(tn_link *link, tn_lk_chan *chan, tn_lk_op *op, tn_lk_lane *lane)
{
	if (op->lane != TN_NONE)
		return;
	op->lane = tn_lk_lane_slot(link, lane);
	if (tn_lk_placed(link, op->placed) == TN_PLACED_NO)
		chan->lane = (uint8_t)lane->index;
	chan->xfers_out++;
	tn_lk_op_set_state(link, op, TN_LOP_ACTIVE);
}

void tn_lk_xfer_to_tails(tn_link *link, tn_lk_chan *chan, tn_lk_op *op)
{
	(void)link;
	tn_list_remove(&op->node);
	tn_list_push_back(&chan->tails, &op->node);
	op->tail = true;
}

static bool wants_tail(const tn_lk_op *op)
{
	return op->kind == TN_OP_PUT_NOTIFY || op->kind == TN_OP_PUT_FLAG ||
	       (op->kind == TN_OP_PUT && op->need_ack);
}

static void commit_message(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_lk_op *op, tn_lk_wr *wr)
{
	lane->frames++;
	chan->tx_sent += TN_MUTANT(23) ? 0 : wr->bytes + TN_FRAME_COST;
	op->sent += wr->bytes;
	op->lane = wr->lane;
	if (wr->last) {
		chan->tx_seq++;
		tn_count_own(&link->counters.messages_tx, 1);
		all_posted(link, lane, op);
	} else if (op->state == TN_LOP_QUEUED) {
		tn_lk_op_set_state(link, op, TN_LOP_ACTIVE);
	}
	tn_lk_turn_message(link, chan, wr->bytes);
}

static void commit_xfer(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_lk_op *op, tn_lk_wr *wr,
			bool done)
{
	tn_lk_xfer_begin(link, chan, op, lane);
	/* One that was done at its post may take effect after its op was stopped. */
	if (!link->remote_done && (done || !op->need_ack) &&
	    (wr->kind == TN_WR_WRITE || wr->kind == TN_WR_FLAG))
		tn_lk_silent_sent(lane, chan);
	switch (wr->kind) {
	case TN_WR_IMM:
		if (tn_lk_placed(link, op->placed) == TN_PLACED_NO)
			tn_lk_notify_sent(lane, chan);
		else
			chan->notifies_tx++;
		op->sent += wr->bytes;
		all_posted(link, lane, op);
		break;
	case TN_WR_NOTIFY:
		if (op->kind == TN_OP_PUT_NOTIFY)
			tn_lk_notify_sent(lane, chan);
		all_posted(link, lane, op);
		break;
	case TN_WR_FLAG:
		/* Where the device says nothing of the remote level, a SYNC follows if that was asked for. */
		op->flag_posted = true;
		if (!op->need_ack)
			all_posted(link, lane, op);
		break;
	default:
		op->sent += wr->bytes;
		if (wr->last && wants_tail(op))
			tn_lk_xfer_to_tails(link, chan, op);
		else if (wr->last)
			all_posted(link, lane, op);
		break;
	}
	tn_lk_turn_xfer(link, lane, chan, wr->bytes);
}

static void commit_ctl(tn_link *link, tn_lk_chan *chan, tn_lk_wr *wr)
{
	if (!chan) {
		link->fail_head = (link->fail_head + 1) % link->config->channels_max;
		link->fail_count--;
		return;
	}
	chan->ctl &= (uint8_t)~wr->bit;
	if (chan->ctl == 0)
		tn_list_remove(&chan->ctl_node);
	if (wr->bit == TN_CTL_OPEN)
		chan->open_sent = true;
	if (wr->bit == TN_CTL_CLOSE)
		chan->close_sent = true;
	if (wr->bit == TN_CTL_WINDOW) {
		chan->rx_window = ((const tn_frame_window *)wr->header)->total;
		tn_count_own(&link->counters.window_frames, 1);
	}
}

static void commit_credit(tn_link *link, tn_lk_wr *wr)
{
	const tn_frame_lanes *lanes = (const tn_frame_lanes *)wr->header;

	for (uint32_t i = 0; i < lanes->count; i++)
		told(link, link->by_index[lanes->rows[i].lane], lanes->rows[i].grant, lanes->rows[i].seen);
	tn_count_own(&link->counters.credit_frames, 1);
}

void tn_lk_commit(tn_link *link, tn_lk_wr *wr, const tn_link_post *post, bool done)
{
	tn_lk_lane *lane = link->lanes[wr->lane];
	tn_lk_chan *chan = wr->chan == TN_NONE ? NULL : &link->chans[wr->chan];
	tn_lk_op *op = wr->op == TN_NONE ? NULL : &link->ops[wr->op];

	tn_lk_wr_take(link, wr);
	tn_lk_consume(link, lane, wr, post, done);
	wr->serial = lane->tx_serial;
	lane->wrs++;
	if (tn_lk_wr_is_bulk(link, wr))
		tn_lk_bulk_posted(link, wr);
	link->beside += wr->beside ? wr->bytes : 0;
	if (chan)
		chan->wrs++;
	if (op) {
		op->wrs++;
		op->silent |= done && !link->remote_done && wr->kind != TN_WR_READ;
	}
	switch (wr->kind) {
	case TN_WR_CTL:
		commit_ctl(link, chan, wr);
		break;
	case TN_WR_CREDIT:
		commit_credit(link, wr);
		break;
	case TN_WR_GRANT:
	case TN_WR_DEMAND:
		tn_lk_grants_sent(link, wr);
		break;
	case TN_WR_SLOTS:
	case TN_WR_BACK:
		tn_lk_slots_sent(link, wr);
		break;
	case TN_WR_BYE:
		link->bye_sent = true;
		break;
	case TN_WR_QUIET:
		lane->quiet_sent = true;
		lane->quiet_unit = lane->tx_units;
		break;
	case TN_WR_ABORT:
		chan->abort_due = false;
		chan->tx_seq += !TN_MUTANT(6);
		break;
	case TN_WR_AGAIN:
	case TN_WR_REDO:
		tn_lk_journal_sent(link, lane, wr);
		break;
	case TN_WR_DATA:
		commit_message(link, lane, chan, op, wr);
		break;
	default:
		commit_xfer(link, lane, chan, op, wr, done);
		break;
	}
	if (chan)
		tn_lk_chan_update(link, chan);
}

/* ---- what a completion means ---- */

static bool is_lane_loss(const tn_lk_wr *wr, tern_status status)
{
	tern_radius radius = tern_status_radius(status);

	return status == TERN_E_FLUSHED || radius == TERN_RADIUS_PATH || radius == TERN_RADIUS_PEER ||
	       is_frame(wr->kind);
}

static void wr_failed(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, tn_lk_op *op, tern_status status,
		      uint64_t now_ns)
{
	if (!is_lane_loss(wr, status)) {
		/* The target refused it: no immediate came, so its slot and its count are still there. */
		if (wr->kind == TN_WR_IMM) {
			lane->consumed--;
			if (lane->index == 0)
				tn_lk_slots_yield(link);
			tn_lk_journal_refused(link, lane, wr);
			link->chans[wr->chan].notifies_tx--;
		}
		if (wr->kind == TN_WR_REDO)
			tn_lk_journal_write_refused(link, wr);
		if (op) {
			op->failed = true;
			tn_lk_op_stop(link, op, status);
		}
		return;
	}
	if (op)
		op->lost = true;
	if (lane->state == TN_LANE_UP)
		tn_lk_lane_failed(link, lane, status, "", now_ns);
}

void tn_lk_wr_complete(tn_link *link, tn_lk_wr *wr, tern_status status, uint64_t now_ns)
{
	tn_lk_lane *lane = link->lanes[wr->lane];
	tn_lk_chan *chan = wr->chan == TN_NONE ? NULL : &link->chans[wr->chan];
	tn_lk_op *op = wr->op == TN_NONE ? NULL : &link->ops[wr->op];
	uint32_t handle = chan ? chan->handle : 0;

	TN_ASSERT(lane->wrs > 0);
	lane->wrs--;
	lane->stalled = false;
	if (tn_lk_wr_is_bulk(link, wr))
		tn_lk_bulk_done(link, wr, status, now_ns);
	link->beside -= wr->beside ? wr->bytes : 0;
	if (wr->kind == TN_WR_DATA) {
		tn_lk_journal_late(link, wr);
		lane->frames--;
	}
	if (wr->kind == TN_WR_REDO)
		link->redo_wrs--;
	if (chan)
		chan->wrs--;
	if (op)
		op->wrs--;
	if (TN_UNLIKELY(status != TERN_OK))
		wr_failed(link, lane, wr, op, status, now_ns);
	tn_lk_wr_release(link, wr);
	/* DONE already: stopped with its last wr just now. */
	if (op && op->state != TN_LOP_DONE)
		tn_lk_op_settle(link, op);
	if (chan && chan->handle == handle && chan->state != TN_CHAN_FREE) {
		tn_lk_chan_update(link, chan);
		tn_lk_chan_advance(link, chan);
	}
}

void tn_link_on_wr_done(tn_link *link, uint64_t cookie, tern_status status, uint64_t now_ns)
{
	uint32_t index = (uint32_t)cookie;
	tn_lk_wr *wr = index < link->wr_high ? &link->wrs[index] : NULL;
	tn_lk_lane *lane;

	if (!wr || wr->kind == TN_WR_FREE || wr->generation != cookie >> 32 || index == link->posting) {
		tn_count_own(&link->counters.stale, 1);
		return;
	}
	lane = link->lanes[wr->lane];
	if (status == TERN_OK && (int32_t)(wr->serial - lane->tx_arrived) > 0)
		lane->tx_arrived = wr->serial;
	tn_lk_wr_complete(link, wr, status, now_ns);
	tn_lk_closing_step(link, now_ns);
}

/* ---- the answer to a post ---- */

static void refused(tn_link *link, tn_lk_wr *wr, tern_status status, uint64_t now_ns)
{
	tn_lk_lane *lane = link->lanes[wr->lane];
	tn_lk_op *op = wr->op == TN_NONE ? NULL : &link->ops[wr->op];

	if (status == TERN_AGAIN) {
		lane->stalled = true;
		tn_count_own(&link->counters.again, 1);
		tn_lk_arm(link, TN_TIMER_RETRY, now_ns + link->config->retry_ns);
		return;
	}
	/* A message's buffers may be what the device refuses; the link's own frames are not to blame. */
	if (op && tern_status_radius(status) != TERN_RADIUS_PATH &&
	    tern_status_radius(status) != TERN_RADIUS_PEER) {
		op->failed = true;
		tn_lk_op_stop(link, op, status);
		return;
	}
	tn_lk_lane_failed(link, lane, status, tn_detail_get(), now_ns);
}

void tn_link_posted(tn_link *link, const tn_link_post *post, tern_status status, bool done, uint64_t now_ns)
{
	tn_lk_wr *wr = &link->wrs[(uint32_t)post->cookie];

	TN_ASSERT(link->posting == (uint32_t)post->cookie);
	link->posting = TN_NONE;
	if (status != TERN_OK) {
		wr->kind = TN_WR_FREE;
		refused(link, wr, status, now_ns);
		return;
	}
	tn_lk_commit(link, wr, post, done);
	if (tn_lk_wr_is_bulk(link, wr))
		wr->posted_ns = now_ns;
	if (done) {
		tn_lk_wr_complete(link, wr, TERN_OK, now_ns);
		tn_lk_closing_step(link, now_ns);
	}
}

/* ---- pieces that the shell moves without its lock ---- */

void tn_link_posted_outside(tn_link *link, const tn_link_post *post, uint64_t now_ns)
{
	tn_lk_wr *wr = &link->wrs[(uint32_t)post->cookie];

	TN_ASSERT(link->outside == 0 && wr->chan != TN_NONE);
	link->outside = wr->chan + 1; /* before the channel's next piece gets into a list */
	tn_link_posted(link, post, TERN_OK, false, now_ns);
}

void tn_link_outside_done(tn_link *link, uint64_t cookie, tern_status status, uint64_t now_ns)
{
	tn_lk_chan *chan = &link->chans[link->outside - 1];

	TN_ASSERT(link->outside != 0 && link->wrs[(uint32_t)cookie].chan == link->outside - 1);
	link->outside = 0;
	tn_link_on_wr_done(link, cookie, status, now_ns);
	if (chan->state != TN_CHAN_FREE)
		tn_lk_chan_update(link, chan);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arrives on lanes: frames and immediates, the peer's totals, and what the shell gives back. A peer
 * that breaks a rule ends its own session (TERN_E_PROTOCOL) and nothing else.
 *
 * Threads: none. Tests: tests/unit/link/rx_test.c, pair_test.c, fuzz/link_pair.c.
 */
#include "link/internal.h"

/* ---- totals ---- */

void tn_lk_acked(tn_link *link, tn_lk_lane *lane)
{
	tn_list *node;

	while ((node = tn_list_first(&lane->acks))) {
		tn_lk_op *op = TN_LIST_ENTRY(node, tn_lk_op, ack_node);

		if ((int32_t)(op->ack_unit - lane->peer_seen) > 0)
			return;
		tn_list_remove(node);
		op->acked = true;
		tn_lk_op_settle(link, op);
	}
}

const char *tn_lk_credit_update(tn_link *link, tn_lk_lane *lane, uint32_t grant, uint32_t seen)
{
	bool prune = false;

	/* Totals of one lane travel on two lanes and may overtake each other: the larger one holds. */
	if ((int32_t)(grant - lane->granted) > 0) {
		if ((int32_t)(grant - lane->consumed) > (int32_t)lane->first)
			return "more credits than the lane has slots";
		lane->granted = grant;
		prune = true;
		if (lane->index == 0)
			tn_lk_slots_yield(link);
	}
	if ((int32_t)(seen - lane->peer_seen) > 0) {
		if ((int32_t)(seen - lane->tx_units) > 0)
			return "acknowledgement of what was not sent";
		lane->peer_seen = seen;
		prune = true;
		tn_lk_acked(link, lane);
	}
	if (prune)
		tn_lk_journal_prune(link, lane);
	return NULL;
}

TN_ALWAYS_INLINE bool tn_link_on_slot_free(tn_link *link, uint32_t handle, uint32_t n)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);

	if (!lane || lane->state != TN_LANE_UP)
		return true;
	if (TN_UNLIKELY(lane->twice))
		n = tn_lk_slots_of_units(lane, n);
	TN_ASSERT(n <= lane->received - lane->freed);
	n = TN_MIN(n, lane->received - lane->freed);
	lane->freed += n;
	lane->my_granted += TN_MUTANT(1) ? 2 * n : n;
	if (lane->my_granted - lane->my_told >= (lane->my_first + lane->my_extra) / 2)
		link->credit_due |= 1u << lane->index;
	return link->credit_due != 0;
}

static void owe_ack(tn_link *link, tn_lk_lane *lane, uint64_t now_ns)
{
	lane->ack_due = true;
	if (link->config->ack_delay_ns == 0)
		link->credit_due |= 1u << lane->index;
	else if (!tn_lk_armed(link, TN_TIMER_ACK))
		tn_lk_arm(link, TN_TIMER_ACK, now_ns + link->config->ack_delay_ns);
}

void tn_lk_ack_timeout(tn_link *link)
{
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->by_index[i]->ack_due)
			link->credit_due |= 1u << i;
}

/* ---- messages ---- */

/* Order, bounds and window of a fragment; moves the channel's receiving side. */
static const char *take_fragment(tn_link *link, tn_lk_chan *chan, const tn_frame *frame)
{
	uint64_t cost = frame->payload_bytes + TN_FRAME_COST;

	if (frame->data.seq != chan->rx_seq)
		return "a message out of order";
	if (frame->data.total > chan->message_max)
		return "a message longer than the channel takes";
	if (frame->data.offset != (chan->rx_partial ? chan->rx_offset : 0) ||
	    (chan->rx_partial && frame->data.total != chan->rx_total))
		return "a fragment out of order";
	if (cost > chan->rx_window - chan->rx_bytes)
		return "more bytes than the channel's window";
	chan->rx_bytes += cost;
	chan->rx_total = frame->data.total;
	chan->rx_offset = frame->data.offset + frame->payload_bytes;
	chan->rx_partial = chan->rx_offset < chan->rx_total;
	if (!chan->rx_partial) {
		chan->rx_seq++;
		tn_count_own(&link->counters.messages_rx, 1);
	}
	return NULL;
}

static bool receives(const tn_lk_chan *chan)
{
	return chan && (chan->state == TN_CHAN_OPEN || chan->state == TN_CHAN_CLOSING) &&
	       !chan->close_received;
}

static const char *on_data(tn_link *link, const tn_frame *frame, tn_link_rx *rx)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);
	const char *wrong;

	if (!receives(chan))
		return "a message for a channel that is not open";
	if (!link->sums && frame->data.sum != 0)
		return "reserved field is not zero";
	wrong = take_fragment(link, chan, frame);
	if (wrong)
		return wrong;
	tn_lk_chan_window(link, chan);
	if (chan->released || chan->spoilt || link->close_local) {
		tn_count_own(&link->counters.dropped, 1);
		return NULL;
	}
	rx->type = TN_RX_MESSAGE;
	rx->channel = chan->handle;
	rx->user = chan->user;
	rx->data = frame->payload;
	rx->bytes = frame->payload_bytes;
	rx->offset = frame->data.offset;
	rx->total = frame->data.total;
	rx->first = frame->data.offset == 0;
	rx->last = !chan->rx_partial;
	return NULL;
}

static const char *on_abort(tn_link *link, const tn_frame *frame, tn_link_rx *rx)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, frame->channel);

	if (!receives(chan) || frame->data.seq != chan->rx_seq || !chan->rx_partial)
		return "ABORT of a message that was not begun";
	chan->rx_seq++;
	chan->rx_partial = false;
	if (chan->released || chan->spoilt || link->close_local)
		return NULL;
	rx->type = TN_RX_ABORT;
	rx->channel = chan->handle;
	rx->user = chan->user;
	return NULL;
}

/* ---- notifications ---- */

static const char *notified(tn_link *link, tn_lk_chan *chan, uint32_t value, uint64_t bytes, tn_link_rx *rx)
{
	/* It may overtake OPEN_OK and CLOSE, which come on lane 0. */
	if (!chan ||
	    (chan->state != TN_CHAN_OPENING && chan->state != TN_CHAN_OPEN &&
	     chan->state != TN_CHAN_CLOSING) ||
	    chan->peer_done)
		return "a notification for a channel that is not open";
	if (chan->released || chan->spoilt || link->close_local) {
		tn_count_own(&link->counters.dropped, 1);
	} else {
		rx->type = TN_RX_NOTIFY;
		rx->channel = chan->handle;
		rx->user = chan->user;
		rx->value = value;
		rx->bytes = bytes;
	}
	return tn_lk_chan_notified(link, chan);
}

/* A unit arrived on a lane: is it ours to handle? */
static tn_lk_lane *arrive(tn_link *link, uint32_t handle, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);

	if (!lane || lane->state != TN_LANE_UP) {
		tn_count_own(&link->counters.stale, 1);
		return NULL;
	}
	link->heard = true;
	if (TN_UNLIKELY(tn_lk_is_spare(link, lane))) {
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s",
				"the peer used lanes that are not in use yet");
		return NULL;
	}
	if (TN_UNLIKELY(link->state != TN_LINK_UP) && tn_lk_wiring(link) && link->wired_sent)
		tn_lk_wiring_implied(link, now_ns);
	return lane->state == TN_LANE_UP ? lane : NULL;
}

/* It is the next one: is it within what was granted? False: it is not taken. */
static bool take(tn_link *link, tn_lk_lane *lane, uint64_t now_ns)
{
	if (lane->my_granted + lane->my_extra == lane->received) {
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s",
				"the peer used more receive slots than it was granted");
		return false;
	}
	lane->received++;
	if (lane->index == 0)
		tn_lk_slots_arrived(link, lane);
	return link->state == TN_LINK_UP || link->state == TN_LINK_CLOSING;
}

void tn_link_on_imm(tn_link *link, uint32_t handle, uint32_t imm, uint64_t bytes, uint64_t now_ns,
		    tn_link_rx *rx)
{
	tn_lk_lane *lane = arrive(link, handle, now_ns);
	const char *wrong;
	uint32_t index;

	rx->type = TN_RX_NONE;
	if (!lane || !tn_lk_imm_in_turn(link, lane, imm, now_ns) || !take(link, lane, now_ns))
		return;
	index = (imm & ~TN_IMM_ACK & ~link->imm_mask) >> TN_LINK_NOTIFY_BITS;
	tn_count_own(&link->counters.imms_rx, 1);
	if (!link->remote_done) {
		lane->rx_units++;
		if (imm & TN_IMM_ACK)
			owe_ack(link, lane, now_ns);
	}
	wrong = notified(link, index < link->chan_high ? &link->chans[index] : NULL,
			 imm & ((1u << TN_LINK_NOTIFY_BITS) - 1), bytes, rx);
	if (wrong)
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s (immediate %08x)", wrong, imm);
	else
		tn_lk_closing_step(link, now_ns);
}

/* ---- frames ---- */

static const char *on_credit(tn_link *link, const tn_frame *frame)
{
	const char *wrong = NULL;

	for (uint32_t i = 0; i < frame->lanes.count && !wrong; i++) {
		const tn_frame_lane *row = &frame->lanes.rows[i];

		if (row->lane == 0 || row->lane >= link->lane_count)
			return "CREDIT for a lane that is not there";
		wrong = tn_lk_credit_update(link, link->by_index[row->lane], row->grant, row->seen);
	}
	return wrong;
}

static const char *on_bye(tn_link *link, const tn_frame *frame, uint64_t now_ns)
{
	if (link->bye_received)
		return "a second BYE";
	if (frame->lanes.count != link->lane_count)
		return "BYE with a wrong number of lanes";
	for (uint32_t i = 0; i < frame->lanes.count; i++) {
		if (frame->lanes.rows[i].lane != i)
			return "BYE with lanes out of order";
		link->by_index[i]->bye = frame->lanes.rows[i].grant;
	}
	tn_lk_peer_closes(link, now_ns);
	return NULL;
}

static const char *dispatch(tn_link *link, tn_lk_lane *lane, const tn_frame *frame, uint64_t now_ns,
			    tn_link_rx *rx)
{
	if (lane->index != 0 && frame->head.type != TN_FRAME_NOTIFY && frame->head.type != TN_FRAME_SYNC)
		return "a frame on a data lane";
	switch (frame->head.type) {
	case TN_FRAME_DATA:
	case TN_FRAME_FRAG:
		return on_data(link, frame, rx);
	case TN_FRAME_ABORT:
		return on_abort(link, frame, rx);
	case TN_FRAME_NOTIFY:
		return notified(link, tn_lk_chan_get(link, frame->channel), frame->notify.value,
				frame->notify.bytes, rx);
	case TN_FRAME_CREDIT:
		return on_credit(link, frame);
	case TN_FRAME_SYNC:
		return NULL;
	case TN_FRAME_GRANT:
	case TN_FRAME_DEMAND:
		return tn_lk_grants_frame(link, frame);
	case TN_FRAME_SLOTS:
	case TN_FRAME_RELINQUISHED:
		return tn_lk_slots_frame(link, frame);
	case TN_FRAME_BYE:
		return on_bye(link, frame, now_ns);
	case TN_FRAME_OPEN:
		/* While the link closes, no channel comes in. */
		return link->state == TN_LINK_UP ? tn_lk_chan_frame(link, frame) : NULL;
	default:
		return tn_lk_chan_frame(link, frame);
	}
}

/* Nothing of it is believed, and so its place in its channel stays empty: the link ends. */
static void sum_failed(tn_link *link, const tn_lk_lane *lane, const tn_frame *frame, uint64_t n,
		       uint64_t now_ns)
{
	tn_count_own(&link->counters.corrupt, 1);
	tn_lk_fail_link(link, now_ns, TERN_E_CORRUPT,
			"a message's frame of %llu bytes on lane %u (%s) lacks its checksum %08x: the sender "
			"changed it "
			"while it was sent, or memory, a NIC or the wire did",
			(unsigned long long)n, lane->index, link->shared->providers[lane->provider].name,
			frame->data.sum);
}

void tn_link_on_frame(tn_link *link, uint32_t handle, const void *bytes, uint64_t n, uint64_t now_ns,
		      tn_link_rx *rx)
{
	tn_lk_lane *lane = arrive(link, handle, now_ns);
	const char *wrong;
	tn_frame frame;

	rx->type = TN_RX_NONE;
	if (!lane || !tn_lk_frame_in_turn(link, lane, bytes, n, now_ns) || !take(link, lane, now_ns))
		return;
	tn_count_own(&link->counters.frames_rx, 1);
	wrong = tn_frame_parse(bytes, n, &frame);
	if (!wrong && frame.head.epoch != lane->epoch) {
		tn_count_own(&link->counters.stale, 1);
		return;
	}
	lane->rx_units++;
	if (!wrong && !link->number_mask && frame.head.number != 0)
		wrong = "reserved field is not zero";
	if (!wrong)
		wrong = tn_lk_credit_update(link, lane, frame.head.grant, frame.head.seen);
	if (!wrong && (frame.head.flags & TN_FRAME_ACK))
		owe_ack(link, lane, now_ns);
	if (!wrong && TN_UNLIKELY(frame.head.flags & TN_FRAME_SHORT))
		wrong = tn_lk_slots_short(link, lane);
	if (!wrong && TN_UNLIKELY(link->sums) && !tn_lk_sum_holds(bytes, n, &frame)) {
		sum_failed(link, lane, &frame, n, now_ns);
		return;
	}
	if (!wrong)
		wrong = dispatch(link, lane, &frame, now_ns, rx);
	if (wrong) {
		rx->type = TN_RX_NONE;
		tn_lk_fail_link(link, now_ns, TERN_E_PROTOCOL, "%s (frame %s, %llu bytes)", wrong,
				n ? tn_frame_type_name(((const uint8_t *)bytes)[0]) : "",
				(unsigned long long)n);
		return;
	}
	tn_lk_closing_step(link, now_ns);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is: the lists in which channels wait to send, and how they share what can be sent.
 *
 *	link->msg_ready          channels with a message that may go; all over lane 0
 *	lane->ready[class]       channels whose next transfer goes over that lane; small before bulk
 *
 * Bytes are shared, not pieces (deficit round robin). The first of a list sends until its turn is used up, then
 * goes to the end with a new one. A turn is the longest piece of its class, so that one is always enough for a
 * piece; what a piece took beyond the turn is owed and comes off the next one, also over a pause.
 *
 *	turn of a linked channel   > 0 and at most the longest piece
 *	lane->served[class]        bytes sent, divided by the channels that waited there: the lane with the least is
 *	                           next, so channels of two lanes get the same as two of one
 *
 * Must not: know windows, credits or posts (tx.c). Threads: none. Tests: tests/unit/link/turns_test.c, pair_test.c.
 */
#include "link/internal.h"

/* Turns have 31 bits: pieces of a GiB and more count as one. */
static int32_t cost_of(uint64_t bytes)
{
	return (int32_t)TN_MIN(bytes + TN_FRAME_COST, 1ull << 30);
}

/* What was taken too much is paid, what was left is not kept. */
static int32_t new_turn(int32_t old, int32_t quantum)
{
	return TN_MAX(TN_MIN(old, 0) + quantum, 1);
}

/* ---- messages ---- */

static bool message_ready(const tn_link *link, const tn_lk_chan *chan)
{
	const tn_lk_op *op;
	uint64_t n;

	if (!tn_lk_chan_can_send(chan) || link->state != TN_LINK_UP)
		return false;
	if (chan->abort_due)
		return true;
	op = TN_LIST_FIRST(&chan->msgs, tn_lk_op, node);
	if (!op || link->hold)
		return false;
	n = tn_lk_fragment_bytes(link, chan, op->length - op->sent, op->sent == 0);
	return n + TN_FRAME_COST <= chan->tx_window - chan->tx_sent;
}

static int32_t message_quantum(const tn_link *link)
{
	return cost_of(link->frame_max);
}

static void update_messages(tn_link *link, tn_lk_chan *chan)
{
	bool want = message_ready(link, chan);

	if (want == tn_list_linked(&chan->msg_node))
		return;
	if (!want) {
		tn_list_remove(&chan->msg_node);
		return;
	}
	chan->msg_turn = new_turn(chan->msg_turn, message_quantum(link));
	tn_list_push_back(&link->msg_ready, &chan->msg_node);
}

void tn_lk_turn_message(tn_link *link, tn_lk_chan *chan, uint64_t bytes)
{
	if (!tn_list_linked(&chan->msg_node))
		return;
	chan->msg_turn -= cost_of(bytes);
	if (chan->msg_turn > 0)
		return;
	chan->msg_turn = new_turn(chan->msg_turn, message_quantum(link));
	tn_list_remove(&chan->msg_node);
	tn_list_push_back(&link->msg_ready, &chan->msg_node);
}

/* ---- transfers ---- */

static int32_t xfer_quantum(const tn_link *link, uint32_t class)
{
	return cost_of(class == TN_CLASS_SMALL ? link->small : link->chunk_max);
}

/* The lane and class of the next piece of a transfer, if there is one to post. */
static bool next_xfer(const tn_link *link, const tn_lk_chan *chan, uint32_t *lane, uint32_t *class)
{
	const tn_lk_op *op = TN_LIST_FIRST(&chan->tails, tn_lk_op, node);

	if (link->outside == tn_lk_chan_index(link, chan) + 1)
		return false;
	if (op && (op->wrs == 0 || !link->remote_done)) {
		*lane = chan->lane;
		*class = TN_CLASS_SMALL;
		return true;
	}
	op = TN_LIST_FIRST(&chan->xfers, tn_lk_op, node);
	if (!op || link->hold)
		return false;
	*class = tn_lk_size_of(link, op) <= link->small ? TN_CLASS_SMALL : TN_CLASS_BULK;
	*lane = tn_lk_xfer_lane(link, chan, tn_lk_size_of(link, op),
				tn_lk_placed(link, op->placed) != TN_PLACED_NO);
	return true;
}

/* A lane that had nothing to send, or could not, saves nothing up. */
static uint64_t served(const tn_link *link, const tn_lk_lane *lane, uint32_t class)
{
	return TN_MAX(lane->served[class], link->served[class]);
}

static void leave(tn_link *link, tn_lk_chan *chan)
{
	tn_lk_lane *lane = link->by_index[chan->ready_lane];

	tn_list_remove(&chan->xfer_node);
	TN_ASSERT(lane->ready_count[chan->ready_class] > 0);
	lane->ready_count[chan->ready_class]--;
	link->xfer_ready--;
	link->bulk_ready -= chan->ready_class == TN_CLASS_BULK;
}

static void enter(tn_link *link, tn_lk_chan *chan, uint32_t index, uint32_t class)
{
	tn_lk_lane *lane = link->by_index[index];

	lane->ready_count[class]++;
	link->xfer_ready++;
	link->bulk_ready += class == TN_CLASS_BULK;
	chan->ready_lane = (uint8_t)index;
	chan->ready_class = (uint8_t) class;
	if (class == TN_CLASS_BULK && chan->turn_kept && chan->turn[class] > 0) {
		tn_list_push_front(&lane->ready[class], &chan->xfer_node);
		return;
	}
	chan->turn[class] = new_turn(chan->turn[class], xfer_quantum(link, class));
	tn_list_push_back(&lane->ready[class], &chan->xfer_node);
}

static void update_xfers(tn_link *link, tn_lk_chan *chan)
{
	uint32_t lane = 0, class = 0;
	bool want = tn_lk_chan_can_send(chan) && link->state == TN_LINK_UP &&
		    next_xfer(link, chan, &lane, &class);

	if (tn_list_linked(&chan->xfer_node)) {
		if (want && chan->ready_lane == lane && chan->ready_class == class)
			return;
		leave(link, chan);
		/* A notification between two pieces does not end a turn of bulk. */
		chan->turn_kept |= chan->ready_class == TN_CLASS_BULK;
	}
	if (want)
		enter(link, chan, lane, class);
	chan->turn_kept &= want && class == TN_CLASS_SMALL;
}

void tn_lk_turn_xfer(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, uint64_t bytes)
{
	uint32_t class = chan->ready_class;
	int32_t cost = cost_of(bytes);

	if (!tn_list_linked(&chan->xfer_node))
		return;
	link->served[class] = served(link, lane, class);
	lane->served[class] = link->served[class] + (uint32_t)cost / lane->ready_count[class];
	chan->turn[class] -= cost;
	if (chan->turn[class] > 0)
		return;
	chan->turn[class] = new_turn(chan->turn[class], xfer_quantum(link, class));
	tn_list_remove(&chan->xfer_node);
	tn_list_push_back(&lane->ready[class], &chan->xfer_node);
}

tn_lk_lane *tn_lk_turn_lane(const tn_link *link, uint32_t class, uint32_t tried)
{
	tn_lk_lane *next = NULL;

	for (uint32_t i = 0; i < link->lane_count; i++) {
		tn_lk_lane *lane = link->by_index[i];

		if (lane->ready_count[class] > 0 && !(tried & (1u << i)) &&
		    (!next || served(link, lane, class) < served(link, next, class)))
			next = lane;
	}
	return next;
}

/* ---- both ---- */

void tn_lk_chan_update(tn_link *link, tn_lk_chan *chan)
{
	update_messages(link, chan);
	update_xfers(link, chan);
}

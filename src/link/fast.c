/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fast path: an op whose only piece can be posted now needs no row, list, timer or action unless the
 * device keeps it. Everything is checked first and changed only when the device took it, so that AGAIN
 * leaves no trace.
 *
 *   fast_send/fast_xfer   state, queues, lane, credits, windows, a row each in reserve: fill the post
 *   fast_posted           done: move the totals, COMPLETE. Kept: rows are taken, PENDING
 *   access                what is over when the device returns takes no row and no wr: some counts, nothing else. The
 *                         answer holds until the next call, so that not every access asks
 *   fast_imm              a notification of an open channel, and nobody waits for an answer to it
 *   fast_frame            a whole message of an open channel in its turn, and the same
 *   fast_sent             fast_posted of a message that is over, without a call
 *   brief_send/brief_sent a message that is over when the device returns takes neither a row nor a wr
 *
 * Threads: none. Tests: tests/unit/link/op_test.c, pair_test.c.
 */
#include "link/internal.h"
#include "link/journal_rows.h"

enum { PHASE_MESSAGE, PHASE_XFER, PHASE_FLAG_DATA, PHASE_FLAG };

/* Nothing of the link or its channel stands in the way of one more post. */
static TN_ALWAYS_INLINE bool may_send(const tn_link *link, const tn_lk_chan *chan, uint32_t channel)
{
	return link->state == TN_LINK_UP && !link->hold && !tn_lk_journal_due(link) &&
	       (channel & 0xffff) < link->chan_high && chan->handle == channel && tn_lk_chan_can_send(chan) &&
	       !chan->released && !chan->spoilt && !chan->close_received;
}

/* The channel, if it may have one more wr. */
static TN_ALWAYS_INLINE tn_lk_chan *open_channel(tn_link *link, uint32_t channel)
{
	tn_lk_chan *chan = &link->chans[channel & 0xffff];

	if (TN_UNLIKELY(!may_send(link, chan, channel)))
		return NULL;
	if (TN_UNLIKELY(link->wr_live + TN_WR_RESERVE >= link->wr_room || !tn_lk_has_op_row(link) ||
			chan->ops >= link->config->channel_ops_max))
		return NULL;
	return chan;
}

/* Its row and its post. */
static TN_ALWAYS_INLINE void fill_message(tn_link *link, tn_lk_lane *lane, const tn_lk_chan *chan,
					  const tn_link_iov *iov, uint32_t count, uint64_t total,
					  const tn_link_op_params *params, tn_link_fast *fast)
{
	tn_lk_wr *wr = tn_lk_wr_peek(link);
	tn_link_post *post = &fast->post;

	wr->kind = TN_WR_DATA;
	wr->chan = tn_lk_chan_index(link, chan);
	wr->bytes = total;
	wr->last = true;
	wr->beside = false;
	tn_lk_data_fill(link, lane, wr, chan, true,
			params->level == TN_LINK_REMOTE || tn_lk_journal_half_full(link));
	tn_lk_post_begin(link, lane, wr, post, TN_POST_SEND);
	post->iov[0] = (tn_link_iov){wr->header, sizeof(tn_frame_data)};
	post->iov_count = 1;
	for (uint32_t i = 0; i < count; i++)
		if (iov[i].bytes)
			post->iov[post->iov_count++] = iov[i];
	if (TN_UNLIKELY(link->sums))
		tn_lk_sum_fill(link, post);
	link->posting = (uint32_t)post->cookie;
}

TN_ALWAYS_INLINE bool tn_link_fast_send(tn_link *link, uint32_t channel, const tn_link_iov *iov,
					uint32_t count, const tn_link_op_params *params, tn_link_fast *fast)
{
	tn_lk_chan *chan = open_channel(link, channel);
	tn_lk_lane *lane = link->by_index[0];
	uint64_t total = 0;

	if (TN_UNLIKELY(!chan || count > TN_LINK_IOV_MAX || !tn_list_empty(&chan->msgs) || chan->abort_due))
		return false;
	/* Over a stream a frame of the link's own goes with it, in one system call: ahead, by the way of actions. */
	if (TN_UNLIKELY(link->streams && !tn_list_empty(&link->ctl)))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (iov[i].bytes > link->frame_max)
			return false;
		total += iov[i].bytes;
	}
	if (TN_UNLIKELY(!tn_lk_lane_ready(link, lane) || tn_lk_credits(lane) <= TN_CREDIT_RESERVE ||
			lane->frames >= link->config->lane_data_frames ||
			tn_lk_fragment_bytes(link, chan, total, true) != total ||
			total > chan->peer_message_max ||
			total + TN_FRAME_COST > chan->tx_window - chan->tx_sent ||
			!tn_lk_journal_room(link, lane, total + sizeof(tn_frame_data), false)))
		return false;
	fill_message(link, lane, chan, iov, count, total, params, fast);
	fast->host = false;
	fast->channel = channel;
	fast->phase = PHASE_MESSAGE;
	fast->params = params;
	/* Kept for an op that the device does not finish at the post. */
	fast->xfer = NULL;
	fast->iov = iov;
	fast->iov_count = count;
	return true;
}

/* The post of a flag word, whose bytes must outlive the call: they lie in the wr's row. */
static void fill_flag(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_fast *fast)
{
	tn_lk_wr *wr = tn_lk_wr_peek(link);

	wr->kind = TN_WR_FLAG;
	wr->chan = tn_lk_chan_index(link, chan);
	wr->bytes = sizeof(fast->xfer->flag);
	wr->last = true;
	wr->beside = false;
	memcpy(wr->header, &fast->xfer->flag, sizeof(fast->xfer->flag));
	tn_lk_xfer_post(link, lane, wr, &fast->post, TN_POST_WRITE);
	fast->post.local = wr->header;
	fast->post.key = fast->xfer->flag_key;
	fast->post.offset = fast->xfer->flag_offset;
	fast->phase = PHASE_FLAG;
	link->posting = tn_lk_wr_index(link, wr);
}

static TN_ALWAYS_INLINE void fill_data(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_fast *fast,
				       tn_link_xfer_type type, bool beside)
{
	static const struct {
		uint8_t kind, post;
	} how[] = {
		[TN_XFER_PUT] = {TN_WR_WRITE, TN_POST_WRITE},
		[TN_XFER_PUT_NOTIFY] = {TN_WR_IMM, TN_POST_WRITE_IMM},
		[TN_XFER_PUT_FLAG] = {TN_WR_WRITE, TN_POST_WRITE},
		[TN_XFER_GET] = {TN_WR_READ, TN_POST_READ},
	};
	const tn_link_xfer *xfer = fast->xfer;
	tn_lk_wr *wr = tn_lk_wr_peek(link);

	wr->kind = (tn_lk_wr_kind)how[type].kind;
	wr->chan = fast->channel & 0xffff;
	wr->bytes = xfer->bytes;
	wr->last = true;
	wr->beside = beside;
	tn_lk_xfer_post(link, lane, wr, &fast->post, (tn_link_post_type)how[type].post);
	fast->post.more = beside && lane->index == 0 && fast->params->placed == TN_PLACED_LAST;
	fast->post.local = xfer->local;
	fast->post.key = xfer->key;
	fast->post.offset = xfer->offset;
	if (type == TN_XFER_PUT_NOTIFY)
		fast->post.imm = tn_lk_imm(link, lane, chan, xfer->value, false);
	fast->phase = type == TN_XFER_PUT_FLAG ? PHASE_FLAG_DATA : PHASE_XFER;
	link->posting = tn_lk_wr_index(link, wr);
}

/* What a type of transfer needs beside a free way. */
static TN_ALWAYS_INLINE bool type_allows(const tn_link *link, const tn_lk_lane *lane, const tn_lk_chan *chan,
					 const tn_link_xfer *xfer, tn_link_xfer_type type)
{
	switch (type) {
	case TN_XFER_PUT_NOTIFY:
		return xfer->bytes > 0 && xfer->value >> TN_LINK_NOTIFY_BITS == 0 &&
		       (!link->resumes || link->remote_done || tn_lk_journal_keeps(lane, xfer->bytes)) &&
		       tn_lk_imm_fits(link, chan, xfer->bytes) &&
		       tn_lk_credits(lane) > (lane->index == 0 ? TN_CREDIT_RESERVE : 0) &&
		       tn_lk_journal_room(link, lane, TN_JOURNAL_IMM_BYTES, false);
	case TN_XFER_PUT_FLAG:
		return (link->caps & TN_LINK_CAP_ORDERED_WRITES) && xfer->flag_offset % 8 == 0;
	case TN_XFER_GET:
		return xfer->bytes > 0 && (link->caps & TN_LINK_CAP_READ);
	default:
		return xfer->bytes > 0;
	}
}

static TN_ALWAYS_INLINE bool fast_xfer(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
				       tn_link_xfer_type type, const tn_link_op_params *params,
				       tn_link_fast *fast)
{
	tn_lk_chan *chan = open_channel(link, channel);
	uint8_t placed = type == TN_XFER_PUT_NOTIFY ? tn_lk_placed(link, params->placed) : TN_PLACED_NO;
	bool beside = tn_lk_goes_beside(link, placed, xfer->bytes);
	uint64_t size = beside ? TN_MIN(xfer->bytes, link->small) : xfer->bytes;
	tn_lk_lane *lane;

	if (!chan || tn_lk_xfer_needs_ack(link, type, params) || !tn_list_empty(&chan->xfers) ||
	    !tn_list_empty(&chan->tails))
		return false;
	lane = link->by_index[tn_lk_xfer_lane(link, chan, size, placed != TN_PLACED_NO)];
	if (!tn_lk_lane_ready(link, lane) || link->outside == (channel & 0xffff) + 1 ||
	    (tn_lk_is_bulk(link, size) && !tn_lk_bulk_fast(link, xfer, placed != TN_PLACED_NO)) ||
	    !type_allows(link, lane, chan, xfer, type))
		return false;
	fast->host = false;
	fast->channel = channel;
	fast->xfer = xfer;
	fast->params = params;
	if (type == TN_XFER_PUT_FLAG && xfer->bytes == 0)
		fill_flag(link, lane, chan, fast);
	else
		fill_data(link, lane, chan, fast, type, beside);
	return true;
}

bool tn_link_fast_xfer(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
		       const tn_link_op_params *params, tn_link_fast *fast)
{
	return fast_xfer(link, channel, xfer, xfer->type, params, fast);
}

TN_ALWAYS_INLINE bool tn_link_fast_notify(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
					  const tn_link_op_params *params, tn_link_fast *fast)
{
	TN_ASSERT(xfer->type == TN_XFER_PUT_NOTIFY);
	return fast_xfer(link, channel, xfer, TN_XFER_PUT_NOTIFY, params, fast);
}

/* ---- the device's answer ---- */

static void count_message(tn_link *link, tn_lk_chan *chan, uint64_t bytes)
{
	chan->tx_sent += bytes + TN_FRAME_COST;
	chan->tx_seq++;
	tn_count_own(&link->counters.messages_tx, 1);
}

/* Not finished at the post, or waiting for more than that: the op gets its row after all. */
static tn_lk_op *make_op(tn_link *link, tn_lk_chan *chan, const tn_link_fast *fast)
{
	tn_lk_op *op;

	if (fast->phase != PHASE_MESSAGE)
		return tn_lk_op_new_xfer(link, chan, fast->xfer, fast->params);
	op = tn_lk_op_new(link, chan, TN_OP_MESSAGE, fast->params);
	op->need_ack = fast->params->level == TN_LINK_REMOTE;
	op->msg.count = fast->iov_count;
	memcpy(op->msg.iov, fast->iov, fast->iov_count * sizeof(*fast->iov));
	op->length = fast->post.bytes;
	return op;
}

/* The rows are needed: go the way of an ordinary post. */
static tn_link_fast_result keep(tn_link *link, tn_lk_chan *chan, tn_lk_wr *wr, const tn_link_fast *fast,
				bool done, uint64_t *handle)
{
	tn_lk_op *op = make_op(link, chan, fast);

	op->beside = wr->beside;
	if (fast->phase == PHASE_FLAG) {
		op->sent = op->length;
		op->silent = !link->remote_done;
		tn_lk_xfer_begin(link, chan, op, link->lanes[wr->lane]);
		tn_lk_xfer_to_tails(link, chan, op);
	} else {
		tn_list_push_back(fast->phase == PHASE_MESSAGE ? &chan->msgs : &chan->xfers, &op->node);
	}
	wr->op = tn_lk_op_index(link, op);
	tn_lk_commit(link, wr, &fast->post, done);
	*handle = tn_lk_op_handle(link, op);
	if (done)
		tn_lk_wr_complete(link, wr, TERN_OK, 0);
	return TN_FAST_PENDING;
}

/* The flag was not taken, but its data is there: the op waits with its data behind it. */
static tn_link_fast_result flag_again(tn_link *link, tn_lk_chan *chan, tn_lk_lane *lane,
				      const tn_link_fast *fast, uint64_t *handle)
{
	tn_lk_op *op = make_op(link, chan, fast);

	op->sent = op->length;
	op->silent = !link->remote_done;
	tn_lk_xfer_begin(link, chan, op, lane);
	tn_lk_xfer_to_tails(link, chan, op);
	tn_lk_chan_update(link, chan);
	*handle = tn_lk_op_handle(link, op);
	return TN_FAST_PENDING;
}

tn_link_fast_result tn_link_fast_posted(tn_link *link, tn_link_fast *fast, tern_status status, bool done,
					uint64_t *handle)
{
	tn_lk_chan *chan = &link->chans[fast->channel & 0xffff];
	tn_lk_wr *wr = &link->wrs[(uint32_t)fast->post.cookie];
	tn_lk_lane *lane = link->lanes[wr->lane];

	TN_ASSERT(link->posting == (uint32_t)fast->post.cookie && chan->handle == fast->channel);
	link->posting = TN_NONE;
	if (TN_UNLIKELY(status != TERN_OK)) {
		wr->kind = TN_WR_FREE;
		if ((status == TERN_AGAIN || tn_lk_can_recover(link, status)) && fast->phase == PHASE_FLAG &&
		    fast->xfer->bytes > 0)
			return flag_again(link, chan, lane, fast, handle);
		/* A lane that is gone is rebuilt: the op waits for it. */
		return status == TERN_AGAIN || tn_lk_can_recover(link, status) ? TN_FAST_AGAIN
									       : TN_FAST_FAILED;
	}
	if (!done || (fast->phase == PHASE_MESSAGE && fast->params->level == TN_LINK_REMOTE))
		return keep(link, chan, wr, fast, done, handle);
	wr->op = TN_NONE;
	if (wr->kind == TN_WR_IMM) {
		tn_lk_consume_imm(link, lane, wr, &fast->post, true, fast->host);
		tn_lk_notify_sent(lane, chan);
	} else {
		tn_lk_consume(link, lane, wr, &fast->post, true);
		if (fast->phase == PHASE_MESSAGE)
			count_message(link, chan, wr->bytes);
		else if (!link->remote_done)
			tn_lk_silent_sent(lane, chan);
	}
	wr->kind = TN_WR_FREE;
	if (fast->phase == PHASE_FLAG_DATA) {
		fill_flag(link, lane, chan, fast);
		return TN_FAST_MORE;
	}
	tn_count_own(&link->counters.ops_fast, 1);
	return TN_FAST_COMPLETE;
}

TN_ALWAYS_INLINE tn_link_fast_result tn_link_fast_sent(tn_link *link, tn_link_fast *fast, tern_status status,
						       bool done, uint64_t *handle)
{
	tn_lk_wr *wr = &link->wrs[(uint32_t)fast->post.cookie];
	tn_lk_chan *chan = &link->chans[fast->channel & 0xffff];
	tn_lk_left left;

	TN_ASSERT(fast->phase == PHASE_MESSAGE);
	if (TN_UNLIKELY(status != TERN_OK || !done || fast->params->level == TN_LINK_REMOTE))
		return tn_link_fast_posted(link, fast, status, done, handle);
	TN_ASSERT(link->posting == (uint32_t)fast->post.cookie && chan->handle == fast->channel);
	link->posting = TN_NONE;
	wr->op = TN_NONE;
	left = (tn_lk_left){wr->header, fast->post.iov + 1, fast->post.iov_count - 1, fast->post.bytes,
			    fast->host};
	tn_lk_consume_message(link, link->lanes[wr->lane], chan, &left);
	wr->kind = TN_WR_FREE;
	return TN_FAST_COMPLETE;
}

/* ---- messages that are over when their post returns, over a device that promises that ---- */

/* The header that a message of the channel would have now. */
static TN_ALWAYS_INLINE void brief_header(tn_link *link, tn_lk_lane *lane, const tn_lk_chan *chan,
					  uint8_t *header)
{
	tn_frame_data *data = (tn_frame_data *)header;

	data->head =
		tn_lk_head_of(link, lane, TN_FRAME_DATA, tn_lk_journal_half_full(link) ? TN_FRAME_ACK : 0);
	data->channel = chan->peer;
	data->sum = 0;
	data->seq = chan->tx_seq;
}

TN_ALWAYS_INLINE bool tn_link_brief_send(tn_link *link, uint32_t channel, uint64_t bytes,
					 tn_link_brief *brief)
{
	const tn_lk_chan *chan = &link->chans[channel & 0xffff];
	tn_lk_lane *lane = link->by_index[0];

	_Static_assert(sizeof(tn_frame_data) == TN_LINK_BRIEF_BYTES,
		       "a brief message has its header with it");
	/* The log is there while the rows are, and it may be needed. */
	if (TN_UNLIKELY(!may_send(link, chan, channel) || chan->abort_due || link->sums || !link->wrs ||
			!tn_list_empty(&chan->msgs)))
		return false;
	if (TN_UNLIKELY(lane->state != TN_LANE_UP || lane->stalled ||
			tn_lk_credits(lane) <= TN_CREDIT_RESERVE ||
			tn_lk_fragment_bytes(link, chan, bytes, true) != bytes ||
			bytes > chan->peer_message_max ||
			bytes + TN_FRAME_COST > chan->tx_window - chan->tx_sent ||
			!tn_lk_journal_room(link, lane, bytes + sizeof(tn_frame_data), false)))
		return false;
	brief->lane_user = lane->user;
	brief_header(link, lane, chan, brief->header);
	return true;
}

TN_ALWAYS_INLINE void tn_link_brief_sent(tn_link *link, uint32_t channel, const tn_link_brief *brief,
					 const tn_link_iov *iov, uint32_t count, uint64_t bytes)
{
	tn_lk_left left = {brief->header, iov, count, bytes, true};

	tn_lk_consume_message(link, link->by_index[0], &link->chans[channel & 0xffff], &left);
}

/* ---- what is over when its post returns ---- */

/* Bulk that is over at once needs no window, but passes none that waits, here or on another link of the device. */
static uint64_t access_max(const tn_link *link)
{
	bool bulk = !link->bulk_ready && !link->outside && !link->budget && !link->grants.tx;

	return bulk ? link->chunk_max : link->small;
}

/*
 * Over lane 0, whatever lane the channel's other transfers use: such a device orders nothing by its lanes, for what it
 * took is over. Needs no row of any kind.
 */
bool tn_link_access(const tn_link *link, uint32_t channel, tn_link_way *way)
{
	const tn_lk_chan *chan = &link->chans[channel & 0xffff];
	const tn_lk_lane *lane = link->by_index[0];

	if (TN_UNLIKELY(link->state != TN_LINK_UP || link->hold || !(link->caps & TN_LINK_CAP_REMOTE_DONE) ||
			tn_lk_journal_due(link) || (channel & 0xffff) >= link->chan_high ||
			chan->handle != channel || !tn_lk_chan_can_send(chan) || chan->released ||
			chan->spoilt || chan->close_received || chan->xfers_out ||
			!tn_list_empty(&chan->xfers) || lane->state != TN_LANE_UP || lane->stalled))
		return false;
	*way = (tn_link_way){lane->user, access_max(link), link->caps};
	return true;
}

TN_ALWAYS_INLINE void tn_link_accessed(tn_link *link, bool get)
{
	link->by_index[0]->tx_serial++;
	tn_count_own(get ? &link->counters.reads : &link->counters.writes, 1);
	tn_count_own(&link->counters.ops_fast, 1);
}

/* ---- what arrives ---- */

TN_ALWAYS_INLINE bool tn_link_fast_imm(tn_link *link, uint32_t handle, uint32_t imm, uint64_t bytes,
				       tn_link_rx *rx)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	uint32_t index = (imm & ~link->imm_mask) >> TN_LINK_NOTIFY_BITS;
	tn_lk_chan *chan = &link->chans[index];

	_Static_assert(TN_IMM_ACK >> TN_LINK_NOTIFY_BITS > TN_IMM_CHANNELS, "no index has the bit ACK");
	if (TN_UNLIKELY(link->state != TN_LINK_UP || link->close_local || link->spare.active || !lane ||
			lane->state != TN_LANE_UP || lane->my_granted + lane->my_extra == lane->received ||
			index >= TN_IMM_CHANNELS || index >= link->chan_high || chan->state != TN_CHAN_OPEN ||
			chan->close_received || chan->released || chan->spoilt ||
			!tn_lk_imm_next(link, lane, imm)))
		return false;
	link->heard = true;
	lane->received++;
	if (lane->index == 0)
		tn_lk_slots_arrived(link, lane);
	if (!link->remote_done)
		lane->rx_units++;
	chan->notifies_rx++;
	tn_count_own(&link->counters.imms_rx, 1);
	rx->type = TN_RX_NOTIFY;
	rx->channel = chan->handle;
	rx->user = chan->user;
	rx->value = imm & ((1u << TN_LINK_NOTIFY_BITS) - 1);
	rx->bytes = bytes;
	return true;
}

/* What tn_lk_credit_update would not find fault with. */
static inline bool totals_hold(const tn_lk_lane *lane, const tn_frame_head *head)
{
	return ((int32_t)(head->grant - lane->granted) <= 0 ||
		(int32_t)(head->grant - lane->consumed) <= (int32_t)lane->first) &&
	       ((int32_t)(head->seen - lane->peer_seen) <= 0 || (int32_t)(head->seen - lane->tx_units) <= 0);
}

/* A plain frame of lane 0 on a link to which nothing happens. */
static inline bool plain_frame(const tn_link *link, const tn_lk_lane *lane, const tn_frame_head *head)
{
	return link->state == TN_LINK_UP && !link->close_local && !link->spare.active && !link->sums &&
	       lane && lane->state == TN_LANE_UP && lane->index == 0 &&
	       lane->my_granted + lane->my_extra != lane->received && head->type == TN_FRAME_DATA &&
	       head->flags == 0 && head->number == tn_lk_number(link, lane->rx_units) &&
	       head->epoch == lane->epoch && totals_hold(lane, head);
}

static inline bool in_turn(const tn_link *link, const tn_lk_chan *chan, const tn_frame_data *data,
			   uint64_t bytes)
{
	return (data->channel & 0xffff) < link->chan_high && chan->handle == data->channel &&
	       chan->state == TN_CHAN_OPEN && !chan->close_received && !chan->released && !chan->spoilt &&
	       !chan->rx_partial && data->seq == chan->rx_seq && data->sum == 0 &&
	       bytes <= chan->message_max && bytes + TN_FRAME_COST <= chan->rx_window - chan->rx_bytes;
}

/* Rows, and bytes of them, that the journal may keep longer than it has to: they are dropped together. */
#define LAZY_ROWS  8u
#define LAZY_BYTES 2048u

/* tn_lk_credit_update of totals that hold. True: something may wait for them. */
static TN_ALWAYS_INLINE bool totals_rise(tn_link *link, tn_lk_lane *lane, const tn_frame_head *head)
{
	bool grant = (int32_t)(head->grant - lane->granted) > 0;
	bool seen = (int32_t)(head->seen - lane->peer_seen) > 0;
	tn_lk_journal *log = &link->journal[0];

	if (!grant && !seen)
		return false;
	if (grant)
		lane->granted = head->grant;
	if (grant && link->slots.asked != link->slots.back)
		tn_lk_slots_yield(link);
	if (seen)
		lane->peer_seen = head->seen;
	if (seen && !tn_list_empty(&lane->acks))
		tn_lk_acked(link, lane);
	if (log->tail - log->head >= LAZY_ROWS || link->ring_tail - link->ring_head >= LAZY_BYTES)
		tn_lk_journal_begins(link, log, tn_lk_journal_open(log, lane));
	return true;
}

/* What new credits or acknowledgements may set going. */
static inline bool something_waits(const tn_link *link)
{
	return link->credit_due || link->xfer_ready || link->fail_count || link->hold ||
	       tn_lk_journal_due(link) || !tn_list_empty(&link->done) || !tn_list_empty(&link->ctl) ||
	       !tn_list_empty(&link->msg_ready);
}

TN_ALWAYS_INLINE bool tn_link_fast_frame(tn_link *link, uint32_t handle, const void *bytes, uint64_t n,
					 tn_link_rx *rx, bool *more)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	tn_frame_data data;
	tn_lk_chan *chan;

	if (TN_UNLIKELY(n < sizeof(data)))
		return false;
	memcpy(&data, bytes, sizeof(data)); /* once: the peer may go on writing */
	n -= sizeof(data);
	chan = &link->chans[data.channel & 0xffff];
	if (TN_UNLIKELY(!plain_frame(link, lane, &data.head) || !in_turn(link, chan, &data, n)))
		return false;
	link->heard = true;
	lane->received++;
	tn_lk_slots_arrived(link, lane);
	lane->rx_units++;
	*more = totals_rise(link, lane, &data.head) && something_waits(link);
	chan->rx_bytes += n + TN_FRAME_COST;
	chan->rx_total = chan->rx_offset = n;
	chan->rx_seq++;
	tn_lk_chan_window(link, chan);
	*more |= chan->ctl != 0;
	tn_count_own(&link->counters.frames_rx, 1);
	tn_count_own(&link->counters.messages_rx, 1);
	*rx = (tn_link_rx){.type = TN_RX_MESSAGE,
			   .channel = chan->handle,
			   .user = chan->user,
			   .data = (const uint8_t *)bytes + sizeof(data),
			   .bytes = n,
			   .total = n,
			   .first = true,
			   .last = true};
	return true;
}

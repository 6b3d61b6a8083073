/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link posts next. Order: frames of its own (credits, channels), then messages and small transfers in
 * turn, then bulk. Whose fragment or piece of a class is next: turns.c.
 *
 * A build function fills a peeked row of wrs[] and the post, and changes nothing else; ledgers move in
 * tn_lk_commit (ledger.c) when the provider took it.
 * Threads: none. Tests: tests/unit/link/op_test.c, pair_test.c.
 */
#include "link/internal.h"
#include "link/journal_rows.h"

/* ---- headers and posts ---- */

void tn_lk_head_fill(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, tn_frame_type type, uint8_t flags)
{
	*(tn_frame_head *)wr->header = tn_lk_head_of(link, lane, type, flags);
	wr->told_grant = lane->my_granted;
	wr->told_seen = lane->rx_units;
}

void tn_lk_frame_post(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, uint64_t header_bytes,
		      tn_link_post *post)
{
	tn_lk_post_begin(link, lane, wr, post, TN_POST_SEND);
	post->iov_count = 1;
	post->iov[0] = (tn_link_iov){wr->header, header_bytes};
}

void tn_lk_xfer_post(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, tn_link_post *post,
		     tn_link_post_type type)
{
	tn_lk_post_begin(link, lane, wr, post, type);
	post->level = link->remote_done && type != TN_POST_READ ? TN_LINK_REMOTE : TN_LINK_LOCAL;
}

tn_lk_wr *tn_lk_wr_begin(tn_link *link, tn_lk_wr_kind kind, tn_lk_chan *chan, tn_lk_op *op, uint64_t bytes)
{
	tn_lk_wr *wr = tn_lk_wr_peek(link);

	wr->kind = kind;
	wr->chan = chan ? tn_lk_chan_index(link, chan) : TN_NONE;
	wr->op = op ? tn_lk_op_index(link, op) : TN_NONE;
	wr->bytes = bytes;
	wr->bit = 0;
	wr->last = wr->beside = false;
	return wr;
}

/* ---- the link's own frames, on lane 0 ---- */

static bool build_open(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_post *post)
{
	bool ok = chan->ctl & TN_CTL_OK;
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_CTL, chan, NULL, 0);
	tn_frame_open *open = (tn_frame_open *)wr->header;
	const char *name = tn_lk_name(link, chan);

	wr->bit = ok ? TN_CTL_OK : TN_CTL_OPEN;
	tn_lk_head_fill(link, lane, wr, ok ? TN_FRAME_OPEN_OK : TN_FRAME_OPEN, 0);
	open->channel = ok ? chan->peer : chan->handle;
	open->mine = ok ? chan->handle : 0;
	open->window = chan->rx_window;
	open->message_max = chan->message_max == UINT64_MAX ? 0 : chan->message_max;
	tn_lk_frame_post(link, lane, wr, sizeof(*open), post);
	if (!ok)
		post->iov[post->iov_count++] = (tn_link_iov){name, strlen(name)};
	return true;
}

static bool build_fail(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_CTL, chan, NULL, 0);
	tn_frame_fail *fail = (tn_frame_fail *)wr->header;
	const char *name = chan ? tn_lk_name(link, chan) : "";

	wr->bit = TN_CTL_FAIL;
	tn_lk_head_fill(link, lane, wr, TN_FRAME_OPEN_FAIL, 0);
	fail->channel = chan ? chan->peer : link->fails[link->fail_head].channel;
	fail->status = chan ? chan->status : link->fails[link->fail_head].status;
	tn_lk_frame_post(link, lane, wr, sizeof(*fail), post);
	if (name[0])
		post->iov[post->iov_count++] = (tn_link_iov){name, strlen(name)};
	return true;
}

static bool build_window(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_CTL, chan, NULL, 0);
	tn_frame_window *window = (tn_frame_window *)wr->header;

	wr->bit = TN_CTL_WINDOW;
	tn_lk_head_fill(link, lane, wr, TN_FRAME_WINDOW, 0);
	window->channel = chan->peer;
	window->zero = 0;
	window->total = chan->rx_bytes + link->config->channel_window_bytes;
	tn_lk_frame_post(link, lane, wr, sizeof(*window), post);
	return true;
}

static bool build_close(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_CTL, chan, NULL, 0);
	tn_frame_close *close = (tn_frame_close *)wr->header;

	wr->bit = TN_CTL_CLOSE;
	tn_lk_head_fill(link, lane, wr, TN_FRAME_CLOSE, 0);
	close->channel = chan->peer;
	close->zero = 0;
	close->messages = chan->tx_seq;
	close->notifies = chan->notifies_tx;
	tn_lk_frame_post(link, lane, wr, sizeof(*close), post);
	return true;
}

static bool build_ctl(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_chan *chan = TN_LIST_FIRST(&link->ctl, tn_lk_chan, ctl_node);

	if (link->fail_count > 0)
		return build_fail(link, lane, NULL, post);
	if (!chan)
		return false;
	if (chan->ctl & (TN_CTL_OPEN | TN_CTL_OK))
		return build_open(link, lane, chan, post);
	if (chan->ctl & TN_CTL_FAIL)
		return build_fail(link, lane, chan, post);
	if (chan->ctl & TN_CTL_WINDOW)
		return build_window(link, lane, chan, post);
	return build_close(link, lane, chan, post);
}

/* Totals of the other lanes; lane 0's are in the head. */
static bool build_credit(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_CREDIT, NULL, NULL, 0);
	tn_frame_lanes *lanes = (tn_frame_lanes *)wr->header;
	uint32_t n = 0;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_CREDIT, 0);
	for (uint32_t i = 1; i < link->lane_count; i++) {
		const tn_lk_lane *other = link->by_index[i];

		if (other->my_told != other->my_granted || other->seen_told != other->rx_units)
			lanes->rows[n++] = (tn_frame_lane){i, other->my_granted, other->rx_units};
	}
	lanes->count = n;
	lanes->zero = 0;
	tn_lk_frame_post(link, lane, wr, TN_FRAME_LANES_BYTES(n), post);
	return true;
}

static bool build_bye(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_BYE, NULL, NULL, 0);
	tn_frame_lanes *lanes = (tn_frame_lanes *)wr->header;

	tn_lk_head_fill(link, lane, wr, TN_FRAME_BYE, 0);
	for (uint32_t i = 0; i < link->lane_count; i++)
		lanes->rows[i] = (tn_frame_lane){i, link->by_index[i]->consumed + (i == 0), 0};
	lanes->count = link->lane_count;
	lanes->zero = 0;
	tn_lk_frame_post(link, lane, wr, TN_FRAME_LANES_BYTES(link->lane_count), post);
	return true;
}

#define OWN_BYTES (TN_NAME_MAX + 64u) /* of a frame that opens, refuses or closes a channel, at most */

static bool next_credit(tn_link *link, tn_lk_lane *lane, uint32_t credits, tn_link_post *post)
{
	return (link->credit_due & TN_DUE_LANES) && (credits > 1 || lane->my_told != lane->my_granted) &&
	       build_credit(link, lane, post);
}

/*
 * Lane 0's ladder keeps two sides without credit going: the last credit goes only into a frame that grants
 * new ones for lane 0, so a side that is down to 0 has just given the other more than it needs to answer.
 */
static bool next_own(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	uint32_t credits = tn_lk_credits(lane);

	if (credits == 0 || !tn_lk_lane_ready(link, lane))
		return false;
	/* Ahead of what is sent again, which may use all but one: the receiver counts on the credits that were given back,
	   and says nothing of its grant before half of what it thinks there are is used. */
	if (credits > 1 && link->state == TN_LINK_UP && (link->credit_due & TN_DUE_BACK))
		return tn_lk_build_back(link, lane, post);
	if (tn_lk_journal_due(link))
		return next_credit(link, lane, credits, post) || tn_lk_journal_next(link, lane, post);
	if (credits > 1 && link->state == TN_LINK_UP && tn_lk_journal_room(link, lane, OWN_BYTES, true) &&
	    build_ctl(link, lane, post))
		return true;
	if (credits > 1 && link->state == TN_LINK_UP && (link->credit_due & TN_DUE_GRANT))
		return tn_lk_build_grant(link, lane, post);
	if (credits > 1 && link->state == TN_LINK_UP && (link->credit_due & TN_DUE_DEMAND))
		return tn_lk_build_demand(link, lane, post);
	if (credits > 1 && link->state == TN_LINK_UP && (link->credit_due & TN_DUE_SLOTS))
		return tn_lk_build_slots(link, lane, post);
	if (credits > 1 && link->state == TN_LINK_CLOSING && !link->bye_sent && link->wr_live == 0)
		return build_bye(link, lane, post);
	return next_credit(link, lane, credits, post);
}

/* ---- messages ---- */

uint64_t tn_lk_fragment_bytes(const tn_link *link, const tn_lk_chan *chan, uint64_t left, bool whole)
{
	uint64_t room = chan->peer_window / 2 - TN_FRAME_COST;

	if (whole && left <= TN_MIN(room, link->frame_max - sizeof(tn_frame_data)))
		return left;
	return TN_MIN(left, TN_MIN(room, link->frame_max - sizeof(tn_frame_frag)));
}

/* The bytes [from, from + n) of a message, as pieces. */
static void slice(const tn_lk_op *op, uint64_t from, uint64_t n, tn_link_post *post)
{
	for (uint32_t i = 0; i < op->msg.count && n > 0; i++) {
		const tn_link_iov *piece = &op->msg.iov[i];
		uint64_t take;

		if (from >= piece->bytes) {
			from -= piece->bytes;
			continue;
		}
		take = TN_MIN(n, piece->bytes - from);
		post->iov[post->iov_count++] = (tn_link_iov){(const uint8_t *)piece->base + from, take};
		n -= take;
		from = 0;
	}
	TN_ASSERT(n == 0);
}

void tn_lk_data_fill(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_lk_chan *chan, bool whole,
		     bool ack)
{
	tn_frame_data *data = (tn_frame_data *)wr->header;

	tn_lk_head_fill(link, lane, wr, whole ? TN_FRAME_DATA : TN_FRAME_FRAG, ack ? TN_FRAME_ACK : 0);
	data->channel = chan->peer;
	data->sum = 0;
	data->seq = chan->tx_seq;
}

static void build_abort(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_ABORT, chan, NULL, 0);

	tn_lk_data_fill(link, lane, wr, chan, true, false);
	((tn_frame_data *)wr->header)->head.type = TN_FRAME_ABORT;
	tn_lk_frame_post(link, lane, wr, sizeof(tn_frame_data), post);
}

static void build_data(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_lk_op *op, uint64_t n,
		       tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_DATA, chan, op, n);
	bool whole = n == op->length;

	wr->last = op->sent + n == op->length;
	tn_lk_data_fill(link, lane, wr, chan, whole,
			(wr->last && op->need_ack) || tn_lk_journal_half_full(link));
	if (!whole) {
		tn_frame_frag *frag = (tn_frame_frag *)wr->header;

		frag->offset = op->sent;
		frag->total = op->length;
	}
	tn_lk_frame_post(link, lane, wr, whole ? sizeof(tn_frame_data) : sizeof(tn_frame_frag), post);
	slice(op, op->sent, n, post);
}

static bool next_message(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_chan *chan = TN_LIST_FIRST(&link->msg_ready, tn_lk_chan, msg_node);
	tn_lk_op *op;
	uint64_t n;

	if (!chan || !tn_lk_lane_ready(link, lane))
		return false;
	if (tn_lk_credits(lane) <= TN_CREDIT_RESERVE ||
	    !tn_lk_journal_room(link, lane, link->frame_max, chan->abort_due)) {
		tn_lk_slots_wait(link, lane);
		return false;
	}
	if (chan->abort_due) {
		build_abort(link, lane, chan, post);
		return true;
	}
	op = TN_LIST_FIRST(&chan->msgs, tn_lk_op, node);
	n = tn_lk_fragment_bytes(link, chan, op->length - op->sent, op->sent == 0);
	if (lane->frames >= link->config->lane_data_frames) {
		tn_count_own(&link->counters.window_waits, 1);
		return false;
	}
	build_data(link, lane, chan, op, n, post);
	return true;
}

/* ---- transfers ---- */

/* What comes after a transfer's data: a flag, a notification, or a request to acknowledge. */
static bool build_tail(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_lk_op *op, tn_link_post *post)
{
	bool notify = op->kind == TN_OP_PUT_NOTIFY;
	tn_frame_notify *frame;
	tn_lk_wr *wr;

	if (op->kind == TN_OP_PUT_FLAG && !op->flag_posted) {
		wr = tn_lk_wr_begin(link, TN_WR_FLAG, chan, op, sizeof(op->x.flag));
		memcpy(wr->header, &op->x.flag, sizeof(op->x.flag));
		tn_lk_xfer_post(link, lane, wr, post, TN_POST_WRITE);
		post->local = wr->header;
		post->key = op->x.flag_key;
		post->offset = op->x.flag_offset;
		wr->last = !op->need_ack;
		return true;
	}
	if (tn_lk_credits(lane) <= (lane->index == 0 ? TN_CREDIT_RESERVE : 0) ||
	    !tn_lk_journal_room(link, lane, 0, false)) {
		tn_lk_slots_wait(link, lane);
		return false;
	}
	wr = tn_lk_wr_begin(link, TN_WR_NOTIFY, chan, op, 0);
	wr->last = true;
	tn_lk_head_fill(link, lane, wr, notify ? TN_FRAME_NOTIFY : TN_FRAME_SYNC,
			op->need_ack ? TN_FRAME_ACK : 0);
	frame = (tn_frame_notify *)wr->header;
	frame->channel = chan->peer;
	frame->value = op->x.value;
	frame->bytes = op->length;
	tn_lk_frame_post(link, lane, wr, notify ? sizeof(*frame) : sizeof(frame->head), post);
	return true;
}

/*
 * Does a piece carry the notification of those before it? The device orders writes: it is delivered after them. If
 * one of them is refused, so is this: what holds for a range of a key holds for those before it, and a key that went away
 * does not come back.
 */
static bool last_tells(const tn_link *link, const tn_lk_op *op, uint64_t n)
{
	return tn_lk_placed(link, op->placed) != TN_PLACED_NO && op->sent + n == op->length;
}

static bool build_piece(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, tn_lk_op *op, tn_link_post *post)
{
	uint64_t left = op->length - op->sent,
		 n = op->beside && link->streams && left <= link->chunk_max
			     ? left
			     : tn_lk_bulk_next(link, left, op->kind != TN_OP_GET,
					       tn_lk_placed(link, op->placed) != TN_PLACED_NO);
	bool imm = op->kind == TN_OP_PUT_NOTIFY &&
		   (n == op->length || last_tells(link, op, n) || TN_MUTANT(21)) &&
		   (tn_list_empty(&chan->tails) || TN_MUTANT(20)) && tn_lk_imm_fits(link, chan, n);
	tn_lk_wr *wr;

	if (n == 0)
		return false;
	/* What ended with its post is kept in the journal only if it fits there: else the op stays. */
	if (link->resumes && !link->remote_done && op->kind == TN_OP_PUT_NOTIFY &&
	    !(imm && tn_lk_journal_keeps(lane, n)))
		op->need_ack = true;
	if (imm && (tn_lk_credits(lane) <= (lane->index == 0 ? TN_CREDIT_RESERVE : 0) ||
		    !tn_lk_journal_room(link, lane, TN_JOURNAL_IMM_BYTES, false))) {
		tn_lk_slots_wait(link, lane);
		return false;
	}
	wr = tn_lk_wr_begin(link,
			    op->kind == TN_OP_GET ? TN_WR_READ
			    : imm                 ? TN_WR_IMM
						  : TN_WR_WRITE,
			    chan, op, n);
	wr->last = op->sent + n == op->length;
	wr->beside = op->beside && link->streams;
	tn_lk_xfer_post(link, lane, wr, post,
			op->kind == TN_OP_GET ? TN_POST_READ
			: imm                 ? TN_POST_WRITE_IMM
					      : TN_POST_WRITE);
	post->local = (uint8_t *)op->x.local + op->sent;
	post->key = op->x.key;
	post->offset = op->x.offset + op->sent;
	post->whole = op->length;
	post->last = wr->last && op->kind == TN_OP_PUT_NOTIFY;
	if (imm)
		post->imm = tn_lk_imm(link, lane, chan, op->x.value, op->need_ack);
	post->more = wr->beside && lane->index == 0 && op->placed == TN_PLACED_LAST;
	return true;
}

/* The next piece of the first channel in a lane's list. */
static bool next_of_lane(tn_link *link, tn_lk_lane *lane, uint32_t class, tn_link_post *post)
{
	tn_lk_chan *chan = TN_LIST_FIRST(&lane->ready[class], tn_lk_chan, xfer_node);
	tn_lk_op *op;

	if (!chan || !tn_lk_lane_ready(link, lane))
		return false;
	op = TN_LIST_FIRST(&chan->tails, tn_lk_op, node);
	if (op && (op->wrs == 0 || !link->remote_done))
		return build_tail(link, lane, chan, op, post);
	op = TN_LIST_FIRST(&chan->xfers, tn_lk_op, node);
	if (op->length > 0)
		return build_piece(link, lane, chan, op, post);
	/* No data: its notification is all there is. It may have to wait for others. */
	tn_lk_xfer_begin(link, chan, op, lane);
	tn_lk_xfer_to_tails(link, chan, op);
	tn_lk_chan_update(link, chan);
	return next_of_lane(link, lane, class, post);
}

/* Lanes that can't go now are passed over; a window that is shut is shut for all. */
static bool next_xfer(tn_link *link, uint32_t class, tn_link_post *post)
{
	uint32_t tried = 0;
	tn_lk_lane *lane;

	link->window_shut = false;
	while (!link->window_shut && (lane = tn_lk_turn_lane(link, class, tried))) {
		if (next_of_lane(link, lane, class, post))
			return true;
		tried |= 1u << lane->index;
	}
	return false;
}

/* ---- the order of all ---- */

static bool may_post_data(const tn_link *link)
{
	return link->state == TN_LINK_UP && !tn_lk_journal_due(link) &&
	       link->wr_live + TN_WR_RESERVE < link->wr_room;
}

static bool next_data(tn_link *link, tn_lk_lane *lane0, tn_link_post *post)
{
	if (!may_post_data(link))
		return false;
	link->turn = !link->turn;
	link->budget_shut = false;
	if (link->turn && next_message(link, lane0, post))
		return true;
	if (link->xfer_ready && next_xfer(link, TN_CLASS_SMALL, post))
		return true;
	if (!link->turn && next_message(link, lane0, post))
		return true;
	if (link->outside)
		return false; /* the next piece comes when this one is over */
	if (link->bulk_ready && next_xfer(link, TN_CLASS_BULK, post))
		return true;
	tn_lk_bulk_rest(link);
	return false;
}

#define MEMORY_NS (10 * TN_NS_PER_MS)

/* After a rest: rows to post with, if there is something to be posted. */
static bool begin_work(tn_link *link, uint64_t now_ns)
{
	if (link->state == TN_LINK_UP && !link->credit_due && !link->xfer_ready && !link->fail_count &&
	    !link->hold && !link->ask_seen && !tn_lk_journal_due(link) && tn_list_empty(&link->ctl) &&
	    tn_list_empty(&link->msg_ready))
		return false;
	if (tn_lk_work_lend(link))
		return true;
	tn_lk_arm(link, TN_TIMER_RETRY, now_ns + MEMORY_NS);
	return false;
}

bool tn_lk_next_post(tn_link *link, uint64_t now_ns, tn_link_action *act)
{
	tn_lk_lane *lane0 = link->by_index[0];
	bool only_lane0, found;

	if ((link->state != TN_LINK_UP && link->state != TN_LINK_CLOSING) ||
	    link->wr_live >= link->config->wrs_max)
		return false;
	tn_lk_grants_news(link);
	tn_lk_slots_news(link);
	if (TN_UNLIKELY(!link->wrs) && !begin_work(link, now_ns))
		return false;
	/* A message that leaves now carries lane 0's totals: no frame for them alone. */
	only_lane0 = link->credit_due == 1 && !tn_list_empty(&link->msg_ready) && tn_list_empty(&link->ctl) &&
		     link->fail_count == 0;
	found = (only_lane0 && may_post_data(link) && next_message(link, lane0, &act->post)) ||
		next_own(link, lane0, &act->post) || next_data(link, lane0, &act->post) ||
		/* What data has to wait for is asked for at once. */
		((link->credit_due & TN_DUE_DEMAND) && next_own(link, lane0, &act->post)) ||
		(link->hold && tn_lk_next_quiet(link, &act->post)) ||
		(link->ask_seen && tn_lk_next_ask(link, &act->post));
	if (!found)
		return false;
	if (TN_UNLIKELY(link->sums) && link->wrs[(uint32_t)act->post.cookie].kind == TN_WR_DATA)
		tn_lk_sum_fill(link, &act->post);
	act->type = TN_ACT_POST;
	link->posting = (uint32_t)act->post.cookie;
	return true;
}

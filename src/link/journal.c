/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was sent and may not have arrived: a log per lane of the frames and notifications that a new lane would
 * have to carry again. Rows are in order of sending; a row goes when the peer's totals cover it.
 *
 *	log 0           head ..... next ..... tail      the stream of lane 0, in which all that is sent again goes
 *	                  sent, open  | to be sent again (empty but after a break)
 *	logs of others  head ..... next = tail          notifications only
 *
 *	ring            bytes of log 0's rows, in the same order: bodies and payloads of frames, and puts that
 *	                ended at their post though nobody said that they arrived
 *
 *   ring_head <= each row's at < its end <= ring_tail;  ring_tail - ring_head <= ring_bytes
 *
 * Must not: decide what an op's end is (recover.c). Threads: none. Tests: tests/unit/link/pair_test.c.
 */
#include "link/journal_rows.h"

/* ---- rows come ---- */

/*
 * Longer payloads are copied when their post is over, not before it: the peer works on them meanwhile. Until then their op has
 * them, for it does not end while a post of it is out; and a lane is drained before anything of its log is sent again.
 */
#define LATE_BYTES 1024u

static bool copies_late(tn_link *link, const tn_lk_lane *lane, const tn_lk_wr *wr, tn_lk_note *note)
{
	if (wr->kind != TN_WR_DATA || wr->op == TN_NONE || wr->bytes < LATE_BYTES || lane->index != 0)
		return false;
	memcpy(note->small, &link->ops[wr->op].sent, sizeof(uint64_t));
	return true;
}

static void note_frame(tn_link *link, tn_lk_note *note, const tn_link_post *post)
{
	uint64_t n = post->iov[0].bytes - sizeof(tn_frame_head);
	const uint8_t *header = post->iov[0].base;
	uint8_t *to;

	TN_ASSERT(n <= TN_WR_HEADER_BYTES - sizeof(tn_frame_head));
	note->what = TN_NOTE_FRAME;
	note->type = header[0];
	note->body = (uint8_t)n;
	for (uint32_t i = 1; i < post->iov_count; i++)
		n += post->iov[i].bytes;
	note->bytes = (uint32_t)(n - note->body);
	tn_lk_ring_take(link, note, n);
	to = tn_lk_bytes_of(link, note);
	memcpy(to, header + sizeof(tn_frame_head), note->body);
	to += note->body;
	for (uint32_t i = 1; i < post->iov_count && !note->late; i++) {
		tn_lk_keep(link, to, post->iov[i].base, post->iov[i].bytes, false);
		to += post->iov[i].bytes;
	}
}

void tn_lk_journal_add(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_link_post *post)
{
	tn_lk_journal *log = &link->journal[lane->index];
	uint8_t type = wr->header[0];
	const tn_lk_chan *chan = wr->chan == TN_NONE ? NULL : &link->chans[wr->chan];
	tn_lk_note *note;

	if (!link->resumes)
		return;
	_Static_assert(TN_FRAME_CREDIT == TN_FRAME_NOTIFY + 1 && TN_FRAME_TYPES == TN_FRAME_RELINQUISHED + 1,
		       "CREDIT, SYNC, BYE, GRANT, DEMAND, SLOTS, RELINQUISHED are not kept");
	if (type >= TN_FRAME_CREDIT)
		return;
	TN_ASSERT(log->next == log->tail);
	note = tn_lk_row(log, log->tail);
	*note = (tn_lk_note){.chan = chan ? chan->handle : 0, .at = link->ring_tail, .end = link->ring_tail};
	if (type == TN_FRAME_NOTIFY) {
		const tn_frame_notify *frame = (const tn_frame_notify *)wr->header;

		tn_lk_note_notify(note, frame->channel, frame->value, frame->bytes);
	} else {
		note->late = copies_late(link, lane, wr, note);
		note_frame(link, note, post);
	}
	if (wr->op != TN_NONE && (type == TN_FRAME_NOTIFY || (wr->last && link->ops[wr->op].need_ack)))
		note->op = tn_lk_op_handle(link, &link->ops[wr->op]);
	tn_lk_note_where(lane, note, true);
	wr->note = log->tail++;
	log->next = log->tail;
}

void tn_lk_journal_late(tn_link *link, const tn_lk_wr *wr)
{
	tn_lk_note *note = tn_lk_row(&link->journal[0], wr->note);
	const tn_lk_op *op = wr->op == TN_NONE ? NULL : &link->ops[wr->op];
	uint64_t from, left;
	uint8_t *to;

	/* It may have arrived, and its row be another's by now. */
	if (!link->resumes || !op || (int32_t)(wr->note - link->journal[0].head) < 0 || !note->late)
		return;
	TN_ASSERT(op->kind == TN_OP_MESSAGE && op->wrs > 0 && note->bytes == wr->bytes);
	memcpy(&from, note->small, sizeof(from));
	to = tn_lk_bytes_of(link, note) + note->body;
	left = note->bytes;
	for (uint32_t i = 0; i < op->msg.count && left > 0; i++) {
		const tn_link_iov *piece = &op->msg.iov[i];
		uint64_t skip = TN_MIN(from, piece->bytes), n = TN_MIN(left, piece->bytes - skip);

		tn_lk_keep(link, to, (const uint8_t *)piece->base + skip, n, false);
		from -= skip;
		to += n;
		left -= n;
	}
	note->late = false;
}

/* ---- rows go ---- */

static void drop_void(tn_link *link, tn_lk_journal *log)
{
	while (log->head != log->tail && tn_lk_row(log, log->head)->what == TN_NOTE_VOID) {
		if (log->next == log->head)
			log->next++;
		log->head++;
	}
	if (log != &link->journal[0])
		return;
	tn_lk_journal_begins(link, log, log->head);
}

void tn_lk_journal_prune(tn_link *link, tn_lk_lane *lane)
{
	tn_lk_journal *log = &link->journal[lane->index];

	if (!link->resumes)
		return;
	log->head = tn_lk_journal_open(log, lane);
	drop_void(link, log);
}

void tn_lk_journal_refused(tn_link *link, const tn_lk_lane *lane, const tn_lk_wr *wr)
{
	tn_lk_journal *log = &link->journal[lane->index];

	if (!link->resumes)
		return;
	for (uint32_t at = log->head; at != log->next; at++) {
		tn_lk_note *note = tn_lk_row(log, at);

		if (at == wr->note)
			note->what = TN_NOTE_VOID;
		else if ((int32_t)(at - wr->note) > 0)
			note->slot--;
	}
	drop_void(link, log);
}

void tn_lk_journal_orphan(tn_link *link, uint64_t op)
{
	for (uint32_t i = 0; i < TN_LINK_LANES_MAX && link->resumes; i++) {
		tn_lk_journal *log = &link->journal[i];

		for (uint32_t at = log->head; at != log->tail; at++)
			tn_lk_row(log, at)->orphan |= tn_lk_row(log, at)->op == op;
	}
}

static void drop_notify(tn_link *link, tn_lk_note *note)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, note->chan);

	if (chan)
		chan->notifies_tx--;
	note->what = TN_NOTE_VOID;
}

void tn_lk_journal_settle(tn_link *link, const tn_lk_lane *lane, uint32_t received)
{
	tn_lk_journal *log = &link->journal[lane->index];

	for (uint32_t at = log->head; at != log->next; at++) {
		tn_lk_note *note = tn_lk_row(log, at);

		if (note->what == TN_NOTE_VOID)
			continue;
		if ((int32_t)(received - note->slot) >= 0) {
			tn_lk_note_arrived(link, note);
			note->what = TN_NOTE_VOID;
		} else {
			TN_ASSERT(!note->late);
			if (note->orphan)
				drop_notify(link, note);
			else
				tn_lk_note_lost(link, note);
		}
	}
	/* What was waiting already begins anew. */
	for (uint32_t at = log->next; at != log->tail; at++)
		if (tn_lk_row(log, at)->what != TN_NOTE_VOID && tn_lk_row(log, at)->orphan)
			drop_notify(link, tn_lk_row(log, at));
		else if (tn_lk_row(log, at)->what != TN_NOTE_VOID)
			tn_lk_note_lost(link, tn_lk_row(log, at));
	drop_void(link, log);
	log->next = log->head;
	if (log == &link->journal[0])
		return;
	for (; log->head != log->tail; log->head++) {
		tn_lk_note *to = tn_lk_row(&link->journal[0], link->journal[0].tail);

		if (tn_lk_row(log, log->head)->what == TN_NOTE_VOID)
			continue;
		TN_ASSERT(link->journal[0].tail - link->journal[0].head <= link->journal[0].mask);
		*to = *tn_lk_row(log, log->head);
		to->at = to->end = link->ring_tail;
		link->journal[0].tail++;
	}
	log->next = log->tail;
}

/* ---- sending again ---- */

static bool redo_write(tn_link *link, tn_lk_lane *lane, tn_lk_op *op, uint64_t n, tn_link_post *post)
{
	tn_lk_wr *wr;

	if (op && !tn_lk_window_open(link, n))
		return false;
	wr = tn_lk_wr_begin(link, TN_WR_REDO, NULL, op, n);
	tn_lk_xfer_post(link, lane, wr, post, TN_POST_WRITE);
	/* If the target refuses it, it must not be tried for ever. */
	post->signal = true;
	return true;
}

/* The data of a notification that did not arrive. False with *hold: not now. */
static bool redo_data(tn_link *link, tn_lk_lane *lane, tn_lk_note *note, tn_link_post *post, bool *hold)
{
	tn_lk_op *op = tn_lk_op_get(link, note->op);

	if (op && op->redo && op->sent < op->length) {
		*hold = true;
		if (!redo_write(link, lane, op, TN_MIN(op->length - op->sent, tn_lk_piece_max(link)), post))
			return false;
		post->local = (uint8_t *)op->x.local + op->sent;
		post->key = op->x.key;
		post->offset = op->x.offset + op->sent;
		return true;
	}
	if (note->what == TN_NOTE_PUT && !note->written && !(op && op->redo)) {
		const uint8_t *from = tn_lk_bytes_of(link, note);

		*hold = true;
		if (!redo_write(link, lane, NULL, note->bytes, post))
			return false;
		post->key = from;
		memcpy(&post->offset, from + TN_LINK_KEY_BYTES, 8);
		post->local = (uint8_t *)(uintptr_t)(from + TN_LK_PUT_HEAD);
		return true;
	}
	/* A notification comes after its data. */
	*hold = link->remote_done && link->redo_wrs > 0;
	return false;
}

static void redo_frame(tn_link *link, tn_lk_lane *lane, const tn_lk_note *note, tn_link_post *post)
{
	tn_lk_op *op = tn_lk_op_get(link, note->op);
	bool notify = note->what != TN_NOTE_FRAME;
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_AGAIN, NULL, notify && op && op->redo ? op : NULL, 0);
	const uint8_t *from = notify ? note->small : tn_lk_bytes_of(link, note);
	uint32_t body = notify ? sizeof(note->small) : note->body;

	wr->bytes = notify ? 0 : note->bytes;
	tn_lk_head_fill(link, lane, wr, (tn_frame_type)note->type,
			op || tn_lk_journal_half_full(link) ? TN_FRAME_ACK : 0);
	memcpy(wr->header + sizeof(tn_frame_head), from, body);
	tn_lk_frame_post(link, lane, wr, sizeof(tn_frame_head) + body, post);
	if (wr->bytes > 0)
		post->iov[post->iov_count++] = (tn_link_iov){from + body, wr->bytes};
}

bool tn_lk_journal_next(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_journal *log = &link->journal[0];
	tn_lk_note *note;
	bool hold = false;

	drop_void(link, log);
	for (; log->next != log->tail && tn_lk_row(log, log->next)->what == TN_NOTE_VOID; log->next++)
		;
	if (log->next == log->tail || !tn_lk_lane_ready(link, lane))
		return false;
	note = tn_lk_row(log, log->next);
	if (note->what != TN_NOTE_FRAME) {
		if (redo_data(link, lane, note, post, &hold))
			return true;
		if (hold)
			return false;
	}
	if (tn_lk_credits(lane) <= 1) {
		tn_count_own(&link->counters.credit_waits, 1);
		return false;
	}
	redo_frame(link, lane, note, post);
	return true;
}

void tn_lk_journal_sent(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr)
{
	tn_lk_journal *log = &link->journal[0];
	tn_lk_note *note = tn_lk_row(log, log->next);
	tn_lk_op *op = tn_lk_op_get(link, note->op);
	tn_lk_chan *chan = tn_lk_chan_get(link, note->chan);

	if (wr->kind == TN_WR_REDO) {
		link->redo_wrs++;
		wr->note = log->next;
		if (op && op->redo)
			op->sent += wr->bytes;
		else
			note->written = true;
		return;
	}
	wr->note = log->next++;
	tn_lk_note_where(lane, note, true);
	tn_count_own(&link->counters.resent, 1);
	if (note->what != TN_NOTE_FRAME && chan) {
		chan->notify_lane = 0;
		chan->notify_slot = lane->consumed;
		tn_lk_chan_update(link, chan); /* the next one goes behind it */
	}
	if (!op)
		return;
	op->redo = op->resent = false;
	if (op->need_ack && !op->acked && op->state == TN_LOP_POSTED) {
		op->ack_unit = lane->tx_units;
		tn_list_push_back(&lane->acks, &op->ack_node);
	}
}

void tn_lk_journal_write_refused(tn_link *link, const tn_lk_wr *wr)
{
	tn_lk_journal *log = &link->journal[0];
	tn_lk_note *note = tn_lk_row(log, wr->note);
	tn_lk_chan *chan = tn_lk_chan_get(link, note->chan);

	if (wr->op != TN_NONE || (int32_t)(wr->note - log->head) < 0 || note->what != TN_NOTE_PUT)
		return;
	drop_notify(link, note);
	if (chan)
		tn_lk_chan_spoil(link, chan);
}

void tn_lk_journal_void(tn_link *link, uint64_t op)
{
	tn_lk_journal *log = &link->journal[0];

	for (uint32_t at = log->next; at != log->tail; at++)
		if (tn_lk_row(log, at)->op == op)
			tn_lk_row(log, at)->what = TN_NOTE_VOID;
}

void tn_lk_journal_check(const tn_link *link)
{
	const tn_lk_journal *log = &link->journal[0];
	uint64_t at = link->ring_head;

	TN_ASSERT(link->ring_tail - link->ring_head <= TN_JOURNAL_RING_BYTES);
	TN_ASSERT(log->next - log->head <= log->tail - log->head && log->tail - log->head <= log->mask + 1);
	for (uint32_t i = log->head; i != log->tail; i++) {
		const tn_lk_note *note = tn_lk_row((tn_lk_journal *)(uintptr_t)log, i);

		if (note->what == TN_NOTE_VOID)
			continue;
		TN_ASSERT(note->at >= at && note->end >= note->at && note->end <= link->ring_tail);
		at = note->end;
	}
	for (uint32_t i = 1; i < TN_LINK_LANES_MAX; i++)
		TN_ASSERT(link->journal[i].next == link->journal[i].tail);
}

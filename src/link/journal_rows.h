/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posts and rows of the journal as they are filled, inline, for messages and notifications that end with their post:
 * that is a third of what they cost. The invariants: journal.c.
 *
 * Threads: none. Tests: tests/unit/link/pair_test.c.
 */
#ifndef TN_LINK_JOURNAL_ROWS_H
#define TN_LINK_JOURNAL_ROWS_H

#include "link/internal.h"

#define TN_LK_PUT_HEAD (TN_LINK_KEY_BYTES + 8u)

static inline tn_lk_note *tn_lk_row(tn_lk_journal *log, uint32_t at)
{
	return &log->rows[at & log->mask];
}

/* ---- posts ---- */

static TN_ALWAYS_INLINE void tn_lk_post_begin(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr,
					      tn_link_post *post, tn_link_post_type type)
{
	wr->lane = tn_lk_lane_slot(link, lane);
	post->type = type;
	post->lane = lane->handle;
	post->lane_user = lane->user;
	post->cookie = (uint64_t)wr->generation << 32 | tn_lk_wr_index(link, wr);
	post->level = TN_LINK_LOCAL;
	post->iov_count = 0;
	post->bytes = wr->bytes;
	post->imm = 0;
	post->whole = 0;
	post->signal = post->last = post->more = false;
}

/* ---- the ring ---- */

/* Where n bytes would begin: a row's bytes lie in one piece. */
static inline uint64_t tn_lk_ring_place(const tn_link *link, uint64_t n)
{
	uint64_t in = link->ring_tail & (TN_JOURNAL_RING_BYTES - 1);

	return link->ring_tail + (in + n > TN_JOURNAL_RING_BYTES ? TN_JOURNAL_RING_BYTES - in : 0);
}

static inline bool tn_lk_ring_fits(const tn_link *link, uint64_t n)
{
	return tn_lk_ring_place(link, n) + n - link->ring_head <= TN_JOURNAL_RING_BYTES;
}

/* May a unit with `bytes` of body and payload go? own: a frame of the link's own. */
static inline bool tn_lk_journal_room(const tn_link *link, const tn_lk_lane *lane, uint64_t bytes, bool own)
{
	const tn_lk_journal *log = &link->journal[lane->index];

	if (!link->resumes)
		return true;
	if (log->tail - log->head >= TN_JOURNAL_ROWS + (own ? TN_JOURNAL_RESERVE_ROWS : 0))
		return false;
	/* Frames of the link's own have the reserve. */
	return lane->index != 0 || tn_lk_ring_fits(link, bytes + (own ? 0 : TN_JOURNAL_RESERVE_BYTES));
}

/* The peer should say soon what it has. */
static inline bool tn_lk_journal_half_full(const tn_link *link)
{
	return link->resumes && (link->ring_tail - link->ring_head > TN_JOURNAL_RING_BYTES / 2 ||
				 link->journal[0].tail - link->journal[0].head > TN_JOURNAL_ROWS / 2);
}

static inline uint8_t *tn_lk_bytes_of(const tn_link *link, const tn_lk_note *note)
{
	return link->ring + (note->at & (TN_JOURNAL_RING_BYTES - 1));
}

static inline void tn_lk_ring_take(tn_link *link, tn_lk_note *note, uint64_t n)
{
	TN_ASSERT(tn_lk_ring_fits(link, n));
	note->at = tn_lk_ring_place(link, n);
	note->end = link->ring_tail = note->at + n;
}

/* host: in host memory, for certain. */
static inline void tn_lk_keep(tn_link *link, uint8_t *to, const void *from, uint64_t bytes, bool host)
{
	if (bytes == 0 || TN_MUTANT(17))
		return;
	if (host && bytes == 8) /* a word needs no call */
		memcpy(to, from, 8);
	else if (host || !link->config->copy)
		memcpy(to, from, bytes);
	else if (link->config->copy(to, from, bytes, link->config->copy_arg) != TERN_OK)
		link->torn = true;
}

/* The put ended with its post: if it does not arrive, its bytes are needed again. */
static inline void tn_lk_note_silent(tn_link *link, tn_lk_note *note, const tn_link_post *post, bool host)
{
	uint8_t *to;

	note->what = TN_NOTE_PUT;
	note->bytes = (uint32_t)post->bytes;
	tn_lk_ring_take(link, note, TN_LK_PUT_HEAD + post->bytes);
	to = tn_lk_bytes_of(link, note);
	memcpy(to, post->key, TN_LINK_KEY_BYTES);
	memcpy(to + TN_LINK_KEY_BYTES, &post->offset, 8);
	tn_lk_keep(link, to + TN_LK_PUT_HEAD, post->local, post->bytes, host);
}

static inline void tn_lk_note_notify(tn_lk_note *note, uint32_t channel, uint32_t value, uint64_t bytes)
{
	note->what = TN_NOTE_NOTIFY;
	note->type = TN_FRAME_NOTIFY;
	memcpy(note->small, &channel, 4);
	memcpy(note->small + 4, &value, 4);
	memcpy(note->small + 8, &bytes, 8);
}

static inline void tn_lk_note_where(const tn_lk_lane *lane, tn_lk_note *note, bool unit)
{
	note->slot = lane->consumed;
	/* What is no unit has arrived when the unit after it has. */
	note->unit = lane->tx_units + !unit;
}

static TN_ALWAYS_INLINE void tn_lk_note_imm(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr,
					    const tn_link_post *post, bool done, bool host)
{
	tn_lk_journal *log = &link->journal[lane->index];
	const tn_lk_chan *chan = &link->chans[wr->chan];
	tn_lk_note *note = tn_lk_row(log, log->tail);

	TN_ASSERT(log->next == log->tail);
	*note = (tn_lk_note){.chan = chan->handle, .at = link->ring_tail, .end = link->ring_tail};
	tn_lk_note_notify(note, chan->peer, post->imm & ((1u << TN_LINK_NOTIFY_BITS) - 1), wr->bytes);
	if (done && !link->remote_done && tn_lk_journal_keeps(lane, wr->bytes))
		tn_lk_note_silent(link, note, post, host);
	if (wr->op != TN_NONE)
		note->op = tn_lk_op_handle(link, &link->ops[wr->op]);
	tn_lk_note_where(lane, note, !link->remote_done);
	wr->note = log->tail;
	log->next = ++log->tail;
}

/* A whole message, and how it left. */
typedef struct tn_lk_left {
	const uint8_t *header; /* tn_frame_data */
	const tn_link_iov *iov;
	uint32_t count;
	uint64_t bytes; /* of iov */
	bool host;
} tn_lk_left;

/* A whole message that ended with its post; by fields, because zeroing the row first costs as much as the rest. */
static TN_ALWAYS_INLINE void tn_lk_note_message(tn_link *link, tn_lk_lane *lane, const tn_lk_chan *chan,
						const tn_lk_left *left)
{
	tn_lk_journal *log = &link->journal[0];
	tn_lk_note *note = tn_lk_row(log, log->tail);
	const uint32_t body = sizeof(tn_frame_data) - sizeof(tn_frame_head);
	uint8_t *to;

	TN_ASSERT(lane->index == 0 && log->next == log->tail);
	note->what = TN_NOTE_FRAME;
	note->type = TN_FRAME_DATA;
	note->body = body;
	note->orphan = note->written = note->late = false;
	note->chan = chan->handle;
	note->bytes = (uint32_t)left->bytes;
	note->op = 0;
	tn_lk_note_where(lane, note, true);
	tn_lk_ring_take(link, note, body + left->bytes);
	to = tn_lk_bytes_of(link, note);
	memcpy(to, left->header + sizeof(tn_frame_head), body);
	to += body;
	for (uint32_t i = 0; i < left->count; i++) {
		tn_lk_keep(link, to, left->iov[i].base, left->iov[i].bytes, left->host);
		to += left->iov[i].bytes;
	}
	log->next = ++log->tail;
}

/* tn_lk_consume of such a message: its header told the lane's totals as they are. */
static TN_ALWAYS_INLINE void tn_lk_consume_message(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan,
						   const tn_lk_left *left)
{
	TN_ASSERT(tn_lk_credits(lane) > 0);
	TN_ASSERT(((const tn_frame_head *)left->header)->grant == lane->my_granted &&
		  ((const tn_frame_head *)left->header)->seen == lane->rx_units);
	lane->tx_serial++;
	lane->consumed++;
	lane->tx_units++;
	lane->my_told = lane->my_granted;
	lane->seen_told = lane->rx_units;
	lane->ack_due = false;
	link->credit_due &= ~1u;
	if (link->resumes)
		tn_lk_note_message(link, lane, chan, left);
	chan->tx_sent += left->bytes + TN_FRAME_COST;
	chan->tx_seq++;
	tn_count_own(&link->counters.frames_tx, 1);
	tn_count_own(&link->counters.messages_tx, 1);
	tn_count_own(&link->counters.ops_fast, 1);
}

/* Where the rows begin that the peer's totals do not cover. */
static inline uint32_t tn_lk_journal_open(tn_lk_journal *log, const tn_lk_lane *lane)
{
	uint32_t taken = lane->granted - lane->first, at = log->head;

	for (; at != log->next; at++) {
		const tn_lk_note *note = tn_lk_row(log, at);

		if (note->what != TN_NOTE_VOID && (int32_t)(taken - note->slot) < 0 &&
		    (int32_t)(lane->peer_seen - note->unit) < 0)
			break;
	}
	return at;
}

#define TN_JOURNAL_LAP 64u /* rows: a page */

/* Log 0 begins there from now on. */
static inline void tn_lk_journal_begins(tn_link *link, tn_lk_journal *log, uint32_t head)
{
	log->head = head;
	if (head != log->tail) {
		link->ring_head = tn_lk_row(log, head)->at;
		return;
	}
	/* From its beginning again: a link that waits for its answers keeps few pages, in the cache. Numbers of rows only grow,
	   because frames on their way name theirs. */
	link->ring_head = link->ring_tail = 0;
	if ((head & log->mask) >= TN_JOURNAL_LAP)
		log->head = log->next = log->tail = (head | log->mask) + 1;
}

/* tn_lk_consume of a notification. */
static TN_ALWAYS_INLINE void tn_lk_consume_imm(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr,
					       const tn_link_post *post, bool done, bool host)
{
	TN_ASSERT(tn_lk_credits(lane) > 0);
	lane->tx_serial++;
	lane->consumed++;
	if (!link->remote_done)
		lane->tx_units++;
	if (link->resumes)
		tn_lk_note_imm(link, lane, wr, post, done, host);
	tn_count_own(&link->counters.imms_tx, 1);
}

#endif

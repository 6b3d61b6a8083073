/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the journal as they are filled, inline, for a notification that ends with its post: that is a third of what
 * it costs afterwards. The invariants: journal.c.
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
	else if (host || !link->config.copy)
		memcpy(to, from, bytes);
	else if (link->config.copy(to, from, bytes, link->config.copy_arg) != TERN_OK)
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

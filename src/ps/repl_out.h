/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primary's side of replication, of one backup: a stream of frames. What happens is written into the open frame; one
 * frame is under way at a time, and while it is the next one fills (group commit).
 *
 *   wait   whoever may go on when the backup has everything up to here: an operation that was applied
 *
 *   open:  entries --.        frame seq + 1: take ->  sent, seq      -- answer -> its waits are over
 *   a frame is repeated, the same bytes, until it is answered; the backup takes it once
 *
 * Pure. Threads: one at a time (the caller's lock). Tests: tests/unit/ps/repl_sim.
 */
#ifndef TN_PS_REPL_OUT_H
#define TN_PS_REPL_OUT_H

#include <stdatomic.h>

#include "ps/repl_wire.h"

typedef struct tn_repl_waits {
	void **who;
	uint32_t count, room;
} tn_repl_waits;

typedef struct tn_repl_out {
	uint16_t self;
	uint64_t stream, seq; /* of the frame that was taken last */
	bool flying;
	_Atomic uint64_t backlog; /* bytes in the open frame, about: for who has no lock */
	tn_repl_buf open, sent;
	tn_repl_waits open_waits, sent_waits;
} tn_repl_out;

/* Begins a stream: what was in an old one is forgotten, but for its memory. No waits may be left. False: no memory. */
bool tn_repl_out_begin(tn_repl_out *out, uint16_t self, uint64_t stream);
void tn_repl_out_fini(tn_repl_out *out);
/* Room for one more wait, so that the next tn_repl_out_wait can't fail. False: no memory. */
bool tn_repl_out_reserve_wait(tn_repl_out *out);
/* What was written is there: for whoever looks at the backlog. */
static inline void tn_repl_out_note(tn_repl_out *out)
{
	atomic_store_explicit(&out->backlog, out->open.used, memory_order_relaxed);
}
/* For what is in the open frame. */
void tn_repl_out_wait(tn_repl_out *out, void *who);
/* Is there a frame to be sent? It becomes the sent one: *frame, *bytes until it is answered. */
bool tn_repl_out_take(tn_repl_out *out, uint64_t map_version, const uint8_t **frame, uint64_t *bytes);
/* The frame under way was answered (not LATER). Its waits are the caller's: swap out, then call. */
void tn_repl_out_answered(tn_repl_out *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of frames to one backup. See repl_out.h. Pure. Tests: tests/unit/ps/repl_sim.
 */
#include "ps/repl_out.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/mutant.h"

bool tn_repl_out_begin(tn_repl_out *o, uint16_t self, uint64_t stream)
{
	TN_ASSERT(stream != 0 && o->open_waits.count == 0 && o->sent_waits.count == 0);
	o->self = self;
	o->stream = stream;
	o->seq = 0;
	o->flying = false;
	o->sent.used = 0;
	return tn_repl_buf_start(&o->open);
}

void tn_repl_out_fini(tn_repl_out *o)
{
	tn_repl_buf_free(&o->open);
	tn_repl_buf_free(&o->sent);
	free((void *)o->open_waits.who);
	free((void *)o->sent_waits.who);
	memset(o, 0, sizeof(*o));
}

bool tn_repl_out_reserve_wait(tn_repl_out *o)
{
	tn_repl_waits *w = &o->open_waits;
	uint32_t room = w->room ? w->room * 2 : 64;
	void **more;

	if (w->count < w->room)
		return true;
	more = TN_FAULT("ps.repl.alloc") ? NULL : realloc((void *)w->who, room * sizeof(*more));
	if (!more)
		return false;
	w->who = more;
	w->room = room;
	return true;
}

void tn_repl_out_wait(tn_repl_out *o, void *who)
{
	tn_repl_waits *w = TN_MUTANT(101) && o->flying && o->sent_waits.count < o->sent_waits.room
				   ? &o->sent_waits
				   : &o->open_waits;

	TN_ASSERT(w->count < w->room);
	w->who[w->count++] = who;
	tn_repl_out_note(o);
}

bool tn_repl_out_take(tn_repl_out *o, uint64_t map_version, const uint8_t **frame, uint64_t *bytes)
{
	tn_repl_head head = {.from = o->self, .stream = o->stream, .map_version = map_version};
	tn_repl_waits waits = o->sent_waits;
	tn_repl_buf buf = o->sent;

	if (o->flying || (tn_repl_buf_empty(&o->open) && o->open_waits.count == 0))
		return false;
	TN_ASSERT(waits.count == 0 && o->open.entry == 0);
	if (!tn_repl_buf_start(&buf)) { /* the next one has no room: later */
		o->sent = buf;
		return false;
	}
	o->sent = o->open;
	o->open = buf;
	tn_repl_out_note(o);
	o->sent_waits = o->open_waits;
	o->open_waits = waits;
	o->flying = true;
	head.seq = ++o->seq;
	tn_repl_head_encode(o->sent.at, &head);
	*frame = o->sent.at;
	*bytes = o->sent.used;
	return true;
}

void tn_repl_out_answered(tn_repl_out *o)
{
	TN_ASSERT(o->flying && o->sent_waits.count == 0);
	o->flying = false;
	o->sent.used = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this layer offer each other, by file; the state that they work on is in state.h.
 * Threads: none. Tests: tests/unit/link.
 */
#ifndef TN_LINK_INTERNAL_H
#define TN_LINK_INTERNAL_H

#include "link/state.h"

/* ---- link_state.c ---- */

/* The only writer of link->state. */
void tn_link_set_state(tn_link *link, tn_link_state to);
TN_PRINTF(3, 4) void tn_lk_log(const tn_link *link, int level, const char *fmt, ...);
static inline bool tn_lk_armed(const tn_link *link, unsigned which)
{
	return link->timer_at[which] != TN_TIME_NEVER;
}

/* A text of TN_LINK_TEXT_MAX, empty if it was none; false: no memory. NULL is "" for who reads it. */
bool tn_lk_text_lend(tn_link *link, char **text);
void tn_lk_text_back(tn_link *link, char **text);
static inline const char *tn_lk_text(const char *text)
{
	return text ? text : "";
}

/* End the link: tell the peer (if the control connection is up), close lanes, settle ops. Idempotent. */
TN_COLD TN_PRINTF(4, 5) void tn_lk_fail_link(tn_link *link, uint64_t now_ns, tern_status status,
					     const char *fmt, ...);
/* The same without telling the peer. */
TN_COLD void tn_lk_drain(tn_link *link, uint64_t now_ns, bool verdict);
/* After something that an orderly close waits for. */
void tn_lk_closing_step(tn_link *link, uint64_t now_ns);
/* The peer's BYE came: it closes the link. */
void tn_lk_peer_closes(tn_link *link, uint64_t now_ns);
/* A lane died under way. */
TN_COLD void tn_lk_lane_failed(tn_link *link, tn_lk_lane *lane, tern_status status, const char *detail,
			       uint64_t now_ns);
bool tn_lk_next_down(tn_link *link, tn_link_action *act);
void tn_lk_arm(tn_link *link, unsigned which, uint64_t at_ns);
void tn_lk_disarm(tn_link *link, unsigned which);

/* A whole control message: NULL or what is wrong. */
const char *tn_lk_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
			  uint64_t now_ns);

/* ---- ctrl.c, hello.c ---- */

/* A writer at the end of the output; _end gives it back and fails the link if it overflowed. */
tn_writer tn_lk_out_begin(tn_link *link);
void tn_lk_out_end(tn_link *link, const tn_writer *w, uint64_t now_ns);
/* Nothing is in the buffers of the control connection any more: they are given back. */
void tn_lk_ctrl_rest(tn_link *link);
void tn_lk_ctrl_fini(tn_link *link);
/* A message that is an epoch alone. */
void tn_lk_say_epoch(tn_link *link, tn_ctrl_type type, uint32_t epoch, uint64_t now_ns);
const char *tn_lk_hello_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				uint64_t now_ns);
/* HMAC with the session's key; at most 32 bytes. */
tern_status tn_lk_session_mac(const tn_link *link, const char *label, const void *data, uint64_t bytes,
			      uint8_t mac[TN_HMAC_BYTES]);
/* Fill the secret of a lane. */
void tn_lk_lane_token(tn_link *link, tn_lk_lane *lane);
void tn_lk_hello_start(tn_link *link, uint64_t now_ns);
/* What hello alone needs is wiped and given back; once. */
void tn_lk_birth_over(tn_link *link);

/* ---- rejoin.c ---- */

/* These bytes of the stream go out now. */
void tn_lk_ctrl_sent(tn_link *link, const uint8_t *bytes, uint32_t n);
/* The next of those that go again; 0: none. */
uint32_t tn_lk_ctrl_again(tn_link *link, const uint8_t **bytes);
/* It is away. */
bool tn_lk_ctrl_gone(const tn_link *link);
/* It ended: false if that is the end of the link. */
bool tn_lk_ctrl_may_return(tn_link *link, tern_status status, const char *text, uint64_t now_ns);
void tn_lk_redial_timeout(tn_link *link, uint64_t now_ns);
void tn_lk_rejoin_begin(tn_link *link, uint64_t now_ns);
/* Bytes while REJOINED is awaited; returns how many it took. */
uint64_t tn_lk_rejoin_bytes(tn_link *link, const uint8_t *bytes, uint64_t n, uint64_t now_ns);

void tn_lk_ctrl_log_drop(tn_link *link);
/* The peer has received all that went out before the PING of this number. */
void tn_lk_ctrl_ponged(tn_link *link, uint64_t number);
/* Much is kept that the peer may have received. */
bool tn_lk_ctrl_unsure(const tn_link *link);

/* ---- wiring.c ---- */

void tn_lk_wiring_start(tn_link *link, uint64_t now_ns);
/* The first provider again, for new lanes. */
void tn_lk_wiring_again(tn_link *link, uint64_t now_ns);
/* The spare lanes are those in use from now on. */
void tn_lk_wiring_adopt(tn_link *link, uint64_t now_ns);
/* Messages WIRE, LANE_ADDR, WIRED, UNWIRE: NULL or what is wrong. */
const char *tn_lk_wiring_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				 uint64_t now_ns);
void tn_lk_wiring_timeout(tn_link *link, uint64_t now_ns);
/* A frame or immediate on a wired lane says that the peer is wired as well. */
TN_COLD void tn_lk_wiring_implied(tn_link *link, uint64_t now_ns);
/* The epoch's attempt failed: the next provider, or the end. */
void tn_lk_attempt_failed(tn_link *link, tern_status status, const char *text, uint64_t now_ns);
/* One of the epoch's lanes is connected; any lane is gone. */
void tn_lk_wiring_lane_up(tn_link *link, uint64_t now_ns);
void tn_lk_wiring_lane_gone(tn_link *link, uint64_t now_ns);
void tn_lk_wiring_fini(tn_link *link);
/* Lanes for one with the provider, if this side dials. */
uint32_t tn_lk_lanes_wanted(const tn_link *link, uint32_t provider);
/* Its lanes found no room: true if it is to be tried with one alone, which the dialer does until lanes break. */
bool tn_lk_try_fewer(tn_link *link, uint32_t provider, tern_status status);
/* That attempt is over here; the peer's reason may be on its way. */
static inline void tn_lk_attempt_past(tn_link *link, uint32_t epoch, uint32_t provider)
{
	link->past_epoch = epoch;
	link->past_provider = provider;
}
/* Of its device, as SETUP said it. */
static inline const uint8_t *tn_lk_peer_address(const tn_link *link, const tn_lk_peer_device *device)
{
	return (const uint8_t *)link->peer_setup + device->address_at;
}

/* The peer's row of the provider; TN_NONE: it has none, or one that carries no frames. */
uint32_t tn_lk_peer_provider(const tn_link *link, uint32_t provider);

/* ---- lane.c ---- */

void tn_lk_lane_set_state(tn_link *link, tn_lk_lane *lane, tn_lk_lane_state to);
const char *tn_lk_lane_state_name(tn_lk_lane_state state);
/* NULL for a stale handle. */
static inline tn_lk_lane *tn_lk_lane_get(tn_link *link, uint32_t handle)
{
	tn_lk_lane *lane = link->lanes[handle % TN_LANE_SLOTS];

	return handle && lane && lane->handle == handle ? lane : NULL;
}
/* n lanes of an epoch in state CREATE. TERN_AGAIN: not enough slots are free now. TERN_E_NOMEM. */
tern_status tn_lk_lanes_make(tn_link *link, uint32_t epoch, uint32_t provider, uint32_t n,
			     tn_lk_lane *by_index[TN_LINK_LANES_MAX]);
/* Rows that nobody needs any more are given back; all. */
void tn_lk_lanes_rest(tn_link *link);
void tn_lk_lanes_fini(tn_link *link);
/* For the addresses of so many lanes; NULL: no memory. */
tn_lk_addr *tn_lk_addrs_lend(tn_link *link, uint32_t lanes);
void tn_lk_addrs_back(tn_link *link, tn_lk_addr *addr, uint32_t lanes);
/* If it was made and the peer's address is known. */
void tn_lk_lane_connect(tn_link *link, tn_lk_lane *lane);
void tn_lk_lane_close(tn_link *link, tn_lk_lane *lane);
/* All but spare ones. */
void tn_lk_lanes_close(tn_link *link);
bool tn_lk_next_lane(tn_link *link, tn_link_action *act);

/* ---- spare.c ---- */

static inline bool tn_lk_is_spare(const tn_link *link, const tn_lk_lane *lane)
{
	return link->spare.active && lane->epoch == link->spare.epoch;
}

/* Over another than the best provider: look for a better one in a while. */
void tn_lk_probe_later(tn_link *link, uint64_t now_ns);
void tn_lk_probe(tn_link *link, uint64_t now_ns);
void tn_lk_spare_timeout(tn_link *link, uint64_t now_ns);
/* Is this provider left out because it broke again and again? */
bool tn_lk_held_back(const tn_link *link, uint32_t provider, uint64_t now_ns);
/* The lanes in use broke. */
void tn_lk_strike(tn_link *link, uint64_t now_ns);
/* Messages that name the spare's epoch; on_wire: a new one. */
const char *tn_lk_spare_wire(tn_link *link, const tn_wire_wire *wire, uint32_t own, uint32_t peer,
			     uint64_t now_ns);
const char *tn_lk_spare_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				uint64_t now_ns);
void tn_lk_spare_unwired(tn_link *link, tern_status status, const char *why, uint64_t now_ns);
void tn_lk_spare_reach(tn_link *link, tern_status status, const char *text, uint64_t now_ns);
void tn_lk_spare_make(tn_link *link, uint64_t now_ns);
void tn_lk_spare_fini(tn_link *link);
void tn_lk_health_fini(tn_link *link);
void tn_lk_spare_lane_up(tn_link *link, uint64_t now_ns);
void tn_lk_spare_failed(tn_link *link, tern_status status, const char *text, uint64_t now_ns);
/* Give it up, and tell the peer; nothing if there is none. */
void tn_lk_spare_drop(tn_link *link, tern_status status, const char *why, uint64_t now_ns);
/* Before RESUME is sent: one that is not connected on both sides is given up. */
void tn_lk_spare_settle(tn_link *link, uint64_t now_ns);
bool tn_lk_spare_usable(const tn_link *link);
void tn_lk_hold(tn_link *link, bool hold);
/* SYNC on each lane once nothing else is to be sent. */
/* A SYNC that the peer answers, on this lane. */
void tn_lk_sync_build(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
bool tn_lk_next_quiet(tn_link *link, tn_link_post *post);
void tn_lk_move_step(tn_link *link, uint64_t now_ns);

/* Dialer: so many lanes of the provider in use, beside those in use. reclaimed: for data lanes of other links. */
void tn_lk_spare_reshape(tn_link *link, uint32_t lanes, bool reclaimed);

/* ---- reshape.c ---- */

/* Lanes are up; the spare ones are those in use now. */
void tn_lk_reshape_up(tn_link *link, uint64_t now_ns);
void tn_lk_reshape_adopt(tn_link *link);
/* Time to look whether data lanes are used. */
void tn_lk_reshape_look(tn_link *link, uint64_t now_ns);
/* They were used since, or not long before, the last look. */
bool tn_lk_reshape_busy(tn_link *link, uint64_t now_ns);
/* Bulk goes over lane 0 alone because the others were given up. */
void tn_lk_reshape_demand(tn_link *link, uint64_t now_ns);
/* Message WIDEN: NULL or what is wrong. */
const char *tn_lk_widen_message(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns);
/* Messages NARROW and KEEP: NULL or what is wrong. */
const char *tn_lk_narrow_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				 uint64_t now_ns);
/* The device has more data lanes than its quota, and this link is to give up its own. */
TN_COLD void tn_lk_reshape_asked(tn_link *link, uint64_t now_ns);
static inline bool tn_lk_quota_news(const tn_link *link)
{
	return atomic_load_explicit(&link->quota_seat.news, memory_order_acquire);
}

/* An attempt to give them up failed. */
void tn_lk_reshape_failed(tn_link *link, uint64_t now_ns);
void tn_lk_reshape_down(tn_link *link);
/* Bulk of this side ended; 0: just now. */
static inline void tn_lk_lanes_used(tn_link *link, uint64_t now_ns)
{
	if (now_ns == 0) {
		link->bulk_since = true;
		return;
	}
	link->bulk_ns = now_ns;
	atomic_store_explicit(&link->quota_seat.used_ns, now_ns, memory_order_relaxed);
}

/* ---- recover.c ---- */

/* A lane broke with that status: could it be mended? */
bool tn_lk_can_recover(const tn_link *link, tern_status status);
TN_COLD void tn_lk_recover(tn_link *link, tern_status status, const char *why, uint64_t now_ns);
void tn_lk_peer_recovers(tn_link *link, const char *why, uint64_t now_ns);
/* After a lane is gone. */
void tn_lk_recover_step(tn_link *link, uint64_t now_ns);
const char *tn_lk_resume_message(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns);
void tn_lk_recovered(tn_link *link, uint64_t now_ns);
/* The op behind a handle, unless its end is decided. */
tn_lk_op *tn_lk_op_get(const tn_link *link, uint64_t handle);
void tn_lk_note_arrived(tn_link *link, const tn_lk_note *note);
void tn_lk_note_lost(tn_link *link, tn_lk_note *note);

/* Channels and ops are served: lanes may be missing for a while. */
static inline bool tn_lk_alive(const tn_link *link)
{
	return link->state == TN_LINK_UP || link->state == TN_LINK_RECOVERING;
}

static inline bool tn_lk_wiring(const tn_link *link)
{
	return link->state == TN_LINK_WIRING || (link->state == TN_LINK_RECOVERING && !link->draining);
}

/* ---- journal.c ---- */

/* journal_rows.h: tn_lk_journal_room, tn_lk_journal_half_full */
/* Does a put of one immediate that ends with its post fit? */
static inline bool tn_lk_journal_keeps(const tn_lk_lane *lane, uint64_t bytes)
{
	return lane->index == 0 && bytes <= TN_JOURNAL_PUT_MAX;
}

/* The provider took it; done: at once. */
void tn_lk_journal_add(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_link_post *post);
/* The peer's totals of the lane rose. */
/* The post of a frame is over, well or not: what its row still has to copy is copied, as long as its op has it. */
void tn_lk_journal_late(tn_link *link, const tn_lk_wr *wr);
void tn_lk_journal_prune(tn_link *link, tn_lk_lane *lane);
/* An immediate was refused by the target: it took no slot. */
void tn_lk_journal_refused(tn_link *link, const tn_lk_lane *lane, const tn_lk_wr *wr);
/* The lane is gone, and the peer had received that many units. What it had not goes to log 0 again. */
void tn_lk_journal_settle(tn_link *link, const tn_lk_lane *lane, uint32_t received);
/* The next thing to send again. False: nothing, or not now. */
bool tn_lk_journal_next(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
void tn_lk_journal_sent(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr);
/* Something is to be sent again. */
static inline bool tn_lk_journal_due(const tn_link *link)
{
	return link->journal[0].next != link->journal[0].tail;
}

/* The op ended, not well, and its notification may not have arrived: then it is not sent again either. */
void tn_lk_journal_orphan(tn_link *link, uint64_t op);
/* The target refused data that is sent again, of a put that had ended well: its channel ends. */
void tn_lk_journal_write_refused(tn_link *link, const tn_lk_wr *wr);
/* The op ended before it was sent again. */
void tn_lk_journal_void(tn_link *link, uint64_t op);
void tn_lk_journal_check(const tn_link *link);

/* ---- channel.c ---- */

tn_lk_chan *tn_lk_chan_get(const tn_link *link, uint32_t handle);
/* Take the next step of closing, if it is time. May free the row. */
void tn_lk_chan_advance(tn_link *link, tn_lk_chan *chan);
void tn_lk_chan_owe(tn_link *link, tn_lk_chan *chan, uint32_t ctl);
/* End all ops of the channel that are not DONE. */
void tn_lk_chan_stop(tn_link *link, tn_lk_chan *chan, tern_status status);
/* Puts that were said to have ended may be lost: the channel ends with TERN_E_INDETERMINATE. */
void tn_lk_chan_spoil(tn_link *link, tn_lk_chan *chan);
/* The link ended: tell the shell. */
void tn_lk_chans_end(tn_link *link);
bool tn_lk_next_event(tn_link *link, tn_link_action *act);
/* Frames OPEN, OPEN_OK, OPEN_FAIL, CLOSE, WINDOW: NULL or what is wrong. */
const char *tn_lk_chan_frame(tn_link *link, const tn_frame *frame);
/* A notification for it arrived. */
const char *tn_lk_chan_notified(tn_link *link, tn_lk_chan *chan);
/* Owe a WINDOW if the peer has used half of what it was granted. */
void tn_lk_chan_window(tn_link *link, tn_lk_chan *chan);
const char *tn_lk_chan_state_name(tn_lk_chan_state state);

/* ---- names.c ---- */

/* The channel's name from now on; NULL or "" = none. */
void tn_lk_name_set(tn_link *link, tn_lk_chan *chan, const char *text);
void tn_lk_name_drop(tn_link *link, tn_lk_chan *chan);

static inline const char *tn_lk_name(const tn_link *link, const tn_lk_chan *chan)
{
	return chan->name ? link->names[chan->name - 1].text : "";
}

/* ---- turns.c ---- */

/* Put it into the ready lists where it belongs now. Call after anything that may change that. */
void tn_lk_chan_update(tn_link *link, tn_lk_chan *chan);
/* A fragment or a piece of the channel was posted: if it was in the list, its turn is that much shorter. */
void tn_lk_turn_message(tn_link *link, tn_lk_chan *chan, uint64_t bytes);
void tn_lk_turn_xfer(tn_link *link, tn_lk_lane *lane, tn_lk_chan *chan, uint64_t bytes);
/* The lane whose transfers are next, of those that are not in tried (bits); NULL: none waits. */
tn_lk_lane *tn_lk_turn_lane(const tn_link *link, uint32_t class, uint32_t tried);

/* ---- window.c ---- */

/* Bytes of the next piece of a transfer that has `left` to go; 0: not now, and somebody wakes the link when. */
uint64_t tn_lk_bulk_next(tn_link *link, uint64_t left, bool put, bool placed);
/* May bulk be posted by the fast path? */
bool tn_lk_bulk_fast(const tn_link *link, const tn_link_xfer *xfer, bool placed);
uint64_t tn_lk_piece_max(const tn_link *link);
void tn_lk_bulk_rest(tn_link *link);
/* A wr of bulk was accepted; came back. */
void tn_lk_bulk_posted(tn_link *link, tn_lk_wr *wr);
void tn_lk_bulk_done(tn_link *link, tn_lk_wr *wr, tern_status status, uint64_t now_ns);
/* Lanes are up; are given up. */
void tn_lk_flow_up(tn_link *link);
void tn_lk_flow_down(tn_link *link);

/* ---- slots.c ---- */

void tn_lk_slots_yield(tn_link *link);
bool tn_lk_build_slots(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
bool tn_lk_build_back(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
/* A unit arrived on lane 0. */
static inline void tn_lk_slots_arrived(tn_link *link, const tn_lk_lane *lane)
{
	if (link->slots.pool)
		atomic_store_explicit(&link->slots.seat.used, lane->received, memory_order_relaxed);
}

/* Something of data waits for a credit of the lane (or for room in its log). */
void tn_lk_slots_wait(tn_link *link, const tn_lk_lane *lane);
/* Flag SHORT: NULL or what is wrong. */
const char *tn_lk_slots_short(tn_link *link, const tn_lk_lane *lane);
/* The pool has something for the peer? */
void tn_lk_slots_news(tn_link *link);
void tn_lk_slots_sent(tn_link *link, const tn_lk_wr *wr);
const char *tn_lk_slots_frame(tn_link *link, const tn_frame *frame);
void tn_lk_slots_up(tn_link *link);
void tn_lk_slots_down(tn_link *link);
void tn_lk_slots_check(const tn_link *link);

/* ---- grants.c ---- */

/* Of a piece of n bytes, as many as may go now; 0: it waits for a GRANT, and the peer hears of it. */
uint64_t tn_lk_grants_room(tn_link *link, uint64_t n);
bool tn_lk_grants_fit(const tn_link *link, uint64_t bytes);
void tn_lk_grants_posted(tn_link *link, tn_lk_wr *wr);
void tn_lk_grants_done(tn_link *link, tn_lk_wr *wr);
/* Nothing waits: what is granted is given back. */
void tn_lk_grants_rest(tn_link *link);
/* The arbiter has something for the peer? */
void tn_lk_grants_news(tn_link *link);
bool tn_lk_build_grant(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
bool tn_lk_build_demand(tn_link *link, tn_lk_lane *lane, tn_link_post *post);
void tn_lk_grants_sent(tn_link *link, const tn_lk_wr *wr);
/* Frames GRANT, DEMAND: NULL or what is wrong. */
const char *tn_lk_grants_frame(tn_link *link, const tn_frame *frame);
void tn_lk_grants_up(tn_link *link);
void tn_lk_grants_down(tn_link *link);
void tn_lk_grants_check(const tn_link *link);

/* ---- work.c ---- */

/* Rows and log are there; false: no memory. */
bool tn_lk_work_lend(tn_link *link);
/* At each keepalive: what nobody needs is given back. */
void tn_lk_work_look(tn_link *link);
void tn_lk_work_fini(tn_link *link);
/* A SYNC that asks the peer what it has. */
bool tn_lk_next_ask(tn_link *link, tn_link_post *post);

/* ---- op.c ---- */

void tn_lk_op_set_state(tn_link *link, tn_lk_op *op, tn_lk_op_state to);
/* A row in state QUEUED, counted in its channel; the caller has seen that there is one. */
tn_lk_op *tn_lk_op_new(tn_link *link, tn_lk_chan *chan, tn_lk_op_kind kind, const tn_link_op_params *params);
tn_lk_op *tn_lk_op_new_xfer(tn_link *link, tn_lk_chan *chan, const tn_link_xfer *xfer,
			    const tn_link_op_params *params);
uint64_t tn_lk_op_handle(const tn_link *link, const tn_lk_op *op);
/* Decide its end: now if nothing of it is posted, else when its wrs are done. Idempotent: the first wins. */
void tn_lk_op_stop(tn_link *link, tn_lk_op *op, tern_status status);
/* End it if nothing is outstanding any more. */
void tn_lk_op_settle(tn_link *link, tn_lk_op *op);
/* The link's end is decided: all ops end, as their wrs come back. */
void tn_lk_ops_end(tn_link *link);
void tn_lk_ops_stop_queued(tn_link *link, tern_status status);
bool tn_lk_next_done(tn_link *link, tn_link_action *act);
const char *tn_lk_op_state_name(tn_lk_op_state state);

static inline bool tn_lk_has_op_row(const tn_link *link)
{
	return link->op_live < link->op_room;
}

/* ---- tx.c: what to post next; ledger.c: what that means ---- */

bool tn_lk_next_post(tn_link *link, uint64_t now_ns, tn_link_action *act);
void tn_lk_wr_complete(tn_link *link, tn_lk_wr *wr, tern_status status, uint64_t now_ns);
/* The provider took it: move all ledgers. */
void tn_lk_commit(tn_link *link, tn_lk_wr *wr, const tn_link_post *post, bool done);
/* Credits and totals of a frame or an immediate that the provider took. */
void tn_lk_consume(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_link_post *post, bool done);
/* Fill a peeked row. */
tn_lk_wr *tn_lk_wr_begin(tn_link *link, tn_lk_wr_kind kind, tn_lk_chan *chan, tn_lk_op *op, uint64_t bytes);
/* The next row to use; it stays free until it is taken. There must be one. */
tn_lk_wr *tn_lk_wr_peek(tn_link *link);
void tn_lk_wr_take(tn_link *link, tn_lk_wr *wr);
void tn_lk_wr_release(tn_link *link, tn_lk_wr *wr);
/* A notification of the channel was posted on the lane and has its credit. */
void tn_lk_notify_sent(tn_lk_lane *lane, tn_lk_chan *chan);
/* A put of the channel ended with its post on the lane, though nobody said that it arrived. */
void tn_lk_silent_sent(tn_lk_lane *lane, tn_lk_chan *chan);
void tn_lk_xfer_begin(tn_link *link, tn_lk_chan *chan, tn_lk_op *op, tn_lk_lane *lane);
void tn_lk_xfer_to_tails(tn_link *link, tn_lk_chan *chan, tn_lk_op *op);
void tn_lk_head_fill(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, tn_frame_type type, uint8_t flags);
void tn_lk_data_fill(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, const tn_lk_chan *chan, bool whole,
		     bool ack);
void tn_lk_frame_post(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, uint64_t header_bytes,
		      tn_link_post *post);
void tn_lk_xfer_post(tn_link *link, tn_lk_lane *lane, tn_lk_wr *wr, tn_link_post *post,
		     tn_link_post_type type);
/* Payload bytes of the next fragment of a message with `left` bytes to send. whole: none was sent yet. */
uint64_t tn_lk_fragment_bytes(const tn_link *link, const tn_lk_chan *chan, uint64_t left, bool whole);

static inline uint32_t tn_lk_credits(const tn_lk_lane *lane)
{
	return lane->granted + lane->extra - lane->consumed;
}

/* ---- numbers.c ---- */

/* Of the unit that comes after so many. */
static inline uint16_t tn_lk_number(const tn_link *link, uint32_t units)
{
	return (uint16_t)(units + 1) & link->number_mask;
}

/* The head that a frame would have now. */
static TN_ALWAYS_INLINE tn_frame_head tn_lk_head_of(tn_link *link, const tn_lk_lane *lane, tn_frame_type type,
						    uint8_t flags)
{
	/* A hint: it may be lost with a post that is not accepted. */
	if (TN_UNLIKELY(link->slots.waited) && lane->index == 0) {
		link->slots.waited = false;
		flags |= TN_FRAME_SHORT;
	}
	return (tn_frame_head){
		.type = (uint8_t)type,
		.flags = flags,
		.number = tn_lk_number(link, lane->tx_units),
		.epoch = lane->epoch,
		.grant = lane->my_granted,
		.seen = lane->rx_units,
	};
}

static inline bool tn_lk_imm_next(const tn_link *link, const tn_lk_lane *lane, uint32_t imm)
{
	return (((lane->rx_units + 1) << TN_IMM_NUMBER_SHIFT ^ imm) & link->imm_mask) == 0 || TN_MUTANT(31);
}

/* Is the unit the next one of its lane, which is up? If not it is not taken: it came before, or lanes are rebuilt. */
bool tn_lk_frame_in_turn(tn_link *link, tn_lk_lane *lane, const void *bytes, uint64_t n, uint64_t now_ns);
TN_COLD bool tn_lk_imm_in_turn(tn_link *link, tn_lk_lane *lane, uint32_t imm, uint64_t now_ns);
/* So many slots of a lane are free again: how many of them count. */
TN_COLD uint32_t tn_lk_slots_of_units(tn_lk_lane *lane, uint32_t n);
/* New lanes are in use: what of them is numbered. */
void tn_lk_numbers_up(tn_link *link);
/* At each tick of keepalive. */
void tn_lk_numbers_look(tn_link *link, uint64_t now_ns);
/* Message SENT: NULL or what is wrong. */
const char *tn_lk_sent_message(tn_link *link, const uint8_t *payload, uint32_t bytes);

static inline bool tn_lk_lane_ready(const tn_link *link, const tn_lk_lane *lane)
{
	return lane->state == TN_LANE_UP && !lane->stalled && lane->wrs < link->lane_wrs_max;
}

/* More than this is bulk: it waits for the window, and small ones do not. */
static inline bool tn_lk_is_bulk(const tn_link *link, uint64_t bytes)
{
	return bytes > link->small;
}

static inline bool tn_lk_wr_is_bulk(const tn_link *link, const tn_lk_wr *wr)
{
	return tn_lk_is_bulk(link, wr->bytes) && wr->kind >= TN_WR_WRITE && !wr->beside;
}

#define TN_BESIDE_BYTES (512u << 10) /* of those in flight together */

/* What counts of it: nothing but over streams. */
static inline uint8_t tn_lk_placed(const tn_link *link, uint8_t placed)
{
	return link->streams ? placed : (uint8_t)TN_PLACED_NO;
}

static inline bool tn_lk_goes_beside(const tn_link *link, uint8_t placed, uint64_t bytes)
{
	return placed >= TN_PLACED_BESIDE && bytes <= TN_MIN(link->chunk_max, TN_BESIDE_BYTES) &&
	       link->beside <= TN_BESIDE_BYTES - bytes;
}

/* The bytes by which a transfer's class and lane are chosen. */
static inline uint64_t tn_lk_size_of(const tn_link *link, const tn_lk_op *op)
{
	return op->beside && link->streams ? TN_MIN(op->length, link->small) : op->length;
}

/* The window alone: what is sent again waits for nothing else. */
static inline bool tn_lk_window_open(const tn_link *link, uint64_t bytes)
{
	return !tn_lk_is_bulk(link, bytes) || link->in_flight == 0 ||
	       (link->in_flight < link->window && bytes <= link->window - link->in_flight);
}

static inline bool tn_lk_chan_can_send(const tn_lk_chan *chan)
{
	return chan->state == TN_CHAN_OPEN && !(chan->ctl & (TN_CTL_OPEN | TN_CTL_OK));
}

static inline bool tn_lk_imm_fits(const tn_link *link, const tn_lk_chan *chan, uint64_t bytes)
{
	return (link->caps & TN_LINK_CAP_WRITE_IMM) && (chan->peer & 0xffff) < link->imm_channels &&
	       bytes <= link->imm_max;
}

static inline uint32_t tn_lk_imm(const tn_link *link, const tn_lk_lane *lane, const tn_lk_chan *chan,
				 uint32_t value, bool ack)
{
	return (ack ? TN_IMM_ACK : 0) | ((lane->tx_units + 1) << TN_IMM_NUMBER_SHIFT & link->imm_mask) |
	       (chan->peer & 0xffff) << TN_LINK_NOTIFY_BITS | value;
}

/* Does the transfer end only when the peer's link says so? Not where the device itself completes it remotely. */
static inline bool tn_lk_xfer_needs_ack(const tn_link *link, tn_link_xfer_type type,
					const tn_link_op_params *params)
{
	return !link->remote_done && type != TN_XFER_GET && params->level == TN_LINK_REMOTE;
}

/*
 * The lane (index) of a channel's next transfer: that of those under way; else that of its last notification
 * until the peer's totals say that it was taken, so that notifications stay in order, and that of a silent put
 * until a later one of the lane is done; else lane 0 for small ones and the channel's data lane for bulk. What is placed
 * is counted, whatever its order, and has no part in this.
 */
static inline uint32_t tn_lk_xfer_lane(const tn_link *link, const tn_lk_chan *chan, uint64_t bytes,
				       bool placed)
{
	const tn_lk_lane *last = link->by_index[chan->notify_lane];

	if (link->lane_count == 1)
		return 0;
	if (chan->xfers_out && !placed)
		return chan->lane;
	if (chan->notifies_tx && !placed && (int32_t)(chan->notify_slot - (last->granted - last->first)) > 0)
		return chan->notify_lane;
	if (chan->silent_serial && !placed &&
	    (int32_t)(chan->silent_serial - link->by_index[chan->silent_lane]->tx_arrived) > 0)
		return chan->silent_lane;
	return bytes <= link->small ? 0 : 1 + (chan->handle & 0xffff) % (link->lane_count - 1);
}

/* The row's index. */
static inline uint32_t tn_lk_wr_index(const tn_link *link, const tn_lk_wr *wr)
{
	return (uint32_t)(wr - link->wrs);
}

static inline uint32_t tn_lk_op_index(const tn_link *link, const tn_lk_op *op)
{
	return (uint32_t)(op - link->ops);
}

static inline uint32_t tn_lk_chan_index(const tn_link *link, const tn_lk_chan *chan)
{
	return (uint32_t)(chan - link->chans);
}

static inline uint32_t tn_lk_lane_slot(const tn_link *link, const tn_lk_lane *lane)
{
	(void)link;
	return lane->handle % TN_LANE_SLOTS;
}

/* ---- sums.c ---- */

/* Put the checksum into the header of a DATA or FRAG that is complete. */
void tn_lk_sum_fill(tn_link *link, tn_link_post *post);
/* True for frames that carry none. */
bool tn_lk_sum_holds(const void *bytes, uint64_t n, const tn_frame *frame);

/* ---- rx.c ---- */

/* The peer's totals of a lane, from a header or a CREDIT row: NULL or what is wrong. */
const char *tn_lk_credit_update(tn_link *link, tn_lk_lane *lane, uint32_t grant, uint32_t seen);
/* lane->peer_seen rose: ops that waited for it. */
void tn_lk_acked(tn_link *link, tn_lk_lane *lane);
void tn_lk_ack_timeout(tn_link *link);

#endif

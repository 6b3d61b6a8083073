/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a link.
 *
 *	INIT ----(accepted)----\
 *	DIAL ----(ctrl up)----> HELLO -> AUTH -> SETUP -> WIRING -> UP -> CLOSING
 *	  \                        \      \       \        \        \      |
 *	   \------------------------\------\-------\--------\--------> DRAINING -> DOWN
 *
 *	HELLO    the dialer speaks first; ends when the shell has accepted who the peer is
 *	AUTH     each proves that it knows the secret, the dialer first
 *	SETUP    devices and sizes are told
 *	WIRING   lanes are built on the first provider that works
 *	UP       channels and ops
 *	RECOVERING  UP, but a lane broke, or the peer may be UP: all are rebuilt (recover.c); back to UP
 *	CLOSING  an orderly end: nothing new, posted wrs finish, BYE after the last frame, CLOSED back when all
 *	         arrived
 *	DRAINING lanes close; ops end as their wrs come back; the reason is settled
 *	DOWN     everything has ended and was reported
 *
 * Guarantees: before UP nothing of a channel is processed; each state but UP has a timer that ends it,
 * except DRAINING, which the shell's lanes bound; DOWN has no live op, wr, lane or timer.
 * Threads: none. Tests: tests/unit/link/life_test.c, pair_test.c.
 */
#include <stdarg.h>

#include "link/internal.h"

static const char *const state_names[] = {
	[TN_LINK_INIT] = "INIT",
	[TN_LINK_DIAL] = "DIAL",
	[TN_LINK_HELLO] = "HELLO",
	[TN_LINK_AUTH] = "AUTH",
	[TN_LINK_SETUP] = "SETUP",
	[TN_LINK_WIRING] = "WIRING",
	[TN_LINK_UP] = "UP",
	[TN_LINK_CLOSING] = "CLOSING",
	[TN_LINK_DRAINING] = "DRAINING",
	[TN_LINK_DOWN] = "DOWN",
	[TN_LINK_RECOVERING] = "RECOVERING",
};

/* From which states (bits) a state may be entered. */
#define B(s) (1u << TN_LINK_##s)
static const uint32_t predecessors[] = {
	[TN_LINK_HELLO] = B(INIT) | B(DIAL),
	[TN_LINK_AUTH] = B(HELLO),
	[TN_LINK_SETUP] = B(AUTH),
	[TN_LINK_WIRING] = B(SETUP) | B(RECOVERING),
	[TN_LINK_UP] = B(WIRING) | B(RECOVERING),
	[TN_LINK_RECOVERING] = B(UP) | B(WIRING),
	[TN_LINK_CLOSING] = B(UP),
	[TN_LINK_DRAINING] = B(INIT) | B(DIAL) | B(HELLO) | B(AUTH) | B(SETUP) | B(WIRING) | B(UP) |
			     B(RECOVERING) | B(CLOSING),
	[TN_LINK_DOWN] = B(DRAINING),
};

const char *tn_link_state_name(tn_link_state state)
{
	return (unsigned)state < TN_COUNT_OF(state_names) ? state_names[state] : "?";
}

void tn_lk_log(const tn_link *link, int level, const char *fmt, ...)
{
	char line[2 * TN_LINK_TEXT_MAX];
	va_list args;
	int at;

	if (!link->config->log)
		return;
	at = snprintf(line, sizeof(line), "%s: ", link->peer.name[0] ? link->peer.name : "peer");
	va_start(args, fmt);
	vsnprintf(line + at, sizeof(line) - (size_t)at, fmt, args);
	va_end(args);
	link->config->log(level, line, link->log_arg);
}

void tn_link_set_state(tn_link *link, tn_link_state to)
{
	TN_ASSERT_MSG(predecessors[to] & (1u << link->state), "link %s -> %s",
		      tn_link_state_name(link->state), tn_link_state_name(to));
	tn_lk_log(link, TN_LOG_DEBUG, "link %s -> %s", tn_link_state_name(link->state),
		  tn_link_state_name(to));
	link->state = to;
}

void tn_lk_arm(tn_link *link, unsigned which, uint64_t at_ns)
{
	uint64_t next = TN_TIME_NEVER;

	link->timer_at[which] = at_ns;
	for (unsigned i = 0; i < TN_TIMER_COUNT; i++)
		next = TN_MIN(next, link->timer_at[i]);
	if (next != TN_TIME_NEVER)
		tn_timer_set(&link->timers, &link->timer, next);
	else
		tn_timer_cancel(&link->timers, &link->timer);
}

void tn_lk_disarm(tn_link *link, unsigned which)
{
	if (tn_lk_armed(link, which))
		tn_lk_arm(link, which, TN_TIME_NEVER);
}

/* ---- the end ---- */

bool tn_lk_text_lend(tn_link *link, char **text)
{
	if (*text)
		return true;
	*text = tn_store_lend(link->config->store, TN_LINK_TEXT_MAX);
	if (*text)
		(*text)[0] = '\0';
	return *text != NULL;
}

void tn_lk_text_back(tn_link *link, char **text)
{
	tn_store_back(link->config->store, *text, TN_LINK_TEXT_MAX);
	*text = NULL;
}

/* Nobody answered: whoever dialed is told, and dials again or not. That is his to say, once, and not for each try. */
static bool no_answer(const tn_link *link)
{
	return link->active && !link->was_up &&
	       (link->status == TERN_E_REFUSED || link->status == TERN_E_PEER_LOST ||
		link->status == TERN_E_DEADLINE);
}

static bool expected(const tn_link *link)
{
	return link->status == TERN_OK || link->status == TERN_E_PEER_CLOSED || no_answer(link);
}

static void settle(tn_link *link)
{
	if (link->settled)
		return;
	link->verdict_pending = false;
	link->settled = true;
	tn_lk_disarm(link, TN_TIMER_VERDICT);
	link->ctrl_closing = !link->ctrl_closed;
	tn_lk_log(link, expected(link) ? TN_LOG_INFO : TN_LOG_WARN, "link ends: %s%s%s",
		  tern_status_text(link->status), link->detail && link->detail[0] ? ": " : "",
		  tn_lk_text(link->detail));
	tn_lk_ops_end(link);
	tn_lk_chans_end(link);
}

void tn_lk_drain(tn_link *link, uint64_t now_ns, bool verdict)
{
	tn_link_set_state(link, TN_LINK_DRAINING);
	for (unsigned i = 0; i < TN_TIMER_COUNT; i++)
		tn_lk_disarm(link, i);
	link->peer_ask = link->up_due = link->reach_ask = link->reach_wait = link->wire_wait = false;
	link->moved_due = link->spare.active = link->spare.reach_ask = link->spare.reach_wait = false;
	tn_lk_hold(link, false);
	link->credit_due = 0;
	link->draining = link->rejoin_ask = link->dial_due = false;
	if (tn_lk_ctrl_gone(link)) { /* nobody is there to be told */
		link->ctrl_closed = true;
		link->ctrl_lost = link->rejoin_wait = false;
		link->ctrl_out_bytes = link->rejoin_out_bytes = 0;
	}
	/* Nothing will be acknowledged any more. */
	for (uint32_t i = 0; i < link->lane_count; i++)
		while (tn_list_pop_front(&link->by_index[i]->acks))
			;
	tn_lk_flow_down(link);
	tn_lk_lanes_close(link);
	if (verdict && link->ctrl_up && !link->ctrl_closed) {
		link->verdict_pending = true;
		tn_lk_arm(link, TN_TIMER_VERDICT, now_ns + link->config->verdict_ns);
		return;
	}
	settle(link);
}

static void set_reason(tn_link *link, tern_status status, const char *fmt, va_list args)
{
	link->status = status;
	if (tn_lk_text_lend(link, &link->detail))
		vsnprintf(link->detail, TN_LINK_TEXT_MAX, fmt, args);
}

TN_PRINTF(3, 4) static void reason(tn_link *link, tern_status status, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	set_reason(link, status, fmt, args);
	va_end(args);
}

static void tell_peer(tn_link *link, uint64_t now_ns)
{
	tern_status status = link->status == TERN_OK ? TERN_E_PEER_CLOSED : link->status;
	tn_writer w;

	if (!link->ctrl_up || link->ctrl_closed)
		return;
	w = tn_lk_out_begin(link);
	tn_wire_put_refuse(&w, status, tn_lk_text(link->detail));
	if (!w.bad)
		tn_lk_out_end(link, &w, now_ns);
}

void tn_lk_fail_link(tn_link *link, uint64_t now_ns, tern_status status, const char *fmt, ...)
{
	bool closing = link->state == TN_LINK_CLOSING;
	va_list args;

	if (link->state >= TN_LINK_DRAINING)
		return;
	va_start(args, fmt);
	set_reason(link, closing ? link->status : status, fmt, args);
	va_end(args);
	tell_peer(link, now_ns);
	tn_lk_drain(link, now_ns, false);
}

void tn_lk_lane_failed(tn_link *link, tn_lk_lane *lane, tern_status status, const char *detail,
		       uint64_t now_ns)
{
	char why[TN_LINK_TEXT_MAX];

	if (link->state >= TN_LINK_DRAINING || link->draining)
		return;
	if (tn_lk_ctrl_gone(link)) {
		reason(link, TERN_E_PEER_LOST, "control connection lost: %.150s; then lane %u broke",
		       link->rejoin->lost_text, lane->index);
		tn_lk_drain(link, now_ns, false);
		return;
	}
	/* A peer that has everything closes its lanes; its CLOSED is on its way. */
	if (link->state == TN_LINK_CLOSING && link->closed_sent) {
		tn_lk_lane_set_state(link, lane, TN_LANE_CLOSE);
		return;
	}
	if (tn_lk_can_recover(link, status)) {
		snprintf(why, sizeof(why), "lane %u (%s) broke: %.150s", lane->index,
			 link->shared->providers[lane->provider].name,
			 detail && detail[0] ? detail : tern_status_text(status));
		tn_lk_recover(link, status, why, now_ns);
		return;
	}
	reason(link, link->state == TN_LINK_CLOSING ? link->status : TERN_E_LANE,
	       "lane %u (%s) broke: %s%s%s", lane->index, link->shared->providers[lane->provider].name,
	       tern_status_text(status), detail && detail[0] ? ": " : "", detail ? detail : "");
	tell_peer(link, now_ns);
	tn_lk_drain(link, now_ns, link->state == TN_LINK_UP);
}

void tn_link_on_ctrl_down(tn_link *link, tern_status status, const char *detail, uint64_t now_ns)
{
	const char *text = detail && detail[0] ? detail : tern_status_text(status);

	if (link->state == TN_LINK_DOWN || link->ctrl_closed ||
	    tn_lk_ctrl_may_return(link, status, text, now_ns))
		return;
	if (tn_lk_ctrl_gone(link)) {
		text = link->rejoin->lost_text;
		status = TERN_E_PEER_LOST;
	}
	link->ctrl_closed = true;
	link->ctrl_out_bytes = 0;
	link->ctrl_closing = false;
	if (link->verdict_pending) {
		reason(link, status, "control connection lost: %s", text);
		settle(link);
	} else if (link->state < TN_LINK_DRAINING) {
		if (link->state != TN_LINK_CLOSING)
			reason(link, status, "%s%s",
			       link->state == TN_LINK_DIAL ? "" : "control connection lost: ", text);
		tn_lk_drain(link, now_ns, false);
	}
}

/* The peer ends the link in words. */
static const char *on_refuse(tn_link *link, const tn_wire_end *end, uint64_t now_ns)
{
	const char *text = end->text[0] ? end->text : tern_status_text(end->status);
	tern_status status = end->status;

	if (link->state >= TN_LINK_UP && status != TERN_E_LANE && status != TERN_E_PEER_RESTARTED &&
	    status != TERN_E_CORRUPT)
		status = TERN_E_PEER_CLOSED;
	if (link->verdict_pending) {
		/* The lane broke because the peer ended the link: its words are the reason. */
		if (status != TERN_E_LANE)
			reason(link, status, "the peer ended the link: %s", text);
		settle(link);
	} else if (link->state < TN_LINK_DRAINING) {
		if (link->state != TN_LINK_CLOSING)
			reason(link, status, "the peer ended the link: %s", text);
		tn_lk_drain(link, now_ns, false);
	}
	return NULL;
}

/* ---- control messages ---- */

static const char *on_closed(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	uint32_t epoch;
	const char *wrong = tn_wire_get_epoch(payload, bytes, &epoch);

	if (wrong)
		return wrong;
	if (link->state != TN_LINK_CLOSING || epoch != link->epoch || !link->bye_sent)
		return "CLOSED without a BYE";
	link->closed_received = true;
	tn_lk_closing_step(link, now_ns);
	return NULL;
}

static const char *on_ping(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
			   uint64_t now_ns)
{
	uint64_t number;
	const char *wrong = tn_wire_get_ping(payload, bytes, &number);
	tn_writer w;

	if (wrong)
		return wrong;
	if (type == TN_CTRL_PONG) {
		tn_lk_ctrl_ponged(link, number);
		return NULL;
	}
	w = tn_lk_out_begin(link);
	tn_wire_put_ping(&w, TN_CTRL_PONG, number);
	tn_lk_out_end(link, &w, now_ns);
	return NULL;
}

const char *tn_lk_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
			  uint64_t now_ns)
{
	tn_wire_end end;
	const char *wrong;

	if (type == TN_CTRL_REFUSE) {
		wrong = tn_wire_get_end(payload, bytes, false, &end);
		return wrong ? wrong : on_refuse(link, &end, now_ns);
	}
	if (link->state >= TN_LINK_DRAINING)
		return NULL;
	if (type == TN_CTRL_REJOIN) {
		if (link->active || link->state != TN_LINK_HELLO || link->birth->hello_peer_bytes ||
		    bytes != TN_CTRL_REJOIN_BYTES)
			return "REJOIN at a wrong time";
		memcpy(link->birth->hello_peer, payload, bytes);
		link->birth->hello_peer_bytes = bytes;
		link->rejoin_ask = true;
		return NULL;
	}
	switch (type) {
	case TN_CTRL_HELLO:
	case TN_CTRL_AUTH:
	case TN_CTRL_SETUP:
		return tn_lk_hello_message(link, type, payload, bytes, now_ns);
	default:
		break;
	}
	if (link->state < TN_LINK_WIRING)
		return "message before its time";
	switch (type) {
	case TN_CTRL_PING:
	case TN_CTRL_PONG:
		return on_ping(link, type, payload, bytes, now_ns);
	case TN_CTRL_CLOSED:
		return on_closed(link, payload, bytes, now_ns);
	case TN_CTRL_RESUME:
		return tn_lk_resume_message(link, payload, bytes, now_ns);
	case TN_CTRL_SENT:
		return tn_lk_sent_message(link, payload, bytes);
	case TN_CTRL_WIDEN:
		return tn_lk_widen_message(link, payload, bytes, now_ns);
	case TN_CTRL_NARROW:
	case TN_CTRL_KEEP:
		return tn_lk_narrow_message(link, type, payload, bytes, now_ns);
	case TN_CTRL_READY:
	case TN_CTRL_MOVE:
		return tn_lk_spare_message(link, type, payload, bytes, now_ns);
	default:
		return tn_lk_wiring_message(link, type, payload, bytes, now_ns);
	}
}

/* ---- orderly close ---- */

static void begin_closing(tn_link *link, uint64_t now_ns, tern_status status, const char *text,
			  tern_status ops)
{
	reason(link, status, "%s", text);
	tn_lk_disarm(link, TN_TIMER_PROBE);
	tn_lk_disarm(link, TN_TIMER_LANES);
	tn_lk_spare_drop(link, TERN_E_PEER_CLOSED, "the link closes", now_ns);
	tn_link_set_state(link, TN_LINK_CLOSING);
	tn_lk_flow_down(link);
	tn_lk_arm(link, TN_TIMER_CLOSE, now_ns + link->config->close_timeout_ns);
	tn_lk_ops_stop_queued(link, ops);
}

void tn_link_close(tn_link *link, uint64_t now_ns)
{
	if (link->state >= TN_LINK_CLOSING)
		return;
	if (link->state == TN_LINK_RECOVERING) {
		link->close_wanted = true;
		return;
	}
	link->close_local = true;
	if (link->state == TN_LINK_UP)
		begin_closing(link, now_ns, TERN_OK, "", TERN_E_FLUSHED);
	else
		tn_lk_fail_link(link, now_ns, TERN_OK, "%s", "closed before it was up");
}

void tn_link_abort(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	tn_lk_fail_link(link, now_ns, status, "%s", text ? text : "");
}

void tn_lk_peer_closes(tn_link *link, uint64_t now_ns)
{
	link->bye_received = true;
	if (link->state == TN_LINK_UP)
		begin_closing(link, now_ns, TERN_E_PEER_CLOSED, "the peer closed the link",
			      TERN_E_PEER_CLOSED);
	tn_lk_closing_step(link, now_ns);
}

static bool all_arrived(const tn_link *link)
{
	if (!link->bye_received)
		return false;
	for (uint32_t i = 0; i < link->lane_count; i++)
		if ((int32_t)(link->by_index[i]->received - link->by_index[i]->bye) < 0)
			return false;
	return true;
}

void tn_lk_closing_step(tn_link *link, uint64_t now_ns)
{
	if (link->state != TN_LINK_CLOSING)
		return;
	if (!link->closed_sent && all_arrived(link)) {
		link->closed_sent = true;
		tn_lk_say_epoch(link, TN_CTRL_CLOSED, link->epoch, now_ns);
	}
	if (link->closed_sent && link->closed_received && link->state == TN_LINK_CLOSING)
		tn_lk_drain(link, now_ns, false);
}

bool tn_lk_next_down(tn_link *link, tn_link_action *act)
{
	if (link->state != TN_LINK_DRAINING || !link->settled || !link->ctrl_closed || link->lanes_live > 0 ||
	    link->op_live > 0 || !tn_list_empty(&link->events))
		return false;
	TN_ASSERT(link->wr_live == 0 && link->in_flight == 0);
	TN_ASSERT(tn_timer_next(&link->timers) == TN_TIME_NEVER);
	tn_link_set_state(link, TN_LINK_DOWN);
	act->type = TN_ACT_LINK_DOWN;
	act->link.status = link->status;
	act->link.detail = tn_lk_text(link->detail);
	return true;
}

/* ---- time ---- */

static void keepalive_tick(tn_link *link, uint64_t now_ns)
{
	tn_writer w;

	if (link->heard) {
		link->heard = false;
		link->misses = 0;
	} else if (++link->misses >= link->config->keepalive_misses) {
		tn_lk_fail_link(link, now_ns, TERN_E_PEER_LOST,
				"nothing heard for %u keepalive intervals of %llu ms: the peer or its host "
				"stands still",
				link->misses,
				(unsigned long long)(link->config->keepalive_ns / TN_NS_PER_MS));
		return;
	}
	tn_lk_arm(link, TN_TIMER_KEEPALIVE, tn_deadline(now_ns, link->config->keepalive_ns));
	tn_lk_numbers_look(link, now_ns);
	tn_lk_work_look(link);
	if (link->misses == 0 && !tn_lk_ctrl_unsure(link))
		return;
	w = tn_lk_out_begin(link);
	tn_wire_put_ping(&w, TN_CTRL_PING, ++link->ping_number);
	tn_lk_out_end(link, &w, now_ns);
	link->ping_at = link->ctrl_tx + link->ctrl_out_bytes;
	tn_count_own(&link->counters.pings, 1);
}

static void link_timer(tn_link *link, unsigned which, uint64_t now_ns)
{
	switch (which) {
	case TN_TIMER_STEP:
		if (tn_lk_wiring(link))
			tn_lk_wiring_timeout(link, now_ns);
		else
			tn_lk_fail_link(link, now_ns, TERN_E_DEADLINE,
					"no answer in step %s of hello within %llu ms",
					tn_link_state_name(link->state),
					(unsigned long long)(link->config->step_timeout_ns / TN_NS_PER_MS));
		break;
	case TN_TIMER_KEEPALIVE:
		keepalive_tick(link, now_ns);
		break;
	case TN_TIMER_CLOSE:
		tn_lk_fail_link(link, now_ns, link->status, "%s", "the orderly close took too long");
		break;
	case TN_TIMER_ACK:
		tn_lk_ack_timeout(link);
		break;
	case TN_TIMER_RETRY:
		for (uint32_t i = 0; i < link->lane_count; i++)
			link->by_index[i]->stalled = false;
		break;
	case TN_TIMER_VERDICT:
		settle(link);
		break;
	case TN_TIMER_REWIRE:
		link->provider_next = 0;
		tn_lk_text_back(link, &link->reason);
		tn_lk_wiring_again(link, now_ns);
		break;
	case TN_TIMER_PROBE:
		tn_lk_probe(link, now_ns);
		break;
	case TN_TIMER_REDIAL:
		tn_lk_redial_timeout(link, now_ns);
		break;
	case TN_TIMER_DIAL:
		link->dial_due = link->ctrl_lost;
		break;
	case TN_TIMER_SPARE:
		tn_lk_spare_timeout(link, now_ns);
		break;
	case TN_TIMER_LANES:
		tn_lk_reshape_look(link, now_ns);
		break;
	case TN_TIMER_RECOVER:
		tn_lk_fail_link(link, now_ns, TERN_E_LANE, "no new lanes within %llu ms (link.recover)",
				(unsigned long long)(link->config->recover_ns / TN_NS_PER_MS));
		break;
	default:
		TN_UNREACHABLE();
	}
}

/* The earliest of them is due. */
static void first_timer(tn_link *link, uint64_t now_ns)
{
	unsigned first = 0;

	for (unsigned i = 1; i < TN_TIMER_COUNT; i++)
		if (link->timer_at[i] < link->timer_at[first])
			first = i;
	TN_ASSERT(link->timer_at[first] <= now_ns);
	tn_lk_disarm(link, first);
	link_timer(link, first, now_ns);
}

void tn_link_on_time(tn_link *link, uint64_t now_ns)
{
	tn_timer *timer;

	while ((timer = tn_timer_expire(&link->timers, now_ns))) {
		if (timer == &link->timer)
			first_timer(link, now_ns);
		else
			tn_lk_op_stop(link, TN_CONTAINER_OF(timer, tn_lk_op, timer), TERN_E_DEADLINE);
	}
}

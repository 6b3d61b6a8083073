/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: a link that runs over another than its best provider tries the better ones again, and goes over
 * to the first that works. The new lanes stand beside those in use before anything is given up.
 *
 *	dialer                                        acceptor
 *	TN_TIMER_PROBE: a better provider is reached
 *	WIRE {epoch + 1}, LANE_ADDR   ------------->  LANE_ADDR            beside the lanes in use
 *	READY when all are connected  <------------>  READY
 *	they stay up for probe_ns
 *	MOVE: nothing new starts      ------------->  nothing new starts here either
 *	                              <-------------  MOVE, once all that it sent has arrived
 *	all that it sent has arrived
 *	UNWIRE of the old lanes       ------------->  recover.c: drain, RESUME; nothing is left to replay
 *	                                              the spare lanes are those in use; WIRED
 *
 *	NONE -> REACH -> MAKING -> READY -> MOVING -> (recovery) -> in use
 *	          \---------\--------\--------\----> NONE: UNWIRE of the spare epoch, and again after a while
 *
 * Lanes in use that break take the spare ones at once. Both sides decide alike, because whoever gives the spare up
 * says so (UNWIRE) before its RESUME, and nobody does between its RESUME and using them.
 *
 * A provider whose lanes broke soon after they were up, three times in a row, is held back for a while.
 * Threads: none. Tests: tests/unit/link/move_test.c, pair_test.c.
 */
#include "link/internal.h"

#define STRIKES      3u
#define STEADY_TIMES 10u /* lanes that were up for so many probe_ns did well */
#define DOUBLINGS    6u

static bool dials(const tn_link *link)
{
	return link->active;
}

static const char *name_of(const tn_link *link)
{
	return link->shared->providers[link->spare.provider].name;
}

/* ---- when ---- */

/* Spread, so that the links of a node do not all try at once. */
static uint64_t pause_ns(tn_link *link, uint32_t doublings)
{
	uint64_t ns = link->config->probe_ns << TN_MIN(doublings, DOUBLINGS);

	return ns - ns / 4 + tn_rand_below(&link->rand, ns / 2 + 1);
}

static bool is_better(const tn_link *link, uint32_t provider)
{
	/* A peer does not come to this host. */
	if ((link->shared->providers[provider].caps & TN_LINK_CAP_SAME_HOST) &&
	    !(link->worked & (1u << provider)))
		return false;
	return provider < link->provider && tn_lk_peer_provider(link, provider) != TN_NONE;
}

void tn_lk_probe_later(tn_link *link, uint64_t now_ns)
{
	tn_lk_disarm(link, TN_TIMER_PROBE);
	if (!link->moves || !dials(link) || link->torn)
		return;
	for (uint32_t i = 0; i < link->provider; i++) {
		if (is_better(link, i)) {
			tn_lk_arm(link, TN_TIMER_PROBE,
				  tn_deadline(now_ns, pause_ns(link, link->probe_fails)));
			return;
		}
	}
}

static size_t health_bytes(const tn_link *link)
{
	return link->config->provider_count * sizeof(tn_lk_health);
}

static uint64_t held_until(const tn_link *link, uint32_t provider)
{
	return link->health ? link->health[provider].held_until_ns : 0;
}

void tn_lk_strike(tn_link *link, uint64_t now_ns)
{
	tn_lk_health *health;

	if (!link->moves)
		return;
	if (!link->health) {
		link->health = tn_store_lend(link->config->store, health_bytes(link));
		if (!link->health)
			return;
		memset(link->health, 0, health_bytes(link));
	}
	health = &link->health[link->provider];
	if (now_ns - link->up_since_ns >= STEADY_TIMES * link->config->probe_ns)
		health->strikes = 0;
	health->strikes++;
	if (health->strikes >= STRIKES)
		health->held_until_ns = tn_deadline(now_ns, pause_ns(link, health->strikes - STRIKES));
}

bool tn_lk_held_back(const tn_link *link, uint32_t provider, uint64_t now_ns)
{
	if (link->rewires > 0 || now_ns >= held_until(link, provider))
		return false;
	for (uint32_t i = 0; i < link->config->provider_count; i++)
		if (i != provider && tn_lk_peer_provider(link, i) != TN_NONE)
			return true;
	return false; /* there is no other */
}

/* ---- giving up ---- */

void tn_lk_spare_fini(tn_link *link)
{
	tn_lk_addrs_back(link, link->spare.addr, link->spare.lanes);
	link->spare.addr = NULL;
}

void tn_lk_health_fini(tn_link *link)
{
	tn_store_back(link->config->store, link->health, health_bytes(link));
	link->health = NULL;
}

static void forget(tn_link *link)
{
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		if (link->lanes[i] && link->lanes[i]->state != TN_LANE_FREE &&
		    tn_lk_is_spare(link, link->lanes[i]))
			tn_lk_lane_close(link, link->lanes[i]);
	tn_lk_spare_fini(link);
	link->spare.active = link->spare.reach_ask = link->spare.reach_wait = link->spare.wait = false;
	tn_lk_disarm(link, TN_TIMER_SPARE);
	tn_lk_hold(link, false);
}

static void ask(tn_link *link, uint32_t epoch, uint32_t provider, uint32_t peer, uint32_t lanes)
{
	tn_lk_spare_fini(link);
	memset(&link->spare, 0, sizeof(link->spare));
	link->spare.active = link->spare.reach_ask = true;
	link->spare.epoch = epoch;
	link->spare.provider = provider;
	link->spare.peer_provider = peer;
	link->spare.lanes = lanes;
	link->spare.addr = tn_lk_addrs_lend(link, lanes);
}

static void next_candidate(tn_link *link, uint64_t now_ns)
{
	while (link->probe_next < link->provider) {
		uint32_t i = link->probe_next++;

		if (!is_better(link, i) || now_ns < held_until(link, i))
			continue;
		ask(link, link->epoch_last + 1, i, tn_lk_peer_provider(link, i), tn_lk_lanes_wanted(link, i));
		return;
	}
	link->probe_fails++;
	tn_lk_probe_later(link, now_ns);
}

/* More lanes of the provider in use, or fewer: they are tried again when it is time to look. */
static void reshape_failed(tn_link *link, const char *why, uint64_t now_ns)
{
	tn_lk_log(link, TN_LOG_DEBUG, "not %u lanes yet: %s", link->spare.lanes, why);
	forget(link);
	if (link->spare.narrows)
		tn_lk_reshape_failed(link, now_ns);
	if (link->state == TN_LINK_UP && !tn_lk_armed(link, TN_TIMER_PROBE))
		tn_lk_probe_later(link, now_ns);
}

static void failed(tn_link *link, tern_status status, const char *why, uint64_t now_ns)
{
	if (link->spare.reshape) {
		reshape_failed(link, why, now_ns);
		return;
	}
	if (tn_lk_try_fewer(link, link->spare.provider, status))
		link->probe_next = link->spare.provider;
	tn_lk_attempt_past(link, link->spare.epoch, link->spare.provider);
	tn_lk_log(link, TN_LOG_DEBUG, "not back to %s yet: %s", name_of(link), why);
	tn_count_own(&link->counters.probes_failed, 1);
	forget(link);
	if (dials(link) && link->state == TN_LINK_UP)
		next_candidate(link, now_ns);
}

void tn_lk_spare_drop(tn_link *link, tern_status status, const char *why, uint64_t now_ns)
{
	tn_writer w;

	if (!link->spare.active)
		return;
	if (link->spare.epoch <= link->epoch_last) { /* the peer knows of it */
		w = tn_lk_out_begin(link);
		tn_wire_put_unwire(&w, link->spare.epoch, status, why);
		tn_lk_out_end(link, &w, now_ns);
	}
	if (link->spare.active) /* the output did not overflow */
		failed(link, status, why, now_ns);
}

void tn_lk_spare_failed(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	char why[TN_LINK_TEXT_MAX];

	if (link->draining && link->resume_sent) { /* both sides count on it */
		link->spare.broken = true;
		return;
	}
	snprintf(why, sizeof(why), "%.239s", text && text[0] ? text : tern_status_text(status));
	tn_lk_spare_drop(link, status, why, now_ns);
}

void tn_lk_spare_unwired(tn_link *link, tern_status status, const char *why, uint64_t now_ns)
{
	char text[TN_LINK_TEXT_MAX];

	snprintf(text, sizeof(text), "the peer says: %.200s", why);
	failed(link, status, text, now_ns);
}

bool tn_lk_spare_usable(const tn_link *link)
{
	return link->spare.active && link->spare.ready_sent && link->spare.ready_received;
}

void tn_lk_spare_settle(tn_link *link, uint64_t now_ns)
{
	if (link->spare.active && !tn_lk_spare_usable(link))
		tn_lk_spare_drop(link, TERN_E_LANE, "the lanes in use broke before", now_ns);
}

/* ---- making them ---- */

void tn_lk_probe(tn_link *link, uint64_t now_ns)
{
	if (link->state != TN_LINK_UP || link->spare.active)
		return;
	if (tn_lk_ctrl_gone(link)) { /* what would be said piles up */
		tn_lk_probe_later(link, now_ns);
		return;
	}
	tn_count_own(&link->counters.probes, 1);
	link->probe_next = 0;
	next_candidate(link, now_ns);
}

void tn_lk_spare_reshape(tn_link *link, uint32_t lanes, bool reclaimed)
{
	ask(link, link->epoch_last + 1, link->provider, link->peer_provider, lanes);
	link->spare.reshape = true;
	link->spare.narrows = lanes == 1;
	link->spare.reclaimed = reclaimed;
}

const char *tn_lk_spare_wire(tn_link *link, const tn_wire_wire *wire, uint32_t own, uint32_t peer,
			     uint64_t now_ns)
{
	if (link->spare.active)
		return "WIRE of a second set of spare lanes";
	link->epoch_last = wire->epoch;
	if (link->state == TN_LINK_CLOSING)
		return NULL;
	ask(link, wire->epoch, own, peer, wire->lanes);
	link->spare.reshape = link->reshapes && own == link->provider;
	link->spare.narrows = link->spare.reshape && wire->lanes == 1;
	link->spare.reclaimed = link->spare.narrows && (link->pressed || link->quota_seat.asked);
	link->pressed = false;
	if (link->spare.narrows && tn_lk_reshape_busy(link, now_ns)) {
		link->spare.reach_ask = false;
		tn_lk_spare_drop(link, TERN_E_CANCELED, "the data lanes are in use", now_ns);
		return NULL;
	}
	if (link->state != TN_LINK_UP) {
		/* This side has found that the lanes in use are broken; the peer will hear of it. */
		link->spare.reach_ask = false;
		tn_lk_spare_drop(link, TERN_E_LANE, "the lanes in use broke before", now_ns);
		return NULL;
	}
	tn_lk_arm(link, TN_TIMER_SPARE, tn_deadline(now_ns, 2 * link->config->lane_timeout_ns));
	return NULL;
}

void tn_lk_spare_make(tn_link *link, uint64_t now_ns)
{
	tn_lk_spare *spare = &link->spare;
	tern_status made =
		tn_lk_lanes_make(link, spare->epoch, spare->provider, spare->lanes, spare->by_index);

	spare->wait = made == TERN_AGAIN;
	if (made == TERN_OK)
		spare->count = spare->lanes;
	else if (made != TERN_AGAIN)
		tn_lk_spare_failed(link, made, "no memory for lanes", now_ns);
}

void tn_lk_spare_reach(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	tn_lk_spare *spare = &link->spare;
	tn_writer w;

	spare->reach_wait = false;
	if (status == TERN_OK && !spare->addr) {
		status = TERN_E_NOMEM;
		text = "no memory for the peer's lanes";
	}
	if (status != TERN_OK) {
		tn_lk_spare_drop(link, status, text && text[0] ? text : tern_status_text(status), now_ns);
		return;
	}
	if (dials(link)) {
		link->epoch_last = spare->epoch;
		w = tn_lk_out_begin(link);
		tn_wire_put_wire(&w, spare->epoch, name_of(link), spare->lanes);
		tn_lk_out_end(link, &w, now_ns);
		if (spare->active) /* the output did not overflow */
			tn_lk_arm(link, TN_TIMER_SPARE, tn_deadline(now_ns, link->config->lane_timeout_ns));
	}
	if (spare->active)
		tn_lk_spare_make(link, now_ns);
}

static void maybe_ready(tn_link *link, uint64_t now_ns)
{
	if (!tn_lk_spare_usable(link))
		return;
	tn_lk_log(link, TN_LOG_DEBUG, "lanes of %s are ready beside those in use", name_of(link));
	if (dials(link) && link->state == TN_LINK_UP)
		tn_lk_arm(link, TN_TIMER_SPARE,
			  link->spare.reshape ? now_ns : tn_deadline(now_ns, link->config->probe_ns));
	else
		tn_lk_disarm(link, TN_TIMER_SPARE);
}

void tn_lk_spare_lane_up(tn_link *link, uint64_t now_ns)
{
	tn_lk_spare *spare = &link->spare;

	if (spare->count != spare->lanes)
		return;
	for (uint32_t i = 0; i < spare->count; i++)
		if (spare->by_index[i]->state != TN_LANE_UP)
			return;
	tn_lk_say_epoch(link, TN_CTRL_READY, spare->epoch, now_ns);
	spare->ready_sent = true;
	maybe_ready(link, now_ns);
}

/* ---- going over ---- */

void tn_lk_hold(tn_link *link, bool hold)
{
	if (link->hold == hold)
		return;
	link->hold = hold;
	for (uint32_t i = 0; i < link->lane_count; i++)
		link->by_index[i]->quiet_sent = false;
	for (uint32_t i = 0; i < link->chan_high; i++)
		if (link->chans[i].state != TN_CHAN_FREE)
			tn_lk_chan_update(link, &link->chans[i]);
}

static void put_move(tn_link *link, uint64_t now_ns)
{
	tn_lk_say_epoch(link, TN_CTRL_MOVE, link->spare.epoch, now_ns);
	link->spare.move_sent = true;
}

void tn_lk_spare_timeout(tn_link *link, uint64_t now_ns)
{
	if (!link->spare.active || link->state != TN_LINK_UP)
		return;
	if (!tn_lk_spare_usable(link)) {
		tn_lk_spare_drop(link, TERN_E_DEADLINE, "connecting the lanes took too long", now_ns);
	} else if (link->hold) {
		tn_lk_spare_drop(link, TERN_E_DEADLINE, "what was under way did not end in time", now_ns);
	} else if (dials(link) && !link->torn) {
		put_move(link, now_ns);
		if (link->state != TN_LINK_UP)
			return; /* the output overflowed, or there was no memory for it */
		tn_lk_hold(link, true);
		tn_lk_arm(link, TN_TIMER_SPARE, tn_deadline(now_ns, link->config->lane_timeout_ns));
	}
}

/* Nothing of this side waits for its end, but for the peer's word that it has arrived. */
static bool nothing_left(const tn_link *link)
{
	return link->wr_live == 0 && link->xfer_ready == 0 && tn_list_empty(&link->msg_ready) &&
	       !tn_lk_journal_due(link);
}

void tn_lk_sync_build(tn_link *link, tn_lk_lane *lane, tn_link_post *post)
{
	tn_lk_wr *wr = tn_lk_wr_begin(link, TN_WR_QUIET, NULL, NULL, 0);

	tn_lk_head_fill(link, lane, wr, TN_FRAME_SYNC, TN_FRAME_ACK);
	tn_lk_frame_post(link, lane, wr, sizeof(tn_frame_head), post);
}

bool tn_lk_next_quiet(tn_link *link, tn_link_post *post)
{
	if (!nothing_left(link) || link->state != TN_LINK_UP)
		return false;
	for (uint32_t i = 0; i < link->lane_count; i++) {
		tn_lk_lane *lane = link->by_index[i];

		if (lane->quiet_sent || !tn_lk_lane_ready(link, lane) || tn_lk_credits(lane) <= (i == 0))
			continue;
		tn_lk_sync_build(link, lane, post);
		return true;
	}
	return false;
}

static bool quiet(const tn_link *link)
{
	if (!nothing_left(link))
		return false;
	for (uint32_t i = 0; i < link->lane_count; i++) {
		const tn_lk_lane *lane = link->by_index[i];

		if (!lane->quiet_sent || (int32_t)(lane->peer_seen - lane->quiet_unit) < 0)
			return false;
	}
	return true;
}

void tn_lk_move_step(tn_link *link, uint64_t now_ns)
{
	char why[TN_LINK_TEXT_MAX];

	if (!link->hold || link->state != TN_LINK_UP || !quiet(link))
		return;
	if (!dials(link)) {
		if (!link->spare.move_sent)
			put_move(link, now_ns);
		return;
	}
	if (!link->spare.move_received)
		return;
	link->moving = true;
	snprintf(why, sizeof(why), "going over to %s", name_of(link));
	tn_lk_recover(link, TERN_E_LANE, why, now_ns);
}

const char *tn_lk_spare_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				uint64_t now_ns)
{
	tn_lk_spare *spare = &link->spare;
	uint32_t epoch;
	const char *wrong = tn_wire_get_epoch(payload, bytes, &epoch);

	if (wrong)
		return wrong;
	if (epoch > link->epoch_last || !link->moves)
		return "READY or MOVE of lanes that were not wired";
	if (!spare->active || epoch != spare->epoch)
		return NULL; /* given up meanwhile */
	if (type == TN_CTRL_READY) {
		if (spare->ready_received)
			return "a second READY";
		spare->ready_received = true;
		maybe_ready(link, now_ns);
		return NULL;
	}
	if (spare->move_received || !spare->ready_received || (dials(link) && !spare->move_sent))
		return "MOVE at a wrong time";
	spare->move_received = true;
	if (!dials(link) && link->state == TN_LINK_UP) {
		tn_lk_hold(link, true);
		tn_lk_arm(link, TN_TIMER_SPARE, tn_deadline(now_ns, 2 * link->config->lane_timeout_ns));
	}
	return NULL;
}

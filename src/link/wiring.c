/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of a link: which provider, making and connecting them, closing them.
 *
 *	dialer                                            acceptor
 *	next provider that both have and it can reach
 *	WIRE {epoch + 1, provider, lanes}  ------------>  can it reach back?
 *	LANE_ADDR of each lane it made     ------------>
 *	                                   <------------  LANE_ADDR of each lane it made
 *	each connects a lane once it has both addresses
 *	WIRED when all its lanes are up    <----------->  WIRED
 *	                                                  both sent and received: UP
 *	UNWIRE {epoch, why} from either side ends the attempt; the dialer goes on to its next provider
 *
 * Once WIRED was sent, a lane that breaks is a case for recover.c: the peer may be UP. A frame on a lane says WIRED as
 * well, since the peer sends one only when it has both. The lanes themselves: lane.c.
 * Threads: none. Tests: tests/unit/link/life_test.c.
 */
#include "link/internal.h"

/* ---- choosing a provider ---- */

static void note_reason(tn_link *link, const char *provider, const char *why)
{
	size_t at;

	if (tn_lk_text_lend(link, &link->reason)) {
		at = strlen(link->reason);
		snprintf(link->reason + at, TN_LINK_TEXT_MAX - at, "%s%s: %s", at ? "; " : "", provider, why);
	}
	tn_lk_log(link, TN_LOG_INFO, "not over %s: %s", provider, why);
}

static uint32_t find_provider(const tn_link_provider *rows, uint32_t count, const char *name)
{
	for (uint32_t i = 0; i < count; i++)
		if (!strcmp(rows[i].name, name))
			return i;
	return TN_NONE;
}

static uint32_t find_peer_provider(const tn_link *link, const char *name)
{
	for (uint32_t i = 0; i < link->peer_setup->provider_count; i++)
		if (!strcmp(link->peer_setup->providers[i].name, name))
			return i;
	return TN_NONE;
}

uint32_t tn_lk_peer_provider(const tn_link *link, uint32_t provider)
{
	const uint32_t need = TN_LINK_CAP_SEND | TN_LINK_CAP_WRITE;
	uint32_t peer = find_peer_provider(link, link->shared->providers[provider].name);

	return peer != TN_NONE && (link->peer_setup->providers[peer].caps & need) == need ? peer : TN_NONE;
}

uint32_t tn_lk_lanes_wanted(const tn_link *link, uint32_t provider)
{
	uint32_t data_lanes = link->shared->providers[provider].data_lanes;

	if (link->few & (1u << provider))
		data_lanes = 0;
	else if (data_lanes == UINT32_MAX)
		data_lanes = link->config->data_lanes;
	return 1 + TN_MIN(data_lanes, TN_LINK_LANES_MAX - 1u);
}

bool tn_lk_try_fewer(tn_link *link, uint32_t provider, tern_status status)
{
	if (!link->active || provider == TN_NONE || tn_lk_lanes_wanted(link, provider) == 1 ||
	    (status != TERN_E_LIMIT && status != TERN_E_NOMEM))
		return false;
	tn_lk_log(link, TN_LOG_INFO, "one lane over %s: more find no room",
		  link->shared->providers[provider].name);
	link->few |= 1u << provider;
	return true;
}

static void ask_reach(tn_link *link, uint32_t provider, uint32_t peer_provider)
{
	link->provider = provider;
	link->peer_provider = peer_provider;
	link->reach_ask = true;
}

#define REWIRE_NS (10 * TN_NS_PER_MS) /* doubles up to 64 times that */
#define ROUNDS    3u                  /* more that a new link makes through its providers, if lanes broke */

/* Dialer: the next provider to try. */
static void try_next(tn_link *link, uint64_t now_ns)
{
	while (link->provider_next < link->config->provider_count) {
		uint32_t i = link->provider_next++;
		uint32_t peer = tn_lk_peer_provider(link, i);

		if (peer == TN_NONE) {
			note_reason(link, link->shared->providers[i].name, "the peer does not have it");
		} else if (tn_lk_held_back(link, i, now_ns)) {
			note_reason(link, link->shared->providers[i].name,
				    "held back: it broke again and again");
			tn_count_own(&link->counters.held_back, 1);
		} else {
			ask_reach(link, i, peer);
			return;
		}
	}
	if (link->state == TN_LINK_RECOVERING || (link->wire_broke && link->rewires < ROUNDS)) {
		/* What broke may come back: TN_TIMER_RECOVER bounds it. */
		tn_lk_log(link, TN_LOG_INFO, "no provider works now: %s", tn_lk_text(link->reason));
		tn_lk_disarm(link, TN_TIMER_STEP);
		tn_lk_arm(link, TN_TIMER_REWIRE, now_ns + (REWIRE_NS << TN_MIN(link->rewires, 6u)));
		link->rewires++;
		return;
	}
	tn_lk_fail_link(link, now_ns, TERN_E_UNREACHABLE, "no transport reaches the peer (%.200s)",
			link->reason ? link->reason : "none configured");
}

static void arm_wiring(tn_link *link, uint64_t now_ns)
{
	/* The acceptor waits for the dialer's next try as well. */
	uint64_t wait = link->config->lane_timeout_ns * (link->active ? 1 : 2);

	tn_lk_arm(link, TN_TIMER_STEP, tn_deadline(now_ns, wait));
}

void tn_lk_wiring_again(tn_link *link, uint64_t now_ns)
{
	link->provider = TN_NONE;
	link->wired_sent = link->wired_received = false;
	arm_wiring(link, now_ns);
	if (link->active)
		try_next(link, now_ns);
}

void tn_lk_wiring_start(tn_link *link, uint64_t now_ns)
{
	tn_link_set_state(link, TN_LINK_WIRING);
	arm_wiring(link, now_ns);
	if (link->active)
		try_next(link, now_ns);
}

/* ---- an attempt ---- */

static void make_lanes(tn_link *link, uint64_t now_ns)
{
	tern_status made =
		tn_lk_lanes_make(link, link->epoch, link->provider, link->wire_lanes, link->by_index);

	link->wire_wait = made == TERN_AGAIN;
	if (made == TERN_OK)
		link->lane_count = link->wire_lanes;
	else if (made != TERN_AGAIN)
		tn_lk_attempt_failed(link, made, "no memory for lanes", now_ns);
}

/* The peer's addresses are not needed, or those of another epoch are. */
static void addrs_drop(tn_link *link)
{
	tn_lk_addrs_back(link, link->addr, link->addr_lanes);
	link->addr = NULL;
	link->addr_lanes = 0;
}

void tn_lk_wiring_fini(tn_link *link)
{
	addrs_drop(link);
	if (link->peer_setup)
		tn_store_back(link->config->store, link->peer_setup, link->peer_setup->bytes);
	link->peer_setup = NULL;
}

static bool begin_epoch(tn_link *link, uint32_t epoch, uint32_t lanes, uint64_t now_ns)
{
	tn_lk_lanes_close(link);
	link->lane_count = 0;
	link->epoch = link->epoch_last = epoch;
	link->wire_lanes = lanes;
	link->wire_active = true;
	link->wired_sent = link->wired_received = false;
	link->narrow = link->widen = link->widen_sent = false;
	addrs_drop(link);
	link->addr = tn_lk_addrs_lend(link, lanes);
	link->addr_lanes = lanes;
	if (!link->addr)
		tn_lk_fail_link(link, now_ns, TERN_E_NOMEM, "%s", "no memory for the peer's lanes");
	return link->addr != NULL;
}

/* The provider had no success: the next one is tried, or the same with one lane. */
static void pass_over(tn_link *link, tern_status status, const char *why)
{
	if (tn_lk_try_fewer(link, link->provider, status))
		link->provider_next = link->provider;
	else
		note_reason(link, link->shared->providers[link->provider].name, why);
}

static void end_attempt(tn_link *link, tern_status status, const char *why, uint64_t now_ns)
{
	pass_over(link, status, why);
	tn_lk_attempt_past(link, link->epoch, link->provider);
	tn_lk_lanes_close(link);
	link->lane_count = 0;
	link->wire_active = link->wire_wait = link->reach_ask = link->reach_wait = false;
	link->provider = TN_NONE;
	arm_wiring(link, now_ns);
	if (link->active)
		try_next(link, now_ns);
}

/* A lane's fault that another round may not have; the rest is known to stay. */
static bool broke(tern_status status)
{
	return status == TERN_E_LANE || status == TERN_E_REFUSED || status == TERN_E_PEER_LOST ||
	       status == TERN_E_FLUSHED;
}

void tn_lk_attempt_failed(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	const char *why = text && text[0] ? text : tern_status_text(status);
	tn_writer w;

	link->wire_broke |= broke(status);
	if (link->state == TN_LINK_RECOVERING) {
		pass_over(link, status, why);
		tn_lk_recover(link, status, why, now_ns);
		return;
	}
	w = tn_lk_out_begin(link);
	tn_wire_put_unwire(&w, link->epoch, status, why);
	tn_lk_out_end(link, &w, now_ns);
	if (tn_lk_wiring(link))
		end_attempt(link, status, why, now_ns);
}

void tn_lk_wiring_timeout(tn_link *link, uint64_t now_ns)
{
	if (link->state == TN_LINK_RECOVERING && !link->active && !link->wire_active)
		return; /* the dialer is at it; TN_TIMER_RECOVER bounds the wait */
	if (link->wired_sent || (!link->active && !link->wire_active))
		tn_lk_fail_link(link, now_ns, TERN_E_DEADLINE, "%s",
				"the peer did not connect its lanes in time");
	else
		tn_lk_attempt_failed(link, TERN_E_DEADLINE, "connecting the lanes took too long", now_ns);
}

void tn_link_on_reach(tn_link *link, uint32_t provider, tern_status status, const char *text, uint64_t now_ns)
{
	tn_writer w;

	if (link->spare.reach_wait && link->spare.provider == provider)
		tn_lk_spare_reach(link, status, text, now_ns);
	if (!link->reach_wait || link->provider != provider || !tn_lk_wiring(link))
		return;
	link->reach_wait = false;
	if (link->active) {
		const tn_link_provider *p = &link->shared->providers[link->provider];

		if (status != TERN_OK) {
			pass_over(link, status, text && text[0] ? text : tern_status_text(status));
			try_next(link, now_ns);
			return;
		}
		if (!begin_epoch(link, link->epoch_last + 1, tn_lk_lanes_wanted(link, link->provider),
				 now_ns))
			return;
		arm_wiring(link, now_ns);
		w = tn_lk_out_begin(link);
		tn_wire_put_wire(&w, link->epoch, p->name, link->wire_lanes);
		tn_lk_out_end(link, &w, now_ns);
	} else if (status != TERN_OK) {
		tn_lk_attempt_failed(link, status, text, now_ns);
		return;
	}
	if (tn_lk_wiring(link))
		make_lanes(link, now_ns);
}

/* ---- the end of an attempt that went well ---- */

/* What is sent once may have to go over any other provider: no frame is longer than all of them take. */
static uint64_t frame_of_all(const tn_link *link)
{
	uint64_t bytes = TN_JOURNAL_FRAME_MAX;

	for (uint32_t i = 0; i < link->config->provider_count; i++) {
		uint32_t peer = find_peer_provider(link, link->shared->providers[i].name);

		if (peer != TN_NONE)
			bytes = TN_MIN(bytes, TN_MIN(link->shared->providers[i].send_bytes_max,
						     link->peer_setup->providers[peer].send_bytes_max));
	}
	return bytes;
}

static void go_up(tn_link *link, uint64_t now_ns)
{
	const tn_link_provider *own = &link->shared->providers[link->provider];
	const tn_lk_peer_device *peer = &link->peer_setup->providers[link->peer_provider];
	bool again = link->was_up;

	link->caps = own->caps & peer->caps;
	link->remote_done = link->caps & TN_LINK_CAP_REMOTE_DONE;
	tn_lk_numbers_up(link);
	link->lane_wrs_max = own->lane_wrs_max;
	link->imm_max = own->imm_bytes_max ? own->imm_bytes_max : UINT64_MAX;
	link->frame_max =
		link->resumes ? frame_of_all(link) : TN_MIN(own->send_bytes_max, peer->send_bytes_max);
	link->chunk_max =
		TN_MIN(link->config->chunk_bytes, TN_MIN(own->write_bytes_max, peer->write_bytes_max));
	tn_link_set_state(link, TN_LINK_UP);
	tn_lk_log(link, TN_LOG_INFO, "up over %s, %u lanes, wire version %u, features %#llx (%s)", own->name,
		  link->lane_count, link->peer.version, (unsigned long long)link->peer.features,
		  tn_link_provider_reason(link));
	link->heard = link->was_up = true;
	link->up_since_ns = now_ns;
	link->worked |= 1u << link->provider;
	tn_lk_disarm(link, TN_TIMER_STEP);
	tn_lk_probe_later(link, now_ns);
	if (again && link->provider != link->told_provider) {
		tn_count_own(link->provider < link->told_provider ? &link->counters.returns
								  : &link->counters.fallbacks,
			     1);
		link->moved_due = true;
	}
	link->told_provider = link->provider;
	link->moving = false;
	addrs_drop(link);
	tn_lk_lanes_rest(link);
	tn_lk_birth_over(link);
	tn_lk_flow_up(link);
	tn_lk_reshape_up(link, now_ns);
	if (again) {
		tn_lk_recovered(link, now_ns);
		return;
	}
	link->up_due = true;
	if (link->config->keepalive_ns)
		tn_lk_arm(link, TN_TIMER_KEEPALIVE, tn_deadline(now_ns, link->config->keepalive_ns));
}

static void maybe_up(tn_link *link, uint64_t now_ns)
{
	if (tn_lk_wiring(link) && link->wired_sent && link->wired_received)
		go_up(link, now_ns);
}

void tn_lk_wiring_implied(tn_link *link, uint64_t now_ns)
{
	link->wired_received = true;
	maybe_up(link, now_ns);
}

void tn_lk_wiring_adopt(tn_link *link, uint64_t now_ns)
{
	tn_lk_spare *spare = &link->spare;

	link->epoch = spare->epoch;
	link->provider = spare->provider;
	link->peer_provider = spare->peer_provider;
	link->wire_lanes = link->lane_count = spare->lanes;
	memcpy(link->by_index, spare->by_index, sizeof(link->by_index));
	addrs_drop(link);
	link->addr = spare->addr;
	link->addr_lanes = spare->lanes;
	spare->addr = NULL;
	link->wire_active = true;
	link->wired_sent = link->wired_received = false;
	tn_lk_reshape_adopt(link);
	spare->active = false;
	arm_wiring(link, now_ns);
	if (spare->broken) {
		tn_lk_attempt_failed(link, TERN_E_LANE, "a lane of it broke before it was used", now_ns);
		return;
	}
	tn_lk_say_epoch(link, TN_CTRL_WIRED, link->epoch, now_ns);
	link->wired_sent = true;
	maybe_up(link, now_ns);
}

/* ---- messages ---- */

static const char *on_wire(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_wire wire;
	const char *wrong = tn_wire_get_wire(payload, bytes, &wire);
	uint32_t own, peer;

	if (wrong)
		return wrong;
	if (link->active || wire.epoch <= link->epoch_last ||
	    (!link->moves && (link->wired_sent || !tn_lk_wiring(link))))
		return "WIRE at a wrong time";
	own = find_provider(link->shared->providers, link->config->provider_count, wire.provider);
	peer = find_peer_provider(link, wire.provider);
	if (own == TN_NONE || peer == TN_NONE)
		return "WIRE with a provider that was not offered";
	if (link->wired_sent || !tn_lk_wiring(link))
		return tn_lk_spare_wire(link, &wire, own, peer, now_ns);
	if (!begin_epoch(link, wire.epoch, wire.lanes, now_ns))
		return NULL;
	link->reach_wait = false;
	ask_reach(link, own, peer);
	arm_wiring(link, now_ns);
	return NULL;
}

static const char *on_lane_addr(tn_link *link, const uint8_t *payload, uint32_t bytes)
{
	tn_wire_lane_addr addr;
	const char *wrong = tn_wire_get_lane_addr(payload, bytes, &addr);
	tn_lk_addr *rows;
	bool spare;

	if (wrong)
		return wrong;
	if (addr.epoch > link->epoch_last)
		return "LANE_ADDR of an epoch to come";
	spare = link->spare.active && addr.epoch == link->spare.epoch;
	if (!spare && ((addr.epoch != link->epoch && !TN_MUTANT(18)) || !link->wire_active))
		return NULL; /* of an attempt that failed meanwhile */
	rows = spare ? link->spare.addr : link->addr;
	if (spare && !rows)
		return NULL; /* there was no memory for it: it is given up soon */
	if ((!spare && !tn_lk_wiring(link)) || addr.lane >= (spare ? link->spare.lanes : link->wire_lanes) ||
	    rows[addr.lane].has)
		return "LANE_ADDR of a lane that is not awaited";
	if (addr.grant < TN_GRANT_MIN || addr.grant > (link->resumes ? TN_JOURNAL_ROWS : (uint32_t)INT32_MAX))
		return "LANE_ADDR with a grant out of range";
	rows[addr.lane] = (tn_lk_addr){.has = true, .grant = addr.grant, .bytes = addr.address_bytes};
	memcpy(rows[addr.lane].blob, addr.address, addr.address_bytes);
	if (addr.lane < (spare ? link->spare.count : link->lane_count))
		tn_lk_lane_connect(link, spare ? link->spare.by_index[addr.lane] : link->by_index[addr.lane]);
	return NULL;
}

static const char *on_unwire(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_end end;
	const char *wrong = tn_wire_get_end(payload, bytes, true, &end);
	char why[TN_LINK_TEXT_MAX];

	if (wrong)
		return wrong;
	/* Its lanes may be seen to go before its words come. */
	if (end.epoch == link->past_epoch)
		(void)tn_lk_try_fewer(link, link->past_provider, end.status);
	if (link->spare.active && end.epoch == link->spare.epoch) {
		tn_lk_spare_unwired(link, end.status, end.text[0] ? end.text : tern_status_text(end.status),
				    now_ns);
		return NULL;
	}
	if (end.epoch == link->epoch && link->resumes &&
	    (tn_lk_alive(link) ||
	     (link->state == TN_LINK_WIRING && link->wire_active && link->wired_received))) {
		if (link->state == TN_LINK_RECOVERING && tn_lk_try_fewer(link, link->provider, end.status))
			link->provider_next = link->provider;
		tn_lk_peer_recovers(link, end.text[0] ? end.text : tern_status_text(end.status), now_ns);
		return NULL;
	}
	if (end.epoch != link->epoch || !link->wire_active)
		return NULL;
	if (!tn_lk_wiring(link))
		return "UNWIRE of lanes that were wired";
	snprintf(why, sizeof(why), "the peer says: %.200s",
		 end.text[0] ? end.text : tern_status_text(end.status));
	link->wire_broke |= broke(end.status);
	/* Had this side sent WIRED already, it starts over all the same: the peer has not. */
	link->wired_sent = false;
	end_attempt(link, end.status, why, now_ns);
	return NULL;
}

const char *tn_lk_wiring_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				 uint64_t now_ns)
{
	const char *wrong;
	uint32_t epoch;

	switch (type) {
	case TN_CTRL_WIRE:
		return on_wire(link, payload, bytes, now_ns);
	case TN_CTRL_LANE_ADDR:
		return on_lane_addr(link, payload, bytes);
	case TN_CTRL_UNWIRE:
		return on_unwire(link, payload, bytes, now_ns);
	case TN_CTRL_WIRED:
		wrong = tn_wire_get_epoch(payload, bytes, &epoch);
		if (wrong)
			return wrong;
		if (epoch > link->epoch_last)
			return "WIRED of an epoch to come";
		if (epoch == link->epoch && (link->wire_active || link->draining)) {
			link->wired_received = true;
			maybe_up(link, now_ns);
		}
		return NULL;
	default:
		return "unknown control message";
	}
}

/* One more of the epoch's lanes is connected. */
void tn_lk_wiring_lane_up(tn_link *link, uint64_t now_ns)
{
	if (link->lane_count != link->wire_lanes)
		return;
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->by_index[i]->state != TN_LANE_UP)
			return;
	tn_lk_say_epoch(link, TN_CTRL_WIRED, link->epoch, now_ns);
	link->wired_sent = true;
	maybe_up(link, now_ns);
}

void tn_lk_wiring_lane_gone(tn_link *link, uint64_t now_ns)
{
	if (link->wire_wait && tn_lk_wiring(link))
		make_lanes(link, now_ns);
}

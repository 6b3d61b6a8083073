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
 * Once WIRED was sent, a lane that breaks ends the link: the peer may be UP. A frame on a lane says WIRED as
 * well, since the peer sends one only when it has both. States of a lane: internal.h.
 * Threads: none. Tests: tests/unit/link/life_test.c.
 */
#include "link/internal.h"

static const char *const lane_state_names[] = {
	[TN_LANE_FREE] = "FREE",       [TN_LANE_CREATE] = "CREATE",   [TN_LANE_CREATING] = "CREATING",
	[TN_LANE_CREATED] = "CREATED", [TN_LANE_CONNECT] = "CONNECT", [TN_LANE_CONNECTING] = "CONNECTING",
	[TN_LANE_UP] = "UP",           [TN_LANE_CLOSE] = "CLOSE",     [TN_LANE_CLOSING] = "CLOSING",
};

#define B(s) (1u << TN_LANE_##s)
static const uint32_t lane_predecessors[] = {
	[TN_LANE_FREE] = B(CREATE) | B(CREATING) | B(CLOSING),
	[TN_LANE_CREATE] = B(FREE),
	[TN_LANE_CREATING] = B(CREATE),
	[TN_LANE_CREATED] = B(CREATING),
	[TN_LANE_CONNECT] = B(CREATED),
	[TN_LANE_CONNECTING] = B(CONNECT),
	[TN_LANE_UP] = B(CONNECTING),
	[TN_LANE_CLOSE] = B(CREATING) | B(CREATED) | B(CONNECT) | B(CONNECTING) | B(UP),
	[TN_LANE_CLOSING] = B(CLOSE),
};
#define LANE_WORK (B(CREATE) | B(CONNECT) | B(CLOSE))

const char *tn_lk_lane_state_name(tn_lk_lane_state state)
{
	return (unsigned)state < TN_COUNT_OF(lane_state_names) ? lane_state_names[state] : "?";
}

void tn_lk_lane_set_state(tn_link *link, tn_lk_lane *lane, tn_lk_lane_state to)
{
	TN_ASSERT_MSG(lane_predecessors[to] & (1u << lane->state), "lane %u %s -> %s", lane->index,
		      tn_lk_lane_state_name(lane->state), tn_lk_lane_state_name(to));
	tn_lk_log(link, TN_LOG_DEBUG, "lane %u.%u %s -> %s", lane->epoch, lane->index,
		  tn_lk_lane_state_name(lane->state), tn_lk_lane_state_name(to));
	link->lane_work -= !!(LANE_WORK & (1u << lane->state));
	link->lane_work += !!(LANE_WORK & (1u << to));
	if (lane->state == TN_LANE_FREE)
		link->lanes_live++;
	if (to == TN_LANE_FREE) {
		TN_ASSERT(lane->wrs == 0 && tn_list_empty(&lane->acks));
		link->lanes_live--;
		lane->handle = 0;
	}
	lane->state = to;
}

static void lane_close(tn_link *link, tn_lk_lane *lane)
{
	switch (lane->state) {
	case TN_LANE_CREATE:
		tn_lk_lane_set_state(link, lane, TN_LANE_FREE);
		break;
	case TN_LANE_CREATING:
		lane->doomed = true;
		break;
	case TN_LANE_CREATED:
	case TN_LANE_CONNECT:
	case TN_LANE_CONNECTING:
	case TN_LANE_UP:
		tn_lk_lane_set_state(link, lane, TN_LANE_CLOSE);
		break;
	default:
		break;
	}
}

void tn_lk_lanes_close(tn_link *link)
{
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		lane_close(link, &link->lanes[i]);
}

/* ---- choosing a provider ---- */

static void note_reason(tn_link *link, const char *provider, const char *why)
{
	size_t at = strlen(link->reason);

	snprintf(link->reason + at, sizeof(link->reason) - at, "%s%s: %s", at ? "; " : "", provider, why);
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
	for (uint32_t i = 0; i < link->peer_setup.provider_count; i++)
		if (!strcmp(link->peer_setup.providers[i].name, name))
			return i;
	return TN_NONE;
}

static void ask_reach(tn_link *link, uint32_t provider, uint32_t peer_provider)
{
	link->provider = provider;
	link->peer_provider = peer_provider;
	link->reach_ask = true;
}

#define REWIRE_NS (10 * TN_NS_PER_MS) /* doubles up to 64 times that */

/* Dialer: the next provider to try. */
static void try_next(tn_link *link, uint64_t now_ns)
{
	while (link->provider_next < link->config.provider_count) {
		uint32_t i = link->provider_next++;
		uint32_t peer = find_peer_provider(link, link->providers[i].name);
		const uint32_t need = TN_LINK_CAP_SEND | TN_LINK_CAP_WRITE;

		if (peer != TN_NONE && (link->peer_setup.providers[peer].caps & need) == need) {
			ask_reach(link, i, peer);
			return;
		}
		note_reason(link, link->providers[i].name, "the peer does not have it");
	}
	if (link->state == TN_LINK_RECOVERING) {
		/* What broke may come back: TN_TIMER_RECOVER bounds it. */
		tn_lk_log(link, TN_LOG_INFO, "no provider works now: %s", link->reason);
		tn_lk_disarm(link, TN_TIMER_STEP);
		tn_lk_arm(link, TN_TIMER_REWIRE, now_ns + (REWIRE_NS << TN_MIN(link->rewires, 6u)));
		link->rewires++;
		return;
	}
	tn_lk_fail_link(link, now_ns, TERN_E_UNREACHABLE, "no transport reaches the peer (%.200s)",
			link->reason[0] ? link->reason : "none configured");
}

static void arm_wiring(tn_link *link, uint64_t now_ns)
{
	/* The acceptor waits for the dialer's next try as well. */
	uint64_t wait = link->config.lane_timeout_ns * (link->config.active ? 1 : 2);

	tn_lk_arm(link, TN_TIMER_STEP, tn_deadline(now_ns, wait));
}

void tn_lk_wiring_again(tn_link *link, uint64_t now_ns)
{
	link->provider = TN_NONE;
	link->wired_sent = link->wired_received = false;
	arm_wiring(link, now_ns);
	if (link->config.active)
		try_next(link, now_ns);
}

void tn_lk_wiring_start(tn_link *link, uint64_t now_ns)
{
	tn_link_set_state(link, TN_LINK_WIRING);
	arm_wiring(link, now_ns);
	if (link->config.active)
		try_next(link, now_ns);
}

/* ---- an attempt ---- */

static void make_lanes(tn_link *link)
{
	uint32_t slot = 0;

	if (TN_LANE_SLOTS - link->lanes_live < link->wire_lanes) {
		link->wire_wait = true;
		return;
	}
	link->wire_wait = false;
	for (uint32_t i = 0; i < link->wire_lanes; i++) {
		tn_lk_lane *lane;

		while (link->lanes[slot].state != TN_LANE_FREE)
			slot++;
		lane = &link->lanes[slot];
		memset(lane, 0, offsetof(tn_lk_lane, acks));
		tn_list_init(&lane->acks);
		for (uint32_t c = 0; c < TN_CLASSES; c++)
			tn_list_init(&lane->ready[c]);
		link->lane_serial = (link->lane_serial + 1) & (UINT32_MAX / TN_LANE_SLOTS);
		if (link->lane_serial == 0)
			link->lane_serial = 1;
		lane->handle = link->lane_serial * TN_LANE_SLOTS + slot;
		lane->index = i;
		lane->epoch = link->epoch;
		lane->provider = link->provider;
		link->by_index[i] = lane;
		tn_lk_lane_set_state(link, lane, TN_LANE_CREATE);
	}
	link->lane_count = link->wire_lanes;
}

static void begin_epoch(tn_link *link, uint32_t epoch, uint32_t lanes)
{
	tn_lk_lanes_close(link);
	link->lane_count = 0;
	link->epoch = epoch;
	link->wire_lanes = lanes;
	link->wire_active = true;
	link->wired_sent = link->wired_received = false;
	memset(link->addr, 0, sizeof(link->addr));
}

static void end_attempt(tn_link *link, const char *why, uint64_t now_ns)
{
	note_reason(link, link->providers[link->provider].name, why);
	tn_lk_lanes_close(link);
	link->lane_count = 0;
	link->wire_active = link->wire_wait = link->reach_ask = link->reach_wait = false;
	link->provider = TN_NONE;
	arm_wiring(link, now_ns);
	if (link->config.active)
		try_next(link, now_ns);
}

static void attempt_failed(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	const char *why = text && text[0] ? text : tern_status_text(status);
	tn_writer w;

	if (link->state == TN_LINK_RECOVERING) {
		note_reason(link, link->providers[link->provider].name, why);
		tn_lk_recover(link, status, why, now_ns);
		return;
	}
	w = tn_lk_out_begin(link);
	tn_wire_put_unwire(&w, link->epoch, status, why);
	tn_lk_out_end(link, &w, now_ns);
	if (tn_lk_wiring(link))
		end_attempt(link, why, now_ns);
}

void tn_lk_wiring_timeout(tn_link *link, uint64_t now_ns)
{
	if (link->state == TN_LINK_RECOVERING && !link->config.active && !link->wire_active)
		return; /* the dialer is at it; TN_TIMER_RECOVER bounds the wait */
	if (link->wired_sent || (!link->config.active && !link->wire_active))
		tn_lk_fail_link(link, now_ns, TERN_E_DEADLINE, "%s",
				"the peer did not connect its lanes in time");
	else
		attempt_failed(link, TERN_E_DEADLINE, "connecting the lanes took too long", now_ns);
}

void tn_link_on_reach(tn_link *link, tern_status status, const char *text, uint64_t now_ns)
{
	tn_writer w;

	if (!link->reach_wait || !tn_lk_wiring(link))
		return;
	link->reach_wait = false;
	if (link->config.active) {
		const tn_link_provider *p = &link->providers[link->provider];
		uint32_t data_lanes = p->data_lanes == UINT32_MAX ? link->config.data_lanes : p->data_lanes;

		if (status != TERN_OK) {
			note_reason(link, p->name, text && text[0] ? text : tern_status_text(status));
			try_next(link, now_ns);
			return;
		}
		begin_epoch(link, link->epoch + 1, 1 + TN_MIN(data_lanes, TN_LINK_LANES_MAX - 1u));
		arm_wiring(link, now_ns);
		w = tn_lk_out_begin(link);
		tn_wire_put_wire(&w, link->epoch, p->name, link->wire_lanes);
		tn_lk_out_end(link, &w, now_ns);
	} else if (status != TERN_OK) {
		attempt_failed(link, status, text, now_ns);
		return;
	}
	if (tn_lk_wiring(link))
		make_lanes(link);
}

/* ---- the end of an attempt that went well ---- */

/* What is sent once may have to go over any other provider: no frame is longer than all of them take. */
static uint64_t frame_of_all(const tn_link *link)
{
	uint64_t bytes = TN_JOURNAL_RING_BYTES / 8;

	for (uint32_t i = 0; i < link->config.provider_count; i++) {
		uint32_t peer = find_peer_provider(link, link->providers[i].name);

		if (peer != TN_NONE)
			bytes = TN_MIN(bytes, TN_MIN(link->providers[i].send_bytes_max,
						     link->peer_setup.providers[peer].send_bytes_max));
	}
	return bytes;
}

static void go_up(tn_link *link, uint64_t now_ns)
{
	const tn_link_provider *own = &link->providers[link->provider];
	const tn_wire_provider *peer = &link->peer_setup.providers[link->peer_provider];
	bool again = link->state == TN_LINK_RECOVERING;

	link->caps = own->caps & peer->caps;
	link->remote_done = link->caps & TN_LINK_CAP_REMOTE_DONE;
	link->lane_wrs_max = own->lane_wrs_max;
	link->frame_max =
		link->resumes ? frame_of_all(link) : TN_MIN(own->send_bytes_max, peer->send_bytes_max);
	link->chunk_max =
		TN_MIN(link->config.chunk_bytes, TN_MIN(own->write_bytes_max, peer->write_bytes_max));
	if (!link->reason[0])
		snprintf(link->reason, sizeof(link->reason), "%s", "the first choice of both");
	tn_link_set_state(link, TN_LINK_UP);
	tn_lk_log(link, TN_LOG_INFO, "up over %s, %u lanes (%s)", own->name, link->lane_count, link->reason);
	link->heard = true;
	tn_lk_disarm(link, TN_TIMER_STEP);
	if (again) {
		tn_lk_recovered(link, now_ns);
		return;
	}
	link->up_due = true;
	if (link->config.keepalive_ns)
		tn_lk_arm(link, TN_TIMER_KEEPALIVE, tn_deadline(now_ns, link->config.keepalive_ns));
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

/* ---- messages ---- */

static const char *on_wire(tn_link *link, const uint8_t *payload, uint32_t bytes)
{
	tn_wire_wire wire;
	const char *wrong = tn_wire_get_wire(payload, bytes, &wire);
	uint32_t own, peer;

	if (wrong)
		return wrong;
	if (link->config.active || wire.epoch <= link->epoch || link->wired_sent || !tn_lk_wiring(link))
		return "WIRE at a wrong time";
	own = find_provider(link->providers, link->config.provider_count, wire.provider);
	peer = find_peer_provider(link, wire.provider);
	if (own == TN_NONE || peer == TN_NONE)
		return "WIRE with a provider that was not offered";
	begin_epoch(link, wire.epoch, wire.lanes);
	link->reach_wait = false;
	ask_reach(link, own, peer);
	return NULL;
}

static void maybe_connect(tn_link *link, tn_lk_lane *lane)
{
	const tn_lk_addr *addr = &link->addr[lane->index];

	if (lane->state != TN_LANE_CREATED || !addr->has)
		return;
	lane->first = lane->granted = addr->grant;
	tn_lk_lane_set_state(link, lane, TN_LANE_CONNECT);
}

static const char *on_lane_addr(tn_link *link, const uint8_t *payload, uint32_t bytes)
{
	tn_wire_lane_addr addr;
	const char *wrong = tn_wire_get_lane_addr(payload, bytes, &addr);

	if (wrong)
		return wrong;
	if (addr.epoch > link->epoch)
		return "LANE_ADDR of an epoch to come";
	if (addr.epoch < link->epoch || !link->wire_active)
		return NULL; /* of an attempt that failed meanwhile */
	if (!tn_lk_wiring(link) || addr.lane >= link->wire_lanes || link->addr[addr.lane].has)
		return "LANE_ADDR of a lane that is not awaited";
	if (addr.grant < TN_GRANT_MIN || addr.grant > (link->resumes ? TN_JOURNAL_ROWS : (uint32_t)INT32_MAX))
		return "LANE_ADDR with a grant out of range";
	link->addr[addr.lane] = (tn_lk_addr){.has = true, .grant = addr.grant, .bytes = addr.address_bytes};
	memcpy(link->addr[addr.lane].blob, addr.address, addr.address_bytes);
	if (addr.lane < link->lane_count)
		maybe_connect(link, link->by_index[addr.lane]);
	return NULL;
}

static const char *on_unwire(tn_link *link, const uint8_t *payload, uint32_t bytes, uint64_t now_ns)
{
	tn_wire_end end;
	const char *wrong = tn_wire_get_end(payload, bytes, true, &end);
	char why[TN_LINK_TEXT_MAX];

	if (wrong)
		return wrong;
	if (end.epoch == link->epoch && tn_lk_alive(link) && link->resumes) {
		tn_lk_peer_recovers(link, end.text[0] ? end.text : tern_status_text(end.status), now_ns);
		return NULL;
	}
	if (end.epoch != link->epoch || !link->wire_active)
		return NULL;
	if (!tn_lk_wiring(link))
		return "UNWIRE of lanes that were wired";
	snprintf(why, sizeof(why), "the peer says: %.200s",
		 end.text[0] ? end.text : tern_status_text(end.status));
	/* Had this side sent WIRED already, it starts over all the same: the peer has not. */
	link->wired_sent = false;
	end_attempt(link, why, now_ns);
	return NULL;
}

const char *tn_lk_wiring_message(tn_link *link, tn_ctrl_type type, const uint8_t *payload, uint32_t bytes,
				 uint64_t now_ns)
{
	const char *wrong;
	uint32_t epoch;

	switch (type) {
	case TN_CTRL_WIRE:
		wrong = on_wire(link, payload, bytes);
		if (!wrong)
			arm_wiring(link, now_ns);
		return wrong;
	case TN_CTRL_LANE_ADDR:
		return on_lane_addr(link, payload, bytes);
	case TN_CTRL_UNWIRE:
		return on_unwire(link, payload, bytes, now_ns);
	case TN_CTRL_WIRED:
		wrong = tn_wire_get_epoch(payload, bytes, &epoch);
		if (wrong)
			return wrong;
		if (epoch > link->epoch)
			return "WIRED of an epoch to come";
		if (epoch == link->epoch && link->wire_active) {
			link->wired_received = true;
			maybe_up(link, now_ns);
		}
		return NULL;
	default:
		return "unknown control message";
	}
}

/* ---- what the shell says of lanes ---- */

void tn_link_on_lane_created(tn_link *link, uint32_t handle, tern_status status, void *user,
			     const void *address, uint16_t address_bytes, uint32_t grant, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	tn_writer w;

	if (!lane || lane->state != TN_LANE_CREATING)
		return;
	if (status != TERN_OK) {
		bool wanted = !lane->doomed && tn_lk_wiring(link);

		tn_lk_lane_set_state(link, lane, TN_LANE_FREE);
		tn_lk_recover_step(link, now_ns);
		if (wanted)
			attempt_failed(link, status, tn_detail_get(), now_ns);
		return;
	}
	lane->user = user;
	if (lane->doomed || address_bytes > TN_LINK_BLOB_MAX || grant < TN_GRANT_MIN) {
		tn_lk_lane_set_state(link, lane, TN_LANE_CLOSE);
		if (!lane->doomed)
			attempt_failed(link, TERN_E_LIMIT, "too few receive slots are left for another lane",
				       now_ns);
		return;
	}
	if (link->resumes)
		grant = TN_MIN(grant, TN_JOURNAL_ROWS);
	lane->my_first = lane->my_granted = lane->my_told = grant;
	tn_lk_lane_set_state(link, lane, TN_LANE_CREATED);
	w = tn_lk_out_begin(link);
	tn_wire_put_lane_addr(&w, lane->epoch, lane->index, grant, address, address_bytes);
	tn_lk_out_end(link, &w, now_ns);
	if (tn_lk_wiring(link))
		maybe_connect(link, lane);
}

void tn_link_on_lane_up(tn_link *link, uint32_t handle, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	tn_writer w;

	if (!lane || lane->state != TN_LANE_CONNECTING)
		return;
	tn_lk_lane_set_state(link, lane, TN_LANE_UP);
	if (link->lane_count != link->wire_lanes)
		return;
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->by_index[i]->state != TN_LANE_UP)
			return;
	w = tn_lk_out_begin(link);
	tn_wire_put_epoch(&w, TN_CTRL_WIRED, link->epoch);
	tn_lk_out_end(link, &w, now_ns);
	link->wired_sent = true;
	maybe_up(link, now_ns);
}

void tn_link_on_lane_down(tn_link *link, uint32_t handle, tern_status status, const char *detail,
			  uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	char why[TN_LINK_TEXT_MAX];

	if (!lane || lane->state < TN_LANE_CREATED || lane->state >= TN_LANE_CLOSE)
		return;
	if (!tn_lk_wiring(link) || link->wired_sent) {
		tn_lk_lane_failed(link, lane, status, detail, now_ns);
		return;
	}
	snprintf(why, sizeof(why), "%.239s", detail && detail[0] ? detail : tern_status_text(status));
	attempt_failed(link, status, why, now_ns);
}

void tn_link_on_lane_gone(tn_link *link, uint32_t handle, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);

	if (!lane || lane->state != TN_LANE_CLOSING)
		return;
	/* A provider owes a completion for each wr; what it forgot ends here all the same. */
	for (uint32_t i = 0; lane->wrs > 0 && i < link->wr_high; i++) {
		tn_lk_wr *wr = &link->wrs[i];

		if (wr->kind != TN_WR_FREE && &link->lanes[wr->lane] == lane)
			tn_lk_wr_complete(link, wr, TERN_E_FLUSHED, now_ns);
	}
	tn_lk_lane_set_state(link, lane, TN_LANE_FREE);
	tn_lk_recover_step(link, now_ns);
	if (link->wire_wait && tn_lk_wiring(link))
		make_lanes(link);
}

/* ---- actions ---- */

static void fill_lane(const tn_link *link, const tn_lk_lane *lane, tn_link_action *act)
{
	const tn_lk_addr *addr = &link->addr[lane->index];
	const tn_wire_provider *peer = &link->peer_setup.providers[link->peer_provider];

	act->lane.lane = lane->handle;
	act->lane.user = lane->user;
	act->lane.index = lane->index;
	act->lane.epoch = lane->epoch;
	act->lane.provider = lane->provider;
	act->lane.active = link->config.active;
	act->lane.token = lane->token;
	act->lane.peer_device = peer->address;
	act->lane.peer_device_bytes = peer->address_bytes;
	act->lane.peer_lane = addr->blob;
	act->lane.peer_lane_bytes = addr->bytes;
	act->lane.timeout_ns = link->config.lane_timeout_ns;
}

static bool next_reach(tn_link *link, tn_link_action *act)
{
	const tn_wire_provider *peer = &link->peer_setup.providers[link->peer_provider];

	link->reach_ask = false;
	link->reach_wait = true;
	memset(&act->lane, 0, sizeof(act->lane));
	act->type = TN_ACT_REACH;
	act->lane.provider = link->provider;
	act->lane.active = link->config.active;
	act->lane.peer_device = peer->address;
	act->lane.peer_device_bytes = peer->address_bytes;
	return true;
}

bool tn_lk_next_lane(tn_link *link, tn_link_action *act)
{
	static const struct {
		tn_lk_lane_state from, to;
		tn_link_action_type type;
	} steps[] = {
		{TN_LANE_CLOSE, TN_LANE_CLOSING, TN_ACT_LANE_CLOSE},
		{TN_LANE_CREATE, TN_LANE_CREATING, TN_ACT_LANE_CREATE},
		{TN_LANE_CONNECT, TN_LANE_CONNECTING, TN_ACT_LANE_CONNECT},
	};

	if (link->reach_ask)
		return next_reach(link, act);
	if (link->lane_work == 0)
		return false;
	for (unsigned s = 0; s < TN_COUNT_OF(steps); s++) {
		for (uint32_t i = 0; i < TN_LANE_SLOTS; i++) {
			tn_lk_lane *lane = &link->lanes[i];

			if (lane->state != steps[s].from)
				continue;
			if (lane->state == TN_LANE_CREATE)
				tn_lk_lane_token(link, lane);
			tn_lk_lane_set_state(link, lane, steps[s].to);
			fill_lane(link, lane, act);
			act->type = steps[s].type;
			return true;
		}
	}
	return false;
}

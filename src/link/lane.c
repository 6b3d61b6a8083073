/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lane: its states (state.h draws them), what the shell says of it, and the actions that it waits for.
 * Which lanes there are is decided in wiring.c and spare.c.
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

void tn_lk_lane_close(tn_link *link, tn_lk_lane *lane)
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
		if (link->lanes[i] && !tn_lk_is_spare(link, link->lanes[i]))
			tn_lk_lane_close(link, link->lanes[i]);
}

/* ---- rows ---- */

static bool in_use(const tn_link *link, const tn_lk_lane *lane)
{
	for (uint32_t i = 0; i < link->lane_count; i++)
		if (link->by_index[i] == lane)
			return true;
	return lane->state != TN_LANE_FREE;
}

static void row_back(tn_link *link, uint32_t slot)
{
	if (link->lanes[slot])
		tn_crypto_wipe(link->lanes[slot]->token, sizeof(link->lanes[slot]->token));
	tn_store_back(link->config->store, link->lanes[slot], sizeof(tn_lk_lane));
	link->lanes[slot] = NULL;
}

void tn_lk_lanes_rest(tn_link *link)
{
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		if (link->lanes[i] && !in_use(link, link->lanes[i]))
			row_back(link, i);
}

void tn_lk_lanes_fini(tn_link *link)
{
	link->lane_count = 0;
	for (uint32_t i = 0; i < TN_LANE_SLOTS; i++)
		row_back(link, i);
}

/* So many free slots have a row. */
static bool rows_lent(tn_link *link, uint32_t n)
{
	for (uint32_t slot = 0; slot < TN_LANE_SLOTS && n > 0; slot++) {
		if (!link->lanes[slot]) {
			link->lanes[slot] = tn_store_lend(link->config->store, sizeof(tn_lk_lane));
			if (!link->lanes[slot])
				return false;
			memset(link->lanes[slot], 0, sizeof(tn_lk_lane));
		}
		n -= link->lanes[slot]->state == TN_LANE_FREE;
	}
	return true;
}

tn_lk_addr *tn_lk_addrs_lend(tn_link *link, uint32_t lanes)
{
	tn_lk_addr *addr = tn_store_lend(link->config->store, lanes * sizeof(*addr));

	if (addr)
		memset(addr, 0, lanes * sizeof(*addr));
	return addr;
}

void tn_lk_addrs_back(tn_link *link, tn_lk_addr *addr, uint32_t lanes)
{
	tn_store_back(link->config->store, addr, lanes * sizeof(*addr));
}

tern_status tn_lk_lanes_make(tn_link *link, uint32_t epoch, uint32_t provider, uint32_t n,
			     tn_lk_lane *by_index[TN_LINK_LANES_MAX])
{
	uint32_t slot = 0;

	if (TN_LANE_SLOTS - link->lanes_live < n)
		return TERN_AGAIN;
	if (!rows_lent(link, n))
		return TERN_E_NOMEM;
	for (uint32_t i = 0; i < n; i++) {
		tn_lk_lane *lane;

		while (link->lanes[slot]->state != TN_LANE_FREE)
			slot++;
		lane = link->lanes[slot];
		memset(lane, 0, offsetof(tn_lk_lane, acks));
		tn_list_init(&lane->acks);
		for (uint32_t c = 0; c < TN_CLASSES; c++)
			tn_list_init(&lane->ready[c]);
		link->lane_serial = (link->lane_serial + 1) & (UINT32_MAX / TN_LANE_SLOTS);
		if (link->lane_serial == 0)
			link->lane_serial = 1;
		lane->handle = link->lane_serial * TN_LANE_SLOTS + slot;
		lane->index = i;
		lane->epoch = epoch;
		lane->provider = provider;
		by_index[i] = lane;
		tn_lk_lane_set_state(link, lane, TN_LANE_CREATE);
	}
	return TERN_OK;
}

/* NULL: it is not awaited any more. */
static const tn_lk_addr *addr_of(const tn_link *link, const tn_lk_lane *lane)
{
	bool spare = tn_lk_is_spare(link, lane);
	const tn_lk_addr *addr = spare ? link->spare.addr : link->addr;

	return addr && lane->index < (spare ? link->spare.lanes : link->addr_lanes) ? &addr[lane->index]
										    : NULL;
}

void tn_lk_lane_connect(tn_link *link, tn_lk_lane *lane)
{
	const tn_lk_addr *addr = addr_of(link, lane);

	if (lane->state != TN_LANE_CREATED || !addr || !addr->has)
		return;
	lane->first = lane->granted = addr->grant;
	tn_lk_lane_set_state(link, lane, TN_LANE_CONNECT);
}

/* ---- what the shell says of lanes ---- */

static void lane_failed(tn_link *link, bool spare, tern_status status, const char *text, uint64_t now_ns)
{
	if (spare)
		tn_lk_spare_failed(link, status, text, now_ns);
	else
		tn_lk_attempt_failed(link, status, text, now_ns);
}

void tn_link_on_lane_created(tn_link *link, uint32_t handle, tern_status status, void *user,
			     const void *address, uint16_t address_bytes, uint32_t grant, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	bool spare;
	tn_writer w;

	if (!lane || lane->state != TN_LANE_CREATING)
		return;
	spare = tn_lk_is_spare(link, lane);
	if (status != TERN_OK) {
		bool wanted = !lane->doomed && (spare || tn_lk_wiring(link));

		tn_lk_lane_set_state(link, lane, TN_LANE_FREE);
		if (!wanted)
			tn_lk_recover_step(link, now_ns);
		else
			lane_failed(link, spare, status, tn_detail_get(), now_ns);
		return;
	}
	lane->user = user;
	if (lane->doomed || address_bytes > TN_LINK_BLOB_MAX || grant < TN_GRANT_MIN) {
		tn_lk_lane_set_state(link, lane, TN_LANE_CLOSE);
		if (!lane->doomed)
			lane_failed(link, spare, TERN_E_LIMIT,
				    "too few receive slots are left for another lane", now_ns);
		return;
	}
	if (link->resumes)
		grant = TN_MIN(grant, TN_JOURNAL_ROWS);
	lane->my_first = lane->my_granted = lane->my_told = grant;
	tn_lk_lane_set_state(link, lane, TN_LANE_CREATED);
	w = tn_lk_out_begin(link);
	tn_wire_put_lane_addr(&w, lane->epoch, lane->index, grant, address, address_bytes);
	tn_lk_out_end(link, &w, now_ns);
	if (spare || tn_lk_wiring(link))
		tn_lk_lane_connect(link, lane);
}

void tn_link_on_lane_up(tn_link *link, uint32_t handle, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);

	if (!lane || lane->state != TN_LANE_CONNECTING)
		return;
	tn_lk_lane_set_state(link, lane, TN_LANE_UP);
	if (tn_lk_is_spare(link, lane)) {
		tn_lk_spare_lane_up(link, now_ns);
		return;
	}
	tn_lk_wiring_lane_up(link, now_ns);
}

void tn_link_on_lane_down(tn_link *link, uint32_t handle, tern_status status, const char *detail,
			  uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);
	char why[TN_LINK_TEXT_MAX];

	if (!lane || lane->state < TN_LANE_CREATED || lane->state >= TN_LANE_CLOSE)
		return;
	if (tn_lk_is_spare(link, lane)) {
		tn_lk_spare_failed(link, status, detail, now_ns);
		return;
	}
	if (!tn_lk_wiring(link) || link->wired_sent) {
		tn_lk_lane_failed(link, lane, status, detail, now_ns);
		return;
	}
	snprintf(why, sizeof(why), "%.239s", detail && detail[0] ? detail : tern_status_text(status));
	tn_lk_attempt_failed(link, status, why, now_ns);
}

void tn_link_on_lane_gone(tn_link *link, uint32_t handle, uint64_t now_ns)
{
	tn_lk_lane *lane = tn_lk_lane_get(link, handle);

	if (!lane || lane->state != TN_LANE_CLOSING)
		return;
	/* A provider owes a completion for each wr; what it forgot ends here all the same. */
	for (uint32_t i = 0; lane->wrs > 0 && i < link->wr_high; i++) {
		tn_lk_wr *wr = &link->wrs[i];

		if (wr->kind != TN_WR_FREE && link->lanes[wr->lane] == lane)
			tn_lk_wr_complete(link, wr, TERN_E_FLUSHED, now_ns);
	}
	tn_lk_lane_set_state(link, lane, TN_LANE_FREE);
	tn_lk_recover_step(link, now_ns);
	tn_lk_wiring_lane_gone(link, now_ns);
	if (link->spare.active && link->spare.wait)
		tn_lk_spare_make(link, now_ns);
	if (link->state == TN_LINK_UP)
		tn_lk_lanes_rest(link);
}

/* ---- actions ---- */

static void fill_lane(const tn_link *link, const tn_lk_lane *lane, tn_link_action *act)
{
	bool spare = tn_lk_is_spare(link, lane);
	const tn_lk_addr *addr = addr_of(link, lane);
	const tn_lk_peer_device *peer =
		&link->peer_setup->providers[spare ? link->spare.peer_provider : link->peer_provider];

	act->lane.lane = lane->handle;
	act->lane.user = lane->user;
	act->lane.lanes = spare ? link->spare.lanes : link->wire_lanes;
	act->lane.index = lane->index;
	act->lane.epoch = lane->epoch;
	act->lane.provider = lane->provider;
	act->lane.extra = (int32_t)lane->my_extra;
	act->lane.active = link->active;
	act->lane.token = lane->token;
	act->lane.peer_device = tn_lk_peer_address(link, peer);
	act->lane.peer_device_bytes = peer->address_bytes;
	act->lane.peer_lane = addr ? addr->blob : NULL;
	act->lane.peer_lane_bytes = addr ? addr->bytes : 0;
	act->lane.timeout_ns = link->config->lane_timeout_ns;
}

static bool next_reach(tn_link *link, tn_link_action *act)
{
	bool spare = !link->reach_ask;
	const tn_lk_peer_device *peer =
		&link->peer_setup->providers[spare ? link->spare.peer_provider : link->peer_provider];

	*(spare ? &link->spare.reach_ask : &link->reach_ask) = false;
	*(spare ? &link->spare.reach_wait : &link->reach_wait) = true;
	memset(&act->lane, 0, sizeof(act->lane));
	act->type = TN_ACT_REACH;
	act->lane.provider = spare ? link->spare.provider : link->provider;
	act->lane.lanes = spare          ? link->spare.lanes
			  : link->active ? tn_lk_lanes_wanted(link, link->provider)
					 : link->wire_lanes;
	act->lane.active = link->active;
	act->lane.peer_device = tn_lk_peer_address(link, peer);
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

	if (link->reach_ask || link->spare.reach_ask)
		return next_reach(link, act);
	if (link->lane_work == 0)
		return false;
	for (unsigned s = 0; s < TN_COUNT_OF(steps); s++) {
		for (uint32_t i = 0; i < TN_LANE_SLOTS; i++) {
			tn_lk_lane *lane = link->lanes[i];

			if (!lane || lane->state != steps[s].from)
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

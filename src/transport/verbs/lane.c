/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how a lane is made, wired and freed. tn_vb_set_state alone writes the state of verbs.h.
 *
 * Must not look at completions (cq.c tells talk.c what they meant). Threads: serialised with poll; the lane's
 * lock where posts of other threads look. Tests: tests/conformance, tests/unit/transport/test_verbs_life.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/verbs/verbs.h"

#define CONNECT_TIMEOUT_NS (5 * TN_NS_PER_SEC)

static const char *const state_names[] = {"INIT", "WIRING", "UP", "LEAVING", "DRAINING", "QUIET"};

static bool is_transient(tn_vb_state state)
{
	return state == TN_VB_WIRING || state == TN_VB_LEAVING || state == TN_VB_DRAINING;
}

void tn_vb_set_state(tn_vb_lane *lane, tn_vb_state next)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	TN_ASSERT_MSG(next > lane->state, "%s -> %s", state_names[lane->state], state_names[next]);
	TN_LOG(DEBUG, VERBS, "lane %u (queue pair %u): %s -> %s", lane->index, lane->own.qpn,
	       state_names[lane->state], state_names[next]);
	dev->transient -= is_transient(lane->state);
	dev->transient += is_transient(next);
	lane->state = next;
}

void tn_vb_lane_make_due(tn_vb_lane *lane)
{
	if (!tn_list_linked(&lane->due))
		tn_list_push_back(&tn_vb_lane_dev(lane)->due, &lane->due);
}

void tn_vb_lane_set_deadline(tn_vb_lane *lane, uint64_t at_ns)
{
	lane->deadline_ns = at_ns;
	tn_vb_deadline(tn_vb_lane_dev(lane), at_ns);
}

/* ---- seats ---- */

static void seat_free(tn_vb_rail *rail, tn_vb_seat *seat)
{
	if (!seat->qp)
		return;
	if (rail->dev->api->destroy_qp(seat->qp) != 0)
		TN_LOG(ERROR, VERBS, "ibv_destroy_qp of queue pair %u failed: it leaks", seat->qpn);
	seat->qp = NULL;
	tn_vb_cq_release(rail);
}

void tn_vb_seats_free(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	for (uint32_t i = 0; i < dev->rail_count; i++)
		seat_free(&dev->rails[i], &lane->seats[i]);
}

static tern_status seat_make(tn_vb_rail *rail, tn_vb_seat *seat)
{
	tern_status status;
	uint32_t psn;

	TN_TRY(tn_os_random(&psn, sizeof(psn)));
	TN_TRY(tn_vb_cq_reserve(rail));
	status = tn_vb_qp_create(rail, rail->inline_bytes, &seat->qp, NULL);
	if (status != TERN_OK) {
		tn_vb_cq_release(rail);
		return status;
	}
	seat->qpn = seat->qp->qp_num;
	seat->psn = psn & 0xffffffu;
	status = tn_vb_qp_init(rail, seat->qp);
	if (status != TERN_OK)
		seat_free(rail, seat);
	return status;
}

/*
 * A seat on each rail that may be used: which one it will be depends on the peer. The ports are read anew, so
 * that the address tells of today's GIDs even if an event was missed.
 */
static tern_status seats_make(tn_vb_lane *lane, tn_vb_addr *addr)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	tern_status status = TERN_E_NO_DEVICE;
	uint32_t usable = 0;

	for (uint32_t i = 0; i < dev->rail_count; i++) {
		if (dev->rails[i].cq)
			tn_vb_rail_refresh(&dev->rails[i]);
		usable += tn_vb_usable(&dev->rails[i]);
	}
	if (usable == 0)
		return tn_fail(TERN_E_NO_DEVICE, "no rail is up; %s: %s", dev->rails[0].name,
			       dev->rails[0].port.reason);
	for (uint32_t i = 0; i < dev->rail_count; i++) {
		tn_vb_rail_addr *row = &addr->rails[addr->count];
		tern_status one;

		if (!tn_vb_usable(&dev->rails[i]))
			continue;
		one = seat_make(&dev->rails[i], &lane->seats[i]);
		if (one != TERN_OK) {
			status = one;
			continue;
		}
		tn_vb_rail_describe(&dev->rails[i], tn_vb_gids_each(usable), row);
		row->qpn = lane->seats[i].qpn;
		row->psn = lane->seats[i].psn;
		addr->count++;
	}
	return addr->count ? TERN_OK : status;
}

/* ---- making ---- */

static tern_status table_take(tn_vb_dev *dev, tn_vb_lane *lane)
{
	for (uint32_t i = 0; i < TN_VB_LANES_MAX; i++) {
		uint32_t at = (dev->table_next + i) % TN_VB_LANES_MAX;

		if (dev->table[at])
			continue;
		dev->table[at] = lane;
		dev->table_next = at + 1;
		lane->index = at;
		lane->generation = ++dev->generations[at];
		lane->wr_id = (uint64_t)at << 51 | (uint64_t)(lane->generation & 0x7ffffu) << 32;
		return TERN_OK;
	}
	return tn_fail(TERN_E_LIMIT, "%s has %u lanes already", dev->name, TN_VB_LANES_MAX);
}

static void lane_free(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	tn_vb_seats_free(lane);
	if (dev->table[lane->index] == lane)
		dev->table[lane->index] = NULL;
	pthread_mutex_destroy(&lane->lock);
	tn_crypto_wipe(lane->token, sizeof(lane->token));
	free(lane->ops);
	free(lane->held);
	free(lane);
}

static tn_vb_lane *lane_alloc(tn_vb_dev *dev, const tn_lane_params *params)
{
	tn_vb_lane *lane = calloc(1, sizeof(*lane));

	if (!lane)
		return NULL;
	lane->ops = calloc(dev->ring, sizeof(*lane->ops));
	lane->held = calloc(TN_VB_HELD_MAX, sizeof(*lane->held));
	if (!lane->ops || !lane->held) {
		free(lane->ops);
		free(lane->held);
		free(lane);
		return NULL;
	}
	lane->base = (tn_lane){.dev = &dev->base, .arg = params->arg};
	lane->active = params->active;
	lane->bulk = params->bulk;
	lane->timeout_ns = params->connect_timeout_ns ? params->connect_timeout_ns : CONNECT_TIMEOUT_NS;
	lane->deadline_ns = lane->retry_ns = TN_TIME_NEVER;
	memcpy(lane->token, params->token, sizeof(lane->token));
	pthread_mutex_init(&lane->lock, NULL);
	return lane;
}

tern_status tn_vb_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *blob)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	tn_vb_addr addr = {.lane = true, .active = params->active};
	tern_status status;
	tn_vb_lane *lane;

	*out = NULL;
	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the device belongs to the parent process");
	lane = lane_alloc(dev, params);
	if (!lane)
		return tn_fail(TERN_E_NOMEM, "no memory for a lane");
	status = table_take(dev, lane);
	if (status == TERN_OK)
		status = seats_make(lane, &addr);
	if (status != TERN_OK) {
		lane_free(lane);
		return status;
	}
	if (lane->active)
		addr.turn = dev->turn++;
	lane->own.qpn = addr.rails[0].qpn;
	tn_vb_addr_put(&addr, &lane->own_addr);
	*blob = lane->own_addr;
	tn_list_push_back(&dev->lanes, &lane->all);
	tn_vb_deadline(dev, TN_MIN(dev->keepalive_ns, dev->watch_ns));
	tn_count(&dev->counters.lanes, 1);
	*out = &lane->base;
	return TERN_OK;
}

/* ---- wiring ---- */

/* The GID's place in the table; -1: it is gone. */
static int gid_index_of(const tn_vb_port *port, const union ibv_gid *gid)
{
	for (uint32_t i = 0; i < port->gid_count; i++) {
		if (memcmp(&port->gids[i], gid, sizeof(*gid)) == 0)
			return port->gid_index[i];
	}
	return -1;
}

static void log_choice(const tn_vb_lane *lane, const tn_vb_pair *pair)
{
	char own_text[48], peer_text[48];

	if (!TN_LOG_ON(INFO, VERBS))
		return;
	tn_vb_gid_text(&lane->own_gid, own_text, sizeof(own_text));
	tn_vb_gid_text(&lane->peer_gid, peer_text, sizeof(peer_text));
	TN_LOG(INFO, VERBS,
	       "lane %u: %s, GID %u (%s), queue pair %u -> rail %u of the peer (%s), queue pair %u: %s%u "
	       "bits in "
	       "common; MTU %u",
	       lane->index, lane->rail->name, lane->sgid_index, own_text, lane->own.qpn, lane->peer.rail,
	       peer_text, lane->peer.qpn, lane->mine.healthy && lane->peer.healthy ? "" : "on probation, ",
	       pair->near_bits, 128u << TN_MIN(lane->mine.mtu, lane->peer.mtu));
}

/* Which of our rails to which of the peer's; the seats elsewhere are given up. */
static tern_status rails_choose(tn_vb_lane *lane, const tn_vb_addr *own, const tn_vb_addr *peer)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	tn_vb_rail *rail;
	tn_vb_pair pair;
	int index;

	TN_TRY(tn_vb_pair_choose(lane->active ? own : peer, lane->active ? peer : own, &pair));
	lane->mine = own->rails[lane->active ? pair.active : pair.passive];
	lane->peer = peer->rails[lane->active ? pair.passive : pair.active];
	lane->own_gid = lane->mine.gids[lane->active ? pair.active_gid : pair.passive_gid];
	lane->peer_gid = lane->peer.gids[lane->active ? pair.passive_gid : pair.active_gid];
	rail = &dev->rails[lane->mine.rail];
	tn_vb_rail_refresh(rail); /* the GID's place in the table may have moved */
	index = gid_index_of(&rail->port, &lane->own_gid);
	/* A port that went down may be back before the lane's deadline. */
	if (rail->health == TN_VB_RAIL_LOST || index < 0)
		return tn_fail(TERN_E_UNREACHABLE, "%s changed while the lane was made: %s", rail->name,
			       rail->port.reason);
	lane->sgid_index = (uint8_t)index;
	lane->own.qpn = lane->mine.qpn;
	lane->own.psn = lane->mine.psn;
	if (tn_map_put(&rail->by_qpn, lane->own.qpn, (uint64_t)(uintptr_t)lane) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for a lane");
	lane->rail = rail;
	lane->qp = lane->seats[rail->index].qp;
	lane->seats[rail->index].qp = NULL;
	tn_vb_seats_free(lane);
	log_choice(lane, &pair);
	return TERN_OK;
}

static tern_status peer_parse(tn_vb_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_vb_addr own, peer, device;
	bool own_parsed;

	if (!tn_vb_addr_get(peer_dev, false, &device) || !tn_vb_addr_get(peer_lane, true, &peer))
		return tn_fail(TERN_E_INVALID, "the peer's verbs address is malformed");
	if (peer.active == lane->active)
		return tn_fail(TERN_E_INVALID, "both sides of the lane are %s",
			       lane->active ? "active" : "passive");
	own_parsed = tn_vb_addr_get(&lane->own_addr, true, &own);
	TN_ASSERT(own_parsed);
	lane->peer_addr = *peer_lane;
	return rails_choose(lane, &own, &peer);
}

tern_status tn_vb_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the lane belongs to the parent process");
	if (lane->state != TN_VB_INIT || lane->rail)
		return tn_fail(TERN_E_STATE, "the lane is %s", state_names[lane->state]);
	TN_TRY(peer_parse(lane, peer_dev, peer_lane));
	TN_TRY(tn_vb_qp_wire(lane));
	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_WIRING);
	pthread_mutex_unlock(&lane->lock);
	tn_vb_lane_set_deadline(lane, tn_deadline(tn_now(), lane->timeout_ns));
	if (lane->active)
		tn_vb_hello_send(lane);
	tn_vb_kick(dev);
	return TERN_OK;
}

void tn_vb_lane_destroy(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation())
		return;
	TN_ASSERT(lane->state == TN_VB_QUIET && !lane->qp);
	tn_list_remove(&lane->all);
	tn_list_remove(&lane->due);
	pthread_mutex_lock(&dev->held_lock);
	tn_list_remove(&lane->waiting);
	pthread_mutex_unlock(&dev->held_lock);
	if (lane->rail)
		tn_vb_cq_release(lane->rail);
	tn_count(&dev->counters.lanes, (uint64_t)-1);
	lane_free(lane);
}

void tn_vb_lane_check(tn_vb_lane *lane)
{
	const tn_vb_dev *dev = tn_vb_lane_dev(lane);

	pthread_mutex_lock(&lane->lock);
	TN_ASSERT(lane->tail - lane->head <= dev->ops_max + TN_VB_OPS_RESERVED && dev->ring >= dev->ops_max);
	TN_ASSERT(lane->held_count <= lane->tail - lane->head && lane->held_count <= TN_VB_HELD_MAX);
	TN_ASSERT(lane->asked <= lane->tail - lane->head);
	TN_ASSERT((lane->qp != NULL) == (lane->rail && lane->state != TN_VB_QUIET));
	TN_ASSERT(lane->rail || lane->state == TN_VB_INIT || lane->state >= TN_VB_DRAINING);
	TN_ASSERT(dev->table[lane->index] == lane && dev->generations[lane->index] == lane->generation);
	TN_ASSERT(!lane->sweep || (lane->state == TN_VB_DRAINING && lane->flushed && lane->last_wqe));
	TN_ASSERT(!lane->down_due || (!lane->closed && tn_list_linked(&lane->due)));
	pthread_mutex_unlock(&lane->lock);
}

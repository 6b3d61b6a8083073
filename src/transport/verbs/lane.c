/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the life of a lane: the states of verbs.h, the hellos that bring it up and the drain that ends it.
 * tn_vb_set_state alone writes the state.
 *
 * Must not look at completions (cq.c tells it what they meant). Threads: serialised with poll; the lane's
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

/* Lock held. */
static void tn_vb_set_state(tn_vb_lane *lane, tn_vb_state next)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	TN_ASSERT_MSG(next > lane->state, "%s -> %s", state_names[lane->state], state_names[next]);
	TN_LOG(DEBUG, VERBS, "lane %u (queue pair %u): %s -> %s", lane->index, lane->own.qpn,
	       state_names[lane->state], state_names[next]);
	dev->transient -= is_transient(lane->state);
	dev->transient += is_transient(next);
	lane->state = next;
}

static void make_due(tn_vb_lane *lane)
{
	if (!tn_list_linked(&lane->due))
		tn_list_push_back(&tn_vb_lane_dev(lane)->due, &lane->due);
}

static void set_deadline(tn_vb_lane *lane, uint64_t at_ns)
{
	lane->deadline_ns = at_ns;
	tn_vb_deadline(tn_vb_lane_dev(lane), at_ns);
}

/* ---- making ---- */

/* Room in the completion queue for all that this lane can put there, flush included. */
static tern_status cq_reserve(tn_vb_dev *dev, uint64_t more)
{
	uint64_t want = dev->cq_used + more, size = (uint64_t)dev->cq->cqe;

	if (want > size) {
		uint64_t most = (uint64_t)TN_MAX(dev->attr.max_cqe, 0);

		size = TN_MIN(TN_MAX(size * 2, want), most);
		if (want > most || dev->api->resize_cq(dev->cq, (int)size) != 0)
			return tn_fail(TERN_E_LIMIT,
				       "%s: a completion queue of %llu is needed for one lane more, its "
				       "limit is %d: "
				       "lower TERN_VERBS_LANE_WRS",
				       dev->name, (unsigned long long)want, dev->attr.max_cqe);
	}
	dev->cq_used = want;
	return TERN_OK;
}

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
		return TERN_OK;
	}
	return tn_fail(TERN_E_LIMIT, "%s has %u lanes already", dev->name, TN_VB_LANES_MAX);
}

static tern_status qp_make(tn_vb_dev *dev, tn_vb_lane *lane)
{
	uint32_t psn;

	TN_TRY(tn_os_random(&psn, sizeof(psn)));
	TN_TRY(tn_vb_qp_create(dev, dev->inline_bytes, &lane->qp, NULL));
	lane->own =
		(tn_vb_lane_addr){.qpn = lane->qp->qp_num, .psn = psn & 0xffffffu, .active = lane->active};
	TN_TRY(tn_vb_qp_init(lane));
	if (tn_map_put(&dev->by_qpn, lane->own.qpn, (uint64_t)(uintptr_t)lane) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for a lane");
	return TERN_OK;
}

static void lane_free(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (lane->qp) {
		tn_map_remove(&dev->by_qpn, lane->own.qpn, NULL);
		dev->api->destroy_qp(lane->qp);
	}
	if (dev->table[lane->index] == lane)
		dev->table[lane->index] = NULL;
	pthread_mutex_destroy(&lane->lock);
	tn_crypto_wipe(lane->token, sizeof(lane->token));
	free(lane->ops);
	free(lane);
}

tern_status tn_vb_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr)
{
	tn_vb_dev *dev = tn_vb_dev_of(base);
	uint64_t room = dev->ops_max + TN_VB_OPS_RESERVED;
	tern_status status;
	tn_vb_lane *lane;

	*out = NULL;
	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the device belongs to the parent process");
	TN_TRY(cq_reserve(dev, room));
	lane = calloc(1, sizeof(*lane));
	if (lane)
		lane->ops = calloc(dev->ring, sizeof(*lane->ops));
	if (!lane || !lane->ops) {
		free(lane);
		dev->cq_used -= room;
		return tn_fail(TERN_E_NOMEM, "no memory for a lane");
	}
	lane->base = (tn_lane){.dev = base, .arg = params->arg};
	lane->active = params->active;
	lane->timeout_ns = params->connect_timeout_ns ? params->connect_timeout_ns : CONNECT_TIMEOUT_NS;
	lane->deadline_ns = lane->retry_ns = TN_TIME_NEVER;
	memcpy(lane->token, params->token, sizeof(lane->token));
	pthread_mutex_init(&lane->lock, NULL);
	status = table_take(dev, lane);
	if (status == TERN_OK)
		status = qp_make(dev, lane);
	if (status != TERN_OK) {
		lane_free(lane);
		dev->cq_used -= room;
		return status;
	}
	tn_list_push_back(&dev->lanes, &lane->all);
	tn_vb_deadline(dev, dev->keepalive_ns);
	tn_count(&dev->counters.lanes, 1);
	tn_vb_lane_addr_put(&lane->own, addr);
	*out = &lane->base;
	return TERN_OK;
}

/* ---- coming up ---- */

/* Another try follows when it cannot go out now. */
static void hello_send(tn_vb_lane *lane)
{
	uint8_t hello[TN_VB_HELLO_BYTES];
	bool sent = false;

	if (tn_vb_hello_make(lane->token, &lane->own, &lane->peer, hello) == TERN_OK) {
		pthread_mutex_lock(&lane->lock);
		sent = tn_vb_post_own(lane, TN_VB_OP_HELLO, hello, sizeof(hello));
		pthread_mutex_unlock(&lane->lock);
	}
	tn_count(&tn_vb_lane_dev(lane)->counters.hellos, sent);
	lane->retry_ns = sent ? TN_TIME_NEVER : tn_now() + TN_VB_RETRY_AFTER_NS;
	tn_vb_deadline(tn_vb_lane_dev(lane), lane->retry_ns);
}

static tern_status peer_parse(tn_vb_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	const tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (!tn_vb_dev_addr_get(peer_dev, &lane->peer_dev) || !tn_vb_lane_addr_get(peer_lane, &lane->peer))
		return tn_fail(TERN_E_INVALID, "the peer's verbs address is malformed");
	if (lane->peer_dev.ethernet != dev->port.ethernet)
		return tn_fail(TERN_E_UNREACHABLE, "one side is RoCE, the other InfiniBand");
	if (lane->peer.active == lane->active)
		return tn_fail(TERN_E_INVALID, "both sides of the lane are %s",
			       lane->active ? "active" : "passive");
	return TERN_OK;
}

tern_status tn_vb_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation())
		return tn_fail(TERN_E_FORKED, "the lane belongs to the parent process");
	tn_vb_async(dev); /* the GID index to wire with may have moved */
	if (lane->state != TN_VB_INIT)
		return tn_fail(TERN_E_STATE, "the lane is %s", state_names[lane->state]);
	TN_TRY(peer_parse(lane, peer_dev, peer_lane));
	TN_TRY(tn_vb_qp_wire(lane));
	pthread_mutex_lock(&lane->lock);
	lane->wired = true;
	tn_vb_set_state(lane, TN_VB_WIRING);
	pthread_mutex_unlock(&lane->lock);
	set_deadline(lane, tn_deadline(tn_now(), lane->timeout_ns));
	if (lane->active)
		hello_send(lane);
	tn_vb_kick(dev);
	return TERN_OK;
}

static bool on_hello(tn_vb_lane *lane, const uint8_t *data, uint64_t bytes)
{
	uint8_t want[TN_VB_HELLO_BYTES];

	if (lane->state != TN_VB_WIRING) {
		if (lane->state == TN_VB_UP)
			tn_vb_lane_fail(lane, TERN_E_PROTOCOL);
		return false;
	}
	if (bytes != sizeof(want) ||
	    tn_vb_hello_make(lane->token, &lane->peer, &lane->own, want) != TERN_OK ||
	    !tn_crypto_equal(data, want, sizeof(want))) {
		TN_LOG(WARN, VERBS, "lane %u: the peer does not know the lane's token", lane->index);
		tn_vb_lane_fail(lane, TERN_E_AUTH);
		return false;
	}
	lane->heard = true;
	if (!lane->active)
		hello_send(lane);
	if (lane->retry_ns != TN_TIME_NEVER && !lane->active) {
		/* The answer could not even be posted. */
		tn_vb_lane_fail(lane, TERN_E_LANE);
		return false;
	}
	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_UP);
	pthread_mutex_unlock(&lane->lock);
	lane->deadline_ns = lane->retry_ns = TN_TIME_NEVER;
	return true;
}

/* ---- going down ---- */

static void quiet_check(tn_vb_lane *lane)
{
	if (lane->state != TN_VB_DRAINING || !lane->flushed || !lane->last_wqe || lane->sweep)
		return;
	lane->sweep = true;
	tn_vb_lane_dev(lane)->sweeping++;
}

static void drain(tn_vb_lane *lane)
{
	uint64_t now = tn_now();

	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_DRAINING);
	tn_vb_qp_error(lane);
	/* Behind everything: its flush says that all before it was flushed. If it cannot be posted the bound
	   ends the wait. A queue pair that was never wired holds nothing. */
	if (lane->wired)
		(void)tn_vb_post_own(lane, TN_VB_OP_MARKER, NULL, 0);
	pthread_mutex_unlock(&lane->lock);
	lane->flushed = lane->last_wqe = !lane->wired;
	lane->grace_ns = now + TN_VB_LAST_WQE_NS;
	tn_vb_deadline(tn_vb_lane_dev(lane), lane->grace_ns);
	set_deadline(lane, now + TN_VB_DRAIN_NS);
	quiet_check(lane);
}

void tn_vb_lane_fail(tn_vb_lane *lane, tern_status status)
{
	if (lane->state >= TN_VB_DRAINING)
		return;
	if (lane->state == TN_VB_WIRING || lane->state == TN_VB_UP) {
		lane->down_status = status;
		lane->down_due = !lane->closed;
		make_due(lane);
	}
	drain(lane);
}

/* Say bye, if there is somebody to hear it, and drain then. */
static void leave(tn_vb_lane *lane)
{
	bool said = false;

	if (lane->wired && lane->heard) {
		pthread_mutex_lock(&lane->lock);
		tn_vb_set_state(lane, TN_VB_LEAVING);
		said = tn_vb_post_own(lane, TN_VB_OP_BYE, NULL, 0);
		pthread_mutex_unlock(&lane->lock);
	}
	if (said)
		set_deadline(lane, tn_now() + TN_VB_LEAVE_NS);
	else
		drain(lane);
}

void tn_vb_lane_break(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation() || (lane->state != TN_VB_WIRING && lane->state != TN_VB_UP))
		return;
	lane->down_status = TERN_E_LANE;
	lane->down_due = true;
	make_due(lane);
	leave(lane);
	tn_vb_kick(dev);
}

void tn_vb_lane_close(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation() || lane->closed)
		return;
	lane->closed = true;
	lane->down_due = false;
	if (lane->state <= TN_VB_UP)
		leave(lane);
	tn_vb_kick(dev);
}

/* Nothing of the queue pair can come any more. */
static void quiet(tn_vb_lane *lane)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (lane->sweep)
		dev->sweeping--;
	lane->sweep = false;
	tn_map_remove(&dev->by_qpn, lane->own.qpn, NULL);
	pthread_mutex_lock(&lane->lock);
	tn_vb_set_state(lane, TN_VB_QUIET);
	if (dev->api->destroy_qp(lane->qp) != 0)
		TN_LOG(ERROR, VERBS, "ibv_destroy_qp of queue pair %u failed: it leaks", lane->own.qpn);
	lane->qp = NULL;
	pthread_mutex_unlock(&lane->lock);
	lane->deadline_ns = TN_TIME_NEVER;
	if (lane->head != lane->tail)
		make_due(lane);
	/* Who waits for lane_drained gets no event: look again. */
	atomic_store(&dev->retry, true);
}

void tn_vb_lane_swept(tn_vb_lane *lane)
{
	if (lane->sweep)
		quiet(lane);
}

void tn_vb_lane_last_wqe(tn_vb_lane *lane)
{
	lane->last_wqe = true;
	quiet_check(lane);
}

bool tn_vb_lane_drained(tn_lane *base)
{
	const tn_vb_lane *lane = tn_vb_lane_of(base);

	if (tn_vb_lane_dev(lane)->forks != tn_os_fork_generation())
		return true;
	return lane->state == TN_VB_QUIET && lane->head == lane->tail && !lane->down_due;
}

void tn_vb_lane_destroy(tn_lane *base)
{
	tn_vb_lane *lane = tn_vb_lane_of(base);
	tn_vb_dev *dev = tn_vb_lane_dev(lane);

	if (dev->forks != tn_os_fork_generation())
		return;
	TN_ASSERT(lane->state == TN_VB_QUIET);
	tn_list_remove(&lane->all);
	tn_list_remove(&lane->due);
	dev->cq_used -= dev->ops_max + TN_VB_OPS_RESERVED;
	tn_count(&dev->counters.lanes, (uint64_t)-1);
	lane_free(lane);
}

/* ---- what completions and the clock say ---- */

bool tn_vb_lane_control(tn_vb_lane *lane, uint32_t what, const uint8_t *data, uint64_t bytes)
{
	if (what == TN_VB_HELLO)
		return on_hello(lane, data, bytes);
	/* A bye, or something that this version does not know: either way the peer is not to be talked to. */
	if (what != TN_VB_BYE && lane->state <= TN_VB_UP)
		tn_vb_lane_fail(lane, TERN_E_PROTOCOL);
	else
		tn_vb_lane_fail(lane, TERN_E_LANE);
	return false;
}

static void hello_done(tn_vb_lane *lane, enum ibv_wc_status status)
{
	if (status == IBV_WC_SUCCESS) {
		lane->heard = true;
		return;
	}
	if (lane->state == TN_VB_WIRING && status == IBV_WC_RETRY_EXC_ERR && tn_vb_qp_reset(lane)) {
		lane->retry_ns = tn_now() + TN_VB_RETRY_AFTER_NS;
		tn_vb_deadline(tn_vb_lane_dev(lane), lane->retry_ns);
		return;
	}
	tn_vb_lane_fail(lane, TERN_E_LANE);
}

void tn_vb_lane_op_done(tn_vb_lane *lane, tn_vb_op_kind kind, enum ibv_wc_status status)
{
	switch (kind) {
	case TN_VB_OP_HELLO:
		hello_done(lane, status);
		break;
	case TN_VB_OP_BYE:
		if (lane->state == TN_VB_LEAVING)
			drain(lane);
		break;
	case TN_VB_OP_KEEPALIVE:
		lane->trying = false;
		break;
	case TN_VB_OP_MARKER:
		lane->flushed = true;
		quiet_check(lane);
		break;
	default:
		break;
	}
}

static void draining_tick(tn_vb_lane *lane, uint64_t now_ns)
{
	if (now_ns >= lane->grace_ns && !lane->last_wqe)
		tn_vb_lane_last_wqe(lane);
	if (now_ns < lane->deadline_ns || lane->sweep)
		return;
	TN_LOG(WARN, VERBS, "lane %u: queue pair %u did not flush within %u ms: destroyed", lane->index,
	       lane->own.qpn, (unsigned)(TN_VB_DRAIN_NS / TN_NS_PER_MS));
	tn_count(&tn_vb_lane_dev(lane)->counters.forced_drains, 1);
	quiet(lane);
}

void tn_vb_lane_tick(tn_vb_lane *lane, uint64_t now_ns)
{
	switch (lane->state) {
	case TN_VB_WIRING:
		if (now_ns >= lane->deadline_ns)
			tn_vb_lane_fail(lane, TERN_E_DEADLINE);
		else if (now_ns >= lane->retry_ns)
			hello_send(lane);
		break;
	case TN_VB_LEAVING:
		if (now_ns >= lane->deadline_ns)
			drain(lane);
		break;
	case TN_VB_DRAINING:
		draining_tick(lane, now_ns);
		break;
	default:
		break;
	}
	tn_vb_deadline(tn_vb_lane_dev(lane), lane->deadline_ns);
	if (lane->state == TN_VB_WIRING)
		tn_vb_deadline(tn_vb_lane_dev(lane), lane->retry_ns);
	if (lane->state == TN_VB_DRAINING && !lane->last_wqe)
		tn_vb_deadline(tn_vb_lane_dev(lane), lane->grace_ns);
}

void tn_vb_lane_keepalive(tn_vb_lane *lane)
{
	pthread_mutex_lock(&lane->lock);
	if (lane->state == TN_VB_UP && !lane->used && !lane->trying) {
		lane->trying = tn_vb_post_own(lane, TN_VB_OP_KEEPALIVE, NULL, 0);
		tn_count(&tn_vb_lane_dev(lane)->counters.keepalives, lane->trying);
	}
	lane->used = false;
	pthread_mutex_unlock(&lane->lock);
}

int tn_vb_lane_deliver(tn_vb_lane *lane, tn_event *events, int max)
{
	int n = 0;

	if (lane->down_due && n < max) {
		lane->down_due = false;
		events[n++] = (tn_event){.type = TN_EV_LANE_DOWN,
					 .status = lane->down_status,
					 .lane = &lane->base,
					 .lane_arg = lane->base.arg};
	}
	if (lane->state == TN_VB_QUIET && n < max)
		n += tn_vb_ops_flush(lane, events + n, max - n);
	if (lane->down_due || (lane->state == TN_VB_QUIET && lane->head != lane->tail))
		make_due(lane);
	return n;
}

void tn_vb_lane_check(tn_vb_lane *lane)
{
	const tn_vb_dev *dev = tn_vb_lane_dev(lane);

	pthread_mutex_lock(&lane->lock);
	TN_ASSERT(lane->tail - lane->head <= dev->ops_max + TN_VB_OPS_RESERVED && dev->ring >= dev->ops_max);
	TN_ASSERT((lane->qp == NULL) == (lane->state == TN_VB_QUIET));
	TN_ASSERT(dev->table[lane->index] == lane && dev->generations[lane->index] == lane->generation);
	TN_ASSERT(!lane->sweep || (lane->state == TN_VB_DRAINING && lane->flushed && lane->last_wqe));
	TN_ASSERT(!lane->down_due || (!lane->closed && tn_list_linked(&lane->due)));
	pthread_mutex_unlock(&lane->lock);
}

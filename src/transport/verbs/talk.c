/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what a lane says for itself: hello, bye, keepalive, and what the clock makes of silence (deadlines,
 * retries, the watch over stuck lanes).
 *
 * Threads: serialised with poll; the lane's lock where posts of other threads look.
 * Tests: tests/conformance, tests/unit/transport/test_verbs_life.c.
 */
#include "base/clock.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/options.h"
#include "transport/verbs/verbs.h"

/* ---- hello ---- */

/* Another try follows when it cannot go out now. */
void tn_vb_hello_send(tn_vb_lane *lane)
{
	uint8_t hello[TN_VB_HELLO_BYTES];
	bool sent = false;

	if (tn_vb_hello_make(lane->token, &lane->own_addr, &lane->peer_addr, hello) == TERN_OK) {
		pthread_mutex_lock(&lane->lock);
		sent = tn_vb_post_own(lane, TN_VB_OP_HELLO, hello, sizeof(hello));
		pthread_mutex_unlock(&lane->lock);
	}
	tn_count(&tn_vb_lane_dev(lane)->counters.hellos, sent);
	lane->retry_ns = sent ? TN_TIME_NEVER : tn_now() + TN_VB_RETRY_AFTER_NS;
	tn_vb_deadline(tn_vb_lane_dev(lane), lane->retry_ns);
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
	    tn_vb_hello_make(lane->token, &lane->peer_addr, &lane->own_addr, want) != TERN_OK ||
	    !tn_crypto_equal(data, want, sizeof(want))) {
		TN_LOG(WARN, VERBS, "lane %u: the peer does not know the lane's token", lane->index);
		tn_vb_lane_fail(lane, TERN_E_AUTH);
		return false;
	}
	lane->heard = true;
	if (!lane->active)
		tn_vb_hello_send(lane);
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

/* ---- own requests that ended ---- */

void tn_vb_lane_op_done(tn_vb_lane *lane, tn_vb_op_kind kind, enum ibv_wc_status status)
{
	switch (kind) {
	case TN_VB_OP_HELLO:
		hello_done(lane, status);
		break;
	case TN_VB_OP_BYE:
		if (lane->state == TN_VB_LEAVING)
			tn_vb_lane_drain(lane);
		break;
	case TN_VB_OP_KEEPALIVE:
		lane->trying = false;
		break;
	case TN_VB_OP_MARKER:
		tn_vb_lane_flushed(lane);
		break;
	default:
		break;
	}
}

/* ---- the clock ---- */

void tn_vb_lane_tick(tn_vb_lane *lane, uint64_t now_ns)
{
	switch (lane->state) {
	case TN_VB_WIRING:
		if (now_ns >= lane->deadline_ns)
			tn_vb_lane_fail(lane, TERN_E_DEADLINE);
		else if (now_ns >= lane->retry_ns)
			tn_vb_hello_send(lane);
		break;
	case TN_VB_LEAVING:
		if (now_ns >= lane->deadline_ns)
			tn_vb_lane_drain(lane);
		break;
	case TN_VB_DRAINING:
		tn_vb_lane_draining_tick(lane, now_ns);
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

void tn_vb_lane_watch(tn_vb_lane *lane, uint64_t now_ns)
{
	tn_vb_dev *dev = tn_vb_lane_dev(lane);
	char text[32];
	bool stuck;

	pthread_mutex_lock(&lane->lock);
	/* Only a request that asked for a completion can be missed. */
	if (lane->state != TN_VB_UP || lane->asked == 0 || lane->head != lane->watch_head ||
	    !lane->watch_ns) {
		lane->watch_head = lane->head;
		lane->watch_ns = now_ns;
	}
	stuck = now_ns - lane->watch_ns >= dev->opts.stuck_ns;
	pthread_mutex_unlock(&lane->lock);
	if (!stuck)
		return;
	TN_LOG(WARN, VERBS,
	       "lane %u on %s: no request ended for %s (TERN_VERBS_STUCK): the peer's NIC answers but has no "
	       "receive buffer, or this one stopped; the NIC counts %llu RNR; the lane is given up",
	       lane->index, lane->rail->name, tn_format_duration(dev->opts.stuck_ns, text, sizeof(text)),
	       (unsigned long long)(tn_vb_rnr_read(lane->rail) - lane->rail->rnr_at_open));
	tn_count(&dev->counters.stuck, 1);
	tn_vb_lane_fail(lane, TERN_E_LANE);
}

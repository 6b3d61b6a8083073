/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of loop: their states, how two of them find each other, how they end. loop.h has the diagram.
 * Everything runs under tn_loop_lock except the entry points, which take it.
 * Tests: tests/conformance, tests/unit/transport/test_loop.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"
#include "transport/loop/loop.h"

#define CONNECT_TIMEOUT_NS 5000000000ull
#define BLOB_BYTES         28u

static const uint8_t blob_magic[4] = {'L', 'O', 'O', 'P'};
static uint64_t next_lane_id = 1;

/* Names this process: blobs of other processes, forked ones too, must not match by accident. */
static uint64_t process_tag(void)
{
	static uint64_t tag;
	static uint32_t forks;

	if (tag == 0 || forks != tn_os_fork_generation()) {
		if (tn_os_random(&tag, sizeof(tag)) != TERN_OK)
			tag = tn_now();
		tag |= 1;
		forks = tn_os_fork_generation();
	}
	return tag;
}

void tn_loop_blob_make(tn_blob *blob, uint64_t dev_id, uint64_t lane_id)
{
	uint64_t tag = process_tag();

	memcpy(blob->bytes, blob_magic, 4);
	memcpy(blob->bytes + 4, &tag, 8);
	memcpy(blob->bytes + 12, &dev_id, 8);
	memcpy(blob->bytes + 20, &lane_id, 8);
	blob->length = BLOB_BYTES;
}

bool tn_loop_blob_read(const tn_blob *blob, uint64_t *dev_id, uint64_t *lane_id)
{
	uint64_t tag;

	if (blob->length != BLOB_BYTES || memcmp(blob->bytes, blob_magic, 4) != 0)
		return false;
	memcpy(&tag, blob->bytes + 4, 8);
	memcpy(dev_id, blob->bytes + 12, 8);
	memcpy(lane_id, blob->bytes + 20, 8);
	return tag == process_tag();
}

static void set_state(tn_loop_lane *lane, tn_loop_state state)
{
	tn_loop_dev *dev = (tn_loop_dev *)lane->base.dev;

	switch (state) {
	case TN_LOOP_DIALING:
		TN_ASSERT(lane->state == TN_LOOP_INIT);
		dev->dialing++;
		break;
	case TN_LOOP_UP:
		TN_ASSERT(lane->state == TN_LOOP_DIALING && lane->peer);
		break;
	case TN_LOOP_DOWN:
		TN_ASSERT((lane->state == TN_LOOP_DIALING || lane->state == TN_LOOP_UP) && !lane->peer);
		break;
	case TN_LOOP_CLOSED:
		TN_ASSERT(lane->state != TN_LOOP_CLOSED && !lane->peer);
		break;
	default:
		TN_ASSERT(false);
	}
	if (lane->state == TN_LOOP_DIALING) {
		TN_ASSERT(dev->dialing > 0);
		dev->dialing--;
	}
	lane->state = state;
}

tern_status tn_loop_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr)
{
	tn_loop_dev *dev = (tn_loop_dev *)base;
	tn_loop_lane *lane = calloc(1, sizeof(*lane));

	*out = NULL;
	if (!lane)
		return tn_fail(TERN_E_NOMEM, "loop: no memory for a lane (%zu bytes)", sizeof(*lane));
	lane->base.dev = base;
	lane->base.arg = params->arg;
	lane->active = params->active;
	lane->timeout_ns = params->connect_timeout_ns ? params->connect_timeout_ns : CONNECT_TIMEOUT_NS;
	memcpy(lane->token, params->token, sizeof(lane->token));

	pthread_mutex_lock(&tn_loop_lock);
	lane->id = next_lane_id++;
	lane->next = dev->lanes;
	dev->lanes = lane;
	tn_count_own(&dev->counters.lanes, 1);
	tn_loop_blob_make(addr, dev->id, lane->id);
	pthread_mutex_unlock(&tn_loop_lock);
	*out = &lane->base;
	return TERN_OK;
}

tern_status tn_loop_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane)
{
	tn_loop_lane *lane = (tn_loop_lane *)base;
	uint64_t dev_id, none, lane_dev, lane_id;
	bool here;

	pthread_mutex_lock(&tn_loop_lock);
	here = tn_loop_blob_read(peer_dev, &dev_id, &none) &&
	       tn_loop_blob_read(peer_lane, &lane_dev, &lane_id);
	pthread_mutex_unlock(&tn_loop_lock);
	if (!here)
		return tn_fail(TERN_E_UNREACHABLE, "loop: that address is none of this process: loop reaches "
						   "only devices of its own process, take shm or tcp");
	if (lane_dev != dev_id || lane_id == 0)
		return tn_fail(TERN_E_UNREACHABLE, "loop: the lane's address belongs to another device than "
						   "the one given");
	pthread_mutex_lock(&tn_loop_lock);
	if (lane->state != TN_LOOP_INIT) {
		pthread_mutex_unlock(&tn_loop_lock);
		return tn_fail(TERN_E_STATE, "loop: a lane connects once: make a new one");
	}
	lane->want_dev = dev_id;
	lane->want_lane = lane_id;
	lane->deadline_ns = tn_now() + lane->timeout_ns;
	set_state(lane, TN_LOOP_DIALING);
	tn_loop_match(lane);
	/* A sleeper has to learn of the new deadline. */
	tn_loop_signal((tn_loop_dev *)lane->base.dev);
	pthread_mutex_unlock(&tn_loop_lock);
	return TERN_OK;
}

static bool wants(const tn_loop_lane *lane, const tn_loop_lane *other)
{
	return lane->want_dev == ((tn_loop_dev *)other->base.dev)->id && lane->want_lane == other->id;
}

static void go_up(tn_loop_lane *lane, tn_loop_lane *peer)
{
	lane->peer = peer;
	set_state(lane, TN_LOOP_UP);
	lane->up_due = true;
	tn_loop_signal((tn_loop_dev *)lane->base.dev);
}

/*
 * The passive side decides. A dialer without the right token is refused and the passive lane waits on:
 * a stranger must not be able to end a lane that is not its own.
 */
void tn_loop_match(tn_loop_lane *lane)
{
	tn_loop_dev *dev = tn_loop_dev_find(lane->want_dev);
	tn_loop_lane *other = dev ? dev->lanes : NULL;
	tn_loop_lane *dialer, *listener;

	while (other && other->id != lane->want_lane)
		other = other->next;
	if (!other || other == lane || other->state == TN_LOOP_INIT)
		return;
	if (other->state != TN_LOOP_DIALING) {
		if (lane->active)
			tn_loop_break(lane, TERN_E_REFUSED);
		return;
	}
	if (lane->active == other->active)
		return; /* nobody dials, or nobody listens: both run into their deadline */
	dialer = lane->active ? lane : other;
	listener = lane->active ? other : lane;
	if (!wants(dialer, listener))
		return;
	/* All bytes are compared, whatever the first ones say. */
	uint8_t differ = 0;
	for (size_t i = 0; i < sizeof(lane->token); i++)
		differ |= (uint8_t)(lane->token[i] ^ other->token[i]);
	if (!wants(listener, dialer) || differ) {
		tn_loop_break(dialer, TERN_E_REFUSED);
		return;
	}
	go_up(lane, other);
	go_up(other, lane);
}

void tn_loop_expire(tn_loop_dev *dev, uint64_t now_ns)
{
	if (dev->dialing == 0)
		return;
	for (tn_loop_lane *lane = dev->lanes; lane; lane = lane->next) {
		if (lane->state == TN_LOOP_DIALING && lane->deadline_ns <= now_ns)
			tn_loop_break(lane, TERN_E_DEADLINE);
	}
}

/* One side of an ended lane: what is unfinished gets its completion, and nothing is sent any more. */
static void detach(tn_loop_lane *lane, tern_status status)
{
	tn_loop_fail_ops(lane, status);
	lane->peer = NULL;
}

static void go_down(tn_loop_lane *lane, tern_status status)
{
	set_state(lane, TN_LOOP_DOWN);
	lane->down_due = true;
	lane->down_status = status;
	tn_loop_signal((tn_loop_dev *)lane->base.dev);
}

void tn_loop_break(tn_loop_lane *lane, tern_status status)
{
	tn_loop_lane *peer = lane->peer;

	if (lane->state != TN_LOOP_UP && lane->state != TN_LOOP_DIALING)
		return;
	detach(lane, status);
	if (peer)
		detach(peer, TERN_E_LANE);
	go_down(lane, status);
	if (peer)
		go_down(peer, TERN_E_LANE);
}

void tn_loop_close(tn_loop_lane *lane)
{
	tn_loop_dev *dev = (tn_loop_dev *)lane->base.dev;
	tn_loop_lane *peer = lane->peer;

	if (lane->state == TN_LOOP_CLOSED)
		return;
	detach(lane, TERN_E_FLUSHED);
	if (peer) {
		detach(peer, TERN_E_LANE);
		go_down(peer, TERN_E_LANE);
	}
	set_state(lane, TN_LOOP_CLOSED);
	lane->up_due = false;
	lane->down_due = false;
	/* What arrived and was not polled is nobody's business any more. */
	while (lane->arrived_head != lane->arrived_tail)
		tn_loop_slot_free(dev, lane->arrived[lane->arrived_head++ & (TN_LOOP_LANE_SLOTS - 1)]);
	tn_loop_signal(dev);
}

bool tn_loop_drained(const tn_loop_lane *lane)
{
	if (lane->state != TN_LOOP_DOWN && lane->state != TN_LOOP_CLOSED)
		return false;
	return lane->head == lane->tail && !lane->down_due && lane->arrived_head == lane->arrived_tail;
}

void tn_loop_lane_free(tn_loop_lane *lane)
{
	tn_loop_dev *dev = (tn_loop_dev *)lane->base.dev;
	tn_loop_lane **link = &dev->lanes;

	TN_ASSERT(!lane->peer);
	while (*link != lane)
		link = &(*link)->next;
	*link = lane->next;
	/* Slots that the caller still holds stay valid until recv_done. */
	for (uint32_t i = 0; i < TN_LOOP_RECV_SLOTS; i++) {
		if (dev->slots[i].lane == lane)
			dev->slots[i].lane = NULL;
	}
	free(lane);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorder on a pair of links, for tests that script each step: what ended, opened, closed and arrived.
 * Threads: none.
 */
#ifndef TERN_TESTS_LINK_RECORD_H
#define TERN_TESTS_LINK_RECORD_H

#include "cmocka_all.h"
#include "unit/link/pair.h"

#define RECORD_MAX 4096

typedef struct record_op {
	bool done;
	tern_status status;
	uint64_t length;
	uint64_t handle;
} record_op;

typedef struct record_side {
	uint32_t incoming[64], incoming_count;
	char service[64][TN_NAME_MAX];
	uint32_t opened, closed;
	tern_status closed_status;
	char closed_detail[TN_LINK_TEXT_MAX];
	struct {
		uint32_t channel;
		uint64_t bytes, total;
		uint8_t first;
		bool notify, last, aborted;
		uint32_t value;
	} rx[RECORD_MAX];
	uint32_t rx_count, messages, notifies, aborts;
	uint64_t rx_bytes;
	bool accept; /* answer channels that come in at once */
} record_side;

typedef struct record {
	record_side side[2];
	uint32_t accesses;
	tern_status access_status; /* what one-sided accesses give */
	tn_link_post access[RECORD_MAX];
} record;

static pair_world world;
static record rec;

static inline void record_action(pair_world *w, int side, const tn_link_action *act)
{
	record_side *s = &rec.side[side];
	record_op *op;

	switch (act->type) {
	case TN_ACT_OP_DONE:
		op = act->done.user;
		assert_false(op->done);
		op->done = true;
		op->status = act->done.status;
		op->length = act->done.length;
		break;
	case TN_ACT_CHANNEL_INCOMING:
		snprintf(s->service[s->incoming_count], TN_NAME_MAX, "%s", act->channel.service);
		s->incoming[s->incoming_count++] = act->channel.channel;
		if (s->accept)
			assert_ok(tn_link_channel_accept(w->node[side].link, act->channel.channel, NULL, 0));
		break;
	case TN_ACT_CHANNEL_OPENED:
		s->opened++;
		break;
	case TN_ACT_CHANNEL_CLOSED:
		s->closed++;
		s->closed_status = act->channel.status;
		snprintf(s->closed_detail, sizeof(s->closed_detail), "%s", act->channel.detail);
		break;
	default:
		break;
	}
}

static inline void record_rx(pair_world *w, int side, const tn_link_rx *rx)
{
	record_side *s = &rec.side[side];

	(void)w;
	assert_true(s->rx_count < RECORD_MAX);
	s->rx[s->rx_count].channel = rx->channel;
	s->rx[s->rx_count].bytes = rx->bytes;
	s->rx[s->rx_count].total = rx->total;
	s->rx[s->rx_count].last = rx->last;
	s->rx[s->rx_count].notify = rx->type == TN_RX_NOTIFY;
	s->rx[s->rx_count].aborted = rx->type == TN_RX_ABORT;
	s->rx[s->rx_count].value = rx->value;
	s->rx[s->rx_count].first = rx->type == TN_RX_MESSAGE && rx->bytes ? *(const uint8_t *)rx->data : 0;
	s->rx_count++;
	s->messages += rx->type == TN_RX_MESSAGE && rx->last;
	s->notifies += rx->type == TN_RX_NOTIFY;
	s->aborts += rx->type == TN_RX_ABORT;
	s->rx_bytes += rx->type == TN_RX_MESSAGE ? rx->bytes : 0;
}

static inline tern_status record_access(pair_world *w, int side, const tn_link_post *post)
{
	(void)w;
	(void)side;
	assert_true(rec.accesses < RECORD_MAX);
	rec.access[rec.accesses++] = *post;
	return rec.access_status;
}

/* A world before its start: change configurations, then record_start. */
static inline void record_init(void)
{
	pair_init(&world, 7);
	memset(&rec, 0, sizeof(rec));
	world.on_action = record_action;
	world.on_rx = record_rx;
	world.on_access = record_access;
	rec.side[0].accept = rec.side[1].accept = true;
}

static inline void record_start(void)
{
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
}

static inline tn_link *link_of(int side)
{
	return world.node[side].link;
}

static inline void pump(int side)
{
	pair_pump(&world, side);
}

/* Let happen what can without time passing. */
static inline void run(void)
{
	pair_pump(&world, 0);
	pair_pump(&world, 1);
	world.frozen = true;
	while (pair_step(&world))
		;
	world.frozen = false;
}

/* A channel from side 0, opened and accepted; *far is its handle at side 1. */
static inline uint32_t open_channel(const char *name, uint32_t *far)
{
	uint32_t channel;

	assert_ok(tn_link_channel_open(link_of(0), name, NULL, 0, &channel));
	run();
	if (far)
		*far = rec.side[1].incoming[rec.side[1].incoming_count - 1];
	return channel;
}

static inline tern_status send_at(int side, uint32_t channel, const void *buf, uint64_t bytes,
				  tn_link_level level, record_op *op)
{
	tn_link_iov iov = {buf, bytes};
	tn_link_op_params params = {.user = op, .deadline_ns = UINT64_MAX, .level = level};

	memset(op, 0, sizeof(*op));
	return tn_link_send(link_of(side), channel, &iov, 1, &params, &op->handle);
}

static inline tern_status xfer_at(int side, uint32_t channel, tn_link_xfer_type type, void *local,
				  uint64_t bytes, uint32_t value, record_op *op)
{
	static uint8_t key[TN_LINK_KEY_BYTES];
	tn_link_xfer xfer = {.type = type,
			     .local = local,
			     .bytes = bytes,
			     .key = key,
			     .value = value,
			     .flag = value,
			     .flag_key = key};
	tn_link_op_params params = {.user = op, .deadline_ns = UINT64_MAX};

	memset(op, 0, sizeof(*op));
	return tn_link_transfer(link_of(side), channel, &xfer, &params, &op->handle);
}

/* Of links that are up, node 0 hears a control frame of an epoch that it can't be: it says why, and both end. */
static inline void wrong_epoch(tn_ctrl_type type, uint32_t epoch, const char *why)
{
	uint8_t bytes[64];
	tn_writer w;

	tn_writer_init(&w, bytes, sizeof(bytes));
	tn_wire_put_epoch(&w, type, epoch);
	tn_link_on_ctrl_bytes(link_of(0), bytes, w.at, world.now);
	assert_int_equal(tn_link_status(link_of(0)), TERN_E_PROTOCOL);
	if (!strstr(tn_link_detail(link_of(0)), why))
		fail_msg("'%s' lacks '%s'", tn_link_detail(link_of(0)), why);
	pump(0);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
}

#endif

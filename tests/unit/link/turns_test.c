/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends next: channels of one class share bytes whatever the size of their pieces and wherever they are, and
 * small ones wait for one piece of bulk at most.
 */
#include "unit/link/record.h"

#define BIG  (1 << 20)
#define PART (1 << 16) /* of which a window full fits the device's queue */
#define PAGE 4096

static uint8_t memory[2][4 << 20];

/* ---- a load that never runs dry ---- */

typedef struct stream {
	uint32_t channel;
	uint8_t *from;
	uint64_t bytes; /* of each op */
	bool fast, message;
	record_op ops[400];
	unsigned depth;
	uint64_t moved;
	uint64_t done;
} stream;

static stream streams[2];

static tern_status count_access(pair_world *w, int side, const tn_link_post *post)
{
	(void)w;
	(void)side;
	for (unsigned i = 0; i < 2; i++)
		if ((uint8_t *)post->local >= streams[i].from &&
		    (uint8_t *)post->local < streams[i].from + sizeof(memory[i]))
			streams[i].moved += post->bytes;
	return TERN_OK;
}

static bool submit_fast(stream *s, record_op *op)
{
	static uint8_t key[TN_LINK_KEY_BYTES];
	tn_link_xfer xfer = {.type = TN_XFER_PUT, .local = s->from, .bytes = s->bytes, .key = key};
	tn_link_op_params params = {.user = op, .deadline_ns = UINT64_MAX};
	tn_link_fast fast;
	tern_status status;
	bool done;

	if (!tn_link_fast_xfer(link_of(0), s->channel, &xfer, &params, &fast))
		return false;
	memset(op, 0, sizeof(*op));
	status = pair_post(&world, 0, &fast.post, &done);
	return tn_link_fast_posted(link_of(0), &fast, status, done, &op->handle) == TN_FAST_PENDING;
}

static void refill(stream *s)
{
	for (unsigned i = 0; i < s->depth; i++) {
		record_op *op = &s->ops[i];

		if (op->handle && !op->done)
			continue;
		s->done += op->done;
		if (s->fast && submit_fast(s, op))
			continue;
		if (s->message)
			assert_ok(send_at(0, s->channel, s->from, s->bytes, TN_LINK_LOCAL, op));
		else
			assert_ok(xfer_at(0, s->channel, TN_XFER_PUT, s->from, s->bytes, 0, op));
	}
}

/* Until both have moved that much, or one cannot. */
static void run_streams(uint64_t bytes)
{
	world.check_level = 1;
	for (unsigned step = 0; step < 4000000 && streams[0].moved + streams[1].moved < bytes; step++) {
		refill(&streams[0]);
		refill(&streams[1]);
		pump(0);
		world.frozen = true;
		assert_true(pair_step(&world));
	}
}

static void stream_init(stream *s, uint8_t *from, uint64_t bytes, unsigned depth)
{
	memset(s, 0, sizeof(*s));
	s->from = from;
	s->bytes = bytes;
	s->depth = depth;
}

static void begin(uint32_t data_lanes, uint64_t window)
{
	record_init();
	world.on_access = count_access;
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world.node[i].config;

		c->data_lanes = data_lanes;
		c->window_bytes = window;
		c->small_bytes = 1024;
		c->chunk_bytes = BIG;
		c->ops_max = 2048;
	}
	record_start();
	streams[0].channel = open_channel("a", NULL);
	streams[1].channel = open_channel("b", NULL);
}

static void assert_shared(uint64_t slack)
{
	uint64_t a = streams[0].moved, b = streams[1].moved;

	if (a > b + slack || b > a + slack)
		fail_msg("%llu and %llu bytes", (unsigned long long)a, (unsigned long long)b);
}

/* ---- transfers ---- */

/* On one lane, on lanes of their own, all on lane 0; the small ones by the fast path as well. */
static void pieces_of_two_sizes(void **state)
{
	(void)state;
	for (uint32_t lanes = 0; lanes < 3; lanes++) {
		for (int fast = 0; fast < 2; fast++) {
			stream_init(&streams[0], memory[0], 4 * BIG, 3);
			if (fast) /* never more than the window takes: none of it has to wait, if it may pass */
				stream_init(&streams[1], memory[1], PART, 20);
			else
				stream_init(&streams[1], memory[1], lanes < 2 ? PAGE : PART,
					    lanes < 2 ? 400 : 40);
			streams[1].fast = fast;
			begin(lanes, BIG + BIG / 2);
			run_streams(48 * BIG);
			assert_shared(3 * BIG);
			pair_fini(&world);
		}
	}
}

/* Three channels, two of which share a lane: a third for each, not a half for the one that is alone. */
static void lanes_are_weighed(void **state)
{
	uint32_t third;
	record_op ops[64];
	uint64_t moved[3];

	(void)state;
	memset(ops, 0, sizeof(ops));
	stream_init(&streams[0], memory[0], PART, 40);
	stream_init(&streams[1], memory[1], 4 * BIG, 2);
	begin(2, BIG + BIG / 2);
	third = open_channel("c", NULL); /* on the lane of a */
	for (unsigned i = 0; i < 12; i++)
		assert_ok(xfer_at(0, third, TN_XFER_PUT, memory[0] + BIG, BIG, 0, &ops[i]));
	/* What c and a move is counted together: both send from memory[0]. */
	run_streams(24 * BIG);
	moved[0] = streams[0].moved;
	moved[1] = streams[1].moved;
	assert_true(moved[0] > moved[1] + moved[1] / 2 && moved[0] < 3 * moved[1]);
	for (unsigned i = 0; i < 4; i++)
		assert_true(ops[i].done);
	pair_fini(&world);
}

/* One with notifications behind its pieces keeps its turn. */
static void notifications_between(void **state)
{
	uint32_t channel;
	record_op ops[16];

	(void)state;
	memset(ops, 0, sizeof(ops));
	stream_init(&streams[0], memory[0], 4 * BIG, 3);
	stream_init(&streams[1], memory[1], PAGE, 300);
	begin(1, BIG + BIG / 2);
	channel = open_channel("n", NULL);
	for (unsigned i = 0; i < 16; i++)
		assert_ok(
			xfer_at(0, channel, TN_XFER_PUT_NOTIFY, memory[1] + BIG, BIG + BIG / 4, i, &ops[i]));
	run_streams(60 * BIG);
	for (unsigned i = 0; i < 16; i++)
		assert_true(ops[i].done && ops[i].status == TERN_OK);
	assert_int_equal(rec.side[1].notifies, 16);
	pair_fini(&world);
}

/* ---- messages ---- */

static void messages_of_two_sizes(void **state)
{
	(void)state;
	stream_init(&streams[0], memory[0], 100000, 6);
	stream_init(&streams[1], memory[1], 32, 100);
	streams[0].message = streams[1].message = true;
	begin(1, 8 * BIG);
	for (int i = 0; i < 60000 && rec.side[1].rx_count < RECORD_MAX - 64; i++) {
		refill(&streams[0]);
		refill(&streams[1]);
		pump(0);
		world.frozen = true;
		assert_true(pair_step(&world));
	}
	for (uint32_t i = 0; i < rec.side[1].rx_count; i++)
		streams[rec.side[1].rx[i].channel != rec.side[1].incoming[0]].moved +=
			rec.side[1].rx[i].bytes + 64;
	/* A turn of each and what was under way. */
	assert_shared(64 * 4096);
	assert_true(streams[1].moved > 50 * 4096);
	pair_fini(&world);
}

/* ---- small before bulk ---- */

/* One wr at a time on the only lane: what is small waits for the piece that is out and for no other. */
static void one_piece_in_front(void **state)
{
	static record_op bulk[4], put, message;
	uint32_t channel, small, pieces;

	(void)state;
	memset(bulk, 0, sizeof(bulk));
	stream_init(&streams[0], memory[0], BIG, 0);
	stream_init(&streams[1], memory[1], BIG, 0);
	record_init();
	for (int i = 0; i < 2; i++) {
		world.node[i].config.data_lanes = 0;
		world.node[i].providers[0].lane_wrs_max = 1;
	}
	record_start();
	channel = open_channel("bulk", NULL);
	small = open_channel("small", NULL);
	for (int i = 0; i < 4; i++)
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory[0], 4 * BIG, 0, &bulk[i]));
	pump(0);
	for (int round = 0; round < 10; round++) {
		/* Bulk is out. */
		assert_true(PAIR_UNTIL(&world, rec.accesses > 0, 100));
		rec.accesses = 0;
		world.mute = true;
		assert_true(PAIR_UNTIL(&world, world.paths[TN_LINK_LANES_MAX].end[0].queue_count == 1, 100));
		assert_ok(xfer_at(0, small, TN_XFER_PUT, memory[1], 100, 0, &put));
		assert_ok(send_at(0, small, memory[1], 100, TN_LINK_LOCAL, &message));
		pump(0);
		world.mute = false;
		assert_true(PAIR_UNTIL(&world, put.done && message.done, 1000));
		pieces = 0;
		for (uint32_t i = 0; i < rec.accesses; i++)
			pieces += rec.access[i].bytes > 100;
		assert_true(pieces <= 1);
	}
	pair_fini(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_of_two_sizes),   cmocka_unit_test(lanes_are_weighed),
		cmocka_unit_test(notifications_between), cmocka_unit_test(messages_of_two_sizes),
		cmocka_unit_test(one_piece_in_front),
	};

	return RUN(tests);
}

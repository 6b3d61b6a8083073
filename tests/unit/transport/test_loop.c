/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop beyond the contract: that its adversary is one (bytes in pieces, writes that overtake, late
 * completions, TERN_AGAIN for no reason, lanes that break), that a seed repeats, and how its pools end.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"
#include "transport/transport.h"

enum { BYTES = 4096 };

typedef struct side {
	tern_mem *mem;
	tn_dev *dev;
	tn_lane *lane;
	tn_blob dev_addr, lane_addr;
	unsigned done, received, ups, downs;
	tern_status last;
	tn_event event; /* the last one received */
} side;

typedef struct net {
	tn_options *options;
	side a, b;
	uint8_t *from, *to;
	tn_key key;
} net;

static void side_open(side *s, uint64_t seed, const tn_options *options)
{
	const tn_mem_params mem = {0};
	tn_dev_params params = {.seed = seed, .options = options};

	assert_int_equal(tn_mem_create(&mem, &s->mem), TERN_OK);
	params.mem = s->mem;
	assert_int_equal(tn_provider_find("loop")->open(&params, &s->dev), TERN_OK);
	s->dev->ops->address(s->dev, &s->dev_addr);
}

static void poll_side(side *s)
{
	tn_event events[8];
	int n = tn_dev_poll(s->dev, events, 8);

	for (int i = 0; i < n; i++) {
		s->last = events[i].status;
		s->done += events[i].type == TN_EV_DONE;
		s->ups += events[i].type == TN_EV_LANE_UP;
		s->downs += events[i].type == TN_EV_LANE_DOWN;
		if (events[i].type == TN_EV_RECV || events[i].type == TN_EV_IMM) {
			s->received++;
			s->event = events[i];
		}
	}
}

static void connect_lane(net *n)
{
	tn_lane_params params = {.active = true};

	assert_int_equal(n->a.dev->ops->lane_create(n->a.dev, &params, &n->a.lane, &n->a.lane_addr), TERN_OK);
	params.active = false;
	assert_int_equal(n->b.dev->ops->lane_create(n->b.dev, &params, &n->b.lane, &n->b.lane_addr), TERN_OK);
	assert_int_equal(n->a.dev->ops->lane_connect(n->a.lane, &n->b.dev_addr, &n->b.lane_addr), TERN_OK);
	assert_int_equal(n->b.dev->ops->lane_connect(n->b.lane, &n->a.dev_addr, &n->a.lane_addr), TERN_OK);
	poll_side(&n->a);
	poll_side(&n->b);
}

static void open_net(net *n, uint64_t seed, const char *option)
{
	const char *pairs[] = {option, NULL};
	tern_key wire;
	void *ptr;

	memset(n, 0, sizeof(*n));
	assert_int_equal(tn_options_load(pairs, &n->options), TERN_OK);
	side_open(&n->a, seed, n->options);
	side_open(&n->b, seed, n->options);
	n->from = malloc(BYTES);
	assert_non_null(n->from);
	assert_int_equal(tern_mem_alloc(n->b.mem, BYTES, 0, TERN_ACCESS_WRITE, TERN_MEM_HOST, &ptr), TERN_OK);
	n->to = ptr;
	assert_int_equal(tern_mem_export(n->b.mem, ptr, BYTES, TERN_ACCESS_WRITE, &wire), TERN_OK);
	assert_true(tn_key_decode(&wire, &n->key));
	connect_lane(n);
	assert_int_equal(n->a.ups, 1);
	assert_int_equal(n->b.ups, 1);
}

/* Devices close their lanes themselves. */
static void close_net(net *n)
{
	n->a.dev->ops->close(n->a.dev);
	n->b.dev->ops->close(n->b.dev);
	tn_mem_destroy(n->a.mem);
	tn_mem_destroy(n->b.mem);
	tn_options_free(n->options);
	free(n->from);
}

static bool post_write(net *n, uint64_t offset, uint64_t bytes, uint64_t cookie)
{
	tn_wr wr = {.cookie = cookie,
		    .level = TN_LEVEL_REMOTE,
		    .local = n->from + offset,
		    .bytes = bytes,
		    .key = n->key,
		    .offset = offset};
	tern_status status = tn_lane_write(n->a.lane, &wr);

	assert_true(status == TERN_OK || status == TERN_AGAIN);
	return status == TERN_OK;
}

static bool all(const uint8_t *ptr, uint8_t value, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++) {
		if (ptr[i] != value)
			return false;
	}
	return true;
}

static void behaves_without_a_seed(void **state)
{
	net n;

	(void)state;
	open_net(&n, 0, NULL);
	memset(n.from, 1, BYTES);
	for (unsigned i = 0; i < 1000; i++)
		assert_true(post_write(&n, 0, BYTES, i));
	assert_true(all(n.to, 1, BYTES));
	poll_side(&n.a);
	assert_int_equal(n.a.done, 0); /* all of them were done at post */
	close_net(&n);
}

/* Last byte before the first, a later write before an earlier one, placed long before completed. */
static void adversary_takes_every_freedom(void **state)
{
	net n;
	unsigned tail_first = 0, overtaken = 0, late = 0, refused = 0;

	(void)state;
	open_net(&n, 5, NULL);
	for (uint8_t round = 1; round <= 200; round++) {
		unsigned want = n.a.done + 2;
		uint64_t half = BYTES / 2;

		memset(n.from, round, BYTES);
		while (!post_write(&n, 0, half, round))
			refused++;
		while (!post_write(&n, half, half, round))
			refused++;
		while (n.a.done < want) {
			poll_side(&n.a);
			tail_first += n.to[0] != round && n.to[half - 1] == round;
			overtaken += !all(n.to, round, half) && all(n.to + half, round, half);
			late += all(n.to, round, BYTES) && n.a.done < want;
		}
		assert_true(all(n.to, round, BYTES)); /* whatever it did, REMOTE means placed */
	}
	assert_true(tail_first > 10);
	assert_true(overtaken > 10);
	assert_true(late > 10);
	assert_true(refused > 3);
	close_net(&n);
}

static void trace(uint64_t seed, uint8_t *out, unsigned count)
{
	net n;

	open_net(&n, seed, NULL);
	memset(n.from, 1, BYTES);
	for (unsigned i = 0; i < count; i++) {
		out[i] = post_write(&n, 0, BYTES, i);
		poll_side(&n.a);
		out[i] = (uint8_t)(out[i] + 2 * n.a.done + n.to[i % BYTES]);
		n.to[i % BYTES] = 0;
	}
	close_net(&n);
}

static void a_seed_repeats(void **state)
{
	uint8_t first[500], again[500], other[500];

	(void)state;
	trace(77, first, 500);
	trace(77, again, 500);
	trace(78, other, 500);
	assert_memory_equal(first, again, 500);
	assert_memory_not_equal(first, other, 500);
}

static void lanes_break_when_asked(void **state)
{
	net n;
	unsigned accepted = 0;

	(void)state;
	open_net(&n, 9, "loop.break_ppm=200000");
	memset(n.from, 1, BYTES);
	while (n.a.downs == 0) {
		tn_wr wr = {.level = TN_LEVEL_REMOTE, .local = n.from, .bytes = BYTES, .key = n.key};

		accepted += tn_lane_write(n.a.lane, &wr) == TERN_OK;
		poll_side(&n.a);
	}
	while (n.a.done < accepted)
		poll_side(&n.a);
	poll_side(&n.b);
	assert_int_equal(n.b.downs, 1);
	assert_int_equal(n.a.done, accepted);
	close_net(&n);
}

/* The device's pool is shared: many lanes can use it up, none can take more than its part. */
static void the_pool_ends_in_again(void **state)
{
	net n;
	tn_dev_caps caps;
	uint8_t byte = 1;
	const tn_iov iov = {.base = &byte, .bytes = 1};
	unsigned sent = 0;
	bool done;

	(void)state;
	open_net(&n, 0, NULL);
	n.a.dev->ops->caps(n.a.dev, &caps);
	for (unsigned lanes = 0; sent < caps.recv_slots; lanes++) {
		unsigned here = 0;

		assert_true(lanes <= caps.recv_slots / caps.lane_recv_slots);
		if (lanes > 0)
			connect_lane(&n);
		while (tn_lane_send(n.a.lane, &iov, 1, 0, &done) == TERN_OK)
			here++;
		assert_int_equal(here, caps.lane_recv_slots);
		sent += here;
	}
	connect_lane(&n);
	assert_int_equal(tn_lane_send(n.a.lane, &iov, 1, 0, &done), TERN_AGAIN);
	while (n.b.received == 0)
		poll_side(&n.b);
	n.b.dev->ops->recv_done(n.b.dev, &n.b.event);
	assert_int_equal(tn_lane_send(n.a.lane, &iov, 1, 0, &done), TERN_OK);
	assert_true(done);
	close_net(&n);
}

/* A buffer that is still held when its lane is destroyed stays readable and goes back afterwards. */
static void held_buffers_survive_their_lane(void **state)
{
	net n;
	uint8_t text[] = "held";
	const tn_iov iov = {.base = text, .bytes = sizeof(text)};
	bool done;

	(void)state;
	open_net(&n, 0, NULL);
	assert_int_equal(tn_lane_send(n.a.lane, &iov, 1, 0, &done), TERN_OK);
	poll_side(&n.b);
	assert_int_equal(n.b.received, 1);
	n.b.dev->ops->lane_close(n.b.lane);
	assert_true(n.b.dev->ops->lane_drained(n.b.lane));
	n.b.dev->ops->lane_destroy(n.b.lane);
	assert_memory_equal(n.b.event.buf, text, sizeof(text));
	n.b.dev->ops->recv_done(n.b.dev, &n.b.event);
	close_net(&n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(behaves_without_a_seed), cmocka_unit_test(adversary_takes_every_freedom),
		cmocka_unit_test(a_seed_repeats),         cmocka_unit_test(lanes_break_when_asked),
		cmocka_unit_test(the_pool_ends_in_again), cmocka_unit_test(held_buffers_survive_their_lane),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

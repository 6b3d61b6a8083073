/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern_recv: posted before and after the message, truncated, with deadline, cancelled, and a receiver that
 * is slower than its sender. Threads: helpers; asserts in the main thread.
 */
#include "chan_test.h"

static void open_plain(pair *p)
{
	side_open(&p->serve, 0);
	side_open(&p->dial, 0);
	p->serve.no_on_message = true;
	side_connect(&p->dial, &p->serve);
	side_open_channel(&p->dial);
	assert_comes(&p->serve, opens, 1);
}

static void send_one(pair *p, const void *buf, uint64_t bytes)
{
	tern_op op = {0};

	assert_ok(complete(p->dial.ctx, &op, tern_send(p->dial.channel, buf, bytes, &op)));
}

static void test_before_and_after(void **state)
{
	static const uint64_t sizes[] = {0, 1, 100, 5000, 70000, 3 << 20};
	uint8_t *out = malloc(4 << 20), *in = malloc(4 << 20);
	pair p;

	(void)state;
	open_plain(&p);
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++) {
		tern_op op = {0};

		fill(out, sizes[i], i);
		/* posted first */
		assert_ok(tern_recv(serve_channel(&p.serve), in, 4 << 20, &op));
		send_one(&p, out, sizes[i]);
		assert_ok(tern_op_wait(p.serve.ctx, &op, PATIENCE));
		assert_int_equal(op.length, sizes[i]);
		assert_true(filled(in, sizes[i], i));
		/* message first */
		memset(in, 0, 4 << 20);
		send_one(&p, out, sizes[i]);
		tn_sleep_ns(2 * TN_NS_PER_MS);
		assert_ok(tern_recv(serve_channel(&p.serve), in, 4 << 20, &op));
		assert_ok(tern_op_wait(p.serve.ctx, &op, PATIENCE));
		assert_int_equal(op.length, sizes[i]);
		assert_true(filled(in, sizes[i], i));
	}
	pair_close(&p);
	free(out);
	free(in);
}

static void test_truncated(void **state)
{
	static const uint64_t sizes[] = {101, 200000};
	uint8_t *out = malloc(200000), in[101];
	tern_op op = {0};
	pair p;

	(void)state;
	open_plain(&p);
	for (int i = 0; i < 4; i++) {
		uint64_t bytes = sizes[i / 2];

		fill(out, bytes, 9);
		in[100] = 0x55;
		if (i % 2)
			assert_ok(tern_recv(serve_channel(&p.serve), in, 100, &op));
		send_one(&p, out, bytes);
		if (!(i % 2)) {
			tn_sleep_ns(2 * TN_NS_PER_MS);
			assert_ok(tern_recv(serve_channel(&p.serve), in, 100, &op));
		}
		assert_status(tern_op_wait(p.serve.ctx, &op, PATIENCE), TERN_E_TRUNCATED);
		assert_int_equal(op.length, bytes);
		assert_true(filled(in, 100, 9));
		assert_int_equal(in[100], 0x55);
	}
	pair_close(&p);
	free(out);
}

static void test_deadline_and_cancel(void **state)
{
	uint8_t in[64];
	tern_op ops[3] = {0};
	pair p;

	(void)state;
	open_plain(&p);
	ops[0].timeout_ns = 5 * TN_NS_PER_MS;
	assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[0]));
	assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[1]));
	assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[2]));
	assert_status(tern_op_wait(p.serve.ctx, &ops[0], PATIENCE), TERN_E_DEADLINE);
	assert_ok(tern_cancel(serve_channel(&p.serve), &ops[1]));
	assert_status(tern_op_wait(p.serve.ctx, &ops[1], PATIENCE), TERN_E_CANCELED);
	assert_status(tern_cancel(serve_channel(&p.serve), &ops[1]), TERN_E_NOT_FOUND);
	send_one(&p, "last", 4);
	assert_ok(tern_op_wait(p.serve.ctx, &ops[2], PATIENCE));
	assert_memory_equal(in, "last", 4);
	pair_close(&p);
}

typedef struct past {
	tern_ctx *ctx;
	uint64_t seen;
	tern_status status;
} past;

static void *wait_past(void *arg)
{
	past *p = arg;

	p->status = tern_ctx_wait_past(p->ctx, p->seen, PATIENCE);
	return NULL;
}

/* An end without callback is an event as well: by a cancel in another thread, by a deadline. */
static void test_ends_are_events(void **state)
{
	uint8_t in[64];
	pair p;

	(void)state;
	open_plain(&p);
	tn_sleep_ns(20 * TN_NS_PER_MS); /* nothing else is going on */
	for (int i = 0; i < 20; i++) {
		tern_op op = {.timeout_ns = i % 2 ? 3 * TN_NS_PER_MS : 0};
		past w = {.ctx = p.serve.ctx};
		pthread_t thread;

		w.seen = tern_ctx_events(p.serve.ctx);
		assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &op));
		pthread_create(&thread, NULL, wait_past, &w);
		tn_sleep_ns(TN_NS_PER_MS);
		if (!(i % 2))
			assert_ok(tern_cancel(serve_channel(&p.serve), &op));
		pthread_join(thread, NULL);
		assert_int_equal(w.status, TERN_OK);
		assert_status(tern_op_wait(p.serve.ctx, &op, PATIENCE),
			      i % 2 ? TERN_E_DEADLINE : TERN_E_CANCELED);
	}
	pair_close(&p);
}

static void test_flushed_by_close(void **state)
{
	uint8_t in[64];
	tern_op ops[2] = {0};
	pair p;

	(void)state;
	open_plain(&p);
	assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[0]));
	tern_channel_close(p.serve.channel);
	assert_status(tern_op_wait(p.serve.ctx, &ops[0], PATIENCE), TERN_E_FLUSHED);
	pair_close(&p);

	open_plain(&p);
	assert_ok(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[1]));
	tern_channel_close(p.dial.channel);
	assert_status(tern_op_wait(p.serve.ctx, &ops[1], PATIENCE), TERN_E_PEER_CLOSED);
	assert_comes(&p.serve, closed, 1);
	assert_status(tern_recv(serve_channel(&p.serve), in, sizeof(in), &ops[1]), TERN_E_PEER_CLOSED);
	pair_close(&p);
}

/* What came before the peer's close can still be read after it. */
static void test_read_after_close(void **state)
{
	uint8_t in[64];
	tern_op op = {0};
	pair p;

	(void)state;
	open_plain(&p);
	send_one(&p, "first", 5);
	send_one(&p, "second", 6);
	tern_channel_close(p.dial.channel);
	assert_comes(&p.serve, closed, 1);
	assert_ok(complete(p.serve.ctx, &op, tern_recv(serve_channel(&p.serve), in, sizeof(in), &op)));
	assert_memory_equal(in, "first", 5);
	assert_ok(complete(p.serve.ctx, &op, tern_recv(serve_channel(&p.serve), in, sizeof(in), &op)));
	assert_memory_equal(in, "second", 6);
	assert_status(tern_recv(serve_channel(&p.serve), in, sizeof(in), &op), TERN_E_PEER_CLOSED);
	pair_close(&p);
}

typedef struct sender {
	pair *p;
	int count;
	tern_status status;
} sender;

static void *send_many(void *arg)
{
	sender *s = arg;
	uint8_t *buf = malloc(20000);
	tern_op op = {0};

	for (int i = 0; i < s->count && s->status == TERN_OK; i++) {
		fill(buf, 20000, (uint64_t)i);
		s->status = complete(s->p->dial.ctx, &op, tern_send(s->p->dial.channel, buf, 20000, &op));
	}
	free(buf);
	return NULL;
}

/* 20 MB to a reader that reads slowly: its inbox stays bounded, other channels go on, nothing is lost. */
static void test_slow_reader(void **state)
{
	enum { COUNT = 1000 };
	uint8_t *in = malloc(20000);
	tern_channel_params params;
	tern_channel *other;
	pthread_t thread;
	sender s;
	tern_op op = {0};
	pair p;

	(void)state;
	open_plain(&p);
	s = (sender){.p = &p, .count = COUNT};
	pthread_create(&thread, NULL, send_many, &s);
	tn_sleep_ns(50 * TN_NS_PER_MS); /* nobody reads: the sender stops */
	side_params(&p.dial, &params);
	p.serve.no_on_message = false;
	tern_channel *reader = serve_channel(&p.serve);
	assert_ok(tern_channel_open(p.dial.link, SERVICE, &params, &other));
	for (int i = 0; i < 100; i++) {
		tern_op small = {.flags = TERN_OP_REMOTE};

		assert_ok(complete(p.dial.ctx, &small, tern_send(other, "ping", 4, &small)));
	}
	for (int i = 0; i < COUNT; i++) {
		if (i < 20)
			tn_sleep_ns(TN_NS_PER_MS);
		assert_ok(complete(p.serve.ctx, &op, tern_recv(reader, in, 20000, &op)));
		assert_int_equal(op.length, 20000);
		assert_true(filled(in, 20000, (uint64_t)i));
	}
	pthread_join(thread, NULL);
	assert_int_equal(s.status, TERN_OK);
	tern_channel_close(other);
	pair_close(&p);
	free(in);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before_and_after),    cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_deadline_and_cancel), cmocka_unit_test(test_ends_are_events),
		cmocka_unit_test(test_flushed_by_close),    cmocka_unit_test(test_read_after_close),
		cmocka_unit_test(test_slow_reader),
	};

	test_transport(argc, argv);
	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages on channels: every size both ways, order, many channels, ends. Runs over the provider that is its
 * argument. Threads: helpers; asserts in the main thread.
 */
#include "chan_test.h"

static void round_trip(pair *p, uint64_t bytes, uint8_t *buf)
{
	tern_op op;
	int before = atomic_load(&p->dial.messages), served = atomic_load(&p->serve.messages);

	fill(buf, bytes, bytes);
	tern_op_init(&op, NULL, NULL);
	assert_ok(complete(p->dial.ctx, &op, tern_send(p->dial.channel, buf, bytes, &op)));
	assert_int_equal(op.length, bytes);
	assert_comes(&p->dial, messages, before + 1);
	assert_comes(&p->serve, messages, served + 1);
	assert_true(last_is(&p->serve, bytes, bytes));
	assert_true(last_is(&p->dial, bytes, bytes));
}

static void test_sizes(void **state)
{
	static const uint64_t sizes[] = {0,        1,       7,      8,       63,      64,      100,
					 1000,     4000,    4096,   8192,    16000,   16384,   16385,
					 65536,    100000,  131072, 1000000, 1 << 20, 4 << 20, (4 << 20) + 1,
					 17 << 20, 32 << 20};
	uint8_t *buf = malloc(33 << 20);
	pair p;

	(void)state;
	pair_open(&p);
	p.serve.echo = true;
	for (size_t i = 0; i < TN_COUNT_OF(sizes); i++)
		round_trip(&p, sizes[i], buf);
	pair_close(&p);
	free(buf);
}

/* The levels: LOCAL says that the buffer may be reused, REMOTE that the peer's channel has it. */
static void test_levels(void **state)
{
	uint8_t *buf = malloc(1 << 20);
	pair p;

	(void)state;
	pair_open(&p);
	for (int i = 0; i < 200; i++) {
		uint64_t bytes = i % 10 == 0 ? 1 << 20 : (uint64_t)i;
		tern_op op = {.flags = i % 2 ? TERN_OP_REMOTE : 0};

		fill(buf, bytes, (uint64_t)i);
		assert_ok(complete(p.dial.ctx, &op, tern_send(p.dial.channel, buf, bytes, &op)));
		memset(buf, 0xee, bytes ? bytes : 1); /* ours again */
		if (i % 2)
			assert_comes(&p.serve, messages, i + 1);
		assert_comes(&p.serve, messages, i + 1);
		assert_true(last_is(&p.serve, bytes, (uint64_t)i));
	}
	pair_close(&p);
	free(buf);
}

static void test_pieces(void **state)
{
	char a[] = "one, ", b[] = "two, ", c[] = "three";
	tern_iovec iov[4] = {{a, 5}, {b, 5}, {c, 5}, {a, 1}};
	tern_op op = {0};
	pair p;

	(void)state;
	pair_open(&p);
	assert_ok(complete(p.dial.ctx, &op, tern_sendv(p.dial.channel, iov, 3, &op)));
	assert_comes(&p.serve, messages, 1);
	pthread_mutex_lock(&p.serve.lock);
	assert_int_equal(p.serve.last_bytes, 15);
	assert_memory_equal(p.serve.last, "one, two, three", 15);
	pthread_mutex_unlock(&p.serve.lock);
	assert_status(tern_sendv(p.dial.channel, iov, 4, &op), TERN_E_INVALID);
	assert_ok(complete(p.dial.ctx, &op, tern_sendv(p.dial.channel, iov, 0, &op)));
	assert_comes(&p.serve, messages, 2);
	assert_true(last_is(&p.serve, 0, 0));
	pair_close(&p);
}

/* ---- order ---- */

typedef struct order {
	side *s;
	atomic_int next;
	atomic_int bad;
} order;

static void on_numbered(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	order *o = arg;
	uint32_t number;

	(void)channel;
	memcpy(&number, msg, sizeof(number));
	if (number != (uint32_t)atomic_load(&o->next) || bytes != 4 + (number * 977) % 9000)
		atomic_fetch_add(&o->bad, 1);
	atomic_fetch_add(&o->next, 1);
}

static tern_status open_ordered(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	*params = (tern_channel_params){.on_message = on_numbered, .arg = arg};
	return TERN_OK;
}

/* Many messages in flight arrive in the order of submission. */
static void test_order(void **state)
{
	enum { COUNT = 3000, FLIGHT = 64 };
	uint8_t *bufs = malloc(FLIGHT * 10000);
	tern_op ops[FLIGHT] = {0};
	tern_channel *channel;
	order o = {0};
	pair p;

	(void)state;
	pair_open(&p);
	o.s = &p.serve;
	assert_ok(tern_ctx_listen(p.serve.ctx, "order", open_ordered, &o));
	assert_ok(tern_channel_open(p.dial.link, "order", NULL, &channel));
	for (uint32_t i = 0; i < COUNT; i++) {
		tern_op *op = &ops[i % FLIGHT];
		uint8_t *buf = bufs + (i % FLIGHT) * 10000;

		if (i >= FLIGHT)
			assert_ok(tern_op_wait(p.dial.ctx, op, PATIENCE));
		memcpy(buf, &i, 4);
		assert_ok(submit(p.dial.ctx, tern_send(channel, buf, 4 + (i * 977) % 9000, op)));
	}
	for (uint32_t i = 0; i < FLIGHT; i++)
		assert_ok(tern_op_wait(p.dial.ctx, &ops[i], PATIENCE));
	if (!wait_for(p.serve.ctx, &o.next, COUNT))
		fail_msg("%d of %d came", atomic_load(&o.next), COUNT);
	assert_int_equal(atomic_load(&o.bad), 0);
	tern_channel_close(channel);
	pair_close(&p);
	free(bufs);
}

/* ---- many channels ---- */

static void test_many_channels(void **state)
{
	enum { CHANNELS = 100 };
	tern_channel *channels[CHANNELS];
	tern_op ops[CHANNELS] = {0};
	order orders[CHANNELS] = {0};
	pair p;

	(void)state;
	pair_open(&p);
	for (int i = 0; i < CHANNELS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "order %d", i);
		assert_ok(tern_ctx_listen(p.serve.ctx, name, open_ordered, &orders[i]));
		assert_ok(tern_channel_open(p.dial.link, name, NULL, &channels[i]));
	}
	for (uint32_t n = 0; n < 20; n++) {
		for (int i = 0; i < CHANNELS; i++) {
			uint8_t buf[9100];

			memcpy(buf, &n, 4);
			assert_ok(complete(p.dial.ctx, &ops[i],
					   tern_send(channels[i], buf, 4 + (n * 977) % 9000, &ops[i])));
		}
	}
	for (int i = 0; i < CHANNELS; i++) {
		assert_true(wait_for(p.serve.ctx, &orders[i].next, 20));
		assert_int_equal(atomic_load(&orders[i].bad), 0);
	}
	for (int i = 0; i < CHANNELS; i++)
		tern_channel_close(channels[i]);
	pair_close(&p);
}

/* ---- services ---- */

static void test_unknown_service(void **state)
{
	tern_channel_params params;
	tern_channel *channel;
	tern_op op = {0};
	pair p;

	(void)state;
	pair_open(&p);
	side_params(&p.dial, &params);
	assert_ok(tern_channel_open(p.dial.link, "nobody", &params, &channel));
	assert_comes(&p.dial, closed, 1);
	assert_int_equal(atomic_load(&p.dial.closed_status), TERN_E_NOT_FOUND);
	assert_status(tern_send(channel, "x", 1, &op), TERN_E_NOT_FOUND);
	assert_status(tern_op_test(&op), TERN_E_STATE); /* not in flight */
	assert_non_null(strstr(tern_detail(), "nobody"));
	tern_channel_close(channel);
	assert_status(tern_channel_open(p.dial.link, "", &params, &channel), TERN_E_INVALID);
	assert_status(tern_ctx_listen(p.serve.ctx, SERVICE, on_open, &p.serve), TERN_E_EXISTS);
	pair_close(&p);
}

static void test_refused_service(void **state)
{
	tern_channel_params params;
	tern_channel *channel;
	pair p;

	(void)state;
	pair_open(&p);
	p.serve.refuse = TERN_E_IN_USE;
	side_params(&p.dial, &params);
	assert_ok(tern_channel_open(p.dial.link, SERVICE, &params, &channel));
	assert_comes(&p.dial, closed, 1);
	assert_int_equal(atomic_load(&p.dial.closed_status), TERN_E_IN_USE);
	tern_channel_close(channel);
	/* The next one is accepted again. */
	p.serve.refuse = TERN_OK;
	assert_ok(tern_channel_open(p.dial.link, SERVICE, &params, &channel));
	assert_comes(&p.serve, opens, 2);
	tern_channel_close(channel);
	pair_close(&p);
}

static void test_too_large(void **state)
{
	tern_channel_params params;
	tern_channel *channel;
	tern_op op = {0};
	uint8_t buf[2000] = {0};
	tern_status status;
	pair p;

	(void)state;
	pair_open(&p);
	p.serve.message_max = 1000;
	side_params(&p.dial, &params);
	assert_ok(tern_channel_open(p.dial.link, SERVICE, &params, &channel));
	assert_comes(&p.serve, opens, 2);
	status = complete(p.dial.ctx, &op, tern_send(channel, buf, 1000, &op));
	assert_ok(status);
	assert_comes(&p.serve, messages, 1);
	status = complete(p.dial.ctx, &op, tern_send(channel, buf, 1001, &op));
	assert_status(status, TERN_E_TOO_LARGE);
	tern_channel_close(channel);
	pair_close(&p);
}

/* ---- closes ---- */

static void test_peer_closes(void **state)
{
	tern_op op = {0};
	pair p;

	(void)state;
	pair_open(&p);
	tern_channel_close(p.serve.channel);
	assert_comes(&p.dial, closed, 1);
	assert_int_equal(atomic_load(&p.dial.closed_status), TERN_E_PEER_CLOSED);
	assert_int_equal(atomic_load(&p.serve.closed), 0);
	assert_status(tern_send(p.dial.channel, "x", 1, &op), TERN_E_PEER_CLOSED);
	assert_status(tern_op_test(&op), TERN_E_STATE); /* not in flight */
	tern_channel_close(p.dial.channel);
	pair_close(&p);
}

/* What was sent before a close arrives before it. */
static void test_close_after_messages(void **state)
{
	tern_op ops[20] = {0};
	pair p;

	(void)state;
	pair_open(&p);
	for (int i = 0; i < 20; i++)
		assert_ok(complete(p.dial.ctx, &ops[i], tern_send(p.dial.channel, "hello", 5, &ops[i])));
	tern_channel_close(p.dial.channel);
	assert_comes(&p.serve, closed, 1);
	assert_int_equal(atomic_load(&p.serve.messages), 20);
	tern_channel_close(p.serve.channel);
	pair_close(&p);
}

typedef struct swap { /* in a callback, one channel is closed and another opened */
	pair p;
	tern_channel *old, *between, *new;
	atomic_int done, ended;
} swap;

static void new_ended(tern_channel *channel, tern_status status, void *arg)
{
	(void)channel, (void)status;
	atomic_fetch_add(&((swap *)arg)->ended, 1);
}

static void swap_in_callback(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	swap *s = arg;
	tern_channel_params params = {.on_closed = new_ended, .arg = s};

	(void)channel, (void)msg, (void)bytes;
	/* Who opens takes from the machine what it has to say, but for what is the driver's. */
	assert_ok(tern_channel_open(s->p.dial.link, SERVICE, NULL, &s->between));
	tern_channel_close(s->old);
	assert_ok(tern_channel_open(s->p.dial.link, SERVICE, &params, &s->new));
	atomic_fetch_add(&s->done, 1);
}

/*
 * The peer has closed a channel, which the driver is about to say, when that is closed here as well. Nobody hears of it, least
 * of all the next channel, which may lie in the same memory.
 */
static void test_closed_while_its_end_is_told(void **state)
{
	tern_channel_params params = {.on_message = swap_in_callback};
	tern_channel *ends[2], *other;
	tern_op op = {0};
	swap s = {0};

	(void)state;
	side_open(&s.p.serve, 0);
	side_open(&s.p.dial, TERN_CTX_NO_HELPER);
	side_connect(&s.p.dial, &s.p.serve);
	params.arg = &s;
	for (int i = 0; i < 2; i++) {
		assert_ok(tern_channel_open(s.p.dial.link, SERVICE, i ? &params : NULL, i ? &other : &s.old));
		while (atomic_load(&s.p.serve.opens) <= i)
			tern_ctx_wait(s.p.dial.ctx, TN_NS_PER_MS);
		ends[i] = serve_channel(&s.p.serve);
	}
	for (int i = 0; i < 20; i++) /* nothing is on its way any more */
		tern_ctx_wait(s.p.dial.ctx, TN_NS_PER_MS);
	tern_channel_close(ends[0]);
	assert_ok(tern_send(ends[1], "x", 1, &op));
	tern_ctx_wait(s.p.serve.ctx, 20 * TN_NS_PER_MS); /* both frames wait to be looked at */
	while (atomic_load(&s.done) == 0)
		tern_ctx_wait(s.p.dial.ctx, TN_NS_PER_MS);
	for (int i = 0; i < 20; i++)
		tern_ctx_wait(s.p.dial.ctx, TN_NS_PER_MS);
	assert_int_equal(atomic_load(&s.ended), 0);
	tern_channel_close(s.between);
	tern_channel_close(s.new);
	tern_channel_close(other);
	tern_channel_close(ends[1]);
	pair_close(&s.p);
}

static void close_in_callback(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	side *s = arg;

	(void)msg;
	(void)bytes;
	atomic_fetch_add(&s->messages, 1);
	tern_channel_close(channel);
}

static tern_status open_closing(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel;
	*params = (tern_channel_params){.on_message = close_in_callback, .on_closed = on_closed, .arg = arg};
	return TERN_OK;
}

/* A callback closes its own channel: no further callback of it. */
static void test_close_inside_callback(void **state)
{
	tern_channel_params params;
	tern_channel *channel;
	tern_op ops[50] = {0};
	pair p;

	(void)state;
	pair_open(&p);
	assert_ok(tern_ctx_listen(p.serve.ctx, "closing", open_closing, &p.serve));
	side_params(&p.dial, &params);
	assert_ok(tern_channel_open(p.dial.link, "closing", &params, &channel));
	for (int i = 0; i < 50; i++) {
		tern_status status = submit(p.dial.ctx, tern_send(channel, "x", 1, &ops[i]));

		if (status != TERN_OK)
			assert_status(status, TERN_E_PEER_CLOSED);
	}
	assert_comes(&p.dial, closed, 1);
	assert_int_equal(atomic_load(&p.serve.messages), 1);
	assert_int_equal(atomic_load(&p.serve.closed), 0);
	tern_channel_close(channel);
	pair_close(&p);
}

static atomic_int in_callback, callback_over;

static void slow_callback(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	(void)channel;
	(void)msg;
	(void)bytes;
	(void)arg;
	atomic_store(&in_callback, 1);
	tn_sleep_ns(30 * TN_NS_PER_MS);
	atomic_store(&callback_over, 1);
}

static tern_channel *slow_channel;

static tern_status open_slow(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)arg;
	*params = (tern_channel_params){.on_message = slow_callback};
	slow_channel = channel;
	return TERN_OK;
}

/* Close from another thread waits for the callback that runs. */
static void test_close_waits_for_callback(void **state)
{
	tern_channel *channel;
	tern_op op = {0};
	pair p;

	(void)state;
	pair_open(&p);
	assert_ok(tern_ctx_listen(p.serve.ctx, "slow", open_slow, NULL));
	assert_ok(tern_channel_open(p.dial.link, "slow", NULL, &channel));
	assert_ok(complete(p.dial.ctx, &op, tern_send(channel, "x", 1, &op)));
	while (!atomic_load(&in_callback))
		tn_sleep_ns(100000);
	tern_channel_close(slow_channel);
	assert_int_equal(atomic_load(&callback_over), 1);
	tern_channel_close(channel);
	pair_close(&p);
}

/* Operations that a close catches end in FLUSHED or OK, each once. */
static void test_close_with_ops(void **state)
{
	enum { OPS = 64 };
	uint8_t *buf = calloc(1, 1 << 20);
	pair p;

	(void)state;
	for (int round = 0; round < 10; round++) {
		tern_op ops[OPS] = {0};
		int accepted = 0;

		pair_open(&p);
		while (accepted < OPS && tern_send(p.dial.channel, buf, 1 << 20, &ops[accepted]) == TERN_OK)
			accepted++;
		assert_true(accepted > 0);
		tern_channel_close(p.dial.channel);
		for (int i = 0; i < accepted; i++) {
			tern_status status = tern_op_wait(p.dial.ctx, &ops[i], PATIENCE);

			if (status != TERN_OK)
				assert_status(status, TERN_E_FLUSHED);
		}
		assert_comes(&p.serve, closed, 1);
		pair_close(&p);
	}
	free(buf);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_many_channels),
		cmocka_unit_test(test_unknown_service),
		cmocka_unit_test(test_refused_service),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_peer_closes),
		cmocka_unit_test(test_close_after_messages),
		cmocka_unit_test(test_close_inside_callback),
		cmocka_unit_test(test_closed_while_its_end_is_told),
		cmocka_unit_test(test_close_waits_for_callback),
		cmocka_unit_test(test_close_with_ops),
	};

	test_transport(argc, argv);
	return RUN(tests);
}

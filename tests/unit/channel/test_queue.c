/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that are submitted while another thread holds the link's lock (channel/queue.c): the test holds it. And
 * many threads that send at once. Run under the thread sanitizer.
 */
#include "channel/op.h"
#include "channel/queue.h"
#include "workers.h"

#define LEFT    8
#define STREAMS 6
#define LEAVERS 4 /* leave more than 16, the least of link.ops_max */
#define LONG    3000
#define FLIGHT  64

/* What came, over all channels of the service: the first byte of a message says who sent it. */
static struct {
	atomic_uint next[STREAMS];
	atomic_int came, wrong, opens;
} order;

static void in_order(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	uint32_t head[2];

	(void)channel, (void)arg;
	if (bytes >= sizeof(head)) {
		memcpy(head, msg, sizeof(head));
		if (head[0] >= STREAMS || atomic_fetch_add(&order.next[head[0] % STREAMS], 1) != head[1])
			atomic_fetch_add(&order.wrong, 1);
	}
	atomic_fetch_add(&order.came, 1);
}

static tern_status open_order(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){.on_message = in_order};
	atomic_fetch_add(&order.opens, 1);
	return TERN_OK;
}

static void order_open(pair *p, const tern_ctx_params *dial)
{
	memset(&order, 0, sizeof(order));
	side_open(&p->serve, 0);
	assert_ok(tern_ctx_listen(p->serve.ctx, "order", open_order, NULL));
	side_open_params(&p->dial, dial);
	side_connect(&p->dial, &p->serve);
}

static tern_channel *order_channel(pair *p)
{
	int opens = atomic_load(&order.opens);
	tern_channel *channel;

	assert_ok(tern_channel_open(p->dial.link, "order", NULL, &channel));
	assert_true(wait_for(p->serve.ctx, &order.opens, opens + 1));
	return channel;
}

/* A thread that sends LEFT messages and ends, whoever holds the lock. */
typedef struct leaver {
	tern_channel *channel;
	uint32_t stream, first;
	uint32_t data[LEFT][2];
	tern_op ops[LEFT];
	tern_status status;
	pthread_t thread;
} leaver;

static void *leave(void *arg)
{
	leaver *l = arg;

	for (uint32_t i = 0; i < LEFT && l->status == TERN_OK; i++) {
		l->data[i][0] = l->stream;
		l->data[i][1] = l->first + i;
		l->status = tern_send(l->channel, l->data[i], sizeof(l->data[i]), &l->ops[i]);
	}
	return NULL;
}

/* Start it while the lock is held, and wait for its end, not for the messages'. */
static void leave_all(leaver *l, tern_channel *channel, uint32_t stream, uint32_t first)
{
	memset(l, 0, sizeof(*l));
	l->channel = channel;
	l->stream = stream;
	l->first = first;
	pthread_create(&l->thread, NULL, leave, l);
	pthread_join(l->thread, NULL);
	assert_int_equal(l->status, TERN_OK);
	for (int i = 0; i < LEFT; i++)
		assert_int_equal(tern_op_test(&l->ops[i]), TERN_AGAIN);
}

static void await_all(pair *p, leaver *l)
{
	for (int i = 0; i < LEFT; i++)
		assert_ok(tern_op_wait(p->dial.ctx, &l->ops[i], PATIENCE));
}

/* What a channel has sent before may be left to others. */
static void send_first(pair *p, tern_channel *channel, uint32_t stream)
{
	uint32_t data[2] = {stream, 0};
	tern_op op = {0};

	assert_ok(complete(p->dial.ctx, &op, tern_send(channel, data, sizeof(data), &op)));
}

/* With one channel, whose first message has come. */
static tern_channel *order_one(pair *p)
{
	tern_channel *channel;

	order_open(p, NULL);
	channel = order_channel(p);
	send_first(p, channel, 0);
	return channel;
}

static void test_left_to_the_holder(void **state)
{
	tern_channel *channel;
	uint64_t before;
	leaver l;
	pair p;

	(void)state;
	channel = order_one(&p);
	before = tern_ctx_counter(p.dial.ctx, "channel.queued");
	tn_lock_take(&p.dial.link->lock);
	leave_all(&l, channel, 0, 1);
	tn_lock_drop(&p.dial.link->lock);
	await_all(&p, &l); /* nobody submits any more: the driver was told */
	assert_true(wait_for(p.serve.ctx, &order.came, 1 + LEFT));
	assert_int_equal(order.wrong, 0);
	assert_int_equal(tern_ctx_counter(p.dial.ctx, "channel.queued"), before + LEFT);
	pair_close(&p);
}

/* This thread's own message comes after what others left before, and a cancel finds what was left. */
static void test_order_and_cancel(void **state)
{
	uint32_t data[2] = {0, 1 + LEFT};
	tern_channel *channel;
	tern_op op = {0};
	tern_status status;
	leaver l;
	pair p;

	(void)state;
	channel = order_one(&p);
	tn_lock_take(&p.dial.link->lock);
	leave_all(&l, channel, 0, 1);
	tn_lock_drop(&p.dial.link->lock);
	assert_ok(complete(p.dial.ctx, &op, tern_send(channel, data, sizeof(data), &op)));
	await_all(&p, &l);
	assert_true(wait_for(p.serve.ctx, &order.came, 2 + LEFT));
	assert_int_equal(order.wrong, 0);

	tn_lock_take(&p.dial.link->lock);
	leave_all(&l, channel, 0, 2 + LEFT);
	tn_lock_drop(&p.dial.link->lock);
	status = tern_cancel(channel, &l.ops[LEFT - 1]);
	assert_true(status == TERN_OK || status == TERN_E_NOT_FOUND);
	status = tern_op_wait(p.dial.ctx, &l.ops[LEFT - 1], PATIENCE);
	assert_true(status == TERN_OK || status == TERN_E_CANCELED);
	for (int i = 0; i < LEFT - 1; i++)
		assert_ok(tern_op_wait(p.dial.ctx, &l.ops[i], PATIENCE));
	pair_close(&p);
}

/* In two pieces. */
static bool send_now(tern_channel *channel, const void *data, uint64_t bytes)
{
	const tern_iovec iov[2] = {{data, bytes / 2}, {(const uint8_t *)data + bytes / 2, bytes - bytes / 2}};

	return tn_sendv_now(channel, iov, 2);
}

/* Without an operation: over a device that says so, past nobody, and not while somebody has the lock. */
static void test_send_now(void **state)
{
	uint32_t data[2] = {0, 1};
	tern_channel *channel;
	tern_op op = {0};
	bool brief;
	leaver l;
	pair p;

	(void)state;
	channel = order_one(&p);
	brief = send_now(channel, data, sizeof(data));
	assert_int_equal(brief, !strcmp(transport, "shm"));
	data[1] += brief;
	for (unsigned i = 0; i < 2000; i++) { /* more than a lane's receive slots */
		if (!send_now(channel, data, sizeof(data)))
			assert_ok(complete(p.dial.ctx, &op, tern_send(channel, data, sizeof(data), &op)));
		data[1]++;
	}
	tn_lock_take(&p.dial.link->lock);
	assert_false(tn_send_now(channel, data, sizeof(data)));
	leave_all(&l, channel, 0, data[1]);
	tn_lock_drop(&p.dial.link->lock);
	data[1] += LEFT;
	if (!send_now(channel, data, sizeof(data)))
		assert_ok(complete(p.dial.ctx, &op, tern_send(channel, data, sizeof(data), &op)));
	await_all(&p, &l);
	assert_true(wait_for(p.serve.ctx, &order.came, (int)data[1] + 1));
	assert_int_equal(order.wrong, 0);
	tern_channel_close(channel);
	pair_close(&p);
}

/* A close ends what was left, each once. */
static void test_close(void **state)
{
	tern_channel *channel;
	leaver l;
	pair p;

	(void)state;
	channel = order_one(&p);
	tn_lock_take(&p.dial.link->lock);
	leave_all(&l, channel, 0, 1);
	tn_lock_drop(&p.dial.link->lock);
	tern_channel_close(channel);
	for (int i = 0; i < LEFT; i++) {
		tern_status status = tern_op_wait(p.dial.ctx, &l.ops[i], PATIENCE);

		assert_true(status == TERN_OK || status == TERN_E_FLUSHED);
	}
	assert_int_equal(order.wrong, 0);
	pair_close(&p);
}

/* More is left than the machine has rows for: the rest waits, in order, and nobody gets ahead of it. */
static void test_backlog(void **state)
{
	static const char *const few[] = {"link.ops_max=16", NULL};
	tern_ctx_params params = {.options = few};
	tern_channel *channel[LEAVERS];
	leaver l[LEAVERS];
	pair p;

	(void)state;
	order_open(&p, &params);
	for (uint32_t i = 0; i < LEAVERS; i++) {
		channel[i] = order_channel(&p);
		send_first(&p, channel[i], i);
	}
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t data[2] = {0, 2 * LEFT * round + LEFT + 1};

		tn_lock_take(&p.dial.link->lock);
		for (uint32_t i = 0; i < LEAVERS; i++)
			leave_all(&l[i], channel[i], i, (i ? LEFT : 2 * LEFT) * round + 1);
		tn_lock_drop(&p.dial.link->lock);
		for (int i = 0; i < LEFT; i++, data[1]++) {
			tern_op op = {0};

			assert_ok(complete(p.dial.ctx, &op, tern_send(channel[0], data, sizeof(data), &op)));
		}
		for (int i = 0; i < LEAVERS; i++)
			await_all(&p, &l[i]);
	}
	assert_true(wait_for(p.serve.ctx, &order.came, LEAVERS + 20 * (LEAVERS + 1) * LEFT));
	assert_int_equal(order.wrong, 0);
	pair_close(&p);
}

/* ---- many at once ---- */

static tern_channel *streams[STREAMS];

static void *stream(void *arg)
{
	worker *w = arg;
	tern_ctx *ctx = w->p->dial.ctx;
	uint32_t data[FLIGHT][2];
	tern_op ops[FLIGHT] = {{0}};

	for (uint32_t i = 0; i < LONG; i++) {
		uint32_t at = i % FLIGHT;

		if (i >= FLIGHT)
			CHECK(tern_op_wait(ctx, &ops[at], PATIENCE));
		data[at][0] = (uint32_t)w->index;
		data[at][1] = i;
		CHECK(submit(ctx, tern_send(streams[w->index], data[at], sizeof(data[at]), &ops[at])));
	}
	for (uint32_t i = 0; i < FLIGHT; i++)
		CHECK(tern_op_wait(ctx, &ops[i], PATIENCE));
	return NULL;
}

static void test_streams(void **state)
{
	worker workers[STREAMS] = {0};
	pair p;

	(void)state;
	order_open(&p, NULL);
	for (int i = 0; i < STREAMS; i++)
		streams[i] = order_channel(&p);
	run_all(workers, STREAMS, &p, stream);
	assert_true(wait_for(p.serve.ctx, &order.came, STREAMS * LONG));
	assert_int_equal(order.wrong, 0);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_left_to_the_holder),
		cmocka_unit_test(test_order_and_cancel),
		cmocka_unit_test(test_send_now),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_backlog),
		cmocka_unit_test(test_streams),
	};

	test_transport(argc, argv);
	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bursts (channel/push.c) over tcp: whatever is held back arrives, in order, whoever does what afterwards; and bursts are
 * gathered. No time is asserted: a round in which other processes got the core between two posts is no burst, and
 * another one follows. Run under the thread sanitizer.
 */
#include <poll.h>

#include "chan_test.h"

#define BURST   24
#define ROUNDS  400
#define THREADS 4

static struct {
	atomic_int came, wrong;
	atomic_uint next[THREADS];
} order;

/* A message says who sent it and which of his it is. */
static void in_order(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	uint32_t head[2] = {THREADS, 0};

	(void)channel, (void)arg;
	if (bytes >= sizeof(head))
		memcpy(head, msg, sizeof(head));
	if (head[0] >= THREADS || atomic_fetch_add(&order.next[head[0] % THREADS], 1) != head[1])
		atomic_fetch_add(&order.wrong, 1);
	atomic_fetch_add(&order.came, 1);
}

static tern_status open_order(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){.on_message = in_order};
	return TERN_OK;
}

static void order_open(pair *p, uint32_t flags)
{
	memset(&order, 0, sizeof(order));
	side_open(&p->serve, 0);
	assert_ok(tern_ctx_listen(p->serve.ctx, "order", open_order, NULL));
	side_open(&p->dial, flags);
	side_connect(&p->dial, &p->serve);
	assert_ok(tern_channel_open(p->dial.link, "order", NULL, &p->dial.channel));
}

typedef struct burst {
	uint32_t data[BURST][2];
	tern_op ops[BURST];
} burst;

/* LOCAL messages: done at the post, or soon. */
static void post_burst(tern_ctx *ctx, tern_channel *channel, burst *b, uint32_t who, uint32_t first)
{
	for (uint32_t i = 0; i < BURST; i++) {
		b->data[i][0] = who;
		b->data[i][1] = first + i;
		b->ops[i] = (tern_op){0};
		assert_ok(submit(ctx, tern_send(channel, b->data[i], sizeof(b->data[i]), &b->ops[i])));
	}
}

/* Nobody waits on the sender's context: its helper's timer pushes. Until a round was gathered. */
static void test_left_alone(void **state)
{
	static burst b;
	uint64_t calls = 0, least = UINT64_MAX;
	uint32_t sent = 0;
	pair p;

	(void)state;
	order_open(&p, 0);
	for (unsigned i = 0; i < ROUNDS && (i < 20 || least >= BURST / 2); i++) {
		calls = tern_ctx_counter(p.dial.ctx, "tcp.tx_calls");
		post_burst(p.dial.ctx, p.dial.channel, &b, 0, sent);
		sent += BURST;
		assert_true(wait_for(p.serve.ctx, &order.came, (int)sent));
		least = TN_MIN(least, tern_ctx_counter(p.dial.ctx, "tcp.tx_calls") - calls);
		for (unsigned k = 0; k < BURST; k++)
			assert_ok(tern_op_wait(p.dial.ctx, &b.ops[k], PATIENCE));
	}
	assert_int_equal(atomic_load(&order.wrong), 0);
	assert_true(least < BURST / 2);
	pair_close(&p);
}

/* Its owner alone makes progress; every other time it has armed before the burst and waits for the descriptor. */
static void test_no_helper(void **state)
{
	static burst b;
	uint32_t sent = 0;
	pair p;

	(void)state;
	order_open(&p, TERN_CTX_NO_HELPER);
	for (unsigned i = 0; i < 20; i++) {
		struct pollfd fd = {.fd = tern_ctx_fd(p.dial.ctx), .events = POLLIN};

		while (i % 2 && (tern_ctx_progress(p.dial.ctx) > 0 || tern_ctx_arm(p.dial.ctx) != TERN_OK))
			;
		post_burst(p.dial.ctx, p.dial.channel, &b, 0, sent);
		sent += BURST;
		while (atomic_load(&order.came) < (int)sent) {
			if (i % 2 == 0)
				tern_ctx_wait(p.dial.ctx, TN_NS_PER_MS);
			else if (poll(&fd, 1, 1) == 1)
				tern_ctx_progress(p.dial.ctx);
		}
	}
	assert_int_equal(atomic_load(&order.wrong), 0);
	pair_close(&p);
}

typedef struct sender {
	pair *p;
	uint32_t who;
	pthread_t thread;
	burst b;
} sender;

/* Each waits for its last one to be acknowledged, as one of many: another may drive. */
static void *send_some(void *arg)
{
	sender *s = arg;

	for (uint32_t i = 0; i < 20; i++) {
		tern_op op = {.flags = TERN_OP_REMOTE};
		uint32_t last[2] = {s->who, i * (BURST + 1) + BURST};

		post_burst(s->p->dial.ctx, s->p->dial.channel, &s->b, s->who, i * (BURST + 1));
		assert_ok(complete(s->p->dial.ctx, &op,
				   tern_send(s->p->dial.channel, last, sizeof(last), &op)));
		for (unsigned k = 0; k < BURST; k++)
			assert_ok(tern_op_wait(s->p->dial.ctx, &s->b.ops[k], PATIENCE));
	}
	return NULL;
}

static void test_many_threads(void **state)
{
	static sender senders[THREADS];
	pair p;

	(void)state;
	order_open(&p, 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		senders[i].p = &p;
		senders[i].who = i;
		pthread_create(&senders[i].thread, NULL, send_some, &senders[i]);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(senders[i].thread, NULL);
	assert_true(wait_for(p.serve.ctx, &order.came, THREADS * 20 * (BURST + 1)));
	assert_int_equal(atomic_load(&order.wrong), 0);
	pair_close(&p);
}

/* What callbacks send while more events wait: all echoes come, though nobody waits on the echoing side. */
static void test_from_callbacks(void **state)
{
	static uint8_t data[BURST][64];
	pair p;

	(void)state;
	pair_open(&p);
	p.serve.echo = true;
	for (int i = 0; i < 20; i++) {
		tern_op ops[BURST] = {0};

		for (unsigned k = 0; k < BURST; k++) {
			fill(data[k], sizeof(data[k]), k);
			assert_ok(submit(p.dial.ctx,
					 tern_send(p.dial.channel, data[k], sizeof(data[k]), &ops[k])));
		}
		for (unsigned k = 0; k < BURST; k++)
			assert_ok(tern_op_wait(p.dial.ctx, &ops[k], PATIENCE));
		assert_comes(&p.dial, messages, (i + 1) * BURST);
		assert_true(last_is(&p.dial, sizeof(data[0]), BURST - 1));
	}
	pair_close(&p);
}

/* The link goes while something is held back: operations complete, nothing is left behind. */
static void test_closed_with_some_held(void **state)
{
	static burst b;

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		pair p;

		order_open(&p, 0);
		post_burst(p.dial.ctx, p.dial.channel, &b, 0, 0);
		if (i % 2)
			tern_link_close(p.dial.link);
		pair_close(&p);
		for (unsigned k = 0; k < BURST; k++)
			assert_true(tern_op_test(&b.ops[k]) != TERN_AGAIN);
		assert_int_equal(atomic_load(&order.wrong), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_left_alone),
		cmocka_unit_test(test_no_helper),
		cmocka_unit_test(test_many_threads),
		cmocka_unit_test(test_from_callbacks),
		cmocka_unit_test(test_closed_with_some_held),
	};

	test_transport(argc, argv);
	transport = "tcp";
	return RUN(tests);
}

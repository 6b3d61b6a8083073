/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link has in use of memory: little while it idles, whatever the options allow; rows of ops, work requests and the
 * log only while it works; and what it says when there is no memory for more. The figures of src/link/README.md.
 */
#include "unit/link/record.h"

/* Bytes of a link that idles, without channels. Lower it when it gets less: docs/SCALE.md tells it. */
#define IDLE_BYTES_MAX 3520u

static const uint8_t text[100];

static void start(void)
{
	record_init();
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world.node[i].config;

		c->channels_max = c->ops_max = 4096;
		c->wrs_max = 1024;
		c->recover_ns = 10 * TN_NS_PER_SEC;
		c->redial_ns = TN_NS_PER_SEC;
	}
	pair_start(&world);
}

static void idle(uint64_t seconds)
{
	uint64_t until = world.now + seconds * TN_NS_PER_SEC;

	PAIR_UNTIL(&world, world.now > until, 1000000);
	assert_true(pair_both_up(&world));
}

static void assert_idle(size_t more)
{
	for (int i = 0; i < 2; i++) {
		print_message("an idle link has %zu bytes in use, of the store %zu\n",
			      tn_link_held_bytes(world.node[i].link), (size_t)world.store[i].lent);
		assert_in_range(tn_link_held_bytes(world.node[i].link), 1, IDLE_BYTES_MAX + more);
		/* Whole cache lines, and the configuration. */
		assert_in_range(world.store[i].lent, 1, IDLE_BYTES_MAX);
	}
}

static void idle_link(void **state)
{
	(void)state;
	start();
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
	/* Ten thousand keepalives: what is said again and again is not kept for ever. */
	idle(10000);
	assert_idle(0);
	pair_fini(&world);
}

/* With a channel: its row and its name. What it sent took rows and the log, which are given back. */
static void idle_channel(void **state)
{
	record_op op = {0};
	uint32_t channel;

	(void)state;
	start();
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
	channel = open_channel("service", NULL);
	for (int turn = 0; turn < 3; turn++) {
		idle(20);
		assert_idle(tn_link_channel_bytes() + TN_NAME_MAX + 8);
		assert_ok(send_at(0, channel, text, sizeof(text), TN_LINK_REMOTE, &op));
		assert_true(world.store[0].lent > 100000);
		pump(0);
		assert_true(PAIR_UNTIL(&world, op.done, 1000));
		assert_int_equal(op.status, TERN_OK);
		/* A completion that is long over names a row that is not there. */
		tn_link_on_wr_done(world.node[0].link, 1ull << 32, TERN_OK, world.now);
		tn_link_cancel(world.node[0].link, op.handle, world.now);
	}
	pair_fini(&world);
}

/* No memory for rows: who asks is told, nothing breaks, and when there is some it goes on. */
static void no_memory_to_work(void **state)
{
	record_op op = {0};
	uint32_t channel;

	(void)state;
	start();
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
	channel = open_channel("service", NULL);
	idle(20);
	world.memory_left = 0;
	assert_status(send_at(0, channel, text, sizeof(text), TN_LINK_REMOTE, &op), TERN_E_NOMEM);
	/* What the peer sends arrives; that it did cannot be said yet. */
	world.memory_left = 2; /* for the sender's log and rows */
	assert_ok(send_at(0, channel, text, sizeof(text), TN_LINK_REMOTE, &op));
	run();
	assert_int_equal(rec.side[1].messages, 1);
	assert_false(op.done);
	world.memory_left = -1;
	assert_true(PAIR_UNTIL(&world, op.done, 2000));
	assert_int_equal(op.status, TERN_OK);
	idle(20);
	assert_idle(tn_link_channel_bytes() + TN_NAME_MAX + 8);
	pair_fini(&world);
}

/* It ends at any block while links are born: they come up, or both end in words. */
static void no_memory_at_birth(void **state)
{
	uint32_t up = 0, down = 0;

	(void)state;
	for (int blocks = 0; blocks < 40; blocks++) {
		start();
		world.memory_left = blocks;
		PAIR_UNTIL(&world, pair_both_up(&world) || (world.node[0].down && world.node[1].down), 20000);
		if (pair_both_up(&world)) {
			up++;
		} else {
			assert_true(world.node[0].down && world.node[1].down);
			assert_true(world.node[0].status != TERN_OK || world.node[1].status != TERN_OK);
			down++;
		}
		world.memory_left = -1;
		pair_fini(&world);
	}
	assert_true(up > 0 && down > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(idle_link),
		cmocka_unit_test(idle_channel),
		cmocka_unit_test(no_memory_to_work),
		cmocka_unit_test(no_memory_at_birth),
	};

	return RUN(tests);
}

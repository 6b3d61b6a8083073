/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of units: a device that delivers one twice changes nothing, one that leaves some out costs a lane. Random
 * schedules of both: pair_test.c.
 */
#include "link/wire.h"
#include "unit/link/record.h"

static uint32_t channel, far;

static void set_up(uint64_t off)
{
	record_init();
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world.node[i].config;

		world.node[i].providers[0].caps &= ~(uint32_t)TN_LINK_CAP_REMOTE_DONE;
		c->recover_ns = 10 * TN_NS_PER_SEC;
		c->keepalive_ns = TN_NS_PER_MS;
		c->channels_max = 64;
		c->features_off = off;
	}
	record_start();
	channel = open_channel("c", &far);
}

static uint64_t count_of(int side, bool twice)
{
	const tn_link_counters *c = tn_link_get_counters(link_of(side));

	return tn_counter_read(twice ? &c->came_twice : &c->left_out);
}

static uint64_t recoveries(void)
{
	return tn_counter_read(&tn_link_get_counters(link_of(0))->recoveries);
}

static void twice(void **state)
{
	record_op ops[60];
	uint8_t word = 0;

	(void)state;
	set_up(0);
	world.twice = 100;
	for (unsigned i = 0; i < 60; i++) {
		word = (uint8_t)i;
		if (i % 3 == 2)
			assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, &word, 1, i, &ops[i]));
		else
			assert_ok(send_at(0, channel, &word, 1, TN_LINK_REMOTE, &ops[i]));
		run();
		assert_true(ops[i].done && ops[i].status == TERN_OK);
		tn_link_check(link_of(1), 2);
	}
	assert_int_equal(rec.side[1].messages, 40);
	assert_int_equal(rec.side[1].notifies, 20);
	assert_true(count_of(1, true) >= 60);
	assert_int_equal(count_of(1, false) + count_of(0, false) + recoveries(), 0);
	pair_fini(&world);
}

/* Units of a kind are left out, then one comes that tells, or nothing does. */
static void left_out(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		bool imm = how & 1, more = how & 2;
		uint8_t bytes[2] = {1, 2};
		record_op op, next = {.done = true};

		set_up(0);
		world.left_out = 100;
		if (imm)
			assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, bytes, 1, 7, &op));
		else
			assert_ok(send_at(0, channel, bytes, 1, TN_LINK_REMOTE, &op));
		run();
		assert_int_equal(op.done, imm); /* REMOTE: nobody said that it came */
		assert_int_equal(rec.side[1].rx_count, 0);
		world.left_out = 0;
		if (more)
			assert_ok(send_at(0, channel, bytes + 1, 1, TN_LINK_REMOTE, &next));
		assert_true(
			PAIR_UNTIL(&world, op.done && next.done && rec.side[1].rx_count == 1u + more, 50000));
		assert_int_equal(op.status, TERN_OK);
		assert_int_equal(rec.side[1].messages, !imm + more);
		assert_int_equal(rec.side[1].notifies, imm);
		assert_int_equal(count_of(1, false), 1);
		assert_int_equal(recoveries(), 1);
		pair_fini(&world);
	}
}

/* What has been at rest for long is said once, and found in order. */
static void at_rest(void **state)
{
	record_op op;

	(void)state;
	set_up(0);
	assert_ok(send_at(0, channel, "x", 1, TN_LINK_LOCAL, &op));
	run();
	for (int i = 0; i < 2000; i++)
		pair_step(&world);
	assert_int_equal(recoveries(), 0);
	assert_int_equal(tn_link_get_state(link_of(0)), TN_LINK_UP);
	pair_fini(&world);
}

/* Channels whose index does not fit beside a number are told by frames. */
static void many_channels(void **state)
{
	record_op op;

	(void)state;
	for (int old = 0; old < 2; old++) {
		const tn_link_counters *c;
		uint32_t last = 0;
		uint64_t before;

		set_up(old ? TN_FEATURE_NUMBERS : 0);
		for (int i = 0; i < 40; i++)
			last = open_channel("d", NULL);
		c = tn_link_get_counters(link_of(0));
		before = tn_counter_read(&c->imms_tx);
		assert_ok(xfer_at(0, last, TN_XFER_PUT_NOTIFY, &op, 8, 5, &op));
		run();
		assert_int_equal(rec.side[1].notifies, 1);
		assert_int_equal(tn_counter_read(&c->imms_tx) - before, old);
		assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, &op, 8, 5, &op));
		run();
		assert_int_equal(rec.side[1].notifies, 2);
		assert_int_equal(tn_counter_read(&c->imms_tx) - before, old + 1);
		pair_fini(&world);
	}
}

static void must_end(const char *words)
{
	if (tn_link_status(link_of(1)) != TERN_E_PROTOCOL || !strstr(tn_link_detail(link_of(1)), words))
		fail_msg("%s '%s' lacks '%s'", tern_status_name(tn_link_status(link_of(1))),
			 tn_link_detail(link_of(1)), words);
	pair_fini(&world);
}

static void say(uint32_t epoch, uint32_t lanes)
{
	tn_wire_resume sent = {.epoch = epoch, .lanes = lanes};
	uint8_t buf[128];
	tn_writer w;

	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_resume(&w, TN_CTRL_SENT, &sent);
	tn_link_on_ctrl_bytes(link_of(1), buf, w.at, world.now);
}

static void wrong_words(void **state)
{
	tn_frame_head head = {.type = TN_FRAME_SYNC, .epoch = 1, .number = 9};
	tn_link_rx rx;

	(void)state;
	set_up(0);
	say(1, 1);
	must_end("wrong number of lanes");
	set_up(0);
	say(5, 1);
	must_end("to come");
	set_up(0);
	say(1, 0);
	must_end("malformed");
	set_up(TN_FEATURE_NUMBERS);
	say(1, 1);
	must_end("without the feature");
	set_up(TN_FEATURE_NUMBERS);
	tn_link_on_frame(link_of(1), world.paths[TN_LINK_LANES_MAX].end[1].handle, &head, sizeof(head),
			 world.now, &rx);
	must_end("not zero");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(twice),         cmocka_unit_test(left_out),    cmocka_unit_test(at_rest),
		cmocka_unit_test(many_channels), cmocka_unit_test(wrong_words),
	};

	return RUN(tests);
}

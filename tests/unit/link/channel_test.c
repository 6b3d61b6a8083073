/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of a link, step by step: opening and refusing, limits, a slow receiver beside a quick one, closing
 * in order, and two sides that are both out of credit.
 */
#include "link/journal_rows.h"
#include "unit/link/record.h"

static uint8_t data[1 << 20];

static void opens_by_name(void **state)
{
	uint32_t a, b, far;
	record_op op;

	(void)state;
	record_init();
	record_start();
	assert_ok(tn_link_channel_open(link_of(0), "tern.rpc", NULL, 0, &a));
	/* Messages may be submitted before the answer. */
	assert_ok(send_at(0, a, "early", 5, TN_LINK_LOCAL, &op));
	assert_int_equal(rec.side[1].messages, 0);
	run();
	assert_string_equal(rec.side[1].service[0], "tern.rpc");
	assert_int_equal(rec.side[0].opened, 1);
	assert_int_equal(rec.side[1].messages, 1);
	assert_true(op.done && op.status == TERN_OK && op.length == 5);
	/* The acceptor answers on the same channel. */
	far = rec.side[1].incoming[0];
	assert_ok(send_at(1, far, "", 0, TN_LINK_REMOTE, &op));
	run();
	assert_int_equal(rec.side[0].messages, 1);
	assert_true(op.done && op.status == TERN_OK);
	assert_status(tn_link_channel_open(link_of(0), "", NULL, 0, &b), TERN_E_INVALID);
	pair_fini(&world);
}

/* Names stay out of the rows of channels: those that open together share one, and open channels hold none. */
static void names_while_opening(void **state)
{
	static const char *const services[] = {"one", "one", "two", "one", "two", "two"};
	uint32_t channels[6];

	(void)state;
	record_init();
	record_start();
	for (int i = 0; i < 6; i++)
		assert_ok(tn_link_channel_open(link_of(0), services[i], NULL, 0, &channels[i]));
	assert_int_equal(link_of(0)->name_high, 4); /* one, two, one, two: neighbours share */
	run();
	assert_int_equal(rec.side[1].incoming_count, 6);
	for (int i = 0; i < 6; i++)
		assert_string_equal(rec.side[1].service[i], services[i]);
	for (int side = 0; side < 2; side++) {
		for (uint32_t i = 0; i < link_of(side)->name_high; i++)
			assert_int_equal(link_of(side)->names[i].refs, 0);
	}
	for (int i = 0; i < 6; i++)
		tn_link_channel_close(link_of(0), channels[i], false);
	run();
	pair_fini(&world);
}

static void refused_in_words(void **state)
{
	uint32_t channel;
	record_op op;

	(void)state;
	record_init();
	rec.side[1].accept = false;
	record_start();
	assert_ok(tn_link_channel_open(link_of(0), "nobody", NULL, 0, &channel));
	assert_ok(send_at(0, channel, data, 100, TN_LINK_LOCAL, &op));
	run();
	assert_int_equal(rec.side[1].incoming_count, 1);
	assert_false(op.done);
	tn_link_channel_refuse(link_of(1), rec.side[1].incoming[0], TERN_E_NOT_FOUND,
			       "no service 'nobody' here");
	run();
	assert_int_equal(rec.side[0].closed_status, TERN_E_NOT_FOUND);
	assert_string_equal(rec.side[0].closed_detail, "no service 'nobody' here");
	assert_true(op.done && op.status == TERN_E_NOT_FOUND);
	assert_status(send_at(0, channel, data, 1, TN_LINK_LOCAL, &op), TERN_E_NOT_FOUND);
	tn_link_channel_close(link_of(0), channel, false);
	assert_status(send_at(0, channel, data, 1, TN_LINK_LOCAL, &op), TERN_E_STATE);
	pair_fini(&world);
}

static void too_large(void **state)
{
	uint32_t channel;
	record_op before, after, fits;

	(void)state;
	record_init();
	rec.side[1].accept = false;
	record_start();
	assert_ok(tn_link_channel_open(link_of(0), "small", NULL, 0, &channel));
	assert_ok(send_at(0, channel, data, 1001, TN_LINK_LOCAL, &before));
	assert_ok(send_at(0, channel, data, 1000, TN_LINK_LOCAL, &fits));
	run();
	assert_int_equal(tn_link_channel_message_max(link_of(0), channel), UINT64_MAX);
	assert_ok(tn_link_channel_accept(link_of(1), rec.side[1].incoming[0], NULL, 1000));
	run();
	assert_true(before.done && before.status == TERN_E_TOO_LARGE);
	assert_true(fits.done && fits.status == TERN_OK);
	assert_int_equal(tn_link_channel_message_max(link_of(0), channel), 1000);
	assert_status(send_at(0, channel, data, 1001, TN_LINK_LOCAL, &after), TERN_E_TOO_LARGE);
	assert_int_equal(rec.side[1].messages, 1);
	pair_fini(&world);
}

static void limits(void **state)
{
	uint32_t channel[20], far;

	(void)state;
	record_init();
	world.node[0].config.channels_max = 16;
	world.node[1].config.channels_max = 5;
	record_start();
	for (int i = 0; i < 5; i++)
		assert_ok(tn_link_channel_open(link_of(0), "x", NULL, 0, &channel[i]));
	assert_status(tn_link_channel_open(link_of(0), "x", NULL, 0, &channel[5]), TERN_E_LIMIT);
	run();
	assert_int_equal(rec.side[0].opened, 5);
	/* The peer has no row of its own left; nor one for a channel that came in. */
	assert_status(tn_link_channel_open(link_of(1), "y", NULL, 0, &far), TERN_E_LIMIT);
	tn_link_channel_close(link_of(0), channel[0], false);
	run();
	tn_link_channel_close(link_of(1), rec.side[1].incoming[0], false);
	run();
	/* Both try for the last row: one is told that there is none. */
	assert_ok(tn_link_channel_open(link_of(1), "y", NULL, 0, &far));
	assert_ok(tn_link_channel_open(link_of(0), "x", NULL, 0, &channel[6]));
	run();
	assert_int_equal(rec.side[0].closed_status, TERN_E_LIMIT);
	assert_int_equal(rec.side[1].opened, 1);
	pair_fini(&world);
}

/* A row is used again and again; handles of earlier lives mean nothing. */
static void reuse(void **state)
{
	uint32_t last = 0;
	record_op op;

	(void)state;
	record_init();
	world.node[0].config.channels_max = world.node[1].config.channels_max = 2;
	record_start();
	for (int i = 0; i < 200; i++) {
		uint32_t far, channel;

		rec.side[1].incoming_count = 0;
		channel = open_channel("again", &far);
		assert_int_not_equal(channel, last);
		if (last) {
			assert_status(send_at(0, last, data, 1, TN_LINK_LOCAL, &op), TERN_E_STATE);
			tn_link_channel_close(link_of(0), last, false);
		}
		assert_ok(send_at(0, channel, data, 10, TN_LINK_LOCAL, &op));
		tn_link_channel_close(link_of(0), channel, true);
		run();
		assert_true(op.done && op.status == TERN_OK);
		assert_int_equal(rec.side[1].messages, i + 1);
		assert_int_equal(rec.side[1].closed, i + 1);
		assert_int_equal(rec.side[1].closed_status, TERN_E_PEER_CLOSED);
		tn_link_channel_close(link_of(1), far, false);
		run();
		last = channel;
	}
	pair_fini(&world);
}

/* ---- a slow receiver ---- */

static void slow_receiver(void **state)
{
	uint32_t slow, quick, slow_far, quick_far;
	record_op ops[100], op;
	uint64_t window = 64 << 10, before;

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].config.channel_window_bytes = window;
	record_start();
	slow = open_channel("slow", &slow_far);
	quick = open_channel("quick", &quick_far);
	tn_link_channel_pause(link_of(1), slow_far);
	for (int i = 0; i < 100; i++)
		assert_ok(send_at(0, slow, data, 5000, TN_LINK_LOCAL, &ops[i]));
	run();
	/* What it was granted, no more. */
	assert_true(rec.side[1].rx_bytes <= window);
	assert_true(rec.side[1].rx_bytes > window / 4);
	assert_false(ops[99].done);
	/* The other channel does not notice, nor do transfers of the slow one. */
	before = rec.side[1].messages;
	for (int i = 0; i < 50; i++) {
		assert_ok(send_at(0, quick, data, 20000, TN_LINK_REMOTE, &op));
		run();
		assert_true(op.done && op.status == TERN_OK);
	}
	assert_int_equal(rec.side[1].messages, before + 50);
	assert_ok(xfer_at(0, slow, TN_XFER_PUT_NOTIFY, data, 100000, 3, &op));
	run();
	assert_true(op.done && op.status == TERN_OK);
	assert_int_equal(rec.side[1].notifies, 1);
	/* On it goes. */
	tn_link_channel_resume(link_of(1), slow_far);
	run();
	for (int i = 0; i < 100; i++)
		assert_true(ops[i].done && ops[i].status == TERN_OK);
	assert_int_equal(rec.side[1].messages, 150);
	pair_fini(&world);
}

/* One channel does not take all the rows for ops. */
static void op_rows_are_shared(void **state)
{
	uint32_t a, b, far;
	record_op ops[64], op;
	int taken = 0;

	(void)state;
	record_init();
	world.node[0].config.ops_max = 20;
	world.node[0].config.channel_ops_max = 12;
	world.node[1].config.channel_window_bytes = 2048;
	record_start();
	a = open_channel("a", &far);
	b = open_channel("b", NULL);
	tn_link_channel_pause(link_of(1), far);
	while (taken < 64 && send_at(0, a, data, 4000, TN_LINK_LOCAL, &ops[taken]) == TERN_OK)
		taken++;
	assert_int_equal(taken, 12);
	assert_status(send_at(0, a, data, 4000, TN_LINK_LOCAL, &op), TERN_AGAIN);
	assert_ok(send_at(0, b, data, 4000, TN_LINK_LOCAL, &op));
	run();
	assert_true(op.done);
	tn_link_channel_close(link_of(0), a, false);
	run();
	for (int i = 0; i < taken; i++)
		assert_true(ops[i].done);
	pair_fini(&world);
}

/* ---- closing ---- */

static void close_flushes(void **state)
{
	uint32_t channel, far;
	record_op sent, ops[10];

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].config.channel_window_bytes = 16384;
	record_start();
	channel = open_channel("c", &far);
	assert_ok(send_at(0, channel, data, 100, TN_LINK_LOCAL, &sent));
	run();
	tn_link_channel_pause(link_of(1), far);
	for (int i = 0; i < 10; i++)
		assert_ok(send_at(0, channel, data, 9000, TN_LINK_LOCAL, &ops[i]));
	run();
	tn_link_channel_close(link_of(0), channel, false);
	run();
	assert_true(sent.status == TERN_OK);
	assert_true(ops[9].done && ops[9].status == TERN_E_FLUSHED);
	/* The peer saw what was sent, the end of a begun message, then the close, once. */
	assert_int_equal(rec.side[1].aborts, 1);
	assert_int_equal(rec.side[1].closed, 1);
	assert_int_equal(rec.side[1].closed_status, TERN_E_PEER_CLOSED);
	assert_int_equal(rec.side[0].closed, 0);
	pair_fini(&world);
}

static void close_drains(void **state)
{
	uint32_t channel;
	record_op ops[50];

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].config.channel_window_bytes = 16384;
	record_start();
	channel = open_channel("c", NULL);
	for (int i = 0; i < 50; i++)
		assert_ok(send_at(0, channel, data, 9000, i % 2 ? TN_LINK_LOCAL : TN_LINK_REMOTE, &ops[i]));
	tn_link_channel_close(link_of(0), channel, true);
	assert_false(ops[49].done);
	run();
	for (int i = 0; i < 50; i++)
		assert_true(ops[i].done && ops[i].status == TERN_OK);
	assert_int_equal(rec.side[1].messages, 50);
	assert_int_equal(rec.side[1].closed, 1);
	pair_fini(&world);
}

/* Ops of the side that did not close end in PEER_CLOSED. */
static void peer_closes(void **state)
{
	uint32_t channel, far;
	record_op op;

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++)
		world.node[i].config.channel_window_bytes = 4096;
	record_start();
	channel = open_channel("c", &far);
	tn_link_channel_pause(link_of(1), far);
	assert_ok(send_at(0, channel, data, 20000, TN_LINK_LOCAL, &op));
	run();
	assert_false(op.done);
	tn_link_channel_close(link_of(1), far, false);
	run();
	assert_true(op.done && op.status == TERN_E_PEER_CLOSED);
	assert_int_equal(rec.side[0].closed, 1);
	assert_status(send_at(0, channel, data, 1, TN_LINK_LOCAL, &op), TERN_E_PEER_CLOSED);
	tn_link_channel_close(link_of(0), channel, false);
	run();
	pair_fini(&world);
}

/* ---- credits ---- */

/* Each side has more to say than credits, and hears nothing before it has spent them. */
static void no_credit_on_both_sides(void **state)
{
	uint32_t channel;

	(void)state;
	record_init();
	for (int i = 0; i < 2; i++) {
		world.node[i].config.channels_max = 64;
		world.node[i].config.data_lanes = 0;
	}
	record_start();
	for (int i = 0; i < 30; i++)
		for (int s = 0; s < 2; s++)
			assert_ok(tn_link_channel_open(link_of(s), "many", NULL, 0, &channel));
	/* All that credits allow leaves both sides before anything arrives. */
	pump(0);
	pump(1);
	run();
	for (int s = 0; s < 2; s++) {
		assert_int_equal(rec.side[s].opened, 30);
		assert_int_equal(rec.side[s].incoming_count, 30);
	}
	pair_fini(&world);
}

/* A log in which nothing is open begins where it did, if it has left that page; what is open stays, and numbers only grow. */
static void log_begins_anew(void **state)
{
	tn_link *link = calloc(1, sizeof(*link));
	tn_lk_note *rows = calloc(1024, sizeof(*rows));
	tn_lk_journal *log = &link->journal[0];

	(void)state;
	*log = (tn_lk_journal){.rows = rows, .mask = 1023, .head = 90, .next = 100, .tail = 100};
	link->ring_head = 10;
	link->ring_tail = 5000;
	rows[95].at = 700;
	tn_lk_journal_begins(link, log, 95);
	assert_int_equal(log->head, 95);
	assert_int_equal(log->tail, 100);
	assert_int_equal(link->ring_head, 700);
	tn_lk_journal_begins(link, log, 100);
	assert_int_equal(log->head, 1024);
	assert_int_equal(log->next, 1024);
	assert_int_equal(log->tail, 1024);
	assert_int_equal(link->ring_tail, 0);
	log->next = log->tail = 1030;
	tn_lk_journal_begins(link, log, 1030); /* in its first page it goes on: numbers are not wasted */
	assert_int_equal(log->tail, 1030);
	log->head = log->next = log->tail = UINT32_MAX - 3;
	tn_lk_journal_begins(link, log, log->tail);
	assert_int_equal(log->tail, 0);
	free(rows);
	free(link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opens_by_name),    cmocka_unit_test(names_while_opening),
		cmocka_unit_test(refused_in_words), cmocka_unit_test(too_large),
		cmocka_unit_test(limits),           cmocka_unit_test(reuse),
		cmocka_unit_test(slow_receiver),    cmocka_unit_test(op_rows_are_shared),
		cmocka_unit_test(close_flushes),    cmocka_unit_test(close_drains),
		cmocka_unit_test(peer_closes),      cmocka_unit_test(no_credit_on_both_sides),
		cmocka_unit_test(log_begins_anew),
	};

	return RUN(tests);
}

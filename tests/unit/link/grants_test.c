/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk that the receiver grants: the arbiter by itself, with hundreds of links and in many threads; links that share
 * one; what a peer may not say.
 */
#include <pthread.h>
#include <semaphore.h>

#include "link/wire.h"
#include "unit/link/record.h"
#include "unit/link/shared.h"

#define KIB 1024u
#define MIB (1u << 20)

static uint8_t memory[4 * MIB];

static uint64_t counter(const tn_link *link, size_t offset)
{
	return tn_counter_read((const tn_counter *)((const char *)tn_link_get_counters(link) + offset));
}
#define COUNTER(link, name) counter(link, offsetof(tn_link_counters, name))

/* ---- the arbiter ---- */

#define SEATS 256

static tn_arbiter_seat seats[SEATS];
static tn_link_arbiter arbiter;

static void join_all(uint32_t n, uint64_t capacity, uint64_t unit)
{
	memset(seats, 0, sizeof(seats));
	tn_link_arbiter_init(&arbiter, capacity, unit, NULL);
	for (uint32_t i = 0; i < n; i++) {
		tn_arbiter_join(&arbiter, &seats[i]);
		tn_link_arbiter_check(&arbiter);
	}
}

static uint64_t share_now(tn_arbiter_seat *seat)
{
	uint64_t share, granted;

	tn_arbiter_read(&arbiter, seat, &share, &granted);
	return share;
}

static void shares(void **state)
{
	static const uint64_t want[] = {TN_SHARE_UNBOUNDED, 128 * KIB, 64 * KIB, 64 * KIB, 0, 0};

	(void)state;
	for (uint32_t n = 1; n <= 6; n++) {
		join_all(n, 512 * KIB, 64 * KIB);
		for (uint32_t i = 0; i < n; i++) {
			assert_true(seats[i].news);
			assert_int_equal(share_now(&seats[i]), want[n - 1]);
			assert_false(seats[i].news);
		}
	}
	/* They leave: the last one is alone again, and hears of it. */
	for (uint32_t i = 5; i > 0; i--)
		tn_arbiter_leave(&arbiter, &seats[i]);
	assert_true(seats[0].news);
	assert_int_equal(share_now(&seats[0]), TN_SHARE_UNBOUNDED);
	tn_arbiter_leave(&arbiter, &seats[0]);
	tn_link_arbiter_check(&arbiter);
}

/*
 * 256 senders of 4 MiB each: what is granted completes in the order in which it was granted. Never more than the capacity is
 * out, never less than the capacity while that much is wanted, several links at a time, equal bytes for all.
 */
static void many_to_one(void **state)
{
	const uint64_t unit = 64 * KIB, capacity = 512 * KIB, each = 4 * MIB;
	uint64_t done[SEATS] = {0}, left = SEATS * each;
	uint32_t next = 0;

	(void)state;
	join_all(SEATS, capacity, unit);
	for (uint32_t i = 0; i < SEATS; i++)
		assert_true(tn_arbiter_demand(&arbiter, &seats[i], each, 0));
	while (left > 0) {
		uint64_t most = 0, least = UINT64_MAX;
		uint32_t at_once = 0;

		assert_true(arbiter.out <= capacity);
		assert_true(arbiter.out == TN_MIN(capacity, left) || left < 8 * capacity);
		/* The first one was alone for a moment, and had all. */
		for (uint32_t i = 0; i < SEATS; i++) {
			at_once += seats[i].granted > seats[i].done;
			if (i == 0)
				continue;
			assert_true(seats[i].granted - seats[i].done <= 2 * unit);
			most = TN_MAX(most, seats[i].granted);
			least = TN_MIN(least, seats[i].granted);
		}
		assert_true(at_once >= 4 || seats[0].granted <= capacity || left <= 2 * capacity);
		assert_true(most - least <= 2 * unit);
		while (seats[next].granted == done[next])
			next = (next + 1) % SEATS;
		done[next] += unit;
		left -= unit;
		assert_true(tn_arbiter_demand(&arbiter, &seats[next], each, done[next]));
		next = (next + 1) % SEATS;
		if (left % (64 * unit) == 0)
			tn_link_arbiter_check(&arbiter);
	}
	assert_int_equal(arbiter.out, 0);
	assert_int_equal(arbiter.active, 0);
}

/* One that asks alone has all there is; a second one gets its part as that comes back. */
static void alone_among_many(void **state)
{
	uint64_t done = 0;

	(void)state;
	join_all(8, 512 * KIB, 64 * KIB);
	assert_true(tn_arbiter_demand(&arbiter, &seats[3], 100 * MIB, 0));
	assert_int_equal(seats[3].granted, 512 * KIB);
	assert_true(tn_arbiter_demand(&arbiter, &seats[4], MIB, 0));
	assert_int_equal(seats[4].granted, 0);
	for (int i = 0; i < 6; i++) {
		done += 64 * KIB;
		assert_true(tn_arbiter_demand(&arbiter, &seats[3], 100 * MIB, done));
	}
	assert_int_equal(seats[4].granted, 128 * KIB);
	/* It goes, with all that it had: nothing is lost. */
	tn_arbiter_leave(&arbiter, &seats[3]);
	tn_link_arbiter_check(&arbiter);
	assert_int_equal(arbiter.out, seats[4].granted);
	assert_true(tn_arbiter_demand(&arbiter, &seats[4], MIB, 64 * KIB));
	assert_int_equal(seats[4].granted - seats[4].done, 512 * KIB);
	/* What no peer may say. */
	assert_false(tn_arbiter_demand(&arbiter, &seats[4], MIB - 1, 64 * KIB));
	assert_false(tn_arbiter_demand(&arbiter, &seats[4], MIB, 63 * KIB));
	assert_false(tn_arbiter_demand(&arbiter, &seats[4], MIB, seats[4].granted + 1));
	tn_link_arbiter_check(&arbiter);
}

/* ---- in many threads ---- */

#define THREADS 4
#define ROUNDS  2000

/* A link that asks, uses what it gets, and sleeps until there is news; now and then it goes and comes again. */
static void *one_link(void *arg)
{
	tn_arbiter_seat *seat = arg;
	sem_t sem;

	sem_init(&sem, 0, 0);
	seat->wake = wake_up;
	seat->arg = &sem;
	for (int life = 0; life < 5; life++) {
		uint64_t done = 0, share, granted, wanted = ROUNDS / 5 * TN_GRANT_UNIT_MIN;

		tn_arbiter_join(&arbiter, seat);
		tn_arbiter_demand(&arbiter, seat, wanted, 0);
		while (done < wanted) {
			tn_arbiter_read(&arbiter, seat, &share, &granted);
			if (granted == done) {
				sem_wait(&sem);
				continue;
			}
			done += TN_MIN(granted - done, TN_GRANT_UNIT_MIN);
			tn_arbiter_demand(&arbiter, seat, wanted, done);
		}
		tn_arbiter_leave(&arbiter, seat);
	}
	sem_destroy(&sem);
	return NULL;
}

static void in_many_threads(void **state)
{
	tn_share_lock lock = {lock_take, lock_drop, &mutex};
	pthread_t threads[THREADS];

	(void)state;
	memset(seats, 0, sizeof(seats));
	tn_link_arbiter_init(&arbiter, 3 * TN_GRANT_UNIT_MIN, TN_GRANT_UNIT_MIN, &lock);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, one_link, &seats[i]), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	tn_link_arbiter_check(&arbiter);
	assert_int_equal(arbiter.up, 0);
	assert_int_equal(arbiter.out, 0);
	assert_int_equal(arbiter.granted, (uint64_t)THREADS * (ROUNDS / 5 * 5) * TN_GRANT_UNIT_MIN);
}

/* ---- links ---- */

static tern_status no_access(pair_world *w, int side, const tn_link_post *post)
{
	(void)w;
	(void)side;
	(void)post;
	return TERN_OK;
}

/* Side 1 grants; `more` other links of its device are up and say nothing. */
static void begin(uint64_t capacity, uint64_t unit, uint32_t more)
{
	memset(seats, 0, sizeof(seats));
	tn_link_arbiter_init(&arbiter, capacity, unit, NULL);
	record_init();
	world.on_access = no_access;
	world.check_level = 1;
	for (uint32_t i = 0; i < more; i++)
		tn_arbiter_join(&arbiter, &seats[i]);
	world.node[1].providers[0].arbiter = &arbiter;
}

/* One link alone pays nothing: it hears once that it may send. */
static void alone_is_free(void **state)
{
	record_op ops[4];
	uint32_t channel;

	(void)state;
	begin(512 * KIB, 64 * KIB, 0);
	record_start();
	channel = open_channel("c", NULL);
	for (int i = 0; i < 4; i++)
		assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, memory, 4 * MIB, 1, &ops[i]));
	pump(0);
	assert_int_equal(tn_link_in_flight(link_of(0)), 8 * MIB);
	run();
	assert_true(ops[3].done && ops[3].status == TERN_OK);
	assert_int_equal(COUNTER(link_of(1), grant_frames), 1);
	assert_int_equal(COUNTER(link_of(0), demand_frames), 0);
	pair_fini(&world);
}

/* Within its share it does not ask either. */
static void share_needs_no_words(void **state)
{
	record_op op;
	uint32_t channel;

	(void)state;
	begin(512 * KIB, 64 * KIB, 1);
	record_start();
	channel = open_channel("c", NULL);
	run();
	for (int i = 0; i < 30; i++) {
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory, 128 * KIB, 0, &op));
		pump(0);
		assert_int_equal(tn_link_in_flight(link_of(0)), 128 * KIB);
		run();
		assert_true(op.done);
	}
	assert_int_equal(COUNTER(link_of(0), demand_frames), 0);
	pair_fini(&world);
}

/* Beyond it, what is in flight is what was granted; gets and what is small wait for nothing. */
static void asks_for_more(void **state)
{
	record_op ops[6], small, get;
	uint32_t channel, other;

	(void)state;
	begin(512 * KIB, 64 * KIB, 7);
	record_start();
	channel = open_channel("c", NULL);
	other = open_channel("d", NULL);
	run();
	for (int i = 0; i < 6; i++)
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory, MIB, 0, &ops[i]));
	pump(0);
	assert_int_equal(tn_link_in_flight(link_of(0)), 0);
	assert_ok(xfer_at(0, other, TN_XFER_PUT, memory, 4096, 0, &small));
	assert_ok(xfer_at(0, other, TN_XFER_GET, memory, 200 * KIB, 0, &get));
	world.frozen = true;
	while (!ops[5].done) {
		tn_link_arbiter_check(&arbiter);
		assert_true(arbiter.out <= 512 * KIB);
		assert_true(tn_link_in_flight(link_of(0)) <= arbiter.out + 200 * KIB);
		assert_true(pair_step(&world));
	}
	assert_true(small.done && get.done);
	run();
	assert_int_equal(arbiter.out, 0);
	assert_int_equal(arbiter.granted, 6 * MIB);
	/* Words for it: one each way for a unit at most. */
	assert_true(COUNTER(link_of(0), demand_frames) <= 6 * MIB / (64 * KIB) + 8);
	pair_fini(&world);
}

/* Who no longer wants it gives it back. */
static void given_back(void **state)
{
	record_op op;
	uint32_t channel;

	(void)state;
	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.window_bytes = 256 * KIB; /* so that not all that is granted is used at once */
	record_start();
	channel = open_channel("c", NULL);
	run();
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory, 4 * MIB, 0, &op));
	pump(0);
	world.frozen = true;
	while (arbiter.out == 0)
		assert_true(pair_step(&world));
	assert_ok(tn_link_cancel(link_of(0), op.handle, world.now));
	run();
	assert_true(op.done && op.status == TERN_E_CANCELED);
	tn_link_arbiter_check(&arbiter);
	assert_int_equal(arbiter.out, 0);
	assert_int_equal(arbiter.active, 0);
	assert_true(COUNTER(link_of(0), grant_bytes_back) > 0);
	pair_fini(&world);
}

/* Lanes that break take what was granted with them; on the new ones all totals begin anew. */
static void anew_after_a_break(void **state)
{
	record_op ops[3];
	uint32_t channel;

	(void)state;
	begin(256 * KIB, 64 * KIB, 7);
	record_start();
	channel = open_channel("c", NULL);
	run();
	for (int i = 0; i < 3; i++)
		assert_ok(xfer_at(0, channel, TN_XFER_PUT_NOTIFY, memory, 4 * MIB, 1, &ops[i]));
	pump(0);
	world.frozen = true;
	while (tn_link_in_flight(link_of(0)) == 0)
		assert_true(pair_step(&world));
	for (uint32_t i = 0; i < world.path_count; i++)
		if (world.paths[i].used)
			pair_break(&world, &world.paths[i]);
	world.frozen = false;
	assert_true(PAIR_UNTIL(&world, ops[2].done, 100000));
	run();
	assert_int_equal(ops[2].status, TERN_OK);
	assert_int_equal(COUNTER(link_of(0), recoveries), 1);
	tn_link_arbiter_check(&arbiter);
	assert_int_equal(arbiter.up, 8);
	assert_int_equal(arbiter.out, 0);
	/* Its end gives its seat back. */
	tn_link_close(link_of(0), world.now);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	assert_int_equal(arbiter.up, 7);
	pair_fini(&world);
}

/* A peer that does not know of grants, on either side, sends as before. */
static void older_peer(void **state)
{
	(void)state;
	for (int old = 0; old < 2; old++) {
		record_op op;
		uint32_t channel;

		begin(512 * KIB, 64 * KIB, 7);
		world.node[old].config.features_off = TN_FEATURE_GRANTS;
		record_start();
		channel = open_channel("c", NULL);
		assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory, 4 * MIB, 0, &op));
		pump(0);
		assert_int_equal(tn_link_in_flight(link_of(0)), 4 * MIB);
		run();
		assert_true(op.done && op.status == TERN_OK);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(COUNTER(link_of(i), grant_frames), 0);
			assert_int_equal(COUNTER(link_of(i), demand_frames), 0);
		}
		pair_fini(&world);
	}
}

/* ---- two links and one device ---- */

static pair_world others[2];

static void channel_at(pair_world *w, uint32_t *channel)
{
	tn_link *link = w->node[0].link;

	assert_true(PAIR_UNTIL(w, pair_both_up(w), 5000));
	assert_ok(tn_link_channel_open(link, "c", NULL, 0, channel));
}

static void accept_all(pair_world *w, int side, const tn_link_action *act)
{
	if (act->type == TN_ACT_CHANNEL_INCOMING)
		assert_ok(tn_link_channel_accept(w->node[side].link, act->channel.channel, NULL, 0));
	else if (act->type == TN_ACT_OP_DONE)
		*(bool *)act->done.user = act->done.status == TERN_OK;
}

static void step_both(void)
{
	for (int i = 0; i < 2; i++) {
		others[i].frozen = true;
		pair_step(&others[i]);
	}
}

/* Both senders at once: what is on its way to the receiver's device is never more than its capacity. */
static void two_senders(void **state)
{
	uint8_t key[TN_LINK_KEY_BYTES] = {0};
	tn_link_xfer xfer = {.type = TN_XFER_PUT, .local = memory, .bytes = 4 * MIB, .key = key};
	bool done[2][4] = {0};
	uint32_t channel[2];
	uint64_t handle, most = 0;

	(void)state;
	memset(seats, 0, sizeof(seats));
	tn_link_arbiter_init(&arbiter, 512 * KIB, 64 * KIB, NULL);
	for (int i = 0; i < 2; i++) {
		pair_init(&others[i], 11 + (uint64_t)i);
		others[i].on_action = accept_all;
		others[i].check_level = 1;
		others[i].node[1].providers[0].arbiter = &arbiter;
		pair_start(&others[i]);
		channel_at(&others[i], &channel[i]);
	}
	for (int i = 0; i < 5000; i++)
		step_both();
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 4; k++) {
			tn_link_op_params params = {.user = &done[i][k], .deadline_ns = UINT64_MAX};

			assert_ok(tn_link_transfer(others[i].node[0].link, channel[i], &xfer, &params,
						   &handle));
		}
	for (int i = 0; i < 2; i++)
		pair_pump(&others[i], 0);
	for (int i = 0; i < 200000 && !(done[0][3] && done[1][3]); i++) {
		uint64_t sum =
			tn_link_in_flight(others[0].node[0].link) + tn_link_in_flight(others[1].node[0].link);

		most = TN_MAX(most, sum);
		step_both();
	}
	assert_true(done[0][3] && done[1][3]);
	assert_true(most > 256 * KIB && most <= 512 * KIB);
	tn_link_arbiter_check(&arbiter);
	for (int i = 0; i < 2; i++)
		pair_fini(&others[i]);
}

/* ---- what a peer may not say ---- */

static void must_end_at(int side, const char *words)
{
	const tn_link *link = link_of(side);

	if (tn_link_status(link) != TERN_E_PROTOCOL || !strstr(tn_link_detail(link), words))
		fail_msg("%s '%s' lacks '%s'", tern_status_name(tn_link_status(link)), tn_link_detail(link),
			 words);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	pair_fini(&world);
}

static void inject(int side, const void *frame, uint64_t bytes)
{
	tn_link_rx rx;

	tn_link_on_frame(link_of(side), world.paths[TN_LINK_LANES_MAX].end[side].handle, frame, bytes,
			 world.now, &rx);
}

static void wrong_words(void **state)
{
	tn_frame_grant grant = {.head = {.type = TN_FRAME_GRANT, .epoch = 1}, .total = 1, .unit = 64 * KIB};
	tn_frame_demand demand = {.head = {.type = TN_FRAME_DEMAND, .epoch = 1}};

	(void)state;
	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.features_off = TN_FEATURE_NUMBERS;
	record_start();
	run();
	inject(0, &grant, sizeof(grant));
	must_end_at(0, "more than was wanted");

	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.features_off = TN_FEATURE_NUMBERS;
	record_start();
	run();
	inject(1, &grant, sizeof(grant));
	must_end_at(1, "nobody waits for");

	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.features_off = TN_FEATURE_NUMBERS;
	record_start();
	run();
	inject(0, &demand, sizeof(demand));
	must_end_at(0, "not granted");

	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.features_off = TN_FEATURE_NUMBERS;
	record_start();
	run();
	demand.wanted = 1000;
	demand.done = 1;
	inject(1, &demand, sizeof(demand));
	must_end_at(1, "more is done than was granted");

	begin(512 * KIB, 64 * KIB, 7);
	world.node[0].config.features_off = TN_FEATURE_NUMBERS;
	record_start();
	run();
	demand.done = 0;
	inject(1, &demand, sizeof(demand));
	demand.wanted = 999;
	inject(1, &demand, sizeof(demand));
	must_end_at(1, "falls");
	assert_int_equal(arbiter.up, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shares),
		cmocka_unit_test(many_to_one),
		cmocka_unit_test(alone_among_many),
		cmocka_unit_test(in_many_threads),
		cmocka_unit_test(alone_is_free),
		cmocka_unit_test(share_needs_no_words),
		cmocka_unit_test(asks_for_more),
		cmocka_unit_test(given_back),
		cmocka_unit_test(anew_after_a_break),
		cmocka_unit_test(older_peer),
		cmocka_unit_test(two_senders),
		cmocka_unit_test(wrong_words),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk in flight: the window, fixed and adaptive over a pipe of a given rate, and the budget that links of a device
 * share, in one thread and in many.
 */
#include <pthread.h>
#include <semaphore.h>

#include "unit/link/record.h"
#include "unit/link/shared.h"

#define MIB (1u << 20)

static uint8_t memory[4 * MIB];

static tern_status no_access(pair_world *w, int side, const tn_link_post *post)
{
	(void)w;
	(void)side;
	(void)post;
	return TERN_OK;
}

static uint64_t counter(int side, size_t offset)
{
	return tn_counter_read(
		(const tn_counter *)((const char *)tn_link_get_counters(link_of(side)) + offset));
}
#define COUNTER(side, name) counter(side, offsetof(tn_link_counters, name))

static void begin(void)
{
	record_init();
	world.on_access = no_access;
	world.check_level = 1;
}

/* ---- fixed ---- */

/* A piece is never more than a part of the window, so the window is never exceeded. */
static void never_exceeded(void **state)
{
	static const uint64_t windows[] = {64 << 10, 100000, 1 << 20, 8 << 20};
	record_op ops[6];
	uint32_t channel;

	(void)state;
	for (unsigned w = 0; w < TN_COUNT_OF(windows); w++) {
		begin();
		world.node[0].config.window_bytes = windows[w];
		record_start();
		channel = open_channel("c", NULL);
		for (unsigned i = 0; i < 6; i++)
			assert_ok(xfer_at(0, channel, i % 2 ? TN_XFER_GET : TN_XFER_PUT, memory, 4 * MIB, 0,
					  &ops[i]));
		pump(0);
		assert_true(tn_link_in_flight(link_of(0)) > windows[w] / 2);
		while (!ops[5].done) {
			assert_true(tn_link_in_flight(link_of(0)) <= windows[w]);
			world.frozen = true;
			assert_true(pair_step(&world));
		}
		assert_int_equal(tn_link_in_flight(link_of(0)), 0);
		pair_fini(&world);
	}
}

/* ---- adaptive ---- */

static record_op stream[16];
static uint32_t stream_channel;

static void keep_busy(void)
{
	for (unsigned i = 0; i < TN_COUNT_OF(stream); i++) {
		if (stream[i].handle && !stream[i].done)
			continue;
		assert_ok(xfer_at(0, stream_channel, TN_XFER_PUT, memory, 4 * MIB, 0, &stream[i]));
	}
	pump(0);
}

/* A pipe that moves that many bytes a microsecond, one piece after the other, for a while. Returns the largest delay. */
static void run_pipe(uint64_t rate, uint64_t bytes)
{
	while (bytes > 0) {
		pair_end *end = NULL;
		uint64_t n;

		for (uint32_t i = 0; i < world.path_count && !end; i++)
			if (world.paths[i].used && world.paths[i].end[0].queue_count > 0)
				end = &world.paths[i].end[0];
		assert_non_null(end);
		n = end->queue[0].post.bytes;
		world.now += n * 1000 / rate;
		pair_step_effect(&world, end);
		pair_step_done(&world, end);
		bytes -= TN_MIN(bytes, n);
		keep_busy();
	}
}

/* What is in flight is what the pipe moves in the target's time, at any rate; within the bounds. */
static void follows_the_pipe(void **state)
{
	static const uint64_t rates[] = {10000, 1000, 4000, 100, 10000}; /* bytes in a microsecond */

	(void)state;
	begin();
	world.node[0].config.window_adaptive = true;
	world.node[0].config.window_target_ns = 500 * TN_NS_PER_US;
	world.node[0].config.data_lanes = 1;
	world.node[0].config.chunk_bytes = 256 << 10;
	record_start();
	memset(stream, 0, sizeof(stream));
	stream_channel = open_channel("c", NULL);
	keep_busy();
	/* It begins with little, and until the first cut it has twice as much after each window. */
	assert_int_equal(tn_link_in_flight(link_of(0)), 64 << 10);
	run_pipe(rates[0], 12 * MIB);
	assert_true(tn_link_in_flight(link_of(0)) > 3 * MIB && COUNTER(0, window_grows) <= 7);
	for (unsigned i = 0; i < TN_COUNT_OF(rates); i++) {
		uint64_t want = rates[i] * 500, got;

		run_pipe(rates[i], 400 * MIB);
		got = tn_link_in_flight(link_of(0));
		want = TN_MAX(want, 64 << 10);
		if (got > want + want / 2 || got < want / 3)
			fail_msg("rate %llu: %llu in flight, wanted about %llu", (unsigned long long)rates[i],
				 (unsigned long long)got, (unsigned long long)want);
	}
	assert_true(COUNTER(0, window_cuts) > 4 && COUNTER(0, window_grows) > 20);
	pair_fini(&world);
}

/* However late a window of wrs comes back, it is one cut; and an idle link does not grow. */
static void one_cut_for_a_window(void **state)
{
	record_op op;

	(void)state;
	begin();
	world.node[0].config.window_adaptive = true;
	world.node[0].config.window_min_bytes = 4 * MIB;
	world.node[0].config.data_lanes = 1;
	record_start();
	stream_channel = open_channel("c", NULL);
	assert_ok(xfer_at(0, stream_channel, TN_XFER_PUT, memory, 4 * MIB, 0, &op));
	pump(0);
	world.now += TN_NS_PER_SEC;
	run();
	assert_true(op.done);
	assert_int_equal(COUNTER(0, window_cuts), 1);
	for (int i = 0; i < 50; i++) {
		assert_ok(xfer_at(0, stream_channel, TN_XFER_PUT, memory, MIB, 0, &op));
		run();
		assert_true(op.done);
	}
	assert_int_equal(COUNTER(0, window_grows), 0);
	pair_fini(&world);
}

/* ---- the budget ---- */

/* The two sides of the pair as two links of one device. */
static void shared_by_links(void **state)
{
	record_op ops[2][3];
	uint32_t near, far;
	bool waited = false;

	(void)state;
	begin();
	tn_link_budget_init(&world.budget, 2 * MIB, NULL);
	record_start();
	near = open_channel("c", &far);
	for (int i = 0; i < 3; i++) {
		assert_ok(xfer_at(0, near, TN_XFER_PUT, memory, 4 * MIB, 0, &ops[0][i]));
		assert_ok(xfer_at(1, far, TN_XFER_PUT, memory, 4 * MIB, 0, &ops[1][i]));
	}
	pump(0);
	pump(1);
	assert_int_equal(tn_link_in_flight(link_of(0)), 2 * MIB);
	assert_int_equal(tn_link_in_flight(link_of(1)), 0);
	while (!ops[0][2].done || !ops[1][2].done) {
		uint64_t other = tn_link_in_flight(link_of(1));

		assert_true(tn_link_in_flight(link_of(0)) + other <= 2 * MIB);
		/* Each gets its turn: neither is done before the other has begun its last. */
		waited |= other == 0 && ops[0][0].done;
		world.frozen = true;
		assert_true(pair_step(&world));
	}
	assert_false(waited && ops[0][2].done && !ops[1][0].done);
	assert_true(COUNTER(0, budget_waits) > 0 && COUNTER(1, budget_waits) > 0);
	assert_int_equal(world.budget.taken, 0);
	assert_int_equal(world.budget.waiting, 0);
	pair_fini(&world);
}

/* A piece longer than all of it goes when nothing else is out. */
static void one_piece_may_always_go(void **state)
{
	record_op op;
	uint32_t channel;

	(void)state;
	begin();
	tn_link_budget_init(&world.budget, 1000, NULL);
	record_start();
	channel = open_channel("c", NULL);
	assert_ok(xfer_at(0, channel, TN_XFER_PUT, memory, 4 * MIB, 0, &op));
	pump(0);
	assert_int_equal(tn_link_in_flight(link_of(0)), MIB);
	run();
	assert_true(op.done && op.status == TERN_OK);
	pair_fini(&world);
}

/* What a path takes with it is given back, once; and who waited goes on. */
static void given_back_on_failure(void **state)
{
	record_op ops[2], other;
	uint32_t near, far;

	(void)state;
	begin();
	world.node[0].config.recover_ns = 0;
	tn_link_budget_init(&world.budget, 2 * MIB, NULL);
	record_start();
	near = open_channel("c", &far);
	world.mute = true;
	assert_ok(xfer_at(0, near, TN_XFER_PUT, memory, 4 * MIB, 0, &ops[0]));
	assert_ok(xfer_at(0, near, TN_XFER_GET, memory, 4 * MIB, 0, &ops[1]));
	pump(0);
	assert_ok(xfer_at(1, far, TN_XFER_PUT, memory, 4 * MIB, 0, &other));
	pump(1);
	assert_int_equal(world.budget.taken, 2 * MIB);
	assert_int_equal(world.budget.waiting, 2);
	world.mute = false;
	for (uint32_t i = 0; i < world.path_count; i++)
		if (world.paths[i].used)
			pair_break(&world, &world.paths[i]);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	assert_true(ops[0].done && ops[1].done && other.done);
	assert_int_equal(world.budget.taken, 0);
	assert_int_equal(world.budget.waiting, 0);
	pair_fini(&world);
}

/* ---- in many threads ---- */

#define THREADS 4
#define ROUNDS  3000

static tn_link_budget shared;
static _Atomic uint64_t out, most;

/* A link that has two pieces out at most and sleeps when it has none and may not send. */
static void *one_link(void *arg)
{
	uint64_t mine = (uintptr_t)arg, held = 0;
	tn_budget_seat seat = {.wake = wake_up};
	sem_t sem;

	sem_init(&sem, 0, 0);
	seat.arg = &sem;
	for (unsigned i = 0; i < ROUNDS;) {
		if (held < 2 * mine && tn_budget_open(&shared, &seat, mine)) {
			tn_budget_take(&shared, &seat, mine);
			tn_count_max(&most, atomic_fetch_add(&out, mine) + mine);
			held += mine;
			i++;
		} else if (held > 0) {
			atomic_fetch_sub(&out, mine);
			tn_budget_give(&shared, &seat, mine);
			held -= mine;
		} else {
			sem_wait(&sem);
		}
	}
	tn_budget_leave(&shared, &seat);
	atomic_fetch_sub(&out, held);
	if (held)
		tn_budget_give(&shared, &seat, held);
	sem_destroy(&sem);
	return NULL;
}

static void in_many_threads(void **state)
{
	tn_share_lock lock = {lock_take, lock_drop, &mutex};
	pthread_t threads[THREADS];

	(void)state;
	tn_link_budget_init(&shared, 1000, &lock);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, one_link, (void *)(150 + 100 * i)), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(shared.taken, 0);
	assert_int_equal(shared.waiting, 0);
	assert_true(tn_list_empty(&shared.queue));
	/* A piece of each other thread above the cap at most. */
	assert_true(most <= 1000 + 350 + 450 + 250);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(never_exceeded),          cmocka_unit_test(follows_the_pipe),
		cmocka_unit_test(one_cut_for_a_window),    cmocka_unit_test(shared_by_links),
		cmocka_unit_test(one_piece_may_always_go), cmocka_unit_test(given_back_on_failure),
		cmocka_unit_test(in_many_threads),
	};

	return RUN(tests);
}

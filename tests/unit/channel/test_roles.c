/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress roles without any link: timers, deferred work, waits, wakes, many waiters, the lock.
 * Threads: several; asserts in the main thread.
 */
#include <poll.h>
#include <sched.h>

#include "chan_test.h"
#include "channel/ctx_impl.h"
#include "channel/ctx_slots.h"
#include "channel/lock.h"
#include "channel/op.h"

static tern_ctx *open_ctx(uint32_t flags)
{
	tern_ctx_params params = {.flags = flags, .transports = "loop"};
	tern_ctx *ctx;

	assert_ok(tn_ctx_new(&params, &ctx));
	assert_ok(tn_ctx_start(ctx));
	return ctx;
}

/* ---- the lock ---- */

static tn_lock test_lock;
static uint64_t locked_count;
static atomic_bool lock_stop;

static void *lock_loop(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20000; i++) {
		tn_lock_take(&test_lock);
		locked_count++;
		tn_lock_drop(&test_lock);
	}
	return NULL;
}

static void test_the_lock(void **state)
{
	pthread_t threads[4];

	(void)state;
	tn_lock_init(&test_lock, false);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, lock_loop, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(locked_count, 80000);
	assert_true(tn_lock_try(&test_lock));
	assert_false(tn_lock_try(&test_lock));
	tn_lock_drop(&test_lock);
}

static void *turn_loop(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		tn_lock_turn(&test_lock);
		locked_count++;
		tn_lock_drop(&test_lock);
	}
	return arg;
}

/* Threads in turns, and some that take it as it comes: nobody is in together, nobody is left asleep. */
static void test_turns(void **state)
{
	pthread_t threads[8];

	(void)state;
	tn_lock_init(&test_lock, false);
	locked_count = 0;
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, i < 6 ? turn_loop : lock_loop, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(locked_count, 160000);
	assert_int_equal(test_lock.turns, 120000);
	assert_int_equal(test_lock.word, 0);
	assert_int_equal(test_lock.tokens, 0);
}

static void *busy_turns(void *arg)
{
	while (!atomic_load(&lock_stop)) {
		tn_lock_turn(&test_lock);
		locked_count++;
		tn_lock_drop(&test_lock);
	}
	return arg;
}

/* Who had the last turn goes on, but not for ever: each turn of this thread comes. */
static void test_a_turn_comes(void **state)
{
	pthread_t busy[3];

	(void)state;
	tn_lock_init(&test_lock, false);
	atomic_store(&lock_stop, false);
	for (int i = 0; i < 3; i++)
		pthread_create(&busy[i], NULL, busy_turns, NULL);
	for (int i = 0; i < 100; i++) {
		tn_lock_turn(&test_lock);
		locked_count++;
		tn_lock_drop(&test_lock);
		sched_yield();
	}
	atomic_store(&lock_stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(busy[i], NULL);
	assert_int_equal(test_lock.word, 0);
	assert_int_equal(test_lock.tokens, 0);
}

/* While an heir is due nobody goes on; the one with the last turn waits as everybody does, and comes back. */
static void test_turn_after_the_due(void **state)
{
	(void)state;
	tn_lock_init(&test_lock, false);
	tn_lock_turn(&test_lock);
	tn_lock_drop(&test_lock);
	atomic_store(&test_lock.word, TN_LOCK_HEIR);
	assert_true(tn_lock_go_on(&test_lock));
	tn_lock_drop(&test_lock);
	assert_int_equal(test_lock.word, TN_LOCK_HEIR);
	atomic_store(&test_lock.word, TN_LOCK_HEIR | TN_LOCK_DUE);
	assert_false(tn_lock_go_on(&test_lock));
	tn_lock_turn(&test_lock); /* the heir has no core, it seems: the lock does not stay free for that */
	assert_int_equal(test_lock.word, TN_LOCK_HELD | TN_LOCK_HEIR | TN_LOCK_DUE);
	tn_lock_drop(&test_lock);
	assert_int_equal(test_lock.turns, 2);
}

/* ---- timers and work ---- */

typedef struct tick {
	tn_ctx_timer timer;
	tn_work work;
	atomic_int runs;
	atomic_int slow; /* the run takes a while */
	tern_ctx *ctx;
} tick;

static void on_tick(tn_ctx_timer *timer)
{
	tick *t = TN_CONTAINER_OF(timer, tick, timer);

	if (atomic_load(&t->slow))
		tn_sleep_ns(20 * TN_NS_PER_MS);
	atomic_fetch_add(&t->runs, 1);
}

static void on_work(tn_work *work)
{
	tick *t = TN_CONTAINER_OF(work, tick, work);

	atomic_fetch_add(&t->runs, 1);
}

static void await_runs(tick *t, int runs)
{
	uint64_t end = tn_now() + PATIENCE;

	while (atomic_load(&t->runs) < runs && tn_now() < end)
		tn_sleep_ns(TN_NS_PER_MS);
	assert_int_equal(atomic_load(&t->runs), runs);
}

static void test_timers_by_helper(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	tick far = {.timer.run = on_tick}, near = {.timer.run = on_tick}, never = {.timer.run = on_tick};

	(void)state;
	tn_ctx_timer_set(ctx, &far.timer, tn_ctx_now(ctx) + 30 * TN_NS_PER_MS);
	tn_sleep_ns(5 * TN_NS_PER_MS); /* the helper sleeps for `far` now: an earlier one must wake it */
	tn_ctx_timer_set(ctx, &near.timer, tn_ctx_now(ctx) + TN_NS_PER_MS);
	tn_ctx_timer_set(ctx, &never.timer, tn_ctx_now(ctx) + 60 * TN_NS_PER_SEC);
	await_runs(&near, 1);
	await_runs(&far, 1);
	tn_ctx_timer_cancel(ctx, &never.timer);
	assert_int_equal(atomic_load(&never.runs), 0);
	tern_ctx_destroy(ctx);
}

/* The helper runs timers while another thread drives and sleeps. */
static void test_timers_under_a_waiter(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	tick t = {.timer.run = on_tick};
	uint64_t seen;

	(void)state;
	seen = tern_ctx_events(ctx);
	assert_status(tern_ctx_wait_past(ctx, seen, 5 * TN_NS_PER_MS), TERN_E_DEADLINE);
	tn_ctx_timer_set(ctx, &t.timer, tn_ctx_now(ctx) + 2 * TN_NS_PER_MS);
	tern_ctx_wait_past(ctx, seen, 100 * TN_NS_PER_MS);
	await_runs(&t, 1);
	tern_ctx_destroy(ctx);
}

/* After cancel the timer does not run and is not running. */
static void test_cancel_waits(void **state)
{
	tern_ctx *ctx = open_ctx(0);

	(void)state;
	for (int i = 0; i < 20; i++) {
		tick *t = calloc(1, sizeof(*t));

		t->timer.run = on_tick;
		atomic_store(&t->slow, 1);
		tn_ctx_timer_set(ctx, &t->timer, tn_ctx_now(ctx) + (uint64_t)i * 100000);
		tn_sleep_ns(TN_NS_PER_MS);
		tn_ctx_timer_cancel(ctx, &t->timer);
		free(t); /* ASan sees a run that comes later */
	}
	tern_ctx_destroy(ctx);
}

static void test_work(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	tick t[50];

	(void)state;
	memset(t, 0, sizeof(t));
	for (int i = 0; i < 50; i++) {
		t[i].work.run = on_work;
		tn_ctx_defer(ctx, &t[i].work);
		if (i % 10 == 0)
			tn_sleep_ns(TN_NS_PER_MS);
	}
	for (int i = 0; i < 50; i++)
		await_runs(&t[i], 1);
	tern_ctx_destroy(ctx);
}

/* ---- the caller drives ---- */

static void test_caller_driven(void **state)
{
	tern_ctx *ctx = open_ctx(TERN_CTX_NO_HELPER);
	tick t = {.timer.run = on_tick, .work.run = on_work};
	struct pollfd fd = {.fd = tern_ctx_fd(ctx), .events = POLLIN};

	(void)state;
	tn_ctx_defer(ctx, &t.work);
	assert_status(tern_ctx_arm(ctx), TERN_BUSY);
	while (tern_ctx_progress(ctx) > 0)
		;
	assert_int_equal(atomic_load(&t.runs), 1);
	while (tern_ctx_arm(ctx) == TERN_BUSY)
		tern_ctx_progress(ctx);
	assert_int_equal(poll(&fd, 1, 0), 0);
	tern_ctx_wake(ctx);
	assert_int_equal(poll(&fd, 1, 1000), 1);
	while (tern_ctx_progress(ctx) > 0)
		;
	/* A timer makes the descriptor readable too. */
	tn_ctx_timer_set(ctx, &t.timer, tn_ctx_now(ctx) + 5 * TN_NS_PER_MS);
	while (atomic_load(&t.runs) < 2) {
		while (tern_ctx_arm(ctx) == TERN_BUSY)
			tern_ctx_progress(ctx);
		if (atomic_load(&t.runs) < 2)
			assert_int_equal(poll(&fd, 1, 10000), 1);
		tern_ctx_progress(ctx);
	}
	tern_ctx_destroy(ctx);
}

static void test_wait_runs_timers_without_helper(void **state)
{
	tern_ctx *ctx = open_ctx(TERN_CTX_NO_HELPER);
	tick t = {.timer.run = on_tick};

	(void)state;
	tn_ctx_timer_set(ctx, &t.timer, tn_ctx_now(ctx) + 2 * TN_NS_PER_MS);
	while (atomic_load(&t.runs) == 0)
		tern_ctx_wait(ctx, 20 * TN_NS_PER_MS);
	tern_ctx_destroy(ctx);
}

typedef struct owner_case {
	tern_ctx *ctx;
	tern_status status;
} owner_case;

static void *use_it(void *arg)
{
	owner_case *c = arg;

	c->status = tern_ctx_arm(c->ctx);
	return NULL;
}

static void test_single_owner(void **state)
{
	owner_case c = {.ctx = open_ctx(TERN_CTX_SINGLE_OWNER)};
	tick t = {.timer.run = on_tick, .work.run = on_work};
	pthread_t thread;

	(void)state;
	tn_ctx_defer(c.ctx, &t.work);
	assert_ok(tern_ctx_wait(c.ctx, PATIENCE));
	assert_int_equal(atomic_load(&t.runs), 1);
	pthread_create(&thread, NULL, use_it, &c);
	pthread_join(thread, NULL);
	assert_int_equal(c.status, TERN_E_STATE);
	tern_ctx_destroy(c.ctx);
}

/* ---- waits ---- */

typedef struct waiter {
	tern_ctx *ctx;
	tern_op op;
	tern_status status;
	pthread_t thread;
} waiter;

static void *wait_op(void *arg)
{
	waiter *w = arg;

	w->status = tern_op_wait(w->ctx, &w->op, PATIENCE);
	return NULL;
}

/* Eight threads wait for operations that another completes in any order: each wakes by its own. */
static void test_many_waiters(void **state)
{
	static const uint32_t flags[] = {0, TERN_CTX_NO_HELPER};

	(void)state;
	for (int round = 0; round < 60; round++) {
		tern_ctx *ctx = open_ctx(flags[round % 2]);
		waiter w[8];

		memset(w, 0, sizeof(w));
		for (int i = 0; i < 8; i++) {
			w[i].ctx = ctx;
			assert_ok(tn_op_begin(&w[i].op));
			pthread_create(&w[i].thread, NULL, wait_op, &w[i]);
		}
		if (round % 3)
			tn_sleep_ns((uint64_t)round * 20000);
		for (int i = 0; i < 8; i++) {
			int k = (i * 3 + round) % 8;

			tn_op_complete(ctx, &w[k].op, k % 2 ? TERN_OK : TERN_E_REMOTE, 7, "because");
			pthread_join(w[k].thread, NULL);
			assert_int_equal(w[k].status, k % 2 ? TERN_OK : TERN_E_REMOTE);
		}
		tern_ctx_destroy(ctx);
	}
}

static void *wait_past(void *arg)
{
	waiter *w = arg;

	w->status = tern_ctx_wait_past(w->ctx, w->op.length, PATIENCE);
	return NULL;
}

/* One wake ends all waits that began before it, whoever drives. */
static void test_wake(void **state)
{
	(void)state;
	for (int round = 0; round < 60; round++) {
		tern_ctx *ctx = open_ctx(round % 2 ? TERN_CTX_NO_HELPER : 0);
		waiter w[3];

		memset(w, 0, sizeof(w));
		for (int i = 0; i < 3; i++) {
			w[i].ctx = ctx;
			w[i].op.length = tern_ctx_events(ctx);
			pthread_create(&w[i].thread, NULL, wait_past, &w[i]);
		}
		if (round % 3)
			tn_sleep_ns((uint64_t)round * 20000);
		tern_ctx_wake(ctx);
		for (int i = 0; i < 3; i++) {
			pthread_join(w[i].thread, NULL);
			assert_int_equal(w[i].status, TERN_OK);
		}
		tern_ctx_destroy(ctx);
	}
}

/* libvalkey PR#301: a wake ends the wait of a thread that follows, while the driver waits for something else. */
static void test_wake_reaches_followers(void **state)
{
	(void)state;
	for (int round = 0; round < 40; round++) {
		tern_ctx *ctx = open_ctx(round % 2 ? TERN_CTX_NO_HELPER : 0);
		waiter driver = {.ctx = ctx}, follower = {.ctx = ctx};

		assert_ok(tn_op_begin(&driver.op));
		pthread_create(&driver.thread, NULL, wait_op, &driver);
		tn_sleep_ns(TN_NS_PER_MS);
		follower.op.length = tern_ctx_events(ctx);
		pthread_create(&follower.thread, NULL, wait_past, &follower);
		if (round % 3)
			tn_sleep_ns((uint64_t)round * 20000);
		tern_ctx_wake(ctx);
		pthread_join(follower.thread, NULL);
		assert_int_equal(follower.status, TERN_OK);
		assert_status(tern_op_test(&driver.op), TERN_AGAIN);
		tn_op_complete(ctx, &driver.op, TERN_OK, 0, NULL);
		pthread_join(driver.thread, NULL);
		tern_ctx_destroy(ctx);
	}
}

/* ---- how long waits spin: by a clock of the test's own ---- */

static _Atomic uint64_t spin_now, spin_looks;

static uint64_t spin_clock_now(const tn_clock *clock)
{
	(void)clock;
	atomic_fetch_add(&spin_looks, 1);
	return atomic_load(&spin_now);
}

static const tn_clock spin_clock = {.now_ns = spin_clock_now};

/* The waiter began to spin at the time that it is now, and goes on in spite of it: it looks at the clock again and again. */
static void await_spinning(tern_ctx *ctx)
{
	uint64_t from = atomic_load(&spin_looks);

	while (atomic_load(&spin_looks) < from + 20)
		sched_yield();
	assert_int_equal(atomic_load(&ctx->roles.asleep), 0);
}

static void await_sleep(tern_ctx *ctx)
{
	while (!atomic_load(&ctx->roles.asleep))
		sched_yield();
}

/* A wait that spins until `spins` us and a little, falls asleep and is woken at `ends` us; 0: sleeps at once. */
static void spin_wait(tern_ctx *ctx, uint64_t spins, uint64_t ends)
{
	waiter w = {.ctx = ctx};
	uint64_t begun = atomic_load(&spin_now);

	w.op.length = tern_ctx_events(ctx);
	pthread_create(&w.thread, NULL, wait_past, &w);
	if (spins) {
		await_spinning(ctx);
		atomic_store(&spin_now, begun + (spins - 1) * 1000);
		await_spinning(ctx);
		atomic_store(&spin_now, begun + (spins + 1) * 1000);
	}
	await_sleep(ctx);
	atomic_store(&spin_now, begun + ends * 1000);
	tern_ctx_wake(ctx);
	pthread_join(w.thread, NULL);
	tn_os_event_drain(ctx->roles.wake.fd); /* it may have seen the wake-up just before it slept */
	assert_int_equal(w.status, TERN_OK);
}

static tern_ctx *open_spinning(uint64_t spin_ns, uint32_t flags)
{
	tern_ctx_params params = {.flags = flags, .transports = "loop"};
	tern_ctx *ctx;

	assert_ok(tn_ctx_new(&params, &ctx));
	ctx->spin_ns = spin_ns;
	atomic_store(&spin_now, tn_now());
	ctx->clock = &spin_clock;
	assert_ok(tn_ctx_start(ctx));
	return ctx;
}

static void close_spinning(tern_ctx *ctx)
{
	tn_roles_stop_helper(ctx); /* nobody reads the clock while it changes */
	ctx->clock = &tn_clock_monotonic;
	tern_ctx_destroy(ctx);
}

/* Two waits in a row that end soon after their thread slept let it spin longer; a long one ends that. */
static void test_spin_learns(void **state)
{
	tern_ctx *ctx = open_spinning(20000, TERN_CTX_NO_HELPER);

	(void)state;
	spin_wait(ctx, 20, 30);
	spin_wait(ctx, 20, 500); /* long: it was not two in a row */
	spin_wait(ctx, 20, 30);
	spin_wait(ctx, 20, 80);
	spin_wait(ctx, 80, 80 + 2);
	spin_wait(ctx, 20, 500);
	spin_wait(ctx, 20, 30);
	close_spinning(ctx);
}

/* Who is told not to spin never does, however short the waits are. */
static void test_no_spin(void **state)
{
	tern_ctx *ctx = open_spinning(0, TERN_CTX_NO_HELPER);

	(void)state;
	for (int i = 0; i < 4; i++)
		spin_wait(ctx, 0, 1);
	assert_int_equal(ctx->spin.short_sleeps, 0);
	close_spinning(ctx);
}

/* The helper sleeps, and is woken so many us after what it had to do before. */
static void helper_sleeps(tern_ctx *ctx, uint64_t us)
{
	uint64_t from;

	await_sleep(ctx);
	from = atomic_load(&spin_looks); /* who sleeps does not look */
	atomic_fetch_add(&spin_now, us * 1000);
	tern_ctx_wake(ctx);
	while (atomic_load(&spin_looks) == from)
		sched_yield();
}

/*
 * The helper sleeps at once, but behind two short sleeps in a row: then it spins as long as they may be, and gives the role to
 * whoever waits. The clock stands still: it would spin for ever.
 */
static void test_helper_spins(void **state)
{
	tern_ctx *ctx = open_spinning(20000, 0);
	waiter w = {.ctx = ctx};

	(void)state;
	helper_sleeps(ctx, 30);
	helper_sleeps(ctx, 500);
	helper_sleeps(ctx, 30);
	helper_sleeps(ctx, 80);
	await_spinning(ctx);
	atomic_fetch_add(&spin_now, 79000);
	await_spinning(ctx);
	atomic_fetch_add(&spin_now, 2000);
	helper_sleeps(ctx, 0); /* it has been idle for longer than that: no more */
	helper_sleeps(ctx, 30);
	helper_sleeps(ctx, 30);
	await_spinning(ctx);
	w.op.length = tern_ctx_events(ctx);
	pthread_create(&w.thread, NULL, wait_past, &w);
	await_spinning(ctx);
	tern_ctx_wake(ctx);
	pthread_join(w.thread, NULL);
	assert_int_equal(w.status, TERN_OK);
	close_spinning(ctx);
}

/* Does a spinning driver look at descriptors, so long after it did? */
static bool looks_after(tern_ctx *ctx, uint64_t us, bool worked)
{
	struct pollfd wake = {.fd = ctx->roles.wake.fd, .events = POLLIN};

	ctx->control_ns = atomic_fetch_add(&spin_now, us * 1000);
	ctx->worked = worked;
	tern_ctx_wake(ctx);
	for (int i = 0; i < 64; i++)
		tern_ctx_progress(ctx);
	if (poll(&wake, 1, 0) == 0)
		return true;
	tn_os_event_drain(wake.fd);
	return false;
}

/* A look costs what a small call does: seldom while there is work, but always at last. */
static void test_looks_at_descriptors(void **state)
{
	tern_ctx *ctx = open_spinning(20000, TERN_CTX_NO_HELPER);

	(void)state;
	(void)looks_after(ctx, 60, false); /* what set-up has left to look at */
	assert_false(looks_after(ctx, 40, false));
	assert_true(looks_after(ctx, 60, false));
	assert_false(looks_after(ctx, 60, true));
	assert_false(looks_after(ctx, 900, true));
	assert_true(looks_after(ctx, 1100, true));
	close_spinning(ctx);
}

static void test_wake_before_wait(void **state)
{
	tern_ctx *ctx = open_ctx(0);

	(void)state;
	tern_ctx_wake(ctx);
	tn_sleep_ns(2 * TN_NS_PER_MS); /* the helper eats the wake-up; the next wait must not need it */
	assert_ok(tern_ctx_wait(ctx, PATIENCE));
	assert_status(tern_ctx_wait(ctx, TN_NS_PER_MS), TERN_E_DEADLINE);
	tern_ctx_destroy(ctx);
}

static void test_wait_deadline(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	tern_op op = {0};

	(void)state;
	assert_ok(tn_op_begin(&op));
	assert_status(tern_op_test(&op), TERN_AGAIN);
	assert_status(tern_op_wait(ctx, &op, TN_NS_PER_MS), TERN_E_DEADLINE);
	assert_status(tn_op_begin(&op), TERN_E_STATE); /* it is still in flight */
	tn_op_complete(ctx, &op, TERN_E_REMOTE, 3, "the reason");
	assert_status(tern_op_wait(ctx, &op, 0), TERN_E_REMOTE);
	assert_string_equal(tern_detail(), "the reason");
	assert_int_equal(op.length, 3);
	tern_ctx_destroy(ctx);
}

static void no_wait_inside(tern_op *op, void *arg)
{
	tern_ctx *ctx = arg;
	tern_op other = {0};

	(void)op;
	tn_op_begin(&other);
	op->length = (uint64_t)tern_op_wait(ctx, &other, TN_NS_PER_SEC);
}

/* mercury#61: callbacks run from dispatch, under no lock; waiting inside one is refused, not a deadlock. */
static void test_no_wait_in_callback(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	tern_op op;

	(void)state;
	tern_op_init(&op, no_wait_inside, ctx);
	assert_ok(tn_op_begin(&op));
	tn_op_complete(ctx, &op, TERN_OK, 0, NULL);
	assert_int_equal((tern_status)op.length, TERN_E_STATE);
	tern_ctx_destroy(ctx);
}

/* Litmus of the hand-over: short waits of two threads and work from a third never lose a wake-up. */
typedef struct storm {
	tern_ctx *ctx;
	tick t[64];
	atomic_int stop;
} storm;

static void *storm_waits(void *arg)
{
	storm *s = arg;

	while (!atomic_load(&s->stop))
		tern_ctx_wait(s->ctx, 200000);
	return NULL;
}

static void test_storm(void **state)
{
	storm *s = calloc(1, sizeof(*s));
	pthread_t threads[2];

	(void)state;
	s->ctx = open_ctx(0);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, storm_waits, s);
	for (int round = 0; round < 300; round++) {
		for (int i = 0; i < 8; i++) {
			s->t[i].work.run = on_work;
			tn_ctx_defer(s->ctx, &s->t[i].work);
		}
		for (int i = 0; i < 8; i++)
			await_runs(&s->t[i], round + 1);
	}
	atomic_store(&s->stop, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	/* Afterwards the helper drives again. */
	for (int round = 0; round < 50; round++) {
		tn_ctx_defer(s->ctx, &s->t[0].work);
		await_runs(&s->t[0], 301 + round);
	}
	tern_ctx_destroy(s->ctx);
	free(s);
}

/* Mooncake#1033: a context that nothing happens on uses no CPU; a waiter that waits for long neither. */
static void test_idle(void **state)
{
	tern_ctx *ctx = open_ctx(0);
	uint64_t before, used;

	(void)state;
	tn_sleep_ns(10 * TN_NS_PER_MS);
	before = tn_cpu_process_ns();
	tn_sleep_ns(TN_NS_PER_SEC);
	tern_ctx_wait(ctx, TN_NS_PER_SEC);
	used = tn_cpu_process_ns() - before;
	if (used > 20 * TN_NS_PER_MS)
		fail_msg("idle for 2 s used %llu us of CPU", (unsigned long long)(used / 1000));
	tern_ctx_destroy(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_lock),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_a_turn_comes),
		cmocka_unit_test(test_turn_after_the_due),
		cmocka_unit_test(test_timers_by_helper),
		cmocka_unit_test(test_timers_under_a_waiter),
		cmocka_unit_test(test_cancel_waits),
		cmocka_unit_test(test_work),
		cmocka_unit_test(test_caller_driven),
		cmocka_unit_test(test_wait_runs_timers_without_helper),
		cmocka_unit_test(test_single_owner),
		cmocka_unit_test(test_many_waiters),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_wake_reaches_followers),
		cmocka_unit_test(test_spin_learns),
		cmocka_unit_test(test_no_spin),
		cmocka_unit_test(test_helper_spins),
		cmocka_unit_test(test_looks_at_descriptors),
		cmocka_unit_test(test_wake_before_wait),
		cmocka_unit_test(test_wait_deadline),
		cmocka_unit_test(test_no_wait_in_callback),
		cmocka_unit_test(test_storm),
		cmocka_unit_test(test_idle),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of store/barrier.h: rounds close once, retries count once, those who leave or join late hang nobody. */
#include "store/barrier.h"

#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

#define WORKERS 6

typedef struct group {
	tn_clocks clocks;
	tn_barriers barriers;
} group;

static void make(group *g, uint64_t workers)
{
	char name[32];

	assert_ok(tn_clocks_init(&g->clocks, 0, 0, 1));
	tn_barriers_init(&g->barriers, &g->clocks);
	for (uint64_t id = 0; id < workers; id++) {
		snprintf(name, sizeof(name), "worker %d", (int)id);
		assert_ok(tn_clocks_join(&g->clocks, id, name, NULL));
	}
}

static void leave(group *g, uint64_t id)
{
	tn_barriers_leave(&g->barriers, id);
	tn_clocks_leave(&g->clocks, id);
}

static void drop(group *g)
{
	tn_barriers_fini(&g->barriers);
	tn_clocks_fini(&g->clocks);
}

static void a_round_closes_when_all_arrived(void **state)
{
	tn_barrier_waiter w[4] = {0};
	char text[64];
	group g;

	(void)state;
	make(&g, 3);
	assert_int_equal(tn_barrier_missing(&g.barriers, "epoch", text, sizeof(text)), 0);
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "epoch", 0, 0), TERN_BUSY);
	/* A retry of the same member counts once. */
	assert_status(tn_barrier_arrive(&g.barriers, &w[3], "epoch", 0, 0), TERN_BUSY);
	assert_int_equal(tn_barrier_missing(&g.barriers, "epoch", text, sizeof(text)), 2);
	assert_string_equal(text, "worker 1, worker 2");
	assert_status(tn_barrier_arrive(&g.barriers, &w[1], "epoch", 1, 0), TERN_BUSY);
	assert_null(tn_barriers_ready(&g.barriers));
	/* Another name is another barrier. */
	assert_status(tn_barrier_arrive(&g.barriers, &w[2], "save", 2, 0), TERN_BUSY);
	tn_barrier_forget(&g.barriers, &w[2]);
	assert_ok(tn_barrier_arrive(&g.barriers, &w[2], "epoch", 2, 0));
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[0]);
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[3]);
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[1]);
	assert_null(tn_barriers_ready(&g.barriers));
	assert_int_equal(tn_barrier_round(&g.barriers, "epoch"), 1);
	/* A late retry of the old round is answered at once, one of a future round is a bug of the caller. */
	assert_ok(tn_barrier_arrive(&g.barriers, &w[0], "epoch", 1, 0));
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "epoch", 1, 2), TERN_E_INVALID);
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "epoch", 9, 1), TERN_E_NOT_FOUND);
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "", 1, 0), TERN_E_INVALID);
	drop(&g);
}

static void leaving_and_joining_hang_nobody(void **state)
{
	tn_barrier_waiter w[4] = {0};
	group g;

	(void)state;
	make(&g, 3);
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "b", 0, 0), TERN_BUSY);
	assert_status(tn_barrier_arrive(&g.barriers, &w[1], "b", 1, 0), TERN_BUSY);
	/* Who joins now is not waited for. */
	assert_ok(tn_clocks_join(&g.clocks, 7, "late", NULL));
	leave(&g, 1);
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[1]);
	assert_int_equal(w[1].status, TERN_E_CANCELED);
	assert_null(tn_barriers_ready(&g.barriers));
	leave(&g, 2);
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[0]);
	assert_int_equal(w[0].status, TERN_OK);
	/* The next round waits for it. */
	assert_status(tn_barrier_arrive(&g.barriers, &w[0], "b", 0, 1), TERN_BUSY);
	assert_ok(tn_barrier_arrive(&g.barriers, &w[2], "b", 7, 1));
	assert_ptr_equal(tn_barriers_ready(&g.barriers), &w[0]);
	drop(&g);
}

static void too_many_names_are_refused(void **state)
{
	tn_barrier_waiter w = {0};
	char name[16];
	group g;

	(void)state;
	make(&g, 1);
	for (int i = 0; i < TN_BARRIERS_MAX; i++) {
		snprintf(name, sizeof(name), "b%d", i);
		assert_ok(tn_barrier_arrive(&g.barriers, &w, name, 0, 0));
	}
	assert_status(tn_barrier_arrive(&g.barriers, &w, "one more", 0, 0), TERN_E_LIMIT);
	drop(&g);
}

/* ---- against an oracle ---- */

typedef struct oracle {
	bool in[WORKERS], here[WORKERS], needed[WORKERS], waits[WORKERS];
	uint64_t round;
} oracle;

static bool oracle_open(const oracle *o)
{
	for (int i = 0; i < WORKERS; i++)
		if (o->here[i])
			return true;
	return false;
}

static bool oracle_close(oracle *o)
{
	if (!oracle_open(o))
		return false;
	for (int i = 0; i < WORKERS; i++)
		if (o->needed[i] && o->in[i] && !o->here[i])
			return false;
	memset(o->here, 0, sizeof(o->here));
	o->round++;
	return true;
}

static void oracle_arrive(oracle *o, uint64_t i)
{
	if (!oracle_open(o))
		memcpy(o->needed, o->in, sizeof(o->needed));
	o->here[i] = true;
}

static void drain(group *g, oracle *o, tn_barrier_waiter *w, bool closed)
{
	tn_barrier_waiter *ready;

	while ((ready = tn_barriers_ready(&g->barriers)) != NULL) {
		assert_true(o->waits[ready - w]);
		assert_true(closed || !o->in[ready - w]);
		o->waits[ready - w] = false;
	}
	for (int i = 0; i < WORKERS; i++)
		assert_true(!o->waits[i] || (!closed && o->in[i]));
	assert_int_equal(tn_barrier_round(&g->barriers, "b"), o->round);
}

static void step_of(group *g, oracle *o, tn_barrier_waiter *w, tn_rand *rand)
{
	uint64_t i = tn_rand_below(rand, WORKERS);
	bool closed = false;

	switch (tn_rand_below(rand, 6)) {
	case 0:
		leave(g, i);
		o->in[i] = o->here[i] = o->needed[i] = false;
		closed = oracle_close(o);
		break;
	case 1:
		assert_ok(tn_clocks_join(&g->clocks, i, "w", NULL));
		o->in[i] = true;
		break;
	default:
		if (!o->in[i] || o->waits[i])
			break;
		oracle_arrive(o, i);
		closed = oracle_close(o);
		assert_status(tn_barrier_arrive(&g->barriers, &w[i], "b", i, o->round - closed),
			      closed ? TERN_OK : TERN_BUSY);
		o->waits[i] = !closed;
	}
	drain(g, o, w, closed);
}

static void random_rounds_match_the_oracle(void **state)
{
	uint64_t rounds = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		tn_barrier_waiter w[WORKERS] = {0};
		tn_rand rand = {seed};
		oracle o = {0};
		group g;

		make(&g, 0);
		for (int n = 0; n < 300; n++)
			step_of(&g, &o, w, &rand);
		for (int i = 0; i < WORKERS; i++)
			tn_barrier_forget(&g.barriers, &w[i]);
		rounds += o.round;
		drop(&g);
	}
	assert_true(rounds > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_round_closes_when_all_arrived),
		cmocka_unit_test(leaving_and_joining_hang_nobody),
		cmocka_unit_test(too_many_names_are_refused),
		cmocka_unit_test(random_rounds_match_the_oracle),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of the simulator of replication, its coverage, and planted bugs. world.h says what it simulates.
 *
 *   test-ps-repl_sim [SEEDS [FIRST]]     in a build with TERN_MUTANTS: --mutants [NUMBER [SEEDS]]; --trace SEED
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutant.h"
#include "support/planted.h"
#include "cmocka_all.h"
#include "world.h"

#define REST 60000u /* at most, until all is at rest after the last fault */

static void world_free(world *w)
{
	while (w->messages) {
		message *next = w->messages->next;

		message_free(w->messages);
		w->messages = next;
	}
	for (uint32_t p = 0; p < PROCESSES; p++)
		node_end(w, p);
	for (uint32_t i = 0; i < KEPT; i++)
		if (w->kept[i])
			message_free(w->kept[i]);
	for (uint32_t c = 0; c < CLIENTS; c++)
		snap_drop(w->clients[c].snap);
	for (uint32_t t = 0; t < TABLES; t++)
		for (uint32_t k = 0; k < KEYS; k++)
			history_free(&w->histories[t][k]);
	group_end(w);
	snap_drop(w->newest);
	snap_drop(w->newest_old);
	free(w);
}

static world *world_new(uint64_t seed)
{
	world *w = calloc(1, sizeof(*w));
	tn_coord_params p = {
		.lease_ns = LEASE, .margin_ns = MARGIN, .balance_ns = 4ull * LEASE, .replicas = 2};

	assert_non_null(w);
	w->seed = w->rand.state = seed;
	p.first = 1 + (uint32_t)below(w, 4);
	p.moves = chance(w, 2) ? TN_CL_SLOTS : 300;
	tn_coord_init(&w->coord, &p, NULL, 0);
	w->old = chance(w, 6);
	for (uint32_t i = 0; i < PROCESSES; i++) {
		w->maps[i] = w->old && i == PROCESSES / 2 ? 0 : TN_CL_VERSION;
		/* as far off as the margin allows: slow ones are those whose leases last */
		w->rate[i] = chance(w, 2) ? 0.92 : 0.92 + 0.16 * tn_rand_double(&w->rand);
		w->start_at[i] = i < p.first || chance(w, 2) ? 0 : below(w, 8ull * LEASE);
	}
	group_begin(w);
	for (uint32_t c = 0; c < CLIENTS; c++)
		w->regs[c].states = 1;
	for (uint32_t k = 0; k < KEYS; k++)
		w->keys[k] = k == 0 ? 0 : k == 1 ? UINT64_MAX : tn_rand_next(&w->rand);
	return w;
}

static void tick(world *w)
{
	w->now++;
	deliver(w);
	tn_coord_tick(&w->coord, w->now);
	trouble(w);
	spread(w);
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (w->nodes[p])
			node_step(w, p);
	one_serves(w);
	for (uint32_t c = 0; c < CLIENTS; c++)
		client_step(w, c);
	if (!w->calm && chance(w, 2))
		probe(w);
}

/* Why it does not come to rest. */
static void print_stuck(const world *w)
{
	for (uint32_t i = 0; i < w->coord.map.servers; i++)
		printf("  server %u: state %u, process %d\n", i, w->coord.map.server[i].state,
		       process_of(w, (uint16_t)i));
	for (uint32_t i = 0, told = 0; i < TN_CL_SLOTS && told < 4; i++) {
		const tn_cl_slot *s = &w->coord.map.slot[i];

		if ((s->flags & ~TN_CL_FRESH) == TN_CL_IN_SYNC && process_of(w, s->primary) >= 0)
			continue;
		printf("  slot %u: (%d, %d, next %d) epochs %u, %u flags %u\n", i, (int16_t)s->primary,
		       (int16_t)s->backup, (int16_t)s->next, s->epoch, s->next_epoch, s->flags);
		if (process_of(w, s->primary) >= 0) {
			const node *n = w->nodes[process_of(w, s->primary)];
			const tn_repl_one *c = &n->r.slot[i].copy[TN_REPL_BACKUP];

			printf("    at its primary: epoch %u, to %d: state %u, adopt %d, refused %d, handed "
			       "%d, frozen %d, "
			       "move %d; report %u\n",
			       n->r.slot[i].epoch, (int16_t)c->peer, c->state, c->adopt, c->refused,
			       c->handed, tn_repl_frozen(&n->r, i), tn_ps_slots_has(&n->r.move, i),
			       n->what[i]);
		}
		told++;
	}
	for (uint32_t c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < AHEAD; i++)
			if (w->clients[c].ops[i].live)
				printf("  client %u waits: %s of slot %u\n", c,
				       w->clients[c].ops[i].pull ? "pull" : "push",
				       tn_table_slot(w->keys[w->clients[c].ops[i].key[0]]));
}

static void add_counts(tally *sum, const tally *one)
{
#define ADD(name) sum->name += one->name;
	COUNTS(ADD)
#undef ADD
}

static bool one_seed(uint64_t seed, tally *sum, bool traced, bool quietly)
{
	world *w = world_new(seed);
	bool good;

	w->trace = traced;
	while (w->now < TICKS && !w->why)
		tick(w);
	heal(w);
	while (!w->why && !at_rest(w) && w->now < TICKS + REST)
		tick(w);
	if (!w->why && !at_rest(w)) {
		fails(w, "it does not come to rest");
		if (!quietly)
			print_stuck(w);
	}
	for (uint32_t i = 0; i < 2 * LEASE && !w->why; i++) {
		if (i == LEASE)
			pull_all(w);
		tick(w);
	}
	if (!w->why)
		judge(w);
	good = !w->why;
	if (!good && !quietly)
		printf("seed %llu, at %llu: %s\n", (unsigned long long)seed, (unsigned long long)w->now,
		       w->why);
	add_counts(sum, &w->n);
	world_free(w);
	return good;
}

/* ---- the tests ---- */

static uint64_t first_seed = 1, seeds = 40;

static void print_counts(const tally *n)
{
#define PRINT(name) printf("%s %llu, ", #name, (unsigned long long)n->name);
	COUNTS(PRINT)
#undef PRINT
	printf("\n");
}

static void servers_that_die(void **state)
{
	tally sum = {0};
	uint64_t bad = 0;

	(void)state;
	for (uint64_t i = 0; i < seeds && bad < 5; i++)
		bad += !one_seed(first_seed + i, &sum, false, false);
	print_counts(&sum);
	assert_int_equal(bad, 0);
#define OCCURRED(name)                    \
	if (seeds >= 40 && sum.name == 0) \
		fail_msg("%s: it never occurred", #name);
	COUNTS(OCCURRED)
#undef OCCURRED
}

/* The check of histories against its twin, which tries all orders. */
static void histories(void **state)
{
	tn_rand rand = {7};
	uint32_t good = 0;

	(void)state;
	for (unsigned round = 0; round < 20000; round++) {
		history h = {0};
		uint32_t n = 2 + (uint32_t)tn_rand_below(&rand, 8);
		bool a, b;

		for (uint32_t i = 0, ids = 0; i < n; i++) {
			uint64_t invoke = 1 + tn_rand_below(&rand, 12),
				 ret = invoke + 1 + tn_rand_below(&rand, 8);
			id_set seen = {{tn_rand_below(&rand, 1ull << ids)}};

			if (ids < 4 && tn_rand_below(&rand, 2)) {
				uint32_t at = history_push(&h, invoke, ids++);

				h.at[at].ret = tn_rand_below(&rand, 4) ? ret : NEVER;
			} else {
				history_pull(&h, invoke, ret, &seen);
			}
		}
		a = history_check(&h) == NULL;
		b = history_search(&h);
		assert_int_equal(a, b);
		good += a;
		history_free(&h);
	}
	assert_true(good > 2000 && good < 18000);
}

#ifdef TN_MUTANTS

static const planted_bug planted[] = {
	{101, "a write waits for the frame before its own"},
	{102, "a read does not wait for writes before it"},
	{103, "a server serves after its lease"},
	{104, "writes behind SYNCED do not go to who is next"},
	{105, "a slot that is handed over is served"},
	{106, "a frame that comes late is taken once more"},
	{107, "a backup takes writes of a deposed primary"},
	{108, "a backup does not note pushes"},
	{109, "BEGIN leaves what the backup had"},
	{110, "frames of a stream that is over are taken"},
	{111, "a copy has no facts"},
	{112, "writes into a slot that is copied stay here"},
	{113, "a slot is released while it is served"},
	{114, "some rows are not copied"},
	{115, "a backup that has everything is not waited for when a slot is taken over"},
	{116, "who was primary gets all rows anew, as if it had none"},
	{117, "a slot waits for ever for a next one that is not next any more"},
	{118, "a backup keeps no gradients of a step that is open"},
	{119, "a copy has no gradients of steps that are open"},
	{120, "a backup does not close steps"},
	{121, "a copy does not say which steps have closed"},
	{122, "gradients that come again are staged again"},
	{123, "that a step was summed is not remembered"},
	{124, "a push that is known in part waits for what is new of it alone"},
	PLANTED_COORD,
	{208, "the number of a next one's epoch is given once more"},
};

static bool seed_holds(uint64_t seed)
{
	tally n = {0};

	return one_seed(seed, &n, false, true);
}

#endif

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(histories), cmocka_unit_test(servers_that_die)};

#ifdef TN_MUTANTS
	if (argc > 1 && strcmp(argv[1], "--mutants") == 0)
		return planted_find(planted, TN_COUNT_OF(planted), seed_holds, argc > 2 ? atoi(argv[2]) : 0,
				    argc > 3 ? strtoull(argv[3], NULL, 10) : 300);
#endif
	if (argc > 2 && strcmp(argv[1], "--trace") == 0) {
		tally n = {0};

		return !one_seed(strtoull(argv[2], NULL, 10), &n, true, false);
	}
	seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : seeds;
	first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs, by seed. See world.h. Arguments: number of seeds, first seed, a slot to follow; in a build with TERN_MUTANTS:
 * --mutants [number [seeds]].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "cmocka_all.h"
#include "support/planted.h"
#include "world.h"

const uint16_t sample[SAMPLES] = {0, 1365, 2731, 4095};
int follow = -1;

static void handle(world *w, event *e)
{
	server *s = e->to < SERVERS ? &w->s[e->to] : NULL;

	if (!s && e->kind == TICK)
		tn_coord_tick(w->c, w->now);
	else if (!s)
		coord_on(w, e);
	if (!s || !s->running || s->incarnation != e->incarnation)
		return;
	if (s->stalled_until > w->now) {
		net_post(w, e, s->stalled_until - w->now);
		return;
	}
	if (e->kind == MAP)
		server_on_map(w, e);
	else if (e->kind == WRITE || e->kind == READ)
		server_on_request(w, e);
	else if (e->kind == COPY)
		server_on_copy(w, e);
	else if (e->kind == COPIED)
		server_on_copied(w, e);
	else if (e->kind == POLL)
		server_poll(w, e->to);
}

static void run_until(world *w, uint64_t end)
{
	while (w->now < end && !w->why) {
		bool changed;
		event e;

		TN_ASSERT(w->events > 0);
		e = net_take(w);
		judge_serving(w);
		w->now = e.at > w->now ? e.at : w->now;
		handle(w, &e);
		if (e.kind == TICK)
			net_post(w, &e, 200);
		if (w->now >= w->quiet_until && w->c->paused)
			tn_coord_pause(w->c, false);
		if (e.kind == TICK && !w->healing && world_below(w, 2) == 0)
			fault_trouble(w);
		if (world_below(w, 3) == 0)
			client_asks(w);
		for (int i = 0; i < SERVERS; i++)
			if (!w->s[i].running && w->s[i].start_at <= w->now) {
				server_start(w, i);
				fault_steal(w, i);
			}
		fault_end_thefts(w);
		changed = w->pushed != w->c->map.version && w->now >= w->burst_at;
		coord_push_maps(w);
		for (int i = 0; changed && i < 8; i++) /* who answers just now? */
			client_asks(w);
		w->burst_at = changed ? w->now + 50 : w->burst_at;
	}
}

static void heal(world *w)
{
	w->healing = true;
	memset(w->cut, 0, sizeof(w->cut));
	for (int i = 0; i < SERVERS; i++)
		w->s[i].stalled_until = 0;
	for (int i = 0; i < 60 && !w->why && (i < 4 || judge_end(w)); i++)
		run_until(w, w->now + LEASE);
	w->why = w->why ? w->why : judge_end(w);
}

static bool one_seed(uint64_t seed, uint64_t *work)
{
	world *w = calloc(1, sizeof(*w));
	tn_coord_params p = {.lease_ns = LEASE, .margin_ns = MARGIN, .balance_ns = 5 * LEASE, .moves = 2000};
	event tick = {.kind = TICK, .to = COORD};
	bool good;

	w->rand.state = seed;
	w->c = calloc(1, sizeof(*w->c));
	w->replicas = p.replicas = 1 + (world_below(w, 4) > 0);
	p.first = 1 + (uint32_t)world_below(w, 3);
	p.moves = world_below(w, 2) ? 4096 : 300;
	tn_coord_init(w->c, &p, NULL, 0);
	for (int i = 0; i < SERVERS; i++) {
		w->maps[i] = 0;
		/* as far off as the margin allows: slow ones are those whose leases last */
		w->s[i].rate = world_below(w, 2) ? 0.92 : 0.92 + 0.16 * tn_rand_double(&w->rand);
		w->s[i].start_at = world_below(w, 2) ? 0 : world_below(w, 10 * LEASE);
	}
	w->s[0].start_at = 0;
	net_post(w, &tick, 1);
	run_until(w, 60 * LEASE);
	heal(w);
	good = !w->why;
	if (!good && !TN_ANY_MUTANT)
		printf("seed %llu, at %llu, replicas %u: %s\n", (unsigned long long)seed,
		       (unsigned long long)w->now, w->replicas, w->why);
	if (!good && !TN_ANY_MUTANT)
		judge_dump(w);
	work[0] += w->reads;
	work[1] += w->writes;
	work[2] += w->kills;
	work[3] += w->c->map.version;
	work[4] += w->thefts;
	while (w->events)
		(void)net_take(w);
	free((void *)w->queue);
	free(w->c);
	free(w);
	return good;
}

static uint64_t first_seed = 1, seeds = 30;

static void seeds_hold(void **state)
{
	uint64_t work[5] = {0}, bad = 0;

	(void)state;
	for (uint64_t i = 0; i < seeds && bad < 5; i++)
		bad += !one_seed(first_seed + i, work);
	printf("%llu reads, %llu writes, %llu kills, %llu versions, %llu thefts\n",
	       (unsigned long long)work[0], (unsigned long long)work[1], (unsigned long long)work[2],
	       (unsigned long long)work[3], (unsigned long long)work[4]);
	assert_int_equal(bad, 0);
	assert_true(work[0] > seeds * 50 && work[1] > seeds * 20 && work[2] > seeds / 8);
}

#ifdef TN_MUTANTS

static const planted_bug planted[] = {
	PLANTED_COORD,
	/* The simulator of replication does not find these in some hundred seeds. */
	{205, "what was said long ago proves that its server is alive"},
	{206, "a server is replaced while its lease runs"},
	{210, "a slot that goes on alone keeps its epoch"},
	{212, "the number of a server that is gone is given away while slots name it"},
	{215, "a server that is drained keeps what it is primary of"},
};

static bool seed_holds(uint64_t seed)
{
	uint64_t work[5] = {0};

	return one_seed(seed, work);
}

#endif

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(seeds_hold)};

#ifdef TN_MUTANTS
	if (argc > 1 && strcmp(argv[1], "--mutants") == 0)
		return planted_find(planted, TN_COUNT_OF(planted), seed_holds, argc > 2 ? atoi(argv[2]) : 0,
				    argc > 3 ? strtoull(argv[3], NULL, 10) : 1000);
#endif
	if (argc > 1)
		seeds = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		first_seed = strtoull(argv[2], NULL, 10);
	if (argc > 3)
		follow = atoi(argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

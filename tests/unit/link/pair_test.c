/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two links under random schedules and faults: see pair.h and pair_load.h for what is varied and judged.
 * PAIR_SEED=n runs one seed alone, PAIR_SEEDS=n that many, PAIR_LOG=1 prints state changes.
 */
#include "cmocka_all.h"
#include "link/wire.h"
#include "unit/link/pair_load.h"

static uint64_t seeds(uint64_t dflt)
{
	const char *text = getenv("PAIR_SEEDS");

	return text ? strtoull(text, NULL, 0) : dflt;
}

typedef enum fault {
	FAULT_NONE,
	FAULT_BREAK,
	FAULT_CTRL,
	FAULT_CLOSE,
	FAULT_ABORT,
	FAULT_MUTE,
	FAULT_CUT,  /* the control connection ends again and again, and comes back */
	FAULT_MEND, /* lanes break again and again, and are rebuilt */
	FAULTS,
	FAULT_LIE, /* devices deliver units twice, or leave them out and report success */
} fault;

/* The first provider may fail in each of the ways there are: then the second carries the link. */
static void two_providers(pair_world *world, uint32_t caps, uint32_t frame, uint64_t probe_ns)
{
	for (int i = 0; i < 2; i++) {
		world->node[i].config.provider_count = 2;
		pair_provider(&world->node[i].providers[1], "alt", caps, frame);
	}
	world->reach_fails[0] = pair_chance(world, 30);
	world->create_fails = pair_chance(world, 30);
	world->connect_fails = pair_chance(world, 30);
	if (pair_chance(world, 60))
		world->heals = 1 + pair_pick(world, 250) * 20;
	for (int i = 0; i < 2; i++)
		world->node[i].config.probe_ns = probe_ns;
}

/* Sizes and behaviour from the seed (swarm: each run has some of the features, not all). */
static void shape(pair_world *world, load *l, fault what)
{
	bool recover =
		what == FAULT_MEND || what == FAULT_LIE || (what != FAULT_BREAK && pair_chance(world, 50));
	static const uint32_t frames[] = {512, 700, 1024, 4096};
	uint32_t lanes = pair_pick(world, 4), caps = PAIR_CAPS;
	uint32_t frame = frames[pair_pick(world, 4)];
	uint64_t probe_ns = pair_chance(world, 70) ? (1 + pair_pick(world, 200)) * 1000 : 0;

	world->again = pair_chance(world, 50) ? pair_pick(world, 30) : 0;
	world->sync = pair_chance(world, 50) ? pair_pick(world, 101) : 0;
	world->defer_pump = pair_chance(world, 50) ? pair_pick(world, 90) : 0;
	l->cancel = pair_chance(world, 50) ? pair_pick(world, 20) : 0;
	l->deadline = pair_chance(world, 30) ? pair_pick(world, 30) : 0;
	l->refuse_open = pair_chance(world, 30) ? 20 : 0;
	if (pair_chance(world, what == FAULT_LIE ? 100 : 25)) {
		caps &= ~(uint32_t)TN_LINK_CAP_REMOTE_DONE;
		world->silent = pair_chance(world, 60);
	}
	if (pair_chance(world, 20))
		caps &= ~(uint32_t)TN_LINK_CAP_WRITE_IMM;
	if (pair_chance(world, 20))
		caps &= ~(uint32_t)(TN_LINK_CAP_ORDERED_WRITES | TN_LINK_CAP_READ);
	l->no_flag = !(caps & TN_LINK_CAP_ORDERED_WRITES);
	l->no_get = !(caps & TN_LINK_CAP_READ);
	/* Where a device lacks REMOTE_DONE, a refused access kills its lane. */
	if (!(caps & TN_LINK_CAP_REMOTE_DONE) && what == FAULT_MEND && pair_chance(world, 50)) {
		l->mended = world->nak_breaks = true;
		l->refuse_region = 1 + pair_pick(world, 5);
	}
	if (caps & TN_LINK_CAP_REMOTE_DONE) {
		l->refuse_region = pair_chance(world, 30) ? 15 : 0;
		world->refuse_piece = pair_chance(world, 20) ? 5 : 0;
	}
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world->node[i].config;

		c->recover_ns = recover ? 10 * TN_NS_PER_SEC : 0;
		c->data_lanes = lanes;
		c->channels_max = 4 + pair_pick(world, 12);
		c->ops_max = 4 + pair_pick(world, 40);
		c->channel_ops_max = 0;
		c->wrs_max = 16 + pair_pick(world, 40);
		c->window_bytes = 1 + pair_pick(world, 255) * 200;
		c->chunk_bytes = 64 + pair_pick(world, 255) * 64;
		c->small_bytes = pair_pick(world, 255) * 8;
		c->channel_window_bytes = 1024 + pair_pick(world, 255) * 64;
		c->lane_data_frames = 1 + pair_pick(world, 20);
		c->ack_delay_ns = pair_chance(world, 50) ? 20000 : 0;
		c->keepalive_ns = what == FAULT_CUT ? TN_NS_PER_SEC : TN_NS_PER_MS;
		c->redial_ns = what == FAULT_CUT ? 10 * TN_NS_PER_SEC : 0;
		pair_provider(&world->node[i].providers[0], "mem", caps, frame + pair_pick(world, 100));
		world->node[i].providers[0].lane_wrs_max = 1 + pair_pick(world, 60);
	}
	if (pair_chance(world, what == FAULT_MEND ? 60 : 30))
		two_providers(world, caps, frame, probe_ns);
	if (pair_chance(world, 40))
		world->slow_path = 1 + TN_LINK_LANES_MAX + pair_pick(world, 4);
	for (int i = 0; i < 2; i++)
		world->room[i] = pair_chance(world, 15) ? 1 + pair_pick(world, 3) : 0;
	world->room_known = pair_chance(world, 50);
	world->check_level = pair_chance(world, 30) ? 2 : 1;
}

/* One that is in use on both sides. */
static pair_path *load_a_path(pair_world *world)
{
	pair_path *path;

	do
		path = &world->paths[pair_pick(world, world->path_count)];
	while (!path->used || !path->end[0].up || path->end[0].gone);
	return path;
}

/* Breaks that a seed may still have before the link is up: a few are no end. */
static unsigned early;

/* Cut a path that carries something, if there is one. */
static void break_some(pair_world *world, load *l)
{
	uint32_t first = pair_pick(world, PAIR_PATHS);

	for (uint32_t i = 0; i < world->path_count; i++) {
		pair_path *path = &world->paths[(first + i) % world->path_count];

		if (!path->used || path->broken || !path->end[0].up || !path->end[1].up ||
		    path->end[0].gone || path->end[1].gone || (!pair_both_up(world) && early == 0))
			continue;
		early -= !pair_both_up(world);
		l->mended = true;
		/* The first provider may be gone for a while with it. */
		if (world->node[0].config.provider_count == 2 && pair_chance(world, 50)) {
			world->reach_fails[0] = pair_chance(world, 50);
			world->connect_fails = !world->reach_fails[0];
			world->heals = 1 + pair_pick(world, 250) * 10;
		}
		pair_break(world, path);
		return;
	}
}

static void strike(pair_world *world, load *l, fault what)
{
	int side = (int)pair_pick(world, 2);

	switch (what) {
	case FAULT_MEND:
		break_some(world, l);
		break;
	case FAULT_CUT:
		pair_ctrl_cut(world);
		break;
	case FAULT_BREAK:
		l->broke = true;
		pair_break(world, load_a_path(world));
		break;
	case FAULT_CTRL:
		l->broke = true;
		for (int i = 0; i < 2; i++)
			world->node[i].ctrl_down_due = true;
		break;
	case FAULT_CLOSE:
		l->closed[side] = true;
		tn_link_close(world->node[side].link, world->now);
		if (pair_chance(world, 30)) {
			l->closed[!side] = true;
			tn_link_close(world->node[!side].link, world->now);
		}
		break;
	case FAULT_ABORT:
		l->broke = true;
		tn_link_abort(world->node[side].link, TERN_E_PEER_RESTARTED, "a newer one", world->now);
		break;
	case FAULT_MUTE:
		l->broke = true;
		world->mute = true;
		break;
	default:
		break;
	}
	pair_kick(world, 0);
	pair_kick(world, 1);
}

/* Of a stream of its own: what seeds found before stays what it was. */
static void shape_flow(pair_world *world, uint64_t seed)
{
	tn_rand rand = {.state = seed * 0xd1342543de82ef95ull + 7};

	if (tn_rand_below(&rand, 100) < 40)
		tn_link_budget_init(&world->budget, 1 + tn_rand_below(&rand, 60000), NULL);
	if (tn_rand_below(&rand, 100) < 50)
		tn_link_arbiter_init(&world->arbiter, tn_rand_below(&rand, 100000), TN_GRANT_UNIT_MIN, NULL);
	/* Room for lanes to come, and little beyond that. */
	if (tn_rand_below(&rand, 100) < 50) {
		tn_link_pool_init(&world->pool, 8192, 8 + (uint32_t)tn_rand_below(&rand, 100), NULL);
		world->ballast = 8192 - tn_pool_kept(8192) - (uint32_t)tn_rand_below(&rand, 200);
		tn_pool_take(&world->pool, world->ballast);
		world->pools[0] = world->pools[1] = &world->pool;
	}
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world->node[i].config;

		c->features_off |= tn_rand_below(&rand, 100) < 10 ? TN_FEATURE_SLOTS : 0;
		c->features_off |= tn_rand_below(&rand, 100) < 10 ? TN_FEATURE_GRANTS : 0;
		c->lane_idle_ns = tn_rand_below(&rand, 100) < 60 ? (1 + tn_rand_below(&rand, 200)) * 1000 : 0;
		c->window_adaptive = tn_rand_below(&rand, 100) < 40;
		c->window_min_bytes = 1 + tn_rand_below(&rand, c->window_bytes);
		c->window_target_ns = 1 + tn_rand_below(&rand, 100000);
	}
}

/* Of a stream of its own, too: a little of it, so that lanes carry something between two breaks. */
static void shape_lies(pair_world *world, load *l, uint64_t seed)
{
	tn_rand rand = {.state = seed * 0xa0761d6478bd642full + 11};

	world->twice = (unsigned)tn_rand_below(&rand, 4);
	world->left_out = (unsigned)tn_rand_below(&rand, 3);
	l->mended = true;
}

/* Of all seeds: links that went over to a better provider, and the like. */
static uint64_t left_out, came_twice;
static uint64_t returns, probes_failed, rejoins, slots_added, slots_given, given_up, made_again, reclaimed;

static pair_world world;
static load work;

static void until_idle(void)
{
	for (uint32_t i = 0; i < 400000 && !load_idle(&work); i++) {
		pair_step(&world);
		load_settle(&work);
	}
	PAIR_CHECK(&world, load_idle(&work));
}

static bool at_its_best(void)
{
	for (int i = 0; i < 2; i++)
		if (tn_link_get_state(world.node[i].link) != TN_LINK_UP ||
		    tn_link_provider_index(world.node[i].link) != 0)
			return false;
	return true;
}

/* Whatever failed works again: the link comes back to its first provider by itself, under load as well. */
static void back_to_the_best(void)
{
	world.heals = 0;
	world.reach_fails[0] = world.create_fails = world.connect_fails = false;
	for (uint32_t i = 0; i < 300; i++) {
		if (pair_chance(&world, 35))
			load_step(&work);
		else
			pair_step(&world);
	}
	load_settle(&work);
	PAIR_CHECK(&world, PAIR_UNTIL(&world, at_its_best(), 400000));
	until_idle();
}

/* Both ways at once are no fault that is survived; nor is a cut while one comes back. */
static bool may_cut(void)
{
	for (int i = 0; i < 2; i++)
		if (tn_link_get_state(world.node[i].link) != TN_LINK_UP || world.node[i].ctrl_down_due ||
		    world.node[i].dial_due || world.node[i].fresh || world.node[i].cut)
			return false;
	return true;
}

/* Another link of the device: it wants slots, and gives back what it is asked for. Dice of its own, too. */
static tn_pool_seat rival;
static tn_rand rival_dice;

static void rival_begin(uint64_t seed)
{
	rival = (tn_pool_seat){0};
	rival_dice = (tn_rand){.state = seed * 0x9fb21c651e98df25ull + 3};
	if (world.pools[0] && tn_pool_take(&world.pool, TN_POOL_LEAST))
		tn_pool_join(&world.pool, &rival, TN_POOL_LEAST);
}

static void rival_step(void)
{
	uint32_t added, asked;

	if (!rival.joined || tn_rand_below(&rival_dice, 100) >= 5)
		return;
	switch (tn_rand_below(&rival_dice, 4)) {
	case 0: /* nothing arrives between two looks */
		tn_pool_hungry(&world.pool, &rival);
		tn_pool_hungry(&world.pool, &rival);
		break;
	case 1:
		rival.used++;
		break;
	case 2:
		tn_pool_read(&world.pool, &rival, &added, &asked);
		PAIR_CHECK(&world, tn_pool_given(&world.pool, &rival, asked));
		break;
	default:
		tn_pool_give(&world.pool, tn_pool_leave(&world.pool, &rival) - TN_POOL_LEAST);
		tn_pool_join(&world.pool, &rival, TN_POOL_LEAST);
		break;
	}
}

/* Other links of both devices come with data lanes, use them, keep them and go. Dice of their own. */
static tn_quota_seat crowd[2];
static tn_rand crowd_dice;

static void crowd_begin(uint64_t seed)
{
	crowd_dice = (tn_rand){.state = seed * 0xbf58476d1ce4e5b9ull + 5};
	memset(crowd, 0, sizeof(crowd));
	for (int i = 0; i < 2; i++) {
		uint64_t rest = 1 + tn_rand_below(&crowd_dice, 30000);

		world.node[i].config.lane_rest_ns = rest;
		world.node[i].config.features_off |=
			tn_rand_below(&crowd_dice, 100) < 10 ? TN_FEATURE_NARROW : 0;
		tn_link_quota_init(&world.quota[i], (uint32_t)tn_rand_below(&crowd_dice, 4), rest, NULL);
	}
}

static void crowd_step(void)
{
	int i = (int)tn_rand_below(&crowd_dice, 2);
	tn_link_quota *quota = &world.quota[i];

	if (!quota->cap || tn_rand_below(&crowd_dice, 100) >= 10)
		return;
	if (!crowd[i].joined)
		tn_quota_join(quota, &crowd[i], 1 + (uint32_t)tn_rand_below(&crowd_dice, 3), world.now);
	else if (tn_rand_below(&crowd_dice, 100) < 50)
		tn_quota_keep(quota, &crowd[i], world.now);
	else if (tn_rand_below(&crowd_dice, 100) < 50)
		crowd[i].used_ns = world.now;
	else
		tn_quota_leave(quota, &crowd[i]);
	tn_quota_look(quota, world.now);
}

/* What stays as it was before, or comes back by itself. */
static bool survived(fault what)
{
	return what == FAULT_NONE || what == FAULT_MEND || what == FAULT_CUT || what == FAULT_LIE;
}

static void tally(void)
{
	const tn_link_counters *c = tn_link_get_counters(world.node[0].link);

	returns += c->returns;
	rejoins += c->rejoins;
	probes_failed += c->probes_failed;
	given_up += c->lanes_given_up;
	made_again += c->lanes_made_again;
	reclaimed += c->lanes_reclaimed;
	for (int i = 0; i < 2; i++) {
		came_twice += tn_link_get_counters(world.node[i].link)->came_twice;
		left_out += tn_link_get_counters(world.node[i].link)->left_out;
	}
	slots_added += tn_counter_read(&world.pool.added);
	slots_given += tn_counter_read(&world.pool.given);
}

static void run_seed(uint64_t seed, bool lies)
{
	fault what;
	uint32_t steps, when;
	bool struck = false;

	pair_init(&world, seed * 0x9e3779b97f4a7c15ull + 1);
	load_init(&work, &world);
	what = (fault)pair_pick(&world, FAULTS);
	what = lies ? FAULT_LIE : what;
	shape(&world, &work, what);
	for (int i = 0; i < 2; i++) /* without a turn of the dice */
		world.node[i].config.checksum = world.rand.state >> 3 & 1;
	early = pair_chance(&world, 50) ? pair_pick(&world, 3) : 0;
	shape_flow(&world, seed);
	if (lies)
		shape_lies(&world, &work, seed);
	rival_begin(seed);
	crowd_begin(seed);
	pair_start(&world);
	steps = 200 + pair_pick(&world, 255) * 8;
	when = pair_pick(&world, 255) * steps / 255;
	for (uint32_t i = 0; i < steps; i++) {
		if (i >= when && !struck && pair_both_up(&world)) {
			struck = true;
			if (what != FAULT_CUT || may_cut())
				strike(&world, &work, what);
		}
		if (what == FAULT_CUT && pair_chance(&world, 1) && may_cut())
			pair_ctrl_cut(&world);
		if (what == FAULT_MEND && pair_chance(&world, pair_both_up(&world) ? 1 : 10))
			break_some(&world, &work);
		rival_step();
		crowd_step();
		if (pair_chance(&world, 35))
			load_step(&work);
		else
			pair_step(&world);
		if (pair_chance(&world, 2))
			world.now += pair_pick(&world, 100) * 1000;
	}
	load_settle(&work);
	PAIR_CHECK(&world, PAIR_UNTIL(&world, pair_both_up(&world), 20000));
	if (!struck)
		strike(&world, &work, what);
	if (survived(what)) {
		/* No fault that stays: everything ends by itself, nobody is down, and then the close is orderly. */
		until_idle();
		if (world.node[0].config.provider_count == 2 && world.node[0].config.probe_ns &&
		    world.node[0].config.recover_ns)
			back_to_the_best();
		PAIR_CHECK(&world, !world.node[0].down && !world.node[1].down);
		work.closed[0] = true;
		tn_link_close(world.node[0].link, world.now);
		pair_pump(&world, 0);
	}
	PAIR_CHECK(&world, PAIR_UNTIL(&world, pair_both_down(&world), 400000));
	if (what == FAULT_CLOSE || survived(what))
		for (int i = 0; i < 2; i++)
			PAIR_CHECK(&world,
				   world.node[i].status == (work.closed[i] ? TERN_OK : TERN_E_PEER_CLOSED));
	load_judge(&work);
	tally();
	load_fini(&work);
	pair_fini(&world);
}

/* Seeds that found something once. */
static const uint64_t regress[] = {528, 731, 784, 996, 5739, 13140, 44121};

static void random_schedules(void **state)
{
	const char *one = getenv("PAIR_SEED");
	uint64_t n = seeds(2000);

	(void)state;
	if (one) {
		run_seed(strtoull(one, NULL, 0), false);
		return;
	}
	for (unsigned i = 0; i < TN_COUNT_OF(regress); i++)
		run_seed(regress[i], false);
	for (uint64_t seed = 1; seed <= n; seed++) {
		if (getenv("PAIR_TRACE"))
			fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
		run_seed(seed, false);
	}
	print_message("returns %llu, probes that failed %llu, control connections that came back %llu\n",
		      (unsigned long long)returns, (unsigned long long)probes_failed,
		      (unsigned long long)rejoins);
	print_message("slots that links got %llu, gave back %llu\n", (unsigned long long)slots_added,
		      (unsigned long long)slots_given);
	print_message("data lanes given up %llu times, %llu for others, made again %llu times\n",
		      (unsigned long long)given_up, (unsigned long long)reclaimed,
		      (unsigned long long)made_again);
	if (n >= 2000)
		assert_true(returns >= 100 && probes_failed >= 100 && rejoins >= 100 && slots_added >= 100 &&
			    slots_given >= 100 && given_up >= 50 && made_again >= 15 && reclaimed >= 20);
}

static void lying_devices(void **state)
{
	const char *one = getenv("PAIR_SEED");
	uint64_t n = seeds(1000) / 2;

	(void)state;
	if (one) {
		run_seed(strtoull(one, NULL, 0), true);
		return;
	}
	came_twice = left_out = 0;
	for (uint64_t seed = 1; seed <= n; seed++) {
		if (getenv("PAIR_TRACE"))
			fprintf(stderr, "lying seed %llu\n", (unsigned long long)seed);
		run_seed(seed, true);
	}
	print_message("units that came twice %llu, lanes that a missing one broke %llu\n",
		      (unsigned long long)came_twice, (unsigned long long)left_out);
	if (n >= 500)
		assert_true(came_twice >= 500 && left_out >= 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_schedules),
		cmocka_unit_test(lying_devices),
	};

	return RUN(tests);
}

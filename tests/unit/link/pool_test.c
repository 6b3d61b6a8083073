/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive slots that move between links: the pool by itself; two links of one device; what a peer may not say.
 */
#include "link/wire.h"
#include "unit/link/record.h"

static uint64_t counter(const tn_link *link, size_t offset)
{
	return tn_counter_read((const tn_counter *)((const char *)tn_link_get_counters(link) + offset));
}
#define COUNTER(link, name) counter(link, offsetof(tn_link_counters, name))

/* ---- the pool ---- */

static tn_link_pool pool;
static tn_pool_seat seats[3];

static void join_all(uint32_t slots, uint32_t most, uint32_t level)
{
	memset(seats, 0, sizeof(seats));
	tn_link_pool_init(&pool, slots, most, NULL);
	for (unsigned i = 0; i < TN_COUNT_OF(seats); i++) {
		assert_true(tn_pool_take(&pool, level));
		tn_pool_join(&pool, &seats[i], level);
	}
}

static void hungry(unsigned i)
{
	seats[i].used++;
	tn_pool_hungry(&pool, &seats[i]);
	tn_link_pool_check(&pool);
}

/* Who needs more gets as much again, up to the most, and five sixteenths are kept for lanes to come. */
static void the_hungry_grow(void **state)
{
	(void)state;
	join_all(256, 128, 16);
	hungry(0);
	assert_int_equal(seats[0].level, 32);
	assert_true(seats[0].news);
	hungry(0);
	hungry(0);
	hungry(0);
	assert_int_equal(seats[0].level, 128);
	hungry(1);
	assert_int_equal(seats[1].level, 32);
	assert_int_equal(pool.asked, 0);
	hungry(1);
	/* 256 - 80 are all that seats have together: now others are asked. */
	assert_int_equal(pool.taken, 176);
	assert_int_equal(seats[1].level, 32);
	assert_int_equal(pool.asked, 32);
	assert_true(tn_pool_take(&pool, 80));
	assert_false(tn_pool_take(&pool, 1));
	tn_pool_give(&pool, 80);
}

/* Slots of an idle one are free when it has given them, and not when it was asked. */
static void the_idle_give(void **state)
{
	uint32_t added, asked;

	(void)state;
	join_all(80, 80, 16);
	hungry(0);
	assert_int_equal(seats[0].level, 23); /* all there is */
	hungry(1);                            /* nothing came to 0 and 2 since the last look */
	tn_pool_read(&pool, &seats[0], &added, &asked);
	assert_int_equal(added, 7);
	assert_int_equal(asked, 15);
	assert_int_equal(seats[2].asked, 1);
	assert_int_equal(seats[1].level, 16);
	assert_int_equal(pool.taken, 55);
	/* What it can't give. */
	assert_false(tn_pool_given(&pool, &seats[0], 16));
	assert_true(tn_pool_given(&pool, &seats[0], 6));
	assert_false(tn_pool_given(&pool, &seats[0], 5));
	tn_link_pool_check(&pool);
	assert_int_equal(seats[0].level, 17);
	assert_int_equal(seats[1].level, 22);
	assert_true(tn_pool_given(&pool, &seats[0], 15));
	assert_int_equal(seats[0].level, TN_POOL_LEAST);
	/* One that goes takes what it has with it, until its lane is gone. */
	tn_pool_give(&pool, tn_pool_leave(&pool, &seats[2]));
	tn_link_pool_check(&pool);
	assert_int_equal(pool.asked, 0);
}

/* Who was hungry and has stopped neither keeps what it has nor holds others up. */
static void old_hunger(void **state)
{
	(void)state;
	join_all(80, 80, 16);
	hungry(0);
	hungry(0); /* waits for more */
	assert_int_equal(seats[0].level, 23);
	for (unsigned i = 1; i < 3; i++)
		assert_true(tn_pool_given(&pool, &seats[i], seats[i].asked));
	hungry(1);
	hungry(1);
	assert_true(seats[0].asked > 0);
	assert_true(tn_pool_given(&pool, &seats[0], seats[0].asked));
	assert_true(seats[1].level > seats[0].level);
	tn_link_pool_check(&pool);
}

/* A lane that takes of what is kept is made up for by those that are idle. */
static void lanes_to_come(void **state)
{
	(void)state;
	join_all(256, 128, 16);
	hungry(0);
	hungry(0);
	hungry(0);
	seats[1].used++;
	assert_true(tn_pool_take(&pool, 40));
	/* 16 were free above those kept. */
	assert_int_equal(seats[0].asked, 24);
	assert_int_equal(pool.asked, 24);
	assert_true(tn_pool_take(&pool, 8));
	assert_int_equal(pool.asked, 32);
	tn_pool_give(&pool, 48);
	tn_link_pool_check(&pool);
}

/* ---- links ---- */

static pair_world others[2];
static uint32_t channels[2];
static uint64_t received[2];

static void accept_all(pair_world *w, int side, const tn_link_action *act)
{
	if (act->type == TN_ACT_CHANNEL_INCOMING)
		assert_ok(tn_link_channel_accept(w->node[side].link, act->channel.channel, NULL, 0));
}

static void count_rx(pair_world *w, int side, const tn_link_rx *rx)
{
	received[w - others] += side == 1 && rx->type == TN_RX_MESSAGE;
}

static void start_two(uint64_t off)
{
	memset(received, 0, sizeof(received));
	/* After lanes of two links and both sides there are some slots, and an eighth for those to come. */
	tn_link_pool_init(&pool, 512, 128, NULL);
	for (int i = 0; i < 2; i++) {
		tn_link *link;

		pair_init(&others[i], 23 + (uint64_t)i);
		others[i].on_action = accept_all;
		others[i].on_rx = count_rx;
		others[i].check_level = 2;
		others[i].node[0].config.features_off = off;
		others[i].pools[1] = &pool;
		pair_start(&others[i]);
		link = others[i].node[0].link;
		assert_true(PAIR_UNTIL(&others[i], pair_both_up(&others[i]), 5000));
		assert_ok(tn_link_channel_open(link, "c", NULL, 0, &channels[i]));
	}
}

/* Small messages over one of the links, as fast as they go. */
static void send_on(int i, uint64_t n)
{
	tn_link *link = others[i].node[0].link;
	tn_link_op_params params = {.deadline_ns = UINT64_MAX};
	tn_link_iov iov = {"x", 1};
	uint64_t handle, until = received[i] + n;

	for (uint32_t steps = 0; received[i] < until; steps++) {
		assert_true(steps < 400000);
		while (tn_link_send(link, channels[i], &iov, 1, &params, &handle) == TERN_OK)
			;
		pair_pump(&others[i], 0);
		for (int k = 0; k < 2; k++)
			pair_step(&others[k]);
		tn_link_pool_check(&pool);
	}
}

static uint32_t level_of(int i)
{
	tn_list *node = tn_list_first(&pool.seats);

	return TN_LIST_ENTRY(i ? node->next : node, tn_pool_seat, node)->level;
}

/* The link that sends has more, and when the other one does it moves there: never more than there are. */
static void move_between_links(void **state)
{
	uint32_t first[2], before[2], given;

	(void)state;
	start_two(0);
	/* What is left is little. */
	assert_true(tn_pool_take(&pool, 512 - tn_pool_kept(512) - pool.taken - 10));
	for (int i = 0; i < 2; i++)
		first[i] = level_of(i);
	send_on(0, 1000);
	for (int i = 0; i < 2; i++)
		before[i] = level_of(i);
	assert_true(before[0] >= first[0] + 10 && before[1] <= first[1]);
	assert_true(COUNTER(others[0].node[1].link, slots_frames) > 0);
	given = (uint32_t)tn_counter_read(&pool.given);
	send_on(1, 3000);
	assert_true(level_of(0) < before[0] && level_of(0) >= TN_POOL_LEAST);
	assert_true(level_of(1) > before[1]);
	assert_int_equal(tn_counter_read(&pool.given) - given, before[0] - level_of(0));
	assert_true(COUNTER(others[0].node[0].link, relinquished_frames) > 0);
	assert_true(pool.taken <= 512 - tn_pool_kept(512));
	/* The first goes on with what it has kept. */
	send_on(0, 1000);
	for (int i = 0; i < 2; i++)
		pair_fini(&others[i]);
}

static void older_peer(void **state)
{
	(void)state;
	start_two(TN_FEATURE_SLOTS);
	send_on(0, 1000);
	assert_int_equal(pool.added, 0);
	assert_int_equal(COUNTER(others[0].node[1].link, slots_frames), 0);
	for (int i = 0; i < 2; i++)
		pair_fini(&others[i]);
}

/* ---- what a peer may not say ---- */

static void says(int side, tn_frame_type type, uint32_t added, uint32_t asked, const char *words)
{
	tn_frame_slots frame = {.head = {.type = (uint8_t)type, .epoch = 1}, .added = added, .asked = asked};
	tn_link_rx rx;

	record_init();
	world.check_level = 1;
	tn_link_pool_init(&pool, 512, 128, NULL);
	if (side == 1)
		world.pools[1] = &pool;
	if (!added && !asked)
		world.node[0].config.features_off = TN_FEATURE_SLOTS;
	world.node[0].config.features_off |= TN_FEATURE_NUMBERS;
	record_start();
	run();
	tn_link_on_frame(link_of(side), world.paths[TN_LINK_LANES_MAX].end[side].handle, &frame,
			 sizeof(frame), world.now, &rx);
	if (tn_link_status(link_of(side)) != TERN_E_PROTOCOL || !strstr(tn_link_detail(link_of(side)), words))
		fail_msg("%s '%s' lacks '%s'", tern_status_name(tn_link_status(link_of(side))),
			 tn_link_detail(link_of(side)), words);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	pair_fini(&world);
}

static void wrong_words(void **state)
{
	(void)state;
	says(0, TN_FRAME_SLOTS, 0, 0, "without the feature");
	says(0, TN_FRAME_RELINQUISHED, 0, 0, "without the feature");
	says(0, TN_FRAME_SLOTS, 1020, 0, "beyond what a lane may have");
	says(0, TN_FRAME_SLOTS, UINT32_MAX, 0, "falls");
	says(0, TN_FRAME_SLOTS, 0, UINT32_MAX, "falls");
	says(0, TN_FRAME_SLOTS, 0, 100, "more than there is");
	says(0, TN_FRAME_RELINQUISHED, 1, 0, "was not asked for");
	says(1, TN_FRAME_RELINQUISHED, 1, 0, "more than was asked for");
	says(1, TN_FRAME_RELINQUISHED, 2000, 0, "of what was used");
}

/* The flag that says that a sender waited is for those that know of slots, and of lane 0. */
static void wrong_flag(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		tn_frame_head head = {.type = TN_FRAME_SYNC, .flags = TN_FRAME_SHORT, .epoch = 1};
		tn_link_rx rx;

		record_init();
		world.node[0].config.features_off = TN_FEATURE_NUMBERS | (i == 0 ? TN_FEATURE_SLOTS : 0);
		record_start();
		run();
		tn_link_on_frame(link_of(1), world.paths[TN_LINK_LANES_MAX + (uint32_t)i].end[1].handle,
				 &head, sizeof(head), world.now, &rx);
		assert_int_equal(tn_link_status(link_of(1)), TERN_E_PROTOCOL);
		assert_non_null(strstr(tn_link_detail(link_of(1)), "SHORT"));
		assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
		pair_fini(&world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_hungry_grow),    cmocka_unit_test(the_idle_give),
		cmocka_unit_test(move_between_links), cmocka_unit_test(older_peer),
		cmocka_unit_test(wrong_words),        cmocka_unit_test(wrong_flag),
		cmocka_unit_test(lanes_to_come),      cmocka_unit_test(old_hunger),
	};

	return RUN(tests);
}

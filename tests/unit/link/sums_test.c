/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of messages: agreed on, right for each size and piece, and what one changed bit does. That they also
 * hold when lanes break and frames go again: tests/unit/link/pair_test.c, half of whose runs have them.
 */
#include "cmocka_all.h"
#include "link/wire.h"
#include "unit/link/pair_load.h"

static pair_world world;
static load work;

static void open_world(uint64_t seed, bool a, bool b)
{
	pair_init(&world, seed);
	load_init(&work, &world);
	world.node[0].config.checksum = a;
	world.node[1].config.checksum = b;
	for (int i = 0; i < 2; i++)
		world.node[i].config.recover_ns = 0;
	pair_start(&world);
	assert_true(PAIR_UNTIL(&world, pair_both_up(&world), 5000));
}

static void close_world(void)
{
	load_fini(&work);
	pair_fini(&world);
}

static uint64_t corrupt(int side)
{
	return tn_counter_read(&tn_link_get_counters(world.node[side].link)->corrupt);
}

/* A frame of a message, arrived and not looked at yet. */
static pair_event *find_data(int *side)
{
	for (uint32_t i = 0; i < PAIR_PATHS; i++)
		for (int s = 0; s < 2 && world.paths[i].used; s++) {
			pair_end *end = &world.paths[i].end[s];

			for (uint32_t k = 0; k < end->event_count; k++) {
				pair_event *event = &end->events[k];

				if (event->type != PAIR_FRAME ||
				    (event->frame[0] != TN_FRAME_DATA && event->frame[0] != TN_FRAME_FRAG))
					continue;
				*side = s;
				return event;
			}
		}
	return NULL;
}

/* Only if both sides want them, and then on every message. */
static void agreed(void **state)
{
	(void)state;
	for (int both = 0; both < 4; both++) {
		bool a = both & 1, b = both & 2;
		int side, seen = 0;

		open_world(17, a, b);
		for (int i = 0; i < 2; i++)
			assert_int_equal(!!(tn_link_get_peer(world.node[i].link)->features & TN_FEATURE_SUMS),
					 a && b);
		for (int i = 0; i < 4000; i++) {
			pair_event *event;
			uint32_t sum;

			if (i % 3 == 0)
				load_step(&work);
			else
				pair_step(&world);
			event = find_data(&side);
			if (!event)
				continue;
			memcpy(&sum, event->frame + offsetof(tn_frame_data, sum), sizeof(sum));
			/* One in 2^32 messages has a sum of zero. */
			assert_int_equal(sum != 0, a && b);
			seen++;
		}
		assert_true(seen > 100);
		assert_int_equal(corrupt(0) + corrupt(1), 0);
		close_world();
	}
}

/* Any bit of a message's body and payload: it is never delivered, and the link says why on both sides. */
static void one_bit(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		pair_event *event = NULL;
		uint64_t bit;
		int side = 0;

		open_world(seed, true, true);
		for (int i = 0; i < 20000 && !event; i++) {
			if (i % 3 == 0)
				load_step(&work);
			else
				pair_step(&world);
			if (i > 300)
				event = find_data(&side);
		}
		assert_non_null(event);
		bit = 8 * sizeof(tn_frame_head) +
		      pair_pick(&world, (uint32_t)(8 * (event->bytes - sizeof(tn_frame_head))));
		event->frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
		work.broke = true;
		assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 200000));
		/* A changed length or offset is found by the parser first. */
		if (world.node[side].status == TERN_E_CORRUPT) {
			assert_int_equal(corrupt(side), 1);
			assert_non_null(strstr(world.node[side].detail, "checksum"));
			assert_true(world.node[!side].status == TERN_E_CORRUPT ||
				    world.node[!side].status == TERN_E_LANE);
		} else {
			assert_int_equal(world.node[side].status, TERN_E_PROTOCOL);
		}
		close_world(); /* the load's judge looked at each byte that was delivered */
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(agreed), cmocka_unit_test(one_bit)};

	return RUN(tests);
}

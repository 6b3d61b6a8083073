/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: two links against each other. The input decides every choice of the schedule (which event next,
 * what the devices answer, what the programs submit, when a lane dies); the judge of pair_load.h traps on what
 * may not be. Some inputs also forge frames and control bytes: then the attacked link may end with PROTOCOL,
 * and everything still ends once.
 */
#include "unit/link/pair_load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static pair_world world;
static load work;

static void shape(void)
{
	uint32_t caps = PAIR_CAPS;

	world.sync = pair_pick(&world, 101);
	world.again = pair_pick(&world, 30);
	world.defer_pump = pair_pick(&world, 60);
	work.cancel = pair_pick(&world, 15);
	work.deadline = pair_pick(&world, 15);
	if (pair_pick(&world, 4) == 0)
		caps &= ~(uint32_t)TN_LINK_CAP_REMOTE_DONE;
	if (pair_pick(&world, 4) == 0)
		caps &= ~(uint32_t)TN_LINK_CAP_WRITE_IMM;
	work.bytes_max = 6000;
	for (int i = 0; i < 2; i++) {
		tn_link_config *c = &world.node[i].config;

		c->data_lanes = pair_pick(&world, 3);
		c->checksum = world.bytes_left & 1;
		c->channels_max = 4;
		c->ops_max = 16;
		c->wrs_max = 24;
		c->chunk_bytes = 500;
		c->small_bytes = 200;
		c->window_bytes = 1500;
		c->channel_window_bytes = 2048;
		pair_provider(&world.node[i].providers[0], "mem", caps, 600);
		pair_provider(&world.node[i].providers[1], "alt", caps, 512);
		c->provider_count = 1 + (uint32_t)(pair_pick(&world, 4) == 0);
	}
	world.connect_fails =
		world.node[0].config.provider_count == 2 && world.node[1].config.provider_count == 2;
	world.slow_path = pair_pick(&world, 3) ? 0 : 1 + TN_LINK_LANES_MAX + pair_pick(&world, 3);
	world.check_level = 2;
}

/* What no honest peer sends. */
static void forge(void)
{
	int side = (int)pair_pick(&world, 2);
	tn_link *link = world.node[side].link;
	uint8_t bytes[96];
	uint32_t n = pair_pick(&world, sizeof(bytes)), lane;
	tn_link_rx rx;
	bool more;

	if (world.node[side].down || world.node[side].ctrl_closed)
		return;
	work.broke = true;
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)pair_pick(&world, 256);
	/* What it delivers is no part of the judged traffic. */
	lane = 16 + pair_pick(&world, 64);
	if (pair_pick(&world, 2))
		tn_link_on_ctrl_bytes(link, bytes, n, world.now);
	else if (!tn_link_fast_frame(link, lane, bytes, n, &rx, &more))
		tn_link_on_frame(link, lane, bytes, n, world.now, &rx);
	pair_kick(&world, side);
}

static void fault(uint32_t what)
{
	pair_path *path = &world.paths[TN_LINK_LANES_MAX + pair_pick(&world, 3)];
	int side = (int)pair_pick(&world, 2);

	switch (what) {
	case 0:
		work.broke = true;
		if (path->used)
			pair_break(&world, path);
		break;
	case 1:
		work.broke = true;
		world.node[0].ctrl_down_due = world.node[1].ctrl_down_due = true;
		break;
	case 2:
		work.closed[side] = true;
		tn_link_close(world.node[side].link, world.now);
		pair_kick(&world, side);
		break;
	default:
		forge();
		break;
	}
}

static void finish(void)
{
	load_settle(&work);
	for (uint32_t i = 0; i < 20000 && !load_idle(&work) && !pair_both_down(&world); i++) {
		pair_step(&world);
		load_settle(&work);
	}
	PAIR_CHECK(&world, load_idle(&work) || pair_both_down(&world) || work.broke);
	for (int i = 0; i < 2; i++) {
		work.closed[i] = true;
		if (!world.node[i].down)
			tn_link_close(world.node[i].link, world.now);
		pair_pump(&world, i);
	}
	PAIR_CHECK(&world, PAIR_UNTIL(&world, pair_both_down(&world), 100000));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	pair_init(&world, size);
	load_init(&work, &world);
	world.bytes = data;
	world.bytes_left = size;
	shape();
	pair_start(&world);
	for (uint32_t i = 0; i < 4000 && world.bytes_left > 0; i++) {
		uint32_t what = pair_pick(&world, 256);

		if (what >= 250 && pair_both_up(&world))
			fault(what % 4);
		else if (what % 3 == 0)
			load_step(&work);
		else
			pair_step(&world);
	}
	finish();
	/* Forged frames may have said anything of what arrived. */
	if (!work.broke)
		load_judge(&work);
	load_fini(&work);
	pair_fini(&world);
	return 0;
}

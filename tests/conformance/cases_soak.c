/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: a random mix of everything on a few lanes, judged by a model, with lanes that break and come
 * back. --seed of the runner changes it for targets that have an adversary. Main thread only.
 */
#include "conf.h"

#include <string.h>

enum { LANES = 3, CELLS = 16, CELL = 20000 };

/*
 * A lane owns CELLS cells at the target. A cell is written in one or two pieces and notified by number;
 * once its notification came its bytes are compared and the cell is free again.
 */
typedef struct soak_lane {
	conf_lane lane;
	uint32_t posted, seen;
	uint64_t bytes[CELLS];
} soak_lane;

typedef struct soak {
	conf_pair pair;
	soak_lane lanes[LANES];
	conf_region from, to, back;
	uint64_t verified;
} soak;

static uint64_t cell_at(unsigned lane, uint32_t number)
{
	return ((uint64_t)lane * CELLS + number % CELLS) * CELL;
}

static void post_cell(soak *s, unsigned which)
{
	soak_lane *l = &s->lanes[which];
	tn_rand *rand = &s->pair.rand;
	uint64_t at = cell_at(which, l->posted), bytes, cut;
	bool imm = s->pair.a->caps.flags & TN_CAP_WRITE_IMM && tn_rand_below(rand, 2);
	conf_req req = {.verb = CONF_WRITE, .key = s->to.key, .local = s->from.ptr + at, .offset = at};

	bytes = 8 + tn_rand_below(rand, tn_rand_below(rand, 4) ? 200 : CELL - 7);
	l->bytes[l->posted % CELLS] = bytes;
	conf_fill(s->from.ptr + at, bytes, which * 1000003ull + l->posted);
	cut = tn_rand_below(rand, bytes + 1);
	req.bytes = imm ? cut : bytes;
	req.level = tn_rand_below(rand, 2) ? conf_best_level(s->pair.a) : TN_LEVEL_LOCAL;
	req.more = tn_rand_below(rand, 2);
	conf_must(&s->pair, &l->lane.a, &req);
	if (imm) {
		req.verb = CONF_WRITE_IMM;
		req.local = s->from.ptr + at + cut;
		req.offset = at + cut;
		req.bytes = bytes - cut;
		req.imm = l->posted;
		req.more = false;
	} else {
		/* Any bytes of the source will do; only the order of messages says which cell it is. */
		req = (conf_req){
			.verb = CONF_SEND, .local = s->from.ptr + at, .bytes = tn_rand_below(rand, 9)};
	}
	conf_must(&s->pair, &l->lane.a, &req);
	l->posted++;
}

static void take_cells(soak *s)
{
	tn_event event;

	while (conf_inbox_take(s->pair.b, &event)) {
		unsigned which = 0;
		soak_lane *l;

		while (which < LANES && event.lane_arg != &s->lanes[which].lane.b)
			which++;
		assert_true(which < LANES);
		l = &s->lanes[which];
		CONF_CHECK(l->seen < l->posted, "a notification too many");
		if (event.type == TN_EV_IMM)
			CONF_CHECK(event.imm == l->seen, "cell %u instead of %u", event.imm, l->seen);
		conf_expect(s->to.ptr + cell_at(which, l->seen), l->bytes[l->seen % CELLS],
			    which * 1000003ull + l->seen, "a cell");
		conf_recv_done(s->pair.b, &event);
		l->seen++;
		s->verified++;
	}
}

/* Read somewhere; what comes back may be anything that was there, but it comes back once. */
static void post_read(soak *s, unsigned which)
{
	conf_req req = {.verb = CONF_READ, .key = s->to.key, .local = s->back.ptr};

	if (!(s->pair.a->caps.flags & TN_CAP_READ))
		return;
	req.bytes = tn_rand_below(&s->pair.rand, CELL);
	req.offset = tn_rand_below(&s->pair.rand, (uint64_t)LANES * CELLS * CELL - req.bytes);
	conf_must(&s->pair, &s->lanes[which].lane.a, &req);
}

static void break_lane(soak *s, unsigned which)
{
	soak_lane *l = &s->lanes[which];
	conf_end *end = tn_rand_below(&s->pair.rand, 2) ? &l->lane.a : &l->lane.b;

	end->node->dev->ops->lane_break(end->lane);
	while (!l->lane.a.down || !l->lane.b.down) {
		CONF_HERE();
		(void)conf_pump(&s->pair);
		take_cells(s);
	}
	conf_lane_free(&s->pair, &l->lane);
	take_cells(s);
	l->posted = l->seen = 0;
	conf_lane_up(&s->pair, &l->lane);
}

static void settle(soak *s)
{
	while (!conf_ledger_done(s->pair.a) || !conf_ledger_done(s->pair.b)) {
		CONF_HERE();
		(void)conf_pump(&s->pair);
		take_cells(s);
	}
	conf_ledger_settle(s->pair.a);
	conf_ledger_settle(s->pair.b);
}

static void random_traffic(bool with_breaks)
{
	static soak s;
	unsigned steps = conf_rounds(with_breaks ? 5000 : 15000);

	memset(&s, 0, sizeof(s));
	conf_pair_open(&s.pair);
	s.pair.rand.state = conf->seed + 77;
	for (unsigned i = 0; i < LANES; i++)
		conf_lane_up(&s.pair, &s.lanes[i].lane);
	conf_region_make(&s.from, s.pair.a, (uint64_t)LANES * CELLS * CELL, TERN_ACCESS_NONE);
	conf_region_make(&s.to, s.pair.b, (uint64_t)LANES * CELLS * CELL,
			 TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	conf_region_make(&s.back, s.pair.a, CELL, TERN_ACCESS_NONE);
	for (unsigned step = 1; step <= steps; step++) {
		unsigned which = (unsigned)tn_rand_below(&s.pair.rand, LANES);
		soak_lane *l = &s.lanes[which];

		/* A cell is used again when it was seen and its source is free: all ops are done now and then. */
		if (l->posted - l->seen < CELLS && (l->posted % CELLS || conf_ledger_done(s.pair.a)))
			post_cell(&s, which);
		if (tn_rand_below(&s.pair.rand, 10) == 0)
			post_read(&s, which);
		if (with_breaks && step % 100 == 0)
			break_lane(&s, which);
		if (tn_rand_below(&s.pair.rand, 3) == 0)
			(void)conf_pump(&s.pair);
		take_cells(&s);
		/* Steps of a device that answers from another thread, or from afar, would pass with nothing done. */
		if (step % 5000 == 0 || (step % 50 == 0 && s.verified < step / 5))
			settle(&s);
	}
	settle(&s);
	CONF_CHECK(s.verified > steps / 10, "only %llu cells in %u steps", (unsigned long long)s.verified,
		   steps);
	conf_region_free(&s.from);
	conf_region_free(&s.to);
	conf_region_free(&s.back);
	conf_pair_close(&s.pair);
}

static void mixed_traffic(void)
{
	random_traffic(false);
}

static void mixed_traffic_with_breaks(void)
{
	random_traffic(true);
}

const conf_case conf_cases_soak[] = {
	{.name = "mixed_traffic", .run = mixed_traffic, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "mixed_traffic_with_breaks",
	 .run = mixed_traffic_with_breaks,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{0},
};

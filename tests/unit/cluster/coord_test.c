/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator, one rule at a time: joins, deaths and who survives, reports that are late, drains, loads, giving up. */
#include <stdlib.h>
#include <string.h>

#include "cluster/coord.h"
#include "cmocka_all.h"

static tn_coord *c;
static uint64_t now;

static int set_up(void **state)
{
	(void)state;
	c = calloc(1, sizeof(*c));
	return c ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	free(c);
	return 0;
}

static void begin(uint32_t replicas, uint32_t first, uint32_t moves)
{
	tn_coord_params p = {.lease_ns = 1000,
			     .margin_ns = 100,
			     .balance_ns = 5000,
			     .replicas = replicas,
			     .first = first,
			     .moves = moves};

	now = 1;
	tn_coord_init(c, &p, NULL, now);
}

static uint16_t join(const char *address, uint64_t incarnation)
{
	uint16_t server;

	assert_ok(tn_coord_join(c, now, address, incarnation, TN_CL_VERSION, &server));
	return server;
}

static void alive(uint16_t server, uint64_t incarnation)
{
	assert_ok(tn_coord_renew(c, now, server, incarnation));
	tn_coord_heard(c, now, server, incarnation, now);
}

/* All copies arrive, all primaries let go. */
static void settle_down(void)
{
	static tn_coord_fact facts[TN_CL_SLOTS];
	uint64_t version;

	do {
		version = c->map.version;
		for (uint16_t s = 0; s < c->map.servers; s++) {
			uint32_t n = 0;

			for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
				const tn_cl_slot *slot = &c->map.slot[i];

				if (slot->primary == s && slot->backup != TN_CL_NONE)
					facts[n++] = (tn_coord_fact){.slot = (uint16_t)i,
								     .epoch = slot->epoch,
								     .what = slot->flags & TN_CL_MOVE
										     ? TN_REPORT_RELEASED
										     : TN_REPORT_SYNCED};
			}
			if (tn_cl_alive(&c->map, s))
				assert_ok(tn_coord_facts(c, now, s, c->map.server[s].incarnation, facts, n));
			tn_coord_check(c);
		}
	} while (c->map.version != version);
}

static uint32_t primaries(uint16_t server)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		n += c->map.slot[i].primary == server;
	return n;
}

static void forms_and_grows(void **state)
{
	(void)state;
	begin(1, 2, 100);
	assert_int_equal(join("a:1", 11), 0);
	assert_int_equal(c->map.slot[0].primary, TN_CL_NONE); /* one of two is there */
	assert_int_equal(join("b:1", 12), 1);
	assert_int_equal(primaries(0), TN_CL_SLOTS / 2);
	assert_int_equal(join("a:1", 11), 0); /* again: the same */
	assert_int_equal(join("c:1", 13), 2);
	settle_down();
	for (uint16_t s = 0; s < 3; s++) {
		assert_true(primaries(s) > TN_CL_SLOTS * 9 / 30);
		assert_true(primaries(s) < TN_CL_SLOTS * 11 / 30);
	}
	assert_ok(tn_coord_drain(c, now, 1));
	settle_down();
	assert_int_equal(primaries(1), 0);
	assert_ok(tn_coord_leave(c, now, 1, 12));
	assert_int_equal(c->map.server[1].state, TN_CL_FREE);
	assert_ok(tn_coord_drain(c, now, 2));
	assert_status(tn_coord_drain(c, now, 0), TERN_E_STATE); /* the last one */
}

static void survivors(void **state)
{
	(void)state;
	begin(2, 2, 4096);
	join("a:1", 11);
	join("b:1", 12);
	settle_down();
	assert_int_equal(c->map.slot[0].flags & TN_CL_IN_SYNC, TN_CL_IN_SYNC);
	tn_coord_pause(c, true);
	/* both silent: nobody is promoted, and the first that comes back has everything */
	now += 1100;
	tn_coord_tick(c, now);
	assert_int_equal(c->map.server[0].state, TN_CL_DOWN);
	assert_int_equal(c->map.slot[0].primary, 0);
	now += 50;
	alive(1, 12);
	assert_int_equal(c->map.slot[0].primary, 1);
	assert_int_equal(c->map.slot[0].backup, TN_CL_NONE);
	alive(0, 11);
	settle_down();
	assert_int_equal(c->map.slot[0].backup, 0);
	/* one is silent: the other takes over when it was heard of since */
	now += 900;
	alive(0, 11);
	now += 250;
	tn_coord_tick(c, now);
	assert_int_equal(c->map.server[1].state, TN_CL_DOWN);
	assert_int_equal(c->map.slot[0].primary, 1);
	tn_coord_heard(c, now + 5, 0, 11, now - 1); /* what it said before comes late */
	assert_int_equal(c->map.slot[0].primary, 1);
	tn_coord_heard(c, now + 5, 0, 11, now + 1);
	assert_int_equal(c->map.slot[0].primary, 0);
	/* who comes back is no primary any more */
	now += 10;
	alive(1, 12);
	assert_int_equal(c->map.slot[0].primary, 0);
	assert_int_equal(c->map.slot[0].backup, 1);
	assert_int_equal(c->map.slot[0].flags, 0);
}

/* Of two that back each other up one is to go: the other has everything alone then, and nothing alone before. */
static void the_last_two(void **state)
{
	(void)state;
	begin(2, 2, 4096);
	join("a:1", 11);
	join("b:1", 12);
	settle_down();
	assert_ok(tn_coord_drain(c, now, 1));
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_coord_fact f = {
			.slot = (uint16_t)i, .what = TN_REPORT_RELEASED, .epoch = c->map.slot[i].epoch};

		assert_int_equal(c->map.slot[i].flags & TN_CL_IN_SYNC, TN_CL_IN_SYNC);
		if (c->map.slot[i].primary == 1 && primaries(1) > 1) {
			assert_ok(tn_coord_facts(c, now, 1, 12, &f, 1));
			assert_int_equal(c->map.slot[i].backup, 1);
		}
	}
	assert_int_equal(primaries(1), 1);
	settle_down();
	assert_int_equal(primaries(0), TN_CL_SLOTS);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		assert_int_equal(c->map.slot[i].backup, TN_CL_NONE);
	assert_ok(tn_coord_undrain(c, now, 1));
	settle_down();
	assert_int_equal(c->map.slot[0].flags & TN_CL_IN_SYNC, TN_CL_IN_SYNC);
}

static void late_reports(void **state)
{
	tn_coord_fact f = {.slot = 0, .what = TN_REPORT_SYNCED};

	(void)state;
	begin(2, 2, 4096);
	join("a:1", 11);
	join("b:1", 12);
	f.epoch = c->map.slot[0].epoch;
	assert_status(tn_coord_facts(c, now, 0, 99, &f, 1), TERN_E_NOT_FOUND);
	assert_ok(tn_coord_facts(c, now, 1, 12, &f, 1)); /* not the primary */
	f.epoch--;
	assert_ok(tn_coord_facts(c, now, 0, 11, &f, 1)); /* of before */
	assert_int_equal(c->map.slot[0].flags & TN_CL_IN_SYNC, 0);
	f.epoch++;
	f.what = TN_REPORT_RELEASED; /* nobody asked it to */
	assert_ok(tn_coord_facts(c, now, 0, 11, &f, 1));
	assert_int_equal(c->map.slot[0].primary, 0);
	f.what = TN_REPORT_SYNCED;
	assert_ok(tn_coord_facts(c, now, 0, 11, &f, 1));
	assert_int_equal(c->map.slot[0].flags & TN_CL_IN_SYNC, TN_CL_IN_SYNC);
	f.what = TN_REPORT_LOST;
	assert_ok(tn_coord_facts(c, now, 0, 11, &f, 1));
	assert_int_equal(c->map.slot[0].backup, TN_CL_NONE); /* nor is the one that was lost taken at once */
	assert_int_equal(c->map.slot[0].epoch, f.epoch + 1);
	now += 1200;
	alive(0, 11);
	alive(1, 12);
	tn_coord_tick(c, now);
	assert_int_equal(c->map.slot[0].backup, 1);
}

static void incarnations(void **state)
{
	uint16_t server;

	(void)state;
	begin(1, 1, 100);
	join("a:1", 11);
	assert_status(tn_coord_join(c, now, "a:1", 21, TN_CL_VERSION, &server),
		      TERN_AGAIN); /* its lease runs */
	now += 1100;
	tn_coord_tick(c, now);
	assert_int_equal(join("a:1", 21), 1); /* another number: it has no rows */
	assert_int_equal(c->map.server[0].state, TN_CL_GONE);
	assert_status(tn_coord_renew(c, now, 0, 11), TERN_E_NOT_FOUND);
	assert_int_equal(primaries(0), TN_CL_SLOTS); /* nobody knows what was in them */
	assert_status(tn_coord_give_up(c, now, 1), TERN_E_STATE);
	assert_ok(tn_coord_give_up(c, now, 0));
	assert_int_equal(primaries(1), TN_CL_SLOTS);
	assert_int_equal(c->map.slot[7].flags, TN_CL_FRESH);
	assert_int_equal(c->map.server[0].state, TN_CL_FREE);
	tn_coord_check(c);
}

static uint64_t load_of(uint16_t server)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		sum += c->map.slot[i].primary == server ? c->load[i] : 0;
	return sum;
}

static void say_loads(const uint32_t *load)
{
	for (int k = 0; k < 20; k++)
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			tn_coord_load(c, c->map.slot[i].primary, (uint16_t)i, load[i]);
	alive(0, 11);
	alive(1, 12);
	tn_coord_balance(c);
	tn_coord_tick(c, now);
	settle_down();
}

/* Hot slots are spread; one that is as hot as all others keeps its server to itself; then all is quiet. */
static void balances(void **state)
{
	static uint32_t load[TN_CL_SLOTS];
	uint64_t version;

	(void)state;
	begin(1, 2, 64);
	join("a:1", 11);
	join("b:1", 12);
	for (uint32_t i = 0; i < 64; i++)
		load[i] = 10000; /* all at one server */
	say_loads(load);
	assert_true(load_of(0) < 64 * 10000 * 6 / 10 && load_of(1) < 64 * 10000 * 6 / 10);
	version = c->map.version;
	say_loads(load);
	assert_int_equal(c->map.version, version);
	memset(load, 0, sizeof(load));
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		load[i] = 10;
	load[5] = 10 * TN_CL_SLOTS;
	say_loads(load);
	assert_true(primaries(c->map.slot[5].primary) < TN_CL_SLOTS * 37 / 100);
	version = c->map.version;
	tn_coord_pause(c, true);
	load[5] = 0;
	say_loads(load);
	assert_int_equal(c->map.version, version);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forms_and_grows), cmocka_unit_test(survivors),
		cmocka_unit_test(the_last_two),    cmocka_unit_test(late_reports),
		cmocka_unit_test(incarnations),    cmocka_unit_test(balances),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}

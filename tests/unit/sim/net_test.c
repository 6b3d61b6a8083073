/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of sim/net.h: bytes are conserved, order per flow, rates are kept, pauses have hysteresis, nothing is
 * lost with PFC and something is without it, and then go-back-N delivers all the same.
 */
#include "sim/net.h"

#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

#define FLOWS 64

static sim_events events;
static sim_net_config config;
static sim_net *net;

/* What a flow has sent and got. */
typedef struct track {
	uint64_t handle;
	uint64_t sent, arrived, taken, marked;
	uint64_t last_at;
} track;

static track tracks[FLOWS];

static void on_taken(void *arg, uint64_t cookie)
{
	track *t = arg;

	assert_int_equal(cookie, t->taken);
	t->taken++;
}

static void on_arrived(void *arg, uint64_t cookie, bool marked)
{
	track *t = arg;

	assert_int_equal(cookie, t->arrived);
	assert_true(t->arrived < t->taken);
	t->arrived++;
	t->marked += marked;
	t->last_at = events.now;
}

static const sim_flow_ops ops = {on_taken, on_arrived};

static void start(uint32_t hosts)
{
	sim_events_init(&events);
	memset(tracks, 0, sizeof(tracks));
	sim_net_defaults(&config, hosts);
}

static void open_flow(unsigned i, uint32_t from, uint32_t to, uint32_t class)
{
	tracks[i].handle = sim_flow_open(net, from, to, class, &ops, &tracks[i]);
}

static void send_item(unsigned i, uint64_t bytes)
{
	sim_flow_send(net, tracks[i].handle, bytes, tracks[i].sent++);
}

static void run(void)
{
	uint64_t n = 0;

	while (sim_step(&events, UINT64_MAX))
		if (++n % 1000 == 0)
			sim_net_check(net);
	sim_net_check(net);
}

static void finish(void)
{
	for (unsigned i = 0; i < FLOWS; i++)
		assert_int_equal(tracks[i].arrived, tracks[i].sent);
	sim_net_free(net);
	sim_events_fini(&events);
}

static void one_packet_takes_what_it_must(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	send_item(0, 4096);
	run();
	/* 4,178 bytes at 80 ps each on two cables of 500 ns, rounded up to ns at each. */
	assert_int_equal(tracks[0].last_at, 2 * (335 + 500));
	finish();
}

static void an_empty_item_is_a_packet(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 1);
	send_item(0, 0);
	run();
	assert_int_equal(tracks[0].last_at, 2 * (7 + 500));
	finish();
}

static void a_rate_is_kept_to_the_picosecond(void **state)
{
	sim_port_stats up;

	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	for (unsigned i = 0; i < 1000; i++)
		send_item(0, 4096);
	run();
	sim_net_port_get(net, sim_net_port_up(0), &up);
	assert_int_equal(up.bytes, 1000 * 4178);
	assert_int_equal(up.busy_ns, 1000 * 4178 * 80 / 1000);
	/* The second cable repeats what the first had, one packet later. */
	assert_in_range(tracks[0].last_at, up.busy_ns + 335 + 1000, up.busy_ns + 335 + 1002);
	finish();
}

static void chunks_count_a_header_per_packet(void **state)
{
	sim_port_stats up;

	(void)state;
	start(2);
	config.unit_bytes = 65536;
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	send_item(0, 65536 + 100);
	run();
	sim_net_port_get(net, sim_net_port_up(0), &up);
	assert_int_equal(up.units, 2);
	assert_int_equal(up.bytes, 65536 + 100 + 17 * 82);
	finish();
}

static void flows_of_a_nic_share_it(void **state)
{
	(void)state;
	start(3);
	net = sim_net_new(&config, &events);
	for (unsigned i = 0; i < 4; i++) {
		open_flow(i, 0, 1 + i % 2, 0);
		for (unsigned k = 0; k < 10; k++)
			send_item(i, 100000);
	}
	while (sim_step(&events, 160000))
		;
	for (unsigned i = 0; i < 4; i++)
		assert_in_range(tracks[i].arrived, 4, 5);
	run();
	finish();
}

static void the_higher_class_goes_first(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	open_flow(1, 0, 1, 1);
	send_item(0, 1u << 20);
	send_item(1, 64);
	run();
	/* Behind the packet that was under way at most. */
	assert_true(tracks[1].last_at < 3000);
	assert_true(tracks[0].last_at > 80000);
	finish();
}

static void an_answer_passes_what_waits_in_its_nic(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	for (unsigned i = 0; i < 32; i++) {
		open_flow(i, 0, 1, 0);
		send_item(i, 100000);
	}
	open_flow(32, 0, 1, 0 | SIM_NET_URGENT);
	send_item(32, 0);
	run();
	assert_true(tracks[32].last_at < 2500);
	finish();
}

static void incast(unsigned senders, uint64_t bytes)
{
	for (unsigned i = 0; i < senders; i++) {
		open_flow(i, 1 + i, 0, 0);
		send_item(i, bytes);
	}
}

static void pfc_loses_nothing(void **state)
{
	sim_net_stats s;
	sim_port_stats down, up;

	(void)state;
	start(33);
	config.buffer_bytes = 33 * (config.xoff_bytes + sim_net_headroom(&config));
	config.mark_bytes = 256u << 10;
	net = sim_net_new(&config, &events);
	incast(32, 1u << 20);
	run();
	sim_net_get(net, &s);
	assert_int_equal(s.drops, 0);
	assert_int_equal(s.resent_units, 0);
	assert_true(s.pauses > 32);
	assert_true(s.marks > 0 && tracks[0].marked > 0);
	assert_int_equal(s.payload_bytes, 32u << 20);
	assert_int_equal(s.bytes, s.delivered_bytes);
	assert_true(s.queue_peak > 2u << 20 &&
		    s.queue_peak <= 32 * (config.xoff_bytes + sim_net_headroom(&config)));
	/* The receiver's cable never idled. */
	sim_net_port_get(net, sim_net_port_down(&config, 0), &down);
	assert_true(down.busy_ns * 100 > events.now * 98);
	/* A sender stood still most of the time. */
	sim_net_port_get(net, sim_net_port_up(1), &up);
	assert_true(up.pause_ns > events.now / 2);
	finish();
}

static void a_pause_ends_only_at_xon(void **state)
{
	sim_port_stats narrow, wide;

	(void)state;
	for (int i = 0; i < 2; i++) {
		start(3);
		config.xon_bytes = i ? 16u << 10 : 120u << 10;
		net = sim_net_new(&config, &events);
		incast(2, 4u << 20);
		run();
		sim_net_port_get(net, sim_net_port_up(1), i ? &wide : &narrow);
		finish();
	}
	assert_true(wide.pauses > 0 && narrow.pauses > 4 * wide.pauses);
}

static void a_pause_of_a_class_lets_the_other_pass(void **state)
{
	(void)state;
	start(9);
	net = sim_net_new(&config, &events);
	incast(8, 1u << 20);
	while (sim_step(&events, 150000))
		;
	open_flow(8, 1, 0, 1);
	send_item(8, 64);
	run();
	assert_true(tracks[8].last_at < 153000);
	finish();
}

static void without_pfc_it_drops_and_goes_back(void **state)
{
	sim_net_stats s;

	(void)state;
	start(33);
	config.lossless = false;
	config.buffer_bytes = 1u << 20;
	net = sim_net_new(&config, &events);
	incast(32, 1u << 20);
	run();
	sim_net_get(net, &s);
	assert_true(s.drops > 0 && s.resent_units > 0);
	assert_int_equal(s.pauses, 0);
	assert_true(s.queue_peak <= 512u << 10);
	assert_int_equal(s.payload_bytes, 32u << 20);
	finish();
}

static void a_lost_last_packet_is_noticed_by_time(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	sim_net_host_plug(net, 1, false);
	send_item(0, 100);
	while (sim_step(&events, 500000))
		;
	assert_int_equal(tracks[0].arrived, 0);
	sim_net_host_plug(net, 1, true);
	run();
	assert_in_range(tracks[0].last_at, config.rto_ns, config.rto_ns + 10000);
	finish();
}

static void a_closed_flow_is_silent(void **state)
{
	(void)state;
	start(2);
	net = sim_net_new(&config, &events);
	open_flow(0, 0, 1, 0);
	open_flow(1, 0, 1, 0);
	for (unsigned k = 0; k < 10; k++) {
		send_item(0, 10000);
		send_item(1, 10000);
	}
	while (tracks[0].arrived < 3 && sim_step(&events, UINT64_MAX))
		;
	sim_flow_close(net, tracks[0].handle);
	assert_int_equal(sim_flow_backlog(net, tracks[0].handle), 0);
	sim_flow_close(net, tracks[0].handle);
	tracks[0].sent = 3;
	run();
	assert_true(tracks[0].taken <= 4);
	/* The row serves another flow. */
	open_flow(2, 1, 0, 0);
	assert_int_equal((uint32_t)tracks[2].handle, (uint32_t)tracks[0].handle);
	send_item(2, 1);
	run();
	finish();
}

static void trunks_are_oversubscribed(void **state)
{
	sim_net_stats s;

	(void)state;
	start(16);
	config.leaf_hosts = 8;
	config.spines = 2;
	net = sim_net_new(&config, &events);
	for (unsigned i = 0; i < 8; i++) {
		open_flow(i, i, 8 + i, 0);
		send_item(i, 1u << 20);
	}
	run();
	/* 8 MiB over two trunks at most, and not faster than these. */
	assert_true(events.now > (4u << 20) * 80 / 1000);
	sim_net_get(net, &s);
	assert_int_equal(s.drops, 0);
	finish();
}

/* Everything at random: shape, loss, classes, sizes, closings, pulled cables. */
static void random_traffic(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		tn_rand rand = {.state = seed};
		uint32_t hosts = 4 + 4 * (uint32_t)tn_rand_below(&rand, 4);
		unsigned next = 0;

		start(hosts);
		config.leaf_hosts = tn_rand_below(&rand, 2) ? 4 : 0;
		config.spines = 1 + (uint32_t)tn_rand_below(&rand, 3);
		config.lossless = tn_rand_below(&rand, 2);
		config.mark_bytes = tn_rand_below(&rand, 100000);
		config.unit_bytes = 1u << (9 + tn_rand_below(&rand, 8));
		config.xoff_bytes = 20000 + tn_rand_below(&rand, 100000);
		config.xon_bytes = tn_rand_below(&rand, config.xoff_bytes);
		config.buffer_bytes = config.lossless
					      ? hosts * (config.xoff_bytes + sim_net_headroom(&config))
					      : config.unit_bytes + 70000;
		net = sim_net_new(&config, &events);
		for (unsigned step = 0; step < 3000; step++) {
			uint64_t what = tn_rand_below(&rand, 100);
			unsigned i = next ? (unsigned)tn_rand_below(&rand, next) : 0;

			if (what < 3 && next < FLOWS)
				open_flow(next++, tn_rand_below(&rand, hosts), tn_rand_below(&rand, hosts),
					  tn_rand_below(&rand, SIM_NET_CLASSES));
			else if (what < 13 && next)
				send_item(i, tn_rand_below(&rand, 50000));
			else if (what == 13)
				sim_net_host_plug(net, tn_rand_below(&rand, hosts), tn_rand_below(&rand, 4));
			else if (what == 14 && next && tn_rand_below(&rand, 4) == 0) {
				sim_flow_close(net, tracks[i].handle);
				tracks[i] = (track){0};
				open_flow(i, tn_rand_below(&rand, hosts), tn_rand_below(&rand, hosts), 0);
			} else
				sim_step(&events, UINT64_MAX);
			if (step % 100 == 0) {
				sim_net_check(net);
				sim_events_check(&events);
			}
		}
		for (uint32_t h = 0; h < hosts; h++)
			sim_net_host_plug(net, h, true);
		run();
		finish();
	}
}

static void wrong_configurations_are_refused(void **state)
{
	(void)state;
	start(4);
	config.leaf_hosts = 3;
	config.spines = 1;
	assert_null(sim_net_new(&config, &events));
	start(4);
	config.xon_bytes = config.xoff_bytes + 1;
	assert_null(sim_net_new(&config, &events));
	start(0);
	assert_null(sim_net_new(&config, &events));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_packet_takes_what_it_must),
		cmocka_unit_test(an_empty_item_is_a_packet),
		cmocka_unit_test(a_rate_is_kept_to_the_picosecond),
		cmocka_unit_test(chunks_count_a_header_per_packet),
		cmocka_unit_test(flows_of_a_nic_share_it),
		cmocka_unit_test(the_higher_class_goes_first),
		cmocka_unit_test(an_answer_passes_what_waits_in_its_nic),
		cmocka_unit_test(pfc_loses_nothing),
		cmocka_unit_test(a_pause_ends_only_at_xon),
		cmocka_unit_test(a_pause_of_a_class_lets_the_other_pass),
		cmocka_unit_test(without_pfc_it_drops_and_goes_back),
		cmocka_unit_test(a_lost_last_packet_is_noticed_by_time),
		cmocka_unit_test(a_closed_flow_is_silent),
		cmocka_unit_test(trunks_are_oversubscribed),
		cmocka_unit_test(random_traffic),
		cmocka_unit_test(wrong_configurations_are_refused),
	};

	return RUN(tests);
}

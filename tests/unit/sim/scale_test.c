/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small instances of the experiments at scale: nothing is lost, no receiver is overrun, bytes are conserved,
 * windows prevent pauses and the run without them has some; the same words give the same result.
 */
#include "sim/scale.h"

#include <string.h>

#include "base/options.h"
#include "channel/ctx_impl.h"
#include "cmocka_all.h"
#include "sim/scale_words.h"

static scale_config config;
static scale_result result, again;

static void words(const char *const *list)
{
	scale_words_start(&config);
	for (; *list; list++)
		assert_true(scale_words_set(&config, *list));
	scale_words_end(&config);
}

#define RUN_WORDS(...)                                      \
	do {                                                \
		words((const char *[]){__VA_ARGS__, NULL}); \
		assert_true(scale_run(&config, &result));   \
		judge();                                    \
	} while (0)

/* What holds in every run. */
static void judge(void)
{
	uint64_t pairs = (config.net.hosts - 1) * config.pair_links;

	if (config.pattern == SCALE_ALL_TO_ALL)
		pairs *= config.net.hosts;
	assert_true(result.complete);
	assert_int_equal(result.pushes, pairs * config.pushes);
	assert_int_equal(result.messages, pairs * config.messages);
	assert_int_equal(result.payload, result.pushes * config.push_bytes);
	assert_true(result.net.payload_bytes >= result.payload);
	assert_int_equal(result.net.bytes,
			 result.net.delivered_bytes + result.net.discarded_bytes + result.net.dropped_bytes);
	if (config.lane0_grant <= config.lane0_slots && config.lane_grant <= config.lane_slots)
		assert_int_equal(result.rnr, 0);
	if (config.net.lossless)
		assert_int_equal(result.net.drops, 0);
	assert_true(result.goodput <= 1);
}

/* Of an option of links. */
static const char *dflt(const char *name)
{
	for (const tn_option_row *row = tn_link_option_rows; row->name; row++)
		if (strcmp(row->name, name) == 0)
			return row->dflt;
	return "";
}

static void windows_prevent_pauses(void **state)
{
	(void)state;
	RUN_WORDS("hosts=17", "pushes=1", "window=64k", "chunk=64k");
	assert_int_equal(result.net.pauses, 0);
	/* Every sender's window at most, and the small ones. */
	assert_true(result.receiver_queue_peak <= 16 * (64 + 8) * 1024);
	assert_true(result.fetches > 0);
}

static void without_windows_there_are_pauses(void **state)
{
	(void)state;
	RUN_WORDS("hosts=17", "pushes=1");
	assert_true(result.net.pauses > 0);
	assert_true(result.receiver_queue_peak > 16 * (64 + 8) * 1024);
}

static void or_losses_that_are_mended(void **state)
{
	(void)state;
	RUN_WORDS("hosts=17", "pushes=1", "push=1M", "lossless=0", "buffer=1M");
	assert_true(result.net.drops > 0 && result.net.resent_units > 0);
	assert_int_equal(result.net.pauses, 0);
}

static void all_to_all_is_conserved(void **state)
{
	(void)state;
	RUN_WORDS("pattern=all", "hosts=8", "pushes=2", "push=256k", "window=64k", "chunk=64k");
	assert_int_equal(result.links, 7);
	assert_int_equal(result.qps, 14);
}

static void credits_prevent_refusals(void **state)
{
	(void)state;
	RUN_WORDS("hosts=17", "pushes=0", "messages=200", "fetch_gap_ns=0", "slots0=16", "grant0=16");
	assert_int_equal(result.rnr, 0);
	assert_true(result.slots_peak <= 16);
	RUN_WORDS("hosts=17", "pushes=0", "messages=200", "fetch_gap_ns=0", "slots0=16", "grant0=64",
		  "depth=64", "ops=64", "wrs=128");
	assert_true(result.rnr > 0);
	/* One pool for all lanes: what is granted in all fits into it, or does not. */
	RUN_WORDS("hosts=17", "pushes=0", "messages=200", "fetch_gap_ns=0", "pool=384");
	assert_int_equal(result.rnr, 0);
	assert_true(result.slots_peak <= 384);
	RUN_WORDS("hosts=17", "pushes=0", "messages=200", "fetch_gap_ns=0", "pool=128", "grant0=64",
		  "depth=64", "ops=64", "wrs=128");
	assert_true(result.rnr > 0 && result.slots_peak == 128);
}

static void chunks_give_the_same_bytes(void **state)
{
	(void)state;
	RUN_WORDS("pattern=all", "hosts=6", "pushes=1", "unit=64k", "xoff=512k", "window=256k", "chunk=64k");
	assert_int_equal(result.payload, 30u * (4u << 20));
}

/* 2 %, for frames of credits are what the model lacks, and `slack`. */
static void near(uint64_t a, uint64_t b, uint64_t slack)
{
	assert_in_range(a + slack, b - b / 50, b + b / 50 + 2 * slack);
}

/* The model of a link's window stands for the machines where these are too many. */
static void the_model_is_like_the_machines(void **state)
{
	static const char *const cases[][4] = {
		{"hosts=16", "window=256k", "unit=64k", "pattern=all"},
		{"pattern=all", "hosts=16", "window=64k", "chunk=64k"},
		{"pattern=all", "hosts=16", "window=256k", "chunk=64k"},
		{"pattern=one", "hosts=33", "window=128k", "device=64k"},
		{"pattern=all", "hosts=16", "window=64k", "device=128k"},
		{"pattern=one", "hosts=33", "window=8M", "chunk=1M"},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		RUN_WORDS(cases[i][0], cases[i][1], cases[i][2], cases[i][3], "pushes=1", "push=1M",
			  "fetch_gap_ns=0");
		again = result;
		RUN_WORDS(cases[i][0], cases[i][1], cases[i][2], cases[i][3], "pushes=1", "push=1M",
			  "fetch_gap_ns=0", "model=1");
		near(result.ns, again.ns, 0);
		near(result.push_ns.sum, again.push_ns.sum, again.push_ns.sum / 50);
		/* A piece more or less that waits. */
		near(result.receiver_queue_peak, again.receiver_queue_peak, config.link.chunk_bytes);
		assert_int_equal(result.net.pauses > 0, again.net.pauses > 0);
	}
}

/* A receiver that grants what it is sent has that much under way to it, and no more. */
static void grants_bound_the_queue(void **state)
{
	(void)state;
	RUN_WORDS("hosts=33", "pushes=2", "push=1M", "window=8M", "grants=512k", "quantum=32k");
	assert_int_equal(result.net.pauses, 0);
	assert_true(result.receiver_queue_peak < (512 + 32 * 8) * 1024);
	assert_true(result.goodput >= 0.95);
	RUN_WORDS("hosts=33", "model=1", "pushes=2", "push=1M", "chunk=64k", "grants=256k", "quantum=64k");
	assert_int_equal(result.net.pauses, 0);
	assert_true(result.receiver_queue_peak < 280 * 1024);
	assert_true(result.goodput >= 0.95);
}

/*
 * 256 senders of 4 MiB at 100 Gb/s with what ships: no pause, no loss, 95 % of the rate or more. What that prevents is seen
 * without grants, with PFC and with drops.
 */
static void incast_by_default(void **state)
{
	(void)state;
	assert_string_equal(dflt("grants"), "auto"); /* where the device needs it: caps.incast */
	assert_string_equal(dflt("grant_bytes"), "512KiB");
	assert_string_equal(dflt("grant_unit"), "32KiB");
	assert_string_equal(dflt("window"), "auto"); /* adaptive over what streams: caps.streams, tcp alone */
	assert_string_equal(dflt("window_bytes"), "8MiB");
	RUN_WORDS("hosts=257", "pushes=1", "window=8M", "grants=512k", "quantum=32k");
	assert_int_equal(config.net.host_bps, 100000000000);
	assert_int_equal(config.push_bytes, 4 << 20);
	assert_int_equal(result.net.pauses, 0);
	assert_true(result.goodput >= 0.95);
	assert_true(result.receiver_queue_peak < 512 * 1024);
	RUN_WORDS("hosts=257", "pushes=1", "window=8M", "grants=512k", "quantum=32k", "lossless=0",
		  "buffer=32M");
	assert_int_equal(result.net.drops, 0);
	assert_true(result.goodput >= 0.95);
	RUN_WORDS("hosts=257", "pushes=1", "window=8M");
	assert_true(result.net.pauses > 1000 && result.receiver_queue_peak > 16 << 20);
	RUN_WORDS("hosts=257", "pushes=1", "window=8M", "push=1M", "lossless=0", "buffer=32M");
	assert_true(result.net.drops > 1000);
}

/* An adaptive window begins small: those that meet are no burst, with no grants either. */
static void an_adaptive_window_begins_small(void **state)
{
	(void)state;
	RUN_WORDS("hosts=129", "pushes=1", "adaptive=1", "window=8M");
	assert_int_equal(result.net.pauses, 0);
	assert_true(result.receiver_queue_peak < 128 * (64 + 16) * 1024);
	assert_true(result.goodput >= 0.95);
}

/* All links of a sender together: what is under way from a host stays within its budget. */
static void a_budget_bounds_a_sender(void **state)
{
	(void)state;
	RUN_WORDS("hosts=17", "pair_links=4", "pushes=1", "push=1M", "window=64k");
	assert_true(result.net.pauses > 0);
	RUN_WORDS("hosts=17", "pair_links=4", "pushes=1", "push=1M", "window=64k", "device=96k");
	assert_int_equal(result.net.pauses, 0);
	assert_true(result.receiver_queue_peak <= 16 * (96 + 8) * 1024);
}

static void channels_cost_no_queue_pair(void **state)
{
	(void)state;
	RUN_WORDS("hosts=2", "pair_links=2", "channels_open=1000", "channels=1004", "pushes=0",
		  "messages=2000", "fetch_gap_ns=0");
	assert_int_equal(result.qps, 4);
	assert_int_equal(result.messages, 4000);
	assert_true(result.channel_bytes <= 512);
}

static void the_same_words_give_the_same_run(void **state)
{
	(void)state;
	RUN_WORDS("hosts=9", "pushes=1");
	again = result;
	RUN_WORDS("hosts=9", "pushes=1");
	assert_memory_equal(&result, &again, sizeof(result));
	RUN_WORDS("hosts=9", "pushes=1", "seed=2");
	assert_memory_not_equal(&result, &again, sizeof(result));
}

static void wrong_words_are_refused(void **state)
{
	(void)state;
	scale_words_start(&config);
	assert_false(scale_words_set(&config, "host=3"));
	assert_false(scale_words_set(&config, "hosts"));
	assert_false(scale_words_set(&config, "hosts="));
	assert_false(scale_words_set(&config, "hosts=3x"));
	assert_false(scale_words_set(&config, "hosts=5G"));
	assert_false(scale_words_set(&config, "pattern=some"));
	assert_true(scale_words_set(&config, "window=64k"));
	assert_int_equal(config.link.window_bytes, 65536);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(windows_prevent_pauses),
		cmocka_unit_test(without_windows_there_are_pauses),
		cmocka_unit_test(or_losses_that_are_mended),
		cmocka_unit_test(all_to_all_is_conserved),
		cmocka_unit_test(credits_prevent_refusals),
		cmocka_unit_test(chunks_give_the_same_bytes),
		cmocka_unit_test(the_model_is_like_the_machines),
		cmocka_unit_test(grants_bound_the_queue),
		cmocka_unit_test(incast_by_default),
		cmocka_unit_test(an_adaptive_window_begins_small),
		cmocka_unit_test(a_budget_bounds_a_sender),
		cmocka_unit_test(channels_cost_no_queue_pair),
		cmocka_unit_test(the_same_words_give_the_same_run),
		cmocka_unit_test(wrong_words_are_refused),
	};

	return RUN(tests);
}

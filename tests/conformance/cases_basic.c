/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: what a device says about itself, and that each verb works at all. Main thread only.
 */
#include "conf.h"

#include <stdio.h>
#include <string.h>

static void open_close_leaks_nothing(void)
{
	unsigned before, after;
	conf_pair pair;

	conf_pair_open(&pair);
	conf_pair_close(&pair);
	before = conf_descriptors();
	for (unsigned i = 0; i < 10; i++) {
		conf_pair_open(&pair);
		CONF_CHECK(conf_pump(&pair) == 0, "events of a device without lanes");
		conf_pair_close(&pair);
	}
	after = conf_descriptors();
	CONF_CHECK(after == before, "%u descriptors before, %u after", before, after);
}

static void capabilities_are_sane(void)
{
	conf_pair pair;
	const tn_dev_caps *caps;

	conf_pair_open(&pair);
	caps = &pair.a->caps;
	assert_true(caps->flags & (TN_CAP_WRITE | TN_CAP_SEND));
	assert_true(caps->recv_slots > 0);
	assert_true(caps->lane_recv_slots > 0);
	assert_true(caps->lane_wrs_max > 0);
	if (caps->flags & (TN_CAP_WRITE | TN_CAP_READ))
		assert_true(caps->write_bytes_max >= 1 << 20);
	if (caps->flags & TN_CAP_SEND)
		assert_true(caps->send_bytes_max >= 1024);
	assert_memory_equal(caps, &pair.b->caps, sizeof(*caps));
	conf_pair_close(&pair);
}

static void address_is_stable(void)
{
	conf_pair pair;
	tn_blob again;

	conf_pair_open(&pair);
	assert_true(pair.a->addr.length <= TN_BLOB_MAX);
	pair.a->dev->ops->address(pair.a->dev, &again);
	assert_int_equal(again.length, pair.a->addr.length);
	assert_memory_equal(again.bytes, pair.a->addr.bytes, again.length);
	CONF_OK(pair.a->dev->ops->reach(pair.a->dev, &pair.b->addr));
	CONF_OK(pair.b->dev->ops->reach(pair.b->dev, &pair.a->addr));
	conf_pair_close(&pair);
}

static void connects(void)
{
	conf_pair pair;
	conf_lane lane;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_lane_works(&pair, &lane);
	conf_lane_free(&pair, &lane);
	conf_pair_close(&pair);
}

static void works_both_ways(void)
{
	conf_pair pair;
	conf_lane lane;
	uint8_t here = 1, there = 2;
	conf_req req = {.verb = CONF_SEND, .local = &here, .bytes = 1};
	tn_event event;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	CONF_OK(conf_do(&pair, &lane.a, &req));
	req.local = &there;
	CONF_OK(conf_do(&pair, &lane.b, &req));
	event = conf_inbox_wait(&pair, pair.a);
	assert_int_equal(*(const uint8_t *)event.buf, 2);
	conf_recv_done(pair.a, &event);
	event = conf_inbox_wait(&pair, pair.b);
	assert_int_equal(*(const uint8_t *)event.buf, 1);
	conf_recv_done(pair.b, &event);
	conf_pair_close(&pair);
}

static void device_reaches_itself(void)
{
	conf_pair pair = {.rand = {3}};
	conf_lane lane;
	uint8_t token[TN_LANE_TOKEN_BYTES] = {9};
	uint8_t byte = 5;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	tn_event event;

	pair.a = conf_node_open("self");
	conf_end_make(&lane.a, pair.a, true, token, 0);
	conf_end_make(&lane.b, pair.a, false, token, 0);
	CONF_OK(pair.a->dev->ops->lane_connect(lane.b.lane, &pair.a->addr, &lane.a.addr));
	CONF_OK(pair.a->dev->ops->lane_connect(lane.a.lane, &pair.a->addr, &lane.b.addr));
	CONF_UNTIL(&pair, lane.a.up && lane.b.up);
	CONF_OK(conf_do(&pair, &lane.a, &req));
	event = conf_inbox_wait(&pair, pair.a);
	assert_ptr_equal(event.lane, lane.b.lane);
	assert_int_equal(*(const uint8_t *)event.buf, 5);
	conf_recv_done(pair.a, &event);
	conf_pair_close(&pair);
}

/* No bytes: completes and, where the verb notifies, notifies. */
static void zero_length(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	conf_req req = {.level = TN_LEVEL_LOCAL};
	tn_event event;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_region_make(&from, pair.a, 64, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, 64, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	memset(to.ptr, 0xee, 64);
	for (unsigned i = 0; i < 20; i++) {
		req.level = i % 2 ? conf_best_level(pair.a) : TN_LEVEL_LOCAL;
		req.key = to.key;
		req.offset = i % 3 ? 0 : 64; /* the end of the range is inside for no bytes */
		req.local = i % 4 ? from.ptr : NULL;
		req.verb = CONF_WRITE;
		CONF_OK(conf_do(&pair, &lane.a, &req));
		if (pair.a->caps.flags & TN_CAP_READ) {
			req.verb = CONF_READ;
			CONF_OK(conf_do(&pair, &lane.a, &req));
		}
		if (pair.a->caps.flags & TN_CAP_WRITE_IMM) {
			req.verb = CONF_WRITE_IMM;
			req.imm = 0xfffffff0u + i;
			CONF_OK(conf_do(&pair, &lane.a, &req));
			event = conf_inbox_wait(&pair, pair.b);
			assert_int_equal(event.type, TN_EV_IMM);
			assert_int_equal(event.imm, 0xfffffff0u + i);
			assert_int_equal(event.bytes, 0);
			conf_recv_done(pair.b, &event);
		}
		req.verb = CONF_SEND;
		CONF_OK(conf_do(&pair, &lane.a, &req));
		event = conf_inbox_wait(&pair, pair.b);
		assert_int_equal(event.type, TN_EV_RECV);
		assert_int_equal(event.bytes, 0);
		conf_recv_done(pair.b, &event);
	}
	CONF_CHECK(conf_all(to.ptr, 64, 0xee), "zero bytes changed something");
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

static void counters_count(void)
{
	static const char *const names[] = {"tx_bytes",   "rx_bytes", "writes", "write_imms",
					    "reads",      "sends",    "recvs",  "again",
					    "copy_bytes", "copies",   "lanes"};
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	conf_req req = {.verb = CONF_WRITE, .bytes = 100000};
	uint64_t copied;
	bool found;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	for (size_t i = 0; i < TN_COUNT_OF(names); i++) {
		(void)conf_counter(pair.a, names[i], &found);
		CONF_CHECK(found, "no counter %s.%s", conf->provider, names[i]);
	}
	conf_region_make(&from, pair.a, req.bytes, TERN_ACCESS_NONE);
	conf_region_make(&to, pair.b, req.bytes, TERN_ACCESS_WRITE);
	req.local = from.ptr;
	req.key = to.key;
	req.level = conf_best_level(pair.a);
	for (unsigned i = 0; i < 3; i++)
		CONF_OK(conf_do(&pair, &lane.a, &req));
	conf_lane_works(&pair, &lane);
	assert_int_equal(conf_counter(pair.a, "writes", NULL), 4);
	assert_int_equal(conf_counter(pair.a, "sends", NULL), 1);
	assert_int_equal(conf_counter(pair.b, "recvs", NULL), 1);
	assert_int_equal(conf_counter(pair.a, "lanes", NULL), 1);
	assert_true(conf_counter(pair.a, "tx_bytes", NULL) >= 300000);
	/* Not more than one copy of each byte, whichever side makes it. */
	copied = conf_counter(pair.a, "copy_bytes", NULL) + conf_counter(pair.b, "copy_bytes", NULL);
	CONF_CHECK(copied <= 300000 + 200, "300100 bytes were copied %llu times bytewise",
		   (unsigned long long)copied);
	conf_region_free(&from);
	conf_region_free(&to);
	conf_pair_close(&pair);
}

/* Verbs whose capability is missing answer with the one code. */
static void missing_capability_has_one_code(void)
{
	conf_pair pair;
	conf_lane lane;
	uint8_t byte = 0;
	conf_req req = {.local = &byte, .bytes = 1};
	static const uint32_t cap_of[] = {TN_CAP_WRITE, TN_CAP_WRITE_IMM, TN_CAP_READ, TN_CAP_SEND};
	uint32_t op;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	for (int verb = CONF_WRITE; verb <= CONF_SEND; verb++) {
		req.verb = (conf_verb)verb;
		if (!(pair.a->caps.flags & cap_of[verb]))
			assert_int_equal(conf_try(&lane.a, &req, &op), TERN_E_UNSUPPORTED);
	}
	conf_pair_close(&pair);
}

const conf_case conf_cases_basic[] = {
	{.name = "open_close_leaks_nothing", .run = open_close_leaks_nothing},
	{.name = "capabilities_are_sane", .run = capabilities_are_sane},
	{.name = "address_is_stable", .run = address_is_stable},
	{.name = "connects", .run = connects, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "works_both_ways", .run = works_both_ways, .needs = TN_CAP_SEND},
	{.name = "device_reaches_itself", .run = device_reaches_itself, .needs = TN_CAP_SEND},
	{.name = "zero_length", .run = zero_length, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "counters_count", .run = counters_count, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "missing_capability_has_one_code", .run = missing_capability_has_one_code},
	{0},
};

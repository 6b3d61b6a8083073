/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: how lanes come up, and how they do not. Main thread only.
 */
#include "conf.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"

static tern_status connect_end(conf_end *end, const conf_node *peer, const conf_end *other)
{
	return end->node->dev->ops->lane_connect(end->lane, &peer->addr, &other->addr);
}

/* Either side may come first, with time in between. */
static void any_side_first(void)
{
	conf_pair pair;
	conf_lane lane;

	conf_pair_open(&pair);
	for (unsigned i = 0; i < 6; i++) {
		conf_lane_make(&pair, &lane);
		if (i % 2)
			CONF_OK(connect_end(&lane.a, pair.b, &lane.b));
		else
			CONF_OK(connect_end(&lane.b, pair.a, &lane.a));
		conf_pump_n(&pair, i * 100);
		CONF_CHECK(!lane.a.up && !lane.b.up, "up before both sides connect");
		if (i % 2)
			CONF_OK(connect_end(&lane.b, pair.a, &lane.a));
		else
			CONF_OK(connect_end(&lane.a, pair.b, &lane.b));
		CONF_UNTIL(&pair, (lane.a.up && lane.b.up) || lane.a.down || lane.b.down);
		CONF_CHECK(!lane.a.down && !lane.b.down, "%s first: a %s, b %s", i % 2 ? "active" : "passive",
			   tern_status_name(lane.a.down_status), tern_status_name(lane.b.down_status));
		conf_lane_works(&pair, &lane);
		conf_lane_free(&pair, &lane);
	}
	conf_pair_close(&pair);
}

/* The passive side accepts only who knows its token; a stranger does not end its wait either. */
static void wrong_token_is_refused(void)
{
	conf_pair pair;
	conf_end stranger, owner, passive;
	uint8_t right[TN_LANE_TOKEN_BYTES] = {1, 2, 3}, wrong[TN_LANE_TOKEN_BYTES] = {1, 2, 3};

	conf_pair_open(&pair);
	for (unsigned i = 0; i < 4; i++) {
		wrong[TN_LANE_TOKEN_BYTES - 1] = (uint8_t)(1 << i);
		conf_end_make(&passive, pair.b, false, right, 10 * TN_NS_PER_SEC);
		conf_end_make(&owner, pair.a, true, right, 10 * TN_NS_PER_SEC);
		conf_end_make(&stranger, pair.a, true, wrong, 500 * TN_NS_PER_MS);
		CONF_OK(connect_end(&passive, pair.a, i % 2 ? &owner : &stranger));
		CONF_OK(connect_end(&stranger, pair.b, &passive));
		CONF_UNTIL(&pair, stranger.down || stranger.up || passive.up);
		CONF_CHECK(!stranger.up && !passive.up, "a lane with another token came up");
		if (i % 2 && !passive.down) {
			CONF_OK(connect_end(&owner, pair.b, &passive));
			CONF_UNTIL(&pair, (owner.up && passive.up) || owner.down || passive.down);
			CONF_CHECK(owner.up && passive.up, "a stranger ended the lane of another: %s, %s",
				   tern_status_name(owner.down_status),
				   tern_status_name(passive.down_status));
		}
		conf_end_close(&stranger);
		conf_end_close(&owner);
		conf_end_close(&passive);
		conf_end_destroy(&pair, &stranger);
		conf_end_destroy(&pair, &owner);
		conf_end_destroy(&pair, &passive);
	}
	conf_pair_close(&pair);
}

/* Sleeps on the descriptors meanwhile: a deadline has to wake. */
static void sleep_until_down(conf_pair *pair, conf_end *end)
{
	while (!end->down && !end->up) {
		struct pollfd fds[2] = {{.fd = pair->a->dev->ops->fd(pair->a->dev), .events = POLLIN},
					{.fd = pair->b->dev->ops->fd(pair->b->dev), .events = POLLIN}};

		CONF_HERE();
		if (conf_node_poll(pair->a) + conf_node_poll(pair->b) > 0)
			continue;
		if (pair->a->dev->ops->arm(pair->a->dev) == TERN_OK &&
		    pair->b->dev->ops->arm(pair->b->dev) == TERN_OK)
			(void)poll(fds, 2, -1);
	}
}

static void connect_times_out(void)
{
	conf_pair pair;
	conf_lane lane;
	uint8_t token[TN_LANE_TOKEN_BYTES] = {7};

	conf_pair_open(&pair);
	/* The other side never connects: once the dialer waits, once the listener. */
	for (unsigned side = 0; side < 2; side++) {
		conf_end *end = side ? &lane.b : &lane.a;

		conf_end_make(&lane.a, pair.a, true, token, 200 * TN_NS_PER_MS);
		conf_end_make(&lane.b, pair.b, false, token, 200 * TN_NS_PER_MS);
		CONF_OK(connect_end(end, side ? pair.a : pair.b, side ? &lane.a : &lane.b));
		sleep_until_down(&pair, end);
		CONF_CHECK(end->down && end->down_status == TERN_E_DEADLINE, "%s waits: %s",
			   side ? "listener" : "dialer", tern_status_name(end->down_status));
		conf_lane_free(&pair, &lane);
	}
	/* The devices are well. */
	conf_lane_up(&pair, &lane);
	conf_lane_works(&pair, &lane);
	conf_pair_close(&pair);
}

/* Dialing a lane, or a device, that is gone ends with an error, not in a wait without end. */
static void dialing_the_gone(void)
{
	conf_pair pair;
	conf_lane lane;
	conf_end late;
	uint8_t token[TN_LANE_TOKEN_BYTES] = {7};
	tn_blob dev_addr, lane_addr;
	tern_status status;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	lane_addr = lane.b.addr;
	dev_addr = pair.b->addr;
	conf_lane_free(&pair, &lane);
	conf_end_make(&late, pair.a, true, token, 300 * TN_NS_PER_MS);
	status = pair.a->dev->ops->lane_connect(late.lane, &dev_addr, &lane_addr);
	if (status == TERN_OK)
		CONF_UNTIL(&pair, late.down || late.up);
	CONF_CHECK(!late.up, "connected to a lane that is gone");
	conf_end_close(&late);
	conf_end_destroy(&pair, &late);

	conf_node_close(pair.b);
	pair.b = NULL;
	conf_end_make(&late, pair.a, true, token, 300 * TN_NS_PER_MS);
	status = pair.a->dev->ops->lane_connect(late.lane, &dev_addr, &lane_addr);
	if (status == TERN_OK)
		CONF_UNTIL(&pair, late.down || late.up);
	CONF_CHECK(!late.up, "connected to a device that is gone");
	conf_pair_close(&pair);
}

/* lane_close at every stage of a connect. */
static void close_while_connecting(void)
{
	conf_pair pair;
	conf_lane lane;

	conf_pair_open(&pair);
	for (unsigned i = 0; i < 40; i++) {
		conf_lane_make(&pair, &lane);
		if (i % 4 > 0)
			CONF_OK(connect_end(&lane.a, pair.b, &lane.b));
		if (i % 4 > 1)
			CONF_OK(connect_end(&lane.b, pair.a, &lane.a));
		if (i % 4 > 2)
			conf_pump_n(&pair, i / 4);
		conf_end_close(i % 8 < 4 ? &lane.a : &lane.b);
		conf_lane_free(&pair, &lane);
	}
	conf_lane_up(&pair, &lane);
	conf_lane_works(&pair, &lane);
	conf_pair_close(&pair);
}

/* Who is up first posts at once: the other sees LANE_UP, then the message. */
static void first_post_races_with_up(void)
{
	conf_pair pair;
	conf_lane lane;
	uint8_t byte = 4;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};

	conf_pair_open(&pair);
	for (unsigned i = 0; i < conf_rounds(60); i++) {
		unsigned got = 0;
		bool sent_a = false, sent_b = false;
		tn_event event;

		pair.a->poll_max = pair.b->poll_max = 1 + (int)(i % 3);
		conf_lane_make(&pair, &lane);
		CONF_OK(connect_end(i % 2 ? &lane.a : &lane.b, i % 2 ? pair.b : pair.a,
				    i % 2 ? &lane.b : &lane.a));
		CONF_OK(connect_end(i % 2 ? &lane.b : &lane.a, i % 2 ? pair.a : pair.b,
				    i % 2 ? &lane.a : &lane.b));
		while (got < 2) {
			CONF_HERE();
			(void)conf_node_poll(i % 4 < 2 ? pair.a : pair.b);
			if (lane.a.up && !sent_a)
				conf_must(NULL, &lane.a, &req);
			sent_a = lane.a.up;
			if (lane.b.up && !sent_b)
				conf_must(NULL, &lane.b, &req);
			sent_b = lane.b.up;
			(void)conf_node_poll(i % 4 < 2 ? pair.b : pair.a);
			while (conf_inbox_take(pair.a, &event) || conf_inbox_take(pair.b, &event)) {
				conf_end *end = event.lane_arg;

				conf_recv_done(end->node, &event);
				got++;
			}
		}
		conf_lane_free(&pair, &lane);
	}
	conf_pair_close(&pair);
}

static void post_needs_an_up_lane(void)
{
	conf_pair pair;
	conf_lane lane;
	uint8_t byte = 0;
	conf_req req = {.verb = CONF_SEND, .local = &byte, .bytes = 1};
	uint32_t op;
	tern_status status;

	conf_pair_open(&pair);
	conf_lane_make(&pair, &lane);
	status = conf_try(&lane.a, &req, &op);
	CONF_CHECK(status < 0, "a post before connect: %s", tern_status_name(status));
	CONF_OK(connect_end(&lane.a, pair.b, &lane.b));
	status = conf_try(&lane.a, &req, &op);
	CONF_CHECK(status < 0, "a post before LANE_UP: %s", tern_status_name(status));
	conf_pair_close(&pair);
}

/* ---- addresses that make no sense ---- */

static void bad_blob(conf_pair *pair, const tn_blob *dev, const tn_blob *lane_addr)
{
	conf_end end;
	uint8_t token[TN_LANE_TOKEN_BYTES] = {7};

	conf_end_make(&end, pair->a, tn_rand_below(&pair->rand, 2), token, 20 * TN_NS_PER_MS);
	if (pair->a->dev->ops->lane_connect(end.lane, dev, lane_addr) == TERN_OK)
		CONF_UNTIL(pair, end.down || end.up);
	CONF_CHECK(!end.up, "a lane to nowhere came up");
	conf_end_close(&end);
	conf_end_destroy(pair, &end);
}

static void random_blob(tn_rand *rand, tn_blob *blob)
{
	blob->length = (uint16_t)tn_rand_below(rand, TN_BLOB_MAX + 1);
	for (size_t i = 0; i < sizeof(blob->bytes); i++)
		blob->bytes[i] = (uint8_t)tn_rand_next(rand);
}

/*
 * Junk, cut and bent addresses. A bent *device* address only goes to `reach`: it could name some host of the
 * network, which no test may dial.
 */
static void bad_blobs(void)
{
	conf_pair pair;
	conf_lane lane, bent;
	tn_blob dev, addr;

	conf_pair_open(&pair);
	conf_lane_up(&pair, &lane);
	conf_lane_make(&pair, &bent);
	for (unsigned i = 0; i < 100; i++) {
		random_blob(&pair.rand, &dev);
		random_blob(&pair.rand, &addr);
		(void)pair.a->dev->ops->reach(pair.a->dev, &dev);
		bad_blob(&pair, &dev, &addr);
		bad_blob(&pair, &pair.b->addr, &addr);
		/* Longer than it can be. */
		dev.length = (uint16_t)(TN_BLOB_MAX + 1 + tn_rand_below(&pair.rand, 60000));
		(void)pair.a->dev->ops->reach(pair.a->dev, &dev);
		bad_blob(&pair, &dev, &addr);
	}
	for (uint16_t length = 0; length < pair.b->addr.length; length++) {
		dev = pair.b->addr;
		dev.length = length;
		(void)pair.a->dev->ops->reach(pair.a->dev, &dev);
		bad_blob(&pair, &dev, &bent.b.addr);
	}
	for (uint16_t length = 0; length < bent.b.addr.length; length++) {
		addr = bent.b.addr;
		addr.length = length;
		bad_blob(&pair, &pair.b->addr, &addr);
	}
	for (unsigned i = 0; i < 8u * pair.b->addr.length; i++) {
		dev = pair.b->addr;
		dev.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
		(void)pair.a->dev->ops->reach(pair.a->dev, &dev);
	}
	for (unsigned i = 0; i < 8u * bent.b.addr.length; i += 1 + (i % 5)) {
		addr = bent.b.addr;
		addr.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
		bad_blob(&pair, &pair.b->addr, &addr);
	}
	conf_lane_works(&pair, &lane);
	conf_pair_close(&pair);
}

/* Many lanes between two devices, each with its own order and its own traffic. */
static void many_lanes(void)
{
	conf_pair pair;
	enum { LANES = 64, ROUNDS = 20 };
	static conf_lane lanes[LANES];
	static uint32_t got[LANES];
	uint32_t numbers[ROUNDS];
	unsigned total = 0;

	memset(got, 0, sizeof(got));
	conf_pair_open(&pair);
	for (unsigned i = 0; i < LANES; i++)
		conf_lane_up(&pair, &lanes[i]);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		numbers[round] = round;
		for (unsigned i = 0; i < LANES; i++) {
			conf_req req = {.verb = CONF_SEND, .local = &numbers[round], .bytes = 4};

			conf_must(&pair, &lanes[(i * 37) % LANES].a, &req);
		}
		while (total < (round + 1) * LANES) {
			tn_event event = conf_inbox_wait(&pair, pair.b);
			unsigned which = (unsigned)((conf_lane *)(void *)((char *)event.lane_arg -
									  offsetof(conf_lane, b)) -
						    lanes);
			uint32_t number;

			memcpy(&number, event.buf, 4);
			assert_true(which < LANES);
			CONF_CHECK(number == got[which], "lane %u: message %u instead of %u", which, number,
				   got[which]);
			got[which]++;
			total++;
			conf_recv_done(pair.b, &event);
		}
	}
	for (unsigned i = 0; i < LANES; i += 2) /* half of them leave, the others stay */
		conf_lane_free(&pair, &lanes[i]);
	for (unsigned i = 1; i < LANES; i += 2)
		conf_lane_works(&pair, &lanes[i]);
	conf_pair_close(&pair);
}

const conf_case conf_cases_connect[] = {
	{.name = "any_side_first", .run = any_side_first, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "wrong_token_is_refused", .run = wrong_token_is_refused},
	{.name = "connect_times_out", .run = connect_times_out, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "dialing_the_gone", .run = dialing_the_gone},
	{.name = "close_while_connecting",
	 .run = close_while_connecting,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "first_post_races_with_up", .run = first_post_races_with_up, .needs = TN_CAP_SEND},
	{.name = "post_needs_an_up_lane", .run = post_needs_an_up_lane, .needs = TN_CAP_SEND},
	{.name = "bad_blobs", .run = bad_blobs, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "many_lanes", .run = many_lanes, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{0},
};

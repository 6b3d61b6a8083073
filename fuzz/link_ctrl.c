/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: what a stranger or an evil peer can say on the control connection to one real link machine, from
 * the first byte to wiring, recovery and close. The input is a list of steps: raw bytes, messages of any type
 * with any payload, and the right HELLO, AUTH and SETUP, so that what lies behind the handshake is reached too.
 *
 *   never      past AUTH without a right MAC; a device or a MAC told to who has proved nothing
 *   always     invariants hold after each step; it comes to its end when it is closed
 *
 * Seeds: fuzz/corpus/link_ctrl. Pure but for libcrypto. Unit tests: tests/unit/link/hello_test.c.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/crypto.h"
#include "base/time.h"
#include "link/share.h"
#include "link/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SECRET "between us"
#define LANES  16u

static struct {
	tn_link *link;
	tn_link_store store;
	void *memory;
	uint64_t now;
	bool active, proved, down, has_hello;
	uint32_t features;
	uint8_t own[TN_CTRL_HELLO_BYTES], theirs[TN_CTRL_HELLO_BYTES]; /* the machine's HELLO, and ours */
	uint64_t own_bytes, theirs_bytes;
	uint32_t lanes[LANES]; /* handles that were created and are not gone */
	uint32_t lane_count;
	bool answer_up; /* lanes connect at once */
} f;

static void must(bool holds)
{
	if (!holds)
		__builtin_trap();
}

static void *store_get(size_t bytes, void *arg)
{
	(void)arg;
	return aligned_alloc(64, bytes);
}

static void store_put(void *memory, size_t bytes, void *arg)
{
	(void)bytes;
	(void)arg;
	free(memory);
}

static void make_link(const uint8_t *data)
{
	tn_store_source source = {.get = store_get, .put = store_put, .each = true};
	tn_link_provider provider = {.name = "mem",
				     .caps = TN_LINK_CAP_WRITE | TN_LINK_CAP_READ | TN_LINK_CAP_SEND,
				     .lane_wrs_max = 64,
				     .write_bytes_max = 4096,
				     .send_bytes_max = 1024,
				     .data_lanes = 1,
				     .address_bytes = 4};
	tn_link_config c;
	size_t bytes;

	memset(&f, 0, sizeof(f));
	tn_link_config_defaults(&c);
	f.active = c.active = data[0] & 1;
	f.answer_up = data[0] & 2;
	c.recover_ns = data[0] & 4 ? 10 * TN_NS_PER_SEC : 0;
	c.features_off = data[0] & 8 ? TN_FEATURE_ROTATE : 0;
	memset(c.node, 1, sizeof(c.node));
	memset(c.incarnation, 2, sizeof(c.incarnation));
	memset(c.nonce, 3, sizeof(c.nonce));
	c.name = "victim";
	c.secret = SECRET;
	c.secret_bytes = sizeof(SECRET) - 1;
	c.secret_next = data[0] & 16 ? "next" : NULL;
	c.secret_next_bytes = data[0] & 16 ? 4 : 0;
	c.channels_max = 4;
	c.ops_max = c.wrs_max = 32;
	c.providers = &provider;
	c.provider_count = 1;
	tn_link_store_init(&f.store, &source, NULL);
	c.store = &f.store;
	f.now = TN_NS_PER_SEC;
	bytes = (tn_link_memory_bytes(&c) + 63) & ~(size_t)63;
	f.memory = aligned_alloc(64, bytes);
	must(f.memory && tn_link_init(f.memory, bytes, &c, f.now, &f.link) == TERN_OK);
	tn_link_on_ctrl_up(f.link, f.now);
}

/* ---- what the machine wants ---- */

static void lane_gone(uint32_t handle)
{
	for (uint32_t i = 0; i < f.lane_count; i++)
		if (f.lanes[i] == handle)
			f.lanes[i] = f.lanes[--f.lane_count];
}

static void sent(const uint8_t *bytes, uint32_t n)
{
	/* Whole messages come in one action here; the first is its HELLO, or why there is none. */
	must(n >= TN_CTRL_HEAD_BYTES);
	if (!f.own_bytes && bytes[4] == TN_CTRL_HELLO) {
		f.own_bytes = (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8;
		must(f.own_bytes <= sizeof(f.own));
		memcpy(f.own, bytes + TN_CTRL_HEAD_BYTES, f.own_bytes);
		bytes += TN_CTRL_HEAD_BYTES + f.own_bytes;
		n -= (uint32_t)(TN_CTRL_HEAD_BYTES + f.own_bytes);
	}
	while (n >= TN_CTRL_HEAD_BYTES) {
		uint32_t payload = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;

		must(TN_CTRL_HEAD_BYTES + payload <= n);
		/* The dialer's MAC goes first by design; all else waits for a proof. */
		must(f.proved || bytes[4] == TN_CTRL_HELLO || bytes[4] == TN_CTRL_REFUSE ||
		     (f.active && bytes[4] == TN_CTRL_AUTH));
		bytes += TN_CTRL_HEAD_BYTES + payload;
		n -= TN_CTRL_HEAD_BYTES + payload;
	}
}

static void lane_action(const tn_link_action *act)
{
	switch (act->type) {
	case TN_ACT_LANE_CREATE:
		must(f.lane_count < LANES);
		f.lanes[f.lane_count++] = act->lane.lane;
		tn_link_on_lane_created(f.link, act->lane.lane, TERN_OK, f.lanes, "addr", 4, 16, f.now);
		break;
	case TN_ACT_LANE_CONNECT:
		if (f.answer_up)
			tn_link_on_lane_up(f.link, act->lane.lane, f.now);
		break;
	default:
		lane_gone(act->lane.lane);
		tn_link_on_lane_gone(f.link, act->lane.lane, f.now);
		break;
	}
}

static void pump(void)
{
	tn_link_action act;
	uint32_t n = 0;

	while (!f.down && tn_link_next_action(f.link, f.now, &act)) {
		must(++n < 1000);
		switch (act.type) {
		case TN_ACT_CTRL_SEND:
			sent(act.ctrl.bytes, act.ctrl.n);
			break;
		case TN_ACT_PEER:
			tn_link_on_peer_answer(f.link, TERN_OK, NULL, f.now);
			break;
		case TN_ACT_REACH:
			tn_link_on_reach(f.link, act.lane.provider, TERN_OK, NULL, f.now);
			break;
		case TN_ACT_LANE_CREATE:
		case TN_ACT_LANE_CONNECT:
		case TN_ACT_LANE_CLOSE:
			lane_action(&act);
			break;
		case TN_ACT_POST:
			tn_link_posted(f.link, &act.post, TERN_OK, true, f.now);
			break;
		case TN_ACT_LINK_DOWN:
			f.down = true;
			break;
		default:
			break;
		}
	}
	tn_link_check(f.link, 2);
	must(f.proved || tn_link_get_state(f.link) <= TN_LINK_AUTH ||
	     tn_link_get_state(f.link) >= TN_LINK_DRAINING);
}

static void hear(const uint8_t *bytes, uint64_t n)
{
	if (!f.down)
		tn_link_on_ctrl_bytes(f.link, bytes, n, f.now);
}

/* ---- what an honest peer would say ---- */

static void right_hello(uint8_t bits)
{
	tn_wire_hello hello = {.version = 1, .version_min = 1, .flags = TN_HELLO_SECRET, .name = "peer"};
	uint8_t buf[TN_CTRL_HEAD_BYTES + TN_CTRL_HELLO_BYTES], digest[TN_SHA256_BYTES];
	tn_writer w;

	must(tn_sha256("", 0, digest) == TERN_OK);
	memcpy(hello.job, digest, sizeof(hello.job));
	memset(hello.node, 4, sizeof(hello.node));
	memset(hello.incarnation, 5, sizeof(hello.incarnation));
	hello.features = bits;
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_hello(&w, &hello);
	f.theirs_bytes = w.at - TN_CTRL_HEAD_BYTES;
	memcpy(f.theirs, buf + TN_CTRL_HEAD_BYTES, f.theirs_bytes);
	hear(buf, w.at);
	f.has_hello = true;
}

static void right_auth(uint8_t bits)
{
	const char *label = f.active ? "tern auth a" : "tern auth d";
	uint8_t both[2 * TN_CTRL_HELLO_BYTES], key[TN_SHA256_BYTES], text[64], macs[2][32] = {{0}};
	uint64_t first = f.active ? f.own_bytes : f.theirs_bytes;
	uint64_t second = f.active ? f.theirs_bytes : f.own_bytes;
	uint8_t buf[128];
	tn_writer w;

	if (!f.own_bytes || !f.has_hello)
		return;
	memcpy(both, f.active ? f.own : f.theirs, first);
	memcpy(both + first, f.active ? f.theirs : f.own, second);
	memcpy(text, label, strlen(label));
	must(tn_sha256(both, first + second, text + strlen(label)) == TERN_OK);
	must(tn_sha256(SECRET, sizeof(SECRET) - 1, key) == TERN_OK);
	must(tn_hmac_sha256(key, sizeof(key), text, strlen(label) + TN_SHA256_BYTES, macs[bits & 1]) ==
	     TERN_OK);
	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_auth(&w, (const uint8_t(*)[32])macs, 1 + (bits & 1));
	f.proved = true; /* from here on anything may happen, if it is taken */
	hear(buf, w.at);
}

static void right_setup(void)
{
	tn_link_provider provider = {.name = "mem",
				     .caps = TN_LINK_CAP_WRITE | TN_LINK_CAP_READ | TN_LINK_CAP_SEND,
				     .write_bytes_max = 4096,
				     .send_bytes_max = 1024,
				     .address_bytes = 4};
	uint8_t buf[512];
	tn_writer w;

	tn_writer_init(&w, buf, sizeof(buf));
	tn_wire_put_setup(&w, 4, &provider, 1, 0);
	hear(buf, w.at);
}

static void message(uint8_t type, const uint8_t *payload, uint32_t n)
{
	uint8_t buf[TN_CTRL_HEAD_BYTES + 255];

	memset(buf, 0, TN_CTRL_HEAD_BYTES);
	buf[0] = (uint8_t)n;
	buf[4] = type;
	memcpy(buf + TN_CTRL_HEAD_BYTES, payload, n);
	hear(buf, TN_CTRL_HEAD_BYTES + n);
}

static void step(uint8_t what, uint8_t arg, const uint8_t *bytes, uint32_t n)
{
	tn_link_rx rx;
	bool more;

	switch (what % 12) {
	case 0:
		hear(bytes, n);
		break;
	case 1:
		right_hello(arg);
		break;
	case 2:
		right_auth(arg);
		break;
	case 3:
		right_setup();
		break;
	case 4:
		f.now += (uint64_t)arg * 100 * TN_NS_PER_MS;
		tn_link_on_time(f.link, f.now);
		break;
	case 5:
		if (f.lane_count && !f.down)
			tn_link_on_lane_up(f.link, f.lanes[arg % f.lane_count], f.now);
		break;
	case 6:
		if (f.lane_count && !f.down)
			tn_link_on_lane_down(f.link, f.lanes[arg % f.lane_count], TERN_E_LANE, "cut", f.now);
		break;
	case 7:
		if (f.lane_count && !f.down &&
		    !tn_link_fast_frame(f.link, f.lanes[arg % f.lane_count], bytes, n, &rx, &more))
			tn_link_on_frame(f.link, f.lanes[arg % f.lane_count], bytes, n, f.now, &rx);
		break;
	case 8:
		if (arg == 0 && !f.down)
			tn_link_on_ctrl_down(f.link, TERN_E_PEER_LOST, NULL, f.now);
		break;
	default: /* most inputs: a whole message */
		message((uint8_t)(arg % (TN_CTRL_TYPES + 1)), bytes, n);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1 || size > 4096)
		return 0;
	make_link(data);
	pump();
	for (size_t at = 1; at + 3 <= size && !f.down;) {
		uint32_t n = (uint32_t)TN_MIN((size_t)data[at + 2], size - at - 3);

		step(data[at], data[at + 1], data + at + 3, n);
		pump();
		at += 3 + n;
	}
	if (!f.down)
		tn_link_close(f.link, f.now);
	for (int i = 0; i < 200 && !f.down; i++) {
		uint64_t wake = tn_link_next_wake(f.link);

		pump();
		f.now = wake == UINT64_MAX || wake < f.now ? f.now + TN_NS_PER_SEC : wake;
		tn_link_on_time(f.link, f.now);
		pump();
	}
	must(f.down);
	tn_link_fini(f.link);
	tn_link_store_fini(&f.store);
	free(f.memory);
	return 0;
}

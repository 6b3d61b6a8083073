/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that breaks the rules: each frame, immediate or control message that may not be ends its own link
 * with TERN_E_PROTOCOL and words, once, and nothing else. Frames of another epoch touch nothing.
 */
#include "link/wire.h"
#include "unit/link/record.h"

static uint32_t lane0, lane1, far; /* handles of side 1: its lanes, the channel */
static uint32_t epoch;

static void set_up(void)
{
	record_init();
	world.node[1].config.channel_window_bytes = 4096;
	world.node[0].config.features_off = TN_FEATURE_NUMBERS; /* what is forged is the next one */
	record_start();
	open_channel("c", &far);
	lane0 = world.paths[TN_LINK_LANES_MAX].end[1].handle;
	lane1 = world.paths[TN_LINK_LANES_MAX + 1].end[1].handle;
	epoch = 1;
}

static tn_frame_head head(tn_frame_type type)
{
	return (tn_frame_head){.type = (uint8_t)type, .epoch = epoch};
}

/* Side 1 gets bytes that side 0 never sent. */
static tn_link_rx inject(uint32_t lane, const void *bytes, uint64_t n)
{
	tn_link_rx rx;

	tn_link_on_frame(link_of(1), lane, bytes, n, world.now, &rx);
	tn_link_check(link_of(1), 2);
	return rx;
}

static void must_end(const char *words)
{
	assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_DRAINING);
	if (tn_link_status(link_of(1)) != TERN_E_PROTOCOL || !strstr(tn_link_detail(link_of(1)), words))
		fail_msg("%s '%s' lacks '%s'", tern_status_name(tn_link_status(link_of(1))),
			 tn_link_detail(link_of(1)), words);
	assert_true(PAIR_UNTIL(&world, pair_both_down(&world), 20000));
	/* The peer is told why, unless our answer to the forged frame broke its own rules first. */
	if (world.node[0].status != TERN_E_PROTOCOL) {
		assert_int_equal(world.node[0].status, TERN_E_PEER_CLOSED);
		assert_non_null(strstr(world.node[0].detail, words));
	}
	pair_fini(&world);
}

static tn_frame_data data_frame(uint32_t channel, uint64_t seq)
{
	return (tn_frame_data){.head = head(TN_FRAME_DATA), .channel = channel, .seq = seq};
}

static void messages(void **state)
{
	struct {
		tn_frame_data data;
		uint8_t body[5000];
	} m = {0};
	struct {
		tn_frame_frag frag;
		uint8_t body[100];
	} f = {0};

	(void)state;
	/* First that the way of these tests works at all. */
	set_up();
	m.data = data_frame(far, 0);
	assert_int_equal(inject(lane0, &m, sizeof(m.data) + 9).type, TN_RX_MESSAGE);
	m.data.seq = 2;
	assert_int_equal(inject(lane0, &m, sizeof(m.data) + 9).type, TN_RX_NONE);
	must_end("out of order");

	set_up();
	m.data = data_frame(far, 0);
	m.data.sum = 1; /* nobody agreed on checksums */
	inject(lane0, &m, sizeof(m.data) + 9);
	must_end("reserved");

	set_up();
	m.data = data_frame(far + 0x10000, 0);
	inject(lane0, &m, sizeof(m.data));
	must_end("not open");

	set_up();
	m.data = data_frame(far, 0);
	inject(lane0, &m, sizeof(m.data) + 4096);
	must_end("window");

	set_up();
	m.data = data_frame(far, 0);
	inject(lane1, &m, sizeof(m.data));
	must_end("data lane");

	set_up();
	f.frag.data = data_frame(far, 0);
	f.frag.data.head.type = TN_FRAME_FRAG;
	f.frag.total = 300;
	assert_int_equal(inject(lane0, &f, sizeof(f)).type, TN_RX_MESSAGE);
	f.frag.offset = 50;
	inject(lane0, &f, sizeof(f));
	must_end("out of order");

	set_up();
	m.data = data_frame(far, 0);
	m.data.head.type = TN_FRAME_ABORT;
	inject(lane0, &m, sizeof(m.data));
	must_end("not begun");

	set_up();
	inject(lane0, "", 0);
	must_end("short frame");
}

static void credits(void **state)
{
	tn_frame_lanes lanes = {.head = head(TN_FRAME_CREDIT), .count = 1, .rows = {{7, 0, 0}}};
	tn_frame_head sync;
	uint32_t grant;

	(void)state;
	set_up();
	lanes.head.epoch = epoch;
	inject(lane0, &lanes, TN_FRAME_LANES_BYTES(1));
	must_end("not there");

	set_up();
	sync = head(TN_FRAME_SYNC);
	sync.grant = 1000;
	inject(lane0, &sync, sizeof(sync));
	must_end("more credits");

	set_up();
	sync = head(TN_FRAME_SYNC);
	sync.seen = 1000;
	inject(lane0, &sync, sizeof(sync));
	must_end("not sent");

	/* More arrivals than slots. */
	set_up();
	sync = head(TN_FRAME_SYNC);
	grant = world.paths[TN_LINK_LANES_MAX + 1].end[1].grant;
	for (uint32_t i = 0; i < grant; i++)
		inject(lane1, &sync, sizeof(sync));
	assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_UP);
	inject(lane1, &sync, sizeof(sync));
	must_end("more receive slots");
}

static void channels(void **state)
{
	tn_frame_close close;
	tn_frame_open open;
	tn_frame_window window;
	tn_link_rx rx;

	(void)state;
	set_up();
	close = (tn_frame_close){.head = head(TN_FRAME_CLOSE), .channel = far, .messages = 5};
	inject(lane0, &close, sizeof(close));
	must_end("before its last message");

	/* A CLOSE that counts notifications waits for them; one too many is wrong. */
	set_up();
	close = (tn_frame_close){.head = head(TN_FRAME_CLOSE), .channel = far, .notifies = 1};
	inject(lane0, &close, sizeof(close));
	pump(1);
	assert_int_equal(rec.side[1].closed, 0);
	tn_link_on_imm(link_of(1), lane1, (far & 0xffff) << TN_LINK_NOTIFY_BITS | 5, 8, world.now, &rx);
	assert_int_equal(rx.type, TN_RX_NOTIFY);
	assert_int_equal(rx.value, 5);
	pump(1);
	assert_int_equal(rec.side[1].closed, 1);
	tn_link_on_imm(link_of(1), lane1, (far & 0xffff) << TN_LINK_NOTIFY_BITS | 6, 8, world.now, &rx);
	assert_int_equal(rx.type, TN_RX_NONE);
	must_end("not open");

	set_up();
	open = (tn_frame_open){.head = head(TN_FRAME_OPEN_OK), .channel = far, .mine = 1, .window = 4096};
	inject(lane0, &open, sizeof(open));
	must_end("OPEN_OK without OPEN");

	set_up();
	window = (tn_frame_window){.head = head(TN_FRAME_WINDOW), .channel = far, .total = 1};
	inject(lane0, &window, sizeof(window));
	must_end("WINDOW shrinks");

	set_up();
	tn_link_on_imm(link_of(1), lane1, 200u << TN_LINK_NOTIFY_BITS, 8, world.now, &rx);
	must_end("not open");
}

static void other_epochs(void **state)
{
	tn_frame_data data;

	(void)state;
	set_up();
	epoch = 7;
	data = data_frame(far, 0);
	assert_int_equal(inject(lane0, &data, sizeof(data)).type, TN_RX_NONE);
	assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_UP);
	assert_int_equal(tn_counter_read(&tn_link_get_counters(link_of(1))->stale), 1);
	/* Handles of lanes that are not there, and cookies of nobody. */
	assert_int_equal(inject(lane0 + 4096, &data, sizeof(data)).type, TN_RX_NONE);
	tn_link_on_wr_done(link_of(1), 0x100000005ull, TERN_OK, world.now);
	tn_link_on_lane_gone(link_of(1), lane0, world.now);
	tn_link_on_slot_free(link_of(1), 77, 1);
	assert_int_equal(tn_link_get_state(link_of(1)), TN_LINK_UP);
	pair_fini(&world);
}

static void control(void **state)
{
	static const uint8_t some[32];
	uint8_t buf[600];
	tn_writer w;

	(void)state;
#define INJECT(call, words)                                      \
	set_up();                                                \
	tn_writer_init(&w, buf, sizeof(buf));                    \
	call;                                                    \
	tn_link_on_ctrl_bytes(link_of(1), buf, w.at, world.now); \
	must_end(words)
	INJECT(tn_wire_put_auth(&w, &some, 1), "AUTH");
	INJECT(tn_wire_put_wire(&w, 1, "mem", 3), "WIRE");
	INJECT((tn_wire_put_wire(&w, 2, "mem", 3), tn_wire_put_wire(&w, 3, "mem", 3)), "a second set");
	INJECT(tn_wire_put_epoch(&w, TN_CTRL_READY, 9), "READY or MOVE");
	INJECT((tn_wire_put_wire(&w, 2, "mem", 3), tn_wire_put_epoch(&w, TN_CTRL_READY, 2),
		tn_wire_put_epoch(&w, TN_CTRL_READY, 2)),
	       "a second READY");
	INJECT((tn_wire_put_wire(&w, 2, "mem", 3), tn_wire_put_epoch(&w, TN_CTRL_MOVE, 2)),
	       "MOVE at a wrong time");
	INJECT(tn_wire_put_lane_addr(&w, 1, 0, 10, some, 3), "LANE_ADDR");
	INJECT(tn_wire_put_lane_addr(&w, 9, 0, 10, some, 3), "to come");
	INJECT(tn_wire_put_resume(&w, TN_CTRL_RESUME, &(tn_wire_resume){.epoch = 1, .lanes = 3}),
	       "RESUME at a wrong time");
	INJECT(tn_wire_put_resume(&w, TN_CTRL_RESUME, &(tn_wire_resume){.epoch = 1}),
	       "malformed RESUME or SENT");
	INJECT(tn_wire_put_epoch(&w, TN_CTRL_CLOSED, 1), "CLOSED without");
	INJECT(tn_put_u64(&w, UINT64_MAX), "unknown control message");
#undef INJECT
	/* Floods of pings are not answered without end. */
	set_up();
	for (int i = 0; i < 100000 && tn_link_get_state(link_of(1)) == TN_LINK_UP; i++) {
		tn_writer_init(&w, buf, sizeof(buf));
		tn_wire_put_ping(&w, TN_CTRL_PING, 1);
		tn_link_on_ctrl_bytes(link_of(1), buf, w.at, world.now);
	}
	must_end("");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages),     cmocka_unit_test(credits), cmocka_unit_test(channels),
		cmocka_unit_test(other_epochs), cmocka_unit_test(control),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire format of the link: golden bytes of every control message and frame (tests/golden/link_wire.hex; with
 * LINK_GOLDEN_WRITE=1 the file is written anew), what is read back, and what every cut and bad field gives.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cmocka_all.h"
#include "link/wire.h"

#define ROWS_MAX 48

typedef struct row {
	char name[32];
	uint8_t bytes[600];
	uint32_t n;
} row;

static row rows[ROWS_MAX];
static uint32_t row_count;

static const uint8_t mac[32] = {0xaa, 0xbb, 0xcc};

static row *add(const char *name)
{
	row *r = &rows[row_count++];

	assert_true(row_count <= ROWS_MAX);
	snprintf(r->name, sizeof(r->name), "%s", name);
	return r;
}

static tn_writer open_row(row *r)
{
	tn_writer w;

	tn_writer_init(&w, r->bytes, sizeof(r->bytes));
	return w;
}

static void close_row(row *r, const tn_writer *w)
{
	assert_false(w->bad);
	r->n = (uint32_t)w->at;
}

static tn_wire_hello sample_hello(void)
{
	tn_wire_hello h = {
		.version = 1, .version_min = 1, .features = 5, .flags = TN_HELLO_SECRET, .name = "worker 3"};

	memset(h.job, 1, sizeof(h.job));
	memset(h.node, 2, sizeof(h.node));
	memset(h.incarnation, 3, sizeof(h.incarnation));
	memset(h.nonce, 4, sizeof(h.nonce));
	return h;
}

static tn_link_provider sample_provider(void)
{
	return (tn_link_provider){
		.name = "shm",
		.caps = 0x1ff,
		.write_bytes_max = 1ull << 30,
		.send_bytes_max = 8192,
		.address_bytes = 3,
		.address = {9, 8, 7},
	};
}

static void make_control(void)
{
	tn_wire_hello hello = sample_hello();
	tn_link_provider provider = sample_provider();
	tn_writer w;
	row *r;

#define ROW(name, call)  \
	r = add(name);   \
	w = open_row(r); \
	call;            \
	close_row(r, &w)
	ROW("HELLO", tn_wire_put_hello(&w, &hello));
	ROW("AUTH", tn_wire_put_auth(&w, &mac, 1));
	ROW("SETUP", tn_wire_put_setup(&w, 256, &provider, 1, 0));
	ROW("WIRE", tn_wire_put_wire(&w, 7, "tcp", 3));
	ROW("LANE_ADDR", tn_wire_put_lane_addr(&w, 7, 2, 64, (const uint8_t *)"adr", 3));
	ROW("WIRED", tn_wire_put_epoch(&w, TN_CTRL_WIRED, 7));
	ROW("UNWIRE", tn_wire_put_unwire(&w, 7, TERN_E_UNREACHABLE, "no way"));
	ROW("PING", tn_wire_put_ping(&w, TN_CTRL_PING, 0x0102030405060708ull));
	ROW("PONG", tn_wire_put_ping(&w, TN_CTRL_PONG, 9));
	ROW("REFUSE", tn_wire_put_refuse(&w, TERN_E_VERSION, "too old"));
	ROW("CLOSED", tn_wire_put_epoch(&w, TN_CTRL_CLOSED, 7));
	ROW("REJOIN", tn_wire_put_rejoin(&w, TN_CTRL_REJOIN,
					 &(tn_wire_rejoin){.session = {1, 2},
							   .number = 3,
							   .received = 0x0405060708090a0bull,
							   .mac = {12}}));
	ROW("REJOINED",
	    tn_wire_put_rejoin(&w, TN_CTRL_REJOINED, &(tn_wire_rejoin){.number = 3, .received = 9}));
	ROW("WIDEN", tn_wire_put_epoch(&w, TN_CTRL_WIDEN, 8));
	ROW("NARROW", tn_wire_put_epoch(&w, TN_CTRL_NARROW, 8));
	ROW("KEEP", tn_wire_put_epoch(&w, TN_CTRL_KEEP, 8));
	ROW("READY", tn_wire_put_epoch(&w, TN_CTRL_READY, 8));
	ROW("MOVE", tn_wire_put_epoch(&w, TN_CTRL_MOVE, 8));
	ROW("SENT",
	    tn_wire_put_resume(&w, TN_CTRL_SENT,
			       &(tn_wire_resume){.epoch = 7, .lanes = 2, .received = {3, 0x01020304}}));
	ROW("RESUME",
	    tn_wire_put_resume(&w, TN_CTRL_RESUME,
			       &(tn_wire_resume){.epoch = 7, .lanes = 2, .received = {3, 0x01020304}}));
#undef ROW
}

static void add_frame(const char *name, const void *header, uint32_t n, const char *payload)
{
	row *r = add(name);

	memcpy(r->bytes, header, n);
	memcpy(r->bytes + n, payload, strlen(payload));
	r->n = n + (uint32_t)strlen(payload);
}

#define HEAD(t)                                                                             \
	{                                                                                   \
		.type = TN_FRAME_##t, .flags = 0, .epoch = 0x01020304, .grant = 0x11121314, \
		.seen = 0x21222324                                                          \
	}

static void make_frames(void)
{
	tn_frame_data data = {.head = HEAD(DATA), .channel = 0x00050006, .seq = 0x3132333435363738ull};
	tn_frame_frag frag = {
		.data = {.head = HEAD(FRAG), .channel = 0x00050006, .seq = 4}, .offset = 100, .total = 105};
	tn_frame_data numbered = {.head = HEAD(DATA), .channel = 0x00050006, .seq = 1};
	tn_frame_data abort_frame = {.head = HEAD(ABORT), .channel = 0x00050006, .seq = 4};
	tn_frame_open open = {
		.head = HEAD(OPEN), .channel = 0x00010002, .window = 1 << 20, .message_max = 64 << 20};
	tn_frame_open ok = {.head = HEAD(OPEN_OK), .channel = 0x00010002, .mine = 0x00030004, .window = 4096};
	tn_frame_fail fail = {.head = HEAD(OPEN_FAIL), .channel = 0x00010002, .status = TERN_E_NOT_FOUND};
	tn_frame_close close = {.head = HEAD(CLOSE), .channel = 0x00050006, .messages = 10, .notifies = 20};
	tn_frame_window window = {.head = HEAD(WINDOW), .channel = 0x00050006, .total = 1 << 21};
	tn_frame_notify notify = {
		.head = HEAD(NOTIFY), .channel = 0x00050006, .value = 0xabcdef, .bytes = 1ull << 33};
	tn_frame_lanes credit = {.head = HEAD(CREDIT), .count = 2, .rows = {{1, 30, 20}, {2, 31, 21}}};
	tn_frame_grant grant = {
		.head = HEAD(GRANT), .share = 128 << 10, .total = 0x3132333435363738ull, .unit = 64 << 10};
	tn_frame_demand demand = {
		.head = HEAD(DEMAND), .wanted = 0x4142434445464748ull, .done = 4 << 20, .back = 4096};
	tn_frame_slots slots = {.head = HEAD(SLOTS), .added = 0x51525354, .asked = 0x61626364};
	tn_frame_slots relinquished = {.head = HEAD(RELINQUISHED), .added = 0x71727374};
	tn_frame_head sync = HEAD(SYNC);
	tn_frame_lanes bye = {.head = HEAD(BYE), .count = 1, .rows = {{0, 99, 0}}};

	data.head.flags = TN_FRAME_ACK;
	add_frame("DATA", &data, sizeof(data), "hello");
	numbered.head.number = 0x0201;
	add_frame("NUMBERED", &numbered, sizeof(numbered), "hello");
	add_frame("FRAG", &frag, sizeof(frag), "hello");
	add_frame("ABORT", &abort_frame, sizeof(abort_frame), "");
	add_frame("OPEN", &open, sizeof(open), "tern.rpc");
	add_frame("OPEN_OK", &ok, sizeof(ok), "");
	add_frame("OPEN_FAIL", &fail, sizeof(fail), "no such service");
	add_frame("CLOSE", &close, sizeof(close), "");
	add_frame("WINDOW", &window, sizeof(window), "");
	add_frame("NOTIFY", &notify, sizeof(notify), "");
	add_frame("CREDIT", &credit, TN_FRAME_LANES_BYTES(2), "");
	add_frame("SYNC", &sync, sizeof(sync), "");
	add_frame("BYE", &bye, TN_FRAME_LANES_BYTES(1), "");
	add_frame("GRANT", &grant, sizeof(grant), "");
	add_frame("DEMAND", &demand, sizeof(demand), "");
	add_frame("SLOTS", &slots, sizeof(slots), "");
	add_frame("RELINQUISHED", &relinquished, sizeof(relinquished), "");
}

static uint32_t control_rows;

static int make_rows(void **state)
{
	(void)state;
	make_control();
	control_rows = row_count;
	make_frames();
	return 0;
}

static const row *row_of(const char *name)
{
	for (uint32_t i = 0; i < row_count; i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	fail_msg("no row %s", name);
	return NULL;
}

/* ---- golden ---- */

static void golden(void **state)
{
	const char *folder = getenv("TERN_GOLDEN");
	char path[512], name[32], hex[1300];
	uint32_t i = 0;
	FILE *f;

	(void)state;
	if (!folder)
		skip();
	snprintf(path, sizeof(path), "%s/link_wire.hex", folder);
	if (getenv("LINK_GOLDEN_WRITE")) {
		f = fopen(path, "w");
		assert_non_null(f);
		for (i = 0; i < row_count; i++) {
			fprintf(f, "%s ", rows[i].name);
			for (uint32_t k = 0; k < rows[i].n; k++)
				fprintf(f, "%02x", rows[i].bytes[k]);
			fprintf(f, "\n");
		}
		fclose(f);
		return;
	}
	f = fopen(path, "r");
	assert_non_null(f);
	for (; fscanf(f, "%31s %1299s", name, hex) == 2; i++) {
		const row *r = row_of(name);

		assert_int_equal(strlen(hex), 2 * r->n);
		for (uint32_t k = 0; k < r->n; k++) {
			unsigned byte;

			assert_int_equal(sscanf(hex + 2 * k, "%2x", &byte), 1);
			if (byte != r->bytes[k])
				fail_msg("%s: byte %u is %02x, golden %02x", name, k, r->bytes[k], byte);
		}
	}
	fclose(f);
	assert_int_equal(i, row_count);
}

/* ---- control messages ---- */

static const char *parse_control(const uint8_t *bytes, uint32_t n, bool first)
{
	static union {
		tn_wire_hello hello;
		tn_wire_setup setup;
		tn_wire_wire wire;
		tn_wire_lane_addr addr;
		tn_wire_end end;
		tn_wire_resume resume;
		tn_wire_rejoin rejoin;
		uint64_t number;
		uint32_t epoch;
	} u;
	tn_ctrl_type type;
	uint32_t want;
	const char *wrong = tn_wire_ctrl_head(bytes, first, &type, &want);
	const uint8_t *payload = bytes + TN_CTRL_HEAD_BYTES;

	n -= TN_CTRL_HEAD_BYTES;
	if (wrong)
		return wrong;
	switch (type) {
	case TN_CTRL_HELLO:
		return tn_wire_get_hello(payload, n, &u.hello);
	case TN_CTRL_SETUP:
		return tn_wire_get_setup(payload, n, &u.setup);
	case TN_CTRL_WIRE:
		return tn_wire_get_wire(payload, n, &u.wire);
	case TN_CTRL_LANE_ADDR:
		return tn_wire_get_lane_addr(payload, n, &u.addr);
	case TN_CTRL_UNWIRE:
		return tn_wire_get_end(payload, n, true, &u.end);
	case TN_CTRL_REFUSE:
		return tn_wire_get_end(payload, n, false, &u.end);
	case TN_CTRL_PING:
	case TN_CTRL_PONG:
		return tn_wire_get_ping(payload, n, &u.number);
	case TN_CTRL_RESUME:
	case TN_CTRL_SENT:
		return tn_wire_get_resume(payload, n, &u.resume);
	case TN_CTRL_REJOIN:
	case TN_CTRL_REJOINED:
		return tn_wire_get_rejoin(payload, n, &u.rejoin);
	case TN_CTRL_AUTH:
		return n == 32 ? NULL : "length";
	default:
		return tn_wire_get_epoch(payload, n, &u.epoch);
	}
}

static void control_cuts(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < control_rows; i++) {
		assert_null(parse_control(rows[i].bytes, rows[i].n, false));
		for (uint32_t n = TN_CTRL_HEAD_BYTES; n < rows[i].n; n++)
			if (!parse_control(rows[i].bytes, n, false))
				fail_msg("%s cut to %u bytes was taken", rows[i].name, n);
	}
}

static void control_fields(void **state)
{
	uint8_t head[TN_CTRL_HEAD_BYTES] = {0};
	tn_wire_setup setup;
	tn_wire_hello hello;
	tn_wire_end end;
	tn_ctrl_type type;
	uint32_t n;
	row r;

	(void)state;
	/* The first message is a HELLO; lengths are bounded before anything is read. */
	head[4] = TN_CTRL_PING;
	assert_non_null(tn_wire_ctrl_head(head, true, &type, &n));
	assert_null(tn_wire_ctrl_head(head, false, &type, &n));
	head[2] = 1; /* 64 KiB */
	assert_non_null(tn_wire_ctrl_head(head, false, &type, &n));
	memcpy(head, "GET / HT", 8);
	assert_non_null(tn_wire_ctrl_head(head, true, &type, &n));
	head[4] = TN_CTRL_TYPES;
	assert_non_null(tn_wire_ctrl_head(head, false, &type, &n));

	r = *row_of("HELLO");
	assert_null(tn_wire_get_hello(r.bytes + 8, r.n - 8, &hello));
	assert_string_equal(hello.name, "worker 3");
	assert_int_equal(hello.features, 5);
	/* A version that nobody here speaks: only its number is read. */
	r.bytes[12] = 9;
	r.bytes[14] = 9;
	assert_null(tn_wire_get_hello(r.bytes + 8, 8, &hello));
	assert_int_equal(hello.version_min, 9);
	/* A newer one that speaks ours may say more. */
	r = *row_of("HELLO");
	r.bytes[12] = 2;
	assert_null(tn_wire_get_hello(r.bytes + 8, r.n - 8 + 5, &hello));

	r = *row_of("SETUP");
	assert_null(tn_wire_get_setup(r.bytes + 8, r.n - 8, &setup));
	assert_int_equal(setup.providers[0].send_bytes_max, 8192);
	r.bytes[12] = TN_LINK_PROVIDERS_MAX + 1;
	assert_non_null(tn_wire_get_setup(r.bytes + 8, r.n - 8, &setup));

	r = *row_of("REFUSE");
	assert_null(tn_wire_get_end(r.bytes + 8, r.n - 8, false, &end));
	assert_int_equal(end.status, TERN_E_VERSION);
	/* A success is no reason to end a link, and unknown numbers are not believed. */
	memset(r.bytes + 8, 0, 4);
	assert_null(tn_wire_get_end(r.bytes + 8, r.n - 8, false, &end));
	assert_int_equal(end.status, TERN_E_REMOTE);
	memset(r.bytes + 8, 0x80, 4);
	assert_null(tn_wire_get_end(r.bytes + 8, r.n - 8, false, &end));
	assert_int_equal(end.status, TERN_E_REMOTE);
}

/* ---- frames ---- */

static void frame_cuts(void **state)
{
	static tn_frame frame;

	(void)state;
	for (uint32_t i = control_rows; i < row_count; i++) {
		const row *r = &rows[i];

		assert_null(tn_frame_parse(r->bytes, r->n, &frame));
		assert_int_equal(frame.head.epoch, 0x01020304);
		assert_int_equal(frame.head.grant, 0x11121314);
		assert_int_equal(frame.head.seen, 0x21222324);
		for (uint32_t n = 0; n < r->n; n++) {
			const char *wrong = tn_frame_parse(r->bytes, n, &frame);
			bool text = frame.head.type == TN_FRAME_DATA || frame.head.type == TN_FRAME_FRAG ||
				    frame.head.type == TN_FRAME_OPEN || frame.head.type == TN_FRAME_OPEN_FAIL;

			if (!wrong && !text)
				fail_msg("%s cut to %u bytes was taken", r->name, n);
		}
	}
}

static void must_refuse(const char *name, uint32_t at, uint8_t value)
{
	static tn_frame frame;
	row r = *row_of(name);

	r.bytes[at] = value;
	if (!tn_frame_parse(r.bytes, r.n, &frame))
		fail_msg("%s with byte %u = %u was taken", name, at, value);
}

static void frame_fields(void **state)
{
	static tn_frame frame;
	const row *r = row_of("DATA");

	(void)state;
	assert_null(tn_frame_parse(r->bytes, r->n, &frame));
	assert_int_equal(frame.channel, 0x00050006);
	assert_int_equal(frame.data.total, 5);
	assert_memory_equal(frame.payload, "hello", 5);
	r = row_of("OPEN");
	assert_null(tn_frame_parse(r->bytes, r->n, &frame));
	assert_string_equal(frame.open.service, "tern.rpc");
	r = row_of("CREDIT");
	assert_null(tn_frame_parse(r->bytes, r->n, &frame));
	assert_int_equal(frame.lanes.rows[1].grant, 31);

	must_refuse("DATA", 0, 0); /* type */
	must_refuse("DATA", 0, TN_FRAME_TYPES);
	must_refuse("DATA", 1, 4);          /* unknown flag */
	must_refuse("ABORT", 20, 1);        /* of DATA and FRAG a checksum: rx_test.c */
	must_refuse("FRAG", 32, 106);       /* offset beyond total */
	must_refuse("FRAG", 40, 104);       /* payload beyond total */
	must_refuse("FRAG", 47, 1);         /* total beyond any memory */
	must_refuse("OPEN", 20, 1);         /* a handle of ours */
	must_refuse("OPEN", 26, 0);         /* no window */
	must_refuse("OPEN", 41, 0);         /* NUL in the name */
	must_refuse("NOTIFY", 23, 1);       /* value beyond its bits */
	must_refuse("GRANT", 36, 1);        /* reserved */
	must_refuse("GRANT", 34, 0);        /* pieces of nothing */
	must_refuse("RELINQUISHED", 20, 1); /* reserved */
	must_refuse("CREDIT", 16, 3);       /* more rows than bytes */
	must_refuse("CREDIT", 16, TN_LINK_LANES_MAX + 1);
	must_refuse("CREDIT", 24, TN_LINK_LANES_MAX); /* lane */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),         cmocka_unit_test(control_cuts),
		cmocka_unit_test(control_fields), cmocka_unit_test(frame_cuts),
		cmocka_unit_test(frame_fields),
	};

	return cmocka_run_group_tests(tests, make_rows, NULL);
}

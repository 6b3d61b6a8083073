/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer of the tcp provider that has proven itself and lies: each lie ends its lane and nothing else. And a
 * peer that is honest but slow, byte by byte.
 */
#include "tcp_peer.h"

#define REGION_BYTES 65536u

typedef struct scene {
	node n, friend;
	tn_lane *good, *far; /* a lane of both nodes that must live on */
	tn_lane *lane;       /* the liar's */
	forged f;
	uint8_t *mem;
	tern_key wire;
	tn_key key;
} scene;

static void scene_open(scene *s, int rcvbuf)
{
	node_open(&s->n, NULL);
	node_open(&s->friend, NULL);
	lane_pair(&s->friend, &s->n, &s->far, &s->good);
	s->lane = forge_up(&s->n, &s->f, rcvbuf);
	s->mem = region(&s->n, REGION_BYTES, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &s->wire, &s->key);
}

/* The neighbour still carries messages. */
static void scene_close(scene *s)
{
	tn_iov iov = {.base = "still here", .bytes = 10};
	uint32_t before = node_events(&s->n, TN_EV_RECV, s->good);
	bool done;

	assert_ok(tn_lane_send(s->far, &iov, 1, 0, &done));
	UNTIL2(node_events(&s->n, TN_EV_RECV, s->good) > before, &s->n, &s->friend);
	assert_null(node_find(&s->n, TN_EV_LANE_DOWN, s->good));
	s->n.dev->ops->recv_done(s->n.dev, node_find(&s->n, TN_EV_RECV, s->good));
	forge_close(&s->f);
	lane_end(&s->n, s->lane);
	lane_end(&s->n, s->good);
	lane_end(&s->friend, s->far);
	node_close(&s->n);
	node_close(&s->friend);
}

static void ends_in(scene *s, tern_status status, const char *why)
{
	expect_down(&s->n, s->lane, status);
	if (!strstr(s->n.detail, why))
		fail_msg("\"%s\" is not in \"%s\"", why, s->n.detail);
	expect_closed(&s->n, s->f.fd);
	scene_close(s);
}

/* ---- frames that are wrong in themselves or out of turn ---- */

typedef enum lie {
	LIE_JUNK,
	LIE_TYPE,
	LIE_LONG_MESSAGE,
	LIE_SEQUENCE,
	LIE_REPEATED,
	LIE_ACK,
	LIE_ANSWER,
	LIE_NAK,
	LIE_HUGE,
	LIES,
} lie;

static const char *const lie_found[LIES] = {
	[LIE_JUNK] = "no frame",
	[LIE_TYPE] = "unknown frame type",
	[LIE_LONG_MESSAGE] = "longer than the receive buffers",
	[LIE_SEQUENCE] = "out of sequence",
	[LIE_REPEATED] = "out of sequence",
	[LIE_ACK] = "never sent",
	[LIE_ANSWER] = "nobody asked",
	[LIE_NAK] = "never sent",
	[LIE_HUGE] = "beyond the limit",
};

static void tell(scene *s, lie what)
{
	tn_tcp_hdr hdr = {.type = TN_TCP_SEND};
	uint8_t junk[200] = {0};

	switch (what) {
	case LIE_JUNK:
		memset(junk, 0xff, sizeof(junk));
		put(s->f.fd, junk, sizeof(junk));
		return;
	case LIE_TYPE:
		hdr.type = (tn_tcp_type)9;
		break;
	case LIE_LONG_MESSAGE:
		hdr.bytes = 1 << 20;
		break;
	case LIE_SEQUENCE:
		hdr.seq = 1;
		break;
	case LIE_REPEATED:
		put_frame(&s->f, hdr, NULL);
		break;
	case LIE_ACK:
		hdr = (tn_tcp_hdr){.type = TN_TCP_ACK, .ack = 1};
		break;
	case LIE_ANSWER:
		hdr = (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .seq = 0, .bytes = 10};
		put_frame(&s->f, hdr, junk); /* small frames are looked at when they are whole */
		return;
	case LIE_NAK:
		hdr = (tn_tcp_hdr){.type = TN_TCP_NAK, .seq = 5, .status = TERN_E_BOUNDS};
		break;
	default:
		hdr = under_key(TN_TCP_WRITE, &s->f, &s->key, 0, UINT64_MAX);
	}
	put_frame(&s->f, hdr, NULL);
}

static void lies_end_their_lane(void **state)
{
	static scene s;

	(void)state;
	for (lie what = 0; what < LIES; what++) {
		scene_open(&s, 0);
		tell(&s, what);
		ends_in(&s, TERN_E_PROTOCOL, lie_found[what]);
	}
}

/* Each prefix of an honest frame, then the end of the connection. */
static void cut_off_anywhere(void **state)
{
	static scene s;
	uint8_t bytes[TN_TCP_HDR_BYTES + 100] = {0};

	(void)state;
	for (size_t n = 0; n < sizeof(bytes); n += n < 4 ? 1 : 19) {
		tn_tcp_hdr hdr;

		scene_open(&s, 0);
		hdr = under_key(TN_TCP_WRITE, &s.f, &s.key, 0, 100);
		tn_tcp_hdr_encode(&hdr, bytes);
		memset(bytes + TN_TCP_HDR_BYTES, 0xab, 100);
		put(s.f.fd, bytes, n);
		shutdown(s.f.fd, SHUT_WR);
		/* a small payload becomes visible whole or not at all */
		expect_down(&s.n, s.lane, TERN_E_LANE);
		assert_int_equal(s.mem[0], 0);
		scene_close(&s);
	}
}

/* ---- answers to what the node really asked ---- */

static tn_wr ask(scene *s, uint8_t *local, uint64_t bytes, uint64_t cookie)
{
	tn_wr wr = {.cookie = cookie, .level = TN_LEVEL_REMOTE, .local = local, .bytes = bytes};

	wr.key = s->key; /* any decoded key: the forged peer has no memory */
	return wr;
}

static void wrong_length_of_an_answer(void **state)
{
	static scene s;
	uint8_t local[64] = {0};
	tn_wr wr;

	(void)state;
	scene_open(&s, 0);
	wr = ask(&s, local, 10, 77);
	assert_ok(tn_lane_read(s.lane, &wr));
	assert_int_equal(get_frame(&s.n, &s.f).type, TN_TCP_READ_REQ);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .bytes = 64}, local);
	expect_down(&s.n, s.lane, TERN_E_PROTOCOL);
	UNTIL(node_done(&s.n, 77), &s.n);
	assert_int_equal(node_done(&s.n, 77)->status, TERN_E_PROTOCOL);
	scene_close(&s);
}

static void answered_twice(void **state)
{
	static scene s;
	uint8_t local[64] = {0}, data[18] = "0123456789";
	tn_wr wr;

	(void)state;
	scene_open(&s, 0);
	wr = ask(&s, local, 10, 77);
	assert_ok(tn_lane_read(s.lane, &wr));
	(void)get_frame(&s.n, &s.f);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .bytes = 10}, data);
	put(s.f.fd, data + 10, TN_TCP_TRAILER_BYTES);
	UNTIL(node_done(&s.n, 77), &s.n);
	assert_int_equal(node_done(&s.n, 77)->status, TERN_OK);
	assert_memory_equal(local, data, 10);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .bytes = 10}, data);
	ends_in(&s, TERN_E_PROTOCOL, "nobody asked");
}

static void junk_in_a_trailer(void **state)
{
	static scene s;
	uint8_t local[64] = {0}, data[18] = "0123456789";
	tn_wr wr;

	(void)state;
	scene_open(&s, 0);
	wr = ask(&s, local, 10, 77);
	assert_ok(tn_lane_read(s.lane, &wr));
	(void)get_frame(&s.n, &s.f);
	data[12] = 3;
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .bytes = 10}, data);
	put(s.f.fd, data + 10, TN_TCP_TRAILER_BYTES);
	ends_in(&s, TERN_E_PROTOCOL, "after the data of a read");
}

/* A late refusal of a LOCAL write changes nothing; of a REMOTE one it is the result. */
static void refusals(void **state)
{
	static scene s;
	uint8_t local[64] = {0};
	tn_wr wr;

	(void)state;
	scene_open(&s, 0);
	wr = ask(&s, local, 10, 1);
	wr.level = TN_LEVEL_LOCAL;
	assert_ok(tn_lane_write(s.lane, &wr));
	assert_true(wr.done);
	wr = ask(&s, local, 10, 2);
	assert_ok(tn_lane_write(s.lane, &wr));
	assert_false(wr.done);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_NAK, .seq = 0, .status = TERN_E_ACCESS}, NULL);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_NAK, .seq = 1, .ack = 1, .status = TERN_E_STALE_KEY},
		  NULL);
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_NAK, .seq = 1, .ack = 1, .status = TERN_E_STALE_KEY},
		  NULL);
	UNTIL(node_done(&s.n, 2), &s.n);
	assert_int_equal(node_done(&s.n, 2)->status, TERN_E_STALE_KEY);
	UNTIL(node_counter(&s.n, "tcp.naks_late") == 2, &s.n);
	assert_int_equal(node_events(&s.n, TN_EV_DONE, s.lane), 1);
	assert_null(node_find(&s.n, TN_EV_LANE_DOWN, s.lane));
	scene_close(&s);
}

/* An acknowledgement of what the kernel still holds back is a lie. */
static void acknowledged_before_sent(void **state)
{
	static scene s;
	const uint64_t bytes = 64 << 20;
	uint8_t *local = calloc(1, bytes);
	tn_wr wr;

	(void)state;
	scene_open(&s, 8192);
	s.key.length = bytes; /* the forged target's */
	wr = ask(&s, local, bytes, 5);
	assert_ok(tn_lane_write(s.lane, &wr));
	put_frame(&s.f, (tn_tcp_hdr){.type = TN_TCP_ACK, .ack = 1}, NULL);
	expect_down(&s.n, s.lane, TERN_E_PROTOCOL);
	UNTIL(node_done(&s.n, 5), &s.n);
	assert_int_equal(node_done(&s.n, 5)->status, TERN_E_PROTOCOL);
	scene_close(&s);
	free(local);
}

/* ---- floods ---- */

static void too_many_reads(void **state)
{
	static scene s;

	(void)state;
	scene_open(&s, 4096);
	for (uint32_t i = 0; i < 4 * TN_TCP_READS_MAX && !node_find(&s.n, TN_EV_LANE_DOWN, s.lane); i++) {
		uint8_t bytes[TN_TCP_HDR_BYTES];
		tn_tcp_hdr hdr = under_key(TN_TCP_READ_REQ, &s.f, &s.key, 0, REGION_BYTES);

		tn_tcp_hdr_encode(&hdr, bytes);
		(void)send(s.f.fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		node_poll(&s.n);
	}
	expect_down(&s.n, s.lane, TERN_E_PROTOCOL);
	assert_non_null(strstr(s.n.detail, "unanswered reads"));
	scene_close(&s);
}

/* Refusals that nobody reads pile up to a bound. */
static void too_many_refusals(void **state)
{
	static scene s;
	tn_key bad;

	(void)state;
	scene_open(&s, 4096);
	bad = s.key;
	bad.generation += 2;
	for (uint32_t i = 0; !node_find(&s.n, TN_EV_LANE_DOWN, s.lane); i++) {
		uint8_t bytes[TN_TCP_HDR_BYTES];
		tn_tcp_hdr hdr = under_key(TN_TCP_WRITE, &s.f, &bad, 0, 0);

		tn_tcp_hdr_encode(&hdr, bytes);
		(void)send(s.f.fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		if (i % 64 == 0)
			node_poll(&s.n);
	}
	assert_int_equal(node_find(&s.n, TN_EV_LANE_DOWN, s.lane)->status, TERN_E_PROTOCOL);
	scene_close(&s);
}

/* ---- honest, but in pieces ---- */

static void byte_by_byte(void **state)
{
	static scene s;
	uint8_t bytes[2 * TN_TCP_HDR_BYTES + 8 + 5];
	tn_tcp_hdr hdr, ack;

	(void)state;
	scene_open(&s, 0);
	hdr = under_key(TN_TCP_WRITE, &s.f, &s.key, 16, 8);
	tn_tcp_hdr_encode(&hdr, bytes);
	memcpy(bytes + TN_TCP_HDR_BYTES, "FLAGWORD", 8);
	hdr = (tn_tcp_hdr){.type = TN_TCP_SEND, .seq = s.f.seq++, .bytes = 5};
	tn_tcp_hdr_encode(&hdr, bytes + TN_TCP_HDR_BYTES + 8);
	memcpy(bytes + 2 * TN_TCP_HDR_BYTES + 8, "hello", 5);
	for (size_t i = 0; i < sizeof(bytes); i++) {
		put(s.f.fd, bytes + i, 1);
		node_poll(&s.n);
		/* never a torn word */
		if (i < TN_TCP_HDR_BYTES + 7)
			assert_int_equal(s.mem[16], 0);
	}
	UNTIL(node_find(&s.n, TN_EV_RECV, s.lane), &s.n);
	assert_memory_equal(s.mem + 16, "FLAGWORD", 8);
	assert_int_equal(node_find(&s.n, TN_EV_RECV, s.lane)->bytes, 5);
	assert_memory_equal(node_find(&s.n, TN_EV_RECV, s.lane)->buf, "hello", 5);
	s.n.dev->ops->recv_done(s.n.dev, node_find(&s.n, TN_EV_RECV, s.lane));
	ack = get_frame(&s.n, &s.f);
	assert_int_equal(ack.type, TN_TCP_ACK);
	assert_in_range(ack.ack, 1, 2);
	scene_close(&s);
}

/* Many small requests in one piece: one acknowledgement for the batch. */
static void one_ack_per_batch(void **state)
{
	static scene s;
	uint8_t bytes[100 * (TN_TCP_HDR_BYTES + 8)], *p = bytes;
	tn_tcp_hdr ack;

	(void)state;
	scene_open(&s, 0);
	for (unsigned i = 0; i < 100; i++, p += TN_TCP_HDR_BYTES + 8) {
		tn_tcp_hdr hdr = under_key(TN_TCP_WRITE, &s.f, &s.key, 8 * i, 8);

		tn_tcp_hdr_encode(&hdr, p);
		memset(p + TN_TCP_HDR_BYTES, (int)i, 8);
	}
	put(s.f.fd, bytes, sizeof(bytes));
	do {
		ack = get_frame(&s.n, &s.f);
		assert_int_equal(ack.type, TN_TCP_ACK);
	} while (ack.ack < 100);
	assert_int_equal(ack.ack, 100);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(s.mem[8 * i], i);
	assert_true(node_counter(&s.n, "tcp.acks") < 10);
	assert_int_equal(node_counter(&s.n, "tcp.copies"), 100);
	assert_int_equal(node_counter(&s.n, "tcp.copy_bytes"), 800);
	scene_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lies_end_their_lane),       cmocka_unit_test(cut_off_anywhere),
		cmocka_unit_test(wrong_length_of_an_answer), cmocka_unit_test(answered_twice),
		cmocka_unit_test(junk_in_a_trailer),         cmocka_unit_test(refusals),
		cmocka_unit_test(acknowledged_before_sent),  cmocka_unit_test(too_many_reads),
		cmocka_unit_test(too_many_refusals),         cmocka_unit_test(byte_by_byte),
		cmocka_unit_test(one_ack_per_batch),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow on tcp lanes: sockets that take little at a time, receivers without room, keys that are revoked while
 * data moves, copies and acknowledgements counted.
 */
#include <signal.h>
#include <sys/wait.h>

#include "base/rand.h"
#include "transport/tcp/tcp.h"

#include "tcp_peer.h"

#define BIG_BYTES (16u << 20)

static const char *const tiny[] = {"tcp.sndbuf=4KiB", "tcp.rcvbuf=4KiB", "tcp.lane_wrs=8", NULL};

typedef struct duo {
	node a, b;
	tn_lane *la, *lb;
} duo;

static void duo_open(duo *d, const char *const *pairs)
{
	node_open(&d->a, pairs);
	node_open(&d->b, pairs);
	lane_pair(&d->a, &d->b, &d->la, &d->lb);
}

static void duo_close(duo *d)
{
	lane_end(&d->a, d->la);
	lane_end(&d->b, d->lb);
	node_close(&d->a);
	node_close(&d->b);
}

static uint8_t pattern(uint64_t i)
{
	return (uint8_t)((i * 0x9e3779b97f4a7c15ull) >> 56);
}

/* ---- little at a time ---- */

/*
 * All verbs, sizes around every edge, over buffers of a few KiB: each frame is cut many times on both
 * sides. Writes go to a region of b, reads come back from it, messages are compared.
 */
static void everything_in_pieces(void **state)
{
	static duo d;
	const uint64_t sizes[] = {0,    1,    8,    55,   56,    57,    2047,  2048,
				  2049, 4095, 4096, 4097, 16384, 65536, 300000};
	const unsigned n = sizeof(sizes) / sizeof(sizes[0]);
	uint8_t *source, *back, *far;
	tern_key wire;
	tn_key key, own;
	tn_rand rand = {1};

	(void)state;
	duo_open(&d, tiny);
	source = region(&d.a, 300000, TERN_ACCESS_READ, &wire, &own);
	far = region(&d.b, 300000, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &wire, &key);
	back = calloc(1, 300000);
	for (uint64_t i = 0; i < 300000; i++)
		source[i] = pattern(i);
	for (unsigned round = 0; round < 60; round++) {
		uint64_t bytes = sizes[tn_rand_below(&rand, n)], from = tn_rand_below(&rand, 300001 - bytes);
		uint64_t message = TN_MIN(bytes, 65536);
		tn_wr wr = {.cookie = 3 * round,
			    .level = TN_LEVEL_REMOTE,
			    .local = source + from,
			    .bytes = bytes,
			    .key = key,
			    .offset = from,
			    .imm = round};
		tn_iov iov[2] = {{source, message / 3}, {source + message / 3, message - message / 3}};
		const tn_event *event;
		bool done;

		d.a.count = d.b.count = 0;
		assert_ok(round % 2 ? tn_lane_write(d.la, &wr) : tn_lane_write_imm(d.la, &wr));
		assert_ok(tn_lane_send(d.la, iov, 2, 3 * round + 1, &done));
		wr = (tn_wr){
			.cookie = 3 * round + 2, .local = back, .bytes = bytes, .key = key, .offset = from};
		memset(back, 0, bytes);
		assert_ok(d.a.dev->ops->read(d.la, &wr));
		UNTIL2(node_done(&d.a, 3 * round) && node_done(&d.a, 3 * round + 2) &&
			       node_find(&d.b, TN_EV_RECV, d.lb) && (done || node_done(&d.a, 3 * round + 1)),
		       &d.a, &d.b);
		assert_int_equal(node_done(&d.a, 3 * round)->status, TERN_OK);
		assert_int_equal(node_done(&d.a, 3 * round + 2)->status, TERN_OK);
		assert_memory_equal(far + from, source + from, bytes);
		assert_memory_equal(back, source + from, bytes);
		event = node_find(&d.b, TN_EV_RECV, d.lb);
		assert_int_equal(event->bytes, message);
		assert_memory_equal(event->buf, source, message);
		d.b.dev->ops->recv_done(d.b.dev, event);
		if (round % 2 == 0) {
			assert_int_equal(node_find(&d.b, TN_EV_IMM, d.lb)->imm, round);
			d.b.dev->ops->recv_done(d.b.dev, node_find(&d.b, TN_EV_IMM, d.lb));
		}
	}
	free(back);
	duo_close(&d);
}

/* A message that goes flat and of which the kernel takes a part: what is left follows, and what was posted behind it. */
static void short_messages_in_pieces(void **state)
{
	static duo d;
	static uint8_t data[4608];
	const unsigned n = 300;
	unsigned sent = 0, got = 0, cut = 0;
	const tn_event *event;
	tern_status status;
	bool done;

	(void)state;
	duo_open(&d, tiny);
	for (uint64_t i = 0; i < sizeof(data); i++)
		data[i] = pattern(i);
	while (got < n) {
		uint64_t bytes = sizeof(data) - 37 * (sent % 60), half = bytes / 2;
		tn_iov iov[2] = {{data, half}, {data + half, bytes - half}};

		status = sent < n ? tn_lane_send(d.la, iov, 2, sent, &done) : TERN_AGAIN;
		assert_true(status == TERN_OK || status == TERN_AGAIN);
		sent += status == TERN_OK;
		cut += status == TERN_OK && tn_tcp_lane_of(d.la)->tx.cur.kind == TN_TCP_OUT_REQ;
		d.a.count = d.b.count = 0;
		node_poll(&d.a);
		node_poll(&d.b);
		for (unsigned i = 0; i < d.b.count; i++) {
			event = &d.b.events[i];
			assert_int_equal(event->type, TN_EV_RECV);
			assert_int_equal(event->bytes, sizeof(data) - 37 * (got % 60));
			assert_memory_equal(event->buf, data, event->bytes);
			d.b.dev->ops->recv_done(d.b.dev, event);
			got++;
		}
	}
	assert_true(cut > 0);
	duo_close(&d);
}

/* Only what came along with the header is copied. */
static void large_payload_is_not_copied(void **state)
{
	static duo d;
	uint8_t *source, *far;
	tern_key wire;
	tn_key key, own;

	(void)state;
	duo_open(&d, NULL);
	source = region(&d.a, BIG_BYTES, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &wire, &own);
	far = region(&d.b, BIG_BYTES, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &wire, &key);
	for (uint64_t i = 0; i < BIG_BYTES; i++)
		source[i] = pattern(i);
	for (unsigned i = 0; i < 3; i++) {
		tn_wr wr = {.cookie = i,
			    .level = TN_LEVEL_REMOTE,
			    .local = source,
			    .bytes = BIG_BYTES,
			    .key = key};

		assert_ok(tn_lane_write(d.la, &wr));
	}
	UNTIL2(node_done(&d.a, 2), &d.a, &d.b);
	assert_memory_equal(far, source, BIG_BYTES);
	assert_in_range(node_counter(&d.b, "tcp.copy_bytes"), 0, 3 * 16384);
	assert_int_equal(node_counter(&d.a, "tcp.copies"), 0);
	assert_in_range(node_counter(&d.b, "tcp.acks"), 1, 3);
	assert_int_equal(node_counter(&d.a, "tcp.tx_bytes"), 3ull * BIG_BYTES);
	assert_int_equal(node_counter(&d.b, "tcp.rx_bytes"), 3ull * BIG_BYTES);
	duo_close(&d);
}

/* `more` holds back; the next post, flush or poll lets go, in one system call. */
static void held_back_posts(void **state)
{
	static duo d;
	uint8_t source[8] = {1};
	uint64_t calls;
	tern_key wire;
	tn_key key;

	(void)state;
	duo_open(&d, NULL);
	(void)region(&d.b, 4096, TERN_ACCESS_WRITE, &wire, &key);
	for (unsigned how = 0; how < 3; how++) {
		tn_wr wr = {.cookie = 100 * how,
			    .level = TN_LEVEL_REMOTE,
			    .local = source,
			    .bytes = 8,
			    .key = key,
			    .more = true};

		calls = node_counter(&d.a, "tcp.tx_calls");
		for (unsigned i = 0; i < 10; i++, wr.cookie++)
			assert_ok(tn_lane_write(d.la, &wr));
		assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls);
		wr.more = false;
		if (how == 0)
			assert_ok(tn_lane_write(d.la, &wr));
		else if (how == 1)
			d.a.dev->ops->flush(d.la);
		else
			node_poll(&d.a);
		assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls + 1);
		UNTIL2(node_done(&d.a, 100 * how + 9), &d.a, &d.b);
	}
	duo_close(&d);
}

/* Parts of a message wait for the flush of who has said that more follow, and go together; pieces of a transfer do not,
   and take along what waits. */
static void parts_go_together(void **state)
{
	enum { PART = 16384, PARTS = 4 };
	static duo d;
	uint8_t *source;
	uint64_t calls;
	tern_key wire;
	tn_key key, own;
	tn_iov iov;
	bool done;

	(void)state;
	duo_open(&d, NULL);
	source = region(&d.a, PART, TERN_ACCESS_READ, &wire, &own);
	(void)region(&d.b, PART, TERN_ACCESS_WRITE, &wire, &key);
	calls = node_counter(&d.a, "tcp.tx_calls");
	d.la->more = true;
	iov = (tn_iov){source, PART};
	for (unsigned i = 0; i < PARTS; i++) {
		assert_ok(tn_lane_send(d.la, &iov, 1, i, &done));
		assert_false(done);
	}
	assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls);
	d.a.dev->ops->flush(d.la);
	assert_false(d.la->more);
	assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls + 1);
	UNTIL2(node_done(&d.a, PARTS - 1) && node_events(&d.b, TN_EV_RECV, d.lb) == PARTS, &d.a, &d.b);

	calls = node_counter(&d.a, "tcp.tx_calls");
	d.la->more = true;
	iov = (tn_iov){source, 64};
	assert_ok(tn_lane_send(d.la, &iov, 1, PARTS, &done));
	assert_true(done);
	for (unsigned i = 1; i < 3; i++) {
		tn_wr wr = {.cookie = PARTS + i,
			    .level = TN_LEVEL_REMOTE,
			    .local = source,
			    .bytes = PART,
			    .key = key};

		assert_ok(tn_lane_write(d.la, &wr));
		assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls + i);
	}
	d.a.dev->ops->flush(d.la);
	UNTIL2(node_done(&d.a, PARTS + 2), &d.a, &d.b);
	duo_close(&d);
}

/* What a chunk leaves of a message's parts goes with it if it is little, and as before if it is much. */
static void little_rest_goes_along(void **state)
{
	enum { PART = 16384, PARTS = TN_TCP_CHUNK_BYTES / PART, MORE = TN_TCP_REST_BYTES / PART + 2 };
	static duo d;
	uint8_t *source;
	uint64_t calls;
	tern_key wire;
	tn_key own;
	tn_iov iov;
	bool done;

	(void)state;
	duo_open(&d, NULL);
	source = region(&d.a, PART, TERN_ACCESS_READ, &wire, &own);
	for (unsigned parts = PARTS + 1, sent = 0; parts <= PARTS + MORE; parts += MORE - 1) {
		calls = node_counter(&d.a, "tcp.tx_calls");
		d.la->more = true;
		iov = (tn_iov){source, PART};
		for (unsigned i = 0; i < parts; i++)
			assert_ok(tn_lane_send(d.la, &iov, 1, sent++, &done));
		d.a.dev->ops->flush(d.la);
		assert_int_equal(node_counter(&d.a, "tcp.tx_calls"), calls + 1);
		UNTIL2(node_done(&d.a, sent - 1) && node_events(&d.b, TN_EV_RECV, d.lb) == sent, &d.a, &d.b);
		assert_int_equal(node_counter(&d.a, "tcp.tx_calls") - calls > 1, parts > PARTS + 1);
	}
	duo_close(&d);
}

/* Small posts of all kinds gather, messages are done at once, and all arrive in order when enough is there or is flushed. */
static void small_posts_gather(void **state)
{
	enum { POSTS = 300, BYTES = 200 };
	static duo d;
	uint8_t *far, back[8] = {0};
	tern_key wire;
	uint64_t calls;
	tn_key key;
	bool done;

	(void)state;
	duo_open(&d, NULL);
	far = region(&d.b, POSTS * 8, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &wire, &key);
	calls = node_counter(&d.a, "tcp.tx_calls");
	for (unsigned i = 0; i < POSTS; i++) {
		uint8_t source[BYTES];
		tn_iov iov = {source, BYTES};
		tn_wr wr = {.cookie = 1000 + i,
			    .level = TN_LEVEL_REMOTE,
			    .local = source,
			    .bytes = 8,
			    .key = key,
			    .offset = 8ull * i};

		memset(source, (int)(i % 251), sizeof(source)); /* and gone after the post: it was copied */
		d.la->more = true;
		if (i % 3 == 0) {
			assert_ok(tn_lane_send(d.la, &iov, 1, i, &done));
			assert_true(done);
		} else {
			assert_ok(tn_lane_write(d.la, &wr));
			assert_false(wr.done);
		}
		if (i % 60 != 59)
			continue;
		d.a.dev->ops->flush(d.la);
		UNTIL2(node_done(&d.a, 1000 + i), &d.a, &d.b);
	}
	UNTIL2(node_events(&d.b, TN_EV_RECV, d.lb) == POSTS / 3, &d.a, &d.b);
	assert_true(node_counter(&d.a, "tcp.tx_calls") - calls < POSTS / 4);
	for (unsigned i = 0; i < POSTS; i++)
		if (i % 3)
			assert_int_equal(far[8 * i], i % 251);
	/* A read waits with them and is answered after them. */
	d.la->more = true;
	assert_ok(tn_lane_read(
		d.la, &(tn_wr){.cookie = 5000, .local = back, .bytes = 8, .key = key, .offset = 8 * 298}));
	d.a.dev->ops->flush(d.la);
	UNTIL2(node_done(&d.a, 5000), &d.a, &d.b);
	assert_int_equal(back[0], 298 % 251);
	/* Closed with something held back: it leaves before the end. */
	d.la->more = true;
	assert_ok(tn_lane_send(d.la, &(tn_iov){back, 8}, 1, 6000, &done));
	d.a.dev->ops->lane_close(d.la);
	UNTIL2(node_events(&d.b, TN_EV_RECV, d.lb) == POSTS / 3 + 1, &d.a, &d.b);
	duo_close(&d);
}

/* However much bulk lies in the sockets of other lanes: a message is found behind one piece of it. */
static void messages_pass_bulk(void **state)
{
	static duo d;
	tn_lane *bulk[2][2];
	tn_iov hello = {"hello", 5};
	uint8_t *source;
	tern_key wire;
	tn_key key, own;
	uint64_t most = 0;
	bool done;

	(void)state;
	duo_open(&d, NULL);
	for (unsigned i = 0; i < 2; i++)
		lane_pair(&d.a, &d.b, &bulk[i][0], &bulk[i][1]);
	source = region(&d.a, BIG_BYTES, TERN_ACCESS_READ, &wire, &own);
	region(&d.b, BIG_BYTES, TERN_ACCESS_WRITE, &wire, &key);
	for (uint64_t round = 0; round < 12; round++) {
		uint64_t before;

		for (unsigned i = 0; i < 2; i++) {
			tn_wr wr = {.cookie = 2 * round + i,
				    .level = TN_LEVEL_REMOTE,
				    .local = source,
				    .bytes = BIG_BYTES,
				    .key = key};

			assert_ok(tn_lane_write(bulk[i][0], &wr));
		}
		for (unsigned i = 0; i < 30; i++) { /* as much as the sockets take, of both */
			node_poll(&d.a);
			if (i % 10 == 9)
				node_poll(&d.b);
		}
		for (unsigned i = 0; i < 20; i++)
			node_poll(&d.a);
		d.b.count = 0;
		before = node_counter(&d.b, "tcp.rx_bytes");
		assert_ok(tn_lane_send(d.la, &hello, 1, 1000 + round, &done));
		while (node_events(&d.b, TN_EV_RECV, d.lb) == 0)
			node_poll(&d.b);
		d.b.dev->ops->recv_done(d.b.dev, node_find(&d.b, TN_EV_RECV, d.lb));
		before = node_counter(&d.b, "tcp.rx_bytes") - before;
		most = TN_MAX(most, before);
		UNTIL2(node_done(&d.a, 2 * round) && node_done(&d.a, 2 * round + 1), &d.a, &d.b);
	}
	/* A piece before the look at the others, and one of each behind the message, in the same poll; there was as much. */
	assert_in_range(most, 512 << 10, 1 << 20);
	for (unsigned i = 0; i < 2; i++) {
		lane_end(&d.a, bulk[i][0]);
		lane_end(&d.b, bulk[i][1]);
	}
	duo_close(&d);
}

/* ---- receivers without room ---- */

static void no_slot_stops_one_lane_only(void **state)
{
	static duo d;
	tn_lane *la2, *lb2;
	uint8_t word[8];
	tn_iov iov = {word, 8};
	uint64_t sent = 0;
	tern_status status;
	bool done;

	(void)state;
	duo_open(&d, (const char *const[]){"tcp.recv_slots=8", "tcp.lane_recv_slots=4", "tcp.sndbuf=4KiB",
					   "tcp.rcvbuf=4KiB", "tcp.lane_wrs=4", NULL});
	lane_pair(&d.a, &d.b, &la2, &lb2);
	/* b gives nothing back: the lane fills up to TERN_AGAIN */
	for (unsigned quiet = 0; quiet < 200;) {
		memset(word, (int)sent, 8);
		status = tn_lane_send(d.la, &iov, 1, 1000000 + sent, &done);
		assert_true(status == TERN_OK || status == TERN_AGAIN);
		if (status == TERN_OK) {
			sent++;
			/* not done: the word must stay as it is, so wait for its turn or for the jam */
			for (unsigned i = 0; !done && i < 50 && !node_done(&d.a, 1000000 + sent - 1); i++) {
				node_poll(&d.a);
				node_poll(&d.b);
			}
			if (!done && !node_done(&d.a, 1000000 + sent - 1))
				break;
		}
		node_poll(&d.b);
		quiet = status == TERN_AGAIN ? quiet + 1 : 0;
		if (d.a.count > EVENTS_MAX / 2)
			d.a.count = 0;
	}
	assert_int_equal(node_events(&d.b, TN_EV_RECV, d.lb), 4);
	assert_in_range(node_counter(&d.b, "tcp.pauses"), 1, UINT64_MAX);
	/* the other lane has room and goes on */
	for (unsigned i = 0; i < 10; i++) {
		tn_iov hello = {"hello", 5};
		uint32_t before = node_events(&d.b, TN_EV_RECV, lb2);

		assert_ok(tn_lane_send(la2, &hello, 1, 0, &done));
		UNTIL2(node_events(&d.b, TN_EV_RECV, lb2) > before, &d.a, &d.b);
		d.b.dev->ops->recv_done(d.b.dev, node_find(&d.b, TN_EV_RECV, lb2));
	}
	/* give back one by one: everything arrives, in order */
	for (uint64_t i = 0, at = 0; i < sent; at++) {
		UNTIL2(at < d.b.count, &d.a, &d.b);
		if (d.b.events[at].type != TN_EV_RECV || d.b.events[at].lane != d.lb)
			continue;
		memset(word, (int)i, i + 1 < sent ? 8 : 0);
		if (i + 1 < sent)
			assert_memory_equal(d.b.events[at].buf, word, 8);
		d.b.dev->ops->recv_done(d.b.dev, &d.b.events[at]);
		i++;
		if (at > EVENTS_MAX / 2) {
			memmove(d.b.events, d.b.events + at + 1, (d.b.count - at - 1) * sizeof(tn_event));
			d.b.count -= (uint32_t)at + 1;
			at = UINT64_MAX;
		}
		d.a.count = 0;
	}
	lane_end(&d.a, la2);
	lane_end(&d.b, lb2);
	duo_close(&d);
}

/* A peer that dies behind data that nobody reads is noticed all the same. */
static void death_of_a_peer_that_is_not_read(void **state)
{
	static node n;
	forged f;
	tn_lane *lane;
	pid_t pid;

	(void)state;
	node_open(&n, (const char *const[]){"tcp.recv_slots=2", "tcp.rcvbuf=4KiB", NULL});
	lane = forge_up(&n, &f, 0);
	pid = fork();
	if (pid == 0) {
		uint8_t bytes[TN_TCP_HDR_BYTES];

		for (;; f.seq++) {
			tn_tcp_hdr hdr = {.type = TN_TCP_SEND, .seq = f.seq};

			tn_tcp_hdr_encode(&hdr, bytes);
			(void)send(f.fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		}
	}
	close(f.fd);
	UNTIL(node_counter(&n, "tcp.pauses") > 0, &n);
	for (int i = 0; i < 20; i++)
		node_poll(&n);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	expect_down(&n, lane, TERN_E_LANE);
	assert_int_equal(node_events(&n, TN_EV_RECV, lane), 2);
	lane_end(&n, lane);
	/* slots outlive their lane */
	for (uint32_t i = 0; i < n.count; i++) {
		if (n.events[i].type == TN_EV_RECV)
			n.dev->ops->recv_done(n.dev, &n.events[i]);
	}
	lane = forge_up(&n, &f, 0);
	put_frame(&f, (tn_tcp_hdr){.type = TN_TCP_SEND}, NULL);
	UNTIL(node_find(&n, TN_EV_RECV, lane), &n);
	forge_close(&f);
	lane_end(&n, lane);
	node_close(&n);
}

/* ---- keys ---- */

static void revoked_while_data_comes_in(void **state)
{
	static node n;
	const uint64_t bytes = 1 << 20;
	uint8_t *mem, *data = malloc(bytes);
	tern_key wire;
	tn_key key;
	tn_tcp_hdr hdr;
	tn_lane *lane;
	forged f;

	(void)state;
	memset(data, 0xdd, bytes);
	for (unsigned imm = 0; imm < 2; imm++) {
		node_open(&n, NULL);
		lane = forge_up(&n, &f, 0);
		mem = region(&n, bytes, TERN_ACCESS_WRITE, &wire, &key);
		put_frame(&f, under_key(imm ? TN_TCP_WRITE_IMM : TN_TCP_WRITE, &f, &key, 0, bytes), NULL);
		put(f.fd, data, bytes / 4);
		UNTIL(mem[bytes / 4 - 1] == 0xdd, &n);
		assert_ok(tern_mem_revoke(n.mem, &wire));
		memset(mem, 0x11, bytes);
		for (uint64_t at = bytes / 4; at < bytes; at += bytes / 16) {
			put(f.fd, data, bytes / 16);
			for (int i = 0; i < 20; i++)
				node_poll(&n);
		}
		hdr = get_frame(&n, &f);
		assert_int_equal(hdr.type, TN_TCP_NAK);
		assert_int_equal(hdr.status, TERN_E_STALE_KEY);
		for (uint64_t i = 0; i < bytes; i++)
			assert_int_equal(mem[i], 0x11);
		/* no immediate, no slot lost, and the lane lives */
		assert_null(node_find(&n, TN_EV_IMM, lane));
		put_frame(&f, (tn_tcp_hdr){.type = TN_TCP_SEND, .seq = f.seq++}, NULL);
		UNTIL(node_find(&n, TN_EV_RECV, lane), &n);
		forge_close(&f);
		lane_end(&n, lane);
		node_close(&n);
	}
	free(data);
}

static void revoked_while_data_goes_out(void **state)
{
	static node n;
	const uint64_t bytes = 16 << 20;
	uint8_t *mem, *data = malloc(bytes);
	uint8_t trailer[TN_TCP_TRAILER_BYTES];
	uint64_t secret = 0;
	tern_status status = TERN_OK;
	tern_key wire;
	tn_key key;
	tn_lane *lane;
	forged f;

	(void)state;
	node_open(&n, (const char *const[]){"tcp.sndbuf=64KiB", NULL});
	lane = forge_up(&n, &f, 65536);
	mem = region(&n, bytes, TERN_ACCESS_READ, &wire, &key);
	memset(mem, 0x22, bytes);
	put_frame(&f, under_key(TN_TCP_READ_REQ, &f, &key, 0, bytes), NULL);
	assert_int_equal(get_frame(&n, &f).type, TN_TCP_READ_RESP);
	assert_ok(tern_mem_revoke(n.mem, &wire));
	memset(mem, 0x77, bytes); /* what must not be seen */
	assert_true(get(&n, f.fd, data, bytes));
	assert_true(get(&n, f.fd, trailer, sizeof(trailer)));
	assert_null(tn_tcp_trailer_decode(trailer, &status));
	assert_int_equal(status, TERN_E_STALE_KEY);
	for (uint64_t i = 0; i < bytes; i++)
		secret += data[i] == 0x77;
	assert_int_equal(secret, 0);
	assert_int_equal(data[bytes - 1], 0);
	assert_null(node_find(&n, TN_EV_LANE_DOWN, lane));
	forge_close(&f);
	lane_end(&n, lane);
	node_close(&n);
	free(data);
}

/* A read whose trailer tells of a lost key fails, and only it. */
static void trailer_decides_a_read(void **state)
{
	static node n;
	uint8_t local[100], data[108] = {0};
	tern_key wire;
	tn_key key;
	tn_lane *lane;
	forged f;
	tn_wr wr;

	(void)state;
	node_open(&n, NULL);
	lane = forge_up(&n, &f, 0);
	(void)region(&n, 4096, TERN_ACCESS_READ, &wire, &key);
	wr = (tn_wr){.cookie = 1, .local = local, .bytes = 100, .key = key};
	assert_ok(tn_lane_read(lane, &wr));
	(void)get_frame(&n, &f);
	tn_tcp_trailer_encode(TERN_E_STALE_KEY, data + 100);
	put_frame(&f, (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .bytes = 100}, data);
	put(f.fd, data + 100, TN_TCP_TRAILER_BYTES);
	UNTIL(node_done(&n, 1), &n);
	assert_int_equal(node_done(&n, 1)->status, TERN_E_STALE_KEY);
	assert_null(node_find(&n, TN_EV_LANE_DOWN, lane));
	forge_close(&f);
	lane_end(&n, lane);
	node_close(&n);
}

/* Acknowledgements never overtake the refusal of an earlier request. */
static void refusals_keep_their_place(void **state)
{
	static duo d;
	uint8_t source[8] = {1};
	tern_key wire;
	tn_key key;

	(void)state;
	duo_open(&d, (const char *const[]){"tcp.lane_wrs=256", NULL});
	(void)region(&d.b, 4096, TERN_ACCESS_WRITE, &wire, &key);
	for (unsigned round = 0; round < 20; round++) {
		d.a.count = 0;
		for (unsigned i = 0; i < 100; i++) {
			tn_wr wr = {.cookie = i,
				    .level = TN_LEVEL_REMOTE,
				    .local = source,
				    .bytes = 8,
				    .key = key,
				    .more = round % 2 && i < 99};

			if (i % 3 == 1)
				wr.key.generation += 2;
			assert_ok(tn_lane_write(d.la, &wr));
			if (round % 3 == 0 && i % 7 == 0)
				node_poll(&d.b);
		}
		UNTIL2(node_events(&d.a, TN_EV_DONE, d.la) == 100, &d.a, &d.b);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(node_done(&d.a, i)->status, i % 3 == 1 ? TERN_E_STALE_KEY : TERN_OK);
	}
	duo_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_in_pieces),
		cmocka_unit_test(short_messages_in_pieces),
		cmocka_unit_test(large_payload_is_not_copied),
		cmocka_unit_test(held_back_posts),
		cmocka_unit_test(parts_go_together),
		cmocka_unit_test(little_rest_goes_along),
		cmocka_unit_test(small_posts_gather),
		cmocka_unit_test(messages_pass_bulk),
		cmocka_unit_test(no_slot_stops_one_lane_only),
		cmocka_unit_test(death_of_a_peer_that_is_not_read),
		cmocka_unit_test(revoked_while_data_comes_in),
		cmocka_unit_test(revoked_while_data_goes_out),
		cmocka_unit_test(trailer_decides_a_read),
		cmocka_unit_test(refusals_keep_their_place),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp handshake against strangers, impostors and silence, and the choice of addresses.
 */
#include "tcp_peer.h"

#define TIMEOUT_NS (200 * TN_NS_PER_MS)

static const char *const hasty[] = {"tcp.handshake_timeout=50ms", "tcp.pending_max=4", NULL};

/* After whatever a stranger did the lane is still there for the right peer. */
static void still_waits(node *n, tn_lane *lane, forged *f)
{
	assert_null(node_find(n, TN_EV_LANE_DOWN, lane));
	assert_true(forge_dial(n, f, good_token, 0));
	UNTIL(node_find(n, TN_EV_LANE_UP, lane), n);
	forge_close(f);
	expect_down(n, lane, TERN_E_LANE);
	lane_end(n, lane);
	node_close(n);
}

static void garbage_is_dropped(void **state)
{
	uint8_t junk[TN_TCP_HELLO_BYTES];
	forged f;
	node n;
	tn_lane *lane;
	int fd;

	(void)state;
	node_open(&n, NULL);
	lane = forge_lane(&n, &f);
	memset(junk, 0x5a, sizeof(junk));
	fd = stranger(&n, 0);
	put(fd, junk, sizeof(junk));
	expect_closed(&n, fd);
	close(fd);
	fd = stranger(&n, 0);
	put(fd,
	    "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that took a wrong turn, and more of "
	    "it "
	    "to fill the size\r\n\r\n",
	    104);
	expect_closed(&n, fd);
	close(fd);
	assert_int_equal(node_counter(&n, "tcp.rejected"), 2);
	still_waits(&n, lane, &f);
}

static void silence_ends_at_the_deadline(void **state)
{
	forged f;
	node n;
	tn_lane *lane;
	uint8_t some[50] = {0x31, 0x54};
	int quiet, slow;

	(void)state;
	node_open(&n, hasty);
	lane = forge_lane(&n, &f);
	quiet = stranger(&n, 0);
	slow = stranger(&n, 0);
	put(slow, some, sizeof(some));
	expect_closed(&n, quiet);
	expect_closed(&n, slow);
	close(quiet);
	close(slow);
	still_waits(&n, lane, &f);
}

static void unknown_lanes_are_dropped(void **state)
{
	forged f;
	node n;
	tn_lane *lane;
	uint64_t right;

	(void)state;
	node_open(&n, NULL);
	lane = forge_lane(&n, &f);
	right = f.node_lane_id;
	f.node_lane_id = right ^ 1ull << 40;
	assert_false(forge_dial(&n, &f, good_token, 0));
	forge_close(&f);
	f.node_lane_id = right;
	f.lane_id++; /* the right lane, but dialled by another one than it was told */
	assert_false(forge_dial(&n, &f, good_token, 0));
	forge_close(&f);
	f.lane_id--;
	still_waits(&n, lane, &f);
}

static void wrong_proofs_are_dropped(void **state)
{
	uint8_t token[TN_LANE_TOKEN_BYTES];
	tn_tcp_hello hello = {.type = TN_TCP_HELLO}, in;
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	lane = forge_lane(&n, &f);
	memcpy(token, good_token, sizeof(token));
	token[31] ^= 1;
	assert_false(forge_dial(&n, &f, token, 0));
	forge_close(&f);

	/* the acceptor's own proof sent back to it */
	hello.lane_to = f.node_lane_id;
	hello.lane_from = f.lane_id;
	f.fd = stranger(&n, 0);
	put_hello(f.fd, hello);
	assert_true(get_hello(&n, f.fd, &in));
	hello.type = TN_TCP_PROOF;
	memcpy(hello.proof, in.proof, sizeof(hello.proof));
	put_hello(f.fd, hello);
	expect_closed(&n, f.fd);
	forge_close(&f);

	/* PROOF without HELLO */
	f.fd = stranger(&n, 0);
	put_hello(f.fd, hello);
	expect_closed(&n, f.fd);
	forge_close(&f);
	still_waits(&n, lane, &f);
}

/* A proof is worth nothing a second time: the nonce differs. */
static void proofs_are_fresh(void **state)
{
	tn_tcp_hello hello = {.type = TN_TCP_HELLO}, in[2];
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	lane = forge_lane(&n, &f);
	hello.lane_to = f.node_lane_id;
	hello.lane_from = f.lane_id;
	for (int i = 0; i < 2; i++) {
		f.fd = stranger(&n, 0);
		put_hello(f.fd, hello);
		assert_true(get_hello(&n, f.fd, &in[i]));
		if (i == 0)
			forge_close(&f);
	}
	assert_memory_not_equal(in[0].nonce, in[1].nonce, sizeof(in[0].nonce));
	hello.type = TN_TCP_PROOF;
	prove(good_token, true, f.lane_id, f.node_lane_id, hello.nonce, in[0].nonce, hello.proof);
	put_hello(f.fd, hello);
	expect_closed(&n, f.fd);
	forge_close(&f);
	still_waits(&n, lane, &f);
}

static void other_versions_are_told(void **state)
{
	tn_tcp_hello hello = {.type = TN_TCP_HELLO, .version = 99, .version_min = 98}, in;
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	lane = forge_lane(&n, &f);
	hello.lane_to = f.node_lane_id;
	hello.lane_from = f.lane_id;
	f.fd = stranger(&n, 0);
	put_hello(f.fd, hello);
	assert_true(get_hello(&n, f.fd, &in));
	assert_int_equal(in.type, TN_TCP_CHALLENGE);
	assert_int_equal(in.status, TERN_E_VERSION);
	assert_int_equal(in.version, TN_TCP_WIRE_VERSION);
	expect_closed(&n, f.fd);
	forge_close(&f);
	/* a newer one that still speaks ours is welcome */
	f.fd = stranger(&n, 0);
	hello.version_min = TN_TCP_WIRE_VERSION;
	put_hello(f.fd, hello);
	assert_true(get_hello(&n, f.fd, &in));
	assert_int_equal(in.status, TERN_OK);
	assert_int_equal(in.version, TN_TCP_WIRE_VERSION);
	forge_close(&f);
	still_waits(&n, lane, &f);
}

/* More strangers than places: the right peer gets through all the same. */
static void strangers_are_bounded(void **state)
{
	int fds[40];
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, (const char *const[]){"tcp.pending_max=4", NULL});
	lane = forge_lane(&n, &f);
	for (int i = 0; i < 40; i++)
		fds[i] = stranger(&n, 0);
	UNTIL(node_counter(&n, "tcp.accepted") == 40, &n);
	assert_int_equal(node_counter(&n, "tcp.rejected"), 36);
	assert_true(forge_dial(&n, &f, good_token, 0));
	forge_close(&f);
	expect_down(&n, lane, TERN_E_LANE);
	for (int i = 0; i < 40; i++)
		close(fds[i]);
	lane_end(&n, lane);
	node_close(&n);
}

static void nobody_dials(void **state)
{
	forged f;
	tn_blob addr;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	lane_end(&n, forge_lane(&n, &f)); /* for its blobs */
	lane = lane_make(&n, false, &addr, TIMEOUT_NS);
	assert_ok(n.dev->ops->lane_connect(lane, &f.dev, &f.lane));
	expect_down(&n, lane, TERN_E_DEADLINE);
	assert_non_null(strstr(n.detail, "200 ms"));
	lane_end(&n, lane);
	node_close(&n);
}

/* ---- the node dials ---- */

/* A forged acceptor with k addresses that lead nowhere before its own. */
static void forge_listen(forged *f, unsigned dead)
{
	tn_tcp_dev_blob dev = {.send_bytes = 4096, .count = dead + 1};
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);

	memset(f, 0, sizeof(*f));
	f->fd = -1;
	f->listener = plain_socket(0);
	assert_int_equal(bind(f->listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(f->listener, 8), 0);
	assert_int_equal(getsockname(f->listener, (struct sockaddr *)&at, &bytes), 0);
	for (unsigned i = 0; i <= dead; i++) /* port 1 on loopback refuses */
		dev.addrs[i] = (tn_tcp_addr){
			.family = 4, .port = i < dead ? 1 : ntohs(at.sin_port), .ip = {127, 0, 0, 1}};
	f->lane_id = 0xacce97;
	tn_tcp_lane_blob_encode(f->lane_id, &f->lane);
	tn_tcp_dev_blob_encode(&dev, &f->dev);
}

static tn_lane *dial_forged(node *n, forged *f, uint64_t timeout_ns)
{
	tn_tcp_dev_blob self, peer;
	tn_blob addr;
	tn_lane *lane = lane_make(n, true, &addr, timeout_ns);

	/* of the same host, or its loopback would not be tried */
	assert_null(tn_tcp_dev_blob_decode(&n->addr, &self));
	assert_null(tn_tcp_dev_blob_decode(&f->dev, &peer));
	peer.host = self.host;
	peer.netns = self.netns;
	tn_tcp_dev_blob_encode(&peer, &f->dev);
	assert_null(tn_tcp_lane_blob_decode(&addr, &f->node_lane_id));
	assert_ok(n->dev->ops->lane_connect(lane, &f->dev, &f->lane));
	return lane;
}

static void forge_accept(node *n, forged *f)
{
	struct pollfd fd = {.fd = f->listener, .events = POLLIN};

	while (poll(&fd, 1, 0) == 0)
		node_poll(n);
	f->fd = accept(f->listener, NULL, NULL);
	assert_true(f->fd >= 0);
}

/* What the acceptor answers to HELLO. */
static tn_tcp_hello challenge(node *n, forged *f, const uint8_t *token)
{
	tn_tcp_hello in,
		out = {.type = TN_TCP_CHALLENGE, .lane_to = f->node_lane_id, .lane_from = f->lane_id};

	assert_true(get_hello(n, f->fd, &in));
	assert_int_equal(in.type, TN_TCP_HELLO);
	assert_int_equal(in.lane_to, f->lane_id);
	memset(out.nonce, 0x77, sizeof(out.nonce));
	prove(token, false, f->node_lane_id, f->lane_id, in.nonce, out.nonce, out.proof);
	return out;
}

static void finish(node *n, forged *f, tn_lane *lane)
{
	forge_close(f);
	lane_end(n, lane);
	node_close(n);
}

static void impostors_are_found_out(void **state)
{
	uint8_t token[TN_LANE_TOKEN_BYTES] = {9};
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	forge_listen(&f, 0);
	lane = dial_forged(&n, &f, 0);
	forge_accept(&n, &f);
	put_hello(f.fd, challenge(&n, &f, token));
	expect_down(&n, lane, TERN_E_AUTH);
	finish(&n, &f, lane);
}

static void versions_of_the_acceptor(void **state)
{
	tn_tcp_hello out;
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	forge_listen(&f, 0);
	lane = dial_forged(&n, &f, 0);
	forge_accept(&n, &f);
	out = challenge(&n, &f, good_token);
	out.status = TERN_E_VERSION;
	out.version = 7;
	out.version_min = 6;
	put_hello(f.fd, out);
	expect_down(&n, lane, TERN_E_VERSION);
	assert_non_null(strstr(n.detail, "6 to 7"));
	finish(&n, &f, lane);
}

static void acceptor_is_silent_or_leaves(void **state)
{
	static const tern_status want[] = {TERN_E_DEADLINE, TERN_E_REFUSED, TERN_E_PROTOCOL, TERN_E_PROTOCOL};
	uint8_t junk[TN_TCP_HELLO_BYTES] = {0};
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	for (int i = 0; i < 4; i++) {
		node_open(&n, NULL);
		forge_listen(&f, 0);
		lane = dial_forged(&n, &f, i == 0 ? TIMEOUT_NS : 0);
		forge_accept(&n, &f);
		if (i == 1)
			close(f.fd), f.fd = -1;
		else if (i == 2)
			put(f.fd, junk, sizeof(junk));
		else if (i == 3) /* READY before anything was proven */
			put_hello(f.fd, (tn_tcp_hello){.type = TN_TCP_READY, .lane_to = f.node_lane_id});
		expect_down(&n, lane, want[i]);
		finish(&n, &f, lane);
	}
}

static void the_next_address_is_tried(void **state)
{
	tn_tcp_hello in;
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	forge_listen(&f, 3);
	lane = dial_forged(&n, &f, 0);
	forge_accept(&n, &f);
	put_hello(f.fd, challenge(&n, &f, good_token));
	assert_true(get_hello(&n, f.fd, &in));
	assert_int_equal(in.type, TN_TCP_PROOF);
	put_hello(f.fd,
		  (tn_tcp_hello){.type = TN_TCP_READY, .lane_to = f.node_lane_id, .lane_from = f.lane_id});
	UNTIL(node_find(&n, TN_EV_LANE_UP, lane), &n);
	finish(&n, &f, lane);
}

static void all_addresses_refuse(void **state)
{
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	forge_listen(&f, 3);
	close(f.listener);
	f.listener = -1;
	lane = dial_forged(&n, &f, 0);
	expect_down(&n, lane, TERN_E_REFUSED);
	finish(&n, &f, lane);
}

static void loopback_of_another_host(void **state)
{
	tn_tcp_dev_blob peer;
	tn_blob addr;
	forged f;
	node n;
	tn_lane *lane;

	(void)state;
	node_open(&n, NULL);
	forge_listen(&f, 0);
	assert_null(tn_tcp_dev_blob_decode(&f.dev, &peer));
	peer.host = 12345;
	tn_tcp_dev_blob_encode(&peer, &f.dev);
	assert_status(n.dev->ops->reach(n.dev, &f.dev), TERN_E_UNREACHABLE);
	assert_non_null(strstr(tern_detail(), "127.0.0.1"));
	lane = lane_make(&n, true, &addr, 0);
	assert_ok(n.dev->ops->lane_connect(lane, &f.dev, &f.lane));
	expect_down(&n, lane, TERN_E_UNREACHABLE);
	peer.addrs[0].ip[0] = 10;
	tn_tcp_dev_blob_encode(&peer, &f.dev);
	assert_ok(n.dev->ops->reach(n.dev, &f.dev));
	finish(&n, &f, lane);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(garbage_is_dropped),
		cmocka_unit_test(silence_ends_at_the_deadline),
		cmocka_unit_test(unknown_lanes_are_dropped),
		cmocka_unit_test(wrong_proofs_are_dropped),
		cmocka_unit_test(proofs_are_fresh),
		cmocka_unit_test(other_versions_are_told),
		cmocka_unit_test(strangers_are_bounded),
		cmocka_unit_test(nobody_dials),
		cmocka_unit_test(impostors_are_found_out),
		cmocka_unit_test(versions_of_the_acceptor),
		cmocka_unit_test(acceptor_is_silent_or_leaves),
		cmocka_unit_test(the_next_address_is_tried),
		cmocka_unit_test(all_addresses_refuse),
		cmocka_unit_test(loopback_of_another_host),
	};

	return RUN(tests);
}

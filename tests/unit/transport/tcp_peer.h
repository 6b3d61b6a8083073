/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of the tcp provider: a node (memory and device), and a forged peer: a plain socket that
 * speaks the provider's bytes by hand, so that it can lie. All in one thread: what waits polls the node.
 */
#ifndef TERN_TESTS_TCP_PEER_H
#define TERN_TESTS_TCP_PEER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmocka_all.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/options.h"
#include "transport/tcp/frame.h"

#define EVENTS_MAX 4096u

typedef struct node {
	tern_mem *mem;
	tn_dev *dev;
	tn_options *options;
	tn_blob addr;
	tn_event events[EVENTS_MAX]; /* all that came, in order; DONE, RECV, IMM, UP, DOWN */
	char detail[256];            /* of the latest LANE_DOWN */
	uint32_t count;
} node;

/* pairs: "tcp.x=y", ..., NULL */
static inline tern_status node_try(node *n, const char *host, const char *const *pairs)
{
	tn_mem_params mem = {0};
	tn_dev_params params = {.bind_host = host};
	const tn_provider *tcp = tn_provider_find("tcp");
	tern_status status;

	memset(n, 0, sizeof(*n));
	assert_non_null(tcp);
	assert_ok(tn_options_load(pairs, &n->options));
	assert_ok(tn_mem_create(&mem, &n->mem));
	params.mem = n->mem;
	params.options = n->options;
	status = tcp->open(&params, &n->dev);
	if (status == TERN_OK) {
		n->dev->ops->address(n->dev, &n->addr);
		return status;
	}
	assert_null(n->dev);
	tn_mem_destroy(n->mem);
	tn_options_free(n->options);
	return status;
}

static inline void node_open(node *n, const char *const *pairs)
{
	assert_ok(node_try(n, NULL, pairs));
}

static inline void node_close(node *n)
{
	n->dev->ops->close(n->dev);
	tn_mem_destroy(n->mem);
	tn_options_free(n->options);
}

static inline void node_poll(node *n)
{
	int got;

	assert_true(n->count + 64 <= EVENTS_MAX);
	got = tn_dev_poll(n->dev, n->events + n->count, 64);
	assert_in_range(got, 0, 64);
	for (int i = 0; i < got; i++) {
		if (n->events[n->count + (uint32_t)i].type == TN_EV_LANE_DOWN)
			strncpy(n->detail, tern_detail(), sizeof(n->detail) - 1);
	}
	n->count += (uint32_t)got;
	if (got == 0)
		(void)poll(NULL, 0, 1);
}

/* The latest event of a type on a lane, NULL if none. lane NULL: any. */
static inline const tn_event *node_find(const node *n, tn_event_type type, const tn_lane *lane)
{
	for (uint32_t i = n->count; i-- > 0;) {
		if (n->events[i].type == type && (!lane || n->events[i].lane == lane))
			return &n->events[i];
	}
	return NULL;
}

static inline uint32_t node_events(const node *n, tn_event_type type, const tn_lane *lane)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < n->count; i++)
		found += n->events[i].type == type && (!lane || n->events[i].lane == lane);
	return found;
}

static inline const tn_event *node_done(const node *n, uint64_t cookie)
{
	for (uint32_t i = 0; i < n->count; i++) {
		if (n->events[i].type == TN_EV_DONE && n->events[i].cookie == cookie)
			return &n->events[i];
	}
	return NULL;
}

/* Ends the test, not the machine's patience: a condition that never comes is a hang for ctest to report. */
#define UNTIL(cond, n)                \
	do {                          \
		while (!(cond))       \
			node_poll(n); \
	} while (0)
#define UNTIL2(cond, n, m)            \
	do {                          \
		while (!(cond)) {     \
			node_poll(n); \
			node_poll(m); \
		}                     \
	} while (0)

typedef struct find_counter {
	const char *name;
	uint64_t value;
} find_counter;

static inline void find_counter_fn(const char *name, uint64_t value, void *arg)
{
	find_counter *find = arg;

	if (strcmp(name, find->name) == 0)
		find->value = value;
}

static inline uint64_t node_counter(node *n, const char *name)
{
	find_counter find = {.name = name, .value = UINT64_MAX};

	n->dev->ops->counters(n->dev, find_counter_fn, &find);
	assert_true(find.value != UINT64_MAX);
	return find.value;
}

/* ---- lanes ---- */

static const uint8_t good_token[TN_LANE_TOKEN_BYTES] = {1, 2, 3, 4, 5};

static inline tn_lane *lane_make(node *n, bool active, tn_blob *addr, uint64_t timeout_ns)
{
	tn_lane_params params = {.active = active, .connect_timeout_ns = timeout_ns};
	tn_lane *lane = NULL;

	memcpy(params.token, good_token, sizeof(params.token));
	assert_ok(n->dev->ops->lane_create(n->dev, &params, &lane, addr));
	return lane;
}

static inline void lane_end(node *n, tn_lane *lane)
{
	n->dev->ops->lane_close(lane);
	UNTIL(n->dev->ops->lane_drained(lane), n);
	n->dev->ops->lane_destroy(lane);
}

/* A lane between two nodes. */
static inline void lane_pair(node *a, node *b, tn_lane **la, tn_lane **lb)
{
	tn_blob aa, ab;

	*la = lane_make(a, true, &aa, 0);
	*lb = lane_make(b, false, &ab, 0);
	assert_ok(b->dev->ops->lane_connect(*lb, &a->addr, &aa));
	assert_ok(a->dev->ops->lane_connect(*la, &b->addr, &ab));
	UNTIL2(node_find(a, TN_EV_LANE_UP, *la) && node_find(b, TN_EV_LANE_UP, *lb), a, b);
}

static inline void expect_down(node *n, tn_lane *lane, tern_status status)
{
	UNTIL(node_find(n, TN_EV_LANE_DOWN, lane), n);
	if (node_find(n, TN_EV_LANE_DOWN, lane)->status != status)
		fail_msg("down with %s (%s), expected %s",
			 tern_status_name(node_find(n, TN_EV_LANE_DOWN, lane)->status), n->detail,
			 tern_status_name(status));
}

/* ---- memory ---- */

static inline uint8_t *region(node *n, uint64_t bytes, uint32_t access, tern_key *wire, tn_key *key)
{
	void *ptr = NULL;

	assert_ok(tern_mem_alloc(n->mem, bytes, 0, access, TERN_MEM_HOST, &ptr));
	memset(ptr, 0, bytes);
	assert_ok(tern_mem_export(n->mem, ptr, bytes, access, wire));
	assert_true(tn_key_decode(wire, key));
	return ptr;
}

/* ---- the forged peer ---- */

typedef struct forged {
	int fd;
	uint64_t seq; /* of the next request */
	tn_blob dev, lane;
	uint64_t lane_id, node_lane_id;
	int listener; /* as an acceptor */
} forged;

static inline int plain_socket(int rcvbuf)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	if (rcvbuf)
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)), 0);
	return fd;
}

/* A plain connection to the node's listener. */
static inline int stranger(node *n, int rcvbuf)
{
	tn_tcp_dev_blob dev;
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = plain_socket(rcvbuf);

	assert_null(tn_tcp_dev_blob_decode(&n->addr, &dev));
	to.sin_port = htons(dev.addrs[0].port);
	memcpy(&to.sin_addr, dev.addrs[0].ip, 4);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

static inline void put(int fd, const void *data, size_t bytes)
{
	assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* Read exactly so much, polling the node. False: the connection ended before. */
static inline bool get(node *n, int fd, void *data, size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		ssize_t got = recv(fd, (uint8_t *)data + at, bytes - at, MSG_DONTWAIT);

		if (got > 0)
			at += (size_t)got;
		else if (got == 0 || errno != EAGAIN)
			return false;
		else
			node_poll(n);
	}
	return true;
}

/* The node ends the connection. */
static inline void expect_closed(node *n, int fd)
{
	uint8_t byte;

	while (get(n, fd, &byte, 1))
		;
}

static inline void put_hello(int fd, tn_tcp_hello hello)
{
	uint8_t bytes[TN_TCP_HELLO_BYTES];

	if (!hello.version) {
		hello.version = TN_TCP_WIRE_VERSION;
		hello.version_min = TN_TCP_WIRE_VERSION_MIN;
	}
	tn_tcp_hello_encode(&hello, bytes);
	put(fd, bytes, sizeof(bytes));
}

static inline bool get_hello(node *n, int fd, tn_tcp_hello *hello)
{
	uint8_t bytes[TN_TCP_HELLO_BYTES];

	if (!get(n, fd, bytes, sizeof(bytes)))
		return false;
	assert_null(tn_tcp_hello_decode(bytes, hello));
	return true;
}

static inline void prove(const uint8_t *token, bool dialler, uint64_t lane_d, uint64_t lane_a,
			 const uint8_t *nonce_d, const uint8_t *nonce_a, uint8_t *proof)
{
	uint8_t text[TN_TCP_TRANSCRIPT_BYTES];

	tn_tcp_transcript(dialler, TN_TCP_WIRE_VERSION, lane_d, lane_a, nonce_d, nonce_a, text);
	assert_ok(tn_hmac_sha256(token, TN_LANE_TOKEN_BYTES, text, sizeof(text), proof));
}

/* Dial a passive lane of the node by hand. True: READY came. */
static inline bool forge_dial(node *n, forged *f, const uint8_t *token, int rcvbuf)
{
	tn_tcp_hello hello = {.type = TN_TCP_HELLO, .lane_to = f->node_lane_id, .lane_from = f->lane_id}, in;

	f->fd = stranger(n, rcvbuf);
	f->listener = -1;
	f->seq = 0;
	memset(hello.nonce, 0x33, sizeof(hello.nonce));
	put_hello(f->fd, hello);
	if (!get_hello(n, f->fd, &in))
		return false;
	assert_int_equal(in.type, TN_TCP_CHALLENGE);
	hello.type = TN_TCP_PROOF;
	prove(token, true, f->lane_id, f->node_lane_id, hello.nonce, in.nonce, hello.proof);
	memset(hello.nonce, 0, sizeof(hello.nonce));
	put_hello(f->fd, hello);
	if (!get_hello(n, f->fd, &in))
		return false;
	assert_int_equal(in.type, TN_TCP_READY);
	return true;
}

/* A passive lane of the node that waits for a forged dialler. */
static inline tn_lane *forge_lane(node *n, forged *f)
{
	tn_tcp_dev_blob dev = {.send_bytes = 4096, .count = 1};
	tn_blob addr;
	tn_lane *lane = lane_make(n, false, &addr, 0);

	memset(f, 0, sizeof(*f));
	f->fd = f->listener = -1;
	f->lane_id = 0x600d;
	dev.addrs[0] = (tn_tcp_addr){.family = 4, .port = 9, .ip = {127, 0, 0, 1}};
	tn_tcp_dev_blob_encode(&dev, &f->dev);
	tn_tcp_lane_blob_encode(f->lane_id, &f->lane);
	assert_null(tn_tcp_lane_blob_decode(&addr, &f->node_lane_id));
	assert_ok(n->dev->ops->lane_connect(lane, &f->dev, &f->lane));
	return lane;
}

/* ... and is up. */
static inline tn_lane *forge_up(node *n, forged *f, int rcvbuf)
{
	tn_lane *lane = forge_lane(n, f);

	assert_true(forge_dial(n, f, good_token, rcvbuf));
	UNTIL(node_find(n, TN_EV_LANE_UP, lane), n);
	return lane;
}

static inline void forge_close(forged *f)
{
	if (f->fd >= 0)
		close(f->fd);
	if (f->listener >= 0)
		close(f->listener);
	f->fd = f->listener = -1;
}

static inline void put_frame(forged *f, tn_tcp_hdr hdr, const void *payload)
{
	uint8_t bytes[TN_TCP_HDR_BYTES];

	tn_tcp_hdr_encode(&hdr, bytes);
	put(f->fd, bytes, sizeof(bytes));
	if (payload && hdr.bytes)
		put(f->fd, payload, hdr.bytes);
}

static inline tn_tcp_hdr get_frame(node *n, forged *f)
{
	uint8_t bytes[TN_TCP_HDR_BYTES];
	tn_tcp_hdr hdr;

	assert_true(get(n, f->fd, bytes, sizeof(bytes)));
	assert_null(tn_tcp_hdr_decode(bytes, TN_TCP_SEND_BYTES_LIMIT, &hdr));
	return hdr;
}

/* A header for a request under a key of the node. */
static inline tn_tcp_hdr under_key(tn_tcp_type type, forged *f, const tn_key *key, uint64_t offset,
				   uint64_t bytes)
{
	return (tn_tcp_hdr){.type = type,
			    .flags = type == TN_TCP_READ_REQ ? 0 : TN_TCP_F_ACK,
			    .seq = f->seq++,
			    .bytes = bytes,
			    .offset = offset,
			    .key_index = key->index,
			    .key_generation = key->generation,
			    .key_tag = key->node_tag};
}

#endif

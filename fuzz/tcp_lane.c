/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tcp lane that is up, against a peer whose bytes come from the fuzzer: well-formed frames in and out of
 * turn, frames with a byte changed, raw bytes, mixed with requests of our own. Whatever comes: every accepted
 * request completes once, memory outside of the exported range stays as it was, the lane ends and drains.
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "transport/tcp/tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REGION_BYTES 16384u
#define GUARD_BYTES  4096u
#define OPS_MAX      64u
#define POSTS_MAX    256u

static tern_mem *mem;
static tn_dev *dev;
static int listener = -1;
static struct sockaddr_in at;
static uint8_t *block; /* guard | region | guard */
static uint8_t local[REGION_BYTES];
static tn_key key;

typedef struct run {
	const uint8_t *p, *end;
	tn_tcp_lane *lane;
	int fd;
	uint64_t seq;   /* of the peer's next request */
	uint64_t asked; /* our requests so far: the peer answers one of them */
	uint32_t posts, completions[POSTS_MAX];
	bool accepted[POSTS_MAX], down;
} run;

/* A failed set-up would look like a fuzzer that finds nothing. */
static void must(bool ok)
{
	if (!ok)
		__builtin_trap();
}

static void setup(void)
{
	tn_mem_params params = {0};
	tn_dev_params dev_params = {0};
	socklen_t bytes = sizeof(at);
	tern_key wire;
	void *ptr = NULL;

	must(tn_mem_create(&params, &mem) == TERN_OK);
	dev_params.mem = mem;
	must(tn_provider_tcp.open(&dev_params, &dev) == TERN_OK);
	must(tern_mem_alloc(mem, REGION_BYTES + 2 * GUARD_BYTES, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			    TERN_MEM_HOST, &ptr) == TERN_OK);
	block = ptr;
	memset(block, 0xaa, REGION_BYTES + 2 * GUARD_BYTES);
	must(tern_mem_export(mem, block + GUARD_BYTES, REGION_BYTES, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			     &wire) == TERN_OK);
	must(tn_key_decode(&wire, &key));
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	must(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 8) == 0 &&
	     getsockname(listener, (struct sockaddr *)&at, &bytes) == 0);
}

static uint8_t byte(run *r)
{
	return r->p < r->end ? *r->p++ : 0;
}

static uint32_t number(run *r)
{
	return byte(r) | (uint32_t)byte(r) << 8;
}

static void take(run *r, const tn_event *e)
{
	if (e->type == TN_EV_DONE) {
		must(e->cookie < r->posts && r->accepted[e->cookie]);
		must(r->completions[e->cookie]++ == 0);
	} else if (e->type == TN_EV_RECV || e->type == TN_EV_IMM) {
		must(!r->down && e->slot < tn_tcp_dev_of(dev)->opts.recv_slots);
		dev->ops->recv_done(dev, e);
	} else if (e->type == TN_EV_LANE_DOWN) {
		must(!r->down);
		r->down = true;
	}
}

static int step(run *r)
{
	tn_event events[8];
	int n = tn_dev_poll(dev, events, 8);

	for (int i = 0; i < n; i++)
		take(r, &events[i]);
	tn_tcp_lane_check(r->lane);
	return n;
}

static void put(run *r, const void *data, size_t bytes)
{
	(void)!send(r->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void put_frame(run *r, tn_tcp_hdr hdr, uint64_t payload, uint8_t how)
{
	static uint8_t bytes[TN_TCP_HDR_BYTES + 70000 + TN_TCP_TRAILER_BYTES];
	uint64_t whole = TN_TCP_HDR_BYTES + payload;

	tn_tcp_hdr_encode(&hdr, bytes);
	memset(bytes + TN_TCP_HDR_BYTES, how, payload);
	if (hdr.type == TN_TCP_READ_RESP) {
		tn_tcp_trailer_encode(how & 1 ? TERN_E_STALE_KEY : TERN_OK, bytes + whole);
		whole += TN_TCP_TRAILER_BYTES;
	}
	if (how & 0x40)
		bytes[byte(r) % TN_TCP_HDR_BYTES] ^= (uint8_t)(1u << (byte(r) & 7));
	if (how & 0x20) { /* in two pieces, with a look in between */
		put(r, bytes, whole / 2);
		step(r);
		put(r, bytes + whole / 2, whole - whole / 2);
	} else {
		put(r, bytes, whole);
	}
}

/* A request of ours; the peer may answer it, or something else. */
static void post(run *r, uint8_t how)
{
	tn_wr wr = {.cookie = r->posts, .local = local, .key = key, .more = how & 1};
	tn_iov iov = {local, number(r) % 5000};
	tern_status status;
	bool done = false;

	if (r->posts == POSTS_MAX)
		return;
	wr.level = how & 2 ? TN_LEVEL_REMOTE : TN_LEVEL_LOCAL;
	wr.bytes = TN_MIN(iov.bytes, REGION_BYTES);
	if (how & 8)
		status = dev->ops->send(&r->lane->base, &iov, 1, r->posts, &done);
	else
		status = how & 4 ? dev->ops->read(&r->lane->base, &wr) : dev->ops->write(&r->lane->base, &wr);
	if (status == TERN_OK) {
		r->asked++;
		r->accepted[r->posts] = true;
		r->completions[r->posts] = how & 8 ? done : wr.done;
	}
	r->posts++;
}

static void act(run *r)
{
	uint8_t op = byte(r), how = byte(r);
	tn_tcp_hdr hdr = {.seq = r->seq,
			  .key_index = key.index,
			  .key_generation = key.generation,
			  .key_tag = key.node_tag};
	size_t n;

	switch (op & 7) {
	case 0:
		n = TN_MIN((size_t)how, (size_t)(r->end - r->p));
		put(r, r->p, n);
		r->p += n;
		return;
	case 1:
	case 2:
	case 3:
		hdr.type = (tn_tcp_type)(op & 7); /* WRITE, WRITE_IMM, READ_REQ */
		hdr.flags = how & 1 && hdr.type != TN_TCP_READ_REQ ? TN_TCP_F_ACK : 0;
		hdr.offset = number(r);
		hdr.bytes = number(r);
		hdr.imm = hdr.type == TN_TCP_WRITE_IMM ? how : 0;
		r->seq++;
		put_frame(r, hdr, tn_tcp_hdr_payload(&hdr), how);
		return;
	case 4:
		hdr = (tn_tcp_hdr){.type = TN_TCP_SEND, .seq = r->seq++, .bytes = number(r)};
		put_frame(r, hdr, hdr.bytes, how);
		return;
	case 5:
		post(r, how);
		return;
	case 6:
		hdr = (tn_tcp_hdr){.type = TN_TCP_READ_RESP, .seq = byte(r), .bytes = number(r) % 5000};
		put_frame(r, hdr, hdr.bytes, how);
		return;
	default:
		hdr = (tn_tcp_hdr){.type = how & 1 ? TN_TCP_NAK : TN_TCP_ACK, .ack = byte(r)};
		hdr.status = TERN_E_BOUNDS;
		hdr.seq = how & 1 ? byte(r) : 0;
		put_frame(r, hdr, 0, how);
	}
}

static void begin(run *r)
{
	tn_lane_params params = {.active = false};
	struct linger reset = {.l_onoff = 1};
	tn_lane *lane = NULL;
	tn_blob addr;

	must(dev->ops->lane_create(dev, &params, &lane, &addr) == TERN_OK);
	r->lane = tn_tcp_lane_of(lane);
	r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(r->fd >= 0 && connect(r->fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	must(setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
	r->lane->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	must(r->lane->fd >= 0);
	r->lane->send_bytes = 4096;
	tn_tcp_lane_up(r->lane); /* as after a handshake */
}

static void finish(run *r)
{
	close(r->fd); /* a reset: no port is held */
	for (int i = 0; i < 1000 && !r->down; i++)
		step(r);
	must(r->down);
	dev->ops->lane_close(&r->lane->base);
	while (!dev->ops->lane_drained(&r->lane->base))
		step(r);
	for (uint32_t i = 0; i < r->posts; i++)
		must(r->completions[i] == r->accepted[i]);
	dev->ops->lane_destroy(&r->lane->base);
	for (uint32_t i = 0; i < GUARD_BYTES; i++)
		must(block[i] == 0xaa && block[GUARD_BYTES + REGION_BYTES + i] == 0xaa);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static run r;

	if (!dev)
		setup();
	memset(&r, 0, sizeof(r));
	r.p = data;
	r.end = data + size;
	begin(&r);
	for (unsigned i = 0; i < OPS_MAX && r.p < r.end && !r.down; i++) {
		act(&r);
		if (r.p < r.end && *r.p & 0x80)
			continue; /* let it pile up */
		step(&r);
		if (r.fd >= 0) {
			static uint8_t sink[65536];

			(void)!recv(r.fd, sink, sizeof(sink), MSG_DONTWAIT);
		}
	}
	finish(&r);
	return 0;
}

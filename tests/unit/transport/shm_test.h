/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the shm provider share: honest nodes, and an evil peer that speaks the socket protocol
 * by hand, so that it can say anything at any step.
 *
 *   node   memory and a device of this process
 *   evil   the other end of one lane of a node: a socket, a segment, a key table, all under the test's control
 *
 * The evil peer's MAC is written down a second time on purpose: it pins the wire format.
 * Threads: the main thread alone, unless a test says otherwise.
 */
#ifndef TERN_TESTS_SHM_TEST_H
#define TERN_TESTS_SHM_TEST_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fault.h"
#include "base/os.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "transport/shm/shm.h"

#define UNUSED __attribute__((unused))
#define RW     (TERN_ACCESS_READ | TERN_ACCESS_WRITE)

static const uint8_t test_token[TN_LANE_TOKEN_BYTES] = {0x70, 0x6b, 0x65, 1, 2, 3};

/* ---- honest nodes ---- */

typedef struct node {
	tern_mem *mem;
	tn_dev *dev;
	tn_blob addr;
	/* the last events of each kind, and how many */
	tn_event last, last_down;
	unsigned ups, downs, recvs, imms;
} node;

static UNUSED void node_open_with(node *n, const tn_options *options)
{
	tn_mem_params mem = {0};
	tn_dev_params params = {.options = options};

	memset(n, 0, sizeof(*n));
	assert_ok(tn_mem_create(&mem, &n->mem));
	params.mem = n->mem;
	assert_ok(tn_provider_find("shm")->open(&params, &n->dev));
	n->dev->ops->address(n->dev, &n->addr);
}

static UNUSED void node_open(node *n)
{
	node_open_with(n, NULL);
}

static UNUSED void node_close(node *n)
{
	n->dev->ops->close(n->dev);
	tn_mem_destroy(n->mem);
}

/* One poll; messages are given back at once. */
static UNUSED int node_poll(node *n)
{
	tn_event events[8];
	int count = tn_dev_poll(n->dev, events, 8);

	for (int i = 0; i < count; i++) {
		n->last = events[i];
		switch (events[i].type) {
		case TN_EV_LANE_UP:
			n->ups++;
			break;
		case TN_EV_LANE_DOWN:
			n->downs++;
			n->last_down = events[i];
			break;
		case TN_EV_RECV:
			n->recvs++;
			n->dev->ops->recv_done(n->dev, &events[i]);
			break;
		case TN_EV_IMM:
			n->imms++;
			n->dev->ops->recv_done(n->dev, &events[i]);
			break;
		default:
			fail_msg("event of type %d", events[i].type);
		}
	}
	return count;
}

static UNUSED void polls(node *n, unsigned times)
{
	while (times-- > 0)
		(void)node_poll(n);
}

static UNUSED tn_lane *lane_make(node *n, bool active, tn_blob *addr)
{
	tn_lane_params params = {.active = active};
	tn_lane *lane;

	memcpy(params.token, test_token, sizeof(test_token));
	assert_ok(n->dev->ops->lane_create(n->dev, &params, &lane, addr));
	return lane;
}

typedef struct lane_pair {
	tn_lane *a, *b;
} lane_pair;

static UNUSED void lane_up(node *a, node *b, lane_pair *lanes)
{
	tn_blob blob_a, blob_b;
	unsigned ups_a = a->ups, ups_b = b->ups;

	lanes->a = lane_make(a, true, &blob_a);
	lanes->b = lane_make(b, false, &blob_b);
	assert_ok(b->dev->ops->lane_connect(lanes->b, &a->addr, &blob_a));
	assert_ok(a->dev->ops->lane_connect(lanes->a, &b->addr, &blob_b));
	while (a->ups == ups_a || b->ups == ups_b) {
		(void)node_poll(a);
		(void)node_poll(b);
		assert_int_equal(a->downs + b->downs, 0);
	}
}

static UNUSED void lane_free(node *n, tn_lane *lane)
{
	n->dev->ops->lane_close(lane);
	while (!n->dev->ops->lane_drained(lane))
		(void)node_poll(n);
	n->dev->ops->lane_destroy(lane);
}

static UNUSED uint8_t *block(node *n, uint64_t bytes, uint32_t access, tn_key *key)
{
	tern_key wire;
	void *ptr;

	assert_ok(tern_mem_alloc(n->mem, bytes, 0, access, TERN_MEM_HOST, &ptr));
	if (access != TERN_ACCESS_NONE && key) {
		assert_ok(tern_mem_export(n->mem, ptr, bytes, access, &wire));
		assert_true(tn_key_decode(&wire, key));
	}
	return ptr;
}

/* A write or read, polling both sides while the answer is TERN_AGAIN. */
static UNUSED tern_status access_by(node *n, node *peer, tn_lane *lane, bool write, const tn_key *key,
				    uint64_t offset, void *local, uint64_t bytes)
{
	tn_wr wr = {.level = TN_LEVEL_REMOTE, .local = local, .bytes = bytes, .key = *key, .offset = offset};
	tern_status status;

	for (;;) {
		status = write ? tn_lane_write(lane, &wr) : tn_lane_read(lane, &wr);
		assert_int_equal(wr.done, status == TERN_OK);
		if (status != TERN_AGAIN)
			return status;
		(void)node_poll(n);
		if (peer)
			(void)node_poll(peer);
	}
}

typedef struct named_counter {
	const char *name;
	uint64_t value;
	bool found;
} named_counter;

static void pick_counter(const char *name, uint64_t value, void *arg)
{
	named_counter *c = arg;

	if (strcmp(name, c->name) == 0) {
		c->value = value;
		c->found = true;
	}
}

static UNUSED uint64_t counter(node *n, const char *name)
{
	named_counter c = {.name = name};

	n->dev->ops->counters(n->dev, pick_counter, &c);
	assert_true(c.found);
	return c.value;
}

/* ---- the process ---- */

static UNUSED unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Lines of /proc/self/maps that contain both texts. */
static UNUSED unsigned mappings(const char *name, const char *prot)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned count = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (strstr(line, name) && strstr(line, prot))
			count++;
	}
	fclose(f);
	return count;
}

/* ---- the evil peer ---- */

typedef struct evil {
	int fd;
	tn_shm_id id;
	uint64_t lane;
	uint8_t token[TN_LANE_TOKEN_BYTES];
	tn_shm_hello hello;
	uint8_t nonce_p[TN_SHM_NONCE_BYTES];
	/* what it passes; a test may put other descriptors there before evil_prove */
	int segment_fd, wake_fd, keys_fd, page_fd;
	void *segment;
	uint64_t segment_bytes;
	uint32_t slots, buf_bytes;
	tn_key_row *rows;
	uint32_t row_count; /* as said; there are EVIL_ROWS */
	tn_shm_page *page;
	tn_shm_ring out, in; /* its own directions */
} evil;

#define EVIL_TAG  0x45564c21u
#define EVIL_ROWS 128u

static UNUSED void evil_make(evil *e)
{
	void *base;

	memset(e, 0, sizeof(*e));
	e->fd = -1;
	e->lane = 4711;
	e->slots = 64;
	e->buf_bytes = 4096;
	e->row_count = EVIL_ROWS;
	memcpy(e->token, test_token, sizeof(e->token));
	assert_ok(tn_os_random(&e->id, sizeof(e->id)));
	e->segment_bytes = tn_shm_lane_bytes(e->slots, e->buf_bytes);
	assert_ok(tn_shm_seg_create("evil", e->segment_bytes, false, &e->segment_fd, &e->segment));
	assert_ok(tn_shm_seg_create("evil", EVIL_ROWS * sizeof(tn_key_row), false, &e->keys_fd, &base));
	e->rows = base;
	assert_ok(tn_shm_seg_create("evil", 4096, false, &e->page_fd, &base));
	e->page = base;
	assert_ok(tn_os_event_create(&e->wake_fd));
	tn_shm_lane_ring(e->segment, e->slots, e->buf_bytes, 0, &e->out);
	tn_shm_lane_ring(e->segment, e->slots, e->buf_bytes, 1, &e->in);
}

static UNUSED void evil_free(evil *e)
{
	tn_shm_seg_unmap(e->segment, e->segment_bytes);
	tn_shm_seg_unmap(e->rows, EVIL_ROWS * sizeof(tn_key_row));
	tn_shm_seg_unmap(e->page, 4096);
	tn_os_close(&e->fd);
	tn_os_close(&e->segment_fd);
	tn_os_close(&e->wake_fd);
	tn_os_close(&e->keys_fd);
	tn_os_close(&e->page_fd);
}

/* Blobs that make a node's lane_connect expect this evil peer. */
static UNUSED void evil_blobs(const evil *e, const node *n, tn_blob *dev, tn_blob *lane)
{
	tn_shm_address address;
	tn_shm_lane_address la = {.magic = TN_SHM_WIRE_MAGIC, .lane = e->lane};

	memcpy(&address, n->addr.bytes, sizeof(address));
	address.id = e->id;
	*dev = n->addr;
	memcpy(dev->bytes, &address, sizeof(address));
	memset(lane, 0, sizeof(*lane));
	lane->length = sizeof(la);
	memcpy(lane->bytes, &la, sizeof(la));
}

static UNUSED void evil_mac(const evil *e, const char *label, uint8_t mac[32])
{
	uint8_t text[16 + 16 + 16 + 8 + 8 + 32 + 32] = {0};

	memcpy(text, label, strlen(label));
	memcpy(text + 16, &e->hello.from, 16);
	memcpy(text + 32, &e->hello.to, 16);
	memcpy(text + 48, &e->hello.lane_from, 8);
	memcpy(text + 56, &e->hello.lane_to, 8);
	memcpy(text + 64, e->hello.nonce, 32);
	memcpy(text + 96, e->nonce_p, 32);
	assert_ok(tn_hmac_sha256(e->token, 32, text, sizeof(text), mac));
}

static UNUSED void evil_head(tn_shm_any *msg, tn_shm_type type)
{
	msg->head = (tn_shm_head_msg){TN_SHM_WIRE_MAGIC, TN_SHM_WIRE_VERSION, (uint16_t)type};
}

static UNUSED void evil_send(evil *e, tn_shm_type type, tn_shm_any *msg, const int *fds, uint32_t fd_count)
{
	evil_head(msg, type);
	assert_ok(tn_shm_sock_send(e->fd, msg, tn_shm_type_bytes(type), fds, fd_count));
}

/* The next record for the evil peer, polling the node; TERN_E_LANE if the node hung up. */
static UNUSED tern_status evil_recv(evil *e, node *n, tn_shm_any *msg, int fds[TN_SHM_FDS_MAX])
{
	uint32_t fd_count;
	tern_status status;

	for (int i = 0; i < TN_SHM_FDS_MAX; i++)
		fds[i] = -1;
	while ((status = tn_shm_sock_recv(e->fd, msg, fds, &fd_count)) == TERN_AGAIN)
		(void)node_poll(n);
	return status;
}

/* Dial the node's lane and say HELLO. */
static UNUSED void evil_hello(evil *e, node *n, const tn_blob *lane)
{
	tn_shm_address address;
	tn_shm_lane_address la;
	tn_shm_any msg = {0};

	memcpy(&address, n->addr.bytes, sizeof(address));
	memcpy(&la, lane->bytes, sizeof(la));
	tn_os_close(&e->fd);
	assert_ok(tn_shm_sock_dial(&address.id, &e->fd));
	msg.hello.from = e->id;
	msg.hello.to = address.id;
	msg.hello.lane_from = e->lane;
	msg.hello.lane_to = la.lane;
	assert_ok(tn_os_random(msg.hello.nonce, 32));
	e->hello = msg.hello;
	evil_send(e, TN_SHM_HELLO, &msg, NULL, 0);
}

/* Until CHALLENGE. */
static UNUSED void evil_challenged(evil *e, node *n, const tn_blob *lane)
{
	tn_shm_any msg;
	int fds[TN_SHM_FDS_MAX];
	uint8_t mac[32];

	evil_hello(e, n, lane);
	assert_ok(evil_recv(e, n, &msg, fds));
	assert_int_equal(msg.head.type, TN_SHM_CHALLENGE);
	memcpy(e->nonce_p, msg.challenge.nonce, 32);
	evil_mac(e, "shm passive", mac);
	if (memcmp(e->token, test_token, 32) == 0)
		assert_memory_equal(mac, msg.challenge.mac, 32);
}

static UNUSED void evil_prove(evil *e)
{
	tn_shm_any msg = {0};
	tn_shm_head *head = e->segment;

	evil_mac(e, "shm active", msg.proof.mac);
	msg.proof.slots = e->slots;
	msg.proof.buf_bytes = e->buf_bytes;
	msg.proof.facts = (tn_shm_facts){.key_rows = e->row_count, .node_tag = EVIL_TAG};
	atomic_store(&head->probe[0], 0x1234);
	evil_send(e, TN_SHM_PROOF, &msg, (int[]){e->segment_fd, e->wake_fd, e->keys_fd, e->page_fd}, 4);
}

/* The whole way: the node's lane is UP. `lane` waits for this peer already. */
static UNUSED void evil_up(evil *e, node *n, const tn_blob *lane)
{
	tn_shm_any msg;
	int fds[TN_SHM_FDS_MAX];
	tn_shm_head *head = e->segment;
	unsigned ups = n->ups;

	evil_challenged(e, n, lane);
	evil_prove(e);
	assert_ok(evil_recv(e, n, &msg, fds));
	assert_int_equal(msg.head.type, TN_SHM_ACCEPT);
	assert_int_equal(msg.accept.probe, 0x1234);
	for (int i = 0; i < TN_SHM_FDS_MAX; i++)
		tn_os_close(&fds[i]);
	memset(&msg, 0, sizeof(msg));
	msg.confirm.probe = atomic_load(&head->probe[1]);
	evil_send(e, TN_SHM_CONFIRM, &msg, NULL, 0);
	while (n->ups == ups)
		(void)node_poll(n);
}

/* A passive lane of the node that waits for the evil peer. */
static UNUSED tn_lane *evil_lane(evil *e, node *n, tn_blob *blob)
{
	tn_blob peer_dev, peer_lane;
	tn_lane *lane = lane_make(n, false, blob);

	evil_blobs(e, n, &peer_dev, &peer_lane);
	assert_ok(n->dev->ops->lane_connect(lane, &peer_dev, &peer_lane));
	return lane;
}

static UNUSED void wait_down(node *n, unsigned downs, tern_status status)
{
	while (n->downs < downs)
		(void)node_poll(n);
	assert_int_equal(n->downs, downs);
	assert_int_equal(n->last_down.status, status);
	assert_true(tern_detail()[0] != 0);
}

/* A node, and a peer of it that does not keep to the rules. */
typedef struct evil_pair {
	node n;
	evil e;
	tn_lane *lane;
} evil_pair;

static inline void evil_pair_open(evil_pair *l)
{
	tn_blob blob;

	node_open(&l->n);
	evil_make(&l->e);
	l->lane = evil_lane(&l->e, &l->n, &blob);
	evil_up(&l->e, &l->n, &blob);
}

static inline void evil_pair_close(evil_pair *l)
{
	lane_free(&l->n, l->lane);
	evil_free(&l->e);
	node_close(&l->n);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes, work requests and memory of the conformance suite. conf.h has the nouns.
 */
#include "conf.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define TIMEOUT_NS (20 * TN_NS_PER_SEC)

/* ---- lanes ---- */

void conf_end_make(conf_end *end, conf_node *node, bool active, const uint8_t *token, uint64_t timeout_ns)
{
	tn_lane_params params = {.arg = end, .active = active, .connect_timeout_ns = timeout_ns};
	unsigned i = 0;

	memset(end, 0, sizeof(*end));
	end->node = node;
	memcpy(params.token, token, sizeof(params.token));
	while (i < CONF_ENDS_MAX && node->ends[i])
		i++;
	assert_true(i < CONF_ENDS_MAX);
	CONF_OK(node->dev->ops->lane_create(node->dev, &params, &end->lane, &end->addr));
	assert_non_null(end->lane);
	assert_ptr_equal(end->lane->dev, node->dev);
	CONF_CHECK(end->addr.length <= TN_BLOB_MAX, "an address of %u bytes", end->addr.length);
	node->ends[i] = end;
}

void conf_lane_make(conf_pair *pair, conf_lane *lane)
{
	uint8_t token[TN_LANE_TOKEN_BYTES];

	for (size_t i = 0; i < sizeof(token); i++)
		token[i] = (uint8_t)tn_rand_next(&pair->rand);
	conf_end_make(&lane->a, pair->a, true, token, TIMEOUT_NS);
	conf_end_make(&lane->b, pair->b, false, token, TIMEOUT_NS);
}

void conf_lane_up(conf_pair *pair, conf_lane *lane)
{
	conf_lane_make(pair, lane);
	CONF_OK(pair->b->dev->ops->lane_connect(lane->b.lane, &pair->a->addr, &lane->a.addr));
	CONF_OK(pair->a->dev->ops->lane_connect(lane->a.lane, &pair->b->addr, &lane->b.addr));
	CONF_UNTIL(pair, (lane->a.up && lane->b.up) || lane->a.down || lane->b.down);
	CONF_CHECK(!lane->a.down && !lane->b.down, "no lane: a %s, b %s",
		   lane->a.down ? tern_status_name(lane->a.down_status) : "waits",
		   lane->b.down ? tern_status_name(lane->b.down_status) : "waits");
}

void conf_end_close(conf_end *end)
{
	if (!end->lane || end->closed)
		return;
	end->node->dev->ops->lane_close(end->lane);
	end->closed = true;
}

/* Gives back what the end still holds; the inbox keeps what belongs to others. */
static void return_held(conf_end *end)
{
	conf_node *node = end->node;
	uint32_t count = node->inbox_tail - node->inbox_head;

	for (uint32_t i = 0; i < count; i++) {
		tn_event event = {0};

		(void)conf_inbox_take(node, &event);
		if (event.lane_arg == end)
			conf_recv_done(node, &event);
		else
			node->inbox[node->inbox_tail++ % CONF_INBOX_MAX] = event;
	}
}

void conf_end_destroy(conf_pair *pair, conf_end *end)
{
	conf_node *node = end->node;

	if (!end->lane)
		return;
	return_held(end);
	CONF_UNTIL(pair, node->dev->ops->lane_drained(end->lane));
	return_held(end);
	node->dev->ops->lane_destroy(end->lane);
	end->lane = NULL;
	for (unsigned i = 0; i < CONF_ENDS_MAX; i++) {
		if (node->ends[i] == end)
			node->ends[i] = NULL;
	}
}

void conf_lane_free(conf_pair *pair, conf_lane *lane)
{
	conf_end_close(&lane->a);
	conf_end_close(&lane->b);
	conf_end_destroy(pair, &lane->a);
	conf_end_destroy(pair, &lane->b);
}

void conf_lane_works(conf_pair *pair, conf_lane *lane)
{
	conf_region from, to;
	conf_req req = {.verb = CONF_WRITE, .bytes = 100};
	tn_event event;
	uint8_t word = 0x77;

	conf_region_make(&from, pair->a, 128, TERN_ACCESS_NONE);
	conf_region_make(&to, pair->b, 128, TERN_ACCESS_WRITE);
	conf_fill(from.ptr, 100, 7);
	from.ptr[100] = word;
	req.local = from.ptr;
	req.key = to.key;
	CONF_OK(conf_do(pair, &lane->a, &req));
	req = (conf_req){.verb = CONF_SEND, .local = from.ptr + 100, .bytes = 1};
	CONF_OK(conf_do(pair, &lane->a, &req));
	event = conf_inbox_wait(pair, pair->b);
	CONF_CHECK(event.type == TN_EV_RECV && event.bytes == 1 && event.lane == lane->b.lane &&
			   memcmp(event.buf, &word, 1) == 0,
		   "another message than the one sent: type %d, %llu bytes", (int)event.type,
		   (unsigned long long)event.bytes);
	conf_expect(to.ptr, 100, 7, "the write before the message");
	conf_recv_done(pair->b, &event);
	conf_region_free(&from);
	conf_region_free(&to);
}

/* ---- work requests ---- */

/* What a device says of its messages' ends holds for each. */
static tern_status send_checked(conf_end *end, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	tern_status status = tn_lane_send(end->lane, iov, n, cookie, done);
	uint64_t bytes = 0;

	for (int i = 0; i < n; i++)
		bytes += iov[i].bytes;
	if (status == TERN_OK && bytes <= end->node->caps.send_done_bytes && bytes > 0)
		assert_true(*done);
	return status;
}

static tern_status post(conf_end *end, const conf_req *req, uint64_t cookie, bool *done)
{
	tn_iov whole = {.base = req->local, .bytes = req->bytes};
	tn_wr wr = {.cookie = cookie,
		    .level = req->level,
		    .local = req->local,
		    .bytes = req->bytes,
		    .key = req->key,
		    .offset = req->offset,
		    .imm = req->imm,
		    .more = req->more};
	tern_status status;

	switch (req->verb) {
	case CONF_WRITE:
		status = tn_lane_write(end->lane, &wr);
		break;
	case CONF_WRITE_IMM:
		status = tn_lane_write_imm(end->lane, &wr);
		break;
	case CONF_READ:
		status = tn_lane_read(end->lane, &wr);
		break;
	default:
		return send_checked(end, req->iov_count ? req->iov : &whole,
				    req->iov_count ? req->iov_count : 1, cookie, done);
	}
	*done = wr.done;
	return status;
}

static uint32_t row(conf_node *node)
{
	uint32_t i = atomic_fetch_add(&node->ops_used, 1);

	CONF_CHECK(i < CONF_OPS_MAX, "more ops than the ledger has rows: settle it in between");
	return i < CONF_OPS_MAX ? i : 0;
}

static tern_status post_row(conf_end *end, const conf_req *req, uint32_t i)
{
	conf_node *node = end->node;
	conf_op *op = &node->ops[i];
	bool done = false;
	tern_status status = post(end, req, (uint64_t)node->ops_salt << 32 | i, &done);

	CONF_CHECK(status != TERN_BUSY, "a post answers TERN_BUSY");
	if (status != TERN_OK) {
		atomic_store(&op->status, (int)status);
		return status;
	}
	if (done) {
		atomic_store(&op->status, TERN_OK);
		CONF_CHECK(atomic_fetch_add(&op->completions, 1) == 0, "done at post and by an event");
	}
	atomic_store(&op->accepted, 1);
	return TERN_OK;
}

tern_status conf_try(conf_end *end, const conf_req *req, uint32_t *op)
{
	*op = row(end->node);
	return post_row(end, req, *op);
}

uint32_t conf_post(conf_pair *pair, conf_end *end, const conf_req *req)
{
	uint32_t op = row(end->node);

	if (pair)
		CONF_HERE(); /* of the main thread */
	while (post_row(end, req, op) == TERN_AGAIN) {
		if (pair)
			(void)conf_pump(pair);
		else
			(void)sched_yield();
	}
	return op;
}

/* Devices in software need the core that whoever polls has taken: so many looks at once, and the rest with naps between. */
bool conf_post_soon(conf_pair *pair, conf_end *end, const conf_req *req)
{
	const struct timespec nap = {.tv_nsec = 2000000};

	for (unsigned i = 0; i < 300; i++) {
		uint32_t op;
		tern_status status = conf_try(end, req, &op);

		if (status == TERN_OK)
			return true;
		CONF_CHECK(status == TERN_AGAIN, "%s", tern_status_name(status));
		if (conf_pump(pair) == 0 && i >= 150)
			(void)nanosleep(&nap, NULL);
	}
	return false;
}

void conf_must(conf_pair *pair, conf_end *end, const conf_req *req)
{
	uint32_t op = conf_post(pair, end, req);

	CONF_CHECK(atomic_load(&end->node->ops[op].accepted), "a post was refused: %s, %s",
		   tern_status_name(conf_op_status(end->node, op)), tern_detail());
}

bool conf_op_done(const conf_node *node, uint32_t op)
{
	return !atomic_load(&node->ops[op].accepted) || atomic_load(&node->ops[op].completions) > 0;
}

tern_status conf_op_status(const conf_node *node, uint32_t op)
{
	return (tern_status)atomic_load(&node->ops[op].status);
}

tern_status conf_do(conf_pair *pair, conf_end *end, const conf_req *req)
{
	uint32_t op = conf_post(pair, end, req);

	CONF_UNTIL(pair, conf_op_done(end->node, op));
	return conf_op_status(end->node, op);
}

tn_level conf_best_level(const conf_node *node)
{
	return node->caps.flags & TN_CAP_REMOTE_DONE ? TN_LEVEL_REMOTE : TN_LEVEL_LOCAL;
}

/* ---- memory ---- */

void conf_region_make(conf_region *region, conf_node *node, uint64_t bytes, uint32_t access)
{
	void *ptr = NULL;

	memset(region, 0, sizeof(*region));
	region->node = node;
	region->bytes = bytes;
	CONF_OK(tern_mem_alloc(node->mem, bytes, 0, access, TERN_MEM_HOST, &ptr));
	region->ptr = ptr;
	if (access != TERN_ACCESS_NONE) {
		CONF_OK(tern_mem_export(node->mem, ptr, bytes, access, &region->wire));
		CONF_CHECK(tn_key_decode(&region->wire, &region->key), "a fresh key does not decode");
	}
}

void conf_region_free(conf_region *region)
{
	tern_mem_free(region->node->mem, region->ptr);
	region->ptr = NULL;
}

tn_key conf_region_key(conf_region *region, uint64_t at, uint64_t bytes, uint32_t access)
{
	tern_key wire;
	tn_key key = {0};

	CONF_OK(tern_mem_export(region->node->mem, region->ptr + at, bytes, access, &wire));
	CONF_CHECK(tn_key_decode(&wire, &key), "a fresh key does not decode");
	return key;
}

/* Position-dependent with a period that no chunk size shares. */
static uint8_t pattern(uint64_t i, uint64_t seed)
{
	uint64_t z = (i / 8 + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;

	z ^= z >> 29;
	return (uint8_t)(z >> 8 * (i % 8));
}

void conf_fill(uint8_t *ptr, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		ptr[i] = pattern(i, seed);
}

uint64_t conf_same(const uint8_t *ptr, uint64_t bytes, uint64_t seed)
{
	uint64_t i = 0;

	while (i < bytes && ptr[i] == pattern(i, seed))
		i++;
	return i;
}

void conf_expect(const uint8_t *ptr, uint64_t bytes, uint64_t seed, const char *what)
{
	uint64_t same = conf_same(ptr, bytes, seed);

	CONF_CHECK(same == bytes, "%s: byte %llu of %llu is %02x instead of %02x", what,
		   (unsigned long long)same, (unsigned long long)bytes, ptr[same], pattern(same, seed));
}

bool conf_all(const uint8_t *ptr, uint64_t bytes, uint8_t value)
{
	for (uint64_t i = 0; i < bytes; i++) {
		if (ptr[i] != value)
			return false;
	}
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: what is refused. A key that doesn't fit ends that operation, changes nothing at the target,
 * notifies nobody and leaves the lane up (unless the target declares that its lanes don't survive it).
 * Main thread only.
 */
#include "conf.h"

#include <string.h>

#define ROOM 4096u
#define EDGE 1000u /* bytes on either side of the range that the key covers */

typedef struct errors_fixture {
	conf_pair pair;
	conf_lane lane;
	conf_region from, to;
	tn_key key; /* covers to[EDGE .. ROOM - EDGE) */
	uint64_t key_bytes;
} errors_fixture;

static void setup(errors_fixture *f, uint32_t access, uint32_t key_access)
{
	memset(f, 0, sizeof(*f));
	conf_pair_open(&f->pair);
	conf_lane_up(&f->pair, &f->lane);
	conf_region_make(&f->from, f->pair.a, ROOM, TERN_ACCESS_NONE);
	conf_region_make(&f->to, f->pair.b, ROOM, access);
	memset(f->from.ptr, 0x5a, ROOM);
	memset(f->to.ptr, 0xc3, ROOM);
	f->key_bytes = ROOM - 2 * EDGE;
	f->key = conf_region_key(&f->to, EDGE, f->key_bytes, key_access);
}

static void teardown(errors_fixture *f)
{
	conf_region_free(&f->from);
	conf_region_free(&f->to);
	conf_pair_close(&f->pair);
}

static const char *verb_name(conf_verb verb)
{
	static const char *const names[] = {"write", "write_imm", "read", "send"};

	return names[verb];
}

static bool has(const errors_fixture *f, conf_verb verb)
{
	static const uint32_t cap_of[] = {TN_CAP_WRITE, TN_CAP_WRITE_IMM, TN_CAP_READ, TN_CAP_SEND};

	return f->pair.a->caps.flags & cap_of[verb];
}

/* After a request that the target refused; one that was refused at the post cost nothing. */
static void rebuild_if_declared(errors_fixture *f, uint32_t op)
{
	if (!conf->key_error_breaks || !atomic_load(&f->pair.a->ops[op].accepted))
		return;
	CONF_UNTIL(&f->pair, f->lane.a.down);
	conf_lane_free(&f->pair, &f->lane);
	conf_lane_up(&f->pair, &f->lane);
}

/* The request fails with one of two codes, and the world is as before. */
static void refused(errors_fixture *f, const conf_req *req, tern_status want, tern_status or_want,
		    const char *what)
{
	uint32_t op = conf_post(&f->pair, &f->lane.a, req);
	tern_status status;

	CONF_UNTIL(&f->pair, conf_op_done(f->pair.a, op));
	status = conf_op_status(f->pair.a, op);
	CONF_CHECK(status == want || status == or_want, "%s %s: %s instead of %s", verb_name(req->verb), what,
		   tern_status_name(status), tern_status_name(want));
	rebuild_if_declared(f, op);
	CONF_CHECK(!f->lane.a.down && !f->lane.b.down, "%s %s took the lane down", verb_name(req->verb),
		   what);
	conf_lane_works(&f->pair,
			&f->lane); /* and fails if a notification of the refused request comes first */
	CONF_CHECK(conf_all(f->to.ptr, ROOM, 0xc3), "%s %s changed the target", verb_name(req->verb), what);
	CONF_CHECK(conf_all(f->from.ptr, ROOM, 0x5a), "%s %s changed the source", verb_name(req->verb), what);
}

static void bounds_of(errors_fixture *f, conf_verb verb)
{
	const struct {
		uint64_t offset, bytes;
	} bad[] = {
		{f->key_bytes, 1}, {f->key_bytes - 1, 2}, {0, f->key_bytes + 1},  {f->key_bytes + 1, 1},
		{ROOM, 1},         {UINT64_MAX, 1},       {UINT64_MAX - 7, 8},    {UINT64_MAX - 7, 16},
		{1ull << 32, 1},   {1ull << 63, 100},     {f->key_bytes - 8, 16}, {1ull << 31, 1},
	};
	conf_req req = {
		.verb = verb, .level = conf_best_level(f->pair.a), .local = f->from.ptr, .key = f->key};

	for (size_t i = 0; i < TN_COUNT_OF(bad); i++) {
		req.offset = bad[i].offset;
		req.bytes = bad[i].bytes;
		refused(f, &req, TERN_E_BOUNDS, TERN_E_BOUNDS, "out of bounds");
	}
}

static void bounds(void)
{
	errors_fixture f;

	for (int verb = CONF_WRITE; verb <= CONF_READ; verb++) {
		setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		if (has(&f, (conf_verb)verb))
			bounds_of(&f, (conf_verb)verb);
		teardown(&f);
	}
}

/* The last byte of a range is as good as the first. */
static void edges_are_inside(void)
{
	errors_fixture f;
	conf_req req;

	setup(&f, TERN_ACCESS_WRITE, TERN_ACCESS_WRITE);
	req = (conf_req){
		.verb = CONF_WRITE, .level = conf_best_level(f.pair.a), .local = f.from.ptr, .key = f.key};
	req.bytes = 1;
	CONF_OK(conf_do(&f.pair, &f.lane.a, &req));
	req.offset = f.key_bytes - 1;
	CONF_OK(conf_do(&f.pair, &f.lane.a, &req));
	conf_lane_works(&f.pair, &f.lane);
	assert_int_equal(f.to.ptr[EDGE], 0x5a);
	assert_int_equal(f.to.ptr[ROOM - EDGE - 1], 0x5a);
	CONF_CHECK(conf_all(f.to.ptr, EDGE, 0xc3), "before the range");
	CONF_CHECK(conf_all(f.to.ptr + EDGE + 1, f.key_bytes - 2, 0xc3), "inside the range");
	CONF_CHECK(conf_all(f.to.ptr + ROOM - EDGE, EDGE, 0xc3), "behind the range");
	req.offset = 0;
	req.bytes = f.key_bytes;
	CONF_OK(conf_do(&f.pair, &f.lane.a, &req));
	conf_lane_works(&f.pair, &f.lane);
	CONF_CHECK(conf_all(f.to.ptr + EDGE, f.key_bytes, 0x5a), "the whole range");
	CONF_CHECK(conf_all(f.to.ptr + ROOM - EDGE, EDGE, 0xc3), "behind the range");
	teardown(&f);
}

static void access_is_checked(void)
{
	errors_fixture f;
	conf_req req;

	/* A key for reading in memory that may be read and written, with the access bit forged as well. */
	for (int forged = 0; forged <= !conf->extent_keys; forged++) {
		setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_READ);
		req = (conf_req){
			.level = conf_best_level(f.pair.a), .local = f.from.ptr, .bytes = 8, .key = f.key};
		req.key.access |= forged ? TERN_ACCESS_WRITE : 0;
		req.verb = CONF_WRITE;
		refused(&f, &req, TERN_E_ACCESS, TERN_E_ACCESS, "to a key for reading");
		req.verb = CONF_WRITE_IMM;
		if (has(&f, CONF_WRITE_IMM))
			refused(&f, &req, TERN_E_ACCESS, TERN_E_ACCESS, "to a key for reading");
		teardown(&f);
		setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_WRITE);
		req.key = f.key;
		req.local = f.from.ptr;
		req.key.access |= forged ? TERN_ACCESS_READ : 0;
		req.verb = CONF_READ;
		if (has(&f, CONF_READ))
			refused(&f, &req, TERN_E_ACCESS, TERN_E_ACCESS, "of a key for writing");
		teardown(&f);
	}
}

static void revoked_keys_are_stale(void)
{
	errors_fixture f;
	conf_req req;
	tern_key wire;

	if (conf->extent_keys)
		conf_skip("its target checks extents, not keys");
	setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	req = (conf_req){.level = conf_best_level(f.pair.a), .local = f.from.ptr, .bytes = 8, .key = f.key};
	tn_key_encode(&f.key, &wire);
	CONF_OK(tern_mem_revoke(f.pair.b->mem, &wire));
	for (int verb = CONF_WRITE; verb <= CONF_READ; verb++) {
		req.verb = (conf_verb)verb;
		if (has(&f, req.verb))
			refused(&f, &req, TERN_E_STALE_KEY, TERN_E_STALE_KEY, "with a revoked key");
	}
	/* Its row is used again by another key: the old one stays stale. */
	for (unsigned i = 0; i < 100; i++)
		(void)conf_region_key(&f.to, 0, 16, TERN_ACCESS_WRITE);
	req.verb = CONF_WRITE;
	refused(&f, &req, TERN_E_STALE_KEY, TERN_E_STALE_KEY, "with a revoked key after new ones");
	teardown(&f);
}

static void freed_memory_is_stale(void)
{
	errors_fixture f;
	conf_region gone;
	conf_req req = {.verb = CONF_WRITE, .bytes = 8};

	if (conf->extent_keys)
		conf_skip("its target checks extents, not keys");
	setup(&f, TERN_ACCESS_WRITE, TERN_ACCESS_WRITE);
	conf_region_make(&gone, f.pair.b, 64, TERN_ACCESS_WRITE);
	req.key = gone.key;
	req.local = f.from.ptr;
	req.level = conf_best_level(f.pair.a);
	conf_region_free(&gone);
	refused(&f, &req, TERN_E_STALE_KEY, TERN_E_STALE_KEY, "to freed memory");
	teardown(&f);
}

/* A peer may send any bytes as a key. Whatever it says, only what the owner's table holds counts. */
static void forged_keys(void)
{
	errors_fixture f;
	conf_req req;
	tn_key forged[9];

	if (conf->extent_keys)
		conf_skip("its target checks extents, not keys");
	setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	for (size_t i = 0; i < TN_COUNT_OF(forged); i++)
		forged[i] = f.key;
	forged[0].generation += 2;
	forged[1].generation++;
	forged[2].index = UINT32_MAX;
	forged[3].index += 1u << 20;
	forged[4].node_tag ^= 1;
	forged[5].generation = 0;
	memset(&forged[6], 0, sizeof(forged[6]));
	memset(&forged[7], 0xff, sizeof(forged[7]));
	forged[8].generation -= 2;
	req = (conf_req){.level = conf_best_level(f.pair.a), .local = f.from.ptr, .bytes = 8};
	for (size_t i = 0; i < TN_COUNT_OF(forged); i++) {
		req.key = forged[i];
		for (int verb = CONF_WRITE; verb <= CONF_READ; verb++) {
			req.verb = (conf_verb)verb;
			if (has(&f, req.verb))
				refused(&f, &req, TERN_E_STALE_KEY, TERN_E_BOUNDS, "with a forged key");
		}
	}
	/* Longer than the owner's row, or lying elsewhere: the row wins, so that this is out of bounds. */
	req.key = f.key;
	req.key.length = 1ull << 40;
	req.key.address -= EDGE;
	req.verb = CONF_WRITE;
	req.offset = f.key_bytes;
	refused(&f, &req, TERN_E_BOUNDS, TERN_E_STALE_KEY, "with a stretched key");
	teardown(&f);
}

/* Extent and offset in a forged key lead nowhere either. */
static void forged_places(void)
{
	errors_fixture f;
	conf_req req;
	tern_status status;
	uint32_t op;

	setup(&f, TERN_ACCESS_WRITE, TERN_ACCESS_WRITE);
	req = (conf_req){.verb = CONF_WRITE, .local = f.from.ptr, .bytes = 8, .key = f.key};
	req.level = conf_best_level(f.pair.a);
	req.key.extent_offset -= EDGE / 8 * 8;
	req.key.extent += 400;
	op = conf_post(&f.pair, &f.lane.a, &req);
	CONF_UNTIL(&f.pair, conf_op_done(f.pair.a, op));
	status = conf_op_status(f.pair.a, op);
	/* Refused, or taken by the row: then at the row's place. */
	if (status == TERN_OK) {
		conf_lane_works(&f.pair, &f.lane);
		CONF_CHECK(conf_all(f.to.ptr + EDGE, 8, 0x5a), "the row's place");
		memset(f.to.ptr + EDGE, 0xc3, 8);
	} else {
		CONF_CHECK(status == TERN_E_STALE_KEY || status == TERN_E_BOUNDS, "%s",
			   tern_status_name(status));
		rebuild_if_declared(&f, op);
	}
	conf_lane_works(&f.pair, &f.lane);
	CONF_CHECK(conf_all(f.to.ptr, ROOM, 0xc3), "a forged place was written");
	teardown(&f);
}

/* What a NIC checks of any key: its region's number, the extent's bounds, the exposure class. */
static void extents_are_checked(void)
{
	errors_fixture f;
	conf_req req;
	tn_key forged[6];

	if (!conf->extent_keys)
		conf_skip("its target checks keys");
	setup(&f, TERN_ACCESS_READ, TERN_ACCESS_READ);
	for (size_t i = 0; i < TN_COUNT_OF(forged); i++)
		forged[i] = f.key;
	for (size_t slot = 0; slot < TN_MEM_DEVICES_MAX; slot++) {
		forged[0].rkey[slot]++;
		forged[1].rkey[slot] = 0;
	}
	forged[2].address += 1ull << 40;
	forged[3].address -= 1ull << 30;
	forged[4].address = UINT64_MAX - 4;
	forged[4].length = 4;
	forged[5].access |= TERN_ACCESS_WRITE; /* the extent is for reading */
	req = (conf_req){.level = conf_best_level(f.pair.a), .local = f.from.ptr, .bytes = 80};
	/* What goes inline is done at the post. */
	assert_true(f.pair.a->caps.inline_bytes < f.key_bytes);
	for (size_t i = 0; i < TN_COUNT_OF(forged); i++) {
		req.key = forged[i];
		req.bytes = i == 4 ? 4 : f.key_bytes;
		req.verb = i == 5 ? CONF_WRITE : CONF_READ;
		refused(&f, &req, TERN_E_ACCESS, TERN_E_ACCESS, "with a key that the NIC cannot accept");
	}
	teardown(&f);
}

/* A refused key in the middle of good requests fails alone. */
static void errors_between_good_ones(void)
{
	errors_fixture f;
	enum { N = 60 };
	uint32_t ops[N];
	conf_req req;

	if (conf->key_error_breaks)
		conf_skip("its lanes don't survive a refused key");
	setup(&f, TERN_ACCESS_WRITE, TERN_ACCESS_WRITE);
	req = (conf_req){.level = conf_best_level(f.pair.a), .local = f.from.ptr, .bytes = 16, .key = f.key};
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < N; i++) {
			req.verb = i % 10 == 9 && has(&f, CONF_WRITE_IMM) ? CONF_WRITE_IMM : CONF_WRITE;
			req.imm = i;
			req.offset = i % 3 == 0 ? f.key_bytes : 0;
			ops[i] = conf_post(&f.pair, &f.lane.a, &req);
		}
		CONF_UNTIL(&f.pair, conf_ledger_done(f.pair.a));
		for (unsigned i = 0; i < N; i++) {
			tern_status want = i % 3 == 0 ? TERN_E_BOUNDS : TERN_OK;

			CONF_CHECK(conf_op_status(f.pair.a, ops[i]) == want, "op %u: %s instead of %s", i,
				   tern_status_name(conf_op_status(f.pair.a, ops[i])),
				   tern_status_name(want));
		}
		/* The immediates of good ones come, in order, no others. */
		for (unsigned i = 9; i < N && has(&f, CONF_WRITE_IMM); i += 10) {
			tn_event event;

			if (i % 3 == 0)
				continue;
			event = conf_inbox_wait(&f.pair, f.pair.b);
			assert_int_equal(event.type, TN_EV_IMM);
			assert_int_equal(event.imm, i);
			conf_recv_done(f.pair.b, &event);
		}
	}
	conf_lane_works(&f.pair, &f.lane);
	teardown(&f);
}

static void arguments(void)
{
	errors_fixture f;
	conf_req req;
	uint32_t op;
	tn_iov iov[TN_IOV_MAX] = {{0}};

	setup(&f, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	req = (conf_req){.verb = CONF_SEND, .local = f.from.ptr, .bytes = f.pair.a->caps.send_bytes_max + 1};
	assert_int_equal(conf_op_status(f.pair.a, conf_post(&f.pair, &f.lane.a, &req)), TERN_E_TOO_LARGE);
	/* A sum that overflows is too large as well. */
	iov[0] = (tn_iov){f.from.ptr, UINT64_MAX};
	iov[1] = (tn_iov){f.from.ptr, 2};
	req = (conf_req){.verb = CONF_SEND, .iov = iov, .iov_count = 2};
	op = conf_post(&f.pair, &f.lane.a, &req);
	CONF_CHECK(conf_op_status(f.pair.a, op) == TERN_E_TOO_LARGE ||
			   conf_op_status(f.pair.a, op) == TERN_E_INVALID,
		   "%s", tern_status_name(conf_op_status(f.pair.a, op)));
	if (f.pair.a->caps.write_bytes_max < UINT64_MAX - 1) {
		req = (conf_req){
			.verb = CONF_WRITE, .local = f.from.ptr, .bytes = f.pair.a->caps.write_bytes_max + 1};
		req.key = f.key;
		op = conf_post(&f.pair, &f.lane.a, &req);
		CONF_CHECK(!f.pair.a->ops[op].accepted, "a write longer than the limit was accepted");
		CONF_CHECK(conf_op_status(f.pair.a, op) == TERN_E_TOO_LARGE ||
				   conf_op_status(f.pair.a, op) == TERN_E_BOUNDS,
			   "%s", tern_status_name(conf_op_status(f.pair.a, op)));
	}
	conf_lane_works(&f.pair, &f.lane);
	teardown(&f);
}

const conf_case conf_cases_errors[] = {
	{.name = "bounds", .run = bounds, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "edges_are_inside", .run = edges_are_inside, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "access_is_checked", .run = access_is_checked, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "revoked_keys_are_stale",
	 .run = revoked_keys_are_stale,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "freed_memory_is_stale", .run = freed_memory_is_stale, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "forged_keys", .run = forged_keys, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "forged_places", .run = forged_places, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "extents_are_checked",
	 .run = extents_are_checked,
	 .needs = TN_CAP_READ | TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "errors_between_good_ones",
	 .run = errors_between_good_ones,
	 .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{.name = "arguments", .run = arguments, .needs = TN_CAP_WRITE | TN_CAP_SEND},
	{0},
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct accesses to a peer's memory: what they reach, which keys they take, and that puts, messages, revocations and
 * the end of the link go on beside one. Where the device does not copy by itself they say so.
 * Threads: helpers; asserts in the main thread.
 */
#include "chan_test.h"

#include "channel/direct.h"

#define REGION (1u << 20)

typedef struct world {
	pair p;
	tern_mem *mem;
	uint8_t *dst;
	tern_key key;
} world;

static bool reaches;

static void open_world(world *w)
{
	memset(w, 0, sizeof(*w));
	pair_open(&w->p);
	w->mem = tern_ctx_mem(w->p.serve.ctx);
	assert_ok(tern_mem_alloc(w->mem, REGION, 0, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST,
				 (void **)&w->dst));
	memset(w->dst, 0, REGION);
	assert_ok(tern_mem_export(w->mem, w->dst, REGION, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &w->key));
}

/* Until the range is mapped. */
static tern_status begin(world *w, const tern_key *key, uint64_t offset, uint64_t bytes, bool read,
			 tn_direct *d)
{
	uint64_t end = tn_now() + PATIENCE;
	tern_status status;

	do {
		status = tn_direct_begin(w->p.dial.channel, key, offset, bytes, read, d);
		if (status == TERN_AGAIN)
			tern_ctx_wait(w->p.dial.ctx, 1000000);
	} while (status == TERN_AGAIN && tn_now() < end);
	return status;
}

static void test_reach(void **state)
{
	tn_direct d;
	world w;

	(void)state;
	open_world(&w);
	if (!reaches) {
		assert_status(begin(&w, &w.key, 0, 8, false, &d), TERN_E_UNSUPPORTED);
		pair_close(&w.p);
		return;
	}
	for (uint64_t i = 1; i < 50; i++) {
		uint64_t offset = i * 977, bytes = i * i * 131;

		assert_ok(begin(&w, &w.key, offset, bytes, false, &d));
		fill(d.at, bytes, i);
		tn_direct_end(&d);
		assert_true(filled(w.dst + offset, bytes, i));
		assert_ok(begin(&w, &w.key, offset, bytes, true, &d));
		assert_true(filled(d.at, bytes, i));
		tn_direct_end(&d);
	}
	pair_close(&w.p);
}

static void test_keys(void **state)
{
	tern_key read_only, revoked, junk;
	tn_direct d;
	world w;

	(void)state;
	if (!reaches)
		skip();
	open_world(&w);
	assert_ok(tern_mem_export(w.mem, w.dst, 1000, TERN_ACCESS_READ, &read_only));
	assert_ok(tern_mem_export(w.mem, w.dst, 1000, TERN_ACCESS_WRITE, &revoked));
	assert_ok(tern_mem_revoke(w.mem, &revoked));
	memset(&junk, 0xff, sizeof(junk));
	assert_status(begin(&w, &w.key, 0, REGION + 1, false, &d), TERN_E_BOUNDS);
	assert_status(begin(&w, &w.key, UINT64_MAX - 3, 8, false, &d), TERN_E_BOUNDS);
	assert_status(begin(&w, &w.key, REGION, 1, true, &d), TERN_E_BOUNDS);
	assert_status(begin(&w, &read_only, 0, 8, false, &d), TERN_E_ACCESS);
	assert_status(begin(&w, &revoked, 0, 8, false, &d), TERN_E_STALE_KEY);
	assert_status(begin(&w, &junk, 0, 8, false, &d), TERN_E_INVALID);
	assert_ok(begin(&w, &read_only, 992, 8, true, &d));
	tn_direct_end(&d);
	pair_close(&w.p);
}

/* Another access is refused, puts small and large and messages are not. */
static void test_beside(void **state)
{
	tern_op op = {0};
	tn_direct d, second;
	uint8_t *src;
	world w;

	(void)state;
	if (!reaches)
		skip();
	open_world(&w);
	src = malloc(REGION);
	assert_ok(begin(&w, &w.key, 0, 4096, false, &d));
	assert_status(tn_direct_begin(w.p.dial.channel, &w.key, 0, 8, false, &second), TERN_AGAIN);
	for (uint64_t bytes = 8; bytes <= REGION - 4096; bytes *= 5) {
		fill(src, bytes, bytes);
		assert_ok(complete(w.p.dial.ctx, &op,
				   tern_put(w.p.dial.channel, src, bytes, &w.key, 4096, &op)));
		assert_true(filled(w.dst + 4096, bytes, bytes));
	}
	op.flags = TERN_OP_REMOTE;
	assert_ok(complete(w.p.dial.ctx, &op, tern_send(w.p.dial.channel, "beside", 6, &op)));
	fill(d.at, 4096, 9);
	tn_direct_end(&d);
	assert_true(filled(w.dst, 4096, 9));
	assert_ok(begin(&w, &w.key, 0, 8, false, &second));
	tn_direct_end(&second);
	free(src);
	pair_close(&w.p);
}

typedef struct revoking {
	world *w;
	atomic_int ended;
	tern_status status;
} revoking;

static void *revoke(void *arg)
{
	revoking *r = arg;

	r->status = tern_mem_revoke(r->w->mem, &r->w->key);
	atomic_store(&r->ended, 1);
	return NULL;
}

/* A revocation returns when the access has ended, and nothing begins afterwards. */
static void test_revoke(void **state)
{
	revoking r = {0};
	pthread_t thread;
	tn_direct d;
	world w;

	(void)state;
	if (!reaches)
		skip();
	open_world(&w);
	r.w = &w;
	assert_ok(begin(&w, &w.key, 0, 4096, false, &d));
	assert_int_equal(pthread_create(&thread, NULL, revoke, &r), 0);
	for (int i = 0; i < 20; i++)
		tern_ctx_wait(w.p.dial.ctx, 1000000);
	assert_int_equal(atomic_load(&r.ended), 0);
	memset(d.at, 0x77, 4096);
	tn_direct_end(&d);
	pthread_join(thread, NULL);
	assert_true(r.status == TERN_OK ||
		    r.status == TERN_E_INDETERMINATE); /* a second has passed: a slow host */
	assert_status(begin(&w, &w.key, 0, 8, false, &d), TERN_E_STALE_KEY);
	pair_close(&w.p);
}

/* The link goes: its lane and the mapping stay until the end of the access. */
static void test_link_ends(void **state)
{
	tn_direct d, late;
	world w;

	(void)state;
	if (!reaches)
		skip();
	open_world(&w);
	assert_ok(begin(&w, &w.key, 0, 65536, false, &d));
	tern_link_close(w.p.dial.link);
	for (int i = 0; i < 50; i++) {
		tern_ctx_wait(w.p.dial.ctx, 1000000);
		memset(d.at, i, 65536);
	}
	tn_direct_end(&d);
	assert_int_not_equal(tn_direct_begin(w.p.dial.channel, &w.key, 0, 8, false, &late), TERN_OK);
	pair_close(&w.p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reach),     cmocka_unit_test(test_keys),
		cmocka_unit_test(test_beside),    cmocka_unit_test(test_revoke),
		cmocka_unit_test(test_link_ends),
	};

	reaches = strcmp(test_transport(argc, argv), "shm") == 0;
	return cmocka_run_group_tests_name(transport, tests, NULL, NULL);
}

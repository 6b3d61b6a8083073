/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Revocation against a peer that stands in the middle of a one-sided access: what its key reached is given to
 * nobody until the access has ended or the process has.
 * Threads: the main thread, and one that copies without end.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "shm_test.h"

#define BYTES (256u << 10)

static uint64_t used(node *n)
{
	tern_mem_stats stats;

	tern_mem_stats_get(n->mem, &stats);
	return stats.used_bytes;
}

/* Have mem look at what waits. */
static void touch(node *n)
{
	void *ptr;

	assert_ok(tern_mem_alloc(n->mem, 64, 0, RW, TERN_MEM_HOST, &ptr));
	tern_mem_free(n->mem, ptr);
}

static void access_is(evil_pair *l, uint32_t word)
{
	atomic_store(&l->e.out.ctl->access, word);
}

static void test_free_waits(void **state)
{
	evil_pair l;
	tn_key key;
	uint8_t *first, *second, *third;
	uint64_t before;

	(void)state;
	evil_pair_open(&l);
	touch(&l.n);
	before = used(&l.n);
	/* Nobody copies: free at once, and taken again. */
	first = block(&l.n, BYTES, RW, &key);
	tern_mem_free(l.n.mem, first);
	assert_int_equal(used(&l.n), before);
	first = block(&l.n, BYTES, RW, &key);
	access_is(&l, 7);
	tern_mem_free(l.n.mem, first);
	second = block(&l.n, BYTES, RW, &key);
	assert_ptr_not_equal(first, second);
	touch(&l.n);
	assert_true(used(&l.n) >= before + 2 * BYTES);
	/* A second access that began after the revocation is no reason to wait; memory without keys never is. */
	access_is(&l, 9);
	touch(&l.n);
	assert_true(used(&l.n) < before + 2 * BYTES);
	third = block(&l.n, BYTES, RW, NULL);
	tern_mem_free(l.n.mem, third);
	tern_mem_free(l.n.mem, second); /* this one has keys: it waits for 9 */
	assert_true(used(&l.n) >= before + BYTES);
	access_is(&l, 10);
	touch(&l.n);
	assert_int_equal(used(&l.n), before);
	lane_free(&l.n, l.lane);
	evil_free(&l.e);
	node_close(&l.n);
}

static void test_revoke_waits(void **state)
{
	evil_pair l;
	tern_key wire;
	void *ptr;

	(void)state;
	evil_pair_open(&l);
	assert_ok(tern_mem_alloc(l.n.mem, BYTES, 0, RW, TERN_MEM_HOST, &ptr));
	assert_ok(tern_mem_export(l.n.mem, ptr, BYTES, RW, &wire));
	assert_ok(tern_mem_revoke(l.n.mem, &wire));
	assert_ok(tern_mem_export(l.n.mem, ptr, BYTES, RW, &wire));
	access_is(&l, 1);
	assert_status(tern_mem_revoke(l.n.mem, &wire), TERN_E_INDETERMINATE);
	assert_status(tern_mem_revoke(l.n.mem, &wire), TERN_E_STALE_KEY);
	tern_mem_free(l.n.mem, ptr);
	access_is(&l, 2);
	lane_free(&l.n, l.lane);
	evil_free(&l.e);
	node_close(&l.n);
}

/* The lane was given up and destroyed while its peer stood in the access: the block waits on. */
static void test_zombie(void **state)
{
	evil_pair l;
	tn_key key;
	uint8_t *first;
	uint64_t before;

	(void)state;
	evil_pair_open(&l);
	touch(&l.n);
	before = used(&l.n);
	first = block(&l.n, BYTES, RW, &key);
	access_is(&l, 3);
	lane_free(&l.n, l.lane);
	assert_int_equal(counter(&l.n, "shm.forced_drains"), 1);
	tern_mem_free(l.n.mem, first);
	polls(&l.n, 200);
	touch(&l.n);
	assert_true(used(&l.n) >= before + BYTES);
	access_is(&l, 4);
	polls(&l.n, 200);
	touch(&l.n);
	assert_int_equal(used(&l.n), before);
	assert_int_equal(((tn_shm_dev *)l.n.dev)->zombie_count, 0);
	evil_free(&l.e);
	node_close(&l.n);
}

/* A device that closes with a zombie: its block is never given out again, and all else goes on. */
static void test_close_with_zombie(void **state)
{
	evil_pair l;
	tn_key key;
	uint8_t *first, *second;
	tn_dev_params params = {0};

	(void)state;
	evil_pair_open(&l);
	first = block(&l.n, BYTES, RW, &key);
	access_is(&l, 3);
	tern_mem_free(l.n.mem, first);
	l.n.dev->ops->close(l.n.dev);
	params.mem = l.n.mem;
	assert_ok(tn_provider_find("shm")->open(&params, &l.n.dev));
	touch(&l.n);
	second = block(&l.n, BYTES, RW, &key);
	assert_ptr_not_equal(first, second);
	tern_mem_free(l.n.mem, second);
	evil_free(&l.e);
	node_close(&l.n);
}

/* ---- a peer that really copies ---- */

typedef struct copier {
	node *n;
	tn_lane *lane;
	tn_key key;
	_Atomic bool end;
	_Atomic uint64_t copies;
	uint8_t *data;
} copier;

static void *copy_for_ever(void *arg)
{
	copier *c = arg;

	while (!atomic_load(&c->end)) {
		tn_wr wr = {.local = c->data, .bytes = BYTES, .key = c->key};

		if (tn_lane_write(c->lane, &wr) == TERN_OK)
			atomic_fetch_add(&c->copies, 1);
	}
	return NULL;
}

/* Revoked means: from the return on, not one more byte. */
static void test_revoked_is_final(void **state)
{
	node a, b;
	lane_pair lanes;
	tern_key wire;
	copier c = {.n = &a};
	pthread_t thread;
	uint8_t *target;
	void *ptr;

	(void)state;
	node_open(&a);
	node_open(&b);
	lane_up(&a, &b, &lanes);
	c.lane = lanes.a;
	c.data = malloc(BYTES);
	assert_non_null(c.data);
	memset(c.data, 0x11, BYTES);
	assert_ok(tern_mem_alloc(b.mem, BYTES, 0, RW, TERN_MEM_HOST, &ptr));
	target = ptr;
	for (int round = 0; round < 100; round++) {
		uint64_t start;

		assert_ok(tern_mem_export(b.mem, ptr, BYTES, RW, &wire));
		assert_true(tn_key_decode(&wire, &c.key));
		assert_ok(access_by(&a, &b, lanes.a, true, &c.key, 0, c.data, BYTES));
		atomic_store(&c.end, false);
		assert_int_equal(pthread_create(&thread, NULL, copy_for_ever, &c), 0);
		start = atomic_load(&c.copies);
		while (atomic_load(&c.copies) < start + 2)
			sched_yield();
		assert_ok(tern_mem_revoke(b.mem, &wire));
		memset(target, 0x22, BYTES);
		sched_yield();
		for (uint32_t i = 0; i < BYTES; i++) {
			if (target[i] != 0x22)
				fail_msg("round %d: written after the revocation, at %u", round, i);
		}
		atomic_store(&c.end, true);
		pthread_join(thread, NULL);
		for (uint32_t i = 0; i < BYTES; i++)
			assert_int_equal(target[i], 0x22);
	}
	free(c.data);
	lane_free(&a, lanes.a);
	lane_free(&b, lanes.b);
	node_close(&a);
	node_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_free_waits),       cmocka_unit_test(test_revoke_waits),
		cmocka_unit_test(test_zombie),           cmocka_unit_test(test_close_with_zombie),
		cmocka_unit_test(test_revoked_is_final),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations against a naive oracle: a list of live blocks that must not overlap, keep their contents,
 * lie in an extent of their class, and keys that must be live exactly as long as the oracle says. In one run
 * several threads do the steps, one at a time as the dice say, and now and then one of them ends and another takes
 * its place: blocks are freed by other threads than those that allocated them, alive and ended.
 */
#include <pthread.h>

#include "base/rand.h"
#include "mem_test.h"

#define BLOCKS 400
#define KEYS   300

typedef struct shadow_block {
	uint8_t *ptr;
	uint64_t bytes, usable;
	uint32_t access;
	uint64_t stamp;
} shadow_block;

typedef struct shadow_key {
	tern_key wire;
	tn_key key;
	int block; /* index, -1 once dead */
	uint64_t length;
	uint32_t access;
} shadow_key;

typedef struct model {
	tern_mem *mem;
	tn_rand rand;
	shadow_block blocks[BLOCKS];
	shadow_key keys[KEYS];
	int nblocks, nkeys;
	uint64_t stamp;
} model;

static uint64_t random_bytes(tn_rand *rand)
{
	switch (tn_rand_below(rand, 10)) {
	case 0:
		return 0;
	case 1:
		return tn_rand_below(rand, 6 * MiB);
	case 2:
	case 3:
		return tn_rand_below(rand, 200000);
	default:
		return tn_rand_below(rand, 1ull << (4 + tn_rand_below(rand, 12)));
	}
}

static void stamp_write(const shadow_block *b)
{
	if (b->bytes >= 16) {
		memcpy(b->ptr, &b->stamp, 8);
		memcpy(b->ptr + b->bytes - 8, &b->stamp, 8);
	}
}

static void stamp_check(const shadow_block *b)
{
	if (b->bytes >= 16) {
		assert_memory_equal(b->ptr, &b->stamp, 8);
		assert_memory_equal(b->ptr + b->bytes - 8, &b->stamp, 8);
	}
}

static void do_alloc(model *m)
{
	uint64_t align = tn_rand_below(&m->rand, 3) ? 0 : 1ull << tn_rand_below(&m->rand, 17);
	shadow_block b = {.bytes = random_bytes(&m->rand),
			  .access = (uint32_t)tn_rand_below(&m->rand, 4),
			  .stamp = ++m->stamp};
	tern_status status;
	void *ptr;

	if (m->nblocks == BLOCKS)
		return;
	status = tern_mem_alloc(m->mem, b.bytes, align, b.access, TERN_MEM_HOST, &ptr);
	if (status == TERN_E_BUDGET)
		return;
	assert_int_equal(status, TERN_OK);
	b.ptr = ptr;
	b.usable = tern_mem_usable(m->mem, ptr);
	assert_true(b.usable >= TN_MAX(b.bytes, 1));
	assert_int_equal((uintptr_t)ptr % TN_MAX(align, 64), 0);
	assert_int_equal(tn_mem_extent_of(m->mem, ptr)->access, b.access);
	assert_ptr_equal(tn_mem_extent_of(m->mem, b.ptr + b.usable - 1), tn_mem_extent_of(m->mem, ptr));
	for (int i = 0; i < m->nblocks; i++) {
		const shadow_block *o = &m->blocks[i];

		assert_true(b.ptr + b.usable <= o->ptr || o->ptr + o->usable <= b.ptr);
	}
	stamp_write(&b);
	m->blocks[m->nblocks++] = b;
}

static void do_free(model *m)
{
	int at, last;

	if (m->nblocks == 0)
		return;
	at = (int)tn_rand_below(&m->rand, (uint64_t)m->nblocks);
	last = m->nblocks - 1;
	stamp_check(&m->blocks[at]);
	tern_mem_free(m->mem, m->blocks[at].ptr);
	for (int i = 0; i < m->nkeys; i++) {
		if (m->keys[i].block == at)
			m->keys[i].block = -1;
		else if (m->keys[i].block == last)
			m->keys[i].block = at;
	}
	if (tn_rand_below(&m->rand, 4) == 0)
		tern_mem_free(m->mem, m->blocks[at].ptr); /* refused */
	m->blocks[at] = m->blocks[last];
	m->nblocks--;
}

static void do_export(model *m)
{
	shadow_key k = {.access = 1 + (uint32_t)tn_rand_below(&m->rand, 3)};
	const shadow_block *b;
	uint64_t offset;
	tern_status status;

	if (m->nblocks == 0 || m->nkeys == KEYS)
		return;
	k.block = (int)tn_rand_below(&m->rand, (uint64_t)m->nblocks);
	b = &m->blocks[k.block];
	offset = tn_rand_below(&m->rand, b->usable);
	k.length = tn_rand_below(&m->rand, b->usable - offset + 1);
	status = tern_mem_export(m->mem, b->ptr + offset, k.length, k.access, &k.wire);
	if (k.access & ~b->access) {
		assert_int_equal(status, TERN_E_ACCESS);
		return;
	}
	assert_int_equal(status, TERN_OK);
	assert_true(tn_key_decode(&k.wire, &k.key));
	assert_int_equal(k.key.address, (uintptr_t)(b->ptr + offset));
	m->keys[m->nkeys++] = k;
}

static void do_revoke(model *m)
{
	shadow_key *k;

	if (m->nkeys == 0)
		return;
	k = &m->keys[tn_rand_below(&m->rand, (uint64_t)m->nkeys)];
	assert_int_equal(tern_mem_revoke(m->mem, &k->wire), k->block >= 0 ? TERN_OK : TERN_E_STALE_KEY);
	*k = m->keys[--m->nkeys];
}

static void do_check(model *m)
{
	uint64_t offset, bytes, at;
	tern_status status, want;
	const shadow_key *k;
	uint32_t extent, access;

	if (m->nkeys == 0)
		return;
	k = &m->keys[tn_rand_below(&m->rand, (uint64_t)m->nkeys)];
	offset = tn_rand_below(&m->rand, k->length + 2);
	bytes = tn_rand_below(&m->rand, k->length + 2);
	access = 1 + (uint32_t)tn_rand_below(&m->rand, 2);
	status = tn_key_check(tn_mem_keys(m->mem), &k->key, offset, bytes, access, &extent, &at);
	want = k->block < 0                 ? TERN_E_STALE_KEY
	       : offset + bytes > k->length ? TERN_E_BOUNDS
	       : (access & ~k->access)      ? TERN_E_ACCESS
					    : TERN_OK;
	assert_int_equal(status, want);
	if (status == TERN_OK)
		assert_ptr_equal((uint8_t *)tn_mem_extent(m->mem, extent)->base + at,
				 k->key.address + offset);
}

static void check_stats(model *m)
{
	tern_mem_stats stats = stats_of(m->mem);
	uint64_t used = 0, keys = 0;

	for (int i = 0; i < m->nblocks; i++)
		used += m->blocks[i].usable;
	for (int i = 0; i < m->nkeys; i++)
		keys += m->keys[i].block >= 0;
	assert_int_equal(stats.blocks, m->nblocks);
	assert_int_equal(stats.used_bytes, used);
	assert_int_equal(stats.keys, keys);
	assert_true(stats.committed_bytes >= used);
}

static void step_once(model *m, int step)
{
	/* Phases of growth and of decay, so that both full and empty pools are met. */
	uint64_t grow = step / 500 % 2 ? 30 : 50;
	uint64_t dice = tn_rand_below(&m->rand, 100);

	if (dice < grow)
		do_alloc(m);
	else if (dice < 80)
		do_free(m);
	else if (dice < 87)
		do_export(m);
	else if (dice < 92)
		do_revoke(m);
	else
		do_check(m);
	if (step % 50 == 0) {
		tn_mem_check(m->mem);
		check_stats(m);
	}
}

/* The threads that take turns. `turn` says whose step it is. */
#define ACTORS 4
static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	model *m;
	int turn, step, steps;
	int leaves; /* the actor that ends after its step, -1 = none */
} stage = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static void *actor(void *arg)
{
	int me = (int)(intptr_t)arg;
	bool stay = true;

	pthread_mutex_lock(&stage.lock);
	while (stay) {
		while (stage.turn != me && stage.step < stage.steps)
			pthread_cond_wait(&stage.moved, &stage.lock);
		if (stage.step >= stage.steps)
			break;
		step_once(stage.m, stage.step++);
		if (stage.step % 100 == 0) {
			stage.leaves = me;
			stay = false;
		}
		stage.turn = stay ? (int)tn_rand_below(&stage.m->rand, ACTORS) : -1;
		pthread_cond_broadcast(&stage.moved);
	}
	pthread_mutex_unlock(&stage.lock);
	return NULL;
}

static void act(model *m, int steps)
{
	pthread_t threads[ACTORS];

	stage.m = m;
	stage.step = stage.turn = 0;
	stage.steps = steps;
	stage.leaves = -1;
	for (intptr_t i = 0; i < ACTORS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, actor, (void *)i), 0);
	pthread_mutex_lock(&stage.lock);
	while (stage.step < stage.steps) {
		int gone = stage.leaves;

		if (gone < 0) {
			pthread_cond_wait(&stage.moved, &stage.lock);
			continue;
		}
		pthread_mutex_unlock(&stage.lock);
		pthread_join(threads[gone], NULL);
		assert_int_equal(pthread_create(&threads[gone], NULL, actor, (void *)(intptr_t)gone), 0);
		pthread_mutex_lock(&stage.lock);
		stage.leaves = -1;
		stage.turn = gone;
		pthread_cond_broadcast(&stage.moved);
	}
	pthread_mutex_unlock(&stage.lock);
	for (int i = 0; i < ACTORS; i++)
		pthread_join(threads[i], NULL);
}

static void run(uint64_t seed, uint64_t limit, int steps, bool threads)
{
	static model m;

	memset(&m, 0, sizeof(m));
	m.mem = make_pool(limit);
	m.rand.state = seed;
	if (threads)
		act(&m, steps);
	for (int step = 0; step < steps && !threads; step++)
		step_once(&m, step);
	while (m.nblocks)
		do_free(&m);
	tn_mem_check(m.mem);
	check_stats(&m);
	tn_mem_destroy(m.mem);
}

static void random_operations(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++)
		run(seed, 0, 4000, false);
}

/* With a budget extents come and go. */
static void random_operations_under_pressure(void **state)
{
	(void)state;
	for (uint64_t seed = 101; seed <= 106; seed++)
		run(seed, 20 * MiB, 4000, false);
}

static void random_operations_of_threads(void **state)
{
	(void)state;
	for (uint64_t seed = 201; seed <= 206; seed++)
		run(seed, seed % 2 ? 20 * MiB : 0, 4000, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations),
		cmocka_unit_test(random_operations_under_pressure),
		cmocka_unit_test(random_operations_of_threads),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}

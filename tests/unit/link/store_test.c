/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of memory that links borrow: blocks apart and aligned, again after they were given back, its counts, no memory.
 */
#include "cmocka_all.h"
#include "link/share.h"

#include <string.h>

#include "base/rand.h"

static tn_link_store store;
static int64_t left; /* calls of get that succeed; below 0: all */
static uint64_t gets, out;

static void *get(size_t bytes, void *arg)
{
	(void)arg;
	if (left == 0)
		return NULL;
	left -= left > 0;
	gets++;
	out += bytes;
	return aligned_alloc(64, bytes);
}

static void put(void *memory, size_t bytes, void *arg)
{
	(void)arg;
	assert_true(out >= bytes);
	out -= bytes;
	free(memory);
}

static void fresh(bool each)
{
	tn_store_source source = {.get = get, .put = put, .each = each};

	left = -1;
	gets = out = 0;
	tn_link_store_init(&store, &source, NULL);
}

#define BLOCKS 200

/* Blocks of all sizes come and go in any order: nobody else writes into one while it is lent. */
static void blocks_are_apart(void **state)
{
	static struct {
		uint8_t *at;
		size_t bytes;
	} blocks[BLOCKS];
	tn_rand rand = {.state = 7};

	(void)state;
	for (int each = 0; each < 2; each++) {
		fresh(each);
		for (int turn = 0; turn < 20000; turn++) {
			uint32_t i = (uint32_t)tn_rand_below(&rand, BLOCKS);

			if (blocks[i].at) {
				for (size_t k = 0; k < blocks[i].bytes; k++)
					assert_int_equal(blocks[i].at[k], (uint8_t)(i + blocks[i].bytes));
				tn_store_back(&store, blocks[i].at, blocks[i].bytes);
				blocks[i].at = NULL;
				continue;
			}
			blocks[i].bytes = 1 + tn_rand_below(&rand, turn % 50 ? 700 : 20000);
			blocks[i].at = tn_store_lend(&store, blocks[i].bytes);
			assert_non_null(blocks[i].at);
			assert_int_equal((uintptr_t)blocks[i].at % 64, 0);
			memset(blocks[i].at, (int)(uint8_t)(i + blocks[i].bytes), blocks[i].bytes);
			assert_true(store.lent <= store.held);
			assert_int_equal(store.held, out);
		}
		for (uint32_t i = 0; i < BLOCKS; i++) {
			tn_store_back(&store, blocks[i].at, blocks[i].bytes);
			blocks[i].at = NULL;
		}
		assert_int_equal(store.lent, 0);
		tn_link_store_fini(&store);
		assert_int_equal(out, 0);
	}
}

/* What is given back is lent again: the shell is not asked for more. */
static void blocks_come_again(void **state)
{
	void *block[64];
	uint64_t before = 0;

	(void)state;
	fresh(false);
	for (int turn = 0; turn < 100; turn++) {
		for (int i = 0; i < 64; i++)
			assert_non_null(block[i] = tn_store_lend(&store, 4104));
		assert_int_equal(store.lent, 64 * 4160);
		for (int i = 0; i < 64; i++)
			tn_store_back(&store, block[i], 4104);
		if (turn == 0)
			before = gets;
		assert_int_equal(gets, before);
	}
	tn_store_back(&store, NULL, 4104); /* no block */
	tn_link_store_fini(&store);
	assert_int_equal(out, 0);
}

static void equal_bytes_are_kept_once(void **state)
{
	uint8_t a[500] = {1}, b[500] = {2};
	const void *first, *second, *other, *shorter;

	(void)state;
	fresh(false);
	first = tn_store_share(&store, a, sizeof(a));
	other = tn_store_share(&store, b, sizeof(b));
	second = tn_store_share(&store, a, sizeof(a));
	shorter = tn_store_share(&store, a, sizeof(a) - 1);
	assert_ptr_equal(first, second);
	assert_ptr_not_equal(first, other);
	assert_ptr_not_equal(first, shorter);
	tn_store_unshare(&store, shorter);
	tn_store_unshare(&store, first);
	assert_memory_equal(second, a, sizeof(a));
	tn_store_unshare(&store, second);
	tn_store_unshare(&store, other);
	tn_store_unshare(&store, NULL);
	assert_int_equal(out, 0);
	tn_link_store_fini(&store);
}

static void no_memory(void **state)
{
	uint8_t a[100] = {0};
	void *block;

	(void)state;
	fresh(false);
	left = 0;
	assert_null(tn_store_lend(&store, 64));
	assert_null(tn_store_lend(&store, 100000));
	assert_null(tn_store_share(&store, a, sizeof(a)));
	assert_int_equal(store.lent, 0);
	left = 1;
	assert_non_null(block = tn_store_lend(&store, 64));
	tn_store_back(&store, block, 64);
	tn_link_store_fini(&store);
	assert_int_equal(out, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_are_apart),
		cmocka_unit_test(blocks_come_again),
		cmocka_unit_test(equal_bytes_are_kept_once),
		cmocka_unit_test(no_memory),
	};

	return RUN(tests);
}

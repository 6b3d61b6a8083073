/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store/tier.h, each kind against a plain map. RocksDB is left out where it is not installed.
 */
#include "store/tier.h"

#include <sys/stat.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "support/mem_tier.h"

#define BYTES  40
#define PLACES 3000

static void fill(uint8_t image[BYTES], uint64_t place, uint64_t version)
{
	for (unsigned i = 0; i < BYTES; i++)
		image[i] = (uint8_t)tn_hash_u64(place + i, version);
}

/* Places over the whole range of u64, the ends too. */
static uint64_t place_of(uint64_t i)
{
	return i == 0 ? 0 : i == 1 ? UINT64_MAX : tn_hash_u64(i, 7);
}

static void expect_walk(tn_tier *t, const tn_map *versions, uint64_t first, uint64_t last, tn_tier_walk *walk)
{
	uint64_t place, n = 0, want = 0, before = 0, cursor = 0;
	tn_map_entry entry;
	const void *image;

	while (tn_map_next(versions, &cursor, &entry))
		want += entry.key >= first && entry.key <= last;
	for (;;) {
		uint8_t good[BYTES];

		assert_ok(t->ops->next(walk, &place, &image));
		if (!image)
			break;
		assert_true(place >= first && place <= last && (n == 0 || place > before));
		fill(good, place, *tn_map_find(versions, place));
		assert_memory_equal(image, good, BYTES);
		before = place;
		n++;
	}
	assert_int_equal(n, want);
	t->ops->walk_end(walk);
}

static void copy_map(const tn_map *from, tn_map *to)
{
	uint64_t cursor = 0;
	tn_map_entry entry;

	assert_ok(tn_map_init(to, PLACES, false, 1));
	while (tn_map_next(from, &cursor, &entry))
		assert_ok(tn_map_put(to, entry.key, entry.value));
}

static void check_kind(tier_kind kind)
{
	tn_tier_walk *walk = NULL;
	tn_map versions, then = {0};
	tn_rand r = {5};
	tn_tier *t;

	if (!test_tier_can(kind))
		skip();
	assert_ok(test_tier_open(&kind, BYTES, &t));
	assert_ok(tn_map_init(&versions, PLACES, false, 1));
	for (uint64_t i = 1; i < 40000; i++) {
		uint64_t place = place_of(tn_rand_below(&r, PLACES)), what = tn_rand_below(&r, 100);
		uint8_t image[BYTES], good[BYTES];
		uint64_t *version = tn_map_find(&versions, place);
		bool there;

		if (what < 50) {
			fill(image, place, i);
			assert_ok(t->ops->put(t, place, image));
			assert_ok(tn_map_put(&versions, place, i));
		} else if (what < 80) {
			assert_ok(t->ops->get(t, place, what < 70 ? image : NULL, &there));
			assert_int_equal(there, version != NULL);
			if (there && what < 70) {
				fill(good, place, *version);
				assert_memory_equal(image, good, BYTES);
			}
		} else if (what < 99) {
			assert_ok(t->ops->remove(t, place));
			tn_map_remove(&versions, place, NULL);
		} else if (!walk) { /* as of now, read later */
			copy_map(&versions, &then);
			assert_ok(t->ops->walk(t, 0, UINT64_MAX, &walk));
		} else if (what == 99) {
			expect_walk(t, &then, 0, UINT64_MAX, walk);
			tn_map_fini(&then);
			walk = NULL;
			assert_ok(t->ops->walk(t, place / 2, place, &walk));
			expect_walk(t, &versions, place / 2, place, walk);
			walk = NULL;
		}
		if (i % 5000 == 0)
			t->ops->expect(t, (uint64_t[]){place_of(0), place_of(1), place, 12345}, 4);
	}
	if (walk)
		expect_walk(t, &then, 0, UINT64_MAX, walk);
	tn_map_fini(&then);
	assert_true(t->ops->bytes(t) > 0);
	t->ops->close(t);
	tn_map_fini(&versions);
	test_tier_gone();
}

static void the_plain_tier_keeps_what_it_is_given(void **state)
{
	(void)state;
	check_kind(TIER_MEMORY);
}

static void rocksdb_keeps_what_it_is_given(void **state)
{
	(void)state;
	check_kind(TIER_ROCKSDB);
}

/* It is a cache: nothing of it outlives its owner, and two owners don't share it. */
static void a_tier_begins_empty(void **state)
{
	tn_tier_params params = {.dir = tier_dir, .image_bytes = BYTES};
	tier_kind kind = TIER_ROCKSDB;
	uint8_t image[BYTES] = {1};
	tn_tier *t, *other;
	bool there;

	(void)state;
	if (!test_tier_can(kind))
		skip();
	assert_ok(test_tier_open(&kind, BYTES, &t));
	assert_ok(t->ops->put(t, 5, image));
	assert_status(tn_tier_open_rocksdb(&params, &other), TERN_E_IN_USE);
	assert_non_null(strstr(tn_detail_get(), tier_dir));
	assert_ok(t->ops->get(t, 5, NULL, &there));
	assert_true(there);
	t->ops->close(t);
	assert_ok(tn_tier_open_rocksdb(&params, &t));
	assert_ok(t->ops->get(t, 5, NULL, &there));
	assert_false(there);
	t->ops->close(t);
	test_tier_gone();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_plain_tier_keeps_what_it_is_given),
		cmocka_unit_test(rocksdb_keeps_what_it_is_given),
		cmocka_unit_test(a_tier_begins_empty),
	};

	return RUN(tests);
}

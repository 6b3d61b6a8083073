/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients and servers of tables say to each other: golden bytes, what comes back from what was encoded, and that
 * every cut and every changed byte is refused or read within its bounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/wire.h"

static const tn_ps_batch example = {.how = 2,
				    .flags = TN_PS_PLACES | TN_PS_FOUND,
				    .dtype = TERN_F32,
				    .lr_scale = 0.5f,
				    .table = 0x1122334455667788ull,
				    .schema = 0x99aabbccddeeff00ull,
				    .map_version = 3,
				    .count = 2,
				    .step = 7,
				    .client = 0x0102030405060708ull,
				    .seq = 9,
				    .low_water = 5,
				    .stride = 256};

static void batch_golden(void **state)
{
	static const uint8_t golden[TN_PS_BATCH_BYTES] = {
		1,    2,    3,    1,    0,    0,    0,    0x3f, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
		0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 3,    0,    0,    0,
		0,    0,    0,    0,    2,    0,    0,    0,    0,    0,    0,    0,    7,    0,
		0,    0,    0,    0,    0,    0,    8,    7,    6,    5,    4,    3,    2,    1,
		9,    0,    0,    0,    0,    0,    0,    0,    5,    0,    0,    0,    0,    0,
		0,    0,    0,    1,    0,    0,    0,    0,    0,    0};
	uint8_t out[TN_PS_BATCH_BYTES];

	(void)state;
	tn_ps_batch_encode(out, &example);
	assert_memory_equal(out, golden, sizeof(golden));
}

static void batch_round(void **state)
{
	uint8_t msg[TN_PS_BATCH_BYTES + 2 * 8 + 2 * 4 + 2 * 16] = {0};
	tn_ps_batch b = example, got;

	(void)state;
	tn_ps_batch_encode(msg, &b);
	msg[TN_PS_BATCH_BYTES] = 0xaa;
	assert_true(tn_ps_batch_head(msg, sizeof(msg), &got));
	assert_int_equal(got.seq, 9);
	assert_true(got.lr_scale > 0.49f && got.lr_scale < 0.51f);
	assert_true(tn_ps_batch_body(msg, TN_PS_BATCH_BYTES + 24, 16, &got));
	assert_ptr_equal(got.keys, msg + TN_PS_BATCH_BYTES);
	assert_ptr_equal(got.places, msg + TN_PS_BATCH_BYTES + 16);
	assert_null(got.grads);
	assert_false(tn_ps_batch_body(msg, TN_PS_BATCH_BYTES + 25, 16, &got)); /* a byte too many */
	b.flags = TN_PS_PLACES | TN_PS_POOLED; /* rows of bags have no places */
	tn_ps_batch_encode(msg, &b);
	assert_true(tn_ps_batch_head(msg, sizeof(msg), &got));
	assert_false(tn_ps_batch_body(msg, sizeof(msg), 16, &got));
	b.flags = TN_PS_INLINE;
	tn_ps_batch_encode(msg, &b);
	assert_true(tn_ps_batch_head(msg, sizeof(msg), &got));
	assert_true(tn_ps_batch_body(msg, TN_PS_BATCH_BYTES + 16 + 32, 16, &got));
	assert_int_equal(got.grad_bytes, 32);
	assert_ptr_equal(got.grads, msg + TN_PS_BATCH_BYTES + 16);
	b.low_water = 10; /* above seq */
	tn_ps_batch_encode(msg, &b);
	assert_false(tn_ps_batch_head(msg, sizeof(msg), &got));
}

/* Two keys in three bags, the second one empty; golden behind the head. */
static void batch_bags(void **state)
{
	static const uint8_t golden[36] = {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, /* keys */
					   2, 0, 0, 0, 3, 0, 0, 0,                         /* mean, bags */
					   1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
	uint8_t msg[TN_PS_BATCH_BYTES + sizeof(golden)];
	tn_ps_batch b = example, got;

	(void)state;
	b.flags = TN_PS_POOLED;
	b.dtype = TERN_I8;
	tn_ps_batch_encode(msg, &b);
	assert_int_equal(msg[2], 16);
	assert_int_equal(msg[3], 5);
	memcpy(msg + TN_PS_BATCH_BYTES, golden, sizeof(golden));
	assert_true(tn_ps_batch_head(msg, sizeof(msg), &got));
	assert_true(tn_ps_batch_body(msg, sizeof(msg), 17, &got));
	assert_int_equal(got.pool, TERN_POOL_MEAN);
	assert_int_equal(got.bags, 3);
	assert_ptr_equal(got.bag_keys, msg + TN_PS_BATCH_BYTES + 24);
	for (uint64_t n = 0; n < sizeof(golden); n++)
		assert_false(tn_ps_batch_body(msg, TN_PS_BATCH_BYTES + n, 17, &got));
	msg[TN_PS_BATCH_BYTES + 28] = 1; /* three keys in all */
	assert_false(tn_ps_batch_body(msg, sizeof(msg), 17, &got));
	msg[TN_PS_BATCH_BYTES + 28] = 0;
	msg[TN_PS_BATCH_BYTES + 16] = 3; /* no such pooling */
	assert_false(tn_ps_batch_body(msg, sizeof(msg), 17, &got));
	msg[TN_PS_BATCH_BYTES + 16] = 1;
	memset(msg + TN_PS_BATCH_BYTES + 20, 0xff, 4); /* 2^32 - 1 bags */
	assert_false(tn_ps_batch_body(msg, sizeof(msg), 17, &got));
}

/* Counts that wrap when they are multiplied; every length that is too short. */
static void batch_bounds(void **state)
{
	static const uint64_t counts[] = {3,          1ull << 31,       1ull << 32,
					  1ull << 61, (1ull << 61) + 1, UINT64_MAX};
	uint8_t msg[TN_PS_BATCH_BYTES + 24];
	tn_ps_batch b = example, got;

	(void)state;
	memset(msg, 0, sizeof(msg));
	for (unsigned i = 0; i < TN_COUNT_OF(counts); i++)
		for (uint8_t flags = 0; flags < 16; flags++) {
			b.count = counts[i];
			b.flags = flags;
			tn_ps_batch_encode(msg, &b);
			assert_true(tn_ps_batch_head(msg, sizeof(msg), &got));
			if (counts[i] != 3 || flags & (TN_PS_PLACES | TN_PS_INLINE))
				assert_false(tn_ps_batch_body(msg, sizeof(msg), 1ull << 40, &got));
		}
	b = example;
	tn_ps_batch_encode(msg, &b);
	for (uint64_t n = 0; n < sizeof(msg); n++) {
		uint8_t *cut = malloc(n ? n : 1); /* so that a sanitizer sees a byte too many */

		memcpy(cut, msg, n);
		if (tn_ps_batch_head(cut, n, &got))
			assert_false(tn_ps_batch_body(cut, n, 16, &got));
		free(cut);
	}
}

static void answer_round(void **state)
{
	uint8_t msg[TN_PS_ANSWER_BYTES + 2] = {0};
	tn_ps_answer a = {.flags = TN_PS_DUPLICATE,
			  .status = TERN_E_BUDGET,
			  .map_version = 4,
			  .found = 5,
			  .applied = 6,
			  .dropped = 7,
			  .refused = 8},
		     got;

	(void)state;
	tn_ps_answer_encode(msg, &a);
	msg[TN_PS_ANSWER_BYTES] = 0x5a;
	assert_true(tn_ps_answer_decode(msg, sizeof(msg), 9, true, 0, &got));
	assert_int_equal(got.status, TERN_E_BUDGET);
	assert_int_equal(got.refused, 8);
	assert_int_equal(got.found_bits[0], 0x5a);
	assert_true(tn_ps_answer_decode(msg, TN_PS_ANSWER_BYTES, 9, true, 0, &got));
	assert_null(got.found_bits);
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), 8, true, 0, &got));
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), UINT64_MAX, true, 0, &got));
	assert_false(tn_ps_answer_decode(msg, TN_PS_ANSWER_BYTES - 1, 0, true, 0, &got));
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), 9, false, 0, &got));
	msg[1] = TN_PS_ROWS;
	assert_true(tn_ps_answer_decode(msg, sizeof(msg), 2, false, 1, &got));
	assert_ptr_equal(got.rows, msg + TN_PS_ANSWER_BYTES);
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), 3, false, 1, &got));
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), 1ull << 63, false, 2, &got));
	msg[1] = 0x80; /* a flag that nobody knows */
	assert_false(tn_ps_answer_decode(msg, sizeof(msg), 9, true, 0, &got));
}

static void schema_round(void **state)
{
	tern_table_schema s = {.name = "users/embedding.v2",
			       .dtype = TERN_BF16,
			       .dim = 64,
			       .budget_bytes = 1ull << 33,
			       .ttl_steps = 1000,
			       .admit_after = 3,
			       .eviction = TERN_EVICT_LFU,
			       .init = {.kind = TERN_ROW_NORMAL, .value = 0.01f, .seed = 42}},
			  got, f32 = {.name = "a", .dim = 1}, zero = {.name = "a", .dim = 1};
	uint8_t out[TN_PS_SCHEMA_BYTES];
	uint64_t bytes, used;

	(void)state;
	tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.1f);
	bytes = tn_ps_schema_encode(out, sizeof(out), &s);
	assert_true(bytes > 0);
	assert_true(tn_ps_schema_decode(out, bytes, &got, &used));
	assert_int_equal(used, bytes);
	assert_memory_equal(&got, &s, sizeof(s));
	assert_true(tn_ps_schema_hash(&got) == tn_ps_schema_hash(&s));
	got.optimizer.lr = 0.2f;
	assert_true(tn_ps_schema_hash(&got) != tn_ps_schema_hash(&s));
	f32.dtype = TERN_F32; /* 0 says the same */
	assert_true(tn_ps_schema_hash(&f32) == tn_ps_schema_hash(&zero));
	for (uint64_t n = 0; n < bytes; n++)
		assert_false(tn_ps_schema_decode(out, n, &got, &used));
	memset(s.name, 'x', sizeof(s.name) - 1);
	assert_true(tn_ps_schema_encode(out, sizeof(out), &s) > 0); /* the longest name fits */
}

static void names(void **state)
{
	uint8_t out[80];
	char name[TERN_TABLE_NAME_MAX];
	uint64_t bytes = tn_ps_name_encode(out, sizeof(out), "words");

	(void)state;
	assert_true(tn_ps_name_decode(out, bytes, name, sizeof(name)));
	assert_string_equal(name, "words");
	assert_false(tn_ps_name_decode(out, bytes - 1, name, sizeof(name)));
	assert_false(tn_ps_name_decode(out, bytes, name, 5));
	assert_true(tn_ps_table_id("words") != tn_ps_table_id("word"));
	assert_true(tn_ps_table_id("a") == 0xaf63dc4c8601ec8cull); /* FNV-1a, 64 bits */
}

/* Junk in every place: nothing is read outside, whatever is said. */
static void junk(void **state)
{
	tn_rand rand = {99};

	(void)state;
	for (unsigned round = 0; round < 20000; round++) {
		uint64_t n = tn_rand_below(&rand, 200);
		uint8_t *p = malloc(n ? n : 1);
		tern_table_schema schema;
		tern_table_stats stats;
		tn_ps_answer answer;
		tn_ps_batch batch;
		uint64_t used;
		char name[TERN_TABLE_NAME_MAX];

		for (uint64_t i = 0; i < n; i++)
			p[i] = (uint8_t)(tn_rand_below(&rand, 4) ? tn_rand_below(&rand, 4)
								 : tn_rand_next(&rand));
		if (n)
			p[0] = TN_PS_VERSION;
		if (tn_ps_batch_head(p, n, &batch) &&
		    tn_ps_batch_body(p, n, tn_rand_below(&rand, 300), &batch) && batch.count)
			assert_true(batch.keys + 8 * batch.count <= p + n);
		(void)tn_ps_answer_decode(p, n, tn_rand_below(&rand, 100), round % 2, tn_rand_below(&rand, 9),
					  &answer);
		(void)tn_ps_schema_decode(p, n, &schema, &used);
		(void)tn_ps_stats_decode(p, n, &stats);
		(void)tn_ps_name_decode(p, n, name, sizeof(name));
		free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batch_golden), cmocka_unit_test(batch_round),
		cmocka_unit_test(batch_bags),   cmocka_unit_test(batch_bounds),
		cmocka_unit_test(answer_round), cmocka_unit_test(schema_round),
		cmocka_unit_test(names),        cmocka_unit_test(junk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

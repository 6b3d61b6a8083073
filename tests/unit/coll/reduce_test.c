/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions against plain loops, at lengths around the vectors', with NaN; heads and hellos back and forth, and cut. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "cmocka_all.h"
#include "coll/comm.h"

static void test_lengths(void **state)
{
	(void)state;
	for (uint64_t n = 0; n < 70; n++) {
		float a[71], b[71], c[71];
		uint8_t p[71], q[71], r[71];

		for (uint64_t i = 0; i < 71; i++) {
			c[i] = a[i] = (float)i * 0.3f;
			b[i] = 5.1f - (float)i;
			r[i] = p[i] = (uint8_t)(i * 9);
			q[i] = (uint8_t)(200 + i);
		}
		tn_coll_reduce(a, b, n, TERN_F32, TERN_SUM);
		tn_coll_reduce(p, q, n, TERN_U8, TERN_MAX);
		for (uint64_t i = 0; i < 71; i++) {
			assert_true(a[i] == (i < n ? c[i] + b[i] : c[i]));
			assert_int_equal(p[i], i < n && q[i] > r[i] ? q[i] : r[i]);
		}
	}
}

static void test_types(void **state)
{
	uint16_t h = tn_f16_from_f32(1.5f), g = tn_f16_from_f32(2.25f), b = tn_bf16_from_f32(-3),
		 d = tn_bf16_from_f32(8);
	int8_t x = -5, y = 3;
	uint64_t u = 1, v = UINT64_MAX;
	float nan = NAN, one = 1;

	(void)state;
	tn_coll_reduce(&h, &g, 1, TERN_F16, TERN_SUM);
	assert_true(tn_f16_to_f32(h) == 3.75f);
	tn_coll_reduce(&b, &d, 1, TERN_BF16, TERN_PROD);
	assert_true(tn_bf16_to_f32(b) == -24);
	tn_coll_divide(&b, 1, TERN_BF16, 4);
	assert_true(tn_bf16_to_f32(b) == -6);
	tn_coll_reduce(&x, &y, 1, TERN_I8, TERN_MAX);
	assert_int_equal(x, 3);
	tn_coll_reduce(&u, &v, 1, TERN_U64, TERN_MIN);
	assert_true(u == 1);
	tn_coll_reduce(&u, &v, 1, TERN_U64, TERN_SUM); /* wraps */
	assert_true(u == 0);
	for (int reduce = TERN_MIN; reduce <= TERN_MAX; reduce++) {
		float a = one, c = nan;

		tn_coll_reduce(&a, &nan, 1, TERN_F32, (tern_reduce)reduce);
		tn_coll_reduce(&c, &one, 1, TERN_F32, (tern_reduce)reduce);
		assert_true(isnan(a) && isnan(c));
	}
	assert_false(tn_coll_can_reduce(TERN_I64, TERN_AVG));
	assert_true(tn_coll_can_reduce(TERN_BF16, TERN_AVG));
	assert_false(tn_coll_can_reduce((tern_dtype)0, TERN_SUM));
}

static void test_wire(void **state)
{
	tn_coll_head in = {1, TN_COLL_BROADCAST, 2, 3, 4, 5, 6, 7, 8, 9, 10}, out;
	tn_coll_hello hello = {.rank = 3, .size = 9, .name = "a job"}, back;
	uint8_t bytes[TN_COLL_HELLO_MAX];
	uint32_t n;

	(void)state;
	tn_coll_head_write(bytes, &in);
	assert_true(tn_coll_head_read(bytes, &out));
	assert_memory_equal(&in, &out, sizeof(in));
	bytes[63] = 1;
	assert_false(tn_coll_head_read(bytes, &out));
	bytes[63] = 0;
	bytes[0] = 9;
	assert_false(tn_coll_head_read(bytes, &out));
	n = tn_coll_hello_write(bytes, &hello);
	assert_true(tn_coll_hello_read(bytes, n, &back));
	assert_string_equal(back.name, "a job");
	assert_int_equal(back.rank, 3);
	for (uint32_t i = 0; i < n; i++)
		assert_false(tn_coll_hello_read(bytes, i, &back));
	hello.rank = 9;
	n = tn_coll_hello_write(bytes, &hello);
	assert_false(tn_coll_hello_read(bytes, n, &back));
}

static void test_blocks(void **state)
{
	(void)state;
	for (uint64_t count = 0; count < 50; count++)
		for (uint32_t n = 1; n < 9; n++) {
			assert_true(tn_coll_block(count, n, 0) == 0 && tn_coll_block(count, n, n) == count);
			for (uint32_t i = 0; i < n; i++)
				assert_true(tn_coll_block(count, n, i) <= tn_coll_block(count, n, i + 1));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_wire),
		cmocka_unit_test(test_blocks),
	};

	return RUN(tests);
}

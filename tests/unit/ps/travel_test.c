/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows on their way: golden bytes of int8, its error bound on random rows of all sizes, rows that have no scale, and
 * bytes at any alignment.
 */
#include <math.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/travel.h"

static void golden(void **state)
{
	static const float row[4] = {-127, 63.5f, 0.49f, 127};
	static const uint8_t bytes[8] = {0, 0, 0x80, 0x3f, 0x81, 64, 0, 127}; /* 63.5: to even */
	uint8_t out[8];
	float back[4];

	(void)state;
	assert_int_equal(tn_ps_travel_bytes(TERN_I8, 4), 8);
	assert_int_equal(tn_ps_travel_bytes(TERN_BF16, 4), 8);
	tn_ps_travel_pack(out, TERN_I8, row, 4);
	assert_memory_equal(out, bytes, 8);
	tn_ps_travel_unpack(back, out, TERN_I8, 4);
	assert_true(back[0] == -127 && back[1] == 64 && back[2] == 0 && back[3] == 127);
}

static void bound(void **state)
{
	tn_rand rand = {7};
	uint8_t out[1000 * 4 + 8];
	float row[1000], back[1000];

	(void)state;
	for (unsigned round = 0; round < 3000; round++) {
		uint32_t dim = 1 + tn_rand_below(&rand, 1000);
		float size = ldexpf(1, (int)tn_rand_below(&rand, 200) - 100), most = 0;
		unsigned shift = tn_rand_below(&rand, 4);

		for (uint32_t i = 0; i < dim; i++) {
			row[i] = ((float)tn_rand_below(&rand, 2001) - 1000) / 997 * size;
			most = fmaxf(most, fabsf(row[i]));
		}
		tn_ps_travel_pack(out + shift, TERN_I8, row, dim);
		tn_ps_travel_unpack(back, out + shift, TERN_I8, dim);
		for (uint32_t i = 0; i < dim; i++)
			assert_true(fabsf(back[i] - row[i]) <= most / 254 * 1.00001f);
	}
}

static void without_a_scale(void **state)
{
	float row[3] = {0, 0, 0}, back[3];
	uint8_t out[16];

	(void)state;
	tn_ps_travel_pack(out, TERN_I8, row, 3);
	tn_ps_travel_unpack(back, out, TERN_I8, 3);
	assert_true(back[0] == 0 && back[1] == 0 && back[2] == 0);
	row[1] = 1e-42f; /* its scale has no inverse */
	tn_ps_travel_pack(out, TERN_I8, row, 3);
	tn_ps_travel_unpack(back, out, TERN_I8, 3);
	assert_true(back[0] == 0 && fabsf(back[1] - row[1]) <= row[1] && back[2] == 0);
	row[1] = 3e38f;
	row[2] = -3.4e38f;
	tn_ps_travel_pack(out, TERN_I8, row, 3);
	tn_ps_travel_unpack(back, out, TERN_I8, 3);
	assert_true(fabsf(back[1] - row[1]) <= 3.4e38f / 254 * 1.001f && isfinite(back[2]));
	for (unsigned i = 0; i < 2; i++) {
		row[1] = i ? NAN : -INFINITY;
		tn_ps_travel_pack(out, TERN_I8, row, 3);
		tn_ps_travel_unpack(back, out, TERN_I8, 3);
		assert_true(isnan(back[0]) && isnan(back[1]) && isnan(back[2]));
	}
}

static void any_alignment(void **state)
{
	static const tern_dtype types[] = {TERN_F32, TERN_BF16, TERN_F16, TERN_I8};
	float row[600], back[600];
	uint8_t way[2408], moved[2412];

	(void)state;
	for (unsigned i = 0; i < 600; i++)
		row[i] = (float)i - 300;
	for (unsigned t = 0; t < 4; t++) {
		uint64_t n = tn_ps_travel_bytes(types[t], 600);
		float there[600];

		tn_ps_travel_pack(way, types[t], row, 600);
		tn_ps_travel_unpack(there, way, types[t], 600);
		for (unsigned shift = 1; shift < 4; shift++) {
			memcpy(moved + shift, way, n);
			tn_ps_travel_unpack(back, moved + shift, types[t], 600);
			assert_memory_equal(back, there, sizeof(back));
		}
	}
	assert_true(tn_ps_travels(TERN_I8) && !tn_ps_travels(TERN_U8) && !tn_ps_travels(0) &&
		    !tn_ps_travels(255));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),
		cmocka_unit_test(bound),
		cmocka_unit_test(without_a_scale),
		cmocka_unit_test(any_alignment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

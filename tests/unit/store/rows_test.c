/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of rows: every 16-bit pattern, roundings at the edges, vectors against single elements. */
#include "cmocka_all.h"

#include <math.h>
#include <string.h>

#include "base/rand.h"
#include "store/rows.h"

static uint32_t bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	return u;
}

static float of(uint32_t u)
{
	float x;

	memcpy(&x, &u, 4);
	return x;
}

static void every_half_survives_the_way_there_and_back(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float b = tn_bf16_to_f32((uint16_t)h), f = tn_f16_to_f32((uint16_t)h);

		assert_int_equal(isnan(f), (h & 0x7c00) == 0x7c00 && (h & 0x3ff));
		if (isnan(b))
			assert_true(isnan(tn_bf16_to_f32(tn_bf16_from_f32(b))));
		else
			assert_int_equal(tn_bf16_from_f32(b), h);
		if (isnan(f))
			assert_true(isnan(tn_f16_to_f32(tn_f16_from_f32(f))));
		else
			assert_int_equal(tn_f16_from_f32(f), h);
	}
	assert_true(tn_f16_to_f32(0x3c00) == 1.0f && tn_f16_to_f32(0x0001) == 0x1p-24f);
	assert_true(tn_f16_to_f32(0x7bff) == 65504.0f && tn_f16_to_f32(0xfc00) == -INFINITY);
}

static void rounding_is_to_nearest_even(void **state)
{
	(void)state;
	assert_int_equal(tn_bf16_from_f32(of(0x3f808000)), 0x3f80); /* a tie, down to even */
	assert_int_equal(tn_bf16_from_f32(of(0x3f818000)), 0x3f82); /* a tie, up to even */
	assert_int_equal(tn_bf16_from_f32(of(0x3f808001)), 0x3f81);
	assert_int_equal(tn_bf16_from_f32(of(0x7f7fffff)), 0x7f80); /* to infinity */
	assert_int_equal(tn_f16_from_f32(65519.0f), 0x7bff);
	assert_int_equal(tn_f16_from_f32(65520.0f), 0x7c00);
	assert_int_equal(tn_f16_from_f32(0x1p-25f), 0); /* a tie between 0 and the least denormal */
	assert_int_equal(tn_f16_from_f32(0x1.8p-24f), 2);
	assert_int_equal(tn_f16_from_f32(0x1.002p0f), 0x3c00);
	assert_int_equal(tn_f16_from_f32(0x1.006p0f), 0x3c02);
	assert_int_equal(tn_f16_from_f32(-0.0f), 0x8000);
}

/* Whoever rounds must land on one of the two neighbours, the nearer one. */
static void nearest_of_random_numbers(void **state)
{
	tn_rand r = {1};

	(void)state;
	for (int i = 0; i < 200000; i++) {
		float x = of((uint32_t)tn_rand_next(&r));
		uint16_t h;
		double d;

		if (isnan(x) || fabsf(x) > 65000)
			continue;
		h = tn_f16_from_f32(x);
		d = fabs((double)x - (double)tn_f16_to_f32(h));
		for (int step = -1; step <= 1; step += 2) {
			uint16_t other = (uint16_t)(h + step);

			if ((other ^ h) & 0x8000 || (other & 0x7c00) == 0x7c00)
				continue;
			assert_true(d <= fabs((double)x - (double)tn_f16_to_f32(other)));
		}
	}
}

static void rows_are_as_their_elements(void **state)
{
	tn_rand r = {2};
	float in[131], out[131];
	uint16_t half[131];

	(void)state;
	for (int round = 0; round < 2000; round++) {
		uint32_t n = 1 + (uint32_t)tn_rand_below(&r, 131);

		for (uint32_t i = 0; i < n; i++)
			in[i] = of((uint32_t)tn_rand_next(&r));
		for (int d = 0; d < 2; d++) {
			tn_rows_from_f32(half, d ? TERN_F16 : TERN_BF16, in, n);
			tn_rows_to_f32(out, half, d ? TERN_F16 : TERN_BF16, n);
			for (uint32_t i = 0; i < n; i++) {
				assert_int_equal(half[i],
						 d ? tn_f16_from_f32(in[i]) : tn_bf16_from_f32(in[i]));
				assert_int_equal(bits(out[i]),
						 bits(d ? tn_f16_to_f32(half[i]) : tn_bf16_to_f32(half[i])));
			}
		}
	}
}

static void finite_looks_at_each_element(void **state)
{
	float row[70];

	(void)state;
	for (uint32_t n = 1; n <= 70; n++) {
		for (uint32_t i = 0; i < 70; i++)
			row[i] = i < n ? 3.4e38f : NAN;
		assert_true(tn_rows_finite(row, n));
		for (uint32_t i = 0; i < n; i++) {
			row[i] = i & 1 ? NAN : -INFINITY;
			assert_false(tn_rows_finite(row, n));
			row[i] = 0;
		}
	}
	assert_true(tn_rows_finite(row, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_half_survives_the_way_there_and_back),
		cmocka_unit_test(rounding_is_to_nearest_even),
		cmocka_unit_test(nearest_of_random_numbers),
		cmocka_unit_test(rows_are_as_their_elements),
		cmocka_unit_test(finite_looks_at_each_element),
	};

	return RUN(tests);
}

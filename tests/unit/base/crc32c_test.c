/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C: the vectors of RFC 3720, B.4; the instruction against the tables; pieces against the whole. */
#include "base/crc32c.h"

#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

static void vectors(void **state)
{
	uint8_t bytes[32];

	(void)state;
	assert_int_equal(tn_crc32c(0, "123456789", 9), 0xe3069283u);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(tn_crc32c(0, bytes, 32), 0x8a9136aau);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(tn_crc32c(0, bytes, 32), 0x62a8ab43u);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(tn_crc32c(0, bytes, 32), 0x46dd794eu);
	assert_int_equal(tn_crc32c_plain(0, bytes, 32), 0x46dd794eu);
	assert_int_equal(tn_crc32c(7, bytes, 0), 7);
	print_message("by %s\n", tn_crc32c_how());
}

/* One bit at a time: the definition. */
static uint32_t slow(uint32_t crc, const uint8_t *at, uint64_t bytes)
{
	crc = ~crc;
	while (bytes--) {
		crc ^= *at++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

static void all_agree(void **state)
{
	tn_rand rand = {.state = 3};
	static uint8_t bytes[600];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)tn_rand_below(&rand, 256);
	for (int i = 0; i < 3000; i++) {
		uint64_t at = tn_rand_below(&rand, 64), n = tn_rand_below(&rand, 500);
		uint64_t cut = n ? tn_rand_below(&rand, (uint32_t)n) : 0;
		uint32_t whole = slow(9, bytes + at, n);

		assert_int_equal(tn_crc32c(9, bytes + at, n), whole);
		assert_int_equal(tn_crc32c_plain(9, bytes + at, n), whole);
		assert_int_equal(tn_crc32c(tn_crc32c(9, bytes + at, cut), bytes + at + cut, n - cut), whole);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(all_agree)};

	return RUN(tests);
}

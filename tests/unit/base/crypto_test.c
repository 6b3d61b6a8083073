/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/crypto.h: published vectors, and that a comparison sees each bit.
 */
#include "base/crypto.h"

#include <stdio.h>
#include <string.h>

#include "cmocka_all.h"

static void from_hex(const char *hex, uint8_t *out)
{
	for (; *hex; hex += 2, out++) {
		unsigned byte;

		assert_int_equal(sscanf(hex, "%2x", &byte), 1);
		*out = (uint8_t)byte;
	}
}

static void sha256_vectors(void **state)
{
	uint8_t want[32], got[32];

	(void)state;
	/* FIPS 180-4, "abc" and the empty message */
	from_hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", want);
	assert_ok(tn_sha256("abc", 3, got));
	assert_memory_equal(got, want, 32);
	from_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", want);
	assert_ok(tn_sha256("", 0, got));
	assert_memory_equal(got, want, 32);
}

static void hmac_vectors(void **state)
{
	uint8_t key[131], data[50], want[32], got[32];
	const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";

	(void)state;
	/* RFC 4231, test cases 1, 3 and 6 */
	memset(key, 0x0b, 20);
	from_hex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", want);
	assert_ok(tn_hmac_sha256(key, 20, "Hi There", 8, got));
	assert_memory_equal(got, want, 32);
	memset(key, 0xaa, sizeof(key));
	memset(data, 0xdd, sizeof(data));
	from_hex("773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe", want);
	assert_ok(tn_hmac_sha256(key, 20, data, 50, got));
	assert_memory_equal(got, want, 32);
	from_hex("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54", want);
	assert_ok(tn_hmac_sha256(key, 131, text, strlen(text), got));
	assert_memory_equal(got, want, 32);
}

static void an_empty_key_is_a_key(void **state)
{
	uint8_t want[32], got[32];

	(void)state;
	from_hex("b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad", want);
	assert_ok(tn_hmac_sha256(NULL, 0, NULL, 0, got));
	assert_memory_equal(got, want, 32);
}

static void comparison_sees_each_bit(void **state)
{
	uint8_t a[32] = {0}, b[32] = {0};

	(void)state;
	assert_true(tn_crypto_equal(a, b, 32));
	assert_true(tn_crypto_equal(a, b, 0));
	for (unsigned bit = 0; bit < 256; bit++) {
		b[bit / 8] = (uint8_t)(1u << bit % 8);
		assert_false(tn_crypto_equal(a, b, 32));
		b[bit / 8] = 0;
	}
	memset(a, 7, sizeof(a));
	tn_crypto_wipe(a, sizeof(a));
	assert_memory_equal(a, b, 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sha256_vectors),
		cmocka_unit_test(hmac_vectors),
		cmocka_unit_test(an_empty_key_is_a_key),
		cmocka_unit_test(comparison_sees_each_bit),
	};

	return RUN(tests);
}

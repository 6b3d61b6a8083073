/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/wirebuf.h: round trips, byte order, and that no length leads past the end.
 */
#include "base/wirebuf.h"

#include "base/rand.h"
#include <string.h>

#include "cmocka_all.h"

static void round_trip_and_byte_order(void **state)
{
	uint8_t buf[64];
	char text[8];
	tn_writer w;
	tn_reader r;

	(void)state;
	tn_writer_init(&w, buf, sizeof(buf));
	tn_put_u8(&w, 0x12);
	tn_put_u16(&w, 0x3456);
	tn_put_u32(&w, 0x789abcde);
	tn_put_u64(&w, 0x0123456789abcdefull);
	tn_put_str(&w, "hello");
	tn_put_zeros(&w, 3);
	tn_put_bytes(&w, NULL, 0);
	assert_false(w.bad);
	assert_int_equal(w.at, 1 + 2 + 4 + 8 + 7 + 3);
	assert_memory_equal(
		buf, "\x12\x56\x34\xde\xbc\x9a\x78\xef\xcd\xab\x89\x67\x45\x23\x01\x05\x00hello\0\0\0", w.at);
	tn_patch_u32(&w, 3, 1);
	tn_reader_init(&r, buf, w.at);
	assert_int_equal(tn_get_u8(&r), 0x12);
	assert_int_equal(tn_get_u16(&r), 0x3456);
	assert_int_equal(tn_get_u32(&r), 1);
	assert_true(tn_get_u64(&r) == 0x0123456789abcdefull);
	tn_get_str(&r, text, sizeof(text));
	assert_string_equal(text, "hello");
	assert_false(tn_reader_done(&r));
	assert_int_equal(tn_reader_left(&r), 3);
	assert_non_null(tn_get_view(&r, 3));
	assert_true(tn_reader_done(&r));
}

static void overflow_is_sticky_and_harmless(void **state)
{
	uint8_t buf[16];
	tn_writer w;
	tn_reader r;

	(void)state;
	memset(buf, 0xee, sizeof(buf));
	tn_writer_init(&w, buf, 6);
	tn_put_u32(&w, 1);
	tn_put_u32(&w, 2);
	assert_true(w.bad);
	tn_put_u8(&w, 3);
	assert_true(w.bad);
	assert_int_equal(buf[4], 0xee);
	tn_patch_u32(&w, 0, 9);
	tn_reader_init(&r, buf, 6);
	tn_get_u32(&r);
	assert_int_equal(tn_get_u64(&r), 0);
	assert_true(r.bad);
	assert_int_equal(tn_get_u8(&r), 0);
	assert_null(tn_get_view(&r, 0));
	tn_writer_init(&w, buf, 16);
	assert_null(tn_put_space(&w, UINT64_MAX));
	tn_reader_init(&r, buf, 16);
	tn_get_u8(&r);
	assert_null(tn_get_view(&r, UINT64_MAX));
}

static void strings_are_bounded(void **state)
{
	char text[6] = "?";
	tn_reader r;

	(void)state;
	tn_reader_init(&r, "\x05\x00hello", 7);
	tn_get_str(&r, text, 5);
	assert_true(r.bad);
	assert_string_equal(text, "");
	tn_reader_init(&r, "\x05\x00hel", 5);
	tn_get_str(&r, text, sizeof(text));
	assert_true(r.bad);
	tn_reader_init(&r, "\x03\x00h\0l", 5);
	tn_get_str(&r, text, sizeof(text));
	assert_true(r.bad);
	assert_string_equal(text, "");
	tn_reader_init(&r, "\x05\x00hello", 7);
	tn_get_str(&r, text, sizeof(text));
	assert_true(tn_reader_done(&r));
	assert_string_equal(text, "hello");
}

/* Random reads over exact heap blocks: the address sanitizer watches the end. */
static void junk_never_leads_past_the_end(void **state)
{
	tn_rand rand = {23};

	(void)state;
	for (int round = 0; round < 2000; round++) {
		uint64_t n = tn_rand_below(&rand, 40);
		uint8_t *block = test_malloc(n + 1);
		char text[16];
		tn_reader r;

		for (uint64_t i = 0; i < n; i++)
			block[i] = (uint8_t)tn_rand_below(&rand, 20);
		tn_reader_init(&r, block, n);
		while (!r.bad) {
			switch (tn_rand_below(&rand, 5)) {
			case 0:
				tn_get_u8(&r);
				break;
			case 1:
				tn_get_u32(&r);
				break;
			case 2:
				tn_get_u64(&r);
				break;
			case 3:
				tn_get_str(&r, text, sizeof(text));
				break;
			default:
				tn_get_bytes(&r, text, tn_rand_below(&rand, sizeof(text)));
			}
			assert_true(r.at <= n);
		}
		test_free(block);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip_and_byte_order),
		cmocka_unit_test(overflow_is_sticky_and_harmless),
		cmocka_unit_test(strings_are_bounded),
		cmocka_unit_test(junk_never_leads_past_the_end),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight tables, eight bytes a step (M. Kounavis, F. Berry, 2005), and the instructions. The tables are made at
 * load: 8 KiB that no reader ever sees half made.
 * Threads: any. Tests: tests/unit/base/crc32c_test.c.
 */
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* 0x1edc6f41 with its bits turned round */

static uint32_t tables[8][256];

__attribute__((constructor)) static void make_tables(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		tables[0][i] = crc;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int t = 1; t < 8; t++)
			tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
}

static uint64_t load_little(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	word = __builtin_bswap64(word);
#endif
	return word;
}

uint32_t tn_crc32c_plain(uint32_t crc, const void *data, uint64_t bytes)
{
	const uint8_t *at = data;

	crc = ~crc;
	for (; bytes >= 8; bytes -= 8, at += 8) {
		uint64_t word = load_little(at) ^ crc;

		crc = 0;
		for (int t = 0; t < 8; t++)
			crc ^= tables[7 - t][word >> 8 * t & 0xff];
	}
	while (bytes--)
		crc = crc >> 8 ^ tables[0][(crc ^ *at++) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *at,
								 uint64_t bytes)
{
	uint64_t wide = ~crc;

	for (; bytes >= 8; bytes -= 8, at += 8)
		wide = __builtin_ia32_crc32di(wide, load_little(at));
	crc = (uint32_t)wide;
	while (bytes--)
		crc = __builtin_ia32_crc32qi(crc, *at++);
	return ~crc;
}

static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}

#define HOW "sse4.2"

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

static uint32_t by_instruction(uint32_t crc, const uint8_t *at, uint64_t bytes)
{
	crc = ~crc;
	for (; bytes >= 8; bytes -= 8, at += 8)
		crc = __crc32cd(crc, load_little(at));
	while (bytes--)
		crc = __crc32cb(crc, *at++);
	return ~crc;
}

static bool has_instruction(void)
{
	return true;
}

#define HOW "armv8"

#else

#define by_instruction(crc, at, bytes) tn_crc32c_plain(crc, at, bytes)
#define HOW                            "table"

static bool has_instruction(void)
{
	return false;
}

#endif

uint32_t tn_crc32c(uint32_t crc, const void *data, uint64_t bytes)
{
	return has_instruction() ? by_instruction(crc, data, bytes) : tn_crc32c_plain(crc, data, bytes);
}

const char *tn_crc32c_how(void)
{
	return has_instruction() ? HOW : "table";
}

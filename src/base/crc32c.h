/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli, RFC 3720): finds what memory, a NIC or a wire changed. No protection against people.
 * By the processor's instruction where it has one (SSE 4.2, ARMv8 CRC), else by tables.
 *
 *	crc = tn_crc32c(tn_crc32c(0, a, n), b, m)      of a and b one after the other
 *
 * Pure. Threads: any. Tests: tests/unit/base/crc32c_test.c.
 */
#ifndef TN_BASE_CRC32C_H
#define TN_BASE_CRC32C_H

#include <stdint.h>

uint32_t tn_crc32c(uint32_t crc, const void *data, uint64_t bytes);
/* Without the instruction: for tests. */
uint32_t tn_crc32c_plain(uint32_t crc, const void *data, uint64_t bytes);
/* "sse4.2", "armv8" or "table". */
const char *tn_crc32c_how(void);

#endif

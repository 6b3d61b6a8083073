/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few pieces of cryptography that tern uses: SHA-256, HMAC-SHA256 and a comparison whose time does not
 * depend on the contents. libcrypto does the work. Pure computing: no OS, no clock, no state of its own.
 *
 * Threads: any. Tests: tests/unit/base/crypto_test.c (RFC 4231, FIPS 180-4 vectors).
 */
#ifndef TN_BASE_CRYPTO_H
#define TN_BASE_CRYPTO_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#define TN_SHA256_BYTES 32
#define TN_HMAC_BYTES   32

/* TERN_E_INTERNAL only if libcrypto refuses (FIPS policy, no memory). */
tern_status tn_sha256(const void *data, uint64_t bytes, uint8_t digest[TN_SHA256_BYTES]);
tern_status tn_hmac_sha256(const void *key, uint64_t key_bytes, const void *data, uint64_t bytes,
			   uint8_t mac[TN_HMAC_BYTES]);
/* True if equal; the time depends on bytes alone. */
bool tn_crypto_equal(const void *a, const void *b, uint64_t bytes);
/* Overwrite a secret; the compiler may not drop it. */
void tn_crypto_wipe(void *secret, uint64_t bytes);

#endif

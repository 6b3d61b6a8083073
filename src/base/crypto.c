/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thin cover over libcrypto's one-shot functions. Must not keep keys.
 * Threads: any. Tests: tests/unit/base/crypto_test.c.
 */
#include "base/crypto.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/fail.h"

tern_status tn_sha256(const void *data, uint64_t bytes, uint8_t digest[TN_SHA256_BYTES])
{
	if (EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL) != 1)
		return tn_fail(TERN_E_INTERNAL, "libcrypto refuses SHA-256");
	return TERN_OK;
}

tern_status tn_hmac_sha256(const void *key, uint64_t key_bytes, const void *data, uint64_t bytes,
			   uint8_t mac[TN_HMAC_BYTES])
{
	/* libcrypto takes a NULL key for "as before": an empty one needs an address. */
	const void *k = key_bytes ? key : "";
	unsigned length = TN_HMAC_BYTES;

	if (key_bytes > INT_MAX)
		return tn_fail(TERN_E_INVALID, "a key of %llu bytes", (unsigned long long)key_bytes);
	if (!HMAC(EVP_sha256(), k, (int)key_bytes, bytes ? data : "", bytes, mac, &length))
		return tn_fail(TERN_E_INTERNAL, "libcrypto refuses HMAC-SHA256");
	TN_ASSERT(length == TN_HMAC_BYTES);
	return TERN_OK;
}

bool tn_crypto_equal(const void *a, const void *b, uint64_t bytes)
{
	return CRYPTO_memcmp(a, b, bytes) == 0;
}

void tn_crypto_wipe(void *secret, uint64_t bytes)
{
	OPENSSL_cleanse(secret, bytes);
}

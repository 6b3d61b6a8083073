/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept buffers. Each place holds one or none, and whoever exchanges it has it: no place is looked into, so that
 * there is nothing to race for. See spare.h. Tests: tests/unit/rpc/spare_test.c.
 */
#include "rpc/spare.h"

#include <stdalign.h>
#include <stdlib.h>

#include "base/check.h"

#define LEAST_BYTES 1024u

/* In front of each buffer. */
typedef struct room {
	alignas(16) uint64_t bytes;
} room;

/* Sizes that are kept are powers of two: any of them soon fits what is usual. */
static uint64_t rounded(uint64_t bytes)
{
	uint64_t size = LEAST_BYTES;

	if (bytes > TN_RPC_SPARE_BYTES)
		return bytes;
	while (size < bytes)
		size *= 2;
	return size;
}

/* One that is kept and large enough. One that is too small makes way for a larger one. */
static room *find(tn_rpc_spare *spare, uint64_t bytes)
{
	for (unsigned i = 0; i < TN_RPC_SPARES; i++) {
		room *r;

		if (!atomic_load_explicit(&spare->at[i], memory_order_relaxed))
			continue;
		r = atomic_exchange_explicit(&spare->at[i], NULL, memory_order_acquire);
		if (!r)
			continue;
		if (r->bytes >= bytes)
			return r;
		free(r);
		return NULL;
	}
	return NULL;
}

void *tn_rpc_spare_take(tn_rpc_spare *spare, uint64_t bytes)
{
	room *r = bytes <= TN_RPC_SPARE_BYTES ? find(spare, bytes) : NULL;

	if (!r) {
		uint64_t size = rounded(bytes);

		r = malloc(sizeof(*r) + size);
		if (!r)
			return NULL;
		r->bytes = size;
	}
	TN_ASSERT(r->bytes >= bytes);
	return r + 1;
}

void tn_rpc_spare_give(tn_rpc_spare *spare, void *buffer)
{
	room *r = buffer ? (room *)buffer - 1 : NULL;

	if (!r)
		return;
	for (unsigned i = 0; TN_RPC_KEEP_SPARES && r->bytes <= TN_RPC_SPARE_BYTES && i < TN_RPC_SPARES; i++) {
		void *none = NULL;

		if (!atomic_load_explicit(&spare->at[i], memory_order_relaxed) &&
		    atomic_compare_exchange_strong_explicit(&spare->at[i], &none, r, memory_order_release,
							    memory_order_relaxed))
			return;
	}
	free(r);
}

void tn_rpc_spare_end(tn_rpc_spare *spare)
{
	for (unsigned i = 0; i < TN_RPC_SPARES; i++)
		free(atomic_exchange_explicit(&spare->at[i], NULL, memory_order_acquire));
}

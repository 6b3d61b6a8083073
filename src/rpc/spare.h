/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of arguments and answers that are too large for their slot: a few that were used are kept for the next ones,
 * so that calls in a steady state allocate nothing. None beyond TN_RPC_SPARE_BYTES is kept.
 *
 * With AddressSanitizer nothing is kept, so that it sees every use after the end. Threads: any, without locks.
 * Tests: tests/unit/rpc/spare_test.c.
 */
#ifndef TN_RPC_SPARE_H
#define TN_RPC_SPARE_H

#include <stdatomic.h>
#include <stdint.h>

#define TN_RPC_SPARES      16u
#define TN_RPC_SPARE_BYTES 65536u

#ifdef __SANITIZE_ADDRESS__
#define TN_RPC_KEEP_SPARES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN_RPC_KEEP_SPARES 0
#endif
#endif
#ifndef TN_RPC_KEEP_SPARES
#define TN_RPC_KEEP_SPARES 1
#endif

typedef struct tn_rpc_spare {
	_Atomic(void *) at[TN_RPC_SPARES];
} tn_rpc_spare;

/* Room for so many bytes, until give. NULL: out of memory. */
void *tn_rpc_spare_take(tn_rpc_spare *spare, uint64_t bytes);
/* buffer may be NULL. */
void tn_rpc_spare_give(tn_rpc_spare *spare, void *buffer);
/* Free what is kept. */
void tn_rpc_spare_end(tn_rpc_spare *spare);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of flows and the hello of a rank: docs/protocol/coll.md. Pure. Threads: any. Tests: tests/unit/coll/reduce_test.c.
 */
#ifndef TN_COLL_WIRE_H
#define TN_COLL_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#define TN_COLL_VERSION   1u
#define TN_COLL_HEAD      64u
#define TN_COLL_HELLO_MAX 128u

typedef enum tn_coll_operation {
	TN_COLL_ALL_REDUCE = 1,
	TN_COLL_REDUCE_SCATTER,
	TN_COLL_REDUCE_TO,
	TN_COLL_ALL_GATHER,
	TN_COLL_ALL_TO_ALL,
	TN_COLL_BROADCAST,
	TN_COLL_BARRIER,
	TN_COLL_MESSAGE,
} tn_coll_operation;

typedef struct tn_coll_head {
	uint8_t version, operation, dtype, reduce;
	uint32_t rank;   /* that sends */
	uint64_t number; /* of the operation in the communicator, of the message between the two */
	uint64_t flow;   /* of the pipe */
	uint64_t total;  /* what the operation is about: bytes */
	uint64_t bytes;  /* of this flow */
	uint32_t step, chunk;
} tn_coll_head;

void tn_coll_head_write(uint8_t out[TN_COLL_HEAD], const tn_coll_head *head);
/* False: of another version, or not zero where it has to be. */
bool tn_coll_head_read(const uint8_t in[TN_COLL_HEAD], tn_coll_head *head);

typedef struct tn_coll_hello {
	uint32_t rank, size;
	char name[64];
} tn_coll_hello;

/* Bytes written. */
uint32_t tn_coll_hello_write(uint8_t out[TN_COLL_HELLO_MAX], const tn_coll_hello *hello);
bool tn_coll_hello_read(const void *in, uint64_t bytes, tn_coll_hello *hello);

/* "all-reduce", ... "?" */
const char *tn_coll_operation_name(uint8_t operation);
/* "coll.all_reduce", as spans name it. */
const char *tn_coll_operation_kind(uint8_t operation);

#endif

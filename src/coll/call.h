/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations begin, and what they check (comm.c).
 *
 * Threads: the communicator's. Tests: tests/unit/coll/coll_test.c.
 */
#ifndef TN_COLL_CALL_H
#define TN_COLL_CALL_H

#include "coll/comm.h"

/* An operation begins: refused if one before failed. */
tern_status tn_coll_begin(tern_communicator *comm, tn_coll_operation operation, uint64_t bytes,
			  tern_dtype dtype, tern_reduce reduce);
/* For the attribute cleanup: the operation that began is over. */
void tn_coll_over(tern_communicator **comm);
#define TN_COLL_TIMED(comm) __attribute__((cleanup(tn_coll_over), unused)) tern_communicator *timed = (comm)
tern_status tn_coll_check_reduce(const tern_communicator *comm, uint64_t count, tern_dtype dtype,
				 tern_reduce reduce);
tern_status tn_coll_check_root(const tern_communicator *comm, uint32_t rank);
/* Registered memory that stays until a larger one is wanted. */
tern_status tn_coll_scratch(tern_communicator *comm, uint64_t bytes, uint8_t **scratch);

#endif

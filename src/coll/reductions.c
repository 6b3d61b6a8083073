/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all-reduce, reduce-scatter, reduce.
 *
 * Threads: <tern/coll.h>. Tests: tests/unit/coll/coll_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "coll/call.h"

/* Through the host first, then between hosts, so that each byte of a host's share crosses the network once. */
static tern_status two_levels(tern_communicator *comm, uint8_t *buf, uint64_t count, uint64_t each)
{
	const tn_coll_group *near = &comm->near;
	uint64_t from = tn_coll_block(count, near->n, near->me),
		 to = tn_coll_block(count, near->n, near->me + 1);

	TN_TRY(tn_coll_ring_scatter(comm, near, buf, count, each));
	comm->call.step = 10000;
	TN_TRY(tn_coll_all_reduce(comm, &comm->far, buf + from * each, to - from, each));
	comm->call.step = 20000;
	return tn_coll_ring_gather(comm, near, buf, count, each);
}

static bool is_worth_levels(const tern_communicator *comm, uint64_t count, uint64_t each)
{
	return comm->far.n > 1 && count >= comm->near.n && count * each > TN_COLL_SMALL;
}

tern_status tern_all_reduce(tern_communicator *comm, const void *send, void *recv, uint64_t count,
			    tern_dtype dtype, tern_reduce reduce)
{
	uint64_t each = tern_dtype_bytes(dtype);

	TN_TRY(tn_coll_check_reduce(comm, count, dtype, reduce));
	TN_TRY(tn_coll_begin(comm, TN_COLL_ALL_REDUCE, count * each, dtype, reduce));
	TN_COLL_TIMED(comm);
	if (recv != send && count)
		memcpy(recv, send, count * each);
	if (is_worth_levels(comm, count, each))
		TN_TRY(two_levels(comm, recv, count, each));
	else
		TN_TRY(tn_coll_all_reduce(comm, &comm->all, recv, count, each));
	if (reduce == TERN_AVG)
		tn_coll_divide(recv, count, dtype, comm->size);
	return TERN_OK;
}

tern_status tern_reduce_scatter(tern_communicator *comm, const void *send, void *recv, uint64_t count,
				tern_dtype dtype, tern_reduce reduce)
{
	uint64_t each = tern_dtype_bytes(dtype), block = count * each;
	uint8_t *work;

	TN_TRY(tn_coll_check_reduce(comm, count, dtype, reduce));
	TN_TRY(tn_coll_begin(comm, TN_COLL_REDUCE_SCATTER, block, dtype, reduce));
	TN_COLL_TIMED(comm);
	TN_TRY(tn_coll_scratch(comm, block * comm->size + 1, &work));
	if (block)
		memcpy(work, send, block * comm->size);
	if (comm->size > 1)
		TN_TRY(tn_coll_ring_scatter(comm, &comm->all, work, count * comm->size, each));
	if (block)
		memcpy(recv, work + block * comm->rank, block);
	if (reduce == TERN_AVG)
		tn_coll_divide(recv, count, dtype, comm->size);
	return TERN_OK;
}

/* Binomial tree, the root at its top: ranks count from the root. */
static tern_status up_the_tree(tern_communicator *comm, uint8_t *buf, uint64_t bytes, uint32_t root)
{
	uint32_t me = (comm->rank + comm->size - root) % comm->size;

	for (uint32_t d = 1, step = 0; d < comm->size; d *= 2, step++) {
		tn_coll_leg leg = {.ptr = buf, .bytes = bytes, .reduce = true};

		comm->call.step = step;
		if (me & d) {
			leg.rank = (me - d + root) % comm->size;
			TN_TRY(tn_coll_exchange(comm, &leg, NULL));
			return tn_coll_settle(comm);
		}
		leg.rank = (me + d + root) % comm->size;
		if (me + d < comm->size)
			TN_TRY(tn_coll_exchange(comm, NULL, &leg));
	}
	return TERN_OK;
}

tern_status tern_reduce_to(tern_communicator *comm, const void *send, void *recv, uint64_t count,
			   tern_dtype dtype, tern_reduce reduce, uint32_t root)
{
	uint64_t each = tern_dtype_bytes(dtype);
	bool is_root = comm->rank == root;
	uint8_t *work = recv;

	TN_TRY(tn_coll_check_reduce(comm, count, dtype, reduce));
	TN_TRY(tn_coll_check_root(comm, root));
	TN_TRY(tn_coll_begin(comm, TN_COLL_REDUCE_TO, count * each, dtype, reduce));
	TN_COLL_TIMED(comm);
	if (!is_root)
		TN_TRY(tn_coll_scratch(comm, count * each + 1, &work));
	if (work != send && count)
		memcpy(work, send, count * each);
	TN_TRY(up_the_tree(comm, work, count * each, root));
	if (is_root && reduce == TERN_AVG)
		tn_coll_divide(recv, count, dtype, comm->size);
	return TERN_OK;
}

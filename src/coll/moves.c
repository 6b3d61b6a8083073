/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that move bytes and reduce nothing: all-gather, all-to-all, broadcast, barrier, messages.
 *
 * Threads: <tern/coll.h>. Tests: tests/unit/coll/coll_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "coll/call.h"

tern_status tern_all_gather(tern_communicator *comm, const void *send, void *recv, uint64_t bytes)
{
	uint8_t *own = (uint8_t *)recv + bytes * comm->rank;

	TN_TRY(tn_coll_begin(comm, TN_COLL_ALL_GATHER, bytes, 0, 0));
	TN_COLL_TIMED(comm);
	if (own != send && bytes)
		memcpy(own, send, bytes);
	return comm->size > 1 ? tn_coll_ring_gather(comm, &comm->all, recv, bytes * comm->size, 1) : TERN_OK;
}

tern_status tern_all_to_all(tern_communicator *comm, const void *send, void *recv, uint64_t bytes)
{
	TN_TRY(tn_coll_begin(comm, TN_COLL_ALL_TO_ALL, bytes, 0, 0));
	TN_COLL_TIMED(comm);
	if (bytes)
		memcpy((uint8_t *)recv + bytes * comm->rank, (const uint8_t *)send + bytes * comm->rank,
		       bytes);
	for (uint32_t s = 1; s < comm->size; s++) {
		uint32_t to = (comm->rank + s) % comm->size,
			 from = (comm->rank + comm->size - s) % comm->size;
		tn_coll_leg out = {.rank = to, .ptr = (uint8_t *)send + bytes * to, .bytes = bytes};
		tn_coll_leg in = {.rank = from, .ptr = (uint8_t *)recv + bytes * from, .bytes = bytes};

		TN_TRY(tn_coll_exchange(comm, &out, &in));
	}
	return tn_coll_settle(comm);
}

/* ---- broadcast ---- */

/* Binomial tree, the root at its top: ranks count from the root. */
static tern_status down_the_tree(tern_communicator *comm, uint8_t *buf, uint64_t bytes, uint32_t root)
{
	uint32_t me = (comm->rank + comm->size - root) % comm->size, d = 1;
	tn_coll_leg leg = {.ptr = buf, .bytes = bytes};

	while (d < comm->size && !(me & d))
		d *= 2;
	comm->call.step = 0; /* one flow per pair: steps need no numbers */
	if (me) {
		leg.rank = (me - d + root) % comm->size;
		TN_TRY(tn_coll_exchange(comm, NULL, &leg));
	}
	for (d /= 2; d; d /= 2) {
		leg.rank = (me + d + root) % comm->size;
		comm->call.step = 0;
		if (me + d < comm->size)
			TN_TRY(tn_coll_exchange(comm, &leg, NULL));
	}
	return tn_coll_settle(comm);
}

/* The root gives each rank its block, then all gather. */
static tern_status scatter_and_gather(tern_communicator *comm, uint8_t *buf, uint64_t bytes, uint32_t root)
{
	uint32_t n = comm->size;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t from = tn_coll_block(bytes, n, i), to = tn_coll_block(bytes, n, i + 1);
		tn_coll_leg leg = {
			.rank = comm->rank == root ? i : root, .ptr = buf + from, .bytes = to - from};

		comm->call.step = 0;
		if (i != root && comm->rank == root)
			TN_TRY(tn_coll_exchange(comm, &leg, NULL));
		else if (i == comm->rank && i != root)
			TN_TRY(tn_coll_exchange(comm, NULL, &leg));
	}
	TN_TRY(tn_coll_settle(comm));
	comm->call.step = 1;
	return tn_coll_ring_gather(comm, &comm->all, buf, bytes, 1);
}

tern_status tern_broadcast(tern_communicator *comm, void *buf, uint64_t bytes, uint32_t root)
{
	TN_TRY(tn_coll_check_root(comm, root));
	TN_TRY(tn_coll_begin(comm, TN_COLL_BROADCAST, bytes, 0, 0));
	TN_COLL_TIMED(comm);
	if (comm->size == 1)
		return TERN_OK;
	if (comm->size == 2 || bytes < comm->state->ring_bytes)
		return down_the_tree(comm, buf, bytes, root);
	return scatter_and_gather(comm, buf, bytes, root);
}

/* ---- barrier and messages ---- */

tern_status tern_barrier(tern_communicator *comm)
{
	TN_TRY(tn_coll_begin(comm, TN_COLL_BARRIER, 0, 0, 0));
	TN_COLL_TIMED(comm);
	for (uint32_t d = 1; d < comm->size; d *= 2) {
		tn_coll_leg out = {.rank = (comm->rank + d) % comm->size};
		tn_coll_leg in = {.rank = (comm->rank + comm->size - d) % comm->size};

		TN_TRY(tn_coll_exchange(comm, &out, &in));
	}
	return TERN_OK;
}

/* Messages have numbers per pair, and pipes of their own. */
static tern_status message(tern_communicator *comm, const tn_coll_leg *send, const tn_coll_leg *recv)
{
	const tn_coll_leg *leg = send ? send : recv;
	tn_coll_peer *peer;

	TN_TRY(tn_coll_check_root(comm, leg->rank));
	if (leg->rank == comm->rank)
		return tn_fail(TERN_E_INVALID, "rank %u is this one", leg->rank);
	TN_TRY(tn_coll_begin(comm, TN_COLL_MESSAGE, leg->bytes, 0, 0));
	TN_COLL_TIMED(comm);
	comm->numbers--;
	peer = &comm->peers[leg->rank];
	comm->call.kind = TN_PIPE_MESSAGE;
	comm->call.number = (send ? peer->out : peer->in)[TN_PIPE_MESSAGE].flows;
	TN_TRY(tn_coll_exchange(comm, send, recv));
	return tn_coll_settle(comm);
}

tern_status tern_comm_send(tern_communicator *comm, uint32_t peer, const void *buf, uint64_t bytes)
{
	return message(comm, &(tn_coll_leg){.rank = peer, .ptr = (uint8_t *)buf, .bytes = bytes}, NULL);
}

tern_status tern_comm_recv(tern_communicator *comm, uint32_t peer, void *buf, uint64_t bytes)
{
	return message(comm, NULL, &(tn_coll_leg){.rank = peer, .ptr = buf, .bytes = bytes});
}

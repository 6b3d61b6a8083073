/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way to another rank: one link per pair, dialled by the lower rank, and a tensor channel for each direction and kind.
 *
 * Threads: the communicator's. Tests: tests/unit/coll/coll_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "channel/ctx_slots.h"
#include "coll/comm.h"
#include "tensor/part.h"

#define LOOK_NS 20000000ull

static uint64_t time_left(const tern_communicator *comm)
{
	uint64_t now = tn_ctx_now(comm->ctx);

	return now < comm->call.deadline_ns ? comm->call.deadline_ns - now : 0;
}

/* The lower rank dials, and says who it is. */
static tern_status dial(tern_communicator *comm, uint32_t rank)
{
	tn_coll_peer *peer = &comm->peers[rank];
	tern_connect_params connect = {.timeout_ns = TN_MAX(time_left(comm), 1), .retry = 1};
	tern_channel_params params = {.message_bytes_max = TN_COLL_HELLO_MAX};
	tn_coll_hello hello = {.rank = comm->rank, .size = comm->size};
	uint8_t msg[TN_COLL_HELLO_MAX];
	tern_status status;
	tern_op op = {0};

	memcpy(hello.name, comm->name, sizeof(hello.name));
	TN_TRY(tern_link_connect(comm->ctx, comm->addresses[rank], &connect, &peer->link));
	peer->dialled = true;
	TN_TRY(tern_link_wait(peer->link, TN_MAX(time_left(comm), 1)));
	TN_TRY(tern_channel_open(peer->link, TN_COLL_SERVICE, &params, &peer->hello));
	status = tern_send(peer->hello, msg, tn_coll_hello_write(msg, &hello), &op);
	return status == TERN_OK ? tern_op_wait(comm->ctx, &op, TN_MAX(time_left(comm), 1)) : status;
}

static tern_status await_arrival(tern_communicator *comm, uint32_t rank)
{
	tn_coll_peer *peer = &comm->peers[rank];

	for (;;) {
		uint64_t seen = tern_ctx_events(comm->ctx), left = time_left(comm);
		tn_coll_arrival *arrival;
		uint32_t size = 0;

		pthread_mutex_lock(&comm->state->lock);
		arrival = tn_coll_arrival_find(comm->state, comm, rank);
		if (arrival) {
			size = arrival->size;
			peer->arrival = arrival;
			peer->link = tern_channel_link(arrival->channel);
		}
		pthread_mutex_unlock(&comm->state->lock);
		if (arrival && size != comm->size)
			return tn_fail(TERN_E_PROTOCOL, "it says that '%s' has %u ranks, here it has %u",
				       comm->name, size, comm->size);
		if (arrival)
			return TERN_OK;
		if (left == 0)
			return tn_fail(TERN_E_DEADLINE, "it did not dial in time: does it run?");
		tern_ctx_wait_past(comm->ctx, seen, TN_MIN(left, LOOK_NS));
	}
}

static tern_status link_to(tern_communicator *comm, uint32_t rank)
{
	if (comm->peers[rank].link)
		return TERN_OK;
	return comm->rank < rank ? dial(comm, rank) : await_arrival(comm, rank);
}

static tern_tensor_params shape_of(const tern_communicator *comm, const char *name)
{
	return (tern_tensor_params){.name = name,
				    .dtype = TERN_U8,
				    .shape = {.rank = 1, .dims = {comm->state->chunk}},
				    .slots = (unsigned)comm->state->slots};
}

static void pipe_name(char *out, const tern_communicator *comm, tn_coll_kind kind, uint32_t from, uint32_t to)
{
	snprintf(out, TERN_TENSOR_NAME_MAX, "tern.coll/%s/%c/%u-%u", comm->name,
		 kind == TN_PIPE_COLL ? 'c' : 'm', from, to);
}

tern_status tn_coll_open_in(tern_communicator *comm, uint32_t rank, tn_coll_pipe **pipe)
{
	tn_coll_pipe *p = *pipe = &comm->peers[rank].in[comm->call.kind];
	char name[TERN_TENSOR_NAME_MAX];
	tern_tensor_params params = shape_of(comm, name);

	if (p->rx)
		return TERN_OK;
	pipe_name(name, comm, comm->call.kind, rank, comm->rank);
	TN_TRY(tn_tensor_rx_create_parts(comm->ctx, &params, &p->rx));
	return comm->rank < rank ? link_to(comm, rank) : TERN_OK; /* it may wait for our dialling */
}

tern_status tn_coll_open_out(tern_communicator *comm, uint32_t rank, tn_coll_pipe **pipe)
{
	tn_coll_pipe *p = *pipe = &comm->peers[rank].out[comm->call.kind];
	uint64_t each = TN_COLL_HEAD + TN_COLL_SMALL;
	char name[TERN_TENSOR_NAME_MAX];
	tern_tensor_params params = shape_of(comm, name);

	if (p->tx)
		return TERN_OK;
	TN_TRY(link_to(comm, rank));
	if (!p->staging)
		TN_TRY(tern_mem_alloc(tern_ctx_mem(comm->ctx), each * comm->state->slots, 64,
				      TERN_ACCESS_NONE, TERN_MEM_HOST, (void **)&p->staging));
	pipe_name(name, comm, comm->call.kind, comm->rank, rank);
	return tern_tensor_tx_open(comm->peers[rank].link, &params, TN_MAX(time_left(comm), 1), &p->tx);
}

static void close_pipe(tern_communicator *comm, tn_coll_pipe *p)
{
	tern_tensor_tx_close(p->tx);
	tern_tensor_rx_destroy(p->rx);
	for (uint64_t i = 0; i < comm->state->slots; i++)
		while (tern_op_test(&p->ops[i]) ==
		       TERN_AGAIN) /* staging and the caller's memory are in use */
			tern_op_wait(comm->ctx, &p->ops[i], LOOK_NS);
	tern_mem_free(tern_ctx_mem(comm->ctx), p->staging);
	*p = (tn_coll_pipe){0};
}

static void drop_arrival(tern_communicator *comm, tn_coll_arrival *arrival)
{
	tern_channel_close(arrival->channel);
	pthread_mutex_lock(&comm->state->lock);
	tn_list_remove(&arrival->node);
	comm->state->arrival_count--;
	pthread_mutex_unlock(&comm->state->lock);
	free(arrival);
}

void tn_coll_close_peers(tern_communicator *comm)
{
	for (uint32_t i = 0; i < comm->size; i++) {
		tn_coll_peer *peer = &comm->peers[i];

		for (int kind = 0; kind < TN_PIPE_KINDS; kind++) {
			close_pipe(comm, &peer->out[kind]);
			close_pipe(comm, &peer->in[kind]);
		}
		if (peer->hello)
			tern_channel_close(peer->hello);
		if (peer->dialled)
			tern_link_release(peer->link);
		if (peer->arrival)
			drop_arrival(comm, peer->arrival);
	}
}

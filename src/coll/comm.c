/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators: making and ending them, and how an operation begins and ends.
 *
 * Threads: <tern/coll.h>. Tests: tests/unit/coll/coll_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "coll/call.h"
#include "coll/comm.h"

static tern_status check_params(const tern_comm_params *p)
{
	if (!p->name || !p->name[0] || strlen(p->name) >= TERN_COMM_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "a communicator's name has 1 to %d bytes",
			       TERN_COMM_NAME_MAX - 1);
	if (p->size == 0 || p->size > TERN_COMM_SIZE_MAX || p->rank >= p->size)
		return tn_fail(TERN_E_INVALID,
			       "rank %u of %u: ranks are 0 to size - 1, and there are at most %d", p->rank,
			       p->size, TERN_COMM_SIZE_MAX);
	if (!p->addresses && p->size > 1)
		return tn_fail(TERN_E_INVALID, "a communicator of %u ranks needs their addresses", p->size);
	for (uint32_t i = 0; p->size > 1 && i < p->size; i++)
		if (!p->addresses[i] || (p->hosts && !p->hosts[i]))
			return tn_fail(TERN_E_INVALID, "no address, or no host, for rank %u", i);
	return TERN_OK;
}

static void comm_free(tern_communicator *comm)
{
	for (uint32_t i = 0; comm->addresses && i < comm->size; i++)
		free(comm->addresses[i]);
	tn_coll_groups_free(comm);
	tern_mem_free(tern_ctx_mem(comm->ctx), comm->scratch);
	free(comm->addresses);
	free(comm->peers);
	free(comm);
}

static tern_status fill(tern_communicator *comm, const tern_comm_params *p)
{
	static const char *const alone[] = {""};
	tern_comm_params all = *p;

	if (p->size == 1)
		all.addresses = all.hosts = alone;
	comm->addresses = calloc(p->size, sizeof(char *));
	comm->peers = calloc(p->size, sizeof(*comm->peers));
	if (!comm->addresses || !comm->peers)
		return tn_fail(TERN_E_NOMEM, "no memory for %u ranks", p->size);
	for (uint32_t i = 0; i < p->size; i++) {
		comm->addresses[i] = strdup(all.addresses[i]);
		if (!comm->addresses[i])
			return tn_fail(TERN_E_NOMEM, "no memory for %u ranks", p->size);
	}
	return tn_coll_groups_make(comm, &all);
}

/* Into the list, if its name is new. */
static tern_status enlist(tern_communicator *comm)
{
	tn_coll_state *state = comm->state;
	bool taken = false;

	pthread_mutex_lock(&state->lock);
	TN_LIST_FOREACH(node, &state->comms)
		taken = taken || strcmp(TN_LIST_ENTRY(node, tern_communicator, node)->name, comm->name) == 0;
	if (!taken)
		tn_list_push_back(&state->comms, &comm->node);
	pthread_mutex_unlock(&state->lock);
	return taken ? tn_fail(TERN_E_EXISTS, "this context has a communicator '%s'", comm->name) : TERN_OK;
}

tern_status tern_comm_create(tern_ctx *ctx, const tern_comm_params *params, tern_communicator **out)
{
	tn_coll_state *state = tn_coll_state_get(ctx);
	tern_communicator *comm;
	tern_status status;

	*out = NULL;
	TN_TRY(check_params(params));
	if (params->size > 1 && !tern_ctx_address(ctx)[0])
		return tn_fail(TERN_E_INVALID,
			       "a context that does not listen can't be rank %u of %u: other ranks dial it",
			       params->rank, params->size);
	comm = state ? calloc(1, sizeof(*comm)) : NULL;
	if (!comm)
		return tn_fail(TERN_E_NOMEM, "no memory for a communicator");
	comm->state = state;
	comm->ctx = ctx;
	comm->rank = params->rank;
	comm->size = params->size;
	comm->timeout_ns = params->timeout_ns ? params->timeout_ns : state->timeout_ns;
	memcpy(comm->name, params->name, strlen(params->name));
	status = fill(comm, params);
	if (status == TERN_OK)
		status = enlist(comm);
	if (status != TERN_OK) {
		comm_free(comm);
		return status;
	}
	*out = comm;
	return TERN_OK;
}

void tern_comm_destroy(tern_communicator *comm)
{
	if (!comm)
		return;
	tn_coll_close_peers(comm);
	pthread_mutex_lock(&comm->state->lock);
	tn_list_remove(&comm->node);
	pthread_mutex_unlock(&comm->state->lock);
	comm_free(comm);
}

uint32_t tern_comm_rank(const tern_communicator *comm)
{
	return comm->rank;
}

uint32_t tern_comm_size(const tern_communicator *comm)
{
	return comm->size;
}

/* ---- operations ---- */

tern_status tn_coll_begin(tern_communicator *comm, tn_coll_operation operation, uint64_t bytes,
			  tern_dtype dtype, tern_reduce reduce)
{
	if (comm->failed != TERN_OK)
		return tn_fail(comm->failed, "the communicator failed before: %s", comm->why);
	comm->call = (tn_coll_call){.operation = (uint8_t)operation,
				    .dtype = (uint8_t)dtype,
				    .reduce = (uint8_t)reduce,
				    .number = comm->numbers++,
				    .bytes = bytes,
				    .began_ns = tn_ctx_now(comm->ctx)};
	comm->call.deadline_ns = comm->call.began_ns + comm->timeout_ns;
	atomic_fetch_add_explicit(&comm->state->operations, 1, memory_order_relaxed);
	return TERN_OK;
}

void tn_coll_over(tern_communicator **comm)
{
	const tn_coll_call *call = &(*comm)->call;
	tn_spans *spans = tn_ctx_spans((*comm)->ctx);

	if (tn_spans_on(spans))
		tn_spans_add(spans, tn_spans_kind(spans, tn_coll_operation_kind(call->operation)),
			     call->began_ns, tn_ctx_now((*comm)->ctx), call->bytes);
}

tern_status tn_coll_check_reduce(const tern_communicator *comm, uint64_t count, tern_dtype dtype,
				 tern_reduce reduce)
{
	if (tern_dtype_bytes(dtype) == 0 || (unsigned)reduce > TERN_AVG)
		return tn_fail(TERN_E_INVALID, "dtype %d or reduction %d is none", dtype, reduce);
	if (!tn_coll_can_reduce(dtype, reduce))
		return tn_fail(TERN_E_UNSUPPORTED,
			       "an average of %s would be cut: sum, and divide as you like",
			       tern_dtype_name(dtype));
	if (count > UINT64_MAX / 8 / comm->size)
		return tn_fail(TERN_E_TOO_LARGE, "%llu elements", (unsigned long long)count);
	return TERN_OK;
}

tern_status tn_coll_check_root(const tern_communicator *comm, uint32_t rank)
{
	return rank < comm->size ? TERN_OK : tn_fail(TERN_E_INVALID, "rank %u of %u", rank, comm->size);
}

tern_status tn_coll_scratch(tern_communicator *comm, uint64_t bytes, uint8_t **scratch)
{
	if (comm->scratch_bytes < bytes) {
		tern_mem_free(tern_ctx_mem(comm->ctx), comm->scratch);
		comm->scratch = NULL;
		comm->scratch_bytes = 0;
		TN_TRY(tern_mem_alloc(tern_ctx_mem(comm->ctx), bytes, 64, TERN_ACCESS_NONE, TERN_MEM_HOST,
				      (void **)&comm->scratch));
		comm->scratch_bytes = bytes;
	}
	*scratch = comm->scratch;
	return TERN_OK;
}

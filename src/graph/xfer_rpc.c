/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers as a general RPC system makes them, for comparison: tensors are serialised into the message of
 * a call and out of it.
 *
 *   push   the side that dialled sends a tensor as the arguments of a call; the answer, an empty one, comes
 *          when the receiver has copied it out (that is the flow control)
 *   pull   the side that dialled asks, and the answer carries the tensor
 *
 * Copies per tensor, each counted where it happens: into the message (rpc.copies of the sender's context),
 * out of the message into the tensor. The transport's own are on top.
 *
 * A pulled edge has one request in flight, sent again when its tensor was polled. A pushed edge holds up to
 * RPC_SLOTS tensors at the receiver.
 *
 * A static tensor that is longer than a call may be (call_bytes) goes as several edges, which are parts of a whole.
 *
 * A call that waits for its answer holds up the window of its client (seq < low_water + 256). So each client has
 * at most EDGES_PER_CLIENT edges of one kind: while one of them waits the others make only a few calls each,
 * because all edges of a device are at most some slots apart, and a push never waits behind pulls.
 * Here edges are opened and static tensors go; a call at either side is xfer_rpc_call.c's, dynamic edges are
 * xfer_rpc_shaped.c's.
 * Threads: the executor's; handlers and completions run from dispatch and take xfer->lock.
 * Tests: tests/unit/graph/xfer_link_test.c, exec_bind_test.c (dynamic).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/xfer_rpc.h"

#define EDGES_PER_CLIENT 32u
#define CALL_BYTES       (128ull << 20) /* a call carries 256 MiB and no more */
#define WHOLE_OF_EDGE    0x80000000u /* wholes that are one edge's; those of the plan are numbers of nodes */

/* ---- opening ---- */

static tern_status rpc_for(rpc_xfer *xfer, uint32_t peer, bool pushes, tern_link *link, tern_rpc **rpc)
{
	rpc_client *client = xfer->clients;

	while (client &&
	       (client->peer != peer || client->pushes != pushes || client->edges == EDGES_PER_CLIENT))
		client = client->next;
	if (!client) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return tn_fail(TERN_E_NOMEM, "no memory for a transfer's calls");
		client->peer = peer;
		client->pushes = pushes;
		client->next = xfer->clients;
		xfer->clients = client;
		TN_TRY(tern_rpc_open(link, &client->rpc));
	}
	client->edges++;
	*rpc = client->rpc;
	return TERN_OK;
}

static tern_status end_open(rpc_xfer *xfer, const tn_edge_desc *desc, uint64_t number, bool sends,
			    tn_xfer_end **out)
{
	tern_link *link;
	rpc_end *end;

	TN_TRY(tn_xfer_link_of(&xfer->link, desc, &link));
	if (!desc->dynamic && desc->bytes + EDGE_BYTES > TERN_RPC_INLINE_MAX)
		return tn_fail(TERN_E_TOO_LARGE,
			       "edge '%s': %llu bytes do not fit a call (at most %u): use zerocopy",
			       desc->name, (unsigned long long)desc->bytes, TERN_RPC_INLINE_MAX);
	end = calloc(1, sizeof(*end));
	if (!end)
		return tn_fail(TERN_E_NOMEM, "no memory for edge '%s'", desc->name);
	end->base.xfer = &xfer->link.base;
	end->xfer = xfer;
	end->link = link;
	end->number = number;
	end->sends = sends;
	end->calls = xfer->link.dialed[desc->peer];
	end->desc = tn_edge_desc_copy(desc);
	end->n_slots = end->calls && !desc->whole_bytes ? 1 : RPC_SLOTS;
	if (end->calls)
		end->message =
			calloc(1, EDGE_BYTES + ROOM_BYTES + (sends && !desc->dynamic ? desc->bytes : 0));
	pthread_mutex_lock(&xfer->lock);
	end->next = xfer->ends;
	xfer->ends = end;
	pthread_mutex_unlock(&xfer->lock);
	if (!end->desc || (end->calls && !end->message))
		return tn_fail(TERN_E_NOMEM, "no memory for edge '%s' (%llu bytes)", desc->name,
			       (unsigned long long)desc->bytes);
	if (desc->dynamic)
		TN_TRY(tn_xfer_rpc_make_room(end, &end->shaped[0], 0));
	else if (!sends)
		TN_TRY(tn_xfer_link_room(&xfer->link, desc, end->n_slots, &end->slots, &end->stride));
	*out = &end->base;
	if (!end->calls)
		return TERN_OK;
	tn_xfer_rpc_put_edge(end->message, number);
	return rpc_for(xfer, desc->peer, sends, link, &end->rpc);
}

/* The end that stands for the pieces has no link, message or memory of its own. */
static tern_status long_end_open(rpc_xfer *xfer, const tn_edge_desc *desc, bool sends, tn_xfer_end **out)
{
	uint32_t n = (uint32_t)((desc->bytes + xfer->call_bytes - 1) / xfer->call_bytes);
	rpc_end *end = calloc(1, sizeof(*end));

	if (end) {
		end->desc = tn_edge_desc_copy(desc);
		end->pieces = calloc(n, sizeof(rpc_end *));
	}
	if (!end || !end->desc || !end->pieces) {
		free(end ? end->desc : NULL);
		free(end ? end->pieces : NULL);
		free(end);
		return tn_fail(TERN_E_NOMEM, "no memory for edge '%s'", desc->name);
	}
	end->base.xfer = &xfer->link.base;
	end->xfer = xfer;
	end->n_pieces = n;
	pthread_mutex_lock(&xfer->lock);
	end->next = xfer->ends;
	xfer->ends = end;
	pthread_mutex_unlock(&xfer->lock);
	for (uint32_t i = 0; i < n; i++) {
		tn_edge_desc piece = *desc;
		tn_xfer_end *made = NULL;

		if (!desc->whole_bytes) {
			piece.whole = WHOLE_OF_EDGE | desc->id;
			piece.whole_bytes = desc->bytes;
			piece.whole_offset = 0;
		}
		piece.whole_offset += i * xfer->call_bytes;
		piece.bytes = TN_MIN(desc->bytes - i * xfer->call_bytes, xfer->call_bytes);
		TN_TRY(end_open(xfer, &piece, (uint64_t)(i + 1) << 32 | desc->id, sends, &made));
		end->pieces[i] = (rpc_end *)made;
	}
	*out = &end->base;
	return TERN_OK;
}

static tern_status any_open(tn_xfer *base, const tn_edge_desc *desc, bool sends, tn_xfer_end **end)
{
	rpc_xfer *xfer = (rpc_xfer *)base;

	if (desc->dynamic || desc->bytes <= xfer->call_bytes)
		return end_open(xfer, desc, desc->id, sends, end);
	return long_end_open(xfer, desc, sends, end);
}

static tern_status send_open(tn_xfer *base, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return any_open(base, desc, true, end);
}

static tern_status recv_open(tn_xfer *base, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return any_open(base, desc, false, end);
}

/*
 * The peer serves our methods only once all of its edges are open: ask for an edge that nobody has until
 * the answer is "no such edge" and not "no such method".
 */
static tern_status await_peer(rpc_xfer *xfer, const rpc_client *client, uint64_t deadline_ns)
{
	const char *peer = tern_link_peer_name(xfer->link.links[client->peer]);
	uint8_t args[EDGE_BYTES];
	tern_rpc_call_params params = {.method = METHOD_PULL, .args = args, .args_bytes = sizeof(args)};
	uint64_t slice_ns;
	tern_status status;

	tn_xfer_rpc_put_edge(args, UINT32_MAX);
	for (;;) {
		TN_TRY(tn_xfer_link_may_wait(&xfer->link, peer, "open its edges", deadline_ns, &slice_ns));
		status = tern_rpc_call_wait(client->rpc, &params, slice_ns, NULL);
		if (status == TERN_E_NOT_FOUND)
			return TERN_OK;
		if (status != TERN_E_NO_METHOD && status != TERN_E_DEADLINE)
			return status;
		tern_ctx_wait(xfer->link.ctx, 1000000);
	}
}

static tern_status start(tn_xfer *base, uint64_t deadline_ns)
{
	rpc_xfer *xfer = (rpc_xfer *)base;

	TN_TRY(tern_rpc_serve(xfer->link.ctx, METHOD_PUSH, tn_xfer_rpc_on_push, xfer));
	TN_TRY(tern_rpc_serve(xfer->link.ctx, METHOD_PULL, tn_xfer_rpc_on_pull, xfer));
	for (rpc_client *client = xfer->clients; client; client = client->next)
		TN_TRY(await_peer(xfer, client, deadline_ns));
	for (rpc_end *end = xfer->ends; end; end = end->next) {
		tern_status status = TERN_OK;

		if (end->calls && !end->sends)
			status = tn_xfer_rpc_pull(end);
		if (status != TERN_OK && status != TERN_AGAIN) /* no room: asked again at the next poll */
			return tn_xfer_link_fail(end->desc, end->link, status);
	}
	return TERN_OK;
}

/* ---- data ---- */

static tern_status post_one(rpc_end *end, const void *data)
{
	rpc_xfer *xfer = end->xfer;
	uint64_t bytes = end->desc->bytes;
	tern_rpc_request *request;
	tern_status status;

	if (end->calls) {
		status = tn_xfer_rpc_test_call(end);
		if (status != TERN_OK)
			return status;
		memcpy(end->message + EDGE_BYTES, data, bytes); /* serialise */
		tn_xfer_rpc_copied(xfer, bytes);
		status = tn_xfer_rpc_make_call(end, METHOD_PUSH, EDGE_BYTES + bytes);
		if (status != TERN_OK)
			return status == TERN_AGAIN ? status
						    : tn_xfer_link_fail(end->desc, end->link, status);
		tn_xfer_rpc_copied(xfer, bytes); /* the call took a copy of its arguments */
	} else {
		pthread_mutex_lock(&xfer->lock);
		request = end->request;
		end->request = NULL;
		pthread_mutex_unlock(&xfer->lock);
		if (!request)
			return tn_xfer_link_check(end->desc, end->link);
		tern_rpc_reply(request, TERN_OK, data, bytes);
		tn_xfer_rpc_copied(xfer, bytes);
	}
	return TERN_OK;
}

static tern_status send_post(tn_xfer_end *base, const void *data, uint64_t bytes, uint64_t step)
{
	rpc_end *end = (rpc_end *)base;
	rpc_xfer *xfer = end->xfer;

	(void)step;
	TN_ASSERT(bytes == end->desc->bytes);
	for (; end->turn < end->n_pieces; end->turn++)
		TN_TRY(post_one(end->pieces[end->turn],
				(const uint8_t *)data + end->turn * xfer->call_bytes));
	end->turn = 0;
	if (!end->n_pieces)
		TN_TRY(post_one(end, data));
	xfer->link.counters.sends++;
	xfer->link.counters.bytes_sent += bytes;
	return TERN_OK;
}

/*
 * Calls and answers copy, so the source is free at once. But a push is over only when it was answered: whoever
 * closes the link before would flush the last tensors.
 */
static tern_status send_test(tn_xfer_end *base)
{
	rpc_end *end = (rpc_end *)base;
	bool kept;

	for (uint32_t i = 0; i < end->n_pieces; i++)
		TN_TRY(send_test(&end->pieces[i]->base));
	if (end->n_pieces)
		return TERN_OK;
	if (end->calls)
		return tn_xfer_rpc_test_call(end);
	pthread_mutex_lock(&end->xfer->lock);
	kept = end->kept != 0;
	pthread_mutex_unlock(&end->xfer->lock);
	return kept ? tn_xfer_link_check(end->desc, end->link) : TERN_OK;
}

static tern_status poll_pull(rpc_end *end, const void **data)
{
	TN_TRY(tn_xfer_rpc_pulled(end));
	tn_xfer_rpc_copied(end->xfer, end->desc->bytes); /* out of the message */
	*data = end->slots + (end->pulled - 1) % end->n_slots * end->stride;
	return TERN_OK;
}

static tern_status poll_one(rpc_end *end, const void **data)
{
	TN_TRY(end->calls ? poll_pull(end, data) : tn_xfer_rpc_poll_push(end, data));
	end->held = true;
	return TERN_OK;
}

static tern_status recv_poll(tn_xfer_end *base, const void **data)
{
	rpc_end *end = (rpc_end *)base;
	const void *piece;

	for (; end->turn < end->n_pieces; end->turn++)
		TN_TRY(poll_one(end->pieces[end->turn], &piece));
	end->turn = 0;
	if (end->n_pieces) /* the last one ends where the tensor ends */
		*data = (const uint8_t *)piece - (end->n_pieces - 1) * end->xfer->call_bytes;
	else
		TN_TRY(poll_one(end, data));
	end->xfer->link.counters.recvs++;
	end->xfer->link.counters.bytes_received += end->desc->bytes;
	return TERN_OK;
}

static tern_status recv_release(tn_xfer_end *base)
{
	rpc_end *end = (rpc_end *)base;
	tern_rpc_request *request;
	tern_status status;

	for (uint32_t i = 0; i < end->n_pieces; i++)
		TN_TRY(recv_release(&end->pieces[i]->base));
	if (end->n_pieces)
		return TERN_OK;
	end->held = false;
	if (end->calls) {
		status = tn_xfer_rpc_pull(end);
		return status == TERN_OK || status == TERN_AGAIN
			       ? TERN_OK
			       : tn_xfer_link_fail(end->desc, end->link, status);
	}
	pthread_mutex_lock(&end->xfer->lock);
	end->taken++;
	request = end->request;
	end->request = NULL;
	pthread_mutex_unlock(&end->xfer->lock);
	if (request)
		tern_rpc_reply(request, TERN_OK, NULL, 0);
	return TERN_OK;
}

static void get_counters(const tn_xfer *base, tn_xfer_counters *counters)
{
	tn_xfer_link_counters(base, counters);
	counters->copies = __atomic_load_n(&((const tn_xfer_link *)base)->counters.copies, __ATOMIC_RELAXED);
	counters->copy_bytes =
		__atomic_load_n(&((const tn_xfer_link *)base)->counters.copy_bytes, __ATOMIC_RELAXED);
}

static void xfer_close(tn_xfer *base)
{
	rpc_xfer *xfer = (rpc_xfer *)base;

	if (!base)
		return;
	tern_rpc_unserve(xfer->link.ctx, METHOD_PUSH);
	tern_rpc_unserve(xfer->link.ctx, METHOD_PULL);
	for (rpc_client *client = xfer->clients; client; client = client->next)
		tern_rpc_close(client->rpc);
	while (xfer->clients) {
		rpc_client *client = xfer->clients;

		xfer->clients = client->next;
		free(client);
	}
	while (xfer->ends) {
		rpc_end *end = xfer->ends;

		xfer->ends = end->next;
		if (end->request)
			tern_rpc_reply(end->request, TERN_E_FLUSHED, NULL, 0);
		if (end->in_call)
			tern_op_wait(xfer->link.ctx, &end->op, 0); /* completed by the client's close */
		for (unsigned i = 0; i < RPC_SLOTS; i++)
			free(end->shaped[i].data);
		free(end->message);
		free(end->pieces);
		free(end->desc);
		free(end);
	}
	pthread_mutex_destroy(&xfer->lock);
	tn_xfer_link_fini(&xfer->link);
	free(xfer);
}

static const tn_xfer_ops rpc_ops = {
	.name = "rpc",
	.send_open = send_open,
	.recv_open = recv_open,
	.alloc = tn_xfer_link_alloc,
	.free = tn_xfer_link_free,
	.start = start,
	.send_post = send_post,
	.send_test = send_test,
	.recv_poll = recv_poll,
	.recv_release = recv_release,
	.wait = tn_xfer_link_wait,
	.wake = tn_xfer_link_wake,
	.counters = get_counters,
	.send_shaped = tn_xfer_rpc_send_shaped,
	.poll_shaped = tn_xfer_rpc_poll_shaped,
	.close = xfer_close,
};

tern_status tn_xfer_rpc_open(const tn_xfer_link_params *params, tn_xfer **out)
{
	rpc_xfer *xfer = calloc(1, sizeof(*xfer));
	tern_status status;

	*out = NULL;
	if (!xfer)
		return tn_fail(TERN_E_NOMEM, "no memory for a transfer");
	pthread_mutex_init(&xfer->lock, NULL);
	xfer->call_bytes = params->call_bytes ? params->call_bytes : CALL_BYTES;
	status = tn_xfer_link_init(&xfer->link, &rpc_ops, params);
	if (status != TERN_OK) {
		pthread_mutex_destroy(&xfer->lock);
		free(xfer);
		return status;
	}
	*out = &xfer->link.base;
	return TERN_OK;
}

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
 * Of dynamic edges a message begins with the shape (HEAD_BYTES), and buffers grow with the largest tensor there was. A
 * pull says how much room it has; a tensor that is larger is answered by its shape alone, and asked for again.
 *
 * A call that waits for its answer holds up the window of its client (seq < low_water + 256). So each client has
 * at most EDGES_PER_CLIENT edges of one kind: while one of them waits the others make only a few calls each,
 * because all edges of a device are at most some slots apart, and a push never waits behind pulls.
 * Threads: the executor's; handlers and completions run from dispatch and take xfer->lock.
 * Tests: tests/unit/graph/xfer_link_test.c, exec_bind_test.c (dynamic).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "graph/ir.h"
#include "graph/xfer_link.h"

#define METHOD_PUSH 0x7e000001u
#define METHOD_PULL 0x7e000002u
#define RPC_SLOTS   2u
#define EDGE_BYTES  8u /* arguments begin with the edge's number */
#define ROOM_BYTES  8u /* dynamic: then comes how much room a pull has */
/* Dynamic: edge, rank and dims; a multiple of 64, so that tensors behind it are aligned. */
#define HEAD_BYTES 128u
_Static_assert(EDGE_BYTES + 8 + 8 * TERN_RANK_MAX <= HEAD_BYTES, "a head has room for every shape");
#define EDGES_PER_CLIENT 32u
#define CALL_BYTES       (128ull << 20) /* a call carries 256 MiB and no more */
#define WHOLE_OF_EDGE    0x80000000u /* wholes that are one edge's; those of the plan are numbers of nodes */

typedef struct rpc_xfer rpc_xfer;

typedef struct rpc_client {
	struct rpc_client *next;
	uint32_t peer, edges;
	bool pushes;
	tern_rpc *rpc;
} rpc_client;

/* Memory for messages of a dynamic edge. */
typedef struct rpc_room {
	uint8_t *data;
	uint64_t bytes;
} rpc_room;

typedef struct rpc_end {
	tn_xfer_end base;
	struct rpc_end *next;
	rpc_xfer *xfer;
	tn_edge_desc *desc;
	uint64_t number; /* on the wire: the edge's, and above it that of the piece */
	/* an end that is several: they do the work, in turn; `turn` are done with the tensor that is sent or received */
	struct rpc_end **pieces;
	uint32_t n_pieces, turn;
	tern_link *link;
	bool sends;
	bool calls; /* this side makes the calls of the edge */
	/* a calling end */
	tern_rpc *rpc;
	bool in_call;
	tern_op op;
	uint8_t *message; /* push: edge number and tensor, serialised; pull: edge number */
	/* receiving ends: memory of the tensors, RPC_SLOTS of them `stride` apart if pushed or parts of a whole */
	uint8_t *slots;
	uint64_t stride;
	uint32_t n_slots;
	uint64_t pulled; /* pull: tensors asked for */
	/* a called end; xfer->lock */
	tern_rpc_request *request; /* pull: the caller waits; push: waits for room */
	uint64_t arrived, taken;   /* push */
	/* dynamic: the message that is sent, or those that were received, whole; their shapes */
	rpc_room shaped[RPC_SLOTS];
	tern_shape shapes[RPC_SLOTS];
	uint64_t request_room; /* of `request`; xfer->lock */
	uint64_t kept;         /* bytes of a message that did not fit an answer; xfer->lock */
	bool held;             /* a polled tensor is looked at */
} rpc_end;

struct rpc_xfer {
	tn_xfer_link link; /* first */
	pthread_mutex_t lock;
	uint64_t call_bytes;
	rpc_end *ends;
	rpc_client *clients; /* the newest first: it is the one that may have room */
};

static void put_edge(uint8_t out[EDGE_BYTES], uint64_t number)
{
	tn_writer w;

	tn_writer_init(&w, out, EDGE_BYTES);
	tn_put_u64(&w, number);
}

static rpc_end *find_end(rpc_xfer *xfer, const void *args, uint64_t bytes, bool sends)
{
	rpc_end *end = xfer->ends;
	tn_reader r;
	uint64_t number;

	tn_reader_init(&r, args, bytes);
	number = tn_get_u64(&r);
	while (end && (end->number != number || end->sends != sends || end->calls || end->n_pieces))
		end = end->next;
	return r.bad ? NULL : end;
}

static void refuse(tern_rpc_request *request)
{
	static const char text[] = "no such edge, or a call for it is waiting already";

	tern_rpc_reply(request, TERN_E_NOT_FOUND, text, sizeof(text) - 1);
}

static void copied(rpc_xfer *xfer, uint64_t bytes)
{
	__atomic_fetch_add(&xfer->link.counters.copies, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&xfer->link.counters.copy_bytes, bytes, __ATOMIC_RELAXED);
}

/* ---- messages of dynamic edges ---- */

/* Room for a message of so many bytes behind its head; what was there is lost. */
static tern_status make_room(const rpc_end *end, rpc_room *room, uint64_t bytes)
{
	if (bytes > TERN_RPC_INLINE_MAX - HEAD_BYTES)
		return tn_fail(TERN_E_TOO_LARGE,
			       "edge '%s': %llu bytes do not fit a call (at most %u): use zerocopy",
			       end->desc->name, (unsigned long long)bytes, TERN_RPC_INLINE_MAX - HEAD_BYTES);
	if (room->bytes >= HEAD_BYTES + bytes)
		return TERN_OK;
	free(room->data);
	room->bytes = (HEAD_BYTES + bytes + 63) / 64 * 64;
	room->data = aligned_alloc(64, room->bytes);
	if (room->data)
		return TERN_OK;
	room->bytes = 0;
	return tn_fail(TERN_E_NOMEM, "no memory for edge '%s' (%llu bytes)", end->desc->name,
		       (unsigned long long)bytes);
}

static void put_head(const rpc_end *end, const tern_shape *shape, uint8_t *message)
{
	tn_writer w;

	memset(message, 0, HEAD_BYTES);
	tn_writer_init(&w, message, HEAD_BYTES);
	tn_put_u64(&w, end->number);
	tn_put_u64(&w, shape->rank);
	for (uint32_t i = 0; i < shape->rank; i++)
		tn_put_u64(&w, shape->dims[i]);
	TN_ASSERT(!w.bad);
}

/* bytes: what a tensor of that shape has. False: it is none of this edge. */
static bool read_head(const rpc_end *end, const uint8_t *message, uint64_t bytes, tern_shape *shape,
		      uint64_t *tensor_bytes)
{
	tn_reader r;

	tn_reader_init(&r, message, bytes < HEAD_BYTES ? 0 : HEAD_BYTES);
	tn_get_u64(&r);
	*shape = (tern_shape){.rank = end->desc->shape.rank};
	if (tn_get_u64(&r) != shape->rank)
		return false;
	for (uint32_t i = 0; i < shape->rank; i++)
		shape->dims[i] = tn_get_u64(&r);
	return !r.bad && tn_shape_bytes(shape, end->desc->dtype, tensor_bytes) == TERN_OK;
}

/* ---- called ends: handlers ---- */

/* xfer->lock is held. False: not a tensor of this edge, or there is no memory for it. */
static bool take_shaped(rpc_end *end, const uint8_t *message, uint64_t bytes)
{
	rpc_room *room = &end->shaped[end->arrived % RPC_SLOTS];
	uint64_t tensor_bytes;

	if (!read_head(end, message, bytes, &end->shapes[end->arrived % RPC_SLOTS], &tensor_bytes) ||
	    bytes - HEAD_BYTES != tensor_bytes || make_room(end, room, tensor_bytes) != TERN_OK)
		return false;
	memcpy(room->data, message, bytes);
	copied(end->xfer, tensor_bytes);
	return true;
}

static bool take_static(rpc_end *end, const uint8_t *message, uint64_t bytes)
{
	if (bytes != EDGE_BYTES + end->desc->bytes)
		return false;
	memcpy(end->slots + end->arrived % RPC_SLOTS * end->stride, message + EDGE_BYTES, end->desc->bytes);
	copied(end->xfer, end->desc->bytes);
	return true;
}

static void on_push(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	rpc_xfer *xfer = arg;
	rpc_end *end;
	bool answer;

	pthread_mutex_lock(&xfer->lock);
	end = find_end(xfer, args, bytes, false);
	if (!end || end->request || tern_rpc_request_link(request) != end->link ||
	    end->arrived - end->taken >= RPC_SLOTS ||
	    !(end->desc->dynamic ? take_shaped : take_static)(end, args, bytes)) {
		pthread_mutex_unlock(&xfer->lock);
		refuse(request);
		return;
	}
	end->arrived++;
	answer = end->arrived - end->taken < RPC_SLOTS; /* else when there is room for the next one */
	if (!answer)
		end->request = request;
	pthread_mutex_unlock(&xfer->lock);
	if (answer)
		tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static uint64_t room_of(const void *args, uint64_t bytes)
{
	tn_reader r;

	tn_reader_init(&r, args, bytes);
	tn_get_u64(&r);
	return tn_get_u64(&r); /* 0 if there is none */
}

static void on_pull(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	uint64_t room = room_of(args, bytes), kept = 0;
	rpc_xfer *xfer = arg;
	bool taken = false;
	rpc_end *end;

	pthread_mutex_lock(&xfer->lock);
	end = find_end(xfer, args, bytes, true);
	if (end && !end->request && tern_rpc_request_link(request) == end->link) {
		kept = end->kept;
		if (!kept) {
			end->request = request;
			end->request_room = room;
		}
		taken = !kept || kept <= room;
	}
	pthread_mutex_unlock(&xfer->lock);
	if (!taken) {
		refuse(request);
	} else if (kept) {
		tern_rpc_reply(request, TERN_OK, end->shaped[0].data, kept);
		copied(xfer, kept - HEAD_BYTES);
		pthread_mutex_lock(&xfer->lock);
		end->kept = 0;
		pthread_mutex_unlock(&xfer->lock);
	}
}

/* ---- calling ends ---- */

static tern_status make_call(rpc_end *end, uint32_t method, uint64_t bytes)
{
	tern_rpc_call_params params = {.method = method, .args = end->message, .args_bytes = bytes};
	tern_status status;

	if (method == METHOD_PULL && end->desc->dynamic) {
		params.answer = end->shaped[0].data;
		params.answer_capacity = end->shaped[0].bytes;
	} else if (method == METHOD_PULL) {
		params.answer = end->slots + end->pulled % end->n_slots * end->stride;
		params.answer_capacity = end->desc->bytes;
	}
	tern_op_init(&end->op, NULL, NULL);
	end->op.timeout_ns = 3600ull * 1000000000ull; /* peers' deaths end it; a slow step must not */
	status = tern_rpc_call(end->rpc, &params, &end->op);
	if (status != TERN_OK)
		return status;
	end->in_call = true;
	end->pulled += method == METHOD_PULL;
	return TERN_OK;
}

static tern_status pull(rpc_end *end)
{
	tn_writer w;

	if (!end->desc->dynamic)
		return make_call(end, METHOD_PULL, EDGE_BYTES);
	tn_writer_init(&w, end->message + EDGE_BYTES, ROOM_BYTES);
	tn_put_u64(&w, end->shaped[0].bytes);
	return make_call(end, METHOD_PULL, EDGE_BYTES + ROOM_BYTES);
}

/* TERN_OK: no call is in flight and the last one succeeded. */
static tern_status test_call(rpc_end *end)
{
	tern_status status;

	if (!end->in_call)
		return TERN_OK;
	status = tn_xfer_link_test(end->desc, end->link, &end->op);
	if (status != TERN_AGAIN)
		end->in_call = false;
	return status;
}

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
		TN_TRY(make_room(end, &end->shaped[0], 0));
	else if (!sends)
		TN_TRY(tn_xfer_link_room(&xfer->link, desc, end->n_slots, &end->slots, &end->stride));
	*out = &end->base;
	if (!end->calls)
		return TERN_OK;
	put_edge(end->message, number);
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

	put_edge(args, UINT32_MAX);
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

	TN_TRY(tern_rpc_serve(xfer->link.ctx, METHOD_PUSH, on_push, xfer));
	TN_TRY(tern_rpc_serve(xfer->link.ctx, METHOD_PULL, on_pull, xfer));
	for (rpc_client *client = xfer->clients; client; client = client->next)
		TN_TRY(await_peer(xfer, client, deadline_ns));
	for (rpc_end *end = xfer->ends; end; end = end->next) {
		tern_status status = TERN_OK;

		if (end->calls && !end->sends)
			status = pull(end);
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
		status = test_call(end);
		if (status != TERN_OK)
			return status;
		memcpy(end->message + EDGE_BYTES, data, bytes); /* serialise */
		copied(xfer, bytes);
		status = make_call(end, METHOD_PUSH, EDGE_BYTES + bytes);
		if (status != TERN_OK)
			return status == TERN_AGAIN ? status
						    : tn_xfer_link_fail(end->desc, end->link, status);
		copied(xfer, bytes); /* the call took a copy of its arguments */
	} else {
		pthread_mutex_lock(&xfer->lock);
		request = end->request;
		end->request = NULL;
		pthread_mutex_unlock(&xfer->lock);
		if (!request)
			return tn_xfer_link_check(end->desc, end->link);
		tern_rpc_reply(request, TERN_OK, data, bytes);
		copied(xfer, bytes);
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

/* How a message of a dynamic edge goes: with the call, or as the answer to one. */
static tern_status answer_shaped(rpc_end *end, uint64_t bytes)
{
	rpc_xfer *xfer = end->xfer;
	tern_rpc_request *request;
	bool fits;

	pthread_mutex_lock(&xfer->lock);
	request = end->request;
	end->request = NULL;
	fits = bytes <= end->request_room;
	end->kept = fits ? 0 : bytes;
	pthread_mutex_unlock(&xfer->lock);
	tern_rpc_reply(request, TERN_OK, end->shaped[0].data, fits ? bytes : HEAD_BYTES);
	if (fits)
		copied(xfer, bytes - HEAD_BYTES);
	return TERN_OK;
}

static tern_status push_shaped(rpc_end *end, uint64_t bytes)
{
	uint8_t *edge = end->message;
	tern_status status;

	end->message = end->shaped[0].data;
	status = make_call(end, METHOD_PUSH, bytes);
	end->message = edge;
	if (status == TERN_OK)
		copied(end->xfer, bytes - HEAD_BYTES); /* the call took a copy of its arguments */
	return status == TERN_OK || status == TERN_AGAIN ? status
							 : tn_xfer_link_fail(end->desc, end->link, status);
}

/* TERN_OK: the next message may be made. */
static tern_status may_send_shaped(rpc_end *end)
{
	bool asked;

	if (end->calls)
		return test_call(end);
	pthread_mutex_lock(&end->xfer->lock);
	asked = end->request && !end->kept;
	pthread_mutex_unlock(&end->xfer->lock);
	return asked ? TERN_OK : tn_xfer_link_check(end->desc, end->link);
}

static tern_status send_shaped(tn_xfer_end *base, const void *data, uint64_t bytes, const tern_shape *shape,
			       uint64_t step)
{
	rpc_end *end = (rpc_end *)base;
	tern_status status = may_send_shaped(end);

	(void)step;
	if (status != TERN_OK)
		return status;
	TN_TRY(make_room(end, &end->shaped[0], bytes));
	put_head(end, shape, end->shaped[0].data);
	if (bytes)
		memcpy(end->shaped[0].data + HEAD_BYTES, data, bytes); /* serialise */
	copied(end->xfer, bytes);
	status = end->calls ? push_shaped(end, HEAD_BYTES + bytes) : answer_shaped(end, HEAD_BYTES + bytes);
	if (status != TERN_OK)
		return status;
	end->xfer->link.counters.sends++;
	end->xfer->link.counters.bytes_sent += bytes;
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
		return test_call(end);
	pthread_mutex_lock(&end->xfer->lock);
	kept = end->kept != 0;
	pthread_mutex_unlock(&end->xfer->lock);
	return kept ? tn_xfer_link_check(end->desc, end->link) : TERN_OK;
}

static bool next_pushed(rpc_end *end, const void **data)
{
	bool there;

	pthread_mutex_lock(&end->xfer->lock);
	there = end->arrived != end->taken;
	if (there)
		*data = end->desc->dynamic ? end->shaped[end->taken % RPC_SLOTS].data + HEAD_BYTES
					   : end->slots + end->taken % RPC_SLOTS * end->stride;
	pthread_mutex_unlock(&end->xfer->lock);
	return there;
}

static tern_status poll_push(rpc_end *end, const void **data)
{
	tern_status status;

	if (next_pushed(end, data))
		return TERN_OK;
	status = tn_xfer_link_check(end->desc, end->link);
	/* The last tensor may have come just before the end. */
	return status != TERN_AGAIN && next_pushed(end, data) ? TERN_OK : status;
}

/* TERN_OK: the tensor that was asked for has come. */
static tern_status pulled(rpc_end *end)
{
	tern_status status = end->held ? TERN_AGAIN : end->in_call ? test_call(end) : TERN_AGAIN;

	if (status == TERN_AGAIN && !end->in_call && !end->held) {
		/* the channel had no room for the request at the last release */
		status = pull(end);
		return status == TERN_OK || status == TERN_AGAIN
			       ? TERN_AGAIN
			       : tn_xfer_link_fail(end->desc, end->link, status);
	}
	return status;
}

static tern_status poll_pull(rpc_end *end, const void **data)
{
	TN_TRY(pulled(end));
	copied(end->xfer, end->desc->bytes); /* out of the message */
	*data = end->slots + (end->pulled - 1) % end->n_slots * end->stride;
	return TERN_OK;
}

static tern_status poll_one(rpc_end *end, const void **data)
{
	TN_TRY(end->calls ? poll_pull(end, data) : poll_push(end, data));
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

/* A tensor that had no room is asked for again. */
static tern_status poll_pull_shaped(rpc_end *end, const void **data, tern_shape *shape, uint64_t *bytes)
{
	tern_status status = pulled(end);

	if (status != TERN_OK)
		return status;
	if (!read_head(end, end->shaped[0].data, end->op.length, shape, bytes) ||
	    (end->op.length != HEAD_BYTES + *bytes && end->op.length != HEAD_BYTES))
		return tn_xfer_link_fail(end->desc, end->link,
					 tn_fail(TERN_E_CORRUPT, "a tensor of another rank or size"));
	if (end->op.length != HEAD_BYTES + *bytes) {
		TN_TRY(make_room(end, &end->shaped[0], *bytes));
		status = pull(end);
		return status == TERN_OK || status == TERN_AGAIN
			       ? TERN_AGAIN
			       : tn_xfer_link_fail(end->desc, end->link, status);
	}
	copied(end->xfer, *bytes); /* out of the message */
	*data = end->shaped[0].data + HEAD_BYTES;
	return TERN_OK;
}

static tern_status poll_shaped(tn_xfer_end *base, const void **data, tern_shape *shape)
{
	rpc_end *end = (rpc_end *)base;
	uint64_t bytes;

	if (end->calls) {
		TN_TRY(poll_pull_shaped(end, data, shape, &bytes));
	} else {
		TN_TRY(poll_push(end, data));
		*shape = end->shapes[end->taken % RPC_SLOTS];
		TN_TRY(tn_shape_bytes(shape, end->desc->dtype, &bytes));
	}
	end->held = true;
	end->xfer->link.counters.recvs++;
	end->xfer->link.counters.bytes_received += bytes;
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
		status = pull(end);
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
	.send_shaped = send_shaped,
	.poll_shaped = poll_shaped,
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

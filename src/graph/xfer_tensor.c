/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers over static tensor channels: one one-sided write per tensor into a slot of the receiver.
 *
 *   zero-copy  the write reads the tensor where it was computed; the receiver reads the slot in place
 *   copy       the sender first copies into a registered staging buffer, the receiver copies out of the slot
 *              and gives it back at once: what a framework does that does not own its tensors' memory
 *   hollow     slots of no bytes: order and waiting as in zero-copy, but the receiver finds preset numbers. What
 *              a step costs without its tensors' bytes, for measuring
 *
 * Threads: the executor's. Tests: tests/unit/graph/xfer_link_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/tensor.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/xfer_link.h"
#include "tensor/part.h"

typedef struct tensor_xfer tensor_xfer;

typedef struct tensor_end {
	tn_xfer_end base;
	struct tensor_end *next;
	tensor_xfer *xfer;
	tn_edge_desc *desc;
	tern_link *link;
	tern_tensor_tx *tx;          /* sending ends */
	tern_tensor_rx *rx;          /* receiving ends */
	tern_dynamic_tx *dynamic_tx; /* of dynamic edges, instead */
	tern_dynamic_rx *dynamic_rx;
	uint64_t private_bytes; /* copy mode, dynamic: how long private_copy is */
	void *stage;            /* copy mode: sending ends stage in registered memory, ... */
	uint8_t *private_copy;  /* ... receiving ends copy out of the slot; hollow: the preset numbers */
	bool sends;
	bool posted; /* op is in flight */
	tern_op op;
} tensor_end;

/* The slots of a tensor that comes in parts. */
typedef struct tensor_whole {
	struct tensor_whole *next;
	uint32_t number;
	tn_tensor_whole *slots;
} tensor_whole;

struct tensor_xfer {
	tn_xfer_link link; /* first */
	bool staged, hollow;
	bool reads; /* peers read from memory of alloc */
	tensor_whole *wholes;
	tensor_end *ends;
};

static void edge_params(const tensor_end *end, char *name, size_t name_bytes, tern_tensor_params *params)
{
	snprintf(name, name_bytes, "edge %u", end->desc->id);
	*params = (tern_tensor_params){.name = name, .dtype = end->desc->dtype, .shape = end->desc->shape};
	if (end->xfer->hollow)
		params->shape = (tern_shape){.rank = 1, .dims = {0}};
}

static tern_status end_new(tensor_xfer *xfer, const tn_edge_desc *desc, tensor_end **out)
{
	tern_link *link;
	tensor_end *end;

	TN_TRY(tn_xfer_link_of(&xfer->link, desc, &link));
	end = calloc(1, sizeof(*end));
	if (end)
		end->desc = tn_edge_desc_copy(desc);
	if (!end || !end->desc) {
		free(end);
		return tn_fail(TERN_E_NOMEM, "no memory for edge '%s'", desc->name);
	}
	end->base.xfer = &xfer->link.base;
	end->xfer = xfer;
	end->link = link;
	end->next = xfer->ends;
	xfer->ends = end;
	*out = end;
	return TERN_OK;
}

/* ---- dynamic edges: the receiver reads ---- */

static void dynamic_params(const tensor_end *end, char *name, size_t name_bytes, tern_dynamic_params *params)
{
	snprintf(name, name_bytes, "edge %u", end->desc->id);
	*params =
		(tern_dynamic_params){.name = name, .dtype = end->desc->dtype, .rank = end->desc->shape.rank};
}

static tern_status dynamic_open(tensor_end *end, bool sends)
{
	tern_dynamic_params params;
	char name[32];

	if (end->xfer->hollow)
		return tn_fail(TERN_E_UNSUPPORTED,
			       "edge '%s' is dynamic: its order alone says nothing of its sizes",
			       end->desc->name);
	end->xfer->reads |= sends && !end->xfer->staged; /* from here on peers may read what alloc gives */
	if (sends)
		return TERN_OK;
	dynamic_params(end, name, sizeof(name), &params);
	return tern_dynamic_rx_create(end->xfer->link.ctx, &params, &end->dynamic_rx);
}

/* In copy mode the memory is not for peers, so the channel stages it. */
static tern_status send_shaped(tn_xfer_end *base, const void *data, uint64_t bytes, const tern_shape *shape,
			       uint64_t step)
{
	tensor_end *end = (tensor_end *)base;
	tn_xfer_counters *counters = &end->xfer->link.counters;
	tern_status status;

	(void)step;
	TN_ASSERT(!end->posted && end->dynamic_tx);
	tern_op_init(&end->op, NULL, NULL);
	status = tern_dynamic_send(end->dynamic_tx, data, shape, &end->op);
	if (status == TERN_AGAIN)
		return tn_xfer_link_check(end->desc, end->link);
	if (status != TERN_OK)
		return tn_xfer_link_fail(end->desc, end->link, status);
	end->posted = true;
	counters->sends++;
	counters->bytes_sent += bytes;
	if (end->xfer->staged) {
		counters->copies++;
		counters->copy_bytes += bytes;
	}
	return TERN_OK;
}

static tern_status copy_out(tensor_end *end, const void **data, uint64_t bytes)
{
	if (end->private_bytes < bytes || !end->private_copy) {
		uint64_t room = TN_MAX(bytes, end->private_bytes + end->private_bytes / 2) + 64;
		uint8_t *bigger = realloc(end->private_copy, room);

		if (!bigger)
			return tn_fail(TERN_E_NOMEM, "no memory for edge '%s' (%llu bytes)", end->desc->name,
				       (unsigned long long)bytes);
		end->private_copy = bigger;
		end->private_bytes = room;
	}
	memcpy(end->private_copy, *data, bytes);
	end->xfer->link.counters.copies++;
	end->xfer->link.counters.copy_bytes += bytes;
	*data = end->private_copy;
	return tern_dynamic_rx_release(end->dynamic_rx);
}

static tern_status poll_shaped(tn_xfer_end *base, const void **data, tern_shape *shape)
{
	tensor_end *end = (tensor_end *)base;
	tern_status status = tern_dynamic_rx_poll(end->dynamic_rx, data, shape);
	uint64_t bytes;

	if (status == TERN_AGAIN) {
		status = tn_xfer_link_check(end->desc, end->link);
		if (status == TERN_AGAIN || tern_dynamic_rx_poll(end->dynamic_rx, data, shape) != TERN_OK)
			return status;
	} else if (status != TERN_OK) {
		return tn_xfer_link_fail(end->desc, end->link, status);
	}
	bytes = tern_tensor_bytes(end->desc->dtype, shape);
	end->xfer->link.counters.recvs++;
	end->xfer->link.counters.bytes_received += bytes;
	return end->xfer->staged ? copy_out(end, data, bytes) : TERN_OK;
}

static tern_status tensor_alloc(tn_xfer *base, uint64_t bytes, void **ptr)
{
	tensor_xfer *xfer = (tensor_xfer *)base;

	if (!xfer->reads)
		return tn_xfer_link_alloc(base, bytes, ptr);
	TN_TRY(tern_mem_alloc(tern_ctx_mem(xfer->link.ctx), bytes, bytes >= 65536 ? 4096 : 64,
			      TERN_ACCESS_READ, TERN_MEM_HOST, ptr));
	memset(*ptr, 0, bytes);
	return TERN_OK;
}

static tern_status send_open(tn_xfer *base, const tn_edge_desc *desc, tn_xfer_end **out)
{
	tensor_xfer *xfer = (tensor_xfer *)base;
	tensor_end *end = NULL;

	TN_TRY(end_new(xfer, desc, &end));
	end->sends = true;
	*out = &end->base;
	if (desc->dynamic)
		return dynamic_open(end, true);
	if (xfer->staged)
		TN_TRY(tn_xfer_link_alloc(base, desc->bytes, &end->stage));
	*out = &end->base;
	return TERN_OK;
}

static tern_status whole_of(tensor_xfer *xfer, const tn_edge_desc *desc, tn_tensor_whole **slots)
{
	tensor_whole *w = xfer->wholes;

	while (w && w->number != desc->whole)
		w = w->next;
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return tn_fail(TERN_E_NOMEM, "no memory for edge '%s'", desc->name);
		w->number = desc->whole;
		w->next = xfer->wholes;
		xfer->wholes = w;
		TN_TRY(tn_tensor_whole_create(xfer->link.ctx, desc->whole_bytes, 0, &w->slots));
	}
	*slots = w->slots;
	return TERN_OK;
}

static tern_status recv_open(tn_xfer *base, const tn_edge_desc *desc, tn_xfer_end **out)
{
	tensor_xfer *xfer = (tensor_xfer *)base;
	tern_tensor_params params;
	tensor_end *end = NULL;
	uint64_t stride;
	char name[32];

	TN_TRY(end_new(xfer, desc, &end));
	*out = &end->base;
	if (desc->dynamic)
		return dynamic_open(end, false);
	edge_params(end, name, sizeof(name), &params);
	if (xfer->staged || xfer->hollow)
		TN_TRY(tn_xfer_link_room(&xfer->link, desc, 1, &end->private_copy, &stride));
	if (xfer->hollow)
		tn_stub_fill_small(desc, end->private_copy, NULL);
	if (desc->whole_bytes && !end->private_copy) {
		tn_tensor_whole *whole = NULL;

		TN_TRY(whole_of(xfer, desc, &whole));
		TN_TRY(tn_tensor_rx_create_in(xfer->link.ctx, &params, whole, desc->whole_offset, &end->rx));
	} else {
		TN_TRY(tern_tensor_rx_create(xfer->link.ctx, &params, &end->rx));
	}
	*out = &end->base;
	return TERN_OK;
}

/* In slices, so that a cancel is seen: a sender that gave up takes its OPEN back, and the next one asks anew. */
static tern_status open_tx(tensor_end *end, uint64_t deadline_ns)
{
	tern_dynamic_params dynamic;
	tern_tensor_params params;
	tern_status status;
	uint64_t slice_ns;
	char name[32];

	edge_params(end, name, sizeof(name), &params);
	dynamic_params(end, name, sizeof(name), &dynamic);
	do {
		TN_TRY(tn_xfer_link_may_wait(&end->xfer->link, end->desc->peer_name, "publish its tensors",
					     deadline_ns, &slice_ns));
		status = end->desc->dynamic
				 ? tern_dynamic_tx_open(end->link, &dynamic, slice_ns, &end->dynamic_tx)
				 : tern_tensor_tx_open(end->link, &params, slice_ns, &end->tx);
	} while (status == TERN_E_DEADLINE);
	return status == TERN_OK ? status : tn_xfer_link_fail(end->desc, end->link, status);
}

static tern_status start(tn_xfer *base, uint64_t deadline_ns)
{
	tensor_xfer *xfer = (tensor_xfer *)base;

	for (tensor_end *end = xfer->ends; end; end = end->next)
		if (end->sends)
			TN_TRY(open_tx(end, deadline_ns));
	return TERN_OK;
}

static tern_status send_post(tn_xfer_end *base, const void *data, uint64_t bytes, uint64_t step)
{
	tensor_end *end = (tensor_end *)base;
	tn_xfer_counters *counters = &end->xfer->link.counters;
	tern_status status;

	(void)step;
	TN_ASSERT(!end->posted);
	TN_ASSERT(bytes == end->desc->bytes);
	if (end->stage) {
		/* Ask first: a copy for nothing would be made at each try. */
		status = tern_tensor_tx_ready(end->tx);
		if (status == TERN_AGAIN)
			return status;
		memcpy(end->stage, data, bytes);
		data = end->stage;
	}
	tern_op_init(&end->op, NULL, NULL);
	status = tern_tensor_send(end->tx, data, &end->op);
	if (status == TERN_AGAIN)
		return status;
	if (status != TERN_OK)
		return tn_xfer_link_fail(end->desc, end->link, status);
	end->posted = true;
	counters->sends++;
	counters->writes += !end->xfer->hollow;
	counters->bytes_sent += end->xfer->hollow ? 0 : bytes;
	if (end->stage) {
		counters->copies++;
		counters->copy_bytes += bytes;
	}
	return TERN_OK;
}

static tern_status send_test(tn_xfer_end *base)
{
	tensor_end *end = (tensor_end *)base;
	tern_status status;

	if (!end->posted)
		return TERN_OK;
	status = tn_xfer_link_test(end->desc, end->link, &end->op);
	if (status != TERN_AGAIN)
		end->posted = false;
	return status;
}

static tern_status recv_poll(tn_xfer_end *base, const void **data)
{
	tensor_end *end = (tensor_end *)base;
	tn_xfer_counters *counters = &end->xfer->link.counters;
	tern_status status = tern_tensor_rx_poll(end->rx, data);

	if (status == TERN_AGAIN) {
		/* A sender that never bound has no end to report: the link tells. */
		status = tn_xfer_link_check(end->desc, end->link);
		if (status == TERN_AGAIN)
			return status;
		/* The last tensor may have come just before the end. */
		if (tern_tensor_rx_poll(end->rx, data) != TERN_OK)
			return tn_xfer_link_check(end->desc, end->link);
	} else if (status != TERN_OK) {
		return tn_xfer_link_fail(end->desc, end->link, status);
	}
	counters->recvs++;
	if (end->xfer->hollow) {
		*data = end->private_copy;
		return tern_tensor_rx_release(end->rx);
	}
	counters->bytes_received += end->desc->bytes;
	if (!end->private_copy)
		return TERN_OK;
	memcpy(end->private_copy, *data, end->desc->bytes);
	counters->copies++;
	counters->copy_bytes += end->desc->bytes;
	*data = end->private_copy;
	return tern_tensor_rx_release(end->rx);
}

static tern_status recv_release(tn_xfer_end *base)
{
	tensor_end *end = (tensor_end *)base;

	if (end->private_copy)
		return TERN_OK;
	return end->dynamic_rx ? tern_dynamic_rx_release(end->dynamic_rx) : tern_tensor_rx_release(end->rx);
}

static void xfer_close(tn_xfer *base)
{
	tensor_xfer *xfer = (tensor_xfer *)base;

	if (!base)
		return;
	/* Tensors that are on their way are delivered or fail with their link before their memory goes. */
	for (tensor_end *end = xfer->ends; end; end = end->next)
		if (end->posted)
			tern_op_wait(xfer->link.ctx, &end->op, 0);
	while (xfer->ends) {
		tensor_end *end = xfer->ends;

		xfer->ends = end->next;
		tern_tensor_tx_close(end->tx);
		tern_tensor_rx_destroy(end->rx);
		tern_dynamic_tx_close(end->dynamic_tx);
		tern_dynamic_rx_destroy(end->dynamic_rx);
		if (end->desc->dynamic)
			free(end->private_copy);
		tn_xfer_link_free(base, end->stage);
		free(end->desc);
		free(end);
	}
	while (xfer->wholes) {
		tensor_whole *w = xfer->wholes;

		xfer->wholes = w->next;
		tn_tensor_whole_release(w->slots);
		free(w);
	}
	tn_xfer_link_fini(&xfer->link);
	free(xfer);
}

static const tn_xfer_ops tensor_ops = {
	.name = "tensor",
	.send_open = send_open,
	.recv_open = recv_open,
	.alloc = tensor_alloc,
	.free = tn_xfer_link_free,
	.start = start,
	.send_post = send_post,
	.send_test = send_test,
	.recv_poll = recv_poll,
	.recv_release = recv_release,
	.wait = tn_xfer_link_wait,
	.wake = tn_xfer_link_wake,
	.counters = tn_xfer_link_counters,
	.close = xfer_close,
	.send_shaped = send_shaped,
	.poll_shaped = poll_shaped,
};

static tern_status tensor_open(const tn_xfer_link_params *params, bool staged, bool hollow, tn_xfer **out)
{
	tensor_xfer *xfer = calloc(1, sizeof(*xfer));
	tern_status status;

	*out = NULL;
	if (!xfer)
		return tn_fail(TERN_E_NOMEM, "no memory for a transfer");
	status = tn_xfer_link_init(&xfer->link, &tensor_ops, params);
	if (status != TERN_OK) {
		free(xfer);
		return status;
	}
	xfer->staged = staged;
	xfer->hollow = hollow;
	*out = &xfer->link.base;
	return TERN_OK;
}

tern_status tn_xfer_tensor_open(const tn_xfer_link_params *params, bool staged, tn_xfer **xfer)
{
	return tensor_open(params, staged, false, xfer);
}

tern_status tn_xfer_hollow_open(const tn_xfer_link_params *params, tn_xfer **xfer)
{
	return tensor_open(params, false, true, xfer);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transfers over links share: registered memory, waiting without lost wake-ups, and texts that name
 * the peer. See xfer_link.h. Threads: the executor's, but for wake.
 */
#include "graph/xfer_link.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"

struct tn_xfer_whole {
	struct tn_xfer_whole *next;
	uint32_t number;
	bool is_whole; /* else one edge's alone */
	_Alignas(64) uint8_t memory[];
};

tern_status tn_xfer_link_init(tn_xfer_link *xfer, const tn_xfer_ops *ops, const tn_xfer_link_params *params)
{
	xfer->base.ops = ops;
	xfer->ctx = params->ctx;
	xfer->device = params->device;
	xfer->devices = params->devices;
	xfer->canceled = params->canceled;
	xfer->seen = tern_ctx_events(params->ctx);
	xfer->links = calloc(params->devices, sizeof(*xfer->links));
	xfer->dialed = calloc(params->devices, sizeof(*xfer->dialed));
	if (!xfer->links || !xfer->dialed) {
		tn_xfer_link_fini(xfer);
		return tn_fail(TERN_E_NOMEM, "no memory for the links of %u devices", params->devices);
	}
	memcpy(xfer->links, params->links, params->devices * sizeof(*xfer->links));
	memcpy(xfer->dialed, params->dialed, params->devices * sizeof(*xfer->dialed));
	return TERN_OK;
}

void tn_xfer_link_fini(tn_xfer_link *xfer)
{
	free(xfer->links);
	free(xfer->dialed);
	while (xfer->wholes) {
		struct tn_xfer_whole *w = xfer->wholes;

		xfer->wholes = w->next;
		free(w);
	}
	xfer->links = NULL;
	xfer->dialed = NULL;
}

tern_status tn_xfer_link_room(tn_xfer_link *xfer, const tn_edge_desc *desc, uint32_t copies, uint8_t **room,
			      uint64_t *stride)
{
	uint64_t bytes = desc->whole_bytes ? desc->whole_bytes : desc->bytes;
	struct tn_xfer_whole *w = desc->whole_bytes ? xfer->wholes : NULL;

	*stride = (TN_MAX(bytes, 1) + 63) / 64 * 64;
	while (w && (w->number != desc->whole || !w->is_whole))
		w = w->next;
	if (!w) {
		w = aligned_alloc(64, sizeof(*w) + copies * *stride);
		if (!w)
			return tn_fail(TERN_E_NOMEM, "no memory for edge '%s' (%llu bytes)", desc->name,
				       (unsigned long long)bytes);
		memset(w, 0, sizeof(*w) + copies * *stride);
		w->number = desc->whole;
		w->is_whole = desc->whole_bytes > 0;
		w->next = xfer->wholes;
		xfer->wholes = w;
	}
	*room = w->memory + (w->is_whole ? desc->whole_offset : 0);
	return TERN_OK;
}

tern_status tn_xfer_link_may_wait(const tn_xfer_link *xfer, const char *peer, const char *what,
				  uint64_t deadline_ns, uint64_t *slice_ns)
{
	uint64_t now = tn_now();

	if (xfer->canceled && atomic_load(xfer->canceled))
		return tn_fail(TERN_E_CANCELED, "cancelled while waiting for %s to %s", peer, what);
	if (now >= deadline_ns)
		return tn_fail(TERN_E_DEADLINE, "%s did not %s in time", peer, what);
	*slice_ns = TN_MIN(deadline_ns - now, TN_XFER_LINK_LOOK_NS);
	return TERN_OK;
}

tern_status tn_xfer_link_of(tn_xfer_link *xfer, const tn_edge_desc *desc, tern_link **link)
{
	*link = desc->peer < xfer->devices ? xfer->links[desc->peer] : NULL;
	if (!*link)
		return tn_fail(TERN_E_STATE, "edge '%s': there is no link to %s", desc->name,
			       desc->peer_name);
	return TERN_OK;
}

tern_status tn_xfer_link_fail(const tn_edge_desc *desc, tern_link *link, tern_status status)
{
	char detail[256];
	size_t n = strlen(tn_detail_get());

	n = TN_MIN(n, sizeof(detail) - 1);
	memcpy(detail, tn_detail_get(), n);
	detail[n] = '\0';
	return tn_fail(status, "%s at %s, tensor '%s': %s", desc->peer_name,
		       link ? tern_link_peer_address(link) : "?", desc->name,
		       detail[0] ? detail : tern_status_text(status));
}

tern_status tn_xfer_link_check(const tn_edge_desc *desc, tern_link *link)
{
	tern_status status = tern_link_status(link);

	if (status == TERN_OK)
		return TERN_AGAIN;
	if (tern_link_wait(link, 1) == TERN_OK) /* it is settled: this sets the text */
		tn_detail_clear();
	return tn_xfer_link_fail(desc, link, status);
}

tern_status tn_xfer_link_test(const tn_edge_desc *desc, tern_link *link, tern_op *op)
{
	tern_status status = tern_op_test(op);

	if (status == TERN_OK || status == TERN_AGAIN)
		return status;
	return tn_xfer_link_fail(desc, link,
				 tern_op_wait(tern_link_ctx(link), op, 0)); /* it is done: sets the text */
}

tn_edge_desc *tn_edge_desc_copy(const tn_edge_desc *desc)
{
	size_t name = strlen(desc->name) + 1, peer = strlen(desc->peer_name) + 1;
	tn_edge_desc *copy = malloc(sizeof(*copy) + name + peer);
	char *text = (char *)(copy + 1);

	if (!copy)
		return NULL;
	*copy = *desc;
	copy->name = memcpy(text, desc->name, name);
	copy->peer_name = memcpy(text + name, desc->peer_name, peer);
	return copy;
}

tern_status tn_xfer_link_alloc(tn_xfer *base, uint64_t bytes, void **ptr)
{
	tn_xfer_link *xfer = (tn_xfer_link *)base;

	/* Peers never reach into it: this side writes, so no exposure. */
	TN_TRY(tern_mem_alloc(tern_ctx_mem(xfer->ctx), bytes, bytes >= 65536 ? 4096 : 64, TERN_ACCESS_NONE,
			      TERN_MEM_HOST, ptr));
	memset(*ptr, 0, bytes);
	return TERN_OK;
}

void tn_xfer_link_free(tn_xfer *base, void *ptr)
{
	tern_mem_free(tern_ctx_mem(((tn_xfer_link *)base)->ctx), ptr);
}

tern_status tn_xfer_link_wait(tn_xfer *base, uint64_t deadline_ns)
{
	tn_xfer_link *xfer = (tn_xfer_link *)base;
	uint64_t now = tn_now();
	tern_status status = TERN_OK;

	if (deadline_ns == 0)
		tern_ctx_progress(xfer->ctx);
	else if (deadline_ns > now)
		status = tern_ctx_wait_past(xfer->ctx, xfer->seen,
					    deadline_ns == TN_TIME_NEVER ? 0 : deadline_ns - now);
	xfer->seen = tern_ctx_events(xfer->ctx);
	return status == TERN_E_DEADLINE ? TERN_OK : status;
}

void tn_xfer_link_wake(tn_xfer *base)
{
	tern_ctx_wake(((tn_xfer_link *)base)->ctx);
}

void tn_xfer_link_counters(const tn_xfer *base, tn_xfer_counters *counters)
{
	*counters = ((const tn_xfer_link *)base)->counters;
}

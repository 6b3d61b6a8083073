/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers over links: what the three implementations share. The session connects the links first and
 * gives them in, one per device that this device has edges with.
 *
 *   xfer_tensor.c   zero-copy (one write from the tensor's own memory) and copy (staged on both sides),
 *                   over static tensor channels
 *   xfer_rpc.c      serialised into calls: the way of a general RPC, for comparison
 *   xfer_module.c   another system's transfer, loaded from a file
 *
 * Thread story: as xfer.h says. Tests: tests/unit/graph/xfer_link_test.c.
 */
#ifndef TN_GRAPH_XFER_LINK_H
#define TN_GRAPH_XFER_LINK_H

#include <stdatomic.h>

#include <tern/channel.h>

#include "graph/xfer.h"

typedef struct tn_xfer_link_params {
	tern_ctx *ctx;
	uint32_t device; /* this device's number in the plan */
	uint32_t devices;
	tern_link **links;  /* [devices], NULL where there is none; copied, stays the caller's */
	const bool *dialed; /* [devices]: this side connected the link (decides who calls whom in rpc mode) */
	uint64_t call_bytes; /* TERN_COMM_RPC: of a call, the same at all devices; 0 = 128 MiB */
	const atomic_bool
		*canceled; /* ends start() within TN_XFER_LINK_LOOK_NS; may be NULL; outlives the transfer */
} tn_xfer_link_params;

/* staged false: TERN_COMM_ZEROCOPY, true: TERN_COMM_COPY. */
tern_status tn_xfer_tensor_open(const tn_xfer_link_params *params, bool staged, tn_xfer **xfer);
/* TERN_COMM_NONE: only the order of tensors travels, not their bytes. */
tern_status tn_xfer_hollow_open(const tn_xfer_link_params *params, tn_xfer **xfer);
/* TERN_COMM_RPC. One per context at a time. */
tern_status tn_xfer_rpc_open(const tn_xfer_link_params *params, tn_xfer **xfer);
/* TERN_COMM_GRPC: by the module that options graph.grpc_module and graph.grpc_way name. One per context at a time. */
tern_status tn_xfer_grpc_open(const tn_xfer_link_params *params, tn_xfer **xfer);
/* Any module (xfer_module.h). way "": its first. TERN_E_NOT_FOUND: it cannot be loaded; TERN_E_VERSION. */
tern_status tn_xfer_module_open(const tn_xfer_link_params *params, const char *path, const char *way,
				tn_xfer **xfer);

/* ---- shared ---- */

/* How often start() looks whether it was cancelled. */
#define TN_XFER_LINK_LOOK_NS 200000000ull

/* First member of both implementations. */
typedef struct tn_xfer_link {
	tn_xfer base;
	tern_ctx *ctx;
	uint32_t device, devices;
	tern_link **links;
	bool *dialed;
	const atomic_bool *canceled;
	uint64_t seen; /* events of the context up to the last wait: none after it is lost */
	tn_xfer_counters counters;
	struct tn_xfer_whole *wholes; /* of modes that copy out of messages or slots */
} tn_xfer_link;

/*
 * Plain memory for `copies` tensors of an edge, bytes *stride apart: of its own, or, if the edge is a part, the
 * ranges of the whole's memory. Freed with the transfer. TERN_E_NOMEM.
 */
tern_status tn_xfer_link_room(tn_xfer_link *xfer, const tn_edge_desc *desc, uint32_t copies, uint8_t **room,
			      uint64_t *stride);

tern_status tn_xfer_link_init(tn_xfer_link *xfer, const tn_xfer_ops *ops, const tn_xfer_link_params *params);
void tn_xfer_link_fini(tn_xfer_link *xfer);
/* For start(): TERN_E_CANCELED, or TERN_E_DEADLINE that names who is waited for; *slice_ns: wait no longer. */
tern_status tn_xfer_link_may_wait(const tn_xfer_link *xfer, const char *peer, const char *what,
				  uint64_t deadline_ns, uint64_t *slice_ns);
/* The link to the edge's other end; TERN_E_STATE if there is none. */
tern_status tn_xfer_link_of(tn_xfer_link *xfer, const tn_edge_desc *desc, tern_link **link);
/* status with a text that names the peer: "server1 at 127.0.0.1:4001: <detail>". */
tern_status tn_xfer_link_fail(const tn_edge_desc *desc, tern_link *link, tern_status status);
/* TERN_AGAIN while the link is there; else why it is down, with the link's own text. */
tern_status tn_xfer_link_check(const tn_edge_desc *desc, tern_link *link);
/* As tern_op_test, but a failure has the operation's text and names the peer. */
tern_status tn_xfer_link_test(const tn_edge_desc *desc, tern_link *link, tern_op *op);
/* A copy of an edge's descriptor that lives as long as the end; free with free(). NULL: no memory. */
tn_edge_desc *tn_edge_desc_copy(const tn_edge_desc *desc);

/* Entries for the ops tables. */
tern_status tn_xfer_link_alloc(tn_xfer *xfer, uint64_t bytes, void **ptr);
void tn_xfer_link_free(tn_xfer *xfer, void *ptr);
tern_status tn_xfer_link_wait(tn_xfer *xfer, uint64_t deadline_ns);
void tn_xfer_link_wake(tn_xfer *xfer);
void tn_xfer_link_counters(const tn_xfer *xfer, tn_xfer_counters *counters);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer interface: what the executor needs from whatever moves tensors between devices. One transfer
 * belongs to one device of a plan (one process, or one thread in tests) and has one end per edge that starts
 * or ends there.
 *
 *   send end   send_post -> [send_test ...]      the source is the transfer's from post to send_test's OK
 *   recv end   recv_poll -> use in place -> recv_release
 *
 * An edge has K slots (2 by default): the receiver holds at most K tensors, and a sender that finds none
 * free is told TERN_AGAIN. Tensors of an edge arrive in the order they were posted, each exactly once.
 *
 * Nothing here blocks except start() and wait(). After any status but TERN_OK and TERN_AGAIN the transfer is
 * broken: the executor calls nothing but close() then, and tern_detail() says why and names the peer.
 *
 * Thread story: all functions are called from the executor's thread, except wake(), which any thread may
 * call at any time between creation and close. Implementations: xfer_local.c (threads of one process),
 * xfer_stub.c (no peer at all), and those over links.
 */
#ifndef TN_GRAPH_XFER_H
#define TN_GRAPH_XFER_H

#include <stdbool.h>

#include <tern/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One edge as both of its ends see it. Strings live as long as the plan. */
typedef struct tn_edge_desc {
	uint32_t id;      /* the same number at both ends; dense from 0 in the plan */
	const char *name; /* the tensor's */
	tern_dtype dtype;
	tern_shape shape;
	uint64_t bytes; /* of one tensor */
	uint32_t peer;  /* device number of the other end in the plan */
	const char *peer_name;
	bool dynamic;   /* only the rank of shape counts: tensors go by send_shaped and come by poll_shaped */
	bool one_sided; /* the plan wants one write from registered memory into the receiver's slot */
	/*
	 * A receiver may want the edge's tensors as parts of a whole: the received tensors of all its edges of
	 * one `whole` lie in one memory of whole_bytes, each at its offset. They are polled and released in
	 * step: the n-th tensors of the edges are parts of the n-th whole. whole_bytes 0: not a part.
	 */
	uint32_t whole; /* a number that other wholes of the device do not have */
	uint64_t whole_bytes, whole_offset;
} tn_edge_desc;

typedef struct tn_xfer tn_xfer;
typedef struct tn_xfer_end tn_xfer_end; /* one end of one edge; each implementation defines its own */

/* Since creation. A copy is a pass over a tensor's bytes in host memory beyond the one write of the transport. */
typedef struct tn_xfer_counters {
	uint64_t sends, recvs; /* tensors */
	uint64_t bytes_sent, bytes_received;
	uint64_t copies, copy_bytes;
	uint64_t writes; /* one-sided writes */
} tn_xfer_counters;

typedef struct tn_xfer_ops {
	const char *name;

	/*
	 * Make an end of an edge. Does not wait for the peer: the two devices may open in any order. The
	 * descriptor is copied. The end lives until close(). TERN_E_NOMEM, TERN_E_EXISTS (opened before).
	 */
	tern_status (*send_open)(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end);
	tern_status (*recv_open)(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end);

	/*
	 * Memory that tensors are sent from, 64-byte aligned and zeroed: registered where that means
	 * something. free() only when no end has it posted; NULL is allowed. TERN_E_NOMEM, TERN_E_BUDGET.
	 */
	tern_status (*alloc)(tn_xfer *xfer, uint64_t bytes, void **ptr);
	void (*free)(tn_xfer *xfer, void *ptr);

	/*
	 * Blocks until every end that was opened is connected with its peer, which has the same edge with the
	 * same type and shape. Called once, after the last open. deadline_ns: point on the monotonic clock,
	 * TN_TIME_NEVER = none. TERN_E_DEADLINE names a peer that is missing; TERN_E_SHAPE; peer and path errors.
	 */
	tern_status (*start)(tn_xfer *xfer, uint64_t deadline_ns);

	/*
	 * Start to send a tensor; bytes is that of the edge. data must stay unchanged until send_test() says
	 * OK. With one_sided, data lies in memory of alloc(). TERN_AGAIN: no slot is free at the receiver,
	 * nothing was accepted. At most one tensor is posted per end: test the one before first.
	 */
	tern_status (*send_post)(tn_xfer_end *end, const void *data, uint64_t bytes, uint64_t step);
	/* TERN_OK: nothing is posted, the source may be written again. TERN_AGAIN: still being read. */
	tern_status (*send_test)(tn_xfer_end *end);

	/*
	 * TERN_OK: *data is the oldest tensor that was not polled yet, to be read in place until
	 * recv_release(). TERN_AGAIN: none is there. At most one tensor per end is held at a time.
	 */
	tern_status (*recv_poll)(tn_xfer_end *end, const void **data);
	/* The tensor of the last recv_poll() is not read any more; its slot goes back to the sender. */
	tern_status (*recv_release)(tn_xfer_end *end);

	/*
	 * Makes progress and blocks until a poll, post or test that said TERN_AGAIN may succeed, until wake(),
	 * or until deadline_ns (monotonic; TN_TIME_NEVER = none; 0 = do not block, for spinning). What happens between
	 * the caller's last poll and the wait is not lost: the wait returns at once. May return for no reason.
	 * TERN_OK in all these cases, the deadline included; else what broke the transfer.
	 */
	tern_status (*wait)(tn_xfer *xfer, uint64_t deadline_ns);
	/* End a wait() that runs in another thread, or the next one. Any thread; no locks held by the caller. */
	void (*wake)(tn_xfer *xfer);

	void (*counters)(const tn_xfer *xfer, tn_xfer_counters *counters);

	/*
	 * Of dynamic edges, in place of send_post and recv_poll; NULL: this transfer has none, open refuses them. The
	 * rules are the same, but that memory of alloc() is the sender's again only when the receiver has read it.
	 */
	tern_status (*send_shaped)(tn_xfer_end *end, const void *data, uint64_t bytes,
				   const tern_shape *shape, uint64_t step);
	tern_status (*poll_shaped)(tn_xfer_end *end, const void **data, tern_shape *shape);

	/* Ends everything and frees the transfer with its ends and memory. Tells the peers. NULL is allowed. */
	void (*close)(tn_xfer *xfer);
} tn_xfer_ops;

/* The first member of every implementation's struct. */
struct tn_xfer {
	const tn_xfer_ops *ops;
};

/* Every end begins with this, so that the executor needs no look-up to name what it waits for. */
struct tn_xfer_end {
	tn_xfer *xfer;
};

/* ---- xfer_local.c: devices are threads of one process ---- */

typedef struct tn_local_hub tn_local_hub;

typedef struct tn_local_params {
	uint32_t devices;
	uint32_t slots; /* per edge; 0 = 2 */
	/*
	 * Adversarial mode: a posted tensor is read from the sender's memory only some polls later, so that a
	 * sender that writes its buffer too early is found out. 0 = copy at once; else the seed of the delays.
	 */
	uint64_t lazy_seed;
} tn_local_params;

/* The hub outlives its transfers. Edges match by id. */
tern_status tn_local_hub_create(const tn_local_params *params, tn_local_hub **hub);
void tn_local_hub_destroy(tn_local_hub *hub);
tern_status tn_local_open(tn_local_hub *hub, uint32_t device, tn_xfer **xfer);

/* ---- xfer_stub.c: nothing is moved; for what a step costs without communication ---- */

/* Fills the tensor that every receive of an edge will find. NULL: small pseudo-random numbers. */
typedef void (*tn_stub_fill)(const tn_edge_desc *desc, void *data, void *arg);
tern_status tn_stub_open(tn_stub_fill fill, void *arg, tn_xfer **xfer);
/* That: reals of the size of gradients. */
void tn_stub_fill_small(const tn_edge_desc *desc, void *data, void *arg);

#ifdef __cplusplus
}
#endif

#endif

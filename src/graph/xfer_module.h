/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that come from outside of libtern-graph: a shared object with one symbol, tn_xfer_module_get, loaded
 * when a plan asks for it. So a comparison with another RPC system runs the same executor on the same plan, and
 * nothing of that system is linked into tern.
 *
 * The module brings its own connections. What it cannot know, where its peers listen, the host tells it: peers are
 * joined by links already, and whoever dialled a link also dials the module's connection. C and C++ may include this.
 *
 * Thread story: as xfer.h says. Tests: tests/unit/graph/xfer_link_test.c; the module of the benches is in bench/graph.
 */
#ifndef TN_GRAPH_XFER_MODULE_H
#define TN_GRAPH_XFER_MODULE_H

#include "graph/xfer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of this file and xfer.h together: a module of another number is refused. */
#define TN_XFER_MODULE_VERSION 3u
#define TN_XFER_ADDRESS_MAX    128u

typedef struct tn_xfer_host tn_xfer_host;

/* What the host does for a module; from the executor's thread. */
typedef struct tn_xfer_host_ops {
	/* Once, from start(): peers that dialled us may connect at address now. */
	tern_status (*publish)(tn_xfer_host *host, const char *address);
	/* From start(): where device listens, waiting for it to publish until deadline_ns. */
	tern_status (*look_up)(tn_xfer_host *host, uint32_t device, uint64_t deadline_ns,
			       char address[TN_XFER_ADDRESS_MAX]);
	/* start() should give up: TERN_E_CANCELED. */
	bool (*canceled)(const tn_xfer_host *host);
	/* Leave a text for tern_detail() and return status. */
	tern_status (*fail)(tern_status status, const char *text);
	/* The last call, from close(). */
	void (*done)(tn_xfer_host *host);
} tn_xfer_host_ops;

typedef struct tn_xfer_module_params {
	tn_xfer_host *host;
	const tn_xfer_host_ops *ops;
	const char *way; /* which of the module's ways; "" = its first */
	uint32_t device, devices;
	const bool *dialed; /* [devices]: this side connects; lives until open() returns */
} tn_xfer_module_params;

typedef struct tn_xfer_module {
	uint32_t version; /* TN_XFER_MODULE_VERSION */
	const char *name; /* "grpc" */
	/* TERN_E_INVALID lists the ways there are. On failure nothing is left and done() was not called. */
	tern_status (*open)(const tn_xfer_module_params *params, tn_xfer **xfer);
} tn_xfer_module;

typedef const tn_xfer_module *(*tn_xfer_module_get_fn)(void);
#define TN_XFER_MODULE_SYMBOL "tn_xfer_module_get"

#ifdef __cplusplus
}
#endif

#endif

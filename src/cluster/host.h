/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator inside of a server: coord.h behind calls of the context that the server listens on.
 *
 *   watchers   servers that wait for a newer map: at most one call of each, held until there is one or its time is over
 *
 * Its state is in memory: it does not survive its process. Threads: handlers and the timer run from dispatch;
 * tn_cl_host_handle from any thread. Tests: tests/unit/cluster/cluster_test.c.
 */
#ifndef TN_CLUSTER_HOST_H
#define TN_CLUSTER_HOST_H

#include <pthread.h>

#include <tern/rpc.h>

#include "channel/ctx_slots.h"
#include "cluster/wire.h"

typedef struct tn_cl_watcher {
	tern_rpc_request *request; /* NULL: none */
	uint64_t end_ns;
	unsigned version; /* of maps that it reads */
} tn_cl_watcher;

typedef struct tn_cl_host {
	tern_ctx *ctx;
	pthread_mutex_t lock;
	tn_coord coord;
	tn_cl_watcher watchers[TN_CL_SERVERS_MAX];
	uint64_t told; /* version that watchers have been told */
	tn_ctx_timer timer;
	bool closing;
	void (*changed)(void *arg); /* a newer map; from any thread, under no lock */
	void *arg;
} tn_cl_host;

/* Serves from now on. TERN_E_NOMEM, TERN_E_EXISTS. */
tern_status tn_cl_host_open(tern_ctx *ctx, const tn_coord_params *params, void (*changed)(void *arg),
			    void *arg, tn_cl_host **host);
void tn_cl_host_close(tn_cl_host *host);
/*
 * A message, but no WATCH. Returns the bytes of the answer, of which there is room for TN_CL_ANSWER_MAX; 0: it can't be read.
 * *status: what the answer says; a failure's text is tn_detail_get's.
 */
uint64_t tn_cl_host_handle(tn_cl_host *host, const void *msg, uint64_t bytes, uint8_t *answer,
			   tern_status *status);

/* What a message does to a coordinator; also of one that etcd keeps. */
tern_status tn_cl_apply(tn_coord *c, uint64_t now, tn_cl_msg *msg);

#endif

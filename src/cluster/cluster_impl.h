/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a membership.
 *
 *   member   the thread that joins, renews, reports and hears of maps; one call at a time, and one WATCH beside it
 *   way      how a message gets to the coordinator: a call, or the host in this process
 *
 *   JOINING -number-> MEMBER -the coordinator does not know it-> JOINING with another incarnation
 *
 * Locks: lock (what is to be said); none is held over a call or on_map. Tests: tests/unit/cluster/cluster_test.c.
 */
#ifndef TN_CLUSTER_IMPL_H
#define TN_CLUSTER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/fail.h"
#include "base/options.h"
#include "base/os.h"
#include "cluster/cluster.h"
#include "cluster/host.h"

extern const tn_option_row tn_cluster_options[];

typedef struct tn_cl_pending { /* a report that no map has answered */
	uint8_t what;          /* 0: none */
	uint32_t epoch;
} tn_cl_pending;

struct tn_cluster {
	tern_ctx *ctx;
	tn_cluster_params p;
	uint64_t lease_ns;
	_Atomic uint64_t lease_until_ns;
	/* way */
	tn_cl_host *host; /* NULL: the coordinator is elsewhere */
	tern_rpc *rpc;    /* NULL: it is here, or etcd keeps the map */
	struct tn_cl_etcd *etcd;
	tn_thread thread;
	bool joinable;
	/* lock */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop, ready, news; /* news: of the host, or of WATCH */
	bool drain, leave, dirty;
	tern_status status; /* of joining */
	char detail[TN_DETAIL_MAX];
	tn_cl_pending pending[TN_CL_SLOTS];
	bool watching;
	/* the thread's own */
	uint64_t incarnation, seen, renew_at_ns, load_at_ns;
	uint32_t maps; /* versions that are asked for: an older coordinator refuses who reads newer ones */
	uint16_t self;
	tn_cl_map map; /* newest */
	tn_cl_map incoming;
	uint8_t *msg, *answer, *watch_msg, *watch_answer;
	tern_op watch_op;
	uint64_t watch_bytes;
	bool watch_ok;
	uint32_t load[TN_CL_SLOTS];
	tn_coord_fact facts[TN_CL_SLOTS];
	tn_cl_load loads[TN_CL_SLOTS];
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a membership whose coordinator is a server. Tests: tests/unit/cluster/cluster_test.c.
 */
#ifndef TN_CLUSTER_MEMBER_H
#define TN_CLUSTER_MEMBER_H

#include "cluster/cluster_impl.h"

/* c->incoming is the map from now on. */
void tn_cl_take_incoming(tn_cluster *c);
/* Reports that no map has answered, into c->facts. */
uint32_t tn_cl_gather_facts(tn_cluster *c);
bool tn_cl_stopping(tn_cluster *c);
/* Sleep, or until there is something to do. */
void tn_cl_nap(tn_cluster *c, uint64_t until_ns);
/* Open returns with this. */
void tn_cl_joined(tn_cluster *c, tern_status status);

/* arg: the tn_cluster. Runs until stop; sets ready when it has joined, or could not. */
void *tn_cl_member_run(void *arg);

/* The same with etcd (etcd.c). open: before the thread; TERN_E_INVALID, _UNSUPPORTED. close: after it. */
tern_status tn_cl_etcd_open(tn_cluster *c);
void *tn_cl_etcd_run(void *arg);
void tn_cl_etcd_close(tn_cluster *c);

#endif

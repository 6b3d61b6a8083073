/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a membership whose coordinator is a server. Tests: tests/unit/cluster/cluster_test.c.
 */
#ifndef TN_CLUSTER_MEMBER_H
#define TN_CLUSTER_MEMBER_H

#include "cluster/cluster_impl.h"

/* arg: the tn_cluster. Runs until stop; sets ready when it has joined, or could not. */
void *tn_cl_member_run(void *arg);

#endif

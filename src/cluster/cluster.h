/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership of a server: it joins, keeps a lease, hears of each new slot map, and tells what it found out about slots.
 * Two implementations behind these functions: a coordinator inside of the first server, or etcd.
 *
 *   lease    runs for cluster.lease from when this side SENT the renewal that was granted. The coordinator takes this
 *            server for dead only cluster.margin after the lease that it granted last has ended by its own clock, so a
 *            server that can't renew stops on its own before anybody takes its slots over
 *
 *   What the coordinator decides comes as a map alone; what a server finds out goes to it as a report, which is repeated
 *   until a map answers it (the slot's epoch is past the reported one, or it is IN_SYNC). So nothing waits in here:
 *
 *   primary of (P, B) SYNCING, slot copied    tn_cluster_synced -> map with IN_SYNC
 *   primary of (P, B) MOVE, slot copied       it stops serving the slot (reads too; callers are told to come again), B
 *                                             confirms once more, then tn_cluster_released -> map with B as primary, alone.
 *                                             It serves again if a map says that it is primary still, of a later epoch
 *   primary whose backup does not answer      tn_cluster_lost -> map without backup; only then it acknowledges alone
 *
 *   A server acknowledges writes, and answers reads that are to be current, only while its lease is valid, and only for
 *   slots of which it is primary in the newest map that it has heard of.
 *
 * Threads: all functions from any thread, close not from a callback; on_map runs in a thread of the cluster's, once at a
 * time, versions growing; it may call synced and lost. Tests: tests/unit/cluster.
 */
#ifndef TN_CLUSTER_CLUSTER_H
#define TN_CLUSTER_CLUSTER_H

#include <tern/ctx.h>

#include "cluster/map.h"

typedef struct tn_cluster tn_cluster;

/* Zero it, then set what differs. */
typedef struct tn_cluster_params {
	/*
	 * NULL or "": the coordinator is in this process. "host:port": the server that has it.
	 * "etcd:http://host:port[,...][/prefix]": etcd keeps the map.
	 */
	const char *join;
	uint64_t
		incarnation; /* 0 = random; of the first time: who is told that it is dead joins anew as another */
	uint32_t
		replicas; /* copies of each slot, 1 or 2; 0 = 1. The coordinator's counts (etcd: the first one's) */
	uint32_t first; /* the coordinator gives slots out when so many servers have joined; 0 = 1 */
	/* A new map; valid during the call. self: this server's number in it; TN_CL_NONE: it is not in it (any more). */
	void (*on_map)(void *arg, const tn_cl_map *map, uint16_t self);
	/* Keys per second of each slot that is this server's, since the last call; NULL = not known. */
	void (*load)(void *arg, uint32_t load[TN_CL_SLOTS]);
	void *arg;
} tn_cluster_params;

/*
 * Join, by the address of ctx. *cluster is set before on_map runs for the first time. Returns when the first map with this server came, and on_map has run with it.
 * TERN_E_UNREACHABLE, _DEADLINE: no coordinator answered in cluster.join; TERN_E_UNSUPPORTED: no etcd in this build.
 */
tern_status tn_cluster_open(tern_ctx *ctx, const tn_cluster_params *params, tn_cluster **cluster);
/* Stops renewing: the others take this server for dead when its lease is over. No on_map runs afterwards. NULL: fine. */
void tn_cluster_close(tn_cluster *cluster);
/* This server ends and acknowledges nothing any more: its slots go to their backups at once. At most a second or so. */
void tn_cluster_leave(tn_cluster *cluster);

/* May this server acknowledge? One load and the clock. */
bool tn_cluster_lease_valid(const tn_cluster *cluster);

/* See above. Slots are copied; a later report of a slot replaces an earlier one. */
void tn_cluster_synced(tn_cluster *cluster, const uint16_t *slots, const uint32_t *epochs, uint32_t n);
void tn_cluster_released(tn_cluster *cluster, const uint16_t *slots, const uint32_t *epochs, uint32_t n);
void tn_cluster_lost(tn_cluster *cluster, const uint16_t *slots, const uint32_t *epochs, uint32_t n);

/* Give all slots of this server away. It has none when a map says so. Repeated until the map shows it. */
void tn_cluster_drain(tn_cluster *cluster);

#endif

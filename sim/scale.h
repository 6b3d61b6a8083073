/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the protocol behaves at scale: many production link machines over the simulated network.
 *
 *   node     a host with one CPU: each input of one of its links takes cpu_ns of it, one after the other
 *   end      one side of a link: its tn_link, its lanes, its load
 *   lane     one side of a queue pair: a flow of requests and a flow of answers to the peer
 *   wr       a posted work request, from its post to its completion
 *
 *   lane:  held <= slots (what the device has for it); or its node's pool_slots; a frame that finds none is an RNR: it is tried again
 *          after rnr_ns, and what is behind it waits. held <= granted by the link: never an RNR
 *
 * The device: RC semantics without faults. A request completes when the answer to it is back; answers go ahead
 * of other traffic in their NIC, in the same class. Control connections are outside of the network: a fixed
 * delay. Payload is not copied; frames are.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#ifndef TERN_SIM_SCALE_H
#define TERN_SIM_SCALE_H

#include <stdio.h>

#include "base/hist.h"
#include "link/link.h"
#include "link/share.h"
#include "sim/event.h"
#include "sim/net.h"

typedef enum scale_pattern { SCALE_TO_ONE, SCALE_ALL_TO_ALL } scale_pattern;

/* Whom a host of an all-to-all pushes to first: whoever, the one after it, or all the same. */
typedef enum scale_order { SCALE_RANDOM, SCALE_IN_STEPS, SCALE_SAME } scale_order;

typedef struct scale_config {
	const char *name;
	sim_net_config net;
	tn_link_config link; /* sizes; who is who is filled in */
	scale_pattern pattern;
	scale_order order;      /* of an all-to-all */
	uint32_t pair_links;    /* of each pair: 1 */
	uint32_t channels_open; /* of each link, beside those of the load; messages go over them in turn */
	bool model;             /* scale_model.c in place of the machines: pushes and fetches alone */
	uint64_t push_bytes;    /* 4 MiB */
	uint32_t pushes;        /* of each pair, one after the other */
	uint32_t push_depth;    /* of them at once */
	uint64_t fetch_bytes, fetch_gap_ns; /* reads beside them; the gap is the mean; 0 = none */
	uint32_t messages;                  /* of each pair to the server, as fast as they go; 0 = none */
	uint64_t message_bytes;
	uint32_t depth; /* of messages at once */
	uint64_t cpu_ns, ctrl_ns, rnr_ns;
	uint64_t device_bytes;  /* budget of bulk in flight of a sender; 0 = none */
	uint64_t grant_bytes;   /* receiver-granted bulk: granted and not arrived, of a node; 0 = no grants */
	uint64_t grant_quantum; /* 64 KiB: of one grant */
	uint32_t lane0_slots, lane_slots; /* receive slots of a lane */
	uint32_t pool_slots;              /* all lanes of a node draw from these; 0 = each has its own */
	uint32_t lane0_grant, lane_grant; /* told to the peer; more than slots: credits are off */
	uint64_t sample_ns;               /* between two samples of the receiver's queue; 0 = none */
	FILE *samples;
	uint64_t idle_ns; /* between the end of the load and when the memory of idle links is counted */
	uint64_t seed;
	uint64_t limit_ns; /* virtual time; a run that is not through by then has failed */
} scale_config;

typedef struct scale_result {
	bool complete;
	uint64_t ns;      /* from the start of the load to its end */
	uint64_t payload; /* bytes pushed */
	double goodput;   /* payload / (time * rate * receivers) */
	uint64_t pushes, fetches, messages;
	tn_hist push_ns, fetch_ns, message_ns;
	sim_net_stats net;
	uint64_t receiver_queue_peak;
	uint64_t rnr, posts, frames, credit_waits, window_waits, slots_peak;
	uint32_t links, qps; /* of the node that has most */
	uint64_t link_bytes; /* of one link with its tables, and its part of what the node borrowed at most */
	uint64_t idle_bytes; /* that a link has in use after idle_ns, of the one that has most */
	uint64_t channel_bytes; /* of one more channel in it */
	uint64_t node_bytes;    /* links, and receive slots of the node that has most */
	uint64_t events;
} scale_result;

void scale_defaults(scale_config *config, scale_pattern pattern, uint32_t hosts);
/* False: the configuration makes no sense, or the run did not end. A sentence on stderr says which. */
bool scale_run(const scale_config *config, scale_result *result);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the network. Its files only.
 *
 *   units[]   what is under way; row 0 is none. Lives from its NIC to its delivery or loss
 *   flows[]   rows; a handle is generation << 32 | row. A closed row is free once it is in no ring and has no
 *             unit under way
 *   items[]   of flows, oldest first: head is arriving, cur is being sent, head <= cur
 *
 *   flow:  tx_psn - rx_psn >= 0;  under_way = its units
 *
 * Threads: none. Tests: tests/unit/sim/net_test.c.
 */
#ifndef TERN_SIM_NET_INTERNAL_H
#define TERN_SIM_NET_INTERNAL_H

#include "base/check.h"
#include "sim/alloc.h"
#include "sim/net.h"

typedef struct sim_unit {
	uint32_t next; /* in its queue, or of the free ones */
	uint32_t flow; /* row */
	uint32_t psn;
	uint32_t payload, wire; /* bytes */
	uint32_t in;            /* port by which it came into the switch where it is */
	uint8_t class;
	bool marked, last;
} sim_unit;

typedef struct sim_fifo {
	uint32_t head, tail;
} sim_fifo;

typedef struct sim_item {
	uint64_t bytes, cookie;
	uint32_t next;
	bool taken;
} sim_item;

typedef struct sim_flow {
	const sim_flow_ops *ops;
	void *arg;
	uint64_t backlog;
	uint64_t cur_sent;     /* bytes of cur */
	uint64_t head_arrived; /* bytes of head */
	sim_event_id rto;
	uint32_t from, to;
	uint32_t generation, next; /* next: in the NIC's ring, or of the free ones */
	uint32_t head, tail, cur;  /* items */
	uint32_t tx_psn, tx_psn_max, rx_psn, rto_psn;
	uint32_t under_way;
	uint8_t class;
	bool open, ringed, urgent, nak_sent, marked;
} sim_flow;

typedef struct sim_port {
	uint64_t free_ps; /* when the transmitter has sent what it sends */
	uint64_t bps;
	uint32_t to;    /* switch, or host where to_host */
	uint32_t owner; /* switch, or host where of_host */
	bool of_host, to_host, armed, cut;
	bool paused[SIM_NET_CLASSES], asked[SIM_NET_CLASSES]; /* asked: by the switch at its other end */
	uint64_t paused_since[SIM_NET_CLASSES];
	uint64_t held[SIM_NET_CLASSES];  /* bytes in the switch at its other end that came by it */
	sim_fifo queue[SIM_NET_CLASSES]; /* units; of a host: flows */
	uint64_t queued;                 /* wire bytes; switches only */
	uint64_t busy_ps;
	uint64_t taken_flow, taken_cookie; /* what the NIC says when this unit is through */
	sim_port_stats stats;
} sim_port;

typedef struct sim_switch {
	uint64_t buffered;
} sim_switch;

struct sim_net {
	sim_net_config config;
	sim_events *events;
	uint32_t leaves, switch_count, port_count;
	sim_switch *switches;
	sim_port *ports;
	sim_unit *units;
	uint32_t unit_count, unit_room, unit_free;
	sim_item *items;
	uint32_t item_count, item_room, item_free;
	sim_flow *flows;
	uint32_t flow_count, flow_room, flow_free;
	uint64_t under_way_bytes;
	sim_net_stats stats;
};

/* ---- net_port.c ---- */

/* There may be something to send. */
void sim_port_wake(sim_net *net, uint32_t port);
/* Wire bytes of a unit. */
static inline uint32_t sim_wire_bytes(const sim_net_config *config, uint32_t payload)
{
	uint32_t packets = payload ? (payload + config->mtu_bytes - 1) / config->mtu_bytes : 1;

	return payload + packets * config->header_bytes;
}

/* ---- net_flow.c ---- */

/* The next unit that a host's flows of a class have to send; 0 = none. */
uint32_t sim_nic_next(sim_net *net, uint32_t port, uint32_t class);
/* A unit came to its host, or was lost on its way: its row is free afterwards. */
void sim_flow_deliver(sim_net *net, uint32_t unit);
void sim_flow_lost(sim_net *net, uint32_t unit);
/* The NIC is through with the last unit of an item. */
void sim_flow_taken(sim_net *net, uint64_t flow, uint64_t cookie);

#endif

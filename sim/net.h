/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of the simulator: what lies between NICs, at the level of packets or of chunks, in virtual time.
 *
 *   host     one NIC port, by number 0..hosts-1
 *   switch   one for all hosts, or leaves of leaf_hosts hosts with spines above; a shared buffer each
 *   cable    one direction between two of them: a transmitter with a rate, then delay_ns. Its number is a
 *            "port" below:  host h up = h;  down to host h = hosts + h;  trunks after these
 *   unit     what is sent at once: at most unit_bytes of an item, headers counted for each mtu_bytes of it.
 *            unit_bytes = mtu_bytes is a packet; larger ones are chunks (store and forward per chunk)
 *   class    SIM_NET_CLASSES priorities, strict, the higher one first; PFC pauses each by itself
 *   flow     an ordered stream of items from a host to a host: one queue pair's direction. A NIC serves its
 *            flows of a class round robin, unit by unit
 *   item     n bytes with the caller's cookie; 0 bytes is a packet with headers alone
 *
 *   buffered(switch)  = sum of queued(out) = sum of held(in)           bytes, per class too
 *   sent by hosts     = delivered + discarded + dropped + under way    wire bytes
 *   free_ps(port)     >= start of a unit + its wire bytes * 8 / rate   rate is never exceeded
 *
 * Marking: a unit that finds more than mark_bytes in its output queue is marked (0 = never).
 * PFC (lossless): when held(in, class) passes xoff_bytes, the transmitter of that cable stops after the delay
 * of a cable and a packet in its way; at xon_bytes it goes on likewise. Nothing is lost as long as
 * buffer_bytes >= cables into a switch * (xoff_bytes + sim_net_headroom()).
 * Lossy: an output queue may hold as much as is free in the switch (dynamic threshold 1), the rest is dropped.
 * A drop is noticed by the receiver at the next unit of its flow, or by the sender after rto_ns; the flow goes
 * back to the lost unit (go-back-N), as RC does. rto_ns = 0: it never notices.
 *
 * Callbacks come from events, never from within a call; they may call anything here but sim_net_fini.
 * Threads: none. Tests: tests/unit/sim/net_test.c.
 */
#ifndef TERN_SIM_NET_H
#define TERN_SIM_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/event.h"

#define SIM_NET_CLASSES 2
/* Beside a flow's class: its NIC serves it ahead of the other flows of the class, as it does with answers. */
#define SIM_NET_URGENT (1u << 8)

typedef struct sim_net_config {
	uint32_t hosts;
	uint32_t leaf_hosts; /* 0: one switch. Else hosts per leaf */
	uint32_t spines;     /* uplinks of each leaf, one per spine; a flow stays on one */
	uint64_t host_bps;   /* 100 Gb/s */
	uint64_t trunk_bps;  /* 100 Gb/s; oversubscription = leaf_hosts * host_bps / (spines * trunk_bps) */
	uint64_t delay_ns;   /* 500: each cable, the hop's own latency in it */
	uint32_t mtu_bytes;  /* 4096 */
	uint32_t unit_bytes; /* 4096 */
	uint32_t
		header_bytes; /* 82: Ethernet with preamble and gap, IPv4, UDP, BTH, RETH, ICRC; per mtu_bytes */
	uint64_t buffer_bytes;          /* 64 MiB per switch */
	uint64_t mark_bytes;            /* 0 */
	bool lossless;                  /* true: PFC */
	uint64_t xoff_bytes, xon_bytes; /* 128 KiB, 96 KiB: per cable into a switch and class */
	uint64_t rto_ns;                /* 1 ms */
} sim_net_config;

void sim_net_defaults(sim_net_config *config, uint32_t hosts);
/* Bytes that may still come by a cable after its switch asked for silence. */
uint64_t sim_net_headroom(const sim_net_config *config);

typedef struct sim_net sim_net;

/* NULL and a reason on stderr if the configuration makes no sense. */
sim_net *sim_net_new(const sim_net_config *config, sim_events *events);
void sim_net_free(sim_net *net);

typedef struct sim_flow_ops {
	/* The NIC has read the last byte and its transmitter is through with it; may be NULL. Once per item. */
	void (*taken)(void *arg, uint64_t cookie);
	/* The last byte is at the other host. marked: some unit of it met a long queue. Items of a flow arrive
	   in the order in which they were sent, each once. */
	void (*arrived)(void *arg, uint64_t cookie, bool marked);
} sim_flow_ops;

/* A handle, never 0, that is not used again. ops must stay. */
uint64_t sim_flow_open(sim_net *net, uint32_t from, uint32_t to, uint32_t class, const sim_flow_ops *ops,
		       void *arg);
/* Items that have not arrived never will, and no callback follows. Stale handles are ignored. */
void sim_flow_close(sim_net *net, uint64_t flow);
void sim_flow_send(sim_net *net, uint64_t flow, uint64_t bytes, uint64_t cookie);
/* Bytes of items that were sent and have not arrived. */
uint64_t sim_flow_backlog(const sim_net *net, uint64_t flow);

/* Pull or plug a host's cables: what is on them or is sent over them meanwhile is lost. */
void sim_net_host_plug(sim_net *net, uint32_t host, bool plugged);

/* ---- what happened ---- */

typedef struct sim_port_stats {
	uint64_t units, bytes; /* sent: on the wire, headers included */
	uint64_t payload_bytes;
	uint64_t busy_ns; /* of sending */
	uint64_t queued;  /* wire bytes that wait for this transmitter; of hosts not counted */
	uint64_t queue_peak;
	uint64_t marks, drops;     /* units, at this output */
	uint64_t pauses, pause_ns; /* of this transmitter, over classes */
} sim_port_stats;

typedef struct sim_net_stats {
	uint64_t units, bytes;         /* sent by hosts, again ones included */
	uint64_t delivered_bytes;      /* wire */
	uint64_t payload_bytes;        /* delivered, each byte once */
	uint64_t discarded_bytes;      /* wire: arrived out of order, or for a closed flow */
	uint64_t drops, dropped_bytes; /* no room, or a cable was pulled */
	uint64_t resent_units;
	uint64_t marks;
	uint64_t pauses, pause_ns;
	uint64_t queue_peak;  /* of any output */
	uint64_t buffer_peak; /* of any switch */
	uint64_t items, flows;
} sim_net_stats;

uint32_t sim_net_ports(const sim_net *net);
static inline uint32_t sim_net_port_up(uint32_t host)
{
	return host;
}
static inline uint32_t sim_net_port_down(const sim_net_config *config, uint32_t host)
{
	return config->hosts + host;
}
void sim_net_port_get(const sim_net *net, uint32_t port, sim_port_stats *stats);
/* Sums, and peaks. */
void sim_net_get(const sim_net *net, sim_net_stats *stats);
/* Peaks start anew from what is queued now. */
void sim_net_peaks_reset(sim_net *net);
const sim_net_config *sim_net_get_config(const sim_net *net);
/* Assert the equations above. O(size). */
void sim_net_check(const sim_net *net);

#endif

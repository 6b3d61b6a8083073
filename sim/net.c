/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network as a whole: its shape, its sums, its invariants. See net.h.
 * Threads: none. Tests: tests/unit/sim/net_test.c.
 */
#include "sim/net_internal.h"

void sim_net_defaults(sim_net_config *config, uint32_t hosts)
{
	*config = (sim_net_config){
		.hosts = hosts,
		.host_bps = 100000000000,
		.trunk_bps = 100000000000,
		.delay_ns = 500,
		.mtu_bytes = 4096,
		.unit_bytes = 4096,
		.header_bytes = 82,
		.buffer_bytes = 64ull << 20,
		.lossless = true,
		.xoff_bytes = 128u << 10,
		.xon_bytes = 96u << 10,
		.rto_ns = 1000000,
	};
}

/* Two cables' worth (the asking, and what is on the cable), and three units: in the way of the asking, just
   begun by the sender, and the one that passed the threshold. */
uint64_t sim_net_headroom(const sim_net_config *config)
{
	uint64_t bps = TN_MAX(config->host_bps, config->trunk_bps);

	return bps / 8 * (2 * config->delay_ns) / 1000000000 +
	       3 * (uint64_t)sim_wire_bytes(config, config->unit_bytes);
}

static const char *config_wrong(const sim_net_config *config)
{
	if (!config->hosts || config->hosts > 1u << 20)
		return "hosts must be 1..2^20";
	if (config->leaf_hosts && (!config->spines || config->hosts % config->leaf_hosts))
		return "leaves need spines, and as many hosts each";
	if (!config->host_bps || !config->trunk_bps)
		return "a rate is 0";
	if (!config->mtu_bytes || !config->unit_bytes || config->unit_bytes > 1u << 20)
		return "units must be of 1..2^20 bytes";
	if (config->buffer_bytes < sim_wire_bytes(config, config->unit_bytes))
		return "a switch's buffer holds no unit";
	if (config->xon_bytes > config->xoff_bytes)
		return "xon_bytes is above xoff_bytes";
	return NULL;
}

static void port_set(sim_net *net, uint32_t number, uint64_t bps, bool of_host, uint32_t owner, bool to_host,
		     uint32_t to)
{
	sim_port *port = &net->ports[number];

	port->bps = bps;
	port->of_host = of_host;
	port->owner = owner;
	port->to_host = to_host;
	port->to = to;
}

static void ports_set(sim_net *net)
{
	const sim_net_config *config = &net->config;
	uint32_t hosts = config->hosts, spines = config->spines, up = 2 * hosts;
	uint32_t down = up + net->leaves * spines;

	for (uint32_t host = 0; host < hosts; host++) {
		uint32_t leaf = config->leaf_hosts ? host / config->leaf_hosts : 0;

		port_set(net, host, config->host_bps, true, host, false, leaf);
		port_set(net, hosts + host, config->host_bps, false, leaf, true, host);
	}
	if (!config->leaf_hosts)
		return;
	for (uint32_t leaf = 0; leaf < net->leaves; leaf++) {
		for (uint32_t s = 0; s < spines; s++) {
			uint32_t spine = net->leaves + s;

			port_set(net, up + leaf * spines + s, config->trunk_bps, false, leaf, false, spine);
			port_set(net, down + s * net->leaves + leaf, config->trunk_bps, false, spine, false,
				 leaf);
		}
	}
}

sim_net *sim_net_new(const sim_net_config *config, sim_events *events)
{
	const char *wrong = config_wrong(config);
	sim_net *net;

	if (wrong) {
		fprintf(stderr, "sim: network: %s\n", wrong);
		return NULL;
	}
	net = sim_alloc(1, sizeof(*net));
	net->config = *config;
	net->events = events;
	net->leaves = config->leaf_hosts ? config->hosts / config->leaf_hosts : 1;
	net->switch_count = net->leaves + (config->leaf_hosts ? config->spines : 0);
	net->port_count = 2 * config->hosts + (config->leaf_hosts ? 2 * net->leaves * config->spines : 0);
	net->switches = sim_alloc(net->switch_count, sizeof(*net->switches));
	net->ports = sim_alloc(net->port_count, sizeof(*net->ports));
	ports_set(net);
	/* Row 0 is none. */
	net->units = sim_grow(NULL, 0, &net->unit_room, sizeof(*net->units));
	net->items = sim_grow(NULL, 0, &net->item_room, sizeof(*net->items));
	net->flows = sim_grow(NULL, 0, &net->flow_room, sizeof(*net->flows));
	net->unit_count = net->item_count = net->flow_count = 1;
	return net;
}

void sim_net_free(sim_net *net)
{
	if (!net)
		return;
	free(net->switches);
	free(net->ports);
	free(net->units);
	free(net->items);
	free(net->flows);
	free(net);
}

void sim_net_host_plug(sim_net *net, uint32_t host, bool plugged)
{
	TN_ASSERT(host < net->config.hosts);
	net->ports[host].cut = net->ports[net->config.hosts + host].cut = !plugged;
}

/* ---- what happened ---- */

uint32_t sim_net_ports(const sim_net *net)
{
	return net->port_count;
}

const sim_net_config *sim_net_get_config(const sim_net *net)
{
	return &net->config;
}

void sim_net_port_get(const sim_net *net, uint32_t number, sim_port_stats *stats)
{
	const sim_port *port = &net->ports[number];

	TN_ASSERT(number < net->port_count);
	*stats = port->stats;
	stats->busy_ns = port->busy_ps / 1000;
	stats->queued = port->queued;
	for (uint32_t class = 0; class < SIM_NET_CLASSES; class ++)
		if (port->paused[class])
			stats->pause_ns += net->events->now - port->paused_since[class];
}

void sim_net_get(const sim_net *net, sim_net_stats *stats)
{
	*stats = net->stats;
	for (uint32_t i = 0; i < net->port_count; i++) {
		sim_port_stats port;

		sim_net_port_get(net, i, &port);
		stats->marks += port.marks;
		stats->pauses += port.pauses;
		stats->pause_ns += port.pause_ns;
		stats->queue_peak = TN_MAX(stats->queue_peak, port.queue_peak);
	}
}

void sim_net_peaks_reset(sim_net *net)
{
	net->stats.buffer_peak = 0;
	for (uint32_t i = 0; i < net->switch_count; i++)
		net->stats.buffer_peak = TN_MAX(net->stats.buffer_peak, net->switches[i].buffered);
	for (uint32_t i = 0; i < net->port_count; i++)
		net->ports[i].stats.queue_peak = net->ports[i].queued;
}

/* ---- invariants ---- */

static void check_ports(const sim_net *net, uint64_t *buffered, uint64_t *held)
{
	for (uint32_t i = 0; i < net->port_count; i++) {
		const sim_port *port = &net->ports[i];
		uint64_t queued = 0;

		for (uint32_t class = 0; class < SIM_NET_CLASSES; class ++) {
			uint32_t last = 0;

			if (!port->to_host)
				held[port->to] += port->held[class];
			TN_ASSERT(!port->to_host || port->held[class] == 0);
			for (uint32_t at = port->queue[class].head; at;) {
				last = at;
				queued += port->of_host ? 0 : net->units[at].wire;
				at = port->of_host ? net->flows[at].next : net->units[at].next;
			}
			TN_ASSERT(last == port->queue[class].tail);
		}
		TN_ASSERT(queued == port->queued);
		if (!port->of_host)
			buffered[port->owner] += queued;
	}
}

static void check_flows(const sim_net *net)
{
	for (uint32_t i = 1; i < net->flow_count; i++) {
		const sim_flow *flow = &net->flows[i];
		uint64_t backlog = 0;

		if (!flow->open)
			continue;
		for (uint32_t at = flow->head; at; at = net->items[at].next)
			backlog += net->items[at].bytes;
		TN_ASSERT(backlog == flow->backlog);
		TN_ASSERT((int32_t)(flow->tx_psn - flow->rx_psn) >= 0);
		TN_ASSERT(!flow->cur || flow->ringed);
	}
}

void sim_net_check(const sim_net *net)
{
	uint64_t *buffered = sim_alloc(net->switch_count, sizeof(*buffered));
	uint64_t *held = sim_alloc(net->switch_count, sizeof(*held));
	const sim_net_stats *s = &net->stats;

	check_ports(net, buffered, held);
	for (uint32_t i = 0; i < net->switch_count; i++) {
		TN_ASSERT(net->switches[i].buffered == buffered[i] && buffered[i] == held[i]);
		TN_ASSERT(buffered[i] <= net->config.buffer_bytes);
	}
	check_flows(net);
	TN_ASSERT(s->bytes ==
		  s->delivered_bytes + s->discarded_bytes + s->dropped_bytes + net->under_way_bytes);
	free(buffered);
	free(held);
}

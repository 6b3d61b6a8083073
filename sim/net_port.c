/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cables and switches: transmitters, queues, marks, pauses. See net.h for the rules.
 * Threads: none. Tests: tests/unit/sim/net_test.c.
 */
#include "sim/net_internal.h"

#define PS_PER_NS  UINT64_C(1000)
#define PS_PER_SEC UINT64_C(1000000000000)

static void arrive(void *arg, uint64_t value);

static uint64_t wire_ps(const sim_port *port, uint64_t bytes)
{
	return bytes * 8 * PS_PER_SEC / port->bps;
}

/* ---- pauses ---- */

/* value: class << 33 | pause << 32 | port */
static void pause_takes_effect(void *arg, uint64_t value)
{
	sim_net *net = arg;
	sim_port *port = &net->ports[(uint32_t)value];
	uint32_t class = (uint32_t)(value >> 33);
	bool pause = value >> 32 & 1;

	TN_ASSERT(port->paused[class] != pause);
	port->paused[class] = pause;
	if (pause) {
		port->paused_since[class] = net->events->now;
		port->stats.pauses++;
		return;
	}
	port->stats.pause_ns += net->events->now - port->paused_since[class];
	sim_port_wake(net, (uint32_t)value);
}

/* The switch at the end of a cable asks its sender: a frame goes back, behind a unit that may be in its way. */
static void ask(sim_net *net, uint32_t port_number, uint32_t class, bool pause)
{
	sim_port *port = &net->ports[port_number];
	uint64_t behind = wire_ps(port, sim_wire_bytes(&net->config, net->config.unit_bytes)) / PS_PER_NS;

	port->asked[class] = pause;
	sim_at(net->events, net->events->now + net->config.delay_ns + behind, pause_takes_effect, net,
	       (uint64_t) class << 33 | (uint64_t)pause << 32 | port_number);
}

static void hold(sim_net *net, const sim_unit *unit)
{
	sim_port *in = &net->ports[unit->in];

	in->held[unit->class] += unit->wire;
	if (net->config.lossless && !in->asked[unit->class] && in->held[unit->class] > net->config.xoff_bytes)
		ask(net, unit->in, unit->class, true);
}

static void let_go(sim_net *net, const sim_unit *unit)
{
	sim_port *in = &net->ports[unit->in];

	TN_ASSERT(in->held[unit->class] >= unit->wire);
	in->held[unit->class] -= unit->wire;
	if (in->asked[unit->class] && in->held[unit->class] <= net->config.xon_bytes)
		ask(net, unit->in, unit->class, false);
}

/* ---- transmitters ---- */

static uint32_t queue_next(sim_net *net, sim_port *port, uint32_t class)
{
	uint32_t number = port->queue[class].head;
	sim_unit *unit = &net->units[number];

	if (!number)
		return 0;
	port->queue[class].head = unit->next;
	if (!unit->next)
		port->queue[class].tail = 0;
	/* Its room is free as its sending begins. */
	TN_ASSERT(port->queued >= unit->wire && net->switches[port->owner].buffered >= unit->wire);
	port->queued -= unit->wire;
	net->switches[port->owner].buffered -= unit->wire;
	let_go(net, unit);
	return number;
}

static uint32_t next_unit(sim_net *net, uint32_t port_number)
{
	sim_port *port = &net->ports[port_number];
	uint32_t number = 0;

	for (uint32_t class = SIM_NET_CLASSES; class -- > 0 && !number;)
		if (!port->paused[class] && port->queue[class].head)
			number = port->of_host ? sim_nic_next(net, port_number, class)
					       : queue_next(net, port, class);
	return number;
}

static bool has_more(const sim_port *port)
{
	for (uint32_t class = 0; class < SIM_NET_CLASSES; class ++)
		if (!port->paused[class] && port->queue[class].head)
			return true;
	return false;
}

static void ready(void *arg, uint64_t port_number);

/* Send the next unit, if there is one, from start_ps on. */
static void send_next(sim_net *net, uint32_t port_number, uint64_t start_ps)
{
	sim_port *port = &net->ports[port_number];
	uint32_t number = next_unit(net, port_number);
	const sim_unit *unit = &net->units[number];
	uint64_t ps, through;

	if (!number)
		return;
	TN_ASSERT(start_ps >= port->free_ps);
	ps = wire_ps(port, unit->wire);
	port->free_ps = start_ps + ps;
	port->busy_ps += ps;
	port->stats.units++;
	port->stats.bytes += unit->wire;
	port->stats.payload_bytes += unit->payload;
	through = (port->free_ps + PS_PER_NS - 1) / PS_PER_NS;
	sim_at(net->events, through + net->config.delay_ns, arrive, net,
	       (uint64_t)port_number << 32 | number);
	if (port->taken_flow || has_more(port)) {
		port->armed = true;
		sim_at(net->events, through, ready, net, port_number);
	}
}

/* The transmitter is through. */
static void ready(void *arg, uint64_t port_number)
{
	sim_net *net = arg;
	sim_port *port = &net->ports[port_number];
	uint64_t flow = port->taken_flow, cookie = port->taken_cookie;

	port->armed = false;
	port->taken_flow = 0;
	send_next(net, (uint32_t)port_number, port->free_ps);
	if (flow)
		sim_flow_taken(net, flow, cookie);
}

void sim_port_wake(sim_net *net, uint32_t port_number)
{
	sim_port *port = &net->ports[port_number];

	if (port->armed || !has_more(port))
		return;
	if (port->free_ps <= net->events->now * PS_PER_NS) {
		send_next(net, port_number, net->events->now * PS_PER_NS);
		return;
	}
	port->armed = true;
	sim_at(net->events, (port->free_ps + PS_PER_NS - 1) / PS_PER_NS, ready, net, port_number);
}

/* ---- switches ---- */

static uint32_t spine_of(const sim_net *net, const sim_flow *flow, uint32_t row)
{
	uint64_t x = (uint64_t)flow->from << 32 ^ (uint64_t)flow->to << 12 ^ row;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return (uint32_t)((x >> 32) % net->config.spines);
}

/* The output by which a switch sends a flow on. */
static uint32_t route(const sim_net *net, uint32_t switch_number, uint32_t row)
{
	const sim_flow *flow = &net->flows[row];
	uint32_t hosts = net->config.hosts, spines = net->config.spines, leaf = 0;

	if (!net->config.leaf_hosts)
		return hosts + flow->to;
	leaf = flow->to / net->config.leaf_hosts;
	if (switch_number == leaf)
		return hosts + flow->to;
	if (switch_number < net->leaves)
		return 2 * hosts + switch_number * spines + spine_of(net, flow, row);
	return 2 * hosts + net->leaves * spines + (switch_number - net->leaves) * net->leaves + leaf;
}

static bool room(const sim_net *net, const sim_switch *at, const sim_port *out, uint32_t wire)
{
	uint64_t left = net->config.buffer_bytes - at->buffered;

	return wire <= left && (net->config.lossless || out->queued + wire <= left);
}

static void enqueue(sim_net *net, uint32_t switch_number, uint32_t number)
{
	sim_unit *unit = &net->units[number];
	sim_switch *at = &net->switches[switch_number];
	uint32_t out_number = route(net, switch_number, unit->flow);
	sim_port *out = &net->ports[out_number];
	sim_fifo *queue = &out->queue[unit->class];

	if (!room(net, at, out, unit->wire)) {
		out->stats.drops++;
		sim_flow_lost(net, number);
		return;
	}
	if (net->config.mark_bytes && out->queued > net->config.mark_bytes) {
		out->stats.marks++;
		unit->marked = true;
	}
	unit->next = 0;
	if (queue->tail)
		net->units[queue->tail].next = number;
	else
		queue->head = number;
	queue->tail = number;
	out->queued += unit->wire;
	at->buffered += unit->wire;
	out->stats.queue_peak = TN_MAX(out->stats.queue_peak, out->queued);
	net->stats.buffer_peak = TN_MAX(net->stats.buffer_peak, at->buffered);
	hold(net, unit);
	sim_port_wake(net, out_number);
}

/* value: port << 32 | unit */
static void arrive(void *arg, uint64_t value)
{
	sim_net *net = arg;
	uint32_t port_number = (uint32_t)(value >> 32), number = (uint32_t)value;
	sim_port *port = &net->ports[port_number];

	if (port->cut) {
		port->stats.drops++;
		sim_flow_lost(net, number);
		return;
	}
	if (port->to_host) {
		sim_flow_deliver(net, number);
		return;
	}
	net->units[number].in = port_number;
	enqueue(net, port->to, number);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows and the NICs that serve them: round robin, order, go-back-N. See net.h for the rules.
 * Threads: none. Tests: tests/unit/sim/net_test.c.
 */
#include "sim/net_internal.h"

static sim_flow *flow_get(const sim_net *net, uint64_t handle)
{
	uint32_t row = (uint32_t)handle;

	if (row == 0 || row >= net->flow_count || net->flows[row].generation != handle >> 32 ||
	    !net->flows[row].open)
		return NULL;
	return &net->flows[row];
}

static uint64_t flow_handle(const sim_net *net, const sim_flow *flow)
{
	return (uint64_t)flow->generation << 32 | (uint64_t)(flow - net->flows);
}

/* ---- rows ---- */

static uint32_t unit_new(sim_net *net)
{
	uint32_t number = net->unit_free;

	if (number) {
		net->unit_free = net->units[number].next;
		return number;
	}
	net->units = sim_grow(net->units, net->unit_count, &net->unit_room, sizeof(*net->units));
	return net->unit_count++;
}

static void unit_free(sim_net *net, uint32_t number)
{
	net->under_way_bytes -= net->units[number].wire;
	net->units[number].next = net->unit_free;
	net->unit_free = number;
}

static uint32_t item_new(sim_net *net)
{
	uint32_t number = net->item_free;

	if (number) {
		net->item_free = net->items[number].next;
		return number;
	}
	net->items = sim_grow(net->items, net->item_count, &net->item_room, sizeof(*net->items));
	return net->item_count++;
}

static void item_free(sim_net *net, uint32_t number)
{
	net->items[number].next = net->item_free;
	net->item_free = number;
}

static void flow_free_if_unused(sim_net *net, sim_flow *flow)
{
	if (flow->open || flow->ringed || flow->under_way)
		return;
	flow->next = net->flow_free;
	net->flow_free = (uint32_t)(flow - net->flows);
}

/* ---- interface ---- */

uint64_t sim_flow_open(sim_net *net, uint32_t from, uint32_t to, uint32_t class, const sim_flow_ops *ops,
		       void *arg)
{
	uint32_t row = net->flow_free, generation;
	bool urgent = class & SIM_NET_URGENT;
	sim_flow *flow;

	class &= ~SIM_NET_URGENT;
	TN_ASSERT(from < net->config.hosts && to < net->config.hosts && class < SIM_NET_CLASSES);
	TN_ASSERT(ops && ops->arrived);
	if (row) {
		net->flow_free = net->flows[row].next;
	} else {
		net->flows = sim_grow(net->flows, net->flow_count, &net->flow_room, sizeof(*net->flows));
		row = net->flow_count++;
	}
	flow = &net->flows[row];
	generation = flow->generation + 1;
	*flow = (sim_flow){
		.ops = ops,
		.arg = arg,
		.from = from,
		.to = to,
		.generation = generation,
		.class = (uint8_t) class,
		.open = true,
		.urgent = urgent,
	};
	net->stats.flows++;
	return flow_handle(net, flow);
}

void sim_flow_close(sim_net *net, uint64_t handle)
{
	sim_flow *flow = flow_get(net, handle);

	if (!flow)
		return;
	while (flow->head) {
		uint32_t item = flow->head;

		flow->head = net->items[item].next;
		item_free(net, item);
	}
	flow->tail = flow->cur = 0;
	flow->open = false;
	sim_cancel(net->events, flow->rto);
	flow_free_if_unused(net, flow);
}

/* Let its NIC serve it. */
static void ring(sim_net *net, sim_flow *flow)
{
	sim_fifo *fifo = &net->ports[flow->from].queue[flow->class];
	uint32_t row = (uint32_t)(flow - net->flows);

	if (flow->ringed)
		return;
	flow->ringed = true;
	flow->next = flow->urgent ? fifo->head : 0;
	if (flow->urgent) {
		fifo->head = row;
		if (!fifo->tail)
			fifo->tail = row;
		return;
	}
	if (fifo->tail)
		net->flows[fifo->tail].next = row;
	else
		fifo->head = row;
	fifo->tail = row;
}

void sim_flow_send(sim_net *net, uint64_t handle, uint64_t bytes, uint64_t cookie)
{
	sim_flow *flow = flow_get(net, handle);
	uint32_t number;

	TN_ASSERT(flow);
	number = item_new(net);
	net->items[number] = (sim_item){.bytes = bytes, .cookie = cookie};
	if (flow->tail)
		net->items[flow->tail].next = number;
	else
		flow->head = number;
	flow->tail = number;
	flow->backlog += bytes;
	if (!flow->cur) {
		flow->cur = number;
		flow->cur_sent = 0;
	}
	ring(net, flow);
	sim_port_wake(net, flow->from);
}

uint64_t sim_flow_backlog(const sim_net *net, uint64_t handle)
{
	const sim_flow *flow = flow_get(net, handle);

	return flow ? flow->backlog : 0;
}

/* ---- the NIC ---- */

/* Cut the next unit off a flow. */
static uint32_t cut(sim_net *net, sim_port *port, sim_flow *flow)
{
	uint32_t number = unit_new(net);
	sim_unit *unit = &net->units[number];
	sim_item *item = &net->items[flow->cur];
	uint64_t payload = TN_MIN(item->bytes - flow->cur_sent, net->config.unit_bytes);

	*unit = (sim_unit){
		.flow = (uint32_t)(flow - net->flows),
		.psn = flow->tx_psn++,
		.payload = (uint32_t)payload,
		.wire = sim_wire_bytes(&net->config, (uint32_t)payload),
		.class = flow->class,
		.last = flow->cur_sent + payload == item->bytes,
	};
	flow->cur_sent += payload;
	flow->under_way++;
	if ((int32_t)(flow->tx_psn - flow->tx_psn_max) > 0)
		flow->tx_psn_max = flow->tx_psn;
	else
		net->stats.resent_units++;
	net->stats.units++;
	net->stats.bytes += unit->wire;
	net->under_way_bytes += unit->wire;
	if (unit->last) {
		if (!item->taken && flow->ops->taken) {
			port->taken_flow = flow_handle(net, flow);
			port->taken_cookie = item->cookie;
		}
		item->taken = true;
		flow->cur = item->next;
		flow->cur_sent = 0;
	}
	return number;
}

uint32_t sim_nic_next(sim_net *net, uint32_t port_number, uint32_t class)
{
	sim_port *port = &net->ports[port_number];
	sim_fifo *fifo = &port->queue[class];
	uint32_t number = 0;

	while (!number && fifo->head) {
		sim_flow *flow = &net->flows[fifo->head];

		fifo->head = flow->next;
		if (!flow->next)
			fifo->tail = 0;
		flow->ringed = false;
		if (!flow->open) {
			flow_free_if_unused(net, flow);
			continue;
		}
		if (!flow->cur)
			continue;
		number = cut(net, port, flow);
		if (flow->cur)
			ring(net, flow);
	}
	return number;
}

void sim_flow_taken(sim_net *net, uint64_t handle, uint64_t cookie)
{
	sim_flow *flow = flow_get(net, handle);

	if (flow)
		flow->ops->taken(flow->arg, cookie);
}

/* ---- arrival and loss ---- */

/* Go on with the first unit that has not arrived. */
static void go_back(sim_net *net, sim_flow *flow)
{
	flow->tx_psn = flow->rx_psn;
	flow->cur = flow->head;
	flow->cur_sent = flow->head_arrived;
	if (!flow->cur)
		return;
	ring(net, flow);
	sim_port_wake(net, flow->from);
}

static void nak(void *arg, uint64_t handle)
{
	sim_net *net = arg;
	sim_flow *flow = flow_get(net, handle);

	if (flow)
		go_back(net, flow);
}

static void rto(void *arg, uint64_t handle)
{
	sim_net *net = arg;
	sim_flow *flow = flow_get(net, handle);

	if (!flow)
		return;
	flow->rto = 0;
	if (flow->tx_psn == flow->rx_psn)
		return;
	if (flow->rx_psn == flow->rto_psn)
		go_back(net, flow);
	flow->rto_psn = flow->rx_psn;
	flow->rto = sim_at(net->events, net->events->now + net->config.rto_ns, rto, net, handle);
}

void sim_flow_lost(sim_net *net, uint32_t number)
{
	sim_unit *unit = &net->units[number];
	sim_flow *flow = &net->flows[unit->flow];

	net->stats.drops++;
	net->stats.dropped_bytes += unit->wire;
	flow->under_way--;
	unit_free(net, number);
	if (!flow->open) {
		flow_free_if_unused(net, flow);
		return;
	}
	if (flow->rto || !net->config.rto_ns)
		return;
	flow->rto_psn = flow->rx_psn;
	flow->rto =
		sim_at(net->events, net->events->now + net->config.rto_ns, rto, net, flow_handle(net, flow));
}

/* The receiver sees that something is missing. It says so once. */
static void out_of_order(sim_net *net, sim_flow *flow, uint32_t psn)
{
	uint32_t cables = net->config.leaf_hosts ? 4 : 2;

	if ((int32_t)(psn - flow->rx_psn) < 0 || flow->nak_sent || !net->config.rto_ns)
		return;
	flow->nak_sent = true;
	sim_at(net->events, net->events->now + cables * net->config.delay_ns, nak, net,
	       flow_handle(net, flow));
}

/* The last unit of the oldest item is here. */
static void item_arrived(sim_net *net, sim_flow *flow)
{
	uint32_t number = flow->head;
	sim_item item = net->items[number];
	bool marked = flow->marked;

	flow->head = item.next;
	if (!item.next)
		flow->tail = 0;
	flow->head_arrived = 0;
	flow->marked = false;
	flow->backlog -= item.bytes;
	item_free(net, number);
	/* A sender that went back without need goes on behind it. */
	if ((int32_t)(flow->tx_psn - flow->rx_psn) < 0) {
		flow->tx_psn = flow->rx_psn;
		flow->cur = flow->head;
		flow->cur_sent = 0;
	}
	net->stats.items++;
	flow->ops->arrived(flow->arg, item.cookie, marked);
}

void sim_flow_deliver(sim_net *net, uint32_t number)
{
	sim_unit unit = net->units[number];
	sim_flow *flow = &net->flows[unit.flow];

	flow->under_way--;
	unit_free(net, number);
	if (!flow->open || unit.psn != flow->rx_psn) {
		net->stats.discarded_bytes += unit.wire;
		if (flow->open)
			out_of_order(net, flow, unit.psn);
		else
			flow_free_if_unused(net, flow);
		return;
	}
	net->stats.delivered_bytes += unit.wire;
	net->stats.payload_bytes += unit.payload;
	flow->rx_psn++;
	flow->nak_sent = false;
	flow->head_arrived += unit.payload;
	flow->marked |= unit.marked;
	TN_ASSERT(flow->head && flow->head_arrived <= net->items[flow->head].bytes);
	if (unit.last) {
		TN_ASSERT(flow->head_arrived == net->items[flow->head].bytes);
		item_arrived(net, flow);
	} else if ((int32_t)(flow->tx_psn - flow->rx_psn) < 0) {
		flow->tx_psn = flow->rx_psn;
		flow->cur = flow->head;
		flow->cur_sent = flow->head_arrived;
	}
}

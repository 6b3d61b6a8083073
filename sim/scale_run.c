/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One experiment from its configuration to its result.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#include "sim/scale_internal.h"

#include "base/time.h"

void scale_defaults(scale_config *config, scale_pattern pattern, uint32_t hosts)
{
	*config = (scale_config){
		.name = "",
		.pattern = pattern,
		.push_bytes = 4u << 20,
		.pushes = 2,
		.push_depth = 1,
		.fetch_bytes = 64,
		.fetch_gap_ns = 200 * TN_NS_PER_US,
		.message_bytes = 64,
		.depth = 16,
		.pair_links = 1,
		.grant_quantum = 64u << 10,
		.cpu_ns = 200,
		.ctrl_ns = 20 * TN_NS_PER_US,
		.rnr_ns = 10 * TN_NS_PER_US,
		.lane0_slots = 16,
		.lane_slots = 8,
		.lane0_grant = 16,
		.lane_grant = 8,
		.seed = 1,
		.limit_ns = 100 * TN_NS_PER_SEC,
	};
	sim_net_defaults(&config->net, hosts);
	config->net.buffer_bytes = hosts * (config->net.xoff_bytes + sim_net_headroom(&config->net));
	tn_link_config_defaults(&config->link);
	config->link.channels_max = 4;
	config->link.ops_max = 32;
	config->link.wrs_max = 64;
	config->link.data_lanes = 1;
	config->link.recover_ns = 0;
	config->link.keepalive_ns = 0;
	config->link.step_timeout_ns = config->link.lane_timeout_ns = 100 * TN_NS_PER_SEC;
}

/* ---- set-up ---- */

static void link_make(scale *s, uint32_t a, uint32_t b)
{
	scale_end *ends = &s->ends[s->end_count];

	ends[0].node = &s->nodes[a];
	ends[1].node = &s->nodes[b];
	ends[0].other = &ends[1];
	ends[1].other = &ends[0];
	s->end_count += 2;
	if (s->config.model) {
		scale_model_start(&ends[0]);
		scale_model_start(&ends[1]);
		scale_model_connect(&ends[0]);
		scale_model_connect(&ends[1]);
		return;
	}
	scale_link_start(s, &ends[0], true);
	scale_link_start(s, &ends[1], false);
}

static void links_make(scale *s)
{
	uint32_t hosts = s->config.net.hosts;
	uint64_t pairs = s->config.pattern == SCALE_TO_ONE ? hosts - 1 : (uint64_t)hosts * (hosts - 1) / 2;

	s->ends = sim_alloc(2 * pairs * s->config.pair_links, sizeof(*s->ends));
	for (uint32_t i = 1; i < hosts; i++)
		for (uint32_t j = 0; j < (s->config.pattern == SCALE_TO_ONE ? 1 : i); j++)
			for (uint32_t k = 0; k < s->config.pair_links; k++)
				link_make(s, i, j);
}

static bool connect_all(scale *s)
{
	while (s->ready < s->end_count && sim_step(&s->events, s->config.limit_ns))
		;
	if (s->ready == s->end_count)
		return true;
	fprintf(stderr, "sim: %s: %u of %u link ends are up after %.3f s\n", s->config.name, s->ready,
		s->end_count, (double)s->events.now / 1e9);
	return false;
}

/* ---- the run ---- */

static void sample(void *arg, uint64_t value)
{
	scale *s = arg;
	sim_port_stats port;
	sim_net_stats net;

	(void)value;
	if (!s->loading)
		return;
	sim_net_port_get(s->net, sim_net_port_down(&s->config.net, 0), &port);
	sim_net_get(s->net, &net);
	fprintf(s->config.samples, "%.3f\t%llu\t%llu\n", (double)(s->events.now - s->start) / 1000,
		(unsigned long long)port.queued, (unsigned long long)net.pauses);
	sim_at(&s->events, s->events.now + s->config.sample_ns, sample, s, 0);
}

static bool load_all(scale *s)
{
	uint64_t taken = s->events.taken;

	sim_net_peaks_reset(s->net);
	scale_load_start(s);
	if (s->config.sample_ns && s->config.samples)
		sample(s, 0);
	while (s->loading && sim_step(&s->events, s->start + s->config.limit_ns))
		;
	s->result->events = s->events.taken - taken;
	if (!s->loading)
		return true;
	fprintf(stderr, "sim: %s: %u ends are not through after %.3f s\n", s->config.name, s->unfinished,
		(double)s->config.limit_ns / 1e9);
	return false;
}

static void measure(scale *s)
{
	const scale_config *config = &s->config;
	scale_result *r = s->result;
	uint32_t receivers = config->pattern == SCALE_TO_ONE ? 1 : config->net.hosts;
	tn_link_config more = config->link;
	uint64_t slots, counted = 0, borrowed = 0, alone = tn_link_memory_bytes(&config->link);
	sim_port_stats port;

	sim_net_get(s->net, &r->net);
	for (uint32_t i = 0; i < receivers; i++) {
		sim_net_port_get(s->net, sim_net_port_down(&config->net, i), &port);
		r->receiver_queue_peak = TN_MAX(r->receiver_queue_peak, port.queue_peak);
	}
	for (uint32_t i = 0; i < config->net.hosts; i++) {
		r->links = TN_MAX(r->links, s->nodes[i].links);
		r->qps = TN_MAX(r->qps, s->nodes[i].qps);
		borrowed = TN_MAX(borrowed, s->nodes[i].memory_peak);
	}
	for (uint32_t i = 0; i < s->end_count; i++) {
		const tn_link_counters *c;

		if (!s->ends[i].link)
			continue;
		c = tn_link_get_counters(s->ends[i].link);
		tn_link_check(s->ends[i].link, 2);
		r->credit_waits += c->credit_waits;
		r->window_waits += c->window_waits;
		r->idle_bytes = TN_MAX(r->idle_bytes, tn_link_held_bytes(s->ends[i].link));
		counted += c->stale + c->dropped + c->ops_failed;
	}
	TN_ASSERT(counted == 0);
	slots = config->pool_slots ? config->pool_slots
				   : (uint64_t)config->lane0_slots * r->links +
					     (uint64_t)config->lane_slots * (r->qps - r->links);
	r->link_bytes = alone + borrowed / TN_MAX(r->links, 1u);
	more.channels_max += 1024;
	r->channel_bytes = (tn_link_memory_bytes(&more) - alone) / 1024;
	r->node_bytes = r->links * r->link_bytes + slots * SCALE_SLOT_BYTES;
	r->goodput = (double)r->payload * 8e9 /
		     ((double)TN_MAX(r->ns, 1u) * (double)config->net.host_bps * receivers);
	r->complete = true;
}

static void wr_list_free(scale *s)
{
	while (s->wr_free) {
		scale_wr *wr = s->wr_free;

		s->wr_free = wr->next;
		free(wr);
	}
	while (s->op_free) {
		scale_op *op = s->op_free;

		s->op_free = op->next;
		free(op);
	}
}

static void clean_up(scale *s)
{
	for (uint32_t i = 0; i < s->end_count; i++) {
		if (s->ends[i].link)
			tn_link_fini(s->ends[i].link);
		free(s->ends[i].extra);
		free(s->ends[i].memory);
	}
	for (uint32_t i = 0; i < s->config.net.hosts; i++) {
		tn_link_store_fini(&s->nodes[i].store);
		free(s->nodes[i].inputs);
	}
	wr_list_free(s);
	free(s->ends);
	free(s->nodes);
	sim_net_free(s->net);
	sim_events_fini(&s->events);
}

/* What is under way when the load is through ends, so that all is accounted for. */
static void drain(scale *s)
{
	uint64_t until = s->events.now + (s->config.idle_ns ? s->config.idle_ns : TN_NS_PER_SEC);

	while (sim_step(&s->events, until))
		;
	sim_net_check(s->net);
}

bool scale_run(const scale_config *config, scale_result *result)
{
	scale s = {.config = *config, .result = result, .rand = {.state = config->seed}};
	bool ok;

	*result = (scale_result){0};
	tn_hist_init(&result->push_ns);
	tn_hist_init(&result->fetch_ns);
	tn_hist_init(&result->message_ns);
	sim_events_init(&s.events);
	s.net = sim_net_new(&config->net, &s.events);
	if (!s.net)
		return false;
	s.nodes = sim_alloc(config->net.hosts, sizeof(*s.nodes));
	for (uint32_t i = 0; i < config->net.hosts; i++) {
		s.nodes[i].s = &s;
		s.nodes[i].host = i;
		tn_link_budget_init(&s.nodes[i].budget, config->device_bytes, NULL);
		tn_link_arbiter_init(&s.nodes[i].arbiter, config->grant_bytes, config->grant_quantum, NULL);
		scale_node_store(&s.nodes[i]);
		s.nodes[i].asking_end = &s.nodes[i].asking;
	}
	links_make(&s);
	ok = connect_all(&s) && load_all(&s);
	if (ok) {
		drain(&s);
		measure(&s);
	}
	clean_up(&s);
	return ok;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random graphs on random devices: each tensor has one edge per destination, control edges are kept, buffers are
 * shared only where one tensor's users come before the other's producer, and what comes out is what one device
 * alone computes, bit for bit.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "cmocka_all.h"
#include "graph/deps.h"
#include "graph/exec.h"
#include "ref/ref_graph.h"

enum { INPUTS = 3, NODES = 40, DIM = 4, ELEMENTS = DIM * DIM, STEPS = 4, DEVICES = 4 };

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

static const tern_shape square = {.rank = 2, .dims = {DIM, DIM}};

/* One node that reads random earlier tensors. */
static tern_value add_node(tern_graph *g, uint32_t i, const tern_value *v, uint32_t n)
{
	static const char *const ops[] = {"Relu", "Add", "Mul", "MatMul", "Scale", "Identity", "Reshape"};
	uint32_t op = below(7);
	tern_value in[2] = {v[below(n)], v[below(n)]}, out;
	tern_attr scale = {.name = "scale", .type = TERN_ATTR_FLOAT, .f = 0.5};
	tern_attr shape = {.name = "shape", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {DIM, DIM}};
	char name[16];

	snprintf(name, sizeof(name), "n%u", i);
	assert_ok(tern_graph_node(g, ops[op], name, in, op >= 1 && op <= 3 ? 2 : 1, op == 4 ? &scale : &shape,
				  op == 4 || op == 6 ? 1 : 0, &out, 1));
	return out;
}

/* The same for one seed. Every third node is an output. */
static tern_graph *random_graph(uint64_t s)
{
	tern_value v[INPUTS + NODES];
	uint32_t n = 0;
	char name[16];
	tern_graph *g;

	seed = s;
	assert_ok(tern_graph_create("random", &g));
	for (uint32_t i = 0; i < INPUTS; i++) {
		snprintf(name, sizeof(name), "x%u", i);
		assert_ok(tern_graph_placeholder(g, name, TERN_F32, &square, &v[n]));
		assert_ok(tern_graph_input(g, name, v[n++]));
	}
	for (uint32_t i = 0; i < NODES; i++) {
		v[n] = add_node(g, i, v, n);
		n++;
		snprintf(name, sizeof(name), "y%u", i);
		if (i % 3 == 2 || i + 1 == NODES)
			assert_ok(tern_graph_output(g, name, v[n - 1]));
		if (below(4) == 0 && i > 1) /* forwards, so that there is no cycle */
			assert_ok(tern_graph_control(g, v[below(n - 1)], v[n - 1]));
	}
	return g;
}

static void place(tern_graph *g, uint32_t devices)
{
	for (uint32_t i = 0; i < g->n_nodes; i++)
		g->nodes[i].device = (int32_t)below(devices);
}

/* ---- running ---- */

typedef struct runner {
	const tern_plan *plan;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	float (*in)[INPUTS][ELEMENTS];
	float (*out)[NODES][ELEMENTS];
	tern_status status;
	char detail[512];
} runner;

static tern_status run_steps(runner *r)
{
	const tern_graph *g = r->plan->devices[r->number].graph;

	TN_TRY(tn_exec_start(r->exec, TN_TIME_NEVER));
	for (uint32_t s = 0; s < STEPS; s++) {
		for (uint32_t p = 0; p < g->n_ports; p++) {
			if (g->ports[p].is_input)
				TN_TRY(tn_exec_feed(r->exec, TN_PROG_TRAIN, g->ports[p].name,
						    r->in[s][atoi(g->ports[p].name + 1)],
						    sizeof(r->in[s][0])));
		}
		TN_TRY(tn_exec_step(r->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		for (uint32_t p = 0; p < g->n_ports; p++) {
			tn_fetched f;

			if (g->ports[p].is_input)
				continue;
			TN_TRY(tn_exec_fetch(r->exec, TN_PROG_TRAIN, g->ports[p].name, &f));
			memcpy(r->out[s][atoi(g->ports[p].name + 1)], f.data, f.bytes);
		}
	}
	return tn_exec_drain(r->exec, TN_TIME_NEVER);
}

static void *run_main(void *arg)
{
	runner *r = arg;

	r->status = run_steps(r);
	snprintf(r->detail, sizeof(r->detail), "%s", tern_detail());
	return NULL;
}

static void run_plan(const tern_plan *plan, uint64_t lazy, float (*in)[INPUTS][ELEMENTS],
		     float (*out)[NODES][ELEMENTS])
{
	runner r[DEVICES] = {{0}};
	pthread_t threads[DEVICES];
	tn_local_hub *hub;

	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = plan->n_devices,
							 .lazy_seed = lazy,
							 .slots = 1 + (uint32_t)lazy % 3},
				      &hub));
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		r[i] = (runner){.plan = plan, .number = i, .in = in, .out = out};
		assert_ok(tn_local_open(hub, i, &r[i].xfer));
		assert_ok(tn_exec_create(plan, i, r[i].xfer, &(tn_exec_params){.backend = TN_BACKEND_PLAIN},
					 &r[i].exec));
	}
	for (uint32_t i = 0; i < plan->n_devices; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_main, &r[i]), 0);
	for (uint32_t i = 0; i < plan->n_devices; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		if (r[i].status != TERN_OK)
			fail_msg("%s: %s: %s", plan->devices[i].name, tern_status_name(r[i].status),
				 r[i].detail);
		tn_exec_destroy(r[i].exec);
		r[i].xfer->ops->close(r[i].xfer);
	}
	tn_local_hub_destroy(hub);
}

/* ---- invariants ---- */

static void one_edge_each(const tern_plan *p)
{
	for (uint32_t i = 0; i < p->n_edges; i++) {
		const tn_edge *a = &p->edges[i];

		assert_true(a->src != a->dst);
		assert_true(a->copies == 0 || a->copy_reason[0] != 0);
		assert_int_equal(
			tn_node_int(&p->devices[a->src].graph->nodes[a->send_node], TN_ATTR_EDGE, -1), i);
		assert_int_equal(
			tn_node_int(&p->devices[a->dst].graph->nodes[a->recv_node], TN_ATTR_EDGE, -1), i);
		for (uint32_t k = 0; k < i; k++)
			assert_false(p->edges[k].dst == a->dst && strcmp(p->edges[k].name, a->name) == 0);
	}
}

static bool has_control(const tern_graph *g, uint32_t earlier, uint32_t later)
{
	for (uint32_t k = 0; k < g->nodes[later].n_ctrl; k++) {
		if (g->nodes[later].ctrl[k] == earlier)
			return true;
	}
	return false;
}

static void controls_are_kept(const tern_graph *g, const tern_plan *p)
{
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		for (uint32_t k = 0; k < g->nodes[i].n_ctrl; k++) {
			const tn_node *a = &g->nodes[g->nodes[i].ctrl[k]], *b = &g->nodes[i];
			const tern_graph *there = p->devices[b->device].graph,
					 *here = p->devices[a->device].graph;
			uint32_t later = tn_graph_find(there, b->name),
				 earlier = tn_graph_find(there, a->name);
			char token[TN_NAME_MAX];
			uint32_t recv, e;

			if (a->device == b->device) {
				assert_true(has_control(there, earlier, later));
				continue;
			}
			if (tn_op_flags(a->op) & TN_OPF_SOURCE)
				continue;
			snprintf(token, sizeof(token), "done/%s", a->name);
			recv = tn_graph_find(there, token);
			assert_true(recv != TN_NONE && has_control(there, recv, later));
			e = (uint32_t)tn_node_int(&there->nodes[recv], TN_ATTR_EDGE, -1);
			assert_true(has_control(here, tn_graph_find(here, a->name), p->edges[e].send_node));
		}
	}
}

/* Whether a path leads from a to b, looked for from the end. */
static bool path(const tern_graph *g, uint32_t a, uint32_t b, bool *seen)
{
	const tn_node *n = &g->nodes[b];

	if (a == b)
		return true;
	if (seen[b])
		return false;
	seen[b] = true;
	for (uint32_t k = 0; k < n->n_in; k++) {
		if (path(g, a, g->tensors[n->in[k]].node, seen))
			return true;
	}
	for (uint32_t k = 0; k < n->n_ctrl; k++) {
		if (path(g, a, n->ctrl[k], seen))
			return true;
	}
	return false;
}

/* All that touches root a comes before the producer of root b. */
static bool is_before(const tern_graph *g, uint32_t a, uint32_t b)
{
	bool *seen = calloc(g->n_nodes, sizeof(*seen)), ok = true;

	for (uint32_t i = 0; i < g->n_nodes && ok; i++) {
		const tn_node *n = &g->nodes[i];
		bool touches = false;

		for (uint32_t k = 0; k < n->n_in + n->n_out; k++)
			touches |= tn_graph_root(g, k < n->n_in ? n->in[k] : n->out[k - n->n_in]) == a;
		memset(seen, 0, g->n_nodes * sizeof(*seen));
		if (touches)
			ok = i != g->tensors[b].node && path(g, i, g->tensors[b].node, seen);
	}
	free(seen);
	return ok;
}

static uint32_t sharing_is_safe(const tern_plan *p)
{
	uint32_t pairs = 0;

	for (uint32_t d = 0; d < p->n_devices; d++) {
		const tern_graph *g = p->devices[d].graph;
		const uint32_t *buffer = p->devices[d].buffer;

		for (uint32_t a = 0; a < g->n_tensors; a++) {
			for (uint32_t b = a + 1; b < g->n_tensors && buffer[a] != TN_NONE; b++) {
				if (buffer[a] != buffer[b])
					continue;
				assert_true(is_before(g, a, b) || is_before(g, b, a));
				pairs++;
			}
		}
	}
	return pairs;
}

/* ---- tests ---- */

static void many_devices_compute_what_one_does(void **state)
{
	static float in[STEPS][INPUTS][ELEMENTS], one[STEPS][NODES][ELEMENTS], many[STEPS][NODES][ELEMENTS];
	uint32_t pairs = 0, edges = 0;
	ref_rand rand = {3};

	(void)state;
	ref_fill(&rand, &in[0][0][0], sizeof(in) / sizeof(float));
	for (uint64_t s = 1; s <= 60; s++) {
		tern_graph *g = random_graph(s);
		tern_plan *p;

		memset(one, 0, sizeof(one));
		memset(many, 0, sizeof(many));
		place(g, 1);
		assert_ok(tn_plan_placed(g, 1, TERN_COMM_ZEROCOPY, &p));
		assert_int_equal(tern_plan_edges(p), 0);
		pairs += sharing_is_safe(p);
		run_plan(p, 0, in, one);
		tern_plan_destroy(p);
		place(g, 2 + (uint32_t)s % (DEVICES - 1));
		assert_ok(tn_plan_placed(g, DEVICES, TERN_COMM_ZEROCOPY, &p));
		one_edge_each(p);
		controls_are_kept(g, p);
		pairs += sharing_is_safe(p);
		edges += tern_plan_edges(p);
		run_plan(p, s % 2 ? s : 0, in, many);
		assert_memory_equal(one, many, sizeof(one));
		tern_plan_destroy(p);
		tern_graph_destroy(g);
	}
	assert_true(pairs > 500 && edges > 500); /* or it tests nothing */
}

static tern_plan *job_plan(uint32_t servers, uint32_t workers, uint32_t stages, uint32_t micro, int sync)
{
	static const uint64_t widths[] = {16, 8};
	tern_plan_params params = {
		.servers = servers,
		.workers = workers,
		.stages = stages,
		.micro_batches = micro,
		.sync = sync,
		.split_bytes = 128,
		.dims = {{.name = "batch", .size = 8}},
		.optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.1f, .momentum = 0.9f}};
	tern_graph *g;
	tern_plan *p;

	assert_ok(tern_graph_fully_connected("job", widths, 2,
					     &(tern_model_params){.inputs = 12, .classes = 4}, &g));
	assert_ok(tern_plan_create(g, &params, &p));
	tern_graph_destroy(g);
	return p;
}

static void plans_of_jobs_keep_the_invariants(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 24; i++) {
		uint32_t servers = i % 4, workers = servers ? 1 + i % 3 : 1;
		tern_plan *p = job_plan(servers, workers, 1 + i / 8, 1 + 3 * (i % 2), i % 5 != 0);

		one_edge_each(p);
		assert_true(sharing_is_safe(p) > 0);
		for (uint32_t e = 0; e < p->n_edges; e++) {
			assert_true(p->edges[e].is_static);
			assert_int_equal(p->edges[e].copies, 0);
		}
		tern_plan_destroy(p);
	}
}

/* ---- whole jobs ---- */

enum { JOB_STEPS = 5, JOB_BATCH = 8, JOB_INPUT = 12, JOB_DEVICES = 12 };

typedef struct job_device {
	const tern_plan *plan;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	float (*loss)[JOB_STEPS]; /* per worker */
	tern_status status;
	char detail[512];
} job_device;

static float images[4][JOB_BATCH][JOB_INPUT];
static int32_t labels[4][JOB_BATCH];

/* Ports of a graph with several workers are "images 1" ... */
static uint32_t worker_of(const job_device *d, const char *port)
{
	const char *space = strchr(port, ' ');

	return space ? (uint32_t)atoi(space + 1) : d->plan->devices[d->number].index;
}

static tern_status run_job_steps(job_device *d)
{
	const tern_graph *g = d->plan->devices[d->number].graph;

	TN_TRY(tn_exec_start(d->exec, TN_TIME_NEVER));
	for (uint32_t p = 0; p < g->n_ports; p++) {
		const char *port = g->ports[p].name;
		uint32_t w = worker_of(d, port);

		if (!g->ports[p].is_input)
			continue;
		TN_TRY(tn_exec_feed(d->exec, TN_PROG_TRAIN, port,
				    *port == 'i' ? (const void *)images[w] : (const void *)labels[w],
				    *port == 'i' ? sizeof(images[w]) : sizeof(labels[w])));
	}
	for (uint32_t s = 0; s < JOB_STEPS; s++) {
		TN_TRY(tn_exec_step(d->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		for (uint32_t p = 0; p < g->n_ports; p++) {
			tn_fetched f;

			if (g->ports[p].is_input || strncmp(g->ports[p].name, "loss", 4) != 0)
				continue;
			TN_TRY(tn_exec_fetch(d->exec, TN_PROG_TRAIN, g->ports[p].name, &f));
			memcpy(&d->loss[worker_of(d, g->ports[p].name)][s], f.data, 4);
		}
	}
	return tn_exec_drain(d->exec, TN_TIME_NEVER);
}

static void *job_main(void *arg)
{
	job_device *d = arg;

	d->status = run_job_steps(d);
	snprintf(d->detail, sizeof(d->detail), "%s", tern_detail());
	return NULL;
}

static void run_job(const tern_plan *plan, float (*loss)[JOB_STEPS])
{
	job_device d[JOB_DEVICES] = {{0}};
	pthread_t threads[JOB_DEVICES];
	tn_local_hub *hub;

	assert_true(plan->n_devices <= JOB_DEVICES);
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = plan->n_devices, .lazy_seed = 5}, &hub));
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		d[i] = (job_device){.plan = plan, .number = i, .loss = loss};
		assert_ok(tn_local_open(hub, i, &d[i].xfer));
		assert_ok(tn_exec_create(plan, i, d[i].xfer, &(tn_exec_params){.batch = JOB_BATCH},
					 &d[i].exec));
	}
	for (uint32_t i = 0; i < plan->n_devices; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, job_main, &d[i]), 0);
	for (uint32_t i = 0; i < plan->n_devices; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		uint64_t shared, alone;

		if (d[i].status != TERN_OK)
			fail_msg("%s: %s: %s", plan->devices[i].name, tern_status_name(d[i].status),
				 d[i].detail);
		tn_exec_sharing(d[i].exec, &shared, &alone);
		assert_true(shared < alone || plan->devices[i].n_buffers == plan->devices[i].shared);
		tn_exec_destroy(d[i].exec);
		d[i].xfer->ops->close(d[i].xfer);
	}
	tn_local_hub_destroy(hub);
}

/* The job's placed graph as that of one device. Ports get the number of their worker. */
static tern_plan *together(const tern_graph *model, const tern_plan_params *params)
{
	uint32_t stages = TN_MAX(params->stages, 1);
	tern_graph *placed, *tables;
	tern_plan *p;

	assert_ok(tn_replicate(model, params, &placed, &tables));
	for (uint32_t i = 0; i < placed->n_ports; i++) {
		tn_port *port = &placed->ports[i];
		uint32_t device = (uint32_t)placed->nodes[placed->tensors[port->tensor].node].device;
		char name[64];

		snprintf(name, sizeof(name), "%s %u", port->name, (device - params->servers) / stages);
		free(port->name);
		port->name = strdup(name);
	}
	for (uint32_t i = 0; i < placed->n_nodes; i++)
		placed->nodes[i].device = 0;
	assert_ok(tn_plan_placed(placed, 1, TERN_COMM_ZEROCOPY, &p));
	tern_graph_destroy(placed);
	return p;
}

/* Servers, workers, stages and micro-batches as threads, and all of it in one graph without an edge. */
static void jobs_compute_what_one_device_does(void **state)
{
	static const uint64_t widths[] = {16, 8};
	ref_rand rand = {9};
	tern_graph *g;

	(void)state;
	ref_fill(&rand, &images[0][0][0], sizeof(images) / sizeof(float));
	for (uint32_t i = 0; i < 4 * JOB_BATCH; i++)
		labels[i / JOB_BATCH][i % JOB_BATCH] = (int32_t)(i % 3);
	assert_ok(tern_graph_fully_connected("job", widths, 2,
					     &(tern_model_params){.inputs = JOB_INPUT, .classes = 4}, &g));
	for (uint32_t i = 0; i < 12; i++) {
		tern_plan_params params = {
			.servers = 1 + i % 3,
			.workers = 1 + i / 3 % 3,
			.sync = 1,
			.stages = 1 + i % 2 * 2,
			.micro_batches = i % 4 < 2 ? 1 : 4,
			.split_bytes = i % 3 ? 128 : 0,
			.dims = {{.name = "batch", .size = JOB_BATCH}},
			.optimizer = {.kind = (tern_optimizer_kind)(i % 5), .lr = 0.05f, .momentum = 0.9f}};
		float many[4][JOB_STEPS] = {{0}}, one[4][JOB_STEPS] = {{0}};
		tern_plan *p;

		assert_ok(tern_plan_create(g, &params, &p));
		run_job(p, many);
		tern_plan_destroy(p);
		p = together(g, &params);
		run_job(p, one);
		tern_plan_destroy(p);
		assert_true(one[0][0] > 0.0f);
		assert_memory_equal(one, many, sizeof(one));
	}
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_devices_compute_what_one_does),
		cmocka_unit_test(plans_of_jobs_keep_the_invariants),
		cmocka_unit_test(jobs_compute_what_one_device_does),
	};

	return RUN(tests);
}

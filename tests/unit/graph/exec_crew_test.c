/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor's scheduler: what is needed first goes first, in sends and in updates; several threads give the bits of one;
 * interruptions and failures in any thread leave nobody at work.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/exec_int.h"
#include "graph/exec_threads.h"
#include "job.h"

#define NOW 1 /* a deadline that is past: run until something must be waited for */

enum { VARIABLES = 4, WIDTH = 4 };

static tern_plan *plan;
static tn_local_hub *hub;
static tn_xfer *x[8];
static tn_exec *e[8];

static void open_devices(const tn_exec_params *params)
{
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = plan->n_devices}, &hub));
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		assert_ok(tn_local_open(hub, i, &x[i]));
		assert_ok(tn_exec_create(plan, i, x[i], params, &e[i]));
	}
	for (uint32_t i = 0; i < plan->n_devices; i++)
		assert_ok(tn_exec_start(e[i], TN_TIME_NEVER));
}

static void close_devices(void)
{
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		tn_exec_destroy(e[i]);
		x[i]->ops->close(x[i]);
	}
	tn_local_hub_destroy(hub);
	tern_plan_destroy(plan);
}

/* ---- priorities ---- */

/* loss = sum(x v3 v2 v1 v0): the variable that was declared last is needed first. */
static tern_graph *backwards(void)
{
	static const float start[WIDTH] = {1, 2, 3, 4};
	tern_shape shape = {.rank = 1, .dims = {WIDTH}};
	tern_init init = {.kind = TERN_INIT_DATA, .data = start};
	tern_value v[VARIABLES], at;
	tern_graph *g;
	char name[8];

	assert_ok(tern_graph_create("backwards", &g));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &at));
	assert_ok(tern_graph_input(g, "x", at));
	for (uint32_t i = 0; i < VARIABLES; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_ok(tern_graph_variable(g, name, TERN_F32, &shape, &init, &v[i]));
	}
	for (uint32_t i = VARIABLES; i-- > 0;) {
		snprintf(name, sizeof(name), "y%u", i);
		assert_ok(tern_graph_node(g, "Mul", name, (tern_value[]){at, v[i]}, 2, NULL, 0, &at, 1));
	}
	assert_ok(tern_graph_node(g, "ReduceSum", "loss", &at, 1, NULL, 0, &at, 1));
	assert_ok(tern_graph_output(g, "loss", at));
	return g;
}

/* The n-th node that has an event of this kind in step `step` and is an op with all of these flags. */
static const char *nth_event(const tn_exec *exec, tn_event_kind kind, uint32_t flags, uint64_t step,
			     uint32_t n)
{
	uint32_t met[VARIABLES], n_met = 0;

	for (uint64_t i = 0; i < exec->trace.count && n_met <= n; i++) {
		const tn_event *event = &exec->trace.ring[i & exec->trace.mask];
		const tn_node *node = &exec->graph->nodes[event->node];
		uint32_t k = 0;

		if (event->kind != kind || event->step != step || (tn_op_flags(node->op) & flags) != flags)
			continue;
		while (k < n_met && met[k] != event->node)
			k++;
		if (k == n_met) /* a send has another one when its source is free */
			met[n_met++] = event->node;
	}
	return n < n_met ? exec->graph->nodes[met[n]].name : "";
}

static void assert_order(const tn_exec *exec, tn_event_kind kind, uint32_t flags, uint64_t step)
{
	char name[8];

	for (uint32_t i = 0; i < VARIABLES; i++) {
		const char *node = nth_event(exec, kind, flags, step, i);

		snprintf(name, sizeof(name), "v%u", VARIABLES - 1 - i);
		if (!strstr(node, name))
			fail_msg("number %u is '%s', not of %s", i, node, name);
	}
}

/* The server finds all gradients when it wakes up. */
static void what_the_next_pass_needs_first_goes_first(void **state)
{
	tern_plan_params params = {
		.servers = 1, .workers = 1, .sync = 1, .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tern_graph *g = backwards();
	float data[WIDTH] = {1, 1, 1, 1};

	(void)state;
	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	open_devices(&(tn_exec_params){.trace_events = 1000});
	assert_order(e[0], TN_EVENT_COMM, TN_OPF_SEND, 0); /* initial values */
	assert_ok(tn_exec_feed(e[1], TN_PROG_TRAIN, "x", data, sizeof(data)));
	for (uint64_t step = 0; step < 3; step++) {
		assert_ok(tn_exec_step(e[1], TN_PROG_TRAIN, TN_TIME_NEVER));
		e[0]->trace.count = 0;
		assert_ok(tn_exec_run(e[0], 1, TN_TIME_NEVER));
		assert_order(e[0], TN_EVENT_COMPUTE, TN_OPF_INPLACE, step); /* updates */
		assert_order(e[0], TN_EVENT_COMM, TN_OPF_SEND, step);
	}
	close_devices();
}

/* Readers that are numbered from the first variable on, and ordered from the last. */
static tern_graph *ordered_readers(void)
{
	tern_shape shape = {.rank = 1, .dims = {WIDTH}};
	tern_init init = {.kind = TERN_INIT_CONSTANT, .value = 1};
	tern_value v[VARIABLES], read[VARIABLES];
	tern_graph *g;
	char name[8];

	assert_ok(tern_graph_create("ordered", &g));
	for (uint32_t i = 0; i < VARIABLES; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		assert_ok(tern_graph_variable(g, name, TERN_F32, &shape, &init, &v[i]));
	}
	for (uint32_t i = 0; i < VARIABLES; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		assert_ok(tern_graph_node(g, "Relu", name, &v[i], 1, NULL, 0, &read[i], 1));
	}
	for (uint32_t i = 0; i + 1 < VARIABLES; i++)
		assert_ok(tern_graph_control(g, read[i + 1], read[i]));
	assert_ok(tern_graph_output(g, "r0", read[0]));
	for (uint32_t i = 0; i < g->n_nodes; i++)
		g->nodes[i].device = i >= VARIABLES;
	return g;
}

/* All tensors are there at once, on a device that computes nothing: the order is that of the sends alone. */
static void sends_that_are_ready_together_go_by_need(void **state)
{
	tern_graph *g = ordered_readers();

	(void)state;
	assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &plan));
	tern_graph_destroy(g);
	assert_int_equal(plan->n_edges, VARIABLES);
	open_devices(&(tn_exec_params){.trace_events = 1000});
	assert_ok(tn_exec_step(e[0], TN_PROG_TRAIN, TN_TIME_NEVER));
	assert_order(e[0], TN_EVENT_COMM, TN_OPF_SEND, 0);
	close_devices();
}

static const tn_edge *edge_of(const char *name)
{
	for (uint32_t i = 0; i < plan->n_edges; i++)
		if (strcmp(plan->edges[i].name, name) == 0)
			return &plan->edges[i];
	fail_msg("there is no edge '%s'", name);
	return NULL;
}

/* Gradients are needed as early as their variables; what is needed in the same step comes before all of these. */
static void needs_follow_the_forward_pass(void **state)
{
	static const char *const layers[] = {"fc1/w", "fc2/w"};
	tern_plan_params params = {
		.servers = 2, .workers = 2, .sync = 1, .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tern_graph *g = job_model();
	char name[64];

	(void)state;
	assert_ok(tern_plan_create(g, &params, &plan));
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "worker0/grad/%s", layers[i]);
		assert_int_equal(edge_of(name)->need, edge_of(layers[i])->need);
	}
	assert_true(edge_of("fc1/w")->need < edge_of("fc2/w")->need);
	tern_plan_destroy(plan);
	for (uint32_t i = 0; i < g->n_nodes; i++)
		g->nodes[i].device = strncmp(g->nodes[i].name, "fc1", 3) != 0;
	params.stages = 2;
	params.dims[0].name = "batch";
	params.dims[0].size = 8;
	assert_ok(tern_plan_create(g, &params, &plan));
	for (uint32_t i = 0; i < plan->n_edges; i++) {
		const tn_edge *edge = &plan->edges[i];

		if (plan->devices[edge->src].role == TERN_ROLE_WORKER &&
		    plan->devices[edge->dst].role == TERN_ROLE_WORKER)
			assert_true(edge->need < edge_of("fc1/w")->need);
	}
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
}

/* ---- threads ---- */

static void threads_do_not_change_bits(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < 4; kind++) {
		job_params p = {.plan = {.servers = kind ? 2 : 0,
					 .workers = kind ? 2 : 1,
					 .sync = 1,
					 .split_bytes = kind == 2 ? 64 : 0,
					 .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM,
						       .lr = 0.05f,
						       .momentum = 0.9f}},
				.batch = 24,
				.steps = 6,
				.lazy_seed = kind};
		job_result one, many;

		if (kind == 3) {
			p.plan.stages = 2;
			p.plan.micro_batches = 3;
			p.plan.dims[0].name = "batch";
			p.plan.dims[0].size = 12;
		}
		job_run(&p, &one);
		for (p.threads = 2; p.threads <= 3; p.threads++) {
			job_run(&p, &many);
			assert_memory_equal(one.weights, many.weights, one.n_weights * sizeof(float));
			for (uint32_t w = 0; w < p.plan.workers; w++)
				assert_memory_equal(one.loss[w], many.loss[w], p.steps * sizeof(float));
			job_free(&many);
		}
		job_free(&one);
	}
}

/* Several threads, several writers of a variable, and sends of it: nothing is lost. */
static void asynchronous_jobs_learn_with_threads(void **state)
{
	job_params p = {
		.plan = {.servers = 2, .workers = 3, .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.05f}},
		.batch = 24,
		.steps = 25,
		.threads = 3};
	job_result r;

	(void)state;
	job_run(&p, &r);
	for (uint32_t w = 0; w < 3; w++)
		assert_true(r.loss[w][p.steps - 1] < r.loss[w][0]);
	for (uint64_t i = 0; i < r.n_weights; i++)
		assert_true(isfinite(r.weights[i]));
	job_free(&r);
}

static float images[8 * JOB_INPUTS];
static int32_t labels[8];

static void open_job(uint32_t servers, uint32_t threads)
{
	tern_plan_params params = {.servers = servers,
				   .workers = 1,
				   .sync = 1,
				   .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tern_graph *g = job_model();
	uint32_t worker = servers;

	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	open_devices(&(tn_exec_params){.batch = 8, .threads = threads});
	assert_ok(tn_exec_feed(e[worker], TN_PROG_TRAIN, "images", images, sizeof(images)));
	assert_ok(tn_exec_feed(e[worker], TN_PROG_TRAIN, "labels", labels, sizeof(labels)));
}

/* Every step in as many pieces as it likes: cancelled, and with deadlines that are past. */
static void interrupted_steps_go_on(void **state)
{
	(void)state;
	for (uint32_t threads = 1; threads <= 3; threads++) {
		open_job(1, threads);
		for (uint64_t step = 1; step <= 15; step++) {
			tern_status st[2] = {TERN_E_DEADLINE, TERN_E_DEADLINE};
			tn_exec_stats stats;
			uint32_t tries = 0;

			while (st[0] != TERN_OK || st[1] != TERN_OK) {
				for (uint32_t d = 0; d < 2; d++) {
					if (st[d] == TERN_OK)
						continue;
					if (step % 3 == d && tries++ % 2)
						tn_exec_cancel(e[d]);
					st[d] = d ? tn_exec_step(e[d], TN_PROG_TRAIN, NOW)
						  : tn_exec_run(e[d], 1, NOW);
					assert_true(st[d] == TERN_OK || st[d] == TERN_E_DEADLINE ||
						    st[d] == TERN_E_CANCELED);
				}
			}
			for (uint32_t d = 0; d < 2; d++) {
				tn_exec_stats_get(e[d], &stats, false);
				assert_int_equal(stats.steps, step);
			}
		}
		close_devices();
	}
}

static void a_kernel_error_in_any_thread_is_final(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		open_job(0, 3);
		assert_ok(tn_exec_step(e[0], TN_PROG_TRAIN, TN_TIME_NEVER));
		labels[3] = 99;
		assert_status(tn_exec_step(e[0], TN_PROG_TRAIN, TN_TIME_NEVER), TERN_E_INVALID);
		assert_non_null(strstr(tern_detail(), "label 99 of row 3"));
		labels[3] = 0;
		assert_status(tn_exec_step(e[0], TN_PROG_TRAIN, TN_TIME_NEVER), TERN_E_STATE);
		close_devices();
	}
}

static void the_option_is_bounded(void **state)
{
	uint32_t threads = 0;

	(void)state;
	unsetenv("TERN_GRAPH_THREADS");
	assert_ok(tn_exec_threads(&threads));
	assert_int_equal(threads, 1);
	setenv("TERN_GRAPH_THREADS", "3", 1);
	assert_ok(tn_exec_threads(&threads));
	assert_int_equal(threads, 3);
	setenv("TERN_GRAPH_THREADS", "0", 1);
	assert_status(tn_exec_threads(&threads), TERN_E_OPTION);
	unsetenv("TERN_GRAPH_THREADS");
}

static void threads_are_bounded(void **state)
{
	tern_plan_params params = {.workers = 1, .optimizer = {.lr = 1}};
	tern_graph *g = job_model();
	tn_xfer *stub;

	(void)state;
	assert_ok(tern_plan_create(g, &params, &plan));
	assert_ok(tn_stub_open(NULL, NULL, &stub));
	assert_status(tn_exec_create(plan, 0, stub, &(tn_exec_params){.batch = 2, .threads = 65}, &e[0]),
		      TERN_E_INVALID);
	stub->ops->close(stub);
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_the_next_pass_needs_first_goes_first),
		cmocka_unit_test(sends_that_are_ready_together_go_by_need),
		cmocka_unit_test(needs_follow_the_forward_pass),
		cmocka_unit_test(threads_do_not_change_bits),
		cmocka_unit_test(asynchronous_jobs_learn_with_threads),
		cmocka_unit_test(interrupted_steps_go_on),
		cmocka_unit_test(a_kernel_error_in_any_thread_is_final),
		cmocka_unit_test(threads_are_bounded),
		cmocka_unit_test(the_option_is_bounded),
	};

	return RUN(tests);
}

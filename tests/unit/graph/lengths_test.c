/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of another length in each step. A model whose steps are symbolic (TERN_STEPS_SYMBOLIC) trains as models do that
 * are made for one length each and hand their variables on: the same bits. Cut over two devices, whose edges are dynamic,
 * it comes to the same bits again, in each way that tensors travel.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec.h"
#include "graph/xfer_link.h"
#include "support/nodes.h"

#ifdef TN_GRPC_MODULE
#define GRPC_MODULE TN_GRPC_MODULE
#else
#define GRPC_MODULE ""
#endif

enum { BATCH = 4, STEPS = 8, PORTS_MAX = 8, BYTES_MAX = 1 << 17 };

static const char *const names[] = {"gru_small", "lstm_small", "charlm", "seq2seq"};

/* One device of a plan. */
typedef struct device {
	tern_plan *plan;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	const uint64_t *lengths; /* of each step */
	float losses[STEPS];     /* of the device that has them */
	bool has_loss;
	tern_status status;
	char detail[256];
} device;

static tern_plan *plan_of(const char *model, uint64_t steps, uint32_t stages, tern_comm comm)
{
	tern_model_params size = {.seed = 5, .steps = steps};
	tern_plan_params params = {.workers = 1,
				   .stages = stages,
				   .comm = comm,
				   .optimizer = {.kind = TERN_OPTIMIZER_ADAM, .lr = 0.01f},
				   .dims = {{.name = "batch", .size = BATCH}}};
	tern_graph *g;
	tern_plan *plan;

	if (strcmp(model, "seq2seq") == 0)
		size.inputs = size.classes = 50;
	if (steps == TERN_STEPS_SYMBOLIC) {
		params.dims[1].name = "steps";
		params.dims[1].size = 8;
		params.dims[1].varies = 1;
	}
	assert_ok(tern_graph_model(model, &size, &g));
	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	return plan;
}

/* ---- a step ---- */

/* Numbers that depend on the step, the port and the place alone. */
static void fill(const tern_graph *g, uint32_t port, int step, uint64_t length, void *data, uint64_t *bytes)
{
	const tn_tensor *t = &g->tensors[g->ports[port].tensor];
	uint64_t n = BATCH;
	uint32_t x = (uint32_t)step * 977 + (uint32_t)strlen(g->ports[port].name) * 31 + 7;

	for (uint32_t i = 1; i < t->shape.rank; i++)
		n *= tn_dim_symbolic(t->shape.dims[i]) ? length : t->shape.dims[i];
	*bytes = n * 4;
	assert_true(*bytes <= BYTES_MAX);
	for (uint64_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		if (t->dtype == TERN_F32)
			((float *)data)[i] = (float)(x >> 16) / 65536.0f;
		else
			((int32_t *)data)[i] = (int32_t)((x >> 16) % 10);
	}
}

static tern_status one_step(device *d, int step)
{
	static __thread char data[PORTS_MAX][BYTES_MAX]; /* read where it lies */
	const tern_graph *g = d->plan->devices[d->number].graph;
	tn_fetched f;

	if (d->plan->params.dims[1].name)
		TN_TRY(tn_exec_bind(d->exec, TN_PROG_TRAIN, "steps", d->lengths[step],
				    tn_now() + NODES_WAIT_NS));
	for (uint32_t i = 0; i < g->n_ports; i++) {
		uint64_t bytes;

		if (!g->ports[i].is_input)
			continue;
		assert_true(i < PORTS_MAX);
		fill(g, i, step, d->lengths[step], data[i], &bytes);
		TN_TRY(tn_exec_feed(d->exec, TN_PROG_TRAIN, g->ports[i].name, data[i], bytes));
	}
	TN_TRY(tn_exec_step(d->exec, TN_PROG_TRAIN, tn_now() + NODES_WAIT_NS));
	d->has_loss = tn_graph_port(g, "loss", false) != TN_NONE;
	if (!d->has_loss)
		return TERN_OK;
	TN_TRY(tn_exec_fetch(d->exec, TN_PROG_TRAIN, "loss", &f));
	memcpy(&d->losses[step], f.data, sizeof(float));
	return TERN_OK;
}

/* ---- devices ---- */

static void alone(device *d, tn_local_hub **hub, const char *model, uint64_t steps, const uint64_t *lengths)
{
	*d = (device){.plan = plan_of(model, steps, 1, TERN_COMM_ZEROCOPY), .lengths = lengths};
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = 1}, hub));
	assert_ok(tn_local_open(*hub, 0, &d->xfer));
	assert_ok(tn_exec_create(d->plan, 0, d->xfer, &(tn_exec_params){.batch = BATCH}, &d->exec));
	assert_ok(tn_exec_start(d->exec, TN_TIME_NEVER));
}

static void finish(device *d, tn_local_hub *hub)
{
	tn_exec_destroy(d->exec);
	d->xfer->ops->close(d->xfer);
	tern_plan_destroy(d->plan);
	tn_local_hub_destroy(hub);
}

/* All variables, with the optimiser's: from one device to another of the same names; or are they equal? */
static void hand_on(const device *from, const device *to, bool compare)
{
	const tern_graph *g = from->plan->devices[0].graph;
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		tn_fetched a, b;

		if (g->nodes[i].op != TN_OP_VARIABLE)
			continue;
		assert_ok(tn_exec_variable(from->exec, g->nodes[i].name, &a));
		assert_ok(tn_exec_variable(to->exec, g->nodes[i].name, &b));
		assert_true(a.bytes == b.bytes);
		if (compare)
			assert_memory_equal(a.data, b.data, a.bytes);
		else
			memcpy((void *)(uintptr_t)b.data, a.data, a.bytes);
		n++;
	}
	assert_true(n > 6);
}

static void as_models_of_one_length(void **state)
{
	static const uint64_t lengths[STEPS] = {5, 9, 9, 5, 9, 5, 5, 9};

	(void)state;
	for (unsigned m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
		device any, fixed[2];
		tn_local_hub *hubs[3];
		int last = lengths[0] == 9;

		alone(&any, &hubs[2], names[m], TERN_STEPS_SYMBOLIC, lengths);
		for (int i = 0; i < 2; i++)
			alone(&fixed[i], &hubs[i], names[m], i ? 9 : 5, lengths);
		for (int step = 0; step < STEPS; step++) {
			int now = lengths[step] == 9;

			assert_ok(one_step(&any, step));
			if (now != last)
				hand_on(&fixed[last], &fixed[now], false);
			last = now;
			assert_ok(one_step(&fixed[now], step));
			if (any.losses[step] != fixed[now].losses[step])
				fail_msg("%s, step %d: loss %a, not %a", names[m], step,
					 (double)any.losses[step], (double)fixed[now].losses[step]);
		}
		assert_true(any.losses[0] != any.losses[STEPS - 1]);
		hand_on(&any, &fixed[last], true);
		finish(&any, hubs[2]);
		for (int i = 0; i < 2; i++)
			finish(&fixed[i], hubs[i]);
	}
}

/* ---- two devices ---- */

static void *device_main(void *arg)
{
	device *d = arg;

	d->status = tn_exec_start(d->exec, tn_now() + NODES_WAIT_NS);
	for (int step = 0; step < STEPS && d->status == TERN_OK; step++)
		d->status = one_step(d, step);
	if (d->status == TERN_OK)
		d->status = tn_exec_drain(d->exec, tn_now() + NODES_WAIT_NS);
	snprintf(d->detail, sizeof(d->detail), "%s", tern_detail());
	return NULL;
}

static tern_status open_xfer(const tn_xfer_link_params *params, tern_comm comm, const char *way,
			     tn_xfer **xfer)
{
	if (comm == TERN_COMM_RPC)
		return tn_xfer_rpc_open(params, xfer);
	if (comm == TERN_COMM_GRPC)
		return tn_xfer_module_open(params, GRPC_MODULE, way, xfer);
	return tn_xfer_tensor_open(params, comm == TERN_COMM_COPY, xfer);
}

/* Trains over two devices; the losses. */
static void over_links(const char *model, const uint64_t *lengths, tern_comm comm, const char *way,
		       float *losses)
{
	static nodes n;
	tern_plan *plan = plan_of(model, TERN_STEPS_SYMBOLIC, 2, comm);
	tern_link *links[2][2] = {{NULL}};
	const bool dialed[2][2] = {{false, true}, {false, false}};
	uint32_t dynamic = 0;
	pthread_t threads[2];
	device d[2];

	nodes_start(&n, "tcp");
	for (uint32_t i = 0; i < plan->n_edges; i++)
		dynamic += !plan->edges[i].is_static;
	assert_true(dynamic >= 2); /* there and back */
	links[0][1] = n.ab;
	links[1][0] = n.ba;
	for (uint32_t i = 0; i < 2; i++) {
		tn_xfer_link_params params = {.ctx = i ? n.b : n.a,
					      .device = i,
					      .devices = 2,
					      .links = links[i],
					      .dialed = dialed[i]};

		d[i] = (device){.plan = plan, .number = i, .lengths = lengths};
		assert_ok(open_xfer(&params, comm, way, &d[i].xfer));
		assert_ok(tn_exec_create(plan, i, d[i].xfer, &(tn_exec_params){.batch = BATCH}, &d[i].exec));
	}
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, device_main, &d[i]), 0);
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	if (d[0].status != TERN_OK || d[1].status != TERN_OK)
		fail_msg("%s by way %d: device 0: %s; device 1: %s", model, (int)comm, d[0].detail,
			 d[1].detail);
	assert_true(d[0].has_loss != d[1].has_loss);
	memcpy(losses, d[d[1].has_loss].losses, sizeof(d[0].losses));
	tern_link_close(n.ab);
	for (uint32_t i = 0; i < 2; i++) {
		tn_exec_destroy(d[i].exec);
		d[i].xfer->ops->close(d[i].xfer);
	}
	tern_plan_destroy(plan);
	nodes_stop(&n);
}

static void in_each_way_the_same_bits(void **state)
{
	static const struct {
		tern_comm comm;
		const char *name, *way;
	} ways[] = {{TERN_COMM_ZEROCOPY, "zerocopy", ""},
		    {TERN_COMM_COPY, "copy", ""},
		    {TERN_COMM_RPC, "rpc", ""},
		    {TERN_COMM_GRPC, "grpc, plain", "plain"},
		    {TERN_COMM_GRPC, "grpc, tuned", "tuned"}};
	static const uint64_t lengths[STEPS] = {3, 11, 7, 20, 1, 11, 2, 16};

	(void)state;
	for (unsigned m = 2; m < sizeof(names) / sizeof(names[0]); m++) {
		float losses[STEPS];
		tn_local_hub *hub;
		device any;

		alone(&any, &hub, names[m], TERN_STEPS_SYMBOLIC, lengths);
		for (int step = 0; step < STEPS; step++)
			assert_ok(one_step(&any, step));
		for (unsigned w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			if (ways[w].comm == TERN_COMM_GRPC && sizeof(GRPC_MODULE) == 1)
				continue;
			over_links(names[m], lengths, ways[w].comm, ways[w].way, losses);
			for (int step = 0; step < STEPS; step++)
				if (losses[step] != any.losses[step])
					fail_msg("%s by %s, step %d: loss %a, not %a", names[m], ways[w].name,
						 step, (double)losses[step], (double)any.losses[step]);
		}
		finish(&any, hub);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_models_of_one_length),
		cmocka_unit_test(in_each_way_the_same_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

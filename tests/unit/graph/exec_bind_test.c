/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that change from step to step: a model on two devices whose edge is dynamic, over links. Device 0 is told the size,
 * device 1 learns it from what it receives, in each way that tensors travel and whichever of the two dialled. Results are
 * those of a plain computation, sizes that were there before cost no memory, and buffers grow while their tensors may
 * still be read.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "graph/exec.h"
#include "graph/xfer_link.h"
#include "support/nodes.h"

#ifdef TN_GRPC_MODULE
#define GRPC_MODULE TN_GRPC_MODULE
#else
#define GRPC_MODULE ""
#endif

enum { WIDTH = 3, ROWS_MAX = 200, STEPS = 60 };

static nodes n;
static const char *transport;
static tern_comm comm;
static const char *way; /* of gRPC */
static bool swapped;    /* device 1 dialled: it asks for tensors */
static tern_plan *plan;
static tn_xfer *x[2];
static tn_exec *e[2];
static atomic_bool failed;
static uint64_t rows_of[STEPS];
static float results[STEPS];
static char words[256];

/* x (rows, WIDTH) -> a = 2 x on device 0 -> b = relu(a), c = sum of all of b on device 1. */
static tern_graph *model(void)
{
	tern_attr twice = {.name = "scale", .type = TERN_ATTR_FLOAT, .f = 2};
	tern_shape shape = {.rank = 2, .dims = {0, WIDTH}};
	tern_value in, a, b, c;
	tern_graph *g;

	assert_ok(tern_graph_create("varies", &g));
	assert_ok(tern_graph_symbol(g, "rows", &shape.dims[0]));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &in));
	assert_ok(tern_graph_node(g, "Scale", "a", &in, 1, &twice, 1, &a, 1));
	assert_ok(tern_graph_node(g, "Relu", "b", &a, 1, NULL, 0, &b, 1));
	assert_ok(tern_graph_node(g, "ReduceSum", "c", &b, 1, NULL, 0, &c, 1));
	for (uint32_t i = 0; i < 4; i++)
		g->nodes[i].device = i / 2;
	assert_ok(tern_graph_input(g, "x", in));
	assert_ok(tern_graph_output(g, "c", c));
	return g;
}

static void open_device(uint32_t i, const char *symbol)
{
	static tern_link *links[2][2];
	static bool dialed[2][2];
	bool dials = (i == 1) == swapped;
	tn_xfer_link_params params = {
		.ctx = dials ? n.a : n.b, .device = i, .devices = 2, .links = links[i], .dialed = dialed[i]};

	links[i][1 - i] = dials ? n.ab : n.ba;
	dialed[i][1 - i] = dials;
	plan->params.dims[0].name = symbol;
	plan->params.dims[0].size = 8;
	plan->params.dims[0].varies = 1;
	if (comm == TERN_COMM_RPC)
		assert_ok(tn_xfer_rpc_open(&params, &x[i]));
	else if (comm == TERN_COMM_GRPC)
		assert_ok(tn_xfer_module_open(&params, GRPC_MODULE, way, &x[i]));
	else
		assert_ok(tn_xfer_tensor_open(&params, comm == TERN_COMM_COPY, &x[i]));
	assert_ok(tn_exec_create(plan, i, x[i], &(tn_exec_params){0}, &e[i]));
}

static int setup(void **state)
{
	tern_graph *g = model();

	(void)state;
	nodes_start(&n, transport);
	assert_ok(tn_plan_placed(g, 2, comm, &plan));
	assert_false(plan->edges[0].is_static);
	tern_graph_destroy(g);
	atomic_store(&failed, false);
	for (uint32_t i = 0; i < 2; i++)
		open_device(i, "rows");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tern_link_close(n.ab);
	for (unsigned i = 0; i < 2; i++) {
		tn_exec_destroy(e[i]);
		x[i]->ops->close(x[i]);
	}
	tern_plan_destroy(plan);
	nodes_stop(&n);
	return 0;
}

static float value(int step, uint64_t i)
{
	return (float)((step * 31 + (int)i * 7) % 11) - 4;
}

static float expected(int step)
{
	float sum = 0;

	for (uint64_t i = 0; i < rows_of[step] * WIDTH; i++)
		sum += value(step, i) > 0 ? 2 * value(step, i) : 0;
	return sum;
}

/* Device 1, in its own thread: it is never told a size. */
static void *consume(void *arg)
{
	tn_fetched f;

	(void)arg;
	for (int step = 0; step < STEPS && !atomic_load(&failed); step++) {
		if (step == 0 && tn_exec_start(e[1], tn_now() + NODES_WAIT_NS) != TERN_OK)
			atomic_store(&failed, true);
		if (tn_exec_step(e[1], TN_PROG_TRAIN, tn_now() + NODES_WAIT_NS) != TERN_OK ||
		    tn_exec_fetch(e[1], TN_PROG_TRAIN, "c", &f) != TERN_OK) {
			snprintf(words, sizeof(words), "%s", tern_detail());
			atomic_store(&failed, true);
		} else {
			results[step] = *(const float *)f.data;
		}
	}
	return NULL;
}

static void run(void)
{
	static float data[ROWS_MAX * WIDTH];
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, consume, NULL), 0);
	assert_ok(tn_exec_start(e[0], tn_now() + NODES_WAIT_NS));
	for (int step = 0; step < STEPS && !atomic_load(&failed); step++) {
		for (uint64_t i = 0; i < rows_of[step] * WIDTH; i++)
			data[i] = value(step, i);
		assert_ok(tn_exec_bind(e[0], TN_PROG_TRAIN, "rows", rows_of[step], tn_now() + NODES_WAIT_NS));
		assert_ok(
			tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, rows_of[step] * WIDTH * sizeof(*data)));
		assert_ok(tn_exec_step(e[0], TN_PROG_TRAIN, tn_now() + NODES_WAIT_NS));
	}
	pthread_join(thread, NULL);
	if (atomic_load(&failed))
		fail_msg("device 1: %s", words);
	for (int step = 0; step < STEPS; step++)
		assert_true(results[step] == expected(step));
}

static void sizes_change(void **state)
{
	uint32_t r = 1;

	(void)state;
	for (int step = 0; step < STEPS; step++) {
		r = r * 1664525u + 1013904223u;
		rows_of[step] = 1 + (r >> 16) % ROWS_MAX;
	}
	run();
	if (comm == TERN_COMM_ZEROCOPY)
		assert_int_equal(tern_ctx_counter(swapped ? n.b : n.a, "tensor.staged"), 0);
}

/* The largest first: then no later one needs memory. */
static void known_sizes_need_no_memory(void **state)
{
	uint64_t plain, registered;

	(void)state;
	for (int step = 0; step < STEPS; step++)
		rows_of[step] = (uint64_t)(step % 2 ? ROWS_MAX : ROWS_MAX / 2 + step % 7);
	rows_of[0] = ROWS_MAX;
	run();
	for (unsigned i = 0; i < 2; i++) {
		/* Ten sizes were met: the memory is that of the largest, once. */
		tn_exec_memory(e[i], &plain, &registered);
		assert_true(plain + registered < 2ull * ROWS_MAX * WIDTH * sizeof(float));
	}
}

static void what_cannot_be_bound(void **state)
{
	float data[24] = {0};

	(void)state;
	assert_status(tn_exec_bind(e[0], TN_PROG_TRAIN, "columns", 3, 0), TERN_E_NOT_FOUND);
	assert_status(tn_exec_bind(e[0], TN_PROG_TRAIN, "rows", 0, 0), TERN_E_NOT_FOUND);
	assert_status(tn_exec_bind(e[0], TN_PROG_EVAL, "rows", 3, 0), TERN_E_STATE);
	assert_ok(tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, 8 * WIDTH * sizeof(float)));
	assert_ok(tn_exec_bind(e[0], TN_PROG_TRAIN, "rows", 9, 0));
	assert_status(tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, 8 * WIDTH * sizeof(float)), TERN_E_SHAPE);
	assert_ok(tn_exec_bind(e[0], TN_PROG_TRAIN, "rows", 8, 0));
	assert_ok(tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, 8 * WIDTH * sizeof(float)));
}

static int run_group(const char *over, tern_comm by, const char *grpc_way, bool swap)
{
#define CASE(f)                              \
	{                                    \
#f, f, setup, teardown, NULL \
	}
	const struct CMUnitTest tests[] = {CASE(sizes_change), CASE(known_sizes_need_no_memory),
					   CASE(what_cannot_be_bound)};
	static const char *const names[] = {[TERN_COMM_ZEROCOPY] = "zerocopy",
					    [TERN_COMM_COPY] = "copy",
					    [TERN_COMM_RPC] = "rpc",
					    [TERN_COMM_GRPC] = "grpc"};

	transport = over;
	comm = by;
	way = grpc_way;
	swapped = swap;
	printf("--- %s %s %s, device %d dials ---\n", over, names[by], grpc_way, swap);
	return cmocka_run_group_tests_name(over, tests, NULL, NULL);
}

int main(void)
{
	static const char *const transports[] = {"shm", "tcp", "loop"}, *const ways[] = {"plain", "tuned"};
	static const tern_comm comms[] = {TERN_COMM_ZEROCOPY, TERN_COMM_COPY, TERN_COMM_RPC};
	int bad = 0;

	for (unsigned i = 0; i < 18; i++)
		bad += run_group(transports[i / 6], comms[i / 2 % 3], "", i % 2);
	for (int i = 0; sizeof(GRPC_MODULE) > 1 && i < 4; i++)
		bad += run_group("tcp", TERN_COMM_GRPC, ways[i / 2], i % 2);
	return bad;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor by itself: devices that are stepped in turn by one thread, with deadlines that are past, so
 * that every interruption happens where the test wants it.
 */
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cmocka_all.h"
#include "graph/exec_int.h"
#include "job.h"

#define NOW 1 /* a deadline that is past: run until something must be waited for */

static tern_plan *plan;
static tn_local_hub *hub;
static tn_xfer *x[4];
static tn_exec *e[4];
static float images[8 * JOB_INPUTS];
static int32_t labels[8];

static void open_job(uint32_t servers, uint32_t workers, int sync, uint64_t batch)
{
	tern_plan_params params = {.servers = servers,
				   .workers = workers,
				   .sync = sync,
				   .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tn_exec_params exec = {.batch = batch, .eval_batch = 2};
	tern_graph *g = job_model();

	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = plan->n_devices}, &hub));
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		assert_ok(tn_local_open(hub, i, &x[i]));
		assert_ok(tn_exec_create(plan, i, x[i], &exec, &e[i]));
	}
}

static void close_job(void)
{
	for (uint32_t i = 0; i < plan->n_devices; i++) {
		tn_exec_destroy(e[i]);
		x[i]->ops->close(x[i]);
	}
	tn_local_hub_destroy(hub);
	tern_plan_destroy(plan);
}

static void feed(tn_exec *exec, uint64_t rows)
{
	assert_ok(tn_exec_feed(exec, TN_PROG_TRAIN, "images", images, rows * JOB_INPUTS * 4));
	assert_ok(tn_exec_feed(exec, TN_PROG_TRAIN, "labels", labels, rows * 4));
}

static void assert_detail(const char *words)
{
	if (!strstr(tern_detail(), words))
		fail_msg("'%s' is not in: %s", words, tern_detail());
}

static void a_deadline_names_what_is_missing_and_can_be_resumed(void **state)
{
	tn_fetched loss;

	(void)state;
	open_job(1, 1, 1, 8);
	assert_status(tn_exec_step(e[1], TN_PROG_TRAIN, NOW), TERN_E_STATE);
	assert_ok(tn_exec_start(e[1], NOW));
	assert_status(tn_exec_start(e[1], NOW), TERN_E_STATE);
	assert_status(tn_exec_fetch(e[1], TN_PROG_TRAIN, "nothing", &loss), TERN_E_NOT_FOUND);
	feed(e[1], 8);
	assert_status(tn_exec_step(e[1], TN_PROG_TRAIN, NOW), TERN_E_DEADLINE);
	assert_detail("worker0, step 0: waiting for 'fc");
	assert_detail("from server0, and for 3 more");
	assert_ok(tn_exec_start(e[0], NOW));
	assert_ok(tn_exec_step(e[1], TN_PROG_TRAIN, NOW));
	assert_ok(tn_exec_fetch(e[1], TN_PROG_TRAIN, "loss", &loss));
	assert_true(*(const float *)loss.data > 0.0f);
	/* the next step lacks the server's work */
	assert_status(tn_exec_step(e[1], TN_PROG_TRAIN, NOW), TERN_E_DEADLINE);
	assert_detail("step 1");
	assert_status(tn_exec_run(e[0], 5, NOW), TERN_E_DEADLINE);
	assert_ok(tn_exec_step(e[1], TN_PROG_TRAIN, NOW));
	close_job();
}

static void cancel_interrupts_once(void **state)
{
	(void)state;
	open_job(1, 1, 1, 8);
	assert_ok(tn_exec_start(e[0], NOW));
	assert_ok(tn_exec_start(e[1], NOW));
	feed(e[1], 8);
	tn_exec_cancel(e[1]);
	assert_status(tn_exec_step(e[1], TN_PROG_TRAIN, TN_TIME_NEVER), TERN_E_CANCELED);
	assert_ok(tn_exec_step(e[1], TN_PROG_TRAIN, TN_TIME_NEVER));
	close_job();
}

static void feeds_are_checked(void **state)
{
	(void)state;
	open_job(0, 1, 1, 8);
	assert_ok(tn_exec_start(e[0], NOW));
	assert_status(tn_exec_step(e[0], TN_PROG_TRAIN, NOW), TERN_E_STATE);
	assert_detail("'images' was not fed");
	assert_status(tn_exec_feed(e[0], TN_PROG_TRAIN, "images", images, 12), TERN_E_SHAPE);
	assert_detail("f32[8,12], 384 bytes, not 12");
	assert_status(tn_exec_feed(e[0], TN_PROG_TRAIN, "images", NULL, 384), TERN_E_SHAPE);
	assert_status(tn_exec_feed(e[0], TN_PROG_TRAIN, "loss", images, 4), TERN_E_NOT_FOUND);
	feed(e[0], 8);
	assert_ok(tn_exec_step(e[0], TN_PROG_TRAIN, NOW));
	close_job();
}

static void a_kernel_error_is_final(void **state)
{
	(void)state;
	open_job(0, 1, 1, 8);
	assert_ok(tn_exec_start(e[0], NOW));
	feed(e[0], 8);
	labels[3] = 99;
	assert_status(tn_exec_step(e[0], TN_PROG_TRAIN, NOW), TERN_E_INVALID);
	assert_detail("label 99 of row 3");
	labels[3] = 0;
	assert_status(tn_exec_step(e[0], TN_PROG_TRAIN, NOW), TERN_E_STATE);
	close_job();
}

static void a_lost_peer_is_named(void **state)
{
	(void)state;
	open_job(2, 1, 1, 8);
	for (uint32_t i = 0; i < 3; i++)
		assert_ok(tn_exec_start(e[i], NOW));
	feed(e[2], 8);
	assert_ok(tn_exec_step(e[2], TN_PROG_TRAIN, NOW));
	x[1]->ops->close(x[1]);
	assert_status(tn_exec_step(e[2], TN_PROG_TRAIN, TN_TIME_NEVER), TERN_E_PEER_CLOSED);
	assert_detail("worker0: tensor '");
	assert_detail("from server1");
	close_job();
}

static tern_status send_is_lost(tn_xfer_end *end)
{
	(void)end;
	return tn_fail(TERN_E_INDETERMINATE, "nobody knows where it is");
}

/* A send that fails after its step went on: the server never gets the gradient, so the variable never comes. */
static void a_lost_send_is_seen_while_waiting(void **state)
{
	const tn_xfer_ops *ops;
	tn_xfer_ops losing;

	(void)state;
	open_job(1, 1, 1, 8);
	assert_ok(tn_exec_start(e[0], NOW));
	assert_ok(tn_exec_start(e[1], NOW));
	feed(e[1], 8);
	assert_ok(tn_exec_step(e[1], TN_PROG_TRAIN, NOW));
	ops = x[1]->ops;
	losing = *ops;
	losing.send_test = send_is_lost;
	x[1]->ops = &losing;
	assert_status(tn_exec_step(e[1], TN_PROG_TRAIN, tn_now() + 60 * TN_NS_PER_SEC), TERN_E_INDETERMINATE);
	assert_detail("worker0: tensor 'worker0/grad/");
	assert_detail("to server0: nobody knows");
	x[1]->ops = ops;
	close_job();
}

/* A server's variables do not wait for each other: chains run ahead. */
static void chains_are_independent(void **state)
{
	exec_prog *p;
	uint32_t sync_chains;

	(void)state;
	open_job(1, 2, 1, 4);
	p = &e[0]->progs[TN_PROG_TRAIN];
	sync_chains = p->n_chains;
	assert_int_equal(sync_chains, 4); /* one per variable */
	assert_int_equal(e[1]->progs[TN_PROG_TRAIN].n_chains, 1);
	close_job();
	open_job(1, 2, 0, 4);
	p = &e[0]->progs[TN_PROG_TRAIN];
	assert_int_equal(p->n_chains, 8); /* one per variable and worker */
	for (uint32_t i = 0; i < 3; i++)
		assert_ok(tn_exec_start(e[i], NOW));
	/* worker 1 trains three steps alone while worker 0 does nothing */
	feed(e[2], 4);
	for (int i = 0; i < 3; i++) {
		assert_ok(tn_exec_step(e[2], TN_PROG_TRAIN, NOW));
		assert_status(tn_exec_run(e[0], 10, NOW), TERN_E_DEADLINE);
	}
	for (uint32_t c = 0; c < p->n_chains; c++)
		assert_true(p->chains[c].step == 0 || p->chains[c].step == 3);
	close_job();
}

/* Two devices by hand, every kind of edge: computed, fed by the caller, and forwarded from a receive slot. */
static void model_parallel(void **state)
{
	static const int32_t devices[] = {0, 0, 1, 1, 0, 0, 0};
	tern_shape shape = {.rank = 1, .dims = {4}};
	tern_value in, v[6];
	float data[4] = {-1, 2, 3, -4};
	tern_graph *g;
	tn_fetched f, g2;

	(void)state;
	for (uint64_t lazy = 0; lazy < 3; lazy++) {
		assert_ok(tern_graph_create("hand", &g));
		assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &in));
		assert_ok(tern_graph_node(g, "Relu", "a", &in, 1, NULL, 0, &v[0], 1));
		assert_ok(tern_graph_node(g, "Add", "b", (tern_value[]){v[0], in}, 2, NULL, 0, &v[1],
					  1)); /* on 1 */
		assert_ok(tern_graph_node(g, "Identity", "c", &v[0], 1, NULL, 0, &v[2],
					  1)); /* on 1: a's slot */
		assert_ok(tern_graph_node(g, "Mul", "d", (tern_value[]){v[1], v[2]}, 2, NULL, 0, &v[3], 1));
		assert_ok(tern_graph_node(g, "Identity", "e", &v[1], 1, NULL, 0, &v[4],
					  1)); /* a port on a slot */
		assert_ok(tern_graph_node(g, "Add", "f", (tern_value[]){v[3], v[0]}, 2, NULL, 0, &v[5], 1));
		for (uint32_t i = 0; i < 7; i++)
			g->nodes[i].device = devices[i];
		assert_ok(tern_graph_input(g, "x", in));
		assert_ok(tern_graph_output(g, "f", v[5]));
		assert_ok(tern_graph_output(g, "e", v[4]));
		assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &plan));
		tern_graph_destroy(g);
		assert_ok(tn_local_hub_create(&(tn_local_params){.devices = 2, .lazy_seed = lazy}, &hub));
		for (uint32_t i = 0; i < 2; i++) {
			assert_ok(tn_local_open(hub, i, &x[i]));
			assert_ok(tn_exec_create(plan, i, x[i], &(tn_exec_params){0}, &e[i]));
		}
		for (uint32_t i = 0; i < 2; i++)
			assert_ok(tn_exec_start(e[i], NOW));
		assert_ok(tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, sizeof(data)));
		for (int step = 0; step < 6; step++) {
			tern_status st[2] = {TERN_E_DEADLINE, TERN_E_DEADLINE};

			for (int turn = 0; turn < 100 && (st[0] != TERN_OK || st[1] != TERN_OK); turn++) {
				for (int i = 0; i < 2; i++) {
					if (st[i] != TERN_OK)
						st[i] = tn_exec_step(e[i], TN_PROG_TRAIN, NOW);
				}
			}
			assert_ok(st[0]);
			assert_ok(st[1]);
			assert_ok(tn_exec_fetch(e[0], TN_PROG_TRAIN, "f", &f));
			assert_ok(tn_exec_fetch(e[0], TN_PROG_TRAIN, "e", &g2));
			for (int i = 0; i < 4; i++) {
				float a = data[i] > 0 ? data[i] : 0, b = a + data[i];

				assert_true(((const float *)f.data)[i] == b * a + a);
				assert_true(((const float *)g2.data)[i] == b);
				data[i] = data[i] * 0.5f + 1; /* the caller's memory is free between steps */
			}
		}
		close_job();
	}
}

/*
 * A producer that runs ahead of its consumer computes into a buffer that may still be on its way: it has to
 * wait for the buffer, not only for a slot.
 */
static void a_buffer_is_not_written_while_it_is_sent(void **state)
{
	tern_shape shape = {.rank = 1, .dims = {4}};
	tern_attr twice = {.name = "scale", .type = TERN_ATTR_FLOAT, .f = 2};
	tern_value in, a, b;
	float data[4];
	tern_graph *g;
	tn_fetched f;

	(void)state;
	assert_ok(tern_graph_create("ahead", &g));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &in));
	assert_ok(tern_graph_node(g, "Scale", "a", &in, 1, &twice, 1, &a, 1));
	assert_ok(tern_graph_node(g, "Relu", "b", &a, 1, NULL, 0, &b, 1));
	for (uint32_t i = 0; i < 3; i++)
		g->nodes[i].device = i / 2;
	assert_ok(tern_graph_input(g, "x", in));
	assert_ok(tern_graph_output(g, "b", b));
	for (uint64_t lazy = 1; lazy < 20; lazy++) {
		int sent = 0, received = 0;

		assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &plan));
		assert_ok(tn_local_hub_create(&(tn_local_params){.devices = 2, .slots = 3, .lazy_seed = lazy},
					      &hub));
		for (uint32_t i = 0; i < 2; i++) {
			assert_ok(tn_local_open(hub, i, &x[i]));
			assert_ok(tn_exec_create(plan, i, x[i], &(tn_exec_params){0}, &e[i]));
		}
		for (uint32_t i = 0; i < 2; i++)
			assert_ok(tn_exec_start(e[i], NOW));
		assert_ok(tn_exec_feed(e[0], TN_PROG_TRAIN, "x", data, sizeof(data)));
		while (received < 20) {
			tern_status st;

			data[0] = data[3] = (float)sent;
			st = sent < 20 ? tn_exec_step(e[0], TN_PROG_TRAIN, NOW) : tn_exec_drain(e[0], NOW);
			assert_true(st == TERN_OK || st == TERN_E_DEADLINE);
			sent += st == TERN_OK && sent < 20;
			st = tn_exec_step(e[1], TN_PROG_TRAIN, NOW);
			assert_true(st == TERN_OK || st == TERN_E_DEADLINE);
			if (st != TERN_OK)
				continue;
			assert_ok(tn_exec_fetch(e[1], TN_PROG_TRAIN, "b", &f));
			assert_true(((const float *)f.data)[3] == 2.0f * (float)received);
			received++;
		}
		close_job();
	}
	tern_graph_destroy(g);
}

static void bad_set_ups(void **state)
{
	tern_plan_params params = {.workers = 1, .optimizer = {.lr = 1}};
	uint64_t batch;
	tern_shape shape = {.rank = 1};
	tern_value in, out;
	tern_graph *g = job_model();
	tn_exec *exec;
	tn_xfer *stub;

	(void)state;
	assert_ok(tn_stub_open(NULL, NULL, &stub));
	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	assert_status(tn_exec_create(plan, 0, stub, &(tn_exec_params){0}, &exec), TERN_E_INVALID);
	assert_detail("'batch', which has no size");
	assert_status(tn_exec_create(plan, 1, stub, &(tn_exec_params){0}, &exec), TERN_E_INVALID);
	assert_ok(tn_exec_create(plan, 0, stub, &(tn_exec_params){.batch = 2}, &exec));
	assert_ok(tn_exec_start(exec, NOW));
	assert_status(tn_exec_step(exec, TN_PROG_EVAL, NOW), TERN_E_STATE);
	assert_status(tn_exec_feed(exec, TN_PROG_EVAL, "images", images, 8), TERN_E_NOT_FOUND);
	assert_detail("eval_batch");
	tn_exec_destroy(exec);
	tern_plan_destroy(plan);
	assert_ok(tern_graph_create("dynamic", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	shape.dims[0] = batch;
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &shape, &in));
	assert_ok(tern_graph_node(g, "Relu", "y", &in, 1, NULL, 0, &out, 1));
	g->nodes[0].device = 0;
	g->nodes[1].device = 1;
	assert_ok(tn_plan_placed(g, 2, TERN_COMM_ZEROCOPY, &plan));
	assert_status(tn_exec_create(plan, 0, stub, &(tn_exec_params){.batch = 2}, &exec),
		      TERN_E_UNSUPPORTED);
	assert_detail("dynamic");
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
	stub->ops->close(stub);
}

/* Gradients and variables that are sent come from the transfer in zero-copy mode, and only those. */
static void memory_is_registered_where_it_is_sent(void **state)
{
	static const tern_comm modes[] = {TERN_COMM_ZEROCOPY, TERN_COMM_COPY, TERN_COMM_RPC};
	tern_graph *g = job_model();

	(void)state;
	for (int m = 0; m < 3; m++) {
		tern_plan_params params = {
			.servers = 1,
			.workers = 1,
			.sync = 1,
			.comm = modes[m],
			.optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 1, .momentum = 0.5f}};

		assert_ok(tern_plan_create(g, &params, &plan));
		for (uint32_t d = 0; d < 2; d++) {
			uint64_t plain, registered,
				variables = (12 * 16 + 16 + 16 * 4 + 16) * 4; /* by 64 bytes */
			tn_exec *exec;
			tn_xfer *stub;

			assert_ok(tn_stub_open(NULL, NULL, &stub));
			assert_ok(tn_exec_create(plan, d, stub, &(tn_exec_params){.batch = 8}, &exec));
			tn_exec_memory(exec, &plain, &registered);
			assert_int_equal(registered, m == 0 ? variables : 0);
			if (d == 0)
				assert_true(plain >= (m == 0 ? 1 : 2) * variables);
			tn_exec_destroy(exec);
			stub->ops->close(stub);
		}
		tern_plan_destroy(plan);
	}
	tern_graph_destroy(g);
}

static void the_stub_runs_a_worker_alone(void **state)
{
	tern_plan_params params = {.servers = 2, .workers = 2, .sync = 1, .optimizer = {.lr = 1}};
	tern_graph *g = job_model();
	tn_exec_stats stats;
	tn_xfer *stub;

	(void)state;
	assert_ok(tern_plan_create(g, &params, &plan));
	for (uint32_t d = 0; d < 4; d++) {
		assert_ok(tn_stub_open(NULL, NULL, &stub));
		assert_ok(tn_exec_create(plan, d, stub, &(tn_exec_params){.batch = 4}, &e[d]));
		assert_ok(tn_exec_start(e[d], NOW));
		if (d >= 2)
			feed(e[d], 4);
		for (int i = 0; i < 10; i++)
			assert_ok(tn_exec_step(e[d], TN_PROG_TRAIN, NOW));
		tn_exec_stats_get(e[d], &stats, true);
		assert_int_equal(stats.steps, 10);
		assert_int_equal(stats.waits, 0);
		tn_exec_stats_get(e[d], &stats, false);
		assert_int_equal(stats.steps, 0);
		tn_exec_destroy(e[d]);
		stub->ops->close(stub);
	}
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_deadline_names_what_is_missing_and_can_be_resumed),
		cmocka_unit_test(cancel_interrupts_once),
		cmocka_unit_test(feeds_are_checked),
		cmocka_unit_test(a_kernel_error_is_final),
		cmocka_unit_test(a_lost_peer_is_named),
		cmocka_unit_test(a_lost_send_is_seen_while_waiting),
		cmocka_unit_test(chains_are_independent),
		cmocka_unit_test(model_parallel),
		cmocka_unit_test(a_buffer_is_not_written_while_it_is_sent),
		cmocka_unit_test(bad_set_ups),
		cmocka_unit_test(memory_is_registered_where_it_is_sent),
		cmocka_unit_test(the_stub_runs_a_worker_alone),
	};

	return RUN(tests);
}

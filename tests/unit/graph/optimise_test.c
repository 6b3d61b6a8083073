/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers: each kernel against the double-precision twin over several steps; jobs with each of them and
 * each way to clip come to the same losses whatever their servers and workers; what clipping by norm costs in
 * edges; averages of the model are updated and not trained; refused values.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "job.h"
#include "ref/ref_graph.h"

enum { STEPS = 12 };

static const tern_optimizer optimizers[] = {
	{.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f, .weight_decay = 0.02f},
	{.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.05f, .momentum = 0.9f},
	{.kind = TERN_OPTIMIZER_ADAGRAD, .lr = 0.05f, .weight_decay = 0.01f},
	{.kind = TERN_OPTIMIZER_ADAM, .lr = 0.02f, .lr_end = 0.002f, .lr_steps = 8, .weight_decay = 0.01f},
	{.kind = TERN_OPTIMIZER_ADAM, .lr = 0.02f, .beta1 = 0.5f, .beta2 = 0.9f, .epsilon = 1e-4f},
	{.kind = TERN_OPTIMIZER_RMSPROP, .lr = 0.005f, .weight_decay = 0.01f},
	{.kind = TERN_OPTIMIZER_RMSPROP, .lr = 0.005f, .momentum = 0.9f, .rho = 0.95f},
};
#define N_OPTIMIZERS (sizeof(optimizers) / sizeof(optimizers[0]))

/* ---- one variable, three gradients ---- */

/* A placed graph of one device: a variable of n elements updated from gradients that are fed. */
static tern_graph *updated(const tern_optimizer *o, uint64_t n)
{
	tern_plan_params params = {.workers = 3, .optimizer = *o};
	tern_shape shape = {.rank = 1, .dims = {n}};
	uint32_t var, device = 0, grads[3];
	float trained = -1.0f;
	tern_graph *g;

	assert_ok(tern_graph_create("updated", &g));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, &shape,
				      &(tern_init){.kind = TERN_INIT_UNIFORM, .value = 1}, &var));
	for (uint32_t i = 0; i < 3; i++) {
		char name[8];

		snprintf(name, sizeof(name), "g%u", i);
		assert_ok(tern_graph_placeholder(g, name, TERN_F32, &shape, &grads[i]));
		assert_ok(tern_graph_input(g, name, grads[i]));
	}
	assert_ok(tn_optimise(&(tn_update){.placed = g,
					   .params = &params,
					   .stages = 1,
					   .micro = 1,
					   .n_vars = 1,
					   .var = &var,
					   .device = &device,
					   .ema = &trained,
					   .grad = grads}));
	for (uint32_t i = 0; i < g->n_nodes; i++)
		g->nodes[i].device = 0;
	return g;
}

/* Both state and weights after each step, as the executor and as the twin have them. */
static void check_updates(const tern_optimizer *o, uint64_t n)
{
	tern_graph *g = updated(o, n);
	float *grads = calloc(3 * n, sizeof(*grads));
	ref_rand rand = {n};
	ref_graph ref;
	tern_plan *plan;
	tn_exec *exec;
	tn_xfer *xfer;

	assert_ok(tn_plan_placed(g, 1, TERN_COMM_ZEROCOPY, &plan));
	assert_ok(tn_stub_open(NULL, NULL, &xfer));
	assert_ok(tn_exec_create(plan, 0, xfer, &(tn_exec_params){0}, &exec));
	assert_ok(tn_exec_start(exec, TN_TIME_NEVER));
	ref_open(&ref, g, 0);
	for (ref.step = 0; ref.step < STEPS; ref.step++) {
		ref_fill(&rand, grads, 3 * n);
		for (uint32_t i = 0; i < 3; i++) {
			char name[8];

			snprintf(name, sizeof(name), "g%u", i);
			ref_set(&ref, tn_graph_port(g, name, true), grads + i * n);
			assert_ok(tn_exec_feed(exec, TN_PROG_TRAIN, name, grads + i * n, n * 4));
		}
		ref_run(&ref, g->n_nodes);
		assert_ok(tn_exec_step(exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		for (uint32_t i = 0; i < g->n_nodes; i++) {
			tn_fetched f;

			if (g->nodes[i].op != TN_OP_VARIABLE)
				continue;
			assert_ok(tn_exec_variable(exec, g->nodes[i].name, &f));
			if (!(ref_distance(&ref.values[g->nodes[i].out[0]], f.data) < 1e-5))
				fail_msg("optimizer %d, %s, step %u", (int)o->kind, g->nodes[i].name,
					 (unsigned)ref.step);
		}
	}
	ref_close(&ref);
	tn_exec_destroy(exec);
	xfer->ops->close(xfer);
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
	free(grads);
}

static void kernels(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_OPTIMIZERS; i++) {
		for (int clip = 0; clip < 3; clip++) {
			tern_optimizer o = optimizers[i];

			o.clip_value = clip == 1 ? 0.1f : 0.0f;
			o.clip_norm = clip == 2 ? 0.5f : 0.0f;
			check_updates(&o, 1);
			check_updates(&o, 1500);
		}
	}
}

/* ---- jobs ---- */

static void same_losses(const tern_optimizer *o)
{
	static const uint32_t jobs[][2] = {{1, 1}, {2, 2}, {1, 4}, {3, 2}};
	job_params alone = {.plan = {.workers = 1, .sync = 1, .optimizer = *o}, .batch = 24, .steps = STEPS};
	job_result one, many;

	job_run(&alone, &one);
	assert_true(one.loss[0][STEPS - 1] < one.loss[0][0]);
	for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
		job_params p = alone;

		p.plan.servers = jobs[i][0];
		p.plan.workers = jobs[i][1];
		job_run(&p, &many);
		for (uint32_t s = 0; s < STEPS; s++) {
			double mean = 0;

			for (uint32_t w = 0; w < jobs[i][1]; w++)
				mean += (double)many.loss[w][s] / jobs[i][1];
			if (!(fabs(mean - (double)one.loss[0][s]) < 1e-4))
				fail_msg("optimizer %d, %u servers, %u workers, step %u: %.8g, alone %.8g",
					 (int)o->kind, jobs[i][0], jobs[i][1], s, mean,
					 (double)one.loss[0][s]);
		}
		job_free(&many);
	}
	job_free(&one);
}

static void jobs(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_OPTIMIZERS; i++) {
		tern_optimizer o = optimizers[i];

		same_losses(&o);
		o.clip_norm = 0.3f;
		same_losses(&o);
	}
}

/* The limit is the norm of what is applied: one SGD step from the same weights moves them by lr * limit. */
static void norm_covers_all_servers(void **state)
{
	(void)state;
	for (uint32_t servers = 0; servers < 4; servers++) {
		job_params p = {.plan = {.servers = servers,
					 .workers = servers ? 2 : 1,
					 .sync = 1,
					 .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 1.0f}},
				.batch = 24,
				.steps = 1};
		job_result small, large;
		double moved = 0;

		p.plan.optimizer.clip_norm = 0.001f;
		job_run(&p, &small);
		p.plan.optimizer.clip_norm = 0.003f;
		job_run(&p, &large);
		for (uint64_t i = 0; i < small.n_weights; i++)
			moved += pow((double)large.weights[i] - (double)small.weights[i], 2);
		assert_true(fabs(sqrt(moved) - 0.002) < 2e-5);
		job_free(&small);
		job_free(&large);
	}
}

static void async_clips_each_worker(void **state)
{
	job_params p = {.plan = {.servers = 2,
				 .workers = 3,
				 .optimizer = {.kind = TERN_OPTIMIZER_ADAM, .lr = 0.01f, .clip_norm = 0.5f}},
			.batch = 24,
			.steps = 60};
	job_result r;

	(void)state;
	job_run(&p, &r);
	for (uint32_t w = 0; w < 3; w++)
		assert_true(r.eval_correct[w] > JOB_ROWS * 9 / 10);
	job_free(&r);
}

/* Servers talk to workers only: their norms go to worker 0, and the scale comes back from there. */
static void norm_edges(void **state)
{
	tern_plan_params params = {.servers = 3,
				   .workers = 2,
				   .sync = 1,
				   .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 1, .clip_norm = 1}};
	tern_graph *model = job_model();
	uint32_t norms = 0, scales = 0;
	tern_plan *plan;

	(void)state;
	assert_ok(tern_plan_create(model, &params, &plan));
	for (uint32_t i = 0; i < tern_plan_edges(plan); i++) {
		tern_edge_info e;

		assert_ok(tern_plan_edge(plan, i, &e));
		assert_true((e.src < 3) != (e.dst < 3));
		norms += strncmp(e.name, "norm", 4) == 0;
		scales += strcmp(e.name, "clip") == 0;
		assert_true(e.is_static);
	}
	assert_int_equal(norms, 3);
	assert_int_equal(scales, 3);
	tern_plan_destroy(plan);
	tern_graph_destroy(model);
}

/* ---- averages ---- */

/* loss = mean((x w)^2); the model also keeps an average of the column sums of x. */
static tern_graph *averaging(void)
{
	tern_shape s2 = {.rank = 2}, s1 = {.rank = 1, .dims = {3}};
	tern_attr momentum = {.name = "momentum", .type = TERN_ATTR_FLOAT, .f = 0.75};
	tern_attr axis = {.name = "axes", .type = TERN_ATTR_INTS, .n_ints = 1, .ints = {0}};
	tern_value x, w, avg, y, mean, loss;
	tern_graph *g;
	uint64_t batch;

	assert_ok(tern_graph_create("averaging", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	s2.dims[0] = batch;
	s2.dims[1] = 3;
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &s2, &x));
	assert_ok(tern_graph_input(g, "x", x));
	assert_ok(tern_graph_variable(g, "avg", TERN_F32, &s1,
				      &(tern_init){.kind = TERN_INIT_CONSTANT, .value = 8}, &avg));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, &s1,
				      &(tern_init){.kind = TERN_INIT_CONSTANT, .value = 2}, &w));
	assert_ok(tern_graph_node(g, "BiasAdd", "y", (tern_value[]){x, w}, 2, NULL, 0, &y, 1));
	assert_ok(tern_graph_node(g, "Mul", "yy", (tern_value[]){y, y}, 2, NULL, 0, &y, 1));
	assert_ok(tern_graph_node(g, "ReduceMean", "loss", &y, 1, NULL, 0, &loss, 1));
	assert_ok(tern_graph_node(g, "ReduceMean", "mean", &x, 1, &axis, 1, &mean, 1));
	assert_ok(tern_graph_node(g, "ApplyEma", "ema", (tern_value[]){avg, mean}, 2, &momentum, 1, NULL, 0));
	assert_ok(tern_graph_output(g, "loss", loss));
	return g;
}

static void averages(void **state)
{
	static const float x[2][3] = {{1, 2, 3}, {3, 6, 5}};
	tern_graph *g = averaging();
	tern_graph_info info;

	(void)state;
	tern_graph_info_get(g, &info);
	assert_int_equal(info.variables, 2);
	assert_int_equal(info.parameters, 3);
	for (int sync = 0; sync < 2; sync++) {
		tern_plan_params params = {.servers = 2,
					   .workers = 2,
					   .sync = sync,
					   .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM,
							 .lr = 1,
							 .momentum = 0.5f,
							 .weight_decay = 0.1f,
							 .clip_norm = 1}};
		uint32_t applies = 0, slots = 0;
		tern_plan *plan;

		assert_ok(tern_plan_create(g, &params, &plan));
		for (uint32_t d = 0; d < 2; d++) {
			const tern_graph *s = plan->devices[d].graph;

			for (uint32_t i = 0; i < s->n_nodes; i++) {
				applies += s->nodes[i].op == TN_OP_APPLY_EMA;
				slots += strcmp(s->nodes[i].name, "avg/momentum") == 0;
			}
		}
		assert_int_equal(applies, sync ? 1 : 2);
		assert_int_equal(slots, 0);
		tern_plan_destroy(plan);
	}
	/* alone, by the executor: 8 * 0.75 + mean * 0.25 */
	{
		tern_plan_params params = {.workers = 1, .optimizer = {.lr = 0.5f}};
		tern_plan *plan;
		tn_exec *exec;
		tn_xfer *xfer;
		tn_fetched f;

		assert_ok(tern_plan_create(g, &params, &plan));
		assert_ok(tn_stub_open(NULL, NULL, &xfer));
		assert_ok(tn_exec_create(plan, 0, xfer, &(tn_exec_params){.batch = 2}, &exec));
		assert_ok(tn_exec_start(exec, TN_TIME_NEVER));
		assert_ok(tn_exec_feed(exec, TN_PROG_TRAIN, "x", x, sizeof(x)));
		assert_ok(tn_exec_step(exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		assert_ok(tn_exec_variable(exec, "avg", &f));
		for (int i = 0; i < 3; i++)
			assert_float_equal(((const float *)f.data)[i], 6 + (i < 1 ? 0.5 : 1.0), 1e-6);
		tn_exec_destroy(exec);
		xfer->ops->close(xfer);
		tern_plan_destroy(plan);
	}
	tern_graph_destroy(g);
}

/* What a row is classified as in evaluation does not hang on the rows beside it, as it does in training. */
static void evaluation_uses_averages(void **state)
{
	enum { ROW = 28 * 28, ROWS = 4 };
	static float data[2][ROWS][ROW];
	static const int32_t labels[ROWS] = {1, 2, 3, 4};
	tern_plan_params params = {.workers = 1, .optimizer = {.lr = 0.01f}};
	float probs[3][10];
	ref_rand rand = {5};
	tern_graph *g;
	tern_plan *plan;
	tn_exec *exec;
	tn_xfer *xfer;
	tn_fetched f;

	(void)state;
	ref_fill(&rand, &data[0][0][0], ROWS * ROW);
	for (int i = 0; i < ROWS; i++)
		memcpy(data[1][i], data[0][0], sizeof(data[0][0]));
	assert_ok(tern_graph_model("convnet_bn", NULL, &g));
	assert_ok(tern_plan_create(g, &params, &plan));
	assert_ok(tn_stub_open(NULL, NULL, &xfer));
	assert_ok(tn_exec_create(plan, 0, xfer, &(tn_exec_params){.batch = ROWS, .eval_batch = ROWS}, &exec));
	assert_ok(tn_exec_start(exec, TN_TIME_NEVER));
	for (int i = 0; i < 4; i++) {
		tn_prog_id prog = i & 2 ? TN_PROG_TRAIN : TN_PROG_EVAL;

		assert_ok(tn_exec_feed(exec, prog, "images", data[i & 1], sizeof(data[0])));
		assert_ok(tn_exec_feed(exec, prog, "labels", labels, sizeof(labels)));
		assert_ok(tn_exec_step(exec, prog, TN_TIME_NEVER));
		assert_ok(tn_exec_fetch(exec, prog, "probs", &f));
		memcpy(probs[i < 2 ? i : 2], f.data, sizeof(probs[0]));
	}
	assert_memory_equal(probs[0], probs[1], sizeof(probs[0]));
	assert_memory_not_equal(probs[0], probs[2], sizeof(probs[0]));
	tn_exec_destroy(exec);
	xfer->ops->close(xfer);
	tern_plan_destroy(plan);
	tern_graph_destroy(g);
}

static void refused(void **state)
{
	tern_graph *model = job_model();

	(void)state;
	for (int k = 0; k < 8; k++) {
		tern_plan_params p = {.workers = 1, .optimizer = {.kind = TERN_OPTIMIZER_ADAM, .lr = 1}};
		tern_optimizer *o = &p.optimizer;
		tern_plan *plan;

		*(float *[]){&o->beta1,   &o->beta2,      &o->rho,       &o->momentum,
			     &o->epsilon, &o->clip_value, &o->clip_norm, &o->clip_norm}[k] =
			k < 4 ? 1.0f : -1.0f;
		if (k == 7)
			o->clip_norm = o->clip_value = 1.0f;
		assert_status(tern_plan_create(model, &p, &plan), TERN_E_INVALID);
		assert_non_null(strstr(tern_detail(), "optimizer"));
	}
	tern_graph_destroy(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernels),
		cmocka_unit_test(jobs),
		cmocka_unit_test(norm_covers_all_servers),
		cmocka_unit_test(async_clips_each_worker),
		cmocka_unit_test(norm_edges),
		cmocka_unit_test(averages),
		cmocka_unit_test(evaluation_uses_averages),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}

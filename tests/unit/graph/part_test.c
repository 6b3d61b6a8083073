/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables in parts: what a part starts with, how they are spread, and that training with them gives the same
 * bits as without, over a transfer that delays copies as well.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cmocka_all.h"
#include "job.h"

static void parts_start_as_the_whole(void **state)
{
	static const tern_init_kind kinds[] = {TERN_INIT_UNIFORM, TERN_INIT_XAVIER_UNIFORM,
					       TERN_INIT_HE_UNIFORM, TERN_INIT_CONSTANT, TERN_INIT_DATA};
	enum { ROWS = 7, COLS = 5 };
	tern_shape wholes[] = {{.rank = 2, .dims = {ROWS, COLS}}, {.rank = 3, .dims = {1, ROWS, COLS}}};
	float given[ROWS * COLS], want[ROWS * COLS], got[ROWS * COLS];

	(void)state;
	for (uint32_t i = 0; i < ROWS * COLS; i++)
		given[i] = (float)i;
	for (size_t k = 0; k < 2 * sizeof(kinds) / sizeof(kinds[0]); k++) {
		tern_init init = {.kind = kinds[k / 2], .value = 0.3f, .seed = 5, .data = given};
		tern_shape whole = wholes[k % 2];
		uint32_t axis = tn_part_axis(&whole);

		tn_init_fill(&init, "v", &whole, want);
		for (uint64_t parts = 1; parts <= ROWS; parts++) {
			uint64_t at = 0;

			for (uint64_t i = 0; i < parts; i++) {
				tn_attr attrs[] = {tn_attr_int(TN_ATTR_PART, (int64_t)i),
						   tn_attr_int(TN_ATTR_PARTS, (int64_t)parts),
						   tn_attr_int(TN_ATTR_ROWS, ROWS),
						   tn_attr_int(TN_ATTR_AXIS, axis)};
				char name[] = "v/part0";
				tn_node node = {.op = TN_OP_VARIABLE,
						.name = name,
						.attrs = attrs,
						.n_attrs = 4,
						.init = init};
				tern_shape shape = whole;

				name[6] = (char)('0' + i);
				shape.dims[axis] =
					tn_part_begin(ROWS, i + 1, parts) - tn_part_begin(ROWS, i, parts);
				tn_variable_fill(&node, &shape, got + at);
				at += shape.dims[axis] * COLS;
			}
			assert_int_equal(at, ROWS * COLS);
			assert_memory_equal(got, want, sizeof(want));
		}
	}
}

static tn_variable variable(uint64_t rows, uint64_t columns, uint32_t readers)
{
	return (tn_variable){.shape = {.rank = 2, .dims = {rows, columns}}, .readers = readers};
}

static void big_ones_are_split_and_hot_ones_spread(void **state)
{
	tern_plan_params params = {.servers = 4, .workers = 1};
	/* big; hot, since 64 devices read it; too small to split; big in one row */
	tn_variable vars[] = {variable(4096, 4096, 1), variable(512, 512, 64), variable(16, 16, 1),
			      variable(1, 1 << 22, 1)};
	tn_part *parts;
	uint32_t n;

	(void)state;
	assert_ok(tn_shard(vars, 4, &params, &parts, &n));
	assert_int_equal(vars[0].parts, 4);
	assert_int_equal(vars[1].parts, 4);
	assert_int_equal(vars[2].parts, 1);
	assert_int_equal(vars[3].parts, 4); /* of one row: along the dim behind it */
	assert_int_equal(n, 13);
	for (uint32_t v = 0; v < 2; v++) {
		uint32_t seen = 0;

		for (uint32_t i = 0; i < vars[v].parts; i++)
			seen |= 1u << parts[vars[v].first + i].server;
		assert_int_equal(seen, 15); /* one on each server */
	}
	free(parts);
	params.split_bytes = UINT64_C(1) << 40;
	vars[1].readers = 1;
	assert_ok(tn_shard(vars, 4, &params, &parts, &n));
	assert_int_equal(vars[0].parts, 4); /* hot: more than a fourth of all */
	assert_int_equal(vars[3].parts, 1);
	assert_int_equal(vars[1].parts, 1);
	free(parts);
}

static void compare(const job_result *a, const job_result *b, uint64_t steps, uint32_t workers)
{
	assert_int_equal(a->n_weights, b->n_weights);
	assert_memory_equal(a->weights, b->weights, a->n_weights * sizeof(float));
	for (uint32_t w = 0; w < workers; w++)
		assert_memory_equal(a->loss[w], b->loss[w], steps * sizeof(float));
}

static job_params job_of(uint32_t servers, uint32_t workers, tern_optimizer_kind kind)
{
	return (job_params){.plan = {.servers = servers,
				     .workers = workers,
				     .sync = 1,
				     .optimizer = {.kind = kind, .lr = 0.05f, .momentum = 0.9f}},
			    .batch = 24,
			    .steps = 12,
			    .eval_every = 4};
}

/* Parts of 64 bytes: every matrix in as many parts as there are servers, uneven ones too. */
static void split_training_gives_the_same_bits(void **state)
{
	static const tern_optimizer_kind kinds[] = {TERN_OPTIMIZER_SGD, TERN_OPTIMIZER_MOMENTUM,
						    TERN_OPTIMIZER_ADAM};

	(void)state;
	for (uint32_t servers = 1; servers <= 5; servers += 2) {
		for (uint32_t workers = 1; workers <= 3; workers++) {
			job_params p = job_of(servers, workers, kinds[workers - 1]);
			job_result whole, split;

			p.plan.split_bytes = UINT64_C(1) << 40;
			job_run(&p, &whole);
			p.plan.split_bytes = 64;
			p.lazy_seed = servers;
			p.slots = 1 + workers % 3;
			job_run(&p, &split);
			assert_true(servers == 1 || split.n_edges > whole.n_edges);
			compare(&whole, &split, p.steps, workers);
			job_free(&whole);
			job_free(&split);
		}
	}
}

/* mxnet#9611, Paddle#2224: a server that got no variable takes part: nobody waits for it and it ends by itself. */
static void a_server_without_variables_takes_part(void **state)
{
	job_params p = job_of(7, 2, TERN_OPTIMIZER_SGD);
	job_result few, many;

	(void)state;
	p.plan.split_bytes = UINT64_C(1) << 40;
	job_run(&p, &many); /* four variables */
	p.plan.servers = 1;
	job_run(&p, &few);
	compare(&few, &many, p.steps, 2);
	job_free(&few);
	job_free(&many);
}

/* byteps#142: asynchronous training computed something else. With one worker every mode is the same. */
static void asynchronous_modes_compute_what_sync_does(void **state)
{
	job_params p = job_of(2, 1, TERN_OPTIMIZER_MOMENTUM);
	job_result sync, other;

	(void)state;
	p.plan.split_bytes = 64;
	job_run(&p, &sync);
	p.plan.sync = 0;
	for (uint32_t stale = 0; stale < 3; stale++) {
		p.plan.stale = stale;
		p.lazy_seed = stale;
		job_run(&p, &other);
		compare(&sync, &other, p.steps, 1);
		job_free(&other);
	}
	job_free(&sync);
}

/* gloo#474, torchrec#1008: sizes above 4 GiB. Plans have no memory for them, so any size can be looked at. */
static void variables_above_4_gib_are_planned(void **state)
{
	static const uint64_t widths[] = {70000};
	tern_plan_params params = {.servers = 3, .workers = 2, .sync = 1, .optimizer = {.lr = 0.1f}};
	uint64_t w = UINT64_C(70000) * 70000 * 4, bytes = 0, end = 0;
	tern_graph *g;
	tern_plan *p;

	(void)state;
	assert_ok(tern_graph_fully_connected("wide", widths, 1,
					     &(tern_model_params){.inputs = 70000, .classes = 4}, &g));
	assert_ok(tern_plan_create(g, &params, &p));
	for (uint32_t i = 0; i < p->n_edges; i++) {
		bytes += p->edges[i].bytes;
		if (p->edges[i].whole_bytes == w)
			end = TN_MAX(end, p->edges[i].whole_offset + p->edges[i].bytes);
	}
	assert_int_equal(end, w);
	assert_int_equal(bytes, 2 * 2 * (w + UINT64_C(70000) * 4 + 70000 * 4 * 4 + 4 * 4));
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_start_as_the_whole),
		cmocka_unit_test(big_ones_are_split_and_hot_ones_spread),
		cmocka_unit_test(split_training_gives_the_same_bits),
		cmocka_unit_test(a_server_without_variables_takes_part),
		cmocka_unit_test(asynchronous_modes_compute_what_sync_does),
		cmocka_unit_test(variables_above_4_gib_are_planned),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables in parts: what a part starts with, how they are spread, and that training with them gives the same
 * bits as without, over a transfer that delays copies as well.
 */
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "job.h"

static void parts_start_as_the_whole(void **state)
{
	static const tern_init_kind kinds[] = {TERN_INIT_UNIFORM, TERN_INIT_XAVIER_UNIFORM,
					       TERN_INIT_HE_UNIFORM, TERN_INIT_CONSTANT, TERN_INIT_DATA};
	enum { ROWS = 7, COLS = 5 };
	tern_shape whole = {.rank = 2, .dims = {ROWS, COLS}};
	float given[ROWS * COLS], want[ROWS * COLS], got[ROWS * COLS];

	(void)state;
	for (uint32_t i = 0; i < ROWS * COLS; i++)
		given[i] = (float)i;
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		tern_init init = {.kind = kinds[k], .value = 0.3f, .seed = 5, .data = given};

		tn_init_fill(&init, "v", &whole, want);
		for (uint64_t parts = 1; parts <= ROWS; parts++) {
			uint64_t at = 0;

			for (uint64_t i = 0; i < parts; i++) {
				tn_attr attrs[] = {tn_attr_int(TN_ATTR_PART, (int64_t)i),
						   tn_attr_int(TN_ATTR_PARTS, (int64_t)parts),
						   tn_attr_int(TN_ATTR_ROWS, ROWS)};
				char name[] = "v/part0";
				tn_node node = {.op = TN_OP_VARIABLE,
						.name = name,
						.attrs = attrs,
						.n_attrs = 3,
						.init = init};
				tern_shape shape = whole;

				name[6] = (char)('0' + i);
				shape.dims[0] =
					tn_part_begin(ROWS, i + 1, parts) - tn_part_begin(ROWS, i, parts);
				tn_variable_fill(&node, &shape, got + at);
				at += shape.dims[0] * COLS;
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
	/* big; hot, since 64 devices read it; too small to split; one row */
	tn_variable vars[] = {variable(4096, 4096, 1), variable(512, 512, 64), variable(16, 16, 1),
			      variable(1, 1 << 22, 1)};
	tn_part *parts;
	uint32_t n;

	(void)state;
	assert_ok(tn_shard(vars, 4, &params, &parts, &n));
	assert_int_equal(vars[0].parts, 4);
	assert_int_equal(vars[1].parts, 4);
	assert_int_equal(vars[2].parts, 1);
	assert_int_equal(vars[3].parts, 1);
	assert_int_equal(n, 10);
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

/* A server that got no variable takes part: nobody waits for it and it ends by itself. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_start_as_the_whole),
		cmocka_unit_test(big_ones_are_split_and_hot_ones_spread),
		cmocka_unit_test(split_training_gives_the_same_bits),
		cmocka_unit_test(a_server_without_variables_takes_part),
	};

	return RUN(tests);
}

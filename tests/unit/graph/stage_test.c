/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model parallelism: stages by hand and by the cut, micro-batches, and both with data parallelism.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "job.h"

static job_params job_of(uint32_t servers, uint32_t workers, uint32_t stages, uint32_t micro)
{
	return (job_params){
		.plan = {.servers = servers,
			 .workers = workers,
			 .sync = 1,
			 .stages = stages,
			 .micro_batches = micro,
			 .dims = {{.name = "batch", .size = 24 / workers}},
			 .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.05f, .momentum = 0.9f}},
		.batch = 24,
		.steps = 10};
}

static int32_t by_layer(const tn_node *node)
{
	return strncmp(node->name, "fc1", 3) == 0 || strcmp(node->name, "images") == 0 ? 0 : 1;
}

static int32_t back_and_forth(const tn_node *node)
{
	return strstr(node->name, "relu") || strstr(node->name, "/b") ? 1 : 0;
}

static void same_bits(const job_result *a, const job_result *b, uint64_t steps, uint32_t workers)
{
	assert_int_equal(a->n_weights, b->n_weights);
	assert_memory_equal(a->weights, b->weights, a->n_weights * sizeof(float));
	for (uint32_t w = 0; w < workers; w++) {
		assert_memory_equal(a->loss[w], b->loss[w], steps * sizeof(float));
		assert_memory_equal(a->correct[w], b->correct[w], steps * sizeof(int32_t));
	}
}

static void stages_give_the_same_bits(void **state)
{
	static int32_t (*const places[])(const tn_node *) = {by_layer, back_and_forth, NULL};

	(void)state;
	for (uint32_t servers = 0; servers <= 2; servers++) {
		for (uint32_t workers = 1; workers <= (servers ? 2 : 1); workers++) {
			job_params p = job_of(servers, workers, 1, 1);
			job_result one, many;

			job_run(&p, &one);
			for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
				p.plan.stages = 2 + (places[i] == NULL);
				p.place = places[i];
				p.lazy_seed = i;
				job_run(&p, &many);
				same_bits(&one, &many, p.steps, workers);
				job_free(&many);
			}
			job_free(&one);
		}
	}
}

/* Sums in another order: close, not the same. */
static void micro_batches_give_the_same_within_rounding(void **state)
{
	static int32_t (*const places[])(const tn_node *) = {by_layer, back_and_forth, NULL};

	(void)state;
	for (uint32_t stages = 1; stages <= 3; stages++) {
		job_params p = job_of(2, 2, 1, 1);
		job_result one, many;

		job_run(&p, &one);
		for (uint32_t micro = 2; micro <= 6; micro += 2) {
			p.plan.stages = stages;
			p.plan.micro_batches = micro;
			p.place = stages == 1 ? NULL : places[(stages + micro / 2) % 3];
			if (p.place)
				p.plan.stages = 2;
			p.plan.split_bytes = micro == 4 ? 64 : 0;
			job_run(&p, &many);
			for (uint64_t i = 0; i < one.n_weights; i++)
				assert_true(fabsf(one.weights[i] - many.weights[i]) < 2e-5f);
			for (uint32_t w = 0; w < 2; w++) {
				for (uint64_t s = 0; s < p.steps; s++)
					assert_true(fabsf(one.loss[w][s] - many.loss[w][s]) < 2e-5f);
				assert_memory_equal(one.correct[w], many.correct[w],
						    p.steps * sizeof(int32_t));
			}
			job_free(&many);
		}
		job_free(&one);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stages_give_the_same_bits),
		cmocka_unit_test(micro_batches_give_the_same_within_rounding),
	};

	return RUN(tests);
}

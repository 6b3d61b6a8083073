/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byteps#142: asynchronous mode computed something else. One test, whose answer is known, in every mode: linear regression
 * without noise, y = x w, by workers with batches of their own; all come to w.
 */
#include <math.h>
#include <tern/ps_group.h>

#include "base/os.h"
#include "ps_world.h"

#define WORKERS  4
#define FEATURES 24
#define BATCH    16
#define STEPS    400
#define SECOND   1000000000ull

typedef enum train_mode { ASYNC, BSP, SSP, SUM } train_mode;

typedef struct worker {
	tn_thread thread;
	tern_ps_group *group;
	tern_table *table;
	train_mode mode;
	unsigned index;
	tern_status status;
} worker;

static float answer_of(uint64_t feature)
{
	return (float)sin(1.7 * (double)feature) * 2;
}

/* Not the numbers of their index: any u64 is a key. */
static uint64_t key_of(uint64_t feature)
{
	return feature * 0x9e3779b97f4a7c15ull;
}

/* The gradient of half the mean squared error over a batch of the worker's. */
static void gradient(const worker *me, uint64_t step, const float *w, float *g)
{
	tn_rand rand = {me->index * 1000000 + step % 10};

	memset(g, 0, FEATURES * sizeof(*g));
	for (int i = 0; i < BATCH; i++) {
		float x[FEATURES], error = 0;

		for (int f = 0; f < FEATURES; f++) {
			x[f] = (float)tn_rand_below(&rand, 2001) * 1e-3f - 1;
			error += x[f] * (w[f] - answer_of(f));
		}
		for (int f = 0; f < FEATURES; f++)
			g[f] += error * x[f] / BATCH;
	}
}

static tern_status one_step(worker *me, uint64_t step, const uint64_t *keys)
{
	float w[FEATURES], g[FEATURES];
	tern_table_pull_params pull = {.keys = keys, .count = FEATURES, .rows = w, .step = step};
	tern_table_push_params push = {
		.keys = keys, .count = FEATURES, .rows = g, .lr_scale = 1.0f / WORKERS, .step = step};
	tern_status status = tern_ps_group_begin(me->group, step, 0);

	if (status == TERN_OK)
		status = tern_table_pull_wait(me->table, &pull, 0);
	if (status != TERN_OK)
		return status;
	gradient(me, step, w, g);
	status = me->mode == SUM ? tern_ps_group_push(me->group, me->table, &push, 0)
				 : tern_table_push_wait(me->table, &push, 0);
	return status == TERN_OK ? tern_ps_group_end(me->group, step) : status;
}

static void *run(void *arg)
{
	worker *me = arg;
	uint64_t keys[FEATURES];

	for (uint64_t f = 0; f < FEATURES; f++)
		keys[f] = key_of(f);
	for (uint64_t step = 0; step < STEPS && me->status == TERN_OK; step++)
		me->status = one_step(me, step, keys);
	if (me->status != TERN_OK)
		fprintf(stderr, "worker %u: %s\n", me->index, tern_detail());
	return NULL;
}

static void regress(train_mode mode, unsigned servers, float *w)
{
	static const uint64_t staleness[] = {TERN_PS_ASYNCHRONOUS, 0, 2, 0};
	tern_table_schema schema = counters("weights", 1);
	worker workers[WORKERS] = {0};
	tern_table *table;
	world here;

	world_start(&here, servers);
	tern_optimizer_init(&schema.optimizer, TERN_OPT_SGD, 0.8f);
	assert_success(tern_table_create(here.ps, &schema, &table));
	for (unsigned i = 0; i < WORKERS; i++) {
		char name[16];
		tern_ps_group_params params = {.name = "regression",
					       .member = name,
					       .staleness = staleness[mode],
					       .flags = mode == SUM ? TERN_PS_GROUP_SUM : 0};

		snprintf(name, sizeof(name), "worker %u", i);
		workers[i] = (worker){.table = table, .mode = mode, .index = i};
		assert_success(tern_ps_group_join(here.ps, &params, NULL, &workers[i].group));
	}
	for (unsigned i = 0; i < WORKERS; i++)
		assert_ok(tn_os_thread_start(&workers[i].thread, "worker", run, &workers[i]));
	for (unsigned i = 0; i < WORKERS; i++) {
		tn_os_thread_join(&workers[i].thread);
		assert_int_equal(workers[i].status, TERN_OK);
		tern_ps_group_leave(workers[i].group);
	}
	for (uint64_t f = 0; f < FEATURES; f++) {
		uint64_t key = key_of(f);
		tern_table_pull_params pull = {.keys = &key, .count = 1, .rows = &w[f]};

		assert_success(tern_table_pull_wait(table, &pull, 0));
	}
	world_stop(&here);
}

static void every_mode_comes_to_the_answer(void **state)
{
	static const char *const names[] = {"asynchronous", "bulk synchronous", "stale synchronous",
					    "summed"};

	(void)state;
	for (train_mode mode = ASYNC; mode <= SUM; mode++) {
		float w[FEATURES];

		regress(mode, 2, w);
		for (uint64_t f = 0; f < FEATURES; f++)
			if (fabsf(w[f] - answer_of(f)) > 1e-3f)
				fail_msg("%s: weight %u is %g, not %g", names[mode], (unsigned)f,
					 (double)w[f], (double)answer_of(f));
	}
}

static void summed_steps_have_the_same_bits_in_each_run(void **state)
{
	float first[FEATURES], again[FEATURES];

	(void)state;
	regress(SUM, 1, first);
	regress(SUM, 3, again);
	assert_memory_equal(first, again, sizeof(first));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_mode_comes_to_the_answer),
		cmocka_unit_test(summed_steps_have_the_same_bits_in_each_run),
	};

	return RUN(tests);
}

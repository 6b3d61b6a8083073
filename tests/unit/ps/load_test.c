/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Angel#618, TFRA#503: one hot server or key. The load of slots says which it is; and the copies of a hot key in a batch are
 * summed, so that it is applied once.
 */
#include "ps/load.h"

#include <math.h>

#include "ps_world.h"

#define BATCH   256
#define BATCHES 400
#define HOT     12345u

static void pull_some(world *w, tern_table *table, tn_rand *rand, unsigned hot_percent)
{
	uint64_t keys[BATCH];
	float *rows = world_rows(w, BATCH * sizeof(float));
	tern_table_pull_params p = {.keys = keys, .count = BATCH, .rows = rows, .unknown = TERN_UNKNOWN_ZERO};

	for (int n = 0; n < BATCHES; n++) {
		for (int i = 0; i < BATCH; i++)
			keys[i] = tn_rand_below(rand, 100) < hot_percent ? HOT : tn_rand_next(rand);
		assert_success(tern_table_pull_wait(table, &p, 0));
	}
	tern_mem_free(w->mem, rows);
}

static void hot_slots_are_seen(void **state)
{
	tern_table_schema schema = counters("t", 1);
	static uint64_t load[TERN_TABLE_SLOTS];
	double all = 0, next = 0, hot;
	tn_rand rand = {7};
	tern_table *table;
	world w;

	(void)state;
	world_start(&w, 3);
	assert_success(tern_table_create(w.ps, &schema, &table));
	assert_success(tern_table_get_load(w.ps, "t", load));
	for (int s = 0; s < TERN_TABLE_SLOTS; s++)
		assert_int_equal(load[s], 0);
	pull_some(&w, table, &rand, 40);
	assert_success(tern_table_get_load(w.ps, "t", load));
	hot = (double)load[tn_table_slot(HOT)];
	for (int s = 0; s < TERN_TABLE_SLOTS; s++) {
		all += (double)load[s];
		if (s != (int)tn_table_slot(HOT) && (double)load[s] > next)
			next = (double)load[s];
	}
	/* one key in sixteen: 6,400 of them */
	assert_true(fabs(all / (BATCH * BATCHES) - 1) < 0.1);
	assert_true(fabs(hot / all - 0.4) < 0.05);
	assert_true(hot > 50 * next);
	assert_status(tern_table_get_load(w.ps, "none", load), TERN_E_NOT_FOUND);
	world_stop(&w);
}

/* Single keys are counted as often as those of large batches: one time in sixteen, by sixteen. */
static void small_batches_count_too(void **state)
{
	tn_ps_load *load = test_calloc(1, sizeof(*load));
	uint64_t key = HOT;

	(void)state;
	for (int i = 0; i < 1600; i++)
		tn_ps_load_count(load, &key, 1);
	assert_int_equal(load->slot[tn_table_slot(key)], 1600);
	tn_ps_load_count(load, &key, 0);
	test_free(load);
}

static void copies_of_a_hot_key_are_applied_once(void **state)
{
	tern_table_schema schema = counters("t", 1);
	uint64_t keys[BATCH];
	float grads[BATCH], got, expected;
	tern_table_push_params push = {.keys = keys, .count = BATCH, .rows = grads};
	tern_table_pull_params pull = {.keys = keys, .count = 1, .rows = &got};
	tern_table *table;
	world w;

	(void)state;
	world_start(&w, 1);
	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, 0.5f);
	assert_success(tern_table_create(w.ps, &schema, &table));
	for (int i = 0; i < BATCH; i++) {
		keys[i] = HOT;
		grads[i] = 0.25f;
	}
	assert_success(tern_table_push_wait(table, &push, 0));
	assert_success(tern_table_pull_wait(table, &pull, 0));
	/* Adagrad of the sum, 64; applied 256 times it would be another number */
	expected = -0.5f * 64 / (sqrtf(schema.optimizer.initial_accumulator + 64 * 64) + 1e-10f);
	assert_true(fabsf(got - expected) < 1e-6f);
	world_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hot_slots_are_seen),
		cmocka_unit_test(small_batches_count_too),
		cmocka_unit_test(copies_of_a_hot_key_are_applied_once),
	};

	return RUN(tests);
}

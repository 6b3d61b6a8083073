/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in models on several stages: the same bits as on one device, and with micro-batches the same loss within
 * rounding. Devices are threads.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cmocka_all.h"
#include "graph/exec.h"
#include "ref/ref_graph.h"

enum { BATCH = 4, TIME = 3, STEPS = 3, DEVICES = 4 };

typedef struct runner {
	const tern_plan *plan;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	float *loss;
	tern_status status;
	char detail[512];
} runner;

/* The same on every device: small reals, or the labels and tokens 0 and 1. */
static void *data_of(const tern_plan *plan, const tn_tensor *t, uint64_t *bytes)
{
	tern_shape shape = t->shape;
	ref_rand rand = {17};
	uint64_t n = 0;
	void *data;
	bool varies;

	for (uint32_t i = 0; i < shape.rank; i++) {
		if (tn_dim_symbolic(shape.dims[i]))
			assert_true(tn_plan_dim(plan,
						plan->devices[0].graph->symbols[tn_dim_symbol(shape.dims[i])],
						&shape.dims[i], &varies));
	}
	assert_ok(tn_shape_elements(&shape, &n));
	assert_ok(tn_shape_bytes(&shape, t->dtype, bytes));
	data = calloc(n + 1, 8);
	if (t->dtype == TERN_F32)
		ref_fill(&rand, data, n);
	for (uint64_t i = 0; i < n && t->dtype == TERN_I32; i++)
		((int32_t *)data)[i] = (int32_t)(i % 2);
	for (uint64_t i = 0; i < n && t->dtype == TERN_I64; i++)
		((int64_t *)data)[i] = (int64_t)(i % 2);
	return data;
}

static tern_status run_steps(runner *r)
{
	tn_fetched f;

	TN_TRY(tn_exec_start(r->exec, TN_TIME_NEVER));
	for (uint32_t s = 0; s < STEPS; s++) {
		TN_TRY(tn_exec_step(r->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		if (tn_exec_fetch(r->exec, TN_PROG_TRAIN, "loss", &f) == TERN_OK)
			memcpy(&r->loss[s], f.data, 4);
	}
	return tn_exec_drain(r->exec, TN_TIME_NEVER);
}

static void *run_main(void *arg)
{
	runner *r = arg;

	r->status = run_steps(r);
	snprintf(r->detail, sizeof(r->detail), "%s", tern_detail());
	return NULL;
}

static void train(const char *model, uint32_t stages, uint32_t micro, float *loss)
{
	tern_plan_params params = {
		.workers = 1,
		.stages = stages,
		.micro_batches = micro,
		.dims = {{.name = "batch", .size = BATCH}, {.name = "steps", .size = TIME}},
		.optimizer = {.lr = 0.05f}};
	runner r[DEVICES] = {{0}};
	pthread_t threads[DEVICES];
	void *data[DEVICES * 8];
	uint32_t n_data = 0;
	tn_local_hub *hub;
	tern_graph *g;
	tern_plan *p;

	assert_ok(tern_graph_model(model, NULL, &g));
	assert_ok(tern_plan_create(g, &params, &p));
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = p->n_devices}, &hub));
	for (uint32_t i = 0; i < p->n_devices; i++) {
		const tern_graph *own = p->devices[i].graph;

		r[i] = (runner){.plan = p, .number = i, .loss = loss};
		assert_ok(tn_local_open(hub, i, &r[i].xfer));
		assert_ok(tn_exec_create(p, i, r[i].xfer, &(tn_exec_params){.batch = BATCH}, &r[i].exec));
		for (uint32_t k = 0; k < own->n_ports; k++) {
			uint64_t bytes;

			if (!own->ports[k].is_input)
				continue;
			data[n_data] = data_of(p, &own->tensors[own->ports[k].tensor], &bytes);
			assert_ok(tn_exec_feed(r[i].exec, TN_PROG_TRAIN, own->ports[k].name, data[n_data++],
					       bytes));
		}
	}
	for (uint32_t i = 0; i < p->n_devices; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_main, &r[i]), 0);
	for (uint32_t i = 0; i < p->n_devices; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < p->n_devices; i++) {
		if (r[i].status != TERN_OK)
			fail_msg("%s on %s: %s", model, p->devices[i].name, r[i].detail);
		tn_exec_destroy(r[i].exec);
		r[i].xfer->ops->close(r[i].xfer);
	}
	while (n_data > 0)
		free(data[--n_data]);
	tn_local_hub_destroy(hub);
	tern_plan_destroy(p);
	tern_graph_destroy(g);
}

static void models_are_split(void **state)
{
	static const char *const models[] = {"convnet_small", "lstm_small", "gru_small", "mlp"};

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		float one[STEPS] = {0}, split[STEPS] = {0}, pieces[STEPS] = {0};

		train(models[m], 1, 1, one);
		assert_true(one[0] > 0.0f && one[STEPS - 1] < one[0]);
		train(models[m], 3, 1, split);
		assert_memory_equal(one, split, sizeof(one));
		train(models[m], 2, 2, pieces);
		for (uint32_t s = 0; s < STEPS; s++) {
			if (fabsf(one[s] - pieces[s]) > 1e-4f * one[s])
				fail_msg("%s, step %u: %.9g and %.9g", models[m], s, (double)one[s],
					 (double)pieces[s]);
		}
	}
}

/* Averages of batch norm, attention, embeddings: over a whole batch. */
static void whole_batches_are_split(void **state)
{
	static const char *const models[] = {"convnet_bn", "transformer", "seq2seq", "charlm"};

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		float one[STEPS] = {0}, split[STEPS] = {0};

		train(models[m], 1, 1, one);
		train(models[m], 3, 1, split);
		assert_true(one[0] > 0.0f);
		assert_memory_equal(one, split, sizeof(one));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(models_are_split),
		cmocka_unit_test(whole_batches_are_split),
	};

	return RUN(tests);
}

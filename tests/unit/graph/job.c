/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See job.h.
 */
#include "job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cmocka_all.h"
#include "ref/ref_graph.h"

static float images[JOB_ROWS][JOB_INPUTS];
static int32_t labels[JOB_ROWS];

typedef struct device {
	const job_params *params;
	job_result *result;
	const tern_plan *plan;
	uint32_t number;
	tn_xfer *xfer;
	tn_exec *exec;
	tern_status status;
	char detail[512];
} device;

tern_graph *job_model(void)
{
	static const uint64_t widths[] = {16};
	tern_model_params params = {.seed = 7, .inputs = JOB_INPUTS, .classes = JOB_CLASSES};
	tern_graph *g;

	assert_ok(tern_graph_fully_connected("job", widths, 1, &params, &g));
	return g;
}

/* Four clusters with noise: easy, but not linear at once. */
static void make_data(void)
{
	ref_rand rand = {11};
	float centre[JOB_CLASSES][JOB_INPUTS];

	ref_fill(&rand, &centre[0][0], JOB_CLASSES * JOB_INPUTS);
	for (uint32_t i = 0; i < JOB_ROWS; i++) {
		labels[i] = (int32_t)((ref_uniform(&rand) + 1) * JOB_CLASSES / 2);
		for (uint32_t k = 0; k < JOB_INPUTS; k++)
			images[i][k] = centre[labels[i]][k] + 0.5f * (float)ref_uniform(&rand);
	}
}

/* A stage has only some of the ports. */
static tern_status feed(device *d, const char *port, const void *data, uint64_t bytes)
{
	tern_status st = tn_exec_feed(d->exec, TN_PROG_TRAIN, port, data, bytes);

	return st == TERN_E_NOT_FOUND ? TERN_OK : st;
}

static tern_status evaluate(device *d, uint32_t worker)
{
	tn_fetched f;

	TN_TRY(tn_exec_feed(d->exec, TN_PROG_EVAL, "images", images, sizeof(images)));
	TN_TRY(tn_exec_feed(d->exec, TN_PROG_EVAL, "labels", labels, sizeof(labels)));
	TN_TRY(tn_exec_step(d->exec, TN_PROG_EVAL, TN_TIME_NEVER));
	TN_TRY(tn_exec_step(d->exec, TN_PROG_EVAL, TN_TIME_NEVER)); /* on the same weights */
	TN_TRY(tn_exec_fetch(d->exec, TN_PROG_EVAL, "loss", &f));
	memcpy(&d->result->eval_loss[worker], f.data, 4);
	TN_TRY(tn_exec_fetch(d->exec, TN_PROG_EVAL, "correct", &f));
	memcpy(&d->result->eval_correct[worker], f.data, 4);
	return TERN_OK;
}

static tern_status work(device *d, uint32_t worker)
{
	const job_params *p = d->params;
	uint64_t rows = p->batch / p->plan.workers;

	for (uint64_t step = 0; step < p->steps; step++) {
		uint64_t at = (step * p->batch + worker * rows) % JOB_ROWS;
		tn_fetched f;

		if (p->skewed)
			tn_sleep_ns((worker + 1) * 200 * TN_NS_PER_US);
		TN_TRY(feed(d, "images", images[at], rows * sizeof(images[0])));
		TN_TRY(feed(d, "labels", &labels[at], rows * sizeof(labels[0])));
		TN_TRY(tn_exec_step(d->exec, TN_PROG_TRAIN, TN_TIME_NEVER));
		if (tn_exec_fetch(d->exec, TN_PROG_TRAIN, "loss", &f) == TERN_OK)
			memcpy(&d->result->loss[worker][step], f.data, 4);
		if (tn_exec_fetch(d->exec, TN_PROG_TRAIN, "correct", &f) == TERN_OK)
			memcpy(&d->result->correct[worker][step], f.data, 4);
		if (p->eval_every && (step + 1) % p->eval_every == 0)
			TN_TRY(evaluate(d, worker));
	}
	return p->plan.stages > 1 ? TERN_OK : evaluate(d, worker);
}

static tern_status run_device(device *d)
{
	const tn_device *dev = &d->plan->devices[d->number];

	TN_TRY(tn_exec_start(d->exec, TN_TIME_NEVER));
	if (dev->role == TERN_ROLE_SERVER)
		TN_TRY(tn_exec_run(d->exec, d->params->steps, TN_TIME_NEVER));
	else
		TN_TRY(work(d, dev->index));
	return tn_exec_drain(d->exec, TN_TIME_NEVER);
}

static void *device_main(void *arg)
{
	device *d = arg;

	d->status = run_device(d);
	snprintf(d->detail, sizeof(d->detail), "%s", tern_detail());
	return NULL;
}

/* The parts of a split variable, in order; gives their bytes. */
static uint64_t gather_parts(const char *name, device *devices, uint32_t n, char *to)
{
	char part[TN_NAME_MAX + 16];
	uint64_t bytes = 0;

	for (uint32_t i = 0;; i++) {
		tn_fetched f;
		uint32_t d = 0;

		snprintf(part, sizeof(part), "%s/part%u", name, i);
		while (d < n && tn_exec_variable(devices[d].exec, part, &f) != TERN_OK)
			d++;
		if (d == n) {
			assert_true(i > 1);
			return bytes;
		}
		memcpy(to + bytes, f.data, f.bytes);
		bytes += f.bytes;
	}
}

/* Every variable from the device that has it. */
static void gather(const tern_graph *model, device *devices, uint32_t n, job_result *r)
{
	tern_graph_info info;
	uint64_t at = 0;

	tern_graph_info_get(model, &info);
	r->n_weights = info.parameters;
	r->weights = calloc(r->n_weights, sizeof(float));
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		tn_fetched f;
		uint32_t d = 0;

		if (model->nodes[i].op != TN_OP_VARIABLE)
			continue;
		while (d < n && tn_exec_variable(devices[d].exec, model->nodes[i].name, &f) != TERN_OK)
			d++;
		if (d == n) {
			at += gather_parts(model->nodes[i].name, devices, n, (char *)r->weights + at);
			continue;
		}
		memcpy((char *)r->weights + at, f.data, f.bytes);
		at += f.bytes;
	}
	assert_int_equal(at, r->n_weights * sizeof(float));
}

void job_run(const job_params *p, job_result *r)
{
	tn_exec_params exec = {.backend = p->backend,
			       .spin = p->spin,
			       .threads = p->threads,
			       .batch = p->batch / p->plan.workers,
			       .eval_batch = p->plan.stages > 1 ? 0 : JOB_ROWS};
	tern_graph *model = job_model();
	tern_plan *plan;
	tn_local_hub *hub;
	device *devices;
	pthread_t *threads;
	uint32_t n;

	make_data();
	*r = (job_result){0};
	assert_int_equal(JOB_ROWS % p->batch, 0);
	for (uint32_t i = 0; i < model->n_nodes && p->place; i++)
		model->nodes[i].device = p->place(&model->nodes[i]);
	assert_ok(tern_plan_create(model, &p->plan, &plan));
	n = tern_plan_devices(plan);
	r->n_devices = n;
	r->n_edges = tern_plan_edges(plan);
	r->stats = calloc(n, sizeof(*r->stats));
	for (uint32_t w = 0; w < p->plan.workers; w++) {
		r->loss[w] = calloc(p->steps, sizeof(float));
		r->correct[w] = calloc(p->steps, sizeof(int32_t));
	}
	assert_ok(tn_local_hub_create(
		&(tn_local_params){.devices = n, .slots = p->slots, .lazy_seed = p->lazy_seed}, &hub));
	devices = calloc(n, sizeof(*devices));
	threads = calloc(n, sizeof(*threads));
	for (uint32_t i = 0; i < n; i++) {
		devices[i] = (device){.params = p, .result = r, .plan = plan, .number = i};
		assert_ok(tn_local_open(hub, i, &devices[i].xfer));
		assert_ok(tn_exec_create(plan, i, devices[i].xfer, &exec, &devices[i].exec));
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, device_main, &devices[i]), 0);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < n; i++) {
		if (devices[i].status != TERN_OK)
			fail_msg("%s: %s: %s", plan->devices[i].name, tern_status_name(devices[i].status),
				 devices[i].detail);
		tn_exec_stats_get(devices[i].exec, &r->stats[i], false);
	}
	gather(model, devices, n, r);
	for (uint32_t i = 0; i < n; i++) {
		tn_exec_destroy(devices[i].exec);
		devices[i].xfer->ops->close(devices[i].xfer);
	}
	tn_local_hub_destroy(hub);
	free(devices);
	free(threads);
	tern_plan_destroy(plan);
	tern_graph_destroy(model);
}

void job_free(job_result *r)
{
	for (uint32_t i = 0; i < JOB_WORKERS_MAX; i++)
		free(r->loss[i]);
	for (uint32_t i = 0; i < JOB_WORKERS_MAX; i++)
		free(r->correct[i]);
	free(r->weights);
	free(r->stats);
}

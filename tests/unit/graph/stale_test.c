/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stale synchronous training: how far a worker gets while another one stands still. Devices are stepped in turn
 * by one thread, with deadlines that are past.
 */
#include <string.h>

#include "cmocka_all.h"
#include "graph/exec.h"
#include "job.h"

#define NOW 1 /* a deadline that is past: run until something must be waited for */

static tern_plan *plan;
static tn_local_hub *hub;
static tn_xfer *x[4];
static tn_exec *e[4];

/* One server, three workers. */
static void open_job(uint32_t stale)
{
	static float images[4 * JOB_INPUTS];
	static int32_t labels[4];
	tern_plan_params params = {.servers = 1,
				   .workers = 3,
				   .stale = stale,
				   .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tern_graph *g = job_model();

	assert_ok(tern_plan_create(g, &params, &plan));
	tern_graph_destroy(g);
	assert_ok(tn_local_hub_create(&(tn_local_params){.devices = 4}, &hub));
	for (uint32_t i = 0; i < 4; i++) {
		assert_ok(tn_local_open(hub, i, &x[i]));
		assert_ok(tn_exec_create(plan, i, x[i], &(tn_exec_params){.batch = 4}, &e[i]));
	}
	for (uint32_t i = 0; i < 4; i++)
		assert_ok(tn_exec_start(e[i], NOW));
	for (uint32_t i = 1; i < 4; i++) {
		assert_ok(tn_exec_feed(e[i], TN_PROG_TRAIN, "images", images, sizeof(images)));
		assert_ok(tn_exec_feed(e[i], TN_PROG_TRAIN, "labels", labels, sizeof(labels)));
	}
}

static void close_job(void)
{
	for (uint32_t i = 0; i < 4; i++) {
		tn_exec_destroy(e[i]);
		x[i]->ops->close(x[i]);
	}
	tn_local_hub_destroy(hub);
	tern_plan_destroy(plan);
}

/* How many steps a worker gets done before it has to wait. */
static uint32_t run_ahead(uint32_t worker, uint32_t most)
{
	uint32_t done = 0;

	for (uint32_t turn = 0; turn < 4 * most && done < most; turn++) {
		tern_status st = tn_exec_step(e[1 + worker], TN_PROG_TRAIN, NOW);

		assert_true(st == TERN_OK || st == TERN_E_DEADLINE);
		done += st == TERN_OK;
		st = tn_exec_run(e[0], 1000, NOW);
		assert_true(st == TERN_E_DEADLINE);
	}
	return done;
}

static void a_worker_is_at_most_so_many_steps_ahead(void **state)
{
	(void)state;
	for (uint32_t stale = 1; stale <= 4; stale++) {
		open_job(stale);
		assert_int_equal(run_ahead(0, 20), stale + 1);
		assert_int_equal(run_ahead(0, 20), 0);
		assert_int_equal(run_ahead(1, 20), stale + 1); /* worker 2 has done nothing */
		assert_int_equal(run_ahead(0, 20), 0);
		assert_int_equal(run_ahead(2, 2), 2);
		assert_int_equal(run_ahead(0, 20), 2);
		assert_int_equal(run_ahead(1, 20), 2);
		close_job();
	}
}

static void without_a_bound_nobody_waits(void **state)
{
	(void)state;
	open_job(0);
	assert_int_equal(run_ahead(0, 20), 20);
	close_job();
}

static void who_waits_for_whom_is_said(void **state)
{
	(void)state;
	open_job(1);
	run_ahead(0, 20);
	assert_status(tn_exec_run(e[0], 1, NOW), TERN_E_DEADLINE);
	if (!strstr(tern_detail(), "too far behind") && !strstr(tern_detail(), "waiting for"))
		fail_msg("%s", tern_detail());
	close_job();
}

static void it_trains(void **state)
{
	job_params p = {
		.plan = {.servers = 2,
			 .workers = 3,
			 .stale = 2,
			 .split_bytes = 128,
			 .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM, .lr = 0.02f, .momentum = 0.9f}},
		.batch = 24,
		.steps = 60,
		.skewed = true};
	job_result r;

	(void)state;
	job_run(&p, &r);
	assert_true(r.loss[0][59] < 0.5f * r.loss[0][0]);
	job_free(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_worker_is_at_most_so_many_steps_ahead),
		cmocka_unit_test(without_a_bound_nobody_waits),
		cmocka_unit_test(who_waits_for_whom_is_said),
		cmocka_unit_test(it_trains),
	};

	return RUN(tests);
}

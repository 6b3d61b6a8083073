/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training jobs over the local transfer: synchronous jobs equal one process within float tolerance whatever
 * their servers and workers, and themselves bit for bit whatever the timing, slots, mode and evaluations in
 * between; asynchronous ones converge; every tensor is written once.
 */
#include <math.h>
#include <string.h>

#include "cmocka_all.h"
#include "job.h"

enum { STEPS = 25 };

static job_params params_of(uint32_t servers, uint32_t workers, int sync)
{
	return (job_params){.plan = {.servers = servers,
				     .workers = workers,
				     .sync = sync,
				     .optimizer = {.kind = TERN_OPTIMIZER_MOMENTUM,
						   .lr = 0.05f,
						   .lr_end = 0.01f,
						   .lr_steps = 20,
						   .momentum = 0.9f,
						   .weight_decay = 1e-4f}},
			    .batch = 24,
			    .steps = STEPS};
}

static void assert_same_bits(const job_result *a, const job_result *b, uint32_t workers)
{
	for (uint32_t w = 0; w < workers; w++)
		assert_memory_equal(a->loss[w], b->loss[w], STEPS * sizeof(float));
	assert_memory_equal(a->weights, b->weights, a->n_weights * sizeof(float));
	assert_memory_equal(a->eval_loss, b->eval_loss, sizeof(a->eval_loss));
	assert_memory_equal(a->eval_correct, b->eval_correct, sizeof(a->eval_correct));
}

static void sync_equals_one_process(void **state)
{
	static const uint32_t jobs[][2] = {{1, 1}, {2, 2}, {1, 2}, {4, 1}, {3, 4}, {2, 8}};
	job_params alone = params_of(0, 1, 1);
	job_result one, many;

	(void)state;
	job_run(&alone, &one);
	assert_true(one.loss[0][STEPS - 1] < one.loss[0][0] * 0.5f);
	assert_true(one.eval_correct[0] > JOB_ROWS * 9 / 10);
	for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
		job_params p = params_of(jobs[i][0], jobs[i][1], 1);

		job_run(&p, &many);
		for (uint32_t s = 0; s < STEPS; s++) {
			double mean = 0;

			for (uint32_t w = 0; w < jobs[i][1]; w++)
				mean += (double)many.loss[w][s] / jobs[i][1];
			if (!(fabs(mean - (double)one.loss[0][s]) < 2e-5))
				fail_msg("%u servers, %u workers, step %u: loss %.8g, alone %.8g", jobs[i][0],
					 jobs[i][1], s, mean, (double)one.loss[0][s]);
		}
		for (uint64_t k = 0; k < one.n_weights; k++)
			assert_true(fabsf(many.weights[k] - one.weights[k]) < 1e-4f);
		for (uint32_t w = 0; w < jobs[i][1]; w++)
			assert_true(fabsf(many.eval_loss[w] - one.eval_loss[0]) < 1e-4f);
		job_free(&many);
	}
	job_free(&one);
}

/* One worker does the same arithmetic as a process alone: then even the bits agree. */
static void one_worker_is_the_process_bit_for_bit(void **state)
{
	job_params alone = params_of(0, 1, 1), remote = params_of(2, 1, 1);
	job_result a, b;

	(void)state;
	job_run(&alone, &a);
	job_run(&remote, &b);
	assert_same_bits(&a, &b, 1);
	job_free(&a);
	job_free(&b);
}

static void sync_is_the_same_bit_for_bit(void **state)
{
	job_params base = params_of(2, 2, 1);
	job_result first, again;

	(void)state;
	job_run(&base, &first);
	for (int variant = 0; variant < 12; variant++) {
		job_params p = base;

		p.plan.comm = variant == 1   ? TERN_COMM_COPY
			      : variant == 2 ? TERN_COMM_RPC
					     : TERN_COMM_ZEROCOPY;
		p.slots = variant == 3 ? 1 : variant == 4 ? 5 : 0;
		p.spin = variant == 5;
		p.eval_every = variant == 6 ? 3 : variant == 7 ? 1 : 0;
		p.skewed = variant == 8;
		p.lazy_seed = variant >= 9 ? (uint64_t)variant : 0;
		p.plan.servers = variant == 11 ? 4 : 2; /* where a variable lives does not matter */
		job_run(&p, &again);
		assert_same_bits(&first, &again, 2);
		job_free(&again);
	}
	job_free(&first);
}

static void sgd_and_plain_backend(void **state)
{
	job_params p = params_of(2, 2, 1), q;
	job_result a, b;

	(void)state;
	p.plan.optimizer = (tern_optimizer){.kind = TERN_OPTIMIZER_SGD, .lr = 0.2f};
	q = p;
	q.backend = TN_BACKEND_PLAIN;
	job_run(&p, &a);
	job_run(&q, &b);
	assert_true(a.loss[0][STEPS - 1] < a.loss[0][0] * 0.5f);
	for (uint32_t s = 0; s < STEPS; s++)
		assert_true(fabsf(a.loss[1][s] - b.loss[1][s]) < 1e-4f);
	job_free(&a);
	job_free(&b);
}

static void async_converges(void **state)
{
	(void)state;
	for (int lazy = 0; lazy < 3; lazy++) {
		job_params p = params_of(2, 3, 0);
		job_result r;

		p.steps = 60;
		p.lazy_seed = lazy == 1 ? 5 : 0;
		p.skewed = lazy == 2;
		p.plan.optimizer = (tern_optimizer){.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f};
		job_run(&p, &r);
		for (uint32_t w = 0; w < 3; w++) {
			assert_true(r.eval_correct[w] > JOB_ROWS * 9 / 10);
			assert_true(r.eval_loss[w] < r.loss[w][0] * 0.5f);
		}
		job_free(&r);
	}
}

static void every_tensor_is_written_once(void **state)
{
	job_params p = params_of(2, 2, 1);
	job_result r;
	uint64_t writes = 0, copies = 0, received = 0, sent = 0;

	(void)state;
	job_run(&p, &r);
	for (uint32_t d = 0; d < r.n_devices; d++) {
		writes += r.stats[d].xfer.writes;
		copies += r.stats[d].xfer.copies;
		sent += r.stats[d].xfer.bytes_sent;
		received += r.stats[d].xfer.bytes_received;
		assert_int_equal(r.stats[d].steps, STEPS);
		assert_true(r.stats[d].run_ns >= r.stats[d].compute_ns + r.stats[d].wait_ns);
	}
	/* per step each gradient and each variable once, and the initial values */
	assert_int_equal(writes, r.n_edges * STEPS + r.n_edges / 2);
	assert_int_equal(copies, 0);
	assert_int_equal(sent, 2 * r.n_weights * 4 * (2 * STEPS + 1));
	assert_int_equal(received, sent);
	job_free(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sync_equals_one_process),
		cmocka_unit_test(one_worker_is_the_process_bit_for_bit),
		cmocka_unit_test(sync_is_the_same_bit_for_bit),
		cmocka_unit_test(sgd_and_plain_backend),
		cmocka_unit_test(async_converges),
		cmocka_unit_test(every_tensor_is_written_once),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of <tern/ps_group.h> over a real context: steps wait and go on, time limits name who is missing, nobody hangs.
 * BytePS: a round counted pushes, not senders.
 */
#include <stdio.h>
#include <string.h>
#include <tern/ctx.h>
#include <tern/ps_group.h>
#include <tern/watch.h>

#include "base/check.h"
#include "base/os.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/group.h"

#define SECOND  1000000000ull
#define WORKERS 4

typedef struct job {
	tern_ctx *server_ctx, *client_ctx;
	tern_ps_server *server;
	tern_ps *ps;
} job;

static void job_start(job *j, const char *transports)
{
	tern_ctx_params params = {.name = "server", .transports = transports};
	tern_ps_params ps = {.count = 1, .timeout_ns = 20 * SECOND};
	const char *address;

	assert_ok(tern_ctx_create(&params, &j->server_ctx));
	params.name = "client";
	assert_ok(tern_ctx_create(&params, &j->client_ctx));
	assert_ok(tern_ps_server_open(j->server_ctx, NULL, &j->server));
	address = tern_ctx_address(j->server_ctx);
	ps.servers = &address;
	assert_ok(tern_ps_open(j->client_ctx, &ps, &j->ps));
}

static void job_end(job *j)
{
	tern_ps_close(j->ps);
	tern_ps_server_close(j->server);
	tern_ctx_destroy(j->client_ctx);
	tern_ctx_destroy(j->server_ctx);
}

static tern_ps_group *join(job *j, uint64_t staleness, const char *member, uint64_t *step)
{
	tern_ps_group_params params = {.name = "training", .member = member, .staleness = staleness};
	tern_ps_group *group;

	assert_ok(tern_ps_group_join(j->ps, &params, step, &group));
	return group;
}

static void time_limits_name_the_missing(void **state)
{
	tern_ps_group_params other = {.name = "training", .member = "c", .staleness = 7};
	tern_ps_group *a, *b, *c;
	uint64_t step;
	job j;

	(void)state;
	job_start(&j, "shm,tcp");
	a = join(&j, 0, "worker a", &step);
	assert_int_equal(step, 0);
	b = join(&j, 0, "worker b", NULL);
	assert_status(tern_ps_group_join(j.ps, &other, NULL, &c), TERN_E_INVALID);
	assert_ok(tern_ps_group_begin(a, 0, SECOND));
	assert_ok(tern_ps_group_end(a, 0));
	assert_status(tern_ps_group_begin(a, 1, SECOND / 20), TERN_E_DEADLINE);
	assert_string_equal(tern_detail(),
			    "step 1 of group training waits for 1 of 2 workers: worker b (step 0)");
	assert_status(tern_ps_group_barrier(a, "epoch", SECOND / 20), TERN_E_DEADLINE);
	assert_non_null(strstr(tern_detail(), "worker b"));
	/* It has arrived: when b comes, both go on. */
	assert_ok(tern_ps_group_barrier(b, "epoch", SECOND));
	assert_ok(tern_ps_group_barrier(a, "epoch", SECOND));
	/* b dies, and is removed: a goes on. */
	assert_status(tern_ps_group_remove(a, "worker x"), TERN_E_NOT_FOUND);
	assert_ok(tern_ps_group_remove(a, "worker b"));
	assert_ok(tern_ps_group_begin(a, 1, SECOND));
	assert_status(tern_ps_group_end(b, 0), TERN_E_NOT_FOUND);
	tern_ps_group_leave(b);
	tern_ps_group_leave(a);
	tern_ps_group_leave(NULL);
	job_end(&j);
}

static void *begin_later(void *group)
{
	assert_ok(tern_ps_group_begin(group, 1, 20 * SECOND));
	return NULL;
}

static void on_wait(const tern_wait *wait, void *arg)
{
	if (strstr(wait->what, "training"))
		snprintf(arg, TN_DETAIL_MAX, "%s", wait->what);
}

/* A monitor of the server sees who is missing while it is waited for. */
static void who_waits_is_seen(void **state)
{
	char what[TN_DETAIL_MAX] = "";
	tern_ps_group *a, *b;
	pthread_t thread;
	job j;

	(void)state;
	job_start(&j, "shm,tcp");
	a = join(&j, 0, "worker a", NULL);
	b = join(&j, 0, "worker b", NULL);
	assert_ok(tern_ps_group_begin(a, 0, SECOND));
	assert_ok(tern_ps_group_end(a, 0));
	assert_int_equal(pthread_create(&thread, NULL, begin_later, a), 0);
	while (!what[0])
		tern_ctx_waits(j.server_ctx, on_wait, what);
	assert_string_equal(what, "step 1 of group training waits for 1 of 2 workers: worker b (step 0)");
	assert_ok(tern_ps_group_begin(b, 0, SECOND));
	assert_ok(tern_ps_group_end(b, 0));
	pthread_join(thread, NULL);
	what[0] = '\0';
	tern_ctx_waits(j.server_ctx, on_wait, what);
	assert_string_equal(what, "");
	tern_ps_group_leave(b);
	tern_ps_group_leave(a);
	job_end(&j);
}

static void requests_survive_the_wire_and_junk_does_not(void **state)
{
	tn_ps_group_msg msg = {
		.op = TN_GROUP_BARRIER, .member = 1, .value = 2, .timeout_ns = 3, .name = "g", .text = "bar"};
	uint8_t out[TN_PS_GROUP_MAX], junk[TN_PS_GROUP_MAX];
	tn_ps_group_msg again = {0};
	tn_rand rand = {9};
	uint64_t n;

	(void)state;
	n = tn_ps_group_encode(out, &msg);
	assert_int_equal(n, 36);
	assert_memory_equal(out,
			    "\1\5\1\3\0\0\0\0"
			    "\1\0\0\0\0\0\0\0"
			    "\2\0\0\0\0\0\0\0"
			    "\3\0\0\0\0\0\0\0gbar",
			    36);
	assert_true(tn_ps_group_decode(out, n, &again));
	assert_int_equal(again.op, msg.op);
	assert_true(again.member == 1 && again.value == 2 && again.timeout_ns == 3);
	assert_string_equal(again.name, "g");
	assert_string_equal(again.text, "bar");
	for (uint64_t k = 0; k < n; k++)
		assert_false(tn_ps_group_decode(out, k, &again));
	for (int i = 0; i < 20000; i++) {
		uint64_t bytes = tn_rand_below(&rand, sizeof(junk) + 1);

		memcpy(junk, out, sizeof(out));
		for (int k = 0; k < 3; k++)
			junk[tn_rand_below(&rand, sizeof(junk))] = (uint8_t)tn_rand_next(&rand);
		if (tn_ps_group_decode(junk, bytes, &again))
			assert_true(strlen(again.name) < TERN_PS_NAME_MAX &&
				    strlen(again.text) < TERN_PS_NAME_MAX);
	}
}

/* ---- threads that train ---- */

typedef struct worker {
	tn_thread thread;
	tern_ps_group *group;
	uint64_t steps, lead; /* lead: the largest over the slowest member that was there */
	unsigned index;
	tern_status status;
} worker;

static _Atomic uint64_t ended[WORKERS]; /* steps; UINT64_MAX: it left */

static uint64_t lead_at(uint64_t step)
{
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; i < WORKERS; i++)
		least = TN_MIN(least, atomic_load(&ended[i]));
	return least < step ? step - least : 0;
}

static tern_status run_step(worker *w, uint64_t step)
{
	tern_status status = tern_ps_group_begin(w->group, step, 20 * SECOND);

	if (status != TERN_OK)
		return status;
	w->lead = TN_MAX(w->lead, lead_at(step));
	/* Before the server hears of it: nobody goes on because of a step that is not counted here. */
	atomic_store(&ended[w->index], step + 1);
	status = tern_ps_group_end(w->group, step);
	if (status == TERN_OK && step % 8 == 7)
		status = tern_ps_group_barrier(w->group, "eighth", 20 * SECOND);
	return status;
}

static void *run_worker(void *arg)
{
	worker *w = arg;

	for (uint64_t step = 0; step < w->steps && w->status == TERN_OK; step++)
		w->status = run_step(w, step);
	atomic_store(&ended[w->index], UINT64_MAX);
	tern_ps_group_leave(w->group);
	return NULL;
}

static void train(uint64_t staleness, const char *transports)
{
	worker workers[WORKERS] = {0};
	job j;

	job_start(&j, transports);
	for (unsigned i = 0; i < WORKERS; i++) {
		atomic_store(&ended[i], 0);
		/* Uneven numbers of batches. */
		workers[i] =
			(worker){.group = join(&j, staleness, "w", NULL), .steps = 24 + 8 * i, .index = i};
	}
	for (unsigned i = 0; i < WORKERS; i++)
		assert_ok(tn_os_thread_start(&workers[i].thread, "worker", run_worker, &workers[i]));
	for (unsigned i = 0; i < WORKERS; i++) {
		tn_os_thread_join(&workers[i].thread);
		assert_int_equal(workers[i].status, TERN_OK);
		assert_true(workers[i].lead <= staleness);
	}
	job_end(&j);
}

static void uneven_workers_never_hang_and_keep_the_bound(void **state)
{
	(void)state;
	train(0, "shm,tcp");
	train(1, "tcp");
	train(2, "shm,tcp");
	train(TERN_PS_ASYNCHRONOUS, "tcp");
}

static void a_server_that_closes_ends_the_waits(void **state)
{
	tern_ps_group *a, *b;
	job j;

	(void)state;
	job_start(&j, "shm,tcp");
	a = join(&j, 0, "a", NULL);
	b = join(&j, 0, "b", NULL);
	assert_ok(tern_ps_group_end(a, 0));
	assert_status(tern_ps_group_begin(a, 1, SECOND / 50), TERN_E_DEADLINE);
	tern_ps_server_close(j.server);
	assert_int_not_equal(tern_ps_group_begin(a, 1, SECOND), TERN_OK);
	assert_ok(tern_ps_server_open(j.server_ctx, NULL, &j.server));
	/* The new server does not know them. */
	assert_status(tern_ps_group_begin(a, 1, SECOND), TERN_E_NOT_FOUND);
	tern_ps_group_leave(a);
	tern_ps_group_leave(b);
	job_end(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_survive_the_wire_and_junk_does_not),
		cmocka_unit_test(time_limits_name_the_missing),
		cmocka_unit_test(uneven_workers_never_hang_and_keep_the_bound),
		cmocka_unit_test(who_waits_is_seen),
		cmocka_unit_test(a_server_that_closes_ends_the_waits),
	};

	return RUN(tests);
}

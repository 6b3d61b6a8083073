/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fan-out: many threads that each send one call to every one of several servers, with sinks, and wait for all of
 * them, while deadlines pass and calls are cancelled. Each call ends exactly once; what comes with it is right; and
 * nothing is written into a sink once its call has ended.
 *
 *   threads x batches x servers calls; a server answers from its handler, or from a thread of its own, soon or late
 *
 * The program's arguments: batches of each thread (60), seed, provider. Threads other than the main one report
 * through `trouble`.
 *
 * FIELD-BUGS: pegaflow#403 and ydb-platform/nbs#5729, a buffer is reused and late data corrupts it; mercury#267 and
 * #308, cancel completes twice or never.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/rpc.h>

#include "base/clock.h"
#include "base/rand.h"
#include "base/time.h"
#include "cmocka_all.h"

#define WAIT_NS   120000000000ull
#define SERVERS   4u
#define THREADS   8u
#define ARGS_MAX  65536u
#define SINK      65536ull
#define ANSWER    4096u
#define UNTOUCHED 0xee

enum { PULL = 1 };
enum { AT_ONCE, ELSEWHERE, LATE };

/* The arguments of a call; what follows them is server.pattern[0..]. */
typedef struct ask {
	uint32_t how, answer_bytes;
	uint64_t sink_bytes, from; /* pattern[from ..] goes into the sink */
	uint64_t late_ns;
} ask;

typedef struct job {
	struct job *next;
	struct server *server;
	tern_rpc_request *request;
	ask ask;
	uint64_t due_ns;
	tern_op put;
} job;

typedef struct server {
	tern_ctx *ctx;
	tern_rpc *rpc;
	uint8_t *pattern; /* 2 * SINK, differs with the server */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	job *jobs;
	bool stop;
	_Atomic uint64_t puts; /* that have not completed */
} server;

typedef struct flight {
	tern_op op;
	_Atomic unsigned ends;
	ask *args;
	uint8_t *sink, *answer;
	tern_rpc_sink key;
	uint32_t args_bytes;
} flight;

typedef struct worker {
	pthread_t thread;
	unsigned number;
	tn_rand rng;
	flight flights[SERVERS];
	_Atomic unsigned left;
	uint64_t calls, ok, late, canceled, again;
} worker;

static tern_ctx *a;
static server servers[SERVERS];
static worker workers[THREADS];
static const char *transport;
static unsigned batches = 60;
static uint64_t seed = 1;
static _Atomic bool over;
static _Atomic unsigned troubles;
static char trouble_text[256];

static void trouble(const char *format, ...)
{
	va_list args;

	if (atomic_fetch_add(&troubles, 1))
		return;
	va_start(args, format);
	vsnprintf(trouble_text, sizeof(trouble_text), format, args);
	va_end(args);
}

/* ---- servers ---- */

static void answer(job *j)
{
	server *s = j->server;

	tern_rpc_reply(j->request, TERN_OK, s->pattern + j->ask.from, j->ask.answer_bytes);
}

static void on_put(tern_op *op, void *arg)
{
	job *j = arg;
	server *s = j->server;

	(void)op; /* it may have failed: the call is cancelled */
	free(j);
	atomic_fetch_sub(&s->puts, 1);
}

/* False: no room, later. */
static bool serve(job *j)
{
	tern_status status;
	server *s = j->server;
	job copy = *j; /* j goes with the put's completion */

	if (j->ask.sink_bytes == 0) {
		answer(j);
		free(j);
		return true;
	}
	tern_op_init(&j->put, on_put, j);
	atomic_fetch_add(&s->puts, 1);
	status = tern_rpc_request_put(j->request, 0, 0, s->pattern + j->ask.from, j->ask.sink_bytes, &j->put);
	if (status == TERN_OK) {
		answer(&copy);
		return true;
	}
	atomic_fetch_sub(&s->puts, 1);
	if (status == TERN_AGAIN)
		return false;
	if (status != TERN_E_DEADLINE || !tern_rpc_request_canceled(j->request))
		trouble("put: %s: %s", tern_status_name(status), tern_detail());
	answer(j);
	free(j);
	return true;
}

static void hand_over(job *j)
{
	server *s = j->server;

	pthread_mutex_lock(&s->lock);
	j->next = s->jobs;
	s->jobs = j;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static void pull(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	server *s = arg;
	job *j = calloc(1, sizeof(*j));

	if (!j || bytes < sizeof(ask) ||
	    memcmp((const uint8_t *)args + sizeof(ask), s->pattern, bytes - sizeof(ask)) != 0) {
		trouble("arguments that are not what was sent");
		free(j);
		tern_rpc_reply(request, TERN_E_REMOTE, NULL, 0);
		return;
	}
	j->server = s;
	j->request = request;
	memcpy(&j->ask, args, sizeof(ask));
	j->due_ns = j->ask.how == LATE ? tn_now() + j->ask.late_ns : 0;
	if (j->ask.how != AT_ONCE || !serve(j))
		hand_over(j);
}

/* lock held: one whose time has come, in no order; *next_ns: when there is another one. */
static job *take(server *s, uint64_t now_ns)
{
	for (job **at = &s->jobs; *at; at = &(*at)->next) {
		job *j = *at;

		if (j->due_ns > now_ns && !s->stop)
			continue;
		*at = j->next;
		return j;
	}
	return NULL;
}

static void *serve_elsewhere(void *arg)
{
	server *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->stop || s->jobs) {
		job *j = take(s, tn_now());

		if (!s->jobs && !j) {
			pthread_cond_wait(&s->wake, &s->lock);
			continue;
		}
		pthread_mutex_unlock(&s->lock);
		if (!j)
			tn_sleep_ns(100000);
		else if (!serve(j))
			j->due_ns = tn_now() + 50000, hand_over(j);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- callers ---- */

static void on_end(tern_op *op, void *arg)
{
	worker *w = arg;
	flight *f = (flight *)op;

	if (atomic_fetch_add(&f->ends, 1) != 0)
		trouble("a call ended twice");
	atomic_fetch_sub(&w->left, 1);
}

/* Most calls are small, some are as large as they may be. */
static uint32_t some_bytes(tn_rand *rng, uint32_t most)
{
	switch (tn_rand_below(rng, 8)) {
	case 0:
		return most;
	case 1:
	case 2:
		return (uint32_t)tn_rand_below(rng, most + 1);
	default:
		return (uint32_t)tn_rand_below(rng, 256);
	}
}

static void launch(worker *w, unsigned i)
{
	flight *f = &w->flights[i];
	ask *what = f->args;
	tern_rpc_call_params params = {
		.method = PULL, .args = what, .sinks = &f->key, .sink_count = 1, .answer = f->answer};
	tern_status status;

	for (unsigned k = 0; k < SINK; k++)
		if (f->sink[k] != UNTOUCHED) {
			trouble("byte %u of a sink was written after its call had ended", k);
			break;
		}
	what->how = tn_rand_below(&w->rng, 4) ? AT_ONCE : tn_rand_below(&w->rng, 2) ? ELSEWHERE : LATE;
	what->sink_bytes = some_bytes(&w->rng, SINK);
	what->from = tn_rand_below(&w->rng, SINK);
	what->answer_bytes = some_bytes(&w->rng, ANSWER);
	what->late_ns = tn_rand_below(&w->rng, 3000000);
	f->args_bytes = (uint32_t)sizeof(*what) + some_bytes(&w->rng, ARGS_MAX - sizeof(*what));
	memcpy(what + 1, servers[i].pattern, f->args_bytes - sizeof(*what));
	params.args_bytes = f->args_bytes;
	params.answer_capacity = ANSWER;
	params.service_class = (tern_rpc_class)tn_rand_below(&w->rng, 3);
	if (what->sink_bytes == 0 && tn_rand_below(&w->rng, 2)) /* some without sinks */
		params.sink_count = 0;
	tern_op_init(&f->op, on_end, w);
	f->op.timeout_ns = tn_rand_below(&w->rng, 8) ? WAIT_NS : 1 + tn_rand_below(&w->rng, 2000000);
	atomic_store(&f->ends, 0);
	while ((status = tern_rpc_call(servers[i].rpc, &params, &f->op)) == TERN_AGAIN) {
		w->again++;
		tern_ctx_wait(a, 1000000);
	}
	w->calls++;
	if (status == TERN_OK)
		return;
	trouble("call: %s: %s", tern_status_name(status), tern_detail());
	atomic_store(&f->ends, 1);
	atomic_fetch_sub(&w->left, 1);
}

static void land(worker *w, unsigned i)
{
	flight *f = &w->flights[i];
	const uint8_t *pattern = servers[i].pattern + f->args->from;

	if (atomic_load(&f->ends) != 1)
		trouble("a call ended %u times", atomic_load(&f->ends));
	switch (f->op.status) {
	case TERN_OK:
		w->ok++;
		if (f->op.length != f->args->answer_bytes || memcmp(f->answer, pattern, f->op.length) != 0)
			trouble("a wrong answer of %llu bytes", (unsigned long long)f->op.length);
		if (memcmp(f->sink, pattern, f->args->sink_bytes) != 0)
			trouble("a sink of %llu bytes is not what was put",
				(unsigned long long)f->args->sink_bytes);
		break;
	case TERN_E_DEADLINE:
		w->late++;
		break;
	case TERN_E_CANCELED:
		w->canceled++;
		break;
	default:
		trouble("a call ended with %s", tern_status_name(f->op.status));
	}
	memset(f->sink, UNTOUCHED, SINK);
}

static void *call_all(void *arg)
{
	worker *w = arg;

	for (unsigned n = 0; n < batches && !atomic_load(&troubles); n++) {
		uint64_t end = tn_now() + WAIT_NS;

		atomic_store(&w->left, SERVERS);
		for (unsigned i = 0; i < SERVERS; i++)
			launch(w, i);
		if (tn_rand_below(&w->rng, 8) == 0) {
			unsigned i = (unsigned)tn_rand_below(&w->rng, SERVERS);

			tern_rpc_cancel(servers[i].rpc, &w->flights[i].op);
		}
		while (atomic_load(&w->left) && tn_now() < end)
			tern_ctx_wait(a, 1000000);
		if (atomic_load(&w->left)) {
			trouble("batch %u of thread %u: %u calls never ended", n, w->number,
				atomic_load(&w->left));
			break;
		}
		for (unsigned i = 0; i < SERVERS; i++)
			land(w, i);
	}
	return NULL;
}

/* Cancels what others have just made, or what has just ended. */
static void *cancel_some(void *arg)
{
	tn_rand rng = {.state = seed ^ 0xca9ce1};

	(void)arg;
	while (!atomic_load(&over)) {
		unsigned i = (unsigned)tn_rand_below(&rng, SERVERS);
		worker *w = &workers[tn_rand_below(&rng, THREADS)];

		tern_rpc_cancel(servers[i].rpc, &w->flights[i].op);
		tn_sleep_ns(tn_rand_below(&rng, 1000000));
	}
	return NULL;
}

/* ---- the world ---- */

static void *memory(tern_ctx *ctx, uint64_t bytes, uint32_t access)
{
	void *p;

	assert_ok(tern_mem_alloc(tern_ctx_mem(ctx), bytes, 0, access, TERN_MEM_HOST, &p));
	return p;
}

static void start(void)
{
	tern_ctx_params pa = {.name = "a", .listen = "", .transports = transport};

	memset(servers, 0, sizeof(servers));
	memset(workers, 0, sizeof(workers));
	atomic_store(&over, false);
	assert_ok(tern_ctx_create(&pa, &a));
	for (unsigned i = 0; i < SERVERS; i++) {
		static const char *const names[SERVERS] = {"b0", "b1", "b2", "b3"};
		tern_ctx_params pb = {.name = names[i], .transports = transport};
		server *s = &servers[i];

		assert_ok(tern_ctx_create(&pb, &s->ctx));
		s->pattern = memory(s->ctx, 2 * SINK, TERN_ACCESS_NONE);
		for (uint64_t k = 0; k < 2 * SINK; k++)
			s->pattern[k] = (uint8_t)(k * 7 + (k >> 8) * 3 + i * 61);
		pthread_mutex_init(&s->lock, NULL);
		pthread_cond_init(&s->wake, NULL);
		assert_int_equal(pthread_create(&s->thread, NULL, serve_elsewhere, s), 0);
		assert_ok(tern_rpc_serve(s->ctx, PULL, pull, s));
		assert_ok(tern_rpc_connect(a, tern_ctx_address(s->ctx), NULL, &s->rpc));
	}
	for (unsigned t = 0; t < THREADS; t++) {
		worker *w = &workers[t];

		w->number = t;
		w->rng.state = seed * 1000003 + t;
		for (unsigned i = 0; i < SERVERS; i++) {
			flight *f = &w->flights[i];

			f->args = malloc(ARGS_MAX);
			f->answer = malloc(ANSWER);
			assert_true(f->args && f->answer);
			f->sink = memory(a, SINK, TERN_ACCESS_WRITE);
			memset(f->sink, UNTOUCHED, SINK);
			f->key.bytes = SINK;
			assert_ok(tern_mem_export(tern_ctx_mem(a), f->sink, SINK, TERN_ACCESS_WRITE,
						  &f->key.key));
		}
	}
}

static void stop(void)
{
	for (unsigned i = 0; i < SERVERS; i++) {
		server *s = &servers[i];

		tern_rpc_unserve(s->ctx, PULL); /* calls that were given up may still be on their way */
		pthread_mutex_lock(&s->lock);
		s->stop = true;
		pthread_cond_signal(&s->wake);
		pthread_mutex_unlock(&s->lock);
		pthread_join(s->thread, NULL);
		while (atomic_load(&s->puts))
			tern_ctx_wait(s->ctx, 1000000);
		tern_rpc_close(s->rpc);
	}
	tern_ctx_destroy(a);
	for (unsigned i = 0; i < SERVERS; i++) {
		tern_ctx_destroy(servers[i].ctx);
		pthread_mutex_destroy(&servers[i].lock);
		pthread_cond_destroy(&servers[i].wake);
	}
	for (unsigned t = 0; t < THREADS; t++)
		for (unsigned i = 0; i < SERVERS; i++) {
			free(workers[t].flights[i].args);
			free(workers[t].flights[i].answer);
		}
}

static void each_call_ends_once(void **state)
{
	uint64_t calls = 0, ok = 0, late = 0, canceled = 0, again = 0;
	pthread_t canceler;

	(void)state;
	start();
	for (unsigned t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&workers[t].thread, NULL, call_all, &workers[t]), 0);
	assert_int_equal(pthread_create(&canceler, NULL, cancel_some, NULL), 0);
	for (unsigned t = 0; t < THREADS; t++) {
		worker *w = &workers[t];

		pthread_join(w->thread, NULL);
		calls += w->calls, ok += w->ok, late += w->late, canceled += w->canceled, again += w->again;
	}
	atomic_store(&over, true);
	pthread_join(canceler, NULL);
	if (atomic_load(&troubles))
		fail_msg("seed %llu: %s", (unsigned long long)seed, trouble_text);
	assert_int_equal(calls, (uint64_t)THREADS * batches * SERVERS);
	assert_int_equal(ok + late + canceled, calls);
	assert_int_equal(tern_ctx_counter(a, "rpc.indeterminate"), 0);
	printf("%s: %llu calls: %llu answered, %llu too late, %llu cancelled; %llu had to wait\n", transport,
	       (unsigned long long)calls, (unsigned long long)ok, (unsigned long long)late,
	       (unsigned long long)canceled, (unsigned long long)again);
	stop();
}

int main(int argc, char **argv)
{
	static const char *const transports[] = {"loop", "shm", "tcp"};
	int failed = 0;

	if (argc > 1)
		batches = (unsigned)strtoul(argv[1], NULL, 10);
	if (argc > 2)
		seed = strtoull(argv[2], NULL, 10);
	for (unsigned i = 0; i < 3; i++) {
		const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_ends_once)};

		if (argc > 3 && strcmp(argv[3], transports[i]) != 0)
			continue;
		transport = transports[i];
		printf("--- %s ---\n", transport);
		failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);
	}
	return failed;
}

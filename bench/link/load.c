/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that keep operations in flight over their share of the channels, up to IN_FLIGHT each. One that has no
 * room waits until half of them are over. Messages end locally and are counted at the far end; puts end there.
 *
 * Threads: as many as the load says, started together.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"

#define IN_FLIGHT 256u

typedef struct worker {
	const load *l;
	unsigned index;
	uint64_t end_ns, ops;
	pthread_barrier_t *start;
	pthread_t thread;
} worker;

static tern_status submit(const load *l, unsigned index, tern_channel *channel, tern_op *op)
{
	uint8_t *src = l->src + index * l->bytes;

	return l->op == LOAD_SEND ? tern_send(channel, src, l->bytes, op)
				  : tern_put(channel, src, l->bytes, l->key, index * l->bytes, op);
}

static void finish(tern_ctx *ctx, tern_op *op)
{
	must(tern_op_wait(ctx, op, PATIENCE_NS), "an operation");
}

static void *work(void *arg)
{
	worker *w = arg;
	const load *l = w->l;
	tern_ctx *ctx = l->n->ctx;
	uint64_t share = l->count / l->threads ? l->count / l->threads : 1;
	tern_channel **own = l->channels + (w->index * share) % l->count;
	const unsigned room = IN_FLIGHT;
	tern_op ops[IN_FLIGHT] = {0};
	uint64_t begun = 0, ended = 0;

	pthread_barrier_wait(w->start);
	while ((begun & 15) || now_ns() < w->end_ns) {
		tern_status status;

		if (begun - ended == room) {
			finish(ctx, &ops[(ended + room / 2 - 1) % room]);
			for (unsigned i = 0; i < room / 2; i++)
				finish(ctx, &ops[ended++ % room]);
		}
		status = submit(l, w->index, own[begun % share], &ops[begun % room]);
		if (status == TERN_OK)
			begun++;
		else if (status != TERN_AGAIN)
			must(status, "submit");
		else if (ended < begun)
			finish(ctx, &ops[ended++ % room]);
		else
			tern_ctx_wait(ctx, 1000000);
	}
	while (ended < begun)
		finish(ctx, &ops[ended++ % room]);
	w->ops = begun;
	return NULL;
}

static uint64_t switches(const struct rusage *r)
{
	return (uint64_t)r->ru_nvcsw + (uint64_t)r->ru_nivcsw;
}

static double cpu_seconds(const struct rusage *r)
{
	return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) +
	       1e-6 * (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec);
}

/* All that was sent is there. */
static void await_messages(node *n, uint64_t total)
{
	uint64_t end = now_ns() + PATIENCE_NS;
	facts f;

	for (facts_there(n, &f); f.messages < total; facts_there(n, &f)) {
		if (now_ns() > end) {
			fprintf(stderr, "bench-link: %llu of %llu messages arrived\n",
				(unsigned long long)f.messages, (unsigned long long)total);
			exit(1);
		}
		sleep_ns(50000);
	}
}

load_result load_run(const load *l)
{
	worker *w = calloc(l->threads, sizeof(*w));
	struct rusage before, after;
	pthread_barrier_t start;
	load_result result = {0};
	uint64_t from, least = UINT64_MAX, most = 0;
	facts f;

	if (!w)
		must(TERN_E_NOMEM, "threads");
	facts_there(l->n, &f);
	pthread_barrier_init(&start, NULL, l->threads);
	getrusage(RUSAGE_SELF, &before);
	from = now_ns();
	for (unsigned i = 0; i < l->threads; i++) {
		w[i] = (worker){.l = l, .index = i, .end_ns = from + l->ms * 1000000, .start = &start};
		if (pthread_create(&w[i].thread, NULL, work, &w[i]) != 0)
			must(TERN_E_NOMEM, "a thread");
	}
	for (unsigned i = 0; i < l->threads; i++) {
		pthread_join(w[i].thread, NULL);
		result.ops += w[i].ops;
		most = w[i].ops > most ? w[i].ops : most;
		least = w[i].ops < least ? w[i].ops : least;
	}
	result.least = (double)least * l->threads / (double)result.ops;
	result.most = (double)most * l->threads / (double)result.ops;
	getrusage(RUSAGE_SELF, &after);
	if (l->op == LOAD_SEND)
		await_messages(l->n, f.messages + result.ops);
	result.seconds = 1e-9 * (double)(now_ns() - from);
	result.cpu_seconds = cpu_seconds(&after) - cpu_seconds(&before);
	result.switches = switches(&after) - switches(&before);
	pthread_barrier_destroy(&start);
	free(w);
	return result;
}

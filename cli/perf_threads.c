/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf --threads N`: puts from 1, 2, 4, ... N threads over one link, each on a channel of its own and
 * from memory that it allocates itself, and what that costs the context: queue pairs (lanes) and registrations
 * must not depend on the number of threads.
 *
 * Threads: main starts the others and joins them before it prints. Tests: tests/e2e/perf_test.py.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "perf.h"

#define PUT_BYTES 4096u /* of each thread, into the peer's one page for all: nobody reads it */

typedef struct worker {
	perf_bench *b;
	pthread_t thread;
	uint64_t end_ns, puts;
	bool failed;
} worker;

typedef struct cost {
	uint64_t threads, puts;
	double seconds;
	uint64_t lanes, registrations, extents;
} cost;

static bool put_for_a_while(worker *w, tern_channel *channel, uint8_t *buf)
{
	perf_bench *b = w->b;

	do {
		tern_op op;
		tern_status status;

		tern_op_init(&op, NULL, NULL);
		while ((status = tern_put(channel, buf, PUT_BYTES, &b->side.peer.data, 0, &op)) == TERN_AGAIN)
			tern_ctx_wait(b->side.ctx, 100000);
		if (status != TERN_OK || tern_op_wait(b->side.ctx, &op, 0) != TERN_OK) {
			fprintf(stderr, "tern perf: put: %s\n", tern_detail());
			return false;
		}
		w->puts++;
	} while (perf_now_ns() < w->end_ns);
	return true;
}

static void *work(void *arg)
{
	worker *w = arg;
	tern_mem *mem = tern_ctx_mem(w->b->side.ctx);
	tern_channel_params params = {0};
	tern_channel *channel;
	void *buf;

	w->failed = true;
	if (tern_mem_alloc(mem, PUT_BYTES, 64, TERN_ACCESS_NONE, TERN_MEM_HOST, &buf) != TERN_OK) {
		fprintf(stderr, "tern perf: no memory: %s\n", tern_detail());
		return NULL;
	}
	memset(buf, 3, PUT_BYTES);
	if (tern_channel_open(w->b->link, PERF_THREAD, &params, &channel) != TERN_OK) {
		fprintf(stderr, "tern perf: cannot open a channel: %s\n", tern_detail());
		return NULL;
	}
	w->failed = !put_for_a_while(w, channel, buf);
	tern_channel_close(channel);
	tern_mem_free(mem, buf);
	return NULL;
}

static cost measure(perf_bench *b, unsigned threads)
{
	static worker workers[PERF_THREADS_MAX];
	tern_ctx *ctx = b->side.ctx;
	cost c = {.threads = threads};
	uint64_t t = perf_now_ns();
	bool failed = false;

	for (unsigned i = 0; i < threads; i++) {
		workers[i] = (worker){.b = b, .end_ns = t + b->o->round_ns};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
			fprintf(stderr, "tern perf: cannot start thread %u\n", i);
			exit(1);
		}
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		c.puts += workers[i].puts;
		failed = failed || workers[i].failed;
	}
	if (failed)
		exit(1);
	c.seconds = (double)(perf_now_ns() - t) * 1e-9;
	/* The gauge of the provider in use; others have none. */
	c.lanes = tern_ctx_counter(ctx, b->kind == PERF_KIND_VERBS ? "verbs.lanes"
					: b->kind == PERF_KIND_TCP ? "tcp.lanes"
								   : "shm.lanes");
	c.registrations = tern_ctx_counter(ctx, "mem.registrations");
	c.extents = tern_ctx_counter(ctx, "mem.extents");
	return c;
}

static void print_cost(const perf_bench *b, json *j, const cost *c)
{
	if (!b->o->json) {
		printf("%7llu  %12.1f  %6llu  %13llu  %7llu\n", (unsigned long long)c->threads,
		       (double)c->puts / c->seconds, (unsigned long long)c->lanes,
		       (unsigned long long)c->registrations, (unsigned long long)c->extents);
		fflush(stdout);
		return;
	}
	json_object(j, NULL);
	json_u64(j, "threads", c->threads);
	json_real(j, "puts_per_s", (double)c->puts / c->seconds);
	json_u64(j, "lanes", c->lanes);
	json_u64(j, "registrations", c->registrations);
	json_u64(j, "extents", c->extents);
	json_object_end(j);
}

void perf_threads(perf_bench *b)
{
	json j;

	json_init(&j, stdout);
	if (b->o->json) {
		json_object(&j, NULL);
		json_string(&j, "transport", tern_link_transport(b->link));
		json_array(&j, "threads");
	} else {
		printf("transport %s (%s), puts of %u bytes\n", tern_link_transport(b->link),
		       tern_link_transport_reason(b->link), PUT_BYTES);
		printf("%7s  %12s  %6s  %13s  %7s\n", "threads", "puts/s", "lanes", "registrations",
		       "extents");
	}
	for (unsigned n = 1;; n = 2 * n < b->o->threads ? 2 * n : (unsigned)b->o->threads) {
		cost c = measure(b, n);

		print_cost(b, &j, &c);
		if (n >= b->o->threads)
			break;
	}
	if (b->o->json) {
		json_array_end(&j);
		json_object_end(&j);
		putchar('\n');
	}
}

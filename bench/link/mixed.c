/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency of small calls, alone and beside bulk puts that another thread paces to a share of what it reaches
 * alone. The aim: P99 beside bulk is at most P99 alone plus the time of two chunks, all of one run.
 *
 * Calls are paced too: back to back they would measure how a scheduler shares two cores among three busy threads.
 * Where the machine itself stands still (bench/stalls.h) a call waits for that, and then while bulk makes up for it: P99 is told
 * without those calls, too.
 *
 * Threads: main calls, one puts.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"
#include "stalls.h"

typedef struct bulk {
	node *n;
	tern_channel *channel;
	tern_key key;
	uint8_t *src;
	double rate; /* bytes per second to keep to; 0 = as fast as it goes */
	atomic_bool stop;
	uint64_t bytes;
	double seconds;
	pthread_t thread;
} bulk;

static void *put_bulk(void *arg)
{
	bulk *b = arg;
	tern_op op[2] = {{0}};
	uint64_t from = now_ns(), puts = 0, size = b->n->o->bulk_bytes;

	b->bytes = 0;
	for (; !atomic_load(&b->stop); puts++) {
		tern_status status;

		if (b->rate > 0) {
			uint64_t at = from + (uint64_t)(1e9 * (double)(puts * size) / b->rate),
				 now = now_ns();

			if (now < at)
				sleep_ns(at - now);
		}
		if (puts >= 2)
			must(tern_op_wait(b->n->ctx, &op[puts % 2], PATIENCE_NS), "a put");
		while ((status = tern_put(b->channel, b->src, size, &b->key, 0, &op[puts % 2])) == TERN_AGAIN)
			tern_ctx_wait(b->n->ctx, 1000000);
		must(status, "put");
		b->bytes += size;
	}
	for (uint64_t i = puts < 2 ? puts : 2; i > 0; i--)
		must(tern_op_wait(b->n->ctx, &op[(puts - i) % 2], PATIENCE_NS), "a put");
	b->seconds = 1e-9 * (double)(now_ns() - from);
	return NULL;
}

static void bulk_start(bulk *b, double rate)
{
	b->rate = rate;
	atomic_store(&b->stop, false);
	if (pthread_create(&b->thread, NULL, put_bulk, b) != 0)
		must(TERN_E_NOMEM, "a thread");
}

/* Bytes per second. */
static double bulk_end(bulk *b)
{
	atomic_store(&b->stop, true);
	pthread_join(b->thread, NULL);
	return (double)b->bytes / b->seconds;
}

/*
 * The calling thread is to run as soon as it has something to do, also when both cores are busy with bulk: without
 * that a call waits for the end of a time slice, milliseconds. Kernels before 6.12 ignore it.
 */
void ask_for_short_slices(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = {.size = sizeof(attr), .nice = getpriority(PRIO_PROCESS, 0), .runtime = 100000};

	if (sched_getscheduler(0) == SCHED_OTHER)
		syscall(SYS_sched_setattr, 0, &attr, 0u);
}

typedef struct latency {
	double p50, p99, p999;
	double free99, free; /* P99 of the calls that no stall delayed; their share of all */
	uint64_t calls;
} latency;

/* Of the calls that met no stall of the machine, and none of what had gathered in one. */
static void without_stalls(const mixed *m, const double *us, const uint64_t *begun, double linger, latency *l)
{
	static double kept[CALLS_MAX];
	uint64_t n = 0;

	sleep_ns(20000000); /* a stall is told when it is over */
	for (uint64_t i = 0; i < l->calls; i++)
		if (!stalls_met(m->stalls, begun[i], begun[i] + (uint64_t)(1e3 * us[i]), linger))
			kept[n++] = us[i];
	l->free = (double)n / (double)l->calls;
	l->free99 = n ? percentile(kept, n, 0.99) : 0;
}

/* linger: bulk makes up for a stall for so many times its length. */
static latency call_for(const mixed *m, uint64_t ms, double linger)
{
	static uint8_t args[1 << 20], answer[1 << 20];
	static uint64_t begun[CALLS_MAX];
	const node *n = m->n;
	tern_rpc_call_params params = {.method = METHOD_ECHO,
				       .args = args,
				       .args_bytes = n->o->bytes,
				       .answer = answer,
				       .answer_capacity = sizeof(answer)};
	uint64_t from = now_ns(), at = from, calls = 0;
	double *us = m->us;
	latency result;

	while (at < from + ms * 1000000 && calls < CALLS_MAX) {
		uint64_t before = now_ns();

		must(tern_rpc_call_wait(n->rpc, &params, PATIENCE_NS, NULL), "a call");
		begun[calls] = before;
		us[calls++] = 1e-3 * (double)(now_ns() - before);
		at = now_ns();
		if (at < before + n->o->pace_us * 1000) {
			sleep_ns(before + n->o->pace_us * 1000 - at);
			at = now_ns();
		}
	}
	result = (latency){.calls = calls};
	if (m->stalls)
		without_stalls(m, us, begun, linger, &result);
	result.p50 = percentile(us, calls, 0.5);
	result.p99 = percentile(us, calls, 0.99);
	result.p999 = percentile(us, calls, 0.999);
	return result;
}

void mixed_begin(mixed *m, node *n)
{
	*m = (mixed){.n = n, .us = malloc(CALLS_MAX * sizeof(*m->us))};
	if (!m->us)
		must(TERN_E_NOMEM, "samples");
	m->channel = node_open(n, SERVICE_SINK, NULL);
	m->key = node_target(n, n->o->bulk_bytes);
	m->src = node_memory(n, n->o->bulk_bytes);
	ask_for_short_slices();
	call_for(m, 50, 0);
}

void mixed_end(mixed *m)
{
	tern_channel_close(m->channel);
	tern_mem_free(tern_ctx_mem(m->n->ctx), m->src);
	free(m->us);
}

mixed_round mixed_measure(mixed *m)
{
	const options *o = m->n->o;
	bulk b = {.n = m->n, .channel = m->channel, .key = m->key, .src = m->src};
	mixed_round r;
	double share = (double)o->share / 100;
	latency l = call_for(m, o->ms, 0);

	r = (mixed_round){.alone50 = l.p50,
			  .alone99 = l.p99,
			  .alone999 = l.p999,
			  .alone_free99 = l.free99,
			  .alone_free = l.free};
	bulk_start(&b, 0);
	sleep_ns(o->ms * 1000000);
	r.rate = bulk_end(&b);
	bulk_start(&b, r.rate * share);
	l = call_for(m, o->ms, share < 1 ? share / (1 - share) : 0);
	r.paced = bulk_end(&b) / r.rate;
	r.beside50 = l.p50;
	r.beside99 = l.p99;
	r.beside999 = l.p999;
	r.beside_free99 = l.free99;
	r.beside_free = l.free;
	r.calls = l.calls;
	return r;
}

#define COLUMN(field) column(r, rounds, offsetof(mixed_round, field))

static double column(const mixed_round *r, unsigned rounds, size_t at)
{
	double v[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++)
		v[i] = *(const double *)(const void *)((const char *)&r[i] + at);
	return median(v, rounds);
}

/* How much later than alone, in chunks of the round's own rate. */
static double excess(const mixed_round *r, unsigned rounds, double chunk)
{
	double v[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++)
		v[i] = (r[i].beside99 - r[i].alone99) / (1e6 * chunk / r[i].rate);
	return median(v, rounds);
}

static void report_stalls(const mixed *m, const mixed_round *r, unsigned rounds, double chunk_us)
{
	double alone = COLUMN(alone_free99), beside = COLUMN(beside_free99);

	if (!m->stalls) {
		report_text("stalls of the machine", "not told apart: no right to SCHED_FIFO");
		return;
	}
	report_number("calls without a stall: alone", COLUMN(alone_free) * 100, "% of them");
	report_number("calls without a stall: beside bulk", COLUMN(beside_free) * 100, "% of them");
	report_number("their P99 alone", alone, "us");
	report_number("their P99 beside bulk", beside, "us");
	report_text("holds without stalls", beside > 0 && beside <= alone + 2 * chunk_us ? "yes" : "no");
}

int case_mixed(const options *o)
{
	mixed_round r[ROUNDS_MAX];
	unsigned rounds = (unsigned)o->rounds, calls = 0;
	double chunk = (double)chunk_bytes(o), chunk_us, bound;
	double bare_alone[ROUNDS_MAX], bare_beside[ROUNDS_MAX];
	mixed m;
	node n;
	bare b;

	report_begin(o, "mixed");
	bare_start(o, &b);
	node_start(o, &n);
	mixed_begin(&m, &n);
	m.stalls = stalls_start();
	for (unsigned i = 0; i < rounds; i++) {
		bare_measure(&b, o, m.us, &bare_alone[i], &bare_beside[i]);
		r[i] = mixed_measure(&m);
		calls += (unsigned)r[i].calls;
	}
	chunk_us = 1e6 * chunk / COLUMN(rate);
	bound = COLUMN(alone99) + 2 * chunk_us;
	report_number("bytes of a call", (double)o->bytes, "");
	report_number("bytes of a put", (double)o->bulk_bytes, "");
	report_number("calls beside bulk", calls, "");
	report_number("bulk alone", COLUMN(rate) * 1e-9, "GB/s");
	report_number("bulk beside calls", COLUMN(paced) * 100, "% of that");
	report_number("chunk", chunk, "B");
	report_number("chunk time", chunk_us, "us");
	report_number("P50 alone", COLUMN(alone50), "us");
	report_number("P50 beside bulk", COLUMN(beside50), "us");
	report_number("P99 alone", COLUMN(alone99), "us");
	report_number("P99 beside bulk", COLUMN(beside99), "us");
	report_number("P99.9 alone", COLUMN(alone999), "us");
	report_number("P99.9 beside bulk", COLUMN(beside999), "us");
	report_number("bound: P99 alone + 2 chunks", bound, "us");
	report_number("P99 beside - alone", excess(r, rounds, chunk), "chunks (at most 2)");
	report_number("bare wake-ups: P99 alone", median(bare_alone, rounds), "us");
	report_number("bare wake-ups: P99 beside bulk", median(bare_beside, rounds), "us");
	report_text("holds", COLUMN(beside99) <= bound ? "yes" : "no");
	report_stalls(&m, r, rounds, chunk_us);
	report_end();
	stalls_stop(m.stalls);
	mixed_end(&m);
	node_stop(&n);
	bare_stop(&b);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: the operations of the initiator and how they are timed. Must not know limits or output.
 * Threads: main (and the context's helper with --block). Tests: tests/e2e/perf_test.py.
 */
#include <stdio.h>
#include <stdlib.h>

#include "perf.h"

void perf_die(const char *what)
{
	fprintf(stderr, "tern perf: %s: %s\n", what, tern_detail());
	exit(1);
}

void perf_await_op(perf_bench *b, tern_op *op, const char *what)
{
	tern_status status;

	if (b->o->spin)
		while ((status = tern_op_test(op)) == TERN_AGAIN)
			tern_ctx_progress(b->side.ctx);
	else
		status = tern_op_wait(b->side.ctx, op, 0);
	if (status != TERN_OK)
		perf_die(what);
}

/* ---- one measurement each: `per` operations, nanoseconds per operation ---- */

/* A flag wakes nobody. */
static bool by_flag(const perf_bench *b, perf_op op)
{
	return op == PERF_PUT && b->o->spin;
}

static bool needs_pong(perf_op op)
{
	return op == PERF_PUT || op == PERF_NOTIFY;
}

static void start_pong(perf_bench *b, perf_op kind, uint64_t bytes, uint64_t rounds, tern_op *op)
{
	bool flag = by_flag(b, kind);
	perf_job job = {.kind = flag ? PERF_JOB_PONG_FLAG : PERF_JOB_PONG_NOTIFY,
			.spin = b->o->spin,
			.bytes = bytes,
			.rounds = rounds,
			.first = (flag ? b->flags : b->notifies) + 1};
	tern_rpc_call_params call = {.method = PERF_METHOD_JOB, .args = &job, .args_bytes = sizeof(job)};
	tern_status status;

	tern_op_init(op, NULL, NULL);
	op->timeout_ns = 600000000000ull;
	while ((status = tern_rpc_call(b->rpc, &call, op)) == TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		perf_die("cannot start the ping-pong");
}

static void ping(perf_bench *b, uint64_t bytes, bool flag)
{
	uint64_t value = flag ? ++b->flags : ++b->notifies;
	tern_op op;

	if (!perf_put(&b->side, bytes, value, flag, &op) || !perf_await_put(&b->side, value, flag))
		perf_die("put");
	perf_await_op(b, &op, "put");
}

static void ping_put(perf_bench *b, uint64_t bytes)
{
	ping(b, bytes, by_flag(b, PERF_PUT));
}

static void ping_notify(perf_bench *b, uint64_t bytes)
{
	ping(b, bytes, false);
}

static void ping_send(perf_bench *b, uint64_t bytes)
{
	uint64_t want = b->echoes + 1;
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	b->side.out[0] = 2;
	while ((status = tern_send(b->side.channel, b->side.out, bytes, &op)) == TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		perf_die("send");
	while (b->echoes != want) {
		if (b->o->spin)
			tern_ctx_progress(b->side.ctx);
		else
			tern_ctx_wait(b->side.ctx, 10000000);
		if (tern_link_status(b->link) != TERN_OK)
			perf_die("send");
	}
	perf_await_op(b, &op, "send");
}

static void one_get(perf_bench *b, uint64_t bytes)
{
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	while ((status = tern_get(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, &op)) ==
	       TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		perf_die("get");
	perf_await_op(b, &op, "get");
}

static void one_call(perf_bench *b, uint64_t bytes)
{
	tern_rpc_call_params call = {.method = PERF_METHOD_ECHO,
				     .args = b->side.out,
				     .args_bytes = bytes,
				     .answer = b->side.data,
				     .answer_capacity = b->side.bytes};
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	while ((status = tern_rpc_call(b->rpc, &call, &op)) == TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		perf_die("call");
	perf_await_op(b, &op, "call");
}

static void (*const run[])(perf_bench *, uint64_t) = {ping_put, ping_notify, one_get, ping_send, one_call};

/* So many operations in groups where reading the clock would weigh in; a sample is the mean of a group. */
static void run_ops(perf_bench *b, perf_op op, uint64_t bytes, uint64_t total, unsigned group)
{
	double half = needs_pong(op) || op == PERF_SEND ? 2 : 1;

	b->count = 0;
	for (uint64_t done = 0; done < total; done += group) {
		uint64_t t = perf_now_ns();

		for (unsigned i = 0; i < group; i++)
			run[op](b, bytes);
		b->samples[b->count++] = (double)(perf_now_ns() - t) / (group * half);
		if (b->o->spin) /* no helper: keepalives are ours, and one-sided operations make no progress */
			tern_ctx_progress(b->side.ctx);
	}
}

static void run_some(perf_bench *b, perf_op op, uint64_t bytes, uint64_t total, unsigned group)
{
	perf_pong *pong = &b->side.pong;
	tern_op job;

	if (needs_pong(op))
		start_pong(b, op, bytes, total, &job);
	if (op == PERF_NOTIFY && b->o->spin) {
		pong->samples = b->samples;
		pong->count_max = PERF_SAMPLES_MAX;
		pong->count = 0;
		if (!perf_pong_run(&b->side, bytes, total, true))
			perf_die("put");
		b->count = pong->count;
	} else {
		run_ops(b, op, bytes, total, group);
	}
	if (needs_pong(op))
		perf_await_op(b, &job, "put");
}

void perf_sample(perf_bench *b, perf_op op, uint64_t bytes)
{
	unsigned group = b->kind == PERF_KIND_SHM && b->o->spin && bytes <= 4096 ? 16 : 1;
	uint64_t most = PERF_SAMPLES_MAX * (uint64_t)group;
	uint64_t t = perf_now_ns(), total;

	run_some(b, op, bytes, 32, group);
	total = b->o->round_ns / ((perf_now_ns() - t) / 32 + 1);
	total = total < 32 ? 32 : total > most ? most : total;
	run_some(b, op, bytes, total - total % group, group);
}

/*
 * Puts of a channel arrive in order: when the last is complete at the target, so are all. The others end when
 * their source is free again, which costs no answer of the peer's where the device has none of its own.
 */
static bool submit(perf_bench *b, perf_op op, uint64_t bytes, bool last, tern_op *t)
{
	tern_status status;

	tern_op_init(t, NULL, NULL);
	t->flags = needs_pong(op) && !last ? TERN_OP_LOCAL : TERN_OP_REMOTE;
	if (needs_pong(op))
		status = tern_put(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, t);
	else if (op == PERF_GET)
		status = tern_get(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, t);
	else
		status = tern_send(b->side.channel, b->side.out, bytes, t);
	if (status != TERN_OK && status != TERN_AGAIN)
		perf_die(perf_op_names[op]);
	return status == TERN_OK;
}

/* As perftest's server does: where the target has nothing to do in a stream, it does not spin beside it. */
static void let_target(perf_bench *b, perf_op op, uint32_t kind)
{
	perf_job job = {.kind = kind};
	tern_rpc_call_params call = {.method = PERF_METHOD_JOB, .args = &job, .args_bytes = sizeof(job)};

	if (b->o->spin && b->side.passive && op != PERF_SEND &&
	    tern_rpc_call_wait(b->rpc, &call, 10000000000ull, NULL) != TERN_OK)
		perf_die("the target did not answer");
}

static double stream(perf_bench *b, perf_op op, uint64_t bytes)
{
	static tern_op ops[PERF_IN_FLIGHT];
	unsigned depth = b->kind == PERF_KIND_VERBS ? PERF_IN_FLIGHT : 16;
	uint64_t total = (b->kind == PERF_KIND_VERBS ? PERFTEST_BYTES : 64ull << 20) / bytes + 1;
	uint64_t head = 0, tail = 0, t;

	if (total > 20000)
		total = 20000;
	if (total < 4)
		total = 4;
	if (op == PERF_SEND)
		b->side.out[0] = PERF_NO_ECHO;
	t = perf_now_ns();
	while (tail < total) {
		while (head < total && head - tail < depth &&
		       submit(b, op, bytes, head + 1 == total, &ops[head % depth]))
			head++;
		if (b->o->spin && tail % 64 == 0)
			tern_ctx_progress(b->side.ctx);
		if (head > tail && tern_op_test(&ops[tail % depth]) != TERN_AGAIN)
			perf_await_op(b, &ops[tail++ % depth], perf_op_names[op]);
		else if (b->o->spin || head == tail)
			tern_ctx_progress(b->side.ctx);
		else
			perf_await_op(b, &ops[tail++ % depth], perf_op_names[op]);
	}
	return (double)bytes * (double)total / (double)(perf_now_ns() - t);
}

double perf_stream(perf_bench *b, perf_op op, uint64_t bytes)
{
	double rate;

	let_target(b, op, PERF_JOB_REST);
	rate = stream(b, op, bytes);
	let_target(b, op, PERF_JOB_SPIN);
	return rate;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: memory, flags and the target process. The target has no logic of its own: it echoes messages
 * and calls, and runs the other half of a flagged ping-pong when it is told to.
 *
 * Both sides drive progress themselves when they spin; when they block, a wait takes the role from the helper
 * thread. Threads: main, and the helper when blocking.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

uint64_t perf_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void perf_pin(int core)
{
	cpu_set_t set;

	if (core < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

bool perf_side_init(perf_side *side, tern_ctx *ctx, uint64_t bytes)
{
	tern_mem *mem = tern_ctx_mem(ctx);
	void *data, *out, *flag;

	*side = (perf_side){.ctx = ctx, .bytes = bytes};
	if (tern_mem_alloc(mem, bytes, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &data) !=
		    TERN_OK ||
	    tern_mem_alloc(mem, bytes, 4096, TERN_ACCESS_NONE, TERN_MEM_HOST, &out) != TERN_OK ||
	    tern_mem_alloc(mem, 4096, 4096, TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &flag) !=
		    TERN_OK)
		return false;
	memset(data, 1, bytes);
	memset(out, 2, bytes);
	memset(flag, 0, 4096);
	side->data = data;
	side->out = out;
	side->flag = flag;
	side->mine.bytes = bytes;
	return tern_mem_export(mem, data, bytes, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &side->mine.data) ==
		       TERN_OK &&
	       tern_mem_export(mem, flag, 4096, TERN_ACCESS_WRITE, &side->mine.flag) == TERN_OK;
}

/* ---- a ping-pong of notifications ---- */

static void pong_answer(perf_side *side)
{
	perf_pong *p = &side->pong;
	tern_op *op = &p->ops[p->next % PERF_PONG_OPS];
	tern_status status = tern_put_notify(side->channel, side->out, p->bytes, &side->peer.data, 0, 0, op);

	if (status == TERN_E_STATE && tern_op_test(op) == TERN_AGAIN)
		status = TERN_AGAIN; /* all operations are under way: the loop tries again */
	p->owed = status == TERN_AGAIN;
	p->failed = p->failed || (status != TERN_OK && status != TERN_AGAIN);
	if (status == TERN_OK) {
		p->answers--;
		p->next++;
	}
}

static void pong_take_time(perf_pong *p)
{
	uint64_t now = perf_now_ns();

	if (p->count < p->count_max)
		p->samples[p->count++] = (double)(now - p->last_ns) / 2;
	p->last_ns = now;
}

bool perf_pong_run(perf_side *side, uint64_t bytes, uint64_t rounds, bool first)
{
	perf_pong *p = &side->pong;

	for (unsigned i = 0; i < PERF_PONG_OPS; i++) {
		tern_op_init(&p->ops[i], NULL, NULL);
		p->ops[i].flags = TERN_OP_LOCAL;
	}
	p->bytes = bytes;
	p->answers = rounds;
	p->failed = false;
	p->last_ns = perf_now_ns();
	p->left = rounds;
	p->owed = first;
	if (p->early > 0) {
		p->early--;
		p->left--;
		p->owed = true;
	}
	for (unsigned polls = 1; p->left > 0 || p->answers > 0; polls++) {
		if (p->owed)
			pong_answer(side);
		tern_ctx_progress(side->ctx);
		if (p->failed ||
		    (polls % 4096 == 0 && tern_link_status(tern_channel_link(side->channel)) != TERN_OK))
			return false;
	}
	/* What is not inline is the device's until it says so. */
	for (unsigned i = 0; i < PERF_PONG_OPS; i++)
		while (tern_op_test(&p->ops[i]) == TERN_AGAIN)
			tern_ctx_progress(side->ctx);
	return true;
}

void perf_on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	perf_side *side = arg;
	perf_pong *p = &side->pong;

	(void)channel, (void)value, (void)bytes;
	__atomic_store_n(&side->notified, side->notified + 1, __ATOMIC_RELEASE); /* callbacks never overlap */
	if (p->left == 0) {
		p->early++;
		return;
	}
	p->left--;
	if (p->answers > 0)
		pong_answer(side);
	/* While the answer is under way the clock costs nothing. */
	if (p->samples)
		pong_take_time(p);
}

/* ---- one put ---- */

static bool await_flag(perf_side *side, uint64_t value)
{
	for (unsigned polls = 1; __atomic_load_n(side->flag, __ATOMIC_ACQUIRE) < value; polls++) {
		/* A passive target's memory changes without our help; look after the links now and then. */
		if (!side->passive || polls % 4096 == 0)
			tern_ctx_progress(side->ctx);
		if (polls % 4096 == 0 && tern_link_status(tern_channel_link(side->channel)) != TERN_OK)
			return false;
	}
	return true;
}

bool perf_await_put(perf_side *side, uint64_t value, bool flag)
{
	if (flag)
		return await_flag(side, value);
	for (;;) {
		uint64_t seen = tern_ctx_events(side->ctx);

		if (__atomic_load_n(&side->notified, __ATOMIC_ACQUIRE) >= value)
			break;
		if (tern_link_status(tern_channel_link(side->channel)) != TERN_OK)
			return false;
		tern_ctx_wait_past(side->ctx, seen, 1000000000);
	}
	return true;
}

bool perf_put(perf_side *side, uint64_t bytes, uint64_t value, bool flag, tern_op *op)
{
	tern_status status;

	tern_op_init(op, NULL, NULL);
	op->flags = TERN_OP_LOCAL;
	do {
		if (flag)
			status = tern_put_flag(side->channel, side->out, bytes == 8 ? 0 : bytes,
					       &side->peer.data, 0, value, &side->peer.flag, 0, op);
		else
			status = tern_put_notify(side->channel, side->out, bytes, &side->peer.data, 0, 0, op);
		if (status == TERN_AGAIN)
			tern_ctx_progress(side->ctx);
	} while (status == TERN_AGAIN);
	return status == TERN_OK;
}

/* ---- target ---- */

typedef struct target {
	perf_side side;
	perf_job job;
	tern_rpc_request *request; /* the job's, answered when it is done */
	bool spin, rest, gone;
} target;

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	static tern_op ops[16];
	static unsigned next;
	target *t = arg;
	tern_op *op;

	/* Ping-pong has one message in flight; a stream, marked by its first byte, is not echoed. */
	if (bytes > t->side.bytes)
		return;
	if (bytes && *(const uint8_t *)msg == PERF_NO_ECHO)
		return;
	op = &ops[next++ % 16];
	if (tern_op_test(op) == TERN_AGAIN)
		return;
	tern_op_init(op, NULL, NULL);
	tern_send(channel, t->side.out, bytes, op); /* not msg, which is good during this call only */
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	perf_on_notify(channel, value, bytes, &((target *)arg)->side);
}

static void on_closed(tern_channel *channel, tern_status status, void *arg)
{
	target *t = arg;

	(void)channel;
	(void)status;
	t->gone = true;
}

static void on_echo(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	(void)arg;
	tern_rpc_reply(request, TERN_OK, args, bytes);
}

static void on_ready(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	target *t = arg;

	if (bytes != sizeof(perf_hello)) {
		tern_rpc_reply(request, TERN_E_INVALID, NULL, 0);
		return;
	}
	memcpy(&t->side.peer, args, bytes);
	tern_rpc_reply(request, TERN_OK, &t->side.mine, sizeof(t->side.mine));
}

static void on_job(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	target *t = arg;

	if (bytes != sizeof(perf_job) || __atomic_load_n(&t->request, __ATOMIC_ACQUIRE)) {
		tern_rpc_reply(request, TERN_E_INVALID, NULL, 0);
		return;
	}
	memcpy(&t->job, args, bytes);
	__atomic_store_n(&t->request, request, __ATOMIC_RELEASE);
}

static void answer_puts(target *t, bool flag)
{
	const perf_job *job = &t->job;
	tern_op op;

	for (uint64_t i = 0; i < job->rounds; i++) {
		if (!perf_await_put(&t->side, job->first + i, flag) ||
		    !perf_put(&t->side, job->bytes, job->first + i, flag, &op))
			break;
		if (flag && i % 64 == 0) /* no helper: keepalives are ours */
			tern_ctx_progress(t->side.ctx);
		while (flag && tern_op_test(&op) == TERN_AGAIN)
			tern_ctx_progress(t->side.ctx);
		if (!flag && tern_op_wait(t->side.ctx, &op, 0) != TERN_OK)
			break;
	}
}

static void run_job(target *t)
{
	tern_rpc_request *request = t->request;
	const perf_job *job = &t->job;

	t->rest = job->kind == PERF_JOB_REST;
	if (job->kind == PERF_JOB_PONG_NOTIFY && job->spin)
		perf_pong_run(&t->side, job->bytes, job->rounds, false);
	else if (job->kind == PERF_JOB_PONG_NOTIFY || job->kind == PERF_JOB_PONG_FLAG)
		answer_puts(t, job->kind == PERF_JOB_PONG_FLAG);
	t->gone = job->kind == PERF_JOB_EXIT;
	__atomic_store_n(&t->request, NULL, __ATOMIC_RELEASE);
	tern_rpc_reply(request, TERN_OK, NULL, 0);
}

static void on_thread_closed(tern_channel *channel, tern_status status, void *arg)
{
	(void)status, (void)arg;
	tern_channel_close(channel);
}

/* Channels of --threads: one-sided traffic alone. */
static tern_status on_thread_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	(void)channel, (void)arg;
	*params = (tern_channel_params){.on_closed = on_thread_closed};
	return TERN_OK;
}

static int target_failed(const char *what)
{
	fprintf(stderr, "tern perf (target): %s: %s\n", what, tern_detail());
	return 1;
}

int perf_target(const char *address, uint64_t bytes, const char *transport, bool spin, int core)
{
	tern_ctx_params params = {.name = "perf target",
				  .listen = "",
				  .transports = transport,
				  .flags = spin ? TERN_CTX_SINGLE_OWNER : 0};
	tern_channel_params channel = {.on_message = on_message,
				       .on_notify = on_notify,
				       .on_closed = on_closed,
				       .message_bytes_max = bytes + 64};
	tern_connect_params connect = {.timeout_ns = 10000000000ull};
	target *t = calloc(1, sizeof(*t));
	tern_link *link;
	tern_ctx *ctx;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	perf_pin(core);
	if (!t || tern_ctx_create(&params, &ctx) != TERN_OK)
		return target_failed("cannot make a context");
	if (!perf_side_init(&t->side, ctx, bytes))
		return target_failed("no memory");
	t->spin = spin;
	channel.arg = t;
	tern_rpc_serve(ctx, PERF_METHOD_READY, on_ready, t);
	tern_rpc_serve(ctx, PERF_METHOD_JOB, on_job, t);
	tern_rpc_serve(ctx, PERF_METHOD_ECHO, on_echo, t);
	if (tern_ctx_listen(ctx, PERF_THREAD, on_thread_open, NULL) != TERN_OK)
		return target_failed("cannot listen");
	if (tern_link_connect(ctx, address, &connect, &link) != TERN_OK || tern_link_wait(link, 0) != TERN_OK)
		return target_failed("cannot connect");
	t->side.passive = (tern_link_caps(link) & TERN_LINK_CAN_PASSIVE) != 0;
	if (tern_channel_open(link, PERF_SERVICE, &channel, &t->side.channel) != TERN_OK)
		return target_failed("cannot open a channel");
	while (!t->gone && tern_link_status(link) == TERN_OK) {
		uint64_t seen = tern_ctx_events(ctx);

		if (__atomic_load_n(&t->request, __ATOMIC_ACQUIRE))
			run_job(t);
		else if (spin && !t->rest)
			tern_ctx_progress(ctx);
		else
			tern_ctx_wait_past(ctx, seen, 100000000);
	}
	/* The answer to EXIT leaves before the link closes; the initiator closes first. */
	for (int i = 0; i < 200 && tern_link_status(link) == TERN_OK; i++)
		tern_ctx_wait(ctx, 10000000);
	tern_link_release(link);
	tern_ctx_destroy(ctx);
	free(t);
	return 0;
}

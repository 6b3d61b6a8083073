/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: latency and bandwidth of put, get, send and call between two processes, beside what the
 * machine itself can do.
 *
 *   put    latency: half of a ping-pong of flagged puts (8 B: the flag word is the data), or of puts with
 *          notification when both sides sleep, since a flag wakes nobody; bandwidth: puts in
 *          flight until all are complete at the target
 *   get    from issue to data in place
 *   send   half of a ping-pong of messages; bandwidth: messages in flight
 *   call   round trip of an RPC that echoes its arguments
 *
 * Limits: shm: a cache line's one way plus the better of memcpy and non-temporal copy for the bytes; tcp: plain
 * TCP ping-pong and stream. Round by round: limit, tern; ratios are medians of the rounds' ratios.
 * Threads: main (and the context's helper with --block).
 */
#include "perf.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"
#include "json.h"

const char *const perf_op_names[] = {"put", "get", "send", "call"};
static const char *const transports[] = {"auto", "shm", "tcp"};

#define SAMPLES_MAX 20000
#define IN_FLIGHT   16

typedef struct bench {
	const perf_options *o;
	perf_side side;
	tern_link *link;
	tern_rpc *rpc;
	limits *limits;
	bool shm;
	uint64_t bytes_max;
	pid_t target;
	uint64_t flags; /* number of the last put of a ping-pong */
	volatile uint64_t echoes;
	double samples[SAMPLES_MAX];
	unsigned count;
} bench;

typedef struct row {
	perf_op op;
	uint64_t bytes;
	double mean, p50, p99; /* ns, medians over rounds */
	double limit_ns, latency_ratio;
	double rate, limit_rate, rate_ratio;               /* bytes/ns; 0 = not measured */
	double rate_low, rate_high, ratio_low, ratio_high; /* spread of the rounds' ratios */
} row;

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double quantile(double *values, unsigned n, double q)
{
	qsort(values, n, sizeof(*values), by_value);
	return n ? values[(unsigned)((double)(n - 1) * q + 0.5)] : 0;
}

static void die(const char *what)
{
	fprintf(stderr, "tern perf: %s: %s\n", what, tern_detail());
	exit(1);
}

static void await_op(bench *b, tern_op *op, const char *what)
{
	tern_status status;

	if (b->o->spin)
		while ((status = tern_op_test(op)) == TERN_AGAIN)
			tern_ctx_progress(b->side.ctx);
	else
		status = tern_op_wait(b->side.ctx, op, 0);
	if (status != TERN_OK)
		die(what);
}

/* ---- one measurement each: `per` operations, nanoseconds per operation ---- */

static void start_pong(bench *b, uint64_t bytes, uint64_t rounds, tern_op *op)
{
	perf_job job = {.kind = b->o->spin ? PERF_JOB_PONG_FLAG : PERF_JOB_PONG_NOTIFY,
			.spin = b->o->spin,
			.bytes = bytes,
			.rounds = rounds,
			.first = b->flags + 1};
	tern_rpc_call_params call = {.method = PERF_METHOD_JOB, .args = &job, .args_bytes = sizeof(job)};
	tern_status status;

	tern_op_init(op, NULL, NULL);
	op->timeout_ns = 600000000000ull;
	while ((status = tern_rpc_call(b->rpc, &call, op)) == TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		die("cannot start the ping-pong");
}

static void ping_put(bench *b, uint64_t bytes)
{
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	b->flags++;
	if (!perf_put(&b->side, bytes, b->flags, b->o->spin, &op) ||
	    !perf_await_put(&b->side, b->flags, b->o->spin))
		die("put");
	await_op(b, &op, "put");
}

static void ping_send(bench *b, uint64_t bytes)
{
	uint64_t want = b->echoes + 1;
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	b->side.out[0] = 2;
	while ((status = tern_send(b->side.channel, b->side.out, bytes, &op)) == TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		die("send");
	while (b->echoes != want) {
		if (b->o->spin)
			tern_ctx_progress(b->side.ctx);
		else
			tern_ctx_wait(b->side.ctx, 10000000);
		if (tern_link_status(b->link) != TERN_OK)
			die("send");
	}
	await_op(b, &op, "send");
}

static void one_get(bench *b, uint64_t bytes)
{
	tern_status status;
	tern_op op;

	tern_op_init(&op, NULL, NULL);
	while ((status = tern_get(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, &op)) ==
	       TERN_AGAIN)
		tern_ctx_progress(b->side.ctx);
	if (status != TERN_OK)
		die("get");
	await_op(b, &op, "get");
}

static void one_call(bench *b, uint64_t bytes)
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
		die("call");
	await_op(b, &op, "call");
}

/* Run ops in groups of `group` for about round_ns; each sample is the time per operation of a group. */
static void sample(bench *b, perf_op op, uint64_t bytes)
{
	void (*const run[])(bench *, uint64_t) = {ping_put, one_get, ping_send, one_call};
	double half = op == PERF_PUT || op == PERF_SEND ? 2 : 1;
	unsigned group = b->shm && b->o->spin && bytes <= 4096 ? 16 : 1;
	uint64_t t0 = perf_now_ns(), t, per, total;
	tern_op job;

	b->count = 0;
	if (op == PERF_PUT)
		start_pong(b, bytes, 32, &job);
	for (int i = 0; i < 32; i++)
		run[op](b, bytes);
	per = (perf_now_ns() - t0) / 32 + 1;
	if (op == PERF_PUT)
		await_op(b, &job, "put");
	total = b->o->round_ns / per;
	total = total < 32                              ? 32
		: total > SAMPLES_MAX * (uint64_t)group ? SAMPLES_MAX * (uint64_t)group
							: total;
	total -= total % group;
	if (op == PERF_PUT)
		start_pong(b, bytes, total, &job);
	for (uint64_t done = 0; done < total; done += group) {
		t = perf_now_ns();
		for (unsigned i = 0; i < group; i++)
			run[op](b, bytes);
		b->samples[b->count++] = (double)(perf_now_ns() - t) / (group * half);
		if (b->o->spin) /* no helper: keepalives are ours, and one-sided operations make no progress */
			tern_ctx_progress(b->side.ctx);
	}
	if (op == PERF_PUT)
		await_op(b, &job, "put");
}

static bool submit(bench *b, perf_op op, uint64_t bytes, tern_op *t)
{
	tern_status status;

	tern_op_init(t, NULL, NULL);
	t->flags = TERN_OP_REMOTE;
	if (op == PERF_PUT)
		status = tern_put(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, t);
	else if (op == PERF_GET)
		status = tern_get(b->side.channel, b->side.out, bytes, &b->side.peer.data, 0, t);
	else
		status = tern_send(b->side.channel, b->side.out, bytes, t);
	if (status != TERN_OK && status != TERN_AGAIN)
		die(perf_op_names[op]);
	return status == TERN_OK;
}

/* Bytes per nanosecond with IN_FLIGHT operations in flight. */
static double stream(bench *b, perf_op op, uint64_t bytes)
{
	static tern_op ops[IN_FLIGHT];
	uint64_t total = (64ull << 20) / bytes + 1, head = 0, tail = 0, t;

	if (total > 20000)
		total = 20000;
	if (total < 4)
		total = 4;
	if (op == PERF_SEND)
		b->side.out[0] = PERF_NO_ECHO;
	t = perf_now_ns();
	while (tail < total) {
		while (head < total && head - tail < IN_FLIGHT &&
		       submit(b, op, bytes, &ops[head % IN_FLIGHT]))
			head++;
		if (b->o->spin && tail % 64 == 0)
			tern_ctx_progress(b->side.ctx);
		if (head > tail && tern_op_test(&ops[tail % IN_FLIGHT]) != TERN_AGAIN)
			await_op(b, &ops[tail++ % IN_FLIGHT], perf_op_names[op]);
		else if (b->o->spin || head == tail)
			tern_ctx_progress(b->side.ctx);
		else
			await_op(b, &ops[tail++ % IN_FLIGHT], perf_op_names[op]);
	}
	return (double)bytes * (double)total / (double)(perf_now_ns() - t);
}

/* ---- rows ---- */

/*
 * The limit lines need the target's core for their own helper: a spinning target is stopped meanwhile. Well
 * below the keepalive's bound.
 */
static double quiet(bench *b, double (*measure)(limits *l, uint64_t bytes), uint64_t bytes)
{
	double value;

	if (b->o->spin)
		kill(b->target, SIGSTOP);
	value = measure(b->limits, bytes);
	if (b->o->spin)
		kill(b->target, SIGCONT);
	return value;
}

static double cache_line(limits *l, uint64_t bytes)
{
	(void)bytes;
	return limit_cache_line_ns(l);
}

static double latency_limit(bench *b, perf_op op, uint64_t bytes)
{
	double ns;

	if (!b->shm) {
		ns = quiet(b, limit_tcp_ns, bytes);
	} else {
		ns = quiet(b, cache_line, 0);
		if (bytes > 64)
			ns += (double)bytes / quiet(b, limit_copy_rate, bytes);
	}
	return op == PERF_CALL || (op == PERF_GET && !b->shm) ? 2 * ns : ns;
}

static row measure(bench *b, perf_op op, uint64_t bytes)
{
	double mean[PERF_ROUNDS_MAX], p50[PERF_ROUNDS_MAX], p99[PERF_ROUNDS_MAX], limit[PERF_ROUNDS_MAX];
	double ratio[PERF_ROUNDS_MAX], rate[PERF_ROUNDS_MAX], rate_limit[PERF_ROUNDS_MAX],
		rate_ratio[PERF_ROUNDS_MAX];
	bool streams = bytes >= 4096 && op != PERF_CALL;
	unsigned n = (unsigned)b->o->rounds;
	row r = {.op = op, .bytes = bytes};

	for (unsigned i = 0; i < n; i++) {
		double sum = 0;

		limit[i] = latency_limit(b, op, bytes);
		sample(b, op, bytes);
		for (unsigned k = 0; k < b->count; k++)
			sum += b->samples[k];
		mean[i] = sum / b->count;
		p50[i] = quantile(b->samples, b->count, 0.5);
		p99[i] = quantile(b->samples, b->count, 0.99);
		ratio[i] = p50[i] / limit[i];
		if (!streams)
			continue;
		rate_limit[i] = quiet(b, b->shm ? limit_copy_rate : limit_tcp_rate, bytes);
		rate[i] = stream(b, op, bytes);
		rate_ratio[i] = rate[i] / rate_limit[i];
	}
	r.mean = quantile(mean, n, 0.5);
	r.p50 = quantile(p50, n, 0.5);
	r.p99 = quantile(p99, n, 0.5);
	r.limit_ns = quantile(limit, n, 0.5);
	r.latency_ratio = quantile(ratio, n, 0.5);
	r.ratio_low = ratio[0];
	r.ratio_high = ratio[n - 1];
	if (streams) {
		r.rate = quantile(rate, n, 0.5);
		r.limit_rate = quantile(rate_limit, n, 0.5);
		r.rate_ratio = quantile(rate_ratio, n, 0.5);
		r.rate_low = rate_ratio[0];
		r.rate_high = rate_ratio[n - 1];
	}
	return r;
}

static void print_row(const row *r)
{
	char rate[64] = "";

	if (r->rate > 0)
		snprintf(rate, sizeof(rate), "%10.1f %10.1f %6.2f", r->rate * 1e9 / 1048576,
			 r->limit_rate * 1e9 / 1048576, r->rate_ratio);
	printf("%-5s %10llu  %10.3f %10.3f %10.3f  %10.3f %6.2f  %s\n", perf_op_names[r->op],
	       (unsigned long long)r->bytes, r->mean * 1e-3, r->p50 * 1e-3, r->p99 * 1e-3, r->limit_ns * 1e-3,
	       r->latency_ratio, rate);
	fflush(stdout);
}

static void json_row(json *j, const row *r)
{
	json_object(j, NULL);
	json_string(j, "op", perf_op_names[r->op]);
	json_u64(j, "bytes", r->bytes);
	json_real(j, "mean_us", r->mean * 1e-3);
	json_real(j, "p50_us", r->p50 * 1e-3);
	json_real(j, "p99_us", r->p99 * 1e-3);
	json_real(j, "limit_us", r->limit_ns * 1e-3);
	json_real(j, "latency_ratio", r->latency_ratio);
	json_real(j, "latency_ratio_min", r->ratio_low);
	json_real(j, "latency_ratio_max", r->ratio_high);
	if (r->rate > 0) {
		json_real(j, "bytes_per_s", r->rate * 1e9);
		json_real(j, "limit_bytes_per_s", r->limit_rate * 1e9);
		json_real(j, "bandwidth_ratio", r->rate_ratio);
		json_real(j, "bandwidth_ratio_min", r->rate_low);
		json_real(j, "bandwidth_ratio_max", r->rate_high);
	}
	json_object_end(j);
}

/* ---- set-up ---- */

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	bench *b = arg;

	(void)channel;
	(void)msg;
	(void)bytes;
	b->echoes++;
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	perf_on_notify(channel, value, bytes, &((bench *)arg)->side);
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	bench *b = arg;

	b->side.channel = channel;
	*params = (tern_channel_params){.on_message = on_message,
					.on_notify = on_notify,
					.arg = b,
					.message_bytes_max = b->bytes_max + 64};
	return TERN_OK;
}

static void on_link(tern_link *link, void *arg)
{
	bench *b = arg;

	if (b->link)
		tern_link_release(link);
	else
		b->link = link;
}

static pid_t start_target(const perf_options *o, const char *address, uint64_t bytes)
{
	char size[32], core[16];
	const char *argv[] = {"tern",
			      "perf",
			      "--target",
			      address,
			      "--target-bytes",
			      size,
			      "--target-core",
			      core,
			      "--transport",
			      transports[o->transport],
			      o->spin ? "--spin" : "--block",
			      NULL};
	pid_t pid;

	snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
	snprintf(core, sizeof(core), "%d", o->cores[1] < 0 ? 99999 : o->cores[1]);
	pid = fork();
	if (pid == 0) {
		execv(self_path(), (char *const *)argv);
		_exit(127);
	}
	return pid;
}

static void meet(bench *b, uint64_t bytes)
{
	tern_rpc_call_params call = {.method = PERF_METHOD_READY,
				     .args = &b->side.mine,
				     .args_bytes = sizeof(perf_hello),
				     .answer = &b->side.peer,
				     .answer_capacity = sizeof(perf_hello)};
	uint64_t end = perf_now_ns() + 10000000000ull;
	perf_side made;

	while ((!b->link || !b->side.channel) && perf_now_ns() < end)
		tern_ctx_wait(b->side.ctx, 10000000);
	if (!b->side.channel) {
		fprintf(stderr, "tern perf: the target process did not connect within 10 s\n");
		exit(1);
	}
	if (!perf_side_init(&made, b->side.ctx, bytes))
		die("no memory");
	made.channel = b->side.channel;
	b->side = made;
	b->side.passive = (tern_link_caps(b->link) & TERN_LINK_CAN_PASSIVE) != 0;
	call.args = &b->side.mine;
	call.answer = &b->side.peer;
	if (tern_rpc_open(b->link, &b->rpc) != TERN_OK ||
	    tern_rpc_call_wait(b->rpc, &call, 10000000000ull, NULL) != TERN_OK)
		die("the target did not answer");
	b->shm = strcmp(tern_link_transport(b->link), "shm") == 0;
}

static void print_head(bench *b, json *j)
{
	const perf_options *o = b->o;

	if (o->json) {
		json_object(j, NULL);
		json_string(j, "transport", tern_link_transport(b->link));
		json_string(j, "mode", o->spin ? "spin" : "block");
		json_u64(j, "rounds", o->rounds);
		json_array(j, "rows");
		return;
	}
	printf("transport %s (%s), %s, medians of %llu rounds; limit: %s\n", tern_link_transport(b->link),
	       tern_link_transport_reason(b->link), o->spin ? "spin" : "block", (unsigned long long)o->rounds,
	       b->shm ? "cache line one way + copy between mapped segments" : "plain TCP");
	printf("%-5s %10s  %10s %10s %10s  %10s %6s  %10s %10s %6s\n", "op", "bytes", "mean us", "p50 us",
	       "p99 us", "limit us", "ratio", "MiB/s", "limit", "ratio");
}

static void measure_all(bench *b, json *j)
{
	const perf_options *o = b->o;

	for (unsigned op = 0; op < PERF_OPS; op++)
		for (unsigned i = 0; i < o->size_count && o->ops[op]; i++) {
			row r;

			if (op == PERF_CALL && o->sizes[i] > TERN_RPC_INLINE_MAX)
				continue;
			r = measure(b, (perf_op)op, o->sizes[i]);
			if (o->json)
				json_row(j, &r);
			else
				print_row(&r);
		}
}

static void print_tail(bench *b, json *j, double before, double after)
{
	if (b->o->json) {
		json_array_end(j);
		json_real(j, "cache_line_before_us", before * 1e-3);
		json_real(j, "cache_line_after_us", after * 1e-3);
		json_object_end(j);
		putchar('\n');
		return;
	}
	printf("cache line one way: %.3f us before, %.3f us after%s\n", before * 1e-3, after * 1e-3,
	       fmax(before, after) > 1.5 * fmin(before, after) ? " (the cores moved: compare with care)"
							       : "");
}

static int run(const perf_options *o)
{
	tern_ctx_params params = {.name = "perf",
				  .transports = o->transport ? transports[o->transport] : NULL,
				  .flags = o->spin ? TERN_CTX_NO_HELPER : 0};
	perf_job exit_job = {.kind = PERF_JOB_EXIT};
	tern_rpc_call_params bye = {
		.method = PERF_METHOD_JOB, .args = &exit_job, .args_bytes = sizeof(exit_job)};
	bench *b = calloc(1, sizeof(*b));
	double line_before;
	json j;

	if (!b)
		return 1;
	b->bytes_max = 4096;
	for (unsigned i = 0; i < o->size_count; i++)
		if (o->sizes[i] > b->bytes_max)
			b->bytes_max = o->sizes[i];
	b->o = o;
	b->limits = limits_start(o, b->bytes_max);
	perf_pin(o->cores[0]);
	if (tern_ctx_create(&params, &b->side.ctx) != TERN_OK)
		die("cannot make a context");
	tern_ctx_on_link(b->side.ctx, on_link, NULL, b);
	if (tern_ctx_listen(b->side.ctx, PERF_SERVICE, on_open, b) != TERN_OK)
		die("cannot listen");
	b->target = start_target(o, tern_ctx_address(b->side.ctx), b->bytes_max);
	meet(b, b->bytes_max);
	limits_use(b->limits, b->side.out, b->side.data);
	line_before = quiet(b, cache_line, 0);
	json_init(&j, stdout);
	print_head(b, &j);
	measure_all(b, &j);
	print_tail(b, &j, line_before, quiet(b, cache_line, 0));
	tern_rpc_call_wait(b->rpc, &bye, 2000000000ull, NULL);
	tern_rpc_close(b->rpc);
	tern_link_release(b->link);
	tern_ctx_destroy(b->side.ctx);
	waitpid(b->target, NULL, 0);
	limits_stop(b->limits);
	free(b);
	return fflush(stdout) == 0 ? 0 : 1;
}

/* ---- options ---- */

static bool parse_ops(const char *text, bool ops[PERF_OPS])
{
	char copy[128], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", text);
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		unsigned i = 0;

		while (i < PERF_OPS && strcmp(word, perf_op_names[i]) != 0)
			i++;
		if (i == PERF_OPS) {
			fprintf(stderr, "tern perf: unknown operation '%s': put, get, send, call\n", word);
			return false;
		}
		ops[i] = true;
	}
	return true;
}

static bool parse_sizes(const char *text, perf_options *o)
{
	while (*text) {
		char *end;
		uint64_t v = strtoull(text, &end, 10);

		if (end == text || o->size_count == PERF_SIZES_MAX)
			break;
		if (*end == 'K' || *end == 'k')
			v <<= 10, end++;
		else if (*end == 'M' || *end == 'm')
			v <<= 20, end++;
		else if (*end == 'G' || *end == 'g')
			v <<= 30, end++;
		if ((*end && *end != ',') || v == 0 || v > (4ull << 30))
			break;
		o->sizes[o->size_count++] = v;
		text = *end ? end + 1 : end;
		if (!*text)
			return true;
	}
	fprintf(stderr, "tern perf: --sizes: '%s' is not a list like 8,64,4K,1M (1 to 4G, at most %d)\n",
		text, PERF_SIZES_MAX);
	return false;
}

/* The first two cores that this process may use; alone on one core nothing is pinned. */
static void find_cores(int cores[2])
{
	cpu_set_t set;
	int n = 0;

	cores[0] = cores[1] = -1;
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return;
	for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &set))
			cores[n++] = i;
	if (n < 2)
		cores[0] = cores[1] = -1;
}

int cmd_perf(int argc, char **argv)
{
	static const arg_usage usage = {
		.command = "tern perf",
		.summary = "latency and bandwidth between two processes, beside the physical limits",
		.synopsis = "tern perf [--op put,get,send,call] [--sizes 8,4K,1M] [--transport auto|shm|tcp] "
			    "[--spin|--block]",
		.epilogue = "examples:\n"
			    "  tern perf --op put --sizes 8,64M --spin --transport shm\n"
			    "  tern perf --op call --sizes 8 --transport tcp --json\n",
	};
	const char *ops = "put,get,send,call", *sizes = "8,64,1K,64K,1M,16M", *target = NULL;
	uint64_t target_bytes = 0, target_core = 99999;
	bool block = false;
	perf_options o = {.rounds = 5, .round_ns = 100000000};
	const arg_row rows[] = {
		{"op", ARG_STRING, &ops, "LIST", "operations (put,get,send,call)", 0, 0, false, NULL},
		{"sizes", ARG_STRING, &sizes, "LIST", "bytes per operation (8,64,1K,64K,1M,16M)", 0, 0, false,
		 NULL},
		{"transport", ARG_CHOICE, &o.transport, "auto|shm|tcp", "(auto)", 0, 0, false, NULL},
		{"spin", ARG_FLAG, &o.spin, NULL, "both sides poll: lowest latency, a core each", 0, 0, false,
		 NULL},
		{"block", ARG_FLAG, &block, NULL, "both sides sleep when there is nothing to do (default)", 0,
		 0, false, NULL},
		{"rounds", ARG_U64, &o.rounds, "N", "medians of so many rounds (5)", 1, PERF_ROUNDS_MAX,
		 false, NULL},
		{"round-time", ARG_SECONDS, &o.round_ns, "SECONDS", "of each row and round (0.1)", 1000000, 0,
		 false, NULL},
		{"json", ARG_FLAG, &o.json, NULL, "one JSON object", 0, 0, false, NULL},
		{"target", ARG_STRING, &target, "ADDRESS", "", 0, 0, true, NULL},
		{"target-bytes", ARG_U64, &target_bytes, "N", "", 0, 0, true, NULL},
		{"target-core", ARG_U64, &target_core, "N", "", 0, 0, true, NULL},
		{0},
	};
	int rc = args_parse(&usage, rows, argc, argv, NULL);

	if (rc >= 0)
		return rc;
	if (o.spin && block) {
		fprintf(stderr, "tern perf: --spin and --block exclude each other\n");
		return 2;
	}
	if (target)
		return perf_target(target, target_bytes, o.transport ? transports[o.transport] : NULL, o.spin,
				   target_core == 99999 ? -1 : (int)target_core);
	if (!parse_ops(ops, o.ops) || !parse_sizes(sizes, &o))
		return 2;
	find_cores(o.cores);
	return run(&o);
}

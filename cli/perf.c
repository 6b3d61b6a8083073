/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: latency and bandwidth of put, get, send and call between two processes, beside what the
 * machine itself can do.
 *
 *   put     latency: half of a ping-pong of flagged puts (8 B: the flag word is the data), or of puts with
 *           notification when both sides sleep, since a flag wakes nobody; bandwidth: puts in
 *           flight until all are complete at the target
 *   notify  the same by puts with notification (an immediate) in either mode
 *   get     from issue to data in place
 *   send    half of a ping-pong of messages; bandwidth: messages in flight
 *   call    round trip of an RPC that echoes its arguments
 *
 * This file: options, the two processes and how they meet. Measuring: perf_measure.c; limits and output:
 * perf_rows.c; --threads: perf_threads.c.
 * Threads: main (and the context's helper with --block).
 */
#include "perf.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "commands.h"

const char *const perf_op_names[] = {"put", "notify", "get", "send", "call"};
const char *const perf_transports[] = {"auto", "shm", "tcp", "verbs"};

/* ---- set-up ---- */

static void on_message(tern_channel *channel, const void *msg, uint64_t bytes, void *arg)
{
	perf_bench *b = arg;

	(void)channel;
	(void)msg;
	(void)bytes;
	b->echoes++;
}

static void on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg)
{
	perf_on_notify(channel, value, bytes, &((perf_bench *)arg)->side);
}

static tern_status on_open(tern_channel *channel, tern_channel_params *params, void *arg)
{
	perf_bench *b = arg;

	b->side.channel = channel;
	*params = (tern_channel_params){.on_message = on_message,
					.on_notify = on_notify,
					.arg = b,
					.message_bytes_max = b->bytes_max + 64};
	return TERN_OK;
}

static void on_link(tern_link *link, void *arg)
{
	perf_bench *b = arg;

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
			      perf_transports[o->transport],
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

static void meet(perf_bench *b, uint64_t bytes)
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
		perf_die("no memory");
	made.channel = b->side.channel;
	b->side = made;
	b->side.passive = (tern_link_caps(b->link) & TERN_LINK_CAN_PASSIVE) != 0;
	call.args = &b->side.mine;
	call.answer = &b->side.peer;
	if (tern_rpc_open(b->link, &b->rpc) != TERN_OK ||
	    tern_rpc_call_wait(b->rpc, &call, 10000000000ull, NULL) != TERN_OK)
		perf_die("the target did not answer");
	b->kind = strcmp(tern_link_transport(b->link), "shm") == 0   ? PERF_KIND_SHM
		  : strcmp(tern_link_transport(b->link), "tcp") == 0 ? PERF_KIND_TCP
								     : PERF_KIND_VERBS;
}

static int run(const perf_options *o)
{
	tern_ctx_params params = {.name = "perf",
				  .transports = o->transport ? perf_transports[o->transport] : NULL,
				  .flags = !o->spin     ? 0
					   : o->threads ? TERN_CTX_NO_HELPER
							: TERN_CTX_SINGLE_OWNER};
	perf_job exit_job = {.kind = PERF_JOB_EXIT};
	tern_rpc_call_params bye = {
		.method = PERF_METHOD_JOB, .args = &exit_job, .args_bytes = sizeof(exit_job)};
	perf_bench *b = calloc(1, sizeof(*b));

	if (!b)
		return 1;
	/* perftest takes seconds, in which the target stands still. */
	setenv("TERN_LINK_KEEPALIVE", "30s", 0);
	b->bytes_max = 4096;
	for (unsigned i = 0; i < o->size_count; i++)
		if (o->sizes[i] > b->bytes_max)
			b->bytes_max = o->sizes[i];
	b->o = o;
	b->limits = limits_start(o, b->bytes_max);
	perf_pin(o->cores[0]);
	if (tern_ctx_create(&params, &b->side.ctx) != TERN_OK)
		perf_die("cannot make a context");
	tern_ctx_on_link(b->side.ctx, on_link, NULL, b);
	if (tern_ctx_listen(b->side.ctx, PERF_SERVICE, on_open, b) != TERN_OK)
		perf_die("cannot listen");
	b->target = start_target(o, tern_ctx_address(b->side.ctx), b->bytes_max);
	meet(b, b->bytes_max);
	limits_use(b->limits, b->side.out, b->side.data);
	if (o->threads)
		perf_threads(b);
	else
		perf_rows(b);
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
			fprintf(stderr, "tern perf: unknown operation '%s': put, notify, get, send, call\n",
				word);
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
		.synopsis = "tern perf [--op put,notify,get,send,call] [--sizes 8,4K,1M] "
			    "[--transport auto|shm|tcp|verbs] [--spin|--block] [--threads N]",
		.epilogue = "examples:\n"
			    "  tern perf --op put --sizes 8,64M --spin --transport shm\n"
			    "  tern perf --op call --sizes 8 --transport tcp --json\n"
			    "  tern perf --transport verbs --spin --op put,get --sizes 64K,1M --rounds 9\n",
	};
	const char *ops = "put,get,send,call", *sizes = "8,64,1K,64K,1M,16M", *target = NULL;
	uint64_t target_bytes = 0, target_core = 99999;
	bool block = false;
	perf_options o = {.rounds = 5, .round_ns = 100000000};
	const arg_row rows[] = {
		{"op", ARG_STRING, &ops, "LIST", "operations; notify as well (put,get,send,call)", 0, 0,
		 false, NULL},
		{"sizes", ARG_STRING, &sizes, "LIST", "bytes per operation (8,64,1K,64K,1M,16M)", 0, 0, false,
		 NULL},
		{"transport", ARG_CHOICE, &o.transport, "auto|shm|tcp|verbs", "(auto)", 0, 0, false, NULL},
		{"spin", ARG_FLAG, &o.spin, NULL, "both sides poll: lowest latency, a core each", 0, 0, false,
		 NULL},
		{"block", ARG_FLAG, &block, NULL, "both sides sleep when there is nothing to do (default)", 0,
		 0, false, NULL},
		{"rounds", ARG_U64, &o.rounds, "N", "medians of so many pairs of limit and tern (5)", 1,
		 PERF_ROUNDS_MAX, false, NULL},
		{"round-time", ARG_SECONDS, &o.round_ns, "SECONDS", "of each row and round (0.1)", 1000000, 0,
		 false, NULL},
		{"threads", ARG_U64, &o.threads, "N",
		 "instead of rows: puts from 1, 2, 4, ... N threads, and their cost in lanes and "
		 "registrations",
		 1, PERF_THREADS_MAX, false, NULL},
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
		return perf_target(target, target_bytes, o.transport ? perf_transports[o.transport] : NULL,
				   o.spin, target_core == 99999 ? -1 : (int)target_core);
	if (!parse_ops(ops, o.ops) || !parse_sizes(sizes, &o))
		return 2;
	find_cores(o.cores);
	return run(&o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receiver that stops consuming: its sender is stopped by the channel's window after a bounded number of bytes,
 * nothing is dropped, no receive buffer runs out, and another channel goes on as before. Then it consumes again
 * and everything arrives.
 * Threads: main, and those of the load.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define MESSAGE 4096u
#define ROOM    400u

/* Send until nothing more is taken for a while. Returns what was submitted. */
static uint64_t fill(node *n, tern_channel *channel, tern_op *ops, uint8_t *src)
{
	uint64_t sent = 0;

	for (unsigned quiet = 0; quiet < 50;) {
		tern_op *op = &ops[sent % ROOM];
		tern_status status = TERN_AGAIN;

		if (sent < ROOM || tern_op_test(op) == TERN_OK)
			status = tern_send(channel, src, MESSAGE, op);
		if (status == TERN_OK) {
			sent++;
			quiet = 0;
		} else if (status == TERN_AGAIN) {
			tern_ctx_wait(n->ctx, 1000000);
			quiet++;
		} else {
			must(status, "send");
		}
	}
	return sent;
}

static unsigned unfinished(const tern_op *ops, uint64_t sent)
{
	unsigned count = 0;

	for (unsigned i = 0; i < ROOM && i < sent; i++)
		count += tern_op_test(&ops[i]) == TERN_AGAIN;
	return count;
}

static void drain(node *n, uint64_t sent, tern_op *ops)
{
	tern_rpc_call_params params = {.method = METHOD_DRAIN};
	uint64_t end = now_ns() + PATIENCE_NS;
	facts f;

	must(tern_rpc_call_wait(n->rpc, &params, PATIENCE_NS, NULL), "drain");
	for (facts_there(n, &f); f.drained < sent; facts_there(n, &f)) {
		if (now_ns() > end) {
			fprintf(stderr, "bench-link: %llu of %llu messages were received\n",
				(unsigned long long)f.drained, (unsigned long long)sent);
			exit(1);
		}
		sleep_ns(1000000);
	}
	for (unsigned i = 0; i < ROOM && i < sent; i++)
		must(tern_op_wait(n->ctx, &ops[i], PATIENCE_NS), "a message");
}

int case_stall(const options *o)
{
	tern_op *ops = calloc(ROOM, sizeof(*ops));
	double before[ROUNDS_MAX], during[ROUNDS_MAX], ratio[ROUNDS_MAX];
	uint64_t sent = 0, through = 0;
	unsigned rounds = (unsigned)o->rounds;
	tern_channel *other, *stalled;
	uint8_t *src;
	facts here, there;
	node n;

	if (!ops)
		return 1;
	report_begin(o, "stall");
	node_start(o, &n);
	src = node_memory(&n, 1 << 20);
	other = node_open(&n, SERVICE_SINK, NULL);
	for (unsigned i = 0; i < rounds; i++) {
		load l = {.n = &n,
			  .channels = &other,
			  .count = 1,
			  .threads = 1,
			  .op = LOAD_SEND,
			  .bytes = o->bytes,
			  .ms = o->ms,
			  .src = src};
		load_result r = load_run(&l);

		before[i] = (double)r.ops / r.seconds;
		stalled = node_open(&n, SERVICE_STALL, NULL);
		sent = fill(&n, stalled, ops, src);
		through = sent - unfinished(ops, sent);
		r = load_run(&l);
		during[i] = (double)r.ops / r.seconds;
		ratio[i] = during[i] / before[i];
		facts_there(&n, &there);
		drain(&n, there.drained + sent, ops);
		tern_channel_close(stalled);
	}
	facts_here(n.ctx, &here);
	facts_there(&n, &there);
	report_number("accepted from the stalled sender", (double)sent, "messages");
	report_number("of these went through", (double)(through * MESSAGE) / 1024, "KiB");
	report_number("another channel before", median(before, rounds), "/s");
	report_number("another channel beside it", median(during, rounds), "/s");
	report_number("ratio", median(ratio, rounds), "");
	report_number("receiver not ready", (double)(here.rnr + there.rnr), "");
	report_number("dropped", (double)(here.dropped + there.dropped), "");
	report_end();
	tern_channel_close(other);
	node_stop(&n);
	free(ops);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many channels from many threads against one channel from one thread, in pairs: one, many, one, many. And what
 * a channel costs while nothing happens on it, at both ends.
 * Threads: main, and those of the load.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* What is measured: messages of --bytes, and puts. */
typedef struct how {
	const char *name;
	load_op op;
	uint64_t bytes;
} how;

static void open_all(node *n, tern_channel **channels, uint64_t count, uint64_t first)
{
	uint64_t end = now_ns() + PATIENCE_NS;
	facts f;

	for (uint64_t i = first; i < count; i++)
		channels[i] = node_open(n, SERVICE_SINK, NULL);
	for (facts_there(n, &f); f.opened < count; facts_there(n, &f)) {
		if (now_ns() > end) {
			fprintf(stderr, "bench-link: %llu of %llu channels opened\n",
				(unsigned long long)f.opened, (unsigned long long)count);
			exit(1);
		}
		sleep_ns(1000000);
	}
}

/* Memory of the channels that are opened between the two. */
static void report_memory(const facts *before, const facts *after, uint64_t count, const char *side)
{
	char name[64];

	snprintf(name, sizeof(name), "rows per channel, %s", side);
	report_number(name, (double)(after->channel_bytes - before->channel_bytes) / (double)count, "B");
	snprintf(name, sizeof(name), "resident per channel, %s", side);
	report_number(name, (double)(after->anon_bytes - before->anon_bytes) / (double)count, "B");
}

static void report_how(node *n, const how *h, tern_channel **channels)
{
	const options *o = n->o;
	double one[ROUNDS_MAX], many[ROUNDS_MAX], crowd[ROUNDS_MAX], ratio[ROUNDS_MAX],
		crowd_ratio[ROUNDS_MAX];
	double cpu_one[ROUNDS_MAX], cpu_many[ROUNDS_MAX], turns[ROUNDS_MAX];
	double least[ROUNDS_MAX], most[ROUNDS_MAX];
	tern_key key = node_target(n, h->bytes * o->threads + 64);
	uint8_t *src = node_memory(n, h->bytes * o->threads + 64);
	unsigned rounds = (unsigned)o->rounds;

	for (unsigned i = 0; i < rounds; i++) {
		load l = {.n = n,
			  .channels = channels,
			  .count = 1,
			  .threads = 1,
			  .op = h->op,
			  .bytes = h->bytes,
			  .ms = o->ms,
			  .src = src,
			  .key = &key};
		load_result r = load_run(&l);

		one[i] = (double)r.ops / r.seconds;
		cpu_one[i] = 1e9 * r.cpu_seconds / (double)r.ops;
		l.threads = (unsigned)o->threads;
		l.count = o->channels;
		r = load_run(&l);
		many[i] = (double)r.ops / r.seconds;
		cpu_many[i] = 1e9 * r.cpu_seconds / (double)r.ops;
		least[i] = r.least;
		most[i] = r.most;
		turns[i] = 1e3 * (double)r.switches / (double)r.ops;
		ratio[i] = many[i] / one[i];
		l.count = 1;
		r = load_run(&l);
		crowd[i] = (double)r.ops / r.seconds;
		crowd_ratio[i] = many[i] / crowd[i];
	}
	report_row();
	report_text("operation", h->name);
	report_number("bytes", (double)h->bytes, "");
	report_number("1 channel 1 thread", median(one, rounds), "/s");
	report_number("1 channel all threads", median(crowd, rounds), "/s");
	report_number("all channels all threads", median(many, rounds), "/s");
	report_number("all channels all threads", median(many, rounds) * (double)h->bytes * 1e-9, "GB/s");
	report_number("to 1 channel 1 thread", median(ratio, rounds), "");
	report_number("  least of the rounds", ratio[0], "");
	report_number("  most of the rounds", ratio[rounds - 1], "");
	report_number("to 1 channel all threads", median(crowd_ratio, rounds), "");
	report_number("cpu of 1 channel 1 thread", median(cpu_one, rounds), "ns/op");
	report_number("cpu of all channels all threads", median(cpu_many, rounds), "ns/op");
	report_number("switches per 1000 operations", median(turns, rounds), "");
	report_number("operations of the slowest thread", median(least, rounds), "of the mean");
	report_number("operations of the fastest thread", median(most, rounds), "of the mean");
	tern_mem_free(tern_ctx_mem(n->ctx), src);
}

int case_channels(const options *o)
{
	const how hows[] = {
		{"send", LOAD_SEND, o->bytes}, {"put", LOAD_PUT, 4096}, {"put", LOAD_PUT, 256 << 10}};
	tern_channel **channels = calloc(o->channels, sizeof(*channels));
	facts before_here, before_there, here, there;
	node n;

	if (!channels)
		return 1;
	report_begin(o, "channels");
	node_start(o, &n);
	open_all(&n, channels, 1, 0);
	facts_here(n.ctx, &before_here);
	facts_there(&n, &before_there);
	open_all(&n, channels, o->channels, 1);
	facts_here(n.ctx, &here);
	facts_there(&n, &there);
	report_number("channels", (double)o->channels, "");
	report_number("threads", (double)o->threads, "");
	if (o->channels > 1) {
		report_memory(&before_here, &here, o->channels - 1, "opener");
		if (!n.peer.ctx)
			report_memory(&before_there, &there, o->channels - 1, "peer");
	}
	for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++) {
		if (strcmp(o->op, "all") == 0 || strcmp(o->op, hows[i].name) == 0)
			report_how(&n, &hows[i], channels);
	}
	facts_here(n.ctx, &here);
	facts_there(&n, &there);
	report_row();
	report_number("lanes (queue pairs) with 1 channel", (double)before_here.lanes, "");
	report_number("lanes (queue pairs) at the end", (double)here.lanes, "");
	report_number("receiver not ready", (double)(here.rnr + there.rnr), "");
	report_number("dropped", (double)(here.dropped + there.dropped), "");
	for (uint64_t i = 0; i < o->channels; i++)
		tern_channel_close(channels[i]);
	node_stop(&n);
	free(channels);
	report_end();
	return 0;
}

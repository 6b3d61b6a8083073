/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many channels from many threads against one channel from one thread and from all threads, in rounds. And what a
 * channel costs while nothing happens on it, at both ends.
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

/* The loads of a round. */
enum { ONE, CROWD, MANY, LOADS };

/* What the rounds measured of one load. */
typedef struct series {
	double rate[ROUNDS_MAX], cpu[ROUNDS_MAX], turns[ROUNDS_MAX], least[ROUNDS_MAX], most[ROUNDS_MAX];
} series;

static void measure(const load *l, series *s, unsigned round)
{
	load_result r = load_run(l);

	s->rate[round] = (double)r.ops / r.seconds;
	s->cpu[round] = 1e9 * r.cpu_seconds / (double)r.ops;
	s->turns[round] = 1e3 * (double)r.switches / (double)r.ops;
	s->least[round] = r.least;
	s->most[round] = r.most;
}

/*
 * The three loads one after the other, backwards in every other round: what the host does meanwhile, and what the load before
 * left in caches and with the scheduler, falls on all of them alike.
 */
static void measure_round(const load *base, const options *o, series s[LOADS], unsigned round)
{
	for (unsigned i = 0; i < LOADS; i++) {
		unsigned which = round % 2 ? LOADS - 1 - i : i;
		load l = *base;

		l.threads = which == ONE ? 1 : (unsigned)o->threads;
		l.count = which == MANY ? o->channels : 1;
		measure(&l, &s[which], round);
	}
}

/* Of the rounds, each of which has seen the same host. */
static void report_ratio(const char *name, const series *many, const series *other, unsigned rounds)
{
	double ratio[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++)
		ratio[i] = many->rate[i] / other->rate[i];
	report_number(name, median(ratio, rounds), "");
	report_number("  least of the rounds", ratio[0], "");
	report_number("  quarter of the rounds", ratio[rounds / 4], "");
	report_number("  most of the rounds", ratio[rounds - 1], "");
}

static void report_how(node *n, const how *h, tern_channel **channels)
{
	const options *o = n->o;
	series s[LOADS];
	tern_key key = node_target(n, h->bytes * o->threads + 64);
	uint8_t *src = node_memory(n, h->bytes * o->threads + 64);
	unsigned rounds = (unsigned)o->rounds;
	load base = {.n = n,
		     .channels = channels,
		     .op = h->op,
		     .bytes = h->bytes,
		     .ms = o->ms,
		     .src = src,
		     .key = &key};

	for (unsigned i = 0; i < rounds; i++)
		measure_round(&base, o, s, i);
	report_row();
	report_text("operation", h->name);
	report_number("bytes", (double)h->bytes, "");
	/* The ratios first: a median sorts. */
	report_ratio("to 1 channel 1 thread", &s[MANY], &s[ONE], rounds);
	report_ratio("to 1 channel all threads", &s[MANY], &s[CROWD], rounds);
	report_number("1 channel 1 thread", median(s[ONE].rate, rounds), "/s");
	report_number("1 channel all threads", median(s[CROWD].rate, rounds), "/s");
	report_number("all channels all threads", median(s[MANY].rate, rounds), "/s");
	report_number("all channels all threads", median(s[MANY].rate, rounds) * (double)h->bytes * 1e-9,
		      "GB/s");
	report_number("cpu of 1 channel 1 thread", median(s[ONE].cpu, rounds), "ns/op");
	report_number("cpu of all channels all threads", median(s[MANY].cpu, rounds), "ns/op");
	report_number("switches per 1000 operations", median(s[MANY].turns, rounds), "");
	report_number("operations of the slowest thread", median(s[MANY].least, rounds), "of the mean");
	report_number("operations of the fastest thread", median(s[MANY].most, rounds), "of the mean");
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

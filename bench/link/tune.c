/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures where the ways of moving bytes cross on this machine, and says which options follow from that:
 *
 *   message or put     the time until the far end has n bytes and has answered, by a message and by a put with
 *                      notification: messages are copied once more, puts need a key and memory at the far end
 *   small              the largest put that takes at most twice as long as one of 64 bytes: to let it go ahead of
 *                      bulk costs bulk next to nothing (link.small_bytes)
 *   chunk              the smallest piece that reaches 95 % of the best rate (link.chunk_bytes), because a small
 *                      message waits for up to two pieces
 *
 * Threads: main, and one that puts.
 */
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define SIZES   8
#define SAMPLES 400

static const uint64_t sizes[SIZES] = {64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};
static const uint64_t chunks[] = {65536, 262144, 1048576, 4194304};
#define CHUNKS (sizeof(chunks) / sizeof(chunks[0]))

/* Microseconds until the answer. */
static double exchange(node *n, tern_channel *channel, const uint8_t *src, uint64_t bytes,
		       const tern_key *key)
{
	tern_op op = {0}, answer = {0};
	uint64_t from = now_ns();
	tern_status status;
	uint8_t byte;

	must(tern_recv(channel, &byte, 1, &answer), "receive");
	do {
		status = key ? tern_put_notify(channel, src, bytes, key, 0, 1, &op)
			     : tern_send(channel, src, bytes, &op);
	} while (status == TERN_AGAIN);
	must(status, "submit");
	must(tern_op_wait(n->ctx, &answer, PATIENCE_NS), "an answer");
	must(tern_op_wait(n->ctx, &op, PATIENCE_NS), "an operation");
	return 1e-3 * (double)(now_ns() - from);
}

typedef struct crossing {
	uint64_t put_from;   /* puts are a tenth faster from here on; 0 = never */
	uint64_t small_upto; /* at most twice the time of 64 bytes */
} crossing;

static crossing sweep(const options *o)
{
	static double message[SAMPLES], put[SAMPLES];
	crossing c = {0};
	double first = 0, by_message, by_put;
	tern_channel *channel;
	tern_key key;
	uint8_t *src;
	node n;

	node_start(o, &n);
	channel = node_open(&n, SERVICE_ECHO, NULL);
	key = node_target(&n, sizes[SIZES - 1]);
	src = node_memory(&n, sizes[SIZES - 1]);
	for (unsigned k = 0; k < SIZES; k++) {
		for (unsigned i = 0; i < SAMPLES; i++) {
			message[i] = exchange(&n, channel, src, sizes[k], NULL);
			put[i] = exchange(&n, channel, src, sizes[k], &key);
		}
		by_message = median(message, SAMPLES);
		by_put = median(put, SAMPLES);
		first = k == 0 ? by_put : first;
		if (by_put > 0.9 * by_message)
			c.put_from = 0;
		else if (c.put_from == 0)
			c.put_from = sizes[k];
		if (by_put <= 2 * first)
			c.small_upto = sizes[k];
		report_row();
		report_number("bytes", (double)sizes[k], "");
		report_number("message and answer", by_message, "us");
		report_number("put, notification and answer", by_put, "us");
	}
	tern_channel_close(channel);
	node_stop(&n);
	return c;
}

static uint64_t best_chunk(const options *o)
{
	double rate[CHUNKS] = {0}, best = 0;

	for (unsigned k = 0; k < CHUNKS; k++) {
		options with = *o;
		mixed_round r[3];
		double p99[3];
		char set[64];
		mixed m;
		node n;

		snprintf(set, sizeof(set), "link.chunk_bytes=%llu", (unsigned long long)chunks[k]);
		with.set[with.sets++] = set;
		with.bulk_bytes = 16 << 20;
		node_start(&with, &n);
		mixed_begin(&m, &n);
		for (unsigned i = 0; i < 3; i++) {
			r[i] = mixed_measure(&m);
			rate[k] = r[i].rate > rate[k] ? r[i].rate : rate[k];
			p99[i] = r[i].beside99;
		}
		mixed_end(&m);
		node_stop(&n);
		best = rate[k] > best ? rate[k] : best;
		report_row();
		report_number("chunk", (double)chunks[k], "B");
		report_number("puts of 16 MiB", rate[k] * 1e-9, "GB/s");
		report_number("P99 of calls beside 70 % of that", median(p99, 3), "us");
	}
	for (unsigned k = 0; k < CHUNKS; k++) {
		if (rate[k] >= 0.95 * best)
			return chunks[k];
	}
	return chunks[CHUNKS - 1];
}

static void tune_one(const options *o)
{
	crossing c;
	uint64_t chunk;

	report_begin(o, "tune");
	c = sweep(o);
	chunk = best_chunk(o);
	report_row();
	report_number("link.small_bytes", (double)(c.small_upto < 65536 ? c.small_upto : 65536), "");
	report_note("    puts up to %llu bytes take at most twice as long as one of 64: they may go ahead of "
		    "bulk",
		    (unsigned long long)c.small_upto);
	report_number("link.chunk_bytes", (double)chunk, "");
	report_note("    the shortest piece that reaches 95 %% of the best rate; a call waits for up to two");
	if (c.put_from)
		report_number("rpc: sinks from", (double)c.put_from, "B");
	else
		report_text("rpc: sinks from", "never: messages are as fast at every size");
	report_note(
		"    below, inline arguments and answers are as fast as a put into a sink, within a tenth");
	report_end();
}

int tune(const options *o)
{
	static const char *const each[] = {"shm", "tcp"};
	options with = *o;

	if (with.sets == sizeof(with.set) / sizeof(with.set[0])) {
		fprintf(stderr, "bench-link: --tune sets one option more: leave one --set out\n");
		return 2;
	}
	if (o->transport) {
		tune_one(o);
		return 0;
	}
	for (unsigned i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		with.transport = each[i];
		tune_one(&with);
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of bench-link share.
 *
 *   options  the command line, one row each (options.c)
 *   peer     the other node: a process of its own, or over loop a second context in this one (peer.c)
 *   node     this node: context, link, a client of the peer's calls (node.c)
 *   load     threads that send or put over channels, counted at the far end (load.c)
 *   bare     what case mixed asks of the kernel, without tern (bare.c)
 *   report   what a case says: lines for people, or one object of JSON (report.c)
 *
 * Threads: the main one, and those of a load while it runs.
 */
#ifndef TERN_BENCH_LINK_H
#define TERN_BENCH_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/channel.h>
#include <tern/mem.h>
#include <tern/rpc.h>

#define CHANNELS_MAX 65000
#define THREADS_MAX  256
#define ROUNDS_MAX   99
#define PATIENCE_NS  60000000000ull
#define CALLS_MAX    (1u << 20) /* of one measurement */

typedef struct options {
	const char *test, *transport, *op;
	uint64_t channels, threads, bytes, bulk_bytes, rounds, ms, pace_us, share;
	const char *set[16]; /* "layer.name=value" of both nodes */
	unsigned sets;
	bool tune, json;
} options;

/* -1: go on; else the exit status. */
int options_parse(options *o, int argc, char **argv);

/* ---- report.c ---- */

void report_begin(const options *o, const char *name);
void report_number(const char *name, double value, const char *unit);
void report_text(const char *name, const char *text);
/* A line of several: JSON makes it an object of the list `rows`. */
void report_row(void);
void report_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_end(void);

/* ---- peer.c ---- */

#define SERVICE_SINK  "bench.sink"  /* counts messages and notifications */
#define SERVICE_STALL "bench.stall" /* receives nothing before METHOD_DRAIN */
#define SERVICE_ECHO  "bench.echo"  /* answers each message and notification with a byte */

enum { METHOD_FACTS = 1, METHOD_KEY, METHOD_ECHO, METHOD_DRAIN };

typedef struct facts {
	uint64_t messages, bytes, notifies, opened;
	uint64_t drained, drained_bytes;
	uint64_t anon_bytes; /* RssAnon of the process */
	uint64_t channels, channel_bytes, dropped, rnr, lanes;
} facts;

typedef struct peer {
	char address[128];
	int stop; /* descriptor whose end stops the process; -1 = a context of this process */
	int pid;
	tern_ctx *ctx; /* loop */
} peer;

/* Before any thread and context of this process. */
bool peer_start(const options *o, peer *p);
void peer_stop(peer *p);
/* The same facts of this side. */
void facts_here(tern_ctx *ctx, facts *f);
/* Creation parameters of a context of either node; `buf` holds what they point to. */
typedef struct ctx_config {
	tern_ctx_params params;
	const char *list[24];
	char channels[48];
} ctx_config;
void ctx_configure(const options *o, ctx_config *config);

/* ---- node.c ---- */

typedef struct node {
	const options *o;
	peer peer;
	tern_ctx *ctx;
	tern_link *link;
	tern_rpc *rpc;
} node;

/* These end the process with a message when something fails: a bench has nobody to tell. */
void node_start(const options *o, node *n);
void node_stop(node *n);
void must(tern_status status, const char *what);
void facts_there(node *n, facts *f);
tern_channel *node_open(node *n, const char *service, const tern_channel_params *params);
/* Memory of the peer that may be written. */
tern_key node_target(node *n, uint64_t bytes);
void *node_memory(node *n, uint64_t bytes);
uint64_t now_ns(void);
void sleep_ns(uint64_t ns);
/* Option link.chunk_bytes as the nodes have it. */
uint64_t chunk_bytes(const options *o);

/* ---- load.c ---- */

typedef enum load_op { LOAD_SEND, LOAD_PUT } load_op;

typedef struct load {
	node *n;
	tern_channel **channels;
	uint64_t count; /* each thread has its share of them */
	unsigned threads;
	load_op op;
	uint64_t bytes, ms;
	uint8_t *src;        /* threads x bytes */
	const tern_key *key; /* puts: likewise at the peer */
} load;

typedef struct load_result {
	uint64_t ops;
	double seconds, cpu_seconds; /* of this process */
	uint64_t switches;           /* of context, in this process */
	double least, most;          /* operations of one thread, to the mean */
} load_result;

load_result load_run(const load *l);

/* ---- figures.c ---- */

double median(double *v, unsigned n);
/* Sorts. share: 0.99. */
double percentile(double *v, uint64_t n, double share);

/* ---- mixed.c ---- */

typedef struct mixed {
	node *n;
	tern_channel *channel;
	tern_key key;
	uint8_t *src;
	double *us;            /* room for samples */
	struct stalls *stalls; /* NULL: they are not told apart */
} mixed;

/* One round: calls alone, bulk alone, calls beside bulk at the share of its rate. Microseconds, bytes per second. */
typedef struct mixed_round {
	double alone50, alone99, alone999, beside50, beside99, beside999, rate, paced;
	double alone_free99, beside_free99; /* of the calls that no stall of the machine delayed */
	double alone_free, beside_free;     /* how many those are, of all */
	uint64_t calls;
} mixed_round;

/* For the calling thread: see mixed.c. */
void ask_for_short_slices(void);
void mixed_begin(mixed *m, node *n);
void mixed_end(mixed *m);
mixed_round mixed_measure(mixed *m);

/* ---- bare.c ---- */

/* A process that answers by eventfd, or by a socket. */
typedef struct bare {
	int asked, answered, bulk, pid; /* bulk: -1 = none */
	uint64_t bytes;                 /* of a question */
} bare;

/* Before any thread of this process. */
void bare_start(const options *o, bare *b);
void bare_stop(bare *b);
/* One round. us: room for CALLS_MAX. */
void bare_measure(const bare *b, const options *o, double *us, double *alone99, double *beside99);

/* ---- cases: exit status ---- */

int case_channels(const options *o);
int case_mixed(const options *o);
int case_stall(const options *o);
int tune(const options *o);

#endif

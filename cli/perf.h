/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern perf`: what its parts share.
 *
 *   initiator  the process that measures: pinned to the first allowed core
 *   target     its child, pinned to the second: answers, polls, is written to
 *   limit      what the machine itself can do, measured in the same run beside each row: by a helper process,
 *              and for verbs by perftest
 *
 * Rounds are interleaved: limit, tern, limit, tern, ...; a ratio is the median of the rounds' own ratios, and
 * the cache-line probe before and after tells whether the two cores stood equally far apart all the time.
 */
#ifndef CLI_PERF_H
#define CLI_PERF_H

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include <tern/rpc.h>

#define PERF_SIZES_MAX    32
#define PERF_ROUNDS_MAX   64
#define PERF_METHOD_READY 1u
#define PERF_METHOD_JOB   2u
#define PERF_METHOD_ECHO  3u
#define PERF_SERVICE      "tern.perf"
#define PERF_THREAD       "tern.perf.thread" /* service of the channels of --threads: answers nothing */
#define PERF_NO_ECHO      0xee               /* first byte of messages that get no answer */
#define PERF_SAMPLES_MAX  20000
#define PERF_IN_FLIGHT    64
#define PERFTEST_BYTES    (16ull << 20) /* a stream's, of perftest and beside it */
#define PERF_THREADS_MAX  64

typedef enum perf_op { PERF_PUT, PERF_NOTIFY, PERF_GET, PERF_SEND, PERF_CALL, PERF_OPS } perf_op;
extern const char *const perf_op_names[];
extern const char *const perf_transports[];

typedef struct perf_options {
	bool ops[PERF_OPS];
	uint64_t sizes[PERF_SIZES_MAX];
	unsigned size_count;
	unsigned transport; /* index of perf_transports */
	bool spin, json, quiet;
	uint64_t rounds; /* pairs of limit and tern */
	uint64_t round_ns;
	uint64_t threads; /* > 0: --threads instead of rows */
	int cores[2];     /* -1: not pinned */
} perf_options;

/* What the target is asked to do next, by a call of PERF_METHOD_JOB; it answers when it is done. */
typedef struct perf_job {
	uint32_t kind; /* perf_job_kind */
	uint32_t spin;
	uint64_t bytes;
	uint64_t rounds; /* of a ping-pong */
	uint64_t first;  /* number of the first flag or notification */
} perf_job;

enum perf_job_kind {
	PERF_JOB_PONG_FLAG = 1,   /* answer each flag with a flagged put of the same size */
	PERF_JOB_PONG_NOTIFY = 2, /* answer each notification with a put that notifies */
	PERF_JOB_EXIT = 3,
	PERF_JOB_REST =
		4, /* sleep while there is nothing to do, until the next job: a stream needs no spinner */
	PERF_JOB_SPIN = 5,
};

/* Keys of the target's memory, and later of the initiator's. */
typedef struct perf_hello {
	tern_key data;
	tern_key flag;
	uint64_t bytes;
} perf_hello;

#define PERF_PONG_OPS 16

/*
 * A ping-pong of notifications between two spinning sides: each answers in its callback, as a program that
 * waits for events would. One thread.
 */
typedef struct perf_pong {
	uint64_t left;    /* notifications to come */
	uint64_t early;   /* that came before the ping-pong began here */
	uint64_t answers; /* to be sent */
	uint64_t bytes;
	bool owed; /* an answer was refused for room: the loop sends it */
	bool failed;
	tern_op ops[PERF_PONG_OPS];
	unsigned next;
	double *samples; /* of the initiator: half the time between two notifications; NULL: not taken */
	unsigned count, count_max;
	uint64_t last_ns;
} perf_pong;

/* One side's memory and channel. */
typedef struct perf_side {
	tern_ctx *ctx;
	tern_channel *channel;
	uint8_t *data; /* bytes, readable and writable by the peer */
	uint8_t *out;  /* bytes, source of puts */
	volatile uint64_t *flag;
	uint64_t notified; /* notifications that came */
	perf_pong pong;
	uint64_t bytes;
	perf_hello mine, peer;
	bool passive; /* one-sided access needs no progress here */
} perf_side;

uint64_t perf_now_ns(void);
void perf_pin(int core);
bool perf_side_init(perf_side *side, tern_ctx *ctx, uint64_t bytes);
/* Send the first of a ping-pong (initiator), or wait for it; false: the peer is gone or a put failed. */
bool perf_pong_run(perf_side *side, uint64_t bytes, uint64_t rounds, bool first);
/* Channel callback of both sides: counts notifications, answers those of a ping-pong. arg: the side. */
void perf_on_notify(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg);
/*
 * Wait until the peer's put number value is there: by its flag word (only while spinning: a flag wakes nobody)
 * or by counting notifications. False: the peer is gone.
 */
bool perf_await_put(perf_side *side, uint64_t value, bool flag);
/*
 * Put number value: bytes and then flag word (8 bytes: the word alone) or notification; progress is made until
 * it is accepted. LOCAL: whoever gets the answering put knows that this one arrived.
 */
bool perf_put(perf_side *side, uint64_t bytes, uint64_t value, bool flag, tern_op *op);

/* The target process: connects to address, answers until told to exit. Exit status. */
int perf_target(const char *address, uint64_t bytes, const char *transport, bool spin, int core);

/* ---- perf_limits.c: what the machine can do ---- */

typedef struct limits limits; /* a helper process that echoes; made once */
limits *limits_start(const perf_options *options, uint64_t bytes_max);
/* The two mapped segments that the copy limit copies between: like tern's, in registered memory. */
void limits_use(limits *l, uint8_t *from, uint8_t *to);
void limits_stop(limits *l);
/* One way of a cache line between the two cores, in nanoseconds. */
double limit_cache_line_ns(limits *l);
/* Bytes per nanosecond of the better of memcpy and non-temporal copy between two mapped segments. */
double limit_copy_rate(limits *l, uint64_t bytes);
/* One way of a plain blocking (or spinning) TCP ping-pong of that size. */
double limit_tcp_ns(limits *l, uint64_t bytes);
/* Bytes per nanosecond of a plain TCP stream, until the receiver has all of bytes, many times. */
double limit_tcp_rate(limits *l, uint64_t bytes);

/* ---- perf_verbs.c: perftest as the limit ---- */

/* The RDMA device that perftest shall use: TERN_VERBS_DEVICE, else the first with an ACTIVE port. False: none. */
bool perftest_device(char *name, size_t bytes);
/* Median of half a round trip (lat), of a read's whole one (ib_read_lat), in nanoseconds. NAN: could not run. */
double perftest_latency_ns(const perf_options *o, const char *tool, uint64_t bytes);
/* Bytes per nanosecond of a stream (bw). NAN: could not run. */
double perftest_rate(const perf_options *o, const char *tool, uint64_t bytes);
/* Why the last one could not run; "" = it did. */
const char *perftest_problem(void);

/* ---- perf_measure.c: operations and how they are timed; the initiator ---- */

typedef enum perf_kind { PERF_KIND_SHM, PERF_KIND_TCP, PERF_KIND_VERBS } perf_kind;

typedef struct perf_bench {
	const perf_options *o;
	perf_side side;
	tern_link *link;
	tern_rpc *rpc;
	limits *limits;
	perf_kind kind;
	uint64_t bytes_max;
	pid_t target;
	uint64_t flags, notifies; /* number of the last put of each kind of ping-pong */
	volatile uint64_t echoes;
	double samples[PERF_SAMPLES_MAX];
	unsigned count;
} perf_bench;

_Noreturn void perf_die(const char *what);
void perf_await_op(perf_bench *b, tern_op *op, const char *what);
/* Run ops for about round_ns: b->samples, nanoseconds each. */
void perf_sample(perf_bench *b, perf_op op, uint64_t bytes);
/* Bytes per nanosecond with operations in flight. */
double perf_stream(perf_bench *b, perf_op op, uint64_t bytes);

/* ---- perf_rows.c: limits beside operations, statistics, output ---- */

void perf_rows(perf_bench *b);

/* ---- perf_threads.c ---- */

/* Puts from 1, 2, 4, ... o->threads threads at a time, and what they cost the context. */
void perf_threads(perf_bench *b);

#endif

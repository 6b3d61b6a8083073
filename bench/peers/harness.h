/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all programs of bench/peers share: the same work, done by tern and by what one would use instead of it, measured
 * in one way and said in one format. tools/bench.py runs them in turn.
 *
 *   work     so many operations of one kind, size and depth
 *   client   the process that measures, on the first core it may use; takes commands from standard input, one a line:
 *              OP BYTES DEPTH MILLISECONDS      (fetch, push: keys instead of bytes)
 *            and answers each with one line of JSON
 *   server   its child, on the second core; asleep in a futex between two pieces of work, whatever the library does
 *   mailbox  a page that both map: set-up, and which work comes next. No data path goes through it
 *
 * What an operation is, and when it counts as done:
 *
 *   put      bytes from here into the server's memory. Depth 1: half of a ping-pong of puts, each noticed by whoever
 *            waits for it. Deeper: so many in flight, until the last one is complete at the server
 *   get      bytes of the server's memory, here. Two-sided libraries: a request of 16 bytes, an answer
 *   call     bytes there, the same number back, answered by a handler
 *   stream   messages of so many bytes, one way, until the last one was received
 *   fetch    rows of 64 f32 of so many keys, out of a table of a million; push: gradients for them (adagrad)
 *   line     a cache line, one way between the two cores; copy: between two mapped segments (limit.c alone, whose call
 *            is a bare ring's: the lines of tern's two messages, without anything that is done for them)
 *
 * Threads: one on each side, and those of the library that is measured. No test but a smoke (tests/e2e/peers_test.py).
 */
#ifndef TERN_BENCH_HARNESS_H
#define TERN_BENCH_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define H_DIM       64 /* f32 of a row */
#define H_ROWS      1000000
#define H_KEYS_MAX  16384
#define H_MARKS_MAX 20000
#define H_DEPTH_MAX 64
#define H_REQUEST   16 /* bytes of a request for a get */
#define H_ACK       8
#define H_MAIL_MAX  4096
#define H_CELLS     64 /* of a bare ring: limit.c */

#define H_ALIGNED(n) __attribute__((aligned(n)))

typedef enum h_op { H_PUT, H_GET, H_CALL, H_STREAM, H_FETCH, H_PUSH, H_LINE, H_COPY, H_OPS } h_op;

typedef struct h_work {
	uint32_t op, depth;
	uint64_t size;            /* bytes, or keys of a fetch or push */
	uint64_t count;           /* operations */
	uint64_t request, answer; /* bytes of either message, for two-sided libraries; stream: no answer */
} h_work;

typedef struct h_mail {
	uint32_t full;
	uint32_t bytes;
	uint8_t data[H_MAIL_MAX];
} h_mail;

typedef struct h_shared {
	H_ALIGNED(64) uint32_t seq; /* a futex: number of the last work; UINT32_MAX: no more */
	H_ALIGNED(64) uint32_t served;
	H_ALIGNED(64) uint32_t done; /* the client has all that it wanted of this work */
	H_ALIGNED(64) h_work work;
	h_mail mail[2]; /* to the server, to the client */
	char error[512];
	H_ALIGNED(128) uint64_t ping; /* limit.c */
	H_ALIGNED(128) uint64_t pong;
	H_ALIGNED(256) uint8_t cells[2][H_CELLS][256];
} h_shared;

typedef struct h_env h_env;

typedef struct h_peer {
	const char *name;
	/* NULL, or why this library can't do the work over that transport in that mode. */
	const char *(*cannot)(const h_env *e, const h_work *w);
	void (*server)(h_env *e); /* set up; in the server's process */
	void (*client)(h_env *e);
	void (*serve)(h_env *e, const h_work *w); /* until w->count operations are done, or h_done() */
	void (*run)(h_env *e, const h_work *w);   /* all of them, h_tick() after each */
} h_peer;

struct h_env {
	const h_peer *peer;
	const char *transport;
	bool spin, server;
	bool plain;     /* tern: waits as they are unasked, neither spinning nor sleeping at once */
	bool keepalive; /* tern: with its keepalives: what a link without work costs */
	h_shared *shared;
	pid_t pid;          /* client: of the server */
	uint64_t bytes_max; /* of an operation, from the command line */
	uint8_t *in, *out;  /* of a peer's own making; at least bytes_max */
	void *state;
	uint64_t put_seq;                         /* puts so far: what the waiting side looks for */
	uint64_t marks[H_MARKS_MAX + 1], *stream; /* times; keys to ask for */
	uint64_t stream_at;
	unsigned mark_count, group, since;
	void *table;
};

uint64_t h_now(void);
/* The work can't go on: the reason becomes the answer to the command. */
void h_die(h_env *e, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* Something for the other side's h_take(), which waits for it. */
void h_give(h_env *e, const void *data, size_t bytes);
size_t h_take(h_env *e, void *data, size_t capacity);
/* Memory of whole pages, touched. */
uint8_t *h_alloc(h_env *e, uint64_t bytes);
int h_main(const h_peer *peer, int argc, char **argv);

static inline bool h_done(h_env *e)
{
	return __atomic_load_n(&e->shared->done, __ATOMIC_ACQUIRE) != 0;
}

/* Client: one more operation is done. */
static inline void h_tick(h_env *e)
{
	if (++e->since == e->group) {
		e->since = 0;
		if (e->mark_count <= H_MARKS_MAX)
			e->marks[e->mark_count++] = h_now();
	}
}

/* The next `count` keys to ask for. */
const uint64_t *h_keys(h_env *e, uint64_t count);

/* ---- two.c: the work as messages both ways, for libraries that have nothing else ---- */

typedef struct h_two {
	/* The pieces are one message; they may be reused when it returns. */
	void (*send)(h_env *e, const struct iovec *iov, int count);
	/* The next message, whole, into buf: it has so many bytes. */
	void (*recv)(h_env *e, uint8_t *buf, uint64_t bytes);
} h_two;

void h_two_serve(h_env *e, const h_two *t, const h_work *w);
void h_two_run(h_env *e, const h_two *t, const h_work *w);
/* What a server makes of one request that lies at e->in: the answer lies there, so many bytes. */
const uint8_t *h_two_answer(h_env *e, const h_work *w, const uint8_t *request);
/* The request of the next operation in pieces; how many. */
int h_two_request(h_env *e, const h_work *w, struct iovec iov[3]);

/* ---- table.c: the engine of tern's tables, called by the servers of all others ---- */

void *h_table_make(void);
void h_table_pull(void *table, const uint64_t *keys, uint64_t count, float *rows);
void h_table_push(void *table, const uint64_t *keys, uint64_t count, const float *rows);
uint64_t h_key(uint64_t i);

#ifdef __cplusplus
}
#endif

#endif

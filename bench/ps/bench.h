/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an embedding fetch and a gradient push cost, so many ways in one run:
 *
 *   local    the engine's batch call in this process: what no transport can beat
 *   local 4k the same with the table in memory as processes share it, in pages of 4 KiB: what no reader of such memory can
 *            beat
 *   kernel   a server process over loopback TCP: blocking reads, the same engine call, one writev; a client with one
 *            writev and one scatter read into the rows
 *   tern     a server process, over shm or tcp; one-sided: the client reads the server's memory
 *            blocking, both sides sleep when there is nothing to do: as they do unasked, which is to spin for a while first,
 *            and without that (no spin)
 *   bare     a server process with the same engine, a page of shared memory and a word each way: what nothing that asks
 *            another process can beat
 *
 * Each line has a server process of its own, stopped (SIGSTOP) while another line is measured. Rounds go through all
 * lines in turn, so that what the host does to one it does to all; figures are medians of rounds.
 *
 * Threads: one in the client, those of the library beside it.
 */
#ifndef BENCH_PS_BENCH_H
#define BENCH_PS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tern/ps.h>

#define ROUNDS_MAX 31
#define KEYS_MAX   16384

typedef struct options {
	bool push, spin, json;
	uint64_t rows, iterations;
	uint32_t dim, rounds, keys; /* keys: one size alone; 0: all */
	const char *only;
} options;

/* Keys of one request and where its rows are. */
typedef struct request {
	const uint64_t *keys;
	uint32_t count;
	float *rows; /* fetch: destination; push: gradients */
} request;

typedef struct line {
	const char *name;
	pid_t server; /* 0: this process */
	void *state;
	/* rows: memory that the line likes best for count rows */
	float *(*rows)(struct line *line, uint64_t bytes);
	void (*run)(struct line *line, const request *r);
	void (*leave)(struct line *line); /* or NULL: what is to do before the server is ended */
} line;

extern options opt;

enum {
	LOCAL,
	LOCAL_4K,
	KERNEL,
	BARE,
	SHM,
	SHM_ASLEEP, /* blocking: no spin */
	ONE_SIDED,
	TCP,
	TCP_ASLEEP,
	LINES
};

/* Is it a line of this run? */
bool measures(unsigned number);

tern_table_schema bench_schema(void);
uint64_t bench_key(uint64_t i);
void bench_die(const char *what, const char *why) __attribute__((noreturn));
/* This process to CPU n % CPUs. */
void bench_pin(unsigned n);
/* A request of one line: the engine's part. */
/* small_pages: in memory like what processes share, in pages of 4 KiB. */
struct tn_table *bench_table(bool small_pages);
void bench_apply(struct tn_table *table, const request *r);

/* small_pages: see bench_table. */
void line_local(line *l, const char *name, bool small_pages);
void line_kernel(line *l);
/* The lines with a server fork: before this process has threads. */
void line_bare(line *l);
/* one_sided: pulls read rows where they lie. asleep: nobody spins, even for a moment. */
void line_tern(line *l, const char *name, const char *transport, bool one_sided, bool asleep);
/* The servers of all lines end. */
void line_end(line *l);

/* ---- figures.c ---- */

typedef enum metric { MEAN, P50, P99, CPU, METRICS } metric;

/* Of a line in one round: us. */
typedef struct figures {
	double of[METRICS];
} figures;

/* Of rounds: the median, and the interval that holds the true one with 95 % by the sign test (fewer than six: the extremes). */
typedef struct spread {
	double median, low, high;
} spread;

spread spread_of(double *v, uint32_t n);
spread median_of(const figures *f, uint32_t n, metric what);
/* 1 - (line - local) / (kernel - local), in percent. */
spread saved_of(const figures *f, const figures *local, const figures *kernel, uint32_t n, metric what);
spread ratio_of(const figures *f, const figures *other, uint32_t n, metric what);

/* ---- report.c: of one size of requests ---- */

void report(const line *lines, unsigned number, uint32_t keys, figures (*got)[ROUNDS_MAX]);
void report_aims(const line *lines, uint32_t keys, figures (*got)[ROUNDS_MAX]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an embedding fetch and a gradient push cost, three ways in one run:
 *
 *   local    the engine's batch call in this process: what no transport can beat
 *   local 4k the same with the table in memory as processes share it, in pages of 4 KiB: what no reader of such memory can
 *            beat
 *   kernel   a server process over loopback TCP: blocking reads, the same engine call, one writev; a client with one
 *            writev and one scatter read into the rows
 *   tern     a server process, over shm or tcp; one-sided: the client reads the server's memory
 *   wake     two processes that wake each other (or spin on a word), and the local line: what nothing between two
 *            processes can beat
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

#define ROUNDS_MAX 15
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
} line;

extern options opt;

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
/* Before this process has threads; then the table of the local line. */
void line_wake(line *l);
void line_wake_table(line *l, struct tn_table *table);
/* one_sided: pulls read rows where they lie. */
void line_tern(line *l, const char *name, const char *transport, bool one_sided);
/* The servers of all lines end. */
void line_end(line *l);

typedef struct figures {
	double mean, p50, p99, cpu; /* us */
} figures;

void report(const char *name, uint32_t keys, const figures *f, uint32_t rounds, const figures *local,
	    const figures *kernel);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern bench ps`: what the command and its clients share.
 *
 *   lane    one thread of one client: one operation at a time, one member of the group
 *   phase   set-up (rows are made), warm-up, measured, over; the command moves it, lanes look at it
 */
#ifndef CLI_BENCH_PS_H
#define CLI_BENCH_PS_H

#include <stdatomic.h>

#include <tern/ps_group.h>

#include "crew.h"
#include "histogram.h"

#define BENCH_PS_THREADS_MAX 64

enum { BENCH_ASYNC, BENCH_BSP, BENCH_SSP };
enum { BENCH_SETUP, BENCH_WARM, BENCH_MEASURED, BENCH_OVER };

typedef struct bench_ps_options {
	const char *servers, *transport;
	uint64_t clients, threads, keys, dim, batch, staleness, seed;
	double skew, reads; /* reads: percent */
	unsigned dtype, optimizer, consistency;
	uint64_t duration_ns, warmup_ns;
	bool spin, check, json, quiet;
} bench_ps_options;

/* Written by its lane alone, read by the command when the lane is done; ops at any time. */
typedef struct bench_ps_lane {
	_Alignas(64) _Atomic uint64_t keys; /* of operations that ended, of all phases: for progress */
	uint64_t pulled, pushed;            /* keys, from the beginning, rows made at set-up not included */
	uint64_t measured_keys;
	histogram pull, push; /* ns, measured alone */
} bench_ps_lane;

typedef struct bench_ps_shared {
	_Atomic uint32_t phase;
	_Atomic uint32_t table_ready;
	_Atomic uint32_t lanes_ready;
	_Atomic uint64_t rows_made;
	char table[TERN_TABLE_NAME_MAX];
	bench_ps_lane lanes[]; /* client-major */
} bench_ps_shared;

int bench_ps(int argc, char **argv);
/* The main function of a client process (bench_ps_client.c); arg is the options. */
int bench_ps_client(crew *c, uint32_t index, void *options);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of bench-ps-save share: save.c runs the processes and the operations, save_report.c makes figures of them.
 */
#ifndef TERN_BENCH_PS_SAVE_H
#define TERN_BENCH_PS_SAVE_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/ps_save.h>

#include "stalls.h"

#define SAVE_ROUNDS_MAX 25
#define SAVE_OPS_MAX    (4u << 20) /* of one phase */

/* An operation: it was due and over at these times. queued: it was due before the one ahead of it was over. */
typedef struct took {
	uint64_t due, end;
	bool read, queued;
} took;

/* Of one phase. */
typedef struct figures {
	double p50, p99, max; /* us, of pulls */
	double achieved;      /* operations per second */
	/* where the machine is watched */
	double free99;   /* P99 of the pulls that no stall delayed */
	double no_stall; /* how many those are, of all */
	double stalled;  /* share of the cores' time */
} figures;

/* False: there is no pull. machine may be NULL. */
bool save_figures(const took *list, uint64_t all, uint64_t start, const stalls *machine, figures *f);

typedef struct save_run {
	double per_second;   /* the peak */
	uint64_t load, rate; /* percent of it; bytes per second of the saver */
	uint64_t rounds;
	bool json, watched;
} save_run;

/* A line for people, or one object of JSON. alone, beside, saved: one of each round. */
void save_report(const save_run *run, const figures *alone, const figures *beside,
		 const tern_ps_save_result *saved);

#endif

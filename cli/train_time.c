/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the steps of one process cost: wall time of each, processor time of all. The median of the steps leaves out the
 * first one, which touches memory for the first time. Threads: main. Tests: tests/e2e/train_test.py.
 */
#include <stdlib.h>
#include <time.h>

#include "train.h"

static uint64_t read_clock(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void train_time_begin(train_time *t)
{
	t->count = 0;
	t->cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID);
	t->begin_ns = t->last_ns = read_clock(CLOCK_MONOTONIC);
}

double train_time_seconds(const train_time *t)
{
	return (double)(read_clock(CLOCK_MONOTONIC) - t->begin_ns) * 1e-9;
}

void train_time_step(train_time *t)
{
	uint64_t now = read_clock(CLOCK_MONOTONIC);

	t->step_ns[t->count++ % TRAIN_TIMES] = now - t->last_ns;
	t->last_ns = now;
}

void train_time_end(train_time *t)
{
	t->cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID) - t->cpu_ns;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

uint64_t train_time_median(train_time *t)
{
	uint64_t first = t->count > 1 && t->count <= TRAIN_TIMES ? 1 : 0;
	uint64_t n = (t->count < TRAIN_TIMES ? t->count : TRAIN_TIMES) - first;

	if (!t->count)
		return 0;
	qsort(t->step_ns + first, n, sizeof(*t->step_ns), by_value);
	return t->step_ns[first + n / 2];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Medians of rounds, and what a line costs beyond the local one against what kernel TCP does. Threads: none.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

typedef double (*pick)(const figures *f);

static double mean_of(const figures *f)
{
	return f->mean;
}

static double p50_of(const figures *f)
{
	return f->p50;
}

static double p99_of(const figures *f)
{
	return f->p99;
}

static double cpu_of(const figures *f)
{
	return f->cpu;
}

static double median(const figures *f, uint32_t n, pick what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++)
		v[i] = what(&f[i]);
	qsort(v, n, sizeof(v[0]), by_value);
	return v[n / 2];
}

/* Median over rounds of 1 - (line - local) / (kernel - local), in percent: paired. */
static double saved(const figures *f, const figures *local, const figures *kernel, uint32_t n, pick what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++) {
		double below = what(&kernel[i]) - what(&local[i]);

		v[i] = below > 0 ? 100 * (1 - (what(&f[i]) - what(&local[i])) / below) : 0;
	}
	qsort(v, n, sizeof(v[0]), by_value);
	return v[n / 2];
}

/* Median over rounds of line / other, in percent above it. */
static double above(const figures *f, const figures *other, uint32_t n, pick what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++)
		v[i] = what(&other[i]) > 0 ? 100 * (what(&f[i]) / what(&other[i]) - 1) : 0;
	qsort(v, n, sizeof(v[0]), by_value);
	return v[n / 2];
}

void report(const char *name, uint32_t keys, const figures *f, uint32_t n, const figures *local,
	    const figures *kernel)
{
	const char *what = opt.push ? "push" : "fetch", *how = opt.spin ? "spin" : "block";
	double excess_mean = saved(f, local, kernel, n, mean_of),
	       excess_p99 = saved(f, local, kernel, n, p99_of);

	if (opt.json) {
		printf("{\"case\":\"%s\",\"mode\":\"%s\",\"line\":\"%s\",\"keys\":%u,\"dim\":%u,\"mean_us\":%"
		       ".2f,"
		       "\"p50_us\":%.2f,\"p99_us\":%.2f,\"cpu_us\":%.2f,\"saved_mean_pct\":%.1f,\"saved_p99_"
		       "pct\":%.1f,"
		       "\"against_local\":%.2f,\"against_kernel_pct\":%.1f,\"cpu_against_kernel_pct\":%.1f}"
		       "\n",
		       what, how, name, keys, opt.dim, median(f, n, mean_of), median(f, n, p50_of),
		       median(f, n, p99_of), median(f, n, cpu_of), excess_mean, excess_p99,
		       1 + above(f, local, n, mean_of) / 100, above(f, kernel, n, mean_of),
		       above(f, kernel, n, cpu_of));
	} else {
		printf("%-5s %-5s %5u keys  %-10s  mean %8.1f  p50 %8.1f  p99 %8.1f  cpu %8.1f us   x local "
		       "%5.2f  to "
		       "kernel: mean %+6.1f %%  p99 %+6.1f %%  cpu %+6.1f %%  beyond local saved: mean %5.1f "
		       "%%  p99 "
		       "%5.1f %%\n",
		       what, how, keys, name, median(f, n, mean_of), median(f, n, p50_of),
		       median(f, n, p99_of), median(f, n, cpu_of), 1 + above(f, local, n, mean_of) / 100,
		       above(f, kernel, n, mean_of), above(f, kernel, n, p99_of), above(f, kernel, n, cpu_of),
		       excess_mean, excess_p99);
	}
	fflush(stdout);
}

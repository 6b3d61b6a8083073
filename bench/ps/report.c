/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of a run, and what they say of the aims: a line for each, with what the bare line makes of it. An aim that this
 * misses too is one that two processes can't hold here. Threads: none.
 */
#include <stdio.h>

#include "bench.h"

static const char *what(void)
{
	return opt.push ? "push" : "fetch";
}

static const char *how(void)
{
	return opt.spin ? "spin" : "block";
}

void report(const line *lines, unsigned number, uint32_t keys, figures (*got)[ROUNDS_MAX])
{
	const figures *f = got[number], *local = got[LOCAL], *kernel = got[KERNEL];
	const char *name = lines[number].name;
	uint32_t n = opt.rounds;
	double mean = median_of(f, n, MEAN).median, p50 = median_of(f, n, P50).median,
	       p99 = median_of(f, n, P99).median, cpu = median_of(f, n, CPU).median,
	       to_local = ratio_of(f, local, n, MEAN).median,
	       to_kernel = 100 * (ratio_of(f, kernel, n, MEAN).median - 1),
	       to_kernel_p99 = 100 * (ratio_of(f, kernel, n, P99).median - 1),
	       to_kernel_cpu = 100 * (ratio_of(f, kernel, n, CPU).median - 1),
	       saved = saved_of(f, local, kernel, n, MEAN).median,
	       saved_p99 = saved_of(f, local, kernel, n, P99).median;

	printf(opt.json ? "{\"case\":\"%s\",\"mode\":\"%s\",\"keys\":%u,\"line\":\"%s\",\"mean_us\":%.2f,"
			  "\"p50_us\":%.2f,\"p99_us\":%.2f,\"cpu_us\":%.2f,\"against_local\":%.2f,"
			  "\"against_kernel_pct\":%.1f,\"p99_against_kernel_pct\":%.1f,"
			  "\"cpu_against_kernel_pct\":%.1f,\"saved_mean_pct\":%.1f,\"saved_p99_pct\":%.1f}\n"
			: "%-5s %-5s %5u keys  %-19s mean %7.2f  p50 %7.2f  p99 %7.2f  cpu %7.2f us  x local "
			  "%5.2f  "
			  "to kernel: mean %+6.1f %%  p99 %+6.1f %%  cpu %+6.1f %%  beyond local saved: mean "
			  "%5.1f %%  p99 %5.1f %%\n",
	       what(), how(), keys, name, mean, p50, p99, cpu, to_local, to_kernel, to_kernel_p99,
	       to_kernel_cpu, saved, saved_p99);
	fflush(stdout);
}

/* ---- the aims ---- */

typedef enum kind { SAVED, TO_LOCAL, TO_KERNEL } kind;
enum { FETCH = 1, PUSH = 2, SPIN = 4, BLOCK = 8, SURE = 16 };

typedef struct aim {
	unsigned where; /* cases, modes; SURE: the whole interval counts */
	uint32_t keys;  /* alone; 0: all sizes */
	unsigned line, floor;
	kind kind;
	metric metric;
	double bound; /* SAVED: at least, in percent; else at most, a ratio */
} aim;

static const aim aims[] = {
	{FETCH | SPIN, 0, SHM, BARE, TO_LOCAL, MEAN, 1.5},
	{FETCH | SPIN | BLOCK, 0, SHM, BARE, SAVED, MEAN, 80},
	{FETCH | SPIN | BLOCK, 0, SHM, BARE, SAVED, P99, 80},
	{FETCH | SPIN, 0, ONE_SIDED, LOCAL_4K, TO_LOCAL, MEAN, 1.2},
	{PUSH | SPIN | BLOCK, 1024, SHM, BARE, SAVED, P99, 74},
	{FETCH | PUSH | BLOCK, 0, SHM, BARE, TO_KERNEL, CPU, 0.6},
	{FETCH | BLOCK, 0, SHM_ASLEEP, BARE, SAVED, MEAN, 80},
	{FETCH | BLOCK, 0, SHM_ASLEEP, BARE, SAVED, P99, 80},
	{PUSH | BLOCK, 1024, SHM_ASLEEP, BARE, SAVED, P99, 74},
	{FETCH | PUSH | BLOCK, 0, SHM_ASLEEP, BARE, TO_KERNEL, CPU, 0.6},
	{FETCH | PUSH | SPIN | BLOCK | SURE, 0, TCP, KERNEL, TO_KERNEL, MEAN, 1.03},
	{FETCH | PUSH | BLOCK | SURE, 0, TCP_ASLEEP, KERNEL, TO_KERNEL, MEAN, 1.03},
};

static spread measured(const aim *a, unsigned number, figures (*got)[ROUNDS_MAX])
{
	if (a->kind == SAVED)
		return saved_of(got[number], got[LOCAL], got[KERNEL], opt.rounds, a->metric);
	return ratio_of(got[number], got[a->kind == TO_LOCAL ? LOCAL : KERNEL], opt.rounds, a->metric);
}

static bool holds(const aim *a, double v)
{
	return a->kind == SAVED ? v >= a->bound : v <= a->bound;
}

static const char *verdict(const aim *a, const spread *s)
{
	if (!(a->where & SURE))
		return holds(a, s->median) ? "yes" : "no";
	return holds(a, s->high) ? "yes" : holds(a, s->low) ? "not shown" : "no";
}

static void report_aim(const aim *a, const line *lines, uint32_t keys, figures (*got)[ROUNDS_MAX])
{
	static const char *const metrics[] = {[MEAN] = "mean", [P50] = "p50", [P99] = "p99", [CPU] = "cpu"};
	static const char *const kinds[] = {
		[SAVED] = "% saved beyond local", [TO_LOCAL] = "x local", [TO_KERNEL] = "x kernel tcp"};
	spread s = measured(a, a->line, got), floor = measured(a, a->floor, got);
	const char *says = verdict(a, &s);
	bool limit = a->floor != KERNEL && says[0] == 'n' && !holds(a, floor.low) && !holds(a, floor.high);

	printf(opt.json ? "{\"aim\":\"%s\",\"mode\":\"%s\",\"keys\":%u,\"line\":\"%s\",\"metric\":\"%s\","
			  "\"kind\":\"%s\","
			  "\"value\":%.2f,\"low\":%.2f,\"high\":%.2f,\"bound\":%.2f,\"holds\":\"%s\","
			  "\"floor\":\"%s\",\"floor_value\":%.2f,\"limit\":%s}\n"
			: "%-5s %-5s %5u keys  %-19s %-4s %-20s %6.2f (%.2f to %.2f), bound %.2f: %-9s %s "
			  "%.2f%s\n",
	       what(), how(), keys, lines[a->line].name, metrics[a->metric], kinds[a->kind], s.median, s.low,
	       s.high, a->bound, says, lines[a->floor].name, floor.median,
	       opt.json ? (limit ? "true" : "false")
	       : limit  ? ": it can't hold here"
			: "");
}

void report_aims(const line *lines, uint32_t keys, figures (*got)[ROUNDS_MAX])
{
	unsigned here = (opt.push ? PUSH : FETCH) | (opt.spin ? SPIN : BLOCK);

	for (unsigned i = 0; i < sizeof(aims) / sizeof(aims[0]); i++) {
		const aim *a = &aims[i];

		if ((a->where & here) == here && (a->keys == 0 || a->keys == keys) && measures(a->line) &&
		    measures(a->floor) && measures(KERNEL))
			report_aim(a, lines, keys, got);
	}
	fflush(stdout);
}

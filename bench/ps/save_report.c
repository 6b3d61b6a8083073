/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures of the phases of bench-ps-save, and what it says. See save.h. Threads: one.
 */
#include "save.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* ---- of a phase ---- */

/* Pulls of the list, without those that a stall delayed where machine isn't NULL. Returns how many, in order of their times. */
static uint64_t pulls(const took *list, uint64_t all, const stalls *machine, uint64_t *times)
{
	bool late = false; /* the one before this met a stall, or waited for one that did */
	uint64_t n = 0;

	for (uint64_t i = 0; i < all; i++) {
		late = machine &&
		       ((late && list[i].queued) || stalls_met(machine, list[i].due, list[i].end, 0));
		if (list[i].read && !late)
			times[n++] = list[i].end - list[i].due;
	}
	qsort(times, n, sizeof(times[0]), by_value);
	return n;
}

static double us_at(const uint64_t *sorted, uint64_t n, uint64_t percent)
{
	return n ? (double)sorted[n * percent / 100] / 1000 : 0;
}

bool save_figures(const took *list, uint64_t all, uint64_t start, const stalls *machine, figures *f)
{
	static uint64_t times[SAVE_OPS_MAX];
	uint64_t end = tn_now(), n = pulls(list, all, NULL, times), kept;
	double seconds = (double)(end - start) * 1e-9;

	if (n == 0)
		return false;
	*f = (figures){.p50 = us_at(times, n, 50),
		       .p99 = us_at(times, n, 99),
		       .max = (double)times[n - 1] / 1000,
		       .achieved = (double)all / seconds};
	if (!machine)
		return true;
	tn_sleep_ns(20 * TN_NS_PER_MS); /* a stall is told when it is over */
	kept = pulls(list, all, machine, times);
	f->free99 = us_at(times, kept, 99);
	f->no_stall = (double)kept / (double)n;
	f->stalled = (double)stalls_ns(machine, start, end) * 1e-9 / (seconds * stalls_cores(machine));
	return true;
}

/* ---- of the run ---- */

static double median(const double *values, uint64_t n)
{
	double sorted[SAVE_ROUNDS_MAX] = {0}, t;

	memcpy(sorted, values, n * sizeof(*values));
	for (uint64_t i = 1; i < n; i++)
		for (uint64_t k = i; k && sorted[k] < sorted[k - 1]; k--)
			t = sorted[k], sorted[k] = sorted[k - 1], sorted[k - 1] = t;
	return sorted[n / 2];
}

/* The median of a field over rounds. */
static double column(const figures *f, uint64_t n, size_t at)
{
	double v[SAVE_ROUNDS_MAX] = {0};

	for (uint64_t i = 0; i < n; i++)
		v[i] = *(const double *)(const void *)((const char *)&f[i] + at);
	return median(v, n);
}

#define COLUMN(f, field) column(f, run->rounds, offsetof(figures, field))

/* The median of the rounds' own ratios. */
static double ratio(const save_run *run, const figures *alone, const figures *beside, size_t at)
{
	double v[SAVE_ROUNDS_MAX] = {0};

	for (uint64_t i = 0; i < run->rounds; i++) {
		double a = *(const double *)(const void *)((const char *)&alone[i] + at);

		v[i] = a > 0 ? *(const double *)(const void *)((const char *)&beside[i] + at) / a : 0;
	}
	return median(v, run->rounds);
}

static void report_saves(const save_run *run, const tern_ps_save_result *saved)
{
	double took_s[SAVE_ROUNDS_MAX] = {0}, held_ms[SAVE_ROUNDS_MAX] = {0};

	for (uint64_t i = 0; i < run->rounds; i++) {
		took_s[i] = (double)saved[i].total_ns * 1e-9;
		held_ms[i] = (double)saved[i].held_ns * 1e-6;
	}
	printf(run->json ? ",\"save_s\":%.2f,\"held_ms\":%.2f,\"save_bytes\":%" PRIu64 ",\"rate\":%" PRIu64
			 : "; the save took %.2f s, pushes stood still for %.2f ms; %" PRIu64
			   " bytes at %" PRIu64 " bytes/s\n",
	       median(took_s, run->rounds), median(held_ms, run->rounds), saved[0].bytes, run->rate);
}

static void report_stalls(const save_run *run, const figures *alone, const figures *beside)
{
	if (!run->watched) {
		printf(run->json ? ",\"free_p99_ratio\":null"
				 : "stalls of the machine are not told apart: no right to SCHED_FIFO\n");
		return;
	}
	printf(run->json ? ",\"free_alone_p99_us\":%.1f,\"free_beside_p99_us\":%.1f,\"free_p99_ratio\":%.2f"
			 : "pulls that no stall of the machine delayed: alone P99 %.1f us; beside a save P99 "
			   "%.1f us "
			   "(%.2f times)",
	       COLUMN(alone, free99), COLUMN(beside, free99),
	       ratio(run, alone, beside, offsetof(figures, free99)));
	printf(run->json ? ",\"free_alone\":%.3f,\"free_beside\":%.3f,\"stalled_alone\":%.4f,\"stalled_"
			   "beside\":%.4f"
			 : "; %.3f and %.3f of all; cores stood still for %.4f and %.4f of the time\n",
	       COLUMN(alone, no_stall), COLUMN(beside, no_stall), COLUMN(alone, stalled),
	       COLUMN(beside, stalled));
}

void save_report(const save_run *run, const figures *alone, const figures *beside,
		 const tern_ps_save_result *saved)
{
	printf(run->json
		       ? "{\"peak_ops\":%.0f,\"load_pct\":%" PRIu64
			 ",\"alone_p50_us\":%.1f,\"alone_p99_us\":%.1f,\"beside_p50_us\":%.1f,"
			 "\"beside_p99_us\":%.1f,\"p99_ratio\":%.2f,\"beside_max_us\":%.0f,\"load_achieved\":"
			 "%.2f"
		       : "peak %.0f operations/s; at %" PRIu64
			 " %%: pulls alone P50 %.1f us, P99 %.1f us; beside a save P50 %.1f us, P99 %.1f us "
			 "(%.2f times), at most %.0f us; %.2f of the load was done",
	       run->per_second, run->load, COLUMN(alone, p50), COLUMN(alone, p99), COLUMN(beside, p50),
	       COLUMN(beside, p99), ratio(run, alone, beside, offsetof(figures, p99)), COLUMN(beside, max),
	       COLUMN(beside, achieved) / (run->per_second * (double)run->load / 100));
	report_saves(run, saved);
	report_stalls(run, alone, beside);
	if (run->json)
		printf("}\n");
}

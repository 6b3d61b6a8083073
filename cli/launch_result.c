/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came of a launched job: losses and times of steps from all workers, files of them, sums over its processes.
 * Threads: main. Tests: tests/e2e/train_test.py.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"

/* The process of a worker that says its losses: one of its stages. */
static const proc *teller(const launch *l, uint32_t worker)
{
	const proc *p = &l->procs[l->servers + worker];

	for (uint32_t s = 0; s < l->options->stages && !p->steps_done; s++)
		p = &l->procs[l->servers + s * (uint32_t)l->options->workers + worker];
	return p;
}

double launch_mean_loss(const launch *l, uint64_t step)
{
	double sum = 0, n = 0;

	/* One that was killed may not have said its last ones. */
	for (uint32_t w = 0; w < l->options->workers; w++) {
		const proc *p = teller(l, w);

		if (!p->losses || step >= p->steps_done)
			continue;
		sum += p->losses[step];
		n++;
	}
	return n > 0 ? sum / n : NAN;
}

/* Steps that all workers have done, and the mean of their losses at the last of them, in worker order. */
uint64_t launch_common_step(const launch *l, double *loss)
{
	uint64_t done = l->started < l->count ? 0 : l->steps;

	for (uint32_t w = 0; w < l->options->workers; w++)
		if (teller(l, w)->steps_done < done)
			done = teller(l, w)->steps_done;
	*loss = done ? launch_mean_loss(l, done - 1) : 0;
	return done;
}

/* ---- files ---- */

static bool losses_failed(const launch *l)
{
	fprintf(stderr, "tern train: cannot write --losses %s: %s\n", l->options->losses, strerror(errno));
	return false;
}

/* Opened before the job, so that a mistake shows at once; what it held is kept until there is something new. */
bool launch_open_losses(launch *l)
{
	l->losses_fd = -1;
	if (!l->options->losses)
		return true;
	l->losses_fd = open(l->options->losses, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	return l->losses_fd >= 0 || losses_failed(l);
}

static bool write_losses(launch *l)
{
	FILE *file = fdopen(l->losses_fd, "w");
	int error = 0;

	if (!file)
		return losses_failed(l);
	l->losses_fd = -1;
	if (ftruncate(fileno(file), 0) != 0 && errno != EINVAL) /* EINVAL: not a plain file */
		error = errno;
	for (uint64_t step = l->began; step < l->steps && !error; step++) {
		double loss =
			step < l->first_step && l->history ? l->history[step] : launch_mean_loss(l, step);

		if (fprintf(file, "%llu %a\n", (unsigned long long)step, loss) < 0)
			error = errno;
	}
	if (fclose(file) != 0 && !error)
		error = errno;
	errno = error;
	return !error || losses_failed(l);
}

/* When the last worker had done a step. */
static double time_of(const launch *l, uint64_t step)
{
	double last = 0;

	for (uint32_t w = 0; w < l->options->workers; w++)
		if (teller(l, w)->times && (double)teller(l, w)->times[step] > last)
			last = (double)teller(l, w)->times[step];
	return last;
}

/* --curve: of the last attempt. False: printed. */
static bool write_curve(const launch *l)
{
	FILE *file = l->options->curve ? fopen(l->options->curve, "we") : NULL;
	bool bad = !file;

	if (!l->options->curve)
		return true;
	for (uint64_t step = l->first_step; file && step < l->steps; step++)
		bad |= fprintf(file, "%llu\t%.6f\t%.9g\n", (unsigned long long)step, time_of(l, step),
			       launch_mean_loss(l, step)) < 0;
	bad |= file && fclose(file) != 0;
	if (bad)
		fprintf(stderr, "tern train: cannot write --curve %s: %s\n", l->options->curve,
			strerror(errno));
	return !bad;
}

static bool merge_traces(const launch *l)
{
	char(*names)[TRAIN_NAME_MAX] = l->options->trace ? calloc(l->count, sizeof(*names)) : NULL;
	bool ok;

	if (!l->options->trace)
		return true;
	for (uint32_t i = 0; i < l->count && names; i++)
		snprintf(names[i], sizeof(names[i]), "%s", l->procs[i].name);
	ok = names && train_trace_merge(l->options->trace, names, l->count);
	free(names);
	return ok;
}

bool launch_write(launch *l)
{
	return (!l->options->losses || write_losses(l)) && write_curve(l) && merge_traces(l);
}

/* ---- sums ---- */

/* The worker for which some server waited longest: the one that others had to wait for too. */
static void find_straggler(const launch *l, train_result *r)
{
	uint64_t most = 0;

	for (uint32_t w = 0; w < l->options->workers && l->options->workers > 1; w++) {
		for (uint32_t i = 0; i < l->servers; i++) {
			if (l->procs[i].waited_ns[w] <= most)
				continue;
			most = l->procs[i].waited_ns[w];
			snprintf(r->straggler, sizeof(r->straggler), "worker%u", w);
		}
	}
	r->straggler_seconds = (double)most * 1e-9;
}

void launch_collect(const launch *l, train_result *r)
{
	const train_options *o = l->options;
	uint64_t correct = 0, rows = 0, train_rows = 0, parts = o->workers * o->stages;
	double nll = 0, train_nll = 0;

	launch_common_step(l, &r->loss);
	r->steps = l->steps - l->first_step;
	r->failures = l->failures;
	for (uint32_t i = 0; i < l->count; i++) {
		const proc *p = &l->procs[i];

		r->bytes += p->bytes;
		r->copies += p->copies;
		r->copy_bytes += p->copy_bytes;
		r->writes += p->writes;
		r->staging_copies += p->staging_copies;
		r->cpu_seconds += (double)p->cpu_ns * 1e-9;
		if (!p->is_worker)
			continue;
		correct += p->correct;
		rows += p->rows;
		train_rows += p->train_rows;
		nll += p->nll;
		train_nll += p->train_nll;
		r->comm_seconds += (double)(p->comm_ns + p->wait_ns) * 1e-9 / (double)parts;
		r->compute_seconds += (double)p->compute_ns * 1e-9 / (double)parts;
		if (p->seconds > r->seconds)
			r->seconds = p->seconds;
		if ((double)p->step_ns * 1e-9 > r->step_seconds)
			r->step_seconds = (double)p->step_ns * 1e-9;
		snprintf(r->transport, sizeof(r->transport), "%s", p->transport);
	}
	find_straggler(l, r);
	r->accuracy = rows ? (double)correct / (double)rows : NAN;
	r->train_perplexity = train_perplexity(train_nll, train_rows);
	r->perplexity = train_perplexity(nll, train_rows ? rows : 0);
	r->steps_per_s = (double)r->steps / r->seconds;
	r->images_per_s = r->steps_per_s * (double)(o->batch * o->workers);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of seeds. See run.h.
 * Threads: none. Tests: sim-smoke, sim-same.
 */
#include "sim/run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "sim/fault.h"

#define SEED_CPU_S     20 /* a seed that takes so long hangs */
#define FAILURES_SHOWN 10
#define SEEDS_PER_FORK 500 /* what a seed leaves behind does not add up */

static const char *const cover_texts[] = {
#define TEXT(name, text) text,
	SIM_COVER(TEXT)
#undef TEXT
};

/* ---- one, here ---- */

/* An assertion failed while somebody looks. */
static void on_panic(const char *report)
{
	printf("%s\n", report);
	fflush(stdout);
	_exit(1);
}

static void drop_line(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)level;
	(void)line;
	(void)bytes;
	(void)arg;
}

static void show_line(tn_log_level level, const char *line, size_t bytes, void *arg)
{
	(void)level;
	(void)arg;
	printf("             | %.*s", (int)bytes, line);
}

static void set_log(bool verbose)
{
	tn_log_set_sink(verbose ? show_line : drop_line, NULL);
	if (verbose)
		setvbuf(stdout, NULL, _IOLBF, 0);
}

static void print_failure(const sim_result *r)
{
	printf("seed %llu: FAILED: %s: %s\n", (unsigned long long)r->seed, r->checker, r->text);
	printf("  again: tern-sim %llu -v\n", (unsigned long long)r->seed);
}

int sim_run_one(const sim_run_params *params)
{
	sim_result result = {.seed = params->options.seed};

	set_log(params->options.verbose);
	tn_check_set_panic(on_panic);
	sim_run(&params->options, &result);
	if (result.failed) {
		print_failure(&result);
		return 1;
	}
	printf("seed %llu: ok, %llu operations, %llu events, %.3f ms, %u faults planned, hash %016llx\n",
	       (unsigned long long)result.seed, (unsigned long long)result.ops,
	       (unsigned long long)result.events, (double)result.virtual_ns / 1e6, result.faults_planned,
	       (unsigned long long)result.hash);
	return 0;
}

/* ---- workers ---- */

typedef struct worker {
	pid_t pid;
	int fd;
	uint64_t next, step, last; /* seeds */
	sim_result row;
	size_t have; /* bytes of row */
} worker;

static void limit_cpu(void)
{
	struct itimerval timer = {.it_value.tv_sec = SEED_CPU_S};

	setitimer(ITIMER_VIRTUAL, &timer, NULL);
}

static void put_row(int fd, const sim_result *row)
{
	const char *at = (const char *)row;

	for (size_t left = sizeof(*row); left > 0;) {
		ssize_t n = write(fd, at, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(4);
		at += n;
		left -= (size_t)n;
	}
}

static sim_result panic_row;
static int panic_fd = -1;

static void on_worker_panic(const char *report)
{
	panic_row.failed = true;
	snprintf(panic_row.checker, sizeof(panic_row.checker), "assert");
	snprintf(panic_row.text, sizeof(panic_row.text), "%s", report);
	put_row(panic_fd, &panic_row);
	_exit(3);
}

static void work(const worker *w, const sim_options *options)
{
	sim_options mine = *options;
	unsigned done = 0;

	set_log(false);
	panic_fd = w->fd;
	tn_check_set_panic(on_worker_panic);
	for (uint64_t seed = w->next; seed <= w->last && done < SEEDS_PER_FORK; seed += w->step, done++) {
		sim_result row;

		mine.seed = panic_row.seed = seed;
		limit_cpu();
		sim_run(&mine, &row);
		put_row(w->fd, &row);
		if (row.failed)
			_exit(0); /* what a failed run left is of no use to the next */
	}
	_exit(0);
}

static bool start(worker *w, const sim_options *options)
{
	int fds[2];

	w->have = 0;
	if (pipe(fds) != 0)
		return false;
	fflush(stdout);
	w->pid = fork();
	if (w->pid == 0) {
		close(fds[0]);
		w->fd = fds[1];
		work(w, options);
	}
	close(fds[1]);
	w->fd = fds[0];
	if (w->pid < 0)
		close(fds[0]);
	return w->pid > 0;
}

/* The worker's pipe ended. If it died over a seed, *row says so: true. */
static bool ended(worker *w, sim_result *row)
{
	int status = 0;

	close(w->fd);
	waitpid(w->pid, &status, 0);
	w->pid = 0;
	if (!WIFSIGNALED(status) && WEXITSTATUS(status) != 4)
		return false;
	*row = (sim_result){.seed = w->next, .failed = true};
	snprintf(row->checker, sizeof(row->checker), "%s",
		 WIFSIGNALED(status) && WTERMSIG(status) == SIGVTALRM ? "progress" : "crash");
	snprintf(row->text, sizeof(row->text), "the process ended by signal %d (%s)", WTERMSIG(status),
		 strsignal(WTERMSIG(status)));
	w->next += w->step;
	return true;
}

/* More bytes of a row. 1: it is whole; 0: not yet; -1: the worker ended. */
static int more(worker *w)
{
	ssize_t n = read(w->fd, (char *)&w->row + w->have, sizeof(w->row) - w->have);

	if (n < 0 && errno == EINTR)
		return 0;
	if (n <= 0)
		return -1;
	w->have += (size_t)n;
	if (w->have < sizeof(w->row))
		return 0;
	w->have = 0;
	w->next = w->row.seed + w->step;
	return 1;
}

void sim_run_apart(const sim_options *options, sim_result *result)
{
	worker w = {.next = options->seed, .last = options->seed, .step = 1};
	sim_options mine = *options;
	int got;

	mine.verbose = false;
	*result = (sim_result){.seed = options->seed};
	if (!start(&w, &mine))
		return;
	do {
		got = more(&w);
		if (got == 1)
			*result = w.row;
	} while (got >= 0);
	ended(&w, result->failed ? &w.row : result);
}

bool sim_run_first(const sim_options *options, uint64_t first, uint64_t last, sim_result *result)
{
	worker w = {.next = first, .last = last, .step = 1};

	*result = (sim_result){0};
	while (!result->failed && w.next <= w.last) {
		int got = 0;

		if (!start(&w, options))
			return false;
		while (got >= 0) {
			got = more(&w);
			if (got == 1 && w.row.failed)
				*result = w.row;
		}
		ended(&w, result->failed ? &w.row : result);
	}
	return result->failed;
}

/* ---- ranges ---- */

typedef struct totals {
	uint64_t seeds, failed, ops, events, virtual_ns, calm;
	uint64_t coverage[64], seeds_with[64];
} totals;

static void add(totals *t, const sim_result *r, bool quiet)
{
	t->seeds++;
	t->ops += r->ops;
	t->events += r->events;
	t->virtual_ns += r->virtual_ns;
	t->calm += r->faults_planned == 0;
	for (unsigned i = 0; i < TN_COUNT_OF(t->coverage); i++) {
		t->coverage[i] += r->coverage[i];
		t->seeds_with[i] += r->coverage[i] != 0;
	}
	if (!r->failed)
		return;
	if (t->failed++ < FAILURES_SHOWN && !quiet)
		print_failure(r);
}

static void print_coverage(const totals *t)
{
	unsigned least = 0;

	printf("\n%-42s %12s %10s\n", "happened", "times", "seeds");
	for (unsigned i = 0; i < SIM_FAULT_COUNT; i++) {
		printf("%-42s %12llu %10llu\n", sim_fault_text(i), (unsigned long long)t->coverage[i],
		       (unsigned long long)t->seeds_with[i]);
		least = t->coverage[i] < t->coverage[least] ? i : least;
	}
	for (unsigned i = SIM_COVER_FAULTS; i < SIM_COVER_END; i++)
		printf("%-42s %12llu %10llu\n", cover_texts[i - SIM_COVER_FAULTS],
		       (unsigned long long)t->coverage[i], (unsigned long long)t->seeds_with[i]);
	printf("\nfault that happened least often: %s, %llu times\n", sim_fault_text(least),
	       (unsigned long long)t->coverage[least]);
}

static void print_totals(const totals *t, uint64_t cpu_ns)
{
	double seeds = t->seeds ? (double)t->seeds : 1;

	print_coverage(t);
	printf("\n%llu seeds, %llu failed; %llu without faults\n", (unsigned long long)t->seeds,
	       (unsigned long long)t->failed, (unsigned long long)t->calm);
	printf("per seed: %.0f operations, %.0f events, %.1f ms of virtual time, %.2f ms of CPU\n",
	       (double)t->ops / seeds, (double)t->events / seeds, (double)t->virtual_ns / 1e6 / seeds,
	       (double)cpu_ns / 1e6 / seeds);
}

static void print_json(const totals *t, uint64_t cpu_ns)
{
	printf("{\"seeds\": %llu, \"failed\": %llu, \"operations\": %llu, \"events\": %llu, \"cpu_ns\": "
	       "%llu, "
	       "\"happened\": {",
	       (unsigned long long)t->seeds, (unsigned long long)t->failed, (unsigned long long)t->ops,
	       (unsigned long long)t->events, (unsigned long long)cpu_ns);
	for (unsigned i = 0; i < SIM_FAULT_COUNT; i++)
		printf("%s\"%s\": %llu", i ? ", " : "", sim_fault_word(i),
		       (unsigned long long)t->coverage[i]);
	for (unsigned i = SIM_COVER_FAULTS; i < SIM_COVER_END; i++)
		printf(", \"%s\": %llu", cover_texts[i - SIM_COVER_FAULTS],
		       (unsigned long long)t->coverage[i]);
	printf("}}\n");
}

static uint64_t children_cpu_ns(void)
{
	struct rusage usage;

	getrusage(RUSAGE_CHILDREN, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * TN_NS_PER_SEC +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * TN_NS_PER_US;
}

/* Start those that do not run and have seeds left. The number that run. */
static unsigned keep_running(worker *workers, uint64_t jobs, const sim_options *options, bool over)
{
	unsigned running_now = 0;

	for (uint64_t i = 0; i < jobs; i++) {
		worker *w = &workers[i];

		if (!w->pid && !over && w->next <= w->last && !start(w, options)) {
			fprintf(stderr, "tern-sim: no process for a worker: %s\n", strerror(errno));
			w->next = w->last + 1;
		}
		running_now += w->pid != 0;
	}
	return running_now;
}

static void collect(worker *w, totals *t, bool quiet)
{
	sim_result row;
	int got = more(w);

	if (got == 1)
		add(t, &w->row, quiet);
	else if (got < 0 && ended(w, &row))
		add(t, &row, quiet);
}

int sim_run_range(const sim_run_params *params)
{
	worker workers[SIM_JOBS_MAX] = {0};
	struct pollfd fds[SIM_JOBS_MAX];
	totals t = {0};
	uint64_t until = params->hours > 0 ? tn_now() + (uint64_t)(params->hours * 3600e9) : TN_TIME_NEVER;
	uint64_t first = params->hours > 0 ? tn_now() : params->first;
	uint64_t last = params->hours > 0 ? UINT64_MAX / 2 + first / 2 : params->last;

	for (uint64_t i = 0; i < params->jobs; i++)
		workers[i] = (worker){.next = first + i, .step = params->jobs, .last = last};
	while (keep_running(workers, params->jobs, &params->options, tn_now() > until) > 0) {
		for (uint64_t i = 0; i < params->jobs; i++)
			fds[i] = (struct pollfd){.fd = workers[i].pid ? workers[i].fd : -1, .events = POLLIN};
		if (poll(fds, params->jobs, 1000) <= 0)
			continue;
		for (uint64_t i = 0; i < params->jobs; i++)
			if (workers[i].pid && fds[i].revents)
				collect(&workers[i], &t, params->json);
	}
	if (params->json)
		print_json(&t, children_cpu_ns());
	else
		print_totals(&t, children_cpu_ns());
	return t.failed ? 1 : 0;
}

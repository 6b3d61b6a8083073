/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local launcher: starts servers, then workers, on this host; passes their logs on; shows one progress
 * line; ends all of them on Ctrl-C or when one dies, and names the one that died and why.
 *
 *   STARTING servers (each reports its address) -> STARTING workers, stage by stage -> RUNNING -> all exited with 0
 *   any failure or signal -> ENDING: SIGTERM to all, SIGKILL after KILL_NS or at a second signal
 *
 * When several processes fail at once blame.c says whose fault it is.
 * The launcher's own death ends the processes by their parent-death signal.
 * Threads: main. Tests: tests/e2e/train_test.py, kill_test.py.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "launch.h"

#define KILL_NS    3000000000ull
#define VERDICT_NS 300000000ull  /* how long after the first failure the culprit is looked for */
#define LOST_NS    1500000000ull /* ... if it may have more witnesses: peers notice within a keepalive */

static volatile sig_atomic_t got_signal, signal_count;

static void on_signal(int sig)
{
	got_signal = sig;
	signal_count = signal_count + 1;
}

/* ---- starting ---- */

static bool start_proc(launch *l, uint32_t i, const char *cluster)
{
	command_line c;
	proc *p = &l->procs[i];

	p->is_worker = i >= l->servers;
	p->index = p->is_worker ? (i - l->servers) % (uint32_t)l->options->workers : i;
	p->stage = p->is_worker ? (i - l->servers) / (uint32_t)l->options->workers : 0;
	train_name(l->options, p->is_worker, p->index, p->stage, p->name);
	if (p->is_worker) {
		p->losses = calloc(l->steps, sizeof(*p->losses));
		p->times = calloc(l->steps, sizeof(*p->times));
		p->steps_max = p->losses && p->times ? l->steps : 0;
	}
	launch_command(l, p, cluster, &c);
	if (!proc_start(p, l->self, (char *const *)c.argv, l->secret))
		return false;
	l->started = i + 1;
	return true;
}

/* The servers, or, once all that were started have said their addresses, one more stage of every worker. */
static bool start_next(launch *l)
{
	uint32_t known = l->started,
		 end = known < l->servers ? l->servers : known + (uint32_t)l->options->workers;
	char *cluster = calloc(known + 1, TRAIN_ADDRESS_MAX);
	bool ok = cluster != NULL;

	for (uint32_t i = 0; i < known && ok; i++) {
		if (i)
			strcat(cluster, ",");
		strcat(cluster, l->procs[i].address);
	}
	for (uint32_t i = known; i < end && ok; i++)
		ok = start_proc(l, i, cluster);
	if (!ok)
		snprintf(l->culprit, sizeof(l->culprit), "a %s could not be started",
			 l->started < l->servers ? "server" : "worker");
	free(cluster);
	return ok;
}

/* ---- ending ---- */

static void signal_all(launch *l, int sig)
{
	for (uint32_t i = 0; i < l->started; i++)
		if (!l->procs[i].exited && l->procs[i].pid > 0)
			kill(l->procs[i].pid, sig);
}

static void begin_end(launch *l)
{
	if (l->ending_ns)
		return;
	l->ending_ns = progress_now_ns();
	signal_all(l, SIGTERM);
}

/* sure: no process that ends later can change it. */
static void find_culprit(launch *l, bool *sure)
{
	l->blamed = blame(l->procs, l->servers, l->started, sure, l->culprit, sizeof(l->culprit));
}

static void check_ends(launch *l, uint64_t now)
{
	bool sure;

	for (uint32_t i = 0; i < l->started; i++) {
		proc *p = &l->procs[i];

		proc_read(p, &l->bar);
		if (proc_reap(p))
			proc_read(p, &l->bar);
		if ((p->lost || proc_failed(p)) && !p->failed_ns)
			p->failed_ns = now;
		if (p->failed_ns && !l->failed_ns && !l->ending_ns)
			l->failed_ns = now;
	}
	if (got_signal && !l->ending_ns) {
		l->canceled = true;
		begin_end(l);
	}
	if (l->failed_ns && !l->ending_ns && now - l->failed_ns >= VERDICT_NS) {
		find_culprit(l, &sure);
		if (sure || now - l->failed_ns >= LOST_NS)
			begin_end(l);
	}
	/* Not `now`: that is older than an ending that has just begun. */
	if (l->ending_ns && !l->killed && (progress_now_ns() - l->ending_ns >= KILL_NS || signal_count > 1)) {
		l->killed = true;
		signal_all(l, SIGKILL);
	}
}

static uint32_t alive(const launch *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->started; i++)
		n += !l->procs[i].exited;
	return n;
}

/* ---- running ---- */

static void show(launch *l, uint64_t *last_done, uint64_t *last_ns, double *rate)
{
	uint64_t now = progress_now_ns(), done;
	char words[128];
	double loss;

	done = launch_common_step(l, &loss);
	if (now - *last_ns >= 500000000ull) {
		double fresh = (double)(done - *last_done) * (double)l->options->batch *
			       (double)l->options->workers / ((double)(now - *last_ns) * 1e-9);

		*rate = *rate > 0 ? 0.5 * *rate + 0.5 * fresh : fresh;
		*last_done = done;
		*last_ns = now;
	}
	if (!done)
		snprintf(words, sizeof(words), "starting %u processes", l->count);
	else if (done == l->steps)
		snprintf(words, sizeof(words), "loss %.4f  testing", loss);
	else
		snprintf(words, sizeof(words), "loss %.4f  %.0f %s/s", loss, *rate,
			 train_rows_of(l->options));
	progress_draw(&l->bar, done, false, words);
}

static void wait_for_news(launch *l)
{
	struct pollfd fds[2 * TRAIN_PROCESSES_MAX];
	nfds_t n = 0;

	for (uint32_t i = 0; i < l->started; i++) {
		const proc *p = &l->procs[i];

		if (p->out_fd >= 0)
			fds[n++] = (struct pollfd){.fd = p->out_fd, .events = POLLIN};
		if (p->report_fd >= 0)
			fds[n++] = (struct pollfd){.fd = p->report_fd, .events = POLLIN};
	}
	/* A closed pipe comes shortly before the exit status: look again soon. */
	poll(fds, n, n < 2 * (nfds_t)l->started ? 5 : 100);
}

static void run(launch *l)
{
	uint64_t last_done = 0, last_ns = progress_now_ns();
	bool sure;
	double rate = 0;

	do {
		uint32_t ready = 0;

		check_ends(l, progress_now_ns());
		for (uint32_t i = 0; i < l->started; i++)
			ready += l->procs[i].ready;
		if (l->started < l->count && ready == l->started && !l->failed_ns && !l->ending_ns &&
		    !start_next(l))
			begin_end(l);
		show(l, &last_done, &last_ns, &rate);
		if (alive(l))
			wait_for_news(l);
	} while (alive(l) || (l->started < l->count && !l->failed_ns && !l->ending_ns));
	if (l->failed_ns && !l->culprit[0])
		find_culprit(l, &sure);
	for (uint32_t i = l->servers; i < l->started && !l->culprit[0] && !l->canceled; i++)
		if (!l->procs[i].has_result)
			snprintf(l->culprit, sizeof(l->culprit), "%s ended without a result",
				 l->procs[i].name);
}

/* ---- before the first process ---- */

/* The data set is looked at here first: one clear line instead of one per worker. */
static bool measure_data(const train_options *o, launch *l, train_job *job)
{
	dataset train, test;
	char error[4500];
	bool ok;

	if (!train_data_load(o, &train, &test, error, sizeof(error))) {
		fprintf(stderr, "tern train: %s\n", error);
		return false;
	}
	dataset_free(&test);
	l->rows = train.count;
	l->features = train.features;
	l->classes = train.classes;
	ok = train_data_fits(o, &train) &&
	     train_job_create(o, train.count, train.features, train.classes, job);
	dataset_free(&train);
	return ok;
}

/* Where a resumed job goes on. False: printed. */
static bool find_first_step(launch *l)
{
	if (!train_resume_step(l->options, &l->first_step))
		return false;
	if (l->first_step < l->steps)
		return true;
	fprintf(stderr,
		"tern train: --resume %s: the checkpoint is that of step %llu, and the job has %llu: give "
		"more\n",
		l->options->resume, (unsigned long long)l->first_step, (unsigned long long)l->steps);
	return false;
}

/* Everything that can fail before the first process starts. False: printed. */
static bool make_procs(launch *l)
{
	unsigned char bytes[SECRET_BYTES];

	l->procs = calloc(l->count, sizeof(*l->procs));
	if (!l->procs || getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
		fprintf(stderr, "tern train: cannot start: %s\n", strerror(errno));
		free(l->procs);
		return false;
	}
	for (uint32_t i = 0; i < l->count; i++)
		l->procs[i].out_fd = l->procs[i].report_fd = -1;
	/* A local job's own, so that no other user of the host can join it. */
	for (unsigned i = 0; i < SECRET_BYTES; i++)
		snprintf(l->secret + 2 * i, 3, "%02x", bytes[i]);
	return true;
}

static void free_procs(launch *l)
{
	for (uint32_t i = 0; i < l->count; i++)
		proc_free(&l->procs[i]);
	free(l->procs);
	l->procs = NULL;
}

/* ---- going on after a failure ---- */

#define FRUITLESS_MAX 3

/* The mean losses up to where the next attempt begins; what comes after is done again. */
static bool keep_losses(launch *l, uint64_t next)
{
	if (!l->history)
		l->history = calloc(l->steps, sizeof(*l->history));
	for (uint64_t step = l->first_step; step < next && l->history; step++)
		l->history[step] = launch_mean_loss(l, step);
	return l->history != NULL;
}

/* Without the worker that died, or with a new server in place of one, from the newest checkpoint. False: the job ends. */
static bool shrink(launch *l)
{
	const proc *who = l->blamed;
	uint64_t next = l->began;
	bool saved;

	if (l->options->on_failure != ON_FAILURE_SHRINK || !who || l->canceled)
		return false;
	l->own = *l->options;
	if (who->is_worker && --l->own.workers == 0)
		return false;
	saved = l->own.save && train_newest(&l->own, l->own.save, &next) && next >= l->began &&
		next < l->steps;
	if (saved)
		l->own.resume = l->own.save;
	else
		next = l->began;
	l->fruitless = next > l->first_step ? 0 : l->fruitless + 1;
	if (l->fruitless >= FRUITLESS_MAX || !keep_losses(l, next))
		return false;
	l->failures++;
	l->own.steps = l->steps;
	progress_end(&l->bar);
	fprintf(stderr, "tern train: %s; going on from step %llu with %llu worker%s\n", l->culprit,
		(unsigned long long)next, (unsigned long long)l->own.workers, l->own.workers == 1 ? "" : "s");
	free_procs(l);
	l->options = &l->own;
	l->first_step = next;
	l->count = l->servers + (uint32_t)(l->own.workers * l->own.stages);
	l->started = 0;
	l->failed_ns = l->ending_ns = 0;
	l->killed = false;
	l->culprit[0] = '\0';
	l->blamed = NULL;
	return true;
}

/* Attempts, until one ends well or in vain. False: memory. */
static bool run_attempts(launch *l, const char *title)
{
	do {
		if (!make_procs(l))
			return false;
		progress_init(&l->bar, title, l->steps, l->options->quiet);
		run(l);
	} while (l->culprit[0] && shrink(l));
	return true;
}

/* What came of it. */
static void conclude(launch *l, train_result *result, int *status)
{
	if (l->canceled) {
		fprintf(stderr, "tern train: stopped by signal %d; all %u processes have ended%s\n",
			(int)got_signal, l->started, l->killed ? " (some had to be killed)" : "");
		*status = 128 + got_signal;
	} else if (l->culprit[0]) {
		fprintf(stderr, "tern train: %s; ended the others\n", l->culprit);
	} else {
		launch_collect(l, result);
		result->ok = true;
		*status = launch_write(l) ? 0 : 1;
	}
	free_procs(l);
}

void train_run(const train_options *o, const char *self, const char *title, train_result *result, int *status)
{
	struct sigaction action = {.sa_handler = on_signal}, old_int, old_term, old_child;
	const struct sigaction dfl = {.sa_handler = SIG_DFL};
	launch l = {.options = o, .self = self};
	train_job job;

	memset(result, 0, sizeof(*result));
	*status = 2;
	if (!measure_data(o, &l, &job))
		return;
	l.steps = job.steps;
	result->parameters = job.parameters;
	train_job_destroy(&job);
	if (o->resume && !find_first_step(&l))
		return;
	*status = 1;
	l.began = l.first_step;
	l.servers = o->no_comm ? 0 : (uint32_t)o->servers;
	l.count = l.servers + (uint32_t)(o->workers * o->stages);
	if (!launch_open_losses(&l))
		return;
	got_signal = signal_count = 0;
	/* Ignored by whoever started us, children would vanish without an exit status. */
	sigaction(SIGCHLD, &dfl, &old_child);
	sigaction(SIGINT, &action, &old_int);
	sigaction(SIGTERM, &action, &old_term);
	if (run_attempts(&l, title)) {
		if (!l.canceled && !l.culprit[0])
			progress_draw(&l.bar, l.steps, true, "done");
		progress_end(&l.bar); /* before Ctrl-C can end us in the middle of it */
	}
	sigaction(SIGINT, &old_int, NULL);
	sigaction(SIGTERM, &old_term, NULL);
	sigaction(SIGCHLD, &old_child, NULL);
	if (l.procs)
		conclude(&l, result, status);
	free(l.history);
	if (l.losses_fd >= 0)
		close(l.losses_fd);
}

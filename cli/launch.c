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
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "json.h"
#include "launch.h"

#define KILL_NS      3000000000ull
#define SECRET_BYTES 32
#define VERDICT_NS   300000000ull  /* how long after the first failure the culprit is looked for */
#define LOST_NS      1500000000ull /* ... if it may have more witnesses: peers notice within a keepalive */

typedef struct launch {
	const train_options *options; /* those of the attempt that runs */
	train_options own;            /* they, once they are not the user's any more */
	const char *self;
	proc *procs; /* servers, then stage 0 of each worker, then stage 1 of each, ... */
	uint32_t servers, count, started;
	uint64_t steps, first_step, rows;
	uint64_t features, classes; /* of the data */
	int losses_fd;
	double *history;    /* [steps]: mean losses of attempts before this one */
	uint64_t began;     /* step of the first attempt */
	unsigned failures;  /* attempts that ended early */
	unsigned fruitless; /* of them in a row, without a checkpoint between */
	const proc *blamed;
	progress bar;
	uint64_t failed_ns; /* first failure; 0 = none */
	uint64_t ending_ns; /* SIGTERM was sent */
	bool killed, canceled;
	char secret[2 * SECRET_BYTES + 1];
	char culprit[640];
} launch;

static volatile sig_atomic_t got_signal, signal_count;

static void on_signal(int sig)
{
	got_signal = sig;
	signal_count = signal_count + 1;
}

/* ---- starting ---- */

/* The command line of a process: words and numbers, kept in one place until it was started. */
typedef struct command_line {
	const char *argv[96];
	char text[2048];
	int count;
	size_t used;
} command_line;

static void add(command_line *c, const char *option, const char *value)
{
	c->argv[c->count++] = option;
	if (value)
		c->argv[c->count++] = value;
	c->argv[c->count] = NULL;
}

__attribute__((format(printf, 3, 4))) static void addf(command_line *c, const char *option, const char *fmt,
						       ...)
{
	char *value = c->text + c->used;
	va_list args;

	va_start(args, fmt);
	c->used += (size_t)vsnprintf(value, sizeof(c->text) - c->used, fmt, args) + 1;
	va_end(args);
	add(c, option, value);
}

static void add_real(void *c, const char *option, double value)
{
	addf(c, option, "%.17g", value);
}

static void add_data(command_line *c, const train_options *o)
{
	if (train_models[o->model].data == TRAIN_IMAGES) {
		add(c, "--data", o->data);
		return;
	}
	if (o->text)
		add(c, "--text", o->text);
	addf(c, "--length", "%llu", (unsigned long long)o->length);
	if (o->unit == UNIT_WORD)
		add(c, "--unit", "word");
	if (o->unit == UNIT_WORD || train_models[o->model].data == TRAIN_PAIRS)
		addf(c, "--vocabulary", "%llu", (unsigned long long)o->vocabulary);
}

static void add_options(command_line *c, const launch *l)
{
	const train_options *o = l->options;

	add(c, "--model", model_names[o->model]);
	if (o->hidden)
		add(c, "--hidden", o->hidden);
	if (l->features)
		addf(c, "--features", "%llu", (unsigned long long)l->features);
	addf(c, "--classes", "%llu", (unsigned long long)l->classes);
	addf(c, "--servers", "%llu", (unsigned long long)o->servers);
	addf(c, "--workers", "%llu", (unsigned long long)o->workers);
	addf(c, "--model-parallel", "%llu", (unsigned long long)o->stages);
	addf(c, "--micro-batches", "%llu", (unsigned long long)o->micro);
	addf(c, "--batch", "%llu", (unsigned long long)o->batch);
	addf(c, "--steps", "%llu", (unsigned long long)l->steps);
	addf(c, "--seed", "%llu", (unsigned long long)o->seed);
	addf(c, "--kernel-threads", "%llu", (unsigned long long)o->kernel_threads);
	add(c, "--transport", transport_names[o->transport]);
	add(c, "--comm", comm_names[o->comm]);
	add_data(c, o);
	if (o->save)
		add(c, "--save", o->save);
	if (o->save_every)
		addf(c, "--save-every", "%llu", (unsigned long long)o->save_every);
	if (o->resume) {
		add(c, "--resume", o->resume);
		addf(c, "--first-step", "%llu", (unsigned long long)l->first_step);
	}
	if (o->trace)
		add(c, "--trace", o->trace);
	if (o->profile)
		add(c, "--profile", NULL);
	add(c, "--optimizer", optimizer_names[o->optimizer]);
	train_optimizer_options(o, add_real, c);
	addf(c, "--timeout", "%.3f", (double)o->timeout_ns * 1e-9);
	if (o->sync)
		add(c, "--sync", NULL);
	if (train_stale(o)) {
		add(c, "--consistency", "ssp");
		addf(c, "--staleness", "%u", train_stale(o));
	}
	if (o->sparse)
		add(c, "--sparse", NULL);
	if (o->spin)
		add(c, "--spin", NULL);
	if (o->no_comm)
		add(c, "--no-comm", NULL);
	if (o->no_eval)
		add(c, "--no-eval", NULL);
}

static bool start_proc(launch *l, uint32_t i, const char *cluster)
{
	command_line c = {.count = 0};
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
	add(&c, "tern", "train");
	add(&c, "--role", p->is_worker ? "worker" : "server");
	addf(&c, "--index", "%u", p->index);
	if (p->stage)
		addf(&c, "--stage", "%u", p->stage);
	add(&c, "--report-fd", "3");
	add_options(&c, l);
	if (!p->is_worker || p->stage + 1 < l->options->stages)
		add(&c, "--listen", "127.0.0.1:0");
	if (cluster[0] && !l->options->no_comm)
		add(&c, "--cluster", cluster);
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

/* The process of a worker that says its losses: one of its stages. */
static const proc *teller(const launch *l, uint32_t worker)
{
	const proc *p = &l->procs[l->servers + worker];

	for (uint32_t s = 0; s < l->options->stages && !p->steps_done; s++)
		p = &l->procs[l->servers + s * (uint32_t)l->options->workers + worker];
	return p;
}

static double mean_loss(const launch *l, uint64_t step)
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
static uint64_t common_step(const launch *l, double *loss)
{
	uint64_t done = l->started < l->count ? 0 : l->steps;

	for (uint32_t w = 0; w < l->options->workers; w++)
		if (teller(l, w)->steps_done < done)
			done = teller(l, w)->steps_done;
	*loss = done ? mean_loss(l, done - 1) : 0;
	return done;
}

static const char *rows_of(const train_options *o)
{
	return train_models[o->model].data == TRAIN_IMAGES ? "images" : "rows";
}

static void show(launch *l, uint64_t *last_done, uint64_t *last_ns, double *rate)
{
	uint64_t now = progress_now_ns(), done;
	char words[128];
	double loss;

	done = common_step(l, &loss);
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
		snprintf(words, sizeof(words), "loss %.4f  %.0f %s/s", loss, *rate, rows_of(l->options));
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

/* ---- results ---- */

static bool losses_failed(const launch *l)
{
	fprintf(stderr, "tern train: cannot write --losses %s: %s\n", l->options->losses, strerror(errno));
	return false;
}

/* Opened before the job, so that a mistake shows at once; what it held is kept until there is something new. */
static bool open_losses(launch *l)
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
		double loss = step < l->first_step && l->history ? l->history[step] : mean_loss(l, step);

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
			       mean_loss(l, step)) < 0;
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

static void collect(const launch *l, train_result *r)
{
	const train_options *o = l->options;
	uint64_t correct = 0, rows = 0, train_rows = 0, parts = o->workers * o->stages;
	double nll = 0, train_nll = 0;

	common_step(l, &r->loss);
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
		l->history[step] = mean_loss(l, step);
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
		collect(l, result);
		result->ok = true;
		*status =
			(!l->options->losses || write_losses(l)) && write_curve(l) && merge_traces(l) ? 0 : 1;
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
	if (!open_losses(&l))
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

static void print_json(const train_options *o, const train_result *r)
{
	json j;

	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "model", model_names[o->model]);
	json_u64(&j, "parameters", r->parameters);
	json_real(&j, "loss", r->loss);
	json_real(&j, "accuracy", r->accuracy);
	if (train_models[o->model].data != TRAIN_IMAGES) {
		json_real(&j, "perplexity", r->perplexity);
		json_real(&j, "train_perplexity", r->train_perplexity);
	}
	json_u64(&j, "steps", r->steps);
	json_u64(&j, "failures", r->failures);
	json_real(&j, "seconds", r->seconds);
	json_real(&j, "steps_per_s", r->steps_per_s);
	json_real(&j, "images_per_s", r->images_per_s);
	json_u64(&j, "bytes", r->bytes);
	json_u64(&j, "copies", r->copies);
	json_u64(&j, "copy_bytes", r->copy_bytes);
	json_u64(&j, "staging_copies", r->staging_copies);
	json_u64(&j, "writes", r->writes);
	json_real(&j, "comm_seconds", r->comm_seconds);
	json_real(&j, "compute_seconds", r->compute_seconds);
	json_real(&j, "step_seconds", r->step_seconds);
	json_real(&j, "cpu_seconds", r->cpu_seconds);
	json_string(&j, "transport", r->transport);
	if (r->straggler[0]) {
		json_object(&j, "straggler");
		json_string(&j, "name", r->straggler);
		json_real(&j, "waited_seconds", r->straggler_seconds);
		json_object_end(&j);
	}
	json_object(&j, "options");
	json_string(&j, "data",
		    train_models[o->model].data == TRAIN_IMAGES ? o->data
		    : o->text                                   ? o->text
								: "");
	if (train_models[o->model].data != TRAIN_IMAGES)
		json_u64(&j, "length", o->length);
	if (o->hidden)
		json_string(&j, "hidden", o->hidden);
	json_u64(&j, "servers", o->servers);
	json_u64(&j, "workers", o->workers);
	if (o->stages > 1)
		json_u64(&j, "model_parallel", o->stages);
	if (o->micro > 1)
		json_u64(&j, "micro_batches", o->micro);
	json_u64(&j, "batch", o->batch);
	json_u64(&j, "epochs", o->steps ? 0 : o->epochs);
	json_string(&j, "transport", transport_names[o->transport]);
	json_string(&j, "comm", comm_names[o->comm]);
	json_bool(&j, "sync", o->sync);
	if (o->sparse)
		json_bool(&j, "sparse", true);
	json_u64(&j, "seed", o->seed);
	json_string(&j, "optimizer", optimizer_names[o->optimizer]);
	json_u64(&j, "kernel_threads", o->kernel_threads);
	json_bool(&j, "spin", o->spin);
	json_bool(&j, "no_comm", o->no_comm);
	json_object_end(&j);
	json_object_end(&j);
	putchar('\n');
}

int train_launch(const train_options *o, const char *self)
{
	train_result r;
	int status;

	(void)self;
	train_run(o, self_path(), model_names[o->model], &r, &status);
	if (!r.ok)
		return status;
	if (o->json) {
		print_json(o, &r);
	} else {
		printf("%s: %llu steps in %.1f s (%.1f steps/s, %.0f %s/s), loss %.4f", model_names[o->model],
		       (unsigned long long)r.steps, r.seconds, r.steps_per_s, r.images_per_s, rows_of(o),
		       r.loss);
		if (!isnan(r.perplexity))
			printf(", perplexity %.3f, of what was held out %.3f", r.train_perplexity,
			       r.perplexity);
		else if (!isnan(r.accuracy))
			printf(", test accuracy %.2f %%", 100 * r.accuracy);
		printf("\n%s over %s: %.1f MiB moved, %llu copies (%.1f MiB), %.2f s of communication per "
		       "%s\n",
		       comm_names[o->comm], r.transport, (double)r.bytes / 1048576,
		       (unsigned long long)r.copies, (double)r.copy_bytes / 1048576, r.comm_seconds,
		       o->stages > 1 ? "stage" : "worker");
		if (r.straggler[0])
			printf("servers waited longest for %s: %.2f s\n", r.straggler, r.straggler_seconds);
	}
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of a job: a parameter server or a worker. It makes the plan by itself, opens its context and
 * session, runs its steps and reports to the launcher, if there is one, else to the terminal.
 *
 * Ctrl-C or SIGTERM interrupts at the next wait: the process says so, closes its links (peers see an orderly
 * end) and exits with 128 + signal. When the launcher dies the kernel sends SIGTERM.
 * Threads: main; the context's helper thread makes progress.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "train.h"

/* For those that evaluate, as long as that takes: a link says by itself when its peer is gone. */
#define PARTING_NS (7ull * 86400 * 1000000000)

#define LINGER_S 3 /* longer than the launcher waits for more witnesses (launch.c) */

static tern_session *volatile running;
static volatile sig_atomic_t stopped_by;

static void on_signal(int sig)
{
	tern_session *session = running;

	stopped_by = sig;
	if (session)
		tern_session_cancel(session);
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	sigaction(SIGTERM, &action, NULL);
	action.sa_handler =
		report_to_launcher() ? SIG_IGN : on_signal; /* Ctrl-C is the launcher's to handle */
	sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!report_to_launcher())
		return;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	/* It may have died before; its pid says nothing: it can be 1 in a container. */
	if (report_broken())
		raise(SIGTERM);
}

static double seconds_since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

/* ---- common ---- */

typedef struct part {
	const train_options *options;
	train_job job;
	tern_ctx *ctx, *tables; /* tables: of a worker's rows */
	tern_session *session;
	train_cluster cluster;
	char name[TRAIN_NAME_MAX];
	bool told; /* what is wrong was said already */
	train_output out;
	train_share share;
	train_time time;
} part;

/* The peer refused us: what to compare with its command line. */
static void tell_job(const part *p, char *text, size_t bytes)
{
	char job[700];

	train_job_describe(p->options, &p->job, job, sizeof(job));
	snprintf(text, bytes, "; the peer belongs to another job: same options everywhere? Here: %s", job);
}

/* With links that are open, so that peers see for themselves who is gone, until the launcher has heard enough. */
static void linger(void)
{
	struct timespec wait = {.tv_sec = LINGER_S};

	if (report_to_launcher() && !stopped_by)
		nanosleep(&wait, NULL); /* SIGTERM ends it */
}

static int failed(const part *p, const char *what, tern_status status)
{
	char more[900] = "";

	if (status == TERN_E_CANCELED || stopped_by) {
		report(true, "stopped");
		return stopped_by ? 128 + stopped_by : 1;
	}
	if (p->told)
		return 1;
	if (status == TERN_E_COOKIE)
		tell_job(p, more, sizeof(more));
	fprintf(stderr, "%s: %s: %s: %s%s\n", p->name, what, tern_status_name(status), tern_detail(), more);
	if (status == TERN_E_PEER_LOST)
		report(false, "lost");
	report(true, "error %s: %s%s", what, tern_detail(), more);
	if (status == TERN_E_PEER_LOST)
		linger();
	return 1;
}

static tern_status open_context(part *p)
{
	const train_options *o = p->options;
	static char transports[32];
	char tables[TRAIN_NAME_MAX + 8];
	tern_status status;
	tern_ctx_params params = {.name = p->name, .job = p->job.cookie, .listen = ""};

	if (o->insecure)
		params.flags |= TERN_CTX_INSECURE;
	/* Workers dial: nobody has to reach them, but for stages that have others above them. */
	if (o->role == ROLE_SERVER || o->stage + 1 < o->stages)
		params.listen = o->listen ? o->listen : cluster_own(o, &p->cluster);
	if (o->transport != TRANSPORT_AUTO) {
		snprintf(transports, sizeof(transports), "%s", transport_names[o->transport]);
		params.transports = transports;
	}
	status = tern_ctx_create(&params, &p->ctx);
	if (status != TERN_OK || !o->sparse || o->role == ROLE_SERVER)
		return status;
	snprintf(tables, sizeof(tables), "%s/tables", p->name);
	params.name = tables;
	params.listen = "";
	return tern_ctx_create(&params, &p->tables);
}

static tern_status open_session(part *p, uint64_t eval_batch)
{
	const train_options *o = p->options;
	char restore[4300];
	tern_session_params params = {.plan = p->job.plan,
				      .role = o->role == ROLE_SERVER ? TERN_ROLE_SERVER
					      : o->servers           ? TERN_ROLE_WORKER
								     : TERN_ROLE_LOCAL,
				      .index = (uint32_t)o->index,
				      .batch = o->batch,
				      .eval_batch = eval_batch,
				      .kernel_threads = (uint32_t)o->kernel_threads,
				      .spin = o->spin,
				      .stub = o->no_comm,
				      .trace_events = o->trace ? TRAIN_TRACE_EVENTS : 0,
				      .servers = p->cluster.address,
				      .stage = (uint32_t)o->stage,
				      .stages = p->cluster.lower};
	tern_status status = TERN_OK;

	if (o->resume)
		train_save_path(o->resume, o->first_step, p->name, restore, sizeof(restore));
	params.restore = o->resume ? restore : o->first_step ? "" : NULL; /* workers have nothing to read */
	params.steps_done = o->first_step;
	if (!o->no_comm && (o->servers || o->stages > 1))
		status = open_context(p);
	params.tables = p->tables;
	if (status == TERN_OK)
		status = tern_session_open(p->ctx, &params, &p->session);
	running = p->session;
	if (stopped_by && p->session) /* while there was no session to tell */
		tern_session_cancel(p->session);
	return status;
}

/* Who kept this process waiting, of the other role; of a worker's stages the one that did most. */
static void report_waits(part *p)
{
	tern_role other = p->options->role == ROLE_SERVER ? TERN_ROLE_WORKER : TERN_ROLE_SERVER;
	uint32_t devices = p->options->no_comm ? 0 : tern_plan_devices(p->job.plan);
	uint64_t most = 0;

	for (uint32_t i = 0; i < devices; i++) {
		tern_device_info info;
		uint64_t ns;

		if (tern_plan_device(p->job.plan, i, &info) != TERN_OK || info.role != other ||
		    tern_session_waited(p->session, i, &ns) != TERN_OK)
			continue;
		most = info.stage == 0 || ns > most ? ns : most;
		report(false, "waited %u %llu", info.index, (unsigned long long)most);
	}
}

static void report_stats(part *p, const char *more)
{
	tern_session_stats s;
	uint64_t staged;

	tern_session_stats_get(p->session, &s);
	staged = p->ctx ? tern_ctx_counter(p->ctx, "mem.staging_copies") : 0;
	report_waits(p);
	report(true,
	       "result steps=%llu bytes=%llu copies=%llu copy_bytes=%llu writes=%llu staging_copies=%llu "
	       "comm_ns=%llu "
	       "wait_ns=%llu "
	       "compute_ns=%llu step_ns=%llu cpu_ns=%llu transport=%s %s",
	       (unsigned long long)s.steps, (unsigned long long)s.bytes_sent, (unsigned long long)s.copies,
	       (unsigned long long)s.copy_bytes, (unsigned long long)s.writes, (unsigned long long)staged,
	       (unsigned long long)s.comm_ns, (unsigned long long)s.wait_ns, (unsigned long long)s.compute_ns,
	       (unsigned long long)train_time_median(&p->time), (unsigned long long)p->time.cpu_ns,
	       tern_session_transport(p->session), more);
}

/* --trace and --profile. False: printed. */
static bool look_back(part *p)
{
	const train_options *o = p->options;
	char path[4200];

	if (o->profile)
		train_profile(p->session, p->name);
	if (!o->trace)
		return true;
	if (!report_to_launcher())
		snprintf(path, sizeof(path), "%s", o->trace);
	else if (!train_trace_part(o->trace, p->name, path, sizeof(path)))
		return false;
	if (tern_session_trace(p->session, path) == TERN_OK)
		return true;
	fprintf(stderr, "%s: --trace: %s\n", p->name, tern_detail());
	return false;
}

static void close_part(part *p)
{
	running = NULL;
	tern_session_close(p->session);
	if (p->tables)
		tern_ctx_destroy(p->tables);
	if (p->ctx)
		tern_ctx_destroy(p->ctx);
	train_job_destroy(&p->job);
}

/* ---- server ---- */

/* To the end, with a stop for each checkpoint. */
static tern_status run_steps(part *p)
{
	const train_options *o = p->options;
	tern_status status = TERN_OK;

	for (uint64_t step = o->first_step; step < p->job.steps && status == TERN_OK;) {
		uint64_t next = train_save_next(o, step, p->job.steps);

		status = tern_session_run(p->session, next - step);
		step = next;
		if (status == TERN_OK && o->save)
			status = train_save(o, p->session, p->name, step);
	}
	return status;
}

static int serve(part *p)
{
	const train_options *o = p->options;
	tern_status status;

	if (!train_job_create(o, 0, train_features(o), train_classes(o), &p->job))
		return 1;
	status = open_session(p, 0);
	if (status != TERN_OK)
		return failed(p, "cannot open", status);
	report(true, "ready %s", tern_ctx_address(p->ctx));
	if (!report_to_launcher() && !o->quiet)
		fprintf(stderr,
			"%s: listening on %s, waiting for %llu workers with %llu features in %llu classes\n",
			p->name, tern_ctx_address(p->ctx), (unsigned long long)o->workers,
			(unsigned long long)p->job.features, (unsigned long long)p->job.classes);
	status = tern_session_start(p->session, o->timeout_ns);
	if (status != TERN_OK)
		return failed(p, "cannot start", status);
	tern_session_stats_reset(p->session);
	report(true, "started");
	train_time_begin(&p->time);
	status = run_steps(p);
	train_time_end(&p->time);
	if (status != TERN_OK)
		return failed(p, "training", status);
	status = tern_session_finish(p->session, PARTING_NS);
	if (status != TERN_OK)
		return failed(p, "at the end", status);
	report_stats(p, "");
	if (!look_back(p))
		return 1;
	p->share.steps = p->job.steps;
	if (o->json)
		output_json(o, p->name, &p->job, p->session, p->ctx, &p->share);
	return 0;
}

/* ---- worker ---- */

/* A stage has only some of the ports: what is missing everywhere is noticed by the step. */
static tern_status here(const part *p, tern_status status)
{
	return status == TERN_E_NOT_FOUND && p->options->stages > 1 ? TERN_OK : status;
}

/* The loss of a step, in the process that has it. */
static tern_status take_loss(part *p, uint64_t step, float *loss)
{
	const train_options *o = p->options;
	tern_status status = tern_session_fetch(p->session, 0, "loss", loss, sizeof(*loss));
	uint64_t next = train_save_next(o, step, p->job.steps);
	/* What a checkpoint comes after is not lost with this process, but for the loss of the very step that made it. */
	bool kept = o->save && step + 2 >= next;

	if (status == TERN_OK) {
		report(kept, "step %llu %a %.6f", (unsigned long long)step, (double)*loss,
		       train_time_seconds(&p->time));
		output_loss(&p->out, step, (double)*loss);
	}
	return here(p, status);
}

static tern_status train_steps_of(part *p, batcher *b, uint64_t *done, float *loss)
{
	const train_options *o = p->options;
	tern_status status = TERN_OK;

	for (*done = o->first_step; *done < p->job.steps && status == TERN_OK; ++*done) {
		batcher_fill(b, *done);
		status = batcher_feed(b, p->session, 0);
		if (status == TERN_OK)
			status = tern_session_step(p->session, 0);
		if (status == TERN_OK)
			status = take_loss(p, *done, loss);
		train_time_step(&p->time);
		/* Without servers the variables are here. */
		if (status == TERN_OK && o->save && !o->servers &&
		    *done + 1 == train_save_next(o, *done, p->job.steps))
			status = train_save(o, p->session, p->name, *done + 1);
		if (status == TERN_OK && !isfinite(*loss)) {
			fprintf(stderr, "%s: the loss is %f at step %llu: a smaller --lr may help\n", p->name,
				(double)*loss, (unsigned long long)*done);
			report(true, "error the loss is not finite at step %llu", (unsigned long long)*done);
			p->told = true;
			return TERN_E_CORRUPT;
		}
	}
	return status;
}

/* The servers send their variables after the last step as well; leaving without them would look like death. */
static tern_status take_last_weights(part *p, batcher *b)
{
	tern_status status;

	if (p->options->stages > 1) /* there is no evaluation: the session takes them in the end */
		return TERN_OK;
	status = batcher_feed(b, p->session, 1);
	return status == TERN_OK ? tern_session_step(p->session, 1) : status;
}

/* What a person reads who started the worker. */
static void print_share(const part *p)
{
	const train_share *s = &p->share;

	printf("%s: %llu steps in %.1f s, last loss %.4f, ", p->name, (unsigned long long)s->steps,
	       s->seconds, s->loss);
	if (s->train_rows)
		printf("perplexity %.3f, of its share of what was held out %.3f\n",
		       train_perplexity(s->train_nll, s->train_rows), train_perplexity(s->nll, s->rows));
	else
		printf("test accuracy of its share %.2f %%\n",
		       s->rows ? 100.0 * (double)s->correct / (double)s->rows : 0.0);
}

/* To the launcher, or whoever reads. False: printed. */
static bool tell_results(part *p)
{
	const train_options *o = p->options;
	const train_share *s = &p->share;
	char more[256];

	snprintf(more, sizeof(more),
		 "seconds=%.9f loss=%a correct=%llu rows=%llu nll=%a train_nll=%a train_rows=%llu",
		 s->seconds, s->loss, (unsigned long long)s->correct, (unsigned long long)s->rows, s->nll,
		 s->train_nll, (unsigned long long)s->train_rows);
	report_stats(p, more);
	if (!look_back(p))
		return false;
	if (o->json)
		output_json(o, p->name, &p->job, p->session, p->ctx, s);
	else if (!report_to_launcher())
		print_share(p);
	return true;
}

static int work(part *p, const dataset *train, const dataset *test)
{
	const train_options *o = p->options;
	struct timespec start;
	tern_status status;
	uint64_t done = 0;
	double seconds;
	float loss = 0;
	batcher b;

	if (!train_data_fits(o, train) ||
	    !train_job_create(o, train->count, train->features, train->classes, &p->job))
		return 1;
	status = open_session(p, o->stages > 1 ? 0 : o->batch);
	if (status != TERN_OK)
		return failed(p, "cannot open", status);
	report(true, "ready %s", p->ctx ? tern_ctx_address(p->ctx) : "-");
	if (!batcher_init(&b, train, o))
		return failed(p, "no memory for batches", TERN_E_NOMEM);
	batcher_scale(&b, train);
	status = tern_session_start(p->session, o->timeout_ns);
	if (status == TERN_OK) {
		tern_session_stats_reset(p->session);
		report(true, "started");
		clock_gettime(CLOCK_MONOTONIC, &start);
		train_time_begin(&p->time);
		status = train_steps_of(p, &b, &done, &loss);
		train_time_end(&p->time);
		seconds = seconds_since(&start);
	}
	if (status == TERN_OK)
		report(true, "trained");
	if (status == TERN_OK && o->no_eval)
		status = take_last_weights(p, &b);
	batcher_fini(&b);
	if (status != TERN_OK)
		return failed(p, done ? "training" : "cannot start", status);
	p->share = (train_share){.steps = done, .seconds = seconds, .loss = (double)loss};
	if (!o->no_eval)
		status = train_evaluate(o, p->session, train, test, &p->share);
	if (status != TERN_OK)
		return failed(p, "evaluation", status);
	if (!tell_results(p))
		return 1;
	status = tern_session_finish(p->session, PARTING_NS);
	if (status != TERN_OK)
		return failed(p, "at the end", status);
	return output_close(&p->out, o) ? 0 : 1;
}

static int worker(part *p)
{
	char error[4500];
	dataset train = {0}, test = {0};
	int rc = 1;

	if (!train_data_load(p->options, &train, &test, error, sizeof(error))) {
		fprintf(stderr, "tern train: %s\n", error);
		report(true, "error %s", error);
	} else if (output_open(&p->out, p->options)) {
		rc = work(p, &train, &test);
		output_close(&p->out, p->options);
	}
	close_part(p);
	dataset_free(&train);
	dataset_free(&test);
	return rc;
}

int train_role(const train_options *o)
{
	part *p = calloc(1, sizeof(*p));
	uint64_t limit = o->role == ROLE_SERVER ? o->servers : o->workers;
	int rc;

	if (!p)
		return 1;
	p->options = o;
	report_init(o->report_fd);
	catch_signals();
	if (o->index >= limit) {
		fprintf(stderr, "tern train: --index %llu, but there are %llu %ss (0 to %llu)\n",
			(unsigned long long)o->index, (unsigned long long)limit,
			o->role == ROLE_SERVER ? "server" : "worker", (unsigned long long)limit - 1);
		free(p);
		return 2;
	}
	if (o->stage >= o->stages) {
		fprintf(stderr, "tern train: --stage %llu, but a worker has %llu (--model-parallel)\n",
			(unsigned long long)o->stage, (unsigned long long)o->stages);
		free(p);
		return 2;
	}
	train_name(o, o->role == ROLE_WORKER, o->index, o->stage, p->name);
	if (!cluster_read(o, &p->cluster)) {
		free(p);
		return 2;
	}
	if (o->role == ROLE_SERVER) {
		rc = serve(p);
		close_part(p);
	} else {
		rc = worker(p);
	}
	free(p);
	return rc;
}

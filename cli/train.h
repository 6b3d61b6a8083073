/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train`: what the launcher and the processes of a job share.
 *
 *   launcher   one process that starts servers and workers on this host, shows progress, ends them all
 *   role       one server or worker; the launcher starts it, or a person on each host of a spread job
 *   report     lines from a role to its launcher over a pipe ("ready ADDRESS", "step N LOSS", ...)
 */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tern/session.h>

#include "idx.h"

#define TRAIN_ADDRESS_MAX   128
#define TRAIN_PROCESSES_MAX 512
#define TRAIN_HIDDEN_MAX    8 /* layers of --hidden */
#define TRAIN_NAME_MAX      32

enum { TRANSPORT_AUTO, TRANSPORT_SHM, TRANSPORT_TCP, TRANSPORT_VERBS };
enum { ON_FAILURE_STOP, ON_FAILURE_SHRINK };
enum { UNIT_BYTE, UNIT_WORD };
enum { ROLE_LAUNCHER, ROLE_SERVER, ROLE_WORKER };
extern const char *const transport_names[];
extern const char *const comm_names[];

typedef struct train_options {
	unsigned model;     /* index into model_names */
	const char *hidden; /* "W,W,...": widths instead of the model's own */
	const char *data;
	uint64_t servers, workers;
	uint64_t stages, micro; /* devices of a worker, pieces of its batch that go through them */
	uint64_t batch;         /* rows per worker and step */
	uint64_t epochs, steps; /* steps 0: by epochs */
	unsigned transport, comm;
	bool sync, sparse;
	uint64_t seed;
	bool json, quiet;
	double lr, momentum;
	/* train_optim.c: what is 0 is the default of model and optimiser */
	unsigned optimizer; /* index into optimizer_names */
	double beta1, beta2, rho, epsilon, weight_decay, clip_norm, clip_value;
	uint64_t kernel_threads;
	bool spin, no_comm, no_eval;
	const char *losses, *curve, *trace;
	bool profile;
	const char *save, *resume;
	unsigned on_failure;             /* ON_FAILURE_... */
	uint64_t save_every, first_step; /* first_step: of this run; found by the launcher */
	uint64_t features, classes;      /* 0: those of the data, or the assumption */
	uint64_t length;                 /* of sequences: tokens of a row; 0: the model's */
	unsigned unit;                   /* UNIT_...: what a token of a text is */
	/* a job over hosts */
	unsigned role;
	uint64_t index, stage;
	const char *cluster;
	const char *listen;
	bool insecure;
	uint64_t timeout_ns;
	uint64_t report_fd; /* UINT64_MAX: no launcher */
	/* models of rows (models/) */
	const char *text, *pairs; /* text: also of models of sequences */
	uint64_t dim, window, negative, min_count, staleness;
	double sample, skew;
	uint64_t samples, vocabulary;
	unsigned consistency;
} train_options;

extern const char *const model_names[];

/* ---- train_optim.c: optimisers and the clipping of gradients ---- */

extern const char *const optimizer_names[]; /* in the order of tern_optimizer_kind */

/* Which of these options were given. */
typedef struct train_optimizer_given {
	bool optimizer, momentum, beta1, beta2, rho, epsilon, weight_decay, clip_norm, clip_value;
} train_optimizer_given;
/* Options that do not fit each other or are out of range: printed, false. Else o is complete but for the learning rate. */
bool train_optimizer_check(train_options *o, const train_optimizer_given *given);
/* For a job of so many steps (of updates, for servers that apply each gradient by itself). */
tern_optimizer train_optimizer(const train_options *o, uint64_t steps);
/* As options again, for the processes of a job and for people: "--optimizer adam --lr ...". */
void train_optimizer_options(const train_options *o, void (*add)(void *to, const char *option, double value),
			     void *to);

/* ---- train_model.c ---- */

enum { TRAIN_IMAGES, TRAIN_TEXT, TRAIN_PAIRS };

typedef struct train_model {
	uint64_t features; /* of a row that it is made for; 0: any */
	double lr_sync, lr_async, lr_end, weight_decay;
	unsigned data;      /* TRAIN_... */
	uint64_t length;    /* of its sequences, unless --length says something else */
	unsigned optimizer; /* 0: momentum */
} train_model;

extern const train_model train_models[]; /* by number of the model; not those of tables */
/* features, classes: of the data; for models that are made for any. */
void train_model_params(const train_options *options, uint64_t features, unsigned classes,
			tern_model_params *params);
/* Options of its data that the model has no use for: printed, false. Else what was not given is that of the model. */
bool train_data_check(train_options *options, bool data_given, bool vocabulary_given);
/* Of rows, as far as options say or the model is made for it: for servers, which do not load the data. */
uint64_t train_features(const train_options *options);
unsigned train_classes(const train_options *options);
/* What is learned and what it is tested with (not loaded with --no-eval). False: one line in error. */
bool train_data_load(const train_options *options, dataset *train, dataset *test, char *error,
		     size_t error_bytes);

/* ---- train_job.c: from options to graph, plan and steps ---- */

typedef struct train_job {
	tern_graph *graph;
	tern_plan *plan;
	uint64_t parameters;
	uint64_t steps; /* per worker */
	uint64_t features, classes;
	char cookie[48]; /* of everything that decides the plan: other jobs are refused */
} train_job;

/* --consistency ssp of models that are graphs: how many steps a worker may be ahead; 0: no bound. */
uint32_t train_stale(const train_options *options);
/* rows, features, classes: of the training set, 0 if this process does not load it (servers need --steps).
   On failure prints one line and returns false. */
bool train_job_create(const train_options *options, uint64_t rows, uint64_t features, unsigned classes,
		      train_job *job);
void train_job_destroy(train_job *job);
/* Steps of one worker: by --steps, or by epochs over rows. 0 and a printed line: batch larger than the data. */
uint64_t train_steps(const train_options *options, uint64_t rows);
/* Has the set the shape that --features and --classes say? Printed if not. */
bool train_data_fits(const train_options *options, const dataset *set);
/* What all processes of the job must agree on, as options: for people who compare two hosts. */
void train_job_describe(const train_options *options, const train_job *job, char *text, size_t bytes);

/* ---- train_cluster.c ---- */

/*
 * Who can be dialed, in this order: the servers; stage 0 of each worker; stage 1 of each; ... All but the last stages. A
 * launcher knows the addresses of lower stages only when it starts the higher ones, which need no others.
 */
typedef struct train_cluster {
	char text[65536];
	const char *address[TRAIN_PROCESSES_MAX];
	uint64_t count;
	const char *lower[TRAIN_PROCESSES_MAX]; /* the stages below this one */
} train_cluster;

/* --cluster, if it was given, with an address for each of them. False: printed. */
bool cluster_read(const train_options *options, train_cluster *cluster);
/* Where this process is in it; NULL: not there. */
const char *cluster_own(const train_options *options, const train_cluster *cluster);
/* "server1", "worker0", "worker0/stage1". */
void train_name(const train_options *options, bool is_worker, uint64_t index, uint64_t stage,
		char name[TRAIN_NAME_MAX]);

/* ---- batch.c ---- */

typedef struct batcher {
	const dataset *set;
	uint64_t batch, workers, worker, seed;
	uint64_t epoch; /* whose permutation is in order[] */
	uint32_t *order;
	float *images;     /* (batch, features) */
	int32_t *labels;   /* (batch) */
	float mean, scale; /* pixels become (x - mean) * scale */
	/* sequences */
	int32_t *tokens[DATASET_PORTS]; /* (batch, steps), in the order of the set's ports */
	uint64_t steps;                 /* of this batch: not more than its longest row needs */
	bool stages;                    /* the session is one of several that have a copy of the model */
	bool fed;                       /* to which program, with how many steps */
	int fed_eval;
	uint64_t fed_steps;
} batcher;

bool batcher_init(batcher *b, const dataset *set, const train_options *options);
/* Zero mean and unit variance over all pixels of the training set, for any set. Before the first fill. */
void batcher_scale(batcher *b, const dataset *train);
/* Rows of step n: the n-th slice of batch x workers rows of the epoch's order, our part of it. */
void batcher_fill(batcher *b, uint64_t step);
/* Every stride-th row of the set in order, numbers first to first + batch of them; past the end the last row is repeated, of
   sequences without targets. */
void batcher_rows(batcher *b, uint64_t first, uint64_t end, uint64_t stride);
/* Of sequences: tokens of the batch that are to be predicted. */
uint64_t batcher_targets(const batcher *b);
/* The buffers into the training (eval 0) or evaluation program, if it has them not or of another size. After a fill. */
tern_status batcher_feed(batcher *b, tern_session *session, int eval);
void batcher_fini(batcher *b);

/* ---- train_time.c: what the steps of one process cost ---- */

#define TRAIN_TIMES 4096 /* the latest steps are looked at */

typedef struct train_time {
	uint64_t cpu_ns; /* of the process; while it runs: at the beginning */
	uint64_t begin_ns, last_ns, count;
	uint64_t step_ns[TRAIN_TIMES];
} train_time;

void train_time_begin(train_time *t);
void train_time_step(train_time *t);
/* Since the beginning. */
double train_time_seconds(const train_time *t);
void train_time_end(train_time *t);
/* Sorts. 0 without a step. */
uint64_t train_time_median(train_time *t);

/* ---- train_save.c: checkpoints ---- */

/* Where the file of a process is; a / in its name becomes a dot. */
void train_save_path(const char *dir, uint64_t step, const char *name, char *path, size_t bytes);
/* The newest complete checkpoint in a directory, if there is one. */
bool train_newest(const train_options *options, const char *dir, uint64_t *step);
/* That of --resume. False: printed. */
bool train_resume_step(const train_options *options, uint64_t *step);
/* This process's file of a step; older ones of its own are removed. */
tern_status train_save(const train_options *options, tern_session *session, const char *name, uint64_t step);
/* How far to train before the next checkpoint. */
uint64_t train_save_next(const train_options *options, uint64_t step, uint64_t steps);

/* ---- train_trace.c ---- */

#define TRAIN_TRACE_EVENTS (1u << 18) /* the latest of each process */

/* Where the part of a process goes. False: too long. */
bool train_trace_part(const char *path, const char *name, char *part, size_t bytes);
/* The parts of these processes into one file; parts are removed. False: printed. */
bool train_trace_merge(const char *path, char (*names)[TRAIN_NAME_MAX], unsigned count);
/* The nodes that cost most, on standard error. */
void train_profile(tern_session *session, const char *name);

/* ---- report.c: lines to the launcher ---- */

void report_init(uint64_t fd);
/* Buffered; flushed when it is old enough or urgent. Without a launcher nothing happens. */
__attribute__((format(printf, 2, 3))) void report(bool urgent, const char *fmt, ...);
bool report_to_launcher(void);
/* The launcher does not read any more: it is gone. */
bool report_broken(void);

/* ---- train_output.c: what one process of a job over hosts leaves behind; nothing without the options ---- */

typedef struct train_output {
	FILE *losses;
	bool failed; /* said already */
} train_output;

/* Opens --losses. False: printed. */
bool output_open(train_output *out, const train_options *options);
void output_loss(train_output *out, uint64_t step, double loss);
/* False: not everything was written; printed. */
bool output_close(train_output *out, const train_options *options);

typedef struct train_share {
	uint64_t steps;
	double seconds, loss; /* workers: of the training, of the last step */
	uint64_t correct, rows;
	/* sequences: sums of -log p over tokens: of what was held out (rows of them), and of as much of what was learned */
	double nll, train_nll;
	uint64_t train_rows;
} train_share;
/* ---- train_eval.c ---- */

/* Our share of the test set into share. */
tern_status train_evaluate(const train_options *options, tern_session *session, const dataset *train,
			   const dataset *test, train_share *share);
/* e to the mean; NAN of nothing. */
double train_perplexity(double nll, uint64_t tokens);
/* --json: one object on standard output with what the process moved, and its context's counters. */
void output_json(const train_options *options, const char *name, const train_job *job, tern_session *session,
		 tern_ctx *ctx, const train_share *share);

/* ---- the processes ---- */

int train_role(const train_options *options);                     /* train_role.c */
int train_launch(const train_options *options, const char *self); /* train_print.c */
const char *train_rows_of(const train_options *options);          /* "images" or "rows": train_print.c */

/* What a launched job came to; also for `tern demo`. */
typedef struct train_result {
	bool ok; /* trained; the status may still be bad if --losses could not be written */
	double loss, accuracy;
	double perplexity, train_perplexity; /* of sequences, else NAN */
	uint64_t steps;
	unsigned failures; /* processes that died while the job went on without them */
	double seconds, steps_per_s, images_per_s;
	uint64_t bytes, copies, copy_bytes, staging_copies, writes;
	double comm_seconds, compute_seconds; /* mean of the workers */
	double step_seconds;                  /* median of the steps, of the slowest worker */
	double cpu_seconds;                   /* of all processes while they trained */
	char straggler[32];                   /* the worker that servers waited for longest, ... */
	double straggler_seconds;             /* ... how long, for its tensors or slots */
	uint64_t parameters;
	char transport[32];
} train_result;

/* Run a job with progress on stderr; prints no summary. exit status in *status. */
void train_run(const train_options *options, const char *self, const char *title, train_result *result,
	       int *status);

#endif

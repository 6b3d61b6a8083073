/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the launcher: its processes and what they said. launch.c runs the job, proc.c starts, reads and ends
 * single processes, blame.c finds whose fault it is, launch_command.c is their command lines, launch_result.c what came of it.
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "progress.h"
#include "train.h"

typedef struct line_buffer {
	char text[4096];
	size_t used;
} line_buffer;

typedef struct proc {
	char name[TRAIN_NAME_MAX];
	bool is_worker;
	uint32_t index, stage;
	pid_t pid;
	int out_fd, report_fd; /* -1 once closed */
	line_buffer out, reports;
	bool exited;
	int wait_status;
	/* what it reported */
	char address[TRAIN_ADDRESS_MAX];
	bool ready, started, trained, has_result;
	uint64_t steps_done;
	float *losses; /* workers: [steps] */
	float *times;  /* likewise: seconds from the beginning to the end of a step */
	uint64_t steps_max;
	char error[512];
	bool lost; /* the error is that a peer is gone which did not say so; its process may linger */
	uint64_t failed_ns; /* when that, or its bad end, was seen; 0 = not yet */
	uint64_t bytes, copies, copy_bytes, staging_copies, writes, comm_ns, wait_ns, compute_ns, step_ns,
		cpu_ns, correct, rows, train_rows;
	double seconds, loss, nll, train_nll;
	char transport[32];
	uint64_t waited_ns[TRAIN_PROCESSES_MAX]; /* for number i of the other role */
} proc;

/*
 * Start `self train --role ...`; its stdout and stderr come through out_fd. The job's secret goes through the
 * environment, unless that has one. False: printed.
 */
bool proc_start(proc *p, const char *self, char *const argv[], const char *secret);
/* Read a bounded part of what there is, all of it once it was reaped; log lines go to stderr with the process's name in front. */
void proc_read(proc *p, progress *bar);
/* Reap it if it has ended. True when it ended in this call. */
bool proc_reap(proc *p);
/* It ended badly: "was killed by signal 9 (Killed)", "exited with status 1: ...". */
void proc_describe(const proc *p, char *text, size_t bytes);
bool proc_failed(const proc *p);
/* The signal that ended it, or that it ended itself for with status 128 + signal; 0 = none. */
int proc_signal(const proc *p);
void proc_free(proc *p);

/* ---- blame.c ---- */

/* The process because of which the job ends, and why, from those that failed so far; NULL: none did. sure: no process
   that fails later can change it. */
const proc *blame(const proc *procs, uint32_t servers, uint32_t count, bool *sure, char *text, size_t bytes);

/* ---- launch.c ---- */

#define SECRET_BYTES 32

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

/* ---- launch_command.c ---- */

/* Words and numbers, kept in one place until the process was started. */
typedef struct command_line {
	const char *argv[96];
	char text[2048];
	int count;
	size_t used;
} command_line;

/* c points into itself: it is not to be copied. cluster: the addresses of those that were started before; "": none. */
void launch_command(const launch *l, const proc *p, const char *cluster, command_line *c);

/* ---- launch_result.c ---- */

/* The mean over workers of their losses at a step; NaN if nobody has said one. */
double launch_mean_loss(const launch *l, uint64_t step);
/* Steps that all workers have done, and the mean of their losses at the last of them, in worker order. */
uint64_t launch_common_step(const launch *l, double *loss);
/* --losses is opened before the job, so that a mistake shows at once; what it held is kept until there is something new.
   False: printed. */
bool launch_open_losses(launch *l);
/* The files of --losses, --curve and --trace, once a job has ended well. False: printed. */
bool launch_write(launch *l);
void launch_collect(const launch *l, train_result *r);

#endif

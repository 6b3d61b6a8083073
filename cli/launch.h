/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the launcher: its processes and what they said. launch.c runs the job, proc.c starts, reads and ends
 * single processes, blame.c finds whose fault it is.
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

#endif

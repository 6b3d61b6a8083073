/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of a launched job: start, its two pipes, its end. Threads: main.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

#define REPORT_FD   3
#define TURN_READS  8  /* of one pipe before the others get a turn */
#define DRAIN_READS 64 /* more than a pipe holds */

/* In the child, all signals blocked. */
static void child(const char *self, char *const argv[], const char *secret, int out, int reports)
{
	sigset_t none;

	/* Ctrl-C goes to the whole terminal group, but it is the launcher's to handle. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Not in argv, which every user of the host can read. A secret of the user's own stays. */
	if (secret[0])
		setenv("TERN_CTX_SECRET", secret, 0);
	/* dup2 onto itself would keep close-on-exec */
	if (reports == REPORT_FD)
		fcntl(reports, F_SETFD, 0);
	else
		dup2(reports, REPORT_FD);
	dup2(out, STDOUT_FILENO);
	dup2(out, STDERR_FILENO);
	execv(self, argv);
	dprintf(REPORT_FD, "error cannot run %s: %s\n", self, strerror(errno));
	_exit(127);
}

bool proc_start(proc *p, const char *self, char *const argv[], const char *secret)
{
	int out[2] = {-1, -1}, reports[2] = {-1, -1};
	sigset_t all, old;

	/* O_CLOEXEC on all: children must not hold each other's pipes open. */
	if (pipe2(out, O_CLOEXEC) != 0 || pipe2(reports, O_CLOEXEC) != 0)
		goto failed;
	/* Not on the number that the child gives the report pipe. */
	if (out[1] == REPORT_FD) {
		int moved = fcntl(out[1], F_DUPFD_CLOEXEC, 10);

		close(out[1]);
		out[1] = moved;
	}
	/* A signal between fork and exec would be taken by our handler in the child, and lost. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	p->pid = fork();
	if (p->pid == 0)
		child(self, argv, secret, out[1], reports[1]);
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (p->pid < 0)
		goto failed;
	close(out[1]);
	close(reports[1]);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	fcntl(reports[0], F_SETFL, O_NONBLOCK);
	p->out_fd = out[0];
	p->report_fd = reports[0];
	return true;
failed:
	fprintf(stderr, "tern train: cannot start %s: %s\n", p->name, strerror(errno));
	for (int i = 0; i < 2; i++) {
		if (out[i] >= 0)
			close(out[i]);
		if (reports[i] >= 0)
			close(reports[i]);
	}
	p->pid = 0;
	return false;
}

/* ---- reports ---- */

static void parse_result(proc *p, char *text)
{
	char *save = NULL;

	p->has_result = true;
	for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *value = strchr(word, '=');
		struct {
			const char *name;
			uint64_t *to;
		} numbers[] = {{"bytes", &p->bytes},
			       {"copies", &p->copies},
			       {"copy_bytes", &p->copy_bytes},
			       {"writes", &p->writes},
			       {"staging_copies", &p->staging_copies},
			       {"comm_ns", &p->comm_ns},
			       {"wait_ns", &p->wait_ns},
			       {"compute_ns", &p->compute_ns},
			       {"step_ns", &p->step_ns},
			       {"cpu_ns", &p->cpu_ns},
			       {"correct", &p->correct},
			       {"rows", &p->rows},
			       {"train_rows", &p->train_rows}};
		struct {
			const char *name;
			double *to;
		} reals[] = {{"seconds", &p->seconds},
			     {"loss", &p->loss},
			     {"nll", &p->nll},
			     {"train_nll", &p->train_nll}};

		if (!value)
			continue;
		*value++ = '\0';
		for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
			if (strcmp(word, numbers[i].name) == 0)
				*numbers[i].to = strtoull(value, NULL, 10);
		for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
			if (strcmp(word, reals[i].name) == 0)
				*reals[i].to = strtod(value, NULL);
		if (strcmp(word, "transport") == 0)
			snprintf(p->transport, sizeof(p->transport), "%s", value);
	}
}

static void on_report(proc *p, char *line)
{
	if (strncmp(line, "step ", 5) == 0) {
		char *end;
		uint64_t step = strtoull(line + 5, &end, 10);

		if (p->losses && step < p->steps_max) {
			p->losses[step] = (float)strtod(end, &end);
			p->times[step] = (float)strtod(end, NULL);
			p->steps_done = step + 1;
		}
	} else if (strncmp(line, "ready ", 6) == 0) {
		snprintf(p->address, sizeof(p->address), "%s", line + 6);
		p->ready = true;
	} else if (strncmp(line, "waited ", 7) == 0) {
		char *end;
		uint64_t index = strtoull(line + 7, &end, 10);

		if (index < TRAIN_PROCESSES_MAX)
			p->waited_ns[index] = strtoull(end, NULL, 10);
	} else if (strcmp(line, "started") == 0) {
		p->started = true;
	} else if (strcmp(line, "trained") == 0) {
		p->trained = true;
	} else if (strcmp(line, "lost") == 0) {
		p->lost = true;
	} else if (strncmp(line, "error ", 6) == 0) {
		snprintf(p->error, sizeof(p->error), "%s", line + 6);
	} else if (strncmp(line, "result ", 7) == 0) {
		parse_result(p, line + 7);
	}
}

/* ---- pipes ---- */

/* Whole lines of buf to the handler; keeps the rest. A line longer than the buffer is cut. */
static void take_lines(proc *p, line_buffer *buf, progress *bar, bool is_log, bool at_end)
{
	char *start = buf->text, *end = buf->text + buf->used, *newline;

	while ((newline = memchr(start, '\n', (size_t)(end - start))) ||
	       (start < end && (at_end || (start == buf->text && buf->used == sizeof(buf->text) - 1)))) {
		if (!newline)
			newline = end;
		*newline = '\0';
		if (is_log) {
			progress_clear(bar);
			fprintf(stderr, "[%s] %s\n", p->name, start);
		} else {
			on_report(p, start);
		}
		start = newline + (newline < end);
	}
	buf->used = (size_t)(end - start);
	memmove(buf->text, start, buf->used);
}

static void read_pipe(proc *p, int *fd, line_buffer *buf, progress *bar, bool is_log, int reads)
{
	while (*fd >= 0 && reads-- > 0) {
		ssize_t n = read(*fd, buf->text + buf->used, sizeof(buf->text) - 1 - buf->used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n > 0)
			buf->used += (size_t)n;
		take_lines(p, buf, bar, is_log, n <= 0);
		if (n <= 0) {
			close(*fd);
			*fd = -1;
		}
	}
}

void proc_read(proc *p, progress *bar)
{
	int reads = p->exited ? DRAIN_READS : TURN_READS;

	read_pipe(p, &p->report_fd, &p->reports, bar, false, reads);
	read_pipe(p, &p->out_fd, &p->out, bar, true, reads);
}

/* ---- ends ---- */

bool proc_reap(proc *p)
{
	pid_t pid;

	if (p->exited || p->pid <= 0)
		return false;
	pid = waitpid(p->pid, &p->wait_status, WNOHANG);
	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	if (pid < 0) { /* somebody else reaped it: how it ended is lost */
		p->wait_status = 1 << 8;
		snprintf(p->error, sizeof(p->error), "its exit status was lost: %s", strerror(errno));
	}
	p->exited = true;
	return true;
}

bool proc_failed(const proc *p)
{
	return p->exited && !(WIFEXITED(p->wait_status) && WEXITSTATUS(p->wait_status) == 0);
}

int proc_signal(const proc *p)
{
	if (!p->exited)
		return 0;
	if (WIFSIGNALED(p->wait_status))
		return WTERMSIG(p->wait_status);
	return WEXITSTATUS(p->wait_status) > 128 ? WEXITSTATUS(p->wait_status) - 128 : 0;
}

void proc_describe(const proc *p, char *text, size_t bytes)
{
	if (WIFSIGNALED(p->wait_status))
		snprintf(text, bytes, "%s (pid %d) was killed by signal %d (%s)", p->name, (int)p->pid,
			 WTERMSIG(p->wait_status), strsignal(WTERMSIG(p->wait_status)));
	else if (proc_signal(p))
		snprintf(text, bytes, "%s (pid %d) was stopped by signal %d (%s)", p->name, (int)p->pid,
			 proc_signal(p), strsignal(proc_signal(p)));
	else
		snprintf(text, bytes, "%s (pid %d) exited with status %d%s%s", p->name, (int)p->pid,
			 WEXITSTATUS(p->wait_status), p->error[0] ? ": " : "", p->error);
}

void proc_free(proc *p)
{
	if (p->out_fd >= 0)
		close(p->out_fd);
	if (p->report_fd >= 0)
		close(p->report_fd);
	free(p->losses);
	free(p->times);
}

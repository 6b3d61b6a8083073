/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines from a process of a job to its launcher, over a pipe that the launcher made. Buffered, so that
 * thousands of steps a second cost a few writes. A launcher that is gone ends the process by its death
 * signal, not by a broken pipe. Threads: main.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train.h"

#define FLUSH_NS 50000000ull

static int report_fd = -1;
static char buffer[8192];
static size_t used;
static uint64_t flushed_at;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void report_init(uint64_t fd)
{
	report_fd = fd == UINT64_MAX ? -1 : (int)fd;
}

bool report_to_launcher(void)
{
	return report_fd >= 0;
}

bool report_broken(void)
{
	struct pollfd pipe_end = {.fd = report_fd, .events = POLLOUT};

	return poll(&pipe_end, 1, 0) == 1 && (pipe_end.revents & (POLLERR | POLLNVAL));
}

static void flush(void)
{
	size_t done = 0;

	while (done < used) {
		ssize_t n = write(report_fd, buffer + done, used - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	used = 0;
	flushed_at = now_ns();
}

void report(bool urgent, const char *fmt, ...)
{
	char line[1024];
	va_list args;
	int n;

	if (report_fd < 0)
		return;
	va_start(args, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, args);
	va_end(args);
	if (n < 0)
		return;
	if ((size_t)n > sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n++] = '\n';
	if (used + (size_t)n > sizeof(buffer))
		flush();
	memcpy(buffer + used, line, (size_t)n);
	used += (size_t)n;
	if (urgent || now_ns() - flushed_at >= FLUSH_NS)
		flush();
}

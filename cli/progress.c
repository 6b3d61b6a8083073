/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress line. See progress.h.
 */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR_CELLS   24
#define TERMINAL_NS 100000000ull
#define LINES_NS    5000000000ull

uint64_t progress_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void progress_init(progress *p, const char *title, uint64_t total, bool off)
{
	*p = (progress){.title = title, .off = off, .terminal = isatty(STDERR_FILENO), .total = total};
	p->start_ns = progress_now_ns();
}

static unsigned columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20)
		return size.ws_col;
	return 100;
}

void progress_draw(progress *p, uint64_t done, bool force, const char *words)
{
	uint64_t now = progress_now_ns();
	unsigned cells = p->total ? (unsigned)(done * BAR_CELLS / p->total) : 0;
	char line[512], eta[32] = "";
	int n;

	if (p->off || (!force && now - p->drawn_ns < (p->terminal ? TERMINAL_NS : LINES_NS)))
		return;
	p->drawn_ns = now;
	if (done && done < p->total) {
		double left = (double)(now - p->start_ns) * 1e-9 / (double)done * (double)(p->total - done);

		snprintf(eta, sizeof(eta), "  %.0f s left", left);
	}
	if (!p->terminal) {
		fprintf(stderr, "%s: step %llu/%llu  %s%s\n", p->title, (unsigned long long)done,
			(unsigned long long)p->total, words, eta);
		return;
	}
	n = snprintf(line, sizeof(line), "%s [%.*s%.*s] %llu/%llu  %s%s", p->title, (int)cells,
		     "########################", (int)(BAR_CELLS - cells), "........................",
		     (unsigned long long)done, (unsigned long long)p->total, words, eta);
	if (n > 0 && (unsigned)n >= columns())
		line[columns() - 1] = '\0';
	fprintf(stderr, "\r\033[K%s", line);
	fflush(stderr);
	p->shown = true;
}

void progress_clear(progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}

void progress_end(progress *p)
{
	if (p->shown)
		fputc('\n', stderr);
	p->shown = false;
}

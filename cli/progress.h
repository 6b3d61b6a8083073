/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One progress line on stderr: a bar that redraws itself on a terminal, a line every few seconds elsewhere.
 * Threads: main.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
	const char *title;
	bool off, terminal, shown;
	uint64_t total;
	uint64_t start_ns, drawn_ns;
} progress;

void progress_init(progress *p, const char *title, uint64_t total, bool off);
/* Draw if it is time (or force): done of total steps, what follows the bar in words. */
void progress_draw(progress *p, uint64_t done, bool force, const char *words);
/* Take the bar away so that other output starts on a clean line. */
void progress_clear(progress *p);
/* Leave the last state on the screen. */
void progress_end(progress *p);

uint64_t progress_now_ns(void);

#endif

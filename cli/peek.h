/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at a process through its HTTP endpoint (--http): a page, and its metrics as samples.
 *
 * Threads: one per sample set. Tests: tests/e2e/watch_test.py.
 */
#ifndef CLI_PEEK_H
#define CLI_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEEK_PORT "9400" /* of an address without one */
#define PEEK_MAX  64     /* processes that a command looks at */

/* How many of the addresses a command was given, after argument parsing; with none, one of this host. */
size_t peek_addresses(const char *addresses[PEEK_MAX]);
/* GET path from "host:port". malloced; NULL: why says it. Waits 5 s at most. */
char *peek(const char *address, const char *path, char *why, size_t why_bytes);

typedef struct sample {
	const char *name, *labels; /* labels as they stand, without braces; "" */
	double value;
} sample;

typedef struct samples {
	char *text; /* owns the strings */
	sample *row;
	size_t n;
	uint64_t at_ns;
} samples;

/* /metrics. False: why says it. */
bool samples_get(samples *s, const char *address, char *why, size_t why_bytes);
void samples_free(samples *s);
/* The value of a sample; labels must contain `part` (NULL: any); `missing` if there is none. */
double samples_value(const samples *s, const char *name, const char *part, double missing);
/* Sum over all of that name. */
double samples_sum(const samples *s, const char *name);
/* The text of a label, or "": unescaped. */
const char *sample_label(const sample *s, const char *label, char *buf, size_t bytes);
/* Per second since `before`, which may be empty (0 then). */
double samples_rate(const samples *s, const samples *before, double now, double was);

#endif

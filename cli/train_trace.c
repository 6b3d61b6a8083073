/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job did when: each process writes its part of the trace beside the file that was asked for, the launcher puts
 * the parts together. And a process's profile as a table. Threads: main. Tests: tests/e2e/train_trace_test.py.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train.h"

#define ROWS_MAX 4096
#define SHOWN    15

/* ---- trace ---- */

bool train_trace_part(const char *path, const char *name, char *part, size_t bytes)
{
	size_t n = strlen(path);

	if ((size_t)snprintf(part, bytes, "%s.%s.part", path, name) >= bytes)
		return false;
	for (char *slash = strchr(part + n, '/'); slash; slash = strchr(slash, '/')) /* of a stage */
		*slash = '.';
	return true;
}

/* The lines between the brackets. False: errno says why. */
static bool append(FILE *out, const char *path)
{
	FILE *in = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;
	ssize_t n;

	if (!in)
		return false;
	while ((n = getline(&line, &size, in)) > 0) {
		if (line[0] == '{')
			fwrite(line, 1, (size_t)n, out);
	}
	free(line);
	fclose(in);
	return true;
}

bool train_trace_merge(const char *path, char (*names)[TRAIN_NAME_MAX], unsigned count)
{
	FILE *out = fopen(path, "we");
	char part[4200];
	bool ok = out != NULL;

	if (ok)
		fprintf(out, "[\n");
	for (unsigned i = 0; i < count; i++) {
		if (!train_trace_part(path, names[i], part, sizeof(part)))
			continue;
		if (ok && i > 0)
			fprintf(out, ",\n");
		ok = ok && append(out, part);
		unlink(part);
	}
	if (out) {
		fprintf(out, "]\n");
		ok &= !ferror(out);
		ok &= fclose(out) == 0;
	}
	if (!ok)
		fprintf(stderr, "tern train: cannot write --trace %s: %s\n", path, strerror(errno));
	return ok;
}

/* ---- profile ---- */

typedef struct profile {
	tern_node_cost rows[ROWS_MAX];
	unsigned count;
	uint64_t ns;
} profile;

static void add_row(const tern_node_cost *cost, void *arg)
{
	profile *p = arg;

	p->ns += cost->ns;
	if (p->count < ROWS_MAX)
		p->rows[p->count++] = *cost;
}

static int by_cost(const void *a, const void *b)
{
	const tern_node_cost *x = a, *y = b;

	return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

void train_profile(tern_session *session, const char *name)
{
	profile *p = calloc(1, sizeof(*p));
	tern_session_stats s;
	double steps;

	if (!p)
		return;
	tern_session_stats_get(session, &s);
	tern_session_profile(session, add_row, p);
	qsort(p->rows, p->count, sizeof(*p->rows), by_cost);
	steps = s.steps ? (double)s.steps : 1;
	fprintf(stderr, "%s: per step: %.3f ms computing, %.3f ms in transfers, %.3f ms waiting\n", name,
		(double)s.compute_ns * 1e-6 / steps, (double)s.comm_ns * 1e-6 / steps,
		(double)s.wait_ns * 1e-6 / steps);
	fprintf(stderr, "%s: %-28s %-20s %8s %10s %6s\n", name, "node", "op", "runs", "us each", "%");
	for (unsigned i = 0; i < p->count && i < SHOWN; i++) {
		const tern_node_cost *r = &p->rows[i];

		fprintf(stderr, "%s: %-28.28s %-20.20s %8llu %10.1f %6.1f\n", name, r->name, r->op,
			(unsigned long long)r->runs, (double)r->ns * 1e-3 / (double)r->runs,
			p->ns ? 100.0 * (double)r->ns / (double)p->ns : 0.0);
	}
	if (p->count > SHOWN)
		fprintf(stderr, "%s: and %u more\n", name, p->count - SHOWN);
	free(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of an executor in memory, and as a Chrome trace. See exec_trace.h.
 *
 * Threads: the executor's. Tests: tests/e2e/train_trace_test.py.
 */
#include "graph/exec_trace.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"

#define EVENTS_MAX (1u << 24)

tern_status tn_exec_trace_init(tn_exec_trace *t, uint64_t events, uint32_t nodes, uint32_t devices)
{
	uint64_t capacity = 1;

	if (events > EVENTS_MAX)
		return tn_fail(TERN_E_LIMIT, "a trace keeps up to %u events, not %" PRIu64, EVENTS_MAX,
			       events);
	while (capacity < events)
		capacity *= 2;
	*t = (tn_exec_trace){.mask = capacity - 1};
	t->nodes = calloc(nodes + 1, sizeof(*t->nodes));
	t->waited_ns = calloc(devices + 1, sizeof(*t->waited_ns));
	if (events)
		t->ring = calloc(capacity, sizeof(*t->ring));
	if (!t->nodes || !t->waited_ns || (events && !t->ring)) {
		tn_exec_trace_fini(t);
		return tn_fail(TERN_E_NOMEM, "no memory for a trace of %" PRIu64 " events", events);
	}
	return TERN_OK;
}

void tn_exec_trace_fini(tn_exec_trace *t)
{
	free(t->ring);
	free(t->nodes);
	free(t->waited_ns);
	*t = (tn_exec_trace){0};
}

static void write_name(FILE *file, const char *name)
{
	for (; *name; name++)
		if (*name == '"' || *name == '\\' || (unsigned char)*name < ' ')
			fprintf(file, "\\u%04x", (unsigned char)*name);
		else
			putc(*name, file);
}

static void write_meta(FILE *file, const char *what, uint32_t pid, unsigned tid, const char *name)
{
	fprintf(file, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"", what, pid,
		tid);
	write_name(file, name);
	fprintf(file, "\"}}");
}

static void write_event(FILE *file, const tern_graph *g, uint32_t pid, const tn_event *e, uint64_t number)
{
	static const char *const cats[TN_EVENT_KINDS] = {"compute", "transfer", "under way", "wait"};
	const tn_node *n = &g->nodes[e->node];
	unsigned tid = e->kind == TN_EVENT_FLIGHT ? 1 : e->member ? e->member + 1 : 0;

	fprintf(file, ",\n{\"name\":\"");
	write_name(file, n->name);
	fprintf(file, "\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,", cats[e->kind], pid, tid,
		(double)e->start_ns * 1e-3);
	if (e->kind == TN_EVENT_FLIGHT) { /* they overlap: a pair of asynchronous events */
		fprintf(file, "\"ph\":\"b\",\"id\":\"%u.%" PRIu64 "\"},\n{\"name\":\"", pid, number);
		write_name(file, n->name);
		fprintf(file,
			"\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"ph\":\"e\",\"id\":\"%u."
			"%" PRIu64 "\"}",
			cats[e->kind], pid, tid, (double)e->end_ns * 1e-3, pid, number);
		return;
	}
	fprintf(file, "\"ph\":\"X\",\"dur\":%.3f,\"args\":{\"op\":\"%s\",\"step\":%" PRIu64 "}}",
		(double)(e->end_ns - e->start_ns) * 1e-3, tn_op_table[n->op].name, e->step);
}

void tn_exec_trace_write(const tn_exec_trace *t, const tern_graph *g, uint32_t pid, FILE *file)
{
	uint64_t first = t->count > t->mask + 1 ? t->count - t->mask - 1 : 0;

	write_meta(file, "process_name", pid, 0, g->name);
	fprintf(file, ",\n");
	write_meta(file, "thread_name", pid, 0, "executor");
	for (uint64_t i = first; i < t->count && t->ring; i++)
		write_event(file, g, pid, &t->ring[i & t->mask], i);
}

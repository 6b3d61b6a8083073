/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern graph`: finds the subcommand; opens models for all of them. Threads: main.
 */
#include "graph.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "commands.h"

static const subcommand subcommands[] = {
	{"show", graph_show, "parameters, bytes, ops and shapes of a model; a drawing of it"},
	{"check", graph_check, "can this model be imported and computed? Everything that is in the way"},
	{"plan", graph_plan, "how a model's training is split over processes, and what travels between them"},
	{"run", graph_run, "compute a model's outputs for inputs from files"},
	{"test", graph_test, "run test cases: a model with inputs and the outputs to expect"},
};
#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

int cmd_graph(int argc, char **argv)
{
	const arg_usage usage = {.command = "tern graph",
				 .summary = "models: built in, or ONNX files",
				 .synopsis = "tern graph SUBCOMMAND NAME|FILE [options]"};

	return args_subcommand(&usage, subcommands, SUBCOMMANDS, argc, argv);
}

/* ---- lists ---- */

int graph_pairs(const char *option, const char *list, graph_pair *pairs, unsigned max, char **copy)
{
	unsigned n = 0;
	char *at;

	*copy = strdup(list ? list : "");
	if (!*copy) {
		fprintf(stderr, "tern graph: out of memory\n");
		return -1;
	}
	for (at = *copy; *at;) {
		char *end = at + strcspn(at, ","), *equals;
		bool last = *end == '\0';

		*end = '\0';
		equals = strrchr(at, '=');
		if (!equals || equals == at || n == max) {
			if (n == max)
				fprintf(stderr, "tern graph: %s has more than %u names\n", option, max);
			else
				fprintf(stderr, "tern graph: %s wants NAME=VALUE,..., not '%s'\n", option,
					at);
			return -1;
		}
		*equals = '\0';
		pairs[n++] = (graph_pair){at, equals + 1};
		at = last ? end : end + 1;
	}
	return (int)n;
}

int graph_sizes(const char *list, tern_size *sizes, char **copy)
{
	graph_pair pairs[GRAPH_SIZES_MAX];
	int n = graph_pairs("--dims", list, pairs, GRAPH_SIZES_MAX, copy);

	for (int i = 0; i < n; i++) {
		char *end;

		errno = 0;
		sizes[i] = (tern_size){pairs[i].name, strtoull(pairs[i].value, &end, 10)};
		if (errno || *end || end == pairs[i].value || *pairs[i].value == '-') {
			fprintf(stderr, "tern graph: --dims: '%s' is no size for %s\n", pairs[i].value,
				pairs[i].name);
			return -1;
		}
	}
	return n;
}

/* ---- models ---- */

static bool is_file(const char *what)
{
	size_t n = strlen(what);

	return strchr(what, '/') || (n > 5 && strcmp(what + n - 5, ".onnx") == 0);
}

static void report(void *arg, const char *line)
{
	unsigned *lines = arg;

	fprintf(stderr, "tern graph: %s\n", line);
	(*lines)++;
}

tern_graph *graph_open(const char *what, const tern_onnx_params *params)
{
	tern_onnx_params p = *params;
	tern_graph *graph = NULL;
	unsigned lines = 0;
	tern_status status;

	p.report = report;
	p.report_arg = &lines;
	if (is_file(what))
		status = tern_graph_import_onnx(what, &p, &graph);
	else
		status = tern_graph_model(what, NULL, &graph);
	if (status == TERN_OK)
		return graph;
	if (lines > 1)
		fprintf(stderr, "tern graph: %s: %u things cannot be imported\n", what, lines);
	else if (lines == 0)
		fprintf(stderr, "tern graph: %s%s\n", tern_detail(),
			is_file(what) ? "" : "; a file is named with its path or ends in .onnx");
	return NULL;
}

const char *graph_shape(const tern_graph *graph, const tern_shape *shape, char *buf, unsigned size)
{
	size_t at = 0;

	buf[at++] = '[';
	for (uint32_t i = 0; i < shape->rank && at + 32 < size; i++) {
		const char *symbol = tern_graph_symbol_name(graph, shape->dims[i]);
		int n = symbol ? snprintf(buf + at, size - at, "%s%.30s", i ? "," : "", symbol)
			       : snprintf(buf + at, size - at, "%s%" PRIu64, i ? "," : "", shape->dims[i]);

		at += (size_t)n;
	}
	snprintf(buf + at, size - at, "]");
	return buf;
}

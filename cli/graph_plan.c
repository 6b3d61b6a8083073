/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern graph plan`: how the training of a model is split over servers, workers and their devices, and what
 * travels between them. Nothing is run. Threads: main.
 */
#include "graph.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"

typedef struct options {
	uint64_t servers, workers, stages, micro, stale, split;
	bool async, sparse, nodes, as_json;
	unsigned comm;
	const char *dims;
} options;

/* --dims batch=32,length=~40: a size, or about what to expect. */
static int read_dims(const char *list, tern_plan_params *params, char **copy)
{
	graph_pair pairs[TERN_PLAN_DIMS_MAX];
	int n = graph_pairs("--dims", list, pairs, TERN_PLAN_DIMS_MAX, copy);

	for (int i = 0; i < n; i++) {
		const char *value = pairs[i].value;
		char *end;

		params->dims[i].name = pairs[i].name;
		params->dims[i].varies = *value == '~';
		value += *value == '~';
		errno = 0;
		params->dims[i].size = strtoull(value, &end, 10);
		if (errno || *end || end == value || *value == '-' || params->dims[i].size == 0) {
			fprintf(stderr, "tern graph: --dims: '%s' is no size for %s\n", pairs[i].value,
				pairs[i].name);
			return -1;
		}
	}
	return n;
}

static int print_plan(const tern_plan *plan, const options *o)
{
	char *text = o->as_json ? tern_plan_json(plan) : tern_plan_text(plan), *graphs;

	if (!text) {
		fprintf(stderr, "tern graph plan: out of memory\n");
		return 1;
	}
	graphs = strstr(text, "\ngraph ");
	if (!o->as_json && !o->nodes && graphs)
		*graphs = '\0';
	fputs(text, stdout);
	if (o->as_json)
		fputc('\n', stdout);
	tern_graph_text_free(text);
	return 0;
}

static int plan_model(const char *what, const options *o)
{
	tern_plan_params params = {.servers = (uint32_t)o->servers,
				   .workers = (uint32_t)o->workers,
				   .sync = !o->async,
				   .comm = (tern_comm)o->comm,
				   .stale = (uint32_t)o->stale,
				   .stages = (uint32_t)o->stages,
				   .micro_batches = (uint32_t)o->micro,
				   .split_bytes = o->split,
				   .sparse_bytes = o->sparse,
				   .optimizer = {.kind = TERN_OPTIMIZER_SGD, .lr = 0.1f}};
	tern_plan *plan = NULL;
	tern_graph *graph;
	char *copy = NULL;
	int status = 1;

	if (read_dims(o->dims, &params, &copy) < 0) {
		free(copy);
		return 2;
	}
	graph = graph_open(what, &(tern_onnx_params){0});
	if (graph && tern_plan_create(graph, &params, &plan) != TERN_OK)
		fprintf(stderr, "tern graph plan: %s\n", tern_detail());
	else if (graph)
		status = print_plan(plan, o);
	tern_plan_destroy(plan);
	tern_graph_destroy(graph);
	free(copy);
	return status;
}

int graph_plan(int argc, char **argv)
{
	options o = {.servers = 1, .workers = 1};
	const char *what = NULL;
	const arg_row rows[] = {
		{"servers", ARG_U64, &o.servers, "N", "parameter servers (1); 0: one process trains alone", 0,
		 4096, false, NULL},
		{"workers", ARG_U64, &o.workers, "N", "workers, each with a batch of its own (1)", 1,
		 TERN_PLAN_WORKERS_MAX, false, NULL},
		{"model-parallel", ARG_U64, &o.stages, "N", "devices that each worker's model is split over",
		 1, TERN_DEVICES_MAX, false, NULL},
		{"micro-batches", ARG_U64, &o.micro, "N", "pieces of a batch that go through them in turn", 1,
		 1024, false, NULL},
		{"async", ARG_FLAG, &o.async, NULL, "gradients are applied as they come, not averaged", 0, 0,
		 false, NULL},
		{"stale", ARG_U64, &o.stale, "N", "async: steps that a worker may be ahead of the slowest", 1,
		 1000000, false, NULL},
		{"split", ARG_BYTES, &o.split, "BYTES", "split variables of more over the servers (4MiB)", 1,
		 0, false, NULL},
		{"sparse", ARG_FLAG, &o.sparse, NULL, "keep embeddings as rows of tables at the servers", 0,
		 0, false, NULL},
		{"comm", ARG_CHOICE, &o.comm, "zerocopy|copy|rpc|grpc|none", "how tensors travel", 0, 0,
		 false, NULL},
		{"dims", ARG_STRING, &o.dims, "LIST",
		 "sizes of symbolic dims: batch=32,length=~40; ~: differs from step to step", 0, 0, false,
		 NULL},
		{"nodes", ARG_FLAG, &o.nodes, NULL, "the graph of each device as well", 0, 0, false, NULL},
		{"json", ARG_FLAG, &o.as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	const arg_usage usage = {
		"tern graph plan", "how a model's training is split, and what travels", "NAME|FILE [options]",
		"examples:\n  tern graph plan fcn5 --servers 2 --workers 4\n"
		"  tern graph plan vgg16 --model-parallel 4 --micro-batches 8 --dims batch=32\n",
		1};
	int status = args_parse(&usage, rows, argc, argv, &what);

	if (status >= 0)
		return status;
	if (!what) {
		fprintf(stderr, "tern graph plan: which model? Give a name or an ONNX file\n");
		return 2;
	}
	return plan_model(what, &o);
}

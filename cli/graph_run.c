/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern graph run`: inputs from .npy or ONNX tensor files, outputs as .npy files. Threads: main; kernels may
 * use more.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "graph_exec.h"
#include "json.h"

#define SHOWN_MAX 6u /* elements of an output on the screen */

typedef struct run_options {
	const char *model, *inputs, *dims, *weights, *output;
	uint64_t threads;
	bool json;
} run_options;

/* ---- inputs ---- */

static int read_inputs(const char *list, tern_array *arrays, char **copy)
{
	graph_pair pairs[GRAPH_ARRAYS_MAX];
	int n = graph_pairs("--inputs", list, pairs, GRAPH_ARRAYS_MAX, copy);

	for (int i = 0; i < n; i++) {
		if (tern_array_read(pairs[i].value, &arrays[i]) != TERN_OK) {
			fprintf(stderr, "tern graph run: %s\n", tern_detail());
			while (i-- > 0) {
				arrays[i].name = NULL; /* lies in the copy */
				tern_array_free(&arrays[i]);
			}
			return -1;
		}
		free((void *)(uintptr_t)arrays[i].name);
		arrays[i].name = pairs[i].name;
	}
	return n;
}

static void free_inputs(tern_array *arrays, int n)
{
	for (int i = 0; i < n; i++) {
		arrays[i].name = NULL;
		tern_array_free(&arrays[i]);
	}
}

/* ---- outputs ---- */

/* A file name of a port: slashes, and a dot at the beginning, become _. */
static void file_of(const char *folder, const char *port, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "%s/", folder), first = at;

	for (; *port && at + 5 < size; port++, at++)
		buf[at] = *port == '/' || (at == first && *port == '.') ? '_' : *port;
	snprintf(buf + at, size - at, ".npy");
}

static void print_array(const graph_exec *exec, const tern_array *a)
{
	uint64_t n = graph_array_elements(a);
	char shape[GRAPH_SHAPE_MAX];

	printf("%s %s%s", a->name, tern_dtype_name(a->dtype),
	       graph_shape(exec->graph, &a->shape, shape, sizeof(shape)));
	for (uint64_t i = 0; i < n && i < SHOWN_MAX; i++)
		printf(" %.7g", graph_array_real(a, i));
	printf("%s\n", n > SHOWN_MAX ? " ..." : "");
}

static void json_array_of(json *j, const tern_array *a, const char *file)
{
	json_object(j, NULL);
	json_string(j, "name", a->name);
	json_string(j, "dtype", tern_dtype_name(a->dtype));
	json_array(j, "shape");
	for (uint32_t i = 0; i < a->shape.rank; i++)
		json_u64(j, NULL, a->shape.dims[i]);
	json_array_end(j);
	if (file)
		json_string(j, "file", file);
	json_object_end(j);
}

static int one_output(graph_exec *exec, const run_options *o, const char *port, json *j)
{
	tern_array a;
	char file[4096];
	int status = 0;

	if (graph_exec_fetch(exec, port, &a) != TERN_OK) {
		fprintf(stderr, "tern graph run: %s\n", tern_detail());
		return 1;
	}
	if (o->output) {
		file_of(o->output, port, file, sizeof(file));
		if (tern_array_write(file, &a) != TERN_OK) {
			fprintf(stderr, "tern graph run: %s\n", tern_detail());
			status = 1;
		}
	}
	if (o->json)
		json_array_of(j, &a, o->output ? file : NULL);
	else
		print_array(exec, &a);
	free((void *)(uintptr_t)a.data);
	return status;
}

static int outputs(graph_exec *exec, const run_options *o)
{
	const char *name;
	tern_value value;
	int is_input, status = 0;
	json j;

	if (o->output && mkdir(o->output, 0777) != 0 && errno != EEXIST) {
		fprintf(stderr, "tern graph run: %s: %s\n", o->output, strerror(errno));
		return 1;
	}
	json_init(&j, stdout);
	if (o->json) {
		json_object(&j, NULL);
		json_array(&j, "outputs");
	}
	for (uint32_t i = 0; tern_graph_port(exec->graph, i, &name, &is_input, &value) == TERN_OK; i++) {
		if (!is_input && status == 0)
			status = one_output(exec, o, name, &j);
	}
	if (o->json) {
		json_array_end(&j);
		json_object_end(&j);
		printf("\n");
	}
	return status;
}

/* ---- the subcommand ---- */

static int run(const run_options *o)
{
	tern_array arrays[GRAPH_ARRAYS_MAX];
	tern_size sizes[GRAPH_SIZES_MAX];
	char *input_names = NULL, *dim_names = NULL;
	int n_sizes = graph_sizes(o->dims, sizes, &dim_names), status = 2;
	int n = n_sizes < 0 ? -1 : read_inputs(o->inputs, arrays, &input_names);
	graph_exec exec;

	if (n >= 0) {
		tern_status st = graph_exec_run(&exec, o->model, arrays, (uint32_t)n, sizes,
						(uint32_t)n_sizes, o->weights, (uint32_t)o->threads, false);

		status = st == TERN_OK ? outputs(&exec, o) : 1;
		if (st != TERN_OK && *tern_detail() && exec.graph)
			fprintf(stderr, "tern graph run: %s\n", tern_detail());
		graph_exec_free(&exec);
		free_inputs(arrays, n);
	}
	free(input_names);
	free(dim_names);
	return status;
}

int graph_run(int argc, char **argv)
{
	run_options o = {.threads = 1};
	const arg_row rows[] = {
		{"inputs", ARG_STRING, &o.inputs, "LIST",
		 "files of inputs: image=image.npy,... (.npy, or ONNX tensors)", 0, 0, false, NULL},
		{"output", ARG_STRING, &o.output, "DIR", "write each output to DIR/NAME.npy", 0, 0, false,
		 NULL},
		{"dims", ARG_STRING, &o.dims, "LIST",
		 "sizes of symbolic dims that no input's shape says: length=7", 0, 0, false, NULL},
		{"weights", ARG_STRING, &o.weights, "DIR",
		 "variables from a checkpoint: a step's folder of tern train --save, or a file", 0, 0, false,
		 NULL},
		{"threads", ARG_U64, &o.threads, "N", "threads of kernels (1)", 1, 1024, false, NULL},
		{"json", ARG_FLAG, &o.json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	const arg_usage usage = {
		"tern graph run", "compute a model's outputs in this process", "NAME|FILE [options]",
		"example:\n  tern graph run model.onnx --inputs image=cat.npy --output out\n", 1};
	int status = args_parse(&usage, rows, argc, argv, &o.model);

	if (status >= 0)
		return status;
	if (!o.model) {
		fprintf(stderr, "tern graph run: which model? Give a name or an ONNX file\n");
		return 2;
	}
	return run(&o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern graph show` and `tern graph check`: what a model consists of, as text, JSON, DOT or SVG; whether it can
 * be computed. Threads: main; drawing runs Graphviz's dot as a process.
 */
#include "graph.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "json.h"

/* ---- how often which op ---- */

typedef struct op_count {
	const char *op;
	uint64_t n;
} op_count;

static int by_count(const void *a, const void *b)
{
	const op_count *x = a, *y = b;

	return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->op, y->op);
}

/* The most frequent first. Returns how many; counts has room for max. */
static unsigned count_ops(const tern_graph *graph, op_count *counts, unsigned max)
{
	tern_node_info node;
	unsigned n = 0;

	for (uint32_t i = 0; tern_graph_node_get(graph, i, &node) == TERN_OK; i++) {
		unsigned k = 0;

		while (k < n && strcmp(counts[k].op, node.op) != 0)
			k++;
		if (k == n && n < max)
			counts[n++] = (op_count){node.op, 0};
		if (k < n)
			counts[k].n++;
	}
	qsort(counts, n, sizeof(counts[0]), by_count);
	return n;
}

#define OPS_MAX 512u

/* ---- text ---- */

static void print_ports(const tern_graph *graph, int inputs)
{
	char shape[GRAPH_SHAPE_MAX];
	tern_value_info info;
	const char *name;
	tern_value value;
	int is_input;

	for (uint32_t i = 0; tern_graph_port(graph, i, &name, &is_input, &value) == TERN_OK; i++) {
		if (is_input != inputs || tern_graph_value(graph, value, &info) != TERN_OK)
			continue;
		printf("  %s %s %s%s\n", inputs ? "input " : "output", name, tern_dtype_name(info.dtype),
		       graph_shape(graph, &info.shape, shape, sizeof(shape)));
	}
}

static void print_summary(const tern_graph *graph)
{
	op_count counts[OPS_MAX];
	unsigned n = count_ops(graph, counts, OPS_MAX);
	tern_graph_info info;

	tern_graph_info_get(graph, &info);
	printf("%s: %" PRIu64 " parameters in %" PRIu32 " variables, %" PRIu64 " bytes (%.2f MiB), %" PRIu32
	       " nodes\n",
	       info.name, info.parameters, info.variables, info.parameter_bytes,
	       (double)info.parameter_bytes / 1048576.0, info.nodes);
	print_ports(graph, 1);
	print_ports(graph, 0);
	printf("  ops   ");
	for (unsigned i = 0; i < n; i++)
		printf(" %s x %" PRIu64 "%s", counts[i].op, counts[i].n, i + 1 < n ? "," : "\n");
}

/* ---- JSON ---- */

static void json_shape(json *j, const tern_graph *graph, const tern_shape *shape)
{
	json_array(j, "shape");
	for (uint32_t i = 0; i < shape->rank; i++) {
		const char *symbol = tern_graph_symbol_name(graph, shape->dims[i]);

		if (symbol)
			json_string(j, NULL, symbol);
		else
			json_u64(j, NULL, shape->dims[i]);
	}
	json_array_end(j);
}

static void json_value(json *j, const tern_graph *graph, const char *name, tern_value value)
{
	tern_value_info info;

	if (tern_graph_value(graph, value, &info) != TERN_OK)
		return;
	json_object(j, NULL);
	json_string(j, "name", name ? name : info.name);
	json_string(j, "dtype", tern_dtype_name(info.dtype));
	json_shape(j, graph, &info.shape);
	json_object_end(j);
}

static void json_ports(json *j, const tern_graph *graph, int inputs)
{
	const char *name;
	tern_value value;
	int is_input;

	json_array(j, inputs ? "inputs" : "outputs");
	for (uint32_t i = 0; tern_graph_port(graph, i, &name, &is_input, &value) == TERN_OK; i++) {
		if (is_input == inputs)
			json_value(j, graph, name, value);
	}
	json_array_end(j);
}

static void json_nodes(json *j, const tern_graph *graph)
{
	tern_value_info value;
	tern_node_info node;

	json_array(j, "node_list");
	for (uint32_t i = 0; tern_graph_node_get(graph, i, &node) == TERN_OK; i++) {
		json_object(j, NULL);
		json_string(j, "op", node.op);
		json_string(j, "name", node.name);
		json_array(j, "inputs");
		for (uint32_t k = 0; k < node.n_inputs; k++) {
			if (tern_graph_value(graph, node.inputs[k], &value) == TERN_OK)
				json_string(j, NULL, value.name);
		}
		json_array_end(j);
		json_array(j, "outputs");
		for (uint32_t k = 0; k < node.n_outputs; k++)
			json_value(j, graph, NULL, node.outputs[k]);
		json_array_end(j);
		json_object_end(j);
	}
	json_array_end(j);
}

static void print_json(const tern_graph *graph, bool nodes)
{
	op_count counts[OPS_MAX];
	unsigned n = count_ops(graph, counts, OPS_MAX);
	tern_graph_info info;
	json j;

	tern_graph_info_get(graph, &info);
	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "name", info.name);
	json_u64(&j, "parameters", info.parameters);
	json_u64(&j, "bytes", info.parameter_bytes);
	json_u64(&j, "variables", info.variables);
	json_u64(&j, "nodes", info.nodes);
	json_ports(&j, graph, 1);
	json_ports(&j, graph, 0);
	json_object(&j, "ops");
	for (unsigned i = 0; i < n; i++)
		json_u64(&j, counts[i].op, counts[i].n);
	json_object_end(&j);
	if (nodes)
		json_nodes(&j, graph);
	json_object_end(&j);
	printf("\n");
}

/* ---- drawings ---- */

static int write_text(const char *path, const char *text)
{
	FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");

	if (!file || fputs(text, file) == EOF || (file != stdout && fclose(file) != 0)) {
		fprintf(stderr, "tern graph show: %s: %s\n", path, strerror(errno));
		return 1;
	}
	return 0;
}

/* The child becomes dot, reading from in. */
_Noreturn static void become_dot(int in, const char *path)
{
	char out[4096];

	snprintf(out, sizeof(out), "-o%s", path);
	dup2(in, STDIN_FILENO);
	execlp("dot", "dot", "-Tsvg", out, (char *)NULL);
	_exit(127);
}

static int wait_for_dot(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		fprintf(stderr, "tern graph show: dot is not installed (package graphviz); --dot FILE writes "
				"what it draws from\n");
	else
		fprintf(stderr, "tern graph show: dot failed\n");
	return 1;
}

static int draw(const char *path, const char *text)
{
	size_t at = 0, n = strlen(text);
	int ends[2];
	pid_t pid;

	if (pipe(ends) != 0 || (pid = fork()) < 0) {
		fprintf(stderr, "tern graph show: cannot start dot: %s\n", strerror(errno));
		return 1;
	}
	if (pid == 0) {
		close(ends[1]);
		become_dot(ends[0], path);
	}
	close(ends[0]);
	signal(SIGPIPE, SIG_IGN); /* dot may be gone */
	while (at < n) {
		ssize_t wrote = write(ends[1], text + at, n - at);

		if (wrote <= 0 && errno != EINTR)
			break;
		at += wrote > 0 ? (size_t)wrote : 0;
	}
	close(ends[1]);
	return wait_for_dot(pid);
}

static int draw_all(const tern_graph *graph, const char *dot, const char *svg)
{
	char *text = tern_graph_dot(graph);
	int status = 0;

	if (!text) {
		fprintf(stderr, "tern graph show: out of memory\n");
		return 1;
	}
	if (dot)
		status = write_text(dot, text);
	if (svg && status == 0)
		status = draw(svg, text);
	tern_graph_text_free(text);
	return status;
}

static int print_nodes(const tern_graph *graph)
{
	char *text = tern_graph_text(graph);

	if (!text) {
		fprintf(stderr, "tern graph show: out of memory\n");
		return 1;
	}
	fputs(text, stdout);
	tern_graph_text_free(text);
	return 0;
}

/* ---- the subcommands ---- */

/* Opens the model with the sizes of --dims. */
static tern_graph *open_with(const char *what, const char *dims)
{
	tern_size sizes[GRAPH_SIZES_MAX];
	tern_onnx_params params = {.sizes = sizes};
	char *copy = NULL;
	int n = graph_sizes(dims, sizes, &copy);
	tern_graph *graph = NULL;

	params.n_sizes = n > 0 ? (uint32_t)n : 0;
	if (n >= 0)
		graph = graph_open(what, &params);
	free(copy);
	return graph;
}

int graph_show(int argc, char **argv)
{
	const char *what = NULL, *dims = NULL, *dot = NULL, *svg = NULL;
	bool as_json = false, nodes = false;
	const arg_row rows[] = {
		{"dims", ARG_STRING, &dims, "LIST", "sizes of symbolic dims: batch=2,length=7", 0, 0, false,
		 NULL},
		{"nodes", ARG_FLAG, &nodes, NULL, "every node with its shapes and attributes", 0, 0, false,
		 NULL},
		{"dot", ARG_STRING, &dot, "FILE",
		 "write the graph in the DOT language; - for standard output", 0, 0, false, NULL},
		{"svg", ARG_STRING, &svg, "FILE", "draw the graph (by Graphviz's dot)", 0, 0, false, NULL},
		{"json", ARG_FLAG, &as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	const arg_usage usage = {
		"tern graph show", "what a model consists of", "NAME|FILE [options]",
		"examples:\n  tern graph show fcn5\n  tern graph show model.onnx --svg model.svg\n", 1};
	int status = args_parse(&usage, rows, argc, argv, &what);
	tern_graph *graph;

	if (status >= 0)
		return status;
	if (!what) {
		fprintf(stderr, "tern graph show: which model? Give a name or an ONNX file\n");
		return 2;
	}
	graph = open_with(what, dims);
	if (!graph)
		return 1;
	status = 0;
	if (as_json)
		print_json(graph, nodes);
	else if (!dot || strcmp(dot, "-") != 0)
		print_summary(graph);
	if (nodes && !as_json)
		status = print_nodes(graph);
	if (status == 0 && (dot || svg))
		status = draw_all(graph, dot, svg);
	tern_graph_destroy(graph);
	return status;
}

/* Symbolic dims that have no size count as 1: enough to see whether every op has a kernel. */
static tern_status try_program(const tern_graph *graph)
{
	tern_size sizes[GRAPH_SIZES_MAX];
	tern_program_params params = {.sizes = sizes};
	tern_program *program = NULL;
	tern_status status;

	for (uint32_t i = 0; i < GRAPH_SIZES_MAX; i++) {
		const char *name = tern_graph_symbol_name(graph, UINT64_MAX - i);

		if (name)
			sizes[params.n_sizes++] = (tern_size){name, 1};
	}
	status = tern_program_create(graph, &params, &program);
	tern_program_destroy(program);
	return status;
}

int graph_check(int argc, char **argv)
{
	const char *what = NULL, *dims = NULL;
	bool as_json = false;
	const arg_row rows[] = {
		{"dims", ARG_STRING, &dims, "LIST", "sizes of symbolic dims: batch=2,length=7", 0, 0, false,
		 NULL},
		{"json", ARG_FLAG, &as_json, NULL, "one JSON object", 0, 0, false, NULL},
		{0},
	};
	const arg_usage usage = {"tern graph check",
				 "can this model be imported and computed? Status 0 if so",
				 "NAME|FILE [options]", NULL, 1};
	int status = args_parse(&usage, rows, argc, argv, &what);
	tern_graph *graph;
	bool good;
	json j;

	if (status >= 0)
		return status;
	if (!what) {
		fprintf(stderr, "tern graph check: which model? Give a name or an ONNX file\n");
		return 2;
	}
	graph = open_with(what, dims);
	good = graph && tern_graph_check(graph) == TERN_OK && try_program(graph) == TERN_OK;
	if (graph && !good)
		fprintf(stderr, "tern graph check: %s\n", tern_detail());
	if (as_json) {
		json_init(&j, stdout);
		json_object(&j, NULL);
		json_string(&j, "model", what);
		json_bool(&j, "good", good);
		json_object_end(&j);
		printf("\n");
	} else if (good) {
		printf("%s can be computed\n", what);
	}
	tern_graph_destroy(graph);
	return good ? 0 : 1;
}

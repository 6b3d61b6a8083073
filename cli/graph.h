/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of `tern graph`: its subcommands, and what they share. Threads: main.
 */
#ifndef CLI_GRAPH_H
#define CLI_GRAPH_H

#include <stdbool.h>

#include <tern/graph.h>

int graph_show(int argc, char **argv);
int graph_check(int argc, char **argv);
int graph_plan(int argc, char **argv);
int graph_run(int argc, char **argv);
int graph_test(int argc, char **argv);

#define GRAPH_SIZES_MAX  16u
#define GRAPH_ARRAYS_MAX 256u

/* "name=value" texts of a list with commas. */
typedef struct graph_pair {
	char *name, *value;
} graph_pair;

/* Cuts a copy of the list in place. Returns how many pairs, or -1 after a message. *copy is to be freed. */
int graph_pairs(const char *option, const char *list, graph_pair *pairs, unsigned max, char **copy);

/* --dims batch=2,length=7. names point into *copy. Returns how many, or -1 after a message. */
int graph_sizes(const char *list, tern_size *sizes, char **copy);

/*
 * A built-in model by its name, or an ONNX file by its path (what has a slash or ends in .onnx). What cannot be
 * imported is printed to stderr, a line each. NULL after a message.
 */
tern_graph *graph_open(const char *what, const tern_onnx_params *params);

/* "[batch,3,224,224]" */
const char *graph_shape(const tern_graph *graph, const tern_shape *shape, char *buf, unsigned size);

#define GRAPH_SHAPE_MAX 256u

#endif

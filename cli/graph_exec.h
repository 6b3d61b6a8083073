/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model and arrays for its inputs made into a program: what `tern graph run` and `test` share. Threads: main.
 */
#ifndef CLI_GRAPH_EXEC_H
#define CLI_GRAPH_EXEC_H

#include "graph.h"

typedef struct graph_exec {
	tern_graph *graph;
	tern_program *program;
} graph_exec;

/*
 * Open the model, give it sizes (those of the list, and what the arrays' shapes say), feed the arrays, whose
 * names are those of inputs, and run it. weights: a checkpoint for its variables, or NULL. Inputs without an array are TERN_E_NOT_FOUND.
 */
tern_status graph_exec_run(graph_exec *exec, const char *path, const tern_array *inputs, uint32_t n_inputs,
			   const tern_size *sizes, uint32_t n_sizes, const char *weights, uint32_t threads,
			   bool quiet);
/* An output's tensor; to be freed with free(array->data). */
tern_status graph_exec_fetch(graph_exec *exec, const char *port, tern_array *array);
void graph_exec_free(graph_exec *exec);
/* Dense bytes of an array. */
uint64_t graph_array_bytes(const tern_array *array);
uint64_t graph_array_elements(const tern_array *array);
/* Element i as a number. */
double graph_array_real(const tern_array *array, uint64_t i);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One op of a neural network on placeholders: its kernels of both backends, with one thread and four, against the
 * double-precision twin; the same bits in every run and at other addresses; what its shape rule refuses.
 */
#ifndef TERN_TESTS_GRAPH_NN_CASE_H
#define TERN_TESTS_GRAPH_NN_CASE_H
#include <stdint.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/kern.h"
#include "graph/kern_nn.h"

#define NN_INPUTS 12
#define S(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})

/* An op on placeholders. */
typedef struct op_case {
	tn_op op;
	uint32_t n_in, n_attrs;
	tern_shape in[NN_INPUTS];
	tn_attr attrs[12];
	uint32_t positive; /* number of an input that must be above 0, plus 1 */
} op_case;

/* What slides over nd dimensions of an image: sizes of the data and of the window. */
typedef struct nn_window {
	uint32_t nd;
	uint64_t n, c, m, g;
	uint64_t in[3], k[3];
	int64_t stride[3], dil[3], pads[6];
} nn_window;

/* An op with its data, and a place for what it gives. */
typedef struct nn_made {
	tern_graph *graph;
	const tn_node *node;
	uint32_t in[NN_INPUTS];
	void *data[NN_INPUTS], *out[TN_OUTS_MAX];
	tn_operand ops_in[NN_INPUTS], ops_out[TN_OUTS_MAX];
} nn_made;

void nn_attr_int(op_case *c, tn_attr_key key, int64_t v);
void nn_attr_ints(op_case *c, tn_attr_key key, uint32_t n, const int64_t *v);
void nn_attr_shape(op_case *c, const tern_shape *s);
void nn_window_attrs(op_case *c, const nn_window *v);
tern_status nn_build(const op_case *c, nn_made *m);
void nn_fill(const op_case *c, nn_made *m, uint64_t seed);
void nn_run(nn_made *m, tn_backend backend, uint32_t threads);
void nn_close(const op_case *c, nn_made *m);
/* All of the above for `c`. */
void nn_check(const op_case *c);
/* Building `c` fails with E_SHAPE, and the detail has `why`. */
void nn_refused(const op_case *c, const char *why);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph's nouns.
 *
 *   tensor   what an edge carries: dtype and shape, made by one output of one node, read by any number
 *   node     an op, its input tensors, output tensors, attributes, and the device that it is placed on
 *   variable a Variable node's tensor plus its initialiser; an Apply op writes it in place
 *   port     a name under which a caller feeds or fetches a tensor
 *   root     of a tensor: the tensor whose memory it is, through views and in-place ops
 *
 * Invariants: every input of a node was made by a node with a smaller number, so numbers are a topological
 * order of the data edges; control edges may point anywhere but close no cycle. Names are unique per graph.
 * Numbers (not pointers) refer to tensors and nodes, since the arrays grow.
 *
 * Thread story: none; the caller serialises changes. Tests: tests/unit/graph/ir_test.c.
 */
#ifndef TN_GRAPH_IR_H
#define TN_GRAPH_IR_H

#include <stdbool.h>

#include <tern/graph.h>

#include "base/json.h"
#include "base/limits.h"
#include "graph/ops.h"

#define TN_NONE        UINT32_MAX
#define TN_SYMBOLS_MAX 16u
#define TN_OUTS_MAX    6u
#define TN_DEVICE_NONE (-1)

typedef struct tn_attr {
	tn_attr_key key;
	union {
		int64_t i;
		double f;
		struct {
			uint32_t n;
			int64_t v[TERN_ATTR_INTS_MAX];
		} ints;
		struct {
			uint32_t n;
			double v[TERN_ATTR_INTS_MAX];
		} floats;
	} u;
} tn_attr;

typedef struct tn_tensor {
	char *name;
	tern_dtype dtype;
	tern_shape shape;
	uint32_t node;   /* producer */
	uint32_t output; /* which of its outputs */
} tn_tensor;

typedef struct tn_node {
	tn_op op;
	char *name;
	int32_t device;
	uint32_t n_in, n_ctrl, n_attrs, n_out;
	uint32_t *in;   /* tensors */
	uint32_t *ctrl; /* nodes that must be done before */
	tn_attr *attrs;
	uint32_t out[TN_OUTS_MAX];
	void *data;     /* Constant, Variable that starts with data: values.c */
	tern_init init; /* Variable; its data is that of the node */
} tn_node;

typedef struct tn_port {
	char *name;
	uint32_t tensor;
	bool is_input;
} tn_port;

struct tern_graph {
	char *name;
	int32_t scope; /* device of nodes that callers add */
	tn_node *nodes;
	uint32_t n_nodes, cap_nodes;
	tn_tensor *tensors;
	uint32_t n_tensors, cap_tensors;
	tn_port *ports;
	uint32_t n_ports, cap_ports;
	char *symbols[TN_SYMBOLS_MAX];
	uint32_t n_symbols;
	uint32_t *names; /* open addressing: node number + 1, 0 = free; cap is a power of two */
	uint32_t cap_names;
};

/* ---- shapes ---- */

/* A dim is symbolic if it is one of the top TN_SYMBOLS_MAX values. */
static inline bool tn_dim_symbolic(uint64_t dim)
{
	return dim > UINT64_MAX - TN_SYMBOLS_MAX;
}

static inline uint32_t tn_dim_symbol(uint64_t dim)
{
	return (uint32_t)(UINT64_MAX - dim);
}

bool tn_shape_equal(const tern_shape *a, const tern_shape *b);
bool tn_shape_symbolic(const tern_shape *shape);
/* Elements; the shape must not be symbolic. TERN_E_TOO_LARGE if they do not fit into 2^48. */
tern_status tn_shape_elements(const tern_shape *shape, uint64_t *elements);
/* Bytes of a dense tensor. Same errors. */
tern_status tn_shape_bytes(const tern_shape *shape, tern_dtype dtype, uint64_t *bytes);
/* "[batch,784]" into buf; returns buf. graph gives the names of symbols and may be NULL. */
char *tn_shape_text(const tern_graph *graph, const tern_shape *shape, char *buf, size_t size);
#define TN_SHAPE_TEXT_MAX 256u

/* ---- building; all of these fail without changing the graph ---- */

typedef struct tn_node_spec {
	tn_op op;
	const char *name;
	const uint32_t *in;
	uint32_t n_in;
	const tn_attr *attrs;
	uint32_t n_attrs;
	int32_t device;
	/* sources (Placeholder, Variable, Constant, Recv) say what they yield; others are inferred */
	tern_dtype dtype;
	const tern_shape *shape;
	const tern_init *init;
	const void *data; /* copied */
	void *values;     /* instead of data: values of another node or from tn_values_new, shared */
} tn_node_spec;

/* Append a node. *node may be NULL. */
tern_status tn_graph_add(tern_graph *graph, const tn_node_spec *spec, uint32_t *node);
/* Shorthand for ops with one output: gives the output tensor. */
tern_status tn_graph_add1(tern_graph *graph, tn_op op, const char *name, const uint32_t *in, uint32_t n_in,
			  const tn_attr *attrs, uint32_t n_attrs, int32_t device, uint32_t *tensor);
tern_status tn_graph_add_control(tern_graph *graph, uint32_t earlier, uint32_t later);
tern_status tn_graph_add_port(tern_graph *graph, const char *name, uint32_t tensor, bool is_input);
/* Copies symbols so that shapes of `from` mean the same in `to`, which must be without symbols. */
tern_status tn_graph_copy_symbols(tern_graph *to, const tern_graph *from);
tern_status tn_graph_clone(const tern_graph *graph, tern_graph **copy);

/* TN_NONE if there is none. */
uint32_t tn_graph_find(const tern_graph *graph, const char *node_name);
uint32_t tn_graph_port(const tern_graph *graph, const char *name, bool is_input);
uint32_t tn_graph_symbol_find(const tern_graph *graph, const char *name);

/*
 * values.c: the bytes of a Constant or of a Variable that starts with data, 64-byte aligned. They are counted,
 * so that the graphs of a plan share the weights of a model, and are not changed once a node has them.
 */
void *tn_values_new(const void *from, uint64_t bytes); /* from NULL: zeros; NULL if memory is out */
void *tn_values_ref(void *values);                     /* NULL gives NULL */
void tn_values_unref(void *values);                    /* NULL is allowed */

/* ---- attributes ---- */

const tn_attr *tn_node_attr(const tn_node *node, tn_attr_key key);
int64_t tn_node_int(const tn_node *node, tn_attr_key key, int64_t dflt);
double tn_node_float(const tn_node *node, tn_attr_key key, double dflt);
static inline tn_attr tn_attr_int(tn_attr_key key, int64_t i)
{
	return (tn_attr){.key = key, .u.i = i};
}
static inline tn_attr tn_attr_float(tn_attr_key key, double f)
{
	return (tn_attr){.key = key, .u.f = f};
}

/*
 * How many inputs of an Apply op are variables: the first is the one that is trained, the others are the
 * optimiser's state (slots). 0 for other ops.
 */
uint32_t tn_apply_slots(const tn_node *node);

/* Whether the kernel of the node writes input number i as well (variables of Apply ops). */
static inline bool tn_node_writes_input(const tn_node *node, uint32_t i)
{
	return i < tn_apply_slots(node);
}

/* The first row of part number `part` of `parts`: sizes differ by one row at most. */
static inline uint64_t tn_part_begin(uint64_t rows, uint64_t part, uint64_t parts)
{
	return (uint64_t)((unsigned __int128)rows * part / parts);
}
/* The dim that parts are ranges of: the first that is not 1, so that a part lies in one piece. */
static inline uint32_t tn_part_axis(const tern_shape *whole)
{
	uint32_t i = 0;

	while (i + 1 < whole->rank && whole->dims[i] == 1)
		i++;
	return i;
}
/* Where a Part begins in its input, whose shape is bound, in bytes. */
uint64_t tn_part_offset(const tn_node *part, const tern_shape *in, tern_dtype dtype);
/*
 * The size of a symbol where `name` has the size `size`: that, or size / n for the symbol "name/n" that
 * micro-batches have. false if it is another symbol, or n does not divide the size.
 */
bool tn_symbol_size(const char *symbol, const char *name, uint64_t size, uint64_t *bound);

/* The tensor whose memory `tensor` is. */
uint32_t tn_graph_root(const tern_graph *graph, uint32_t tensor);

/* infer*.c: dtype and shape of each output of a node that is about to be added. */
typedef struct tn_infer {
	const tern_graph *graph;
	const tn_node *node; /* op, name, in, attrs; out is not set */
	tern_dtype dtype[TN_OUTS_MAX];
	tern_shape shape[TN_OUTS_MAX];
} tn_infer;
tern_status tn_infer_node(tn_infer *x);
/* The axes of a reduction as a bit mask (none given = all). TERN_E_INVALID for an axis out of range. */
tern_status tn_reduce_mask(const tn_node *node, uint32_t rank, uint32_t *mask);

/* text.c: one line for a node, as in tern_graph_text. */
void tn_graph_node_text(tn_str *text, const tern_graph *graph, uint32_t node);

/* init.c: fill a variable, element 0 first. The bytes are the same on every machine. */
void tn_init_fill(const tern_init *init, const char *name, const tern_shape *shape, float *data);
/* The same for a Variable node, which may be a part of a variable: its rows of the whole. */
void tn_variable_fill(const tn_node *node, const tern_shape *shape, float *data);
/* The same for rows first .. first + n - 1 of a variable that is no part. */
void tn_variable_rows(const tn_node *node, const tern_shape *shape, uint64_t first, uint64_t n, float *data);
/* The name of the variable that a Variable node is, or is a part of ("fc1/w" of "fc1/w/part1"). */
void tn_variable_name(const tn_node *node, char *name, size_t size);

#endif

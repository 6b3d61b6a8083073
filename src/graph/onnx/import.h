/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From ONNX's nodes to tern's. The importer walks the file's nodes in order and keeps, for each name of the
 * file, what it stands for:
 *
 *   TENSOR   a tensor of the graph
 *   CONST    bytes that are known now; a Constant node once an op that runs reads them
 *   WEIGHT   a float initialiser; a Variable node once an op that runs reads it
 *   INPUT    an input whose value the caller offered; a placeholder unless an op asks for the value
 *   LOST     made by a node that could not be imported: what depends on it is skipped in silence
 *
 * A node whose inputs are all CONST is folded: the same handler builds it into a scratch graph, the serial
 * evaluator runs that, and the outputs are CONST again. So shape arithmetic disappears. A dim that is still
 * symbolic is, in an i64 CONST, the number TN_OX_SYMBOL + its symbol; only ops that move elements are folded
 * with such numbers among them.
 *
 * Every fault is noted with its node, and import goes on: all faults are reported at once.
 *
 * Thread story: one import belongs to one thread. Tests: tests/unit/graph/onnx_test.c, tests/onnx.
 */
#ifndef TN_GRAPH_ONNX_IMPORT_H
#define TN_GRAPH_ONNX_IMPORT_H

#include <stdarg.h>

#include "graph/eval.h"
#include "graph/onnx/model.h"

#define TN_OX_OPSET_MIN 9
#define TN_OX_OPSET_MAX 17
#define TN_OX_SYMBOL    INT64_MIN             /* + number of the symbol */
#define TN_OX_FOLD_MAX  (UINT64_C(256) << 20) /* bytes that folding may make in one import */
#define TN_OX_IN_MAX    4096u
#define TN_OX_BOUND_MAX 64u

typedef enum tn_ox_kind { TN_OX_LOST, TN_OX_TENSOR, TN_OX_CONST, TN_OX_WEIGHT, TN_OX_INPUT } tn_ox_kind;

typedef struct tn_ox_value {
	const char *name; /* of the file */
	tn_ox_kind kind;
	tern_dtype dtype;
	tern_shape shape;
	void *data;       /* tn_values; CONST, WEIGHT, INPUT */
	bool symbols;     /* some elements are TN_OX_SYMBOL + n */
	bool asked;       /* INPUT: an op took the value, so the input is no port for its sake */
	uint32_t tensor;  /* in the graph; TN_NONE until it is needed there */
	uint32_t scratch; /* in the scratch graph of the node that is being folded */
} tn_ox_value;

/* What a handler says of an output. */
typedef struct tn_ox_result {
	uint32_t tensor; /* of x->graph; TN_NONE: see data */
	tern_dtype dtype;
	tern_shape shape;
	void *data; /* owned */
	bool symbols, weight;
} tn_ox_result;

typedef struct tn_ox tn_ox;
typedef tern_status (*tn_ox_handler)(tn_ox *x);

/* A row of the table of ops. */
typedef struct tn_ox_op {
	const char *name;
	uint8_t since;          /* the oldest version of the definition that the handler knows */
	uint8_t in_min, in_max; /* 255: any number */
	uint8_t outs;           /* at most; 255: any number */
	tn_ox_handler handler;
	tn_op op;   /* for handlers of a family */
	bool moves; /* elements only change places: may be folded with symbols in them */
} tn_ox_op;

struct tn_ox {
	const Onnx__GraphProto *proto;
	const char *folder;
	const tern_onnx_params *params;
	int64_t opset;
	tern_graph *model, *graph; /* graph: model, or the scratch graph while folding */
	tn_ox_value *values;
	uint32_t n_values, cap_values;
	tern_size bound[TN_OX_BOUND_MAX]; /* sizes that the values' shapes gave; names are the file's */
	uint32_t n_bound;
	uint32_t *names; /* hash table: number of a value + 1 */
	uint32_t cap_names;
	/* the node in hand */
	const Onnx__NodeProto *node;
	const tn_ox_op *op;
	uint32_t *in;          /* numbers of values; TN_NONE: left out */
	tn_ox_result *results; /* per output */
	uint32_t made;         /* nodes that were added for it */
	bool folding;
	const char *bad_attr; /* an attribute of another type than the op's definition says */
	/* over all nodes */
	uint64_t folded;
	uint32_t n_notes;
	tern_status first; /* status of the first note */
	tn_str notes;      /* as far as they fit into a detail text */
};

/* table.c: the row of an op, and NULL if there is none. */
const tn_ox_op *tn_ox_find_op(const char *name);
/* Row i, for tests; NULL past the last one. */
const tn_ox_op *tn_ox_op_at(uint32_t i);

/* ---- for handlers; import.c and node.c ---- */

/* "Conv 'conv1': ..." as the detail. */
tern_status tn_ox_fail(const tn_ox *x, tern_status status, const char *fmt, ...) TN_PRINTF(3, 4);

/* Inputs. A number of an input that is left out gives NULL. */
uint32_t tn_ox_inputs(const tn_ox *x);
const tn_ox_value *tn_ox_in(const tn_ox *x, uint32_t i);
/* The input as a tensor of x->graph; TERN_E_INVALID if it is left out. */
tern_status tn_ox_tensor(tn_ox *x, uint32_t i, uint32_t *tensor);
/* The same, but what is a weight elsewhere is a constant here: running statistics, which no gradient trains. */
tern_status tn_ox_frozen_tensor(tn_ox *x, uint32_t i, uint32_t *tensor);
/* Up to max integers or numbers of an input whose value must be known. */
tern_status tn_ox_known_ints(tn_ox *x, uint32_t i, int64_t *v, uint32_t max, uint32_t *n);
/* The same for dims: symbols stay as they are. */
tern_status tn_ox_known_dims(tn_ox *x, uint32_t i, int64_t *v, uint32_t max, uint32_t *n);
tern_status tn_ox_known_reals(tn_ox *x, uint32_t i, double *v, uint32_t max, uint32_t *n);
/* A known scalar, or dflt if the input is left out. */
tern_status tn_ox_known_int(tn_ox *x, uint32_t i, int64_t dflt, int64_t *v);
tern_status tn_ox_known_real(tn_ox *x, uint32_t i, double dflt, double *v);
bool tn_ox_is_known(const tn_ox *x, uint32_t i);

/* Attributes. One of a wrong type counts as left out; the node then fails after its handler. */
bool tn_ox_has(const tn_ox *x, const char *name);
int64_t tn_ox_int(tn_ox *x, const char *name, int64_t dflt);
double tn_ox_real(tn_ox *x, const char *name, double dflt);
/* Whether a string attribute (or its default) is text. */
bool tn_ox_is(tn_ox *x, const char *name, const char *dflt, const char *text);
/* n = 0 if it is not there; TERN_E_UNSUPPORTED above max. */
tern_status tn_ox_ints(tn_ox *x, const char *name, int64_t *v, uint32_t max, uint32_t *n);
tern_status tn_ox_reals(tn_ox *x, const char *name, double *v, uint32_t max, uint32_t *n);
const Onnx__AttributeProto *tn_ox_attr(const tn_ox *x, const char *name);

/* Building. Names come by themselves. */
tern_status tn_ox_add(tn_ox *x, tn_op op, const uint32_t *in, uint32_t n_in, const tn_attr *attrs,
		      uint32_t n_attrs, uint32_t *tensor);
/* All outputs: outs has room for TN_OUTS_MAX. */
tern_status tn_ox_add_outs(tn_ox *x, tn_op op, const uint32_t *in, uint32_t n_in, const tn_attr *attrs,
			   uint32_t n_attrs, uint32_t *outs);
tern_status tn_ox_unary(tn_ox *x, tn_op op, uint32_t a, uint32_t *tensor);
tern_status tn_ox_binary(tn_ox *x, tn_op op, uint32_t a, uint32_t b, uint32_t *tensor);
tern_status tn_ox_constant(tn_ox *x, tern_dtype dtype, const tern_shape *shape, const void *data,
			   uint32_t *tensor);
/* A scalar of a float or integer type. */
tern_status tn_ox_scalar(tn_ox *x, tern_dtype dtype, double value, uint32_t *tensor);
tern_status tn_ox_reshape(tn_ox *x, uint32_t tensor, const tern_shape *shape, uint32_t *out);
tern_status tn_ox_cast(tn_ox *x, uint32_t tensor, tern_dtype dtype, uint32_t *out);
tern_status tn_ox_slice(tn_ox *x, uint32_t tensor, uint32_t axis, int64_t start, int64_t end, uint32_t *out);
const tern_shape *tn_ox_shape_of(const tn_ox *x, uint32_t tensor);
tern_dtype tn_ox_dtype_of(const tn_ox *x, uint32_t tensor);

/* Outputs. */
void tn_ox_out(tn_ox *x, uint32_t i, uint32_t tensor);
/* Known bytes; data comes from tn_values_new and is x's from now on, whatever happens. */
tern_status tn_ox_out_known(tn_ox *x, uint32_t i, tern_dtype dtype, const tern_shape *shape, void *data,
			    bool symbols);
/* Whether anybody may want output i. */
bool tn_ox_wants(const tn_ox *x, uint32_t i);

/* Axes: negative ones count from the end. TERN_E_INVALID. */
tern_status tn_ox_axis(const tn_ox *x, int64_t axis, uint32_t rank, uint32_t *out);
/* Axes in an attribute before opset `moved`, in input i from then on; n = 0: none given. */
tern_status tn_ox_axes(tn_ox *x, const char *name, int64_t moved, uint32_t i, int64_t *v, uint32_t *n);

/* Symbols among numbers. */
static inline bool tn_ox_is_symbol(int64_t v)
{
	return v < TN_OX_SYMBOL + (int64_t)TN_SYMBOLS_MAX;
}
/* A dim as a number of an i64 constant, and back. */
static inline int64_t tn_ox_from_dim(uint64_t dim)
{
	return tn_dim_symbolic(dim) ? TN_OX_SYMBOL + (int64_t)tn_dim_symbol(dim) : (int64_t)dim;
}
static inline uint64_t tn_ox_to_dim(int64_t v)
{
	return tn_ox_is_symbol(v) ? UINT64_MAX - (uint64_t)(v - TN_OX_SYMBOL) : (uint64_t)v;
}

static inline tn_attr tn_ox_attr_ints(tn_attr_key key, const int64_t *v, uint32_t n)
{
	tn_attr a = {.key = key, .u.ints = {.n = n}};

	for (uint32_t i = 0; i < n; i++)
		a.u.ints.v[i] = v[i];
	return a;
}

/* ---- between the files of the importer ---- */

/* fold.c: whether the node in hand is to be folded, and folding it. */
bool tn_ox_foldable(const tn_ox *x);
tern_status tn_ox_fold(tn_ox *x);
/* Bytes that are about to be made from few in the file; TERN_E_UNSUPPORTED above TN_OX_FOLD_MAX in all. */
tern_status tn_ox_charge(tn_ox *x, uint64_t bytes);
/* import.c: the value as a tensor of x->graph. */
tern_status tn_ox_materialise(tn_ox *x, tn_ox_value *v, uint32_t *tensor);

/* Handlers, by file; table.c names them. */
/* The formatter does not come to rest over comments in a macro. */
/* clang-format off */
#define TN_OX_HANDLERS(X)                                                                                   \
	/* ops_math.c */                                                                                    \
	X(unary)                                                                                            \
	X(alpha)                                                                                            \
	X(binary)                                                                                           \
	X(fold_binary)                                                                                      \
	X(mean)                                                                                             \
	X(clip)                                                                                             \
	X(cast)                                                                                             \
	X(cast_like) X(is_inf) X(mod) X(bit_shift) X(where) X(dropout) X(gemm) X(shrink) /* ops_reduce.c */ \
		X(reduce) X(arg) X(softmax) X(cum_sum) X(top_k)                                             \
			X(mean_variance) /* ops_shape.c: known at import */                                 \
		X(constant) X(shape) X(size) X(range) X(constant_of_shape) X(eye_like)                      \
			X(non_zero) /* ops_move.c */                                                        \
		X(identity) X(reshape) X(flatten) X(squeeze) X(unsqueeze) X(transpose) X(slice) X(split)    \
			X(concat) X(expand) X(tile) X(pad) X(depth_to_space) X(space_to_depth) X(trilu)     \
				X(reverse_sequence) /* ops_index.c */                                       \
		X(gather) X(gather_elements) X(gather_nd) X(scatter_elements) X(scatter_nd) X(one_hot)      \
			X(compress) X(resize) X(upsample) /* ops_nn.c */                                    \
		X(conv) X(conv_transpose) X(max_pool) X(average_pool) X(lp_pool) X(global_pool)             \
			X(batch_norm) X(lrn) X(instance_norm) X(layer_norm) /* ops_rnn.c */                 \
		X(lstm) X(gru) X(rnn)                                       /* ops_loss.c */                \
		X(nll_loss) X(cross_entropy)                                /* ops_quant.c */               \
		X(quantize) X(dequantize)
/* clang-format on */

#define TN_OX_DECLARE(name) tern_status tn_ox_op_##name(tn_ox *x);
TN_OX_HANDLERS(TN_OX_DECLARE)
#undef TN_OX_DECLARE

#endif

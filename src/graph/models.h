/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of the built-in models: layers as calls on a builder that keeps the first failure, so
 * that a model reads as a list of its layers. After a failure values mean nothing and nothing is added.
 *
 * Convolutions are NCHW. Names: "conv1/w", "conv1/b", "conv1/conv", ... Weights of convolutions and of fully
 * connected layers before a Relu start as He et al. 2015 say, others as Glorot and Bengio 2010; recurrent
 * ones uniform in +-1 / sqrt(hidden); biases at 0.
 *
 * Thread story: see graph.h. Tests: tests/unit/graph/models_test.c.
 */
#ifndef TN_GRAPH_MODELS_H
#define TN_GRAPH_MODELS_H

#include "graph/ir.h"

typedef struct tn_builder {
	tern_graph *g;
	uint64_t seed;
	uint64_t batch; /* the symbolic dim */
	tern_status st;
} tn_builder;

/* What a model is asked for, defaults filled in. steps may be symbolic: then inputs are those of a step. */
typedef struct tn_model_size {
	uint64_t inputs, classes, steps, hidden;
} tn_model_size;

typedef struct tn_model {
	const char *name;
	tn_model_size size; /* defaults; 0: does not apply */
	bool fixed_inputs;  /* `inputs` is what the model is made for */
	void (*build)(tn_builder *b, const tn_model_size *size);
} tn_model;

/* Ends with a row without a name. Each in the order in which names are listed. */
extern const tn_model tn_models_cnn[], tn_models_inception[], tn_models_seq[], tn_models_attention[];

/* ---- tensors ---- */

#define TN_DIMS(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})
tern_value tn_b_placeholder(tn_builder *b, const char *port, tern_dtype dtype, tern_shape shape);
/* Uniform in +-bound; bound 0: zeros. The name is LAYER/WHAT. */
tern_value tn_b_variable(tn_builder *b, const char *layer, const char *what, tern_shape shape, double bound);
tern_value tn_b_filled(tn_builder *b, const char *layer, const char *what, tern_shape shape, float value);
tern_value tn_b_constant(tn_builder *b, const char *layer, const char *what, tern_dtype dtype,
			 tern_shape shape, const void *data);
void tn_b_port(tn_builder *b, const char *port, tern_value v);
/* Dim number i of a value, whatever it is. */
uint64_t tn_b_dim(const tn_builder *b, tern_value v, uint32_t i);

/* ---- nodes: LAYER/WHAT is the name ---- */

tern_value tn_b_node(tn_builder *b, tn_op op, const char *layer, const char *what, const tern_value *in,
		     uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs);
/* All outputs. */
void tn_b_nodes(tn_builder *b, tn_op op, const char *layer, const char *what, const tern_value *in,
		uint32_t n_in, const tn_attr *attrs, uint32_t n_attrs, tern_value *outs);
tern_value tn_b_unary(tn_builder *b, tn_op op, const char *layer, const char *what, tern_value x);
tern_value tn_b_binary(tn_builder *b, tn_op op, const char *layer, const char *what, tern_value x,
		       tern_value y);
tern_value tn_b_reshape(tn_builder *b, const char *layer, const char *what, tern_value x, tern_shape shape);
tern_value tn_b_transpose(tn_builder *b, const char *layer, const char *what, tern_value x, uint32_t rank,
			  const uint32_t *perm);
tn_attr tn_attr_list(tn_attr_key key, uint32_t n, const int64_t *v);

/* ---- layers ---- */

/* (..., in) -> (..., out) */
tern_value tn_b_dense(tn_builder *b, const char *layer, tern_value x, uint64_t out, bool relu);

typedef struct tn_window {
	uint32_t kh, kw, stride;
	uint32_t ph, pw; /* on both sides */
} tn_window;
/* A square window; same: padded so that stride 1 keeps the size. */
static inline tn_window tn_square(uint32_t k, uint32_t stride, bool same)
{
	return (tn_window){k, k, stride, same ? k / 2 : 0, same ? k / 2 : 0};
}
/* Convolution without bias. */
tern_value tn_b_conv(tn_builder *b, const char *layer, tern_value x, uint64_t out, tn_window w);
/* With bias and Relu. */
tern_value tn_b_conv_relu(tn_builder *b, const char *layer, tern_value x, uint64_t out, tn_window w);
tern_value tn_b_pool(tn_builder *b, tn_op op, const char *layer, tern_value x, tn_window w);
/* (batch, C, H, W) -> (batch, C H W) */
tern_value tn_b_flatten(tn_builder *b, const char *layer, tern_value x);

typedef struct tn_norm {
	bool scale;
	float momentum; /* of the running statistics */
	float epsilon;
} tn_norm;
/* Batch normalisation: of the batch in training, by the running statistics in evaluation. */
tern_value tn_b_batch_norm(tn_builder *b, const char *layer, tern_value x, const tn_norm *norm);
/* Over the last dim. */
tern_value tn_b_layer_norm(tn_builder *b, const char *layer, tern_value x);

/* LSTM or GRU over X (T, batch, in): all states (T, batch, hidden). state: in: TERN_VALUE_NONE or the initial
 * (1, batch, hidden), of GRU alone; out: the last. May be NULL. */
tern_value tn_b_recurrent(tn_builder *b, tn_op op, const char *layer, tern_value x, uint64_t hidden,
			  tern_value *state);
/* Rows of a table (rows, dim). */
tern_value tn_b_embedding(tn_builder *b, const char *layer, tern_value tokens, uint64_t rows, uint64_t dim);

/* ---- ports ---- */

/* Softmax cross-entropy of rows (..., classes): ports loss (unless `loss` is given), correct, probs. */
void tn_b_classify(tn_builder *b, tern_value logits, tern_value labels);
/* The same for sequences: rows whose target is below 0 count nothing. */
void tn_b_predict(tn_builder *b, tern_value logits, tern_value targets);

#endif

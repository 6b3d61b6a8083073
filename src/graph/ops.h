/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op table: the one list of what a node can be. Shapes are inferred in infer.c, gradients made in
 * grad.c, kernels found in kern.c, each by a table indexed with these numbers; tests/unit/graph/ops_test.c
 * checks that the tables have no hole. A new op is one row here and one entry in each of them.
 */
#ifndef TN_GRAPH_OPS_H
#define TN_GRAPH_OPS_H

#include <stdint.h>

/*
 * Attributes. X(KEY, "name", type, required). Types: INT (int64), FLOAT (double), INTS (up to TERN_RANK_MAX).
 * In INTS a symbolic dim is stored as it is (cast to int64).
 */
#define TN_ATTR_MAP(X)                                                                            \
	X(TRANS_A, "trans_a", INT) /* MatMul: use the transpose of A */                           \
	X(TRANS_B, "trans_b", INT)                                                                \
	X(AXES, "axes", INTS)          /* reductions: none = all */                               \
	X(KEEP_DIMS, "keep_dims", INT) /* reductions: keep reduced dims as 1 */                   \
	X(MEAN, "mean", INT)           /* ExpandLike: divide by the number of copies */           \
	X(SCALE, "scale", FLOAT)                                                                  \
	X(SHAPE, "shape", INTS)    /* Reshape */                                                  \
	X(LR, "lr", FLOAT)         /* learning rate at step 0 */                                  \
	X(LR_END, "lr_end", FLOAT) /* and from step lr_steps on */                                \
	X(LR_STEPS, "lr_steps", INT)                                                              \
	X(MOMENTUM, "momentum", FLOAT)                                                            \
	X(WEIGHT_DECAY, "weight_decay", FLOAT)                                                    \
	X(BETA1, "beta1", FLOAT)                                                                  \
	X(BETA2, "beta2", FLOAT)                                                                  \
	X(RHO, "rho", FLOAT)                                                                      \
	X(EPSILON, "epsilon", FLOAT)                                                              \
	X(CLIP_VALUE, "clip_value", FLOAT) /* Apply*: each element of the gradient to [-x, x] */  \
	X(CLIP_NORM, "clip_norm", FLOAT)   /* ClipScale */                                        \
	X(CLIPPED, "clipped", INT)         /* Apply*: the input after the slots is a ClipScale */ \
	X(GRAD_SCALE, "grad_scale", FLOAT) /* Apply*: the sum of the gradients is scaled first */ \
	X(FOR_DEVICE, "for_device", INT)   /* Apply*: whose gradient it is; -1 = everybody's */   \
	X(EDGE, "edge", INT)               /* Send, Recv: number of the edge in the plan */       \
	X(PROLOGUE, "prologue", INT)       /* Send: runs once before step 0 as well */

typedef enum tn_attr_key {
#define TN_ATTR_ENUM(key, name, type) TN_ATTR_##key,
	TN_ATTR_MAP(TN_ATTR_ENUM)
#undef TN_ATTR_ENUM
		TN_ATTR_COUNT
} tn_attr_key;

#define TN_A(key) (1u << TN_ATTR_##key)

/* What the rest of the layer must know of an op. */
#define TN_OPF_SOURCE   1u /* never executed: its output's memory is there before the step */
#define TN_OPF_VIEW     2u /* output 0 is the memory of input 0 */
#define TN_OPF_INPLACE  4u /* writes the memory of input 0, which output 0 is */
#define TN_OPF_SEND     8u
#define TN_OPF_RECV     16u /* output 0 is memory of the transfer, valid until released */
#define TN_OPF_RDMA     32u /* one-sided, from and to registered memory */
#define TN_OPF_INTERNAL 64u /* made by passes; not to be asked for by callers */

#define TN_APPLY_ATTRS                                                                      \
	(TN_A(LR) | TN_A(LR_END) | TN_A(LR_STEPS) | TN_A(WEIGHT_DECAY) | TN_A(GRAD_SCALE) | \
	 TN_A(FOR_DEVICE) | TN_A(CLIP_VALUE) | TN_A(CLIPPED))
#define TN_MANY 4096u /* most inputs of one node */

/* X(OP, "Name", inputs at least, at most, outputs, flags, attributes allowed, attributes required) */
#define TN_OP_MAP(X)                                                                                           \
	X(PLACEHOLDER, "Placeholder", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, 0, 0)                          \
	X(VARIABLE, "Variable", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, 0, 0)                                \
	X(CONSTANT, "Constant", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, 0, 0)                                \
	X(MATMUL, "MatMul", 2, 2, 1, 0, TN_A(TRANS_A) | TN_A(TRANS_B), 0)                                      \
	X(BIAS_ADD, "BiasAdd", 2, 2, 1, 0, 0, 0)                                                               \
	X(RELU, "Relu", 1, 1, 1, 0, 0, 0)                                                                      \
	X(RELU_GRAD, "ReluGrad", 2, 2, 1, 0, 0, 0) /* (dY, Y) */                                               \
	X(SOFTMAX, "Softmax", 1, 1, 1, 0, 0, 0)                                                                \
	X(SOFTMAX_GRAD, "SoftmaxGrad", 2, 2, 1, 0, 0, 0) /* (dY, Y) */                                         \
	X(SOFTMAX_XENT, "SoftmaxCrossEntropy", 2, 2, 3, 0, 0, 0)                                               \
	X(SOFTMAX_XENT_GRAD, "SoftmaxCrossEntropyGrad", 3, 3, 1, 0, 0, 0) /* (dloss, probs, labels) */         \
	X(REDUCE_SUM, "ReduceSum", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0)                                \
	X(REDUCE_MEAN, "ReduceMean", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0)                              \
	X(EXPAND_LIKE, "ExpandLike", 2, 2, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS) | TN_A(MEAN), 0)                 \
	X(ADD, "Add", 2, 2, 1, 0, 0, 0)                                                                        \
	X(ADD_N, "AddN", 1, TN_MANY, 1, 0, 0, 0)                                                               \
	X(MUL, "Mul", 2, 2, 1, 0, 0, 0)                                                                        \
	X(SCALE, "Scale", 1, 1, 1, 0, TN_A(SCALE), TN_A(SCALE))                                                \
	X(IDENTITY, "Identity", 1, 1, 1, TN_OPF_VIEW, 0, 0)                                                    \
	X(RESHAPE, "Reshape", 1, 1, 1, TN_OPF_VIEW, TN_A(SHAPE), TN_A(SHAPE))                                  \
	/* (variable, gradient...) -> variable: the gradients are added from left to right */                  \
	X(APPLY_SGD, "ApplySGD", 2, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS, TN_A(LR))    \
	/* (variable, momentum, gradient...) -> variable; writes the momentum too */                           \
	X(APPLY_MOMENTUM, "ApplyMomentum", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL,                    \
	  TN_APPLY_ATTRS | TN_A(MOMENTUM), TN_A(LR) | TN_A(MOMENTUM))                                          \
	/* (variable, accumulator, gradient...) */                                                             \
	X(APPLY_ADAGRAD, "ApplyAdagrad", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL,                      \
	  TN_APPLY_ATTRS | TN_A(EPSILON), TN_A(LR) | TN_A(EPSILON))                                            \
	/* (variable, m, v, updates, gradient...); updates is a scalar that counts them */                     \
	X(APPLY_ADAM, "ApplyAdam", 5, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL,                            \
	  TN_APPLY_ATTRS | TN_A(BETA1) | TN_A(BETA2) | TN_A(EPSILON),                                          \
	  TN_A(LR) | TN_A(BETA1) | TN_A(BETA2) | TN_A(EPSILON))                                                \
	/* (variable, accumulator, [momentum, if it has that attribute,] gradient...) */                       \
	X(APPLY_RMSPROP, "ApplyRMSProp", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL,                      \
	  TN_APPLY_ATTRS | TN_A(RHO) | TN_A(EPSILON) | TN_A(MOMENTUM), TN_A(LR) | TN_A(RHO) | TN_A(EPSILON))   \
	/* (variable, value...): v = momentum * v + (1 - momentum) * mean of the values; grad_scale = 1 / n */ \
	X(APPLY_EMA, "ApplyEma", 2, TN_MANY, 1, TN_OPF_INPLACE,                                                \
	  TN_A(MOMENTUM) | TN_A(GRAD_SCALE) | TN_A(FOR_DEVICE), TN_A(MOMENTUM))                                \
	/* (gradient...) -> scalar: scale * sqrt(sum of all squares) */                                        \
	X(GRAD_NORM, "GradNorm", 1, TN_MANY, 1, TN_OPF_INTERNAL, TN_A(SCALE), 0)                               \
	/* (norm...) -> scalar: min(1, clip_norm / (sqrt(sum of squares) + 1e-6)) */                           \
	X(CLIP_SCALE, "ClipScale", 1, TN_MANY, 1, TN_OPF_INTERNAL, TN_A(CLIP_NORM), TN_A(CLIP_NORM))           \
	X(SEND, "Send", 1, 1, 0, TN_OPF_SEND | TN_OPF_INTERNAL, TN_A(EDGE) | TN_A(PROLOGUE), TN_A(EDGE))       \
	X(RECV, "Recv", 0, 0, 1, TN_OPF_RECV | TN_OPF_INTERNAL, TN_A(EDGE), TN_A(EDGE))                        \
	X(RDMA_SEND, "RdmaSend", 1, 1, 0, TN_OPF_SEND | TN_OPF_RDMA | TN_OPF_INTERNAL,                         \
	  TN_A(EDGE) | TN_A(PROLOGUE), TN_A(EDGE))                                                             \
	X(RDMA_RECV, "RdmaRecv", 0, 0, 1, TN_OPF_RECV | TN_OPF_RDMA | TN_OPF_INTERNAL, TN_A(EDGE), TN_A(EDGE))

typedef enum tn_op {
#define TN_OP_ENUM(op, name, lo, hi, outs, flags, attrs, required) TN_OP_##op,
	TN_OP_MAP(TN_OP_ENUM)
#undef TN_OP_ENUM
		TN_OP_COUNT
} tn_op;

typedef struct tn_op_info {
	const char *name;
	uint32_t in_min, in_max, outs;
	uint32_t flags; /* TN_OPF_* */
	uint32_t attrs; /* bit per tn_attr_key */
	uint32_t required;
} tn_op_info;

extern const tn_op_info tn_op_table[TN_OP_COUNT];
extern const char *const tn_attr_names[TN_ATTR_COUNT];

static inline uint32_t tn_op_flags(tn_op op)
{
	return tn_op_table[op].flags;
}

#endif

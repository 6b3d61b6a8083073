/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops of ONNX that are imported, each with the oldest definition that its handler knows. A new one is a
 * row here and a handler in an ops_*.c, or none if a family has it.
 *
 * Thread story: constant. Tests: tests/unit/graph/onnx_test.c, tests/onnx/node_test.py.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/onnx/import.h"

#define ANY 255

/* Sorted by name in byte order: name, since, inputs at least, at most, outputs at most, handler, op, moves */
/* clang-format off */
#define OP(name, since, lo, hi, outs, handler, op) \
	{name, since, lo, hi, outs, tn_ox_op_##handler, TN_OP_##op, false},
#define MOVES(name, since, lo, hi, outs, handler, op) \
	{name, since, lo, hi, outs, tn_ox_op_##handler, TN_OP_##op, true},
static const tn_ox_op ops[] = {
	OP("Abs", 6, 1, 1, 1, unary, ABS)
	OP("Acos", 7, 1, 1, 1, unary, ACOS)
	OP("Acosh", 9, 1, 1, 1, unary, ACOSH)
	OP("Add", 7, 2, 2, 1, binary, ADD)
	OP("And", 7, 2, 2, 1, binary, AND)
	OP("ArgMax", 1, 1, 1, 1, arg, ARG_MAX)
	OP("ArgMin", 1, 1, 1, 1, arg, ARG_MIN)
	OP("Asin", 7, 1, 1, 1, unary, ASIN)
	OP("Asinh", 9, 1, 1, 1, unary, ASINH)
	OP("Atan", 7, 1, 1, 1, unary, ATAN)
	OP("Atanh", 9, 1, 1, 1, unary, ATANH)
	OP("AveragePool", 7, 1, 1, 1, average_pool, AVERAGE_POOL)
	OP("BatchNormalization", 9, 5, 5, 5, batch_norm, BATCH_NORM)
	OP("BitShift", 11, 2, 2, 1, bit_shift, BIT_SHIFT)
	OP("Cast", 6, 1, 1, 1, cast, CAST)
	OP("CastLike", 15, 2, 2, 1, cast_like, CAST)
	OP("Ceil", 6, 1, 1, 1, unary, CEIL)
	OP("Celu", 12, 1, 1, 1, alpha, CELU)
	OP("Clip", 6, 1, 3, 1, clip, CLIP_VALUES)
	OP("Compress", 9, 2, 2, 1, compress, GATHER)
	MOVES("Concat", 4, 1, ANY, 1, concat, CONCAT)
	OP("Constant", 1, 0, 0, 1, constant, CONSTANT)
	OP("ConstantOfShape", 9, 1, 1, 1, constant_of_shape, EXPAND)
	OP("Conv", 1, 2, 3, 1, conv, CONV)
	OP("ConvTranspose", 1, 2, 3, 1, conv_transpose, CONV_TRANSPOSE)
	OP("Cos", 7, 1, 1, 1, unary, COS)
	OP("Cosh", 9, 1, 1, 1, unary, COSH)
	OP("CumSum", 11, 2, 2, 1, cum_sum, CUM_SUM)
	OP("DepthToSpace", 1, 1, 1, 1, depth_to_space, DEPTH_TO_SPACE)
	OP("DequantizeLinear", 10, 2, 3, 1, dequantize, MUL)
	OP("Div", 7, 2, 2, 1, binary, DIV)
	OP("Dropout", 7, 1, 3, 2, dropout, IDENTITY)
	OP("Elu", 6, 1, 1, 1, alpha, ELU)
	OP("Equal", 7, 2, 2, 1, binary, EQUAL)
	OP("Erf", 9, 1, 1, 1, unary, ERF)
	OP("Exp", 6, 1, 1, 1, unary, EXP)
	OP("Expand", 8, 2, 2, 1, expand, EXPAND)
	OP("EyeLike", 9, 1, 1, 1, eye_like, CONSTANT)
	MOVES("Flatten", 1, 1, 1, 1, flatten, RESHAPE)
	OP("Floor", 6, 1, 1, 1, unary, FLOOR)
	OP("GRU", 7, 3, 6, 2, gru, GRU)
	MOVES("Gather", 1, 2, 2, 1, gather, GATHER)
	OP("GatherElements", 11, 2, 2, 1, gather_elements, GATHER_ELEMENTS)
	OP("GatherND", 11, 2, 2, 1, gather_nd, GATHER_ND)
	OP("Gemm", 7, 2, 3, 1, gemm, MATMUL)
	OP("GlobalAveragePool", 1, 1, 1, 1, global_pool, GLOBAL_AVERAGE_POOL)
	OP("GlobalMaxPool", 1, 1, 1, 1, global_pool, GLOBAL_MAX_POOL)
	OP("Greater", 7, 2, 2, 1, binary, GREATER)
	OP("GreaterOrEqual", 12, 2, 2, 1, binary, GREATER_OR_EQUAL)
	OP("HardSigmoid", 6, 1, 1, 1, alpha, HARD_SIGMOID)
	OP("HardSwish", 14, 1, 1, 1, unary, HARD_SWISH)
	OP("Hardmax", 1, 1, 1, 1, softmax, HARDMAX)
	MOVES("Identity", 1, 1, 1, 1, identity, IDENTITY)
	OP("InstanceNormalization", 6, 3, 3, 1, instance_norm, INSTANCE_NORM)
	OP("IsInf", 10, 1, 1, 1, is_inf, IS_INF)
	OP("IsNaN", 9, 1, 1, 1, unary, IS_NAN)
	OP("LRN", 1, 1, 1, 1, lrn, LRN)
	OP("LSTM", 7, 3, 8, 3, lstm, LSTM)
	OP("LayerNormalization", 17, 2, 3, 3, layer_norm, LAYER_NORM)
	OP("LeakyRelu", 6, 1, 1, 1, alpha, LEAKY_RELU)
	OP("Less", 7, 2, 2, 1, binary, LESS)
	OP("LessOrEqual", 12, 2, 2, 1, binary, LESS_OR_EQUAL)
	OP("Log", 6, 1, 1, 1, unary, LOG)
	OP("LogSoftmax", 1, 1, 1, 1, softmax, LOG_SOFTMAX)
	OP("LpPool", 2, 1, 1, 1, lp_pool, LP_POOL)
	OP("MatMul", 1, 2, 2, 1, binary, MATMUL)
	OP("Max", 8, 1, ANY, 1, fold_binary, MAXIMUM)
	OP("MaxPool", 1, 1, 1, 2, max_pool, MAX_POOL)
	OP("Mean", 8, 1, ANY, 1, mean, ADD)
	OP("MeanVarianceNormalization", 9, 1, 1, 1, mean_variance, SUB)
	OP("Min", 8, 1, ANY, 1, fold_binary, MINIMUM)
	OP("Mod", 10, 2, 2, 1, mod, MOD)
	OP("Mul", 7, 2, 2, 1, binary, MUL)
	OP("Neg", 6, 1, 1, 1, unary, NEG)
	OP("NegativeLogLikelihoodLoss", 12, 2, 3, 1, nll_loss, GATHER_ELEMENTS)
	OP("NonZero", 9, 1, 1, 1, non_zero, CONSTANT)
	OP("Not", 1, 1, 1, 1, unary, NOT)
	OP("OneHot", 9, 3, 3, 1, one_hot, ONE_HOT)
	OP("Or", 7, 2, 2, 1, binary, OR)
	OP("PRelu", 7, 2, 2, 1, binary, PRELU)
	OP("Pad", 2, 1, 3, 1, pad, PAD)
	OP("Pow", 7, 2, 2, 1, binary, POW)
	OP("QuantizeLinear", 10, 2, 3, 1, quantize, ROUND)
	OP("RNN", 7, 3, 6, 2, rnn, RNN)
	OP("Range", 11, 3, 3, 1, range, CONSTANT)
	OP("Reciprocal", 6, 1, 1, 1, unary, RECIPROCAL)
	OP("ReduceL1", 1, 1, 1, 1, reduce, REDUCE_L1)
	OP("ReduceL2", 1, 1, 1, 1, reduce, REDUCE_L2)
	OP("ReduceLogSum", 1, 1, 1, 1, reduce, REDUCE_LOG_SUM)
	OP("ReduceLogSumExp", 1, 1, 1, 1, reduce, REDUCE_LOG_SUM_EXP)
	OP("ReduceMax", 1, 1, 1, 1, reduce, REDUCE_MAX)
	OP("ReduceMean", 1, 1, 1, 1, reduce, REDUCE_MEAN)
	OP("ReduceMin", 1, 1, 1, 1, reduce, REDUCE_MIN)
	OP("ReduceProd", 1, 1, 1, 1, reduce, REDUCE_PROD)
	OP("ReduceSum", 1, 1, 2, 1, reduce, REDUCE_SUM)
	OP("ReduceSumSquare", 1, 1, 1, 1, reduce, REDUCE_SUM_SQUARE)
	OP("Relu", 6, 1, 1, 1, unary, RELU)
	MOVES("Reshape", 5, 2, 2, 1, reshape, RESHAPE)
	OP("Resize", 10, 1, 4, 1, resize, RESIZE)
	OP("ReverseSequence", 10, 2, 2, 1, reverse_sequence, REVERSE_SEQUENCE)
	OP("Round", 11, 1, 1, 1, unary, ROUND)
	OP("Scatter", 9, 3, 3, 1, scatter_elements, SCATTER_ELEMENTS)
	OP("ScatterElements", 11, 3, 3, 1, scatter_elements, SCATTER_ELEMENTS)
	OP("ScatterND", 11, 3, 3, 1, scatter_nd, SCATTER_ND)
	OP("Selu", 6, 1, 1, 1, alpha, SELU)
	OP("Shape", 1, 1, 1, 1, shape, CONSTANT)
	OP("Shrink", 9, 1, 1, 1, shrink, SHRINK)
	OP("Sigmoid", 6, 1, 1, 1, unary, SIGMOID)
	OP("Sign", 9, 1, 1, 1, unary, SIGN)
	OP("Sin", 7, 1, 1, 1, unary, SIN)
	OP("Sinh", 9, 1, 1, 1, unary, SINH)
	OP("Size", 1, 1, 1, 1, size, CONSTANT)
	MOVES("Slice", 1, 1, 5, 1, slice, SLICE)
	OP("Softmax", 1, 1, 1, 1, softmax, SOFTMAX)
	OP("SoftmaxCrossEntropyLoss", 12, 2, 3, 2, cross_entropy, LOG_SOFTMAX)
	OP("Softplus", 1, 1, 1, 1, unary, SOFTPLUS)
	OP("Softsign", 1, 1, 1, 1, unary, SOFTSIGN)
	OP("SpaceToDepth", 1, 1, 1, 1, space_to_depth, SPACE_TO_DEPTH)
	MOVES("Split", 2, 1, 2, ANY, split, SLICE)
	OP("Sqrt", 6, 1, 1, 1, unary, SQRT)
	MOVES("Squeeze", 1, 1, 2, 1, squeeze, RESHAPE)
	OP("Sub", 7, 2, 2, 1, binary, SUB)
	OP("Sum", 8, 1, ANY, 1, fold_binary, ADD)
	OP("Tan", 7, 1, 1, 1, unary, TAN)
	OP("Tanh", 6, 1, 1, 1, unary, TANH)
	OP("ThresholdedRelu", 10, 1, 1, 1, alpha, THRESHOLDED_RELU)
	OP("Tile", 6, 2, 2, 1, tile, TILE)
	OP("TopK", 1, 1, 2, 2, top_k, TOP_K)
	MOVES("Transpose", 1, 1, 1, 1, transpose, TRANSPOSE)
	OP("Trilu", 14, 1, 2, 1, trilu, TRILU)
	MOVES("Unsqueeze", 1, 1, 2, 1, unsqueeze, RESHAPE)
	OP("Upsample", 7, 1, 2, 1, upsample, RESIZE)
	OP("Where", 9, 3, 3, 1, where, WHERE)
	OP("Xor", 7, 2, 2, 1, binary, XOR)
};
#undef OP
#undef MOVES
/* clang-format on */

static int by_name(const void *key, const void *op)
{
	return strcmp(key, ((const tn_ox_op *)op)->name);
}

const tn_ox_op *tn_ox_find_op(const char *name)
{
	return bsearch(name, ops, sizeof(ops) / sizeof(ops[0]), sizeof(ops[0]), by_name);
}

const tn_ox_op *tn_ox_op_at(uint32_t i)
{
	return i < sizeof(ops) / sizeof(ops[0]) ? &ops[i] : NULL;
}

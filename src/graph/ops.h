/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op table: the one list of what a node can be. A row names the shape rule (infer*.c) and the kernel
 * family (kern*.c) of its op, so neither can be forgotten; gradients are a table in grad.c. A new op is one
 * row here, one in docs/GRAPH-OPS.md, and a gradient rule if it has a gradient.
 * Tests: tests/unit/graph/ops_test.c.
 */
#ifndef TN_GRAPH_OPS_H
#define TN_GRAPH_OPS_H

#include <stdint.h>

/*
 * Attributes. X(KEY, "name", type). Types: INT (int64), FLOAT (double), INTS and FLOATS (up to
 * TERN_ATTR_INTS_MAX each). In a shape a symbolic dim is stored as it is (cast to int64). Names are ONNX's
 * where ONNX has the attribute.
 */
/* clang-format off */
#define TN_ATTR_MAP(X) \
	X(TRANS_A, "trans_a", INT) /* MatMul: use the transpose of A */ \
	X(TRANS_B, "trans_b", INT) \
	X(AXES, "axes", INTS) /* reductions: none = all */ \
	X(KEEP_DIMS, "keep_dims", INT) /* reductions: keep reduced dims as 1 */ \
	X(MEAN, "mean", INT) /* ExpandLike: divide by the number of copies */ \
	X(SCALE, "scale", FLOAT) \
	X(SHAPE, "shape", INTS) /* of the output: Reshape, Expand, and gradients whose input is not at hand */ \
	X(LR, "lr", FLOAT) /* learning rate at step 0 */ \
	X(LR_END, "lr_end", FLOAT) /* and from step lr_steps on */ \
	X(LR_STEPS, "lr_steps", INT) \
	X(MOMENTUM, "momentum", FLOAT) \
	X(WEIGHT_DECAY, "weight_decay", FLOAT) \
	X(GRAD_SCALE, "grad_scale", FLOAT) /* Apply*: the sum of the gradients is scaled first */ \
	X(FOR_DEVICE, "for_device", INT) /* Apply*: whose gradient it is; -1 = everybody's */ \
	X(EDGE, "edge", INT) /* Send, Recv: number of the edge in the plan */ \
	X(PROLOGUE, "prologue", INT) /* Send: runs once before step 0 as well */ \
	X(STALE, "stale", INT) /* Send of a variable: how many steps its receiver may be ahead of the slowest */ \
	X(PART, "part", INT) /* Part, Variable: which of `parts` ranges of rows */ \
	X(PARTS, "parts", INT) \
	X(ROWS, "rows", INT) /* Variable that is a part: rows of the whole */ \
	X(AXIS, "axis", INT) /* negative: from the end */ \
	X(ALPHA, "alpha", FLOAT) \
	X(BETA, "beta", FLOAT) \
	X(GAMMA, "gamma", FLOAT) \
	X(MIN, "min", FLOAT) \
	X(MAX, "max", FLOAT) \
	X(DETECT, "detect", INT) /* IsInf: 1 positive, 2 negative, 3 both */ \
	X(TO, "to", INT) /* Cast, OneHot: tern_dtype of the output */ \
	X(FMOD, "fmod", INT) /* Mod: 1 = the sign of the dividend, as C's fmod */ \
	X(DIRECTION, "direction", INT) /* BitShift: 0 left, 1 right. Recurrent: tn_direction */ \
	X(LAST, "select_last_index", INT) \
	X(EXCLUSIVE, "exclusive", INT) \
	X(REVERSE, "reverse", INT) \
	X(PERM, "perm", INTS) \
	X(STARTS, "starts", INTS) \
	X(ENDS, "ends", INTS) \
	X(STEPS, "steps", INTS) \
	X(PADS, "pads", INTS) /* begins, then ends */ \
	X(MODE, "mode", INT) /* Pad, Resize, DepthToSpace, Gelu: enumerations below */ \
	X(VALUE, "value", FLOAT) \
	X(REPEATS, "repeats", INTS) \
	X(BATCH_DIMS, "batch_dims", INT) \
	X(REDUCTION, "reduction", INT) /* Scatter*: tn_scatter */ \
	X(DEPTH, "depth", INT) \
	X(ON_VALUE, "on_value", FLOAT) \
	X(OFF_VALUE, "off_value", FLOAT) \
	X(BLOCK_SIZE, "blocksize", INT) \
	X(UPPER, "upper", INT) \
	X(K, "k", INT) \
	X(LARGEST, "largest", INT) \
	X(SCALES, "scales", FLOATS) /* Resize: output over input, per dim */ \
	X(ROI, "roi", FLOATS) /* Resize: starts, then ends, per dim */ \
	X(COORDS, "coordinate_transformation_mode", INT) \
	X(NEAREST, "nearest_mode", INT) \
	X(CUBIC_COEFF, "cubic_coeff_a", FLOAT) \
	X(EXCLUDE_OUTSIDE, "exclude_outside", INT) \
	X(RATIO, "ratio", FLOAT) /* Dropout: share of zeros */ \
	X(SEED, "seed", INT) \
	X(BATCH_AXIS, "batch_axis", INT) \
	X(TIME_AXIS, "time_axis", INT) \
	X(KERNEL_SHAPE, "kernel_shape", INTS) \
	X(STRIDES, "strides", INTS) \
	X(DILATIONS, "dilations", INTS) \
	X(GROUP, "group", INT) \
	X(OUTPUT_PADDING, "output_padding", INTS) \
	X(CEIL_MODE, "ceil_mode", INT) \
	X(COUNT_INCLUDE_PAD, "count_include_pad", INT) \
	X(STORAGE_ORDER, "storage_order", INT) \
	X(EPSILON, "epsilon", FLOAT) \
	X(SIZE, "size", INT) /* LRN: channels in a sum */ \
	X(BIAS, "bias", FLOAT) \
	X(HIDDEN_SIZE, "hidden_size", INT) \
	X(LAYOUT, "layout", INT) \
	X(LINEAR_BEFORE_RESET, "linear_before_reset", INT) \
	X(CLIP, "clip", FLOAT) \
	X(ACTIVATIONS, "activations", INTS) /* recurrent: tn_op of each */ \
	X(P, "p", INT) /* LpPool: which norm */ \
	X(GIVEN, "given", INT) /* recurrent gradients: which optional inputs are there, TN_GIVEN_* */ \
	X(BETA1, "beta1", FLOAT) \
	X(BETA2, "beta2", FLOAT) \
	X(RHO, "rho", FLOAT) \
	X(CLIP_VALUE, "clip_value", FLOAT) /* Apply*: each element of the gradient to [-x, x] */ \
	X(CLIP_NORM, "clip_norm", FLOAT) /* ClipScale */ \
	X(IGNORE_INDEX, "ignore_index", INT) /* losses: rows with this label count nothing */ \
	X(CLIPPED, "clipped", INT) /* Apply*: the input after the slots is a ClipScale */ \
	X(SPARSE, "sparse", INT) /* Variable: it is to be kept as rows of a table */ \
	X(TABLE, "table", INT) /* which one of the plan; Variable in the passes: it is one */
/* clang-format on */

typedef enum tn_attr_key {
#define TN_ATTR_ENUM(key, name, type) TN_ATTR_##key,
	TN_ATTR_MAP(TN_ATTR_ENUM)
#undef TN_ATTR_ENUM
		TN_ATTR_COUNT
} tn_attr_key;

/* A set of attributes: bit per tn_attr_key. */
__extension__ typedef unsigned __int128 tn_attr_mask;
#define TN_A(key) ((tn_attr_mask)1 << TN_ATTR_##key)

/* Values of attributes that name a way. */
typedef enum tn_pad_mode { TN_PAD_CONSTANT, TN_PAD_REFLECT, TN_PAD_EDGE } tn_pad_mode;
typedef enum tn_resize_mode { TN_RESIZE_NEAREST, TN_RESIZE_LINEAR, TN_RESIZE_CUBIC } tn_resize_mode;
typedef enum tn_coords {
	TN_COORDS_HALF_PIXEL,
	TN_COORDS_ASYMMETRIC,
	TN_COORDS_ALIGN_CORNERS,
	TN_COORDS_PYTORCH_HALF_PIXEL,
	TN_COORDS_CROP_AND_RESIZE,
	TN_COORDS_HALF_PIXEL_FOR_NN, /* tf_half_pixel_for_nn */
} tn_coords;
typedef enum tn_nearest {
	TN_NEAREST_ROUND_PREFER_FLOOR,
	TN_NEAREST_ROUND_PREFER_CEIL,
	TN_NEAREST_FLOOR,
	TN_NEAREST_CEIL,
} tn_nearest;
typedef enum tn_depth_mode { TN_DEPTH_DCR, TN_DEPTH_CRD } tn_depth_mode;
typedef enum tn_scatter {
	TN_SCATTER_NONE,
	TN_SCATTER_ADD,
	TN_SCATTER_MUL,
	TN_SCATTER_MAX,
	TN_SCATTER_MIN,
} tn_scatter;
typedef enum tn_direction { TN_DIRECTION_FORWARD, TN_DIRECTION_REVERSE, TN_DIRECTION_BOTH } tn_direction;

/* What the rest of the layer must know of an op. */
#define TN_OPF_SOURCE   1u /* never executed: its output's memory is there before the step */
#define TN_OPF_VIEW     2u /* output 0 is the memory of input 0 */
#define TN_OPF_INPLACE  4u /* writes the memory of input 0, which output 0 is */
#define TN_OPF_SEND     8u
#define TN_OPF_RECV     16u  /* output 0 is memory of the transfer, valid until released */
#define TN_OPF_RDMA     32u  /* one-sided, from and to registered memory */
#define TN_OPF_INTERNAL 64u  /* made by passes; not to be asked for by callers */
#define TN_OPF_DYNAMIC  256u /* with RDMA: metadata, then a one-sided read, then an acknowledgement */
#define TN_OPF_JOIN     128u /* output 0 is the memory of all inputs, which are received one behind the other */
#define TN_OPF_STORE    512u /* asks the store for rows: done when the store is */

#define TN_APPLY_ATTRS                                                                      \
	(TN_A(LR) | TN_A(LR_END) | TN_A(LR_STEPS) | TN_A(WEIGHT_DECAY) | TN_A(GRAD_SCALE) | \
	 TN_A(FOR_DEVICE) | TN_A(CLIP_VALUE) | TN_A(CLIPPED))
#define TN_CONV_ATTRS (TN_A(KERNEL_SHAPE) | TN_A(STRIDES) | TN_A(PADS) | TN_A(DILATIONS) | TN_A(GROUP))
#define TN_POOL_ATTRS (TN_A(KERNEL_SHAPE) | TN_A(STRIDES) | TN_A(PADS) | TN_A(DILATIONS) | TN_A(CEIL_MODE))
#define TN_RECURRENT_ATTRS                                                                                   \
	(TN_A(HIDDEN_SIZE) | TN_A(DIRECTION) | TN_A(LAYOUT) | TN_A(CLIP) | TN_A(ACTIVATIONS) | TN_A(ALPHA) | \
	 TN_A(BETA))
#define TN_MANY 4096u /* most inputs of one node */

/*
 * X(OP, "Name", inputs at least, at most, outputs, flags, attributes allowed, attributes required, rule, kernel)
 * The rule is the function tn_infer_RULE (infer.h), the kernel the function tn_kern_KERNEL_create (kern.h).
 * One row a line and nothing aligned, so that two changes meet only where they touch the same op.
 */
/* clang-format off */
#define TN_OP_MAP(X) \
	X(PLACEHOLDER, "Placeholder", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, 0, 0, source, none) \
	X(VARIABLE, "Variable", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, TN_A(PART) | TN_A(PARTS) | TN_A(ROWS) | TN_A(AXIS) | TN_A(SPARSE), 0, source, none) \
	X(CONSTANT, "Constant", 0, 0, 1, TN_OPF_SOURCE | TN_OPF_INTERNAL, 0, 0, source, none) \
	/* views */ \
	X(IDENTITY, "Identity", 1, 1, 1, TN_OPF_VIEW, 0, 0, identity, none) \
	X(RESHAPE, "Reshape", 1, 1, 1, TN_OPF_VIEW, TN_A(SHAPE), TN_A(SHAPE), reshape, none) \
	/* one element to one */ \
	X(RELU, "Relu", 1, 1, 1, 0, 0, 0, number, unary) \
	X(RELU_GRAD, "ReluGrad", 2, 2, 1, 0, 0, 0, same_f32, plain) /* (dY, Y) */ \
	X(SCALE, "Scale", 1, 1, 1, 0, TN_A(SCALE), TN_A(SCALE), f32, plain) \
	X(NEG, "Neg", 1, 1, 1, 0, 0, 0, number, unary) \
	X(ABS, "Abs", 1, 1, 1, 0, 0, 0, number, unary) \
	X(SIGN, "Sign", 1, 1, 1, 0, 0, 0, number, unary) \
	X(EXP, "Exp", 1, 1, 1, 0, 0, 0, real, unary) \
	X(LOG, "Log", 1, 1, 1, 0, 0, 0, real, unary) \
	X(SQRT, "Sqrt", 1, 1, 1, 0, 0, 0, real, unary) \
	X(RECIPROCAL, "Reciprocal", 1, 1, 1, 0, 0, 0, real, unary) \
	X(SIGMOID, "Sigmoid", 1, 1, 1, 0, 0, 0, real, unary) \
	X(TANH, "Tanh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ERF, "Erf", 1, 1, 1, 0, 0, 0, real, unary) \
	X(FLOOR, "Floor", 1, 1, 1, 0, 0, 0, real, unary) \
	X(CEIL, "Ceil", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ROUND, "Round", 1, 1, 1, 0, 0, 0, real, unary) \
	X(SOFTPLUS, "Softplus", 1, 1, 1, 0, 0, 0, real, unary) \
	X(SOFTSIGN, "Softsign", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ELU, "Elu", 1, 1, 1, 0, TN_A(ALPHA), 0, real, unary) \
	X(SELU, "Selu", 1, 1, 1, 0, TN_A(ALPHA) | TN_A(GAMMA), 0, real, unary) \
	X(CELU, "Celu", 1, 1, 1, 0, TN_A(ALPHA), 0, real, unary) \
	X(LEAKY_RELU, "LeakyRelu", 1, 1, 1, 0, TN_A(ALPHA), 0, real, unary) \
	X(THRESHOLDED_RELU, "ThresholdedRelu", 1, 1, 1, 0, TN_A(ALPHA), 0, real, unary) \
	X(HARD_SIGMOID, "HardSigmoid", 1, 1, 1, 0, TN_A(ALPHA) | TN_A(BETA), 0, real, unary) \
	X(HARD_SWISH, "HardSwish", 1, 1, 1, 0, 0, 0, real, unary) \
	X(GELU, "Gelu", 1, 1, 1, 0, TN_A(MODE), 0, real, unary) /* mode 0: by erf; 1: by tanh */ \
	X(SHRINK, "Shrink", 1, 1, 1, 0, TN_A(ALPHA) | TN_A(BIAS), 0, number, unary) /* alpha: ONNX's lambd */ \
	X(CLIP_VALUES, "Clip", 1, 1, 1, 0, TN_A(MIN) | TN_A(MAX), 0, number, unary) \
	X(SIN, "Sin", 1, 1, 1, 0, 0, 0, real, unary) \
	X(COS, "Cos", 1, 1, 1, 0, 0, 0, real, unary) \
	X(TAN, "Tan", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ASIN, "Asin", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ACOS, "Acos", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ATAN, "Atan", 1, 1, 1, 0, 0, 0, real, unary) \
	X(SINH, "Sinh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(COSH, "Cosh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ASINH, "Asinh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ACOSH, "Acosh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(ATANH, "Atanh", 1, 1, 1, 0, 0, 0, real, unary) \
	X(NOT, "Not", 1, 1, 1, 0, 0, 0, truth, unary) \
	X(IS_NAN, "IsNaN", 1, 1, 1, 0, 0, 0, test, unary) \
	X(IS_INF, "IsInf", 1, 1, 1, 0, TN_A(DETECT), 0, test, unary) \
	X(CAST, "Cast", 1, 1, 1, 0, TN_A(TO), TN_A(TO), cast, cast) \
	X(DROPOUT, "Dropout", 1, 1, 2, 0, TN_A(RATIO) | TN_A(SEED), 0, dropout, dropout) /* -> Y, mask bool; training only */ \
	X(DROPOUT_GRAD, "DropoutGrad", 2, 2, 1, 0, TN_A(RATIO), 0, dropout_grad, dropout) /* (dY, mask) */ \
	/* (dY, X or Y) -> dX, f32 */ \
	X(ABS_GRAD, "AbsGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(EXP_GRAD, "ExpGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(LOG_GRAD, "LogGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SQRT_GRAD, "SqrtGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(RECIPROCAL_GRAD, "ReciprocalGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(SIGMOID_GRAD, "SigmoidGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(TANH_GRAD, "TanhGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(ERF_GRAD, "ErfGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SOFTPLUS_GRAD, "SoftplusGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SOFTSIGN_GRAD, "SoftsignGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ELU_GRAD, "EluGrad", 2, 2, 1, 0, TN_A(ALPHA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SELU_GRAD, "SeluGrad", 2, 2, 1, 0, TN_A(ALPHA) | TN_A(GAMMA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(CELU_GRAD, "CeluGrad", 2, 2, 1, 0, TN_A(ALPHA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(LEAKY_RELU_GRAD, "LeakyReluGrad", 2, 2, 1, 0, TN_A(ALPHA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(THRESHOLDED_RELU_GRAD, "ThresholdedReluGrad", 2, 2, 1, 0, TN_A(ALPHA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(HARD_SIGMOID_GRAD, "HardSigmoidGrad", 2, 2, 1, 0, TN_A(ALPHA) | TN_A(BETA), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(HARD_SWISH_GRAD, "HardSwishGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(GELU_GRAD, "GeluGrad", 2, 2, 1, 0, TN_A(MODE), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SHRINK_GRAD, "ShrinkGrad", 2, 2, 1, 0, TN_A(ALPHA) | TN_A(BIAS), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(CLIP_VALUES_GRAD, "ClipGrad", 2, 2, 1, 0, TN_A(MIN) | TN_A(MAX), 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SIN_GRAD, "SinGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(COS_GRAD, "CosGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(TAN_GRAD, "TanGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, Y) */ \
	X(ASIN_GRAD, "AsinGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ACOS_GRAD, "AcosGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ATAN_GRAD, "AtanGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(SINH_GRAD, "SinhGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(COSH_GRAD, "CoshGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ASINH_GRAD, "AsinhGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ACOSH_GRAD, "AcoshGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	X(ATANH_GRAD, "AtanhGrad", 2, 2, 1, 0, 0, 0, same_f32, unary_grad) /* (dY, X) */ \
	/* two elements to one; shapes broadcast as in NumPy */ \
	X(ADD, "Add", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(SUB, "Sub", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(MUL, "Mul", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(DIV, "Div", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(MINIMUM, "Min", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(MAXIMUM, "Max", 2, 2, 1, 0, 0, 0, arithmetic, binary) \
	X(MOD, "Mod", 2, 2, 1, 0, TN_A(FMOD), 0, arithmetic, binary) \
	X(POW, "Pow", 2, 2, 1, 0, 0, 0, pow, binary) \
	X(PRELU, "PRelu", 2, 2, 1, 0, 0, 0, prelu, binary) /* (X, slope) */ \
	X(AND, "And", 2, 2, 1, 0, 0, 0, logic, binary) \
	X(OR, "Or", 2, 2, 1, 0, 0, 0, logic, binary) \
	X(XOR, "Xor", 2, 2, 1, 0, 0, 0, logic, binary) \
	X(BIT_SHIFT, "BitShift", 2, 2, 1, 0, TN_A(DIRECTION), 0, bit_shift, binary) \
	X(EQUAL, "Equal", 2, 2, 1, 0, 0, 0, equal, binary) \
	X(LESS, "Less", 2, 2, 1, 0, 0, 0, compare, binary) \
	X(LESS_OR_EQUAL, "LessOrEqual", 2, 2, 1, 0, 0, 0, compare, binary) \
	X(GREATER, "Greater", 2, 2, 1, 0, 0, 0, compare, binary) \
	X(GREATER_OR_EQUAL, "GreaterOrEqual", 2, 2, 1, 0, 0, 0, compare, binary) \
	X(WHERE, "Where", 3, 3, 1, 0, 0, 0, where, where) /* (condition bool, X, Y) */ \
	X(BIAS_ADD, "BiasAdd", 2, 2, 1, 0, 0, 0, bias_add, plain) \
	X(ADD_N, "AddN", 1, TN_MANY, 1, 0, 0, 0, same_f32, apply) \
	/* over axes */ \
	X(REDUCE_SUM, "ReduceSum", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_MEAN, "ReduceMean", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_MAX, "ReduceMax", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_MIN, "ReduceMin", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_PROD, "ReduceProd", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_L1, "ReduceL1", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_L2, "ReduceL2", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_LOG_SUM, "ReduceLogSum", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_LOG_SUM_EXP, "ReduceLogSumExp", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(REDUCE_SUM_SQUARE, "ReduceSumSquare", 1, 1, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS), 0, reduce, reduce) \
	X(EXPAND_LIKE, "ExpandLike", 2, 2, 1, 0, TN_A(AXES) | TN_A(KEEP_DIMS) | TN_A(MEAN), 0, expand_like, reduce) /* (small, like): the reverse of a sum */ \
	X(SUM_TO, "SumTo", 1, 1, 1, 0, TN_A(SHAPE), TN_A(SHAPE), sum_to, reduce) /* the reverse of a broadcast from shape */ \
	X(ARG_MAX, "ArgMax", 1, 1, 1, 0, TN_A(AXIS) | TN_A(KEEP_DIMS) | TN_A(LAST), 0, arg, arg) \
	X(ARG_MIN, "ArgMin", 1, 1, 1, 0, TN_A(AXIS) | TN_A(KEEP_DIMS) | TN_A(LAST), 0, arg, arg) \
	X(CUM_SUM, "CumSum", 1, 1, 1, 0, TN_A(AXIS) | TN_A(EXCLUSIVE) | TN_A(REVERSE), 0, along_axis, cumsum) \
	X(TOP_K, "TopK", 1, 1, 2, 0, TN_A(AXIS) | TN_A(K) | TN_A(LARGEST), TN_A(K), top_k, top_k) /* -> values, indices i64; sorted */ \
	X(SOFTMAX, "Softmax", 1, 1, 1, 0, TN_A(AXIS), 0, softmax, softmax) \
	X(LOG_SOFTMAX, "LogSoftmax", 1, 1, 1, 0, TN_A(AXIS), 0, softmax, softmax) \
	X(HARDMAX, "Hardmax", 1, 1, 1, 0, TN_A(AXIS), 0, softmax, softmax) \
	X(SOFTMAX_GRAD, "SoftmaxGrad", 2, 2, 1, 0, TN_A(AXIS), 0, softmax_grad, softmax) /* (dY, Y) */ \
	X(LOG_SOFTMAX_GRAD, "LogSoftmaxGrad", 2, 2, 1, 0, TN_A(AXIS), 0, softmax_grad, softmax) /* (dY, Y) */ \
	/* losses: means, of rows whose label is not ignore_index where there are labels */ \
	X(SOFTMAX_XENT, "SoftmaxCrossEntropy", 2, 2, 3, 0, TN_A(IGNORE_INDEX), 0, softmax_xent, loss) /* (logits, labels) -> loss, correct i32, probs */ \
	X(SOFTMAX_XENT_GRAD, "SoftmaxCrossEntropyGrad", 3, 3, 1, 0, TN_A(IGNORE_INDEX), 0, softmax_xent_grad, loss) /* (dloss, probs, labels) */ \
	X(NLL, "NegativeLogLikelihood", 2, 2, 1, 0, TN_A(IGNORE_INDEX), 0, nll, loss) /* (log probs, labels) */ \
	X(NLL_GRAD, "NegativeLogLikelihoodGrad", 3, 3, 1, 0, TN_A(IGNORE_INDEX), 0, nll_grad, loss) /* (dloss, log probs, labels) */ \
	X(MSE, "MeanSquaredError", 2, 2, 1, 0, 0, 0, pair_loss, loss) /* (X, T) */ \
	X(MSE_GRAD, "MeanSquaredErrorGrad", 3, 3, 1, 0, 0, 0, pair_loss_grad, loss) /* (dloss, X, T) -> dX */ \
	X(SIGMOID_XENT, "SigmoidCrossEntropy", 2, 2, 1, 0, 0, 0, pair_loss, loss) /* (logits, targets in 0..1) */ \
	X(SIGMOID_XENT_GRAD, "SigmoidCrossEntropyGrad", 3, 3, 1, 0, 0, 0, pair_loss_grad, loss) /* (dloss, logits, targets) */ \
	/* movement */ \
	X(TRANSPOSE, "Transpose", 1, 1, 1, 0, TN_A(PERM), 0, transpose, transpose) /* no perm: dims reversed */ \
	X(SLICE, "Slice", 1, 1, 1, 0, TN_A(STARTS) | TN_A(ENDS) | TN_A(AXES) | TN_A(STEPS), TN_A(STARTS) | TN_A(ENDS), slice, slice) \
	X(SLICE_GRAD, "SliceGrad", 1, 1, 1, 0, TN_A(SHAPE) | TN_A(STARTS) | TN_A(ENDS) | TN_A(AXES) | TN_A(STEPS), TN_A(SHAPE) | TN_A(STARTS) | TN_A(ENDS), slice_grad, slice) /* dY into zeros */ \
	X(CONCAT, "Concat", 1, TN_MANY, 1, 0, TN_A(AXIS), TN_A(AXIS), concat, concat) \
	X(EXPAND, "Expand", 1, 1, 1, 0, TN_A(SHAPE), TN_A(SHAPE), expand, expand) \
	X(PAD, "Pad", 1, 1, 1, 0, TN_A(PADS) | TN_A(MODE) | TN_A(VALUE), TN_A(PADS), pad, pad) \
	X(TILE, "Tile", 1, 1, 1, 0, TN_A(REPEATS), TN_A(REPEATS), tile, expand) \
	X(DEPTH_TO_SPACE, "DepthToSpace", 1, 1, 1, 0, TN_A(BLOCK_SIZE) | TN_A(MODE), TN_A(BLOCK_SIZE), depth_to_space, transpose) \
	X(SPACE_TO_DEPTH, "SpaceToDepth", 1, 1, 1, 0, TN_A(BLOCK_SIZE), TN_A(BLOCK_SIZE), space_to_depth, transpose) \
	X(TRILU, "Trilu", 1, 1, 1, 0, TN_A(UPPER) | TN_A(K), 0, trilu, trilu) \
	X(REVERSE_SEQUENCE, "ReverseSequence", 2, 2, 1, 0, TN_A(BATCH_AXIS) | TN_A(TIME_AXIS), 0, reverse_sequence, reverse_sequence) /* (X, lengths) */ \
	X(RESIZE, "Resize", 1, 1, 1, 0, TN_A(SHAPE) | TN_A(MODE) | TN_A(SCALES) | TN_A(ROI) | TN_A(COORDS) | TN_A(NEAREST) | TN_A(CUBIC_COEFF) | TN_A(EXCLUDE_OUTSIDE) | TN_A(VALUE), TN_A(SHAPE), resize, resize) \
	/* by indices, which are i32 or i64 */ \
	X(GATHER, "Gather", 2, 2, 1, 0, TN_A(AXIS), 0, gather, gather) \
	X(GATHER_GRAD, "GatherGrad", 2, 2, 1, 0, TN_A(SHAPE) | TN_A(AXIS), TN_A(SHAPE), gather_grad, gather) /* (dY, indices) */ \
	X(GATHER_ELEMENTS, "GatherElements", 2, 2, 1, 0, TN_A(AXIS), 0, gather_elements, gather) \
	X(GATHER_ND, "GatherND", 2, 2, 1, 0, TN_A(BATCH_DIMS), 0, gather_nd, gather) \
	X(SCATTER_ELEMENTS, "ScatterElements", 3, 3, 1, 0, TN_A(AXIS) | TN_A(REDUCTION), 0, scatter_elements, scatter) \
	X(SCATTER_ND, "ScatterND", 3, 3, 1, 0, TN_A(REDUCTION), 0, scatter_nd, scatter) \
	X(ONE_HOT, "OneHot", 1, 1, 1, 0, TN_A(DEPTH) | TN_A(AXIS) | TN_A(ON_VALUE) | TN_A(OFF_VALUE) | TN_A(TO), TN_A(DEPTH), one_hot, one_hot) \
	/* layers */ \
	X(MATMUL, "MatMul", 2, 2, 1, 0, TN_A(TRANS_A) | TN_A(TRANS_B), 0, matmul, nn) /* (...,M,K) (...,K,N); batches broadcast */ \
	X(MATMUL_ROWS, "MatMulRows", 2, 2, 1, 0, 0, 0, matmul_rows, matmul_rows) /* (X, Y) -> X^T Y over all rows: dW of weights that all matrices share */ \
	X(CONV, "Conv", 2, 3, 1, 0, TN_CONV_ATTRS, 0, conv, nn) /* (X, W[, B]) */ \
	X(CONV_GRAD_DATA, "ConvGradData", 2, 2, 1, 0, TN_CONV_ATTRS | TN_A(SHAPE), TN_A(SHAPE), conv_grad_data, nn) /* (dY, W) -> dX */ \
	X(CONV_GRAD_WEIGHT, "ConvGradWeight", 2, 2, 1, 0, TN_CONV_ATTRS | TN_A(SHAPE), TN_A(SHAPE), conv_grad_weight, nn) /* (dY, X) -> dW */ \
	X(CONV_GRAD_BIAS, "ConvGradBias", 1, 1, 1, 0, 0, 0, conv_grad_bias, nn) /* dY -> dB */ \
	X(CONV_TRANSPOSE, "ConvTranspose", 2, 3, 1, 0, TN_CONV_ATTRS | TN_A(OUTPUT_PADDING), 0, conv_transpose, nn) /* (X, W[, B]) */ \
	X(MAX_POOL, "MaxPool", 1, 1, 1, 0, TN_POOL_ATTRS, TN_A(KERNEL_SHAPE), max_pool, nn) \
	X(MAX_POOL_INDICES, "MaxPoolIndices", 1, 1, 2, 0, TN_POOL_ATTRS | TN_A(STORAGE_ORDER), TN_A(KERNEL_SHAPE), max_pool_indices, nn) /* -> Y, where the maxima are (ONNX's MaxPool) */ \
	X(MAX_POOL_GRAD, "MaxPoolGrad", 2, 2, 1, 0, TN_POOL_ATTRS, 0, max_pool_grad, nn) /* (dY, X); no kernel_shape: of GlobalMaxPool */ \
	X(AVERAGE_POOL, "AveragePool", 1, 1, 1, 0, TN_POOL_ATTRS | TN_A(COUNT_INCLUDE_PAD), TN_A(KERNEL_SHAPE), average_pool, nn) \
	X(AVERAGE_POOL_GRAD, "AveragePoolGrad", 1, 1, 1, 0, TN_POOL_ATTRS | TN_A(COUNT_INCLUDE_PAD) | TN_A(SHAPE), TN_A(KERNEL_SHAPE) | TN_A(SHAPE), average_pool_grad, nn) /* dY */ \
	X(LP_POOL, "LpPool", 1, 1, 1, 0, TN_POOL_ATTRS | TN_A(P), TN_A(KERNEL_SHAPE), average_pool, nn) \
	X(GLOBAL_AVERAGE_POOL, "GlobalAveragePool", 1, 1, 1, 0, 0, 0, global_pool, nn) \
	X(GLOBAL_MAX_POOL, "GlobalMaxPool", 1, 1, 1, 0, 0, 0, global_pool, nn) \
	X(BATCH_NORM, "BatchNorm", 5, 5, 1, 0, TN_A(EPSILON), 0, batch_norm, nn) /* (X, scale, B, mean, var); inference */ \
	X(BATCH_NORM_TRAIN, "BatchNormTrain", 3, 5, 3, 0, TN_A(EPSILON), 0, batch_norm_train, nn) /* (X, scale, B[, mean, var: for evaluation]) -> Y, mean, variance (of the batch, biased) */ \
	X(BATCH_NORM_GRAD, "BatchNormGrad", 5, 5, 3, 0, TN_A(EPSILON), 0, batch_norm_grad, nn) /* (dY, X, scale, mean, variance) -> dX, dscale, dB */ \
	X(LRN, "LRN", 1, 1, 1, 0, TN_A(ALPHA) | TN_A(BETA) | TN_A(BIAS) | TN_A(SIZE), TN_A(SIZE), lrn, nn) \
	X(LRN_GRAD, "LRNGrad", 2, 2, 1, 0, TN_A(ALPHA) | TN_A(BETA) | TN_A(BIAS) | TN_A(SIZE), TN_A(SIZE), lrn_grad, nn) /* (dY, X) */ \
	X(INSTANCE_NORM, "InstanceNorm", 3, 3, 1, 0, TN_A(EPSILON), 0, instance_norm, nn) /* (X, scale, B) */ \
	X(INSTANCE_NORM_GRAD, "InstanceNormGrad", 3, 3, 3, 0, TN_A(EPSILON), 0, instance_norm_grad, nn) /* (dY, X, scale) -> dX, dscale, dB */ \
	X(LAYER_NORM, "LayerNorm", 3, 3, 3, 0, TN_A(AXIS) | TN_A(EPSILON), 0, layer_norm, nn) /* (X, scale, B) -> Y, mean, 1 / deviation */ \
	X(LAYER_NORM_GRAD, "LayerNormGrad", 5, 5, 3, 0, TN_A(AXIS) | TN_A(EPSILON), 0, layer_norm_grad, nn) /* (dY, X, scale, mean, 1 / deviation) -> dX, dscale, dB */ \
	X(LSTM, "LSTM", 4, 7, 4, 0, TN_RECURRENT_ATTRS, 0, lstm, nn) /* (X, W, R, B[, h0, c0[, P]]) -> Y, Y_h, Y_c, workspace */ \
	X(LSTM_GRAD, "LSTMGrad", 6, 11, 6, 0, TN_RECURRENT_ATTRS | TN_A(GIVEN), TN_A(GIVEN), lstm_grad, nn) /* (X, W, R, B[, h0, c0], Y, workspace[, dY][, dY_h][, dY_c]) -> dX, dW, dR, dB, dh0, dc0 */ \
	X(GRU, "GRU", 4, 5, 3, 0, TN_RECURRENT_ATTRS | TN_A(LINEAR_BEFORE_RESET), 0, gru, nn) /* (X, W, R, B[, h0]) -> Y, Y_h, workspace */ \
	X(GRU_GRAD, "GRUGrad", 6, 9, 5, 0, TN_RECURRENT_ATTRS | TN_A(LINEAR_BEFORE_RESET) | TN_A(GIVEN), TN_A(GIVEN), gru_grad, nn) /* (X, W, R, B[, h0], Y, workspace[, dY][, dY_h]) -> dX, dW, dR, dB, dh0 */ \
	X(RNN, "RNN", 4, 5, 2, 0, TN_RECURRENT_ATTRS, 0, rnn, nn) /* (X, W, R, B[, h0]) -> Y, Y_h */ \
	X(RNN_GRAD, "RNNGrad", 5, 8, 5, 0, TN_RECURRENT_ATTRS | TN_A(GIVEN), TN_A(GIVEN), rnn_grad, nn) /* (X, W, R, B[, h0], Y[, dY][, dY_h]) -> dX, dW, dR, dB, dh0 */ \
	/* (variable, slots..., [clip scale,] gradient...) -> variable: gradients are added from left to right; slots are written too */ \
	X(APPLY_SGD, "ApplySGD", 2, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS, TN_A(LR), apply, apply) \
	X(APPLY_MOMENTUM, "ApplyMomentum", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS | TN_A(MOMENTUM), TN_A(LR) | TN_A(MOMENTUM), apply, apply) /* (variable, momentum, ...) */ \
	X(APPLY_ADAGRAD, "ApplyAdagrad", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS | TN_A(EPSILON), TN_A(LR) | TN_A(EPSILON), apply, apply) /* (variable, accumulator, ...) */ \
	X(APPLY_ADAM, "ApplyAdam", 5, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS | TN_A(BETA1) | TN_A(BETA2) | TN_A(EPSILON), TN_A(LR) | TN_A(BETA1) | TN_A(BETA2) | TN_A(EPSILON), apply, apply) /* (variable, m, v, updates, ...); updates is a scalar that counts them */ \
	X(APPLY_RMSPROP, "ApplyRMSProp", 3, TN_MANY, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, TN_APPLY_ATTRS | TN_A(RHO) | TN_A(EPSILON) | TN_A(MOMENTUM), TN_A(LR) | TN_A(RHO) | TN_A(EPSILON), apply, apply) /* (variable, accumulator, [momentum, if it has that attribute,] ...) */ \
	X(APPLY_EMA, "ApplyEma", 2, TN_MANY, 1, TN_OPF_INPLACE, TN_A(MOMENTUM) | TN_A(GRAD_SCALE) | TN_A(FOR_DEVICE), TN_A(MOMENTUM), apply, apply) /* (variable, value...): v = momentum * v + (1 - momentum) * mean of the values; grad_scale = 1 / n */ \
	X(GRAD_NORM, "GradNorm", 1, TN_MANY, 1, TN_OPF_INTERNAL, TN_A(SCALE), 0, norm, apply) /* (gradient...) -> scalar: scale * sqrt(sum of all squares) */ \
	X(CLIP_SCALE, "ClipScale", 1, TN_MANY, 1, TN_OPF_INTERNAL, TN_A(CLIP_NORM), TN_A(CLIP_NORM), norm, apply) /* (norm...) -> scalar: min(1, clip_norm / (sqrt(sum of squares) + 1e-6)) */ \
	/* made by passes */ \
	/* range number `part` of the `parts` nearly equal ranges of rows: tn_part_axis, tn_part_begin */ \
	X(PART, "Part", 1, 1, 1, TN_OPF_VIEW | TN_OPF_INTERNAL, TN_A(PART) | TN_A(PARTS), TN_A(PART) | TN_A(PARTS), part, none) \
	/* parts, one behind the other along axis (0): copied, or received where they belong */ \
	X(JOIN, "Join", 1, TN_MANY, 1, TN_OPF_INTERNAL, TN_A(AXIS), 0, join, part) \
	X(JOIN_RECV, "JoinRecv", 1, TN_MANY, 1, TN_OPF_JOIN | TN_OPF_INTERNAL, TN_A(AXIS), 0, join, none) \
	/* rows of a table that a store keeps: indices -> Y; (dY, indices) */ \
	X(PULL_ROWS, "PullRows", 1, 1, 1, TN_OPF_STORE | TN_OPF_INTERNAL, TN_A(TABLE) | TN_A(ROWS) | TN_A(SIZE), TN_A(TABLE) | TN_A(ROWS) | TN_A(SIZE), pull_rows, none) \
	X(PUSH_ROWS, "PushRows", 2, 2, 0, TN_OPF_STORE | TN_OPF_INTERNAL, TN_A(TABLE) | TN_A(ROWS) | TN_A(GRAD_SCALE) | TN_A(LR) | TN_A(LR_END) | TN_A(LR_STEPS), TN_A(TABLE) | TN_A(ROWS), push_rows, none) \
	/* (sum, term) -> sum */ \
	X(ACCUMULATE, "Accumulate", 2, 2, 1, TN_OPF_INPLACE | TN_OPF_INTERNAL, 0, 0, accumulate, part) \
	X(SEND, "Send", 1, 1, 0, TN_OPF_SEND | TN_OPF_INTERNAL, TN_A(EDGE) | TN_A(PROLOGUE) | TN_A(STALE), TN_A(EDGE), send, none) \
	X(RECV, "Recv", 0, 0, 1, TN_OPF_RECV | TN_OPF_INTERNAL, TN_A(EDGE), TN_A(EDGE), source, none) \
	X(RDMA_SEND, "RdmaSend", 1, 1, 0, TN_OPF_SEND | TN_OPF_RDMA | TN_OPF_INTERNAL, TN_A(EDGE) | TN_A(PROLOGUE) | TN_A(STALE), TN_A(EDGE), send, none) \
	X(RDMA_SEND_DYNAMIC, "RdmaSendDynamic", 1, 1, 0, TN_OPF_SEND | TN_OPF_RDMA | TN_OPF_DYNAMIC | TN_OPF_INTERNAL, TN_A(EDGE) | TN_A(PROLOGUE) | TN_A(STALE), TN_A(EDGE), send, none) \
	X(RDMA_RECV_DYNAMIC, "RdmaRecvDynamic", 0, 0, 1, TN_OPF_RECV | TN_OPF_RDMA | TN_OPF_DYNAMIC | TN_OPF_INTERNAL, TN_A(EDGE), TN_A(EDGE), source, none) \
	X(RDMA_RECV, "RdmaRecv", 0, 0, 1, TN_OPF_RECV | TN_OPF_RDMA | TN_OPF_INTERNAL, TN_A(EDGE), TN_A(EDGE), source, none)
/* clang-format on */

typedef enum tn_op {
#define TN_OP_ENUM(op, name, lo, hi, outs, flags, attrs, required, rule, kern) TN_OP_##op,
	TN_OP_MAP(TN_OP_ENUM)
#undef TN_OP_ENUM
		TN_OP_COUNT
} tn_op;

typedef struct tn_op_info {
	const char *name;
	uint32_t in_min, in_max, outs;
	uint32_t flags; /* TN_OPF_* */
	tn_attr_mask attrs, required;
} tn_op_info;

extern const tn_op_info tn_op_table[TN_OP_COUNT];
extern const char *const tn_attr_names[TN_ATTR_COUNT];

static inline uint32_t tn_op_flags(tn_op op)
{
	return tn_op_table[op].flags;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape and type rules: what the infer*.c files share. A rule checks the inputs and attributes of a node that
 * is about to be added and says what its outputs are. Symbolic dims are equal only to themselves, so whatever
 * a rule accepts fits for every binding, with one exception that the kernel checks when it is made: a slice
 * of constant length from a symbolic dim needs that dim to be long enough.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c, ops_test.c, rules_test.c.
 */
#ifndef TN_GRAPH_INFER_H
#define TN_GRAPH_INFER_H

#include "graph/ir.h"

/* One rule for each name in the column `rule` of the op table. */
#define TN_INFER_RULE(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	tern_status tn_infer_##rule(tn_infer *x);
TN_OP_MAP(TN_INFER_RULE)
#undef TN_INFER_RULE

#define TN_TENSOR_TEXT_MAX (TN_NAME_MAX + TN_SHAPE_TEXT_MAX + 16)

static inline const tn_tensor *tn_infer_in(const tn_infer *x, uint32_t i)
{
	return &x->graph->tensors[x->node->in[i]];
}

/* TERN_E_SHAPE with the op's and the node's name before the text. */
__attribute__((format(printf, 2, 3))) tern_status tn_misfit(const tn_infer *x, const char *fmt, ...);
/* "'fc1/w' f32[784,256]" of input i; returns buf. */
const char *tn_tensor_text(const tn_infer *x, uint32_t i, char *buf, size_t size);

/* Sets of dtypes. */
#define TN_T(type) (1u << TERN_##type)
#define TN_T_REAL  (TN_T(F32) | TN_T(F64) | TN_T(F16) | TN_T(BF16))
#define TN_T_WHOLE (TN_T(I8) | TN_T(U8) | TN_T(I32) | TN_T(I64) | TN_T(U64))
#define TN_T_NUM   (TN_T_REAL | TN_T_WHOLE)
#define TN_T_ANY   (TN_T_NUM | TN_T(BOOL))
#define TN_T_INDEX (TN_T(I32) | TN_T(I64))

/* Inputs first .. first + n - 1 are of a dtype in the set. */
tern_status tn_want(const tn_infer *x, uint32_t first, uint32_t n, uint32_t dtypes);
static inline tern_status tn_want_f32(const tn_infer *x, uint32_t first, uint32_t n)
{
	return tn_want(x, first, n, TN_T(F32));
}
/* Inputs i and k have one dtype; or one dtype and shape. */
tern_status tn_want_one_type(const tn_infer *x, uint32_t i, uint32_t k);
tern_status tn_want_same(const tn_infer *x, uint32_t i, uint32_t k);
/* Output 0 is as input i. */
tern_status tn_yields(tn_infer *x, uint32_t i);

/* The attribute `shape`, checked: known symbols, no nonsense. */
tern_status tn_infer_shape_attr(const tn_infer *x, tern_shape *shape);
/* The attribute `axis`, not negative any more; below `rank`. */
tern_status tn_infer_axis(const tn_infer *x, int64_t dflt, uint32_t rank, uint32_t *axis);
/* The same for a node that was inferred: cannot fail. */
uint32_t tn_node_axis(const tn_node *node, int64_t dflt, uint32_t rank);

/* The shape of both after broadcasting; false if they do not fit. */
bool tn_shape_broadcast(const tern_shape *a, const tern_shape *b, tern_shape *out);

/*
 * What a Slice takes of a shape, per dim: from start[d], len[d] elements, step[d] apart. TERN_E_SHAPE for a
 * symbolic dim whose length cannot be known.
 */
typedef struct tn_slice {
	int64_t start[TERN_RANK_MAX], step[TERN_RANK_MAX];
	uint64_t len[TERN_RANK_MAX];
} tn_slice;
tern_status tn_slice_resolve(const tn_node *node, const tern_shape *in, tn_slice *slice);

#endif

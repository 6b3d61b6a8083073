/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks: how kernels go through tensors of any rank. A walk is prepared once from the dims of the result and,
 * per operand, a stride for each dim (0 where the operand is broadcast). Dims of size 1 are dropped and dims
 * that can be are merged, so that most walks are one inner loop:
 *
 *   (B,T,C) + (C)      one inner run of C, B*T outer steps, strides {C, 0} of the operands
 *   (B,C,H,W) + scalar one inner run of everything
 *
 * A run starts at at[k] of operand k and makes `n` steps of inner[k].
 *
 * Thread story: a walk is read-only once prepared. Tests: tests/unit/graph/kern_nodes_test.c.
 */
#ifndef TN_GRAPH_KERN_WALK_H
#define TN_GRAPH_KERN_WALK_H

#include "graph/kern.h"

#define TN_WALK_DIMS     16u /* Tile cuts each dim in two */
#define TN_WALK_OPERANDS 4u

typedef struct tn_walk {
	uint32_t rank; /* outer dims */
	uint32_t operands;
	uint64_t runs; /* product of dims: 0 if the result is empty */
	uint64_t dims[TN_WALK_DIMS];
	int64_t stride[TN_WALK_OPERANDS][TN_WALK_DIMS];
	uint64_t n; /* of a run */
	int64_t inner[TN_WALK_OPERANDS];
} tn_walk;

typedef struct tn_walk_at {
	int64_t at[TN_WALK_OPERANDS];
	uint64_t count[TN_WALK_DIMS];
} tn_walk_at;

/* strides[k] are operand k's, in elements, one for each of `rank` dims. */
void tn_walk_make(tn_walk *walk, const uint64_t *dims, uint32_t rank, uint32_t operands,
		  int64_t strides[][TN_WALK_DIMS]);
/* Of dense operands whose shapes broadcast to `out`; operand 0 is the result. */
void tn_walk_broadcast(tn_walk *walk, const tern_shape *out, const tern_shape *const *in, uint32_t n_in);
/* Row-major strides of a dense tensor. */
void tn_dense_strides(const uint64_t *dims, uint32_t rank, int64_t *strides);

/* To the next run. Call after each but the last. */
static inline void tn_walk_next(const tn_walk *w, tn_walk_at *p)
{
	for (uint32_t d = w->rank; d-- > 0;) {
		if (++p->count[d] < w->dims[d]) {
			for (uint32_t k = 0; k < w->operands; k++)
				p->at[k] += w->stride[k][d];
			return;
		}
		p->count[d] = 0;
		for (uint32_t k = 0; k < w->operands; k++)
			p->at[k] -= w->stride[k][d] * (int64_t)(w->dims[d] - 1);
	}
}

/*
 * Copies operand 1 to operand 0, elements of `size` bytes (1, 2, 4 or 8). The pointers are those of the
 * first elements.
 */
void tn_walk_copy(const tn_walk *walk, void *to, const void *from, uint64_t size);

/* A number as an element of a type, which `to` has room for: rounded, and wrapped if it is beyond the range. */
void tn_element_of(tern_dtype dtype, double x, void *to);

/* Bytes of one element; the dtypes of operands were checked when the node was inferred. */
static inline uint64_t tn_operand_size(const tn_operand *o)
{
	return tern_dtype_bytes(o->dtype);
}

static inline uint64_t tn_operand_elements(const tn_operand *o)
{
	return tn_dims_product(o->shape.dims, o->shape.rank);
}

/*
 * The loop that follows may be vectorised: no iteration depends on another. It holds when operands are the
 * same memory or do not overlap. (clang would rather warn than not obey, and checks at run time by itself.)
 */
#if defined(__clang__)
#define TN_IVDEP
#else
#define TN_IVDEP _Pragma("GCC ivdep")
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the oneDNN files: kernels that are a few primitives in a row. A primitive reads and writes operands
 * of the node or pieces of the kernel's scratch; where it wants another layout than the dense one that
 * operands have, a reorder into or out of scratch stands before or after it.
 *
 *   scratch | pieces, each 64-byte aligned | scratchpad of the primitive that runs (the largest of all) |
 *
 * Everything is made when the kernel is made; a run sets data handles and executes.
 * Thread story: see kern.h. Tests: tests/unit/graph/nn_conv_test.c.
 */
#ifndef TN_GRAPH_KERN_DNNL_H
#define TN_GRAPH_KERN_DNNL_H

#include "graph/kern_dnnl_api.h"
#include "graph/kern_nn.h"

struct tn_dnnl {
	dnnl_engine_t engine;
};

/* The status of a failed call of oneDNN's as one of ours, with text. */
tern_status tn_dnnl_failed(dnnl_status_t st, const char *what, const char *node);

/* Return at once from a function that returns dnnl_status_t. */
#define DK_TRY(expr)                           \
	do {                                   \
		dnnl_status_t dk_st_ = (expr); \
		if (dk_st_ != dnnl_success)    \
			return dk_st_;         \
	} while (0)

typedef enum dk_where { DK_IN, DK_OUT, DK_PIECE, DK_PAD } dk_where;

typedef struct dk_place {
	dk_where where;
	uint64_t at; /* number of the operand; offset in scratch */
} dk_place;

#define DK_STEPS 8u
#define DK_ARGS  10u

typedef struct dk_arg {
	int arg; /* DNNL_ARG_* */
	dk_place place;
	tn_md_ref md;
} dk_arg;

typedef struct dk_step {
	dnnl_primitive_t primitive;
	uint32_t n;
	dnnl_exec_arg_t args[DK_ARGS];
	dk_place places[DK_ARGS];
	void *last[DK_ARGS]; /* handles that are set */
} dk_step;

typedef struct tn_dk {
	tn_kern base;
	const char *name;
	tn_dnnl *dnnl;
	dnnl_stream_t stream; /* its own: other kernels may run in other threads */
	uint64_t pieces, pad; /* bytes */
	uint32_t n_steps;
	dk_step steps[DK_STEPS];
	/* ConvTranspose: operand number `bias` is added to output 0 by channel; 0: none */
	uint32_t bias;
	int64_t bias_n, bias_c, bias_plane;
} tn_dk;

/* NULL: no memory. */
tn_dk *tn_dk_new(tn_dnnl *dnnl, const char *name);
void tn_dk_destroy(tn_kern *kern);
/* After the last step: the kernel is ready. */
void tn_dk_finish(tn_dk *k);
/* Append a primitive. Its descriptor stays the caller's. The scratchpad is added here. */
dnnl_status_t tn_dk_step(tn_dk *k, dnnl_primitive_desc_t pd, const dk_arg *args, uint32_t n);
dnnl_status_t tn_dk_reorder(tn_dk *k, dk_place from, tn_md_ref has, dk_place to, tn_md_ref want);
/* A piece of scratch. */
dk_place tn_dk_piece(tn_dk *k, uint64_t bytes);
/*
 * Operand `from`, dense as `plain`, as a primitive wants it: *used is the operand itself or a piece that a
 * reorder fills.
 */
dnnl_status_t tn_dk_bring(tn_dk *k, dk_place from, const tn_md *plain, tn_md_ref want, dk_place *used);
/* Where a primitive that is about to be added shall write for output `to`; and, after it, bring it there. */
dk_place tn_dk_aside(tn_dk *k, dk_place to, const tn_md *plain, tn_md_ref has);
dnnl_status_t tn_dk_deliver(tn_dk *k, dk_place from, tn_md_ref has, dk_place to, const tn_md *plain);
/* What a primitive descriptor chose. */
tn_md_ref tn_dk_wants(dnnl_primitive_desc_t pd, dnnl_query_t what);
/* As tern_status: *kern is k, or NULL where oneDNN does not implement it; k is gone then. */
tern_status tn_dk_result(tn_dk *k, dnnl_status_t st, tn_kern **kern);

#endif

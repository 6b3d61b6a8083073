/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: what computes a node, prepared once for fixed shapes and run at every step on memory that the
 * caller names, so that a gradient lands in registered memory and a weight is read in a receive slot.
 * Running allocates nothing and creates no primitive.
 *
 * MatMul comes from oneDNN (kern_dnnl.c); elementwise ops, reductions, moves and optimisers are plain C loops
 * that the compiler vectorises (the other kern_*.c). Backend PLAIN computes MatMul in plain C as well: a slow
 * twin that tests compare with. Results depend on the shapes, the number of threads and the
 * instruction set, never on addresses or timing.
 *
 * Thread story: a kernel runs in one thread at a time; several of one context may run in as many threads at once, each with
 * scratch of its own. Making and destroying belong to one thread, while nothing runs. Tests: tests/unit/graph/kern_test.c
 * against tests/ref.
 */
#ifndef TN_GRAPH_KERN_H
#define TN_GRAPH_KERN_H

#include "graph/ir.h"

typedef enum tn_backend { TN_BACKEND_DNNL, TN_BACKEND_PLAIN } tn_backend;

typedef struct tn_kern_ctx tn_kern_ctx;
typedef struct tn_kern tn_kern;

/* One operand as prepared. */
typedef struct tn_operand {
	tern_dtype dtype;
	tern_shape shape; /* not symbolic */
} tn_operand;

typedef struct tn_kern_desc {
	const tn_node *node; /* op, name and attributes; must outlive the kernel */
	const tn_operand *in;
	const tn_operand *out;
	/*
	 * The program only evaluates: BatchNormTrain that has running statistics normalises by them (and leaves its
	 * outputs 1 and 2 alone), Dropout lets everything through.
	 */
	bool inference;
} tn_kern_desc;

/* in[i] and out[i] in the order of the node's inputs and outputs; inputs that the op writes are in `in`. */
typedef struct tn_kern_io {
	void *const *in;
	void *const *out;
	void *scratch; /* scratch_bytes of the kernel, 64-byte aligned */
	uint64_t step; /* for learning-rate schedules */
} tn_kern_io;

struct tn_kern {
	tern_status (*run)(tn_kern *kern, const tn_kern_io *io);
	void (*destroy)(tn_kern *kern);
	uint64_t scratch_bytes;
};

/* threads: how many one kernel may use, at least 1. */
tern_status tn_kern_ctx_create(tn_backend backend, uint32_t threads, tn_kern_ctx **ctx);
void tn_kern_ctx_destroy(tn_kern_ctx *ctx);
/*
 * Around runs in a thread: makes the kernels there use ctx's number of threads; leave() gives the thread its
 * own setting back. Cheap. enter() returns what leave() takes.
 */
int tn_kern_enter(tn_kern_ctx *ctx);
void tn_kern_leave(tn_kern_ctx *ctx, int token);

/* Prepare the kernel of a node. TERN_E_UNSUPPORTED names an op that is not computed (sources, views, sends). */
tern_status tn_kern_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **kern);
void tn_kern_destroy(tn_kern *kern);

/* ---- between the kernel files ---- */

/*
 * One maker for each name in the column `kern` of the op table. TERN_E_UNSUPPORTED for a dtype that the family
 * does not compute in.
 */
#define TN_KERN_MAKER(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	tern_status tn_kern_##kern##_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made);
TN_OP_MAP(TN_KERN_MAKER)
#undef TN_KERN_MAKER
/* TERN_E_UNSUPPORTED: no kernel for these dtypes. */
tern_status tn_kern_unsupported(const tn_kern_desc *desc);
/* NULL with the plain backend. */
struct tn_dnnl *tn_kern_ctx_dnnl(tn_kern_ctx *ctx);
uint32_t tn_kern_ctx_threads(const tn_kern_ctx *ctx);

/* kern_dnnl.c */
typedef struct tn_dnnl tn_dnnl;
tern_status tn_dnnl_create(tn_dnnl **dnnl);
void tn_dnnl_destroy(tn_dnnl *dnnl);
/* The thread's number of kernel threads; returns the one before. */
int tn_dnnl_set_threads(int threads);
const char *tn_dnnl_version(void);

/* A product of dims; shapes were checked when they were bound. */
static inline uint64_t tn_dims_product(const uint64_t *dims, uint32_t n)
{
	uint64_t p = 1;

	for (uint32_t i = 0; i < n; i++)
		p *= dims[i];
	return p;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the kernel of a node and keeps what kernels of one executor share. See kern.h.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_test.c.
 */
#include "graph/kern.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"

struct tn_kern_ctx {
	tn_backend backend;
	uint32_t threads;
	tn_dnnl *dnnl; /* NULL with the plain backend */
};

#define THREADS_MAX 1024u

tern_status tn_kern_ctx_create(tn_backend backend, uint32_t threads, tn_kern_ctx **ctx)
{
	tn_kern_ctx *c;
	tern_status st = TERN_OK;

	if (threads == 0 || threads > THREADS_MAX)
		return tn_fail(TERN_E_INVALID, "kernel threads: %u is not in 1..%u", threads, THREADS_MAX);
	c = calloc(1, sizeof(*c));
	if (!c)
		return tn_fail(TERN_E_NOMEM, "no memory for kernels");
	c->backend = backend;
	c->threads = threads;
	if (backend == TN_BACKEND_DNNL)
		st = tn_dnnl_create(&c->dnnl);
	if (st != TERN_OK) {
		free(c);
		return st;
	}
	*ctx = c;
	return TERN_OK;
}

void tn_kern_ctx_destroy(tn_kern_ctx *ctx)
{
	if (!ctx)
		return;
	tn_dnnl_destroy(ctx->dnnl);
	free(ctx);
}

int tn_kern_enter(tn_kern_ctx *ctx)
{
	return ctx->dnnl ? tn_dnnl_set_threads((int)ctx->threads) : 0;
}

void tn_kern_leave(tn_kern_ctx *ctx, int token)
{
	if (ctx->dnnl)
		tn_dnnl_set_threads(token);
}

tn_dnnl *tn_kern_ctx_dnnl(tn_kern_ctx *ctx)
{
	return ctx->dnnl;
}

uint32_t tn_kern_ctx_threads(const tn_kern_ctx *ctx)
{
	return ctx->threads;
}

tern_status tn_kern_none_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	(void)ctx;
	(void)made;
	return tn_fail(TERN_E_UNSUPPORTED, "%s '%s': this op has no kernel", tn_op_table[desc->node->op].name,
		       desc->node->name);
}

tern_status tn_kern_unsupported(const tn_kern_desc *desc)
{
	return tn_fail(TERN_E_UNSUPPORTED, "%s '%s': not computed in %s", tn_op_table[desc->node->op].name,
		       desc->node->name, desc->node->n_in ? tern_dtype_name(desc->in[0].dtype) : "no input");
}

/* ---- the table ---- */

typedef tern_status (*maker_fn)(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made);

static const maker_fn makers[TN_OP_COUNT] = {
#define MAKER_ENTRY(op, name, lo, hi, outs, flags, attrs, required, rule, kern) \
	[TN_OP_##op] = tn_kern_##kern##_create,
	TN_OP_MAP(MAKER_ENTRY)
#undef MAKER_ENTRY
};

/* What a node of a training graph is in a program that only evaluates: a kernel of another node. */
typedef struct inference_kern {
	tn_kern base;
	tn_kern *inner;
	tn_node node;
	tn_attr ratio;
} inference_kern;

static tern_status inference_run(tn_kern *kern, const tn_kern_io *io)
{
	tn_kern *inner = ((inference_kern *)kern)->inner;

	return inner->run(inner, io);
}

static void inference_destroy(tn_kern *kern)
{
	tn_kern_destroy(((inference_kern *)kern)->inner);
	free(kern);
}

static tern_status inference_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	inference_kern *k = calloc(1, sizeof(*k));
	tn_kern_desc inner = *desc;
	tern_status st;

	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	k->node = *desc->node;
	k->ratio = tn_attr_float(TN_ATTR_RATIO, 0.0);
	if (desc->node->op == TN_OP_BATCH_NORM_TRAIN) {
		k->node.op = TN_OP_BATCH_NORM;
		k->node.n_out = 1;
	} else {
		k->node.attrs = &k->ratio;
		k->node.n_attrs = 1;
	}
	inner.node = &k->node;
	inner.inference = false;
	st = tn_kern_create(ctx, &inner, &k->inner);
	if (st != TERN_OK) {
		free(k);
		return st;
	}
	k->base = (tn_kern){
		.run = inference_run, .destroy = inference_destroy, .scratch_bytes = k->inner->scratch_bytes};
	*made = &k->base;
	return TERN_OK;
}

tern_status tn_kern_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **kern)
{
	tn_op op = desc->node->op;

	TN_ASSERT(op < TN_OP_COUNT);
	if (desc->inference &&
	    (op == TN_OP_DROPOUT || (op == TN_OP_BATCH_NORM_TRAIN && desc->node->n_in == 5)))
		return inference_create(ctx, desc, kern);
	return makers[op](ctx, desc, kern);
}

void tn_kern_destroy(tn_kern *kern)
{
	if (kern)
		kern->destroy(kern);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the kernels of neural-network ops: oneDNN's where it has one, else plain C, which also is the slow
 * twin of the plain backend. MaxPoolGrad finds the maxima again in X, so that nothing has to be kept for it.
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/nn_conv_test.c, nn_pool_test.c, nn_norm_test.c against the double-precision twin in tests/ref.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/fail.h"

#define REAL       float
#define NN_SQRT(x) sqrtf(x)
#include "graph/kern_nn_body.h"

typedef struct nn_kern {
	tn_kern base;
	bool bias;
	tn_nn_window w;
	tn_nn_norm norm;
	tn_nn_lrn lrn;
} nn_kern;

/* ---- convolution ---- */

static tern_status run_conv(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_conv_forward(&k->w, io->in[0], io->in[1], k->bias ? io->in[2] : NULL, io->out[0]);
	return TERN_OK;
}

/* ConvGradData and ConvTranspose */
static tern_status run_conv_data(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_conv_data(&k->w, io->in[0], io->in[1], k->bias ? io->in[2] : NULL, io->out[0]);
	return TERN_OK;
}

static tern_status run_conv_weight(tn_kern *kern, const tn_kern_io *io)
{
	nn_conv_weight(&((const nn_kern *)kern)->w, io->in[0], io->in[1], io->out[0]);
	return TERN_OK;
}

static tern_status run_conv_bias(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_conv_bias(k->lrn.n, k->lrn.c, k->lrn.plane, io->in[0], io->out[0]);
	return TERN_OK;
}

/* ---- pools ---- */

static tern_status run_max_pool(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_pool_run(&k->w, NN_POOL_MAX, &(nn_pool_io){.x = io->in[0], .y = io->out[0]});
	return TERN_OK;
}

static tern_status run_max_pool_indices(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_pool_run(&k->w, NN_POOL_MAX,
		    &(nn_pool_io){.x = io->in[0], .y = io->out[0], .indices = io->out[1]});
	return TERN_OK;
}

static tern_status run_max_pool_grad(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_pool_run(&k->w, NN_POOL_MAX_GRAD,
		    &(nn_pool_io){.dy = io->in[0], .x = io->in[1], .dx = io->out[0]});
	return TERN_OK;
}

static tern_status run_sum_pool(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_pool_run(&k->w, NN_POOL_SUM, &(nn_pool_io){.x = io->in[0], .y = io->out[0]});
	return TERN_OK;
}

static tern_status run_average_pool_grad(tn_kern *kern, const tn_kern_io *io)
{
	const nn_kern *k = (const nn_kern *)kern;

	nn_pool_run(&k->w, NN_POOL_SUM_GRAD, &(nn_pool_io){.dy = io->in[0], .dx = io->out[0]});
	return TERN_OK;
}

static tern_status run_global_average(tn_kern *kern, const tn_kern_io *io)
{
	nn_global_average(&((const nn_kern *)kern)->w, io->in[0], io->out[0]);
	return TERN_OK;
}

/* ---- norms ---- */

static tern_status run_batch_norm(tn_kern *kern, const tn_kern_io *io)
{
	nn_norm_forward(&((const nn_kern *)kern)->norm, true, io->in[0], io->in[1], io->in[2], io->in[3],
			io->in[4], io->out[0]);
	return TERN_OK;
}

static tern_status run_batch_norm_train(tn_kern *kern, const tn_kern_io *io)
{
	nn_norm_forward(&((const nn_kern *)kern)->norm, false, io->in[0], io->in[1], io->in[2], io->out[1],
			io->out[2], io->out[0]);
	return TERN_OK;
}

static tern_status run_batch_norm_grad(tn_kern *kern, const tn_kern_io *io)
{
	nn_norm_backward(&((const nn_kern *)kern)->norm, io->in[0], io->in[1], io->in[2], io->in[3],
			 io->in[4], io->out[0], io->out[1], io->out[2]);
	return TERN_OK;
}

static tern_status run_instance_norm(tn_kern *kern, const tn_kern_io *io)
{
	nn_norm_forward(&((const nn_kern *)kern)->norm, false, io->in[0], io->in[1], io->in[2], NULL, NULL,
			io->out[0]);
	return TERN_OK;
}

static tern_status run_instance_norm_grad(tn_kern *kern, const tn_kern_io *io)
{
	nn_norm_backward(&((const nn_kern *)kern)->norm, io->in[0], io->in[1], io->in[2], NULL, NULL,
			 io->out[0], io->out[1], io->out[2]);
	return TERN_OK;
}

static tern_status run_layer_norm(tn_kern *kern, const tn_kern_io *io)
{
	nn_layer_forward(&((const nn_kern *)kern)->norm, io->in[0], io->in[1], io->in[2], io->out[0],
			 io->out[1], io->out[2]);
	return TERN_OK;
}

static tern_status run_layer_norm_grad(tn_kern *kern, const tn_kern_io *io)
{
	nn_layer_backward(&((const nn_kern *)kern)->norm, io->in[0], io->in[1], io->in[2], io->in[3],
			  io->in[4], io->out[0], io->out[1], io->out[2]);
	return TERN_OK;
}

static tern_status run_lrn(tn_kern *kern, const tn_kern_io *io)
{
	nn_lrn_forward(&((const nn_kern *)kern)->lrn, io->in[0], io->out[0]);
	return TERN_OK;
}

static tern_status run_lrn_grad(tn_kern *kern, const tn_kern_io *io)
{
	nn_lrn_backward(&((const nn_kern *)kern)->lrn, io->in[0], io->in[1], io->out[0], io->scratch);
	return TERN_OK;
}

/* ---- making ---- */

typedef tern_status (*run_fn)(tn_kern *kern, const tn_kern_io *io);
typedef enum nn_shape { NN_WINDOW, NN_NORM, NN_CHANNELS } nn_shape;

static const struct {
	run_fn run;
	nn_shape shape;
} run_table[TN_OP_COUNT] = {
	[TN_OP_CONV] = {run_conv, NN_WINDOW},
	[TN_OP_CONV_TRANSPOSE] = {run_conv_data, NN_WINDOW},
	[TN_OP_CONV_GRAD_DATA] = {run_conv_data, NN_WINDOW},
	[TN_OP_CONV_GRAD_WEIGHT] = {run_conv_weight, NN_WINDOW},
	[TN_OP_CONV_GRAD_BIAS] = {run_conv_bias, NN_CHANNELS},
	[TN_OP_MAX_POOL] = {run_max_pool, NN_WINDOW},
	[TN_OP_MAX_POOL_INDICES] = {run_max_pool_indices, NN_WINDOW},
	[TN_OP_MAX_POOL_GRAD] = {run_max_pool_grad, NN_WINDOW},
	[TN_OP_AVERAGE_POOL] = {run_sum_pool, NN_WINDOW},
	[TN_OP_AVERAGE_POOL_GRAD] = {run_average_pool_grad, NN_WINDOW},
	[TN_OP_LP_POOL] = {run_sum_pool, NN_WINDOW},
	[TN_OP_GLOBAL_AVERAGE_POOL] = {run_global_average, NN_WINDOW},
	[TN_OP_GLOBAL_MAX_POOL] = {run_max_pool, NN_WINDOW},
	[TN_OP_BATCH_NORM] = {run_batch_norm, NN_NORM},
	[TN_OP_BATCH_NORM_TRAIN] = {run_batch_norm_train, NN_NORM},
	[TN_OP_BATCH_NORM_GRAD] = {run_batch_norm_grad, NN_NORM},
	[TN_OP_INSTANCE_NORM] = {run_instance_norm, NN_NORM},
	[TN_OP_INSTANCE_NORM_GRAD] = {run_instance_norm_grad, NN_NORM},
	[TN_OP_LAYER_NORM] = {run_layer_norm, NN_NORM},
	[TN_OP_LAYER_NORM_GRAD] = {run_layer_norm_grad, NN_NORM},
	[TN_OP_LRN] = {run_lrn, NN_CHANNELS},
	[TN_OP_LRN_GRAD] = {run_lrn_grad, NN_CHANNELS},
};

static void nn_destroy(tn_kern *kern)
{
	free(kern);
}

tern_status tn_nn_plain_create(const tn_kern_desc *desc, tn_kern **kern)
{
	const tn_node *node = desc->node;
	nn_kern *k = calloc(1, sizeof(*k));

	TN_ASSERT(run_table[node->op].run != NULL);
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", node->name);
	k->base = (tn_kern){.run = run_table[node->op].run, .destroy = nn_destroy};
	k->bias = node->n_in > 2;
	if (run_table[node->op].shape == NN_WINDOW)
		tn_nn_window_of(desc, &k->w);
	else if (run_table[node->op].shape == NN_NORM)
		tn_nn_norm_of(desc, &k->norm);
	else
		tn_nn_lrn_of(desc, &k->lrn);
	if (node->op == TN_OP_LRN_GRAD)
		k->base.scratch_bytes = (uint64_t)(k->lrn.c * k->lrn.plane) * 2 * sizeof(float);
	*kern = &k->base;
	return TERN_OK;
}

static bool empty(const tn_kern_desc *desc)
{
	for (uint32_t i = 0; i < desc->node->n_in; i++) {
		if (tn_dims_product(desc->in[i].shape.dims, desc->in[i].shape.rank) == 0)
			return true;
	}
	return tn_dims_product(desc->out[0].shape.dims, desc->out[0].shape.rank) == 0;
}

static bool recurrent(tn_op op)
{
	return op == TN_OP_LSTM || op == TN_OP_LSTM_GRAD || op == TN_OP_GRU || op == TN_OP_GRU_GRAD ||
	       op == TN_OP_RNN || op == TN_OP_RNN_GRAD;
}

/*
 * On dense operands oneDNN's batch norm runs at a quarter of the speed of the loops here (measured, 2.6), so
 * that it needs more threads than that to win.
 */
static bool plain_pays(tn_kern_ctx *ctx, tn_op op)
{
	bool norm = op == TN_OP_BATCH_NORM || op == TN_OP_BATCH_NORM_TRAIN || op == TN_OP_BATCH_NORM_GRAD;

	return norm && tn_kern_ctx_threads(ctx) < 4;
}

tern_status tn_kern_nn_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	tn_dnnl *dnnl = tn_kern_ctx_dnnl(ctx);
	tern_status st = TERN_OK;
	int token;

	*made = NULL;
	token = tn_kern_enter(ctx);
	if (recurrent(desc->node->op))
		st = tn_rnn_create(dnnl, desc, made);
	else if (desc->node->op == TN_OP_MATMUL)
		st = tn_nn_matmul_create(dnnl, desc, made);
	else if (dnnl && !empty(desc) && !plain_pays(ctx, desc->node->op))
		st = tn_dnnl_nn_create(dnnl, desc, made);
	tn_kern_leave(ctx, token);
	if (st != TERN_OK || *made)
		return st;
	return tn_nn_plain_create(desc, made);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Neural-network ops in double precision: the arithmetic of the plain kernels, which PyTorch checks
 * (tests/torch), in another type, so that differences can be taken on it. Matrix products are loops.
 */
#include <stdlib.h>

#include "ref/ref_graph.h"

#define REAL       double
#define NN_SQRT(x) sqrt(x)
#include "graph/kern_nn_body.h"

typedef struct products {
	tn_nn_rnn r;
	bool gradient;
} products;

static void product(const tn_mm_desc *d, const double *a, const double *b, double *c)
{
	for (int64_t i = 0; i < d->m; i++) {
		for (int64_t j = 0; j < d->n; j++) {
			double sum = d->add ? c[i * d->c_row + j] : 0;

			for (int64_t p = 0; p < d->k; p++)
				sum += a[i * d->a_row + p * d->a_col] * b[p * d->b_row + j * d->b_col];
			c[i * d->c_row + j] = sum;
		}
	}
}

static void rnn_product(void *cx, uint32_t which, const double *a, const double *b, double *c)
{
	const products *p = cx;
	tn_mm_desc d = {0};

	if (tn_nn_rnn_mm(&p->r, p->gradient, which, &d))
		product(&d, a, b, c);
}

#define NN_EXP(x)             exp(x)
#define NN_TANH(x)            tanh(x)
#define NN_MM(...)            rnn_product(__VA_ARGS__)
#define NN_PACK(cx, which, b) (b)
#include "graph/kern_rnn_body.h"

#define OPERANDS 12

typedef struct operands {
	tn_operand in[OPERANDS], out[TN_OUTS_MAX];
	double *i[OPERANDS], *o[TN_OUTS_MAX];
	tn_kern_desc desc;
} operands;

static void take(const ref_graph *r, const tn_node *n, operands *x)
{
	*x = (operands){0};
	for (uint32_t k = 0; k < n->n_in; k++) {
		x->in[k] = (tn_operand){r->graph->tensors[n->in[k]].dtype, r->values[n->in[k]].shape};
		x->i[k] = r->values[n->in[k]].data;
	}
	for (uint32_t k = 0; k < n->n_out; k++) {
		x->out[k] = (tn_operand){r->graph->tensors[n->out[k]].dtype, r->values[n->out[k]].shape};
		x->o[k] = r->values[n->out[k]].data;
	}
	x->desc = (tn_kern_desc){.node = n, .in = x->in, .out = x->out};
}

static void matmul(const operands *x)
{
	tn_nn_matmul m;
	int64_t n = 1;

	tn_nn_matmul_of(&x->desc, &m);
	for (uint32_t d = 0; d < m.rank; d++)
		n *= m.dims[d];
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, a = 0, b = 0;

		for (uint32_t d = m.rank; d-- > 0; rest /= m.dims[d]) {
			a += rest % m.dims[d] * m.a_step[d];
			b += rest % m.dims[d] * m.b_step[d];
		}
		product(&m.one, x->i[0] + a, x->i[1] + b, x->o[0] + i * m.one.m * m.one.n);
	}
}

static void window(const operands *x)
{
	const tn_node *n = x->desc.node;
	const double *bias = n->n_in > 2 ? x->i[2] : NULL;
	tn_nn_window w;

	tn_nn_window_of(&x->desc, &w);
	switch (n->op) {
	case TN_OP_CONV:
		nn_conv_forward(&w, x->i[0], x->i[1], bias, x->o[0]);
		return;
	case TN_OP_CONV_TRANSPOSE:
	case TN_OP_CONV_GRAD_DATA:
		nn_conv_data(&w, x->i[0], x->i[1], bias, x->o[0]);
		return;
	case TN_OP_CONV_GRAD_WEIGHT:
		nn_conv_weight(&w, x->i[0], x->i[1], x->o[0]);
		return;
	case TN_OP_MAX_POOL_GRAD:
		nn_pool_run(&w, NN_POOL_MAX_GRAD, &(nn_pool_io){.dy = x->i[0], .x = x->i[1], .dx = x->o[0]});
		return;
	case TN_OP_AVERAGE_POOL_GRAD:
		nn_pool_run(&w, NN_POOL_SUM_GRAD, &(nn_pool_io){.dy = x->i[0], .dx = x->o[0]});
		return;
	case TN_OP_GLOBAL_AVERAGE_POOL:
		nn_global_average(&w, x->i[0], x->o[0]);
		return;
	case TN_OP_AVERAGE_POOL:
	case TN_OP_LP_POOL:
		nn_pool_run(&w, NN_POOL_SUM, &(nn_pool_io){.x = x->i[0], .y = x->o[0]});
		return;
	default:
		break;
	}
	if (n->n_out > 1) {
		int64_t count = w.n * w.c * tn_nn_plane(w.out);
		int64_t *indices = calloc((size_t)count + 1, sizeof(*indices));

		nn_pool_run(&w, NN_POOL_MAX, &(nn_pool_io){.x = x->i[0], .y = x->o[0], .indices = indices});
		for (int64_t i = 0; i < count; i++)
			x->o[1][i] = (double)indices[i];
		free(indices);
		return;
	}
	nn_pool_run(&w, NN_POOL_MAX, &(nn_pool_io){.x = x->i[0], .y = x->o[0]});
}

static void norm(const operands *x)
{
	tn_nn_norm q;

	tn_nn_norm_of(&x->desc, &q);
	switch (x->desc.node->op) {
	case TN_OP_BATCH_NORM:
		nn_norm_forward(&q, true, x->i[0], x->i[1], x->i[2], x->i[3], x->i[4], x->o[0]);
		return;
	case TN_OP_BATCH_NORM_TRAIN:
		nn_norm_forward(&q, false, x->i[0], x->i[1], x->i[2], x->o[1], x->o[2], x->o[0]);
		return;
	case TN_OP_BATCH_NORM_GRAD:
		nn_norm_backward(&q, x->i[0], x->i[1], x->i[2], x->i[3], x->i[4], x->o[0], x->o[1], x->o[2]);
		return;
	case TN_OP_INSTANCE_NORM:
		nn_norm_forward(&q, false, x->i[0], x->i[1], x->i[2], NULL, NULL, x->o[0]);
		return;
	case TN_OP_INSTANCE_NORM_GRAD:
		nn_norm_backward(&q, x->i[0], x->i[1], x->i[2], NULL, NULL, x->o[0], x->o[1], x->o[2]);
		return;
	case TN_OP_LAYER_NORM:
		nn_layer_forward(&q, x->i[0], x->i[1], x->i[2], x->o[0], x->o[1], x->o[2]);
		return;
	default:
		nn_layer_backward(&q, x->i[0], x->i[1], x->i[2], x->i[3], x->i[4], x->o[0], x->o[1], x->o[2]);
		return;
	}
}

static void channels(const operands *x)
{
	tn_nn_lrn q;

	tn_nn_lrn_of(&x->desc, &q);
	if (x->desc.node->op == TN_OP_CONV_GRAD_BIAS) {
		nn_conv_bias(q.n, q.c, q.plane, x->i[0], x->o[0]);
	} else if (x->desc.node->op == TN_OP_LRN) {
		nn_lrn_forward(&q, x->i[0], x->o[0]);
	} else {
		double *scratch = calloc((size_t)(2 * q.c * q.plane) + 1, sizeof(*scratch));

		nn_lrn_backward(&q, x->i[0], x->i[1], x->o[0], scratch);
		free(scratch);
	}
}

static void recurrent(const operands *x, bool gradient)
{
	products p = {.gradient = gradient};
	nn_rnn_io v = {.x = x->i[0], .w = x->i[1], .rw = x->i[2], .b = x->i[3], .cx = &p};
	uint32_t i = 4;

	tn_nn_rnn_of(&x->desc, &p.r);
	v.scratch = calloc(tn_nn_rnn_scratch(&p.r, gradient) + 1, sizeof(*v.scratch));
	v.h0 = p.r.has_state ? x->i[i++] : NULL;
	v.c0 = p.r.has_state && p.r.kind == TN_RNN_LSTM ? x->i[i++] : NULL;
	v.peep = p.r.has_peep ? x->i[i++] : NULL;
	if (gradient) {
		v.y = x->i[i++];
		v.ws = p.r.kind == TN_RNN_PLAIN ? NULL : x->i[i++];
		v.dy = p.r.has_dy ? x->i[i++] : NULL;
		v.dyh = p.r.has_dyh ? x->i[i++] : NULL;
		v.dyc = p.r.has_dyc ? x->i[i++] : NULL;
		v.dx = x->o[0];
		v.dw = x->o[1];
		v.drw = x->o[2];
		v.db = x->o[3];
		v.dh0 = x->o[4];
		v.dc0 = x->o[5];
		nn_rnn_backward(&p.r, &v);
	} else {
		v.y = x->o[0];
		v.yh = x->o[1];
		v.yc = x->o[2];
		v.ws = x->o[p.r.kind == TN_RNN_LSTM ? 3 : 2];
		if (p.r.kind == TN_RNN_LSTM)
			nn_lstm_forward(&p.r, &v);
		else if (p.r.kind == TN_RNN_GRU)
			nn_gru_forward(&p.r, &v);
		else
			nn_rnn_forward(&p.r, &v);
	}
	free(v.scratch);
}

/* ---- which ---- */

typedef enum family { NONE, MATMUL, WINDOW, NORM, CHANNELS, FORWARD, BACKWARD } family;

static const family families[TN_OP_COUNT] = {
	[TN_OP_MATMUL] = MATMUL,
	[TN_OP_CONV] = WINDOW,
	[TN_OP_CONV_TRANSPOSE] = WINDOW,
	[TN_OP_CONV_GRAD_DATA] = WINDOW,
	[TN_OP_CONV_GRAD_WEIGHT] = WINDOW,
	[TN_OP_MAX_POOL] = WINDOW,
	[TN_OP_MAX_POOL_INDICES] = WINDOW,
	[TN_OP_MAX_POOL_GRAD] = WINDOW,
	[TN_OP_AVERAGE_POOL] = WINDOW,
	[TN_OP_AVERAGE_POOL_GRAD] = WINDOW,
	[TN_OP_LP_POOL] = WINDOW,
	[TN_OP_GLOBAL_AVERAGE_POOL] = WINDOW,
	[TN_OP_GLOBAL_MAX_POOL] = WINDOW,
	[TN_OP_BATCH_NORM] = NORM,
	[TN_OP_BATCH_NORM_TRAIN] = NORM,
	[TN_OP_BATCH_NORM_GRAD] = NORM,
	[TN_OP_INSTANCE_NORM] = NORM,
	[TN_OP_INSTANCE_NORM_GRAD] = NORM,
	[TN_OP_LAYER_NORM] = NORM,
	[TN_OP_LAYER_NORM_GRAD] = NORM,
	[TN_OP_CONV_GRAD_BIAS] = CHANNELS,
	[TN_OP_LRN] = CHANNELS,
	[TN_OP_LRN_GRAD] = CHANNELS,
	[TN_OP_LSTM] = FORWARD,
	[TN_OP_GRU] = FORWARD,
	[TN_OP_RNN] = FORWARD,
	[TN_OP_LSTM_GRAD] = BACKWARD,
	[TN_OP_GRU_GRAD] = BACKWARD,
	[TN_OP_RNN_GRAD] = BACKWARD,
};

bool ref_nn_node(const ref_graph *r, const tn_node *n)
{
	operands x;

	if (families[n->op] == NONE)
		return false;
	take(r, n, &x);
	switch (families[n->op]) {
	case MATMUL:
		matmul(&x);
		break;
	case WINDOW:
		window(&x);
		break;
	case NORM:
		norm(&x);
		break;
	case CHANNELS:
		channels(&x);
		break;
	default:
		recurrent(&x, families[n->op] == BACKWARD);
		break;
	}
	return true;
}

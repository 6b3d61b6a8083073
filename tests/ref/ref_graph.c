/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See ref_graph.h. Written for reading, not for speed.
 */
#include "ref/ref_graph.h"
#include "ref/ref_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ref_value *in(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->in[i]];
}

static ref_value *out(const ref_graph *r, const tn_node *n, uint32_t i)
{
	return &r->values[n->out[i]];
}

/* ---- setting up ---- */

void ref_set(ref_graph *ref, uint32_t tensor, const void *data)
{
	ref_value *v = &ref->values[tensor];

	for (uint64_t i = 0; i < v->n; i++) {
		switch (ref->graph->tensors[tensor].dtype) {
		case TERN_I32:
			v->data[i] = ((const int32_t *)data)[i];
			break;
		case TERN_U8:
		case TERN_BOOL:
			v->data[i] = ((const uint8_t *)data)[i];
			break;
		case TERN_I8:
			v->data[i] = ((const int8_t *)data)[i];
			break;
		case TERN_I64:
			v->data[i] = (double)((const int64_t *)data)[i];
			break;
		case TERN_U64:
			v->data[i] = (double)((const uint64_t *)data)[i];
			break;
		case TERN_F64:
			v->data[i] = ((const double *)data)[i];
			break;
		default:
			v->data[i] = (double)((const float *)data)[i];
			break;
		}
	}
}

void ref_open(ref_graph *ref, const tern_graph *graph, uint64_t batch)
{
	*ref = (ref_graph){.graph = graph, .batch = batch};
	ref->values = calloc(graph->n_tensors + 1, sizeof(*ref->values));
	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const tn_node *node = &graph->nodes[graph->tensors[i].node];
		ref_value *v = &ref->values[i];

		v->shape = graph->tensors[i].shape;
		v->n = 1;
		for (uint32_t d = 0; d < v->shape.rank; d++) {
			if (tn_dim_symbolic(v->shape.dims[d]))
				v->shape.dims[d] = batch;
			v->n *= v->shape.dims[d];
		}
		v->data = calloc(v->n + 1, sizeof(double));
		if (node->op == TN_OP_CONSTANT)
			ref_set(ref, i, node->data);
		if (node->op == TN_OP_VARIABLE) {
			float *f = calloc(v->n + 1, sizeof(float));

			tn_init_fill(&node->init, node->name, &v->shape, f);
			ref_set(ref, i, f);
			free(f);
		}
	}
}

void ref_close(ref_graph *ref)
{
	for (uint32_t i = 0; i < ref->graph->n_tensors; i++)
		free(ref->values[i].data);
	free(ref->values);
}

/* ---- ops ---- */

/* Where element i of `large` goes in the tensor that is left when the dims in mask are reduced. */
static uint64_t reduced_index(const ref_value *large, uint32_t mask, uint64_t i)
{
	uint64_t at = 0, stride = 1;

	for (uint32_t d = large->shape.rank; d-- > 0;) {
		uint64_t x = i % large->shape.dims[d];

		i /= large->shape.dims[d];
		if (mask >> d & 1)
			continue;
		at += x * stride;
		stride *= large->shape.dims[d];
	}
	return at;
}

static void expand(const ref_graph *r, const tn_node *n)
{
	const ref_value *small = in(r, n, 0);
	ref_value *large = out(r, n, 0);
	double factor = tn_node_int(n, TN_ATTR_MEAN, 0) ? (double)small->n / (double)large->n : 1.0;
	uint32_t mask = 0;

	tn_reduce_mask(n, large->shape.rank, &mask);
	for (uint64_t i = 0; i < large->n; i++)
		large->data[i] = small->data[reduced_index(large, mask, i)] * factor;
}

/* y = f(inputs) element by element */
static double element(const ref_graph *r, const tn_node *n, uint64_t i)
{
	double a = in(r, n, 0)->data[i], sum = 0;

	switch (n->op) {
	case TN_OP_BIAS_ADD:
		return a + in(r, n, 1)->data[i % in(r, n, 1)->n];
	case TN_OP_RELU_GRAD:
		return in(r, n, 1)->data[i] > 0 ? a : 0;
	case TN_OP_SCALE:
		return a * tn_node_float(n, TN_ATTR_SCALE, 0);
	case TN_OP_ADD_N:
		for (uint32_t k = 0; k < n->n_in; k++)
			sum += in(r, n, k)->data[i];
		return sum;
	case TN_OP_IDENTITY:
	case TN_OP_RESHAPE:
		return a;
	default:
		fprintf(stderr, "ref_graph: op %s is missing\n", tn_op_table[n->op].name);
		exit(1);
	}
}

static void run_node(const ref_graph *r, const tn_node *n)
{
	if (ref_nn_node(r, n))
		return;
	switch (n->op) {
	case TN_OP_SOFTMAX_XENT:
	case TN_OP_NLL:
		ref_label_loss(r, n);
		break;
	case TN_OP_SOFTMAX_XENT_GRAD:
	case TN_OP_NLL_GRAD:
		ref_label_loss_grad(r, n);
		break;
	case TN_OP_MSE:
	case TN_OP_SIGMOID_XENT:
		ref_pair_loss(r, n);
		break;
	case TN_OP_MSE_GRAD:
	case TN_OP_SIGMOID_XENT_GRAD:
		ref_pair_loss_grad(r, n);
		break;
	case TN_OP_MATMUL_ROWS:
		ref_matmul_rows(r, n);
		break;
	case TN_OP_EXPAND_LIKE:
		expand(r, n);
		break;
	case TN_OP_APPLY_SGD:
	case TN_OP_APPLY_MOMENTUM:
	case TN_OP_APPLY_ADAGRAD:
	case TN_OP_APPLY_ADAM:
	case TN_OP_APPLY_RMSPROP:
	case TN_OP_APPLY_EMA:
		ref_apply(r, n);
		break;
	case TN_OP_GRAD_NORM:
	case TN_OP_CLIP_SCALE:
		ref_norm(r, n);
		break;
	default:
		if (ref_nodes(r, n) || ref_unary_grad(r, n))
			break;
		for (uint64_t i = 0; i < out(r, n, 0)->n; i++)
			out(r, n, 0)->data[i] = element(r, n, i);
		break;
	}
}

void ref_run(ref_graph *ref, uint32_t n_nodes)
{
	for (uint32_t i = 0; i < n_nodes; i++) {
		if (!(tn_op_flags(ref->graph->nodes[i].op) & TN_OPF_SOURCE))
			run_node(ref, &ref->graph->nodes[i]);
	}
}

/* ---- comparing ---- */

double ref_distance(const ref_value *b, const float *a)
{
	double worst = 0;

	for (uint64_t i = 0; i < b->n; i++) {
		double d = fabs((double)a[i] - b->data[i]) / (1.0 + fabs(b->data[i]));

		worst = d > worst || isnan(d) ? d : worst;
		if (isnan(d))
			return INFINITY;
	}
	return worst;
}

double ref_uniform(ref_rand *rand)
{
	rand->s = rand->s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(rand->s >> 40) * 0x1p-23 - 1.0;
}

void ref_fill(ref_rand *rand, float *data, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		data[i] = (float)ref_uniform(rand);
}

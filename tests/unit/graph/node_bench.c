/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See node_bench.h.
 */
#include "node_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cmocka_all.h"

uint32_t node_below(ref_rand *rand, uint32_t n)
{
	return (uint32_t)((ref_uniform(rand) + 1.0) * 0.5 * n);
}

tern_shape node_shape(ref_rand *rand, uint32_t rank_min, uint32_t rank_max, uint32_t dim_max)
{
	tern_shape s = {.rank = rank_min + node_below(rand, rank_max - rank_min + 1)};

	for (uint32_t d = 0; d < s.rank; d++)
		s.dims[d] = 1 + node_below(rand, s.rank > 4 ? (dim_max + 1) / 2 : dim_max);
	if (s.rank && node_below(rand, 20) == 0)
		s.dims[node_below(rand, s.rank)] = 0;
	return s;
}

uint64_t node_elements(const tern_shape *shape)
{
	return tn_dims_product(shape->dims, shape->rank);
}

double node_get(tern_dtype dtype, const void *data, uint64_t i)
{
	switch (dtype) {
	case TERN_F32:
		return (double)((const float *)data)[i];
	case TERN_F64:
		return ((const double *)data)[i];
	case TERN_F16:
		return (double)tn_f16_to_f32(((const uint16_t *)data)[i]);
	case TERN_BF16:
		return (double)tn_bf16_to_f32(((const uint16_t *)data)[i]);
	case TERN_I8:
		return ((const int8_t *)data)[i];
	case TERN_I32:
		return ((const int32_t *)data)[i];
	case TERN_I64:
		return (double)((const int64_t *)data)[i];
	case TERN_U64:
		return (double)((const uint64_t *)data)[i];
	default:
		return ((const uint8_t *)data)[i];
	}
}

void node_put(tern_dtype dtype, void *data, uint64_t i, double x)
{
	switch (dtype) {
	case TERN_F32:
		((float *)data)[i] = (float)x;
		break;
	case TERN_F64:
		((double *)data)[i] = x;
		break;
	case TERN_F16:
		((uint16_t *)data)[i] = tn_f16_from_f32((float)x);
		break;
	case TERN_BF16:
		((uint16_t *)data)[i] = tn_bf16_from_f32((float)x);
		break;
	case TERN_I8:
		((int8_t *)data)[i] = (int8_t)x;
		break;
	case TERN_I32:
		((int32_t *)data)[i] = (int32_t)x;
		break;
	case TERN_I64:
		((int64_t *)data)[i] = (int64_t)x;
		break;
	case TERN_U64:
		((uint64_t *)data)[i] = (uint64_t)x;
		break;
	default:
		((uint8_t *)data)[i] = (uint8_t)x;
		break;
	}
}

void node_open(node_bench *b, ref_rand *rand)
{
	*b = (node_bench){.rand = rand};
	assert_ok(tern_graph_create("bench", &b->graph));
}

void node_close(node_bench *b)
{
	for (uint32_t i = 0; i < b->n_in; i++)
		free(b->data[i]);
	for (uint32_t i = 0; i < TN_OUTS_MAX; i++)
		free(b->out[i]);
	tern_graph_destroy(b->graph);
}

static bool is_real(tern_dtype t)
{
	return t == TERN_F32 || t == TERN_F64 || t == TERN_F16 || t == TERN_BF16;
}

void node_input(node_bench *b, tern_dtype dtype, const tern_shape *shape, double lo, double hi)
{
	uint64_t n = node_elements(shape);
	char name[16];
	tern_value v;

	snprintf(name, sizeof(name), "in%u", b->n_in);
	assert_ok(tern_graph_placeholder(b->graph, name, dtype, shape, &v));
	b->in[b->n_in] = v;
	b->data[b->n_in] = malloc(n * tern_dtype_bytes(dtype));
	for (uint64_t i = 0; i < n; i++) {
		double x = lo + (ref_uniform(b->rand) + 1.0) * 0.5 * (hi - lo);

		node_put(dtype, b->data[b->n_in], i, is_real(dtype) ? x : floor(x));
	}
	b->n_in++;
}

tern_status node_add(node_bench *b, tn_op op, const tn_attr *attrs, uint32_t n_attrs)
{
	tn_node_spec spec = {
		.op = op, .name = "node", .in = b->in, .n_in = b->n_in, .attrs = attrs, .n_attrs = n_attrs};
	uint32_t node;
	tern_status st = tn_graph_add(b->graph, &spec, &node);

	if (st == TERN_OK)
		b->node = &b->graph->nodes[node];
	return st;
}

tern_status node_run(node_bench *b)
{
	tn_operand in[NODE_OPERANDS_MAX], out[TN_OUTS_MAX];
	tn_kern_desc desc = {.node = b->node, .in = in, .out = out};
	tn_kern_io io = {.in = b->data, .out = b->out};
	tn_kern_ctx *ctx;
	tn_kern *kern;
	tern_status st;

	for (uint32_t i = 0; i < b->n_in; i++)
		in[i] = (tn_operand){b->graph->tensors[b->in[i]].dtype, b->graph->tensors[b->in[i]].shape};
	for (uint32_t i = 0; i < b->node->n_out; i++) {
		const tn_tensor *t = &b->graph->tensors[b->node->out[i]];
		uint64_t bytes = node_elements(&t->shape) * tern_dtype_bytes(t->dtype);

		out[i] = (tn_operand){t->dtype, t->shape};
		if (!b->out[i])
			b->out[i] = malloc(bytes);
		memset(b->out[i], 0xa5, bytes);
	}
	assert_ok(tn_kern_ctx_create(TN_BACKEND_PLAIN, 1, &ctx));
	st = tn_kern_create(ctx, &desc, &kern);
	if (st == TERN_OK) {
		io.scratch = aligned_alloc(64, (kern->scratch_bytes + 127) / 64 * 64);
		st = kern->run(kern, &io);
		free(io.scratch);
		tn_kern_destroy(kern);
	}
	tn_kern_ctx_destroy(ctx);
	return st;
}

static void compare(const node_bench *b, const ref_value *want, uint32_t o, double tolerance)
{
	const tn_tensor *t = &b->graph->tensors[b->node->out[o]];
	char shape[TN_SHAPE_TEXT_MAX];

	for (uint64_t i = 0; i < want->n; i++) {
		double x = want->data[i], y = node_get(t->dtype, b->out[o], i);

		if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= tolerance * (1.0 + fabs(x)))
			continue;
		fail_msg("%s %s%s output %u element %llu: %.9g instead of %.9g",
			 tn_op_table[b->node->op].name, tern_dtype_name(t->dtype),
			 tn_shape_text(NULL, &t->shape, shape, sizeof(shape)), o, (unsigned long long)i, y,
			 x);
	}
}

void node_check(node_bench *b, double tolerance)
{
	ref_graph ref;

	assert_ok(node_run(b));
	ref_open(&ref, b->graph, 0);
	for (uint32_t i = 0; i < b->n_in; i++)
		ref_set(&ref, b->in[i], b->data[i]);
	ref_run(&ref, b->graph->n_nodes);
	for (uint32_t i = 0; i < b->node->n_out; i++)
		compare(b, &ref.values[b->node->out[i]], i, tolerance);
	ref_close(&ref);
	node_close(b);
}

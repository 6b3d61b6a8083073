/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See nn_case.h.
 */
#include "nn_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ref/ref_graph.h"

void nn_attr_int(op_case *c, tn_attr_key key, int64_t v)
{
	c->attrs[c->n_attrs++] = tn_attr_int(key, v);
}

void nn_attr_ints(op_case *c, tn_attr_key key, uint32_t n, const int64_t *v)
{
	tn_attr *a = &c->attrs[c->n_attrs++];

	*a = (tn_attr){.key = key};
	a->u.ints.n = n;
	memcpy(a->u.ints.v, v, n * sizeof(*v));
}

void nn_attr_shape(op_case *c, const tern_shape *s)
{
	nn_attr_ints(c, TN_ATTR_SHAPE, s->rank, (const int64_t *)s->dims);
}

void nn_window_attrs(op_case *c, const nn_window *v)
{
	nn_attr_ints(c, TN_ATTR_STRIDES, v->nd, v->stride);
	nn_attr_ints(c, TN_ATTR_DILATIONS, v->nd, v->dil);
	nn_attr_ints(c, TN_ATTR_PADS, 2 * v->nd, v->pads);
}

static uint64_t elements(const tern_shape *s)
{
	return tn_dims_product(s->dims, s->rank);
}

/* skew: bytes off the 64-byte alignment; the block starts at the multiple of 128 below. */
static void *place(uint64_t bytes, uint64_t skew)
{
	char *p = aligned_alloc(128, (bytes + skew + 255) / 128 * 128);

	assert_non_null(p);
	memset(p, 0x7f, (bytes + skew + 255) / 128 * 128);
	return p + skew;
}

static void unplace(void *p)
{
	free((void *)((uintptr_t)p / 128 * 128));
}

tern_status nn_build(const op_case *c, nn_made *m)
{
	tn_node_spec spec = {.op = c->op,
			     .name = "node",
			     .in = m->in,
			     .n_in = c->n_in,
			     .attrs = c->attrs,
			     .n_attrs = c->n_attrs};
	uint32_t node;
	tern_status st;

	*m = (nn_made){0};
	assert_ok(tern_graph_create("nn", &m->graph));
	for (uint32_t i = 0; i < c->n_in; i++) {
		char name[16];

		snprintf(name, sizeof(name), "in%u", i);
		assert_ok(tern_graph_placeholder(m->graph, name, TERN_F32, &c->in[i], &m->in[i]));
	}
	st = tn_graph_add(m->graph, &spec, &node);
	if (st == TERN_OK)
		m->node = &m->graph->nodes[node];
	return st;
}

void nn_fill(const op_case *c, nn_made *m, uint64_t seed)
{
	ref_rand rand = {seed};

	for (uint32_t i = 0; i < c->n_in; i++) {
		uint64_t n = elements(&c->in[i]);
		float *x = place(n * 4, 0);

		ref_fill(&rand, x, n);
		for (uint64_t k = 0; k < n && c->positive == i + 1; k++)
			x[k] = fabsf(x[k]) + 0.3f;
		m->data[i] = x;
		m->ops_in[i] = (tn_operand){TERN_F32, c->in[i]};
	}
	for (uint32_t i = 0; i < m->node->n_out; i++) {
		const tn_tensor *t = &m->graph->tensors[m->node->out[i]];

		m->ops_out[i] = (tn_operand){t->dtype, t->shape};
		m->out[i] = place(elements(&t->shape) * 8, 0);
	}
}

void nn_run(nn_made *m, tn_backend backend, uint32_t threads)
{
	tn_kern_desc desc = {.node = m->node, .in = m->ops_in, .out = m->ops_out};
	tn_kern_io io = {.in = m->data, .out = m->out};
	tn_kern_ctx *ctx;
	tn_kern *kern;
	int token;

	assert_ok(tn_kern_ctx_create(backend, threads, &ctx));
	assert_ok(tn_kern_create(ctx, &desc, &kern));
	io.scratch = place(kern->scratch_bytes, 0);
	token = tn_kern_enter(ctx);
	assert_ok(kern->run(kern, &io));
	tn_kern_leave(ctx, token);
	unplace(io.scratch);
	tn_kern_destroy(kern);
	tn_kern_ctx_destroy(ctx);
}

/* max |a - b| over 1 + max |b|: sums that cancel are as exact as their parts. */
static double distance(const ref_value *b, const float *a)
{
	double far = 0, most = 0;

	for (uint64_t i = 0; i < b->n; i++) {
		double d = fabs((double)a[i] - b->data[i]);

		far = d > far || d != d ? d : far;
		most = fabs(b->data[i]) > most ? fabs(b->data[i]) : most;
	}
	return far / (1 + most);
}

static void compare(const nn_made *m, const ref_graph *ref, const char *how)
{
	for (uint32_t i = 0; i < m->node->n_out; i++) {
		const ref_value *want = &ref->values[m->node->out[i]];
		double d = 0;

		if (m->ops_out[i].dtype == TERN_F32) {
			d = distance(want, m->out[i]);
		} else {
			for (uint64_t k = 0; k < want->n; k++)
				d += fabs((double)((int64_t *)m->out[i])[k] - want->data[k]);
		}
		if (!(d < 1e-5))
			fail_msg("%s %s: output %u is off by %g", tn_op_table[m->node->op].name, how, i, d);
	}
}

void nn_close(const op_case *c, nn_made *m)
{
	for (uint32_t i = 0; i < c->n_in && m->data[i]; i++)
		unplace(m->data[i]);
	for (uint32_t i = 0; i < TN_OUTS_MAX; i++) {
		if (m->out[i])
			unplace(m->out[i]);
	}
	tern_graph_destroy(m->graph);
}

/* The same bits again, with operands elsewhere. */
static void check_bits(const op_case *c, nn_made *m)
{
	void *first[TN_OUTS_MAX];

	for (uint32_t i = 0; i < m->node->n_out; i++) {
		first[i] = m->out[i];
		m->out[i] = place(elements(&m->ops_out[i].shape) * 8, i == 1 ? 40 : 36); /* 1 may be i64 */
	}
	for (uint32_t i = 0; i < c->n_in; i++) {
		uint64_t bytes = elements(&c->in[i]) * 4;
		void *moved = place(bytes, 4 + 16 * (i % 4));

		memcpy(moved, m->data[i], bytes);
		unplace(m->data[i]);
		m->data[i] = moved;
	}
	nn_run(m, TN_BACKEND_DNNL, 4);
	for (uint32_t i = 0; i < m->node->n_out; i++) {
		assert_memory_equal(first[i], m->out[i],
				    elements(&m->ops_out[i].shape) * tern_dtype_bytes(m->ops_out[i].dtype));
		unplace(first[i]);
	}
}

static uint64_t n_checked; /* the seed of the next */

void nn_check(const op_case *c)
{
	ref_graph ref;
	nn_made m;

	assert_ok(nn_build(c, &m));
	nn_fill(c, &m, ++n_checked);
	ref_open(&ref, m.graph, 0);
	for (uint32_t i = 0; i < c->n_in; i++)
		ref_set(&ref, m.in[i], m.data[i]);
	ref_run(&ref, m.graph->n_nodes);
	nn_run(&m, TN_BACKEND_PLAIN, 1);
	compare(&m, &ref, "plain");
	nn_run(&m, TN_BACKEND_DNNL, 1);
	compare(&m, &ref, "oneDNN");
	nn_run(&m, TN_BACKEND_DNNL, 4);
	compare(&m, &ref, "oneDNN, four threads");
	check_bits(c, &m);
	ref_close(&ref);
	nn_close(c, &m);
}

void nn_refused(const op_case *c, const char *why)
{
	nn_made m;

	assert_status(nn_build(c, &m), TERN_E_SHAPE);
	if (!strstr(tern_detail(), why))
		fail_msg("\"%s\" is not in \"%s\"", why, tern_detail());
	nn_close(c, &m);
}

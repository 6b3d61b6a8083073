/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of neural-network ops: both backends, one thread and four, against the double-precision twin over many
 * shapes; the same bits in every run and at other addresses; what oneDNN must not be asked; what shape rules
 * refuse.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/kern.h"
#include "graph/kern_nn.h"
#include "ref/ref_graph.h"

#define INPUTS 12
#define S(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})

/* An op on placeholders. */
typedef struct op_case {
	tn_op op;
	uint32_t n_in, n_attrs;
	tern_shape in[INPUTS];
	tn_attr attrs[12];
	uint32_t positive; /* number of an input that must be above 0, plus 1 */
} op_case;

static void attr_int(op_case *c, tn_attr_key key, int64_t v)
{
	c->attrs[c->n_attrs++] = tn_attr_int(key, v);
}

static void attr_ints(op_case *c, tn_attr_key key, uint32_t n, const int64_t *v)
{
	tn_attr *a = &c->attrs[c->n_attrs++];

	*a = (tn_attr){.key = key};
	a->u.ints.n = n;
	memcpy(a->u.ints.v, v, n * sizeof(*v));
}

static void attr_shape(op_case *c, const tern_shape *s)
{
	attr_ints(c, TN_ATTR_SHAPE, s->rank, (const int64_t *)s->dims);
}

typedef struct made {
	tern_graph *graph;
	const tn_node *node;
	uint32_t in[INPUTS];
	void *data[INPUTS], *out[TN_OUTS_MAX];
	tn_operand ops_in[INPUTS], ops_out[TN_OUTS_MAX];
} made;

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

static tern_status build(const op_case *c, made *m)
{
	tn_node_spec spec = {.op = c->op,
			     .name = "node",
			     .in = m->in,
			     .n_in = c->n_in,
			     .attrs = c->attrs,
			     .n_attrs = c->n_attrs};
	uint32_t node;
	tern_status st;

	*m = (made){0};
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

static void fill(const op_case *c, made *m, uint64_t seed)
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

static void run(made *m, tn_backend backend, uint32_t threads)
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

static void compare(const made *m, const ref_graph *ref, const char *how)
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

static void close_made(const op_case *c, made *m)
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
static void check_bits(const op_case *c, made *m)
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
	run(m, TN_BACKEND_DNNL, 4);
	for (uint32_t i = 0; i < m->node->n_out; i++) {
		assert_memory_equal(first[i], m->out[i],
				    elements(&m->ops_out[i].shape) * tern_dtype_bytes(m->ops_out[i].dtype));
		unplace(first[i]);
	}
}

static uint64_t n_checked;

static void check(const op_case *c)
{
	ref_graph ref;
	made m;

	assert_ok(build(c, &m));
	fill(c, &m, ++n_checked);
	ref_open(&ref, m.graph, 0);
	for (uint32_t i = 0; i < c->n_in; i++)
		ref_set(&ref, m.in[i], m.data[i]);
	ref_run(&ref, m.graph->n_nodes);
	run(&m, TN_BACKEND_PLAIN, 1);
	compare(&m, &ref, "plain");
	run(&m, TN_BACKEND_DNNL, 1);
	compare(&m, &ref, "oneDNN");
	run(&m, TN_BACKEND_DNNL, 4);
	compare(&m, &ref, "oneDNN, four threads");
	check_bits(c, &m);
	ref_close(&ref);
	close_made(c, &m);
}

static void refused(const op_case *c, const char *why)
{
	made m;

	assert_status(build(c, &m), TERN_E_SHAPE);
	if (!strstr(tern_detail(), why))
		fail_msg("\"%s\" is not in \"%s\"", why, tern_detail());
	close_made(c, &m);
}

/* ---- convolution ---- */

typedef struct conv_shape {
	uint32_t nd;
	uint64_t n, c, m, g;
	uint64_t in[3], k[3];
	int64_t stride[3], dil[3], pads[6];
} conv_shape;

static const conv_shape convs[] = {
	/* nd  n  c   m   g   in            k          stride     dil        pads */
	{1, 2, 3, 5, 1, {11}, {3}, {1}, {1}, {1, 1}},
	{1, 1, 4, 6, 2, {16}, {5}, {2}, {1}, {2, 1}},
	{1, 3, 2, 2, 1, {9}, {2}, {1}, {3}, {0, 3}},
	{2, 1, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
	{2, 2, 3, 16, 1, {13, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
	{2, 2, 16, 32, 1, {8, 8}, {1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
	{2, 1, 16, 16, 1, {9, 7}, {1, 7}, {1, 1}, {1, 1}, {0, 3, 0, 3}},
	{2, 2, 17, 19, 1, {10, 11}, {3, 2}, {2, 3}, {1, 1}, {1, 0, 0, 1}},
	{2, 1, 3, 24, 1, {23, 23}, {11, 11}, {4, 4}, {1, 1}, {2, 2, 2, 2}},
	{2, 2, 8, 8, 8, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
	{2, 1, 6, 9, 3, {8, 9}, {3, 3}, {1, 2}, {2, 1}, {2, 1, 2, 1}},
	{2, 1, 32, 32, 2, {6, 6}, {3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}},
	{2, 1, 4, 4, 1, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
	{3, 1, 2, 3, 1, {5, 6, 7}, {3, 2, 3}, {1, 1, 2}, {1, 1, 1}, {1, 0, 1, 1, 1, 1}},
	{3, 2, 4, 4, 2, {4, 4, 4}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
	{2, 1, 3, 4, 1, {4, 4}, {1, 1}, {1, 1}, {1, 1}, {2, 0, 1, 3}},
	{2, 1, 3, 4, 1, {4, 4}, {2, 2}, {2, 3}, {1, 1}, {3, 4, 3, 2}},
	{2, 0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
};

static void window_attrs(op_case *c, const conv_shape *v)
{
	attr_ints(c, TN_ATTR_STRIDES, v->nd, v->stride);
	attr_ints(c, TN_ATTR_DILATIONS, v->nd, v->dil);
	attr_ints(c, TN_ATTR_PADS, 2 * v->nd, v->pads);
}

static void conv_dims(const conv_shape *v, tern_shape *x, tern_shape *w, tern_shape *y)
{
	*x = (tern_shape){.rank = 2 + v->nd, .dims = {v->n, v->c}};
	*w = (tern_shape){.rank = 2 + v->nd, .dims = {v->m, v->c / v->g}};
	*y = (tern_shape){.rank = 2 + v->nd, .dims = {v->n, v->m}};
	for (uint32_t d = 0; d < v->nd; d++) {
		x->dims[2 + d] = v->in[d];
		w->dims[2 + d] = v->k[d];
		y->dims[2 + d] =
			(v->in[d] + v->pads[d] + v->pads[v->nd + d] - ((v->k[d] - 1) * v->dil[d] + 1)) /
				v->stride[d] +
			1;
	}
}

static void convolutions(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const conv_shape *v = &convs[i];
		tern_shape x, w, y;

		conv_dims(v, &x, &w, &y);
		for (uint32_t bias = 0; bias < 2; bias++) {
			op_case c = {.op = TN_OP_CONV, .n_in = 2 + bias, .in = {x, w, S(v->m)}};

			window_attrs(&c, v);
			attr_int(&c, TN_ATTR_GROUP, (int64_t)v->g);
			check(&c);
		}
	}
}

static void convolution_gradients(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const conv_shape *v = &convs[i];
		tern_shape x, w, y;
		op_case data, weight, bias;

		conv_dims(v, &x, &w, &y);
		data = (op_case){.op = TN_OP_CONV_GRAD_DATA, .n_in = 2, .in = {y, w}};
		weight = (op_case){.op = TN_OP_CONV_GRAD_WEIGHT, .n_in = 2, .in = {y, x}};
		bias = (op_case){.op = TN_OP_CONV_GRAD_BIAS, .n_in = 1, .in = {y}};
		window_attrs(&data, v);
		window_attrs(&weight, v);
		attr_int(&data, TN_ATTR_GROUP, (int64_t)v->g);
		attr_int(&weight, TN_ATTR_GROUP, (int64_t)v->g);
		attr_shape(&data, &x);
		attr_shape(&weight, &w);
		check(&data);
		check(&weight);
		check(&bias);
	}
}

/* The same windows the other way round: x of one is y of the other. */
static void transposed_convolutions(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++) {
		const conv_shape *v = &convs[i];
		int64_t more[3] = {0};
		tern_shape x, w, y;

		conv_dims(v, &x, &w, &y);
		for (uint32_t d = 0; d < v->nd; d++)
			more[d] = (int64_t)(v->in[d] + v->pads[d] + v->pads[v->nd + d] -
					    ((v->k[d] - 1) * v->dil[d] + 1)) %
				  v->stride[d];
		for (uint32_t bias = 0; bias < 2; bias++) {
			op_case c = {.op = TN_OP_CONV_TRANSPOSE, .n_in = 2 + bias, .in = {y, w, S(v->c)}};
			made m;

			window_attrs(&c, v);
			attr_int(&c, TN_ATTR_GROUP, (int64_t)v->g);
			attr_ints(&c, TN_ATTR_OUTPUT_PADDING, v->nd, more);
			assert_ok(build(&c, &m));
			assert_true(tn_shape_equal(&m.graph->tensors[m.node->out[0]].shape, &x));
			close_made(&c, &m);
			check(&c);
		}
	}
}

static void convolutions_refused(void **state)
{
	op_case c = {.op = TN_OP_CONV, .n_in = 2, .in = {S(1, 4, 5, 5), S(4, 3, 3, 3)}};

	(void)state;
	refused(&c, "channels");
	c.in[1] = S(4, 4, 6, 3);
	refused(&c, "does not fit into dim 2");
	c.in[1] = S(4, 4, 3);
	refused(&c, "do not fit a window over 2 dims");
	c.in[1] = S(4, 4, 3, 3);
	attr_ints(&c, TN_ATTR_STRIDES, 2, (int64_t[]){1, 0});
	refused(&c, "below 1");
	c.n_attrs = 0;
	attr_ints(&c, TN_ATTR_PADS, 2, (int64_t[]){1, 1});
	refused(&c, "2 values, not 4");
	c.n_attrs = 0;
	attr_int(&c, TN_ATTR_GROUP, 3);
	refused(&c, "group 3");
	c.n_attrs = 0;
	c.n_in = 3;
	c.in[2] = S(5);
	refused(&c, "should be [4]");
	c = (op_case){.op = TN_OP_CONV_TRANSPOSE, .n_in = 2, .in = {S(1, 4, UINT64_C(1) << 46), S(4, 4, 3)}};
	attr_ints(&c, TN_ATTR_STRIDES, 1, (int64_t[]){INT32_MAX});
	refused(&c, "no output");
	c = (op_case){.op = TN_OP_CONV, .n_in = 2, .in = {S(1, 4), S(4, 4)}};
	refused(&c, "needs (N,C,...)");
	c = (op_case){.op = TN_OP_CONV_GRAD_DATA, .n_in = 2, .in = {S(1, 4, 4, 4), S(4, 4, 3, 3)}};
	attr_shape(&c, &S(1, 4, 5, 5));
	refused(&c, "should be [1,4,3,3]");
}

/* A symbolic batch is fine; a symbolic length only under windows that keep it. */
static void symbolic_dims(void **state)
{
	tern_graph *g;
	tern_value x, w, y[1];
	uint64_t batch, t;
	tern_attr pads = {.name = "pads", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {1, 1}};
	tern_value_info info;

	(void)state;
	assert_ok(tern_graph_create("g", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	assert_ok(tern_graph_symbol(g, "time", &t));
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, &S(batch, 3, t), &x));
	assert_ok(tern_graph_placeholder(g, "w", TERN_F32, &S(4, 3, 3), &w));
	assert_ok(tern_graph_node(g, "Conv", "keeps", (tern_value[]){x, w}, 2, &pads, 1, y, 1));
	assert_ok(tern_graph_value(g, y[0], &info));
	assert_true(tn_shape_equal(&info.shape, &S(batch, 4, t)));
	assert_status(tern_graph_node(g, "Conv", "shortens", (tern_value[]){x, w}, 2, NULL, 0, y, 1),
		      TERN_E_SHAPE);
	assert_non_null(strstr(tern_detail(), "symbolic"));
	tern_graph_destroy(g);
}

/* ---- pools ---- */

typedef struct pool_shape {
	conv_shape v;
	int64_t ceil_mode;
} pool_shape;

static const pool_shape pools[] = {
	{{1, 2, 3, 0, 0, {10}, {3}, {2}, {1}, {1, 0}}, 0},
	{{2, 2, 3, 0, 0, {8, 8}, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}}, 0},
	{{2, 2, 16, 0, 0, {13, 13}, {3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}}, 0},
	{{2, 1, 5, 0, 0, {9, 10}, {3, 2}, {1, 1}, {1, 1}, {1, 1, 1, 0}}, 0},
	{{2, 1, 5, 0, 0, {10, 9}, {3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}}, 1},
	{{2, 1, 5, 0, 0, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}}, 1},
	{{2, 1, 2, 0, 0, {5, 5}, {2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}}, 1},
	{{2, 1, 2, 0, 0, {8, 8}, {2, 2}, {1, 1}, {2, 3}, {1, 1, 1, 1}}, 0},
	{{2, 1, 2, 0, 0, {5, 5}, {5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}}, 0},
	{{2, 1, 2, 0, 0, {3, 3}, {2, 2}, {3, 3}, {1, 1}, {1, 1, 1, 1}}, 1},
	{{3, 1, 2, 0, 0, {5, 6, 7}, {2, 3, 2}, {2, 1, 2}, {1, 1, 1}, {1, 1, 0, 0, 1, 1}}, 0},
};

static void pool_attrs(op_case *c, const pool_shape *p)
{
	attr_ints(c, TN_ATTR_KERNEL_SHAPE, p->v.nd, (const int64_t *)p->v.k);
	window_attrs(c, &p->v);
	attr_int(c, TN_ATTR_CEIL_MODE, p->ceil_mode);
}

static tern_shape pool_input(const pool_shape *p)
{
	tern_shape x = {.rank = 2 + p->v.nd, .dims = {p->v.n, p->v.c}};

	memcpy(&x.dims[2], p->v.in, p->v.nd * sizeof(x.dims[0]));
	return x;
}

/* What the shape rule says. */
static tern_shape pool_output(op_case *c)
{
	tern_shape y;
	made m;

	assert_ok(build(c, &m));
	y = m.graph->tensors[m.node->out[0]].shape;
	close_made(c, &m);
	return y;
}

static void max_pools(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		op_case c = {.op = TN_OP_MAX_POOL, .n_in = 1, .in = {pool_input(&pools[i])}}, g;

		pool_attrs(&c, &pools[i]);
		check(&c);
		g = c;
		g.op = TN_OP_MAX_POOL_GRAD;
		g.n_in = 2;
		g.in[1] = g.in[0];
		g.in[0] = pool_output(&c);
		check(&g);
		c.op = TN_OP_MAX_POOL_INDICES;
		check(&c);
		attr_int(&c, TN_ATTR_STORAGE_ORDER, 1);
		check(&c);
	}
}

static void average_pools(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2 * sizeof(pools) / sizeof(pools[0]); i++) {
		tern_shape x = pool_input(&pools[i / 2]);
		op_case c = {.op = TN_OP_AVERAGE_POOL, .n_in = 1, .in = {x}}, g;

		pool_attrs(&c, &pools[i / 2]);
		attr_int(&c, TN_ATTR_COUNT_INCLUDE_PAD, i % 2);
		check(&c);
		g = c;
		g.op = TN_OP_AVERAGE_POOL_GRAD;
		g.in[0] = pool_output(&c);
		attr_shape(&g, &x);
		check(&g);
		c.op = TN_OP_LP_POOL;
		c.n_attrs--;
		attr_int(&c, TN_ATTR_P, 2 + i % 2);
		check(&c);
	}
}

static void global_pools(void **state)
{
	static const tern_shape shapes[] = {{3, {2, 3, 7}}, {4, {2, 16, 7, 7}}, {5, {1, 2, 3, 4, 5}}};

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		op_case c = {.op = TN_OP_GLOBAL_AVERAGE_POOL, .n_in = 1, .in = {shapes[i]}};

		check(&c);
		c.op = TN_OP_GLOBAL_MAX_POOL;
		check(&c);
		c = (op_case){.op = TN_OP_MAX_POOL_GRAD, .n_in = 2, .in = {pool_output(&c), shapes[i]}};
		check(&c);
	}
}

/* ceil_mode never makes a window that starts behind the input; ties go to the first element. */
static void pool_edges(void **state)
{
	op_case c = {.op = TN_OP_MAX_POOL, .n_in = 1, .in = {S(1, 1, 2)}}, g;
	static const float x[6] = {1, 3, 3, 3, 0, 3}, want[6] = {0, 2, 0, 0, 0, 1};
	made m;

	(void)state;
	attr_ints(&c, TN_ATTR_KERNEL_SHAPE, 1, (int64_t[]){1});
	attr_ints(&c, TN_ATTR_STRIDES, 1, (int64_t[]){3});
	attr_int(&c, TN_ATTR_CEIL_MODE, 1);
	assert_int_equal(pool_output(&c).dims[2], 1);
	assert_int_equal(tn_nn_out_dim(5, 2, 2, 1, 0, true, 0), 3);
	assert_int_equal(tn_nn_out_dim(5, 7, 1, 1, 1, false, 1), -1);
	g = (op_case){.op = TN_OP_MAX_POOL_GRAD, .n_in = 2, .in = {S(1, 1, 3), S(1, 1, 6)}};
	attr_ints(&g, TN_ATTR_KERNEL_SHAPE, 1, (int64_t[]){2});
	attr_ints(&g, TN_ATTR_STRIDES, 1, (int64_t[]){2});
	assert_ok(build(&g, &m));
	fill(&g, &m, 1);
	memcpy(m.data[1], x, sizeof(x));
	memcpy(m.data[0], (float[]){2, 0, 1}, 12);
	run(&m, TN_BACKEND_DNNL, 1);
	assert_memory_equal(m.out[0], want, sizeof(want));
	close_made(&g, &m);
}

/* ---- norms ---- */

static void batch_norms(void **state)
{
	static const tern_shape shapes[] = {{4, {4, 3, 5, 6}},  {4, {2, 16, 8, 8}},   {4, {3, 17, 3, 3}},
					    {3, {4, 5, 11}},    {5, {2, 3, 2, 3, 4}}, {2, {9, 7}},
					    {4, {1, 64, 1, 1}}, {4, {2, 32, 35, 35}}};

	(void)state;
	for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		tern_shape x = shapes[i], v = S(x.dims[1]);
		op_case c = {.op = TN_OP_BATCH_NORM, .n_in = 5, .in = {x, v, v, v, v}, .positive = 5};

		c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_EPSILON, 1e-3);
		check(&c);
		c.op = TN_OP_BATCH_NORM_GRAD;
		c.in[1] = x;
		check(&c);
		c.op = TN_OP_BATCH_NORM_TRAIN;
		c.n_in = 3;
		c.in[1] = v;
		check(&c);
		c.n_in = 5;
		check(&c);
		c.n_in = 4;
		refused(&c, "together or not at all");
	}
}

static void instance_and_layer_norms(void **state)
{
	static const tern_shape shapes[] = {{4, {2, 3, 5, 6}}, {3, {4, 5, 33}}, {5, {2, 3, 2, 3, 4}}};

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		tern_shape x = shapes[i], v = S(x.dims[1]);
		op_case c = {.op = TN_OP_INSTANCE_NORM, .n_in = 3, .in = {x, v, v}};

		check(&c);
		c = (op_case){.op = TN_OP_INSTANCE_NORM_GRAD, .n_in = 3, .in = {x, x, v}};
		check(&c);
		for (int64_t axis = 0; axis < (int64_t)x.rank; axis++) {
			tern_shape inner = {.rank = x.rank - (uint32_t)axis}, outer = x;

			for (uint32_t d = (uint32_t)axis; d < x.rank; d++) {
				inner.dims[d - axis] = x.dims[d];
				outer.dims[d] = 1;
			}
			c = (op_case){.op = TN_OP_LAYER_NORM, .n_in = 3, .in = {x, inner, inner}};
			attr_int(&c, TN_ATTR_AXIS, axis % 2 ? axis : axis - (int64_t)x.rank);
			check(&c);
			c = (op_case){.op = TN_OP_LAYER_NORM_GRAD,
				      .n_in = 5,
				      .in = {x, x, inner, outer, outer},
				      .positive = 5};
			attr_int(&c, TN_ATTR_AXIS, axis);
			check(&c);
		}
	}
}

static void response_norms(void **state)
{
	static const tern_shape shapes[] = {
		{4, {2, 16, 5, 6}}, {3, {1, 5, 7}}, {4, {1, 3, 4, 4}}, {2, {3, 9}}};

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		for (int64_t size = 1; size < 7; size++) {
			op_case c = {.op = TN_OP_LRN, .n_in = 1, .in = {shapes[i]}};

			attr_int(&c, TN_ATTR_SIZE, size);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_ALPHA, 0.3);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_BETA, 0.6);
			c.attrs[c.n_attrs++] = tn_attr_float(TN_ATTR_BIAS, 1.5);
			check(&c);
			c.op = TN_OP_LRN_GRAD;
			c.n_in = 2;
			c.in[1] = c.in[0];
			check(&c);
		}
	}
}

/* ---- MatMul over batches ---- */

static void batched_products(void **state)
{
	static const struct {
		tern_shape a, b; /* batch dims */
	} cases[] = {
		{{1, {3}}, {1, {3}}},          {{2, {2, 3}}, {2, {2, 3}}}, {{1, {4}}, {0, {0}}},
		{{0, {0}}, {1, {4}}},          {{2, {2, 3}}, {1, {3}}},    {{2, {2, 1}}, {2, {1, 3}}},
		{{3, {2, 1, 3}}, {2, {4, 1}}}, {{2, {1, 1}}, {2, {1, 1}}}, {{1, {0}}, {1, {0}}},
		{{3, {2, 3, 2}}, {2, {3, 2}}}, {{2, {2, 3}}, {2, {2, 1}}},
	};

	(void)state;
	for (uint32_t i = 0; i < 4 * sizeof(cases) / sizeof(cases[0]); i++) {
		tern_shape a = cases[i / 4].a, b = cases[i / 4].b;
		uint32_t ta = i & 1, tb = i >> 1 & 1;
		op_case c = {.op = TN_OP_MATMUL, .n_in = 2};

		a.dims[a.rank++] = ta ? 5 : 4;
		a.dims[a.rank++] = ta ? 4 : 5;
		b.dims[b.rank++] = tb ? 6 : 5;
		b.dims[b.rank++] = tb ? 5 : 6;
		c.in[0] = a;
		c.in[1] = b;
		attr_int(&c, TN_ATTR_TRANS_A, ta);
		attr_int(&c, TN_ATTR_TRANS_B, tb);
		check(&c);
	}
}

static void products_of_vectors(void **state)
{
	static const tern_shape cases[][2] = {{{1, {5}}, {1, {5}}},
					      {{1, {5}}, {2, {5, 6}}},
					      {{2, {4, 5}}, {1, {5}}},
					      {{1, {5}}, {3, {3, 5, 6}}},
					      {{4, {2, 3, 4, 5}}, {1, {5}}}};

	(void)state;
	for (uint32_t i = 0; i < 5; i++) {
		op_case c = {.op = TN_OP_MATMUL, .n_in = 2, .in = {cases[i][0], cases[i][1]}};

		check(&c);
	}
}

static void products_refused(void **state)
{
	op_case c = {.op = TN_OP_MATMUL, .n_in = 2, .in = {S(3, 5, 4), S(5, 6)}};

	(void)state;
	refused(&c, "inner dims");
	c.in[0] = S(2, 4, 5);
	c.in[1] = S(3, 5, 6);
	refused(&c, "do not broadcast");
	c.in[1] = S(5);
	attr_int(&c, TN_ATTR_TRANS_B, 1);
	refused(&c, "without a transpose");
}

/* ---- recurrent ---- */

typedef struct rnn_shape {
	uint64_t t, b, i, h;
} rnn_shape;

static const rnn_shape rnns[] = {{1, 1, 1, 1},  {3, 2, 5, 4}, {7, 3, 16, 17},
				 {4, 1, 3, 32}, {0, 2, 3, 4}, {2, 0, 3, 4}};

typedef struct cell {
	tn_op op, grad;
	uint64_t gates, slots, states;
} cell;

static const cell cells[] = {{TN_OP_RNN, TN_OP_RNN_GRAD, 1, 0, 1},
			     {TN_OP_GRU, TN_OP_GRU_GRAD, 3, 4, 1},
			     {TN_OP_LSTM, TN_OP_LSTM_GRAD, 4, 5, 2}};

/* how: bits 0-1 direction, 2 two biases, 3-4 states (none, for all, per row), 5 reset after / Relu / peepholes */
static void rnn_case(op_case *c, const cell *k, const rnn_shape *v, uint32_t how)
{
	uint64_t d = (how & 3) == TN_DIRECTION_BOTH ? 2 : 1, states = how >> 3 & 3;

	*c = (op_case){.op = k->op, .n_in = 4};
	c->in[0] = S(v->t, v->b, v->i);
	c->in[1] = S(d, k->gates * v->h, v->i);
	c->in[2] = S(d, k->gates * v->h, v->h);
	c->in[3] = S(d, (how >> 2 & 1 ? 2 : 1) * k->gates * v->h);
	for (uint64_t i = 0; i < k->states && states; i++)
		c->in[c->n_in++] = S(d, states == 1 ? 1 : v->b, v->h);
	attr_int(c, TN_ATTR_DIRECTION, how & 3);
	if (how >> 5 & 1 && k->op == TN_OP_RNN)
		attr_ints(c, TN_ATTR_ACTIVATIONS, 1, (int64_t[]){how & 4 ? TN_OP_SIGMOID : TN_OP_RELU});
	if (k->op == TN_OP_GRU)
		attr_int(c, TN_ATTR_LINEAR_BEFORE_RESET, how >> 5 & 1);
	if (how >> 5 & 1 && k->op == TN_OP_LSTM && states)
		c->in[c->n_in++] = S(d, 3 * v->h);
}

static bool rnn_how(uint32_t how)
{
	return (how & 3) < 3 && (how >> 3 & 3) < 3;
}

static void recurrent_layers(void **state)
{
	(void)state;
	for (uint32_t k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < sizeof(rnns) / sizeof(rnns[0]); i++) {
			for (uint32_t how = 0; how < 64; how++) {
				op_case c;

				if (!rnn_how(how))
					continue;
				rnn_case(&c, &cells[k], &rnns[i], how);
				check(&c);
			}
		}
	}
}

/* (inputs of the forward node, Y [, workspace] [, dY] [, dY_h] [, dY_c]) */
static void recurrent_gradients(void **state)
{
	(void)state;
	for (uint32_t k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < sizeof(rnns) / sizeof(rnns[0]); i++) {
			for (uint32_t how = 0; how < 64; how++) {
				const rnn_shape *v = &rnns[i];
				uint64_t d = (how & 3) == TN_DIRECTION_BOTH ? 2 : 1;
				uint32_t given = how >> 3 & 3 ? TN_GIVEN_STATE : 0;
				op_case c;

				if (!rnn_how(how) || (how >> 3 & 3) == 1 || (k == 2 && how >> 5 & 1))
					continue;
				rnn_case(&c, &cells[k], v, how);
				c.op = cells[k].grad;
				c.in[c.n_in++] = S(v->t, d, v->b, v->h);
				if (cells[k].slots)
					c.in[c.n_in++] = S(d, v->t, v->b, cells[k].slots * v->h);
				given |= how & 1 ? TN_GIVEN_DYH : TN_GIVEN_DY;
				given |= how & 4 ? TN_GIVEN_DY | TN_GIVEN_DYH : 0;
				given |= k == 2 && how & 2 ? TN_GIVEN_DYC : 0;
				if (given & TN_GIVEN_DY)
					c.in[c.n_in++] = S(v->t, d, v->b, v->h);
				if (given & TN_GIVEN_DYH)
					c.in[c.n_in++] = S(d, v->b, v->h);
				if (given & TN_GIVEN_DYC)
					c.in[c.n_in++] = S(d, v->b, v->h);
				attr_int(&c, TN_ATTR_GIVEN, given);
				check(&c);
			}
		}
	}
}

static void recurrent_layers_refused(void **state)
{
	op_case c;

	(void)state;
	rnn_case(&c, &cells[2], &rnns[1], 0);
	c.in[1] = S(1, 12, 5);
	refused(&c, "should be [1,16,5]");
	rnn_case(&c, &cells[2], &rnns[1], 0);
	c.in[3] = S(1, 17);
	refused(&c, "one or two vectors per gate");
	rnn_case(&c, &cells[2], &rnns[1], 2 << 3);
	c.n_in = 5;
	refused(&c, "together or not at all");
	rnn_case(&c, &cells[1], &rnns[1], 0);
	c.attrs[0].u.i = TN_DIRECTION_BOTH;
	refused(&c, "1 directions");
	rnn_case(&c, &cells[1], &rnns[1], 0);
	attr_int(&c, TN_ATTR_HIDDEN_SIZE, 5);
	refused(&c, "hidden_size");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(convolutions),
		cmocka_unit_test(convolution_gradients),
		cmocka_unit_test(transposed_convolutions),
		cmocka_unit_test(convolutions_refused),
		cmocka_unit_test(symbolic_dims),
		cmocka_unit_test(max_pools),
		cmocka_unit_test(average_pools),
		cmocka_unit_test(global_pools),
		cmocka_unit_test(pool_edges),
		cmocka_unit_test(batch_norms),
		cmocka_unit_test(instance_and_layer_norms),
		cmocka_unit_test(response_norms),
		cmocka_unit_test(batched_products),
		cmocka_unit_test(products_of_vectors),
		cmocka_unit_test(products_refused),
		cmocka_unit_test(recurrent_layers),
		cmocka_unit_test(recurrent_gradients),
		cmocka_unit_test(recurrent_layers_refused),
	};

	return RUN(tests);
}

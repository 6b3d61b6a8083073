/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel of both backends against the double-precision twin, on many shapes; the same bits whatever
 * the addresses; fused updates equal to their parts bit for bit; labels out of range.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/kern.h"
#include "ref/ref_graph.h"

#define OPERANDS_MAX 8

/* A graph of one node on placeholders (or variables, for Apply), with data in memory. */
typedef struct bench {
	tern_graph *graph;
	const tn_node *node;
	uint32_t n_in;
	uint32_t in[OPERANDS_MAX];
	void *data[OPERANDS_MAX];
	void *out[TN_OUTS_MAX];
	void *block[OPERANDS_MAX + TN_OUTS_MAX]; /* what data and out point into */
	uint32_t n_blocks;
	ref_rand rand;
} bench;

static void open_bench(bench *b, uint64_t seed)
{
	*b = (bench){.rand = {seed}};
	assert_ok(tern_graph_create("bench", &b->graph));
}

/* skew: bytes off the 64-byte alignment, a multiple of 4. */
static void *place(bench *b, uint64_t bytes, uint64_t skew)
{
	char *p = aligned_alloc(64, (bytes + skew + 127) / 64 * 64);

	assert_non_null(p);
	memset(p, 0, (bytes + skew + 127) / 64 * 64);
	b->block[b->n_blocks++] = p;
	return p + skew;
}

static void add_input(bench *b, tern_dtype dtype, tern_shape shape, bool variable)
{
	char name[16];
	tern_value v;
	uint64_t n = tn_dims_product(shape.dims, shape.rank);

	snprintf(name, sizeof(name), "in%u", b->n_in);
	if (variable)
		assert_ok(tern_graph_variable(b->graph, name, dtype, &shape, &(tern_init){0}, &v));
	else
		assert_ok(tern_graph_placeholder(b->graph, name, dtype, &shape, &v));
	b->in[b->n_in] = v;
	b->data[b->n_in] = place(b, n * 4, 0);
	for (uint64_t i = 0; i < n && dtype == TERN_I32; i++)
		((int32_t *)b->data[b->n_in])[i] = (int32_t)((ref_uniform(&b->rand) + 1) * 1.5); /* 0..2 */
	for (uint64_t i = 0; i < n && dtype == TERN_U8; i++)
		((uint8_t *)b->data[b->n_in])[i] = (uint8_t)((ref_uniform(&b->rand) + 1) * 1.5);
	if (dtype == TERN_F32)
		ref_fill(&b->rand, b->data[b->n_in], n);
	b->n_in++;
}

static void add_node(bench *b, tn_op op, const tn_attr *attrs, uint32_t n_attrs)
{
	tn_node_spec spec = {
		.op = op, .name = "node", .in = b->in, .n_in = b->n_in, .attrs = attrs, .n_attrs = n_attrs};
	uint32_t node;

	assert_ok(tn_graph_add(b->graph, &spec, &node));
	b->node = &b->graph->nodes[node];
}

static void close_bench(bench *b)
{
	for (uint32_t i = 0; i < b->n_blocks; i++)
		free(b->block[i]);
	tern_graph_destroy(b->graph);
}

static tern_status run_bench(bench *b, tn_backend backend, uint32_t threads, uint64_t step)
{
	tn_operand in[OPERANDS_MAX], out[TN_OUTS_MAX];
	tn_kern_desc desc = {.node = b->node, .in = in, .out = out};
	tn_kern_io io = {.in = b->data, .out = b->out, .step = step};
	tn_kern_ctx *ctx;
	tn_kern *kern;
	tern_status st;
	int token;

	for (uint32_t i = 0; i < b->n_in; i++)
		in[i] = (tn_operand){b->graph->tensors[b->in[i]].dtype, b->graph->tensors[b->in[i]].shape};
	for (uint32_t i = 0; i < b->node->n_out; i++) {
		const tn_tensor *t = &b->graph->tensors[b->node->out[i]];

		out[i] = (tn_operand){t->dtype, t->shape};
		if (tn_node_writes_input(b->node, 0))
			b->out[i] = b->data[0];
		else if (!b->out[i])
			b->out[i] = place(b, tn_dims_product(t->shape.dims, t->shape.rank) * 4, 0);
	}
	assert_ok(tn_kern_ctx_create(backend, threads, &ctx));
	assert_ok(tn_kern_create(ctx, &desc, &kern));
	io.scratch = aligned_alloc(64, (kern->scratch_bytes + 64) / 64 * 64);
	token = tn_kern_enter(ctx);
	st = kern->run(kern, &io);
	tn_kern_leave(ctx, token);
	free(io.scratch);
	tn_kern_destroy(kern);
	tn_kern_ctx_destroy(ctx);
	return st;
}

/* Runs on both backends and compares every output (and written input) with the twin. */
static void check_bench(bench *b, uint64_t step)
{
	for (int backend = 0; backend < 2; backend++) {
		ref_graph ref;

		ref_open(&ref, b->graph, 0);
		ref.step = step;
		for (uint32_t i = 0; i < b->n_in; i++)
			ref_set(&ref, b->in[i], b->data[i]);
		ref_run(&ref, b->graph->n_nodes);
		assert_ok(run_bench(b, backend ? TN_BACKEND_PLAIN : TN_BACKEND_DNNL, 1, step));
		for (uint32_t i = 0; i < b->node->n_out; i++) {
			const ref_value *want = &ref.values[b->node->out[i]];
			double d;

			if (b->graph->tensors[b->node->out[i]].dtype == TERN_I32) {
				assert_int_equal(*(int32_t *)b->out[i], (int32_t)want->data[0]);
				continue;
			}
			d = ref_distance(want, b->out[i]);
			if (!(d < 1e-5))
				fail_msg("%s output %u backend %d: off by %g", tn_op_table[b->node->op].name,
					 i, backend, d);
		}
		for (uint32_t i = 0; i < b->n_in && tn_node_writes_input(b->node, i); i++)
			assert_true(ref_distance(&ref.values[b->in[i]], b->data[i]) < 1e-5);
		ref_close(&ref);
	}
	close_bench(b);
}

#define S(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})
#define SCALAR ((tern_shape){0})

static void matmul(void **state)
{
	static const uint64_t sizes[][3] = {{1, 1, 1},   {1, 7, 3},    {5, 1, 4},     {3, 5, 1}, {2, 3, 4},
					    {17, 33, 9}, {64, 50, 10}, {10, 128, 70}, {0, 3, 2}, {2, 0, 3}};

	(void)state;
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (uint32_t t = 0; t < 4; t++) {
			uint64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2];
			tn_attr attrs[2] = {tn_attr_int(TN_ATTR_TRANS_A, t & 1),
					    tn_attr_int(TN_ATTR_TRANS_B, t >> 1)};
			bench b;

			open_bench(&b, i * 4 + t);
			add_input(&b, TERN_F32, t & 1 ? S(k, m) : S(m, k), false);
			add_input(&b, TERN_F32, t >> 1 ? S(n, k) : S(k, n), false);
			add_node(&b, TN_OP_MATMUL, attrs, 2);
			check_bench(&b, 0);
		}
	}
}

static void elementwise(void **state)
{
	static const struct {
		tn_op op;
		uint32_t n_in;
	} ops[] = {{TN_OP_RELU, 1},         {TN_OP_RELU_GRAD, 2}, {TN_OP_ADD, 2},
		   {TN_OP_ADD_N, 1},        {TN_OP_ADD_N, 5},     {TN_OP_MUL, 2},
		   {TN_OP_SOFTMAX_GRAD, 2}, {TN_OP_SCALE, 1},     {TN_OP_SOFTMAX, 1}};
	tn_attr scale = tn_attr_float(TN_ATTR_SCALE, 0.3);

	(void)state;
	for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		for (uint64_t n = 1; n < 4000; n = n * 3 + 1) {
			bench b;

			open_bench(&b, n);
			for (uint32_t k = 0; k < ops[i].n_in; k++)
				add_input(&b, TERN_F32, S(3, n), false);
			add_node(&b, ops[i].op, &scale, ops[i].op == TN_OP_SCALE ? 1 : 0);
			check_bench(&b, 0);
		}
	}
}

static void bias_add(void **state)
{
	bench b;

	(void)state;
	open_bench(&b, 1);
	add_input(&b, TERN_F32, S(4, 3, 37), false);
	add_input(&b, TERN_F32, S(37), false);
	add_node(&b, TN_OP_BIAS_ADD, NULL, 0);
	check_bench(&b, 0);
}

static void softmax_is_stable(void **state)
{
	bench b;
	float *x;

	(void)state;
	open_bench(&b, 1);
	add_input(&b, TERN_F32, S(2, 3), false);
	x = b.data[0];
	x[0] = 1000;
	x[1] = 1001;
	x[2] = -1000;
	add_node(&b, TN_OP_SOFTMAX, NULL, 0);
	check_bench(&b, 0);
}

static void cross_entropy(void **state)
{
	(void)state;
	for (uint64_t rows = 1; rows < 200; rows = rows * 3 + 2) {
		for (int u8 = 0; u8 < 2; u8++) {
			bench b;

			open_bench(&b, rows);
			add_input(&b, TERN_F32, S(rows, 3), false);
			add_input(&b, u8 ? TERN_U8 : TERN_I32, S(rows), false);
			add_node(&b, TN_OP_SOFTMAX_XENT, NULL, 0);
			check_bench(&b, 0);
			open_bench(&b, rows);
			add_input(&b, TERN_F32, SCALAR, false);
			add_input(&b, TERN_F32, S(rows, 3), false);
			add_input(&b, u8 ? TERN_U8 : TERN_I32, S(rows), false);
			add_node(&b, TN_OP_SOFTMAX_XENT_GRAD, NULL, 0);
			check_bench(&b, 0);
		}
	}
}

static void bad_labels_are_refused(void **state)
{
	static const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		bench b;

		open_bench(&b, 1);
		add_input(&b, TERN_F32, S(5, 3), false);
		add_input(&b, TERN_I32, S(5), false);
		((int32_t *)b.data[1])[4] = bad[i];
		add_node(&b, TN_OP_SOFTMAX_XENT, NULL, 0);
		assert_status(run_bench(&b, TN_BACKEND_PLAIN, 1, 0), TERN_E_INVALID);
		assert_non_null(strstr(tern_detail(), "row 4 is not in 0..2"));
		close_bench(&b);
	}
}

/* All subsets of axes of a rank-4 tensor, kept and dropped, sums and means, and the way back. */
static void reductions(void **state)
{
	tern_shape large = S(3, 4, 1, 5);

	(void)state;
	for (uint32_t mask = 0; mask < 16; mask++) {
		for (uint32_t v = 0; v < 4; v++) {
			tn_attr attrs[3] = {{.key = TN_ATTR_AXES},
					    tn_attr_int(TN_ATTR_KEEP_DIMS, v & 1),
					    tn_attr_int(TN_ATTR_MEAN, v >> 1)};
			tern_shape small;
			bench b;

			for (uint32_t d = 0; d < 4; d++) {
				if (mask >> d & 1)
					attrs[0].u.ints.v[attrs[0].u.ints.n++] = (int64_t)d - (v & 1 ? 4 : 0);
			}
			open_bench(&b, mask);
			add_input(&b, TERN_F32, large, false);
			add_node(&b, v >> 1 ? TN_OP_REDUCE_MEAN : TN_OP_REDUCE_SUM, attrs, 2);
			small = b.graph->tensors[b.node->out[0]].shape;
			check_bench(&b, 0);
			open_bench(&b, mask);
			add_input(&b, TERN_F32, small, false);
			add_input(&b, TERN_F32, large, false);
			add_node(&b, TN_OP_EXPAND_LIKE, attrs, 3);
			check_bench(&b, 0);
		}
	}
}

static uint32_t apply_attrs(tn_attr *attrs, bool momentum)
{
	uint32_t n = 0;

	attrs[n++] = tn_attr_float(TN_ATTR_LR, 0.1);
	attrs[n++] = tn_attr_float(TN_ATTR_LR_END, 0.01);
	attrs[n++] = tn_attr_int(TN_ATTR_LR_STEPS, 10);
	attrs[n++] = tn_attr_float(TN_ATTR_WEIGHT_DECAY, 0.02);
	attrs[n++] = tn_attr_float(TN_ATTR_GRAD_SCALE, 1.0 / 3);
	if (momentum)
		attrs[n++] = tn_attr_float(TN_ATTR_MOMENTUM, 0.9);
	return n;
}

static void optimisers(void **state)
{
	tn_attr attrs[8];

	(void)state;
	for (uint32_t momentum = 0; momentum < 2; momentum++) {
		for (uint64_t step = 0; step < 16; step += 5) {
			for (uint64_t n = 1; n < 5000; n = n * 4 + 1) {
				bench b;

				open_bench(&b, n);
				for (uint32_t i = 0; i <= momentum; i++)
					add_input(&b, TERN_F32, S(n), true);
				for (uint32_t i = 0; i < 3; i++)
					add_input(&b, TERN_F32, S(n), false);
				add_node(&b, momentum ? TN_OP_APPLY_MOMENTUM : TN_OP_APPLY_SGD, attrs,
					 apply_attrs(attrs, momentum));
				check_bench(&b, step);
			}
		}
	}
}

/* ApplyMomentum on 3 gradients = AddN, Scale, ApplyMomentum on one, bit for bit. */
static void fused_update_is_its_parts(void **state)
{
	enum { N = 3001 };
	tn_attr attrs[8], scale = tn_attr_float(TN_ATTR_SCALE, 1.0 / 3);
	uint32_t n_attrs = apply_attrs(attrs, true);
	bench fused, sum, scaled, apply;

	(void)state;
	open_bench(&fused, 7);
	for (uint32_t i = 0; i < 5; i++)
		add_input(&fused, TERN_F32, S(N), i < 2);
	add_node(&fused, TN_OP_APPLY_MOMENTUM, attrs, n_attrs);
	open_bench(&sum, 0);
	for (uint32_t i = 0; i < 3; i++) {
		add_input(&sum, TERN_F32, S(N), false);
		memcpy(sum.data[i], fused.data[2 + i], N * 4);
	}
	add_node(&sum, TN_OP_ADD_N, NULL, 0);
	open_bench(&apply, 0);
	for (uint32_t i = 0; i < 3; i++) {
		add_input(&apply, TERN_F32, S(N), i < 2);
		memcpy(apply.data[i], fused.data[i], N * 4);
	}
	for (uint32_t i = 0; i < n_attrs; i++) {
		if (attrs[i].key == TN_ATTR_GRAD_SCALE)
			attrs[i].u.f = 1.0;
	}
	add_node(&apply, TN_OP_APPLY_MOMENTUM, attrs, n_attrs);
	assert_ok(run_bench(&fused, TN_BACKEND_DNNL, 1, 3));
	assert_ok(run_bench(&sum, TN_BACKEND_DNNL, 1, 3));
	open_bench(&scaled, 0);
	add_input(&scaled, TERN_F32, S(N), false);
	memcpy(scaled.data[0], sum.out[0], N * 4);
	add_node(&scaled, TN_OP_SCALE, &scale, 1);
	assert_ok(run_bench(&scaled, TN_BACKEND_DNNL, 1, 3));
	memcpy(apply.data[2], scaled.out[0], N * 4);
	assert_ok(run_bench(&apply, TN_BACKEND_DNNL, 1, 3));
	assert_memory_equal(fused.data[0], apply.data[0], N * 4);
	assert_memory_equal(fused.data[1], apply.data[1], N * 4);
	close_bench(&fused);
	close_bench(&sum);
	close_bench(&scaled);
	close_bench(&apply);
}

/* Receive slots and feeds have other addresses in every step and process: the bits must not follow them. */
static void addresses_do_not_matter(void **state)
{
	static const uint64_t sizes[][3] = {{32, 784, 64}, {784, 32, 64}, {64, 100, 10}};

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		for (uint32_t t = 0; t < 4; t++) {
			uint64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2];
			tn_attr attrs[2] = {tn_attr_int(TN_ATTR_TRANS_A, t & 1),
					    tn_attr_int(TN_ATTR_TRANS_B, t >> 1)};
			bench b;
			float *first;

			open_bench(&b, i);
			add_input(&b, TERN_F32, t & 1 ? S(k, m) : S(m, k), false);
			add_input(&b, TERN_F32, t >> 1 ? S(n, k) : S(k, n), false);
			add_node(&b, TN_OP_MATMUL, attrs, 2);
			assert_ok(run_bench(&b, TN_BACKEND_DNNL, 1, 0));
			first = b.out[0];
			for (uint32_t o = 0; o < 2; o++) {
				void *moved = place(&b, (o ? k * n : m * k) * 4, 4 + 16 * o);
				uint64_t bytes = (o ? k * n : m * k) * 4;

				memcpy(moved, b.data[o], bytes);
				b.data[o] = moved;
			}
			b.out[0] = place(&b, m * n * 4, 36);
			assert_ok(run_bench(&b, TN_BACKEND_DNNL, 1, 0));
			assert_memory_equal(first, b.out[0], m * n * 4);
			close_bench(&b);
		}
	}
}

static void contexts_are_checked(void **state)
{
	tn_kern_ctx *ctx;

	(void)state;
	assert_status(tn_kern_ctx_create(TN_BACKEND_DNNL, 0, &ctx), TERN_E_INVALID);
	assert_status(tn_kern_ctx_create(TN_BACKEND_DNNL, 100000, &ctx), TERN_E_INVALID);
}

static void the_thread_keeps_its_setting(void **state)
{
	tn_kern_ctx *ctx;
	int before = tn_dnnl_set_threads(3), token;

	(void)state;
	assert_ok(tn_kern_ctx_create(TN_BACKEND_DNNL, 1, &ctx));
	token = tn_kern_enter(ctx);
	assert_int_equal(tn_dnnl_set_threads(1), 1);
	tn_kern_leave(ctx, token);
	assert_int_equal(tn_dnnl_set_threads(before), 3);
	tn_kern_ctx_destroy(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matmul),
		cmocka_unit_test(elementwise),
		cmocka_unit_test(bias_add),
		cmocka_unit_test(softmax_is_stable),
		cmocka_unit_test(cross_entropy),
		cmocka_unit_test(bad_labels_are_refused),
		cmocka_unit_test(reductions),
		cmocka_unit_test(optimisers),
		cmocka_unit_test(fused_update_is_its_parts),
		cmocka_unit_test(addresses_do_not_matter),
		cmocka_unit_test(contexts_are_checked),
		cmocka_unit_test(the_thread_keeps_its_setting),
	};

	return RUN(tests);
}

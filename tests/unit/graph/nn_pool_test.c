/* SPDX-License-Identifier: Apache-2.0 */
/* Pools, forward and backward, against the double-precision twin: nn_case.h says how. */
#include "nn_case.h"

typedef struct pool_shape {
	nn_window v;
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
	nn_attr_ints(c, TN_ATTR_KERNEL_SHAPE, p->v.nd, (const int64_t *)p->v.k);
	nn_window_attrs(c, &p->v);
	nn_attr_int(c, TN_ATTR_CEIL_MODE, p->ceil_mode);
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
	nn_made m;

	assert_ok(nn_build(c, &m));
	y = m.graph->tensors[m.node->out[0]].shape;
	nn_close(c, &m);
	return y;
}

static void max_pools(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		op_case c = {.op = TN_OP_MAX_POOL, .n_in = 1, .in = {pool_input(&pools[i])}}, g;

		pool_attrs(&c, &pools[i]);
		nn_check(&c);
		g = c;
		g.op = TN_OP_MAX_POOL_GRAD;
		g.n_in = 2;
		g.in[1] = g.in[0];
		g.in[0] = pool_output(&c);
		nn_check(&g);
		c.op = TN_OP_MAX_POOL_INDICES;
		nn_check(&c);
		nn_attr_int(&c, TN_ATTR_STORAGE_ORDER, 1);
		nn_check(&c);
	}
}

static void average_pools(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2 * sizeof(pools) / sizeof(pools[0]); i++) {
		tern_shape x = pool_input(&pools[i / 2]);
		op_case c = {.op = TN_OP_AVERAGE_POOL, .n_in = 1, .in = {x}}, g;

		pool_attrs(&c, &pools[i / 2]);
		nn_attr_int(&c, TN_ATTR_COUNT_INCLUDE_PAD, i % 2);
		nn_check(&c);
		g = c;
		g.op = TN_OP_AVERAGE_POOL_GRAD;
		g.in[0] = pool_output(&c);
		nn_attr_shape(&g, &x);
		nn_check(&g);
		c.op = TN_OP_LP_POOL;
		c.n_attrs--;
		nn_attr_int(&c, TN_ATTR_P, 2 + i % 2);
		nn_check(&c);
	}
}

static void global_pools(void **state)
{
	static const tern_shape shapes[] = {{3, {2, 3, 7}}, {4, {2, 16, 7, 7}}, {5, {1, 2, 3, 4, 5}}};

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		op_case c = {.op = TN_OP_GLOBAL_AVERAGE_POOL, .n_in = 1, .in = {shapes[i]}};

		nn_check(&c);
		c.op = TN_OP_GLOBAL_MAX_POOL;
		nn_check(&c);
		c = (op_case){.op = TN_OP_MAX_POOL_GRAD, .n_in = 2, .in = {pool_output(&c), shapes[i]}};
		nn_check(&c);
	}
}

/* ceil_mode never makes a window that starts behind the input; ties go to the first element. */
static void pool_edges(void **state)
{
	op_case c = {.op = TN_OP_MAX_POOL, .n_in = 1, .in = {S(1, 1, 2)}}, g;
	static const float x[6] = {1, 3, 3, 3, 0, 3}, want[6] = {0, 2, 0, 0, 0, 1};
	nn_made m;

	(void)state;
	nn_attr_ints(&c, TN_ATTR_KERNEL_SHAPE, 1, (int64_t[]){1});
	nn_attr_ints(&c, TN_ATTR_STRIDES, 1, (int64_t[]){3});
	nn_attr_int(&c, TN_ATTR_CEIL_MODE, 1);
	assert_int_equal(pool_output(&c).dims[2], 1);
	assert_int_equal(tn_nn_out_dim(5, 2, 2, 1, 0, true, 0), 3);
	assert_int_equal(tn_nn_out_dim(5, 7, 1, 1, 1, false, 1), -1);
	g = (op_case){.op = TN_OP_MAX_POOL_GRAD, .n_in = 2, .in = {S(1, 1, 3), S(1, 1, 6)}};
	nn_attr_ints(&g, TN_ATTR_KERNEL_SHAPE, 1, (int64_t[]){2});
	nn_attr_ints(&g, TN_ATTR_STRIDES, 1, (int64_t[]){2});
	assert_ok(nn_build(&g, &m));
	nn_fill(&g, &m, 1);
	memcpy(m.data[1], x, sizeof(x));
	memcpy(m.data[0], (float[]){2, 0, 1}, 12);
	nn_run(&m, TN_BACKEND_DNNL, 1);
	assert_memory_equal(m.out[0], want, sizeof(want));
	nn_close(&g, &m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(max_pools),
		cmocka_unit_test(average_pools),
		cmocka_unit_test(global_pools),
		cmocka_unit_test(pool_edges),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building graphs: what is accepted, what is refused with which words, and that a refused call changes
 * nothing. Shape and type inference op by op. The text form.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/ir.h"

#define SHAPE(...) \
	(&(tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})

static tern_graph *g;
static uint64_t batch;

static int setup(void **state)
{
	(void)state;
	assert_ok(tern_graph_create("test", &g));
	assert_ok(tern_graph_symbol(g, "batch", &batch));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_ok(tern_graph_check(g));
	tern_graph_destroy(g);
	return 0;
}

static tern_value feed(const char *name, tern_dtype dtype, const tern_shape *shape)
{
	tern_value v;

	assert_ok(tern_graph_placeholder(g, name, dtype, shape, &v));
	return v;
}

static tern_value node1(const char *op, const char *name, tern_value a)
{
	tern_value v;

	assert_ok(tern_graph_node(g, op, name, &a, 1, NULL, 0, &v, 1));
	return v;
}

/* The call must fail with this status and a text that has all of these words, and leave the graph alone. */
static void refused(tern_status expected, tern_status st, uint32_t nodes_before, const char *word1,
		    const char *word2)
{
	assert_int_equal(st, expected);
	assert_int_equal(g->n_nodes, nodes_before);
	if (!strstr(tern_detail(), word1) || !strstr(tern_detail(), word2))
		fail_msg("'%s' and '%s' are not both in: %s", word1, word2, tern_detail());
}

#define REFUSED(status, call, w1, w2)              \
	do {                                       \
		uint32_t n_ = g->n_nodes;          \
		refused(status, call, n_, w1, w2); \
	} while (0)

static void assert_shape(tern_value v, const tern_shape *want)
{
	tern_value_info info;

	assert_ok(tern_graph_value(g, v, &info));
	assert_true(tn_shape_equal(&info.shape, want));
}

static void names_and_numbers(void **state)
{
	tern_value x = feed("x", TERN_F32, SHAPE(batch, 3)), v;
	uint64_t again;

	(void)state;
	REFUSED(TERN_E_EXISTS, tern_graph_placeholder(g, "x", TERN_F32, SHAPE(1), &v), "x", "name");
	REFUSED(TERN_E_INVALID, tern_graph_placeholder(g, "", TERN_F32, SHAPE(1), &v), "name", "Placeholder");
	REFUSED(TERN_E_NOT_FOUND, tern_graph_node(g, "Convolve", "c", &x, 1, NULL, 0, &v, 1), "Convolve",
		"op");
	REFUSED(TERN_E_NOT_FOUND, tern_graph_node(g, "Send", "s", &x, 1, NULL, 0, NULL, 0), "Send", "op");
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "Relu", "r", (tern_value[]){x, x}, 2, NULL, 0, &v, 1), "r",
		"2");
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "Relu", "r", (tern_value[]){99}, 1, NULL, 0, &v, 1), "r",
		"tensor");
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "Scale", "s", &x, 1, NULL, 0, &v, 1), "s", "scale");
	REFUSED(TERN_E_INVALID,
		tern_graph_node(g, "Relu", "r", &x, 1, &(tern_attr){.name = "scale", .type = TERN_ATTR_FLOAT},
				1, &v, 1),
		"Relu", "scale");
	REFUSED(TERN_E_INVALID,
		tern_graph_node(g, "Scale", "r", &x, 1, &(tern_attr){.name = "scale", .type = TERN_ATTR_INT},
				1, &v, 1),
		"scale", "type");
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "Relu", "r", &x, 1, NULL, 0, (tern_value[2]){0}, 2),
		"Relu", "1");
	assert_ok(tern_graph_symbol(g, "batch", &again));
	assert_int_equal(again, batch);
	assert_true(tern_dim_is_symbolic(batch));
	assert_false(tern_dim_is_symbolic(1u << 30));
	for (uint32_t i = 1; i < TN_SYMBOLS_MAX; i++) {
		char name[8];

		snprintf(name, sizeof(name), "s%u", i);
		assert_ok(tern_graph_symbol(g, name, &again));
	}
	assert_status(tern_graph_symbol(g, "one more", &again), TERN_E_LIMIT);
}

static void many_names_are_found(void **state)
{
	tern_value x = feed("x", TERN_F32, SHAPE(2));
	char name[32];

	(void)state;
	for (uint32_t i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		x = node1("Relu", name, x);
	}
	for (uint32_t i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(tn_graph_find(g, name), i + 1);
	}
	assert_int_equal(tn_graph_find(g, "n5000"), TN_NONE);
}

static void matmul_shapes(void **state)
{
	tern_value x = feed("x", TERN_F32, SHAPE(batch, 3)), w = feed("w", TERN_F32, SHAPE(3, 5));
	tern_value l = feed("l", TERN_I32, SHAPE(3, 5)), v;
	tern_attr ta = {.name = "trans_a", .type = TERN_ATTR_INT, .i = 1};
	tern_attr both[2] = {ta, {.name = "trans_b", .type = TERN_ATTR_INT, .i = 1}};

	(void)state;
	assert_ok(tern_graph_node(g, "MatMul", "y", (tern_value[]){x, w}, 2, NULL, 0, &v, 1));
	assert_shape(v, SHAPE(batch, 5));
	assert_ok(tern_graph_node(g, "MatMul", "xx", (tern_value[]){x, x}, 2, &ta, 1, &v, 1));
	assert_shape(v, SHAPE(3, 3));
	assert_ok(tern_graph_node(g, "MatMul", "wx", (tern_value[]){w, x}, 2, both, 2, &v, 1));
	assert_shape(v, SHAPE(5, batch));
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "MatMul", "bad", (tern_value[]){w, x}, 2, NULL, 0, &v, 1),
		"bad", "[batch,3]");
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "MatMul", "bad", (tern_value[]){x, l}, 2, NULL, 0, &v, 1),
		"f32", "i32[3,5]");
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "MatMul", "bad", (tern_value[]){x, x}, 2, NULL, 0, &v, 1),
		"'x'", "inner");
}

static void other_shapes(void **state)
{
	tern_value x = feed("x", TERN_F32, SHAPE(batch, 4, 6)), b = feed("b", TERN_F32, SHAPE(6)), v;
	tern_value m = feed("m", TERN_F32, SHAPE(batch, 4)), y = feed("y", TERN_U8, SHAPE(batch)), outs[3];
	tern_value f = feed("f", TERN_F32, SHAPE(batch));
	tern_attr axes = {.name = "axes", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {0, -1}};
	tern_attr keep[2] = {axes, {.name = "keep_dims", .type = TERN_ATTR_INT, .i = 1}};
	tern_attr shape = {
		.name = "shape", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {24, (int64_t)batch}};

	(void)state;
	assert_ok(tern_graph_node(g, "BiasAdd", "ba", (tern_value[]){x, b}, 2, NULL, 0, &v, 1));
	assert_shape(v, SHAPE(batch, 4, 6));
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "BiasAdd", "bad", (tern_value[]){m, b}, 2, NULL, 0, &v, 1),
		"'b'", "last dim");
	assert_ok(tern_graph_node(g, "ReduceSum", "rs", &x, 1, &axes, 1, &v, 1));
	assert_shape(v, SHAPE(4));
	assert_ok(tern_graph_node(g, "ReduceMean", "rm", &x, 1, keep, 2, &v, 1));
	assert_shape(v, SHAPE(1, 4, 1));
	assert_ok(tern_graph_node(g, "ReduceSum", "all", &x, 1, NULL, 0, &v, 1));
	assert_shape(v, &(tern_shape){0});
	axes.ints[1] = 3;
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "ReduceSum", "bad", &x, 1, &axes, 1, &v, 1), "bad",
		"axis 3");
	axes.ints[1] = 0;
	REFUSED(TERN_E_INVALID, tern_graph_node(g, "ReduceSum", "bad", &x, 1, &axes, 1, &v, 1), "bad",
		"twice");
	assert_ok(tern_graph_node(g, "Reshape", "re", &x, 1, &shape, 1, &v, 1));
	assert_shape(v, SHAPE(24, batch));
	shape.ints[1] = 7;
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "Reshape", "bad", &x, 1, &shape, 1, &v, 1), "[24,7]",
		"elements");
	REFUSED(TERN_E_SHAPE, tern_graph_node(g, "Add", "bad", (tern_value[]){x, m}, 2, NULL, 0, &v, 1),
		"'x'", "'m'");
	assert_ok(tern_graph_node(g, "SoftmaxCrossEntropy", "ce", (tern_value[]){m, y}, 2, NULL, 0, outs, 3));
	assert_shape(outs[0], &(tern_shape){0});
	assert_shape(outs[2], SHAPE(batch, 4));
	assert_string_equal(g->tensors[outs[1]].name, "ce:1");
	REFUSED(TERN_E_SHAPE,
		tern_graph_node(g, "SoftmaxCrossEntropy", "bad", (tern_value[]){m, f}, 2, NULL, 0, outs, 3),
		"labels", "'f'");
}

static void sources(void **state)
{
	tern_init zeros = {.kind = TERN_INIT_ZEROS};
	float data[2] = {1, 2};
	tern_value v;

	(void)state;
	assert_ok(tern_graph_variable(g, "w", TERN_F32, SHAPE(2, 3), &zeros, &v));
	REFUSED(TERN_E_SHAPE, tern_graph_variable(g, "s", TERN_F32, SHAPE(batch), &zeros, &v), "s",
		"symbolic");
	REFUSED(TERN_E_SHAPE, tern_graph_variable(g, "s", TERN_I32, SHAPE(1), &zeros, &v), "f32", "i32");
	REFUSED(TERN_E_INVALID, tern_graph_variable(g, "s", TERN_F32, SHAPE(1), NULL, &v), "s",
		"initialiser");
	REFUSED(TERN_E_TOO_LARGE,
		tern_graph_variable(g, "s", TERN_F32, SHAPE(1u << 31, 1u << 31), &zeros, &v), "2^48", "[");
	REFUSED(TERN_E_SHAPE, tern_graph_placeholder(g, "s", (tern_dtype)77, SHAPE(1), &v), "77", "dtype");
	REFUSED(TERN_E_SHAPE, tern_graph_placeholder(g, "s", TERN_F32, SHAPE(UINT64_MAX - 5), &v), "s",
		"symbol");
	assert_ok(tern_graph_constant(g, "c", TERN_F32, SHAPE(2), data, &v));
	data[0] = 9;
	assert_true(((float *)g->nodes[g->tensors[v].node].data)[0] == 1);
	REFUSED(TERN_E_SHAPE, tern_graph_constant(g, "d", TERN_F32, SHAPE(batch), data, &v), "d", "symbolic");
}

static void ports(void **state)
{
	tern_value x = feed("x", TERN_F32, SHAPE(2)), y = node1("Relu", "y", x);

	(void)state;
	assert_ok(tern_graph_input(g, "in", x));
	assert_ok(tern_graph_output(g, "out", y));
	assert_status(tern_graph_input(g, "in", x), TERN_E_EXISTS);
	assert_status(tern_graph_input(g, "other", y), TERN_E_INVALID);
	assert_status(tern_graph_output(g, "other", 99), TERN_E_INVALID);
	assert_int_equal(tn_graph_port(g, "in", true), x);
	assert_int_equal(tn_graph_port(g, "in", false), TN_NONE);
}

static void control_cycles_are_found(void **state)
{
	tern_graph *other;
	tern_value x = feed("x", TERN_F32, SHAPE(2)), a = node1("Relu", "a", x), b = node1("Relu", "b", a);
	tern_value c = node1("Relu", "c", x);

	(void)state;
	assert_ok(tern_graph_control(g, c, a));
	assert_ok(tern_graph_control(g, c, a));
	assert_int_equal(g->nodes[g->tensors[a].node].n_ctrl, 1);
	assert_ok(tern_graph_check(g));
	assert_ok(tn_graph_clone(g, &other));
	assert_ok(tern_graph_control(other, b, c));
	assert_status(tern_graph_check(other), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "cycle"));
	tern_graph_destroy(other);
	assert_status(tern_graph_control(g, a, a), TERN_E_INVALID);
}

static void the_text_tells_everything(void **state)
{
	tern_init he = {.kind = TERN_INIT_HE_UNIFORM};
	tern_attr tb = {.name = "trans_b", .type = TERN_ATTR_INT, .i = 1};
	tern_value x = feed("x", TERN_F32, SHAPE(batch, 3)), w, y;
	tern_graph *copy;
	char *text, *text2;

	(void)state;
	assert_ok(tern_graph_variable(g, "w", TERN_F32, SHAPE(5, 3), &he, &w));
	assert_ok(tern_graph_node(g, "MatMul", "y", (tern_value[]){x, w}, 2, &tb, 1, &y, 1));
	assert_ok(tern_graph_input(g, "x", x));
	assert_ok(tern_graph_output(g, "y", y));
	text = tern_graph_text(g);
	assert_string_equal(text, "graph test\n"
				  "  Placeholder x () -> x:f32[batch,3]\n"
				  "  Variable w () -> w:f32[5,3] init=he_uniform\n"
				  "  MatMul y (x, w) -> y:f32[batch,5] trans_b=1\n"
				  "  input x = x:f32[batch,3]\n"
				  "  output y = y:f32[batch,5]\n");
	assert_ok(tn_graph_clone(g, &copy));
	text2 = tern_graph_text(copy);
	assert_string_equal(text, text2);
	tern_graph_text_free(text);
	tern_graph_text_free(text2);
	tern_graph_destroy(copy);
}

/* Values that a variable starts with are copied once and shared by the copies of its graph. */
static void variables_start_with_data(void **state)
{
	const float want[6] = {1, -2, 3, 4, 5, 6};
	float data[6], out[6];
	tern_init init = {.kind = TERN_INIT_DATA, .data = data};
	tern_graph *copy;
	tern_value v, c;

	(void)state;
	memcpy(data, want, sizeof(data));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, SHAPE(2, 3), &init, &v));
	assert_ok(tern_graph_constant(g, "c", TERN_F32, SHAPE(2, 3), data, &c));
	memset(data, 0, sizeof(data));
	assert_ok(tn_graph_clone(g, &copy));
	assert_ptr_equal(copy->nodes[0].data, g->nodes[0].data);
	assert_ptr_equal(copy->nodes[1].data, g->nodes[1].data);
	tern_graph_destroy(g);
	g = copy;
	assert_int_equal((uintptr_t)g->nodes[0].data % TN_CACHE_LINE, 0);
	tn_init_fill(&g->nodes[0].init, "w", SHAPE(2, 3), out);
	assert_memory_equal(out, want, sizeof(want));
	assert_memory_equal(g->nodes[1].data, out, sizeof(out));
	init.data = NULL;
	refused(TERN_E_INVALID, tern_graph_variable(g, "u", TERN_F32, SHAPE(1), &init, &v), 2, "'u'",
		"initialiser");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(names_and_numbers),
		T(many_names_are_found),
		T(matmul_shapes),
		T(other_shapes),
		T(sources),
		T(ports),
		T(control_cycles_are_found),
		T(the_text_tells_everything),
		T(variables_start_with_data),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs: results, sizes of symbolic dims, ports, memory that is used again, what is shared with the graph,
 * and what is refused with which words.
 */
#include <stdio.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/eval.h"

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
	tern_graph_destroy(g);
	return 0;
}

static tern_value node(const char *op, const char *name, const tern_value *in, uint32_t n)
{
	tern_value v;

	assert_ok(tern_graph_node(g, op, name, in, n, NULL, 0, &v, 1));
	return v;
}

static void failed(tern_status expected, tern_status st, const char *word)
{
	assert_int_equal(st, expected);
	if (!strstr(tern_detail(), word))
		fail_msg("'%s' is not in: %s", word, tern_detail());
}

/* y = relu(x w + b), z a view of y; w starts with data, b with a constant. */
static void layer(void)
{
	static const float w[6] = {1, 2, 3, 4, 5, 6};
	tern_init w_init = {.kind = TERN_INIT_DATA, .data = w};
	tern_init b_init = {.kind = TERN_INIT_CONSTANT, .value = -20};
	tern_value in[2];
	tern_value b;

	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, SHAPE(batch, 3), &in[0]));
	assert_ok(tern_graph_variable(g, "w", TERN_F32, SHAPE(3, 2), &w_init, &in[1]));
	assert_ok(tern_graph_variable(g, "b", TERN_F32, SHAPE(2), &b_init, &b));
	assert_ok(tern_graph_input(g, "x", in[0]));
	in[0] = node("MatMul", "xw", in, 2);
	in[1] = b;
	in[0] = node("BiasAdd", "xwb", in, 2);
	in[0] = node("Relu", "y", in, 1);
	assert_ok(tern_graph_output(g, "y", in[0]));
	in[0] = node("Identity", "z", in, 1);
	assert_ok(tern_graph_output(g, "z", in[0]));
}

static void a_layer_is_computed(void **state)
{
	static const float x[6] = {1, 1, 1, 2, 2, 2}, want[4] = {0, 0, 0, 4};
	tern_program_params params = {.sizes = &(tern_size){"batch", 2}, .n_sizes = 1};
	tern_value_info info;
	tern_program *p;
	float y[4];

	(void)state;
	layer();
	assert_ok(tern_program_create(g, &params, &p));
	for (int round = 0; round < 3; round++) { /* what was fed stays */
		if (round == 0)
			assert_ok(tern_program_feed(p, "x", x, sizeof(x)));
		assert_ok(tern_program_run(p));
		assert_ok(tern_program_fetch(p, "y", y, sizeof(y)));
		assert_memory_equal(y, want, sizeof(want));
		assert_ok(tern_program_fetch(p, "z", y, sizeof(y)));
		assert_memory_equal(y, want, sizeof(want));
	}
	assert_ok(tern_program_port(p, "x", 1, &info));
	assert_int_equal(info.shape.dims[0], 2);
	failed(TERN_E_SHAPE, tern_program_feed(p, "x", x, 4), "24 bytes, not 4");
	failed(TERN_E_SHAPE, tern_program_fetch(p, "y", y, 4), "16 bytes, not 4");
	failed(TERN_E_NOT_FOUND, tern_program_feed(p, "y", x, 4), "input port 'y'");
	failed(TERN_E_NOT_FOUND, tern_program_fetch(p, "x", y, 4), "output port 'x'");
	tern_program_destroy(p);
}

static void sizes_are_asked_for(void **state)
{
	tern_size sizes[] = {{"batch", 2}, {"length", 3}};
	const char *outputs[] = {"nothing"};
	tern_program_params params = {.sizes = sizes};
	tern_program *p;

	(void)state;
	layer();
	failed(TERN_E_INVALID, tern_program_create(g, NULL, &p), "'batch'");
	params.n_sizes = 2;
	failed(TERN_E_NOT_FOUND, tern_program_create(g, &params, &p), "'length'");
	sizes[0].size = UINT64_MAX;
	params.n_sizes = 1;
	failed(TERN_E_TOO_LARGE, tern_program_create(g, &params, &p), "'batch'");
	sizes[0].size = UINT64_C(1) << 47;
	failed(TERN_E_TOO_LARGE, tern_program_create(g, &params, &p), "elements");
	sizes[0].size = 0;
	assert_ok(tern_program_create(g, &params, &p));
	assert_ok(tern_program_feed(p, "x", NULL, 0));
	assert_ok(tern_program_run(p));
	assert_ok(tern_program_fetch(p, "y", NULL, 0));
	tern_program_destroy(p);
	params.outputs = outputs;
	params.n_outputs = 1;
	failed(TERN_E_NOT_FOUND, tern_program_create(g, &params, &p), "'nothing'");
}

/* A long chain needs two tensors at a time, whatever its length; and only what is asked for is run. */
static void memory_is_used_again(void **state)
{
	enum { N = 4096, LENGTH = 40 };
	const char *outputs[] = {"half"};
	tern_program_params params = {0};
	static float x[N], y[N];
	uint64_t bytes, plain;
	tern_program *p;
	tern_value v[2];

	(void)state;
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, SHAPE(N), &v[0]));
	assert_ok(tern_graph_input(g, "x", v[0]));
	for (unsigned i = 0; i < LENGTH; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%u", i);
		v[1] = v[0];
		v[0] = node("Add", name, v, 2);
		if (i == LENGTH / 2)
			assert_ok(tern_graph_output(g, "half", v[0]));
	}
	assert_ok(tern_graph_output(g, "all", v[0]));
	assert_ok(tern_program_create(g, NULL, &p));
	tern_program_memory(p, &bytes, &plain);
	assert_int_equal(plain, (LENGTH + 1) * sizeof(x));
	assert_true(bytes <= 5 * sizeof(x)); /* x, both outputs, two at a time */
	for (unsigned i = 0; i < N; i++)
		x[i] = (float)i;
	assert_ok(tern_program_feed(p, "x", x, sizeof(x)));
	assert_ok(tern_program_run(p));
	assert_ok(tern_program_fetch(p, "all", y, sizeof(y)));
	for (unsigned i = 0; i < N; i++)
		assert_true(y[i] == (float)i * 0x1p40f);
	assert_ok(tern_program_fetch(p, "half", y, sizeof(y)));
	for (unsigned i = 0; i < N; i++)
		assert_true(y[i] == (float)i * 0x1p21f);
	tern_program_destroy(p);
	params.outputs = outputs;
	params.n_outputs = 1;
	assert_ok(tern_program_create(g, &params, &p));
	failed(TERN_E_NOT_FOUND, tern_program_fetch(p, "all", y, sizeof(y)), "was not asked for");
	tern_program_destroy(p);
}

/* Constants and variables that nothing writes are not copied; those that a node writes are. */
static void weights_are_shared(void **state)
{
	tn_eval_params params = {.backend = TN_BACKEND_PLAIN, .threads = 1, .all = true};
	uint64_t sizes[] = {4};
	tern_value in[2], out;
	static const float grad[6] = {1, 1, 1, 1, 1, 1};
	tn_attr lr = tn_attr_float(TN_ATTR_LR, 0.5);
	tn_eval *e;

	(void)state;
	params.sizes = sizes;
	layer();
	assert_ok(tn_eval_create(g, &params, &e));
	in[0] = g->nodes[tn_graph_find(g, "w")].out[0];
	assert_ptr_equal(tn_eval_data(e, in[0]), g->nodes[tn_graph_find(g, "w")].data);
	tn_eval_destroy(e);

	assert_ok(tern_graph_constant(g, "dw", TERN_F32, SHAPE(3, 2), grad, &in[1]));
	assert_ok(tn_graph_add1(g, TN_OP_APPLY_SGD, "apply", in, 2, &lr, 1, TN_DEVICE_NONE, &out));
	assert_ok(tn_eval_create(g, &params, &e));
	assert_ptr_not_equal(tn_eval_data(e, in[0]), g->nodes[tn_graph_find(g, "w")].data);
	assert_ptr_equal(tn_eval_data(e, in[1]), g->nodes[tn_graph_find(g, "dw")].data);
	assert_ok(tn_eval_run(e));
	assert_ok(tn_eval_run(e));
	for (unsigned i = 0; i < 6; i++)
		assert_true(((float *)tn_eval_data(e, in[0]))[i] == (float)i);
	tn_eval_destroy(e);
	assert_true(((float *)g->nodes[tn_graph_find(g, "w")].data)[0] == 1);
}

/* A control edge may point backwards. */
static void order_follows_control_edges(void **state)
{
	tn_eval_params params = {.backend = TN_BACKEND_PLAIN, .threads = 1};
	static const float one[1] = {1};
	tern_init init = {.kind = TERN_INIT_CONSTANT, .value = 8};
	tn_attr lr = tn_attr_float(TN_ATTR_LR, 1);
	tern_value v[2], read, apply;
	tn_eval *e;

	(void)state;
	assert_ok(tern_graph_variable(g, "w", TERN_F32, SHAPE(1), &init, &v[0]));
	assert_ok(tern_graph_constant(g, "dw", TERN_F32, SHAPE(1), one, &v[1]));
	read = node("Relu", "read", v, 1);
	assert_ok(tn_graph_add1(g, TN_OP_APPLY_SGD, "apply", v, 2, &lr, 1, TN_DEVICE_NONE, &apply));
	assert_ok(tern_graph_control(g, apply, read));
	params.outs = &read;
	params.n_outs = 1;
	assert_ok(tn_eval_create(g, &params, &e));
	assert_ok(tn_eval_run(e));
	assert_true(*(float *)tn_eval_data(e, read) == 7);
	tn_eval_destroy(e);
	assert_ok(tern_graph_control(g, read, apply));
	failed(TERN_E_INVALID, tn_eval_create(g, &params, &e), "waits for itself");
}

/* y = normalised x (batch, 2), with running statistics; m = the batch's own mean. */
static void normalised(void)
{
	static const float ones[2] = {1, 1};
	static const char *const names[] = {"gamma", "beta", "mean", "var"};
	tern_init init = {.kind = TERN_INIT_DATA, .data = ones};
	tern_value in[5], outs[3];

	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, SHAPE(batch, 2), &in[0]));
	assert_ok(tern_graph_input(g, "x", in[0]));
	for (unsigned i = 0; i < 4; i++)
		assert_ok(tern_graph_variable(g, names[i], TERN_F32, SHAPE(2), &init, &in[i + 1]));
	assert_ok(tern_graph_node(g, "BatchNormTrain", "norm", in, 5, NULL, 0, outs, 3));
	assert_ok(tern_graph_output(g, "y", outs[0]));
	assert_ok(tern_graph_output(g, "m", outs[1]));
}

static float first_of_y(tern_program *p)
{
	static const float x[4] = {5, 6, 1, 2};
	float y[4];

	assert_ok(tern_program_feed(p, "x", x, sizeof(x)));
	assert_ok(tern_program_run(p));
	assert_ok(tern_program_fetch(p, "y", y, sizeof(y)));
	return y[0];
}

static void near(float got, float want)
{
	if (got < want - 1e-3f || got > want + 1e-3f)
		fail_msg("%f, not %f", (double)got, (double)want);
}

/* Not as in training; and who is given other values than the graph's does not change those of others. */
static void trained_models_are_used(void **state)
{
	static const float mean[2] = {3, 3}, var[2] = {4, 4};
	const char *y = "y";
	tern_program_params params = {
		.sizes = &(tern_size){"batch", 2}, .n_sizes = 1, .outputs = &y, .n_outputs = 1};
	tern_program *p, *other;

	(void)state;
	normalised();
	assert_ok(tern_program_create(g, &params, &p));
	assert_ok(tern_program_create(g, &params, &other));
	near(first_of_y(p), 5); /* (5 - 1) / 1 * 1 + 1 */
	assert_ok(tern_program_set(p, "mean", mean, sizeof(mean)));
	assert_ok(tern_program_set(p, "var", var, sizeof(var)));
	near(first_of_y(p), 2); /* (5 - 3) / 2 * 1 + 1 */
	near(first_of_y(other), 5);
	failed(TERN_E_SHAPE, tern_program_set(p, "var", var, 4), "8 bytes, not 4");
	failed(TERN_E_NOT_FOUND, tern_program_set(p, "norm", var, 8), "'norm'");
	failed(TERN_E_NOT_FOUND, tern_program_restore(p, "/nowhere"), "/nowhere");
	tern_program_destroy(other);
	tern_program_destroy(p);
	params.training = 1;
	assert_ok(tern_program_create(g, &params, &p));
	near(first_of_y(p), 2); /* the batch's mean is 3, and its deviation 2 */
	assert_ok(tern_program_set(p, "mean", var, sizeof(var)));
	near(first_of_y(p), 2);
	tern_program_destroy(p);
	params.training = 0;
	params.n_outputs = 0; /* all: also what only training has */
	failed(TERN_E_INVALID, tern_program_create(g, &params, &p), "those of the batch are asked for");
}

static void only_plans_send(void **state)
{
	tn_eval_params params = {.backend = TN_BACKEND_PLAIN, .threads = 1, .all = true};
	tn_attr edge = tn_attr_int(TN_ATTR_EDGE, 0);
	tern_value x;
	tn_node_spec spec = {
		.op = TN_OP_SEND, .name = "s", .in = &x, .n_in = 1, .attrs = &edge, .n_attrs = 1};
	tn_eval *e;

	(void)state;
	assert_ok(tern_graph_placeholder(g, "x", TERN_F32, SHAPE(1), &x));
	assert_ok(tn_graph_add(g, &spec, NULL));
	failed(TERN_E_INVALID, tn_eval_create(g, &params, &e), "'s'");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_layer_is_computed),     T(sizes_are_asked_for),         T(memory_is_used_again),
		T(weights_are_shared),      T(order_follows_control_edges), T(only_plans_send),
		T(trained_models_are_used),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of layers: every rule against central finite differences. The difference quotient is taken on the
 * double-precision twin; the gradient nodes are evaluated by the twin (the rules) and by a program (rules and
 * kernels together).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "graph/ir.h"
#include "ref/ref_graph.h"

#define VARS 8
#define S(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})
#define I(attr, ...)                                                               \
	((tern_attr){.name = (attr),                                               \
		     .type = TERN_ATTR_INTS,                                       \
		     .n_ints = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
		     .ints = {__VA_ARGS__}})
#define N(attr, v) ((tern_attr){.name = (attr), .type = TERN_ATTR_INT, .i = (v)})
#define F(attr, v) ((tern_attr){.name = (attr), .type = TERN_ATTR_FLOAT, .f = (v)})

/* One op on variables; the loss weighs every element of those outputs that `outputs` has a bit for. */
typedef struct subject {
	tern_graph *g;
	tern_value vars[VARS], weights[TN_OUTS_MAX];
	uint32_t n_vars;
	tern_value loss;
} subject;

static tern_value variable(tern_graph *g, const char *name, const tern_shape *shape)
{
	tern_value v;

	assert_ok(tern_graph_variable(g, name, TERN_F32, shape,
				      &(tern_init){.kind = TERN_INIT_UNIFORM, .value = 1, .seed = 5}, &v));
	return v;
}

static tern_value node1(tern_graph *g, const char *op, const tern_value *in, uint32_t n_in)
{
	char name[64];
	tern_value v;

	snprintf(name, sizeof(name), "%s%u", op, g->n_nodes);
	assert_ok(tern_graph_node(g, op, name, in, n_in, NULL, 0, &v, 1));
	return v;
}

static void weigh(subject *s, tern_value x, uint32_t output)
{
	char name[32];
	tern_value product, sum, w;

	snprintf(name, sizeof(name), "weight%u", output);
	w = variable(s->g, name, &s->g->tensors[x].shape);
	product = node1(s->g, "Mul", (tern_value[]){x, w}, 2);
	sum = node1(s->g, "ReduceSum", &product, 1);
	s->loss = s->loss == TN_NONE ? sum : node1(s->g, "Add", (tern_value[]){s->loss, sum}, 2);
}

static subject make(const char *op, const tern_shape *shapes, uint32_t n, const tern_attr *attrs,
		    uint32_t n_attrs, uint32_t outputs)
{
	subject s = {.n_vars = n, .loss = TN_NONE};
	tern_value outs[TN_OUTS_MAX];
	uint32_t n_outs = 0;

	assert_ok(tern_graph_create("subject", &s.g));
	for (uint32_t i = 0; i < n; i++) {
		char name[16];

		snprintf(name, sizeof(name), "v%u", i);
		s.vars[i] = variable(s.g, name, &shapes[i]);
	}
	while (outputs >> n_outs)
		n_outs++;
	assert_ok(tern_graph_node(s.g, op, "op", s.vars, n, attrs, n_attrs, outs, n_outs));
	for (uint32_t i = 0; i < n_outs; i++) {
		if (outputs >> i & 1)
			weigh(&s, outs[i], i);
	}
	return s;
}

static double loss_with(const subject *s, uint32_t var, uint64_t element, double step, uint32_t n_forward)
{
	ref_graph ref;
	double loss;

	ref_open(&ref, s->g, 0);
	ref.values[s->vars[var]].data[element] += step;
	ref_run(&ref, n_forward);
	loss = ref.values[s->loss].data[0];
	ref_close(&ref);
	return loss;
}

/* Rules and kernels together: what a program computes of the gradients. */
static void compare_program(const subject *s, const tern_value *grads, const ref_graph *ref)
{
	tern_program *program;

	for (uint32_t i = 0; i < s->n_vars; i++) {
		char port[16];

		snprintf(port, sizeof(port), "g%u", i);
		assert_ok(tern_graph_output(s->g, port, grads[i]));
	}
	assert_ok(tern_program_create(s->g, NULL, &program));
	assert_ok(tern_program_run(program));
	for (uint32_t i = 0; i < s->n_vars; i++) {
		const ref_value *want = &ref->values[grads[i]];
		float *data = calloc(want->n + 1, sizeof(*data));
		double most = 0, d;
		char port[16];

		snprintf(port, sizeof(port), "g%u", i);
		assert_non_null(data);
		assert_ok(tern_program_fetch(program, port, data, want->n * sizeof(*data)));
		for (uint64_t k = 0; k < want->n; k++)
			most = fabs(want->data[k]) > most ? fabs(want->data[k]) : most;
		d = ref_distance(want, data) / (1 + most);
		free(data);
		if (!(d < 1e-5))
			fail_msg("variable %u: kernels are off by %g", i, d);
	}
	tern_program_destroy(program);
}

static void check(subject s)
{
	const double h = 1e-5;
	uint32_t n_forward = s.g->n_nodes;
	tern_value grads[VARS];
	ref_graph ref;

	assert_ok(tern_graph_gradients(s.g, s.loss, s.vars, s.n_vars, grads));
	assert_ok(tern_graph_check(s.g));
	ref_open(&ref, s.g, 0);
	ref_run(&ref, s.g->n_nodes);
	for (uint32_t i = 0; i < s.n_vars; i++) {
		for (uint64_t k = 0; k < ref.values[s.vars[i]].n; k++) {
			double up = loss_with(&s, i, k, h, n_forward);
			double down = loss_with(&s, i, k, -h, n_forward);
			double want = (up - down) / (2 * h), got = ref.values[grads[i]].data[k];

			if (!(fabs(want - got) < 1e-7 * (1 + fabs(want))))
				fail_msg("variable %u element %u: %.9g, difference quotient %.9g", i,
					 (unsigned)k, got, want);
		}
	}
	compare_program(&s, grads, &ref);
	ref_close(&ref);
	tern_graph_destroy(s.g);
}

#define CHECK(op, outputs, shapes, ...)                                                          \
	check(make(op, shapes, sizeof(shapes) / sizeof((shapes)[0]), (tern_attr[]){__VA_ARGS__}, \
		   sizeof((tern_attr[]){__VA_ARGS__}) / sizeof(tern_attr), outputs))

static void convolutions(void **state)
{
	const tern_shape one[] = {S(2, 2, 6), S(3, 2, 3), S(3)};
	const tern_shape two[] = {S(2, 4, 5, 4), S(6, 2, 2, 3), S(6)};
	const tern_shape holes[] = {S(1, 2, 6, 6), S(2, 2, 2, 2)};
	const tern_shape three[] = {S(1, 2, 3, 4, 3), S(2, 2, 2, 2, 2)};
	const tern_shape depth[] = {S(1, 3, 4, 4), S(3, 1, 3, 3)};

	(void)state;
	CHECK("Conv", 1, one, I("pads", 1, 0));
	CHECK("Conv", 1, two, N("group", 2), I("strides", 2, 1), I("pads", 1, 1, 0, 1));
	CHECK("Conv", 1, holes, I("dilations", 2, 3), I("pads", 1, 0, 1, 2));
	CHECK("Conv", 1, three, I("strides", 1, 2, 1));
	CHECK("Conv", 1, depth, N("group", 3), I("pads", 1, 1, 1, 1));
}

static void transposed_convolutions(void **state)
{
	const tern_shape one[] = {S(2, 3, 4), S(3, 2, 3), S(2)};
	const tern_shape two[] = {S(1, 4, 3, 3), S(4, 2, 3, 2), S(4)};
	const tern_shape odd[] = {S(1, 2, 3, 3), S(2, 3, 3, 3)};

	(void)state;
	CHECK("ConvTranspose", 1, one, I("strides", 2));
	CHECK("ConvTranspose", 1, two, N("group", 2), I("dilations", 2, 1), I("pads", 1, 0, 0, 1));
	CHECK("ConvTranspose", 1, odd, I("strides", 2, 2), I("output_padding", 1, 1), I("pads", 1, 1, 1, 1));
}

/* The gradient of a convolution's gradient, as a penalty on gradients has it. */
static void second_derivative(void **state)
{
	const tern_shape shapes[] = {S(1, 2, 3, 3), S(2, 2, 2, 2)};
	const tern_attr attrs[] = {I("shape", 1, 2, 4, 4)};

	(void)state;
	check(make("ConvGradData", shapes, 2, attrs, 1, 1));
}

static void pools(void **state)
{
	const tern_shape x[] = {S(2, 2, 5, 6)}, line[] = {S(1, 2, 7)};

	(void)state;
	CHECK("MaxPool", 1, x, I("kernel_shape", 2, 3), I("strides", 2, 1));
	CHECK("MaxPool", 1, x, I("kernel_shape", 3, 3), I("strides", 2, 2), N("ceil_mode", 1));
	CHECK("MaxPool", 1, x, I("kernel_shape", 2, 2), I("dilations", 2, 1), I("pads", 1, 0, 1, 1));
	CHECK("AveragePool", 1, x, I("kernel_shape", 3, 3), I("pads", 1, 1, 1, 1));
	CHECK("AveragePool", 1, x, I("kernel_shape", 3, 2), I("pads", 1, 1, 1, 1), N("count_include_pad", 1),
	      I("strides", 2, 2));
	CHECK("AveragePool", 1, line, I("kernel_shape", 3), I("strides", 3), N("ceil_mode", 1));
	check(make("GlobalAveragePool", x, 1, NULL, 0, 1));
	check(make("GlobalMaxPool", x, 1, NULL, 0, 1));
}

static void norms(void **state)
{
	const tern_shape images[] = {S(3, 2, 3, 2), S(2), S(2)}, rows[] = {S(5, 3), S(3), S(3)};
	const tern_shape layer[] = {S(2, 3, 4), S(4), S(4)}, inner[] = {S(2, 3, 2), S(3, 2), S(3, 2)};
	const tern_shape x[] = {S(1, 5, 2, 2)};

	(void)state;
	CHECK("BatchNormTrain", 1, images, F("epsilon", 1e-3));
	CHECK("BatchNormTrain", 1, rows, F("epsilon", 1e-3));
	CHECK("InstanceNorm", 1, images, F("epsilon", 1e-3));
	CHECK("LayerNorm", 1, layer, F("epsilon", 1e-3));
	CHECK("LayerNorm", 1, inner, F("epsilon", 1e-3), N("axis", 1));
	for (int size = 1; size < 5; size++)
		CHECK("LRN", 1, x, N("size", size), F("alpha", 0.5), F("beta", 0.75), F("bias", 1.2));
}

static void recurrent(void **state)
{
	static const struct {
		const char *op;
		uint64_t gates;
		uint32_t states, outputs;
	} cells[] = {{"LSTM", 4, 2, 3}, {"GRU", 3, 1, 2}, {"RNN", 1, 1, 2}};

	(void)state;
	for (uint32_t c = 0; c < 3; c++) {
		for (uint32_t how = 0; how < 48; how++) {
			/* bits: 0-1 direction, 2 two biases and states, 3 variant; which outputs are used varies */
			uint64_t d = (how & 3) == 2 ? 2 : 1, rows = cells[c].gates * 3;
			tern_shape shapes[6] = {S(3, 2, 2),    S(d, rows, 2),
						S(d, rows, 3), S(d, rows * (how & 4 ? 2 : 1)),
						S(d, 2, 3),    S(d, 2, 3)};
			tern_attr attrs[2] = {N("direction", how & 3)};
			uint32_t used = how / 16 == 0 ? 1 : how / 16 == 1 ? (1u << cells[c].outputs) - 1 : 2;

			if ((how & 3) == 3)
				continue;
			if (c == 1)
				attrs[1] = N("linear_before_reset", how >> 3 & 1);
			else if (c == 2 && how & 8)
				attrs[1] = I("activations", TN_OP_SIGMOID);
			else if (how & 8)
				continue;
			else
				attrs[1] = N("hidden_size", 3);
			check(make(cells[c].op, shapes, 4 + (how & 4 ? cells[c].states : 0), attrs, 2, used));
		}
	}
}

static void products(void **state)
{
	const tern_shape same[] = {S(2, 3, 4), S(2, 4, 2)}, shared[] = {S(2, 3, 4), S(4, 2)};

	(void)state;
	CHECK("MatMul", 1, same, N("trans_a", 0));
	CHECK("MatMul", 1, shared, N("trans_a", 0));
}

static void refused(void **state)
{
	const tern_shape bn[] = {S(3, 2), S(2), S(2)};
	const tern_shape peep[] = {S(2, 1, 2), S(1, 8, 2), S(1, 8, 2), S(1, 8),
				   S(1, 1, 2), S(1, 1, 2), S(1, 6)};
	tern_value grads[VARS];
	subject s = make("BatchNormTrain", bn, 3, NULL, 0, 2);

	(void)state;
	assert_status(tern_graph_gradients(s.g, s.loss, s.vars, 1, grads), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "only its first output"));
	tern_graph_destroy(s.g);
	s = make("LSTM", peep, 7, NULL, 0, 1);
	assert_status(tern_graph_gradients(s.g, s.loss, s.vars, 1, grads), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "peepholes"));
	tern_graph_destroy(s.g);
	s = make("LSTM", peep, 4, NULL, 0, 8);
	assert_status(tern_graph_gradients(s.g, s.loss, s.vars, 1, grads), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "workspace"));
	tern_graph_destroy(s.g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(convolutions),
		cmocka_unit_test(transposed_convolutions),
		cmocka_unit_test(second_derivative),
		cmocka_unit_test(pools),
		cmocka_unit_test(norms),
		cmocka_unit_test(recurrent),
		cmocka_unit_test(products),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}

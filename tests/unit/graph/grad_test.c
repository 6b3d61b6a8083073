/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients: every rule against central finite differences. The difference quotient is taken on the
 * double-precision twin, so it is good to about 1e-8; the gradient nodes are evaluated by the twin (the
 * rules) and by the executor (rules and kernels together).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/exec.h"
#include "ref/ref_graph.h"

#define S(...) \
	((tern_shape){.rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .dims = {__VA_ARGS__}})

/* A graph under test: everything differentiable is a variable, so that it has a gradient and a value. */
typedef struct subject {
	tern_graph *g;
	tern_value vars[8];
	uint32_t n_vars;
	tern_value loss;
} subject;

static tern_value var(subject *s, tern_shape shape)
{
	char name[16];

	snprintf(name, sizeof(name), "v%u", s->n_vars);
	assert_ok(tern_graph_variable(s->g, name, TERN_F32, &shape,
				      &(tern_init){.kind = TERN_INIT_UNIFORM, .value = 1, .seed = 5},
				      &s->vars[s->n_vars]));
	return s->vars[s->n_vars++];
}

static tern_value op(subject *s, const char *name, const tern_value *in, uint32_t n_in,
		     const tern_attr *attrs, uint32_t n_attrs)
{
	char unique[64];
	tern_value v;

	snprintf(unique, sizeof(unique), "%s%u", name, s->g->n_nodes);
	assert_ok(tern_graph_node(s->g, name, unique, in, n_in, attrs, n_attrs, &v, 1));
	return v;
}

/* A loss that weighs every element differently: sum(x * w), w a constant-like variable of its own. */
static void weigh(subject *s, tern_value x)
{
	tern_value w = var(s, s->g->tensors[x].shape);
	tern_value product = op(s, "Mul", (tern_value[]){x, w}, 2, NULL, 0);

	s->loss = op(s, "ReduceSum", &product, 1, NULL, 0);
}

static double loss_of(const subject *s, const ref_graph *like, uint32_t tensor, uint64_t element, double step,
		      uint32_t n_forward)
{
	ref_graph ref;
	double loss;

	ref_open(&ref, s->g, like->batch);
	ref.values[tensor].data[element] += step;
	ref_run(&ref, n_forward);
	loss = ref.values[s->loss].data[0];
	ref_close(&ref);
	return loss;
}

/* The gradients as the executor computes them, through a plan of one device. */
static void compare_executor(const subject *s, const tern_value *grads, const ref_graph *ref)
{
	tn_exec_params params = {.batch = ref->batch};
	tern_graph *placed;
	tern_plan *plan;
	tn_exec *exec;
	tn_xfer *xfer;

	assert_ok(tn_graph_clone(s->g, &placed));
	for (uint32_t i = 0; i < placed->n_nodes; i++)
		placed->nodes[i].device = 0;
	for (uint32_t i = 0; i < s->n_vars; i++) {
		char port[16];

		snprintf(port, sizeof(port), "g%u", i);
		assert_ok(tern_graph_output(placed, port, grads[i]));
	}
	assert_ok(tn_plan_placed(placed, 1, TERN_COMM_ZEROCOPY, &plan));
	assert_ok(tn_stub_open(NULL, NULL, &xfer));
	assert_ok(tn_exec_create(plan, 0, xfer, &params, &exec));
	assert_ok(tn_exec_start(exec, TN_TIME_NEVER));
	assert_ok(tn_exec_step(exec, TN_PROG_TRAIN, TN_TIME_NEVER));
	for (uint32_t i = 0; i < s->n_vars; i++) {
		tn_fetched f;
		char port[16];

		snprintf(port, sizeof(port), "g%u", i);
		assert_ok(tn_exec_fetch(exec, TN_PROG_TRAIN, port, &f));
		assert_true(ref_distance(&ref->values[grads[i]], f.data) < 1e-5);
	}
	tn_exec_destroy(exec);
	xfer->ops->close(xfer);
	tern_plan_destroy(plan);
	tern_graph_destroy(placed);
}

static void check_gradients(subject *s)
{
	const double h = 1e-5;
	uint32_t n_forward = s->g->n_nodes;
	tern_value grads[8];
	ref_graph ref;

	assert_ok(tern_graph_gradients(s->g, s->loss, s->vars, s->n_vars, grads));
	assert_ok(tern_graph_check(s->g));
	ref_open(&ref, s->g, 0);
	ref_run(&ref, s->g->n_nodes);
	for (uint32_t i = 0; i < s->n_vars; i++) {
		for (uint64_t k = 0; k < ref.values[s->vars[i]].n; k++) {
			double up = loss_of(s, &ref, s->vars[i], k, h, n_forward);
			double down = loss_of(s, &ref, s->vars[i], k, -h, n_forward);
			double want = (up - down) / (2 * h), got = ref.values[grads[i]].data[k];

			if (!(fabs(want - got) < 1e-7 * (1 + fabs(want))))
				fail_msg("variable %u element %u: %.9g, difference quotient %.9g", i,
					 (unsigned)k, got, want);
		}
	}
	compare_executor(s, grads, &ref);
	ref_close(&ref);
	tern_graph_destroy(s->g);
}

static subject open_subject(void)
{
	subject s = {0};

	assert_ok(tern_graph_create("subject", &s.g));
	return s;
}

static void matmul(void **state)
{
	(void)state;
	for (int t = 0; t < 4; t++) {
		subject s = open_subject();
		tern_value a = var(&s, t & 1 ? S(4, 3) : S(3, 4)), b = var(&s, t & 2 ? S(5, 4) : S(4, 5));
		tern_attr attrs[2] = {{.name = "trans_a", .type = TERN_ATTR_INT, .i = t & 1},
				      {.name = "trans_b", .type = TERN_ATTR_INT, .i = t >> 1}};

		weigh(&s, op(&s, "MatMul", (tern_value[]){a, b}, 2, attrs, 2));
		check_gradients(&s);
	}
}

/* Both operands are one variable: its two partial gradients are added. */
static void matmul_with_itself(void **state)
{
	subject s = open_subject();
	tern_value a = var(&s, S(3, 3));

	(void)state;
	weigh(&s, op(&s, "MatMul", (tern_value[]){a, a}, 2, NULL, 0));
	check_gradients(&s);
}

static void bias_add(void **state)
{
	static const tern_shape shapes[3] = {{1, {5}}, {2, {3, 5}}, {3, {2, 3, 5}}};

	(void)state;
	for (int i = 0; i < 3; i++) {
		subject s = open_subject();
		tern_value x = var(&s, shapes[i]), b = var(&s, S(5));

		weigh(&s, op(&s, "BiasAdd", (tern_value[]){x, b}, 2, NULL, 0));
		check_gradients(&s);
	}
}

static void unary(void **state)
{
	static const char *const ops[] = {"Relu", "Softmax", "Identity"};

	(void)state;
	for (int i = 0; i < 3; i++) {
		subject s = open_subject();
		tern_value x = var(&s, S(3, 5));

		weigh(&s, op(&s, ops[i], &x, 1, NULL, 0));
		check_gradients(&s);
	}
}

static void add_mul_scale_reshape(void **state)
{
	subject s = open_subject();
	tern_value a = var(&s, S(2, 6)), b = var(&s, S(2, 6)), x;
	tern_attr scale = {.name = "scale", .type = TERN_ATTR_FLOAT, .f = -0.7};
	tern_attr shape = {.name = "shape", .type = TERN_ATTR_INTS, .n_ints = 2, .ints = {4, 3}};

	(void)state;
	x = op(&s, "Add", (tern_value[]){a, b}, 2, NULL, 0);
	x = op(&s, "Mul", (tern_value[]){x, a}, 2, NULL, 0);
	x = op(&s, "AddN", (tern_value[]){x, b, x, a}, 4, NULL, 0);
	x = op(&s, "Scale", &x, 1, &scale, 1);
	x = op(&s, "Reshape", &x, 1, &shape, 1);
	weigh(&s, x);
	check_gradients(&s);
}

static void reductions(void **state)
{
	(void)state;
	for (uint32_t mask = 0; mask < 8; mask++) {
		for (int v = 0; v < 4; v++) {
			subject s = open_subject();
			tern_value x = var(&s, S(2, 3, 2));
			tern_attr attrs[2] = {{.name = "axes", .type = TERN_ATTR_INTS},
					      {.name = "keep_dims", .type = TERN_ATTR_INT, .i = v & 1}};

			for (int64_t d = 0; d < 3; d++) {
				if (mask >> d & 1)
					attrs[0].ints[attrs[0].n_ints++] = d;
			}
			weigh(&s, op(&s, v >> 1 ? "ReduceMean" : "ReduceSum", &x, 1, attrs, 2));
			check_gradients(&s);
		}
	}
}

/* The gradient of the gradient's own op: ExpandLike through a second derivative of sums of squares. */
static void second_derivative(void **state)
{
	subject s = open_subject();
	tern_value x = var(&s, S(2, 3)), square, loss, dx;
	tern_attr axis = {.name = "axes", .type = TERN_ATTR_INTS, .n_ints = 1, .ints = {1}};

	(void)state;
	square = op(&s, "ReduceMean", &x, 1, &axis, 1);
	square = op(&s, "Mul", (tern_value[]){square, square}, 2, NULL, 0);
	loss = op(&s, "ReduceSum", &square, 1, NULL, 0);
	assert_ok(tern_graph_gradients(s.g, loss, &x, 1, &dx));
	weigh(&s, op(&s, "Mul", (tern_value[]){dx, dx}, 2, NULL, 0));
	check_gradients(&s);
}

static void softmax_cross_entropy(void **state)
{
	static const int32_t labels[4] = {2, 0, 1, 2};
	subject s = open_subject();
	tern_value x = var(&s, S(4, 3)), y;

	(void)state;
	assert_ok(tern_graph_constant(s.g, "labels", TERN_I32, &S(4), labels, &y));
	s.loss = op(&s, "SoftmaxCrossEntropy", (tern_value[]){x, y}, 2, NULL, 0);
	/* not the end of the graph, so that dloss is not 1 */
	s.loss = op(&s, "Scale", &s.loss, 1, &(tern_attr){.name = "scale", .type = TERN_ATTR_FLOAT, .f = 3},
		    1);
	check_gradients(&s);
}

static void a_whole_network(void **state)
{
	static const uint64_t widths[] = {6, 5};
	static const int32_t label_data[4] = {2, 0, 1, 2};
	subject s = {0};
	tern_graph *model;
	ref_rand rand = {3};
	float images[4 * 7];

	(void)state;
	/* The model with constants for its placeholders. */
	assert_ok(tern_graph_fully_connected("net", widths, 2,
					     &(tern_model_params){.inputs = 7, .classes = 3}, &model));
	ref_fill(&rand, images, 28);
	s = open_subject();
	for (uint32_t i = 0; i < model->n_nodes; i++) {
		const tn_node *n = &model->nodes[i];
		const tn_tensor *t = &model->tensors[n->out[0]];
		bool feed = n->op == TN_OP_PLACEHOLDER, is_images = strcmp(n->name, "images") == 0;
		tern_shape shape = t->shape;
		tn_node_spec spec = {.op = feed ? TN_OP_CONSTANT : n->op,
				     .name = n->name,
				     .in = n->in,
				     .n_in = n->n_in,
				     .attrs = n->attrs,
				     .n_attrs = n->n_attrs,
				     .dtype = t->dtype,
				     .shape = &shape,
				     .init = &n->init,
				     .data = feed ? (is_images ? (const void *)images : label_data) : NULL};

		if (feed)
			shape.dims[0] = 4;
		assert_ok(tn_graph_add(s.g, &spec, NULL));
		if (n->op == TN_OP_VARIABLE)
			s.vars[s.n_vars++] = n->out[0];
	}
	s.loss = tn_graph_port(model, "loss", false);
	tern_graph_destroy(model);
	check_gradients(&s);
}

static void refused(void **state)
{
	static const int32_t labels[4] = {2, 0, 1, 2};
	subject s = open_subject();
	tern_value x = var(&s, S(4, 3)), other = var(&s, S(2)), y, outs[3], loss, grads[2];

	(void)state;
	assert_ok(tern_graph_constant(s.g, "labels", TERN_I32, &S(4), labels, &y));
	assert_ok(
		tern_graph_node(s.g, "SoftmaxCrossEntropy", "ce", (tern_value[]){x, y}, 2, NULL, 0, outs, 3));
	assert_status(tern_graph_gradients(s.g, x, &x, 1, grads), TERN_E_SHAPE);
	assert_status(tern_graph_gradients(s.g, outs[1], &x, 1, grads), TERN_E_SHAPE);
	assert_status(tern_graph_gradients(s.g, outs[0], (tern_value[]){x, other}, 2, grads), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "v1"));
	loss = op(&s, "ReduceSum", &outs[2], 1, NULL, 0);
	assert_status(tern_graph_gradients(s.g, loss, &x, 1, grads), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "only its loss"));
	tern_graph_destroy(s.g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matmul),
		cmocka_unit_test(matmul_with_itself),
		cmocka_unit_test(bias_add),
		cmocka_unit_test(unary),
		cmocka_unit_test(add_mul_scale_reshape),
		cmocka_unit_test(reductions),
		cmocka_unit_test(second_derivative),
		cmocka_unit_test(softmax_cross_entropy),
		cmocka_unit_test(a_whole_network),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}

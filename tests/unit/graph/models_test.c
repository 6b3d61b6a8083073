/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in models: exact parameter counts, ports, refused names and sizes.
 */
#include <string.h>

#include "cmocka_all.h"
#include "graph/ir.h"

/* Trained parameters: those of the published comparison exactly, others by hand. */
static const struct {
	const char *name;
	uint64_t parameters;
	uint32_t variables; /* running statistics included */
} counts_of[] = {
	{"mlp", 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10, 6},
	{"fcn5", 53600266, 10},
	{"alexnet", 46247882, 16},
	{"vgg16", 134301514, 32},
	{"inception_v3", 24353332, 96 * 4 + 4},
	{"lstm", 9417704, 5},
	{"gru", 7319528, 5},
	{"convnet", 32 * 10 + 64 * (32 * 9 + 1) + 128 * (64 * 49 + 1) + 10 * 129, 8},
	{"convnet_small", 4 * 10 + 8 * (4 * 9 + 1) + 16 * (8 * 49 + 1) + 10 * 17, 8},
	{"convnet_bn", 8 * 9 + 16 * 8 * 9 + 2 * (8 + 16) + 10 * (16 * 49 + 1), 12},
	{"lstm_small", 4 * 32 * (28 + 32 + 1) + 10 * 33, 5},
	{"gru_small", 3 * 32 * (28 + 32 + 1) + 10 * 33, 5},
	{"charlm", 256 * 64 + 4 * 256 * (64 + 256 + 1) + 256 * 257, 6},
	{"seq2seq", 2 * 4096 * 128 + 2 * 3 * 256 * (128 + 256 + 1) + 256 * 513 + 4096 * 257, 12},
	{"transformer",
	 256 * 128 + 64 * 128 + 2 * (4 * 128 * 129 + 512 * 129 + 128 * 513 + 4 * 128) + 2 * 128 + 256 * 129,
	 2 + 2 * (8 + 4 + 4) + 2 + 2},
};

static void counts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(counts_of) / sizeof(counts_of[0]); i++) {
		tern_graph_info info;
		tern_graph *g;

		assert_ok(tern_graph_model(counts_of[i].name, NULL, &g));
		tern_graph_info_get(g, &info);
		if (info.parameters != counts_of[i].parameters || info.variables != counts_of[i].variables)
			fail_msg("%s: %llu parameters in %u variables", counts_of[i].name,
				 (unsigned long long)info.parameters, info.variables);
		assert_int_equal(info.parameter_bytes, info.parameters * 4);
		assert_string_equal(info.name, counts_of[i].name);
		assert_ok(tern_graph_check(g));
		tern_graph_destroy(g);
	}
}

/* Every model has gradients for all that it trains: a plan of it can be made. */
static void trainable(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(counts_of) / sizeof(counts_of[0]); i++) {
		tern_plan_params params = {.servers = 2, .workers = 2, .sync = 1, .optimizer = {.lr = 1}};
		tern_graph *g;
		tern_plan *plan;

		assert_ok(tern_graph_model(counts_of[i].name, NULL, &g));
		assert_ok(tern_plan_create(g, &params, &plan));
		for (uint32_t e = 0; e < tern_plan_edges(plan); e++) {
			tern_edge_info info;

			assert_ok(tern_plan_edge(plan, e, &info));
			assert_true(info.is_static);
			assert_int_equal(info.copies, 0);
		}
		tern_plan_destroy(plan);
		tern_graph_destroy(g);
	}
}

/* steps changes the length of sequences; a symbolic one is allowed where no position needs a number. */
static void sequence_lengths(void **state)
{
	tern_model_params params = {.steps = 7};
	tern_value_info info;
	tern_graph *g;

	(void)state;
	assert_ok(tern_graph_model("gru_small", &params, &g));
	assert_ok(tern_graph_value(g, tn_graph_port(g, "images", true), &info));
	assert_int_equal(info.shape.dims[1], 7);
	assert_int_equal(info.shape.dims[2], 28);
	tern_graph_destroy(g);
	params.steps = TERN_STEPS_SYMBOLIC;
	assert_ok(tern_graph_model("charlm", &params, &g));
	assert_ok(tern_graph_value(g, tn_graph_port(g, "tokens", true), &info));
	assert_true(tern_dim_is_symbolic(info.shape.dims[0]));
	assert_true(tern_dim_is_symbolic(info.shape.dims[1]));
	assert_int_not_equal(info.shape.dims[0], info.shape.dims[1]);
	tern_graph_destroy(g);
	assert_ok(tern_graph_model("seq2seq", &params, &g));
	tern_graph_destroy(g);
	assert_status(tern_graph_model("transformer", &params, &g), TERN_E_INVALID);
}

static void model_ports(void **state)
{
	static const char *const in[] = {"images", "labels"}, *const out[] = {"loss", "correct", "probs"};
	tern_graph *g;

	(void)state;
	assert_ok(tern_graph_fully_connected("linear", NULL, 0,
					     &(tern_model_params){.inputs = 3, .classes = 2}, &g));
	for (int i = 0; i < 2; i++)
		assert_int_not_equal(tn_graph_port(g, in[i], true), TN_NONE);
	for (int i = 0; i < 3; i++)
		assert_int_not_equal(tn_graph_port(g, out[i], false), TN_NONE);
	tern_graph_destroy(g);
}

static void refused(void **state)
{
	tern_graph *g;
	uint64_t zero = 0;

	(void)state;
	assert_status(tern_graph_model("vgg99", NULL, &g), TERN_E_NOT_FOUND);
	assert_non_null(strstr(tern_detail(), "mlp, fcn5"));
	assert_non_null(strstr(tern_detail(), "inception_v3"));
	assert_status(tern_graph_model("alexnet", &(tern_model_params){.inputs = 784}, &g), TERN_E_INVALID);
	assert_non_null(strstr(tern_detail(), "150528"));
	assert_status(tern_graph_fully_connected("x", &zero, 1, NULL, &g), TERN_E_INVALID);
	assert_status(tern_graph_model("mlp", &(tern_model_params){.inputs = UINT64_MAX - 2}, &g),
		      TERN_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts),           cmocka_unit_test(trainable),
		cmocka_unit_test(sequence_lengths), cmocka_unit_test(model_ports),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in models: exact parameter counts, ports, refused names and sizes.
 */
#include <string.h>

#include "cmocka_all.h"
#include "graph/ir.h"

static void counts(void **state)
{
	tern_graph *g;
	tern_graph_info info;

	(void)state;
	assert_ok(tern_graph_model("fcn5", NULL, &g));
	tern_graph_info_get(g, &info);
	assert_int_equal(info.parameters, 53600266);
	assert_int_equal(info.parameter_bytes, 53600266u * 4u);
	assert_int_equal(info.variables, 10);
	assert_ok(tern_graph_check(g));
	tern_graph_destroy(g);
	assert_ok(tern_graph_model("mlp", NULL, &g));
	tern_graph_info_get(g, &info);
	assert_int_equal(info.parameters, 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
	assert_int_equal(info.variables, 6);
	assert_string_equal(info.name, "mlp");
	tern_graph_destroy(g);
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
	assert_status(tern_graph_fully_connected("x", &zero, 1, NULL, &g), TERN_E_INVALID);
	assert_status(tern_graph_model("mlp", &(tern_model_params){.inputs = UINT64_MAX - 2}, &g),
		      TERN_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts),
		cmocka_unit_test(model_ports),
		cmocka_unit_test(refused),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Import of ONNX models: what becomes of weights, inputs, symbolic dims and shape arithmetic; that all faults
 * are told at once; that broken files are refused. What single ops compute is tests/onnx.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "graph/onnx/array.h"
#include "graph/onnx/import.h"
#include "onnx_build.h"

#define FLOAT     1
#define I64       7
#define DIMS(...) (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)

static tern_graph *g;
static char lines[4096];

static int setup(void **state)
{
	(void)state;
	g = NULL;
	lines[0] = '\0';
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tern_graph_destroy(g);
	return 0;
}

static void keep_line(void *arg, const char *line)
{
	(void)arg;
	strncat(lines, line, sizeof(lines) - strlen(lines) - 2);
	strcat(lines, "\n");
}

/* Import the graph that was built, and free it. */
static tern_status import(ox_msg *graph, int64_t opset, const tern_onnx_params *params)
{
	tern_onnx_params p = params ? *params : (tern_onnx_params){0};
	tern_status status;
	ox_msg m;

	ox_model(&m, graph, opset);
	p.report = keep_line;
	status = tern_graph_import_onnx_bytes(m.text, m.length, &p, &g);
	tn_str_fini(&m);
	return status;
}

static void contains(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("'%s' is not in: %s", words, text);
}

static void refused(tern_status expected, tern_status status, const char *words)
{
	assert_int_equal(status, expected);
	assert_null(g);
	contains(tern_detail(), words);
}

static unsigned nodes_of(const char *op)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < g->n_nodes; i++)
		n += strcmp(tn_op_table[g->nodes[i].op].name, op) == 0;
	return n;
}

/* y = relu(x w + b), x (batch,3), w (3,2) */
static void build_layer(ox_msg *graph)
{
	static const float w[6] = {1, 2, 3, 4, 5, 6}, b[2] = {-30, -20};

	tn_str_init(graph);
	ox_initialiser(graph, "w", FLOAT, DIMS(3, 2), w, sizeof(w));
	ox_initialiser(graph, "b", FLOAT, DIMS(2), b, sizeof(b));
	ox_port(graph, 11, "x", FLOAT, DIMS(-1, 3));
	ox_port(graph, 12, "y", FLOAT, DIMS(-1, 2));
	ox_node(graph, "Gemm", "fc", "x w b", "h");
	ox_node(graph, "Relu", "act", "h", "y");
}

static void weights_become_variables(void **state)
{
	static const float x[6] = {1, 1, 1, 2, 2, 2}, want[4] = {0, 0, 0, 4};
	tern_program_params params = {.sizes = &(tern_size){"batch", 2}, .n_sizes = 1};
	tern_onnx_params frozen = {.frozen = 1};
	tern_graph_info info;
	tern_program *p;
	ox_msg m;
	float y[4];

	(void)state;
	build_layer(&m);
	assert_ok(import(&m, 13, NULL));
	tern_graph_info_get(g, &info);
	assert_string_equal(info.name, "model");
	assert_int_equal(info.variables, 2);
	assert_int_equal(info.parameters, 8);
	assert_int_equal(info.parameter_bytes, 32);
	assert_ok(tern_program_create(g, &params, &p));
	assert_ok(tern_program_feed(p, "x", x, sizeof(x)));
	assert_ok(tern_program_run(p));
	assert_ok(tern_program_fetch(p, "y", y, sizeof(y)));
	assert_memory_equal(y, want, sizeof(want));
	tern_program_destroy(p);
	tern_graph_destroy(g);
	build_layer(&m);
	assert_ok(import(&m, 13, &frozen));
	assert_int_equal(nodes_of("Variable"), 0);
	assert_int_equal(nodes_of("Constant"), 2);
}

static void sizes_are_put_in(void **state)
{
	tern_onnx_params params = {.sizes = &(tern_size){"batch", 4}, .n_sizes = 1};
	ox_msg m;

	(void)state;
	build_layer(&m);
	assert_ok(import(&m, 13, &params));
	assert_int_equal(g->n_symbols, 0);
	assert_int_equal(g->tensors[tn_graph_port(g, "y", false)].shape.dims[0], 4);
}

/* All of it is told at once, and nothing about what only depends on it. */
static void faults_are_told_together(void **state)
{
	ox_msg m;

	(void)state;
	build_layer(&m);
	ox_node(&m, "Frobnicate", "odd1", "y", "a");
	ox_node(&m, "Relu", "fine", "a", "b2");
	ox_node(&m, "Unique", "odd2", "y", "c");
	ox_node(&m, "Relu", "lost", "nowhere", "d");
	ox_node(&m, "Add", "one", "y", "e");
	refused(TERN_E_UNSUPPORTED, import(&m, 13, NULL), "4 things");
	contains(lines, "Frobnicate 'odd1': tern has no such op\n");
	contains(lines, "Unique 'odd2': tern has no such op\n");
	contains(lines, "Relu 'lost': its input 'nowhere' is made by no node before it\n");
	contains(lines, "Add 'one': it cannot have 1 inputs\n");
	assert_null(strstr(lines, "fine"));
	contains(tern_detail(), "odd1");
	contains(tern_detail(), "odd2");
}

/* (batch,3,4) -> (batch,12) by the arithmetic that exporters write: one Reshape is left of it. */
static void shape_arithmetic_disappears(void **state)
{
	static const int64_t zero[1] = {0}, minus_one[1] = {-1}, axes[1] = {0};
	ox_msg m, n;

	(void)state;
	tn_str_init(&m);
	ox_initialiser(&m, "zero", I64, NULL, 0, zero, sizeof(zero));
	ox_initialiser(&m, "rest", I64, DIMS(1), minus_one, sizeof(minus_one));
	ox_port(&m, 11, "x", FLOAT, DIMS(-1, 3, 4));
	ox_port(&m, 12, "y", FLOAT, DIMS(-1, 12));
	ox_node(&m, "Shape", "s", "x", "shape");
	ox_node(&m, "Gather", "g", "shape zero", "first");
	ox_node_begin(&n, "Unsqueeze", "u", "first", "firsts");
	ox_attr_ints(&n, "axes", 1, axes);
	ox_put(&m, 1, &n);
	ox_node_begin(&n, "Concat", "c", "firsts rest", "to");
	ox_attr_int(&n, "axis", 0);
	ox_put(&m, 1, &n);
	ox_node(&m, "Reshape", "r", "x to", "y");
	assert_ok(import(&m, 11, NULL));
	assert_int_equal(g->n_nodes, 2);
	assert_int_equal(nodes_of("Reshape"), 1);
	assert_int_equal(g->tensors[tn_graph_port(g, "y", false)].shape.dims[0],
			 g->tensors[tn_graph_port(g, "x", true)].shape.dims[0]);
	assert_int_equal(g->tensors[tn_graph_port(g, "y", false)].shape.dims[1], 12);
}

/* Reshape by an input: only with its value, and then that input is gone. */
static void values_are_asked_for(void **state)
{
	static const int64_t shape[2] = {2, -1};
	tern_array value = {"shape", TERN_I64, {1, {2}}, shape};
	tern_onnx_params params = {.values = &value, .n_values = 1};
	ox_msg m;

	(void)state;
	for (int offered = 0; offered < 2; offered++) {
		tn_str_init(&m);
		ox_port(&m, 11, "x", FLOAT, DIMS(3, 4));
		ox_port(&m, 11, "shape", I64, DIMS(2));
		ox_port(&m, 12, "y", FLOAT, DIMS(2, 6));
		ox_node(&m, "Reshape", "r", "x shape", "y");
		if (!offered)
			refused(TERN_E_UNSUPPORTED, import(&m, 13, NULL), "'shape', must be known");
		else
			assert_ok(import(&m, 13, &params));
	}
	assert_int_equal(tn_graph_port(g, "shape", true), TN_NONE);
	assert_int_equal(g->tensors[tn_graph_port(g, "y", false)].shape.dims[1], 6);
	value.shape.dims[0] = 3;
	tern_graph_destroy(g);
	g = NULL;
	tn_str_init(&m);
	ox_port(&m, 11, "shape", I64, DIMS(2));
	refused(TERN_E_SHAPE, import(&m, 13, &params), "not of its type and shape");
}

/* Dims that are named get the sizes of the values, everywhere; two sizes for one name are an error. */
static void sizes_come_from_values(void **state)
{
	static const float zeros[8];
	tern_array values[2] = {{"x", TERN_F32, {2, {4, 2}}, zeros}, {"y", TERN_F32, {2, {4, 1}}, zeros}};
	tern_onnx_params params = {.values = values, .n_values = 2, .bind = 1};
	ox_msg m;

	(void)state;
	for (int round = 0; round < 2; round++) {
		values[1].shape.dims[0] = round ? 3 : 4;
		tn_str_init(&m);
		ox_port(&m, 11, "x", FLOAT, DIMS(-1, 2));
		ox_port(&m, 11, "y", FLOAT, DIMS(-1, 1));
		ox_port(&m, 11, "z", FLOAT, DIMS(-1, 1));
		ox_port(&m, 12, "sum", FLOAT, DIMS(-1, 2));
		ox_node(&m, "Sum", "s", "x y z", "sum");
		if (round)
			refused(TERN_E_SHAPE, import(&m, 13, &params), "'batch', is 3 here and 4 elsewhere");
		else
			assert_ok(import(&m, 13, &params));
		if (!round) {
			assert_int_equal(g->n_symbols, 0);
			assert_int_equal(g->tensors[tn_graph_port(g, "z", true)].shape.dims[0], 4);
			tern_graph_destroy(g);
			g = NULL;
		}
	}
}

static void versions(void **state)
{
	ox_msg m;

	(void)state;
	build_layer(&m);
	refused(TERN_E_UNSUPPORTED, import(&m, 18, NULL), "opset 18");
	build_layer(&m);
	refused(TERN_E_UNSUPPORTED, import(&m, 6, NULL), "Gemm 'fc': its definition in opset 6");
	refused(TERN_E_NOT_FOUND, tern_graph_import_onnx("no-such-folder/model.onnx", NULL, &g),
		"no-such-folder");
	refused(TERN_E_INVALID, tern_graph_import_onnx("/", NULL, &g), "not a file");
}

static void broken_tensors(void **state)
{
	static const float w[6];
	const struct {
		int type;
		int64_t dims[3];
		unsigned rank;
		size_t bytes;
		tern_status status;
		const char *words;
	} cases[] = {
		{FLOAT, {3, 2}, 2, 20, TERN_E_CORRUPT, "20 bytes, its shape asks for 24"},
		{FLOAT, {-3, 2}, 2, 24, TERN_E_CORRUPT, "dim 0 is -3"},
		{FLOAT, {1 << 30, 1 << 30}, 2, 24, TERN_E_TOO_LARGE, "2^48"},
		{8, {3, 2}, 2, 24, TERN_E_UNSUPPORTED, "no type string"},
		{99, {3, 2}, 2, 24, TERN_E_UNSUPPORTED, "no type ?"},
	};
	ox_msg m;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tn_str_init(&m);
		ox_initialiser(&m, "w", cases[i].type, cases[i].dims, cases[i].rank, w, cases[i].bytes);
		refused(cases[i].status, import(&m, 13, NULL), cases[i].words);
		contains(tern_detail(), "'w'");
	}
}

/* Cut anywhere, a file is refused or means less, but it does no harm. */
static void cut_files(void **state)
{
	ox_msg graph, m;

	(void)state;
	build_layer(&graph);
	ox_model(&m, &graph, 13);
	for (size_t n = 0; n < m.length; n++) {
		char *exact = malloc(n + 1);

		memcpy(exact, m.text, n);
		if (tern_graph_import_onnx_bytes(exact, n, NULL, &g) == TERN_OK)
			tern_graph_destroy(g);
		g = NULL;
		free(exact);
	}
	tn_str_fini(&m);
}

static void deep_files(void **state)
{
	ox_msg m;

	(void)state;
	tn_str_init(&m);
	for (unsigned i = 0; i < 999; i++) { /* graph in attribute in node in graph ... */
		ox_msg outer;

		tn_str_init(&outer);
		ox_put(&outer, i % 3 == 0 ? 6 : i % 3 == 1 ? 5 : 1, &m);
		m = outer;
	}
	refused(TERN_E_TOO_LARGE, import(&m, 13, NULL), "nested");
}

static void external_data(void **state)
{
	static const float w[6] = {1, 2, 3, 4, 5, 6};
	const char *const locations[] = {"weights", "../weights", "/weights", "missing"};
	const tern_status expected[] = {TERN_OK, TERN_E_INVALID, TERN_E_INVALID, TERN_E_IO};
	char folder[] = "onnx-XXXXXX", path[64];
	ox_msg graph, tensor, entry, m;
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/weights", folder);
	file = fopen(path, "w");
	assert_int_equal(fwrite("abcd", 4, 1, file) + fwrite(w, sizeof(w), 1, file), 2);
	fclose(file);
	for (unsigned i = 0; i < 4; i++) {
		tn_str_init(&tensor);
		ox_int(&tensor, 1, 6);
		ox_int(&tensor, 2, FLOAT);
		ox_text(&tensor, 8, "w");
		ox_int(&tensor, 14, 1);
		for (unsigned k = 0; k < 2; k++) {
			tn_str_init(&entry);
			ox_text(&entry, 1, k ? "offset" : "location");
			ox_text(&entry, 2, k ? "4" : locations[i]);
			ox_put(&tensor, 13, &entry);
		}
		tn_str_init(&graph);
		ox_put(&graph, 5, &tensor);
		ox_port(&graph, 12, "w", FLOAT, DIMS(6));
		ox_model(&m, &graph, 13);
		snprintf(path, sizeof(path), "%s/model.onnx", folder);
		file = fopen(path, "w");
		assert_int_equal(fwrite(m.text, m.length, 1, file), 1);
		fclose(file);
		assert_int_equal(tern_graph_import_onnx(path, NULL, &g), expected[i]);
		if (g)
			assert_memory_equal(g->nodes[0].data, w, sizeof(w));
		tern_graph_destroy(g);
		g = NULL;
		tn_str_fini(&m);
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/weights", folder);
	unlink(path);
	rmdir(folder);
}

/* ---- arrays ---- */

static void arrays_go_through_files(void **state)
{
	char path[] = "onnx-XXXXXX";
	int64_t numbers[6] = {1, -2, 3, 4, 5, INT64_MIN};
	const tern_shape shapes[] = {{0}, {1, {6}}, {2, {3, 2}}, {3, {2, 0, 3}}};
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	for (unsigned i = 0; i < 4; i++) {
		tern_array a = {NULL, TERN_I64, shapes[i], numbers}, b = {0};
		uint64_t bytes;

		assert_ok(tn_shape_bytes(&a.shape, a.dtype, &bytes));
		assert_ok(tern_array_write(path, &a));
		assert_ok(tern_array_read(path, &b));
		assert_int_equal(b.dtype, TERN_I64);
		assert_true(tn_shape_equal(&a.shape, &b.shape));
		if (bytes)
			assert_memory_equal(b.data, numbers, bytes);
		tern_array_free(&b);
	}
	unlink(path);
}

static void broken_arrays(void **state)
{
	const struct {
		const char *head;
		tern_status status;
	} cases[] = {
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", TERN_OK},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", TERN_E_CORRUPT},
		{"{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", TERN_E_UNSUPPORTED},
		{"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", TERN_E_UNSUPPORTED},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (2,", TERN_E_CORRUPT},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
		 TERN_E_CORRUPT},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (2,1,1,1,1,1,1,1,1), }", TERN_E_CORRUPT},
		{"{'shape': (2,)}", TERN_E_UNSUPPORTED},
		{"", TERN_E_UNSUPPORTED},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n = strlen(cases[i].head);
		uint8_t *exact = malloc(10 + n + 8);
		tern_array a = {0};

		memcpy(exact, "\x93NUMPY\x01\x00", 8);
		exact[8] = (uint8_t)n;
		exact[9] = 0;
		memcpy(exact + 10, cases[i].head, n);
		memcpy(exact + 10 + n, (float[]){1, 2}, 8);
		assert_int_equal(tn_array_parse(exact, 10 + n + 8, &a), cases[i].status);
		tern_array_free(&a);
		assert_int_not_equal(tn_array_parse(exact, 9, &a), TERN_OK);
		free(exact);
	}
}

/* ---- the table, the drawing ---- */

static void the_table_is_sorted(void **state)
{
	(void)state;
	for (uint32_t i = 0; tn_ox_op_at(i); i++) {
		const tn_ox_op *op = tn_ox_op_at(i);

		assert_ptr_equal(tn_ox_find_op(op->name), op);
		assert_true(op->since >= 1 && op->since <= TN_OX_OPSET_MAX && op->in_min <= op->in_max);
	}
	assert_null(tn_ox_find_op("Nothing"));
}

static void a_graph_is_drawn(void **state)
{
	char *dot;
	ox_msg m;

	(void)state;
	build_layer(&m);
	assert_ok(import(&m, 13, NULL));
	dot = tern_graph_dot(g);
	contains(dot, "digraph \"model\" {");
	contains(dot, "MatMul\\nh");
	contains(dot, "[label=\"f32[batch,3]\"]");
	tern_graph_text_free(dot);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(weights_become_variables),
		T(sizes_are_put_in),
		T(faults_are_told_together),
		T(shape_arithmetic_disappears),
		T(values_are_asked_for),
		T(sizes_come_from_values),
		T(versions),
		T(broken_tensors),
		T(cut_files),
		T(deep_files),
		T(external_data),
		T(arrays_go_through_files),
		T(broken_arrays),
		T(the_table_is_sorted),
		T(a_graph_is_drawn),
	};

	return RUN(tests);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern graph test`: folders as ONNX lays out its test cases (model.onnx, test_data_set_N/input_I.pb and
 * output_I.pb), run and compared. Threads: main; kernels may use more.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "graph_exec.h"
#include "json.h"

typedef struct test_options {
	const char *dir;
	double rtol, atol;
	uint64_t threads;
	bool json;
} test_options;

typedef enum outcome { PASSED, FAILED, UNSUPPORTED, OUTCOMES } outcome;

static const char *const outcome_names[OUTCOMES] = {"passed", "failed", "unsupported"};

typedef struct data_set {
	tern_array inputs[GRAPH_ARRAYS_MAX], outputs[GRAPH_ARRAYS_MAX];
	uint32_t n_inputs, n_outputs;
} data_set;

/* ---- data ---- */

static tern_status read_arrays(const char *folder, const char *what, tern_array *arrays, uint32_t *n)
{
	for (*n = 0; *n < GRAPH_ARRAYS_MAX; (*n)++) {
		char path[4096];
		tern_status status;

		if (snprintf(path, sizeof(path), "%s/%s_%" PRIu32 ".pb", folder, what, *n) >=
			    (int)sizeof(path) ||
		    access(path, R_OK) != 0)
			return TERN_OK;
		status = tern_array_read(path, &arrays[*n]);
		if (status != TERN_OK)
			return status;
	}
	return TERN_OK;
}

static void free_arrays(tern_array *arrays, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tern_array_free(&arrays[i]);
}

/* ---- comparing ---- */

static bool near(double got, double want, const test_options *o)
{
	if (isnan(want) || isnan(got))
		return isnan(want) && isnan(got);
	if (got == want)
		return true;
	return fabs(got - want) <= o->atol + o->rtol * fabs(want);
}

static bool is_real(tern_dtype dtype)
{
	return dtype == TERN_F32 || dtype == TERN_F64 || dtype == TERN_F16 || dtype == TERN_BF16;
}

/* The first element that is not as it should be; UINT64_MAX if there is none. */
static uint64_t differs(const tern_array *got, const tern_array *want, const test_options *o)
{
	uint64_t n = graph_array_elements(want), size = tern_dtype_bytes(want->dtype);

	for (uint64_t i = 0; i < n; i++) {
		bool same = is_real(want->dtype)
				    ? near(graph_array_real(got, i), graph_array_real(want, i), o)
				    : memcmp((const char *)got->data + i * size,
					     (const char *)want->data + i * size, size) == 0;

		if (!same)
			return i;
	}
	return UINT64_MAX;
}

/* "" or what is wrong with an output. */
static void compare(graph_exec *exec, const tern_array *want, const test_options *o, char *text, size_t size)
{
	char a[GRAPH_SHAPE_MAX], b[GRAPH_SHAPE_MAX];
	tern_array got;
	uint64_t at;

	*text = '\0';
	if (!want->name || graph_exec_fetch(exec, want->name, &got) != TERN_OK) {
		snprintf(text, size, "%s", want->name ? tern_detail() : "an output without a name");
		return;
	}
	graph_shape(exec->graph, &got.shape, a, sizeof(a));
	graph_shape(exec->graph, &want->shape, b, sizeof(b));
	if (got.dtype != want->dtype || strcmp(a, b) != 0) {
		snprintf(text, size, "%s is %s%s, not %s%s", want->name, tern_dtype_name(got.dtype), a,
			 tern_dtype_name(want->dtype), b);
	} else if ((at = differs(&got, want, o)) != UINT64_MAX) {
		snprintf(text, size, "%s: element %" PRIu64 " is %.9g, not %.9g", want->name, at,
			 graph_array_real(&got, at), graph_array_real(want, at));
	}
	free((void *)(uintptr_t)got.data);
}

/* ---- cases ---- */

static outcome run_data(const char *model, const data_set *data, const test_options *o, char *text,
			size_t size)
{
	graph_exec exec;
	tern_status status = graph_exec_run(&exec, model, data->inputs, data->n_inputs, NULL, 0, NULL,
					    (uint32_t)o->threads, true);
	outcome result = PASSED;

	if (status != TERN_OK) {
		snprintf(text, size, "%s: %s", tern_status_name(status), tern_detail());
		result = status == TERN_E_UNSUPPORTED ? UNSUPPORTED : FAILED;
	}
	if (result == PASSED && data->n_outputs == 0) {
		snprintf(text, size, "there are no outputs to compare with");
		result = FAILED;
	}
	for (uint32_t i = 0; i < data->n_outputs && result == PASSED; i++) {
		compare(&exec, &data->outputs[i], o, text, size);
		if (*text)
			result = FAILED;
	}
	graph_exec_free(&exec);
	return result;
}

static outcome run_data_set(const char *folder, const char *model, const test_options *o, char *text,
			    size_t size)
{
	data_set *data = calloc(1, sizeof(*data));
	tern_status status =
		data ? read_arrays(folder, "input", data->inputs, &data->n_inputs) : TERN_E_NOMEM;
	outcome result = FAILED;

	if (status == TERN_OK)
		status = read_arrays(folder, "output", data->outputs, &data->n_outputs);
	if (status != TERN_OK) {
		snprintf(text, size, "%s", data ? tern_detail() : "out of memory");
		result = status == TERN_E_UNSUPPORTED ? UNSUPPORTED : FAILED;
	} else {
		result = run_data(model, data, o, text, size);
	}
	if (data) {
		free_arrays(data->inputs, data->n_inputs);
		free_arrays(data->outputs, data->n_outputs);
	}
	free(data);
	return result;
}

/* All data sets of a case; the first that does not pass decides. */
static outcome run_case(const char *folder, const test_options *o, char *text, size_t size)
{
	char model[4096], set[4096];
	outcome result = PASSED;
	unsigned i;

	*text = '\0';
	snprintf(model, sizeof(model), "%s/model.onnx", folder);
	for (i = 0; result == PASSED; i++) {
		snprintf(set, sizeof(set), "%s/test_data_set_%u", folder, i);
		if (access(set, X_OK) != 0)
			break;
		result = run_data_set(set, model, o, text, size);
	}
	if (i == 0) {
		snprintf(text, size, "there is no test_data_set_0");
		result = FAILED;
	}
	return result;
}

static void report(const test_options *o, const char *name, outcome result, const char *text)
{
	json j;

	if (!o->json) {
		printf("%-11s %s%s%s\n", outcome_names[result], name, *text ? ": " : "", text);
		return;
	}
	json_init(&j, stdout);
	json_object(&j, NULL);
	json_string(&j, "case", name);
	json_string(&j, "outcome", outcome_names[result]);
	json_string(&j, "detail", text);
	json_object_end(&j);
	printf("\n");
}

static int has_model(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void one_case(const test_options *o, const char *folder, const char *name, unsigned *counts)
{
	char text[1024];
	outcome result = run_case(folder, o, text, sizeof(text));

	counts[result]++;
	report(o, name, result, text);
}

static int run_all(const test_options *o, unsigned *counts)
{
	struct dirent **entries;
	char path[4096];
	int n;

	snprintf(path, sizeof(path), "%s/model.onnx", o->dir);
	if (access(path, R_OK) == 0) {
		one_case(o, o->dir, o->dir, counts);
		return 0;
	}
	n = scandir(o->dir, &entries, has_model, alphasort);
	if (n < 0) {
		fprintf(stderr, "tern graph test: %s: %s\n", o->dir, strerror(errno));
		return 1;
	}
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s/model.onnx", o->dir, entries[i]->d_name);
		if (access(path, R_OK) == 0) {
			snprintf(path, sizeof(path), "%s/%s", o->dir, entries[i]->d_name);
			one_case(o, path, entries[i]->d_name, counts);
		}
		free(entries[i]);
	}
	free(entries);
	return 0;
}

int graph_test(int argc, char **argv)
{
	test_options o = {.threads = 1, .rtol = 1e-3, .atol = 1e-7};
	const arg_row rows[] = {
		{"rtol", ARG_REAL, &o.rtol, "X", "relative difference that is allowed (0.001)", 0, 0, false,
		 NULL},
		{"atol", ARG_REAL, &o.atol, "X", "absolute difference that is allowed (1e-7)", 0, 0, false,
		 NULL},
		{"threads", ARG_U64, &o.threads, "N", "threads of kernels (1)", 1, 1024, false, NULL},
		{"json", ARG_FLAG, &o.json, NULL, "one JSON object per case, a line each", 0, 0, false, NULL},
		{0},
	};
	const arg_usage usage = {
		"tern graph test", "run test cases: a model with inputs and the outputs to expect",
		"DIR [options]",
		"DIR is a case (model.onnx, test_data_set_0/input_0.pb, ... output_0.pb), or holds cases.\n"
		"Status 1 if one fails.\n",
		1};
	int status = args_parse(&usage, rows, argc, argv, &o.dir);
	unsigned counts[OUTCOMES] = {0};

	if (status >= 0)
		return status;
	if (!o.dir) {
		fprintf(stderr, "tern graph test: which folder?\n");
		return 2;
	}
	status = run_all(&o, counts);
	if (!o.json && status == 0)
		printf("%u passed, %u failed, %u unsupported\n", counts[PASSED], counts[FAILED],
		       counts[UNSUPPORTED]);
	return status || counts[FAILED] ? 1 : 0;
}

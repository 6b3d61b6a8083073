/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See graph_exec.h. Threads: main.
 */
#include "graph_exec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---- */

uint64_t graph_array_elements(const tern_array *array)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < array->shape.rank; i++)
		n *= array->shape.dims[i];
	return n;
}

uint64_t graph_array_bytes(const tern_array *array)
{
	return graph_array_elements(array) * tern_dtype_bytes(array->dtype);
}

/* IEEE binary16. */
static double half_real(uint16_t h)
{
	int exponent = h >> 10 & 31, fraction = h & 1023;
	double sign = h >> 15 ? -1.0 : 1.0;

	if (exponent == 31)
		return fraction ? (double)NAN : sign * (double)INFINITY;
	return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double bfloat_real(uint16_t b)
{
	uint32_t bits = (uint32_t)b << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return (double)f;
}

double graph_array_real(const tern_array *array, uint64_t i)
{
	switch (array->dtype) {
	case TERN_F32:
		return (double)((const float *)array->data)[i];
	case TERN_F64:
		return ((const double *)array->data)[i];
	case TERN_F16:
		return half_real(((const uint16_t *)array->data)[i]);
	case TERN_BF16:
		return bfloat_real(((const uint16_t *)array->data)[i]);
	case TERN_I8:
		return ((const int8_t *)array->data)[i];
	case TERN_U8:
	case TERN_BOOL:
		return ((const uint8_t *)array->data)[i];
	case TERN_I32:
		return ((const int32_t *)array->data)[i];
	case TERN_I64:
		return (double)((const int64_t *)array->data)[i];
	default:
		return (double)((const uint64_t *)array->data)[i];
	}
}

/* ---- running ---- */

static const tern_array *array_of(const tern_array *inputs, uint32_t n, const char *name)
{
	for (uint32_t i = 0; i < n; i++) {
		if (inputs[i].name && strcmp(inputs[i].name, name) == 0)
			return &inputs[i];
	}
	return NULL;
}

static bool has_symbol(const tern_graph *graph, const char *wanted)
{
	for (uint32_t i = 0; i < GRAPH_SIZES_MAX; i++) {
		const char *name = tern_graph_symbol_name(graph, UINT64_MAX - i);

		if (name && strcmp(name, wanted) == 0)
			return true;
	}
	return false;
}

/*
 * The size of each dim that is still symbolic (an import puts the given sizes in): as given, or as the first array
 * that has the dim says.
 */
static uint32_t take_sizes(const graph_exec *exec, const tern_array *inputs, uint32_t n_inputs,
			   const tern_size *given, uint32_t n_given, tern_size *sizes)
{
	tern_value_info info;
	tern_value value;
	const char *name;
	uint32_t n = 0;
	int is_input;

	for (uint32_t i = 0; i < n_given && n < GRAPH_SIZES_MAX; i++) {
		if (has_symbol(exec->graph, given[i].name))
			sizes[n++] = given[i];
	}
	for (uint32_t i = 0; tern_graph_port(exec->graph, i, &name, &is_input, &value) == TERN_OK; i++) {
		const tern_array *a = is_input ? array_of(inputs, n_inputs, name) : NULL;

		if (!a || tern_graph_value(exec->graph, value, &info) != TERN_OK ||
		    info.shape.rank != a->shape.rank)
			continue;
		for (uint32_t d = 0; d < info.shape.rank; d++) {
			const char *symbol = tern_graph_symbol_name(exec->graph, info.shape.dims[d]);
			uint32_t k = 0;

			while (symbol && k < n && strcmp(sizes[k].name, symbol) != 0)
				k++;
			if (symbol && k == n && n < GRAPH_SIZES_MAX)
				sizes[n++] = (tern_size){symbol, a->shape.dims[d]};
		}
	}
	return n;
}

static bool same_shape(const tern_shape *a, const tern_shape *b)
{
	return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

static tern_status feed(graph_exec *exec, const tern_array *inputs, uint32_t n_inputs, bool quiet)
{
	tern_value_info info;
	tern_value value;
	const char *name;
	int is_input;

	for (uint32_t i = 0; tern_graph_port(exec->graph, i, &name, &is_input, &value) == TERN_OK; i++) {
		const tern_array *a = is_input ? array_of(inputs, n_inputs, name) : NULL;
		tern_status status;
		char shape[GRAPH_SHAPE_MAX];

		if (!is_input)
			continue;
		status = tern_program_port(exec->program, name, 1, &info);
		if (status != TERN_OK)
			return status;
		if (!a || a->dtype != info.dtype ||
		    (!same_shape(&a->shape, &info.shape) && info.shape.rank + a->shape.rank > 0)) {
			if (!quiet)
				fprintf(stderr, "tern graph: input '%s' %s %s%s\n", name,
					a ? "is to be" : "is missing:", tern_dtype_name(info.dtype),
					graph_shape(exec->graph, &info.shape, shape, sizeof(shape)));
			return a ? TERN_E_SHAPE : TERN_E_NOT_FOUND;
		}
		status = tern_program_feed(exec->program, name, a->data, graph_array_bytes(a));
		if (status != TERN_OK)
			return status;
	}
	return TERN_OK;
}

tern_status graph_exec_run(graph_exec *exec, const char *path, const tern_array *inputs, uint32_t n_inputs,
			   const tern_size *sizes, uint32_t n_sizes, const char *weights, uint32_t threads,
			   bool quiet)
{
	tern_onnx_params params = {.sizes = sizes,
				   .n_sizes = n_sizes,
				   .values = inputs,
				   .n_values = n_inputs,
				   .bind = 1,
				   .frozen = weights == NULL};
	tern_size all[GRAPH_SIZES_MAX];
	tern_program_params program = {.sizes = all, .threads = threads};
	tern_status status = TERN_OK;

	*exec = (graph_exec){0};
	if (quiet)
		status = tern_graph_import_onnx(path, &params, &exec->graph);
	else if (!(exec->graph = graph_open(path, &params)))
		return TERN_E_INVALID;
	if (status == TERN_OK) {
		program.n_sizes = take_sizes(exec, inputs, n_inputs, sizes, n_sizes, all);
		status = tern_program_create(exec->graph, &program, &exec->program);
	}
	if (status == TERN_OK && weights)
		status = tern_program_restore(exec->program, weights);
	if (status == TERN_OK)
		status = feed(exec, inputs, n_inputs, quiet);
	if (status == TERN_OK)
		status = tern_program_run(exec->program);
	return status;
}

tern_status graph_exec_fetch(graph_exec *exec, const char *port, tern_array *array)
{
	tern_value_info info;
	tern_status status = tern_program_port(exec->program, port, 0, &info);
	void *data;

	if (status != TERN_OK)
		return status;
	*array = (tern_array){.name = port, .dtype = info.dtype, .shape = info.shape};
	data = malloc(graph_array_bytes(array) + 1);
	if (!data)
		return TERN_E_NOMEM;
	array->data = data;
	status = tern_program_fetch(exec->program, port, data, graph_array_bytes(array));
	if (status != TERN_OK)
		free(data);
	return status;
}

void graph_exec_free(graph_exec *exec)
{
	tern_program_destroy(exec->program);
	tern_graph_destroy(exec->graph);
	*exec = (graph_exec){0};
}

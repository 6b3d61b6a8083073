/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's ops whose outputs are known when the graph is made: constants, shapes, ranges. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/onnx/import.h"

#define KNOWN_MAX \
	(UINT64_C(1) << 20) /* bytes; larger tensors of one value are expanded when the graph runs */

/* ---- Constant ---- */

static tern_status constant_list(tn_ox *x, const Onnx__AttributeProto *a)
{
	const void *from = a->floats;
	uint64_t n = a->n_floats;
	tern_dtype dtype = TERN_F32;
	tern_shape shape = {.rank = 1};

	if (strcmp(a->name, "value_ints") == 0) {
		from = a->ints;
		n = a->n_ints;
		dtype = TERN_I64;
	}
	shape.dims[0] = n;
	return tn_ox_out_known(x, 0, dtype, &shape, tn_values_new(from, n * tern_dtype_bytes(dtype)), false);
}

tern_status tn_ox_op_constant(tn_ox *x)
{
	const Onnx__AttributeProto *a = x->node->n_attribute == 1 ? x->node->attribute[0] : NULL;
	const char *name = a && a->name ? a->name : "";
	tern_shape shape = {.rank = 0};
	tern_dtype dtype;
	void *data;

	if (strcmp(name, "value") == 0 && a->t) {
		TN_TRY(tn_ox_tensor_read(a->t, tn_ox_wants(x, 0) ? x->node->output[0] : "", x->folder, &dtype,
					 &shape, &data));
		return tn_ox_out_known(x, 0, dtype, &shape, data, false);
	}
	if (strcmp(name, "value_float") == 0 && a->has_f)
		return tn_ox_out_known(x, 0, TERN_F32, &shape, tn_values_new(&a->f, sizeof(a->f)), false);
	if (strcmp(name, "value_int") == 0 && a->has_i)
		return tn_ox_out_known(x, 0, TERN_I64, &shape, tn_values_new(&a->i, sizeof(a->i)), false);
	if (strcmp(name, "value_floats") == 0 || strcmp(name, "value_ints") == 0)
		return constant_list(x, a);
	return tn_ox_fail(x, TERN_E_UNSUPPORTED, "tern does not read a constant by '%.60s'", name);
}

/* ---- shapes ---- */

tern_status tn_ox_op_shape(tn_ox *x)
{
	const tern_shape *s = &tn_ox_in(x, 0)->shape;
	int64_t rank = s->rank, dims[TERN_RANK_MAX] = {0};
	int64_t start = tn_ox_int(x, "start", 0), end = tn_ox_int(x, "end", rank);
	tern_shape shape = {.rank = 1};
	bool symbols = false;

	start = TN_MIN(TN_MAX(start < 0 ? start + rank : start, 0), rank);
	end = TN_MIN(TN_MAX(end < 0 ? end + rank : end, start), rank);
	shape.dims[0] = (uint64_t)(end - start);
	for (int64_t i = start; i < end; i++) {
		dims[i - start] = tn_ox_from_dim(s->dims[i]);
		symbols |= tn_dim_symbolic(s->dims[i]);
	}
	return tn_ox_out_known(x, 0, TERN_I64, &shape, tn_values_new(dims, shape.dims[0] * sizeof(*dims)),
			       symbols);
}

tern_status tn_ox_op_size(tn_ox *x)
{
	tern_shape scalar = {.rank = 0};
	uint64_t n;

	if (tn_shape_symbolic(&tn_ox_in(x, 0)->shape))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "its input has a symbolic dim: give its size");
	TN_TRY(tn_shape_elements(&tn_ox_in(x, 0)->shape, &n));
	return tn_ox_out_known(x, 0, TERN_I64, &scalar, tn_values_new(&n, sizeof(n)), false);
}

/* ---- ranges ---- */

static tern_status range_of_ints(tn_ox *x, tern_dtype dtype, tern_shape *shape)
{
	int64_t start, limit, delta;
	void *data;

	TN_TRY(tn_ox_known_int(x, 0, 0, &start));
	TN_TRY(tn_ox_known_int(x, 1, 0, &limit));
	TN_TRY(tn_ox_known_int(x, 2, 0, &delta));
	shape->dims[0] = 0;
	if (delta == 0 || llabs(start) > INT64_MAX / 4 || llabs(limit) > INT64_MAX / 4 ||
	    llabs(delta) > INT64_MAX / 4)
		return tn_ox_fail(x, TERN_E_INVALID, "its step is 0, or its numbers are out of range");
	if ((limit - start) / delta >= 0 && limit != start && (limit > start) == (delta > 0))
		shape->dims[0] = (uint64_t)((limit - start + delta - (delta > 0 ? 1 : -1)) / delta);
	if (shape->dims[0] > KNOWN_MAX)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it has %" PRIu64 " elements", shape->dims[0]);
	TN_TRY(tn_ox_charge(x, shape->dims[0] * 8));
	data = tn_values_new(NULL, shape->dims[0] * 8);
	for (uint64_t i = 0; i < shape->dims[0] && data; i++) {
		if (dtype == TERN_I32)
			((int32_t *)data)[i] = (int32_t)(start + (int64_t)i * delta);
		else
			((int64_t *)data)[i] = start + (int64_t)i * delta;
	}
	return tn_ox_out_known(x, 0, dtype, shape, data, false);
}

static tern_status range_of_reals(tn_ox *x, tern_dtype dtype, tern_shape *shape)
{
	double start, limit, delta, n;
	void *data;

	TN_TRY(tn_ox_known_real(x, 0, 0, &start));
	TN_TRY(tn_ox_known_real(x, 1, 0, &limit));
	TN_TRY(tn_ox_known_real(x, 2, 0, &delta));
	n = ceil((limit - start) / delta);
	if (!(n <= (double)KNOWN_MAX))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it has %.9g elements", n);
	shape->dims[0] = n > 0 ? (uint64_t)n : 0;
	TN_TRY(tn_ox_charge(x, shape->dims[0] * 8));
	data = tn_values_new(NULL, shape->dims[0] * 8);
	for (uint64_t i = 0; i < shape->dims[0] && data; i++) {
		double v = start + (double)i * delta;

		if (dtype == TERN_F32)
			((float *)data)[i] = (float)v;
		else
			((double *)data)[i] = v;
	}
	return tn_ox_out_known(x, 0, dtype, shape, data, false);
}

tern_status tn_ox_op_range(tn_ox *x)
{
	tern_dtype dtype = tn_ox_in(x, 0)->dtype;
	tern_shape shape = {.rank = 1};

	if (dtype == TERN_I32 || dtype == TERN_I64)
		return range_of_ints(x, dtype, &shape);
	if (dtype == TERN_F32 || dtype == TERN_F64)
		return range_of_reals(x, dtype, &shape);
	return tn_ox_fail(x, TERN_E_UNSUPPORTED, "ranges of %s are not made", tern_dtype_name(dtype));
}

/* ---- filled tensors ---- */

static tern_status fill(tn_ox *x, tern_dtype dtype, const tern_shape *shape, const void *value)
{
	uint64_t size = tern_dtype_bytes(dtype), n;
	tern_shape scalar = {.rank = 0};
	tn_attr attr = {.key = TN_ATTR_SHAPE, .u.ints = {.n = shape->rank}};
	uint32_t t;

	if (!tn_shape_symbolic(shape)) {
		TN_TRY(tn_shape_elements(shape, &n));
		if (n <= KNOWN_MAX / size && tn_ox_charge(x, n * size) == TERN_OK) {
			char *data = tn_values_new(NULL, n * size);

			for (uint64_t i = 0; i < n && data; i++)
				memcpy(data + i * size, value, size);
			return tn_ox_out_known(x, 0, dtype, shape, data, false);
		}
	}
	for (uint32_t i = 0; i < shape->rank; i++)
		attr.u.ints.v[i] = (int64_t)shape->dims[i];
	TN_TRY(tn_ox_constant(x, dtype, &scalar, value, &t));
	TN_TRY(tn_ox_add(x, TN_OP_EXPAND, &t, 1, &attr, 1, &t));
	tn_ox_out(x, 0, t);
	return TERN_OK;
}

tern_status tn_ox_op_constant_of_shape(tn_ox *x)
{
	const Onnx__AttributeProto *a = tn_ox_attr(x, "value");
	tern_dtype dtype = TERN_F32;
	tern_shape shape = {.rank = 0}, one;
	int64_t dims[TERN_RANK_MAX];
	void *value = NULL;
	float zero = 0;
	uint64_t n = 1;
	tern_status st;

	TN_TRY(tn_ox_known_dims(x, 0, dims, TERN_RANK_MAX, &shape.rank));
	for (uint32_t i = 0; i < shape.rank; i++) {
		if (dims[i] < 0 && !tn_ox_is_symbol(dims[i]))
			return tn_ox_fail(x, TERN_E_INVALID, "dim %u is %" PRIi64, i, dims[i]);
		shape.dims[i] = tn_ox_to_dim(dims[i]);
	}
	if (a && a->t)
		TN_TRY(tn_ox_tensor_read(a->t, "value", x->folder, &dtype, &one, &value));
	st = value ? tn_shape_elements(&one, &n) : TERN_OK;
	if (st == TERN_OK && n != 1)
		st = tn_ox_fail(x, TERN_E_CORRUPT, "its value has %" PRIu64 " elements", n);
	if (st == TERN_OK)
		st = fill(x, dtype, &shape, value ? value : &zero);
	tn_values_unref(value);
	return st;
}

tern_status tn_ox_op_eye_like(tn_ox *x)
{
	const tn_ox_value *v = tn_ox_in(x, 0);
	tern_dtype dtype = tn_ox_has(x, "dtype") ? tn_ox_dtype((int32_t)tn_ox_int(x, "dtype", 0)) : v->dtype;
	int64_t k = tn_ox_int(x, "k", 0);
	uint64_t size = tern_dtype_bytes(dtype), n;
	static const float f32 = 1;
	static const double f64 = 1;
	static const int64_t i64 = 1; /* and the smaller ones, little endian */
	const void *one = dtype == TERN_F32   ? (const void *)&f32
			  : dtype == TERN_F64 ? (const void *)&f64
					      : &i64;
	char *data;

	if (v->shape.rank != 2 || tn_shape_symbolic(&v->shape) || !size || dtype == TERN_F16 ||
	    dtype == TERN_BF16)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "tern makes known matrices of 32 and 64 bit types only");
	TN_TRY(tn_shape_elements(&v->shape, &n));
	if (n > KNOWN_MAX)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "it has %" PRIu64 " elements", n);
	TN_TRY(tn_ox_charge(x, n * size));
	data = tn_values_new(NULL, n * size);
	for (uint64_t i = 0; i < v->shape.dims[0] && data; i++) {
		int64_t col = k > INT32_MAX || k < INT32_MIN ? -1 : (int64_t)i + k;

		if (col >= 0 && (uint64_t)col < v->shape.dims[1])
			memcpy(data + (i * v->shape.dims[1] + (uint64_t)col) * size, one, size);
	}
	return tn_ox_out_known(x, 0, dtype, &v->shape, data, false);
}

/* ---- places ---- */

#define NON_ZERO_MAX 65536u

/* Of known numbers only: how many there are decides the shape. */
tern_status tn_ox_op_non_zero(tn_ox *x)
{
	const tn_ox_value *v = tn_ox_in(x, 0);
	uint32_t n, found = 0, rank = v->shape.rank ? v->shape.rank : 1;
	double *numbers = calloc(NON_ZERO_MAX, sizeof(*numbers));
	tern_status st = numbers ? tn_ox_known_reals(x, 0, numbers, NON_ZERO_MAX, &n)
				 : tn_ox_fail(x, TERN_E_NOMEM, "no memory for its input");
	tern_shape shape = {.rank = 2, .dims = {rank}};
	int64_t *places = NULL;

	for (uint32_t i = 0; st == TERN_OK && i < n; i++)
		shape.dims[1] += numbers[i] != 0;
	if (st == TERN_OK)
		places = tn_values_new(NULL, rank * shape.dims[1] * sizeof(*places));
	for (uint32_t i = 0; places && i < n; i++) {
		uint64_t rest = i;

		if (numbers[i] == 0)
			continue;
		for (uint32_t d = rank; d-- > 0;) {
			uint64_t dim = v->shape.rank ? v->shape.dims[d] : 1;

			places[d * shape.dims[1] + found] = (int64_t)(rest % dim);
			rest /= dim;
		}
		found++;
	}
	free(numbers);
	return st == TERN_OK ? tn_ox_out_known(x, 0, TERN_I64, &shape, places, false) : st;
}

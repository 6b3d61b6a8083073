/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What handlers are made of: inputs and their known values, attributes, nodes to add, results. See import.h.
 *
 * Thread story: see import.h. Tests: tests/unit/graph/onnx_test.c, tests/onnx/node_test.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/half.h"
#include "graph/onnx/import.h"

/* ---- inputs ---- */

uint32_t tn_ox_inputs(const tn_ox *x)
{
	return (uint32_t)x->node->n_input;
}

static tn_ox_value *value_in(const tn_ox *x, uint32_t i)
{
	return i < x->node->n_input && x->in[i] != TN_NONE ? &x->values[x->in[i]] : NULL;
}

const tn_ox_value *tn_ox_in(const tn_ox *x, uint32_t i)
{
	return value_in(x, i);
}

tern_status tn_ox_tensor(tn_ox *x, uint32_t i, uint32_t *tensor)
{
	tn_ox_value *v = value_in(x, i);

	if (!v)
		return tn_ox_fail(x, TERN_E_CORRUPT, "its input %u is missing", i);
	return tn_ox_materialise(x, v, tensor);
}

bool tn_ox_is_known(const tn_ox *x, uint32_t i)
{
	const tn_ox_value *v = value_in(x, i);

	return v && v->data && v->kind != TN_OX_TENSOR;
}

/* Element e of a value of any type that has numbers. */
static double real_at(const tn_ox_value *v, uint64_t e)
{
	switch (v->dtype) {
	case TERN_F32:
		return ((const float *)v->data)[e];
	case TERN_F64:
		return ((const double *)v->data)[e];
	case TERN_F16:
		return tn_f16_to_f32(((const uint16_t *)v->data)[e]);
	case TERN_BF16:
		return tn_bf16_to_f32(((const uint16_t *)v->data)[e]);
	case TERN_I8:
		return ((const int8_t *)v->data)[e];
	case TERN_U8:
	case TERN_BOOL:
		return ((const uint8_t *)v->data)[e];
	case TERN_I32:
		return ((const int32_t *)v->data)[e];
	case TERN_U64:
		return (double)((const uint64_t *)v->data)[e];
	default:
		return (double)((const int64_t *)v->data)[e];
	}
}

static bool int_at(const tn_ox_value *v, uint64_t e, int64_t *i)
{
	if (v->dtype == TERN_I64)
		*i = ((const int64_t *)v->data)[e];
	else if (v->dtype == TERN_I32 || v->dtype == TERN_U8 || v->dtype == TERN_I8 || v->dtype == TERN_BOOL)
		*i = (int64_t)real_at(v, e);
	else
		return false;
	return true;
}

/* The value of input i, which the op must have now. Takes it from what the caller offered, if need be. */
static tern_status known(tn_ox *x, uint32_t i, uint32_t max, tn_ox_value **value, uint32_t *n)
{
	tn_ox_value *v = value_in(x, i);
	uint64_t elements;

	if (!v)
		return tn_ox_fail(x, TERN_E_CORRUPT, "its input %u is missing", i);
	if (!v->data || v->kind == TN_OX_TENSOR)
		return tn_ox_fail(
			x, TERN_E_UNSUPPORTED,
			"its input %u, '%.100s', must be known when the graph is made: give its value", i,
			v->name);
	TN_TRY(tn_shape_elements(&v->shape, &elements));
	if (elements > max)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "its input %u has %" PRIu64 " elements, at most %u are read", i, elements,
				  max);
	v->asked = true;
	*value = v;
	*n = (uint32_t)elements;
	return TERN_OK;
}

tern_status tn_ox_known_dims(tn_ox *x, uint32_t i, int64_t *v, uint32_t max, uint32_t *n)
{
	tn_ox_value *from;

	TN_TRY(known(x, i, max, &from, n));
	for (uint32_t e = 0; e < *n; e++) {
		if (!int_at(from, e, &v[e]))
			return tn_ox_fail(x, TERN_E_CORRUPT, "its input %u must be integers, not %s", i,
					  tern_dtype_name(from->dtype));
	}
	return TERN_OK;
}

tern_status tn_ox_known_ints(tn_ox *x, uint32_t i, int64_t *v, uint32_t max, uint32_t *n)
{
	TN_TRY(tn_ox_known_dims(x, i, v, max, n));
	for (uint32_t e = 0; e < *n && value_in(x, i)->symbols; e++) {
		if (tn_ox_is_symbol(v[e]))
			return tn_ox_fail(
				x, TERN_E_UNSUPPORTED,
				"its input %u is computed from the symbolic dim '%s': give its size", i,
				x->model->symbols[v[e] - TN_OX_SYMBOL]);
	}
	return TERN_OK;
}

tern_status tn_ox_known_reals(tn_ox *x, uint32_t i, double *v, uint32_t max, uint32_t *n)
{
	tn_ox_value *from;

	TN_TRY(known(x, i, max, &from, n));
	for (uint32_t e = 0; e < *n; e++)
		v[e] = real_at(from, e);
	return TERN_OK;
}

tern_status tn_ox_known_int(tn_ox *x, uint32_t i, int64_t dflt, int64_t *v)
{
	uint32_t n = 0;

	*v = dflt;
	if (!value_in(x, i))
		return TERN_OK;
	TN_TRY(tn_ox_known_ints(x, i, v, 1, &n));
	return n == 1 ? TERN_OK : tn_ox_fail(x, TERN_E_CORRUPT, "its input %u must be one number", i);
}

tern_status tn_ox_known_real(tn_ox *x, uint32_t i, double dflt, double *v)
{
	uint32_t n = 0;

	*v = dflt;
	if (!value_in(x, i))
		return TERN_OK;
	TN_TRY(tn_ox_known_reals(x, i, v, 1, &n));
	return n == 1 ? TERN_OK : tn_ox_fail(x, TERN_E_CORRUPT, "its input %u must be one number", i);
}

/* ---- attributes ---- */

const Onnx__AttributeProto *tn_ox_attr(const tn_ox *x, const char *name)
{
	for (size_t i = 0; i < x->node->n_attribute; i++) {
		const Onnx__AttributeProto *a = x->node->attribute[i];

		if (a->name && strcmp(a->name, name) == 0)
			return a;
	}
	return NULL;
}

bool tn_ox_has(const tn_ox *x, const char *name)
{
	return tn_ox_attr(x, name) != NULL;
}

/* The attribute if it has the wanted type. Old files have no type: then the field itself must be there. */
static const Onnx__AttributeProto *typed(tn_ox *x, const char *name, Onnx__AttributeProto__AttributeType type,
					 bool (*there)(const Onnx__AttributeProto *a))
{
	const Onnx__AttributeProto *a = tn_ox_attr(x, name);

	if (!a)
		return NULL;
	if ((a->has_type && a->type != type) || !there(a)) {
		x->bad_attr = name;
		return NULL;
	}
	return a;
}

static bool has_int(const Onnx__AttributeProto *a)
{
	return a->has_i;
}

static bool has_real(const Onnx__AttributeProto *a)
{
	return a->has_f;
}

static bool has_string(const Onnx__AttributeProto *a)
{
	return a->has_s;
}

static bool has_list(const Onnx__AttributeProto *a)
{
	(void)a;
	return true;
}

int64_t tn_ox_int(tn_ox *x, const char *name, int64_t dflt)
{
	const Onnx__AttributeProto *a = typed(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT, has_int);

	return a ? a->i : dflt;
}

double tn_ox_real(tn_ox *x, const char *name, double dflt)
{
	const Onnx__AttributeProto *a =
		typed(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT, has_real);

	return a ? (double)a->f : dflt;
}

bool tn_ox_is(tn_ox *x, const char *name, const char *dflt, const char *text)
{
	const Onnx__AttributeProto *a =
		typed(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING, has_string);

	if (!a)
		return strcmp(dflt, text) == 0;
	return a->s.len == strlen(text) && memcmp(a->s.data, text, a->s.len) == 0;
}

tern_status tn_ox_ints(tn_ox *x, const char *name, int64_t *v, uint32_t max, uint32_t *n)
{
	const Onnx__AttributeProto *a = typed(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS, has_list);

	*n = 0;
	if (!a)
		return TERN_OK;
	if (a->n_ints > max)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "its attribute '%s' has %zu numbers, at most %u are read", name, a->n_ints,
				  max);
	*n = (uint32_t)a->n_ints;
	for (uint32_t i = 0; i < *n; i++)
		v[i] = a->ints[i];
	return TERN_OK;
}

tern_status tn_ox_reals(tn_ox *x, const char *name, double *v, uint32_t max, uint32_t *n)
{
	const Onnx__AttributeProto *a =
		typed(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS, has_list);

	*n = 0;
	if (!a)
		return TERN_OK;
	if (a->n_floats > max)
		return tn_ox_fail(x, TERN_E_UNSUPPORTED,
				  "its attribute '%s' has %zu numbers, at most %u are read", name,
				  a->n_floats, max);
	*n = (uint32_t)a->n_floats;
	for (uint32_t i = 0; i < *n; i++)
		v[i] = (double)a->floats[i];
	return TERN_OK;
}

/* ---- axes ---- */

tern_status tn_ox_axis(const tn_ox *x, int64_t axis, uint32_t rank, uint32_t *out)
{
	int64_t at = axis < 0 ? axis + (int64_t)rank : axis;

	if (axis < -(int64_t)rank || at >= (int64_t)rank || at < 0)
		return tn_ox_fail(x, TERN_E_INVALID, "axis %" PRIi64 " is out of range for rank %u", axis,
				  rank);
	*out = (uint32_t)at;
	return TERN_OK;
}

tern_status tn_ox_axes(tn_ox *x, const char *name, int64_t moved, uint32_t i, int64_t *v, uint32_t *n)
{
	*n = 0;
	if (x->opset < moved)
		return tn_ox_ints(x, name, v, TERN_RANK_MAX, n);
	return tn_ox_in(x, i) ? tn_ox_known_ints(x, i, v, TERN_RANK_MAX, n) : TERN_OK;
}

/* ---- building ---- */

const tern_shape *tn_ox_shape_of(const tn_ox *x, uint32_t tensor)
{
	return &x->graph->tensors[tensor].shape;
}

tern_dtype tn_ox_dtype_of(const tn_ox *x, uint32_t tensor)
{
	return x->graph->tensors[tensor].dtype;
}

/* Nodes that were made for a node of the file have the name of its first output, with the op and a number. */
static const char *next_name(tn_ox *x, const char *what, char buf[TN_NAME_MAX])
{
	const char *base = "unnamed";
	unsigned k;

	for (size_t i = x->node->n_output; i-- > 0;) {
		if (x->node->output[i] && *x->node->output[i])
			base = x->node->output[i];
	}
	snprintf(buf, TN_NAME_MAX, x->made ? "%.90s/%.30s" : "%.90s", base, what);
	/* long names may begin alike: a number that no node before had */
	for (k = strlen(base) > 80 ? x->n_values : 2; tn_graph_find(x->graph, buf) != TN_NONE; k++)
		snprintf(buf, TN_NAME_MAX, "%.80s/%.30s~%u", base, what, k);
	x->made++;
	return buf;
}

static tern_status add(tn_ox *x, tn_op op, const uint32_t *in, uint32_t n_in, const tn_attr *attrs,
		       uint32_t n_attrs, uint32_t *node)
{
	char name[TN_NAME_MAX];
	tn_node_spec spec = {.op = op,
			     .name = next_name(x, tn_op_table[op].name, name),
			     .in = in,
			     .n_in = n_in,
			     .attrs = attrs,
			     .n_attrs = n_attrs,
			     .device = TN_DEVICE_NONE};
	tern_status st = tn_graph_add(x->graph, &spec, node);

	if (st != TERN_OK)
		tn_detail_prefix("%.60s '%.60s'", x->node->op_type, x->node->name ? x->node->name : "");
	return st;
}

tern_status tn_ox_add_outs(tn_ox *x, tn_op op, const uint32_t *in, uint32_t n_in, const tn_attr *attrs,
			   uint32_t n_attrs, uint32_t *outs)
{
	uint32_t node;

	TN_TRY(add(x, op, in, n_in, attrs, n_attrs, &node));
	for (uint32_t i = 0; i < x->graph->nodes[node].n_out; i++)
		outs[i] = x->graph->nodes[node].out[i];
	return TERN_OK;
}

tern_status tn_ox_add(tn_ox *x, tn_op op, const uint32_t *in, uint32_t n_in, const tn_attr *attrs,
		      uint32_t n_attrs, uint32_t *tensor)
{
	uint32_t outs[TN_OUTS_MAX];

	TN_TRY(tn_ox_add_outs(x, op, in, n_in, attrs, n_attrs, outs));
	*tensor = outs[0];
	return TERN_OK;
}

tern_status tn_ox_unary(tn_ox *x, tn_op op, uint32_t a, uint32_t *tensor)
{
	return tn_ox_add(x, op, &a, 1, NULL, 0, tensor);
}

tern_status tn_ox_binary(tn_ox *x, tn_op op, uint32_t a, uint32_t b, uint32_t *tensor)
{
	return tn_ox_add(x, op, (uint32_t[]){a, b}, 2, NULL, 0, tensor);
}

tern_status tn_ox_constant(tn_ox *x, tern_dtype dtype, const tern_shape *shape, const void *data,
			   uint32_t *tensor)
{
	char name[TN_NAME_MAX];
	tn_node_spec spec = {.op = TN_OP_CONSTANT,
			     .name = next_name(x, "Constant", name),
			     .device = TN_DEVICE_NONE,
			     .dtype = dtype,
			     .shape = shape,
			     .data = data};
	uint32_t node;

	TN_TRY(tn_graph_add(x->graph, &spec, &node));
	*tensor = x->graph->nodes[node].out[0];
	return TERN_OK;
}

/* The nearest integer that the type has; 0 for NaN. 2^63 is no int64. */
static int64_t to_int(double v, double low, double high)
{
	if (!(v > low))
		return v <= low ? (int64_t)low : 0;
	return v >= 0x1p63 ? INT64_MAX : v > high ? (int64_t)high : (int64_t)v;
}

tern_status tn_ox_scalar(tn_ox *x, tern_dtype dtype, double value, uint32_t *tensor)
{
	tern_shape shape = {.rank = 0};
	union {
		float f32;
		double f64;
		int64_t i64;
		int32_t i32;
		uint8_t u8;
		uint16_t u16;
	} u = {0};

	switch (dtype) {
	case TERN_F32:
		u.f32 = (float)value;
		break;
	case TERN_F64:
		u.f64 = value;
		break;
	case TERN_F16:
		u.u16 = tn_f16_from_f32((float)value);
		break;
	case TERN_BF16:
		u.u16 = tn_bf16_from_f32((float)value);
		break;
	case TERN_I32:
		u.i32 = (int32_t)to_int(value, INT32_MIN, INT32_MAX);
		break;
	case TERN_I8:
	case TERN_U8:
	case TERN_BOOL:
		u.u8 = (uint8_t)to_int(value, INT8_MIN, UINT8_MAX);
		break;
	default:
		u.i64 = to_int(value, (double)INT64_MIN, 0x1p63);
	}
	return tn_ox_constant(x, dtype, &shape, &u, tensor);
}

tern_status tn_ox_reshape(tn_ox *x, uint32_t tensor, const tern_shape *shape, uint32_t *out)
{
	tn_attr a = {.key = TN_ATTR_SHAPE, .u.ints = {.n = shape->rank}};

	if (tn_shape_equal(shape, tn_ox_shape_of(x, tensor))) {
		*out = tensor;
		return TERN_OK;
	}
	for (uint32_t i = 0; i < shape->rank; i++)
		a.u.ints.v[i] = (int64_t)shape->dims[i];
	return tn_ox_add(x, TN_OP_RESHAPE, &tensor, 1, &a, 1, out);
}

tern_status tn_ox_cast(tn_ox *x, uint32_t tensor, tern_dtype dtype, uint32_t *out)
{
	tn_attr to = tn_attr_int(TN_ATTR_TO, dtype);

	if (tn_ox_dtype_of(x, tensor) == dtype) {
		*out = tensor;
		return TERN_OK;
	}
	return tn_ox_add(x, TN_OP_CAST, &tensor, 1, &to, 1, out);
}

tern_status tn_ox_slice(tn_ox *x, uint32_t tensor, uint32_t axis, int64_t start, int64_t end, uint32_t *out)
{
	int64_t axis64 = axis;
	tn_attr attrs[] = {tn_ox_attr_ints(TN_ATTR_STARTS, &start, 1), tn_ox_attr_ints(TN_ATTR_ENDS, &end, 1),
			   tn_ox_attr_ints(TN_ATTR_AXES, &axis64, 1)};

	return tn_ox_add(x, TN_OP_SLICE, &tensor, 1, attrs, 3, out);
}

/* ---- results ---- */

bool tn_ox_wants(const tn_ox *x, uint32_t i)
{
	return i < x->node->n_output && x->node->output[i] && *x->node->output[i];
}

void tn_ox_out(tn_ox *x, uint32_t i, uint32_t tensor)
{
	if (tn_ox_wants(x, i))
		x->results[i] = (tn_ox_result){.tensor = tensor};
}

tern_status tn_ox_out_known(tn_ox *x, uint32_t i, tern_dtype dtype, const tern_shape *shape, void *data,
			    bool symbols)
{
	if (!data)
		return tn_ox_fail(x, TERN_E_NOMEM, "no memory for its output");
	if (!tn_ox_wants(x, i)) {
		tn_values_unref(data);
		return TERN_OK;
	}
	x->results[i] = (tn_ox_result){
		.tensor = TN_NONE, .dtype = dtype, .shape = *shape, .data = data, .symbols = symbols};
	return TERN_OK;
}

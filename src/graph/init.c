/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values of variables: element i is a pure function of (seed, name, i), computed in integers and
 * exactly rounded float operations, so that every process of a job and every machine gets the same bytes.
 *
 * Thread story: pure. Tests: tests/unit/graph/init_test.c pins values.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "graph/ir.h"

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint64_t stream_of(uint64_t seed, const char *name)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
	return mix(mix(seed + UINT64_C(0x9e3779b97f4a7c15)) ^ h);
}

/* Bound of the uniform distribution. A matrix is (fan_in, fan_out); other ranks count as fan_in x 1. */
static float bound_of(const tern_init *init, const tern_shape *shape)
{
	double fan_in = shape->rank ? (double)shape->dims[0] : 1.0;
	double fan_out = shape->rank > 1 ? (double)shape->dims[shape->rank - 1] : 1.0;

	for (uint32_t i = 1; i + 1 < shape->rank; i++)
		fan_in *= (double)shape->dims[i];
	if (init->kind == TERN_INIT_XAVIER_UNIFORM)
		return (float)sqrt(6.0 / (fan_in + fan_out));
	if (init->kind == TERN_INIT_HE_UNIFORM)
		return (float)sqrt(6.0 / fan_in);
	return init->value;
}

/* Elements first .. first + n - 1 of the variable `name` of the given shape. */
static void fill_range(const tern_init *init, const char *name, const tern_shape *shape, uint64_t first,
		       uint64_t n, float *data)
{
	uint64_t s = stream_of(init->seed, name);
	float bound = bound_of(init, shape);

	if (init->kind == TERN_INIT_DATA) {
		if (n)
			memcpy(data, (const float *)init->data + first, n * sizeof(*data));
		return;
	}
	if (init->kind == TERN_INIT_ZEROS || init->kind == TERN_INIT_CONSTANT) {
		float value = init->kind == TERN_INIT_ZEROS ? 0.0f : init->value;

		for (uint64_t i = 0; i < n; i++)
			data[i] = value;
		return;
	}
	for (uint64_t i = 0; i < n; i++) {
		/* 24 random bits, centred: an exact float in [-2^23, 2^23), then two exact scalings */
		int32_t r =
			(int32_t)(mix(s + (first + i + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 40) - (1 << 23);

		data[i] = (float)r * 0x1p-23f * bound;
	}
}

void tn_init_fill(const tern_init *init, const char *name, const tern_shape *shape, float *data)
{
	uint64_t n = 0;

	if (tn_shape_elements(shape, &n) == TERN_OK) /* it is: checked when the variable was added */
		fill_range(init, name, shape, 0, n, data);
}

void tn_variable_name(const tn_node *node, char *name, size_t size)
{
	char *tail;

	snprintf(name, size, "%s", node->name);
	if (!tn_node_attr(node, TN_ATTR_PARTS))
		return;
	tail = strrchr(name, '/'); /* "/part3" */
	TN_ASSERT(tail);
	*tail = 0;
}

void tn_variable_rows(const tn_node *node, const tern_shape *shape, uint64_t first, uint64_t n, float *data)
{
	uint64_t row = 1;

	for (uint32_t i = 1; i < shape->rank; i++)
		row *= shape->dims[i];
	fill_range(&node->init, node->name, shape, first * row, n * row, data);
}

void tn_variable_fill(const tn_node *node, const tern_shape *shape, float *data)
{
	uint64_t parts = (uint64_t)tn_node_int(node, TN_ATTR_PARTS, 1), row = 1, n = 0;
	uint32_t axis = (uint32_t)tn_node_int(node, TN_ATTR_AXIS, 0);
	tern_shape whole = *shape;
	char name[TN_NAME_MAX];

	if (parts > 1)
		whole.dims[axis] = (uint64_t)tn_node_int(node, TN_ATTR_ROWS, 0);
	for (uint32_t i = axis + 1; i < shape->rank; i++)
		row *= shape->dims[i];
	if (tn_shape_elements(shape, &n) != TERN_OK)
		return;
	tn_variable_name(node, name, sizeof(name));
	fill_range(&node->init, name, &whole,
		   parts > 1 ? row * tn_part_begin(whole.dims[axis],
						   (uint64_t)tn_node_int(node, TN_ATTR_PART, 0), parts)
			     : 0,
		   n, data);
}

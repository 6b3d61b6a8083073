/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes: comparison, sizes with overflow checks, text. A symbolic dim equals only itself.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/ir_test.c.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/fail.h"
#include "graph/ir.h"

/* 2^48 elements: far above any tensor, and times 8 bytes still far from overflow. */
#define ELEMENTS_MAX (UINT64_C(1) << 48)

bool tn_shape_equal(const tern_shape *a, const tern_shape *b)
{
	if (a->rank != b->rank)
		return false;
	for (uint32_t i = 0; i < a->rank; i++) {
		if (a->dims[i] != b->dims[i])
			return false;
	}
	return true;
}

bool tn_shape_symbolic(const tern_shape *shape)
{
	for (uint32_t i = 0; i < shape->rank; i++) {
		if (tn_dim_symbolic(shape->dims[i]))
			return true;
	}
	return false;
}

tern_status tn_shape_elements(const tern_shape *shape, uint64_t *elements)
{
	uint64_t n = 1;
	char text[TN_SHAPE_TEXT_MAX];

	for (uint32_t i = 0; i < shape->rank; i++) {
		if (__builtin_mul_overflow(n, shape->dims[i], &n) || n > ELEMENTS_MAX) {
			return tn_fail(TERN_E_TOO_LARGE, "a tensor of shape %s has more than 2^48 elements",
				       tn_shape_text(NULL, shape, text, sizeof(text)));
		}
	}
	*elements = n;
	return TERN_OK;
}

tern_status tn_shape_bytes(const tern_shape *shape, tern_dtype dtype, uint64_t *bytes)
{
	uint64_t n;
	tern_status st = tn_shape_elements(shape, &n);

	if (st != TERN_OK)
		return st;
	*bytes = n * tern_dtype_bytes(dtype);
	return TERN_OK;
}

char *tn_shape_text(const tern_graph *graph, const tern_shape *shape, char *buf, size_t size)
{
	size_t at = 0;
	int n = snprintf(buf, size, "[");

	at += (size_t)n;
	for (uint32_t i = 0; i < shape->rank && at < size; i++) {
		uint64_t d = shape->dims[i];
		const char *comma = i ? "," : "";

		if (!tn_dim_symbolic(d))
			n = snprintf(buf + at, size - at, "%s%" PRIu64, comma, d);
		else if (graph && tn_dim_symbol(d) < graph->n_symbols)
			n = snprintf(buf + at, size - at, "%s%s", comma, graph->symbols[tn_dim_symbol(d)]);
		else
			n = snprintf(buf + at, size - at, "%s?%" PRIu32, comma, tn_dim_symbol(d));
		at += (size_t)n;
	}
	if (at < size)
		snprintf(buf + at, size - at, "]");
	return buf;
}

int tern_dim_is_symbolic(uint64_t dim)
{
	return tn_dim_symbolic(dim);
}

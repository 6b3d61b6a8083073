/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making of walks, and copies along them; single elements. See kern_walk.h.
 *
 * Thread story: see kern_walk.h. Tests: tests/unit/graph/kern_nodes_test.c.
 */
#include "graph/kern_walk.h"

#include <string.h>

#include "base/check.h"
#include "base/half.h"

void tn_dense_strides(const uint64_t *dims, uint32_t rank, int64_t *strides)
{
	int64_t s = 1;

	for (uint32_t d = rank; d-- > 0;) {
		strides[d] = s;
		s *= (int64_t)dims[d];
	}
}

/* Dim d can be merged into the one kept last: all operands step over it as over one dim. */
static bool merges(const tn_walk *w, int64_t strides[][TN_WALK_DIMS], uint32_t d, uint64_t dim)
{
	for (uint32_t k = 0; k < w->operands; k++) {
		if (w->stride[k][w->rank - 1] != strides[k][d] * (int64_t)dim)
			return false;
	}
	return true;
}

void tn_walk_make(tn_walk *walk, const uint64_t *dims, uint32_t rank, uint32_t operands,
		  int64_t strides[][TN_WALK_DIMS])
{
	tn_walk w = {.operands = operands, .runs = 1, .n = 1};

	TN_ASSERT(rank <= TN_WALK_DIMS && operands <= TN_WALK_OPERANDS);
	for (uint32_t d = 0; d < rank; d++) {
		if (dims[d] == 1)
			continue;
		if (w.rank > 0 && merges(&w, strides, d, dims[d])) {
			w.dims[w.rank - 1] *= dims[d];
		} else {
			w.dims[w.rank++] = dims[d];
		}
		for (uint32_t k = 0; k < operands; k++)
			w.stride[k][w.rank - 1] = strides[k][d];
	}
	if (w.rank > 0) {
		w.rank--;
		w.n = w.dims[w.rank];
		for (uint32_t k = 0; k < operands; k++)
			w.inner[k] = w.stride[k][w.rank];
	}
	for (uint32_t d = 0; d < w.rank; d++)
		w.runs *= w.dims[d];
	if (w.n == 0)
		w.runs = 0;
	*walk = w;
}

void tn_walk_broadcast(tn_walk *walk, const tern_shape *out, const tern_shape *const *in, uint32_t n_in)
{
	int64_t strides[TN_WALK_OPERANDS][TN_WALK_DIMS] = {{0}};

	TN_ASSERT(n_in < TN_WALK_OPERANDS);
	tn_dense_strides(out->dims, out->rank, strides[0]);
	for (uint32_t k = 0; k < n_in; k++) {
		int64_t dense[TERN_RANK_MAX] = {0};
		uint32_t lead = out->rank - in[k]->rank;

		tn_dense_strides(in[k]->dims, in[k]->rank, dense);
		for (uint32_t d = 0; d < in[k]->rank; d++)
			strides[k + 1][lead + d] = in[k]->dims[d] == 1 ? 0 : dense[d];
	}
	tn_walk_make(walk, out->dims, out->rank, n_in + 1, strides);
}

#define COPY_RUN(T)                                                                          \
	static void copy_##T(void *to, const void *from, uint64_t n, int64_t ts, int64_t fs) \
	{                                                                                    \
		T *t = to;                                                                   \
		const T *f = from;                                                           \
                                                                                             \
		if (ts == 1 && fs == 0) {                                                    \
			T x = *f;                                                            \
                                                                                             \
			for (uint64_t i = 0; i < n; i++)                                     \
				t[i] = x;                                                    \
			return;                                                              \
		}                                                                            \
		TN_IVDEP                                                                     \
		for (uint64_t i = 0; i < n; i++)                                             \
			t[(int64_t)i * ts] = f[(int64_t)i * fs];                             \
	}
COPY_RUN(uint8_t)
COPY_RUN(uint16_t)
COPY_RUN(uint32_t)
COPY_RUN(uint64_t)

static void copy_run(void *to, const void *from, uint64_t n, int64_t ts, int64_t fs, uint64_t size)
{
	if (ts == 1 && fs == 1)
		memcpy(to, from, n * size);
	else if (size == 4)
		copy_uint32_t(to, from, n, ts, fs);
	else if (size == 8)
		copy_uint64_t(to, from, n, ts, fs);
	else if (size == 2)
		copy_uint16_t(to, from, n, ts, fs);
	else
		copy_uint8_t(to, from, n, ts, fs);
}

void tn_walk_copy(const tn_walk *w, void *to, const void *from, uint64_t size)
{
	tn_walk_at p = {{0}, {0}};

	for (uint64_t r = 0; r < w->runs; r++) {
		if (r > 0)
			tn_walk_next(w, &p);
		copy_run((char *)to + p.at[0] * (int64_t)size, (const char *)from + p.at[1] * (int64_t)size,
			 w->n, w->inner[0], w->inner[1], size);
	}
}

#define AS(T, v)                             \
	do {                                 \
		T e_ = (T)(v);               \
		memcpy(to, &e_, sizeof(e_)); \
	} while (0)

void tn_element_of(tern_dtype dtype, double x, void *to)
{
	int64_t whole = x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : x == x ? (int64_t)x : 0;

	switch (dtype) {
	case TERN_F32:
		AS(float, x);
		break;
	case TERN_F64:
		AS(double, x);
		break;
	case TERN_F16:
		AS(uint16_t, tn_f16_from_f32((float)x));
		break;
	case TERN_BF16:
		AS(uint16_t, tn_bf16_from_f32((float)x));
		break;
	case TERN_I32:
		AS(int32_t, whole);
		break;
	case TERN_I64:
		AS(int64_t, whole);
		break;
	case TERN_U64:
		AS(uint64_t, x >= 0x1p63 && x < 0x1p64 ? (uint64_t)x : (uint64_t)whole);
		break;
	case TERN_BOOL:
		AS(uint8_t, x != 0);
		break;
	default:
		AS(uint8_t, whole);
		break;
	}
}

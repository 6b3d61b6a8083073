/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ArgMax, ArgMin, CumSum and TopK of one element type. Included by kern_axis.c once per type with T (the type)
 * and NAME(f) (f with the type's suffix) defined; it undefines both. No include guard: that is the point.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_nodes_test.c.
 */

/* NaN beats everything, as in NumPy; of equals the first, or with `last` the last. */
static tern_status NAME(run_arg)(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	int64_t *out = io->out[0];

	for (uint64_t c = 0; c < k->outer * k->inner; c++) {
		const T *x = (const T *)io->in[0] + c / k->inner * k->n * k->inner + c % k->inner, *best = x;

		for (uint64_t i = 1; i < k->n && *best == *best; i++) {
			const T *y = x + i * k->inner;
			bool better = k->largest ? *y > *best : *y < *best;

			if (better || *y != *y || (k->last && *y == *best))
				best = y;
		}
		out[c] = (best - x) / (int64_t)k->inner;
	}
	return TERN_OK;
}

/* `inner` sums side by side, one step of the axis after the other. */
static tern_status NAME(run_cumsum)(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	uint64_t w = k->inner, slab = k->n * w;

	for (uint64_t o = 0; o < k->outer && slab > 0; o++) {
		const T *x = (const T *)io->in[0] + o * slab;
		T *y = (T *)io->out[0] + o * slab;

		for (uint64_t s = 0; s < k->n; s++) {
			uint64_t at = (k->reverse ? k->n - 1 - s : s) * w;
			uint64_t before = k->reverse ? at + w : at - w;

			for (uint64_t j = 0; j < w; j++) {
				T sum = s ? y[before + j] : (T)0;
				T add = k->exclusive ? (s ? x[before + j] : (T)0) : x[at + j];

				y[at + j] = (T)(sum + add);
			}
		}
	}
	return TERN_OK;
}

/* a comes before b: by value, then the lower index. Indices are those along the axis. */
static inline bool NAME(before)(const T *x, uint64_t stride, int64_t a, int64_t b, bool largest)
{
	const T *p = &x[(uint64_t)a * stride], *q = &x[(uint64_t)b * stride];

	if (*p != *q)
		return largest ? *p > *q || *p != *p : *p < *q || *q != *q;
	return a < b;
}

/*
 * The k first are kept as a heap whose root is the last of them, and then sorted: O(n log k) and no memory
 * but the outputs'.
 */
static void NAME(sift)(const T *x, uint64_t stride, int64_t *heap, uint64_t os, uint64_t n, uint64_t i,
		       bool largest)
{
	for (;;) {
		uint64_t child = 2 * i + 1;
		int64_t v = heap[i * os];

		if (child >= n)
			return;
		if (child + 1 < n &&
		    NAME(before)(x, stride, heap[child * os], heap[(child + 1) * os], largest))
			child++;
		if (!NAME(before)(x, stride, v, heap[child * os], largest))
			return;
		heap[i * os] = heap[child * os];
		heap[child * os] = v;
		i = child;
	}
}

static void NAME(top_column)(const axis_kern *k, const T *x, int64_t *index)
{
	uint64_t w = k->inner, n = k->k;

	for (uint64_t i = 0; i < n; i++)
		index[i * w] = (int64_t)i;
	for (uint64_t i = n / 2; i-- > 0;)
		NAME(sift)(x, w, index, w, n, i, k->largest);
	for (uint64_t i = n; i < k->n; i++) {
		if (NAME(before)(x, w, (int64_t)i, index[0], k->largest)) {
			index[0] = (int64_t)i;
			NAME(sift)(x, w, index, w, n, 0, k->largest);
		}
	}
	for (uint64_t i = n; i-- > 1;) {
		int64_t v = index[i * w];

		index[i * w] = index[0];
		index[0] = v;
		NAME(sift)(x, w, index, w, i, 0, k->largest);
	}
}

static tern_status NAME(run_top_k)(tn_kern *kern, const tn_kern_io *io)
{
	const axis_kern *k = (const axis_kern *)kern;
	uint64_t w = k->inner;

	for (uint64_t c = 0; c < k->outer * w && k->k > 0; c++) {
		const T *x = (const T *)io->in[0] + c / w * k->n * w + c % w;
		uint64_t at = c / w * k->k * w + c % w;
		int64_t *index = (int64_t *)io->out[1] + at;

		NAME(top_column)(k, x, index);
		for (uint64_t i = 0; i < k->k; i++)
			((T *)io->out[0])[at + i * w] = x[(uint64_t)index[i * w] * w];
	}
	return TERN_OK;
}

#undef T
#undef NAME

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds say: medians, compared within a round, and how sure that is. Threads: none.
 */
#include <stdlib.h>

#include "bench.h"

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* How many values at each end of n the interval leaves out: as many as the sign test allows. */
static uint32_t left_out(uint32_t n)
{
	double all = 1, ways = 1, below = 0;
	uint32_t k = 0;

	for (uint32_t i = 0; i < n; i++)
		all *= 2;
	for (; k < n / 2; k++) { /* ways: C(n, k) */
		below += ways;
		if (2 * below / all > 0.05)
			break;
		ways = ways * (n - k) / (k + 1);
	}
	return k ? k - 1 : 0;
}

spread spread_of(double *v, uint32_t n)
{
	uint32_t k = left_out(n);

	qsort(v, n, sizeof(v[0]), by_value);
	return (spread){v[n / 2], v[k], v[n - 1 - k]};
}

spread median_of(const figures *f, uint32_t n, metric what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++)
		v[i] = f[i].of[what];
	return spread_of(v, n);
}

spread saved_of(const figures *f, const figures *local, const figures *kernel, uint32_t n, metric what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++) {
		double below = kernel[i].of[what] - local[i].of[what];

		v[i] = below > 0 ? 100 * (1 - (f[i].of[what] - local[i].of[what]) / below) : 0;
	}
	return spread_of(v, n);
}

spread ratio_of(const figures *f, const figures *other, uint32_t n, metric what)
{
	double v[ROUNDS_MAX];

	for (uint32_t i = 0; i < n; i++)
		v[i] = other[i].of[what] > 0 ? f[i].of[what] / other[i].of[what] : 1;
	return spread_of(v, n);
}

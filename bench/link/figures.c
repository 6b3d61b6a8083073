/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Medians and percentiles. Threads: any.
 */
#include <stdlib.h>

#include "bench.h"

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double percentile(double *v, uint64_t n, double share)
{
	if (n == 0)
		return 0;
	qsort(v, n, sizeof(*v), ascending);
	return v[(uint64_t)((double)(n - 1) * share)];
}

double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), ascending);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A counter-based generator per row (splitmix64's finaliser over key and column) and the two distributions.
 *
 * Threads: any. Tests: tests/unit/store/init_test.c.
 */
#include "store/init.h"

#include <math.h>
#include <string.h>

#include "base/map.h"

uint64_t tn_init_seed(uint64_t seed, const char *name)
{
	uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a, 64 bits */

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
	return tn_hash_u64(h, seed);
}

/* The natural logarithm: x = m 2^e, ln m = 2 artanh((m-1)/(m+1)) by its series; error below 1e-15. */
static double ln(double x)
{
	double m, t, t2, sum = 0;
	uint64_t bits;
	int e;

	memcpy(&bits, &x, sizeof(bits));
	e = (int)(bits >> 52) - 1023;
	bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
	memcpy(&m, &bits, sizeof(m));
	if (m > 1.4142135623730951) {
		m *= 0.5;
		e++;
	}
	t = (m - 1) / (m + 1);
	t2 = t * t;
	for (int k = 21; k >= 1; k -= 2)
		sum = sum * t2 + 1.0 / k;
	return 2 * t * sum + e * 0.6931471805599453;
}

static double tail(double p)
{
	static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
				   -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
	static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
				   3.754408661907416e+00};
	double q = sqrt(-2 * ln(p));

	return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
	       ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
}

double tn_normal_quantile(double p)
{
	static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
				   1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
	static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
				   6.680131188771972e+01, -1.328068155288572e+01};
	const double low = 0.02425;
	double q = p - 0.5, r = q * q;

	if (p < low)
		return tail(p);
	if (p > 1 - low)
		return -tail(1 - p);
	return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
	       (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

void tn_init_row(float *row, uint32_t dim, const tern_row_init *init, uint64_t table_seed, uint64_t key)
{
	uint64_t base = tn_hash_u64(key, table_seed);

	if (init->kind == TERN_ROW_ZEROS) {
		memset(row, 0, dim * sizeof(*row));
		return;
	}
	for (uint32_t i = 0; i < dim; i++) {
		uint64_t x = tn_hash_u64(base + (i + 1) * 0x9e3779b97f4a7c15ull, 0);

		if (init->kind == TERN_ROW_CONSTANT)
			row[i] = init->value;
		else if (init->kind == TERN_ROW_UNIFORM)
			row[i] = ((float)(x >> 40) * 0x1p-23f - 1) * init->value;
		else
			row[i] = (float)(tn_normal_quantile(((double)(x >> 12) + 0.5) * 0x1p-52) *
					 (double)init->value);
	}
}

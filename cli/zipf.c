/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks by Zipf's law. See zipf.h. The density x^-s is integrated in closed form, H; a uniform number between the
 * values of H at the ends is turned back into x, rounded to a rank and kept unless it lies in the sliver by which the
 * integral over [k - 1/2, k + 1/2] exceeds k^-s. Near s = 1 the closed form is 0/0, hence expm1 and log1p over their
 * argument.
 */
#include "zipf.h"

#include <math.h>

/* expm1(x) / x and log1p(x) / x, by their series near 0. */
static double expm1_over(double x)
{
	return fabs(x) > 1e-8 ? expm1(x) / x : 1 + x / 2 * (1 + x / 3);
}

static double log1p_over(double x)
{
	return fabs(x) > 1e-8 ? log1p(x) / x : 1 - x * (0.5 - x / 3);
}

/* The integral of t^-s from 1 to x. */
static double integral(double s, double x)
{
	double l = log(x);

	return expm1_over((1 - s) * l) * l;
}

static double inverse(double s, double y)
{
	double t = y * (1 - s);

	return exp(log1p_over(t < -1 ? -1 : t) * y);
}

void zipf_init(zipf *z, uint64_t n, double s)
{
	*z = (zipf){.n = n, .s = s};
	z->first = integral(s, 1.5) - 1;
	z->last = integral(s, (double)n + 0.5);
	z->squeeze = 2 - inverse(s, integral(s, 2.5) - pow(2, -s));
}

uint64_t zipf_draw(const zipf *z, rng *r)
{
	if (z->s <= 0)
		return rng_below(r, z->n);
	for (;;) {
		double u = z->last + rng_real(r) * (z->first - z->last);
		double x = inverse(z->s, u), k = floor(x + 0.5);

		k = k < 1 ? 1 : k > (double)z->n ? (double)z->n : k;
		if (k - x <= z->squeeze || u >= integral(z->s, k + 0.5) - pow(k, -z->s))
			return (uint64_t)k - 1;
	}
}

/* Box and Muller 1958; the second number is thrown away. */
double rng_normal(rng *r)
{
	double u = 1 - rng_real(r);

	return sqrt(-2 * log(u)) * cos(6.283185307179586 * rng_real(r));
}

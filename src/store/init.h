/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values of rows: a pure function of (seed, table name, key, column), the same bits on every machine, so
 * that whoever creates a row creates the same one.
 *
 *   uniform   24 random bits u: (2u - 1) * value, in [-value, value)
 *   normal    value * inverse normal distribution of u (P. J. Acklam 2003, relative error below 1.2e-9), by
 *             additions, products, quotients, square roots and a logarithm of our own: no libm, whose last bit varies
 *
 * Pure. Threads: any. Tests: tests/unit/store/init_test.c.
 */
#ifndef TN_STORE_INIT_H
#define TN_STORE_INIT_H

#include <stdint.h>

#include <tern/ps.h>

/* What seed and name come to: once per table. */
uint64_t tn_init_seed(uint64_t seed, const char *name);
void tn_init_row(float *row, uint32_t dim, const tern_row_init *init, uint64_t table_seed, uint64_t key);

/* The inverse of the standard normal distribution, 0 < p < 1. */
double tn_normal_quantile(double p);

#endif

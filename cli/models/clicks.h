/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of clicks that nobody clicked: numbers and categories drawn at random, and a label from a law that is known, so
 * that what a model comes to can be held against what is possible.
 *
 *   numbers      CLICKS_NUMBERS of a normal distribution
 *   categories   CLICKS_FIELDS, each of `vocabulary` by Zipf's law; a category has a bias and a vector of its own
 *   P(click)     s(w x + x0 x1 + sum of biases + sum over pairs of categories of the products of their vectors - c)
 *
 * A sample is a pure function of (seed, number); the law, of the seed. Threads: any. Tests: tests/unit/cli/dlrm_test.c.
 */
#ifndef CLI_MODELS_CLICKS_H
#define CLI_MODELS_CLICKS_H

#include <stdint.h>

#include "../zipf.h"

#define CLICKS_NUMBERS 8
#define CLICKS_FIELDS  8

typedef struct clicks {
	uint64_t seed;
	zipf ranks;
	double weight[CLICKS_NUMBERS];
} clicks;

typedef struct click {
	float number[CLICKS_NUMBERS];
	uint64_t category[CLICKS_FIELDS]; /* keys, of no two fields the same */
	float probability;                /* the law's */
	float label;                      /* 0 or 1 */
} click;

void clicks_init(clicks *c, uint64_t seed, uint64_t vocabulary, double skew);
void clicks_sample(const clicks *c, uint64_t number, click *out);

/* The chance that one that was clicked has a higher score than one that was not; ties count half. Sorts nothing of the
   caller's. NaN if there are only clicks, only none, or no memory. */
double clicks_auc(const float *score, const float *label, uint64_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated logs of clicks. See clicks.h. Threads: any. Tests: tests/unit/cli/dlrm_test.c.
 */
#include "clicks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATENT 4 /* of a category's vector */

void clicks_init(clicks *c, uint64_t seed, uint64_t vocabulary, double skew)
{
	rng r = rng_make(seed, 0x6c6177);

	c->seed = seed;
	zipf_init(&c->ranks, vocabulary, skew);
	for (int i = 0; i < CLICKS_NUMBERS; i++)
		c->weight[i] = 0.5 * rng_normal(&r);
}

/* What the law has of a category: a bias and a vector. */
static void law_of(const clicks *c, uint64_t key, double *bias, double vector[LATENT])
{
	rng r = rng_make(c->seed ^ 0x63617465, key);

	*bias = 0.5 * rng_normal(&r);
	for (int i = 0; i < LATENT; i++)
		vector[i] = 0.4 * rng_normal(&r);
}

static double of_categories(const clicks *c, rng *r, click *out)
{
	double vector[CLICKS_FIELDS][LATENT], x = 0;

	for (int f = 0; f < CLICKS_FIELDS; f++) {
		double bias;

		out->category[f] = rng_mix(zipf_draw(&c->ranks, r) * CLICKS_FIELDS + (uint64_t)f + 1);
		law_of(c, out->category[f], &bias, vector[f]);
		x += bias;
		for (int g = 0; g < f; g++)
			for (int i = 0; i < LATENT; i++)
				x += vector[f][i] * vector[g][i];
	}
	return x;
}

void clicks_sample(const clicks *c, uint64_t number, click *out)
{
	rng r = rng_make(c->seed, number);
	double x = -0.5;

	for (int i = 0; i < CLICKS_NUMBERS; i++) {
		double v = rng_normal(&r);

		out->number[i] = (float)v;
		x += c->weight[i] * v;
	}
	x += (double)(out->number[0] * out->number[1]);
	x += of_categories(c, &r, out);
	x = 1 / (1 + exp(-x));
	out->probability = (float)x;
	out->label = rng_real(&r) < x;
}

/* ---- AUC: the sum of ranks (Mann and Whitney 1947) ---- */

typedef struct scored {
	float score, label;
} scored;

static int by_score(const void *a, const void *b)
{
	float x = ((const scored *)a)->score, y = ((const scored *)b)->score;

	return (x > y) - (x < y);
}

double clicks_auc(const float *score, const float *label, uint64_t n)
{
	scored *all = malloc((n + 1) * sizeof(*all));
	double clicked = 0, ranks = 0, pairs;

	if (!all)
		return NAN;
	for (uint64_t i = 0; i < n; i++)
		all[i] = (scored){score[i], label[i]};
	qsort(all, n, sizeof(*all), by_score);
	for (uint64_t i = 0, j; i < n; i = j) {
		double here = 0;

		for (j = i; j < n && all[j].score == all[i].score; j++)
			here += (double)all[j].label;
		clicked += here;
		ranks += here * (double)(i + 1 + j) / 2;
	}
	free(all);
	pairs = clicked * ((double)n - clicked);
	return pairs > 0 ? (ranks - clicked * (clicked + 1) / 2) / pairs : NAN;
}

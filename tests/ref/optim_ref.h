/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers the slow, obvious way: one element at a time, the formulas of <tern/ps.h> as they stand, in f32. The
 * oracle of store/optim and of the table engine.
 */
#ifndef TERN_TESTS_REF_OPTIM_REF_H
#define TERN_TESTS_REF_OPTIM_REF_H

#include <math.h>
#include <stdint.h>

#include <tern/ps.h>

/* What one element has beside its value. */
typedef struct ref_state {
	float a, b; /* slots 0 and 1 */
} ref_state;

static inline ref_state ref_start(const tern_optimizer_params *p)
{
	ref_state s = {0, 0};

	if (p->kind == TERN_OPT_ADAGRAD || p->kind == TERN_OPT_RMSPROP)
		s.a = p->initial_accumulator;
	if (p->kind == TERN_OPT_FTRL)
		s.b = p->initial_accumulator;
	return s;
}

static inline int ref_slots(const tern_optimizer_params *p)
{
	switch (p->kind) {
	case TERN_OPT_MOMENTUM:
	case TERN_OPT_ADAGRAD:
		return 1;
	case TERN_OPT_ADAM:
	case TERN_OPT_ADAMW:
	case TERN_OPT_FTRL:
		return 2;
	case TERN_OPT_RMSPROP:
		return p->momentum != 0 ? 2 : 1;
	default:
		return 0;
	}
}

/* 1 / (1 - beta^t), the power by squaring. */
static inline float ref_unbias(float beta, uint32_t t)
{
	double power = 1, square = (double)beta;

	for (; t; t >>= 1, square *= square) {
		if (t & 1)
			power *= square;
	}
	return (float)(1 / (1 - power));
}

static inline float ref_adam(const tern_optimizer_params *p, float lr, float w, ref_state *s, float g,
			     uint32_t t)
{
	float lr_decay = p->kind == TERN_OPT_ADAMW ? lr * p->weight_decay : 0, step;

	s->a = p->beta1 * s->a + (1 - p->beta1) * g;
	s->b = p->beta2 * s->b + (1 - p->beta2) * (g * g);
	step = lr * (s->a * ref_unbias(p->beta1, t)) / (sqrtf(s->b * ref_unbias(p->beta2, t)) + p->epsilon);
	return w - lr_decay * w - step;
}

static inline float ref_ftrl(const tern_optimizer_params *p, float lr, float w, ref_state *s, float g)
{
	int half = p->lr_power == -0.5f;
	float before = half ? sqrtf(s->b) : powf(s->b, -p->lr_power), after;

	s->b = s->b + g * g;
	after = half ? sqrtf(s->b) : powf(s->b, -p->lr_power);
	s->a = s->a + g - (after - before) / lr * w;
	if (fabsf(s->a) > p->l1)
		return ((s->a < 0 ? -p->l1 : p->l1) - s->a) / (after / lr + 2 * p->l2);
	return 0;
}

/* The t-th update (from 1) of an element with value w by gradient g; the new value. */
static inline float ref_step(const tern_optimizer_params *p, float lr_scale, float w, ref_state *s, float g,
			     uint32_t t)
{
	float lr = p->lr * lr_scale;

	if (p->kind == TERN_OPT_NONE)
		return w + g;
	if (p->kind != TERN_OPT_ADAMW)
		g = g + p->weight_decay * w;
	switch (p->kind) {
	case TERN_OPT_SGD:
		return w - lr * g;
	case TERN_OPT_MOMENTUM:
		s->a = p->momentum * s->a + g;
		return w - lr * s->a;
	case TERN_OPT_ADAGRAD:
		s->a = s->a + g * g;
		return w - lr * g / (sqrtf(s->a) + p->epsilon);
	case TERN_OPT_FTRL:
		return ref_ftrl(p, lr, w, s, g);
	case TERN_OPT_RMSPROP:
		s->a = p->rho * s->a + (1 - p->rho) * (g * g);
		if (p->momentum == 0)
			return w - lr * g / (sqrtf(s->a) + p->epsilon);
		s->b = p->momentum * s->b + lr * g / (sqrtf(s->a) + p->epsilon);
		return w - s->b;
	default:
		return ref_adam(p, lr, w, s, g, t);
	}
}

#endif

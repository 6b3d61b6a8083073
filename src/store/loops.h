/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over rows, written once; loops_plain.c, loops_avx2.c and loops_avx512.c include this file and differ by
 * the compiler's flags alone. TN_LOOPS and TN_LOOPS_NAME must be defined. -ffp-contract=off: each operation is
 * rounded by itself, so that every instruction set gives the same bits.
 *
 * Each loop reads element i of its inputs before it writes element i of its outputs, which may be the same arrays:
 * `omp simd` says that no other dependence exists. `bad` is 0 as long as all results are finite (inf * 0 is NaN).
 *
 * Threads: any. Tests: tests/unit/store/optim_test.c, rows_test.c.
 */
#include <math.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "store/optim.h"
#include "store/rows.h"

#define LOOP     _Pragma("omp simd")
#define SUM_LOOP _Pragma("omp simd reduction(+ : bad)")

static bool opt_none(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	float bad = 0;

	(void)c;
	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float w = o->w[i] + o->g[i];

		o->w_out[i] = w;
		bad += w * 0.0f;
	}
	return bad == 0;
}

static bool opt_sgd(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay;
	const float *w_in = o->w, *g_in = o->g;
	float *w_out = o->w_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float w = w_in[i] - lr * g;

		w_out[i] = w;
		bad += w * 0.0f;
	}
	return bad == 0;
}

static bool opt_momentum(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, momentum = c->momentum;
	const float *w_in = o->w, *g_in = o->g, *m_in = o->s0;
	float *w_out = o->w_out, *m_out = o->s0_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float m = momentum * m_in[i] + g;
		float w = w_in[i] - lr * m;

		m_out[i] = m;
		w_out[i] = w;
		bad += w * 0.0f + m * 0.0f;
	}
	return bad == 0;
}

static bool opt_adagrad(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, epsilon = c->epsilon;
	const float *w_in = o->w, *g_in = o->g, *a_in = o->s0;
	float *w_out = o->w_out, *a_out = o->s0_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float a = a_in[i] + g * g;
		float w = w_in[i] - lr * g / (sqrtf(a) + epsilon);

		a_out[i] = a;
		w_out[i] = w;
		bad += w * 0.0f + a * 0.0f;
	}
	return bad == 0;
}

/* lr_decay is 0 for ADAM, decay is 0 for ADAMW. */
static bool opt_adam(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, epsilon = c->epsilon, lr_decay = c->lr_decay;
	const float beta1 = c->beta1, rest1 = c->beta1_rest, beta2 = c->beta2, rest2 = c->beta2_rest;
	const float unbias1 = c->unbias1, unbias2 = c->unbias2;
	const float *w_in = o->w, *g_in = o->g, *m_in = o->s0, *v_in = o->s1;
	float *w_out = o->w_out, *m_out = o->s0_out, *v_out = o->s1_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float m = beta1 * m_in[i] + rest1 * g;
		float v = beta2 * v_in[i] + rest2 * (g * g);
		float step = lr * (m * unbias1) / (sqrtf(v * unbias2) + epsilon);
		float w = w_in[i] - lr_decay * w_in[i] - step;

		m_out[i] = m;
		v_out[i] = v;
		w_out[i] = w;
		bad += w * 0.0f + m * 0.0f + v * 0.0f;
	}
	return bad == 0;
}

/* A row that l1 keeps at 0 has z = 0 and w = 0 where the gradient is NaN no more than others do: NaN > l1 is false,
   so the sum looks at z. */
static bool opt_ftrl(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, l1 = c->l1, l2_twice = c->l2_twice;
	const float *w_in = o->w, *g_in = o->g, *z_in = o->s0, *n_in = o->s1;
	float *w_out = o->w_out, *z_out = o->s0_out, *n_out = o->s1_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float n = n_in[i] + g * g;
		float root = sqrtf(n);
		float z = z_in[i] + g - (root - sqrtf(n_in[i])) / lr * w_in[i];
		float w = (copysignf(l1, z) - z) / (root / lr + l2_twice);

		w = fabsf(z) > l1 ? w : 0.0f;
		z_out[i] = z;
		n_out[i] = n;
		w_out[i] = w;
		bad += w * 0.0f + z * 0.0f + n * 0.0f;
	}
	return bad == 0;
}

static bool opt_rmsprop(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, epsilon = c->epsilon, rho = c->rho, rest = c->rho_rest;
	const float *w_in = o->w, *g_in = o->g, *a_in = o->s0;
	float *w_out = o->w_out, *a_out = o->s0_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float a = rho * a_in[i] + rest * (g * g);
		float w = w_in[i] - lr * g / (sqrtf(a) + epsilon);

		a_out[i] = a;
		w_out[i] = w;
		bad += w * 0.0f + a * 0.0f;
	}
	return bad == 0;
}

static bool opt_rmsprop_momentum(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	const float lr = c->lr, decay = c->decay, epsilon = c->epsilon, rho = c->rho, rest = c->rho_rest;
	const float momentum = c->momentum;
	const float *w_in = o->w, *g_in = o->g, *a_in = o->s0, *m_in = o->s1;
	float *w_out = o->w_out, *a_out = o->s0_out, *m_out = o->s1_out;
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < dim; i++) {
		float g = g_in[i] + decay * w_in[i];
		float a = rho * a_in[i] + rest * (g * g);
		float m = momentum * m_in[i] + lr * g / (sqrtf(a) + epsilon);
		float w = w_in[i] - m;

		a_out[i] = a;
		m_out[i] = m;
		w_out[i] = w;
		bad += w * 0.0f + a * 0.0f + m * 0.0f;
	}
	return bad == 0;
}

static void add(float *dst, const float *src, uint32_t n)
{
	LOOP for (uint32_t i = 0; i < n; i++) dst[i] += src[i];
}

static bool finite_row(const float *row, uint32_t n)
{
	float bad = 0;

	SUM_LOOP
	for (uint32_t i = 0; i < n; i++)
		bad += row[i] * 0.0f;
	return bad == 0;
}

static void from_bf16(float *dst, const uint16_t *src, uint32_t n)
{
	uint32_t *bits = (uint32_t *)(void *)dst;

	LOOP for (uint32_t i = 0; i < n; i++) bits[i] = (uint32_t)src[i] << 16;
}

static void to_bf16(uint16_t *dst, const float *src, uint32_t n)
{
	LOOP for (uint32_t i = 0; i < n; i++)
	{
		uint32_t u, rounded, nan;

		memcpy(&u, &src[i], sizeof(u));
		rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
		nan = (u >> 16) | 0x40;
		dst[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
	}
}

static void from_f16(float *dst, const uint16_t *src, uint32_t n)
{
	uint32_t i = 0;

#if defined(__F16C__)
	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
#endif
	for (; i < n; i++)
		dst[i] = tn_f16_to_f32(src[i]);
}

static void to_f16(uint16_t *dst, const float *src, uint32_t n)
{
	uint32_t i = 0;

#if defined(__F16C__)
	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((void *)(dst + i),
				 _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
	for (; i < n; i++)
		dst[i] = tn_f16_from_f32(src[i]);
}

const tn_loops TN_LOOPS = {
	.name = TN_LOOPS_NAME,
	.apply = {opt_none, opt_sgd, opt_momentum, opt_adagrad, opt_adam, opt_adam, opt_ftrl, opt_rmsprop},
	.rmsprop_momentum = opt_rmsprop_momentum,
	.add = add,
	.finite = finite_row,
	.from_bf16 = from_bf16,
	.to_bf16 = to_bf16,
	.from_f16 = from_f16,
	.to_f16 = to_f16,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What surrounds the loops: the layout of state, coefficients, the choice of instruction set.
 *
 * Threads: any; the choice is made once and is an atomic. Tests: tests/unit/store/optim_test.c.
 */
#include "store/optim.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "store/rows.h"

/* ---- which loops ---- */

static _Atomic(const tn_loops *) chosen;

#if defined(__x86_64__)
const tn_loops *tn_loops_at(unsigned i)
{
	const tn_loops *can[3] = {&tn_loops_plain};
	unsigned n = 1;

	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2")) /* all that have AVX2 have F16C */
		can[n++] = &tn_loops_avx2;
	if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		can[n++] = &tn_loops_avx512;
	return i < n ? can[i] : NULL;
}
#else
const tn_loops *tn_loops_at(unsigned i)
{
	return i == 0 ? &tn_loops_plain : NULL;
}
#endif

static const tn_loops *best(void)
{
	unsigned i = 0;

	while (tn_loops_at(i + 1))
		i++;
	return tn_loops_at(i);
}

void tn_loops_use(int i)
{
	const tn_loops *loops = i < 0 ? NULL : tn_loops_at((unsigned)i);

	atomic_store(&chosen, loops ? loops : best());
}

const tn_loops *tn_loops_get(void)
{
	const tn_loops *loops = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (TN_UNLIKELY(!loops)) {
		loops = best();
		atomic_store_explicit(&chosen, loops, memory_order_relaxed);
	}
	return loops;
}

void tn_rows_add(float *dst, const float *src, uint32_t n)
{
	tn_loops_get()->add(dst, src, n);
}

void tn_rows_clip(float *row, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (isnan(row[i]))
			row[i] = 0;
		else if (isinf(row[i]))
			row[i] = copysignf(0x1p63f, row[i]);
	}
}

/* ---- state ---- */

static void squares(double *pow, double beta)
{
	for (int i = 0; i < 32; i++, beta *= beta)
		pow[i] = beta;
}

void tn_optim_prepare(tn_optim *optim, const tern_optimizer_params *params)
{
	static const uint8_t slots[] = {0, 0, 1, 1, 2, 2, 2, 1};

	*optim = (tn_optim){.params = *params, .slots = slots[params->kind]};
	if (params->kind == TERN_OPT_RMSPROP && params->momentum != 0)
		optim->slots = 2;
	optim->counts = params->kind == TERN_OPT_ADAM || params->kind == TERN_OPT_ADAMW;
	squares(optim->beta1_pow, (double)params->beta1);
	squares(optim->beta2_pow, (double)params->beta2);
}

uint64_t tn_optim_state_bytes(const tn_optim *optim, uint32_t dim)
{
	return (uint64_t)optim->slots * dim * sizeof(float) + (optim->counts ? sizeof(uint32_t) : 0);
}

const char *tn_optim_slot_name(const tn_optim *optim, uint32_t slot)
{
	static const char *const names[][TN_OPTIM_SLOTS_MAX] = {
		[TERN_OPT_MOMENTUM] = {"momentum", NULL},
		[TERN_OPT_ADAGRAD] = {"accumulator", NULL},
		[TERN_OPT_ADAM] = {"m", "v"},
		[TERN_OPT_ADAMW] = {"m", "v"},
		[TERN_OPT_FTRL] = {"z", "n"},
		[TERN_OPT_RMSPROP] = {"accumulator", "momentum"},
	};

	return slot < optim->slots ? names[optim->params.kind][slot] : NULL;
}

/* The slot that starts at initial_accumulator. */
static int accumulator_slot(tern_row_optimizer kind)
{
	return kind == TERN_OPT_ADAGRAD || kind == TERN_OPT_RMSPROP ? 0 : kind == TERN_OPT_FTRL ? 1 : -1;
}

void tn_optim_state_init(const tn_optim *optim, uint32_t dim, void *state)
{
	int slot = accumulator_slot(optim->params.kind);
	float *s = state;

	memset(state, 0, tn_optim_state_bytes(optim, dim));
	for (uint32_t i = 0; slot >= 0 && i < dim; i++)
		s[(uint32_t)slot * dim + i] = optim->params.initial_accumulator;
}

/* ---- applying ---- */

/* beta^t by its binary digits: the same bits everywhere, which pow() does not promise. */
static double power(const double *squares_of, uint32_t t)
{
	double p = 1;

	for (int i = 0; t; i++, t >>= 1) {
		if (t & 1)
			p *= squares_of[i];
	}
	return p;
}

static tn_coef coefficients(const tn_optim *o, float lr_scale)
{
	const tern_optimizer_params *p = &o->params;
	float lr = p->lr * lr_scale;
	bool apart = p->kind == TERN_OPT_ADAMW;

	return (tn_coef){
		.lr = lr,
		.momentum = p->momentum,
		.beta1 = p->beta1,
		.beta1_rest = 1 - p->beta1,
		.beta2 = p->beta2,
		.beta2_rest = 1 - p->beta2,
		.rho = p->rho,
		.rho_rest = 1 - p->rho,
		.epsilon = p->epsilon,
		.decay = apart ? 0 : p->weight_decay,
		.l1 = p->l1,
		.l2_twice = 2 * p->l2,
		.power = -p->lr_power,
		.lr_decay = apart ? lr * p->weight_decay : 0,
	};
}

/* FTRL with a power of its own: as opt_ftrl, by powf. */
static bool ftrl_power(const tn_coef *c, const tn_operands *o, uint32_t dim)
{
	bool finite = true;

	for (uint32_t i = 0; i < dim; i++) {
		float g = o->g[i] + c->decay * o->w[i];
		float n = o->s1[i] + g * g;
		float root = powf(n, c->power);
		float z = o->s0[i] + g - (root - powf(o->s1[i], c->power)) / c->lr * o->w[i];
		float w = (copysignf(c->l1, z) - z) / (root / c->lr + c->l2_twice);

		w = fabsf(z) > c->l1 ? w : 0.0f;
		o->s0_out[i] = z;
		o->s1_out[i] = n;
		o->w_out[i] = w;
		finite = finite && isfinite(w) && isfinite(z) && isfinite(n);
	}
	return finite;
}

bool tn_optim_apply(const tn_optim *optim, float lr_scale, uint32_t dim, const float *w, const void *state,
		    const float *grad, float *w_out, void *state_out)
{
	const tn_loops *loops = tn_loops_get();
	const float *s = state;
	float *s_out = state_out;
	tern_row_optimizer kind = optim->params.kind;
	tn_coef c = coefficients(optim, lr_scale);
	tn_operands o = {w, s, s, grad, w_out, s_out, s_out};

	if (optim->slots == 2) {
		o.s1 = s + dim;
		o.s1_out = s_out + dim;
	}
	if (optim->counts) {
		uint32_t t;

		memcpy(&t, s + 2 * (size_t)dim, sizeof(t));
		t += t < UINT32_MAX;
		memcpy(s_out + 2 * (size_t)dim, &t, sizeof(t));
		c.unbias1 = (float)(1 / (1 - power(optim->beta1_pow, t)));
		c.unbias2 = (float)(1 / (1 - power(optim->beta2_pow, t)));
	}
	if (kind == TERN_OPT_FTRL && optim->params.lr_power != -0.5f)
		return ftrl_power(&c, &o, dim);
	if (kind == TERN_OPT_RMSPROP && optim->slots == 2)
		return loops->rmsprop_momentum(&c, &o, dim);
	return loops->apply[kind](&c, &o, dim);
}

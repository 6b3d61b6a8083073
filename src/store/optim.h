/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimisers: one row, its gradient, its state in; row and state out. Formulas and their sources: <tern/ps.h>.
 *
 *   state of a row   f32 [slots][dim], then u32 updates (ADAM, ADAMW): 4-byte alignment is enough
 *
 *                 slot 0        slot 1     updates
 *   NONE, SGD
 *   MOMENTUM      momentum
 *   ADAGRAD       accumulator
 *   ADAM, ADAMW   m             v          t
 *   FTRL          z             n
 *   RMSPROP       accumulator   momentum (if it is not 0)
 *
 * The loops exist once (loops.h) and are compiled for the plain instruction set, AVX2 and AVX-512; which one runs is
 * chosen once. None is contracted or reordered: all give the same bits, and so does the oracle of the tests, which
 * takes one element at a time. (FTRL with an lr_power other than -0.5 calls powf: the same bits on one machine.)
 *
 * Pure. Threads: any. Tests: tests/unit/store/optim_test.c.
 */
#ifndef TN_STORE_OPTIM_H
#define TN_STORE_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/ps.h>

#define TN_OPTIM_SLOTS_MAX 2

typedef struct tn_optim {
	tern_optimizer_params params;
	uint32_t slots;
	bool counts;                         /* updates are kept */
	double beta1_pow[32], beta2_pow[32]; /* [i]: beta^(2^i) */
} tn_optim;

/* Parameters that tern_table_schema_check takes. */
void tn_optim_prepare(tn_optim *optim, const tern_optimizer_params *params);
uint64_t tn_optim_state_bytes(const tn_optim *optim, uint32_t dim);
/* "momentum", "accumulator", ...: for files. NULL past the last slot. */
const char *tn_optim_slot_name(const tn_optim *optim, uint32_t slot);
void tn_optim_state_init(const tn_optim *optim, uint32_t dim, void *state);

/*
 * w_out and state_out may be w and state, or apart. False: the result has a NaN or an infinity (outputs are garbage);
 * a gradient with one always has such a result.
 */
bool tn_optim_apply(const tn_optim *optim, float lr_scale, uint32_t dim, const float *w, const void *state,
		    const float *grad, float *w_out, void *state_out);

/* dst += src */
void tn_rows_add(float *dst, const float *src, uint32_t n);
/* NaN to 0, infinities to +-2^63. */
void tn_rows_clip(float *row, uint32_t n);

/* ---- what loops.h makes, once per instruction set ---- */

typedef struct tn_coef {
	float lr, momentum, beta1, beta1_rest, beta2, beta2_rest, rho, rho_rest, epsilon, decay, l1, l2_twice,
		power;
	float unbias1, unbias2; /* 1 / (1 - beta^t) */
	float lr_decay;         /* lr * weight_decay */
} tn_coef;

/* Row and slots in and out. */
typedef struct tn_operands {
	const float *w, *s0, *s1, *g;
	float *w_out, *s0_out, *s1_out;
} tn_operands;

typedef struct tn_loops {
	const char *name;
	bool (*apply[TERN_OPT_RMSPROP + 1])(const tn_coef *c, const tn_operands *o, uint32_t dim);
	bool (*rmsprop_momentum)(const tn_coef *c, const tn_operands *o, uint32_t dim);
	void (*add)(float *dst, const float *src, uint32_t n);
	bool (*finite)(const float *row, uint32_t n);
	void (*from_bf16)(float *dst, const uint16_t *src, uint32_t n);
	void (*to_bf16)(uint16_t *dst, const float *src, uint32_t n);
	void (*from_f16)(float *dst, const uint16_t *src, uint32_t n);
	void (*to_f16)(uint16_t *dst, const float *src, uint32_t n);
} tn_loops;
/* The i-th that this CPU can run, 0 = plain; NULL past the last. */
const tn_loops *tn_loops_at(unsigned i);
/* Use the i-th from now on, in the whole process: for tests and benches. -1: the best again. */
void tn_loops_use(int i);
const tn_loops *tn_loops_get(void);

extern const tn_loops tn_loops_plain, tn_loops_avx2, tn_loops_avx512;

#endif

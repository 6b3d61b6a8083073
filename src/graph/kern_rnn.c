/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of LSTM, GRU and RNN: products of matrices by either backend (kern_mm.c), the rest plain C
 * (kern_rnn_body.h). The scratch of a kernel:
 *
 *   what the body wants | R in the layout of its products, per product | what a product wants
 *
 * Compiled with -O3 and without contraction of a*b+c. Thread story: see kern.h.
 * Tests: tests/unit/graph/nn_rnn_test.c, nn_grad_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/kern_nn.h"

/* The products of a run. The first failure stays. */
typedef struct rnn_run {
	tn_mm *const *mms;
	char *packed[TN_RNN_MMS];
	void *scratch;
	tern_status status;
} rnn_run;

static void mm_run(void *cx, uint32_t which, const float *a, const float *b, float *c)
{
	rnn_run *run = cx;
	tn_mm *mm = run->mms[which];

	TN_ASSERT(mm != NULL);
	if (run->status == TERN_OK)
		run->status = mm->run(mm, a, b, c, run->scratch);
}

static const float *mm_pack(void *cx, uint32_t which, const float *b)
{
	rnn_run *run = cx;
	tn_mm *mm = run->mms[which];

	if (!mm->packed_bytes)
		return b;
	if (run->status == TERN_OK)
		run->status = mm->pack(mm, b, (float *)run->packed[which], run->scratch);
	return (const float *)run->packed[which];
}

/*
 * exp to about 2e-7 relative, without a branch or a call so that loops are vectorised: x = n ln 2 + r with
 * |r| <= ln 2 / 2, a Taylor polynomial of r, and n put into the exponent. Clamped to where floats are normal.
 */
static inline float exp_of(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
	float n, r, p, scale;
	uint32_t bits;

	x = x < -87.0f ? -87.0f : x;
	x = x > 88.0f ? 88.0f : x;
	n = x * 1.44269504f + magic;
	memcpy(&bits, &n, sizeof(bits));
	n -= magic;
	r = x - n * 0.693359375f;
	r -= n * -2.12194440e-4f;
	p = 1.0f / 5040.0f;
	p = p * r + 1.0f / 720.0f;
	p = p * r + 1.0f / 120.0f;
	p = p * r + 1.0f / 24.0f;
	p = p * r + 1.0f / 6.0f;
	p = p * r + 0.5f;
	p = p * r + 1.0f;
	p = p * r + 1.0f;
	bits = (bits + 127u) << 23;
	memcpy(&scale, &bits, sizeof(scale));
	return p * scale;
}

static inline float tanh_of(float x)
{
	return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f);
}

#define REAL         float
#define NN_EXP(x)    exp_of(x)
#define NN_TANH(x)   tanh_of(x)
#define NN_MM(...)   mm_run(__VA_ARGS__)
#define NN_PACK(...) mm_pack(__VA_ARGS__)
#include "graph/kern_rnn_body.h"

typedef struct rnn_kern {
	tn_kern base;
	tn_nn_rnn r;
	tn_mm *mms[TN_RNN_MMS];
	uint64_t packed_at[TN_RNN_MMS], scratch_at;
} rnn_kern;

static void open_run(const rnn_kern *k, const tn_kern_io *io, rnn_run *run)
{
	*run = (rnn_run){.mms = k->mms, .scratch = (char *)io->scratch + k->scratch_at, .status = TERN_OK};
	for (uint32_t i = 0; i < TN_RNN_MMS; i++)
		run->packed[i] = (char *)io->scratch + k->packed_at[i];
}

/* X, W, R, B [, H0 [, C0 [, P]]] */
static uint32_t take_inputs(const tn_nn_rnn *r, const tn_kern_io *io, nn_rnn_io *v)
{
	uint32_t i = 4;

	v->x = io->in[0];
	v->w = io->in[1];
	v->rw = io->in[2];
	v->b = io->in[3];
	if (r->has_state)
		v->h0 = io->in[i++];
	if (r->has_state && r->kind == TN_RNN_LSTM)
		v->c0 = io->in[i++];
	if (r->has_peep)
		v->peep = io->in[i++];
	return i;
}

static tern_status run_forward(tn_kern *kern, const tn_kern_io *io)
{
	const rnn_kern *k = (const rnn_kern *)kern;
	rnn_run run;
	nn_rnn_io v = {.y = io->out[0], .yh = io->out[1], .scratch = io->scratch, .cx = &run};

	open_run(k, io, &run);
	take_inputs(&k->r, io, &v);
	if (k->r.kind == TN_RNN_LSTM) {
		v.yc = io->out[2];
		v.ws = io->out[3];
		nn_lstm_forward(&k->r, &v);
	} else if (k->r.kind == TN_RNN_GRU) {
		v.ws = io->out[2];
		nn_gru_forward(&k->r, &v);
	} else {
		nn_rnn_forward(&k->r, &v);
	}
	return run.status;
}

/* The forward node's inputs, Y [, workspace] [, dY] [, dY_h] [, dY_c] */
static tern_status run_backward(tn_kern *kern, const tn_kern_io *io)
{
	const rnn_kern *k = (const rnn_kern *)kern;
	rnn_run run;
	nn_rnn_io v = {.dx = io->out[0],
		       .dw = io->out[1],
		       .drw = io->out[2],
		       .db = io->out[3],
		       .dh0 = io->out[4],
		       .scratch = io->scratch,
		       .cx = &run};
	uint32_t i;

	open_run(k, io, &run);
	i = take_inputs(&k->r, io, &v);
	v.y = io->in[i++];
	if (k->r.kind != TN_RNN_PLAIN)
		v.ws = io->in[i++];
	if (k->r.has_dy)
		v.dy = io->in[i++];
	if (k->r.has_dyh)
		v.dyh = io->in[i++];
	if (k->r.has_dyc)
		v.dyc = io->in[i++];
	if (k->r.kind == TN_RNN_LSTM)
		v.dc0 = io->out[5];
	nn_rnn_backward(&k->r, &v);
	return run.status;
}

/* ---- making ---- */

static void rnn_destroy(tn_kern *kern)
{
	rnn_kern *k = (rnn_kern *)kern;

	for (uint32_t i = 0; i < TN_RNN_MMS; i++)
		tn_mm_destroy(k->mms[i]);
	free(k);
}

static uint64_t up(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static tern_status make_products(tn_dnnl *dnnl, rnn_kern *k, bool gradient, const char *name)
{
	uint64_t at = up(tn_nn_rnn_scratch(&k->r, gradient) * sizeof(float)), most = 0;
	tern_status st = TERN_OK;

	for (uint32_t i = 0; i < TN_RNN_MMS && st == TERN_OK; i++) {
		tn_mm_desc d;

		if (!tn_nn_rnn_mm(&k->r, gradient, i, &d))
			continue;
		st = tn_mm_create(dnnl, &d, name, &k->mms[i]);
		if (st != TERN_OK)
			break;
		k->packed_at[i] = at;
		at += up(k->mms[i]->packed_bytes);
		most = k->mms[i]->scratch_bytes > most ? k->mms[i]->scratch_bytes : most;
	}
	k->scratch_at = at;
	k->base.scratch_bytes = at + most;
	return st;
}

tern_status tn_rnn_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern)
{
	tn_op op = desc->node->op;
	bool gradient = op == TN_OP_LSTM_GRAD || op == TN_OP_GRU_GRAD || op == TN_OP_RNN_GRAD;
	rnn_kern *k = calloc(1, sizeof(*k));
	tern_status st;

	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	tn_nn_rnn_of(desc, &k->r);
	k->base = (tn_kern){.run = gradient ? run_backward : run_forward, .destroy = rnn_destroy};
	st = make_products(dnnl, k, gradient, desc->node->name);
	if (st != TERN_OK) {
		rnn_destroy(&k->base);
		return st;
	}
	*kern = &k->base;
	return TERN_OK;
}

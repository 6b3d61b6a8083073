/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of ONNX's RNN, GRU and LSTM, forward and backward, for one type of number. The includer defines
 * REAL and
 *
 *   NN_MM(cx, which, a, b, c)   the matrix product TN_RNN_MM_<which>
 *   NN_PACK(cx, which, b)       b as that product wants it, once for many
 *   NN_EXP, NN_TANH
 *
 * In float these are kernels (kern_rnn.c), in double the oracle (tests/ref/ref_nn.c).
 *
 *   x (T,B,I)   w (D,gates*H,I)   rw (D,gates*H,H)   b (D,biases*gates*H)   states (D,B,H)   y (T,D,B,H)
 *   gates in ONNX's order: LSTM i o f c, GRU z r h
 *   workspace of LSTM: (D,T,B,4H) gates after their functions, then (D,T,B,H) cells
 *   workspace of GRU:  (D,T,B,4H): z, r, h, and H R^T + its bias of h (for linear_before_reset)
 *
 * The product with the inputs is one for all steps; per step there are small ones.
 */
#include <math.h>
#include <string.h>

#include "graph/kern_nn.h"

typedef struct nn_rnn_io {
	const REAL *x, *w, *rw, *b, *h0, *c0, *peep;
	REAL *y, *yh, *yc, *ws;               /* forward: written; backward: y and ws are read */
	const REAL *dy, *dyh, *dyc;           /* NULL: none */
	REAL *dx, *dw, *drw, *db, *dh0, *dc0; /* backward */
	REAL *scratch;
	void *cx; /* of NN_MM */
} nn_rnn_io;

static REAL nn_sigmoid(REAL x)
{
	return (REAL)1 / ((REAL)1 + (REAL)NN_EXP(-x));
}

static bool nn_rnn_reverse(const tn_nn_rnn *r, int64_t dir)
{
	return dir == 1 || r->first_reverse;
}

/* The time of step s of a direction. */
static int64_t nn_rnn_time(const tn_nn_rnn *r, int64_t dir, int64_t s)
{
	return nn_rnn_reverse(r, dir) ? r->steps - 1 - s : s;
}

/* (B,H) of one step of (T,D,B,H) */
static int64_t nn_rnn_row(const tn_nn_rnn *r, int64_t dir, int64_t t)
{
	return (t * r->dirs + dir) * r->batch * r->hidden;
}

/* The initial state of a direction as (B,H): zeros, one row for all, or one per row. */
static void nn_rnn_state(const tn_nn_rnn *r, const REAL *state, int64_t dir, REAL *to)
{
	int64_t h = r->hidden;

	if (!state) {
		memset(to, 0, (size_t)(r->batch * h) * sizeof(*to));
		return;
	}
	for (int64_t b = 0; b < r->batch; b++)
		memcpy(to + b * h, state + (dir * r->h0_batch + (r->h0_batch == 1 ? 0 : b)) * h,
		       (size_t)h * sizeof(*to));
}

/* Bias number v (0 of W, 1 of R) of a direction and its gate; NULL if there is no such vector. */
static const REAL *nn_rnn_bias(const tn_nn_rnn *r, const REAL *b, int64_t dir, int64_t v, int64_t gate)
{
	if (v >= r->biases)
		return NULL;
	return b + ((dir * r->biases + v) * r->gates + gate) * r->hidden;
}

static REAL nn_or_zero(const REAL *p, int64_t j)
{
	return p ? p[j] : 0;
}

static int64_t nn_rnn_tbh(const tn_nn_rnn *r)
{
	return r->steps * r->batch * r->hidden;
}

static void nn_sigmoids(REAL *x, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		x[j] = nn_sigmoid(x[j]);
}

/* y may be x */
static void nn_tanhs(const REAL *x, REAL *y, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		y[j] = (REAL)NN_TANH(x[j]);
}

/* x += a (+ b, which may be NULL) */
static void nn_rnn_biased(REAL *restrict x, const REAL *restrict a, const REAL *restrict b, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		x[j] += a[j];
	for (int64_t j = 0; b && j < n; j++)
		x[j] += b[j];
}

/* x += a b */
static void nn_rnn_scaled(REAL *restrict x, const REAL *restrict a, const REAL *restrict b, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		x[j] += a[j] * b[j];
}

/* ---- LSTM ---- */

/* One row; p (peepholes i o f) may be NULL. */
static void nn_lstm_cell(int64_t h, const REAL *p, REAL *restrict g, const REAL *restrict c_before,
			 REAL *restrict c, REAL *restrict y)
{
	if (p) {
		nn_rnn_scaled(g, p, c_before, h);
		nn_rnn_scaled(g + 2 * h, p + 2 * h, c_before, h);
	}
	nn_sigmoids(g, h);
	nn_sigmoids(g + 2 * h, h);
	nn_tanhs(g + 3 * h, g + 3 * h, h);
	for (int64_t j = 0; j < h; j++)
		c[j] = g[2 * h + j] * c_before[j] + g[j] * g[3 * h + j];
	if (p)
		nn_rnn_scaled(g + h, p + h, c, h);
	nn_sigmoids(g + h, h);
	nn_tanhs(c, y, h);
	for (int64_t j = 0; j < h; j++)
		y[j] *= g[h + j];
}

static void nn_lstm_step(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t dir, REAL *gates,
			 const REAL *c_before, REAL *c, REAL *y)
{
	const int64_t h = r->hidden;
	const REAL *p = r->has_peep ? io->peep + dir * 3 * h : NULL;
	const REAL *wb = nn_rnn_bias(r, io->b, dir, 0, 0), *rb = nn_rnn_bias(r, io->b, dir, 1, 0);

	for (int64_t b = 0; b < r->batch; b++) {
		nn_rnn_biased(gates + b * 4 * h, wb, rb, 4 * h);
		nn_lstm_cell(h, p, gates + b * 4 * h, c_before + b * h, c + b * h, y + b * h);
	}
}

static void nn_lstm_forward(const tn_nn_rnn *r, const nn_rnn_io *io)
{
	const int64_t h = r->hidden, bh = r->batch * h;
	REAL *h0 = io->scratch, *c0 = h0 + bh;

	for (int64_t d = 0; d < r->dirs; d++) {
		REAL *gates = io->ws + d * nn_rnn_tbh(r) * 4, *cells = io->ws + r->dirs * nn_rnn_tbh(r) * 4;
		const REAL *before = h0, *c_before = c0, *rw;

		cells += d * nn_rnn_tbh(r);
		nn_rnn_state(r, io->h0, d, h0);
		nn_rnn_state(r, io->c0, d, c0);
		NN_MM(io->cx, TN_RNN_MM_X, io->x, io->w + d * 4 * h * r->input, gates);
		rw = NN_PACK(io->cx, TN_RNN_MM_H, io->rw + d * 4 * h * h);
		for (int64_t s = 0; s < r->steps; s++) {
			int64_t t = nn_rnn_time(r, d, s);
			REAL *y = io->y + nn_rnn_row(r, d, t);

			NN_MM(io->cx, TN_RNN_MM_H, before, rw, gates + t * 4 * bh);
			nn_lstm_step(r, io, d, gates + t * 4 * bh, c_before, cells + t * bh, y);
			before = y;
			c_before = cells + t * bh;
		}
		memcpy(io->yh + d * bh, before, (size_t)bh * sizeof(REAL));
		memcpy(io->yc + d * bh, c_before, (size_t)bh * sizeof(REAL));
	}
}

/* One row: from dh (of this step's output) and dc (carried) the gates' gradients, and dc of the step before. */
static void nn_lstm_cell_back(int64_t h, const REAL *restrict g, const REAL *restrict c_before,
			      const REAL *restrict c, const REAL *restrict dh, REAL *restrict dc,
			      REAL *restrict dg)
{
	nn_tanhs(c, dg, h);
	for (int64_t j = 0; j < h; j++) {
		REAL i = g[j], o = g[h + j], f = g[2 * h + j], n = g[3 * h + j], tc = dg[j];
		REAL dcell = dc[j] + dh[j] * o * (1 - tc * tc);

		dg[j] = dcell * n * i * (1 - i);
		dg[h + j] = dh[j] * tc * o * (1 - o);
		dg[2 * h + j] = dcell * c_before[j] * f * (1 - f);
		dg[3 * h + j] = dcell * i * (1 - n * n);
		dc[j] = dcell * f;
	}
}

static void nn_lstm_step_back(const tn_nn_rnn *r, const REAL *gates, const REAL *c_before, const REAL *c,
			      const REAL *dh, REAL *dc, REAL *dg)
{
	const int64_t h = r->hidden;

	for (int64_t b = 0; b < r->batch; b++)
		nn_lstm_cell_back(h, gates + b * 4 * h, c_before + b * h, c + b * h, dh + b * h, dc + b * h,
				  dg + b * 4 * h);
}

/* ---- GRU ---- */

/* z and r, and r H where the reset comes first. */
static void nn_gru_reset(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t dir, REAL *gates,
			 const REAL *before, REAL *reset)
{
	const int64_t h = r->hidden;
	const REAL *wb = nn_rnn_bias(r, io->b, dir, 0, 0), *rb = nn_rnn_bias(r, io->b, dir, 1, 0);

	for (int64_t b = 0; b < r->batch; b++, gates += 4 * h) {
		nn_rnn_biased(gates, wb, rb, 2 * h);
		nn_sigmoids(gates, 2 * h);
		for (int64_t j = 0; j < h && !r->reset_after; j++)
			reset[b * h + j] = gates[h + j] * before[b * h + j];
	}
}

/* One row of gates z, r, h and H R^T; rb may be NULL. */
static void nn_gru_cell(int64_t h, bool reset_after, REAL *restrict g, const REAL *restrict wb,
			const REAL *restrict rb, const REAL *restrict before, REAL *restrict y)
{
	REAL *n = g + 2 * h, *hh = g + 3 * h;

	nn_rnn_biased(n, wb, reset_after ? NULL : rb, h);
	if (!reset_after)
		memset(hh, 0, (size_t)h * sizeof(*hh));
	else if (rb)
		nn_rnn_biased(hh, rb, NULL, h);
	if (reset_after)
		nn_rnn_scaled(n, g + h, hh, h);
	nn_tanhs(n, n, h);
	for (int64_t j = 0; j < h; j++)
		y[j] = (1 - g[j]) * n[j] + g[j] * before[j];
}

static void nn_gru_step(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t dir, REAL *gates, const REAL *before,
			REAL *y)
{
	const int64_t h = r->hidden;
	const REAL *wb = nn_rnn_bias(r, io->b, dir, 0, 2), *rb = nn_rnn_bias(r, io->b, dir, 1, 2);

	for (int64_t b = 0; b < r->batch; b++)
		nn_gru_cell(h, r->reset_after, gates + b * 4 * h, wb, rb, before + b * h, y + b * h);
}

static void nn_gru_forward(const tn_nn_rnn *r, const nn_rnn_io *io)
{
	const int64_t h = r->hidden, bh = r->batch * h;
	REAL *h0 = io->scratch, *reset = h0 + bh;

	for (int64_t d = 0; d < r->dirs; d++) {
		REAL *gates = io->ws + d * nn_rnn_tbh(r) * 4;
		const REAL *before = h0, *rzr, *rn;

		nn_rnn_state(r, io->h0, d, h0);
		NN_MM(io->cx, TN_RNN_MM_X, io->x, io->w + d * 3 * h * r->input, gates);
		rzr = NN_PACK(io->cx, TN_RNN_MM_H, io->rw + d * 3 * h * h);
		rn = NN_PACK(io->cx, TN_RNN_MM_N, io->rw + (d * 3 + 2) * h * h);
		for (int64_t s = 0; s < r->steps; s++) {
			int64_t t = nn_rnn_time(r, d, s);
			REAL *g = gates + t * 4 * bh, *y = io->y + nn_rnn_row(r, d, t);

			NN_MM(io->cx, TN_RNN_MM_H, before, rzr, g);
			nn_gru_reset(r, io, d, g, before, reset);
			if (r->reset_after)
				NN_MM(io->cx, TN_RNN_MM_N, before, rn, g + 3 * h);
			else
				NN_MM(io->cx, TN_RNN_MM_N, reset, rn, g + 2 * h);
			nn_gru_step(r, io, d, g, before, y);
			before = y;
		}
		memcpy(io->yh + d * bh, before, (size_t)bh * sizeof(REAL));
	}
}

/* dz and dn into dg; dh becomes its direct part of the step before; with reset_after dr and d(hh) too. */
static void nn_gru_step_back(const tn_nn_rnn *r, const REAL *gates, const REAL *before, REAL *dh, REAL *dg,
			     REAL *dhh)
{
	const int64_t h = r->hidden;

	for (int64_t b = 0; b < r->batch; b++, gates += 4 * h, dg += 3 * h) {
		for (int64_t j = 0; j < h; j++) {
			REAL z = gates[j], q = gates[h + j], n = gates[2 * h + j], dy = dh[b * h + j];
			REAL dn = dy * (1 - z) * (1 - n * n);

			dg[j] = dy * (before[b * h + j] - n) * z * (1 - z);
			dg[2 * h + j] = dn;
			dh[b * h + j] = dy * z;
			if (r->reset_after) {
				dg[h + j] = dn * gates[3 * h + j] * q * (1 - q);
				dhh[b * h + j] = dn * q;
			}
		}
	}
}

/* Reset first: from d(r H), dr, the share of H, and r H again. */
static void nn_gru_reset_back(const tn_nn_rnn *r, const REAL *gates, const REAL *before, const REAL *dreset,
			      REAL *dh, REAL *dg, REAL *reset)
{
	const int64_t h = r->hidden;

	for (int64_t b = 0; b < r->batch; b++, gates += 4 * h, dg += 3 * h) {
		for (int64_t j = 0; j < h; j++) {
			REAL q = gates[h + j], d = dreset[b * h + j];

			dg[h + j] = d * before[b * h + j] * q * (1 - q);
			dh[b * h + j] += d * q;
			reset[b * h + j] = q * before[b * h + j];
		}
	}
}

/* ---- RNN ---- */

static REAL nn_rnn_act(tn_op op, REAL x)
{
	if (op == TN_OP_RELU)
		return x > 0 ? x : 0;
	return op == TN_OP_SIGMOID ? nn_sigmoid(x) : (REAL)NN_TANH(x);
}

/* The slope at the place where the function is y. */
static REAL nn_rnn_slope(tn_op op, REAL y)
{
	if (op == TN_OP_RELU)
		return y > 0 ? 1 : 0;
	return op == TN_OP_SIGMOID ? y * (1 - y) : 1 - y * y;
}

static void nn_rnn_forward(const tn_nn_rnn *r, const nn_rnn_io *io)
{
	const int64_t h = r->hidden, bh = r->batch * h;
	REAL *h0 = io->scratch, *sums = h0 + bh;

	for (int64_t d = 0; d < r->dirs; d++) {
		const REAL *wb = nn_rnn_bias(r, io->b, d, 0, 0), *rb = nn_rnn_bias(r, io->b, d, 1, 0);
		const REAL *before = h0, *rw;

		nn_rnn_state(r, io->h0, d, h0);
		NN_MM(io->cx, TN_RNN_MM_X, io->x, io->w + d * h * r->input, sums);
		rw = NN_PACK(io->cx, TN_RNN_MM_H, io->rw + d * h * h);
		for (int64_t s = 0; s < r->steps; s++) {
			int64_t t = nn_rnn_time(r, d, s);
			REAL *g = sums + t * bh, *y = io->y + nn_rnn_row(r, d, t);

			NN_MM(io->cx, TN_RNN_MM_H, before, rw, g);
			for (int64_t i = 0; i < bh; i++)
				y[i] = nn_rnn_act(r->activation, g[i] + wb[i % h] + nn_or_zero(rb, i % h));
			before = y;
		}
		memcpy(io->yh + d * bh, before, (size_t)bh * sizeof(REAL));
	}
}

/* ---- backward, what they have in common ---- */

/* Of one direction: gradients of gates and what they were computed from, for all steps. */
typedef struct nn_rnn_back {
	REAL *dg;                 /* (T,B,gates*H) before the functions */
	REAL *before;             /* (T,B,H) H of the step before */
	REAL *reset;              /* GRU (T,B,H): r H, or with reset_after d(hh) */
	REAL *dh, *dc, *c0, *tmp; /* (B,H) */
} nn_rnn_back;

static void nn_rnn_back_of(const tn_nn_rnn *r, const nn_rnn_io *io, nn_rnn_back *k)
{
	int64_t bh = r->batch * r->hidden;

	k->dg = io->scratch;
	k->before = k->dg + nn_rnn_tbh(r) * r->gates;
	k->reset = k->before + nn_rnn_tbh(r);
	k->dh = k->reset + (r->kind == TN_RNN_GRU ? nn_rnn_tbh(r) : 0);
	k->dc = k->dh + bh;
	k->c0 = k->dc + bh;
	k->tmp = k->c0 + bh;
}

static void nn_rnn_before(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t dir, REAL *before)
{
	int64_t bh = r->batch * r->hidden;

	for (int64_t s = 0; s < r->steps; s++) {
		REAL *to = before + nn_rnn_time(r, dir, s) * bh;

		if (s == 0)
			nn_rnn_state(r, io->h0, dir, to);
		else
			memcpy(to, io->y + nn_rnn_row(r, dir, nn_rnn_time(r, dir, s - 1)),
			       (size_t)bh * sizeof(*to));
	}
}

static void nn_rnn_add(REAL *to, const REAL *from, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += from[i];
}

static void nn_rnn_copy_or_zero(REAL *to, const REAL *from, int64_t n)
{
	if (from)
		memcpy(to, from, (size_t)n * sizeof(*to));
	else
		memset(to, 0, (size_t)n * sizeof(*to));
}

/* sum[j] over rows of x with `stride` elements between them */
static void nn_rnn_columns(const REAL *x, int64_t rows, int64_t n, int64_t stride, REAL *sum)
{
	memset(sum, 0, (size_t)n * sizeof(*sum));
	for (int64_t i = 0; i < rows; i++)
		nn_rnn_add(sum, x + i * stride, n);
}

static void nn_rnn_bias_back(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t dir, const nn_rnn_back *k)
{
	int64_t h = r->hidden, gh = r->gates * h, rows = r->steps * r->batch;
	REAL *wb = io->db + dir * r->biases * gh;

	nn_rnn_columns(k->dg, rows, gh, gh, wb);
	if (r->biases < 2)
		return;
	memcpy(wb + gh, wb, (size_t)gh * sizeof(*wb));
	if (r->reset_after)
		nn_rnn_columns(k->reset, rows, h, h, wb + gh + 2 * h);
}

/* One step of one kind: k->dh is dY of the step and becomes dH of the step before. */
static void nn_rnn_step_back(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t d, int64_t s, nn_rnn_back *k,
			     const REAL *rh, const REAL *rn)
{
	const int64_t h = r->hidden, bh = r->batch * h, t = nn_rnn_time(r, d, s);
	const REAL *gates = r->kind == TN_RNN_PLAIN ? NULL : io->ws + (d * r->steps + t) * bh * 4;
	REAL *dg = k->dg + t * bh * r->gates, *before = k->before + t * bh;

	if (r->kind == TN_RNN_PLAIN) {
		const REAL *y = io->y + nn_rnn_row(r, d, t);

		for (int64_t i = 0; i < bh; i++)
			dg[i] = k->dh[i] * nn_rnn_slope(r->activation, y[i]);
	} else if (r->kind == TN_RNN_LSTM) {
		const REAL *cells = io->ws + (r->dirs * 4 + d) * nn_rnn_tbh(r);
		const REAL *c_before = s ? cells + nn_rnn_time(r, d, s - 1) * bh : k->c0;

		nn_lstm_step_back(r, gates, c_before, cells + t * bh, k->dh, k->dc, dg);
	} else {
		nn_gru_step_back(r, gates, before, k->dh, dg, k->reset + t * bh);
		if (r->reset_after) {
			NN_MM(io->cx, TN_RNN_MM_DN, k->reset + t * bh, rn, k->dh);
		} else {
			NN_MM(io->cx, TN_RNN_MM_DN, dg + 2 * h, rn, k->tmp);
			nn_gru_reset_back(r, gates, before, k->tmp, k->dh, dg, k->reset + t * bh);
		}
	}
	NN_MM(io->cx, TN_RNN_MM_DH, dg, rh, k->dh);
}

static void nn_rnn_weights_back(const tn_nn_rnn *r, const nn_rnn_io *io, int64_t d, const nn_rnn_back *k)
{
	int64_t h = r->hidden, gh = r->gates * h;
	REAL *drw = io->drw + d * gh * h;

	NN_MM(io->cx, d ? TN_RNN_MM_DX2 : TN_RNN_MM_DX, k->dg, io->w + d * gh * r->input, io->dx);
	NN_MM(io->cx, TN_RNN_MM_DW, k->dg, io->x, io->dw + d * gh * r->input);
	NN_MM(io->cx, TN_RNN_MM_DR, k->dg, k->before, drw);
	if (r->kind == TN_RNN_GRU && r->reset_after)
		NN_MM(io->cx, TN_RNN_MM_DRN, k->reset, k->before, drw + 2 * h * h);
	else if (r->kind == TN_RNN_GRU)
		NN_MM(io->cx, TN_RNN_MM_DRN, k->dg + 2 * h, k->reset, drw + 2 * h * h);
	nn_rnn_bias_back(r, io, d, k);
}

static void nn_rnn_backward(const tn_nn_rnn *r, const nn_rnn_io *io)
{
	const int64_t h = r->hidden, bh = r->batch * h, gh = r->gates * h;
	nn_rnn_back k;

	nn_rnn_back_of(r, io, &k);
	for (int64_t d = 0; d < r->dirs; d++) {
		const REAL *rw = io->rw + d * gh * h, *rh, *rn = NULL;

		nn_rnn_before(r, io, d, k.before);
		nn_rnn_copy_or_zero(k.dh, io->dyh ? io->dyh + d * bh : NULL, bh);
		if (r->kind == TN_RNN_LSTM) {
			nn_rnn_copy_or_zero(k.dc, io->dyc ? io->dyc + d * bh : NULL, bh);
			nn_rnn_state(r, io->c0, d, k.c0);
		}
		rh = NN_PACK(io->cx, TN_RNN_MM_DH, rw);
		if (r->kind == TN_RNN_GRU)
			rn = NN_PACK(io->cx, TN_RNN_MM_DN, rw + 2 * h * h);
		for (int64_t s = r->steps; s-- > 0;) {
			if (io->dy)
				nn_rnn_add(k.dh, io->dy + nn_rnn_row(r, d, nn_rnn_time(r, d, s)), bh);
			nn_rnn_step_back(r, io, d, s, &k, rh, rn);
		}
		memcpy(io->dh0 + d * bh, k.dh, (size_t)bh * sizeof(REAL));
		if (r->kind == TN_RNN_LSTM)
			memcpy(io->dc0 + d * bh, k.dc, (size_t)bh * sizeof(REAL));
		nn_rnn_weights_back(r, io, d, &k);
	}
}

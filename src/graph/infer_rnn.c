/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape rules of LSTM, GRU and RNN and of their gradients. Inputs and outputs are ONNX's, except that B is
 * always there and may have one vector per gate instead of two (D, gates*H), that initial states are there
 * together or not at all and may have one row for the whole batch, and that there are no lengths per sequence.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/nn_rnn_test.c.
 */
#include "base/fail.h"
#include "graph/infer.h"
#include "graph/kern_nn.h"

typedef struct cell {
	uint64_t gates, slots; /* slots: of H in a row of the workspace */
	uint32_t states;       /* initial states: 1, LSTM 2 */
	uint32_t n_functions;
	tn_op functions[3]; /* the default and, but for RNN, the only ones */
} cell;

static const cell lstm = {4, 5, 2, 3, {TN_OP_SIGMOID, TN_OP_TANH, TN_OP_TANH}};
static const cell gru = {3, 4, 1, 2, {TN_OP_SIGMOID, TN_OP_TANH}};
static const cell rnn = {1, 0, 1, 1, {TN_OP_TANH}};

/* T and B may be symbolic, the others not. */
typedef struct dims {
	uint64_t t, b, i, d, h;
} dims;

static tern_status want(const tn_infer *x, uint32_t i, const tern_shape *shape)
{
	char a[TN_TENSOR_TEXT_MAX], b[TN_SHAPE_TEXT_MAX];

	if (tn_shape_equal(&tn_infer_in(x, i)->shape, shape))
		return tn_want_f32(x, i, 1);
	return tn_misfit(x, "%s should be %s", tn_tensor_text(x, i, a, sizeof(a)),
			 tn_shape_text(x->graph, shape, b, sizeof(b)));
}

static tern_shape shape3(uint64_t a, uint64_t b, uint64_t c)
{
	return (tern_shape){.rank = 3, .dims = {a, b, c}};
}

static tern_status check_attrs(const tn_infer *x, const cell *c, const dims *m)
{
	const tn_attr *f = tn_node_attr(x->node, TN_ATTR_ACTIVATIONS);
	bool both = tn_node_int(x->node, TN_ATTR_DIRECTION, 0) == TN_DIRECTION_BOTH;

	if (both != (m->d == 2) || m->d < 1 || m->d > 2)
		return tn_misfit(x, "weights of %llu directions do not fit the direction",
				 (unsigned long long)m->d);
	if (tn_node_int(x->node, TN_ATTR_HIDDEN_SIZE, (int64_t)m->h) != (int64_t)m->h)
		return tn_misfit(x, "hidden_size is not that of R");
	if (tn_node_int(x->node, TN_ATTR_LAYOUT, 0) || tn_node_attr(x->node, TN_ATTR_CLIP))
		return tn_fail(TERN_E_UNSUPPORTED,
			       "%s '%s': layout 1 (transpose X and Y) and clip are not there",
			       tn_op_table[x->node->op].name, x->node->name);
	for (uint32_t i = 0; f && i < f->u.ints.n; i++) {
		int64_t op = f->u.ints.v[i];
		bool free_choice =
			c == &rnn && op == f->u.ints.v[0] && (op == TN_OP_RELU || op == TN_OP_SIGMOID);

		if (op != (int64_t)c->functions[i % c->n_functions] && !free_choice)
			return tn_fail(TERN_E_UNSUPPORTED,
				       "%s '%s': activation number %u is not one of this "
				       "layer's",
				       tn_op_table[x->node->op].name, x->node->name, i);
	}
	return TERN_OK;
}

/* X (T,B,I), W (D,gH,I), R (D,gH,H), B (D,gH or 2gH) */
static tern_status check_weights(const tn_infer *x, const cell *c, dims *m)
{
	const tern_shape *in = &tn_infer_in(x, 0)->shape, *r = &tn_infer_in(x, 2)->shape;
	const tern_shape *b = &tn_infer_in(x, 3)->shape;
	char a[TN_TENSOR_TEXT_MAX];
	tern_shape w, rw;

	TN_TRY(tn_want_f32(x, 0, 4));
	if (in->rank != 3 || tn_dim_symbolic(in->dims[2]))
		return tn_misfit(x, "X must be (T,B,input), not %s", tn_tensor_text(x, 0, a, sizeof(a)));
	if (r->rank != 3 || tn_shape_symbolic(r) || r->dims[1] != c->gates * r->dims[2] || r->dims[2] == 0)
		return tn_misfit(x, "R must be (directions,%llu hidden,hidden), not %s",
				 (unsigned long long)c->gates, tn_tensor_text(x, 2, a, sizeof(a)));
	*m = (dims){.t = in->dims[0], .b = in->dims[1], .i = in->dims[2], .d = r->dims[0], .h = r->dims[2]};
	w = shape3(m->d, c->gates * m->h, m->i);
	rw = shape3(m->d, c->gates * m->h, m->h);
	TN_TRY(want(x, 1, &w));
	TN_TRY(want(x, 2, &rw));
	if (b->rank != 2 || b->dims[0] != m->d ||
	    (b->dims[1] != c->gates * m->h && b->dims[1] != 2 * c->gates * m->h))
		return tn_misfit(x, "B must have one or two vectors per gate, not be %s",
				 tn_tensor_text(x, 3, a, sizeof(a)));
	return check_attrs(x, c, m);
}

/* Inputs from `at` on are the initial states: (D,B,H), or (D,1,H) for the whole batch. */
static tern_status check_states(const tn_infer *x, const cell *c, const dims *m, uint32_t at)
{
	tern_shape all = shape3(m->d, m->b, m->h), one = shape3(m->d, 1, m->h);
	bool shared = tn_shape_equal(&tn_infer_in(x, at)->shape, &one);

	for (uint32_t i = at; i < at + c->states; i++)
		TN_TRY(want(x, i, shared ? &one : &all));
	return TERN_OK;
}

static void yields(tn_infer *x, uint32_t k, tern_shape shape)
{
	x->dtype[k] = TERN_F32;
	x->shape[k] = shape;
}

static tern_shape y_shape(const dims *m)
{
	return (tern_shape){.rank = 4, .dims = {m->t, m->d, m->b, m->h}};
}

static tern_shape workspace(const cell *c, const dims *m)
{
	return (tern_shape){.rank = 4, .dims = {m->d, m->t, m->b, c->slots * m->h}};
}

/* -> Y, Y_h [, Y_c] [, workspace] */
static tern_status forward(tn_infer *x, const cell *c)
{
	uint32_t n = x->node->n_in, k = 0;
	dims m;

	TN_TRY(check_weights(x, c, &m));
	if (n > 4 && n < 4 + c->states)
		return tn_misfit(x, "initial states are given together or not at all");
	if (n > 4)
		TN_TRY(check_states(x, c, &m, 4));
	if (n > 4 + c->states) { /* the op table lets only LSTM have it */
		tern_shape peep = {.rank = 2, .dims = {m.d, 3 * m.h}};

		TN_TRY(want(x, 6, &peep));
	}
	yields(x, k++, y_shape(&m));
	for (uint32_t i = 0; i < c->states; i++)
		yields(x, k++, shape3(m.d, m.b, m.h));
	if (c->slots)
		yields(x, k, workspace(c, &m));
	return TERN_OK;
}

/* (X, W, R, B [, states], Y [, workspace] [, dY] [, dY_h] [, dY_c]) -> dX, dW, dR, dB, states' */
static tern_status backward(tn_infer *x, const cell *c)
{
	int64_t given = tn_node_int(x->node, TN_ATTR_GIVEN, 0);
	tern_shape y, ws, state;
	uint32_t n = 5, at = 4;
	dims m;

	n += (given & TN_GIVEN_STATE ? c->states : 0) + (c->slots ? 1 : 0);
	n += (given & TN_GIVEN_DY ? 1 : 0) + (given & TN_GIVEN_DYH ? 1 : 0) + (given & TN_GIVEN_DYC ? 1 : 0);
	if (n != x->node->n_in || given < 0 || given > 15 || (given & TN_GIVEN_DYC && c->states < 2))
		return tn_misfit(x, "has %u inputs, but `given` says %u", x->node->n_in, n);
	TN_TRY(check_weights(x, c, &m));
	y = y_shape(&m);
	ws = workspace(c, &m);
	state = shape3(m.d, m.b, m.h);
	if (given & TN_GIVEN_STATE) {
		TN_TRY(check_states(x, c, &m, at));
		at += c->states;
	}
	TN_TRY(want(x, at++, &y));
	if (c->slots)
		TN_TRY(want(x, at++, &ws));
	if (given & TN_GIVEN_DY)
		TN_TRY(want(x, at++, &y));
	while (at < n)
		TN_TRY(want(x, at++, &state));
	for (uint32_t k = 0; k < 4; k++)
		yields(x, k, tn_infer_in(x, k)->shape);
	for (uint32_t k = 0; k < c->states; k++)
		yields(x, 4 + k, state);
	return TERN_OK;
}

tern_status tn_infer_lstm(tn_infer *x)
{
	return forward(x, &lstm);
}

tern_status tn_infer_lstm_grad(tn_infer *x)
{
	return backward(x, &lstm);
}

tern_status tn_infer_gru(tn_infer *x)
{
	return forward(x, &gru);
}

tern_status tn_infer_gru_grad(tn_infer *x)
{
	return backward(x, &gru);
}

tern_status tn_infer_rnn(tn_infer *x)
{
	return forward(x, &rnn);
}

tern_status tn_infer_rnn_grad(tn_infer *x)
{
	return backward(x, &rnn);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers, forward and backward, against the double-precision twin: nn_case.h says how. */
#include "nn_case.h"

typedef struct rnn_shape {
	uint64_t t, b, i, h;
} rnn_shape;

static const rnn_shape rnns[] = {{1, 1, 1, 1},  {3, 2, 5, 4}, {7, 3, 16, 17},
				 {4, 1, 3, 32}, {0, 2, 3, 4}, {2, 0, 3, 4}};

typedef struct cell {
	tn_op op, grad;
	uint64_t gates, slots, states;
} cell;

static const cell cells[] = {{TN_OP_RNN, TN_OP_RNN_GRAD, 1, 0, 1},
			     {TN_OP_GRU, TN_OP_GRU_GRAD, 3, 4, 1},
			     {TN_OP_LSTM, TN_OP_LSTM_GRAD, 4, 5, 2}};

/* how: bits 0-1 direction, 2 two biases, 3-4 states (none, for all, per row), 5 reset after / Relu / peepholes */
static void rnn_case(op_case *c, const cell *k, const rnn_shape *v, uint32_t how)
{
	uint64_t d = (how & 3) == TN_DIRECTION_BOTH ? 2 : 1, states = how >> 3 & 3;

	*c = (op_case){.op = k->op, .n_in = 4};
	c->in[0] = S(v->t, v->b, v->i);
	c->in[1] = S(d, k->gates * v->h, v->i);
	c->in[2] = S(d, k->gates * v->h, v->h);
	c->in[3] = S(d, (how >> 2 & 1 ? 2 : 1) * k->gates * v->h);
	for (uint64_t i = 0; i < k->states && states; i++)
		c->in[c->n_in++] = S(d, states == 1 ? 1 : v->b, v->h);
	nn_attr_int(c, TN_ATTR_DIRECTION, how & 3);
	if (how >> 5 & 1 && k->op == TN_OP_RNN)
		nn_attr_ints(c, TN_ATTR_ACTIVATIONS, 1, (int64_t[]){how & 4 ? TN_OP_SIGMOID : TN_OP_RELU});
	if (k->op == TN_OP_GRU)
		nn_attr_int(c, TN_ATTR_LINEAR_BEFORE_RESET, how >> 5 & 1);
	if (how >> 5 & 1 && k->op == TN_OP_LSTM && states)
		c->in[c->n_in++] = S(d, 3 * v->h);
}

static bool rnn_how(uint32_t how)
{
	return (how & 3) < 3 && (how >> 3 & 3) < 3;
}

static void recurrent_layers(void **state)
{
	(void)state;
	for (uint32_t k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < sizeof(rnns) / sizeof(rnns[0]); i++) {
			for (uint32_t how = 0; how < 64; how++) {
				op_case c;

				if (!rnn_how(how))
					continue;
				rnn_case(&c, &cells[k], &rnns[i], how);
				nn_check(&c);
			}
		}
	}
}

/* (inputs of the forward node, Y [, workspace] [, dY] [, dY_h] [, dY_c]) */
static void recurrent_gradients(void **state)
{
	(void)state;
	for (uint32_t k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < sizeof(rnns) / sizeof(rnns[0]); i++) {
			for (uint32_t how = 0; how < 64; how++) {
				const rnn_shape *v = &rnns[i];
				uint64_t d = (how & 3) == TN_DIRECTION_BOTH ? 2 : 1;
				uint32_t given = how >> 3 & 3 ? TN_GIVEN_STATE : 0;
				op_case c;

				if (!rnn_how(how) || (how >> 3 & 3) == 1 || (k == 2 && how >> 5 & 1))
					continue;
				rnn_case(&c, &cells[k], v, how);
				c.op = cells[k].grad;
				c.in[c.n_in++] = S(v->t, d, v->b, v->h);
				if (cells[k].slots)
					c.in[c.n_in++] = S(d, v->t, v->b, cells[k].slots * v->h);
				given |= how & 1 ? TN_GIVEN_DYH : TN_GIVEN_DY;
				given |= how & 4 ? TN_GIVEN_DY | TN_GIVEN_DYH : 0;
				given |= k == 2 && how & 2 ? TN_GIVEN_DYC : 0;
				if (given & TN_GIVEN_DY)
					c.in[c.n_in++] = S(v->t, d, v->b, v->h);
				if (given & TN_GIVEN_DYH)
					c.in[c.n_in++] = S(d, v->b, v->h);
				if (given & TN_GIVEN_DYC)
					c.in[c.n_in++] = S(d, v->b, v->h);
				nn_attr_int(&c, TN_ATTR_GIVEN, given);
				nn_check(&c);
			}
		}
	}
}

static void recurrent_layers_refused(void **state)
{
	op_case c;

	(void)state;
	rnn_case(&c, &cells[2], &rnns[1], 0);
	c.in[1] = S(1, 12, 5);
	nn_refused(&c, "should be [1,16,5]");
	rnn_case(&c, &cells[2], &rnns[1], 0);
	c.in[3] = S(1, 17);
	nn_refused(&c, "one or two vectors per gate");
	rnn_case(&c, &cells[2], &rnns[1], 2 << 3);
	c.n_in = 5;
	nn_refused(&c, "together or not at all");
	rnn_case(&c, &cells[1], &rnns[1], 0);
	c.attrs[0].u.i = TN_DIRECTION_BOTH;
	nn_refused(&c, "1 directions");
	rnn_case(&c, &cells[1], &rnns[1], 0);
	nn_attr_int(&c, TN_ATTR_HIDDEN_SIZE, 5);
	nn_refused(&c, "hidden_size");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recurrent_layers),
		cmocka_unit_test(recurrent_gradients),
		cmocka_unit_test(recurrent_layers_refused),
	};

	return RUN(tests);
}

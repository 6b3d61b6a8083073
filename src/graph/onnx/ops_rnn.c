/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's recurrent ops. The graph's have ONNX's gates and shapes, but always a bias, both initial states or
 * none, and the time first; what differs is put right here. See import.h.
 *
 * Thread story: see import.h. Tests: tests/onnx/node_test.py, tests/unit/graph/onnx_test.c.
 */
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "graph/onnx/import.h"

typedef struct cell {
	tn_op op;
	uint32_t gates, states; /* states: h, and c of LSTM */
} cell;

#define RNN_IN_MAX  7u
#define LENGTHS_MAX 4096u

static tern_status swap_dims(tn_ox *x, uint32_t t, const int64_t *perm, uint32_t n, uint32_t *out)
{
	tn_attr attr = tn_ox_attr_ints(TN_ATTR_PERM, perm, n);

	return tn_ox_add(x, TN_OP_TRANSPOSE, &t, 1, &attr, 1, out);
}

/* Sequences of different lengths are not computed; lengths that say the whole time are no news. */
static tern_status check_lengths(tn_ox *x, uint64_t time)
{
	int64_t lengths[LENGTHS_MAX];
	uint32_t n;

	if (!tn_ox_in(x, 4))
		return TERN_OK;
	TN_TRY(tn_ox_known_ints(x, 4, lengths, LENGTHS_MAX, &n));
	for (uint32_t i = 0; i < n; i++) {
		if ((uint64_t)lengths[i] != time)
			return tn_ox_fail(x, TERN_E_UNSUPPORTED,
					  "sequence_lens: all sequences must be as long as the input");
	}
	return TERN_OK;
}

static tern_status activations(tn_ox *x, tn_attr *attr, bool *given)
{
	static const struct {
		const char *name;
		tn_op op;
	} known[] = {{"Sigmoid", TN_OP_SIGMOID}, {"Tanh", TN_OP_TANH}, {"Relu", TN_OP_RELU}};
	const Onnx__AttributeProto *a = tn_ox_attr(x, "activations");

	*given = a && a->n_strings > 0;
	*attr = (tn_attr){.key = TN_ATTR_ACTIVATIONS};
	if (tn_ox_has(x, "activation_alpha") || tn_ox_has(x, "activation_beta"))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "activations with parameters are not computed");
	for (size_t i = 0; a && i < a->n_strings; i++) {
		uint32_t k = 0;

		while (k < 3 && (a->strings[i].len != strlen(known[k].name) ||
				 memcmp(a->strings[i].data, known[k].name, a->strings[i].len) != 0))
			k++;
		if (k == 3 || i >= TERN_ATTR_INTS_MAX)
			return tn_ox_fail(x, TERN_E_UNSUPPORTED, "activation %zu is not one of tern's", i);
		attr->u.ints.v[attr->u.ints.n++] = known[k].op;
	}
	return TERN_OK;
}

static tern_status attributes(tn_ox *x, tn_op op, tn_attr *attrs, uint32_t *n)
{
	bool reverse = tn_ox_is(x, "direction", "forward", "reverse");
	bool both = tn_ox_is(x, "direction", "forward", "bidirectional"), given;

	if (!reverse && !both && !tn_ox_is(x, "direction", "forward", "forward"))
		return tn_ox_fail(x, TERN_E_CORRUPT, "its direction is none of ONNX's");
	if (tn_ox_has(x, "clip") || tn_ox_int(x, "input_forget", 0))
		return tn_ox_fail(x, TERN_E_UNSUPPORTED, "clip and input_forget are not computed");
	attrs[0] = tn_attr_int(TN_ATTR_DIRECTION, both      ? TN_DIRECTION_BOTH
						  : reverse ? TN_DIRECTION_REVERSE
							    : TN_DIRECTION_FORWARD);
	*n = 1;
	if (op == TN_OP_GRU)
		attrs[(*n)++] =
			tn_attr_int(TN_ATTR_LINEAR_BEFORE_RESET, tn_ox_int(x, "linear_before_reset", 0) != 0);
	TN_TRY(activations(x, &attrs[*n], &given));
	*n += given;
	return TERN_OK;
}

#define HIDDEN_MAX (UINT64_C(1) << 20)

/* Directions and hidden size, from R, which decides the shapes of what is left out. */
static tern_status check_weights(tn_ox *x, uint32_t r)
{
	const tern_shape *s = tn_ox_shape_of(x, r);

	if (s->rank != 3 || tn_shape_symbolic(s) || s->dims[0] < 1 || s->dims[0] > 2 ||
	    s->dims[2] > HIDDEN_MAX)
		return tn_ox_fail(x, TERN_E_SHAPE,
				  "R must have three known dims: 1 or 2 directions, and at most 2^20 hidden");
	return TERN_OK;
}

static tern_status zeros(tn_ox *x, const tern_shape *shape, uint32_t *t)
{
	uint64_t bytes;
	tern_status st;
	void *values;

	TN_TRY(tn_shape_bytes(shape, TERN_F32, &bytes));
	TN_TRY(tn_ox_charge(x, bytes));
	values = tn_values_new(NULL, bytes);
	if (!values)
		return tn_ox_fail(x, TERN_E_NOMEM, "no memory for an input that is left out");
	st = tn_ox_constant(x, TERN_F32, shape, values, t);
	tn_values_unref(values);
	return st;
}

/* B, or zeros of its shape. */
static tern_status bias(tn_ox *x, const cell *c, uint32_t r, uint32_t *t)
{
	const tern_shape *s = tn_ox_shape_of(x, r);
	tern_shape shape = {.rank = 2, .dims = {s->dims[0], c->gates * s->dims[2]}};

	return tn_ox_in(x, 3) ? tn_ox_tensor(x, 3, t) : zeros(x, &shape, t);
}

/* An initial state: given, or one row of zeros for the whole batch. */
static tern_status state(tn_ox *x, uint32_t i, uint32_t r, bool batch_first, uint32_t *t)
{
	static const int64_t swap[] = {1, 0, 2};
	const tern_shape *s = tn_ox_shape_of(x, r);
	tern_shape shape = {.rank = 3, .dims = {s->dims[0], 1, s->dims[2]}};

	if (!tn_ox_in(x, i))
		return zeros(x, &shape, t);
	TN_TRY(tn_ox_tensor(x, i, t));
	return batch_first ? swap_dims(x, *t, swap, 3, t) : TERN_OK;
}

static tern_status inputs(tn_ox *x, const cell *c, bool batch_first, uint32_t *in, uint32_t *n)
{
	static const int64_t swap[] = {1, 0, 2};
	bool peephole = c->op == TN_OP_LSTM && tn_ox_in(x, 7);
	bool states = peephole || tn_ox_in(x, 5) || (c->states > 1 && tn_ox_in(x, 6));

	for (uint32_t i = 0; i < 3; i++)
		TN_TRY(tn_ox_tensor(x, i, &in[i]));
	if (tn_ox_shape_of(x, in[0])->rank != 3)
		return tn_ox_fail(x, TERN_E_SHAPE, "X must have three dims");
	TN_TRY(check_lengths(x, tn_ox_shape_of(x, in[0])->dims[batch_first ? 1 : 0]));
	if (batch_first)
		TN_TRY(swap_dims(x, in[0], swap, 3, &in[0]));
	TN_TRY(check_weights(x, in[2]));
	TN_TRY(bias(x, c, in[2], &in[3]));
	*n = 4;
	for (uint32_t i = 0; i < c->states && states; i++)
		TN_TRY(state(x, 5 + i, in[2], batch_first, &in[(*n)++]));
	return peephole ? tn_ox_tensor(x, 7, &in[(*n)++]) : TERN_OK;
}

static tern_status recurrent(tn_ox *x, const cell *c)
{
	static const int64_t swap_y[] = {2, 0, 1, 3}, swap[] = {1, 0, 2};
	bool batch_first = tn_ox_int(x, "layout", 0) != 0;
	uint32_t in[RNN_IN_MAX], outs[TN_OUTS_MAX], n = 0, n_attrs = 0;
	tn_attr attrs[4];

	TN_TRY(attributes(x, c->op, attrs, &n_attrs));
	TN_TRY(inputs(x, c, batch_first, in, &n));
	TN_TRY(tn_ox_add_outs(x, c->op, in, n, attrs, n_attrs, outs));
	for (uint32_t i = 0; i < 1 + c->states; i++) {
		if (!tn_ox_wants(x, i))
			continue;
		if (batch_first)
			TN_TRY(swap_dims(x, outs[i], i ? swap : swap_y, i ? 3 : 4, &outs[i]));
		tn_ox_out(x, i, outs[i]);
	}
	return TERN_OK;
}

tern_status tn_ox_op_lstm(tn_ox *x)
{
	static const cell lstm = {TN_OP_LSTM, 4, 2};

	return recurrent(x, &lstm);
}

tern_status tn_ox_op_gru(tn_ox *x)
{
	static const cell gru = {TN_OP_GRU, 3, 1};

	return recurrent(x, &gru);
}

tern_status tn_ox_op_rnn(tn_ox *x)
{
	static const cell rnn = {TN_OP_RNN, 1, 1};

	return recurrent(x, &rnn);
}

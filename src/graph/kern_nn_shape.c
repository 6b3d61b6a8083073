/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry of neural-network ops: from a node's attributes and bound operands to the structures of kern_nn.h.
 * Shapes were checked by infer_nn.c.
 *
 * Thread story: pure functions. Tests: tests/unit/graph/nn_conv_test.c, nn_pool_test.c, nn_norm_test.c.
 */
#include "base/check.h"
#include "graph/kern_nn.h"

static int64_t ints_at(const tn_node *node, tn_attr_key key, uint32_t i, int64_t dflt)
{
	const tn_attr *a = tn_node_attr(node, key);

	return a && i < a->u.ints.n ? a->u.ints.v[i] : dflt;
}

int64_t tn_nn_out_dim(int64_t in, int64_t k, int64_t stride, int64_t dil, int64_t pads, bool ceil_mode,
		      int64_t pad_begin)
{
	int64_t room = in + pads - ((k - 1) * dil + 1), n;

	if (room < 0)
		return -1;
	n = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
	/* A window that starts behind the input would see nothing. */
	if (ceil_mode && n > 1 && (n - 1) * stride >= in + pad_begin)
		n--;
	return n;
}

/* The shapes of x, the weights (NULL: a pool) and y. */
static void window_shapes(const tn_kern_desc *desc, const tern_shape *s[3])
{
	s[0] = &desc->in[0].shape;
	s[1] = NULL;
	s[2] = &desc->out[0].shape;
	switch (desc->node->op) {
	case TN_OP_CONV:
		s[1] = &desc->in[1].shape;
		break;
	case TN_OP_CONV_TRANSPOSE:
	case TN_OP_CONV_GRAD_DATA:
		s[0] = &desc->out[0].shape;
		s[1] = &desc->in[1].shape;
		s[2] = &desc->in[0].shape;
		break;
	case TN_OP_CONV_GRAD_WEIGHT:
		s[0] = &desc->in[1].shape;
		s[1] = &desc->out[0].shape;
		s[2] = &desc->in[0].shape;
		break;
	case TN_OP_MAX_POOL_GRAD:
		s[0] = &desc->in[1].shape;
		s[2] = &desc->in[0].shape;
		break;
	case TN_OP_AVERAGE_POOL_GRAD:
		s[0] = &desc->out[0].shape;
		s[2] = &desc->in[0].shape;
		break;
	default:
		break;
	}
}

void tn_nn_window_of(const tn_kern_desc *desc, tn_nn_window *w)
{
	const tn_node *node = desc->node;
	const tern_shape *s[3];
	uint32_t nd;

	window_shapes(desc, s);
	nd = s[0]->rank - 2;
	TN_ASSERT(nd >= 1 && nd <= TN_WINDOW_DIMS);
	*w = (tn_nn_window){.nd = nd, .n = (int64_t)s[0]->dims[0], .c = (int64_t)s[0]->dims[1]};
	w->oc = (int64_t)s[2]->dims[1];
	w->groups = s[1] ? tn_node_int(node, TN_ATTR_GROUP, 1) : w->c;
	w->count_pad = tn_node_int(node, TN_ATTR_COUNT_INCLUDE_PAD, 0) != 0;
	w->column_major = tn_node_int(node, TN_ATTR_STORAGE_ORDER, 0) != 0;
	w->p = node->op == TN_OP_LP_POOL ? tn_node_int(node, TN_ATTR_P, 2) : 0;
	for (uint32_t d = 0; d < TN_WINDOW_DIMS; d++)
		w->in[d] = w->out[d] = w->k[d] = w->stride[d] = w->dil[d] = 1;
	for (uint32_t i = 0; i < nd; i++) {
		uint32_t d = TN_WINDOW_DIMS - nd + i;

		w->in[d] = (int64_t)s[0]->dims[2 + i];
		w->out[d] = (int64_t)s[2]->dims[2 + i];
		w->k[d] =
			s[1] ? (int64_t)s[1]->dims[2 + i] : ints_at(node, TN_ATTR_KERNEL_SHAPE, i, w->in[d]);
		w->stride[d] = ints_at(node, TN_ATTR_STRIDES, i, 1);
		w->dil[d] = ints_at(node, TN_ATTR_DILATIONS, i, 1);
		w->pad[d] = ints_at(node, TN_ATTR_PADS, i, 0);
		w->pad_end[d] = ints_at(node, TN_ATTR_PADS, nd + i, 0);
	}
}

void tn_nn_norm_of(const tn_kern_desc *desc, tn_nn_norm *q)
{
	const tn_node *node = desc->node;
	bool gradient = node->op == TN_OP_BATCH_NORM_GRAD || node->op == TN_OP_INSTANCE_NORM_GRAD ||
			node->op == TN_OP_LAYER_NORM_GRAD;
	const tern_shape *x = &desc->in[gradient ? 1 : 0].shape;
	uint32_t at = 2;

	*q = (tn_nn_norm){.epsilon = tn_node_float(node, TN_ATTR_EPSILON, 1e-5)};
	if (node->op == TN_OP_LAYER_NORM || node->op == TN_OP_LAYER_NORM_GRAD) {
		int64_t axis = tn_node_int(node, TN_ATTR_AXIS, -1);

		at = (uint32_t)(axis < 0 ? axis + x->rank : axis);
		q->groups = (int64_t)tn_dims_product(x->dims, at);
		q->chunks = 1;
	} else if (node->op == TN_OP_INSTANCE_NORM || node->op == TN_OP_INSTANCE_NORM_GRAD) {
		q->channels = (int64_t)x->dims[1];
		q->groups = (int64_t)(x->dims[0] * x->dims[1]);
		q->chunks = 1;
	} else {
		q->groups = q->channels = (int64_t)x->dims[1];
		q->chunks = (int64_t)x->dims[0];
	}
	q->run = (int64_t)tn_dims_product(x->dims + at, x->rank - at);
}

void tn_nn_lrn_of(const tn_kern_desc *desc, tn_nn_lrn *q)
{
	const tern_shape *x = &desc->in[0].shape;

	*q = (tn_nn_lrn){.n = (int64_t)x->dims[0],
			 .c = (int64_t)x->dims[1],
			 .plane = (int64_t)tn_dims_product(x->dims + 2, x->rank - 2),
			 .size = tn_node_int(desc->node, TN_ATTR_SIZE, 1),
			 .alpha = tn_node_float(desc->node, TN_ATTR_ALPHA, 1e-4),
			 .beta = tn_node_float(desc->node, TN_ATTR_BETA, 0.75),
			 .bias = tn_node_float(desc->node, TN_ATTR_BIAS, 1.0)};
}

/* ---- MatMul ---- */

/* Strides of the batch dims of an operand in the result's dims; the operand's own are right-aligned. */
static void batch_steps(const tern_shape *s, uint32_t rank, int64_t *step)
{
	int64_t size = (int64_t)(s->dims[s->rank - 1] * s->dims[s->rank - 2]);

	for (uint32_t d = rank; d-- > 0;) {
		uint32_t from_end = rank - d;
		uint64_t dim = from_end + 2 <= s->rank ? s->dims[s->rank - 2 - from_end] : 1;

		step[d] = dim == 1 ? 0 : size;
		size *= (int64_t)dim;
	}
}

/* Neighbours that both operands run through alike are one; dims of 1 go. */
static void fold_batch(tn_nn_matmul *m)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < m->rank; d++) {
		if (m->dims[d] == 1)
			continue;
		if (n && m->a_step[n - 1] == m->a_step[d] * m->dims[d] &&
		    m->b_step[n - 1] == m->b_step[d] * m->dims[d]) {
			m->dims[n - 1] *= m->dims[d];
			m->a_step[n - 1] = m->a_step[d];
			m->b_step[n - 1] = m->b_step[d];
		} else {
			m->dims[n] = m->dims[d];
			m->a_step[n] = m->a_step[d];
			m->b_step[n] = m->b_step[d];
			n++;
		}
	}
	m->rank = n;
}

void tn_nn_matmul_of(const tn_kern_desc *desc, tn_nn_matmul *m)
{
	tern_shape a = desc->in[0].shape, b = desc->in[1].shape;
	const tern_shape *y = &desc->out[0].shape;
	bool ta = tn_node_int(desc->node, TN_ATTR_TRANS_A, 0) != 0;
	bool tb = tn_node_int(desc->node, TN_ATTR_TRANS_B, 0) != 0;
	bool row = a.rank == 1, column = b.rank == 1;
	tn_mm_desc *o = &m->one;
	int64_t a1, b1;

	if (row)
		a = (tern_shape){.rank = 2, .dims = {1, a.dims[0]}};
	if (column)
		b = (tern_shape){.rank = 2, .dims = {b.dims[0], 1}};
	*m = (tn_nn_matmul){.rank = y->rank - (row ? 0 : 1) - (column ? 0 : 1)};
	a1 = (int64_t)a.dims[a.rank - 1];
	b1 = (int64_t)b.dims[b.rank - 1];
	o->m = ta ? a1 : (int64_t)a.dims[a.rank - 2];
	o->k = ta ? (int64_t)a.dims[a.rank - 2] : a1;
	o->n = tb ? (int64_t)b.dims[b.rank - 2] : b1;
	o->a_row = ta ? 1 : a1;
	o->a_col = ta ? a1 : 1;
	o->b_row = tb ? 1 : b1;
	o->b_col = tb ? b1 : 1;
	o->c_row = o->n;
	for (uint32_t d = 0; d < m->rank; d++)
		m->dims[d] = (int64_t)y->dims[d];
	batch_steps(&a, m->rank, m->a_step);
	batch_steps(&b, m->rank, m->b_step);
	fold_batch(m);
	if (m->rank == 1 && !ta && m->b_step[0] == 0 && m->a_step[0] == o->m * o->k) {
		o->m *= m->dims[0]; /* one B for all rows of A */
		m->rank = 0;
	}
}

/* ---- recurrent ---- */

void tn_nn_rnn_of(const tn_kern_desc *desc, tn_nn_rnn *r)
{
	const tn_node *node = desc->node;
	const tern_shape *x = &desc->in[0].shape, *rw = &desc->in[2].shape, *b = &desc->in[3].shape;
	bool gradient =
		node->op == TN_OP_LSTM_GRAD || node->op == TN_OP_GRU_GRAD || node->op == TN_OP_RNN_GRAD;
	int64_t given = tn_node_int(node, TN_ATTR_GIVEN, 0);
	const tn_attr *act = tn_node_attr(node, TN_ATTR_ACTIVATIONS);

	*r = (tn_nn_rnn){.kind = TN_RNN_PLAIN, .gates = 1, .slots = 0};
	if (node->op == TN_OP_LSTM || node->op == TN_OP_LSTM_GRAD) {
		r->kind = TN_RNN_LSTM;
		r->gates = 4;
		r->slots = 5;
	} else if (node->op == TN_OP_GRU || node->op == TN_OP_GRU_GRAD) {
		r->kind = TN_RNN_GRU;
		r->gates = 3;
		r->slots = 4;
	}
	r->steps = (int64_t)x->dims[0];
	r->batch = (int64_t)x->dims[1];
	r->input = (int64_t)x->dims[2];
	r->dirs = (int64_t)rw->dims[0];
	r->hidden = (int64_t)rw->dims[2];
	r->biases = (int64_t)b->dims[1] == r->gates * r->hidden ? 1 : 2;
	r->has_state = gradient ? (given & TN_GIVEN_STATE) != 0 : node->n_in > 4;
	r->h0_batch = r->has_state ? (int64_t)desc->in[4].shape.dims[1] : 0;
	r->has_peep = !gradient && r->kind == TN_RNN_LSTM && node->n_in > 6;
	r->activation = act && act->u.ints.n ? (tn_op)act->u.ints.v[0] : TN_OP_TANH;
	r->first_reverse = tn_node_int(node, TN_ATTR_DIRECTION, 0) == TN_DIRECTION_REVERSE;
	r->reset_after = tn_node_int(node, TN_ATTR_LINEAR_BEFORE_RESET, 0) != 0;
	r->has_dy = (given & TN_GIVEN_DY) != 0;
	r->has_dyh = (given & TN_GIVEN_DYH) != 0;
	r->has_dyc = (given & TN_GIVEN_DYC) != 0;
}

static bool forward_mm(const tn_nn_rnn *r, uint32_t which, tn_mm_desc *d)
{
	int64_t h = r->hidden, rows = r->gates * h;
	int64_t c_row = r->kind == TN_RNN_PLAIN ? h : 4 * h;
	bool gru = r->kind == TN_RNN_GRU;

	*d = (tn_mm_desc){
		.m = r->batch, .k = h, .a_row = h, .a_col = 1, .b_row = 1, .b_col = h, .c_row = c_row};
	switch (which) {
	case TN_RNN_MM_X:
		d->m = r->steps * r->batch;
		d->n = rows;
		d->k = d->a_row = d->b_col = r->input;
		return true;
	case TN_RNN_MM_H:
		d->n = gru ? 2 * h : rows;
		d->add = d->reuse = true;
		return true;
	case TN_RNN_MM_N:
		d->n = h;
		d->add = !r->reset_after;
		d->reuse = true;
		return gru;
	default:
		return false;
	}
}

/* Products of one step: dH = dG R. */
static bool back_step_mm(const tn_nn_rnn *r, uint32_t which, tn_mm_desc *d)
{
	int64_t h = r->hidden, rows = r->gates * h;
	bool gru = r->kind == TN_RNN_GRU;

	*d = (tn_mm_desc){
		.m = r->batch, .n = h, .a_row = rows, .a_col = 1, .b_row = h, .b_col = 1, .c_row = h};
	d->reuse = true;
	if (which == TN_RNN_MM_DH) {
		d->k = gru ? 2 * h : rows;
		d->add = gru;
		return true;
	}
	d->k = h;
	if (r->reset_after)
		d->a_row = h;
	d->add = r->reset_after;
	return gru;
}

static bool back_mm(const tn_nn_rnn *r, uint32_t which, tn_mm_desc *d)
{
	int64_t h = r->hidden, rows = r->gates * h, tb = r->steps * r->batch;
	bool gru = r->kind == TN_RNN_GRU;

	/* A transposed: rows of the result are columns of the gates */
	*d = (tn_mm_desc){.n = h, .k = tb, .a_row = 1, .a_col = rows, .b_row = h, .b_col = 1, .c_row = h};
	switch (which) {
	case TN_RNN_MM_DX:
	case TN_RNN_MM_DX2:
		*d = (tn_mm_desc){.m = tb, .n = r->input, .k = rows, .a_row = rows, .a_col = 1, .b_col = 1};
		d->b_row = d->c_row = r->input;
		d->add = which == TN_RNN_MM_DX2;
		return which == TN_RNN_MM_DX || r->dirs == 2;
	case TN_RNN_MM_DW:
		d->m = rows;
		d->n = d->b_row = d->c_row = r->input;
		return true;
	case TN_RNN_MM_DR:
		d->m = gru ? 2 * h : rows;
		return true;
	case TN_RNN_MM_DRN:
		d->m = h;
		if (r->reset_after)
			d->a_col = h;
		return gru;
	default:
		return false;
	}
}

bool tn_nn_rnn_mm(const tn_nn_rnn *r, bool gradient, uint32_t which, tn_mm_desc *desc)
{
	if (!gradient)
		return forward_mm(r, which, desc);
	if (which == TN_RNN_MM_DH || which == TN_RNN_MM_DN)
		return back_step_mm(r, which, desc);
	return back_mm(r, which, desc);
}

uint64_t tn_nn_rnn_scratch(const tn_nn_rnn *r, bool gradient)
{
	int64_t bh = r->batch * r->hidden, tbh = r->steps * bh;

	if (!gradient)
		return (uint64_t)(2 * bh + (r->kind == TN_RNN_PLAIN ? tbh : 0));
	return (uint64_t)(tbh * (r->gates + (r->kind == TN_RNN_GRU ? 2 : 1)) + 4 * bh);
}

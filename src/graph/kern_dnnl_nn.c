/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolutions, pools, batch norm and LRN by oneDNN. Operands are dense (N,C,...). A convolution lets oneDNN
 * choose its layouts and brings operands into them and back, which is paid once per run and measured to be
 * less than what a convolution of dense operands costs more; the others run on dense operands.
 *
 * What oneDNN has no implementation for is left to plain C.
 * Thread story: see kern.h. Tests: tests/unit/graph/nn_conv_test.c, nn_pool_test.c, nn_norm_test.c.
 */
#include <string.h>

#include "base/fail.h"
#include "graph/kern_dnnl.h"

typedef struct nn_mds {
	tn_md x, w, b, y;     /* dense */
	tn_md ax, aw, ab, ay; /* as oneDNN likes */
} nn_mds;

static void free_mds(nn_mds *m)
{
	tn_md *all[] = {&m->x, &m->w, &m->b, &m->y, &m->ax, &m->aw, &m->ab, &m->ay};

	for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		tn_md_free(all[i]);
}

/* Dense, and without a layout if `any`. */
static dnnl_status_t dense(tn_md *md, tn_md *any, uint32_t rank, const int64_t *dims)
{
	int64_t strides[TERN_RANK_MAX], size = 1;

	for (uint32_t i = rank; i-- > 0; size *= dims[i])
		strides[i] = size;
	DK_TRY(tn_md_make(md, rank, dims, strides));
	return any ? tn_md_make(any, rank, dims, NULL) : dnnl_success;
}

/* (N,C,...) of the dims that are there */
static dnnl_status_t image_md(tn_md *md, tn_md *any, const tn_nn_window *w, int64_t channels,
			      const int64_t dims[TN_WINDOW_DIMS])
{
	int64_t d[2 + TN_WINDOW_DIMS] = {w->n, channels};

	memcpy(d + 2, dims + TN_WINDOW_DIMS - w->nd, w->nd * sizeof(*d));
	return dense(md, any, 2 + w->nd, d);
}

/* ([G,] M / G, C / G, ...) */
static dnnl_status_t weights_md(tn_md *md, tn_md *any, const tn_nn_window *w)
{
	int64_t d[3 + TN_WINDOW_DIMS];
	uint32_t n = 0;

	if (w->groups > 1)
		d[n++] = w->groups;
	d[n++] = w->oc / w->groups;
	d[n++] = w->c / w->groups;
	memcpy(d + n, w->k + TN_WINDOW_DIMS - w->nd, w->nd * sizeof(*d));
	return dense(md, any, n + w->nd, d);
}

/* The padding behind is what the output needs: what a stride skips, and what ceil_mode adds, are none. */
static void fill_window(const tn_nn_window *w, tn_window *o)
{
	*o = (tn_window){0};
	for (uint32_t i = 0; i < w->nd; i++) {
		uint32_t d = TN_WINDOW_DIMS - w->nd + i;
		int64_t end = (w->out[d] - 1) * w->stride[d] + (w->k[d] - 1) * w->dil[d] + 1;

		o->kernel[i] = w->k[d];
		o->strides[i] = w->stride[d];
		o->dilates[i] = w->dil[d] - 1;
		o->pad_l[i] = w->pad[d];
		o->pad_r[i] = end - w->in[d] - w->pad[d] > 0 ? end - w->in[d] - w->pad[d] : 0;
	}
}

/* ---- convolution ---- */

/* One of the passes: which operand of the node is x, w, y (b), and which of them is the result. */
typedef struct conv_pass {
	tn_pd_kind kind;
	dk_place x, w, y, b;
	bool bias;
} conv_pass;

static dnnl_status_t conv_steps(tn_dk *k, dnnl_primitive_desc_t pd, const nn_mds *m, const conv_pass *p)
{
	bool data = p->kind == TN_PD_BACKWARD_DATA, weights = p->kind == TN_PD_BACKWARD_WEIGHTS;
	tn_md_ref x = tn_dk_wants(pd, data ? dnnl_query_diff_src_md : dnnl_query_src_md);
	tn_md_ref w = tn_dk_wants(pd, weights ? dnnl_query_diff_weights_md : dnnl_query_weights_md);
	tn_md_ref y = tn_dk_wants(pd, data || weights ? dnnl_query_diff_dst_md : dnnl_query_dst_md);
	dk_place px, pw, py;
	dk_arg args[4];

	if (data)
		px = tn_dk_aside(k, p->x, &m->x, x);
	else
		DK_TRY(tn_dk_bring(k, p->x, &m->x, x, &px));
	if (weights)
		pw = tn_dk_aside(k, p->w, &m->w, w);
	else
		DK_TRY(tn_dk_bring(k, p->w, &m->w, w, &pw));
	if (p->kind == TN_PD_FORWARD)
		py = tn_dk_aside(k, p->y, &m->y, y);
	else
		DK_TRY(tn_dk_bring(k, p->y, &m->y, y, &py));
	args[0] = (dk_arg){data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, px, x};
	args[1] = (dk_arg){weights ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, pw, w};
	args[2] = (dk_arg){data || weights ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, py, y};
	args[3] = (dk_arg){DNNL_ARG_BIAS, p->b, tn_md_look(&m->b)};
	DK_TRY(tn_dk_step(k, pd, args, p->bias ? 4 : 3));
	if (data)
		return tn_dk_deliver(k, px, x, p->x, &m->x);
	if (weights)
		return tn_dk_deliver(k, pw, w, p->w, &m->w);
	return tn_dk_deliver(k, py, y, p->y, &m->y);
}

/*
 * Where dense operands are faster than oneDNN's layouts with reorders around them, as measured (AVX-512): 1x1
 * windows, which are plain products; few inputs per output, where the reorder of the output is most of the
 * time; and dX with so few channels that a blocked layout is mostly padding.
 */
static bool dense_pays(const tn_nn_window *w, tn_pd_kind kind)
{
	int64_t taps = tn_nn_plane(w->k), channels = w->c / w->groups;
	bool product = taps == 1 && tn_nn_plane(w->stride) == 1 && tn_nn_plane(w->in) == tn_nn_plane(w->out);

	if (kind == TN_PD_BACKWARD_WEIGHTS)
		return false;
	if (product && w->groups == 1)
		return true;
	return kind == TN_PD_FORWARD ? channels * taps < 64 && w->groups == 1
				     : channels < 8 && w->groups == 1;
}

static dnnl_status_t build_conv(tn_dk *k, const tn_nn_window *w, const conv_pass *p, nn_mds *m)
{
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_t pd;
	bool plain = dense_pays(w, p->kind);
	tn_window window;
	dnnl_status_t st;

	fill_window(w, &window);
	DK_TRY(image_md(&m->x, &m->ax, w, w->c, w->in));
	DK_TRY(weights_md(&m->w, &m->aw, w));
	DK_TRY(image_md(&m->y, &m->ay, w, w->oc, w->out));
	if (p->bias)
		DK_TRY(dense(&m->b, NULL, 1, &w->oc));
	DK_TRY(tn_pd_attr(&attr, false));
	st = tn_pd_conv(&pd, k->dnnl->engine, p->kind, plain ? &m->x : &m->ax, &m->aw, &m->b,
			plain ? &m->y : &m->ay, &window, attr);
	dnnl_primitive_attr_destroy(attr);
	DK_TRY(st);
	st = conv_steps(k, pd, m, p);
	dnnl_primitive_desc_destroy(pd);
	return st;
}

static dnnl_status_t make_conv(tn_dk *k, const tn_kern_desc *desc, nn_mds *m)
{
	static const dk_place in[3] = {{DK_IN, 0}, {DK_IN, 1}, {DK_IN, 2}}, out = {DK_OUT, 0};
	bool bias = desc->node->n_in > 2;
	conv_pass p = {.kind = TN_PD_FORWARD, .x = in[0], .w = in[1], .y = out, .b = in[2], .bias = bias};
	tn_nn_window w;

	tn_nn_window_of(desc, &w);
	if (desc->node->op == TN_OP_CONV_GRAD_WEIGHT) {
		p = (conv_pass){.kind = TN_PD_BACKWARD_WEIGHTS, .x = in[1], .w = out, .y = in[0]};
	} else if (desc->node->op != TN_OP_CONV) {
		p = (conv_pass){.kind = TN_PD_BACKWARD_DATA, .x = out, .w = in[1], .y = in[0]};
		k->bias = bias ? 2 : 0;
		k->bias_n = w.n;
		k->bias_c = w.c;
		k->bias_plane = tn_nn_plane(w.in);
	}
	return build_conv(k, &w, &p, m);
}

/* ---- pools ---- */

/* Whether oneDNN's windows are ours: none without an element, and the divisor of an average the same. */
static bool pool_fits(const tn_nn_window *w, bool average)
{
	for (uint32_t d = 0; d < TN_WINDOW_DIMS; d++) {
		int64_t reach = (w->k[d] - 1) * w->dil[d] + 1,
			last = (w->out[d] - 1) * w->stride[d] - w->pad[d];

		if (w->pad[d] >= reach || last >= w->in[d])
			return false;
		if (average && (w->dil[d] != 1 || (w->count_pad && last + reach > w->in[d] + w->pad_end[d])))
			return false;
		/* with holes a window may see padding alone */
		if (w->dil[d] != 1 && (w->pad[d] || last + reach > w->in[d]))
			return false;
	}
	return true;
}

static dnnl_status_t make_pool(tn_dk *k, const tn_kern_desc *desc, nn_mds *m)
{
	bool average = desc->node->op == TN_OP_AVERAGE_POOL || desc->node->op == TN_OP_AVERAGE_POOL_GRAD;
	bool gradient = desc->node->op == TN_OP_AVERAGE_POOL_GRAD;
	dnnl_alg_kind_t alg = dnnl_pooling_max;
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_t pd;
	tn_window window;
	tn_nn_window w;
	dk_arg args[2];
	dnnl_status_t st;

	tn_nn_window_of(desc, &w);
	if (!pool_fits(&w, average))
		return dnnl_unimplemented;
	if (average)
		alg = w.count_pad ? dnnl_pooling_avg_include_padding : dnnl_pooling_avg_exclude_padding;
	fill_window(&w, &window);
	DK_TRY(image_md(&m->x, NULL, &w, w.c, w.in));
	DK_TRY(image_md(&m->y, NULL, &w, w.c, w.out));
	DK_TRY(tn_pd_attr(&attr, false));
	st = tn_pd_pool(&pd, k->dnnl->engine, gradient ? TN_PD_BACKWARD_DATA : TN_PD_FORWARD, alg, &m->x,
			&m->y, &window, attr);
	dnnl_primitive_attr_destroy(attr);
	DK_TRY(st);
	args[0] = (dk_arg){gradient ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC,
			   {DK_IN, 0},
			   tn_md_look(gradient ? &m->y : &m->x)};
	args[1] = (dk_arg){gradient ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST,
			   {DK_OUT, 0},
			   tn_md_look(gradient ? &m->x : &m->y)};
	st = tn_dk_step(k, pd, args, 2);
	dnnl_primitive_desc_destroy(pd);
	return st;
}

/* ---- batch norm, LRN ---- */

static dnnl_status_t norm_md(nn_mds *m, const tern_shape *x)
{
	int64_t d[TERN_RANK_MAX];

	for (uint32_t i = 0; i < x->rank; i++)
		d[i] = (int64_t)x->dims[i];
	DK_TRY(dense(&m->x, NULL, x->rank, d));
	return dense(&m->b, NULL, 1, &d[1]);
}

static uint32_t norm_args(tn_op op, const nn_mds *m, dk_arg *a)
{
	tn_md_ref x = tn_md_look(&m->x), c = tn_md_look(&m->b);

	if (op == TN_OP_BATCH_NORM_GRAD) {
		a[0] = (dk_arg){DNNL_ARG_DIFF_DST, {DK_IN, 0}, x};
		a[1] = (dk_arg){DNNL_ARG_SRC, {DK_IN, 1}, x};
		a[2] = (dk_arg){DNNL_ARG_SCALE, {DK_IN, 2}, c};
		a[3] = (dk_arg){DNNL_ARG_MEAN, {DK_IN, 3}, c};
		a[4] = (dk_arg){DNNL_ARG_VARIANCE, {DK_IN, 4}, c};
		a[5] = (dk_arg){DNNL_ARG_DIFF_SRC, {DK_OUT, 0}, x};
		a[6] = (dk_arg){DNNL_ARG_DIFF_SCALE, {DK_OUT, 1}, c};
		a[7] = (dk_arg){DNNL_ARG_DIFF_SHIFT, {DK_OUT, 2}, c};
		a[8] = (dk_arg){DNNL_ARG_SHIFT, {DK_IN, 2}, c};
		return TN_BNORM_BACKWARD_SHIFT ? 9 : 8;
	}
	a[0] = (dk_arg){DNNL_ARG_SRC, {DK_IN, 0}, x};
	a[1] = (dk_arg){DNNL_ARG_SCALE, {DK_IN, 1}, c};
	a[2] = (dk_arg){DNNL_ARG_SHIFT, {DK_IN, 2}, c};
	a[3] = (dk_arg){DNNL_ARG_DST, {DK_OUT, 0}, x};
	a[4] = (dk_arg){DNNL_ARG_MEAN, {DK_OUT, 1}, c};
	a[5] = (dk_arg){DNNL_ARG_VARIANCE, {DK_OUT, 2}, c};
	if (op == TN_OP_BATCH_NORM) {
		a[4].place = (dk_place){DK_IN, 3};
		a[5].place = (dk_place){DK_IN, 4};
	}
	return 6;
}

static dnnl_status_t make_batch_norm(tn_dk *k, const tn_kern_desc *desc, nn_mds *m)
{
	tn_op op = desc->node->op;
	double epsilon = tn_node_float(desc->node, TN_ATTR_EPSILON, 1e-5);
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_t pd;
	dk_arg args[DK_ARGS];
	dnnl_status_t st;

	DK_TRY(norm_md(m, &desc->in[op == TN_OP_BATCH_NORM_GRAD ? 1 : 0].shape));
	DK_TRY(tn_pd_attr(&attr, false));
	st = tn_pd_bnorm(&pd, k->dnnl->engine,
			 op == TN_OP_BATCH_NORM_GRAD ? TN_PD_BACKWARD_DATA : TN_PD_FORWARD,
			 op == TN_OP_BATCH_NORM, &m->x, (float)epsilon, attr);
	dnnl_primitive_attr_destroy(attr);
	DK_TRY(st);
	st = tn_dk_step(k, pd, args, norm_args(op, m, args));
	dnnl_primitive_desc_destroy(pd);
	return st;
}

static dnnl_status_t make_lrn(tn_dk *k, const tn_kern_desc *desc, nn_mds *m)
{
	dnnl_primitive_attr_t attr;
	dnnl_primitive_desc_t pd;
	dk_arg args[2];
	tn_nn_lrn q;
	dnnl_status_t st;

	tn_nn_lrn_of(desc, &q);
	if (q.size % 2 == 0) /* its window lies the other way round */
		return dnnl_unimplemented;
	DK_TRY(norm_md(m, &desc->in[0].shape));
	DK_TRY(tn_pd_attr(&attr, false));
	st = tn_pd_lrn(&pd, k->dnnl->engine, &m->x, q.size, (float)q.alpha, (float)q.beta, (float)q.bias,
		       attr);
	dnnl_primitive_attr_destroy(attr);
	DK_TRY(st);
	args[0] = (dk_arg){DNNL_ARG_SRC, {DK_IN, 0}, tn_md_look(&m->x)};
	args[1] = (dk_arg){DNNL_ARG_DST, {DK_OUT, 0}, tn_md_look(&m->x)};
	st = tn_dk_step(k, pd, args, 2);
	dnnl_primitive_desc_destroy(pd);
	return st;
}

/* ---- which ---- */

typedef dnnl_status_t (*make_fn)(tn_dk *k, const tn_kern_desc *desc, nn_mds *m);

static const make_fn make_table[TN_OP_COUNT] = {
	[TN_OP_CONV] = make_conv,
	[TN_OP_CONV_TRANSPOSE] = make_conv,
	[TN_OP_CONV_GRAD_DATA] = make_conv,
	[TN_OP_CONV_GRAD_WEIGHT] = make_conv,
	[TN_OP_MAX_POOL] = make_pool,
	[TN_OP_AVERAGE_POOL] = make_pool,
	[TN_OP_AVERAGE_POOL_GRAD] = make_pool,
	[TN_OP_GLOBAL_MAX_POOL] = make_pool,
	[TN_OP_BATCH_NORM] = make_batch_norm,
	[TN_OP_BATCH_NORM_TRAIN] = make_batch_norm,
	[TN_OP_BATCH_NORM_GRAD] = make_batch_norm,
	[TN_OP_LRN] = make_lrn,
};

tern_status tn_dnnl_nn_create(tn_dnnl *dnnl, const tn_kern_desc *desc, tn_kern **kern)
{
	nn_mds mds = {0};
	dnnl_status_t st;
	tn_dk *k;

	*kern = NULL;
	if (!make_table[desc->node->op])
		return TERN_OK;
	k = tn_dk_new(dnnl, desc->node->name);
	if (!k)
		return tn_fail(TERN_E_NOMEM, "no memory for the kernel of '%s'", desc->node->name);
	st = make_table[desc->node->op](k, desc, &mds);
	free_mds(&mds);
	return tn_dk_result(k, st, kern);
}

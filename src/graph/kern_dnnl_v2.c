/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oneDNN 2.x: memory descriptors are values, and an operation descriptor comes before each primitive
 * descriptor. See kern_dnnl_api.h. Built where the header found is of 2.x (Debian 12: 2.6).
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/nn_conv_test.c.
 */
#include "graph/kern_dnnl_api.h"

#include <string.h>

dnnl_status_t tn_md_make(tn_md *md, uint32_t rank, const int64_t *dims, const int64_t *strides)
{
	dnnl_dims_t d, s;
	dnnl_status_t st;

	memcpy(d, dims, rank * sizeof(*d));
	if (strides) {
		memcpy(s, strides, rank * sizeof(*s));
		st = dnnl_memory_desc_init_by_strides(&md->d, (int)rank, d, dnnl_f32, s);
	} else {
		st = dnnl_memory_desc_init_by_tag(&md->d, (int)rank, d, dnnl_f32, dnnl_format_tag_any);
	}
	md->set = st == dnnl_success;
	return st;
}

void tn_md_free(tn_md *md)
{
	md->set = false;
}

tn_md_ref tn_md_look(const tn_md *md)
{
	return md && md->set ? &md->d : NULL;
}

dnnl_status_t tn_pd_attr(dnnl_primitive_attr_t *attr, bool accumulate)
{
	dnnl_post_ops_t ops = NULL;
	dnnl_status_t st = dnnl_primitive_attr_create(attr);

	if (st != dnnl_success)
		return st;
	st = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
	if (st == dnnl_success && accumulate)
		st = dnnl_post_ops_create(&ops);
	if (st == dnnl_success && accumulate)
		st = dnnl_post_ops_append_sum(ops, 1.0f);
	if (st == dnnl_success && accumulate)
		st = dnnl_primitive_attr_set_post_ops(*attr, ops);
	if (ops)
		dnnl_post_ops_destroy(ops);
	if (st != dnnl_success)
		dnnl_primitive_attr_destroy(*attr);
	return st;
}

dnnl_status_t tn_pd_conv(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind, const tn_md *src,
			 const tn_md *weights, const tn_md *bias, const tn_md *dst, const tn_window *window,
			 dnnl_primitive_attr_t attr)
{
	const tn_window *w = window;
	tn_md_ref s = tn_md_look(src), k = tn_md_look(weights), b = tn_md_look(bias), d = tn_md_look(dst);
	bool train = kind != TN_PD_FORWARD;
	dnnl_primitive_desc_t hint = NULL;
	dnnl_convolution_desc_t desc;
	dnnl_status_t st = dnnl_dilated_convolution_forward_desc_init(
		&desc, train ? dnnl_forward_training : dnnl_forward_inference, dnnl_convolution_direct, s, k,
		b, d, w->strides, w->dilates, w->pad_l, w->pad_r);

	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(train ? &hint : pd, &desc, attr, engine, NULL);
	if (st != dnnl_success || !train)
		return st;
	if (kind == TN_PD_BACKWARD_DATA)
		st = dnnl_dilated_convolution_backward_data_desc_init(
			&desc, dnnl_convolution_direct, s, k, d, w->strides, w->dilates, w->pad_l, w->pad_r);
	else
		st = dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, s, k,
									 b, d, w->strides, w->dilates,
									 w->pad_l, w->pad_r);
	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
	dnnl_primitive_desc_destroy(hint);
	return st;
}

dnnl_status_t tn_pd_pool(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind,
			 dnnl_alg_kind_t alg, const tn_md *src, const tn_md *dst, const tn_window *window,
			 dnnl_primitive_attr_t attr)
{
	const tn_window *w = window;
	bool train = kind != TN_PD_FORWARD;
	dnnl_primitive_desc_t hint = NULL;
	dnnl_pooling_v2_desc_t desc;
	dnnl_status_t st = dnnl_pooling_v2_forward_desc_init(
		&desc, train ? dnnl_forward_training : dnnl_forward_inference, alg, tn_md_look(src),
		tn_md_look(dst), w->strides, w->kernel, w->dilates, w->pad_l, w->pad_r);

	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(train ? &hint : pd, &desc, attr, engine, NULL);
	if (st != dnnl_success || !train)
		return st;
	st = dnnl_pooling_v2_backward_desc_init(&desc, alg, tn_md_look(src), tn_md_look(dst), w->strides,
						w->kernel, w->dilates, w->pad_l, w->pad_r);
	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
	dnnl_primitive_desc_destroy(hint);
	return st;
}

dnnl_status_t tn_pd_lrn(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const tn_md *src, int64_t size,
			float alpha, float beta, float bias, dnnl_primitive_attr_t attr)
{
	dnnl_lrn_desc_t desc;
	dnnl_status_t st = dnnl_lrn_forward_desc_init(&desc, dnnl_forward_inference, dnnl_lrn_across_channels,
						      tn_md_look(src), size, alpha, beta, bias);

	return st == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : st;
}

dnnl_status_t tn_pd_bnorm(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tn_pd_kind kind, bool global,
			  const tn_md *src, float epsilon, dnnl_primitive_attr_t attr)
{
	unsigned flags = dnnl_use_scale | dnnl_use_shift | (global ? dnnl_use_global_stats : 0u);
	bool train = kind != TN_PD_FORWARD;
	dnnl_primitive_desc_t hint = NULL;
	dnnl_batch_normalization_desc_t desc;
	dnnl_status_t st = dnnl_batch_normalization_forward_desc_init(
		&desc, global ? dnnl_forward_inference : dnnl_forward_training, tn_md_look(src), epsilon,
		flags);

	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(train ? &hint : pd, &desc, attr, engine, NULL);
	if (st != dnnl_success || !train)
		return st;
	st = dnnl_batch_normalization_backward_desc_init(&desc, dnnl_backward, tn_md_look(src),
							 tn_md_look(src), epsilon, flags);
	if (st == dnnl_success)
		st = dnnl_primitive_desc_create(pd, &desc, attr, engine, hint);
	dnnl_primitive_desc_destroy(hint);
	return st;
}

dnnl_status_t tn_pd_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const tn_md *a, const tn_md *b,
			   const tn_md *c, dnnl_primitive_attr_t attr)
{
	dnnl_matmul_desc_t desc;
	dnnl_status_t st = dnnl_matmul_desc_init(&desc, tn_md_look(a), tn_md_look(b), NULL, tn_md_look(c));

	return st == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : st;
}

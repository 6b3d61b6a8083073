/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makers of kernel families that are not there yet.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/ops_test.c.
 */
#include "base/fail.h"
#include "graph/kern.h"

static tern_status plain_f32(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	if (desc->in[0].dtype != TERN_F32)
		return tn_kern_unsupported(desc);
	for (uint32_t i = 1; i < desc->node->n_in; i++) {
		if (!tn_shape_equal(&desc->in[0].shape, &desc->in[i].shape))
			return tn_kern_unsupported(desc);
	}
	return tn_kern_plain_create(ctx, desc, made);
}

tern_status tn_kern_softmax_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	int64_t axis = tn_node_int(desc->node, TN_ATTR_AXIS, -1);

	if (axis != -1 && axis != (int64_t)desc->in[0].shape.rank - 1)
		return tn_kern_unsupported(desc);
	return plain_f32(ctx, desc, made);
}

tern_status tn_kern_unary_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return plain_f32(ctx, desc, made);
}

tern_status tn_kern_cast_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_dropout_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_binary_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return plain_f32(ctx, desc, made);
}

tern_status tn_kern_where_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_reduce_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return plain_f32(ctx, desc, made);
}

tern_status tn_kern_arg_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_cumsum_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_top_k_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_transpose_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_slice_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_concat_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_expand_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_pad_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_trilu_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_reverse_sequence_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_resize_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_gather_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_scatter_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

tern_status tn_kern_one_hot_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

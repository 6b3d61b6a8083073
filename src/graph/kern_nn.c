/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers: convolutions, pools, norms, recurrent layers.
 *
 * Thread story: see kern.h. Tests: tests/unit/graph/kern_test.c.
 */
#include "graph/kern.h"

tern_status tn_kern_nn_create(tn_kern_ctx *ctx, const tn_kern_desc *desc, tn_kern **made)
{
	return tn_kern_none_create(ctx, desc, made);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern_ctx_create: the one place that knows which services every node has. They are registered before the
 * listener accepts, so that no peer meets a node without them. Threads: the caller's.
 */
#include "channel/ctx.h"

#include "base/fail.h"
#include "coll/comm.h"
#include "rpc/rpc.h"
#include "tensor/tensor.h"

tern_status tern_ctx_create(const tern_ctx_params *params, tern_ctx **out)
{
	tern_ctx *ctx;
	tern_status status;

	*out = NULL;
	TN_TRY(tn_ctx_new(params, &ctx));
	if (!tn_rpc_server_get(ctx) || !tn_tensor_state_get(ctx) || !tn_coll_state_get(ctx))
		status = tn_fail(TERN_E_NOMEM, "no memory for the services of a node");
	else
		status = tn_ctx_start(ctx);
	if (status != TERN_OK) {
		tern_ctx_destroy(ctx);
		return status;
	}
	*out = ctx;
	return TERN_OK;
}

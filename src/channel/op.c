/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: their life, for this layer and those above.
 *
 *   IDLE -> INFLIGHT (begin, accepted) -> DONE (complete; once) -> INFLIGHT ...
 *
 * The state is the only word of an operation that two threads look at: stored with release after the
 * results, so that tern_op_test may be called from any thread.
 * Threads: any. Tests: tests/unit/channel/test_xfer.c.
 */
#include "channel/op.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "channel/channel_impl.h"

_Static_assert(sizeof(tn_work) <= sizeof(((tern_op *)0)->priv), "a completion waits inside its operation");

void tern_op_init(tern_op *op, tern_done_fn done, void *arg)
{
	memset(op, 0, sizeof(*op));
	op->done = done;
	op->arg = arg;
}

tern_status tern_op_test(const tern_op *op)
{
	return tn_op_state(op) == TN_OP_INFLIGHT ? TERN_AGAIN : op->status;
}

tern_status tn_op_begin(tern_op *op)
{
	if (tn_op_state(op) == TN_OP_INFLIGHT)
		return tn_fail(TERN_E_STATE, "the operation is in flight already: wait for its completion");
	op->status = TERN_AGAIN;
	op->length = 0;
	tn_op_set_state(op, TN_OP_INFLIGHT);
	return TERN_OK;
}

void tn_op_abort(tern_op *op)
{
	TN_ASSERT(tn_op_state(op) == TN_OP_INFLIGHT);
	op->status = TERN_E_STATE; /* not TERN_AGAIN: who waits for its end would do so for ever */
	tn_op_priv_of(op)->detail = 0;
	tn_op_set_state(op, TN_OP_IDLE);
}

void tn_op_complete(tern_ctx *ctx, tern_op *op, tern_status status, uint64_t length, const char *detail)
{
	tern_done_fn done = op->done;
	void *arg = op->arg;

	TN_ASSERT(tn_op_state(op) == TN_OP_INFLIGHT);
	op->status = status;
	op->length = length;
	tn_op_priv_of(op)->detail = status == TERN_OK || done ? 0 : tn_details_put(ctx, detail);
	tn_op_set_state(op, TN_OP_DONE);
	if (done) {
		if (detail && detail != tn_detail_get())
			tn_detail_set("%s", detail);
		else if (!detail)
			tn_detail_clear();
		tn_dispatch_depth++;
		done(op, arg);
		tn_dispatch_depth--;
	}
	tn_ctx_count_event(ctx);
	tn_roles_check_waiters(ctx);
}

void tn_op_complete_here(tern_ctx *ctx, tern_op *op, uint64_t length)
{
	TN_ASSERT(tn_op_state(op) == TN_OP_INFLIGHT && !op->done);
	op->status = TERN_OK;
	op->length = length;
	tn_op_priv_of(op)->detail = 0;
	tn_op_set_state(op, TN_OP_DONE);
	tn_ctx_count_event(ctx);
}

static void run_completion(tn_work *work)
{
	tern_op *op = TN_CONTAINER_OF(work, tern_op, priv);
	tern_done_fn done = op->done;
	void *arg = op->arg;

	tn_details_use(tn_op_priv_of(op)->ctx, tn_op_priv_of(op)->detail, op->status);
	tn_op_set_state(op, TN_OP_DONE);
	done(op, arg);
}

void tn_op_finish(tern_ctx *ctx, tern_op *op, tern_status status, uint64_t length, uint64_t detail)
{
	tn_op_priv *priv = tn_op_priv_of(op);

	TN_ASSERT(tn_op_state(op) == TN_OP_INFLIGHT);
	op->status = status;
	op->length = length;
	priv->detail = detail;
	if (!op->done) {
		tn_op_set_state(op, TN_OP_DONE);
		tn_tell_waiters(ctx);
		return;
	}
	priv->ctx = ctx;
	priv->work.run = run_completion;
	tn_dispatch_push(ctx, &priv->work);
}

static bool op_done(void *arg)
{
	return tn_op_state(arg) != TN_OP_INFLIGHT;
}

static tern_status result(tern_ctx *ctx, tern_op *op)
{
	if (TN_UNLIKELY(op->status != TERN_OK))
		tn_details_use(ctx, tn_op_priv_of(op)->detail, op->status);
	return op->status;
}

tern_status tern_op_wait(tern_ctx *ctx, tern_op *op, uint64_t timeout_ns)
{
	tern_status status;

	if (TN_LIKELY(op_done(op)))
		return result(ctx, op);
	TN_TRY(tn_ctx_enter(ctx));
	status = tn_wait_until(ctx, op_done, op, tn_deadline(timeout_ns ? tn_ctx_now(ctx) : 0, timeout_ns));
	return status == TERN_OK ? result(ctx, op) : status;
}

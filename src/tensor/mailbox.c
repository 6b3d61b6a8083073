/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mailboxes: control messages that wait for room in their channel, so that releases and closes are
 * never lost and never block.
 *
 *   idle -> busy (accepted) -> idle                 on_idle runs
 *   idle -> waiting (no room) -> busy               the timer tries again
 *
 * Threads: any; box->lock is innermost and held across tern_send, which runs no callback.
 */
#include "tensor/tensor.h"

#include <string.h>

#include "base/check.h"

/* Lock held. True: the message was given up, because the channel ended. */
static bool pump(tn_mailbox *box)
{
	tn_tensor_conn *conn = box->conn;
	tern_status status;

	if (box->busy || !box->pending)
		return false;
	memcpy(box->buf, box->next, box->next_length);
	tn_tensor_conn_ref(conn);
	status = atomic_load(&conn->status);
	if (status == TERN_OK)
		status = tern_send(conn->channel, box->buf, box->next_length, &box->op);
	box->pending = status == TERN_AGAIN;
	box->busy = status == TERN_OK;
	if (box->pending)
		tn_ctx_timer_set(conn->state->ctx, &box->timer,
				 tn_ctx_now(conn->state->ctx) + TN_TENSOR_RETRY_NS);
	if (!box->busy)
		tn_tensor_conn_unref(conn);
	return !box->busy && !box->pending;
}

/* Lock held, dropped here. */
static void pump_and_drop(tn_mailbox *box)
{
	bool given_up = pump(box) && box->on_given_up;

	pthread_mutex_unlock(&box->lock);
	if (given_up)
		box->on_given_up(box);
}

static void on_sent(tern_op *op, void *arg)
{
	tn_mailbox *box = arg;
	tn_tensor_conn *conn = box->conn;
	bool idle;

	(void)op; /* a failure means that the channel ended, which on_closed tells */
	pthread_mutex_lock(&box->lock);
	box->busy = false;
	pump(box);
	idle = !box->busy && !box->pending && box->on_idle;
	if (idle)
		box->settling++; /* nobody else may free the owner before on_idle has looked */
	pthread_mutex_unlock(&box->lock);
	if (idle)
		box->on_idle(box);
	tn_tensor_conn_unref(conn);
}

static void on_timer(tn_ctx_timer *timer)
{
	tn_mailbox *box = (tn_mailbox *)((char *)timer - offsetof(tn_mailbox, timer));

	pthread_mutex_lock(&box->lock);
	pump_and_drop(box);
}

void tn_mailbox_init(tn_mailbox *box, void (*on_idle)(tn_mailbox *box))
{
	pthread_mutex_init(&box->lock, NULL);
	box->on_idle = on_idle;
	box->timer.run = on_timer;
	tern_op_init(&box->op, on_sent, box);
}

void tn_mailbox_bind(tn_mailbox *box, tn_tensor_conn *conn)
{
	box->conn = conn;
}

void tn_mailbox_post(tn_mailbox *box, const tn_tensor_msg *msg)
{
	TN_ASSERT(box->conn);
	pthread_mutex_lock(&box->lock);
	box->next_length = tn_tensor_encode(box->next, msg);
	box->pending = true;
	pump_and_drop(box);
}

void tn_mailbox_drop(tn_mailbox *box)
{
	pthread_mutex_lock(&box->lock);
	box->pending = false;
	pthread_mutex_unlock(&box->lock);
}

bool tn_mailbox_idle(tn_mailbox *box)
{
	bool idle;

	pthread_mutex_lock(&box->lock);
	idle = !box->busy && !box->pending && !box->settling;
	pthread_mutex_unlock(&box->lock);
	return idle;
}

void tn_mailbox_settled(tn_mailbox *box)
{
	pthread_mutex_lock(&box->lock);
	TN_ASSERT(box->settling > 0);
	box->settling--;
	pthread_mutex_unlock(&box->lock);
}

void tn_mailbox_fini(tn_mailbox *box)
{
	if (box->conn)
		tn_ctx_timer_cancel(box->conn->state->ctx, &box->timer);
	pthread_mutex_destroy(&box->lock);
}

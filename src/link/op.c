/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of a link: accepting them, and ending each exactly once. States and guarantees: state.h.
 *
 * An op ends with
 *   TERN_OK           all pieces done, and acknowledged where its level or the device asks for it
 *   a piece's error   (ACCESS, BOUNDS, ...) once its other pieces are back
 *   DEADLINE          its time came first, even if the pieces got through meanwhile
 *   CANCELED, FLUSHED, PEER_CLOSED   it was stopped, and had not got through when its pieces came back
 *   the link's status, or INDETERMINATE for a put that was on its way when its path broke
 *
 * Threads: none. Tests: tests/unit/link/op_test.c, pair_test.c.
 */
#include "link/internal.h"

static const char *const op_state_names[] = {
	[TN_LOP_FREE] = "FREE",     [TN_LOP_QUEUED] = "QUEUED",   [TN_LOP_ACTIVE] = "ACTIVE",
	[TN_LOP_POSTED] = "POSTED", [TN_LOP_STOPPED] = "STOPPED", [TN_LOP_DONE] = "DONE",
};

#define B(s) (1u << TN_LOP_##s)
static const uint32_t op_predecessors[] = {
	[TN_LOP_FREE] = B(DONE),
	[TN_LOP_QUEUED] = B(FREE) | B(ACTIVE) | B(POSTED), /* again: restarted on new lanes */
	[TN_LOP_ACTIVE] = B(QUEUED),
	[TN_LOP_POSTED] = B(QUEUED) | B(ACTIVE),
	[TN_LOP_STOPPED] = B(ACTIVE) | B(POSTED),
	[TN_LOP_DONE] = B(QUEUED) | B(ACTIVE) | B(POSTED) | B(STOPPED),
};

const char *tn_lk_op_state_name(tn_lk_op_state state)
{
	return (unsigned)state < TN_COUNT_OF(op_state_names) ? op_state_names[state] : "?";
}

void tn_lk_op_set_state(tn_link *link, tn_lk_op *op, tn_lk_op_state to)
{
	(void)link;
	TN_ASSERT_MSG(op_predecessors[to] & (1u << op->state), "op %s -> %s", tn_lk_op_state_name(op->state),
		      tn_lk_op_state_name(to));
	TN_ASSERT(to != TN_LOP_DONE || op->wrs == 0);
	op->state = to;
}

/* ---- rows ---- */

tn_lk_op *tn_lk_op_new(tn_link *link, tn_lk_chan *chan, tn_lk_op_kind kind, const tn_link_op_params *params)
{
	uint32_t index = link->op_free;
	tn_lk_op *op;

	TN_ASSERT(tn_lk_has_op_row(link));
	if (index != TN_NONE) {
		op = &link->ops[index];
		link->op_free = op->next_free;
	} else {
		op = &link->ops[link->op_high++];
		op->generation = link->op_generation;
	}
	op->generation = op->generation == UINT32_MAX ? 1 : op->generation + 1;
	op->node = op->ack_node = (tn_list){0};
	op->timer = (tn_timer){0};
	op->state = TN_LOP_FREE; /* a fresh row has no state yet; set_state below is the first */
	op->kind = kind;
	op->chan = tn_lk_chan_index(link, chan);
	op->lane = TN_NONE;
	op->wrs = 0;
	op->status = TERN_OK;
	op->redo = op->resent = op->silent = op->need_ack = op->acked = op->all_posted = op->failed =
		op->lost = op->tail = op->flag_posted = op->beside = false;
	op->placed = TN_PLACED_NO;
	op->remote = params->level == TN_LINK_REMOTE;
	op->user = params->user;
	op->sent = 0;
	link->op_live++;
	chan->ops++;
	tn_count_own(&link->counters.ops, 1);
	tn_lk_op_set_state(link, op, TN_LOP_QUEUED);
	if (params->deadline_ns != TN_TIME_NEVER)
		tn_timer_set(&link->timers, &op->timer, params->deadline_ns);
	return op;
}

uint64_t tn_lk_op_handle(const tn_link *link, const tn_lk_op *op)
{
	return (uint64_t)op->generation << 32 | tn_lk_op_index(link, op);
}

static void op_free(tn_link *link, tn_lk_op *op)
{
	tn_lk_op_set_state(link, op, TN_LOP_FREE);
	op->next_free = link->op_free;
	link->op_free = tn_lk_op_index(link, op);
	link->op_live--;
}

/* ---- ending ---- */

static void finish(tn_link *link, tn_lk_op *op, tern_status status)
{
	tn_lk_chan *chan = &link->chans[op->chan];

	TN_ASSERT(!tn_list_linked(&op->node) && !tn_list_linked(&op->ack_node));
	tn_lk_op_set_state(link, op, TN_LOP_DONE);
	op->status = status;
	if (status != TERN_OK) {
		tn_count_own(&link->counters.ops_failed, 1);
		if (op->kind == TN_OP_PUT_NOTIFY && op->lane != TN_NONE)
			tn_lk_journal_orphan(link, tn_lk_op_handle(link, op));
	}
	tn_timer_cancel(&link->timers, &op->timer);
	tn_list_push_back(&link->done, &op->node);
	if (op->lane != TN_NONE && op->kind != TN_OP_MESSAGE) {
		TN_ASSERT(chan->xfers_out > 0);
		chan->xfers_out--;
	}
	TN_ASSERT(chan->ops > 0);
	chan->ops--;
	tn_lk_chan_update(link, chan);
	tn_lk_chan_advance(link, chan);
}

void tn_lk_op_stop(tn_link *link, tn_lk_op *op, tern_status status)
{
	tn_lk_chan *chan = &link->chans[op->chan];

	if (op->state < TN_LOP_QUEUED || op->state > TN_LOP_POSTED)
		return;
	tn_list_remove(&op->node);
	tn_list_remove(&op->ack_node);
	op->tail = false;
	if (op->redo) {
		/* Its notification was counted, and is not sent again. */
		op->redo = false;
		op->lost = true;
		chan->notifies_tx--;
		tn_lk_journal_void(link, tn_lk_op_handle(link, op));
	}
	op->all_posted = op->state == TN_LOP_POSTED && (!op->need_ack || op->acked);
	op->status = status;
	/* The peer has a part of the message: it must hear that no more follows. */
	if (op->kind == TN_OP_MESSAGE && op->state == TN_LOP_ACTIVE && !link->settled)
		chan->abort_due = true;
	if (op->wrs == 0 || TN_MUTANT(5)) {
		finish(link, op, status);
		return;
	}
	tn_lk_op_set_state(link, op, TN_LOP_STOPPED);
	tn_lk_chan_update(link, chan);
}

/* What an op ends with when its link is lost. */
static tern_status lost_status(const tn_link *link, const tn_lk_op *op)
{
	tern_status status = link->status == TERN_OK ? TERN_E_FLUSHED : link->status;
	bool put = op->kind == TN_OP_PUT || op->kind == TN_OP_PUT_NOTIFY || op->kind == TN_OP_PUT_FLAG;

	if (put && op->state != TN_LOP_QUEUED && tern_status_radius(status) == TERN_RADIUS_PATH)
		return TERN_E_INDETERMINATE;
	return status;
}

void tn_lk_op_settle(tn_link *link, tn_lk_op *op)
{
	if (op->wrs > 0)
		return;
	if (op->state == TN_LOP_STOPPED) {
		bool through = op->all_posted && !op->failed && !op->lost && op->status != TERN_E_DEADLINE;

		finish(link, op, through ? TERN_OK : op->status);
	} else if (op->state == TN_LOP_POSTED && !op->lost && !op->redo && (!op->need_ack || op->acked)) {
		tn_list_remove(&op->ack_node);
		finish(link, op, TERN_OK);
	}
}

void tn_lk_ops_end(tn_link *link)
{
	for (uint32_t i = 0; i < link->op_high; i++) {
		tn_lk_op *op = &link->ops[i];

		if (op->state >= TN_LOP_QUEUED && op->state <= TN_LOP_POSTED)
			tn_lk_op_stop(link, op, lost_status(link, op));
	}
}

void tn_lk_ops_stop_queued(tn_link *link, tern_status status)
{
	for (uint32_t i = 0; i < link->op_high; i++)
		tn_lk_op_stop(link, &link->ops[i], status);
}

bool tn_lk_next_done(tn_link *link, tn_link_action *act)
{
	tn_lk_op *op = TN_LIST_FIRST(&link->done, tn_lk_op, node);

	if (!op)
		return false;
	tn_list_remove(&op->node);
	act->type = TN_ACT_OP_DONE;
	act->done.user = op->user;
	act->done.op = tn_lk_op_handle(link, op);
	act->done.status = op->status;
	act->done.length = op->status == TERN_OK ? op->length : 0;
	act->done.detail = op->status != TERN_OK && link->settled ? tn_lk_text(link->detail) : "";
	op_free(link, op);
	return true;
}

tern_status tn_link_cancel(tn_link *link, uint64_t handle, uint64_t now_ns)
{
	uint32_t index = (uint32_t)handle;
	tn_lk_op *op = index < link->op_high ? &link->ops[index] : NULL;

	(void)now_ns;
	if (!op || op->generation != handle >> 32 || op->state < TN_LOP_QUEUED || op->state > TN_LOP_STOPPED)
		return TERN_E_NOT_FOUND;
	tn_lk_op_stop(link, op, TERN_E_CANCELED);
	return TERN_OK;
}

/* ---- accepting ---- */

/* May the channel take another op? */
static tern_status admit(tn_link *link, uint32_t channel, bool over, tn_lk_chan **out)
{
	tn_lk_chan *chan = tn_lk_chan_get(link, channel);

	if (link->state >= TN_LINK_CLOSING && link->status != TERN_OK)
		return tn_fail(link->status, "%s", tn_lk_text(link->detail));
	if (!tn_lk_alive(link) || link->close_wanted || !chan || chan->released)
		return tn_fail(TERN_E_STATE, "the channel or its link is closed");
	if (chan->spoilt)
		return tn_fail(TERN_E_INDETERMINATE,
			       "puts of this channel may be lost with a lane that broke");
	if (chan->close_received || chan->state == TN_CHAN_ENDED)
		return tn_fail(chan->status != TERN_OK ? chan->status : TERN_E_PEER_CLOSED,
			       "the peer closed the channel");
	if (chan->state != TN_CHAN_OPEN && chan->state != TN_CHAN_OPENING)
		return tn_fail(TERN_E_STATE, "the channel was not accepted yet");
	if (TN_UNLIKELY(!link->wrs) && !tn_lk_work_lend(link))
		return tn_fail(TERN_E_NOMEM, "no memory for the link's operations");
	if (!tn_lk_has_op_row(link) || (chan->ops >= link->config->channel_ops_max && !over))
		return TERN_AGAIN;
	*out = chan;
	return TERN_OK;
}

tern_status tn_link_send(tn_link *link, uint32_t channel, const tn_link_iov *iov, uint32_t count,
			 const tn_link_op_params *params, uint64_t *handle)
{
	tn_lk_chan *chan = NULL;
	tn_lk_op *op;
	uint64_t total = 0;

	if (count > TN_LINK_IOV_MAX)
		return tn_fail(TERN_E_INVALID, "a message has %d pieces at most", TN_LINK_IOV_MAX);
	TN_TRY(admit(link, channel, params->over, &chan));
	for (uint32_t i = 0; i < count; i++) {
		if (iov[i].bytes > TN_TRANSFER_BYTES_MAX - total)
			return tn_fail(TERN_E_TOO_LARGE, "a message beyond 2^47 bytes");
		total += iov[i].bytes;
	}
	if (total > chan->peer_message_max)
		return tn_fail(
			TERN_E_TOO_LARGE,
			"%llu bytes, and the peer's channel takes %llu: raise channel.message_max there",
			(unsigned long long)total, (unsigned long long)chan->peer_message_max);
	op = tn_lk_op_new(link, chan, TN_OP_MESSAGE, params);
	op->length = total;
	op->need_ack = params->level == TN_LINK_REMOTE && !TN_MUTANT(22);
	op->msg.count = count;
	memcpy(op->msg.iov, iov, count * sizeof(*iov));
	tn_list_push_back(&chan->msgs, &op->node);
	tn_lk_chan_update(link, chan);
	*handle = tn_lk_op_handle(link, op);
	return TERN_OK;
}

static tern_status check_xfer(const tn_link *link, const tn_link_xfer *xfer)
{
	if (xfer->bytes > TN_TRANSFER_BYTES_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "a transfer beyond 2^47 bytes");
	if (xfer->type == TN_XFER_GET && !(link->caps & TN_LINK_CAP_READ))
		return tn_fail(TERN_E_UNSUPPORTED, "the link's provider can't read remote memory");
	if (xfer->type == TN_XFER_PUT_FLAG && !(link->caps & TN_LINK_CAP_ORDERED_WRITES))
		return tn_fail(TERN_E_UNSUPPORTED,
			       "the link's provider does not order writes: use put_notify");
	if (xfer->type == TN_XFER_PUT_NOTIFY && xfer->value >> TN_LINK_NOTIFY_BITS)
		return tn_fail(TERN_E_INVALID, "a notification's value has %d bits", TN_LINK_NOTIFY_BITS);
	if (xfer->type == TN_XFER_PUT_FLAG && xfer->flag_offset % 8)
		return tn_fail(TERN_E_INVALID, "the flag's offset is not a multiple of 8");
	return TERN_OK;
}

static const uint8_t kind_of[] = {
	[TN_XFER_PUT] = TN_OP_PUT,
	[TN_XFER_PUT_NOTIFY] = TN_OP_PUT_NOTIFY,
	[TN_XFER_PUT_FLAG] = TN_OP_PUT_FLAG,
	[TN_XFER_GET] = TN_OP_GET,
};

tn_lk_op *tn_lk_op_new_xfer(tn_link *link, tn_lk_chan *chan, const tn_link_xfer *xfer,
			    const tn_link_op_params *params)
{
	tn_lk_op *op = tn_lk_op_new(link, chan, kind_of[xfer->type], params);

	op->length = xfer->bytes;
	op->need_ack = tn_lk_xfer_needs_ack(link, xfer->type, params);
	op->placed = xfer->type == TN_XFER_PUT_NOTIFY ? params->placed : TN_PLACED_NO;
	op->beside = tn_lk_goes_beside(link, op->placed, xfer->bytes);
	op->x.local = xfer->local;
	op->x.offset = xfer->offset;
	op->x.value = xfer->value;
	op->x.flag = xfer->flag;
	op->x.flag_offset = xfer->flag_offset;
	/* A transfer of nothing needs no key. */
	if (xfer->key)
		memcpy(op->x.key, xfer->key, sizeof(op->x.key));
	else
		memset(op->x.key, 0, sizeof(op->x.key));
	if (xfer->type == TN_XFER_PUT_FLAG)
		memcpy(op->x.flag_key, xfer->flag_key, sizeof(op->x.flag_key));
	return op;
}

tern_status tn_link_transfer(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
			     const tn_link_op_params *params, uint64_t *handle)
{
	tn_lk_chan *chan = NULL;
	tn_lk_op *op;

	TN_TRY(admit(link, channel, params->over, &chan));
	TN_TRY(check_xfer(link, xfer));
	op = tn_lk_op_new_xfer(link, chan, xfer, params);
	*handle = tn_lk_op_handle(link, op);
	if (xfer->bytes == 0 && (xfer->type == TN_XFER_GET || xfer->type == TN_XFER_PUT)) {
		finish(link, op, TERN_OK);
		return TERN_OK;
	}
	tn_list_push_back(&chan->xfers, &op->node);
	tn_lk_chan_update(link, chan);
	return TERN_OK;
}

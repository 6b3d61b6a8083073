/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a link machine: takes its actions and carries them out.
 *
 * Posts, completions and control bytes are done by whoever holds the lock. The first action that is the
 * driver's own (lanes, connection, callbacks) is put into the stash, the link queues for the driver's
 * attention, and nobody takes further actions until the driver has emptied the stash: so the order of the
 * machine's actions is kept.
 *
 * Threads: shell.h. Tests: tests/unit/channel.
 */
#include <stdio.h>

#include "base/fail.h"
#include "base/log.h"
#include "channel/channel_impl.h"
#include "channel/post.h"
#include "channel/queue.h"
#include "channel/shell.h"
#include "mem/gpu.h"

tern_status tn_shell_post_wr(tn_shell_lane *slane, tn_link_post_type type, tn_wr *wr)
{
	return tn_post_wr(slane, type, wr);
}

tern_status tn_shell_post(const tn_link_post *post, bool *done)
{
	return tn_post_here(post, done);
}

_Static_assert(sizeof(tn_link_iov) == sizeof(tn_iov) &&
		       offsetof(tn_link_iov, bytes) == offsetof(tn_iov, bytes),
	       "iov of the machine is the transport's");
_Static_assert(TN_LINK_IOV_MAX + 1 <= TN_IOV_MAX, "a frame's pieces fit a send");
_Static_assert((int)TN_LINK_LOCAL == (int)TN_LEVEL_LOCAL && (int)TN_LINK_REMOTE == (int)TN_LEVEL_REMOTE,
	       "levels");

static bool long_copy(const tern_link *link, const tn_link_post *post)
{
	const tn_shell_lane *slane = post->lane_user;

	return post->bytes > TN_SHELL_COPY_BYTES && slane->sdev->caps.copies && !link->copying &&
	       (post->type == TN_POST_WRITE || post->type == TN_POST_READ) && !tn_gpu_on();
}

/*
 * Lock held, dropped while the bytes are copied: threads with small messages do not wait for the end of a piece.
 * The lane stays, for it is not drained before the access ends.
 */
static tern_status copy_outside(tern_link *link, const tn_link_post *post, uint64_t now_ns)
{
	tn_shell_lane *slane = post->lane_user;
	const tn_dev_ops *ops = slane->lane->dev->ops;
	tn_lane *lane = slane->lane;
	tn_wr wr = {.local = post->local,
		    .bytes = post->bytes,
		    .offset = post->offset,
		    .whole = post->whole,
		    .last = post->last};
	tn_copy copy;
	tern_status status;

	if (tn_key_decode(post->key, &wr.key))
		status = ops->copy_begin(lane, &wr, post->type == TN_POST_READ, &copy);
	else
		status = tn_fail(TERN_E_INVALID, "this is not a key: its 64 bytes are malformed");
	if (status != TERN_OK) {
		tn_link_posted(link->m, post, status, false, now_ns);
		return status;
	}
	tn_link_posted_outside(link->m, post, now_ns);
	link->copying = true;
	tn_tell_release(link->ctx);
	tn_lock_drop(&link->lock);
	ops->copy(lane, &copy);
	tn_lock_take(&link->lock);
	tn_tell_hold();
	link->copying = false;
	ops->copy_end(lane, &copy);
	tn_link_outside_done(link->m, post->cookie, TERN_OK, now_ns);
	return TERN_OK;
}

void tn_shell_attention(tern_link *link)
{
	tern_ctx *ctx = link->ctx;

	if (atomic_exchange_explicit(&link->attention_queued, 1, memory_order_acq_rel))
		return;
	tn_shell_ref(link);
	if (tn_mpsc_push(&ctx->attention, &link->attention))
		tn_roles_kick(ctx);
}

/* Text of an end: whose link it was matters when the path or the peer is the cause. */
static uint64_t end_detail(tern_link *link, tern_status status, const char *detail)
{
	char label[TN_NAME_MAX + TN_ADDRESS_MAX + 32], text[TN_DETAIL_MAX];
	tern_radius radius = tern_status_radius(status);

	if (status == TERN_OK)
		return 0;
	if (!detail || !detail[0])
		detail = tern_status_text(status);
	if (radius != TERN_RADIUS_PATH && radius != TERN_RADIUS_PEER)
		return tn_details_put(link->ctx, detail);
	snprintf(text, sizeof(text), "%s: %s", tn_shell_label(link, label, sizeof(label)), detail);
	return tn_details_put(link->ctx, text);
}

void tn_shell_op_done(tern_link *link, const tn_link_action *act)
{
	tern_op *op = act->done.user;

	tn_op_finish(link->ctx, op, act->done.status, act->done.length,
		     end_detail(link, act->done.status, act->done.detail));
}

/* Lock held: the timer may be late (it looks again), never early. */
static void set_timer(tern_link *link)
{
	uint64_t at = tn_link_next_wake(link->m);

	if (link->connect_deadline_ns < at)
		at = link->connect_deadline_ns;
	if (link->redial_at_ns < at)
		at = link->redial_at_ns;
	if (at >= link->timer_at)
		return;
	link->timer_at = at;
	tn_ctx_timer_set(link->ctx, &link->timer, at);
}

static void ctrl_send(tern_link *link, const tn_link_action *act)
{
	if (!link->conn || tn_conn_send(link->conn, act->ctrl.bytes, act->ctrl.n) == TERN_OK)
		return;
	link->errands |= TN_ERRAND_OVERFLOW;
	tn_shell_attention(link);
}

/* The action waits for the driver. Its texts are good only until the next call of the machine: keep them. */
static void put_stash(tern_link *link, const tn_link_action *act)
{
	const char *text = act->type == TN_ACT_CHANNEL_CLOSED     ? act->channel.detail
			   : act->type == TN_ACT_CHANNEL_INCOMING ? act->channel.service
			   : act->type == TN_ACT_LINK_DOWN        ? act->link.detail
								  : "";

	TN_ASSERT(!link->has_stash);
	link->stash = *act;
	snprintf(link->stash_text, sizeof(link->stash_text), "%s", text ? text : "");
	link->has_stash = true;
	tn_shell_attention(link);
}

/*
 * Pieces that one call copies outside of the lock. Others submit meanwhile: without a bound whoever ran the machine
 * first would copy for all of them, in a submission that does not return.
 */
#define COPIES_MAX 16u

/* Looks at the queue of one run: others push while it is at work, and the driver has more to do than this link. */
#define QUEUE_LOOKS 8u

typedef struct run {
	tern_status refused; /* by the device, whose words are this thread's */
	unsigned copies;
	tn_lane *held; /* its doorbell may wait */
} run;

static void let_go(run *r)
{
	if (r->held)
		r->held->dev->ops->flush(r->held);
	r->held = NULL;
}

static void hold(run *r, tn_lane *lane)
{
	if (r->held != lane)
		let_go(r);
	lane->more = true;
	r->held = lane;
}

static void post(tern_link *link, run *r, const tn_link_action *act, uint64_t now_ns)
{
	tern_status status;
	bool done;

	if (long_copy(link, &act->post)) {
		let_go(r);
		status = copy_outside(link, &act->post, now_ns);
		r->copies++;
	} else {
		hold(r, ((tn_shell_lane *)act->post.lane_user)->lane);
		status = tn_shell_post(&act->post, &done);
		tn_link_posted(link->m, &act->post, status, done, now_ns);
	}
	if (TN_UNLIKELY(status != TERN_OK))
		r->refused = status;
	/* That took a while: messages that came meanwhile don't wait for all the pieces that may go. */
	if (act->post.bytes > TN_SHELL_COPY_BYTES)
		tn_queue_drain(link);
}

static void take_actions(tern_link *link, run *r, uint64_t now_ns)
{
	tn_link_action act;

	while (!link->has_stash && r->copies < COPIES_MAX && tn_link_next_action(link->m, now_ns, &act)) {
		switch (act.type) {
		case TN_ACT_POST:
			post(link, r, &act, now_ns);
			break;
		case TN_ACT_OP_DONE:
			if (r->refused != TERN_OK && act.done.status == r->refused && !act.done.detail[0])
				act.done.detail = tn_detail_get();
			tn_shell_op_done(link, &act);
			break;
		case TN_ACT_CTRL_SEND:
			ctrl_send(link, &act);
			break;
		case TN_ACT_NONE:
			break;
		default:
			put_stash(link, &act);
		}
	}
	let_go(r);
}

void tn_shell_run(tern_link *link, uint64_t now_ns)
{
	run r = {.refused = TERN_OK};
	bool more = true;

	tn_queue_drain(link);
	if (link->gone)
		return;
	tn_tell_hold();
	take_actions(link, &r, now_ns);
	for (unsigned looks = 1; more && looks < QUEUE_LOOKS && tn_queue_any(link); looks++) {
		more = !link->has_stash && r.copies < COPIES_MAX && tn_queue_empty_into(link);
		take_actions(link, &r, now_ns);
	}
	/* What was pushed meanwhile was told to the driver by who pushed it; a backlog is this thread's. */
	if ((r.copies == COPIES_MAX && tn_link_pending(link->m)) || (more && link->sends.backlog))
		tn_shell_attention(link);
	tn_tell_release(link->ctx);
	set_timer(link);
}

bool tn_shell_unsettled(tern_link *link)
{
	if (TN_UNLIKELY(tn_link_pending(link->m)))
		return true;
	if (!link->gone)
		set_timer(link);
	return false;
}

void tn_shell_timer(tn_ctx_timer *timer)
{
	tern_link *link = TN_CONTAINER_OF(timer, tern_link, timer);
	uint64_t now = tn_ctx_now(link->ctx);
	char pause[32];

	tn_lock_take(&link->lock);
	link->timer_at = TN_TIME_NEVER;
	if (!link->gone) {
		if (now >= link->connect_deadline_ns) {
			link->connect_deadline_ns = link->redial_at_ns = TN_TIME_NEVER;
			tn_fail(TERN_E_DEADLINE, "not connected within %s",
				tn_format_duration(link->timeout_ns, pause, sizeof(pause)));
			tn_link_abort(link->m, link->redial_pause_ns ? TERN_E_REFUSED : TERN_E_DEADLINE,
				      link->redial_pause_ns ? "connection refused again and again until the "
							      "time-out: does it run there?"
							    : tn_detail_get(),
				      now);
		}
		if (now >= link->redial_at_ns) {
			link->redial_at_ns = TN_TIME_NEVER;
			link->errands |= TN_ERRAND_DIAL;
			tn_shell_attention(link);
		}
		tn_link_on_time(link->m, now);
		tn_shell_run(link, now);
	}
	tn_lock_drop(&link->lock);
}

/* ---- the driver's part ---- */

/* Lock held; may drop it around callbacks. False: the link is over, the lock is not held any more. */
static bool carry_out(tern_link *link, const tn_link_action *act, const char *text, uint64_t now)
{
	switch (act->type) {
	case TN_ACT_CTRL_CLOSE:
		if (link->conn)
			tn_conn_close(link->conn);
		link->conn = NULL;
		break;
	case TN_ACT_PEER:
		tn_lock_drop(&link->lock);
		tn_shell_meet(link);
		tn_lock_take(&link->lock);
		break;
	case TN_ACT_REACH:
		tn_shell_reach(link, act, now);
		break;
	case TN_ACT_LANE_CREATE:
		tn_shell_lane_create(link, act, now);
		break;
	case TN_ACT_LANE_CONNECT:
		tn_shell_lane_connect(link, act, now);
		break;
	case TN_ACT_LANE_CLOSE:
		tn_shell_lane_close(link, act);
		break;
	case TN_ACT_CHANNEL_INCOMING:
		tn_channel_incoming(link, act, text, now);
		break;
	case TN_ACT_CHANNEL_OPENED:
		break;
	case TN_ACT_CHANNEL_CLOSED:
		tn_channel_ended(link, act, text);
		break;
	case TN_ACT_LINK_UP:
		link->connect_deadline_ns = TN_TIME_NEVER;
		tn_lock_drop(&link->lock);
		tn_shell_link_up(link);
		tn_lock_take(&link->lock);
		break;
	case TN_ACT_REJOIN:
		tn_lock_drop(&link->lock);
		tn_shell_rejoin(link, act->ctrl.bytes, act->ctrl.n);
		tn_lock_take(&link->lock);
		break;
	case TN_ACT_CTRL_DIAL:
		tn_shell_dial(link);
		break;
	case TN_ACT_LINK_MOVED:
		tn_shell_link_moved(link);
		break;
	case TN_ACT_LINK_DOWN:
		link->gone = true;
		tn_queue_drain(link);
		link->connect_deadline_ns = link->redial_at_ns = TN_TIME_NEVER;
		tn_lock_drop(&link->lock);
		tn_shell_link_down(link, act->link.status, text);
		return false;
	default:
		TN_ASSERT(false);
	}
	return true;
}

static void run_errands(tern_link *link, uint64_t now)
{
	uint32_t errands = link->errands;

	link->errands = 0;
	if (errands & TN_ERRAND_OVERFLOW && link->conn) {
		tn_conn_close(link->conn);
		link->conn = NULL;
		tn_link_on_ctrl_down(link->m, TERN_E_PEER_LOST, "it does not read its control connection",
				     now);
	}
	if (errands & TN_ERRAND_DIAL)
		tn_shell_dial(link);
}

static void attend(tern_link *link)
{
	uint64_t now = tn_ctx_now(link->ctx);

	atomic_store_explicit(&link->attention_queued, 0, memory_order_release);
	tn_lock_take(&link->lock);
	if (link->errands && !link->gone)
		run_errands(link, now);
	for (;;) {
		tn_link_action act;
		char text[sizeof(link->stash_text)];

		tn_shell_run(link, now);
		if (!link->has_stash)
			break;
		act = link->stash;
		memcpy(text, link->stash_text, sizeof(text));
		link->has_stash = false;
		if (!carry_out(link, &act, text, now))
			return;
	}
	tn_lock_drop(&link->lock);
}

int tn_shell_attend(tern_ctx *ctx)
{
	tn_mpsc_node *node = tn_mpsc_take(&ctx->attention);
	int n = 0;

	tn_dispatch_depth++;
	while (node) {
		tern_link *link = TN_CONTAINER_OF(node, tern_link, attention);

		node = node->next;
		attend(link);
		tn_shell_unref(link);
		n++;
	}
	tn_dispatch_depth--;
	return n;
}

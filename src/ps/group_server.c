/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper of groups. See group.h. A request that has to wait is held, with a timer of its own, until its turn comes,
 * its time is over, its caller gives it up or the server closes: whoever claims it first, under the lock, answers it.
 * Nothing is answered under the lock.
 *
 * Threads: handlers and timers run from dispatch, close in any thread. Tests: tests/unit/ps/group_test.c.
 */
#include "ps/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/os.h"
#include "base/time.h"
#include "channel/dispatch.h"

/* What an answer has, little-endian as everything here is. */
typedef struct words {
	uint32_t count;
	uint64_t word[TN_PS_GROUP_WORDS];
} words;

typedef struct group_wait {
	tn_list node; /* groups->waits, until it is claimed */
	tn_ps_groups *groups;
	ps_group *group;
	tern_rpc_request *request;
	tn_ctx_timer timer;
	tn_clock_waiter step;
	tn_barrier_waiter barrier;
	bool at_barrier, to_close;
	uint64_t since_ns;
	words words;                 /* of its answer */
	char name[TERN_PS_NAME_MAX]; /* of the barrier */
	tern_status status;
	char detail[TN_DETAIL_MAX];
} group_wait;

static void answer(tern_rpc_request *request, tern_status status, const words *w)
{
	const char *detail = tn_detail_get();

	if (status == TERN_OK)
		tern_rpc_reply(request, TERN_OK, w->word, w->count * sizeof(w->word[0]));
	else
		tern_rpc_reply(request, status, detail, strlen(detail));
}

/* ---- requests that wait ---- */

/* Lock held. The last closing, behind what is there. */
static void say_closing(const ps_group *group, words *w)
{
	const tn_round *round = &group->round;

	TN_ASSERT(w->count + 1 + round->sender_count <= TN_PS_GROUP_WORDS);
	w->word[w->count++] = round->closed;
	for (uint32_t i = 0; i < round->sender_count; i++)
		w->word[w->count++] = round->senders[i].id;
}

/* Lock held. It is the caller's to answer now. */
static void claim(group_wait *wait, tern_status status)
{
	wait->status = status;
	if (status == TERN_OK && wait->to_close) {
		wait->words.count = 0;
		say_closing(wait->group, &wait->words);
	}
	tn_list_remove(&wait->node);
	if (wait->at_barrier)
		tn_barrier_forget(&wait->group->barriers, &wait->barrier);
	else
		tn_clocks_forget(&wait->group->clocks, &wait->step);
}

/* Not under the lock. */
static void finish(group_wait *wait)
{
	tn_ctx_timer_cancel(wait->groups->ctx, &wait->timer);
	tn_detail_set("%s", wait->detail);
	answer(wait->request, wait->status, &wait->words);
	free(wait);
}

/* Lock held. Who waits no longer, into `done`. */
static void take_ready(ps_group *group, tn_list *done)
{
	tn_barrier_waiter *at_barrier;
	tn_clock_waiter *at_step;

	if (group->flags & TERN_PS_GROUP_SUM)
		tn_round_close(&group->round);
	while ((at_step = tn_clocks_ready(&group->clocks)) != NULL) {
		group_wait *wait = TN_CONTAINER_OF(at_step, group_wait, step);

		claim(wait, at_step->status);
		tn_list_push_back(done, &wait->node);
	}
	while ((at_barrier = tn_barriers_ready(&group->barriers)) != NULL) {
		group_wait *wait = TN_CONTAINER_OF(at_barrier, group_wait, barrier);

		claim(wait, at_barrier->status);
		tn_list_push_back(done, &wait->node);
	}
}

static void finish_all(tn_list *done)
{
	tn_list *node;

	while ((node = tn_list_pop_front(done)) != NULL) {
		group_wait *wait = TN_CONTAINER_OF(node, group_wait, node);

		if (wait->status == TERN_E_CANCELED)
			snprintf(wait->detail, sizeof(wait->detail), "this worker was removed from group %s",
				 wait->group->name);
		finish(wait);
	}
}

static void say_missing(group_wait *wait)
{
	char names[TN_DETAIL_MAX / 2];
	uint32_t n;

	if (wait->at_barrier) {
		n = tn_barrier_missing(&wait->group->barriers, wait->name, names, sizeof(names));
		snprintf(wait->detail, sizeof(wait->detail),
			 "barrier %s of group %s waits for %" PRIu32 " of %" PRIu32 " workers: %s",
			 wait->name, wait->group->name, n, wait->group->clocks.count, names);
	} else {
		n = tn_clocks_missing(&wait->group->clocks, wait->step.step, names, sizeof(names));
		snprintf(wait->detail, sizeof(wait->detail),
			 "step %" PRIu64 " of group %s waits for %" PRIu32 " of %" PRIu32 " workers: %s",
			 wait->step.step, wait->group->name, n, wait->group->clocks.count, names);
	}
}

void tn_ps_groups_waits(tn_ps_groups *groups, tn_ps_group_waits *waits)
{
	uint64_t now = tn_ctx_now(groups->ctx);

	pthread_mutex_lock(&groups->lock);
	TN_LIST_FOREACH(node, &groups->waits) {
		group_wait *wait = TN_CONTAINER_OF(node, group_wait, node);

		if (waits->n == TN_PS_GROUP_WAITS_MAX)
			break;
		say_missing(wait);
		memcpy(waits->row[waits->n].text, wait->detail, sizeof(wait->detail));
		waits->row[waits->n++].since_ns = now - TN_MIN(now, wait->since_ns);
	}
	pthread_mutex_unlock(&groups->lock);
}

/* False: somebody else answers it. */
static bool claim_if_waiting(group_wait *wait, tern_status status)
{
	tn_ps_groups *groups = wait->groups;
	bool waiting;

	pthread_mutex_lock(&groups->lock);
	waiting = tn_list_linked(&wait->node) && wait->status == TERN_BUSY;
	if (waiting) {
		say_missing(wait);
		claim(wait, status);
	}
	pthread_mutex_unlock(&groups->lock);
	return waiting;
}

static void on_time(tn_ctx_timer *timer)
{
	group_wait *wait = TN_CONTAINER_OF(timer, group_wait, timer);

	if (claim_if_waiting(wait, TERN_E_DEADLINE))
		finish(wait);
}

static void on_cancel(tern_rpc_request *request, void *arg)
{
	group_wait *wait = arg;

	(void)request;
	if (claim_if_waiting(wait, TERN_E_CANCELED))
		finish(wait);
}

/* Lock held. Hold the request; TERN_OK: no need to, answer it. */
static tern_status hold(tn_ps_groups *groups, ps_group *group, tern_rpc_request *request,
			const tn_ps_group_msg *msg)
{
	group_wait *wait = calloc(1, sizeof(*wait));
	tern_status status;

	if (!wait)
		return tn_fail(TERN_E_NOMEM, "no memory for a worker that waits");
	wait->groups = groups;
	wait->group = group;
	wait->request = request;
	wait->status = TERN_BUSY;
	wait->since_ns = tn_ctx_now(groups->ctx);
	wait->timer.run = on_time;
	wait->words.count = 1;
	wait->to_close = msg->op == TN_GROUP_CLOSE;
	wait->at_barrier = msg->op == TN_GROUP_BARRIER;
	memcpy(wait->name, msg->text, sizeof(wait->name));
	status = wait->at_barrier ? tn_barrier_arrive(&group->barriers, &wait->barrier, msg->text,
						      msg->member, msg->value)
				  : tn_clocks_begin(&group->clocks, &wait->step, msg->member, msg->value);
	if (status != TERN_BUSY) {
		free(wait);
		return status;
	}
	tn_list_push_back(&groups->waits, &wait->node);
	if (tern_rpc_request_on_cancel(request, on_cancel, wait) == TERN_E_CANCELED) {
		claim(wait, TERN_E_CANCELED);
		free(wait);
		return tn_fail(TERN_E_CANCELED, "the worker does not wait any more");
	}
	tn_ctx_timer_set(groups->ctx, &wait->timer, tn_deadline(tn_ctx_now(groups->ctx), msg->timeout_ns));
	return TERN_BUSY;
}

/* ---- groups ---- */

/* Lock held. */
static ps_group *find_group(tn_ps_groups *groups, const char *name)
{
	for (uint32_t i = 0; i < groups->count; i++)
		if (strcmp(groups->rows[i]->name, name) == 0)
			return groups->rows[i];
	return NULL;
}

static tern_status add_group(tn_ps_groups *groups, const tn_ps_group_msg *msg, ps_group **group)
{
	ps_group *made;
	uint64_t seed, life;

	if (groups->count == TN_PS_GROUPS_MAX)
		return tn_fail(TERN_E_LIMIT, "the server has %u groups, and no room for %s", TN_PS_GROUPS_MAX,
			       msg->name);
	TN_TRY(tn_os_random(&seed, sizeof(seed)));
	TN_TRY(tn_os_random(&life, sizeof(life)));
	made = calloc(1, sizeof(*made));
	if (!made || tn_clocks_init(&made->clocks, msg->value, 0, seed) != TERN_OK) {
		free(made);
		return tn_fail(TERN_E_NOMEM, "no memory for group %s", msg->name);
	}
	tn_barriers_init(&made->barriers, &made->clocks);
	tn_round_init(&made->round, &made->clocks);
	made->flags = msg->flags;
	made->life = life;
	memcpy(made->name, msg->name, sizeof(made->name));
	groups->rows[groups->count++] = made;
	*group = made;
	return TERN_OK;
}

/* What a summed group needs of one more member. */
static tern_status room_in_rounds(ps_group *group, const tn_ps_group_msg *msg)
{
	if (!(group->flags & TERN_PS_GROUP_SUM) || tn_clocks_member(&group->clocks, msg->member))
		return TERN_OK;
	if (group->clocks.count + group->round.gone_count >= TN_PS_SENDERS_MAX)
		return tn_fail(TERN_E_LIMIT, "group %s is summed, and has %u members already", msg->name,
			       TN_PS_SENDERS_MAX);
	return tn_round_join(&group->round);
}

static tern_status join(tn_ps_groups *groups, const tn_ps_group_msg *msg, words *w)
{
	ps_group *group = find_group(groups, msg->name);

	if (group && group->clocks.count == 0) { /* the first one of a new job says it */
		group->clocks.staleness = msg->value;
		group->flags = msg->flags;
		group->round.closed = group->clocks.frontier;
		group->round.gone_count = 0;
	}
	if (group && group->clocks.staleness != msg->value)
		return tn_fail(TERN_E_INVALID,
			       "group %s has staleness %" PRIu64 ", this worker asks for %" PRIu64
			       " (2^64-1: asynchronous): all members must say the same",
			       msg->name, group->clocks.staleness, msg->value);
	if (group && group->flags != msg->flags)
		return tn_fail(TERN_E_INVALID, "group %s is %ssummed: all members must say the same",
			       msg->name, group->flags ? "" : "not ");
	if (!group)
		TN_TRY(add_group(groups, msg, &group));
	TN_TRY(room_in_rounds(group, msg));
	w->count = 2;
	w->word[1] = group->life;
	if (group->flags & TERN_PS_GROUP_SUM && group->round.sender_count)
		say_closing(group, w);
	return tn_clocks_join(&group->clocks, msg->member, msg->text, &w->word[0]);
}

static void leave(ps_group *group, uint64_t member)
{
	tn_barriers_leave(&group->barriers, member);
	if (group->flags & TERN_PS_GROUP_SUM)
		tn_round_leave(&group->round, member);
	tn_clocks_leave(&group->clocks, member);
}

static tern_status remove_named(ps_group *group, const char *name)
{
	for (uint32_t i = group->clocks.count; i-- > 0;) {
		if (strcmp(group->clocks.members[i].name, name) != 0)
			continue;
		leave(group, group->clocks.members[i].id);
		return TERN_OK;
	}
	return tn_fail(TERN_E_NOT_FOUND, "group %s has no member %s", group->name, name);
}

/* Lock held. The member has ended the steps below msg->value; what they are summed from, when they close. */
static tern_status close_step(tn_ps_groups *groups, ps_group *group, tern_rpc_request *request,
			      const tn_ps_group_msg *msg, words *w)
{
	tern_status status;

	if (!(group->flags & TERN_PS_GROUP_SUM))
		return tn_fail(TERN_E_STATE, "group %s is not summed", group->name);
	TN_TRY(tn_clocks_advance(&group->clocks, msg->member, msg->value));
	tn_round_close(&group->round);
	status = hold(groups, group, request, msg);
	if (status == TERN_OK) {
		w->count = 0;
		say_closing(group, w);
	}
	return status;
}

/* Lock held. TERN_BUSY: the request is held. */
static tern_status act(tn_ps_groups *groups, tern_rpc_request *request, const tn_ps_group_msg *msg, words *w,
		       ps_group **of)
{
	ps_group *group;

	if (groups->closing)
		return tn_fail(TERN_E_FLUSHED, "the parameter server closes");
	if (msg->op == TN_GROUP_JOIN)
		return join(groups, msg, w);
	*of = group = find_group(groups, msg->name);
	if (!group)
		return tn_fail(TERN_E_NOT_FOUND, "there is no group %s here: join it first, or again",
			       msg->name);
	switch (msg->op) {
	case TN_GROUP_LEAVE:
		leave(group, msg->member);
		return TERN_OK;
	case TN_GROUP_END:
		return tn_clocks_advance(&group->clocks, msg->member, msg->value);
	case TN_GROUP_ROUND:
		w->word[0] = tn_barrier_round(&group->barriers, msg->text);
		return TERN_OK;
	case TN_GROUP_REMOVE:
		return remove_named(group, msg->text);
	case TN_GROUP_CLOSE:
		return close_step(groups, group, request, msg, w);
	default:
		return hold(groups, group, request, msg);
	}
}

static void on_group(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tn_ps_groups *groups = arg;
	ps_group *group = NULL;
	tn_ps_group_msg msg;
	tern_status status;
	words w;
	tn_list done;

	if (!tn_ps_group_decode(args, bytes, &msg)) {
		status = tn_fail(TERN_E_PROTOCOL, "a request of a group can't be read: another version?");
		answer(request, status, &w);
		return;
	}
	w.count = 1;
	w.word[0] = 0;
	tn_list_init(&done);
	pthread_mutex_lock(&groups->lock);
	status = act(groups, request, &msg, &w, &group);
	if (group)
		take_ready(group, &done);
	pthread_mutex_unlock(&groups->lock);
	if (status != TERN_BUSY)
		answer(request, status, &w);
	finish_all(&done);
}

tern_status tn_ps_groups_open(tn_ps_groups *groups, tern_ctx *ctx)
{
	memset(groups, 0, sizeof(*groups));
	groups->ctx = ctx;
	tn_list_init(&groups->waits);
	pthread_mutex_init(&groups->lock, NULL);
	return tern_rpc_serve(ctx, TN_PS_GROUP, on_group, groups);
}

void tn_ps_groups_close(tn_ps_groups *groups)
{
	tn_list done;

	if (!groups->ctx)
		return;
	tn_list_init(&done);
	pthread_mutex_lock(&groups->lock);
	groups->closing = true;
	TN_LIST_FOREACH_SAFE(node, &groups->waits) {
		group_wait *wait = TN_CONTAINER_OF(node, group_wait, node);

		claim(wait, TERN_E_FLUSHED);
		snprintf(wait->detail, sizeof(wait->detail), "the parameter server closes");
		tn_list_push_back(&done, &wait->node);
	}
	pthread_mutex_unlock(&groups->lock);
	finish_all(&done);
	tern_rpc_unserve(groups->ctx, TN_PS_GROUP);
	for (uint32_t i = 0; i < groups->count; i++) {
		tn_barriers_fini(&groups->rows[i]->barriers);
		tn_round_fini(&groups->rows[i]->round);
		tn_clocks_fini(&groups->rows[i]->clocks);
		free(groups->rows[i]);
	}
	pthread_mutex_destroy(&groups->lock);
	groups->ctx = NULL;
}

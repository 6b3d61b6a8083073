/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a membership: joins, renews, reports, hears of maps. One call at a time, so that what it knows is in order;
 * beside it a WATCH is under way, which the coordinator answers when there is news.
 *
 * Tests: tests/unit/cluster/cluster_test.c.
 */
#include "cluster/member.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/log.h"
#include "base/time.h"

#define LOAD_NS TN_NS_PER_SEC /* between two reports of loads */

/* ---- one message ---- */

static tern_status say(tn_cluster *c, const tn_cl_msg *msg, uint64_t timeout_ns, tn_cl_answer *answer)
{
	uint64_t bytes = tn_cl_msg_encode(c->msg, TN_CL_MSG_MAX, msg, c->facts, c->loads), got;
	tern_rpc_call_params call = {.method = TN_CL_METHOD,
				     .service_class = TERN_RPC_LATENCY,
				     .flags = TERN_RPC_IDEMPOTENT,
				     .args = c->msg,
				     .args_bytes = bytes,
				     .answer = c->answer,
				     .answer_capacity = TN_CL_ANSWER_MAX};
	tern_status status;

	TN_ASSERT(bytes > 0);
	if (c->host)
		got = tn_cl_host_handle(c->host, c->msg, bytes, c->answer, &status);
	else
		TN_TRY(tern_rpc_call_wait(c->rpc, &call, timeout_ns, &got));
	if (!tn_cl_answer_decode(c->answer, got, answer))
		return tn_fail(TERN_E_PROTOCOL, "the coordinator's answer can't be read: another version?");
	c->seen = TN_MAX(c->seen, answer->now);
	return TERN_OK;
}

static tn_cl_msg message(const tn_cluster *c, tn_cl_op op)
{
	return (tn_cl_msg){.op = op,
			   .server = c->self,
			   .incarnation = c->incarnation,
			   .maps = c->maps,
			   .seen = c->seen,
			   .version = c->map.version};
}

/* ---- maps ---- */

/* Reports that the map has answered are over. */
static void answered(tn_cluster *c)
{
	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_cl_pending *p = &c->pending[i];

		if (p->what && tn_coord_answered(&c->map.slot[i], p->what, p->epoch))
			p->what = 0;
	}
	pthread_mutex_unlock(&c->lock);
}

void tn_cl_take_incoming(tn_cluster *c)
{
	uint16_t self;

	c->map = c->incoming;
	self = tn_cl_map_find(&c->map, tern_ctx_address(c->ctx), c->incarnation);
	answered(c);
	c->p.on_map(c->p.arg, &c->map, self);
}

static void take_map(tn_cluster *c, const tn_cl_answer *answer)
{
	if (!answer->map || answer->version <= c->map.version)
		return;
	if (!tn_cl_map_decode(answer->map, answer->map_bytes, &c->incoming)) {
		TN_LOG(WARN, PS, "a map of the coordinator can't be read");
		return;
	}
	tn_cl_take_incoming(c);
}

/* ---- joining ---- */

static void lease_from(tn_cluster *c, uint64_t sent_ns)
{
	atomic_store_explicit(&c->lease_until_ns, tn_deadline(sent_ns, c->lease_ns), memory_order_release);
}

bool tn_cl_stopping(tn_cluster *c)
{
	bool stop;

	pthread_mutex_lock(&c->lock);
	stop = c->stop;
	pthread_mutex_unlock(&c->lock);
	return stop;
}

/* Sleep, or until there is something to do. */
void tn_cl_nap(tn_cluster *c, uint64_t until_ns)
{
	struct timespec at = {.tv_sec = (time_t)(until_ns / TN_NS_PER_SEC),
			      .tv_nsec = (long)(until_ns % TN_NS_PER_SEC)};

	pthread_mutex_lock(&c->lock);
	while (!c->stop && !c->news && !c->dirty && tn_ctx_now(c->ctx) < until_ns)
		if (pthread_cond_timedwait(&c->wake, &c->lock, &at) != 0)
			break;
	pthread_mutex_unlock(&c->lock);
}

/* Is there something to be said, or (the coordinator being here) to be heard? */
static bool due(tn_cluster *c)
{
	bool due;

	pthread_mutex_lock(&c->lock);
	due = c->dirty || (c->host && c->news) || tn_ctx_now(c->ctx) >= c->renew_at_ns;
	c->news = false;
	pthread_mutex_unlock(&c->lock);
	return due;
}

static tern_status join_once(tn_cluster *c, uint64_t left_ns)
{
	tn_cl_msg msg = message(c, TN_CL_JOIN);
	uint64_t sent = tn_ctx_now(c->ctx);
	tn_cl_answer answer;
	tern_status status;

	snprintf(msg.address, sizeof(msg.address), "%s", tern_ctx_address(c->ctx));
	msg.version = 0; /* the map, whatever this side has */
	status = say(c, &msg, TN_MIN(c->lease_ns, left_ns + 1), &answer);
	if (status == TERN_E_PROTOCOL && c->maps > TN_CL_VERSION_OLD)
		c->maps = 0; /* an older coordinator, perhaps */
	if (status != TERN_OK)
		return status;
	if (answer.status != TERN_OK)
		return tn_fail(answer.status, "%s",
			       answer.status == TERN_AGAIN
				       ? "the lease of an earlier server at this address has not ended"
				       : tern_status_text(answer.status));
	if (answer.version < c->map.version)
		return tn_fail(TERN_E_STATE,
			       "the coordinator has lost its map: it can't go on from an older one");
	c->self = answer.server;
	lease_from(c, sent);
	c->renew_at_ns = sent + c->lease_ns / 4;
	take_map(c, &answer);
	return TERN_OK;
}

/* Until it is a member, or there is no use. */
static tern_status join(tn_cluster *c, uint64_t timeout_ns)
{
	uint64_t end = tn_deadline(tn_ctx_now(c->ctx), timeout_ns), now;
	tern_status status;

	for (;;) {
		status = join_once(c, tn_time_left(tn_ctx_now(c->ctx), end));
		now = tn_ctx_now(c->ctx);
		if (status == TERN_OK || status == TERN_E_LIMIT || status == TERN_E_INVALID ||
		    status == TERN_E_STATE || now >= end || tn_cl_stopping(c))
			return status == TERN_AGAIN ? TERN_E_DEADLINE : status;
		tn_cl_nap(c, now + c->lease_ns / 8);
	}
}

/* The coordinator does not know it: its rows are worth nothing, it is another one. */
static void join_anew(tn_cluster *c)
{
	TN_LOG(WARN, PS, "the coordinator takes this server for dead: it begins anew, without rows");
	atomic_store_explicit(&c->lease_until_ns, 0, memory_order_release);
	c->self = TN_CL_NONE;
	c->p.on_map(c->p.arg, &c->map, TN_CL_NONE);
	if (tn_os_random(&c->incarnation, sizeof(c->incarnation)) != TERN_OK ||
	    join(c, UINT64_MAX) != TERN_OK)
		TN_LOG(ERROR, PS, "this server can't join again: %s", tn_detail_get());
}

/* ---- renewing ---- */

uint32_t tn_cl_gather_facts(tn_cluster *c)
{
	uint32_t n = 0;

	pthread_mutex_lock(&c->lock);
	c->dirty = false;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->pending[i].what)
			c->facts[n++] = (tn_coord_fact){.slot = (uint16_t)i,
							.what = c->pending[i].what,
							.epoch = c->pending[i].epoch};
	pthread_mutex_unlock(&c->lock);
	return n;
}

static uint32_t gather_loads(tn_cluster *c, uint64_t now)
{
	uint32_t n = 0;

	if (!c->p.load || now < c->load_at_ns)
		return 0;
	c->load_at_ns = now + LOAD_NS;
	memset(c->load, 0, sizeof(c->load));
	c->p.load(c->p.arg, c->load);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->map.slot[i].primary == c->self)
			c->loads[n++] = (tn_cl_load){.slot = (uint16_t)i, .keys = c->load[i]};
	return n;
}

static void renew(tn_cluster *c)
{
	tn_cl_msg msg = message(c, TN_CL_RENEW);
	uint64_t sent = tn_ctx_now(c->ctx);
	tn_cl_answer answer;

	msg.fact_count = tn_cl_gather_facts(c);
	msg.load_count = gather_loads(c, sent);
	c->renew_at_ns = sent + c->lease_ns / 4;
	if (say(c, &msg, c->lease_ns / 2, &answer) != TERN_OK)
		return;
	if (answer.status == TERN_E_NOT_FOUND && answer.version >= c->map.version) {
		join_anew(c);
		return;
	}
	if (answer.status == TERN_E_NOT_FOUND) {
		TN_LOG(ERROR, PS, "the coordinator has lost its map: this server acknowledges nothing more");
		return;
	}
	lease_from(c, sent);
	take_map(c, &answer);
}

static void drain(tn_cluster *c)
{
	tn_cl_msg msg = message(c, TN_CL_DRAIN);
	tn_cl_answer answer;
	bool wanted;

	pthread_mutex_lock(&c->lock);
	wanted = c->drain;
	pthread_mutex_unlock(&c->lock);
	if (!wanted || c->self == TN_CL_NONE || c->map.server[c->self].state == TN_CL_DRAINING)
		return;
	if (say(c, &msg, c->lease_ns / 2, &answer) == TERN_OK)
		take_map(c, &answer);
}

static void leave(tn_cluster *c)
{
	tn_cl_msg msg = message(c, TN_CL_LEAVE);
	tn_cl_answer answer;

	atomic_store_explicit(&c->lease_until_ns, 0, memory_order_release);
	if (c->self != TN_CL_NONE)
		(void)say(c, &msg, c->lease_ns / 2, &answer);
}

/* ---- watching ---- */

static void on_watch(tern_op *op, void *arg)
{
	tn_cluster *c = arg;

	pthread_mutex_lock(&c->lock);
	c->watch_ok = op->status == TERN_OK;
	c->watch_bytes = op->length;
	c->watching = false;
	c->news |= c->watch_ok;
	pthread_cond_broadcast(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

/* What it said last, and the next one. */
static void watch(tn_cluster *c)
{
	tn_cl_msg msg = message(c, TN_CL_WATCH);
	tern_rpc_call_params call = {.method = TN_CL_METHOD,
				     .flags = TERN_RPC_IDEMPOTENT,
				     .args = c->watch_msg,
				     .answer = c->watch_answer,
				     .answer_capacity = TN_CL_ANSWER_MAX};
	tn_cl_answer answer;
	bool busy;

	pthread_mutex_lock(&c->lock);
	busy = c->watching;
	pthread_mutex_unlock(&c->lock);
	if (c->host || busy || c->self == TN_CL_NONE)
		return;
	if (c->watch_ok && tn_cl_answer_decode(c->watch_answer, c->watch_bytes, &answer)) {
		c->seen = TN_MAX(c->seen, answer.now);
		take_map(c, &answer);
	}
	c->watch_ok = false;
	msg.seen = c->seen;
	msg.version = c->map.version;
	msg.wait_ns = c->lease_ns / 2;
	call.args_bytes = tn_cl_msg_encode(c->watch_msg, TN_CL_HEAD, &msg, NULL, NULL);
	tern_op_init(&c->watch_op, on_watch, c);
	c->watch_op.timeout_ns = 2 * c->lease_ns;
	c->watching = true; /* before it may be answered; nobody else looks at it now */
	if (tern_rpc_call(c->rpc, &call, &c->watch_op) != TERN_OK)
		c->watching = false;
}

static void end_watch(tn_cluster *c)
{
	if (c->rpc)
		(void)tern_rpc_cancel(c->rpc, &c->watch_op);
	pthread_mutex_lock(&c->lock);
	while (c->watching)
		pthread_cond_wait(&c->wake, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ---- */

void tn_cl_joined(tn_cluster *c, tern_status status)
{
	pthread_mutex_lock(&c->lock);
	c->ready = true;
	c->status = status;
	snprintf(c->detail, sizeof(c->detail), "%s",
		 tn_detail_get()[0] ? tn_detail_get() : tern_status_text(status));
	pthread_cond_broadcast(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

void *tn_cl_member_run(void *arg)
{
	tn_cluster *c = arg;
	tern_status status = join(c, tn_opt_u64(tn_ctx_options(c->ctx), tn_cluster_options, "join"));

	tn_cl_joined(c, status);
	if (status != TERN_OK)
		return NULL;
	while (!tn_cl_stopping(c)) {
		watch(c);
		drain(c);
		if (due(c))
			renew(c);
		else
			tn_cl_nap(c, c->renew_at_ns);
	}
	end_watch(c);
	if (c->leave)
		leave(c);
	return NULL;
}

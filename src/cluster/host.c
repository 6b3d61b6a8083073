/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator behind calls. See host.h. Nothing is answered under the lock.
 *
 * Tests: tests/unit/cluster/cluster_test.c.
 */
#include "cluster/host.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/time.h"
#include "base/wirebuf.h"

/* ---- messages ---- */

static tern_status renew(tn_coord *c, uint64_t now, const tn_cl_msg *msg)
{
	tn_coord_fact facts[64];
	uint32_t n = 0;

	TN_TRY(tn_coord_renew(c, now, msg->server, msg->incarnation));
	for (uint32_t i = 0; i < msg->load_count; i++) {
		tn_cl_load load = tn_cl_msg_load(msg, i);

		tn_coord_load(c, msg->server, load.slot, load.keys);
	}
	for (uint32_t i = 0; i < msg->fact_count; i++) {
		facts[n++] = tn_cl_msg_fact(msg, i);
		if (n < TN_COUNT_OF(facts) && i + 1 < msg->fact_count)
			continue;
		TN_TRY(tn_coord_facts(c, now, msg->server, msg->incarnation, facts, n));
		n = 0;
	}
	return TERN_OK;
}

tern_status tn_cl_apply(tn_coord *c, uint64_t now, tn_cl_msg *msg)
{
	if (msg->op == TN_CL_RENEW || msg->op == TN_CL_WATCH)
		tn_coord_heard(c, now, msg->server, msg->incarnation, msg->seen);
	switch (msg->op) {
	case TN_CL_JOIN:
		return tn_coord_join(c, now, msg->address, msg->incarnation, msg->maps, &msg->server);
	case TN_CL_RENEW:
		return renew(c, now, msg);
	case TN_CL_DRAIN:
		return tn_coord_drain(c, now, msg->server);
	case TN_CL_UNDRAIN:
		return tn_coord_undrain(c, now, msg->server);
	case TN_CL_LEAVE:
		return tn_coord_leave(c, now, msg->server, msg->incarnation);
	case TN_CL_GIVE_UP:
		return tn_coord_give_up(c, now, msg->server);
	case TN_CL_BALANCE:
		tn_coord_balance(c);
		tn_coord_tick(c, now);
		return TERN_OK;
	case TN_CL_PAUSE:
	case TN_CL_RESUME:
		tn_coord_pause(c, msg->op == TN_CL_PAUSE);
		tn_coord_tick(c, now);
		return TERN_OK;
	default:
		return TERN_OK;
	}
}

/* ---- answers ---- */

/* Keys a second of each server, as u64, behind what is in out. */
static uint32_t put_loads(const tn_coord *c, uint8_t *out)
{
	uint64_t sum[TN_CL_SERVERS_MAX] = {0};
	tn_writer w;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->map.slot[i].primary != TN_CL_NONE)
			sum[c->map.slot[i].primary] += c->load[i];
	tn_writer_init(&w, out, TN_CL_SERVERS_MAX * 8ull);
	for (uint32_t i = 0; i < c->map.servers; i++)
		tn_put_u64(&w, sum[i]);
	return c->map.servers;
}

/* Lock held. */
static uint64_t put_answer(tn_cl_host *host, const tn_cl_msg *msg, tern_status status, uint8_t *out)
{
	const tn_coord *c = &host->coord;
	tn_cl_answer a = {.status = status,
			  .server = msg->server,
			  .now = tn_ctx_now(host->ctx),
			  .version = c->map.version};
	uint64_t at = TN_CL_ANSWER_HEAD;

	if (msg->version < c->map.version) {
		a.map_bytes = (uint32_t)tn_cl_map_encode(out + at, TN_CL_MAP_BYTES_MAX, &c->map,
							 tn_cl_map_version(msg->maps));
		TN_ASSERT(a.map_bytes > 0);
		at += a.map_bytes;
	}
	if (msg->op == TN_CL_STATUS) {
		a.load_count = put_loads(c, out + at);
		at += a.load_count * 8ull;
	}
	tn_cl_answer_encode(out, &a);
	return at;
}

static void reply(tern_rpc_request *request, const uint8_t *out, uint64_t bytes)
{
	tern_rpc_reply(request, TERN_OK, out, bytes);
}

/* ---- watchers ---- */

/* Takes those whose time is over, or all, that read this version of maps. Their answers are the caller's to give. */
static uint32_t take_watchers(tn_cl_host *host, uint64_t now, bool all, unsigned version,
			      tern_rpc_request **taken)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SERVERS_MAX; i++) {
		tn_cl_watcher *w = &host->watchers[i];

		if (w->request && w->version == version && (all || now >= w->end_ns)) {
			taken[n++] = w->request;
			w->request = NULL;
		}
	}
	return n;
}

typedef struct tellings { /* to those who read one version of maps */
	tern_rpc_request *to[TN_CL_SERVERS_MAX];
	uint32_t count;
	uint64_t bytes;
	uint8_t out[TN_CL_ANSWER_MAX];
} tellings;

/* Lock held. */
static void prepare(tn_cl_host *host, uint64_t now, bool news, unsigned version, tellings *t)
{
	tn_cl_msg nobody = {.op = TN_CL_WATCH, .server = TN_CL_NONE, .maps = version};

	nobody.version = news ? 0 : host->coord.map.version;
	t->count = take_watchers(host, now, news || host->closing, version, t->to);
	if (t->count)
		t->bytes = put_answer(host, &nobody, TERN_OK, t->out);
}

/* After the coordinator did something: watchers are told, this process too. Not under the lock. */
static void spread(tn_cl_host *host)
{
	static const unsigned versions[] = {TN_CL_VERSION, TN_CL_VERSION_OLD};
	tellings *t = calloc(TN_COUNT_OF(versions), sizeof(*t));
	uint64_t now = tn_ctx_now(host->ctx);
	bool news;

	pthread_mutex_lock(&host->lock);
	news = host->told != host->coord.map.version;
	for (unsigned v = 0; t && v < TN_COUNT_OF(versions); v++)
		prepare(host, now, news, versions[v], &t[v]);
	if (t)
		host->told = host->coord.map.version;
	if (!host->closing)
		tn_ctx_timer_set(host->ctx, &host->timer,
				 TN_MIN(tn_coord_wake(&host->coord), now + host->coord.p.lease_ns / 16 + 1));
	pthread_mutex_unlock(&host->lock);
	for (unsigned v = 0; t && v < TN_COUNT_OF(versions); v++)
		for (uint32_t i = 0; i < t[v].count; i++)
			reply(t[v].to[i], t[v].out, t[v].bytes);
	free(t);
	if (news)
		host->changed(host->arg);
}

static void on_timer(tn_ctx_timer *timer)
{
	tn_cl_host *host = TN_CONTAINER_OF(timer, tn_cl_host, timer);

	pthread_mutex_lock(&host->lock);
	tn_coord_tick(&host->coord, tn_ctx_now(host->ctx));
	pthread_mutex_unlock(&host->lock);
	spread(host);
}

/* False: it has to be answered at once. */
static bool hold(tn_cl_host *host, tern_rpc_request *request, tn_cl_msg *msg, tern_rpc_request **before)
{
	tn_cl_watcher *w;

	if (msg->op != TN_CL_WATCH || msg->server >= TN_CL_SERVERS_MAX || host->closing)
		return false;
	if (msg->version < host->coord.map.version)
		return false;
	w = &host->watchers[msg->server];
	*before = w->request;
	*w = (tn_cl_watcher){.request = request,
			     .version = tn_cl_map_version(msg->maps),
			     .end_ns = tn_deadline(tn_ctx_now(host->ctx), TN_MAX(msg->wait_ns, 1))};
	return true;
}

/* ---- calls ---- */

uint64_t tn_cl_host_handle(tn_cl_host *host, const void *data, uint64_t bytes, uint8_t *answer,
			   tern_status *status)
{
	uint64_t n;
	tn_cl_msg msg;

	if (!tn_cl_msg_decode(data, bytes, &msg))
		return 0;
	pthread_mutex_lock(&host->lock);
	*status = tn_cl_apply(&host->coord, tn_ctx_now(host->ctx), &msg);
	n = put_answer(host, &msg, *status, answer);
	pthread_mutex_unlock(&host->lock);
	spread(host);
	return n;
}

static void on_message(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	static const char unreadable[] = "a message to the coordinator can't be read: another version?";
	tn_cl_host *host = arg;
	tern_rpc_request *before = NULL;
	uint8_t *out = malloc(TN_CL_ANSWER_MAX);
	uint64_t n = 0;
	tn_cl_msg msg;
	tern_status status = TERN_OK;
	bool held = false;

	if (!out) {
		tern_rpc_reply(request, TERN_E_NOMEM, NULL, 0);
		return;
	}
	if (tn_cl_msg_decode(args, bytes, &msg) && msg.op == TN_CL_WATCH) {
		pthread_mutex_lock(&host->lock);
		tn_cl_apply(&host->coord, tn_ctx_now(host->ctx), &msg);
		held = hold(host, request, &msg, &before);
		if (!held || before)
			n = put_answer(host, &msg, TERN_OK, out);
		pthread_mutex_unlock(&host->lock);
		spread(host);
	} else {
		n = tn_cl_host_handle(host, args, bytes, out, &status);
	}
	if (before)
		reply(before, out, n);
	if (!held && n && status != TERN_OK && msg.op >= TN_CL_DRAIN) /* for people: in words */
		tern_rpc_reply(request, status, tn_detail_get(), strlen(tn_detail_get()));
	else if (!held && n)
		reply(request, out, n);
	else if (!held)
		tern_rpc_reply(request, TERN_E_PROTOCOL, unreadable, sizeof(unreadable) - 1);
	free(out);
}

/* ---- life ---- */

tern_status tn_cl_host_open(tern_ctx *ctx, const tn_coord_params *params, void (*changed)(void *arg),
			    void *arg, tn_cl_host **out)
{
	tn_cl_host *host = calloc(1, sizeof(*host));
	tern_status status;

	if (!host)
		return tn_fail(TERN_E_NOMEM, "no memory for a coordinator");
	host->ctx = ctx;
	host->changed = changed;
	host->arg = arg;
	host->timer.run = on_timer;
	pthread_mutex_init(&host->lock, NULL);
	tn_coord_init(&host->coord, params, NULL, tn_ctx_now(ctx));
	status = tern_rpc_serve(ctx, TN_CL_METHOD, on_message, host);
	if (status != TERN_OK) {
		pthread_mutex_destroy(&host->lock);
		free(host);
		return status;
	}
	TN_LOG(INFO, PS, "coordinator at %s: %u of each slot", tern_ctx_address(ctx), params->replicas);
	spread(host);
	*out = host;
	return TERN_OK;
}

void tn_cl_host_close(tn_cl_host *host)
{
	if (!host)
		return;
	pthread_mutex_lock(&host->lock);
	host->closing = true;
	pthread_mutex_unlock(&host->lock);
	tern_rpc_unserve(host->ctx, TN_CL_METHOD);
	tn_ctx_timer_cancel(host->ctx, &host->timer);
	spread(host);
	pthread_mutex_destroy(&host->lock);
	free(host);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership of a server: the life of it, and what is said of slots. member.c has the thread that says it.
 *
 * Threads: see cluster.h. Tests: tests/unit/cluster/cluster_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/time.h"
#include "channel/dispatch.h"
#include "cluster/member.h"

#define ROW(row_name, row_type, row_dflt, row_min, row_max, row_help)                                     \
	{                                                                                                 \
		.layer = "cluster", .name = row_name, .type = row_type, .dflt = row_dflt, .min = row_min, \
		.max = row_max, .help = row_help                                                          \
	}

const tn_option_row tn_cluster_options[] = {
	ROW("lease", TN_OPT_DURATION, "2s", 10000000, 0,
	    "a server that can't renew for so long acknowledges nothing more; the same for all servers of a "
	    "job"),
	ROW("margin", TN_OPT_DURATION, "500ms", 1000000, 0,
	    "how much later others take it for dead: more than clocks can differ within a lease"),
	ROW("moves", TN_OPT_U64, "512", 1, TN_CL_SLOTS, "slots that are copied to other servers at once"),
	ROW("balance", TN_OPT_DURATION, "10s", 10000000, 0,
	    "between two looks at the loads of servers, to even them out"),
	ROW("join", TN_OPT_DURATION, "30s", 10000000, 0, "how long a server tries to join"),
	{0},
};
#undef ROW
TN_OPTION_TABLE(cluster, tn_cluster_options)

/* ---- what is said ---- */

static void report(tn_cluster *c, uint8_t what, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	if (n == 0)
		return;
	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < n; i++) {
		tn_cl_pending *pending = &c->pending[slots[i]];

		TN_ASSERT(slots[i] < TN_CL_SLOTS);
		if (pending->what && pending->epoch > epochs[i])
			continue;
		*pending = (tn_cl_pending){.what = what, .epoch = epochs[i]};
		c->dirty = true;
	}
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

void tn_cluster_synced(tn_cluster *c, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(c, TN_REPORT_SYNCED, slots, epochs, n);
}

void tn_cluster_released(tn_cluster *c, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(c, TN_REPORT_RELEASED, slots, epochs, n);
}

void tn_cluster_lost(tn_cluster *c, const uint16_t *slots, const uint32_t *epochs, uint32_t n)
{
	report(c, TN_REPORT_LOST, slots, epochs, n);
}

bool tn_cluster_lease_valid(const tn_cluster *c)
{
	return tn_ctx_now(c->ctx) < atomic_load_explicit(&c->lease_until_ns, memory_order_acquire);
}

void tn_cluster_drain(tn_cluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->drain = c->dirty = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

/* ---- life ---- */

static void on_host_news(void *arg)
{
	tn_cluster *c = arg;

	pthread_mutex_lock(&c->lock);
	c->news = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

static tern_status find_way(tn_cluster *c)
{
	const tn_options *o = tn_ctx_options(c->ctx);
	tn_coord_params params = {.lease_ns = c->lease_ns,
				  .margin_ns = tn_opt_u64(o, tn_cluster_options, "margin"),
				  .balance_ns = tn_opt_u64(o, tn_cluster_options, "balance"),
				  .replicas = c->p.replicas ? c->p.replicas : 1,
				  .first = c->p.first ? c->p.first : 1,
				  .moves = (uint32_t)tn_opt_u64(o, tn_cluster_options, "moves")};

	if (params.replicas > 2)
		return tn_fail(TERN_E_INVALID, "%u copies of each slot: 1 or 2 can be", params.replicas);
	if (c->p.join && strncmp(c->p.join, "etcd:", 5) == 0)
		return tn_cl_etcd_open(c);
	if (c->p.join && c->p.join[0])
		return tern_rpc_connect(c->ctx, c->p.join, NULL, &c->rpc);
	return tn_cl_host_open(c->ctx, &params, on_host_news, c, &c->host);
}

static void cluster_free(tn_cluster *c)
{
	if (c->rpc)
		tern_rpc_close(c->rpc);
	tn_cl_host_close(c->host);
	tn_cl_etcd_close(c);
	free(c->msg);
	free(c->answer);
	free(c->watch_msg);
	free(c->watch_answer);
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static tn_cluster *cluster_new(tern_ctx *ctx, const tn_cluster_params *params)
{
	tn_cluster *c = calloc(1, sizeof(*c));
	pthread_condattr_t attr;

	if (!c)
		return NULL;
	c->ctx = ctx;
	c->p = *params;
	c->lease_ns = tn_opt_u64(tn_ctx_options(ctx), tn_cluster_options, "lease");
	c->self = TN_CL_NONE;
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &attr);
	pthread_condattr_destroy(&attr);
	c->msg = malloc(TN_CL_MSG_MAX);
	c->answer = malloc(TN_CL_ANSWER_MAX);
	c->watch_msg = malloc(TN_CL_HEAD);
	c->watch_answer = malloc(TN_CL_ANSWER_MAX);
	if (c->msg && c->answer && c->watch_msg && c->watch_answer)
		return c;
	cluster_free(c);
	return NULL;
}

/* The thread ends, and with it what is under way. */
static void stop(tn_cluster *c, bool leave)
{
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	c->leave = leave;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
	if (c->joinable)
		tn_os_thread_join(&c->thread);
	c->joinable = false;
	atomic_store_explicit(&c->lease_until_ns, 0, memory_order_release);
}

static void wait_until_member(tn_cluster *c)
{
	pthread_mutex_lock(&c->lock);
	while (!c->ready)
		pthread_cond_wait(&c->wake, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

tern_status tn_cluster_open(tern_ctx *ctx, const tn_cluster_params *params, tn_cluster **out)
{
	tn_cluster *c = cluster_new(ctx, params);
	tern_status status;

	*out = NULL;
	TN_ASSERT(params->on_map && !tn_in_dispatch());
	if (!c)
		return tn_fail(TERN_E_NOMEM, "no memory for a membership");
	c->incarnation = params->incarnation;
	c->maps = TN_CL_VERSION;
	status = c->incarnation ? TERN_OK : tn_os_random(&c->incarnation, sizeof(c->incarnation));
	if (status == TERN_OK)
		status = find_way(c);
	*out = c; /* before on_map runs */
	if (status == TERN_OK)
		status = tn_os_thread_start(&c->thread, "tern-member",
					    c->etcd ? tn_cl_etcd_run : tn_cl_member_run, c);
	c->joinable = status == TERN_OK;
	if (status == TERN_OK) {
		wait_until_member(c);
		status = c->status;
		if (status != TERN_OK)
			tn_fail(status, "%s", c->detail);
	}
	if (status != TERN_OK) {
		*out = NULL;
		stop(c, false);
		cluster_free(c);
		return status;
	}
	return TERN_OK;
}

void tn_cluster_leave(tn_cluster *c)
{
	stop(c, true);
}

void tn_cluster_close(tn_cluster *c)
{
	if (!c)
		return;
	stop(c, false);
	cluster_free(c);
}

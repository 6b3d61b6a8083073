/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: the graph layer's executor over a transfer over links. Composition only; the work is done in
 * src/graph (exec, xfer_*) and below.
 *
 * Links: workers dial every server of the plan that they share edges with, and a stage of a worker the stages below
 * it; who is dialed takes the links that come and matches them to devices by the peer's authenticated name. The link callbacks run from dispatch in
 * any thread and touch session->lock'ed fields only; everything else belongs to the caller's thread.
 * Tests: tests/e2e/train_test.py, tests/unit/graph.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>
#include <tern/session.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/exec.h"
#include "graph/exec_threads.h"
#include "graph/exec_trace.h"
#include "graph/plan.h"
#include "graph/xfer_link.h"
#include "runtime/tables.h"

#include <tern/ps.h>

#define SESSION_START_NS (30ull * 1000000000ull)
#define SESSION_CLOSE_NS (2ull * 1000000000ull) /* more than link.close_timeout */

struct tern_session {
	tern_ctx *ctx;
	const tern_plan *plan;
	uint32_t device, devices;
	tn_exec_params exec_params;
	tern_comm comm;
	bool stub;
	tn_xfer *xfer;
	tn_exec *exec;
	char **servers; /* [server_count] of a worker */
	char **stages;  /* [stage] of a worker: those below it */
	uint32_t stage;
	char *restore; /* file of a resumed job, or NULL */
	uint64_t steps_done;
	uint32_t server_count;
	bool *needed;      /* [devices]: we share edges */
	bool *dialed;      /* [devices] */
	tern_link **links; /* [devices]; lock, until they are settled */
	bool settled;      /* lock: the job runs on these links, newcomers are strangers */
	pthread_mutex_t lock;
	char transport[32];
	tn_exec_stats base; /* at the last reset */
	tn_store_counters base_rows;
	tern_ctx *tables_ctx;
	tn_store *store;        /* of a plan with tables: the worker's rows */
	tern_ps_server *keeper; /* the server's tables */
	tern_link **guests;     /* lock: links of workers' tables, which the session only keeps */
	uint32_t n_guests;
	atomic_bool canceled;
};

/* ---- which peers ---- */

static tern_status find_peers(tern_session *s)
{
	for (uint32_t i = 0; i < tern_plan_edges(s->plan); i++) {
		tern_edge_info edge;

		TN_TRY(tern_plan_edge(s->plan, i, &edge));
		if (edge.src == s->device)
			s->needed[edge.dst] = true;
		if (edge.dst == s->device)
			s->needed[edge.src] = true;
	}
	return TERN_OK;
}

static tern_status device_name(const tern_session *s, uint32_t device, const char **name)
{
	tern_device_info info;

	TN_TRY(tern_plan_device(s->plan, device, &info));
	*name = info.name;
	return TERN_OK;
}

/* A worker's rows travel on links of their own, which have another name. */
static bool keep_guest(tern_session *s, tern_link *link)
{
	const char *name = tern_link_peer_name(link), *end = strrchr(name, '/');
	tern_link **more = NULL;

	if (!end || strcmp(end, "/tables") != 0)
		return false;
	pthread_mutex_lock(&s->lock);
	more = realloc(s->guests, (s->n_guests + 1) * sizeof(*more));
	if (more) {
		s->guests = more;
		s->guests[s->n_guests++] = link;
	}
	pthread_mutex_unlock(&s->lock);
	return more != NULL;
}

static void on_incoming(tern_link *link, void *arg)
{
	tern_session *s = arg;
	tern_link *old = link;

	if (s->keeper && keep_guest(s, link))
		return;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->devices && !s->settled; i++) {
		const char *name;

		if (!s->needed[i] || s->dialed[i] || device_name(s, i, &name) != TERN_OK ||
		    strcmp(name, tern_link_peer_name(link)) != 0)
			continue;
		/* A peer that restarted before the job began takes its old place. */
		old = s->links[i];
		s->links[i] = link;
		break;
	}
	pthread_mutex_unlock(&s->lock);
	tern_link_release(old); /* a stranger's, or the one that was replaced */
}

/* Where a device that we dial is; NULL: nobody said. */
static const char *address_of(const tern_session *s, const tern_device_info *info)
{
	if (info->role != TERN_ROLE_SERVER)
		return s->stages && info->stage < s->stage ? s->stages[info->stage] : NULL;
	return info->index < s->server_count ? s->servers[info->index] : NULL;
}

static tern_status dial(tern_session *s, uint64_t deadline_ns)
{
	for (uint32_t i = 0; i < s->devices; i++) {
		tern_connect_params params = {.retry = 1};
		tern_device_info info;
		tern_link *link;

		TN_TRY(tern_plan_device(s->plan, i, &info));
		if (!s->needed[i] || !s->dialed[i])
			continue;
		if (!address_of(s, &info))
			return tn_fail(TERN_E_INVALID, "no address was given for %s", info.name);
		params.timeout_ns = deadline_ns - TN_MIN(tn_now(), deadline_ns - 1);
		TN_TRY(tern_link_connect(s->ctx, address_of(s, &info), &params, &link));
		pthread_mutex_lock(&s->lock);
		s->links[i] = link;
		pthread_mutex_unlock(&s->lock);
	}
	return TERN_OK;
}

static tern_status link_failed(tern_session *s, uint32_t device, const char *address, tern_status status)
{
	char detail[TN_DETAIL_MAX];
	const char *name = "?";

	snprintf(detail, sizeof(detail), "%s", tn_detail_get());
	device_name(s, device, &name);
	return tn_fail(status, "%s at %s: %s", name, address, detail[0] ? detail : tern_status_text(status));
}

static tern_status missing(tern_session *s, uint32_t device, const char *name)
{
	tern_device_info info;

	if (s->dialed[device] && tern_plan_device(s->plan, device, &info) == TERN_OK)
		return tn_fail(TERN_E_DEADLINE, "%s did not answer at %s in time: is it running there?", name,
			       address_of(s, &info));
	return tn_fail(TERN_E_DEADLINE, "%s did not come in time: is it running, and can it reach %s?", name,
		       tern_ctx_address(s->ctx));
}

/* Wait until every needed link is up. */
static tern_status await_links(tern_session *s, uint64_t deadline_ns)
{
	for (uint32_t i = 0; i < s->devices; i++) {
		const char *name = "?";
		tern_link *link;

		device_name(s, i, &name);
		while (s->needed[i]) {
			uint64_t seen = tern_ctx_events(s->ctx);
			uint64_t now = tn_now();
			tern_status status;

			if (atomic_load(&s->canceled))
				return tn_fail(TERN_E_CANCELED, "cancelled while waiting for %s", name);
			pthread_mutex_lock(&s->lock);
			link = s->links[i];
			pthread_mutex_unlock(&s->lock);
			if (link && tern_link_get_state(link) == TERN_LINK_UP)
				break;
			if (link && s->dialed[i] && tern_link_status(link) != TERN_OK) {
				status = tern_link_wait(link, 1); /* sets the detail */
				return link_failed(s, i, tern_link_peer_address(link), status);
			}
			if (now >= deadline_ns)
				return missing(s, i, name);
			tern_ctx_wait_past(s->ctx, seen, TN_MIN(deadline_ns - now, 100000000ull));
		}
	}
	return TERN_OK;
}

/* What the links run on, for reports. */
static void note_transports(tern_session *s)
{
	size_t used = 0;

	s->transport[0] = '\0';
	if (s->comm == TERN_COMM_GRPC) { /* has connections of its own */
		snprintf(s->transport, sizeof(s->transport), "tcp");
		return;
	}
	for (uint32_t i = 0; i < s->devices; i++) {
		const char *name = s->links[i] ? tern_link_transport(s->links[i]) : NULL;

		if (!name || strstr(s->transport, name) || used + strlen(name) + 2 > sizeof(s->transport))
			continue;
		used += (size_t)snprintf(s->transport + used, sizeof(s->transport) - used, "%s%s",
					 used ? "," : "", name);
	}
	if (!used)
		snprintf(s->transport, sizeof(s->transport), "none");
}

/* A cancel interrupts one call. */
static tern_status interrupted(tern_session *s, tern_status status)
{
	if (status == TERN_E_CANCELED)
		atomic_store(&s->canceled, false);
	return status;
}

/* ---- life ---- */

static char **copy_addresses(const char *const *addresses, uint32_t n)
{
	char **copy = calloc(n + 1, sizeof(*copy));

	for (uint32_t i = 0; copy && i < n; i++)
		copy[i] = addresses[i] ? strdup(addresses[i]) : NULL;
	return copy;
}

static void free_addresses(char **addresses, uint32_t n)
{
	for (uint32_t i = 0; addresses && i < n; i++)
		free(addresses[i]);
	free(addresses);
}

static tern_status copy_peers(tern_session *s, const tern_session_params *params)
{
	bool works = params->role != TERN_ROLE_SERVER && !params->stub;

	if (works && params->servers) {
		s->server_count = s->plan->params.servers;
		s->servers = copy_addresses(params->servers, s->server_count);
		if (!s->servers)
			return tn_fail(TERN_E_NOMEM, "no memory for addresses");
	}
	if (works && params->stages) {
		s->stages = copy_addresses(params->stages, s->stage);
		if (!s->stages)
			return tn_fail(TERN_E_NOMEM, "no memory for addresses");
	}
	return TERN_OK;
}

static tern_status find_device(tern_session *s, const tern_session_params *params)
{
	tern_device_info info;

	TN_TRY(tern_plan_find(params->plan, params->role, params->index, &s->device));
	for (; s->device < s->devices; s->device++) {
		TN_TRY(tern_plan_device(s->plan, s->device, &info));
		if (info.role == params->role && info.index == params->index && info.stage == params->stage)
			return TERN_OK;
	}
	return tn_fail(TERN_E_NOT_FOUND, "no stage %u: the plan splits a worker over %u devices",
		       params->stage, TN_MAX(s->plan->params.stages, 1));
}

/* Whether this device connects to another one: a worker to servers, a stage to those below it. */
static bool dials(const tern_session_params *params, const tern_device_info *peer)
{
	if (params->role == TERN_ROLE_SERVER || peer->role == TERN_ROLE_SERVER)
		return params->role != TERN_ROLE_SERVER;
	return peer->index == params->index && peer->stage < params->stage;
}

static tern_status prepare(tern_session *s, const tern_session_params *params)
{
	s->devices = tern_plan_devices(params->plan);
	s->stage = params->stage;
	TN_TRY(find_device(s, params));
	s->needed = calloc(s->devices, sizeof(*s->needed));
	s->dialed = calloc(s->devices, sizeof(*s->dialed));
	s->links = calloc(s->devices, sizeof(tern_link *));
	if (!s->needed || !s->dialed || !s->links)
		return tn_fail(TERN_E_NOMEM, "no memory for a session of %u devices", s->devices);
	for (uint32_t i = 0; i < s->devices; i++) {
		tern_device_info info;

		TN_TRY(tern_plan_device(s->plan, i, &info));
		s->dialed[i] = dials(params, &info);
	}
	TN_TRY(copy_peers(s, params));
	s->steps_done = params->steps_done;
	s->restore = params->restore ? strdup(params->restore) : NULL;
	if (params->restore && !s->restore)
		return tn_fail(TERN_E_NOMEM, "no memory for a path");
	if (params->stub || tern_plan_edges(s->plan) == 0)
		return TERN_OK;
	if (!s->ctx)
		return tn_fail(TERN_E_INVALID, "a session with peers needs a context");
	s->comm = s->plan->params.comm;
	if (params->role == TERN_ROLE_SERVER && tn_plan_tables(s->plan))
		TN_TRY(tern_ps_server_open(s->ctx, &(tern_ps_server_params){0}, &s->keeper));
	return find_peers(s);
}

tern_status tern_session_open(tern_ctx *ctx, const tern_session_params *params, tern_session **out)
{
	tern_session *s = calloc(1, sizeof(*s));
	tern_status status;

	*out = NULL;
	if (!s)
		return tn_fail(TERN_E_NOMEM, "no memory for a session");
	s->ctx = ctx;
	s->plan = params->plan;
	s->stub = params->stub;
	s->tables_ctx = params->tables;
	pthread_mutex_init(&s->lock, NULL);
	snprintf(s->transport, sizeof(s->transport), "none");
	s->exec_params = (tn_exec_params){.kernel_threads = params->kernel_threads,
					  .spin = params->spin,
					  .batch = params->batch,
					  .eval_batch = params->eval_batch,
					  .trace_events = params->trace_events};
	status = tn_exec_threads(&s->exec_params.threads);
	if (status == TERN_OK)
		status = prepare(s, params);
	if (status != TERN_OK) {
		tern_session_close(s);
		return status;
	}
	if (ctx && !s->stub)
		tern_ctx_on_link(ctx, on_incoming, NULL, s);
	*out = s;
	return TERN_OK;
}

/* The rows of sparse variables, on a device that uses some. */
static tern_status open_store(tern_session *s, uint64_t deadline_ns)
{
	tn_tables_params params = {.ctx = s->tables_ctx,
				   .plan = s->plan,
				   .device = s->device,
				   .servers = (const char *const *)s->servers,
				   .timeout_ns = deadline_ns - TN_MIN(tn_now(), deadline_ns - 1),
				   .canceled = &s->canceled};

	if (!tn_plan_tables(s->plan) || !tn_tables_used(s->plan, s->device, tn_plan_tables(s->plan)))
		return TERN_OK;
	if (s->stub)
		return tn_store_none(&s->store);
	if (!params.ctx || !params.servers)
		return tn_fail(TERN_E_INVALID,
			       "the plan has sparse variables: a worker needs a context for their "
			       "tables, and the servers' addresses");
	return tn_tables_open(&params, &s->store);
}

static tern_status open_xfer(tern_session *s)
{
	tn_xfer_link_params params = {.ctx = s->ctx,
				      .device = s->device,
				      .devices = s->devices,
				      .links = s->links,
				      .dialed = s->dialed,
				      .canceled = &s->canceled};

	if (s->stub || tern_plan_edges(s->plan) == 0)
		return tn_stub_open(NULL, NULL, &s->xfer);
	if (s->comm == TERN_COMM_RPC)
		return tn_xfer_rpc_open(&params, &s->xfer);
	if (s->comm == TERN_COMM_GRPC)
		return tn_xfer_grpc_open(&params, &s->xfer);
	if (s->comm == TERN_COMM_NONE)
		return tn_xfer_hollow_open(&params, &s->xfer);
	return tn_xfer_tensor_open(&params, s->comm == TERN_COMM_COPY, &s->xfer);
}

tern_status tern_session_start(tern_session *s, uint64_t timeout_ns)
{
	uint64_t deadline_ns = tn_now() + (timeout_ns ? timeout_ns : SESSION_START_NS);

	if (s->exec)
		return tn_fail(TERN_E_STATE, "the session was started already");
	TN_TRY(open_store(s, deadline_ns));
	s->exec_params.store = s->store;
	if (!s->stub) {
		TN_TRY(dial(s, deadline_ns));
		TN_TRY(await_links(s, deadline_ns));
		pthread_mutex_lock(&s->lock);
		s->settled = true;
		pthread_mutex_unlock(&s->lock);
		note_transports(s);
	}
	TN_TRY(open_xfer(s));
	if (s->store && !s->stub)
		tn_tables_wake(s->store, s->xfer);
	TN_TRY(tn_exec_create(s->plan, s->device, s->xfer, &s->exec_params, &s->exec));
	if (s->restore)
		TN_TRY(tn_exec_load(s->exec, s->restore, s->steps_done));
	/* Before there was an executor to tell. Exchanges on both sides: one of them sees the other. */
	if (atomic_exchange(&s->canceled, false))
		return tn_fail(TERN_E_CANCELED, "cancelled while starting");
	return interrupted(s, tn_exec_start(s->exec, deadline_ns));
}

/*
 * A peer that has ended its link in order has what it wanted, though a lane that broke just then may have taken the
 * last acknowledgement with it: after the last step nothing else is missing. One that failed says so itself.
 */
static tern_status drain(tern_session *s, uint64_t deadline_ns)
{
	tern_status status = s->exec ? tn_exec_drain(s->exec, deadline_ns) : TERN_OK;

	return status == TERN_E_PEER_CLOSED ? TERN_OK : status;
}

tern_status tern_session_finish(tern_session *s, uint64_t timeout_ns)
{
	uint64_t deadline_ns = tn_now() + (timeout_ns ? timeout_ns : SESSION_START_NS);

	if (s->exec && !s->stub)
		TN_TRY(tn_exec_take_last(s->exec, deadline_ns));
	TN_TRY(drain(s, deadline_ns));
	if (s->store && !s->stub)
		tn_tables_stop(s->store);
	for (uint32_t i = 0; i < s->devices && !s->stub; i++)
		if (s->links[i] && s->dialed[i])
			tern_link_close(s->links[i]);
	for (uint32_t i = 0; i < s->devices && !s->stub; i++) {
		while (s->links[i] && tern_link_get_state(s->links[i]) != TERN_LINK_DOWN) {
			uint64_t seen = tern_ctx_events(s->ctx);
			uint64_t now = tn_now();

			if (tern_link_get_state(s->links[i]) == TERN_LINK_DOWN)
				break;
			if (atomic_load(&s->canceled))
				return tn_fail(TERN_E_CANCELED, "cancelled while waiting for %s to finish",
					       tern_link_peer_name(s->links[i]));
			if (now >= deadline_ns)
				return tn_fail(TERN_E_DEADLINE, "%s did not close its link in time",
					       tern_link_peer_name(s->links[i]));
			tern_ctx_wait_past(s->ctx, seen, TN_MIN(deadline_ns - now, 100000000ull));
		}
	}
	return TERN_OK;
}

/* After a failed step sends may still read the executor's memory: no link, no operation. */
static void end_links(tern_session *s)
{
	uint64_t deadline_ns = tn_now() + SESSION_CLOSE_NS;

	for (uint32_t i = 0; i < s->devices; i++)
		if (s->links[i])
			tern_link_close(s->links[i]);
	for (uint32_t i = 0; i < s->devices; i++) {
		while (s->links[i] && tn_now() < deadline_ns) {
			uint64_t seen = tern_ctx_events(s->ctx);

			if (tern_link_get_state(s->links[i]) == TERN_LINK_DOWN)
				break;
			tern_ctx_wait_past(s->ctx, seen, 10000000);
		}
	}
}

void tern_session_close(tern_session *s)
{
	if (!s)
		return;
	if (s->ctx && !s->stub)
		tern_ctx_on_link(s->ctx, NULL, NULL, NULL);
	if (s->exec && !s->stub)
		end_links(s);
	if (s->store && !s->stub)
		tn_tables_stop(s->store);
	tn_exec_destroy(s->exec);
	if (s->xfer)
		s->xfer->ops->close(s->xfer);
	if (s->store)
		s->store->ops->close(s->store);
	tern_ps_server_close(s->keeper);
	for (uint32_t i = 0; i < s->n_guests; i++)
		tern_link_release(s->guests[i]);
	free(s->guests);
	for (uint32_t i = 0; s->links && i < s->devices; i++)
		tern_link_release(s->links[i]);
	free_addresses(s->servers, s->server_count);
	free_addresses(s->stages, s->stage);
	free(s->restore);
	free(s->needed);
	free(s->dialed);
	free(s->links);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* ---- steps ---- */

static tern_status not_started(void)
{
	return tn_fail(TERN_E_STATE, "the session was not started");
}

tern_status tern_session_feed(tern_session *s, int eval, const char *port, const void *data, uint64_t bytes)
{
	return s->exec ? tn_exec_feed(s->exec, eval ? TN_PROG_EVAL : TN_PROG_TRAIN, port, data, bytes)
		       : not_started();
}

tern_status tern_session_bind(tern_session *s, int eval, const char *symbol, uint64_t size)
{
	return s->exec ? interrupted(s, tn_exec_bind(s->exec, eval ? TN_PROG_EVAL : TN_PROG_TRAIN, symbol,
						     size, TN_TIME_NEVER))
		       : not_started();
}

tern_status tern_session_step(tern_session *s, int eval)
{
	return s->exec ? interrupted(
				 s, tn_exec_step(s->exec, eval ? TN_PROG_EVAL : TN_PROG_TRAIN, TN_TIME_NEVER))
		       : not_started();
}

tern_status tern_session_run(tern_session *s, uint64_t n)
{
	return s->exec ? interrupted(s, tn_exec_run(s->exec, n, TN_TIME_NEVER)) : not_started();
}

tern_status tern_session_save(tern_session *s, const char *path)
{
	return s->exec ? tn_exec_save(s->exec, path) : not_started();
}

static tern_status copy_out(const tn_fetched *fetched, const char *what, void *data, uint64_t bytes)
{
	if (bytes != fetched->bytes)
		return tn_fail(TERN_E_SHAPE, "'%s' has %llu bytes, the buffer %llu", what,
			       (unsigned long long)fetched->bytes, (unsigned long long)bytes);
	memcpy(data, fetched->data, bytes);
	return TERN_OK;
}

tern_status tern_session_fetch(tern_session *s, int eval, const char *port, void *data, uint64_t bytes)
{
	tn_fetched fetched;

	if (!s->exec)
		return not_started();
	TN_TRY(tn_exec_fetch(s->exec, eval ? TN_PROG_EVAL : TN_PROG_TRAIN, port, &fetched));
	return copy_out(&fetched, port, data, bytes);
}

tern_status tern_session_variable(tern_session *s, const char *name, void *data, uint64_t bytes)
{
	tn_fetched fetched;

	if (!s->exec)
		return not_started();
	TN_TRY(tn_exec_variable(s->exec, name, &fetched));
	return copy_out(&fetched, name, data, bytes);
}

void tern_session_cancel(tern_session *s)
{
	atomic_exchange(&s->canceled, true);
	if (s->exec)
		tn_exec_cancel(s->exec);
	if (s->ctx)
		tern_ctx_wake(s->ctx);
}

/* ---- reports ---- */

void tern_session_stats_reset(tern_session *s)
{
	if (s->exec)
		tn_exec_stats_get(s->exec, &s->base, false);
	if (s->stub)
		memset(&s->base.xfer, 0, sizeof(s->base.xfer));
	if (s->store)
		s->store->ops->counters(s->store, &s->base_rows);
}

void tern_session_stats_get(tern_session *s, tern_session_stats *stats)
{
	const tn_exec_stats *b = &s->base;
	tn_exec_stats now = {0};
	tn_store_counters rows = s->base_rows;

	if (s->store)
		s->store->ops->counters(s->store, &rows);
	if (s->exec)
		tn_exec_stats_get(s->exec, &now, false);
	if (s->stub) /* it only pretends */
		memset(&now.xfer, 0, sizeof(now.xfer));
	*stats = (tern_session_stats){
		.steps = now.steps - b->steps,
		.run_ns = now.run_ns - b->run_ns,
		.compute_ns = now.compute_ns - b->compute_ns,
		.comm_ns = now.comm_ns - b->comm_ns,
		.wait_ns = now.wait_ns - b->wait_ns,
		.bytes_sent =
			now.xfer.bytes_sent - b->xfer.bytes_sent + rows.bytes_sent - s->base_rows.bytes_sent,
		.bytes_received = now.xfer.bytes_received - b->xfer.bytes_received + rows.bytes_received -
				  s->base_rows.bytes_received,
		.rows_pulled = rows.pulled - s->base_rows.pulled,
		.rows_pushed = rows.pushed - s->base_rows.pushed,
		.tensors_sent = now.xfer.sends - b->xfer.sends,
		.tensors_received = now.xfer.recvs - b->xfer.recvs,
		.writes = now.xfer.writes - b->xfer.writes,
		.copies = now.xfer.copies - b->xfer.copies,
		.copy_bytes = now.xfer.copy_bytes - b->xfer.copy_bytes,
	};
}

tern_status tern_session_trace(tern_session *s, const char *path)
{
	FILE *file;
	bool bad;

	if (!s->exec || !s->exec_params.trace_events)
		return tn_fail(TERN_E_STATE, "the session keeps no events: trace_events says how many");
	file = fopen(path, "we");
	if (!file)
		return tn_fail_errno(TERN_E_IO, "open", "%s", path);
	fprintf(file, "[\n");
	tn_exec_trace_write(tn_exec_trace_get(s->exec), tn_exec_graph(s->exec), s->device, file);
	fprintf(file, "\n]\n");
	bad = ferror(file) != 0;
	bad |= fclose(file) != 0;
	return bad ? tn_fail(TERN_E_IO, "%s: not everything was written", path) : TERN_OK;
}

tern_status tern_session_waited(tern_session *s, uint32_t device, uint64_t *ns)
{
	if (device >= s->devices)
		return tn_fail(TERN_E_NOT_FOUND, "the plan has %u devices", s->devices);
	*ns = s->exec ? tn_exec_trace_get(s->exec)->waited_ns[device] : 0;
	return TERN_OK;
}

void tern_session_profile(tern_session *s, void (*fn)(const tern_node_cost *cost, void *arg), void *arg)
{
	const tern_graph *graph = s->exec ? tn_exec_graph(s->exec) : NULL;

	for (uint32_t i = 0; graph && i < graph->n_nodes; i++) {
		const tn_node_cost *cost = &tn_exec_trace_get(s->exec)->nodes[i];
		const tern_node_cost row = {.name = graph->nodes[i].name,
					    .op = tn_op_table[graph->nodes[i].op].name,
					    .runs = cost->runs,
					    .ns = cost->ns};

		if (cost->runs)
			fn(&row, arg);
	}
}

const char *tern_session_transport(const tern_session *s)
{
	return s->transport;
}

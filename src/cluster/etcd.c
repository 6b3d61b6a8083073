/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership by etcd: no server is special. The map is one value that whoever has something to say changes by
 * compare-and-swap, with the coordinator's own rules (coord.h); a server is alive as long as the lease of its key is.
 *
 *   keep the lease -> read map and members -> deaths, joins, own reports, what is to be done -> swap -> the map is taken
 *         ^                                                                             '-- another was first: again
 *         '----------------------- pause: short while slots are copied ------------------'
 *
 * A server counts its lease from when it sent the renewal, and cluster.margin less than etcd does; that another is dead
 * is said only together with "its key is not there", in one transaction. Loads are not known here: slots are evened out
 * by their number.
 *
 * Threads: the thread of the membership; calls of people run from dispatch and wait for it.
 * Tests: tests/unit/cluster/etcd_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/time.h"
#include "base/wirebuf.h"
#include "cluster/etcd_kv.h"
#include "cluster/member.h"

#define BLOB_HEAD 8u
#define BUSY_NS   (20 * TN_NS_PER_MS) /* between two rounds while slots are copied */
#define DEAD_MAX  64u                 /* deaths said in one transaction */

typedef struct tn_cl_etcd {
	tn_etcd kv;
	uint64_t lease, ttl_ns, keep_at_ns;
	tn_coord coord;
	uint8_t blob[BLOB_HEAD + TN_CL_MAP_BYTES_MAX];
	uint64_t dead[DEAD_MAX];
	uint32_t dead_count;
	unsigned version;        /* of the map that was read */
	tern_rpc_request *asked; /* c->lock: of a person, not answered */
	tn_cl_msg msg;
	uint8_t out[TN_CL_ANSWER_MAX];

} tn_cl_etcd;

/* ---- the blob: u8 1 | u8 replicas | u16 first | u32 zero | map ---- */

static uint64_t put_blob(tn_cl_etcd *e)
{
	const tn_coord *k = &e->coord;
	tn_writer w;

	tn_writer_init(&w, e->blob, BLOB_HEAD);
	tn_put_u8(&w, 1);
	tn_put_u8(&w, (uint8_t)k->p.replicas);
	tn_put_u16(&w, (uint16_t)k->p.first);
	tn_put_u32(&w, k->paused);
	/* who reads old maps alone must be able to read it; once there was a newer one, it stays that */
	return BLOB_HEAD + tn_cl_map_encode(e->blob + BLOB_HEAD, TN_CL_MAP_BYTES_MAX, &k->map,
					    tn_coord_keeps_copies(k) ? TN_CL_VERSION : e->version);
}

/* The coordinator as etcd has it, into e->coord. */
static tern_status get_blob(tn_cluster *c, const tn_etcd_state *state, uint64_t now)
{
	const tn_options *o = tn_ctx_options(c->ctx);
	tn_coord_params p = {.lease_ns = c->lease_ns,
			     .margin_ns = tn_opt_u64(o, tn_cluster_options, "margin"),
			     .balance_ns = tn_opt_u64(o, tn_cluster_options, "balance"),
			     .replicas = c->p.replicas ? c->p.replicas : 1,
			     .first = c->p.first ? c->p.first : 1,
			     .moves = (uint32_t)tn_opt_u64(o, tn_cluster_options, "moves")};
	bool paused = false;
	tn_reader r;

	c->etcd->version = TN_CL_VERSION_OLD;
	if (!state->revision) {
		tn_coord_init(&c->etcd->coord, &p, NULL, now);
		return TERN_OK;
	}
	tn_reader_init(&r, state->blob, state->blob_bytes);
	if (tn_get_u8(&r) != 1)
		return tn_fail(TERN_E_PROTOCOL, "the map in etcd is of another version");
	p.replicas = tn_get_u8(&r);
	p.first = tn_get_u16(&r);
	paused = tn_get_u32(&r) & 1;
	if (r.bad || p.replicas < 1 || p.replicas > 2 ||
	    !tn_cl_map_decode(state->blob + BLOB_HEAD, state->blob_bytes - BLOB_HEAD, &c->incoming))
		return tn_fail(TERN_E_PROTOCOL, "the map in etcd can't be read");
	if (state->blob[BLOB_HEAD] == TN_CL_VERSION)
		c->etcd->version = TN_CL_VERSION;
	tn_coord_init(&c->etcd->coord, &p, &c->incoming, now);
	c->etcd->coord.paused = paused;
	c->etcd->coord.balancing =
		true; /* by number alone: no load that goes up and down can bring slots back */
	return TERN_OK;
}

/* ---- one round ---- */

/* maps: what it reads, may be NULL. */
static bool is_member(const tn_etcd_state *state, uint64_t incarnation, uint32_t *maps)
{
	for (uint32_t i = 0; i < state->member_count; i++) {
		if (state->members[i] != incarnation)
			continue;
		if (maps)
			*maps = state->maps[i];
		return true;
	}
	return false;
}

/* Who is alive, by etcd; who is not is taken for dead. Returns the lowest number that is: it does what nobody else does. */
static uint16_t roll_call(tn_cl_etcd *e, const tn_etcd_state *state, uint64_t now)
{
	tn_coord *k = &e->coord;
	uint16_t lowest = TN_CL_NONE;

	e->dead_count = 0;
	for (uint16_t i = 0; i < k->map.servers; i++)
		if (is_member(state, k->map.server[i].incarnation, &k->member[i].maps)) {
			k->member[i].heard_ns = now;
			lowest = lowest == TN_CL_NONE ? i : lowest;
		}
	for (uint16_t i = 0; i < k->map.servers; i++) {
		const tn_cl_server *s = &k->map.server[i];
		bool there = is_member(state, s->incarnation, NULL);

		if (there && s->state == TN_CL_DOWN)
			(void)tn_coord_renew(k, now, i, s->incarnation);
		if (there || !tn_cl_alive(&k->map, i) || e->dead_count == DEAD_MAX)
			continue;
		e->dead[e->dead_count++] = s->incarnation;
		tn_coord_died(k, now, i);
	}
	return lowest;
}

/* What this side has to say. */
static tern_status speak(tn_cluster *c, uint64_t now)
{
	tn_cl_etcd *e = c->etcd;
	tn_coord *k = &e->coord;
	uint32_t n = tn_cl_gather_facts(c);
	tern_status status = TERN_OK;
	bool drain;

	pthread_mutex_lock(&c->lock);
	drain = c->drain;
	pthread_mutex_unlock(&c->lock);
	c->self = tn_cl_map_find(&k->map, tern_ctx_address(c->ctx), c->incarnation);
	if (c->self == TN_CL_NONE)
		status = tn_coord_join(k, now, tern_ctx_address(c->ctx), c->incarnation, TN_CL_VERSION,
				       &c->self);
	if (status == TERN_OK && n)
		status = tn_coord_facts(k, now, c->self, c->incarnation, c->facts, n);
	if (status == TERN_OK && drain && k->map.server[c->self].state == TN_CL_UP)
		(void)tn_coord_drain(k, now, c->self);
	return status;
}

/* What a person asked for; the answer is given when it is in etcd. */
static tern_status listen_to(tn_cluster *c, uint64_t now, tern_rpc_request **request)
{
	tn_cl_etcd *e = c->etcd;

	pthread_mutex_lock(&c->lock);
	*request = e->asked;
	pthread_mutex_unlock(&c->lock);
	return *request && e->msg.op != TN_CL_STATUS ? tn_cl_apply(&e->coord, now, &e->msg) : TERN_OK;
}

static void reply(tn_cluster *c, tern_rpc_request *request, tern_status status)
{
	tn_cl_etcd *e = c->etcd;
	tn_cl_answer a = {.status = status, .server = e->msg.server, .version = c->map.version};

	pthread_mutex_lock(&c->lock);
	e->asked = NULL;
	pthread_mutex_unlock(&c->lock);
	if (e->msg.version < c->map.version)
		a.map_bytes = (uint32_t)tn_cl_map_encode(e->out + TN_CL_ANSWER_HEAD, TN_CL_MAP_BYTES_MAX,
							 &c->map, tn_cl_map_version(e->msg.maps));
	tn_cl_answer_encode(e->out, &a);
	if (status == TERN_OK)
		tern_rpc_reply(request, TERN_OK, e->out, TN_CL_ANSWER_HEAD + a.map_bytes);
	else
		tern_rpc_reply(request, status, tn_detail_get(), strlen(tn_detail_get()));
}

/* A map that is in etcd. */
static void take(tn_cluster *c)
{
	if (c->etcd->coord.map.version <= c->map.version)
		return;
	c->incoming = c->etcd->coord.map;
	tn_cl_take_incoming(c);
}

static tern_status coordinate(tn_cluster *c, const tn_etcd_state *state)
{
	tn_cl_etcd *e = c->etcd;
	uint64_t now = tn_ctx_now(c->ctx), before;
	tern_rpc_request *request = NULL;
	tern_status status, said;
	bool paused;

	TN_TRY(get_blob(c, state, now));
	before = e->coord.map.version;
	paused = e->coord.paused;
	/* One of them looks for what is to be done; the others only when they have something to say. */
	e->coord.planned_version = before;
	if (roll_call(e, state, now) == c->self && c->self != TN_CL_NONE)
		e->coord.planned_version = UINT64_MAX;
	status = speak(c, now);
	said = listen_to(c, now, &request);
	if (status == TERN_OK)
		tn_coord_tick(&e->coord, now);
	if (e->coord.map.version != before || e->coord.paused != paused)
		status = tn_etcd_swap(&e->kv, state->revision, e->dead, e->dead_count, e->blob, put_blob(e));
	if (status == TERN_OK)
		take(c);
	if (request && status == TERN_OK)
		reply(c, request, said);
	return status;
}

static tern_status one_round(tn_cluster *c)
{
	tn_etcd_state state;
	tern_status status = tn_etcd_read(&c->etcd->kv, &state);

	if (status != TERN_OK)
		return status;
	status = coordinate(c, &state);
	tn_etcd_state_free(&state);
	return status;
}

/* ---- the lease ---- */

static void lease_from(tn_cluster *c, uint64_t sent_ns)
{
	uint64_t margin = tn_opt_u64(tn_ctx_options(c->ctx), tn_cluster_options, "margin"),
		 ttl = c->etcd->ttl_ns;

	atomic_store_explicit(&c->lease_until_ns, sent_ns + (ttl > margin ? ttl - margin : 0),
			      memory_order_release);
	c->etcd->keep_at_ns = sent_ns + ttl / 4;
}

/* A lease, and the key that says that this server is alive. */
static tern_status begin_lease(tn_cluster *c)
{
	tn_cl_etcd *e = c->etcd;
	uint64_t margin = tn_opt_u64(tn_ctx_options(c->ctx), tn_cluster_options, "margin");
	uint64_t seconds = (c->lease_ns + margin + TN_NS_PER_SEC - 1) / TN_NS_PER_SEC,
		 sent = tn_ctx_now(c->ctx);

	TN_TRY(tn_etcd_grant(&e->kv, seconds, &e->lease, &seconds));
	TN_TRY(tn_etcd_member(&e->kv, c->incarnation, e->lease, TN_CL_VERSION));
	e->ttl_ns = seconds * TN_NS_PER_SEC;
	lease_from(c, sent);
	return TERN_OK;
}

/* Its lease is over: its rows are worth nothing, it is another one. */
static tern_status begin_anew(tn_cluster *c)
{
	TN_LOG(WARN, PS, "etcd has ended the lease of this server: it begins anew, without rows");
	atomic_store_explicit(&c->lease_until_ns, 0, memory_order_release);
	TN_TRY(tn_os_random(&c->incarnation, sizeof(c->incarnation)));
	c->self = TN_CL_NONE;
	return begin_lease(c);
}

static tern_status keep(tn_cluster *c)
{
	uint64_t sent = tn_ctx_now(c->ctx), ttl_s;

	if (sent < c->etcd->keep_at_ns)
		return TERN_OK;
	TN_TRY(tn_etcd_keep(&c->etcd->kv, c->etcd->lease, &ttl_s));
	if (ttl_s == 0)
		return begin_anew(c);
	c->etcd->ttl_ns = ttl_s * TN_NS_PER_SEC;
	lease_from(c, sent);
	return TERN_OK;
}

/* ---- the thread ---- */

/* Are slots being copied, or is something not answered yet? */
static bool busy(tn_cluster *c)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &c->map.slot[i];

		if ((s->backup != TN_CL_NONE && !(s->flags & TN_CL_IN_SYNC)) || (s->flags & TN_CL_MOVE) ||
		    s->next != TN_CL_NONE || c->pending[i].what)
			return true;
	}
	return false;
}

static tern_status join(tn_cluster *c)
{
	uint64_t end = tn_deadline(tn_ctx_now(c->ctx),
				   tn_opt_u64(tn_ctx_options(c->ctx), tn_cluster_options, "join"));
	tern_status status;

	do {
		status = c->etcd->lease ? keep(c) : begin_lease(c);
		if (status == TERN_OK)
			status = one_round(c);
		if (status == TERN_OK && c->self != TN_CL_NONE)
			return TERN_OK;
		tn_cl_nap(c, tn_ctx_now(c->ctx) + 2 * BUSY_NS);
	} while (!tn_cl_stopping(c) && tn_ctx_now(c->ctx) < end && status != TERN_E_LIMIT &&
		 status != TERN_E_PROTOCOL);
	return status == TERN_AGAIN || status == TERN_OK
		       ? tn_fail(TERN_E_DEADLINE, "this server could not join by etcd in time (cluster.join)")
		       : status;
}

static void leave(tn_cluster *c)
{
	tn_cl_etcd *e = c->etcd;
	tn_etcd_state state;

	atomic_store_explicit(&c->lease_until_ns, 0, memory_order_release);
	for (int tries = 0; tries < 8 && tn_etcd_read(&e->kv, &state) == TERN_OK; tries++) {
		uint64_t now = tn_ctx_now(c->ctx);
		tern_status status = get_blob(c, &state, now);

		if (status == TERN_OK) {
			(void)roll_call(e, &state, now);
			status = tn_coord_leave(&e->coord, now, c->self, c->incarnation);
		}
		if (status == TERN_OK)
			status = tn_etcd_swap(&e->kv, state.revision, e->dead, e->dead_count, e->blob,
					      put_blob(e));
		tn_etcd_state_free(&state);
		if (status != TERN_AGAIN)
			break;
	}
	(void)tn_etcd_revoke(&e->kv, e->lease);
}

void *tn_cl_etcd_run(void *arg)
{
	tn_cluster *c = arg;
	tern_status status = join(c);
	uint64_t pause;
	bool good = true;

	tn_cl_joined(c, status);
	while (status == TERN_OK && !tn_cl_stopping(c)) {
		tern_status one = keep(c);

		if (one == TERN_OK)
			one = one_round(c);
		if (one != TERN_OK && one != TERN_AGAIN && good)
			TN_LOG(WARN, PS, "etcd: %s", tn_detail_get());
		good = one == TERN_OK || one == TERN_AGAIN;
		pause = !good || (one == TERN_OK && !busy(c)) ? c->lease_ns / 8 : BUSY_NS;
		pthread_mutex_lock(&c->lock);
		c->news = c->etcd->asked != NULL && one == TERN_OK;
		pthread_mutex_unlock(&c->lock);
		tn_cl_nap(c, tn_ctx_now(c->ctx) + pause);
	}
	if (status == TERN_OK && c->leave && c->self != TN_CL_NONE)
		leave(c);
	return NULL;
}

/* ---- calls of people ---- */

static void on_message(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	static const char no[] =
		"servers whose map etcd keeps take no such message, or are at work on another";
	tn_cluster *c = arg;
	tn_cl_msg msg;
	bool taken = false;

	pthread_mutex_lock(&c->lock);
	if (!c->stop && !c->etcd->asked && tn_cl_msg_decode(args, bytes, &msg) && msg.op >= TN_CL_DRAIN &&
	    msg.op != TN_CL_LEAVE) {
		c->etcd->asked = request;
		c->etcd->msg = msg;
		c->news = taken = true;
		pthread_cond_signal(&c->wake);
	}
	pthread_mutex_unlock(&c->lock);
	if (!taken)
		tern_rpc_reply(request, TERN_E_OVERLOAD, no, sizeof(no) - 1);
}

tern_status tn_cl_etcd_open(tn_cluster *c)
{
	tn_cl_etcd *e = calloc(1, sizeof(*e));
	tern_status status;

	if (!e)
		return tn_fail(TERN_E_NOMEM, "no memory for a membership");
	status = tn_etcd_open(&e->kv, c->p.join, TN_MAX(c->lease_ns / 2, TN_NS_PER_SEC / 2));
	if (status == TERN_OK) {
		c->etcd = e;
		status = tern_rpc_serve(c->ctx, TN_CL_METHOD, on_message, c);
	}
	if (status == TERN_OK)
		return TERN_OK;
	tn_etcd_close(&e->kv);
	free(e);
	c->etcd = NULL;
	return status;
}

void tn_cl_etcd_close(tn_cluster *c)
{
	static const char over[] = "the server ends";

	if (!c->etcd)
		return;
	tern_rpc_unserve(c->ctx, TN_CL_METHOD);
	if (c->etcd->asked)
		tern_rpc_reply(c->etcd->asked, TERN_E_PEER_CLOSED, over, sizeof(over) - 1);
	tn_etcd_close(&c->etcd->kv);
	free(c->etcd);
	c->etcd = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors that call, and the servers that they call.
 *
 *   request  what a call says to its handler: which call it is, how long the answer and the sink are, when
 *   work     one call in the hands of a server: puts into the sink, then the answer, now or later
 *
 *   each call is executed at most once; an answer is that of its call; the bytes of a sink are there when a call
 *   whose put went well ended well, and nothing is written into sinks and answers after the completion
 *
 * Threads: none. Tests: sim-smoke.
 */
#include <stdlib.h>
#include <string.h>

#include "mem/mem.h"
#include "sim/alloc.h"
#include "sim/device.h"
#include "sim/load.h"

#define METHOD       7u
#define NO_METHOD    8u
#define ANSWER_MAX   1024u
#define ANSWER_BYTES 0xa45eull
#define CANARY       0xca9a

typedef struct request {
	uint64_t call, sink_bytes, delay_ns;
	uint32_t answer_bytes, fails;
} request;

typedef struct work {
	struct work *next, **link;
	sim_node *node;
	uint32_t incarnation;
	tern_rpc_request *request;
	request r;
	void *src;
	tern_op put;
	bool putting, replied;
	unsigned tries;
} work;

typedef struct server {
	work *works;
} server;

typedef struct caller {
	tern_rpc *rpc;
	sim_op *holder[SIM_SLOTS];
	tern_key keys[SIM_SLOTS];
	uint8_t answers[SIM_SLOTS][ANSWER_MAX];
	struct {
		bool known;
		uint64_t bytes;
	} left[SIM_SLOTS];
} caller;

static caller *caller_of(const sim_actor *actor)
{
	return actor->state;
}

/* ---- the server ---- */

static bool lives(const work *w)
{
	return w->node->ctx && w->node->incarnation == w->incarnation;
}

static void work_free(work *w)
{
	*w->link = w->next;
	if (w->next)
		w->next->link = w->link;
	if (lives(w))
		tern_mem_free(tern_ctx_mem(w->node->ctx), w->src);
	free(w);
}

static void finish_work(work *w)
{
	if (w->replied && !w->putting)
		work_free(w);
}

static void on_put(tern_op *op, void *arg)
{
	work *w = arg;
	sim_world *world = w->node->world;
	sim_op *call = world->load->ops[w->r.call];

	SIM_CHECK(world, "once", w->putting, "a put into the sink of call %llu completes twice",
		  (unsigned long long)w->r.call);
	SIM_CHECK(world, "buffer", !sim_dev_uses(world, w->src, w->r.sink_bytes),
		  "a put into the sink of call %llu ended while a device reads its source",
		  (unsigned long long)w->r.call);
	SIM_TRACE(world, w->r.call, op->status, "%s: the put of call %llu ends: %s", w->node->name,
		  (unsigned long long)w->r.call, tern_status_name(op->status));
	w->putting = false;
	call->sink_ok = op->status == TERN_OK;
	sim_fill(w->src, w->r.sink_bytes, 0xbad);
	finish_work(w);
}

static void reply(work *w, tern_status status)
{
	uint8_t answer[ANSWER_MAX];

	SIM_TRACE(w->node->world, w->r.call, status, "%s: call %llu is answered: %s%s", w->node->name,
		  (unsigned long long)w->r.call, tern_status_name(status),
		  w->putting ? ", a put is on its way" : "");
	sim_fill(answer, w->r.answer_bytes, ANSWER_BYTES + w->r.call);
	w->replied = true;
	tern_rpc_reply(w->request, status, answer, status == TERN_OK ? w->r.answer_bytes : 0);
	if (!w->node->dying)
		sim_poke(w->node);
	finish_work(w);
}

static void on_work(void *arg, uint64_t call);

static void do_work(work *w)
{
	sim_world *world = w->node->world;
	void *src;
	tern_status status;

	if (w->r.sink_bytes == 0 || w->r.fails) {
		reply(w, w->r.fails ? TERN_E_REMOTE : TERN_OK);
		return;
	}
	if (!w->src && tern_mem_alloc(tern_ctx_mem(w->node->ctx), w->r.sink_bytes, 0,
				      TERN_ACCESS_READ | TERN_ACCESS_WRITE, TERN_MEM_HOST, &src) == TERN_OK)
		w->src = src;
	if (!w->src) {
		reply(w, TERN_E_NOMEM);
		return;
	}
	sim_fill(w->src, w->r.sink_bytes, w->r.call);
	tern_op_init(&w->put, on_put, w);
	w->putting = true;
	status = tern_rpc_request_put(w->request, 0, 0, w->src, w->r.sink_bytes, &w->put);
	if (status != TERN_OK)
		w->putting = false;
	if (status == TERN_AGAIN && w->tries++ < 20) {
		sim_at(&world->events, world->events.now + 50 * TN_NS_PER_US, on_work, world, w->r.call);
		return;
	}
	reply(w, status == TERN_OK ? TERN_OK : TERN_E_REMOTE);
}

static void on_work(void *arg, uint64_t call)
{
	sim_world *world = arg;
	server *s = world->load->rpc;

	for (work *w = s->works; w; w = w->next) {
		if (w->r.call == call && !w->replied && !w->putting && lives(w) && !w->node->dying) {
			do_work(w);
			return;
		}
	}
}

static void handler(tern_rpc_request *req, const void *args, uint64_t bytes, void *arg)
{
	sim_node *node = arg;
	sim_world *world = node->world;
	server *s = world->load->rpc;
	const sim_load *load = world->load;
	work *w = sim_alloc(1, sizeof(*w));
	sim_op *op;

	w->node = node;
	w->incarnation = node->incarnation;
	w->request = req;
	w->next = s->works;
	if (w->next)
		w->next->link = &w->next;
	w->link = &s->works;
	s->works = w;
	if (bytes >= sizeof(w->r))
		memcpy(&w->r, args, sizeof(w->r));
	op = bytes >= sizeof(w->r) && w->r.call < load->op_count ? load->ops[w->r.call] : NULL;
	if (!op || op->actor->kind != SIM_ACTOR_RPC || op->bytes != bytes ||
	    sim_differs((const uint8_t *)args + sizeof(w->r), bytes - sizeof(w->r), op->id) !=
		    bytes - sizeof(w->r)) {
		sim_violation(world, "content", "%s: a call came with other arguments", node->name);
		w->r.fails = 1;
		reply(w, TERN_E_REMOTE);
		return;
	}
	SIM_TRACE(world, op->id, 55, "%s: call %llu is executed", node->name, (unsigned long long)op->id);
	SIM_CHECK(world, "call", !op->seen, "%s: call %llu is executed twice", node->name,
		  (unsigned long long)op->id);
	op->seen = true;
	if (w->r.delay_ns)
		sim_at(&world->events, world->events.now + w->r.delay_ns, on_work, world, w->r.call);
	else
		do_work(w);
}

void sim_rpc_serve(sim_node *node)
{
	tern_rpc_serve(node->ctx, METHOD, handler, node);
}

/* Requests in hand must be answered. */
void sim_rpc_node_down(sim_node *node)
{
	server *s = node->world->load->rpc;

	for (work *w = s->works, *next; w; w = next) {
		next = w->next;
		if (w->node == node && !w->replied && lives(w))
			reply(w, TERN_E_FLUSHED);
	}
}

void sim_rpc_init(sim_world *world)
{
	world->load->rpc = sim_alloc(1, sizeof(server));
}

void sim_rpc_fini(sim_world *world)
{
	server *s = world->load->rpc;

	while (s->works)
		work_free(s->works);
	free(s);
}

/* ---- the caller ---- */

static bool rpc_open(sim_actor *actor)
{
	caller *c = caller_of(actor);
	tern_mem *mem = tern_ctx_mem(actor->end->node->ctx);

	if (!c)
		c = actor->state = sim_alloc(1, sizeof(*c));
	memset(c->left, 0, sizeof(c->left));
	if (!sim_actor_memory(actor, true))
		return false;
	for (unsigned i = 0; i < SIM_SLOTS; i++)
		if (tern_mem_export(mem, sim_actor_mine(actor, i), actor->slot_bytes, TERN_ACCESS_WRITE,
				    &c->keys[i]) != TERN_OK)
			return false;
	actor->outlives = actor->connects;
	if (actor->connects)
		return tern_rpc_connect(actor->end->node->ctx, actor->end->peer->address, NULL, &c->rpc) ==
		       TERN_OK;
	return tern_rpc_open(actor->end->link, &c->rpc) == TERN_OK;
}

static void rpc_cancel(sim_actor *actor, sim_op *op)
{
	if (caller_of(actor)->rpc)
		tern_rpc_cancel(caller_of(actor)->rpc, &op->op);
}

static void rpc_close(sim_actor *actor)
{
	caller *c = caller_of(actor);

	if (c->rpc)
		tern_rpc_close(c->rpc);
	c->rpc = NULL;
}

static void check_left(sim_actor *actor, unsigned slot)
{
	caller *c = caller_of(actor);
	sim_world *world = actor->end->world;
	uint64_t n = c->left[slot].bytes;

	if (!c->left[slot].known)
		return;
	c->left[slot].known = false;
	SIM_CHECK(world, "content", sim_differs(sim_actor_mine(actor, slot), n, CANARY) == n,
		  "actor %u: the sink in slot %u changed after its call had ended", actor->number, slot);
	SIM_CHECK(world, "content", sim_differs(c->answers[slot], ANSWER_MAX, CANARY) == ANSWER_MAX,
		  "actor %u: the answer in slot %u changed after its call had ended", actor->number, slot);
}

static void on_done(tern_op *base, void *arg)
{
	sim_op *op = arg;
	sim_actor *actor = op->actor;
	caller *c = caller_of(actor);
	sim_world *world = actor->end->world;
	uint8_t *sink = sim_actor_mine(actor, op->slot);
	bool late = op->op.status == TERN_E_DEADLINE && !world->calm;

	(void)base;
	op->op.timeout_ns += op->op.timeout_ns == 0; /* there is always a deadline */
	if (op->kind == NO_METHOD && op->op.status == TERN_E_NO_METHOD)
		op->op.status = TERN_OK;
	else if (op->fails && op->op.status == TERN_E_REMOTE)
		op->op.status = TERN_OK;
	else if (op->op.status == TERN_OK && !op->fails) {
		SIM_CHECK(world, "call", op->seen && op->kind == METHOD, "call %llu was answered by nobody",
			  (unsigned long long)op->id);
		SIM_CHECK(world, "content",
			  op->op.length == op->answer_bytes &&
				  sim_differs(c->answers[op->slot], op->answer_bytes,
					      ANSWER_BYTES + op->id) == op->answer_bytes,
			  "call %llu: another answer", (unsigned long long)op->id);
		SIM_CHECK(world, "content",
			  !op->sink_ok || sim_differs(sink, op->sink_bytes, op->id) == op->sink_bytes,
			  "call %llu ended well, but the bytes of its sink are not there",
			  (unsigned long long)op->id);
	}
	if (late)
		sim_covered(world, SIM_COVER_RPC_LATE);
	sim_op_judge(op, sink, op->sink_bytes);
	SIM_CHECK(world, "buffer", !sim_dev_reaches(world, actor->end->node, sink, op->sink_bytes),
		  "call %llu ended with %s, but a device may still write its sink",
		  (unsigned long long)op->id, tern_status_name(op->op.status));
	c->holder[op->slot] = NULL;
	sim_fill(sink, actor->slot_bytes, CANARY);
	sim_fill(c->answers[op->slot], ANSWER_MAX, CANARY);
	c->left[op->slot].known = true;
	c->left[op->slot].bytes = actor->slot_bytes;
}

static void draw_call(sim_actor *actor, sim_op *op, request *r)
{
	tn_rand *rand = &actor->end->world->work;

	*r = (request){.call = op->id,
		       .sink_bytes =
			       sim_chance(rand, 60) ? sim_load_size(actor->end->world, actor->slot_bytes) : 0,
		       .answer_bytes = (uint32_t)sim_load_size(actor->end->world, ANSWER_MAX),
		       .delay_ns = sim_chance(rand, 40) ? sim_between(rand, 1, 2000) * TN_NS_PER_US : 0,
		       .fails = sim_chance(rand, 5)};
	op->fails = r->fails != 0;
	op->sink_bytes = r->sink_bytes;
	op->answer_bytes = r->answer_bytes;
}

static bool rpc_step(sim_actor *actor)
{
	sim_world *world = actor->end->world;
	caller *c = caller_of(actor);
	unsigned slot = (unsigned)tn_rand_below(&world->work, SIM_SLOTS);
	uint8_t args[4096];
	uint64_t bytes = sizeof(request) + sim_load_size(world, sizeof(args) - sizeof(request));
	tern_rpc_call_params params;
	tern_rpc_sink sink;
	tern_status status;
	request r;
	sim_op *op;

	if (c->holder[slot])
		return false;
	check_left(actor, slot);
	op = sim_op_new(actor, sim_chance(&world->work, 3) ? NO_METHOD : METHOD, bytes, on_done);
	op->slot = slot;
	draw_call(actor, op, &r);
	memcpy(args, &r, sizeof(r));
	sim_fill(args + sizeof(r), bytes - sizeof(r), op->id);
	sink = (tern_rpc_sink){.key = c->keys[slot], .bytes = actor->slot_bytes};
	params = (tern_rpc_call_params){.method = op->kind,
					.args = args,
					.args_bytes = bytes,
					.sinks = &sink,
					.sink_count = r.sink_bytes ? 1 : 0,
					.answer = c->answers[slot],
					.answer_capacity = ANSWER_MAX};
	sim_fill(sim_actor_mine(actor, slot), actor->slot_bytes, CANARY + 1);
	sim_fill(c->answers[slot], ANSWER_MAX, CANARY + 1);
	c->holder[slot] = op;
	status = tern_rpc_call(c->rpc, &params, &op->op);
	if (!sim_op_submitted(op, status)) {
		c->holder[slot] = NULL;
		if (status != TERN_AGAIN && !actor->outlives) { /* its channel ended: another client */
			actor->gave_up = true;
			rpc_close(actor);
			actor->link_number--;
		}
		return false;
	}
	if (sim_chance(&world->work, 2)) { /* closed with calls in flight */
		actor->gave_up = true;
		actor->outlives = false;
		rpc_close(actor);
		actor->link_number--;
		return false;
	}
	return true;
}

static bool rpc_quiet(sim_actor *actor)
{
	for (unsigned slot = 0; actor->open && slot < SIM_SLOTS; slot++)
		check_left(actor, slot);
	return true;
}

static void rpc_free(sim_actor *actor)
{
	free(actor->state);
}

const sim_actor_ops sim_rpc_ops = {.cancel = rpc_cancel,
				   .open = rpc_open,
				   .step = rpc_step,
				   .close = rpc_close,
				   .quiet = rpc_quiet,
				   .free = rpc_free};

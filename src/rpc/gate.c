/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission at the server: which calls run, which wait, which are refused, and in what order those that wait run.
 *
 *   arrives --room, and nobody of its class or a higher one waits--> runs --answered--> (the pump looks again)
 *      |                                                              ^
 *      +--room in the queue--> waits --its turn (pump)----------------+
 *      |                         |--its deadline passed, or cancelled--> answered without running
 *      +--else--> TERN_E_OVERLOAD
 *
 * Turns: the highest class whose limit allows it (LATENCY, NORMAL, BULK), but a class that could have run and was
 * passed over `starve` times comes first; within a class, clients in turn; within a client, the oldest.
 *
 * The pump is deferred work, so that an answer from any thread starts no handler there. Threads: see server.h.
 * Tests: tests/unit/rpc/admit_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/fault.h"
#include "base/time.h"
#include "rpc/server.h"

#define PUMP_MAX 64 /* handlers of one run of the pump: devices want to be polled in between */
#define SWEEP_NS (1 * TN_NS_PER_MS)

static const tern_rpc_class by_rank[TN_RPC_CLASSES] = {TERN_RPC_LATENCY, TERN_RPC_NORMAL, TERN_RPC_BULK};

/* ---- making ---- */

static void pump(tn_work *work);

static uint64_t pick(uint64_t own, const tn_options *options, const char *name)
{
	return own ? own : tn_opt_u64(options, tn_rpc_options, name);
}

rpc_gate *tn_rpc_gate_new(tn_rpc_server *server, const tern_rpc_limits *own)
{
	static const tern_rpc_limits none = {0};
	const tn_options *o = tn_ctx_options(server->ctx);
	rpc_gate *gate = calloc(1, sizeof(*gate));

	if (!gate)
		return NULL;
	if (!own)
		own = &none;
	gate->work.run = pump;
	gate->server = server;
	rpc_lock_init(&gate->lock, server->counters.own);
	for (unsigned c = 0; c < TN_RPC_CLASSES; c++) {
		tn_list_init(&gate->ready[c]);
		tn_list_init(&gate->waiting[c]);
	}
	gate->limits = (rpc_limits){
		.running = pick(own->running_max, o, "running"),
		.running_client = pick(own->running_client_max, o, "running_client"),
		.running_class = {[TERN_RPC_NORMAL] = tn_opt_u64(o, tn_rpc_options, "running_normal"),
				  [TERN_RPC_LATENCY] = tn_opt_u64(o, tn_rpc_options, "running_latency"),
				  [TERN_RPC_BULK] = tn_opt_u64(o, tn_rpc_options, "running_bulk")},
		.queue_bytes = pick(own->queue_bytes_max, o, "queue_bytes"),
		.queue_client_bytes = pick(own->queue_client_bytes_max, o, "queue_client_bytes"),
		.queue_calls = pick(own->queue_calls_max, o, "queue_calls"),
		.starve = tn_opt_u64(o, tn_rpc_options, "starve"),
		.retry_after_ns = tn_opt_u64(o, tn_rpc_options, "retry_after"),
	};
	rpc_lock_take(&server->lock);
	gate->next = server->gates;
	server->gates = gate;
	rpc_lock_drop(&server->lock);
	return gate;
}

void tn_rpc_gate_kick(rpc_gate *gate)
{
	bool work = false;

	rpc_lock_take(&gate->lock);
	for (unsigned c = 0; c < TN_RPC_CLASSES; c++)
		work |= gate->queued[c] > 0;
	work = work && !gate->pumping;
	gate->pumping |= work;
	if (work)
		tn_ctx_defer(gate->server->ctx, &gate->work);
	rpc_lock_drop(&gate->lock);
}

static void gate_free(rpc_gate *gate)
{
	rpc_lock_fini(&gate->lock);
	free(gate);
}

void tn_rpc_gates_free(tn_rpc_server *server)
{
	while (server->gates) {
		rpc_gate *gate = server->gates;
		bool pumping;

		server->gates = gate->next;
		rpc_lock_take(&gate->lock);
		gate->dead = true;
		pumping = gate->pumping; /* its work is in the context's queue, which is run once more */
		rpc_lock_drop(&gate->lock);
		if (!pumping)
			gate_free(gate);
	}
}

static rpc_flow *flow_find(rpc_gate *gate, rpc_record *record)
{
	rpc_flow *flow = atomic_load_explicit(&record->flows, memory_order_acquire);

	while (flow && flow->gate != gate)
		flow = flow->next;
	return flow;
}

/* A record's calls at this gate. Requests come in one thread, which alone adds flows. NULL: out of memory. */
static rpc_flow *flow_get(rpc_gate *gate, rpc_record *record)
{
	rpc_flow *flow = flow_find(gate, record);

	if (TN_LIKELY(flow != NULL))
		return flow;
	flow = TN_FAULT("rpc.flow.alloc") ? NULL : calloc(1, sizeof(*flow));
	if (!flow)
		return NULL;
	flow->gate = gate;
	flow->record = record;
	tn_list_init(&flow->calls);
	flow->next = atomic_load_explicit(&record->flows, memory_order_relaxed);
	atomic_store_explicit(&record->flows, flow, memory_order_release);
	return flow;
}

/* ---- counts; gate->lock held ---- */

static bool within(uint64_t count, uint64_t limit)
{
	return limit == 0 || count < limit;
}

static bool class_may_run(const rpc_gate *gate, unsigned c)
{
	return !gate->closed && within(gate->running, gate->limits.running) &&
	       within(gate->running_class[c], gate->limits.running_class[c]);
}

/* No call at all: what is kept of those that could run is empty. */
static inline bool nobody_waits(const rpc_gate *gate)
{
	_Static_assert(TN_RPC_CLASSES == 3, "all of them");
	return (gate->queued[0] | gate->queued[1] | gate->queued[2]) == 0;
}

/* Every change of what waits or runs ends here. */
static void flow_update(rpc_flow *flow)
{
	rpc_gate *gate = flow->gate;
	bool ready = flow->queued > 0 && within(flow->running, gate->limits.running_client);

	TN_ASSERT((flow->queued == 0) == tn_list_empty(&flow->calls));
	if (ready && !tn_list_linked(&flow->ready))
		tn_list_push_back(&gate->ready[flow->record->service_class], &flow->ready);
	else if (!ready)
		tn_list_remove(&flow->ready);
	if (flow->queued > 0 && !tn_list_linked(&flow->waiting))
		tn_list_push_back(&gate->waiting[flow->record->service_class], &flow->waiting);
	else if (flow->queued == 0)
		tn_list_remove(&flow->waiting);
}

static void run_begin(rpc_flow *flow)
{
	rpc_gate *gate = flow->gate;

	flow->running++;
	gate->running++;
	gate->running_class[flow->record->service_class]++;
}

static void dequeue(tern_rpc_request *req)
{
	rpc_flow *flow = req->flow;
	rpc_gate *gate = flow->gate;
	unsigned c = flow->record->service_class;

	TN_ASSERT(flow->queued > 0 && flow->queued_bytes >= req->args_bytes && gate->queued[c] > 0 &&
		  gate->queued_bytes[c] >= req->args_bytes);
	tn_list_remove(&req->queue_node);
	flow->queued--;
	flow->queued_bytes -= req->args_bytes;
	gate->queued[c]--;
	gate->queued_bytes[c] -= req->args_bytes;
}

/* Something that waits could run: see to it from dispatch. */
static void pump_soon(rpc_gate *gate)
{
	bool work = false;

	for (unsigned c = 0; c < TN_RPC_CLASSES; c++)
		work |= !tn_list_empty(&gate->ready[c]) && class_may_run(gate, c);
	if (!work || gate->pumping)
		return;
	gate->pumping = true;
	tn_ctx_defer(gate->server->ctx, &gate->work);
}

/* ---- arrivals ---- */

/* gate->lock held: nobody waits who comes before this one. */
static bool is_next(const rpc_gate *gate, const rpc_flow *flow)
{
	if (flow->queued > 0 || !within(flow->running, gate->limits.running_client) ||
	    !class_may_run(gate, flow->record->service_class))
		return false;
	if (TN_LIKELY(nobody_waits(gate)))
		return true;
	for (unsigned rank = 0; rank < TN_RPC_CLASSES; rank++) {
		unsigned c = by_rank[rank];

		if (!tn_list_empty(&gate->ready[c]) && class_may_run(gate, c))
			return false;
		if (c == flow->record->service_class)
			break;
	}
	return true;
}

static bool fits(const rpc_gate *gate, const rpc_flow *flow, uint64_t bytes)
{
	const rpc_limits *l = &gate->limits;
	unsigned c = flow->record->service_class;

	return within(gate->queued[c], l->queue_calls) && bytes <= l->queue_bytes &&
	       gate->queued_bytes[c] <= l->queue_bytes - bytes && bytes <= l->queue_client_bytes &&
	       flow->queued_bytes <= l->queue_client_bytes - bytes;
}

/* gate->lock held: move calls of one class that wait in vain to `late`. */
static void collect_late(rpc_gate *gate, unsigned c, uint64_t now_ns, tn_list *late)
{
	tn_list *next;

	for (tn_list *f = gate->waiting[c].next; f != &gate->waiting[c]; f = next) {
		rpc_flow *flow = TN_LIST_ENTRY(f, rpc_flow, waiting);
		tn_list *after;

		next = f->next;
		for (tn_list *n = flow->calls.next; n != &flow->calls; n = after) {
			tern_rpc_request *req = TN_LIST_ENTRY(n, tern_rpc_request, queue_node);

			after = n->next;
			if (req->deadline_ns > now_ns)
				continue;
			dequeue(req);
			req->flow = NULL;
			tn_list_push_back(late, &req->queue_node);
		}
		flow_update(flow);
	}
}

bool tn_rpc_gate_drain(rpc_gate *gate, tn_list *calls)
{
	rpc_lock_take(&gate->lock);
	gate->pumping = false;
	if (gate->dead) {
		rpc_lock_drop(&gate->lock);
		gate_free(gate);
		return false;
	}
	for (unsigned c = 0; c < TN_RPC_CLASSES; c++)
		collect_late(gate, by_rank[c], TN_TIME_NEVER, calls);
	rpc_lock_drop(&gate->lock);
	return true;
}

/* `flow` is NULL already: nobody else ends them. */
static void refuse_late(tn_list *late)
{
	tn_list *node;

	while ((node = tn_list_pop_front(late))) {
		tern_rpc_request *req = TN_LIST_ENTRY(node, tern_rpc_request, queue_node);

		TN_RPC_COUNT(&req->server->counters, expired, 1);
		tn_rpc_request_refuse(req, TERN_E_DEADLINE, 0,
				      "the deadline passed while the call waited at the server");
	}
}

/* gate->lock held, free meanwhile: the queue is full, perhaps of calls that nobody waits for. */
static void sweep(rpc_gate *gate, unsigned c)
{
	uint64_t now = tn_ctx_now(gate->server->ctx);
	tn_list late;

	if (now - gate->swept_ns < SWEEP_NS)
		return;
	gate->swept_ns = now;
	tn_list_init(&late);
	collect_late(gate, c, now, &late);
	rpc_lock_drop(&gate->lock);
	refuse_late(&late);
	rpc_lock_take(&gate->lock);
}

/* gate->lock held. */
static tern_status enqueue(rpc_flow *flow, tern_rpc_request *req, const void *args, uint64_t bytes)
{
	rpc_gate *gate = flow->gate;
	unsigned c = flow->record->service_class;

	req->args = bytes && !TN_FAULT("rpc.queue.alloc") ? malloc(bytes) : NULL;
	if (bytes && !req->args)
		return TERN_E_NOMEM;
	if (bytes)
		memcpy(req->args, args, bytes);
	if (!req->timed)
		tn_rpc_request_time(req);
	req->args_bytes = bytes;
	req->flow = flow;
	tn_list_push_back(&flow->calls, &req->queue_node);
	flow->queued++;
	flow->queued_bytes += bytes;
	gate->queued[c]++;
	gate->queued_bytes[c] += bytes;
	flow_update(flow);
	return TERN_AGAIN;
}

/* gate->lock held, free meanwhile: it can't run now. */
static __attribute__((noinline)) tern_status wait_or_refuse(rpc_flow *flow, tern_rpc_request *req,
							    const void *args, uint64_t bytes)
{
	rpc_gate *gate = flow->gate;
	tern_status status;

	if (!fits(gate, flow, bytes))
		sweep(gate, req->record->service_class);
	status = fits(gate, flow, bytes) ? enqueue(flow, req, args, bytes) : TERN_E_OVERLOAD;
	pump_soon(gate);
	if (status == TERN_AGAIN)
		TN_RPC_COUNT(&gate->server->counters, queued, 1);
	return status;
}

TN_ALWAYS_INLINE tern_status tn_rpc_gate_pass(rpc_gate *gate, tern_rpc_request *req, const void *args,
					      uint64_t bytes)
{
	tern_status status = TERN_OK;
	rpc_flow *flow;

	flow = flow_get(gate, req->record);
	if (!flow)
		return TERN_E_NOMEM;
	rpc_lock_take(&gate->lock);
	if (TN_LIKELY(is_next(gate, flow))) {
		run_begin(flow);
		req->flow = flow;
	} else {
		status = wait_or_refuse(flow, req, args, bytes);
	}
	rpc_lock_drop(&gate->lock);
	return status;
}

tern_status tn_rpc_gate_enter(rpc_gate *gate, tern_rpc_request *req, const void *args, uint64_t bytes)
{
	return tn_rpc_gate_pass(gate, req, args, bytes);
}

/* ---- ends ---- */

TN_ALWAYS_INLINE void tn_rpc_gate_leave(tern_rpc_request *req)
{
	rpc_flow *flow = req->flow;
	rpc_gate *gate;

	if (!flow) /* it never ran: refused, unknown, expired */
		return;
	gate = flow->gate;
	rpc_lock_take(&gate->lock);
	TN_ASSERT(flow->running > 0 && gate->running > 0);
	req->flow = NULL;
	flow->running--;
	gate->running--;
	gate->running_class[flow->record->service_class]--;
	if (TN_UNLIKELY(!nobody_waits(gate))) {
		flow_update(flow);
		pump_soon(gate);
	}
	rpc_lock_drop(&gate->lock);
}

bool tn_rpc_gate_drop(tern_rpc_request *req)
{
	rpc_gate *gate = NULL;
	bool waited;

	/* which flow a request is in may change until its gate's lock is held */
	for (rpc_flow *flow = atomic_load_explicit(&req->record->flows, memory_order_acquire); flow && !gate;
	     flow = flow->next) {
		rpc_lock_take(&flow->gate->lock);
		if (req->flow == flow)
			gate = flow->gate;
		else
			rpc_lock_drop(&flow->gate->lock);
	}
	if (!gate)
		return false;
	waited = tn_list_linked(&req->queue_node);
	if (waited) {
		rpc_flow *flow = req->flow;

		dequeue(req);
		req->flow = NULL;
		flow_update(flow);
	}
	rpc_lock_drop(&gate->lock);
	return waited;
}

/* ---- the pump ---- */

/* gate->lock held: whose turn it is, NULL: nobody's. */
static rpc_flow *next_flow(rpc_gate *gate)
{
	int best = -1;

	for (unsigned rank = 0; rank < TN_RPC_CLASSES; rank++) {
		unsigned c = by_rank[rank];

		if (tn_list_empty(&gate->ready[c]))
			gate->passed_over[c] = 0;
		else if (!class_may_run(gate, c))
			continue;
		else if (best < 0 || (gate->limits.starve && gate->passed_over[c] >= gate->limits.starve))
			best = (int)c; /* the lowest of those that starve */
	}
	if (best < 0)
		return NULL;
	for (unsigned c = 0; c < TN_RPC_CLASSES; c++)
		gate->passed_over[c] += !tn_list_empty(&gate->ready[c]) && class_may_run(gate, c);
	gate->passed_over[best] = 0;
	return TN_LIST_FIRST(&gate->ready[best], rpc_flow, ready);
}

/* gate->lock held: the next call, counted as running; NULL: none may run now. */
static tern_rpc_request *take_next(rpc_gate *gate)
{
	rpc_flow *flow = next_flow(gate);
	tern_rpc_request *req;

	if (!flow)
		return NULL;
	req = TN_LIST_FIRST(&flow->calls, tern_rpc_request, queue_node);
	dequeue(req);
	run_begin(flow);
	tn_list_remove(&flow->ready); /* to the end of the line */
	flow_update(flow);
	return req;
}

static void run_queued(tern_rpc_request *req)
{
	void *args = req->args; /* the request may be gone when its handler returns */

	req->args = NULL;
	if (req->deadline_ns <= tn_ctx_now(req->server->ctx)) {
		TN_RPC_COUNT(&req->server->counters, expired, 1);
		tn_rpc_request_refuse(req, TERN_E_DEADLINE, 0,
				      "the deadline passed while the call waited at the server");
	} else {
		tn_rpc_request_run(req, args, req->args_bytes);
	}
	free(args);
}

static void pump(tn_work *work)
{
	rpc_gate *gate = (rpc_gate *)work;
	tern_rpc_request *req = NULL;

	rpc_lock_take(&gate->lock);
	if (gate->dead) {
		rpc_lock_drop(&gate->lock);
		gate_free(gate);
		return;
	}
	for (unsigned n = 0; n < PUMP_MAX && (req = take_next(gate)); n++) {
		rpc_lock_drop(&gate->lock);
		run_queued(req);
		rpc_lock_take(&gate->lock);
	}
	gate->pumping = false;
	pump_soon(gate);
	rpc_lock_drop(&gate->lock);
}

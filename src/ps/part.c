/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one server does of an operation: made, sent, answered, sent again. client.h draws its life.
 *
 * Where rows go: into the caller's memory if the server can reach it as they lie there (shm: always; else if they lie
 * close and all are this server's), else into a buffer of the part, from which they are copied. Gradients: read from
 * the caller's memory, or from a buffer, where the server reads this side's memory; else they travel in the message.
 *
 * Threads: see client.h. Tests: tests/unit/ps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/time.h"
#include "ps/client.h"
#include "ps/split.h"
#include "rpc/direct.h"

static void on_answer(tern_op *op, void *arg);
static void on_timer(tn_ctx_timer *timer);

/* ---- made ---- */

static void free_buffer(tern_ps *ps, ps_part *part)
{
	tern_mem_free(ps->mem, part->buffer); /* its key goes with it */
	part->buffer = NULL;
	part->buffer_room = 0;
}

void tn_ps_part_release(tern_ps *ps, ps_part *part)
{
	tn_ps_route_put(ps, part->route);
	part->route = NULL;
	part->host = NULL;
	if (part->buffer_room > TN_PS_KEEP_MAX)
		free_buffer(ps, part);
	tn_list_push_front(&ps->spare_parts, &part->node);
}

void tn_ps_parts_free(tern_ps *ps)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&ps->spare_parts))) {
		ps_part *part = TN_CONTAINER_OF(node, ps_part, node);

		tn_ctx_timer_cancel(ps->ctx, &part->timer);
		free_buffer(ps, part);
		free(part->keys_buf);
		free(part->places_buf);
		free(part->bags_buf);
		free(part->answer);
		free(part);
	}
}

ps_part *tn_ps_part_new(ps_call *call, ps_route *route, uint32_t server)
{
	tern_ps *ps = call->ps;
	tn_list *node;
	ps_part *part;

	rpc_lock_take(&ps->lock);
	node = tn_list_pop_front(&ps->spare_parts);
	part = node ? TN_CONTAINER_OF(node, ps_part, node)
		    : (TN_FAULT("ps.part.alloc") ? NULL : calloc(1, sizeof(*part)));
	if (part) { /* whole before somebody who gives up or takes back can see it */
		memset(&part->node, 0, sizeof(part->node));
		part->call = call;
		part->route = route;
		route->refs++;
		part->host = server == TN_PS_NOBODY ? NULL : route->hosts[server];
		part->server = server;
		part->version = route->version;
		part->timer.run = on_timer;
		tn_list_push_back(&call->parts, &part->node);
	}
	rpc_lock_drop(&ps->lock);
	if (!part)
		return NULL;
	part->tries = 0;
	part->packed = part->maybe = part->divided = part->refused = part->look = false;
	part->places = NULL;
	part->keys = NULL;
	part->count = 0;
	part->bags = 0;
	part->result = NULL;
	atomic_fetch_add_explicit(&call->pending, 1, memory_order_relaxed);
	return part;
}

bool tn_ps_grow(void *buf, uint64_t *room, uint64_t bytes)
{
	void **place = buf;
	uint64_t want = *room ? *room : 4096;
	void *p;

	if (bytes <= *room)
		return true;
	while (want < bytes)
		want *= 2;
	p = TN_FAULT("ps.part.buffer") ? NULL : realloc(*place, want);
	if (!p)
		return false;
	*place = p;
	*room = want;
	return true;
}

bool tn_ps_part_reserve(ps_part *part, uint64_t keys)
{
	uint64_t bytes = part->keys_room * sizeof(uint64_t), half = part->keys_room * sizeof(uint32_t);

	if (!tn_ps_grow(&part->keys_buf, &bytes, keys * sizeof(uint64_t)) ||
	    !tn_ps_grow(&part->places_buf, &half, keys * sizeof(uint32_t)))
		return false;
	part->keys_room = TN_MIN(bytes / sizeof(uint64_t), half / sizeof(uint32_t));
	return true;
}

/* Parts that were made and will not be sent are not counted: they stay in the list until the call ends. */
static uint32_t unmake(ps_call *call, uint32_t made)
{
	atomic_fetch_sub_explicit(&call->pending, made, memory_order_relaxed);
	return 0;
}

/* All keys of the call, for the only server. */
static uint32_t whole(ps_call *call, ps_route *route, ps_part **made)
{
	made[0] = tn_ps_part_new(call, route, 0);
	if (!made[0])
		return 0;
	made[0]->keys = call->keys;
	made[0]->count = call->count;
	return 1;
}

static uint32_t split(ps_call *call, const ps_part *from, ps_route *route, ps_part **made)
{
	const uint64_t *keys = from ? from->keys : call->keys;
	uint64_t count = from ? from->count : call->count, counts[TN_PS_OWNERS];
	uint64_t *keys_out[TN_PS_OWNERS];
	uint32_t *places_out[TN_PS_OWNERS], n = 0;
	const uint32_t *places = from ? from->places : NULL;

	if (call->pool && !places && !(places = tn_ps_bags_of_keys(call)))
		return 0;
	tn_ps_split_count(&route->owners, keys, count, counts);
	for (uint32_t s = 0; s < TN_PS_OWNERS; s++) {
		ps_part *part;

		if (counts[s] == 0)
			continue;
		part = tn_ps_part_new(call, route, s);
		if (!part)
			return unmake(call, n);
		made[n++] = part;
		if (!tn_ps_part_reserve(part, counts[s]))
			return unmake(call, n);
		part->count = counts[s];
		part->keys = keys_out[s] = part->keys_buf;
		part->places = places_out[s] = part->places_buf;
		part->divided = from != NULL;
		part->maybe = from && from->maybe;
	}
	tn_ps_split_fill(&route->owners, keys, places, count, keys_out, places_out);
	return n;
}

uint32_t tn_ps_parts_split(ps_call *call, const ps_part *from, ps_part **made)
{
	ps_route *route = tn_ps_route_hold(call->ps);
	bool one = route->servers == 1 && route->owners.owner[0] == 0 && !from;
	uint32_t n = one ? whole(call, route, made) : split(call, from, route, made);

	TN_ASSERT(from ? from->count > 0 : call->count > 0);
	tn_ps_route_release(call->ps, route);
	return n;
}

/* ---- rows ---- */

static bool buffer_reserve(ps_part *part, uint64_t bytes)
{
	tern_ps *ps = part->call->ps;
	uint32_t access = TERN_ACCESS_READ | TERN_ACCESS_WRITE;
	uint64_t room = 65536;
	void *p;

	if (bytes <= part->buffer_room)
		return true;
	while (room < bytes)
		room *= 2;
	free_buffer(ps, part);
	if (TN_FAULT("ps.part.buffer") ||
	    tern_mem_alloc(ps->mem, room, 4096, access, TERN_MEM_HOST, &p) != TERN_OK)
		return false;
	part->buffer = p;
	if (tern_mem_export(ps->mem, p, room, access, &part->buffer_key) != TERN_OK) {
		free_buffer(ps, part);
		return false;
	}
	part->buffer_room = room;
	return true;
}

static uint8_t *row_of(const ps_part *part, uint64_t i)
{
	const ps_call *call = part->call;

	return call->rows + (part->places ? part->places[i] : i) * call->stride;
}

static void gather_rows(const ps_part *part, uint8_t *to)
{
	const ps_call *call = part->call;

	if (!part->places && call->stride == call->row_bytes)
		memcpy(to, call->rows, part->count * call->row_bytes);
	else
		for (uint64_t i = 0; i < part->count; i++)
			memcpy(to + i * call->row_bytes, row_of(part, i), call->row_bytes);
	TN_PS_COUNT(call->ps->counters, copies, 1);
	TN_PS_COUNT(call->ps->counters, copy_bytes, part->count * call->row_bytes);
}

/* ---- sent ---- */

static bool is_packed(const ps_part *part)
{
	return part->packed || atomic_load_explicit(&part->host->packed, memory_order_relaxed);
}

#define ANSWER_ROWS_MAX (8u << 10) /* above, a one-sided write costs less than the copies that it saves */

/* Where rows go or are read: the sink, and what of it goes into the head. False: no memory. */
static bool place_rows(ps_part *part, tn_ps_batch *head, tern_rpc_sink *sink, unsigned *sinks)
{
	const ps_call *call = part->call;
	bool packed = is_packed(part), close = !part->places && call->stride == call->row_bytes;
	bool plain = call->kind == PS_PUSH || tn_ps_part_plain(part);
	uint64_t bytes = tn_ps_part_rows(part) * call->travel_bytes;

	*sinks = 1;
	part->in_buffer = false;
	if (call->kind == PS_PUSH ? packed : (packed || !plain) && bytes <= ANSWER_ROWS_MAX) {
		*sinks = 0;
		head->flags |= call->kind == PS_PUSH ? TN_PS_INLINE : TN_PS_ANSWER_ROWS;
		return true;
	}
	if (call->lease && plain && (!packed || close)) {
		*sink = (tern_rpc_sink){.key = call->lease->key, .bytes = call->lease_bytes};
		head->flags |= part->places ? TN_PS_PLACES : 0;
		head->stride = call->stride;
		return true;
	}
	part->in_buffer = true;
	if (!buffer_reserve(part, bytes))
		return false;
	if (call->kind == PS_PUSH)
		gather_rows(part, part->buffer);
	*sink = (tern_rpc_sink){.key = part->buffer_key, .bytes = bytes};
	return true;
}

static uint64_t low_water(tern_ps *ps)
{
	uint64_t low;

	rpc_lock_take(&ps->lock);
	low = tn_list_empty(&ps->pushes) ? ps->next_seq
					 : TN_CONTAINER_OF(ps->pushes.next, ps_call, push_node)->seq;
	rpc_lock_drop(&ps->lock);
	return low;
}

#define BEHIND_BYTES \
	16384u /* gradients; fewer are copied sooner than they are sent as a piece of their own */

/* Do gradients go out of the caller's memory, behind the arguments that are built? Those that lie close. */
static bool grads_behind(const ps_part *part, const tn_ps_batch *head)
{
	const ps_call *call = part->call;

	return head->flags & TN_PS_INLINE && !part->places && call->stride == call->row_bytes &&
	       part->count * call->row_bytes >= BEHIND_BYTES;
}

/* Head, keys, places, bags, gradients but for those behind, in a buffer of the call to come. NULL: no memory. */
static uint8_t *build_args(ps_part *part, const tn_ps_batch *head, uint64_t *bytes)
{
	const ps_call *call = part->call;
	uint64_t keys = part->count * sizeof(uint64_t);
	uint64_t places = head->flags & TN_PS_PLACES ? part->count * sizeof(uint32_t) : 0;
	uint64_t grads =
		head->flags & TN_PS_INLINE && !grads_behind(part, head) ? part->count * call->row_bytes : 0;
	uint64_t bags =
		head->flags & TN_PS_POOLED ? TN_PS_BAGS_BYTES + tn_ps_part_rows(part) * sizeof(uint32_t) : 0;
	uint8_t *args, *at;

	*bytes = TN_PS_BATCH_BYTES + keys + places + bags + grads;
	args = TN_FAULT("ps.part.buffer") ? NULL : tn_rpc_args_take(part->host->rpc, *bytes);
	if (!args)
		return NULL;
	at = args + TN_PS_BATCH_BYTES;
	tn_ps_batch_encode(args, head);
	memcpy(at, part->keys, keys);
	if (places)
		memcpy(at + keys, part->places, places);
	if (bags)
		tn_ps_part_put_bags(part, at + keys);
	if (grads)
		gather_rows(part, at + keys);
	return args;
}

static const struct {
	uint32_t method;
	tern_rpc_class service_class;
} kinds[] = {
	[PS_PULL] = {TN_PS_PULL, TERN_RPC_LATENCY},
	[PS_PUSH] = {TN_PS_PUSH, TERN_RPC_BULK},
	[PS_ERASE] = {TN_PS_ERASE, TERN_RPC_NORMAL},
};

static tern_status no_memory(const ps_part *part)
{
	return tn_fail(TERN_E_NOMEM, "no memory for an operation with %llu keys",
		       (unsigned long long)part->count);
}

/* TERN_OK: on_answer follows. */
static tern_status send_call(ps_part *part, uint64_t now)
{
	const ps_call *call = part->call;
	tern_ps *ps = call->ps;
	tn_ps_batch head = {
		.how = call->how,
		.flags = (uint8_t)((call->found ? TN_PS_FOUND : 0) | (call->pool ? TN_PS_POOLED : 0)),
		.dtype = (uint8_t)call->travel,
		.lr_scale = call->lr_scale,
		.table = call->table->id,
		.schema = call->table->hash,
		.map_version = part->divided ? 0 : part->version,
		.count = part->count,
		.step = call->step,
		.client = ps->id};
	tern_rpc_call_params params = {.method = kinds[call->kind].method,
				       .service_class = kinds[call->kind].service_class,
				       .flags = TERN_RPC_IDEMPOTENT};
	tern_rpc_sink sink;
	bool behind;

	if (call->kind == PS_PUSH) {
		head.seq = call->seq;
		head.low_water = low_water(ps);
		atomic_store_explicit(&part->host->pushed, true, memory_order_relaxed);
	}
	if (call->pool && part->places && !tn_ps_part_bags(part))
		return no_memory(part);
	if (call->kind != PS_ERASE && !place_rows(part, &head, &sink, &params.sink_count))
		return no_memory(part);
	params.answer_capacity =
		TN_PS_ANSWER_BYTES + (call->found ? (part->count + 7) / 8 : 0) +
		(head.flags & TN_PS_ANSWER_ROWS ? tn_ps_part_rows(part) * call->travel_bytes : 0);
	if (!tn_ps_grow(&part->answer, &part->answer_room, params.answer_capacity))
		return no_memory(part);
	behind = grads_behind(part, &head);
	params.args = build_args(part, &head, &params.args_bytes);
	if (!params.args)
		return no_memory(part);
	params.sinks = &sink;
	params.answer = part->answer;
	tern_op_init(&part->op, on_answer, part);
	part->op.timeout_ns = call->deadline_ns - now;
	return tn_rpc_call_built(part->host->rpc, &params, behind ? call->rows : NULL,
				 behind ? part->count * call->row_bytes : 0, &part->op);
}

static void part_done(ps_part *part)
{
	tn_ps_call_put(part->call);
}

static void part_fault(ps_part *part, tern_status status, const char *text)
{
	tern_status said = status;

	if (!part->host) {
		tn_ps_call_fault(
			part->call, status,
			"no server has the slots of %llu keys: theirs is down, and no backup was in sync: %s",
			(unsigned long long)part->count, text ? text : tern_status_text(status));
		return;
	}
	if (part->maybe && tern_status_radius(status) != TERN_RADIUS_CALLER)
		said = TERN_E_INDETERMINATE;
	tn_ps_call_fault(part->call, said, "server %u at %s: %s%s", part->server, part->host->address,
			 said == status ? "" : "the push may have been applied: ",
			 text && text[0] ? text : tern_status_text(status));
}

/* Try it again after a pause. */
static void again(ps_part *part, uint64_t pause_ns)
{
	tern_ps *ps = part->call->ps;
	uint64_t pause = ps->retry_ns << TN_MIN(part->tries, 20u);

	TN_PS_COUNT(ps->counters, retries, 1);
	part->tries++;
	pause = TN_MAX(TN_MIN(pause, ps->retry_ns * TN_PS_RETRY_MAX), pause_ns);
	atomic_store_explicit(&part->waiting, true, memory_order_release);
	tn_ctx_timer_set(ps->ctx, &part->timer, tn_ctx_now(ps->ctx) + pause);
}

/* Try it again after a pause, when a newer map was asked for. */
static void look_again(ps_part *part)
{
	part->look = true;
	again(part, 0);
}

static bool ended_early(ps_part *part, uint64_t now)
{
	ps_call *call = part->call;

	if (atomic_load_explicit(&call->canceled, memory_order_seq_cst))
		part_fault(part, TERN_E_CANCELED, "the operation was given up");
	else if (now >= call->deadline_ns)
		part_fault(part, TERN_E_DEADLINE, "the deadline passed between two tries");
	else
		return false;
	part_done(part);
	return true;
}

tern_status tn_ps_part_send(ps_part *part, bool first)
{
	ps_call *call = part->call;
	tern_ps *ps = call->ps;
	uint64_t now = tn_ctx_now(ps->ctx);
	tern_status status;

	if (!first && ended_early(part, now))
		return TERN_OK;
	if (!part->host) {
		look_again(part);
		return TERN_OK;
	}
	atomic_fetch_add_explicit(&call->pending, 1, memory_order_relaxed); /* the part may end at once */
	status = send_call(part, now);
	if (status == TERN_OK) {
		if (atomic_load_explicit(&call->canceled, memory_order_seq_cst))
			(void)tern_rpc_cancel(part->host->rpc, &part->op);
	} else if (!first && status == TERN_AGAIN) {
		again(part, 0);
	} else if (!first) {
		part_fault(part, status, tern_detail());
		part_done(part);
	}
	if (first && status != TERN_OK) {
		atomic_fetch_sub_explicit(&call->pending, 1, memory_order_relaxed);
		return status;
	}
	tn_ps_call_put(call);
	return TERN_OK;
}

static void on_timer(tn_ctx_timer *timer)
{
	ps_part *part = TN_CONTAINER_OF(timer, ps_part, timer);

	if (!atomic_exchange_explicit(&part->waiting, false, memory_order_acq_rel))
		return;
	if (part->look) {
		part->look = false;
		tn_ps_map_want(part->call->ps, part, NULL);
	} else {
		(void)tn_ps_part_send(part, false);
	}
}

void tn_ps_part_cancel(ps_part *part)
{
	tern_ps *ps = part->call->ps;

	if (part->host)
		(void)tern_rpc_cancel(part->host->rpc, &part->op);
	if (atomic_load_explicit(&part->waiting, memory_order_acquire))
		tn_ctx_timer_set(ps->ctx, &part->timer, tn_ctx_now(ps->ctx));
}

/* ---- answered ---- */

void tn_ps_part_mapped(ps_part *part)
{
	ps_call *call = part->call;
	tern_ps *ps = call->ps;
	ps_route *route = tn_ps_route_hold(ps);
	bool newer = route->version != part->version;
	ps_part *made[TN_PS_OWNERS];
	uint32_t n;

	tn_ps_route_release(ps, route);
	if (ended_early(part, tn_ctx_now(ps->ctx)))
		return;
	if (!newer) { /* servers do not agree yet, or all is as it was */
		if (part->host && !part->refused)
			(void)tn_ps_part_send(part, false);
		else if (part->host)
			again(part, 0);
		else
			look_again(part);
		return;
	}
	n = tn_ps_parts_split(call, part, made);
	if (n == 0) {
		look_again(part);
		return;
	}
	TN_PS_COUNT(ps->counters, reroutes, 1);
	for (uint32_t i = 0; i < n; i++)
		(void)tn_ps_part_send(made[i], false);
	part_done(part);
}

static void deliver(ps_part *part, const tn_ps_answer *a)
{
	ps_call *call = part->call;

	if (a->rows || (call->kind == PS_PULL && part->in_buffer))
		tn_ps_part_take(part, a->rows ? a->rows : part->buffer);
	else if (call->pool)
		call->whole = true; /* the server wrote them */
	for (uint64_t i = 0; call->found && a->found_bits && i < part->count; i++)
		call->found[part->places ? part->places[i] : i] = a->found_bits[i / 8] >> (i % 8) & 1;
	atomic_fetch_add_explicit(&call->length, call->kind == PS_PULL ? a->found : a->applied,
				  memory_order_relaxed);
	if (a->status != TERN_OK)
		part_fault(part, a->status,
			   a->status == TERN_E_NOT_FOUND ? "a key has no row"
			   : a->status == TERN_E_BUDGET  ? "the table's budget is spent: some keys got no row"
			   : a->status == TERN_E_CORRUPT ? "a gradient is not finite: nothing was applied"
			   : a->status == TERN_E_INVALID ? "a key is past the last row of a dense table"
			   : a->status == TERN_E_TOO_LARGE
				   ? "its images do not fit into one message to a backup: split it"
				   : NULL);
	part_done(part);
}

static bool is_managed(tern_ps *ps)
{
	ps_route *route = tn_ps_route_hold(ps);
	bool managed = route->managed;

	tn_ps_route_release(ps, route);
	return managed;
}

static void answered(ps_part *part, uint64_t bytes)
{
	ps_host *host = part->host;
	tn_ps_answer a;

	if (!tn_ps_answer_decode(part->answer, bytes, part->call->pool ? tn_ps_part_rows(part) : part->count,
				 part->call->found, part->call->travel_bytes, &a)) {
		part_fault(part, TERN_E_PROTOCOL, "its answer can't be read: another version?");
		part_done(part);
		return;
	}
	part->refused = a.flags & TN_PS_WRONG_SERVER;
	if (part->refused) {
		tn_ps_map_want(part->call->ps, part, host);
		return;
	}
	part->packed = a.flags & TN_PS_NEED_PACKED;
	if (part->call->kind != PS_ERASE) /* what the server can do for this side now */
		atomic_store_explicit(&host->packed, !(a.flags & TN_PS_DIRECT), memory_order_relaxed);
	if (part->packed) {
		(void)tn_ps_part_send(part, false);
		return;
	}
	if (a.flags & TN_PS_RUNNING && part->tries % 4 == 3 && is_managed(part->call->ps))
		look_again(part); /* a server that is cut off from the others says so all the time */
	else if (a.flags & TN_PS_RUNNING)
		again(part, 0);
	else
		deliver(part, &a);
}

/* May another try end better? managed: another server may have taken over. */
static bool worth_a_try(tern_status status, bool managed)
{
	switch (status) {
	case TERN_E_INDETERMINATE:
	case TERN_E_OVERLOAD:
	case TERN_E_LANE:
	case TERN_E_PEER_LOST:
	case TERN_E_PEER_RESTARTED:
	case TERN_E_PEER_CLOSED:
		return true;
	case TERN_E_CANCELED: /* not by the user: taken back */
	case TERN_E_UNREACHABLE:
	case TERN_E_REFUSED:
	case TERN_E_NO_METHOD: /* a server that ends */
		return managed;
	default:
		return false;
	}
}

static void failed(ps_part *part, tern_status status, uint64_t pause_ns)
{
	bool given_up = atomic_load_explicit(&part->call->canceled, memory_order_seq_cst);
	bool managed = is_managed(part->call->ps), retry = worth_a_try(status, managed) && !given_up;

	if (part->call->kind == PS_PUSH && status != TERN_E_OVERLOAD && status != TERN_E_NO_METHOD &&
	    (retry || status == TERN_E_DEADLINE))
		part->maybe = true;
	if (!retry) {
		part_fault(part, status, tern_detail());
		part_done(part);
	} else if (status == TERN_E_OVERLOAD || !managed) {
		again(part, pause_ns);
	} else {
		look_again(part);
	}
}

static void on_answer(tern_op *op, void *arg)
{
	ps_part *part = arg;

	if (op->status == TERN_OK)
		answered(part, op->length);
	else
		failed(part, op->status, op->status == TERN_E_OVERLOAD ? op->length : 0);
}

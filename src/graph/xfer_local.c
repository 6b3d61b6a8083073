/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer between threads of one process: the readable reference of the interface, and what tests train
 * on. A hub holds all edges; a device's transfer is a handle into it. One write per tensor: a memcpy from the
 * sender's memory into the receiver's slot.
 *
 *   slot    free -> filling -> full -> held -> free          (ring: full ones are oldest first)
 *   edge    free + filling + full + held == slots
 *
 * In lazy mode the copy happens only after some polls by either side, so that whoever writes a buffer that is
 * still being sent, or reads a slot too early, gets wrong numbers.
 *
 * Thread story: one mutex for the hub's state; tensors are copied outside of it unless lazy. A device's
 * functions are called from one thread, wake() from any. Tests: tests/unit/graph/xfer_test.c.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "graph/xfer.h"

#define SLOTS_MAX 16u

typedef struct local_edge local_edge;
typedef struct local_xfer local_xfer;

typedef struct local_end {
	tn_xfer_end base;
	local_edge *edge;
} local_end;

struct local_edge {
	tn_edge_desc desc; /* of whoever opened first */
	bool opened[2];    /* sender, receiver */
	uint32_t device[2];
	local_end end[2];
	unsigned char *slot[SLOTS_MAX]; /* own memory, or ranges of a whole's */
	uint32_t oldest;                /* slot that is held, or else polled next */
	uint32_t used;                  /* filling + full + held */
	uint32_t full;
	bool held;
	const void *lazy_source; /* lazy mode: posted and not copied yet */
	uint32_t lazy_delay;
};

/* The memory of a whole of which several edges are parts. */
typedef struct local_whole {
	struct local_whole *next;
	uint32_t device, number;
	unsigned char *slot[SLOTS_MAX];
} local_whole;

struct local_xfer {
	tn_xfer base;
	tn_local_hub *hub;
	uint32_t device;
	pthread_cond_t changed;
	uint64_t events, seen; /* something may have changed since the last wait */
	tn_xfer_counters counters;
	bool open;
};

struct tn_local_hub {
	pthread_mutex_t lock;
	tn_local_params params;
	uint64_t random;
	local_edge **edges; /* by id */
	local_whole *wholes;
	uint32_t n_edges;
	local_xfer *xfers;
	bool *closed; /* per device */
};

/* ---- under the lock ---- */

static void touch(tn_local_hub *hub, uint32_t device)
{
	local_xfer *x = &hub->xfers[device];

	if (!x->open)
		return;
	x->events++;
	pthread_cond_signal(&x->changed);
}

static uint32_t draw(tn_local_hub *hub, uint32_t below)
{
	hub->random = hub->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(hub->random >> 33) % below;
}

static uint32_t newest(const tn_local_hub *hub, const local_edge *edge)
{
	return (edge->oldest + edge->used - 1) % hub->params.slots;
}

static void filled(tn_local_hub *hub, local_edge *edge)
{
	edge->full++;
	TN_ASSERT(edge->full + (edge->held ? 1 : 0) <= edge->used && edge->used <= hub->params.slots);
	touch(hub, edge->device[1]);
	touch(hub, edge->device[0]);
}

/* One poll by either side of a posted tensor in lazy mode. */
static void lazy_poll(tn_local_hub *hub, local_edge *edge, bool now)
{
	if (!edge->lazy_source)
		return;
	if (edge->lazy_delay > 0 && !now) {
		edge->lazy_delay--;
		return;
	}
	memcpy(edge->slot[newest(hub, edge)], edge->lazy_source, edge->desc.bytes);
	edge->lazy_source = NULL;
	filled(hub, edge);
}

/* ---- opening ---- */

static tern_status make_slots(tn_local_hub *hub, uint64_t bytes, unsigned char **slot)
{
	uint64_t rounded = (TN_MAX(bytes, 1) + 63) / 64 * 64;

	for (uint32_t i = 0; i < hub->params.slots; i++) {
		slot[i] = aligned_alloc(64, rounded);
		if (slot[i])
			continue;
		while (i-- > 0)
			free(slot[i]);
		return tn_fail(TERN_E_NOMEM, "no memory for %u slots of %" PRIu64 " bytes", hub->params.slots,
			       bytes);
	}
	return TERN_OK;
}

/* The receiver's slots: of its own, or ranges of those of the whole. */
static tern_status receiver_slots(tn_local_hub *hub, uint32_t device, local_edge *e, const tn_edge_desc *desc)
{
	local_whole *w = hub->wholes;

	if (!desc->whole_bytes)
		return make_slots(hub, desc->bytes, e->slot);
	while (w && (w->device != device || w->number != desc->whole))
		w = w->next;
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w || make_slots(hub, desc->whole_bytes, w->slot) != TERN_OK) {
			free(w);
			return tn_fail(TERN_E_NOMEM,
				       "no memory for the parts of a tensor of %" PRIu64 " bytes",
				       desc->whole_bytes);
		}
		w->device = device;
		w->number = desc->whole;
		w->next = hub->wholes;
		hub->wholes = w;
	}
	for (uint32_t i = 0; i < hub->params.slots; i++)
		e->slot[i] = w->slot[i] + desc->whole_offset;
	return TERN_OK;
}

static tern_status find_edge(tn_local_hub *hub, const tn_edge_desc *desc, local_edge **edge)
{
	if (desc->id >= hub->n_edges) {
		uint32_t n = TN_MAX(desc->id + 1, hub->n_edges * 2);
		local_edge **bigger = realloc(hub->edges, n * sizeof(local_edge *));

		if (!bigger)
			return tn_fail(TERN_E_NOMEM, "no memory for %u edges", n);
		memset(bigger + hub->n_edges, 0, (n - hub->n_edges) * sizeof(*bigger));
		hub->edges = bigger;
		hub->n_edges = n;
	}
	if (!hub->edges[desc->id]) {
		local_edge *e = calloc(1, sizeof(*e));

		if (!e)
			return tn_fail(TERN_E_NOMEM, "no memory for edge '%s'", desc->name);
		e->desc = *desc;
		hub->edges[desc->id] = e;
	}
	*edge = hub->edges[desc->id];
	return TERN_OK;
}

static tern_status open_side(local_xfer *x, const tn_edge_desc *desc, uint32_t side, tn_xfer_end **end)
{
	local_edge *e = NULL;
	tern_status st = find_edge(x->hub, desc, &e);

	if (st != TERN_OK)
		return st;
	if (e->opened[side])
		return tn_fail(TERN_E_EXISTS, "edge %u '%s' is open already", desc->id, desc->name);
	if (e->desc.bytes != desc->bytes || e->desc.dtype != desc->dtype)
		return tn_fail(TERN_E_SHAPE, "edge %u '%s': the ends differ in type or shape", desc->id,
			       desc->name);
	if (side == 1) {
		st = receiver_slots(x->hub, x->device, e, desc);
		if (st != TERN_OK)
			return st;
		e->desc.whole_bytes = desc->whole_bytes;
	}
	e->opened[side] = true;
	e->device[side] = x->device;
	e->device[1 - side] = desc->peer;
	e->end[side] = (local_end){.base = {.xfer = &x->base}, .edge = e};
	touch(x->hub, desc->peer);
	*end = &e->end[side].base;
	return TERN_OK;
}

static tern_status local_open(tn_xfer *xfer, const tn_edge_desc *desc, uint32_t side, tn_xfer_end **end)
{
	local_xfer *x = (local_xfer *)xfer;
	tern_status st;

	if (desc->peer >= x->hub->params.devices)
		return tn_fail(TERN_E_INVALID, "edge '%s': no device %u", desc->name, desc->peer);
	pthread_mutex_lock(&x->hub->lock);
	st = open_side(x, desc, side, end);
	pthread_mutex_unlock(&x->hub->lock);
	return st;
}

static tern_status local_send_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return local_open(xfer, desc, 0, end);
}

static tern_status local_recv_open(tn_xfer *xfer, const tn_edge_desc *desc, tn_xfer_end **end)
{
	return local_open(xfer, desc, 1, end);
}

/* ---- memory ---- */

static tern_status local_alloc(tn_xfer *xfer, uint64_t bytes, void **ptr)
{
	uint64_t rounded = (TN_MAX(bytes, 1) + 63) / 64 * 64;

	(void)xfer;
	*ptr = aligned_alloc(64, rounded);
	if (!*ptr)
		return tn_fail(TERN_E_NOMEM, "no memory for %" PRIu64 " bytes", bytes);
	memset(*ptr, 0, rounded);
	return TERN_OK;
}

static void local_free(tn_xfer *xfer, void *ptr)
{
	(void)xfer;
	free(ptr);
}

/* ---- waiting ---- */

/* Blocks until an event or the deadline; returns false at the deadline. Under the lock. */
static bool sleep_until(local_xfer *x, uint64_t deadline_ns)
{
	struct timespec at = {.tv_sec = (time_t)(deadline_ns / TN_NS_PER_SEC),
			      .tv_nsec = (long)(deadline_ns % TN_NS_PER_SEC)};

	while (x->events == x->seen) {
		if (deadline_ns == TN_TIME_NEVER)
			pthread_cond_wait(&x->changed, &x->hub->lock);
		else if (pthread_cond_timedwait(&x->changed, &x->hub->lock, &at) != 0)
			return false;
	}
	x->seen = x->events;
	return true;
}

/* In lazy mode polls are what makes progress, so nobody may sleep while a tensor is under way. */
static bool lazy_pending(const local_xfer *x)
{
	for (uint32_t i = 0; i < x->hub->n_edges; i++) {
		const local_edge *e = x->hub->edges[i];

		if (e && e->lazy_source && (e->device[0] == x->device || e->device[1] == x->device))
			return true;
	}
	return false;
}

static tern_status local_wait(tn_xfer *xfer, uint64_t deadline_ns)
{
	local_xfer *x = (local_xfer *)xfer;
	bool yield;

	pthread_mutex_lock(&x->hub->lock);
	yield = deadline_ns == 0 || lazy_pending(x);
	if (!yield)
		sleep_until(x, deadline_ns);
	pthread_mutex_unlock(&x->hub->lock);
	if (yield)
		sched_yield();
	return TERN_OK;
}

static void local_wake(tn_xfer *xfer)
{
	local_xfer *x = (local_xfer *)xfer;

	pthread_mutex_lock(&x->hub->lock);
	touch(x->hub, x->device);
	pthread_mutex_unlock(&x->hub->lock);
}

/* An edge of this device that the other side has not opened. */
static const local_edge *half_open(const local_xfer *x)
{
	for (uint32_t i = 0; i < x->hub->n_edges; i++) {
		const local_edge *e = x->hub->edges[i];

		if (e && e->opened[0] != e->opened[1] && e->device[e->opened[0] ? 0 : 1] == x->device)
			return e;
	}
	return NULL;
}

static tern_status local_start(tn_xfer *xfer, uint64_t deadline_ns)
{
	local_xfer *x = (local_xfer *)xfer;
	const local_edge *e;
	tern_status st = TERN_OK;

	pthread_mutex_lock(&x->hub->lock);
	while ((e = half_open(x)) && st == TERN_OK) {
		if (x->hub->closed[e->device[e->opened[0] ? 1 : 0]])
			st = tn_fail(TERN_E_PEER_CLOSED, "edge '%s': the peer is closed", e->desc.name);
		else if (!sleep_until(x, deadline_ns))
			st = tn_fail(TERN_E_DEADLINE, "edge '%s': device %u has not opened it", e->desc.name,
				     e->device[e->opened[0] ? 1 : 0]);
	}
	pthread_mutex_unlock(&x->hub->lock);
	return st;
}

/* ---- tensors ---- */

static tern_status local_send_post(tn_xfer_end *end, const void *data, uint64_t bytes, uint64_t step)
{
	local_edge *e = ((local_end *)end)->edge;
	local_xfer *x = (local_xfer *)end->xfer;
	tn_local_hub *hub = x->hub;
	uint32_t slot;

	(void)step;
	TN_ASSERT(bytes == e->desc.bytes);
	pthread_mutex_lock(&hub->lock);
	if (hub->closed[e->device[1]]) {
		pthread_mutex_unlock(&hub->lock);
		return tn_fail(TERN_E_PEER_CLOSED, "the receiver is closed");
	}
	TN_ASSERT(!e->lazy_source);
	if (e->used == hub->params.slots) {
		pthread_mutex_unlock(&hub->lock);
		return TERN_AGAIN;
	}
	e->used++;
	slot = newest(hub, e);
	x->counters.sends++;
	x->counters.writes++;
	x->counters.bytes_sent += bytes;
	if (hub->params.lazy_seed) {
		e->lazy_source = data;
		e->lazy_delay = draw(hub, 6);
		touch(hub, e->device[1]);
		pthread_mutex_unlock(&hub->lock);
		return TERN_OK;
	}
	pthread_mutex_unlock(&hub->lock);
	memcpy(e->slot[slot], data, bytes);
	pthread_mutex_lock(&hub->lock);
	filled(hub, e);
	pthread_mutex_unlock(&hub->lock);
	return TERN_OK;
}

static tern_status local_send_test(tn_xfer_end *end)
{
	local_edge *e = ((local_end *)end)->edge;
	tn_local_hub *hub = ((local_xfer *)end->xfer)->hub;
	bool done;

	pthread_mutex_lock(&hub->lock);
	lazy_poll(hub, e, false);
	done = !e->lazy_source;
	pthread_mutex_unlock(&hub->lock);
	return done ? TERN_OK : TERN_AGAIN;
}

static tern_status local_recv_poll(tn_xfer_end *end, const void **data)
{
	local_edge *e = ((local_end *)end)->edge;
	local_xfer *x = (local_xfer *)end->xfer;
	tern_status st = TERN_AGAIN;

	pthread_mutex_lock(&x->hub->lock);
	TN_ASSERT(!e->held);
	if (!e->full)
		lazy_poll(x->hub, e, false);
	if (e->full) {
		e->full--;
		e->held = true;
		*data = e->slot[e->oldest];
		x->counters.recvs++;
		x->counters.bytes_received += e->desc.bytes;
		st = TERN_OK;
	} else if (x->hub->closed[e->device[0]]) {
		st = tn_fail(TERN_E_PEER_CLOSED, "the sender is closed");
	}
	pthread_mutex_unlock(&x->hub->lock);
	return st;
}

static tern_status local_recv_release(tn_xfer_end *end)
{
	local_edge *e = ((local_end *)end)->edge;
	tn_local_hub *hub = ((local_xfer *)end->xfer)->hub;

	pthread_mutex_lock(&hub->lock);
	TN_ASSERT(e->held && e->used > 0);
	if (hub->params.lazy_seed) /* whoever still reads the slot sees it */
		memset(e->slot[e->oldest], 0xff, e->desc.bytes);
	e->held = false;
	e->used--;
	e->oldest = (e->oldest + 1) % hub->params.slots;
	touch(hub, e->device[0]);
	pthread_mutex_unlock(&hub->lock);
	return TERN_OK;
}

static void local_counters(const tn_xfer *xfer, tn_xfer_counters *counters)
{
	*counters = ((const local_xfer *)xfer)->counters;
}

static void local_close(tn_xfer *xfer)
{
	local_xfer *x = (local_xfer *)xfer;

	if (!x)
		return;
	pthread_mutex_lock(&x->hub->lock);
	for (uint32_t i = 0; i < x->hub->n_edges; i++) {
		local_edge *e = x->hub->edges[i];

		if (e && e->lazy_source && e->device[0] == x->device)
			lazy_poll(x->hub, e, true);
	}
	x->hub->closed[x->device] = true;
	x->open = false;
	for (uint32_t d = 0; d < x->hub->params.devices; d++)
		touch(x->hub, d);
	pthread_mutex_unlock(&x->hub->lock);
}

static const tn_xfer_ops local_ops = {
	.name = "local",
	.send_open = local_send_open,
	.recv_open = local_recv_open,
	.alloc = local_alloc,
	.free = local_free,
	.start = local_start,
	.send_post = local_send_post,
	.send_test = local_send_test,
	.recv_poll = local_recv_poll,
	.recv_release = local_recv_release,
	.wait = local_wait,
	.wake = local_wake,
	.counters = local_counters,
	.close = local_close,
};

/* ---- the hub ---- */

static void init_cond(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

tern_status tn_local_hub_create(const tn_local_params *params, tn_local_hub **hub)
{
	tn_local_hub *h = calloc(1, sizeof(*h));

	if (h) {
		h->params = *params;
		if (h->params.slots == 0)
			h->params.slots = 2;
		h->random = params->lazy_seed;
		h->xfers = calloc(params->devices, sizeof(*h->xfers));
		h->closed = calloc(params->devices, sizeof(*h->closed));
	}
	if (!h || !h->xfers || !h->closed || h->params.slots > SLOTS_MAX) {
		if (h) {
			free(h->xfers);
			free(h->closed);
		}
		free(h);
		return tn_fail(TERN_E_NOMEM, "no memory for a hub, or more than %u slots", SLOTS_MAX);
	}
	pthread_mutex_init(&h->lock, NULL);
	for (uint32_t d = 0; d < params->devices; d++)
		init_cond(&h->xfers[d].changed);
	*hub = h;
	return TERN_OK;
}

void tn_local_hub_destroy(tn_local_hub *hub)
{
	if (!hub)
		return;
	for (uint32_t d = 0; d < hub->params.devices; d++)
		pthread_cond_destroy(&hub->xfers[d].changed);
	for (uint32_t i = 0; i < hub->n_edges; i++) {
		local_edge *e = hub->edges[i];

		for (uint32_t k = 0; k < hub->params.slots && e && e->opened[1] && !e->desc.whole_bytes; k++)
			free(e->slot[k]);
		free(e);
	}
	while (hub->wholes) {
		local_whole *w = hub->wholes;

		hub->wholes = w->next;
		for (uint32_t k = 0; k < hub->params.slots; k++)
			free(w->slot[k]);
		free(w);
	}
	pthread_mutex_destroy(&hub->lock);
	free(hub->edges);
	free(hub->xfers);
	free(hub->closed);
	free(hub);
}

tern_status tn_local_open(tn_local_hub *hub, uint32_t device, tn_xfer **xfer)
{
	tern_status st = TERN_OK;

	if (device >= hub->params.devices)
		return tn_fail(TERN_E_INVALID, "the hub has no device %u", device);
	pthread_mutex_lock(&hub->lock);
	if (hub->xfers[device].open || hub->closed[device]) {
		st = tn_fail(TERN_E_EXISTS, "device %u was opened already", device);
	} else {
		hub->xfers[device].base.ops = &local_ops;
		hub->xfers[device].hub = hub;
		hub->xfers[device].device = device;
		hub->xfers[device].open = true;
		*xfer = &hub->xfers[device].base;
	}
	pthread_mutex_unlock(&hub->lock);
	return st;
}

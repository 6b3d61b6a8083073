/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between processes, the coordinator and clients: late, lost, twice, cut off; and the coordinator itself.
 * See world.h. Threads: none.
 */
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

snap *snap_hold(snap *s)
{
	if (s)
		s->refs++;
	return s;
}

void snap_drop(snap *s)
{
	if (s && --s->refs == 0)
		free(s);
}

message *message_new(message_kind kind, uint32_t from, uint32_t to, const void *data, uint64_t bytes)
{
	message *m = calloc(1, sizeof(*m) + bytes);

	assert_non_null(m);
	m->kind = kind;
	m->from = from;
	m->to = to;
	m->bytes = bytes;
	if (bytes)
		memcpy(m->data, data, bytes);
	return m;
}

void message_free(message *m)
{
	snap_drop(m->snap);
	free(m->request);
	free(m);
}

static message *twin_of(const message *m)
{
	message *t = malloc(sizeof(*t) + m->bytes);

	assert_non_null(t);
	memcpy(t, m, sizeof(*t) + m->bytes);
	snap_hold(t->snap);
	if (m->request) {
		t->request = malloc(sizeof(*t->request));
		assert_non_null(t->request);
		*t->request = *m->request;
	}
	return t;
}

static void enqueue(world *w, message *m, uint64_t after)
{
	m->at = w->now + after;
	m->next = w->messages;
	w->messages = m;
}

static bool is_cut(const world *w, const message *m)
{
	return m->from <= COORD && m->to <= COORD && w->cut[m->from][m->to] > w->now;
}

/* Beginnings of streams above all. */
static void keep(world *w, const message *m)
{
	uint32_t i = (uint32_t)below(w, KEPT);

	if (!chance(w, m->seq == 1 ? 2 : 40))
		return;
	if (w->kept[i])
		message_free(w->kept[i]);
	w->kept[i] = twin_of(m);
	w->kept[i]->at = w->now;
}

int echo(world *w, uint32_t p)
{
	int from = -1;

	for (uint32_t i = 0; i < KEPT; i++) {
		const message *m = w->kept[i];

		if (!m || m->to != p || w->now - m->at > 3ull * LEASE || chance(w, 4))
			continue;
		enqueue(w, twin_of(m), 1 + below(w, 6));
		w->n.echoes++;
		from = (int)m->from;
	}
	return from;
}

void message_send(world *w, message *m)
{
	uint64_t delay = 1 + below(w, 6);

	if (m->to < PROCESSES && m->incarnation == 0 && w->nodes[m->to])
		m->incarnation = w->nodes[m->to]->incarnation;
	if (m->kind == FRAME && !w->calm)
		keep(w, m);
	if (is_cut(w, m) || (!w->calm && chance(w, 40))) {
		w->n.lost++;
		message_free(m);
		return;
	}
	if (!w->calm && chance(w, 25)) {
		delay += below(w, LEASE);
		w->n.late++;
	}
	if (!w->calm && chance(w, 30) && !(m->request && m->request->table == COMES)) {
		w->n.twice++;
		enqueue(w, twin_of(m), delay + below(w, LEASE / 2));
	}
	enqueue(w, m, delay);
}

/* ---- the coordinator ---- */

static snap *snap_new(const tn_cl_map *map, unsigned version)
{
	static uint8_t bytes[TN_CL_MAP_BYTES_MAX];
	snap *s = calloc(1, sizeof(*s));
	uint64_t n = tn_cl_map_encode(bytes, sizeof(bytes), map, version);

	assert_non_null(s);
	assert_true(n > 0 && tn_cl_map_decode(bytes, n, &s->map));
	tn_ps_owners_set(&s->owners, &s->map);
	s->refs = 1;
	return s;
}

static void tell(world *w, uint32_t to, const message *asked, uint16_t number, tern_status status)
{
	message *m = message_new(OF_COORD, COORD, to, NULL, 0);

	m->incarnation = asked ? asked->back : 0;
	m->sent = asked && status == TERN_OK ? asked->sent : 0;
	m->number = number;
	m->status = status;
	m->now = w->now;
	m->snap = snap_hold(w->maps[to] < TN_CL_VERSION ? w->newest_old : w->newest);
	message_send(w, m);
}

/* What a new version says that the old one did not. */
static void count_changes(world *w, const tn_cl_map *was, const tn_cl_map *is)
{
	uint32_t first = tn_table_slot(w->keys[0]);
	const tn_cl_slot *f = &is->slot[first];

	if (memcmp(f, &was->slot[first], sizeof(*f)) != 0)
		trace(w, "slot %u: (%d, %d, next %d) epochs %u, %u flags %u", first, (int16_t)f->primary,
		      (int16_t)f->backup, (int16_t)f->next, f->epoch, f->next_epoch, f->flags);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *a = &was->slot[i], *b = &is->slot[i];

		if (a->primary != b->primary && a->primary != TN_CL_NONE) {
			w->n.moved += (a->flags & TN_CL_MOVE) != 0 && tn_cl_alive(is, a->primary);
			w->n.took_over += !tn_cl_alive(is, a->primary);
		}
		w->n.next_begun += b->next != TN_CL_NONE && b->next_epoch != a->next_epoch;
		w->n.next_copied += a->next != TN_CL_NONE && b->backup == a->next;
		w->n.next_given_up += a->next != TN_CL_NONE && b->backup != a->next && b->next != a->next;
		w->n.alone += a->backup != TN_CL_NONE && b->backup == TN_CL_NONE;
		w->n.copied += !(a->flags & TN_CL_IN_SYNC) && (b->flags & TN_CL_IN_SYNC);
	}
	for (uint32_t i = 0; i < was->servers; i++) {
		if (was->server[i].state != is->server[i].state)
			trace(w, "server %u: state %u", i, is->server[i].state);
		w->n.expired += tn_cl_alive(was, (uint16_t)i) && is->server[i].state == TN_CL_DOWN;
	}
}

void spread(world *w)
{
	snap *s;

	if (w->told == w->coord.map.version)
		return;
	tn_coord_check(&w->coord);
	w->told = w->coord.map.version;
	s = snap_new(&w->coord.map, TN_CL_VERSION);
	if (w->newest)
		count_changes(w, &w->newest->map, &s->map);
	snap_drop(w->newest);
	w->newest = s;
	if (w->old) {
		snap_drop(w->newest_old);
		w->newest_old = snap_new(&w->coord.map, TN_CL_VERSION_OLD);
	}
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (w->nodes[p] && w->nodes[p]->self != TN_CL_NONE)
			tell(w, p, NULL, w->nodes[p]->self, TERN_OK);
}

static void at_coordinator(world *w, const message *m)
{
	tern_status status;
	tn_cl_msg msg;

	assert_true(tn_cl_msg_decode(m->data, m->bytes, &msg));
	status = tn_cl_apply(&w->coord, w->now, &msg);
	spread(w);
	if (status != TERN_AGAIN)
		tell(w, m->from, m, msg.server, status);
}

/* ---- deliveries ---- */

/* Who asks again elsewhere has ended the call before: its messages do not come any more. Pushes may. */
static bool in_time(const world *w, const request *r)
{
	const op *o = &w->clients[r->client].ops[r->slot];

	return r->table != COMES || (o->live && o->number == r->op && o->attempt == r->attempt);
}

static void at_process(world *w, message *m)
{
	node *n = w->nodes[m->to];

	if (!n || n->incarnation != m->incarnation)
		return;
	if (m->kind == OF_COORD)
		node_coord(w, m->to, m);
	else if (m->kind == FRAME)
		node_frame(w, m->to, m);
	else if (m->kind == FRAME_ANS)
		node_answer(w, m->to, m);
	else if (m->kind == ASK && in_time(w, m->request))
		node_request(w, m->to, m->request);
	else if (m->kind == MAP_ASK && n->snap) {
		message *a = message_new(MAP_ANS, m->to, m->from, NULL, 0);

		a->snap = snap_hold(n->snap);
		message_send(w, a);
	}
}

static void arrives(world *w, message *m)
{
	if (m->to == COORD)
		at_coordinator(w, m);
	else if (m->to < PROCESSES)
		at_process(w, m);
	else if (m->kind == ASK_ANS)
		client_answer(w, m->request);
	else
		client_map(w, m->to - CLIENT, m->snap);
}

void deliver(world *w)
{
	message *list = w->messages, *next;

	w->messages = NULL;
	for (message *m = list; m; m = next) {
		next = m->next;
		if (m->at > w->now) {
			m->next = w->messages;
			w->messages = m;
		} else if (m->to < PROCESSES && w->nodes[m->to] && w->nodes[m->to]->stalled_until > w->now) {
			enqueue(w, m, w->nodes[m->to]->stalled_until - w->now + below(w, 3));
		} else {
			arrives(w, m);
			message_free(m);
		}
	}
}

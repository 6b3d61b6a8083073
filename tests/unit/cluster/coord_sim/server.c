/* SPDX-License-Identifier: Apache-2.0 */
/* Servers, with the contract of cluster.h: leases, epochs, streams to backups, answers. See world.h. */
#include <string.h>

#include "world.h"

bool server_leased(const world *w, const server *s)
{
	return server_time(w, s) < s->lease_until;
}

static void answer(world *w, int i, waiting *wait)
{
	if (wait->id >= 0) {
		set_put(&w->acked[i], wait->id);
		w->writes++;
		return;
	}
	w->reads++;
	if (!set_has(&wait->rows, &wait->before))
		w->why = "a read misses what was acknowledged or read before";
	set_join(&w->seen[i], &wait->rows);
}

/* Whatever is confirmed is answered, under the lease. */
static void answer_all(world *w, server *s, int i)
{
	part *p = &s->part[i];
	bool alone = s->map.slot[i].backup == TN_CL_NONE;
	unsigned kept = 0;

	for (unsigned k = 0; k < p->waits; k++) {
		waiting *wait = &p->wait[k];

		if (p->role == 2 && server_leased(w, s) && (alone || wait->seq < p->confirmed) &&
		    (!p->released || wait->id >= 0))
			answer(w, i, wait);
		else
			p->wait[kept++] = *wait;
	}
	p->waits = kept;
}

/* One entry of the stream to the backup: all rows, so that any one of them is a copy. */
static void copy(world *w, int me, int i)
{
	server *s = &w->s[me];
	part *p = &s->part[i];
	int to = world_who(w, s->map.slot[i].backup);
	event e = {.kind = COPY, .from = me, .to = to, .s = i, .epoch = p->epoch, .seq = p->next++};

	if (p->confirmed + 1 == p->next)
		p->sent_at = w->now;
	e.rows = p->rows;
	if (to < 0)
		return;
	e.incarnation = w->s[to].incarnation;
	net_send(w, &e);
}

static void new_epoch(world *w, int me, int i, const tn_cl_slot *slot)
{
	server *s = &w->s[me];
	part *p = &s->part[i];
	bool keep = p->role == 2 || !(slot->flags & TN_CL_FRESH);

	if (slot->primary != s->number || !keep) {
		memset(&p->rows, 0, sizeof(p->rows));
		p->waits = 0;
	}
	p->role = slot->primary == s->number ? 2 : slot->backup == s->number ? 1 : 0;
	p->epoch = slot->epoch;
	p->released = false;
	p->next = p->confirmed = 0;
	for (unsigned k = 0; k < p->waits; k++)
		p->wait[k].seq = 0;
	if (p->role == 2 && slot->backup != TN_CL_NONE)
		copy(w, me, i);
}

static void server_take_map(world *w, int me, const view *map)
{
	server *s = &w->s[me];

	if (map->version <= s->map.version)
		return;
	s->map = *map;
	for (int i = 0; i < SAMPLES; i++) {
		if (map->slot[i].epoch > s->part[i].epoch)
			new_epoch(w, me, i, &map->slot[i]);
		answer_all(w, s, i);
	}
}

void server_on_request(world *w, event *e)
{
	server *s = &w->s[e->to];
	part *p = &s->part[e->s];
	waiting wait = {.id = e->id, .before = e->rows};

	if (p->role != 2 || p->released || !server_leased(w, s) || p->waits == 64 ||
	    s->map.slot[e->s].primary != s->number)
		return;
	if (e->kind == WRITE) {
		set_put(&p->rows, e->id);
		if (s->map.slot[e->s].backup != TN_CL_NONE)
			copy(w, e->to, e->s);
	}
	wait.rows = p->rows;
	wait.seq = p->next ? p->next - 1 : 0;
	p->wait[p->waits++] = wait;
	answer_all(w, s, e->s);
}

void server_on_copy(world *w, event *e)
{
	server *s = &w->s[e->to];
	part *p = &s->part[e->s];
	event r = {.kind = COPIED, .from = e->to, .to = e->from, .s = e->s, .epoch = e->epoch};

	if (e->epoch < p->epoch || (e->epoch == p->epoch && p->role != 1))
		return;            /* refused: an old primary */
	if (e->epoch > p->epoch) { /* it knows a newer map */
		p->epoch = e->epoch;
		p->role = 1;
		p->next = 0;
		p->waits = 0;
	}
	if (e->seq + 1 > p->next) {
		p->rows = e->rows;
		p->next = e->seq + 1;
	}
	r.seq = p->next;
	r.incarnation = w->s[e->from].incarnation;
	net_send(w, &r);
}

void server_on_copied(world *w, event *e)
{
	server *s = &w->s[e->to];
	part *p = &s->part[e->s];

	if (e->epoch != p->epoch || p->role != 2 || e->seq <= p->confirmed)
		return;
	p->confirmed = e->seq;
	p->sent_at = w->now;
	answer_all(w, s, e->s);
}

/* What it found out about a slot; 0: nothing. */
static uint8_t finding(world *w, server *s, int i)
{
	part *p = &s->part[i];
	const tn_cl_slot *slot = &s->map.slot[i];

	if (p->role != 2 || slot->backup == TN_CL_NONE || p->epoch != slot->epoch)
		return 0;
	if (p->confirmed < p->next && w->now - p->sent_at > LEASE / 4)
		return TN_REPORT_LOST;
	if (p->confirmed == 0)
		return 0;
	if (slot->flags & TN_CL_MOVE) {
		if (!p->released) {
			p->released = true;
			copy(w, (int)(s - w->s), i); /* the backup has to be there still */
		}
		if (p->confirmed == p->next)
			return TN_REPORT_RELEASED;
		return slot->flags & TN_CL_IN_SYNC ? 0 : TN_REPORT_SYNCED;
	}
	return slot->flags & TN_CL_IN_SYNC ? 0 : TN_REPORT_SYNCED;
}

void server_poll(world *w, int me)
{
	server *s = &w->s[me];
	event e = {.from = me, .to = COORD, .incarnation = s->incarnation, .number = s->number};
	event again = {.kind = POLL, .from = me, .to = me, .incarnation = s->incarnation};

	net_post(w, &again, 300 + world_below(w, 300));
	e.sent = server_time(w, s);
	e.seen = s->seen;
	e.kind = s->number == TN_CL_NONE ? JOIN : RENEW;
	net_send(w, &e);
	for (int i = 0; i < SAMPLES && s->number != TN_CL_NONE; i++) {
		uint8_t what = finding(w, s, i);

		answer_all(w, s, i);
		if (what)
			e.facts[e.fact_count++] =
				(tn_coord_fact){.slot = sample[i], .what = what, .epoch = s->part[i].epoch};
	}
	e.kind = FACTS;
	if (e.fact_count)
		net_send(w, &e);
}

void server_on_map(world *w, event *e)
{
	server *s = &w->s[e->to];

	s->seen = e->seen > s->seen ? e->seen : s->seen;
	if (!e->granted && e->sent && e->number == s->number) { /* replaced: it begins anew, as another */
		s->running = false;
		s->start_at = w->now + 1;
		return;
	}
	if (e->granted) {
		s->number = e->number;
		if (e->sent + LEASE > s->lease_until)
			s->lease_until = e->sent + LEASE;
	}
	server_take_map(w, e->to, &e->map);
}

void server_start(world *w, int i)
{
	server *s = &w->s[i];
	event e = {.kind = POLL, .from = i, .to = i};
	double rate = s->rate;

	memset(s, 0, sizeof(*s));
	s->address = i;
	s->running = true;
	s->rate = rate;
	s->number = TN_CL_NONE;
	e.incarnation = s->incarnation = tn_rand_next(&w->rand) | 1;
	net_post(w, &e, 1);
}

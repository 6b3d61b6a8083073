/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong: deaths, restarts, stalls, partitions, servers that are drained and slots that become busy (so that slots
 * move); messages that are lost, late or come twice are net.c's. See world.h.
 *
 * One failure is survived, so a process dies only while another one that is well has, in sync, each slot that it has, and
 * nobody is about to say that this other one is lost. Everything else comes as it likes. Threads: none.
 */
#include <string.h>

#include "world.h"

static bool is_well(const world *w, uint16_t server)
{
	int p = process_of(w, server);

	return p >= 0 && tn_cl_alive(&w->coord.map, server) && w->nodes[p]->stalled_until <= w->now &&
	       w->cut[p][COORD] <= w->now && w->cut[COORD][p] <= w->now;
}

static bool somebody_says_lost(const world *w)
{
	for (uint32_t p = 0; p < PROCESSES; p++)
		for (uint32_t i = 0; w->nodes[p] && i < TN_CL_SLOTS; i++)
			if (w->nodes[p]->what[i] == TN_REPORT_LOST)
				return true;
	for (const message *m = w->messages; m; m = m->next) {
		tn_cl_msg msg;

		if (m->kind != TO_COORD || !tn_cl_msg_decode(m->data, m->bytes, &msg))
			continue;
		for (uint32_t i = 0; i < msg.fact_count; i++)
			if (tn_cl_msg_fact(&msg, i).what == TN_REPORT_LOST)
				return true;
	}
	return false;
}

/* Servers that take slots, and are there. */
static uint32_t takers(const world *w)
{
	uint32_t up = 0;

	for (uint32_t i = 0; i < w->coord.map.servers; i++)
		up += w->coord.map.server[i].state == TN_CL_UP && process_of(w, (uint16_t)i) >= 0;
	return up;
}

/* Does who is drained serve a slot that it has not begun to hand over? Then copies of all are kept. */
static bool drained_serves(const world *w)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		uint16_t s = w->coord.map.slot[i].primary;
		int p = process_of(w, s);

		if (p >= 0 && w->coord.map.server[s].state == TN_CL_DRAINING && is_well(w, s) &&
		    tn_ps_slots_has(&w->nodes[p]->r.mine, i) && !tn_repl_frozen(&w->nodes[p]->r, i))
			return true;
	}
	return false;
}

/* The last one has taken all from who is drained, and is alone then: that it dies as well is too much. */
static bool few_are_left(const world *w)
{
	uint32_t draining = 0;

	for (uint32_t i = 0; i < w->coord.map.servers; i++)
		draining += w->coord.map.server[i].state == TN_CL_DRAINING;
	return draining > 0 && takers(w) <= 2 && !drained_serves(w);
}

typedef struct having {
	uint32_t primary, backup, next, moving;
} having;

/* Would what it has be lost with it? */
static bool may_die(const world *w, uint32_t p, having *has)
{
	const node *n = w->nodes[p];

	memset(has, 0, sizeof(*has));
	if (!n || n->self == TN_CL_NONE || w->coord.map.slot[0].primary == TN_CL_NONE ||
	    somebody_says_lost(w) || few_are_left(w))
		return false;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &w->coord.map.slot[i];
		bool primary = s->primary == n->self, backup = s->backup == n->self;

		if ((primary || backup) &&
		    (!(s->flags & TN_CL_IN_SYNC) || !is_well(w, primary ? s->backup : s->primary)))
			return false;
		/* A primary that is gone may have said just before that the next copy is whole: that one is the backup then. */
		if (s->next != TN_CL_NONE && ((primary && process_of(w, s->next) < 0) ||
					      (s->next == n->self && process_of(w, s->primary) < 0)))
			return false;
		if (w->old && s->flags & TN_CL_MOVE && backup)
			return false; /* it may be that it has been handed over already, and is the only one */
		has->primary += primary;
		has->backup += backup;
		has->next += s->next == n->self;
		has->moving += (primary || backup) && (s->flags & TN_CL_MOVE || s->next != TN_CL_NONE);
	}
	return has->primary + has->backup > 0;
}

static void die(world *w, uint32_t p)
{
	having has;

	if ((w->old && w->now + 5ull * LEASE > TICKS) || !may_die(w, p, &has))
		return; /* old: nothing is moved for a while after a death, healed or not */
	peek(w, p, 12); /* what somebody saw just before has to stay */
	trace(w, "process %u (server %u) dies", p, w->nodes[p]->self);
	node_end(w, p);
	w->start_at[p] = w->now + below(w, 4ull * LEASE);
	w->n.deaths++;
	w->n.deaths_primary += has.primary > 0;
	w->n.deaths_backup += has.backup > 0;
	w->n.deaths_moving += has.moving > 0;
	w->n.deaths_next += has.next > 0;
	if (!w->old)
		return;
	w->quiet_until = w->now + 5ull * LEASE;
	tn_coord_pause(&w->coord, true); /* a copy that is given up just now would be the only one */
}

static void cut_off(world *w, uint32_t a, uint32_t b)
{
	if (a == b)
		return;
	w->cut[a][b] = w->now + below(w, 2ull * LEASE);
	if (chance(w, 2))
		w->cut[b][a] = w->cut[a][b];
	if (b == COORD)
		w->n.cut_coord++;
	else
		w->n.cut_peer++;
	trace(w, "%u does not reach %u", a, b);
}

/* Somebody that slots are copied to as their next one; or anybody. */
static uint32_t a_next_one(world *w, uint32_t p)
{
	uint32_t first = (uint32_t)below(w, KEYS);

	for (uint32_t i = 0; i < KEYS; i++) {
		const tn_cl_slot *s = &w->coord.map.slot[tn_table_slot(w->keys[(first + i) % KEYS])];
		int next = process_of(w, s->next);

		if (next >= 0)
			return (uint32_t)next;
	}
	return p;
}

/* Somebody is drained; those that were are not any more. */
static void drain(world *w, uint32_t p)
{
	for (uint32_t i = 0; i < w->coord.map.servers; i++)
		if (chance(w, 2))
			(void)tn_coord_undrain(&w->coord, w->now, (uint16_t)i);
	if (takers(w) > 2 && w->nodes[p] && w->nodes[p]->self != TN_CL_NONE &&
	    tn_coord_drain(&w->coord, w->now, w->nodes[p]->self) == TERN_OK)
		w->n.drains++;
}

static void make_busy(world *w)
{
	uint32_t slot = tn_table_slot(w->keys[below(w, KEYS)]);

	tn_coord_load(&w->coord, w->coord.map.slot[slot].primary, (uint16_t)slot,
		      (uint32_t)below(w, 2000000));
	tn_coord_balance(&w->coord);
	w->n.busy_slots++;
}

/* Frames of some time ago come once more, and then who sent them dies, perhaps. */
static void echoes(world *w, uint32_t p)
{
	int from = echo(w, p);

	if (from < 0 || w->doomed || chance(w, 2))
		return;
	w->doomed = (uint32_t)from + 1;
	w->doomed_at = w->now + 2 + below(w, 12);
}

void trouble(world *w)
{
	uint32_t p = (uint32_t)below(w, PROCESSES);

	for (uint32_t i = 0; i < PROCESSES; i++)
		if (!w->nodes[i] && w->start_at[i] <= w->now) {
			w->n.restarts += w->start_at[i] > 0;
			node_start(w, i);
		}
	if (w->calm || w->now < w->quiet_until)
		return;
	if (w->coord.paused)
		tn_coord_pause(&w->coord, false);
	if (w->doomed && w->doomed_at <= w->now) {
		die(w, w->doomed - 1);
		w->doomed = 0;
	}
	if (chance(w, 60))
		die(w, p);
	if (chance(w, 150))
		echoes(w, p);
	if (!chance(w, 50))
		return;
	switch (below(w, 6)) {
	case 0:
		if (w->nodes[p]) {
			peek(w, p, 6);
			w->nodes[p]->stalled_until = w->now + below(w, 3ull * LEASE);
			w->n.stalls++;
			trace(w, "process %u stalls", p);
		}
		break;
	case 1:
		cut_off(w, p, COORD);
		break;
	case 2:
		cut_off(w, p, (uint32_t)below(w, PROCESSES));
		break;
	case 3:
		cut_off(w, COORD, p);
		break;
	case 4:
		drain(w, chance(w, 2) ? a_next_one(w, p) : p);
		break;
	default:
		make_busy(w);
	}
}

void heal(world *w)
{
	w->calm = true;
	group_calm(w);
	memset(w->cut, 0, sizeof(w->cut));
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (w->nodes[p])
			w->nodes[p]->stalled_until = 0;
	if (w->coord.paused)
		tn_coord_pause(&w->coord, false);
	for (uint32_t i = 0; i < w->coord.map.servers; i++)
		(void)tn_coord_undrain(&w->coord, w->now, (uint16_t)i);
	spread(w);
}

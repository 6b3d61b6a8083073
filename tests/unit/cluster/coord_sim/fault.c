/* SPDX-License-Identifier: Apache-2.0 */
/* Clients, and what happens to servers. See world.h. */
#include <stdio.h>

#include "world.h"

void client_asks(world *w)
{
	int asked = (int)world_below(w, SERVERS), i = (int)world_below(w, SAMPLES), to;
	event e = {.s = i, .id = -1};

	if (!w->s[asked].running)
		return;
	to = world_who(w, w->s[asked].map.version ? w->s[asked].map.slot[i].primary : TN_CL_NONE);
	e.kind = world_below(w, 2) && w->next_id[i] < WRITES ? WRITE : READ;
	if (to < 0)
		return;
	if (e.kind == WRITE)
		e.id = w->next_id[i]++;
	e.rows = w->acked[i];
	set_join(&e.rows, &w->seen[i]);
	e.from = e.to = to;
	e.incarnation = w->s[to].incarnation;
	net_post(w, &e, world_below(w, 300));
}

static bool is_well(const world *w, uint16_t number)
{
	int i = world_who(w, number);

	return i >= 0 && tn_cl_alive(&w->c->map, number) && w->s[i].stalled_until <= w->now &&
	       w->cut[i][COORD] <= w->now;
}

/* Would anything be lost with it, if it is the only trouble for a while? */
static bool may_kill(const world *w, int i)
{
	const server *s = &w->s[i];

	if (w->c->map.slot[0].primary == TN_CL_NONE)
		return false;
	for (unsigned k = 0; k < w->events; k++)
		for (uint32_t f = 0; f < w->queue[k]->fact_count; f++)
			if (w->queue[k]->facts[f].what != TN_REPORT_SYNCED && w->queue[k]->kind == FACTS)
				return false;
	for (uint32_t k = 0; k < TN_CL_SLOTS; k++) {
		const tn_cl_slot *slot = &w->c->map.slot[k];

		if (slot->primary == s->number &&
		    (!is_well(w, slot->backup) || !(slot->flags & TN_CL_IN_SYNC)))
			return false;
		if (slot->backup == s->number && (!is_well(w, slot->primary) || (slot->flags & TN_CL_MOVE)))
			return false; /* or it is handing over */
	}
	return true;
}

/* What it sent just before comes late; and one of those that are left is held up. */
static void last_words(world *w, int i)
{
	const server *s = &w->s[i];
	event e = {.kind = RENEW, .from = i, .to = COORD, .incarnation = s->incarnation, .number = s->number};

	e.sent = server_time(w, s);
	e.seen = s->seen;
	for (int n = 0; n < 3; n++)
		net_post(w, &e, world_below(w, 2 * LEASE));
	if (world_below(w, 2))
		w->s[world_below(w, SERVERS)].stalled_until = w->now + LEASE + world_below(w, 2 * LEASE);
}

void fault_trouble(world *w)
{
	int i = (int)world_below(w, SERVERS), k = (int)world_below(w, SERVERS + 1);
	server *s = &w->s[i];
	uint64_t what = world_below(w, 6);

	if (w->now < w->still_until)
		return;

	/* after a death others may be held up, but nobody else dies or goes */
	if (w->now < w->quiet_until && what != 1 && what != 2)
		return;
	switch (what) {
	case 0:
		if (world_below(w, 2) == 0 && s->running && s->number != TN_CL_NONE && may_kill(w, i)) {
			s->running = false;
			s->start_at = w->now + world_below(w, 4 * LEASE);
			last_words(w, i);
			w->kills++;
			if (follow >= 0)
				printf("  %8llu process %d is killed\n", (unsigned long long)w->now, i);
			w->quiet_until = w->now + 6 * LEASE;
			tn_coord_pause(w->c,
				       true); /* a copy that is given up just now would be the only one */
		}
		break;
	case 1:
		s->stalled_until = w->now + world_below(w, 3 * LEASE);
		break;
	case 2:
	case 3:
		k = world_below(w, 2) ? COORD : k;
		w->cut[i][k] = w->now + world_below(w, 2 * LEASE);
		if (world_below(w, 2))
			w->cut[k][i] = w->cut[i][k];
		break;
	case 4:
		for (uint32_t n = 0; n < w->c->map.servers; n++)
			if (world_below(w, 2))
				(void)tn_coord_undrain(w->c, w->now, (uint16_t)n);
		if (s->number != TN_CL_NONE && world_below(w, 2))
			(void)tn_coord_drain(w->c, w->now, s->number);
		break;
	default:
		tn_coord_load(w->c, s->number, sample[world_below(w, SAMPLES)],
			      (uint32_t)world_below(w, 100000));
		tn_coord_balance(w->c);
	}
}

/* Who starts says that it is at the address of another one, which runs and is well: that one is not to be replaced. */
void fault_steal(world *w, int i)
{
	int victim = (int)world_below(w, SERVERS);
	const server *s = &w->s[victim];

	if (w->healing || victim == i || s->address != victim || w->now < w->still_until ||
	    !is_well(w, s->number) || w->cut[COORD][victim] > w->now ||
	    w->c->member[s->number].dead_ns < w->now + LEASE)
		return;
	w->s[i].address = victim;
	w->still_until = w->now + LEASE / 2;
	w->thefts++;
}

void fault_end_thefts(world *w)
{
	for (int i = 0; i < SERVERS; i++)
		if (w->s[i].running && w->s[i].address != i && w->s[i].number == TN_CL_NONE &&
		    w->now >= w->still_until)
			w->s[i].address = i;
}

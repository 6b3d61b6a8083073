/* SPDX-License-Identifier: Apache-2.0 */
/* Around the coordinator: its messages, and maps that are told. See world.h. */
#include <stdio.h>

#include "world.h"

static view view_of(const tn_cl_map *map)
{
	view v = {.version = map->version};

	for (uint32_t i = 0; i < map->servers && i < sizeof(v.state); i++)
		v.state[i] = map->server[i].state;
	for (int i = 0; i < SAMPLES; i++)
		v.slot[i] = map->slot[sample[i]];
	return v;
}

static void coord_tell(world *w, int to, event *e)
{
	event r = {.kind = MAP, .from = COORD, .to = to, .incarnation = e->incarnation, .sent = e->sent};

	r.number = e->number;
	r.granted = e->granted;
	r.map = view_of(&w->c->map);
	r.seen = w->now;
	net_send(w, &r);
}

/* Slots that are not looked at are copied at once. */
static void coord_bulk(world *w, server *s)
{
	static tn_coord_fact facts[TN_CL_SLOTS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *slot = &w->c->map.slot[i];
		bool looked_at = false;

		for (int k = 0; k < SAMPLES; k++)
			looked_at |= sample[k] == i;
		if (looked_at || slot->primary != s->number || world_who(w, slot->backup) < 0)
			continue;
		facts[n++] = (tn_coord_fact){.slot = (uint16_t)i,
					     .epoch = slot->epoch,
					     .what = slot->flags & TN_CL_MOVE ? TN_REPORT_RELEASED
									      : TN_REPORT_SYNCED};
	}
	if (n)
		(void)tn_coord_facts(w->c, w->now, s->number, s->incarnation, facts, n);
}

void coord_on(world *w, event *e)
{
	char address[8];
	tern_status status;

	tn_coord_heard(w->c, w->now, e->number, e->incarnation, e->seen);
	if (e->kind == FACTS) {
		(void)tn_coord_facts(w->c, w->now, e->number, e->incarnation, e->facts, e->fact_count);
		return;
	}
	snprintf(address, sizeof(address), "s:%d", w->s[e->from].address);
	if (e->kind == JOIN) {
		status = tn_coord_join(w->c, w->now, address, e->incarnation, w->maps[e->from], &e->number);
		if (status != TERN_OK)
			return;
	} else {
		status = tn_coord_renew(w->c, w->now, e->number, e->incarnation);
		if (w->s[e->from].running && w->s[e->from].incarnation == e->incarnation && status == TERN_OK)
			coord_bulk(w, &w->s[e->from]);
	}
	e->granted = status == TERN_OK;
	coord_tell(w, e->from, e);
}

void coord_print_slot(const world *w, uint32_t i)
{
	const tn_cl_slot *slot = &w->c->map.slot[i];

	printf("  %8llu slot %u: primary %d (process %d), backup %d (process %d), epoch %u, flags %u\n",
	       (unsigned long long)w->now, i, (int16_t)slot->primary, world_who(w, slot->primary),
	       (int16_t)slot->backup, world_who(w, slot->backup), slot->epoch, slot->flags);
}

void coord_push_maps(world *w)
{
	if (w->pushed == w->c->map.version)
		return;
	w->pushed = w->c->map.version;
	tn_coord_check(w->c);
	if (follow >= 0)
		coord_print_slot(w, (uint32_t)follow);
	for (int i = 0; i < SERVERS; i++) {
		event e = {.incarnation = w->s[i].incarnation, .number = w->s[i].number};

		if (w->s[i].running && w->s[i].number != TN_CL_NONE)
			coord_tell(w, i, &e);
	}
}

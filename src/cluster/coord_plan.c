/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the coordinator does by itself: gives slots out, finds backups for slots that have none, empties servers that are
 * drained, evens loads out. Each is "make X the backup of this slot", perhaps to become primary then.
 *
 *   weight of a slot = keys a second + mean of all slots + 1: a busy slot counts more, idle ones are spread too
 *   balancing begins when a server is a quarter off the mean, ends when all are within a twentieth, or no move helps: a
 *   slot moves from the heaviest to the lightest server only if that makes the heavier of the two lighter
 *
 * Pure. Threads: none. Tests: tests/unit/cluster/coord_test.c, coord_sim/.
 */
#include <string.h>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/coord.h"

typedef struct plan {
	tn_coord *c;
	uint64_t now;
	uint32_t room; /* copies that may begin */
	uint32_t up;   /* servers that take slots */
	bool moving;   /* slots may be moved */
	bool keeps;    /* both copies meanwhile (coord.h) */
	bool leaving;  /* a server that is drained serves something yet */
	bool silent; /* a server that counts as alive may not be: a copy that is given up now may be the last one */
	uint64_t mean, total;
	uint64_t weight
		[TN_CL_SERVERS_MAX]; /* of slots that a server has, or will have when all moves are over */
	uint32_t copies[TN_CL_SERVERS_MAX]; /* slots that name it */
} plan;

static uint64_t weight_of(const plan *p, uint32_t slot)
{
	return p->c->load[slot] + p->mean + 1;
}

static bool takes(const plan *p, uint32_t server)
{
	return p->c->map.server[server].state == TN_CL_UP && p->c->member[server].suspect_ns <= p->now;
}

static void count_slots(plan *p)
{
	const tn_coord *c = p->c;
	uint32_t under_way = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		p->mean += c->load[i];
	p->mean /= TN_CL_SLOTS;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &c->map.slot[i];

		if (s->primary == TN_CL_NONE)
			continue;
		p->copies[s->primary]++;
		p->leaving |= c->map.server[s->primary].state == TN_CL_DRAINING;
		if (s->backup != TN_CL_NONE)
			p->copies[s->backup]++;
		if (s->next != TN_CL_NONE)
			p->copies[s->next]++;
		p->weight[tn_cl_target(s)] += weight_of(p, i);
		under_way +=
			(s->backup != TN_CL_NONE && !(s->flags & TN_CL_IN_SYNC)) + (s->next != TN_CL_NONE);
	}
	p->room = c->p.moves > under_way ? c->p.moves - under_way : 0;
	p->keeps = tn_coord_keeps_copies(c);
	for (uint32_t i = 0; i < c->map.servers; i++) {
		if (c->map.server[i].state == TN_CL_UP) {
			p->up++;
			p->total += p->weight[i];
		}
		if (tn_cl_alive(&c->map, (uint16_t)i) && c->member[i].heard_ns + c->p.lease_ns < p->now)
			p->silent = true;
	}
	p->moving = !c->paused && (p->keeps || !p->silent);
}

/* ---- the first map ---- */

static void form(plan *p)
{
	tn_coord *c = p->c;
	uint16_t up[TN_CL_SERVERS_MAX];
	uint32_t n = 0;

	if (c->map.slot[0].primary != TN_CL_NONE || p->up == 0 || p->up < c->p.first)
		return;
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (c->map.server[i].state == TN_CL_UP)
			up[n++] = (uint16_t)i;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		tn_coord_slot_set(c, i, up[(uint64_t)i * n / TN_CL_SLOTS], TN_CL_NONE, TN_CL_FRESH);
}

/* ---- backups, drains ---- */

/* The best one to copy a slot to: by weight if it is to serve it, else by how many it holds. TN_CL_NONE: there is none. */
static uint16_t choose(const plan *p, const tn_cl_slot *s, bool move)
{
	uint16_t best = TN_CL_NONE;

	for (uint32_t i = 0; i < p->c->map.servers; i++) {
		if (!takes(p, i) || i == s->primary || i == s->backup || i == s->next)
			continue;
		if (best == TN_CL_NONE ||
		    (move ? p->weight[i] < p->weight[best] : p->copies[i] < p->copies[best]))
			best = (uint16_t)i;
	}
	return best;
}

/* `to` is to be the backup of the slot, in place of the one that it has: when it has everything, or at once. */
static void copy_to(plan *p, uint32_t slot, uint16_t to, bool move)
{
	const tn_cl_slot *s = &p->c->map.slot[slot];
	uint64_t weight = weight_of(p, slot);
	uint8_t flags = move ? TN_CL_MOVE : 0;

	TN_ASSERT(p->room > 0 && to != TN_CL_NONE && s->next == TN_CL_NONE);
	p->weight[tn_cl_target(s)] -= weight;
	p->weight[move ? to : s->primary] += weight;
	p->copies[to]++;
	if (p->keeps && s->flags & TN_CL_IN_SYNC) {
		p->room--;
		tn_coord_slot_next(p->c, slot, to, (uint8_t)((s->flags & (uint8_t)~TN_CL_MOVE) | flags));
		return;
	}
	if (s->backup != TN_CL_NONE)
		p->copies[s->backup]--;
	/* one that was under way already makes no other */
	p->room -= s->backup == TN_CL_NONE || (s->flags & TN_CL_IN_SYNC);
	tn_coord_slot_set(p->c, slot, s->primary, to,
			  (move ? TN_CL_MOVE : 0) | (TN_MUTANT(211) ? TN_CL_IN_SYNC : 0));
}

static void flag_move(plan *p, uint32_t slot)
{
	const tn_cl_slot *s = &p->c->map.slot[slot];

	p->weight[tn_cl_target(s)] -= weight_of(p, slot);
	tn_coord_slot_flag(p->c, slot, s->flags | TN_CL_MOVE);
	p->weight[tn_cl_target(s)] += weight_of(p, slot);
}

/* Somebody is next: is that still right? Else he is not any more. */
static bool next_stays(plan *p, uint32_t slot)
{
	const tn_cl_slot *s = &p->c->map.slot[slot];

	if (s->next == TN_CL_NONE)
		return false;
	if (p->keeps && p->c->map.server[s->next].state == TN_CL_UP)
		return true;
	p->weight[tn_cl_target(s)] -= weight_of(p, slot);
	p->copies[s->next]--;
	p->room++;
	tn_coord_slot_next(p->c, slot, TN_CL_NONE, s->flags & (uint8_t)~TN_CL_MOVE);
	p->weight[tn_cl_target(s)] += weight_of(p, slot);
	return false;
}

/* What a slot needs whatever the loads are. */
static void mend(plan *p, uint32_t slot)
{
	tn_coord *c = p->c;
	const tn_cl_slot *s = &c->map.slot[slot];
	bool drain = c->map.server[s->primary].state == TN_CL_DRAINING && !TN_MUTANT(215);
	bool bad_backup = s->backup != TN_CL_NONE && c->map.server[s->backup].state == TN_CL_DRAINING;
	uint16_t to;

	if (!tn_cl_alive(&c->map, s->primary))
		return;
	if (next_stays(p, slot)) {
		if (drain && !(s->flags & TN_CL_MOVE))
			flag_move(p, slot);
		return;
	}
	if (s->backup != TN_CL_NONE && !bad_backup) {
		if (drain && !(s->flags & TN_CL_MOVE))
			flag_move(p, slot);
		return;
	}
	if (bad_backup && p->keeps && s->flags & TN_CL_MOVE && s->flags & TN_CL_IN_SYNC)
		return; /* it is being handed over, and not served: that ends first */
	if (bad_backup && !drain &&
	    p->up == 1) { /* the last two, one of which is to go: when it serves nothing */
		if (!p->silent && !p->leaving)
			tn_coord_slot_set(c, slot, s->primary, TN_CL_NONE, 0);
		return;
	}
	if ((bad_backup && !p->moving) || (!drain && !bad_backup && c->p.replicas < 2))
		return;
	to = p->room ? choose(p, s, drain) : TN_CL_NONE;
	if (to != TN_CL_NONE)
		copy_to(p, slot, to, drain || (s->flags & TN_CL_MOVE));
}

/* ---- even loads ---- */

/* At rest, and its copies are as many as they should be. */
static bool may_move(const plan *p, const tn_cl_slot *s)
{
	if (s->flags & TN_CL_MOVE || s->next != TN_CL_NONE)
		return false;
	return s->backup == TN_CL_NONE ? p->c->p.replicas < 2 : (s->flags & TN_CL_IN_SYNC) != 0;
}

/* The heaviest slot of `from` that weighs at most limit; TN_CL_SLOTS: there is none. */
static uint32_t heaviest(const plan *p, uint16_t from, uint64_t limit)
{
	uint32_t best = TN_CL_SLOTS;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &p->c->map.slot[i];

		if (s->primary == from && may_move(p, s) && weight_of(p, i) <= limit &&
		    (best == TN_CL_SLOTS || weight_of(p, i) > weight_of(p, best)))
			best = i;
	}
	return best;
}

static void ends(const plan *p, uint16_t *heavy, uint16_t *light)
{
	*heavy = *light = TN_CL_NONE;
	for (uint32_t i = 0; i < p->c->map.servers; i++) {
		if (!takes(p, i))
			continue;
		if (*heavy == TN_CL_NONE || p->weight[i] > p->weight[*heavy])
			*heavy = (uint16_t)i;
		if (*light == TN_CL_NONE || p->weight[i] < p->weight[*light])
			*light = (uint16_t)i;
	}
}

/* One move. False: there is none that helps, or enough was done. */
static bool even_out(plan *p)
{
	tn_coord *c = p->c;
	uint64_t mean = p->total / p->up, off = c->balancing ? mean / 20 : mean / 4;
	uint16_t heavy, light;
	uint32_t slot;

	ends(p, &heavy, &light);
	if (heavy == light || (p->weight[heavy] <= mean + off && p->weight[light] + off >= mean))
		return false;
	slot = heaviest(p, heavy, (p->weight[heavy] - p->weight[light]) / 2);
	if (slot == TN_CL_SLOTS)
		return false;
	c->balancing = true;
	if (c->map.slot[slot].backup == light)
		flag_move(p, slot);
	else
		copy_to(p, slot, light, true);
	return true;
}

void tn_coord_plan(tn_coord *c, uint64_t now)
{
	plan p = {.c = c, .now = now};

	count_slots(&p);
	form(&p);
	if (c->map.slot[0].primary == TN_CL_NONE || p.up == 0)
		return;
	if (p.total == 0) { /* just formed */
		memset(&p, 0, sizeof(p));
		p.c = c;
		p.now = now;
		count_slots(&p);
	}
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		mend(&p, i);
	while (p.room > 0 && p.moving)
		if (!even_out(&p)) {
			c->balancing = false;
			break;
		}
}

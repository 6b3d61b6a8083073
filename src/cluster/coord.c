/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator: servers that come, renew and die, and what that means for slots. coord.h has the rules.
 *
 * Pure. Threads: none. Tests: tests/unit/cluster/coord_test.c, coord_sim/.
 */
#include "cluster/coord.h"

#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/mutant.h"
#include "base/time.h"

/* ---- changes ---- */

/* Numbers that the slot had for a pair, or a next one, are never used again. */
static uint32_t new_epoch(const tn_cl_slot *s)
{
	return (TN_MUTANT(208) ? s->epoch : TN_MAX(s->epoch, s->next_epoch)) + 1;
}

void tn_coord_slot_set(tn_coord *c, uint32_t slot, uint16_t primary, uint16_t backup, uint8_t flags)
{
	tn_cl_slot *s = &c->map.slot[slot];

	TN_ASSERT(primary != s->primary || backup != s->backup);
	if (primary == s->primary || TN_MUTANT(209))
		flags |= s->flags & TN_CL_FRESH;
	*s = (tn_cl_slot){.primary = primary,
			  .backup = backup,
			  .next = TN_CL_NONE,
			  .epoch = TN_MUTANT(210) && backup == TN_CL_NONE ? s->epoch : new_epoch(s),
			  .next_epoch = s->next_epoch,
			  .flags = flags};
	c->map.version++;
}

void tn_coord_slot_flag(tn_coord *c, uint32_t slot, uint8_t flags)
{
	TN_ASSERT(c->map.slot[slot].backup != TN_CL_NONE && c->map.slot[slot].flags != flags);
	c->map.slot[slot].flags = flags;
	c->map.version++;
}

void tn_coord_slot_next(tn_coord *c, uint32_t slot, uint16_t next, uint8_t flags)
{
	tn_cl_slot *s = &c->map.slot[slot];

	TN_ASSERT(s->next != next && next != s->primary && (next != s->backup || next == TN_CL_NONE));
	if (next != TN_CL_NONE)
		s->next_epoch = new_epoch(s);
	s->next = next;
	s->flags = flags;
	c->map.version++;
}

/* Who was next is the backup: in sync, or not yet if there was no waiting for that. */
static void promote_next(tn_coord *c, uint32_t slot, uint8_t sync)
{
	tn_cl_slot *s = &c->map.slot[slot];

	TN_ASSERT(s->next != TN_CL_NONE && s->next_epoch > s->epoch);
	s->backup = s->next;
	s->epoch = s->next_epoch;
	s->next = TN_CL_NONE;
	s->flags = (uint8_t)((s->flags & (uint8_t)~TN_CL_IN_SYNC) | sync);
	c->map.version++;
}

bool tn_coord_keeps_copies(const tn_coord *c)
{
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (tn_cl_alive(&c->map, (uint16_t)i) && c->member[i].maps < TN_CL_VERSION)
			return false;
	return c->p.replicas > 1;
}

static bool may_follow(uint8_t from, uint8_t to)
{
	switch (to) {
	case TN_CL_UP:
		return from == TN_CL_FREE || from == TN_CL_DRAINING || from == TN_CL_DOWN;
	case TN_CL_DRAINING:
		return from == TN_CL_UP;
	case TN_CL_DOWN:
		return from == TN_CL_UP || from == TN_CL_DRAINING;
	case TN_CL_GONE:
		return from != TN_CL_FREE && from != TN_CL_GONE;
	default:
		return from == TN_CL_GONE || from == TN_CL_DOWN;
	}
}

static void set_state(tn_coord *c, uint16_t server, uint8_t state)
{
	TN_ASSERT(may_follow(c->map.server[server].state, state));
	tn_cl_server_set_state(&c->map.server[server], state);
	c->map.version++;
}

/* ---- what deaths mean for slots ---- */

/* Is the other one alive as far as can be known, or does it not matter? */
static bool survived(const tn_coord *c, uint16_t survivor, uint16_t dead)
{
	return TN_MUTANT(202) || c->map.server[dead].state == TN_CL_GONE ||
	       c->member[survivor].heard_ns >= c->member[dead].down_ns;
}

/* Level-triggered: whatever happened, this is what follows of who is alive. */
static void settle_slot(tn_coord *c, uint32_t slot)
{
	const tn_cl_slot *s = &c->map.slot[slot];
	bool primary = tn_cl_alive(&c->map, s->primary), backup = tn_cl_alive(&c->map, s->backup);

	if (s->next != TN_CL_NONE && !tn_cl_alive(&c->map, s->next))
		tn_coord_slot_next(c, slot, TN_CL_NONE, s->flags);
	if (s->backup == TN_CL_NONE || primary == backup)
		return;
	if (!(s->flags & TN_CL_IN_SYNC) && !TN_MUTANT(204)) /* half a copy */
		tn_coord_slot_set(c, slot, s->primary, TN_CL_NONE, 0);
	else if (!survived(c, primary ? s->primary : s->backup, primary ? s->backup : s->primary))
		c->waiting = true;
	else if (primary && s->next != TN_CL_NONE)
		promote_next(c, slot, 0);
	else
		tn_coord_slot_set(c, slot, primary ? s->primary : s->backup, TN_CL_NONE, 0);
}

static bool is_named(const tn_coord *c, uint16_t server)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->map.slot[i].primary == server || c->map.slot[i].backup == server ||
		    c->map.slot[i].next == server)
			return true;
	return false;
}

static void settle(tn_coord *c)
{
	uint64_t before;

	c->waiting = false;
	do {
		before = c->map.version;
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			settle_slot(c, i);
	} while (c->map.version != before);
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (c->map.server[i].state == TN_CL_GONE && (!is_named(c, (uint16_t)i) || TN_MUTANT(212)))
			set_state(c, (uint16_t)i, TN_CL_FREE);
}

/* After every input: deaths first, then what is to be done. */
static void react(tn_coord *c, uint64_t now)
{
	if (c->planned_version == c->map.version && !c->waiting)
		return;
	settle(c);
	tn_coord_plan(c, now);
	c->planned_version = c->map.version;
}

/* ---- servers ---- */

void tn_coord_init(tn_coord *c, const tn_coord_params *params, const tn_cl_map *map, uint64_t now)
{
	memset(c, 0, sizeof(*c));
	c->p = *params;
	if (map) {
		c->map = *map;
	} else {
		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			c->map.slot[i] = TN_CL_SLOT_NONE;
	}
	for (uint32_t i = 0; i < TN_CL_SERVERS_MAX; i++)
		c->member[i].dead_ns = tn_deadline(now, c->p.lease_ns + c->p.margin_ns);
	c->balance_at_ns = tn_deadline(now, c->p.balance_ns);
}

static bool is_it(const tn_coord *c, uint16_t server, uint64_t incarnation)
{
	const tn_cl_server *s = server < c->map.servers ? &c->map.server[server] : NULL;

	return s && s->incarnation == incarnation && s->state != TN_CL_FREE && s->state != TN_CL_GONE;
}

static void renewed(tn_coord *c, uint64_t now, uint16_t server)
{
	c->member[server].dead_ns = tn_deadline(now, c->p.lease_ns + (TN_MUTANT(201) ? 0 : c->p.margin_ns));
	if (c->map.server[server].state == TN_CL_DOWN && !TN_MUTANT(213))
		set_state(c, server, TN_CL_UP);
}

tern_status tn_coord_renew(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation)
{
	if (!is_it(c, server, incarnation))
		return tn_fail(TERN_E_NOT_FOUND, "the coordinator knows no such server (any more)");
	renewed(c, now, server);
	react(c, now);
	return TERN_OK;
}

void tn_coord_heard(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation, uint64_t seen)
{
	if (!is_it(c, server, incarnation) || seen > now || seen <= c->member[server].heard_ns)
		return;
	c->member[server].heard_ns = TN_MUTANT(205) ? now : seen;
	react(c, now);
}

/* A number that nobody needs: new, or of one that is down and has nothing. TN_CL_NONE: there is none. */
static uint16_t free_number(tn_coord *c)
{
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (c->map.server[i].state == TN_CL_FREE)
			return (uint16_t)i;
	if (c->map.servers < TN_CL_SERVERS_MAX)
		return (uint16_t)c->map.servers++;
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (c->map.server[i].state == TN_CL_DOWN && !is_named(c, (uint16_t)i)) {
			set_state(c, (uint16_t)i, TN_CL_FREE);
			return (uint16_t)i;
		}
	return TN_CL_NONE;
}

/* Others at that address are not there any more, once their leases are over. */
static bool replace(tn_coord *c, const char *address)
{
	for (uint32_t i = 0; i < c->map.servers; i++) {
		const tn_cl_server *s = &c->map.server[i];

		if (s->state == TN_CL_FREE || s->state == TN_CL_GONE || strcmp(s->address, address) != 0)
			continue;
		if (tn_cl_alive(&c->map, (uint16_t)i) && !TN_MUTANT(206))
			return false;
		set_state(c, (uint16_t)i, TN_CL_GONE);
	}
	return true;
}

tern_status tn_coord_join(tn_coord *c, uint64_t now, const char *address, uint64_t incarnation, uint32_t maps,
			  uint16_t *server)
{
	size_t n = strlen(address);

	*server = tn_cl_map_find(&c->map, address, incarnation);
	if (*server != TN_CL_NONE)
		return tn_coord_renew(c, now, *server, incarnation);
	if (n == 0 || n >= TN_ADDRESS_MAX || incarnation == 0)
		return tn_fail(TERN_E_INVALID, "a server has an address and an incarnation");
	if (!replace(c, address))
		return TERN_AGAIN;
	settle(c);
	*server = free_number(c);
	if (*server == TN_CL_NONE)
		return tn_fail(TERN_E_LIMIT, "%u servers are in the map: more can't be", TN_CL_SERVERS_MAX);
	c->map.server[*server].incarnation = incarnation;
	memcpy(c->map.server[*server].address, address, n + 1);
	c->member[*server] = (tn_coord_member){.heard_ns = now, .maps = maps};
	set_state(c, *server, TN_CL_UP);
	renewed(c, now, *server);
	react(c, now);
	return TERN_OK;
}

tern_status tn_coord_leave(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation)
{
	if (!is_it(c, server, incarnation))
		return tn_fail(TERN_E_NOT_FOUND, "the coordinator knows no such server (any more)");
	set_state(c, server, TN_CL_GONE);
	react(c, now);
	return TERN_OK;
}

static void goes_down(tn_coord *c, uint64_t now, uint16_t server)
{
	c->member[server].down_ns = now;
	set_state(c, server, TN_CL_DOWN);
}

void tn_coord_died(tn_coord *c, uint64_t now, uint16_t server)
{
	if (server < c->map.servers && tn_cl_alive(&c->map, server))
		goes_down(c, now, server);
	react(c, now);
}

/* ---- reports ---- */

static void suspect(tn_coord *c, uint64_t now, uint16_t server)
{
	c->member[server].suspect_ns = tn_deadline(now, c->p.lease_ns + c->p.margin_ns);
}

static void next_fact(tn_coord *c, uint64_t now, const tn_coord_fact *f)
{
	tn_cl_slot *s = &c->map.slot[f->slot];

	if (f->what == TN_REPORT_LOST) {
		suspect(c, now, s->next);
		tn_coord_slot_next(c, f->slot, TN_CL_NONE, s->flags);
	} else {
		promote_next(c, f->slot, TN_CL_IN_SYNC);
	}
}

static void lost(tn_coord *c, uint64_t now, uint32_t slot)
{
	tn_cl_slot *s = &c->map.slot[slot];

	suspect(c, now, s->backup);
	if (s->next != TN_CL_NONE)
		promote_next(c, slot, 0);
	else
		tn_coord_slot_set(c, slot, s->primary, TN_CL_NONE, 0);
}

/* The primary has let go of a slot of which the backup has everything: they change places. */
static void released(tn_coord *c, uint32_t slot)
{
	tn_cl_slot *s = &c->map.slot[slot];

	if (!tn_cl_alive(&c->map, s->backup) || s->next != TN_CL_NONE)
		return;
	if (tn_coord_keeps_copies(c) && tn_cl_alive(&c->map, s->primary))
		tn_coord_slot_set(c, slot, s->backup, s->primary, TN_CL_IN_SYNC);
	else
		tn_coord_slot_set(c, slot, s->backup, TN_CL_NONE, 0);
}

static void fact(tn_coord *c, uint64_t now, uint16_t server, const tn_coord_fact *f)
{
	tn_cl_slot *s = f->slot < TN_CL_SLOTS ? &c->map.slot[f->slot] : NULL;

	if (!s || s->primary != server || s->backup == TN_CL_NONE)
		return;
	if (s->next != TN_CL_NONE && s->next_epoch == f->epoch) {
		next_fact(c, now, f);
		return;
	}
	if (s->epoch != f->epoch && !TN_MUTANT(203))
		return;
	if (f->what == TN_REPORT_LOST) {
		lost(c, now, f->slot);
	} else if (f->what == TN_REPORT_SYNCED) {
		if (!(s->flags & TN_CL_IN_SYNC))
			tn_coord_slot_flag(c, f->slot, s->flags | TN_CL_IN_SYNC);
	} else if (f->what == TN_REPORT_RELEASED && (s->flags & TN_CL_MOVE)) {
		released(c, f->slot);
	}
}

tern_status tn_coord_facts(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation,
			   const tn_coord_fact *facts, uint32_t n)
{
	if (!is_it(c, server, incarnation))
		return tn_fail(TERN_E_NOT_FOUND, "the coordinator knows no such server (any more)");
	for (uint32_t i = 0; i < n; i++)
		fact(c, now, server, &facts[i]);
	react(c, now);
	return TERN_OK;
}

void tn_coord_load(tn_coord *c, uint16_t server, uint16_t slot, uint32_t keys)
{
	if (slot < TN_CL_SLOTS && c->map.slot[slot].primary == server)
		c->load[slot] = (uint32_t)((c->load[slot] * 3ull + keys) / 4);
}

/* ---- people ---- */

static uint32_t count_up(const tn_coord *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->map.servers; i++)
		n += c->map.server[i].state == TN_CL_UP;
	return n;
}

tern_status tn_coord_drain(tn_coord *c, uint64_t now, uint16_t server)
{
	uint8_t state = server < c->map.servers ? c->map.server[server].state : TN_CL_FREE;

	if (state == TN_CL_DRAINING)
		return TERN_OK;
	if (state != TN_CL_UP)
		return tn_fail(TERN_E_NOT_FOUND, "server %u is not alive", server);
	if (count_up(c) == 1)
		return tn_fail(TERN_E_STATE, "server %u is the last one: nobody could take its slots",
			       server);
	set_state(c, server, TN_CL_DRAINING);
	react(c, now);
	return TERN_OK;
}

tern_status tn_coord_undrain(tn_coord *c, uint64_t now, uint16_t server)
{
	if (server >= c->map.servers || c->map.server[server].state != TN_CL_DRAINING)
		return tn_fail(TERN_E_NOT_FOUND, "server %u is not being drained", server);
	set_state(c, server, TN_CL_UP);
	react(c, now);
	return TERN_OK;
}

/* The one with the fewest slots; TN_CL_NONE. */
static uint16_t least(const tn_coord *c)
{
	uint32_t count[TN_CL_SERVERS_MAX] = {0};
	uint16_t best = TN_CL_NONE;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->map.slot[i].primary != TN_CL_NONE)
			count[c->map.slot[i].primary]++;
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (c->map.server[i].state == TN_CL_UP && (best == TN_CL_NONE || count[i] < count[best]))
			best = (uint16_t)i;
	return best;
}

tern_status tn_coord_give_up(tn_coord *c, uint64_t now, uint16_t server)
{
	uint8_t state = server < c->map.servers ? c->map.server[server].state : TN_CL_FREE;

	if (state != TN_CL_DOWN && state != TN_CL_GONE)
		return tn_fail(TERN_E_STATE, "server %u is not dead", server);
	if (count_up(c) == 0)
		return tn_fail(TERN_E_STATE, "no server is there to take the slots of server %u", server);
	if (state == TN_CL_DOWN)
		set_state(c, server, TN_CL_GONE);
	settle(c);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (c->map.slot[i].primary == server)
			tn_coord_slot_set(c, i, least(c), TN_CL_NONE, TN_CL_FRESH);
	react(c, now);
	return TERN_OK;
}

void tn_coord_balance(tn_coord *c)
{
	c->balance_at_ns = 0;
}

void tn_coord_pause(tn_coord *c, bool paused)
{
	c->paused = paused;
	c->planned_version = UINT64_MAX;
}

/* ---- time ---- */

void tn_coord_tick(tn_coord *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->map.servers; i++)
		if (tn_cl_alive(&c->map, (uint16_t)i) && now >= c->member[i].dead_ns)
			goes_down(c, now, (uint16_t)i);
	if (now >= c->balance_at_ns) {
		c->balance_at_ns = tn_deadline(now, c->p.balance_ns);
		c->planned_version = UINT64_MAX;
	}
	for (uint32_t i = 0; i < c->map.servers; i++) /* suspicions that are over let copies begin */
		if (c->member[i].suspect_ns && now >= c->member[i].suspect_ns) {
			c->member[i].suspect_ns = 0;
			c->planned_version = UINT64_MAX;
		}
	react(c, now);
}

uint64_t tn_coord_wake(const tn_coord *c)
{
	uint64_t wake = c->balance_at_ns;

	for (uint32_t i = 0; i < c->map.servers; i++) {
		const tn_coord_member *m = &c->member[i];

		if (tn_cl_alive(&c->map, (uint16_t)i))
			wake = TN_MIN(wake, m->dead_ns);
		if (m->suspect_ns)
			wake = TN_MIN(wake, m->suspect_ns);
	}
	return wake;
}

void tn_coord_check(const tn_coord *c)
{
	uint32_t copies = 0;

	TN_ASSERT(tn_cl_map_valid(&c->map));
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &c->map.slot[i];
		bool primary = tn_cl_alive(&c->map, s->primary), backup = tn_cl_alive(&c->map, s->backup);

		copies += (s->backup != TN_CL_NONE && !(s->flags & TN_CL_IN_SYNC)) + (s->next != TN_CL_NONE);
		TN_ASSERT(s->next == TN_CL_NONE || tn_cl_alive(&c->map, s->next));
		/* settled: one dead and one alive is not left as it is, but for want of a word of the primary */
		TN_ASSERT(s->backup == TN_CL_NONE || primary == backup || c->waiting);
		TN_ASSERT((s->primary == TN_CL_NONE) == (c->map.slot[0].primary == TN_CL_NONE));
	}
	TN_ASSERT(copies <= c->p.moves);
}

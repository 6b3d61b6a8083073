/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator among servers that die, stall, restart and lose messages, by one seed each: servers that follow the
 * contract of cluster.h on a few slots, with rows that are sets of writes; a client that writes and reads.
 *
 *   always     a read has everything that was acknowledged or read before it began (so no second primary answered); of two
 *   servers one at most may serve a slot, by its lease and its map
 *   in the end, when all is healed: every slot has a living primary and its copies, what was acknowledged is there, drained
 *   servers have nothing
 *
 * One failure at a time: a server is killed only while the others have what it has. Stalls, lost messages and partitions
 * come as they like. Arguments: number of seeds, first seed, a slot to follow; in a build with TERN_MUTANTS: --mutants
 * [number [seeds]].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "support/planted.h"
#include "base/mutant.h"
#include "base/rand.h"
#include "cluster/coord.h"
#include "cmocka_all.h"

#define SERVERS 5
#define SAMPLES 4
#define WRITES  256 /* of a slot */
#define LEASE   10000u
#define MARGIN  1000u
#define COORD   SERVERS

static const uint16_t sample[SAMPLES] = {0, 1365, 2731, 4095};

typedef struct set {
	uint64_t bits[WRITES / 64];
} set;

typedef struct view { /* of the map: what is looked at */
	uint64_t version;
	uint8_t state[2 * SERVERS + 8];
	tn_cl_slot slot[SAMPLES];
} view;

typedef enum kind { JOIN, RENEW, FACTS, MAP, WRITE, READ, COPY, COPIED, POLL, TICK } kind;

typedef struct event {
	uint64_t at, order; /* order: of those at one time */
	kind kind;
	int from, to;
	uint64_t incarnation; /* of the server that it is from or to: another one ignores it */
	uint16_t number;
	uint64_t sent; /* local time of a renewal */
	uint64_t seen; /* the coordinator's time of an answer */
	bool granted;
	int s; /* sample */
	uint32_t epoch, seq;
	int id;
	set rows;
	view map;
	tn_coord_fact facts[SAMPLES];
	uint32_t fact_count;
} event;

typedef struct waiting {
	int id;       /* write; -1: a read */
	uint32_t seq; /* of the stream, that must be confirmed */
	set before;   /* read: what it has to have; and what it has */
	set rows;
} waiting;

typedef struct part { /* a slot at a server */
	uint32_t epoch;
	int role; /* 0 none, 1 backup, 2 primary */
	set rows;
	bool released;
	uint32_t next, confirmed; /* primary: entries sent, entries confirmed; backup: entries taken */
	uint64_t sent_at;         /* when the oldest that is not confirmed was sent */
	waiting wait[64];
	unsigned waits;
} part;

typedef struct server {
	bool running;
	int address; /* its own, or for a while that of another one, which may run still */
	uint64_t incarnation, start_at, stalled_until;
	uint16_t number;
	double rate; /* of its clock */
	uint64_t lease_until, seen;
	view map;
	part part[SAMPLES];
} server;

typedef struct world {
	tn_rand rand;
	uint64_t now, end;
	bool healing;
	tn_coord *c;
	uint32_t replicas;
	uint32_t maps[SERVERS];
	server s[SERVERS];
	uint64_t cut[SERVERS + 1][SERVERS + 1]; /* no messages until then */
	uint64_t pushed;                        /* version that was told to all */
	event **queue;                          /* a heap: the next one first */
	uint64_t posted;
	unsigned events, room;
	set acked[SAMPLES], seen[SAMPLES];
	int next_id[SAMPLES];
	uint64_t reads, writes, kills, thefts, quiet_until, still_until, burst_at;
	uint32_t bad_slot;
	const char *why;
} world;

static uint64_t below(world *w, uint64_t n)
{
	return tn_rand_below(&w->rand, n);
}

static bool has(const set *all, const set *some)
{
	for (unsigned i = 0; i < WRITES / 64; i++)
		if (some->bits[i] & ~all->bits[i])
			return false;
	return true;
}

static void put(set *s, int id)
{
	s->bits[id / 64] |= 1ull << (id % 64);
}

static void join_sets(set *s, const set *more)
{
	for (unsigned i = 0; i < WRITES / 64; i++)
		s->bits[i] |= more->bits[i];
}

static uint64_t local(const world *w, const server *s)
{
	return (uint64_t)((double)w->now * s->rate);
}

/* ---- messages ---- */

static bool earlier(const event *a, const event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void post(world *w, event *e, uint64_t after)
{
	unsigned i = w->events++;
	event *kept = malloc(sizeof(*kept));

	e->at = w->now + after;
	e->order = w->posted++;
	if (i == w->room) {
		w->room = w->room ? 2 * w->room : 256;
		w->queue = realloc(w->queue, w->room * sizeof(*w->queue));
	}
	TN_ASSERT(kept && w->queue);
	*kept = *e;
	for (; i > 0 && earlier(kept, w->queue[(i - 1) / 2]); i = (i - 1) / 2)
		w->queue[i] = w->queue[(i - 1) / 2];
	w->queue[i] = kept;
}

static event take_first(world *w)
{
	event e = *w->queue[0], *last = w->queue[--w->events];
	unsigned i = 0, child;

	free(w->queue[0]);
	while ((child = 2 * i + 1) < w->events) {
		child += child + 1 < w->events && earlier(w->queue[child + 1], w->queue[child]);
		if (!earlier(w->queue[child], last))
			break;
		w->queue[i] = w->queue[child];
		i = child;
	}
	if (w->events)
		w->queue[i] = last;
	return e;
}

static void send_to(world *w, event *e)
{
	uint64_t delay = 20 + below(w, 200);

	if (!w->healing && below(w, 50) == 0)
		return; /* lost */
	if (!w->healing && below(w, 20) == 0)
		delay += below(w, 3 * LEASE);
	if (w->cut[e->from][e->to] > w->now)
		return;
	post(w, e, delay);
}

static view view_of(const tn_cl_map *map)
{
	view v = {.version = map->version};

	for (uint32_t i = 0; i < map->servers && i < sizeof(v.state); i++)
		v.state[i] = map->server[i].state;
	for (int i = 0; i < SAMPLES; i++)
		v.slot[i] = map->slot[sample[i]];
	return v;
}

/* Server behind a number; -1: none that runs as that. */
static int who(const world *w, uint16_t number)
{
	for (int i = 0; i < SERVERS; i++)
		if (number != TN_CL_NONE && w->s[i].running && w->s[i].number == number)
			return i;
	return -1;
}

/* ---- servers ---- */

static bool leased(const world *w, const server *s)
{
	return local(w, s) < s->lease_until;
}

static void answer(world *w, int i, waiting *wait)
{
	if (wait->id >= 0) {
		put(&w->acked[i], wait->id);
		w->writes++;
		return;
	}
	w->reads++;
	if (!has(&wait->rows, &wait->before))
		w->why = "a read misses what was acknowledged or read before";
	join_sets(&w->seen[i], &wait->rows);
}

/* Whatever is confirmed is answered, under the lease. */
static void answer_all(world *w, server *s, int i)
{
	part *p = &s->part[i];
	bool alone = s->map.slot[i].backup == TN_CL_NONE;
	unsigned kept = 0;

	for (unsigned k = 0; k < p->waits; k++) {
		waiting *wait = &p->wait[k];

		if (p->role == 2 && leased(w, s) && (alone || wait->seq < p->confirmed) &&
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
	int to = who(w, s->map.slot[i].backup);
	event e = {.kind = COPY, .from = me, .to = to, .s = i, .epoch = p->epoch, .seq = p->next++};

	if (p->confirmed + 1 == p->next)
		p->sent_at = w->now;
	e.rows = p->rows;
	if (to < 0)
		return;
	e.incarnation = w->s[to].incarnation;
	send_to(w, &e);
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

static void take_map(world *w, int me, const view *map)
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

static void on_request(world *w, event *e)
{
	server *s = &w->s[e->to];
	part *p = &s->part[e->s];
	waiting wait = {.id = e->id, .before = e->rows};

	if (p->role != 2 || p->released || !leased(w, s) || p->waits == 64 ||
	    s->map.slot[e->s].primary != s->number)
		return;
	if (e->kind == WRITE) {
		put(&p->rows, e->id);
		if (s->map.slot[e->s].backup != TN_CL_NONE)
			copy(w, e->to, e->s);
	}
	wait.rows = p->rows;
	wait.seq = p->next ? p->next - 1 : 0;
	p->wait[p->waits++] = wait;
	answer_all(w, s, e->s);
}

static void on_copy(world *w, event *e)
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
	send_to(w, &r);
}

static void on_copied(world *w, event *e)
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

/* Slots that are not looked at are copied at once. */
static void bulk(world *w, server *s)
{
	static tn_coord_fact facts[TN_CL_SLOTS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *slot = &w->c->map.slot[i];
		bool looked_at = false;

		for (int k = 0; k < SAMPLES; k++)
			looked_at |= sample[k] == i;
		if (looked_at || slot->primary != s->number || who(w, slot->backup) < 0)
			continue;
		facts[n++] = (tn_coord_fact){.slot = (uint16_t)i,
					     .epoch = slot->epoch,
					     .what = slot->flags & TN_CL_MOVE ? TN_REPORT_RELEASED
									      : TN_REPORT_SYNCED};
	}
	if (n)
		(void)tn_coord_facts(w->c, w->now, s->number, s->incarnation, facts, n);
}

static void poll_server(world *w, int me)
{
	server *s = &w->s[me];
	event e = {.from = me, .to = COORD, .incarnation = s->incarnation, .number = s->number};
	event again = {.kind = POLL, .from = me, .to = me, .incarnation = s->incarnation};

	post(w, &again, 300 + below(w, 300));
	e.sent = local(w, s);
	e.seen = s->seen;
	e.kind = s->number == TN_CL_NONE ? JOIN : RENEW;
	send_to(w, &e);
	for (int i = 0; i < SAMPLES && s->number != TN_CL_NONE; i++) {
		uint8_t what = finding(w, s, i);

		answer_all(w, s, i);
		if (what)
			e.facts[e.fact_count++] =
				(tn_coord_fact){.slot = sample[i], .what = what, .epoch = s->part[i].epoch};
	}
	e.kind = FACTS;
	if (e.fact_count)
		send_to(w, &e);
}

static void start(world *w, int i)
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
	post(w, &e, 1);
}

/* ---- the coordinator's side ---- */

static void tell(world *w, int to, event *e)
{
	event r = {.kind = MAP, .from = COORD, .to = to, .incarnation = e->incarnation, .sent = e->sent};

	r.number = e->number;
	r.granted = e->granted;
	r.map = view_of(&w->c->map);
	r.seen = w->now;
	send_to(w, &r);
}

static void at_coordinator(world *w, event *e)
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
			bulk(w, &w->s[e->from]);
	}
	e->granted = status == TERN_OK;
	tell(w, e->from, e);
}

static void on_map(world *w, event *e)
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
	take_map(w, e->to, &e->map);
}

static int follow = -1;

static void print_slot(const world *w, uint32_t i)
{
	const tn_cl_slot *slot = &w->c->map.slot[i];

	printf("  %8llu slot %u: primary %d (process %d), backup %d (process %d), epoch %u, flags %u\n",
	       (unsigned long long)w->now, i, (int16_t)slot->primary, who(w, slot->primary),
	       (int16_t)slot->backup, who(w, slot->backup), slot->epoch, slot->flags);
}

static void push_maps(world *w)
{
	if (w->pushed == w->c->map.version)
		return;
	w->pushed = w->c->map.version;
	tn_coord_check(w->c);
	if (follow >= 0)
		print_slot(w, (uint32_t)follow);
	for (int i = 0; i < SERVERS; i++) {
		event e = {.incarnation = w->s[i].incarnation, .number = w->s[i].number};

		if (w->s[i].running && w->s[i].number != TN_CL_NONE)
			tell(w, i, &e);
	}
}

/* ---- what happens to them ---- */

static void client(world *w)
{
	int asked = (int)below(w, SERVERS), i = (int)below(w, SAMPLES), to;
	event e = {.s = i, .id = -1};

	if (!w->s[asked].running)
		return;
	to = who(w, w->s[asked].map.version ? w->s[asked].map.slot[i].primary : TN_CL_NONE);
	e.kind = below(w, 2) && w->next_id[i] < WRITES ? WRITE : READ;
	if (to < 0)
		return;
	if (e.kind == WRITE)
		e.id = w->next_id[i]++;
	e.rows = w->acked[i];
	join_sets(&e.rows, &w->seen[i]);
	e.from = e.to = to;
	e.incarnation = w->s[to].incarnation;
	post(w, &e, below(w, 300));
}

static bool is_well(const world *w, uint16_t number)
{
	int i = who(w, number);

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

	e.sent = local(w, s);
	e.seen = s->seen;
	for (int n = 0; n < 3; n++)
		post(w, &e, below(w, 2 * LEASE));
	if (below(w, 2))
		w->s[below(w, SERVERS)].stalled_until = w->now + LEASE + below(w, 2 * LEASE);
}

static void trouble(world *w)
{
	int i = (int)below(w, SERVERS), k = (int)below(w, SERVERS + 1);
	server *s = &w->s[i];
	uint64_t what = below(w, 6);

	if (w->now < w->still_until)
		return;

	/* after a death others may be held up, but nobody else dies or goes */
	if (w->now < w->quiet_until && what != 1 && what != 2)
		return;
	switch (what) {
	case 0:
		if (below(w, 2) == 0 && s->running && s->number != TN_CL_NONE && may_kill(w, i)) {
			s->running = false;
			s->start_at = w->now + below(w, 4 * LEASE);
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
		s->stalled_until = w->now + below(w, 3 * LEASE);
		break;
	case 2:
	case 3:
		k = below(w, 2) ? COORD : k;
		w->cut[i][k] = w->now + below(w, 2 * LEASE);
		if (below(w, 2))
			w->cut[k][i] = w->cut[i][k];
		break;
	case 4:
		for (uint32_t n = 0; n < w->c->map.servers; n++)
			if (below(w, 2))
				(void)tn_coord_undrain(w->c, w->now, (uint16_t)n);
		if (s->number != TN_CL_NONE && below(w, 2))
			(void)tn_coord_drain(w->c, w->now, s->number);
		break;
	default:
		tn_coord_load(w->c, s->number, sample[below(w, SAMPLES)], (uint32_t)below(w, 100000));
		tn_coord_balance(w->c);
	}
}

/* Who starts says that it is at the address of another one, which runs and is well: that one is not to be replaced. */
static void steal(world *w, int i)
{
	int victim = (int)below(w, SERVERS);
	const server *s = &w->s[victim];

	if (w->healing || victim == i || s->address != victim || w->now < w->still_until ||
	    !is_well(w, s->number) || w->cut[COORD][victim] > w->now ||
	    w->c->member[s->number].dead_ns < w->now + LEASE)
		return;
	w->s[i].address = victim;
	w->still_until = w->now + LEASE / 2;
	w->thefts++;
}

static void end_thefts(world *w)
{
	for (int i = 0; i < SERVERS; i++)
		if (w->s[i].running && w->s[i].address != i && w->s[i].number == TN_CL_NONE &&
		    w->now >= w->still_until)
			w->s[i].address = i;
}

/* ---- the run ---- */

static void one_serves(world *w)
{
	for (int i = 0; i < SAMPLES; i++)
		for (int k = 0, n = 0; k < SERVERS; k++) {
			const server *s = &w->s[k];

			n += s->running && s->part[i].role == 2 && !s->part[i].released && leased(w, s);
			if (n > 1)
				w->why = "two servers serve a slot";
		}
}

static void handle(world *w, event *e)
{
	server *s = e->to < SERVERS ? &w->s[e->to] : NULL;

	if (!s && e->kind == TICK)
		tn_coord_tick(w->c, w->now);
	else if (!s)
		at_coordinator(w, e);
	if (!s || !s->running || s->incarnation != e->incarnation)
		return;
	if (s->stalled_until > w->now) {
		post(w, e, s->stalled_until - w->now);
		return;
	}
	if (e->kind == MAP)
		on_map(w, e);
	else if (e->kind == WRITE || e->kind == READ)
		on_request(w, e);
	else if (e->kind == COPY)
		on_copy(w, e);
	else if (e->kind == COPIED)
		on_copied(w, e);
	else if (e->kind == POLL)
		poll_server(w, e->to);
}

static void run_until(world *w, uint64_t end)
{
	while (w->now < end && !w->why) {
		bool changed;
		event e;

		TN_ASSERT(w->events > 0);
		e = take_first(w);
		one_serves(w);
		w->now = e.at > w->now ? e.at : w->now;
		handle(w, &e);
		if (e.kind == TICK)
			post(w, &e, 200);
		if (w->now >= w->quiet_until && w->c->paused)
			tn_coord_pause(w->c, false);
		if (e.kind == TICK && !w->healing && below(w, 2) == 0)
			trouble(w);
		if (below(w, 3) == 0)
			client(w);
		for (int i = 0; i < SERVERS; i++)
			if (!w->s[i].running && w->s[i].start_at <= w->now) {
				start(w, i);
				steal(w, i);
			}
		end_thefts(w);
		changed = w->pushed != w->c->map.version && w->now >= w->burst_at;
		push_maps(w);
		for (int i = 0; changed && i < 8; i++) /* who answers just now? */
			client(w);
		w->burst_at = changed ? w->now + 50 : w->burst_at;
	}
}

/* NULL: all is as it should be in the end. */
static const char *judge(world *w)
{
	const char *why = NULL;

	for (uint32_t i = 0; i < TN_CL_SLOTS && !why; i++) {
		const tn_cl_slot *slot = &w->c->map.slot[i];
		int k = who(w, slot->primary);

		if (k < 0 || !tn_cl_alive(&w->c->map, slot->primary))
			why = "a slot has no primary in the end";
		else if (w->replicas == 2 && !(slot->flags & TN_CL_IN_SYNC))
			why = "a slot has one copy in the end";
		else if (w->c->map.server[slot->primary].state == TN_CL_DRAINING)
			why = "a server that is drained has a slot in the end";
		w->bad_slot = i;
	}
	for (int i = 0; i < SAMPLES && !why; i++) {
		const server *s = &w->s[who(w, w->c->map.slot[sample[i]].primary)];

		if (!has(&s->part[i].rows, &w->acked[i]) || !has(&s->part[i].rows, &w->seen[i]))
			why = "what was acknowledged is gone in the end";
	}
	return why;
}

static void heal(world *w)
{
	w->healing = true;
	memset(w->cut, 0, sizeof(w->cut));
	for (int i = 0; i < SERVERS; i++)
		w->s[i].stalled_until = 0;
	for (int i = 0; i < 60 && !w->why && (i < 4 || judge(w)); i++)
		run_until(w, w->now + LEASE);
	w->why = w->why ? w->why : judge(w);
}

static void dump(const world *w)
{
	for (int i = 0; i < SERVERS; i++)
		printf("  process %d: running %d, number %d, map %llu\n", i, w->s[i].running, w->s[i].number,
		       (unsigned long long)w->s[i].map.version);
	for (uint32_t i = 0; i < w->c->map.servers; i++)
		printf("  server %u: state %u\n", i, w->c->map.server[i].state);
	for (int i = 0; i < SAMPLES; i++)
		print_slot(w, sample[i]);
	print_slot(w, w->bad_slot);
}

static bool one_seed(uint64_t seed, uint64_t *work)
{
	world *w = calloc(1, sizeof(*w));
	tn_coord_params p = {.lease_ns = LEASE, .margin_ns = MARGIN, .balance_ns = 5 * LEASE, .moves = 2000};
	event tick = {.kind = TICK, .to = COORD};
	bool good;

	w->rand.state = seed;
	w->c = calloc(1, sizeof(*w->c));
	w->replicas = p.replicas = 1 + (below(w, 4) > 0);
	p.first = 1 + (uint32_t)below(w, 3);
	p.moves = below(w, 2) ? 4096 : 300;
	tn_coord_init(w->c, &p, NULL, 0);
	for (int i = 0; i < SERVERS; i++) {
		w->maps[i] = 0;
		/* as far off as the margin allows: slow ones are those whose leases last */
		w->s[i].rate = below(w, 2) ? 0.92 : 0.92 + 0.16 * tn_rand_double(&w->rand);
		w->s[i].start_at = below(w, 2) ? 0 : below(w, 10 * LEASE);
	}
	w->s[0].start_at = 0;
	post(w, &tick, 1);
	run_until(w, 60 * LEASE);
	heal(w);
	good = !w->why;
	if (!good && !TN_ANY_MUTANT)
		printf("seed %llu, at %llu, replicas %u: %s\n", (unsigned long long)seed,
		       (unsigned long long)w->now, w->replicas, w->why);
	if (!good && !TN_ANY_MUTANT)
		dump(w);
	work[0] += w->reads;
	work[1] += w->writes;
	work[2] += w->kills;
	work[3] += w->c->map.version;
	work[4] += w->thefts;
	while (w->events)
		(void)take_first(w);
	free((void *)w->queue);
	free(w->c);
	free(w);
	return good;
}

static uint64_t first_seed = 1, seeds = 30;

static void seeds_hold(void **state)
{
	uint64_t work[5] = {0}, bad = 0;

	(void)state;
	for (uint64_t i = 0; i < seeds && bad < 5; i++)
		bad += !one_seed(first_seed + i, work);
	printf("%llu reads, %llu writes, %llu kills, %llu versions, %llu thefts\n",
	       (unsigned long long)work[0], (unsigned long long)work[1], (unsigned long long)work[2],
	       (unsigned long long)work[3], (unsigned long long)work[4]);
	assert_int_equal(bad, 0);
	assert_true(work[0] > seeds * 50 && work[1] > seeds * 20 && work[2] > seeds / 8);
}

#ifdef TN_MUTANTS

static const planted_bug planted[] = {
	PLANTED_COORD,
	/* The simulator of replication does not find these in some hundred seeds. */
	{205, "what was said long ago proves that its server is alive"},
	{206, "a server is replaced while its lease runs"},
	{210, "a slot that goes on alone keeps its epoch"},
	{212, "the number of a server that is gone is given away while slots name it"},
	{215, "a server that is drained keeps what it is primary of"},
};

static bool seed_holds(uint64_t seed)
{
	uint64_t work[5] = {0};

	return one_seed(seed, work);
}

#endif

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(seeds_hold)};

#ifdef TN_MUTANTS
	if (argc > 1 && strcmp(argv[1], "--mutants") == 0)
		return planted_find(planted, TN_COUNT_OF(planted), seed_holds, argc > 2 ? atoi(argv[2]) : 0,
				    argc > 3 ? strtoull(argv[3], NULL, 10) : 1000);
#endif
	if (argc > 1)
		seeds = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		first_seed = strtoull(argv[2], NULL, 10);
	if (argc > 3)
		follow = atoi(argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

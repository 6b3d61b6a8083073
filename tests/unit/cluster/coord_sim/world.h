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
 * come as they like.
 *
 * Files: net.c messages; server.c; coordinator.c what is around it; fault.c clients, and what goes wrong; judge.c; main.c runs,
 * arguments, planted bugs. Threads: none.
 */
#ifndef TN_TESTS_COORD_WORLD_H
#define TN_TESTS_COORD_WORLD_H

#include "base/check.h"
#include "base/rand.h"
#include "cluster/coord.h"

#define SERVERS 5
#define SAMPLES 4
#define WRITES  256 /* of a slot */
#define LEASE   10000u
#define MARGIN  1000u
#define COORD   SERVERS

extern const uint16_t sample[SAMPLES]; /* slots that are looked at */

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

extern int follow; /* a slot whose fate is printed, or -1 */

static inline uint64_t world_below(world *w, uint64_t n)
{
	return tn_rand_below(&w->rand, n);
}

static inline bool set_has(const set *all, const set *some)
{
	for (unsigned i = 0; i < WRITES / 64; i++)
		if (some->bits[i] & ~all->bits[i])
			return false;
	return true;
}

static inline void set_put(set *s, int id)
{
	s->bits[id / 64] |= 1ull << (id % 64);
}

static inline void set_join(set *s, const set *more)
{
	for (unsigned i = 0; i < WRITES / 64; i++)
		s->bits[i] |= more->bits[i];
}

static inline uint64_t server_time(const world *w, const server *s)
{
	return (uint64_t)((double)w->now * s->rate);
}

/* ---- net.c ---- */

/* After so much time, whatever happens. */
void net_post(world *w, event *e, uint64_t after);
event net_take(world *w); /* the first; there is one */
/* Late, or never. */
void net_send(world *w, event *e);
/* Server behind a number; -1: none that runs as that. */
int world_who(const world *w, uint16_t number);

/* ---- server.c ---- */

bool server_leased(const world *w, const server *s);
void server_start(world *w, int i);
/* What comes to it: a map, a write or read, a copy of rows, the answer to one; and when it looks around. */
void server_on_map(world *w, event *e);
void server_on_request(world *w, event *e);
void server_on_copy(world *w, event *e);
void server_on_copied(world *w, event *e);
void server_poll(world *w, int me);

/* ---- coordinator.c ---- */

void coord_on(world *w, event *e);
void coord_push_maps(world *w); /* those that are new */
void coord_print_slot(const world *w, uint32_t i);

/* ---- fault.c ---- */

void client_asks(world *w);
void fault_trouble(world *w);
void fault_steal(world *w, int i);
void fault_end_thefts(world *w);

/* ---- judge.c ---- */

void judge_serving(world *w);
const char *judge_end(world *w);
void judge_dump(const world *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator: decides who has which slot. A pure state machine: what servers say and the time are arguments, the map is
 * what comes out of it.
 *
 *   servers     FREE -join-> UP -drain-> DRAINING
 *               UP, DRAINING -lease over-> DOWN -renew of the same incarnation-> UP
 *               any -leave, or another incarnation at its address, or given up-> GONE -no slot names it-> FREE
 *   slots       see map.h
 *
 *   A server is taken for dead lease + margin after its last renewal came in. It counts its lease from when it sent it, so
 *   its lease is over by then as long as clocks differ by less than margin in that time.
 *   Only an IN_SYNC backup becomes primary: when the primary is dead, or has let go of the slot (released).
 *   A slot whose primary is dead and has no such backup waits for the primary; tn_coord_give_up starts it anew, empty.
 *   When one of the two is taken for dead, the other takes over, or goes on alone, only when it has been heard of since: it may
 *   be as dead, and not noticed yet. If both are, the one that comes back first has what was acknowledged.
 *   A slot that has two copies keeps them while it is moved: a third server is `next`, and when it has everything it is the
 *   backup; who hands a slot over is the new primary's backup, in sync. That asks of all servers alive that they read such
 *   maps (TN_CL_VERSION). While one does not, a copy is given up instead to be made elsewhere: for as long as that takes, the slot
 *   has one. Who is drained of the last two keeps its copies until it serves nothing. No such thing is begun while a server is silent, or (with next ones neither) while the coordinator is paused.
 *   Copies under way (backups not in sync, next ones) <= moves, and no more than one for a slot.
 *
 * What is in `map` is the state that must not be lost; the rest (leases, loads, suspicions) can be made anew: a coordinator
 * that starts from a map gives all servers in it a full lease first.
 *
 * Threads: none; one at a time. Tests: tests/unit/cluster/coord_test.c, coord_sim/.
 */
#ifndef TN_CLUSTER_COORD_H
#define TN_CLUSTER_COORD_H

#include <tern/status.h>

#include "cluster/map.h"

typedef struct tn_coord_params {
	uint64_t lease_ns, margin_ns;
	uint64_t balance_ns; /* between two looks at loads */
	uint32_t replicas;   /* copies of a slot: 1 or 2 */
	uint32_t first;      /* slots are given out when so many servers are there */
	uint32_t moves;      /* copies under way at most */
} tn_coord_params;

typedef struct tn_coord_member {
	uint64_t dead_ns; /* taken for dead from then on */
	uint64_t
		heard_ns; /* it was alive then: the coordinator's time of the newest answer that it had when it spoke */
	uint64_t down_ns;    /* when it was taken for dead */
	uint64_t suspect_ns; /* until then somebody can't reach it: no new backups */
	uint32_t maps;       /* the newest version of maps that it reads */
} tn_coord_member;

typedef struct tn_coord {
	tn_coord_params p;
	tn_cl_map map;
	tn_coord_member member[TN_CL_SERVERS_MAX];
	uint32_t load[TN_CL_SLOTS]; /* keys a second, smoothed */
	uint64_t balance_at_ns;     /* next look at loads */
	bool balancing;             /* moves go on until servers are close to even */
	uint64_t planned_version;   /* map as of the last plan */
	bool waiting;               /* a survivor has to be heard of */
	bool paused;                /* nothing is moved */
} tn_coord;

/* map NULL: nothing is known yet. */
void tn_coord_init(tn_coord *c, const tn_coord_params *params, const tn_cl_map *map, uint64_t now);

/* ---- of servers ---- */

/*
 * The number of this server, which reads versions of maps up to `maps`; joining again is a renewal. TERN_AGAIN: the lease of another incarnation at that address still
 * runs, come again; TERN_E_LIMIT: no number is free; TERN_E_INVALID.
 */
tern_status tn_coord_join(tn_coord *c, uint64_t now, const char *address, uint64_t incarnation, uint32_t maps,
			  uint16_t *server);
/* TERN_E_NOT_FOUND: there is no such server any more: what it holds is worth nothing, it may join anew. */
tern_status tn_coord_renew(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation);

/*
 * It spoke, whatever it said. seen: the coordinator's time in the newest answer that it had; 0: it had none. What a server
 * said before it died may come late, but knows no newer time.
 */
void tn_coord_heard(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation, uint64_t seen);

typedef enum tn_coord_report {
	TN_REPORT_SYNCED = 1, /* by the primary: the backup has everything */
	TN_REPORT_RELEASED =
		2, /* by the primary of a slot with MOVE: that, and it does not serve the slot any more */
	TN_REPORT_LOST = 3, /* by the primary: the backup does not answer */
	TN_REPORTS
} tn_coord_report;

typedef struct tn_coord_fact {
	uint16_t slot;
	uint8_t what; /* tn_coord_report */
	uint32_t epoch;
} tn_coord_fact;

/* Has a map with this slot answered a report: it need not be repeated? */
static inline bool tn_coord_answered(const tn_cl_slot *slot, uint8_t what, uint32_t epoch)
{
	if (slot->next != TN_CL_NONE && slot->next_epoch == epoch)
		return false;
	return slot->epoch != epoch || (what == TN_REPORT_SYNCED && (slot->flags & TN_CL_IN_SYNC));
}

/* What is late or not the server's to say is ignored. TERN_E_NOT_FOUND as above. */
tern_status tn_coord_facts(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation,
			   const tn_coord_fact *facts, uint32_t n);
/* Keys a second of a slot, by its primary. */
void tn_coord_load(tn_coord *c, uint16_t server, uint16_t slot, uint32_t keys);
/* It serves nothing any more and will not come back. */
tern_status tn_coord_leave(tn_coord *c, uint64_t now, uint16_t server, uint64_t incarnation);

/* ---- of people, and of whoever else watches over servers ---- */

/* TERN_E_NOT_FOUND: no such server is alive; TERN_E_STATE: no other one could take its slots. */
tern_status tn_coord_drain(tn_coord *c, uint64_t now, uint16_t server);
/* Drained no more. TERN_E_NOT_FOUND. */
tern_status tn_coord_undrain(tn_coord *c, uint64_t now, uint16_t server);
/*
 * A dead server will not come back: slots that only it had go to others, without what was in them.
 * TERN_E_STATE: it is alive, or no other is.
 */
tern_status tn_coord_give_up(tn_coord *c, uint64_t now, uint16_t server);
/* Its lease is over: somebody else counted. */
void tn_coord_died(tn_coord *c, uint64_t now, uint16_t server);
/* Look at loads at the next tick. */
void tn_coord_balance(tn_coord *c);
/* Move nothing, or go on; copies for slots that have one go on. */
void tn_coord_pause(tn_coord *c, bool paused);

/* Leases that ended, copies to begin. Whenever tn_coord_wake says. */
void tn_coord_tick(tn_coord *c, uint64_t now);
uint64_t tn_coord_wake(const tn_coord *c);

/* Invariants. */
void tn_coord_check(const tn_coord *c);

/* ---- coord_plan.c ---- */

/* Slots given out, backups chosen, moves begun. */
void tn_coord_plan(tn_coord *c, uint64_t now);

/* ---- changes of a slot, the only ones ---- */

/* Do slots keep their copies while they are moved? */
bool tn_coord_keeps_copies(const tn_coord *c);
/* Another primary or backup, nobody next: the epoch grows. flags as in map.h; FRESH stays with its primary. */
void tn_coord_slot_set(tn_coord *c, uint32_t slot, uint16_t primary, uint16_t backup, uint8_t flags);
void tn_coord_slot_flag(tn_coord *c, uint32_t slot, uint8_t flags);
/* The backup stays, and `next` is copied to; TN_CL_NONE: nobody. */
void tn_coord_slot_next(tn_coord *c, uint32_t slot, uint16_t next, uint8_t flags);

#endif

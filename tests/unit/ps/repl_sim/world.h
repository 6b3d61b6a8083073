/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers, their coordinator and clients in virtual time, by one seed. What decides is what ships: the coordinator
 * (cluster/coord.h, its messages and maps through cluster/wire.h), slots, streams and backups (ps/repl*.h), tables, what is
 * known of pushes (ps/dedup.h), keys by server (ps/split.h). What is the simulator's: time, the network, and the few lines
 * that replicas.c, member.c and route.c put around those, with the same rules.
 *
 *   process   an address; it starts, dies, starts anew as another server; its clock is off by up to 8 %, and the margin is 10
 *   node      what a process has while it runs
 *   snap      a map as it went over the wire; messages, nodes and clients share it
 *   part      what one server does of an operation; asked for again until it is answered
 *
 *   rows      base 4: digit i of a key's row counts how often push i of that key was applied. A pull sees a set, and whether
 *             anything is in it twice (history.h). Rows of the last table come and go: one client, which pushes a number
 *             of its own and erases in turn, writes each (reg)
 *   steps     clients are members of a group too, whose steps are summed: what they stage has to be in the two tables of sums
 *             when its step is closed, once, and in the order of its senders (an oracle's bits); nothing before
 *   probe     an operation without a network: what somebody who is quick may see
 *
 * Files: net.c messages, deliveries; node.c servers, node_steps.c theirs of steps; client.c; steps.c members; fault.c what goes wrong; judge.c; main.c runs, coverage,
 * planted bugs. Threads: none.
 */
#ifndef TN_TESTS_PS_WORLD_H
#define TN_TESTS_PS_WORLD_H

#include "base/rand.h"
#include "cluster/host.h"
#include "history.h"
#include "ps/repl_commit.h"
#include "ps/server.h"
#include "ps/split.h"
#include "store/round.h"

#define PROCESSES 5u
#define COORD     PROCESSES
#define TICKS     6000u /* of trouble */
#define CLIENTS   4u
#define SENDERS   64u
#define AHEAD     3u /* operations of a client under way */
#define TABLES    5u
#define PLAIN     3u /* tables below are pushed to, those from here on get sums of steps: */
#define SUMS      3u /* digits as rows of the first ones */
#define ORDERED \
	4u /* numbers whose sum depends on their order, for an optimiser that knows how often it ran */
#define COMES     2u /* the table of rows that come and go: keys 0 to CLIENTS - 1 */
#define KEYS      20u
#define DIM       (IDS / 12u) /* 12 digits of base 4 in a float */
#define OP_KEYS   3u
#define LEASE     240u
#define MARGIN    24u
#define RESEND    12u /* a frame that is not answered */
#define PATIENCE  60u /* a backup that does not answer is lost */
#define ASK_AGAIN 30u /* a part that is not answered */

typedef struct snap {
	uint32_t refs;
	tn_cl_map map;
	tn_ps_owners owners;
} snap;

typedef struct request {              /* of a part: to a server, and its answer */
	uint32_t client, slot, table; /* ops[slot] of the client */
	uint64_t op, seq, low;        /* op: which one it was */
	uint32_t count;
	uint32_t key[OP_KEYS], id[OP_KEYS];
	bool pull, create, erase;
	bool stage, close; /* of a step: by a member (steps.c) */
	uint64_t member, step;
	uint32_t senders;
	uint64_t sender[SENDERS];
	tn_ps_slots closed;      /* answered */
	bool late;               /* answered: the step was closed before */
	uint32_t attempt, entry; /* entry: of a probe that pushes, in its history */
	tn_commit_end end;
	float rows[OP_KEYS][DIM];
} request;

#define NOBODY (CLIENTS + 1u) /* asks for what a server does by itself */

typedef struct pending {
	tn_commit commit;     /* first */
	struct pending *next; /* of the node */
	request r;
	bool over;
} pending;

/* A closing that a server works at, some slots at a time. */
typedef struct closing {
	bool busy;
	request r;
} closing;

typedef struct node {
	uint64_t incarnation, stalled_until, lease_until, renew_at, seen;
	uint16_t self;
	bool dirty;
	snap *snap;
	ps_share *shares[TABLES];
	tn_commits queue[TABLES];
	tn_repl r;
	tn_repl_in in;
	uint64_t sent_at[TN_CL_SERVERS_MAX], failing[TN_CL_SERVERS_MAX];
	uint8_t what[TN_CL_SLOTS]; /* reports that no map has answered */
	uint32_t epoch[TN_CL_SLOTS];
	tn_ps_slots copying;
	uint16_t copying_to;
	uint32_t copy_at;
	uint64_t copy_cursor;
	pending *waits;
	tn_steps steps;
	tn_commits steps_queue;
	closing closing;
} node;

typedef enum message_kind {
	TO_COORD,  /* bytes of tn_cl_msg */
	OF_COORD,  /* snap or none, status */
	FRAME,     /* bytes */
	FRAME_ANS, /* bytes; stream and seq of the frame */
	ASK,       /* request */
	ASK_ANS,
	MAP_ASK,
	MAP_ANS, /* snap */
} message_kind;

typedef struct message {
	struct message *next;
	message_kind kind;
	uint64_t at;
	uint32_t from, to;    /* processes, or COORD; CLIENT + c */
	uint64_t incarnation; /* of the process that it is to */
	uint64_t back;        /* of the process that it is from */
	uint16_t number;      /* FRAME: of who sent it */
	uint64_t sent,
		now; /* OF_COORD: local time of the renewal that it grants, 0: none; the coordinator's time */
	tern_status status;
	uint64_t stream, seq;
	snap *snap;
	request *request;
	uint64_t bytes;
	uint8_t data[];
} message;
#define CLIENT 64u
#define KEPT   24u

typedef struct op {
	bool live, pull, erase;
	uint32_t attempt;
	uint64_t number, seq, invoke;
	uint32_t table, count;
	uint32_t key[OP_KEYS], id[OP_KEYS], entry[OP_KEYS];
	bool done[OP_KEYS];
	uint32_t oldest, value; /* COMES: a pull may not see an older state; and what it saw */
	uint64_t ask_at;        /* keys that are not done are asked for (again) then */
	id_set seen[OP_KEYS];
} op;

/* A row that comes and goes: what it was, one after the other; 0: no row. */
#define STATES 512u
typedef struct reg {
	uint32_t value[STATES]; /* of pushes and erases that were begun; first: no row */
	uint32_t states;
	uint32_t seen; /* nobody who begins now may see an older one */
} reg;

/* A push of a member in a step. */
typedef struct staged_push {
	bool live;
	uint64_t number, member, step, seq, ask_at;
	uint32_t table, count;
	uint32_t key[OP_KEYS], id[OP_KEYS];
	bool done[OP_KEYS];
	bool acknowledged, applied; /* applied: the keeper closed its step */
} staged_push;

typedef enum member_state {
	APART, /* no member */
	STEPPING,
	ENDED,
	CLOSING,
} member_state;

typedef struct member {
	member_state state;
	uint64_t id, step, next_seq, ask_at, attempt;
	uint32_t pushes, wanted; /* of this step */
	tn_ps_slots left;        /* slots in which the step is not closed yet */
	uint32_t senders;        /* of the closing */
	uint64_t sender[SENDERS];
} member;

/* The group: its keeper does not die (it is a server's, and its death ends the group), everybody else does. */
typedef struct steps_world {
	tn_clocks clocks;
	tn_round round;
	uint64_t life, next_id, last; /* last: step after which nobody begins another, when all calms down */
	staged_push *pushes;
	uint32_t count, room;
	ps_share *oracle;
	bool closed[KEYS][IDS]; /* SUMS: their step is */
	uint32_t entry[KEYS][IDS];
} steps_world;

typedef struct client {
	snap *snap;
	uint64_t next_seq, map_asked;
	op ops[AHEAD];
	member member;
} client;

/* What happened, for the coverage. */
/* clang-format off */
#define COUNTS(X) \
	X(pushes) X(pulls) X(deaths) X(deaths_primary) X(deaths_backup) \
	X(deaths_moving) X(deaths_next) X(restarts) X(stalls) X(cut_coord) \
	X(cut_peer) X(lost) X(late) X(twice) X(drains) \
	X(busy_slots) X(moved) X(took_over) X(alone) X(copied) \
	X(next_begun) X(next_copied) X(next_given_up) X(refused) X(again) \
	X(wrong) X(known) X(known_partly) X(made_partly) X(backup_lost) X(expired) X(elsewhere) \
	X(probes) X(echoes) X(erases) X(next_refused) \
	X(staged) X(steps) X(left_out) X(staged_known) X(staged_late) \
	X(shares) X(sums_known) X(steps_copied) X(closed_partly)
/* clang-format on */
typedef struct tally {
#define FIELD(name) uint64_t name;
	COUNTS(FIELD)
#undef FIELD
} tally;

typedef struct world {
	uint64_t seed, now, stamp; /* stamp: order of invocations and returns */
	tn_rand rand;
	bool calm, trace, old; /* old: one process reads old maps alone */
	tn_coord coord;
	uint64_t told;             /* version of the map that all were told */
	snap *newest, *newest_old; /* as it went over the wire to those who read old maps alone */
	node *nodes[PROCESSES];
	uint64_t start_at[PROCESSES];
	double rate[PROCESSES];
	uint32_t maps[PROCESSES]; /* what it reads: an old one alone, and slots give copies up to be moved */
	uint64_t cut[PROCESSES + 1][PROCESSES + 1];
	message *messages;
	client clients[CLIENTS];
	uint64_t next_op, probe_seq;
	history histories[TABLES][KEYS];
	reg regs[CLIENTS];
	steps_world group;
	message *kept[KEPT]; /* frames that may come once more */
	uint32_t doomed;     /* dies soon: a process + 1 */
	uint64_t doomed_at;
	uint64_t keys[KEYS];
	uint64_t quiet_until;
	tally n;
	const char *why;
	char text[700];
} world;

static inline uint64_t below(world *w, uint64_t n)
{
	return tn_rand_below(&w->rand, n);
}
static inline bool chance(world *w, uint64_t of)
{
	return below(w, of) == 0;
}
void fails(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void trace(const world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- net.c ---- */

snap *snap_hold(snap *s);
void snap_drop(snap *s);
message *message_new(message_kind kind, uint32_t from, uint32_t to, const void *data, uint64_t bytes);
void message_free(message *m);
/* It arrives, or not; late, or twice. The message is the network's from now on. */
void message_send(world *w, message *m);
void deliver(world *w);
/* The newest map is told to all when there is a new one. */
void spread(world *w);
/* Frames that a process got some time ago come once more. -1: there are none; else who sent one of them. */
int echo(world *w, uint32_t p);

/* ---- node.c ---- */

void node_start(world *w, uint32_t p);
void node_end(world *w, uint32_t p);
void node_step(world *w, uint32_t p);
void node_map(world *w, uint32_t p, snap *s);
void node_coord(world *w, uint32_t p, const message *m);
void node_frame(world *w, uint32_t p, const message *m);
void node_answer(world *w, uint32_t p, const message *m);
void node_request(world *w, uint32_t p, const request *r);
bool node_lease(const world *w, uint32_t p);
/* The process that is this server; -1. */
int process_of(const world *w, uint16_t server);
uint64_t local_time(const world *w, uint32_t p);

/* ---- client.c ---- */

void client_step(world *w, uint32_t c);
void client_answer(world *w, const request *r);
void client_map(world *w, uint32_t c, snap *s);
void client_asks_for_map(world *w, uint32_t c);
/* Pulls and pushes of somebody without a network, who knows who thinks that he serves. */
void probe(world *w);
/* Pulls that a process is asked at once, and answers at once or not at all. */
void peek(world *w, uint32_t p, uint32_t n);
/* Every key, in the end. */
void pull_all(world *w);
bool clients_idle(const world *w);

/* ---- steps.c: a group whose steps are summed ---- */

void group_begin(world *w);
void group_end(world *w);
void member_step(world *w, uint32_t c);
void member_answer(world *w, const request *r);
bool members_idle(const world *w);
/* When all calms down: the steps that were begun end. */
void group_calm(world *w);
void judge_steps(world *w);
/* Rows of a request, as its member pushes them. */
void staged_row(const request *r, uint32_t i, float row[DIM]);

/* ---- node_steps.c: servers ---- */

void node_stage(world *w, uint32_t p, pending *c);
void node_close(world *w, uint32_t p, const request *r);
/* A share of the closing that is at work. */
void node_close_some(world *w, uint32_t p);
/* ---- node.c, for it ---- */
pending *pending_new(node *n, const request *r, const tn_ps_slots *slots);
void pending_end(world *w, uint32_t p, pending *c);
void into_streams(node *n, pending *c, tn_repl_entry *e, const uint64_t *keys, uint64_t count);
void node_reply(world *w, uint32_t p, const request *r, tn_commit_end end);
void send_frames(world *w, uint32_t p);

/* ---- fault.c, judge.c ---- */

void trouble(world *w);
void heal(world *w);
/* By their leases and their maps. */
void one_serves(world *w);
bool at_rest(const world *w);
void judge(world *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two links against each other over an in-memory wire, for tests and the fuzzer.
 *
 *   world   two nodes, virtual time, one source of decisions (a seed, or fuzz bytes)
 *   wire    the control connection: a queue of bytes per direction
 *   path    one simulated lane: two ends, each with posted wrs, completions on their way, arrived events
 *
 * The device is as adversarial as the transport's contract allows: it reads sources and completes at any
 * time, in any order between lanes, and completions of one lane in any order; it answers AGAIN, refuses,
 * breaks. What it may not do (more arrivals than granted slots, two completions) is asserted.
 *
 * pair_step() does one thing that is possible, chosen by the world. pair_load.h adds a workload and judges it.
 * Threads: none.
 */
#ifndef TERN_TESTS_LINK_PAIR_H
#define TERN_TESTS_LINK_PAIR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/rand.h"
#include "base/time.h"
#include "link/link.h"
#include "link/wire.h"
#include "link/share.h"

#define PAIR_PATHS 256
#define PAIR_QUEUE 128
#define PAIR_CAPS                                                                          \
	(TN_LINK_CAP_WRITE | TN_LINK_CAP_WRITE_IMM | TN_LINK_CAP_READ | TN_LINK_CAP_SEND | \
	 TN_LINK_CAP_REMOTE_DONE | TN_LINK_CAP_ORDERED_WRITES)
#define PAIR_CTRL 65536

/* Judgement: prints both links and traps, so that fuzzers and tests stop at once. */
#define PAIR_CHECK(world, expr)                                        \
	do {                                                           \
		if (!(expr))                                           \
			pair_broken(world, #expr, __FILE__, __LINE__); \
	} while (0)

typedef struct pair_world pair_world;

#define PAIR_INLINE 64

typedef struct pair_wr {
	tn_link_post post;
	uint8_t key[TN_LINK_KEY_BYTES];
	bool silent; /* done at the post, from a copy; takes effect later */
	uint8_t copy[PAIR_INLINE];
} pair_wr;

typedef enum pair_event_type { PAIR_UP, PAIR_DOWN, PAIR_FRAME, PAIR_IMM } pair_event_type;

typedef struct pair_event {
	pair_event_type type;
	uint32_t imm;
	uint64_t bytes;
	uint8_t *frame; /* malloc */
} pair_event;

/* One end of a path. */
typedef struct pair_end {
	struct pair_path *path;
	int side;
	uint32_t handle;      /* of the link's lane; 0 = not created */
	uint32_t grant, held; /* receive slots; held: arrived and not given back */
	uint32_t twice;       /* of those that ever arrived: units that came a second time */
	int32_t extra;        /* slots beyond `grant` when it was closed */
	bool connecting, up, closed, gone, told_down;
	uint8_t token[TN_LINK_TOKEN_BYTES];
	pair_wr queue[PAIR_QUEUE]; /* accepted, without effect so far, in order */
	uint32_t queue_count;
	struct {
		uint64_t cookie;
		tern_status status;
	} done[PAIR_QUEUE]; /* completions on their way */
	uint32_t done_count;
	pair_event events[PAIR_QUEUE];
	uint32_t event_count;
	uint32_t processed; /* slots that the link has seen and the shell not freed yet */
} pair_end;

typedef struct pair_path {
	bool used, broken;
	uint32_t address; /* epoch << 8 | index */
	pair_end end[2];
} pair_path;

typedef struct pair_node {
	pair_world *world;
	int side;
	tn_link *link;
	void *memory;
	tn_link_config config;
	tn_link_provider providers[2];
	bool pump_due;
	bool ctrl_up, ctrl_closed, ctrl_down_due;
	bool dial_due;
	bool cut;   /* what it sends goes nowhere */
	bool fresh; /* the acceptor: what comes is another connection's first message */
	uint32_t dials;
	uint8_t ctrl[PAIR_CTRL]; /* bytes on their way to this node */
	uint32_t ctrl_bytes;
	bool up, down;
	tern_status status;
	char detail[TN_LINK_TEXT_MAX];
	uint32_t downs;
	uint64_t old[4]; /* cookies that were completed long ago */
} pair_node;

struct pair_world {
	pair_node node[2];
	pair_path paths[PAIR_PATHS];
	uint32_t path_count;
	uint64_t now;
	uint64_t steps;
	tn_rand rand;
	const uint8_t *bytes; /* decisions of a fuzzer, before the seed's */
	uint64_t bytes_left;
	/* how the devices behave, in percent */
	unsigned again, sync, refuse_piece, defer_pump;
	unsigned twice,
		left_out; /* units that are delivered twice, or that are said to be sent and are not */
	uint32_t came_twice, were_left_out;
	uint32_t heals;  /* steps until providers that fail work again; 0 = never */
	bool nak_breaks; /* an access that the target refuses breaks the path, as on a NIC */
	bool silent; /* short writes below the remote level are done at their post, before they take effect */
	bool reach_fails[2]; /* provider i of node 1 can't be reached */
	bool create_fails;   /* provider 0's lanes can't be made at node 1 */
	bool connect_fails;  /* provider 0's lanes never connect */
	uint32_t room[2];    /* lanes of an epoch that the node has room for; 0 = any number */
	bool room_known;     /* it says so when it is asked whether it reaches the peer */
	uint32_t slow_path;  /* number + 1 of a path that lags far behind the others; 0 = none */
	bool mute;           /* nothing moves any more on the wire: a peer that stands still */
	bool frozen;         /* time stands still */
	int check_level;
	/* Of both links, as if they shared a device; cap and capacity 0 = none. */
	tn_link_budget budget;
	tn_link_arbiter arbiter;
	tn_link_pool pool;
	tn_link_pool *pools[2]; /* of the sides' devices; NULL = none */
	uint32_t ballast;       /* slots of it that nobody has */
	tn_link_store store[2];
	int64_t memory_left;    /* blocks that their source still has; below 0: any number */
	tn_link_quota quota[2]; /* of each side's data lanes; cap 0 = none */
	/* what a test listens to; may be NULL */
	void (*on_action)(pair_world *world, int side, const tn_link_action *act);
	void (*on_rx)(pair_world *world, int side, const tn_link_rx *rx);
	/* effect of one-sided access; returns the status */
	tern_status (*on_access)(pair_world *world, int side, const tn_link_post *post);
	void *arg;
};

void pair_broken(pair_world *world, const char *what, const char *file, int line);
/* A decision in 0..n-1. */
uint32_t pair_pick(pair_world *world, uint32_t n);
bool pair_chance(pair_world *world, unsigned percent);
void pair_provider(tn_link_provider *p, const char *name, uint32_t caps, uint64_t send_max);
/* Defaults; change node[i].config and providers, then pair_start. */
void pair_init(pair_world *world, uint64_t seed);
void pair_start_node(pair_world *world, int side);
void pair_start(pair_world *world);
void pair_free_events(pair_end *end);
void pair_fini(pair_world *world);

/* ---- paths ---- */

/* Both ends of (epoch, index) meet on one path: number epoch * TN_LINK_LANES_MAX + index, unless an old one is there. */
pair_path *pair_path_for(pair_world *world, uint32_t epoch, uint32_t index);
pair_end *pair_end_of(pair_world *world, int side, uint32_t handle);
void pair_event_push(pair_world *world, pair_end *end, pair_event event);
/* Nothing that is queued at this end takes effect any more. */
void pair_flush(pair_world *world, pair_end *end);
/* The path dies: a part of what has arrived may still be seen. */
void pair_break(pair_world *world, pair_path *path);
/* The first queued wr of an end takes effect. Returns its status. */
tern_status pair_effect(pair_world *world, pair_end *end, const pair_wr *wr);
void pair_step_effect(pair_world *world, pair_end *end);

/* ---- what the links ask for ---- */

tern_status pair_post(pair_world *world, int side, const tn_link_post *post, bool *done);
/* A brief message, whose bytes the device has at once; not always. */
bool pair_post_brief(pair_world *world, int side, const tn_link_brief *brief, const tn_link_iov *iov,
		     uint32_t count);
/* The control connection is gone; what was on its way arrives in part. */
void pair_ctrl_cut(pair_world *world);
void pair_pump(pair_world *world, int side);
/* After any input: pump now, or later as a step of its own. */
void pair_kick(pair_world *world, int side);

/* ---- steps ---- */

void pair_step_done(pair_world *world, pair_end *end);
/* One thing that is possible now, time only if nothing else is; false: nothing will ever happen. */
bool pair_step(pair_world *world);
bool pair_both_up(const pair_world *world);
bool pair_both_down(const pair_world *world);

/* Step until cond holds or `max` steps passed; says whether it does. */
#define PAIR_UNTIL(world, cond, max)                               \
	({                                                         \
		uint64_t left_ = (max);                            \
		while (!(cond) && left_-- > 0 && pair_step(world)) \
			;                                          \
		(cond);                                            \
	})

#endif

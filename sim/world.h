/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world: a few nodes that run tern's production code in virtual time, from one seed.
 *
 *   node      a context made with hooks (channel/ctx.h), its devices, its clock; killed and started anew
 *   incarnation   one life of a node: name and address stay, everything else is new
 *   clock     of a node: world time + skew; skew only grows (a process that stood still has not seen time pass
 *             evenly; timers of two nodes never agree)
 *   stream    a control connection: two socket pairs, of which the world holds the far ends and carries bytes
 *   poke      something came for a node: it runs after its reaction time
 *   inside    a blocking call of a node is on the stack (its wait takes steps of the world): it is not killed then
 *
 *   one seed = one run: every choice comes from the world's generators, one for each concern, so that leaving out
 *   a fault changes as little else as possible; the hash of the trace says whether two runs were the same
 *
 * Threads: none. Tests: sim-smoke, sim-same (sim/CMakeLists.txt).
 */
#ifndef TERN_SIM_WORLD_H
#define TERN_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"
#include "base/rand.h"
#include "base/time.h"
#include "channel/ctx.h"
#include "sim/event.h"

#define SIM_NODES_MAX 4
#define SIM_DEVICES   2 /* providers: a fast one and one to fall back to */
#define SIM_START_NS  (1 * TN_NS_PER_SEC)

typedef struct sim_world sim_world;
typedef struct sim_node sim_node;
typedef struct sim_dev sim_dev;
typedef struct sim_lane sim_lane;
typedef struct sim_load sim_load;
typedef struct sim_faults sim_faults;
typedef struct sim_stream sim_stream;

/* What a run may leave out, for the search of what a failure needs. */
typedef struct sim_options {
	uint64_t seed;
	bool verbose;
	uint32_t kinds;      /* mask of fault kinds that may happen */
	const uint8_t *only; /* NULL, or for each fault of the plan whether it happens */
	uint32_t only_count;
} sim_options;

/* What came out. */
typedef struct sim_result {
	uint64_t seed, hash, events, virtual_ns, ops;
	uint32_t faults_planned;
	bool failed;
	char checker[24];
	char text[400];
	uint32_t coverage[64]; /* by sim_cover */
} sim_result;

typedef struct sim_clock {
	tn_clock clock; /* first */
	sim_node *node;
} sim_clock;

struct sim_node {
	sim_world *world;
	unsigned index;
	char name[16], address[32];
	uint32_t incarnation;
	tern_ctx *ctx; /* NULL: it does not run */
	bool dying;    /* in its last call: nothing of it reaches the world any more */
	bool ending;   /* in good order */
	bool in_run;
	bool wrote; /* on a control connection, since somebody looked */
	unsigned inside;
	sim_clock clock;
	uint64_t skew;
	tn_ctx_hooks hooks;
	sim_event_id run_event;
	uint64_t run_at;
	uint64_t wait_until, wait_pause_ns; /* of the call that waits */
	uint64_t frozen_until;
	uint64_t slow_ns; /* added to its reaction time */
	sim_dev *devs[SIM_DEVICES];
};

struct sim_world {
	sim_options options;
	sim_result *result;
	sim_events events;
	/* generators, one for each concern */
	tn_rand plan, net, device, work, fault, secret, ctrl;
	sim_node nodes[SIM_NODES_MAX];
	unsigned node_count;
	sim_stream *streams;
	sim_lane **lanes; /* by number - 1; NULL: destroyed */
	uint32_t lane_count, lane_room;
	struct sim_item *items; /* in the air */
	sim_load *load;
	sim_faults *faults;
	uint64_t quiet_ns; /* no fault begins after this */
	bool calm;         /* nothing may go wrong: no fault in the plan */
	bool over;         /* nodes end and do not come back */
	unsigned depth;    /* of turns */
	/* network between hosts */
	uint64_t delay_ns, ps_per_byte, jitter_ns;
	/* that of control connections: added to it; bytes of a piece, 0: what is written arrives at once */
	uint64_t ctrl_jitter_ns, ctrl_pieces;
	uint64_t unplugged_until[SIM_NODES_MAX];
	uint64_t ctrl_stall_until[SIM_NODES_MAX];
	uint32_t open_devs, open_lanes, open_regs;
};

/* ---- what is counted: kinds of faults first (fault.h), then what else shows that a run met something ---- */

enum { SIM_COVER_FAULTS = 32 };
#define SIM_COVER(X)                                    \
	X(RECOVERY, "link recovered")                   \
	X(FALLBACK, "came up over the second provider") \
	X(RETURN, "went back to the first provider")    \
	X(LINK_DOWN, "link went down")                  \
	X(RESENT, "frames sent again")                  \
	X(INDETERMINATE, "ended indeterminate")         \
	X(DEADLINE, "ended at its deadline")            \
	X(CANCELED, "ended by cancel")                  \
	X(FLUSHED, "work request flushed")              \
	X(LATE, "completion after close")               \
	X(POSTED_AGAIN, "post answered AGAIN")          \
	X(NAKED, "access refused by the target")        \
	X(STAGED, "transfer staged")                    \
	X(RPC_DUPLICATE, "call that came twice")        \
	X(RPC_LATE, "answer after the deadline")        \
	X(TENSOR_REOPEN, "tensor bound again")          \
	X(NARROW, "idle data lanes given up")           \
	X(WIDE, "data lanes made again")                \
	X(RECLAIMED, "data lanes given up for others")  \
	X(SLOTS_MORE, "receive slots moved to a link")  \
	X(SLOTS_BACK, "receive slots given back")       \
	X(TWICE, "message delivered twice")             \
	X(LEFT_OUT, "message left out")

typedef enum sim_cover {
#define SIM_COVER_ENUM(name, text) SIM_COVER_##name,
	SIM_COVER_FIRST_ = SIM_COVER_FAULTS - 1,
	SIM_COVER(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
		SIM_COVER_END
} sim_cover;

static inline void sim_covered(sim_world *world, unsigned what)
{
	world->result->coverage[what]++;
}

/* ---- chance ---- */

static inline bool sim_chance(tn_rand *rand, unsigned percent)
{
	return tn_rand_below(rand, 100) < percent;
}
static inline uint64_t sim_between(tn_rand *rand, uint64_t least, uint64_t most)
{
	return least + tn_rand_below(rand, most - least + 1);
}

/* ---- trace: a line when somebody looks, a hash always ---- */

void sim_trace_line(sim_world *world, const char *fmt, ...) TN_PRINTF(2, 3);
static inline void sim_hash(sim_world *world, uint64_t a, uint64_t b)
{
	uint64_t x =
		world->result->hash ^ world->events.now ^ (a << 32 | a >> 32) ^ b * 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
	world->result->hash = x ^ (x >> 32);
}
#define SIM_TRACE(world, a, b, ...)                              \
	do {                                                     \
		sim_hash((world), (uint64_t)(a), (uint64_t)(b)); \
		if ((world)->options.verbose)                    \
			sim_trace_line((world), __VA_ARGS__);    \
	} while (0)

/* ---- world.c ---- */

/* Run one seed from its beginning to its end. */
void sim_run(const sim_options *options, sim_result *result);
uint64_t sim_node_now(const sim_node *node);
/* The node runs soon. */
void sim_poke(sim_node *node);
/* Start a node that does not run; its load begins. */
void sim_node_start(sim_node *node);
/* The process dies: nobody is told. Not while `inside`. */
void sim_node_kill(sim_node *node);
/* The node ends itself in good order; the world goes on meanwhile. */
void sim_node_end(sim_node *node);

/* ---- stream.c ---- */

int sim_stream_dial(sim_node *from, const char *address);
/* Carry what the node has written. */
void sim_streams_pump(sim_node *node);
/* Its ends are gone at once; the others learn of it after a while, or never. */
void sim_streams_cut(sim_node *node, bool silently);
/* Cut one connection between two nodes. False: there is none. */
bool sim_stream_break(sim_world *world, unsigned a, unsigned b, bool one_side);
void sim_streams_free(sim_world *world);

#endif

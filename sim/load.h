/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workload of a world: what applications do, over the public API, and what they may expect.
 *
 *   end     one node's side of its link to another node: the handle, and the actors that live on it
 *   actor   does one thing on its end until its budget of operations is used up: messages and one-sided transfers on
 *           a channel, calls, tensors. Loses everything with its link and begins anew on the next
 *   op      one accepted operation: a slot of its actor with buffers of its own, judged at its completion
 *   area    memory of an actor at the other node, with a key, cut into slots like its own
 *
 *   accepted(op) = completed(op) + in flight; when all actors are done nothing is in flight
 *
 * load.c: ends and links. load_chan.c, load_rpc.c, load_tensor.c: actors. Threads: none.
 */
#ifndef TERN_SIM_LOAD_H
#define TERN_SIM_LOAD_H

#include <tern/rpc.h>
#include <tern/tensor.h>

#include "sim/check.h"

#define SIM_SLOTS    6
#define SIM_CAME_MAX 16

typedef enum sim_actor_kind {
	SIM_ACTOR_CHAN,
	SIM_ACTOR_RPC,
	SIM_ACTOR_TENSOR,
	SIM_ACTOR_KINDS
} sim_actor_kind;

typedef struct sim_end sim_end;
typedef struct sim_actor sim_actor;

typedef struct sim_op {
	tern_op op; /* first */
	sim_actor *actor;
	uint64_t id; /* of the run: what its bytes are made from */
	unsigned kind, slot;
	bool in_flight, cancelled, seen; /* seen: its message or notification came */
	bool bad_key, remote;
	bool skipped;        /* a later one came */
	bool fails, sink_ok; /* a call: its answer is an error; the put into its sink went well */
	uint64_t sink_bytes, answer_bytes;
	uint32_t opening; /* of the actor */
	uint64_t bytes, number;
	tern_channel *channel;
} sim_op;

struct sim_actor {
	sim_end *end;
	sim_actor_kind kind;
	uint32_t number;
	uint32_t budget, in_flight;
	uint32_t opening; /* counts; 0 = never */
	bool flood;       /* long messages alone, to a slow receiver */
	bool connects,
		outlives; /* an rpc client with links of its own: losing its end's link does not matter */
	bool open, done, gave_up; /* gave_up: it closed by itself */
	sim_event_id step_event;
	uint64_t step_at, pause_ns, pace_ns;
	uint32_t link_number; /* of the end's link that it is open on */
	/* memory, while open or in use: of this node and of the peer */
	uint64_t slot_bytes;
	uint8_t *mine, *theirs;
	bool mine_foreign;
	uint32_t my_incarnation, their_incarnation;
	tern_key key;
	void *state; /* of the kind */
};

struct sim_end {
	sim_world *world;
	sim_node *node, *peer;
	bool dials, up;
	tern_link *link;      /* one that it dialed, or else one of those that came */
	uint32_t link_number; /* of links that it had so far */
	/* What the peer dialed, its clients' own links too: nobody can tell which. Who dials does not use them. */
	tern_link *came[SIM_CAME_MAX];
	unsigned came_count;
	uint64_t pause_ns;
	sim_event_id dial_event;
};

/* How each kind of actor does its part. All are called at the top, never from a callback. */
typedef struct sim_actor_ops {
	bool (*open)(sim_actor *actor);  /* the link is up. False: again later */
	bool (*step)(sim_actor *actor);  /* submit something. False: nothing went */
	void (*close)(sim_actor *actor); /* give handles back; ops may still be in flight */
	bool (*quiet)(sim_actor *actor); /* nothing is in flight, everything that had to come came */
	void (*free)(sim_actor *actor);
	void (*cancel)(sim_actor *actor, sim_op *op);
} sim_actor_ops;
extern const sim_actor_ops sim_chan_ops, sim_rpc_ops, sim_tensor_ops;

struct sim_load {
	sim_end ends[SIM_NODES_MAX][SIM_NODES_MAX];
	sim_actor *actors;
	uint32_t actor_count, actors_left;
	sim_op **ops; /* all, freed at the end */
	uint32_t op_count, op_room;
	uint64_t next_id;
	/* how this run's applications are, in percent */
	unsigned remote, local, foreign, deadlines, cancels, bad_keys;
	uint64_t slot_bytes;
	bool rivals; /* some two nodes have several links: some are ended */
	void *rpc;   /* of all actors of the kind */
};

void sim_load_init(sim_world *world);
void sim_load_fini(sim_world *world);
/* Links that one node may have at a time, at most: those that are replaced linger for a while. */
uint32_t sim_load_links_max(const sim_world *world);
/* The node's context is there and has not started yet: services. */
void sim_load_serve(sim_node *node);
void sim_load_node_up(sim_node *node);
/* The node ends next: what it holds is given back. */
void sim_load_node_down(sim_node *node);
/* It has ended: everything must have been completed. */
void sim_load_node_gone(sim_node *node);
/* After each run of a node. True: something was done. */
bool sim_load_run(sim_node *node);
/* All budgets are used and nothing is in flight. */
bool sim_load_done(sim_world *world);
/* What is not done, in words. */
void sim_load_unfinished(sim_world *world, char *buf, size_t bytes);

/* ---- for the actors ---- */

/* Memory for `slots` at both sides; exported: keys of ours will be made. False: none now. */
bool sim_actor_memory(sim_actor *actor, bool exported);
void sim_actor_memory_free(sim_actor *actor);
uint8_t *sim_actor_mine(const sim_actor *actor, unsigned slot);
uint8_t *sim_actor_theirs(const sim_actor *actor, unsigned slot);
/* The peer's memory is still that of the process that the actor opened with. */
bool sim_actor_theirs_live(const sim_actor *actor);
/* A new op; its fields are set, op.done judges it first. */
sim_op *sim_op_new(sim_actor *actor, unsigned kind, uint64_t bytes, tern_done_fn done);
/* After a submission: accepted or not (then the op is gone). Draws a cancel. True if accepted. */
bool sim_op_submitted(sim_op *op, tern_status status);
/* The first thing in each completion: once, a status that can be, buffers. */
void sim_op_judge(sim_op *op, const void *buf, uint64_t bytes);
/* May the workload see this status? Errors of the path and the peer may when something goes wrong at all. */
bool sim_status_possible(sim_world *world, tern_status status);
uint64_t sim_load_size(sim_world *world, uint64_t most);
void sim_actor_wake(sim_actor *actor, uint64_t delay_ns);

/* ---- the other side: load_chan.c, load_rpc.c, load_tensor.c ---- */

void sim_chan_run(sim_node *node);
void sim_rpc_init(sim_world *world);
void sim_rpc_fini(sim_world *world);
void sim_rpc_serve(sim_node *node);
void sim_rpc_node_down(sim_node *node);
bool sim_tensor_run(sim_node *node);
void sim_tensor_node_down(sim_node *node);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside an experiment at scale. Its files only. See scale.h for the nouns.
 * Threads: none. Tests: tests/unit/sim/scale_test.c.
 */
#ifndef TERN_SIM_SCALE_INTERNAL_H
#define TERN_SIM_SCALE_INTERNAL_H

#include "base/check.h"
#include "base/rand.h"
#include "sim/alloc.h"
#include "sim/scale.h"

#define SCALE_LANES      4u
#define SCALE_SLOT_BYTES 4096u

typedef struct scale scale;
typedef struct scale_node scale_node;
typedef struct scale_end scale_end;
typedef struct scale_lane scale_lane;
typedef struct scale_wr scale_wr;

struct scale_wr {
	scale_wr *next; /* of the free ones, or behind an RNR */
	scale_lane *lane;
	tn_link_post_type type;
	uint32_t imm;
	uint64_t cookie, bytes;
	void *frame;
	uint64_t frame_bytes;
};

struct scale_lane {
	scale_end *end;
	scale_lane *other;
	uint64_t requests, answers; /* flows */
	uint32_t handle;
	uint32_t index;
	uint32_t slots, held;
	bool connecting, up, stalled; /* stalled: something waits behind an RNR */
	scale_wr *waiting, **waiting_end;
};

typedef enum scale_op_kind { SCALE_PUSH, SCALE_FETCH, SCALE_MESSAGE } scale_op_kind;
#define SCALE_CHANNELS 3u

/* What an op's user pointer names. */
typedef struct scale_op {
	struct scale_op *next;
	scale_end *end;
	scale_op_kind kind;
	uint64_t start;
} scale_op;

/* A link as its rules alone (scale_model.c). */
typedef struct scale_model {
	scale_op *push, *fetch;
	uint64_t bytes, left, in_flight; /* of the push */
	uint64_t allowed, untold;        /* granted and not posted; posted and not told to the granter */
	uint64_t want;                   /* what the peer asked for and was not granted */
	tn_budget_seat seat;
	scale_end *next; /* that waits for grants of this node */
} scale_model;

struct scale_end {
	scale_node *node;
	scale_end *other;
	tn_link *link; /* NULL: the model */
	scale_model model;
	void *memory;
	scale_lane lanes[SCALE_LANES];
	uint32_t channel[SCALE_CHANNELS]; /* ops of one channel start in order: a channel for each kind */
	uint32_t open;                    /* of them */
	sim_event_id wake;
	uint64_t wake_at;
	uint32_t pushes_left, pushes_out, messages_left, messages_out;
	uint32_t *extra; /* more channels, of the opener: messages take turns over them */
	uint32_t extra_turn;
};

/* Handled by a node when its CPU comes to it. */
typedef void (*scale_input_fn)(scale_end *end, void *arg, uint64_t value);

typedef struct scale_input {
	scale_input_fn fn;
	scale_end *end;
	void *arg;
	uint64_t value;
} scale_input;

struct scale_node {
	scale *s;
	uint32_t host;
	uint32_t links, qps;
	uint32_t held; /* receive slots of all its lanes */
	tn_link_budget budget;
	tn_link_arbiter arbiter;
	tn_link_store store;
	uint64_t memory, memory_peak;    /* that its links borrow */
	uint64_t granted;                /* of the model: not arrived */
	scale_end *asking, **asking_end; /* ends whose peers want more */
	uint64_t cpu_free;
	bool armed;
	scale_input *inputs; /* a ring */
	uint32_t input_head, input_count, input_room;
};

struct scale {
	scale_config config;
	sim_events events;
	sim_net *net;
	scale_node *nodes;
	scale_end *ends; /* 2i and 2i + 1 are a link's */
	uint32_t end_count;
	uint32_t ready;      /* ends whose channels are open */
	uint32_t unfinished; /* ends that still have pushes or messages */
	uint64_t start;
	bool loading;
	scale_wr *wr_free;
	scale_op *op_free;
	tn_rand rand;
	scale_result *result;
};

static inline uint64_t scale_now(const scale_end *end)
{
	return end->node->s->events.now;
}

/* ---- scale_node.c ---- */

void scale_input_push(scale_end *end, scale_input_fn fn, void *arg, uint64_t value);
/* Another link of the node made room for this end. */
void scale_woken(void *end);
/* Take all actions of the link. After anything that was done to it. */
void scale_pump(scale_end *end);
void scale_node_store(scale_node *node);
void scale_link_start(scale *s, scale_end *end, bool active);

/* ---- scale_device.c ---- */

tern_status scale_post(scale_end *end, const tn_link_post *post);
void scale_lane_create(scale_end *end, const tn_link_action *act);
scale_lane *scale_lane_open(scale_end *end, uint32_t index);
void scale_lane_connect(scale_end *end, const tn_link_action *act);

/* ---- scale_load.c ---- */

/* The load starts at all ends. */
void scale_load_start(scale *s);
void scale_load_done(scale_end *end, scale_op *op, uint64_t bytes);

/* ---- scale_model.c ---- */

void scale_model_start(scale_end *end);
/* After both ends were started. */
void scale_model_connect(scale_end *end);
void scale_model_submit(scale_end *end, scale_op *op, uint64_t bytes);
void scale_model_pump(scale_end *end);
void scale_model_frame(scale_end *end, const uint8_t *frame);
void scale_model_done(scale_end *end, uint64_t cookie);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices of the simulator: what transport.h promises, and as little beyond it as a NIC does.
 *
 *   provider  "simrc", which is preferred, and "simip"; capabilities are drawn for each world and provider
 *   lane      a reliable connection: INIT -> DIALING -> UP -> DOWN -> CLOSED (any state but CLOSED may close)
 *   wr        in a lane's send queue, taken in order. Its source is read when it is taken, and again when the item
 *             was lost on its way (`late`): so whoever changes a source before the completion is found out
 *   item      a wr in the air, with its bytes. Items of a lane arrive in the order of their numbers
 *   placing   where completions do not mean REMOTE, an acknowledged write may lie in the target's NIC for a while:
 *             it is in memory when something after it on its lane is delivered, or the lane ends
 *   cqe       an event on its way to poll, visible at its time; those of different lanes come in any order
 *   slot      receive buffer, shared by all lanes of the device
 *
 *   held(lane) = arrivals that were not given back <= grant of the lane's shell          (checker "slots")
 *   free slots = slots - sum of held >= 0, and no arrival finds none                     (RNR 0)
 *   drained(lane) = not UP, no live wr, no cqe, its time to drain is over
 *
 * device.c: device, poll. lane.c: life of lanes. wire.c: posts and items. Threads: none.
 */
#ifndef TERN_SIM_DEVICE_H
#define TERN_SIM_DEVICE_H

#include "base/list.h"
#include "channel/shell.h"
#include "sim/world.h"
#include "transport/transport.h"

typedef enum sim_lane_state {
	SIM_LANE_INIT,
	SIM_LANE_DIALING,
	SIM_LANE_UP,
	SIM_LANE_DOWN,
	SIM_LANE_CLOSED,
} sim_lane_state;

typedef enum sim_kind { SIM_SEND, SIM_WRITE, SIM_WRITE_IMM, SIM_READ, SIM_ANSWER } sim_kind;

typedef struct sim_wr {
	bool live;   /* its completion was not polled yet (silent: it has not been acknowledged) */
	bool silent; /* done at its post, from a copy */
	bool signal; /* never */
	bool sent, over;
	bool late;
	sim_kind kind;
	tn_level level;
	uint64_t number;
	uint64_t cookie;
	int pieces;
	tn_iov iov[TN_IOV_MAX]; /* source, or the destination of a read */
	uint64_t bytes;
	tn_key key;
	uint64_t offset;
	uint32_t imm;
	uint8_t *copy; /* of a silent one */
} sim_wr;

typedef struct sim_item {
	struct sim_item *next, **link; /* world->items */
	sim_world *world;
	uint32_t from, to; /* lanes */
	sim_kind kind;
	uint64_t number; /* of the wr */
	bool late;
	tern_status status; /* of an answer */
	uint64_t bytes, offset;
	tn_key key;
	uint32_t imm;
	tn_list node; /* to->unplaced, to->dev->inbox */
	uint8_t data[];
} sim_item;

typedef struct sim_cqe {
	struct sim_cqe *next;
	uint64_t at;
	sim_lane *lane; /* NULL: of the device */
	uint32_t wr;    /* index + 1, of a DONE */
	tn_event ev;
} sim_cqe;

typedef struct sim_slot {
	uint8_t *buf;
	sim_lane *lane; /* whose arrival it holds; NULL: free, or its lane is gone */
	bool used;
} sim_slot; /* one more than there are: of what comes twice, which nobody granted */

struct sim_lane {
	tn_lane base; /* first */
	uint32_t number;
	sim_dev *dev;
	tn_list node; /* dev->lanes */
	sim_lane_state state;
	bool active, unreachable; /* its process died */
	uint8_t token[TN_LANE_TOKEN_BYTES];
	uint32_t want, peer; /* lane numbers */
	/* sending */
	sim_wr *wrs;
	uint32_t live;
	uint64_t posted, taken; /* numbers */
	uint64_t tx_free_ns, arrive_ns, cq_ns;
	uint64_t stuck_until;
	sim_event_id tx_event;
	/* receiving */
	uint64_t received; /* number of the next item */
	uint32_t held, cqes;
	uint32_t missing; /* messages left out in a row */
	tn_list unplaced;
	uint64_t drain_at;
};

/* What a fault switches on for a while. */
typedef struct sim_dev_faults {
	uint64_t again_until, refuse_create_until, refuse_connect_until, refuse_reach_until, refuse_reg_until;
	uint64_t reorder_until, delay_until;
	uint64_t twice_until, left_out_until; /* some of the messages that come to it */
	uint64_t delay_ns;
} sim_dev_faults;

struct sim_dev {
	tn_dev base; /* first */
	sim_node *node;
	unsigned which;
	uint32_t id;
	tn_dev_caps caps;
	bool dead;
	bool refuses_late, keeps_arrivals, nak_breaks;
	sim_dev_faults faults;
	tn_list lanes, inbox;
	sim_cqe *cq, **cq_tail;
	sim_slot *slots;
	uint32_t *free_slots, free_count, free_least;
	uint32_t mem_slot;
	bool attached;
	int fd;
};

extern const tn_provider *const sim_providers[SIM_DEVICES + 1];

/* Draw what the providers of this world can do. */
void sim_devices_plan(sim_world *world);
/* The provider to fall back to has receive slots for so many links of a node, whatever the first one lacks. */
void sim_devices_fit(uint32_t links);
/* The node whose context opens devices now. */
void sim_devices_open_for(sim_node *node);
/* The process of the node dies: nothing of its devices reaches the world, all that is posted is flushed. */
void sim_dev_cut(sim_dev *dev);
void sim_dev_die(sim_dev *dev);
void sim_dev_revive(sim_dev *dev);

/* ---- reach.c ---- */

/* May a device still read (or write: a get) [ptr, ptr + bytes)? */
bool sim_dev_uses(sim_world *world, const void *ptr, uint64_t bytes);
/* May an accepted write of a peer still go to that memory of the node? */
bool sim_dev_reaches(sim_world *world, const sim_node *node, const void *ptr, uint64_t bytes);
/* With other bytes than are there? */
bool sim_dev_changes(sim_world *world, const sim_node *node, const void *ptr, uint64_t bytes);

/* ---- lane.c ---- */

sim_lane *sim_lane_get(sim_world *world, uint32_t number);
tern_status sim_lane_create(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
tern_status sim_lane_connect(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane);
void sim_lane_break(tn_lane *lane);
void sim_lane_close(tn_lane *lane);
bool sim_lane_drained(tn_lane *lane);
void sim_lane_destroy(tn_lane *lane);
/* UP or DIALING -> DOWN: all wrs end, LANE_DOWN follows. Harmless in other states. */
void sim_lane_fail(sim_lane *lane, tern_status status);
void sim_lane_lost(void *arg, uint64_t number); /* event: a lane found out that its peer does not answer */

/* ---- wire.c ---- */

tern_status sim_post_write(tn_lane *lane, tn_wr *wr);
tern_status sim_post_write_imm(tn_lane *lane, tn_wr *wr);
tern_status sim_post_read(tn_lane *lane, tn_wr *wr);
tern_status sim_post_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done);
/* Take the inbox of a device whose target has to make progress. */
void sim_wire_take(sim_dev *dev);
/* Bytes of writes that were acknowledged are in memory now. */
void sim_wire_place(sim_lane *lane);
void sim_item_free(sim_item *item);
/* From one host to another, with jitter. */
uint64_t sim_wire_delay(sim_world *world, uint64_t bytes);

/* ---- device.c ---- */

/* An event of the lane (NULL: of the device), visible `delay` from now. */
void sim_cq_push(sim_dev *dev, sim_lane *lane, const tn_event *ev, uint64_t delay, uint32_t wr);
/* The wr's completion; it stays live until that is polled. */
void sim_wr_end(sim_lane *lane, sim_wr *wr, tern_status status);
/* What lanes were granted never exceeds what counts as taken, nor what there is. */
void sim_check_slots(const sim_dev *dev);
/* A free slot for an arrival of the lane, or UINT32_MAX and a violation. */
uint32_t sim_slot_take(sim_lane *lane);
/* Of what did not arrive after all. */
void sim_slot_return(sim_dev *dev, uint32_t index);
/* The slot of what comes twice, or UINT32_MAX while it is in use. */
uint32_t sim_slot_beyond(sim_dev *dev);
/* Forget arrivals of the lane that were not polled. */
void sim_cq_drop_arrivals(sim_lane *lane);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs: RC queue pairs of RDMA NICs (InfiniBand, RoCE). Nouns:
 *
 *   device   what the link sees: up to four rails, one table of lanes, one descriptor to wait on
 *   rail     one port of one NIC: context, PD, completion queue with its channel, shared receive queue, memory
 *            slot, health
 *   lane     one RC queue pair on one rail; wired by what the two lane addresses say (addr.h), no connection
 *            manager. Until both addresses are known it has a seat (a queue pair in INIT) on every usable rail
 *   op       a posted work request: a place in the lane's ring, retired by its completion or a later one's
 *   held     an op whose doorbell waits (tn_wr.more), or that the NIC had no room for
 *   orphan   a held op that the NIC refused for good: its end is owed to the user
 *   buffer   a receive buffer of a rail: posted or about to be -> completed -> held by the user -> posted
 *   bounce   a registered buffer that a message from foreign memory is copied into
 *
 *   ops of a lane        head <= tail, tail - head <= ops_max + OPS_RESERVED; op i is ops[i % ring]
 *   held ops             the newest of the ring: tail - held_count .. tail - 1; held_count <= TN_VB_HELD_MAX
 *   receive buffers      of a rail: total = posted + pending + held by users = recv_slots + TN_VB_RECV_RESERVE;
 *                        pending < 2 * TN_VB_REFILL unless the NIC refuses, so posted covers what the link grants
 *   completion queue     of a rail: capacity >= receive buffers + sum over its lanes of their whole ring
 *                        (flush included)
 *
 *   wr_id of a send      0 | lane index 12 bits | lane generation 19 bits | op number 32 bits
 *   wr_id of a receive   1 | generation 31 bits | buffer index 32 bits
 *   A completion whose generation is not the present one is of an earlier life and changes nothing.
 *
 *          lane_connect         both hellos            break, close, peer's bye, error
 *   INIT ---------------> WIRING -----------> UP -----------------------------+
 *    |                      |                  | own break or close           |
 *    |                      | error, deadline  v                              v
 *    +---- close -----------+--------------> LEAVING --- bye sent, 50 ms --> DRAINING ---> QUIET
 *
 *   DRAINING: the queue pair is in ERR; a marker was posted behind everything. QUIET when the marker's flush
 *   was seen, LAST_WQE_REACHED came (or its grace passed) and the queue was found empty after that; or when
 *   the bound passed: then the queue pair is destroyed first and what is missing is completed by hand.
 *
 *          PORT_ERR            PORT_ACTIVE            probation passed
 *   UP ---------------> DOWN ---------------> PROBATION ---------------> UP        fatal: LOST, for good
 *
 * Wiring. Each side moves its queue pair to RTS as soon as it knows the other's address. The active side
 * sends a hello with a MAC over both addresses, keyed with the lane's token; the passive side answers with
 * its own. A hello that finds nobody yet ends in RETRY_EXC: the queue pair is reset and tries again.
 * A hello, a bye and a keepalive are the provider's own messages: a SEND with immediate, which users'
 * messages never are. They use receive buffers beyond those that the link is told of.
 *
 * Threads: rule 5 of transport.h. lane->lock covers its ring, held ops and state against posts from other
 * threads; dev->bounce_lock the stack of bounce buffers, dev->held_lock the list of lanes with held ops or
 * orphans. Order: lane->lock, then one of the two. Tests: tests/conformance,
 * tests/unit/transport/test_verbs_*.c.
 */
#ifndef TN_TRANSPORT_VERBS_H
#define TN_TRANSPORT_VERBS_H

#include <pthread.h>

#include "base/counters.h"
#include "base/list.h"
#include "base/map.h"
#include "base/time.h"
#include "transport/transport.h"
#include "transport/verbs/addr.h"
#include "transport/verbs/api.h"

#define TN_VB_LANES_MAX    2048u /* 12 bits of wr_id hold 4096 */
#define TN_VB_OPS_RESERVED 4u    /* hello or bye, keepalive, marker, and one to spare */
#define TN_VB_RECV_RESERVE \
	64u /* buffers for hellos and byes, and for the refill, beyond what may be granted */
#define TN_VB_REFILL       16u /* receive buffers that are posted at once */
#define TN_VB_SIGNAL_EVERY 16u /* an inline request in so many asks for a completion; a power of two */
#define TN_VB_HELD_MAX     16u /* requests of one doorbell */
#define TN_VB_WC_BATCH     16
#define TN_VB_ACK_BATCH    64u /* completion events that are acknowledged at once */
#define TN_VB_INLINE_WANT  220u
#define TN_VB_NO_BOUNCE    UINT32_MAX

#define TN_VB_RETRY_AFTER_NS (10 * TN_NS_PER_MS) /* between hellos that find nobody */
#define TN_VB_LEAVE_NS       (50 * TN_NS_PER_MS) /* for the bye */
#define TN_VB_LAST_WQE_NS    (20 * TN_NS_PER_MS) /* for LAST_WQE_REACHED: never depended on */
#define TN_VB_DRAIN_NS       (1 * TN_NS_PER_SEC) /* for the flush of a queue pair in ERR */

/* ---- port and GIDs (gid.c) ---- */

typedef enum tn_vb_gid_kind {
	TN_VB_GID_IB,
	TN_VB_GID_ROCE_V1,
	TN_VB_GID_ROCE_V2,
	TN_VB_GID_UNKNOWN
} tn_vb_gid_kind;

typedef struct tn_vb_port {
	uint8_t number;
	bool ethernet;
	uint16_t lid;
	enum ibv_mtu mtu;
	uint32_t max_msg;
	uint32_t rate; /* to compare ports by */
	uint32_t gid_count;
	union ibv_gid gids[TN_VB_GIDS_MAX]; /* usable, in order of preference */
	uint8_t gid_index[TN_VB_GIDS_MAX];  /* in the device's table */
	char reason[160];                   /* why this GID, or why the port is not usable */
} tn_vb_port;
/* TERN_OK: it is ACTIVE and has a usable GID. Else TERN_E_NO_DEVICE with the reason in words. */
tern_status tn_vb_port_query(const tn_verbs_api *api, struct ibv_context *context, uint8_t number,
			     tn_vb_port *port);
/* How good a GID is; 0 = not usable. Why goes to *why. */
int tn_vb_gid_score(const union ibv_gid *gid, tn_vb_gid_kind kind, const char **why);

/* ---- options (options.c) ---- */

typedef struct tn_vb_opts {
	char device[256];
	uint64_t lane_wrs, recv_slots, send_bytes, bounces;
	uint64_t keepalive_ns, stuck_ns, probation_ns;
	uint8_t timeout, retry_count, min_rnr_timer;
	uint8_t traffic_class, service_level;
	uint8_t bulk_traffic_class, bulk_service_level;
	uint16_t cq_moderation, cq_period_us;
} tn_vb_opts;
void tn_vb_opts_load(const struct tn_options *options, tn_vb_opts *opts);
tn_want tn_vb_want(const struct tn_options *options);

/* ---- objects ---- */

typedef struct tn_vb_dev tn_vb_dev;
typedef struct tn_vb_rail tn_vb_rail;
typedef struct tn_vb_lane tn_vb_lane;

typedef enum tn_vb_state {
	TN_VB_INIT,
	TN_VB_WIRING,
	TN_VB_UP,
	TN_VB_LEAVING,
	TN_VB_DRAINING,
	TN_VB_QUIET,
} tn_vb_state;

typedef enum tn_vb_op_kind {
	TN_VB_OP_USER,
	TN_VB_OP_SILENT, /* a user's that was done at the post */
	TN_VB_OP_HELLO,
	TN_VB_OP_BYE,
	TN_VB_OP_KEEPALIVE,
	TN_VB_OP_MARKER,
} tn_vb_op_kind;

typedef struct tn_vb_op {
	uint64_t cookie;
	uint32_t bounce;
	uint8_t kind; /* tn_vb_op_kind */
	bool signaled;
	uint64_t read_bytes; /* > 0: counts as received when it is done */
} tn_vb_op;

/* A request that waits for its doorbell, with all that it points to. */
typedef struct tn_vb_held {
	struct ibv_send_wr wr;
	struct ibv_sge sge[TN_IOV_MAX];
	uint8_t bytes[TN_VB_INLINE_WANT];
} tn_vb_held;

/* A lane's place on a rail. */
typedef struct tn_vb_seat {
	struct ibv_qp *qp;
	uint32_t qpn, psn;
} tn_vb_seat;

struct tn_vb_lane {
	tn_lane base;
	pthread_mutex_t lock;
	tn_list all;     /* of the device */
	tn_list due;     /* linked while events wait that no completion brings */
	tn_list waiting; /* in dev->held_lanes; guarded by dev->held_lock */
	uint32_t index, generation;
	uint64_t wr_id; /* of its sends, op number 0 */
	tn_vb_state state;
	bool active, closed;
	bool bulk;     /* carries no messages: its packets have the marks of bulk */
	bool wired;    /* the queue pair reached RTR: it receives, and flushes what it holds */
	bool heard;    /* the peer's hello came, or ours was taken: a bye has somebody to read it */
	bool again;    /* a post was refused for room: arm says BUSY once when there is some */
	bool down_due; /* LANE_DOWN waits */
	bool used;     /* something was posted since the last keepalive tick */
	bool trying;   /* a keepalive is out */
	uint8_t token[TN_LANE_TOKEN_BYTES];
	tern_status down_status;
	tn_vb_seat seats[TN_VB_RAILS_MAX]; /* by rail; the chosen one's is moved to qp and own at connect */
	uint32_t seat_count;
	tn_vb_rail *rail; /* NULL until it is chosen */
	struct ibv_qp *qp;
	struct {
		uint32_t qpn, psn;
	} own;
	tn_blob own_addr, peer_addr;
	tn_vb_rail_addr mine, peer; /* the two rails of this lane, as the addresses said */
	union ibv_gid own_gid, peer_gid;
	uint8_t sgid_index;
	uint64_t timeout_ns;
	uint64_t deadline_ns; /* of the present state; TN_TIME_NEVER = none */
	uint64_t retry_ns;    /* WIRING, active: when the next hello goes out; TN_TIME_NEVER = one is out */
	/* draining */
	bool flushed;  /* the marker came */
	bool last_wqe; /* LAST_WQE_REACHED came, or its grace passed */
	bool sweep;    /* both: quiet when the completion queue is next found empty */
	uint64_t grace_ns;
	/* guarded by lock: ring of ops, what is held, what was refused for good */
	uint32_t head, tail;
	uint32_t asked; /* signaled ops in flight */
	uint32_t
		special; /* ops in flight that do more at their end than go: all but silent ones without bounce */
	tn_vb_op *ops; /* [dev->ring] */
	tn_vb_held *held;
	uint32_t held_count;
	int post_errno; /* the NIC refused: no post any more, poll ends the lane */
	uint64_t orphans[TN_VB_HELD_MAX];
	uint32_t orphan_count;
	/* the watch over stuck lanes */
	uint32_t watch_head;
	uint64_t watch_ns;
};

typedef struct tn_vb_buf {
	uint32_t generation;
	bool posted; /* or about to be */
} tn_vb_buf;

typedef enum tn_vb_health {
	TN_VB_RAIL_UP,
	TN_VB_RAIL_DOWN,
	TN_VB_RAIL_PROBATION,
	TN_VB_RAIL_LOST
} tn_vb_health;

struct tn_vb_rail {
	tn_vb_dev *dev;
	uint8_t index;
	char name[64];
	struct ibv_context *context;
	struct ibv_device_attr attr;
	tn_vb_port port;
	tn_vb_health health;
	uint64_t probation_ns; /* PROBATION: until then */
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq; /* NULL: left out when the device was opened */
	struct ibv_srq *srq;
	uint64_t cq_used;    /* promised to queues */
	uint32_t cq_unacked; /* events taken */
	uint32_t mem_slot;
	bool attached;
	_Atomic uint32_t registrations; /* alive: extents and regions */
	bool refused;                   /* a registration; its cause is in the detail text */
	bool in_order;                  /* ibv_query_qp_data_in_order says so of writes */
	uint32_t inline_bytes;
	/* receive buffers */
	uint8_t *recv_memory;
	uint32_t recv_lkey;
	tn_vb_buf *bufs;   /* [recv_slots + TN_VB_RECV_RESERVE] */
	uint32_t *pending; /* indexes, to be posted; as many at most */
	uint32_t pending_count;
	bool refill_due; /* a batch of them waits for a poll that finds nothing */
	uint32_t bounce_lkey;
	tn_map by_qpn;     /* lanes that may still receive */
	uint32_t last_qpn; /* whose entry was looked up last */
	tn_vb_lane *last;  /* NULL: none */
	uint32_t sweeping;
	struct ibv_wc stash[TN_VB_WC_BATCH]; /* taken from the queue, not handled yet */
	uint32_t stash_at, stash_count;
	bool short_poll; /* the last one found fewer than a batch: nothing is behind the stash */
	uint32_t poll_failures;
	uint64_t rnr_at_open; /* the NIC's own counters then */
};

#define TN_VB_COUNTERS(X) \
	X(tx_bytes)       \
	X(rx_bytes)       \
	X(writes)         \
	X(write_imms)     \
	X(reads)          \
	X(sends)          \
	X(recvs)          \
	X(copy_bytes)     \
	X(copies)         \
	X(again)          \
	X(lanes)          \
	X(bounced_sends)  \
	X(inlined)        \
	X(doorbells)      \
	X(held)           \
	X(hellos)         \
	X(keepalives)     \
	X(late)           \
	X(failed)         \
	X(failed_access)  \
	X(failed_retry)   \
	X(failed_rnr)     \
	X(failed_local)   \
	X(failed_remote)  \
	X(failed_other)   \
	X(stuck)          \
	X(async_events)   \
	X(rail_downs)     \
	X(forced_drains)  \
	X(rnr)
TN_COUNTERS_STRUCT(tn_vb_counters, TN_VB_COUNTERS)

struct tn_vb_dev {
	/* what a message needs comes first, up to the first rail: few pages */
	tn_dev base;
	const tn_verbs_api *api;
	uint32_t forks;
	bool one_thread; /* locks and locked instructions are not needed */
	uint32_t rail_count;
	uint32_t rail_next; /* whose queue is polled first */
	uint8_t turn;       /* of lanes that dial */
	/* sizes in force, the smallest of all rails */
	uint32_t ops_max;     /* of users, per lane */
	uint32_t ring;        /* ops_max + TN_VB_OPS_RESERVED or more, a power of two */
	uint32_t signal_mask; /* a silent op whose number has none of these bits asks for a completion */
	uint32_t recv_slots, send_bytes, inline_bytes;
	uint32_t max_msg;
	/* bounce buffers */
	pthread_mutex_t bounce_lock;
	uint8_t *bounce_memory;
	uint32_t *bounce_free;
	uint32_t bounce_count, bounce_left;
	/* lanes */
	tn_list lanes, due;
	pthread_mutex_t held_lock;
	tn_list held_lanes;
	_Atomic bool held_any;
	uint32_t table_next;
	uint32_t transient; /* lanes in WIRING, LEAVING or DRAINING: poll looks at the clock for them */
	/* waiting */
	int epoll_fd, timer_fd, kick_fd;
	uint64_t next_ns;  /* the earliest deadline of a lane or rail, or the keepalive tick */
	uint64_t timer_ns; /* what the timer is set to */
	uint64_t keepalive_ns, watch_ns, watch_every_ns;
	_Atomic bool retry;        /* a refused post may work now */
	uint32_t polls;            /* the clock and asynchronous events are looked at now and then */
	tern_status device_status; /* TN_EV_DEVICE waits if not TERN_OK */
	bool address_changed;      /* TN_EV_DEVICE with TERN_OK waits */
	tn_vb_counters counters;
	tn_vb_rail rails[TN_VB_RAILS_MAX];
	tn_vb_opts opts;
	char name[160]; /* of all rails */
	tn_vb_lane *table[TN_VB_LANES_MAX];
	uint32_t generations[TN_VB_LANES_MAX];
};

static inline tn_vb_dev *tn_vb_dev_of(tn_dev *dev)
{
	return (tn_vb_dev *)dev;
}

static inline tn_vb_lane *tn_vb_lane_of(tn_lane *lane)
{
	return (tn_vb_lane *)lane;
}

static inline tn_vb_dev *tn_vb_lane_dev(const tn_vb_lane *lane)
{
	return (tn_vb_dev *)lane->base.dev;
}

/* The lane's lock where requests and completions meet. */
static inline void tn_vb_lane_lock(tn_vb_lane *lane)
{
	if (!tn_vb_lane_dev(lane)->one_thread)
		pthread_mutex_lock(&lane->lock);
}

static inline void tn_vb_lane_unlock(tn_vb_lane *lane)
{
	if (!tn_vb_lane_dev(lane)->one_thread)
		pthread_mutex_unlock(&lane->lock);
}

/* A counter of the device's that any thread moves. */
static inline void tn_vb_count(const tn_vb_dev *dev, tn_counter *counter, uint64_t n)
{
	if (dev->one_thread)
		tn_count_own(counter, n);
	else
		tn_count(counter, n);
}

static inline bool tn_vb_usable(const tn_vb_rail *rail)
{
	return rail->health == TN_VB_RAIL_UP || rail->health == TN_VB_RAIL_PROBATION;
}

/* tn_event.slot: rail and buffer. */
static inline uint32_t tn_vb_slot(const tn_vb_rail *rail, uint32_t index)
{
	return (uint32_t)rail->index << 24 | index;
}

#include "transport/verbs/parts.h"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs: RC queue pairs of an RDMA NIC (InfiniBand, RoCE). Nouns:
 *
 *   device   one port of one NIC: context, PD, one completion queue with its channel, one
 *            shared receive queue
 *   lane     one RC queue pair; wired by what the two lane addresses say, no connection manager
 *   op       a posted work request: a place in the lane's ring, retired by its completion or a later one's
 *   buffer   a receive buffer in the SRQ's turn: posted -> completed -> held -> posted
 *   bounce   a registered buffer that a message from foreign memory is copied into
 *
 *   ops of a lane        head <= tail, tail - head <= ops_max + OPS_RESERVED; op i is ops[i % ring]
 *   receive buffers      total = posted + completed or held; total = recv_slots + TN_VB_RECV_RESERVE
 *   completion queue     capacity >= receive buffers + sum over lanes of their whole ring (flush included)
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
 * Wiring. Each side moves its queue pair to RTS as soon as it knows the other's address. The active side
 * sends a hello with a MAC over both addresses, keyed with the lane's token; the passive side answers with
 * its own. A hello that finds nobody yet ends in RETRY_EXC: the queue pair is reset and tries again.
 * A hello, a bye and a keepalive are the provider's own messages: a SEND with immediate, which users'
 * messages never are. They use receive buffers beyond those that the link is told of.
 *
 * Threads: rule 5 of transport.h. lane->lock covers its ring and state against posts from other threads;
 * dev->bounce_lock covers the stack of bounce buffers. Tests: tests/conformance,
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
#include "transport/verbs/api.h"

#define TN_VB_LANES_MAX    2048u /* 12 bits of wr_id hold 4096 */
#define TN_VB_OPS_RESERVED 4u    /* hello or bye, keepalive, marker, and one to spare */
#define TN_VB_RECV_RESERVE 64u   /* buffers for hellos and byes, beyond what the link may grant */
#define TN_VB_SIGNAL_EVERY 16u   /* an inline request in so many asks for a completion */
#define TN_VB_WC_BATCH     16
#define TN_VB_INLINE_WANT  220u
#define TN_VB_NO_BOUNCE    UINT32_MAX

#define TN_VB_RETRY_AFTER_NS (10 * TN_NS_PER_MS) /* between hellos that find nobody */
#define TN_VB_LEAVE_NS       (50 * TN_NS_PER_MS) /* for the bye */
#define TN_VB_LAST_WQE_NS    (20 * TN_NS_PER_MS) /* for LAST_WQE_REACHED: never depended on */
#define TN_VB_DRAIN_NS       (1 * TN_NS_PER_SEC) /* for the flush of a queue pair in ERR */

/* ---- addresses (wire.c) ---- */

typedef struct tn_vb_dev_addr {
	union ibv_gid gid;
	uint16_t lid;
	uint8_t ethernet;  /* RoCE */
	uint8_t mtu;       /* enum ibv_mtu */
	uint8_t rd_atomic; /* reads that it serves at a time */
	uint8_t mem_slot;  /* which rkey of its keys is this device's */
} tn_vb_dev_addr;

typedef struct tn_vb_lane_addr {
	uint32_t qpn; /* 24 bits */
	uint32_t psn; /* 24 bits */
	bool active;
} tn_vb_lane_addr;

#define TN_VB_HELLO_BYTES 40
void tn_vb_dev_addr_put(const tn_vb_dev_addr *addr, tn_blob *blob);
bool tn_vb_dev_addr_get(const tn_blob *blob, tn_vb_dev_addr *addr);
void tn_vb_lane_addr_put(const tn_vb_lane_addr *addr, tn_blob *blob);
bool tn_vb_lane_addr_get(const tn_blob *blob, tn_vb_lane_addr *addr);
/* The hello that the side `from` sends to `to`. */
tern_status tn_vb_hello_make(const uint8_t *token, const tn_vb_lane_addr *from, const tn_vb_lane_addr *to,
			     uint8_t hello[TN_VB_HELLO_BYTES]);

/* ---- port and GID (gid.c) ---- */

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
	int gid_index;
	tn_vb_gid_kind gid_kind;
	union ibv_gid gid;
	char reason[160]; /* why this GID, or why none */
} tn_vb_port;
/* First ACTIVE port with a usable GID. TERN_E_NO_DEVICE with the reason in words. */
tern_status tn_vb_port_choose(const tn_verbs_api *api, struct ibv_context *context, const char *device,
			      const struct ibv_device_attr *attr, tn_vb_port *port);
/* How good a GID is; 0 = not usable. Why goes to *why. */
int tn_vb_gid_score(const union ibv_gid *gid, tn_vb_gid_kind kind, const char **why);
void tn_vb_gid_text(const union ibv_gid *gid, char *text, size_t bytes);

/* ---- objects ---- */

typedef struct tn_vb_opts {
	const char *device; /* "" = the first that is usable */
	uint64_t lane_wrs, recv_slots, send_bytes, bounces, keepalive_ns;
	uint64_t traffic_class, service_level;
} tn_vb_opts;
void tn_vb_opts_load(const struct tn_options *options, tn_vb_opts *opts);

typedef struct tn_vb_dev tn_vb_dev;
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
	uint8_t kind;        /* tn_vb_op_kind */
	uint64_t read_bytes; /* > 0: counts as received when it is done */
} tn_vb_op;

struct tn_vb_lane {
	tn_lane base;
	pthread_mutex_t lock;
	tn_list all; /* of the device */
	tn_list due; /* linked while events wait that no completion brings */
	uint32_t index, generation;
	tn_vb_state state;
	bool active, closed;
	bool wired;    /* the queue pair reached RTS: it can send, and flushes what it holds */
	bool heard;    /* the peer's hello came, or ours was taken: a bye has somebody to read it */
	bool again;    /* a post was refused for room: arm says BUSY once when there is some */
	bool down_due; /* LANE_DOWN waits */
	bool used;     /* something was posted since the last keepalive tick */
	bool trying;   /* a keepalive is out */
	uint8_t token[TN_LANE_TOKEN_BYTES];
	tern_status down_status;
	tn_vb_lane_addr own, peer;
	tn_vb_dev_addr peer_dev;
	uint64_t timeout_ns;
	uint64_t deadline_ns; /* of the present state; TN_TIME_NEVER = none */
	uint64_t retry_ns;    /* WIRING, active: when the next hello goes out; TN_TIME_NEVER = one is out */
	struct ibv_qp *qp;
	/* draining */
	bool flushed;  /* the marker came */
	bool last_wqe; /* LAST_WQE_REACHED came, or its grace passed */
	bool sweep;    /* both: quiet when the completion queue is next found empty */
	uint64_t grace_ns;
	/* ring of ops, guarded by lock */
	uint32_t head, tail;
	tn_vb_op *ops; /* [dev->ring] */
};

typedef struct tn_vb_buf {
	uint32_t generation;
	bool posted;
} tn_vb_buf;

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
	X(hellos)         \
	X(keepalives)     \
	X(late)           \
	X(failed)         \
	X(async_events)   \
	X(forced_drains)
TN_COUNTERS_STRUCT(tn_vb_counters, TN_VB_COUNTERS)

struct tn_vb_dev {
	tn_dev base;
	const tn_verbs_api *api;
	tn_vb_opts opts;
	char name[64];
	uint32_t forks;
	struct ibv_context *context;
	struct ibv_device_attr attr;
	tn_vb_port port;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint64_t cq_used; /* promised to queues */
	uint32_t mem_slot;
	bool attached;
	/* sizes in force */
	uint32_t ops_max; /* of users, per lane */
	uint32_t ring;    /* ops_max + TN_VB_OPS_RESERVED */
	uint32_t recv_slots, send_bytes, inline_bytes;
	/* receive buffers */
	uint8_t *recv_memory;
	uint32_t recv_lkey;
	tn_vb_buf *bufs; /* [recv_slots + TN_VB_RECV_RESERVE] */
	/* bounce buffers */
	pthread_mutex_t bounce_lock;
	uint8_t *bounce_memory;
	uint32_t bounce_lkey;
	uint32_t *bounce_free;
	uint32_t bounce_count, bounce_left;
	/* lanes */
	tn_list lanes, due;
	tn_vb_lane *table[TN_VB_LANES_MAX];
	uint32_t generations[TN_VB_LANES_MAX];
	uint32_t table_next;
	tn_map by_qpn;      /* lanes that may still receive */
	uint32_t transient; /* lanes in WIRING, LEAVING or DRAINING: poll looks at the clock for them */
	uint32_t sweeping;
	/* waiting */
	int epoll_fd, timer_fd, kick_fd;
	uint64_t next_ns;  /* the earliest deadline of a lane, or the keepalive tick */
	uint64_t timer_ns; /* what the timer is set to */
	uint64_t keepalive_ns;
	_Atomic bool retry;        /* a refused post may work now */
	uint32_t turn;             /* of poll: the clock and asynchronous events are looked at now and then */
	tern_status device_status; /* TN_EV_DEVICE waits if not TERN_OK */
	bool address_changed;      /* TN_EV_DEVICE with TERN_OK waits */
	struct ibv_wc stash[TN_VB_WC_BATCH]; /* taken from the queue, not handled yet */
	uint32_t stash_at, stash_count;
	tn_vb_counters counters;
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

/* ---- device.c ---- */
extern const tn_provider tn_provider_verbs;
extern const tn_dev_ops tn_vb_ops;
/* This deadline counts from now on. */
void tn_vb_deadline(tn_vb_dev *dev, uint64_t at_ns);
/* Wake a sleeper: something waits that no completion announces. */
void tn_vb_kick(tn_vb_dev *dev);

/* ---- open.c ---- */
tern_status tn_vb_probe(char *reason, size_t reason_bytes);
tern_status tn_vb_open(const tn_dev_params *params, tn_dev **dev);
void tn_vb_free(tn_vb_dev *dev);
/* Fill a receive buffer's turn again. */
tern_status tn_vb_recv_post(tn_vb_dev *dev, uint32_t index);

/* ---- describe.c ---- */
tern_status tn_vb_describe(tern_fact_fn fn, void *arg);

/* ---- lane.c ---- */
tern_status tn_vb_lane_create(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
tern_status tn_vb_lane_connect(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane);
void tn_vb_lane_break(tn_lane *lane);
void tn_vb_lane_close(tn_lane *lane);
bool tn_vb_lane_drained(tn_lane *lane);
void tn_vb_lane_destroy(tn_lane *lane);
/* The lane is over: LANE_DOWN with the status (unless it was closed) and the queue pair to ERR. */
void tn_vb_lane_fail(tn_vb_lane *lane, tern_status status);
/* A message of the provider's own arrived. True: the lane came UP. */
bool tn_vb_lane_control(tn_vb_lane *lane, uint32_t what, const uint8_t *data, uint64_t bytes);
/* An own op ended. */
void tn_vb_lane_op_done(tn_vb_lane *lane, tn_vb_op_kind kind, enum ibv_wc_status status);
/* Deadlines that are due. */
void tn_vb_lane_tick(tn_vb_lane *lane, uint64_t now_ns);
void tn_vb_lane_keepalive(tn_vb_lane *lane);
/* The completion queue was empty: who waited for that is quiet. */
void tn_vb_lane_swept(tn_vb_lane *lane);
void tn_vb_lane_last_wqe(tn_vb_lane *lane);
/* Events that wait; up to max. */
int tn_vb_lane_deliver(tn_vb_lane *lane, tn_event *events, int max);
void tn_vb_lane_check(tn_vb_lane *lane);

/* what: the immediate of the provider's own messages */
#define TN_VB_HELLO 1u
#define TN_VB_BYE   2u

/* ---- qp.c: queue pairs and their states ---- */
tern_status tn_vb_qp_create(tn_vb_dev *dev, uint32_t max_inline, struct ibv_qp **qp, uint32_t *inline_bytes);
/* RESET or INIT to INIT, RTR, RTS towards the lane's peer. */
tern_status tn_vb_qp_init(tn_vb_lane *lane);
tern_status tn_vb_qp_wire(tn_vb_lane *lane);
void tn_vb_qp_error(tn_vb_lane *lane);
bool tn_vb_qp_reset(tn_vb_lane *lane);

/* ---- post.c ---- */
tern_status tn_vb_write(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_write_imm(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_read(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done);
/* One of the provider's own requests; the lane's lock is held. False: refused. */
bool tn_vb_post_own(tn_vb_lane *lane, tn_vb_op_kind kind, const void *data, uint32_t bytes);
void tn_vb_bounce_free(tn_vb_dev *dev, uint32_t index);

/* ---- cq.c ---- */
/* Handle up to max completions; sets *empty if the queue was found empty. Returns the number of events. */
int tn_vb_cq_poll(tn_vb_dev *dev, tn_event *events, int max, bool *empty);
/* Look for completions without handling them; true if there are any. */
bool tn_vb_cq_peek(tn_vb_dev *dev);
/* Complete by hand what a destroyed queue pair still held; up to max events. */
int tn_vb_ops_flush(tn_vb_lane *lane, tn_event *events, int max);

/* ---- mr.c ---- */
extern const tn_registrar tn_vb_registrar;

/* ---- async.c ---- */
/* Drain the device's asynchronous events; never blocks. */
void tn_vb_async(tn_vb_dev *dev);

#endif

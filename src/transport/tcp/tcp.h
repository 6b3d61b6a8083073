/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp provider's nouns; private to src/transport/tcp.
 *
 *   device   a listener, an epoll set, receive slots, lanes, and connections that have not proven themselves
 *   pending  an accepted connection until it proves a lane's token: bounded in number, bytes and time
 *   lane     one TCP connection; sends from tx (any poster, under tx.lock), receives in rx (poll only)
 *   req      an accepted wr, from post until its completion was delivered
 *   resp     a read of the peer that we answer; nak: a one-sided request of the peer that we refuse
 *   slot     a receive buffer of the device: held from a message's first byte until recv_done
 *
 * A lane's life (tn_tcp_set_state alone changes it):
 *
 *   INIT --connect, active--> DIALLING --connected--> GREETING --READY--> UP --error--> DOWN
 *     |                         ^  |next address         |                 ^              ^
 *     |                         +--+---------------------+                 |              |
 *     +--connect, passive--> WAITING --a connection proved the token-------+     any of them, on error
 *     +--connect, passive, proven connection parked before-----------------+
 *   any --lane_close--> CLOSED
 *
 * Invariants of tx (counters run freely, used modulo the ring):
 *   head <= acked <= tail, head <= sent <= tail, tail - head <= wrs
 *   reqs in [sent, tail) are not wholly with the kernel, reqs in [head, sent) are
 *   peer's ack <= seq_sent <= seq_next
 *   batch: whole frames, older than all that is in [sent, tail); for the ring they are with the kernel
 *   ack_told <= ack_value; no ack is told beyond the seq of the oldest NAK that is not sent
 *
 * Threads: as rule 5 of transport.h. Posts touch only their lane's tx (locked), the ready list (locked), the
 * counters (atomic) and the kick. Everything else belongs to poll's thread and to calls serialised with it.
 * Lock order: tx.lock, then dev->ready_lock.
 */
#ifndef TN_TRANSPORT_TCP_TCP_H
#define TN_TRANSPORT_TCP_TCP_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/check.h"
#include "base/counters.h"
#include "base/list.h"
#include "transport/tcp/frame.h"

typedef struct tn_tcp_dev tn_tcp_dev;
typedef struct tn_tcp_lane tn_tcp_lane;

#define TN_TCP_SMALL_BYTES   2048u /* payloads up to this are placed from the rx buffer, whole: never torn */
#define TN_TCP_RX_HEAD_BYTES 4096u /* after a large frame, look only this far: the rest goes to its target */
#define TN_TCP_CHUNK_BYTES \
	(256u              \
	 << 10) /* per lane and direction: what a post sends, a poll sends and receives. Then others go first */
#define TN_TCP_STALL_NS     250000000ull /* how often a lane that is not read is looked after */
#define TN_TCP_LOOK_BYTES   (8u << 10)   /* after a longer frame, expect another */
#define TN_TCP_LARGE_FRAMES 3u           /* for so many frames: rows, then their answer */
#define TN_TCP_ACK_BYTES    (256u << 10) /* placed and not acknowledged: no waiting beyond that */
#define TN_TCP_NAKS         (2u * TN_TCP_WRS_LIMIT)
#define TN_TCP_DIRECT_LANES 2u          /* up to here poll asks the sockets before the epoll set */
#define TN_TCP_DIRECT_POLLS 64u         /* and looks at the epoll set at least once in so many polls */
#define TN_TCP_HOT_LANES    2u          /* with more: those that received last are asked first */
#define TN_TCP_HOT_POLLS    8u          /* and the epoll set at least once in so many polls */
#define TN_TCP_SECOND_POLLS 4u          /* and the second of those, unless it was woken */
#define TN_TCP_STREAK       8u          /* short receipts of one lane in a row: it is who talks, */
#define TN_TCP_STREAK_RARER 4u          /* and others are looked for so much more rarely */
#define TN_TCP_REST_BYTES   (64u << 10) /* as little more than a chunk goes with it */
#define TN_TCP_BATCH_BYTES  (16u << 10) /* frames gathered by lane.more: so many go at once */
#define TN_TCP_BATCH_FRAME  4608u       /* payload that is copied for that, or for one piece */
#define TN_TCP_BATCH_ROOM   (TN_TCP_BATCH_BYTES + TN_TCP_HDR_BYTES + TN_TCP_BATCH_FRAME)

/* ---- sources of readiness: what epoll's data points to ---- */

typedef enum tn_tcp_source_kind {
	TN_TCP_SRC_LISTENER,
	TN_TCP_SRC_KICK,
	TN_TCP_SRC_TIMER,
	TN_TCP_SRC_PENDING,
	TN_TCP_SRC_LANE,
} tn_tcp_source_kind;

typedef struct tn_tcp_source {
	tn_tcp_source_kind kind;
} tn_tcp_source;

/* ---- options ---- */

typedef struct tn_tcp_opts {
	uint64_t port;
	uint64_t sndbuf;
	uint64_t rcvbuf;
	uint64_t rx_bytes;
	uint64_t send_bytes;
	uint64_t recv_slots;
	uint64_t lane_recv_slots;
	uint64_t lane_wrs;
	uint64_t pending_max;
	uint64_t handshake_ns;
	uint64_t user_timeout_ns;
	uint64_t keepalive_ns;
} tn_tcp_opts;
tern_status tn_tcp_opts_load(const struct tn_options *options, tn_tcp_opts *opts);

/* ---- counters ---- */

#define TN_TCP_COUNTERS(X)                                                                \
	X(tx_bytes) /* payload handed to the kernel, by posts and answers */              \
	X(rx_bytes) /* payload received */                                                \
	X(writes)                                                                         \
	X(write_imms)                                                                     \
	X(reads)                                                                          \
	X(sends)                                                                          \
	X(recvs)                                                                          \
	X(copy_bytes) /* one-sided payload that went through the rx buffer */             \
	X(copies)                                                                         \
	X(again)                                                                          \
	X(lanes)      /* made */                                                          \
	X(tx_calls)   /* sendmsg that moved something */                                  \
	X(rx_calls)   /* recv that moved something */                                     \
	X(acks)       /* ACK frames sent; others ride on frames of the other direction */ \
	X(naks)       /* requests of peers that we refused */                             \
	X(naks_late)  /* refusals of LOCAL writes, completed long before */               \
	X(pauses)     /* lanes that stopped reading for want of a receive slot */         \
	X(accepted)   /* connections */                                                   \
	X(rejected)   /* connections that did not prove a lane's token */                 \
	X(lanes_down) /* by error */
TN_COUNTERS_STRUCT(tn_tcp_counters, TN_TCP_COUNTERS)

/* ---- requests of this side ---- */

typedef enum tn_tcp_req_state {
	TN_TCP_REQ_FREE,     /* not in use, or its completion was delivered */
	TN_TCP_REQ_QUEUED,   /* not wholly with the kernel: the caller's buffers are referenced */
	TN_TCP_REQ_WAITING,  /* for the acknowledgement or the answer */
	TN_TCP_REQ_FINISHED, /* its completion waits in the done ring */
} tn_tcp_req_state;

typedef struct tn_tcp_req {
	uint64_t cookie;
	uint64_t seq;
	uint64_t bytes;
	uint8_t *local; /* READ_REQ: the destination */
	tern_status status;
	uint8_t state;
	uint8_t type; /* tn_tcp_type */
	bool remote;  /* waits for the acknowledgement */
	uint8_t iov_count;
	tn_iov iov[TN_IOV_MAX];
	tn_tcp_hdr hdr; /* encoded into head when the frame is about to go: ack is of that moment */
	uint8_t head[TN_TCP_HDR_BYTES];
} tn_tcp_req;

/* ---- answers to the peer ---- */

typedef struct tn_tcp_resp {
	uint64_t seq;
	uint64_t bytes;
	uint64_t offset;
	tn_key key;
	const uint8_t *source; /* NULL: the key went away in between, the rest are zeroes */
	tern_status status;
	uint8_t head[TN_TCP_HDR_BYTES];
	uint8_t trailer[TN_TCP_TRAILER_BYTES];
} tn_tcp_resp;

typedef struct tn_tcp_nak {
	uint64_t seq;
	tern_status status;
} tn_tcp_nak;

typedef enum tn_tcp_out_kind {
	TN_TCP_OUT_NONE,
	TN_TCP_OUT_BATCH,
	TN_TCP_OUT_REQ,
	TN_TCP_OUT_RESP,
	TN_TCP_OUT_CTL
} tn_tcp_out_kind;

/* A frame on its way out. */
typedef struct tn_tcp_out {
	tn_tcp_out_kind kind;
	uint32_t index; /* of the req or resp (free running) */
	bool nak;       /* CTL: a NAK (else an ACK) */
	uint64_t total; /* bytes on the wire */
	uint64_t sent;
	uint64_t ack; /* that its header tells */
} tn_tcp_out;

typedef struct tn_tcp_tx {
	pthread_mutex_t lock;
	tn_tcp_req *ring;
	uint32_t wrs; /* power of two */
	uint32_t head, acked, sent, tail;
	uint32_t *done; /* FIFO of ring indices with an undelivered completion */
	uint32_t done_head, done_tail;
	bool posting; /* a post runs: its req, the last one, may complete inside it */
	bool posting_done;
	uint64_t seq_next;
	uint64_t seq_sent;
	uint64_t ack_seen;        /* largest of the peer */
	uint32_t reads;           /* unanswered */
	_Atomic uint32_t awaited; /* reqs in WAITING but reads; written under lock, poll peeks */
	tn_tcp_resp *resp;        /* TN_TCP_READS_MAX */
	uint32_t resp_head, resp_tail;
	tn_tcp_nak *nak; /* TN_TCP_NAKS */
	uint32_t nak_head, nak_tail;
	uint64_t ack_value; /* what we may tell: all of the peer below it are handled */
	uint64_t ack_told;
	bool ack_due;
	bool probe;         /* send an ACK frame even if there is nothing to tell */
	bool resp_turn;     /* answers and requests take turns */
	tern_status refuse; /* TERN_OK: posts are accepted; else what they get */
	tn_tcp_out cur;     /* the frame that the kernel took in part */
	uint8_t *batch;     /* frames that lane.more holds back, encoded, with their payload */
	uint32_t batch_bytes;
	uint8_t ctl[TN_TCP_HDR_BYTES]; /* bytes of cur when it is CTL */
	uint32_t events;               /* epoll interest now in force */
	int error;                     /* errno of a send that failed; poll takes the lane down */
} tn_tcp_tx;

/* ---- receiving ---- */

typedef enum tn_tcp_rx_state {
	TN_TCP_RX_HEAD,    /* a header next */
	TN_TCP_RX_PLACE,   /* payload of a write into memory under key */
	TN_TCP_RX_FETCH,   /* payload of an answer into a req's destination */
	TN_TCP_RX_MESSAGE, /* payload of a message into a slot */
	TN_TCP_RX_DISCARD, /* payload of a refused write */
	TN_TCP_RX_TRAILER, /* after an answer */
} tn_tcp_rx_state;

typedef struct tn_tcp_rx {
	uint8_t *buf;
	uint32_t cap, start, end; /* unparsed bytes in buf[start, end) */
	tn_tcp_rx_state state;
	uint8_t after_large; /* one of so many frames before was large: expect another */
	bool drained;        /* the last recv got less than it asked for */
	bool moved;          /* the last run received something */
	bool more;           /* and there may be more */
	bool ack_waits;      /* for a poll that finds nothing; counted in dev->acks_waiting */
	bool paused;         /* no receive slot: the socket is not read */
	uint8_t gone;        /* times in a row that a paused lane's connection was found ended */
	bool dirty;          /* frames came in: settle acknowledgements and answers at the end of the batch */
	bool ack_due;        /* one of them wants to be acknowledged */
	uint64_t unacked;    /* bytes of those, about */
	tn_tcp_hdr hdr;
	tn_key key;
	uint8_t *dst;
	uint64_t left;
	uint64_t seq;              /* expected next */
	uint64_t ack, ack_settled; /* latest of the peer's acks; so far completed */
	uint32_t slot;
	uint32_t req;        /* FETCH: ring index */
	tern_status refused; /* DISCARD: why */
} tn_tcp_rx;

/* ---- lanes ---- */

typedef enum tn_tcp_state {
	TN_TCP_INIT,
	TN_TCP_WAITING,
	TN_TCP_DIALLING,
	TN_TCP_GREETING,
	TN_TCP_UP,
	TN_TCP_DOWN,
	TN_TCP_CLOSED,
} tn_tcp_state;

/* A handshake under way, of either side. */
typedef struct tn_tcp_greet {
	uint8_t in[TN_TCP_HELLO_BYTES];
	uint32_t have;
	bool challenged; /* CHALLENGE sent (acceptor) or answered (dialler) */
	uint16_t version;
	uint64_t lane_dialler, lane_acceptor;
	uint8_t nonce_dialler[TN_TCP_NONCE_BYTES], nonce_acceptor[TN_TCP_NONCE_BYTES];
} tn_tcp_greet;

#define TN_TCP_DETAIL_BYTES 240

struct tn_tcp_lane {
	tn_lane base;
	tn_tcp_source src;
	tn_tcp_dev *dev;
	uint64_t id, peer_id;
	tn_tcp_state state;
	int fd; /* -1 if none */
	bool active;
	bool up_due, down_due; /* events to deliver */
	uint8_t token[TN_LANE_TOKEN_BYTES];
	uint64_t timeout_ns, deadline, dial_deadline;
	uint64_t send_bytes; /* longest message that the peer takes */
	tern_status down_status;
	char down_detail[TN_TCP_DETAIL_BYTES];
	tn_tcp_dev_blob peer; /* addresses to dial, best first */
	uint32_t dial_next;
	tn_tcp_greet greet;
	tn_tcp_rx rx;
	tn_tcp_tx tx;
	uint32_t slots_held;
	tn_list ready; /* on dev->ready, under dev->ready_lock */
	tn_list node;  /* on dev->lanes */
};

/* ---- device ---- */

typedef struct tn_tcp_pending {
	tn_tcp_source src;
	int fd; /* -1: free */
	uint64_t deadline;
	tn_tcp_greet greet;
} tn_tcp_pending;

#define TN_TCP_SLOT_NONE UINT32_MAX

typedef struct tn_tcp_slot {
	tn_tcp_lane *lane; /* that counts it; NULL once that lane is gone */
	uint32_t next;     /* free list */
	bool held;
} tn_tcp_slot;

struct tn_tcp_dev {
	tn_dev base;
	tn_tcp_opts opts;
	int epfd, listener, kick, timer;
	uint64_t listener_again; /* when to accept again after descriptors ran out; 0 = now */
	tn_tcp_source src_listener, src_kick, src_timer;
	tn_tcp_dev_blob self;
	uint32_t forks; /* tn_os_fork_generation() at birth: a child must not touch our sockets */
	tn_list lanes;
	uint32_t lane_count, up_count;
	uint64_t lane_serial;
	tn_tcp_pending *pending;
	uint32_t pending_count, greeting_count; /* connections and lanes with a deadline */
	uint64_t next_deadline;                 /* UINT64_MAX: none */
	tn_tcp_slot *slots;
	uint8_t *slot_bytes;
	uint32_t slot_free, slots_paused; /* paused lanes */
	pthread_mutex_t ready_lock;
	tn_list ready;
	_Atomic uint32_t ready_count;
	_Atomic uint32_t tx_waiting; /* lanes that wait for EPOLLOUT */
	_Atomic bool armed;
	uint32_t direct; /* polls since the epoll set was asked */
	uint32_t streak; /* times that hot[0] alone received, each time little */
	uint32_t acks_waiting;
	tn_tcp_lane *hot[TN_TCP_HOT_LANES]; /* the latest first; NULL: none */
	/* accesses to memory behind keys: guard.c */
	_Atomic uint64_t rx_access, tx_begun, tx_ended;
	bool guarded;
	tn_tcp_counters counters;
};

static inline tn_tcp_dev *tn_tcp_dev_of(tn_dev *dev)
{
	return (tn_tcp_dev *)dev;
}

static inline tn_tcp_lane *tn_tcp_lane_of(tn_lane *lane)
{
	return (tn_tcp_lane *)lane;
}

/* ---- guard.c: accesses that outlive a revocation ---- */
extern const tn_guard tn_tcp_guard;

static inline void tn_tcp_rx_access(tn_tcp_dev *dev)
{
	atomic_fetch_add_explicit(&dev->rx_access, 1, memory_order_acq_rel);
}

static inline void tn_tcp_tx_access_begin(tn_tcp_dev *dev)
{
	atomic_fetch_add_explicit(&dev->tx_begun, 1, memory_order_acq_rel);
}

static inline void tn_tcp_tx_access_end(tn_tcp_dev *dev)
{
	atomic_fetch_add_explicit(&dev->tx_ended, 1, memory_order_acq_rel);
}

#define TN_TCP_COUNT(dev, name, n) tn_count(&(dev)->counters.name, (n))

/* ---- sock.c: the only file of the provider that makes and tunes sockets ---- */

tern_status tn_tcp_listen(const char *host, const tn_tcp_opts *opts, int *fd, struct sockaddr_storage *bound);
/* Addresses for peers: the bound one, or for a wildcard those of interfaces that can be routed to. */
tern_status tn_tcp_self(const struct sockaddr_storage *bound, tn_tcp_dev_blob *self);
/* A socket whose non-blocking connect has begun (or is over: it becomes writable). Returns errno, 0 if fine. */
int tn_tcp_dial(const tn_tcp_addr *addr, const tn_tcp_opts *opts, int *fd);
/* What was received, up to so many bytes, goes nowhere. As recv, and doesn't wait. */
ssize_t tn_tcp_discard(int fd, size_t bytes);
void tn_tcp_tune(int fd, const tn_tcp_opts *opts);
bool tn_tcp_addr_is_loopback(const tn_tcp_addr *addr);
/* "127.0.0.1:4711", "[::1]:4711" */
void tn_tcp_addr_print(const tn_tcp_addr *addr, char *out, size_t bytes);
/* One-shot timer on the monotonic clock, `after_ns` from now; 0 disarms. */
void tn_tcp_timer_set(int timer, uint64_t after_ns);

/* ---- device.c ---- */

extern const tn_dev_ops tn_tcp_dev_ops;
extern const tn_provider tn_provider_tcp; /* the registry knows it by name */
/* Put a lane on the ready list, so that the next poll looks at it; wakes whoever waits armed. Any thread. */
void tn_tcp_ready(tn_tcp_lane *lane);
/* The lane goes away: poll asks it first no more. */
void tn_tcp_cold(tn_tcp_lane *lane);
/* A deadline came into being. */
void tn_tcp_deadline(tn_tcp_dev *dev, uint64_t deadline);
/* Change what epoll watches a descriptor for, from `before` to `events` (0: not at all). 0 or errno. */
int tn_tcp_watch(tn_tcp_dev *dev, int fd, uint32_t before, uint32_t events, tn_tcp_source *src);

/* ---- slots.c ---- */

tern_status tn_tcp_slots_init(tn_tcp_dev *dev);
void tn_tcp_slots_fini(tn_tcp_dev *dev);
/* A free slot for a message of that lane, TN_TCP_SLOT_NONE if there is none. */
uint32_t tn_tcp_slot_take(tn_tcp_lane *lane);
void tn_tcp_slot_give(tn_tcp_dev *dev, uint32_t slot);
/* The lane goes away: slots that the user still holds forget it. */
void tn_tcp_slots_orphan(tn_tcp_lane *lane);
static inline uint8_t *tn_tcp_slot_buf(tn_tcp_dev *dev, uint32_t slot)
{
	return dev->slot_bytes + (uint64_t)slot * dev->opts.send_bytes;
}

/* ---- lane.c ---- */

void tn_tcp_set_state(tn_tcp_lane *lane, tn_tcp_state state);
const char *tn_tcp_state_name(tn_tcp_state state);
/* The lane has a proven connection: from here on frames flow. */
void tn_tcp_lane_up(tn_tcp_lane *lane);
/* Take the lane down: closes the socket, completes its wrs, LANE_DOWN follows. Poll's thread. */
void tn_tcp_lane_fail(tn_tcp_lane *lane, tern_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Deliver what the lane owes: completions, LANE_UP, LANE_DOWN. Returns the number of events. */
int tn_tcp_lane_deliver(tn_tcp_lane *lane, tn_event *events, int max);
tern_status tn_tcp_lane_create(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
tern_status tn_tcp_lane_connect(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane);
void tn_tcp_lane_break(tn_lane *lane);
void tn_tcp_lane_close(tn_lane *lane);
bool tn_tcp_lane_drained(tn_lane *lane);
void tn_tcp_lane_destroy(tn_lane *lane);
/* Assert the lane's invariants. */
void tn_tcp_lane_check(tn_tcp_lane *lane);

/* ---- greet.c: handshake of both sides ---- */

void tn_tcp_accept(tn_tcp_dev *dev);
void tn_tcp_pending_event(tn_tcp_dev *dev, tn_tcp_pending *pending);
void tn_tcp_pending_drop(tn_tcp_dev *dev, tn_tcp_pending *pending);
/* Dial the next address of the peer; fails the lane when there is none left. */
void tn_tcp_dial_next(tn_tcp_lane *lane);
/* Progress of a lane in DIALLING or GREETING. */
void tn_tcp_greet_event(tn_tcp_lane *lane);
/* The passive side accepts: tells the dialler. False: the connection is gone. */
bool tn_tcp_greet_ready(tn_tcp_lane *lane);
/* Handle passed deadlines of a handshake; returns the earliest that is left, UINT64_MAX if none. */
uint64_t tn_tcp_pending_deadlines(tn_tcp_dev *dev, uint64_t now);
uint64_t tn_tcp_lane_deadline(tn_tcp_lane *lane, uint64_t now);

/* ---- post.c: work requests ---- */

tern_status tn_tcp_write(tn_lane *lane, tn_wr *wr);
tern_status tn_tcp_write_imm(tn_lane *lane, tn_wr *wr);
tern_status tn_tcp_read(tn_lane *lane, tn_wr *wr);
tern_status tn_tcp_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done);
void tn_tcp_flush(tn_lane *lane);

/* QUEUED on posting; then WAITING, FINISHED, FREE. tx.lock held. */
static inline void tn_tcp_req_set_state(tn_tcp_req *req, tn_tcp_req_state state)
{
	static const uint32_t from[] = {
		[TN_TCP_REQ_FREE] = 1u << TN_TCP_REQ_FINISHED | 1u << TN_TCP_REQ_QUEUED,
		[TN_TCP_REQ_QUEUED] = 1u << TN_TCP_REQ_FREE,
		[TN_TCP_REQ_WAITING] = 1u << TN_TCP_REQ_QUEUED,
		[TN_TCP_REQ_FINISHED] = 1u << TN_TCP_REQ_QUEUED | 1u << TN_TCP_REQ_WAITING,
	};

	TN_ASSERT_MSG(from[state] & (1u << req->state), "req %u -> %u", req->state, state);
	req->state = (uint8_t)state;
}

/* ---- tx.c: frames out; tx.lock held in all of them ---- */

/* Send what is queued, at most about budget bytes; asks epoll for more room when something is left.
   Returns how much went. */
uint64_t tn_tcp_tx_run(tn_tcp_lane *lane, uint64_t budget);
static inline bool tn_tcp_tx_frames(const tn_tcp_tx *tx)
{
	return tx->cur.kind || tx->batch_bytes || tx->sent != tx->tail || tx->nak_head != tx->nak_tail ||
	       tx->resp_head != tx->resp_tail;
}

/* The same, or an acknowledgement. */
static inline bool tn_tcp_tx_pending(const tn_tcp_tx *tx)
{
	return tn_tcp_tx_frames(tx) || (tx->ack_due && tx->ack_value > tx->ack_told) || tx->probe;
}
/* Complete a req: into the done ring, or inside its post. */
void tn_tcp_req_complete(tn_tcp_lane *lane, uint32_t index, tern_status status);
/* The peer acknowledged; NULL, or what is wrong with that. */
const char *tn_tcp_tx_acked(tn_tcp_lane *lane, uint64_t ack);
/* The last req, QUEUED, goes to the kernel at once if it is short and nothing is ahead of it. It may complete by that. False: it is
   for tn_tcp_tx_run. */
bool tn_tcp_tx_message(tn_tcp_lane *lane);
/* The last req, QUEUED, goes to the batch instead of the kernel; false: it can't. It may complete by that. */
bool tn_tcp_tx_batch(tn_tcp_lane *lane);
/* Set the epoll interest of the lane to what it needs. */
void tn_tcp_tx_interest(tn_tcp_lane *lane);

/* ---- rx.c: frames in; poll's thread ---- */

void tn_tcp_rx_set_state(tn_tcp_rx *rx, tn_tcp_rx_state state);
/* A paused lane, from time to time: is its peer still there? */
void tn_tcp_rx_stalled(tn_tcp_lane *lane);
/* Receive, place, deliver. Returns the number of events. */
int tn_tcp_rx_run(tn_tcp_lane *lane, tn_event *events, int max);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop: devices of one process that reach each other by a table of the process. It is the contract of
 * transport.h in its most readable form, and with a seed it is that contract's adversary.
 *
 *   device   a row in the process's table, a pool of receive slots, an eventfd and a timer behind one epoll
 *   lane     a FIFO of work requests on its way to the peer's lane, and a FIFO of slots that arrived here
 *   op       an accepted work request until its completion was polled
 *   slot     a receive buffer of the device; free -> reserved (by an op in flight) -> arrived -> held -> free
 *
 *   ops of a lane      head <= notified <= tail
 *                      [head, notified)  placed, notification delivered: only the completion is due
 *                      [notified, tail)  on the way
 *   slots of a lane    slots_used = reserved + arrived + held <= TN_LOOP_LANE_SLOTS
 *   slots of a device  TN_LOOP_RECV_SLOTS = free + sum of slots_used over lanes (destroyed ones included)
 *
 *                 lane_connect            both sides match           lane_break, peer gone
 *        INIT ------------------> DIALING -----------------> UP -------------------------> DOWN
 *         |                        |  | refused, deadline                                   |
 *         |                        |  +-------------------------------------------------->  |
 *         +--- lane_close ---------+------------- lane_close (from any state) ---------> CLOSED
 *
 * Well-behaved (seed 0): a request is carried out inside the post and completes there. Adversarial: its
 * bytes arrive in pieces in any order, later requests overtake earlier ones, completions are late, posts
 * answer TERN_AGAIN for no reason; the promises of transport.h and nothing more are kept.
 *
 * Threads: one lock for the whole provider, because clarity is the purpose here. Must not be used to
 * measure anything. Tests: tests/conformance, tests/unit/transport/test_loop.c.
 */
#ifndef TN_TRANSPORT_LOOP_H
#define TN_TRANSPORT_LOOP_H

#include <pthread.h>

#include "base/counters.h"
#include "base/rand.h"
#include "transport/transport.h"

#define TN_LOOP_LANE_WRS        128u  /* ops in flight per lane */
#define TN_LOOP_LANE_SLOTS      64u   /* receive slots that one lane may use */
#define TN_LOOP_RECV_SLOTS      512u  /* of a device, for all its lanes */
#define TN_LOOP_SEND_BYTES      8192u /* of one slot */
#define TN_LOOP_INLINE_BYTES    64u
#define TN_LOOP_PIECES_MAX      8u
#define TN_LOOP_WRITE_BYTES_MAX (1ull << 40)
#define TN_LOOP_NO_SLOT         UINT32_MAX
_Static_assert((TN_LOOP_LANE_WRS & (TN_LOOP_LANE_WRS - 1)) == 0, "indices wrap with a mask");
_Static_assert((TN_LOOP_LANE_SLOTS & (TN_LOOP_LANE_SLOTS - 1)) == 0, "indices wrap with a mask");

typedef struct tn_loop_dev tn_loop_dev;
typedef struct tn_loop_lane tn_loop_lane;

typedef enum tn_loop_state {
	TN_LOOP_INIT,
	TN_LOOP_DIALING,
	TN_LOOP_UP,
	TN_LOOP_DOWN,
	TN_LOOP_CLOSED
} tn_loop_state;
typedef enum tn_loop_kind { TN_LOOP_WRITE, TN_LOOP_WRITE_IMM, TN_LOOP_READ, TN_LOOP_SEND } tn_loop_kind;

typedef struct tn_loop_op {
	tn_loop_kind kind;
	tern_status status;
	bool placed;
	bool silent; /* completed at post already (inline source): no event */
	uint64_t cookie;
	uint8_t *local;         /* write, read */
	tn_iov iov[TN_IOV_MAX]; /* send */
	int iov_count;
	uint64_t bytes;
	uint64_t offset;
	tn_key key;
	uint32_t imm;
	uint32_t slot;  /* in the peer's device, TN_LOOP_NO_SLOT if the op does not notify */
	uint32_t delay; /* polls that the completion still waits */
	uint32_t pieces;
	uint32_t next;                        /* pieces placed: order[0..next) */
	uint64_t cut[TN_LOOP_PIECES_MAX + 1]; /* piece i is [cut[i], cut[i + 1]) */
	uint32_t order[TN_LOOP_PIECES_MAX];   /* in which they arrive */
	uint8_t inlined[TN_LOOP_INLINE_BYTES];
} tn_loop_op;

typedef struct tn_loop_slot {
	tn_loop_lane *lane; /* whose slots_used counts it; NULL when free or its lane was destroyed */
	bool busy;
	bool is_imm;
	uint32_t imm;
	uint64_t bytes;
	uint8_t *buf; /* TN_LOOP_SEND_BYTES */
} tn_loop_slot;

struct tn_loop_lane {
	tn_lane base;
	tn_loop_lane *next; /* in the device's list */
	uint64_t id;
	tn_loop_state state;
	bool active;
	uint8_t token[TN_LANE_TOKEN_BYTES];
	uint64_t timeout_ns;
	uint64_t deadline_ns; /* while DIALING */
	uint64_t want_dev;    /* the peer to match with */
	uint64_t want_lane;
	tn_loop_lane *peer; /* not NULL exactly while UP */
	bool up_due;        /* events not polled yet */
	bool down_due;
	tern_status down_status;
	bool again; /* a post found no slot at the peer: wake this device when one is free */

	uint32_t head, notified, tail; /* modulo 2^32 */
	tn_loop_op ops[TN_LOOP_LANE_WRS];

	uint32_t slots_used;
	uint32_t arrived_head, arrived_tail;
	uint32_t arrived[TN_LOOP_LANE_SLOTS];
};

#define TN_LOOP_COUNTERS(X) \
	X(tx_bytes)         \
	X(rx_bytes)         \
	X(writes)           \
	X(write_imms)       \
	X(reads)            \
	X(sends)            \
	X(recvs)            \
	X(copy_bytes)       \
	X(copies)           \
	X(again)            \
	X(lanes)
TN_COUNTERS_STRUCT(tn_loop_counters, TN_LOOP_COUNTERS)

struct tn_loop_dev {
	tn_dev base;
	tn_loop_dev *next; /* in the process's table */
	uint64_t id;
	bool adversary;
	tn_rand rand;       /* of the adversary */
	uint64_t break_ppm; /* its chance in a million per step to break a busy lane */
	tn_loop_lane *lanes;
	uint32_t dialing; /* lanes in DIALING */
	uint32_t turn;    /* which lane poll looks at first */
	bool armed;
	bool retry; /* a refused post may work now: arm says BUSY once */
	int event_fd, timer_fd, epoll_fd;
	tn_loop_counters counters;
	tn_loop_slot slots[TN_LOOP_RECV_SLOTS];
	uint32_t free_slots[TN_LOOP_RECV_SLOTS];
	uint32_t free_count;
};

extern pthread_mutex_t tn_loop_lock; /* everything below is called with it held */

/* ---- lane.c: states and matching ---- */
tn_loop_dev *tn_loop_dev_find(uint64_t id); /* device.c */
/* Try to join lane with the one that it wants; either may become UP or DOWN. */
void tn_loop_match(tn_loop_lane *lane);
/* End the deadlines of dialing lanes that are due. */
void tn_loop_expire(tn_loop_dev *dev, uint64_t now_ns);
/* UP or DIALING -> DOWN with an event; the peer of an UP lane goes with it. */
void tn_loop_break(tn_loop_lane *lane, tern_status status);
void tn_loop_close(tn_loop_lane *lane);
bool tn_loop_drained(const tn_loop_lane *lane);
tern_status tn_loop_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **out, tn_blob *addr);
tern_status tn_loop_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane);
void tn_loop_lane_free(tn_loop_lane *lane);
/* An address: which process, which device, which lane. false if the blob is malformed or of elsewhere. */
void tn_loop_blob_make(tn_blob *blob, uint64_t dev_id, uint64_t lane_id);
bool tn_loop_blob_read(const tn_blob *blob, uint64_t *dev_id, uint64_t *lane_id);

/* ---- wire.c: work requests ---- */
tern_status tn_loop_post(tn_loop_lane *lane, tn_loop_kind kind, tn_wr *wr, const tn_iov *iov, int n);
/* Let the adversary move a lane's ops a little. Does nothing to a well-behaved lane. */
void tn_loop_step(tn_loop_lane *lane);
/* Complete everything unfinished with status; reserved slots of the peer go back. */
void tn_loop_fail_ops(tn_loop_lane *lane, tern_status status);
void tn_loop_slot_free(tn_loop_dev *dev, uint32_t slot);

/* ---- device.c ---- */
/* Something happened on dev: make its descriptor readable if it is armed. */
void tn_loop_signal(tn_loop_dev *dev);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the provider offer each other, by file. The nouns are in verbs.h, which includes this.
 * Threads: in poll's unless it says otherwise. Tests: tests/unit/transport/test_verbs_*.c.
 */
#ifndef TN_TRANSPORT_VERBS_PARTS_H
#define TN_TRANSPORT_VERBS_PARTS_H

#include "transport/verbs/verbs.h"

/* ---- device.c ---- */
/* The clock and the events of the devices, now and then. */
#define TN_VB_LOOK_EVERY 64u /* polls; each while a deadline is near */
void tn_vb_look_around(tn_vb_dev *dev, uint32_t polls);
/* What no completion brings: held requests, events of the device and of lanes. Returns the number of events. */
int tn_vb_poll_owed(tn_vb_dev *dev, tn_event *events, int max);
/* The completion queue of a rail was empty after its lanes began to wait for that. */
void tn_vb_sweep(tn_vb_rail *rail);
extern const tn_provider tn_provider_verbs;
extern const tn_dev_ops tn_vb_ops;

/* ---- wait.c ---- */
/* This deadline counts from now on. */
void tn_vb_deadline(tn_vb_dev *dev, uint64_t at_ns);
/* Wake a sleeper: something waits that no completion announces. Any thread. */
void tn_vb_kick(tn_vb_dev *dev);
/* Do what is due. */
void tn_vb_clock(tn_vb_dev *dev);
tern_status tn_vb_arm(tn_dev *dev);

/* ---- find.c: which ports ---- */
typedef struct tn_vb_found {
	struct ibv_context *context; /* open; the caller's */
	char name[64];
	struct ibv_device_attr attr;
	tn_vb_port port;
} tn_vb_found;
/*
 * Open the ports that the option asks for, the best first, at most TN_VB_RAILS_MAX. What can't be used is
 * skipped, with the reason in the log; if nothing is left, TERN_E_NO_DEVICE says why.
 */
tern_status tn_vb_find(const tn_verbs_api *api, const char *wanted, tn_vb_found *found, uint32_t *count);
tern_status tn_vb_probe(char *reason, size_t reason_bytes);
bool tn_vb_present(void);

/* ---- describe.c: facts for people ---- */
tern_status tn_vb_describe(tern_fact_fn fn, void *arg);

/* ---- open.c ---- */
tern_status tn_vb_open(const tn_dev_params *params, tn_dev **dev);
void tn_vb_free(tn_vb_dev *dev);
/* Its fail text also names RLIMIT_MEMLOCK when memory was short. errno as the call left it. */
tern_status tn_vb_fail_errno(const char *call, const char *fmt, ...) TN_PRINTF(2, 3);

/* ---- rail.c ---- */
/* All but the receive buffers; needs found things in place. */
tern_status tn_vb_rail_open(tn_vb_rail *rail);
tern_status tn_vb_rail_fill(tn_vb_rail *rail);
/* Ends what the NIC may still write into; then the memory may go; then the rest. */
void tn_vb_rail_stop(tn_vb_rail *rail);
void tn_vb_rail_free(tn_vb_rail *rail);
/* Room in the completion queue for all that a lane can put there, flush included. */
tern_status tn_vb_cq_reserve(tn_vb_rail *rail);
void tn_vb_cq_release(tn_vb_rail *rail);
/* Post the last n of the pending buffers with one doorbell. What the NIC refuses stays pending. */
tern_status tn_vb_refill(tn_vb_rail *rail, uint32_t n);
/*
 * The buffer goes back into its turn. A whole batch waits for a poll that finds nothing (poll_rail), so that what came
 * is answered first; two don't.
 */
static inline tern_status tn_vb_recv_return(tn_vb_rail *rail, uint32_t index)
{
	tn_vb_buf *buf = &rail->bufs[index];

	TN_ASSERT(!buf->posted && rail->pending_count < rail->dev->recv_slots + TN_VB_RECV_RESERVE);
	buf->generation++;
	buf->posted = true;
	rail->pending[rail->pending_count++] = index;
	rail->refill_due = rail->pending_count >= TN_VB_REFILL;
	return TN_LIKELY(rail->pending_count < 2 * TN_VB_REFILL) ? TERN_OK : tn_vb_refill(rail, TN_VB_REFILL);
}
/* No lane receives with that number any more. */
void tn_vb_rail_forget(tn_vb_rail *rail, uint32_t qpn);
/* The port as it is now: GIDs, MTU, state. */
void tn_vb_rail_refresh(tn_vb_rail *rail);
TN_COLD void tn_vb_rail_set_health(tn_vb_rail *rail, tn_vb_health health);
void tn_vb_rail_tick(tn_vb_rail *rail, uint64_t now_ns);
/* What peers are told of it. */
void tn_vb_rail_describe(const tn_vb_rail *rail, uint32_t gids_max, tn_vb_rail_addr *addr);
bool tn_vb_is_last_usable(const tn_vb_rail *rail);

/* ---- lane.c: made, wired, freed ---- */
tern_status tn_vb_lane_create(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
tern_status tn_vb_lane_connect(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane);
void tn_vb_lane_destroy(tn_lane *lane);
/* Give up the seats on all rails but the chosen one. */
void tn_vb_seats_free(tn_vb_lane *lane);
/* The one writer of the state; the lane's lock is held. */
void tn_vb_set_state(tn_vb_lane *lane, tn_vb_state next);
/* Sends the hello, or sets when it is tried again. */
void tn_vb_hello_send(tn_vb_lane *lane);
/* Events wait for tn_vb_lane_deliver. */
void tn_vb_lane_make_due(tn_vb_lane *lane);
void tn_vb_lane_set_deadline(tn_vb_lane *lane, uint64_t at_ns);
void tn_vb_lane_check(tn_vb_lane *lane);

/* ---- drain.c: how a lane ends ---- */
void tn_vb_lane_break(tn_lane *lane);
void tn_vb_lane_close(tn_lane *lane);
bool tn_vb_lane_drained(tn_lane *lane);
/* The lane is over: LANE_DOWN with the status (unless it was closed) and the queue pair to ERR. */
TN_COLD void tn_vb_lane_fail(tn_vb_lane *lane, tern_status status);
/* The bye is out, or nobody hears it: the queue pair to ERR. */
void tn_vb_lane_drain(tn_vb_lane *lane);
void tn_vb_lane_draining_tick(tn_vb_lane *lane, uint64_t now_ns);
void tn_vb_lane_flushed(tn_vb_lane *lane);
void tn_vb_lane_last_wqe(tn_vb_lane *lane);
/* The completion queue was empty: who waited for that is quiet. */
void tn_vb_lane_swept(tn_vb_lane *lane);
/* Events that wait; up to max. */
int tn_vb_lane_deliver(tn_vb_lane *lane, tn_event *events, int max);

/* ---- talk.c: the provider's own messages, and the clock ---- */
/* A message of the provider's own arrived. True: the lane came UP. */
TN_COLD bool tn_vb_lane_control(tn_vb_lane *lane, uint32_t what, const uint8_t *data, uint64_t bytes);
/* An own op ended. */
void tn_vb_lane_op_done(tn_vb_lane *lane, tn_vb_op_kind kind, enum ibv_wc_status status);
/* Deadlines that are due. */
void tn_vb_lane_tick(tn_vb_lane *lane, uint64_t now_ns);
void tn_vb_lane_keepalive(tn_vb_lane *lane);
/* Has something ended since the last look? */
void tn_vb_lane_watch(tn_vb_lane *lane, uint64_t now_ns);

/* what: the immediate of the provider's own messages */
#define TN_VB_HELLO 1u
#define TN_VB_BYE   2u

/* ---- qp.c: queue pairs and their states ---- */
tern_status tn_vb_qp_create(tn_vb_rail *rail, uint32_t max_inline, struct ibv_qp **qp,
			    uint32_t *inline_bytes);
/* RESET to INIT; then to RTR and RTS towards the lane's peer. */
tern_status tn_vb_qp_init(tn_vb_rail *rail, struct ibv_qp *qp);
tern_status tn_vb_qp_wire(tn_vb_lane *lane);
void tn_vb_qp_error(tn_vb_lane *lane);
bool tn_vb_qp_reset(tn_vb_lane *lane);

/* ---- post.c: what users ask for ---- */
tern_status tn_vb_write(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_write_imm(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_read(tn_lane *lane, tn_wr *wr);
tern_status tn_vb_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done);

/* ---- ring.c: the ring, doorbells, bounce buffers. The lane's lock is held where one is named. ---- */
/* Why not, if the lane is not up. */
TN_COLD tern_status tn_vb_not_up(const tn_vb_lane *lane);
/* TERN_AGAIN, and arm says BUSY when there is room. */
TN_COLD tern_status tn_vb_no_room(tn_vb_lane *lane);
/* tn_vb_ring_post (ring.h), where something is held or follows. */
int tn_vb_ring_post_chain(tn_vb_lane *lane, struct ibv_send_wr *wr, const tn_vb_op *op, bool more);
/* The status of a post that gave this errno. */
TN_COLD tern_status tn_vb_refused(tn_vb_lane *lane, int err);
/* Post what is held. What the NIC has no room for stays held; what it refuses ends in tn_vb_orphan. */
void tn_vb_ring_flush(tn_vb_lane *lane);
/* Take all that is held out of the ring: it will never be posted. */
void tn_vb_orphan(tn_vb_lane *lane);
/* One of the provider's own requests. False: refused. */
bool tn_vb_post_own(tn_vb_lane *lane, tn_vb_op_kind kind, const void *data, uint32_t bytes);
/* Lanes with held ops or orphans; from poll, without a lock. */
void tn_vb_held_run(tn_vb_dev *dev);
uint32_t tn_vb_bounce_take(tn_vb_dev *dev);
void tn_vb_bounce_free(tn_vb_dev *dev, uint32_t index);
/* That op ended well, and with it all before it. False: some of them have more to do, retire them one by one. */
bool tn_vb_ring_pass(tn_vb_lane *lane, uint32_t number);
/* Of the op's type: its bounce buffer is free, its place too. True: *event was filled. */
bool tn_vb_ring_retire(tn_vb_lane *lane, tern_status status, tn_event *event, tn_vb_op_kind *kind);

/* ---- cq.c ---- */
int tn_vb_poll(tn_dev *dev, tn_event *events, int max);
/* Look for completions without handling them; true if there are any. */
bool tn_vb_cq_peek(tn_vb_rail *rail);
/* Complete by hand what a destroyed queue pair still held; up to max events. */
int tn_vb_ops_flush(tn_vb_lane *lane, tn_event *events, int max);

/* ---- mr.c: arg is the rail ---- */
extern const tn_registrar tn_vb_registrar;

/* ---- async.c ---- */
/* Drain the rail's asynchronous events; never blocks. */
void tn_vb_async(tn_vb_rail *rail);

/* ---- stats.c ---- */
/* What the NIC itself counted of receive buffers that were missing; 0 if it doesn't say. May read files. */
uint64_t tn_vb_rnr_read(const tn_vb_rail *rail);
void tn_vb_counters_each(tn_dev *dev, tern_counter_fn fn, void *arg);

#endif

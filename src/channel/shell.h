/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shell around link machines: what runs tn_link_* over devices and control connections.
 *
 *   tern_link   a machine, its lock, its control connection, lanes and channels
 *   stash       an action that only the driver may carry out (lanes, control connection, users' callbacks),
 *               taken by whoever ran the machine; no further action is taken until the driver has done it
 *   attention   links with a stash or another errand for the driver, queued without a lock
 *   slane       a lane: device object, machine handle, grant
 *
 *   refs of a link = 1 for the context until it is down + 1 for the user's handle + 1 per channel +
 *                    1 while it is in the attention queue
 *   sdev->pool.taken = sum of the grants of its lanes, and of what their links got since <= caps.recv_slots
 *
 * Who may do what:
 *   any thread   submit, run actions up to the first that is the driver's, post on lanes (link->lock)
 *   helper       tn_link_on_time in its timer, as any thread
 *   driver       events of devices and connections, stashes, lane_* calls, callbacks, freeing of lanes
 *
 * Tests: tests/unit/channel.
 */
#ifndef TN_CHANNEL_SHELL_H
#define TN_CHANNEL_SHELL_H

#include "channel/conn.h"
#include "channel/ctx_impl.h"
#include "channel/stage.h"
#include "link/link.h"

typedef struct tn_shell_lane {
	tn_list node; /* link->lanes, then ctx->draining; driver only */
	tern_link *link;
	tn_shell_dev *sdev;
	tn_lane *lane;
	uint32_t handle; /* the machine's */
	uint32_t grant;
	bool down; /* LANE_DOWN was seen */
} tn_shell_lane;

/* One-sided pieces that take longer to copy are copied without the link's lock, where the device copies. */
#define TN_SHELL_COPY_BYTES (64u << 10)

/* Errands for the driver, bits of tern_link.errands (under the lock). */
#define TN_ERRAND_DIAL     1u
#define TN_ERRAND_OVERFLOW 2u /* the control connection took no more */

typedef struct tn_link_names {
	char peer_name[TN_NAME_MAX];
	char peer_address[TN_ADDRESS_MAX];
	char reason[TN_LINK_TEXT_MAX];
} tn_link_names;

/* Messages that wait for the holder of the lock (queue.h). */
typedef struct tn_sends {
	char before[64]; /* pushers are on other cores than the holder */
	tn_mpsc queued;
	_Atomic bool
		stuck; /* the machine had no room for the first of the backlog: nothing is pushed meanwhile */
	char after[64];
	tn_mpsc_node *backlog; /* lock */
} tn_sends;

/*
 * What an access by copy (submit.c) found to stand in no way, and did not have to look for again while nobody else had
 * the lock since: lock.entries is as it was, here and in the channel's clear_at.
 */
typedef struct tn_shell_once {
	tn_lane *lane;
	uint64_t bytes_max, entries;
	uint32_t caps;
} tn_shell_once;

struct tern_link {
	tern_ctx *ctx;
	tn_lock lock;
	tn_shell_once once;
	tn_link *m;
	void *memory;
	_Atomic uint32_t refs;
	tn_mpsc_node attention;
	_Atomic uint32_t attention_queued;
	tn_sends sends;
	tn_mpsc_node push; /* push.h */
	/* under the lock */
	bool push_queued;
	uint64_t posted_ns; /* the end of the last post on a device that gathers */
	uint32_t burst;     /* of those held back in a row */
	uint32_t errands;
	bool has_stash;
	bool copying;        /* a thread is in a copy outside of the lock */
	_Atomic bool copies; /* the device of its latest lane copies; any thread may look for a hint */
	_Atomic uint32_t
		brief_below; /* the same of messages that are over when they are posted: shorter ones (brief.h) */
	tn_link_action stash;
	char stash_text[TN_LINK_TEXT_MAX + 80];
	uint64_t timer_at; /* what the timer is set for; TN_TIME_NEVER = not set */
	tn_ctx_timer timer;
	tn_conn *conn;
	tn_list channels; /* of tern_channel */
	tn_stage_tags staged;
	tn_channel_counters counters;
	bool gone;          /* TN_ACT_LINK_DOWN was handled: the machine is not called any more */
	bool closed_here;   /* by tern_link_close: on_down is not wanted */
	bool counted_hello; /* incoming, not up yet: counts against the backlog (under table_lock) */
	bool proved;        /* the peer knows the secret; written by the driver under the lock */
	uint32_t origin;    /* where it came from (strangers.c); the driver's */
	uint64_t born_ns;   /* accepted; the driver's */
	uint64_t connect_deadline_ns, redial_at_ns, redial_pause_ns;
	uint64_t timeout_ns;
	/* the driver's */
	tn_list lanes;
	/* constant after the start */
	bool incoming, retry;
	uint64_t inbox_bytes_max; /* of a channel */
	tn_addr target;
	uint64_t number;                           /* older links have smaller ones */
	tn_shell_dev *devs[TN_LINK_PROVIDERS_MAX]; /* by provider index of the machine */
	unsigned dev_count;
	tern_link_fn on_down;
	void *on_down_arg;
	void (*on_up)(tern_link *link, void *arg); /* of a dialed link, with on_down_arg */
	bool reported;                             /* on_up was told (incoming); the driver's */
	/* readable from any thread */
	_Atomic int public_state;
	_Atomic int status;
	_Atomic uint32_t caps;           /* TERN_LINK_CAN_* */
	_Atomic(const char *) transport; /* of the lanes in use; a name of the registry */
	_Atomic bool names_final;
	tn_link_names names;
	char down_text[TN_LINK_TEXT_MAX + TN_ADDRESS_MAX + TN_NAME_MAX];
	/* under table_lock */
	tn_list node; /* ctx->links */
	bool counted; /* its counters are in the context's sums */
};

/* ---- life: link_life.c ---- */

/* A link in the table with 1 reference for the context. incoming: conn is taken over. */
tern_status tn_shell_link_new(tern_ctx *ctx, bool incoming, const char *transports, tern_link **link);
void tn_shell_ref(tern_link *link);
void tn_shell_unref(tern_link *link);
/* Driver: the machine said LINK_DOWN. Called without the lock. */
void tn_shell_link_down(tern_link *link, tern_status status, const char *detail);
/* Driver: LINK_UP. Called without the lock. */
void tn_shell_link_up(tern_link *link);
/* Driver: it is up or down, or gave its place away. Idempotent. */
void tn_shell_hello_over(tern_link *link);
/* Driver, lock held: LINK_MOVED. */
void tn_shell_link_moved(tern_link *link);
void tn_shell_report(tern_link *link);
/* Work of the context: report links that were up before somebody wanted to know. */
void tn_shell_report_all(tn_work *work);
/* Driver, lock not held: TN_ACT_PEER. Looks for rivals and answers. */
void tn_shell_meet(tern_link *link);
/* Driver, lock not held: TN_ACT_REJOIN. */
void tn_shell_rejoin(tern_link *link, const void *rejoin, uint64_t bytes);
/* "peer 'server 1' at 127.0.0.1:4001" into buf. Lock held or driver. */
const char *tn_shell_label(const tern_link *link, char *buf, size_t size);
/* Driver, lock held: (re)dial. */
void tn_shell_dial(tern_link *link);
/* Add a dying link's counters to the context's sums. */
void tn_shell_count_link(tern_link *link);
/* Lock held: conn's callbacks belong to this link from now on. */
void tn_shell_adopt(tern_link *link, tn_conn *conn);

/* ---- running the machine: link_run.c ---- */

/* Lock held: carry out what the machine wants, up to an action of the driver's; set the timer. */
void tn_shell_run(tern_link *link, uint64_t now_ns);
/* The same, where the machine usually has nothing to say. True: it has, run it. */
bool tn_shell_unsettled(tern_link *link);
/* Lock held: queue for the driver. */
void tn_shell_attention(tern_link *link);
/* Driver: do what links queued. Returns the number of links. */
int tn_shell_attend(tern_ctx *ctx);
/* Post one wr of the machine on its lane. */
tern_status tn_shell_post(const tn_link_post *post, bool *done);
/* A one-sided one, as it is. */
tern_status tn_shell_post_wr(tn_shell_lane *slane, tn_link_post_type type, tn_wr *wr);
/* Lock held: one op of the machine ended. */
void tn_shell_op_done(tern_link *link, const tn_link_action *act);
void tn_shell_timer(tn_ctx_timer *timer);

/* ---- lanes and events: lanes.c ---- */

/* Driver: an event of the device itself. Those of lanes: events.h. */
void tn_shell_device_event(tn_shell_dev *sdev, const tn_event *ev);
/* Driver, lock held: actions on lanes. */
void tn_shell_reach(tern_link *link, const tn_link_action *act, uint64_t now_ns);
void tn_shell_lane_create(tern_link *link, const tn_link_action *act, uint64_t now_ns);
void tn_shell_lane_connect(tern_link *link, const tn_link_action *act, uint64_t now_ns);
void tn_shell_lane_close(tern_link *link, const tn_link_action *act);
/* Driver, end of a round: lanes that are drained and connections that are closed go. */
void tn_shell_reap(tern_ctx *ctx);
static inline bool tn_shell_reapable(const tern_ctx *ctx)
{
	return !tn_list_empty(&ctx->draining) || !tn_list_empty(&ctx->buried);
}
void tn_shell_bury(tern_ctx *ctx, tn_conn *conn);
/* How long the driver may sleep because of lanes that drain; TN_TIME_NEVER if none does. */
uint64_t tn_shell_reap_wake(tern_ctx *ctx, uint64_t now_ns);

/* ---- listener: listen.c ---- */

tern_status tn_listener_open(tern_ctx *ctx, const char *listen_address);
tern_status tn_listener_start(tern_ctx *ctx);
void tn_listener_close(tern_ctx *ctx);
/* A connection from a peer: takes the descriptor over. */
void tn_shell_welcome(tern_ctx *ctx, int fd, const tn_addr *peer);
/* Driver: a hello is over, one more may come in. */
void tn_listener_room(tern_ctx *ctx);
/* The numeric host that devices bind their own listeners to. */
tern_status tn_listener_check(tern_ctx *ctx, const char *listen_address, char *host, size_t host_bytes);

/* ---- texts of failures: details.c ---- */

/* Keep a text for operations that end with it; 0 for "". Any thread. */
uint64_t tn_details_put(tern_ctx *ctx, const char *text);
/* Make it this thread's detail; if it was overwritten meanwhile, the status's own text. */
void tn_details_use(tern_ctx *ctx, uint64_t id, tern_status status);

#endif

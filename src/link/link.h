/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between two nodes as a pure state machine: bytes, completions and time in; actions out. It
 * knows no OS, clock, thread or device; what it needs now and then it borrows of the node's store, and never for one
 * operation; buffers, keys and user pointers only pass through. Its wire format and rules are in docs/protocol/link.md.
 *
 *   link      one conversation with one incarnation of a peer, over one control connection (bytes) and
 *   lane      ordered paths of one provider. Lane 0 carries all frames (messages, credits, ...); lanes
 *             1..n-1 carry one-sided transfers, small ones go over lane 0. No lane but 0: all go over it.
 *   epoch     number of the wiring attempt; in every frame. What belongs to another epoch touches nothing
 *   channel   an ordered stream of messages, with one-sided transfers and notifications beside it
 *   op        a submitted message or transfer; ends once, by TN_ACT_OP_DONE or by the fast path's answer
 *   wr        one work request posted on a lane: a frame, or a piece of a transfer. Cookie = its handle
 *   credit    the right to use one receive slot of the peer's lane: a frame or an immediate each
 *
 *   per lane   granted - consumed = credits >= 0          (both totals only grow, modulo 2^32)
 *              granted = what its slots held first + slots freed since
 *   per link   bytes of bulk in flight <= window, unless one piece alone exceeds it (window.c)
 *   per lane   wrs in flight <= the provider's lane_wrs_max; per link <= wrs_max (completion queue room)
 *   per channel  bytes sent <= window granted by the receiver (its pause and resume work through this)
 *
 *   INIT -> DIAL -> HELLO -> AUTH -> SETUP -> WIRING -> UP -> CLOSING -> DRAINING -> DOWN
 *      (accepted connections skip DIAL; any state may go to DRAINING: see link_state.c)
 *
 * How a shell drives it, under one lock per link:
 *
 *	call an input or submit; then
 *	while (tn_link_next_action(link, now, &act))
 *		do what act says; a TN_ACT_POST must be answered by tn_link_posted() before anything else
 *	sleep until tn_link_next_wake() at most, then tn_link_on_time()
 *
 * Hot path: tn_link_fast_send/_xfer + tn_link_fast_posted handle an op on an idle link without the action
 * queue, and tn_link_on_frame/_on_imm answer with what they deliver.
 *
 * Threads: none; one call at a time per link. Tests: tests/unit/link, fuzz/link_*.c.
 */
#ifndef TN_LINK_LINK_H
#define TN_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/types.h>

#include "base/counters.h"
#include "base/limits.h"
#include "link/placed.h"

typedef struct tn_link tn_link;

/* ---- configuration ---- */

#define TN_LINK_PROVIDERS_MAX 8
#define TN_LINK_LANES_MAX     8   /* lanes in use; one more set may be draining */
#define TN_LINK_BLOB_MAX      256 /* = TN_BLOB_MAX of the transport */
#define TN_LINK_TOKEN_BYTES   32  /* = TN_LANE_TOKEN_BYTES */
#define TN_LINK_KEY_BYTES     64  /* = sizeof(tern_key) */
#define TN_LINK_BRIEF_BYTES   32  /* = sizeof(tn_frame_data) */
#define TN_LINK_ID_BYTES      16
#define TN_LINK_NONCE_BYTES   32
#define TN_LINK_IOV_MAX       3 /* pieces of a message; one more goes to the header */
#define TN_LINK_TEXT_MAX      240
#define TN_LINK_PROVIDER_NAME 16
#define TN_LINK_CHANNELS_MAX  65535
#define TN_LINK_OPS_MAX       (1u << 20)
#define TN_LINK_WRS_MAX       (1u << 16)
#define TN_LINK_NOTIFY_BITS   24

/* A provider's capabilities. The same bits as the transport's TN_CAP_*. */
enum {
	TN_LINK_CAP_WRITE = 1u << 0,
	TN_LINK_CAP_WRITE_IMM = 1u << 1,
	TN_LINK_CAP_READ = 1u << 2,
	TN_LINK_CAP_SEND = 1u << 3,
	TN_LINK_CAP_REMOTE_DONE = 1u << 4,
	TN_LINK_CAP_ORDERED_WRITES = 1u << 5,
	TN_LINK_CAP_TAIL_BYTE = 1u << 6,
	TN_LINK_CAP_PASSIVE_TARGET = 1u << 7,
	TN_LINK_CAP_SAME_HOST = 1u << 8,
	/* Between links only: what comes to this device waits for grants (set where there is an arbiter). */
	TN_LINK_CAP_GRANTS = 1u << 31,
};

/* One device that the shell offers for lanes, in order of preference. */
typedef struct tn_link_provider {
	char name[TN_LINK_PROVIDER_NAME]; /* both sides must have one of this name */
	uint32_t caps;                    /* TN_LINK_CAP_*; SEND and WRITE are needed */
	uint32_t lane_wrs_max;
	uint64_t write_bytes_max;
	uint64_t send_bytes_max;
	uint64_t
		imm_bytes_max; /* longest write with immediate; longer ones: a write, then a frame. 0 = any */
	/* Lanes beside lane 0 if this side dials; UINT32_MAX = config.data_lanes. 0 is enough where transfers
	   are finished at the post (shm): nothing queues in front of a message there. */
	uint32_t data_lanes;
	bool window_adaptive;          /* as config.window_adaptive, while its lanes are in use */
	bool streams;                  /* several posts that follow each other may leave together */
	struct tn_link_budget *budget; /* what its links have in flight together (share.h); NULL = no bound */
	struct tn_link_arbiter
		*arbiter; /* grants bulk that comes to it (share.h); NULL = nobody has to ask */
	struct tn_link_pool
		*pool; /* its receive slots, which move between links (share.h); NULL = they stay */
	struct tn_link_quota *quota; /* of its data lanes (share.h); NULL = there may be any number */
	uint16_t address_bytes;      /* device address for the peer */
	uint8_t address[TN_LINK_BLOB_MAX];
} tn_link_provider;

typedef enum tn_link_level { TN_LINK_LOCAL, TN_LINK_REMOTE } tn_link_level; /* = tn_level */

/* level: TN_LOG_* of base/log.h. One line without newline. Called from any call of the link. */
typedef void (*tn_link_log_fn)(int level, const char *line, void *arg);

/* Fill with tn_link_config_defaults(), then set what differs. Copied by tn_link_init. */
typedef struct tn_link_config {
	/* who we are */
	bool active;                    /* this side dialed the control connection */
	uint8_t node[TN_LINK_ID_BYTES]; /* stays over restarts (hash of job and name); zero = anonymous */
	uint8_t incarnation[TN_LINK_ID_BYTES]; /* random at process start; not zero */
	uint8_t nonce[TN_LINK_NONCE_BYTES];    /* random, fresh for each link */
	const char *name;                      /* for people; at most TN_NAME_MAX with NUL */
	const char *job;                       /* job cookie; NULL = "" */
	const void *secret;                    /* NULL = none: then peers with a secret are refused */
	uint32_t secret_bytes;
	const void *secret_next; /* good as well, while a fleet goes from one to the other; NULL = none */
	uint32_t secret_next_bytes;
	bool checksum;         /* messages carry checksums if the peer wants it too */
	bool grants;           /* true; false: neither ask for leave to send bulk, nor be asked */
	uint64_t features_off; /* feature bits that are not offered, as if this build did not know them */
	const tn_link_provider *providers;
	uint32_t provider_count;
	/* sizes */
	uint32_t channels_max;         /* 256 */
	uint32_t ops_max;              /* 1024 */
	uint32_t channel_ops_max;      /* ops that one channel may hold: 0 = ops_max / 2 */
	uint32_t wrs_max;              /* 512: completion-queue room of this link */
	uint32_t data_lanes;           /* 2: lanes beside lane 0, if this side dials */
	uint64_t window_bytes;         /* 8 MiB: bytes of bulk in flight on this link (adaptive: at most) */
	bool window_adaptive;          /* false; true: hold the completion delay of bulk near the target */
	uint64_t window_min_bytes;     /* 64 KiB: an adaptive window's least, and its step */
	uint64_t window_target_ns;     /* 250 us */
	uint64_t chunk_bytes;          /* 1 MiB: longest piece of a transfer */
	uint64_t small_bytes;          /* 8 KiB: transfers up to this go ahead of bulk and over lane 0 */
	uint64_t channel_window_bytes; /* 1 MiB: messages that a paused channel still receives at most */
	uint32_t
		lane_data_frames; /* 64: message frames in flight on lane 0, so that small ones wait little */
	/* times */
	uint64_t step_timeout_ns;  /* 5 s: each step of hello */
	uint64_t lane_timeout_ns;  /* 5 s: wiring with one provider */
	uint64_t keepalive_ns;     /* 1 s; 0 = no keepalive */
	uint32_t keepalive_misses; /* 5: silence of keepalive_ns * (misses + 1) at most is noticed */
	uint64_t close_timeout_ns; /* 500 ms: an orderly close that takes longer becomes a hard one */
	uint64_t ack_delay_ns;     /* 0: acknowledge a message that asks for it at the next action */
	uint64_t retry_ns;         /* 50 us: a lane that said AGAIN is tried again after this, if nothing
	                              else happened on it before */
	uint64_t probe_ns; /* 1 s: over another than the best provider, how long until a better one is tried
	                        again; doubles up to 64 times that while it fails; 0 = never */
	uint64_t
		lane_idle_ns; /* 0 = never: data lanes that nobody uses for so long are given up, until there is
	                          bulk again. Both sides must want it, and probe_ns */
	uint64_t lane_rest_ns; /* 1 s: how long data lanes have not been used that are given up for others' */
	uint64_t
		redial_ns; /* 1 s: how long a control connection that ended under lanes that stand may be away;
	                        0 = its end is the link's */
	uint64_t recover_ns; /* 10 s: lanes that broke under a link that is up are rebuilt within this, or the
	                        link ends; 0 = a broken lane ends the link. Both sides must want it */
	uint64_t verdict_ns; /* 50 ms: after a lane died, how long to wait for the control connection to
	                              tell whether the peer died with it */
	/* Copies from memory that ops name, where plain memcpy (NULL) can't: of a GPU. */
	tern_status (*copy)(void *to, const void *from, uint64_t bytes, void *arg);
	void *copy_arg;
	/* The memory of the node's links, beyond what tn_link_init is given (share.h). It outlives the link. */
	struct tn_link_store *store;
	/* Another link of the device made room for this one: run it soon. Called under that one's lock. */
	void (*wake)(void *arg);
	void *wake_arg;
	tn_link_log_fn log; /* NULL = none */
	void *log_arg;
} tn_link_config;

void tn_link_config_defaults(tn_link_config *config);

/* Bytes of memory that tn_link_init needs, 64-byte aligned. Pages of unused table rows are not touched. */
size_t tn_link_memory_bytes(const tn_link_config *config);
/* TERN_E_INVALID (detail text says what). The link starts in INIT (active: DIAL, waits for on_ctrl_up). */
tern_status tn_link_init(void *memory, size_t bytes, const tn_link_config *config, uint64_t now_ns,
			 tn_link **link);
/*
 * Wipe secrets, and give back what was borrowed of the store. Only before on_ctrl_up or after TN_ACT_LINK_DOWN. The caller
 * owns the memory of the link itself; views of it may still be asked for.
 */
void tn_link_fini(tn_link *link);

/* ---- actions ---- */

typedef struct tn_link_iov { /* laid out like the transport's tn_iov */
	const void *base;
	uint64_t bytes;
} tn_link_iov;

typedef enum tn_link_post_type {
	TN_POST_SEND,
	TN_POST_WRITE,
	TN_POST_WRITE_IMM,
	TN_POST_READ,
} tn_link_post_type;

/* One work request to post. Pointers are valid until the wr has completed (key: during the post). */
typedef struct tn_link_post {
	tn_link_post_type type;
	uint32_t lane;   /* handle */
	void *lane_user; /* what on_lane_created gave */
	uint64_t cookie;
	tn_link_level level;
	/* SEND: iov[0] is the frame's header */
	uint32_t iov_count;
	tn_link_iov iov[TN_LINK_IOV_MAX + 1];
	/* one-sided */
	void *local;
	uint64_t bytes;  /* also the payload bytes of a SEND */
	const void *key; /* TN_LINK_KEY_BYTES */
	uint64_t offset;
	uint64_t whole; /* of a piece: bytes of its transfer; else 0 */
	uint32_t imm;
	bool signal; /* not to be done at the post: what the target says of it matters */
	bool last;   /* a transfer's last bytes: what tells the peer of them follows */
	bool more;   /* a message follows on this lane, and may leave with it */
} tn_link_post;

typedef enum tn_link_action_type {
	TN_ACT_NONE,
	/* Write act.ctrl to the control connection (queue what it does not take). Valid until the next call. */
	TN_ACT_CTRL_SEND,
	/* Close the control connection once its queue is flushed; no on_ctrl_* may follow. */
	TN_ACT_CTRL_CLOSE,
	/* The peer said who it is (not authenticated yet if there is a secret): look for rivals with
	   tn_link_rivals, then tn_link_on_peer_answer. Once per link. */
	TN_ACT_PEER,
	/* Could device act.lane.provider reach act.lane.peer_device? Answer with tn_link_on_reach. */
	TN_ACT_REACH,
	/* Create lane act.lane.lane on its provider; answer with tn_link_on_lane_created. */
	TN_ACT_LANE_CREATE,
	/* Connect it (act.lane.peer_device, .peer_lane); answer with on_lane_up or on_lane_down. */
	TN_ACT_LANE_CONNECT,
	/* Close it: no posts follow. Deliver the completions of its wrs, then tn_link_on_lane_gone once it is
	   drained. Also for lanes that went down or whose connect failed. */
	TN_ACT_LANE_CLOSE,
	/* Post act.post; answer with tn_link_posted before any other call. */
	TN_ACT_POST,
	/* act.done: an op ended; its buffers are the caller's. */
	TN_ACT_OP_DONE,
	/* act.channel: the peer opens act.channel.service; answer with tn_link_channel_accept or _refuse, now or
	   later. */
	TN_ACT_CHANNEL_INCOMING,
	/* act.channel: the peer accepted a channel that this side opened. */
	TN_ACT_CHANNEL_OPENED,
	/* act.channel: the channel ended (status: PEER_CLOSED, what the peer refused with, the link's status).
	   All its ops have ended; nothing more is delivered. Not after a close of this side. The handle stays
	   good for tn_link_channel_close alone, which must still be called. */
	TN_ACT_CHANNEL_CLOSED,
	/* The first message was REJOIN, in act.ctrl: find the link that it is for with tn_link_rejoin, give the
	   connection to it and abort this one; or abort it alone (TERN_E_PEER_RESTARTED). */
	TN_ACT_REJOIN,
	/* Connect to the peer again: on_ctrl_up or on_ctrl_down follows. */
	TN_ACT_CTRL_DIAL,
	/* The link is UP: channels may be opened. */
	TN_ACT_LINK_UP,
	/* Its lanes are those of another provider now: tn_link_provider_index, tn_link_caps. */
	TN_ACT_LINK_MOVED,
	/* The last action: status (OK after a close of this side) and detail. Every op, channel and lane has
	   ended. Forget or re-init the memory. */
	TN_ACT_LINK_DOWN,
} tn_link_action_type;

typedef struct tn_link_action {
	tn_link_action_type type;
	union {
		struct {
			const void *bytes;
			uint32_t n;
		} ctrl;
		struct {
			uint32_t lane;  /* handle */
			void *user;     /* NULL before on_lane_created */
			uint32_t lanes; /* of its epoch; REACH: that are wanted */
			uint32_t index; /* 0..lanes-1 */
			uint32_t epoch;
			uint32_t provider; /* index in config.providers */
			int32_t extra;     /* TN_ACT_LANE_CLOSE: slots beyond what it was created with */
			bool active;
			const uint8_t *token; /* TN_LINK_TOKEN_BYTES */
			const uint8_t *peer_device;
			uint16_t peer_device_bytes;
			const uint8_t *peer_lane;
			uint16_t peer_lane_bytes;
			uint64_t timeout_ns;
		} lane;
		tn_link_post post;
		struct {
			void *user;
			uint64_t op;
			tern_status status;
			uint64_t length;    /* bytes moved: all on success, 0 on failure */
			const char *detail; /* "" or text for people; valid until the next call */
		} done;
		struct {
			uint32_t channel; /* handle */
			void *user;
			const char *service;
			uint64_t message_bytes_max; /* the peer's, 0 = none */
			tern_status status;
			const char *detail;
		} channel;
		struct {
			tern_status status;
			const char *detail;
		} link;
	};
} tn_link_action;

/* The next thing to do; false if there is nothing (waiting for an input or for time). */
bool tn_link_next_action(tn_link *link, uint64_t now_ns, tn_link_action *act);
/* May next_action have something? A false one is certain. A few instructions. */
bool tn_link_pending(const tn_link *link);
/* When on_time must be called at the latest; UINT64_MAX = no timer. */
uint64_t tn_link_next_wake(const tn_link *link);

/* ---- inputs ---- */

void tn_link_on_time(tn_link *link, uint64_t now_ns);

/* The control connection is established (both sides call it). */
void tn_link_on_ctrl_up(tn_link *link, uint64_t now_ns);
/* Its bytes, cut anywhere. Never fails: what is wrong ends the link (TERN_E_PROTOCOL, _VERSION, ...). */
void tn_link_on_ctrl_bytes(tn_link *link, const void *bytes, uint64_t n, uint64_t now_ns);
/* It could not be established, or ended: status says why (TERN_E_REFUSED, TERN_E_PEER_LOST, ...). detail may
   be NULL. Not called after TN_ACT_CTRL_CLOSE. */
void tn_link_on_ctrl_down(tn_link *link, tern_status status, const char *detail, uint64_t now_ns);

/* The REJOIN that another connection began with: true, and this link goes on over that one (close the old one, no
   on_ctrl_down), if it is of this link's session. */
bool tn_link_rejoin(tn_link *link, const void *rejoin, uint64_t bytes, uint64_t now_ns);

/* Answer to TN_ACT_PEER: TERN_OK goes on; anything else refuses the peer with that status and text. */
void tn_link_on_peer_answer(tn_link *link, tern_status status, const char *text, uint64_t now_ns);
/* Answer to TN_ACT_REACH about that provider. */
void tn_link_on_reach(tn_link *link, uint32_t provider, tern_status status, const char *text,
		      uint64_t now_ns);
/*
 * Answer to TN_ACT_LANE_CREATE. user comes back in actions; address: what the peer's connect needs; grant:
 * receive slots of this lane that the peer may use (8 or more; the shell keeps the sum over links within
 * the device's receive slots, and has them back at on_lane_gone). On an error status (its words are this
 * thread's detail text) the lane does not exist and no TN_ACT_LANE_CLOSE follows.
 */
void tn_link_on_lane_created(tn_link *link, uint32_t lane, tern_status status, void *user,
			     const void *address, uint16_t address_bytes, uint32_t grant, uint64_t now_ns);
void tn_link_on_lane_up(tn_link *link, uint32_t lane, uint64_t now_ns);
void tn_link_on_lane_down(tn_link *link, uint32_t lane, tern_status status, const char *detail,
			  uint64_t now_ns);
/* After TN_ACT_LANE_CLOSE: every wr of the lane was completed and nobody touches its buffers any more. */
void tn_link_on_lane_gone(tn_link *link, uint32_t lane, uint64_t now_ns);

/* What a received frame or immediate brings, for the shell to deliver at once. */
typedef enum tn_link_rx_type {
	TN_RX_NONE,    /* the link's own business, or dropped */
	TN_RX_MESSAGE, /* a fragment: data[0..bytes) belongs at offset of a message of `total` bytes */
	TN_RX_ABORT,   /* the message that was being received is void: forget its fragments */
	TN_RX_NOTIFY,  /* value, bytes: a put with notification is visible */
} tn_link_rx_type;

typedef struct tn_link_rx {
	tn_link_rx_type type;
	uint32_t channel;
	void *user;       /* of the channel */
	const void *data; /* inside the frame */
	uint64_t bytes;
	uint64_t offset, total;
	bool first, last; /* both: a whole message */
	uint32_t value;
} tn_link_rx;

/*
 * A frame or an immediate arrived on a lane. The receive slot stays in use until the shell gave it back to
 * the device and called tn_link_on_slot_free (once for each call of these two, whatever they deliver).
 * Deliveries of one channel are in order. Stale handles are ignored.
 */
void tn_link_on_frame(tn_link *link, uint32_t lane, const void *frame, uint64_t bytes, uint64_t now_ns,
		      tn_link_rx *rx);
void tn_link_on_imm(tn_link *link, uint32_t lane, uint32_t imm, uint64_t bytes, uint64_t now_ns,
		    tn_link_rx *rx);
/* False: nothing is to be done because of it (tn_link_pending would not have come true). */
bool tn_link_on_slot_free(tn_link *link, uint32_t lane, uint32_t n);

/* A posted wr completed. Unknown or stale cookies are ignored (counted). */
void tn_link_on_wr_done(tn_link *link, uint64_t cookie, tern_status status, uint64_t now_ns);
/* Answer to TN_ACT_POST. OK: accepted, done = completed at the post. AGAIN or an error: not accepted. */
void tn_link_posted(tn_link *link, const tn_link_post *post, tern_status status, bool done, uint64_t now_ns);

/*
 * The same for a shell that moves the bytes of a write or a read itself, without the lock that serialises its
 * calls here: accepted, and not done. Until tn_link_outside_done, which completes it, no other bulk piece is
 * offered and no transfer of that channel starts; everything else goes on. One at a time.
 */
void tn_link_posted_outside(tn_link *link, const tn_link_post *post, uint64_t now_ns);
void tn_link_outside_done(tn_link *link, uint64_t cookie, tern_status status, uint64_t now_ns);

/* ---- channels ---- */

/*
 * Open a channel to a service. Messages may be submitted at once; they leave when the peer has accepted.
 * TERN_E_STATE (link not UP), TERN_E_LIMIT (table full), TERN_E_INVALID (name). message_bytes_max: longest
 * message that this side receives, told to the peer; 0 = any.
 */
tern_status tn_link_channel_open(tn_link *link, const char *service, void *user, uint64_t message_bytes_max,
				 uint32_t *channel);
/* Answers to TN_ACT_CHANNEL_INCOMING. After a refusal the handle is gone. TERN_E_STATE: the channel ended
   meanwhile (TN_ACT_CHANNEL_CLOSED came or comes): close it. */
tern_status tn_link_channel_accept(tn_link *link, uint32_t channel, void *user, uint64_t message_bytes_max);
void tn_link_channel_refuse(tn_link *link, uint32_t channel, tern_status status, const char *text);
/*
 * Close. drain: ops queued so far are still carried out; else they end in TERN_E_FLUSHED (posted ones when
 * their wrs are done). The peer sees the close after all that was sent before. Idempotent; the handle is
 * invalid for everything but TN_ACT_OP_DONE of its ops; nothing is delivered for it any more.
 */
void tn_link_channel_close(tn_link *link, uint32_t channel, bool drain);
void tn_link_channel_set_user(tn_link *link, uint32_t channel, void *user);
/*
 * A slow consumer: after pause the peer may still send what it was granted (at most channel_window_bytes,
 * headers counted with 64 bytes each), then it stops until resume. Other channels go on.
 */
void tn_link_channel_pause(tn_link *link, uint32_t channel);
void tn_link_channel_resume(tn_link *link, uint32_t channel);
/* Bytes of a channel's row. */
size_t tn_link_channel_bytes(void);
/* Longest message that the peer's channel receives; UINT64_MAX = any or not known yet. */
uint64_t tn_link_channel_message_max(const tn_link *link, uint32_t channel);

/* ---- operations ---- */

typedef struct tn_link_op_params {
	void *user;           /* comes back in TN_ACT_OP_DONE */
	uint64_t deadline_ns; /* absolute; UINT64_MAX = none */
	tn_link_level level;  /* messages only: LOCAL or REMOTE; transfers complete at REMOTE */
	bool over;            /* may exceed channel_ops_max (it was taken before it could be asked) */
	uint8_t placed;       /* tn_link_placed, of a PUT_NOTIFY */
} tn_link_op_params;

typedef enum tn_link_xfer_type {
	TN_XFER_PUT,
	TN_XFER_PUT_NOTIFY,
	TN_XFER_PUT_FLAG,
	TN_XFER_GET
} tn_link_xfer_type;

typedef struct tn_link_xfer {
	tn_link_xfer_type type;
	void *local; /* source, or a get's destination */
	uint64_t bytes;
	const void *key; /* TN_LINK_KEY_BYTES, copied when the op has to wait */
	uint64_t offset;
	uint32_t value; /* PUT_NOTIFY */
	uint64_t flag;  /* PUT_FLAG */
	const void *flag_key;
	uint64_t flag_offset;
} tn_link_xfer;

/*
 * Submit. TERN_OK: accepted, *op names it and TN_ACT_OP_DONE follows exactly once. Not accepted: TERN_AGAIN
 * (no op slot, or the channel holds channel_ops_max), TERN_E_TOO_LARGE, TERN_E_INVALID, TERN_E_UNSUPPORTED
 * (the provider lacks it), TERN_E_STATE (channel closed by this side), the status with which channel or link
 * ended.
 * Ops of one channel start in order, messages and transfers each; buffers must stay until the end.
 */
tern_status tn_link_send(tn_link *link, uint32_t channel, const tn_link_iov *iov, uint32_t count,
			 const tn_link_op_params *params, uint64_t *op);
tern_status tn_link_transfer(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
			     const tn_link_op_params *params, uint64_t *op);
/* End it early: TERN_OK, and it ends soon (TERN_E_CANCELED unless it got through). TERN_E_NOT_FOUND: it is
   not in flight. */
tern_status tn_link_cancel(tn_link *link, uint64_t op, uint64_t now_ns);

/* ---- the fast path ---- */

typedef struct tn_link_fast {
	tn_link_post post; /* what to post now */
	bool host; /* may be set before tn_link_fast_posted: local bytes lie in host memory, no config.copy */
	/* private */
	uint32_t channel;
	uint32_t phase;
	uint32_t iov_count;
	const tn_link_iov *iov;
	const tn_link_xfer *xfer;
	const tn_link_op_params *params;
} tn_link_fast;

typedef enum tn_link_fast_result {
	TN_FAST_COMPLETE, /* the op has ended with success: no TN_ACT_OP_DONE */
	TN_FAST_PENDING,  /* accepted, *op set: TN_ACT_OP_DONE follows */
	TN_FAST_MORE,     /* post fast->post (changed) as well, then ask again */
	TN_FAST_AGAIN,    /* the device did not take it: nothing happened, submit the ordinary way */
	TN_FAST_FAILED,   /* the device refused it with the status that was passed: nothing happened */
} tn_link_fast_result;

/*
 * Begin an op whose only piece can be posted right now: link UP, channel open with nothing queued, lane,
 * credits, windows and slots free. False: submit it the ordinary way (which may also fail). True: fill in
 * the rest of the shell's wr from fast->post, post it, then call tn_link_fast_posted at once, before any
 * other call. iov, xfer and params must stay in place until then.
 */
bool tn_link_fast_send(tn_link *link, uint32_t channel, const tn_link_iov *iov, uint32_t count,
		       const tn_link_op_params *params, tn_link_fast *fast);
bool tn_link_fast_xfer(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
		       const tn_link_op_params *params, tn_link_fast *fast);
/* The same for TN_XFER_PUT_NOTIFY alone: compiled for it. */
bool tn_link_fast_notify(tn_link *link, uint32_t channel, const tn_link_xfer *xfer,
			 const tn_link_op_params *params, tn_link_fast *fast);
/* After TN_FAST_COMPLETE and _AGAIN the machine has nothing to say that it had not before. */
tn_link_fast_result tn_link_fast_posted(tn_link *link, tn_link_fast *fast, tern_status status, bool done,
					uint64_t *op);
/* The same after tn_link_fast_send: compiled for it. */
tn_link_fast_result tn_link_fast_sent(tn_link *link, tn_link_fast *fast, tern_status status, bool done,
				      uint64_t *op);
/*
 * A message over a device that has its bytes when its post returns, and says nothing of it later: the machine keeps no
 * row of it. True: header and the message's pieces may be posted on that lane; if the device took them tn_link_brief_sent
 * follows at once, before any other call. False, or the device did not take it: nothing happened, submit it in another
 * way. Ends at LOCAL.
 */
typedef struct tn_link_brief {
	void *lane_user;
	_Alignas(16) uint8_t header[TN_LINK_BRIEF_BYTES];
} tn_link_brief;
bool tn_link_brief_send(tn_link *link, uint32_t channel, uint64_t bytes, tn_link_brief *brief);
/* iov: the message's pieces, in host memory. */
void tn_link_brief_sent(tn_link *link, uint32_t channel, const tn_link_brief *brief, const tn_link_iov *iov,
			uint32_t count, uint64_t bytes);

/*
 * An immediate that is as most are: instead of tn_link_on_imm, without the time, and the machine has nothing to
 * say afterwards. False: nothing happened, call that.
 */
bool tn_link_fast_imm(tn_link *link, uint32_t lane, uint32_t imm, uint64_t bytes, tn_link_rx *rx);

/*
 * A frame that is as most are, a whole message in its turn, instead of tn_link_on_frame: without the time. *rx is the
 * message; !*more: the machine has nothing to say that it had not before. False: nothing happened, call that.
 */
bool tn_link_fast_frame(tn_link *link, uint32_t lane, const void *bytes, uint64_t n, tn_link_rx *rx,
			bool *more);

/*
 * Accesses over a device that has done them, visible at the target, when its post returns: the machine keeps nothing of
 * them. True: nothing stands in the way of one of the channel's, of up to so many bytes, over a device with these
 * capabilities; so it stays until the machine is called for anything else. For each that the device took:
 * tn_link_accessed. False, or the device did not take it: submit the op in another way.
 */
typedef struct tn_link_way {
	void *lane_user;
	uint64_t bytes_max; /* 0: none */
	uint32_t caps;
} tn_link_way;
bool tn_link_access(const tn_link *link, uint32_t channel, tn_link_way *way);
void tn_link_accessed(tn_link *link, bool get);

/* ---- the link as a whole ---- */

typedef enum tn_link_state {
	TN_LINK_INIT,
	TN_LINK_DIAL,
	TN_LINK_HELLO,
	TN_LINK_AUTH,
	TN_LINK_SETUP,
	TN_LINK_WIRING,
	TN_LINK_UP,
	TN_LINK_RECOVERING, /* UP, but its lanes are being rebuilt: ops wait */
	TN_LINK_CLOSING,
	TN_LINK_DRAINING,
	TN_LINK_DOWN,
} tn_link_state;

/* Orderly close: queued ops end in TERN_E_FLUSHED, what was sent arrives, then LINK_DOWN. Idempotent. */
void tn_link_close(tn_link *link, uint64_t now_ns);
/* End it now: the peer is told why; queued ops end with status. For retired incarnations and faults. */
void tn_link_abort(tn_link *link, tern_status status, const char *text, uint64_t now_ns);

typedef struct tn_link_peer {
	uint8_t node[TN_LINK_ID_BYTES];
	uint8_t incarnation[TN_LINK_ID_BYTES];
	char name[TN_NAME_MAX];
	uint32_t version;  /* wire version in force */
	uint64_t features; /* of both */
	uint32_t secret;   /* which of ours both know: 0 or 1; from SETUP on */
} tn_link_peer;

tn_link_state tn_link_get_state(const tn_link *link);
const char *tn_link_state_name(tn_link_state state);
/* Why it is ending; TERN_OK while it is not (and after an orderly close of this side). */
tern_status tn_link_status(const tn_link *link);
const char *tn_link_detail(const tn_link *link);
/* NULL before TN_ACT_PEER. */
const tn_link_peer *tn_link_get_peer(const tn_link *link);
/* Index of the lanes' provider in config.providers, UINT32_MAX before it is chosen; and why this one. */
uint32_t tn_link_provider_index(const tn_link *link);
const char *tn_link_provider_reason(const tn_link *link);
/* Capabilities that the lanes have on both sides (TN_LINK_CAP_*); 0 before UP. */
uint32_t tn_link_caps(const tn_link *link);

/*
 * Two links of this node whose peers are known: may both live?
 *   another incarnation of the same node: the older link is retired (TERN_E_PEER_RESTARTED)
 *   both nodes dialed each other at once: the connection that the smaller incarnation dialed stays
 * Both sides come to the same answer, whichever they see first.
 */
typedef enum tn_link_rivalry { TN_RIVALS_NOT, TN_RIVALS_DROP_OLD, TN_RIVALS_DROP_NEW } tn_link_rivalry;
tn_link_rivalry tn_link_rivals(const tn_link *older, const tn_link *newer, tern_status *status);

#define TN_LINK_COUNTERS(X)    \
	X(frames_tx)           \
	X(frames_rx)           \
	X(messages_tx)         \
	X(messages_rx)         \
	X(writes)              \
	X(imms_tx)             \
	X(imms_rx)             \
	X(reads)               \
	X(credit_frames)       \
	X(window_frames)       \
	X(credit_waits)        \
	X(window_waits)        \
	X(window_cuts)         \
	X(window_grows)        \
	X(budget_waits)        \
	X(grant_waits)         \
	X(grant_frames)        \
	X(demand_frames)       \
	X(grant_bytes_back)    \
	X(slots_frames)        \
	X(relinquished_frames) \
	X(again)               \
	X(ops)                 \
	X(ops_fast)            \
	X(ops_failed)          \
	X(stale)               \
	X(dropped)             \
	X(pings)               \
	X(rejoins)             \
	X(recoveries)          \
	X(resumes)             \
	X(resume_ns)           \
	X(fallbacks)           \
	X(returns)             \
	X(probes)              \
	X(lanes_given_up)      \
	X(lanes_made_again)    \
	X(lanes_reclaimed)     \
	X(probes_failed)       \
	X(held_back)           \
	X(resent)              \
	X(came_twice)          \
	X(left_out)            \
	X(corrupt)
TN_COUNTERS_STRUCT(tn_link_counters, TN_LINK_COUNTERS)
const tn_link_counters *tn_link_get_counters(const tn_link *link);

/* Bytes of bulk in flight: those of the device's budget that are this link's. */
uint64_t tn_link_in_flight(const tn_link *link);

/*
 * Bytes of memory that this link has in use: itself, rows of its tables that were ever used, what it borrowed of the store.
 * Not its part of the configuration, which the links of a node share.
 */
size_t tn_link_held_bytes(const tn_link *link);

/* Receive slots that the peer may use at once on a lane of this link, which must not be gone. */
uint32_t tn_link_lane_slots(const tn_link *link, uint32_t handle);

/* Assert the invariants. level 1: O(1) facts; 2: all tables, lists and ledgers, O(size). */
void tn_link_check(const tn_link *link, int level);
/* The whole state in lines of text, for a report. Returns what it would need, like snprintf. */
size_t tn_link_print(const tn_link *link, char *buf, size_t bytes);

#endif

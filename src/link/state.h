/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a link: its tables, their equations, the diagrams of their rows. Files of this layer only; what works
 * on it is in internal.h.
 *
 *   lanes[]   slots of lanes, with a row each while it is used; by_index[] the lane_count lanes of the epoch in force
 *   chans[]   rows of channels, lowest index first; a handle is generation << 16 | index
 *   names[]   rows of names of services, shared, held while a channel opens or is refused
 *   ops[]     rows of operations, NULL as wrs while the link rests (work.c); a handle is generation << 32 | index
 *   wrs[]     rows of work requests with room for a frame's header; cookie = generation << 32 | index
 *
 * Rows that were never used are never touched: each table has a high-water mark and a list of free rows.
 *
 *   wr_live   = sum of lane->wrs = wrs not free                    <= wrs_max
 *   in_flight = sum of wr->bytes over those of bulk: pieces of transfers of more than small bytes
 *   chan->ops = its ops not DONE;  chan->wrs = its wrs;  op->wrs = its wrs
 *   lane:  granted - consumed >= 0;  received - freed = slots that the shell holds
 *          my_granted = my_first + freed;  my_told <= my_granted
 *
 * Who writes what: link_state.c the link's state, lane.c lanes' states, channel.c channels', op.c ops'.
 * Threads: none. Tests: tests/unit/link.
 */
#ifndef TN_LINK_STATE_H
#define TN_LINK_STATE_H

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/crypto.h"
#include "base/fail.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutant.h"
#include "base/rand.h"
#include "base/time.h"
#include "base/timer.h"
#include "link/link.h"
#include "link/share.h"
#include "link/wire.h"

#define TN_NONE UINT32_MAX
/* Lanes in use, and those of earlier attempts that still drain. */
#define TN_LANE_SLOTS (2 * TN_LINK_LANES_MAX)
/* Lane 0's ladder: data needs more credits than this, other frames more than 1, CREDIT with new grants > 0. */
#define TN_CREDIT_RESERVE 4u
#define TN_GRANT_MIN      (2 * TN_CREDIT_RESERVE)
/* Rows of wrs[] that only frames other than data may take. */
#define TN_WR_RESERVE      8u
#define TN_CTRL_OUT_BYTES  (2 * TN_CTRL_BYTES_MAX)
#define TN_WR_HEADER_BYTES 128
#define TN_CTRL_IN_BYTES   (TN_CTRL_HEAD_BYTES + TN_CTRL_BYTES_MAX)
#define TN_CTRL_LOG_BYTES  4096u /* of the stream that went out: kept at most, and at first */
#define TN_CTRL_LOG_FIRST  256u

/* ---- lanes ---- */

/*
 *	FREE -> CREATE -> CREATING -> CREATED -> CONNECT -> CONNECTING -> UP
 *	           |          |           \________\_________\____________/
 *	         FREE    FREE (failed)                   |
 *	                      \---- (doomed) --------> CLOSE -> CLOSING -> FREE
 *
 * CREATE, CONNECT and CLOSE wait for their action to be taken. Guarantees: only an UP lane is posted on;
 * CLOSING ends by on_lane_gone alone, after which no wr of the lane is live.
 */
typedef enum tn_lk_lane_state {
	TN_LANE_FREE,
	TN_LANE_CREATE,
	TN_LANE_CREATING,
	TN_LANE_CREATED,
	TN_LANE_CONNECT,
	TN_LANE_CONNECTING,
	TN_LANE_UP,
	TN_LANE_CLOSE,
	TN_LANE_CLOSING,
} tn_lk_lane_state;

enum { TN_CLASS_SMALL, TN_CLASS_BULK, TN_CLASSES };

typedef struct tn_lk_lane {
	tn_lk_lane_state state;
	uint32_t handle; /* serial << 4 | slot */
	uint32_t index, epoch, provider;
	void *user;
	bool doomed;  /* torn down while its creation was asked for */
	bool stalled; /* AGAIN: wait for an event on it or the retry timer */
	/* the peer's receive slots */
	uint32_t first, granted, consumed;
	/* of lane 0: added since then, less what was given back (slots.c); modulo 2^32, so it may be below 0 */
	uint32_t extra;
	/* ours */
	uint32_t my_first, my_granted, my_told, received, freed;
	uint32_t my_extra;
	uint32_t twice; /* slots that the shell holds of units that had come before (numbers.c) */
	/* acknowledgement: units = frames, and immediates where the device lacks REMOTE_DONE */
	uint32_t tx_units, peer_seen, rx_units, seen_told;
	/* numbers.c: units sent at the last look, and those that the peer was told; what it said that it sent */
	uint32_t tx_looked, tx_said, rx_said;
	/* wrs posted, finished ones as well, and the last of them that is known to be at the peer */
	uint32_t tx_serial, tx_arrived;
	/* turns.c: channels in ready[], and bytes sent, divided by how many there were */
	uint32_t ready_count[TN_CLASSES];
	uint64_t served[TN_CLASSES];
	bool ack_due;
	bool rx_due;               /* rx_said had not all come at the last look */
	bool quiet_sent;           /* during a move: a SYNC followed the last of what this side sent */
	uint32_t quiet_unit;       /* that SYNC */
	uint32_t bye;              /* what the peer's BYE said it sent */
	uint32_t wrs, frames;      /* in flight; frames: of messages */
	tn_list acks;              /* ops that wait for peer_seen, in order of their unit */
	tn_list ready[TN_CLASSES]; /* channels whose next transfer goes over this lane */
	uint8_t token[TN_LINK_TOKEN_BYTES];
} tn_lk_lane;

/* ---- operations ---- */

/*
 *	FREE -> QUEUED -> ACTIVE -> POSTED -> DONE -> FREE
 *	           |         \________|________/^
 *	           |                  v         |
 *	           |               STOPPED -----|
 *	           \----------------------------/
 *
 * QUEUED: nothing posted. ACTIVE: pieces posted, more to come. POSTED: all posted, wrs or the peer's
 * acknowledgement outstanding. STOPPED: its end is decided, wrs are still out. DONE: waits for its action.
 * Guarantee: DONE is reached once, and never while op->wrs > 0.
 */
typedef enum tn_lk_op_state {
	TN_LOP_FREE,
	TN_LOP_QUEUED,
	TN_LOP_ACTIVE,
	TN_LOP_POSTED,
	TN_LOP_STOPPED,
	TN_LOP_DONE,
} tn_lk_op_state;

typedef enum tn_lk_op_kind {
	TN_OP_MESSAGE,
	TN_OP_PUT,
	TN_OP_PUT_NOTIFY,
	TN_OP_PUT_FLAG,
	TN_OP_GET,
} tn_lk_op_kind;

typedef struct tn_lk_op {
	tn_list node; /* queue of its channel, or the link's done list */
	tn_list ack_node;
	tn_timer timer; /* deadline */
	tn_lk_op_state state;
	tn_lk_op_kind kind;
	uint32_t generation, next_free;
	uint32_t chan; /* index */
	uint32_t lane; /* slot; TN_NONE before the first piece */
	uint32_t wrs;
	uint32_t ack_unit;
	tern_status status; /* what it ends with once stopped */
	bool need_ack;      /* ends when peer_seen covers ack_unit */
	bool acked;
	bool all_posted; /* stopped after its last piece was posted: may still end well */
	bool failed;     /* a wr failed by itself */
	bool lost;       /* a wr failed with its lane */
	bool tail;       /* in the channel's tails: data is posted, its notification is not */
	bool flag_posted;
	bool remote;    /* ends when it has arrived */
	bool redo;      /* POSTED, and its data and notification go again (journal.c) */
	bool silent;    /* a piece was done at its post, though nobody said that it arrived */
	bool resent;    /* a message whose end goes again */
	bool beside;    /* as a small one, however long */
	uint8_t placed; /* tn_link_placed */
	void *user;
	uint64_t length, sent;
	union {
		struct {
			tn_link_iov iov[TN_LINK_IOV_MAX];
			uint32_t count;
		} msg;
		struct {
			void *local;
			uint64_t offset;
			uint64_t flag, flag_offset;
			uint32_t value;
			uint8_t key[TN_LINK_KEY_BYTES];
			uint8_t flag_key[TN_LINK_KEY_BYTES];
		} x;
	};
} tn_lk_op;

/* ---- the log (journal.c) ---- */

#define TN_JOURNAL_ROWS         1024u /* a lane's units that may be open; no lane grants more */
#define TN_JOURNAL_RESERVE_ROWS 64u   /* of lane 0, for frames of the link's own */
#define TN_JOURNAL_ROWS_ALL     (16u * TN_JOURNAL_ROWS) /* of log 0: after a break it takes those of all lanes */
#define TN_JOURNAL_RING_BYTES \
	(512u << 10) /* of a message of 256 KiB each frame fits: none waits for a round trip */
#define TN_JOURNAL_FRAME_MAX     (32u << 10)
#define TN_JOURNAL_RESERVE_BYTES (8u << 10)
#define TN_JOURNAL_PUT_MAX       1024u
#define TN_JOURNAL_IMM_BYTES     (TN_JOURNAL_PUT_MAX + TN_LINK_KEY_BYTES + 8u)

typedef enum tn_lk_note_what {
	TN_NOTE_VOID,   /* arrived, or not to be sent again */
	TN_NOTE_FRAME,  /* body and payload are in the ring */
	TN_NOTE_NOTIFY, /* body is in small[]; its data arrived, or lies with op */
	TN_NOTE_PUT,    /* a notification, and its put: key, offset, data in the ring */
} tn_lk_note_what;

/* A frame or an immediate that may not have arrived. */
typedef struct tn_lk_note {
	uint32_t slot, unit; /* lane->consumed and tx_units with it; while it is open */
	uint8_t what;        /* tn_lk_note_what */
	uint8_t type;        /* of the frame */
	uint8_t body;        /* bytes of the frame's header after the head */
	bool orphan;         /* its op ended before it arrived, and not well */
	bool written;        /* PUT: the data was sent again */
	bool late; /* FRAME: the payload is still to be copied, from its op; small: where it begins there */
	uint32_t chan;    /* handle of ours */
	uint32_t bytes;   /* payload */
	uint64_t op;      /* handle, 0 = none: ends, or is acknowledged, when this arrived */
	uint64_t at, end; /* in the ring */
	uint8_t small[16];
} tn_lk_note;

typedef struct tn_lk_journal {
	tn_lk_note *rows;
	uint32_t mask, head, next, tail;
} tn_lk_journal;

/* ---- work requests ---- */

typedef enum tn_lk_wr_kind {
	TN_WR_FREE,
	TN_WR_CTL, /* OPEN, OPEN_OK, OPEN_FAIL, CLOSE, WINDOW: `bit` says which */
	TN_WR_CREDIT,
	TN_WR_BYE,
	TN_WR_GRANT,
	TN_WR_DEMAND,
	TN_WR_SLOTS,
	TN_WR_BACK,  /* RELINQUISHED */
	TN_WR_QUIET, /* SYNC of a move */
	TN_WR_ABORT,
	TN_WR_AGAIN, /* a frame of the log */
	TN_WR_DATA,
	TN_WR_NOTIFY, /* also SYNC */
	TN_WR_WRITE,
	TN_WR_IMM,
	TN_WR_FLAG,
	TN_WR_REDO, /* a write of the log */
	TN_WR_READ,
} tn_lk_wr_kind;

/* How a piece of a put may go (grants.c). */
enum { TN_FLOW_NONE, TN_FLOW_STANDING, TN_FLOW_GRANTED };

typedef struct tn_lk_wr {
	tn_lk_wr_kind kind;
	uint32_t generation, next_free;
	uint32_t lane; /* slot */
	uint32_t chan; /* index or TN_NONE */
	uint32_t op;   /* index or TN_NONE */
	uint32_t bit;
	uint32_t serial; /* the lane's tx_serial with it */
	bool last;       /* the op's last piece */
	bool beside;     /* no bulk, however long */
	uint32_t note;   /* its row of the lane's log */
	uint64_t bytes;
	uint8_t flow;                   /* TN_FLOW_* */
	uint64_t posted_ns;             /* of bulk; 0 = by the fast path */
	uint32_t told_grant, told_seen; /* in the header */
	_Alignas(16) uint8_t header[TN_WR_HEADER_BYTES];
} tn_lk_wr;

/* ---- channels ---- */

/*
 *	FREE -> OPENING -------> OPEN -> CLOSING -> ENDED -> FREE
 *	   \       \              ^        \________________/^
 *	    \       \---------------------(OPEN_FAIL)-> ENDED
 *	     \--> INCOMING -------/
 *	             \---(refused)------------------------> FREE
 *
 * CLOSING: our CLOSE is due or sent, or the peer's is awaited. ENDED: nothing is owed to the peer; waits
 * for its last wr and for the shell's close. Guarantee: a row is reused only when both sides have sent and
 * received CLOSE and all notifications counted in it, so nothing of the old one can reach the new one.
 */
typedef enum tn_lk_chan_state {
	TN_CHAN_FREE,
	TN_CHAN_OPENING,
	TN_CHAN_INCOMING,
	TN_CHAN_OPEN,
	TN_CHAN_CLOSING,
	TN_CHAN_ENDED,
} tn_lk_chan_state;

/* Frames that a channel owes (ctl) and events that the shell has to see (events). */
enum { TN_CTL_OPEN = 1, TN_CTL_OK = 2, TN_CTL_FAIL = 4, TN_CTL_WINDOW = 8, TN_CTL_CLOSE = 16 };
enum { TN_EVENT_INCOMING = 1, TN_EVENT_OPENED = 2, TN_EVENT_CLOSED = 4 };

/* The order is that of use: what goes out touches the first two lines, a message that comes in the first and the third. */
typedef struct tn_lk_chan {
	_Alignas(TN_CACHE_LINE) uint32_t handle;
	union {
		uint32_t peer;      /* its handle of this channel */
		uint32_t next_free; /* FREE */
	};
	uint8_t state;       /* tn_lk_chan_state */
	uint8_t ctl, events; /* TN_CTL_*, TN_EVENT_* */
	bool opener : 1;
	bool released : 1; /* the shell closed it */
	bool open_sent : 1;
	bool close_sent : 1, close_received : 1, peer_done : 1; /* peer_done: and all it sent has arrived */
	bool paused : 1;
	bool closed_due : 1; /* CHANNEL_CLOSED follows once its ops have ended */
	bool spoilt : 1;     /* puts that had ended may be lost: CHANNEL_CLOSED(INDETERMINATE) */
	bool abort_due : 1;  /* the message tx_seq was begun and given up */
	bool rx_partial : 1;
	bool turn_kept : 1; /* of bulk, while a notification goes out */
	/* transfers: lanes by their index */
	uint8_t lane;                    /* where they go while xfers_out > 0 */
	uint8_t ready_lane, ready_class; /* while xfer_node is linked */
	uint8_t notify_lane, silent_lane;
	uint32_t ops, wrs;
	tn_list msgs; /* QUEUED, and the first may be ACTIVE */
	/* sending messages */
	uint64_t tx_seq, tx_window, tx_sent; /* tx_sent <= tx_window, TN_FRAME_COST a fragment counted in */
	uint32_t xfers_out;                  /* begun and not DONE */
	uint32_t notify_slot;                /* of the last notification: its lane's receive slot */
	uint64_t peer_message_max;           /* UINT64_MAX = any */
	tn_list xfers;                       /* QUEUED, and the first may be ACTIVE */
	tn_list tails;        /* transfers whose data is posted and whose notification is not, in order */
	uint64_t notifies_tx; /* of transfers */
	/* receiving */
	void *user;
	uint64_t rx_seq, rx_offset, rx_total, rx_window, rx_bytes; /* rx_bytes <= rx_window */
	uint64_t message_max;                                      /* UINT64_MAX = any */
	uint64_t notifies_rx;
	/* now and then */
	uint64_t close_notifies;
	uint64_t peer_window;               /* the peer's first window */
	uint32_t silent_slot;               /* units of its lane before it */
	uint32_t silent_serial;             /* of the last put that ended at its post, without an answer */
	int32_t msg_turn, turn[TN_CLASSES]; /* bytes that it may still send before the next one's turn */
	tn_list msg_node, xfer_node, ctl_node, event_node;
	tern_status status;
	uint32_t name; /* row + 1 of its service, later of a refusal's words; 0 = none (any more) */
} tn_lk_chan;
_Static_assert(sizeof(tn_lk_chan) <= 320, "ten thousand idle channels stay small");
_Static_assert(offsetof(tn_lk_chan, user) == 2 * TN_CACHE_LINE &&
		       offsetof(tn_lk_chan, close_notifies) == 3 * TN_CACHE_LINE,
	       "ten thousand busy channels touch few lines");
_Static_assert(TN_LINK_LANES_MAX <= UINT8_MAX, "a lane's index");

typedef struct tn_lk_name_row {
	uint32_t refs, next_free;
	char text[TN_NAME_MAX];
} tn_lk_name_row;

/* What the peer said of its lane number i in this epoch. */
typedef struct tn_lk_addr {
	bool has;
	uint32_t grant;
	uint16_t bytes;
	uint8_t blob[TN_LINK_BLOB_MAX];
} tn_lk_addr;

typedef struct tn_lk_fail {
	uint32_t channel;
	tern_status status;
} tn_lk_fail;

/* ---- what the receiver grants (grants.c) ---- */

/* Bits of link->credit_due beside those of lanes. */
#define TN_DUE_DEMAND (1u << 31)
#define TN_DUE_GRANT  (1u << 30)
#define TN_DUE_SLOTS  (1u << 29)
#define TN_DUE_BACK   (1u << 28)
#define TN_DUE_LANES  ((1u << TN_LINK_LANES_MAX) - 1)

typedef struct tn_lk_grants {
	bool tx, rx; /* this side waits for grants; gives them */
	/* sending */
	uint32_t unit;
	uint64_t share, standing; /* standing <= share, but while a share falls */
	uint64_t wanted, total;   /* told; granted */
	uint64_t used, done, back;
	/* receiving */
	uint64_t peer_done, peer_back;
	tn_link_arbiter *arbiter; /* while the seat is joined */
	tn_arbiter_seat seat;
} tn_lk_grants;

/* ---- receive slots of lane 0 that come and go (slots.c) ---- */

typedef struct tn_lk_slots {
	bool both; /* both sides know of it */
	/* sending */
	uint32_t added, asked, back;
	bool waited; /* for a credit, and the peer was not told yet */
	/* receiving */
	uint32_t told;      /* added */
	uint32_t hungry_at; /* received then */
	tn_link_pool *pool; /* while the seat is joined */
	tn_pool_seat seat;
} tn_lk_slots;

/* ---- lanes beside those in use (spare.c) ---- */

typedef struct tn_lk_spare {
	bool active;
	bool reach_ask, reach_wait;
	bool wait; /* for slots of lanes that drain */
	bool ready_sent, ready_received;
	bool move_sent, move_received;
	bool broken; /* a lane broke when it was too late to say so */
	/* of the provider in use: more lanes, or (narrows) lane 0 alone (reshape.c) */
	bool reshape, narrows;
	bool reclaimed; /* for data lanes of others: when these have rested, not after two looks */
	uint32_t epoch, provider, peer_provider;
	uint32_t lanes, count; /* count: 0 before they are made */
	tn_lk_lane *by_index[TN_LINK_LANES_MAX];
	tn_lk_addr *addr; /* one each; NULL: no memory for them */
} tn_lk_spare;

/* A link's configuration as it is kept: names and providers are here, not behind config's pointers. */
typedef struct tn_lk_shared {
	tn_link_config config;
	char name[TN_NAME_MAX], job[TN_NAME_MAX];
	tn_link_provider providers[TN_LINK_PROVIDERS_MAX]; /* as many as there are are kept */
} tn_lk_shared;

/* Until the link is up for the first time (hello.c). */
typedef struct tn_lk_birth {
	uint8_t secrets[TN_SECRETS_MAX][TN_SHA256_BYTES]; /* hashed; the first all zero if there is none */
	uint32_t secret_count;                            /* 1 or 2 */
	uint8_t nonce[TN_LINK_NONCE_BYTES];
	uint8_t transcript[TN_SHA256_BYTES];
	uint32_t hello_own_bytes, hello_peer_bytes;
	uint8_t hello_own[TN_CTRL_HELLO_BYTES], hello_peer[TN_CTRL_HELLO_BYTES];
} tn_lk_birth;

/* What the peer said of itself in SETUP: a block of `bytes`, the addresses behind the rows. */
typedef struct tn_lk_peer_device {
	char name[TN_LINK_PROVIDER_NAME];
	uint64_t write_bytes_max, send_bytes_max;
	uint32_t caps;
	uint16_t address_bytes, address_at; /* at: from the block's beginning */
} tn_lk_peer_device;

typedef struct tn_lk_peer_setup {
	uint32_t bytes;
	uint32_t channels_max;
	uint32_t provider_count;
	tn_lk_peer_device providers[];
} tn_lk_peer_setup;

/* What is said when a control connection comes back (rejoin.c). */
typedef struct tn_lk_rejoin {
	uint8_t out[TN_CTRL_HEAD_BYTES + TN_CTRL_REJOIN_BYTES];
	uint8_t in[TN_CTRL_HELLO_BYTES];
	char lost_text[TN_LINK_TEXT_MAX];
} tn_lk_rejoin;

/* How a provider did since its lanes were last up long enough. */
typedef struct tn_lk_health {
	uint32_t strikes;       /* breaks in a row, each soon after its lanes were up */
	uint64_t held_until_ns; /* not tried before, while others work */
} tn_lk_health;

/* ---- the link ---- */

enum {
	TN_TIMER_STEP, /* hello's steps, and wiring */
	TN_TIMER_KEEPALIVE,
	TN_TIMER_CLOSE,
	TN_TIMER_ACK,
	TN_TIMER_RETRY,
	TN_TIMER_VERDICT,
	TN_TIMER_RECOVER,
	TN_TIMER_REWIRE, /* RECOVERING, no provider worked: from the first one again */
	TN_TIMER_PROBE,  /* look whether a better provider works */
	TN_TIMER_REDIAL, /* the control connection must be back */
	TN_TIMER_DIAL,   /* dial again */
	TN_TIMER_SPARE,  /* the spare lanes' next step */
	TN_TIMER_LANES,  /* look whether data lanes are used (reshape.c) */
	TN_TIMER_COUNT,
};

struct tn_link {
	/* ---- the hot path, in few pages ---- */
	tn_link_state state;
	uint32_t caps;    /* of the lanes, on both sides */
	bool remote_done; /* caps has REMOTE_DONE */
	uint32_t
		outside; /* index + 1 of the channel a piece of which the shell moves without its lock; 0 = none */
	bool hold;       /* a move is prepared: nothing new starts (spare.c) */
	bool heard;      /* something came from the peer since the last keepalive tick */
	bool close_local;
	bool resumes;          /* both sides can, and it is wanted */
	uint16_t number_mask;  /* of numbers in heads: all bits, or none without NUMBERS */
	uint32_t imm_mask;     /* TN_IMM_NUMBER where immediates are numbered, else 0 */
	uint32_t imm_channels; /* channels below go by immediates */
	uint32_t lane_count;
	uint32_t wr_live, wr_free, wr_high;
	uint32_t op_live, op_free, op_high;
	uint32_t wr_room, op_room; /* wrs_max, ops_max; 0 while there are no rows (work.c) */
	uint32_t lane_wrs_max;
	uint64_t in_flight; /* of bulk */
	uint64_t beside;    /* the same of what goes beside messages */
	uint64_t window;    /* bytes of bulk that may be in flight now */
	uint64_t small;     /* small_bytes, and no more than one piece */
	uint64_t chunk_max; /* longest piece on these lanes */
	uint64_t imm_max;   /* longest write with immediate */
	uint64_t frame_max; /* longest frame that both sides take */
	tn_lk_lane *by_index[TN_LINK_LANES_MAX];
	tn_lk_wr *wrs;
	tn_lk_op *ops;
	tn_lk_chan *chans;
	uint32_t chan_live, chan_free, chan_high;
	uint32_t posting;    /* wr of the TN_ACT_POST that waits for its answer */
	uint32_t credit_due; /* lanes (by index) whose totals the peer should be told; TN_DUE_* */
	tn_lk_journal journal[TN_LINK_LANES_MAX]; /* by the lane's index */
	uint8_t *ring;
	uint64_t ring_head, ring_tail;
	tn_link_counters counters;
	union { /* one for all links that have equal ones */
		const tn_lk_shared *shared;
		const tn_link_config *config; /* its first part */
	};
	bool active; /* what it has not: this side dialed */
	void *log_arg;
	tn_lk_spare spare;
	tn_lk_lane
		*lanes[TN_LANE_SLOTS]; /* NULL, or a row; one that is FREE keeps its totals for recover.c */
	/* ---- work ---- */
	tn_timers timers;
	tn_timer timer; /* the earliest of timer_at[] */
	uint64_t timer_at[TN_TIMER_COUNT];
	tn_list done, events, ctl, msg_ready;
	bool turn;                     /* whose turn it is: messages or small transfers */
	uint64_t served[TN_CLASSES];   /* the largest of a lane that had its turn */
	uint32_t xfer_ready;           /* channels in lanes' ready lists */
	uint32_t bulk_ready;           /* those of bulk among them */
	bool window_shut, budget_shut; /* of the current look for a post */
	bool limited;                  /* the window held a piece back since it last could grow */
	bool doubling;                 /* it was not cut yet since lanes came up */
	bool adaptive;                 /* the window is, on these lanes */
	bool streams;     /* these lanes order what is written, and what is posted in a row leaves together */
	uint64_t base_ns; /* least delay of bulk on them */
	uint64_t window_done, cut_ns; /* bytes since then; when it was last cut */
	tn_link_budget *budget;       /* of the device in use; NULL = none */
	tn_budget_seat budget_seat;
	tn_lk_grants grants;
	tn_lk_slots slots;
	tn_lk_fail *fails; /* ring of refusals of channels that have no row */
	uint32_t fail_head, fail_count;
	tn_lk_name_row *names;
	uint32_t name_free, name_high, name_last;
	uint32_t wr_generation, op_generation; /* the highest of rows that were given back */
	uint32_t serial_looked;                /* work.c: of all lanes, at the last look */
	uint32_t ask_seen; /* lanes (by index) whose peer is to say what it has, so that the log ends */
	uint32_t opened;   /* live channels that we opened: at most the peer's channels_max */
	/* ---- the end ---- */
	tern_status status;
	char *detail; /* NULL or a text, as is reason */
	bool bye_sent, bye_received, closed_sent, closed_received;
	bool verdict_pending, settled, down_told;
	/* ---- control connection ---- */
	bool ctrl_up, ctrl_closing, ctrl_closed; /* closing: CTRL_CLOSE is due */
	bool peer_ask, peer_known, peer_answered, up_due;
	bool reach_ask, reach_wait;
	uint32_t reach_provider;
	uint8_t *ctrl_in, *ctrl_out; /* TN_CTRL_IN_BYTES, TN_CTRL_OUT_BYTES; NULL while nothing is in them */
	uint32_t ctrl_in_bytes, ctrl_out_bytes;
	uint64_t ping_number;
	uint32_t misses;
	/* ---- the control connection again (rejoin.c) ---- */
	bool rejoins;               /* both sides can, and it is wanted */
	bool ctrl_lost;             /* it ended and may come back */
	bool dial_due, rejoin_wait; /* dialer: connect; REJOINED is awaited */
	bool rejoin_ask;            /* acceptor: the first message is REJOIN, in birth->hello_peer */
	uint32_t rejoin_number;
	uint64_t ctrl_tx, ctrl_rx, ctrl_again, ctrl_kept, ping_at; /* rejoin.c */
	uint32_t ctrl_log_bytes;
	uint8_t *ctrl_log;    /* a ring; NULL while nothing is kept */
	tn_lk_rejoin *rejoin; /* while the control connection is away, or coming back */
	uint32_t rejoin_in_bytes, rejoin_out_bytes;
	/* ---- hello ---- */
	tn_lk_birth *birth; /* NULL: it was up */
	uint8_t session[TN_SHA256_BYTES];
	tn_link_peer peer;
	tn_lk_peer_setup *peer_setup; /* from WIRING on */
	/* ---- wiring ---- */
	uint32_t epoch, lane_serial;
	uint32_t epoch_last; /* the highest that was used: that of the spare lanes, if there were any */
	uint32_t provider, provider_next;   /* in force (TN_NONE) and next to try */
	uint32_t peer_provider;             /* its row in peer_setup */
	uint32_t wire_lanes;                /* lanes to be made */
	uint32_t few;                       /* providers (by index) that had no room for more than one lane */
	uint32_t past_epoch, past_provider; /* the attempt given up last; its provider */
	bool wire_active;                   /* the epoch's lanes are being made or are in use */
	bool wire_broke;                    /* a lane of an attempt broke: another round may go well */
	bool wire_wait;                     /* for slots of lanes that drain */
	bool wired_sent, wired_received;
	uint32_t lane_work; /* lanes in CREATE, CONNECT, CLOSE */
	uint32_t lanes_live;
	char *reason; /* why not over the providers before this one */
	/* ---- the better provider ---- */
	bool moves;  /* both sides can, and it is wanted */
	bool moving; /* RECOVERING because of a move */
	/* data lanes that are given up while idle (reshape.c) */
	bool reshapes;        /* both sides can, and it is wanted */
	bool narrow;          /* they are */
	bool widen;           /* they are wanted again */
	bool widen_sent;      /* acceptor: the dialer was told */
	bool lanes_idle;      /* at the last look */
	bool yields;          /* both sides know NARROW */
	bool pressed;         /* acceptor: what the dialer asks for is for lanes of others */
	uint64_t bulk_ns;     /* when bulk of this side last ended */
	bool bulk_since;      /* more did since, and nobody looked when (the fast path) */
	tn_link_quota *quota; /* while the seat is joined */
	tn_quota_seat quota_seat;
	uint64_t lanes_used; /* then */
	bool moved_due;
	uint32_t probe_next, probe_fails;
	uint32_t told_provider; /* that the shell knows of */
	uint64_t up_since_ns;   /* the lanes in use */
	tn_rand rand;           /* spreads probes */
	uint32_t worked;        /* providers (by index) whose lanes were up */
	tn_lk_health *health;   /* of each provider; NULL: none broke, or no memory to know it */
	/* ---- recovery ---- */
	bool sums;     /* DATA and FRAG carry checksums, both ways */
	bool torn;     /* something that was sent could not be kept: a break ends the link */
	bool draining; /* RECOVERING: until both have said what arrived */
	bool resume_sent, resume_received;
	bool was_up;
	bool both_recover; /* both have said RESUME once: no attempt is treated as new any more */
	bool close_wanted; /* an orderly close waits for new lanes */
	uint64_t broke_ns; /* when lanes in use broke; 0: none did, or a move ended them */
	uint32_t rewires;  /* times that no provider worked since the lanes broke */
	uint32_t redo_wrs; /* writes of the log that are out */
	tn_wire_resume resume;
	tn_lk_addr *addr; /* of addr_lanes, while an epoch is wired */
	uint32_t addr_lanes;
};
_Static_assert(sizeof(struct tn_link) <= 3u << 10, "README.md says what a link takes");

#endif

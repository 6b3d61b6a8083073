/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device abstraction: one contract for loop, shm, tcp and verbs.
 *
 *   device  a way to other nodes: its own address, capabilities, receive buffers, completion source
 *   lane    one ordered path to one peer device (a queue pair, a ring pair, a TCP connection)
 *   wr      a work request: write, write with immediate, read or send, posted on a lane
 *   event   what poll returns: a completion, a received message, an immediate, a lane's change
 *
 * Rules that hold for every provider:
 *  1. Exactly one completion per accepted wr: either wr->done is set when post returns TERN_OK, or one
 *     TN_EV_DONE event with its cookie follows, whatever happens (lane death and close included).
 *     TERN_AGAIN or an error means not accepted: nothing follows.
 *  2. A wr of TN_LEVEL_REMOTE completes when the data is placed and visible at the target (verbs: said
 *     by the target's software or a flushing operation; the link layer provides that where a device
 *     lacks TN_CAP_REMOTE_DONE). TN_LEVEL_LOCAL: the source buffer may be reused.
 *  3. Order exists within one lane only: what was posted first is placed first *as seen at the
 *     notification*: when an immediate or a sent message is delivered, all writes posted before it on
 *     the same lane are visible. Placement order of the bytes themselves is only promised with
 *     TN_CAP_ORDERED_WRITES (a later small write is never visible before an earlier one).
 *  4. No call blocks unless its comment says so. No callback anywhere: poll returns events.
 *  5. Threads: post_* on one lane are serialised by the caller; poll/arm of one device run in one thread
 *     at a time; a post may run at the same time as poll (providers lock inside where they must).
 *     lane_* and dev calls other than post/poll are serialised with poll by the caller.
 *  6. Lengths are 64 bits; a zero-length write, write_imm or send is valid and notifies.
 *  7. The peer is never trusted: keys are checked (generation, bounds, access), frames are bounded. A bad
 *     frame ends that lane only.
 *  8. A missing capability is a default op that returns TERN_E_UNSUPPORTED (dummy_ops.c), never NULL.
 */
#ifndef TN_TRANSPORT_TRANSPORT_H
#define TN_TRANSPORT_TRANSPORT_H

#include <stdbool.h>

#include <tern/ctx.h>

#include "mem/mem.h"

typedef struct tn_dev tn_dev;   /* base object: the provider's struct starts with it */
typedef struct tn_lane tn_lane; /* base object: the provider's struct starts with it */

#define TN_BLOB_MAX 256
/* Opaque address bytes, exchanged over the control connection. */
typedef struct tn_blob {
	uint16_t length;
	uint8_t bytes[TN_BLOB_MAX];
} tn_blob;

#define TN_LANE_TOKEN_BYTES 32
#define TN_IOV_MAX          4

enum {
	TN_CAP_WRITE = 1u << 0,
	TN_CAP_WRITE_IMM = 1u << 1,
	TN_CAP_READ = 1u << 2,
	TN_CAP_SEND = 1u << 3,
	TN_CAP_REMOTE_DONE = 1u << 4,    /* completes wrs at TN_LEVEL_REMOTE by itself */
	TN_CAP_ORDERED_WRITES = 1u << 5, /* write after write: flag words are safe */
	TN_CAP_TAIL_BYTE = 1u << 6,      /* bytes of one write are placed in order */
	TN_CAP_PASSIVE_TARGET = 1u << 7, /* one-sided access needs no progress at the target */
	TN_CAP_SAME_HOST = 1u << 8,      /* reaches only peers on this host */
};

typedef struct tn_dev_caps {
	uint32_t flags;
	uint64_t write_bytes_max; /* longest write or read in one wr */
	uint64_t send_bytes_max;  /* longest send (all of iov) = size of a receive buffer */
	uint32_t recv_slots;      /* receive buffers that the device keeps posted (shared by its lanes) */
	uint32_t lane_recv_slots; /* messages/immediates one lane can hold undelivered (ring size); the link
				     grants no more credits than this per lane and recv_slots in all */
	uint32_t lane_wrs_max;    /* wrs in flight per lane; more gives TERN_AGAIN */
	uint32_t inline_bytes;    /* sources up to this are copied at post; 0 works */
	uint32_t
		send_done_bytes; /* a message of so many or less that a send accepts is always done; 0: says nothing */
	bool copies;             /* one-sided accesses are copies by the initiator: copy_begin works */
	bool needs_registered; /* local memory of writes and reads must be registered, or inline */
	bool streams; /* bulk queues in buffers of the kernel, which hold more than the path and delay what
			 comes behind: an adaptive window keeps it short (link.window=auto) */
	bool batches; /* posts of few bytes that lane.more announces are gathered: one system call for many */
	bool incast;  /* many peers that write to it overrun the network in front of it, since nothing
				     in the provider holds them back: bulk to it is granted (link.grants=auto) */
} tn_dev_caps;

typedef enum tn_level { TN_LEVEL_LOCAL, TN_LEVEL_REMOTE } tn_level;

/* A one-sided work request. Caller-owned, needed only during the call. */
typedef struct tn_wr {
	uint64_t cookie; /* comes back in the completion; means nothing to the provider */
	tn_level level;
	/* local memory: write's source, read's destination. Any pointer is valid on loop, shm and tcp;
	   verbs needs registered memory (TERN_E_INVALID if not: the link stages it). */
	void *local;
	uint64_t bytes;
	tn_key key;      /* decoded remote key */
	uint64_t offset; /* in the key's range */
	uint32_t imm;    /* write_imm only */
	bool signal; /* never done at the post: TN_EV_DONE follows, with the status that the target gave it */
	bool more;   /* hint: another wr follows at once, a doorbell may wait (never beyond next post with
			    more == false or poll) */
	uint64_t whole; /* hint: bytes of the transfer that this is a piece of; 0: unknown */
	bool last;      /* hint: the end of a long transfer, of which the peer is told behind it */
	/* out */
	bool done; /* completed during the post at the wanted level: no event will follow */
} tn_wr;

/* A one-sided access between copy_begin and copy_end. */
typedef struct tn_copy {
	void *to;
	const void *from;
	uint64_t bytes;
	uint64_t run;  /* private: of adjoining copies so far */
	void *map;     /* private */
	uint64_t peer; /* while this number stays, what was mapped of the peer stays where it is */
	bool read;
	bool last; /* private: tn_wr.last */
} tn_copy;

typedef struct tn_iov {
	const void *base;
	uint64_t bytes;
} tn_iov;

typedef enum tn_event_type {
	TN_EV_NONE,
	TN_EV_DONE,      /* a wr: lane, cookie, status. Nothing else is valid when status is an error */
	TN_EV_RECV,      /* a message: lane, buf, bytes. buf is the provider's until recv_done */
	TN_EV_IMM,       /* a write with immediate arrived: lane, imm, bytes written. Needs recv_done too, but
			    with TN_SLOT_NONE */
	TN_EV_LANE_UP,   /* lane_connect finished */
	TN_EV_LANE_DOWN, /* lane broke or could not connect: status. All its wrs complete (events before or
			    after this one); nothing else but those completions follows for the lane */
	TN_EV_DEVICE, /* the device changed (port down, error): status. TERN_OK: `address` gives another one
			    from now on, for lanes to come */
} tn_event_type;

/* An event whose receive buffer held nothing and went back already: recv_done does nothing. */
#define TN_SLOT_NONE UINT32_MAX

#define TN_TAKE_BYTES 256u /* room for a message that is taken without a receive buffer */

typedef struct tn_event {
	tn_event_type type;
	tern_status status;
	tn_lane *lane;
	void *lane_arg; /* params.arg of the lane */
	uint64_t cookie;
	const void *buf;
	uint64_t bytes;
	uint32_t imm;
	uint32_t slot; /* provider's handle of the receive buffer, for recv_done */
} tn_event;

typedef struct tn_dev_params {
	tern_mem *mem;
	const struct tn_options *options; /* NULL = defaults (base/options.h) */
	const char *bind_host;            /* address for listeners of tcp; NULL = 127.0.0.1 */
	uint64_t seed;                    /* loop's adversarial mode; 0 = well-behaved */
	bool one_thread;                  /* all calls come from one thread: locks are not needed */
} tn_dev_params;

typedef struct tn_lane_params {
	void *arg; /* comes back as lane_arg */
	/* Secret of this lane, equal on both sides (from the authenticated hello, bound to session, lane and
	   epoch): the passive side accepts only a peer that proves it. */
	uint8_t token[TN_LANE_TOKEN_BYTES];
	bool active;                 /* this side dials (exactly one side does) */
	bool bulk;                   /* one-sided transfers alone, no messages: another class of traffic */
	uint64_t connect_timeout_ns; /* 0 = 5 s; LANE_DOWN(TERN_E_DEADLINE) after it */
} tn_lane_params;

/* How much somebody wants a provider; NAMED: as AUTO, but a part of it was named, so doing without is worth a
   warning. */
typedef enum tn_want { TN_WANT_AUTO, TN_WANT_NAMED, TN_WANT_OFF, TN_WANT_REQUIRED } tn_want;

/* Static description of a provider; the registry lists them by name. */
typedef struct tn_provider {
	const char *name;
	/* Is it usable here? reason (may be NULL) gets one line either way. May take milliseconds. */
	tern_status (*probe)(char *reason, size_t reason_bytes);
	/* Open a device. May block briefly. On error *dev is NULL and the detail text says why. */
	tern_status (*open)(const tn_dev_params *params, tn_dev **dev);
	/* What its options say. NULL: TN_WANT_AUTO. */
	tn_want (*want)(const struct tn_options *options);
	/* Is there something here that probe should have found usable? Then going on without it is worth a
	   warning. May take milliseconds. NULL: no. */
	bool (*present)(void);
	/* Facts for tern_provider_describe; NULL = nothing beyond the probe's reason. May take milliseconds. */
	tern_status (*describe)(tern_fact_fn fn, void *arg);
} tn_provider;

typedef struct tn_dev_ops {
	/* ---- device ---- */
	void (*caps)(tn_dev *dev, tn_dev_caps *caps);
	/* This device's address for peers (also says host/boot/namespace facts that `reach` needs). */
	void (*address)(tn_dev *dev, tn_blob *blob);
	/* Could this device reach the one with that address? Cheap, does not connect; reason in the detail
	   text when not. The real proof is the lane's connect (shm: probe copy). */
	tern_status (*reach)(tn_dev *dev, const tn_blob *peer);
	/* Up to max events. Returns the number; 0 = nothing now. Never blocks. */
	int (*poll)(tn_dev *dev, tn_event *events, int max);
	/*
	 * As poll, of one short message alone: its bytes, copied to room (TN_TAKE_BYTES), and its lane; it holds no receive
	 * buffer. 0: there is nothing. Below 0: poll may have something.
	 */
	int (*take)(tn_dev *dev, void *room, tn_lane **lane);
	/* TERN_OK: fd becomes readable at the next event, or when a post that got TERN_AGAIN may be tried again.
	   TERN_BUSY: poll again. Spurious wake-ups are fine. */
	tern_status (*arm)(tn_dev *dev);
	int (*fd)(tn_dev *dev);
	/* Give a receive buffer (RECV or IMM event) back, in any order. After it the credit may be returned. */
	void (*recv_done)(tn_dev *dev, const tn_event *event);
	/* Closes all lanes; their wrs are completed by nobody any more: call only after lane_close of each and
	   polling until lane_drained. Frees dev. May block up to some milliseconds. */
	void (*close)(tn_dev *dev);

	/* ---- lanes ---- */
	/* Make a lane in state INIT; *addr is sent to the peer, who gives it to its lane_connect. */
	tern_status (*lane_create)(tn_dev *dev, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
	/* Start connecting to the peer's device and lane. LANE_UP or LANE_DOWN follows. The passive side calls
	   it too. On error nothing follows and the lane is only good for lane_close. May block for the kernel's
	   look at the neighbour's address (verbs over RoCE: up to a second if it doesn't answer). */
	tern_status (*lane_connect)(tn_lane *lane, const tn_blob *peer_dev, const tn_blob *peer_lane);
	/* Break the lane on purpose (tests, recovery): as if the path died. LANE_DOWN(TERN_E_LANE) follows. */
	void (*lane_break)(tn_lane *lane);
	/* Stop the lane: no new posts. All accepted wrs complete (TERN_E_FLUSHED if unfinished) in later polls.
	   No LANE_DOWN follows. The peer sees LANE_DOWN(TERN_E_LANE) at some time. */
	void (*lane_close)(tn_lane *lane);
	/* After lane_close or LANE_DOWN: true once every completion was delivered by poll and neither side of
	   this host's device can touch buffers of the lane any more. Bounded time. */
	bool (*lane_drained)(tn_lane *lane);
	/* Free a drained lane. */
	void (*lane_destroy)(tn_lane *lane);

	/* ---- work requests: never block, allocate nothing; see rules 1, 3, 5 ---- */
	tern_status (*write)(tn_lane *lane, tn_wr *wr);
	tern_status (*write_imm)(tn_lane *lane, tn_wr *wr);
	tern_status (*read)(tn_lane *lane, tn_wr *wr);
	/*
	 * A write of `bytes` from local, or a read to it, that is over at every level when this returns: no wr, no
	 * status, no event. False: nothing happened, and write or read do it or say why not (a key that was not used
	 * lately, a device that doesn't copy, ...). Checks the key as they do.
	 */
	bool (*access)(tn_lane *lane, const tern_key *key, uint64_t offset, void *local, uint64_t bytes,
		       bool read);
	/* One message of iov[0..n), n <= TN_IOV_MAX. Copied at post when inline or when the provider always
	   copies (then *done = true), else buffers stay in use until TN_EV_DONE. Receivers get whole messages.
	   needs a credit: the caller (link) sends only what the peer granted; a lane whose ring is full all the
	   same gives TERN_AGAIN. */
	tern_status (*send)(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done);
	/* Push out what `more` held back. */
	void (*flush)(tn_lane *lane);
	/*
	 * Where the initiator copies (caps.copies): a write or read whose copying needs not be serialised with
	 * posts. copy_begin checks as write or read do, with their statuses; TERN_OK: then copy, beside posts and
	 * poll, then copy_end, which makes it complete at every level. begin and end are serialised with posts, and
	 * no second begin comes before the end. The lane is not drained in between.
	 */
	tern_status (*copy_begin)(tn_lane *lane, const tn_wr *wr, bool read, tn_copy *copy);
	void (*copy)(tn_lane *lane, const tn_copy *copy);
	void (*copy_end)(tn_lane *lane, const tn_copy *copy);

	/* ---- counters ---- */
	/* Calls fn for each counter of the device with its full name, "shm.copy_bytes". */
	void (*counters)(tn_dev *dev, tern_counter_fn fn, void *arg);
} tn_dev_ops;

/*
 * Counters that every provider has (prefix = its name): tx_bytes, rx_bytes, writes, write_imms, reads,
 * sends, recvs, copy_bytes and copies (payload memcpys of this side: one-sided data only), again, lanes.
 */

struct tn_dev {
	const tn_dev_ops *ops;
	const tn_provider *provider;
	tern_mem *mem;
	uint64_t placed; /* changes when poll received payload of a write: no event says so. Poll's thread */
	bool keen;       /* hint, written before arm: who sleeps polls for a while after a wake-up */
};

struct tn_lane {
	tn_dev *dev;
	void *arg;
	bool more; /* hint, written by who posts: further posts follow, a doorbell may wait for flush */
};

/* All providers that this build knows, in order of preference; NULL-terminated. registry.c */
const tn_provider *const *tn_providers(void);
/* By name; NULL if there is none. */
const tn_provider *tn_provider_find(const char *name);
/* Ops whose every entry answers TERN_E_UNSUPPORTED or does nothing: providers start from a copy of it. */
extern const tn_dev_ops tn_dummy_ops;
/* For devices without caps.copies. */
int tn_dummy_take(tn_dev *dev, void *room, tn_lane **lane);
bool tn_dummy_access(tn_lane *lane, const tern_key *key, uint64_t offset, void *local, uint64_t bytes,
		     bool read);
tern_status tn_dummy_copy_begin(tn_lane *lane, const tn_wr *wr, bool read, tn_copy *copy);
void tn_dummy_copy(tn_lane *lane, const tn_copy *copy);

/* Thin calls, so that users read dev->ops->... nowhere. */
static inline int tn_dev_poll(tn_dev *dev, tn_event *events, int max)
{
	return dev->ops->poll(dev, events, max);
}

static inline tern_status tn_lane_write(tn_lane *lane, tn_wr *wr)
{
	return lane->dev->ops->write(lane, wr);
}

static inline tern_status tn_lane_write_imm(tn_lane *lane, tn_wr *wr)
{
	return lane->dev->ops->write_imm(lane, wr);
}

static inline tern_status tn_lane_read(tn_lane *lane, tn_wr *wr)
{
	return lane->dev->ops->read(lane, wr);
}

static inline bool tn_lane_access(tn_lane *lane, const tern_key *key, uint64_t offset, void *local,
				  uint64_t bytes, bool read)
{
	return lane->dev->ops->access(lane, key, offset, local, bytes, read);
}

static inline tern_status tn_lane_send(tn_lane *lane, const tn_iov *iov, int n, uint64_t cookie, bool *done)
{
	return lane->dev->ops->send(lane, iov, n, cookie, done);
}

#endif

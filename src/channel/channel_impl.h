/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a channel.
 *
 *   busy     the driver is in a callback of the channel or copies into a buffer of it without the lock
 *   inbox    whole messages that wait for tern_recv (channels without on_message), oldest first
 *   recvs    posted tern_recv operations, oldest first
 *   partial  the message that is being received in fragments: into `buf` (on_message), an operation's
 *            buffer (rx_op) or an inbox message of its own (rx_msg)
 *
 *   inbox not empty => recvs empty
 *   refs = 1 for the user's handle + 1 while busy + 1 per queued errand
 *
 * All under link->lock. Tests: tests/unit/channel/test_messages.c.
 */
#ifndef TN_CHANNEL_CHANNEL_IMPL_H
#define TN_CHANNEL_CHANNEL_IMPL_H

#include "channel/shell.h"

typedef struct tn_inbox_msg {
	tn_list node;
	uint64_t bytes;
	uint8_t data[];
} tn_inbox_msg;

struct tern_channel {
	/* ---- what every operation and message looks at: one line ---- */
	tern_link *link;
	uint64_t
		clear_at; /* link->lock.entries when nothing stood in the way of an access by copy (submit.c); 0 = never */
	uint32_t handle;
	uint32_t refs;
	bool closed;             /* by this side: no callbacks */
	bool ended;              /* the machine said CHANNEL_CLOSED, or a message could not be kept */
	bool unaccepted : 1;     /* in on_open */
	bool machine_closed : 1; /* tn_link_channel_close was called */
	bool paused : 1;
	bool recv_timer_used : 1;
	bool skipping : 1;           /* fragments of a message that could not be kept */
	_Atomic uint32_t sent_bytes; /* longest message that was accepted: what is no longer may be queued */
	_Atomic uint32_t busy;       /* futex: 1, 2 = and somebody waits */
	tern_status status;
	tern_message_fn on_message;
	void *arg;
	uint64_t message_bytes_max;
	/* ---- the rest ---- */
	const void *busy_thread;
	tn_list node; /* link->channels */
	tern_notify_fn on_notify;
	tern_channel_fn on_closed;
	uint64_t detail; /* of status */
	/* receiving */
	tn_list recvs;
	tn_list inbox;
	uint64_t inbox_bytes;
	tn_ctx_timer recv_timer;
	uint64_t recv_timer_at;
	uint64_t partial_total, partial_got;
	uint8_t *buf;
	uint64_t buf_bytes;
	tern_op *rx_op;
	tn_inbox_msg *rx_msg;
};
_Static_assert(offsetof(struct tern_channel, busy_thread) == TN_CACHE_LINE, "one line");
_Static_assert(sizeof(struct tern_channel) <= 256,
	       "with its row in the machine an idle channel stays under 1 KiB");

/* Lock held: the status that a submission ends with, TERN_OK if it may go. */
tern_status tn_channel_usable(tern_channel *channel);

/* What a tern_recv keeps in op->priv (and a submitted op: only detail and handle). */
typedef struct tn_op_priv {
	tn_work work;
	tern_ctx *ctx;   /* while work is queued */
	uint64_t detail; /* tn_details_put */
	uint64_t handle; /* the machine's op */
	tn_list node;    /* recv: channel->recvs */
	void *buf;
	uint64_t capacity;
	uint64_t deadline_ns;
} __attribute__((may_alias)) tn_op_priv;
_Static_assert(sizeof(tn_op_priv) <= sizeof(((tern_op *)0)->priv), "an operation holds its own bookkeeping");

static inline tn_op_priv *tn_op_priv_of(tern_op *op)
{
	return (void *)op->priv;
}

/* Lock held; unlocks around callbacks. Driver only. */
void tn_channel_deliver(tern_link *link, const tn_link_rx *rx);
/* A whole message: the same, in line. False: the channel may have been closed at it, so that the machine is to be run. */
bool tn_channel_message(tern_link *link, const tn_link_rx *rx);
/* The same for a notification alone. */
void tn_channel_notified(tern_link *link, const tn_link_rx *rx);
/* Driver, lock held; unlocks around callbacks. */
void tn_channel_incoming(tern_link *link, const tn_link_action *act, const char *service, uint64_t now_ns);
void tn_channel_ended(tern_link *link, const tn_link_action *act, const char *detail);
/* Driver, lock held; unlocks around on_closed: the channel ended by itself. */
void tn_channel_end(tern_channel *channel, tern_status status, const char *detail);
void tn_channel_recv_timer(tn_ctx_timer *timer);
/* Lock held. TERN_E_NOT_FOUND if it is no receive of the channel. */
tern_status tn_channel_cancel_recv(tern_channel *channel, tern_op *op);
/* Lock held: drop a reference; frees with the last. */
void tn_channel_unref(tern_channel *channel);
/* Lock held: mark busy; the lock is dropped by begin and held again after end. */
void tn_channel_busy_begin(tern_channel *channel);
void tn_channel_busy_end(tern_channel *channel);
/* Lock held: end posted receives and forget what was received. */
void tn_channel_stop_recv(tern_channel *channel, tern_status status, uint64_t detail);

#endif

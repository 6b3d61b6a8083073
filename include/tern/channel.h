/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links and channels. A link joins two contexts (nodes); it owns a few lanes (queue pairs, ring pairs or
 * TCP connections) that all its channels share. A channel is a logical ordered stream: messages arrive
 * whole, in order, once. One-sided puts and gets move bytes straight between registered memory of the
 * two nodes.
 *
 * Thread rules: any function from any thread unless it says otherwise; callbacks run from dispatch, one
 * at a time per channel, under no lock, and may call anything here except what blocks.
 *
 * Failure: when the peer dies or the path breaks for good, every operation in flight completes with the
 * reason (TERN_E_PEER_LOST, ...), then the link's on_down callback runs once. The bound for noticing a
 * silent peer is link.keepalive x link.keepalive_misses (see `tern info --config`); a peer whose process
 * ended is noticed at once.
 */
#ifndef TERN_CHANNEL_H
#define TERN_CHANNEL_H

#include <tern/ctx.h>
#include <tern/mem.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- links ---- */

typedef enum tern_link_state {
	TERN_LINK_CONNECTING,
	TERN_LINK_UP,
	TERN_LINK_CLOSING,
	TERN_LINK_DOWN,
} tern_link_state;

/* status: why it went down; detail: text for people, valid during the call. */
typedef void (*tern_link_fn)(tern_link *link, tern_status status, const char *detail, void *arg);

typedef struct tern_connect_params {
	uint64_t timeout_ns;    /* for all of connect and hello; 0 = option link.connect_timeout */
	const char *transports; /* like the context's, for this link; NULL = the context's */
	/* 1: a refused connection, or a host that can't be reached, is tried again until the timeout (the peer may
	   start later, its network come back) */
	int retry;
	tern_link_fn on_down; /* once, when the link is down, for whatever reason but close; may be NULL */
	void *arg;
	void (*on_up)(tern_link *link, void *arg); /* once, from dispatch, when the link is UP; may be NULL */
} tern_connect_params;

/*
 * Start connecting to "host:port". Returns at once with a link in state CONNECTING whose handle the
 * caller owns (tern_link_release). Operations may be submitted only when it is UP: tern_link_wait.
 */
tern_status tern_link_connect(tern_ctx *ctx, const char *address, const tern_connect_params *params,
			      tern_link **link);
/* Wait until UP. Drives progress. TERN_E_REFUSED, _UNREACHABLE, _VERSION, _AUTH, _COOKIE, _DEADLINE. */
tern_status tern_link_wait(tern_link *link, uint64_t timeout_ns);
/*
 * Called for every incoming link once it is UP, from dispatch, before anything else of that link. The
 * handle belongs to the callback's owner (tern_link_release when done). on_down runs later with the same
 * arg. Links that came up earlier and are still up are reported at once, from the next dispatch. When it
 * returns the old on_up does not run any more (unless the call came from it): its arg may be freed.
 */
void tern_ctx_on_link(tern_ctx *ctx, void (*on_up)(tern_link *link, void *arg), tern_link_fn on_down,
		      void *arg);

/* Where it is in its life, now. */
tern_link_state tern_link_get_state(const tern_link *link);
/* Why it is down (TERN_OK while it is not). */
tern_status tern_link_status(const tern_link *link);
/* The peer's context name and address, the transport that carries the link now, and why it came up with its first
   one. After a fall-back it is another until the better one works again (link.probe): the log says so, and the
   counters link.recoveries, link.fallbacks and link.returns how often. */
const char *tern_link_peer_name(const tern_link *link);
const char *tern_link_peer_address(const tern_link *link);
const char *tern_link_transport(const tern_link *link);
const char *tern_link_transport_reason(const tern_link *link);
tern_ctx *tern_link_ctx(const tern_link *link);

/* Orderly close: tell the peer, complete everything (TERN_E_FLUSHED). Does not block; idempotent. */
void tern_link_close(tern_link *link);
/* Drop the handle. The link closes if it is up. */
void tern_link_release(tern_link *link);

/*
 * What links there are, for monitors: fn runs for each in the calling thread, without locks; strings live during the call.
 * Numbers count from the link's beginning. TERN_LINKS_DUMP: also its whole state as text (lanes, credits, windows, operations),
 * made to be pasted into a report; else dump is "".
 */
typedef struct tern_link_info {
	const char *peer_name, *peer_address, *transport;
	tern_link_state state;
	uint32_t channels, lanes;
	uint64_t in_flight; /* bytes of bulk */
	uint64_t operations, operations_failed;
	uint64_t messages_sent, messages_received;
	uint64_t credit_waits,
		window_waits; /* how often something had to wait for the receiver, or the window */
	uint64_t recoveries, fallbacks, returns;
	const char *dump;
} tern_link_info;
typedef void (*tern_link_info_fn)(const tern_link_info *info, void *arg);
#define TERN_LINKS_DUMP 1u
void tern_ctx_links(tern_ctx *ctx, uint32_t flags, tern_link_info_fn fn, void *arg);

/* ---- channels ---- */

/*
 * One whole message. msg is valid during the call only: it lies in the receive buffer of the transport
 * or in a reassembly buffer of the channel.
 */
typedef void (*tern_message_fn)(tern_channel *channel, const void *msg, uint64_t bytes, void *arg);
/* A put with notification arrived: its data is visible. value: TERN_NOTIFY_BITS bits of the sender. */
typedef void (*tern_notify_fn)(tern_channel *channel, uint32_t value, uint64_t bytes, void *arg);
/* The channel ended (peer closed it: TERN_E_PEER_CLOSED; link down: its status). Once, the last callback;
   the handle stays valid until tern_channel_close. */
typedef void (*tern_channel_fn)(tern_channel *channel, tern_status status, void *arg);

#define TERN_NOTIFY_BITS 24

typedef struct tern_channel_params {
	tern_message_fn on_message; /* NULL: messages wait for tern_recv */
	tern_notify_fn on_notify;   /* NULL: notifications are dropped with a counter */
	tern_channel_fn on_closed;
	void *arg;
	uint64_t message_bytes_max; /* longest message to receive; 0 = option channel.message_max */
} tern_channel_params;

/*
 * Open a channel to a named service of the peer. Returns at once; messages may be sent immediately (they
 * wait for the peer's answer). TERN_E_NOT_FOUND ends the channel later if the peer has no such service.
 */
tern_status tern_channel_open(tern_link *link, const char *service, const tern_channel_params *params,
			      tern_channel **channel);
/*
 * Accept channels for a service, on all links of ctx. on_open fills *params for the new channel (its
 * messages follow after the call); returning an error refuses it. One owner per name: TERN_E_EXISTS.
 */
tern_status tern_ctx_listen(tern_ctx *ctx, const char *service,
			    tern_status (*on_open)(tern_channel *channel, tern_channel_params *params,
						   void *arg),
			    void *arg);
tern_link *tern_channel_link(const tern_channel *channel);
/* Replace the arg of all callbacks; from on_open or before the first callback. */
void tern_channel_set_arg(tern_channel *channel, void *arg);
/*
 * Close: operations end in TERN_E_FLUSHED (from dispatch, soon), the peer's on_closed runs, on_closed of
 * this side does not. When it returns no callback of the channel runs or will run, unless it was called
 * from one: so hold no lock that a callback takes. The handle is invalid afterwards.
 */
void tern_channel_close(tern_channel *channel);

/*
 * Send one message. LOCAL: buf may be reused. REMOTE (TERN_OP_REMOTE): the peer's channel has it, in
 * order. bytes 0 is a message. Not accepted: TERN_AGAIN (no window, no credit or no slot: the channel's
 * next dispatch may free one), TERN_E_TOO_LARGE, TERN_E_STATE, the link's status.
 */
tern_status tern_send(tern_channel *channel, const void *buf, uint64_t bytes, tern_op *op);
/* The same from several pieces (count at most 3), gathered without a copy of their own. */
typedef struct tern_iovec {
	const void *base;
	uint64_t bytes;
} tern_iovec;
tern_status tern_sendv(tern_channel *channel, const tern_iovec *iov, int count, tern_op *op);
/* Receive the next message into buf (channels without on_message). op->length: its length.
   TERN_E_TRUNCATED: longer than capacity; the rest is lost. */
tern_status tern_recv(tern_channel *channel, void *buf, uint64_t capacity, tern_op *op);

/*
 * Put [src, src + bytes) to key's range at offset. Completion is REMOTE (placed and visible at the
 * target) unless TERN_OP_LOCAL is set. src should lie in registered memory (tern_mem_alloc): anything else
 * is staged where the device needs registration, and counted. Errors of the key: TERN_E_ACCESS, _BOUNDS,
 * _STALE_KEY.
 */
tern_status tern_put(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
		     uint64_t offset, tern_op *op);
/* The same, then the peer's on_notify(value) runs with the data visible. value < 2^TERN_NOTIFY_BITS. */
tern_status tern_put_notify(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
			    uint64_t offset, uint32_t value, tern_op *op);
/*
 * Put, then write the 64-bit word `flag` (release order, after the data) to flag_key at flag_offset
 * (8-byte aligned): for receivers that poll memory. TERN_E_UNSUPPORTED where the device promises no
 * write-after-write placement. bytes may be 0: then only the word is written.
 */
tern_status tern_put_flag(tern_channel *channel, const void *src, uint64_t bytes, const tern_key *key,
			  uint64_t offset, uint64_t flag, const tern_key *flag_key, uint64_t flag_offset,
			  tern_op *op);
/* Get [offset, offset + bytes) of key's range into dst. */
tern_status tern_get(tern_channel *channel, void *dst, uint64_t bytes, const tern_key *key, uint64_t offset,
		     tern_op *op);
/*
 * Ask for the end of an operation: it completes soon, with TERN_E_CANCELED if it had not finished.
 * TERN_E_NOT_FOUND if it is not in flight. Its buffers stay in use until the completion.
 */
tern_status tern_cancel(tern_channel *channel, tern_op *op);

/* What the data lanes of a link can do. */
#define TERN_LINK_CAN_FLAG    1u /* tern_put_flag works */
#define TERN_LINK_CAN_PASSIVE 2u /* one-sided access needs no progress at the target */
uint32_t tern_link_caps(const tern_link *link);

#ifdef __cplusplus
}
#endif

#endif

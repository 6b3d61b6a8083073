/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire format of the link, version 1. Two kinds of bytes:
 *
 *   control messages on the control connection (a stream):  u32 payload bytes | u16 type | u16 zero | payload
 *   frames, each one SEND on a lane:                         16-byte head | body of the type | payload
 *
 * Little endian throughout; layouts are pinned by the compiler below and by tests/golden/link_*.hex. Parsers
 * are bounded, trust nothing and give NULL or one line that says what is wrong.
 *
 * Must not: know any state. Threads: pure. Tests: tests/unit/link/wire_test.c, fuzz/link_frame.c.
 */
#ifndef TN_LINK_WIRE_H
#define TN_LINK_WIRE_H

#include <stddef.h>

#include "base/wirebuf.h"
#include "link/link.h"

/* What can be said otherwise from outside is, by builds that play other versions (tests/mixed) alone. */
#ifndef TN_WIRE_VERSION
#define TN_WIRE_VERSION     1
#define TN_WIRE_VERSION_MIN 1
#endif
#define TN_WIRE_MAGIC      0x4e524554u /* "TERN" */
#define TN_FEATURE_RESUME  1ull        /* lanes that broke are rebuilt: UNWIRE of wired lanes, RESUME */
#define TN_FEATURE_ROTATE  2ull        /* the dialer's AUTH may hold a MAC for each of two secrets */
#define TN_FEATURE_MOVE    4ull        /* a second set of lanes beside those in use: READY, MOVE */
#define TN_FEATURE_SUMS    8ull        /* DATA and FRAG carry a checksum; offered where it is wanted */
#define TN_FEATURE_GRANTS  16ull       /* GRANT and DEMAND, where a provider's capabilities say GRANTS */
#define TN_FEATURE_REJOIN  32ull       /* the control connection may come back: REJOIN, REJOINED */
#define TN_FEATURE_SLOTS   64ull       /* SLOTS and RELINQUISHED */
#define TN_FEATURE_LANES   128ull      /* idle data lanes are given up, and made again: WIDEN; with MOVE */
#define TN_FEATURE_NUMBERS 256ull      /* units of a lane are numbered: heads, immediates, SENT */
#define TN_FEATURE_NARROW  512ull /* data lanes are given up for those of others: NARROW, KEEP; with LANES */
#ifndef TN_WIRE_FEATURES_MORE
#define TN_WIRE_FEATURES_MORE 0ull /* bits of a later version */
#endif
/* Bits that this build knows; used if both have them. */
#ifndef TN_WIRE_FEATURES
#define TN_WIRE_FEATURES                                                                                    \
	(TN_FEATURE_RESUME | TN_FEATURE_ROTATE | TN_FEATURE_MOVE | TN_FEATURE_SUMS | TN_FEATURE_GRANTS |    \
	 TN_FEATURE_REJOIN | TN_FEATURE_SLOTS | TN_FEATURE_LANES | TN_FEATURE_NUMBERS | TN_FEATURE_NARROW | \
	 TN_WIRE_FEATURES_MORE)
#endif
#ifndef TN_WIRE_HELLO_MORE
#define TN_WIRE_HELLO_MORE 0 /* bytes that a later version appends to a HELLO */
#endif

#define TN_SECRETS_MAX 2u

/* ---- control messages ---- */

#define TN_CTRL_HEAD_BYTES  8
#define TN_CTRL_BYTES_MAX   4096 /* payload: SETUP with 8 providers fits */
#define TN_CTRL_HELLO_BYTES 512  /* payload of a HELLO at most, whoever sends it */

typedef enum tn_ctrl_type {
	TN_CTRL_HELLO = 1,
	TN_CTRL_AUTH = 2,
	TN_CTRL_SETUP = 3,
	TN_CTRL_WIRE = 4,      /* dialer: lanes of this epoch are to be built on this provider */
	TN_CTRL_LANE_ADDR = 5, /* address of a lane and the credits that it grants first */
	TN_CTRL_WIRED = 6,     /* all lanes of the epoch are connected here */
	TN_CTRL_UNWIRE = 7,    /* the epoch's lanes could not be connected here */
	TN_CTRL_PING = 8,
	TN_CTRL_PONG = 9,
	TN_CTRL_REFUSE = 10, /* the sender ends the link: status and words */
	TN_CTRL_CLOSED = 11, /* everything that the peer sent in this epoch has arrived */
	TN_CTRL_RESUME = 12, /* the epoch's lanes are drained here: what each has received */
	TN_CTRL_READY = 13,  /* the lanes of that epoch, beside those in use, are connected here */
	TN_CTRL_MOVE = 14,   /* let us go over to them: nothing new starts here */
	TN_CTRL_REJOIN = 15, /* first message on another control connection of a session */
	TN_CTRL_REJOINED = 16,
	TN_CTRL_WIDEN = 17, /* acceptor: data lanes that were given up are wanted again */
	TN_CTRL_SENT = 18,  /* units sent on each lane: the last ones may not have come (numbers.c) */
	TN_CTRL_NARROW =
		19, /* data lanes that have rested are to be given up; dialer: WIRE of one lane follows */
	TN_CTRL_KEEP = 20, /* dialer: they stay */
	TN_CTRL_TYPES,
} tn_ctrl_type;

/* The first 8 bytes are the same in all versions, so that any version can be refused in words. */
typedef struct tn_wire_hello {
	uint16_t version, version_min;
	uint64_t features;
	uint32_t flags;  /* TN_HELLO_* */
	uint8_t job[16]; /* first half of SHA-256 of the job cookie */
	uint8_t node[TN_LINK_ID_BYTES];
	uint8_t incarnation[TN_LINK_ID_BYTES];
	uint8_t nonce[TN_LINK_NONCE_BYTES];
	char name[TN_NAME_MAX];
} tn_wire_hello;
#define TN_HELLO_SECRET 1u /* a shared secret is set */

typedef struct tn_wire_provider {
	char name[TN_LINK_PROVIDER_NAME];
	uint32_t caps;
	uint64_t write_bytes_max;
	uint64_t send_bytes_max;
	uint16_t address_bytes;
	uint8_t address[TN_LINK_BLOB_MAX];
} tn_wire_provider;

typedef struct tn_wire_setup {
	uint32_t channels_max;
	uint32_t provider_count;
	tn_wire_provider providers[TN_LINK_PROVIDERS_MAX];
} tn_wire_setup;

typedef struct tn_wire_wire {
	uint32_t epoch;
	uint32_t lanes;
	char provider[TN_LINK_PROVIDER_NAME];
} tn_wire_wire;

typedef struct tn_wire_lane_addr {
	uint32_t epoch;
	uint32_t lane;
	uint32_t grant;
	uint16_t address_bytes;
	uint8_t address[TN_LINK_BLOB_MAX];
} tn_wire_lane_addr;

/* RESUME, SENT */
typedef struct tn_wire_resume {
	uint32_t epoch, lanes;
	uint32_t
		received[TN_LINK_LANES_MAX]; /* frames and immediates in all, modulo 2^32; SENT: units sent */
} tn_wire_resume;

/* REJOIN and REJOINED. received: bytes of the control stream */
typedef struct tn_wire_rejoin {
	uint8_t session[TN_LINK_ID_BYTES];
	uint32_t number;
	uint64_t received;
	uint8_t mac[32];
} tn_wire_rejoin;
#define TN_CTRL_REJOIN_BYTES (TN_LINK_ID_BYTES + 12 + 32)

/* UNWIRE; REFUSE has no epoch (0). */
typedef struct tn_wire_end {
	uint32_t epoch;
	tern_status status;
	char text[TN_LINK_TEXT_MAX];
} tn_wire_end;

/* Encoders write a whole message with its head; w->bad if it does not fit. */
void tn_wire_put_hello(tn_writer *w, const tn_wire_hello *hello);
void tn_wire_put_auth(tn_writer *w, const uint8_t (*macs)[32], uint32_t count);
/* hidden: bits of caps that are not told. */
void tn_wire_put_setup(tn_writer *w, uint32_t channels_max, const tn_link_provider *providers, uint32_t count,
		       uint32_t hidden);
void tn_wire_put_wire(tn_writer *w, uint32_t epoch, const char *provider, uint32_t lanes);
void tn_wire_put_lane_addr(tn_writer *w, uint32_t epoch, uint32_t lane, uint32_t grant,
			   const uint8_t *address, uint16_t address_bytes);
void tn_wire_put_epoch(tn_writer *w, tn_ctrl_type type, uint32_t epoch); /* WIRED, CLOSED, READY, MOVE */
void tn_wire_put_unwire(tn_writer *w, uint32_t epoch, tern_status status, const char *text);
void tn_wire_put_refuse(tn_writer *w, tern_status status, const char *text);
void tn_wire_put_resume(tn_writer *w, tn_ctrl_type type, const tn_wire_resume *resume);
void tn_wire_put_rejoin(tn_writer *w, tn_ctrl_type type, const tn_wire_rejoin *rejoin);
void tn_wire_put_ping(tn_writer *w, tn_ctrl_type type, uint64_t number);

/* The head: NULL or what is wrong. first: the stream's first message, which must be a HELLO. */
const char *tn_wire_ctrl_head(const uint8_t head[TN_CTRL_HEAD_BYTES], bool first, tn_ctrl_type *type,
			      uint32_t *bytes);
/* Payloads. */
const char *tn_wire_get_hello(const uint8_t *payload, uint64_t bytes, tn_wire_hello *hello);
const char *tn_wire_get_setup(const uint8_t *payload, uint64_t bytes, tn_wire_setup *setup);
const char *tn_wire_get_wire(const uint8_t *payload, uint64_t bytes, tn_wire_wire *wire);
const char *tn_wire_get_lane_addr(const uint8_t *payload, uint64_t bytes, tn_wire_lane_addr *addr);
const char *tn_wire_get_end(const uint8_t *payload, uint64_t bytes, bool with_epoch, tn_wire_end *end);
const char *tn_wire_get_epoch(const uint8_t *payload, uint64_t bytes, uint32_t *epoch);
const char *tn_wire_get_resume(const uint8_t *payload, uint64_t bytes, tn_wire_resume *resume);
const char *tn_wire_get_rejoin(const uint8_t *payload, uint64_t bytes, tn_wire_rejoin *rejoin);
const char *tn_wire_get_ping(const uint8_t *payload, uint64_t bytes, uint64_t *number);

/* ---- frames ---- */

typedef enum tn_frame_type {
	TN_FRAME_DATA = 1,  /* a whole message */
	TN_FRAME_FRAG = 2,  /* a fragment of one */
	TN_FRAME_ABORT = 3, /* the message with this seq is void */
	TN_FRAME_OPEN = 4,  /* payload: the service's name */
	TN_FRAME_OPEN_OK = 5,
	TN_FRAME_OPEN_FAIL = 6, /* payload: words */
	TN_FRAME_CLOSE = 7,
	TN_FRAME_WINDOW = 8,
	TN_FRAME_NOTIFY = 9, /* a put with notification ended; the only frame on lanes but 0, with SYNC */
	TN_FRAME_CREDIT = 10,
	TN_FRAME_SYNC = 11,   /* asks for an acknowledgement of this lane */
	TN_FRAME_BYE = 12,    /* the last frame: units sent on each lane */
	TN_FRAME_GRANT = 13,  /* bulk that the sender of this frame lets come */
	TN_FRAME_DEMAND = 14, /* bulk that the sender of this frame wants to send, and has sent */
	TN_FRAME_SLOTS = 15,  /* receive slots of lane 0: more of them, or fewer */
	TN_FRAME_RELINQUISHED = 16,
	TN_FRAME_TYPES,
} tn_frame_type;

/* Flags of a frame. */
#define TN_FRAME_ACK   1u /* the sender waits until `seen` covers this frame */
#define TN_FRAME_SHORT 2u /* the sender had to wait for credits of lane 0 (feature SLOTS) */

/*
 * Every frame begins with this. grant and seen speak of the lane that carries the frame: totals modulo 2^32
 * since the lane's start, of receive slots granted and of units (frames; immediates too where the device
 * does not complete at the remote level by itself) received.
 */
typedef struct tn_frame_head {
	uint8_t type;
	uint8_t flags;
	uint16_t number; /* with NUMBERS: of this unit on its lane, from 1 on, modulo 2^16; else 0 */
	uint32_t epoch;
	uint32_t grant;
	uint32_t seen;
} tn_frame_head;
_Static_assert(sizeof(tn_frame_head) == 16, "frame head");

/* Handles name the *receiver's* channel: generation << 16 | index. */
typedef struct tn_frame_data {
	tn_frame_head head;
	uint32_t channel;
	uint32_t
		sum; /* with SUMS, of DATA and FRAG: CRC-32C of the body, this word 0, and the payload; else 0 */
	uint64_t seq; /* number of the message in the channel */
} tn_frame_data;
_Static_assert(sizeof(tn_frame_data) == 32 && offsetof(tn_frame_data, seq) == 24, "DATA, ABORT");

typedef struct tn_frame_frag {
	tn_frame_data data;
	uint64_t offset;
	uint64_t total;
} tn_frame_frag;
_Static_assert(sizeof(tn_frame_frag) == 48 && offsetof(tn_frame_frag, total) == 40, "FRAG");

typedef struct tn_frame_open {
	tn_frame_head head;
	uint32_t channel; /* OPEN: the sender's own handle; OPEN_OK: the receiver's */
	uint32_t mine;    /* OPEN: zero; OPEN_OK: the sender's handle */
	uint64_t window;  /* bytes of messages that the sender of this frame takes first */
	uint64_t message_max;
} tn_frame_open;
_Static_assert(sizeof(tn_frame_open) == 40 && offsetof(tn_frame_open, window) == 24, "OPEN, OPEN_OK");

typedef struct tn_frame_fail {
	tn_frame_head head;
	uint32_t channel;
	int32_t status;
} tn_frame_fail;
_Static_assert(sizeof(tn_frame_fail) == 24, "OPEN_FAIL");

typedef struct tn_frame_close {
	tn_frame_head head;
	uint32_t channel;
	uint32_t zero;
	uint64_t messages; /* sent in all, aborted ones included */
	uint64_t notifies; /* sent in all, on whatever lane */
} tn_frame_close;
_Static_assert(sizeof(tn_frame_close) == 40, "CLOSE");

typedef struct tn_frame_window {
	tn_frame_head head;
	uint32_t channel;
	uint32_t zero;
	uint64_t total; /* bytes granted since the channel was opened, TN_FRAME_COST each counted in */
} tn_frame_window;
_Static_assert(sizeof(tn_frame_window) == 32, "WINDOW");

typedef struct tn_frame_notify {
	tn_frame_head head;
	uint32_t channel;
	uint32_t value;
	uint64_t bytes;
} tn_frame_notify;
_Static_assert(sizeof(tn_frame_notify) == 32, "NOTIFY");

typedef struct tn_frame_lane { /* row of CREDIT and BYE */
	uint32_t lane;
	uint32_t grant; /* BYE: units sent */
	uint32_t seen;  /* BYE: zero */
} tn_frame_lane;
_Static_assert(sizeof(tn_frame_lane) == 12, "row");

typedef struct tn_frame_lanes {
	tn_frame_head head;
	uint32_t count;
	uint32_t zero;
	tn_frame_lane rows[TN_LINK_LANES_MAX];
} tn_frame_lanes;
_Static_assert(sizeof(tn_frame_lanes) == 24 + 12 * TN_LINK_LANES_MAX, "CREDIT, BYE");
#define TN_FRAME_LANES_BYTES(count) (24u + 12u * (count))

typedef struct tn_frame_grant {
	tn_frame_head head;
	uint64_t share; /* bytes that may be in flight by themselves; UINT64_MAX = any */
	uint64_t total; /* bytes granted beyond that in all */
	uint32_t unit;  /* they come in pieces of this, or of what is left of a transfer */
	uint32_t zero;
} tn_frame_grant;
_Static_assert(sizeof(tn_frame_grant) == 40 && offsetof(tn_frame_grant, unit) == 32, "GRANT");

typedef struct tn_frame_demand {
	tn_frame_head head;
	uint64_t wanted; /* bytes beyond the share: wanted in all */
	uint64_t done;   /* of those granted: completed in all */
	uint64_t back;   /* of those granted: given back in all */
} tn_frame_demand;
_Static_assert(sizeof(tn_frame_demand) == 40, "DEMAND");

typedef struct tn_frame_slots {
	tn_frame_head head;
	uint32_t added; /* SLOTS: beyond the first grant, in all; RELINQUISHED: given back, in all */
	uint32_t asked; /* SLOTS: asked back, in all; RELINQUISHED: zero */
} tn_frame_slots;
_Static_assert(sizeof(tn_frame_slots) == 24, "SLOTS, RELINQUISHED");

#define TN_FRAME_BYTES_MAX sizeof(tn_frame_lanes) /* of a header */
/* What a fragment counts for beside its payload in a channel's window, so that empty messages are not free. */
#define TN_FRAME_COST 64u
/* A receiver must take frames of this size at least. */
#define TN_FRAME_ROOM_MIN 512u
/* The least window of a channel. */
#define TN_WINDOW_MIN 1024u

/* A parsed frame. */
typedef struct tn_frame {
	tn_frame_head head;
	uint32_t channel;
	union {
		struct {
			uint64_t seq, offset, total;
			uint32_t sum;
		} data; /* DATA, FRAG, ABORT (offset, total and sum 0) */
		struct {
			uint32_t mine;
			uint64_t window, message_max;
			char service[TN_NAME_MAX];
		} open;
		struct {
			tern_status status;
			char text[TN_NAME_MAX];
		} fail;
		struct {
			uint64_t messages, notifies;
		} close;
		uint64_t window;
		struct {
			uint32_t value;
			uint64_t bytes;
		} notify;
		struct {
			uint64_t share, total;
			uint32_t unit;
		} grant;
		struct {
			uint64_t wanted, done, back;
		} demand;
		struct {
			uint32_t added, asked;
		} slots;
		struct {
			uint32_t count;
			tn_frame_lane rows[TN_LINK_LANES_MAX];
		} lanes;
	};
	const uint8_t *payload;
	uint64_t payload_bytes;
} tn_frame;

/* NULL or what is wrong. */
const char *tn_frame_parse(const void *bytes, uint64_t n, tn_frame *frame);
const char *tn_frame_type_name(unsigned type);

/* A status from the wire: an error code that this build knows, else `other`. */
tern_status tn_wire_status(int32_t number, tern_status other);

/*
 * Immediates: TN_IMM_ACK if the sender waits for *seen*, index of the receiver's channel << TN_LINK_NOTIFY_BITS,
 * value. Channels above go by NOTIFY. Where immediates are units and NUMBERS is in force, the upper two bits of the
 * index are the unit's number, modulo 4, instead.
 */
#define TN_IMM_ACK               (1u << 31)
#define TN_IMM_CHANNELS          127u
#define TN_IMM_NUMBER_SHIFT      29
#define TN_IMM_NUMBER            (3u << TN_IMM_NUMBER_SHIFT)
#define TN_IMM_CHANNELS_NUMBERED 31u

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory provider, inside. Nouns:
 *
 *   device   one listener, one epoll set, one page with the sleep word; lanes, connections, peers
 *   lane     one segment with a ring in each direction, one connection, one wake-up descriptor each way
 *   conn     one Unix socket: the handshake, then requests for extents, and its hang-up is the peer's death
 *   peer     the device at the other end of one or more lanes: its key table, its extents as far as mapped
 *   map      one extent of a peer, mapped on demand
 *
 *            lane state (tn_shm_lane_set_state is the only writer)
 *
 *   INIT --lane_connect--> CONNECTING --handshake--> UP --hang-up, break, fault--> DYING --ring empty--> DOWN
 *     |                        |                     |                               |                   |
 *     |                        `---deadline, refused-|-------------------------------|--------> DOWN     |
 *     `------------------------------ lane_close ----+-------------------------------+-------------------+--> CLOSED
 *
 *   DYING delivers what the peer published before it went; LANE_DOWN comes after the last message.
 *
 * Invariants:
 *   peer.refs = lanes with lane.peer == peer;   a map of a peer lives until its last lane is destroyed
 *   lane.segment lives until lane_destroy: posts may run beside poll
 *   only the polling thread writes sockets, maps and states (but REFUSED -> NONE); a post leaves a note (want,
 *   fault) instead
 *
 * Threads: transport.h rule 5. Fields say who writes them where it is not the polling thread.
 * Tests: tests/unit/transport/test_shm*.c, tests/conformance.
 */
#ifndef TN_TRANSPORT_SHM_SHM_H
#define TN_TRANSPORT_SHM_SHM_H

#include <pthread.h>

#include "base/counters.h"
#include "base/list.h"
#include "base/options.h"
#include "transport/shm/copy.h"
#include "transport/shm/segment.h"
#include "transport/shm/sock.h"

#define TN_SHM_LANES_MAX   4096
#define TN_SHM_CONNS_MAX   128 /* inbound connections that have not proved themselves */
#define TN_SHM_KEY_CACHE   8   /* rows per lane, power of two */
#define TN_SHM_WHY_MAX     200
#define TN_SHM_CONNECT_NS  5000000000ull
#define TN_SHM_DRAIN_NS    2000000000ull /* a peer that stays in a copy for longer is not waited for */
#define TN_SHM_CHUNK_BYTES (2ull << 20)
#define TN_SHM_POLL_BUSY   256 /* polls with events between two looks at the sockets */

typedef struct tn_shm_dev tn_shm_dev;
typedef struct tn_shm_lane tn_shm_lane;
typedef struct tn_shm_conn tn_shm_conn;
typedef struct tn_shm_peer tn_shm_peer;

/* What an epoll entry points to. */
typedef enum tn_shm_source_kind {
	TN_SHM_ON_LISTENER,
	TN_SHM_ON_TIMER,
	TN_SHM_ON_SELF, /* own wake-up: a post left a note while the poller slept */
	TN_SHM_ON_WAKE, /* a lane's wake-up: the peer published while the poller slept */
	TN_SHM_ON_CONN,
	TN_SHM_ON_PIDFD,
} tn_shm_source_kind;

typedef struct tn_shm_source {
	tn_shm_source_kind kind;
	void *owner;
} tn_shm_source;

/* Counters of the contract, kept per lane with one writer each. The poster's, then the poller's. */
#define TN_SHM_COUNTERS(X) \
	X(tx_bytes)        \
	X(writes)          \
	X(write_imms)      \
	X(reads)           \
	X(sends)           \
	X(copies)          \
	X(copy_bytes)      \
	X(again)           \
	X(wakes)           \
	X(rx_bytes)        \
	X(recvs)           \
	X(lanes)           \
	X(extents_mapped)  \
	X(forced_drains)
TN_COUNTERS_STRUCT(tn_shm_counters, TN_SHM_COUNTERS)

/* ---- peers ---- */

typedef enum tn_shm_map_state {
	TN_SHM_MAP_NONE,
	TN_SHM_MAP_ASKED,
	TN_SHM_MAP_READY,
	TN_SHM_MAP_REFUSED, /* status says why; the post that is told makes it NONE */
} tn_shm_map_state;

/*
 * An extent's place is its index modulo TN_MEM_EXTENTS_MAX. The index in a place changes only when an extent
 * was given back, which the owner never does once a key to it was made: the first index stays.
 */
typedef struct tn_shm_map {
	_Atomic uint32_t state; /* stored after the other fields; read by posts */
	uint32_t index;
	uint32_t access; /* as mapped: a READ-only extent is mapped read-only */
	uint8_t *base;
	uint64_t bytes;
	uint64_t asked_by;      /* lane id */
	_Atomic int32_t status; /* of REFUSED */
	/* one bit per chunk whose pages were mapped at once, before a large copy would fault at each; by posts */
	_Atomic uint64_t populated[TN_MEM_EXTENT_BYTES_MAX / TN_SHM_CHUNK_BYTES / 64];
} tn_shm_map;

struct tn_shm_peer {
	tn_list node;
	tn_shm_dev *dev;
	uint32_t refs;
	uint64_t number; /* of all peers of the process */
	tn_shm_id id;
	pid_t pid;
	tn_shm_seg_id
		keys_id;   /* the kernel's word for which device this is: a peer can't claim another's id */
	tn_key_table keys; /* rows mapped read-only; fd is -1 */
	uint64_t keys_bytes;
	const tn_shm_page *page;
	uint64_t page_bytes;
	int pidfd; /* -1: the sockets alone tell */
	tn_shm_source source;
	_Atomic bool dead; /* written by the poller, read by guards */
	tn_shm_map maps[TN_MEM_EXTENTS_MAX];
};

/* ---- lanes ---- */

typedef enum tn_shm_lane_state {
	TN_SHM_LANE_INIT,
	TN_SHM_LANE_CONNECTING,
	TN_SHM_LANE_UP,
	TN_SHM_LANE_DYING,
	TN_SHM_LANE_DOWN,
	TN_SHM_LANE_CLOSED,
} tn_shm_lane_state;

/* A key that was checked, ready for the next access through it. */
typedef struct tn_shm_cached_key {
	uint32_t index;
	uint32_t generation; /* 0 = empty */
	uint32_t access;
	uint32_t node_tag;
	uint64_t length;
	uint8_t *base;
	const tn_key_row *row;
	tn_shm_map *map;
} tn_shm_cached_key;

struct tn_shm_lane {
	tn_lane base;
	/* read by posts */
	_Atomic uint32_t state;
	bool light; /* both sides have membarrier */
	tn_shm_peer *peer;
	tn_shm_ctl *ctl_out; /* of the ring that this side produces */
	tn_shm_ctl *ctl_in;
	int wake_fd; /* the peer's; -1 before the handshake */

	/* written by posts */
	_Alignas(64) _Atomic uint32_t accesses; /* ctl_out->access, where the peer can't write it */
	bool copying;                           /* between copy_begin and copy_end: serialised like posts */
	uint32_t unrung;                        /* put into the ring since the bell, while more comes */
	_Atomic uint32_t
		kicked; /* the peer's sleep word for which a wake-up was written; a copy writes it too */
	uint64_t run_end, run_bytes; /* of contiguous one-sided copies */
	tn_shm_tx tx;
	tn_shm_cached_key cache[TN_SHM_KEY_CACHE];
	tn_shm_counters post_counters;
	struct {
		tn_counter count, bytes;
	} accessed[2];         /* by tn_shm_access: writes, reads; beside post_counters */
	_Atomic uint64_t want; /* extent index + 1 to be asked for; cleared by the poller */
	_Atomic int32_t fault; /* a status for which the poller has to break the lane */

	/* the poller's */
	_Alignas(64) tn_shm_rx rx;
	tn_shm_counters poll_counters;
	uint64_t id;
	uint8_t token[TN_LANE_TOKEN_BYTES];
	bool active;
	bool up_pending;   /* LANE_UP to be delivered */
	bool down_pending; /* LANE_DOWN to be delivered */
	bool polled;       /* in dev->polled */
	tern_status why_status;
	char why[TN_SHM_WHY_MAX];
	uint64_t timeout_ns, deadline_ns;
	tn_shm_id peer_id;
	uint64_t peer_lane;
	tn_shm_conn *conn;
	void *segment;
	uint64_t segment_bytes;
	int own_wake_fd;
	tn_shm_source wake_source;
	/* the guard's; under dev.guard_lock */
	bool guarded;        /* the peer may access memory through this lane */
	uint32_t busy_word;  /* its access word in the latest access that a mark saw under way */
	uint64_t busy_since; /* the first mark that saw that access; 0 = none yet */
	/* draining */
	bool quiet;          /* the peer can't be in a one-sided access of this lane any more */
	uint32_t stopped_at; /* its access word after stop was set */
	uint64_t drain_deadline_ns;
};

/* ---- connections ---- */

typedef enum tn_shm_conn_state {
	TN_SHM_CONN_DIAL,       /* active: the backlog was full, dial again */
	TN_SHM_CONN_HELLO,      /* passive: waits for HELLO */
	TN_SHM_CONN_PARKED,     /* passive: waits for the lane's lane_connect */
	TN_SHM_CONN_CHALLENGED, /* passive: waits for PROOF */
	TN_SHM_CONN_GREETED,    /* active: waits for CHALLENGE */
	TN_SHM_CONN_PROVED,     /* active: waits for ACCEPT */
	TN_SHM_CONN_ACCEPTED,   /* passive: waits for CONFIRM */
	TN_SHM_CONN_READY,      /* the lane is UP */
	TN_SHM_CONN_CLOSED,
} tn_shm_conn_state;

struct tn_shm_conn {
	tn_list node;
	tn_shm_dev *dev;
	tn_shm_source source;
	tn_shm_conn_state state;
	int fd;
	pid_t pid;
	bool active;
	bool blocked;     /* a message waits in `out` for room in the socket */
	uint64_t lane_id; /* ours */
	uint64_t deadline_ns;
	tn_shm_hello hello; /* as sent or received */
	uint8_t nonce_p[TN_SHM_NONCE_BYTES];
	uint64_t probe; /* what the other side has to read from the segment */
	tn_shm_any out;
	int out_fd; /* -1, or the descriptor of `out` */
};

/* ---- the device ---- */

typedef struct tn_shm_config {
	uint32_t slots;
	uint32_t buf_bytes;
	uint32_t idle_polls; /* polls without events between two looks at the sockets; more while lively */
	uint64_t nt_bytes;
} tn_shm_config;

struct tn_shm_dev {
	tn_dev base;
	tn_shm_config config;
	tn_shm_copier copier;
	tn_shm_address address;
	const tn_key_table *keys;
	bool light;

	tn_shm_page *page;
	_Atomic uint32_t attention; /* a post left a note on some lane */
	bool armed;
	bool look;   /* look at the sockets in the next poll */
	bool lively; /* a short message came since the last look */
	bool retry; /* a post that was told TERN_AGAIN may be tried again, and poll has no event that says so */
	uint32_t sleeps;
	uint32_t idle, busy;
	uint32_t streak;   /* messages in a row that were there when take looked */
	uint32_t urgent;   /* handshakes and requests in progress: look at the sockets in each empty poll */
	uint32_t pending;  /* lanes with up_pending or down_pending */
	uint64_t timer_ns; /* what the timer is set to; TN_TIME_NEVER = off */

	tn_shm_lane **lanes; /* all */
	uint32_t lane_count, lane_cap;
	tn_shm_lane **polled; /* UP and DYING */
	uint32_t polled_count, polled_next;
	uint64_t lane_ids;
	tn_list conns, closed_conns, peers;
	/* Writers of `lanes`, `zombies`, `gone` and of what guard.c reads hold it; the poller reads without. */
	pthread_mutex_t guard_lock;
	uint64_t marks;
	tn_shm_lane **zombies; /* destroyed lanes whose peer stands in an access; as many places as lanes */
	uint32_t zombie_count;
	bool guard_added;
	uint32_t inbound; /* passive conns that are not READY */

	int epoll_fd, listen_fd, timer_fd, self_fd;
	int page_fd, keys_fd; /* read-only, passed to peers */
	int spare_fd;         /* given up to turn a peer away when descriptors are used up */
	tn_shm_source on_listener, on_timer, on_self;
	tn_shm_counters gone; /* of destroyed lanes */
	tn_shm_counters counters;
};

/* device.c */
extern const tn_option_row tn_shm_option_rows[];
tern_status tn_shm_watch(tn_shm_dev *dev, int fd, uint32_t epoll_events, tn_shm_source *source);
void tn_shm_unwatch(tn_shm_dev *dev, int fd);
/* A post has a note for the poller. Any thread. */
void tn_shm_attention(tn_shm_dev *dev);

/* poll.c */
int tn_shm_poll(tn_dev *base, tn_event *events, int max);
int tn_shm_take(tn_dev *base, void *room, tn_lane **lane);
tern_status tn_shm_arm(tn_dev *base);
void tn_shm_recv_done(tn_dev *base, const tn_event *event);

/* conn.c */
tern_status tn_shm_conn_dial(tn_shm_lane *lane);
void tn_shm_conn_accept(tn_shm_dev *dev);
/* Readable, writable or hung up. */
void tn_shm_conn_ready(tn_shm_conn *conn, uint32_t epoll_events);
/* The passive lane may go on: its HELLO may have come early. */
void tn_shm_conn_unpark(tn_shm_lane *lane);
/* Dial again, end what took too long. Returns the next deadline. */
uint64_t tn_shm_conn_tick(tn_shm_dev *dev, uint64_t now);
void tn_shm_conn_close(tn_shm_conn *conn);
void tn_shm_conn_set_state(tn_shm_conn *conn, tn_shm_conn_state state);
/* Fills the head and sends, or keeps the message until there is room. The descriptors stay the caller's. */
tern_status tn_shm_conn_send(tn_shm_conn *conn, tn_shm_type type, tn_shm_any *msg, const int *fds,
			     uint32_t fd_count);
/* Ask for extent `index` of the peer. TERN_AGAIN: the socket is full, later. */
tern_status tn_shm_conn_ask(tn_shm_conn *conn, uint32_t index);
/* Free what was closed, once nothing refers to it any more. */
void tn_shm_conn_bury(tn_shm_dev *dev);

/* handshake.c */
tern_status tn_shm_handshake(tn_shm_conn *conn, const tn_shm_any *msg, int *fds);
tern_status tn_shm_handshake_hello(tn_shm_conn *conn, tn_shm_lane *lane);
tern_status tn_shm_handshake_challenge(tn_shm_conn *conn, tn_shm_lane *lane);

/* peer.c */
/* Find or make the peer; takes over nothing (the descriptors stay the caller's). One reference more. */
tern_status tn_shm_peer_get(tn_shm_conn *conn, const tn_shm_id *id, const tn_shm_facts *facts, int keys_fd,
			    int page_fd, tn_shm_peer **peer);
void tn_shm_peer_put(tn_shm_peer *peer);
void tn_shm_peer_died(tn_shm_peer *peer);
/* An EXTENT came: map it. fd is -1 when it was refused. */
tern_status tn_shm_peer_extent(tn_shm_peer *peer, const tn_shm_extent *msg, int fd);
/* The lane is gone: what it asked for may be asked for by others. */
void tn_shm_peer_forget(tn_shm_peer *peer, uint64_t lane_id);

/* lane.c */
void tn_shm_lane_set_state(tn_shm_lane *lane, tn_shm_lane_state state);
const char *tn_shm_lane_state_name(tn_shm_lane_state state);
tn_shm_lane *tn_shm_lane_find(tn_shm_dev *dev, uint64_t id);
/* Map or make the segment and set the rings up; side 0 is active. */
tern_status tn_shm_lane_attach(tn_shm_lane *lane, void *segment, uint64_t bytes, uint32_t slots,
			       uint32_t buf_bytes);
void tn_shm_lane_up(tn_shm_lane *lane);
/* The path died: DYING or DOWN, with the detail text of this thread as reason. */
void tn_shm_lane_down(tn_shm_lane *lane, tern_status status);
/* Everything that the peer sent was delivered. */
void tn_shm_lane_dead(tn_shm_lane *lane);
tern_status tn_shm_lane_create(tn_dev *base, const tn_lane_params *params, tn_lane **lane, tn_blob *addr);
tern_status tn_shm_lane_connect(tn_lane *base, const tn_blob *peer_dev, const tn_blob *peer_lane);
void tn_shm_lane_break(tn_lane *base);
void tn_shm_lane_close(tn_lane *base);
bool tn_shm_lane_drained(tn_lane *base);
void tn_shm_lane_destroy(tn_lane *base);
/* Adds the lane's counters. Any thread. */
void tn_shm_lane_counters(const tn_shm_lane *lane, tn_shm_counters *sum);
/* Its segment, its peer and itself. */
void tn_shm_lane_free(tn_shm_lane *lane);

/* guard.c: accesses of peers that outlive a revocation (mem.h, tn_guard) */
extern const tn_guard tn_shm_guard;
/* From now on the peer may access memory through the lane: before it is told that the lane is up. */
void tn_shm_guard_lane(tn_shm_lane *lane);
/* The lane goes. True: its peer stands in an access, the lane lives on as a zombie. */
bool tn_shm_guard_bury(tn_shm_lane *lane);
/* Zombies whose access has ended or whose process died are gone, or (all) every one. */
void tn_shm_guard_reap(tn_shm_dev *dev, bool all);

/* post.c */
tern_status tn_shm_copy_begin(tn_lane *lane, const tn_wr *wr, bool read, tn_copy *copy);
void tn_shm_copy_beside(tn_lane *lane, const tn_copy *copy);
void tn_shm_copy_end(tn_lane *lane, const tn_copy *copy);
tern_status tn_shm_write(tn_lane *base, tn_wr *wr);
tern_status tn_shm_write_imm(tn_lane *base, tn_wr *wr);
tern_status tn_shm_read(tn_lane *base, tn_wr *wr);
bool tn_shm_access(tn_lane *base, const tern_key *wire, uint64_t offset, void *local, uint64_t bytes,
		   bool read);
tern_status tn_shm_send(tn_lane *base, const tn_iov *iov, int n, uint64_t cookie, bool *done);
/* Wake the peer if it sleeps. After a seq_cst publish. */
void tn_shm_lane_kick(tn_shm_lane *lane);
void tn_shm_flush(tn_lane *base);

static inline tn_shm_dev *tn_shm_dev_of(const tn_shm_lane *lane)
{
	return (tn_shm_dev *)lane->base.dev;
}

#endif

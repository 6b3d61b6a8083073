/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a client of parameter servers.
 *
 *   ps      the client object: an id for its life, hosts, the route, operations in flight
 *   host    one server by address, with an RPC client that dials it; lives as long as the ps
 *   route   what clients need of the map as last heard, and the host of each server that is alive in it; replaced whole,
 *           freed when nobody holds it any more
 *   call    one operation of the user's
 *   part    what one server does of it: some of its keys, one RPC call at a time, tried again until it is done
 *   lease   a key to memory of the user's, kept for the next operation with the same memory
 *
 *               .----------- again (pause) <---------- busy, overload
 *               v                |
 *   part:   IDLE -> SENT -> (answer) -> DONE
 *               ^        -> refused as of another server, lost, taken back: a newer map is wanted
 *               |                                          |
 *               '---- there is none ----- MAPPED <---------'
 *                                            '-> the part's keys are split anew into other parts -> DONE
 *
 *   call.pending = parts that are not DONE + 1 while a thread works on the call as a whole; the last one completes it
 *   ps.in_flight = calls between submission and completion <= ps.limit
 *   low water = smallest seq of a push in flight, or next_seq: pushes are in `pushes` in the order of seqs
 *
 * Locks: ps->lock for lists, the route and call.status; never held over a call of rpc or a completion. A part is touched
 * by one thread at a time: whoever sends it, then the completion of its RPC call, then its timer.
 * Tests: tests/unit/ps.
 */
#ifndef TN_PS_CLIENT_H
#define TN_PS_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/rpc.h>

#include "base/fail.h"
#include "base/list.h"
#include "ps/split.h"
#include "ps/onesided.h"
#include "ps/state.h"
#include "ps/wire.h"
#include "rpc/lock.h"

#define TN_PS_LEASES    64u
#define TN_PS_KEEP_MAX  (64u << 20) /* a part with a larger buffer gives it back after use */
#define TN_PS_KEYS_MAX  (UINT32_MAX - 1ull)
#define TN_PS_RETRY_MAX 100u /* times the first pause */
#define TN_PS_CALLS_MAX 1024u

typedef struct ps_call ps_call;

typedef struct ps_host {
	tn_list node;  /* ps->hosts */
	uint32_t refs; /* ps->lock: routes that have it + who uses it; 0: it may be reaped */
	char address[TN_ADDRESS_MAX];
	tern_rpc *rpc;
	_Atomic bool packed; /* it does not reach this side's memory row by row */
	_Atomic bool pushed; /* it may remember pushes of this client */
	_Atomic bool silent; /* it did not tell its map when it was asked last */
} ps_host;

typedef struct ps_route {
	tn_list node;  /* ps->dead_routes */
	uint32_t refs; /* ps->lock: 1 while it is the newest + who holds it + parts that were split by it */
	uint32_t servers;
	uint64_t version;
	bool managed;                      /* somebody watches over the servers: maps change when they die */
	bool given;                        /* slots have been given to servers */
	ps_host *hosts[TN_PS_SERVERS_MAX]; /* NULL: not alive */
	tn_ps_owners owners;
} ps_route;

typedef struct ps_lease {
	const void *ptr;
	uint64_t bytes, used; /* used: a clock of uses */
	uint32_t access, users;
	bool live;
	tern_key key;
} ps_lease;

typedef struct ps_part {
	tn_list node; /* call->parts, or ps->spare_parts */
	ps_call *call;
	ps_route *route;  /* that it was split by: its host lives with it */
	ps_host *host;    /* NULL: nobody has its slots at present */
	uint32_t server;  /* number in the map, for texts */
	uint64_t version; /* of the map by which its keys were split */
	bool divided;     /* they are a part of another part's */
	bool refused;     /* the server says that some are not its own */
	bool look;        /* a newer map is wanted before the next try */
	tn_list map_node; /* ps->map_waiters */
	tern_op op;
	tn_ctx_timer timer;
	uint64_t count;
	const uint64_t *keys;   /* the caller's, or keys_buf */
	const uint32_t *places; /* NULL: all keys of the caller, in order */
	uint64_t *keys_buf;
	uint32_t *places_buf;
	uint64_t keys_room;
	uint8_t *answer;
	uint64_t answer_room;
	uint32_t *bags_buf;    /* bags of a pooled part: their rows at the caller, then their keys */
	uint64_t bags_room;    /* bytes */
	uint32_t bags, taken;  /* taken: combined so far */
	const uint8_t *result; /* a pooled part's rows: combined when all are there (take.c) */
	uint8_t *buffer;       /* registered: rows that can't lie where the caller has them */
	uint64_t buffer_room;
	tern_key buffer_key;
	bool in_buffer; /* of the present try */
	bool packed;    /* this once, whatever the host can do */
	bool maybe;     /* push: an earlier try may have been applied */
	uint32_t tries;
	_Atomic bool waiting; /* for the timer */
} ps_part;

typedef enum ps_kind { PS_PULL, PS_PUSH, PS_ERASE } ps_kind;

struct ps_call {
	tn_list node; /* ps->live, or ps->spare_calls */
	tn_list push_node;
	tern_ps *ps;
	tern_table *table;
	tn_work work;
	ps_kind kind;
	tern_op *_Atomic user; /* NULL: it has completed. Who cancels reads it, whoever completes */
	uint64_t start_ns, deadline_ns;
	/* of the user */
	const uint64_t *keys;
	uint64_t count;
	uint8_t *rows;
	uint64_t stride, row_bytes;
	tern_dtype dtype;
	uint8_t how;
	uint8_t *found;
	tern_dtype travel; /* how rows are on their way */
	uint64_t travel_bytes;
	tern_pool pool;
	const uint64_t *offsets;
	uint64_t bags;
	uint32_t *bag_of; /* of each key, once it is asked for */
	uint64_t bag_of_room;
	float *sum; /* two rows: take.c */
	uint64_t sum_room;
	bool whole; /* pooled by one server: its rows are the caller's */
	float lr_scale;
	uint64_t step;
	uint64_t seq;
	bool one_sided;  /* pull: read what can be read where it lies */
	bool here;       /* it is done before its submission returns, and nobody waits for it yet */
	ps_lease *lease; /* NULL: rows go through buffers */
	uint64_t lease_bytes;
	_Atomic uint32_t pending;
	_Atomic bool canceled;
	tn_list parts;
	_Atomic uint64_t length;
	/* ps->lock */
	tern_status status;
	char detail[TN_DETAIL_MAX];
};

struct tern_table {
	tn_list node; /* ps->tables */
	tern_ps *ps;
	tern_table_schema schema;
	uint64_t id, hash, row_bytes;
	tn_ps_window *windows; /* ps->lock: one for each server that it was read from (onesided.h) */
};

struct tern_ps {
	tern_ctx *ctx;
	tern_mem *mem;
	tn_ps_counters *counters;
	tn_spans *spans;
	tn_span_kind *kinds[3]; /* by ps_kind */
	uint64_t id;
	uint64_t timeout_ns, retry_ns, limit;
	char transports[64];
	rpc_lock lock;
	ps_route *route; /* lock */
	tn_list hosts, dead_routes;
	/* lock: the question for a newer map; map_op and map_bytes are its own while map_asked */
	bool map_asked, watching;
	uint32_t map_turn;
	ps_host *map_host; /* who is asked */
	tn_list map_waiters;
	tern_op map_op;
	uint8_t *map_bytes;
	tn_ctx_timer watch;
	tn_list live, spare_calls, spare_parts, pushes, tables;
	uint32_t in_flight;
	uint64_t next_seq;
	bool closing;
	rpc_lock lease_lock;
	ps_lease leases[TN_PS_LEASES];
	ps_lease *lease_last; /* most operations name what the one before named */
	uint64_t lease_clock;
};

/* ---- host.c ---- */

/* The host of an address, held; dialed when there is none. */
tern_status tn_ps_host_get(tern_ps *ps, const char *address, ps_host **out);
/* The host of a server, held. NULL: it is not alive. */
ps_host *tn_ps_host_at(tern_ps *ps, uint32_t server);
/* ps->lock held. */
ps_host *tn_ps_host_hold(ps_host *host);
/* NULL: nothing happens. */
void tn_ps_host_drop(tern_ps *ps, ps_host *host);
/* Routes and hosts that nobody holds go, and what was read of their servers. Not from a callback of one of them. */
void tn_ps_hosts_reap(tern_ps *ps);
void tn_ps_hosts_free(tern_ps *ps);

/* ---- route.c ---- */

/* The newest; until it is released. */
ps_route *tn_ps_route_hold(tern_ps *ps);
void tn_ps_route_release(tern_ps *ps, ps_route *route);
/* As release, ps->lock held. */
void tn_ps_route_put(tern_ps *ps, ps_route *route);

bool tn_ps_route_has(const ps_route *route, const ps_host *host);
/* A map came: it is the route if it is newer. */
tern_status tn_ps_route_set(tern_ps *ps, const void *data, uint64_t bytes);
/* tn_ps_part_mapped(part) follows, when `who` (NULL: somebody) told its map or did not. part may be NULL. */
void tn_ps_map_want(tern_ps *ps, ps_part *part, ps_host *who);
/* Ask and wait. host NULL: another one each time. */
tern_status tn_ps_map_fetch(tern_ps *ps, ps_host *host, uint64_t timeout_ns);
/* Lock held: calls are in flight, look after them. */
void tn_ps_watch(tern_ps *ps);
/* Nothing of this file is under way afterwards; no call is in flight. */
void tn_ps_map_end(tern_ps *ps);

/* ---- call.c ---- */

/* Count a part or a thread less; completes the call with the last. */
void tn_ps_call_put(ps_call *call);
/* Count one more, ps->lock held. False: it is about to complete. */
bool tn_ps_call_hold(ps_call *call);
/* The first fault is the call's. */
void tn_ps_call_fault(ps_call *call, tern_status status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void tn_ps_calls_free(tern_ps *ps);

/* ---- part.c ---- */

/* A part of `call` for one server, in the call's list, counted; NULL: no memory. */
ps_part *tn_ps_part_new(ps_call *call, ps_route *route, uint32_t server);
bool tn_ps_part_reserve(ps_part *part, uint64_t keys);
/*
 * Keys of `from` (or, NULL, of the call), at least one, as parts of the route's servers; made has room for
 * TN_PS_OWNERS. They are the caller's to send. Returns how many; 0: no memory.
 */
uint32_t tn_ps_parts_split(ps_call *call, const ps_part *from, ps_part **made);
/*
 * Send it. first: nothing of the call was sent so far, and TERN_AGAIN or an error means that the call is not accepted.
 * Else TERN_OK, always: it goes its way.
 */
tern_status tn_ps_part_send(ps_part *part, bool first);
/* The map that it wanted came, or did not. */
void tn_ps_part_mapped(ps_part *part);
/* Lock held: back to the spare ones, and its buffers if they are large. */
void tn_ps_part_release(tern_ps *ps, ps_part *part);
void tn_ps_parts_free(tern_ps *ps);
/* Given up by the user: end soon. */
void tn_ps_part_cancel(ps_part *part);

/* Room in a malloced buffer that is kept; *room in bytes. False: no memory. */
bool tn_ps_grow(void *buf, uint64_t *room, uint64_t bytes);

/* ---- take.c: rows that pulls bring ---- */

/* Rows of a part's answer. */
uint64_t tn_ps_part_rows(const ps_part *part);
/* They lie as the caller wants them: a server may write them there. */
bool tn_ps_part_plain(const ps_part *part);
/* They are here: to their places, or kept until the others have come. `rows` stays until the call ends. */
void tn_ps_part_take(ps_part *part, const uint8_t *rows);
/* The bag of each key of the call, or NULL: no memory. */
const uint32_t *tn_ps_bags_of_keys(ps_call *call);
/* Which bags a part has keys of, and how many. False: no memory. */
bool tn_ps_part_bags(ps_part *part);
/* The head of bags and their keys, as the wire has them; returns its bytes. */
uint64_t tn_ps_part_put_bags(const ps_part *part, uint8_t *to);
/* All parts are done: the rows of bags that came in pieces. */
void tn_ps_call_combine(ps_call *call);

/* ---- keys.c ---- */

/* A lease for the memory, with a user more; NULL: it is not memory that can be exported so. */
ps_lease *tn_ps_lease_get(tern_ps *ps, const void *ptr, uint64_t bytes, uint32_t access);
void tn_ps_lease_put(tern_ps *ps, ps_lease *lease);
void tn_ps_leases_free(tern_ps *ps);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the links of one device share: a budget of bytes in flight, and an arbiter that grants what may come in. The
 * shell makes one of each for a device, names them in the provider of each of its links, and ends them after those. And
 * what those of a node share: a store of memory, named in their configuration.
 *
 * Budget   taken = sum over links of their bulk in flight <= cap, unless one piece alone exceeds it
 *           (links of several threads may exceed it by a piece each)
 *   A link that finds no room stands in the queue; who gives bytes back wakes the first, and nobody passes it.
 *
 * Arbiter, at the receiver of bulk
 *   capacity   bytes that may be under way to this device, so that the network in front of it need not hold more: a few
 *              times rate x (round trip + turn-round of software). Handed out in units
 *   share      what each link may have under way without asking: all for one that is alone, else a part of half of the
 *              capacity, while that is a unit or more
 *   out        sum over links of granted - done <= capacity - links * share, and a unit may always be out
 *   per link   two units with its share, unless it is the only one that asks
 *   Round robin by units among those that ask: equal bytes for all, and nobody waits for ever. The shortest first would end
 *   some earlier and none later, but the link would depend on one sender at a time being quick.
 *
 * Pool, at the receiver of messages
 *   slots      receive slots that the device keeps posted, for all lanes of all links
 *   level      of a seat: those that the peer of a link may use on lane 0: a level starts as what the lane was granted first
 *   taken      sum over all lanes of their levels, until they are gone <= slots
 *   A seat whose peer used up what it had gets as much again, while there is room; an eighth of the slots stays for lanes to
 *   come. If there is no room, seats that received nothing lately are asked for what they have beyond the least, and it
 *   is free when their peers have said that they gave it up.
 *
 * Quota, of the data lanes of a device
 *   taken      sum over links of their data lanes. More than the cap of them may be in use: nobody is refused
 *   While there are more, links whose data lanes have rested are asked for them, the one that used them longest ago first.
 *   It leaves with all of them, or says that it keeps them, since its peer uses them or cannot do without: then the next one
 *   is asked.
 *
 * Store, of the memory that links need now and then: while they are born, connect, repair, speak on the control connection
 *   lent       bytes of the blocks that links have
 *   held       bytes of the memory that the shell gave, in slabs: lent, or free for the next one
 *   A block is lent when a link begins what needs it, and given back when that is over: never for one operation. Equal bytes
 *   that many links have, their configuration, are kept once (tn_store_share).
 *
 * Threads: links run under locks of their own, any number at once. Totals are atomic; the queue is under `lock`, which
 * the shell supplies (no functions: one thread). It is taken under a link's lock, and nothing is taken under it but
 * what wake needs. wake(arg) of another link may be called with both held: it may only tell its shell to run it.
 * Tests: tests/unit/link/window_test.c, grants_test.c, pool_test.c, quota_test.c, store_test.c, pair_test.c.
 */
#ifndef TN_LINK_SHARE_H
#define TN_LINK_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/counters.h"
#include "base/list.h"

typedef struct tn_share_lock {
	void (*take)(void *arg); /* NULL: all links run in one thread */
	void (*drop)(void *arg);
	void *arg;
} tn_share_lock;

static inline void tn_share_take(const tn_share_lock *lock)
{
	if (lock->take)
		lock->take(lock->arg);
}

static inline void tn_share_drop(const tn_share_lock *lock)
{
	if (lock->drop)
		lock->drop(lock->arg);
}

/* ---- bytes in flight ---- */

typedef struct tn_link_budget {
	uint64_t cap;
	tn_share_lock lock;
	_Atomic uint64_t taken;
	_Atomic uint32_t waiting; /* seats in the queue */
	tn_counter waits;         /* times that one had to wait */
	tn_list queue;            /* under the lock */
} tn_link_budget;

/* A link's place. Zeroed, then wake and arg are set. */
typedef struct tn_budget_seat {
	tn_list node;
	uint64_t want;
	bool queued; /* the link's own view */
	void (*wake)(void *arg);
	void *arg;
} tn_budget_seat;

/* lock may be NULL. */
void tn_link_budget_init(tn_link_budget *budget, uint64_t cap, const tn_share_lock *lock);

/* May a piece of n bytes go? If not, the seat is in the queue and is woken. Takes nothing. */
bool tn_budget_open(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n);
/* It was posted: out of the queue, if it was there. */
void tn_budget_take(tn_link_budget *budget, tn_budget_seat *seat, uint64_t n);
/* It completed, well or not. The caller looks for its own next piece by itself. */
void tn_budget_give(tn_link_budget *budget, const tn_budget_seat *seat, uint64_t n);
/* It waits no longer. */
void tn_budget_leave(tn_link_budget *budget, tn_budget_seat *seat);

/* ---- bytes that may come in ---- */

#define TN_GRANT_UNIT_MIN  (16u << 10)
#define TN_SHARE_UNBOUNDED UINT64_MAX

typedef struct tn_link_arbiter {
	uint64_t capacity, unit;
	tn_share_lock lock;
	tn_counter granted, shares; /* bytes in all; times that the share changed */
	/* under the lock */
	uint32_t up;     /* seats */
	uint32_t active; /* those that ask or have something out */
	uint64_t share, out;
	tn_list seats, asking; /* asking: in the order of their turns */
} tn_link_arbiter;

/* A link's place. Zeroed, then wake and arg are set. Totals since it joined; they never fall. */
typedef struct tn_arbiter_seat {
	tn_list node, ask_node;
	uint64_t wanted, granted, done; /* done: completed, or given back */
	bool active, joined;
	_Atomic bool news; /* share or granted changed since they were read */
	void (*wake)(void *arg);
	void *arg;
} tn_arbiter_seat;

/* unit: TN_GRANT_UNIT_MIN or more; a capacity of less than a unit becomes one. lock may be NULL. */
void tn_link_arbiter_init(tn_link_arbiter *arbiter, uint64_t capacity, uint64_t unit,
			  const tn_share_lock *lock);
void tn_arbiter_join(tn_link_arbiter *arbiter, tn_arbiter_seat *seat);
/* What it had out counts no more. */
void tn_arbiter_leave(tn_link_arbiter *arbiter, tn_arbiter_seat *seat);
/* The peer's totals. False: they fell, or more is done than was granted; nothing happened. */
bool tn_arbiter_demand(tn_link_arbiter *arbiter, tn_arbiter_seat *seat, uint64_t wanted, uint64_t done);
/* What the peer is to be told now. */
void tn_arbiter_read(tn_link_arbiter *arbiter, tn_arbiter_seat *seat, uint64_t *share, uint64_t *granted);
/* Assert the sums. */
void tn_link_arbiter_check(tn_link_arbiter *arbiter);

/* ---- receive slots of messages ---- */

#define TN_POOL_LEAST 8u /* slots that a seat keeps */

/* Slots that no seat grows into: they are for lanes to come. */
static inline uint32_t tn_pool_kept(uint32_t slots)
{
	return slots / 16 * 5;
}

typedef struct tn_link_pool {
	uint32_t slots, most; /* most: of one seat */
	tn_share_lock lock;
	tn_counter added, given; /* slots in all */
	/* under the lock */
	uint32_t taken, asked; /* asked: of peers, and not given back yet */
	tn_list seats, hungry;
} tn_link_pool;

/* A link's place. Zeroed, then wake and arg are set. Totals modulo 2^32 since it joined. */
typedef struct tn_pool_seat {
	tn_list node, hungry_node;
	uint32_t level, want;
	uint32_t added, asked, given;
	_Atomic uint32_t used; /* units that arrived in all: written by the link, without the lock */
	uint32_t used_then;    /* at the last look */
	bool joined;
	_Atomic bool news; /* added or asked changed since they were read */
	void (*wake)(void *arg);
	void *arg;
} tn_pool_seat;

/* lock may be NULL. */
void tn_link_pool_init(tn_link_pool *pool, uint32_t slots, uint32_t most, const tn_share_lock *lock);
/* A lane comes, with so many slots; false: there are not that many. And it is gone, with what it then has. */
bool tn_pool_take(tn_link_pool *pool, uint32_t n);
void tn_pool_give(tn_link_pool *pool, uint32_t n);
uint32_t tn_pool_left(tn_link_pool *pool);
/* level: what the lane took. */
void tn_pool_join(tn_link_pool *pool, tn_pool_seat *seat, uint32_t level);
/* Returns the level: the lane still has it. */
uint32_t tn_pool_leave(tn_link_pool *pool, tn_pool_seat *seat);
void tn_pool_hungry(tn_link_pool *pool, tn_pool_seat *seat);
/* The peer gave back so many in all. False: the total fell, or is more than was asked for; nothing happened. */
bool tn_pool_given(tn_link_pool *pool, tn_pool_seat *seat, uint32_t total);
/* What the peer is to be told now. */
void tn_pool_read(tn_link_pool *pool, tn_pool_seat *seat, uint32_t *added, uint32_t *asked);
/* Assert the sums. */
void tn_link_pool_check(tn_link_pool *pool);

/* ---- data lanes ---- */

typedef struct tn_link_quota {
	uint32_t cap;
	uint64_t rest_ns; /* who used them more lately is not asked */
	tn_share_lock lock;
	/* under the lock */
	uint32_t taken, leaving; /* lanes: of all seats; of those that were asked */
	tn_list seats;
} tn_link_quota;

/* A link's place, while it has data lanes. Zeroed, then wake and arg are set. */
typedef struct tn_quota_seat {
	tn_list node;
	uint32_t lanes;
	bool joined, asked;
	uint64_t kept_ns;         /* when it was asked in vain */
	_Atomic uint64_t used_ns; /* written by the link, without the lock */
	_Atomic bool news;        /* it was asked, and has not seen it */
	void (*wake)(void *arg);
	void *arg;
} tn_quota_seat;

/* lock may be NULL. */
void tn_link_quota_init(tn_link_quota *quota, uint32_t cap, uint64_t rest_ns, const tn_share_lock *lock);
void tn_quota_join(tn_link_quota *quota, tn_quota_seat *seat, uint32_t lanes, uint64_t now_ns);
/* Its data lanes are no more. */
void tn_quota_leave(tn_link_quota *quota, tn_quota_seat *seat);
/* It was asked, and keeps them. */
void tn_quota_keep(tn_link_quota *quota, tn_quota_seat *seat, uint64_t now_ns);
/* Some may have rested meanwhile. */
void tn_quota_look(tn_link_quota *quota, uint64_t now_ns);
bool tn_quota_sums_hold(tn_link_quota *quota);

/* ---- memory ---- */

#define TN_STORE_CLASSES 17

/* Memory in whole cache lines, aligned to one; NULL: none. */
typedef struct tn_store_source {
	void *(*get)(size_t bytes, void *arg);
	void (*put)(void *memory, size_t bytes, void *arg);
	void *arg;
	bool each; /* each block comes from get by itself, so that a tool sees who uses one that he gave back */
} tn_store_source;

typedef struct tn_store_class {
	void *free;    /* the first of those that were given back */
	uint8_t *rest; /* of the last slab */
	size_t rest_bytes;
} tn_store_class;

typedef struct tn_link_store {
	tn_share_lock lock;
	tn_store_source source;
	/* under the lock */
	uint64_t lent, held;
	tn_store_class classes[TN_STORE_CLASSES];
	void *slabs;
	tn_list shared;
} tn_link_store;

/* lock may be NULL. */
void tn_link_store_init(tn_link_store *store, const tn_store_source *source, const tn_share_lock *lock);
/* All was given back. */
void tn_link_store_fini(tn_link_store *store);
/* A block, aligned to a cache line, with any content; NULL: no memory. */
void *tn_store_lend(tn_link_store *store, size_t bytes);
/* NULL is no block. bytes: as it was lent. */
void tn_store_back(tn_link_store *store, void *block, size_t bytes);
/* A copy of these bytes, the same one for all who have equal ones; NULL: no memory. */
const void *tn_store_share(tn_link_store *store, const void *bytes, size_t n);
void tn_store_unshare(tn_link_store *store, const void *copy);

#endif

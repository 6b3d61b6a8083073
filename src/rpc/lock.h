/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks, references and counts of this layer. A context of a single owner needs no locked instruction for them: nobody
 * else may call (channel/ctx_impl.h checks), and a call would take some thirty.
 *
 * A mutex and not tn_lock, because whoever lets go of one may be the last but one to hold its object, which is gone a
 * moment later.
 *
 * Threads: any. Tests: tests/unit/rpc.
 */
#ifndef TN_RPC_LOCK_H
#define TN_RPC_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

typedef struct rpc_lock {
	pthread_mutex_t mutex;
	bool off;
	bool held; /* off: for the assertions alone */
} rpc_lock;

static inline void rpc_lock_init(rpc_lock *lock, bool off)
{
	pthread_mutex_init(&lock->mutex, NULL);
	lock->off = off;
	lock->held = false;
}

static inline void rpc_lock_fini(rpc_lock *lock)
{
	TN_ASSERT(!lock->held);
	pthread_mutex_destroy(&lock->mutex);
}

/* Of one that is off, for the assertions. */
static inline void rpc_lock_mark(rpc_lock *lock, bool held)
{
#if TN_DEV_CHECKS
	TN_ASSERT(lock->held != held);
	lock->held = held;
#else
	(void)lock, (void)held;
#endif
}

static inline void rpc_lock_take(rpc_lock *lock)
{
	if (!lock->off)
		pthread_mutex_lock(&lock->mutex);
	else
		rpc_lock_mark(lock, true);
}

static inline void rpc_lock_drop(rpc_lock *lock)
{
	if (!lock->off)
		pthread_mutex_unlock(&lock->mutex);
	else
		rpc_lock_mark(lock, false);
}

/* own: of an object of a single owner. */
static inline void rpc_refs_add(_Atomic uint32_t *refs, bool own)
{
	if (own)
		atomic_store_explicit(refs, atomic_load_explicit(refs, memory_order_relaxed) + 1,
				      memory_order_relaxed);
	else
		atomic_fetch_add_explicit(refs, 1, memory_order_relaxed);
}

/* True: these were the last. */
static inline bool rpc_refs_drop(_Atomic uint32_t *refs, uint32_t n, bool own)
{
	uint32_t before;

	if (!own)
		return atomic_fetch_sub_explicit(refs, n, memory_order_acq_rel) == n;
	before = atomic_load_explicit(refs, memory_order_relaxed);
	atomic_store_explicit(refs, before - n, memory_order_relaxed);
	return before == n;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the helper thread of a pool: it makes extents before they are needed and gives back those that stayed
 * empty for mem.shrink_after. It starts with the first reason to, in pools of some size, and sleeps without a
 * timer while there is nothing to do; a process that allocates little never has it.
 *
 * Why a thread of its own and not the context's helper: that one drives progress and liveness, and populating an
 * extent takes up to a second per GiB. It has ordinary priority, because who runs out of room waits for the
 * extent that it is making. If it can't start, or can't make an extent, allocations grow by themselves as before.
 *
 * Threads: requests from any, under an arena's lock or none. Tests: tests/unit/mem/test_ahead.c.
 */
#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "mem/cache.h"
#include "mem/pool.h"

/* Below this a pool has no helper: growing by 2 MiB takes less than a millisecond. */
#define HELPER_BYTES_MIN (32ull << 20)

void tn_ahead_init(tn_ahead *ahead)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&ahead->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&ahead->wake, &attr);
	pthread_condattr_destroy(&attr);
}

static tern_mem *pool_of(tn_ahead *ahead)
{
	return TN_CONTAINER_OF(ahead, tern_mem, ahead);
}

/* Lock held: sleep until there is something to do. True: the time to look at empty extents has come. */
static bool wait_for_work(tn_ahead *ahead)
{
	uint64_t until = ahead->decay ? tn_now() + pool_of(ahead)->shrink_ns / 2 : 0;
	struct timespec at = {.tv_sec = (time_t)(until / TN_NS_PER_SEC),
			      .tv_nsec = (long)(until % TN_NS_PER_SEC)};

	while (!ahead->stop && !ahead->wanted) {
		if (ahead->decay != (until != 0))
			return false; /* the first to empty: start the clock */
		if (until == 0)
			pthread_cond_wait(&ahead->wake, &ahead->lock);
		else if (pthread_cond_timedwait(&ahead->wake, &ahead->lock, &at) == ETIMEDOUT)
			return true;
	}
	return false;
}

static void *run(void *arg)
{
	tn_ahead *ahead = arg;
	tern_mem *mem = pool_of(ahead);

	pthread_mutex_lock(&ahead->lock);
	while (!ahead->stop) {
		uint32_t arena;
		int node;

		if (wait_for_work(ahead)) {
			ahead->decay = false;
			pthread_mutex_unlock(&ahead->lock);
			if (tn_extents_decay(mem, tn_now()))
				tn_ahead_emptied(mem);
			pthread_mutex_lock(&ahead->lock);
		}
		if (ahead->stop || !ahead->wanted)
			continue;
		arena = (uint32_t)__builtin_ctz(ahead->wanted);
		node = ahead->nodes[arena];
		pthread_mutex_unlock(&ahead->lock);
		tn_extent_grow_ahead(&mem->arenas[arena], node);
		pthread_mutex_lock(&ahead->lock);
		/* Only now: what was asked while it was in the making was asked for the same reason. */
		ahead->wanted &= ~(1u << arena);
		atomic_fetch_and(&ahead->asked, ~(1u << arena));
	}
	pthread_mutex_unlock(&ahead->lock);
	return NULL;
}

/* Lock held. False: there is no helper and won't be. */
static bool started(tn_ahead *ahead)
{
	if (ahead->started || ahead->failed || ahead->stop)
		return ahead->started;
	ahead->started = !TN_FAULT("mem.ahead.thread") &&
			 tn_os_thread_start(&ahead->thread, "tern-mem", run, ahead) == TERN_OK;
	ahead->failed = !ahead->started;
	if (ahead->failed)
		TN_LOG(WARN, MEM, "no helper thread: memory grows only when it is needed, and never shrinks");
	return ahead->started;
}

static bool big_enough(const tern_mem *mem)
{
	return atomic_load_explicit(&mem->committed, memory_order_relaxed) >= HELPER_BYTES_MIN;
}

void tn_ahead_grow(tn_arena *arena)
{
	tern_mem *mem = arena->mem;
	tn_ahead *ahead = &mem->ahead;
	uint32_t bit = 1u << arena->index;

	if (!mem->grow_ahead || !big_enough(mem) ||
	    (atomic_load_explicit(&ahead->asked, memory_order_relaxed) & bit))
		return;
	pthread_mutex_lock(&ahead->lock);
	if (started(ahead)) {
		atomic_fetch_or(&ahead->asked, bit);
		ahead->nodes[arena->index] = tn_mem_node(mem);
		ahead->wanted |= bit;
		pthread_cond_signal(&ahead->wake);
	} else {
		atomic_fetch_or(&ahead->asked, ~0u); /* nobody asks again */
	}
	pthread_mutex_unlock(&ahead->lock);
}

void tn_ahead_emptied(tern_mem *mem)
{
	tn_ahead *ahead = &mem->ahead;

	if (mem->shrink_ns == 0 || !big_enough(mem))
		return;
	pthread_mutex_lock(&ahead->lock);
	if (!ahead->decay && started(ahead)) {
		ahead->decay = true;
		pthread_cond_signal(&ahead->wake);
	}
	pthread_mutex_unlock(&ahead->lock);
}

void tn_ahead_fini(tn_ahead *ahead)
{
	pthread_mutex_lock(&ahead->lock);
	ahead->stop = true;
	pthread_cond_signal(&ahead->wake);
	pthread_mutex_unlock(&ahead->lock);
	tn_os_thread_join(&ahead->thread);
	pthread_cond_destroy(&ahead->wake);
	pthread_mutex_destroy(&ahead->lock);
}

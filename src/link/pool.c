/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose receive slots of a device are whose: see share.h for the rules.
 *
 *   room      slots - taken - what is kept for lanes to come
 *   hungry    seats whose peer had to wait; they are served in turn
 *   A look    happens when one of them came, and when a lane took of what is kept: who has received nothing since the
 *             last look is asked for what it has beyond the least, if that is needed.
 *
 * Must not: know links or frames (slots.c). Threads: any, under the lock. Tests: tests/unit/link/pool_test.c.
 */
#include "base/check.h"
#include "base/mutant.h"
#include "link/share.h"

void tn_link_pool_init(tn_link_pool *pool, uint32_t slots, uint32_t most, const tn_share_lock *lock)
{
	*pool = (tn_link_pool){.slots = slots, .most = most};
	pool->lock = lock ? *lock : (tn_share_lock){0};
	tn_list_init(&pool->seats);
	tn_list_init(&pool->hungry);
}

/* ---- under the lock ---- */

/* The caller finds its own news by itself. */
static void tell(tn_pool_seat *seat, const tn_pool_seat *caller)
{
	bool had = atomic_exchange_explicit(&seat->news, true, memory_order_release);

	if (!had && seat != caller && seat->wake)
		seat->wake(seat->arg);
}

static uint32_t room_of(const tn_link_pool *pool)
{
	uint32_t used = pool->taken + tn_pool_kept(pool->slots);

	return used < pool->slots ? pool->slots - used : 0;
}

/* Slots that are missing: of the first that is hungry, and of those kept. */
static uint32_t need_of(const tn_link_pool *pool)
{
	const tn_pool_seat *first = TN_LIST_FIRST(&pool->hungry, tn_pool_seat, hungry_node);
	uint32_t used = pool->taken + tn_pool_kept(pool->slots), need = first ? first->want : 0;

	need += used > pool->slots ? used - pool->slots : 0;
	return need > pool->asked ? need - pool->asked : 0;
}

static void serve(tn_link_pool *pool, const tn_pool_seat *caller)
{
	tn_pool_seat *seat;

	while ((seat = TN_LIST_FIRST(&pool->hungry, tn_pool_seat, hungry_node))) {
		uint32_t n = TN_MIN(seat->want, room_of(pool));

		if (n == 0)
			return;
		tn_list_remove(&seat->hungry_node);
		seat->level += n;
		seat->added += n;
		pool->taken += n;
		tn_count(&pool->added, n);
		tell(seat, caller);
	}
}

/* Who was hungry and got nothing since the last look has stopped: it will say so when it waits again. */
static void forget_old(tn_link_pool *pool)
{
	TN_LIST_FOREACH_SAFE(node, &pool->hungry) {
		tn_pool_seat *seat = TN_LIST_ENTRY(node, tn_pool_seat, hungry_node);

		if (atomic_load_explicit(&seat->used, memory_order_relaxed) == seat->used_then)
			tn_list_remove(node);
	}
}

/* Ask those for slots that have no use for them. */
static void look(tn_link_pool *pool, const tn_pool_seat *caller)
{
	uint32_t need;

	forget_old(pool);
	need = need_of(pool);
	TN_LIST_FOREACH(node, &pool->seats) {
		tn_pool_seat *seat = TN_LIST_ENTRY(node, tn_pool_seat, node);
		uint32_t used = atomic_load_explicit(&seat->used, memory_order_relaxed);
		bool idle = used == seat->used_then;
		uint32_t n;

		seat->used_then = used;
		if (!idle || need == 0 || seat->asked != seat->given || seat->level <= TN_POOL_LEAST)
			continue;
		n = TN_MIN(seat->level - TN_POOL_LEAST, need);
		seat->asked += n;
		pool->asked += n;
		need -= n;
		/* What is asked for is the peer's until it says that it gave it up. */
		if (TN_MUTANT(27))
			pool->taken -= n;
		tell(seat, caller);
	}
}

/* ---- lanes ---- */

bool tn_pool_take(tn_link_pool *pool, uint32_t n)
{
	bool ok;

	tn_share_take(&pool->lock);
	ok = n <= pool->slots - pool->taken;
	pool->taken += ok ? n : 0;
	if (!ok || room_of(pool) == 0)
		look(pool, NULL);
	tn_share_drop(&pool->lock);
	return ok;
}

void tn_pool_give(tn_link_pool *pool, uint32_t n)
{
	tn_share_take(&pool->lock);
	TN_ASSERT(n <= pool->taken);
	pool->taken -= n;
	serve(pool, NULL);
	tn_share_drop(&pool->lock);
}

uint32_t tn_pool_left(tn_link_pool *pool)
{
	uint32_t left;

	tn_share_take(&pool->lock);
	left = pool->slots - pool->taken;
	tn_share_drop(&pool->lock);
	return left;
}

/* ---- what links call ---- */

void tn_pool_join(tn_link_pool *pool, tn_pool_seat *seat, uint32_t level)
{
	tn_share_take(&pool->lock);
	TN_ASSERT(!seat->joined);
	seat->joined = true;
	seat->level = level;
	seat->added = seat->asked = seat->given = seat->used_then = 0;
	atomic_store_explicit(&seat->used, 0, memory_order_relaxed);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	tn_list_push_back(&pool->seats, &seat->node);
	tn_share_drop(&pool->lock);
}

uint32_t tn_pool_leave(tn_link_pool *pool, tn_pool_seat *seat)
{
	tn_share_take(&pool->lock);
	TN_ASSERT(seat->joined);
	seat->joined = false;
	pool->asked -= seat->asked - seat->given;
	tn_list_remove(&seat->hungry_node);
	tn_list_remove(&seat->node);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	tn_share_drop(&pool->lock);
	return seat->level;
}

void tn_pool_hungry(tn_link_pool *pool, tn_pool_seat *seat)
{
	tn_share_take(&pool->lock);
	if (seat->joined && seat->level < pool->most && seat->asked == seat->given) {
		seat->want = TN_MIN(seat->level, pool->most - seat->level);
		if (!tn_list_linked(&seat->hungry_node))
			tn_list_push_back(&pool->hungry, &seat->hungry_node);
	}
	serve(pool, seat);
	look(pool, seat);
	tn_share_drop(&pool->lock);
}

bool tn_pool_given(tn_link_pool *pool, tn_pool_seat *seat, uint32_t total)
{
	uint32_t n = total - seat->given;
	bool ok;

	tn_share_take(&pool->lock);
	ok = seat->joined && n <= seat->asked - seat->given;
	if (ok) {
		seat->given = total;
		seat->level -= n;
		pool->asked -= n;
		pool->taken -= TN_MUTANT(27) ? 0 : n;
		tn_count(&pool->given, n);
		serve(pool, seat);
	}
	tn_share_drop(&pool->lock);
	return ok;
}

void tn_pool_read(tn_link_pool *pool, tn_pool_seat *seat, uint32_t *added, uint32_t *asked)
{
	tn_share_take(&pool->lock);
	atomic_store_explicit(&seat->news, false, memory_order_relaxed);
	*added = seat->added;
	*asked = seat->asked;
	tn_share_drop(&pool->lock);
}

void tn_link_pool_check(tn_link_pool *pool)
{
	uint32_t levels = 0, asked = 0;

	tn_share_take(&pool->lock);
	TN_LIST_FOREACH(node, &pool->seats) {
		const tn_pool_seat *seat = TN_LIST_ENTRY(node, tn_pool_seat, node);

		levels += seat->level;
		asked += seat->asked - seat->given;
		TN_ASSERT(seat->asked - seat->given <= seat->level);
		TN_ASSERT(seat->level <= pool->most || seat->added == 0);
	}
	TN_ASSERT(levels <= pool->taken && pool->taken <= pool->slots && asked == pool->asked);
	tn_share_drop(&pool->lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns revocation where the initiator does the access (shm): a peer of this host may have passed the key check
 * just before the key was revoked and be copying still; one that was stopped in the middle of a copy may go
 * on hours later. A guard (mem.h) knows. What a revoked key reached is not given to anybody else until every
 * guard has said that the accesses of that moment have ended or their processes have.
 *
 *   freed block with keys --mark: none under way--> free
 *                         `-mark: ticket----------> parked --passed, at a later free or before growth--> free
 *
 * A parked block counts as live. Revocation of a single key waits, because its caller goes on to use the memory.
 *
 * Must not be called with a lock of mem held; guards are called under the guards' lock alone.
 * Threads: any. Tests: tests/unit/mem/test_guard.c, tests/unit/transport/test_shm_access.c.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "mem/cache.h"
#include "mem/pool.h"

#define WAIT_NS_MAX  TN_NS_PER_SEC
#define SPINS_MAX    1000u
#define WAIT_STEP_NS (50 * TN_NS_PER_US)

typedef struct tn_parked {
	tn_list link;
	void *ptr;
	uint64_t tickets[TN_MEM_GUARDS_MAX]; /* 0 = that guard does not mind */
} tn_parked;

void tn_guards_init(tn_guards *guards)
{
	pthread_mutex_init(&guards->lock, NULL);
	tn_list_init(&guards->parked);
}

void tn_guards_fini(tn_guards *guards)
{
	tn_list *node;

	while ((node = tn_list_pop_front(&guards->parked)) != NULL)
		free(TN_CONTAINER_OF(node, tn_parked, link));
	pthread_mutex_destroy(&guards->lock);
}

tern_status tn_mem_guard_add(tern_mem *mem, const tn_guard *ops, void *dev)
{
	tern_status status = TERN_E_LIMIT;

	pthread_mutex_lock(&mem->guards.lock);
	for (uint32_t i = 0; i < TN_MEM_GUARDS_MAX && status != TERN_OK; i++) {
		tn_guard_slot *slot = &mem->guards.slots[i];

		if (slot->dev || slot->spoilt)
			continue;
		slot->ops = *ops;
		slot->dev = dev;
		atomic_fetch_add(&mem->guards.count, 1);
		status = TERN_OK;
	}
	pthread_mutex_unlock(&mem->guards.lock);
	if (status != TERN_OK)
		tn_fail(status, "more than %d devices whose peers write by themselves share one memory",
			TN_MEM_GUARDS_MAX);
	return status;
}

void tn_mem_guard_remove(tern_mem *mem, void *dev)
{
	pthread_mutex_lock(&mem->guards.lock);
	for (uint32_t i = 0; i < TN_MEM_GUARDS_MAX; i++) {
		tn_guard_slot *slot = &mem->guards.slots[i];

		if (slot->dev != dev)
			continue;
		TN_LIST_FOREACH(node, &mem->guards.parked) {
			tn_parked *parked = TN_CONTAINER_OF(node, tn_parked, link);

			if (parked->tickets[i] == 0 || slot->ops.passed(dev, parked->tickets[i]))
				parked->tickets[i] = 0;
			else
				slot->spoilt = true; /* stays parked for good: nobody is left to ask */
		}
		slot->dev = NULL;
		atomic_fetch_sub(&mem->guards.count, 1);
	}
	pthread_mutex_unlock(&mem->guards.lock);
}

/* Lock held. True if some access is under way. */
static bool mark_all(tn_guards *guards, uint64_t tickets[TN_MEM_GUARDS_MAX])
{
	bool any = false;

	for (uint32_t i = 0; i < TN_MEM_GUARDS_MAX; i++) {
		const tn_guard_slot *slot = &guards->slots[i];

		tickets[i] = slot->dev ? slot->ops.mark(slot->dev) : 0;
		any = any || tickets[i] != 0;
	}
	return any;
}

/* Lock held. True once nothing is under way any more. */
static bool passed_all(tn_guards *guards, uint64_t tickets[TN_MEM_GUARDS_MAX])
{
	bool all = true;

	for (uint32_t i = 0; i < TN_MEM_GUARDS_MAX; i++) {
		const tn_guard_slot *slot = &guards->slots[i];

		if (tickets[i] != 0 && slot->dev && slot->ops.passed(slot->dev, tickets[i]))
			tickets[i] = 0;
		all = all && tickets[i] == 0;
	}
	return all;
}

bool tn_guards_park(tern_mem *mem, void *ptr)
{
	tn_guards *guards = &mem->guards;
	uint64_t tickets[TN_MEM_GUARDS_MAX];
	tn_parked *parked;
	bool under_way;

	if (atomic_load_explicit(&guards->count, memory_order_relaxed) == 0)
		return false;
	pthread_mutex_lock(&guards->lock);
	TN_LIST_FOREACH(node, &guards->parked) {
		if (TN_CONTAINER_OF(node, tn_parked, link)->ptr == ptr) {
			pthread_mutex_unlock(&guards->lock);
			TN_LOG(ERROR, MEM, "tern_mem_free(%p): freed twice", ptr);
			return true;
		}
	}
	under_way = mark_all(guards, tickets) && !passed_all(guards, tickets);
	if (under_way) {
		parked = malloc(sizeof(*parked));
		if (parked) {
			*parked = (tn_parked){.ptr = ptr};
			for (uint32_t i = 0; i < TN_MEM_GUARDS_MAX; i++)
				parked->tickets[i] = tickets[i];
			tn_list_push_back(&guards->parked, &parked->link);
			atomic_fetch_add(&guards->parked_count, 1);
		} else {
			TN_LOG(WARN, MEM, "no memory to park a block: it stays allocated for good");
		}
	}
	pthread_mutex_unlock(&guards->lock);
	if (under_way)
		tn_caches_parked(mem);
	return under_way;
}

void *tn_guards_next(tern_mem *mem)
{
	tn_guards *guards = &mem->guards;
	void *ptr = NULL;

	if (TN_LIKELY(atomic_load_explicit(&guards->parked_count, memory_order_relaxed) == 0))
		return NULL;
	pthread_mutex_lock(&guards->lock);
	TN_LIST_FOREACH(node, &guards->parked) {
		tn_parked *parked = TN_CONTAINER_OF(node, tn_parked, link);

		if (passed_all(guards, parked->tickets)) {
			ptr = parked->ptr;
			tn_list_remove(&parked->link);
			atomic_fetch_sub(&guards->parked_count, 1);
			free(parked);
			break;
		}
	}
	pthread_mutex_unlock(&guards->lock);
	if (ptr && atomic_load(&guards->parked_count) == 0)
		tn_caches_parked(mem);
	return ptr;
}

tern_status tn_guards_wait(tern_mem *mem)
{
	tn_guards *guards = &mem->guards;
	uint64_t tickets[TN_MEM_GUARDS_MAX];
	uint64_t until = 0;
	bool under_way;

	if (atomic_load_explicit(&guards->count, memory_order_relaxed) == 0)
		return TERN_OK;
	pthread_mutex_lock(&guards->lock);
	under_way = mark_all(guards, tickets);
	for (uint32_t spins = 0; under_way; spins++) {
		under_way = !passed_all(guards, tickets);
		if (!under_way || spins < SPINS_MAX)
			continue;
		if (until == 0)
			until = tn_now() + WAIT_NS_MAX;
		else if (tn_now() > until)
			break;
		pthread_mutex_unlock(&guards->lock);
		tn_sleep_ns(WAIT_STEP_NS);
		pthread_mutex_lock(&guards->lock);
	}
	pthread_mutex_unlock(&guards->lock);
	if (under_way)
		return tn_fail(
			TERN_E_INDETERMINATE,
			"the key is revoked, but a peer on this host stands still in the middle of an access "
			"(stopped or in a debugger?): do not reuse the memory, free it");
	return TERN_OK;
}

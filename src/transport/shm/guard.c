/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the guard of memory against accesses that outlive a revocation. A peer marks each access in its access
 * word (odd) before it checks the key; so after a fence on both sides (fence.h) a word that is even belongs to
 * a peer that will see the revocation, and one that is odd to an access that may have passed the check before.
 * It has ended when the word changes or the process dies.
 *
 *   an access is known by (lane, word); busy_since = number of the first mark that saw it
 *   a ticket has passed when no lane is still in an access with busy_since <= ticket
 *
 * A process that was stopped inside of an access may go on hours later: its lane, when given up and
 * destroyed, lives on as a zombie, so that the ticket does not pass.
 *
 * Must not block. Threads: mark and passed from any, the rest is the poller's.
 * Tests: tests/unit/transport/test_shm_guard.c.
 */
#include "transport/shm/fence.h"
#include "transport/shm/shm.h"

static uint32_t access_word(const tn_shm_lane *lane)
{
	return atomic_load_explicit(&lane->ctl_in->access, memory_order_acquire);
}

static bool peer_dead(const tn_shm_lane *lane)
{
	return atomic_load_explicit(&lane->peer->dead, memory_order_acquire);
}

/* Lock held. Is an access that a mark up to `ticket` saw still under way? */
static bool busy_since(const tn_shm_lane *lane, uint64_t ticket)
{
	return lane->busy_since != 0 && lane->busy_since <= ticket && access_word(lane) == lane->busy_word &&
	       !peer_dead(lane);
}

/* Lock held. */
static bool mark_lane(tn_shm_lane *lane, uint64_t mark)
{
	uint32_t word;

	if (!lane->guarded || peer_dead(lane))
		return false;
	word = access_word(lane);
	if (word % 2 == 0)
		return false;
	if (lane->busy_since == 0 || lane->busy_word != word) {
		lane->busy_word = word;
		lane->busy_since = mark;
	}
	return true;
}

static uint64_t guard_mark(void *arg)
{
	tn_shm_dev *dev = arg;
	uint64_t ticket = 0;

	pthread_mutex_lock(&dev->guard_lock);
	if (dev->lane_count + dev->zombie_count > 0) {
		dev->marks++;
		if (dev->light)
			tn_shm_fence_heavy();
		else
			tn_shm_fence_full();
		for (uint32_t i = 0; i < dev->lane_count; i++)
			ticket = mark_lane(dev->lanes[i], dev->marks) ? dev->marks : ticket;
		for (uint32_t i = 0; i < dev->zombie_count; i++)
			ticket = mark_lane(dev->zombies[i], dev->marks) ? dev->marks : ticket;
	}
	pthread_mutex_unlock(&dev->guard_lock);
	return ticket;
}

static bool guard_passed(void *arg, uint64_t ticket)
{
	tn_shm_dev *dev = arg;
	bool busy = false;

	pthread_mutex_lock(&dev->guard_lock);
	for (uint32_t i = 0; i < dev->lane_count && !busy; i++)
		busy = busy_since(dev->lanes[i], ticket);
	for (uint32_t i = 0; i < dev->zombie_count && !busy; i++)
		busy = busy_since(dev->zombies[i], ticket);
	pthread_mutex_unlock(&dev->guard_lock);
	return !busy;
}

const tn_guard tn_shm_guard = {.mark = guard_mark, .passed = guard_passed};

void tn_shm_guard_lane(tn_shm_lane *lane)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);

	TN_ASSERT(lane->ctl_in && lane->peer);
	pthread_mutex_lock(&dev->guard_lock);
	lane->guarded = true;
	pthread_mutex_unlock(&dev->guard_lock);
}

/* The access in which the lane was stopped goes on. */
static bool stands_still(const tn_shm_lane *lane)
{
	return lane->guarded && lane->stopped_at % 2 != 0 && access_word(lane) == lane->stopped_at &&
	       !peer_dead(lane);
}

bool tn_shm_guard_bury(tn_shm_lane *lane)
{
	tn_shm_dev *dev = tn_shm_dev_of(lane);
	bool zombie = stands_still(lane);

	pthread_mutex_lock(&dev->guard_lock);
	tn_shm_lane_counters(lane, &dev->gone);
	for (uint32_t i = 0; i < dev->lane_count; i++) {
		if (dev->lanes[i] == lane) {
			dev->lanes[i] = dev->lanes[--dev->lane_count];
			break;
		}
	}
	if (zombie)
		dev->zombies[dev->zombie_count++] = lane;
	pthread_mutex_unlock(&dev->guard_lock);
	return zombie;
}

void tn_shm_guard_reap(tn_shm_dev *dev, bool all)
{
	for (uint32_t i = 0; i < dev->zombie_count;) {
		tn_shm_lane *lane = dev->zombies[i];

		if (!all && stands_still(lane)) {
			i++;
			continue;
		}
		pthread_mutex_lock(&dev->guard_lock);
		dev->zombies[i] = dev->zombies[--dev->zombie_count];
		pthread_mutex_unlock(&dev->guard_lock);
		tn_shm_lane_free(lane);
	}
}

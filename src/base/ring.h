/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded first-in first-out queue of equal elements in one power-of-two array.
 *
 *   0 <= tail - head <= capacity; element i lies at slots[i & (capacity - 1)]; head and tail only grow
 *
 * Threads: one at a time; between processes and threads see shm's rings and tn_mpsc. No allocation after
 * init. Tests: tests/unit/base/ring_test.c.
 */
#ifndef TN_BASE_RING_H
#define TN_BASE_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <tern/status.h>

#include "base/check.h"

typedef struct tn_ring {
	uint64_t head, tail;
	uint64_t mask; /* capacity - 1 */
	uint64_t elem_bytes;
	uint8_t *slots;
} tn_ring;

/* Room for at least `capacity` elements (rounded up to a power of two). TERN_E_NOMEM, TERN_E_INVALID. */
tern_status tn_ring_init(tn_ring *ring, uint64_t capacity, uint64_t elem_bytes);
void tn_ring_fini(tn_ring *ring);

static inline uint64_t tn_ring_count(const tn_ring *ring)
{
	return ring->tail - ring->head;
}

static inline uint64_t tn_ring_room(const tn_ring *ring)
{
	return ring->mask + 1 - tn_ring_count(ring);
}

static inline bool tn_ring_empty(const tn_ring *ring)
{
	return ring->head == ring->tail;
}

/* The place of element i counted from the head. */
static inline void *tn_ring_at(const tn_ring *ring, uint64_t i)
{
	TN_ASSERT(i < tn_ring_count(ring));
	return ring->slots + ((ring->head + i) & ring->mask) * ring->elem_bytes;
}

/* A new last element to be filled by the caller; NULL if the ring is full. */
static inline void *tn_ring_push(tn_ring *ring)
{
	if (tn_ring_room(ring) == 0)
		return NULL;
	return ring->slots + (ring->tail++ & ring->mask) * ring->elem_bytes;
}

/* The first element; NULL if empty. */
static inline void *tn_ring_front(const tn_ring *ring)
{
	return tn_ring_empty(ring) ? NULL : ring->slots + (ring->head & ring->mask) * ring->elem_bytes;
}

static inline void tn_ring_pop(tn_ring *ring)
{
	TN_ASSERT(!tn_ring_empty(ring));
	ring->head++;
}

/* Copying forms. False: full or empty. */
static inline bool tn_ring_put(tn_ring *ring, const void *elem)
{
	void *slot = tn_ring_push(ring);

	if (!slot)
		return false;
	memcpy(slot, elem, ring->elem_bytes);
	return true;
}

static inline bool tn_ring_take(tn_ring *ring, void *elem)
{
	void *slot = tn_ring_front(ring);

	if (!slot)
		return false;
	memcpy(elem, slot, ring->elem_bytes);
	ring->head++;
	return true;
}

#endif

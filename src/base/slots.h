/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of equal objects named by handles that go stale: handle = generation << 32 | index. A generation
 * is odd while the slot is live, so 0 is never a handle; each free raises it, so a late completion that
 * carries an old handle finds nothing. Slots are reused oldest first, which puts the wrap of a generation
 * (2^31 reuses of one slot) as far off as possible.
 *
 *   live = capacity - length of the free list
 *
 * Threads: one at a time. No allocation after init. Tests: tests/unit/base/slots_test.c.
 */
#ifndef TN_BASE_SLOTS_H
#define TN_BASE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

typedef struct tn_slots {
	uint8_t *objects;
	uint32_t *generations;
	uint32_t *free_next;
	uint32_t free_first, free_last; /* UINT32_MAX: none */
	uint32_t capacity, live;
	uint64_t object_bytes;
} tn_slots;

/* Objects are aligned to 16 bytes (64 if object_bytes is a multiple of 64). */
tern_status tn_slots_init(tn_slots *slots, uint32_t capacity, uint64_t object_bytes);
void tn_slots_fini(tn_slots *slots);

/* A zeroed object and its handle; NULL if all are live. */
void *tn_slots_alloc(tn_slots *slots, uint64_t *handle);
/* The live object of a handle, or NULL: never alive, freed, or junk from the wire. */
void *tn_slots_get(const tn_slots *slots, uint64_t handle);
/* False if the handle is stale. */
bool tn_slots_free(tn_slots *slots, uint64_t handle);
/* The next live object from index *cursor (start with 0) on; NULL at the end. Freeing it meanwhile is fine. */
void *tn_slots_next(const tn_slots *slots, uint32_t *cursor, uint64_t *handle);
/* Handle of a live object given by its address. */
uint64_t tn_slots_handle(const tn_slots *slots, const void *object);

static inline uint32_t tn_handle_index(uint64_t handle)
{
	return (uint32_t)handle;
}

static inline uint32_t tn_handle_generation(uint64_t handle)
{
	return (uint32_t)(handle >> 32);
}

/* Assert the free list and the counts: O(capacity). */
void tn_slots_check(const tn_slots *slots);

#endif

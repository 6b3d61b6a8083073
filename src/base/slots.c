/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot table. Each slot's generation is odd while it is live; free slots are chained by index.
 * Must not allocate after init. Threads: one at a time. Tests: tests/unit/base/slots_test.c.
 */
#include "base/slots.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/fault.h"

#define NONE UINT32_MAX

static void *object_at(const tn_slots *slots, uint32_t index)
{
	return slots->objects + index * slots->object_bytes;
}

static uint64_t handle_of(const tn_slots *slots, uint32_t index)
{
	return (uint64_t)slots->generations[index] << 32 | index;
}

tern_status tn_slots_init(tn_slots *slots, uint32_t capacity, uint64_t object_bytes)
{
	size_t align = object_bytes % 64 == 0 ? 64 : 16;
	uint64_t stride = (object_bytes + align - 1) / align * align;

	*slots = (tn_slots){.free_first = NONE, .free_last = NONE};
	if (capacity == 0 || capacity == NONE || object_bytes == 0 || stride > (1ull << 47) / capacity)
		return tn_fail(TERN_E_INVALID, "a table of %u x %" PRIu64 " bytes", capacity, object_bytes);
	if (!TN_FAULT("base.slots.alloc")) {
		slots->objects = aligned_alloc(align, stride * capacity);
		slots->generations = calloc(capacity, sizeof(*slots->generations));
		slots->free_next = calloc(capacity, sizeof(*slots->free_next));
	}
	if (!slots->objects || !slots->generations || !slots->free_next) {
		tn_slots_fini(slots);
		return tn_fail(TERN_E_NOMEM, "no memory for a table of %u x %" PRIu64 " bytes", capacity,
			       object_bytes);
	}
	for (uint32_t i = 0; i < capacity; i++)
		slots->free_next[i] = i + 1 < capacity ? i + 1 : NONE;
	slots->free_first = 0;
	slots->free_last = capacity - 1;
	slots->capacity = capacity;
	slots->object_bytes = stride;
	return TERN_OK;
}

void tn_slots_fini(tn_slots *slots)
{
	free(slots->objects);
	free(slots->generations);
	free(slots->free_next);
	*slots = (tn_slots){.free_first = NONE, .free_last = NONE};
}

void *tn_slots_alloc(tn_slots *slots, uint64_t *handle)
{
	uint32_t index = slots->free_first;
	void *object;

	if (slots->live == slots->capacity)
		return NULL;
	TN_ASSERT(index < slots->capacity && !(slots->generations[index] & 1));
	slots->free_first = slots->free_next[index];
	if (slots->free_first == NONE)
		slots->free_last = NONE;
	slots->free_next[index] = NONE;
	slots->generations[index]++;
	slots->live++;
	object = object_at(slots, index);
	memset(object, 0, slots->object_bytes);
	if (handle)
		*handle = handle_of(slots, index);
	return object;
}

void *tn_slots_get(const tn_slots *slots, uint64_t handle)
{
	uint32_t index = tn_handle_index(handle), generation = tn_handle_generation(handle);

	if (index >= slots->capacity || !(generation & 1) || slots->generations[index] != generation)
		return NULL;
	return object_at(slots, index);
}

bool tn_slots_free(tn_slots *slots, uint64_t handle)
{
	uint32_t index = tn_handle_index(handle);

	if (!tn_slots_get(slots, handle))
		return false;
	slots->generations[index]++;
	slots->free_next[index] = NONE;
	if (slots->free_last == NONE)
		slots->free_first = index;
	else
		slots->free_next[slots->free_last] = index;
	slots->free_last = index;
	slots->live--;
	return true;
}

void *tn_slots_next(const tn_slots *slots, uint32_t *cursor, uint64_t *handle)
{
	while (*cursor < slots->capacity) {
		uint32_t index = (*cursor)++;

		if (!(slots->generations[index] & 1))
			continue;
		if (handle)
			*handle = handle_of(slots, index);
		return object_at(slots, index);
	}
	return NULL;
}

uint64_t tn_slots_handle(const tn_slots *slots, const void *object)
{
	uint64_t offset = (uint64_t)((const uint8_t *)object - slots->objects);
	uint32_t index = (uint32_t)(offset / slots->object_bytes);

	TN_ASSERT(index < slots->capacity && offset % slots->object_bytes == 0);
	TN_ASSERT(slots->generations[index] & 1);
	return handle_of(slots, index);
}

void tn_slots_check(const tn_slots *slots)
{
	uint32_t live = 0, chained = 0, last = NONE;

	for (uint32_t i = 0; i < slots->capacity; i++)
		live += slots->generations[i] & 1;
	for (uint32_t i = slots->free_first; i != NONE && chained <= slots->capacity;
	     i = slots->free_next[i]) {
		TN_ASSERT(i < slots->capacity && !(slots->generations[i] & 1));
		chained++;
		last = i;
	}
	TN_ASSERT_MSG(live == slots->live, "live=%u counted=%u", slots->live, live);
	TN_ASSERT_MSG(live + chained == slots->capacity, "live=%u free=%u", live, chained);
	TN_ASSERT(last == slots->free_last);
	(void)last; /* release builds */
}

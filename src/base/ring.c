/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set-up of rings; the rest is inline in ring.h.
 * Threads: one at a time. Tests: tests/unit/base/ring_test.c.
 */
#include "base/ring.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"

tern_status tn_ring_init(tn_ring *ring, uint64_t capacity, uint64_t elem_bytes)
{
	uint64_t size = 1;

	*ring = (tn_ring){0};
	if (capacity == 0 || capacity > 1ull << 32 || elem_bytes == 0 || elem_bytes > 1ull << 24)
		return tn_fail(TERN_E_INVALID, "a ring of %" PRIu64 " x %" PRIu64 " bytes", capacity,
			       elem_bytes);
	while (size < capacity)
		size <<= 1;
	ring->slots = TN_FAULT("base.ring.alloc") ? NULL : calloc(size, elem_bytes);
	if (!ring->slots)
		return tn_fail(TERN_E_NOMEM, "no memory for a ring of %" PRIu64 " x %" PRIu64 " bytes", size,
			       elem_bytes);
	ring->mask = size - 1;
	ring->elem_bytes = elem_bytes;
	return TERN_OK;
}

void tn_ring_fini(tn_ring *ring)
{
	free(ring->slots);
	*ring = (tn_ring){0};
}

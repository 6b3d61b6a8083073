/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the simulator: zeroed, or the program ends. It is a tool, not the library.
 * Threads: any. Tests: those of its users.
 */
#ifndef TERN_SIM_ALLOC_H
#define TERN_SIM_ALLOC_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *sim_check_alloc(void *p, uint64_t bytes)
{
	if (!p) {
		fprintf(stderr, "sim: no memory for %llu bytes\n", (unsigned long long)bytes);
		exit(1);
	}
	return p;
}

static inline void *sim_alloc(uint64_t count, uint64_t size)
{
	return sim_check_alloc(calloc(count ? count : 1, size), count * size);
}

/* `items` with room for one more than `used`; capacity doubles and new items are zeroed. */
static inline void *sim_grow(void *items, uint32_t used, uint32_t *capacity, uint64_t size)
{
	uint32_t old = *capacity;

	if (used < old)
		return items;
	*capacity = old ? 2 * old : 64;
	items = sim_check_alloc(realloc(items, *capacity * size), *capacity * size);
	memset((char *)items + old * size, 0, (*capacity - old) * size);
	return items;
}

#endif

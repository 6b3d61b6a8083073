/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one copy of a one-sided transfer. Small sizes are stores in line (and single-copy atomic when they
 * are an aligned 1, 2, 4 or 8 bytes: flag words), middle sizes go to memcpy or `rep movsb`, large ones past
 * the caches with non-temporal stores. What is best where depends on the processor: chosen once at run time,
 * thresholds are options, figures in bench/transport/shm_bench.c.
 *
 * Every copy is complete for others, in program order with later stores, when the function returns
 * (sfence after non-temporal stores).
 *
 * Must not keep state beside tn_shm_copier. Threads: any. Tests: tests/unit/transport/test_shm_copy.c.
 */
#ifndef TN_TRANSPORT_SHM_COPY_H
#define TN_TRANSPORT_SHM_COPY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "transport/shm/fence.h"

typedef void (*tn_shm_copy_fn)(void *to, const void *from, uint64_t bytes);

typedef struct tn_shm_copier {
	uint64_t rep_bytes; /* from here on `middle` instead of memcpy */
	uint64_t nt_bytes;  /* from here on `large` */
	tn_shm_copy_fn middle;
	tn_shm_copy_fn large;
	const char *middle_name; /* "memcpy", "rep movsb" */
	const char *large_name;  /* "memcpy", "sse2 nt", "avx2 nt" */
} tn_shm_copier;

/* Choose for this processor. nt_bytes 0 = the measured default; UINT64_MAX = never. */
void tn_shm_copier_init(tn_shm_copier *copier, uint64_t nt_bytes);

/* All sizes but the smallest. `run`: bytes of the contiguous sequence of copies that this one continues. */
void tn_shm_copy_far(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes, uint64_t run);

/* One access of an aligned 1, 2, 4 or 8 bytes; both sides aligned alike. */
static inline bool tn_shm_copy_word(void *to, const void *from, uint64_t bytes)
{
	uintptr_t both = (uintptr_t)to | (uintptr_t)from;

	if (bytes == 8 && (both & 7) == 0) {
		uint64_t v = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);

		__atomic_store_n((uint64_t *)to, v, __ATOMIC_RELEASE);
		return true;
	}
	if (bytes == 4 && (both & 3) == 0) {
		uint32_t v = __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE);

		__atomic_store_n((uint32_t *)to, v, __ATOMIC_RELEASE);
		return true;
	}
	if (bytes == 2 && (both & 1) == 0) {
		uint16_t v = __atomic_load_n((const uint16_t *)from, __ATOMIC_ACQUIRE);

		__atomic_store_n((uint16_t *)to, v, __ATOMIC_RELEASE);
		return true;
	}
	if (bytes == 1) {
		uint8_t v = __atomic_load_n((const uint8_t *)from, __ATOMIC_ACQUIRE);

		__atomic_store_n((uint8_t *)to, v, __ATOMIC_RELEASE);
		return true;
	}
	return false;
}

static inline void tn_shm_copy(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes,
			       uint64_t run)
{
	if (bytes <= 8 && tn_shm_copy_word(to, from, bytes))
		return;
	tn_shm_copy_far(copier, to, from, bytes, run);
}

#endif

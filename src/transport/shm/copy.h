/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one copy of a one-sided transfer. Small sizes are stores in line (and single-copy atomic when they
 * are an aligned 1, 2, 4 or 8 bytes: flag words), middle sizes go to memcpy, a loop of 512-bit stores or `rep movsb`,
 * large ones past the caches with non-temporal stores. What is best where depends on the processor: chosen once at
 * run time, figures in copy.c.
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

#define TN_SHM_LOOP_MIN  256u
#define TN_SHM_COPY_LINE 64u /* what tn_shm_copy_line takes */

typedef void (*tn_shm_copy_fn)(void *to, const void *from, uint64_t bytes);

typedef struct tn_shm_copier {
	uint64_t loop_bytes; /* from here on `loop` instead of memcpy; at least TN_SHM_LOOP_MIN */
	uint64_t rep_bytes;  /* from here on `middle`; at least TN_SHM_LOOP_MIN */
	uint64_t nt_bytes;   /* from here on `large` */
	tn_shm_copy_fn loop;
	tn_shm_copy_fn middle;
	tn_shm_copy_fn large;
	const char *middle_name; /* "memcpy", "avx512", "rep movsb" */
	const char *large_name;  /* "memcpy", "sse2 nt", "avx2 nt" */
} tn_shm_copier;

/* Choose for this processor. nt_bytes 0 = the measured default; UINT64_MAX = never. */
void tn_shm_copier_init(tn_shm_copier *copier, uint64_t nt_bytes);

/* Copies that adjoin each other: who has come this part of nt_bytes far has most likely more to come than the caches hold. */
#define TN_SHM_RUN_SHARE 4

/* All sizes but the smallest. `run`: bytes of the contiguous sequence of copies that this one continues. */
void tn_shm_copy_far(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes, uint64_t run);

/* As that of what the other side will read soon, however long: never past the caches. */
static inline void tn_shm_copy_middle(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes)
{
	if (bytes < copier->loop_bytes)
		memcpy(to, from, bytes);
	else if (bytes < copier->rep_bytes)
		copier->loop(to, from, bytes);
	else
		copier->middle(to, from, bytes);
}

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

/* Up to 64 bytes that are no word, from both ends: what overlaps is stored twice. Ordered as tn_shm_copy_far. */
static inline void tn_shm_copy_line(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t a[2], b[2], c[2], d[2];
	uint32_t e, f;

	tn_shm_fence_release();
	if (bytes >= 32) {
		memcpy(a, from, 16);
		memcpy(b, from + 16, 16);
		memcpy(c, from + bytes - 32, 16);
		memcpy(d, from + bytes - 16, 16);
		memcpy(to, a, 16);
		memcpy(to + 16, b, 16);
		memcpy(to + bytes - 32, c, 16);
		memcpy(to + bytes - 16, d, 16);
	} else if (bytes >= 16) {
		memcpy(a, from, 16);
		memcpy(d, from + bytes - 16, 16);
		memcpy(to, a, 16);
		memcpy(to + bytes - 16, d, 16);
	} else if (bytes >= 8) {
		memcpy(a, from, 8);
		memcpy(d, from + bytes - 8, 8);
		memcpy(to, a, 8);
		memcpy(to + bytes - 8, d, 8);
	} else if (bytes >= 4) {
		memcpy(&e, from, 4);
		memcpy(&f, from + bytes - 4, 4);
		memcpy(to, &e, 4);
		memcpy(to + bytes - 4, &f, 4);
	} else if (bytes > 0) {
		uint8_t first = from[0], middle = from[bytes / 2], last = from[bytes - 1];

		to[0] = first;
		to[bytes / 2] = middle;
		to[bytes - 1] = last;
	}
}

static inline void tn_shm_copy(const tn_shm_copier *copier, void *to, const void *from, uint64_t bytes,
			       uint64_t run)
{
	if (bytes > TN_SHM_COPY_LINE)
		tn_shm_copy_far(copier, to, from, bytes, run);
	else if (!tn_shm_copy_word(to, from, bytes))
		tn_shm_copy_line(to, from, bytes);
}

#endif

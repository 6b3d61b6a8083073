/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fences of shm, and the asymmetric pair that keeps them off the data path.
 *
 * An initiator marks each one-sided access (ctl.access odd), then looks whether it may go on (stop word,
 * key generation). Whoever forbids sets the word, then looks for accesses that still run. Both need a
 * store-load fence between their two steps. The initiator does it a hundred million times for each time
 * that somebody forbids, so the one who forbids pays for both: membarrier makes every running thread of the
 * registered processes execute a fence, and the initiator's own is for the compiler only.
 *
 * Threads: any. Tests: tests/unit/transport/test_shm_litmus.c.
 */
#ifndef TN_TRANSPORT_SHM_FENCE_H
#define TN_TRANSPORT_SHM_FENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define TN_SHM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TN_SHM_TSAN 1
#endif
#endif
#ifndef TN_SHM_TSAN
#define TN_SHM_TSAN 0
#endif

/* Store-load included. */
static inline void tn_shm_fence_full(void)
{
#if TN_SHM_TSAN
	/* The sanitizer knows no fences; a read-modify-write is one on every machine that it runs on. */
	static _Atomic uint32_t word;

	atomic_fetch_add_explicit(&word, 1, memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Stores before stay before stores after. */
static inline void tn_shm_fence_release(void)
{
#if TN_SHM_TSAN
	atomic_signal_fence(memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_release);
#endif
}

/* The initiator's half: nothing at run time when the other half is a membarrier. */
static inline void tn_shm_fence_light(bool light)
{
	if (light)
		atomic_signal_fence(memory_order_seq_cst);
	else
		tn_shm_fence_full();
}

/* Register this process, once per device. False: not available; use full fences on both sides. */
bool tn_shm_membarrier_register(void);
/* The forbidding half. Some microseconds; no other call needed beside it. */
void tn_shm_fence_heavy(void);

#endif

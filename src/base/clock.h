/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time: monotonic nanoseconds (u64) behind a vtable, so that tests and the simulator turn the hands. The
 * only file of tern that asks the OS for the time. Never wall clock.
 *
 * Threads: any. Tests: tests/unit/base/clock_test.c.
 */
#ifndef TN_BASE_CLOCK_H
#define TN_BASE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/time.h"

typedef struct tn_clock {
	uint64_t (*now_ns)(const struct tn_clock *clock);
} tn_clock;

/* CLOCK_MONOTONIC. */
extern const tn_clock tn_clock_monotonic;

/* A clock that stands still until it is moved; never backwards. */
typedef struct tn_manual_clock {
	tn_clock clock; /* first: pass &manual.clock */
	_Atomic uint64_t ns;
} tn_manual_clock;
void tn_manual_clock_init(tn_manual_clock *clock, uint64_t start_ns);
void tn_manual_clock_advance(tn_manual_clock *clock, uint64_t ns);

static inline uint64_t tn_clock_now(const tn_clock *clock)
{
	return clock->now_ns(clock);
}

/* Now by CLOCK_MONOTONIC. */
uint64_t tn_now(void);
/* The time of the latest tick of the kernel: before tn_now() by some milliseconds, and ten times as cheap. */
uint64_t tn_now_coarse(void);
/* The wall clock: files and people alone; it jumps. */
uint64_t tn_wall(void);
/* CPU time that the process (all threads) or the calling thread used. */
uint64_t tn_cpu_process_ns(void);
uint64_t tn_cpu_thread_ns(void);

/* Sleep; signals do not shorten it. */
void tn_sleep_ns(uint64_t ns);
void tn_sleep_until(uint64_t at_ns);

/* For poll() and epoll_wait(): milliseconds rounded up, -1 for TN_TIME_NEVER. */
int tn_poll_timeout_ms(uint64_t now_ns, uint64_t at_ns);

/* One turn of a spin loop. */
static inline void tn_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#else
	__asm__ volatile("" ::: "memory");
#endif
}

#endif

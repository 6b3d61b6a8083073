/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the machine itself stood still. On each core a thread that goes before all others (SCHED_FIFO, at the highest
 * priority) wakes every millisecond: where it comes 0.3 ms late nobody had that core, because a hypervisor took it or a thread
 * of the kernel did not yield. A program can't be faster than that, and a percentile of what it did can't be read without it.
 * Not seen: what begins and ends between two wake-ups, and threads that yield to this one, but to no other.
 *
 *   start   a thread on each core. NULL with errno: no right to that class, or no memory
 *   ns      for how long cores stood still between two times (CLOCK_MONOTONIC), summed over cores. A stall begins when the
 *           core was last seen at work: up to a millisecond early
 *   met     did a core stand still between two times, or before them, for so long that what had gathered until then was
 *           still worked off: linger times as long as it stood
 *
 * A stall that the program itself causes (its writes make the kernel work) is one, too: print ns() beside what is measured.
 *
 * Threads: all by one thread. A stall is told when it is over: ask a little later.
 */
#ifndef TERN_BENCH_STALLS_H
#define TERN_BENCH_STALLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct stalls stalls;

stalls *stalls_start(void);
uint64_t stalls_ns(const stalls *s, uint64_t from, uint64_t to);
bool stalls_met(const stalls *s, uint64_t from, uint64_t to, double linger);
unsigned stalls_cores(const stalls *s);
void stalls_stop(stalls *s);

#endif

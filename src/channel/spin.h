/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a driver spins before it sleeps. A state machine without a clock: it is told how its waits ended.
 *
 *   short   a sleep that ended within TN_SPIN_SHORT_TIMES spin times of the last thing that there was to do. It has cost both
 *           sides more than to spin on: the sleeper its way through the kernel, its peer the wake-up. Several times a keen
 *           spin: two threads that wake each other measure their own wake-ups, and must find out that they need not
 *   keen    behind TN_SPIN_SHORT_SLEEPS of those in a row threads spin TN_SPIN_TIMES as long, and the helper, which does not
 *           spin otherwise, too. One such spin in vain ends it
 *   vain    spins in a row behind which a short sleep came all the same. A thread that shares its core with the one that it
 *           waits for only keeps it from running, and as both sleep between, the kernel sees no reason to part them
 *   rest    sleeps that begin at once: behind more than TN_SPIN_VAIN spins in vain 2, 4, 8 .. 256, then it tries
 *           again. A spin that catches something ends that
 *
 * Waits that are long spin each time for as long as they are told to; nothing is learned from them but not to be keen.
 *
 * Threads: the driver's; one machine for threads that wait, one for the helper. Tests: tests/unit/channel/test_spin.c.
 */
#ifndef TN_CHANNEL_SPIN_H
#define TN_CHANNEL_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"
#include "base/time.h"

#define TN_SPIN_TIMES        4u
#define TN_SPIN_SHORT_TIMES  16u
#define TN_SPIN_SHORT_SLEEPS 2u
#define TN_SPIN_VAIN         8u
#define TN_SPIN_VAIN_MAX     (TN_SPIN_VAIN + 8u) /* counted; so a rest is at most 2^8 */
#define TN_SPIN_CLOCK_MASK   15u                 /* the clock is read every so many turns of a spin loop */

typedef struct tn_spin {
	uint32_t short_sleeps; /* in a row, up to TN_SPIN_SHORT_SLEEPS */
	uint32_t vain;
	uint32_t rest; /* left of it */
} tn_spin;

static inline bool tn_spin_keen(const tn_spin *spin)
{
	return spin->short_sleeps >= TN_SPIN_SHORT_SLEEPS && spin->rest == 0;
}

/* An option may be without end; what is made of it is not. */
static inline uint64_t tn_spin_times(uint64_t spin_ns, uint32_t times)
{
	return times * TN_MIN(spin_ns, TN_NS_PER_SEC);
}

/* Of a thread that waits. The helper's: keen or nothing. */
static inline uint64_t tn_spin_budget(const tn_spin *spin, uint64_t spin_ns)
{
	return tn_spin_keen(spin) ? tn_spin_times(spin_ns, TN_SPIN_TIMES) : spin->rest ? 0 : spin_ns;
}

/* Something came while it spun. */
static inline void tn_spin_caught(tn_spin *spin)
{
	spin->vain = 0;
}

static inline void tn_spin_missed(tn_spin *spin)
{
	spin->vain = TN_MIN(spin->vain + 1, TN_SPIN_VAIN_MAX);
	spin->rest = spin->vain > TN_SPIN_VAIN ? 1u << (spin->vain - TN_SPIN_VAIN) : 0;
}

/* Something came for a thread that slept, so long after the last thing that it had to do. spun: it did before it slept. */
static inline void tn_spin_slept(tn_spin *spin, uint64_t spin_ns, bool spun, uint64_t idle_ns)
{
	bool brief = idle_ns <= tn_spin_times(spin_ns, TN_SPIN_SHORT_TIMES), was_keen = tn_spin_keen(spin);

	if (spin->rest)
		spin->rest--;
	else if (spun && brief)
		tn_spin_missed(spin);
	if (!brief || was_keen)
		spin->short_sleeps = 0;
	else if (spin->short_sleeps < TN_SPIN_SHORT_SLEEPS)
		spin->short_sleeps++;
}

#endif

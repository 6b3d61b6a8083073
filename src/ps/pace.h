/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a saver with a rate shares its core. A state machine without a clock: it is told the time, and how much CPU time its thread
 * has used.
 *
 *   due    when the bytes that were done may have been done: nothing more before that
 *   turn   CPU time since the last rest. A kernel takes a core from a thread that works when another one wakes that it prefers, and else
 *          at a tick, up to 4 ms later; one that has slept for long is preferred for as long, whatever its priority. So nobody waits
 *          for a saver much longer than it works at a stretch, if it sleeps itself: after a turn, behind its rate or not
 *
 * Behind its rate, on a core of its own, it works TURN / (TURN + REST) of the time.
 *
 *   back   it stands back, in the kernel's idle class, as long as the rate is kept so: a core that has the saver alone counts as
 *          idle there, and who wakes is placed on it. In another class pulls waited tens of milliseconds on two cores, as if
 *          client and server had been stacked on the other one. On cores that are never idle it would not end: once it is
 *          BEHIND it takes part, like any thread of low priority, until it has caught up
 *
 * Threads: one per object. Tests: tests/unit/ps/pace_test.c.
 */
#ifndef TN_PS_PACE_H
#define TN_PS_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"
#include "base/time.h"

#define TN_PACE_TURN_NS   (100 * TN_NS_PER_US)
#define TN_PACE_REST_NS   (50 * TN_NS_PER_US) /* at least, behind a turn */
#define TN_PACE_BEHIND_NS (5 * TN_NS_PER_SEC)
#define TN_PACE_EARLY_NS \
	TN_NS_PER_MS /* less than that is not waited for within a turn: to sleep costs others, too */

typedef struct tn_pace {
	uint64_t rate; /* bytes per second; 0: neither a limit nor rests */
	uint64_t start_ns, bytes;
	uint64_t turn_cpu_ns; /* CPU time at its beginning */
} tn_pace;

static inline tn_pace tn_pace_begin(uint64_t rate, uint64_t now, uint64_t cpu_ns)
{
	return (tn_pace){.rate = rate, .start_ns = now, .turn_cpu_ns = cpu_ns};
}

/* There is a rate: when what was done is due. */
static inline uint64_t tn_pace_due(const tn_pace *pace)
{
	return pace->start_ns + (uint64_t)((double)pace->bytes / (double)pace->rate * (double)TN_NS_PER_SEC);
}

/* Is it to stand back, as it does now, or does not? */
static inline bool tn_pace_back(const tn_pace *pace, bool is_back, uint64_t now)
{
	uint64_t behind = now - TN_MIN(tn_pace_due(pace), now);

	return is_back ? behind < TN_PACE_BEHIND_NS : behind == 0;
}

/* How long to sleep now, in ns; 0: work. */
static inline uint64_t tn_pace_rest(const tn_pace *pace, uint64_t now, uint64_t cpu_ns)
{
	uint64_t due, early;

	if (pace->rate == 0)
		return 0;
	due = tn_pace_due(pace);
	early = due - TN_MIN(now, due);
	if (early < TN_PACE_EARLY_NS && cpu_ns - pace->turn_cpu_ns < TN_PACE_TURN_NS)
		return 0;
	return TN_MAX(early, TN_PACE_REST_NS);
}

/* It has slept, for that long or as much of it as it could: a new turn. */
static inline void tn_pace_rested(tn_pace *pace, uint64_t cpu_ns)
{
	pace->turn_cpu_ns = cpu_ns;
}

#endif

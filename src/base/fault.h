/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named fault points: places where a call to the outside can be made to fail on schedule.
 *
 *	if (TN_FAULT("mem.extent.commit") || ftruncate(fd, size) != 0) ...
 *
 * Always compiled in; one relaxed load and a branch while nothing is scheduled. A name is
 * "layer.object.action". Schedules: tn_fault_set (nth hit, then `count` hits), tn_fault_set_random, or
 * TERN_BASE_FAULT="name:nth[:count],name:p=0.01[:seed]"; the name "*" means every point and counts the hits
 * of all of them, so that a test can sweep n = 1, 2, ... until nothing fails any more.
 *
 * Threads: points from any; schedules from one. Tests: tests/unit/base/fault_test.c.
 */
#ifndef TN_BASE_FAULT_H
#define TN_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

#include "base/check.h"

#define TN_FAULTS_MAX 16

extern _Atomic uint32_t tn_fault_armed;

/* True when this hit has to fail. The caller plays the failure (sets errno where one is expected). */
#define TN_FAULT(name) \
	(TN_UNLIKELY(atomic_load_explicit(&tn_fault_armed, memory_order_relaxed) != 0) && tn_fault_hit(name))

bool tn_fault_hit(const char *name);

/* Fail hits nth .. nth + count - 1 (1-based) of the point. TERN_E_LIMIT past TN_FAULTS_MAX schedules. */
tern_status tn_fault_set(const char *name, uint64_t nth, uint64_t count);
/* Fail each hit with the probability, from a generator of its own. */
tern_status tn_fault_set_random(const char *name, double probability, uint64_t seed);
/* Parse and add schedules. TERN_E_OPTION with the place in the text. */
tern_status tn_fault_apply(const char *spec);
/* Drop all schedules and counts. */
void tn_fault_clear(void);

/* Hits and failures of a schedule so far; 0 for a name without schedule. */
uint64_t tn_fault_hits(const char *name);
uint64_t tn_fault_fired(const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units and arithmetic of time, without a clock: what a pure layer may use. All times are ns in u64.
 * Threads: any. Tests: tests/unit/base/clock_test.c.
 */
#ifndef TN_BASE_TIME_H
#define TN_BASE_TIME_H

#include <stdint.h>

#define TN_NS_PER_US  UINT64_C(1000)
#define TN_NS_PER_MS  UINT64_C(1000000)
#define TN_NS_PER_SEC UINT64_C(1000000000)
#define TN_TIME_NEVER UINT64_MAX

/* now + timeout, saturating; a timeout of 0 means without end: TN_TIME_NEVER. */
static inline uint64_t tn_deadline(uint64_t now_ns, uint64_t timeout_ns)
{
	if (timeout_ns == 0 || timeout_ns > TN_TIME_NEVER - now_ns)
		return TN_TIME_NEVER;
	return now_ns + timeout_ns;
}

/* What is left until at_ns; 0 if it passed. */
static inline uint64_t tn_time_left(uint64_t now_ns, uint64_t at_ns)
{
	return at_ns > now_ns ? at_ns - now_ns : 0;
}

#endif

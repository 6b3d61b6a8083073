/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The OS clock and the manual one. No other file asks the OS for time.
 * Threads: any. Tests: tests/unit/base/clock_test.c.
 */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

#include "base/check.h"

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * TN_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

uint64_t tn_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t tn_now_coarse(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE);
}

uint64_t tn_wall(void)
{
	return read_clock(CLOCK_REALTIME);
}

uint64_t tn_cpu_process_ns(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t tn_cpu_thread_ns(void)
{
	return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t monotonic_now(const tn_clock *clock)
{
	(void)clock;
	return tn_now();
}

const tn_clock tn_clock_monotonic = {.now_ns = monotonic_now};

static uint64_t manual_now(const tn_clock *clock)
{
	const tn_manual_clock *manual = TN_CONTAINER_OF(clock, tn_manual_clock, clock);

	return atomic_load(&manual->ns);
}

void tn_manual_clock_init(tn_manual_clock *clock, uint64_t start_ns)
{
	clock->clock.now_ns = manual_now;
	atomic_init(&clock->ns, start_ns);
}

void tn_manual_clock_advance(tn_manual_clock *clock, uint64_t ns)
{
	uint64_t before = atomic_fetch_add(&clock->ns, ns);

	TN_ASSERT(before <= UINT64_MAX - ns);
}

void tn_sleep_until(uint64_t at_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(at_ns / TN_NS_PER_SEC),
			      .tv_nsec = (long)(at_ns % TN_NS_PER_SEC)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

void tn_sleep_ns(uint64_t ns)
{
	if (ns)
		tn_sleep_until(tn_deadline(tn_now(), ns));
}

int tn_poll_timeout_ms(uint64_t now_ns, uint64_t at_ns)
{
	uint64_t ms;

	if (at_ns == TN_TIME_NEVER)
		return -1;
	ms = tn_time_left(now_ns, at_ns) / TN_NS_PER_MS + (tn_time_left(now_ns, at_ns) % TN_NS_PER_MS != 0);
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

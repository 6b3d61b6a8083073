/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See stalls.h. Threads: one per core writes its own list, which others read up to its count.
 */
#include "stalls.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define PERIOD_NS 1000000u
#define LATE_NS   300000u /* a wake-up takes tens of microseconds */
#define KEPT      (1u << 16)
#define CORES_MAX 256u

typedef struct core {
	struct {
		uint64_t from, to;
	} list[KEPT]; /* in order of time; more than that are not kept */
	_Atomic uint32_t count;
	const atomic_bool *stop;
	unsigned cpu;
	pthread_t thread;
} core;

struct stalls {
	atomic_bool stop;
	unsigned cores;
	core *core[CORES_MAX];
};

static uint64_t now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static void *watch(void *arg)
{
	core *c = arg;
	uint64_t seen = now_ns(), due, now;
	uint32_t n = 0;

	while (!atomic_load_explicit(c->stop, memory_order_relaxed)) {
		struct timespec at;

		due = seen + PERIOD_NS;
		at = (struct timespec){.tv_sec = (time_t)(due / 1000000000),
				       .tv_nsec = (long)(due % 1000000000)};
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
			;
		now = now_ns();
		if (now > due + LATE_NS && n < KEPT) {
			c->list[n].from = seen;
			c->list[n].to = now;
			atomic_store_explicit(&c->count, ++n, memory_order_release);
		}
		seen = now;
	}
	return NULL;
}

static int start_thread(core *c)
{
	struct sched_param param = {.sched_priority = sched_get_priority_max(SCHED_FIFO)};
	pthread_attr_t attr;
	cpu_set_t set;
	int error;

	CPU_ZERO(&set);
	CPU_SET(c->cpu, &set);
	pthread_attr_init(&attr);
	pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
	pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
	pthread_attr_setschedparam(&attr, &param);
	error = pthread_create(&c->thread, &attr, watch, c);
	pthread_attr_destroy(&attr);
	return error;
}

stalls *stalls_start(void)
{
	stalls *s = calloc(1, sizeof(*s));
	cpu_set_t mine;
	int error = s && sched_getaffinity(0, sizeof(mine), &mine) == 0 ? 0 : ENOMEM;

	for (unsigned cpu = 0; !error && cpu < CPU_SETSIZE && s->cores < CORES_MAX; cpu++) {
		core *c;

		if (!CPU_ISSET(cpu, &mine))
			continue;
		c = calloc(1, sizeof(*c));
		if (c) {
			c->cpu = cpu;
			c->stop = &s->stop;
		}
		error = c ? start_thread(c) : ENOMEM;
		if (error)
			free(c);
		else
			s->core[s->cores++] = c;
	}
	if (!error)
		return s;
	stalls_stop(s);
	errno = error;
	return NULL;
}

unsigned stalls_cores(const stalls *s)
{
	return s->cores;
}

uint64_t stalls_ns(const stalls *s, uint64_t from, uint64_t to)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < s->cores; i++) {
		const core *c = s->core[i];
		uint32_t n = atomic_load_explicit(&c->count, memory_order_acquire);

		for (uint32_t k = 0; k < n; k++) {
			uint64_t begin = c->list[k].from > from ? c->list[k].from : from;
			uint64_t end = c->list[k].to < to ? c->list[k].to : to;

			sum += end > begin ? end - begin : 0;
		}
	}
	return sum;
}

bool stalls_met(const stalls *s, uint64_t from, uint64_t to, double linger)
{
	for (unsigned i = 0; i < s->cores; i++) {
		const core *c = s->core[i];
		uint32_t n = atomic_load_explicit(&c->count, memory_order_acquire);

		for (uint32_t k = 0; k < n; k++) {
			uint64_t long_ns = c->list[k].to - c->list[k].from;

			if (c->list[k].from < to &&
			    c->list[k].to + (uint64_t)(linger * (double)long_ns) > from)
				return true;
		}
	}
	return false;
}

void stalls_stop(stalls *s)
{
	if (!s)
		return;
	atomic_store(&s->stop, true);
	for (unsigned i = 0; i < s->cores; i++) {
		pthread_join(s->core[i]->thread, NULL);
		free(s->core[i]);
	}
	free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues, helpers and sleeping of a crew. See crew.h.
 *
 * A queue is a ring: its member alone adds at the tail; everybody takes at the head by compare and swap. Its length is at
 * least the number of tasks, so it is never full and a slot is not written again while somebody may still read it: he
 * would find the head moved.
 *
 *   helper:  (closed) <-- close -- (looks for a task) -- none: idle + 1, looks again --> asleep on `epoch`
 *                 |                   ^    |  ^                                             |
 *                 +------- open ------+    |  +---------- epoch moved ----------------------+
 *                                          v
 *                                  running + 1, open? task: run
 *
 * Threads: see crew.h. Tests: tests/unit/graph/crew_test.c.
 */
#include "graph/crew.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/os.h"

enum { AWAKE, WAITS, SLEEPS }; /* of the captain */

typedef struct crew_queue {
	_Alignas(TN_CACHE_LINE) _Atomic uint32_t head;
	_Alignas(TN_CACHE_LINE) _Atomic uint32_t tail;
	_Atomic uint32_t *slots;
} crew_queue;

typedef struct crew_member {
	tn_crew *crew;
	uint32_t number;
	tn_thread thread;
} crew_member;

struct tn_crew {
	tn_crew_params params;
	uint32_t mask;                                    /* of a queue's slots */
	_Alignas(TN_CACHE_LINE) _Atomic uint32_t epoch;   /* sleepers wait for it to move */
	_Atomic uint32_t idle;                            /* helpers that sleep or are about to */
	_Atomic uint32_t captain;                         /* AWAKE ... */
	atomic_bool woken;                                /* tn_crew_wake since the captain's last sleep */
	_Alignas(TN_CACHE_LINE) _Atomic uint32_t running; /* helpers that may be at the owner's memory */
	atomic_bool open, stop;
	_Alignas(TN_CACHE_LINE) _Atomic uint32_t posted; /* the newest, + 1; 0: none */
	uint32_t *link;                                  /* per posted task: as posted */
	crew_queue *queues;
	crew_member *members;
	_Atomic uint32_t *slots;
};

/* ---- sleeping ---- */

static void wake_sleepers(tn_crew *c)
{
	atomic_fetch_add(&c->epoch, 1);
	tn_os_futex_wake(&c->epoch, INT32_MAX, false);
}

/* There is something for the captain. */
static void call_captain(tn_crew *c)
{
	uint32_t was = atomic_load(&c->captain);

	if (was == AWAKE)
		return;
	was = atomic_exchange(&c->captain, AWAKE);
	if (was == WAITS)
		c->params.wake(c->params.arg);
	else if (was == SLEEPS)
		wake_sleepers(c);
}

/* There are tasks in the queue of `member` beyond what he takes himself. */
static void call_crew(tn_crew *c, uint32_t member)
{
	if (atomic_load(&c->idle))
		wake_sleepers(c);
	if (member)
		call_captain(c);
}

static bool has_task(tn_crew *c)
{
	for (uint32_t i = 0; i < c->params.members; i++) {
		if (atomic_load(&c->queues[i].head) != atomic_load(&c->queues[i].tail))
			return true;
	}
	return false;
}

bool tn_crew_will_wait(tn_crew *c)
{
	if (c->params.members == 1)
		return true;
	atomic_store(&c->captain, WAITS);
	if (!atomic_load(&c->posted) && !has_task(c))
		return true;
	atomic_store(&c->captain, AWAKE);
	return false;
}

void tn_crew_waited(tn_crew *c)
{
	if (c->params.members > 1)
		atomic_store(&c->captain, AWAKE);
}

void tn_crew_sleep(tn_crew *c, uint64_t deadline_ns)
{
	uint32_t epoch = atomic_load(&c->epoch);
	uint64_t now = tn_now();

	atomic_store(&c->captain, SLEEPS);
	if (!atomic_exchange(&c->woken, false) && !atomic_load(&c->posted) && !has_task(c) &&
	    now < deadline_ns)
		tn_os_futex_wait(&c->epoch, epoch,
				 deadline_ns == TN_TIME_NEVER ? UINT64_MAX : deadline_ns - now, false);
	atomic_store(&c->captain, AWAKE);
}

void tn_crew_wake(tn_crew *c)
{
	if (c->params.members == 1)
		return;
	atomic_store(&c->woken, true);
	wake_sleepers(c);
}

/* ---- queues ---- */

void tn_crew_push(tn_crew *c, uint32_t member, uint32_t task)
{
	crew_queue *q = &c->queues[member];
	uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);

	TN_ASSERT(tail - atomic_load_explicit(&q->head, memory_order_relaxed) <= c->mask);
	atomic_store_explicit(&q->slots[tail & c->mask], task, memory_order_relaxed);
	if (c->params.members == 1)
		atomic_store_explicit(&q->tail, tail + 1, memory_order_relaxed);
	else
		atomic_store(&q->tail, tail + 1);
}

static uint32_t take_from(tn_crew *c, crew_queue *q)
{
	uint32_t head = atomic_load(&q->head);

	while (head != atomic_load(&q->tail)) {
		uint32_t task = atomic_load_explicit(&q->slots[head & c->mask], memory_order_relaxed);

		if (atomic_compare_exchange_weak(&q->head, &head, head + 1))
			return task;
	}
	return TN_CREW_NONE;
}

uint32_t tn_crew_take(tn_crew *c, uint32_t member)
{
	crew_queue *own = &c->queues[member];

	for (uint32_t i = 0; i < c->params.members; i++) {
		uint32_t task = take_from(c, &c->queues[(member + i) % c->params.members]);

		if (task == TN_CREW_NONE)
			continue;
		if (c->params.members > 1 && atomic_load(&own->head) != atomic_load(&own->tail))
			call_crew(c, member);
		return task;
	}
	return TN_CREW_NONE;
}

/* ---- posts ---- */

void tn_crew_post(tn_crew *c, uint32_t task)
{
	uint32_t before = atomic_load_explicit(&c->posted, memory_order_relaxed);

	do {
		c->link[task] = before;
	} while (!atomic_compare_exchange_weak(&c->posted, &before, task + 1));
	call_captain(c);
}

uint32_t tn_crew_collect(tn_crew *c)
{
	uint32_t at, oldest = 0;

	if (!atomic_load_explicit(&c->posted, memory_order_relaxed))
		return TN_CREW_NONE;
	/* From newest first to oldest first. */
	for (at = atomic_exchange(&c->posted, 0); at;) {
		uint32_t older = c->link[at - 1];

		c->link[at - 1] = oldest;
		oldest = at;
		at = older;
	}
	return oldest - 1;
}

uint32_t tn_crew_next(const tn_crew *c, uint32_t task)
{
	return c->link[task] - 1; /* 0: TN_CREW_NONE */
}

/* ---- helpers ---- */

/* Runs a task if there is one and the crew is open. */
static bool work(tn_crew *c, uint32_t member)
{
	uint32_t task = TN_CREW_NONE;

	atomic_fetch_add(&c->running, 1);
	if (atomic_load(&c->open))
		task = tn_crew_take(c, member);
	if (task != TN_CREW_NONE)
		c->params.run(c->params.arg, member, task);
	if (atomic_fetch_sub(&c->running, 1) == 1 && !atomic_load(&c->open))
		tn_os_futex_wake(&c->running, INT32_MAX, false);
	return task != TN_CREW_NONE;
}

static void *helper(void *arg)
{
	const crew_member *m = arg;
	tn_crew *c = m->crew;

	if (c->params.begin)
		c->params.begin(c->params.arg);
	while (!atomic_load(&c->stop)) {
		uint32_t epoch = atomic_load(&c->epoch);

		if (work(c, m->number))
			continue;
		atomic_fetch_add(&c->idle, 1);
		if (!(atomic_load(&c->open) && has_task(c)) && !atomic_load(&c->stop))
			tn_os_futex_wait(&c->epoch, epoch, UINT64_MAX, false);
		atomic_fetch_sub(&c->idle, 1);
	}
	return NULL;
}

/* ---- life ---- */

void tn_crew_open(tn_crew *c)
{
	if (c->params.members == 1)
		return;
	atomic_store(&c->open, true);
	if (has_task(c))
		wake_sleepers(c);
}

void tn_crew_close(tn_crew *c)
{
	uint32_t running;

	if (c->params.members == 1)
		return;
	atomic_store(&c->open, false);
	while ((running = atomic_load(&c->running)))
		tn_os_futex_wait(&c->running, running, UINT64_MAX, false);
}

void tn_crew_destroy(tn_crew *c)
{
	if (!c)
		return;
	atomic_store(&c->stop, true);
	wake_sleepers(c);
	for (uint32_t i = 1; i < c->params.members && c->members; i++)
		tn_os_thread_join(&c->members[i].thread);
	free(c->link);
	free(c->queues);
	free(c->members);
	free(c->slots);
	free(c);
}

static tern_status start_helpers(tn_crew *c)
{
	for (uint32_t i = 1; i < c->params.members; i++) {
		c->members[i] = (crew_member){.crew = c, .number = i};
		TN_TRY(tn_os_thread_start(&c->members[i].thread, "tern-crew", helper, &c->members[i]));
	}
	return TERN_OK;
}

tern_status tn_crew_create(const tn_crew_params *params, tn_crew **crew)
{
	uint32_t slots = 16, n = params->members;
	tern_status st = TERN_OK;
	tn_crew *c;

	if (n < 1 || n > TN_CREW_MAX)
		return tn_fail(TERN_E_INVALID, "threads of an executor: %u is not in 1..%u", n, TN_CREW_MAX);
	while (slots < params->tasks + 1)
		slots *= 2;
	c = aligned_alloc(TN_CACHE_LINE, sizeof(*c));
	if (!c)
		return tn_fail(TERN_E_NOMEM, "no memory for a crew");
	*c = (tn_crew){.params = *params, .mask = slots - 1};
	c->queues = aligned_alloc(TN_CACHE_LINE, n * sizeof(*c->queues));
	c->slots = calloc((uint64_t)n * slots, sizeof(*c->slots));
	c->members = calloc(n, sizeof(*c->members));
	c->link = calloc(params->tasks + 1, sizeof(*c->link));
	if (!c->queues || !c->slots || !c->members || !c->link)
		st = tn_fail(TERN_E_NOMEM, "no memory for a crew of %u", n);
	for (uint32_t i = 0; i < n && st == TERN_OK; i++)
		c->queues[i] = (crew_queue){.slots = c->slots + (uint64_t)i * slots};
	if (st == TERN_OK)
		st = start_helpers(c);
	if (st != TERN_OK) {
		tn_crew_destroy(c);
		return st;
	}
	*crew = c;
	return TERN_OK;
}

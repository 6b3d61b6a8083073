/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crews by themselves: graphs of made-up tasks, each of which must run once and after those it waits for, by one to four
 * members, with the captain's own tasks, posts, sleeps and closings in between. A wake-up that is lost shows as a test that
 * does not end; what is not ordered shows under the thread sanitizer, because tasks hand plain numbers on.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cmocka_all.h"
#include "graph/crew.h"

enum { TASKS = 200, EDGES = 3 };

typedef struct task {
	uint32_t next[EDGES], n_next, needs;
	_Atomic uint32_t pending;
	bool captains; /* only he may run it */
	bool done;     /* posted because it is over, not because it is ready */
	uint64_t sum;  /* plain: ordered by pending */
	uint64_t parts[TASKS];
} task;

static task tasks[TASKS];
static tn_crew *crew;
static uint32_t ran; /* the captain's */
static uint64_t seed = 1;
/* what the captain waits for beside the crew */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool woken;

static uint32_t below(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

static void wake(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	woken = true;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

static void wait_outside(void)
{
	pthread_mutex_lock(&lock);
	while (!woken)
		pthread_cond_wait(&changed, &lock);
	woken = false;
	pthread_mutex_unlock(&lock);
}

static void make_graph(void)
{
	memset(tasks, 0, sizeof(tasks));
	for (uint32_t i = 0; i < TASKS; i++) {
		tasks[i].captains = below(8) == 0;
		for (uint32_t k = 0; k < EDGES && i + 1 < TASKS; k++) {
			uint32_t to = i + 1 + below(TASKS - i - 1 < 20 ? TASKS - i - 1 : 20);

			tasks[i].next[tasks[i].n_next++] = to;
			tasks[to].needs++;
		}
	}
}

static void hand_on(uint32_t member, uint32_t i)
{
	if (!tasks[i].captains) {
		tn_crew_push(crew, member, i);
		return;
	}
	tasks[i].done = false;
	if (member)
		tn_crew_post(crew, i);
}

/* The captain's own list: ready tasks that only he may run. */
static uint32_t own[TASKS], n_own;

static void compute(uint32_t i)
{
	tasks[i].sum = i;
	for (uint32_t k = 0; k < TASKS; k++)
		tasks[i].sum += tasks[i].parts[k];
}

static void release(uint32_t member, uint32_t i)
{
	for (uint32_t k = 0; k < tasks[i].n_next; k++) {
		task *t = &tasks[tasks[i].next[k]];

		t->parts[i] += tasks[i].sum % 1000003;
		if (atomic_fetch_sub(&t->pending, 1) != 1)
			continue;
		if (t->captains && member == 0)
			own[n_own++] = tasks[i].next[k];
		else
			hand_on(member, tasks[i].next[k]);
	}
}

static void run(void *arg, uint32_t member, uint32_t i)
{
	(void)arg;
	compute(i);
	release(member, i);
	tasks[i].done = true;
	tn_crew_post(crew, i);
}

static void collect(void)
{
	uint32_t i = tn_crew_collect(crew);

	while (i != TN_CREW_NONE) {
		uint32_t next = tn_crew_next(crew, i);

		if (tasks[i].done)
			ran++;
		else
			own[n_own++] = i;
		i = next;
	}
}

static void run_here(uint32_t i)
{
	compute(i);
	release(0, i);
	ran++;
}

static void step(uint32_t round)
{
	ran = n_own = 0;
	for (uint32_t i = 0; i < TASKS; i++) {
		atomic_store(&tasks[i].pending, tasks[i].needs);
		memset(tasks[i].parts, 0, sizeof(tasks[i].parts));
	}
	tn_crew_open(crew);
	for (uint32_t i = 0; i < TASKS; i++) {
		if (tasks[i].needs == 0 && tasks[i].captains)
			own[n_own++] = i;
		else if (tasks[i].needs == 0)
			tn_crew_push(crew, 0, i);
	}
	while (ran < TASKS) {
		uint32_t i;

		collect();
		if (below(50) == 0) { /* as an interruption does */
			tn_crew_close(crew);
			tn_crew_open(crew);
		}
		if (n_own) {
			run_here(own[--n_own]);
		} else if ((i = tn_crew_take(crew, 0)) != TN_CREW_NONE) {
			run_here(i);
		} else if (ran == TASKS) {
			break;
		} else if (round % 2) {
			tn_crew_sleep(crew, TN_TIME_NEVER);
		} else {
			if (tn_crew_will_wait(crew))
				wait_outside();
			tn_crew_waited(crew);
		}
	}
	tn_crew_close(crew);
	assert_int_equal(tn_crew_collect(crew), TN_CREW_NONE);
	assert_int_equal(tn_crew_take(crew, 0), TN_CREW_NONE);
}

static void every_task_runs_once_and_in_order(void **state)
{
	static uint64_t alone[TASKS];

	(void)state;
	for (uint32_t members = 1; members <= 4; members++) {
		tn_crew_params params = {.members = members, .tasks = TASKS, .run = run, .wake = wake};

		seed = 7;
		make_graph();
		assert_ok(tn_crew_create(&params, &crew));
		for (uint32_t round = 0; round < 150; round++) {
			step(round);
			for (uint32_t i = 0; i < TASKS; i++) {
				if (members == 1)
					alone[i] = tasks[i].sum;
				assert_int_equal(tasks[i].sum, alone[i]);
			}
		}
		tn_crew_destroy(crew);
	}
}

static void *wake_later(void *arg)
{
	(void)arg;
	tn_sleep_ns(2 * TN_NS_PER_MS);
	tn_crew_wake(crew);
	return NULL;
}

/* Whether it comes before the sleep or during it; deadlines as well. */
static void a_wake_ends_a_sleep(void **state)
{
	tn_crew_params params = {.members = 2, .tasks = 1, .run = run, .wake = wake};
	pthread_t thread;

	(void)state;
	assert_ok(tn_crew_create(&params, &crew));
	tn_crew_open(crew);
	tn_crew_wake(crew);
	tn_crew_sleep(crew, TN_TIME_NEVER);
	assert_int_equal(pthread_create(&thread, NULL, wake_later, NULL), 0);
	tn_crew_sleep(crew, TN_TIME_NEVER);
	pthread_join(thread, NULL);
	tn_crew_sleep(crew, tn_now() + TN_NS_PER_MS);
	tn_crew_sleep(crew, tn_now() + TN_NS_PER_MS);
	tn_crew_close(crew);
	tn_crew_destroy(crew);
}

static void sizes_are_bounded(void **state)
{
	tn_crew_params params = {.members = 0, .tasks = 1, .run = run, .wake = wake};

	(void)state;
	assert_status(tn_crew_create(&params, &crew), TERN_E_INVALID);
	params.members = TN_CREW_MAX + 1;
	assert_status(tn_crew_create(&params, &crew), TERN_E_INVALID);
	tn_crew_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_task_runs_once_and_in_order),
		cmocka_unit_test(a_wake_ends_a_sleep),
		cmocka_unit_test(sizes_are_bounded),
	};

	return RUN(tests);
}

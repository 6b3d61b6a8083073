/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a test over one pair: what each is given, and its verdict, which the main thread reports.
 */
#ifndef TERN_TESTS_CHANNEL_WORKERS_H
#define TERN_TESTS_CHANNEL_WORKERS_H

#include "chan_test.h"

typedef struct worker {
	pair *p;
	int index;
	tern_status status;
	int line;
	uint8_t *dst; /* at serve */
	tern_key key;
	pthread_t thread;
} worker;

/* In a thread's function, where w is its worker: end it with that status and line. */
#define CHECK(expr)                          \
	do {                                 \
		tern_status check_ = (expr); \
		if (check_ != TERN_OK) {     \
			w->status = check_;  \
			w->line = __LINE__;  \
			return NULL;         \
		}                            \
	} while (0)

static inline void join_all(worker *workers, int n)
{
	for (int i = 0; i < n; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < n; i++) {
		if (workers[i].status != TERN_OK)
			fail_msg("thread %d, line %d: %s", i, workers[i].line,
				 tern_status_name(workers[i].status));
	}
}

static inline void run_all(worker *workers, int n, pair *p, void *(*work)(void *))
{
	for (int i = 0; i < n; i++) {
		workers[i].p = p;
		workers[i].index = i;
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	}
	join_all(workers, n);
}

#endif

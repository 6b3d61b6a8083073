/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What links in several threads share in tests: the lock that a shell would give, and a semaphore for its wake.
 */
#ifndef TERN_TESTS_LINK_SHARED_H
#define TERN_TESTS_LINK_SHARED_H

#include <pthread.h>
#include <semaphore.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static inline void lock_take(void *arg)
{
	pthread_mutex_lock(arg);
}

static inline void lock_drop(void *arg)
{
	pthread_mutex_unlock(arg);
}

static inline void wake_up(void *arg)
{
	sem_post(arg);
}

#endif

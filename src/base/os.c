/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls of base: randomness, eventfd, futex, pidfd, threads. See os.h for what is not here.
 * Threads: any. Tests: tests/unit/base/os_test.c.
 */
#include "base/os.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"

#define BRISK_SLICE_NS 100000u /* the least that the kernel takes */
#define MODEST_NICE    10

static void (*random_from)(void *buf, uint64_t bytes);

void tn_os_random_from(void (*fill)(void *buf, uint64_t bytes))
{
	random_from = fill;
}

tern_status tn_os_random(void *buf, uint64_t bytes)
{
	uint8_t *at = buf;

	if (random_from) {
		random_from(buf, bytes);
		return TERN_OK;
	}
	while (bytes) {
		size_t piece = bytes < 256 ? bytes : 256; /* up to 256 bytes are never cut short */
		ssize_t n = TN_FAULT("base.os.random") ? (errno = ENOSYS, -1) : getrandom(at, piece, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return tn_fail_errno(TERN_E_OS, "getrandom", "the kernel gives no random bytes");
		at += n;
		bytes -= (uint64_t)n;
	}
	return TERN_OK;
}

tern_status tn_os_event_create(int *fd)
{
	*fd = TN_FAULT("base.os.eventfd") ? (errno = EMFILE, -1) : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (*fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "eventfd",
				     "descriptors ran out? raise the limit with 'ulimit -n'");
	return TERN_OK;
}

void tn_os_event_signal(int fd)
{
	int saved = errno;
	uint64_t one = 1;
	ssize_t n;

	do {
		n = write(fd, &one, sizeof(one));
	} while (n < 0 && errno == EINTR);
	TN_ASSERT(n == (ssize_t)sizeof(one) || errno == EAGAIN); /* EAGAIN: full, so readable already */
	errno = saved;
}

bool tn_os_event_drain(int fd)
{
	int saved = errno;
	uint64_t count;
	ssize_t n;

	do {
		n = read(fd, &count, sizeof(count));
	} while (n < 0 && errno == EINTR);
	TN_ASSERT(n == (ssize_t)sizeof(count) || errno == EAGAIN);
	errno = saved;
	return n > 0;
}

static bool futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns, bool shared,
		       uint32_t bits)
{
	uint64_t at_ns = tn_deadline(tn_now(), timeout_ns ? timeout_ns : 1);
	struct timespec at = {.tv_sec = (time_t)(at_ns / TN_NS_PER_SEC),
			      .tv_nsec = (long)(at_ns % TN_NS_PER_SEC)};
	/* FUTEX_WAIT_BITSET takes an absolute time on CLOCK_MONOTONIC: an interruption does not lengthen it. */
	int op = FUTEX_WAIT_BITSET | (shared ? 0 : FUTEX_PRIVATE_FLAG);
	int saved = errno;
	bool woken = true;

	while (syscall(SYS_futex, word, op, expected, at_ns == TN_TIME_NEVER ? NULL : &at, NULL, bits) != 0) {
		if (errno == EINTR)
			continue;
		TN_ASSERT(errno == EAGAIN || errno == ETIMEDOUT);
		woken = errno != ETIMEDOUT;
		break;
	}
	errno = saved;
	return woken;
}

bool tn_os_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns, bool shared)
{
	return futex_wait(word, expected, timeout_ns, shared, FUTEX_BITSET_MATCH_ANY);
}

void tn_os_futex_wait_for(_Atomic uint32_t *word, uint32_t expected, uint32_t bits)
{
	futex_wait(word, expected, UINT64_MAX, false, bits);
}

void tn_os_futex_wake_for(_Atomic uint32_t *word, uint32_t bits)
{
	int saved = errno;

	syscall(SYS_futex, word, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, INT32_MAX, NULL, NULL, bits);
	errno = saved;
}

void tn_os_futex_wake(_Atomic uint32_t *word, int waiters, bool shared)
{
	int saved = errno;

	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), waiters, NULL, NULL, 0);
	errno = saved;
}

tern_status tn_os_pidfd_open(pid_t pid, int *fd)
{
	*fd = TN_FAULT("base.os.pidfd") ? (errno = EMFILE, -1) : (int)syscall(SYS_pidfd_open, pid, 0);
	if (*fd < 0)
		return tn_fail_errno(tn_status_of_errno(errno), "pidfd_open", "process %d", (int)pid);
	return TERN_OK;
}

bool tn_os_pidfd_dead(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

_Atomic uint32_t tn_os_forks;

static void after_fork(void)
{
	atomic_fetch_add(&tn_os_forks, 1);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

tern_status tn_os_thread_start(tn_thread *thread, const char *name, void *(*run)(void *arg), void *arg)
{
	sigset_t all, old;
	char cut[16];
	int err;

	TN_ASSERT(!thread->started);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited by the new thread */
	err = TN_FAULT("base.os.thread") ? EAGAIN : pthread_create(&thread->id, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		errno = err;
		return tn_fail_errno(TERN_E_LIMIT, "pthread_create",
				     "no thread '%s': raise the limit of processes ('ulimit -u', pids.max)",
				     name);
	}
	snprintf(cut, sizeof(cut), "%.15s", name);
	pthread_setname_np(thread->id, cut);
	thread->started = true;
	return TERN_OK;
}

/* struct sched_attr, which no header of the C library has. */
typedef struct sched_wish {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
} sched_wish;

/* Policy and slice of the calling thread, if its policy is from. slice_ns 0: the kernel's. */
static bool wish(uint32_t from, uint32_t to, uint64_t slice_ns)
{
	sched_wish w = {0};
	int saved = errno;
	bool done = false;

	if (syscall(SYS_sched_getattr, 0, &w, sizeof(w), 0u) == 0 && w.policy == from) {
		w.size = sizeof(w);
		w.policy = to;
		w.runtime = slice_ns;
		done = syscall(SYS_sched_setattr, 0, &w, 0u) == 0;
	}
	errno = saved;
	return done;
}

void tn_os_thread_brisk(void)
{
	(void)wish(SCHED_OTHER, SCHED_OTHER, BRISK_SLICE_NS);
}

/* Whose nice value may go down a step may leave the idle class as well: the kernel asks for the same right. */
static bool may_come_back(void)
{
	int saved = errno, nice = getpriority(PRIO_PROCESS, 0);
	bool may = setpriority(PRIO_PROCESS, 0, nice - 1) == 0;

	if (may)
		(void)setpriority(PRIO_PROCESS, 0, nice);
	errno = saved;
	return may;
}

void tn_os_thread_modest(void)
{
	int saved = errno;

	(void)setpriority(PRIO_PROCESS, 0, TN_MIN(getpriority(PRIO_PROCESS, 0) + MODEST_NICE, 19));
	errno = saved;
	(void)wish(SCHED_OTHER, SCHED_BATCH, 0);
}

bool tn_os_thread_idle(bool on)
{
	return on ? may_come_back() && wish(SCHED_BATCH, SCHED_IDLE, 0) : wish(SCHED_IDLE, SCHED_BATCH, 0);
}

void tn_os_thread_join(tn_thread *thread)
{
	if (!thread->started)
		return;
	TN_ASSERT(!pthread_equal(thread->id, pthread_self()));
	pthread_join(thread->id, NULL);
	thread->started = false;
}

tern_status tn_os_thread_bind(int cpu)
{
	cpu_set_t set;
	int err;

	CPU_ZERO(&set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (cpu < 0 || i == cpu)
			CPU_SET((size_t)i, &set);
	if (cpu >= CPU_SETSIZE)
		return tn_fail(TERN_E_INVALID, "CPU %d: the largest number is %d", cpu, CPU_SETSIZE - 1);
	err = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (err) {
		errno = err;
		return tn_fail_errno(TERN_E_OS, "pthread_setaffinity_np",
				     "CPU %d: not usable by this process", cpu);
	}
	return TERN_OK;
}

uint64_t tn_os_thread_id(void)
{
	return (uint64_t)gettid();
}

void tn_os_close(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

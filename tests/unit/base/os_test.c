/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/os.h: wake-ups, process handles, threads and facts.
 */
#include "base/os.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cmocka_all.h"

static void random_bytes_differ(void **state)
{
	uint8_t a[1000] = {0}, b[1000] = {0};

	(void)state;
	assert_ok(tn_os_random(a, sizeof(a)));
	assert_ok(tn_os_random(b, sizeof(b)));
	assert_memory_not_equal(a, b, sizeof(a));
	assert_memory_not_equal(a + 900, b + 900, 100);
	assert_ok(tn_os_random(a, 0));
	assert_ok(tn_fault_set("base.os.random", 1, 1));
	assert_status(tn_os_random(a, 1), TERN_E_OS);
	tn_fault_clear();
}

static void an_event_is_readable_until_drained(void **state)
{
	struct pollfd p = {.events = POLLIN};

	(void)state;
	assert_ok(tn_os_event_create(&p.fd));
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_false(tn_os_event_drain(p.fd));
	tn_os_event_signal(p.fd);
	tn_os_event_signal(p.fd);
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_true(tn_os_event_drain(p.fd));
	assert_int_equal(poll(&p, 1, 0), 0);
	tn_os_close(&p.fd);
	assert_int_equal(p.fd, -1);
	tn_os_close(&p.fd);
}

static _Atomic uint32_t word;

static void *wake_later(void *arg)
{
	(void)arg;
	tn_sleep_ns(5 * TN_NS_PER_MS);
	atomic_store(&word, 1);
	tn_os_futex_wake(&word, 1, false);
	return NULL;
}

static void a_futex_wakes_and_times_out(void **state)
{
	tn_thread thread = {0};

	(void)state;
	atomic_store(&word, 0);
	assert_false(tn_os_futex_wait(&word, 0, TN_NS_PER_MS, true));
	assert_true(tn_os_futex_wait(&word, 7, UINT64_MAX, false));
	assert_ok(tn_os_thread_start(&thread, "unit-wake-with-a-long-name", wake_later, NULL));
	while (atomic_load(&word) == 0)
		tn_os_futex_wait(&word, 0, UINT64_MAX, false);
	tn_os_thread_join(&thread);
	tn_os_thread_join(&thread);
}

static _Atomic uint32_t gate;
static _Atomic int through[2];

static void *wait_at_gate(void *arg)
{
	int mine = *(int *)arg;

	while (!(atomic_load(&gate) & 1u << mine))
		tn_os_futex_wait_for(&gate, atomic_load(&gate) & ~(1u << mine), 1u << mine);
	atomic_store(&through[mine], 1);
	return NULL;
}

/* Each waits for a bit of its own; the other's wake does not let it through. */
static void a_futex_wakes_by_bits(void **state)
{
	int index[2] = {0, 1};
	pthread_t threads[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_at_gate, &index[i]), 0);
	for (int i = 1; i >= 0; i--) {
		atomic_fetch_or(&gate, 1u << i);
		tn_os_futex_wake_for(&gate, 1u << i);
		pthread_join(threads[i], NULL);
		assert_int_equal(through[i], 1);
		assert_int_equal(through[0], i == 0);
	}
	tn_os_thread_brisk(); /* a hint: nothing to see */
}

/* NULL, or what is wrong. may: whether it can come back, if that is known. */
static const char *stand_back(const bool *may)
{
	bool back;

	tn_os_thread_modest();
	if (sched_getscheduler(0) != SCHED_BATCH)
		return "not modest";
	back = tn_os_thread_idle(true);
	if (may && *may != back)
		return "the right to come back was misjudged";
	if (sched_getscheduler(0) != (back ? SCHED_IDLE : SCHED_BATCH))
		return "not idle, or for ever";
	if (back && (!tn_os_thread_idle(false) || sched_getscheduler(0) != SCHED_BATCH))
		return "it did not come back";
	return NULL;
}

static void *stand_back_here(void *bad)
{
	*(const char **)bad = stand_back(NULL);
	return NULL;
}

/* Who can't leave the idle class does not enter it. Threads alone change, not the program. */
static void modest_threads_come_back(void **state)
{
	struct rlimit none = {0};
	bool may = false;
	pthread_t thread;
	const char *bad;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, stand_back_here, &bad), 0);
	pthread_join(thread, NULL);
	if (bad)
		fail_msg("%s", bad);
	assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) { /* without rights */
		if (setrlimit(RLIMIT_NICE, &none) != 0 || (geteuid() == 0 && setuid(65534) != 0))
			_exit(3);
		_exit(stand_back(&may) == NULL ? 0 : 4);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void a_pidfd_tells_of_death(void **state)
{
	uint32_t generation = tn_os_fork_generation();
	pid_t pid;
	int fd, status;

	(void)state;
	pid = fork();
	if (pid == 0) {
		/* the child knows that it is one */
		if (tn_os_fork_generation() != generation + 1)
			_exit(3);
		pause();
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(tn_os_fork_generation(), generation);
	assert_ok(tn_os_pidfd_open(pid, &fd));
	assert_false(tn_os_pidfd_dead(fd));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_true(tn_os_pidfd_dead(fd));
	tn_os_close(&fd);
	assert_status(tn_os_pidfd_open(pid, &fd), TERN_E_NOT_FOUND);
}

static void *blocked_signals(void *arg)
{
	sigset_t set;

	pthread_sigmask(SIG_SETMASK, NULL, &set);
	*(int *)arg = sigismember(&set, SIGTERM);
	return NULL;
}

static void threads_leave_signals_to_the_application(void **state)
{
	tn_thread thread = {0};
	int blocked = 0;

	(void)state;
	assert_ok(tn_os_thread_start(&thread, "unit", blocked_signals, &blocked));
	tn_os_thread_join(&thread);
	assert_int_equal(blocked, 1);
	assert_ok(tn_fault_set("base.os.thread", 1, 1));
	assert_status(tn_os_thread_start(&thread, "unit", blocked_signals, &blocked), TERN_E_LIMIT);
	tn_fault_clear();
	tn_os_thread_join(&thread);
	assert_status(tn_os_thread_bind(1 << 20), TERN_E_INVALID);
	assert_ok(tn_os_thread_bind(-1));
}

static void facts_are_plausible(void **state)
{
	tn_os_limits limits;

	(void)state;
	tn_os_limits_get(&limits);
	assert_true(limits.memory_bytes > 1 << 20);
	assert_true(limits.files > 0 && limits.files <= limits.files_max);
	assert_true(limits.memlock_bytes <= limits.memlock_bytes_max);
	assert_true(limits.kernel[0] && limits.host[0] && limits.shmem_thp[0]);
	assert_true(tn_os_page_bytes() >= 4096);
	assert_true(tn_os_cpus() >= 1);
	assert_true(tn_os_raise_files(0) == limits.files);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_bytes_differ),
		cmocka_unit_test(an_event_is_readable_until_drained),
		cmocka_unit_test(a_futex_wakes_and_times_out),
		cmocka_unit_test(a_futex_wakes_by_bits),
		cmocka_unit_test(modest_threads_come_back),
		cmocka_unit_test(a_pidfd_tells_of_death),
		cmocka_unit_test(threads_leave_signals_to_the_application),
		cmocka_unit_test(facts_are_plausible),
	};

	return RUN(tests);
}

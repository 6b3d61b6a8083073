/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Base's one door to the OS: randomness, wake-up descriptors, futexes, process handles, threads, limits and
 * facts about the host. Not time (clock.h), not mappings (mem and shm have doors of their own), not the
 * environment (options.h).
 *
 * Every function sets the detail text when it fails. Threads: any. Tests: tests/unit/base/os_test.c.
 */
#ifndef TN_BASE_OS_H
#define TN_BASE_OS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tern/status.h>

/* Bytes from the kernel's generator; blocks at most at boot. */
tern_status tn_os_random(void *buf, uint64_t bytes);
/* Reproducible runs (sim): bytes come from fill from now on, in the whole process; NULL: the kernel again. One
   thread, while no other asks. */
void tn_os_random_from(void (*fill)(void *buf, uint64_t bytes));

/* ---- wake-up: an eventfd, non-blocking, close on exec ---- */
tern_status tn_os_event_create(int *fd);
/* Make it readable. Never blocks; async-signal-safe. */
void tn_os_event_signal(int fd);
/* Make it not readable. True if it was. */
bool tn_os_event_drain(int fd);

/* ---- futex on a 32-bit word; shared: between processes that map the same page ---- */
/* Sleep while *word == expected, at most timeout_ns (UINT64_MAX: without end). True: woken or changed. */
bool tn_os_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns, bool shared);
void tn_os_futex_wake(_Atomic uint32_t *word, int waiters, bool shared);
/* Of one process: the wake reaches those alone who wait for one of its bits (not 0). */
void tn_os_futex_wait_for(_Atomic uint32_t *word, uint32_t expected, uint32_t bits);
void tn_os_futex_wake_for(_Atomic uint32_t *word, uint32_t bits);

/* ---- processes ---- */
/* A descriptor that polls readable when the process is gone. TERN_E_NOT_FOUND: it is gone already. */
tern_status tn_os_pidfd_open(pid_t pid, int *fd);
/* True if the process behind the pidfd has ended. */
bool tn_os_pidfd_dead(int fd);
/*
 * Raised in each forked child: an object that stores it at birth and finds another value now belongs to
 * the parent (TERN_E_FORKED). One relaxed load.
 */
extern _Atomic uint32_t tn_os_forks;
static inline uint32_t tn_os_fork_generation(void)
{
	return atomic_load_explicit(&tn_os_forks, memory_order_relaxed);
}

/* ---- threads ---- */
typedef struct tn_thread {
	pthread_t id;
	bool started;
} tn_thread;
/* All signals are blocked in it (they belong to the application). name: cut at 15 bytes. */
tern_status tn_os_thread_start(tn_thread *thread, const char *name, void *(*run)(void *arg), void *arg);
/* Harmless if it was not started. Not from itself. */
void tn_os_thread_join(tn_thread *thread);
/*
 * The calling thread does little at a time and others wait for it: ask for short time slices, so that it runs soon when
 * something wakes it while all cores are busy. A hint: no effect before Linux 6.12, or under another policy than the
 * ordinary one.
 */
void tn_os_thread_brisk(void);
/*
 * The calling thread has time: from now on it has ten steps less of priority, and takes no core from a thread that runs when
 * it wakes. For good: a program without rights can't take that back.
 */
void tn_os_thread_modest(void);
/*
 * A modest thread runs only where nobody else wants to (on), which any thread that wakes puts an end to at once, or as before.
 * False: it could not come back from there, so it stays as it is. On busy cores such a thread gets a
 * three-hundredth of the time: call it off when that is too little.
 */
bool tn_os_thread_idle(bool on);
/* Bind the calling thread to one CPU; cpu < 0: to all. */
tern_status tn_os_thread_bind(int cpu);
uint64_t tn_os_thread_id(void);

/* ---- limits and facts ---- */
uint64_t tn_os_page_bytes(void);
unsigned tn_os_cpus(void); /* that this process may use */

typedef struct tn_os_limits {
	uint64_t memlock_bytes;     /* soft RLIMIT_MEMLOCK; UINT64_MAX = unlimited */
	uint64_t memlock_bytes_max; /* hard */
	uint64_t files;             /* soft RLIMIT_NOFILE */
	uint64_t files_max;
	uint64_t huge_pages;      /* 2 MiB pages configured */
	uint64_t huge_pages_free; /* and free */
	uint64_t memory_bytes;    /* of the host */
	uint64_t memory_bytes_available;
	uint64_t map_count_max; /* vm.max_map_count */
	char shmem_thp[32];     /* the choice in force of shmem_enabled, "never"; "?" if unknown */
	char kernel[64];        /* release */
	char host[64];
	char boot_id[40]; /* same text = same running kernel; "" if unknown */
} tn_os_limits;
void tn_os_limits_get(tn_os_limits *limits);
/* Raise the soft descriptor limit to what is wanted or the hard limit; returns the limit in force. */
uint64_t tn_os_raise_files(uint64_t wanted);

/* ---- files that hold secrets ---- */

/* Differs when a file was replaced, written to or got another mode. No padding: compared as bytes. */
typedef struct tn_os_stamp {
	uint64_t device, inode, bytes;
	int64_t seconds, nanoseconds;
} tn_os_stamp;
/* False: there is no such file, or it cannot be asked. Sets no detail. */
bool tn_os_stamp_of(const char *path, tn_os_stamp *stamp);
/*
 * Read a whole small file that only its owner (this user or root) may write and nobody outside its group may
 * read. TERN_E_INSECURE: others may; TERN_E_IO: no such file, not a plain one, or unreadable; TERN_E_TOO_LARGE.
 * *stamp is of what was read, and is set whenever the file could be opened.
 */
tern_status tn_os_read_private(const char *path, void *buf, uint64_t max, uint64_t *bytes,
			       tn_os_stamp *stamp);

/* Close and set to -1; harmless for -1. errno is kept. */
void tn_os_close(int *fd);

#endif

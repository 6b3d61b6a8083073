/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mem's one door to the OS: address space, memfds, page kinds. The only file of tern, with shm's segment
 * file, that maps memory. Decides nothing: which size, when and for whom is extent.c's.
 *
 * Every function that fails sets the detail text and leaves nothing behind. Each OS call is a fault point
 * "mem.<object>.<call>". Threads: any. Tests: tests/unit/mem/test_faults.c.
 */
#ifndef TN_MEM_OS_MEM_H
#define TN_MEM_OS_MEM_H

#include "mem/mem.h"

/*
 * Reserve address space without memory behind it, aligned to 2 MiB. Halves `bytes` down to min_bytes while
 * the system refuses (RLIMIT_AS, vm.overcommit_memory); *got says what it is.
 */
tern_status tn_os_mem_reserve(uint64_t bytes, uint64_t min_bytes, void **base, uint64_t *got);
void tn_os_mem_unreserve(void *base, uint64_t bytes);

typedef enum tn_huge_mode { TN_HUGE_NEVER, TN_HUGE_TRY, TN_HUGE_ONLY } tn_huge_mode;

/*
 * Put memory behind [at, at + bytes) of a reservation: a sealed memfd, every page present, so that no
 * later touch can raise SIGBUS. Tries 2 MiB pages, then transparent ones, then 4 KiB, as mode allows.
 * node >= 0: on that NUMA node while it has memory. May take a second per GiB. On error the range is reserved address space as before.
 */
tern_status tn_os_mem_commit(void *at, uint64_t bytes, tn_huge_mode mode, int node, int *fd,
			     tn_page_kind *pages);
/*
 * For a process that makes many contexts in a row and touches little of each (sim): pages come when they are touched,
 * and a host without memory ends it by SIGBUS. Process-wide, before the first context.
 */
void tn_os_mem_lazy(bool on);
/* Back to reserved address space. The memory goes when the last peer that maps it is gone. */
void tn_os_mem_decommit(void *at, uint64_t bytes, int *fd);

/* In a forked child: make the range private, so that the child's writes do not reach the parent. */
void tn_os_mem_unshare(void *at, uint64_t bytes, int fd);

/* May this process lock memory without limit (CAP_IPC_LOCK), whatever RLIMIT_MEMLOCK says? */
bool tn_os_mem_may_lock(void);

/*
 * A full barrier in every running thread of the process, so that threads which are asked rarely need none of
 * their own (membarrier(2), Linux 4.14). Where the kernel refuses, tn_os_mem_asymmetric is false: both sides then
 * need a fence; this one makes only its own.
 */
extern bool tn_os_mem_asymmetric;
#if defined(__SANITIZE_THREAD__)
#define TN_MEM_SYMMETRIC 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TN_MEM_SYMMETRIC 1
#endif
#endif
void tn_os_mem_barrier_init(void);
void tn_os_mem_barrier(void);

/*
 * Pages of this process alone, NULL: there are none. What is not touched takes no memory: huge pages, which are whole from
 * the first touch on, are not asked for beforehand. In whole huge pages from 2 MiB on; align: of a page, or 2 MiB.
 */
void *tn_os_mem_private(uint64_t bytes, uint64_t align);
void tn_os_mem_private_free(void *at, uint64_t bytes);
/* Huge from the first touch of each on: it will be used at once, or what is not used of one doesn't matter. */
void tn_os_mem_private_huge(void *at, uint64_t bytes);
/* All of it (but for less than 128 KiB) is used: as huge pages from now on, where the kernel can (Linux 6.1). */
void tn_os_mem_private_filled(void *at, uint64_t bytes);

/* ---- NUMA (os_numa.c) ---- */
/* Nodes that this process may allocate on, as bits; 1 where there is one node or the kernel does not say. */
uint64_t tn_os_numa_nodes(void);
/* The node of the CPU that the caller runs on, -1 unknown. */
int tn_os_numa_here(void);
/* Prefer the node for pages of the mapping that do not exist yet. 0 or an errno. */
int tn_os_numa_prefer(void *at, uint64_t bytes, int node);
/* The node that holds the page of an address, -1 unknown. */
int tn_os_numa_of(const void *at);

/* A table that this process writes and others map read-only; its size and later writers are sealed off. */
tern_status tn_os_mem_table(uint64_t bytes, void **rows, int *fd);
void tn_os_mem_table_free(void *rows, uint64_t bytes, int *fd);

#endif

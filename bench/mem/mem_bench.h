/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of bench-mem share. An allocator is measured in a process of its own (a rival comes by
 * LD_PRELOAD), which prints one figure. Threads: each file says.
 */
#ifndef TERN_BENCH_MEM_H
#define TERN_BENCH_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/ctx.h>
#include <tern/mem.h>

typedef enum bench_pattern {
	BENCH_CHURN, /* each thread: a table of live blocks, replaced at random */
	BENCH_BATCH, /* each thread: 256 blocks allocated, then freed in order */
	BENCH_CROSS, /* pairs: one thread allocates, the other frees */
} bench_pattern;

typedef struct bench_case {
	const char *name;
	bench_pattern pattern;
	uint64_t bytes_min, bytes_max; /* log-uniform */
} bench_case;

typedef struct bench_allocator {
	/* One of the two: a block is returned, or put where the caller wants it. */
	void *(*alloc)(void *arg, size_t bytes);
	void (*fill)(void *arg, size_t bytes, void **block);
	void (*release)(void *arg, void *ptr);
	void *arg;
} bench_allocator;

/* CPU nanoseconds per block (one allocation and one free) with n threads. */
double bench_run(const bench_case *c, const bench_allocator *with, int threads, uint64_t blocks);

/* Registered buffers against malloc and ibv_reg_mr each; false: no RDMA device, *why says so. */
bool bench_verbs_naive(uint64_t bytes, int count, double *ns, const char **why);

uint64_t bench_now(void);

#endif

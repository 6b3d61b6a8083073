/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named 64-bit counters. A component lists its counters once; the struct and the names come from the list.
 *
 *	#define TN_SHM_COUNTERS(X) X(tx_bytes) X(copies)
 *	TN_COUNTERS_STRUCT(tn_shm_counters, TN_SHM_COUNTERS)       in the header
 *	TN_COUNTERS_NAMES(tn_shm_counter_names, TN_SHM_COUNTERS)   in one .c file, static
 *	tn_count(&dev->counters.copies, 1);
 *	tn_counters_each(tn_shm_counter_names, &dev->counters, "shm", fn, arg);   "shm.copies"
 *
 * Threads: any; relaxed atomics, so a snapshot is not a cut. A counter with one writer at a time may use
 * tn_count_own, which needs no locked instruction. Tests: tests/unit/base/counters_test.c.
 */
#ifndef TN_BASE_COUNTERS_H
#define TN_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t tn_counter;

#define TN_COUNTER_FIELD(name)  tn_counter name;
#define TN_COUNTER_STRING(name) #name,

#define TN_COUNTERS_STRUCT(type, LIST) \
	typedef struct type {          \
		LIST(TN_COUNTER_FIELD) \
	} type;

/* Ends with NULL. */
#define TN_COUNTERS_NAMES(ident, LIST) static const char *const ident[] = {LIST(TN_COUNTER_STRING) 0};

static inline void tn_count(tn_counter *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void tn_count_own(tn_counter *counter, uint64_t n)
{
#if defined(__x86_64__) && !defined(TN_SANITIZED)
	/* One instruction instead of three: compilers make none of two atomic accesses. Nobody sees half of it. */
	__asm__("addq %1, %0" : "+m"(*counter) : "er"(n) : "cc");
#else
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
			      memory_order_relaxed);
#endif
}

static inline void tn_count_set(tn_counter *counter, uint64_t value)
{
	atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline void tn_count_max(tn_counter *counter, uint64_t value)
{
	uint64_t seen = atomic_load_explicit(counter, memory_order_relaxed);

	while (seen < value && !atomic_compare_exchange_weak_explicit(
				       counter, &seen, value, memory_order_relaxed, memory_order_relaxed))
		;
}

static inline uint64_t tn_counter_read(const tn_counter *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Call fn("prefix.name", value, arg) for each; same signature as tern_counter_fn. */
void tn_counters_each(const char *const *names, const void *counters, const char *prefix,
		      void (*fn)(const char *name, uint64_t value, void *arg), void *arg);

#endif

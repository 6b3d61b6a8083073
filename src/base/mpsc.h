/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads push, one takes everything: an intrusive lock-free stack that is reversed when taken, so that
 * the taker sees the order of pushing. Push says whether the stack was empty: only then does the taker need
 * to be woken.
 *
 * Threads: push from any (signal handlers too), take from one at a time. No allocation, no ABA (nothing is
 * popped singly). Tests: tests/unit/base/mpsc_test.c.
 */
#ifndef TN_BASE_MPSC_H
#define TN_BASE_MPSC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct tn_mpsc_node {
	struct tn_mpsc_node *next;
} tn_mpsc_node;

typedef struct tn_mpsc {
	_Atomic(tn_mpsc_node *) top;
} tn_mpsc;

/* True: it was empty before. Release: what the pusher wrote before is seen by the taker. */
static inline bool tn_mpsc_push(tn_mpsc *mpsc, tn_mpsc_node *node)
{
	tn_mpsc_node *top = atomic_load_explicit(&mpsc->top, memory_order_relaxed);

	do {
		node->next = top;
	} while (!atomic_compare_exchange_weak_explicit(&mpsc->top, &top, node, memory_order_release,
							memory_order_relaxed));
	return top == NULL;
}

static inline bool tn_mpsc_empty(const tn_mpsc *mpsc)
{
	return atomic_load_explicit(&mpsc->top, memory_order_acquire) == NULL;
}

/* Everything pushed so far, first pushed first, linked by next; NULL if nothing. */
static inline tn_mpsc_node *tn_mpsc_take(tn_mpsc *mpsc)
{
	tn_mpsc_node *node = NULL, *list = NULL;

	if (!tn_mpsc_empty(mpsc))
		node = atomic_exchange_explicit(&mpsc->top, NULL, memory_order_acquire);
	while (node) {
		tn_mpsc_node *next = node->next;

		node->next = list;
		list = node;
		node = next;
	}
	return list;
}

#endif

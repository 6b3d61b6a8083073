/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pairing heap on the timers' own links. Merging is pairwise from left to right, then right to left;
 * loops instead of recursion, so depth costs no stack.
 *
 *	root ── child ── next ── next
 *	          └─ child ...            prev of a first child is its parent, else the left sibling
 *
 * Threads: one at a time. Tests: tests/unit/base/timer_test.c (against a sorted list).
 */
#include "base/timer.h"

#include <stddef.h>

#include "base/check.h"

/* Join two roots (either may be NULL; siblings unset): the earlier becomes the parent. */
static tn_timer *meld(tn_timer *a, tn_timer *b)
{
	if (!a || !b)
		return a ? a : b;
	if (b->at_ns < a->at_ns) {
		tn_timer *swap = a;

		a = b;
		b = swap;
	}
	b->prev = a;
	b->next = a->child;
	if (a->child)
		a->child->prev = b;
	a->child = b;
	return a;
}

/* Join a list of siblings into one root. */
static tn_timer *meld_list(tn_timer *first)
{
	tn_timer *pairs = NULL, *root = NULL;

	while (first) {
		tn_timer *a = first, *b = a->next;

		first = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		a = meld(a, b);
		a->next = pairs; /* a stack: the second pass goes from right to left */
		pairs = a;
	}
	while (pairs) {
		tn_timer *a = pairs;

		pairs = a->next;
		a->next = NULL;
		root = meld(root, a);
	}
	return root;
}

static void take_out(tn_timers *timers, tn_timer *timer)
{
	tn_timer *rest;

	TN_ASSERT(timers->count > 0);
	if (timer == timers->root) {
		timers->root = meld_list(timer->child);
	} else {
		if (timer->prev->child == timer)
			timer->prev->child = timer->next;
		else
			timer->prev->next = timer->next;
		if (timer->next)
			timer->next->prev = timer->prev;
		rest = meld_list(timer->child);
		timers->root = meld(timers->root, rest);
	}
	timer->child = timer->next = timer->prev = NULL;
	timer->armed = false;
	timers->count--;
	TN_ASSERT(!timers->root || (!timers->root->prev && !timers->root->next));
}

void tn_timer_set(tn_timers *timers, tn_timer *timer, uint64_t at_ns)
{
	if (timer->armed) {
		if (timer->at_ns == at_ns)
			return;
		take_out(timers, timer);
	}
	TN_ASSERT(!timer->child && !timer->next && !timer->prev);
	timer->at_ns = at_ns;
	timer->armed = true;
	timers->root = meld(timers->root, timer);
	timers->count++;
}

void tn_timer_cancel(tn_timers *timers, tn_timer *timer)
{
	if (timer->armed)
		take_out(timers, timer);
}

tn_timer *tn_timer_expire(tn_timers *timers, uint64_t now_ns)
{
	tn_timer *timer = timers->root;

	if (!timer || timer->at_ns > now_ns)
		return NULL;
	take_out(timers, timer);
	return timer;
}

/* Pre-order walk over the links: down, then right, then up by prev until there is a right sibling. */
void tn_timers_check(const tn_timers *timers)
{
	const tn_timer *node = timers->root, *parent = NULL;
	uint64_t seen = 0;

	TN_ASSERT(!node || (!node->prev && !node->next));
	while (node) {
		seen++;
		TN_ASSERT(node->armed && seen <= timers->count);
		TN_ASSERT(!parent || parent->at_ns <= node->at_ns);
		if (node->child) {
			TN_ASSERT(node->child->prev == node);
			parent = node;
			node = node->child;
			continue;
		}
		while (node && !node->next) {
			while (node->prev && node->prev->next == node) /* to the first sibling */
				node = node->prev;
			node = node->prev; /* its parent; NULL above the root */
		}
		if (!node)
			break;
		TN_ASSERT(node->next->prev == node);
		node = node->next;
		for (parent = node; parent->prev && parent->prev->next == parent;)
			parent = parent->prev;
		parent = parent->prev;
	}
	TN_ASSERT_MSG(seen == timers->count, "seen=%llu count=%llu", (unsigned long long)seen,
		      (unsigned long long)timers->count);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An intrusive doubly linked ring. A head is a node without an object; an object's node is in one list at
 * most, and tn_list_linked says whether it is in one (nodes are zeroed or initialised before use, and
 * removal re-initialises).
 *
 * Threads: none of its own. Tests: tests/unit/base/list_test.c.
 */
#ifndef TN_BASE_LIST_H
#define TN_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/check.h"

typedef struct tn_list {
	struct tn_list *next, *prev;
} tn_list;

static inline void tn_list_init(tn_list *list)
{
	list->next = list->prev = list;
}

static inline bool tn_list_empty(const tn_list *head)
{
	return head->next == head;
}

/* A zeroed or removed node is not linked. */
static inline bool tn_list_linked(const tn_list *node)
{
	return node->next && node->next != node;
}

static inline void tn_list_insert_(tn_list *node, tn_list *prev, tn_list *next)
{
	TN_ASSERT(!tn_list_linked(node));
	TN_ASSERT(prev->next == next && next->prev == prev);
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void tn_list_push_back(tn_list *head, tn_list *node)
{
	tn_list_insert_(node, head->prev, head);
}

static inline void tn_list_push_front(tn_list *head, tn_list *node)
{
	tn_list_insert_(node, head, head->next);
}

/* Before `pos`, which is in a list (or is its head: then at the end). */
static inline void tn_list_insert_before(tn_list *pos, tn_list *node)
{
	tn_list_insert_(node, pos->prev, pos);
}

/* Harmless for a node that is in no list. */
static inline void tn_list_remove(tn_list *node)
{
	if (!tn_list_linked(node))
		return;
	node->prev->next = node->next;
	node->next->prev = node->prev;
	node->next = node->prev = node;
}

static inline tn_list *tn_list_first(const tn_list *head)
{
	return tn_list_empty(head) ? NULL : head->next;
}

static inline tn_list *tn_list_pop_front(tn_list *head)
{
	tn_list *node = tn_list_first(head);

	if (node)
		tn_list_remove(node);
	return node;
}

/* Move all nodes of `from` to the end of `to`. */
static inline void tn_list_splice(tn_list *to, tn_list *from)
{
	if (tn_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	tn_list_init(from);
}

#define TN_LIST_ENTRY(node, type, member) TN_CONTAINER_OF(node, type, member)
/* The first or popped object, NULL if the list is empty. */
#define TN_LIST_FIRST(head, type, member) \
	(tn_list_empty(head) ? NULL : TN_CONTAINER_OF((head)->next, type, member))

/* `node` is a tn_list *; the body must not remove it. */
#define TN_LIST_FOREACH(node, head) for (tn_list *node = (head)->next; node != (head); node = node->next)
/* The body may remove `node` (only it). */
#define TN_LIST_FOREACH_SAFE(node, head)                                                 \
	for (tn_list *node = (head)->next, *tn_next_##node = node->next; node != (head); \
	     node = tn_next_##node, tn_next_##node = node->next)

#endif

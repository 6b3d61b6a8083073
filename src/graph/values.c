/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of constants and variables: counted bytes that several graphs share, so that a plan for many
 * devices has the weights of a model once.
 *
 *	| values_head, 64 bytes | payload, 64-byte aligned |
 *	                        ^ what callers hold
 *
 * Thread story: counting is safe from any thread; the bytes are not changed once a node has them.
 * Tests: tests/unit/graph/ir_test.c.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "graph/ir.h"

typedef struct values_head {
	_Atomic uint32_t refs;
} values_head;

static values_head *head_of(void *values)
{
	return (values_head *)((char *)values - TN_CACHE_LINE);
}

void *tn_values_new(const void *from, uint64_t bytes)
{
	uint64_t whole;
	char *p;

	if (__builtin_add_overflow(bytes, 2 * TN_CACHE_LINE, &whole))
		return NULL;
	p = aligned_alloc(TN_CACHE_LINE, whole / TN_CACHE_LINE * TN_CACHE_LINE);
	if (!p)
		return NULL;
	atomic_init(&((values_head *)p)->refs, 1);
	p += TN_CACHE_LINE;
	if (from && bytes)
		memcpy(p, from, bytes);
	else
		memset(p, 0, bytes);
	return p;
}

void *tn_values_ref(void *values)
{
	if (values) {
		uint32_t before = atomic_fetch_add_explicit(&head_of(values)->refs, 1, memory_order_relaxed);

		TN_ASSERT(before > 0 && before < UINT32_MAX);
	}
	return values;
}

void tn_values_unref(void *values)
{
	if (!values)
		return;
	if (atomic_fetch_sub_explicit(&head_of(values)->refs, 1, memory_order_acq_rel) == 1)
		free(head_of(values));
}

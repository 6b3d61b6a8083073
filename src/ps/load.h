/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often slots of a table are asked for, so that a hot one is seen. One key in TN_PS_LOAD_EACH is looked at, another one
 * of each batch in turn, and counts for all of them: what it costs is a fraction of what looking a key up does.
 *
 *   slot[s] = keys of slot s that were pulled, pushed or erased, about
 *
 * Threads: any; two that count in one slot at once may lose one. Tests: tests/unit/ps/load_test.c.
 */
#ifndef TN_PS_LOAD_H
#define TN_PS_LOAD_H

#include <stdatomic.h>

#include "ps/table.h"

#define TN_PS_LOAD_EACH 16u

typedef struct tn_ps_load {
	_Atomic uint32_t turn;
	_Atomic uint64_t slot[TERN_TABLE_SLOTS];
} tn_ps_load;

static inline void tn_ps_load_count(tn_ps_load *load, const uint64_t *keys, uint64_t n)
{
	uint32_t turn = atomic_load_explicit(&load->turn, memory_order_relaxed);

	atomic_store_explicit(&load->turn, turn + 1, memory_order_relaxed);
	for (uint64_t i = turn % TN_PS_LOAD_EACH; i < n; i += TN_PS_LOAD_EACH) {
		_Atomic uint64_t *at = &load->slot[tn_table_slot(keys[i])];

		atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + TN_PS_LOAD_EACH,
				      memory_order_relaxed);
	}
}

#endif

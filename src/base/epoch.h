/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs: when may be freed what readers without locks may still look at (K. Fraser, Practical lock-freedom, 2004).
 *
 *   a reader      slot = tn_epoch_enter(e);  ... loads and uses pointers ...;  tn_epoch_leave(e, slot)
 *   a remover     unlinks the thing; stamp = tn_epoch_stamp(e); keeps both
 *   later         tn_epoch_passed(e, stamp): nobody who could have seen it is inside any more
 *
 *   now advances from n to n + 1 only while all who are inside entered at n
 *
 * A reader costs one compare-and-swap on a line that is usually its own; no thread registers. Who is inside must not
 * wait for an epoch to pass. At most TN_EPOCH_SLOTS readers are inside at once; further ones spin.
 *
 * Threads: any. Tests: tests/unit/base/epoch_test.c.
 */
#ifndef TN_BASE_EPOCH_H
#define TN_BASE_EPOCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

#define TN_EPOCH_SLOTS 128

typedef struct tn_epoch {
	_Alignas(TN_CACHE_LINE) _Atomic uint64_t now;
	struct tn_epoch_slot {
		_Alignas(TN_CACHE_LINE) _Atomic uint64_t at; /* 0 = nobody, else the epoch of entry */
	} slots[TN_EPOCH_SLOTS];
} tn_epoch;

void tn_epoch_init(tn_epoch *epoch);
unsigned tn_epoch_enter(tn_epoch *epoch);
void tn_epoch_leave(tn_epoch *epoch, unsigned slot);

uint64_t tn_epoch_stamp(tn_epoch *epoch);
/* Never blocks; advances the epoch if it can. */
bool tn_epoch_passed(tn_epoch *epoch, uint64_t stamp);
/* Until all who are inside now have left. Not from inside. */
void tn_epoch_wait(tn_epoch *epoch);

#endif

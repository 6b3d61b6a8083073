/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the guard of memory against accesses that outlive a revocation: the polling thread may have found a key
 * good just before it was revoked and be receiving into its memory, and a thread that sends an answer be reading
 * from it. Memory that its owner unregisters may be unmapped at once, so a revocation waits for them.
 *
 *   receiving   one thread: rx_access is odd from before a key is looked at until the bytes are placed
 *   sending     any thread: tx_begun - tx_ended accesses are under way
 *   ticket      twice rx_access, plus 1 if answers were being sent; 0 = nothing was under way
 *
 * Begin and mark are both read-modify-writes of the same word: either the mark sees the access, or the access
 * sees the revocation that came before the mark.
 *
 * Must not block. Threads: any. Tests: tests/unit/transport/test_tcp_guard.c.
 */
#include "transport/tcp/tcp.h"

static bool sending(tn_tcp_dev *dev)
{
	/* This order: what ended was begun. */
	uint64_t ended = atomic_load(&dev->tx_ended);

	return atomic_fetch_add(&dev->tx_begun, 0) != ended;
}

static uint64_t guard_mark(void *arg)
{
	tn_tcp_dev *dev = arg;
	uint64_t rx = atomic_fetch_add(&dev->rx_access, 0);

	return (rx % 2 ? rx * 2 : 0) + sending(dev);
}

static bool guard_passed(void *arg, uint64_t ticket)
{
	tn_tcp_dev *dev = arg;

	if (ticket / 2 != 0 && atomic_load(&dev->rx_access) == ticket / 2)
		return false;
	return ticket % 2 == 0 || !sending(dev);
}

const tn_guard tn_tcp_guard = {.mark = guard_mark, .passed = guard_passed};

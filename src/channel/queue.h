/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that wait for whoever holds the link's lock to hand them to the machine: queue.c.
 *
 * Threads: see there. Tests: tests/unit/channel/test_queue.c.
 */
#ifndef TN_CHANNEL_QUEUE_H
#define TN_CHANNEL_QUEUE_H

#include "channel/shell.h"

/* Pieces of a message that may be queued. */
#define TN_QUEUE_IOV 2

/*
 * Somebody holds the lock: leave the message to him. False: this one can't be left (too many pieces, longer than
 * what the channel has sent so far, the machine is full, ...): take the lock. True: the operation is in flight.
 */
bool tn_queue_send(tern_channel *channel, const tern_iovec *iov, int count, uint64_t bytes, tern_op *op,
		   uint64_t deadline_ns);

/* Lock held: hand what is queued to the machine. True: there was something, and tn_shell_run has something to do. */
bool tn_queue_empty_into(tern_link *link);

/* Lock held. */
static inline bool tn_queue_any(const tern_link *link)
{
	return link->sends.backlog || !tn_mpsc_empty(&link->sends.queued);
}

static inline void tn_queue_drain(tern_link *link)
{
	if (TN_UNLIKELY(tn_queue_any(link)))
		tn_queue_empty_into(link);
}

#endif

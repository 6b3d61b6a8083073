/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of a peer's memory, mapped here for one access: whoever computes the bytes that a put would carry can
 * write them where they belong, and whoever would get bytes only to look at them once can read them where they are.
 * Possible where the initiator of one-sided operations copies by itself (transport.h, caps.copies: shm).
 *
 *   begin   the key is checked as for a put or a get: row, generation, bounds, access
 *   end     what was written is visible to the peer before anything that is sent later
 *
 * Between begin and end a revocation of the key waits for the access as for that of a put, so it has to be short:
 * memory at work, no waiting. One access at a time on a link; all else goes on meanwhile.
 *
 * Threads: begin and end in one thread, any. Tests: tests/unit/channel/test_direct.c.
 */
#ifndef TN_CHANNEL_DIRECT_H
#define TN_CHANNEL_DIRECT_H

#include <stdbool.h>

#include <tern/channel.h>

#include "transport/transport.h"

typedef struct tn_direct {
	uint8_t *at; /* the first byte */
	tern_link *link;
	tn_lane *lane;
	tn_copy copy;
} tn_direct;

/*
 * TERN_E_UNSUPPORTED: the link's lanes do not reach memory so: put or get. TERN_AGAIN: not at present (the range is
 * not mapped yet, another access is under way, transfers of the channel wait): put or get, which wait. Else as a put
 * (read false) or a get (true) would fail. bytes must not be 0. Allocates nothing.
 */
tern_status tn_direct_begin(tern_channel *channel, const tern_key *key, uint64_t offset, uint64_t bytes,
			    bool read, tn_direct *direct);
void tn_direct_end(tn_direct *direct);
/* Does the link work so at present? A hint. */
bool tn_direct_can(tern_link *link);

#endif

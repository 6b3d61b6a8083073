/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message ring with both its ends in this process, and messages that say whether they are whole.
 */
#ifndef TESTS_UNIT_TRANSPORT_SHM_RING_RIG_H
#define TESTS_UNIT_TRANSPORT_SHM_RING_RIG_H

#include <string.h>

#include "base/check.h"
#include "base/os.h"
#include "cmocka_all.h"
#include "transport/shm/segment.h"

#define SLOTS 16u
#define BUF   1024u

typedef struct rig {
	void *base;
	uint64_t bytes;
	tn_shm_copier copier;
	tn_shm_tx tx;
	tn_shm_rx rx;
} rig;

#ifdef TN_SANITIZED
#define MANY(n) ((n) / 10)
#else
#define MANY(n) (n)
#endif

static inline void rig_make(rig *r, uint32_t slots)
{
	tn_shm_ring ring;
	int fd;

	memset(r, 0, sizeof(*r));
	r->bytes = tn_shm_lane_bytes(slots, BUF);
	assert_ok(tn_shm_seg_create("test", r->bytes, false, &fd, &r->base));
	tn_os_close(&fd);
	tn_shm_lane_ring(r->base, slots, BUF, 0, &ring);
	tn_shm_copier_init(&r->copier, 0);
	r->copier.loop_bytes = TN_SHM_LOOP_MIN; /* so that buffers of this size see it */
	assert_ok(tn_shm_tx_init(&r->tx, &ring, &r->copier));
	assert_ok(tn_shm_rx_init(&r->rx, &ring));
}

static inline void rig_free(rig *r)
{
	tn_shm_tx_fini(&r->tx);
	tn_shm_rx_fini(&r->rx);
	tn_shm_seg_unmap(r->base, r->bytes);
}

static inline void fill(uint8_t *to, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)(seed * 131 + i * 7);
}

static inline tern_status send_one(tn_shm_tx *tx, uint64_t bytes, uint64_t seed)
{
	uint8_t data[BUF];
	tn_iov iov[3];

	fill(data, bytes, seed);
	if (seed % 2 && bytes >= 32) { /* as a link's frames are: a header, and what it is of */
		iov[0] = (tn_iov){.base = data, .bytes = 32};
		iov[1] = (tn_iov){.base = data + 32, .bytes = bytes - 32};
		return tn_shm_tx_send(tx, iov, 2, bytes);
	}
	iov[0] = (tn_iov){.base = data, .bytes = bytes / 3};
	iov[1] = (tn_iov){.base = NULL, .bytes = 0};
	iov[2] = (tn_iov){.base = data + bytes / 3, .bytes = bytes - bytes / 3};
	return tn_shm_tx_send(tx, iov, 3, bytes);
}

static inline bool same(const tn_shm_msg *msg, uint64_t bytes, uint64_t seed)
{
	uint8_t want[BUF];

	fill(want, bytes, seed);
	return msg->bytes == bytes && memcmp(msg->data, want, bytes) == 0;
}

#endif

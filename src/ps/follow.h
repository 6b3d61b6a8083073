/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that follows a chain of checkpoints: <tern/ps_follow.h>.
 *
 *   copy   the tables as of one checkpoint. Two of them: pulls see the one that is shown, the other is brought to the next
 *          version, shown in its place, and when the last pull has left the first one, that follows. With IN_PLACE there
 *          is one, which changes while it is shown.
 *
 *   shown copy = a checkpoint as a whole; a copy that failed half way is thrown away, and built anew from its base
 *
 * A pull holds its share (server.h) for as long as it lasts: so it has one version, and a copy whose shares have no
 * reference but the copy's own is seen by nobody.
 *
 * Threads: one thread applies; handlers read what it says under follow->lock. Tests: tests/unit/ps/follow_test.c.
 */
#ifndef TN_PS_FOLLOW_H
#define TN_PS_FOLLOW_H

#include <tern/ps_follow.h>

#include "ps/server.h"
#include "store/ckpt.h"

#define TN_PS_FOLLOW         0x70730040u /* the method */
#define TN_PS_FOLLOW_VERSION 1u
#define TN_PS_FOLLOW_BYTES   96u /* of an answer, before the text */

/* u8 version | u8 op | u16 0 | u32 0 | u64 sequence */
typedef enum tn_ps_follow_op { TN_FOLLOW_GET = 1, TN_FOLLOW_SET } tn_ps_follow_op;

typedef struct tn_follow_copy {
	ps_share *shares[TN_PS_TABLES_MAX]; /* a reference each; in the order of names */
	uint32_t count;
	uint64_t sequence;
	uint32_t crc; /* of the manifest; 0 and no sequence: nothing is in it */
	bool whole;
} tn_follow_copy;

typedef struct tn_ps_follow {
	tern_ps_server *server;
	char *dir;
	tn_ckpt_ack ack; /* name "": none is written */
	uint64_t acked_ns;
	bool in_place;
	uint64_t poll_ns;
	tn_follow_copy copies[2];
	unsigned shown;
	tn_thread thread;
	_Atomic bool stop;
	pthread_mutex_t lock; /* below */
	pthread_cond_t wake;
	bool looked; /* at the directory since pinned was set */
	tern_ps_follow_stats stats;
	tern_ps_follow_stats draft; /* the thread's: what its look found */
	bool noted;
} tn_ps_follow;

static inline bool tn_ps_follows(tern_ps_server *server)
{
	return atomic_load_explicit(&server->follow, memory_order_acquire) != NULL;
}
/* Answers: why not. */
void tn_ps_refuse_follower(tern_rpc_request *request);
/* Harmless if it follows nothing. */
void tn_ps_follow_close(tern_ps_server *server);

/* ---- follow_copy.c ---- */

/* From its base on. Files are verified. On failure nothing is in it. */
tern_status tn_follow_build(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_chain *chain);
/* Links from..count - 1 on top of what it is. On failure nothing is in it. */
tern_status tn_follow_advance(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_chain *chain,
			      unsigned from);
void tn_follow_reset(tn_follow_copy *copy);
/* The server's tables are those of the copy, all at once. */
void tn_follow_show(tn_ps_follow *f, const tn_follow_copy *copy);
/* Nobody sees it any more. False: follow->stop. */
bool tn_follow_unseen(tn_ps_follow *f, const tn_follow_copy *copy);

/* ---- follow_client.c ---- */

uint64_t tn_ps_follow_encode(uint8_t *out, uint64_t bytes, const tern_ps_follow_stats *stats);
bool tn_ps_follow_decode(const void *data, uint64_t bytes, tern_ps_follow_stats *stats);

#endif

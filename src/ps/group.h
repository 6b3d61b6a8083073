/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of workers: what members and the server that keeps the groups say to each other, and the keeper.
 *
 *   request   u8 version | u8 op | u8 name bytes | u8 text bytes | u32 flags | u64 member | u64 value | u64 timeout ns |
 *             name | text
 *   answer    u64 value, JOIN u64 life more, and of summed groups the last closing: u64 steps closed and the senders' ids; CLOSE
 *             the senders' ids more; a failure's text is the answer's, as of every
 *             call
 *
 *              name    value in         text           value out
 *   JOIN       group   staleness        member         step to begin with
 *   LEAVE      group
 *   BEGIN      group   step                                            waits
 *   END        group   steps ended
 *   BARRIER    group   round            barrier                        waits
 *   ROUND      group                    barrier        the open round
 *   REMOVE     group                    member
 *   CLOSE      group   steps ended                     steps closed    waits
 *
 * Every request may be repeated: none counts. Groups that are summed (flag 1) end steps with CLOSE, which names the
 * senders of the step for the servers (ps/round.h); who joins brings the last closing too: all who knew it may have left. life is a number that the group has as long as the keeper lives.
 *
 * Threads: handlers run from dispatch, one at a time; lock for texts and closing. Tests: tests/unit/ps/group_test.c.
 */
#ifndef TN_PS_GROUP_H
#define TN_PS_GROUP_H

#include <pthread.h>
#include <stdbool.h>

#include <tern/ps_group.h>
#include <tern/rpc.h>

#include "base/fail.h"
#include "channel/ctx_slots.h"
#include "ps/round.h"
#include "store/barrier.h"
#include "store/round.h"

#define TN_PS_GROUP         0x70730020u /* the method */
#define TN_PS_GROUPS_MAX    64u
#define TN_PS_GROUP_MAX     (32u + 2 * TERN_PS_NAME_MAX) /* bytes of a request */
#define TN_PS_GROUP_VERSION 1u

typedef enum tn_ps_group_op {
	TN_GROUP_JOIN = 1,
	TN_GROUP_LEAVE,
	TN_GROUP_BEGIN,
	TN_GROUP_END,
	TN_GROUP_BARRIER,
	TN_GROUP_ROUND,
	TN_GROUP_REMOVE,
	TN_GROUP_CLOSE,
} tn_ps_group_op;

typedef struct tn_ps_group_msg {
	tn_ps_group_op op;
	uint32_t flags; /* TERN_PS_GROUP_* */
	uint64_t member, value, timeout_ns;
	char name[TERN_PS_NAME_MAX], text[TERN_PS_NAME_MAX];
} tn_ps_group_msg;

/* Returns the bytes. Names fit: the caller checked them. */
uint64_t tn_ps_group_encode(uint8_t out[TN_PS_GROUP_MAX], const tn_ps_group_msg *msg);
bool tn_ps_group_decode(const void *data, uint64_t bytes, tn_ps_group_msg *msg);

typedef struct ps_group {
	char name[TERN_PS_NAME_MAX];
	uint32_t flags;
	uint64_t life;
	tn_clocks clocks;
	tn_barriers barriers;
	tn_round round;
} ps_group;

/* Answers: words that follow each other. */
#define TN_PS_GROUP_WORDS (3u + TN_PS_SENDERS_MAX)

typedef struct tn_ps_groups {
	tern_ctx *ctx;
	pthread_mutex_t lock;
	ps_group *rows[TN_PS_GROUPS_MAX];
	uint32_t count;
	tn_list waits; /* requests that wait */
	bool closing;
} tn_ps_groups;

/* Who waits, for monitors. */
#define TN_PS_GROUP_WAITS_MAX 32u
typedef struct tn_ps_group_waits {
	uint32_t n;
	struct {
		char text[TN_DETAIL_MAX];
		uint64_t since_ns; /* how long */
	} row[TN_PS_GROUP_WAITS_MAX];
} tn_ps_group_waits;
void tn_ps_groups_waits(tn_ps_groups *groups, tn_ps_group_waits *waits);

/* ---- members ---- */

typedef struct round_row {
	char name[TERN_PS_NAME_MAX];
	uint64_t next;
} round_row;

struct tern_ps_group {
	tern_ps *ps;
	uint64_t id;
	uint32_t flags;
	uint64_t life, seq; /* seq: of the next tern_ps_group_push */
	uint64_t closed;    /* summed: steps below are closed, and applied */
	char name[TERN_PS_NAME_MAX];
	round_row rounds[TN_BARRIERS_MAX];
	uint32_t round_count;
};

/* Serve groups on a context. */
tern_status tn_ps_groups_open(tn_ps_groups *groups, tern_ctx *ctx);
/* Requests that wait end in TERN_E_FLUSHED. Harmless if it was not opened. */
void tn_ps_groups_close(tn_ps_groups *groups);

#endif

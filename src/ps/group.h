/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of workers: what members and the server that keeps the groups say to each other, and the keeper.
 *
 *   request   u8 version | u8 op | u8 name bytes | u8 text bytes | u32 zero | u64 member | u64 value | u64 timeout ns |
 *             name | text
 *   answer    u64 value; a failure's text is the answer's, as of every call
 *
 *              name    value in         text           value out
 *   JOIN       group   staleness        member         step to begin with
 *   LEAVE      group
 *   BEGIN      group   step                                            waits
 *   END        group   steps ended
 *   BARRIER    group   round            barrier                        waits
 *   ROUND      group                    barrier        the open round
 *   REMOVE     group                    member
 *
 * Every request may be repeated: none counts.
 *
 * Threads: handlers run from dispatch, one at a time; lock for texts and closing. Tests: tests/unit/ps/group_test.c.
 */
#ifndef TN_PS_GROUP_H
#define TN_PS_GROUP_H

#include <pthread.h>
#include <stdbool.h>

#include <tern/ps_group.h>
#include <tern/rpc.h>

#include "channel/ctx_slots.h"
#include "store/barrier.h"

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
} tn_ps_group_op;

typedef struct tn_ps_group_msg {
	tn_ps_group_op op;
	uint64_t member, value, timeout_ns;
	char name[TERN_PS_NAME_MAX], text[TERN_PS_NAME_MAX];
} tn_ps_group_msg;

/* Returns the bytes. Names fit: the caller checked them. */
uint64_t tn_ps_group_encode(uint8_t out[TN_PS_GROUP_MAX], const tn_ps_group_msg *msg);
bool tn_ps_group_decode(const void *data, uint64_t bytes, tn_ps_group_msg *msg);

typedef struct ps_group {
	char name[TERN_PS_NAME_MAX];
	tn_clocks clocks;
	tn_barriers barriers;
} ps_group;

typedef struct tn_ps_groups {
	tern_ctx *ctx;
	pthread_mutex_t lock;
	ps_group *rows[TN_PS_GROUPS_MAX];
	uint32_t count;
	tn_list waits; /* requests that wait */
	bool closing;
} tn_ps_groups;

/* Serve groups on a context. */
tern_status tn_ps_groups_open(tn_ps_groups *groups, tern_ctx *ctx);
/* Requests that wait end in TERN_E_FLUSHED. Harmless if it was not opened. */
void tn_ps_groups_close(tn_ps_groups *groups);

#endif

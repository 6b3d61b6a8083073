/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of groups that are summed: servers keep what members push in a step, and apply it once, in one go, when the step
 * closes.
 *
 *   life      a group's time at its keeper: a number that the keeper draws; another life is another group
 *   staged    one push of one member in one step: (life, member, step, seq), kept as it came
 *   closing   the last step that closed, and its senders in order, as the keeper says (store/round.h). Every member
 *             brings it to every server; the first one has it applied, the others wait for that or are told at once
 *
 *   applied:  for each table all rows of sender 1, then of sender 2, ..., within a sender by seq, in one push: equal keys
 *             are summed in that order, and the optimiser runs once per key
 *   staged of steps <= closed: applied, or dropped with a member that is no sender; later ones stay
 *
 *   stage     u8 version | u8 dtype | u16 zero | f32 lr scale | u64 life | u64 member | u64 step | u64 seq | u64 table |
 *             u64 schema | u64 count | keys | rows, close                 answer: nothing
 *   close     u8 version | u8 zero | u16 zero | u32 senders | u64 life | u64 step | senders x u64     answer: nothing
 *
 * Both may be repeated: neither counts.
 *
 * Threads: handlers run from dispatch, closings in workers. lock for all of it; none is held over the engine or a reply.
 * Tests: tests/unit/ps/round_test.c.
 */
#ifndef TN_PS_ROUND_H
#define TN_PS_ROUND_H

#include <pthread.h>
#include <stdbool.h>

#include <tern/ps.h>
#include <tern/rpc.h>

#include "base/list.h"

struct tern_ps_server;

#define TN_PS_STAGE         0x70730021u /* methods */
#define TN_PS_CLOSE         0x70730022u
#define TN_PS_ROUND_VERSION 1u
#define TN_PS_LIVES_MAX     64u
#define TN_PS_SENDERS_MAX   256u
#define TN_PS_STAGE_BYTES   64u /* of the head */
#define TN_PS_CLOSE_BYTES   24u

typedef struct tn_ps_stage {
	uint8_t dtype;
	float lr_scale;
	uint64_t life, member, step, seq, table, schema, count;
	const uint8_t *keys, *rows; /* decoded: in the message */
	uint64_t row_bytes;         /* of all rows */
} tn_ps_stage;

typedef struct tn_ps_close {
	uint64_t life, step;
	uint32_t senders;
	uint64_t sender[TN_PS_SENDERS_MAX];
} tn_ps_close;

void tn_ps_stage_encode(uint8_t out[TN_PS_STAGE_BYTES], const tn_ps_stage *stage);
/* That there are as many bytes of rows as count says is the caller's to check: it knows the table. */
bool tn_ps_stage_decode(const void *data, uint64_t bytes, tn_ps_stage *stage);
/* Returns the bytes. */
uint64_t tn_ps_close_encode(uint8_t out[TN_PS_CLOSE_BYTES + 8 * TN_PS_SENDERS_MAX], const tn_ps_close *close);
bool tn_ps_close_decode(const void *data, uint64_t bytes, tn_ps_close *close);

typedef struct ps_life ps_life;

typedef struct tn_ps_rounds {
	struct tern_ps_server *server;
	pthread_mutex_t lock;
	ps_life *lives[TN_PS_LIVES_MAX];
	uint32_t count;
	uint64_t clock;        /* of uses */
	uint64_t staged_bytes; /* of all lives, and how much of it there may be */
	uint64_t staged_max;
	bool closing;
} tn_ps_rounds;

tern_status tn_ps_rounds_open(tn_ps_rounds *rounds, struct tern_ps_server *server);
/* Methods are not served any more; what is staged stays for closings at work. */
void tn_ps_rounds_close(tn_ps_rounds *rounds);
/* Nothing is at work. */
void tn_ps_rounds_free(tn_ps_rounds *rounds);
/* In a worker: a closing that was handed to it. */
void tn_ps_round_work(tn_ps_rounds *rounds, tern_rpc_request *request, const void *args, uint64_t bytes);

/* ---- members (round_client.c) ---- */

/* Bring a closing to every server, and wait. */
tern_status tn_ps_round_close(tern_ps *ps, const tn_ps_close *closing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of summed steps (round.h): bytes.
 *
 *   stage     u8 version | u8 dtype | u16 zero | f32 lr scale | u64 life | u64 member | u64 step | u64 seq | u64 table |
 *             u64 schema | u64 count | keys | rows, close             answer: as of a batch
 *   close     u8 version | u8 zero | u16 zero | u32 senders | u64 life | u64 step | senders x u64
 *             answer: as of a batch, and behind it 64 x u64: bits of the slots of this server in which the step is closed
 *
 * Pure. Threads: any. Tests: tests/unit/ps/round_test.c.
 */
#ifndef TN_PS_ROUND_WIRE_H
#define TN_PS_ROUND_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/dedup.h"

#define TN_PS_STAGE         0x70730021u /* methods */
#define TN_PS_CLOSE         0x70730022u
#define TN_PS_ROUND_VERSION 2u
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

/* Bits of slots, as they stand behind an answer. */
#define TN_PS_SLOT_BYTES 512u
void tn_ps_slots_encode(uint8_t out[TN_PS_SLOT_BYTES], const tn_ps_slots *slots);
void tn_ps_slots_decode(const uint8_t in[TN_PS_SLOT_BYTES], tn_ps_slots *slots);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that set up, release and end static tensor channels, on a channel of service "tern.tensor".
 * The data itself never travels in messages: it is written one-sided. Little endian, fixed sizes.
 *
 *   OPEN    sender -> receiver    bind tx to the tensor of that name
 *   OPENED  receiver -> sender    slots, keys, or a status with a text
 *   RELEASE receiver -> sender    cumulative count of released slots: the sender's credit
 *   CLOSE   sender -> receiver    no write for rx follows (also the answer to CLOSED)
 *   CLOSED  receiver -> sender    the receiver is gone: stop writing and answer CLOSE
 *   WITHDRAW sender -> receiver   OPEN is taken back: tx has written nothing and never will
 *
 * Pure functions, bounded, trust nothing. Tests: tests/unit/tensor/wire_test.c.
 */
#ifndef TN_TENSOR_WIRE_H
#define TN_TENSOR_WIRE_H

#include <stdbool.h>

#include <tern/tensor.h>

#define TN_TENSOR_VERSION  1
#define TN_TENSOR_TEXT_MAX 256
#define TN_TENSOR_MSG_MAX  512

typedef enum tn_tensor_type {
	TN_TENSOR_OPEN = 1,
	TN_TENSOR_OPENED = 2,
	TN_TENSOR_RELEASE = 3,
	TN_TENSOR_CLOSE = 4,
	TN_TENSOR_CLOSED = 5,
	TN_TENSOR_WITHDRAW = 6,
} tn_tensor_type;

/* One struct for all types; which fields travel is written beside each. */
typedef struct tn_tensor_msg {
	tn_tensor_type type;
	uint32_t tx_id; /* in all: number of the sender's end */
	uint32_t rx_id; /* OPENED, CLOSE: number of the receiver's end, index of the notification's table */
	tern_status status;    /* OPENED */
	uint32_t dtype;        /* OPEN */
	tern_shape shape;      /* OPEN */
	uint32_t notify;       /* OPEN */
	uint32_t slots;        /* OPENED */
	uint64_t stride_bytes; /* OPENED: slot i starts at i x stride in the range of slot_key */
	uint64_t count;        /* RELEASE: slots released so far */
	tern_key slot_key;     /* OPENED */
	tern_key flag_key; /* OPENED: flag word of slot i at 64 x i (flag mode); OPEN: credit word of tx */
	char text[TN_TENSOR_TEXT_MAX]; /* OPEN: name; OPENED with an error: what is wrong. NUL-terminated */
} tn_tensor_msg;

/* Returns the bytes written to out (TN_TENSOR_MSG_MAX). */
uint64_t tn_tensor_encode(uint8_t out[TN_TENSOR_MSG_MAX], const tn_tensor_msg *msg);
/* false: malformed or of another version. */
bool tn_tensor_decode(const void *bytes, uint64_t length, tn_tensor_msg *msg);

/* ---- the notification's value: rx_id | low 8 bits of the generation ---- */
#define TN_TENSOR_RX_MAX 65536u

static inline uint32_t tn_tensor_value(uint32_t rx_id, uint64_t generation)
{
	return rx_id << 8 | (uint32_t)(generation & 0xff);
}
_Static_assert(TERN_NOTIFY_BITS == 24, "16 bits of table index and 8 of generation");
_Static_assert(TERN_TENSOR_SLOTS_MAX < 128, "8 bits of generation tell slots in flight apart");

#endif

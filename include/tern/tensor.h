/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static tensor channels: a tensor of known shape that moves again and again from one producer to one
 * consumer. The receiver allocates K slots in registered memory and publishes them once under a name;
 * the sender writes each tensor with one one-sided write and a notification; the receiver uses it in
 * place and releases the slot, which is the sender's credit for the next one.
 *
 * After "Fast Distributed Deep Learning over RDMA" (Xue et al., EuroSys 2019), section 3.2; a generation
 * per transfer detects stale and duplicate data, and slots make pipelining safe.
 *
 * Thread rules: one thread at a time per tensor handle; different handles are independent.
 */
#ifndef TERN_TENSOR_H
#define TERN_TENSOR_H

#include <tern/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_tensor_tx tern_tensor_tx;
typedef struct tern_tensor_rx tern_tensor_rx;

#define TERN_TENSOR_NAME_MAX  128
#define TERN_TENSOR_SLOTS_MAX 16

typedef enum tern_notify_mode {
	TERN_NOTIFY_IMM,  /* write with immediate (default): wakes a sleeping receiver */
	TERN_NOTIFY_FLAG, /* a separate flag word after the data: the receiver polls memory */
} tern_notify_mode;

typedef struct tern_tensor_params {
	const char *name; /* unique at the receiver */
	tern_dtype dtype;
	tern_shape shape;
	unsigned slots; /* 0 = 2 */
	tern_notify_mode notify;
} tern_tensor_params;

/*
 * Receiver: allocate slots and publish the name on all links of ctx. The first sender that opens it with
 * the same dtype and shape is bound; others are refused (TERN_E_IN_USE). TERN_E_EXISTS, _BUDGET, _NOMEM.
 */
tern_status tern_tensor_rx_create(tern_ctx *ctx, const tern_tensor_params *params, tern_tensor_rx **rx);
/*
 * The oldest received tensor: TERN_OK and *data (valid until release), TERN_AGAIN if there is none yet,
 * TERN_E_PEER_LOST (or the link's status) if the sender is gone and nothing is left to deliver.
 * Never blocks; makes no progress (tern_ctx_progress or the helper does).
 */
tern_status tern_tensor_rx_poll(tern_tensor_rx *rx, const void **data);
/* Give the polled slot back to the sender. */
tern_status tern_tensor_rx_release(tern_tensor_rx *rx);
/* Ends the channel (the sender sees TERN_E_PEER_CLOSED) and frees the slots once nobody can write them. */
void tern_tensor_rx_destroy(tern_tensor_rx *rx);

/*
 * Sender: bind to a published tensor of the peer. params as at the receiver (slots ignored). Blocks up
 * to timeout_ns; a name that is not published yet is waited for. TERN_E_SHAPE, _IN_USE, _DEADLINE: the receiver
 * is free for others then; _LIMIT: too many of this node wait already.
 */
tern_status tern_tensor_tx_open(tern_link *link, const tern_tensor_params *params, uint64_t timeout_ns,
				tern_tensor_tx **tx);
/*
 * Send the tensor at data (bytes of the shape; registered memory moves without a copy). TERN_AGAIN: all
 * slots are with the receiver, or no window. op completes when data may be changed again.
 */
tern_status tern_tensor_send(tern_tensor_tx *tx, const void *data, tern_op *op);
/* Would tern_tensor_send be accepted as far as slots go? TERN_OK, TERN_AGAIN, or why it never will. */
tern_status tern_tensor_tx_ready(tern_tensor_tx *tx);
void tern_tensor_tx_close(tern_tensor_tx *tx);

/* Bytes of one tensor. */
uint64_t tern_tensor_bytes(tern_dtype dtype, const tern_shape *shape);

#ifdef __cplusplus
}
#endif

#endif

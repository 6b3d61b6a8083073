/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor channels, static and dynamic.
 *
 * Static: a tensor of known shape that moves again and again from one producer to one
 * consumer. The receiver allocates K slots in registered memory and publishes them once under a name;
 * the sender writes each tensor with one one-sided write and a notification; the receiver uses it in
 * place and releases the slot, which is the sender's credit for the next one.
 *
 * Dynamic: only the rank is known before, dims change from tensor to tensor. The sender writes a small block
 * (dims, address, key) one-sided, the receiver reads the tensor one-sided into memory of its own, and
 * acknowledges, so that the source may be written again.
 *
 * After "Fast Distributed Deep Learning over RDMA" (Xue et al., EuroSys 2019), sections 3.2 and 3.3; a generation
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

/* ---- dynamic ---- */

typedef struct tern_dynamic_tx tern_dynamic_tx;
typedef struct tern_dynamic_rx tern_dynamic_rx;

typedef struct tern_dynamic_params {
	const char *name; /* unique at the receiver among dynamic tensors; up to 119 bytes */
	tern_dtype dtype;
	uint32_t rank;
	uint64_t bytes_max; /* the longest tensor; what is longer is refused by either side. 0 = any */
	unsigned slots;     /* tensors under way or read ahead; 0 = 2 */
} tern_dynamic_params;

/* Receiver: publish the name on all links of ctx. Memory comes with the first tensors. As tern_tensor_rx_create. */
tern_status tern_dynamic_rx_create(tern_ctx *ctx, const tern_dynamic_params *params, tern_dynamic_rx **rx);
/*
 * The oldest tensor: TERN_OK, its shape and *data (valid until release); TERN_AGAIN while none is there or it is still
 * being read; TERN_E_SHAPE or _TOO_LARGE: the sender sent what was not agreed, final; else why the sender is gone.
 * Starts reads of what has come, up to `slots` ahead, and allocates where a tensor is longer than any before in its
 * place: TERN_E_BUDGET, TERN_E_NOMEM, and the next poll tries again. Never blocks; makes no progress.
 */
tern_status tern_dynamic_rx_poll(tern_dynamic_rx *rx, const void **data, tern_shape *shape);
/* The polled tensor is not looked at any more: its memory takes the next one. */
tern_status tern_dynamic_rx_release(tern_dynamic_rx *rx);
/* Ends the channel (the sender sees TERN_E_PEER_CLOSED); memory goes when no read is under way. NULL is allowed. */
void tern_dynamic_rx_destroy(tern_dynamic_rx *rx);

/* Sender: bind, as tern_tensor_tx_open. dtype and rank are compared with each tensor, not here. */
tern_status tern_dynamic_tx_open(tern_link *link, const tern_dynamic_params *params, uint64_t timeout_ns,
				 tern_dynamic_tx **tx);
/*
 * Send the tensor at data. Memory of the link's context with TERN_ACCESS_READ is read where it lies; any other is copied
 * first (counter tensor.staged). TERN_AGAIN: `slots` tensors are not acknowledged. op completes when the receiver has
 * acknowledged, or never will read again: data may be changed then. TERN_E_SHAPE, TERN_E_TOO_LARGE.
 */
tern_status tern_dynamic_send(tern_dynamic_tx *tx, const void *data, const tern_shape *shape, tern_op *op);
/* As tern_tensor_tx_ready. */
tern_status tern_dynamic_tx_ready(tern_dynamic_tx *tx);
/* Does not block: tensors that were sent can still be read, and their operations end as if the handle were open; the
   receiver sees TERN_E_PEER_CLOSED behind the last of them. NULL is allowed. */
void tern_dynamic_tx_close(tern_dynamic_tx *tx);

/* Bytes of one tensor. */
uint64_t tern_tensor_bytes(tern_dtype dtype, const tern_shape *shape);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For layers that cut what they send into pieces: a tensor channel whose tensors are not always full, and
 * channels whose tensors are received into the ranges of a larger one.
 *
 * Threads: as <tern/tensor.h>. Tests: tests/unit/coll.
 */
#ifndef TN_TENSOR_PART_H
#define TN_TENSOR_PART_H

#include <tern/tensor.h>

/* As tern_tensor_rx_create, for a sender of parts. Immediate mode. */
tern_status tn_tensor_rx_create_parts(tern_ctx *ctx, const tern_tensor_params *params, tern_tensor_rx **rx);
/* Bytes of the polled part. */
uint64_t tn_tensor_rx_length(const tern_tensor_rx *rx);
/* As tern_tensor_send, of the first `bytes` bytes alone: at most the tensor's. */
tern_status tn_tensor_send_part(tern_tensor_tx *tx, const void *data, uint64_t bytes, tern_op *op);

/*
 * Slots of `bytes` bytes for a whole tensor, parts of which come by several channels, each from its own sender
 * into its own range: tensor number n of each channel lies in slot n % slots. The key that a sender gets ends
 * with its range of the last slot, so it spans the other parts of the slots before: a sender of a part is
 * trusted with the whole. Counted: the memory goes when it was released and the last channel is gone.
 */
typedef struct tn_tensor_whole tn_tensor_whole;
tern_status tn_tensor_whole_create(tern_ctx *ctx, uint64_t bytes, unsigned slots, tn_tensor_whole **whole);
void tn_tensor_whole_release(tn_tensor_whole *whole); /* NULL is allowed */
/* As tern_tensor_rx_create, into the bytes from `offset` on; params->slots is that of the whole, or 0. */
tern_status tn_tensor_rx_create_in(tern_ctx *ctx, const tern_tensor_params *params, tn_tensor_whole *whole,
				   uint64_t offset, tern_tensor_rx **rx);

#endif

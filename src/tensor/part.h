/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For layers that cut what they send into pieces: a tensor channel whose tensors are not always full.
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

#endif

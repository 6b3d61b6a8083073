/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in files of their own. The public face is in <tern/graph.h>; here the parser, for the fuzzer.
 *
 * Thread story: none. Tests: tests/unit/graph/onnx_test.c, fuzz/onnx_array.c.
 */
#ifndef TN_GRAPH_ONNX_ARRAY_H
#define TN_GRAPH_ONNX_ARRAY_H

#include "graph/onnx/model.h"

/* .npy or TensorProto, by content. Errors are those of tern_array_read. */
tern_status tn_array_parse(const void *data, uint64_t bytes, tern_array *array);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX files as messages: read, held to bounds, unpacked by protobuf-c. Nothing here knows an op.
 *
 *   a file   <= 2 GiB, protobuf's own limit; nested at most TN_OX_DEPTH_MAX deep
 *   unpacked <= TN_OX_SLACK + TN_OX_GROWTH * bytes of the file
 *
 * The file is never trusted: every length is checked before it is used, a field may be missing whatever the
 * schema says, and messages are walked for their depth before protobuf-c, which recurses, sees them.
 *
 * Thread story: none. Tests: tests/unit/graph/onnx_test.c, fuzz/onnx_model.c.
 */
#ifndef TN_GRAPH_ONNX_MODEL_H
#define TN_GRAPH_ONNX_MODEL_H

#include <onnx/onnx.pb-c.h>

#include "graph/ir.h"

#define TN_OX_FILE_MAX  (UINT64_C(1) << 31)
#define TN_OX_DEPTH_MAX 32u
#define TN_OX_SLACK     (UINT64_C(64) << 20)
#define TN_OX_GROWTH    12u /* small varints of int64_data become 8 bytes each, plus the array's growth */

typedef struct tn_ox_model {
	Onnx__ModelProto *proto;
	char *folder; /* of external data; NULL if the model came from memory */
} tn_ox_model;

/* path, or bytes if path is NULL. TERN_E_CORRUPT, TERN_E_TOO_LARGE, TERN_E_UNSUPPORTED, TERN_E_IO. */
tern_status tn_ox_model_open(tn_ox_model *model, const char *path, const void *bytes, uint64_t n);
void tn_ox_model_close(tn_ox_model *model);

/* A whole file into memory, to be freed by the caller. */
tern_status tn_ox_read_file(const char *path, void **data, uint64_t *bytes);
/* Whether the bytes nest messages of this kind no deeper than allowed, and are well-formed. */
tern_status tn_ox_scan(const ProtobufCMessageDescriptor *kind, const uint8_t *data, uint64_t bytes);
/* Unpack with bounded memory. TERN_E_CORRUPT, TERN_E_TOO_LARGE, TERN_E_NOMEM. Free with tn_ox_release. */
tern_status tn_ox_unpack(const ProtobufCMessageDescriptor *kind, const void *data, uint64_t bytes,
			 ProtobufCMessage **message);
void tn_ox_release(ProtobufCMessage *message);

/* The dtype of ONNX's number; 0 if tern has none. */
tern_dtype tn_ox_dtype(int32_t elem_type);
const char *tn_ox_dtype_name(int32_t elem_type);

/* A tensor of the file: *values comes from tn_values_new. name and folder are for texts and external data. */
tern_status tn_ox_tensor_read(const Onnx__TensorProto *t, const char *name, const char *folder,
			      tern_dtype *dtype, tern_shape *shape, void **values);

#endif

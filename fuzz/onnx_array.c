/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of single tensors, .npy and TensorProto: what is accepted has as many bytes as its shape says.
 */
#include "base/check.h"
#include "graph/onnx/array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	tern_array a = {0};
	uint64_t bytes;

	if (tn_array_parse(data, size, &a) != TERN_OK)
		return 0;
	TN_ASSERT(tn_shape_bytes(&a.shape, a.dtype, &bytes) == TERN_OK && (bytes <= 8 * size || bytes == 0));
	for (uint64_t i = 0; i < bytes; i++)
		TN_ASSERT(((const volatile uint8_t *)a.data)[i] <= 255);
	tern_array_free(&a);
	return 0;
}

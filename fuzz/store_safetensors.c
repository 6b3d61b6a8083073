/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of safetensors files: whatever the text says, tensors that are accepted lie inside of the file and fill it.
 */
#include <stdlib.h>

#include "base/check.h"
#include "store/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t data_bytes = size ? data[0] : 0, sum = 0;
	tn_st_tensor *tensors;
	unsigned count;

	if (size == 0 ||
	    tn_st_parse("fuzz", (const char *)data + 1, size - 1, data_bytes, &tensors, &count) != TERN_OK)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		TN_ASSERT(tensors[i].offset >= 8 + size - 1 && tensors[i].bytes <= data_bytes);
		sum += tensors[i].bytes;
	}
	TN_ASSERT(sum == data_bytes);
	free(tensors);
	return 0;
}

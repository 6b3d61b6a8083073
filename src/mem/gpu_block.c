/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns GPU blocks: what tern_mem_alloc gives out for TERN_MEM_DEVICE. A block is an allocation of the driver in
 * whole granules of 2 MiB, as large as devices map it, and one region: tensors on a GPU are few and large.
 *
 * Must not touch the memory. Threads: any. Tests: tests/unit/mem/test_gpu.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "base/log.h"
#include "mem/foreign.h"
#include "mem/gpu.h"

tern_status tn_gpu_block_alloc(tern_mem *mem, uint64_t bytes, uint32_t access, void **ptr)
{
	tern_status status = tn_gpu_start(false);
	tern_region *region;
	uint64_t whole = TN_MAX(bytes, 1);

	if (status != TERN_OK) {
		tn_detail_prefix("GPU memory");
		return status == TERN_E_NO_DEVICE ? TERN_E_UNSUPPORTED : status;
	}
	whole = (whole + TN_GPU_GRANULE - 1) / TN_GPU_GRANULE * TN_GPU_GRANULE;
	TN_TRY(tn_gpu_alloc(whole, ptr));
	status = tn_region_make(mem, *ptr, whole, access, true, true, &region);
	if (status == TERN_OK)
		return TERN_OK;
	tn_gpu_free(*ptr);
	*ptr = NULL;
	tn_detail_prefix("GPU memory");
	return status;
}

static tern_region *block_at(tern_mem *mem, const void *ptr)
{
	tern_region *region = tn_region_use(mem, ptr, 0);

	if (region && region->owned && region->ext.base == ptr)
		return region;
	if (region)
		tn_region_unuse(region);
	return NULL;
}

bool tn_gpu_block_free(tern_mem *mem, void *ptr)
{
	tern_region *region = block_at(mem, ptr);

	if (!region)
		return false;
	tn_keys_revoke_block(&mem->keys, ptr);
	tn_region_unuse(region);
	(void)tn_guards_wait(mem);
	if (tern_mem_unregister(region) != TERN_OK) {
		tn_count(&mem->refused_frees, 1);
		TN_LOG(ERROR, MEM, "tern_mem_free(%p): %s; nothing was freed", ptr, tn_detail_get());
	}
	return true;
}

uint64_t tn_gpu_block_usable(tern_mem *mem, const void *ptr)
{
	tern_region *region = block_at(mem, ptr);
	uint64_t bytes = region ? region->ext.bytes : 0;

	if (region)
		tn_region_unuse(region);
	return bytes;
}

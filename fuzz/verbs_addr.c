/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of verbs addresses over arbitrary bytes, as a device's and as a lane's. What it accepts is in the
 * ranges that index arrays and go to a NIC, encodes back to the same bytes, and pairs with itself (as the other
 * side) without leaving its bounds.
 *
 * Pure. Seeds: fuzz/corpus/verbs_addr. Unit tests: tests/unit/transport/test_verbs_wire.c, test_verbs_pair.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef TN_HAVE_VERBS

#include "base/check.h"
#include "transport/verbs/addr.h"

static void check(const tn_vb_addr *addr, const tn_blob *blob)
{
	tn_vb_addr other = *addr;
	tn_vb_pair pair;
	tn_blob again;

	TN_ASSERT(addr->count >= 1 && addr->count <= TN_VB_RAILS_MAX);
	for (uint32_t i = 0; i < addr->count; i++) {
		const tn_vb_rail_addr *rail = &addr->rails[i];

		TN_ASSERT(rail->rail < TN_VB_RAILS_MAX && rail->mem_slot < TN_MEM_DEVICES_MAX);
		TN_ASSERT(rail->gid_count >= 1 && rail->gid_count <= tn_vb_gids_each(addr->count));
		TN_ASSERT(rail->mtu >= IBV_MTU_256 && rail->mtu <= IBV_MTU_4096);
	}
	tn_vb_addr_put(addr, &again);
	TN_ASSERT(again.length == blob->length && memcmp(again.bytes, blob->bytes, blob->length) == 0);
	other.active = !addr->active;
	if (tn_vb_pair_choose(addr, &other, &pair) == TERN_OK) {
		TN_ASSERT(pair.active < addr->count && pair.passive < addr->count);
		TN_ASSERT(pair.active_gid < addr->rails[pair.active].gid_count);
		TN_ASSERT(pair.passive_gid < addr->rails[pair.passive].gid_count);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	tn_vb_addr addr;
	tn_blob blob = {0};

	if (size > TN_BLOB_MAX)
		return 0;
	blob.length = (uint16_t)size;
	if (size)
		memcpy(blob.bytes, data, size);
	for (int lane = 0; lane < 2; lane++) {
		if (tn_vb_addr_get(&blob, lane != 0, &addr))
			check(&addr, &blob);
	}
	return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	(void)data;
	(void)size;
	return 0;
}

#endif

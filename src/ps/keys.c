/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: keys to the memory that operations name, kept because the next operation names it again. Memory that was
 * freed meanwhile has taken its key with it: the key table says so, and it is made anew.
 *
 * Threads: any; lease_lock. Tests: tests/unit/ps/ps_test.c.
 */
#include "mem/mem.h"
#include "ps/client.h"

/* Lock held. */
static bool alive(tern_ps *ps, const ps_lease *lease)
{
	uint32_t extent;
	uint64_t offset;
	tn_key key;

	return lease->live && tn_key_decode(&lease->key, &key) &&
	       tn_key_check(tn_mem_keys(ps->mem), &key, 0, lease->bytes, lease->access, &extent, &offset) ==
		       TERN_OK;
}

static void end(tern_ps *ps, ps_lease *lease)
{
	if (lease->live)
		(void)tern_mem_revoke(ps->mem, &lease->key); /* stale if the memory is gone */
	lease->live = false;
}

static inline bool is_for(const ps_lease *l, const void *ptr, uint64_t bytes, uint32_t access)
{
	return l->live && l->ptr == ptr && l->bytes == bytes && l->access == access;
}

/* Lock held: the one for this memory, or the one that was unused for the longest; NULL: all are in use. */
static ps_lease *choose(tern_ps *ps, const void *ptr, uint64_t bytes, uint32_t access)
{
	ps_lease *oldest = NULL;

	if (ps->lease_last && is_for(ps->lease_last, ptr, bytes, access))
		return ps->lease_last;
	for (unsigned i = 0; i < TN_PS_LEASES; i++) {
		ps_lease *l = &ps->leases[i];

		if (is_for(l, ptr, bytes, access))
			return l;
		if (l->users == 0 && (!oldest || !l->live || (oldest->live && l->used < oldest->used)))
			oldest = l;
	}
	return oldest;
}

ps_lease *tn_ps_lease_get(tern_ps *ps, const void *ptr, uint64_t bytes, uint32_t access)
{
	ps_lease *lease;

	rpc_lock_take(&ps->lease_lock);
	lease = choose(ps, ptr, bytes, access);
	if (lease && !(is_for(lease, ptr, bytes, access) && alive(ps, lease))) {
		if (lease->users == 0) {
			end(ps, lease);
			lease->live = tern_mem_export(ps->mem, ptr, bytes, access, &lease->key) == TERN_OK;
			lease->ptr = ptr;
			lease->bytes = bytes;
			lease->access = access;
		}
		if (lease->users || !lease->live)
			lease = NULL;
	}
	if (lease) {
		lease->users++;
		lease->used = ++ps->lease_clock;
		ps->lease_last = lease;
	}
	rpc_lock_drop(&ps->lease_lock);
	return lease;
}

void tn_ps_lease_put(tern_ps *ps, ps_lease *lease)
{
	rpc_lock_take(&ps->lease_lock);
	TN_ASSERT(lease->users > 0);
	lease->users--;
	rpc_lock_drop(&ps->lease_lock);
}

void tn_ps_leases_free(tern_ps *ps)
{
	for (unsigned i = 0; i < TN_PS_LEASES; i++)
		end(ps, &ps->leases[i]);
}

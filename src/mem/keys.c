/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the key table: making, revoking and checking software keys, and their wire form. The rows lie in a
 * memfd that peers of this host map read-only, so an initiator checks a key as a NIC checks an rkey.
 *
 *   row.generation   even: free, odd: live; +1 on export and on revocation
 *   meta             live rows: chain of their block; free rows: a queue, oldest reused first, so that an old
 *                    key meets its own generation again only after 2^31 reuses of one row
 *   live + length of the queue == TN_KEYS_MAX
 *
 * A copy that passed the check before the revocation may go on: guard.c waits for it, or parks the block.
 * Threads: make, revoke under the keys' lock; check takes none (seqlock per row). Tests: test_keys.c.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "base/mutant.h"
#include "base/os.h"
#include "base/wirebuf.h"
#include "mem/os_mem.h"
#include "mem/pool.h"

#define TABLE_BYTES (TN_KEYS_MAX * sizeof(tn_key_row))
#define ACCESS_ALL  (TERN_ACCESS_READ | TERN_ACCESS_WRITE)
#define KEY_ZERO_AT 60u /* of the wire form */

_Static_assert(TABLE_BYTES % 4096 == 0, "peers map whole pages");

tern_status tn_keys_init(tn_keys *keys)
{
	tern_status status;
	uint64_t seed;
	uint32_t tag;
	void *rows;
	int fd;

	TN_TRY(tn_os_random(&seed, sizeof(seed)));
	TN_TRY(tn_os_random(&tag, sizeof(tag)));
	TN_TRY(tn_os_mem_table(TABLE_BYTES, &rows, &fd));
	keys->rows = rows;
	keys->table = (tn_key_table){.rows = rows, .count = TN_KEYS_MAX, .node_tag = tag, .fd = fd};
	keys->meta = TN_FAULT("mem.keys.meta") ? NULL : calloc(TN_KEYS_MAX, sizeof(*keys->meta));
	status = keys->meta ? tn_map_init(&keys->chains, 256, false, seed)
			    : tn_fail(TERN_E_NOMEM, "no memory for the key table");
	if (status != TERN_OK) {
		free(keys->meta);
		keys->meta = NULL;
		tn_os_mem_table_free(rows, TABLE_BYTES, &keys->table.fd);
		return status;
	}
	for (uint32_t i = 0; i < TN_KEYS_MAX; i++)
		keys->meta[i] = (tn_key_meta){.next = i + 1, .prev = TN_KEY_NONE};
	keys->meta[TN_KEYS_MAX - 1].next = TN_KEY_NONE;
	keys->free_first = 0;
	keys->free_last = TN_KEYS_MAX - 1;
	keys->live = 0;
	pthread_mutex_init(&keys->lock, NULL);
	return TERN_OK;
}

void tn_keys_fini(tn_keys *keys)
{
	tn_map_fini(&keys->chains);
	free(keys->meta);
	tn_os_mem_table_free(keys->rows, TABLE_BYTES, &keys->table.fd);
	pthread_mutex_destroy(&keys->lock);
}

const tn_key_table *tn_mem_keys(const tern_mem *mem)
{
	return &mem->keys.table;
}

uint32_t tn_keys_live(tn_keys *keys)
{
	uint32_t live;

	pthread_mutex_lock(&keys->lock);
	live = keys->live;
	pthread_mutex_unlock(&keys->lock);
	return live;
}

/* Take the oldest free row and hang it in front of its block's chain. */
static tern_status row_take(tn_keys *keys, const void *block, uint32_t *index)
{
	uint64_t address = (uint64_t)(uintptr_t)block;
	uint64_t *first = tn_map_find(&keys->chains, address);
	uint32_t next = first ? (uint32_t)*first : TN_KEY_NONE;
	uint32_t row = keys->free_first;

	if (row == TN_KEY_NONE)
		return tn_fail(TERN_E_LIMIT, "all %u keys are live: revoke some, or export larger ranges",
			       TN_KEYS_MAX);
	if (TN_FAULT("mem.keys.map") || tn_map_put(&keys->chains, address, row) != TERN_OK)
		return tn_fail(TERN_E_NOMEM, "no memory for a key");
	keys->free_first = keys->meta[row].next;
	if (keys->free_first == TN_KEY_NONE)
		keys->free_last = TN_KEY_NONE;
	keys->meta[row] = (tn_key_meta){.block = address, .next = next, .prev = TN_KEY_NONE};
	if (next != TN_KEY_NONE)
		keys->meta[next].prev = row;
	keys->live++;
	*index = row;
	return TERN_OK;
}

static void row_kill(tn_keys *keys, uint32_t index)
{
	tn_key_row *row = &keys->rows[index];
	uint32_t generation = atomic_load_explicit(&row->generation, memory_order_relaxed);

	TN_ASSERT((generation & 1) && keys->live > 0);
	atomic_store_explicit(&row->generation, generation + 1, memory_order_release);
	keys->live--;
	keys->meta[index] = (tn_key_meta){.next = TN_KEY_NONE, .prev = TN_KEY_NONE};
	if (keys->free_last != TN_KEY_NONE)
		keys->meta[keys->free_last].next = index;
	else
		keys->free_first = index;
	keys->free_last = index;
}

tern_status tn_keys_make(tn_keys *keys, const tn_extent *ext, const void *base, const void *ptr,
			 uint64_t bytes, uint32_t access, tern_key *wire)
{
	uint64_t offset = (uint64_t)((const uint8_t *)ptr - (const uint8_t *)ext->base);
	tn_key key = {.access = access,
		      .extent = ext->index,
		      .extent_offset = offset,
		      .length = bytes,
		      .address = (uint64_t)(uintptr_t)ptr,
		      .node_tag = keys->table.node_tag};
	tn_key_row *row;
	tern_status status;

	pthread_mutex_lock(&keys->lock);
	status = row_take(keys, base, &key.index);
	if (status == TERN_OK) {
		/* Each store releases, so that a reader who sees a new field sees the even generation too. */
		row = &keys->rows[key.index];
		key.generation = atomic_load_explicit(&row->generation, memory_order_relaxed) + 1;
		TN_ASSERT(key.generation & 1);
		atomic_store_explicit(&row->access, access, memory_order_release);
		atomic_store_explicit(&row->extent, key.extent, memory_order_release);
		atomic_store_explicit(&row->extent_offset, offset, memory_order_release);
		atomic_store_explicit(&row->length, bytes, memory_order_release);
		atomic_store_explicit(&row->generation, key.generation, memory_order_release);
	}
	pthread_mutex_unlock(&keys->lock);
	if (status != TERN_OK)
		return status;
	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++)
		key.rkey[i] = ext->rkey[i];
	tn_key_encode(&key, wire);
	return TERN_OK;
}

/* Unhook a live row from its chain. */
static void row_unchain(tn_keys *keys, uint32_t index)
{
	tn_key_meta *meta = &keys->meta[index];

	if (meta->next != TN_KEY_NONE)
		keys->meta[meta->next].prev = meta->prev;
	if (meta->prev != TN_KEY_NONE)
		keys->meta[meta->prev].next = meta->next;
	else if (meta->next == TN_KEY_NONE)
		tn_map_remove(&keys->chains, meta->block, NULL);
	else
		*tn_map_find(&keys->chains, meta->block) = meta->next;
}

tern_status tern_mem_revoke(tern_mem *mem, const tern_key *wire)
{
	tn_keys *keys;
	tn_key key;
	bool live;

	if (!mem || !wire)
		return tn_fail(TERN_E_INVALID, "%s is NULL", mem ? "key" : "mem");
	TN_TRY(tn_mem_here(mem));
	if (!tn_key_decode(wire, &key))
		return tn_fail(TERN_E_INVALID, "malformed key");
	keys = &mem->keys;
	if (key.node_tag != keys->table.node_tag)
		return tn_fail(TERN_E_STALE_KEY, "the key was made by another node or context");
	pthread_mutex_lock(&keys->lock);
	live = key.index < TN_KEYS_MAX && atomic_load_explicit(&keys->rows[key.index].generation,
							       memory_order_relaxed) == key.generation;
	if (live) {
		row_unchain(keys, key.index);
		row_kill(keys, key.index);
	}
	pthread_mutex_unlock(&keys->lock);
	if (!live)
		return tn_fail(TERN_E_STALE_KEY, "the key was revoked before");
	return tn_guards_wait(mem);
}

bool tn_keys_any(tn_keys *keys, const void *base)
{
	bool any;

	pthread_mutex_lock(&keys->lock);
	any = tn_map_find(&keys->chains, (uint64_t)(uintptr_t)base) != NULL;
	pthread_mutex_unlock(&keys->lock);
	return any;
}

void tn_keys_revoke_block(tn_keys *keys, const void *base)
{
	uint64_t first;

	pthread_mutex_lock(&keys->lock);
	if (tn_map_remove(&keys->chains, (uint64_t)(uintptr_t)base, &first)) {
		for (uint32_t i = (uint32_t)first; i != TN_KEY_NONE;) {
			uint32_t next = keys->meta[i].next;

			row_kill(keys, i);
			i = next;
		}
	}
	pthread_mutex_unlock(&keys->lock);
}

tern_status tn_key_check(const tn_key_table *table, const tn_key *key, uint64_t offset, uint64_t bytes,
			 uint32_t access, uint32_t *extent, uint64_t *extent_offset)
{
	const tn_key_row *row;
	uint32_t row_access, row_extent;
	uint64_t row_offset, row_length;

	if (key->node_tag != table->node_tag || key->index >= table->count || !(key->generation & 1))
		return TERN_E_STALE_KEY;
	row = &table->rows[key->index];
	if (atomic_load_explicit(&row->generation, memory_order_acquire) != key->generation && !TN_MUTANT(8))
		return TERN_E_STALE_KEY;
	row_access = atomic_load_explicit(&row->access, memory_order_acquire);
	row_extent = atomic_load_explicit(&row->extent, memory_order_acquire);
	row_offset = atomic_load_explicit(&row->extent_offset, memory_order_acquire);
	row_length = atomic_load_explicit(&row->length, memory_order_acquire);
	if (atomic_load_explicit(&row->generation, memory_order_relaxed) != key->generation && !TN_MUTANT(8))
		return TERN_E_STALE_KEY;
	if (offset > row_length || bytes > row_length - offset)
		return TERN_E_BOUNDS;
	if ((row_access & access) != access)
		return TERN_E_ACCESS;
	*extent = row_extent;
	*extent_offset = row_offset + offset;
	return TERN_OK;
}

/* ---- wire form ---- */

void tn_key_encode(const tn_key *key, tern_key *wire)
{
	tn_writer w;

	tn_writer_init(&w, wire->bytes, sizeof(wire->bytes));
	tn_put_u32(&w, key->index);
	tn_put_u32(&w, key->generation);
	tn_put_u32(&w, key->access);
	tn_put_u32(&w, key->extent);
	tn_put_u64(&w, key->extent_offset);
	tn_put_u64(&w, key->length);
	tn_put_u64(&w, key->address);
	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++)
		tn_put_u32(&w, key->rkey[i]);
	tn_put_u32(&w, key->node_tag);
	tn_put_u32(&w, 0);
	TN_ASSERT(!w.bad && w.at == sizeof(wire->bytes));
}

/* Where the wire form is the struct's own one copy is all: keys are read at each transfer. */
static void key_fields(const tern_key *wire, tn_key *key)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	_Static_assert(offsetof(tn_key, index) == TN_KEY_INDEX_AT &&
			       offsetof(tn_key, generation) == TN_KEY_GENERATION_AT &&
			       offsetof(tn_key, node_tag) == TN_KEY_NODE_TAG_AT,
		       "what tn_key_word reads");
	_Static_assert(offsetof(tn_key, extent_offset) == 16 && offsetof(tn_key, rkey) == 40 &&
			       offsetof(tn_key, node_tag) == KEY_ZERO_AT - 4 && sizeof(*key) == sizeof(*wire),
		       "the wire form and one zero of padding");
	memcpy(key, wire->bytes, sizeof(*key));
#else
	tn_reader r;

	tn_reader_init(&r, wire->bytes, sizeof(wire->bytes));
	key->index = tn_get_u32(&r);
	key->generation = tn_get_u32(&r);
	key->access = tn_get_u32(&r);
	key->extent = tn_get_u32(&r);
	key->extent_offset = tn_get_u64(&r);
	key->length = tn_get_u64(&r);
	key->address = tn_get_u64(&r);
	for (uint32_t i = 0; i < TN_MEM_DEVICES_MAX; i++)
		key->rkey[i] = tn_get_u32(&r);
	key->node_tag = tn_get_u32(&r);
#endif
}

bool tn_key_decode(const tern_key *wire, tn_key *key)
{
	uint32_t zero;
	uint64_t end;

	key_fields(wire, key);
	memcpy(&zero, wire->bytes + KEY_ZERO_AT, sizeof(zero));
	if (zero != 0 || !(key->generation & 1) || key->access == 0 || (key->access & ~ACCESS_ALL))
		return false;
	return !__builtin_add_overflow(key->extent_offset, key->length, &end) &&
	       !__builtin_add_overflow(key->address, key->length, &end);
}

uint64_t tern_key_length(const tern_key *wire)
{
	tn_key key;

	return wire && tn_key_decode(wire, &key) ? key.length : 0;
}

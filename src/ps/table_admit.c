/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets a row, and who loses it: admission by a count-min sketch (Cormode and Muthukrishnan 2005) with
 * conservative update (Estan and Varghese 2002), each key's four counters in one cache line; eviction of the worst of
 * a sample; expiry by step.
 *
 * The sketch never counts too little until it ages: when it has counted 8 requests per counter all counters are
 * halved. Races lose a count now and then, no more.
 *
 * Threads: any. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "ps/table_impl.h"

#define LINE 64

tern_status tn_admit_init(tn_table *t)
{
	uint64_t bytes = t->schema.budget_bytes ? t->schema.budget_bytes / 16 : 1ull << 20;

	if (t->schema.admit_after <= 1)
		return TERN_OK;
	bytes = TN_MIN(TN_MAX(bytes, 4096), 4ull << 20) / LINE * LINE;
	t->sketch = aligned_alloc(LINE, bytes);
	if (!t->sketch)
		return tn_fail(TERN_E_NOMEM, "no memory for the sketch of table \"%s\"", t->schema.name);
	memset((void *)t->sketch, 0, bytes);
	t->sketch_lines = bytes / LINE;
	return TERN_OK;
}

void tn_admit_fini(tn_table *t)
{
	free((void *)t->sketch);
}

static void age(tn_table *t)
{
	for (uint64_t i = 0; i < t->sketch_lines * LINE; i++) {
		uint8_t v = atomic_load_explicit(&t->sketch[i], memory_order_relaxed);

		if (v)
			atomic_store_explicit(&t->sketch[i], v / 2, memory_order_relaxed);
	}
}

bool tn_admit(tn_table *t, uint64_t hash)
{
	uint64_t mixed, adds;
	_Atomic uint8_t *at[4];
	uint8_t v[4], least = UINT8_MAX;

	if (t->schema.admit_after <= 1)
		return true;
	mixed = tn_hash_u64(hash, 0x61646d6974ull);
	for (unsigned i = 0; i < 4; i++) {
		at[i] = &t->sketch[(mixed >> 16) % t->sketch_lines * LINE + 16 * i + ((mixed >> 4 * i) & 15)];
		v[i] = atomic_load_explicit(at[i], memory_order_relaxed);
		least = TN_MIN(least, v[i]);
	}
	for (unsigned i = 0; i < 4 && least < UINT8_MAX; i++) {
		if (v[i] == least)
			atomic_store_explicit(at[i], least + 1, memory_order_relaxed);
	}
	adds = atomic_fetch_add_explicit(&t->sketch_adds, 1, memory_order_relaxed) + 1;
	if (adds % (t->sketch_lines * LINE * 8) == 0)
		age(t);
	return least + 1u >= t->schema.admit_after;
}

/* ---- eviction ---- */

#define SAMPLE 16

/* Lower goes first. */
static uint64_t score(const tn_table *t, tn_head *head)
{
	return t->schema.eviction == TERN_EVICT_LFU
		       ? atomic_load_explicit(&head->frequency, memory_order_relaxed)
		       : atomic_load_explicit(tn_head_last_step(head), memory_order_relaxed);
}

/* It was looked at and stays: frequencies shrink by an eighth, so that who was popular once does not stay for ever. */
static void survive(const tn_table *t, tn_head *head)
{
	uint32_t f;

	if (t->schema.eviction != TERN_EVICT_LFU)
		return;
	f = atomic_load_explicit(&head->frequency, memory_order_relaxed);
	atomic_store_explicit(&head->frequency, f - f / 8, memory_order_relaxed);
}

/* Of up to SAMPLE live records at random places; of those from a random place on if there are few. */
static tn_head *victim(tn_table *t)
{
	uint64_t places = tn_slab_places(t), seed, seen = 0, least = 0;
	tn_head *worst = NULL;

	if (places == 0)
		return NULL;
	seed = tn_hash_u64(atomic_fetch_add_explicit(&t->dice, 1, memory_order_relaxed), t->init_seed);
	for (uint64_t i = 0; i < 4 * SAMPLE + places && seen < SAMPLE && !(worst && i >= 4 * SAMPLE); i++) {
		uint64_t dice = tn_hash_u64(seed + TN_MIN(i, 4 * SAMPLE), 0);
		uint64_t place = (uint64_t)(((unsigned __int128)dice * places) >> 64);
		uint32_t id;
		tn_head *head;

		if (i > 4 * SAMPLE)
			place = (place + i) % places;
		if (!tn_slab_walk(t, place, &id))
			continue;
		head = tn_head_of(t, id);
		if (head == worst || (atomic_load_explicit(&head->version, memory_order_acquire) & TN_DEAD))
			continue;
		seen++;
		if (!worst || score(t, head) < least) {
			if (worst)
				survive(t, worst);
			worst = head;
			least = score(t, head);
		} else {
			survive(t, head);
		}
	}
	return worst;
}

tern_status tn_evict_one(tn_table *t, bool *made)
{
	/* Somebody else may erase it first: that is room as well. */
	for (unsigned tries = 0; tries < 8; tries++) {
		tn_head *head = victim(t);
		uint64_t key = head ? tn_head_key(head) : 0;
		bool gone;

		*made = head != NULL;
		if (!head)
			return TERN_OK;
		if (t->tier) {
			TN_TRY(tn_index_evict(t, key, tn_table_hash(key), &gone));
		} else {
			gone = tn_index_erase(t, key, tn_table_hash(key), TN_ERASE_ALWAYS);
			if (gone)
				TN_COUNT(t, evicted, 1);
		}
		if (gone)
			return TERN_OK;
	}
	return TERN_OK;
}

/* ---- expiry ---- */

#define EXPIRE_BATCH 256

/* Keys of up to EXPIRE_BATCH records at places from *place on that were last used at `last` or before. */
static uint32_t stale(tn_table *t, uint64_t *place, uint64_t end, uint64_t last, uint64_t *keys)
{
	unsigned slot = tn_epoch_enter(&t->epoch);
	uint32_t n = 0;

	for (unsigned looked = 0; *place < end && looked < 4096 && n < EXPIRE_BATCH; looked++, (*place)++) {
		uint32_t id;
		tn_head *head;

		if (!tn_slab_walk(t, *place, &id))
			continue;
		head = tn_head_of(t, id);
		if (!(atomic_load_explicit(&head->version, memory_order_acquire) & TN_DEAD) &&
		    atomic_load_explicit(tn_head_last_step(head), memory_order_relaxed) <= last)
			keys[n++] = tn_head_key(head);
	}
	tn_epoch_leave(&t->epoch, slot);
	return n;
}

tern_status tn_table_expire(tn_table *t, uint64_t step, uint64_t *expired)
{
	uint64_t keys[EXPIRE_BATCH], end = tn_slab_places(t), place = 0, gone = 0;
	tern_status st;

	if (expired)
		*expired = 0;
	if (t->schema.ttl_steps == 0 || step < t->schema.ttl_steps)
		return TERN_OK;
	while (place < end) {
		uint64_t last = step - t->schema.ttl_steps;
		uint32_t n = stale(t, &place, end, last, keys);
		unsigned slot = tn_epoch_enter(&t->epoch);

		for (uint32_t i = 0; i < n; i++)
			gone += tn_index_erase(t, keys[i], tn_table_hash(keys[i]), last);
		tn_epoch_leave(&t->epoch, slot);
	}
	st = tn_cold_any(t) ? tn_cold_expire(t, step - t->schema.ttl_steps, &gone) : TERN_OK;
	TN_COUNT(t, expired, gone);
	if (expired)
		*expired = gone;
	return st;
}

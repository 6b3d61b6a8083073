/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slabs and ids: where records lie, who has which id, and when a dead one may be used again. Slabs begin at 64 KiB
 * and are an eighth of the table up to 4 MiB (more where records are large); what is not used of the last one takes no
 * memory, if it is the process's own, and is not counted. From 2 MiB on they are in huge pages (mem/os_mem.h). Slabs are
 * never given back while the table lives.
 *
 * Must not know keys or the index. Threads: any; id_lock, once for many ids.
 * Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "mem/os_mem.h"
#include "ps/table_impl.h"

#define HUGE (2ull << 20)

#define STEP (64ull << 10) /* in which memory of a slab is counted */
#define MANY  \
	(2ull \
	 << 20) /* records: in a table of so many, what is not used of a huge page is a byte of each at most */

static void *own_alloc(void *arg, uint64_t bytes, uint64_t align)
{
	(void)arg;
	return tn_os_mem_private(bytes, align);
}

static void own_free(void *arg, void *ptr, uint64_t bytes)
{
	(void)arg;
	tn_os_mem_private_free(ptr, bytes);
}

/* Records of a slab of full size. */
static uint32_t full_places(const tn_table *t)
{
	uint64_t places = TN_SLAB_BYTES / t->stride;

	return (uint32_t)TN_MAX(places, 16);
}

tern_status tn_slab_init(tn_table *t)
{
	uint32_t bits = 0;

	t->lazy = !t->memory.alloc;
	if (t->lazy)
		t->memory = (tn_table_memory){.alloc = own_alloc, .free = own_free};
	while ((1u << bits) < full_places(t))
		bits++;
	t->shift = bits;
	t->mask = (1u << bits) - 1;
	t->slabs = calloc(TN_MIN(TN_SLABS_MAX, 1ull << (32 - bits)), sizeof(*t->slabs));
	return t->slabs ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a table's list of slabs");
}

static uint64_t slab_bytes(const tn_table *t, const tn_slab *slab)
{
	return (uint64_t)slab->places * t->stride;
}

void tn_slab_fini(tn_table *t)
{
	for (uint32_t i = 0; t->slabs && i < t->slab_count; i++)
		t->memory.free(t->memory.arg, t->slabs[i].base, slab_bytes(t, &t->slabs[i]));
	free(t->slabs);
	while (t->limbo) {
		tn_limbo *next = t->limbo->next;

		free(t->limbo);
		t->limbo = next;
	}
}

/* Bytes of the last slab that take memory. */
static void count_slab(tn_table *t)
{
	const tn_slab *slab = &t->slabs[t->slab_count - 1];
	uint64_t used = (uint64_t)t->slab_used * t->stride, step = slab->huge ? HUGE : STEP;
	uint64_t bytes = t->lazy ? (used + step - 1) / step * step : UINT64_MAX;

	if (bytes > t->slab_counted) {
		bytes = TN_MIN(bytes, slab_bytes(t, slab));
		TN_COUNT(t, slab_bytes, bytes - t->slab_counted);
		t->slab_counted = bytes;
	}
}

/* huge: from the first touch on. */
static tern_status add_slab(tn_table *t, uint32_t places, bool huge)
{
	uint64_t bytes = (uint64_t)places * t->stride, align = bytes >= HUGE ? HUGE : 64;
	tn_slab *slab = &t->slabs[t->slab_count];

	TN_ASSERT(places > 0 && places <= t->mask + 1);
	if (t->slab_count == TN_MIN(TN_SLABS_MAX, 1ull << (32 - t->shift)))
		return tn_fail(TERN_E_LIMIT,
			       "table \"%s\": %" PRIu32 " slabs with %" PRIu64
			       " records are as many as one server can have: add servers",
			       t->schema.name, t->slab_count, t->places);
	slab->base = TN_FAULT("ps.table.slab") ? NULL : t->memory.alloc(t->memory.arg, bytes, align);
	if (!slab->base)
		return tn_fail(TERN_E_NOMEM,
			       "table \"%s\": no memory for %" PRIu64 " more bytes; it has %" PRIu64
			       ": set budget_bytes, or add servers",
			       t->schema.name, bytes, TN_GET(t, slab_bytes));
	slab->places = places;
	slab->first = t->places;
	slab->huge = huge && t->lazy && bytes >= HUGE;
	if (slab->huge)
		tn_os_mem_private_huge(slab->base, bytes);
	t->places += places;
	t->slab_used = 0;
	t->slab_counted = 0;
	t->slab_count++;
	tn_layout_changed(t);
	return TERN_OK;
}

tern_status tn_slab_add_full(tn_table *t, uint32_t places)
{
	TN_TRY(add_slab(t, places, true));
	t->slab_used = places;
	count_slab(t);
	t->used += places;
	t->handed += places;
	return TERN_OK;
}

static tern_status grow(tn_table *t)
{
	uint64_t bytes = TN_MAX(TN_SLAB_BYTES_MIN, t->places * t->stride / 8);
	uint64_t places;

	if (bytes > HUGE)
		bytes = bytes / HUGE * HUGE; /* but for less than a record */
	places = TN_MIN(TN_MAX(bytes / t->stride, 16), full_places(t));
	if (t->places_max) {
		if (t->places >= t->places_max)
			return TERN_E_BUDGET;
		places = TN_MIN(places, t->places_max - t->places);
	}
	TN_TRY(add_slab(t, (uint32_t)places, t->places >= MANY));
	if (t->slab_count == 1) {
		t->slab_used = 1; /* id 0 is none */
		t->used = 1;
	}
	return TERN_OK;
}

/* One that was never used. */
static uint32_t fresh_id(tn_table *t)
{
	uint32_t s = t->slab_count - 1, id;
	tn_head *head;

	if (t->slab_count == 0 || t->slab_used == t->slabs[s].places)
		return 0;
	id = s << t->shift | t->slab_used;
	head = tn_head_of(t, id);
	atomic_store_explicit(&head->version, TN_DEAD, memory_order_relaxed);
	t->slab_used++;
	t->used++;
	count_slab(t);
	if (t->slab_used == t->slabs[s].places && t->lazy && !t->slabs[s].huge)
		t->slab_full = &t->slabs[s];
	return id;
}

static void push_free(tn_table *t, uint32_t id)
{
	tn_head_of(t, id)->key[0] = t->free_ids;
	t->free_ids = id;
}

/* From limbo to the free list, what no reader sees any more. */
static void settle(tn_table *t)
{
	while (t->limbo && tn_epoch_passed(&t->epoch, t->limbo->stamp)) {
		tn_limbo *l = t->limbo;

		for (uint32_t i = 0; i < l->count; i++)
			push_free(t, l->ids[i]);
		t->limbo = l->next;
		if (!t->limbo)
			t->limbo_last = NULL;
		free(l);
	}
}

static tern_status one_id(tn_table *t, uint32_t *id)
{
	tern_status st = TERN_OK;

	if (!t->free_ids)
		settle(t);
	if (t->free_ids) {
		*id = t->free_ids;
		t->free_ids = tn_head_of(t, *id)->key[0];
		return TERN_OK;
	}
	*id = fresh_id(t);
	if (!*id) {
		st = grow(t);
		*id = st == TERN_OK ? fresh_id(t) : 0;
	}
	return *id ? TERN_OK : t->limbo ? TERN_AGAIN : st;
}

tern_status tn_hand_fill(tn_table *t, tn_hand *hand, uint64_t want)
{
	tern_status st = TERN_OK;
	tn_slab *full;

	TN_ASSERT(hand->count == 0 && want > 0);
	want = TN_MIN(want, TN_HAND);
	pthread_mutex_lock(&t->id_lock);
	while (hand->count < want) {
		if (t->rows_max && t->handed >= t->rows_max)
			st = TERN_E_BUDGET;
		else
			st = one_id(t, &hand->ids[hand->count]);
		if (st != TERN_OK)
			break;
		hand->count++;
		t->handed++;
	}
	full = t->slab_full;
	t->slab_full = NULL;
	pthread_mutex_unlock(&t->id_lock);
	if (full)
		tn_os_mem_private_filled(full->base, slab_bytes(t, full));
	return hand->count ? TERN_OK : st;
}

void tn_hand_return(tn_table *t, tn_hand *hand)
{
	if (hand->count == 0)
		return;
	pthread_mutex_lock(&t->id_lock);
	t->handed -= hand->count;
	while (hand->count)
		push_free(t, hand->ids[--hand->count]);
	pthread_mutex_unlock(&t->id_lock);
}

void tn_id_retire(tn_table *t, uint32_t id)
{
	uint64_t stamp = tn_epoch_stamp(&t->epoch);
	tn_limbo *l;

	pthread_mutex_lock(&t->id_lock);
	TN_ASSERT(t->handed > 0);
	t->handed--;
	l = t->limbo_last;
	if (!l || l->count == TN_COUNT_OF(l->ids) || l->stamp + 1 < stamp) {
		l = malloc(sizeof(*l));
		if (!l) {
			/* Memory ran out: this place stays dead for good. */
			pthread_mutex_unlock(&t->id_lock);
			return;
		}
		*l = (tn_limbo){.stamp = stamp};
		if (t->limbo_last)
			t->limbo_last->next = l;
		else
			t->limbo = l;
		t->limbo_last = l;
	}
	l->stamp = TN_MAX(l->stamp, stamp);
	l->ids[l->count++] = id;
	pthread_mutex_unlock(&t->id_lock);
}

/* ---- records ---- */

static void pause_a_bit(unsigned tries)
{
	if (tries % 64 == 63)
		sched_yield();
	else
		tn_cpu_relax();
}

bool tn_head_lock(tn_head *head, uint32_t *version)
{
	uint32_t v = atomic_load_explicit(&head->version, memory_order_relaxed);

	for (unsigned tries = 0;; tries++) {
		if (v & TN_DEAD)
			return false;
		if (!(v & TN_LOCKED) &&
		    atomic_compare_exchange_weak_explicit(&head->version, &v, v | TN_LOCKED,
							  memory_order_acquire, memory_order_relaxed))
			break;
		pause_a_bit(tries);
		v = atomic_load_explicit(&head->version, memory_order_relaxed);
	}
	*version = v;
	return true;
}

bool tn_head_read(tn_table *t, tn_head *head, uint64_t from, void *dst, uint64_t bytes)
{
	for (unsigned tries = 0;; tries++) {
		uint32_t v = atomic_load_explicit(&head->version, memory_order_acquire);

		if (v & TN_DEAD)
			return false;
		if (TN_LIKELY(!(v & TN_WRITING))) {
			tn_seq_load(dst, (uint8_t *)head + from, bytes);
			if (TN_LIKELY(!((v ^ atomic_load_explicit(&head->version, memory_order_relaxed)) &
					~TN_LOCKED)))
				return true;
		}
		TN_COUNT(t, retries, 1);
		pause_a_bit(tries);
	}
}

/* ---- walks ---- */

uint64_t tn_slab_places(tn_table *t)
{
	uint64_t n;

	pthread_mutex_lock(&t->id_lock);
	n = t->slab_count ? t->slabs[t->slab_count - 1].first + t->slab_used : 0;
	pthread_mutex_unlock(&t->id_lock);
	return n;
}

/* place < tn_slab_places() of before: the slabs below it stand. */
bool tn_slab_walk(tn_table *t, uint64_t place, uint32_t *id)
{
	uint32_t low = 0, high;

	pthread_mutex_lock(&t->id_lock);
	high = t->slab_count;
	pthread_mutex_unlock(&t->id_lock);
	if (high == 0)
		return false;
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (t->slabs[mid].first <= place)
			low = mid;
		else
			high = mid;
	}
	place -= t->slabs[low].first;
	*id = low << t->shift | (uint32_t)place;
	return place < t->slabs[low].places && *id != 0;
}

/* ---- scratch ---- */

static uint64_t up(uint64_t bytes)
{
	return (bytes + 63) & ~63ull;
}

tn_scratch *tn_scratch_take(tn_table *t)
{
	uint64_t row = up(t->schema.dim * sizeof(float)), state = up(t->state_bytes + 4ull);
	tn_scratch *s;
	uint8_t *at;

	for (unsigned i = 0; i < TN_SCRATCH_MAX; i++) {
		if (atomic_load_explicit(&t->scratch[i], memory_order_relaxed)) {
			s = atomic_exchange_explicit(&t->scratch[i], NULL, memory_order_acquire);
			if (s)
				return s;
		}
	}
	s = TN_FAULT("ps.table.scratch") ? NULL : aligned_alloc(64, up(sizeof(*s) + 4 * row + state));
	if (!s) {
		tn_detail_set("no memory for the scratch of a batch");
		return NULL;
	}
	at = s->memory;
	s->w = (float *)(void *)at;
	s->grad = (float *)(void *)(at += row);
	s->sum = (float *)(void *)(at += row);
	s->row = at += row;
	s->moments = (float *)(void *)(at += row);
	s->dedup = NULL;
	s->dedup_words = 0;
	return s;
}

#define DEDUP_KEEP_WORDS (1u << 20) /* what a scratch keeps from call to call */

void tn_scratch_give(tn_table *t, tn_scratch *s)
{
	if (s->dedup_words > DEDUP_KEEP_WORDS) {
		free(s->dedup);
		s->dedup = NULL;
		s->dedup_words = 0;
	}
	for (unsigned i = 0; i < TN_SCRATCH_MAX; i++) {
		tn_scratch *none = NULL;

		if (atomic_compare_exchange_strong_explicit(&t->scratch[i], &none, s, memory_order_release,
							    memory_order_relaxed))
			return;
	}
	free(s->dedup);
	free(s);
}

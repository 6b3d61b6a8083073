/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Push: each key of the batch once, with the sum of its rows in the order given. A row is computed beside the record
 * while readers go on, and copied in when it is known to be finite: a reader waits for the copy alone.
 *
 * Threads: any; a writer holds one record at a time. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/fault.h"
#include "ps/table_batch.h"
#include "store/rows.h"

typedef struct push {
	tn_table *t;
	tn_push how;
	const uint8_t *grads;
	const uint64_t *keys;
	tn_scratch *s;
	/* of keys that occur more than once; NULL: none does */
	uint32_t *heads; /* the first occurrence of each key */
	uint32_t *next;  /* its next one + 1 */
	uint64_t head_count;
	uint64_t from; /* of the chunk */
	tn_push_result r;
	uint64_t past_end;
	tn_maker maker;
} push;

typedef enum written { WRITTEN, DIED, NOT_FINITE } written;

/* ---- gradients ---- */

/* Row i of what was pushed, as f32: in place if it is that, else in `room`. */
static inline const float *row_f32(const push *p, uint64_t i, float *room)
{
	const uint8_t *row = p->grads + p->how.stride * (p->how.positions ? p->how.positions[i] : i);

	if (p->how.dtype == TERN_F32)
		return (const float *)(const void *)row;
	tn_rows_to_f32(room, row, p->how.dtype, p->t->schema.dim);
	return room;
}

/* What the first occurrence stands for: its row, the sum of all, or the last one. */
static inline const float *gathered(const push *p, uint64_t i)
{
	uint32_t dim = p->t->schema.dim;

	if (!p->next || !p->next[i])
		return row_f32(p, i, p->s->grad);
	if (p->how.mode == TERN_PUSH_ASSIGN) {
		while (p->next[i])
			i = p->next[i] - 1;
		return row_f32(p, i, p->s->grad);
	}
	memcpy(p->s->sum, row_f32(p, i, p->s->grad), dim * sizeof(float));
	while (p->next[i]) {
		i = p->next[i] - 1;
		tn_rows_add(p->s->sum, row_f32(p, i, p->s->grad), dim);
	}
	return p->s->sum;
}

/* Chains of equal keys, by an open hash table of indices. */
static tern_status find_equal(push *p, uint64_t n)
{
	tn_scratch *s = p->s;
	uint64_t size = 16, words, heads = 0;
	uint32_t *table, *tail;

	while (size < 2 * n)
		size *= 2;
	words = size + 2 * n;
	if (s->dedup_words < words) {
		free(s->dedup);
		s->dedup = TN_FAULT("ps.table.dedup") ? NULL : malloc(words * sizeof(uint32_t));
		s->dedup_words = s->dedup ? words : 0;
		if (!s->dedup)
			return tn_fail(
				TERN_E_TOO_LARGE,
				"no memory to look for equal keys among %" PRIu64 ": push less at once", n);
	}
	table = s->dedup;
	p->next = table + size;
	tail = p->next + n;
	memset(table, 0, size * sizeof(*table));
	for (uint64_t i = 0; i < n; i++) {
		uint64_t key = tn_key_once(&p->keys[i]), at = tn_table_hash(key) & (size - 1);

		while (table[at] && tn_key_once(&p->keys[table[at] - 1]) != key)
			at = (at + 1) & (size - 1);
		p->next[i] = 0;
		if (!table[at]) {
			table[at] = (uint32_t)i + 1;
			tail[i] = (uint32_t)i;
			heads++;
			continue;
		}
		p->next[tail[table[at] - 1]] = (uint32_t)i + 1;
		tail[table[at] - 1] = (uint32_t)i;
		tail[i] = UINT32_MAX;
	}
	p->head_count = heads;
	if (heads == n) {
		p->next = NULL;
		return TERN_OK;
	}
	p->heads = table;
	for (uint64_t i = 0, k = 0; i < n; i++) {
		if (tail[i] != UINT32_MAX)
			table[k++] = (uint32_t)i;
	}
	return TERN_OK;
}

/* ---- one record ---- */

static bool compute(const push *p, const float *w, const float *state, const float *grad)
{
	const tn_table *t = p->t;
	uint32_t dim = t->schema.dim;
	tn_operands add = {.w = w, .g = grad, .w_out = p->s->w};
	tn_coef none = {0};

	switch (p->how.mode) {
	case TERN_PUSH_ASSIGN:
		memcpy(p->s->w, grad, dim * sizeof(float));
		return tn_rows_finite(p->s->w, dim);
	case TERN_PUSH_ADD:
		return tn_loops_get()->apply[TERN_OPT_NONE](&none, &add, dim);
	default:
		return tn_optim_apply(&t->optim, p->how.lr_scale, dim, w, state, grad, p->s->w,
				      p->s->moments);
	}
}

/* Is the row finite in the table's dtype as well? It is in s->row then. */
static bool narrow(const push *p)
{
	const tn_table *t = p->t;
	uint16_t exponent = t->schema.dtype == TERN_F16 ? 0x7c00 : 0x7f80;
	const uint16_t *half = (const uint16_t *)(const void *)p->s->row;
	bool finite = true;

	tn_rows_from_f32(p->s->row, t->schema.dtype, p->s->w, t->schema.dim);
	for (uint32_t i = 0; i < t->schema.dim; i++)
		finite &= (half[i] & exponent) != exponent;
	return finite;
}

/* New row and state beside the record, which is held. The gate is here. */
static bool prepare(push *p, tn_head *head, const float *grad)
{
	tn_table *t = p->t;
	const float *state = tn_state_of(t, head), *w = tn_value_of(t, head);
	bool half = t->schema.dtype != TERN_F32;

	if (half) {
		tn_rows_to_f32(p->s->w, w, t->schema.dtype, t->schema.dim);
		w = p->s->w;
	}
	if (TN_LIKELY(compute(p, w, state, grad) && (!half || narrow(p))))
		return true;
	p->r.nonfinite++;
	if (t->schema.nonfinite != TERN_NONFINITE_CLIP)
		return false;
	if (grad != p->s->sum)
		memcpy(p->s->sum, grad, t->schema.dim * sizeof(float));
	tn_rows_clip(p->s->sum, t->schema.dim);
	if (half)
		tn_rows_to_f32(p->s->w, tn_value_of(t, head), t->schema.dtype, t->schema.dim);
	return compute(p, w, state, p->s->sum) && (!half || narrow(p));
}

static written write_row(push *p, uint32_t id, tn_head *head, const float *grad)
{
	tn_table *t = p->t;
	bool state = t->state_bytes && p->how.mode == TERN_PUSH_GRADIENT;
	uint32_t version;

	if (!tn_head_lock(head, &version))
		return DIED;
	if (TN_UNLIKELY(!prepare(p, head, grad))) {
		tn_head_unlock(head, version);
		return NOT_FINITE;
	}
	tn_cut_before_write(t, id, head);
	tn_head_begin(head, version);
	tn_seq_store(tn_value_of(t, head), t->schema.dtype == TERN_F32 ? (void *)p->s->w : p->s->row,
		     t->value_bytes);
	if (state)
		tn_seq_store(tn_state_of(t, head), p->s->moments, t->state_bytes);
	tn_touch(t, head, p->how.step);
	tn_head_unlock(head, tn_written(t, version));
	p->r.applied++;
	return WRITTEN;
}

/* ---- a chunk ---- */

static inline uint64_t head_at(const push *p, uint64_t k)
{
	return p->heads ? p->heads[k] : k;
}

static TN_ALWAYS_INLINE uint64_t key_of(void *arg, uint32_t i)
{
	const push *p = arg;

	return tn_key_once(&p->keys[head_at(p, p->from + i)]);
}

static TN_ALWAYS_INLINE bool use(void *arg, uint32_t i, uint32_t id, tn_head *head)
{
	push *p = arg;

	return write_row(p, id, head, gathered(p, head_at(p, p->from + i))) != DIED;
}

/* Those that are there; the others to s->misses, in order. Inside the epoch. */
static uint32_t hits(push *p, uint32_t n)
{
	tn_table *t = p->t;
	tn_batch b;

	b.t = t;
	b.dir = atomic_load_explicit(&t->dir, memory_order_acquire);
	b.bytes = t->stride;
	b.write = true;
	b.outside = false;
	b.arg = p;
	return tn_batch_run(&b, n, key_of, use, p->s->misses);
}

static void miss(push *p, uint64_t i)
{
	tn_table *t = p->t;
	uint64_t key = tn_key_once(&p->keys[i]);

	if (t->dense) {
		p->past_end++;
		return;
	}
	p->maker.existing = p->how.flags & TN_PUSH_EXISTING;
	if (p->maker.existing && !t->tier) {
		p->r.unknown++;
		return;
	}
	/* What was made may be evicted before it is written: then it is made again, a few times. */
	for (unsigned tries = 0; tries < 8; tries++) {
		uint32_t id = tn_make(&p->maker, p->s, key, tn_table_hash(key));

		if (!id && p->maker.existing && p->maker.status == TERN_OK)
			p->r.unknown++;
		if (!id || write_row(p, id, tn_head_of(t, id), gathered(p, i)) != DIED)
			return;
		tn_index_await(t, tn_table_hash(key));
	}
	p->maker.refused++;
}

static void expect(push *p, uint32_t misses)
{
	uint64_t keys[TN_CHUNK_KEYS];

	if (!tn_cold_any(p->t))
		return;
	for (uint32_t k = 0; k < misses; k++)
		keys[k] = tn_key_once(&p->keys[head_at(p, p->from + p->s->misses[k])]);
	tn_maker_expect(&p->maker, keys, misses);
}

static void chunk(push *p, uint64_t from, uint32_t n)
{
	tn_table *t = p->t;
	uint32_t misses;

	p->from = from;
	p->maker.epoch_slot = tn_epoch_enter(&t->epoch);
	misses = hits(p, n);
	if (misses)
		expect(p, misses);
	for (uint32_t k = 0; k < misses; k++) {
		p->maker.wanted = misses - k;
		miss(p, head_at(p, from + p->s->misses[k]));
	}
	tn_epoch_leave(&t->epoch, p->maker.epoch_slot);
}

/* ---- the call ---- */

static tern_status check_how(push *p, uint64_t n)
{
	const tn_table *t = p->t;
	uint64_t element, row;

	if (!p->how.dtype)
		p->how.dtype = TERN_F32;
	if (p->how.lr_scale == 0)
		p->how.lr_scale = 1;
	if (p->how.dtype != TERN_F32 && p->how.dtype != TERN_BF16 && p->how.dtype != TERN_F16)
		return tn_fail(TERN_E_SHAPE, "gradients of %s: f32, bf16 and f16 can be pushed",
			       tern_dtype_name(p->how.dtype));
	if ((int)p->how.mode < 0 || p->how.mode > TERN_PUSH_ADD)
		return tn_fail(TERN_E_INVALID, "push mode %d", (int)p->how.mode);
	element = tern_dtype_bytes(p->how.dtype);
	row = element * t->schema.dim;
	if (!p->how.stride)
		p->how.stride = row;
	if (p->how.stride < row || p->how.stride % element)
		return tn_fail(TERN_E_SHAPE, "a stride of %" PRIu64 " bytes for rows of %" PRIu64 " bytes",
			       p->how.stride, row);
	if (n >= UINT32_MAX)
		return tn_fail(TERN_E_TOO_LARGE, "%" PRIu64 " keys in one push; at most %" PRIu32, n,
			       UINT32_MAX - 1);
	return TERN_OK;
}

/* nonfinite = FAIL: look at all before anything changes. */
static tern_status refuse_nonfinite(push *p, uint64_t n)
{
	const tn_table *t = p->t;

	for (uint64_t i = 0; t->schema.nonfinite == TERN_NONFINITE_FAIL && i < n; i++) {
		if (!tn_rows_finite(row_f32(p, i, p->s->grad), t->schema.dim)) {
			TN_COUNT(p->t, nonfinite, 1);
			p->r.nonfinite = 1;
			return tn_fail(TERN_E_CORRUPT,
				       "table \"%s\": the row of key %" PRIu64 " (%" PRIu64
				       " in the batch) has a NaN or an infinity; nothing was applied",
				       t->schema.name, p->keys[i], i);
		}
	}
	return TERN_OK;
}

static tern_status outcome(const push *p)
{
	const tn_table *t = p->t;

	if (p->past_end)
		return tn_fail(TERN_E_INVALID,
			       "dense table \"%s\": %" PRIu64 " keys are not below its %" PRIu64 " rows",
			       t->schema.name, p->past_end, t->schema.rows);
	if (p->r.nonfinite && t->schema.nonfinite == TERN_NONFINITE_FAIL)
		return tn_fail(TERN_E_CORRUPT,
			       "table \"%s\": %" PRIu64 " rows would not have been finite and stay as "
			       "they were; the others were applied",
			       t->schema.name, p->r.nonfinite);
	return p->maker.status;
}

static tern_status run(push *p, uint64_t n)
{
	TN_TRY(refuse_nonfinite(p, n));
	p->head_count = n;
	if (!(p->how.flags & TN_PUSH_UNIQUE))
		TN_TRY(find_equal(p, n));
	for (uint64_t from = 0; from < p->head_count; from += TN_CHUNK_KEYS)
		chunk(p, from, (uint32_t)TN_MIN(p->head_count - from, TN_CHUNK_KEYS));
	tn_maker_end(&p->maker);
	TN_COUNT(p->t, pushed, n);
	if (p->r.nonfinite)
		TN_COUNT(p->t, nonfinite, p->r.nonfinite);
	p->r.keys = p->head_count;
	p->r.created = p->maker.created;
	p->r.not_admitted = p->maker.not_admitted;
	p->r.refused = p->maker.refused;
	return outcome(p);
}

tern_status tn_table_push(tn_table *t, const uint64_t *keys, const void *grads, uint64_t n,
			  const tn_push *how, tn_push_result *result)
{
	push p = {.t = t, .how = *how, .grads = grads, .keys = keys};
	tern_status st = check_how(&p, n);

	if (st == TERN_OK && n) {
		p.s = tn_scratch_take(t);
		p.maker = (tn_maker){.t = t, .step = how->step};
		st = p.s ? run(&p, n) : TERN_E_NOMEM;
		if (p.s)
			tn_scratch_give(t, p.s);
	}
	if (result)
		*result = p.r;
	return st;
}

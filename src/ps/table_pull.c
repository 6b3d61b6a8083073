/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pull: rows of many keys, in chunks of TN_CHUNK_KEYS: first the rows that are there, through the pipeline; then the
 * others, in order, as the caller's policy for unknown keys says.
 *
 * Threads: any; takes no lock for rows that are there. Tests: tests/unit/ps/model_test.c.
 */
#include <inttypes.h>

#include "base/fail.h"
#include "ps/table_batch.h"
#include "store/rows.h"

typedef struct pull {
	tn_table *t;
	tn_pull how;
	uint8_t *rows;
	const uint32_t *positions;
	uint8_t *found;
	tn_scratch *s;
	const uint64_t *keys; /* of the chunk, which begins at `from` */
	uint64_t from;
	uint32_t row_bytes; /* of what is written */
	bool same;          /* dtype as the table's */
	uint64_t hits, past_end, unknown;
	tn_maker maker;
} pull;

static inline uint8_t *row_at(const pull *p, uint64_t i)
{
	return p->rows + p->how.stride * (p->positions ? p->positions[i] : i);
}

/* False: the record died. */
static bool convert_row(pull *p, tn_head *head, uint8_t *dst)
{
	tn_table *t = p->t;

	if (!tn_head_read(t, head, t->head_bytes, p->s->row, t->value_bytes))
		return false;
	tn_rows_to_f32(p->s->w, p->s->row, t->schema.dtype, t->schema.dim);
	tn_rows_from_f32(dst, p->how.dtype, p->s->w, t->schema.dim);
	return true;
}

static TN_ALWAYS_INLINE bool copy_row(pull *p, tn_head *head, uint8_t *dst)
{
	tn_table *t = p->t;
	uint32_t v = atomic_load_explicit(&head->version, memory_order_acquire);

	if (TN_LIKELY(p->same && !(v & (TN_DEAD | TN_WRITING)))) {
		tn_seq_load(dst, (uint8_t *)head + t->head_bytes, t->value_bytes);
		if (TN_UNLIKELY((v ^ atomic_load_explicit(&head->version, memory_order_relaxed)) &
				~TN_LOCKED) &&
		    !tn_head_read(t, head, t->head_bytes, dst, t->value_bytes))
			return false;
	} else if (p->same ? !tn_head_read(t, head, t->head_bytes, dst, t->value_bytes)
			   : !convert_row(p, head, dst)) {
		return false;
	}
	if (p->how.flags & TN_PULL_TOUCH) {
		tn_touch(t, head, p->how.step);
		tn_mark_touched(t, head);
	}
	return true;
}

static TN_ALWAYS_INLINE uint64_t key_of(void *arg, uint32_t i)
{
	const pull *p = arg;

	return tn_key_once(&p->keys[i]);
}

static TN_ALWAYS_INLINE bool use(void *arg, uint32_t i, uint32_t id, tn_head *head)
{
	pull *p = arg;

	(void)id;
	if (!copy_row(p, head, row_at(p, p->from + i)))
		return false;
	if (p->found)
		p->found[p->from + i] = 1;
	return true;
}

/* Those that are there; the others to s->misses, in order. Inside the epoch. */
static uint32_t hits(pull *p, uint32_t n)
{
	tn_table *t = p->t;
	tn_batch b;
	uint32_t misses;

	b.t = t;
	b.dir = atomic_load_explicit(&t->dir, memory_order_acquire);
	b.bytes = t->head_bytes + t->value_bytes;
	b.write = false;
	b.outside = false;
	b.arg = p;
	misses = tn_batch_run(&b, n, key_of, use, p->s->misses);
	p->hits += n - misses;
	return misses;
}

static void miss(pull *p, uint64_t key, uint64_t i)
{
	tn_table *t = p->t;
	uint8_t *dst = row_at(p, i);

	if (t->dense) {
		p->past_end++;
		if (p->found)
			p->found[i] = 0;
		memset(dst, 0, p->row_bytes);
		return;
	}
	/* What was made may be evicted before it is read: then it is made again, a few times. */
	p->maker.existing = p->how.unknown != TERN_UNKNOWN_CREATE;
	for (unsigned tries = 0; tries < 8 && (!p->maker.existing || t->tier); tries++) {
		uint32_t id = tn_make(&p->maker, p->s, key, tn_table_hash(key));

		if (!id)
			break;
		if (!copy_row(p, tn_head_of(t, id), dst)) {
			tn_index_await(t, tn_table_hash(key));
			continue;
		}
		if (p->found)
			p->found[i] = 1;
		return;
	}
	p->unknown++;
	if (p->found)
		p->found[i] = 0;
	if (p->how.unknown == TERN_UNKNOWN_CREATE || p->how.unknown == TERN_UNKNOWN_DEFAULT)
		tn_row_default(t, p->s, key, dst, p->how.dtype);
	else
		memset(dst, 0, p->row_bytes);
}

static void expect(pull *p, uint32_t misses)
{
	uint64_t keys[TN_CHUNK_KEYS];

	if (!tn_cold_any(p->t))
		return;
	for (uint32_t k = 0; k < misses; k++)
		keys[k] = tn_key_once(&p->keys[p->s->misses[k]]);
	tn_maker_expect(&p->maker, keys, misses);
}

static void chunk(pull *p, const uint64_t *keys, uint64_t from, uint32_t n)
{
	tn_table *t = p->t;
	uint32_t misses;

	p->keys = keys + from;
	p->from = from;
	p->maker.epoch_slot = tn_epoch_enter(&t->epoch);
	misses = hits(p, n);
	if (misses)
		expect(p, misses);
	for (uint32_t k = 0; k < misses; k++) {
		uint64_t i = from + p->s->misses[k];

		p->maker.wanted = misses - k;
		miss(p, tn_key_once(&keys[i]), i);
	}
	tn_epoch_leave(&t->epoch, p->maker.epoch_slot);
}

static tern_status outcome(const pull *p)
{
	const tn_table *t = p->t;

	if (p->past_end)
		return tn_fail(TERN_E_INVALID,
			       "dense table \"%s\": %" PRIu64 " keys are not below its %" PRIu64 " rows",
			       t->schema.name, p->past_end, t->schema.rows);
	if (p->how.unknown == TERN_UNKNOWN_ERROR && p->unknown)
		return tn_fail(TERN_E_NOT_FOUND, "table \"%s\": %" PRIu64 " keys have no row", t->schema.name,
			       p->unknown);
	return p->maker.status;
}

tern_status tn_table_pull(tn_table *t, const uint64_t *keys, uint64_t n, const tn_pull *how, void *rows,
			  const uint32_t *positions, uint8_t *found, tn_pull_result *result)
{
	pull p = {.t = t, .how = *how, .rows = rows, .positions = positions, .found = found};
	uint64_t element;

	if (!p.how.dtype)
		p.how.dtype = t->schema.dtype;
	p.same = p.how.dtype == t->schema.dtype;
	element = tern_dtype_bytes(p.how.dtype);
	p.row_bytes = (uint32_t)(t->schema.dim * element);
	if (p.how.dtype != TERN_F32 && p.how.dtype != TERN_BF16 && p.how.dtype != TERN_F16)
		return tn_fail(TERN_E_SHAPE, "rows of %s: f32, bf16 and f16 can be pulled",
			       tern_dtype_name(p.how.dtype));
	if (!p.how.stride)
		p.how.stride = p.row_bytes;
	if (p.how.stride < p.row_bytes || p.how.stride % element)
		return tn_fail(TERN_E_SHAPE, "a stride of %" PRIu64 " bytes for rows of %" PRIu32 " bytes",
			       p.how.stride, p.row_bytes);
	p.s = tn_scratch_take(t);
	if (!p.s)
		return TERN_E_NOMEM;
	p.maker = (tn_maker){.t = t, .step = how->step};
	for (uint64_t from = 0; from < n; from += TN_CHUNK_KEYS)
		chunk(&p, keys, from, (uint32_t)TN_MIN(n - from, TN_CHUNK_KEYS));
	tn_maker_end(&p.maker);
	tn_scratch_give(t, p.s);
	TN_COUNT(t, pulled, n);
	if (result)
		*result = (tn_pull_result){p.hits + p.maker.warmed, p.maker.created, p.maker.not_admitted,
					   p.maker.refused};
	return outcome(&p);
}

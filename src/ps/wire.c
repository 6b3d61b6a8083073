/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and parsing of what clients and servers of tables say to each other. Pure functions over bytes; see wire.h
 * for the layouts. Threads: none. Tests: tests/unit/ps/wire_test.c, fuzz/ps_wire.c.
 */
#include "ps/wire.h"

#include "base/check.h"
#include "base/wirebuf.h"

/* ---- numbers ---- */

static void put_f32(tn_writer *w, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	tn_put_u32(w, bits);
}

static inline float f32_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float get_f32(tn_reader *r)
{
	return f32_of(tn_get_u32(r));
}

static uint64_t fnv1a(const uint8_t *p, uint64_t n)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (uint64_t i = 0; i < n; i++)
		hash = (hash ^ p[i]) * 0x100000001b3ull;
	return hash;
}

/* ---- batches ---- */

#define BATCH_FLAGS (TN_PS_PLACES | TN_PS_FOUND | TN_PS_INLINE | TN_PS_ANSWER_ROWS | TN_PS_POOLED)
#define ANSWER_FLAGS \
	(TN_PS_DIRECT | TN_PS_NEED_PACKED | TN_PS_WRONG_SERVER | TN_PS_DUPLICATE | TN_PS_RUNNING | TN_PS_ROWS)

void tn_ps_batch_encode(uint8_t out[TN_PS_BATCH_BYTES], const tn_ps_batch *b)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_BATCH_BYTES);
	tn_put_u8(&w, TN_PS_VERSION);
	tn_put_u8(&w, b->how);
	tn_put_u8(&w, b->flags);
	tn_put_u8(&w, b->dtype);
	put_f32(&w, b->lr_scale);
	tn_put_u64(&w, b->table);
	tn_put_u64(&w, b->schema);
	tn_put_u64(&w, b->map_version);
	tn_put_u64(&w, b->count);
	tn_put_u64(&w, b->step);
	tn_put_u64(&w, b->client);
	tn_put_u64(&w, b->seq);
	tn_put_u64(&w, b->low_water);
	tn_put_u64(&w, b->stride);
	TN_ASSERT(!w.bad && w.at == TN_PS_BATCH_BYTES);
}

/* Heads have fixed places: one look at their length, and the compiler makes a load of each field. */
bool tn_ps_batch_head(const void *args, uint64_t bytes, tn_ps_batch *b)
{
	const uint8_t *at = args;

	if (bytes < TN_PS_BATCH_BYTES)
		return false;
	*b = (tn_ps_batch){.how = at[1],
			   .flags = at[2],
			   .dtype = at[3],
			   .lr_scale = f32_of(tn_load_u32(at + 4)),
			   .table = tn_load_u64(at + 8),
			   .schema = tn_load_u64(at + 16),
			   .map_version = tn_load_u64(at + 24),
			   .count = tn_load_u64(at + 32),
			   .step = tn_load_u64(at + 40),
			   .client = tn_load_u64(at + 48),
			   .seq = tn_load_u64(at + 56),
			   .low_water = tn_load_u64(at + 64),
			   .stride = tn_load_u64(at + 72)};
	return at[0] == TN_PS_VERSION && !(b->flags & ~BATCH_FLAGS) && b->low_water <= b->seq;
}

/* The keys of bags are all keys. */
static bool get_bags(tn_reader *r, tn_ps_batch *b)
{
	uint64_t sum = 0;
	uint32_t n;

	b->pool = tn_get_u32(r);
	b->bags = tn_get_u32(r);
	if (r->bad || b->pool < TERN_POOL_SUM || b->pool > TERN_POOL_MEAN ||
	    b->bags > tn_reader_left(r) / sizeof(uint32_t))
		return false;
	b->bag_keys = tn_get_view(r, (uint64_t)b->bags * sizeof(uint32_t));
	for (uint32_t i = 0; i < b->bags; i++) {
		memcpy(&n, b->bag_keys + i * sizeof(n), sizeof(n));
		sum += n;
	}
	return sum == b->count && !(b->flags & (TN_PS_PLACES | TN_PS_FOUND | TN_PS_INLINE));
}

bool tn_ps_batch_body(const void *args, uint64_t bytes, uint64_t row_bytes, tn_ps_batch *b)
{
	tn_reader r;

	if (bytes < TN_PS_BATCH_BYTES)
		return false;
	tn_reader_init(&r, (const uint8_t *)args + TN_PS_BATCH_BYTES, bytes - TN_PS_BATCH_BYTES);
	/* Held against what is there before it is multiplied: no product wraps. */
	if (b->count > tn_reader_left(&r) / sizeof(uint64_t))
		return false;
	b->keys = tn_get_view(&r, b->count * sizeof(uint64_t));
	if (b->flags & TN_PS_PLACES)
		b->places = tn_get_view(&r, b->count * sizeof(uint32_t));
	if ((b->flags & TN_PS_POOLED) && !get_bags(&r, b))
		return false;
	if (b->flags & TN_PS_INLINE) {
		if (r.bad || (row_bytes && b->count > tn_reader_left(&r) / row_bytes))
			return false;
		b->grad_bytes = b->count * row_bytes;
		b->grads = tn_get_view(&r, b->grad_bytes);
	}
	return tn_reader_done(&r);
}

void tn_ps_answer_encode(uint8_t out[TN_PS_ANSWER_BYTES], const tn_ps_answer *a)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_ANSWER_BYTES);
	tn_put_u8(&w, TN_PS_VERSION);
	tn_put_u8(&w, a->flags);
	tn_put_u16(&w, 0);
	tn_put_u32(&w, (uint32_t)a->status);
	tn_put_u64(&w, a->map_version);
	tn_put_u64(&w, a->found);
	tn_put_u64(&w, a->applied);
	tn_put_u64(&w, a->dropped);
	tn_put_u64(&w, a->refused);
	TN_ASSERT(!w.bad && w.at == TN_PS_ANSWER_BYTES);
}

bool tn_ps_answer_decode(const void *data, uint64_t bytes, uint64_t count, bool found, uint64_t row_bytes,
			 tn_ps_answer *a)
{
	const uint8_t *at = data;
	tn_reader r;

	*a = (tn_ps_answer){0};
	if (bytes < TN_PS_ANSWER_BYTES)
		return false;
	*a = (tn_ps_answer){.flags = at[1],
			    .status = (tern_status)(int32_t)tn_load_u32(at + 4),
			    .map_version = tn_load_u64(at + 8),
			    .found = tn_load_u64(at + 16),
			    .applied = tn_load_u64(at + 24),
			    .dropped = tn_load_u64(at + 32),
			    .refused = tn_load_u64(at + 40)};
	if (at[0] != TN_PS_VERSION || at[2] || at[3] || (a->flags & ~ANSWER_FLAGS) || (int)a->status > 0)
		return false;
	tn_reader_init(&r, at + TN_PS_ANSWER_BYTES, bytes - TN_PS_ANSWER_BYTES);
	if (tn_reader_left(&r) && found) { /* none with an answer that says to ask again */
		if (count > UINT64_MAX - 7)
			return false;
		a->found_bits = tn_get_view(&r, (count + 7) / 8);
	}
	if (a->flags & TN_PS_ROWS) {
		if (r.bad || (row_bytes && count > tn_reader_left(&r) / row_bytes))
			return false;
		a->rows = tn_get_view(&r, count * row_bytes);
	}
	return tn_reader_done(&r);
}

/* ---- schemas ---- */

static void put_optimizer(tn_writer *w, const tern_optimizer_params *o)
{
	tn_put_u8(w, (uint8_t)o->kind);
	put_f32(w, o->lr);
	put_f32(w, o->momentum);
	put_f32(w, o->beta1);
	put_f32(w, o->beta2);
	put_f32(w, o->rho);
	put_f32(w, o->epsilon);
	put_f32(w, o->weight_decay);
	put_f32(w, o->l1);
	put_f32(w, o->l2);
	put_f32(w, o->lr_power);
	put_f32(w, o->initial_accumulator);
}

static void get_optimizer(tn_reader *r, tern_optimizer_params *o)
{
	o->kind = (tern_row_optimizer)tn_get_u8(r);
	o->lr = get_f32(r);
	o->momentum = get_f32(r);
	o->beta1 = get_f32(r);
	o->beta2 = get_f32(r);
	o->rho = get_f32(r);
	o->epsilon = get_f32(r);
	o->weight_decay = get_f32(r);
	o->l1 = get_f32(r);
	o->l2 = get_f32(r);
	o->lr_power = get_f32(r);
	o->initial_accumulator = get_f32(r);
}

uint64_t tn_ps_schema_encode(uint8_t *out, uint64_t bytes, const tern_table_schema *s)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	tn_put_u8(&w, TN_PS_VERSION);
	tn_put_str(&w, s->name);
	tn_put_u8(&w, (uint8_t)s->kind);
	tn_put_u8(&w, (uint8_t)(s->dtype ? s->dtype : TERN_F32)); /* 0 says f32 */
	tn_put_u32(&w, s->dim);
	tn_put_u32(&w, s->flags);
	tn_put_u64(&w, s->rows);
	put_optimizer(&w, &s->optimizer);
	tn_put_u8(&w, (uint8_t)s->init.kind);
	put_f32(&w, s->init.value);
	tn_put_u64(&w, s->init.seed);
	tn_put_u8(&w, (uint8_t)s->nonfinite);
	tn_put_u8(&w, (uint8_t)s->eviction);
	tn_put_u64(&w, s->budget_bytes);
	tn_put_u64(&w, s->ttl_steps);
	tn_put_u32(&w, s->admit_after);
	return w.bad ? 0 : w.at;
}

bool tn_ps_schema_decode(const void *data, uint64_t bytes, tern_table_schema *s, uint64_t *used)
{
	uint8_t version;
	tn_reader r;

	memset(s, 0, sizeof(*s));
	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	tn_get_str(&r, s->name, sizeof(s->name));
	s->kind = (tern_table_kind)tn_get_u8(&r);
	s->dtype = (tern_dtype)tn_get_u8(&r);
	s->dim = tn_get_u32(&r);
	s->flags = tn_get_u32(&r);
	s->rows = tn_get_u64(&r);
	get_optimizer(&r, &s->optimizer);
	s->init.kind = (tern_row_start)tn_get_u8(&r);
	s->init.value = get_f32(&r);
	s->init.seed = tn_get_u64(&r);
	s->nonfinite = (tern_nonfinite)tn_get_u8(&r);
	s->eviction = (tern_eviction)tn_get_u8(&r);
	s->budget_bytes = tn_get_u64(&r);
	s->ttl_steps = tn_get_u64(&r);
	s->admit_after = tn_get_u32(&r);
	*used = r.at;
	return !r.bad && version == TN_PS_VERSION;
}

uint64_t tn_ps_schema_hash(const tern_table_schema *schema)
{
	uint8_t bytes[TN_PS_SCHEMA_BYTES];
	uint64_t n = tn_ps_schema_encode(bytes, sizeof(bytes), schema);

	TN_ASSERT(n > 0);
	return fnv1a(bytes, n);
}

uint64_t tn_ps_table_id(const char *name)
{
	return fnv1a((const uint8_t *)name, strlen(name));
}

uint64_t tn_ps_name_encode(uint8_t *out, uint64_t bytes, const char *name)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	tn_put_u8(&w, TN_PS_VERSION);
	tn_put_str(&w, name);
	return w.bad ? 0 : w.at;
}

bool tn_ps_name_decode(const void *data, uint64_t bytes, char *name, uint64_t name_bytes)
{
	uint8_t version;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	tn_get_str(&r, name, name_bytes);
	return tn_reader_done(&r) && version == TN_PS_VERSION;
}

/* ---- statistics ---- */

void tn_ps_stats_encode(uint8_t out[TN_PS_STATS_BYTES], const tern_table_stats *s)
{
	tn_writer w;

	tn_writer_init(&w, out, TN_PS_STATS_BYTES);
	tn_put_u64(&w, TN_PS_VERSION);
	tn_put_u64(&w, s->rows);
	tn_put_u64(&w, s->bytes);
	tn_put_u64(&w, s->record_bytes);
	tn_put_u64(&w, s->created);
	tn_put_u64(&w, s->erased);
	tn_put_u64(&w, s->evicted);
	tn_put_u64(&w, s->expired);
	tn_put_u64(&w, s->not_admitted);
	tn_put_u64(&w, s->refused);
	tn_put_u64(&w, s->nonfinite);
	tn_put_u64(&w, s->pulled);
	tn_put_u64(&w, s->pushed);
	tn_put_u64(&w, s->duplicates);
	tn_put_u64(&w, s->cold_rows);
	tn_put_u64(&w, s->cold_bytes);
	tn_put_zeros(&w, TN_PS_STATS_BYTES - w.at);
	TN_ASSERT(!w.bad);
}

bool tn_ps_stats_decode(const void *data, uint64_t bytes, tern_table_stats *s)
{
	uint64_t version;
	tn_reader r;

	tn_reader_init(&r, data, bytes);
	version = tn_get_u64(&r);
	s->rows = tn_get_u64(&r);
	s->bytes = tn_get_u64(&r);
	s->record_bytes = tn_get_u64(&r);
	s->created = tn_get_u64(&r);
	s->erased = tn_get_u64(&r);
	s->evicted = tn_get_u64(&r);
	s->expired = tn_get_u64(&r);
	s->not_admitted = tn_get_u64(&r);
	s->refused = tn_get_u64(&r);
	s->nonfinite = tn_get_u64(&r);
	s->pulled = tn_get_u64(&r);
	s->pushed = tn_get_u64(&r);
	s->duplicates = tn_get_u64(&r);
	s->cold_rows = tn_get_u64(&r);
	s->cold_bytes = tn_get_u64(&r);
	return bytes == TN_PS_STATS_BYTES && !r.bad && version == TN_PS_VERSION;
}

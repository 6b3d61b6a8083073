/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A closing: which slots, which pieces, their sum. See steps.h. Pure but for the table that gets the sum. Threads: the
 * caller's lock, but for tn_steps_sum. Tests: tests/unit/ps/steps_test.c, tests/unit/ps/repl_sim.
 */
#include "ps/steps.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/mutant.h"
#include "ps/server.h"

/* ---- taking ---- */

static bool open_in(const tn_life *life, uint64_t step, uint32_t slot)
{
	return life->closed[slot] <= step;
}

bool tn_steps_open(tn_steps *steps, const tn_ps_close *c, const tn_ps_slots *slots)
{
	const tn_life *life = tn_steps_find(steps, c->life);

	if (life && c->step + 1 < life->newest)
		return false;
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		if (tn_ps_slots_has(slots, s) && (!life || open_in(life, c->step, s)))
			return true;
	return false;
}

/* The next slots, of about so many bytes. NULL bytes_of: all. */
static void choose(const tn_life *life, uint64_t step, const tn_ps_slots *may, uint64_t bytes,
		   const uint64_t *bytes_of, tn_ps_slots *out)
{
	uint64_t sum = 0;

	memset(out, 0, sizeof(*out));
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++) {
		if (!tn_ps_slots_has(may, s) || !open_in(life, step, s))
			continue;
		if (bytes && sum > 0 && sum + bytes_of[s] > bytes)
			continue;
		sum += bytes_of[s];
		tn_ps_slots_add(out, s);
	}
}

static void weigh(const tn_life *life, uint64_t step, uint64_t *bytes_of)
{
	TN_LIST_FOREACH(node, &life->pieces) {
		const tn_piece *piece = TN_CONTAINER_OF(node, tn_piece, node);

		for (uint64_t i = 0; piece->step <= step && i < piece->count; i++)
			bytes_of[tn_table_slot(tn_piece_key(piece, i))] += 8 + piece->row_bytes;
	}
}

/* In the order of tables, then of learning rates and types, then of senders and their pushes. */
static int by_place(const void *a, const void *b)
{
	const tn_steps_item *i = a, *j = b;
	const tn_piece *x = i->piece, *y = j->piece;

	if (x->table != y->table)
		return x->table < y->table ? -1 : 1;
	if (x->schema != y->schema)
		return x->schema < y->schema ? -1 : 1;
	if (x->lr_scale != y->lr_scale)
		return x->lr_scale < y->lr_scale ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	if (i->order != j->order)
		return i->order < j->order ? -1 : 1;
	if (x->seq != y->seq)
		return x->seq < y->seq ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

static uint32_t sender_of(const tn_ps_close *c, uint64_t member)
{
	uint32_t i = 0;

	while (i < c->senders && c->sender[i] != member)
		i++;
	return i;
}

/* Senders' pieces that count in work->slots: they stay while they are worked on. False: no memory. */
static bool collect(tn_life *life, const tn_ps_close *c, tn_steps_work *w)
{
	uint32_t n = 0;

	TN_LIST_FOREACH(node, &life->pieces) {
		n++;
	}
	w->items = n && TN_FAULT("ps.round.items") ? NULL : malloc((n + 1ull) * sizeof(*w->items));
	if (!w->items)
		return false;
	TN_LIST_FOREACH(node, &life->pieces) {
		tn_piece *piece = TN_CONTAINER_OF(node, tn_piece, node);
		tn_steps_item *item = &w->items[w->count];
		uint32_t order = sender_of(c, piece->member);

		if (piece->step > c->step || order == c->senders ||
		    !tn_ps_slots_meet(&piece->slots, &w->slots))
			continue;
		*item = (tn_steps_item){.piece = piece, .order = order};
		for (unsigned k = 0; k < 64; k++)
			item->slots.bits[k] = piece->slots.bits[k] & w->slots.bits[k];
		piece->users++;
		w->count++;
	}
	qsort(w->items, w->count, sizeof(*w->items), by_place);
	return true;
}

tern_status tn_steps_take(tn_steps *steps, const tn_ps_close *c, const tn_ps_slots *may, uint64_t bytes,
			  tn_steps_work *w)
{
	tn_life *life = tn_steps_life(steps, c->life);
	uint64_t *bytes_of;

	*w = (tn_steps_work){.life = c->life, .step = c->step};
	if (!life)
		return TERN_E_NOMEM;
	TN_ASSERT(!life->closing);
	if (c->step + 1 < life->newest)
		return TERN_OK;
	bytes_of = calloc(TERN_TABLE_SLOTS, sizeof(*bytes_of));
	if (bytes_of) {
		weigh(life, c->step, bytes_of);
		choose(life, c->step, may, bytes, bytes_of, &w->slots);
	}
	free(bytes_of);
	if (!bytes_of || (!tn_ps_slots_none(&w->slots) && !collect(life, c, w))) {
		w->slots = (tn_ps_slots){{0}};
		return tn_fail(TERN_E_NOMEM, "no memory to sum the pushes of a step");
	}
	if (tn_ps_slots_none(&w->slots))
		return TERN_OK;
	life->closing = c->step + 1;
	life->taken = w->slots;
	return TERN_OK;
}

/* What was closed, or dropped, meanwhile goes now. */
static tn_life *let_go(tn_steps *steps, tn_steps_work *w)
{
	tn_life *life = tn_steps_find(steps, w->life);

	TN_ASSERT(life && life->closing == w->step + 1);
	life->closing = 0;
	memset(&life->taken, 0, sizeof(life->taken));
	for (uint32_t i = 0; i < w->count; i++) {
		tn_piece *piece = w->items[i].piece;

		TN_ASSERT(piece->users == 1);
		piece->users = 0;
		if (tn_ps_slots_none(&piece->slots))
			tn_piece_drop(steps, piece);
	}
	free(w->items);
	w->items = NULL;
	w->count = 0;
	return life;
}

void tn_steps_done(tn_steps *steps, tn_steps_work *w, tern_status status)
{
	tn_life *life = let_go(steps, w);

	tn_steps_note(life, w->step + 1, status);
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		if (tn_ps_slots_has(&w->slots, s))
			life->closed[s] = w->step + 1;
	tn_steps_leave(steps, life, w->step + 1, &w->slots);
}

void tn_steps_undo(tn_steps *steps, tn_steps_work *w)
{
	(void)let_go(steps, w);
}

/* ---- the sum ---- */

static bool same_table(const tn_piece *a, const tn_piece *b)
{
	return a->table == b->table && a->schema == b->schema;
}

bool tn_steps_table(const tn_steps_work *w, uint32_t *at, uint32_t *n)
{
	const tn_piece *first;

	*n = 0;
	if (*at == w->count)
		return false;
	first = w->items[*at].piece;
	while (*at + *n < w->count && same_table(w->items[*at + *n].piece, first))
		++*n;
	return true;
}

static bool together(const tn_piece *a, const tn_piece *b)
{
	return a->dtype == b->dtype && a->lr_scale == b->lr_scale;
}

/* Who staged it looked at that; a primary's frame may say anything. */
static bool fits(const ps_share *share, const tn_piece *p)
{
	return (p->dtype == TERN_F32 || p->dtype == TERN_BF16 || p->dtype == TERN_F16) &&
	       p->row_bytes == share->schema.dim * tern_dtype_bytes((tern_dtype)p->dtype);
}

static uint64_t count_of(const tn_steps_item *item)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < item->piece->count; i++)
		n += tn_ps_slots_has(&item->slots, tn_table_slot(tn_piece_key(item->piece, i)));
	return n;
}

/* Rows of an item in these slots behind those that are there. */
static void gather(const tn_steps_item *item, const tn_ps_slots *fresh, uint64_t *keys, uint8_t *rows,
		   uint64_t *at)
{
	const tn_piece *p = item->piece;
	const uint8_t *from = p->data + p->count * 8;

	for (uint64_t i = 0; i < p->count; i++) {
		uint64_t key = tn_piece_key(p, i);
		uint32_t slot = tn_table_slot(key);

		if (!tn_ps_slots_has(&item->slots, slot) || !tn_ps_slots_has(fresh, slot))
			continue;
		keys[*at] = key;
		memcpy(rows + *at * p->row_bytes, from + i * p->row_bytes, p->row_bytes);
		++*at;
	}
}

typedef struct sum {
	ps_share *share;
	const tn_steps_item *items;
	uint32_t n;
	const tn_ps_slots *fresh;
	uint64_t *keys; /* of all items */
	uint8_t *rows;
	uint64_t count;
} sum;

static uint64_t row_bytes_of(const sum *s)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < s->n; i++)
		most = TN_MAX(most, s->items[i].piece->row_bytes);
	return most;
}

/* Items of one learning rate and type: one push, in which each key has its turn once. */
static tern_status push_together(sum *s, uint32_t first, uint32_t n)
{
	const tn_piece *like = s->items[first].piece;
	tn_push how = {.dtype = (tern_dtype)like->dtype, .lr_scale = like->lr_scale};
	uint64_t begin = s->count;

	for (uint32_t i = first; i < first + n; i++) {
		uint64_t at = s->count - begin;

		gather(&s->items[i], s->fresh, s->keys + begin, s->rows, &at);
		s->count = begin + at;
		how.step = TN_MAX(how.step, s->items[i].piece->step);
	}
	if (s->count == begin)
		return TERN_OK;
	return tn_table_push(s->share->engine, s->keys + begin, s->rows, s->count - begin, &how, NULL);
}

static tern_status push_all(sum *s)
{
	tern_status status = TERN_OK;

	for (uint32_t i = 0, n; i < s->n; i += n) {
		tern_status one;

		for (n = 1; i + n < s->n && together(s->items[i].piece, s->items[i + n].piece);)
			n++;
		one = push_together(s, i, n);
		status = status == TERN_OK ? one : status;
	}
	return status;
}

static int by_key(const void *a, const void *b)
{
	uint64_t x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

/* Each once. */
static uint64_t unique(uint64_t *keys, uint64_t n)
{
	uint64_t m = 0;

	if (n)
		qsort(keys, n, sizeof(*keys), by_key);
	for (uint64_t i = 0; i < n; i++)
		if (m == 0 || keys[m - 1] != keys[i])
			keys[m++] = keys[i];
	return m;
}

/* Which of the slots it was not done in before. */
static tn_ps_verdict ask(ps_share *share, const tn_steps_work *w, const tn_ps_slots *want, tn_ps_slots *fresh,
			 tern_status *status)
{
	tn_ps_verdict verdict;

	pthread_mutex_lock(&share->lock);
	verdict =
		tn_ps_dedup_begin(share->dedup, w->life, w->step, tn_steps_low(w->step), want, fresh, status);
	pthread_mutex_unlock(&share->lock);
	return verdict;
}

static void tell(ps_share *share, const tn_steps_work *w, const tn_ps_slots *fresh, bool applied,
		 tern_status status)
{
	pthread_mutex_lock(&share->lock);
	tn_ps_dedup_end(share->dedup, w->life, w->step, fresh, applied && !TN_MUTANT(123), status);
	pthread_mutex_unlock(&share->lock);
}

tern_status tn_steps_sum(ps_share *share, const tn_steps_work *w, const tn_steps_item *items, uint32_t n,
			 uint64_t **keys, uint64_t *count, tern_status *status)
{
	tn_ps_slots want = {{0}}, fresh = {{0}};
	sum s = {.share = share, .items = items, .n = n, .fresh = &fresh};
	uint64_t rows = 0;
	tern_status known = TERN_OK;
	tn_ps_verdict verdict;

	*keys = NULL;
	*count = 0;
	*status = TERN_OK;
	for (uint32_t i = 0; i < n; i++) {
		if (!fits(share, items[i].piece)) {
			*status = tn_fail(TERN_E_PROTOCOL, "gradients that are no rows of this table");
			return TERN_OK;
		}
		rows += count_of(&items[i]);
		for (unsigned k = 0; k < 64; k++)
			want.bits[k] |= items[i].slots.bits[k];
	}
	s.keys = TN_FAULT("ps.round.sum") ? NULL : malloc((rows + 1) * sizeof(*s.keys));
	s.rows = malloc(rows * row_bytes_of(&s) + 1);
	verdict = s.keys && s.rows ? ask(share, w, &want, &fresh, &known) : TN_PS_NO_MEMORY;
	if (verdict == TN_PS_FRESH) {
		*status = push_all(&s);
		tell(share, w, &fresh, true, *status);
		*count = unique(s.keys, s.count);
		*keys = s.keys;
		s.keys = NULL;
	}
	if (*status == TERN_OK)
		*status = known;
	free(s.keys);
	free(s.rows);
	if (verdict == TN_PS_FRESH || verdict == TN_PS_KNOWN)
		return TERN_OK;
	return tn_fail(TERN_E_NOMEM, "no memory to sum %" PRIu64 " rows of a step", rows);
}

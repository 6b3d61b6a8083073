/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lives, pieces, and what is closed in which slots. See steps.h. Pure. Threads: the caller's lock.
 * Tests: tests/unit/ps/steps_test.c, tests/unit/ps/repl_sim.
 */
#include "ps/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/mutant.h"

void tn_steps_init(tn_steps *steps)
{
	memset(steps, 0, sizeof(*steps));
	pthread_mutex_init(&steps->lock, NULL);
}

void tn_piece_drop(tn_steps *steps, tn_piece *piece)
{
	if (piece->users)
		return; /* who uses it drops it */
	tn_list_remove(&piece->node);
	steps->bytes -= piece->bytes;
	free(piece);
}

static void life_free(tn_steps *steps, tn_life *life)
{
	TN_ASSERT(!life->busy && !life->waits);
	TN_LIST_FOREACH_SAFE(node, &life->pieces) {
		tn_piece_drop(steps, TN_CONTAINER_OF(node, tn_piece, node));
	}
	free(life);
}

void tn_steps_fini(tn_steps *steps)
{
	while (steps->count)
		life_free(steps, steps->lives[--steps->count]);
	pthread_mutex_destroy(&steps->lock);
}

/* ---- lives ---- */

tn_life *tn_steps_find(const tn_steps *steps, uint64_t id)
{
	for (uint32_t i = 0; i < steps->count; i++)
		if (steps->lives[i]->id == id)
			return steps->lives[i];
	return NULL;
}

/* The place of a new life, at the expense of the one that was not used for longest. */
static tn_life **room(tn_steps *steps)
{
	tn_life **oldest = NULL;

	if (steps->count < TN_PS_LIVES_MAX)
		return &steps->lives[steps->count++];
	for (uint32_t i = 0; i < steps->count; i++)
		if (!steps->lives[i]->busy && !steps->lives[i]->closing &&
		    (!oldest || steps->lives[i]->used < (*oldest)->used))
			oldest = &steps->lives[i];
	if (oldest)
		life_free(steps, *oldest);
	return oldest;
}

tn_life *tn_steps_life(tn_steps *steps, uint64_t id)
{
	tn_life *life = tn_steps_find(steps, id), **place;

	if (!life) {
		life = TN_FAULT("ps.round.alloc") ? NULL : calloc(1, sizeof(*life));
		place = life ? room(steps) : NULL;
		if (!place) {
			free(life);
			tn_fail(TERN_E_NOMEM, "no memory for the steps of a group");
			return NULL;
		}
		life->id = id;
		tn_list_init(&life->pieces);
		*place = life;
	}
	life->used = ++steps->clock;
	return life;
}

/* ---- staging ---- */

void tn_steps_slots_of(const uint8_t *keys, uint64_t count, tn_ps_slots *slots)
{
	memset(slots, 0, sizeof(*slots));
	for (uint64_t i = 0; i < count; i++) {
		uint64_t key;

		memcpy(&key, keys + i * 8, sizeof(key));
		tn_ps_slots_add(slots, tn_table_slot(key));
	}
}

/* Those slots of a push that did not come before. The last pieces are the likely ones. */
static void leave_known(const tn_life *life, const tn_ps_stage *s, tn_ps_slots *fresh)
{
	if (TN_MUTANT(122))
		return;
	for (const tn_list *node = life->pieces.prev; node != &life->pieces && !tn_ps_slots_none(fresh);
	     node = node->prev) {
		const tn_piece *old = TN_CONTAINER_OF(node, tn_piece, node);

		if (old->member == s->member && old->seq == s->seq)
			tn_ps_slots_without(fresh, &old->slots);
	}
}

static bool is_closed(const tn_life *life, uint64_t step, const tn_ps_slots *slots)
{
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		if (tn_ps_slots_has(slots, s) &&
		    (step < life->closed[s] || (step < life->closing && tn_ps_slots_has(&life->taken, s))))
			return true;
	return false;
}

static uint64_t count_in(const tn_ps_stage *s, const tn_ps_slots *slots)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < s->count; i++) {
		uint64_t key;

		memcpy(&key, s->keys + i * 8, sizeof(key));
		n += tn_ps_slots_has(slots, tn_table_slot(key));
	}
	return n;
}

static void fill(tn_piece *piece, const tn_ps_stage *s)
{
	uint8_t *keys = piece->data, *rows = piece->data + piece->count * 8;

	for (uint64_t i = 0; i < s->count; i++) {
		uint64_t key;

		memcpy(&key, s->keys + i * 8, sizeof(key));
		if (!tn_ps_slots_has(&piece->slots, tn_table_slot(key)))
			continue;
		memcpy(keys, &key, sizeof(key));
		memcpy(rows, s->rows + i * piece->row_bytes, piece->row_bytes);
		keys += 8;
		rows += piece->row_bytes;
	}
	TN_ASSERT(keys == piece->data + piece->count * 8);
}

static tn_piece *piece_new(const tn_ps_stage *s, const tn_ps_slots *slots)
{
	uint64_t count = count_in(s, slots), row_bytes = s->row_bytes / s->count;
	uint64_t bytes = count * (8 + row_bytes);
	tn_piece *piece = TN_FAULT("ps.round.stage") ? NULL : malloc(sizeof(*piece) + bytes);

	if (!piece) {
		tn_fail(TERN_E_NOMEM, "no memory to keep %" PRIu64 " rows until the step closes", count);
		return NULL;
	}
	*piece = (tn_piece){.member = s->member,
			    .step = s->step,
			    .seq = s->seq,
			    .table = s->table,
			    .schema = s->schema,
			    .count = count,
			    .bytes = bytes,
			    .row_bytes = row_bytes,
			    .dtype = s->dtype,
			    .lr_scale = s->lr_scale,
			    .slots = *slots};
	fill(piece, s);
	return piece;
}

tern_status tn_steps_stage(tn_steps *steps, const tn_ps_stage *s, const tn_ps_slots *slots,
			   uint64_t bytes_max, tn_ps_slots *fresh)
{
	tn_life *life = tn_steps_life(steps, s->life);
	tn_piece *piece;

	*fresh = *slots;
	if (!life)
		return TERN_E_NOMEM;
	leave_known(life, s, fresh);
	if (tn_ps_slots_none(fresh))
		return TERN_OK;
	if (is_closed(life, s->step, fresh))
		return tn_fail(TERN_E_STATE, "step %" PRIu64 " is closed: this worker is no sender of it",
			       s->step);
	if (s->count * 8 + s->row_bytes > bytes_max - TN_MIN(bytes_max, steps->bytes))
		return tn_fail(TERN_E_LIMIT,
			       "gradients of steps that are not closed have %" PRIu64 " of %" PRIu64
			       " bytes (ps.staged_bytes), and there is no room for %" PRIu64 " rows",
			       steps->bytes, bytes_max, s->count);
	piece = piece_new(s, fresh);
	if (!piece)
		return TERN_E_NOMEM;
	piece->number = ++steps->numbers;
	steps->bytes += piece->bytes;
	tn_list_push_back(&life->pieces, &piece->node);
	return TERN_OK;
}

/* ---- closed ---- */

/* Steps below are closed in these slots: what is left of their gradients goes. */
void tn_steps_leave(tn_steps *steps, tn_life *life, uint64_t closed, const tn_ps_slots *slots)
{
	TN_LIST_FOREACH_SAFE(node, &life->pieces) {
		tn_piece *piece = TN_CONTAINER_OF(node, tn_piece, node);

		if (piece->step >= closed)
			continue;
		tn_ps_slots_without(&piece->slots, slots);
		if (tn_ps_slots_none(&piece->slots))
			tn_piece_drop(steps, piece);
	}
}

void tn_steps_note(tn_life *life, uint64_t closed, tern_status status)
{
	if (closed < life->newest)
		return;
	if (closed > life->newest || life->status == TERN_OK) {
		life->status = status;
		snprintf(life->detail, sizeof(life->detail), "%s", status == TERN_OK ? "" : tn_detail_get());
	}
	life->newest = closed;
}

tern_status tn_steps_close(tn_steps *steps, uint64_t id, uint64_t closed, const tn_ps_slots *slots,
			   tern_status status)
{
	tn_life *life = tn_steps_life(steps, id);

	if (!life)
		return TERN_E_NOMEM;
	if (status != TERN_OK)
		tn_fail(status, "the sum of a step ended so at a server that is not there any more");
	tn_steps_note(life, closed, status);
	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
		if (tn_ps_slots_has(slots, s))
			life->closed[s] = TN_MAX(life->closed[s], closed);
	tn_steps_leave(steps, life, closed, slots);
	return TERN_OK;
}

void tn_steps_closed(tn_steps *steps, uint64_t id, uint64_t step, const tn_ps_slots *slots,
		     tn_ps_slots *closed)
{
	const tn_life *life = tn_steps_find(steps, id);

	memset(closed, 0, sizeof(*closed));
	for (uint32_t s = 0; life && s < TERN_TABLE_SLOTS; s++)
		if (tn_ps_slots_has(slots, s) && life->closed[s] > step)
			tn_ps_slots_add(closed, s);
}

/* ---- slots that come and go ---- */

void tn_steps_drop_slots(tn_steps *steps, const tn_ps_slots *slots)
{
	for (uint32_t i = 0; i < steps->count; i++) {
		tn_life *life = steps->lives[i];

		for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++)
			if (tn_ps_slots_has(slots, s))
				life->closed[s] = 0;
		tn_steps_leave(steps, life, UINT64_MAX, slots);
	}
}

static bool each_of_life(const tn_life *life, const tn_ps_slots *slots, tn_steps_closed_fn fn, void *arg)
{
	tn_ps_slots left = *slots;

	for (uint32_t s = 0; s < TERN_TABLE_SLOTS; s++) {
		uint64_t closed = life->closed[s];
		tn_ps_slots same = {{0}};

		if (!tn_ps_slots_has(&left, s) || closed == 0)
			continue;
		for (uint32_t i = s; i < TERN_TABLE_SLOTS; i++)
			if (tn_ps_slots_has(&left, i) && life->closed[i] == closed)
				tn_ps_slots_add(&same, i);
		tn_ps_slots_without(&left, &same);
		if (!fn(life->id, closed, closed == life->newest ? life->status : TERN_OK, &same, arg))
			return false;
	}
	return true;
}

bool tn_steps_each_closed(const tn_steps *steps, const tn_ps_slots *slots, tn_steps_closed_fn fn, void *arg)
{
	for (uint32_t i = 0; i < steps->count; i++)
		if (!each_of_life(steps->lives[i], slots, fn, arg))
			return false;
	return true;
}

const tn_piece *tn_steps_next(const tn_steps *steps, uint64_t after, const tn_ps_slots *slots, uint64_t *life)
{
	const tn_piece *first = NULL;

	for (uint32_t i = 0; i < steps->count; i++) {
		TN_LIST_FOREACH(node, &steps->lives[i]->pieces) {
			const tn_piece *piece = TN_CONTAINER_OF(node, tn_piece, node);

			if (piece->number <= after || (first && piece->number > first->number) ||
			    !tn_ps_slots_meet(&piece->slots, slots))
				continue;
			first = piece;
			*life = steps->lives[i]->id;
			break; /* numbers grow along the list */
		}
	}
	return first;
}

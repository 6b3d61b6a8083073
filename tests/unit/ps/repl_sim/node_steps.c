/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers' part of steps that are summed: what round_server.c and replicas.c do, one share of a closing at a time, with the
 * same machines. See world.h. Threads: none.
 */
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

static void hold(node *n, pending *c, uint32_t s)
{
	tn_commit_hold(&c->commit);
	tn_repl_out_wait(n->r.out[s], &c->commit);
}

/* Judged to be this server's. Rows lie in the request's order. */
void node_stage(world *w, uint32_t p, pending *c)
{
	node *n = w->nodes[p];
	const request *r = &c->r;
	uint64_t keys[OP_KEYS];
	float rows[OP_KEYS][DIM] = {{0}};
	tn_ps_stage s = {.dtype = TERN_F32,
			 .life = w->group.life,
			 .member = r->member,
			 .step = r->step,
			 .seq = r->seq,
			 .table = n->shares[r->table]->id,
			 .schema = n->shares[r->table]->hash,
			 .count = r->count,
			 .keys = (const uint8_t *)keys,
			 .rows = (const uint8_t *)rows,
			 .row_bytes = r->count * sizeof(rows[0])};
	tn_ps_slots fresh;
	tern_status status;

	for (uint32_t i = 0; i < r->count; i++) {
		keys[i] = w->keys[r->key[i]];
		staged_row(r, i, rows[i]);
	}
	tn_commit_begin(&n->steps_queue, &c->commit, false);
	status = tn_steps_stage(&n->steps, &s, &c->commit.slots, UINT64_MAX, &fresh);
	if (status != TERN_OK) {
		assert_int_equal(status, TERN_E_STATE);
		w->n.staged_late++;
		c->r.late = true;
		return;
	}
	if (!tn_ps_slots_within(&c->commit.slots, &fresh)) {
		w->n.staged_known++;
		tn_commit_reads(&c->commit);
	}
	for (uint32_t i = 0; i < TN_CL_SERVERS_MAX; i++) {
		bool any = false;

		if (!n->r.out[i] || !n->r.begun[i])
			continue;
		assert_true(tn_repl_out_reserve_wait(n->r.out[i]));
		assert_true(tn_repl_stage(&n->r, (uint16_t)i, &s, &fresh, &any));
		if (any)
			hold(n, c, i);
	}
}

/* ---- closings ---- */

/* As serves() of round_server.c; slots without keys are empty, and close by themselves. */
static void serves(const world *w, uint32_t p, tn_ps_slots *slots)
{
	const node *n = w->nodes[p];

	memset(slots, 0, sizeof(*slots));
	for (uint32_t k = 0; k < KEYS && node_lease(w, p); k++) {
		uint32_t s = tn_table_slot(w->keys[k]);

		if (tn_ps_slots_has(&n->r.mine, s) && !tn_repl_frozen(&n->r, s))
			tn_ps_slots_add(slots, s);
	}
}

static tn_ps_close closing_of(const world *w, const request *r)
{
	tn_ps_close c = {.life = w->group.life, .step = r->step, .senders = r->senders};

	memcpy(c.sender, r->sender, r->senders * sizeof(r->sender[0]));
	return c;
}

static void answer_closed(world *w, uint32_t p, const request *asked)
{
	node *n = w->nodes[p];
	request r = *asked;
	tn_ps_slots may;
	pending *c;

	serves(w, p, &may);
	tn_steps_closed(&n->steps, w->group.life, r.step, &may, &r.closed);
	c = pending_new(n, &r, &r.closed);
	tn_commit_begin(&n->steps_queue, &c->commit, true);
	pending_end(w, p, c);
}

void node_close(world *w, uint32_t p, const request *r)
{
	node *n = w->nodes[p];
	tn_ps_close c = closing_of(w, r);
	tn_ps_slots may;

	serves(w, p, &may);
	if (n->closing.busy || !tn_steps_open(&n->steps, &c, &may)) {
		answer_closed(w, p, r);
		return;
	}
	n->closing.busy = true;
	n->closing.r = *r;
}

static void sum_table(world *w, uint32_t p, const tn_steps_work *work, uint32_t at, uint32_t count)
{
	node *n = w->nodes[p];
	request nobody = {.client = NOBODY};
	tn_repl_entry e = {.kind = TN_REPL_PUSH,
			   .client = work->life,
			   .seq = work->step,
			   .low = tn_steps_low(work->step)};
	uint64_t *keys, written;
	pending *c;

	for (nobody.table = PLAIN; nobody.table < TABLES; nobody.table++)
		if (n->shares[nobody.table] && n->shares[nobody.table]->id == work->items[at].piece->table)
			break;
	assert_true(nobody.table < TABLES);
	c = pending_new(n, &nobody, &work->slots);
	tn_commit_begin(&n->queue[nobody.table], &c->commit, false);
	assert_int_equal(tn_steps_sum(n->shares[nobody.table], work, work->items + at, count, &keys, &written,
				      &e.status),
			 TERN_OK);
	assert_int_equal(e.status, TERN_OK);
	w->n.sums_known += written == 0;
	if (written)
		into_streams(n, c, &e, keys, written);
	free(keys);
	pending_end(w, p, c);
}

/* The slots are closed, and whoever backs them up is told. */
static void closed(world *w, uint32_t p, tn_steps_work *work)
{
	node *n = w->nodes[p];
	const request nobody = {.client = NOBODY};
	pending *c = pending_new(n, &nobody, &work->slots);

	tn_commit_begin(&n->steps_queue, &c->commit, false);
	for (uint32_t i = 0; i < TN_CL_SERVERS_MAX; i++) {
		bool any = false;

		if (!n->r.out[i] || !n->r.begun[i])
			continue;
		assert_true(tn_repl_out_reserve_wait(n->r.out[i]));
		assert_true(tn_repl_closed(&n->r, (uint16_t)i, work->life, work->step + 1, TERN_OK,
					   &work->slots, &any));
		if (any)
			hold(n, c, i);
	}
	tn_steps_done(&n->steps, work, TERN_OK);
	pending_end(w, p, c);
}

void node_close_some(world *w, uint32_t p)
{
	node *n = w->nodes[p];
	tn_ps_close c;
	tn_steps_work work;
	tn_ps_slots may;

	if (!n->closing.busy)
		return;
	c = closing_of(w, &n->closing.r);
	serves(w, p, &may);
	assert_int_equal(
		tn_steps_take(&n->steps, &c, &may, chance(w, 2) ? 0 : DIM * 4 * (1 + below(w, 8)), &work),
		TERN_OK);
	if (tn_ps_slots_none(&work.slots)) {
		n->closing.busy = false;
		answer_closed(w, p, &n->closing.r);
		return;
	}
	w->n.shares++;
	for (uint32_t at = 0, count; tn_steps_table(&work, &at, &count); at += count) {
		sum_table(w, p, &work, at, count);
		if (chance(w, 12)) { /* memory was short behind the first table */
			tn_steps_undo(&n->steps, &work);
			return;
		}
		if (chance(w, 2)) /* the frame goes before all of it is in */
			send_frames(w, p);
	}
	closed(w, p, &work);
}

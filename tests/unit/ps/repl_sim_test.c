/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replication under a simulator: servers with real tables, streams, and what they know of pushes, over a network that
 * loses, repeats, delays and reorders messages; servers die, are cut off from the coordinator and come back, slots are
 * handed over, maps and reports come late. Clients push ones into counters until they are told that they were applied,
 * and read them.
 *
 *   in the end:   every counter is the number of pushes that were acknowledged, at primary and backup, bit by bit
 *   always:       a read is not below what was acknowledged, or read, before it began; not above what was ever sent
 *
 * Answers are lost too, and what was read just before a server died is looked for at the one that takes over. Seen to fail
 * with readers that do not wait, without fences, without facts in PUSH or in what is copied, and with frames taken twice.
 *
 * One failure at a time: a server dies only when all slots are in sync at two that live. Arguments: a seed, how many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/repl_commit.h"
#include "ps/server.h"

#define NODES   24u /* in all; a server that starts anew has another number */
#define LIVE    4u
#define TABLES  2u
#define KEYS    48u
#define CLIENTS 3u
#define AHEAD   3u /* pushes of a client under way */
#define PEEKS   512u
#define GROUPS  6u /* slots are treated in so many groups */
#define DIM     2u

typedef struct sim_node {
	bool used, alive, isolated;
	uint32_t buried; /* ticks after which the coordinator takes it for dead */
	ps_share *shares[TABLES];
	tn_commits queue[TABLES];
	tn_repl r;
	tn_repl_in in;
	tn_cl_map map;
	uint32_t patience[NODES]; /* of frames under way */
	/* of a group that is copied */
	tn_ps_slots copying;
	uint16_t copying_to;
	uint32_t copy_slot, copy_table;
	uint64_t cursor;
} sim_node;

typedef enum sim_kind { FRAME, ANSWER, SYNCED, RELEASED, LOST } sim_kind;
typedef struct sim_msg {
	struct sim_msg *next;
	sim_kind kind;
	uint16_t from, to;
	uint64_t stream, seq; /* ANSWER: of the frame */
	uint64_t bytes;
	tn_repl_told told;
	uint8_t data[];
} sim_msg;

typedef struct sim_op {
	tn_commit commit; /* first */
	bool live, at_server;
	bool read;
	bool peek;      /* a read that nobody repeats */
	uint32_t sleep; /* steps until it is asked for again */
	uint16_t server;
	uint32_t client, table, n;
	uint64_t seq, keys[4];
	double floor, value;
} sim_op;

typedef struct sim {
	tn_rand rand;
	sim_node *nodes[NODES];
	uint32_t node_count;
	tn_cl_map map;
	sim_msg *msgs;
	uint32_t msg_count;
	uint64_t next_seq[CLIENTS], low[CLIENTS][TABLES];
	sim_op ops[CLIENTS][AHEAD];
	sim_op peeks[PEEKS];
	double acked[TABLES][KEYS], sent[TABLES][KEYS], seen[TABLES][KEYS];
	uint64_t pushes, known, deaths, moves, isolations, refused, reads, again, wrong;
	bool calm; /* no more faults, no more pushes */
} sim;

static uint64_t key_of(uint32_t k)
{
	return k * 0x9e3779b97f4a7c15ull;
}

static uint32_t key_index(uint64_t key)
{
	for (uint32_t k = 0; k < KEYS; k++)
		if (key_of(k) == key)
			return k;
	return KEYS;
}

static bool chance(sim *s, uint32_t of)
{
	return tn_rand_below(&s->rand, of) == 0;
}

static uint32_t group_of(uint32_t slot)
{
	return slot % GROUPS;
}

/* ---- nodes ---- */

static struct ps_share *store_get(void *arg, uint64_t id)
{
	sim_node *n = arg;

	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t] && n->shares[t]->id == id) {
			atomic_fetch_add(&n->shares[t]->refs, 1);
			return n->shares[t];
		}
	return NULL;
}

static bool store_dropped(void *arg, uint64_t id)
{
	(void)arg, (void)id;
	return false;
}

static tern_table_schema schema_of(unsigned t)
{
	tern_table_schema s = {.dim = DIM};

	snprintf(s.name, sizeof(s.name), "table%u", t);
	if (t == 1)
		tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.5f);
	return s;
}

static tern_status store_create(void *arg, const tern_table_schema *schema)
{
	sim_node *n = arg;
	unsigned t = (unsigned)(schema->name[5] - '0');

	assert_true(t < TABLES);
	return n->shares[t] ? TERN_OK : tn_ps_share_new(NULL, schema, &n->shares[t]);
}

static void store_drop(void *arg, uint64_t id)
{
	(void)arg, (void)id;
}

static void store_each(void *arg, void (*fn)(struct ps_share *share, void *fn_arg), void *fn_arg)
{
	sim_node *n = arg;

	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t])
			fn(n->shares[t], fn_arg);
}

static tn_repl_store store_of(sim_node *n)
{
	return (tn_repl_store){store_get, store_dropped, store_create, store_drop, store_each, n};
}

static uint16_t node_new(sim *s, bool tables)
{
	uint16_t i = (uint16_t)s->node_count++;
	sim_node *n = calloc(1, sizeof(*n));

	assert_non_null(n);
	s->nodes[i] = n;
	n->used = n->alive = true;
	tn_repl_init(&n->r);
	tn_repl_in_init(&n->in);
	n->copying_to = TN_CL_NONE;
	for (unsigned t = 0; t < TABLES; t++) {
		tern_table_schema schema = schema_of(t);

		tn_commits_init(&n->queue[t]);
		if (tables)
			assert_int_equal(tn_ps_share_new(NULL, &schema, &n->shares[t]), TERN_OK);
	}
	tn_cl_server_set_state(&s->map.server[i], TN_CL_UP);
	s->map.server[i].incarnation = i + 1u;
	snprintf(s->map.server[i].address, sizeof(s->map.server[i].address), "n%u", i);
	s->map.servers = TN_MAX(s->map.servers, i + 1u);
	s->map.version++;
	return i;
}

static void node_free(sim_node *n)
{
	if (!n)
		return;
	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t])
			tn_ps_share_put(n->shares[t]);
	for (unsigned p = 0; p < NODES; p++)
		if (n->r.out[p])
			n->r.out[p]->open_waits.count = n->r.out[p]->sent_waits.count = 0;
	tn_repl_fini(&n->r);
	tn_repl_in_fini(&n->in);
	free(n);
}

static bool lease(const sim_node *n)
{
	return n->alive && !n->isolated;
}

/* ---- messages ---- */

static sim_msg *post(sim *s, sim_kind kind, uint16_t from, uint16_t to, const void *data, uint64_t bytes)
{
	sim_msg *m = calloc(1, sizeof(*m) + bytes);

	assert_non_null(m);
	m->kind = kind;
	m->from = from;
	m->to = to;
	m->bytes = bytes;
	if (bytes)
		memcpy(m->data, data, bytes);
	m->next = s->msgs;
	s->msgs = m;
	s->msg_count++;
	return m;
}

/* ---- operations ---- */

static void op_ended(sim *s, sim_op *op, tn_commit_end end)
{
	op->at_server = false;
	if (op->peek)
		op->live = false;
	if (end == TN_COMMIT_OK && !op->read && !s->calm && chance(s, 12)) { /* the answer is lost */
		op->sleep = (uint32_t)tn_rand_below(&s->rand, 400);
		return;
	}
	if (end != TN_COMMIT_OK) {
		if (end == TN_COMMIT_AGAIN)
			s->again++;
		else
			s->wrong++;
		return; /* asked for again */
	}
	op->live = false;
	for (uint32_t i = 0; i < op->n; i++) {
		uint32_t k = key_index(op->keys[i]);

		if (!op->read) {
			s->acked[op->table][k] += 1;
			continue;
		}
		if (op->value < op->floor)
			fail_msg("a read of key %u gave %g, but %g was there before", k, op->value,
				 op->floor);
		assert_true(op->value <= s->sent[op->table][k]);
		s->seen[op->table][k] = TN_MAX(s->seen[op->table][k], op->value);
	}
	s->reads += op->read;
}

static void over(sim *s, sim_node *n, tn_list *list)
{
	tn_list *node;

	while ((node = tn_list_pop_front(list))) {
		sim_op *op = TN_CONTAINER_OF(node, sim_op, commit.node);

		op_ended(s, op, tn_commit_judge(&op->commit, &n->r, lease(n)));
	}
}

static void waits_over(sim *s, sim_node *n, tn_repl_waits *waits, const tn_ps_slots *refused)
{
	tn_list list;

	tn_list_init(&list);
	for (uint32_t i = 0; i < waits->count; i++) {
		tn_commit *c = waits->who[i];

		for (unsigned w = 0; refused && w < 64; w++)
			if (c->slots.bits[w] & refused->bits[w])
				c->refused = true;
		tn_commit_release(c, &list);
	}
	waits->count = 0;
	over(s, n, &list);
}

static void send_frames(sim *s, uint16_t self)
{
	sim_node *n = s->nodes[self];

	for (uint16_t p = 0; p < s->node_count; p++) {
		tn_repl_out *out = n->r.out[p];
		const uint8_t *frame;
		uint64_t bytes;

		if (!out)
			continue;
		if (tn_repl_out_take(out, n->r.version, &frame, &bytes)) {
			n->patience[p] = 0;
			post(s, FRAME, self, p, frame, bytes);
		} else if (out->flying && ++n->patience[p] % 40 == 0) {
			post(s, FRAME, self, p, out->sent.at, out->sent.used);
			if (n->patience[p] % 200 == 0) {
				sim_msg *m = post(s, LOST, self, p, NULL, 0);

				tn_repl_of_peer(&n->r, p, &m->told);
			}
		}
	}
}

/* As push.c does it: judged, done, put into the streams, waited for. */
static void push_at(sim *s, uint16_t self, sim_op *op)
{
	sim_node *n = s->nodes[self];
	ps_share *share = n->shares[op->table];
	tn_ps_slots fresh;
	tn_repl_entry e = {.kind = TN_REPL_PUSH, .client = op->client + 1, .seq = op->seq};
	uint32_t first[TN_CL_SERVERS_MAX + 1], keep = 0;
	uint64_t sorted[4], keys[4], low = op->seq;
	float rows[4 * DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
	tn_push how = {.mode = TERN_PUSH_ADD};
	tn_ps_verdict verdict;
	tern_status status;
	tn_list list;

	for (uint32_t i = 0; i < AHEAD; i++) {
		const sim_op *other = &s->ops[op->client][i];

		if (other->live && !other->read && other->seq < low)
			low = other->seq;
	}
	tn_list_init(&list);
	verdict = tn_ps_dedup_begin(share->dedup, op->client + 1, op->seq, low, &op->commit.slots, &fresh,
				    &status);
	assert_true(verdict == TN_PS_FRESH || verdict == TN_PS_KNOWN);
	tn_commit_begin(&n->queue[op->table], &op->commit, verdict == TN_PS_KNOWN);
	if (verdict == TN_PS_FRESH) {
		for (uint32_t i = 0; i < op->n; i++)
			if (tn_ps_slots_has(&fresh, tn_table_slot(op->keys[i])))
				keys[keep++] = op->keys[i];
		assert_int_equal(tn_table_push(share->engine, keys, rows, keep, &how, NULL), TERN_OK);
		tn_ps_dedup_end(share->dedup, op->client + 1, op->seq, &fresh, true, TERN_OK);
		e.table = share->id;
		e.schema = share->hash;
		e.low = low;
		e.item_bytes = tn_repl_record_bytes(share->engine);
		tn_repl_sort(&n->r, keys, keep, sorted, first);
		for (uint16_t p = 0; p < s->node_count; p++) {
			if (first[p] == first[p + 1])
				continue;
			assert_true(tn_repl_out_reserve_wait(n->r.out[p]));
			assert_true(tn_repl_append(&n->r, p, share, &e, sorted + first[p],
						   first[p + 1] - first[p]));
			tn_commit_hold(&op->commit);
			tn_repl_out_wait(n->r.out[p], &op->commit);
		}
	} else {
		s->known++;
	}
	tn_commit_release(&op->commit, &list);
	over(s, n, &list);
}

static tern_status see(const tn_record *record, void *arg)
{
	*(double *)arg = ((const float *)record->value)[0];
	return TERN_OK;
}

static double value_at(sim_node *n, uint32_t table, uint64_t key)
{
	double value = 0;

	assert_int_equal(tn_table_read_records(n->shares[table]->engine, &key, 1, see, &value), TERN_OK);
	return value;
}

static void read_at(sim *s, uint16_t self, sim_op *op)
{
	sim_node *n = s->nodes[self];
	tn_list list;

	tn_list_init(&list);
	op->value = value_at(n, op->table, op->keys[0]);
	tn_commit_begin(&n->queue[op->table], &op->commit, true);
	tn_commit_release(&op->commit, &list);
	over(s, n, &list);
}

/* The request reaches a server, chosen by some map that the client has. */
static void op_try(sim *s, sim_op *op)
{
	uint16_t to = chance(s, 10) ? (uint16_t)tn_rand_below(&s->rand, s->node_count)
				    : s->map.slot[tn_table_slot(op->keys[0])].primary;
	sim_node *n = s->nodes[to];
	bool whole = !op->read;
	sim_op part = *op;

	if (!n->alive)
		return;
	memset(&op->commit.slots, 0, sizeof(op->commit.slots));
	for (uint32_t i = 0; i < op->n; i++)
		tn_ps_slots_add(&op->commit.slots, tn_table_slot(part.keys[i]));
	if (!lease(n) || !tn_ps_slots_within(&op->commit.slots, &n->r.mine) ||
	    tn_repl_any_frozen(&n->r, &op->commit.slots))
		return;
	op->at_server = true;
	op->server = to;
	if (whole)
		push_at(s, to, op);
	else
		read_at(s, to, op);
}

static void client_step(sim *s, uint32_t client)
{
	sim_op *op = &s->ops[client][tn_rand_below(&s->rand, AHEAD)];

	if (op->live) {
		if (op->sleep && !s->calm)
			op->sleep--;
		else if (!op->at_server)
			op_try(s, op);
		return;
	}
	if (s->calm)
		return;
	memset(op, 0, sizeof(*op));
	op->live = true;
	op->client = client;
	op->read = chance(s, 3);
	op->table = (uint32_t)tn_rand_below(&s->rand, TABLES);
	op->keys[op->n++] = key_of((uint32_t)tn_rand_below(&s->rand, KEYS));
	if (op->read) {
		uint32_t k = key_index(op->keys[0]);

		op->floor = TN_MAX(s->acked[op->table][k], s->seen[op->table][k]);
		return;
	}
	/* others of the same group: one server has them all */
	for (unsigned tries = 0; tries < 8 && op->n < 4; tries++) {
		uint64_t key = key_of((uint32_t)tn_rand_below(&s->rand, KEYS));
		bool twice = false;

		for (uint32_t i = 0; i < op->n; i++)
			twice |= op->keys[i] == key;
		if (!twice && group_of(tn_table_slot(key)) == group_of(tn_table_slot(op->keys[0])))
			op->keys[op->n++] = key;
	}
	op->seq = s->next_seq[client]++;
	for (uint32_t i = 0; i < op->n; i++)
		s->sent[op->table][key_index(op->keys[i])] += 1;
	s->pushes++;
}

/* Read some keys at a server, at once. */
static void peek(sim *s, uint16_t server, unsigned n)
{
	sim_node *node = s->nodes[server];

	for (unsigned i = 0, k = 0; i < PEEKS && n > 0 && lease(node); i++) {
		sim_op *op = &s->peeks[i];
		uint32_t key;

		if (op->live)
			continue;
		memset(op, 0, sizeof(*op));
		for (key = KEYS; k < 200 && key == KEYS; k++) {
			key = (uint32_t)tn_rand_below(&s->rand, KEYS);
			if (!tn_ps_slots_has(&node->r.mine, tn_table_slot(key_of(key))) ||
			    tn_repl_frozen(&node->r, tn_table_slot(key_of(key))))
				key = KEYS;
		}
		if (key == KEYS)
			return;
		n--;
		op->live = op->at_server = op->read = op->peek = true;
		op->server = server;
		op->table = (uint32_t)tn_rand_below(&s->rand, TABLES);
		op->keys[op->n++] = key_of(key);
		op->floor = TN_MAX(s->acked[op->table][key], s->seen[op->table][key]);
		tn_ps_slots_add(&op->commit.slots, tn_table_slot(key_of(key)));
		read_at(s, server, op);
	}
}

/* ---- servers' work beside requests ---- */

static void node_map(sim *s, uint16_t self)
{
	sim_node *n = s->nodes[self];
	tn_ps_slots gone, fresh;

	if (n->map.version == s->map.version)
		return;
	n->map = s->map;
	tn_repl_map(&n->r, &n->map, self, &gone, &fresh);
	for (uint32_t slot = 0; slot < TN_CL_SLOTS; slot++)
		if (tn_ps_slots_has(&gone, slot) && group_of(slot) < GROUPS)
			for (unsigned t = 0; t < TABLES; t++)
				if (n->shares[t]) {
					tn_ps_dedup_drop(n->shares[t]->dedup, slot);
					(void)tn_table_drop_slot(n->shares[t]->engine, slot, NULL);
				}
	for (uint16_t p = 0; p < s->node_count; p++) {
		tn_repl_out *out = n->r.out[p];

		if (!out || n->r.begun[p] > 0)
			continue;
		waits_over(s, n, &out->sent_waits, NULL); /* the map says that this server is alone */
		waits_over(s, n, &out->open_waits, NULL);
		assert_true(tn_repl_out_begin(out, self, tn_rand_next(&s->rand) | 1));
	}
	peek(s, self, 24); /* what it took over */
}

static void node_copy(sim *s, uint16_t self)
{
	sim_node *n = s->nodes[self];

	if (n->copying_to == TN_CL_NONE) {
		if (!tn_repl_next(&n->r, 2000, &n->copying, &n->copying_to))
			return;
		assert_non_null(tn_repl_stream(&n->r, n->copying_to, tn_rand_next(&s->rand) | 1));
		assert_true(tn_repl_begin(&n->r, n->copying_to, &n->copying, n->shares, TABLES));
		n->copy_slot = n->copy_table = 0;
		n->cursor = 0;
		return;
	}
	for (unsigned steps = 0; steps < 8 && n->copy_slot < TN_CL_SLOTS; n->copy_slot++) {
		bool ours = false;

		for (uint32_t k = 0; k < KEYS && !ours; k++) /* slots without a key are empty */
			ours = tn_table_slot(key_of(k)) == n->copy_slot;
		if (!ours || !tn_ps_slots_has(&n->copying, n->copy_slot))
			continue;
		for (unsigned t = 0; t < TABLES; t++) {
			uint64_t cursor = 0;

			while (cursor != TN_SCAN_END)
				assert_int_equal(tn_repl_copy(&n->r, n->copying_to, n->shares[t],
							      n->copy_slot, &cursor, 1),
						 TERN_OK);
		}
		steps++;
	}
	if (n->copy_slot < TN_CL_SLOTS)
		return;
	for (unsigned w = 0; w < 64; w++)
		n->copying.bits[w] &= n->r.mine.bits[w];
	{
		tn_ps_slots move = n->r.move;

		for (unsigned w = 0; w < 64; w++)
			move.bits[w] &= n->copying.bits[w];
		tn_repl_freeze(&n->r, &move);
	}
	assert_true(tn_repl_finish(&n->r, n->copying_to, &n->copying));
	n->copying_to = TN_CL_NONE;
}

static void node_move(sim *s, uint16_t self)
{
	sim_node *n = s->nodes[self];
	tn_ps_slots slots;
	uint16_t peer;

	(void)s;
	if (!tn_repl_next_move(&n->r, &slots, &peer))
		return;
	tn_repl_freeze(&n->r, &slots);
	assert_true(tn_repl_finish(&n->r, peer, &slots));
}

static void on_answer(sim *s, sim_msg *m)
{
	sim_node *n = s->nodes[m->to];
	tn_repl_out *out = n->r.out[m->from];
	tn_repl_answer a;

	assert_true(tn_repl_answer_decode(m->data, m->bytes, &a));
	if (!n->alive || !out || !out->flying || out->stream != m->stream || out->seq != m->seq)
		return;
	if (a.verdict == TN_REPL_LATER)
		return; /* repeated soon */
	if (a.verdict == TN_REPL_LOST) {
		sim_msg *l = post(s, LOST, m->to, m->from, NULL, 0);

		tn_repl_of_peer(&n->r, m->from, &l->told);
		return;
	}
	assert_true(a.verdict == TN_REPL_DONE || a.verdict == TN_REPL_PARTIAL);
	{
		sim_msg *synced = post(s, SYNCED, m->to, 0, NULL, 0);
		sim_msg *released = post(s, RELEASED, m->to, 0, NULL, 0);
		tn_repl_waits waits = out->sent_waits;

		tn_repl_answered(&n->r, m->from, &a.refused, &synced->told, &released->told);
		for (unsigned w = 0; w < 64; w++)
			s->refused += a.refused.bits[w] != 0;
		out->sent_waits.count = 0;
		tn_repl_out_answered(out);
		waits_over(s, n, &waits, &a.refused);
	}
}

static void on_frame(sim *s, sim_msg *m)
{
	sim_node *n = s->nodes[m->to];
	tn_repl_store store = store_of(n);
	uint8_t out[TN_REPL_ANSWER_MAX];
	tn_repl_answer answer;
	tn_repl_head head;
	sim_msg *back;

	if (!n->alive || n->map.version == 0)
		return;
	assert_true(tn_repl_head_decode(m->data, m->bytes, &head));
	assert_true(tn_repl_in_apply(&n->in, &store, &n->map, m->to, m->data, m->bytes, &answer));
	assert_true(answer.verdict != TN_REPL_FAILED);
	back = post(s, ANSWER, m->to, m->from, out, tn_repl_answer_encode(out, &answer));
	back->stream = head.stream;
	back->seq = head.seq;
}

/* ---- the coordinator ---- */

static void alone(tn_cl_slot *slot)
{
	slot->backup = TN_CL_NONE;
	slot->flags = 0;
	slot->epoch++;
}

static void on_report(sim *s, const sim_msg *m)
{
	for (uint32_t i = 0; i < m->told.count; i++) {
		tn_cl_slot *slot = &s->map.slot[m->told.slot[i]];

		if (slot->epoch != m->told.epoch[i] || slot->primary != m->from)
			continue;
		if (m->kind == LOST) {
			alone(slot);
		} else if (m->kind == SYNCED) {
			slot->flags |= TN_CL_IN_SYNC;
		} else if (slot->flags & TN_CL_MOVE) {
			slot->primary = slot->backup;
			alone(slot);
			s->moves++;
		}
	}
	if (m->told.count)
		s->map.version++;
}

static void bury(sim *s, uint16_t dead)
{
	tn_cl_server_set_state(&s->map.server[dead], TN_CL_DOWN);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_cl_slot *slot = &s->map.slot[i];

		if (slot->primary == dead) {
			assert_true(slot->flags & TN_CL_IN_SYNC); /* one failure at a time */
			slot->primary = slot->backup;
			alone(slot);
		} else if (slot->backup == dead) {
			alone(slot);
		}
	}
	s->map.version++;
}

static uint16_t some_live(sim *s, uint16_t but)
{
	for (;;) {
		uint16_t i = (uint16_t)tn_rand_below(&s->rand, s->node_count);

		if (i != but && s->map.server[i].state == TN_CL_UP && lease(s->nodes[i]))
			return i;
	}
}

static void choose_backups(sim *s)
{
	uint16_t to[NODES][GROUPS];
	bool any = false;

	for (unsigned i = 0; i < NODES; i++)
		for (unsigned g = 0; g < GROUPS; g++)
			to[i][g] = TN_CL_NONE;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		tn_cl_slot *slot = &s->map.slot[i];
		uint16_t *chosen = &to[slot->primary][group_of(i)];

		if (slot->backup != TN_CL_NONE || s->map.server[slot->primary].state != TN_CL_UP)
			continue;
		if (*chosen == TN_CL_NONE)
			*chosen = some_live(s, slot->primary);
		slot->backup = *chosen;
		slot->epoch++;
		any = true;
	}
	if (any)
		s->map.version++;
}

static bool all_in_sync(const sim *s)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *slot = &s->map.slot[i];

		if (slot->flags != TN_CL_IN_SYNC || !s->nodes[slot->primary]->alive ||
		    !s->nodes[slot->backup]->alive || s->nodes[slot->primary]->isolated ||
		    s->nodes[slot->backup]->isolated)
			return false;
	}
	return true;
}

static uint32_t living(const sim *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->node_count; i++)
		n += s->nodes[i]->alive && s->map.server[i].state == TN_CL_UP;
	return n;
}

static void forget_ops_at(sim *s, uint16_t server)
{
	for (uint32_t c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < AHEAD; i++)
			if (s->ops[c][i].live && s->ops[c][i].at_server && s->ops[c][i].server == server)
				s->ops[c][i].at_server = false;
	for (uint32_t i = 0; i < PEEKS; i++)
		if (s->peeks[i].live && s->peeks[i].server == server)
			s->peeks[i].live = s->peeks[i].at_server = false;
}

/* A slot that is handed over is alone for a while: no fault then (docs/PARAMETER-SERVER.md says so). */
static void fault(sim *s)
{
	uint16_t victim;

	if (s->calm || !all_in_sync(s) || living(s) < 3)
		return;
	victim = some_live(s, TN_CL_NONE);
	peek(s, victim, 24); /* what somebody saw just before stays */
	if (chance(s, 2)) {
		s->nodes[victim]->alive = false; /* who was there is not answered */
		forget_ops_at(s, victim);
		s->deaths++;
	} else {
		s->nodes[victim]->isolated = true; /* its lease ends first */
		s->isolations++;
	}
	s->nodes[victim]->buried = 1 + (uint32_t)tn_rand_below(&s->rand, 200);
}

static void coordinate(sim *s)
{
	for (uint16_t i = 0; i < s->node_count; i++) {
		sim_node *n = s->nodes[i];

		if (n->buried && --n->buried == 0) {
			bury(s, i);
			continue;
		}
		if (n->alive && n->isolated && !n->buried && chance(s, 50)) { /* it is heard of again */
			n->isolated = false;
			tn_cl_server_set_state(&s->map.server[i], TN_CL_UP);
			s->map.version++;
			node_map(s, i); /* a lease comes with the newest map */
		}
	}
	if (living(s) < LIVE && s->node_count < NODES && chance(s, 30))
		(void)node_new(s, false);
	if (chance(s, 10))
		choose_backups(s);
	if (!s->calm && chance(s, 150) && all_in_sync(s)) {
		uint32_t g = (uint32_t)tn_rand_below(&s->rand, GROUPS);

		for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
			if (group_of(i) == g && s->map.slot[i].backup != TN_CL_NONE)
				s->map.slot[i].flags |= TN_CL_MOVE;
		s->map.version++;
	}
	if (chance(s, 100))
		fault(s);
}

/* ---- the run ---- */

static void deliver(sim *s)
{
	uint32_t n = s->msg_count ? (uint32_t)tn_rand_below(&s->rand, s->msg_count) : 0;
	sim_msg **at = &s->msgs, *m;

	if (!s->msgs)
		return;
	while (n--)
		at = &(*at)->next;
	m = *at;
	*at = m->next;
	s->msg_count--;
	if (m->kind <= ANSWER && chance(s, 12)) {
		free(m); /* lost */
		return;
	}
	if (m->kind <= ANSWER && chance(s, 12)) { /* it comes again */
		sim_msg *twin = post(s, m->kind, m->from, m->to, m->data, m->bytes);

		twin->stream = m->stream;
		twin->seq = m->seq;
	}
	if (m->kind == FRAME)
		on_frame(s, m);
	else if (m->kind == ANSWER)
		on_answer(s, m);
	else
		on_report(s, m);
	free(m);
}

static void step(sim *s)
{
	for (uint32_t c = 0; c < CLIENTS; c++)
		client_step(s, c);
	for (uint16_t i = 0; i < s->node_count; i++) {
		if (!s->nodes[i]->alive)
			continue;
		if (!s->nodes[i]->isolated && chance(s, 6))
			node_map(s, i);
		if (s->nodes[i]->map.version == 0)
			continue;
		if (chance(s, 3))
			node_copy(s, i);
		if (chance(s, 5))
			node_move(s, i);
		send_frames(s, i);
	}
	coordinate(s);
	for (uint64_t n = s->msg_count / 6 + tn_rand_below(&s->rand, 3); n > 0; n--)
		deliver(s);
}

static bool quiet(sim *s)
{
	for (uint32_t c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < AHEAD; i++)
			if (s->ops[c][i].live)
				return false;
	for (uint32_t i = 0; i < s->node_count; i++)
		if (s->nodes[i]->isolated || s->nodes[i]->buried)
			return false;
	return all_in_sync(s);
}

typedef struct image {
	uint8_t bytes[64];
	bool there;
} image;

static tern_status keep(const tn_record *record, void *arg)
{
	image *i = arg;

	memcpy(i->bytes, record->value, DIM * 4);
	memcpy(i->bytes + DIM * 4, &record->last_step, 8);
	if (record->state)
		memcpy(i->bytes + DIM * 4 + 8, record->state, DIM * 4);
	i->there = true;
	return TERN_OK;
}

typedef struct fact_sum {
	uint64_t count, sum;
} fact_sum;

static void add_fact(uint64_t client, uint64_t low, uint64_t seq, tern_status status, void *arg)
{
	fact_sum *f = arg;

	if (seq == TN_PS_NO_SEQ)
		return;
	(void)low;
	f->count++;
	f->sum += tn_hash_u64(client * 1000003 + seq, (uint64_t)status);
}

static void compare(sim *s)
{
	for (unsigned t = 0; t < TABLES; t++)
		for (uint32_t k = 0; k < KEYS; k++) {
			uint64_t key = key_of(k);
			const tn_cl_slot *slot = &s->map.slot[tn_table_slot(key)];
			image a = {.there = false}, b = {.there = false};
			fact_sum fa = {0, 0}, fb = {0, 0};
			sim_node *p = s->nodes[slot->primary], *q = s->nodes[slot->backup];

			if (value_at(p, t, key) != s->acked[t][k])
				fail_msg("key %u of table %u counts %g, acknowledged were %g", k, t,
					 value_at(p, t, key), s->acked[t][k]);
			assert_int_equal(tn_table_read_records(p->shares[t]->engine, &key, 1, keep, &a), 0);
			assert_int_equal(tn_table_read_records(q->shares[t]->engine, &key, 1, keep, &b), 0);
			assert_int_equal(a.there, b.there);
			assert_memory_equal(a.bytes, b.bytes, sizeof(a.bytes));
			tn_ps_dedup_export(p->shares[t]->dedup, tn_table_slot(key), add_fact, &fa);
			tn_ps_dedup_export(q->shares[t]->dedup, tn_table_slot(key), add_fact, &fb);
			if (fa.count || fb.count) /* what is over may be forgotten at one of them already */
				assert_true(fb.count >= fa.count || fb.sum == fa.sum || fa.count > 0);
		}
}

/* Why it does not come to rest. */
static void print_stuck(const sim *s)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *slot = &s->map.slot[i];
		const sim_node *n = s->nodes[slot->primary];

		if (slot->flags == TN_CL_IN_SYNC)
			continue;
		printf("slot %u: (%u, %u) epoch %u flags %u; at its primary: state %u epoch %u frozen %d\n",
		       i, slot->primary, slot->backup, slot->epoch, slot->flags, n->r.slot[i].state,
		       n->r.slot[i].epoch, tn_repl_frozen(&n->r, i));
		if (slot->backup != TN_CL_NONE && n->r.out[slot->backup])
			printf("  stream flying %d seq %llu patience %u\n", n->r.out[slot->backup]->flying,
			       (unsigned long long)n->r.out[slot->backup]->seq, n->patience[slot->backup]);
		break;
	}
	for (uint32_t c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < AHEAD; i++)
			if (s->ops[c][i].live)
				printf("client %u: seq %llu, read %d, at server %d: %u, pending %u\n", c,
				       (unsigned long long)s->ops[c][i].seq, s->ops[c][i].read,
				       s->ops[c][i].at_server, s->ops[c][i].server,
				       s->ops[c][i].commit.pending);
}

static void run(uint64_t seed, uint32_t steps)
{
	sim *s = calloc(1, sizeof(*s));
	uint64_t more = 0;

	assert_non_null(s);
	s->rand.state = seed;
	for (unsigned i = 0; i < LIVE; i++)
		(void)node_new(s, true);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		s->map.slot[i] = (tn_cl_slot){
			.primary = (uint16_t)(group_of(i) % LIVE), .backup = TN_CL_NONE, .epoch = 1};
	for (uint32_t i = 0; i < steps; i++)
		step(s);
	s->calm = true;
	while (!quiet(s) && more++ < 200000)
		step(s);
	if (!quiet(s)) {
		print_stuck(s);
		fail_msg("seed %llu: it does not come to rest", (unsigned long long)seed);
	}
	for (unsigned i = 0; i < 2000; i++)
		step(s);
	compare(s);
	if (seed % 8 == 1)
		printf("seed %llu: %llu pushes, %llu reads, %llu deaths, %llu cut off, %llu slots moved, "
		       "%llu known, %llu "
		       "refused, %llu again\n",
		       (unsigned long long)seed, (unsigned long long)s->pushes, (unsigned long long)s->reads,
		       (unsigned long long)s->deaths, (unsigned long long)s->isolations,
		       (unsigned long long)s->moves, (unsigned long long)s->known,
		       (unsigned long long)s->refused, (unsigned long long)s->again);
	while (s->msgs) {
		sim_msg *m = s->msgs;

		s->msgs = m->next;
		free(m);
	}
	for (unsigned i = 0; i < NODES; i++)
		node_free(s->nodes[i]);
	free(s);
}

static uint64_t first_seed = 1, seeds = 12;

static void faults(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < seeds; i++)
		run(first_seed + i, 4000);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(faults)};

	first_seed = argc > 1 ? strtoull(argv[1], NULL, 10) : first_seed;
	seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: keys split over servers by the newest map they have heard of, asked for until they are answered; what was pushed
 * and seen goes into the histories. See world.h. Threads: none.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

/* ---- asking ---- */

/* Any process that runs: maps come from servers. */
void client_asks_for_map(world *w, uint32_t c)
{
	uint32_t p = (uint32_t)below(w, PROCESSES);

	if (w->clients[c].map_asked > w->now || !w->nodes[p])
		return;
	w->clients[c].map_asked = w->now + 8;
	message_send(w, message_new(MAP_ASK, CLIENT + c, p, NULL, 0));
}

static uint64_t low_of(const client *c, uint64_t seq)
{
	uint64_t low = seq;

	for (uint32_t i = 0; i < AHEAD; i++)
		if (c->ops[i].live && !c->ops[i].pull && !c->ops[i].erase)
			low = TN_MIN(low, c->ops[i].seq);
	return low;
}

static void ask_server(world *w, uint32_t c, uint32_t slot, int to, const uint32_t *which, uint64_t count)
{
	const op *o = &w->clients[c].ops[slot];
	message *m = message_new(ASK, CLIENT + c, (uint32_t)to, NULL, 0);
	request *r = m->request = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->client = c;
	r->slot = slot;
	r->table = o->table;
	r->op = o->number;
	r->seq = o->seq;
	r->low = low_of(&w->clients[c], o->seq);
	r->pull = o->pull;
	r->erase = o->erase;
	r->attempt = o->attempt;
	r->create = o->pull && o->table != COMES && chance(w, 4);
	for (uint64_t i = 0; i < count; i++) {
		r->key[r->count] = o->key[which[i]];
		r->id[r->count++] = o->id[which[i]];
	}
	message_send(w, m);
}

/* As if its map had the others elsewhere: keys of a slot stay together. */
static uint64_t piece(world *w, uint64_t *keys, uint32_t *where, uint64_t n)
{
	uint32_t last = tn_table_slot(keys[below(w, n)]);
	uint64_t kept = 0;

	for (uint64_t i = 0; i < n; i++)
		if (tn_table_slot(keys[i]) <= last) {
			keys[kept] = keys[i];
			where[kept++] = where[i];
		}
	return kept;
}

static void ask(world *w, uint32_t c, uint32_t slot)
{
	client *cl = &w->clients[c];
	op *o = &cl->ops[slot];
	uint64_t keys[OP_KEYS], n = 0, counts[TN_PS_OWNERS], room[TN_PS_OWNERS][OP_KEYS];
	uint64_t *keys_out[TN_PS_OWNERS];
	uint32_t where[OP_KEYS], places[TN_PS_OWNERS][OP_KEYS], *places_out[TN_PS_OWNERS];

	o->ask_at = w->now + ASK_AGAIN;
	o->attempt++;
	if (!cl->snap) {
		client_asks_for_map(w, c);
		return;
	}
	for (uint32_t i = 0; i < o->count; i++)
		if (!o->done[i]) {
			keys[n] = w->keys[o->key[i]];
			where[n++] = i;
		}
	if (n > 1 && chance(w, 4))
		n = piece(w, keys, where, n);
	for (uint32_t s = 0; s < TN_PS_OWNERS; s++) {
		keys_out[s] = room[s];
		places_out[s] = places[s];
	}
	tn_ps_split_count(&cl->snap->owners, keys, n, counts);
	tn_ps_split_fill(&cl->snap->owners, keys, where, n, keys_out, places_out);
	for (uint32_t s = 0; s < TN_PS_OWNERS; s++) {
		int to = s == TN_PS_NOBODY ? -1 : process_of(w, (uint16_t)s);

		if (counts[s] && to >= 0)
			ask_server(w, c, slot, to, places[s], counts[s]);
		else if (counts[s])
			client_asks_for_map(w, c);
	}
}

static bool has_key(const op *o, uint32_t key)
{
	for (uint32_t i = 0; i < o->count; i++)
		if (o->key[i] == key)
			return true;
	return false;
}

/* Pushes of a key are spread over the run. */
static bool may_push(const world *w, const history *h)
{
	return h->ids < IDS * (w->now + TICKS / 20) / (TICKS + TICKS / 20);
}

static bool writes(const client *c)
{
	for (uint32_t i = 0; i < AHEAD; i++)
		if (c->ops[i].live && c->ops[i].table == COMES && !c->ops[i].pull)
			return true;
	return false;
}

/* The client's own row comes, or goes; or it looks at another. */
static void begin_reg(world *w, uint32_t c, op *o)
{
	reg *g = &w->regs[c];

	o->table = COMES;
	o->count = 1;
	o->pull = chance(w, 2) || writes(&w->clients[c]) || g->states == STATES;
	o->key[0] = o->pull ? (uint32_t)below(w, CLIENTS) : c;
	o->oldest = w->regs[o->key[0]].seen;
	if (o->pull)
		return;
	o->erase = (g->states & 1) == 0;
	o->id[0] = o->erase ? 0 : g->states;
	o->entry[0] = g->states;
	g->value[g->states++] = o->id[0];
}

static void begin(world *w, uint32_t c, op *o)
{
	uint32_t want = 1 + (uint32_t)below(w, OP_KEYS);

	memset(o, 0, sizeof(*o));
	o->live = true;
	o->pull = chance(w, 2);
	o->number = ++w->next_op;
	o->table = (uint32_t)below(w, COMES);
	o->invoke = ++w->stamp;
	if (o->pull && chance(w, 4))
		o->table = SUMS;
	else if (chance(w, 4)) {
		memset(o->entry, 0, sizeof(o->entry));
		want = 0;
		begin_reg(w, c, o);
	}
	for (uint32_t tries = 0; tries < 8 && o->count < want; tries++) {
		uint32_t key = (uint32_t)below(w, KEYS);
		history *h = &w->histories[o->table][key];

		if (has_key(o, key) || (!o->pull && !may_push(w, h)))
			continue;
		o->key[o->count] = key;
		if (!o->pull) {
			o->id[o->count] = h->ids++;
			o->entry[o->count] = history_push(h, o->invoke, o->id[o->count]);
		}
		o->count++;
	}
	o->live = o->count > 0;
	if (!o->pull && !o->erase)
		o->seq = w->clients[c].next_seq++;
	w->n.pushes += !o->pull && !o->erase;
	w->n.pulls += o->pull;
}

void client_step(world *w, uint32_t c)
{
	uint32_t slot = (uint32_t)below(w, AHEAD);
	op *o = &w->clients[c].ops[slot];

	member_step(w, c);
	if (o->live && w->now >= o->ask_at) {
		if (o->ask_at && chance(w, 2)) /* it was asked before */
			client_asks_for_map(w, c);
		ask(w, c, slot);
	} else if (!o->live && !w->calm && chance(w, 3)) {
		begin(w, c, o);
	}
}

bool clients_idle(const world *w)
{
	for (uint32_t c = 0; c < CLIENTS; c++)
		for (uint32_t i = 0; i < AHEAD; i++)
			if (w->clients[c].ops[i].live)
				return false;
	return true;
}

/* ---- answers ---- */

static void take_row(world *w, const request *r, uint32_t i, id_set *seen)
{
	memset(seen, 0, sizeof(*seen));
	for (uint32_t d = 0; d < DIM; d++) {
		float x = r->rows[i][d];
		uint32_t digits = (uint32_t)x;

		if (x < 0 || x >= 0x1p24f || (float)digits != x)
			fails(w, "key %u of table %u: element %u of its row is %g", r->key[i], r->table, d,
			      (double)x);
		for (uint32_t k = 0; k < 12; k++) {
			uint32_t times = digits >> 2 * k & 3;

			if (times > 1)
				fails(w, "push %u of key %u of table %u was applied %u times", 12 * d + k,
				      r->key[i], r->table, times);
			if (times && r->table == SUMS && !w->group.closed[r->key[i]][12 * d + k])
				fails(w, "push %u of key %u is in the sum before its step has closed",
				      12 * d + k, r->key[i]);
			if (times)
				set_add(seen, 12 * d + k);
		}
	}
}

/* The oldest state that explains it: that binds others least. */
static void reg_seen(world *w, uint32_t key, uint32_t oldest, uint32_t value)
{
	reg *g = &w->regs[key];

	for (uint32_t i = oldest; i < g->states; i++)
		if (g->value[i] == value) {
			g->seen = TN_MAX(g->seen, i);
			return;
		}
	fails(w,
	      "row %u that comes and goes is %u, which it was not at any time (%u states, of which %u are "
	      "over)",
	      key, value, g->states, oldest);
}

static void reg_ends(world *w, const op *o)
{
	if (o->pull) {
		reg_seen(w, o->key[0], o->oldest, o->value);
		return;
	}
	w->regs[o->key[0]].seen = TN_MAX(w->regs[o->key[0]].seen, o->entry[0]);
}

static void ends(world *w, op *o)
{
	uint64_t stamp = ++w->stamp;

	if (o->table == COMES) {
		reg_ends(w, o);
		o->live = false;
		return;
	}

	for (uint32_t i = 0; i < o->count; i++) {
		history *h = &w->histories[o->table][o->key[i]];

		if (o->pull)
			history_pull(h, o->invoke, stamp, &o->seen[i]);
		else
			h->at[o->entry[i]].ret = stamp;
	}
	o->live = false;
}

static void peeked(world *w, const request *r)
{
	id_set seen;

	if (r->end != TN_COMMIT_OK)
		return;
	if (r->table == COMES) {
		reg_seen(w, r->key[0], r->entry, (uint32_t)r->rows[0][0]);
		return;
	}
	if (!r->pull) {
		w->histories[r->table][r->key[0]].at[r->entry].ret = ++w->stamp;
		return;
	}
	take_row(w, r, 0, &seen);
	history_pull(&w->histories[r->table][r->key[0]], r->op, ++w->stamp, &seen);
	w->n.pulls++;
}

void client_answer(world *w, const request *r)
{
	bool all = true;
	op *o;

	if (r->client == CLIENTS) {
		peeked(w, r);
		return;
	}
	if (r->stage || r->close) {
		member_answer(w, r);
		return;
	}
	o = &w->clients[r->client].ops[r->slot];
	if (!o->live || o->number != r->op)
		return;
	if (r->end != TN_COMMIT_OK) {
		if (r->end == TN_COMMIT_WRONG)
			client_asks_for_map(w, r->client);
		o->ask_at = w->now + 3 + below(w, 8);
		return;
	}
	for (uint32_t k = 0; k < r->count; k++)
		for (uint32_t i = 0; i < o->count; i++)
			if (o->key[i] == r->key[k] && !o->done[i]) {
				o->done[i] = true;
				if (o->table == COMES)
					o->value = (uint32_t)r->rows[k][0];
				else if (o->pull)
					take_row(w, r, k, &o->seen[i]);
			}
	for (uint32_t i = 0; i < o->count; i++)
		all &= o->done[i];
	if (all)
		ends(w, o);
}

void client_map(world *w, uint32_t c, snap *s)
{
	client *cl = &w->clients[c];

	if (cl->snap && cl->snap->map.version >= s->map.version)
		return;
	if (cl->snap)
		w->n.elsewhere += memcmp(&cl->snap->owners, &s->owners, sizeof(s->owners)) != 0;
	snap_drop(cl->snap);
	cl->snap = snap_hold(s);
}

/* ---- pulls of the simulator's own ---- */

static bool thinks_that_it_serves(const world *w, uint32_t p, uint32_t key)
{
	const node *n = w->nodes[p];

	return n && n->snap && n->stalled_until <= w->now &&
	       tn_ps_slots_has(&n->r.mine, tn_table_slot(w->keys[key]));
}

static void peek_at(world *w, uint32_t p, uint32_t table, uint32_t key)
{
	request r = {.client = CLIENTS, .table = table, .count = 1, .pull = true};

	r.op = ++w->stamp;
	r.key[0] = key;
	if (table == COMES)
		r.entry = w->regs[key].seen;
	node_request(w, p, &r);
}

static void peek_any(world *w, uint32_t p)
{
	uint32_t table = (uint32_t)below(w, ORDERED);

	peek_at(w, p, table, (uint32_t)below(w, table == COMES ? CLIENTS : KEYS));
}

static void push_at(world *w, uint32_t p, uint32_t table, uint32_t key)
{
	request r = {.client = CLIENTS, .table = table, .count = 1};
	history *h = &w->histories[table][key];

	r.seq = r.low = w->probe_seq++;
	r.key[0] = key;
	r.id[0] = h->ids++;
	r.entry = history_push(h, ++w->stamp, r.id[0]);
	node_request(w, p, &r);
}

void probe(world *w)
{
	uint32_t key = (uint32_t)below(w, KEYS), p = (uint32_t)below(w, PROCESSES);
	uint32_t table = (uint32_t)below(w, COMES);

	if (!thinks_that_it_serves(w, p, key))
		return;
	w->n.probes++;
	if (may_push(w, &w->histories[table][key]) && chance(w, 4))
		push_at(w, p, table, key);
	else
		peek_at(w, p, table, key);
}

void peek(world *w, uint32_t p, uint32_t n)
{
	while (n-- > 0 && w->nodes[p] && w->nodes[p]->snap && w->nodes[p]->stalled_until <= w->now)
		peek_any(w, p);
}

void pull_all(world *w)
{
	for (uint32_t k = 0; k < KEYS; k++)
		for (uint32_t t = 0; t <= SUMS; t++) {
			if (t == COMES && k >= CLIENTS)
				continue;
			int p = process_of(w, w->coord.map.slot[tn_table_slot(w->keys[k])].primary);

			if (p >= 0)
				peek_at(w, (uint32_t)p, t, k);
		}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a group whose steps are summed, their keeper, and what the sums have to be. See world.h.
 *
 *   a member   stages pushes of its step, ends it when they are acknowledged, brings the closing to all slots, goes on; or leaves
 *              in the middle of a step, and comes back as another
 *   oracle     a table of its own that gets each step when the keeper closes it: all rows of its senders, in their order, as
 *              one push. At the end every row of ORDERED has its bits
 *
 * Rows of SUMS have a digit for each push, as those of the tables that are pushed to: seen before the keeper closed the step,
 * or twice, it is a fault; and a history says when it has to be seen. Threads: none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

void group_begin(world *w)
{
	steps_world *g = &w->group;
	tern_table_schema schema = {.dim = DIM, .name = "oracle"};

	assert_int_equal(tn_clocks_init(&g->clocks, 0, 0, 1), TERN_OK);
	tn_round_init(&g->round, &g->clocks);
	g->life = tn_rand_next(&w->rand) | 1;
	g->last = UINT64_MAX;
	tern_optimizer_init(&schema.optimizer, TERN_OPT_ADAGRAD, 0.5f);
	assert_int_equal(tn_ps_share_new(NULL, &schema, &g->oracle), TERN_OK);
}

void group_end(world *w)
{
	tn_round_fini(&w->group.round);
	tn_clocks_fini(&w->group.clocks);
	tn_ps_share_put(w->group.oracle);
	free(w->group.pushes);
}

void staged_row(const request *r, uint32_t i, float row[DIM])
{
	tn_rand rand = {r->member * 1000003 + r->seq * 10007 + r->key[i]};

	if (r->table == SUMS) {
		row[r->id[i] / 12] = -(float)(1u << 2 * (r->id[i] % 12)); /* SGD subtracts it */
		return;
	}
	for (uint32_t d = 0; d < DIM; d++)
		row[d] = (float)tn_rand_below(&rand, 1u << 20) * 1e-3f - 500;
}

/* ---- the keeper ---- */

static request as_request(const staged_push *s)
{
	request r = {.member = s->member, .seq = s->seq, .table = s->table, .count = s->count};

	memcpy(r.key, s->key, sizeof(r.key));
	memcpy(r.id, s->id, sizeof(r.id));
	return r;
}

/* Into the oracle's next push; or its digits may be seen from now on. */
static void closes(world *w, staged_push *s, uint64_t *keys, float (*rows)[DIM], uint32_t *n)
{
	steps_world *g = &w->group;
	request r = as_request(s);

	if (!s->acknowledged)
		fails(w, "a step closes without a push of its sender");
	s->applied = true;
	for (uint32_t i = 0; i < s->count; i++) {
		if (s->table == SUMS) {
			g->closed[s->key[i]][s->id[i]] = true;
			g->entry[s->key[i]][s->id[i]] =
				history_push(&w->histories[SUMS][s->key[i]], ++w->stamp, s->id[i]);
			continue;
		}
		keys[*n] = w->keys[s->key[i]];
		memset(rows[*n], 0, sizeof(rows[0]));
		staged_row(&r, i, rows[(*n)++]);
	}
}

/* Have all ended the step, or left? */
static void keeper(world *w)
{
	steps_world *g = &w->group;
	uint64_t *keys;
	float(*rows)[DIM];
	uint32_t n = 0;
	tn_push how = {.mode = TERN_PUSH_GRADIENT};

	if (!tn_round_close(&g->round))
		return;
	w->n.steps++;
	trace(w, "step %llu closes, with %u senders", (unsigned long long)g->round.closed - 1,
	      g->round.sender_count);
	keys = malloc((g->count + 1ull) * OP_KEYS * sizeof(*keys));
	rows = malloc((g->count + 1ull) * OP_KEYS * sizeof(*rows));
	assert_true(keys && rows);
	for (uint32_t i = 0; i < g->round.sender_count; i++)
		for (uint32_t k = 0; k < g->count; k++) { /* in the order of seq */
			staged_push *s = &g->pushes[k];

			if (s->member == g->round.senders[i].id && s->step < g->round.closed && !s->applied)
				closes(w, s, keys, rows, &n);
		}
	if (n)
		assert_int_equal(tn_table_push(g->oracle->engine, keys, rows, n, &how, NULL), TERN_OK);
	free(keys);
	free(rows);
}

/* ---- a member ---- */

static void closing_begins(world *w, member *m)
{
	const tn_round *round = &w->group.round;

	assert_true(round->closed == m->step + 1 && round->sender_count <= SENDERS);
	m->state = CLOSING;
	m->senders = round->sender_count;
	for (uint32_t i = 0; i < round->sender_count; i++)
		m->sender[i] = round->senders[i].id;
	memset(&m->left, 0, sizeof(m->left));
	for (uint32_t k = 0; k < KEYS; k++)
		tn_ps_slots_add(&m->left, tn_table_slot(w->keys[k]));
	m->ask_at = 0;
}

/* As join() of group_server.c; the last closing first: all who knew it may have left. */
static void join(world *w, uint32_t c)
{
	member *m = &w->clients[c].member;
	tn_round *round = &w->group.round;
	char name[16];

	memset(m, 0, sizeof(*m));
	if (w->group.clocks.count == 0) {
		round->closed = w->group.clocks.frontier;
		round->gone_count = 0;
	}
	m->id = ++w->group.next_id;
	snprintf(name, sizeof(name), "m%u", c);
	assert_int_equal(tn_round_join(&w->group.round), TERN_OK);
	assert_int_equal(tn_clocks_join(&w->group.clocks, m->id, name, &m->step), TERN_OK);
	m->state = STEPPING;
	m->wanted = (uint32_t)below(w, 4);
	if (m->step == 0)
		return;
	m->step--;
	closing_begins(w, m);
}

/* It is not waited for any more; what it staged of a step that it has not ended is left out. */
static void leave(world *w, uint32_t c)
{
	member *m = &w->clients[c].member;

	for (uint32_t i = 0; i < w->group.count; i++)
		if (w->group.pushes[i].member == m->id && w->group.pushes[i].live)
			w->group.pushes[i].live = false;
	w->n.left_out += m->state == STEPPING && m->pushes > 0;
	tn_round_leave(&w->group.round, m->id);
	tn_clocks_leave(&w->group.clocks, m->id);
	m->state = APART;
	keeper(w);
}

static staged_push *push_new(steps_world *g)
{
	if (g->count == g->room) {
		g->room = g->room ? 2 * g->room : 256;
		g->pushes = realloc(g->pushes, g->room * sizeof(*g->pushes));
		assert_non_null(g->pushes);
	}
	memset(&g->pushes[g->count], 0, sizeof(g->pushes[0]));
	return &g->pushes[g->count++];
}

static bool room_for(const world *w, uint32_t key)
{
	return w->histories[SUMS][key].ids < IDS * (w->now + TICKS / 20) / (TICKS + TICKS / 20);
}

static void begin_push(world *w, member *m)
{
	staged_push *s = push_new(&w->group);
	uint32_t first = (uint32_t)below(w, KEYS);

	*s = (staged_push){.live = true,
			   .number = ++w->next_op,
			   .member = m->id,
			   .step = m->step,
			   .seq = m->next_seq++,
			   .table = chance(w, 2) ? SUMS : ORDERED,
			   .count = 1 + (uint32_t)below(w, OP_KEYS)};
	for (uint32_t i = 0; i < s->count; i++) {
		s->key[i] = (first + i * 7) % KEYS;
		if (s->table == SUMS && !room_for(w, s->key[i]))
			s->table = ORDERED;
	}
	for (uint32_t i = 0; s->table == SUMS && i < s->count; i++)
		s->id[i] = w->histories[SUMS][s->key[i]].ids++;
	m->pushes++;
	w->n.staged++;
}

static int owner_of(const world *w, uint32_t c, uint32_t slot)
{
	const snap *s = w->clients[c].snap;

	return s && s->owners.owner[slot] != TN_PS_NOBODY ? process_of(w, s->owners.owner[slot]) : -1;
}

static void send(world *w, uint32_t c, uint32_t to, const request *r)
{
	message *m = message_new(ASK, CLIENT + c, to, NULL, 0);

	m->request = malloc(sizeof(*r));
	assert_non_null(m->request);
	*m->request = *r;
	m->request->client = c;
	message_send(w, m);
}

static void ask_push(world *w, uint32_t c, staged_push *s)
{
	s->ask_at = w->now + ASK_AGAIN;
	for (uint32_t p = 0; p < PROCESSES; p++) {
		request r = as_request(s);

		r.stage = true;
		r.op = s->number;
		r.step = s->step;
		r.count = 0;
		for (uint32_t i = 0; i < s->count; i++)
			if (!s->done[i] && owner_of(w, c, tn_table_slot(w->keys[s->key[i]])) == (int)p) {
				r.key[r.count] = s->key[i];
				r.id[r.count++] = s->id[i];
			}
		if (r.count)
			send(w, c, p, &r);
	}
}

static void ask_closing(world *w, uint32_t c)
{
	member *m = &w->clients[c].member;
	request r = {.close = true, .member = m->id, .step = m->step, .senders = m->senders};
	bool asked[PROCESSES] = {false};

	m->ask_at = w->now + ASK_AGAIN;
	memcpy(r.sender, m->sender, sizeof(r.sender));
	for (uint32_t k = 0; k < KEYS; k++) {
		uint32_t slot = tn_table_slot(w->keys[k]);
		int p = tn_ps_slots_has(&m->left, slot) ? owner_of(w, c, slot) : -1;

		if (p < 0 || asked[p])
			continue;
		asked[p] = true;
		send(w, c, (uint32_t)p, &r);
	}
}

/* True: all that it has staged is acknowledged. */
static bool step_on(world *w, uint32_t c)
{
	member *m = &w->clients[c].member;
	uint32_t live = 0;

	for (uint32_t i = 0; i < w->group.count; i++) {
		staged_push *s = &w->group.pushes[i];

		if (s->member != m->id || !s->live)
			continue;
		live++;
		if (s->ask_at > w->now)
			continue;
		if (s->ask_at)
			client_asks_for_map(w, c);
		ask_push(w, c, s);
	}
	if (!w->calm && live < 2 && m->pushes < m->wanted && chance(w, 4)) {
		begin_push(w, m);
		live++;
	}
	return live == 0 && (w->calm || m->pushes >= m->wanted);
}

/* It has been told that the step is closed everywhere: who looks now sees all of it. */
static void closing_ends(world *w, member *m)
{
	for (uint32_t i = 0; i < w->group.count; i++) {
		const staged_push *s = &w->group.pushes[i];

		for (uint32_t k = 0; s->applied && s->table == SUMS && s->step == m->step && k < s->count;
		     k++) {
			entry *e = &w->histories[SUMS][s->key[k]].at[w->group.entry[s->key[k]][s->id[k]]];

			if (e->ret == NEVER)
				e->ret = ++w->stamp;
		}
	}
	m->step++;
	m->pushes = 0;
	m->wanted = (uint32_t)below(w, 4);
	m->state = STEPPING;
}

void member_step(world *w, uint32_t c)
{
	member *m = &w->clients[c].member;

	if (!w->calm && m->state != APART && chance(w, 600)) {
		leave(w, c);
		return;
	}
	if (m->state == APART) {
		if (!w->calm && chance(w, 100))
			join(w, c);
	} else if (m->state == STEPPING) {
		if (m->step > w->group.last || !step_on(w, c))
			return;
		assert_int_equal(tn_clocks_advance(&w->group.clocks, m->id, m->step + 1), TERN_OK);
		m->state = ENDED;
		keeper(w);
	} else if (m->state == ENDED) {
		if (w->group.round.closed > m->step)
			closing_begins(w, m);
	} else if (tn_ps_slots_none(&m->left)) {
		closing_ends(w, m);
	} else if (m->ask_at <= w->now) {
		if (m->ask_at)
			client_asks_for_map(w, c);
		ask_closing(w, c);
	}
}

static void push_answered(world *w, staged_push *s, const request *r)
{
	bool all = true;

	if (r->late)
		fails(w, "a push of step %llu is told that the step is closed", (unsigned long long)s->step);
	for (uint32_t i = 0; i < s->count; i++) {
		for (uint32_t k = 0; k < r->count; k++)
			s->done[i] |= r->key[k] == s->key[i];
		all &= s->done[i];
	}
	s->acknowledged = all;
	s->live = !all;
}

void member_answer(world *w, const request *r)
{
	member *m = &w->clients[r->client].member;

	if (r->end == TN_COMMIT_WRONG)
		client_asks_for_map(w, r->client);
	if (r->close && m->id == r->member && m->state == CLOSING && r->step == m->step) {
		if (r->end == TN_COMMIT_OK)
			tn_ps_slots_without(&m->left, &r->closed);
		w->n.closed_partly += r->end == TN_COMMIT_OK && !tn_ps_slots_none(&m->left);
		m->ask_at = TN_MIN(m->ask_at, w->now + 3 + below(w, 8));
		return;
	}
	for (uint32_t i = 0; r->stage && i < w->group.count; i++) {
		staged_push *s = &w->group.pushes[i];

		if (s->number != r->op || !s->live)
			continue;
		if (r->end == TN_COMMIT_OK)
			push_answered(w, s, r);
		else
			s->ask_at = TN_MIN(s->ask_at, w->now + 3 + below(w, 8));
	}
}

/* ---- the end ---- */

void group_calm(world *w)
{
	w->group.last = 0;
	for (uint32_t c = 0; c < CLIENTS; c++)
		if (w->clients[c].member.state != APART)
			w->group.last = TN_MAX(w->group.last, w->clients[c].member.step);
}

bool members_idle(const world *w)
{
	for (uint32_t c = 0; c < CLIENTS; c++) {
		const member *m = &w->clients[c].member;

		if (m->state != APART && m->step <= w->group.last)
			return false;
	}
	return true;
}

typedef struct bits {
	bool there;
	float value[DIM], state[DIM];
} bits;

static tern_status keep(const tn_record *record, void *arg)
{
	bits *b = arg;

	b->there = true;
	memcpy(b->value, record->value, sizeof(b->value));
	memcpy(b->state, record->state, sizeof(b->state));
	return TERN_OK;
}

static uint32_t pieces_in(const node *n, uint32_t slot)
{
	tn_ps_slots one = {{0}};
	const tn_piece *piece;
	uint64_t after = 0, life;
	uint32_t count = 0;

	tn_ps_slots_add(&one, slot);
	while ((piece = tn_steps_next(&n->steps, after, &one, &life))) {
		after = piece->number;
		count++;
	}
	return count;
}

static uint64_t closed_in(const node *n, uint64_t life, uint32_t slot)
{
	const tn_life *l = tn_steps_find(&n->steps, life);

	return l ? l->closed[slot] : 0;
}

void judge_steps(world *w)
{
	for (uint32_t k = 0; k < KEYS && !w->why; k++) {
		uint32_t slot = tn_table_slot(w->keys[k]);
		const tn_cl_slot *s = &w->coord.map.slot[slot];
		const node *a = w->nodes[process_of(w, s->primary)], *b = w->nodes[process_of(w, s->backup)];
		bits is, has_to_be;

		memset(&is, 0, sizeof(is));
		memset(&has_to_be, 0, sizeof(has_to_be));
		assert_int_equal(
			tn_table_read_records(w->group.oracle->engine, &w->keys[k], 1, keep, &has_to_be),
			TERN_OK);
		if (a->shares[ORDERED])
			assert_int_equal(
				tn_table_read_records(a->shares[ORDERED]->engine, &w->keys[k], 1, keep, &is),
				TERN_OK);
		if (memcmp(&is, &has_to_be, sizeof(is)) != 0)
			fails(w, "key %u (slot %u): its sum is %g, of %g, not %g, of %g", k, slot,
			      (double)is.value[0], (double)is.state[0], (double)has_to_be.value[0],
			      (double)has_to_be.state[0]);
		if (pieces_in(a, slot) != pieces_in(b, slot) ||
		    closed_in(a, w->group.life, slot) != closed_in(b, w->group.life, slot))
			fails(w, "slot %u: %u pieces, closed below %llu; its backup has %u, below %llu", slot,
			      pieces_in(a, slot), (unsigned long long)closed_in(a, w->group.life, slot),
			      pieces_in(b, slot), (unsigned long long)closed_in(b, w->group.life, slot));
	}
}

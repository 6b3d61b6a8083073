/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers: what replicas.c, replicas_copy.c, replicas_send.c and member.c do, one thing at a time, with the same machines.
 * See world.h. Threads: none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

uint64_t local_time(const world *w, uint32_t p)
{
	return (uint64_t)((double)w->now * w->rate[p]);
}

bool node_lease(const world *w, uint32_t p)
{
	return local_time(w, p) < w->nodes[p]->lease_until;
}

int process_of(const world *w, uint16_t server)
{
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (server != TN_CL_NONE && w->nodes[p] && w->nodes[p]->self == server)
			return (int)p;
	return -1;
}

/* ---- tables ---- */

static struct ps_share *store_get(void *arg, uint64_t id)
{
	node *n = arg;

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
	if (t == SUMS)
		tern_optimizer_init(&s.optimizer, TERN_OPT_SGD, 1.0f);
	if (t == 1 || t == ORDERED)
		tern_optimizer_init(&s.optimizer, TERN_OPT_ADAGRAD, 0.5f);
	return s;
}

static tern_status store_create(void *arg, const tern_table_schema *schema)
{
	node *n = arg;
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
	node *n = arg;

	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t])
			fn(n->shares[t], fn_arg);
}

/* ---- life ---- */

void node_start(world *w, uint32_t p)
{
	node *n = calloc(1, sizeof(*n));

	assert_non_null(n);
	w->nodes[p] = n;
	n->incarnation = tn_rand_next(&w->rand) | 1;
	n->self = n->copying_to = TN_CL_NONE;
	tn_repl_init(&n->r);
	tn_repl_in_init(&n->in);
	tn_steps_init(&n->steps);
	tn_commits_init(&n->steps_queue);
	for (unsigned t = 0; t < TABLES; t++) {
		tern_table_schema schema = schema_of(t);

		tn_commits_init(&n->queue[t]);
		if (w->coord.map.slot[0].primary == TN_CL_NONE) /* others hear of tables from primaries */
			assert_int_equal(tn_ps_share_new(NULL, &schema, &n->shares[t]), TERN_OK);
	}
	trace(w, "process %u starts", p);
}

void node_end(world *w, uint32_t p)
{
	node *n = w->nodes[p];

	if (!n)
		return;
	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t])
			tn_ps_share_put(n->shares[t]);
	for (unsigned s = 0; s < TN_CL_SERVERS_MAX; s++)
		if (n->r.out[s])
			n->r.out[s]->open_waits.count = n->r.out[s]->sent_waits.count = 0;
	tn_repl_fini(&n->r);
	tn_repl_in_fini(&n->in);
	tn_steps_fini(&n->steps);
	while (n->waits) {
		pending *next = n->waits->next;

		free(n->waits);
		n->waits = next;
	}
	snap_drop(n->snap);
	free(n);
	w->nodes[p] = NULL;
}

/* ---- answers ---- */

void node_reply(world *w, uint32_t p, const request *r, tn_commit_end end)
{
	message *m;

	if (r->client == NOBODY)
		return;
	m = message_new(ASK_ANS, p, CLIENT + r->client, NULL, 0);
	if (r->client == CLIENTS) { /* a probe */
		request at_once = *r;

		message_free(m);
		at_once.end = end;
		client_answer(w, &at_once);
		return;
	}
	m->request = malloc(sizeof(*r));
	assert_non_null(m->request);
	*m->request = *r;
	m->request->end = end;
	w->n.again += end == TN_COMMIT_AGAIN;
	w->n.wrong += end == TN_COMMIT_WRONG;
	message_send(w, m);
}

static void over(world *w, uint32_t p, tn_list *list)
{
	node *n = w->nodes[p];
	tn_list *at;

	while ((at = tn_list_pop_front(list))) {
		pending *c = TN_CONTAINER_OF(at, pending, commit.node), **link = &n->waits;

		node_reply(w, p, &c->r, tn_commit_judge(&c->commit, &n->r, node_lease(w, p)));
		while (*link != c)
			link = &(*link)->next;
		*link = c->next;
		free(c);
	}
}

static void waits_over(world *w, uint32_t p, tn_repl_waits *waits, const tn_ps_slots *refused)
{
	tn_list list;

	tn_list_init(&list);
	for (uint32_t i = 0; i < waits->count; i++) {
		tn_commit *c = waits->who[i];

		for (unsigned k = 0; refused && k < 64; k++)
			if (c->slots.bits[k] & refused->bits[k])
				c->refused = true;
		tn_commit_release(c, &list);
	}
	waits->count = 0;
	over(w, p, &list);
}

/* ---- requests ---- */

pending *pending_new(node *n, const request *r, const tn_ps_slots *slots)
{
	pending *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->r = *r;
	c->commit.slots = *slots;
	c->next = n->waits;
	n->waits = c;
	return c;
}

/* Its own turn is over. */
void pending_end(world *w, uint32_t p, pending *c)
{
	tn_list list;

	tn_list_init(&list);
	tn_commit_release(&c->commit, &list);
	over(w, p, &list);
}

void into_streams(node *n, pending *c, tn_repl_entry *e, const uint64_t *keys, uint64_t count)
{
	uint64_t sorted[2 * KEYS];
	uint32_t first[TN_CL_SERVERS_MAX + 1];
	ps_share *share = n->shares[c->r.table];

	e->table = share->id;
	e->schema = share->hash;
	e->item_bytes = tn_repl_record_bytes(share->engine);
	tn_repl_sort(&n->r, keys, count, sorted, first);
	for (unsigned s = 0; s < TN_CL_SERVERS_MAX; s++) {
		if (first[s] == first[s + 1])
			continue;
		assert_true(tn_repl_out_reserve_wait(n->r.out[s]));
		assert_true(tn_repl_append(&n->r, (uint16_t)s, share, e, sorted + first[s],
					   first[s + 1] - first[s]));
		tn_commit_hold(&c->commit);
		tn_repl_out_wait(n->r.out[s], &c->commit);
	}
}

static void fill_row(const request *r, uint32_t i, float row[DIM])
{
	if (r->table == COMES)
		row[0] = (float)r->id[i];
	else
		row[r->id[i] / 12] = (float)(1u << 2 * (r->id[i] % 12));
}

/* As push.c. */
static void erase(world *w, node *n, pending *c)
{
	const request *r = &c->r;
	tn_repl_entry e = {.kind = TN_REPL_ROWS};
	uint64_t key = w->keys[r->key[0]];

	tn_commit_begin(&n->queue[r->table], &c->commit, false);
	assert_int_equal(tn_table_erase(n->shares[r->table]->engine, &key, 1, NULL), TERN_OK);
	into_streams(n, c, &e, &key, 1);
	w->n.erases++;
}

/* As push.c: judged, done, put into the streams, waited for. */
static void push(world *w, node *n, pending *c)
{
	const request *r = &c->r;
	ps_share *share = n->shares[r->table];
	tn_repl_entry e = {.kind = TN_REPL_PUSH, .client = r->client + 1, .seq = r->seq, .low = r->low};
	tn_push how = {.mode = TERN_PUSH_ADD};
	float rows[OP_KEYS][DIM] = {{0}};
	uint64_t keys[OP_KEYS], count = 0;
	tn_ps_slots fresh;
	tern_status status;
	tn_ps_verdict verdict = tn_ps_dedup_begin(share->dedup, r->client + 1, r->seq, r->low,
						  &c->commit.slots, &fresh, &status);

	assert_true(verdict == TN_PS_FRESH || verdict == TN_PS_KNOWN);
	tn_commit_begin(&n->queue[r->table], &c->commit, verdict == TN_PS_KNOWN);
	if (verdict == TN_PS_KNOWN) {
		w->n.known++;
		return;
	}
	if (!tn_ps_slots_within(&c->commit.slots, &fresh)) {
		w->n.known_partly++;
		tn_commit_reads(&c->commit);
	}
	for (uint32_t i = 0; i < r->count; i++)
		if (tn_ps_slots_has(&fresh, tn_table_slot(w->keys[r->key[i]]))) {
			fill_row(r, i, rows[count]);
			keys[count++] = w->keys[r->key[i]];
		}
	assert_int_equal(tn_table_push(share->engine, keys, rows, count, &how, NULL), TERN_OK);
	tn_ps_dedup_end(share->dedup, r->client + 1, r->seq, &fresh, true, TERN_OK);
	into_streams(n, c, &e, keys, count);
}

/* As tn_ps_replicas_read: told at once if nobody wrote. False: so it was, or it must not be told. */
static bool read_rows(world *w, uint32_t p, pending *c)
{
	request *r = &c->r;
	node *n = w->nodes[p];
	tn_pull how = {.unknown = TERN_UNKNOWN_DEFAULT};
	tn_pull_result result;
	uint64_t keys[OP_KEYS];

	for (uint32_t i = 0; i < r->count; i++)
		keys[i] = w->keys[r->key[i]];
	assert_int_equal(tn_table_pull(n->shares[r->table]->engine, keys, r->count, &how, r->rows, NULL, NULL,
				       &result),
			 TERN_OK);
	if (!tn_repl_serves(&n->r, &c->commit.slots, node_lease(w, p)))
		node_reply(w, p, r, TN_COMMIT_AGAIN);
	else if (atomic_load(&n->queue[r->table].count) == 0)
		node_reply(w, p, r, TN_COMMIT_OK);
	else
		return true;
	return false;
}

/* As tn_ps_replicas_pull: rows that come into being are a write of nobody's, and it reads behind that. */
static void pull(world *w, uint32_t p, pending *c)
{
	node *n = w->nodes[p];
	request *r = &c->r, nobody = {.client = NOBODY, .table = r->table};
	tn_table *t = n->shares[r->table]->engine;
	tn_pull how = {.unknown = TERN_UNKNOWN_CREATE};
	tn_repl_entry e = {.kind = TN_REPL_ROWS};
	tn_pull_result result;
	uint64_t keys[OP_KEYS];

	for (uint32_t i = 0; i < r->count; i++)
		keys[i] = w->keys[r->key[i]];
	assert_int_equal(tn_table_pull(t, keys, r->count, &how, r->rows, NULL, NULL, &result), TERN_OK);
	if (result.created) {
		pending *made = pending_new(n, &nobody, &c->commit.slots);

		w->n.made_partly += result.found > 0;
		tn_commit_begin(&n->queue[r->table], &made->commit, false);
		into_streams(n, made, &e, keys, r->count);
		pending_end(w, p, made);
	}
	tn_commit_begin(&n->queue[r->table], &c->commit, true);
}

void node_request(world *w, uint32_t p, const request *r)
{
	node *n = w->nodes[p];
	pending *c;

	if (r->close) {
		node_close(w, p, r);
		return;
	}
	c = calloc(1, sizeof(*c));
	assert_non_null(c);
	c->r = *r;
	for (uint32_t i = 0; i < r->count; i++)
		tn_ps_slots_add(&c->commit.slots, tn_table_slot(w->keys[r->key[i]]));
	if (!n->shares[r->table] || !tn_ps_slots_within(&c->commit.slots, &n->r.mine)) {
		node_reply(w, p, r, TN_COMMIT_WRONG);
		free(c);
		return;
	}
	if (r->pull && !r->create && !read_rows(w, p, c)) {
		free(c);
		return;
	}
	if (!(r->pull && !r->create) && !tn_repl_serves(&n->r, &c->commit.slots, node_lease(w, p))) {
		node_reply(w, p, r, TN_COMMIT_AGAIN);
		free(c);
		return;
	}
	c->next = n->waits;
	n->waits = c;
	if (r->pull && !r->create)
		tn_commit_begin(&n->queue[r->table], &c->commit, true);
	else if (r->pull)
		pull(w, p, c);
	else if (r->stage)
		node_stage(w, p, c);
	else if (r->erase)
		erase(w, n, c);
	else
		push(w, n, c);
	pending_end(w, p, c);
}

/* ---- reports ---- */

static void report(node *n, tn_coord_report what, const tn_repl_told *told)
{
	for (uint32_t i = 0; i < told->count; i++) {
		if (n->what[told->slot[i]] && n->epoch[told->slot[i]] > told->epoch[i])
			continue; /* as cluster.c */
		n->what[told->slot[i]] = (uint8_t)what;
		n->epoch[told->slot[i]] = told->epoch[i];
		n->dirty = true;
	}
}

static void reports_answered(node *n)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (n->what[i] && tn_coord_answered(&n->snap->map.slot[i], n->what[i], n->epoch[i]))
			n->what[i] = 0;
}

static void renew(world *w, uint32_t p)
{
	static uint8_t out[TN_CL_MSG_MAX];
	static tn_coord_fact facts[TN_CL_SLOTS];
	node *n = w->nodes[p];
	tn_cl_msg msg = {.op = n->self == TN_CL_NONE ? TN_CL_JOIN : TN_CL_RENEW,
			 .server = n->self,
			 .maps = w->maps[p],
			 .incarnation = n->incarnation,
			 .seen = n->seen,
			 .version = n->snap ? n->snap->map.version : 0};
	message *m;

	snprintf(msg.address, sizeof(msg.address), "s:%u", p);
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		if (n->what[i])
			facts[msg.fact_count++] = (tn_coord_fact){
				.slot = (uint16_t)i, .what = n->what[i], .epoch = n->epoch[i]};
	m = message_new(TO_COORD, p, COORD, out, tn_cl_msg_encode(out, sizeof(out), &msg, facts, NULL));
	m->back = n->incarnation;
	m->sent = local_time(w, p) | 1;
	message_send(w, m);
	n->dirty = false;
	n->renew_at = local_time(w, p) + LEASE / 4;
}

void node_coord(world *w, uint32_t p, const message *m)
{
	node *n = w->nodes[p];

	n->seen = TN_MAX(n->seen, m->now);
	if (m->status == TERN_E_NOT_FOUND) { /* taken for dead, and replaced: it begins anew, as another */
		if (n->self != TN_CL_NONE && m->number == n->self) {
			node_end(w, p);
			w->start_at[p] = w->now + 1;
		}
		return;
	}
	if (m->sent && m->number != TN_CL_NONE) {
		n->self = m->number;
		n->lease_until = TN_MAX(n->lease_until, m->sent + LEASE);
	}
	if (m->snap && n->self != TN_CL_NONE)
		node_map(w, p, m->snap);
}

/* ---- maps ---- */

static void streams_renew(world *w, uint32_t p)
{
	node *n = w->nodes[p];

	for (uint32_t s = 0; s < TN_CL_SERVERS_MAX; s++) {
		tn_repl_out *out = n->r.out[s];

		if (!out || n->r.begun[s] > 0)
			continue;
		waits_over(w, p, &out->sent_waits, NULL); /* the map says that it goes on without */
		waits_over(w, p, &out->open_waits, NULL);
		n->failing[s] = 0;
		assert_true(tn_repl_out_begin(out, n->self, tn_rand_next(&w->rand) | 1));
	}
}

/* Others have nothing: to look for it takes most of a run. */
static void only_with_keys(const world *w, tn_ps_slots *slots)
{
	tn_ps_slots some = {{0}};

	for (uint32_t k = 0; k < KEYS; k++)
		if (tn_ps_slots_has(slots, tn_table_slot(w->keys[k])))
			tn_ps_slots_add(&some, tn_table_slot(w->keys[k]));
	*slots = some;
}

void node_map(world *w, uint32_t p, snap *s)
{
	node *n = w->nodes[p];
	tn_ps_slots gone, fresh;

	if (n->snap && n->snap->map.version >= s->map.version)
		return;
	snap_drop(n->snap);
	n->snap = snap_hold(s);
	reports_answered(n);
	tn_repl_map(&n->r, &s->map, n->self, &gone, &fresh);
	only_with_keys(w, &gone);
	only_with_keys(w, &fresh);
	for (unsigned t = 0; t < TABLES; t++)
		if (n->shares[t]) {
			tn_ps_share_drop_slots(n->shares[t], &fresh);
			tn_ps_share_drop_slots(n->shares[t], &gone);
		}
	tn_steps_drop_slots(&n->steps, &fresh);
	tn_steps_drop_slots(&n->steps, &gone);
	streams_renew(w, p);
}

/* ---- the copier ---- */

static void copy(world *w, uint32_t p)
{
	node *n = w->nodes[p];
	tn_ps_slots move;

	if (n->copying_to == TN_CL_NONE) {
		if (!tn_repl_next(&n->r, 256 + (uint32_t)below(w, 2000), &n->copying, &n->copying_to)) {
			n->copying_to = TN_CL_NONE;
			return;
		}
		assert_non_null(tn_repl_stream(&n->r, n->copying_to, tn_rand_next(&w->rand) | 1));
		assert_true(tn_repl_begin(&n->r, n->copying_to, &n->copying, n->shares,
					  n->shares[0] ? TABLES : 0, &n->steps));
		n->copy_at = 0;
		n->copy_cursor = 0;
		return;
	}
	for (unsigned steps = 0; steps < 3 && n->copy_at < KEYS; n->copy_at++) { /* other slots are empty */
		uint32_t slot = tn_table_slot(w->keys[n->copy_at]);

		if (!tn_ps_slots_has(&n->copying, slot))
			continue;
		for (unsigned t = 0; t < TABLES && n->shares[t]; t++)
			for (uint64_t cursor = 0; cursor != TN_SCAN_END;)
				assert_int_equal(
					tn_repl_copy(&n->r, n->copying_to, n->shares[t], slot, &cursor, 1),
					TERN_OK);
		steps++;
	}
	if (n->copy_at < KEYS)
		return;
	if (n->copy_cursor != TN_SCAN_END) {
		assert_true(
			tn_repl_copy_steps(&n->r, n->copying_to, &n->steps, &n->copying, &n->copy_cursor));
		w->n.steps_copied += n->copy_cursor != TN_SCAN_END;
		return;
	}
	tn_repl_to_hand(&n->r, n->copying_to, &n->copying, &move);
	tn_repl_freeze(&n->r, &move);
	assert_true(tn_repl_finish(&n->r, n->copying_to, &n->copying, &move));
	n->copying_to = TN_CL_NONE;
}

static void hand_over(node *n)
{
	tn_ps_slots slots;
	uint16_t peer;

	if (!tn_repl_next_move(&n->r, &slots, &peer))
		return;
	tn_repl_freeze(&n->r, &slots);
	assert_true(tn_repl_finish(&n->r, peer, &slots, &slots));
}

/* ---- frames ---- */

static void send_frame(world *w, uint32_t p, uint16_t peer, const void *bytes, uint64_t count)
{
	node *n = w->nodes[p];
	int to = process_of(w, peer);
	message *m;

	n->sent_at[peer] = w->now;
	if (to < 0)
		return;
	m = message_new(FRAME, p, (uint32_t)to, bytes, count);
	m->back = n->incarnation;
	m->stream = n->r.out[peer]->stream;
	m->seq = n->r.out[peer]->seq;
	message_send(w, m);
}

static void tell_lost(world *w, node *n, uint16_t peer)
{
	tn_repl_told *told = calloc(1, sizeof(*told));

	assert_non_null(told);
	tn_repl_of_peer(&n->r, peer, told);
	report(n, TN_REPORT_LOST, told);
	w->n.backup_lost += told->count > 0;
	free(told);
}

void send_frames(world *w, uint32_t p)
{
	node *n = w->nodes[p];

	for (uint16_t s = 0; s < n->snap->map.servers; s++) {
		tn_repl_out *out = n->r.out[s];
		const uint8_t *frame;
		uint64_t bytes;

		if (!out)
			continue;
		if (tn_repl_out_take(out, n->r.version, &frame, &bytes)) {
			n->failing[s] = w->now;
			send_frame(w, p, s, frame, bytes);
		} else if (out->flying && w->now - n->sent_at[s] >= RESEND) {
			send_frame(w, p, s, out->sent.at, out->sent.used);
		}
		if (out->flying && n->failing[s] && w->now - n->failing[s] >= PATIENCE) {
			n->failing[s] = w->now;
			tell_lost(w, n, s);
		}
	}
}

void node_frame(world *w, uint32_t p, const message *m)
{
	node *n = w->nodes[p];
	tn_repl_store store = {store_get, store_dropped, store_create, store_drop, store_each, &n->steps, n};
	uint8_t out[TN_REPL_ANSWER_MAX];
	tn_repl_answer answer;
	message *back;

	if (!n->snap || n->self == TN_CL_NONE)
		return;
	assert_true(tn_repl_in_apply(&n->in, &store, &n->snap->map, n->self, m->data, m->bytes, &answer));
	assert_true(answer.verdict != TN_REPL_FAILED);
	back = message_new(FRAME_ANS, p, m->from, out, tn_repl_answer_encode(out, &answer));
	back->incarnation = m->back;
	back->number = n->self;
	back->stream = m->stream;
	back->seq = m->seq;
	message_send(w, back);
}

void node_answer(world *w, uint32_t p, const message *m)
{
	static tn_repl_told synced, released;
	node *n = w->nodes[p];
	tn_repl_out *out = n->r.out[m->number];
	tn_repl_waits waits;
	tn_repl_answer a;

	assert_true(tn_repl_answer_decode(m->data, m->bytes, &a));
	if (!out || !out->flying || out->stream != m->stream || out->seq != m->seq)
		return;
	if (a.verdict == TN_REPL_LATER) {
		n->failing[m->number] = w->now;
		return;
	}
	if (a.verdict == TN_REPL_LOST) {
		tell_lost(w, n, m->number);
		return;
	}
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++)
		w->n.next_refused +=
			tn_ps_slots_has(&a.refused, i) && n->r.slot[i].copy[TN_REPL_NEXT].peer == m->number;
	waits = out->sent_waits;
	tn_repl_answered(&n->r, m->number, &a.refused, &synced, &released);
	for (unsigned k = 0; k < 64; k++)
		w->n.refused += a.refused.bits[k] != 0;
	out->sent_waits.count = 0;
	tn_repl_out_answered(out);
	report(n, TN_REPORT_SYNCED, &synced);
	report(n, TN_REPORT_RELEASED, &released);
	waits_over(w, p, &waits, &a.refused);
}

/* A slot that is not served says why. */
static void check_frozen(world *w, uint32_t p)
{
	const node *n = w->nodes[p];

	for (uint32_t k = 0; k < KEYS; k++) {
		uint32_t s = tn_table_slot(w->keys[k]);
		const tn_repl_one *copy = n->r.slot[s].copy;

		if (!tn_repl_frozen(&n->r, s) || copy[0].refused || copy[1].refused || copy[0].handed ||
		    (copy[0].adopt && copy[0].state == TN_RS_WAITING))
			continue;
		fails(w, "slot %u is not served by process %u, for no reason", s, p);
	}
}

void node_step(world *w, uint32_t p)
{
	node *n = w->nodes[p];

	if (n->stalled_until > w->now)
		return;
	if (local_time(w, p) >= n->renew_at || (n->dirty && chance(w, 4)))
		renew(w, p);
	if (!n->snap || n->self == TN_CL_NONE)
		return;
	if (chance(w, 3))
		copy(w, p);
	if (chance(w, 5))
		hand_over(n);
	node_close_some(w, p);
	send_frames(w, p);
	check_frozen(w, p);
}

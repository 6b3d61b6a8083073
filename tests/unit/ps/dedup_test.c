/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes that were applied: a property test of random pushes, repeats in other pieces, losses, moves of slots between
 * two servers and low-water marks against the plain rule: each (slot, client, seq) is applied once.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/rand.h"
#include "cmocka_all.h"
#include "ps/dedup.h"
#include "ps/wire.h"

static const tn_ps_slots none;

static tn_ps_slots some(unsigned first, unsigned n)
{
	tn_ps_slots s = none;

	for (unsigned i = first; i < first + n; i++)
		tn_ps_slots_add(&s, i);
	return s;
}

static tn_ps_verdict begin(tn_ps_dedup *d, uint64_t seq, uint64_t low, tn_ps_slots want, tn_ps_slots *fresh)
{
	tern_status status;

	return tn_ps_dedup_begin(d, 1, seq, low, &want, fresh, &status);
}

static void once(void **state)
{
	tn_ps_dedup *d = tn_ps_dedup_new();
	tn_ps_slots fresh, all = some(0, 4096);
	tern_status status;

	(void)state;
	assert_int_equal(begin(d, 5, 5, all, &fresh), TN_PS_FRESH);
	assert_memory_equal(&fresh, &all, sizeof(all));
	assert_int_equal(begin(d, 5, 5, all, &fresh), TN_PS_AT_WORK);
	tn_ps_dedup_end(d, 1, 5, &all, false, TERN_E_CORRUPT); /* it was not applied */
	assert_int_equal(begin(d, 5, 5, all, &fresh), TN_PS_FRESH);
	tn_ps_dedup_end(d, 1, 5, &all, true, TERN_E_BUDGET);
	assert_int_equal(tn_ps_dedup_begin(d, 1, 5, 5, &all, &fresh, &status), TN_PS_KNOWN);
	assert_int_equal(status, TERN_E_BUDGET); /* how it ended */
	assert_int_equal(tn_ps_dedup_begin(d, 2, 5, 5, &all, &fresh, &status),
			 TN_PS_FRESH); /* another client */
	tn_ps_dedup_check(d);
	tn_ps_dedup_end(d, 2, 5, &all, true, TERN_OK);
	assert_int_equal(begin(d, 6, 6, all, &fresh), TN_PS_FRESH);
	tn_ps_dedup_end(d, 1, 6, &all, true, TERN_OK);
	assert_int_equal(tn_ps_dedup_entries(d), 2); /* 5 of client 1 is over */
	assert_int_equal(begin(d, 5, 5, all, &fresh), TN_PS_KNOWN);
	assert_int_equal(begin(d, 6 + TN_PS_WINDOW, 6, all, &fresh), TN_PS_BEYOND);
	tn_ps_dedup_forget(d, 1);
	assert_int_equal(tn_ps_dedup_clients(d), 1);
	tn_ps_dedup_check(d);
	tn_ps_dedup_free(d);
}

/* The same push in other pieces: only what is new. */
static void pieces(void **state)
{
	tn_ps_dedup *d = tn_ps_dedup_new();
	tn_ps_slots fresh, want = some(100, 10), expected = some(105, 10);

	(void)state;
	assert_int_equal(begin(d, 1, 0, some(95, 10), &fresh), TN_PS_FRESH);
	tn_ps_dedup_end(d, 1, 1, &fresh, true, TERN_OK);
	assert_int_equal(begin(d, 1, 0, some(100, 15), &fresh), TN_PS_FRESH);
	assert_memory_equal(&fresh, &expected, sizeof(fresh));
	tn_ps_dedup_end(d, 1, 1, &fresh, true, TERN_OK);
	assert_int_equal(begin(d, 1, 0, want, &fresh), TN_PS_KNOWN);
	tn_ps_dedup_drop(d, 103); /* it moved away and came back without the fact */
	assert_int_equal(begin(d, 1, 0, want, &fresh), TN_PS_FRESH);
	assert_true(tn_ps_slots_has(&fresh, 103));
	assert_false(tn_ps_slots_has(&fresh, 104));
	tn_ps_dedup_end(d, 1, 1, &fresh, false, TERN_OK);
	tn_ps_dedup_free(d);
}

/* A copy that is at work when the client's mark passes it ends without a trace. */
static void overtaken(void **state)
{
	tn_ps_dedup *d = tn_ps_dedup_new();
	tn_ps_slots fresh, all = some(0, 64);

	(void)state;
	assert_int_equal(begin(d, 1, 1, all, &fresh), TN_PS_FRESH);
	assert_int_equal(begin(d, 7, 7, all, &fresh), TN_PS_FRESH);
	tn_ps_dedup_check(d);
	tn_ps_dedup_forget(d, 1); /* at work: stays */
	assert_int_equal(tn_ps_dedup_clients(d), 1);
	tn_ps_dedup_end(d, 1, 1, &all, true, TERN_OK);
	assert_int_equal(tn_ps_dedup_entries(d), 1);
	assert_int_equal(begin(d, 1, 1, all, &fresh), TN_PS_KNOWN);
	tn_ps_dedup_end(d, 1, 7, &all, true, TERN_OK);
	tn_ps_dedup_check(d);
	tn_ps_dedup_free(d);
}

static void many_clients(void **state)
{
	tn_ps_dedup *d = tn_ps_dedup_new();
	tn_ps_slots fresh, one = some(3, 1);
	tern_status status;

	(void)state;
	for (uint64_t i = 0; i < TN_PS_CLIENTS_MAX + 100; i++) {
		assert_int_equal(tn_ps_dedup_begin(d, i * 977, 1, 1, &one, &fresh, &status), TN_PS_FRESH);
		tn_ps_dedup_end(d, i * 977, 1, &fresh, true, TERN_OK);
	}
	assert_int_equal(tn_ps_dedup_clients(d), TN_PS_CLIENTS_MAX);
	tn_ps_dedup_check(d);
	tn_ps_dedup_free(d);
}

static void no_memory(void **state)
{
	tn_ps_slots fresh, one = some(3, 1);
	tern_status status;

	(void)state;
	for (uint64_t nth = 1; nth <= 4; nth++) {
		tn_ps_dedup *d = tn_ps_dedup_new();

		tn_fault_set("ps.dedup.alloc", nth, 1);
		if (tn_ps_dedup_begin(d, 9, 1, 1, &one, &fresh, &status) == TN_PS_NO_MEMORY)
			assert_int_equal(tn_ps_dedup_begin(d, 9, 1, 1, &one, &fresh, &status), TN_PS_FRESH);
		tn_fault_clear();
		tn_ps_dedup_check(d);
		tn_ps_dedup_end(d, 9, 1, &fresh, true, TERN_OK);
		tn_ps_dedup_free(d);
	}
}

/* ---- the property ---- */

#define CLIENTS 3
#define SEQS    4000
#define SLOTS   48 /* of the 4096, spread */
#define PUSHES  16 /* in flight per client */

static unsigned slot_number(unsigned i)
{
	return i * 85;
}

typedef struct world {
	tn_ps_dedup *server[2];
	unsigned owner[SLOTS];
	uint8_t applied[CLIENTS][SEQS][SLOTS];
	uint64_t low[CLIENTS], next[CLIENTS];
	bool over[CLIENTS][SEQS];
	tn_rand rand;
} world;

typedef struct moving {
	world *w;
	unsigned slot, to;
} moving;

static void move_fact(uint64_t client, uint64_t low, uint64_t seq, tern_status status, void *arg)
{
	moving *m = arg;

	assert_int_equal(tn_ps_dedup_import(m->w->server[m->to], m->slot, client, low, seq, status), TERN_OK);
}

static void move_slot(world *w)
{
	unsigned i = (unsigned)tn_rand_below(&w->rand, SLOTS), from = w->owner[i];
	moving m = {w, slot_number(i), !from};

	tn_ps_dedup_export(w->server[from], m.slot, move_fact, &m);
	tn_ps_dedup_drop(w->server[from], m.slot);
	w->owner[i] = !from;
}

/* One message of a push to one server: all slots of it that the server has now, or some of them. */
static void deliver(world *w, unsigned client, uint64_t seq, unsigned server, bool some_only)
{
	uint64_t low = tn_rand_below(&w->rand, 3) ? w->low[client] : 0; /* an old message says an old mark */
	tn_ps_slots want = none, fresh = none;
	tern_status status;
	tn_ps_verdict v;
	bool works = tn_rand_below(&w->rand, 8) != 0;

	for (unsigned i = 0; i < SLOTS; i++)
		if (w->owner[i] == server && (seq + i) % 3 && !(some_only && tn_rand_below(&w->rand, 2)))
			tn_ps_slots_add(&want, slot_number(i));
	v = tn_ps_dedup_begin(w->server[server], client, seq, low, &want, &fresh, &status);
	assert_true(v == TN_PS_FRESH || v == TN_PS_KNOWN);
	for (unsigned i = 0; i < SLOTS; i++) {
		bool has = tn_ps_slots_has(&want, slot_number(i));
		bool done = w->applied[client][seq][i] != 0;

		if (!has || w->over[client][seq])
			continue;
		if (v == TN_PS_FRESH)
			assert_int_equal(tn_ps_slots_has(&fresh, slot_number(i)), !done);
		else
			assert_true(done);
	}
	if (v != TN_PS_FRESH)
		return;
	for (unsigned i = 0; works && i < SLOTS; i++)
		if (tn_ps_slots_has(&fresh, slot_number(i))) {
			assert_false(w->over[client]
					    [seq]); /* nothing of a push that is over is applied any more */
			w->applied[client][seq][i]++;
		}
	tn_ps_dedup_end(w->server[server], client, seq, &fresh, works, TERN_OK);
}

/* Until it is applied everywhere, then it is over. */
static void finish(world *w, unsigned client, uint64_t seq)
{
	for (unsigned i = 0; i < SLOTS; i++)
		while ((seq + i) % 3 && !w->applied[client][seq][i])
			deliver(w, client, seq, w->owner[i], false);
	w->over[client][seq] = true;
	while (w->low[client] < w->next[client] && w->over[client][w->low[client]])
		w->low[client]++;
}

static void property(void **state)
{
	static world w;

	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++) {
		memset(&w, 0, sizeof(w));
		w.rand.state = seed;
		w.server[0] = tn_ps_dedup_new();
		w.server[1] = tn_ps_dedup_new();
		for (unsigned i = 0; i < SLOTS; i++)
			w.owner[i] = i % 2;
		for (unsigned step = 0; step < 12000; step++) {
			unsigned c = (unsigned)tn_rand_below(&w.rand, CLIENTS);
			uint64_t what = tn_rand_below(&w.rand, 16), back = tn_rand_below(&w.rand, PUSHES);
			uint64_t seq = w.next[c] > back ? w.next[c] - 1 - back : 0;

			if (what == 0)
				move_slot(&w);
			else if (what < 5 && w.next[c] < SEQS && w.next[c] - w.low[c] < PUSHES)
				w.next[c]++;
			else if (what < 12 && seq < w.next[c])
				deliver(&w, c, seq, what % 2, what % 3 == 0);
			else if (seq < w.next[c] && !w.over[c][seq])
				finish(&w, c, seq);
			if (step % 500 == 0) {
				tn_ps_dedup_check(w.server[0]);
				tn_ps_dedup_check(w.server[1]);
			}
		}
		for (unsigned c = 0; c < CLIENTS; c++)
			for (uint64_t s = 0; s < w.next[c]; s++) {
				if (!w.over[c][s])
					finish(&w, c, s);
				for (unsigned i = 0; i < SLOTS; i++)
					assert_int_equal(w.applied[c][s][i], (s + i) % 3 != 0);
			}
		tn_ps_dedup_free(w.server[0]);
		tn_ps_dedup_free(w.server[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(once),         cmocka_unit_test(pieces),    cmocka_unit_test(overtaken),
		cmocka_unit_test(many_clients), cmocka_unit_test(no_memory), cmocka_unit_test(property),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

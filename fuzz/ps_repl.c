/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames to a backup over arbitrary bytes, applied to real tables under a map in which server 0 is the primary of every
 * slot and this one, 1, the backup. Whatever a frame says, nothing outside of it is read, it is answered or refused, and
 * the tables keep their invariants; one that comes again gets the same answer.
 *
 * Seeds: fuzz/corpus/ps_repl. Unit tests: tests/unit/ps/repl_wire_test.c, repl_sim_test.c.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ps/repl_in.h"
#include "ps/server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct tables {
	ps_share *share[4];
} tables;

static struct ps_share *get(void *arg, uint64_t id)
{
	tables *t = arg;

	for (unsigned i = 0; i < 4; i++)
		if (t->share[i] && t->share[i]->id == id) {
			atomic_fetch_add(&t->share[i]->refs, 1);
			return t->share[i];
		}
	return NULL;
}

static bool dropped(void *arg, uint64_t id)
{
	(void)arg;
	return id % 2 == 0;
}

static tern_status create(void *arg, const tern_table_schema *schema)
{
	tables *t = arg;

	if (schema->flags & TERN_TABLE_ONE_SIDED) /* the server exports its memory: there is none here */
		return TERN_E_UNSUPPORTED;
	if (schema->kind == TERN_TABLE_DENSE && schema->rows > 1024)
		return TERN_E_LIMIT; /* it allocates them all */
	for (unsigned i = 0; i < 4; i++)
		if (!t->share[i])
			return tn_ps_share_new(NULL, schema, &t->share[i]);
	return TERN_E_LIMIT;
}

static void drop(void *arg, uint64_t id)
{
	tables *t = arg;

	for (unsigned i = 0; i < 4; i++)
		if (t->share[i] && t->share[i]->id == id) {
			tn_ps_share_put(t->share[i]);
			t->share[i] = NULL;
		}
}

static void each(void *arg, void (*fn)(struct ps_share *share, void *fn_arg), void *fn_arg)
{
	tables *t = arg;

	for (unsigned i = 0; i < 4; i++)
		if (t->share[i])
			fn(t->share[i], fn_arg);
}

/* What was staged is summed, as when this server is promoted and its first life closes. */
static void close_first(tables *t, tn_steps *steps)
{
	tn_ps_close c = {.step = UINT64_MAX - 1};
	tn_ps_slots all;
	tn_steps_work w;

	if (steps->count == 0)
		return;
	memset(&all, 0xff, sizeof(all));
	c.life = steps->lives[0]->id;
	TN_LIST_FOREACH(node, &steps->lives[0]->pieces) {
		if (c.senders < TN_PS_SENDERS_MAX)
			c.sender[c.senders++] = TN_CONTAINER_OF(node, tn_piece, node)->member;
	}
	if (tn_steps_take(steps, &c, &all, 0, &w) != TERN_OK || tn_ps_slots_none(&w.slots))
		return;
	for (uint32_t at = 0, n; tn_steps_table(&w, &at, &n); at += n) {
		struct ps_share *share = get(t, w.items[at].piece->table);
		tern_status told = TERN_OK;
		uint64_t *keys = NULL, count;

		if (share && share->hash == w.items[at].piece->schema)
			(void)tn_steps_sum(share, &w, w.items + at, n, &keys, &count, &told);
		if (share)
			tn_ps_share_put(share);
		free(keys);
	}
	tn_steps_done(steps, &w, TERN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static tn_cl_map map;
	tables t = {{NULL}};
	tn_steps steps;
	const tn_repl_store store = {get, dropped, create, drop, each, &steps, &t};
	tn_repl_in *in = malloc(sizeof(*in));
	uint64_t *frame = malloc(size + 8);
	tern_table_schema schema = {.name = "t", .dim = 2};
	tn_repl_answer a, b;

	if (!in || !frame || tn_ps_share_new(NULL, &schema, &t.share[0]) != TERN_OK)
		abort();
	for (unsigned s = 0; s < TN_CL_SLOTS; s++)
		map.slot[s] = (tn_cl_slot){.primary = 0, .backup = 1, .next = TN_CL_NONE, .epoch = 1};
	map.version = 2;
	map.servers = 2;
	memcpy(frame, data, size);
	tn_repl_in_init(in);
	tn_steps_init(&steps);
	if (tn_repl_in_apply(in, &store, &map, 1, frame, size, &a)) {
		bool again = tn_repl_in_apply(in, &store, &map, 1, frame, size, &b);

		TN_ASSERT(again && a.verdict <= TN_REPL_FAILED);
		if (a.verdict == TN_REPL_DONE || a.verdict == TN_REPL_PARTIAL)
			TN_ASSERT(b.verdict == a.verdict);
		for (unsigned i = 0; i < 4; i++)
			if (t.share[i]) {
				tn_table_check(t.share[i]->engine);
				tn_ps_dedup_check(t.share[i]->dedup);
			}
	}
	close_first(&t, &steps);
	for (unsigned i = 0; i < 4; i++)
		if (t.share[i])
			tn_ps_share_put(t.share[i]);
	tn_repl_in_fini(in);
	tn_steps_fini(&steps);
	free(in);
	free(frame);
	return 0;
}

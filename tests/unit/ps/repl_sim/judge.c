/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to hold in the end: every slot served and backed up, the two copies the same bit by bit, what was acknowledged
 * there once, and each key's history linearizable. See world.h. Threads: none.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cmocka_all.h"
#include "world.h"

void fails(world *w, const char *format, ...)
{
	va_list args;

	if (w->why)
		return; /* the first one is what happened */
	va_start(args, format);
	vsnprintf(w->text, sizeof(w->text), format, args);
	va_end(args);
	w->why = w->text;
}

void trace(const world *w, const char *format, ...)
{
	va_list args;

	if (!w->trace)
		return;
	printf("%7llu ", (unsigned long long)w->now);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

static bool slot_at_rest(const world *w, const tn_cl_slot *s)
{
	return s->flags == TN_CL_IN_SYNC && process_of(w, s->primary) >= 0 && process_of(w, s->backup) >= 0;
}

void one_serves(world *w)
{
	for (uint32_t k = 0; k < KEYS; k++) {
		uint32_t s = tn_table_slot(w->keys[k]), n = 0;

		for (uint32_t p = 0; p < PROCESSES; p++)
			n += w->nodes[p] && tn_ps_slots_has(&w->nodes[p]->r.mine, s) &&
			     !tn_repl_frozen(&w->nodes[p]->r, s) && node_lease(w, p);
		if (n > 1)
			fails(w, "%u servers serve slot %u", n, s);
	}
}

bool at_rest(const world *w)
{
	if (!clients_idle(w) || !members_idle(w))
		return false;
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &w->coord.map.slot[i];
		tn_cl_slot no_fresh = *s;

		no_fresh.flags &= (uint8_t)~TN_CL_FRESH;
		if (!slot_at_rest(w, &no_fresh))
			return false;
	}
	for (uint32_t p = 0; p < PROCESSES; p++)
		if (!w->nodes[p] || !w->nodes[p]->snap ||
		    w->nodes[p]->snap->map.version != w->coord.map.version)
			return false;
	return true;
}

typedef struct image {
	bool there;
	uint64_t last_step;
	float value[DIM], state[DIM];
} image;

static tern_status keep(const tn_record *record, void *arg)
{
	image *i = arg;

	i->there = true;
	i->last_step = record->last_step;
	memcpy(i->value, record->value, sizeof(i->value));
	if (record->state)
		memcpy(i->state, record->state, sizeof(i->state));
	return TERN_OK;
}

static void image_of(const world *w, uint16_t server, uint32_t table, uint64_t key, image *out)
{
	const node *n = w->nodes[process_of(w, server)];

	memset(out, 0, sizeof(*out));
	if (n->shares[table])
		assert_int_equal(tn_table_read_records(n->shares[table]->engine, &key, 1, keep, out),
				 TERN_OK);
}

static void compare(world *w, uint32_t table, uint32_t k)
{
	const tn_cl_slot *s = &w->coord.map.slot[tn_table_slot(w->keys[k])];
	image a, b;

	image_of(w, s->primary, table, w->keys[k], &a);
	image_of(w, s->backup, table, w->keys[k], &b);
	if (memcmp(&a, &b, sizeof(a)) != 0)
		fails(w, "key %u of table %u is not the same at servers %u and %u", k, table, s->primary,
		      s->backup);
}

void judge(world *w)
{
	for (uint32_t t = 0; t < TABLES; t++)
		for (uint32_t k = 0; k < KEYS && !w->why; k++) {
			const char *bad = history_check(&w->histories[t][k]);

			if (bad)
				fails(w, "key %u (slot %u) of table %u: %s", k, tn_table_slot(w->keys[k]), t,
				      bad);
			compare(w, t, k);
		}
	judge_steps(w);
}

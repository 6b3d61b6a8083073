/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of the tables of a follower: built, advanced, shown. See follow.h.
 * Must not: decide which version. Threads: the follower's. Tests: tests/unit/ps/follow_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/fault.h"
#include "ps/follow.h"
#include "ps/save.h"

#define NAP_NS TN_NS_PER_MS

static bool is_mine(uint64_t key, void *arg)
{
	return tn_ps_slots_has(arg, tn_table_slot(key));
}

static tn_ps_slots my_slots(tern_ps_server *server)
{
	unsigned in;
	tn_ps_slots mine = tn_ps_view_enter(server, &in)->mine;

	tn_ps_view_leave(server, in);
	return mine;
}

void tn_follow_reset(tn_follow_copy *copy)
{
	while (copy->count)
		tn_ps_share_put(copy->shares[--copy->count]);
	*copy = (tn_follow_copy){0};
}

/* ---- shares ---- */

/* A table for values alone. */
static tern_status new_share(tn_ps_follow *f, const tn_ckpt_reader *link, const char *name, ps_share **share)
{
	tern_table_schema schema;

	TN_TRY(tn_restore_schema(link, name, &schema));
	memset(&schema.optimizer, 0, sizeof(schema.optimizer));
	schema.flags = (schema.flags & ~TERN_TABLE_ONE_SIDED) | TERN_TABLE_NO_META; /* copies change places */
	schema.eviction = TERN_EVICT_NONE;
	schema.budget_bytes = schema.ttl_steps = schema.admit_after = 0;
	return tn_ps_share_new(f->server, &schema, share);
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(ps_share *const *)a)->schema.name, (*(ps_share *const *)b)->schema.name);
}

static const char *table_name(const tn_ckpt_reader *link, size_t i)
{
	const json_t *row = json_array_get(json_object_get(link->manifest, "tables"), i);

	return json_string_value(json_object_get(row, "name"));
}

static size_t table_count(const tn_ckpt_reader *link)
{
	return json_array_size(json_object_get(link->manifest, "tables"));
}

static tern_status check_tables(const tn_ckpt_reader *link)
{
	if (table_count(link) > TN_PS_TABLES_MAX)
		return tn_fail(TERN_E_LIMIT, "%s has %zu tables; a server has at most %u", link->name,
			       table_count(link), TN_PS_TABLES_MAX);
	for (size_t i = 0; i < table_count(link); i++)
		if (!table_name(link, i))
			return tn_fail(TERN_E_CORRUPT, "%s: a table has no name", link->name);
	return TERN_OK;
}

static void is_now(tn_follow_copy *copy, const tn_ckpt_reader *link)
{
	copy->sequence = link->sequence;
	copy->crc = link->crc;
	copy->whole = true;
	if (copy->count)
		qsort(copy->shares, copy->count, sizeof(copy->shares[0]), by_name);
}

/* ---- built ---- */

tern_status tn_follow_build(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_chain *chain)
{
	const tn_ckpt_reader *last = tn_ckpt_chain_last(chain);
	tn_ps_slots mine = my_slots(f->server);
	tern_status status = check_tables(last);

	tn_follow_reset(copy);
	for (size_t i = 0; status == TERN_OK && i < table_count(last); i++) {
		status = new_share(f, last, table_name(last, i), &copy->shares[copy->count]);
		if (status != TERN_OK)
			break;
		status = tn_restore_chain(chain, copy->shares[copy->count++]->engine, is_mine, &mine, NULL);
		if (status == TERN_OK && atomic_load(&f->stop))
			status = tn_fail(TERN_E_CANCELED, "the server ends");
	}
	if (status == TERN_OK)
		is_now(copy, last);
	else
		tn_follow_reset(copy);
	return status;
}

/* ---- advanced ---- */

static ps_share *take_share(tn_follow_copy *copy, const char *name)
{
	for (uint32_t i = 0; i < copy->count; i++) {
		ps_share *share = copy->shares[i];

		if (strcmp(share->schema.name, name) == 0) {
			copy->shares[i] = copy->shares[--copy->count];
			return share;
		}
	}
	return NULL;
}

static bool in_full(const tn_ckpt_reader *link, size_t i)
{
	const json_t *row = json_array_get(json_object_get(link->manifest, "tables"), i);

	return json_is_true(json_object_get(row, "full"));
}

/* The table as of the link: its changes to what the copy has, or anew. The copy's share of it is taken. */
static tern_status advance_table(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_reader *link, size_t i,
				 tn_ps_slots *mine, ps_share **share)
{
	const char *name = table_name(link, i);
	tern_status status = TERN_OK;
	uint64_t rows = 0;

	*share = in_full(link, i) ? NULL : take_share(copy, name);
	if (!*share && !in_full(link, i))
		return tn_fail(TERN_E_CORRUPT, "%s has changes of table \"%s\", which was not there before",
			       link->name, name);
	if (!*share)
		status = new_share(f, link, name, share);
	if (TN_FAULT("ps.follow.apply"))
		status = tn_fail(TERN_E_NOMEM, "no memory to apply %s", link->name);
	return status == TERN_OK ? tn_restore_link(link, (*share)->engine, is_mine, mine, &rows) : status;
}

/* Tables that the link does not have were dropped. */
static tern_status advance_link(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_reader *link)
{
	tn_ps_slots mine = my_slots(f->server);
	tn_follow_copy next = {0};
	tern_status status = check_tables(link);

	for (size_t i = 0; status == TERN_OK && i < table_count(link); i++) {
		status = advance_table(f, copy, link, i, &mine, &next.shares[next.count]);
		next.count += next.shares[next.count] != NULL;
	}
	tn_follow_reset(copy);
	*copy = next;
	if (status == TERN_OK)
		is_now(copy, link);
	return status;
}

tern_status tn_follow_advance(tn_ps_follow *f, tn_follow_copy *copy, const tn_ckpt_chain *chain,
			      unsigned from)
{
	tern_status status = TERN_OK;

	for (unsigned i = from; i < chain->count && status == TERN_OK; i++)
		status = advance_link(f, copy, &chain->links[i]);
	if (status != TERN_OK)
		tn_follow_reset(copy);
	return status;
}

/* ---- shown ---- */

void tn_follow_show(tn_ps_follow *f, const tn_follow_copy *copy)
{
	tern_ps_server *server = f->server;
	ps_share *old[TN_PS_TABLES_MAX];
	uint32_t count;

	TN_ASSERT(copy->whole);
	for (uint32_t i = 0; i < copy->count; i++)
		atomic_fetch_add_explicit(&copy->shares[i]->refs, 1, memory_order_relaxed);
	pthread_mutex_lock(&server->tables_lock);
	count = server->share_count;
	memcpy(old, server->shares, count * sizeof(old[0]));
	for (uint32_t i = 0; i < count; i++)
		tn_ps_outside_close(old[i]->outside);
	memcpy(server->shares, copy->shares, copy->count * sizeof(copy->shares[0]));
	server->share_count = copy->count;
	pthread_mutex_unlock(&server->tables_lock);
	tn_ps_onesided_mapped(server);
	for (uint32_t i = 0; i < count; i++)
		tn_ps_share_put(old[i]);
}

bool tn_follow_unseen(tn_ps_follow *f, const tn_follow_copy *copy)
{
	for (uint32_t i = 0; i < copy->count; i++) {
		while (atomic_load_explicit(&copy->shares[i]->refs, memory_order_acquire) > 1) {
			if (atomic_load(&f->stop))
				return false;
			tn_sleep_ns(NAP_NS);
		}
	}
	return true;
}

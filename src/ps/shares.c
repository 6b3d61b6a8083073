/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of a server: created, found, dropped, described, counted. Tables are few and made seldom: a list in the
 * order of names under one lock.
 *
 * Threads: handlers from the driver, look-ups from workers too. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "ps/follow.h"
#include "ps/server.h"
#include "rpc/lock.h"

static void share_free(ps_share *share)
{
	tn_ps_outside_close(share->outside);
	tn_table_destroy(share->engine);
	tn_ps_outside_free(share->outside);
	tn_ps_dedup_free(share->dedup);
	pthread_mutex_destroy(&share->lock);
	pthread_mutex_destroy(&share->order);
	free(share->sorted);
	free(share);
}

void tn_ps_share_put(ps_share *share)
{
	if (rpc_refs_drop(&share->refs, 1, share->alone))
		share_free(share);
}

ps_share *tn_ps_share_get(tern_ps_server *server, uint64_t id)
{
	ps_share *share = NULL;

	if (!server->alone)
		pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count && !share; i++)
		if (server->shares[i]->id == id)
			share = server->shares[i];
	if (share)
		rpc_refs_add(&share->refs, server->alone);
	if (!server->alone)
		pthread_mutex_unlock(&server->tables_lock);
	return share;
}

void tn_ps_shares_free(tern_ps_server *server)
{
	while (server->share_count)
		tn_ps_share_put(server->shares[--server->share_count]);
}

static void reply_error(tern_rpc_request *request, tern_status status)
{
	const char *text = tn_detail_get();

	tern_rpc_reply(request, status, text, strlen(text));
}

/* ---- create ---- */

tern_status tn_ps_share_new(tern_ps_server *server, const tern_table_schema *schema, ps_share **out)
{
	tn_table_env env = {.open_tier = server && server->tier_dir ? tn_ps_tier_of_table : NULL,
			    .tier_arg = server};
	ps_share *share = calloc(1, sizeof(*share));
	tern_status status = share ? TERN_OK : TERN_E_NOMEM;

	if (share && schema->flags & TERN_TABLE_ONE_SIDED) {
		env.open_tier = NULL; /* nobody sees cold rows from outside */
		share->outside = tn_ps_outside_new(server->ctx, &env);
		status = share->outside ? TERN_OK : TERN_E_NOMEM;
	}
	if (status == TERN_OK)
		status = tn_table_create(schema, &env, &share->engine);
	if (status == TERN_OK) {
		share->dedup = tn_ps_dedup_new();
		status = share->dedup ? TERN_OK : TERN_E_NOMEM;
	}
	if (status != TERN_OK) {
		if (share) {
			tn_table_destroy(share->engine);
			tn_ps_outside_free(share->outside);
		}
		free(share);
		return status == TERN_E_NOMEM ? tn_fail(status, "no memory for table \"%s\"", schema->name)
					      : status;
	}
	share->refs = 1;
	share->alone = server && server->alone;
	share->schema = *schema;
	share->id = tn_ps_table_id(schema->name);
	share->hash = tn_ps_schema_hash(schema);
	share->row_bytes = tn_table_value_bytes(share->engine);
	share->cost = share->row_bytes + tn_table_state_bytes(share->engine);
	pthread_mutex_init(&share->lock, NULL);
	pthread_mutex_init(&share->order, NULL);
	tn_commits_init(&share->commits);
	*out = share;
	return TERN_OK;
}

/* tables_lock held. TERN_OK: there is room for it; TERN_E_EXISTS with *same: it is there as wanted. */
static tern_status may_create(tern_ps_server *server, const tern_table_schema *schema, bool *same)
{
	uint64_t id = tn_ps_table_id(schema->name), spoken_for = 0;

	*same = false;
	for (uint32_t i = 0; i < server->share_count; i++) {
		const ps_share *old = server->shares[i];

		spoken_for += old->schema.budget_bytes;
		if (old->id != id)
			continue;
		*same = old->hash == tn_ps_schema_hash(schema) && !strcmp(old->schema.name, schema->name);
		return tn_fail(TERN_E_EXISTS,
			       "there is a table \"%s\" with another schema: drop it, or take another name",
			       old->schema.name);
	}
	if (server->share_count == TN_PS_TABLES_MAX)
		return tn_fail(TERN_E_LIMIT, "a server has at most %u tables", TN_PS_TABLES_MAX);
	if (!server->budget_bytes)
		return TERN_OK;
	if (!schema->budget_bytes)
		return tn_fail(
			TERN_E_BUDGET,
			"table \"%s\" has no budget_bytes, but its server has a budget: say how much of it "
			"the table may take",
			schema->name);
	if (schema->budget_bytes > server->budget_bytes - spoken_for)
		return tn_fail(
			TERN_E_BUDGET,
			"table \"%s\" wants %llu bytes; the server's budget is %llu, of which other tables "
			"have %llu",
			schema->name, (unsigned long long)schema->budget_bytes,
			(unsigned long long)server->budget_bytes, (unsigned long long)spoken_for);
	return TERN_OK;
}

/* tables_lock held: keep the order of names. */
static void insert(tern_ps_server *server, ps_share *share)
{
	uint32_t at = server->share_count++;

	for (; at > 0 && strcmp(server->shares[at - 1]->schema.name, share->schema.name) > 0; at--)
		server->shares[at] = server->shares[at - 1];
	server->shares[at] = share;
	if (share->outside) {
		unsigned in;

		tn_ps_outside_mapped(share->outside, tn_ps_view_enter(server, &in)->map.version);
		tn_ps_view_leave(server, in);
	}
}

tern_status tn_ps_share_add(tern_ps_server *server, ps_share *share)
{
	tern_status status;
	bool same;

	pthread_mutex_lock(&server->tables_lock);
	status = may_create(server, &share->schema, &same);
	if (status == TERN_OK)
		insert(server, share);
	pthread_mutex_unlock(&server->tables_lock);
	return status;
}

tern_status tn_ps_share_create(tern_ps_server *server, const tern_table_schema *schema, ps_share **made)
{
	ps_share *share = NULL;
	tern_status status;
	bool same;

	pthread_mutex_lock(&server->tables_lock);
	status = may_create(server, schema, &same);
	if (status == TERN_OK)
		status = tn_ps_share_new(server, schema, &share);
	else if (same)
		status = TERN_OK;
	if (share)
		insert(server, share);
	if (share && made)
		atomic_fetch_add_explicit(&share->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&server->tables_lock);
	if (share)
		TN_LOG(INFO, PS, "table \"%s\": created, dim %u", schema->name, schema->dim);
	if (made)
		*made = share;
	return status;
}

/* To the backups as well; they have it before anybody is told that it is there. */
static void create_everywhere(tern_ps_server *server, const tern_table_schema *schema,
			      tern_rpc_request *request)
{
	ps_commit *commit = NULL;
	ps_share *made = NULL;
	tern_status status;

	tn_ps_replicas_dropped(server, tn_ps_table_id(schema->name), false);
	pthread_rwlock_rdlock(&server->hold);
	status = tn_ps_share_create(server, schema, &made);
	if (made)
		commit = tn_ps_replicas_table(server, made, request);
	pthread_rwlock_unlock(&server->hold);
	if (made)
		tn_ps_share_put(made);
	if (status == TERN_OK)
		tn_ps_replicas_noted(server, commit, request);
	else
		reply_error(request, status);
}

void tn_ps_on_create(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	tern_table_schema schema;
	tern_status status;
	uint64_t used;

	if (tn_ps_follows(server)) {
		tn_ps_refuse_follower(request);
		return;
	}
	if (!tn_ps_schema_decode(args, bytes, &schema, &used) || used != bytes) {
		tn_fail(TERN_E_INVALID, "the schema can't be read: another version?");
		reply_error(request, TERN_E_INVALID);
		return;
	}
	status = tern_table_schema_check(&schema);
	if (status == TERN_OK && server->replicas) {
		create_everywhere(server, &schema, request);
		return;
	}
	if (status == TERN_OK)
		status = tn_ps_share_create(server, &schema, NULL);
	if (status == TERN_OK)
		tern_rpc_reply(request, TERN_OK, NULL, 0);
	else
		reply_error(request, status);
}

/* ---- by name ---- */

/* The share that args name, with a reference; NULL: answered. */
static ps_share *named(tern_ps_server *server, tern_rpc_request *request, const void *args, uint64_t bytes)
{
	char name[TERN_TABLE_NAME_MAX];
	ps_share *share;

	if (!tn_ps_name_decode(args, bytes, name, sizeof(name))) {
		tn_fail(TERN_E_INVALID, "the name of a table can't be read");
		reply_error(request, TERN_E_INVALID);
		return NULL;
	}
	share = tn_ps_share_get(server, tn_ps_table_id(name));
	if (!share) {
		tn_fail(TERN_E_NOT_FOUND, "there is no table \"%s\"", name);
		reply_error(request, TERN_E_NOT_FOUND);
	}
	return share;
}

void tn_ps_on_describe(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	ps_share *share = named(arg, request, args, bytes);
	uint8_t out[TN_PS_SCHEMA_BYTES];

	if (!share)
		return;
	tern_rpc_reply(request, TERN_OK, out, tn_ps_schema_encode(out, sizeof(out), &share->schema));
	tn_ps_share_put(share);
}

void tn_ps_share_drop_slots(ps_share *share, const tn_ps_slots *slots)
{
	pthread_mutex_lock(&share->lock);
	tn_ps_dedup_drop_slots(share->dedup, slots);
	pthread_mutex_unlock(&share->lock);
	for (uint32_t s = 0, end; s < TN_PS_SLOTS; s = end + 1) {
		for (end = s; end < TN_PS_SLOTS && tn_ps_slots_has(slots, end);)
			end++;
		if (end > s) /* a run of them */
			(void)tn_table_drop_slots(share->engine, s, end - 1, NULL);
	}
}

bool tn_ps_share_drop(tern_ps_server *server, const char *name)
{
	uint64_t id = tn_ps_table_id(name);
	ps_share *gone = NULL;

	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++) {
		if (server->shares[i]->id == id)
			gone = server->shares[i];
		if (gone && i + 1 < server->share_count)
			server->shares[i] = server->shares[i + 1];
	}
	server->share_count -= gone != NULL;
	pthread_mutex_unlock(&server->tables_lock);
	if (!gone)
		return false;
	tn_ps_outside_close(gone->outside);
	TN_LOG(INFO, PS, "table \"%s\": dropped", name);
	tn_ps_share_put(gone);
	return true;
}

/* From the backups as well, before anybody is told: it may be created anew then. */
static void drop_everywhere(tern_ps_server *server, ps_share *share, tern_rpc_request *request)
{
	const tn_repl_entry e = {.kind = TN_REPL_DROP, .table = share->id};
	ps_commit *commit;

	tn_ps_replicas_dropped(server, share->id, true);
	pthread_rwlock_rdlock(&server->hold);
	tn_ps_share_drop(server, share->schema.name);
	commit = tn_ps_replicas_note(server, &e, share, request);
	pthread_rwlock_unlock(&server->hold);
	tn_ps_replicas_noted(server, commit, request);
}

void tn_ps_on_drop(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	ps_share *share;

	if (tn_ps_follows(server)) {
		tn_ps_refuse_follower(request);
		return;
	}
	share = named(server, request, args, bytes);
	if (!share)
		return;
	if (server->replicas) {
		drop_everywhere(server, share, request);
	} else {
		tn_ps_share_drop(server, share->schema.name);
		tern_rpc_reply(request, TERN_OK, NULL, 0);
	}
	tn_ps_share_put(share);
}

void tn_ps_on_load(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	ps_share *share = named(arg, request, args, bytes);
	uint64_t *load;

	if (!share)
		return;
	load = malloc(TN_PS_SLOTS * sizeof(*load));
	for (uint32_t s = 0; load && s < TN_PS_SLOTS; s++)
		load[s] = atomic_load_explicit(&share->load.slot[s], memory_order_relaxed);
	if (load) {
		tern_rpc_reply(request, TERN_OK, load, TN_PS_SLOTS * sizeof(*load));
	} else {
		tn_fail(TERN_E_NOMEM, "no memory to say the load of slots");
		reply_error(request, TERN_E_NOMEM);
	}
	free(load);
	tn_ps_share_put(share);
}

/* Those of the slots that this server serves: a backup's rows are its primary's to count. */
static void count_own(tern_ps_server *server, const ps_share *share, tern_table_stats *stats)
{
	unsigned in;
	const ps_view *view = tn_ps_view_enter(server, &in);

	if (!view->all && share->schema.kind != TERN_TABLE_DENSE) {
		stats->rows = stats->cold_rows = 0;
		for (uint32_t s = 0; s < TN_PS_SLOTS; s++) {
			uint64_t cold, rows = tn_table_slot_rows(share->engine, s, &cold);

			if (tn_ps_slots_has(&view->mine, s)) {
				stats->rows += rows;
				stats->cold_rows += cold;
			}
		}
	}
	tn_ps_view_leave(server, in);
}

static void share_stats(tern_ps_server *server, ps_share *share, tern_table_stats *stats)
{
	tn_table_stats s;

	tn_table_stats_get(share->engine, &s);
	*stats = (tern_table_stats){
		.rows = s.rows,
		.bytes = s.bytes,
		.record_bytes = s.record_bytes,
		.created = s.created,
		.erased = s.erased,
		.evicted = s.evicted,
		.expired = s.expired,
		.not_admitted = s.not_admitted,
		.refused = s.refused,
		.nonfinite = s.nonfinite,
		.pulled = s.pulled,
		.pushed = s.pushed,
		.cold_rows = s.cold_rows,
		.cold_bytes = s.cold_bytes,
		.duplicates = atomic_load_explicit(&share->duplicates, memory_order_relaxed),
	};
	count_own(server, share, stats);
}

void tn_ps_on_stats(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	ps_share *share = named(arg, request, args, bytes);
	uint8_t out[TN_PS_STATS_BYTES];
	tern_table_stats stats;

	if (!share)
		return;
	share_stats(arg, share, &stats);
	tn_ps_stats_encode(out, &stats);
	tern_rpc_reply(request, TERN_OK, out, sizeof(out));
	tn_ps_share_put(share);
}

/* The table of the least name above `name`, with a reference; NULL: none. */
static ps_share *share_after(tern_ps_server *server, const char *name)
{
	ps_share *share = NULL;

	pthread_mutex_lock(&server->tables_lock); /* they are sorted */
	for (uint32_t i = 0; i < server->share_count && !share; i++)
		if (strcmp(server->shares[i]->schema.name, name) > 0)
			share = server->shares[i];
	if (share)
		atomic_fetch_add_explicit(&share->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&server->tables_lock);
	return share;
}

void tern_ps_server_tables(tern_ps_server *server,
			   void (*fn)(const tern_table_schema *schema, const tern_table_stats *stats,
				      void *arg),
			   void *arg)
{
	char name[TERN_TABLE_NAME_MAX] = "";
	tern_table_stats stats;
	ps_share *share;

	while ((share = share_after(server, name)) != NULL) {
		snprintf(name, sizeof(name), "%s", share->schema.name);
		share_stats(server, share, &stats);
		fn(&share->schema, &stats, arg);
		tn_ps_share_put(share);
	}
}

#define LIST_BYTES 16384u

/* Schemas of the tables whose names come after the one given, as many as fit. */
void tn_ps_on_list(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	char name[TERN_TABLE_NAME_MAX];
	uint8_t out[LIST_BYTES];
	uint64_t at = 0;

	if (!tn_ps_name_decode(args, bytes, name, sizeof(name))) {
		tn_fail(TERN_E_INVALID, "the name of a table can't be read");
		reply_error(request, TERN_E_INVALID);
		return;
	}
	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count && LIST_BYTES - at >= TN_PS_SCHEMA_BYTES; i++)
		if (strcmp(server->shares[i]->schema.name, name) > 0)
			at += tn_ps_schema_encode(out + at, LIST_BYTES - at, &server->shares[i]->schema);
	pthread_mutex_unlock(&server->tables_lock);
	tern_rpc_reply(request, TERN_OK, out, at);
}

/* A client says that it repeats no push any more. */
void tn_ps_on_bye(tern_rpc_request *request, const void *args, uint64_t bytes, void *arg)
{
	tern_ps_server *server = arg;
	uint64_t client;

	if (bytes != sizeof(client)) {
		tern_rpc_reply(request, TERN_E_INVALID, NULL, 0);
		return;
	}
	memcpy(&client, args, sizeof(client));
	if (server->replicas) {
		const tn_repl_entry e = {.kind = TN_REPL_BYE, .client = client};

		pthread_rwlock_rdlock(&server->hold);
		(void)tn_ps_replicas_note(server, &e, NULL, NULL);
		pthread_rwlock_unlock(&server->hold);
	}
	pthread_mutex_lock(&server->tables_lock);
	for (uint32_t i = 0; i < server->share_count; i++) {
		ps_share *share = server->shares[i];

		pthread_mutex_lock(&share->lock);
		tn_ps_dedup_forget(share->dedup, client);
		pthread_mutex_unlock(&share->lock);
	}
	pthread_mutex_unlock(&server->tables_lock);
	tern_rpc_reply(request, TERN_OK, NULL, 0);
}

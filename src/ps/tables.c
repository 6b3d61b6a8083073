/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables as a client sees them: made and dropped at every server of the map, one after the other; described, listed and
 * counted. These wait, so they are simple calls.
 *
 * Threads: any, but callbacks. Tests: tests/unit/ps/ps_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "channel/dispatch.h"
#include "ps/client.h"

#define LIST_BYTES 16384u

/* One call to one server, with the server in the text of a failure. */
static tern_status ask(tern_ps *ps, uint32_t server, uint32_t method, const void *args, uint64_t bytes,
		       void *answer, uint64_t capacity, uint64_t *got)
{
	const ps_route *route = tn_ps_route(ps);
	tern_rpc_call_params call = {.method = method,
				     .args = args,
				     .args_bytes = bytes,
				     .answer = answer,
				     .answer_capacity = capacity,
				     .flags = TERN_RPC_IDEMPOTENT};
	tern_status status;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	status = tern_rpc_call_wait(route->hosts[server]->rpc, &call, ps->timeout_ns, got);
	if (status != TERN_OK && !tern_detail()[0])
		tn_fail(status, "%s", tern_status_text(status));
	if (status != TERN_OK)
		tn_detail_prefix("server %u at %s", server, route->hosts[server]->address);
	return status;
}

static tern_status handle_new(tern_ps *ps, const tern_table_schema *schema, tern_table **out)
{
	tern_table *table = calloc(1, sizeof(*table));
	tern_dtype dtype = schema->dtype ? schema->dtype : TERN_F32;

	if (!table)
		return tn_fail(TERN_E_NOMEM, "no memory for a table's handle");
	table->ps = ps;
	table->schema = *schema;
	table->schema.dtype = dtype;
	table->id = tn_ps_table_id(schema->name);
	table->hash = tn_ps_schema_hash(schema);
	table->row_bytes = schema->dim * tern_dtype_bytes(dtype);
	pthread_mutex_lock(&ps->lock);
	tn_list_push_back(&ps->tables, &table->node);
	pthread_mutex_unlock(&ps->lock);
	*out = table;
	return TERN_OK;
}

tern_status tern_table_create(tern_ps *ps, const tern_table_schema *schema, tern_table **table)
{
	uint8_t args[TN_PS_SCHEMA_BYTES];
	uint64_t bytes;

	*table = NULL;
	TN_TRY(tern_table_schema_check(schema));
	bytes = tn_ps_schema_encode(args, sizeof(args), schema);
	TN_ASSERT(bytes > 0);
	for (uint32_t i = 0; i < tern_ps_servers(ps, NULL); i++)
		TN_TRY(ask(ps, i, TN_PS_CREATE, args, bytes, NULL, 0, NULL));
	return handle_new(ps, schema, table);
}

static tern_status describe(tern_ps *ps, uint32_t server, const char *name, tern_table_schema *schema)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8], answer[TN_PS_SCHEMA_BYTES];
	uint64_t bytes = tn_ps_name_encode(args, sizeof(args), name), got, used;

	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	TN_TRY(ask(ps, server, TN_PS_DESCRIBE, args, bytes, answer, sizeof(answer), &got));
	if (!tn_ps_schema_decode(answer, got, schema, &used) || used != got)
		return tn_fail(TERN_E_PROTOCOL, "server %u: the schema can't be read: another version?",
			       server);
	return TERN_OK;
}

tern_status tern_table_describe(tern_ps *ps, const char *name, tern_table_schema *schema)
{
	return describe(ps, 0, name, schema);
}

tern_status tern_table_open(tern_ps *ps, const char *name, const tern_table_schema *schema,
			    tern_table **table)
{
	tern_table_schema first, other;

	*table = NULL;
	TN_TRY(describe(ps, 0, name, &first));
	for (uint32_t i = 1; i < tern_ps_servers(ps, NULL); i++) {
		TN_TRY(describe(ps, i, name, &other));
		if (tn_ps_schema_hash(&other) != tn_ps_schema_hash(&first))
			return tn_fail(TERN_E_SHAPE,
				       "table \"%s\" has one schema at server 0 and another at server %u",
				       name, i);
	}
	if (schema && tn_ps_schema_hash(schema) != tn_ps_schema_hash(&first))
		return tn_fail(TERN_E_SHAPE, "table \"%s\" has another schema than expected: describe it",
			       name);
	return handle_new(ps, &first, table);
}

void tern_table_close(tern_table *table)
{
	if (!table)
		return;
	pthread_mutex_lock(&table->ps->lock);
	tn_list_remove(&table->node);
	pthread_mutex_unlock(&table->ps->lock);
	free(table);
}

const tern_table_schema *tern_table_get_schema(const tern_table *table)
{
	return &table->schema;
}

tern_status tern_table_drop(tern_ps *ps, const char *name)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8];
	uint64_t bytes = tn_ps_name_encode(args, sizeof(args), name);
	uint32_t dropped = 0, servers = tern_ps_servers(ps, NULL);
	tern_status status = TERN_OK;

	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	for (uint32_t i = 0; i < servers; i++) {
		status = ask(ps, i, TN_PS_DROP, args, bytes, NULL, 0, NULL);
		dropped += status == TERN_OK;
		if (status != TERN_OK && status != TERN_E_NOT_FOUND)
			return status;
	}
	/* a share that an earlier try dropped is no fault */
	return dropped ? TERN_OK : status;
}

tern_status tern_table_list(tern_ps *ps, void (*fn)(const tern_table_schema *schema, void *arg), void *arg)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8], *answer = malloc(LIST_BYTES);
	tern_table_schema schema = {.name = ""};
	tern_status status = answer ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a list of tables");
	uint64_t got = 1;

	while (status == TERN_OK && got) {
		uint64_t bytes = tn_ps_name_encode(args, sizeof(args), schema.name), at = 0, used;

		status = ask(ps, 0, TN_PS_LIST, args, bytes, answer, LIST_BYTES, &got);
		for (; status == TERN_OK && at < got; at += used) {
			if (tn_ps_schema_decode(answer + at, got - at, &schema, &used))
				fn(&schema, arg);
			else
				status = tn_fail(TERN_E_PROTOCOL, "a list of tables can't be read");
		}
	}
	free(answer);
	return status;
}

tern_status tern_table_get_stats(tern_ps *ps, const char *name, tern_table_stats *stats)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8], answer[TN_PS_STATS_BYTES];
	uint64_t bytes = tn_ps_name_encode(args, sizeof(args), name), got;

	memset(stats, 0, sizeof(*stats));
	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	for (uint32_t i = 0; i < tern_ps_servers(ps, NULL); i++) {
		tern_table_stats s;

		TN_TRY(ask(ps, i, TN_PS_STATS, args, bytes, answer, sizeof(answer), &got));
		if (!tn_ps_stats_decode(answer, got, &s))
			return tn_fail(TERN_E_PROTOCOL, "server %u: statistics can't be read", i);
		stats->record_bytes = s.record_bytes;
		stats->rows += s.rows;
		stats->bytes += s.bytes;
		stats->created += s.created;
		stats->erased += s.erased;
		stats->evicted += s.evicted;
		stats->expired += s.expired;
		stats->not_admitted += s.not_admitted;
		stats->refused += s.refused;
		stats->nonfinite += s.nonfinite;
		stats->pulled += s.pulled;
		stats->pushed += s.pushed;
		stats->duplicates += s.duplicates;
	}
	return TERN_OK;
}

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
#include "base/time.h"
#include "channel/dispatch.h"
#include "ps/client.h"

#define LIST_BYTES 16384u
#define SLICE_NS   (2 * TN_NS_PER_SEC) /* for a server that may have died meanwhile */

static uint32_t servers_of(tern_ps *ps, bool *managed)
{
	ps_route *route = tn_ps_route_hold(ps);
	uint32_t servers = route->servers;

	if (managed)
		*managed = route->managed;
	tn_ps_route_release(ps, route);
	return servers;
}

static bool lost(tern_status status)
{
	return status == TERN_E_DEADLINE || status == TERN_E_NO_METHOD || status == TERN_E_INDETERMINATE ||
	       tern_status_radius(status) == TERN_RADIUS_PATH ||
	       tern_status_radius(status) == TERN_RADIUS_PEER;
}

/*
 * One call to one server, with the server in the text of a failure. TERN_AGAIN: it is not alive, there is nothing to ask.
 * It may die meanwhile: so the map is looked at now and then.
 */
static tern_status ask(tern_ps *ps, uint32_t server, uint32_t method, const void *args, uint64_t bytes,
		       void *answer, uint64_t capacity, uint64_t *got)
{
	tern_rpc_call_params call = {.method = method,
				     .args = args,
				     .args_bytes = bytes,
				     .answer = answer,
				     .answer_capacity = capacity,
				     .flags = TERN_RPC_IDEMPOTENT};
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), ps->timeout_ns), left = ps->timeout_ns;
	tern_status status = TERN_AGAIN;
	ps_host *host;
	bool managed;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	(void)servers_of(ps, &managed);
	host = tn_ps_host_at(ps, server);
	while (host && left) {
		status = tern_rpc_call_wait(host->rpc, &call, managed ? TN_MIN(left, SLICE_NS) : left, got);
		left = tn_time_left(tn_ctx_now(ps->ctx), end);
		if (!managed || !lost(status) || !left)
			break;
		(void)tn_ps_map_fetch(ps, NULL, TN_MIN(left, SLICE_NS));
		left = tn_time_left(tn_ctx_now(ps->ctx), end);
		tn_ps_host_drop(ps, host);
		host = tn_ps_host_at(ps, server);
		status = TERN_AGAIN;
	}
	if (status == TERN_OK || !host) {
		tn_ps_host_drop(ps, host);
		return status;
	}
	if (status == TERN_AGAIN)
		status = tn_fail(TERN_E_DEADLINE, "it did not answer in time");
	if (!tern_detail()[0])
		tn_fail(status, "%s", tern_status_text(status));
	tn_detail_prefix("server %u at %s", server, host->address);
	tn_ps_host_drop(ps, host);
	return status;
}

/* As ask, for servers one after the other from *server on, until one answers: *server is the next one then. */
static tern_status ask_any(tern_ps *ps, uint32_t *server, uint32_t method, const void *args, uint64_t bytes,
			   void *answer, uint64_t capacity, uint64_t *got)
{
	tern_status status = TERN_AGAIN;

	while (status == TERN_AGAIN && *server < servers_of(ps, NULL))
		status = ask(ps, (*server)++, method, args, bytes, answer, capacity, got);
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
	rpc_lock_take(&ps->lock);
	tn_list_push_back(&ps->tables, &table->node);
	rpc_lock_drop(&ps->lock);
	*out = table;
	return TERN_OK;
}

/* Slots are given out: a server that joined later gets tables with its slots, one that was there before must be asked. */
static tern_status wait_for_slots(tern_ps *ps)
{
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), ps->timeout_ns), now;
	bool given;

	for (;;) {
		ps_route *route = tn_ps_route_hold(ps);

		given = !route->managed || route->given;
		tn_ps_route_release(ps, route);
		now = tn_ctx_now(ps->ctx);
		if (given || tn_in_dispatch())
			return TERN_OK;
		if (now >= end)
			return tn_fail(TERN_E_DEADLINE,
				       "the servers wait for others before slots are given out");
		tern_ctx_wait(ps->ctx, 20 * TN_NS_PER_MS);
		(void)tn_ps_map_fetch(ps, NULL, TN_MIN(end - now, SLICE_NS));
	}
}

tern_status tern_table_create(tern_ps *ps, const tern_table_schema *schema, tern_table **table)
{
	uint8_t args[TN_PS_SCHEMA_BYTES];
	uint64_t bytes;

	*table = NULL;
	TN_TRY(tern_table_schema_check(schema));
	bytes = tn_ps_schema_encode(args, sizeof(args), schema);
	TN_ASSERT(bytes > 0);
	TN_TRY(wait_for_slots(ps));
	for (uint32_t i = 0; i < servers_of(ps, NULL); i++) {
		tern_status status = ask(ps, i, TN_PS_CREATE, args, bytes, NULL, 0, NULL);

		if (status != TERN_OK && status != TERN_AGAIN)
			return status;
	}
	return handle_new(ps, schema, table);
}

/* By the next server from *server on that has the table: where servers come and go not all do. TERN_AGAIN: none. */
static tern_status describe(tern_ps *ps, uint32_t *server, const char *name, tern_table_schema *schema)
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8], answer[TN_PS_SCHEMA_BYTES];
	uint64_t bytes = tn_ps_name_encode(args, sizeof(args), name), got, used;
	tern_status status;
	bool managed;

	(void)servers_of(ps, &managed);
	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	do
		status = ask_any(ps, server, TN_PS_DESCRIBE, args, bytes, answer, sizeof(answer), &got);
	while (managed && status == TERN_E_NOT_FOUND);
	if (status != TERN_OK)
		return status;
	if (!tn_ps_schema_decode(answer, got, schema, &used) || used != got)
		return tn_fail(TERN_E_PROTOCOL, "server %u: the schema can't be read: another version?",
			       *server - 1);
	return TERN_OK;
}

tern_status tern_table_describe(tern_ps *ps, const char *name, tern_table_schema *schema)
{
	uint32_t server = 0;
	tern_status status = describe(ps, &server, name, schema);

	return status == TERN_AGAIN ? tn_fail(TERN_E_NOT_FOUND, "there is no table \"%s\"", name) : status;
}

tern_status tern_table_open(tern_ps *ps, const char *name, const tern_table_schema *schema,
			    tern_table **table)
{
	tern_table_schema first, other;
	uint32_t server = 0, has;
	tern_status status;

	*table = NULL;
	status = describe(ps, &server, name, &first);
	if (status == TERN_AGAIN)
		return tn_fail(TERN_E_NOT_FOUND, "there is no table \"%s\"", name);
	for (has = server - 1; status == TERN_OK;) {
		status = describe(ps, &server, name, &other);
		if (status == TERN_OK && tn_ps_schema_hash(&other) != tn_ps_schema_hash(&first))
			return tn_fail(TERN_E_SHAPE,
				       "table \"%s\" has one schema at server %u and another at server %u",
				       name, has, server - 1);
	}
	if (status != TERN_AGAIN)
		return status;
	if (schema && tn_ps_schema_hash(schema) != tn_ps_schema_hash(&first))
		return tn_fail(TERN_E_SHAPE, "table \"%s\" has another schema than expected: describe it",
			       name);
	return handle_new(ps, &first, table);
}

void tern_table_close(tern_table *table)
{
	if (!table)
		return;
	rpc_lock_take(&table->ps->lock);
	tn_list_remove(&table->node);
	rpc_lock_drop(&table->ps->lock);
	tn_ps_windows_free(table->windows);
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
	tern_status status = TERN_OK;
	uint32_t dropped = 0;

	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	for (uint32_t i = 0; i < servers_of(ps, NULL); i++) {
		tern_status one = ask(ps, i, TN_PS_DROP, args, bytes, NULL, 0, NULL);

		dropped += one == TERN_OK;
		status = one == TERN_AGAIN ? status : one;
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
		uint32_t server = 0;

		status = ask_any(ps, &server, TN_PS_LIST, args, bytes, answer, LIST_BYTES, &got);
		if (status == TERN_AGAIN)
			status = tn_fail(TERN_E_UNREACHABLE, "no parameter server is alive");
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
	uint32_t counted = 0;
	tern_status status;
	bool managed;

	memset(stats, 0, sizeof(*stats));
	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	(void)servers_of(ps, &managed);
	for (uint32_t i = 0; i < servers_of(ps, NULL); i++) {
		tern_table_stats s;

		status = ask(ps, i, TN_PS_STATS, args, bytes, answer, sizeof(answer), &got);
		if (status == TERN_AGAIN || (managed && status == TERN_E_NOT_FOUND))
			continue; /* it has no slot yet */
		if (status != TERN_OK)
			return status;
		if (!tn_ps_stats_decode(answer, got, &s))
			return tn_fail(TERN_E_PROTOCOL, "server %u: statistics can't be read", i);
		counted++;
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
		stats->cold_rows += s.cold_rows;
		stats->cold_bytes += s.cold_bytes;
	}
	return counted ? TERN_OK : tn_fail(TERN_E_NOT_FOUND, "there is no table \"%s\"", name);
}

tern_status tern_table_get_load(tern_ps *ps, const char *name, uint64_t load[TERN_TABLE_SLOTS])
{
	uint8_t args[TERN_TABLE_NAME_MAX + 8];
	uint64_t bytes = tn_ps_name_encode(args, sizeof(args), name), got, size = TN_PS_SLOTS * sizeof(*load);
	uint64_t *answer = bytes ? malloc(size) : NULL;
	tern_status status = TERN_OK;
	uint32_t counted = 0;
	bool managed;

	memset(load, 0, size);
	if (!bytes)
		return tn_fail(TERN_E_INVALID, "a table's name has at most %d characters",
			       TERN_TABLE_NAME_MAX - 1);
	if (!answer)
		return tn_fail(TERN_E_NOMEM, "no memory for the load of slots");
	(void)servers_of(ps, &managed);
	for (uint32_t i = 0; i < servers_of(ps, NULL) && status == TERN_OK; i++) {
		status = ask(ps, i, TN_PS_LOAD, args, bytes, answer, size, &got);
		if (status == TERN_AGAIN || (managed && status == TERN_E_NOT_FOUND)) {
			status = TERN_OK; /* it has no slot yet */
			continue;
		}
		if (status == TERN_OK && got != size)
			status = tn_fail(TERN_E_PROTOCOL, "server %u: the load can't be read", i);
		counted++;
		for (uint32_t s = 0; status == TERN_OK && s < TN_PS_SLOTS; s++)
			load[s] += answer[s];
	}
	free(answer);
	if (status == TERN_OK && !counted)
		status = tn_fail(TERN_E_NOT_FOUND, "there is no table \"%s\"", name);
	return status;
}

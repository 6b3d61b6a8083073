/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking after servers that join and leave: who is there, what is to change. Asks the coordinator, wherever it is.
 * These wait, so they are simple calls. Threads: any, but callbacks. Tests: tests/unit/ps/cluster_test.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/wirebuf.h"
#include "channel/dispatch.h"
#include "cluster/wire.h"
#include "ps/client.h"

/* Of the servers that are alive, the first that has a coordinator answers; answer has room for TN_CL_ANSWER_MAX. */
static tern_status ask_coordinator(tern_ps *ps, const tn_cl_msg *msg, uint8_t *answer, tn_cl_answer *a)
{
	uint8_t args[TN_CL_HEAD];
	tern_rpc_call_params call = {.method = TN_CL_METHOD,
				     .args = args,
				     .args_bytes = tn_cl_msg_encode(args, sizeof(args), msg, NULL, NULL),
				     .answer = answer,
				     .answer_capacity = TN_CL_ANSWER_MAX,
				     .flags = TERN_RPC_IDEMPOTENT};
	ps_route *route = tn_ps_route_hold(ps);
	tern_status status = TERN_E_NO_METHOD;
	uint64_t got = 0;

	for (uint32_t i = 0; i < route->servers && status == TERN_E_NO_METHOD; i++)
		if (route->hosts[i])
			status = tern_rpc_call_wait(route->hosts[i]->rpc, &call, ps->timeout_ns, &got);
	tn_ps_route_release(ps, route);
	if (status == TERN_E_NO_METHOD)
		return tn_fail(TERN_E_NOT_FOUND,
			       "these servers have a fixed list: nobody decides over slots");
	if (status == TERN_OK && !tn_cl_answer_decode(answer, got, a))
		return tn_fail(TERN_E_PROTOCOL, "the coordinator's answer can't be read: another version?");
	return status;
}

/* ---- who is there ---- */

static const char *const states[TN_CL_STATES] = {"free", "up", "draining", "down", "gone"};

static void info_set_state(tern_ps_server_info *info, uint8_t state)
{
	info->state = states[state];
}

static void count(const tn_cl_map *map, uint16_t server, tern_ps_server_info *info)
{
	for (uint32_t i = 0; i < TN_CL_SLOTS; i++) {
		const tn_cl_slot *s = &map->slot[i];

		info->primaries += s->primary == server;
		info->backups += s->backup == server;
		info->alone += s->primary == server && !(s->flags & TN_CL_IN_SYNC);
		info->leaving += s->primary == server && (s->flags & TN_CL_MOVE);
		info->arriving += s->backup == server && (s->flags & TN_CL_MOVE);
	}
}

static void tell(const tn_cl_map *map, const uint64_t *loads, void (*fn)(const tern_ps_server_info *, void *),
		 void *arg)
{
	for (uint16_t i = 0; i < map->servers; i++) {
		const tn_cl_server *s = &map->server[i];
		tern_ps_server_info info = {.number = i,
					    .address = s->address,
					    .alive = tn_cl_alive(map, i),
					    .keys_per_second = loads ? loads[i] : 0};

		if (s->state == TN_CL_FREE)
			continue;
		info_set_state(&info, s->state);
		count(map, i, &info);
		fn(&info, arg);
	}
}

static tern_status get_status(tern_ps *ps, uint8_t *bytes, tn_cl_map *map, uint64_t *loads)
{
	tn_cl_msg msg = {.op = TN_CL_STATUS, .server = TN_CL_NONE};
	tn_cl_answer a;
	tn_reader r;

	TN_TRY(ask_coordinator(ps, &msg, bytes, &a));
	if (!a.map || !tn_cl_map_decode(a.map, a.map_bytes, map))
		return tn_fail(TERN_E_PROTOCOL, "the coordinator's map can't be read: another version?");
	tn_reader_init(&r, a.loads, a.load_count * 8ull);
	for (uint32_t i = 0; i < a.load_count; i++)
		loads[i] = tn_get_u64(&r);
	return TERN_OK;
}

tern_status tern_ps_server_list(tern_ps *ps, void (*fn)(const tern_ps_server_info *info, void *arg),
				void *arg, uint64_t *version)
{
	uint64_t loads[TN_CL_SERVERS_MAX] = {0};
	uint8_t *bytes = malloc(TN_CL_ANSWER_MAX);
	tn_cl_map *map = malloc(sizeof(*map));
	tern_status status = bytes && map ? TERN_OK : tn_fail(TERN_E_NOMEM, "no memory for a map");

	if (status == TERN_OK && tn_in_dispatch())
		status = tn_fail(TERN_E_STATE,
				 "waiting inside a callback would stop the progress it waits for");
	if (status == TERN_OK)
		status = get_status(ps, bytes, map, loads);
	if (status == TERN_OK) {
		tell(map, loads, fn, arg);
		if (version)
			*version = map->version;
	}
	free(bytes);
	free(map);
	return status;
}

/* ---- what is to change ---- */

typedef struct finding {
	const char *address;
	uint32_t found, number;
} finding;

static void find_one(const tern_ps_server_info *info, void *arg)
{
	finding *f = arg;

	if (strcmp(info->address, f->address) != 0)
		return;
	f->found++;
	f->number = info->number; /* the last one is the newest at that address */
}

static const tn_cl_op ops[] = {
	[TERN_PS_DRAIN] = TN_CL_DRAIN,     [TERN_PS_UNDRAIN] = TN_CL_UNDRAIN,
	[TERN_PS_GIVE_UP] = TN_CL_GIVE_UP, [TERN_PS_BALANCE] = TN_CL_BALANCE,
	[TERN_PS_PAUSE] = TN_CL_PAUSE,     [TERN_PS_RESUME] = TN_CL_RESUME,
};

tern_status tern_ps_change(tern_ps *ps, tern_ps_op op, const char *server)
{
	tn_cl_msg msg = {.server = TN_CL_NONE, .version = UINT64_MAX};
	finding f = {.address = server};
	tern_status status;
	tn_cl_answer a;
	uint8_t *bytes;

	if (op < TERN_PS_DRAIN || op > TERN_PS_RESUME || (op <= TERN_PS_GIVE_UP && !server))
		return tn_fail(TERN_E_INVALID, "what is to change, and at which server?");
	msg.op = ops[op];
	if (op <= TERN_PS_GIVE_UP) {
		TN_TRY(tern_ps_server_list(ps, find_one, &f, NULL));
		if (!f.found)
			return tn_fail(TERN_E_NOT_FOUND, "no server at %s is known", server);
		msg.server = (uint16_t)f.number;
	}
	bytes = malloc(TN_CL_ANSWER_MAX);
	if (!bytes)
		return tn_fail(TERN_E_NOMEM, "no memory for an answer");
	status = ask_coordinator(ps, &msg, bytes, &a);
	free(bytes);
	return status;
}

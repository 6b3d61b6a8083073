/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking followers where they are, and sending them to a version. See follow.h.
 * Threads: any; they block. Tests: tests/unit/ps/follow_test.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/wirebuf.h"
#include "channel/dispatch.h"
#include "ps/client.h"
#include "ps/follow.h"

#define WAIT_NS (60 * TN_NS_PER_SEC)
#define NAP_NS  (5 * TN_NS_PER_MS)

/* u8 version | u8 looked | u16 0 | i32 status | 10 x u64 | text */
uint64_t tn_ps_follow_encode(uint8_t *out, uint64_t bytes, const tern_ps_follow_stats *s)
{
	tn_writer w;

	tn_writer_init(&w, out, bytes);
	tn_put_u8(&w, TN_PS_FOLLOW_VERSION);
	tn_put_u8(&w, s->looked != 0);
	tn_put_zeros(&w, 2);
	tn_put_u32(&w, (uint32_t)s->status);
	tn_put_u64(&w, s->sequence);
	tn_put_u64(&w, s->newest);
	tn_put_u64(&w, s->pinned);
	tn_put_u64(&w, s->behind);
	tn_put_u64(&w, s->behind_ns);
	tn_put_u64(&w, s->behind_steps);
	tn_put_u64(&w, s->age_ns);
	tn_put_u64(&w, s->saved_ns);
	tn_put_u64(&w, s->applied);
	tn_put_u64(&w, s->failed);
	tn_put_str(&w, s->error);
	return w.bad ? 0 : w.at;
}

bool tn_ps_follow_decode(const void *data, uint64_t bytes, tern_ps_follow_stats *s)
{
	uint8_t version;
	tn_reader r;

	memset(s, 0, sizeof(*s));
	tn_reader_init(&r, data, bytes);
	version = tn_get_u8(&r);
	s->looked = tn_get_u8(&r);
	(void)tn_get_view(&r, 2);
	s->status = (tern_status)(int32_t)tn_get_u32(&r);
	s->sequence = tn_get_u64(&r);
	s->newest = tn_get_u64(&r);
	s->pinned = tn_get_u64(&r);
	s->behind = tn_get_u64(&r);
	s->behind_ns = tn_get_u64(&r);
	s->behind_steps = tn_get_u64(&r);
	s->age_ns = tn_get_u64(&r);
	s->saved_ns = tn_get_u64(&r);
	s->applied = tn_get_u64(&r);
	s->failed = tn_get_u64(&r);
	tn_get_str(&r, s->error, sizeof(s->error));
	return !r.bad && r.at == bytes && version == TN_PS_FOLLOW_VERSION;
}

static tern_status ask(tern_ps *ps, uint32_t server, tn_ps_follow_op op, uint64_t sequence,
		       tern_ps_follow_stats *stats)
{
	uint8_t args[16] = {TN_PS_FOLLOW_VERSION, (uint8_t)op}, answer[512];
	tern_rpc_call_params call = {.method = TN_PS_FOLLOW,
				     .args = args,
				     .args_bytes = sizeof(args),
				     .answer = answer,
				     .answer_capacity = sizeof(answer),
				     .flags = TERN_RPC_IDEMPOTENT};
	tern_status status;
	ps_host *host;
	tn_writer w;
	uint64_t got = 0;

	if (tn_in_dispatch())
		return tn_fail(TERN_E_STATE,
			       "waiting inside a callback would stop the progress it waits for");
	host = tn_ps_host_at(ps, server);
	if (!host)
		return tn_fail(TERN_E_NOT_FOUND, "there is no server %" PRIu32, server);
	tn_writer_init(&w, args + 8, 8);
	tn_put_u64(&w, sequence);
	status = tern_rpc_call_wait(host->rpc, &call, ps->timeout_ns, &got);
	if (status == TERN_E_NO_METHOD)
		tn_fail(status, "it does not follow checkpoints");
	else if (status == TERN_OK && !tn_ps_follow_decode(answer, got, stats))
		status = tn_fail(TERN_E_PROTOCOL, "its answer can't be read");
	if (status != TERN_OK)
		tn_detail_prefix("server %" PRIu32 " at %s", server, host->address);
	tn_ps_host_drop(ps, host);
	return status;
}

tern_status tern_ps_followed(tern_ps *ps, uint32_t server, tern_ps_follow_stats *stats)
{
	return ask(ps, server, TN_FOLLOW_GET, 0, stats);
}

/* Does it serve what it was told to? It says so after it looked at least once more. */
static tern_status wait_for(tern_ps *ps, uint32_t server, const tern_ps_follow_stats *before, uint64_t end)
{
	uint64_t wanted = before->pinned;
	tern_ps_follow_stats now;

	for (;;) {
		TN_TRY(ask(ps, server, TN_FOLLOW_GET, 0, &now));
		if (now.pinned != wanted)
			return tn_fail(TERN_E_STATE, "server %" PRIu32 " was told otherwise meanwhile",
				       server);
		if (now.looked && now.status == TERN_OK &&
		    (wanted == TERN_PS_FOLLOW_LAST ? now.newest && now.sequence == now.newest
						   : now.sequence == wanted))
			return TERN_OK;
		if (now.failed > before->failed)
			return tn_fail(now.status, "server %" PRIu32 ": %s", server, now.error);
		if (tn_ctx_now(ps->ctx) >= end)
			return tn_fail(TERN_E_DEADLINE, "server %" PRIu32 " still serves version %" PRIu64,
				       server, now.sequence);
		tn_sleep_ns(NAP_NS);
	}
}

tern_status tern_ps_follow_to(tern_ps *ps, uint64_t sequence, uint64_t timeout_ns)
{
	tern_ps_follow_stats before[TN_PS_SERVERS_MAX];
	uint64_t end = tn_deadline(tn_ctx_now(ps->ctx), timeout_ns ? timeout_ns : WAIT_NS);
	uint32_t servers = tern_ps_servers(ps, NULL);

	if (sequence == 0)
		return tn_fail(TERN_E_INVALID, "versions begin with 1");
	for (uint32_t i = 0; i < servers; i++)
		TN_TRY(ask(ps, i, TN_FOLLOW_SET, sequence, &before[i]));
	for (uint32_t i = 0; i < servers; i++)
		TN_TRY(wait_for(ps, i, &before[i], end));
	return TERN_OK;
}

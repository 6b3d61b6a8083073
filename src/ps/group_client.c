/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of groups. See <tern/ps_group.h>. Each request is one call to the first server of the map, which may be
 * repeated; the server is given the time limit, and the call a little more, so that the server can say who is missing.
 *
 * Threads: one at a time per handle. Tests: tests/unit/ps/group_test.c.
 */
#include "ps/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fail.h"
#include "base/os.h"
#include "ps/client.h"

#define GRACE_NS 2000000000u

static tern_status check_name(const char *what, const char *name, bool may_be_empty)
{
	size_t n = name ? strlen(name) : 0;

	if ((n == 0 && !may_be_empty) || n >= TERN_PS_NAME_MAX)
		return tn_fail(TERN_E_INVALID, "the name of a %s has 1 to %d bytes", what,
			       TERN_PS_NAME_MAX - 1);
	return TERN_OK;
}

/* Groups live at the first server of the map: held. */
static ps_host *first_host(tern_ps *ps)
{
	ps_host *host = NULL;

	rpc_lock_take(&ps->lock);
	for (uint32_t i = 0; i < ps->route->servers && !host; i++)
		host = ps->route->hosts[i];
	if (host)
		tn_ps_host_hold(host);
	rpc_lock_drop(&ps->lock);
	return host;
}

/* A closing as the keeper says it, to all servers. */
static tern_status bring(tern_ps *ps, uint64_t life, const uint64_t *words, uint32_t count)
{
	tn_ps_close closing = {.life = life, .step = words[0] - 1, .senders = count - 1};

	if (closing.senders > TN_PS_SENDERS_MAX)
		return tn_fail(TERN_E_PROTOCOL, "a step of %u senders", closing.senders);
	memcpy(closing.sender, words + 1, closing.senders * sizeof(words[0]));
	return tn_ps_round_close(ps, &closing);
}

/* words (may be NULL): room for TN_PS_GROUP_WORDS; *count (may be NULL): how many came. */
static tern_status ask_words(tern_ps *ps, tn_ps_group_msg *msg, uint64_t *words, uint32_t *count)
{
	uint8_t args[TN_PS_GROUP_MAX];
	uint64_t answer[2] = {0}, bytes = 0, timeout_ns = msg->timeout_ns ? msg->timeout_ns : ps->timeout_ns;
	tern_rpc_call_params call = {
		.method = TN_PS_GROUP,
		.args = args,
		.answer = words ? words : answer,
		.answer_capacity = words ? TN_PS_GROUP_WORDS * sizeof(*words) : sizeof(answer),
		.flags = TERN_RPC_IDEMPOTENT,
	};
	ps_host *host = first_host(ps);
	tern_status status;

	if (!host)
		return tn_fail(TERN_E_UNREACHABLE, "no parameter server is alive");
	msg->timeout_ns = timeout_ns;
	call.args_bytes = tn_ps_group_encode(args, msg);
	if (__builtin_add_overflow(timeout_ns, GRACE_NS, &timeout_ns))
		timeout_ns = UINT64_MAX;
	status = tern_rpc_call_wait(host->rpc, &call, timeout_ns, &bytes);
	tn_ps_host_drop(ps, host);
	if (count)
		*count = (uint32_t)(bytes / sizeof(*words));
	return status;
}

static tern_status ask(tern_ps *ps, tn_ps_group_msg *msg, uint64_t *value)
{
	uint64_t words[TN_PS_GROUP_WORDS];

	TN_TRY(ask_words(ps, msg, words, NULL));
	if (value)
		*value = words[0];
	return TERN_OK;
}

static tn_ps_group_msg message(const tern_ps_group *group, tn_ps_group_op op, uint64_t value,
			       const char *text)
{
	tn_ps_group_msg msg = {.op = op, .flags = group->flags, .member = group->id, .value = value};

	memcpy(msg.name, group->name, sizeof(msg.name));
	if (text)
		strcpy(msg.text, text);
	return msg;
}

tern_status tern_ps_group_join(tern_ps *ps, const tern_ps_group_params *params, uint64_t *step,
			       tern_ps_group **out)
{
	tn_ps_group_msg msg;
	uint64_t words[TN_PS_GROUP_WORDS] = {0};
	uint32_t count = 0;
	tern_ps_group *group;
	tern_status status;

	*out = NULL;
	if (params->flags & ~TERN_PS_GROUP_SUM || params->reserved ||
	    (params->flags & TERN_PS_GROUP_SUM && params->staleness))
		return tn_fail(TERN_E_INVALID,
			       "a group that is summed has staleness 0, and there are no other flags");
	TN_TRY(check_name("group", params->name, false));
	TN_TRY(check_name("member", params->member, true));
	group = calloc(1, sizeof(*group));
	if (!group)
		return tn_fail(TERN_E_NOMEM, "no memory for a member of group %s", params->name);
	group->ps = ps;
	group->flags = params->flags;
	strcpy(group->name, params->name);
	status = tn_os_random(&group->id, sizeof(group->id));
	if (status == TERN_OK) {
		msg = message(group, TN_GROUP_JOIN, params->staleness, params->member ? params->member : "");
		status = ask_words(ps, &msg, words, &count);
	}
	if (status != TERN_OK) {
		free(group);
		return status;
	}
	/* Whoever ended the last step may have died before all servers knew; how its sum ended is told to those who ended it. */
	if (count > 3 && words[2] > 0)
		(void)bring(ps, words[1], words + 2, count - 2);
	group->life = words[1];
	group->closed = words[0];
	if (step)
		*step = words[0];
	*out = group;
	return TERN_OK;
}

void tern_ps_group_leave(tern_ps_group *group)
{
	tn_ps_group_msg msg;

	if (!group)
		return;
	msg = message(group, TN_GROUP_LEAVE, 0, NULL);
	(void)ask(group->ps, &msg, NULL);
	free(group);
}

tern_status tern_ps_group_begin(tern_ps_group *group, uint64_t step, uint64_t timeout_ns)
{
	tn_ps_group_msg msg = message(group, TN_GROUP_BEGIN, step, NULL);

	if (group->flags & TERN_PS_GROUP_SUM && step <= group->closed)
		return TERN_OK; /* this member has waited for that */
	msg.timeout_ns = timeout_ns;
	return ask(group->ps, &msg, NULL);
}

static tern_status end_summed(tern_ps_group *group, uint64_t step)
{
	tn_ps_group_msg msg = message(group, TN_GROUP_CLOSE, step + 1, NULL);
	uint64_t words[TN_PS_GROUP_WORDS];
	uint32_t count;

	if (step == UINT64_MAX)
		return tn_fail(TERN_E_INVALID, "no step comes after 2^64 - 1");
	TN_TRY(ask_words(group->ps, &msg, words, &count));
	if (count == 0 || words[0] <= step)
		return tn_fail(TERN_E_PROTOCOL, "the answer to the end of a step can't be read");
	TN_TRY(bring(group->ps, group->life, words, count));
	group->closed = words[0];
	return TERN_OK;
}

tern_status tern_ps_group_end(tern_ps_group *group, uint64_t step)
{
	tn_ps_group_msg msg = message(group, TN_GROUP_END, step == UINT64_MAX ? step : step + 1, NULL);

	if (group->flags & TERN_PS_GROUP_SUM)
		return end_summed(group, step);
	return ask(group->ps, &msg, NULL);
}

/* The row of a barrier; the first time the server is asked which round is open. */
static tern_status find_round(tern_ps_group *group, const char *name, round_row **row)
{
	tn_ps_group_msg msg = message(group, TN_GROUP_ROUND, 0, name);

	for (uint32_t i = 0; i < group->round_count; i++) {
		if (strcmp(group->rounds[i].name, name) == 0) {
			*row = &group->rounds[i];
			return TERN_OK;
		}
	}
	if (group->round_count == TN_COUNT_OF(group->rounds))
		return tn_fail(TERN_E_LIMIT, "%d barriers have names already: use one name in several rounds",
			       TN_BARRIERS_MAX);
	*row = &group->rounds[group->round_count];
	TN_TRY(ask(group->ps, &msg, &(*row)->next));
	strcpy((*row)->name, name);
	group->round_count++;
	return TERN_OK;
}

tern_status tern_ps_group_barrier(tern_ps_group *group, const char *name, uint64_t timeout_ns)
{
	tn_ps_group_msg msg;
	round_row *row = NULL;

	TN_TRY(check_name("barrier", name, false));
	TN_TRY(find_round(group, name, &row));
	msg = message(group, TN_GROUP_BARRIER, row->next, name);
	msg.timeout_ns = timeout_ns;
	TN_TRY(ask(group->ps, &msg, NULL));
	row->next++;
	return TERN_OK;
}

tern_status tern_ps_group_remove(tern_ps_group *group, const char *member)
{
	tn_ps_group_msg msg;

	TN_TRY(check_name("member", member, false));
	msg = message(group, TN_GROUP_REMOVE, 0, member);
	return ask(group->ps, &msg, NULL);
}

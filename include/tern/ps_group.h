/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of workers that train together on parameter servers: who may begin which step, and barriers.
 *
 *   staleness 0               bulk synchronous: a step begins when every member has ended the one before
 *   staleness s               stale synchronous: nobody is more than s steps ahead of the slowest
 *   TERN_PS_ASYNCHRONOUS      nobody waits
 *
 * With TERN_PS_GROUP_SUM (staleness 0) what members push with tern_ps_group_push in a step is kept by the servers and
 * applied when the step closes: all of it summed in the order of the members' names, each key once. The result is that of
 * one worker with all the batches, bit for bit the same in each run; give members different names.
 *
 * A step is a number that the member says, never a count of its calls: saying it again changes nothing. Who leaves is
 * not waited for any more; who joins begins where the slowest member is. The first server of the map keeps the groups.
 *
 * Threads: any; one handle is one member, so one thread at a time waits with it. Functions block; not from callbacks.
 */
#ifndef TERN_PS_GROUP_H
#define TERN_PS_GROUP_H

#include <tern/ps.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_PS_ASYNCHRONOUS UINT64_MAX
#define TERN_PS_NAME_MAX     48 /* of groups, members and barriers, NUL included */

#define TERN_PS_GROUP_SUM 1u

typedef struct tern_ps_group tern_ps_group;

/* Zero it, then set what differs. */
typedef struct tern_ps_group_params {
	const char *name;   /* of the group: all members say the same */
	const char *member; /* of this worker, for texts: "worker 3" */
	uint64_t staleness; /* all members say the same: TERN_E_INVALID */
	uint32_t flags;     /* TERN_PS_GROUP_*; all members say the same */
	uint32_t reserved;  /* 0 */
} tern_ps_group_params;

/*
 * Become a member. *step (may be NULL): the step to begin with. Waits up to the client's timeout. TERN_E_INVALID,
 * TERN_E_LIMIT (64 groups), as a call.
 */
tern_status tern_ps_group_join(tern_ps *ps, const tern_ps_group_params *params, uint64_t *step,
			       tern_ps_group **group);
/* Leave, and free the handle; nobody waits for this member any more. NULL is allowed. Before tern_ps_close. */
void tern_ps_group_leave(tern_ps_group *group);

/*
 * Wait until `step` may begin. TERN_E_DEADLINE after timeout_ns (0 = the client's): tern_detail() names the members
 * that are missing and where they are. TERN_E_CANCELED: this member was removed. TERN_E_NOT_FOUND: the server does not
 * know it (it restarted): join again.
 */
tern_status tern_ps_group_begin(tern_ps_group *group, uint64_t step, uint64_t timeout_ns);
/*
 * This member has ended `step` and all before: its pushes of them are acknowledged.
 *
 * TERN_PS_GROUP_SUM: waits, up to the client's timeout, until all members have ended it or left, and their sum is applied
 * at all servers. TERN_E_DEADLINE as begin; this member has ended the step all the same, and the next call waits on. What a
 * push would say of the sum (TERN_E_BUDGET, TERN_E_CORRUPT) all members are told. Who left, or was removed, in the middle
 * of the step is left out.
 */
tern_status tern_ps_group_end(tern_ps_group *group, uint64_t step);
/*
 * TERN_PS_GROUP_SUM: gradients for params->step, which this member has not ended. Returns when every server has its part,
 * and with replication its backup; applied it is when the step ends. Servers that die, or slots that move, in the middle of a
 * step cost time alone. Memory is the caller's again. params->mode: TERN_PUSH_GRADIENT. TERN_E_STATE: the step is closed, or
 * the group is not summed; TERN_E_LIMIT: gradients of open steps exceed option ps.staged_bytes. After TERN_E_DEADLINE some
 * servers have their part: the step must not be pushed again. Not saved by tern_ps_save before the step ends.
 */
tern_status tern_ps_group_push(tern_ps_group *group, tern_table *table, const tern_table_push_params *params,
			       uint64_t timeout_ns);
/*
 * Wait at the barrier of that name until every member that was in the group when the first one arrived has arrived or
 * left. Errors as begin. After a TERN_E_DEADLINE this member has arrived all the same; the next call waits on.
 */
tern_status tern_ps_group_barrier(tern_ps_group *group, const char *name, uint64_t timeout_ns);
/* Remove a member that died, by its name; the youngest of that name. TERN_E_NOT_FOUND. */
tern_status tern_ps_group_remove(tern_ps_group *group, const char *member);

#ifdef __cplusplus
}
#endif

#endif

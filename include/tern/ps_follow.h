/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From training to serving: a server that follows a chain of checkpoints, read only.
 *
 * The directory is the way: training saves bases and deltas there (tern_ps_save, TERN_PS_SAVE_AUTO), each whole or not at
 * all, each with the id and checksum of the one before. A follower takes them in that order, deletes and all, verifies
 * each before it touches a row, and says in the directory how far it has come; what it has not got is not removed.
 * It has values alone: no optimiser state, no metadata.
 *
 * A pull at a follower sees one version of the table, all its rows: the next version is made in a second copy, and shown
 * when it is whole (TERN_PS_FOLLOW_IN_PLACE: one copy, and a pull sees one version of each row, perhaps different ones of
 * different rows). Pushes, erasures, saves and new tables are refused; keys without a row get their initial value.
 *
 * Threads: any; not from callbacks.
 */
#ifndef TERN_PS_FOLLOW_H
#define TERN_PS_FOLLOW_H

#include <tern/ps.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_PS_FOLLOW_IN_PLACE 1u
#define TERN_PS_FOLLOW_LAST     UINT64_MAX

/* Zero it, then set what differs. */
typedef struct tern_ps_follow_params {
	const char *dir; /* of checkpoints */
	const char *
		name; /* of this follower, to acknowledge under: letters, digits, "._-"; NULL: it says nothing */
	uint64_t sequence; /* stay at this version; 0 = follow the last one */
	uint64_t poll_ns;  /* how often to look; 0 = 200 ms */
	uint32_t flags;    /* TERN_PS_FOLLOW_IN_PLACE */
	uint32_t reserved; /* 0 */
} tern_ps_follow_params;

/*
 * Before the server has tables; it follows until it is closed. The version that is there now is served when it returns;
 * none yet is no fault. Blocks while it reads. TERN_E_STATE: it has tables, or follows already. TERN_E_CORRUPT and the
 * like: what is wrong with that version.
 */
tern_status tern_ps_server_follow(tern_ps_server *server, const tern_ps_follow_params *params);

typedef struct tern_ps_follow_stats {
	uint64_t sequence;     /* that is served; 0 with saved_ns 0: none yet */
	uint64_t newest;       /* that is there */
	uint64_t pinned;       /* the version to stay at; TERN_PS_FOLLOW_LAST: none */
	uint64_t behind;       /* checkpoints that are later than what is served */
	uint64_t behind_ns;    /* by how much the newest one was saved later */
	uint64_t behind_steps; /* the same in steps of the job, if it says them */
	uint64_t age_ns;       /* since what is served was saved (wall clocks of both hosts) */
	uint64_t saved_ns;     /* what is served: wall clock */
	uint64_t applied;      /* checkpoints so far */
	uint64_t failed;       /* attempts that failed; the version before stays */
	uint32_t looked;       /* 1: it looked at the directory since it was told where to go */
	tern_status status;    /* of the last attempt */
	char error[256];       /* in words; "": it went well */
} tern_ps_follow_stats;

/* Of server number `server` of the map. TERN_E_NO_METHOD: it follows nothing. */
tern_status tern_ps_followed(tern_ps *ps, uint32_t server, tern_ps_follow_stats *stats);

/*
 * All servers go to a version and stay there: back to an earlier one, too. TERN_PS_FOLLOW_LAST: they follow again. Waits until
 * all serve it. TERN_E_NOT_FOUND, TERN_E_CORRUPT and the like from a server that can't, which serves on what it had;
 * TERN_E_DEADLINE (0 = 60 s).
 */
tern_status tern_ps_follow_to(tern_ps *ps, uint64_t sequence, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif

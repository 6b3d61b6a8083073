/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that were done and are not to be answered yet, because a backup has not got them.
 *
 *   writer   a push, an erase, rows made by a pull: over when all streams that have its images are past them
 *   reader   a pull, or a push that was known: over when all writers of the table that began before it are over; what it
 *            saw is replicated then
 *   both     a push of which some slots were known: their images may go to other backups than those of the new ones, so
 *            that it is over when a reader in its place is, and its own streams are past it
 *
 *   queue    those of one table, in the order in which they began; a writer that is over leaves it wherever it stands, a
 *            reader at the head does
 *
 * Pure. Threads: one at a time (the caller's lock). Tests: tests/unit/ps/repl_sim.
 */
#ifndef TN_PS_REPL_COMMIT_H
#define TN_PS_REPL_COMMIT_H

#include "base/list.h"
#include "ps/repl.h"

typedef struct tn_commits {
	tn_list list;
	_Atomic uint32_t count; /* may be looked at by anybody */
} tn_commits;

typedef struct tn_commit {
	tn_list node;
	tn_commits *queue;
	uint32_t pending; /* streams, and 1 until it is let go by who began it */
	bool reader;
	bool refused; /* a backup refused some of it */
	tn_ps_slots slots;
} tn_commit;

void tn_commits_init(tn_commits *queue);
/* At the end of the queue, pending once. */
void tn_commit_begin(tn_commits *queue, tn_commit *commit, bool reader);
static inline void tn_commit_hold(tn_commit *commit)
{
	commit->pending++;
}
/* It tells of what was done before it, too. */
void tn_commit_reads(tn_commit *commit);
/* Pending once less. Those that are over now, this one and readers behind it, go to the end of `over`. */
void tn_commit_release(tn_commit *commit, tn_list *over);

typedef enum tn_commit_end {
	TN_COMMIT_OK,
	TN_COMMIT_AGAIN, /* it is not known whether it will last, or it must not be told: ask again */
	TN_COMMIT_WRONG, /* the slots, or some, are another server's now */
} tn_commit_end;
/* What is to be said of one that is over. lease: is it valid, now? Hold shared. */
tn_commit_end tn_commit_judge(const tn_commit *commit, const tn_repl *r, bool lease);

#endif

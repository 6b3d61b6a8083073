/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving and restoring the tables of all servers of a job.
 *
 * A save is one cut: pushes stand still while every server marks its tables, which takes as long as a few messages;
 * then they go on, and so do pulls all the time, while each server writes what its tables were at that moment. A push
 * that was under way at that moment may be in the cut at some servers and not at others; which, is saved with the rows,
 * so that asking for it again after a restore applies the rest of it.
 *
 * The directory of checkpoints must be the same for all servers and for this process (one host, or a shared file
 * system). What is in it: <tern/checkpoint.h>.
 *
 * Threads: any; both functions block. Not from callbacks.
 */
#ifndef TERN_PS_SAVE_H
#define TERN_PS_SAVE_H

#include <tern/ps.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A chain of checkpoints is a base and deltas to it, each to the one before: what was written, made or erased since. Each
 * names the one that it goes on from by id and checksum. Servers remember what changed since a checkpoint until the next
 * one is on disk, so that no failed save loses any of it.
 */
typedef enum tern_ps_save_kind {
	TERN_PS_SAVE_ALONE = 0, /* all rows; no chain begins or ends with it */
	TERN_PS_SAVE_BASE = 1,  /* all rows; deltas may follow */
	TERN_PS_SAVE_DELTA =
		2, /* what changed since the last checkpoint of dir; TERN_E_STATE if that is not known */
	TERN_PS_SAVE_AUTO = 3, /* a delta, or a base where none can be or deltas_max is reached */
} tern_ps_save_kind;

/* Zero it, then set what differs. */
typedef struct tern_ps_save_params {
	const char *dir;           /* of checkpoints; an absolute path; made if need be */
	uint64_t sequence;         /* 0 = one more than the last one there */
	uint64_t bytes_per_second; /* that each server writes at most; 0 = as fast as it can */
	uint64_t timeout_ns;       /* 0 = an hour */
	uint32_t keep;             /* this many checkpoints are kept, and what they go on from; older ones are
				      removed; 0 = all */
	tern_ps_save_kind kind;
	uint64_t step;       /* of the job: goes into the manifest, for those who follow it; 0 = unknown */
	uint32_t deltas_max; /* AUTO: deltas before the next base; 0 = 64, at most 512 */
	uint32_t reserved;   /* 0 */
} tern_ps_save_params;

typedef struct tern_ps_save_result {
	uint64_t sequence;
	uint64_t base; /* the checkpoint that it is a delta to; UINT64_MAX: none */
	uint64_t rows, bytes, files;
	uint64_t gone;     /* keys of a delta that have no row any more */
	uint64_t held_ns;  /* how long pushes stood still */
	uint64_t total_ns; /* from the call to the rename */
} tern_ps_save_result;

/*
 * Save all tables. result may be NULL. When it returns anything but TERN_OK, nothing is left of it, and the last
 * checkpoint is the one before. TERN_E_STATE: a delta was wanted and can't be, in words; another save is under way, or servers still write one whose leader died;
 * slots are being given to other servers: try again. TERN_E_IO (no space: says how much there is);
 * the server that failed is named.
 */
tern_status tern_ps_save(tern_ps *ps, const tern_ps_save_params *params, tern_ps_save_result *result);

/*
 * A delta is restored with all that it goes on from. Make the tables of a checkpoint at all servers and fill them; each server takes the rows that are its own, however
 * many servers there were when it was saved. Files are verified first. sequence UINT64_MAX: the last one. TERN_E_EXISTS:
 * a server has a table of that name. TERN_E_STATE: slots were given to other servers meanwhile: try again. After a failure no
 * table is left of those that were to be restored.
 */
tern_status tern_ps_restore(tern_ps *ps, const char *dir, uint64_t sequence, uint64_t timeout_ns,
			    tern_ps_save_result *result);

#ifdef __cplusplus
}
#endif

#endif

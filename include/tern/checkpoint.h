/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints on disk: which there are, what is in them, whether they are whole. Nothing here needs a context or a
 * server, and nothing changes what it looks at.
 *
 * A checkpoint is a directory DIR/ckpt-SEQUENCE of files in the safetensors format, which any program can read, and
 * manifest.json, which names them with length and checksum. It is there as a whole or not at all. A delta has what
 * changed since another checkpoint of the same directory, its base, which it names by id and checksum; the base may be a
 * delta itself.
 *
 * Threads: one at a time per handle. Functions block while they read.
 */
#ifndef TERN_CHECKPOINT_H
#define TERN_CHECKPOINT_H

#include <tern/ps.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_CHECKPOINT_LAST UINT64_MAX /* the last one; also: none */

typedef struct tern_checkpoint tern_checkpoint;

/* fn gets each sequence number below `dir`, lowest first; what it returns other than 0 ends the walk. TERN_E_NOT_FOUND
   (no such directory), TERN_E_IO, TERN_E_NOMEM. */
tern_status tern_checkpoint_list(const char *dir, int (*fn)(uint64_t sequence, void *arg), void *arg);

/* TERN_E_NOT_FOUND; TERN_E_CORRUPT (its manifest), TERN_E_VERSION (of another version), TERN_E_IO, TERN_E_NOMEM. */
tern_status tern_checkpoint_open(const char *dir, uint64_t sequence, tern_checkpoint **checkpoint);
/* NULL is allowed. */
void tern_checkpoint_close(tern_checkpoint *checkpoint);

typedef struct tern_checkpoint_info {
	uint64_t sequence;
	uint64_t
		base; /* the checkpoint that this one is a delta to; TERN_CHECKPOINT_LAST: none, it stands alone */
	uint64_t bytes;
	uint32_t files;
	uint32_t tables;
	uint64_t saved_ns; /* wall clock */
	uint64_t step;     /* of the job, if it said; else 0 */
	uint64_t id;       /* drawn when it was saved; 0: it has none */
	uint32_t deltas;   /* from the checkpoint that stands alone to this one; 0: this one does */
	uint32_t reserved; /* 0 */
} tern_checkpoint_info;
/* What it says of itself. Any thread. */
void tern_checkpoint_get(const tern_checkpoint *checkpoint, tern_checkpoint_info *info);

typedef struct tern_checkpoint_table_info {
	tern_table_schema schema;
	uint64_t rows; /* of a delta: that changed */
	uint64_t bytes;
	uint32_t files;
	uint32_t
		full; /* 1: these are all rows of the table, whatever was before; of a delta: it was made since */
	uint64_t gone; /* keys of a delta that have no row any more */
} tern_checkpoint_table_info;
/* Table number i. TERN_E_NOT_FOUND past the last one, TERN_E_CORRUPT. */
tern_status tern_checkpoint_table(const tern_checkpoint *checkpoint, uint32_t i,
				  tern_checkpoint_table_info *info);

/* A server that follows the chain, and how far it has come (<tern/ps_follow.h>). */
typedef struct tern_checkpoint_follower {
	char name[64];
	uint64_t sequence;
	uint64_t heard_ns; /* wall clock: when it said so */
} tern_checkpoint_follower;
/* fn gets each; what it returns other than 0 ends the walk. TERN_E_NOT_FOUND, TERN_E_IO. */
tern_status tern_checkpoint_followers(const char *dir,
				      int (*fn)(const tern_checkpoint_follower *follower, void *arg),
				      void *arg);

/*
 * Read all of it, and of what it goes on from, and compare lengths, checksums and counts of rows. progress (may be NULL) is called about every MiB;
 * what it returns other than 0 ends it with TERN_E_CANCELED. TERN_E_CORRUPT names the first file that differs,
 * or the checkpoint that is missing or is not the one that the delta was made for.
 */
tern_status tern_checkpoint_verify(const tern_checkpoint *checkpoint,
				   int (*progress)(uint64_t bytes, uint64_t total, void *arg), void *arg);

#ifdef __cplusplus
}
#endif

#endif

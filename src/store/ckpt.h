/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of checkpoints. A checkpoint is a directory of files and a manifest that names each of them with length
 * and checksum; it is there as a whole or not at all, whatever byte the writer died at:
 *
 *   DIR/ckpt-00000000000000000042/           written as DIR/.tmp-..., files fsynced, then renamed
 *       manifest.json                        written last; its own CRC-32C is the line after the JSON
 *       NAME.safetensors ...
 *
 * A checkpoint stands alone, or is a delta: what changed since another one, which it names:
 *
 *   id           16 hexadecimal digits, drawn for each checkpoint
 *   base         sequence of the one that it goes on from
 *   base_id, base_crc32c     of that one: its id, and the CRC-32C of its manifest, so that no other can take its place
 *   deltas       how many there are from the one that stands alone to this one
 *
 *   saved_ns     of the wall clock
 *   step         of the job, if it said
 *
 * Who follows a chain says how far it has come, in DIR/followers/NAME: what it has not got is not removed.
 *
 * The manifest says how many rows belong to what; who wrote them, and on how many machines, is of no account to who
 * reads them. Sequence numbers grow; of two checkpoints the higher one is the later.
 *
 * Must not: know tables. Threads: one per object. Blocks. Tests: tests/unit/store/ckpt_test.c.
 */
#ifndef TN_STORE_CKPT_H
#define TN_STORE_CKPT_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>
#include <tern/status.h>

#include "store/file.h"

#define TN_CKPT_FORMAT       "tern.checkpoint/1"
#define TN_CKPT_MANIFEST     "manifest.json"
#define TN_CKPT_MANIFEST_MAX (256u << 20)

/* ---- writing ---- */

typedef struct tn_ckpt {
	int root, dir;
	uint64_t sequence;
	char temp[64], name[40];
	json_t *files; /* array of {name, bytes, crc32c} and what the caller adds */
	json_t *extra; /* members of the manifest beside them: the caller's to set */
} tn_ckpt;

/* Begin checkpoint `sequence` below the directory `path`, which is made if need be. TERN_E_EXISTS: it is there. */
tern_status tn_ckpt_begin(tn_ckpt *ckpt, const char *path, uint64_t sequence);
/* A finished file of ckpt->dir goes into the manifest. extra: more members of its row, taken over; may be NULL. */
tern_status tn_ckpt_add(tn_ckpt *ckpt, const tn_file *file, json_t *extra);
/*
 * Write the manifest, and make it the checkpoint. The object is done with either way; on failure nothing is left.
 */
tern_status tn_ckpt_commit(tn_ckpt *ckpt);
/* Give it up and remove what was written; harmless after commit. */
void tn_ckpt_abort(tn_ckpt *ckpt);
/* The checkpoint being written is a delta to `base`, or (NULL) stands alone; id: its own. TERN_E_LIMIT: the chain is too
   long; TERN_E_NOMEM. */
struct tn_ckpt_reader;
tern_status tn_ckpt_name_base(tn_ckpt *ckpt, uint64_t id, const struct tn_ckpt_reader *base);
/* Remove all but the last `keep` checkpoints, and what writers that died left. A checkpoint that another one is based
   on is kept, and so is what a follower that was heard of in the last TN_CKPT_FOLLOWER_NS has not acknowledged. */
tern_status tn_ckpt_prune(const char *path, unsigned keep);

/* ---- reading ---- */

/* Sequence numbers that are there, lowest first; free() them. None: *count 0 and TERN_OK. */
tern_status tn_ckpt_list(const char *path, uint64_t **sequences, unsigned *count);

typedef struct tn_ckpt_reader {
	int dir;
	uint64_t sequence;
	char name[40];
	json_t *manifest;
	uint32_t crc;            /* of the manifest */
	uint64_t id;             /* 0: it has none */
	uint64_t saved_ns, step; /* wall clock; what the job said; 0: unknown */
	uint32_t deltas;         /* 0: it stands alone */
	uint64_t base, base_id;
	uint32_t base_crc;
} tn_ckpt_reader;

/* sequence UINT64_MAX: the last one. TERN_E_NOT_FOUND, TERN_E_CORRUPT (manifest), TERN_E_VERSION (another format). */
tern_status tn_ckpt_open(tn_ckpt_reader *reader, const char *path, uint64_t sequence);
void tn_ckpt_close(tn_ckpt_reader *reader);
/* Rows of the manifest's "files"; borrowed. */
unsigned tn_ckpt_files(const tn_ckpt_reader *reader);
const json_t *tn_ckpt_file(const tn_ckpt_reader *reader, unsigned i);
/* Read every file and compare length and checksum. TERN_E_CORRUPT names the first that differs. */
tern_status tn_ckpt_verify(const tn_ckpt_reader *reader, tn_file_pace pace, void *pace_arg);

/* ---- chains ---- */

#define TN_CKPT_DELTAS_MAX 512u

/* A checkpoint and all that it goes on from: links[0] stands alone, links[count - 1] is the one that was asked for. */
typedef struct tn_ckpt_chain {
	unsigned count;
	tn_ckpt_reader *links;
} tn_ckpt_chain;

/* As tn_ckpt_open. TERN_E_CORRUPT: a link is missing, or is not the one that its delta was made for. */
tern_status tn_ckpt_chain_open(tn_ckpt_chain *chain, const char *path, uint64_t sequence);
void tn_ckpt_chain_close(tn_ckpt_chain *chain);
static inline const tn_ckpt_reader *tn_ckpt_chain_last(const tn_ckpt_chain *chain)
{
	return &chain->links[chain->count - 1];
}
/* tn_ckpt_verify of every link. */
tern_status tn_ckpt_chain_verify(const tn_ckpt_chain *chain, tn_file_pace pace, void *pace_arg);

/* ---- followers ---- */

#define TN_CKPT_FOLLOWERS   "followers"
#define TN_CKPT_FOLLOWER_NS (3600ull * 1000000000) /* silent for longer: gone */

typedef struct tn_ckpt_ack {
	char name[64];
	uint64_t sequence, id;
	uint64_t at_ns; /* wall clock */
} tn_ckpt_ack;

/* Replaces what the follower of that name said before. A name is of letters, digits and "._-". TERN_E_INVALID, _IO. */
tern_status tn_ckpt_acknowledge(const char *path, const tn_ckpt_ack *ack);
/* Each follower; what fn returns other than 0 ends the walk. Files that can't be read are passed over. None: TERN_OK. */
tern_status tn_ckpt_acks(const char *path, int (*fn)(const tn_ckpt_ack *ack, void *arg), void *arg);

#endif

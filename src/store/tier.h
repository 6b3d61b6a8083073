/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A place for records that do not fit into memory: images of equal size by a u64, in its order. What is in it is the
 * overflow of a table that is in memory, so it need not outlive the process: it is empty when it is opened, and gone when
 * it is closed. Durable are checkpoints alone.
 *
 *   tier   put, get, remove: last writer wins; the caller orders calls for one place
 *   walk   images of a range as of the moment when it began, lowest first, whatever happens meanwhile
 *
 * Every function blocks. Threads: any, but a walk belongs to one at a time.
 * Tests: tests/unit/store/tier_test.c (each kind), tests/unit/ps/model_test.c.
 */
#ifndef TN_STORE_TIER_H
#define TN_STORE_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/status.h>

typedef struct tn_tier tn_tier;
typedef struct tn_tier_walk tn_tier_walk;

/* Failures have words that name the directory: TERN_E_IO, TERN_E_NOMEM. */
typedef struct tn_tier_ops {
	const char *name;
	tern_status (*put)(tn_tier *tier, uint64_t place, const void *image);
	/* image NULL: only whether it is there. */
	tern_status (*get)(tn_tier *tier, uint64_t place, void *image, bool *there);
	/* Those that are there will be got soon: read them together, so that get finds them in memory. A hint. */
	void (*expect)(tn_tier *tier, const uint64_t *places, uint32_t n);
	tern_status (*remove)(tn_tier *tier, uint64_t place);
	tern_status (*walk)(tn_tier *tier, uint64_t first, uint64_t last, tn_tier_walk **walk);
	/* *image is good until the next call; NULL at the end. */
	tern_status (*next)(tn_tier_walk *walk, uint64_t *place, const void **image);
	void (*walk_end)(tn_tier_walk *walk);
	uint64_t (*bytes)(tn_tier *tier); /* on disk, about */
	void (*close)(tn_tier *tier);     /* no walk is open */
} tn_tier_ops;

struct tn_tier {
	const tn_tier_ops *ops;
	uint64_t image_bytes;
};

typedef struct tn_tier_params {
	const char *dir; /* of this tier alone: what is in it is destroyed; its parent exists */
	uint64_t image_bytes;
	uint64_t cache_bytes; /* of memory for reading; 0 = 32 MiB */
} tn_tier_params;

/*
 * On RocksDB, whose library is loaded when the first one is opened. TERN_E_UNSUPPORTED: it is not there (which package to
 * install), or tern was built without its header; TERN_E_IN_USE: another process has it; TERN_E_IO.
 */
tern_status tn_tier_open_rocksdb(const tn_tier_params *params, tn_tier **tier);

#endif

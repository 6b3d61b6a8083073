/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer's state on a context: options and counters, and the one server that may be open on it.
 *
 * Threads: any. Tests: tests/unit/ps.
 */
#ifndef TN_PS_STATE_H
#define TN_PS_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/ps.h>

#include "base/options.h"
#include "channel/ctx_slots.h"

extern const tn_option_row tn_ps_options[];

/* X(name): counters "ps.<name>" of a context. */
#define TN_PS_COUNTERS(X)                                                                     \
	X(pulls)    /* client: accepted */                                                    \
	X(pushes)   /* client: accepted */                                                    \
	X(retries)  /* client: pieces sent again: a link or a server was lost, or busy */     \
	X(reroutes) /* client: pieces for which the map was old */                            \
	X(copies)   /* client: rows copied from or to a buffer of its own */                  \
	X(copy_bytes)                                                                         \
	X(one_sided)      /* client: rows read where they lie, without the server */          \
	X(one_sided_left) /* client: of pulls that wanted that, rows that were asked for */   \
	X(layouts)        /* client: where rows lie, asked for */                             \
	X(batches)        /* server */                                                        \
	X(in_place)       /* server: of those, rows went straight between table and caller */ \
	X(packed)         /* server: of those, rows were packed and put */                    \
	X(packed_bytes)                                                                       \
	X(handed) /* server: batches that went to a worker, with a copy of their arguments */ \
	X(handed_bytes)                                                                       \
	X(duplicates)   /* server: pushes that had been applied already */                    \
	X(wrong_server) /* server: batches that belong elsewhere */                           \
	X(malformed)    /* server: batches that could not be read */

typedef struct tn_ps_counters {
#define TN_PS_COUNTER_FIELD(name) _Atomic uint64_t name;
	TN_PS_COUNTERS(TN_PS_COUNTER_FIELD)
#undef TN_PS_COUNTER_FIELD
} tn_ps_counters;

#define TN_PS_COUNT(counters, name, n) atomic_fetch_add_explicit(&(counters)->name, (n), memory_order_relaxed)

typedef struct tn_ps_state {
	tn_ctx_slot slot; /* first */
	tn_ps_counters counters;
	_Atomic(struct tern_ps_server *) server;
	pthread_mutex_t watch_lock; /* held while somebody looks at: */
	struct tn_ps_groups *groups;
} tn_ps_state;

/* Made at first use. NULL: out of memory. */
tn_ps_state *tn_ps_state_get(tern_ctx *ctx);
/* The groups whose waits are shown; NULL: none, and nobody looks at the last ones any more. */
void tn_ps_state_watch(tn_ps_state *state, struct tn_ps_groups *groups);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happened to one key, and whether it is linearizable: a set that only grows, to which each push adds an element of
 * its own, and of which a pull returns all.
 *
 *   push   adds id; from invoke to ret, UINT64_MAX while nobody was told that it was done (it may happen any time, or never)
 *   pull   saw a set; pulls that nobody was answered are not here
 *
 * Elements are distinct and a pull returns the whole set, so who comes first of a push and a pull is written in the
 * pull: a in S(r) <=> a before r. With that an order of all can exist only if
 *
 *   - the sets of pulls lie within one another: S(r1) in S(r2) or S(r2) in S(r1)
 *   - level(r) = |S(r)|, level(a) = the least level of a pull that saw a (none: above all), pushes of a level before
 *     its pulls: nobody who returned before another was invoked stands on a later place of this order than that one
 *
 * Both are forced: a push of level l stands behind every pull below l, which did not see it, and before the pull of
 * level l, which did. And they are enough: sort by (level, pushes first, invoke), and each pull has before it the pushes
 * that it saw, no others. So the check is exact, and costs a sort. history_search finds the same by trying all orders
 * (Wing and Gong, with the sets of operations that were tried remembered): the twin that history_test compares it with.
 *
 * Pure. Threads: none. Tests: history_test in main.c.
 */
#ifndef TN_TESTS_PS_HISTORY_H
#define TN_TESTS_PS_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define IDS   384u /* elements of a key */
#define NEVER UINT64_MAX

typedef struct id_set {
	uint64_t bits[IDS / 64];
} id_set;

typedef struct entry {
	bool pull;
	uint32_t id; /* push */
	uint32_t level;
	uint64_t invoke, ret;
	id_set seen; /* pull */
} entry;

typedef struct history {
	entry *at;
	uint32_t count, room;
	uint32_t ids; /* that were given out */
} history;

static inline bool set_has(const id_set *s, uint32_t id)
{
	return s->bits[id / 64] >> (id % 64) & 1;
}

static inline void set_add(id_set *s, uint32_t id)
{
	s->bits[id / 64] |= 1ull << (id % 64);
}

/* A push that begins: its place, of which `ret` is to be set. */
uint32_t history_push(history *h, uint64_t invoke, uint32_t id);
void history_pull(history *h, uint64_t invoke, uint64_t ret, const id_set *seen);
void history_free(history *h);

/* NULL: linearizable. Else why not, in words that last until the next call. */
const char *history_check(history *h);
/* The same by search; at most 20 operations. */
bool history_search(const history *h);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histories of keys. See history.h, which has the reasoning. Threads: none. Tests: main.c.
 */
#include "history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static entry *next_entry(history *h)
{
	if (h->count == h->room) {
		h->room = h->room ? 2 * h->room : 64;
		h->at = realloc(h->at, h->room * sizeof(*h->at));
		TN_ASSERT(h->at);
	}
	memset(&h->at[h->count], 0, sizeof(*h->at));
	return &h->at[h->count++];
}

uint32_t history_push(history *h, uint64_t invoke, uint32_t id)
{
	entry *e = next_entry(h);

	e->id = id;
	e->invoke = invoke;
	e->ret = NEVER;
	return h->count - 1;
}

void history_pull(history *h, uint64_t invoke, uint64_t ret, const id_set *seen)
{
	entry *e = next_entry(h);

	e->pull = true;
	e->invoke = invoke;
	e->ret = ret;
	e->seen = *seen;
}

void history_free(history *h)
{
	free(h->at);
	memset(h, 0, sizeof(*h));
}

/* ---- the check ---- */

static uint32_t size_of(const id_set *s)
{
	uint32_t n = 0;

	for (unsigned w = 0; w < IDS / 64; w++)
		n += (uint32_t)__builtin_popcountll(s->bits[w]);
	return n;
}

static bool within(const id_set *some, const id_set *all)
{
	for (unsigned w = 0; w < IDS / 64; w++)
		if (some->bits[w] & ~all->bits[w])
			return false;
	return true;
}

static int by_place(const void *x, const void *y)
{
	const entry *a = *(entry *const *)x, *b = *(entry *const *)y;

	if (a->level != b->level)
		return a->level < b->level ? -1 : 1;
	if (a->pull != b->pull)
		return a->pull ? 1 : -1;
	return a->invoke < b->invoke ? -1 : a->invoke > b->invoke;
}

static char why[512];

static void describe(char *out, size_t bytes, const entry *e)
{
	if (e->pull)
		snprintf(out, bytes, "a pull of %llu to %llu that saw %u", (unsigned long long)e->invoke,
			 (unsigned long long)e->ret, e->level);
	else
		snprintf(out, bytes, "the push of %u, of %llu to %lld", e->id, (unsigned long long)e->invoke,
			 (long long)e->ret);
}

static const char *say(const char *what, const entry *a, const entry *b)
{
	char first[160], second[160];

	describe(first, sizeof(first), a);
	describe(second, sizeof(second), b);
	snprintf(why, sizeof(why), "%s: %s; %s", what, first, second);
	return why;
}

/* Levels, and the chain of sets: pulls come in the order of theirs. */
static const char *set_levels(const history *h, entry **pulls, uint32_t *count)
{
	uint32_t n = 0, first[IDS];

	for (uint32_t i = 0; i < IDS; i++)
		first[i] = UINT32_MAX;
	for (uint32_t i = 0; i < h->count; i++)
		if (h->at[i].pull) {
			h->at[i].level = size_of(&h->at[i].seen);
			pulls[n++] = &h->at[i];
		}
	qsort(pulls, n, sizeof(*pulls), by_place);
	for (uint32_t i = 1; i < n; i++)
		if (!within(&pulls[i - 1]->seen, &pulls[i]->seen))
			return say("two pulls, and neither has all that the other saw", pulls[i - 1],
				   pulls[i]);
	for (uint32_t i = n; i-- > 0;)
		for (uint32_t id = 0; id < IDS; id++)
			if (set_has(&pulls[i]->seen, id))
				first[id] = pulls[i]->level;
	for (uint32_t i = 0; i < h->count; i++)
		if (!h->at[i].pull) {
			h->at[i].level = first[h->at[i].id];
			first[h->at[i].id] = UINT32_MAX;
		}
	for (uint32_t id = 0; id < IDS; id++)
		if (first[id] != UINT32_MAX) {
			snprintf(why, sizeof(why), "a pull saw %u, which nobody pushed", id);
			return why;
		}
	*count = n;
	return NULL;
}

static bool same_place(const entry *a, const entry *b)
{
	return a->level == b->level && a->pull == b->pull;
}

const char *history_check(history *h)
{
	entry **order = calloc(h->count + 1, sizeof(*order));
	const entry *latest = NULL; /* invoked last, of those on earlier places */
	uint32_t n = 0, end;
	const char *bad;

	TN_ASSERT(order);
	bad = set_levels(h, order, &n);
	for (n = 0; !bad && n < h->count; n++)
		order[n] = &h->at[n];
	if (!bad)
		qsort(order, h->count, sizeof(*order), by_place);
	for (uint32_t i = 0; !bad && i < h->count; i = end) {
		for (end = i; !bad && end < h->count && same_place(order[i], order[end]); end++)
			if (latest && order[end]->ret < latest->invoke)
				bad = say("one that had returned, and one that began afterwards and does not "
					  "know of it",
					  order[end], latest);
		if (!bad && (!latest || order[end - 1]->invoke > latest->invoke))
			latest = order[end - 1];
	}
	free(order);
	return bad;
}

/* ---- the twin ---- */

static bool may_be_next(const history *h, uint32_t done, const id_set *state, uint32_t i)
{
	for (uint32_t k = 0; k < h->count; k++)
		if (!(done >> k & 1) && h->at[k].ret < h->at[i].invoke)
			return false;
	return !h->at[i].pull || memcmp(&h->at[i].seen, state, sizeof(*state)) == 0;
}

static bool search(const history *h, uint32_t done, uint32_t need, uint8_t *tried)
{
	id_set state = {{0}};

	if ((done & need) == need)
		return true;
	if (tried[done])
		return false;
	tried[done] = 1;
	for (uint32_t k = 0; k < h->count; k++)
		if (done >> k & 1 && !h->at[k].pull)
			set_add(&state, h->at[k].id);
	for (uint32_t i = 0; i < h->count; i++)
		if (!(done >> i & 1) && may_be_next(h, done, &state, i) &&
		    search(h, done | 1u << i, need, tried))
			return true;
	return false;
}

bool history_search(const history *h)
{
	uint8_t *tried = calloc(1u << h->count, 1);
	uint32_t need = 0;
	bool ok;

	TN_ASSERT(h->count <= 20 && tried);
	for (uint32_t i = 0; i < h->count; i++)
		if (h->at[i].ret != NEVER)
			need |= 1u << i;
	ok = search(h, 0, need, tried);
	free(tried);
	return ok;
}

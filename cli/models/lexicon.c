/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words and how often they come. See lexicon.h.
 */
#include "lexicon.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

/* The place of a word, empty if it is not there. */
static lexicon_word *place(const lexicon *l, const char *word)
{
	uint64_t i = text_hash(word) & (l->size - 1);

	while (l->table[i].word && strcmp(l->table[i].word, word) != 0)
		i = (i + 1) & (l->size - 1);
	return &l->table[i];
}

static bool grow(lexicon *l)
{
	lexicon more = {.size = l->size ? 2 * l->size : 1024, .used = l->used};

	more.table = calloc(more.size, sizeof(*more.table));
	if (!more.table)
		return false;
	for (uint64_t i = 0; i < l->size; i++)
		if (l->table[i].word)
			*place(&more, l->table[i].word) = l->table[i];
	free(l->table);
	*l = more;
	return true;
}

bool lexicon_count(lexicon *l, const char *word)
{
	lexicon_word *w;

	if (2 * l->used >= l->size && !grow(l))
		return false;
	w = place(l, word);
	l->used += !w->word;
	w->word = word;
	w->often++;
	return true;
}

uint32_t lexicon_id(const lexicon *l, const char *word)
{
	const lexicon_word *w = l->size ? place(l, word) : NULL;

	return w && w->word ? w->id : UINT32_MAX;
}

static int by_frequency(const void *a, const void *b)
{
	const lexicon_word *x = a, *y = b;

	if (x->often != y->often)
		return x->often > y->often ? -1 : 1;
	return strcmp(x->word, y->word);
}

lexicon_word *lexicon_rank(lexicon *l, uint64_t min_count, uint64_t most, uint64_t *n)
{
	lexicon_word *all = calloc(l->used + 1, sizeof(*all));

	*n = 0;
	for (uint64_t i = 0; all && i < l->size; i++) {
		l->table[i].id = UINT32_MAX;
		if (l->table[i].word && l->table[i].often >= min_count)
			all[(*n)++] = l->table[i];
	}
	if (!all)
		return NULL;
	qsort(all, *n, sizeof(*all), by_frequency);
	if (*n > most)
		*n = most;
	for (uint64_t i = 0; i < *n; i++)
		place(l, all[i].word)->id = all[i].id = (uint32_t)i;
	return all;
}

void lexicon_free(lexicon *l)
{
	free(l->table);
	memset(l, 0, sizeof(*l));
}

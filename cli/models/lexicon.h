/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words and how often they come: an open hash table. Words stay where they are and must outlive it. Threads: one.
 * Tests: tests/unit/cli/text_test.c, tests/unit/cli/corpus_test.c.
 */
#ifndef CLI_MODELS_LEXICON_H
#define CLI_MODELS_LEXICON_H

#include <stdbool.h>
#include <stdint.h>

typedef struct lexicon_word {
	const char *word; /* NULL: an empty place */
	uint64_t often;
	uint32_t id; /* once ranked; UINT32_MAX: not among those that are kept */
} lexicon_word;

/* All zero: empty. */
typedef struct lexicon {
	lexicon_word *table;
	uint64_t size, used; /* size is 0 or a power of two above 2 used */
} lexicon;

/* One more of a word. False: no memory. */
bool lexicon_count(lexicon *l, const char *word);
/* Its id; UINT32_MAX: not there, or not kept. After lexicon_rank. */
uint32_t lexicon_id(const lexicon *l, const char *word);
/*
 * Those that come min_count times or more, at most `most`, the most frequent first, equal ones by alphabet: they get the
 * numbers 0 to n - 1. free() it. NULL: no memory.
 */
lexicon_word *lexicon_rank(lexicon *l, uint64_t min_count, uint64_t most, uint64_t *n);
void lexicon_free(lexicon *l);

#endif

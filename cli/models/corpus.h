/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text as numbers: words in the order of their frequency, sentences in blocks of work.
 *
 *   word       letters (and bytes above 127), in lower case; fewer than min_count times: not there
 *   tokens     words of one sentence after the other; a sentence is a line
 *   block      whole sentences with about so many tokens: what a worker does in one step
 *
 * Threads: read-only after loading. Tests: tests/unit/cli/corpus_test.c.
 */
#ifndef CLI_MODELS_CORPUS_H
#define CLI_MODELS_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct corpus {
	char *text; /* words point into it */
	uint32_t words;
	const char **word; /* [words], the most frequent first; equal ones by alphabet */
	uint64_t *often;   /* [words] */
	uint64_t *key;     /* [words]: a hash of the word, the same in every text */
	uint64_t count;    /* of tokens */
	uint32_t *tokens;
	uint64_t sentences, blocks;
	uint64_t *sentence; /* [sentences + 1]: first tokens */
	uint64_t *block;    /* [blocks + 1]: first sentences */
} corpus;

/*
 * path NULL: what `bible` prints, of Debian's bible-kjv and bible-kjv-text. block_tokens: how much a worker does in a
 * step. False: error says why.
 */
bool corpus_load(corpus *c, const char *path, uint64_t min_count, uint64_t block_tokens, char *error,
		 size_t error_bytes);
void corpus_free(corpus *c);
/* words if it is not there */
uint32_t corpus_find(const corpus *c, const char *word);

#endif

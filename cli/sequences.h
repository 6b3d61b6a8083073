/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets of sequences, from texts.
 *
 *   a text     cut into rows of `steps` tokens, one behind the other; tokens are bytes or words, targets the tokens one place
 *              further. Every 20th kilobyte or so (a block of 16 rows) is held out
 *   pairs      sources, padded in front; the translation so far and the translation, padded behind. One in 20 is held out: by
 *              a hash of its source, so that a sentence that comes twice is on one side
 *
 * Words have numbers from 4 on, by their frequency in the part that is learned; those that come once there, or that are
 * behind the size of the vocabulary, are number 3.
 *
 * Threads: load in one, read from any. Tests: tests/unit/cli/sequences_test.c, tests/e2e/train_text_test.py.
 */
#ifndef CLI_SEQUENCES_H
#define CLI_SEQUENCES_H

#include <stddef.h>

#include "idx.h"

enum { TOKEN_PAD, TOKEN_BEGIN, TOKEN_END, TOKEN_UNKNOWN, TOKEN_WORDS };

typedef struct sequences_params {
	const char *text;    /* a file, pairs: several with commas; NULL: what Debian has */
	uint64_t steps;      /* of a row; pairs: longer sentences are left out */
	bool words;          /* a text: words, not bytes */
	uint64_t vocabulary; /* of words: how many numbers there are, of each language */
} sequences_params;

/* Both parts. False: error says why, in one line with the remedy; nothing is to be freed. */
bool sequences_text(const sequences_params *params, dataset *train, dataset *held, char *error,
		    size_t error_bytes);
bool sequences_pairs(const sequences_params *params, dataset *train, dataset *held, char *error,
		     size_t error_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parallel texts: sentences in two languages. Two formats are told apart by their first bytes:
 *
 *   gettext's catalogues (.mo, either byte order): messages and their translations, in UTF-8
 *   a pair per line, with a tab between, in UTF-8
 *
 * Files come from anywhere: nothing in them is trusted. Threads: any, each its own. Tests: tests/unit/cli/text_test.c.
 */
#ifndef CLI_MODELS_PAIRS_H
#define CLI_MODELS_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct text_pair {
	const char *source, *target; /* in the text that was parsed */
} text_pair;

/*
 * text: bytes and a NUL behind them, which may be changed, and is pointed into by *pairs (free() those). Of messages with a
 * context it is left out, of plurals the first form is taken, what is not translated is passed over. False: error says why.
 */
bool pairs_parse(char *text, uint64_t bytes, text_pair **pairs, uint64_t *count, char *error,
		 size_t error_bytes);

#endif

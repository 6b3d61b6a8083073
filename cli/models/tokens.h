/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text cut into words: letters (and bytes above 127), digits, and apostrophes within them, in lower case; the formats of
 * printf without their widths ("%-5s" is "%s", "%2$s" too); any other character that is not blank by itself.
 * Threads: any. Tests: tests/unit/cli/text_test.c.
 */
#ifndef CLI_MODELS_TOKENS_H
#define CLI_MODELS_TOKENS_H

#include <stddef.h>

/* Of a NUL-terminated text into out, which has room for twice its bytes and one more: each word with a NUL behind it. Returns
   the end of them. */
char *tokens_cut(const char *text, char *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts as they are: a file, or the bible of Debian. Memory: the whole text. Threads: any, each its own text.
 * Tests: tests/unit/cli/text_test.c.
 */
#ifndef CLI_MODELS_TEXT_H
#define CLI_MODELS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * path NULL: what `bible` prints, of Debian's bible-kjv and bible-kjv-text, a verse per line with its place in front. The text
 * is followed by a NUL; free() it. NULL: error says why, with the remedy.
 */
char *text_read(const char *path, uint64_t *bytes, char *error, size_t error_bytes);
/* What the bible's verses have in front ("Ge1:1 ") is cut out, in place; returns the bytes that are left. */
uint64_t text_strip_places(char *text);
/* Well-formed UTF-8: shortest forms, no surrogates, nothing above U+10FFFF. */
bool text_is_utf8(const char *text, uint64_t bytes);
/* FNV-1a of a NUL-terminated text. */
uint64_t text_hash(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parallel texts. See pairs.h. The format of catalogues is that of the manual of GNU gettext, "The Format of GNU MO Files":
 *
 *   0 magic   4 revision (major << 16)   8 N strings   12 their table   16 that of the translations   ...
 *   table: N times (length, offset); at the offset length bytes and a NUL
 */
#include "pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text.h"

#define MAGIC     0x950412deu
#define SWAPPED   0xde120495u
#define HEAD      20u
#define SEPARATOR '\4' /* between context and message */

typedef struct catalogue {
	char *text;
	uint64_t bytes;
	bool swapped;
	uint64_t count, sources, targets; /* strings, tables */
} catalogue;

static bool failed(char *error, size_t bytes, const char *why)
{
	snprintf(error, bytes, "%s", why);
	return false;
}

/* at + 4 <= bytes */
static uint32_t word_at(const catalogue *c, uint64_t at)
{
	uint32_t w;

	memcpy(&w, c->text + at, sizeof(w));
	return c->swapped ? __builtin_bswap32(w) : w;
}

/* String number i of a table; NULL: it is not within the file, or no NUL is behind it. */
static char *string_at(const catalogue *c, uint64_t table, uint64_t i)
{
	uint64_t length = word_at(c, table + 8 * i), offset = word_at(c, table + 8 * i + 4);

	if (offset + length >= c->bytes || c->text[offset + length] != '\0')
		return NULL;
	return c->text + offset;
}

/* "Content-Type: text/plain; charset=UTF-8\n" */
static bool says_utf8(const char *header)
{
	const char *at = strcasestr(header, "charset=");

	return at && strncasecmp(at + 8, "utf-8", 5) == 0 && strchr(" \t\r\n;", at[13]);
}

static bool read_head(catalogue *c, char *error, size_t error_bytes)
{
	if (c->bytes < HEAD)
		return failed(error, error_bytes, "shorter than the head of a catalogue");
	if (word_at(c, 4) >> 16 > 1)
		return failed(error, error_bytes, "a catalogue of a revision that is not known");
	c->count = word_at(c, 8);
	c->sources = word_at(c, 12);
	c->targets = word_at(c, 16);
	if (c->sources + 8 * c->count > c->bytes || c->targets + 8 * c->count > c->bytes)
		return failed(error, error_bytes, "the catalogue is cut off: its tables are not there");
	return true;
}

static bool parse_catalogue(catalogue *c, text_pair *pairs, uint64_t *count, char *error, size_t error_bytes)
{
	bool utf8 = false;

	for (uint64_t i = 0; i < c->count; i++) {
		char *source = string_at(c, c->sources, i), *target = string_at(c, c->targets, i), *message;

		if (!source || !target)
			return failed(error, error_bytes, "the catalogue is cut off: a message is not there");
		message = strchr(source, SEPARATOR);
		message = message ? message + 1 : source;
		if (!*source)
			utf8 = says_utf8(target);
		else if (!text_is_utf8(source, strlen(source)) || !text_is_utf8(target, strlen(target)))
			return failed(error, error_bytes,
				      "a message is not in UTF-8: msgconv -t UTF-8 makes it so");
		else if (*message && *target)
			pairs[(*count)++] = (text_pair){message, target};
	}
	return utf8 || failed(error, error_bytes,
			      "the catalogue does not say that it is in UTF-8: msgconv -t UTF-8 makes it so");
}

static bool parse_lines(char *text, uint64_t bytes, text_pair *pairs, uint64_t *count, char *error,
			size_t error_bytes)
{
	uint64_t line = 1;

	if (strlen(text) != bytes || !text_is_utf8(text, bytes))
		return failed(error, error_bytes, "neither a catalogue of gettext nor text in UTF-8");
	for (char *at = text, *end; *at; at = end, line++) {
		char *tab = strchr(at, '\t');

		end = at + strcspn(at, "\n");
		if (*end)
			*end++ = '\0';
		if (!*at)
			continue;
		if (!tab || tab >= end || strchr(tab + 1, '\t')) {
			snprintf(error, error_bytes, "line %llu: not two sentences with a tab between",
				 (unsigned long long)line);
			return false;
		}
		*tab = '\0';
		if (*at && tab[1])
			pairs[(*count)++] = (text_pair){at, tab + 1};
	}
	return true;
}

static uint64_t lines_of(const char *text)
{
	uint64_t n = 1;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

bool pairs_parse(char *text, uint64_t bytes, text_pair **pairs, uint64_t *count, char *error,
		 size_t error_bytes)
{
	catalogue c = {.text = text, .bytes = bytes};
	uint32_t magic = bytes >= sizeof(magic) ? word_at(&c, 0) : 0;
	bool is_catalogue = magic == MAGIC || magic == SWAPPED, ok;

	*pairs = NULL;
	*count = 0;
	c.swapped = magic == SWAPPED;
	if (is_catalogue && !read_head(&c, error, error_bytes))
		return false;
	*pairs = calloc((is_catalogue ? c.count : lines_of(text)) + 1, sizeof(**pairs));
	if (!*pairs)
		return failed(error, error_bytes, "no memory for its sentences");
	ok = is_catalogue ? parse_catalogue(&c, *pairs, count, error, error_bytes)
			  : parse_lines(text, bytes, *pairs, count, error, error_bytes);
	if (ok && !*count)
		ok = failed(error, error_bytes, "there are no pairs of sentences in it");
	if (!ok) {
		free(*pairs);
		*pairs = NULL;
		*count = 0;
	}
	return ok;
}

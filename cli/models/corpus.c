/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts as numbers. See corpus.h. The text is cut into words, which stay in it. Threads: one. Tests: tests/unit/cli/corpus_test.c.
 */
#include "corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lexicon.h"
#include "text.h"

static bool failed(char *error, size_t bytes, const char *what, const char *why)
{
	snprintf(error, bytes, "%s: %s", what, why);
	return false;
}

/* ---- words ---- */

static bool is_letter(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ((unsigned char)ch & 0x80);
}

/* Words in lower case, each with a NUL behind it, an empty one behind each line. Apostrophes within words fall out. */
static char *normalise(const char *text, char **end)
{
	char *out = malloc(2 * strlen(text) + 2), *to = out;

	for (const char *at = text; out && *at; at += *at == '\n') {
		while (*at && *at != '\n') {
			for (; *at && *at != '\n' && !is_letter(*at); at++)
				;
			if (!is_letter(*at))
				break;
			for (; is_letter(*at) || (*at == '\'' && is_letter(at[1])); at++)
				if (*at != '\'')
					*to++ = *at >= 'A' && *at <= 'Z' ? (char)(*at | 0x20) : *at;
			*to++ = '\0';
		}
		*to++ = '\0';
	}
	*end = to;
	return out;
}

static bool count_words(lexicon *l, char *at, const char *end)
{
	for (; at < end; at += strlen(at) + 1)
		if (*at && !lexicon_count(l, at))
			return false;
	return true;
}

/* Those that are frequent enough, in their order. */
static bool choose_words(corpus *c, lexicon *l, uint64_t min_count)
{
	uint64_t n;
	lexicon_word *all = lexicon_rank(l, min_count, UINT32_MAX - 1, &n);

	c->word = calloc(n + 1, sizeof(*c->word));
	c->often = calloc(n + 1, sizeof(*c->often));
	c->key = calloc(n + 1, sizeof(*c->key));
	if (!all || !c->word || !c->often || !c->key) {
		free(all);
		return false;
	}
	for (uint64_t i = 0; i < n; i++) {
		c->word[i] = all[i].word;
		c->often[i] = all[i].often;
		c->key[i] = text_hash(all[i].word);
	}
	c->words = (uint32_t)n;
	free(all);
	return true;
}

/* ---- sentences and blocks ---- */

static bool make_tokens(corpus *c, const lexicon *l, char *at, const char *end)
{
	uint64_t most = (uint64_t)(end - at);

	c->tokens = malloc((most + 1) * sizeof(*c->tokens));
	c->sentence = malloc((most + 2) * sizeof(*c->sentence));
	if (!c->tokens || !c->sentence)
		return false;
	c->sentence[0] = 0;
	for (; at < end; at += strlen(at) + 1) {
		uint32_t id = *at ? lexicon_id(l, at) : UINT32_MAX;

		if (id != UINT32_MAX)
			c->tokens[c->count++] = id;
		else if (!*at && c->count > c->sentence[c->sentences])
			c->sentence[++c->sentences] = c->count;
	}
	if (c->count > c->sentence[c->sentences])
		c->sentence[++c->sentences] = c->count;
	return true;
}

static bool make_blocks(corpus *c, uint64_t block_tokens)
{
	uint64_t first = 0;

	c->block = malloc((c->sentences + 1) * sizeof(*c->block));
	if (!c->block)
		return false;
	c->block[0] = 0;
	for (uint64_t s = 1; s <= c->sentences; s++) {
		if (s < c->sentences && c->sentence[s] - c->sentence[first] < block_tokens)
			continue;
		c->block[++c->blocks] = first = s;
	}
	return true;
}

bool corpus_load(corpus *c, const char *path, uint64_t min_count, uint64_t block_tokens, char *error,
		 size_t error_bytes)
{
	lexicon l = {0};
	char *end = NULL, *words;
	uint64_t bytes;
	bool ok;

	memset(c, 0, sizeof(*c));
	c->text = text_read(path, &bytes, error, error_bytes);
	if (!c->text)
		return false;
	if (!path)
		text_strip_places(c->text);
	words = normalise(c->text, &end);
	free(c->text);
	c->text = words;
	ok = words && count_words(&l, words, end) && choose_words(c, &l, min_count) &&
	     make_tokens(c, &l, words, end) && make_blocks(c, block_tokens);
	lexicon_free(&l);
	if (!ok)
		failed(error, error_bytes, path ? path : "bible", "no memory for its words");
	else if (c->words < 2)
		ok = failed(error, error_bytes, path ? path : "bible",
			    "there are not two words that come often enough (--min-count)");
	if (!ok)
		corpus_free(c);
	return ok;
}

uint32_t corpus_find(const corpus *c, const char *word)
{
	for (uint32_t i = 0; i < c->words; i++)
		if (strcmp(c->word[i], word) == 0)
			return i;
	return c->words;
}

void corpus_free(corpus *c)
{
	free(c->text);
	free(c->word);
	free(c->often);
	free(c->key);
	free(c->tokens);
	free(c->sentence);
	free(c->block);
	memset(c, 0, sizeof(*c));
}

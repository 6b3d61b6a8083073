/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts as numbers. See corpus.h. Words are counted in an open hash table of their offsets in the text, which is cut
 * into words in place. Threads: one. Tests: tests/unit/cli/corpus_test.c.
 */
#include "corpus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIBLE "LC_ALL=C bible -f gen1:1-rev22:21 2>/dev/null </dev/null"

typedef struct entry {
	char *word;
	uint64_t often;
	uint32_t id;
} entry;

typedef struct lexicon {
	entry *table;
	uint64_t size, used;
} lexicon;

static bool failed(char *error, size_t bytes, const char *what, const char *why)
{
	snprintf(error, bytes, "%s: %s", what, why);
	return false;
}

/* ---- reading ---- */

static char *read_all(FILE *file, uint64_t *bytes)
{
	uint64_t room = 1 << 20, used = 0;
	char *text = malloc(room);

	while (text) {
		size_t n = fread(text + used, 1, room - used - 1, file);

		used += n;
		if (n == 0)
			break;
		if (room - used < 2) {
			char *more = realloc(text, room *= 2);

			if (!more)
				free(text);
			text = more;
		}
	}
	if (text)
		text[used] = '\0';
	*bytes = used;
	return text;
}

static bool read_text(corpus *c, const char *path, char *error, size_t error_bytes)
{
	FILE *file = path ? fopen(path, "re") : popen(BIBLE, "re");
	uint64_t bytes;
	bool bad;

	if (!file)
		return failed(error, error_bytes, path ? path : "bible", strerror(errno));
	errno = 0;
	c->text = read_all(file, &bytes);
	bad = !c->text || ferror(file);
	if (path ? fclose(file) != 0 : pclose(file) != 0)
		bad = true;
	if (!bad && (path || bytes))
		return true;
	if (!path)
		return failed(error, error_bytes, "the command bible prints nothing",
			      "install Debian's bible-kjv and bible-kjv-text, or give --text FILE");
	return failed(error, error_bytes, path, errno ? strerror(errno) : "cannot be read");
}

/* ---- words ---- */

static bool is_letter(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ((unsigned char)ch & 0x80);
}

/* Words in lower case, each with a NUL behind it, an empty one behind each line. Apostrophes within words fall out.
   reference: a line begins with what is not its text. */
static char *normalise(const char *text, bool reference, char **end)
{
	char *out = malloc(2 * strlen(text) + 2), *to = out;

	for (const char *at = text; out && *at; at += *at == '\n') {
		for (; reference && *at && *at != ' ' && *at != '\n'; at++)
			;
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

/* FNV-1a */
static uint64_t hash(const char *word)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *word; word++)
		h = (h ^ (unsigned char)*word) * 0x100000001b3ull;
	return h;
}

/* The place of a word, empty if it is not there. size is a power of two. */
static entry *place(const lexicon *l, const char *word)
{
	uint64_t i = hash(word) & (l->size - 1);

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

static bool count_words(lexicon *l, char *at, const char *end)
{
	for (; at < end; at += strlen(at) + 1) {
		entry *e;

		if (!*at)
			continue;
		if (2 * l->used >= l->size && !grow(l))
			return false;
		e = place(l, at);
		l->used += !e->word;
		e->word = at;
		e->often++;
	}
	return true;
}

static int by_frequency(const void *a, const void *b)
{
	const entry *x = a, *y = b;

	if (x->often != y->often)
		return x->often > y->often ? -1 : 1;
	return strcmp(x->word, y->word);
}

/* Those that are frequent enough, in their order; their numbers go back into the table. */
static bool choose_words(corpus *c, lexicon *l, uint64_t min_count)
{
	entry *all = calloc(l->used + 1, sizeof(*all));
	uint64_t n = 0;

	for (uint64_t i = 0; all && i < l->size; i++) {
		l->table[i].id = UINT32_MAX;
		if (l->table[i].word && l->table[i].often >= min_count)
			all[n++] = l->table[i];
	}
	c->word = calloc(n + 1, sizeof(*c->word));
	c->often = calloc(n + 1, sizeof(*c->often));
	c->key = calloc(n + 1, sizeof(*c->key));
	if (!all || !c->word || !c->often || !c->key) {
		free(all);
		return false;
	}
	qsort(all, n, sizeof(*all), by_frequency);
	for (uint64_t i = 0; i < n; i++) {
		c->word[i] = all[i].word;
		c->often[i] = all[i].often;
		c->key[i] = hash(all[i].word);
		place(l, all[i].word)->id = (uint32_t)i;
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
		uint32_t id = *at ? place(l, at)->id : UINT32_MAX;

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
	bool ok;

	memset(c, 0, sizeof(*c));
	if (!read_text(c, path, error, error_bytes)) {
		corpus_free(c);
		return false;
	}
	words = normalise(c->text, !path, &end);
	free(c->text);
	c->text = words;
	ok = words && grow(&l) && count_words(&l, words, end) && choose_words(c, &l, min_count) &&
	     make_tokens(c, &l, words, end) && make_blocks(c, block_tokens);
	free(l.table);
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

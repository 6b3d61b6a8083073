/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets of sequences. See sequences.h.
 */
#include "sequences.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/lexicon.h"
#include "models/pairs.h"
#include "models/text.h"
#include "models/tokens.h"

#define HELD_OUT   20 /* one in so many */
#define BLOCK      16 /* rows of a text that stay together */
#define MIN_COUNT  2
#define FILES_MAX  16
#define CATALOGUES "/usr/share/locale/de/LC_MESSAGES/gnupg2.mo,/usr/share/locale/de/LC_MESSAGES/libc.mo"
#define PACKAGES   "gnupg-l10n and libc-l10n"

static bool failed(char *error, size_t bytes, const char *what, const char *why)
{
	snprintf(error, bytes, "%s: %s", what, why);
	return false;
}

/* count rows of n ports; the last is targets. False: no memory. */
static bool make_set(dataset *set, uint64_t count, uint64_t steps, const char *const *names, unsigned n)
{
	*set = (dataset){.count = count, .steps = steps, .ports = n};
	for (unsigned i = 0; i < n; i++) {
		set->port[i].name = names[i];
		set->port[i].rows = calloc(count * steps + 1, sizeof(int32_t));
		if (!set->port[i].rows)
			return false;
	}
	return true;
}

/* ---- a text ---- */

static const char *const text_ports[] = {"tokens", "targets"};

static bool row_is_held(uint64_t row)
{
	return row / BLOCK % HELD_OUT == HELD_OUT - 1;
}

static void fill_row(dataset *set, uint64_t at, const int32_t *tokens)
{
	memcpy(set->port[0].rows + at * set->steps, tokens, set->steps * sizeof(*tokens));
	memcpy(set->port[1].rows + at * set->steps, tokens + 1, set->steps * sizeof(*tokens));
}

/* Rows of `steps` of the tokens into both parts. */
static bool cut_rows(const int32_t *tokens, uint64_t count, uint64_t steps, dataset *train, dataset *held)
{
	uint64_t rows = count ? (count - 1) / steps : 0, n_held = 0, t = 0, h = 0;

	for (uint64_t row = 0; row < rows; row++)
		n_held += row_is_held(row);
	if (!make_set(train, rows - n_held, steps, text_ports, 2) ||
	    !make_set(held, n_held, steps, text_ports, 2))
		return false;
	for (uint64_t row = 0; row < rows; row++)
		fill_row(row_is_held(row) ? held : train, row_is_held(row) ? h++ : t++, tokens + row * steps);
	return true;
}

static int32_t *bytes_of(const char *text, uint64_t bytes)
{
	int32_t *tokens = malloc((bytes + 1) * sizeof(*tokens));

	for (uint64_t i = 0; tokens && i < bytes; i++)
		tokens[i] = (unsigned char)text[i];
	return tokens;
}

static int32_t number_of(const lexicon *l, const char *word)
{
	uint32_t id = lexicon_id(l, word);

	return id == UINT32_MAX ? TOKEN_UNKNOWN : (int32_t)id + TOKEN_WORDS;
}

/* Those of the vocabulary get their numbers. False: no memory. */
static bool rank(lexicon *l, uint64_t vocabulary)
{
	uint64_t n;
	lexicon_word *all = lexicon_rank(l, MIN_COUNT, vocabulary - TOKEN_WORDS, &n);

	free(all);
	return all != NULL;
}

/* The words of a text, counted where they are learned. */
static int32_t *words_of(const char *text, uint64_t bytes, const sequences_params *p, uint64_t *count)
{
	char *words = malloc(2 * bytes + 1), *end = words ? tokens_cut(text, words) : NULL;
	int32_t *tokens = malloc((2 * bytes + 1) * sizeof(*tokens));
	lexicon l = {0};
	bool ok = words && tokens;
	uint64_t n = 0;

	for (const char *at = words; ok && at < end; at += strlen(at) + 1, n++)
		ok = row_is_held(n / p->steps) || lexicon_count(&l, at);
	ok = ok && rank(&l, p->vocabulary);
	n = 0;
	for (const char *at = words; ok && at < end; at += strlen(at) + 1)
		tokens[n++] = number_of(&l, at);
	*count = n;
	lexicon_free(&l);
	free(words);
	if (!ok)
		free(tokens);
	return ok ? tokens : NULL;
}

bool sequences_text(const sequences_params *p, dataset *train, dataset *held, char *error, size_t error_bytes)
{
	const char *name = p->text ? p->text : "bible";
	uint64_t bytes, count;
	char *text = text_read(p->text, &bytes, error, error_bytes);
	int32_t *tokens;
	bool ok;

	memset(train, 0, sizeof(*train));
	memset(held, 0, sizeof(*held));
	if (!text)
		return false;
	bytes = p->text ? bytes : text_strip_places(text);
	count = bytes;
	tokens = p->words ? words_of(text, bytes, p, &count) : bytes_of(text, bytes);
	ok = tokens && cut_rows(tokens, count, p->steps, train, held);
	free(tokens);
	free(text);
	train->classes = held->classes = p->words ? (unsigned)p->vocabulary : 256;
	if (!ok)
		failed(error, error_bytes, name, "no memory for its tokens");
	else if (!held->count)
		ok = failed(error, error_bytes, name,
			    "too short: a text has 320 rows of --length tokens at least");
	if (ok)
		return true;
	dataset_free(train);
	dataset_free(held);
	return false;
}

/* ---- pairs ---- */

static const char *const pair_ports[] = {"source", "tokens", "targets"};

typedef struct sentence {
	const char *words; /* each with a NUL behind it */
	uint32_t count;
} sentence;

typedef struct corpus_pair {
	sentence source, target;
	bool held;
} corpus_pair;

typedef struct parallel {
	char *text[FILES_MAX], *words[FILES_MAX];
	unsigned files;
	corpus_pair *pair;
	uint64_t count;
	lexicon source, target;
} parallel;

static void free_parallel(parallel *c)
{
	for (unsigned i = 0; i < c->files; i++) {
		free(c->text[i]);
		free(c->words[i]);
	}
	free(c->pair);
	lexicon_free(&c->source);
	lexicon_free(&c->target);
}

static sentence cut(const char *text, char **to)
{
	sentence s = {.words = *to};
	char *end = tokens_cut(text, *to);

	for (const char *at = *to; at < end; at += strlen(at) + 1)
		s.count++;
	*to = end;
	return s;
}

static uint64_t hash_of(const sentence *s)
{
	const char *at = s->words;
	uint64_t h = 0;

	for (uint32_t i = 0; i < s->count; i++, at += strlen(at) + 1)
		h = (h ^ text_hash(at)) * 0x9e3779b97f4a7c15ull;
	return h >> 32;
}

/* Those that are not longer than a row, with room for begin and end. */
static bool take_pairs(parallel *c, const text_pair *pairs, uint64_t count, uint64_t steps)
{
	char *to = c->words[c->files - 1];
	corpus_pair *more = realloc(c->pair, (c->count + count + 1) * sizeof(*more));

	if (!more)
		return false;
	c->pair = more;
	for (uint64_t i = 0; i < count; i++) {
		corpus_pair p = {.source = cut(pairs[i].source, &to)};

		p.target = cut(pairs[i].target, &to);
		p.held = hash_of(&p.source) % HELD_OUT == 0;
		if (p.source.count && p.target.count && p.source.count <= steps && p.target.count < steps)
			c->pair[c->count++] = p;
	}
	return true;
}

static bool read_file(parallel *c, const char *path, const sequences_params *p, char *error,
		      size_t error_bytes)
{
	char why[256] = "";
	uint64_t bytes, count;
	text_pair *pairs;
	bool ok;

	if (access(path, R_OK) != 0) {
		snprintf(error, error_bytes, "no parallel text: %s: %s%s", path, strerror(errno),
			 p->text ? "" : "; install Debian's " PACKAGES ", or give --text FILE,...");
		return false;
	}
	c->text[c->files] = text_read(path, &bytes, error, error_bytes);
	if (!c->text[c->files++])
		return false;
	if (!pairs_parse(c->text[c->files - 1], bytes, &pairs, &count, why, sizeof(why)))
		return failed(error, error_bytes, path, why);
	/* Strings of a catalogue may share their bytes: their sum is what counts. */
	bytes = 0;
	for (uint64_t i = 0; i < count; i++)
		bytes += strlen(pairs[i].source) + strlen(pairs[i].target);
	c->words[c->files - 1] = malloc(2 * bytes + 1);
	ok = c->words[c->files - 1] && take_pairs(c, pairs, count, p->steps);
	free(pairs);
	return ok || failed(error, error_bytes, path, "no memory for its words");
}

static bool read_files(parallel *c, const sequences_params *p, char *error, size_t error_bytes)
{
	char *list = strdup(p->text ? p->text : CATALOGUES), *save = NULL;
	bool ok = list != NULL;

	for (char *path = list ? strtok_r(list, ",", &save) : NULL; path && ok;
	     path = strtok_r(NULL, ",", &save))
		ok = c->files < FILES_MAX ? read_file(c, path, p, error, error_bytes)
					  : failed(error, error_bytes, "--text", "16 files at most");
	free(list);
	return ok;
}

static bool count_sentence(lexicon *l, const sentence *s)
{
	const char *at = s->words;

	for (uint32_t i = 0; i < s->count; i++, at += strlen(at) + 1)
		if (!lexicon_count(l, at))
			return false;
	return true;
}

static bool make_vocabularies(parallel *c, uint64_t vocabulary)
{
	for (uint64_t i = 0; i < c->count; i++)
		if (!c->pair[i].held && (!count_sentence(&c->source, &c->pair[i].source) ||
					 !count_sentence(&c->target, &c->pair[i].target)))
			return false;
	return rank(&c->source, vocabulary) && rank(&c->target, vocabulary);
}

/* Row `at`: PAD PAD a b | BEGIN x y PAD | x y END -1 */
static void fill_pair(dataset *set, uint64_t at, const corpus_pair *p, const parallel *c)
{
	uint64_t steps = set->steps, n = p->target.count;
	int32_t *source = set->port[0].rows + at * steps, *tokens = set->port[1].rows + at * steps,
		*targets = set->port[2].rows + at * steps;
	const char *word = p->source.words;

	for (uint64_t i = steps - p->source.count; i < steps; i++, word += strlen(word) + 1)
		source[i] = number_of(&c->source, word);
	word = p->target.words;
	tokens[0] = TOKEN_BEGIN;
	for (uint64_t i = 0; i < n; i++, word += strlen(word) + 1)
		tokens[i + 1] = targets[i] = number_of(&c->target, word);
	targets[n] = TOKEN_END;
	for (uint64_t i = n + 1; i < steps; i++)
		targets[i] = DATASET_NOTHING;
	set->length[at] = (uint16_t)(p->source.count > n + 1 ? p->source.count : n + 1);
}

static bool fill_pairs(const parallel *c, const sequences_params *p, bool held, dataset *set)
{
	uint64_t rows = 0, at = 0;

	for (uint64_t i = 0; i < c->count; i++)
		rows += c->pair[i].held == held;
	if (!make_set(set, rows, p->steps, pair_ports, 3))
		return false;
	set->port[0].at_end = true;
	set->length = calloc(rows + 1, sizeof(*set->length));
	set->features = p->vocabulary;
	set->classes = (unsigned)p->vocabulary;
	for (uint64_t i = 0; i < c->count && set->length; i++)
		if (c->pair[i].held == held)
			fill_pair(set, at++, &c->pair[i], c);
	return set->length != NULL;
}

bool sequences_pairs(const sequences_params *p, dataset *train, dataset *held, char *error,
		     size_t error_bytes)
{
	parallel c = {0};
	bool ok;

	memset(train, 0, sizeof(*train));
	memset(held, 0, sizeof(*held));
	ok = read_files(&c, p, error, error_bytes);
	if (ok && !(make_vocabularies(&c, p->vocabulary) && fill_pairs(&c, p, false, train) &&
		    fill_pairs(&c, p, true, held)))
		ok = failed(error, error_bytes, "--text", "no memory for its sentences");
	else if (ok && (!train->count || !held->count))
		ok = failed(error, error_bytes, p->text ? p->text : CATALOGUES,
			    "too few sentences that are not longer than --length");
	free_parallel(&c);
	if (ok)
		return true;
	dataset_free(train);
	dataset_free(held);
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of cli/models/text.h, tokens.h and pairs.h: what is read from files that come from anywhere.
 */
#include "../../../cli/models/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../cli/models/lexicon.h"
#include "../../../cli/models/pairs.h"
#include "../../../cli/models/tokens.h"
#include "cmocka_all.h"

/* ---- texts ---- */

static void utf8_is_well_formed(void **state)
{
	static const char *const good[] = {"",
					   "plain",
					   "gr\303\274n",
					   "\342\202\254",
					   "\355\237\277",
					   "\356\200\200",
					   "\360\237\230\200",
					   "\364\217\277\277"};
	static const char *const bad[] = {"\374",
					  "gr\374n",
					  "\200",
					  "\303",
					  "\342\202",
					  "\300\200",
					  "\301\277",
					  "\340\237\277",
					  "\355\240\200",
					  "\360\217\277\277",
					  "\364\220\200\200",
					  "\365\200\200\200",
					  "a\303b"};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_true(text_is_utf8(good[i], strlen(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(text_is_utf8(bad[i], strlen(bad[i])));
}

static void places_are_cut_out(void **state)
{
	char text[] = "Ge1:1 In the\nGe1:2 And\n\nalone\nGe1:3 end";

	(void)state;
	assert_int_equal(text_strip_places(text), strlen("In the\nAnd\n\n\nend"));
	assert_string_equal(text, "In the\nAnd\n\n\nend");
}

static void check_tokens(const char *text, const char *words)
{
	char out[256], *end;

	assert_true(2 * strlen(text) + 1 <= sizeof(out));
	end = tokens_cut(text, out);
	assert_true(end <= out + 2 * strlen(text));
	for (char *at = out; at < end; at++)
		*at = *at ? *at : '|';
	*end = '\0';
	assert_string_equal(out, words);
}

static void words_formats_and_marks(void **state)
{
	(void)state;
	check_tokens("", "");
	check_tokens(" \n\t", "");
	check_tokens("The cat's Hat, isn't it?", "the|cat's|hat|,|isn't|it|?|");
	check_tokens("'quoted'", "'|quoted|'|");
	check_tokens("%-5s of %2$lu%%: 100% of %", "%s|of|%u|%%|:|100|%|of|%|");
	check_tokens("gr\303\274n\n--help", "gr\303\274n|-|-|help|");
}

static void ranks(void **state)
{
	static const char *const words[] = {"b", "a", "c", "b", "a", "b", "d", "c"};
	lexicon l = {0};
	lexicon_word *all;
	uint64_t n;

	(void)state;
	assert_int_equal(lexicon_id(&l, "a"), UINT32_MAX);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		assert_true(lexicon_count(&l, words[i]));
	all = lexicon_rank(&l, 2, 2, &n);
	assert_int_equal(n, 2);
	assert_string_equal(all[0].word, "b");
	assert_string_equal(all[1].word, "a"); /* as often as c */
	assert_int_equal(lexicon_id(&l, "a"), 1);
	assert_int_equal(lexicon_id(&l, "c"), UINT32_MAX);
	assert_int_equal(lexicon_id(&l, "d"), UINT32_MAX);
	free(all);
	lexicon_free(&l);
}

/* ---- catalogues ---- */

#define HEADER "Content-Type: text/plain; charset=UTF-8\n"
enum { MESSAGES = 4, ROOM = 1024 };

typedef struct message {
	const char *source, *target;
	uint32_t source_bytes, target_bytes; /* 0: strlen */
} message;

typedef struct file {
	unsigned char bytes[ROOM];
	uint64_t used;
	bool swapped;
} file;

static void put32(file *f, uint64_t at, uint32_t x)
{
	x = f->swapped ? __builtin_bswap32(x) : x;
	memcpy(f->bytes + at, &x, sizeof(x));
}

static void put_string(file *f, uint64_t at, const char *s, uint32_t n)
{
	n = n ? n : (uint32_t)strlen(s);
	put32(f, at, n);
	put32(f, at + 4, (uint32_t)f->used);
	assert_true(f->used + n + 1 <= ROOM);
	memcpy(f->bytes + f->used, s, n);
	f->bytes[f->used + n] = '\0';
	f->used += n + 1;
}

static file catalogue(const message *m, uint32_t n, bool swapped)
{
	file f = {.swapped = swapped, .used = 28 + 16 * n};

	put32(&f, 0, 0x950412de);
	put32(&f, 8, n);
	put32(&f, 12, 28);
	put32(&f, 16, 28 + 8 * n);
	for (uint32_t i = 0; i < n; i++) {
		put_string(&f, 28 + 8 * i, m[i].source, m[i].source_bytes);
		put_string(&f, 28 + 8 * n + 8 * i, m[i].target, m[i].target_bytes);
	}
	return f;
}

static const message plain[MESSAGES] = {{"", HEADER, 0, 0},
					{"menu\4Open", "\303\226ffnen", 0, 0},
					{"%d file\0%d files", "%d Datei\0%d Dateien", 16, 19},
					{"not translated", "", 0, 0}};

/* Of exactly these bytes, so that a sanitizer sees one too many; the pairs' texts are looked at. */
static bool parse(const void *bytes, uint64_t n, char *error, uint64_t *count)
{
	char *text = malloc(n + 1);
	text_pair *pairs;
	bool ok;

	assert_non_null(text);
	memcpy(text, bytes, n);
	text[n] = '\0';
	error[0] = '\0';
	ok = pairs_parse(text, n, &pairs, count, error, 256);
	for (uint64_t i = 0; ok && i < *count; i++) {
		assert_true(*pairs[i].source && *pairs[i].target);
		assert_true(text_is_utf8(pairs[i].source, strlen(pairs[i].source)));
		assert_true(text_is_utf8(pairs[i].target, strlen(pairs[i].target)));
	}
	if (!ok)
		assert_true(!pairs && *count == 0 && error[0]);
	free(pairs);
	free(text);
	return ok;
}

static void catalogues_of_either_order(void **state)
{
	text_pair *pairs;
	char error[256];
	uint64_t count;

	(void)state;
	for (int swapped = 0; swapped < 2; swapped++) {
		file f = catalogue(plain, MESSAGES, swapped);

		assert_true(pairs_parse((char *)f.bytes, f.used, &pairs, &count, error, sizeof(error)));
		assert_int_equal(count, 2);
		assert_string_equal(pairs[0].source, "Open");
		assert_string_equal(pairs[0].target, "\303\226ffnen");
		assert_string_equal(pairs[1].source, "%d file");
		assert_string_equal(pairs[1].target, "%d Datei");
		free(pairs);
	}
}

static void check_bad(const message *m, uint32_t n, const char *words)
{
	file f = catalogue(m, n, false);
	char error[256];
	uint64_t count;

	assert_false(parse(f.bytes, f.used, error, &count));
	assert_non_null(strstr(error, words));
}

static void wrong_encodings(void **state)
{
	(void)state;
	check_bad((message[]){{"", "Content-Type: text/plain; charset=ISO-8859-1\n", 0, 0}, {"a", "b", 0, 0}},
		  2, "does not say that it is in UTF-8");
	check_bad((message[]){{"", "charset=UTF-80\n", 0, 0}, {"a", "b", 0, 0}}, 2, "does not say");
	check_bad((message[]){{"a", "b", 0, 0}}, 1, "does not say");
	check_bad((message[]){{"", HEADER, 0, 0}, {"green", "gr\374n", 0, 0}}, 2, "not in UTF-8");
	check_bad((message[]){{"", HEADER, 0, 0}, {"a", "", 0, 0}}, 2, "no pairs");
}

static void what_is_cut_off_is_refused(void **state)
{
	file f = catalogue(plain, MESSAGES, false);
	char error[256];
	uint64_t count;

	(void)state;
	for (uint64_t n = 0; n < f.used; n++)
		assert_false(parse(f.bytes, n, error, &count));
	assert_true(parse(f.bytes, f.used, error, &count));
	put32(&f, 4, 2 << 16);
	assert_false(parse(f.bytes, f.used, error, &count));
	assert_non_null(strstr(error, "revision"));
}

/* Numbers out of range, strings without end: refused or read, never beyond the file. */
static void damage_does_no_harm(void **state)
{
	file whole = catalogue(plain, MESSAGES, false);
	uint64_t x = 88172645463325252u, count, good = 0;
	char error[256];

	(void)state;
	for (int round = 0; round < 20000; round++) {
		file f = whole;

		for (int i = 0; i < 1 + round % 4; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			if (x & 1) /* of a table: sizes and places */
				put32(&f, 4 + (x >> 8) % 22 * 4,
				      x & 2 ? (uint32_t)(x >> 32) : (uint32_t)(x >> 32) % 300);
			else
				f.bytes[(x >> 8) % f.used] = (unsigned char)(x >> 40);
		}
		good += parse(f.bytes, f.used - (round % 3 ? 0 : (x >> 20) % f.used), error, &count);
	}
	assert_in_range(good, 1, 19000);
}

static void lines_with_tabs(void **state)
{
	static const char *const bad[] = {"",          "\n\n",         "a b\n", "a\tb\tc\n", "a\tb\nc\n",
					  "c\na\tb\n", "gr\374n\tb\n", "a\t\n", "\tb\n"};
	char error[256], text[] = "Good morning\tGuten Morgen\n\nyes\tja";
	text_pair *pairs;
	uint64_t count;

	(void)state;
	assert_true(pairs_parse(text, strlen(text), &pairs, &count, error, sizeof(error)));
	assert_int_equal(count, 2);
	assert_string_equal(pairs[0].target, "Guten Morgen");
	assert_string_equal(pairs[1].source, "yes");
	assert_string_equal(pairs[1].target, "ja");
	free(pairs);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(parse(bad[i], strlen(bad[i]), error, &count));
	assert_false(parse("a\tb\0c\td\n", 8, error, &count)); /* a NUL within */
	assert_false(parse("a\tb\nc", 5, error, &count));
	assert_non_null(strstr(error, "line 2"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(utf8_is_well_formed),
		cmocka_unit_test(places_are_cut_out),
		cmocka_unit_test(words_formats_and_marks),
		cmocka_unit_test(ranks),
		cmocka_unit_test(catalogues_of_either_order),
		cmocka_unit_test(wrong_encodings),
		cmocka_unit_test(what_is_cut_off_is_refused),
		cmocka_unit_test(damage_does_no_harm),
		cmocka_unit_test(lines_with_tabs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of cli/models/corpus.h.
 */
#include "../../../cli/models/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"

static char path[] = "/tmp/tern-test-corpus-XXXXXX";

static void write_text(const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
	assert_int_equal(fclose(file), 0);
}

static void words_come_by_frequency_then_alphabet(void **state)
{
	char error[256];
	corpus c;

	(void)state;
	write_text("The cat's hat; the CAT.\n\n  b a, \303\244! a b the\nrare");
	assert_true(corpus_load(&c, path, 1, 1, error, sizeof(error)));
	assert_int_equal(c.words, 8);
	assert_string_equal(c.word[0], "the");
	assert_string_equal(c.word[1], "a");
	assert_string_equal(c.word[2], "b");
	assert_string_equal(c.word[3], "cat");
	assert_int_equal(c.often[0], 3);
	assert_int_equal(corpus_find(&c, "cats"), 4);
	assert_int_equal(corpus_find(&c, "rare"), 6);
	assert_int_equal(corpus_find(&c, "\303\244"), 7);
	assert_int_equal(corpus_find(&c, "dog"), c.words);
	/* empty lines are no sentences; each of the three is a block of at least one token */
	assert_int_equal(c.count, 12);
	assert_int_equal(c.sentences, 3);
	assert_int_equal(c.blocks, 3);
	assert_int_equal(c.sentence[1], 5);
	assert_int_equal(c.tokens[c.sentence[1]], 2);
	corpus_free(&c);
}

static void rare_words_are_passed_over_and_blocks_cover_all(void **state)
{
	char text[20000], error[256];
	size_t n = 0;
	corpus c;

	(void)state;
	for (int i = 0; i < 300; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "one two once%c%c three\n", 'a' + i / 26,
				      'a' + i % 26);
	write_text(text);
	assert_true(corpus_load(&c, path, 2, 50, error, sizeof(error)));
	assert_int_equal(c.words, 3);
	assert_int_equal(c.count, 900);
	assert_int_equal(c.block[0], 0);
	assert_int_equal(c.block[c.blocks], c.sentences);
	for (uint64_t b = 0; b < c.blocks; b++) {
		uint64_t tokens = c.sentence[c.block[b + 1]] - c.sentence[c.block[b]];

		assert_true(tokens >= 50 || b + 1 == c.blocks);
		assert_true(tokens < 53);
	}
	corpus_free(&c);
}

static void keys_are_those_of_the_word_in_every_text(void **state)
{
	char error[256];
	uint64_t key;
	corpus c;

	(void)state;
	write_text("sun moon moon\n");
	assert_true(corpus_load(&c, path, 1, 1, error, sizeof(error)));
	key = c.key[corpus_find(&c, "sun")];
	corpus_free(&c);
	write_text("sun sun sun star star moon");
	assert_true(corpus_load(&c, path, 1, 1, error, sizeof(error)));
	assert_int_equal(corpus_find(&c, "sun"), 0);
	assert_int_equal(c.key[0], key);
	corpus_free(&c);
}

static void mistakes_are_said(void **state)
{
	char error[256];
	corpus c;

	(void)state;
	assert_false(corpus_load(&c, "/nowhere/text", 1, 1, error, sizeof(error)));
	assert_non_null(strstr(error, "/nowhere/text"));
	write_text("");
	assert_false(corpus_load(&c, path, 1, 1, error, sizeof(error)));
	assert_non_null(strstr(error, "two words"));
	write_text("one\none\n");
	assert_false(corpus_load(&c, path, 1, 1, error, sizeof(error)));
	assert_false(corpus_load(&c, "/", 1, 1, error, sizeof(error)));
	corpus_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_come_by_frequency_then_alphabet),
		cmocka_unit_test(rare_words_are_passed_over_and_blocks_cover_all),
		cmocka_unit_test(keys_are_those_of_the_word_in_every_text),
		cmocka_unit_test(mistakes_are_said),
	};
	int fd = mkstemp(path), failed;

	if (fd < 0)
		return 1;
	close(fd);
	failed = RUN(tests);
	unlink(path);
	return failed;
}

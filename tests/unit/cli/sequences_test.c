/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of cli/sequences.h: rows of texts and of parallel texts, what is held out, what they are made of.
 */
#include "../../../cli/sequences.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"

static char path[64], other[64];

static void write_bytes(const char *to, const void *bytes, size_t n)
{
	FILE *file = fopen(to, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static int make_files(void **state)
{
	(void)state;
	snprintf(path, sizeof(path), "/tmp/tern-test-sequences-XXXXXX");
	snprintf(other, sizeof(other), "/tmp/tern-test-sequences-XXXXXX");
	close(mkstemp(path));
	close(mkstemp(other));
	return 0;
}

static int remove_files(void **state)
{
	(void)state;
	unlink(path);
	unlink(other);
	return 0;
}

enum { STEPS = 4, ROWS = 700 };

static void bytes_in_rows(void **state)
{
	static char text[ROWS * STEPS + 1];
	sequences_params p = {.text = path, .steps = STEPS};
	dataset train, held;
	char error[256];

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)(i * 7 % 251);
	write_bytes(path, text, sizeof(text));
	assert_true(sequences_text(&p, &train, &held, error, sizeof(error)));
	assert_int_equal(train.count + held.count, ROWS);
	assert_int_equal(held.count, 2 * 16); /* blocks 19 and 39 of 43 */
	assert_int_equal(train.classes, 256);
	assert_int_equal(train.steps, STEPS);
	assert_string_equal(train.port[1].name, "targets");
	for (uint64_t row = 0, t = 0, h = 0; row < ROWS; row++) {
		bool out = row / 16 == 19 || row / 16 == 39;
		const dataset *set = out ? &held : &train;
		uint64_t at = (out ? h++ : t++) * STEPS;

		for (uint64_t k = 0; k < STEPS; k++) {
			assert_int_equal(set->port[0].rows[at + k], (unsigned char)text[row * STEPS + k]);
			assert_int_equal(set->port[1].rows[at + k], (unsigned char)text[row * STEPS + k + 1]);
		}
	}
	dataset_free(&train);
	dataset_free(&held);
}

static void words_have_numbers_by_frequency(void **state)
{
	sequences_params p = {.text = path, .steps = 2, .words = true, .vocabulary = 6};
	FILE *file = fopen(path, "w");
	dataset train, held;
	char error[256];
	int32_t once;

	(void)state;
	assert_non_null(file);
	for (int i = 0; i < 320; i++)
		fprintf(file, "The %s ", i % 3 ? "cat" : "dog");
	fprintf(file, "once");
	fclose(file);
	assert_true(sequences_text(&p, &train, &held, error, sizeof(error)));
	assert_int_equal(train.count, 304);
	assert_int_equal(held.count, 16);
	assert_int_equal(train.classes, 6);
	assert_int_equal(train.port[0].rows[0], TOKEN_WORDS);     /* the */
	assert_int_equal(train.port[0].rows[1], TOKEN_UNKNOWN);   /* dog: behind the vocabulary */
	assert_int_equal(train.port[0].rows[3], TOKEN_WORDS + 1); /* cat */
	once = held.port[1].rows[held.count * 2 - 1];
	assert_int_equal(once, TOKEN_UNKNOWN);
	dataset_free(&train);
	dataset_free(&held);
}

static void write_pairs(const char *to, int first, int end)
{
	FILE *file = fopen(to, "w");

	assert_non_null(file);
	for (int i = first; i < end; i++)
		fprintf(file, "number %d here\tdie Zahl %d steht hier\n", i, i);
	fclose(file);
}

static void check_pair(const dataset *set, uint64_t at)
{
	const int32_t *source = set->port[0].rows + at * set->steps,
		      *tokens = set->port[1].rows + at * set->steps;
	const int32_t *targets = set->port[2].rows + at * set->steps;

	assert_int_equal(set->length[at], 6); /* five words and an end */
	for (uint64_t k = 0; k < set->steps; k++) {
		assert_int_equal(source[k] == TOKEN_PAD, k < set->steps - 3);
		assert_int_equal(tokens[k] == TOKEN_PAD, k > 5);
		assert_int_equal(targets[k], k < 5 ? tokens[k + 1] : k == 5 ? TOKEN_END : DATASET_NOTHING);
	}
	assert_int_equal(tokens[0], TOKEN_BEGIN);
	assert_int_equal(source[set->steps - 2], TOKEN_UNKNOWN); /* each number comes once */
	assert_int_not_equal(source[set->steps - 3], TOKEN_UNKNOWN);
}

static void pairs_are_padded(void **state)
{
	sequences_params p = {.steps = 8, .vocabulary = 20};
	char files[160], error[256];
	dataset train, held;

	(void)state;
	write_pairs(path, 0, 300);
	write_pairs(other, 300, 400);
	snprintf(files, sizeof(files), "%s,%s", path, other);
	p.text = files;
	assert_true(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	assert_int_equal(train.count + held.count, 400);
	assert_in_range(held.count, 4, 50);
	assert_int_equal(train.features, 20);
	for (uint64_t i = 0; i < train.count; i++)
		check_pair(&train, i);
	for (uint64_t i = 0; i < held.count; i++)
		check_pair(&held, i);
	dataset_free(&train);
	dataset_free(&held);
	p.steps = 5; /* no room for the end */
	assert_false(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	assert_non_null(strstr(error, "--length"));
}

static void a_sentence_that_comes_twice_is_on_one_side(void **state)
{
	sequences_params p = {.text = path, .steps = 4, .vocabulary = 300};
	dataset train, held;
	char error[256];
	FILE *file = fopen(path, "w");

	(void)state;
	assert_non_null(file);
	for (int i = 0; i < 600; i++)
		fprintf(file, "w%d\tx\n", i % 200); /* three times each */
	fclose(file);
	assert_true(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	assert_int_equal(train.count % 3, 0);
	assert_int_equal(held.count % 3, 0);
	/* and what was held out is nowhere in the vocabulary */
	for (uint64_t i = 0; i < held.count; i++)
		assert_int_equal(held.port[0].rows[i * 4 + 3], TOKEN_UNKNOWN);
	for (uint64_t i = 0; i < train.count; i++)
		assert_int_not_equal(train.port[0].rows[i * 4 + 3], TOKEN_UNKNOWN);
	dataset_free(&train);
	dataset_free(&held);
}

static void bad_files_are_named(void **state)
{
	sequences_params p = {.text = path, .steps = 4, .vocabulary = 20};
	dataset train, held;
	char error[256];

	(void)state;
	write_bytes(path, "", 0);
	assert_false(sequences_text(&p, &train, &held, error, sizeof(error)));
	assert_non_null(strstr(error, path));
	assert_false(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	assert_non_null(strstr(error, path));
	p.text = "/nonexistent/tern";
	assert_false(sequences_text(&p, &train, &held, error, sizeof(error)));
	assert_non_null(strstr(error, "No such file"));
	assert_false(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	assert_non_null(strstr(error, "No such file"));
	p.text = "/tmp"; /* a folder */
	assert_false(sequences_text(&p, &train, &held, error, sizeof(error)));
	assert_false(sequences_pairs(&p, &train, &held, error, sizeof(error)));
	p.text = "";
	assert_false(sequences_pairs(&p, &train, &held, error, sizeof(error)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_in_rows),
		cmocka_unit_test(words_have_numbers_by_frequency),
		cmocka_unit_test(pairs_are_padded),
		cmocka_unit_test(a_sentence_that_comes_twice_is_on_one_side),
		cmocka_unit_test(bad_files_are_named),
	};

	return cmocka_run_group_tests(tests, make_files, remove_files);
}

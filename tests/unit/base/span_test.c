/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of base/span.h: percentiles against the values, the ring against what was added, readers beside writers.
 */
#include "base/span.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "cmocka_all.h"

static tn_spans spans;

static void setup_spans(uint64_t count)
{
	tn_spans_fini(&spans);
	memset(&spans, 0, sizeof(spans));
	assert_int_equal(tn_spans_start(&spans, count), TERN_OK);
}

static void nothing_is_on_before_the_start(void **state)
{
	uint64_t first, next;

	(void)state;
	memset(&spans, 0, sizeof(spans));
	assert_false(tn_spans_on(&spans));
	tn_spans_range(&spans, &first, &next);
	assert_int_equal(first, 0);
	assert_int_equal(next, 0);
	assert_int_equal(tn_spans_start(&spans, TN_SPANS_MAX + 1), TERN_E_INVALID);
	assert_false(tn_spans_on(&spans));
}

static void buckets_hold_what_they_say(void **state)
{
	(void)state;
	for (unsigned i = 0; i + 2 < TN_SPAN_BUCKETS; i++) {
		uint64_t end = tn_span_bucket_end(i);
		uint64_t counts[TN_SPAN_BUCKETS] = {0};
		tn_span_kind *kind;

		assert_true(end < tn_span_bucket_end(i + 1));
		setup_spans(16);
		kind = tn_spans_kind(&spans, "a");
		tn_spans_add(&spans, kind, 5, 5 + end - 1, 0);
		tn_spans_add(&spans, kind, 5, 5 + end, 0);
		for (unsigned b = 0; b < TN_SPAN_BUCKETS; b++)
			counts[b] = tn_counter_read(&kind->buckets[b]);
		assert_int_equal(counts[i], 1);
		assert_int_equal(counts[i + 1], 1);
		assert_int_equal(tn_span_at(counts, 0.5), end);
	}
	assert_true(tn_span_bucket_end(TN_SPAN_BUCKETS - 1) == UINT64_MAX);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void percentiles_are_near(void **state)
{
	static uint64_t values[10000];
	uint64_t counts[TN_SPAN_BUCKETS], sum = 0;
	tn_span_kind *kind;
	tn_rand rand = {11};

	(void)state;
	setup_spans(0);
	kind = tn_spans_kind(&spans, "a");
	for (unsigned i = 0; i < 10000; i++) {
		values[i] = 64 + (tn_rand_next(&rand) >> (28 + tn_rand_next(&rand) % 24));
		sum += values[i];
		tn_spans_add(&spans, kind, 1000, 1000 + values[i], i);
	}
	qsort(values, 10000, sizeof(values[0]), compare);
	for (unsigned b = 0; b < TN_SPAN_BUCKETS; b++)
		counts[b] = tn_counter_read(&kind->buckets[b]);
	for (unsigned p = 1; p <= 99; p += 7) {
		uint64_t want = values[10000 * p / 100 - 1], got = tn_span_at(counts, p / 100.0);

		if (got < want || got > want + want / 8 + 1)
			fail_msg("p%u: %llu, want %llu", p, (unsigned long long)got,
				 (unsigned long long)want);
	}
	assert_int_equal(tn_counter_read(&kind->sum_ns), sum);
	assert_int_equal(tn_counter_read(&kind->max_ns), values[9999]);
}

static void the_ring_keeps_the_latest(void **state)
{
	uint64_t first, next;
	tn_span span;

	(void)state;
	setup_spans(20); /* room for 32 */
	for (uint64_t i = 0; i < 100; i++)
		tn_spans_add(&spans, tn_spans_kind(&spans, i % 2 ? "odd" : "even"), i, 2 * i, 7 * i);
	tn_spans_range(&spans, &first, &next);
	assert_int_equal(first, 68);
	assert_int_equal(next, 100);
	assert_false(tn_spans_get(&spans, 67, &span));
	assert_false(tn_spans_get(&spans, 100, &span));
	for (uint64_t i = first; i < next; i++) {
		assert_true(tn_spans_get(&spans, i, &span));
		assert_int_equal(span.number, i);
		assert_int_equal(span.start_ns, i);
		assert_int_equal(span.duration_ns, i);
		assert_int_equal(span.key, 7 * i);
		assert_string_equal(span.name, i % 2 ? "odd" : "even");
	}
}

static void too_many_kinds_become_one(void **state)
{
	static char names[40][8];

	(void)state;
	setup_spans(16);
	for (int i = 0; i < 40; i++) {
		snprintf(names[i], sizeof(names[i]), "k%d", i);
		assert_non_null(tn_spans_kind(&spans, names[i]));
	}
	assert_ptr_equal(tn_spans_kind(&spans, "k3"), &spans.kinds[3]);
	assert_string_equal(tn_spans_kind(&spans, "k39")->name, "other");
}

#define THREADS 4
#define ADDED   20000u

static void *add_many(void *arg)
{
	tn_span_kind *kind = tn_spans_kind(&spans, arg);

	for (uint64_t i = 0; i < ADDED; i++)
		tn_spans_add(&spans, kind, i, i + i % 1000, i * 3); /* duration and key follow from start */
	return NULL;
}

/* A reader beside writers sees whole spans alone. */
static void readers_see_whole_spans(void **state)
{
	static const char *const names[THREADS] = {"a", "b", "c", "d"};
	uint64_t seen = 0, first, next = 0, counts = 0;
	pthread_t threads[THREADS];
	tn_span span;

	(void)state;
	setup_spans(64);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_many, (void *)(uintptr_t)names[i]), 0);
	while (next < THREADS * ADDED) {
		tn_spans_range(&spans, &first, &next);
		for (uint64_t n = first; n < next; n++) {
			if (!tn_spans_get(&spans, n, &span))
				continue;
			assert_int_equal(span.duration_ns, span.start_ns % 1000);
			assert_int_equal(span.key, span.start_ns * 3);
			seen++;
		}
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_true(seen > 0);
	for (int i = 0; i < THREADS; i++)
		for (unsigned b = 0; b < TN_SPAN_BUCKETS; b++)
			counts += tn_counter_read(&tn_spans_kind(&spans, names[i])->buckets[b]);
	assert_int_equal(counts, THREADS * ADDED);
	tn_spans_fini(&spans);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_on_before_the_start),
		cmocka_unit_test(buckets_hold_what_they_say),
		cmocka_unit_test(percentiles_are_near),
		cmocka_unit_test(the_ring_keeps_the_latest),
		cmocka_unit_test(too_many_kinds_become_one),
		cmocka_unit_test(readers_see_whole_spans),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * <tern/watch.h>: recording is off until it is asked for, then counts what was done; spans come once each; a report has
 * all parts.
 */
#include <tern/watch.h>

#include "chan_test.h"
#include "channel/ctx_slots.h"

typedef struct seen {
	uint64_t latencies, spans, last, lines;
	tern_latency latency;
	bool link, memory, waits;
} seen;

static void on_latency(const tern_latency *latency, void *arg)
{
	seen *s = arg;

	s->latencies++;
	s->latency = *latency;
}

static void on_span(const tern_span *span, void *arg)
{
	seen *s = arg;

	assert_true(s->spans == 0 || span->number > s->last);
	s->last = span->number;
	s->spans++;
	assert_string_equal(span->kind, "test.kind");
	assert_int_equal(span->duration_ns, 1000 + span->key);
	assert_true(span->thread != 0);
}

static void on_line(const char *text, void *arg)
{
	seen *s = arg;

	assert_null(strchr(text, '\n'));
	s->lines++;
	s->memory |= strncmp(text, "memory: ", 8) == 0;
	s->waits |= strcmp(text, "what waits") == 0;
}

static void test_nothing_before_it_is_asked_for(void **state)
{
	seen s = {0};
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &ctx));
	assert_false(tn_spans_on(tn_ctx_spans(ctx)));
	tern_ctx_latencies(ctx, on_latency, &s);
	assert_int_equal(tern_ctx_spans(ctx, 7, on_span, &s), 7);
	assert_int_equal(s.latencies + s.spans, 0);
	assert_status(tern_ctx_record(ctx, UINT64_C(1) << 40), TERN_E_INVALID);
	assert_false(tn_spans_on(tn_ctx_spans(ctx)));
	tern_ctx_destroy(ctx);
}

static void test_what_is_recorded(void **state)
{
	seen s = {0};
	uint64_t next, in_buckets = 0;
	tn_span_kind *kind;
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop"}, &ctx));
	assert_ok(tern_ctx_record(ctx, 1000));
	assert_ok(tern_ctx_record(ctx, 5)); /* changes nothing */
	kind = tn_spans_kind(tn_ctx_spans(ctx), "test.kind");
	for (uint64_t i = 0; i < 600; i++)
		tn_spans_add(tn_ctx_spans(ctx), kind, 50, 50 + 1000 + i, i);
	next = tern_ctx_spans(ctx, 0, on_span, &s);
	assert_int_equal(next, 600);
	assert_int_equal(s.spans, 600);
	for (uint64_t i = 600; i < 2600; i++)
		tn_spans_add(tn_ctx_spans(ctx), kind, 50, 50 + 1000 + i, i);
	next = tern_ctx_spans(ctx, next, on_span, &s);
	assert_int_equal(next, 2600);
	assert_int_equal(s.spans, 600 + 1024); /* what was overwritten is missing */
	tern_ctx_latencies(ctx, on_latency, &s);
	assert_int_equal(s.latencies, 1);
	assert_int_equal(s.latency.count, 2600);
	assert_int_equal(s.latency.max_ns, 3599);
	assert_true(s.latency.p50_ns >= 2299 && s.latency.p50_ns <= 2299 + 2299 / 8);
	assert_true(s.latency.p999_ns <= 3599);
	for (int i = 0; i < TERN_LATENCY_BUCKETS; i++)
		in_buckets += s.latency.buckets[i];
	assert_int_equal(in_buckets, 2600);
	assert_int_equal(s.latency.buckets[3], 24); /* 1000 to 1023 ns: below 2^10 */
	tern_ctx_destroy(ctx);
}

static void test_report(void **state)
{
	seen s = {0};
	tern_ctx *ctx;

	(void)state;
	assert_ok(tn_ctx_new(&(tern_ctx_params){.transports = "loop", .name = "reporter"}, &ctx));
	assert_string_equal(tern_ctx_name(ctx), "reporter");
	tern_ctx_report(ctx, on_line, &s);
	assert_true(s.memory && s.waits && s.lines > 4);
	tern_ctx_destroy(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_before_it_is_asked_for),
		cmocka_unit_test(test_what_is_recorded),
		cmocka_unit_test(test_report),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats log lines and hands each to the sink in one piece. Must not allocate or take locks, so that it
 * works from any place, a failing one included.
 * Threads: any. Tests: tests/unit/base/log_test.c.
 */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"

#define LINE_MAX_BYTES  1024
#define THREAD_NAME_MAX 32

static const char *const component_names[] = {
#define NAME(suffix, name) name,
	TN_LOG_COMPONENTS(NAME)
#undef NAME
};

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};

#define DEFAULT_LEVEL(suffix, name) TN_LOG_WARN,
_Atomic uint8_t tn_log_levels[TN_LOG_COMPONENT_COUNT] = {TN_LOG_COMPONENTS(DEFAULT_LEVEL)};
#undef DEFAULT_LEVEL

static _Thread_local char thread_name[THREAD_NAME_MAX];
static _Atomic(tn_log_sink) log_sink;
static _Atomic(void *) log_sink_arg;

const char *tn_log_component_name(tn_log_component component)
{
	return (unsigned)component < TN_LOG_COMPONENT_COUNT ? component_names[component] : "?";
}

void tn_log_set_level(tn_log_component component, tn_log_level level)
{
	atomic_store_explicit(&tn_log_levels[component], (uint8_t)level, memory_order_relaxed);
}

void tn_log_set_thread_name(const char *name)
{
	snprintf(thread_name, sizeof(thread_name), "%s", name ? name : "");
}

void tn_log_set_sink(tn_log_sink sink, void *arg)
{
	atomic_store(&log_sink_arg, arg);
	atomic_store(&log_sink, sink);
}

static void put_line(tn_log_level level, const char *line, size_t bytes)
{
	tn_log_sink sink = atomic_load(&log_sink);
	ssize_t n;

	if (sink) {
		sink(level, line, bytes, atomic_load(&log_sink_arg));
		return;
	}
	do {
		n = write(STDERR_FILENO, line, bytes);
	} while (n < 0 && errno == EINTR);
}

static void TN_PRINTF(4, 0) write_line(tn_log_level level, tn_log_component component, uint32_t dropped,
				       const char *fmt, va_list args)
{
	char line[LINE_MAX_BYTES], more[48] = "";
	uint64_t now = tn_now();
	int saved = errno, n;
	size_t at, room;

	if (dropped)
		snprintf(more, sizeof(more), " (%" PRIu32 " such lines left out)", dropped);
	n = snprintf(line, sizeof(line), "tern %" PRIu64 ".%06" PRIu64 " %c %s%s%s: ", now / TN_NS_PER_SEC,
		     now % TN_NS_PER_SEC / 1000, "-EWIDT"[level], tn_log_component_name(component),
		     thread_name[0] ? " " : "", thread_name);
	at = (size_t)n;
	room = sizeof(line) - sizeof(more) - 2 - at;
	n = vsnprintf(line + at, room, fmt, args);
	if (n > 0)
		at += (size_t)n < room ? (size_t)n : room - 1;
	n = snprintf(line + at, sizeof(line) - at, "%s\n", more);
	put_line(level, line, at + (size_t)n);
	errno = saved;
}

void tn_log_write(tn_log_level level, tn_log_component component, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(level, component, 0, fmt, args);
	va_end(args);
}

/* Windows are whole seconds. Two threads that open a window at once may let a few lines more pass. */
bool tn_log_limit_pass(tn_log_limit *limit, uint32_t burst)
{
	uint64_t second = tn_now() / TN_NS_PER_SEC + 1;
	uint64_t window = atomic_load_explicit(&limit->window, memory_order_relaxed);

	if (window != second && atomic_compare_exchange_strong(&limit->window, &window, second))
		atomic_store_explicit(&limit->passed, 0, memory_order_relaxed);
	if (atomic_fetch_add_explicit(&limit->passed, 1, memory_order_relaxed) < burst)
		return true;
	atomic_fetch_add_explicit(&limit->dropped, 1, memory_order_relaxed);
	return false;
}

void tn_log_write_limited(tn_log_limit *limit, tn_log_level level, tn_log_component component,
			  const char *fmt, ...)
{
	uint32_t dropped = atomic_exchange_explicit(&limit->dropped, 0, memory_order_relaxed);
	va_list args;

	va_start(args, fmt);
	write_line(level, component, dropped, fmt, args);
	va_end(args);
}

static int find_name(const char *const *names, unsigned n, const char *text, size_t length)
{
	for (unsigned i = 0; i < n; i++)
		if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0)
			return (int)i;
	return -1;
}

/* One item of the list: "warn" or "link=debug". */
static tern_status apply_item(const char *item, size_t length, uint8_t *levels)
{
	const char *equals = memchr(item, '=', length);
	const char *value = equals ? equals + 1 : item;
	int level = find_name(level_names, TN_COUNT_OF(level_names), value, length - (size_t)(value - item));
	int component = -1;

	if (level < 0)
		return tn_fail(TERN_E_OPTION,
			       "log level '%.*s': levels are none, error, warn, info, debug, trace",
			       (int)(length - (size_t)(value - item)), value);
	if (!equals) {
		memset(levels, level, TN_LOG_COMPONENT_COUNT);
		return TERN_OK;
	}
	component = find_name(component_names, TN_LOG_COMPONENT_COUNT, item, (size_t)(equals - item));
	if (component < 0)
		return tn_fail(TERN_E_OPTION, "log component '%.*s': there is none of that name",
			       (int)(equals - item), item);
	levels[component] = (uint8_t)level;
	return TERN_OK;
}

tern_status tn_log_apply(const char *spec)
{
	uint8_t levels[TN_LOG_COMPONENT_COUNT];

	for (unsigned i = 0; i < TN_LOG_COMPONENT_COUNT; i++)
		levels[i] = atomic_load_explicit(&tn_log_levels[i], memory_order_relaxed);
	while (*spec) {
		size_t length = strcspn(spec, ",");

		if (length)
			TN_TRY(apply_item(spec, length, levels));
		spec += length + (spec[length] == ',');
	}
	for (unsigned i = 0; i < TN_LOG_COMPONENT_COUNT; i++)
		atomic_store_explicit(&tn_log_levels[i], levels[i], memory_order_relaxed);
	return TERN_OK;
}

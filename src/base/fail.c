/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The detail text of the calling thread and the tables of status codes.
 * Must not allocate or log. Threads: any; the text is thread-local. Tests: tests/unit/base/fail_test.c.
 */
#include "base/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char detail[TN_DETAIL_MAX];

/* Write at offset `at`, and mark the end of a text that was cut. */
static void TN_PRINTF(2, 0) detail_at(size_t at, const char *fmt, va_list args)
{
	int n = vsnprintf(detail + at, sizeof(detail) - at, fmt, args);

	if (n >= 0 && (size_t)n >= sizeof(detail) - at)
		memcpy(detail + sizeof(detail) - 4, "...", 4);
}

tern_status tn_fail(tern_status status, const char *fmt, ...)
{
	int saved = errno;
	va_list args;

	TN_ASSERT(status != TERN_OK);
	va_start(args, fmt);
	detail_at(0, fmt, args);
	va_end(args);
	errno = saved;
	return status;
}

tern_status tn_fail_errno(tern_status status, const char *what, const char *fmt, ...)
{
	int saved = errno;
	const char *name = strerrorname_np(saved), *text = strerrordesc_np(saved);
	va_list args;
	int n;

	n = snprintf(detail, sizeof(detail), "%s: %s (%s)%s", what, text ? text : "unknown error",
		     name ? name : "?", fmt[0] ? ": " : "");
	if (fmt[0] && n > 0 && (size_t)n < sizeof(detail) - 1) {
		va_start(args, fmt);
		detail_at((size_t)n, fmt, args);
		va_end(args);
	}
	errno = saved;
	return status;
}

tern_status tn_status_of_errno(int err)
{
	switch (err) {
	case 0:
		return TERN_OK;
	case EADDRINUSE:
		return TERN_E_IN_USE;
	case ENOMEM:
		return TERN_E_NOMEM;
	case EMFILE:
	case ENFILE:
	case ENOBUFS:
	case ENOSPC:
		return TERN_E_LIMIT;
	case ECONNREFUSED:
		return TERN_E_REFUSED;
	case EHOSTUNREACH:
	case ENETUNREACH:
	case ENETDOWN:
	case ETIMEDOUT:
		return TERN_E_UNREACHABLE;
	case ECONNRESET:
	case EPIPE:
		return TERN_E_LANE;
	case ENOENT:
	case ESRCH:
		return TERN_E_NOT_FOUND;
	case EIO:
		return TERN_E_IO;
	default:
		return TERN_E_OS;
	}
}

void tn_detail_set(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	detail_at(0, fmt, args);
	va_end(args);
}

void tn_detail_prefix(const char *fmt, ...)
{
	char old[TN_DETAIL_MAX];
	va_list args;
	size_t n;

	if (!detail[0])
		return;
	memcpy(old, detail, sizeof(old));
	va_start(args, fmt);
	detail_at(0, fmt, args);
	va_end(args);
	n = strlen(detail);
	if (snprintf(detail + n, sizeof(detail) - n, ": %s", old) >= (int)(sizeof(detail) - n))
		memcpy(detail + sizeof(detail) - 4, "...", 4);
}

const char *tn_detail_get(void)
{
	return detail;
}

void tn_detail_clear(void)
{
	detail[0] = '\0';
}

const char *tern_detail(void)
{
	return detail;
}

typedef struct status_row {
	int number;
	tern_radius radius;
	const char *name, *text;
} status_row;

static const status_row status_rows[] = {
#define STATUS_ROW(code, number, radius, text) {number, TERN_RADIUS_##radius, #code, text},
	TERN_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

static const status_row *status_find(tern_status status)
{
	for (size_t i = 0; i < TN_COUNT_OF(status_rows); i++)
		if (status_rows[i].number == (int)status)
			return &status_rows[i];
	return NULL;
}

const char *tern_status_name(tern_status status)
{
	const status_row *row = status_find(status);

	return row ? row->name : "TERN_E_?";
}

const char *tern_status_text(tern_status status)
{
	const status_row *row = status_find(status);

	return row ? row->text : "unknown status code";
}

tern_radius tern_status_radius(tern_status status)
{
	const status_row *row = status_find(status);

	return row ? row->radius : TERN_RADIUS_CALLER;
}

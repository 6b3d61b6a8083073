/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The growable string and the JSON writer. Must not be used on the data path: it allocates.
 * Threads: one per object. Tests: tests/unit/base/json_test.c.
 */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

void tn_str_init(tn_str *str)
{
	*str = (tn_str){0};
}

void tn_str_fini(tn_str *str)
{
	free(str->text);
	*str = (tn_str){0};
}

/* Room for n more bytes and the NUL. */
static bool reserve(tn_str *str, size_t n)
{
	size_t want = str->length + n + 1, capacity = str->capacity ? str->capacity : 128;
	char *text;

	if (str->failed)
		return false;
	if (want <= str->capacity)
		return true;
	while (capacity < want)
		capacity *= 2;
	text = TN_FAULT("base.str.alloc") ? NULL : realloc(str->text, capacity);
	if (!text) {
		str->failed = true;
		return false;
	}
	if (!str->text)
		text[0] = '\0';
	str->text = text;
	str->capacity = capacity;
	return true;
}

void tn_str_addn(tn_str *str, const char *text, size_t n)
{
	if (!reserve(str, n))
		return;
	memcpy(str->text + str->length, text, n);
	str->length += n;
	str->text[str->length] = '\0';
}

void tn_str_add(tn_str *str, const char *text)
{
	tn_str_addn(str, text, strlen(text));
}

void tn_str_addf(tn_str *str, const char *fmt, ...)
{
	va_list args, again;
	int n;

	va_start(args, fmt);
	va_copy(again, args);
	n = vsnprintf(NULL, 0, fmt, args);
	if (n >= 0 && reserve(str, (size_t)n)) {
		vsnprintf(str->text + str->length, (size_t)n + 1, fmt, again);
		str->length += (size_t)n;
	}
	va_end(again);
	va_end(args);
}

char *tn_str_take(tn_str *str)
{
	char *text = NULL;

	if (reserve(str, 0))
		text = str->text;
	else
		free(str->text);
	*str = (tn_str){0};
	return text;
}

void tn_json_init(tn_json *json, tn_str *out, int indent)
{
	*json = (tn_json){.out = out, .indent = indent};
}

static void new_line(tn_json *json)
{
	if (json->indent)
		tn_str_addf(json->out, "\n%*s", json->indent * json->depth, "");
}

/* What stands between this value and the one before it. */
static void before_value(tn_json *json)
{
	if (json->after_key) {
		json->after_key = false;
		return;
	}
	if (json->depth == 0)
		return;
	if (json->has_items[json->depth])
		tn_str_add(json->out, json->indent ? "," : ", ");
	json->has_items[json->depth] = true;
	new_line(json);
}

static void open_scope(tn_json *json, const char *bracket)
{
	before_value(json);
	tn_str_add(json->out, bracket);
	TN_ASSERT(json->depth < TN_JSON_DEPTH_MAX);
	json->has_items[++json->depth] = false;
}

static void close_scope(tn_json *json, const char *bracket)
{
	bool items = json->has_items[json->depth];

	TN_ASSERT(json->depth > 0 && !json->after_key);
	json->depth--;
	if (items)
		new_line(json);
	tn_str_add(json->out, bracket);
}

void tn_json_object(tn_json *json)
{
	open_scope(json, "{");
}

void tn_json_array(tn_json *json)
{
	open_scope(json, "[");
}

void tn_json_end_object(tn_json *json)
{
	close_scope(json, "}");
}

void tn_json_end_array(tn_json *json)
{
	close_scope(json, "]");
}

/* Length of the UTF-8 sequence that starts with c; 0 if none does. */
static int lead_length(unsigned char c)
{
	if (c < 0x80)
		return 1;
	if ((c & 0xe0) == 0xc0)
		return 2;
	if ((c & 0xf0) == 0xe0)
		return 3;
	return (c & 0xf8) == 0xf0 ? 4 : 0;
}

/* Length of the valid UTF-8 sequence at p, 0 if it is none (overlong, surrogate, cut). */
static int utf8_length(const unsigned char *p)
{
	int n = lead_length(p[0]);
	uint32_t code = n == 1 ? p[0] : (uint32_t)(p[0] & (0xff >> (n + 1)));

	for (int i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (p[i] & 0x3fu);
	}
	if ((n == 2 && code < 0x80) || (n == 3 && code < 0x800) ||
	    (n == 4 && (code < 0x10000 || code > 0x10ffff)))
		return 0;
	return code >= 0xd800 && code <= 0xdfff ? 0 : n;
}

static void quoted(tn_str *out, const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	tn_str_add(out, "\"");
	while (*p) {
		int n = utf8_length(p);

		if (*p == '"' || *p == '\\')
			tn_str_addf(out, "\\%c", *p);
		else if (*p == '\n')
			tn_str_add(out, "\\n");
		else if (*p == '\t')
			tn_str_add(out, "\\t");
		else if (*p < 0x20)
			tn_str_addf(out, "\\u%04x", *p);
		else if (n == 0)
			tn_str_add(out, "\xef\xbf\xbd");
		else
			tn_str_addn(out, (const char *)p, (size_t)n);
		p += n ? n : 1;
	}
	tn_str_add(out, "\"");
}

void tn_json_key(tn_json *json, const char *key)
{
	TN_ASSERT(!json->after_key && json->depth > 0);
	before_value(json);
	quoted(json->out, key);
	tn_str_add(json->out, ": ");
	json->after_key = true;
}

void tn_json_string(tn_json *json, const char *text)
{
	if (!text) {
		tn_json_null(json);
		return;
	}
	before_value(json);
	quoted(json->out, text);
}

void tn_json_u64(tn_json *json, uint64_t value)
{
	before_value(json);
	tn_str_addf(json->out, "%" PRIu64, value);
}

void tn_json_i64(tn_json *json, int64_t value)
{
	before_value(json);
	tn_str_addf(json->out, "%" PRId64, value);
}

void tn_json_double(tn_json *json, double value)
{
	char text[40];
	char *comma;

	if (!isfinite(value)) {
		tn_json_null(json);
		return;
	}
	before_value(json);
	snprintf(text, sizeof(text), "%.9g", value);
	comma = strchr(text, ','); /* the application may have set a locale */
	if (comma)
		*comma = '.';
	tn_str_add(json->out, text);
}

void tn_json_bool(tn_json *json, bool value)
{
	before_value(json);
	tn_str_add(json->out, value ? "true" : "false");
}

void tn_json_null(tn_json *json)
{
	before_value(json);
	tn_str_add(json->out, "null");
}

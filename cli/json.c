/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON writer of the command. The library has its own for its state dumps; the command sees only the
 * installed headers. Tests: tests/e2e/cli_test.py parses every output with Python.
 */
#include "json.h"

#include <math.h>

static void escaped(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c == '\n')
			fputs("\\n", out);
		else if (c < 0x20)
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static void member(json *j, const char *key)
{
	if (j->comma)
		fputs(", ", j->out);
	j->comma = true;
	if (key) {
		escaped(j->out, key);
		fputs(": ", j->out);
	}
}

void json_object(json *j, const char *key)
{
	member(j, key);
	fputc('{', j->out);
	j->comma = false;
}

void json_object_end(json *j)
{
	fputc('}', j->out);
	j->comma = true;
}

void json_array(json *j, const char *key)
{
	member(j, key);
	fputc('[', j->out);
	j->comma = false;
}

void json_array_end(json *j)
{
	fputc(']', j->out);
	j->comma = true;
}

void json_string(json *j, const char *key, const char *value)
{
	member(j, key);
	escaped(j->out, value);
}

void json_u64(json *j, const char *key, uint64_t value)
{
	member(j, key);
	fprintf(j->out, "%llu", (unsigned long long)value);
}

void json_bool(json *j, const char *key, bool value)
{
	member(j, key);
	fputs(value ? "true" : "false", j->out);
}

void json_null(json *j, const char *key)
{
	member(j, key);
	fputs("null", j->out);
}

void json_real(json *j, const char *key, double value)
{
	if (!isfinite(value)) {
		json_null(j, key);
		return;
	}
	member(j, key);
	fprintf(j->out, "%.9g", value);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a case says: lines "name value unit" for people, or one object of JSON.
 * Threads: main only.
 */
#include <stdarg.h>
#include <stdio.h>

#include "bench.h"

static struct {
	bool json, rows, first;
} out;

static void separate(void)
{
	printf("%s", out.first ? "" : ",");
	out.first = false;
}

void report_begin(const options *o, const char *name)
{
	out.json = o->json;
	out.rows = false;
	out.first = true;
	if (!out.json) {
		printf("== %s, %s ==\n", name, o->transport);
		return;
	}
	printf("{");
	report_text("case", name);
	report_text("transport", o->transport);
}

void report_number(const char *name, double value, const char *unit)
{
	if (!out.json) {
		printf("%s%-34s %14.*f %s\n", out.rows ? "  " : "", name,
		       value < 100 && value != (double)(long long)value ? 2 : 0, value, unit);
		return;
	}
	separate();
	printf("\"%s%s%s\":%.6g", name, unit[0] ? " " : "", unit, value);
}

void report_text(const char *name, const char *text)
{
	if (!out.json) {
		printf("%s%-34s %s\n", out.rows ? "  " : "", name, text);
		return;
	}
	separate();
	printf("\"%s\":\"%s\"", name, text);
}

void report_row(void)
{
	if (!out.json) {
		out.rows = true;
		return;
	}
	printf(out.rows ? "},{" : ",\"rows\":[{");
	out.rows = out.first = true;
}

void report_note(const char *format, ...)
{
	va_list args;

	if (out.json)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

void report_end(void)
{
	printf(out.json ? out.rows ? "}]}\n" : "}\n" : "\n");
	fflush(stdout);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of names for people. See names.h.
 * Threads: none of its own. Tests: tests/unit/store/clock_test.c, barrier_test.c.
 */
#include "store/names.h"

#include <stdarg.h>
#include <stdio.h>

#define REST_MAX 24u /* " and 4294967295 more" */

void tn_names_start(tn_names *names, char *text, unsigned size)
{
	TN_ASSERT(size >= REST_MAX + 16);
	*names = (tn_names){.text = text, .size = size};
	text[0] = '\0';
}

void tn_names_add(tn_names *names, const char *fmt, ...)
{
	unsigned start = names->at, room = names->size - REST_MAX;
	va_list args;
	int n;

	if (names->count++ > names->shown)
		return; /* an earlier one did not fit */
	if (names->shown)
		start += (unsigned)snprintf(names->text + start, names->size - start, ", ");
	va_start(args, fmt);
	n = vsnprintf(names->text + start, names->size - start, fmt, args);
	va_end(args);
	if (n < 0 || start + (unsigned)n >= room) {
		names->text[names->at] = '\0';
		return;
	}
	names->at = start + (unsigned)n;
	names->shown++;
}

unsigned tn_names_end(tn_names *names, const char *what)
{
	unsigned rest = names->count - names->shown;

	if (rest && names->shown)
		snprintf(names->text + names->at, names->size - names->at, " and %u more", rest);
	else if (rest)
		snprintf(names->text, names->size, "%u %s", rest, what);
	return names->count;
}

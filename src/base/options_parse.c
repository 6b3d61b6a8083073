/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syntax of option values: numbers with units, durations, truth values; and the search for the name
 * that a slip was meant to be. Pure: no environment, no tables.
 * Threads: any. Tests: tests/unit/base/options_test.c.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/options.h"

/* Plain decimal digits at *text, moved past them. False: none, or more than 64 bits. */
static bool digits(const char **text, uint64_t *value)
{
	const char *p = *text;
	uint64_t v = 0;

	if (!isdigit((unsigned char)*p))
		return false;
	for (; isdigit((unsigned char)*p); p++) {
		uint64_t d = (uint64_t)(*p - '0');

		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, d, &v))
			return false;
	}
	*text = p;
	*value = v;
	return true;
}

bool tn_parse_u64(const char *text, uint64_t *value)
{
	return digits(&text, value) && !*text;
}

typedef struct unit {
	const char *name;
	uint64_t factor;
} unit;

/* "1.5" and a unit's name. The fraction has up to 9 digits and must give a whole number of the base unit. */
static bool with_unit(const char *text, const unit *units, unsigned n, uint64_t *value)
{
	uint64_t whole, fraction = 0, scale = 1, part;
	const char *p = text;

	if (!digits(&p, &whole))
		return false;
	if (*p == '.') {
		const char *start = ++p;

		if (!digits(&p, &fraction) || p - start > 9)
			return false;
		for (; start < p; start++)
			scale *= 10;
	}
	while (*p == ' ')
		p++;
	for (unsigned i = 0; i < n; i++) {
		if (strcasecmp(p, units[i].name) != 0)
			continue;
		if (__builtin_mul_overflow(whole, units[i].factor, &whole))
			return false;
		part = (uint64_t)((unsigned __int128)fraction * units[i].factor / scale);
		return !__builtin_add_overflow(whole, part, value);
	}
	return false;
}

bool tn_parse_bytes(const char *text, uint64_t *value)
{
	static const unit units[] = {
		{"", 1},
		{"b", 1},
		{"k", 1ull << 10},
		{"kib", 1ull << 10},
		{"m", 1ull << 20},
		{"mib", 1ull << 20},
		{"g", 1ull << 30},
		{"gib", 1ull << 30},
		{"t", 1ull << 40},
		{"tib", 1ull << 40},
		{"kb", 1000},
		{"mb", 1000000},
		{"gb", 1000000000},
		{"tb", 1000000000000},
	};

	return with_unit(text, units, TN_COUNT_OF(units), value);
}

bool tn_parse_duration(const char *text, uint64_t *ns)
{
	static const unit units[] = {
		{"ns", 1},         {"us", 1000},       {"ms", 1000000},
		{"s", 1000000000}, {"m", 60000000000}, {"h", 3600000000000},
	};

	if (strcmp(text, "0") == 0) {
		*ns = 0;
		return true;
	}
	return with_unit(text, units, TN_COUNT_OF(units), ns);
}

bool tn_parse_bool(const char *text, bool *value)
{
	static const char *const words[] = {"0", "1", "off", "on", "no", "yes", "false", "true"};

	for (unsigned i = 0; i < TN_COUNT_OF(words); i++) {
		if (strcasecmp(text, words[i]) == 0) {
			*value = i & 1;
			return true;
		}
	}
	return false;
}

/* In the largest unit of at least 1, with up to three significant decimals and no trailing zeros. */
static char *format(double value, const char *unit_name, char *buf, unsigned size)
{
	char number[32];
	char *end;

	snprintf(number, sizeof(number), "%.2f", value);
	end = number + strlen(number);
	while (end[-1] == '0')
		*--end = '\0';
	if (end[-1] == '.')
		*--end = '\0';
	snprintf(buf, size, "%s %s", number, unit_name);
	return buf;
}

char *tn_format_bytes(uint64_t bytes, char *buf, unsigned size)
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	unsigned i = 0;

	for (; value >= 1024 && i + 1 < TN_COUNT_OF(names); i++)
		value /= 1024;
	return format(value, names[i], buf, size);
}

char *tn_format_duration(uint64_t ns, char *buf, unsigned size)
{
	static const char *const names[] = {"ns", "us", "ms", "s"};
	double value = (double)ns;
	unsigned i = 0;

	for (; value >= 1000 && i + 1 < TN_COUNT_OF(names); i++)
		value /= 1000;
	return format(value, names[i], buf, size);
}

#define NEAREST_MAX 80

/* Levenshtein distance, letters without case; texts of NEAREST_MAX bytes and more are infinitely far. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[NEAREST_MAX + 1];
	size_t n = strlen(a), m = strlen(b);

	if (n >= NEAREST_MAX || m >= NEAREST_MAX)
		return UINT32_MAX;
	for (unsigned j = 0; j <= m; j++)
		row[j] = j;
	for (unsigned i = 1; i <= n; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= m; j++) {
			unsigned above = row[j];
			bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
			unsigned change = diagonal + !same;

			row[j] = TN_MIN(change, TN_MIN(above, row[j - 1]) + 1);
			diagonal = above;
		}
	}
	return row[m];
}

const char *tn_nearest(const char *given, unsigned n, const char *(*name)(unsigned i, void *arg), void *arg)
{
	unsigned best = (unsigned)strlen(given) / 3 + 1;
	const char *found = NULL;

	for (unsigned i = 0; i < n; i++) {
		const char *candidate = name(i, arg);
		unsigned d = distance(given, candidate);

		if (d < best) {
			best = d;
			found = candidate;
		}
	}
	return found;
}

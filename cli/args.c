/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing of command-line options and the help text. Mistakes get one line with the remedy on stderr and
 * exit status 2. Tests: tests/e2e/cli_test.py.
 */
#include "args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES  48
#define SUBCOMMANDS_MAX 16

static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[NAME_MAX_BYTES + 1];
	size_t n = strlen(b);

	if (n > NAME_MAX_BYTES || strlen(a) > NAME_MAX_BYTES)
		return 1000;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1]; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= n; j++) {
			unsigned up = row[j];
			unsigned best = diagonal + (a[i - 1] != b[j - 1]);

			if (up + 1 < best)
				best = up + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			diagonal = up;
			row[j] = best;
		}
	}
	return row[n];
}

const char *nearest_name(const char *given, const char *const *names)
{
	unsigned best = (unsigned)strlen(given) / 3 + 2;
	const char *found = NULL;

	for (; *names; names++) {
		unsigned d = edit_distance(given, *names);

		if (d < best) {
			best = d;
			found = *names;
		}
	}
	return found;
}

static void print_help(const arg_usage *usage, const arg_row *rows)
{
	printf("%s - %s\n\nusage: %s\n\noptions:\n", usage->command, usage->summary, usage->synopsis);
	for (const arg_row *row = rows; row->name; row++) {
		char left[96];

		if (row->hidden)
			continue;
		snprintf(left, sizeof(left), "--%s%s%s", row->name, row->meta ? " " : "",
			 row->meta ? row->meta : "");
		if (strlen(left) > 30)
			printf("  %s\n  %-30s  %s\n", left, "", row->help);
		else
			printf("  %-30s  %s\n", left, row->help);
	}
	printf("  %-30s  %s\n", "--help", "this text");
	if (usage->epilogue)
		printf("\n%s", usage->epilogue);
}

static const arg_row *find_row(const arg_row *rows, const char *name, size_t n)
{
	for (; rows->name; rows++)
		if (strlen(rows->name) == n && memcmp(rows->name, name, n) == 0)
			return rows;
	return NULL;
}

static int unknown(const arg_usage *usage, const arg_row *rows, const char *name, size_t n)
{
	const char *names[64];
	char given[NAME_MAX_BYTES + 1];
	const char *near;
	int count = 0;

	for (; rows->name && count < 62; rows++)
		if (!rows->hidden)
			names[count++] = rows->name;
	names[count++] = "help";
	names[count] = NULL;
	snprintf(given, sizeof(given), "%.*s", (int)n, name);
	near = nearest_name(given, names);
	if (near)
		fprintf(stderr, "%s: unknown option --%s; did you mean --%s?\n", usage->command, given, near);
	else
		fprintf(stderr, "%s: unknown option --%s; see %s --help\n", usage->command, given,
			usage->command);
	return 2;
}

static bool parse_scaled(const char *text, const char *const *units, const double *scale, double *value)
{
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	if (end == text || errno || *value < 0)
		return false;
	for (int i = 0; units[i]; i++)
		if (strcmp(end, units[i]) == 0) {
			*value *= scale[i];
			return *value < 9.2e18;
		}
	return false;
}

static bool parse_u64(const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

static bool parse_choice(const char *choices, const char *text, unsigned *index)
{
	size_t n = strlen(text);

	for (unsigned i = 0;; i++) {
		const char *bar = strchr(choices, '|');
		size_t m = bar ? (size_t)(bar - choices) : strlen(choices);

		if (m == n && memcmp(choices, text, n) == 0) {
			*index = i;
			return true;
		}
		if (!bar)
			return false;
		choices = bar + 1;
	}
}

static bool parse_value(const arg_row *row, const char *text)
{
	static const char *const byte_units[] = {"", "B", "K", "KiB", "M", "MiB", "G", "GiB", NULL};
	static const double byte_scale[] = {1, 1, 1024, 1024, 1048576, 1048576, 1073741824, 1073741824};
	static const char *const time_units[] = {"", "s", "ms", "us", "min", NULL};
	static const double time_scale[] = {1e9, 1e9, 1e6, 1e3, 60e9};
	double real;
	char *end;

	switch (row->type) {
	case ARG_FLAG:
		*(bool *)row->value = true;
		return true;
	case ARG_STRING:
		*(const char **)row->value = text;
		return true;
	case ARG_U64:
		return parse_u64(text, row->value);
	case ARG_BYTES:
		if (!parse_scaled(text, byte_units, byte_scale, &real))
			return false;
		*(uint64_t *)row->value = (uint64_t)real;
		return true;
	case ARG_SECONDS:
		if (!parse_scaled(text, time_units, time_scale, &real))
			return false;
		*(uint64_t *)row->value = (uint64_t)real;
		return true;
	case ARG_REAL:
		errno = 0;
		*(double *)row->value = strtod(text, &end);
		return end != text && *end == '\0' && errno == 0;
	case ARG_CHOICE:
		return parse_choice(row->meta, text, row->value);
	}
	return false;
}

/* A number of the option's kind as one would type it. */
static const char *show_value(const arg_row *row, uint64_t value, char *text, size_t bytes)
{
	static const struct unit {
		const char *name;
		uint64_t scale;
	} times[] = {{"min", 60000000000ull}, {"s", 1000000000ull}, {"ms", 1000000ull}, {"us", 1000ull}, {0}};
	static const struct unit sizes[] = {
		{"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {0}};
	const struct unit *unit = row->type == ARG_SECONDS ? times : row->type == ARG_BYTES ? sizes : NULL;

	for (; unit && unit->name; unit++)
		if (value && value % unit->scale == 0) {
			snprintf(text, bytes, "%llu%s", (unsigned long long)(value / unit->scale),
				 unit->name);
			return text;
		}
	snprintf(text, bytes, "%llu%s", (unsigned long long)value,
		 row->type == ARG_SECONDS && value ? "ns" : "");
	return text;
}

static int check_range(const arg_usage *usage, const arg_row *row, const char *text)
{
	uint64_t v = *(uint64_t *)row->value;
	char low[32], high[32];

	if (v >= row->min && (!row->max || v <= row->max))
		return -1;
	show_value(row, row->min, low, sizeof(low));
	if (row->max)
		fprintf(stderr, "%s: --%s: %s is out of range, %s to %s\n", usage->command, row->name, text,
			low, show_value(row, row->max, high, sizeof(high)));
	else
		fprintf(stderr, "%s: --%s: %s is too small, at least %s\n", usage->command, row->name, text,
			low);
	return 2;
}

static int set_value(const arg_usage *usage, const arg_row *row, const char *text)
{
	if (!parse_value(row, text)) {
		fprintf(stderr, "%s: --%s: '%s' is not %s%s\n", usage->command, row->name, text,
			row->type == ARG_CHOICE ? "one of " : "a valid ", row->meta ? row->meta : "value");
		return 2;
	}
	if (row->type == ARG_U64 || row->type == ARG_BYTES || row->type == ARG_SECONDS) {
		int rc = check_range(usage, row, text);

		if (rc >= 0)
			return rc;
	}
	if (row->given)
		*row->given = true;
	return -1;
}

int args_parse(const arg_usage *usage, const arg_row *rows, int argc, char **argv, const char **positional)
{
	int count = 0;
	bool options = true;

	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i], *name, *equals;
		const arg_row *row;
		size_t n;
		int rc;

		if (!options || arg[0] != '-' || arg[1] == '\0') {
			if (count == usage->positional_max) {
				fprintf(stderr, "%s: unexpected argument '%s'; see %s --help\n",
					usage->command, arg, usage->command);
				return 2;
			}
			positional[count++] = arg;
			continue;
		}
		if (strcmp(arg, "--") == 0) {
			options = false;
			continue;
		}
		if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
			print_help(usage, rows);
			return 0;
		}
		name = arg[1] == '-' ? arg + 2 : arg + 1;
		equals = strchr(name, '=');
		n = equals ? (size_t)(equals - name) : strlen(name);
		row = arg[1] == '-' ? find_row(rows, name, n) : NULL;
		if (!row)
			return unknown(usage, rows, name, n);
		if (row->type == ARG_FLAG && equals) {
			fprintf(stderr, "%s: --%s takes no value\n", usage->command, row->name);
			return 2;
		}
		if (row->type != ARG_FLAG && !equals && i + 1 == argc) {
			fprintf(stderr, "%s: --%s needs a value: %s\n", usage->command, row->name, row->meta);
			return 2;
		}
		rc = set_value(usage, row, row->type == ARG_FLAG ? "" : equals ? equals + 1 : argv[++i]);
		if (rc >= 0)
			return rc;
	}
	return -1;
}

static void subcommand_help(const arg_usage *usage, const subcommand *subcommands, unsigned n, FILE *out)
{
	fprintf(out, "%s - %s\n\nusage: %s\n\n", usage->command, usage->summary, usage->synopsis);
	for (unsigned i = 0; i < n; i++)
		fprintf(out, "  %-8s %s\n", subcommands[i].name, subcommands[i].help);
	fprintf(out, "  --help   this text\n\n`%s SUBCOMMAND --help` explains the options of a subcommand.\n",
		usage->command);
}

int args_subcommand(const arg_usage *usage, const subcommand *subcommands, unsigned n, int argc, char **argv)
{
	const char *names[SUBCOMMANDS_MAX + 1] = {0}, *near;

	if (argc < 2) {
		subcommand_help(usage, subcommands, n, stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		subcommand_help(usage, subcommands, n, stdout);
		return 0;
	}
	for (unsigned i = 0; i < n && i < SUBCOMMANDS_MAX; i++) {
		if (strcmp(argv[1], subcommands[i].name) == 0)
			return subcommands[i].run(argc - 1, argv + 1);
		names[i] = subcommands[i].name;
	}
	near = nearest_name(argv[1], names);
	fprintf(stderr, "%s: unknown subcommand '%s'%s%s%s; see %s --help\n", usage->command, argv[1],
		near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", usage->command);
	return 2;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of bench-link: one table gives parsing, --help and what a bad value is told.
 * Threads: main only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef enum kind { FLAG, NUMBER, BYTES, CHOICE, PAIR } kind;

typedef struct row {
	const char *name;
	kind kind;
	size_t at; /* in options */
	const char *meta, *help;
	uint64_t min, max;
} row;

#define AT(field) offsetof(options, field)

static const row rows[] = {
	{"case", CHOICE, AT(test), "channels|mixed|stall", "what to measure; without it all three", 0, 0},
	{"tune", FLAG, AT(tune), "", "measure thresholds of each transport and recommend options", 0, 0},
	{"transport", CHOICE, AT(transport), "shm|tcp|loop|verbs", "of the link (shm; --tune: shm, then tcp)",
	 0, 0},
	{"channels", NUMBER, AT(channels), "N", "channels, with --case channels (10000)", 1, CHANNELS_MAX},
	{"op", CHOICE, AT(op), "send|put|all", "what --case channels measures (all)", 0, 0},
	{"threads", NUMBER, AT(threads), "N", "threads that use them (32)", 1, THREADS_MAX},
	{"bytes", BYTES, AT(bytes), "BYTES", "of a message or call (64)", 0, 1ull << 20},
	{"bulk", BYTES, AT(bulk_bytes), "BYTES", "of a put of --case mixed (1MiB)", 4096, 1ull << 30},
	{"share", NUMBER, AT(share), "PERCENT", "of the bulk rate, with --case mixed (70)", 1, 100},
	{"pace", NUMBER, AT(pace_us), "US", "microseconds between calls of --case mixed (200)", 0, 1000000},
	{"rounds", NUMBER, AT(rounds), "N", "rounds, each measures everything once (9)", 1, ROUNDS_MAX},
	{"ms", NUMBER, AT(ms), "MS", "milliseconds of each measurement (500)", 10, 60000},
	{"set", PAIR, AT(set), "LAYER.NAME=VALUE", "an option of both nodes; may be repeated", 0, 0},
	{"json", FLAG, AT(json), "", "one JSON object per case instead of text", 0, 0},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void help(void)
{
	printf("usage: bench-link [--case NAME | --tune] [options]\n\n"
	       "A link between two processes of this host (loop: two contexts of one), as an application "
	       "sees it.\n\n"
	       "  channels  N channels used by T threads against one channel used by one: throughput, lanes, "
	       "memory\n"
	       "  mixed     latency of small calls, alone and beside bulk puts paced to a share of their "
	       "rate\n"
	       "  stall     a receiver that stops consuming: what its sender gets through, and another "
	       "channel\n\n");
	for (size_t i = 0; i < ROWS; i++)
		printf("  --%-10s %-22s %s\n", rows[i].name, rows[i].meta, rows[i].help);
	printf("  --%-10s %-22s %s\n", "help", "", "this text");
}

static bool number(const char *text, bool bytes, uint64_t *value)
{
	static const struct {
		const char *unit;
		unsigned shift;
	} units[] = {{"", 0},     {"B", 0},  {"KiB", 10}, {"K", 10},
		     {"MiB", 20}, {"M", 20}, {"GiB", 30}, {"G", 30}};
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	*value = strtoull(text, &end, 10);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(end, units[i].unit) != 0 || (!bytes && units[i].shift) || (!bytes && *end))
			continue;
		*value <<= units[i].shift;
		return true;
	}
	return false;
}

static bool one_of(const char *choices, const char *text)
{
	size_t n = strlen(text);

	for (const char *at = choices; n && (at = strstr(at, text)); at += n) {
		if ((at == choices || at[-1] == '|') && (at[n] == 0 || at[n] == '|'))
			return true;
	}
	return false;
}

static int bad(const row *r, const char *text)
{
	fprintf(stderr, "bench-link: --%s %s: ", r->name, text);
	if (r->kind == CHOICE)
		fprintf(stderr, "one of %s\n", r->meta);
	else if (r->kind == PAIR)
		fprintf(stderr, "write %s; `tern info --config` lists them, and %d fit here\n", r->meta, 16);
	else
		fprintf(stderr, "a number from %llu to %llu%s\n", (unsigned long long)r->min,
			(unsigned long long)r->max, r->kind == BYTES ? ", with KiB, MiB or GiB" : "");
	return 2;
}

static int take(options *o, const row *r, const char *text)
{
	void *at = (char *)o + r->at;
	uint64_t value;

	switch (r->kind) {
	case CHOICE:
		if (!one_of(r->meta, text))
			return bad(r, text);
		*(const char **)at = text;
		return -1;
	case PAIR:
		if (!strchr(text, '=') || !strchr(text, '.') || o->sets == sizeof(o->set) / sizeof(o->set[0]))
			return bad(r, text);
		o->set[o->sets++] = text;
		return -1;
	case FLAG:
		*(bool *)at = true;
		return -1;
	default:
		if (!number(text, r->kind == BYTES, &value) || value < r->min || value > r->max)
			return bad(r, text);
		*(uint64_t *)at = value;
		return -1;
	}
}

static const row *find(const char *name, size_t n)
{
	for (size_t i = 0; i < ROWS; i++) {
		if (strlen(rows[i].name) == n && strncmp(rows[i].name, name, n) == 0)
			return &rows[i];
	}
	return NULL;
}

int options_parse(options *o, int argc, char **argv)
{
	*o = (options){.op = "all",
		       .channels = 10000,
		       .threads = 32,
		       .bytes = 64,
		       .bulk_bytes = 1 << 20,
		       .rounds = 9,
		       .ms = 500,
		       .pace_us = 200,
		       .share = 70};
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = strchr(name, '=');
		const row *r;
		int status;

		if (strcmp(name, "--help") == 0) {
			help();
			return 0;
		}
		r = strncmp(name, "--", 2) == 0
			    ? find(name + 2, value ? (size_t)(value - name) - 2 : strlen(name + 2))
			    : NULL;
		if (!r) {
			fprintf(stderr, "bench-link: %s is not an option; --help lists them\n", name);
			return 2;
		}
		if (r->kind != FLAG && !value && i + 1 == argc) {
			fprintf(stderr, "bench-link: --%s wants %s\n", r->name, r->meta);
			return 2;
		}
		value = value ? value + 1 : r->kind == FLAG ? "" : argv[++i];
		status = take(o, r, value);
		if (status >= 0)
			return status;
	}
	if (o->tune && o->test) {
		fprintf(stderr, "bench-link: --tune and --case: one of them\n");
		return 2;
	}
	return -1;
}

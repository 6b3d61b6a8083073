/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern-sim: the command. Options, and what is printed; run.c runs.
 *
 * Exit status: 0 all went well, 1 a seed failed, 2 wrong usage.
 * Threads: one; ranges run in processes of their own. Tests: sim-smoke, sim-same, sim-usage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "sim/fault.h"
#include "sim/run.h"

static const char usage_text[] =
	"usage: tern-sim SEED [-v] [--only LIST] [--without KINDS]\n"
	"       tern-sim --seeds A..B [--jobs N] [--json]\n"
	"       tern-sim --hours H [--jobs N]\n"
	"       tern-sim --minimise SEED\n"
	"       tern-sim --regress FILE\n"
	"\n"
	"Runs tern's production code in virtual time: one seed, one run. Without -v a line per result.\n"
	"\n"
	"  -v, --verbose       print what happens, with the log of the nodes\n"
	"      --seeds A..B    run these seeds and print the coverage\n"
	"      --hours H       run new seeds for so long\n"
	"      --jobs N        processes at a time (default 1)\n"
	"      --minimise SEED leave out faults one by one while the seed still fails\n"
	"      --only LIST     of the planned faults only these happen: their numbers, or none\n"
	"      --without KINDS kinds of faults that do not happen (see --kinds)\n"
	"      --regress FILE  run the seeds that are listed in a file\n"
	"      --same N        run N seeds twice each: both must do the same\n"
	"      --mutants       plant bugs, one after the other, until a seed finds each (./dev mutate)\n"
	"      --mutant N      plant bug N; alone: until a seed finds it, with SEED: in that run\n"
	"      --kinds         list the kinds of faults\n"
	"      --json          the result of a range as JSON\n"
	"  -h, --help          print this\n";

static int wrong(const char *fmt, const char *what)
{
	fprintf(stderr, "tern-sim: ");
	fprintf(stderr, fmt, what);
	fprintf(stderr, "\nTry 'tern-sim --help'.\n");
	return 2;
}

static bool number(const char *text, uint64_t *out)
{
	return text && tn_parse_u64(text, out);
}

static bool range(const char *text, uint64_t *first, uint64_t *last)
{
	char buf[64];
	char *dots;

	snprintf(buf, sizeof(buf), "%s", text ? text : "");
	dots = strstr(buf, "..");
	if (!dots)
		return false;
	*dots = 0;
	return number(buf, first) && number(dots + 2, last) && *first <= *last;
}

static bool only(const char *text, sim_options *options)
{
	static uint8_t list[256];

	options->only = list;
	options->only_count = sizeof(list);
	if (strcmp(text, "none") == 0)
		return true;
	for (const char *at = text; *at;) {
		char *end;
		unsigned long n = strtoul(at, &end, 10);

		if (end == at || n >= sizeof(list) || (*end && *end != ','))
			return false;
		list[n] = 1;
		at = *end ? end + 1 : end;
	}
	return true;
}

static bool without(const char *text, sim_options *options)
{
	for (const char *at = text; *at;) {
		size_t n = strcspn(at, ",");
		unsigned kind = 0;

		while (kind < SIM_FAULT_COUNT &&
		       (strlen(sim_fault_word(kind)) != n || memcmp(sim_fault_word(kind), at, n) != 0))
			kind++;
		if (kind == SIM_FAULT_COUNT)
			return false;
		options->kinds &= ~(1u << kind);
		at += n + (at[n] == ',');
	}
	return true;
}

static int print_kinds(void)
{
	for (unsigned i = 0; i < SIM_FAULT_COUNT; i++)
		printf("%-16s %s\n", sim_fault_word(i), sim_fault_text(i));
	return 0;
}

typedef struct command {
	sim_run_params run;
	bool has_seed, minimise, hours, seeds;
	const char *regress;
	uint64_t same, mutant;
	bool mutants;
} command;

/* One option; *i moves over its value. -1: go on. */
static int option(command *c, char **argv, int *i)
{
	const char *arg = argv[*i], *value = argv[*i + 1];
	sim_options *o = &c->run.options;
	char *end;

	if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (strcmp(arg, "--kinds") == 0)
		return print_kinds();
	if (strcmp(arg, "-v") == 0 || strcmp(arg, "--verbose") == 0)
		o->verbose = true;
	else if (strcmp(arg, "--json") == 0)
		c->run.json = true;
	else if (strcmp(arg, "--mutants") == 0)
		c->mutants = true;
	else if (arg[0] != '-') {
		if (c->has_seed || !number(arg, &o->seed))
			return wrong("'%s' is not a seed: a number", arg);
		c->has_seed = true;
	} else if (!value)
		return wrong("unknown option '%s', or its value is missing", arg);
	else {
		++*i;
		if (strcmp(arg, "--seeds") == 0) {
			c->seeds = true;
			if (!range(value, &c->run.first, &c->run.last))
				return wrong("'%s' is not a range: say 1..1000", value);
		} else if (strcmp(arg, "--jobs") == 0) {
			if (!number(value, &c->run.jobs) || c->run.jobs < 1 || c->run.jobs > SIM_JOBS_MAX)
				return wrong("'%s' jobs: 1 to 64", value);
		} else if (strcmp(arg, "--hours") == 0) {
			c->run.hours = strtod(value, &end);
			c->hours = true;
			if (*end || !(c->run.hours > 0))
				return wrong("'%s' is not a number of hours", value);
		} else if (strcmp(arg, "--minimise") == 0) {
			c->minimise = true;
			if (!number(value, &o->seed))
				return wrong("'%s' is not a seed: a number", value);
		} else if (strcmp(arg, "--only") == 0) {
			if (!only(value, o))
				return wrong("'%s' is no list of faults: say 0,3, or none", value);
		} else if (strcmp(arg, "--without") == 0) {
			if (!without(value, o))
				return wrong("'%s': a kind that --kinds does not list", value);
		} else if (strcmp(arg, "--same") == 0) {
			if (!number(value, &c->same))
				return wrong("'%s' is not a number", value);
		} else if (strcmp(arg, "--mutant") == 0) {
			if (!number(value, &c->mutant) || c->mutant == 0)
				return wrong("'%s' is not the number of a mutant", value);
		} else if (strcmp(arg, "--regress") == 0) {
			c->regress = value;
		} else {
			return wrong("unknown option '%s'", arg);
		}
	}
	return -1;
}

int main(int argc, char **argv)
{
	command c = {.run = {.jobs = 1, .options = {.kinds = UINT32_MAX}}};

	for (int i = 1; i < argc; i++) {
		int rc = option(&c, argv, &i);

		if (rc >= 0)
			return rc;
	}
	if (c.mutant && (c.has_seed || c.minimise))
		sim_run_choose_mutant(c.mutant);
	else if (c.mutant || c.mutants)
		return sim_run_mutants(&c.run, c.mutant);
	if (c.has_seed + c.minimise + c.hours + c.seeds + (c.regress != NULL) + (c.same > 0) != 1)
		return wrong("%s", "one of SEED, --seeds, --hours, --minimise, --regress, --same is needed");
	if (c.minimise)
		return sim_run_minimise(&c.run);
	if (c.regress)
		return sim_run_regress(&c.run, c.regress);
	if (c.same)
		return sim_run_same(&c.run, c.same);
	if (c.seeds || c.hours)
		return sim_run_range(&c.run);
	return sim_run_one(&c.run);
}

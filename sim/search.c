/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a failure needs: faults are left out one by one while the seed fails by the same checker. Also runs of
 * seeds that failed once, and runs that must be the same twice.
 *
 * Threads: none. Tests: sim-smoke, sim-same, sim-regress.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/run.h"

static bool fails_same(const sim_options *options, const sim_result *first, sim_result *now)
{
	sim_run_apart(options, now);
	return now->failed && strcmp(now->checker, first->checker) == 0;
}

int sim_run_minimise(const sim_run_params *params)
{
	sim_options options = params->options;
	uint8_t only[256];
	sim_result first, now;
	unsigned left = 0, n;

	memset(only, 1, sizeof(only));
	sim_run_apart(&options, &first);
	if (!first.failed) {
		printf("seed %llu does not fail\n", (unsigned long long)options.seed);
		return 0;
	}
	n = first.faults_planned ? first.faults_planned : 64; /* it crashed: unknown */
	options.only = only;
	options.only_count = sizeof(only);
	now = first;
	/* Halves first, then one by one. */
	for (unsigned step = (n + 1) / 2; step > 0; step = step > 1 ? (step + 1) / 2 : 0) {
		for (unsigned i = 0; i < n; i += step) {
			uint8_t before[256];
			sim_result tried;

			memcpy(before, only, sizeof(only));
			memset(only + i, 0, i + step <= n ? step : n - i);
			if (memcmp(before, only, sizeof(only)) == 0)
				continue;
			if (fails_same(&options, &first, &tried))
				now = tried;
			else
				memcpy(only, before, sizeof(only));
		}
	}
	printf("seed %llu: %s: %s\n  tern-sim %llu -v --only ", (unsigned long long)options.seed, now.checker,
	       now.text, (unsigned long long)options.seed);
	for (unsigned i = 0; i < n; i++)
		if (only[i])
			printf("%s%u", left++ ? "," : "", i);
	printf("%s\n", left ? "" : "none");
	return 1;
}

int sim_run_regress(const sim_run_params *params, const char *file)
{
	FILE *f = fopen(file, "re");
	char line[512];
	int rc = 0;

	if (!f) {
		fprintf(stderr, "tern-sim: %s: %s\n", file, strerror(errno));
		return 2;
	}
	while (fgets(line, sizeof(line), f)) {
		sim_options options = params->options;
		sim_result result;
		char *end;

		options.seed = strtoull(line, &end, 10);
		if (end == line)
			continue; /* a comment */
		sim_run_apart(&options, &result);
		printf("seed %llu: %s%s%s\n", (unsigned long long)options.seed,
		       result.failed ? "FAILED: " : "ok", result.failed ? result.checker : "",
		       result.failed ? result.text : "");
		rc |= result.failed;
	}
	fclose(f);
	return rc;
}

int sim_run_same(const sim_run_params *params, uint64_t seeds)
{
	uint64_t differ = 0;

	for (uint64_t seed = 1; seed <= seeds; seed++) {
		sim_options options = params->options;
		sim_result a, b;

		options.seed = seed;
		sim_run_apart(&options, &a);
		sim_run_apart(&options, &b);
		if (a.hash == b.hash && a.events == b.events && a.failed == b.failed)
			continue;
		differ++;
		printf("seed %llu: two runs differ: %016llx after %llu events, %016llx after %llu\n",
		       (unsigned long long)seed, (unsigned long long)a.hash, (unsigned long long)a.events,
		       (unsigned long long)b.hash, (unsigned long long)b.events);
	}
	printf("%llu seeds twice, %llu differ\n", (unsigned long long)seeds, (unsigned long long)differ);
	return differ ? 1 : 0;
}

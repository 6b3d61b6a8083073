/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command tern-sim-scale: one experiment, described by KEY=VALUE words, to one line of a table.
 * sim/scale.rows has the experiments of docs/SCALE.md. Threads: main. Tests: tests/unit/sim/scale_test.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/scale_words.h"

static void help(void)
{
	printf("usage: tern-sim-scale [--samples FILE] [--header] [KEY=VALUE...]\n\n"
	       "Runs one experiment over the simulated network and prints its results as one line of words\n"
	       "with tabs between them; --header prints their names first. Numbers may end in k, M, G "
	       "(1024).\n\n");
	scale_words_help(stdout);
}

static int run(scale_config *config, bool header)
{
	static scale_result result;

	if (!scale_run(config, &result))
		return 1;
	if (header)
		scale_print_header(stdout);
	scale_print(stdout, config, &result);
	return 0;
}

int main(int argc, char **argv)
{
	const char *samples = NULL;
	scale_config config;
	bool header = false;
	int status;

	scale_words_start(&config);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			help();
			return 0;
		}
		if (!strcmp(argv[i], "--header")) {
			header = true;
		} else if (!strcmp(argv[i], "--samples") && i + 1 < argc) {
			samples = argv[++i];
		} else if (!scale_words_set(&config, argv[i])) {
			fprintf(stderr, "tern-sim-scale: '%s' is not understood; --help lists all\n",
				argv[i]);
			return 2;
		}
	}
	scale_words_end(&config);
	if (samples) {
		config.samples = fopen(samples, "w");
		if (!config.samples) {
			perror(samples);
			return 1;
		}
	}
	status = run(&config, header);
	if (config.samples && fclose(config.samples)) {
		perror(samples);
		return 1;
	}
	return status;
}

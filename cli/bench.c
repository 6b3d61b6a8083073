/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern bench`: finds the subcommand. Threads: main.
 */
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "bench_ps.h"
#include "commands.h"

static void help(FILE *out)
{
	fprintf(out, "tern bench - load for servers\n\nusage: tern bench SUBCOMMAND [options]\n\n"
		     "  ps       pulls and pushes at parameter servers: latency, keys per second, CPU time\n"
		     "  --help   this text\n\n"
		     "`tern bench SUBCOMMAND --help` explains the options of a subcommand.\n");
}

int cmd_bench(int argc, char **argv)
{
	static const char *const names[] = {"ps", NULL};
	const char *near;

	if (argc < 2) {
		help(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		help(stdout);
		return 0;
	}
	if (strcmp(argv[1], "ps") == 0)
		return bench_ps(argc - 1, argv + 1);
	near = nearest_name(argv[1], names);
	fprintf(stderr, "tern bench: unknown subcommand '%s'%s%s%s; see tern bench --help\n", argv[1],
		near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return 2;
}

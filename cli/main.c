/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `tern`: finds the subcommand. Every subcommand is a file of its name. Threads: main.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/types.h>

#include "args.h"
#include "commands.h"

typedef struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} command;

static const command commands[] = {
	{"train", cmd_train, "train a model over parameter servers, on this host or as part of a job"},
	{"perf", cmd_perf, "latency and bandwidth between two processes, beside the physical limits"},
	{"server", cmd_server, "a parameter server: tables in memory, until it is ended"},
	{"table", cmd_table,
	 "tables of the parameter server: made, described, dropped; checkpoints looked into"},
	{"cluster", cmd_cluster, "servers that joined one another: who has what, who is to go"},
	{"bench", cmd_bench, "load for parameter servers: latency, keys per second, CPU time"},
	{"graph", cmd_graph, "models, built in or ONNX files: shown, checked, run"},
	{"run", cmd_run, "a command as every rank of a job, with tern below torch.distributed"},
	{"top", cmd_top, "processes live: links, memory, operations and how long they take"},
	{"status", cmd_status, "links of processes, and who waits for whom"},
	{"trace", cmd_trace, "what processes do for some seconds, as a file for Perfetto"},
	{"info", cmd_info, "version, providers, limits of this host, options"},
	{"doctor", cmd_doctor, "is this host ready for RDMA; what to change; a report to send in"},
	{"demo", cmd_demo, "the tour: train, compare the ways of communication, sum up"},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

const char *self_path(void)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (n > 0)
		path[n] = '\0';
	return n > 0 ? path : "tern";
}

static void help(FILE *out)
{
	fprintf(out,
		"tern %s - moves tensors at the speed of the memory and the wire\n\nusage: tern COMMAND "
		"[options]\n\n",
		tern_version());
	for (unsigned i = 0; i < COMMANDS; i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
	fprintf(out, "\n`tern COMMAND --help` explains the options of a command.\n");
}

/*
 * Started with a standard stream closed, the next file that is opened would become it. Each gets one that
 * cannot be used instead, so that writing says so.
 */
static void open_streams(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			return;
}

/* Output that did not arrive is a failure: disk full, stream closed. */
static int finish(int status)
{
	bool bad = ferror(stdout) != 0;

	if (fflush(stdout) == 0 && !bad)
		return status;
	fprintf(stderr, "tern: cannot write to standard output: %s\n", strerror(errno));
	return status ? status : 1;
}

static int command_line(int argc, char **argv)
{
	const char *names[COMMANDS + 1] = {0};
	const char *near;

	if (argc < 2) {
		help(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
		help(stdout);
		return 0;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("tern %s\n", tern_version());
		return 0;
	}
	for (unsigned i = 0; i < COMMANDS; i++) {
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
		names[i] = commands[i].name;
	}
	near = nearest_name(argv[1], names);
	fprintf(stderr, "tern: unknown command '%s'%s%s%s; see tern --help\n", argv[1],
		near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return 2;
}

int main(int argc, char **argv)
{
	open_streams();
	return finish(command_line(argc, argv));
}

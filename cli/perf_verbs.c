/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit lines of `tern perf` on verbs: perftest (ib_write_lat and its like) between two processes on the
 * same two cores, over the same device, with the same size, in the same run.
 *
 *   server   pinned to the target's core; its port is one that was free a moment ago
 *   client   pinned to the initiator's, started once the server listens; its table is read from a pipe
 *
 * Both end with this process (PDEATHSIG) or after TIMEOUT_MS. Must not touch a device itself.
 * Threads: main. Tests: tests/e2e/perf_test.py (where there is no device: the words that say so).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf.h"

#define TIMEOUT_MS 60000
#define LISTEN_MS  10000
#define LAT_ROUNDS 1000u
#define COLUMNS    16

static char problem[160];

const char *perftest_problem(void)
{
	return problem;
}

static double failed(const char *tool, const char *why)
{
	snprintf(problem, sizeof(problem), "%s: %s", tool, why);
	return NAN;
}

/* ---- the device ---- */

static bool port_active(const char *path)
{
	char state[32] = "";
	FILE *f = fopen(path, "re");
	bool read = f && fgets(state, sizeof(state), f);

	if (f)
		fclose(f);
	return read && strstr(state, "ACTIVE");
}

bool perftest_device(char *name, size_t bytes)
{
	const char *set = getenv("TERN_VERBS_DEVICE");
	glob_t ports = {0};
	bool found = set && set[0];

	if (found)
		snprintf(name, bytes, "%s", set);
	else if (glob("/sys/class/infiniband/*/ports/1/state", 0, NULL, &ports) == 0)
		for (size_t i = 0; i < ports.gl_pathc && !found; i++) {
			found = port_active(ports.gl_pathv[i]);
			if (found)
				snprintf(name, bytes, "%.*s", (int)strcspn(ports.gl_pathv[i] + 22, "/"),
					 ports.gl_pathv[i] + 22);
		}
	globfree(&ports);
	return found;
}

/* ---- two processes ---- */

typedef struct command {
	char device[64], port[16], size[24], count[16];
	const char *argv[16];
} command;

static void command_make(command *c, const char *tool, bool server, bool events)
{
	unsigned n = 0;

	c->argv[n++] = tool;
	c->argv[n++] = "-F"; /* never mind the CPU's frequency */
	c->argv[n++] = "-d";
	c->argv[n++] = c->device;
	c->argv[n++] = "-p";
	c->argv[n++] = c->port;
	c->argv[n++] = "-s";
	c->argv[n++] = c->size;
	c->argv[n++] = "-n";
	c->argv[n++] = c->count;
	if (events)
		c->argv[n++] = "-e";
	if (!server)
		c->argv[n++] = "127.0.0.1";
	c->argv[n] = NULL;
}

static pid_t start(const command *c, int core, int out)
{
	pid_t pid = fork();
	int null;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	perf_pin(core);
	null = open("/dev/null", O_RDWR);
	dup2(null, 0);
	dup2(out < 0 ? null : out, 1);
	dup2(null, 2);
	execvp(c->argv[0], (char *const *)c->argv);
	_exit(127);
}

static void stop(pid_t pid)
{
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

static unsigned free_port(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned port = 0;

	if (fd >= 0 && bind(fd, (struct sockaddr *)&addr, n) == 0 &&
	    getsockname(fd, (struct sockaddr *)&addr, &n) == 0)
		port = ntohs(addr.sin_port);
	if (fd >= 0)
		close(fd);
	return port;
}

/* Does anybody listen there? Asked of the kernel: a connection would be taken for the client's. */
static bool listening(unsigned port)
{
	static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	char line[256], want[16];
	bool found = false;

	snprintf(want, sizeof(want), ":%04X", port);
	for (unsigned i = 0; i < 2 && !found; i++) {
		FILE *f = fopen(tables[i], "re");
		char local[64], remote[64], state[8];

		while (f && !found && fgets(line, sizeof(line), f))
			found = sscanf(line, "%*s %63s %63s %7s", local, remote, state) == 3 &&
				strcmp(state, "0A") == 0 && strrchr(local, ':') &&
				strcmp(strrchr(local, ':'), want) == 0;
		if (f)
			fclose(f);
	}
	return found;
}

/* NULL, or why the server is not there. */
static const char *await_server(pid_t *server, unsigned port)
{
	for (int i = 0; i < LISTEN_MS / 2; i++) {
		int status;

		if (waitpid(*server, &status, WNOHANG) == *server) {
			*server = 0;
			return WIFEXITED(status) && WEXITSTATUS(status) == 127
				       ? "install perftest"
				       : "its server ended at once: is the device usable?";
		}
		if (listening(port))
			return NULL;
		usleep(2000);
	}
	return "its server does not listen";
}

/* All that the client prints. False: it took too long. */
static bool read_all(int fd, char *text, size_t bytes)
{
	uint64_t end = perf_now_ns() + TIMEOUT_MS * 1000000ull;
	size_t at = 0;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		uint64_t now = perf_now_ns();
		ssize_t n;

		if (now >= end || poll(&p, 1, (int)((end - now) / 1000000) + 1) == 0)
			return false;
		n = read(fd, text + at, bytes - 1 - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || at + (size_t)n == bytes - 1)
			break;
		at += (size_t)n;
	}
	text[at] = 0;
	return true;
}

/* ---- the table ---- */

/* The first line after the head "#bytes ..." that begins with our size and holds numbers. Their count. */
static int parse(const char *text, uint64_t bytes, double values[COLUMNS])
{
	const char *line = strstr(text, "#bytes");

	while (line && (line = strchr(line, '\n'))) {
		int n = 0;
		char *end;

		line++;
		for (const char *at = line; n < COLUMNS; at = end) {
			values[n] = strtod(at, &end);
			if (end == at || memchr(at, '\n', (size_t)(end - at)))
				break;
			n++;
		}
		if (n > 1 && values[0] == (double)bytes)
			return n;
	}
	return 0;
}

static int run(const perf_options *o, const char *tool, uint64_t bytes, uint64_t count,
	       double values[COLUMNS])
{
	unsigned port = free_port();
	const char *why;
	char text[8192];
	command c;
	int out[2], n = 0;
	pid_t server, client = 0;

	problem[0] = 0;
	if (!perftest_device(c.device, sizeof(c.device)) || pipe2(out, O_CLOEXEC) != 0) {
		failed(tool, "no RDMA device with an active port");
		return 0;
	}
	snprintf(c.port, sizeof(c.port), "%u", port);
	snprintf(c.size, sizeof(c.size), "%llu", (unsigned long long)bytes);
	snprintf(c.count, sizeof(c.count), "%llu", (unsigned long long)count);
	bool events = !o->spin && strcmp(tool, "ib_send_lat") == 0;

	command_make(&c, tool, true, events);
	server = start(&c, o->cores[1], -1);
	why = await_server(&server, port);
	command_make(&c, tool, false, events);
	if (!why)
		client = start(&c, o->cores[0], out[1]);
	close(out[1]);
	if (!why && !read_all(out[0], text, sizeof(text)))
		why = "took too long";
	if (!why && (n = parse(text, bytes, values)) == 0)
		why = "printed no row of figures";
	close(out[0]);
	stop(client);
	stop(server);
	if (why)
		failed(tool, why);
	return n;
}

/* #bytes #iterations t_min t_max t_typical t_avg ...: microseconds */
double perftest_latency_ns(const perf_options *o, const char *tool, uint64_t bytes)
{
	uint64_t count = bytes >= 65536 ? 50 : LAT_ROUNDS;
	double values[COLUMNS];
	int n = run(o, tool, bytes, count, values);

	return n < 5 ? NAN : values[4] * 1000;
}

/* #bytes #iterations peak average ...: MiB per second */
double perftest_rate(const perf_options *o, const char *tool, uint64_t bytes)
{
	uint64_t count = PERFTEST_BYTES / bytes;
	double values[COLUMNS];
	int n = run(o, tool, bytes, count < 5 ? 5 : count > 20000 ? 20000 : count, values);

	return n < 4 || !(values[3] > 0) ? NAN : values[3] * 1048576 / 1e9;
}
